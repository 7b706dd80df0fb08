/*
 * Goal: several nodes of a job, each a handler with a thread of its own, meet over an embedded
 * server through the public API, and again when somebody comes, goes or closes. Then backends of
 * others: registered, asked for, refused.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>
#include <muster/muster.h>

static muster_runtime *rt;
static muster_server *server;
static char endpoint[64];

static void assert_says(const char *text, const char *word)
{
    if (strstr(text, word) == NULL) {
        fail_msg("no '%s' in: %s", word, text);
    }
}

/* --- a node ----------------------------------------------------------------------------------- */

struct node {
    pthread_t thread;
    muster_rdzv *rdzv;
    struct muster_rdzv_info info;
    int status;
    char text[256];
};

static void open_node(struct node *n, const char *backend, const char *run_id, uint32_t nodes_min,
                      uint32_t nodes_max, const char *config)
{
    struct muster_rdzv_params params = {.size = sizeof(struct muster_rdzv_params),
                                        .backend = backend,
                                        .endpoint = endpoint,
                                        .run_id = run_id,
                                        .nodes_min = nodes_min,
                                        .nodes_max = nodes_max,
                                        .local_addr = "127.0.0.1",
                                        .config = config};

    if (muster_rdzv_open(rt, &params, &n->rdzv) != 0) {
        fail_msg("%s", muster_errmsg());
    }
}

static void *run_next(void *context)
{
    struct node *n = context;

    n->status = muster_rdzv_next(n->rdzv, &n->info);
    (void)snprintf(n->text, sizeof(n->text), "%s", n->status == 0 ? "" : muster_errmsg());
    return NULL;
}

static void start_next(struct node *n)
{
    assert_int_equal(pthread_create(&n->thread, NULL, run_next, n), 0);
}

static int finish(struct node *n)
{
    assert_int_equal(pthread_join(n->thread, NULL), 0);
    return n->status;
}

/* All ask for the next round and get it. */
static void meet(struct node *nodes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        start_next(&nodes[i]);
    }
    for (size_t i = 0; i < count; i++) {
        if (finish(&nodes[i]) != 0) {
            fail_msg("node %zu: %s", i, nodes[i].text);
        }
    }
}

/* One world: all agree on it, ranks are distinct, and the store is the round's own. */
static void check_world(struct node *nodes, size_t count)
{
    bool taken[8] = {false};
    int64_t sum = 0;

    for (size_t i = 0; i < count; i++) {
        struct muster_rdzv_info *info = &nodes[i].info;

        assert_int_equal(info->world_size, count);
        assert_int_equal(info->member_count, count);
        assert_int_equal(info->round, nodes[0].info.round);
        assert_true(info->rank < count);
        assert_false(taken[info->rank]);
        taken[info->rank] = true;
        assert_string_equal(info->bootstrap_addr, "127.0.0.1");
        assert_int_equal(info->bootstrap_port, nodes[0].info.bootstrap_port);
        assert_int_not_equal(info->bootstrap_port, 0);
        for (size_t k = 0; k < count; k++) {
            assert_string_equal(info->members[k], nodes[0].info.members[k]);
        }
        assert_int_equal(muster_store_add(info->store, muster_str("sum"), 1, &sum, 5000), 0);
    }
    assert_int_equal(sum, count); /* More, and keys of another round were seen. */
}

static void close_nodes(struct node *nodes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        muster_rdzv_close(nodes[i].rdzv);
    }
}

/* --- both backends ---------------------------------------------------------------------------- */

