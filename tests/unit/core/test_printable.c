/* Words of others, as they may be shown. */
#include "unit.h"

#include <string.h>

#include "core/printable.h"

static void expect(const char *in, size_t len, bool lines, const char *expected)
{
    char out[128];

    assert_int_equal(mu_printable(out, sizeof(out), mu_span(in, len), lines), strlen(expected));
    assert_string_equal(out, expected);
}

static void test_text_stays_as_it_is(void **state)
{
    (void)state;
    expect("", 0, false, "");
    expect("node-1 \\ \"x\"", 12, false, "node-1 \\ \"x\"");
    expect("gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x90\x8d", 15, false,
           "gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x90\x8d");
}

static void test_what_a_terminal_would_obey_is_written_out(void **state)
{
    (void)state;
    expect("\x1b[2J", 4, false, "\\x1b[2J");
    expect("a\0b\x7f", 4, false, "a\\x00b\\x7f");
    expect("\xc2\x9b"
           "31m",
           5, true, "\\xc2\\x9b31m"); /* CSI in one character */
    expect("\xe2\x80\xae"
           "txt",
           6, true, "\\xe2\\x80\\xaetxt"); /* writes from right to left */
    expect("a\r\n\tb", 5, false, "a\\x0d\\x0a\\x09b");
    expect("a\r\n\tb", 5, true, "a\\x0d\n\tb");
}

static void test_what_is_no_utf8_is_written_out(void **state)
{
    (void)state;
    expect("\xff\x9b\xc3", 3, true, "\\xff\\x9b\\xc3");
    expect("\xe2\x82", 2, false, "\\xe2\\x82");
    expect("\xc0\x9b", 2, false, "\\xc0\\x9b");
}

static void test_text_is_cut_where_a_character_ends(void **state)
{
    char out[6];

    (void)state;
    assert_int_equal(mu_printable(out, sizeof(out), MU_SPAN_LIT("ab\x1b\x1b"), false), 2);
    assert_string_equal(out, "ab");
    assert_int_equal(mu_printable(out, sizeof(out), MU_SPAN_LIT("abcd\xc3\xbc"), false), 4);
    assert_int_equal(mu_printable(out, 1, MU_SPAN_LIT("x"), false), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_stays_as_it_is),
        cmocka_unit_test(test_what_a_terminal_would_obey_is_written_out),
        cmocka_unit_test(test_what_is_no_utf8_is_written_out),
        cmocka_unit_test(test_text_is_cut_where_a_character_ends),
    };

    return cmocka_run_group_tests_name("printable", tests, NULL, NULL);
}
