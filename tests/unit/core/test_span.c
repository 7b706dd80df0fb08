/* Spans, and their printable form for logs. */
#include "unit.h"

#include <string.h>

#include "core/span.h"

static void test_span_compares_bytes_not_pointers(void **state)
{
    char a[] = "same";
    char b[] = "same";

    (void)state;
    assert_true(mu_span_eq(mu_span_str(a), mu_span_str(b)));
    assert_false(mu_span_eq(mu_span_str("same"), mu_span_str("sam")));
    assert_false(mu_span_eq(mu_span_str("same"), mu_span_str("sane")));
    assert_true(mu_span_eq((struct mu_span){0}, mu_span("", 0)));
    assert_true(mu_span_eq(mu_span("a\0b", 3), mu_span("a\0b", 3)));
    assert_false(mu_span_eq(mu_span("a\0b", 3), mu_span("a\0c", 3)));
}

static void test_span_knows_its_prefixes(void **state)
{
    struct mu_span s = MU_SPAN_LIT("job/1");

    (void)state;
    assert_true(mu_span_starts_with(s, MU_SPAN_LIT("")));
    assert_true(mu_span_starts_with(s, (struct mu_span){0}));
    assert_true(mu_span_starts_with(s, MU_SPAN_LIT("job/")));
    assert_true(mu_span_starts_with(s, s));
    assert_false(mu_span_starts_with(s, MU_SPAN_LIT("job/12")));
    assert_false(mu_span_starts_with(s, MU_SPAN_LIT("jab")));
    assert_span_text(mu_span_skip(s, 4), "1");
    assert_int_equal(mu_span_skip(s, 5).len, 0);
}

static void test_span_quote_escapes_what_is_not_printable(void **state)
{
    char out[64];

    (void)state;
    assert_string_equal(mu_span_quote(out, sizeof(out), MU_SPAN_LIT("/rank 0~")), "\"/rank 0~\"");
    assert_string_equal(mu_span_quote(out, sizeof(out), mu_span("\0\n\x7f\xff\"\\", 6)),
                        "\"\\x00\\x0a\\x7f\\xff\\x22\\x5c\"");
    assert_string_equal(mu_span_quote(out, sizeof(out), (struct mu_span){0}), "\"\"");
}

/* Whatever the bytes and the capacity, it stays inside, is terminated and ends with a quote. */
static void test_span_quote_never_passes_its_capacity(void **state)
{
    uint8_t bytes[64];
    char out[80];

    (void)state;
    for (size_t cap = 8; cap < 70; cap++) {
        for (size_t len = 0; len <= sizeof(bytes); len++) {
            for (size_t i = 0; i < len; i++) {
                bytes[i] = i % 3 == 0 ? 0x01 : 'a';
            }
            memset(out, '#', sizeof(out));
            assert_ptr_equal(mu_span_quote(out, cap, mu_span(bytes, len)), out);
            assert_true(strlen(out) < cap);
            assert_int_equal(out[strlen(out) - 1], '"');
            assert_int_equal(out[cap], '#');
            if (len > cap) {
                assert_non_null(strstr(out, "...\""));
            }
        }
    }
}

static int natural(const char *a, const char *b)
{
    int ab = mu_span_natural_cmp(mu_span_str(a), mu_span_str(b));
    int ba = mu_span_natural_cmp(mu_span_str(b), mu_span_str(a));

    assert_true((ab < 0) == (ba > 0) && (ab == 0) == (ba == 0));
    return ab < 0 ? -1 : ab > 0;
}

/* Each of these comes before all that stand behind it. */
static void test_span_natural_order_compares_digits_as_numbers(void **state)
{
    static const char *const sorted[] = {
        "",
        "-5",
        "0",
        "00",
        "000",
        "1",
        "01",
        "1a",
        "2",
        "9",
        "10",
        "0010",
        "99999999999999999999999999",
        "100000000000000000000000000",
        "a",
        "a-1",
        "a0b1",
        "a00b1",
        "a0b2",
        "node",
        "node1",
        "node01",
        "node001",
        "node1-rack3",
        "node01-rack4",
        "node1-rack10",
        "node1x",
        "node2",
        "node10",
        "node18446744073709551615",
        "node18446744073709551616",
        "nodf",
        "\xff",
    };
    size_t count = sizeof(sorted) / sizeof(sorted[0]);

    (void)state;
    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; j < count; j++) {
            int want = i < j ? -1 : i > j;

            if (natural(sorted[i], sorted[j]) != want) {
                fail_msg("\"%s\" against \"%s\"", sorted[i], sorted[j]);
            }
        }
    }
}

/* A total order over all short texts of the characters that matter: nothing goes in circles. */
static void test_span_natural_order_is_transitive(void **state)
{
    static const char letters[] = {'-', '0', '1', 'a'};
    static char texts[85][4];
    size_t count = 0;

    (void)state;
    for (size_t len = 0; len <= 3; len++) {
        size_t all = (size_t)1 << (2 * len);

        for (size_t i = 0; i < all; i++, count++) {
            for (size_t k = 0; k < len; k++) {
                texts[count][k] = letters[i >> (2 * k) & 3];
            }
        }
    }
    assert_int_equal(count, 85);
    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; j < count; j++) {
            assert_int_equal(natural(texts[i], texts[j]) == 0, i == j);
            for (size_t k = 0; k < count && natural(texts[i], texts[j]) < 0; k++) {
                if (natural(texts[j], texts[k]) < 0) {
                    assert_int_equal(natural(texts[i], texts[k]), -1);
                }
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_span_compares_bytes_not_pointers),
        cmocka_unit_test(test_span_knows_its_prefixes),
        cmocka_unit_test(test_span_quote_escapes_what_is_not_printable),
        cmocka_unit_test(test_span_quote_never_passes_its_capacity),
        cmocka_unit_test(test_span_natural_order_compares_digits_as_numbers),
        cmocka_unit_test(test_span_natural_order_is_transitive),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