static void check_rounds(const char *backend)
{
    struct node nodes[3];
    uint32_t waiting = 0;

    for (int i = 0; i < 2; i++) {
        open_node(&nodes[i], backend, backend, 2, 3, "last_call_timeout=0.2");
    }
    assert_string_equal(muster_rdzv_backend(nodes[0].rdzv), backend);
    meet(nodes, 2);
    check_world(nodes, 2);

    /* One comes late: the others are told, and let it in. */
    open_node(&nodes[2], backend, backend, 2, 3, "last_call_timeout=0.2");
    start_next(&nodes[2]);
    assert_int_equal(muster_rdzv_ended(nodes[0].rdzv, 20000), 0);
    assert_int_equal(muster_rdzv_ended(nodes[1].rdzv, 20000), 0);
    start_next(&nodes[0]);
    start_next(&nodes[1]);
    for (int i = 0; i < 3; i++) {
        if (finish(&nodes[i]) != 0) {
            fail_msg("node %d: %s", i, nodes[i].text);
        }
    }
    check_world(nodes, 3);
    assert_true(nodes[0].info.round >= 1);
    assert_int_equal(muster_rdzv_num_nodes_waiting(nodes[0].rdzv, &waiting), 0);
    assert_int_equal(waiting, 0);

    /* One goes: the others are told and go on without it. */
    muster_rdzv_close(nodes[2].rdzv);
    assert_int_equal(muster_rdzv_ended(nodes[0].rdzv, 20000), 0);
    assert_int_equal(muster_rdzv_ended(nodes[1].rdzv, 20000), 0);
    meet(nodes, 2);
    check_world(nodes, 2);
    close_nodes(nodes, 2);
}

static void test_rdzv_nodes_meet_natively(void **state)
{
    (void)state;
    check_rounds("muster");
}

static void test_rdzv_nodes_meet_over_a_store_as_pytorch_does(void **state)
{
    (void)state;
    check_rounds("c10d");
}

static void check_closing(const char *backend, const char *run_id)
{
    struct node nodes[2];
    bool closed;

    open_node(&nodes[0], backend, run_id, 2, 2, NULL);
    open_node(&nodes[1], backend, run_id, 2, 2, NULL);
    meet(nodes, 2);
    assert_true(muster_rdzv_shutdown(nodes[0].rdzv));
    assert_int_equal(muster_rdzv_ended(nodes[1].rdzv, 20000), 0);
    assert_int_equal(muster_rdzv_is_closed(nodes[1].rdzv, &closed), 0);
    assert_true(closed);
    start_next(&nodes[1]);
    assert_int_equal(finish(&nodes[1]), MUSTER_ERDZV_CLOSED);
    close_nodes(nodes, 2);
}

static void test_rdzv_closed_run_is_closed_for_all(void **state)
{
    (void)state;
    check_closing("muster", "closing");
    check_closing("c10d", "closing");
}

/* The endpoint is the bootstrap address; who hosts it is settled, and so are the ranks. */
static void test_rdzv_static_nodes_meet_at_the_endpoint(void **state)
{
    struct node nodes[2];

    (void)state;
    open_node(&nodes[0], "static", "static", 2, 2, "rank=0,is_host=false");
    open_node(&nodes[1], "static", "static", 2, 2, "rank=1");
    meet(nodes, 2);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(nodes[i].info.rank, i);
        assert_int_equal(nodes[i].info.world_size, 2);
        assert_string_equal(nodes[i].info.bootstrap_addr, "127.0.0.1");
        assert_int_equal(nodes[i].info.bootstrap_port, muster_server_port(server));
        assert_true(muster_rdzv_use_agent_store(nodes[i].rdzv));
        assert_int_equal(muster_store_barrier(nodes[i].info.store, muster_str("b"), 1, 5000), 0);
    }
    close_nodes(nodes, 2);
}

/* Workers of PyTorch 1.13 serve their store themselves; of the newest, the agent of rank 0 does. */
static void test_rdzv_serves_a_store_where_the_others_look_for_one(void **state)
{
    static const struct {
        const char *run_id, *config;
        bool served;
    } runs[] = {{"old", "dialect=1.13", false}, {"new", "dialect=2", true}};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct muster_store_config config = {.size = sizeof(struct muster_store_config),
                                             .timeout_ms = 1000,
                                             .connect_timeout_ms = 300};
        muster_store *store = NULL;
        struct node node;
        char url[300];

        open_node(&node, "c10d", runs[i].run_id, 1, 1, runs[i].config);
        meet(&node, 1);
        assert_int_equal(muster_rdzv_use_agent_store(node.rdzv), runs[i].served);
        (void)snprintf(url, sizeof(url), "tcp://%s:%u", node.info.bootstrap_addr,
                       node.info.bootstrap_port);
        assert_int_equal(muster_store_open(rt, url, &config, &store) == 0, runs[i].served);
        muster_store_close(store);
        muster_rdzv_close(node.rdzv);
    }
}

