/* The small HTTP server in the simulator: which connection makes room for another. */
#include "unit.h"

#include <muster/error.h>

#include "core/alloc.h"
#include "service/page/http_server.h"
#include "sim.h"

#define PORT 8080

struct client {
    struct mu_conn conn;
    const char *path; /* what it asks for; NULL: nothing */
    bool dialled, open, closed;
    size_t answers; /* pieces of them */
};

static struct world {
    struct mu_sim *sim;
    struct mu_sim_proc *proc;
    struct mu_env *env;
    struct mu_http_server *server;
    bool stopped;
    struct client clients[4];
} w;

static void on_answer(void *context, const struct mu_http_head *head, struct mu_http_answer *ret)
{
    (void)context;
    ret->status = 200;
    ret->type = "text/plain";
    ret->stream = mu_span_eq(head->path, MU_SPAN_LIT("/events"));
    assert_int_equal(mu_buf_append(ret->body, MU_SPAN_LIT("here")), 0);
}

static void on_stopped(void *context)
{
    (void)context;
    mu_http_server_free(w.server);
    w.stopped = true;
}

static int start(struct mu_env *env, void *arg)
{
    struct mu_http_server_config config = mu_http_server_config_defaults();
    struct mu_errmsg msg;

    (void)arg;
    w.env = env;
    config.listen = (struct mu_addr){.kind = MU_ADDR_TCP, .host = "a", .port = PORT};
    config.connections_max = 2;
    config.answer = on_answer;
    config.stopped = on_stopped;
    assert_int_equal(mu_http_server_start(env, &config, &w.server, &msg), 0);
    return 0;
}

/* --- clients, in the server's process --------------------------------------------------------- */

static void on_open(struct mu_conn *conn)
{
    struct client *c = MU_CONTAINER_OF(conn, struct client, conn);
    char request[128];
    size_t taken;

    c->open = true;
    if (c->path != NULL) {
        (void)snprintf(request, sizeof(request), "GET %s HTTP/1.1\r\nHost: a\r\n\r\n", c->path);
        mu_env_send(w.env, conn, mu_span_str(request), &taken);
    }
}

static size_t on_data(struct mu_conn *conn, struct mu_span in)
{
    MU_CONTAINER_OF(conn, struct client, conn)->answers++;
    return in.len;
}

static void on_eof(struct mu_conn *conn)
{
    mu_env_close(w.env, conn, false);
}

static void on_writable(struct mu_conn *conn)
{
    (void)conn;
}

static void on_closed(struct mu_conn *conn, int status)
{
    (void)status;
    MU_CONTAINER_OF(conn, struct client, conn)->closed = true;
}

static void dial(void *arg)
{
    static const struct mu_conn_events on = {.open = on_open,
                                             .data = on_data,
                                             .eof = on_eof,
                                             .writable = on_writable,
                                             .closed = on_closed};
    struct mu_addr addr = {.kind = MU_ADDR_TCP, .host = "a", .port = PORT};
    struct client *c = arg;

    c->conn.on = &on;
    c->dialled = true;
    assert_int_equal(mu_env_dial(w.env, &c->conn, &addr), 0);
}

static struct client *come(size_t i, const char *path)
{
    w.clients[i].path = path;
    mu_sim_call(w.proc, dial, &w.clients[i]);
    mu_sim_run_for(w.sim, MU_NS_PER_S);
    assert_true(w.clients[i].open);
    assert_int_equal(w.clients[i].answers != 0, path != NULL);
    return &w.clients[i];
}

static void push(void *arg)
{
    (void)arg;
    assert_int_equal(mu_http_server_push(w.server, MU_SPAN_LIT("news")), 0);
}

static void stop(void *arg)
{
    (void)arg;
    for (size_t i = 0; i < 4; i++) {
        if (w.clients[i].dialled && !w.clients[i].closed) {
            mu_env_close(w.env, &w.clients[i].conn, false);
        }
    }
    mu_http_server_stop(w.server);
}

static void test_http_server_a_newcomer_takes_the_place_that_is_missed_the_least(void **unused)
{
    struct client *listener;
    struct client *served;
    struct client *silent;
    struct client *last;
    size_t heard;

    (void)unused;
    w.sim = mu_sim_new(&(struct mu_sim_config){.seed = 1, .faults = mu_sim_faults_none()});
    w.proc = mu_sim_proc_new(mu_sim_host_new(w.sim, "a"),
                             &(struct mu_sim_program){.name = "page", .start = start});
    mu_sim_run_for(w.sim, MU_NS_PER_S);
    listener = come(0, "/events");
    served = come(1, "/");
    assert_false(listener->closed || served->closed);
    /* One that has had its answer goes before one that listens. */
    silent = come(2, NULL);
    assert_true(served->closed);
    assert_false(listener->closed || silent->closed);
    last = come(3, "/");
    assert_true(silent->closed);
    assert_false(listener->closed || last->closed);
    heard = listener->answers;
    mu_sim_call(w.proc, push, NULL);
    mu_sim_run_for(w.sim, MU_NS_PER_S);
    assert_true(listener->answers > heard);
    mu_sim_call(w.proc, stop, NULL);
    mu_sim_run_for(w.sim, 5 * MU_NS_PER_S);
    assert_true(w.stopped);
    assert_null(mu_sim_failure(w.sim));
    mu_sim_free(w.sim);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_http_server_a_newcomer_takes_the_place_that_is_missed_the_least),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
