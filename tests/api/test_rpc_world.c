/* Whole groups: objects of all, rounds of a rendezvous that workers come to and go from, and how
 * handlers are profiled. Real threads, real sockets. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>
#include <muster/muster.h>

#define WORKERS 5

static const char *const names[WORKERS] = {"w3", "w0", "w4", "w1", "w2"};
static muster_runtime *rt;

struct member {
    muster_rpc_agent *agent;
    int number;
    size_t count; /* of the group */
    const char *tag;
    int64_t timeout_ms;
    int status;
    char text[256];
    struct muster_values values;
    struct muster_value value;
    pthread_t thread;
};

static void echo(muster_rpc_call_in *call, void *context)
{
    struct muster_rpc_part part = muster_rpc_in_part(call, 0);

    (void)context;
    muster_rpc_reply(call, &part, 1);
}

static void wait_a_moment(muster_rpc_call_in *call, void *context)
{
    (void)context;
    (void)muster_rpc_in_wait_canceled(call, 20);
    muster_rpc_reply(call, NULL, 0);
}

static void fail_always(muster_rpc_call_in *call, void *context)
{
    (void)context;
    muster_rpc_fail(call, MUSTER_EREMOTE, "no");
}

static muster_rpc_agent *start_agent(const char *name, int32_t id)
{
    struct muster_rpc_config config = muster_rpc_config_defaults();
    muster_rpc_agent *agent = NULL;

    config.name = name;
    config.id = id;
    config.listen = "127.0.0.1:0";
    assert_int_equal(muster_rpc_start(rt, &config, &agent), 0);
    assert_int_equal(muster_rpc_register(agent, "t::T.echo", echo, NULL, 0), 0);
    assert_int_equal(
        muster_rpc_register(agent, "t::T.wait", wait_a_moment, NULL, MUSTER_RPC_BLOCKS), 0);
    assert_int_equal(muster_rpc_register(agent, "t::T.fail", fail_always, NULL, 0), 0);
    return agent;
}

static int open_group(void **state)
{
    struct member *members = calloc(WORKERS, sizeof(*members));

    assert_non_null(members);
    assert_int_equal(muster_runtime_new(&rt), 0);
    for (int i = 0; i < WORKERS; i++) {
        members[i] = (struct member){.agent = start_agent(names[i], i),
                                     .number = i,
                                     .count = WORKERS,
                                     .tag = "t",
                                     .timeout_ms = 20000};
    }
    for (int i = 0; i < WORKERS * WORKERS; i++) {
        assert_int_equal(muster_rpc_add_worker(members[i / WORKERS].agent, names[i % WORKERS],
                                               i % WORKERS,
                                               muster_rpc_address(members[i % WORKERS].agent)),
                         0);
    }
    *state = members;
    return 0;
}

static int close_group(void **state)
{
    struct member *members = *state;

    for (int i = 0; i < WORKERS; i++) {
        muster_rpc_shutdown(members[i].agent);
        muster_values_free(&members[i].values);
        muster_value_free(&members[i].value);
    }
    free(members);
    muster_runtime_free(rt);
    return 0;
}

/* --- objects of all --------------------------------------------------------------------------- */

static void *gather(void *context)
{
    struct member *m = context;
    char object[32];

    (void)snprintf(object, sizeof(object), "of %s", names[m->number]);
    m->status = muster_rpc_all_gather(m->agent, names, m->count, m->tag, muster_str(object),
                                      m->timeout_ms, &m->values);
    (void)snprintf(m->text, sizeof(m->text), "%s", m->status != 0 ? muster_errmsg() : "");
    return NULL;
}

static void *broadcast(void *context)
{
    struct member *m = context;

    /* Twice with one tag: who is ahead waits for its turn. */
    for (int i = 0; i < 2 && m->status == 0; i++) {
        const char *object = i == 0 ? "first" : "second";

        muster_value_free(&m->value);
        m->status = muster_rpc_broadcast(m->agent, names, m->count, "w2", m->tag,
                                         muster_str(m->number == 4 ? object : "ignored"),
                                         m->timeout_ms, &m->value);
        if (m->status == 0 && strcmp(m->value.data, object) != 0) {
            m->status = 1;
        }
    }
    (void)snprintf(m->text, sizeof(m->text), "%s", m->status < 0 ? muster_errmsg() : "");
    return NULL;
}

