/* Native nodes and their server on one loop: what a user is told, and when. */
#include "unit.h"

#include <stdio.h>
#include <string.h>

#include "service/rdzv/rdzv.h"
#include "service/server/server.h"
#include "transport/uv_env.h"

#define NODES       2
#define PATIENCE_MS 20000

struct node {
    struct mu_rdzv_handler *handler;
    unsigned assigned, ended, closed, failed, left, freed;
    uint64_t round;
    uint64_t incarnation;
    enum mu_rdzv_end_reason reason;
    int status;
    bool in_call; /* no callback may come now */
};

static struct mu_uv_env *uv;
static struct mu_env *env;
static struct mu_store_server *server;
static bool server_stopped;
static uint16_t port;
static struct node nodes[NODES];

static void on_assigned(void *context, const struct mu_rdzv_assignment *a)
{
    struct node *node = context;

    assert_false(node->in_call);
    assert_int_equal(a->world, NODES);
    assert_int_equal(a->member_count, NODES);
    node->assigned++;
    node->round = a->round;
    node->incarnation = a->incarnation;
}

static void on_ended(void *context, const struct mu_rdzv_ending *ending)
{
    struct node *node = context;

    assert_false(node->in_call);
    assert_int_equal(ending->round, node->round);
    node->ended++;
    node->reason = ending->reason;
}

static void on_waiting(void *context, uint32_t count)
{
    (void)context;
    (void)count;
}

static void on_closed(void *context)
{
    struct node *node = context;

    assert_false(node->in_call);
    node->closed++;
}

static void on_failed(void *context, int status, const char *text)
{
    struct node *node = context;

    assert_false(node->in_call);
    assert_true(text[0] != '\0');
    node->failed++;
    node->status = status;
}

static void on_left(void *context)
{
    struct node *node = context;

    assert_false(node->in_call);
    node->left++;
}

static void on_freed(void *context)
{
    ((struct node *)context)->freed++;
}

static void on_stopped(void *context, int status, const char *why)
{
    (void)context;
    (void)status;
    (void)why;
    server_stopped = true;
}

static bool out_of_patience;

static void on_patience(struct mu_timer *timer)
{
    (void)timer;
    out_of_patience = true;
}

/* Runs the loop until the condition holds. */
#define UNTIL(condition)                                                                           \
    do {                                                                                           \
        struct mu_timer patience;                                                                  \
        mu_timer_init(&patience, on_patience);                                                     \
        out_of_patience = false;                                                                   \
        mu_env_timer_arm(env, &patience, mu_mono_add_ms(mu_env_now(env).mono, PATIENCE_MS));       \
        while (!(condition)) {                                                                     \
            mu_uv_env_turn(uv);                                                                    \
            assert_false(out_of_patience);                                                         \
        }                                                                                          \
        mu_env_timer_arm(env, &patience, MU_MONO_NEVER);                                           \
    } while (0)

#define CALL(node, call)                                                                           \
    do {                                                                                           \
        (node)->in_call = true;                                                                    \
        call((node)->handler);                                                                     \
        (node)->in_call = false;                                                                   \
    } while (0)

static void start_server(void)
{
    struct mu_store_server_config config = mu_store_server_config_defaults();
    struct mu_errmsg msg;

    config.listen = (struct mu_addr){.kind = MU_ADDR_TCP, .port = port, .host = "127.0.0.1"};
    config.stopped = on_stopped;
    server_stopped = false;
    assert_int_equal(mu_store_server_start(env, &config, &server, &msg), 0);
    port = mu_store_server_addr(server)->port;
}

static void stop_server(void)
{
    mu_store_server_drain(server);
    UNTIL(server_stopped);
    mu_store_server_free(server);
}

static void open_node(size_t i)
{
    const struct mu_rdzv_events events = {
        .assigned = on_assigned,
        .ended = on_ended,
        .waiting = on_waiting,
        .closed = on_closed,
        .failed = on_failed,
        .left = on_left,
        .close_failed = on_failed,
        .freed = on_freed,
        .context = &nodes[i],
    };
    char endpoint[32];
    char config[64];
    struct mu_rdzv_params params = {.backend = "muster",
                                    .endpoint = endpoint,
                                    .run_id = "run",
                                    .nodes_min = NODES,
                                    .nodes_max = NODES,
                                    .config = config};
    struct mu_errmsg msg;

    (void)snprintf(endpoint, sizeof(endpoint), "127.0.0.1:%u", (unsigned)port);
    (void)snprintf(config, sizeof(config), "is_host=false,name=node%zu,join_timeout=15", i);
    nodes[i] = (struct node){0};
    assert_int_equal(mu_rdzv_open(env, &params, &events, &nodes[i].handler, &msg), 0);
}

static int setup(void **state)
{
    (void)state;
    assert_int_equal(mu_uv_env_new(&uv), 0);
    env = mu_uv_env_env(uv);
    port = 0;
    start_server();
    for (size_t i = 0; i < NODES; i++) {
        open_node(i);
        CALL(&nodes[i], mu_rdzv_join);
    }
    UNTIL(nodes[0].assigned == 1 && nodes[1].assigned == 1);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (size_t i = 0; i < NODES; i++) {
        mu_rdzv_free(nodes[i].handler);
    }
    UNTIL(nodes[0].freed == 1 && nodes[1].freed == 1);
    stop_server();
    mu_uv_env_free(uv);
    return 0;
}

