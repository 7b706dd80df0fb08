/*
 * The state of a rendezvous: any bytes are refused in words or read. What was read can be written
 * in each dialect, and from then on reading and writing changes nothing. The same bytes as base64.
 */
#include "codec/text/base64.h"
#include "codec/rdzv/state.h"
#include "core/assert.h"

static void check_members(const struct mu_rdzv_state *s)
{
    for (size_t i = 0; i < s->member_count; i++) {
        MU_ASSERT(mu_rdzv_state_find(s, &s->members[i].node) == &s->members[i]);
        MU_ASSERT(i == 0 || mu_rdzv_node_compare(&s->members[s->order[i - 1]].node,
                                                 &s->members[s->order[i]].node) < 0);
    }
}

static void check_dialect(const struct mu_rdzv_state *s, enum mu_rdzv_dialect dialect)
{
    enum mu_rdzv_dialect found = MU_RDZV_DIALECT_UNKNOWN;
    struct mu_errmsg msg = {{0}};
    struct mu_rdzv_state again;
    struct mu_buf first;
    struct mu_buf second;

    mu_rdzv_state_init(&again);
    mu_buf_init(&first, MU_RDZV_STATE_BYTES_MAX);
    mu_buf_init(&second, MU_RDZV_STATE_BYTES_MAX);
    MU_ASSERT(mu_rdzv_state_encode(&first, s, dialect) == 0);
    MU_ASSERT(mu_rdzv_state_decode(mu_buf_span(&first), &again, &found, &msg) == 0);
    MU_ASSERT(found == dialect || again.member_count == 0 || found == MU_RDZV_DIALECT_UNKNOWN);
    MU_ASSERT(mu_rdzv_state_encode(&second, &again, dialect) == 0);
    MU_ASSERT(mu_span_eq(mu_buf_span(&first), mu_buf_span(&second)));
    mu_buf_fini(&first);
    mu_buf_fini(&second);
    mu_rdzv_state_fini(&again);
}

static void check_base64(struct mu_span in)
{
    struct mu_buf value;
    struct mu_buf text;

    mu_buf_init(&value, 2 * in.len + 4);
    mu_buf_init(&text, 2 * in.len + 4);
    if (mu_base64_decode(&value, in) == 0) {
        MU_ASSERT(mu_base64_encode(&text, mu_buf_span(&value)) == 0);
        MU_ASSERT(mu_span_eq(mu_buf_span(&text), in));
    }
    mu_buf_reset(&value);
    mu_buf_reset(&text);
    MU_ASSERT(mu_base64_encode(&text, in) == 0);
    MU_ASSERT(mu_base64_decode(&value, mu_buf_span(&text)) == 0);
    MU_ASSERT(mu_span_eq(mu_buf_span(&value), in));
    mu_buf_fini(&value);
    mu_buf_fini(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum mu_rdzv_dialect dialect;
    struct mu_errmsg msg = {{0}};
    struct mu_rdzv_state s;

    mu_rdzv_state_init(&s);
    if (mu_rdzv_state_decode(mu_span(data, size), &s, &dialect, &msg) == 0) {
        check_members(&s);
        check_dialect(&s, MU_RDZV_DIALECT_1_13);
        check_dialect(&s, MU_RDZV_DIALECT_2_NAIVE);
        check_dialect(&s, MU_RDZV_DIALECT_2);
        mu_rdzv_state_compact(&s);
        check_members(&s);
    } else {
        MU_ASSERT(msg.text[0] != '\0');
    }
    mu_rdzv_state_fini(&s);
    check_base64(mu_span(data, size));
    return 0;
}
