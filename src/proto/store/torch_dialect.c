#include "proto/store/torch_dialect.h"

#include "codec/rdzv/state.h"
#include "codec/text/base64.h"

#define STATE_KEY      "/torch.rendezvous."
#define PICKLE_BEGINS  "gA" /* the base64 of a pickle: 0x80 and its version */
#define TEXT_BYTES_MAX ((size_t)MU_RDZV_STATE_BYTES_MAX / 3 * 4 + 8)

bool mu_torch_dialect_is_state(struct mu_span key)
{
    return mu_span_starts_with(key, MU_SPAN_LIT(STATE_KEY));
}

static bool are_ours(const struct mu_rdzv_state *s)
{
    for (size_t i = 0; i < s->member_count; i++) {
        if (s->members[i].node.local_id < MU_RDZV_OWN_ID) {
            return false;
        }
    }
    return s->member_count != 0;
}

/* Appends the text of the same state in the dialect of 1.13. False: it is not such a state, or must
 * stay as it is. */
static bool rewrite(struct mu_span text, struct mu_buf *bytes, struct mu_buf *out)
{
    enum mu_rdzv_dialect dialect = MU_RDZV_DIALECT_UNKNOWN;
    struct mu_rdzv_state state;
    struct mu_errmsg ignored;
    bool ok;

    mu_rdzv_state_init(&state);
    ok = mu_base64_decode(bytes, text) == 0 &&
         mu_rdzv_state_decode(mu_buf_span(bytes), &state, &dialect, &ignored) == 0 &&
         dialect != MU_RDZV_DIALECT_1_13 && are_ours(&state);
    mu_buf_reset(bytes);
    ok = ok && mu_rdzv_state_encode(bytes, &state, MU_RDZV_DIALECT_1_13) == 0 &&
         mu_base64_encode(out, mu_buf_span(bytes)) == 0;
    mu_rdzv_state_fini(&state);
    return ok;
}

void mu_torch_dialect_fit(struct mu_keyspace *ks, struct mu_span key)
{
    struct mu_span text = {0};
    struct mu_buf bytes, out;

    if (mu_ks_get(ks, key, &text) != 0 || text.len > TEXT_BYTES_MAX ||
        !mu_span_starts_with(text, MU_SPAN_LIT(PICKLE_BEGINS))) {
        return;
    }
    mu_buf_init(&bytes, MU_RDZV_STATE_BYTES_MAX + 8);
    mu_buf_init(&out, TEXT_BYTES_MAX);
    if (rewrite(text, &bytes, &out)) {
        (void)mu_ks_set(ks, key, mu_buf_span(&out), 0);
    }
    mu_buf_fini(&bytes);
    mu_buf_fini(&out);
}
