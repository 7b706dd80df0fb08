/*
 * The engine for PyTorch's protocol, in the simulator, against our own server in both generations
 * and against peers that are no store.
 */
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>

#include <muster/log.h>

#include "core/alloc.h"
#include "core/list.h"
#include "service/store/engine.h"
#include "service/server/server.h"
#include "sim.h"

#define PORT 29500

/* --- the server's side ------------------------------------------------------------------------ */

/* Peers that are no store. */
enum peer {
    PEER_STORE = 0,
    PEER_CLOSES, /* at once */
    PEER_MUTE,
    PEER_BABBLES, /* another protocol's greeting */
    PEER_2_ONLY,  /* greets in generation 2 and closes on anything else, as PyTorch 2.x does */
};

struct false_peer {
    struct mu_listener listener;
    struct mu_conn conns[32];
    size_t count;
    enum peer kind;
    struct mu_env *env;
    struct mu_timer timer;
};

struct world {
    struct mu_sim *sim;
    struct mu_sim_proc *server;
    struct mu_sim_proc *client;
    enum peer peer;
    struct mu_store_tcp_config config;
    struct mu_store *store;
    size_t accepted; /* by a false peer */
    int ready;
    enum mu_store_tcp_protocol found;
    int mismatches;
    int failures;
    bool silent;
    char why[MU_ERRMSG_CAP];
    bool closed;
};

static struct world *the_world; /* callbacks of a listener have no context */

static size_t on_false_data(struct mu_conn *conn, struct mu_span in)
{
    size_t taken;

    if (the_world->peer == PEER_2_ONLY && in.data[0] != 0) {
        mu_env_close(conn->env, conn, false);
    } else if (the_world->peer == PEER_2_ONLY) {
        assert_int_equal(in.len, 10); /* VALIDATE and PING, whose number goes back */
        mu_env_send(conn->env, conn, mu_span_skip(in, 6), &taken);
    }
    return in.len;
}

static void ignore(struct mu_conn *conn)
{
    (void)conn;
}

static void ignore_closed(struct mu_conn *conn, int status)
{
    (void)conn;
    (void)status;
}

static const struct mu_conn_events false_events = {
    .open = ignore,
    .data = on_false_data,
    .eof = ignore,
    .writable = ignore,
    .closed = ignore_closed,
};

/* What a false peer does to the one that has just connected. */
static void on_false_timer(struct mu_timer *timer)
{
    struct false_peer *p = MU_CONTAINER_OF(timer, struct false_peer, timer);
    struct mu_conn *conn = &p->conns[p->count - 1];
    size_t taken;

    if (p->kind == PEER_CLOSES) {
        mu_env_close(p->env, conn, false);
    } else if (p->kind == PEER_BABBLES) {
        mu_env_send(p->env, conn, MU_SPAN_LIT("SSH-2.0-OpenSSH_9.2\r\n"), &taken);
    }
}

static struct mu_conn *accept_falsely(struct mu_listener *listener)
{
    struct false_peer *p = MU_CONTAINER_OF(listener, struct false_peer, listener);
    struct mu_conn *conn = &p->conns[p->count++];

    assert_true(p->count <= 32);
    the_world->accepted++;
    conn->on = &false_events;
    mu_env_timer_arm(p->env, &p->timer, mu_env_now(p->env).mono);
    return conn;
}

static void server_stopped(void *context, int status, const char *why)
{
    (void)context;
    (void)status;
    (void)why;
}

static int start_server(struct mu_env *env, void *arg)
{
    struct world *w = arg;
    struct mu_store_server_config config = mu_store_server_config_defaults();
    struct mu_addr addr = {.kind = MU_ADDR_TCP, .port = PORT, .host = "0.0.0.0"};
    struct mu_store_server *server;
    struct false_peer *p;
    struct mu_errmsg msg;

    if (w->peer == PEER_STORE) {
        config.listen = addr;
        config.stopped = server_stopped;
        return mu_store_server_start(env, &config, &server, &msg);
    }
    p = mu_calloc(1, sizeof(*p));
    assert_non_null(p);
    p->kind = w->peer;
    p->env = env;
    p->listener.accept = accept_falsely;
    mu_timer_init(&p->timer, on_false_timer);
    return mu_env_listen(env, &p->listener, &addr);
}

