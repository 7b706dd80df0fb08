/*
 * Blockwise int8 and fp8 beside a model that looks for the nearest code among all, in double, on
 * random values of all magnitudes and on the edges.
 */
#include <math.h>

#include <muster/error.h>

#include "unit.h"

#include "codec/average/quant.h"
#include "core/prng.h"

#define COUNT_MAX 700

static double code_value(enum mu_quant kind, unsigned code)
{
    if (kind == MU_QUANT_INT8) {
        return (int8_t)code;
    }
    return ((code & 0x80) != 0 ? -1 : 1) *
           ((code & 0x78) == 0 ? ldexp(code & 7, -9)
                               : ldexp(8 + (code & 7), (int)(code >> 3 & 15) - 10));
}

static bool is_code(enum mu_quant kind, unsigned code)
{
    return kind == MU_QUANT_INT8 ? code != 0x80 : (code & 0x7f) != 0x7f;
}

/* The nearest code; of two, the even one. Zero has one sign. */
static unsigned nearest(enum mu_quant kind, double x, float scale)
{
    unsigned best = 0;
    double least = INFINITY;

    for (unsigned code = 0; code < 256; code++) {
        double off = fabs(code_value(kind, code) - x);

        if (is_code(kind, code) && isfinite(scale * (float)code_value(kind, code)) &&
            (off < least || (off == least && (code & 1) == 0 && (best & 1) != 0))) {
            least = off;
            best = code;
        }
    }
    return best;
}

static float draw(struct mu_prng *prng, uint64_t how)
{
    uint32_t bits = (uint32_t)mu_prng_u64(prng);
    float x;

    switch (how % 5) {
    case 0:
        return (float)((double)(int32_t)bits / 2147483648.0);
    case 1:
        return 0;
    case 2:
        bits &= 0x807fffff; /* denormal */
        break;
    case 3:
        bits = (bits & 0x80ffffff) | 0x3f000000;
        break;
    default:
        break;
    }
    memcpy(&x, &bits, sizeof(x));
    return isfinite(x) ? x : 1;
}

static void check_against_model(enum mu_quant kind, uint32_t block, const float *values,
                                size_t count)
{
    uint8_t out[COUNT_MAX * 5];
    float back[COUNT_MAX];
    size_t len = mu_quant_len(block, count);
    const uint8_t *at = out;

    assert_int_equal(mu_quant_encode(kind, block, values, NULL, count, out), 0);
    assert_int_equal(mu_quant_decode(kind, block, mu_span(out, len), back, count), 0);
    for (size_t i = 0; i < count; i += block) {
        size_t some = count - i < block ? count - i : block;
        float scale;
        float most = 0;

        memcpy(&scale, at, 4);
        for (size_t k = 0; k < some; k++) {
            most = fabsf(values[i + k]) > most ? fabsf(values[i + k]) : most;
        }
        for (size_t k = 0; k < some; k++) {
            unsigned code = at[4 + k];
            volatile float quotient = values[i + k] / scale;
            volatile float product;

            if (scale == 0) {
                assert_true(code == 0 && back[i + k] == 0 && most < 127 * 0x1p-126f);
                continue;
            }
            assert_int_equal(code & (code == 0x80 ? 0u : 0xffu), nearest(kind, quotient, scale));
            product = scale * (float)code_value(kind, code);
            assert_memory_equal((const void *)&product, &back[i + k], 4);
        }
        if (scale != 0 && kind == MU_QUANT_FP8) {
            int exponent;

            assert_true(frexpf(scale, &exponent) == 0.5f && most <= 448 * scale);
            assert_true(scale == 0x1p-126f || most > 448 * (scale / 2));
        }
        at += some + 4;
    }
}

static void as_the_model_says(void **state)
{
    struct mu_prng prng;

    (void)state;
    mu_prng_seed(&prng, 23);
    for (uint32_t turn = 0; turn < 300; turn++) {
        float values[COUNT_MAX];
        size_t count = (size_t)mu_prng_below(&prng, COUNT_MAX);
        uint32_t block = 64 * (1 + (uint32_t)mu_prng_below(&prng, 4));
        uint64_t how = mu_prng_below(&prng, 6);

        for (size_t i = 0; i < count; i++) {
            values[i] = draw(&prng, how == 5 ? mu_prng_below(&prng, 5) : how);
        }
        check_against_model(MU_QUANT_INT8, block, values, count);
        check_against_model(MU_QUANT_FP8, block, values, count);
    }
}

static void the_edges(void **state)
{
    static const float edges[] = {
        0,       -0.f,     0x1p-149f, -0x1p-149f, 0x1p-126f, 3.4e38f, -3.4028234663852886e38f,
        1,       448,      -448,      464,        480,       17,      0x1p-6f,
        0x1p-9f, 0x1p-10f, 0x1.8p-9f, 0.5f,       1.5f};

    (void)state;
    for (size_t i = 0; i < sizeof(edges) / sizeof(edges[0]); i++) {
        for (size_t k = 0; k < sizeof(edges) / sizeof(edges[0]); k++) {
            float two[] = {edges[i], edges[k]};

            check_against_model(MU_QUANT_INT8, 64, two, 2);
            check_against_model(MU_QUANT_FP8, 64, two, 2);
        }
    }
}

