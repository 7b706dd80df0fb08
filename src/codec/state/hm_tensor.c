#include "codec/state/hm_tensor.h"

#include <inttypes.h>

#include "codec/state/hm_tensor_internal.h"

static const char *const names[] = {
    [MU_HM_NONE] = "NONE",
    [MU_HM_MEANSTD_16BIT] = "MEANSTD_16BIT",
    [MU_HM_FLOAT16] = "FLOAT16",
    [MU_HM_QUANTILE_8BIT] = "QUANTILE_8BIT",
    [MU_HM_UNIFORM_8BIT] = "UNIFORM_8BIT",
    [MU_HM_BLOCKWISE_8BIT] = "BLOCKWISE_8BIT",
};

const char *mu_hm_compression_name(enum mu_hm_compression compression)
{
    return names[compression];
}

bool mu_hm_compression_parse(struct mu_span name, enum mu_hm_compression *ret)
{
    for (int i = 0; i <= MU_HM_COMPRESSION_LAST; i++) {
        if (mu_span_eq(name, mu_span_str(names[i]))) {
            *ret = (enum mu_hm_compression)i;
            return true;
        }
    }
    return false;
}

/* --- sizes ------------------------------------------------------------------------------------ */

bool mu_hm_sizes(const struct mu_hm_tensor *t, struct mu_hm_sizes *ret)
{
    uint64_t bits;

    if (t->rank > MU_TENSOR_RANK_MAX) {
        return false;
    }
    ret->rows = 1;
    ret->row = t->rank == 0 ? 1 : t->shape[t->rank - 1];
    for (uint32_t i = 0; i + 1 < t->rank; i++) {
        if (__builtin_mul_overflow(ret->rows, t->shape[i], &ret->rows)) {
            return false;
        }
    }
    if (__builtin_mul_overflow(ret->rows, ret->row, &ret->elements) ||
        __builtin_mul_overflow(ret->elements, (uint64_t)mu_dtype_bits(t->dtype), &bits) ||
        bits % 8 != 0) {
        return false;
    }
    ret->bytes = bits / 8;
    return ret->bytes <= SIZE_MAX;
}

static bool is_float(enum mu_dtype dtype)
{
    return dtype == MU_DTYPE_F16 || dtype == MU_DTYPE_BF16 || dtype == MU_DTYPE_F32 ||
           dtype == MU_DTYPE_F64;
}

int mu_hm_tensor_check(const struct mu_hm_tensor *t)
{
    bool good = false;

    switch (t->compression) {
    case MU_HM_NONE:
        good = mu_dtype_torch_name(t->dtype) != NULL;
        break;
    case MU_HM_FLOAT16:
        good = is_float(t->dtype) && t->dtype != MU_DTYPE_BF16;
        break;
    case MU_HM_MEANSTD_16BIT:
        good = is_float(t->dtype) && t->dtype != MU_DTYPE_BF16 && t->rank != 0;
        break;
    case MU_HM_QUANTILE_8BIT:
    case MU_HM_UNIFORM_8BIT:
    case MU_HM_BLOCKWISE_8BIT:
        good = is_float(t->dtype);
        break;
    }
    return good ? 0 : MUSTER_ENOTSUP;
}

int mu_hm_tensor_len(const struct mu_hm_tensor *t, uint64_t *ret_len)
{
    struct mu_hm_sizes sizes;

    if (!mu_hm_sizes(t, &sizes)) {
        return MUSTER_EINVAL;
    }
    *ret_len = sizes.bytes;
    return 0;
}

static uint64_t count_blocks(uint64_t elements)
{
    return elements / MU_HM_BLOCK + (elements % MU_HM_BLOCK != 0);
}

/* Adds up `each` bytes for each of the elements, and `more`. */
static bool add_up(uint64_t elements, uint64_t each, uint64_t more, uint64_t *ret)
{
    return !__builtin_mul_overflow(elements, each, ret) && !__builtin_add_overflow(*ret, more, ret);
}