/* --- the client's side ------------------------------------------------------------------------ */

static void on_ready(void *context, enum mu_store_tcp_protocol found)
{
    struct world *w = context;

    w->ready++;
    w->found = found;
}

static void on_mismatch(void *context, bool silent)
{
    struct world *w = context;

    w->mismatches++;
    w->silent = silent;
}

static void on_failed(void *context, int status, const char *text)
{
    struct world *w = context;

    assert_int_equal(status, MUSTER_ECONN);
    w->failures++;
    (void)snprintf(w->why, sizeof(w->why), "%s", text);
}

static void on_closed(void *context)
{
    ((struct world *)context)->closed = true;
}

static int start_client(struct mu_env *env, void *arg)
{
    struct world *w = arg;
    struct mu_store_engine_events events = {on_ready, on_mismatch, on_failed, w};

    return mu_store_torch_new(env, &w->config, &events, &w->store);
}

static bool is_decided(void *arg)
{
    struct world *w = arg;

    return w->ready + w->mismatches + w->failures != 0;
}

static struct world *make_world(enum peer peer, enum mu_store_tcp_protocol protocol)
{
    struct world *w = calloc(1, sizeof(*w));
    struct mu_sim_config config = {.seed = 7, .faults = mu_sim_faults_none()};

    assert_non_null(w);
    the_world = w;
    muster_log_set(NULL, NULL, MUSTER_LOG_ERROR);
    w->peer = peer;
    w->config = mu_store_tcp_config_defaults();
    w->config.protocol = protocol;
    w->config.connect_ms = 20000;
    w->config.addr = (struct mu_addr){.kind = MU_ADDR_TCP, .port = PORT, .host = "server"};
    w->sim = mu_sim_new(&config);
    assert_non_null(w->sim);
    w->server = mu_sim_proc_new(
        mu_sim_host_new(w->sim, "server"),
        &(struct mu_sim_program){.name = "server", .start = start_server, .arg = w});
    return w;
}

static void connect_client(struct world *w)
{
    w->client = mu_sim_proc_new(
        mu_sim_host_new(w->sim, "client"),
        &(struct mu_sim_program){.name = "client", .start = start_client, .arg = w});
    assert_true(mu_sim_run_until(w->sim, 60 * MU_NS_PER_S, is_decided, w));
}

static struct world *open_world(enum mu_store_tcp_protocol protocol)
{
    struct world *w = make_world(PEER_STORE, protocol);

    connect_client(w);
    assert_int_equal(w->ready, 1);
    return w;
}

static bool is_closed(void *arg)
{
    return ((struct world *)arg)->closed;
}

static void close_world(struct world *w)
{
    mu_store_close(w->store, on_closed, w);
    assert_false(w->closed);
    assert_true(mu_sim_run_until(w->sim, 60 * MU_NS_PER_S, is_closed, w));
    assert_int_equal(mu_sim_proc_blocks(w->client), 0);
    assert_null(mu_sim_failure(w->sim));
    mu_sim_free(w->sim);
    free(w);
}

static void run_ms(struct world *w, uint64_t ms)
{
    mu_sim_run_for(w->sim, ms * MU_NS_PER_MS);
}

/* --- calls ------------------------------------------------------------------------------------ */

struct call {
    struct mu_store_op op;
    struct mu_span keys[40];
    struct mu_span values[40];
    int ended;
    uint64_t ended_ms;
    char text[256]; /* the values, each behind a comma */
};