static void run_all(struct member *members, int from, int to, void *(*run)(void *context))
{
    for (int i = from; i < to; i++) {
        assert_int_equal(pthread_create(&members[i].thread, NULL, run, &members[i]), 0);
    }
    for (int i = from; i < to; i++) {
        assert_int_equal(pthread_join(members[i].thread, NULL), 0);
    }
}

static uint64_t metric(muster_rpc_agent *a, const char *name)
{
    struct muster_rpc_metric metrics[128];
    size_t count = muster_rpc_metrics(a, metrics, 128);

    for (size_t i = 0; i < count && i < 128; i++) {
        if (strcmp(metrics[i].name, name) == 0) {
            return strtoull(metrics[i].value, NULL, 10);
        }
    }
    return UINT64_MAX;
}

static void test_rpc_all_gather_gives_everybody_the_objects_of_all(void **state)
{
    struct member *members = *state;
    uint64_t calls = 0;

    run_all(members, 0, WORKERS, gather);
    for (int i = 0; i < WORKERS; i++) {
        if (members[i].status != 0) {
            fail_msg("%s: %s", names[i], members[i].text);
        }
        assert_int_equal(members[i].values.count, WORKERS);
        for (int k = 0; k < WORKERS; k++) {
            char object[32];

            (void)snprintf(object, sizeof(object), "of %s", names[k]);
            assert_string_equal(members[i].values.items[k].data, object);
        }
        calls += metric(members[i].agent, "agent.calls");
    }
    assert_int_equal(calls, WORKERS - 1);
}

static void test_rpc_all_gather_names_who_did_not_come(void **state)
{
    struct member *members = *state;

    for (int i = 0; i < WORKERS; i++) {
        members[i].timeout_ms = i == 1 ? 300 : 20000; /* w0 leads. */
    }
    run_all(members, 0, WORKERS - 1, gather);
    for (int i = 0; i < WORKERS - 1; i++) {
        assert_int_equal(members[i].status, MUSTER_ETIMEDOUT);
        if (strstr(members[i].text, " w2") == NULL) {
            fail_msg("it does not name w2: %s", members[i].text);
        }
    }
}

