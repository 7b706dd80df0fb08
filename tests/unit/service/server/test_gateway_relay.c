/* Gateways behind relays, in the simulator: what the scenarios do not look at. */
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>

#include <muster/log.h>

#include "service/server/gateway.h"
#include "service/server/server.h"
#include "service/store/store.h"
#include "service/wire/carry.h"
#include "sim.h"

#define PORT    29500
#define SERVERS 4 /* the server, two relays, a gateway behind them */
#define BEHIND  3
#define CLIENTS 2 /* behind the relays; at the server */
#define ADDS    200

struct client {
    const char *host;
    struct mu_store *store;
};

struct world {
    struct mu_sim *sim;
    struct mu_sim_proc *procs[SERVERS];
    struct mu_store_server *servers[SERVERS];
    struct client clients[CLIENTS];
};

static struct world *the_world;
static const char *behind_url;

static void server_stopped(void *context, int status, const char *why)
{
    (void)context;
    (void)status;
    (void)why;
}

static int start_server(struct mu_env *env, void *arg)
{
    struct mu_store_server **server = arg;
    struct mu_store_server_config config = mu_store_server_config_defaults();
    struct mu_errmsg msg;

    config.listen = (struct mu_addr){.kind = MU_ADDR_TCP, .port = PORT, .host = "0.0.0.0"};
    config.stopped = server_stopped;
    config.backing = server == &the_world->servers[BEHIND] ? behind_url
                     : server == &the_world->servers[0]    ? NULL
                                                           : "tcp://server?connect=5000";
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

static struct world *open_world(const char *url)
{
    static const char *const names[SERVERS] = {"server", "relay0", "relay1", "behind"};
    struct mu_sim_config config = {.seed = 11, .faults = mu_sim_faults_none()};
    struct world *w = calloc(1, sizeof(*w));

    assert_non_null(w);
    the_world = w;
    behind_url = url;
    muster_log_set(NULL, NULL, MUSTER_LOG_ERROR);
    w->sim = mu_sim_new(&config);
    for (size_t i = 0; i < SERVERS; i++) {
        w->procs[i] =
            mu_sim_proc_new(mu_sim_host_new(w->sim, names[i]),
                            &(struct mu_sim_program){
                                .name = names[i], .start = start_server, .arg = &w->servers[i]});
    }
    for (size_t i = 0; i < CLIENTS; i++) {
        w->clients[i].host = names[i == 0 ? BEHIND : 0];
        (void)mu_sim_proc_new(mu_sim_host_new(w->sim, i == 0 ? "client0" : "client1"),
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

struct call {
    struct mu_store_op op;
    struct mu_span key;
    struct mu_span value;
    int ended;
    int64_t number;
    char text[64];
};

static void on_done(struct mu_store_op *op)
{
    struct call *c = MU_CONTAINER_OF(op, struct call, op);

    c->ended++;
    c->number = op->reply.number;
    if (op->reply.value_count != 0) {
        (void)snprintf(c->text, sizeof(c->text), "%.*s", (int)op->reply.values[0].len,
                       (const char *)op->reply.values[0].data);
    }
}

static bool has_ended(void *arg)
{
    return ((struct call *)arg)->ended != 0;
}

static void begin(struct world *w, size_t client, struct call *c, enum mu_store_verb verb,
                  const char *value)
{
    *c = (struct call){.key = MU_SPAN_LIT("k"), .op.done = on_done};
    c->value = mu_span_str(value == NULL ? "" : value);
    c->op.request = (struct mu_store_request){.verb = verb,
                                              .keys = &c->key,
                                              .key_count = 1,
                                              .values = &c->value,
                                              .value_count = value != NULL,
                                              .number = 1};
    mu_store_submit(w->clients[client].store, &c->op);
}

static struct call do_it(struct world *w, size_t client, enum mu_store_verb verb, const char *value)
{
    static struct call c;

    begin(w, client, &c, verb, value);
    assert_true(mu_sim_run_until(w->sim, 60 * MU_NS_PER_S, has_ended, &c));
    assert_int_equal(c.op.status, 0);
    return c;
}

static struct mu_store_server_stats stats(struct world *w, int server)
{
    struct mu_store_server_stats s;

    mu_store_server_stats(w->servers[server], &s);
    return s;
}

static const char *const both = "tcp://server?connect=5000&via=relay0,relay1";

/* The server has a connection for a relay and one for all that it carries, and the sessions of
 * all. */
static void test_gateway_relay_reads_for_its_children_and_carries_their_changes(void **state)
{
    struct world *w = open_world(both);
    uint64_t messages;

    (void)state;
    assert_int_equal(stats(w, 0).connections, 5); /* and the one that is carried */
    assert_int_equal(stats(w, 1).carried, 1);
    assert_int_equal(stats(w, 2).carried, 0);
    (void)do_it(w, 0, MU_STORE_SET, "v");
    assert_string_equal(do_it(w, 0, MU_STORE_GET, NULL).text, "v");
    assert_int_equal(stats(w, 1).holds, 1);
    messages = stats(w, 0).messages_in;
    for (size_t i = 0; i < 20; i++) {
        assert_string_equal(do_it(w, 0, MU_STORE_GET, NULL).text, "v");
    }
    assert_in_range(stats(w, 0).messages_in, messages, messages + 1);
    /* Changes, by others and by its own clients, come back by way of the relay. */
    (void)do_it(w, 1, MU_STORE_SET, "new");
    assert_int_equal(stats(w, 1).holds, 0);
    assert_string_equal(do_it(w, 0, MU_STORE_GET, NULL).text, "new");
    (void)do_it(w, 0, MU_STORE_SET, "newer");
    assert_string_equal(do_it(w, 1, MU_STORE_GET, NULL).text, "newer");
    assert_string_equal(do_it(w, 0, MU_STORE_GET, NULL).text, "newer");
    close_world(w);
}

/* ADDs, while the relays are killed in turn: each is made once, and none fails. */
static void test_gateway_relay_that_is_lost_costs_a_reconnect(void **state)
{
    struct world *w = open_world(both);
    struct call add;
    int64_t sum = 0;

    (void)state;
    for (int64_t i = 0; i < ADDS; i++) {
        size_t relay = 1 + (size_t)(i / 20) % 2;

        begin(w, 0, &add, MU_STORE_ADD, NULL);
        if (i % 20 == 7) {
            mu_sim_run_for(w->sim, (uint64_t)i * 20000);
            mu_sim_kill(w->procs[relay], i % 40 == 7 ? MU_SIM_KILL_PROCESS : MU_SIM_KILL_POWER);
        }
        assert_true(mu_sim_run_until(w->sim, 60 * MU_NS_PER_S, has_ended, &add));
        assert_int_equal(add.op.status, 0);
        assert_int_equal(add.number, i + 1);
        sum = add.number;
        if (i % 20 == 7) {
            mu_sim_restart(w->procs[relay]);
        }
    }
    assert_int_equal(sum, ADDS);
    assert_string_equal(do_it(w, 1, MU_STORE_GET, NULL).text, "200");
    close_world(w);
}

static void test_gateway_relays_that_are_all_lost_are_not_needed(void **state)
{
    struct world *w = open_world(both);

    (void)state;
    (void)do_it(w, 0, MU_STORE_SET, "v");
    mu_sim_kill(w->procs[1], MU_SIM_KILL_POWER);
    mu_sim_kill(w->procs[2], MU_SIM_KILL_POWER);
    assert_string_equal(do_it(w, 0, MU_STORE_GET, NULL).text, "v");
    (void)do_it(w, 0, MU_STORE_SET, "new");
    mu_sim_run_for(w->sim, 20 * MU_NS_PER_S);
    assert_string_equal(do_it(w, 0, MU_STORE_GET, NULL).text, "new");
    assert_int_equal(stats(w, 0).holds, 1); /* by the gateway itself */
    close_world(w);
}

/* Somebody who carries nothing says so by hanging up. */
static void test_gateway_relay_that_is_none_is_left_out(void **state)
{
    struct world *w = open_world("tcp://server?connect=5000&via=server,nowhere");

    (void)state;
    (void)do_it(w, 0, MU_STORE_SET, "v");
    assert_string_equal(do_it(w, 0, MU_STORE_GET, NULL).text, "v");
    (void)do_it(w, 1, MU_STORE_SET, "new");
    assert_string_equal(do_it(w, 0, MU_STORE_GET, NULL).text, "new");
    close_world(w);
}

/* MU_CARRY_RELAYS_MAX of them. */
static void test_gateway_relays_are_named_in_the_url(void **state)
{
    struct mu_errmsg msg;

    (void)state;
    assert_int_equal(mu_gateway_check("tcp://server?via=a,b:1,[::1]:2,d", &msg), 0);
    assert_int_equal(mu_gateway_check("tcp://server?via=a,b,c,d,e", &msg), MUSTER_EURL);
    assert_int_equal(MU_CARRY_RELAYS_MAX, 4);
    assert_non_null(strstr(msg.text, "more than 4 relays"));
    assert_int_equal(mu_gateway_check("tcp://server?via=a:b", &msg), MUSTER_EURL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gateway_relay_reads_for_its_children_and_carries_their_changes),
        cmocka_unit_test(test_gateway_relay_that_is_lost_costs_a_reconnect),
        cmocka_unit_test(test_gateway_relays_that_are_all_lost_are_not_needed),
        cmocka_unit_test(test_gateway_relay_that_is_none_is_left_out),
        cmocka_unit_test(test_gateway_relays_are_named_in_the_url),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