static void on_done(struct mu_store_op *op)
{
    struct call *c = MU_CONTAINER_OF(op, struct call, op);
    size_t n = 0;

    c->ended++;
    c->ended_ms = mu_sim_now_ns(the_world->sim) / MU_NS_PER_MS;
    c->text[0] = '\0';
    for (size_t i = 0; i < op->reply.value_count; i++) {
        n += (size_t)snprintf(c->text + n, sizeof(c->text) - n, ",%.*s",
                              (int)op->reply.values[i].len, (const char *)op->reply.values[i].data);
    }
    /* It is the caller's again: whoever still looks at it looks at what is no request. */
    memset(&op->request, 0xa5, sizeof(op->request));
}

/* `keys` and `values` are separated by spaces; NULL: none. */
static size_t split(const char *text, struct mu_span *out)
{
    size_t count = 0;

    while (text != NULL && *text != '\0') {
        size_t len = strcspn(text, " ");

        out[count++] = mu_span(text, len);
        text += len + (text[len] == ' ' ? 1 : 0);
    }
    return count;
}

static void begin(struct world *w, struct call *c, enum mu_store_verb verb, const char *keys,
                  const char *values, uint32_t timeout_ms)
{
    memset(c, 0, sizeof(*c));
    c->op.request.verb = verb;
    c->op.request.key_count = split(keys, c->keys);
    c->op.request.value_count = split(values, c->values);
    c->op.request.keys = c->keys;
    c->op.request.values = c->values;
    c->op.timeout_ms = timeout_ms;
    c->op.done = on_done;
    mu_store_submit(w->store, &c->op);
    assert_int_equal(c->ended, 0);
}

static bool has_ended(void *arg)
{
    return ((struct call *)arg)->ended != 0;
}

static int finish(struct world *w, struct call *c)
{
    assert_true(mu_sim_run_until(w->sim, 60 * MU_NS_PER_S, has_ended, c));
    assert_int_equal(c->ended, 1);
    return c->op.status;
}

static int call(struct world *w, struct call *c, enum mu_store_verb verb, const char *keys,
                const char *values)
{
    begin(w, c, verb, keys, values, 5000);
    return finish(w, c);
}

static int call_nowait(struct world *w, struct call *c, enum mu_store_verb verb, const char *keys)
{
    begin(w, c, verb, keys, NULL, 5000);
    c->op.request.flags = MU_STORE_NOWAIT;
    return finish(w, c);
}

/* --- every verb ------------------------------------------------------------------------------- */

