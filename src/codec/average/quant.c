#include "codec/average/quant.h"

#include <muster/error.h>

#include "core/assert.h"

#define EXPONENT    0x7f800000u
#define SIGN        0x80000000u
#define MAGIC       12582912.f /* 1.5 * 2^23: added and taken away, it rounds to an integer */
#define FP8_LARGEST 448.f

static inline uint32_t bits_of(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof(u));
    return u;
}

static inline float float_of(uint32_t u)
{
    float x;

    memcpy(&x, &u, sizeof(x));
    return x;
}

static bool is_block(uint32_t block)
{
    return block >= MU_QUANT_BLOCK_MIN && block <= MU_QUANT_BLOCK_MAX && block % 64 == 0;
}

size_t mu_quant_len(uint32_t block, size_t count)
{
    return is_block(block) ? count + (count + block - 1) / block * 4 : 0;
}

/* The magnitude of the largest value with its residual, as bits: their order is that of integers.
 * What is not finite is the largest of all. */
static uint32_t largest(const float *values, const float *residuals, size_t count)
{
    uint32_t worst = 0;

    if (residuals == NULL) {
        for (size_t i = 0; i < count; i++) {
            uint32_t u = bits_of(values[i]) & ~SIGN;

            worst = u > worst ? u : worst;
        }
        return worst;
    }
    for (size_t i = 0; i < count; i++) {
        uint32_t u = bits_of(values[i] + residuals[i]) & ~SIGN;

        worst = u > worst ? u : worst;
    }
    return worst;
}

static bool is_finite(const float *values, const float *residuals, size_t count)
{
    return largest(values, residuals, count) < EXPONENT;
}

/* --- int8 ------------------------------------------------------------------------------------- */

/* A block whose values are too small for a scale that is a normal number is all zeros. */
static float int8_scale(uint32_t worst)
{
    float scale = float_of(worst) / 127.f;

    if (bits_of(scale * 127.f) >= EXPONENT) {
        scale = float_of(bits_of(scale) - 1); /* so that what is decoded is finite */
    }
    return bits_of(scale) < 0x00800000u ? 0 : scale;
}

static void int8_encode(const float *values, const float *residuals, size_t count, float scale,
                        uint8_t *out)
{
    for (size_t i = 0; i < count; i++) {
        float x = residuals == NULL ? values[i] : values[i] + residuals[i];
        float q = x / scale;

        q = (q + MAGIC) - MAGIC;
        q = q > 127.f ? 127.f : q;
        q = q < -127.f ? -127.f : q;
        out[i] = (uint8_t)(int8_t)(int32_t)q;
    }
}

static void int8_decode(const uint8_t *in, size_t count, float scale, float *values)
{
    for (size_t i = 0; i < count; i++) {
        values[i] = scale * (float)(int8_t)in[i];
    }
}

/* --- fp8 -------------------------------------------------------------------------------------- */

/* The smallest power of two that brings the largest below 448; none that is not a normal number. */
static float fp8_scale(uint32_t worst)
{
    float x = float_of(worst);
    uint32_t exponent = worst >> 23;                  /* x < 2^(exponent - 126) */
    uint32_t scale = exponent > 8 ? exponent - 8 : 1; /* 448 is 1.75 * 2^8 */

    if (worst == 0) {
        return 0;
    }
    if (x / float_of(scale << 23) > FP8_LARGEST) {
        scale++;
    }
    return float_of(scale << 23);
}

/* Rounds a float of at most 448 to e4m3: three bits of mantissa, or multiples of 2^-9. */
static inline uint8_t fp8_of(float x)
{
    uint32_t u = bits_of(x);
    uint32_t sign = u >> 24 & 0x80;
    uint32_t magnitude = u & ~SIGN;
    /* Normal: the bits below the third are rounded to even, and the exponent is moved by 120. */
    uint32_t normal = ((magnitude + 0x7ffffu + (magnitude >> 20 & 1)) >> 20) - (120u << 3);
    /* Below 2^-6: adding 2^14 leaves multiples of 2^-9 as the last bits. */
    uint32_t small = bits_of(float_of(magnitude) + 16384.f) - bits_of(16384.f);
    uint32_t code = magnitude < 0x3c800000u ? small : normal;

    return (uint8_t)(sign | code);
}

