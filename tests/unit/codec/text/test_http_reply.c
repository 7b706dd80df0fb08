/* Replies of HTTP servers: their heads, and bodies in whatever pieces they come. */
#include "codec/text/http_reply.h"

#include "unit.h"

#include <stdio.h>

#include <muster/error.h>

#define CHUNKED "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"

static int parse(const char *text, struct mu_http_reply *ret, size_t *ret_used)
{
    memset(ret, 0, sizeof(*ret));
    return mu_http_reply_parse(mu_span_str(text), ret, ret_used);
}

/* Reads a whole reply, `step` bytes more at a time. Returns how its body ended. */
static int read_reply(const char *text, size_t step, char *ret_body, size_t cap)
{
    struct mu_http_reply reply;
    struct mu_http_body body;
    size_t all = strlen(text);
    size_t len = 0;
    size_t at = 0;
    size_t end;

    assert_int_equal(parse(text, &reply, &at), 0);
    end = at;
    mu_http_body_init(&body, &reply);
    while (!body.ended) {
        struct mu_span in = mu_span(text + at, end - at);
        struct mu_span piece = {0};
        int err = mu_http_body_take(&body, &in, &piece);

        if (err == MUSTER_EAGAIN && end < all) {
            end = all - end > step ? end + step : all;
            continue;
        }
        if (err == MUSTER_EAGAIN) {
            err = mu_http_body_end(&body);
            ret_body[len] = '\0';
            return err;
        }
        if (err != 0) {
            return err;
        }
        assert_true(len + piece.len < cap);
        memcpy(ret_body + len, piece.data, piece.len);
        len += piece.len;
        at = (size_t)(in.data - (const uint8_t *)text);
    }
    ret_body[len] = '\0';
    return 0;
}

static void test_http_reply_says_how_its_body_ends(void **state)
{
    static const struct {
        const char *text;
        struct mu_http_reply reply;
    } good[] = {
        {"HTTP/1.1 200 OK\r\ncontent-LENGTH: 12 \r\nX: y\r\n\r\n", {200, false, true, 12}},
        {"HTTP/1.0 200 Very well\r\n\r\n", {200, false, false, 0}},
        {"HTTP/1.1 401\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\n", {401, false, true, 3}},
        {"HTTP/1.1 200 \r\nTransfer-Encoding: Chunked\r\n\r\n", {200, true, false, 0}},
        {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
         {200, true, false, 0}},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\n\r\n", {200, false, false, 0}},
        {"HTTP/1.1 103 Early Hints\r\n\r\n", {103, false, true, 0}},
        {"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n", {204, false, true, 0}},
        {"HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n", {304, false, true, 0}},
        {"HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551615\r\n\r\n",
         {200, false, true, UINT64_MAX}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        struct mu_http_reply r;
        size_t used = 0;

        assert_int_equal(parse(good[i].text, &r, &used), 0);
        assert_int_equal(used, strlen(good[i].text));
        assert_int_equal(r.code, good[i].reply.code);
        assert_int_equal(r.chunked, good[i].reply.chunked);
        assert_int_equal(r.sized, good[i].reply.sized);
        assert_true(r.length == good[i].reply.length);
    }
}

static void test_http_reply_that_is_not_whole_is_waited_for(void **state)
{
    static const char text[] = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n";
    struct mu_http_reply r;
    size_t used;

    (void)state;
    for (size_t i = 0; i < sizeof(text) - 1; i++) {
        assert_int_equal(mu_http_reply_parse(mu_span(text, i), &r, &used), MUSTER_EAGAIN);
    }
}

static void test_http_reply_that_is_none_is_refused(void **state)
{
    static const struct {
        const char *text;
        int err;
    } bad[] = {
        {"\x15\x03\x01", MUSTER_EPROTO}, /* TLS */
        {"SSH-2.0-x", MUSTER_EPROTO},
        {"HTTX", MUSTER_EPROTO},
        {"HTTP/2.0 200 OK\r\n\r\n", MUSTER_EVERSION},
        {"HTTP/1.1  200 OK\r\n\r\n", MUSTER_EPROTO},
        {"HTTP/1.1 099 OK\r\n\r\n", MUSTER_EPROTO},
        {"HTTP/1.1 20 OK\r\n\r\n", MUSTER_EPROTO},
        {"HTTP/1.1 2000\r\n\r\n", MUSTER_EPROTO},
        {"HTTP/1.1 200 OK\nx: y\r\n\r\n", MUSTER_EPROTO},
        {"HTTP/1.1 200 OK\r\nx y\r\n\r\n", MUSTER_EPROTO},
        {"HTTP/1.1 200 OK\r\nx : y\r\n\r\n", MUSTER_EPROTO},
        {"HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\n", MUSTER_EPROTO},
        {"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", MUSTER_EPROTO},
        {"HTTP/1.1 200 OK\r\nContent-Length: 1, 1\r\n\r\n", MUSTER_EPROTO},
        {"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", MUSTER_EPROTO},
        {"HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551616\r\n\r\n", MUSTER_EPROTO},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", MUSTER_ENOTSUP},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", MUSTER_ENOTSUP},
    };
    struct mu_http_reply r;
    size_t used;

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        if (parse(bad[i].text, &r, &used) != bad[i].err) {
            fail_msg("number %zu was taken for %d", i, parse(bad[i].text, &r, &used));
        }
    }
}

