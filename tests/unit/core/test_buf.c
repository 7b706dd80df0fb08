/* The byte buffer against a plain model, its ceiling, and its integers. */
#include "unit.h"

#include "core/buf.h"
#include "core/err.h"
#include "core/prng.h"
#include "failheap.h"

#define MODEL_CAP 4096

static void test_buf_holds_what_was_appended_and_not_consumed(void **state)
{
    static uint8_t model[MODEL_CAP];
    size_t model_len = 0;
    uint8_t next = 0;
    struct mu_prng prng;
    struct mu_buf b;

    (void)state;
    mu_prng_seed(&prng, 1);
    mu_buf_init(&b, MODEL_CAP);
    for (int step = 0; step < 20000; step++) {
        size_t n = (size_t)mu_prng_below(&prng, 300);

        if (mu_prng_chance(&prng, 500000)) {
            uint8_t piece[300];

            for (size_t i = 0; i < n; i++) {
                piece[i] = next++;
            }
            if (n > MODEL_CAP - model_len) {
                assert_int_equal(mu_buf_append(&b, mu_span(piece, n)), MUSTER_ELIMIT);
                next = (uint8_t)(next - n);
            } else {
                assert_int_equal(mu_buf_append(&b, mu_span(piece, n)), 0);
                memcpy(model + model_len, piece, n);
                model_len += n;
            }
        } else {
            n = n > model_len ? model_len : n;
            mu_buf_consume(&b, n);
            memmove(model, model + n, model_len - n);
            model_len -= n;
        }
        assert_int_equal(mu_buf_span(&b).len, model_len);
        assert_true(b.cap <= MODEL_CAP);
        if (model_len != 0) {
            assert_memory_equal(mu_buf_span(&b).data, model, model_len);
        }
    }
    mu_buf_fini(&b);
}

static void test_buf_stops_at_its_maximum(void **state)
{
    struct mu_buf b;

    (void)state;
    mu_buf_init(&b, 4);
    assert_int_equal(mu_buf_append(&b, MU_SPAN_LIT("abc")), 0);
    assert_int_equal(mu_buf_append(&b, MU_SPAN_LIT("de")), MUSTER_ELIMIT);
    assert_span_text(mu_buf_span(&b), "abc");
    assert_int_equal(mu_buf_append(&b, MU_SPAN_LIT("d")), 0);
    assert_int_equal(mu_buf_reserve(&b, 1), MUSTER_ELIMIT);
    assert_int_equal(mu_buf_reserve(&b, SIZE_MAX), MUSTER_ELIMIT);
    mu_buf_fini(&b);
}

/* With the greatest maximum, a request that would wrap around must not be taken for a small one. */
static void test_buf_refuses_a_length_that_would_wrap(void **state)
{
    struct mu_buf b;

    (void)state;
    mu_buf_init(&b, SIZE_MAX);
    assert_int_equal(mu_buf_append(&b, MU_SPAN_LIT("0123456789")), 0);
    mu_buf_consume(&b, 6);
    failheap_arm(0);
    assert_int_equal(mu_buf_reserve(&b, SIZE_MAX - 5), MUSTER_ENOMEM);
    failheap_disarm();
    assert_span_text(mu_buf_span(&b), "6789");
    mu_buf_fini(&b);
}

static void test_buf_is_unchanged_when_memory_runs_out(void **state)
{
    struct mu_buf b;

    (void)state;
    mu_buf_init(&b, 1 << 20);
    assert_int_equal(mu_buf_append(&b, MU_SPAN_LIT("old")), 0);
    mu_buf_consume(&b, 1);
    failheap_arm(0);
    assert_int_equal(mu_buf_reserve(&b, 4096), MUSTER_ENOMEM);
    assert_true(failheap_fired());
    failheap_disarm();
    assert_span_text(mu_buf_span(&b), "ld");
    mu_buf_fini(&b);
}

static void test_buf_trim_frees_only_an_empty_buffer(void **state)
{
    struct mu_buf b;

    (void)state;
    mu_buf_init(&b, 1024);
    assert_int_equal(mu_buf_append(&b, MU_SPAN_LIT("x")), 0);
    mu_buf_trim(&b, 0);
    assert_true(b.cap != 0);
    mu_buf_reset(&b);
    mu_buf_trim(&b, b.cap);
    assert_true(b.cap != 0);
    mu_buf_trim(&b, 0);
    assert_int_equal(b.cap, 0);
    assert_null(b.data);
    assert_int_equal(mu_buf_append(&b, MU_SPAN_LIT("again")), 0);
    assert_span_text(mu_buf_span(&b), "again");
    mu_buf_fini(&b);
}

static void test_buf_integers_are_little_endian(void **state)
{
    static const uint8_t wire[] = {0x01, 0x03, 0x02, 0x07, 0x06, 0x05, 0x04, 0x0f,
                                   0x0e, 0x0d, 0x0c, 0x0b, 0x0a, 0x09, 0x88};
    struct mu_buf b;

    (void)state;
    mu_buf_init(&b, 64);
    assert_int_equal(mu_buf_reserve(&b, sizeof(wire)), 0);
    mu_buf_put_u8(&b, 0x01);
    mu_buf_put_u16(&b, 0x0203);
    mu_buf_put_u32(&b, 0x04050607);
    mu_buf_put_u64(&b, UINT64_C(0x88090a0b0c0d0e0f));
    assert_int_equal(b.len, sizeof(wire));
    assert_memory_equal(mu_buf_span(&b).data, wire, sizeof(wire));
    assert_int_equal(mu_get_u16(wire + 1), 0x0203);
    assert_int_equal(mu_get_u32(wire + 3), 0x04050607);
    assert_true(mu_get_u64(wire + 7) == UINT64_C(0x88090a0b0c0d0e0f));
    mu_buf_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_buf_holds_what_was_appended_and_not_consumed),
        cmocka_unit_test(test_buf_stops_at_its_maximum),
        cmocka_unit_test(test_buf_refuses_a_length_that_would_wrap),
        cmocka_unit_test(test_buf_is_unchanged_when_memory_runs_out),
        cmocka_unit_test(test_buf_trim_frees_only_an_empty_buffer),
        cmocka_unit_test(test_buf_integers_are_little_endian),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
