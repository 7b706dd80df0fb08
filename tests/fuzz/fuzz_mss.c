/*
 * multistream-select: the first byte says which side we are and how much is read at once; what
 * follows comes from the peer. In pieces or whole, the same is agreed on, answered and left over.
 */
#include <stdint.h>
#include <stdlib.h>

#include "core/assert.h"
#include "proto/peer/mss.h"

struct outcome {
    enum mu_mss_state state;
    int poison;
    size_t used;
};

static void answer(struct mu_mss *m)
{
    struct mu_mss_event e;

    while (mu_mss_next_event(m, &e)) {
        if (e.type == MU_MSS_EV_PROPOSED) {
            MU_ASSERT(e.name.len > 0 && e.name.len <= MU_MSS_NAME_MAX);
            MU_ASSERT((e.name.len % 2 == 0 ? mu_mss_accept(m) : mu_mss_refuse(m)) == 0);
        }
    }
}

static struct outcome run(uint8_t how, struct mu_span in, size_t step, struct mu_buf *ret_out)
{
    struct mu_mss m;
    size_t at = 0;

    mu_mss_init(&m, how % 2 == 0 ? MU_MSS_INITIATOR : MU_MSS_RESPONDER);
    if (how % 2 == 0) {
        MU_ASSERT(mu_mss_propose(&m, MU_SPAN_LIT("/noise")) == 0);
        MU_ASSERT(how % 4 != 0 || mu_mss_propose(&m, MU_SPAN_LIT("/ipfs/id/1.0.0")) == 0);
    }
    while (at < in.len) {
        size_t piece = in.len - at < step ? in.len - at : step;
        size_t used;
        int err = mu_mss_recv(&m, mu_span(in.data + at, piece), &used);

        MU_ASSERT(used <= piece);
        at += used;
        answer(&m);
        if (err != 0 || used == 0) {
            break;
        }
    }
    MU_ASSERT(mu_buf_append(ret_out, mu_mss_output(&m)) == 0);
    mu_mss_fini(&m);
    return (struct outcome){m.state, m.poison, at};
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mu_buf whole_out;
    struct mu_buf pieces_out;
    struct outcome whole;
    struct outcome pieces;
    struct mu_span in;

    if (size < 1 || size > 20000) {
        return 0;
    }
    mu_buf_init(&whole_out, 1 << 20);
    mu_buf_init(&pieces_out, 1 << 20);
    in = mu_span(data + 1, size - 1);
    whole = run(data[0], in, size, &whole_out);
    pieces = run(data[0], in, (size_t)(data[0] >> 2) % 16 + 1, &pieces_out);
    MU_ASSERT(whole.state == pieces.state && whole.poison == pieces.poison);
    MU_ASSERT(whole.used == pieces.used);
    MU_ASSERT(mu_span_eq(mu_buf_span(&whole_out), mu_buf_span(&pieces_out)));
    mu_buf_fini(&whole_out);
    mu_buf_fini(&pieces_out);
    return 0;
}
