/*
 * HTTP on libuv, with a server of a few lines on the same loop: what is kept, what is never
 * repeated, what waits, what ends how.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "core/buf.h"
#include "core/err.h"
#include "core/list.h"
#include "transport/uv_env.h"

#define PATIENCE_MS 60000

/* What the server does with a request, by its path. */
struct peer {
    struct mu_list link; /* of peers */
    struct mu_conn conn;
    struct mu_buf in;
    struct mu_buf out;
    bool close;
};

static struct mu_uv_env *uv;
static struct mu_env *env;
static struct mu_listener listener;
static struct mu_addr addr;
static unsigned conns;    /* that were accepted */
static unsigned requests; /* that were read whole */
static struct mu_list peers;
static bool listening;
static char last_request[4096];

/* --- the server ------------------------------------------------------------------------------- */

static void flush(struct peer *p)
{
    size_t taken;

    mu_env_send(env, &p->conn, mu_buf_span(&p->out), &taken);
    mu_buf_consume(&p->out, taken);
    if (p->out.len == 0 && p->close) {
        mu_env_close(env, &p->conn, false);
        p->close = false;
    }
}

static void reply(struct peer *p, const char *head, size_t body)
{
    char text[256];
    int n = snprintf(text, sizeof(text), "%s\r\nX-Etcd-Index:  77 \r\nContent-Length: %zu\r\n\r\n",
                     head, body);

    assert_int_equal(mu_buf_append(&p->out, mu_span(text, (size_t)n)), 0);
    for (size_t i = 0; i < body; i++) {
        assert_int_equal(mu_buf_append(&p->out, mu_span(&"0123456789"[i % 10], 1)), 0);
    }
    flush(p);
}

/* Whether a request is there whole; answers it. */
static bool serve(struct peer *p)
{
    struct mu_span in = mu_buf_span(&p->in);
    const uint8_t *end = in.len == 0 ? NULL : memmem(in.data, in.len, "\r\n\r\n", 4);
    const char *length;
    size_t body = 0;

    if (end == NULL) {
        return false;
    }
    (void)snprintf(last_request, sizeof(last_request), "%.*s", (int)in.len, (const char *)in.data);
    length = strstr(last_request, "Content-Length: ");
    if (length != NULL) {
        body = (size_t)strtoul(length + 16, NULL, 10);
    }
    if (in.len < (size_t)(end + 4 - in.data) + body) {
        return false;
    }
    mu_buf_consume(&p->in, (size_t)(end + 4 - in.data) + body);
    requests++;
    if (strstr(last_request, " /drop ") != NULL) {
        mu_env_close(env, &p->conn, false);
    } else if (strstr(last_request, " /silent ") != NULL) {
        return false;
    } else if (strstr(last_request, " /nonsense ") != NULL) {
        assert_int_equal(mu_buf_append(&p->out, MU_SPAN_LIT("hello, I am no web server\r\n\r\n")),
                         0);
        p->close = true;
        flush(p);
    } else if (strstr(last_request, " /long ") != NULL) {
        reply(p, "HTTP/1.1 200 OK", 1000000);
    } else if (strstr(last_request, " /missing ") != NULL) {
        reply(p, "HTTP/1.1 404 Not Found", 10);
    } else {
        reply(p, "HTTP/1.1 200 OK", 10);
    }
    return true;
}

static size_t on_peer_data(struct mu_conn *conn, struct mu_span in)
{
    struct peer *p = MU_CONTAINER_OF(conn, struct peer, conn);

    assert_int_equal(mu_buf_append(&p->in, in), 0);
    while (serve(p)) {
    }
    return in.len;
}

static void on_peer_eof(struct mu_conn *conn)
{
    mu_env_close(env, conn, true);
}

static void on_peer_writable(struct mu_conn *conn)
{
    flush(MU_CONTAINER_OF(conn, struct peer, conn));
}

static void on_peer_closed(struct mu_conn *conn, int status)
{
    struct peer *p = MU_CONTAINER_OF(conn, struct peer, conn);

    (void)status;
    mu_list_remove(&p->link);
    mu_buf_fini(&p->in);
    mu_buf_fini(&p->out);
    mu_free(p);
}

static const struct mu_conn_events peer_events = {
    .data = on_peer_data,
    .eof = on_peer_eof,
    .writable = on_peer_writable,
    .closed = on_peer_closed,
};

static struct mu_conn *on_accept(struct mu_listener *l)
{
    struct peer *p = mu_calloc(1, sizeof(*p));

    (void)l;
    assert_non_null(p);
    mu_buf_init(&p->in, 1 << 22);
    mu_buf_init(&p->out, 1 << 22);
    p->conn.on = &peer_events;
    conns++;
    mu_list_push(&peers, &p->link);
    return &p->conn;
}

static void on_unlistened(struct mu_listener *l)
{
    (void)l;
    listening = false;
}

/* --- the client ------------------------------------------------------------------------------- */