static void test_rpc_all_gather_blames_nobody_who_had_come(void **state)
{
    struct member *members = *state; /* w3, w0, w4, w1; w2 does not come */
    static const int others[] = {0, 2, 3};

    /* The leader comes when they are there, and waits longer than they do. */
    for (int i = 0; i < 3; i++) {
        struct member *m = &members[others[i]];

        m->timeout_ms = 1000;
        assert_int_equal(pthread_create(&m->thread, NULL, gather, m), 0);
    }
    while (metric(members[1].agent, "agent.server_active_calls") != 3) {
        (void)nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    members[1].timeout_ms = 1500;
    run_all(members, 1, 2, gather);
    for (int i = 0; i < 3; i++) {
        struct member *m = &members[others[i]];

        assert_int_equal(pthread_join(m->thread, NULL), 0);
        assert_int_equal(m->status, MUSTER_ETIMEDOUT);
        if (strstr(m->text, "1 of 4 did not come in time: w2") == NULL) {
            fail_msg("%s is told: %s", names[m->number], m->text);
        }
    }
    assert_int_equal(members[1].status, MUSTER_ETIMEDOUT);
    if (strstr(members[1].text, "1 of 4 did not come in time: w2; gave up waiting: w1 w3 w4") ==
        NULL) {
        fail_msg("the leader is told: %s", members[1].text);
    }
}

static void test_rpc_all_gather_names_a_leader_that_did_not_come(void **state)
{
    struct member *members = *state;

    members[0].timeout_ms = 300;
    run_all(members, 0, 1, gather);
    assert_int_equal(members[0].status, MUSTER_ETIMEDOUT);
    if (strstr(members[0].text, "w0") == NULL || strstr(members[0].text, "did not come") == NULL) {
        fail_msg("it is told: %s", members[0].text);
    }
}

static void test_rpc_broadcast_gives_everybody_the_roots_object(void **state)
{
    struct member *members = *state;

    run_all(members, 0, WORKERS, broadcast);
    for (int i = 0; i < WORKERS; i++) {
        if (members[i].status != 0) {
            fail_msg("%s: %d %s", names[i], members[i].status, members[i].text);
        }
    }
}

/* The leader and another, each of them twice at a time. */
static void test_rpc_tag_that_is_in_use_here_is_busy(void **state)
{
    static const int who[] = {1, 0};
    struct member *members = *state;

    for (int i = 0; i < 2; i++) {
        struct member *m = &members[who[i]];
        struct member twin;

        m->timeout_ms = 1000;
        twin = *m;
        assert_int_equal(pthread_create(&m->thread, NULL, gather, m), 0);
        /* Whichever of the two comes second is refused, the other one times out. */
        (void)gather(&twin);
        assert_int_equal(pthread_join(m->thread, NULL), 0);
        if (m->status == MUSTER_EBUSY) {
            assert_non_null(strstr(m->text, "tag"));
            assert_int_equal(twin.status, MUSTER_ETIMEDOUT);
        } else {
            assert_int_equal(m->status, MUSTER_ETIMEDOUT);
            assert_int_equal(twin.status, MUSTER_EBUSY);
        }
    }
    /* It may be used again then; other tags may be used at the same time. */
    members[0].timeout_ms = members[1].timeout_ms = 20000;
    run_all(members, 0, WORKERS, gather);
    for (int i = 0; i < WORKERS; i++) {
        assert_int_equal(members[i].status, 0);
    }
}

static void test_rpc_groups_that_cannot_be_are_refused(void **state)
{
    static const char *const twice[] = {"w0", "w1", "w1"};
    static const char *const without[] = {"w0", "w1"};
    struct member *members = *state;
    struct muster_value value;
    struct muster_values values;

    assert_int_equal(
        muster_rpc_all_gather(members[0].agent, twice, 3, "t", muster_str(""), 100, &values),
        MUSTER_EINVAL);
    assert_int_equal(
        muster_rpc_all_gather(members[0].agent, without, 2, "t", muster_str(""), 100, &values),
        MUSTER_EINVAL);
    assert_int_equal(
        muster_rpc_all_gather(members[0].agent, names, 5, "", muster_str(""), 100, &values),
        MUSTER_EINVAL);
    assert_int_equal(
        muster_rpc_broadcast(members[0].agent, names, 5, "w9", "t", muster_str(""), 100, &value),
        MUSTER_EINVAL);
    /* One that does not count us among its group says so. */
    members[1].timeout_ms = 1000;
    members[1].count = 2; /* w3 and w0 */
    members[3].count = WORKERS;
    assert_int_equal(pthread_create(&members[1].thread, NULL, gather, &members[1]), 0);
    assert_int_equal(pthread_create(&members[3].thread, NULL, gather, &members[3]), 0);
    assert_int_equal(pthread_join(members[3].thread, NULL), 0);
    assert_int_equal(pthread_join(members[1].thread, NULL), 0);
    assert_int_equal(members[3].status, MUSTER_EINVAL);
    assert_non_null(strstr(members[3].text, "does not include this worker"));
    assert_int_equal(members[1].status, MUSTER_ETIMEDOUT);
}

/* --- sync and profiling ----------------------------------------------------------------------- */

static int call(muster_rpc_agent *a, const char *to, const char *method)
{
    struct muster_rpc_part part = {muster_str("x"), MUSTER_RPC_CPU};
    struct muster_rpc_request q = {.size = sizeof(struct muster_rpc_request),
                                   .to = to,
                                   .method = method,
                                   .parts = &part,
                                   .part_count = 1,
                                   .timeout_ms = 20000};
    muster_rpc_future *future = NULL;
    int err = muster_rpc_sync(a, &q, &future);

    muster_rpc_future_free(future);
    return err;
}

static struct muster_rpc_profile profile_of(muster_rpc_agent *a, const char *method)
{
    struct muster_rpc_profile profiles[16];
    size_t count = muster_rpc_profiles(a, profiles, 16);

    assert_int_equal(count, 3);
    for (size_t i = 0; i < count; i++) {
        if (strcmp(profiles[i].method, method) == 0) {
            return profiles[i];
        }
    }
    fail_msg("no profile of %s", method);
    return profiles[0];
}

static void test_rpc_profiling_counts_by_method_while_it_is_on(void **state)
{
    struct member *members = *state;
    muster_rpc_agent *a = members[0].agent;
    muster_rpc_agent *b = members[1].agent;
    struct muster_rpc_profile p;

    assert_false(muster_rpc_profiling(b));
    assert_int_equal(call(a, "w0", "t::T.echo"), 0);
    assert_int_equal(profile_of(b, "t::T.echo").calls, 0);
    muster_rpc_set_profiling(b, true);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(call(a, "w0", "t::T.echo"), 0);
        assert_int_equal(call(a, "w0", "t::T.wait"), 0);
        assert_int_equal(call(a, "w0", "t::T.fail"), MUSTER_EREMOTE);
    }
    muster_rpc_set_profiling(b, false);
    assert_int_equal(call(a, "w0", "t::T.echo"), 0);
    assert_int_equal(profile_of(b, "t::T.echo").calls, 3);
    assert_int_equal(profile_of(b, "t::T.echo").errors, 0);
    assert_int_equal(profile_of(b, "t::T.fail").errors, 3);
    p = profile_of(b, "t::T.wait");
    assert_int_equal(p.calls, 3);
    assert_true(p.handler_us >= 60000 && p.handler_us_max >= 20000 &&
                p.handler_us_max <= p.handler_us);
    assert_true(p.queue_us_max <= p.queue_us);
    /* On again, all begins with zero. */
    muster_rpc_set_profiling(b, true);
    assert_int_equal(profile_of(b, "t::T.wait").calls, 0);
    /* Waiting for a thread is counted, profiled or not. */
    assert_int_not_equal(metric(b, "agent.queue_us_p99"), UINT64_MAX);
    assert_int_not_equal(metric(b, "agent.queue_us_p99"), 0);
}

