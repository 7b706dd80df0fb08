/*
 * Two encodings of float32 values in one byte each, for parts of the native mode: blockwise int8
 * and fp8 (e4m3). Values are cut into blocks; a block is a float32 scale and a byte for each value.
 * The last block may be shorter.
 *
 *     int8   value = scale * code, code from -127 to 127. The scale is the block's largest
 *            magnitude divided by 127
 *     fp8    value = scale * code, code an e4m3 number (4 bits of exponent, 3 of mantissa, up to
 *            448; no infinities). The scale is a power of two, the smallest with which all codes
 *            are in range; so only the code rounds
 *
 * Codes are rounded to the nearest whose value is finite, ties to even. Every step is one operation
 * of IEEE 754 float32 or works on the bits; none is fused or reordered. So all processors and
 * compilers get the same bytes and the same values, which the digest of a round relies on. (The
 * code is built with -ffp-contract=off and without -ffast-math.)
 *
 * Error feedback. What rounding takes away from a value is not lost if it is added to the next one
 * at the same place: the caller lends as many residuals as values, zeros at first. Each is added to
 * its value before encoding, and is then what the encoding did not carry.
 */
#ifndef MU_QUANT_H
#define MU_QUANT_H

#include "core/span.h"

#define MU_QUANT_BLOCK_MIN 64
#define MU_QUANT_BLOCK_MAX 256

enum mu_quant {
    MU_QUANT_INT8 = 1,
    MU_QUANT_FP8 = 2,
};

/** Bytes of that many values. `block` is a multiple of 64 from MU_QUANT_BLOCK_MIN to
 * MU_QUANT_BLOCK_MAX; 0: it is not. */
size_t mu_quant_len(uint32_t block, size_t count);
/**
 * Writes mu_quant_len() bytes. `residuals` may be NULL. MUSTER_EINVAL: a value, or with its
 * residual, is not finite, or `block` cannot be; then residuals are as they were, and what was
 * written means nothing.
 */
int mu_quant_encode(enum mu_quant kind, uint32_t block, const float *values, float *residuals,
                    size_t count, uint8_t *out);
/** MUSTER_EPROTO: another length, a scale that no encoder writes, or a code that is no finite
 * number. Then `values` mean nothing. */
int mu_quant_decode(enum mu_quant kind, uint32_t block, struct mu_span in, float *values,
                    size_t count);

#endif