/* None is on a test's stack: if the test fails, it is ended after that. */
struct get {
    struct mu_list link; /* of gets, while it runs */
    struct mu_http http;
    struct mu_buf in;
    size_t take_max; /* bytes used at a time; 0: all */
    size_t paused;
    size_t offered_max; /* bytes at a time */
    bool cancel_in_head;
    unsigned heads;
    unsigned dones;
    int status;
};

static struct mu_list gets;

static void on_head(struct mu_http *http)
{
    struct get *g = MU_CONTAINER_OF(http, struct get, http);

    g->heads++;
    if (g->cancel_in_head) {
        mu_env_http_cancel(env, http);
    }
}

static size_t on_data(struct mu_http *http, struct mu_span in)
{
    struct get *g = MU_CONTAINER_OF(http, struct get, http);
    size_t n = g->take_max != 0 && in.len > g->take_max ? g->take_max : in.len;

    assert_false(g->cancel_in_head);
    g->offered_max = in.len > g->offered_max ? in.len : g->offered_max;
    assert_int_equal(mu_buf_append(&g->in, mu_span(in.data, n)), 0);
    g->paused += n < in.len ? 1 : 0;
    return n;
}

static void on_done(struct mu_http *http, int status)
{
    struct get *g = MU_CONTAINER_OF(http, struct get, http);

    mu_list_remove(&g->link);
    g->dones++;
    g->status = status;
}

static const struct mu_http_events events = {.head = on_head, .data = on_data, .done = on_done};

static void start(struct get *g, const char *method, const char *path, const char *body,
                  uint32_t timeout_ms)
{
    char url[128];
    struct mu_http_request q = {
        .method = method,
        .url = url,
        .body = mu_span_str(body),
        .keep = "x-etcd-index",
        .timeout_ms = timeout_ms,
    };

    (void)snprintf(url, sizeof(url), "http://127.0.0.1:%u%s", addr.port, path);
    mu_buf_init(&g->in, 1 << 22);
    g->http.on = &events;
    assert_int_equal(mu_env_http(env, &g->http, &q), 0);
    mu_list_push(&gets, &g->link);
    assert_int_equal(g->dones, 0);
}

static void finish(struct get *g)
{
    while (g->dones == 0) {
        mu_uv_env_turn(uv);
    }
    assert_int_equal(g->dones, 1);
}

static int run(struct get *g, const char *method, const char *path, const char *body)
{
    *g = (struct get){0};
    start(g, method, path, body, PATIENCE_MS);
    finish(g);
    return g->status;
}

static int set_up(void **state)
{
    (void)state;
    if (mu_uv_env_new(&uv) != 0) {
        return -1;
    }
    env = mu_uv_env_env(uv);
    conns = requests = 0;
    mu_list_init(&peers);
    mu_list_init(&gets);
    listener = (struct mu_listener){.accept = on_accept, .closed = on_unlistened};
    addr = (struct mu_addr){.kind = MU_ADDR_TCP, .host = "127.0.0.1"};
    listening = true;
    return mu_env_listen(env, &listener, &addr);
}

static int tear_down(void **state)
{
    (void)state;
    mu_env_unlisten(env, &listener);
    while (listening) {
        mu_uv_env_turn(uv);
    }
    /* What a test that failed left. */
    while (!mu_list_empty(&gets)) {
        struct get *g = MU_CONTAINER_OF(gets.next, struct get, link);

        mu_env_http_cancel(env, &g->http);
        finish(g);
        mu_buf_fini(&g->in);
    }
    /* The pool closes what it keeps when the environment goes; the server's ends go before. */
    while (!mu_list_empty(&peers)) {
        mu_env_close(env, &MU_CONTAINER_OF(peers.next, struct peer, link)->conn, true);
        mu_uv_env_turn(uv);
    }
    mu_uv_env_free(uv);
    return 0;
}

/* --- tests ------------------------------------------------------------------------------------ */

static void test_uv_http_keeps_a_connection(void **state)
{
    static struct get g;

    (void)state;
    for (unsigned i = 1; i <= 3; i++) {
        assert_int_equal(run(&g, i == 2 ? "POST" : "GET", "/", i == 2 ? "hello" : ""), 0);
        assert_int_equal(g.http.code, 200);
        assert_int_equal(g.in.len, 10);
        assert_string_equal(g.http.kept, "77");
        assert_int_equal(requests, i);
        assert_int_equal(conns, 1);
        mu_buf_fini(&g.in);
    }
}

static void test_uv_http_tells_the_code_of_a_refusal(void **state)
{
    static struct get g;

    (void)state;
    assert_int_equal(run(&g, "GET", "/missing", ""), 0);
    assert_int_equal(g.http.code, 404);
    assert_int_equal(g.in.len, 10);
    mu_buf_fini(&g.in);
}

