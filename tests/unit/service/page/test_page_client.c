/* The client of status pages, in the simulator, against a server that says what the test wants. */
#include "service/page/page_client.h"

#include "unit.h"

#include <errno.h>

#include <muster/error.h>

#include "sim.h"

#define PORT      8080
#define BYTES_MAX 64

static struct world {
    struct mu_sim *sim;
    struct mu_sim_proc *proc;
    struct mu_env *env;
    struct mu_listener listener;
    struct mu_conn served;
    bool connected; /* the server's end is open */
    char request[2 * MU_PAGE_REQUEST_MAX];
    size_t request_len;
    const char *reply; /* NULL: it stays silent */
    bool hang_up;      /* it closes after its reply */
    struct mu_page_client client;
    struct mu_page_request what;
    int started;
    bool done;
    int status;
} w;

/* --- the server ------------------------------------------------------------------------------- */

static size_t on_request(struct mu_conn *conn, struct mu_span in)
{
    size_t taken;

    assert_true(w.request_len + in.len < sizeof(w.request));
    memcpy(w.request + w.request_len, in.data, in.len);
    w.request_len += in.len;
    w.request[w.request_len] = '\0';
    if (strstr(w.request, "\r\n\r\n") != NULL) {
        if (w.reply != NULL) {
            mu_env_send(w.env, conn, mu_span_str(w.reply), &taken);
            assert_int_equal(taken, strlen(w.reply));
        }
        if (w.hang_up) {
            mu_env_close(w.env, conn, false);
        }
    }
    return in.len;
}

static void on_served_eof(struct mu_conn *conn)
{
    mu_env_close(w.env, conn, false);
}

static void on_served_writable(struct mu_conn *conn)
{
    (void)conn;
}

static void on_served_closed(struct mu_conn *conn, int status)
{
    (void)conn;
    (void)status;
    w.connected = false;
}

static struct mu_conn *on_accept(struct mu_listener *listener)
{
    static const struct mu_conn_events on = {.data = on_request,
                                             .eof = on_served_eof,
                                             .writable = on_served_writable,
                                             .closed = on_served_closed};

    (void)listener;
    assert_false(w.connected);
    w.connected = true;
    w.served.on = &on;
    return &w.served;
}

static void on_unlistened(struct mu_listener *listener)
{
    (void)listener;
}

static void on_done(struct mu_page_client *client, int status)
{
    assert_ptr_equal(client, &w.client);
    assert_false(w.done);
    w.done = true;
    w.status = status;
}

static int start(struct mu_env *env, void *arg)
{
    struct mu_addr addr = {.kind = MU_ADDR_TCP, .host = "a", .port = PORT};

    (void)arg;
    w.env = env;
    w.listener.accept = on_accept;
    w.listener.closed = on_unlistened;
    assert_int_equal(mu_env_listen(env, &w.listener, &addr), 0);
    mu_page_client_init(&w.client, env, BYTES_MAX, on_done);
    return 0;
}

static int begin(void **state)
{
    (void)state;
    memset(&w, 0, sizeof(w));
    w.what = (struct mu_page_request){
        .url = "http://a:8080/status.json", .connect_ms = 5000, .timeout_ms = 10000};
    w.sim = mu_sim_new(&(struct mu_sim_config){.seed = 1, .faults = mu_sim_faults_none()});
    w.proc = mu_sim_proc_new(mu_sim_host_new(w.sim, "a"),
                             &(struct mu_sim_program){.name = "page", .start = start});
    mu_sim_run_for(w.sim, MU_NS_PER_S);
    return 0;
}

static void stop(void *arg)
{
    (void)arg;
    mu_env_unlisten(w.env, &w.listener);
    if (w.connected) {
        mu_env_close(w.env, &w.served, true);
    }
}

static int finish(void **state)
{
    (void)state;
    mu_sim_call(w.proc, stop, NULL);
    mu_sim_run_for(w.sim, 5 * MU_NS_PER_S);
    assert_null(mu_sim_failure(w.sim));
    mu_page_client_fini(&w.client);
    mu_sim_free(w.sim);
    return 0;
}

/* --- the client ------------------------------------------------------------------------------- */

static void get(void *arg)
{
    (void)arg;
    w.started = mu_page_client_get(&w.client, &w.what);
    assert_false(w.done); /* never within the call */
}