/* --- rounds ----------------------------------------------------------------------------------- */

struct node {
    muster_rpc_agent *agent;
    muster_rdzv *rdzv;
    pthread_t thread;
    int status;
    char text[256];
    pthread_mutex_t lock;
    uint64_t round;
    uint32_t world_size;
    uint32_t rank;
    bool stays; /* the round's callback lasts until the rendezvous is being closed */
    bool closed_too_early;
    atomic_bool closed;
};

static void on_round(muster_rpc_agent *agent, const struct muster_rdzv_info *round, void *context)
{
    struct node *n = context;

    (void)agent;
    (void)pthread_mutex_lock(&n->lock);
    n->round = round->round;
    n->world_size = round->world_size;
    n->rank = round->rank;
    (void)pthread_mutex_unlock(&n->lock);
    while (n->stays && !n->closed_too_early && muster_rdzv_ended(n->rdzv, 1) != MUSTER_ECLOSED) {
        n->closed_too_early = atomic_load(&n->closed);
    }
    n->closed_too_early = n->closed_too_early || atomic_load(&n->closed);
}

static void *follow(void *context)
{
    struct node *n = context;
    struct muster_rpc_following following = muster_rpc_following_defaults();

    following.round = on_round;
    following.context = n;
    n->status = muster_rpc_follow(n->agent, n->rdzv, &following);
    (void)snprintf(n->text, sizeof(n->text), "%s", n->status == 0 ? "" : muster_errmsg());
    return NULL;
}

static void start_node(struct node *n, const char *name, const char *endpoint, bool stays)
{
    struct muster_rdzv_params params = {.size = sizeof(struct muster_rdzv_params),
                                        .backend = "muster",
                                        .endpoint = endpoint,
                                        .run_id = "follow",
                                        .nodes_min = 2,
                                        .nodes_max = 4,
                                        .local_addr = "127.0.0.1",
                                        .config = "last_call_timeout=0.2",
                                        .flags = MUSTER_RDZV_NO_BOOTSTRAP};

    memset(n, 0, sizeof(*n));
    n->stays = stays;
    assert_int_equal(pthread_mutex_init(&n->lock, NULL), 0);
    n->agent = start_agent(name, -1);
    if (muster_rdzv_open(rt, &params, &n->rdzv) != 0) {
        fail_msg("%s", muster_errmsg());
    }
    assert_int_equal(pthread_create(&n->thread, NULL, follow, n), 0);
}