static void test_rdzv_close_of_a_run_ends_a_join(void **state)
{
    struct node nodes[2];

    (void)state;
    open_node(&nodes[0], "muster", "closing2", 2, 2, NULL);
    open_node(&nodes[1], "muster", "closing2", 2, 2, NULL);
    start_next(&nodes[0]);
    /* It may come before the join, which then begins the run anew: again until it is seen. */
    do {
        assert_int_equal(muster_rdzv_set_closed(nodes[1].rdzv), 0);
        muster_rdzv_close(nodes[1].rdzv);
        open_node(&nodes[1], "muster", "closing2", 2, 2, NULL);
    } while (pthread_tryjoin_np(nodes[0].thread, NULL) != 0);
    assert_int_equal(nodes[0].status, MUSTER_ERDZV_CLOSED);
    close_nodes(nodes, 2);
}

static void test_rdzv_timeout_says_who_is_missing(void **state)
{
    struct node nodes[2];

    (void)state;
    open_node(&nodes[0], "muster", "missing", 2, 2, "join_timeout=0.5,name=alpha");
    open_node(&nodes[1], "muster", "missing", 2, 2, "join_timeout=0.5,name=beta");
    meet(nodes, 2);
    muster_rdzv_close(nodes[1].rdzv);
    assert_int_equal(muster_rdzv_ended(nodes[0].rdzv, 20000), 0);
    assert_says(muster_errmsg(), "beta");
    start_next(&nodes[0]);
    assert_int_equal(finish(&nodes[0]), MUSTER_ERDZV_TIMEOUT);
    assert_says(nodes[0].text, "1 of 2");
    assert_says(nodes[0].text, "alpha");
    muster_rdzv_close(nodes[0].rdzv);
}

static void test_rdzv_says_what_a_node_waits_for(void **state)
{
    struct node nodes[2];
    int err;

    (void)state;
    open_node(&nodes[0], "muster", "explained", 2, 2, "name=alpha");
    open_node(&nodes[1], "muster", "explained", 2, 2, "name=beta");
    assert_int_equal(muster_rdzv_explain(nodes[0].rdzv, 20000), MUSTER_ENOENT);
    start_next(&nodes[0]);
    do { /* until its thread waits, and the server knows it */
        err = muster_rdzv_explain(nodes[0].rdzv, 20000);
        assert_true(err == 0 || err == MUSTER_ENOENT);
    } while (err != 0 || strstr(muster_errmsg(), "alpha") == NULL);
    assert_says(muster_errmsg(), "1 of 2");
    err = muster_rdzv_explain(nodes[0].rdzv, 0); /* the loop may have answered already */
    assert_true(err == 0 || err == MUSTER_ETIMEDOUT);
    start_next(&nodes[1]);
    assert_int_equal(finish(&nodes[0]), 0);
    assert_int_equal(finish(&nodes[1]), 0);
    assert_int_equal(muster_rdzv_explain(nodes[0].rdzv, 20000), MUSTER_ENOENT);
    close_nodes(nodes, 2);
}

static void test_rdzv_lost_server_ends_the_round_and_blocks_nobody(void **state)
{
    struct muster_server_config config = muster_server_config_defaults();
    muster_server *other;
    char kept[64];
    struct node node;

    (void)state;
    config.listen = "127.0.0.1:0";
    assert_int_equal(muster_server_start(rt, &config, &other), 0);
    (void)snprintf(kept, sizeof(kept), "%s", endpoint);
    (void)snprintf(endpoint, sizeof(endpoint), "%s", muster_server_address(other));
    open_node(&node, "muster", "lost", 1, 1, "join_timeout=0.3,is_host=false");
    meet(&node, 1);
    muster_server_free(other);
    assert_int_equal(muster_rdzv_ended(node.rdzv, 30000), 0);
    start_next(&node);
    assert_int_not_equal(finish(&node), 0);
    muster_rdzv_close(node.rdzv);
    (void)snprintf(endpoint, sizeof(endpoint), "%s", kept);
}

