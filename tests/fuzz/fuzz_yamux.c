/*
 * yamux: a list of steps, each a byte that says what happens and, for what comes from the peer, a
 * length and so many bytes. Whatever happens, what is held is within its bounds and accounted for.
 */
#include <stdint.h>
#include <stdlib.h>

#include "core/assert.h"
#include "core/reader.h"
#include "proto/peer/yamux.h"

enum { IDS = 64 };

enum step {
    FEED,
    WRITE,
    END,
    RESET,
    CONSUME,
    OPEN,
    SEND,
    TICK,
    GO_AWAY,
    STEPS,
};

struct run {
    struct mu_yamux y;
    mu_mono_t now;
    uint32_t unread[IDS];
};

static void take_events(struct run *r)
{
    struct mu_yamux_event e;

    while (mu_yamux_next_event(&r->y, &e)) {
        if (e.type == MU_YAMUX_EV_DATA) {
            MU_ASSERT(e.data.len > 0 && e.data.len <= r->y.config.window_bytes_max);
            if (e.id < IDS) {
                r->unread[e.id] += (uint32_t)e.data.len;
            }
        }
    }
}

static void feed(struct run *r, struct mu_span in)
{
    while (in.len != 0) {
        size_t used;
        int err = mu_yamux_recv(&r->y, r->now, in, &used);

        take_events(r);
        in = mu_span_skip(in, used);
        if (err != 0 || used == 0) {
            break;
        }
    }
}

static void take_step(struct run *r, enum step step, uint8_t value, struct mu_reader *in)
{
    static const uint8_t zeroes[1 << 16];
    uint32_t id = value % IDS;
    size_t taken;

    switch (step) {
    case FEED:
        feed(r, mu_read_bytes(in, value < in->rest.len ? value : in->rest.len));
        break;
    case WRITE:
        (void)mu_yamux_write(&r->y, id, mu_span(zeroes, sizeof(zeroes) >> value / IDS * 4), &taken);
        break;
    case END:
        (void)mu_yamux_end(&r->y, id);
        break;
    case RESET:
        (void)mu_yamux_reset(&r->y, id);
        break;
    case CONSUME:
        (void)mu_yamux_consumed(&r->y, r->now, id, r->unread[id]);
        r->unread[id] = 0;
        break;
    case OPEN:
        (void)mu_yamux_open(&r->y, r->now, &id);
        break;
    case SEND:
        taken = mu_yamux_output(&r->y).len;
        mu_yamux_sent(&r->y, value == 255 || taken < value ? taken : value);
        break;
    case TICK:
        r->now = mu_mono_add_ms(r->now, (uint64_t)value * 100);
        (void)mu_yamux_tick(&r->y, r->now);
        break;
    case GO_AWAY:
        (void)mu_yamux_go_away(&r->y, MU_YAMUX_NORMAL);
        break;
    case STEPS:
        break;
    }
    take_events(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mu_yamux_config config = mu_yamux_config_defaults();
    struct mu_reader in = mu_reader(mu_span(data, size));
    struct run r = {.now = {MU_NS_PER_S}};

    config.role = mu_read_u8(&in) % 2 == 0 ? MU_YAMUX_DIALLER : MU_YAMUX_LISTENER;
    config.streams_max = 16;
    config.output_bytes_max = 2 * MU_YAMUX_DATA_MAX;
    config.window_bytes_max = 1 << 20;
    MU_ASSERT(mu_yamux_init(&r.y, &config, r.now) == 0);
    while (in.rest.len != 0) {
        enum step step = mu_read_u8(&in) % STEPS;

        take_step(&r, step, mu_read_u8(&in), &in);
        MU_ASSERT(r.y.theirs <= config.streams_max && r.y.unacked <= config.unacked_max);
        MU_ASSERT(mu_yamux_output(&r.y).len <= config.output_bytes_max + (1 << 19));
        MU_ASSERT(r.y.grown <= config.grown_bytes_max);
    }
    mu_yamux_fini(&r.y);
    return 0;
}
