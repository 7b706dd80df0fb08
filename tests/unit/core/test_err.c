/* Error texts: formatted, prefixed, cut at their capacity, and one for each code. */
#include "unit.h"

#include <errno.h>
#include <string.h>

#include "core/err.h"

static void test_err_formats_and_returns_the_code(void **state)
{
    struct mu_errmsg e;

    (void)state;
    assert_int_equal(mu_err(&e, MUSTER_ELIMIT, "key of %d bytes", 9000), MUSTER_ELIMIT);
    assert_string_equal(e.text, "key of 9000 bytes");
}

static void test_err_prefix_goes_before_what_is_there(void **state)
{
    struct mu_errmsg e;

    (void)state;
    (void)mu_err(&e, MUSTER_ECONN, "refused");
    mu_err_prefix(&e, "dial %s", "192.0.2.7");
    mu_err_prefix(&e, "store");
    assert_string_equal(e.text, "store: dial 192.0.2.7: refused");
}

static void test_err_is_cut_and_terminated(void **state)
{
    char longer[2 * MU_ERRMSG_CAP];
    struct mu_errmsg e;

    (void)state;
    memset(longer, 'x', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    (void)mu_err(&e, MUSTER_EINVAL, "%s", longer);
    assert_int_equal(strlen(e.text), MU_ERRMSG_CAP - 1);
    mu_err_prefix(&e, "front");
    assert_int_equal(strlen(e.text), MU_ERRMSG_CAP - 1);
    assert_memory_equal(e.text, "front: xxx", 10);
    mu_err_prefix(&e, "%s", longer);
    assert_int_equal(strlen(e.text), MU_ERRMSG_CAP - 1);
}

static void test_err_every_code_has_a_name_and_a_text_of_its_own(void **state)
{
#define CODE(name, number, text) MUSTER_##name,
    static const int codes[] = {MUSTER_ERRNO_MAP(CODE)};
#undef CODE

    (void)state;
    for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
        assert_true(codes[i] < -10000);
        assert_memory_equal(muster_errname(codes[i]), "MUSTER_E", 8);
        assert_true(strlen(muster_strerror(codes[i])) > 3);
        for (size_t j = 0; j < i; j++) {
            assert_int_not_equal(codes[i], codes[j]);
            assert_string_not_equal(muster_strerror(codes[i]), muster_strerror(codes[j]));
        }
    }
}

static void test_err_knows_the_system_and_survives_the_unknown(void **state)
{
    (void)state;
    assert_string_equal(muster_strerror(0), "success");
    assert_string_equal(muster_strerror(-ENOENT), strerror(ENOENT));
    assert_string_equal(muster_strerror(7), "unknown error");
    assert_non_null(muster_strerror(-999999));
    assert_string_equal(muster_errname(-999999), "unknown");
}

static void test_error_has_nothing_in_it_that_a_terminal_obeys(void **state)
{
    struct mu_errmsg msg;

    (void)state;
    assert_int_equal(mu_err(&msg, MUSTER_EREMOTE, "it said: %s", "\x1b[2J\n"), MUSTER_EREMOTE);
    assert_string_equal(msg.text, "it said: \\x1b[2J\\x0a");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_err_formats_and_returns_the_code),
        cmocka_unit_test(test_err_prefix_goes_before_what_is_there),
        cmocka_unit_test(test_err_is_cut_and_terminated),
        cmocka_unit_test(test_err_every_code_has_a_name_and_a_text_of_its_own),
        cmocka_unit_test(test_err_knows_the_system_and_survives_the_unknown),
        cmocka_unit_test(test_error_has_nothing_in_it_that_a_terminal_obeys),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