static _Atomic int records;

static void count_record(const struct muster_rdzv_record *record, void *context)
{
    (void)context;
    if (strcmp(record->run_id, "recorded") == 0 && record->node[0] != '\0' && record->pid > 0) {
        records++;
    }
}

static void test_rdzv_steps_are_recorded(void **state)
{
    struct node node;

    (void)state;
    muster_rdzv_set_sink(count_record, NULL);
    open_node(&node, "muster", "recorded", 1, 1, NULL);
    meet(&node, 1);
    muster_rdzv_close(node.rdzv);
    muster_rdzv_set_sink(NULL, NULL);
    assert_true(records >= 2);
}

/* --- parameters ------------------------------------------------------------------------------- */

static void test_rdzv_params_are_checked_and_read(void **state)
{
    struct muster_rdzv_params p = {.size = sizeof(struct muster_rdzv_params),
                                   .backend = "x",
                                   .run_id = "r",
                                   .nodes_min = 1,
                                   .nodes_max = 2,
                                   .config = "a=Yes, b=17,c=q"};
    struct muster_bytes text;
    int64_t number;
    bool yes;

    (void)state;
    assert_int_equal(muster_rdzv_params_check(&p), 0);
    p.nodes_max = 0;
    assert_int_equal(muster_rdzv_params_check(&p), MUSTER_EINVAL);
    p.nodes_max = 2;
    p.backend = "";
    assert_int_equal(muster_rdzv_params_check(&p), MUSTER_EINVAL);
    p.backend = "x";
    p.run_id = NULL;
    assert_int_equal(muster_rdzv_params_check(&p), MUSTER_EINVAL);

    assert_int_equal(muster_rdzv_config_bool(&p, "a", false, &yes), 0);
    assert_true(yes);
    assert_int_equal(muster_rdzv_config_bool(&p, "none", true, &yes), 0);
    assert_true(yes);
    assert_int_equal(muster_rdzv_config_bool(&p, "b", true, &yes), MUSTER_EINVAL);
    assert_says(muster_errmsg(), "17");
    assert_int_equal(muster_rdzv_config_int(&p, "b", 0, &number), 0);
    assert_int_equal(number, 17);
    assert_int_equal(muster_rdzv_config_int(&p, "c", 0, &number), MUSTER_EINVAL);
    text = muster_rdzv_config_text(&p, "c", "other");
    assert_int_equal(text.len, 1);
    text = muster_rdzv_config_text(&p, "none", "other");
    assert_memory_equal(text.data, "other", 5);
}

/* --- backends of others ----------------------------------------------------------------------- */

struct mine {
    int rounds;
    bool closed;
};

static int my_next(void *context, struct muster_rdzv_info *ret_info)
{
    struct mine *m = context;

    if (m->closed) {
        return muster_rdzv_fail(MUSTER_ERDZV_CLOSED, "mine is closed");
    }
    *ret_info = (struct muster_rdzv_info){.round = (uint64_t)m->rounds++, .world_size = 1};
    return 0;
}

static int my_is_closed(void *context, bool *ret_closed)
{
    *ret_closed = ((struct mine *)context)->closed;
    return 0;
}

static int my_set_closed(void *context)
{
    ((struct mine *)context)->closed = true;
    return 0;
}

static int my_num_nodes_waiting(void *context, uint32_t *ret_count)
{
    (void)context;
    *ret_count = 3;
    return 0;
}

static bool my_shutdown(void *context)
{
    return my_set_closed(context) == 0;
}

static int closes;

static void my_close(void *context)
{
    closes++;
    free(context);
}

