/*
 * The store's messages: the first byte says which; what was decoded must encode to the same bytes.
 */
#include "codec/store/msg.h"
#include "core/alloc.h"
#include "core/assert.h"

#define PARTS_MAX 1000

static void check_same(struct mu_buf *b, int err, struct mu_span in)
{
    MU_ASSERT(err == 0);
    MU_ASSERT(mu_span_eq(mu_buf_span(b), in));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mu_store_request request;
    struct mu_store_reply reply;
    struct mu_change change;
    struct mu_span *parts = NULL;
    enum mu_store_verb verb;
    struct mu_span in;
    struct mu_buf b;

    if (size == 0) {
        return 0;
    }
    in = mu_span(data + 1, size - 1);
    mu_buf_init(&b, size);
    (void)mu_store_verb_of(in, &verb);
    if (data[0] == 0) {
        if (mu_store_reply_decode(in, PARTS_MAX, &reply, &parts) == 0) {
            check_same(&b, mu_store_reply_encode(&b, &reply), in);
        }
    } else if (data[0] > MU_STORE_LEASE_REVOKE) {
        if (mu_store_change_decode(in, &change) == 0) {
            check_same(&b, mu_store_change_encode(&b, &change, change.old_value.data != NULL), in);
        }
    } else {
        verb = (enum mu_store_verb)data[0];
        if (mu_store_request_decode(in, verb, PARTS_MAX, &request, &parts) == 0) {
            check_same(&b, mu_store_request_encode(&b, &request), in);
        }
    }
    mu_free(parts);
    mu_buf_fini(&b);
    return 0;
}
