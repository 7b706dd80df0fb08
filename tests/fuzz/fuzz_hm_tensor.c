/*
 * A tensor in one of hivemind's encodings: u8 encoding, u8 type, u8 rank, u16 for each dimension,
 * and the encoding. What can be decoded can be encoded again, and decoded from that.
 */
#include <stdlib.h>

#include "codec/state/hm_tensor.h"

#define BYTES_MAX ((uint64_t)1 << 20)

static void encode_again(const struct mu_hm_tensor *t, struct mu_span values, uint8_t *back)
{
    struct mu_hm_encoder e;
    struct mu_hm_cursor c;
    struct mu_errmsg msg;
    size_t len;
    uint8_t *out;

    if (mu_hm_encoder_init(&e, t, values) != 0) {
        abort();
    }
    len = (size_t)mu_hm_encoder_len(&e);
    out = malloc(len + 1);
    mu_hm_cursor_init(&c);
    while (c.offset < len) {
        size_t left = len - (size_t)c.offset;

        mu_hm_encoder_read(&e, &c, out + c.offset, left < 4095 ? left : 4095);
    }
    if (mu_hm_decode(t, mu_span(out, len), (struct mu_space){back, values.len}, &msg) != 0 ||
        (t->compression == MU_HM_NONE && !mu_span_eq(values, mu_span(back, values.len)))) {
        abort();
    }
    free(out);
    mu_hm_encoder_fini(&e);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint64_t shape[8];
    struct mu_hm_tensor t = {.shape = shape};
    struct mu_errmsg msg;
    struct mu_span in = mu_span(data, size);
    uint8_t *values;
    uint64_t len;

    if (size < 3) {
        return 0;
    }
    t.compression = (enum mu_hm_compression)(data[0] % (MU_HM_COMPRESSION_LAST + 1));
    t.bfloat16_raw = data[0] >= 0x80;
    t.dtype = (enum mu_dtype)(1 + data[1] % MU_DTYPE_LAST);
    t.rank = data[2] % 8;
    in = mu_span_skip(in, 3);
    for (uint32_t i = 0; i < t.rank; i++) {
        if (in.len < 2) {
            return 0;
        }
        shape[i] = mu_get_u16(in.data);
        in = mu_span_skip(in, 2);
    }
    if (mu_hm_tensor_len(&t, &len) != 0 || len > BYTES_MAX) {
        return 0;
    }
    values = malloc(2 * (size_t)len + 1);
    if (mu_hm_decode(&t, in, (struct mu_space){values, (size_t)len}, &msg) == 0) {
        encode_again(&t, mu_span(values, (size_t)len), values + len);
    }
    free(values);
    return 0;
}
