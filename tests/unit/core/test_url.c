/* URLs of stores: what is taken apart, what is refused, and in which words. */
#include "unit.h"

#include <stdio.h>

#include "core/url.h"

static struct mu_url url;
static struct mu_errmsg msg;

static void test_url_takes_a_tcp_url_apart(void **state)
{
    (void)state;
    assert_int_equal(mu_url_parse(&url, "TCP://host:29500/?prefix=a%2Fb&protocol=torch1", &msg), 0);

    assert_string_equal(url.scheme, "tcp");
    assert_string_equal(url.authority, "host:29500");
    assert_string_equal(url.path, "/");
    assert_int_equal(url.param_count, 2);
    assert_string_equal(mu_url_param(&url, "prefix"), "a/b");
    assert_string_equal(mu_url_param(&url, "protocol"), "torch1");
    assert_null(mu_url_param(&url, "Prefix"));
}

static void test_url_keeps_a_path_and_decodes_it(void **state)
{
    (void)state;
    assert_int_equal(mu_url_parse(&url, "file:///tmp/a%20b?world_size=4", &msg), 0);

    assert_string_equal(url.scheme, "file");
    assert_string_equal(url.authority, "");
    assert_string_equal(url.path, "/tmp/a b");
    assert_string_equal(mu_url_param(&url, "world_size"), "4");
}

static void test_url_without_authority(void **state)
{
    (void)state;
    assert_int_equal(mu_url_parse(&url, "hash:", &msg), 0);
    assert_string_equal(url.scheme, "hash");
    assert_string_equal(url.path, "");

    assert_int_equal(mu_url_parse(&url, "hash:?prefix=p", &msg), 0);
    assert_string_equal(mu_url_param(&url, "prefix"), "p");
}

static void test_url_refuses_what_it_does_not_know(void **state)
{
    static const char *const bad[] = {
        "",          "host:29500/", "//host",        ":x",        "tcp",         "1tcp://x",
        "tcp://x?a", "tcp://x?=b",  "tcp://x?a=%zz", "tcp://x/%", "file:///%00", "tcp://x?a=%0",
    };

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        int err = mu_url_parse(&url, bad[i], &msg);

        /* "host:29500/" has a scheme of its own kind; whoever opens it says that there is none. */
        if (strcmp(bad[i], "host:29500/") != 0) {
            assert_int_equal(err, MUSTER_EURL);
            assert_true(strlen(msg.text) > 10);
        }
    }
}

static void test_url_has_limits(void **state)
{
    char text[MU_URL_MAX + 64];
    size_t n;

    (void)state;
    memset(text, 'a', sizeof(text));
    memcpy(text, "tcp://", 6);
    text[MU_URL_MAX] = '\0';
    assert_int_equal(mu_url_parse(&url, text, &msg), 0);
    text[MU_URL_MAX] = 'a';
    text[MU_URL_MAX + 1] = '\0';
    assert_int_equal(mu_url_parse(&url, text, &msg), MUSTER_EURL);

    n = (size_t)snprintf(text, sizeof(text), "tcp://h?");
    for (int i = 0; i < MU_URL_PARAMS_MAX + 1; i++) {
        n += (size_t)snprintf(text + n, sizeof(text) - n, "p=%d&", i);
    }
    assert_int_equal(mu_url_parse(&url, text, &msg), MUSTER_EURL);
}

static void test_url_escapes_every_byte_but_those_that_are_plain(void **state)
{
    (void)state;
    for (int c = 0; c < 256; c++) {
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                     c == '-' || c == '/';
        char out[MU_URL_ESCAPED + 1] = "";
        char wanted[MU_URL_ESCAPED + 1];

        *mu_url_escape(out, (char)c, "-/") = '\0';
        (void)snprintf(wanted, sizeof(wanted), plain ? "%c" : "%%%02X", (unsigned)c);
        assert_string_equal(out, wanted);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_url_takes_a_tcp_url_apart),
        cmocka_unit_test(test_url_keeps_a_path_and_decodes_it),
        cmocka_unit_test(test_url_without_authority),
        cmocka_unit_test(test_url_refuses_what_it_does_not_know),
        cmocka_unit_test(test_url_has_limits),
        cmocka_unit_test(test_url_escapes_every_byte_but_those_that_are_plain),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
