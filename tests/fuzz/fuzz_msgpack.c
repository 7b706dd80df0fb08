/* MessagePack: whatever the bytes, a value is passed over as its tokens add up to; what can be read
 * can be written anew, and is then read the same. */
#include <stdint.h>
#include <stdlib.h>

#include "codec/bin/msgpack.h"
#include "core/assert.h"

static void write_again(const struct mu_mp *t, struct mu_mp_out *out)
{
    switch (t->type) {
    case MU_MP_NIL:
        mu_mp_put_nil(out);
        break;
    case MU_MP_BOOL:
        mu_mp_put_bool(out, t->boolean);
        break;
    case MU_MP_UINT:
        mu_mp_put_uint(out, t->number);
        break;
    case MU_MP_INT:
        mu_mp_put_int(out, t->negative);
        break;
    case MU_MP_FLOAT:
        mu_mp_put_double(out, t->real);
        break;
    case MU_MP_STR:
        mu_mp_put_str(out, t->bytes);
        break;
    case MU_MP_BIN:
        mu_mp_put_bin(out, t->bytes);
        break;
    case MU_MP_ARRAY:
        mu_mp_put_array(out, t->count);
        break;
    case MU_MP_MAP:
        mu_mp_put_map(out, t->count);
        break;
    case MU_MP_EXT:
        mu_mp_put_ext(out, t->ext, t->bytes.len);
        mu_mp_put_raw(out, t->bytes);
        break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mu_span in = mu_span(data, size);
    struct mu_span tokens = in;
    struct mu_span value;
    struct mu_span again;
    struct mu_buf buf;
    struct mu_mp_out out;
    struct mu_mp t;
    uint64_t left = 1;

    if (mu_mp_skip(&in, &value) != 0) {
        return 0;
    }
    mu_buf_init(&buf, 8 * size + 64);
    out = mu_mp_out(&buf);
    while (left > 0) {
        MU_ASSERT(mu_mp_next(&tokens, &t) == 0);
        left += t.type == MU_MP_ARRAY ? t.count : t.type == MU_MP_MAP ? 2 * (uint64_t)t.count : 0;
        left--;
        write_again(&t, &out);
    }
    MU_ASSERT(tokens.len == in.len && out.err == 0);
    again = mu_buf_span(&buf);
    MU_ASSERT(mu_mp_is_value(again));
    /* What is written is never longer, but for floats of four bytes. */
    MU_ASSERT(buf.len <= 2 * value.len);
    mu_buf_fini(&buf);
    return 0;
}