int mu_hm_encoded_len_max(const struct mu_hm_tensor *t, uint64_t *ret_len)
{
    struct mu_hm_sizes n;
    uint64_t len = 0;
    bool good = false;

    if (mu_hm_tensor_check(t) != 0) {
        return MUSTER_ENOTSUP;
    }
    if (!mu_hm_sizes(t, &n)) {
        return MUSTER_EINVAL;
    }
    switch (t->compression) {
    case MU_HM_NONE:
        len = n.bytes;
        good = t->dtype != MU_DTYPE_BF16 || add_up(n.elements, 4, 0, &len);
        break;
    case MU_HM_FLOAT16:
        good = add_up(n.elements, 2, 0, &len);
        break;
    case MU_HM_MEANSTD_16BIT:
        good = add_up(n.rows, 8, 0, &len) && add_up(n.elements, 2, len, &len);
        break;
    case MU_HM_QUANTILE_8BIT:
    case MU_HM_UNIFORM_8BIT:
        good = add_up(n.elements, 1, 8 + 4 * MU_HM_CODES, &len);
        break;
    case MU_HM_BLOCKWISE_8BIT:
        good = add_up(count_blocks(n.elements), 4, 16 + 4 * MU_HM_CODES, &len) &&
               add_up(n.elements, 1, len, &len);
        break;
    }
    if (!good || len > SIZE_MAX) {
        return MUSTER_EINVAL;
    }
    *ret_len = len;
    return 0;
}

/* --- decoding --------------------------------------------------------------------------------- */

static void put_float(enum mu_dtype dtype, uint8_t *out, uint64_t i, float value)
{
    if (dtype == MU_DTYPE_F32) {
        mu_put_u32(out + i * 4, mu_float_bits(value));
    } else if (dtype == MU_DTYPE_F16) {
        mu_put_u16(out + i * 2, mu_half_from_float(value));
    } else if (dtype == MU_DTYPE_BF16) {
        mu_put_u16(out + i * 2, mu_bfloat16_from_float(value));
    } else {
        double wide = (double)value;
        uint64_t bits;

        memcpy(&bits, &wide, sizeof(bits));
        mu_put_u64(out + i * 8, bits);
    }
}

static int wrong_length(struct mu_errmsg *reterr_msg, size_t got, uint64_t wanted)
{
    return mu_err(reterr_msg, MUSTER_EPROTO, "%zu bytes where there must be %" PRIu64, got, wanted);
}

static int decode_none(const struct mu_hm_tensor *t, const struct mu_hm_sizes *n, struct mu_span in,
                       uint8_t *out, struct mu_errmsg *reterr_msg)
{
    if (t->dtype == MU_DTYPE_BF16 && n->elements != 0 && in.len / 4 == n->elements &&
        in.len % 4 == 0) {
        for (uint64_t i = 0; i < n->elements; i++) {
            put_float(MU_DTYPE_BF16, out, i, mu_hm_float_at(MU_DTYPE_F32, in.data, i));
        }
        return 0;
    }
    if (in.len != n->bytes) {
        return wrong_length(reterr_msg, in.len, n->bytes);
    }
    if (in.len != 0) {
        memcpy(out, in.data, in.len);
    }
    return 0;
}

static void decode_halves(const struct mu_hm_tensor *t, const struct mu_hm_sizes *n,
                          const uint8_t *in, uint8_t *out)
{
    for (uint64_t i = 0; i < n->elements; i++) {
        put_float(t->dtype, out, i, mu_hm_float_at(MU_DTYPE_F16, in, i));
    }
}

/* Uses the arithmetic of the tensor's own type, with a rounding after each of the two steps. */
static void decode_scaled(enum mu_dtype dtype, const uint8_t *in, uint8_t *out, uint64_t i,
                          float mean, float std)
{
    float half = mu_hm_float_at(MU_DTYPE_F16, in, i);

    if (dtype == MU_DTYPE_F64) {
        double product = (double)half * (double)std;
        double sum = product + (double)mean;
        uint64_t bits;

        memcpy(&bits, &sum, sizeof(bits));
        mu_put_u64(out + i * 8, bits);
    } else {
        float product = half * std;

        if (dtype == MU_DTYPE_F16) {
            product = mu_half_to_float(mu_half_from_float(product));
        }
        put_float(dtype, out, i, product + mean);
    }
}

static void decode_meanstd(const struct mu_hm_tensor *t, const struct mu_hm_sizes *n,
                           const uint8_t *in, uint8_t *out)
{
    const uint8_t *means = in + n->elements * 2;
    const uint8_t *stds = means + n->rows * 4;

    for (uint64_t r = 0; r < n->rows; r++) {
        float mean = mu_hm_float_at(MU_DTYPE_F32, means, r);
        float std = mu_hm_float_at(MU_DTYPE_F32, stds, r);

        for (uint64_t i = r * n->row; i < (r + 1) * n->row; i++) {
            decode_scaled(t->dtype, in, out, i, mean, std);
        }
    }
}

