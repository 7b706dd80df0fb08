/* Remote references as their users have them: three workers in one process, real sockets. */
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

#define WORKERS 3
#define THREADS 8
#define ROUNDS  25

struct trio {
    muster_runtime *rt[WORKERS];
    muster_rpc_agent *agent[WORKERS];
    pthread_mutex_t lock;
    muster_rref *kept[64]; /* that handlers have taken */
    size_t kept_count;
};

static const char *const names[WORKERS] = {"a", "b", "c"};

/* --- handlers --------------------------------------------------------------------------------- */

static void make(muster_rpc_call_in *call, void *context)
{
    struct muster_rpc_part part = muster_rpc_in_part(call, 0);

    (void)context;
    if (part.data.len == 4 && memcmp(part.data.data, "fail", 4) == 0) {
        muster_rpc_fail(call, MUSTER_EREMOTE, "the disk is full");
    } else {
        muster_rpc_reply(call, &part, 1);
    }
}

static void make_slowly(muster_rpc_call_in *call, void *context)
{
    (void)muster_rpc_in_wait_canceled(call, 50);
    make(call, context);
}

struct keeper {
    struct trio *trio;
    muster_rpc_agent *agent;
};

/* Takes the last part, and keeps it. */
static void keep(muster_rpc_call_in *call, void *context)
{
    struct keeper *k = context;
    muster_rref *rref = NULL;
    int err = muster_rref_take(
        k->agent, muster_rpc_in_part(call, muster_rpc_in_part_count(call) - 1).data, &rref);

    if (err != 0) {
        muster_rpc_fail(call, err, muster_errmsg());
        return;
    }
    (void)pthread_mutex_lock(&k->trio->lock);
    k->trio->kept[k->trio->kept_count++ % 64] = rref;
    (void)pthread_mutex_unlock(&k->trio->lock);
    muster_rpc_reply(call, NULL, 0);
}

/* Takes the last part, reads it, lets go of it. */
static void read_it(muster_rpc_call_in *call, void *context)
{
    struct keeper *k = context;
    muster_rpc_future *value = NULL;
    muster_rref *rref = NULL;
    int err = muster_rref_take(
        k->agent, muster_rpc_in_part(call, muster_rpc_in_part_count(call) - 1).data, &rref);

    if (err == 0) {
        err = muster_rref_to_here(rref, 10000, &value);
        muster_rref_free(rref);
    }
    if (err != 0) {
        muster_rpc_fail(call, err, muster_errmsg());
    } else {
        struct muster_rpc_part part = muster_rpc_future_part(value, 0);

        muster_rpc_reply(call, &part, 1);
    }
    muster_rpc_future_free(value);
}

/* --- the rig ---------------------------------------------------------------------------------- */

static struct keeper keepers[WORKERS];

static void open_trio(struct trio *t)
{
    memset(t, 0, sizeof(*t));
    assert_int_equal(pthread_mutex_init(&t->lock, NULL), 0);
    for (int i = 0; i < WORKERS; i++) {
        struct muster_rpc_config config = muster_rpc_config_defaults();

        assert_int_equal(muster_runtime_new(&t->rt[i]), 0);
        config.name = names[i];
        config.id = i;
        config.listen = "127.0.0.1:0";
        assert_int_equal(muster_rpc_start(t->rt[i], &config, &t->agent[i]), 0);
        keepers[i] = (struct keeper){t, t->agent[i]};
        assert_int_equal(muster_rpc_register(t->agent[i], "t::V.make", make, NULL, 0), 0);
        assert_int_equal(
            muster_rpc_register(t->agent[i], "t::V.slow", make_slowly, NULL, MUSTER_RPC_BLOCKS), 0);
        assert_int_equal(muster_rpc_register(t->agent[i], "t::V.keep", keep, &keepers[i], 0), 0);
        assert_int_equal(
            muster_rpc_register(t->agent[i], "t::V.read", read_it, &keepers[i], MUSTER_RPC_BLOCKS),
            0);
    }
    for (int i = 0; i < WORKERS * WORKERS; i++) {
        assert_int_equal(muster_rpc_add_worker(t->agent[i / WORKERS], names[i % WORKERS],
                                               i % WORKERS,
                                               muster_rpc_address(t->agent[i % WORKERS])),
                         0);
    }
}