static void cancel(void *arg)
{
    (void)arg;
    mu_page_client_cancel(&w.client);
    mu_page_client_cancel(&w.client);
}

/* Asks, and waits for some seconds of virtual time. */
static int ask(const char *reply, bool hang_up, unsigned seconds)
{
    w.reply = reply;
    w.hang_up = hang_up;
    w.done = false;
    w.request_len = 0;
    mu_sim_call(w.proc, get, NULL);
    mu_sim_run_for(w.sim, seconds * MU_NS_PER_S);
    return w.started;
}

static void assert_body(const char *text)
{
    struct mu_span body = mu_buf_span(&w.client.body);

    assert_true(w.done);
    assert_int_equal(w.status, 0);
    assert_int_equal(body.len, strlen(text));
    assert_memory_equal(body.data, text, body.len);
}

static void assert_failed(int status, const char *words)
{
    assert_true(w.done);
    assert_int_equal(w.status, status);
    if (strstr(w.client.error.text, words) == NULL) {
        fail_msg("the error does not say \"%s\": %s", words, w.client.error.text);
    }
}

static void test_page_client_reads_a_page(void **state)
{
    static const struct {
        const char *reply;
        bool hang_up;
        int code;
        const char *body;
    } pages[] = {
        {"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody", false, 200, "body"},
        {"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbodymore", true, 200, "body"},
        {"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", false, 404, ""},
        {"HTTP/1.0 200 OK\r\n\r\nto the end", true, 200, "to the end"},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nbo\r\n2\r\ndy\r\n0\r\n\r\n",
         false, 200, "body"},
        {"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: "
         "2\r\n\r\nok",
         false, 200, "ok"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(pages) / sizeof(pages[0]); i++) {
        assert_int_equal(ask(pages[i].reply, pages[i].hang_up, 2), 0);
        assert_body(pages[i].body);
        assert_int_equal(w.client.code, pages[i].code);
        assert_false(w.connected); /* it closes its connection */
    }
    assert_string_equal(w.request, "GET /status.json HTTP/1.1\r\nHost: a:8080\r\n"
                                   "Accept-Encoding: identity\r\nConnection: close\r\n\r\n");
}

static void test_page_client_shows_a_credential(void **state)
{
    (void)state;
    w.what.authorization = "Bearer key";
    assert_int_equal(ask("HTTP/1.1 204\r\n\r\n", false, 2), 0);
    assert_non_null(strstr(w.request, "\r\nAuthorization: Bearer key\r\n\r\n"));
    w.what.url = "http://user:p%40ss@a:8080";
    assert_int_equal(ask("HTTP/1.1 204\r\n\r\n", false, 2), 0);
    assert_non_null(strstr(w.request, "\r\nAuthorization: Bearer key\r\n\r\n"));
    assert_null(strstr(w.request, "Basic"));
    w.what.authorization = NULL;
    assert_int_equal(ask("HTTP/1.1 204\r\n\r\n", false, 2), 0);
    assert_non_null(strstr(w.request, "GET / HTTP/1.1\r\nHost: a:8080\r\n"));
    assert_non_null(strstr(w.request, "\r\nAuthorization: Basic dXNlcjpwQHNz\r\n\r\n"));
}

static void test_page_client_says_why_there_is_no_page(void **state)
{
    (void)state;
    assert_int_equal(ask("SSH-2.0-x\r\n", false, 2), 0);
    assert_failed(MUSTER_EPROTO, "the answer of a:8080 is not HTTP/1.1");
    assert_int_equal(ask("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", false, 2), 0);
    assert_failed(MUSTER_EPROTO, "coding");
    assert_int_equal(
        ask("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n", false, 2), 0);
    assert_failed(MUSTER_EPROTO, "not HTTP");
    assert_int_equal(ask(NULL, true, 2), 0);
    assert_failed(MUSTER_ECONN, "closed the connection before its answer was there");
    assert_int_equal(ask("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nbody", true, 2), 0);
    assert_failed(MUSTER_ECONN, "closed the connection before its answer was whole");
    w.what.url = "http://a:8081/";
    assert_int_equal(ask(NULL, false, 2), 0);
    assert_failed(-ECONNREFUSED, "cannot connect to a:8081: Connection refused");
    w.what.url = "http://nobody:8081/";
    assert_int_equal(ask(NULL, false, 2), 0);
    assert_failed(MUSTER_ENAME, "cannot connect to nobody:8081: ");
}

