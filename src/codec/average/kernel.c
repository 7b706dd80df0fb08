#include "codec/average/kernel.h"

#include "codec/bin/half.h"
#include "core/assert.h"

#define BLOCK 256 /* values that are tried at once, in the first cache */

/* Values lie at any address; a copy of fixed size is one load, which the loops below need to be
 * vectorised. */
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "values are loaded as they lie in messages, which is little-endian"
#endif

static inline float load_f32(const uint8_t *values, size_t i)
{
    float x;

    memcpy(&x, values + i * 4, sizeof(x));
    return x;
}

static inline double load_f64(const uint8_t *values, size_t i)
{
    double x;

    memcpy(&x, values + i * 8, sizeof(x));
    return x;
}

static inline float load_f16(const uint8_t *values, size_t i)
{
    return mu_half_to_float(mu_get_u16(values + i * 2));
}

static inline float load_bf16(const uint8_t *values, size_t i)
{
    uint16_t x;

    memcpy(&x, values + i * 2, sizeof(x));
    return mu_bfloat16_to_float(x);
}

static inline void store_f32(uint8_t *values, size_t i, float x)
{
    memcpy(values + i * 4, &x, sizeof(x));
}

static inline void store_f64(uint8_t *values, size_t i, double x)
{
    memcpy(values + i * 8, &x, sizeof(x));
}

/* One loop for each type: a choice inside of it would keep it from being vectorised. `x` is the
 * value. */
#define LOOP(count, x, load, values, ...)                                                          \
    for (size_t i = 0; i < (count); i++) {                                                         \
        float x = load(values, i);                                                                 \
        __VA_ARGS__;                                                                               \
    }
#define EACH_FLOAT(dtype, count, x, values, ...)                                                   \
    do {                                                                                           \
        if ((dtype) == MU_DTYPE_F32) {                                                             \
            LOOP(count, x, load_f32, values, __VA_ARGS__)                                          \
        } else if ((dtype) == MU_DTYPE_BF16) {                                                     \
            LOOP(count, x, load_bf16, values, __VA_ARGS__)                                         \
        } else {                                                                                   \
            MU_ASSERT((dtype) == MU_DTYPE_F16);                                                    \
            LOOP(count, x, load_f16, values, __VA_ARGS__)                                          \
        }                                                                                          \
    } while (0)

void mu_avg_add(float *sum, enum mu_dtype dtype, const uint8_t *values, size_t count, double weight)
{
    float w = (float)weight;

    if (dtype == MU_DTYPE_F64) {
        for (size_t i = 0; i < count; i++) {
            sum[i] = (float)((double)sum[i] + weight * load_f64(values, i));
        }
        return;
    }
    EACH_FLOAT(dtype, count, x, values, sum[i] += w * x);
}

void mu_avg_divide(float *sum, size_t count, double weights)
{
    float w = (float)weights;

    MU_ASSERT(weights > 0);
    for (size_t i = 0; i < count; i++) {
        sum[i] /= w;
    }
}

void mu_avg_delta(uint8_t *out, const float *average, enum mu_dtype dtype, const uint8_t *values,
                  size_t count)
{
    if (dtype == MU_DTYPE_F64) {
        for (size_t i = 0; i < count; i++) {
            store_f64(out, i, (double)average[i] - load_f64(values, i));
        }
        return;
    }
    EACH_FLOAT(dtype, count, x, values, store_f32(out, i, average[i] - x));
}

void mu_avg_apply(enum mu_dtype dtype, uint8_t *values, const uint8_t *delta, size_t count,
                  double alpha)
{
    float a = (float)alpha;

    if (dtype == MU_DTYPE_F64) {
        for (size_t i = 0; i < count; i++) {
            store_f64(values, i, load_f64(values, i) + alpha * load_f64(delta, i));
        }
    } else if (dtype == MU_DTYPE_F32) {
        LOOP(count, x, load_f32, values, store_f32(values, i, x + a * load_f32(delta, i)))
    } else if (dtype == MU_DTYPE_BF16) {
        LOOP(count, x, load_bf16, values,
             mu_put_u16(values + i * 2, mu_bfloat16_from_float(x + a * load_f32(delta, i))))
    } else {
        MU_ASSERT(dtype == MU_DTYPE_F16);
        LOOP(count, x, load_f16, values,
             mu_put_u16(values + i * 2, mu_half_from_float(x + a * load_f32(delta, i))))
    }
}

