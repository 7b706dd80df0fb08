#include "codec/bin/half.h"

#define SIGN_MASK      0x80000000u
#define FLOAT_INF      0x7f800000u
#define HALF_INF       0x7c00u
#define HALF_INF_FROM  0x477ff000u /* 65520: halfway between the greatest half and what follows */
#define HALF_NORMAL    0x38800000u /* 2^-14 */
#define HALF_ZERO_TO   0x33000000u /* 2^-25: halfway to the least half, and even is zero */
#define HALF_BIAS_DIFF 0x38000000u /* 127 - 15, in the place of the exponent */

/* `bits`, without a sign, is a normal float below the least normal half. */
static uint32_t round_subnormal(uint32_t bits)
{
    uint32_t shift = 126 - (bits >> 23); /* 14 to 24 */
    uint32_t digits = (bits & 0x7fffffu) | 0x800000u;
    uint32_t kept = digits >> shift;
    uint32_t lost = digits & ((1u << shift) - 1);
    uint32_t tie = 1u << (shift - 1);

    return kept + (lost > tie || (lost == tie && (kept & 1) != 0));
}

uint16_t mu_half_from_float(float value)
{
    uint32_t bits = mu_float_bits(value);
    uint32_t sign = (bits & SIGN_MASK) >> 16;
    uint32_t half;

    bits &= ~SIGN_MASK;
    if (bits > FLOAT_INF) {
        /* Not a number: keeps what fits of its payload, but never becomes an infinity. */
        half = HALF_INF | (bits >> 13 & 0x3ffu);
        half += half == HALF_INF;
    } else if (bits >= HALF_INF_FROM) {
        half = HALF_INF;
    } else if (bits >= HALF_NORMAL) {
        bits -= HALF_BIAS_DIFF;
        half = (bits + 0xfffu + (bits >> 13 & 1)) >> 13;
    } else if (bits > HALF_ZERO_TO) {
        half = round_subnormal(bits);
    } else {
        half = 0;
    }
    return (uint16_t)(sign | half);
}

float mu_half_to_float(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t exponent = half >> 10 & 0x1fu;
    uint32_t digits = half & 0x3ffu;

    if (exponent == 0x1f) {
        return mu_float_from_bits(sign | FLOAT_INF | digits << 13);
    }
    if (exponent == 0) {
        return mu_float_from_bits(sign | mu_float_bits((float)digits * 0x1p-24f));
    }
    return mu_float_from_bits(sign | (((exponent << 23) | digits << 13) + HALF_BIAS_DIFF));
}

uint16_t mu_bfloat16_from_float(float value)
{
    uint32_t bits = mu_float_bits(value);

    if ((bits & ~SIGN_MASK) > FLOAT_INF) {
        bits >>= 16;
        return (uint16_t)((bits & 0x7fu) == 0 ? bits | 0x40u : bits);
    }
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}
