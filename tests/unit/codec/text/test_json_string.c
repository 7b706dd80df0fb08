/* Strings of JSON: what they become, written and read. */
#include "unit.h"

#include <stdio.h>

#include "codec/text/json_string.h"

static void assert_decodes(const char *text, const char *expected)
{
    char string[64];
    char out[64];

    (void)snprintf(string, sizeof(string), "\"%s\"", text);
    assert_int_equal(mu_json_decode(mu_span_str(string), out, sizeof(out)), strlen(expected));
    assert_string_equal(out, expected);
}

static void test_json_string_decodes(void **state)
{
    char out[4];

    (void)state;
    assert_decodes("plain", "plain");
    assert_decodes("\\\"\\\\\\/\\b\\f\\n\\r\\t", "\"\\/\b\f\n\r\t");
    assert_decodes("\\u00e9\\u20ac", "\xc3\xa9\xe2\x82\xac");
    assert_decodes("\\ud83d\\ude00", "\xf0\x9f\x98\x80");
    assert_decodes("\\ud83d!", "\xef\xbf\xbd!");
    assert_decodes("\\ude00", "\xef\xbf\xbd");
    assert_decodes("\\ud83d\\u0041", "\xef\xbf\xbd"
                                     "A");
    assert_int_equal(mu_json_decode(MU_SPAN_LIT("\"abcdef\""), out, sizeof(out)), 6);
    assert_string_equal(out, "abc");
}

static void test_json_string_quote_and_decode_are_inverse(void **state)
{
    char all[256], quoted[2048], back[512];
    size_t len;

    (void)state;
    for (unsigned i = 0; i < 255; i++) {
        all[i] = (char)(i + 1);
    }
    len = mu_json_quote(mu_span(all, 255), quoted, sizeof(quoted));
    assert_true(len < sizeof(quoted));
    assert_int_equal(mu_json_decode(mu_span(quoted, len), back, sizeof(back)), 255);
    assert_memory_equal(back, all, 255);
    /* What does not fit is told, and nothing is written behind the end. */
    quoted[3] = 'x';
    assert_int_equal(mu_json_quote(MU_SPAN_LIT("abcdef"), quoted, 3), 8);
    assert_int_equal(quoted[3], 'x');
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json_string_decodes),
        cmocka_unit_test(test_json_string_quote_and_decode_are_inverse),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
