/* The heads of HTTP requests. */
#include "codec/text/http_head.h"

#include "unit.h"

#include <stdio.h>

#include <muster/error.h>

static int parse(const char *text, struct mu_http_head *ret, size_t *ret_used)
{
    memset(ret, 0, sizeof(*ret));
    return mu_http_head_parse(mu_span_str(text), ret, ret_used);
}

static void assert_text(struct mu_span s, const char *text)
{
    assert_int_equal(s.len, strlen(text));
    assert_memory_equal(s.data, text, s.len);
}

static void test_http_head_says_what_is_asked_for(void **state)
{
    static const char text[] = "GET /status.json?a=b HTTP/1.1\r\nHOST: box:29401\r\n"
                               "authorization:  Bearer xyz \r\nAccept: */*\r\n\r\nGET /next";
    struct mu_http_head h;
    size_t used = 0;

    (void)state;
    assert_int_equal(parse(text, &h, &used), 0);
    assert_int_equal(used, strlen(text) - strlen("GET /next"));
    assert_int_equal(h.method, MU_HTTP_GET);
    assert_text(h.path, "/status.json");
    assert_text(h.query, "a=b");
    assert_text(h.host, "box:29401");
    assert_text(h.authorization, "Bearer xyz");
    assert_true(h.keep);
    assert_false(h.body);
}

static void test_http_head_that_is_not_whole_is_waited_for(void **state)
{
    static const char text[] = "HEAD / HTTP/1.0\r\nHost: x\r\nContent-Length: 3\r\n\r\n";
    struct mu_http_head h;
    size_t used = 0;

    (void)state;
    for (size_t i = 0; i < sizeof(text) - 1; i++) {
        assert_int_equal(mu_http_head_parse(mu_span(text, i), &h, &used), MUSTER_EAGAIN);
    }
    assert_int_equal(parse(text, &h, &used), 0);
    assert_int_equal(h.method, MU_HTTP_HEAD);
    assert_false(h.keep);
    assert_true(h.body);
}

static void test_http_head_that_is_none_is_refused(void **state)
{
    static const struct {
        const char *text;
        int err;
    } bad[] = {
        {"GET /\r\n\r\n", MUSTER_EPROTO},
        {"GET  / HTTP/1.1\r\n\r\n", MUSTER_EPROTO},
        {"GET x HTTP/1.1\r\n\r\n", MUSTER_EPROTO},
        {"GET / HTTP/2.0\r\n\r\n", MUSTER_EVERSION},
        {"GET / HTTP/1.1 \r\n\r\n", MUSTER_EPROTO},
        {"GET / HTTP/1.1\r\nHost : x\r\n\r\n", MUSTER_EPROTO},
        {"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", MUSTER_EPROTO},
        {"GET / HTTP/1.1\r\n folded: x\r\n\r\n", MUSTER_EPROTO},
        {"GET / HTTP/1.1\nHost: x\r\n\r\n", MUSTER_EPROTO},
        {"GET / HTTP/1.1\r\nx: a\rb\r\n\r\n", MUSTER_EPROTO},
        {"GET / HTTP/1.1\r\nnothing\r\n\r\n", MUSTER_EPROTO},
        {"G\x01T / HTTP/1.1\r\n\r\n", MUSTER_EPROTO},
        {"\x16\x03\x01", MUSTER_EPROTO}, /* TLS */
        {"\r\n\r\n", MUSTER_EPROTO},
    };
    struct mu_http_head h;
    size_t used;

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        if (parse(bad[i].text, &h, &used) != bad[i].err) {
            fail_msg("number %zu was taken for %d", i, parse(bad[i].text, &h, &used));
        }
    }
}

static void test_http_head_has_a_longest(void **state)
{
    static char text[MU_HTTP_HEAD_MAX + 64];
    struct mu_http_head h;
    size_t used;
    int n = snprintf(text, sizeof(text), "GET / HTTP/1.1\r\nx: ");

    (void)state;
    memset(text + n, 'a', sizeof(text) - (size_t)n);
    assert_int_equal(mu_http_head_parse(mu_span(text, MU_HTTP_HEAD_MAX - 1), &h, &used),
                     MUSTER_EAGAIN);
    assert_int_equal(mu_http_head_parse(mu_span(text, MU_HTTP_HEAD_MAX), &h, &used), MUSTER_ELIMIT);
    memcpy(text + MU_HTTP_HEAD_MAX - 4, "\r\n\r\n", 4);
    assert_int_equal(mu_http_head_parse(mu_span(text, sizeof(text)), &h, &used), 0);
    assert_int_equal(used, MU_HTTP_HEAD_MAX);
    memcpy(text + MU_HTTP_HEAD_MAX - 4, "a\r\n\r\n", 5);
    assert_int_equal(mu_http_head_parse(mu_span(text, sizeof(text)), &h, &used), MUSTER_ELIMIT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_http_head_says_what_is_asked_for),
        cmocka_unit_test(test_http_head_that_is_not_whole_is_waited_for),
        cmocka_unit_test(test_http_head_that_is_none_is_refused),
        cmocka_unit_test(test_http_head_has_a_longest),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
