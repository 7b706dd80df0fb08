/* Nodes behind relays, in the simulator: which way their sessions go, and that a relay that is lost
 * or silent costs no round. */
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>

#include <muster/log.h>

#include "service/rdzv/rdzv.h"
#include "service/server/server.h"
#include "sim.h"

#define PORT    29400
#define SERVERS 3 /* the server, two relays */
#define NODES   2

struct node {
    struct mu_rdzv_handler *handler;
    unsigned assigned, ended, failed;
    unsigned entered;
    unsigned left_relays; /* how often it says so */
    char connected[160];
};

static struct world {
    struct mu_sim *sim;
    struct mu_sim_proc *procs[SERVERS];
    struct mu_store_server *servers[SERVERS];
    struct node nodes[NODES];
} w;

/* --- servers ---------------------------------------------------------------------------------- */

static void on_stopped(void *context, int status, const char *why)
{
    (void)context;
    (void)status;
    (void)why;
}

static int start_server(struct mu_env *env, void *arg)
{
    struct mu_store_server_config config = mu_store_server_config_defaults();
    struct mu_errmsg msg;

    config.listen = (struct mu_addr){.kind = MU_ADDR_TCP, .port = PORT, .host = "0.0.0.0"};
    config.stopped = on_stopped;
    config.backing = arg == &w.servers[0] ? NULL : "tcp://server:29400";
    return mu_store_server_start(env, &config, arg, &msg);
}

static uint64_t carried(int server)
{
    struct mu_store_server_stats stats;

    mu_store_server_stats(w.servers[server], &stats);
    return stats.carried;
}

static uint64_t connections(void)
{
    struct mu_store_server_stats stats;

    mu_store_server_stats(w.servers[0], &stats);
    return stats.connections;
}

/* --- nodes ------------------------------------------------------------------------------------ */

static void on_assigned(void *context, const struct mu_rdzv_assignment *a)
{
    assert_int_equal(a->world, NODES);
    ((struct node *)context)->assigned++;
}

static void on_ended(void *context, const struct mu_rdzv_ending *ending)
{
    (void)ending;
    ((struct node *)context)->ended++;
}

static void on_waiting(void *context, uint32_t count)
{
    (void)context;
    (void)count;
}

static void on_nothing(void *context)
{
    (void)context;
}

static void on_failed(void *context, int status, const char *text)
{
    (void)status;
    (void)text;
    ((struct node *)context)->failed++;
}

static void on_record(void *context, const struct mu_rdzv_record *record)
{
    struct node *n = context;

    if (strcmp(record->name, "muster.connected") == 0) {
        (void)snprintf(n->connected, sizeof(n->connected), "%s", record->message);
    }
    n->entered += strcmp(record->name, "muster.entered") == 0 ? 1 : 0;
    n->left_relays += strcmp(record->name, "muster.relay") == 0 ? 1 : 0;
}

static const char *the_config;
static uint32_t the_minimum;

static int start_node(struct mu_env *env, void *arg)
{
    const struct mu_rdzv_params params = {.backend = "muster",
                                          .endpoint = "server:29400",
                                          .run_id = "run",
                                          .nodes_min = the_minimum,
                                          .nodes_max = the_minimum,
                                          .config = the_config};
    struct node *n = arg;
    const struct mu_rdzv_events events = {.assigned = on_assigned,
                                          .ended = on_ended,
                                          .waiting = on_waiting,
                                          .closed = on_nothing,
                                          .failed = on_failed,
                                          .left = on_nothing,
                                          .close_failed = on_failed,
                                          .record = on_record,
                                          .freed = on_nothing,
                                          .context = n};
    struct mu_errmsg msg;

    if (mu_rdzv_open(env, &params, &events, &n->handler, &msg) == 0) {
        mu_rdzv_join(n->handler);
    }
    return 0;
}

static bool are_in(void *arg)
{
    (void)arg;
    return w.nodes[0].entered == 1 && w.nodes[1].entered == 1 &&
           (the_minimum > NODES || (w.nodes[0].assigned == 1 && w.nodes[1].assigned == 1));
}

