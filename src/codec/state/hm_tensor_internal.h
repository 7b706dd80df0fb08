/* What the parts of hm_tensor.h share: elements that are floats, sizes, codebooks. */
#ifndef MU_HM_TENSOR_INTERNAL_H
#define MU_HM_TENSOR_INTERNAL_H

#include "codec/bin/half.h"
#include "codec/state/hm_tensor.h"

#define MU_HM_HALF_MAX 65504.0f
#define MU_HM_STD_MIN  0x1p-23f

struct mu_hm_sizes {
    uint64_t elements;
    uint64_t bytes;
    uint64_t rows; /* of the last dimension */
    uint64_t row;  /* elements of one row */
};

/** False: the tensor is impossibly large. */
bool mu_hm_sizes(const struct mu_hm_tensor *t, struct mu_hm_sizes *ret);

/** Element `i` of an array of floats; a float64 loses precision. */
static inline float mu_hm_float_at(enum mu_dtype dtype, const uint8_t *values, uint64_t i)
{
    if (dtype == MU_DTYPE_F32) {
        return mu_float_from_bits(mu_get_u32(values + i * 4));
    }
    if (dtype == MU_DTYPE_F16) {
        return mu_half_to_float(mu_get_u16(values + i * 2));
    }
    if (dtype == MU_DTYPE_BF16) {
        return mu_bfloat16_to_float(mu_get_u16(values + i * 2));
    } else {
        uint64_t bits = mu_get_u64(values + i * 8);
        double value;

        memcpy(&value, &bits, sizeof(value));
        return (float)value;
    }
}

/** The square root of a number that is not below zero. */
double mu_hm_root(double x);

/* Codebooks, from the values of an encoder that has everything else. */
void mu_hm_make_uniform(struct mu_hm_encoder *e);
/** MUSTER_ENOMEM. */
int mu_hm_make_quantile(struct mu_hm_encoder *e);
/** Makes the map of bitsandbytes: seven powers of ten, the greater the finer, with both signs. */
void mu_hm_make_dynamic(float codes[MU_HM_CODES], float borders[MU_HM_CODES - 1]);

uint8_t mu_hm_uniform_index(const struct mu_hm_encoder *e, float x);
/** How many of the borders, which ascend, are below x. */
uint8_t mu_hm_border_index(const float borders[MU_HM_CODES - 1], float x);

#endif
