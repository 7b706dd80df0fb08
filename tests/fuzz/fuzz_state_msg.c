/* The messages of the state download: what is read is written again the same. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "codec/state/msg.h"

static void check(const struct mu_buf *out, struct mu_span in)
{
    if (!mu_span_eq(mu_buf_span(out), in)) {
        abort();
    }
}

static void walk_entries(struct mu_span in, struct mu_buf *out)
{
    struct mu_state_entry entry;
    struct mu_span walk = in;
    int got;

    while ((got = mu_state_entry_next(&walk, &entry)) == 1) {
        if (mu_state_entry_encode(out, &entry) != 0) {
            abort();
        }
    }
    if (got == 0) {
        check(out, in);
    }
    mu_buf_reset(out);
}

static void walk_swarm(struct mu_span in, struct mu_buf *out)
{
    struct mu_span walk;
    struct mu_span addr;
    struct mu_state_swarm_head head;

    if (mu_state_swarm_decode(in, &head, &walk) == 0) {
        (void)mu_state_swarm_encode(out, &head);
        while (mu_state_swarm_next(&walk, &addr) == 1) {
            (void)mu_state_swarm_add(out, addr);
        }
        check(out, in);
        mu_buf_reset(out);
    }
}

static void read_have(struct mu_span in, uint32_t chunks, struct mu_buf *out)
{
    struct mu_state_have have;

    if (mu_state_have_decode(in, chunks, &have) == 0) {
        for (uint32_t i = 0; !have.all && i < chunks; i++) {
            (void)mu_state_bit(have.bits.data, i);
        }
        (void)mu_state_have_encode(out, &have);
        check(out, in);
        mu_buf_reset(out);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mu_span in = mu_span(data, size);
    struct mu_state_which which;
    struct mu_state_swarm_ask ask;
    uint8_t id[MU_STATE_ID_LEN];
    uint32_t chunk;
    struct mu_buf out;

    mu_buf_init(&out, (size_t)1 << 20);
    walk_entries(in, &out);
    walk_swarm(in, &out);
    read_have(in, size == 0 ? 0 : (uint32_t)(size * 8 - 8 - data[0] % 8), &out);
    if (mu_state_which_decode(in, &which) == 0) {
        (void)mu_state_which_encode(&out, &which);
        check(&out, in);
        mu_buf_reset(&out);
    }
    if (mu_state_swarm_ask_decode(in, &ask) == 0) {
        (void)mu_state_swarm_ask_encode(&out, &ask);
        check(&out, in);
    }
    (void)mu_state_id_decode(in, id);
    if (mu_state_busy_parse(in, 5) > 3600000) {
        abort();
    }
    while (mu_state_ask_next(&in, 1000, &chunk) == 1) {
        if (chunk >= 1000) {
            abort();
        }
    }
    mu_buf_fini(&out);
    return 0;
}
