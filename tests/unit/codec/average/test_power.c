/* PowerSGD: which tensors are carried as which matrices, and the arithmetic. */
#include "unit.h"

#include "codec/average/power.h"

static void expect(const uint64_t *shape, size_t axes, uint32_t rank, size_t rows, size_t columns)
{
    struct mu_avg_matrix got;

    assert_true(mu_avg_power_matrix(shape, axes, rank, 0.5, &got));
    assert_int_equal(got.rows, rows);
    assert_int_equal(got.columns, columns);
}

static void test_power_matrices(void **unused)
{
    struct mu_avg_matrix got;

    (void)unused;
    expect((uint64_t[]){20, 30}, 2, 1, 20, 30);
    /* 3 · 3 is the smallest product of neighbours, then 16 · 9. */
    expect((uint64_t[]){64, 16, 3, 3}, 4, 1, 64, 144);
    /* Of equals the first. */
    expect((uint64_t[]){8, 8, 8}, 3, 1, 64, 8);
    expect((uint64_t[]){2, 5, 3, 40}, 4, 1, 30, 40);
    assert_false(mu_avg_power_matrix((uint64_t[]){100}, 1, 1, 0.5, &got));
    assert_false(mu_avg_power_matrix(NULL, 0, 1, 0.5, &got));
    assert_false(mu_avg_power_matrix((uint64_t[]){0, 7}, 2, 1, 0.5, &got));
    /* 4 + 4 of 16 values is half of them, 2 · (4 + 4) is all. */
    expect((uint64_t[]){4, 4}, 2, 1, 4, 4);
    assert_false(mu_avg_power_matrix((uint64_t[]){4, 4}, 2, 2, 0.5, &got));
    assert_true(mu_avg_power_matrix((uint64_t[]){4, 4}, 2, 2, 0, &got));
    assert_false(mu_avg_power_matrix((uint64_t[]){4, 3}, 2, 1, 0.5, &got));
}

static void near(float got, double want)
{
    assert_true(got - want < 1e-5 && want - got < 1e-5);
}

static void test_power_products(void **unused)
{
    static const struct mu_avg_matrix of = {2, 3};
    float m[] = {1, 2, 3, 4, 5, 6};
    float q[] = {1, 0, 0, 1, 2, -1};
    float p[4];
    float back[6];
    float out[6];

    (void)unused;
    mu_avg_power_p(p, m, q, &of, 2);
    near(p[0], 7);
    near(p[1], -1);
    near(p[2], 16);
    near(p[3], -1);
    mu_avg_power_orthogonalize(p, 2, 2);
    near(p[0] * p[0] + p[2] * p[2], 1);
    near(p[1] * p[1] + p[3] * p[3], 1);
    near(p[0] * p[1] + p[2] * p[3], 0);
    near(p[2] / p[0], 16. / 7);
    /* With as many columns as rows nothing is lost. */
    mu_avg_power_q(back, m, p, &of, 2);
    mu_avg_power_expand(out, m, p, back, &of, 2);
    for (size_t i = 0; i < 6; i++) {
        near(out[i], (double)i + 1);
        near(m[i], 0);
    }
}

static void test_power_keeps_the_rest(void **unused)
{
    static const struct mu_avg_matrix of = {2, 2};
    float m[] = {3, 0, 0, 5};
    float p[] = {2, 0};
    float q[2];
    float out[4];

    (void)unused;
    mu_avg_power_orthogonalize(p, 2, 1);
    mu_avg_power_q(q, m, p, &of, 1);
    mu_avg_power_expand(out, m, p, q, &of, 1);
    near(out[0], 3);
    near(out[3], 0);
    near(m[0], 0);
    near(m[3], 5);
}

static void test_power_without_direction(void **unused)
{
    float p[] = {0, 0, 1, 1}; /* two rows: the columns are (0, 1) and (0, 1) */
    float none[] = {0, 0};
    float large[] = {3e38f, 3e38f};

    (void)unused;
    mu_avg_power_orthogonalize(p, 2, 2);
    near(p[0], 0);
    near(p[2], 1);
    near(p[1], 0);
    near(p[3], 0);
    mu_avg_power_orthogonalize(none, 2, 1);
    near(none[0], 0);
    mu_avg_power_orthogonalize(large, 2, 1);
    near(large[0], 0.70710678);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_power_matrices),
        cmocka_unit_test(test_power_products),
        cmocka_unit_test(test_power_keeps_the_rest),
        cmocka_unit_test(test_power_without_direction),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