static void check_verbs(struct world *w)
{
    struct call c;

    assert_int_equal(call(w, &c, MU_STORE_SET, "k", "v"), 0);
    assert_int_equal(call(w, &c, MU_STORE_GET, "k", NULL), 0);
    assert_string_equal(c.text, ",v");
    assert_int_equal(call_nowait(w, &c, MU_STORE_GET, "k"), 0);
    assert_string_equal(c.text, ",v");
    assert_int_equal(call_nowait(w, &c, MU_STORE_GET, "absent"), MUSTER_ENOENT);
    assert_int_equal(call(w, &c, MU_STORE_WAIT, "k", NULL), 0);
    assert_int_equal(call(w, &c, MU_STORE_CHECK, "k", NULL), 0);
    assert_int_equal(c.op.reply.number, 1);
    assert_int_equal(call(w, &c, MU_STORE_CHECK, "k absent", NULL), 0);
    assert_int_equal(c.op.reply.number, 0);
    begin(w, &c, MU_STORE_ADD, "n", NULL, 1000);
    c.op.request.number = 41;
    assert_int_equal(finish(w, &c), 0);
    assert_int_equal(c.op.reply.number, 41);
    assert_int_equal(call(w, &c, MU_STORE_COMPARE_SET, "k", "v w"), 0);
    assert_int_equal(c.op.reply.number, 1);
    assert_string_equal(c.text, ",w");
    assert_int_equal(call(w, &c, MU_STORE_COMPARE_SET, "k", "v x"), 0);
    assert_int_equal(c.op.reply.number, 0);
    assert_string_equal(c.text, ",w");
    assert_int_equal(call(w, &c, MU_STORE_APPEND, "a", "one"), 0);
    assert_int_equal(call(w, &c, MU_STORE_APPEND, "a", "two"), 0);
    assert_int_equal(call(w, &c, MU_STORE_GET, "a", NULL), 0);
    assert_string_equal(c.text, ",onetwo");
    assert_int_equal(call(w, &c, MU_STORE_MULTI_SET, "m1 m2 m3", "1 2 3"), 0);
    assert_int_equal(call(w, &c, MU_STORE_MULTI_GET, "m3 m1 k", NULL), 0);
    assert_string_equal(c.text, ",3,1,w");
    assert_int_equal(call_nowait(w, &c, MU_STORE_MULTI_GET, "m1 m2"), 0);
    assert_string_equal(c.text, ",1,2");
    assert_int_equal(call_nowait(w, &c, MU_STORE_MULTI_GET, "m1 absent m2"), MUSTER_ENOENT);
    assert_int_equal(call(w, &c, MU_STORE_MULTI_GET, NULL, NULL), 0);
    assert_int_equal(call(w, &c, MU_STORE_MULTI_SET, NULL, NULL), 0);
    assert_int_equal(call(w, &c, MU_STORE_MULTI_SET, "x", NULL), MUSTER_EINVAL);
    assert_int_equal(call(w, &c, MU_STORE_NUM_KEYS, NULL, NULL), 0);
    assert_int_equal(c.op.reply.number, 6);
    assert_int_equal(call(w, &c, MU_STORE_DELETE, "k", NULL), 0);
    assert_int_equal(c.op.reply.number, 1);
    assert_int_equal(call(w, &c, MU_STORE_DELETE, "k", NULL), 0);
    assert_int_equal(c.op.reply.number, 0);
    assert_int_equal(call(w, &c, MU_STORE_WATCH, "k", NULL), MUSTER_ENOTSUP);
    assert_int_equal(call(w, &c, MU_STORE_LEASE_GRANT, NULL, NULL), MUSTER_ENOTSUP);
    begin(w, &c, MU_STORE_SET, "k", "v", 1000);
    c.op.request.lease = 3;
    assert_int_equal(finish(w, &c), MUSTER_ENOTSUP);
    assert_non_null(strstr(c.op.errmsg.text, "does not support leases"));
}

static void test_generation_1_does_every_verb_it_has_or_that_can_be_composed(void **state)
{
    struct world *w = open_world(MU_STORE_TCP_TORCH1);
    struct call c;

    (void)state;
    check_verbs(w);
    assert_int_equal(call(w, &c, MU_STORE_QUEUE_PUSH, "q", "x"), MUSTER_ENOTSUP);
    assert_string_equal(c.op.errmsg.text,
                        "server:29500 is PyTorch 1.13's store, which does not support queues");
    assert_int_equal(call(w, &c, MU_STORE_LIST_KEYS, NULL, NULL), MUSTER_ENOTSUP);
    close_world(w);
}

static void test_generation_2_does_every_verb(void **state)
{
    struct world *w = open_world(MU_STORE_TCP_TORCH2);
    struct call c;
    struct call d;

    (void)state;
    check_verbs(w);
    assert_int_equal(call(w, &c, MU_STORE_LIST_KEYS, "m", NULL), 0);
    assert_int_equal(c.op.reply.number, 3);
    assert_int_equal(call(w, &c, MU_STORE_LIST_KEYS, NULL, NULL), 0);
    assert_int_equal(c.op.reply.number, 5);
    assert_int_equal(call(w, &c, MU_STORE_QUEUE_PUSH, "q", "x"), 0);
    assert_int_equal(call(w, &c, MU_STORE_QUEUE_LEN, "q", NULL), 0);
    assert_int_equal(c.op.reply.number, 1);
    assert_int_equal(call(w, &c, MU_STORE_QUEUE_POP, "q", NULL), 0);
    assert_string_equal(c.text, ",x");
    assert_int_equal(call_nowait(w, &c, MU_STORE_QUEUE_POP, "q"), MUSTER_ENOENT);
    /* Two wait for one element, then for another. */
    begin(w, &c, MU_STORE_QUEUE_POP, "q", NULL, 5000);
    begin(w, &d, MU_STORE_QUEUE_POP, "q", NULL, 5000);
    run_ms(w, 100);
    {
        struct call push;

        assert_int_equal(call(w, &push, MU_STORE_QUEUE_PUSH, "q", "1"), 0);
        run_ms(w, 100);
        assert_int_equal(c.ended + d.ended, 1);
        assert_int_equal(call(w, &push, MU_STORE_QUEUE_PUSH, "q", "2"), 0);
    }
    assert_int_equal(finish(w, &c), 0);
    assert_int_equal(finish(w, &d), 0);
    close_world(w);
}

