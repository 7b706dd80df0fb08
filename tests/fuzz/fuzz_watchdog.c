/*
 * The pulses of other agents, and samples: any message of pulses is refused or read, and judged
 * without harm; what is read is written the same. The same bytes as samples keep the watchdog's
 * contract: no time is made up.
 */
#include "core/alloc.h"
#include "core/assert.h"
#include "proto/stacks/watchdog.h"

#define PULSES 64

static void check_pulses(struct mu_span in)
{
    struct mu_pulse pulses[PULSES];
    uint32_t missing[PULSES];
    struct mu_watchdog_verdict v;
    struct mu_watchdog_run run;
    struct mu_buf b;
    size_t count = 0;

    if (mu_pulse_count(in, &count) != 0) {
        return;
    }
    count = count > PULSES ? PULSES : count;
    for (size_t i = 0; i < count; i++) {
        pulses[i] = mu_pulse_at(in, i);
    }
    mu_buf_init(&b, 8192);
    MU_ASSERT(mu_pulse_encode(&b, pulses, count) == 0);
    for (size_t i = 0; i < count; i++) {
        struct mu_pulse p = mu_pulse_at(mu_buf_span(&b), i);

        MU_ASSERT(p.rank == pulses[i].rank && p.place == pulses[i].place);
    }
    mu_buf_fini(&b);
    mu_watchdog_run_init(&run, 60000);
    for (int i = 0; i < 2; i++) {
        MU_ASSERT(mu_watchdog_judge(&run, pulses, count, (uint32_t)count, &v, missing) == 0);
        MU_ASSERT(v.missing_count <= count);
        MU_ASSERT(v.word != MU_WATCHDOG_RESUMED);
        MU_ASSERT((v.word == MU_WATCHDOG_HANG) == (run.hangs && i == 0));
    }
    if (v.word == MU_WATCHDOG_SUSPECT) {
        mu_watchdog_run_confirm(&run, v.still_ms);
        MU_ASSERT(mu_watchdog_judge(&run, pulses, count, (uint32_t)count, &v, missing) == 0);
        MU_ASSERT(v.word == MU_WATCHDOG_HANGING && v.missing_count <= count);
    }
    MU_ASSERT(mu_watchdog_judge(&run, pulses, count, (uint32_t)count + 1, &v, missing) == 0);
    MU_ASSERT(v.word == MU_WATCHDOG_NOTHING);
}

static void check_samples(struct mu_span in)
{
    struct mu_watchdog_config config;
    struct mu_watchdog w;
    mu_mono_t now = {0};

    mu_watchdog_defaults(&config);
    MU_ASSERT(mu_watchdog_init(&w, &config) == 0);
    mu_watchdog_start(&w, 0, 7);
    for (; in.len >= 16; in = mu_span_skip(in, 16)) {
        const uint8_t *at = in.data;
        struct mu_watchdog_node node = {mu_get_u16(at), mu_get_u16(at + 2)};
        struct mu_watchdog_sample s = {
            .cpu_ns = (uint64_t)mu_get_u16(at + 4) << 24,
            .family_ns = (uint64_t)at[10] << 28,
            .memory_bytes = (uint64_t)at[8] << 16,
            .io_bytes = (uint64_t)mu_get_u16(at + 6) << (at[15] % 48),
            .output_bytes = at[8],
            .store_ops = at[9],
            .marks = at[10] >> 4,
            .place = at[11] % 4,
            .stance = (enum mu_pulse_stance)((at[11] >> 5) % (MU_STANCE_PERHAPS + 1)),
            .on_disk = (at[12] & 1) != 0,
            .stopped = (at[12] & 2) != 0,
            .traced = (at[12] & 4) != 0,
            .ended = (at[12] & 0xf8) == 0xf8,
            .unseen = (at[12] & 0xf8) == 0x78,
        };
        uint64_t before = mu_watchdog_pulse(&w, 0).still_ms;
        struct mu_pulse p;

        now = mu_mono_add_ms(now, mu_get_u16(at + 13));
        mu_watchdog_sample(&w, now, &node, &s);
        p = mu_watchdog_pulse(&w, 0);
        MU_ASSERT(p.rank == 7 && p.state >= MU_PULSE_FRESH && p.state <= MU_PULSE_ENDED);
        MU_ASSERT(p.still_ms <= before + 2000 && p.still_ms <= now.ns / MU_NS_PER_MS);
        MU_ASSERT(p.fixed_ms <= now.ns / MU_NS_PER_MS);
        (void)mu_watchdog_wants_place(&w, 0);
    }
    mu_watchdog_fini(&w);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    check_pulses(mu_span(data, size));
    check_samples(mu_span(data, size));
    return 0;
}
