/* Functions that wait, called on the runtime's own thread: those that return something return
 * MUSTER_EINVAL, the others do nothing, and nothing hangs. One program for all headers. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <muster/muster.h>

static muster_runtime *rt;
static muster_server *server;
static muster_store *store;
static muster_rpc_agent *agent;
static char url[128];

/* Has `run` called on the runtime's thread and waits until it has returned. */
struct visit {
    void (*run)(void);
    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool done;
};

static void on_loop(muster_op *op, void *context)
{
    struct visit *v = context;

    (void)op;
    v->run();
    (void)pthread_mutex_lock(&v->lock);
    v->done = true;
    (void)pthread_cond_signal(&v->cond);
    (void)pthread_mutex_unlock(&v->lock);
}

static void visit(void (*run)(void))
{
    struct visit v = {
        .run = run, .lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};
    struct muster_store_request q = {.size = sizeof(struct muster_store_request),
                                     .verb = MUSTER_STORE_NUM_KEYS,
                                     .timeout_ms = 20000,
                                     .done = on_loop,
                                     .context = &v};
    muster_op *op = NULL;

    assert_int_equal(muster_store_submit(store, &q, &op), 0);
    (void)pthread_mutex_lock(&v.lock);
    while (!v.done) {
        (void)pthread_cond_wait(&v.cond, &v.lock);
    }
    (void)pthread_mutex_unlock(&v.lock);
    muster_op_free(op);
}

static int open_all(void **state)
{
    struct muster_server_config config = muster_server_config_defaults();
    struct muster_rpc_config rpc = muster_rpc_config_defaults();

    (void)state;
    assert_int_equal(muster_runtime_new(&rt), 0);
    config.listen = "127.0.0.1:0";
    assert_int_equal(muster_server_start(rt, &config, &server), 0);
    (void)snprintf(url, sizeof(url), "tcp://%s", muster_server_address(server));
    assert_int_equal(muster_store_open(rt, url, NULL, &store), 0);
    rpc.name = "a";
    rpc.id = 0;
    rpc.listen = "127.0.0.1:0";
    assert_int_equal(muster_rpc_start(rt, &rpc, &agent), 0);
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    muster_rpc_shutdown(agent);
    muster_store_close(store);
    muster_server_free(server);
    muster_runtime_free(rt);
    return 0;
}

/* --- stores and servers ----------------------------------------------------------------------- */

static int results[8];

static void use_server(void)
{
    struct muster_server_config config = muster_server_config_defaults();
    muster_server *other = NULL;

    config.listen = "127.0.0.1:0";
    results[0] = muster_server_start(rt, &config, &other);
    results[1] = muster_server_wait(server);
    muster_server_free(server); /* It would wait: it stays. */
    muster_store_close(store);
    muster_runtime_free(rt);
    results[2] = muster_store_open(rt, url, NULL, &(muster_store *){NULL});
}

static void test_on_loop_server_and_store_do_not_wait_for_themselves(void **state)
{
    int64_t count = -1;

    (void)state;
    visit(use_server);
    assert_int_equal(results[0], MUSTER_EINVAL);
    assert_int_equal(results[1], MUSTER_EINVAL);
    assert_int_equal(results[2], MUSTER_EINVAL);
    assert_int_equal(muster_store_num_keys(store, &count, 20000), 0);
    assert_int_equal(count, 0);
}

static void drain(void)
{
    muster_server_drain(server);
}

static void test_on_loop_a_server_can_be_drained(void **state)
{
    (void)state;
    visit(drain);
    assert_int_equal(muster_server_wait(server), 0);
}

/* --- RPC -------------------------------------------------------------------------------------- */

static void use_rpc(void)
{
    static const char *const workers[] = {"a"};
    struct muster_rdzv_info round = {.store = store, .world_size = 1};
    struct muster_values values;
    struct muster_value value;

    results[0] = muster_rpc_join_group(agent, store, "g", 1, 1000);
    results[1] = muster_rpc_leave_group(agent, store, 1000);
    results[2] = muster_rpc_follow_round(agent, &round, 1000);
    results[3] = muster_rpc_all_gather(agent, workers, 1, "t", muster_str(""), 1000, &values);
    results[4] = muster_rpc_broadcast(agent, workers, 1, "a", "t", muster_str(""), 1000, &value);
    muster_rpc_shutdown(agent);
    /* What does not wait may be called. */
    results[5] = muster_rpc_add_worker(agent, "b", 1, "127.0.0.1:1");
    results[6] = muster_rpc_remove_worker(agent, "b");
    results[7] = (int)muster_rpc_workers(agent, NULL, 0);
}

static void test_on_loop_rpc_does_not_wait_for_itself(void **state)
{
    (void)state;
    visit(use_rpc);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(results[i], MUSTER_EINVAL);
    }
    assert_int_equal(results[5], 0);
    assert_int_equal(results[6], 0);
    assert_int_equal(results[7], 0);
    assert_int_equal(muster_rpc_join_group(agent, store, "g", 1, 20000), 0);
    assert_int_equal(muster_rpc_leave_group(agent, store, 20000), 0);
}

#define WITH_ALL(test) cmocka_unit_test_setup_teardown(test, open_all, close_all)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_ALL(test_on_loop_rpc_does_not_wait_for_itself),
        WITH_ALL(test_on_loop_server_and_store_do_not_wait_for_themselves),
        WITH_ALL(test_on_loop_a_server_can_be_drained),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