static void test_generation_is_found_out(void **state)
{
    struct world *w = open_world(MU_STORE_TCP_ANY);
    struct call c;

    (void)state;
    assert_int_equal(call(w, &c, MU_STORE_QUEUE_LEN, "q", NULL), MUSTER_ENOTSUP);
    assert_int_equal(call(w, &c, MU_STORE_SET, "k", "v"), 0);
    assert_int_equal(w->found, MU_STORE_TCP_TORCH1);
    close_world(w);
}

/* --- waiting ---------------------------------------------------------------------------------- */

static const enum mu_store_tcp_protocol both[] = {MU_STORE_TCP_TORCH1, MU_STORE_TCP_TORCH2};

static void test_blocked_waits_do_not_block_a_set(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct world *w = open_world(both[i]);
        struct call wait;
        struct call get;
        struct call set;

        begin(w, &wait, MU_STORE_WAIT, "a b", NULL, 0);
        begin(w, &get, MU_STORE_GET, "b", NULL, 0);
        run_ms(w, 100);
        assert_int_equal(call(w, &set, MU_STORE_SET, "a", "1"), 0);
        run_ms(w, 100);
        assert_int_equal(wait.ended, 0);
        assert_int_equal(call(w, &set, MU_STORE_SET, "b", "2"), 0);
        assert_int_equal(finish(w, &wait), 0);
        assert_int_equal(finish(w, &get), 0);
        assert_string_equal(get.text, ",2");
        close_world(w);
    }
}

static void test_timeouts_name_the_missing_keys(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct world *w = open_world(both[i]);
        struct call c;

        assert_int_equal(call(w, &c, MU_STORE_SET, "there", "1"), 0);
        begin(w, &c, MU_STORE_WAIT, "a there b", NULL, 300);
        assert_int_equal(finish(w, &c), MUSTER_ETIMEDOUT);
        assert_string_equal(c.op.errmsg.text, "timed out waiting for 2 keys: \"a\" \"b\"");
        begin(w, &c, MU_STORE_GET, "one", NULL, 300);
        assert_int_equal(finish(w, &c), MUSTER_ETIMEDOUT);
        assert_string_equal(c.op.errmsg.text, "timed out waiting for 1 key: \"one\"");
        begin(w, &c, MU_STORE_MULTI_GET, "there two", NULL, 300);
        assert_int_equal(finish(w, &c), MUSTER_ETIMEDOUT);
        assert_string_equal(c.op.errmsg.text, "timed out waiting for 1 key: \"two\"");
        begin(w, &c, MU_STORE_WAIT,
              "there there there there there there there there there there there there there "
              "there there there there there there far",
              NULL, 300);
        assert_int_equal(finish(w, &c), MUSTER_ETIMEDOUT);
        assert_string_equal(c.op.errmsg.text, "timed out waiting for 1 key: \"far\"");
        /* Nothing is left behind that a later answer could be taken for. */
        assert_int_equal(call(w, &c, MU_STORE_SET, "one", "1"), 0);
        assert_int_equal(call(w, &c, MU_STORE_GET, "one", NULL), 0);
        assert_string_equal(c.text, ",1");
        close_world(w);
    }
}