static void close_trio(struct trio *t)
{
    for (int i = 0; i < WORKERS; i++) {
        muster_rpc_shutdown(t->agent[i]);
        muster_runtime_free(t->rt[i]);
    }
    (void)pthread_mutex_destroy(&t->lock);
}

static struct muster_rpc_request request(const char *to, const char *method,
                                         const struct muster_rpc_part *part)
{
    return (struct muster_rpc_request){
        .size = sizeof(struct muster_rpc_request),
        .to = to,
        .method = method,
        .parts = part,
        .part_count = part == NULL ? 0 : 1,
        .timeout_ms = 20000,
    };
}

static muster_rref *remote(struct trio *t, int from, const char *to, const char *method,
                           const char *text)
{
    struct muster_rpc_part part = {muster_str(text), MUSTER_RPC_CPU};
    struct muster_rpc_request q = request(to, method, &part);
    muster_rref *rref = NULL;

    assert_int_equal(muster_rref_remote(t->agent[from], &q, &rref), 0);
    return rref;
}

static void assert_value(muster_rref *rref, const char *text)
{
    muster_rpc_future *future = NULL;
    struct muster_rpc_part part;

    assert_int_equal(muster_rref_to_here(rref, 20000, &future), 0);
    part = muster_rpc_future_part(future, 0);
    assert_int_equal(part.data.len, strlen(text));
    assert_memory_equal(part.data.data, text, part.data.len);
    muster_rpc_future_free(future);
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
    fail_msg("no metric %s", name);
    return 0;
}

/* Freeing is told by messages: asked for until it is so, or the test has waited too long. */
static void assert_freed(struct trio *t)
{
    uint64_t left = 1;

    for (int i = 0; i < 2000 && left != 0; i++) {
        left = 0;
        for (int k = 0; k < WORKERS; k++) {
            left += metric(t->agent[k], "agent.owner_rrefs") + metric(t->agent[k], "agent.users");
        }
        (void)nanosleep(&(struct timespec){.tv_nsec = left != 0 ? 5000000 : 0}, NULL);
    }
    assert_int_equal(left, 0);
}

/* --- tests ------------------------------------------------------------------------------------ */

static void test_rref_value_stays_with_its_owner_until_it_is_freed(void **state)
{
    struct muster_rpc_worker worker;
    muster_rpc_future *future;
    muster_rref *rref;
    struct trio t;

    (void)state;
    open_trio(&t);
    rref = remote(&t, 0, "b", "t::V.make", "hello");
    assert_int_equal(muster_rref_wait_confirmed(rref, 20000), 0);
    assert_true(muster_rref_is_confirmed(rref));
    assert_false(muster_rref_is_owner(rref));
    assert_string_equal(muster_rref_owner(rref), "b");
    assert_int_equal(muster_rref_owner_info(rref, &worker), 0);
    assert_int_equal(worker.id, 1);
    assert_value(rref, "hello");
    assert_value(rref, "hello");
    assert_int_equal(muster_rref_local_value(rref, 1000, &future), MUSTER_EINVAL);
    assert_int_equal(metric(t.agent[1], "agent.owner_rrefs"), 1);
    muster_rref_free(rref);
    assert_freed(&t);
    close_trio(&t);
}

static void test_rref_of_ones_own_is_there_at_once(void **state)
{
    struct muster_rpc_part part = {muster_str("mine"), MUSTER_RPC_CPU};
    muster_rpc_future *future = NULL;
    muster_rref *rref[2];
    struct trio t;

    (void)state;
    open_trio(&t);
    assert_int_equal(muster_rref_new(t.agent[0], &part, 1, &rref[0]), 0);
    rref[1] = remote(&t, 0, "a", "t::V.slow", "made here");
    assert_true(muster_rref_is_owner(rref[0]) && muster_rref_is_confirmed(rref[0]));
    assert_value(rref[0], "mine");
    assert_value(rref[1], "made here");
    assert_int_equal(muster_rref_local_value(rref[1], 1000, &future), 0);
    muster_rpc_future_free(future);
    muster_rref_free(rref[0]);
    muster_rref_free(rref[1]);
    assert_freed(&t);
    close_trio(&t);
}

