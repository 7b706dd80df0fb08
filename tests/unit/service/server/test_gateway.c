/* A server whose keys are with another one, in the simulator: what the scenarios do not look at. */
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>

#include <muster/log.h>

#include "core/alloc.h"
#include "service/store/store.h"
#include "service/server/server.h"
#include "sim.h"

#define PORT    29500
#define CLIENTS 4 /* two at the gateway, one at the server, one at a gateway to the gateway */
#define DEEP    3
#define CALLS   40

struct client {
    struct world *world;
    struct mu_sim_proc *proc;
    const char *host;
    struct mu_store *store;
};

struct world {
    struct mu_sim *sim;
    struct mu_sim_proc *procs[3]; /* the server, the gateway, a gateway to that */
    struct mu_store_server *servers[3];
    struct client clients[CLIENTS];
};

static struct world *the_world;

static void server_stopped(void *context, int status, const char *why)
{
    (void)context;
    (void)status;
    (void)why;
}

static const char *backing = "tcp://server?connect=5000";

static int start_server(struct mu_env *env, void *arg)
{
    struct mu_store_server **server = arg;
    struct mu_store_server_config config = mu_store_server_config_defaults();
    struct mu_errmsg msg;

    config.listen = (struct mu_addr){.kind = MU_ADDR_TCP, .port = PORT, .host = "0.0.0.0"};
    config.stopped = server_stopped;
    config.backing = server == &the_world->servers[1]   ? backing
                     : server == &the_world->servers[2] ? "tcp://gateway?connect=5000"
                                                        : NULL;
    return mu_store_server_start(env, &config, server, &msg);
}

static int start_client(struct mu_env *env, void *arg)
{
    struct client *c = arg;
    struct mu_store_tcp_config config = mu_store_tcp_config_defaults();

    config.protocol = MU_STORE_TCP_MUSTER;
    config.addr = (struct mu_addr){.kind = MU_ADDR_TCP, .port = PORT};
    (void)snprintf(config.addr.host, sizeof(config.addr.host), "%s", c->host);
    return mu_store_tcp_new(env, &config, &c->store);
}

static struct world *open_world(void)
{
    static const char *const names[] = {"server", "gateway", "deep"};
    struct mu_sim_config config = {.seed = 7, .faults = mu_sim_faults_none()};
    struct world *w = calloc(1, sizeof(*w));
    char name[16];

    assert_non_null(w);
    the_world = w;
    muster_log_set(NULL, NULL, MUSTER_LOG_ERROR);
    w->sim = mu_sim_new(&config);
    for (size_t i = 0; i < 3; i++) {
        w->procs[i] =
            mu_sim_proc_new(mu_sim_host_new(w->sim, names[i]),
                            &(struct mu_sim_program){
                                .name = names[i], .start = start_server, .arg = &w->servers[i]});
    }
    for (size_t i = 0; i < CLIENTS; i++) {
        w->clients[i] = (struct client){.world = w, .host = names[i == DEEP ? 2 : i < 2 ? 1 : 0]};
        (void)snprintf(name, sizeof(name), "client%zu", i);
        w->clients[i].proc =
            mu_sim_proc_new(mu_sim_host_new(w->sim, name),
                            &(struct mu_sim_program){
                                .name = "client", .start = start_client, .arg = &w->clients[i]});
    }
    mu_sim_run_for(w->sim, MU_NS_PER_S);
    return w;
}

static void close_world(struct world *w)
{
    assert_null(mu_sim_failure(w->sim));
    mu_sim_free(w->sim);
    free(w);
}

/* --- calls ------------------------------------------------------------------------------------ */

struct call {
    struct mu_store_op op;
    struct mu_span key;
    struct mu_span value;
    int ended;
    char text[64];
    char changes[256];
};

static void on_done(struct mu_store_op *op)
{
    struct call *c = MU_CONTAINER_OF(op, struct call, op);

    c->ended++;
    if (op->reply.value_count != 0) {
        (void)snprintf(c->text, sizeof(c->text), "%.*s", (int)op->reply.values[0].len,
                       (const char *)op->reply.values[0].data);
    }
}

static void on_change(struct mu_store_op *op, const struct mu_change *change)
{
    struct call *c = MU_CONTAINER_OF(op, struct call, op);
    size_t n = strlen(c->changes);

    (void)snprintf(c->changes + n, sizeof(c->changes) - n, "%d %.*s %.*s>%.*s\n", (int)change->kind,
                   (int)change->key.len, (const char *)change->key.data, (int)change->old_value.len,
                   (const char *)change->old_value.data, (int)change->value.len,
                   (const char *)change->value.data);
}