static void test_a_join_within_a_round_ends_it_for_the_others(void **state)
{
    (void)state;
    CALL(&nodes[0], mu_rdzv_join);
    UNTIL(nodes[1].ended == 1);
    assert_int_equal(nodes[1].reason, MU_RDZV_ENDED_FAILED);
    UNTIL(nodes[0].assigned == 2);
    assert_int_equal(nodes[0].ended, 0); /* It ended it itself. */
    assert_int_equal(nodes[0].round, 1);
    assert_int_equal(nodes[1].assigned, 1);
    CALL(&nodes[1], mu_rdzv_join);
    UNTIL(nodes[1].assigned == 2);
    assert_int_equal(nodes[1].round, 1);
}

static void test_a_round_that_came_and_went_while_the_user_was_away_is_not_told(void **state)
{
    (void)state;
    CALL(&nodes[0], mu_rdzv_join);
    UNTIL(nodes[1].ended == 1 && nodes[0].assigned == 2);
    /* Round 1 ends as well before node 1 is back, which hears of it on one of these turns. */
    CALL(&nodes[0], mu_rdzv_leave);
    UNTIL(nodes[0].left == 1);
    CALL(&nodes[0], mu_rdzv_leave);
    UNTIL(nodes[0].left == 2);
    assert_int_equal(nodes[1].assigned, 1);
    CALL(&nodes[1], mu_rdzv_join);
    CALL(&nodes[0], mu_rdzv_join);
    UNTIL(nodes[0].assigned == 3 && nodes[1].assigned == 2);
    assert_int_equal(nodes[1].round, 2);
    assert_int_equal(nodes[1].ended, 1);
}

static void test_who_leaves_is_told_so_and_the_round_ends_for_the_others(void **state)
{
    (void)state;
    CALL(&nodes[0], mu_rdzv_leave);
    UNTIL(nodes[0].left == 1 && nodes[1].ended == 1);
    assert_int_equal(nodes[1].reason, MU_RDZV_ENDED_LEFT);
    assert_int_equal(nodes[0].ended + nodes[0].failed, 0);
    CALL(&nodes[0], mu_rdzv_join);
    CALL(&nodes[1], mu_rdzv_join);
    UNTIL(nodes[0].assigned == 2 && nodes[1].assigned == 2);
}

static void test_a_server_that_was_started_anew_drops_its_nodes_who_join_again(void **state)
{
    (void)state;
    stop_server();
    start_server();
    UNTIL(nodes[0].ended == 1 && nodes[1].ended == 1);
    assert_int_equal(nodes[0].reason, MU_RDZV_ENDED_DROPPED);
    CALL(&nodes[0], mu_rdzv_join);
    CALL(&nodes[1], mu_rdzv_join);
    UNTIL(nodes[0].assigned == 2 && nodes[1].assigned == 2);
}

static void test_a_join_that_gathers_outlives_its_server(void **state)
{
    (void)state;
    CALL(&nodes[0], mu_rdzv_leave);
    UNTIL(nodes[0].left == 1 && nodes[1].ended == 1);
    CALL(&nodes[1], mu_rdzv_join);
    stop_server();
    start_server();
    CALL(&nodes[0], mu_rdzv_join);
    UNTIL(nodes[0].assigned == 2 && nodes[1].assigned == 2);
    assert_int_equal(nodes[1].ended, 1);
}

static void test_a_close_ends_it_for_all_and_every_join_after_it(void **state)
{
    (void)state;
    CALL(&nodes[0], mu_rdzv_close_run);
    UNTIL(nodes[0].closed == 1 && nodes[1].closed == 1);
    assert_int_equal(nodes[1].failed, 0);
    CALL(&nodes[1], mu_rdzv_join);
    UNTIL(nodes[1].failed == 1);
    assert_int_equal(nodes[1].status, MUSTER_ERDZV_CLOSED);
    assert_int_equal(nodes[1].closed, 1);
}

static void test_whoever_is_freed_without_a_word_is_lost(void **state)
{
    (void)state;
    mu_rdzv_free(nodes[0].handler);
    UNTIL(nodes[0].freed == 1 && nodes[1].ended == 1);
    open_node(0);
    CALL(&nodes[0], mu_rdzv_join);
    CALL(&nodes[1], mu_rdzv_join);
    UNTIL(nodes[0].assigned == 1 && nodes[1].assigned == 2);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_join_within_a_round_ends_it_for_the_others),
        TEST(test_a_round_that_came_and_went_while_the_user_was_away_is_not_told),
        TEST(test_who_leaves_is_told_so_and_the_round_ends_for_the_others),
        TEST(test_a_server_that_was_started_anew_drops_its_nodes_who_join_again),
        TEST(test_a_join_that_gathers_outlives_its_server),
        TEST(test_a_close_ends_it_for_all_and_every_join_after_it),
        TEST(test_whoever_is_freed_without_a_word_is_lost),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