static inline float fp8_value(uint8_t code)
{
    uint32_t magnitude = code & 0x7fu;
    float normal = float_of((magnitude << 20) + (120u << 23));
    float small = (float)(int32_t)magnitude * 0.001953125f;
    uint32_t sign = (uint32_t)(code & 0x80) << 24;

    return float_of(bits_of(magnitude < 8 ? small : normal) | sign);
}

static void fp8_encode(const float *values, const float *residuals, size_t count, float scale,
                       uint8_t *out)
{
    /* With the largest scale, 256 would be infinite: the code before it is 240. */
    float limit = scale >= 0x1p120f ? 240.f : FP8_LARGEST;

    for (size_t i = 0; i < count; i++) {
        float x = (residuals == NULL ? values[i] : values[i] + residuals[i]) / scale;

        x = x > limit ? limit : x;
        x = x < -limit ? -limit : x;
        out[i] = fp8_of(x);
    }
}

static void fp8_decode(const uint8_t *in, size_t count, float scale, float *values)
{
    for (size_t i = 0; i < count; i++) {
        values[i] = scale * fp8_value(in[i]);
    }
}

/* --- blocks ----------------------------------------------------------------------------------- */

static void encode_block(enum mu_quant kind, const float *values, float *residuals, size_t count,
                         uint8_t *out)
{
    uint32_t worst = largest(values, residuals, count);
    float scale = kind == MU_QUANT_INT8 ? int8_scale(worst) : fp8_scale(worst);
    float back[MU_QUANT_BLOCK_MAX];
    uint32_t bits = bits_of(scale);

    memcpy(out, &bits, sizeof(bits));
    if (scale == 0) {
        memset(out + 4, 0, count);
    } else if (kind == MU_QUANT_INT8) {
        int8_encode(values, residuals, count, scale, out + 4);
    } else {
        fp8_encode(values, residuals, count, scale, out + 4);
    }
    if (residuals == NULL) {
        return;
    }
    if (kind == MU_QUANT_INT8) {
        int8_decode(out + 4, count, scale, back);
    } else {
        fp8_decode(out + 4, count, scale, back);
    }
    for (size_t i = 0; i < count; i++) {
        residuals[i] = (values[i] + residuals[i]) - back[i];
    }
}

int mu_quant_encode(enum mu_quant kind, uint32_t block, const float *values, float *residuals,
                    size_t count, uint8_t *out)
{
    MU_ASSERT(kind == MU_QUANT_INT8 || kind == MU_QUANT_FP8);
    if (!is_block(block) || !is_finite(values, residuals, count)) {
        return MUSTER_EINVAL;
    }
    for (size_t at = 0; at < count; at += block) {
        size_t some = count - at < block ? count - at : block;

        encode_block(kind, values + at, residuals == NULL ? NULL : residuals + at, some, out);
        out += some + 4;
    }
    return 0;
}

/* A scale is zero with zero codes, or a positive normal number, of fp8 a power of two. */
static bool is_block_good(enum mu_quant kind, float scale, const uint8_t *codes, size_t count)
{
    uint32_t bits = bits_of(scale);
    uint8_t worst = 0;
    uint8_t bad = 0;

    for (size_t i = 0; i < count; i++) {
        worst |= codes[i];
        /* int8 has no -128, fp8 no number with all bits set. */
        bad |= kind == MU_QUANT_INT8 ? codes[i] == 0x80 : (codes[i] & 0x7f) == 0x7f;
    }
    if (bits == 0) {
        return worst == 0;
    }
    return bad == 0 && bits >= 0x00800000u && bits < EXPONENT &&
           (kind == MU_QUANT_INT8 || (bits & 0x7fffff) == 0);
}

int mu_quant_decode(enum mu_quant kind, uint32_t block, struct mu_span in, float *values,
                    size_t count)
{
    const uint8_t *at = in.data;

    MU_ASSERT(kind == MU_QUANT_INT8 || kind == MU_QUANT_FP8);
    if (!is_block(block) || in.len != mu_quant_len(block, count)) {
        return MUSTER_EPROTO;
    }
    for (size_t i = 0; i < count; i += block) {
        size_t some = count - i < block ? count - i : block;
        float scale;

        memcpy(&scale, at, sizeof(scale));
        if (!is_block_good(kind, scale, at + 4, some)) {
            return MUSTER_EPROTO;
        }
        if (kind == MU_QUANT_INT8) {
            int8_decode(at + 4, some, scale, values + i);
        } else {
            fp8_decode(at + 4, some, scale, values + i);
        }
        at += some + 4;
    }
    return is_finite(values, NULL, count) ? 0 : MUSTER_EPROTO;
}
