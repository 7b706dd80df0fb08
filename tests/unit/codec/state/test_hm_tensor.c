/* Tensors in hivemind's encodings, and the short forms of floats that they are made of. */
#include "unit.h"

#include <math.h>
#include <stdlib.h>

#include "codec/bin/half.h"
#include "codec/state/hm_tensor.h"
#include "core/alloc.h"
#include "core/prng.h"
#include "failheap.h"
#include "hex.h"

#define VALUES "0000803f000000c00000003f00004040" /* 1, -2, .5, 3 */

static const uint64_t square[] = {2, 2};

static const enum mu_dtype floats[] = {MU_DTYPE_F16, MU_DTYPE_BF16, MU_DTYPE_F32, MU_DTYPE_F64};

/* All of an encoding, read in pieces of at most `piece` bytes. */
static struct mu_span encode(const struct mu_hm_tensor *t, struct mu_span values, size_t piece)
{
    struct mu_hm_encoder e;
    struct mu_hm_cursor c;
    uint8_t *out;
    size_t len;

    assert_int_equal(mu_hm_encoder_init(&e, t, values), 0);
    len = (size_t)mu_hm_encoder_len(&e);
    out = malloc(len + 1);
    mu_hm_cursor_init(&c);
    for (size_t at = 0; at < len;) {
        size_t n = len - at < piece ? len - at : piece;

        mu_hm_encoder_read(&e, &c, out + at, n);
        at += n;
    }
    mu_hm_encoder_fini(&e);
    return mu_span(out, len);
}

static void release(struct mu_span s)
{
    free((void *)(uintptr_t)s.data);
}

static struct mu_hm_tensor squared(enum mu_hm_compression compression)
{
    return (struct mu_hm_tensor){
        .dtype = MU_DTYPE_F32, .compression = compression, .shape = square, .rank = 2};
}

/* --- half and bfloat16 ------------------------------------------------------------------------ */

static void test_half_widened_and_narrowed_is_the_same(void **state)
{
    (void)state;
    for (uint32_t i = 0; i <= UINT16_MAX; i++) {
        assert_int_equal(mu_half_from_float(mu_half_to_float((uint16_t)i)), i);
        assert_int_equal(mu_bfloat16_from_float(mu_bfloat16_to_float((uint16_t)i)), i);
    }
}

/* Halfway between two neighbours goes to the even one, a bit beside it to the nearer. */
static void test_half_rounds_to_the_nearest_and_ties_to_even(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 0x7bff; i++) {
        double low = (double)mu_half_to_float((uint16_t)i);
        double high = (double)mu_half_to_float((uint16_t)(i + 1));
        float middle = (float)((low + high) / 2);
        uint32_t even = i % 2 == 0 ? i : i + 1;

        assert_int_equal(mu_half_from_float(middle), even);
        assert_int_equal(mu_half_from_float(-middle), even | 0x8000);
        assert_int_equal(mu_half_from_float(mu_float_from_bits(mu_float_bits(middle) + 1)), i + 1);
        assert_int_equal(mu_half_from_float(mu_float_from_bits(mu_float_bits(middle) - 1)), i);
    }
    for (uint32_t i = 0; i < 0x7f7f; i++) {
        uint32_t bits = i << 16 | 0x8000;

        assert_int_equal(mu_bfloat16_from_float(mu_float_from_bits(bits)), i % 2 == 0 ? i : i + 1);
        assert_int_equal(mu_bfloat16_from_float(mu_float_from_bits(bits + 1)), i + 1);
        assert_int_equal(mu_bfloat16_from_float(mu_float_from_bits(bits - 1)), i);
    }
}