static void test_page_client_does_not_wait_for_ever(void **state)
{
    (void)state;
    assert_int_equal(ask(NULL, false, 9), 0);
    assert_false(w.done);
    mu_sim_run_for(w.sim, 2 * MU_NS_PER_S);
    assert_failed(MUSTER_ETIMEDOUT, "a:8080 has not answered within 10 s");
    /* Half an answer is none. */
    assert_int_equal(ask("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nbody", false, 11), 0);
    assert_failed(MUSTER_ETIMEDOUT, "has not answered");
}

static void test_page_client_can_be_canceled(void **state)
{
    (void)state;
    mu_sim_call(w.proc, cancel, NULL); /* without a request */
    assert_int_equal(ask(NULL, false, 1), 0);
    assert_false(w.done);
    mu_sim_call(w.proc, cancel, NULL);
    mu_sim_run_for(w.sim, MU_NS_PER_S);
    assert_failed(MUSTER_ECANCELED, "");
    assert_int_equal(ask("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody", false, 2), 0);
    assert_body("body");
}

static void test_page_client_takes_no_more_than_its_limit(void **state)
{
    char reply[256];
    char body[BYTES_MAX + 1];

    (void)state;
    memset(body, '0', BYTES_MAX);
    body[BYTES_MAX] = '\0';
    for (int more = 0; more < 2; more++) {
        int n = BYTES_MAX + more;

        for (int chunked = 0; chunked < 2; chunked++) {
            if (chunked) {
                (void)snprintf(reply, sizeof(reply),
                               "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
                               "%x\r\n%0*d\r\n0\r\n\r\n",
                               (unsigned)n, n, 0);
            } else {
                (void)snprintf(reply, sizeof(reply),
                               "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%0*d", n, n, 0);
            }
            assert_int_equal(ask(reply, false, 2), 0);
            if (more) {
                assert_failed(MUSTER_ELIMIT, "the page at a:8080 is larger than 64 bytes");
            } else {
                assert_body(body);
            }
        }
    }
}

static void test_page_client_refuses_a_large_page_before_it_comes(void **state)
{
    (void)state;
    assert_int_equal(ask("HTTP/1.1 200 OK\r\nContent-Length: 65\r\n\r\n", false, 2), 0);
    assert_failed(MUSTER_ELIMIT, "is larger than 64 bytes");
}

static void test_page_client_refuses_what_is_not_a_url(void **state)
{
    static const char *const bad[] = {
        "ftp://a:8080/", "a:8080",          "http://",       "http:///status.json", "http://:8080/",
        "http://a:0/",   "http://a:65536/", "http://a b/",   "http://a/\r\nX: y",   "http://[::1/",
        "http://unix:/", "http://peer:x/",  "http://%zz@a/", "http://a/\x7f",
    };
    static char url[MU_PAGE_REQUEST_MAX + 16];
    size_t longest;

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        w.what.url = bad[i];
        if (ask(NULL, false, 1) != MUSTER_EURL || w.client.error.text[0] == '\0') {
            fail_msg("%s: %d %s", bad[i], w.started, w.client.error.text);
        }
        assert_false(w.done);
    }
    memset(url, 'x', sizeof(url) - 1);
    memcpy(url, "http://a:8080/", 15);
    w.what.url = url;
    assert_int_equal(ask("HTTP/1.1 204\r\n\r\n", false, 2), 0);
    longest = 14 + MU_PAGE_REQUEST_MAX - w.request_len;
    url[14] = 'x';
    url[longest] = '\0';
    assert_int_equal(ask("HTTP/1.1 204\r\n\r\n", false, 2), 0);
    assert_body("");
    assert_int_equal(w.request_len, MU_PAGE_REQUEST_MAX);
    url[longest] = 'x';
    url[longest + 1] = '\0';
    assert_int_equal(ask(NULL, false, 2), MUSTER_ELIMIT);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, finish)
    const struct CMUnitTest tests[] = {
        TEST(test_page_client_reads_a_page),
        TEST(test_page_client_shows_a_credential),
        TEST(test_page_client_says_why_there_is_no_page),
        TEST(test_page_client_does_not_wait_for_ever),
        TEST(test_page_client_can_be_canceled),
        TEST(test_page_client_takes_no_more_than_its_limit),
        TEST(test_page_client_refuses_a_large_page_before_it_comes),
        TEST(test_page_client_refuses_what_is_not_a_url),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