static const struct muster_rdzv_ops my_ops = {
    .size = sizeof(struct muster_rdzv_ops),
    .next = my_next,
    .is_closed = my_is_closed,
    .set_closed = my_set_closed,
    .num_nodes_waiting = my_num_nodes_waiting,
    .shutdown = my_shutdown,
    .close = my_close,
};

static int create_as(const char *name, const struct muster_rdzv_params *p, muster_rdzv **ret_rdzv)
{
    struct mine *m = calloc(1, sizeof(*m));
    int err;

    assert_non_null(m);
    err = muster_rdzv_new(name, p->run_id, &my_ops, m, ret_rdzv);
    if (err != 0) {
        free(m);
    }
    return err;
}

static int create_mine(muster_runtime *runtime, const struct muster_rdzv_params *p,
                       muster_rdzv **ret_rdzv)
{
    assert_ptr_equal(runtime, rt);
    return create_as(p->backend, p, ret_rdzv);
}

static int create_another(muster_runtime *runtime, const struct muster_rdzv_params *p,
                          muster_rdzv **ret_rdzv)
{
    (void)runtime;
    return create_as("another", p, ret_rdzv);
}

static int create_none(muster_runtime *runtime, const struct muster_rdzv_params *p,
                       muster_rdzv **ret_rdzv)
{
    (void)runtime;
    (void)p;
    (void)ret_rdzv;
    return muster_rdzv_fail(MUSTER_ECONN, "no luck");
}

static void test_rdzv_backend_of_ones_own_is_used_as_any_other(void **state)
{
    struct muster_rdzv_params p = {.size = sizeof(struct muster_rdzv_params),
                                   .backend = "mine",
                                   .run_id = "r7",
                                   .nodes_min = 1,
                                   .nodes_max = 1};
    struct muster_rdzv_event event;
    struct muster_rdzv_info info;
    muster_rdzv *rdzv;
    uint32_t waiting;
    bool closed;

    (void)state;
    assert_int_equal(muster_rdzv_open(rt, &p, &rdzv), MUSTER_ENOENT);
    assert_says(muster_errmsg(), "\"mine\"");
    assert_says(muster_errmsg(), "muster_rdzv_register");
    assert_int_equal(muster_rdzv_register("mine", create_mine), 0);
    assert_int_equal(muster_rdzv_open(rt, &p, &rdzv), 0);
    assert_string_equal(muster_rdzv_backend(rdzv), "mine");
    assert_string_equal(muster_rdzv_run_id(rdzv), "r7");
    assert_int_equal(muster_rdzv_next(rdzv, &info), 0);
    assert_int_equal(muster_rdzv_next(rdzv, &info), 0);
    assert_int_equal(info.round, 1);
    assert_int_equal(muster_rdzv_num_nodes_waiting(rdzv, &waiting), 0);
    assert_int_equal(waiting, 3);
    assert_int_equal(muster_rdzv_ended(rdzv, 0), MUSTER_ENOTSUP);
    assert_int_equal(muster_rdzv_wait_event(rdzv, 0, &event), MUSTER_ENOTSUP);
    assert_false(muster_rdzv_use_agent_store(rdzv));
    assert_true(muster_rdzv_shutdown(rdzv));
    assert_int_equal(muster_rdzv_is_closed(rdzv, &closed), 0);
    assert_true(closed);
    assert_int_equal(muster_rdzv_next(rdzv, &info), MUSTER_ERDZV_CLOSED);
    assert_string_equal(muster_errmsg(), "mine is closed");
    closes = 0;
    muster_rdzv_close(rdzv);
    assert_int_equal(closes, 1);
}