static void test_half_has_infinities_and_what_is_no_number(void **state)
{
    (void)state;
    assert_int_equal(mu_half_from_float(65504), 0x7bff);
    assert_int_equal(mu_half_from_float(65519.996f), 0x7bff);
    assert_int_equal(mu_half_from_float(65520), 0x7c00);
    assert_int_equal(mu_half_from_float(-INFINITY), 0xfc00);
    assert_int_equal(mu_half_from_float(0x1p-25f), 0);
    assert_int_equal(mu_half_from_float(0x1.000002p-25f), 1);
    assert_int_equal(mu_half_from_float(0x1p-149f), 0);
    assert_int_equal(mu_half_from_float(-0.0f), 0x8000);
    /* What it carries is in bits that a half does not have. */
    assert_int_equal(mu_half_from_float(mu_float_from_bits(0x7f800001)), 0x7c01);
    assert_true(isnan(mu_half_to_float(0x7e00)));
    assert_int_equal(mu_bfloat16_from_float(INFINITY), 0x7f80);
    assert_int_equal(mu_bfloat16_from_float(mu_float_from_bits(0x7f7fffff)), 0x7f80);
    assert_true(
        isnan(mu_bfloat16_to_float(mu_bfloat16_from_float(mu_float_from_bits(0x7f800001)))));
}

/* --- vectors ---------------------------------------------------------------------------------- */

static void check_vector(enum mu_hm_compression compression, const char *encoded)
{
    struct mu_hm_tensor t = squared(compression);
    uint8_t values[16];
    uint8_t wanted[64];
    uint8_t back[16];
    size_t len = hex_decode(wanted, sizeof(wanted), encoded);
    struct mu_span got;
    struct mu_errmsg msg;

    (void)hex_decode(values, sizeof(values), VALUES);
    got = encode(&t, mu_span(values, 16), 65536);
    assert_int_equal(got.len, len);
    assert_memory_equal(got.data, wanted, len);
    assert_int_equal(mu_hm_decode(&t, got, (struct mu_space){back, 16}, &msg), 0);
    assert_memory_equal(back, values, 16);
    release(got);
}

static void test_hm_tensor_vectors_without_a_codebook(void **state)
{
    (void)state;
    check_vector(MU_HM_NONE, VALUES);
    check_vector(MU_HM_FLOAT16, "003c00c000380042");
    check_vector(MU_HM_MEANSTD_16BIT, "003c00bc00bc003c 000000bf0000e03f 0000c03f0000a03f");
}

static void check_codes(enum mu_hm_compression compression, const char *indices)
{
    struct mu_hm_tensor t = squared(compression);
    uint8_t values[16];
    uint8_t wanted[4];
    uint8_t back[16];
    struct mu_span got;
    struct mu_errmsg msg;

    (void)hex_decode(values, sizeof(values), VALUES);
    (void)hex_decode(wanted, sizeof(wanted), indices);
    got = encode(&t, mu_span(values, 16), 65536);
    assert_int_equal(got.len, 8 + 1024 + 4);
    assert_int_equal(mu_get_u64(got.data), 256);
    assert_memory_equal(got.data + 1032, wanted, 4);
    for (size_t i = 0; i < 4; i++) {
        assert_memory_equal(got.data + 8 + 4 * wanted[i], values + 4 * i, 4);
    }
    assert_int_equal(mu_hm_decode(&t, got, (struct mu_space){back, 16}, &msg), 0);
    assert_memory_equal(back, values, 16);
    release(got);
}

static void test_hm_tensor_vectors_with_a_codebook(void **state)
{
    (void)state;
    check_codes(MU_HM_UNIFORM_8BIT, "884a7db1");
    check_codes(MU_HM_QUANTILE_8BIT, "aa0055ff");
}

static void test_hm_tensor_vector_of_bfloat16_in_both_forms(void **state)
{
    static const uint64_t two[] = {2};
    struct mu_hm_tensor t = {.dtype = MU_DTYPE_BF16, .shape = two, .rank = 1};
    uint8_t values[4];
    uint8_t wide[8];
    uint8_t back[4];
    struct mu_span got;
    struct mu_errmsg msg;

    (void)state;
    (void)hex_decode(values, sizeof(values), "803f2040");
    (void)hex_decode(wide, sizeof(wide), "0000803f00002040");
    for (int raw = 0; raw < 2; raw++) {
        t.bfloat16_raw = raw == 1;
        got = encode(&t, mu_span(values, 4), 65536);
        assert_int_equal(got.len, raw == 1 ? 4 : 8);
        assert_memory_equal(got.data, raw == 1 ? values : wide, got.len);
        memset(back, 0, sizeof(back));
        assert_int_equal(mu_hm_decode(&t, got, (struct mu_space){back, 4}, &msg), 0);
        assert_memory_equal(back, values, 4);
        release(got);
    }
}