static void test_rref_failure_of_the_making_is_told_to_whoever_asks(void **state)
{
    muster_rpc_future *future = NULL;
    muster_rref *rref[3];
    struct trio t;

    (void)state;
    open_trio(&t);
    rref[0] = remote(&t, 0, "b", "t::V.make", "fail");
    rref[1] = remote(&t, 0, "b", "t::V.none", "x");
    rref[2] = remote(&t, 0, "a", "t::V.make", "fail");
    assert_int_equal(muster_rref_to_here(rref[0], 20000, &future), MUSTER_EREMOTE);
    assert_non_null(strstr(muster_errmsg(), "the disk is full"));
    assert_non_null(strstr(muster_errmsg(), "b"));
    assert_int_equal(muster_rref_to_here(rref[1], 20000, &future), MUSTER_ENOMETHOD);
    assert_int_equal(muster_rref_to_here(rref[2], 20000, &future), MUSTER_EREMOTE);
    assert_non_null(strstr(muster_errmsg(), "the disk is full"));
    for (int i = 0; i < 3; i++) {
        muster_rref_free(rref[i]);
    }
    assert_freed(&t);
    close_trio(&t);
}

static void test_rref_passed_on_outlives_the_one_it_came_from(void **state)
{
    struct muster_rpc_request q = request("c", "t::V.keep", NULL);
    muster_rpc_future *future;
    muster_rref *rref;
    struct trio t;

    (void)state;
    open_trio(&t);
    rref = remote(&t, 0, "b", "t::V.slow", "passed");
    assert_int_equal(muster_rref_wait_confirmed(rref, 20000), 0);
    assert_int_equal(muster_rref_call(t.agent[0], &q, &rref, 1, &future), 0);
    muster_rref_free(rref);
    assert_int_equal(muster_rpc_future_wait(future, MUSTER_TIMEOUT_NEVER), 0);
    muster_rpc_future_free(future);
    assert_int_equal(t.kept_count, 1);
    assert_string_equal(muster_rref_owner(t.kept[0]), "b");
    assert_value(t.kept[0], "passed");
    /* And home, where its owner has one of its own. */
    q.to = "b";
    assert_int_equal(muster_rref_call(t.agent[2], &q, &t.kept[0], 1, &future), 0);
    assert_int_equal(muster_rpc_future_wait(future, MUSTER_TIMEOUT_NEVER), 0);
    muster_rpc_future_free(future);
    muster_rref_free(t.kept[0]);
    assert_true(muster_rref_is_owner(t.kept[1]));
    assert_value(t.kept[1], "passed");
    muster_rref_free(t.kept[1]);
    assert_freed(&t);
    close_trio(&t);
}

static void test_rref_token_that_nobody_takes_is_void_with_its_call(void **state)
{
    struct muster_rref_token token;
    struct muster_rpc_request q = request("c", "t::V.none", NULL);
    muster_rpc_future *future;
    muster_rref *rref;
    muster_rref *other = NULL;
    struct trio t;

    (void)state;
    open_trio(&t);
    rref = remote(&t, 0, "b", "t::V.make", "x");
    assert_int_equal(muster_rref_wait_confirmed(rref, 20000), 0);
    assert_int_equal(muster_rref_call(t.agent[0], &q, &rref, 1, &future), 0);
    assert_int_equal(muster_rpc_future_wait(future, MUSTER_TIMEOUT_NEVER), MUSTER_ENOMETHOD);
    muster_rpc_future_free(future);
    /* One by hand: taken once, not twice; and what is no token is refused. */
    assert_int_equal(muster_rref_fork(rref, "c", &token), 0);
    assert_int_equal(
        muster_rref_take(t.agent[2], (struct muster_bytes){token.bytes, token.len}, &other), 0);
    assert_value(other, "x");
    muster_rref_free(other);
    assert_int_not_equal(
        muster_rref_take(t.agent[2], (struct muster_bytes){token.bytes, token.len}, &other), 0);
    assert_int_equal(muster_rref_take(t.agent[2], muster_str("nonsense"), &other), MUSTER_EPROTO);
    muster_rref_fork_end(t.agent[0], &token);
    muster_rref_free(rref);
    assert_freed(&t);
    close_trio(&t);
}