/* Until all of them are in one world of that size. */
static void await_world(struct node *nodes, size_t count, uint32_t size)
{
    for (int i = 0; i < 4000; i++) {
        size_t there = 0;
        uint64_t round = 0;

        for (size_t k = 0; k < count; k++) {
            (void)pthread_mutex_lock(&nodes[k].lock);
            round = k == 0 ? nodes[k].round : round;
            there += nodes[k].world_size == size && nodes[k].round == round ? 1 : 0;
            (void)pthread_mutex_unlock(&nodes[k].lock);
        }
        if (there == count) {
            return;
        }
        (void)nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    fail_msg("no world of %u", size);
}

/* What the workers of a round told each other is gone when all have heard it. */
static void await_tidy(const char *endpoint)
{
    size_t left = 0;
    muster_store *store = NULL;
    char url[128];

    (void)snprintf(url, sizeof(url), "tcp://%s", endpoint);
    assert_int_equal(muster_store_open(rt, url, NULL, &store), 0);
    for (int i = 0; i < 1000; i++) {
        struct muster_values keys = {0};

        left = 0;
        assert_int_equal(muster_store_list_keys(store, muster_str(""), &keys, 20000), 0);
        for (size_t k = 0; k < keys.count; k++) {
            left += strstr(keys.items[k].data, "rpc/round-") != NULL ? 1 : 0;
        }
        muster_values_free(&keys);
        if (left == 0) {
            break;
        }
        (void)nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    muster_store_close(store);
    assert_int_equal(left, 0);
}

static void check_calls(struct node *nodes, const char *const *workers, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct muster_rpc_worker known[8];

        assert_int_equal(muster_rpc_workers(nodes[i].agent, known, 8), count);
        assert_int_equal(muster_rpc_id(nodes[i].agent), (int32_t)nodes[i].rank);
        for (size_t k = 0; k < count; k++) {
            struct muster_rpc_worker worker;

            assert_int_equal(call(nodes[i].agent, workers[k], "t::T.echo"), 0);
            assert_int_equal(muster_rpc_worker_info(nodes[i].agent, workers[k], 0, &worker), 0);
            assert_int_equal(worker.id, (int32_t)nodes[k].rank);
        }
    }
}

static void stop_node(struct node *n)
{
    muster_rdzv_close(n->rdzv);
    atomic_store(&n->closed, true);
    assert_int_equal(pthread_join(n->thread, NULL), 0);
    muster_rpc_shutdown(n->agent);
    (void)pthread_mutex_destroy(&n->lock);
}

static void test_rpc_group_follows_a_rendezvous_as_workers_come_and_go(void **state)
{
    static const char *const workers[] = {"x", "y", "z"};
    struct muster_server_config server_config = muster_server_config_defaults();
    struct muster_rpc_request q = {.size = sizeof(struct muster_rpc_request),
                                   .to = "z",
                                   .method = "t::T.wait",
                                   .timeout_ms = 20000};
    muster_rpc_future *future = NULL;
    muster_server *server;
    struct node nodes[3];
    char endpoint[64];

    (void)state;
    assert_int_equal(muster_runtime_new(&rt), 0);
    server_config.listen = "127.0.0.1:0";
    assert_int_equal(muster_server_start(rt, &server_config, &server), 0);
    (void)snprintf(endpoint, sizeof(endpoint), "%s", muster_server_address(server));
    start_node(&nodes[0], "x", endpoint, false);
    start_node(&nodes[1], "y", endpoint, false);
    await_world(nodes, 2, 2);
    check_calls(nodes, workers, 2);
    assert_int_equal(call(nodes[0].agent, "z", "t::T.echo"), MUSTER_EWORKER);
    /* One comes while the others run. */
    start_node(&nodes[2], "z", endpoint, false);
    await_world(nodes, 3, 3);
    check_calls(nodes, workers, 3);
    await_tidy(endpoint);
    /* And goes: what is still on its way to it ends. */
    assert_int_equal(muster_rpc_call(nodes[0].agent, &q, &future), 0);
    stop_node(&nodes[2]);
    (void)muster_rpc_future_wait(future, MUSTER_TIMEOUT_NEVER);
    muster_rpc_future_free(future);
    await_world(nodes, 2, 2);
    check_calls(nodes, workers, 2);
    assert_int_equal(call(nodes[1].agent, "z", "t::T.echo"), MUSTER_EWORKER);
    assert_non_null(strstr(muster_errmsg(), "z"));
    /* The end of the run is the end of the following. */
    assert_int_equal(muster_rdzv_set_closed(nodes[0].rdzv), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(nodes[i].thread, NULL), 0);
        assert_int_equal(nodes[i].status, 0);
        muster_rdzv_close(nodes[i].rdzv);
        muster_rpc_shutdown(nodes[i].agent);
        (void)pthread_mutex_destroy(&nodes[i].lock);
    }
    muster_server_free(server);
    muster_runtime_free(rt);
}

static void test_rpc_closing_a_rendezvous_waits_for_who_follows_it(void **state)
{
    struct muster_server_config server_config = muster_server_config_defaults();
    muster_server *server;
    struct node nodes[2];
    char endpoint[64];

    (void)state;
    assert_int_equal(muster_runtime_new(&rt), 0);
    server_config.listen = "127.0.0.1:0";
    assert_int_equal(muster_server_start(rt, &server_config, &server), 0);
    (void)snprintf(endpoint, sizeof(endpoint), "%s", muster_server_address(server));
    start_node(&nodes[0], "x", endpoint, true);
    start_node(&nodes[1], "y", endpoint, true);
    await_world(nodes, 2, 2);
    for (int i = 0; i < 2; i++) {
        stop_node(&nodes[i]);
        assert_int_equal(nodes[i].status, MUSTER_ECLOSED);
        assert_false(nodes[i].closed_too_early);
    }
    muster_server_free(server);
    muster_runtime_free(rt);
}

