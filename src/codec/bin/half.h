/*
 * The two short forms of a float: IEEE half precision and bfloat16. Rounding is to the nearest,
 * ties to even; a number that is too large becomes an infinity; subnormal numbers are kept.
 * Widening is exact, and widening and narrowing again gives the same sixteen bits, whatever they
 * are.
 */
#ifndef MU_HALF_H
#define MU_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t mu_float_bits(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static inline float mu_float_from_bits(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

uint16_t mu_half_from_float(float value);
float mu_half_to_float(uint16_t half);

uint16_t mu_bfloat16_from_float(float value);

static inline float mu_bfloat16_to_float(uint16_t bfloat16)
{
    return mu_float_from_bits((uint32_t)bfloat16 << 16);
}

#endif