static void test_rdzv_registry_refuses_what_would_confuse(void **state)
{
    struct muster_rdzv_params p = {.size = sizeof(struct muster_rdzv_params),
                                   .backend = "liar",
                                   .run_id = "r",
                                   .nodes_min = 1,
                                   .nodes_max = 1};
    struct muster_rdzv_ops half = my_ops;
    muster_rdzv *rdzv;

    (void)state;
    assert_int_equal(muster_rdzv_register("muster", create_mine), MUSTER_EEXIST);
    assert_int_equal(muster_rdzv_register("c10d", create_mine), MUSTER_EEXIST);
    assert_int_equal(muster_rdzv_register("static", create_mine), MUSTER_EEXIST);
    assert_says(muster_errmsg(), "static");
    assert_int_equal(muster_rdzv_register("", create_mine), MUSTER_EINVAL);
    assert_int_equal(muster_rdzv_register(NULL, create_mine), MUSTER_EINVAL);
    assert_int_equal(muster_rdzv_register("a-name-of-more-than-thirty-one-bytes", create_mine),
                     MUSTER_EINVAL);
    assert_int_equal(muster_rdzv_register("liar", NULL), MUSTER_EINVAL);
    assert_int_equal(muster_rdzv_register("liar", create_another), 0);
    assert_int_equal(muster_rdzv_register("liar", create_another), 0);
    assert_int_equal(muster_rdzv_register("liar", create_mine), MUSTER_EEXIST);

    closes = 0;
    assert_int_equal(muster_rdzv_open(rt, &p, &rdzv), MUSTER_EINVAL);
    assert_says(muster_errmsg(), "\"another\"");
    assert_int_equal(closes, 1);
    assert_int_equal(muster_rdzv_register("none", create_none), 0);
    p.backend = "none";
    assert_int_equal(muster_rdzv_open(rt, &p, &rdzv), MUSTER_ECONN);
    assert_string_equal(muster_errmsg(), "no luck");

    half.shutdown = NULL;
    assert_int_equal(muster_rdzv_new("x", "r", &half, NULL, &rdzv), MUSTER_EINVAL);
    assert_int_equal(muster_rdzv_new("x", NULL, &my_ops, NULL, &rdzv), MUSTER_EINVAL);
}

static void *register_many(void *context)
{
    char name[32];

    for (int i = 0; i < 50; i++) {
        (void)snprintf(name, sizeof(name), "many%d", i);
        *(int *)context += muster_rdzv_register(name, create_mine) != 0;
    }
    return NULL;
}

static void test_rdzv_registry_is_for_all_threads(void **state)
{
    pthread_t threads[4];
    int failures[4] = {0};

    (void)state;
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, register_many, &failures[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(failures[i], 0);
    }
}

/* ---------------------------------------------------------------------------------------------- */

static int set_up(void **state)
{
    struct muster_server_config config = muster_server_config_defaults();

    (void)state;
    config.listen = "127.0.0.1:0";
    if (muster_runtime_new(&rt) != 0 || muster_server_start(rt, &config, &server) != 0) {
        return -1;
    }
    (void)snprintf(endpoint, sizeof(endpoint), "%s", muster_server_address(server));
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    muster_server_free(server);
    muster_runtime_free(rt);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rdzv_nodes_meet_natively),
        cmocka_unit_test(test_rdzv_nodes_meet_over_a_store_as_pytorch_does),
        cmocka_unit_test(test_rdzv_closed_run_is_closed_for_all),
        cmocka_unit_test(test_rdzv_static_nodes_meet_at_the_endpoint),
        cmocka_unit_test(test_rdzv_serves_a_store_where_the_others_look_for_one),
        cmocka_unit_test(test_rdzv_close_of_a_run_ends_a_join),
        cmocka_unit_test(test_rdzv_timeout_says_who_is_missing),
        cmocka_unit_test(test_rdzv_says_what_a_node_waits_for),
        cmocka_unit_test(test_rdzv_lost_server_ends_the_round_and_blocks_nobody),
        cmocka_unit_test(test_rdzv_steps_are_recorded),
        cmocka_unit_test(test_rdzv_params_are_checked_and_read),
        cmocka_unit_test(test_rdzv_backend_of_ones_own_is_used_as_any_other),
        cmocka_unit_test(test_rdzv_registry_refuses_what_would_confuse),
        cmocka_unit_test(test_rdzv_registry_is_for_all_threads),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
