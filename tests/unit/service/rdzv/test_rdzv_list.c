/* The list of members of a large round, in the simulator: nodes take it from the store, by a relay
 * if they have one, and take nothing for it that is something else. */
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>

#include <muster/log.h>

#include "codec/rdzv/msg.h"
#include "service/rdzv/muster.h"
#include "service/server/rdzv_hub_internal.h"
#include "service/server/server_internal.h"
#include "sim.h"

#define PORT    29400
#define SERVERS 2 /* the server and a relay */
#define NODES   (MU_RDZV_FEW + 2)

struct node {
    uint32_t number;
    struct mu_rdzv_handler *handler;
    unsigned assigned, ended, freed;
    size_t members;
    bool good; /* each has its name */
};

static struct world {
    struct mu_sim *sim;
    struct mu_sim_proc *procs[SERVERS];
    struct mu_store_server *servers[SERVERS];
    struct mu_sim_proc *node_procs[NODES];
    struct node nodes[NODES];
    unsigned assigned;
    bool relayed;
} w;

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

static struct mu_store_server_stats stats(int server)
{
    struct mu_store_server_stats s;

    mu_store_server_stats(w.servers[server], &s);
    return s;
}

/* --- nodes ------------------------------------------------------------------------------------ */

static void name_of(uint32_t number, char *name, size_t cap)
{
    (void)snprintf(name, cap, "n%03u", (unsigned)number);
}

static void on_assigned(void *context, const struct mu_rdzv_assignment *a)
{
    struct node *n = context;

    n->assigned++;
    w.assigned++;
    n->members = a->member_count;
    n->good = true;
    for (uint32_t i = 0; i < a->member_count; i++) {
        char name[16];

        name_of(i, name, sizeof(name));
        n->good = n->good && strcmp(a->members[i].name, name) == 0;
    }
}