static void test_hm_tensor_vector_of_a_scalar(void **state)
{
    struct mu_hm_tensor t = {.dtype = MU_DTYPE_I64};
    uint8_t values[8];
    struct mu_span got;

    (void)state;
    (void)hex_decode(values, sizeof(values), "0700000000000000");
    got = encode(&t, mu_span(values, 8), 3);
    assert_int_equal(got.len, 8);
    assert_memory_equal(got.data, values, 8);
    release(got);
}

/* --- what is refused -------------------------------------------------------------------------- */

static void test_hm_tensor_refuses_what_an_encoding_is_not_for(void **state)
{
    struct mu_hm_tensor t = squared(MU_HM_FLOAT16);

    (void)state;
    for (int c = MU_HM_MEANSTD_16BIT; c <= MU_HM_COMPRESSION_LAST; c++) {
        static const enum mu_dtype others[] = {MU_DTYPE_I64, MU_DTYPE_I32, MU_DTYPE_I16,
                                               MU_DTYPE_I8,  MU_DTYPE_U8,  MU_DTYPE_BOOL};

        t.compression = (enum mu_hm_compression)c;
        for (size_t i = 0; i < 6; i++) {
            t.dtype = others[i];
            assert_int_equal(mu_hm_tensor_check(&t), MUSTER_ENOTSUP);
        }
        t.dtype = MU_DTYPE_BF16;
        assert_int_equal(mu_hm_tensor_check(&t),
                         c == MU_HM_FLOAT16 || c == MU_HM_MEANSTD_16BIT ? MUSTER_ENOTSUP : 0);
        t.dtype = MU_DTYPE_F64;
        assert_int_equal(mu_hm_tensor_check(&t), 0);
        t.rank = 0;
        assert_int_equal(mu_hm_tensor_check(&t), c == MU_HM_MEANSTD_16BIT ? MUSTER_ENOTSUP : 0);
        t.rank = 2;
    }
    t.compression = MU_HM_NONE;
    t.dtype = MU_DTYPE_BOOL;
    assert_int_equal(mu_hm_tensor_check(&t), 0);
    t.dtype = MU_DTYPE_F4;
    assert_int_equal(mu_hm_tensor_check(&t), MUSTER_ENOTSUP);
}

/* Every length but the right ones is refused, and nothing is written. */
static void test_hm_tensor_decoding_wants_the_right_length(void **state)
{
    static const uint8_t untouched[32] = {0};

    (void)state;
    for (int c = 0; c <= MU_HM_COMPRESSION_LAST; c++) {
        for (size_t d = 0; d < 4; d++) {
            struct mu_hm_tensor t = squared((enum mu_hm_compression)c);
            uint8_t values[32] = {0};
            uint8_t out[32] = {0};
            struct mu_errmsg msg = {0};
            struct mu_span got;
            uint64_t len;

            t.dtype = floats[d];
            if (mu_hm_tensor_check(&t) != 0) {
                continue;
            }
            assert_int_equal(mu_hm_tensor_len(&t, &len), 0);
            got = encode(&t, mu_span(values, (size_t)len), 7);
            for (size_t n = 0; n < got.len; n++) {
                uint8_t *part = malloc(n + 1);

                if (t.dtype == MU_DTYPE_BF16 && c == MU_HM_NONE && n == len) {
                    free(part);
                    continue;
                }
                memcpy(part, got.data, n);
                assert_int_equal(
                    mu_hm_decode(&t, mu_span(part, n), (struct mu_space){out, len}, &msg),
                    MUSTER_EPROTO);
                assert_memory_equal(out, untouched, sizeof(out));
                assert_true(msg.text[0] != '\0');
                free(part);
            }
            release(got);
        }
    }
}