static void begin(struct client *client, struct call *c, enum mu_store_verb verb, const char *key,
                  const char *value)
{
    uint32_t flags = c->op.request.flags;
    int64_t number = c->op.request.number;
    uint64_t lease = c->op.request.lease;
    uint32_t timeout_ms = c->op.timeout_ms;

    memset(c, 0, sizeof(*c));
    c->key = mu_span_str(key);
    c->op.request = (struct mu_store_request){.verb = verb,
                                              .flags = flags,
                                              .keys = &c->key,
                                              .key_count = key[0] != '\0',
                                              .number = number,
                                              .lease = lease};
    if (value != NULL) {
        c->value = mu_span_str(value);
        c->op.request.values = &c->value;
        c->op.request.value_count = 1;
    }
    c->op.timeout_ms = timeout_ms;
    c->op.done = on_done;
    c->op.change = on_change;
    mu_store_submit(client->store, &c->op);
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

static int do_it(struct client *client, struct call *c, enum mu_store_verb verb, const char *key,
                 const char *value)
{
    begin(client, c, verb, key, value);
    return finish(client->world, c);
}

static struct mu_store_server_stats stats(struct world *w, int server)
{
    struct mu_store_server_stats s;

    mu_store_server_stats(w->servers[server], &s);
    return s;
}

static void assert_has(const char *text, const char *part)
{
    if (strstr(text, part) == NULL) {
        fail_msg("\"%s\" is not in: %s", part, text);
    }
}

/* --- tests ------------------------------------------------------------------------------------ */

static void test_gateway_serves_the_keys_of_the_other_server(void **state)
{
    struct world *w = open_world();
    struct call c = {0};

    (void)state;
    assert_int_equal(do_it(&w->clients[0], &c, MU_STORE_SET, "k", "v"), 0);
    assert_int_equal(do_it(&w->clients[2], &c, MU_STORE_GET, "k", NULL), 0);
    assert_string_equal(c.text, "v");
    assert_int_equal(do_it(&w->clients[1], &c, MU_STORE_LIST_KEYS, "", NULL), 0);
    assert_string_equal(c.text, "k");
    close_world(w);
}

static void test_gateway_waits_for_one_key_share_a_call(void **state)
{
    static struct call calls[CALLS];
    struct world *w = open_world();
    struct call c = {0};
    uint64_t messages;

    (void)state;
    memset(calls, 0, sizeof(calls));
    for (size_t i = 0; i < CALLS; i++) {
        begin(&w->clients[i % 2], &calls[i], MU_STORE_WAIT, "later", NULL);
    }
    mu_sim_run_for(w->sim, MU_NS_PER_S);
    assert_int_equal(stats(w, 0).waits, 1);
    assert_int_equal(stats(w, 0).connections, 2); /* the gateway's, and that of the last client */
    messages = stats(w, 0).messages_in;
    mu_sim_run_for(w->sim, 4 * MU_NS_PER_S);
    /* Nothing but the lease, for what will be held when they end. */
    assert_in_range(stats(w, 0).messages_in, messages + 3, messages + 5);
    /* Who is gone waits for nothing; the others wait on. */
    mu_sim_kill(w->clients[0].proc, MU_SIM_KILL_PROCESS);
    mu_sim_run_for(w->sim, 12 * MU_NS_PER_S); /* its session's grace, and a little */
    assert_int_equal(stats(w, 0).waits, 1);
    assert_int_equal(do_it(&w->clients[2], &c, MU_STORE_SET, "later", "v"), 0);
    mu_sim_run_for(w->sim, MU_NS_PER_S);
    for (size_t i = 1; i < CALLS; i += 2) {
        assert_true(calls[i].ended == 1 && calls[i].op.status == 0);
    }
    close_world(w);
}

static void test_gateway_answers_for_keys_until_they_change(void **state)
{
    struct world *w = open_world();
    struct call c = {0};
    uint64_t messages;

    (void)state;
    assert_int_equal(do_it(&w->clients[2], &c, MU_STORE_SET, "k", "v"), 0);
    assert_int_equal(do_it(&w->clients[0], &c, MU_STORE_GET, "k", NULL), 0);
    messages = stats(w, 0).messages_in;
    for (size_t i = 0; i < CALLS; i++) {
        assert_int_equal(do_it(&w->clients[i % 2], &c, MU_STORE_GET, "k", NULL), 0);
        assert_string_equal(c.text, "v");
    }
    assert_int_equal(stats(w, 0).messages_in, messages);
    assert_int_equal(do_it(&w->clients[2], &c, MU_STORE_SET, "k", "new"), 0);
    assert_int_equal(do_it(&w->clients[1], &c, MU_STORE_GET, "k", NULL), 0);
    assert_string_equal(c.text, "new");
    assert_int_equal(do_it(&w->clients[0], &c, MU_STORE_SET, "k", "newer"), 0);
    assert_int_equal(do_it(&w->clients[1], &c, MU_STORE_GET, "k", NULL), 0);
    assert_string_equal(c.text, "newer");
    close_world(w);
}

static void test_gateway_lends_what_it_holds(void **state)
{
    struct world *w = open_world();
    struct call c = {0};
    uint64_t messages[2];

    (void)state;
    assert_int_equal(do_it(&w->clients[2], &c, MU_STORE_SET, "k", "v"), 0);
    assert_int_equal(do_it(&w->clients[DEEP], &c, MU_STORE_GET, "k", NULL), 0);
    messages[0] = stats(w, 0).messages_in;
    messages[1] = stats(w, 1).messages_in;
    for (size_t i = 0; i < CALLS; i++) {
        assert_int_equal(do_it(&w->clients[DEEP], &c, MU_STORE_GET, "k", NULL), 0);
        assert_string_equal(c.text, "v");
    }
    assert_int_equal(stats(w, 0).messages_in, messages[0]);
    assert_int_equal(stats(w, 1).messages_in, messages[1]);
    assert_int_equal(stats(w, 1).holds, 1);
    /* Changes at the server, at the gateway, and behind it. */
    assert_int_equal(do_it(&w->clients[2], &c, MU_STORE_SET, "k", "new"), 0);
    assert_int_equal(stats(w, 1).holds, 0);
    assert_int_equal(do_it(&w->clients[DEEP], &c, MU_STORE_GET, "k", NULL), 0);
    assert_string_equal(c.text, "new");
    assert_int_equal(do_it(&w->clients[0], &c, MU_STORE_SET, "k", "newer"), 0);
    assert_int_equal(do_it(&w->clients[DEEP], &c, MU_STORE_GET, "k", NULL), 0);
    assert_string_equal(c.text, "newer");
    assert_int_equal(do_it(&w->clients[1], &c, MU_STORE_GET, "k", NULL), 0);
    assert_int_equal(do_it(&w->clients[DEEP], &c, MU_STORE_SET, "k", "newest"), 0);
    assert_int_equal(do_it(&w->clients[1], &c, MU_STORE_GET, "k", NULL), 0);
    assert_string_equal(c.text, "newest");
    close_world(w);
}

/* What is lent is over with the lease of who lent it, and not with its process. */
static void test_gateway_that_dies_has_lent_for_a_lease(void **state)
{
    struct world *w = open_world();
    struct call get = {0};
    struct call set = {0};

    (void)state;
    assert_int_equal(do_it(&w->clients[2], &set, MU_STORE_SET, "k", "v"), 0);
    assert_int_equal(do_it(&w->clients[DEEP], &get, MU_STORE_GET, "k", NULL), 0);
    mu_sim_kill(w->procs[1], MU_SIM_KILL_PROCESS);
    begin(&w->clients[2], &set, MU_STORE_SET, "k", "new");
    mu_sim_run_for(w->sim, MU_NS_PER_S);
    assert_int_equal(set.ended, 0);
    assert_int_equal(do_it(&w->clients[DEEP], &get, MU_STORE_GET, "k", NULL), 0);
    assert_string_equal(get.text, "v");
    mu_sim_run_for(w->sim, 1300 * MU_NS_PER_MS);
    assert_int_equal(set.ended, 1);
    assert_int_equal(set.op.status, 0);
    /* A gateway that has lent nothing holds nothing when it is dead. */
    mu_sim_restart(w->procs[1]);
    mu_sim_kill(w->procs[2], MU_SIM_KILL_PROCESS);
    mu_sim_run_for(w->sim, 5 * MU_NS_PER_S);
    assert_int_equal(do_it(&w->clients[1], &get, MU_STORE_GET, "k", NULL), 0);
    assert_string_equal(get.text, "new");
    mu_sim_kill(w->procs[1], MU_SIM_KILL_PROCESS);
    begin(&w->clients[2], &set, MU_STORE_SET, "k", "newer");
    mu_sim_run_for(w->sim, 200 * MU_NS_PER_MS);
    assert_int_equal(set.ended, 1);
    close_world(w);
}

/* With hold=no every operation is passed on by itself. */
static void test_gateway_passes_on_what_it_may_not_hold(void **state)
{
    struct call c = {0};
    struct world *w;
    uint64_t messages;

    (void)state;
    backing = "tcp://server?connect=5000&hold=no";
    w = open_world();
    assert_int_equal(do_it(&w->clients[2], &c, MU_STORE_SET, "k", "v"), 0);
    messages = stats(w, 0).messages_in;
    for (size_t i = 0; i < CALLS; i++) {
        assert_int_equal(do_it(&w->clients[0], &c, MU_STORE_GET, "k", NULL), 0);
    }
    assert_int_equal(stats(w, 0).messages_in, messages + CALLS);
    close_world(w);
    backing = "tcp://server?connect=5000";
}

/* Meets BLOCKED_MAX of service/server/gateway_server.c. */
static void test_gateway_lets_so_many_wait(void **state)
{
    enum { WAITS = 32768 };
    struct call *calls = calloc(WAITS, sizeof(*calls));
    struct call c = {0};
    struct world *w;

    (void)state;
    backing = "tcp://server?connect=5000&hold=no";
    w = open_world();
    assert_non_null(calls);
    for (size_t i = 0; i < WAITS; i++) {
        begin(&w->clients[0], &calls[i], MU_STORE_WAIT, "later", NULL);
    }
    mu_sim_run_for(w->sim, 5 * MU_NS_PER_S);
    assert_int_equal(stats(w, 0).waits, WAITS);
    assert_int_equal(do_it(&w->clients[1], &c, MU_STORE_WAIT, "later", NULL), MUSTER_ELIMIT);
    assert_has(c.op.errmsg.text, "too many operations wait through this server");
    /* What does not wait is served, and makes room. */
    assert_int_equal(do_it(&w->clients[1], &c, MU_STORE_SET, "later", "v"), 0);
    mu_sim_run_for(w->sim, 5 * MU_NS_PER_S);
    for (size_t i = 0; i < WAITS; i++) {
        assert_true(calls[i].ended == 1 && calls[i].op.status == 0);
    }
    assert_int_equal(do_it(&w->clients[1], &c, MU_STORE_WAIT, "later", NULL), 0);
    close_world(w);
    backing = "tcp://server?connect=5000";
    free(calls);
}

static void test_gateway_lets_the_other_server_say_what_was_missing(void **state)
{
    struct world *w = open_world();
    struct call c = {.op.timeout_ms = 300};

    (void)state;
    assert_int_equal(do_it(&w->clients[0], &c, MU_STORE_WAIT, "never", NULL), MUSTER_ETIMEDOUT);
    assert_string_equal(c.op.errmsg.text, "timed out waiting for 1 key: \"never\"");
    mu_sim_run_for(w->sim, MU_NS_PER_S);
    assert_int_equal(stats(w, 0).waits, 0);
    close_world(w);
}

static void test_gateway_names_a_server_that_is_lost_and_finds_it_again(void **state)
{
    struct world *w = open_world();
    struct call c = {0};

    (void)state;
    mu_sim_kill(w->procs[0], MU_SIM_KILL_PROCESS);
    assert_int_equal(do_it(&w->clients[0], &c, MU_STORE_SET, "k", "v"), MUSTER_ECONN);
    assert_has(c.op.errmsg.text, "server:29500");
    mu_sim_restart(w->procs[0]);
    mu_sim_run_for(w->sim, 3 * MU_NS_PER_S);
    assert_int_equal(do_it(&w->clients[0], &c, MU_STORE_SET, "k", "v"), 0);
    close_world(w);
}

static void test_gateway_holds_what_comes_before_the_server(void **state)
{
    struct world *w = open_world();
    struct call c = {0};

    (void)state;
    mu_sim_kill(w->procs[0], MU_SIM_KILL_PROCESS);
    mu_sim_kill(w->procs[1], MU_SIM_KILL_PROCESS);
    mu_sim_restart(w->procs[1]);
    mu_sim_run_for(w->sim, MU_NS_PER_S); /* The client has found the new one. */
    begin(&w->clients[0], &c, MU_STORE_SET, "k", "v");
    mu_sim_run_for(w->sim, MU_NS_PER_S);
    assert_int_equal(c.ended, 0);
    mu_sim_restart(w->procs[0]);
    assert_int_equal(finish(w, &c), 0);
    close_world(w);
}

static void test_gateway_keys_of_a_session_end_with_it(void **state)
{
    struct world *w = open_world();
    struct call c = {.op.request.lease = MU_LEASE_SESSION};

    (void)state;
    assert_int_equal(do_it(&w->clients[0], &c, MU_STORE_SET, "mine", "v"), 0);
    c.op.request.lease = 0;
    mu_sim_run_for(w->sim, 30 * MU_NS_PER_S); /* longer than the lease that the gateway keeps */
    assert_int_equal(do_it(&w->clients[2], &c, MU_STORE_CHECK, "mine", NULL), 0);
    assert_int_equal(c.op.reply.number, 1);
    mu_sim_kill(w->clients[0].proc, MU_SIM_KILL_PROCESS);
    mu_sim_run_for(w->sim, 12 * MU_NS_PER_S); /* its session's grace, and a little */
    assert_int_equal(do_it(&w->clients[2], &c, MU_STORE_CHECK, "mine", NULL), 0);
    assert_int_equal(c.op.reply.number, 0);
    close_world(w);
}

static void test_gateway_passes_leases_on(void **state)
{
    struct world *w = open_world();
    struct call c = {.op.request.number = 1000};
    uint64_t lease;

    (void)state;
    assert_int_equal(do_it(&w->clients[0], &c, MU_STORE_LEASE_GRANT, "", NULL), 0);
    lease = (uint64_t)c.op.reply.number;
    c = (struct call){.op.request.lease = lease};
    assert_int_equal(do_it(&w->clients[1], &c, MU_STORE_SET, "k", "v"), 0);
    assert_int_equal(do_it(&w->clients[2], &c, MU_STORE_LEASE_REVOKE, "", NULL), 0);
    assert_int_equal(c.op.reply.number, 1);
    close_world(w);
}

static void test_gateway_barrier_lets_all_go_at_once(void **state)
{
    struct world *w = open_world();
    struct call calls[CLIENTS];

    (void)state;
    for (size_t i = 0; i < CLIENTS; i++) {
        calls[i] = (struct call){.op.request.number = CLIENTS};
        begin(&w->clients[i], &calls[i], MU_STORE_BARRIER, "b", NULL);
        mu_sim_run_for(w->sim, MU_NS_PER_S);
        assert_int_equal(calls[0].ended, i == CLIENTS - 1);
    }
    for (size_t i = 0; i < CLIENTS; i++) {
        assert_int_equal(finish(w, &calls[i]), 0);
    }
    close_world(w);
}

static void test_gateway_watch_tells_what_was_there_before_if_asked(void **state)
{
    struct world *w = open_world();
    struct call watches[2] = {{.op.request.flags = MU_STORE_OLD}, {.op.request.flags = 0}};
    struct call c = {0};

    (void)state;
    begin(&w->clients[0], &watches[0], MU_STORE_WATCH, "k", NULL);
    begin(&w->clients[1], &watches[1], MU_STORE_WATCH, "k", NULL);
    mu_sim_run_for(w->sim, MU_NS_PER_S);
    assert_int_equal(do_it(&w->clients[2], &c, MU_STORE_SET, "k", "one"), 0);
    assert_int_equal(do_it(&w->clients[2], &c, MU_STORE_SET, "k", "two"), 0);
    mu_sim_run_for(w->sim, MU_NS_PER_S);
    assert_string_equal(watches[0].changes, "1 k >one\n2 k one>two\n");
    assert_string_equal(watches[1].changes, "1 k >one\n2 k >two\n");
    /* The server forgets it: a watch does not go on as if nothing was. */
    mu_sim_kill(w->procs[0], MU_SIM_KILL_PROCESS);
    mu_sim_restart(w->procs[0]);
    assert_int_equal(finish(w, &watches[0]), MUSTER_ESESSION);
    assert_int_equal(finish(w, &watches[1]), MUSTER_ESESSION);
    close_world(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gateway_serves_the_keys_of_the_other_server),
        cmocka_unit_test(test_gateway_waits_for_one_key_share_a_call),
        cmocka_unit_test(test_gateway_answers_for_keys_until_they_change),
        cmocka_unit_test(test_gateway_lends_what_it_holds),
        cmocka_unit_test(test_gateway_that_dies_has_lent_for_a_lease),
        cmocka_unit_test(test_gateway_passes_on_what_it_may_not_hold),
        cmocka_unit_test(test_gateway_lets_so_many_wait),
        cmocka_unit_test(test_gateway_lets_the_other_server_say_what_was_missing),
        cmocka_unit_test(test_gateway_names_a_server_that_is_lost_and_finds_it_again),
        cmocka_unit_test(test_gateway_holds_what_comes_before_the_server),
        cmocka_unit_test(test_gateway_keys_of_a_session_end_with_it),
        cmocka_unit_test(test_gateway_passes_leases_on),
        cmocka_unit_test(test_gateway_barrier_lets_all_go_at_once),
        cmocka_unit_test(test_gateway_watch_tells_what_was_there_before_if_asked),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
