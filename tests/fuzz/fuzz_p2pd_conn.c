/* A client's connection: the first byte says how much is read at once. In pieces or whole, the same
 * is asked, answered and left over. */
#include <stdint.h>
#include <stdlib.h>

#include "core/assert.h"
#include "proto/p2pd/conn.h"

struct outcome {
    enum mu_p2pd_phase phase;
    int err;
    size_t used;
    size_t events;
};

static void answer(struct mu_p2pd_conn *c, const struct mu_p2pd_event *e)
{
    struct mu_p2pd_stream_info info = {MU_SPAN_LIT("p"), MU_SPAN_LIT("a"), MU_SPAN_LIT("n")};

    if (e->type == MU_P2PD_EV_CALL) {
        struct mu_p2pd_call call = {.kind = MU_P2PD_CANCEL, .id = e->call.id};

        MU_ASSERT(e->message.len > MU_P2PD_CALL_ID_LEN);
        MU_ASSERT(mu_p2pd_conn_tell(c, &call) == 0);
    } else if (e->request.type == MU_P2PD_UPGRADE) {
        MU_ASSERT(mu_p2pd_conn_reply_upgrade(c) == 0);
    } else if (e->request.type == MU_P2PD_STREAM_OPEN && e->request.given) {
        MU_ASSERT(mu_p2pd_conn_reply_stream(c, &info) == 0);
    } else {
        MU_ASSERT(mu_p2pd_conn_reply_error(c, "no") == 0);
    }
}

static struct outcome run(struct mu_span in, size_t step, struct mu_buf *ret_out)
{
    struct mu_p2pd_conn_config config = {.msg_len_max = 4096, .out_len_max = 1 << 20};
    struct outcome o = {0};
    struct mu_p2pd_conn c;

    mu_p2pd_conn_init(&c, &config);
    while (o.used < in.len) {
        size_t piece = in.len - o.used < step ? in.len - o.used : step;
        struct mu_p2pd_event e;
        size_t used = 0;
        int err = mu_p2pd_conn_recv(&c, mu_span(in.data + o.used, piece), &used);

        MU_ASSERT(used <= piece && c.in.len <= 4096 + 9);
        o.used += err == 0 ? used : 0;
        while (mu_p2pd_conn_next_event(&c, &e)) {
            o.events++;
            answer(&c, &e);
        }
        if (err != 0 || used == 0) {
            break;
        }
    }
    MU_ASSERT(mu_buf_append(ret_out, mu_p2pd_conn_output(&c)) == 0);
    o.phase = c.phase;
    o.err = c.err;
    mu_p2pd_conn_fini(&c);
    return o;
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
    mu_buf_init(&whole_out, 2 << 20);
    mu_buf_init(&pieces_out, 2 << 20);
    in = mu_span(data + 1, size - 1);
    whole = run(in, size, &whole_out);
    pieces = run(in, (size_t)data[0] % 32 + 1, &pieces_out);
    MU_ASSERT(whole.phase == pieces.phase && whole.err == pieces.err);
    MU_ASSERT(whole.events == pieces.events && (whole.err != 0 || whole.used == pieces.used));
    MU_ASSERT(mu_span_eq(mu_buf_span(&whole_out), mu_buf_span(&pieces_out)));
    mu_buf_fini(&whole_out);
    mu_buf_fini(&pieces_out);
    return 0;
}