static void test_uv_http_never_repeats_a_request(void **state)
{
    static const char *const methods[] = {"POST", "PUT", "DELETE"};
    static struct get g;

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        unsigned before;

        /* On a connection that is kept: there libcurl by itself would try again. */
        assert_int_equal(run(&g, "GET", "/", ""), 0);
        mu_buf_fini(&g.in);
        before = requests;
        assert_int_equal(run(&g, methods[i], "/drop", i < 2 ? "x" : ""), MUSTER_ECONN);
        assert_true(g.http.sent);
        assert_int_equal(requests, before + 1);
        mu_buf_fini(&g.in);
    }
}

static void test_uv_http_waits_for_whoever_takes_little(void **state)
{
    static struct get g = {.take_max = 10000};

    (void)state;
    start(&g, "GET", "/long", "", PATIENCE_MS);
    while (g.dones == 0) {
        size_t paused = g.paused;

        mu_uv_env_turn(uv);
        assert_true(g.in.len <= 1000000);
        if (g.paused > paused) {
            mu_env_http_resume(env, &g.http);
        }
    }
    assert_int_equal(g.status, 0);
    assert_int_equal(g.in.len, 1000000);
    assert_true(g.paused >= 90);
    for (size_t i = 0; i < g.in.len; i++) {
        assert_int_equal(mu_buf_span(&g.in).data[i], '0' + (int)(i % 10));
    }
    mu_buf_fini(&g.in);
}

/* Of a megabyte that nobody takes, so much is read and no more: a piece of curl's more at most. */
static void test_uv_http_holds_so_much_and_no_more(void **state)
{
    static struct get g = {.take_max = 1};

    (void)state;
    start(&g, "GET", "/long", "", PATIENCE_MS);
    while (g.paused < 500 && g.dones == 0) {
        size_t paused = g.paused;

        mu_uv_env_turn(uv);
        if (g.paused > paused) {
            mu_env_http_resume(env, &g.http);
        }
    }
    mu_env_http_cancel(env, &g.http);
    while (g.dones == 0) {
        mu_uv_env_turn(uv);
    }
    mu_buf_fini(&g.in);
    assert_true(g.offered_max >= MU_HTTP_HELD_MAX);
    assert_true(g.offered_max < 2 * MU_HTTP_HELD_MAX);
}

static void test_uv_http_can_be_cancelled_at_any_time(void **state)
{
    static struct get early;
    static struct get late = {.cancel_in_head = true};
    static struct get silent;

    (void)state;
    start(&early, "GET", "/", "", PATIENCE_MS);
    mu_env_http_cancel(env, &early.http);
    mu_env_http_cancel(env, &early.http);
    start(&late, "GET", "/long", "", PATIENCE_MS);
    start(&silent, "GET", "/silent", "", PATIENCE_MS);
    finish(&late);
    mu_env_http_cancel(env, &silent.http);
    finish(&silent);
    finish(&early);
    assert_int_equal(early.status, MUSTER_ECANCELED);
    assert_int_equal(late.status, MUSTER_ECANCELED);
    assert_int_equal(late.heads, 1);
    assert_int_equal(silent.status, MUSTER_ECANCELED);
    mu_buf_fini(&early.in);
    mu_buf_fini(&late.in);
    mu_buf_fini(&silent.in);
}

static void test_uv_http_ends_in_time(void **state)
{
    static struct get g;

    (void)state;
    start(&g, "GET", "/silent", "", 1000); /* enough for it to be sent */
    finish(&g);
    assert_int_equal(g.status, MUSTER_ETIMEDOUT);
    assert_true(g.http.sent);
    mu_buf_fini(&g.in);
}

static void test_uv_http_says_that_nothing_was_sent(void **state)
{
    static struct get g;
    struct mu_http_request q = {.method = "POST", .url = "http://127.0.0.1:1/", .body = {0}};

    (void)state;
    mu_buf_init(&g.in, 1 << 10);
    g.http.on = &events;
    assert_int_equal(mu_env_http(env, &g.http, &q), 0);
    mu_list_push(&gets, &g.link);
    finish(&g);
    assert_int_equal(g.status, MUSTER_ECONN);
    assert_false(g.http.sent);
    assert_non_null(strstr(g.http.error.text, "connect"));
}

static void test_uv_http_refuses_what_is_not_http(void **state)
{
    static struct get g;
    struct mu_http_request bad[] = {
        {.method = "GET", .url = "ftp://127.0.0.1/"},
        {.method = "BREW", .url = "http://127.0.0.1/"},
        {.method = "GET", .url = "http://127.0.0.1/", .body = MU_SPAN_LIT("x")},
    };

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(mu_env_http(env, &g.http, &bad[i]), MUSTER_EINVAL);
    }
    assert_int_equal(run(&g, "GET", "/nonsense", ""), MUSTER_EPROTO);
    mu_buf_fini(&g.in);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_uv_http_keeps_a_connection, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_uv_http_tells_the_code_of_a_refusal, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_uv_http_never_repeats_a_request, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_uv_http_waits_for_whoever_takes_little, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_uv_http_holds_so_much_and_no_more, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_uv_http_can_be_cancelled_at_any_time, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_uv_http_ends_in_time, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_uv_http_says_that_nothing_was_sent, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_uv_http_refuses_what_is_not_http, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
