/*
 * The texts of the etcd-v3 rendezvous: any bytes are refused in words or read, as a state and as a
 * wish; and from then on reading and writing changes nothing.
 */
#include "codec/rdzv/leased.h"
#include "core/alloc.h"
#include "core/assert.h"

static void check_state(const struct mu_rdzv_state *s, int64_t seen)
{
    struct mu_errmsg msg = {{0}};
    struct mu_rdzv_state again;
    struct mu_buf first;
    struct mu_buf second;
    int64_t seen_again = -1;

    mu_rdzv_state_init(&again);
    mu_buf_init(&first, MU_RDZV_STATE_BYTES_MAX);
    mu_buf_init(&second, MU_RDZV_STATE_BYTES_MAX);
    MU_ASSERT(mu_rdzv_leased_encode(&first, s, seen) == 0);
    MU_ASSERT(mu_rdzv_leased_decode(mu_buf_span(&first), &again, &seen_again, &msg) == 0);
    MU_ASSERT(seen_again == seen && again.member_count == s->member_count);
    MU_ASSERT(mu_rdzv_leased_encode(&second, &again, seen) == 0);
    MU_ASSERT(mu_span_eq(mu_buf_span(&first), mu_buf_span(&second)));
    mu_buf_fini(&first);
    mu_buf_fini(&second);
    mu_rdzv_state_fini(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mu_errmsg msg = {{0}};
    struct mu_rdzv_state s;
    struct mu_rdzv_node node;
    enum mu_rdzv_wish wish;
    int64_t seen;

    mu_rdzv_state_init(&s);
    if (mu_rdzv_leased_decode(mu_span(data, size), &s, &seen, &msg) == 0) {
        check_state(&s, seen);
    } else {
        MU_ASSERT(msg.text[0] != '\0');
    }
    mu_rdzv_state_fini(&s);
    if (mu_rdzv_wish_decode(mu_span(data, size), &node, &wish) == 0) {
        mu_free(node.addr);
    }
    return 0;
}
