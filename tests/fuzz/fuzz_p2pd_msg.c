/* What clients and daemons say: the first byte says who; what can be read can be said again, and
 * is then read the same. */
#include <stdint.h>
#include <stdlib.h>

#include "codec/peer/p2pd_msg.h"
#include "codec/bin/uvarint.h"
#include "core/assert.h"

static struct mu_span unframe(const struct mu_buf *out)
{
    uint64_t len;
    size_t head;

    MU_ASSERT(mu_uvarint_get(mu_buf_span(out), &head, &len) == 0 && head + len == out->len);
    return mu_span_skip(mu_buf_span(out), head);
}

static void read_request(struct mu_span in)
{
    struct mu_p2pd_request r;
    struct mu_p2pd_request again;
    struct mu_span name = {0};
    struct mu_span walk;
    struct mu_buf out;

    if (mu_p2pd_request_decode(in, &r) != 0) {
        return;
    }
    for (walk = r.all; mu_p2pd_next_addr(&r, &walk, &name);) {
    }
    name = (struct mu_span){0};
    for (walk = r.all; mu_p2pd_next_name(&r, &walk, &name);) {
    }
    if (!r.given) {
        return;
    }
    mu_buf_init(&out, 4 * in.len + 256);
    MU_ASSERT(mu_p2pd_request_encode(&out, &r, name) == 0);
    MU_ASSERT(mu_p2pd_request_decode(unframe(&out), &again) == 0);
    MU_ASSERT(again.type == r.type && again.what == r.what && again.balanced == r.balanced);
    MU_ASSERT(mu_span_eq(again.peer, r.peer) && mu_span_eq(again.addr, r.addr));
    MU_ASSERT(mu_span_eq(again.key, r.key) && again.timeout_s == r.timeout_s);
    mu_buf_fini(&out);
}

static void read_call(struct mu_span in, int (*decode)(struct mu_span in, struct mu_p2pd_call *ret))
{
    struct mu_p2pd_call call;
    struct mu_p2pd_call again;
    struct mu_span data;
    struct mu_buf out;

    if (decode(in, &call) != 0) {
        return;
    }
    (void)mu_p2pd_body_decode(call.body, &data);
    mu_buf_init(&out, 2 * in.len + 256);
    MU_ASSERT(mu_p2pd_call_encode(&out, &call) == 0 && out.len == mu_p2pd_call_len(&call));
    MU_ASSERT(decode(unframe(&out), &again) == 0);
    MU_ASSERT(again.kind == call.kind && mu_span_eq(again.id, call.id));
    MU_ASSERT(mu_span_eq(again.peer, call.peer) && mu_span_eq(again.name, call.name));
    MU_ASSERT(mu_span_eq(again.data, call.data) && mu_span_eq(again.body, call.body));
    MU_ASSERT(again.balanced == call.balanced);
    mu_buf_fini(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mu_p2pd_stream_info info;
    struct mu_p2pd_response response;
    struct mu_span in;

    if (size == 0 || size > 20000) {
        return 0;
    }
    in = mu_span(data + 1, size - 1);
    switch (data[0] % 4) {
    case 0:
        read_request(in);
        break;
    case 1:
        read_call(in, mu_p2pd_call_decode);
        break;
    case 2:
        read_call(in, mu_p2pd_answer_decode);
        break;
    default:
        (void)mu_p2pd_response_decode(in, &response);
        (void)mu_p2pd_stream_info_decode(in, &info);
        break;
    }
    return 0;
}