/* Takes off a number that says how many floats there are; false: no such number. */
static bool take_count(struct mu_span *in, uint64_t *ret)
{
    if (in->len < 8) {
        return false;
    }
    *ret = mu_get_u64(in->data);
    *in = mu_span_skip(*in, 8);
    return true;
}

static int check_indices(struct mu_span indices, uint64_t codes, struct mu_errmsg *reterr_msg)
{
    for (size_t i = 0; codes < MU_HM_CODES && i < indices.len; i++) {
        if (indices.data[i] >= codes) {
            return mu_err(reterr_msg, MUSTER_EPROTO, "index %u in a codebook of %" PRIu64,
                          indices.data[i], codes);
        }
    }
    return 0;
}

/* `greatest`: of each block, float32; NULL without blocks. */
static void look_up(const struct mu_hm_tensor *t, struct mu_span indices, const uint8_t *codes,
                    const uint8_t *greatest, uint8_t *out)
{
    for (size_t i = 0; i < indices.len; i++) {
        float value = mu_hm_float_at(MU_DTYPE_F32, codes, indices.data[i]);

        if (greatest != NULL) {
            value *= mu_hm_float_at(MU_DTYPE_F32, greatest, i / MU_HM_BLOCK);
        }
        put_float(t->dtype, out, i, value);
    }
}

static int decode_codes(const struct mu_hm_tensor *t, const struct mu_hm_sizes *n,
                        struct mu_span in, uint8_t *out, struct mu_errmsg *reterr_msg)
{
    bool blocks = t->compression == MU_HM_BLOCKWISE_8BIT;
    uint64_t greatest = 0;
    uint64_t wanted;
    uint64_t codes;
    size_t all = in.len;

    if ((blocks && !take_count(&in, &greatest)) || !take_count(&in, &codes)) {
        return mu_err(reterr_msg, MUSTER_EPROTO, "%zu bytes, too few for a codebook", all);
    }
    if (codes == 0 || codes > MU_HM_CODES) {
        return mu_err(reterr_msg, MUSTER_EPROTO, "a codebook of %" PRIu64, codes);
    }
    if (blocks && greatest != count_blocks(n->elements)) {
        return mu_err(reterr_msg, MUSTER_EPROTO, "%" PRIu64 " blocks where there must be %" PRIu64,
                      greatest, count_blocks(n->elements));
    }
    /* Neither sum can overflow: mu_hm_encoded_len_max() has added up more. */
    wanted = (greatest + codes) * 4 + n->elements;
    if (in.len != wanted) {
        return wrong_length(reterr_msg, all, all - in.len + wanted);
    }
    if (check_indices(mu_span_skip(in, (greatest + codes) * 4), codes, reterr_msg) != 0) {
        return MUSTER_EPROTO;
    }
    look_up(t, mu_span_skip(in, (greatest + codes) * 4), in.data + greatest * 4,
            blocks ? in.data : NULL, out);
    return 0;
}

int mu_hm_decode(const struct mu_hm_tensor *t, struct mu_span encoded, struct mu_space out,
                 struct mu_errmsg *reterr_msg)
{
    static const uint8_t nothing[1];
    struct mu_hm_sizes n;
    uint64_t longest;
    int err = mu_hm_encoded_len_max(t, &longest);

    if (encoded.len == 0) {
        encoded.data = nothing; /* so that a pointer past it is valid */
    }
    if (err != 0 || !mu_hm_sizes(t, &n) || n.bytes != out.len) {
        err = err != 0 ? err : MUSTER_EINVAL;
        return mu_err(reterr_msg, err, "%s of %s: %s", mu_hm_compression_name(t->compression),
                      mu_dtype_name(t->dtype), muster_strerror(err));
    }
    switch (t->compression) {
    case MU_HM_NONE:
        return decode_none(t, &n, encoded, out.data, reterr_msg);
    case MU_HM_QUANTILE_8BIT:
    case MU_HM_UNIFORM_8BIT:
    case MU_HM_BLOCKWISE_8BIT:
        return decode_codes(t, &n, encoded, out.data, reterr_msg);
    case MU_HM_FLOAT16:
    case MU_HM_MEANSTD_16BIT:
        break;
    }
    if (encoded.len != longest) {
        return wrong_length(reterr_msg, encoded.len, longest);
    }
    if (t->compression == MU_HM_FLOAT16) {
        decode_halves(t, &n, encoded.data, out.data);
    } else {
        decode_meanstd(t, &n, encoded.data, out.data);
    }
    return 0;
}
