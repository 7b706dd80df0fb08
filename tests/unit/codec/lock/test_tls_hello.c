/* Whether a hello of TLS is whole. */
#include "codec/lock/tls_hello.h"

#include <muster/error.h>

#include "unit.h"

/* A hello of `len` bytes in records of `piece` bytes each, and how many bytes that is. */
static size_t make_hello(uint8_t *out, size_t len, size_t piece)
{
    size_t at = 0;

    for (size_t done = 0; done < len + 4; done += piece) {
        size_t n = len + 4 - done < piece ? len + 4 - done : piece;
        const uint8_t head[] = {22, 3, 1, (uint8_t)(n >> 8), (uint8_t)n};

        memcpy(out + at, head, sizeof(head));
        at += sizeof(head);
        for (size_t i = 0; i < n; i++) {
            const uint8_t message[] = {1, 0, (uint8_t)(len >> 8), (uint8_t)len};

            out[at++] = done + i < 4 ? message[done + i] : (uint8_t)(done + i);
        }
    }
    return at;
}

static void test_tls_hello_is_whole_with_its_last_byte(void **state)
{
    static const size_t pieces[] = {1, 3, 4, 5, 100, 1000};
    static uint8_t bytes[8192];

    (void)state;
    for (size_t i = 0; i < sizeof(pieces) / sizeof(pieces[0]); i++) {
        size_t all = make_hello(bytes, 300, pieces[i]);

        for (size_t len = 0; len < all; len++) {
            /* A copy of its own, so that a sanitizer sees a byte too far. */
            uint8_t *copy = test_malloc(len + 1);

            memcpy(copy + 1, bytes, len);
            assert_int_equal(mu_tls_hello_scan(mu_span(copy + 1, len)), 0);
            test_free(copy);
        }
        assert_int_equal(mu_tls_hello_scan(mu_span(bytes, all)), 1);
        bytes[all] = 99; /* What comes behind it is another's matter. */
        assert_int_equal(mu_tls_hello_scan(mu_span(bytes, all + 1)), 1);
    }
}

static void test_tls_hello_is_bounded(void **state)
{
    static uint8_t bytes[8192];

    (void)state;
    (void)make_hello(bytes, MU_TLS_HELLO_MAX - 9, 5000);
    assert_int_equal(mu_tls_hello_scan(mu_span(bytes, MU_TLS_HELLO_MAX - 1)), 0);
    assert_int_equal(mu_tls_hello_scan(mu_span(bytes, MU_TLS_HELLO_MAX)), 1);
    (void)make_hello(bytes, MU_TLS_HELLO_MAX - 8, 5000);
    assert_int_equal(mu_tls_hello_scan(mu_span(bytes, 5)), MUSTER_ECORRUPT);
    (void)make_hello(bytes, MU_TLS_HELLO_MAX - 8, 1000);
    assert_int_equal(mu_tls_hello_scan(mu_span(bytes, MU_TLS_HELLO_MAX)), MUSTER_ECORRUPT);
}

static void test_tls_hello_is_nothing_else(void **state)
{
    static const uint8_t others[][9] = {
        {23, 3, 1, 0, 4, 1, 0, 0, 0}, /* a record of another kind */
        {22, 3, 1, 0, 4, 2, 0, 0, 0}, /* another message */
        {22, 3, 1, 0, 0, 1, 0, 0, 0}, /* an empty record */
        {22, 3, 1, 0, 4, 1, 9, 0, 0}, /* a hello of half a megabyte */
    };

    (void)state;
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        assert_int_equal(mu_tls_hello_scan(mu_span(others[i], 9)), MUSTER_ECORRUPT);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tls_hello_is_whole_with_its_last_byte),
        cmocka_unit_test(test_tls_hello_is_bounded),
        cmocka_unit_test(test_tls_hello_is_nothing_else),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
