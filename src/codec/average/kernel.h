/*
 * The arithmetic of averaging, on parts of a vector as they lie in a message: little-endian, at any
 * address, float32, float16, bfloat16 or float64. Pure loops that compilers vectorise; nothing here
 * takes memory.
 *
 *     sum = 0, weights = 0
 *     for each member:  mu_avg_add(sum, its part, its weight);  weights += its weight
 *     mu_avg_divide(sum, weights)                     the average, float32
 *     for each member:  mu_avg_delta(out, sum, its part)        what is sent back to it
 *     at the member:    mu_avg_apply(values, delta, alpha)      its new values
 *
 * Sums are float32, whatever the parts are, and a product is rounded before it is added: two
 * machines that add the same parts in the same order get the same bits. (hivemind fuses the two on
 * processors that can, and adds in order of arrival; its results agree to float tolerance, and are
 * the same for all members of a round only because one reducer computes each part.)
 *
 * A delta has the type that PyTorch promotes to: float64 for float64 parts, float32 for all others.
 */
#ifndef MU_AVG_KERNEL_H
#define MU_AVG_KERNEL_H

#include "codec/bin/tensor.h"

#define MU_AVG_TERM_MAX 0x1p119 /* of a sum; 2^8 of them are less than the largest float */

/** sum[i] += weight * values[i]; of float64, with products and sums in float64, rounded at the end
 * of each addition. */
void mu_avg_add(float *sum, enum mu_dtype dtype, const uint8_t *values, size_t count,
                double weight);
/** sum[i] /= weights, which is above zero. */
void mu_avg_divide(float *sum, size_t count, double weights);
/** The type of a delta for parts of a type. */
static inline enum mu_dtype mu_avg_delta_dtype(enum mu_dtype dtype)
{
    return dtype == MU_DTYPE_F64 ? MU_DTYPE_F64 : MU_DTYPE_F32;
}
/** out[i] = average[i] - values[i], in mu_avg_delta_dtype(dtype); `out` may be `values` if both
 * have the same size of elements. */
void mu_avg_delta(uint8_t *out, const float *average, enum mu_dtype dtype, const uint8_t *values,
                  size_t count);
/** Whether all values are finite, and so small that the sum of MU_AVG_MEMBERS_MAX such members is
 * finite: a value, also times `weight`, is at most MU_AVG_TERM_MAX. */
bool mu_avg_can_add(enum mu_dtype dtype, const uint8_t *values, size_t count, double weight);
/** Whether all values are finite after mu_avg_apply(). */
bool mu_avg_can_apply(enum mu_dtype dtype, const uint8_t *values, const uint8_t *delta,
                      size_t count, double alpha);
/** values[i] += alpha * delta[i]; the delta has mu_avg_delta_dtype(dtype). */
void mu_avg_apply(enum mu_dtype dtype, uint8_t *values, const uint8_t *delta, size_t count,
                  double alpha);
/** out[i] = values[i], as float32: float64 is rounded, and may become infinite. */
void mu_avg_load(float *out, enum mu_dtype dtype, const uint8_t *values, size_t count);
/** values[i] = in[i], rounded to the type. */
void mu_avg_store(enum mu_dtype dtype, uint8_t *values, const float *in, size_t count);
/** Whether all values are finite. */
bool mu_avg_finite(enum mu_dtype dtype, const uint8_t *values, size_t count);

#endif
