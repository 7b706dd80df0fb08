/* The arithmetic of averaging: what may be added and applied. tests/average/model.py compares the
 * results. */
#include <float.h>

#include "unit.h"

#include "codec/average/kernel.h"
#include "codec/average/msg.h"

#define COUNT 600 /* more than are tried at once */

static const enum mu_dtype dtypes[] = {MU_DTYPE_F32, MU_DTYPE_F16, MU_DTYPE_BF16, MU_DTYPE_F64};

/* Values of a type, of which the last is `last`. */
static const uint8_t *values_of(enum mu_dtype dtype, float last)
{
    static uint8_t values[COUNT * sizeof(double)];
    float in[COUNT] = {1};

    in[COUNT - 1] = last;
    mu_avg_store(dtype, values, in, COUNT);
    return values;
}

static void test_kernel_adds_what_stays_finite(void **unused)
{
    static const double large = 1e300;
    static const double wrong = (double)__builtin_nanf("");

    (void)unused;
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++) {
        assert_true(mu_avg_can_add(dtypes[i], values_of(dtypes[i], 60000), COUNT, 0x1p40));
        assert_true(mu_avg_can_add(dtypes[i], values_of(dtypes[i], -60000), COUNT, 0));
        assert_false(mu_avg_can_add(dtypes[i], values_of(dtypes[i], __builtin_inff()), COUNT, 0));
    }
    for (size_t i = 0; i < 3; i += 2) { /* those with large exponents */
        assert_true(mu_avg_can_add(dtypes[i], values_of(dtypes[i], -0x1p119F), COUNT, 0.5));
        assert_true(mu_avg_can_add(dtypes[i], values_of(dtypes[i], 0x1p79F), COUNT, 0x1p40));
        assert_false(mu_avg_can_add(dtypes[i], values_of(dtypes[i], 0x1p120F), COUNT, 0.5));
        assert_false(mu_avg_can_add(dtypes[i], values_of(dtypes[i], -0x1p80F), COUNT, 0x1p40));
    }
    assert_false(mu_avg_can_add(MU_DTYPE_F64, (const uint8_t *)&large, 1, 1));
    assert_false(mu_avg_can_add(MU_DTYPE_F64, (const uint8_t *)&wrong, 1, 1));
    assert_true(mu_avg_can_add(MU_DTYPE_F32, NULL, 0, 1));
    assert_true(MU_AVG_MEMBERS_MAX * MU_AVG_TERM_MAX < (double)FLT_MAX);
}

static void test_kernel_applies_what_stays_finite(void **unused)
{
    uint8_t small[COUNT * sizeof(float)];
    uint8_t large[COUNT * sizeof(float)];

    (void)unused;
    memcpy(small, values_of(MU_DTYPE_F32, -60000), sizeof(small));
    memcpy(large, values_of(MU_DTYPE_F32, FLT_MAX), sizeof(large));
    assert_true(mu_avg_can_apply(MU_DTYPE_F32, values_of(MU_DTYPE_F32, -1), large, COUNT, 1));
    assert_false(mu_avg_can_apply(MU_DTYPE_F32, values_of(MU_DTYPE_F32, FLT_MAX), large, COUNT, 1));
    assert_true(mu_avg_can_apply(MU_DTYPE_F16, values_of(MU_DTYPE_F16, 1), small, COUNT, 1));
    assert_false(mu_avg_can_apply(MU_DTYPE_F16, values_of(MU_DTYPE_F16, -60000), small, COUNT, 1));
    assert_true(mu_avg_can_apply(MU_DTYPE_BF16, values_of(MU_DTYPE_BF16, 1), small, COUNT, 1));
    assert_true(mu_avg_can_apply(MU_DTYPE_F32, NULL, NULL, 0, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kernel_adds_what_stays_finite),
        cmocka_unit_test(test_kernel_applies_what_stays_finite),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