static void test_hm_tensor_decoding_checks_codebooks(void **state)
{
    struct mu_hm_tensor t = squared(MU_HM_UNIFORM_8BIT);
    uint8_t in[8 + 2 * 4 + 4] = {2};
    uint8_t out[16] = {0};
    struct mu_errmsg msg;

    (void)state;
    mu_put_u32(in + 12, 0x3f800000);
    in[16] = 1;
    assert_int_equal(mu_hm_decode(&t, mu_span(in, 20), (struct mu_space){out, 16}, &msg), 0);
    assert_int_equal(mu_get_u32(out), 0x3f800000);
    memset(out, 0, sizeof(out));
    in[19] = 2; /* behind the codebook's end */
    assert_int_equal(mu_hm_decode(&t, mu_span(in, 20), (struct mu_space){out, 16}, &msg),
                     MUSTER_EPROTO);
    assert_non_null(strstr(msg.text, "index 2 in a codebook of 2"));
    assert_int_equal(mu_get_u32(out), 0);
    for (uint64_t wrong = 0; wrong < 4; wrong++) {
        static const uint64_t counts[] = {0, 257, UINT64_MAX, UINT64_C(1) << 62};

        mu_put_u64(in, counts[wrong]);
        assert_int_equal(mu_hm_decode(&t, mu_span(in, 20), (struct mu_space){out, 16}, &msg),
                         MUSTER_EPROTO);
    }
}

static void test_hm_tensor_sizes_do_not_overflow(void **state)
{
    static const uint64_t huge[] = {UINT64_C(1) << 32, UINT64_C(1) << 31};
    static const uint64_t blocks[] = {UINT64_MAX / 8};
    static const uint64_t rows[] = {UINT64_MAX / 2, 0};
    struct mu_hm_tensor t = {.dtype = MU_DTYPE_F32, .shape = huge, .rank = 2};
    uint64_t len;

    (void)state;
    assert_int_equal(mu_hm_tensor_len(&t, &len), MUSTER_EINVAL);
    t.dtype = MU_DTYPE_U8;
    assert_int_equal(mu_hm_tensor_len(&t, &len), MUSTER_EINVAL); /* more bits than can be counted */
    t = (struct mu_hm_tensor){
        .dtype = MU_DTYPE_F16, .compression = MU_HM_BLOCKWISE_8BIT, .shape = blocks, .rank = 1};
    assert_int_equal(mu_hm_encoded_len_max(&t, &len), MUSTER_EINVAL);
    t = (struct mu_hm_tensor){
        .dtype = MU_DTYPE_F16, .compression = MU_HM_MEANSTD_16BIT, .shape = rows, .rank = 2};
    assert_int_equal(mu_hm_encoded_len_max(&t, &len), MUSTER_EINVAL);
}

/* --- properties ------------------------------------------------------------------------------- */

static float random_value(struct mu_prng *p)
{
    double sum = 0;

    for (int i = 0; i < 6; i++) {
        sum += (double)(mu_prng_u64(p) >> 11) * 0x1p-53 - 0.5;
    }
    return (float)sum;
}

static void put_value(enum mu_dtype dtype, uint8_t *out, size_t i, float value)
{
    double wide = (double)value;

    if (dtype == MU_DTYPE_F64) {
        memcpy(out + 8 * i, &wide, 8);
    } else if (dtype == MU_DTYPE_F32) {
        memcpy(out + 4 * i, &value, 4);
    } else {
        mu_put_u16(out + 2 * i, dtype == MU_DTYPE_F16 ? mu_half_from_float(value)
                                                      : mu_bfloat16_from_float(value));
    }
}

