/* Leaving a group: nobody goes while a call is under way, the time that was given is kept, who is
 * missing is named, and nothing stays behind in the store. */
#include "rpc_group_rig.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static int running;
static bool released;

/* Runs until the test says so. */
static void hang(muster_rpc_call_in *call, void *context)
{
    (void)context;
    (void)pthread_mutex_lock(&lock);
    running++;
    (void)pthread_cond_broadcast(&cond);
    while (!released) {
        (void)pthread_cond_wait(&cond, &lock);
    }
    running--;
    (void)pthread_mutex_unlock(&lock);
    muster_rpc_reply(call, NULL, 0);
}

static void release(void)
{
    (void)pthread_mutex_lock(&lock);
    released = true;
    (void)pthread_cond_broadcast(&cond);
    (void)pthread_mutex_unlock(&lock);
}

static void *leave(void *context)
{
    struct member *w = context;

    w->status = muster_rpc_leave_group(w->agent, w->store, w->timeout_ms);
    (void)snprintf(w->text, sizeof(w->text), "%s", w->status == 0 ? "" : muster_errmsg());
    (void)pthread_mutex_lock(&lock);
    w->early = w->status == 0 && running != 0;
    (void)pthread_mutex_unlock(&lock);
    return NULL;
}

static int open_group(void **state)
{
    running = 0;
    released = false;
    (void)open_server(state);
    start_all();
    for (int i = 0; i < WORKERS; i++) {
        assert_int_equal(
            muster_rpc_register(m[i].agent, "t::T.hang", hang, NULL, MUSTER_RPC_BLOCKS), 0);
    }
    join_all();
    return 0;
}

static muster_rpc_future *call_that_hangs(int from, const char *to)
{
    struct muster_rpc_request q = muster_rpc_request_defaults();
    muster_rpc_future *future = NULL;

    q.to = to;
    q.method = "t::T.hang";
    q.timeout_ms = MUSTER_TIMEOUT_NEVER;
    assert_int_equal(muster_rpc_call(m[from].agent, &q, &future), 0);
    (void)pthread_mutex_lock(&lock);
    while (running == 0) {
        (void)pthread_cond_wait(&cond, &lock);
    }
    (void)pthread_mutex_unlock(&lock);
    return future;
}

static void leave_some(int count, int64_t timeout_ms)
{
    for (int i = 0; i < count; i++) {
        m[i].timeout_ms = timeout_ms;
        begin(&m[i], leave);
    }
    for (int i = 0; i < count; i++) {
        await(&m[i]);
    }
}

static void all_leave(void)
{
    leave_some(WORKERS, 60000);
    for (int i = 0; i < WORKERS; i++) {
        says(&m[i], 0, "");
    }
}

static void test_rpc_leave_keeps_its_time_while_a_call_is_under_way(void **state)
{
    muster_rpc_future *future = call_that_hangs(0, "w1");
    int64_t begun = now_ms();

    (void)state;
    leave_some(WORKERS, 3000);
    assert_true(now_ms() - begun < 30000);
    says(&m[0], MUSTER_ETIMEDOUT, "t::T.hang to w1");
    says(&m[1], MUSTER_ETIMEDOUT, "t::T.hang from w0");
    says(&m[2], MUSTER_ETIMEDOUT, "calls under way: w0 w1");
    says(&m[3], MUSTER_ETIMEDOUT, "calls under way: w0 w1");
    /* One place for each in the group, one for each that has come and waits, and the last word. */
    assert_true(keys_left() <= WORKERS + WORKERS + 1);
    release();
    all_leave();
    assert_int_equal(muster_rpc_future_wait(future, 0), 0);
    muster_rpc_future_free(future);
    assert_int_equal(keys_left(), 0);
}