static void on_ended(void *context, const struct mu_rdzv_ending *ending)
{
    struct node *n = context;

    (void)ending;
    assert_int_equal(n->assigned, 1); /* never before */
    n->ended++;
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

static void on_freed(void *context)
{
    ((struct node *)context)->freed++;
}

static void on_failed(void *context, int status, const char *text)
{
    (void)context;
    fail_msg("%s: %s", muster_errname(status), text);
}

static int start_node(struct mu_env *env, void *arg)
{
    struct node *n = arg;
    char config[128];
    char name[16];
    const struct mu_rdzv_params params = {.backend = "muster",
                                          .endpoint = "server:29400",
                                          .run_id = "run",
                                          .nodes_min = NODES - 1,
                                          .nodes_max = NODES,
                                          .config = config};
    const struct mu_rdzv_events events = {.assigned = on_assigned,
                                          .ended = on_ended,
                                          .waiting = on_waiting,
                                          .closed = on_nothing,
                                          .failed = on_failed,
                                          .left = on_nothing,
                                          .close_failed = on_failed,
                                          .freed = on_freed,
                                          .context = n};
    struct mu_errmsg msg;

    name_of(n->number, name, sizeof(name));
    (void)snprintf(config, sizeof(config), "is_host=false,members=true,name=%s%s", name,
                   w.relayed && n->number != NODES - 1 ? ",via=relay:29400" : "");
    if (mu_rdzv_open(env, &params, &events, &n->handler, &msg) == 0) {
        mu_rdzv_join(n->handler);
    }
    return 0;
}

static void open_world(bool relayed)
{
    static const char *const names[] = {"server", "relay"};
    struct mu_sim_config sim = {.seed = 3, .faults = mu_sim_faults_none()};

    w = (struct world){.sim = mu_sim_new(&sim), .relayed = relayed};
    muster_log_set(NULL, NULL, MUSTER_LOG_ERROR);
    for (int i = 0; i < SERVERS; i++) {
        w.procs[i] =
            mu_sim_proc_new(mu_sim_host_new(w.sim, names[i]),
                            &(struct mu_sim_program){
                                .name = names[i], .start = start_server, .arg = &w.servers[i]});
    }
    for (uint32_t i = 0; i < NODES; i++) {
        char host[16];

        w.nodes[i].number = i;
        (void)snprintf(host, sizeof(host), "h%u", (unsigned)i);
        w.node_procs[i] = mu_sim_proc_new(
            mu_sim_host_new(w.sim, host),
            &(struct mu_sim_program){.name = "node", .start = start_node, .arg = &w.nodes[i]});
    }
}

static void close_world(void)
{
    assert_null(mu_sim_failure(w.sim));
    mu_sim_free(w.sim);
}

static bool is_formed(void *arg)
{
    (void)arg;
    return w.servers[0] != NULL && stats(0).rounds == 1;
}

static bool all_are_assigned(void *arg)
{
    (void)arg;
    return w.assigned == NODES;
}

/* A node waits for the list, which it has asked the relay for. */
static bool is_asked(void *arg)
{
    const struct node *n = &w.nodes[3];

    (void)arg;
    return n->handler != NULL &&
           MU_CONTAINER_OF(n->handler, struct mu_rdzv_muster, base)->list.relayed;
}

static void await(bool (*what)(void *arg))
{
    assert_true(mu_sim_run_until(w.sim, 60 * MU_NS_PER_S, what, NULL));
}

static void assert_all(size_t members)
{
    for (uint32_t i = 0; i < NODES; i++) {
        assert_int_equal(w.nodes[i].assigned, 1);
        assert_int_equal(w.nodes[i].members, members);
        assert_true(w.nodes[i].good);
        assert_int_equal(w.nodes[i].ended, 0);
    }
}

/* Whatever is in the place of the list is something else. */
static void spoil_list(void)
{
    struct mu_rdzv_run *run = mu_rdzv_run_find(&w.servers[0]->hub, MU_SPAN_LIT("run"));
    char text[MU_RDZV_LIST_KEY_MAX];
    struct mu_span key = mu_rdzv_list_key(text, MU_SPAN_LIT("run"), run->room.incarnation,
                                          run->room.round, &run->list, 0);
    uint8_t *bytes = calloc(1, run->list.len);

    assert_int_not_equal(run->list.len, 0);
    assert_int_equal(mu_ks_set(&w.servers[0]->ks, key, mu_span(bytes, run->list.len), 0), 0);
    free(bytes);
}

/* --- tests ------------------------------------------------------------------------------------ */

static void test_rdzv_list_is_the_same_for_all(void **state)
{
    (void)state;
    open_world(false);
    await(all_are_assigned);
    assert_all(NODES);
    close_world();
}

/* What the server sends is a few bytes for each node, and one list. */
static void test_rdzv_list_crosses_to_a_relay_once(void **state)
{
    uint64_t before;

    (void)state;
    open_world(true);
    await(is_formed);
    before = stats(0).bytes_out;
    await(all_are_assigned);
    assert_all(NODES);
    assert_int_equal(stats(0).holds, 1); /* by the relay */
    assert_in_range(stats(0).bytes_out - before, 1,
                    (uint64_t)NODES * (uint64_t)NODES * 10); /* each: 27 bytes at least */
    close_world();
}

static void test_rdzv_list_of_a_relay_that_is_lost_comes_from_the_server(void **state)
{
    (void)state;
    open_world(true);
    await(is_asked);
    mu_sim_kill(w.procs[1], MU_SIM_KILL_PROCESS);
    await(all_are_assigned);
    assert_all(NODES);
    close_world();
}

static void test_rdzv_list_that_is_another_is_not_taken(void **state)
{
    (void)state;
    for (int relayed = 0; relayed < 2; relayed++) {
        open_world(relayed == 1);
        await(is_formed);
        assert_int_equal(w.assigned, 0);
        spoil_list();
        await(all_are_assigned);
        assert_all(0);
        close_world();
    }
}

/* The round ends before a node has the list: it is told that it has begun all the same. The relay
 * is silent, which the session notices before the list is asked of another. */
static void test_rdzv_list_is_not_waited_for_when_the_round_ends(void **state)
{
    (void)state;
    open_world(true);
    await(is_asked);
    mu_sim_pause(w.procs[1], 20 * MU_NS_PER_S);
    mu_sim_kill(w.node_procs[NODES - 1], MU_SIM_KILL_PROCESS);
    mu_sim_run_for(w.sim, 2800 * MU_NS_PER_MS);
    for (uint32_t i = 0; i + 1 < NODES; i++) {
        assert_int_equal(w.nodes[i].ended, 1);
    }
    assert_int_equal(w.nodes[3].members, 0);
    close_world();
}

static bool is_freed(void *arg)
{
    return ((struct node *)arg)->freed == 1;
}

static void free_node(void *arg)
{
    mu_rdzv_free(((struct node *)arg)->handler);
}

static void test_rdzv_list_can_be_left_while_it_is_asked_for(void **state)
{
    (void)state;
    open_world(true);
    await(is_asked);
    mu_sim_pause(w.procs[1], 2 * MU_NS_PER_S);
    mu_sim_call(w.node_procs[3], free_node, &w.nodes[3]);
    assert_true(mu_sim_run_until(w.sim, 10 * MU_NS_PER_S, is_freed, &w.nodes[3]));
    close_world();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rdzv_list_is_the_same_for_all),
        cmocka_unit_test(test_rdzv_list_crosses_to_a_relay_once),
        cmocka_unit_test(test_rdzv_list_of_a_relay_that_is_lost_comes_from_the_server),
        cmocka_unit_test(test_rdzv_list_that_is_another_is_not_taken),
        cmocka_unit_test(test_rdzv_list_is_not_waited_for_when_the_round_ends),
        cmocka_unit_test(test_rdzv_list_can_be_left_while_it_is_asked_for),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