static double get_value(enum mu_dtype dtype, const uint8_t *in, size_t i)
{
    double wide;
    float value;

    if (dtype == MU_DTYPE_F64) {
        memcpy(&wide, in + 8 * i, 8);
        return wide;
    }
    if (dtype == MU_DTYPE_F32) {
        memcpy(&value, in + 4 * i, 4);
        return (double)value;
    }
    return (double)(dtype == MU_DTYPE_F16 ? mu_half_to_float(mu_get_u16(in + 2 * i))
                                          : mu_bfloat16_to_float(mu_get_u16(in + 2 * i)));
}

/* What an encoding may lose of values like these. */
static double tolerance(enum mu_hm_compression c)
{
    static const double lost[] = {
        [MU_HM_NONE] = 0,           [MU_HM_FLOAT16] = 1e-3,     [MU_HM_MEANSTD_16BIT] = 2e-3,
        [MU_HM_QUANTILE_8BIT] = .7, [MU_HM_UNIFORM_8BIT] = 0.9, [MU_HM_BLOCKWISE_8BIT] = 0.05,
    };

    return lost[c];
}

static void check_round_trip(const struct mu_hm_tensor *t, size_t count, struct mu_prng *p)
{
    size_t size = mu_dtype_bits(t->dtype) / 8;
    uint8_t *values = malloc(count * size + 1);
    uint8_t *back = malloc(count * size + 1);
    struct mu_span whole;
    struct mu_span pieces;
    struct mu_errmsg msg;
    double error = 0;

    for (size_t i = 0; i < count; i++) {
        put_value(t->dtype, values, i, random_value(p));
    }
    whole = encode(t, mu_span(values, count * size), SIZE_MAX);
    pieces = encode(t, mu_span(values, count * size), 1 + mu_prng_below(p, 37));
    assert_int_equal(whole.len, pieces.len);
    assert_memory_equal(whole.data, pieces.data, whole.len);
    assert_int_equal(mu_hm_decode(t, whole, (struct mu_space){back, count * size}, &msg), 0);
    for (size_t i = 0; i < count; i++) {
        double a = get_value(t->dtype, values, i);
        double b = get_value(t->dtype, back, i);

        error += fabs(a - b);
        assert_true(fabs(a - b) <= tolerance(t->compression) + fabs(a) / 128);
    }
    /* One value far out may be far off, but not all are. */
    assert_true(count < 100 || error / (double)count < 0.02);
    release(whole);
    release(pieces);
    free(values);
    free(back);
}

static void test_hm_tensor_every_encoding_of_every_type_comes_back(void **state)
{
    static const uint64_t shapes[][3] = {
        {1, 1, 1}, {3, 5, 7}, {1, 1, 5000}, {41, 2, 101}, {0, 3, 2}};
    struct mu_prng p;

    (void)state;
    mu_prng_seed(&p, 8);
    for (int c = 0; c <= MU_HM_COMPRESSION_LAST; c++) {
        for (size_t d = 0; d < 4; d++) {
            for (size_t s = 0; s < 5; s++) {
                struct mu_hm_tensor t = {.dtype = floats[d],
                                         .compression = (enum mu_hm_compression)c,
                                         .shape = shapes[s],
                                         .rank = 3};

                if (mu_hm_tensor_check(&t) == 0) {
                    check_round_trip(&t, shapes[s][0] * shapes[s][1] * shapes[s][2], &p);
                }
            }
        }
    }
}

/* Sorting in pieces finds about the same borders as sorting all. */
static void test_hm_tensor_quantiles_of_a_large_tensor(void **state)
{
    static const uint64_t shape[] = {250007};
    struct mu_hm_tensor t = {
        .dtype = MU_DTYPE_F32, .compression = MU_HM_QUANTILE_8BIT, .shape = shape, .rank = 1};
    struct mu_prng p;
    size_t counts[256] = {0};
    struct mu_span got;
    uint8_t *values = malloc(shape[0] * 4);

    (void)state;
    mu_prng_seed(&p, 3);
    for (size_t i = 0; i < shape[0]; i++) {
        put_value(MU_DTYPE_F32, values, i, random_value(&p));
    }
    got = encode(&t, mu_span(values, shape[0] * 4), 65536);
    for (size_t i = 0; i < shape[0]; i++) {
        counts[got.data[1032 + i]]++;
    }
    for (size_t i = 0; i < 256; i++) {
        assert_in_range(counts[i], 900, 1060);
    }
    release(got);
    free(values);
}