static void test_http_reply_has_a_longest(void **state)
{
    static char text[MU_HTTP_REPLY_MAX + 64];
    struct mu_http_reply r;
    size_t used;
    int n = snprintf(text, sizeof(text), "HTTP/1.1 200 OK\r\nx: ");

    (void)state;
    memset(text + n, 'a', sizeof(text) - (size_t)n);
    assert_int_equal(mu_http_reply_parse(mu_span(text, MU_HTTP_REPLY_MAX - 1), &r, &used),
                     MUSTER_EAGAIN);
    assert_int_equal(mu_http_reply_parse(mu_span(text, MU_HTTP_REPLY_MAX), &r, &used),
                     MUSTER_ELIMIT);
    memcpy(text + MU_HTTP_REPLY_MAX - 4, "\r\n\r\n", 4);
    assert_int_equal(mu_http_reply_parse(mu_span(text, sizeof(text)), &r, &used), 0);
    assert_int_equal(used, MU_HTTP_REPLY_MAX);
    memcpy(text + MU_HTTP_REPLY_MAX - 4, "a\r\n\r\n", 5);
    assert_int_equal(mu_http_reply_parse(mu_span(text, sizeof(text)), &r, &used), MUSTER_ELIMIT);
}

static void test_http_reply_body_is_the_same_in_any_pieces(void **state)
{
    static const struct {
        const char *text;
        int err;
        const char *body;
    } replies[] = {
        {"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbodynext", 0, "body"},
        {"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nnext", 0, ""},
        {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nbody", MUSTER_ECONN, "body"},
        {"HTTP/1.0 200 OK\r\n\r\nto the end", 0, "to the end"},
        {CHUNKED "4\r\nbody\r\n0\r\n\r\nnext", 0, "body"},
        {CHUNKED "2\r\nbo\r\n00002;a=\"b\"\r\ndy\r\n0 \r\nTrailer: x\r\n\r\n", 0, "body"},
        {CHUNKED "A\r\n\r\n34\r\n78\r\n\r\n0\r\n\r\n", 0, "\r\n34\r\n78\r\n"},
        {CHUNKED "5\r\nbody", MUSTER_ECONN, "body"},
        {CHUNKED "4\r\nbody\r\n", MUSTER_ECONN, "body"},
        {CHUNKED "4\r\nbody\r\n0\r\n", MUSTER_ECONN, "body"},
        {CHUNKED "\r\nbody", MUSTER_EPROTO, NULL},
        {CHUNKED "g\r\nbody", MUSTER_EPROTO, NULL},
        {CHUNKED "4x\r\nbody", MUSTER_EPROTO, NULL},
        {CHUNKED "4\nbody", MUSTER_EPROTO, NULL},
        {CHUNKED "3\r\nbody\r\n", MUSTER_EPROTO, NULL},
        {CHUNKED "10000000000000000\r\n", MUSTER_EPROTO, NULL},
    };
    char body[64];

    (void)state;
    for (size_t i = 0; i < sizeof(replies) / sizeof(replies[0]); i++) {
        for (size_t step = 1; step < 64; step++) {
            int err = read_reply(replies[i].text, step, body, sizeof(body));

            if (err != replies[i].err) {
                fail_msg("number %zu ended with %d by steps of %zu", i, err, step);
            }
            if (replies[i].body != NULL) {
                assert_string_equal(body, replies[i].body);
            }
        }
    }
}

static void test_http_reply_lines_between_chunks_have_a_longest(void **state)
{
    static char text[2 * MU_HTTP_CHUNK_LINE_MAX];
    char body[8];
    int n = snprintf(text, sizeof(text), CHUNKED);

    (void)state;
    memset(text + n, ' ', MU_HTTP_CHUNK_LINE_MAX);
    text[n] = '0';
    memcpy(text + n + MU_HTTP_CHUNK_LINE_MAX - 2, "\r\n\r\n", 5);
    assert_int_equal(read_reply(text, 1, body, sizeof(body)), 0);
    memcpy(text + n + MU_HTTP_CHUNK_LINE_MAX - 2, " \r\n\r\n", 6);
    assert_int_equal(read_reply(text, 1, body, sizeof(body)), MUSTER_ELIMIT);
    assert_int_equal(read_reply(text, sizeof(text), body, sizeof(body)), MUSTER_ELIMIT);
}

static void test_http_reply_has_a_number_of_trailers(void **state)
{
    static char text[1024];
    char body[8];
    size_t n;

    (void)state;
    for (size_t more = 0; more < 2; more++) {
        n = (size_t)snprintf(text, sizeof(text), CHUNKED "0\r\n");
        for (size_t i = 0; i < MU_HTTP_TRAILERS_MAX + more; i++) {
            n += (size_t)snprintf(text + n, sizeof(text) - n, "a: b\r\n");
        }
        (void)snprintf(text + n, sizeof(text) - n, "\r\n");
        assert_int_equal(read_reply(text, 1, body, sizeof(body)), more == 0 ? 0 : MUSTER_ELIMIT);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_http_reply_says_how_its_body_ends),
        cmocka_unit_test(test_http_reply_that_is_not_whole_is_waited_for),
        cmocka_unit_test(test_http_reply_that_is_none_is_refused),
        cmocka_unit_test(test_http_reply_has_a_longest),
        cmocka_unit_test(test_http_reply_body_is_the_same_in_any_pieces),
        cmocka_unit_test(test_http_reply_lines_between_chunks_have_a_longest),
        cmocka_unit_test(test_http_reply_has_a_number_of_trailers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