static void test_rpc_calls_under_way_to_a_removed_worker_end_by_its_name(void **state)
{
    struct member *members = *state;
    struct muster_rpc_request q = {.size = sizeof(struct muster_rpc_request),
                                   .to = "w0",
                                   .method = "t::T.wait",
                                   .timeout_ms = 20000};
    muster_rpc_future *futures[8];

    assert_int_equal(call(members[0].agent, "w0", "t::T.echo"), 0);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(muster_rpc_call(members[0].agent, &q, &futures[i]), 0);
    }
    assert_int_equal(muster_rpc_remove_worker(members[0].agent, "w0"), 0);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(muster_rpc_future_wait(futures[i], MUSTER_TIMEOUT_NEVER), MUSTER_EWORKER);
        assert_int_equal(muster_rpc_future_kind(futures[i]), MUSTER_RPC_REFUSED);
        assert_non_null(strstr(muster_rpc_future_errmsg(futures[i]), "w0"));
        muster_rpc_future_free(futures[i]);
    }
}

static void test_rpc_device_map_is_told_and_memory_is_the_default(void **state)
{
    static const struct muster_rpc_device_pair pairs[] = {{0, 3}, {1, 2}};
    struct member *members = *state;
    struct muster_rpc_device_pair got[4];

    assert_int_equal(muster_rpc_device_map(members[0].agent, "w0", got, 4), 0);
    assert_int_equal(muster_rpc_set_device_map(members[0].agent, "w0", pairs, 2), 0);
    assert_int_equal(muster_rpc_device_map(members[0].agent, "w0", got, 4), 2);
    assert_int_equal(got[1].remote, 2);
    assert_int_equal(muster_rpc_device_map(members[0].agent, "w1", got, 4), 0);
}

static void test_rpc_negative_retry_options_are_refused(void **state)
{
    enum { SIZE = sizeof(struct muster_rpc_retry) };
    static const struct muster_rpc_retry bad[] = {
        {SIZE, -1, 10, 1.5, 0},   {SIZE, 5, -1, 1.5, 0},   {SIZE, 5, 10, 0.5, 0},
        {SIZE, 5, 10, 1.5, -0.1}, {SIZE, 5, 10, 1.5, 1.1},
    };
    struct member *members = *state;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct muster_rpc_request q = {.size = sizeof(struct muster_rpc_request),
                                       .to = "w0",
                                       .method = "t::T.echo",
                                       .timeout_ms = 1000,
                                       .flags = MUSTER_RPC_RETRY,
                                       .retry = &bad[i]};
        muster_rpc_future *future = NULL;
        muster_rref *rref = NULL;

        assert_int_equal(muster_rpc_call(members[0].agent, &q, &future), MUSTER_EINVAL);
        assert_int_equal(muster_rref_remote(members[0].agent, &q, &rref), MUSTER_EINVAL);
        assert_true(muster_errmsg()[0] != '\0');
    }
}

#define IN_GROUP(test) cmocka_unit_test_setup_teardown(test, open_group, close_group)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_GROUP(test_rpc_all_gather_gives_everybody_the_objects_of_all),
        IN_GROUP(test_rpc_all_gather_names_who_did_not_come),
        IN_GROUP(test_rpc_all_gather_blames_nobody_who_had_come),
        IN_GROUP(test_rpc_all_gather_names_a_leader_that_did_not_come),
        IN_GROUP(test_rpc_broadcast_gives_everybody_the_roots_object),
        IN_GROUP(test_rpc_tag_that_is_in_use_here_is_busy),
        IN_GROUP(test_rpc_groups_that_cannot_be_are_refused),
        IN_GROUP(test_rpc_profiling_counts_by_method_while_it_is_on),
        IN_GROUP(test_rpc_device_map_is_told_and_memory_is_the_default),
        IN_GROUP(test_rpc_negative_retry_options_are_refused),
        IN_GROUP(test_rpc_calls_under_way_to_a_removed_worker_end_by_its_name),
        cmocka_unit_test(test_rpc_group_follows_a_rendezvous_as_workers_come_and_go),
        cmocka_unit_test(test_rpc_closing_a_rendezvous_waits_for_who_follows_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
