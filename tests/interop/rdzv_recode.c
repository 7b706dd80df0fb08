/*
 * The other half of rdzv_state.py: decodes states from standard input and encodes them again.
 *
 *     in:  u8 dialect to write (0: the one that was read), u32 length, a pickle
 *     out: u8 0, u8 dialect that was read, u32 length, the pickle encoded anew
 *     or:  u8 1, u8 0, u32 length, why it was refused
 */
#include <stdio.h>
#include <stdlib.h>

#include "codec/rdzv/state.h"

static void answer(uint8_t refused, uint8_t dialect, struct mu_span s)
{
    uint8_t head[6] = {refused, dialect};

    mu_put_u32(head + 2, (uint32_t)s.len);
    (void)fwrite(head, 1, sizeof(head), stdout);
    (void)fwrite(s.data, 1, s.len, stdout);
    (void)fflush(stdout);
}

static void recode(struct mu_span in, enum mu_rdzv_dialect dialect)
{
    enum mu_rdzv_dialect found;
    struct mu_rdzv_state s;
    struct mu_errmsg msg = {{0}};
    struct mu_buf out;
    int err;

    mu_rdzv_state_init(&s);
    mu_buf_init(&out, MU_RDZV_STATE_BYTES_MAX);
    err = mu_rdzv_state_decode(in, &s, &found, &msg);
    if (err == 0) {
        dialect = dialect == MU_RDZV_DIALECT_UNKNOWN ? found : dialect;
        err = mu_rdzv_state_encode(
            &out, &s, dialect == MU_RDZV_DIALECT_UNKNOWN ? MU_RDZV_DIALECT_2 : dialect);
        (void)mu_err(&msg, err, "%s", muster_strerror(err));
    }
    if (err == 0) {
        answer(0, (uint8_t)found, mu_buf_span(&out));
    } else {
        answer(1, 0, mu_span_str(msg.text));
    }
    mu_buf_fini(&out);
    mu_rdzv_state_fini(&s);
}

int main(void)
{
    uint8_t head[5];

    while (fread(head, 1, sizeof(head), stdin) == sizeof(head)) {
        size_t len = mu_get_u32(head + 1);
        uint8_t *in = malloc(len + 1);

        if (in == NULL || fread(in, 1, len, stdin) != len) {
            return 1;
        }
        recode(mu_span(in, len), (enum mu_rdzv_dialect)head[0]);
        free(in);
    }
    return 0;
}