static void test_waits_beyond_the_limit_are_refused(void **state)
{
    struct world *w = make_world(PEER_STORE, MU_STORE_TCP_TORCH2);
    struct call c[3];
    struct call set;

    (void)state;
    w->config.waits_max = 2;
    connect_client(w);
    for (size_t i = 0; i < 3; i++) {
        begin(w, &c[i], MU_STORE_GET, "k", NULL, 0);
    }
    assert_int_equal(finish(w, &c[2]), MUSTER_EBUSY);
    assert_int_equal(c[0].ended + c[1].ended, 0);
    assert_int_equal(call(w, &set, MU_STORE_SET, "k", "1"), 0);
    assert_int_equal(finish(w, &c[0]), 0);
    assert_int_equal(finish(w, &c[1]), 0);
    assert_int_equal(call(w, &c[2], MU_STORE_GET, "k", NULL), 0);
    close_world(w);
}

static void test_cancel_ends_a_wait_and_close_ends_the_rest(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct world *w = open_world(both[i]);
        struct call sent;
        struct call unsent;
        struct call left;
        struct call set;

        begin(w, &sent, MU_STORE_WAIT, "k", NULL, 0);
        begin(w, &left, MU_STORE_GET, "k", NULL, 0);
        run_ms(w, 100);
        begin(w, &unsent, MU_STORE_WAIT, "k", NULL, 0);
        mu_store_cancel(&sent.op);
        mu_store_cancel(&unsent.op);
        assert_int_equal(sent.ended + unsent.ended, 0);
        assert_int_equal(finish(w, &sent), MUSTER_ECANCELED);
        assert_int_equal(finish(w, &unsent), MUSTER_ECANCELED);
        assert_int_equal(call(w, &set, MU_STORE_SET, "other", "1"), 0);
        begin(w, &set, MU_STORE_SET, "other", "2", 0);
        close_world(w);
        assert_int_equal(left.ended, 1);
        assert_int_equal(left.op.status, MUSTER_ECLOSED);
        assert_int_equal(set.ended, 1);
    }
}

/* --- what goes wrong -------------------------------------------------------------------------- */

static void test_lost_connection_repeats_reads_and_disclaims_the_rest(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct world *w = open_world(both[i]);
        struct call wait;
        struct call add;
        struct call check;
        struct call set;

        begin(w, &wait, MU_STORE_WAIT, "k", NULL, 0);
        run_ms(w, 100);
        mu_sim_pause(w->server, 500 * MU_NS_PER_MS);
        begin(w, &check, MU_STORE_CHECK, "k", NULL, 0);
        begin(w, &add, MU_STORE_ADD, "n", NULL, 0);
        run_ms(w, 100);
        assert_int_equal(check.ended + add.ended, 0);
        mu_sim_kill(w->server, MU_SIM_KILL_PROCESS);
        run_ms(w, 1000);
        assert_int_equal(check.ended + wait.ended, 0);
        assert_int_equal(add.ended, 1);
        assert_int_equal(add.op.status, MUSTER_ECONN);
        assert_string_equal(add.op.errmsg.text,
                            "lost the connection to server:29500: the outcome of add is unknown");
        mu_sim_restart(w->server);
        assert_int_equal(finish(w, &check), 0);
        assert_int_equal(check.op.reply.number, 0);
        assert_int_equal(call(w, &set, MU_STORE_SET, "k", "1"), 0);
        assert_int_equal(finish(w, &wait), 0);
        close_world(w);
    }
}

