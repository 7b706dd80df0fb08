/* Held keys on the native wire: what is encoded is decoded, and nothing else is. */
#include "unit.h"

#include <stdlib.h>

#include <muster/error.h>

#include "codec/store/hold.h"
#include "core/alloc.h"

static struct mu_buf buf;

static int setup(void **state)
{
    (void)state;
    mu_buf_init(&buf, 1 << 20);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    mu_buf_fini(&buf);
    return 0;
}

static void test_hold_fetch_comes_back(void **state)
{
    const struct mu_span keys[] = {MU_SPAN_LIT("/a"), MU_SPAN_LIT(""), MU_SPAN_LIT("/long")};
    struct mu_span *got = NULL;
    uint32_t flags = 0;
    size_t count = 0;

    (void)state;
    assert_int_equal(mu_fetch_encode(&buf, MU_FETCH_WAIT, keys, 3), 0);
    assert_int_equal(mu_fetch_decode(mu_buf_span(&buf), &flags, &got, &count), 0);
    assert_int_equal(flags, MU_FETCH_WAIT);
    assert_int_equal(count, 3);
    for (size_t i = 0; i < 3; i++) {
        assert_true(mu_span_eq(got[i], keys[i]));
    }
    mu_free(got);
}

static void test_hold_found_comes_back(void **state)
{
    const struct mu_found found[] = {{MU_FOUND_VALUE | MU_FOUND_HELD, MU_SPAN_LIT("v")},
                                     {MU_FOUND_HELD, {0}},
                                     {MU_FOUND_QUEUE, {0}},
                                     {MU_FOUND_LARGE, {0}}};
    struct mu_found *got = NULL;
    uint32_t lease_ms = 0;
    size_t count = 0;

    (void)state;
    assert_int_equal(mu_found_encode(&buf, 5000, found, 4), 0);
    assert_int_equal(mu_found_decode(mu_buf_span(&buf), &lease_ms, &got, &count), 0);
    assert_int_equal(lease_ms, 5000);
    assert_int_equal(count, 4);
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(got[i].state, found[i].state);
        assert_true(mu_span_eq(got[i].value, found[i].value));
    }
    mu_free(got);
}

static void test_hold_refuses_what_does_not_fit(void **state)
{
    static const uint8_t flags[] = {8, 0, 0, 0, 0, 0, 0, 0};
    static const uint8_t states[] = {0, 0, 0, 0, 1, 0, 0, 0, 16};
    static const uint8_t both[] = {0, 0, 0, 0, 1, 0, 0, 0, 9, 0, 0, 0, 0};
    static const uint8_t many[] = {255, 255, 255, 255};
    static const uint8_t rest[] = {0, 0, 0, 0, 1};
    struct mu_found *found = NULL;
    struct mu_span *keys = NULL;
    uint32_t number;
    size_t count;

    (void)state;
    assert_int_equal(mu_fetch_decode(mu_span(flags, sizeof(flags)), &number, &keys, &count),
                     MUSTER_EPROTO);
    assert_int_equal(mu_found_decode(mu_span(states, sizeof(states)), &number, &found, &count),
                     MUSTER_EPROTO);
    assert_int_equal(mu_found_decode(mu_span(both, sizeof(both)), &number, &found, &count),
                     MUSTER_EPROTO);
    assert_int_equal(mu_hold_keys_decode(mu_span(many, sizeof(many)), &keys, &count),
                     MUSTER_EPROTO);
    assert_int_equal(mu_hold_keys_decode(mu_span(rest, sizeof(rest)), &keys, &count),
                     MUSTER_EPROTO);
    assert_int_equal(mu_hold_lease_decode(mu_span(rest, 3), &number), MUSTER_EPROTO);
}

/* Meets MU_HOLD_KEYS_MAX. */
static void test_hold_names_so_many_keys(void **state)
{
    struct mu_span *keys = calloc(MU_HOLD_KEYS_MAX + 1, sizeof(*keys));
    struct mu_span *got = NULL;
    size_t count = 0;

    (void)state;
    assert_non_null(keys);
    assert_int_equal(mu_hold_keys_encode(&buf, keys, MU_HOLD_KEYS_MAX), 0);
    assert_int_equal(mu_hold_keys_decode(mu_buf_span(&buf), &got, &count), 0);
    assert_int_equal(count, MU_HOLD_KEYS_MAX);
    mu_free(got);
    mu_buf_reset(&buf);
    assert_int_equal(mu_hold_keys_encode(&buf, keys, MU_HOLD_KEYS_MAX + 1), 0);
    assert_int_equal(mu_hold_keys_decode(mu_buf_span(&buf), &got, &count), MUSTER_ELIMIT);
    free(keys);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_hold_fetch_comes_back, setup, teardown),
        cmocka_unit_test_setup_teardown(test_hold_found_comes_back, setup, teardown),
        cmocka_unit_test_setup_teardown(test_hold_refuses_what_does_not_fit, setup, teardown),
        cmocka_unit_test_setup_teardown(test_hold_names_so_many_keys, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