static void what_is_not_finite_is_refused(void **state)
{
    float values[70] = {1, 2, 3};
    float residuals[70] = {0};
    uint8_t out[400];

    (void)state;
    for (int kind = MU_QUANT_INT8; kind <= MU_QUANT_FP8; kind++) {
        residuals[0] = 0.25f;
        values[69] = NAN;
        assert_int_equal(mu_quant_encode((enum mu_quant)kind, 64, values, residuals, 70, out),
                         MUSTER_EINVAL);
        values[69] = -INFINITY;
        assert_int_equal(mu_quant_encode((enum mu_quant)kind, 64, values, NULL, 70, out),
                         MUSTER_EINVAL);
        values[69] = 3e38f;
        residuals[69] = 3e38f;
        assert_int_equal(mu_quant_encode((enum mu_quant)kind, 64, values, residuals, 70, out),
                         MUSTER_EINVAL);
        assert_true(residuals[0] == 0.25f && residuals[69] == 3e38f);
    }
}

static void a_decoder_is_strict(void **state)
{
    uint8_t block[4 + 3] = {0, 0, 0x80, 0x3f, 1, 2, 3}; /* scale 1 */
    float values[3];

    (void)state;
    assert_int_equal(mu_quant_decode(MU_QUANT_INT8, 64, mu_span(block, 7), values, 3), 0);
    assert_true(values[2] == 3);
    assert_int_equal(mu_quant_decode(MU_QUANT_INT8, 64, mu_span(block, 6), values, 3),
                     MUSTER_EPROTO);
    assert_int_equal(mu_quant_decode(MU_QUANT_INT8, 65, mu_span(block, 7), values, 3),
                     MUSTER_EPROTO);
    assert_int_equal(
        mu_quant_decode(MU_QUANT_INT8, MU_QUANT_BLOCK_MAX + 64, mu_span(block, 7), values, 3),
        MUSTER_EPROTO);
    block[4] = 0x80;
    assert_int_equal(mu_quant_decode(MU_QUANT_INT8, 64, mu_span(block, 7), values, 3),
                     MUSTER_EPROTO);
    block[4] = 0x7f;
    assert_int_equal(mu_quant_decode(MU_QUANT_FP8, 64, mu_span(block, 7), values, 3),
                     MUSTER_EPROTO);
    block[4] = 1;
    block[3] = 0xbf; /* a negative scale */
    assert_int_equal(mu_quant_decode(MU_QUANT_FP8, 64, mu_span(block, 7), values, 3),
                     MUSTER_EPROTO);
    block[3] = 0x7f; /* an infinite one */
    assert_int_equal(mu_quant_decode(MU_QUANT_INT8, 64, mu_span(block, 7), values, 3),
                     MUSTER_EPROTO);
    block[2] = 0x7f; /* one with which 3 is infinite */
    assert_int_equal(mu_quant_decode(MU_QUANT_INT8, 64, mu_span(block, 7), values, 3),
                     MUSTER_EPROTO);
    memset(block, 0, 4); /* codes without a scale */
    assert_int_equal(mu_quant_decode(MU_QUANT_INT8, 64, mu_span(block, 7), values, 3),
                     MUSTER_EPROTO);
    assert_int_equal(mu_quant_len(MU_QUANT_BLOCK_MIN - 1, 5), 0);
    assert_int_equal(mu_quant_len(128, 129), 129 + 8);
}

/* What is sent over many rounds adds up to what was to be sent. */
static void nothing_is_lost_with_feedback(void **state)
{
    (void)state;
    for (int kind = MU_QUANT_INT8; kind <= MU_QUANT_FP8; kind++) {
        float residuals[100] = {0};
        double sent[100] = {0};

        for (int round = 0; round < 200; round++) {
            float values[100];
            float back[100];
            uint8_t out[200];

            for (int i = 0; i < 100; i++) {
                values[i] = (float)(i + 1) / 1000.f;
            }
            assert_int_equal(mu_quant_encode((enum mu_quant)kind, 64, values, residuals, 100, out),
                             0);
            assert_int_equal(mu_quant_decode((enum mu_quant)kind, 64,
                                             mu_span(out, mu_quant_len(64, 100)), back, 100),
                             0);
            for (int i = 0; i < 100; i++) {
                sent[i] += (double)back[i];
            }
        }
        for (int i = 0; i < 100; i++) {
            double want = 200 * (double)((float)(i + 1) / 1000.f);

            assert_true(fabs(sent[i] + (double)residuals[i] - want) < 1e-3);
            assert_true(fabs(sent[i] - want) < 0.01);
        }
    }
}

/* The bits that every machine must make of these values. */
static void the_same_bits_everywhere(void **state)
{
    float values[200];
    uint8_t out[300];
    uint64_t hash = UINT64_C(0xcbf29ce484222325);

    (void)state;
    for (uint32_t i = 0; i < 200; i++) {
        values[i] = (float)((i * 2654435761u >> 8) % 20001) / 1000.f - 10.f;
    }
    for (int kind = MU_QUANT_INT8; kind <= MU_QUANT_FP8; kind++) {
        assert_int_equal(mu_quant_encode((enum mu_quant)kind, 64, values, NULL, 200, out), 0);
        for (size_t i = 0; i < mu_quant_len(64, 200); i++) {
            hash = (hash ^ out[i]) * UINT64_C(0x100000001b3);
        }
    }
    assert_int_equal(hash, UINT64_C(0x4492992f0c3cb883));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_the_model_says),
        cmocka_unit_test(the_edges),
        cmocka_unit_test(what_is_not_finite_is_refused),
        cmocka_unit_test(a_decoder_is_strict),
        cmocka_unit_test(nothing_is_lost_with_feedback),
        cmocka_unit_test(the_same_bits_everywhere),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