static void test_rpc_leave_waits_for_a_call_without_a_key_for_each_look(void **state)
{
    muster_rpc_future *future = call_that_hangs(2, "w0");

    (void)state;
    for (int i = 0; i < WORKERS; i++) {
        begin(&m[i], leave);
    }
    while (keys_left() == WORKERS) {
        (void)nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    for (int i = 0; i < 100; i++) {
        assert_true(keys_left() <= WORKERS + WORKERS + 2);
        (void)nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
    release();
    for (int i = 0; i < WORKERS; i++) {
        await(&m[i]);
        says(&m[i], 0, "");
        assert_false(m[i].early);
    }
    muster_rpc_future_free(future);
    assert_int_equal(keys_left(), 0);
}

static void test_rpc_leave_names_who_has_not_come(void **state)
{
    (void)state;
    leave_some(2, 1500);
    says(&m[0], MUSTER_ETIMEDOUT, "not come: w2 w3");
    says(&m[1], MUSTER_ETIMEDOUT, "not come: w2 w3");
    /* They are in the group as before, and may wait again. */
    all_leave();
    assert_int_equal(keys_left(), 0);
}

static void test_rpc_leave_is_for_those_who_are_in_a_group(void **state)
{
    (void)state;
    all_leave();
    (void)leave(&m[0]);
    says(&m[0], MUSTER_EINVAL, "no group");
    /* The name may be used again, since nothing of it is left. */
    join_all();
    all_leave();
    assert_int_equal(keys_left(), 0);
}

static void test_rpc_leave_by_two_threads_is_one_too_many(void **state)
{
    struct member twin = m[0];

    (void)state;
    begin(&m[0], leave);
    while (keys_left() == WORKERS) {
        (void)nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    (void)leave(&twin);
    says(&twin, MUSTER_EBUSY, "leav");
    for (int i = 1; i < WORKERS; i++) {
        begin(&m[i], leave);
    }
    for (int i = 0; i < WORKERS; i++) {
        await(&m[i]);
        says(&m[i], 0, "");
    }
}

static int64_t keys_when_the_first_has_left;

/* The worker with the id 0 has the store. */
static void *leave_and_end_the_store(void *context)
{
    (void)leave(context);
    keys_when_the_first_has_left = keys_left();
    muster_server_free(server);
    server = NULL;
    return NULL;
}

/* Holds up the runtime of one worker when it may go. */
static void dawdle(muster_op *op, const struct muster_change *change, void *context)
{
    const char *key = change->key.data;

    (void)op;
    (void)context;
    if (change->key.len > 3 && memcmp(key + change->key.len - 3, "/go", 3) == 0) {
        (void)nanosleep(&(struct timespec){.tv_nsec = 400000000}, NULL);
    }
}

/* So that it may have the store. */
static void test_rpc_worker_0_leaves_last(void **state)
{
    struct muster_bytes prefix = muster_str("rpc/g/leave/");
    struct muster_store_request watch = {.size = sizeof(struct muster_store_request),
                                         .verb = MUSTER_STORE_WATCH,
                                         .keys = &prefix,
                                         .key_count = 1,
                                         .flags = MUSTER_STORE_PREFIX,
                                         .timeout_ms = MUSTER_TIMEOUT_NEVER,
                                         .on_change = dawdle};
    muster_runtime *other = NULL;
    muster_op *op = NULL;
    char url[128];

    (void)state;
    (void)snprintf(url, sizeof(url), "tcp://%s", muster_server_address(server));
    muster_store_close(m[3].store);
    assert_int_equal(muster_runtime_new(&other), 0);
    assert_int_equal(muster_store_open(other, url, NULL, &m[3].store), 0);
    assert_int_equal(muster_store_submit(m[3].store, &watch, &op), 0);
    for (int i = 0; i < WORKERS; i++) {
        begin(&m[i], i == 0 ? leave_and_end_the_store : leave);
    }
    for (int i = 0; i < WORKERS; i++) {
        await(&m[i]);
        says(&m[i], 0, "");
    }
    assert_int_equal(keys_when_the_first_has_left, 0);
    muster_op_free(op);
    muster_store_close(m[3].store);
    m[3].store = NULL;
    muster_runtime_free(other);
}

#define IN_GROUP(test) cmocka_unit_test_setup_teardown(test, open_group, close_server)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_GROUP(test_rpc_leave_keeps_its_time_while_a_call_is_under_way),
        IN_GROUP(test_rpc_leave_waits_for_a_call_without_a_key_for_each_look),
        IN_GROUP(test_rpc_leave_names_who_has_not_come),
        IN_GROUP(test_rpc_leave_is_for_those_who_are_in_a_group),
        IN_GROUP(test_rpc_leave_by_two_threads_is_one_too_many),
        IN_GROUP(test_rpc_worker_0_leaves_last),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