void mu_avg_load(float *out, enum mu_dtype dtype, const uint8_t *values, size_t count)
{
    if (dtype == MU_DTYPE_F64) {
        for (size_t i = 0; i < count; i++) {
            out[i] = (float)load_f64(values, i);
        }
        return;
    }
    EACH_FLOAT(dtype, count, x, values, out[i] = x);
}

void mu_avg_store(enum mu_dtype dtype, uint8_t *values, const float *in, size_t count)
{
    if (dtype == MU_DTYPE_F32) {
        if (count != 0) {
            memcpy(values, in, count * sizeof(*in));
        }
    } else if (dtype == MU_DTYPE_F64) {
        for (size_t i = 0; i < count; i++) {
            store_f64(values, i, (double)in[i]);
        }
    } else if (dtype == MU_DTYPE_BF16) {
        for (size_t i = 0; i < count; i++) {
            mu_put_u16(values + i * 2, mu_bfloat16_from_float(in[i]));
        }
    } else {
        MU_ASSERT(dtype == MU_DTYPE_F16);
        for (size_t i = 0; i < count; i++) {
            mu_put_u16(values + i * 2, mu_half_from_float(in[i]));
        }
    }
}

static bool finite_f64(const uint8_t *values, size_t count)
{
    uint64_t worst = 0;

    for (size_t i = 0; i < count; i++) {
        uint64_t bits;

        memcpy(&bits, values + i * 8, sizeof(bits));
        bits &= UINT64_C(0x7ff0000000000000);
        worst = bits > worst ? bits : worst;
    }
    return worst != UINT64_C(0x7ff0000000000000);
}

static bool finite_f32(const uint8_t *values, size_t count)
{
    uint32_t worst = 0;

    for (size_t i = 0; i < count; i++) {
        uint32_t bits;

        memcpy(&bits, values + i * 4, sizeof(bits));
        bits &= 0x7f800000;
        worst = bits > worst ? bits : worst;
    }
    return worst != 0x7f800000;
}

static bool finite_16(const uint8_t *values, size_t count, uint16_t exponent)
{
    uint16_t worst = 0;

    for (size_t i = 0; i < count; i++) {
        uint16_t bits;

        memcpy(&bits, values + i * 2, sizeof(bits));
        bits &= exponent;
        worst = bits > worst ? bits : worst;
    }
    return worst != exponent;
}

/* Without a branch in the loops: they look for the greatest exponent, as bits. */
bool mu_avg_finite(enum mu_dtype dtype, const uint8_t *values, size_t count)
{
    if (dtype == MU_DTYPE_F64) {
        return finite_f64(values, count);
    }
    if (dtype == MU_DTYPE_F32) {
        return finite_f32(values, count);
    }
    return finite_16(values, count, dtype == MU_DTYPE_BF16 ? 0x7f80 : 0x7c00);
}

bool mu_avg_can_add(enum mu_dtype dtype, const uint8_t *values, size_t count, double weight)
{
    double most = weight > 1 ? MU_AVG_TERM_MAX / weight : MU_AVG_TERM_MAX;
    size_t size = mu_dtype_bits(dtype) / 8;
    float block[BLOCK];
    float worst = 0;

    if (!mu_avg_finite(dtype, values, count)) {
        return false;
    }
    for (size_t at = 0; at < count; at += BLOCK) {
        size_t n = count - at < BLOCK ? count - at : BLOCK;

        mu_avg_load(block, dtype, values + at * size, n);
        for (size_t i = 0; i < n; i++) {
            float x = block[i] < 0 ? -block[i] : block[i];

            worst = x > worst ? x : worst;
        }
    }
    return (double)worst <= most;
}

bool mu_avg_can_apply(enum mu_dtype dtype, const uint8_t *values, const uint8_t *delta,
                      size_t count, double alpha)
{
    size_t size = mu_dtype_bits(dtype) / 8;
    size_t delta_size = mu_dtype_bits(mu_avg_delta_dtype(dtype)) / 8;
    uint8_t block[BLOCK * sizeof(double)];

    for (size_t at = 0; at < count; at += BLOCK) {
        size_t n = count - at < BLOCK ? count - at : BLOCK;

        memcpy(block, values + at * size, n * size);
        mu_avg_apply(dtype, block, delta + at * delta_size, n, alpha);
        if (!mu_avg_finite(dtype, block, n)) {
            return false;
        }
    }
    return true;
}