/* A world in which so many of the servers run, and the nodes are in a round, or wait for more. */
static void open_world(int servers, uint32_t minimum, const char *config)
{
    static const char *const names[] = {"server", "relay0", "relay1", "node0", "node1"};
    struct mu_sim_config sim = {.seed = 7, .faults = mu_sim_faults_none()};

    w = (struct world){.sim = mu_sim_new(&sim)};
    the_config = config;
    the_minimum = minimum;
    muster_log_set(NULL, NULL, MUSTER_LOG_ERROR);
    for (int i = 0; i < SERVERS; i++) {
        struct mu_sim_host *host = mu_sim_host_new(w.sim, names[i]);

        w.procs[i] = i >= servers
                         ? NULL
                         : mu_sim_proc_new(host, &(struct mu_sim_program){.name = names[i],
                                                                          .start = start_server,
                                                                          .arg = &w.servers[i]});
    }
    for (int i = 0; i < NODES; i++) {
        (void)mu_sim_proc_new(
            mu_sim_host_new(w.sim, names[SERVERS + i]),
            &(struct mu_sim_program){.name = "node", .start = start_node, .arg = &w.nodes[i]});
    }
    assert_true(mu_sim_run_until(w.sim, 60 * MU_NS_PER_S, are_in, NULL));
}

/* No node has lost anything. */
static void close_world(void)
{
    for (int i = 0; i < NODES; i++) {
        assert_int_equal(w.nodes[i].assigned, the_minimum > NODES ? 0 : 1);
        assert_int_equal(w.nodes[i].entered, 1);
        assert_int_equal(w.nodes[i].ended, 0);
        assert_int_equal(w.nodes[i].failed, 0);
    }
    assert_null(mu_sim_failure(w.sim));
    mu_sim_free(w.sim);
}

static const char both[] = "via=relay0:29400, relay1:29400,beat=0.5";

/* --- tests ------------------------------------------------------------------------------------ */

static void test_rdzv_via_relays_carry_the_sessions_of_nodes(void **state)
{
    (void)state;
    open_world(SERVERS, NODES, both);
    assert_string_equal(w.nodes[1].connected, "connected to server:29400 by way of relay0:29400");
    assert_int_equal(carried(1), NODES);
    assert_int_equal(carried(2), 0);
    mu_sim_run_for(w.sim, 60 * MU_NS_PER_S);
    assert_int_equal(w.nodes[0].left_relays, 0);
    close_world();
}

static void test_rdzv_via_a_relay_that_is_lost_costs_no_round(void **state)
{
    (void)state;
    open_world(SERVERS, NODES, both);
    mu_sim_kill(w.procs[1], MU_SIM_KILL_PROCESS);
    mu_sim_run_for(w.sim, MU_NS_PER_S);
    assert_int_equal(carried(2), NODES);
    mu_sim_kill(w.procs[2], MU_SIM_KILL_PROCESS);
    mu_sim_run_for(w.sim, 10 * MU_NS_PER_S);
    assert_int_equal(connections(), NODES); /* their own */
    close_world();
}

static void test_rdzv_via_a_silent_relay_is_left_before_the_fence(void **state)
{
    (void)state;
    open_world(SERVERS, NODES, both);
    mu_sim_pause(w.procs[1], 30 * MU_NS_PER_S);
    mu_sim_run_for(w.sim, 2500 * MU_NS_PER_MS);
    assert_int_equal(carried(2), NODES);
    assert_int_equal(w.nodes[0].left_relays, 1);
    mu_sim_run_for(w.sim, 60 * MU_NS_PER_S);
    assert_int_equal(carried(2), NODES);
    assert_int_equal(w.nodes[0].left_relays, 1);
    close_world();
}

/* Where it is the server that is silent, one relay is left, and not one after the other. The nodes
 * wait for a third one, so that there is no fence. */
static void test_rdzv_via_of_a_silent_server_one_relay_is_left(void **state)
{
    (void)state;
    open_world(SERVERS, NODES + 1, both);
    mu_sim_pause(w.procs[0], 2900 * MU_NS_PER_MS);
    mu_sim_run_for(w.sim, 10 * MU_NS_PER_S);
    assert_int_equal(w.nodes[0].left_relays, 1);
    assert_int_equal(carried(2), NODES);
    close_world();
}

static void test_rdzv_via_relays_that_are_not_there_cost_no_more_than_a_dial(void **state)
{
    (void)state;
    open_world(1, NODES, both);
    assert_string_equal(w.nodes[0].connected, "connected to server:29400");
    close_world();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rdzv_via_relays_carry_the_sessions_of_nodes),
        cmocka_unit_test(test_rdzv_via_a_relay_that_is_lost_costs_no_round),
        cmocka_unit_test(test_rdzv_via_a_silent_relay_is_left_before_the_fence),
        cmocka_unit_test(test_rdzv_via_of_a_silent_server_one_relay_is_left),
        cmocka_unit_test(test_rdzv_via_relays_that_are_not_there_cost_no_more_than_a_dial),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