static void test_server_that_stays_away_ends_what_waits(void **state)
{
    struct world *w = make_world(PEER_STORE, MU_STORE_TCP_TORCH2);
    struct call get;
    struct call set;
    struct call late;

    (void)state;
    w->config.reconnect_ms = 2000;
    connect_client(w);
    begin(w, &get, MU_STORE_GET, "k", NULL, 0);
    run_ms(w, 100);
    mu_sim_kill(w->server, MU_SIM_KILL_PROCESS);
    run_ms(w, 500);
    begin(w, &set, MU_STORE_SET, "k", "1", 0);
    begin(w, &late, MU_STORE_SET, "k", "1", 300);
    assert_int_equal(finish(w, &late), MUSTER_ETIMEDOUT);
    assert_non_null(strstr(late.op.errmsg.text, "no connection to server:29500"));
    assert_int_equal(finish(w, &set), MUSTER_ECONN);
    assert_int_equal(finish(w, &get), MUSTER_ECONN);
    assert_non_null(strstr(get.op.errmsg.text, "lost the connection to server:29500"));
    assert_in_range(get.ended_ms, 2000, 2400);
    mu_sim_restart(w->server);
    assert_int_equal(call(w, &set, MU_STORE_SET, "k", "1"), 0);
    close_world(w);
}

static void test_answer_that_does_not_come_ends_at_the_timeout(void **state)
{
    struct world *w = open_world(MU_STORE_TCP_TORCH2);
    struct call c;
    struct call wait;

    (void)state;
    begin(w, &wait, MU_STORE_WAIT, "a b", NULL, 500);
    run_ms(w, 100);
    mu_sim_pause(w->server, 10 * MU_NS_PER_S);
    begin(w, &c, MU_STORE_SET, "k", "1", 300);
    assert_int_equal(finish(w, &c), MUSTER_ETIMEDOUT);
    assert_non_null(strstr(c.op.errmsg.text, "the outcome of set is unknown"));
    assert_int_equal(finish(w, &wait), MUSTER_ETIMEDOUT);
    assert_string_equal(wait.op.errmsg.text, "timed out waiting for some of 2 keys: \"a\" \"b\"");
    assert_in_range(wait.ended_ms, 2400, 2800);
    run_ms(w, 10000);
    assert_int_equal(call(w, &c, MU_STORE_GET, "k", NULL), 0);
    assert_string_equal(c.text, ",1");
    close_world(w);
}

static void check_mismatch(enum peer peer, enum mu_store_tcp_protocol protocol, bool silent)
{
    struct world *w = make_world(peer, protocol);

    connect_client(w);
    assert_int_equal(w->mismatches, 1);
    assert_int_equal(w->silent, silent);
    run_ms(w, 5000);
    assert_int_equal(w->mismatches + w->failures + w->ready, 1);
    close_world(w);
}

static void test_peers_that_are_no_store_are_a_mismatch(void **state)
{
    (void)state;
    check_mismatch(PEER_CLOSES, MU_STORE_TCP_ANY, false);
    check_mismatch(PEER_CLOSES, MU_STORE_TCP_TORCH1, false);
    check_mismatch(PEER_MUTE, MU_STORE_TCP_ANY, true);
    check_mismatch(PEER_MUTE, MU_STORE_TCP_TORCH2, true);
    check_mismatch(PEER_BABBLES, MU_STORE_TCP_ANY, false);
    check_mismatch(PEER_BABBLES, MU_STORE_TCP_TORCH2, false);
}

static void test_peer_that_closes_on_generation_1_is_greeted_in_2(void **state)
{
    struct world *w = make_world(PEER_2_ONLY, MU_STORE_TCP_ANY);

    (void)state;
    connect_client(w);
    assert_int_equal(w->ready, 1);
    assert_int_equal(w->found, MU_STORE_TCP_TORCH2);
    assert_int_equal(w->accepted, 3);
    close_world(w);
}

static void test_wait_outlives_a_server_that_lost_power(void **state)
{
    struct world *w = open_world(MU_STORE_TCP_TORCH2);
    struct call wait;
    struct call set;

    (void)state;
    begin(w, &wait, MU_STORE_WAIT, "k", NULL, 0);
    run_ms(w, 100);
    mu_sim_kill(w->server, MU_SIM_KILL_POWER);
    run_ms(w, 1000);
    mu_sim_restart(w->server);
    run_ms(w, 1000);
    /* Nothing is ever sent on the connection of the wait; that of the set notices. */
    (void)call(w, &set, MU_STORE_SET, "k", "1");
    assert_int_equal(call(w, &set, MU_STORE_SET, "k", "1"), 0);
    assert_int_equal(finish(w, &wait), 0);
    close_world(w);
}