static void test_hm_tensor_clamps_to_half_and_minds_what_is_no_number(void **state)
{
    static const uint64_t shape[] = {4};
    static const float values[] = {1e9f, -INFINITY, NAN, 2.0f};
    struct mu_span got;

    (void)state;
    for (int c = 0; c <= MU_HM_COMPRESSION_LAST; c++) {
        struct mu_hm_tensor t = {.dtype = MU_DTYPE_F32,
                                 .compression = (enum mu_hm_compression)c,
                                 .shape = shape,
                                 .rank = 1};
        uint8_t back[16];
        struct mu_errmsg msg;

        got = encode(&t, mu_span(values, 16), 5);
        assert_int_equal(mu_hm_decode(&t, got, (struct mu_space){back, 16}, &msg), 0);
        if (c == MU_HM_FLOAT16) {
            assert_int_equal(mu_get_u16(got.data), 0x7bff);
            assert_int_equal(mu_get_u16(got.data + 2), 0xfbff);
            assert_true((mu_get_u16(got.data + 4) & 0x7fff) > 0x7c00);
        }
        release(got);
    }
}

static void test_hm_tensor_survives_a_failing_heap(void **state)
{
    (void)state;
    for (int c = 0; c <= MU_HM_COMPRESSION_LAST; c++) {
        struct mu_hm_tensor t = squared((enum mu_hm_compression)c);
        bool fired = true;

        for (long nth = 0; fired; nth++) {
            uint8_t values[16] = {0};
            struct mu_hm_encoder e;
            int err;

            failheap_arm(nth);
            err = mu_hm_encoder_init(&e, &t, mu_span(values, 16));
            fired = failheap_fired();
            failheap_disarm();
            assert_int_equal(err, fired ? MUSTER_ENOMEM : 0);
            mu_hm_encoder_fini(&e);
        }
    }
}

static void test_hm_tensor_encodings_have_names(void **state)
{
    enum mu_hm_compression c;

    (void)state;
    for (int i = 0; i <= MU_HM_COMPRESSION_LAST; i++) {
        const char *name = mu_hm_compression_name((enum mu_hm_compression)i);

        assert_true(mu_hm_compression_parse(mu_span_str(name), &c));
        assert_int_equal(c, i);
    }
    assert_false(mu_hm_compression_parse(mu_span_str("FLOAT17"), &c));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_half_widened_and_narrowed_is_the_same),
        cmocka_unit_test(test_half_rounds_to_the_nearest_and_ties_to_even),
        cmocka_unit_test(test_half_has_infinities_and_what_is_no_number),
        cmocka_unit_test(test_hm_tensor_vectors_without_a_codebook),
        cmocka_unit_test(test_hm_tensor_vectors_with_a_codebook),
        cmocka_unit_test(test_hm_tensor_vector_of_bfloat16_in_both_forms),
        cmocka_unit_test(test_hm_tensor_vector_of_a_scalar),
        cmocka_unit_test(test_hm_tensor_refuses_what_an_encoding_is_not_for),
        cmocka_unit_test(test_hm_tensor_decoding_wants_the_right_length),
        cmocka_unit_test(test_hm_tensor_decoding_checks_codebooks),
        cmocka_unit_test(test_hm_tensor_sizes_do_not_overflow),
        cmocka_unit_test(test_hm_tensor_every_encoding_of_every_type_comes_back),
        cmocka_unit_test(test_hm_tensor_quantiles_of_a_large_tensor),
        cmocka_unit_test(test_hm_tensor_clamps_to_half_and_minds_what_is_no_number),
        cmocka_unit_test(test_hm_tensor_survives_a_failing_heap),
        cmocka_unit_test(test_hm_tensor_encodings_have_names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