static void test_rref_of_a_removed_worker_is_released(void **state)
{
    struct muster_rpc_request q = request("c", "t::V.keep", NULL);
    muster_rpc_future *future = NULL;
    muster_rref *rref;
    struct trio t;

    (void)state;
    open_trio(&t);
    rref = remote(&t, 0, "b", "t::V.make", "x");
    assert_int_equal(muster_rref_wait_confirmed(rref, 20000), 0);
    assert_int_equal(muster_rref_call(t.agent[0], &q, &rref, 1, &future), 0);
    assert_int_equal(muster_rpc_future_wait(future, MUSTER_TIMEOUT_NEVER), 0);
    muster_rpc_future_free(future);
    assert_int_equal(muster_rref_wait_confirmed(t.kept[0], 20000), 0);
    muster_rref_free(rref);
    assert_int_equal(muster_rpc_remove_worker(t.agent[0], "c"), 0);
    assert_int_equal(muster_rpc_remove_worker(t.agent[1], "c"), 0);
    for (int i = 0; i < 2000 && metric(t.agent[1], "agent.owner_rrefs") != 0; i++) {
        (void)nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    assert_int_equal(metric(t.agent[1], "agent.owner_rrefs"), 0);
    assert_int_equal(muster_rref_to_here(t.kept[0], 20000, &future), MUSTER_ENOENT);
    /* The owner is removed where the reference is. */
    assert_int_equal(muster_rpc_remove_worker(t.agent[2], "b"), 0);
    assert_int_equal(muster_rref_to_here(t.kept[0], 20000, &future), MUSTER_EWORKER);
    assert_non_null(strstr(muster_errmsg(), "b"));
    muster_rref_free(t.kept[0]);
    close_trio(&t);
}

static void test_rref_outlives_its_agent_as_a_dead_one(void **state)
{
    muster_rpc_future *future = NULL;
    muster_rref *rref;
    struct trio t;

    (void)state;
    open_trio(&t);
    rref = remote(&t, 0, "b", "t::V.slow", "x");
    close_trio(&t);
    assert_int_equal(muster_rref_wait_confirmed(rref, 0), MUSTER_ECLOSED);
    assert_int_equal(muster_rref_fetch(rref, 10, NULL, NULL, &future), MUSTER_ECLOSED);
    muster_rref_free(rref);
}

/* --- threads ---------------------------------------------------------------------------------- */

struct thread {
    struct trio *trio;
    int number;
    int failed;
};

static void *live(void *context)
{
    struct thread *th = context;
    int from = th->number % WORKERS;

    for (int i = 0; i < ROUNDS; i++) {
        char text[32];
        struct muster_rpc_request q = request(names[(i + 1) % WORKERS], "t::V.read", NULL);
        muster_rpc_future *future = NULL;
        muster_rref *rref;

        (void)snprintf(text, sizeof(text), "%d of %d", i, th->number);
        rref = remote(th->trio, from, names[i % WORKERS], "t::V.make", text);
        if (muster_rref_wait_confirmed(rref, 20000) != 0 ||
            muster_rref_call(th->trio->agent[from], &q, &rref, 1, &future) != 0) {
            th->failed++;
        } else {
            muster_rref_free(rref);
            rref = NULL;
            if (muster_rpc_future_wait(future, MUSTER_TIMEOUT_NEVER) != 0 ||
                muster_rpc_future_part(future, 0).data.len != strlen(text) ||
                memcmp(muster_rpc_future_part(future, 0).data.data, text, strlen(text)) != 0) {
                th->failed++;
            }
            muster_rpc_future_free(future);
        }
        muster_rref_free(rref);
    }
    return NULL;
}

static void test_rref_from_many_threads_leaves_nothing(void **state)
{
    struct thread threads[THREADS];
    pthread_t ids[THREADS];
    struct trio t;

    (void)state;
    open_trio(&t);
    for (int i = 0; i < THREADS; i++) {
        threads[i] = (struct thread){.trio = &t, .number = i};
        assert_int_equal(pthread_create(&ids[i], NULL, live, &threads[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(ids[i], NULL), 0);
        assert_int_equal(threads[i].failed, 0);
    }
    assert_freed(&t);
    close_trio(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rref_value_stays_with_its_owner_until_it_is_freed),
        cmocka_unit_test(test_rref_of_ones_own_is_there_at_once),
        cmocka_unit_test(test_rref_failure_of_the_making_is_told_to_whoever_asks),
        cmocka_unit_test(test_rref_passed_on_outlives_the_one_it_came_from),
        cmocka_unit_test(test_rref_token_that_nobody_takes_is_void_with_its_call),
        cmocka_unit_test(test_rref_of_a_removed_worker_is_released),
        cmocka_unit_test(test_rref_outlives_its_agent_as_a_dead_one),
        cmocka_unit_test(test_rref_from_many_threads_leaves_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