static void test_nobody_there_fails_after_connect_ms(void **state)
{
    struct world *w = make_world(PEER_STORE, MU_STORE_TCP_ANY);

    (void)state;
    run_ms(w, 10);
    mu_sim_kill(w->server, MU_SIM_KILL_PROCESS);
    w->config.connect_ms = 3000;
    connect_client(w);
    assert_int_equal(w->failures, 1);
    assert_non_null(strstr(w->why, "cannot connect to server:29500: "));
    assert_non_null(strstr(w->why, "(tried for 3000 ms)"));
    assert_in_range(mu_sim_now_ns(w->sim) / MU_NS_PER_MS, 3000, 3100);
    close_world(w);
}

static void test_server_that_comes_late_is_found(void **state)
{
    struct world *w = make_world(PEER_STORE, MU_STORE_TCP_ANY);
    struct call c;

    (void)state;
    run_ms(w, 10);
    mu_sim_kill(w->server, MU_SIM_KILL_PROCESS);
    w->client = mu_sim_proc_new(
        mu_sim_host_new(w->sim, "client"),
        &(struct mu_sim_program){.name = "client", .start = start_client, .arg = w});
    run_ms(w, 2000);
    assert_false(is_decided(w));
    begin(w, &c, MU_STORE_SET, "k", "1", 0); /* Early ops wait. */
    mu_sim_restart(w->server);
    assert_int_equal(finish(w, &c), 0);
    assert_int_equal(w->ready, 1);
    close_world(w);
}

/* What is around a value may have 16 bytes more. */
static void test_answers_are_so_long_and_no_longer(void **state)
{
    struct world *w = make_world(PEER_STORE, MU_STORE_TCP_TORCH2);
    struct call c;

    (void)state;
    w->config.value_bytes_max = 4;
    connect_client(w);
    assert_int_equal(call(w, &c, MU_STORE_SET, "long", "1234567890123"), 0);
    assert_int_equal(call(w, &c, MU_STORE_SET, "short", "1234"), 0);
    assert_int_equal(call(w, &c, MU_STORE_GET, "long", NULL), MUSTER_ELIMIT);
    assert_int_equal(call(w, &c, MU_STORE_GET, "short", NULL), 0);
    assert_string_equal(c.text, ",1234");
    close_world(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_generation_1_does_every_verb_it_has_or_that_can_be_composed),
        cmocka_unit_test(test_generation_2_does_every_verb),
        cmocka_unit_test(test_generation_is_found_out),
        cmocka_unit_test(test_blocked_waits_do_not_block_a_set),
        cmocka_unit_test(test_timeouts_name_the_missing_keys),
        cmocka_unit_test(test_waits_beyond_the_limit_are_refused),
        cmocka_unit_test(test_cancel_ends_a_wait_and_close_ends_the_rest),
        cmocka_unit_test(test_lost_connection_repeats_reads_and_disclaims_the_rest),
        cmocka_unit_test(test_server_that_stays_away_ends_what_waits),
        cmocka_unit_test(test_answer_that_does_not_come_ends_at_the_timeout),
        cmocka_unit_test(test_peers_that_are_no_store_are_a_mismatch),
        cmocka_unit_test(test_peer_that_closes_on_generation_1_is_greeted_in_2),
        cmocka_unit_test(test_wait_outlives_a_server_that_lost_power),
        cmocka_unit_test(test_nobody_there_fails_after_connect_ms),
        cmocka_unit_test(test_server_that_comes_late_is_found),
        cmocka_unit_test(test_answers_are_so_long_and_no_longer),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
