/*
 * Timeouts mean the same in every function that takes one: -1 is no bound, -2 the default, 0 not to
 * wait, other numbers below zero nothing at all, and the longest is as good as any other.
 */
#include "rpc_two_rig.h"

static muster_store *store;
static muster_state *state;
static muster_rpc_future *ended;   /* a call */
static muster_rpc_stream *over;    /* a stream to a worker that does not exist */
static muster_rref *here;          /* a reference to a value of `a` */
static muster_rdzv *rdzv;          /* of a backend of ours */
static int64_t asked_ms;           /* the timeout that it was given */
static muster_queue *queue;        /* with the next two in it */
static muster_op *ended_op;        /* one that has ended */
static muster_state_loading *load; /* likewise */
static muster_average *average;
static muster_rpc_call_in *call_in; /* a call that was canceled */
static unsigned groups;             /* so that each group has a name of its own */

#define KEY muster_str("k")
static const struct muster_bytes key = {"k", 1};

/* --- operations of a store -------------------------------------------------------------------- */

static int ask_set(int64_t ms)
{
    return muster_store_set(store, KEY, muster_str("1"), ms);
}

static int ask_set_leased(int64_t ms)
{
    return muster_store_set_leased(store, muster_str("leased"), KEY, MUSTER_LEASE_SESSION, ms);
}

static int ask_get(int64_t ms)
{
    struct muster_value value = {0};
    int err = muster_store_get(store, KEY, &value, ms);

    muster_value_free(&value);
    return err;
}

static int ask_add(int64_t ms)
{
    return muster_store_add(store, muster_str("n"), 1, NULL, ms);
}

static int ask_compare_set(int64_t ms)
{
    struct muster_value value = {0};
    int err = muster_store_compare_set(store, KEY, KEY, KEY, &value, NULL, ms);

    muster_value_free(&value);
    return err;
}

static int ask_check(int64_t ms)
{
    bool there;

    return muster_store_check(store, &key, 1, &there, ms);
}

static int ask_wait(int64_t ms)
{
    return muster_store_wait(store, &key, 1, ms);
}

static int ask_delete(int64_t ms)
{
    return muster_store_delete(store, muster_str("absent"), NULL, ms);
}

static int ask_num_keys(int64_t ms)
{
    int64_t count;

    return muster_store_num_keys(store, &count, ms);
}

static int ask_list_keys(int64_t ms)
{
    struct muster_values keys = {0};
    int err = muster_store_list_keys(store, KEY, &keys, ms);

    muster_values_free(&keys);
    return err;
}

static int ask_append(int64_t ms)
{
    return muster_store_append(store, muster_str("appended"), KEY, ms);
}

static int ask_multi_get(int64_t ms)
{
    struct muster_values values = {0};
    int err = muster_store_multi_get(store, &key, 1, &values, ms);

    muster_values_free(&values);
    return err;
}

static int ask_multi_set(int64_t ms)
{
    return muster_store_multi_set(store, &key, &key, 1, ms);
}

static int ask_queue_push(int64_t ms)
{
    return muster_store_queue_push(store, muster_str("q"), KEY, ms);
}

static int ask_queue_pop(int64_t ms)
{
    struct muster_value value = {0};
    int err = muster_store_queue_pop(store, muster_str("q"), true, &value, ms);

    muster_value_free(&value);
    return err;
}

static int ask_queue_len(int64_t ms)
{
    int64_t len;

    return muster_store_queue_len(store, muster_str("q"), &len, ms);
}

static int ask_barrier(int64_t ms)
{
    return muster_store_barrier(store, muster_str("b"), 1, ms);
}

static int ask_lease_grant(int64_t ms)
{
    uint64_t lease;

    return muster_store_lease_grant(store, 60000, &lease, ms);
}

static int ask_lease_keep(int64_t ms)
{
    return muster_store_lease_keep(store, 12345, ms);
}

static int ask_lease_revoke(int64_t ms)
{
    return muster_store_lease_revoke(store, 12345, ms);
}

static int ask_submit(int64_t ms)
{
    struct muster_store_request q = muster_store_request_defaults();
    muster_op *op;
    int err;

    q.verb = MUSTER_STORE_NUM_KEYS;
    q.timeout_ms = ms;
    err = muster_store_submit(store, &q, &op);
    if (err == 0) {
        err = muster_op_wait(op);
        muster_op_free(op);
    }
    return err;
}

static int open_store(int64_t ms, int64_t connect_ms)
{
    struct muster_store_config config = muster_store_config_defaults();
    muster_store *opened;
    int err;

    config.timeout_ms = ms;
    config.connect_timeout_ms = connect_ms;
    err = muster_store_open(rt, "hash:", &config, &opened);
    if (err == 0) {
        muster_store_close(opened);
    }
    return err;
}

static int ask_store_open(int64_t ms)
{
    return open_store(ms, 1000);
}

static int ask_store_connect(int64_t ms)
{
    return open_store(1000, ms);
}

static int ask_store_set_timeout(int64_t ms)
{
    return muster_store_set_timeout(store, ms);
}

/* --- calls ------------------------------------------------------------------------------------ */

static int start_with(int64_t ms, int64_t connect_ms, int64_t reconnect_ms)
{
    struct muster_rpc_config config = muster_rpc_config_defaults();
    muster_rpc_agent *started;
    int err;

    config.name = "c";
    config.listen = NULL;
    config.timeout_ms = ms;
    config.connect_timeout_ms = connect_ms;
    config.reconnect_timeout_ms = reconnect_ms;
    err = muster_rpc_start(rt, &config, &started);
    if (err == 0) {
        muster_rpc_shutdown(started);
    }
    return err;
}

static int ask_rpc_start(int64_t ms)
{
    return start_with(ms, 1000, 1000);
}

static int ask_rpc_connect(int64_t ms)
{
    return start_with(1000, ms, 1000);
}

static int ask_rpc_reconnect(int64_t ms)
{
    return start_with(1000, 1000, ms);
}

static int ask_rpc_set_timeout(int64_t ms)
{
    return muster_rpc_set_timeout(b, ms);
}

static struct muster_rpc_request to_b(int64_t ms)
{
    struct muster_rpc_request q = muster_rpc_request_defaults();

    q.to = "b";
    q.method = "t::T.echo";
    q.timeout_ms = ms;
    return q;
}

static int ask_call(int64_t ms)
{
    struct muster_rpc_request q = to_b(ms);
    muster_rpc_future *future;
    int err = muster_rpc_call(a, &q, &future);

    if (err == 0) {
        err = muster_rpc_future_wait(future, MUSTER_TIMEOUT_NEVER);
        muster_rpc_future_free(future);
    }
    return err;
}

static int ask_sync(int64_t ms)
{
    struct muster_rpc_request q = to_b(ms);
    muster_rpc_future *future = NULL;
    int err = muster_rpc_sync(a, &q, &future);

    muster_rpc_future_free(future);
    return err;
}

static int ask_stream_open(int64_t ms)
{
    struct muster_rpc_request q = to_b(ms);
    muster_rpc_stream *stream = NULL;
    int err = muster_rpc_stream_open(a, &q, &stream);

    muster_rpc_stream_close(stream);
    return err;
}

static int ask_remote(int64_t ms)
{
    struct muster_rpc_request q = to_b(ms);
    muster_rref *rref = NULL;
    int err = muster_rref_remote(a, &q, &rref);

    muster_rref_free(rref);
    return err;
}

static int ask_fetch(int64_t ms)
{
    muster_rpc_future *future = NULL;
    int err = muster_rref_fetch(here, ms, NULL, NULL, &future);

    muster_rpc_future_free(future);
    return err;
}

static int ask_to_here(int64_t ms)
{
    muster_rpc_future *future = NULL;
    int err = muster_rref_to_here(here, ms, &future);

    muster_rpc_future_free(future);
    return err;
}

static int ask_local_value(int64_t ms)
{
    muster_rpc_future *future = NULL;
    int err = muster_rref_local_value(here, ms, &future);

    muster_rpc_future_free(future);
    return err;
}

/* --- groups ----------------------------------------------------------------------------------- */

static int ask_join_group(int64_t ms)
{
    char name[32];

    (void)snprintf(name, sizeof(name), "g%u", groups++);
    return muster_rpc_join_group(a, store, name, 1, ms);
}

static int ask_leave_group(int64_t ms)
{
    assert_int_equal(ask_join_group(1000), 0);
    return muster_rpc_leave_group(a, store, ms);
}

static int ask_follow_round(int64_t ms)
{
    struct muster_rdzv_info round = {
        .store = store, .store_url = "hash:", .world_size = 1, .round = ++groups};

    return muster_rpc_follow_round(a, &round, ms);
}

static int ask_follow(int64_t ms)
{
    struct muster_rpc_following following = muster_rpc_following_defaults();

    following.timeout_ms = ms;
    return muster_rpc_follow(a, rdzv, &following);
}

static int ask_all_gather(int64_t ms)
{
    struct muster_values values = {0};
    int err = muster_rpc_all_gather(a, &(const char *){"a"}, 1, "tag", KEY, ms, &values);

    muster_values_free(&values);
    return err;
}

static int ask_broadcast(int64_t ms)
{
    struct muster_value value = {0};
    int err = muster_rpc_broadcast(a, &(const char *){"a"}, 1, "a", "tag", KEY, ms, &value);

    muster_value_free(&value);
    return err;
}

/* --- states ----------------------------------------------------------------------------------- */

static int ask_announce(int64_t ms)
{
    return muster_state_announce(state, store, "job", ms);
}

static int ask_load(int64_t ms)
{
    struct muster_state_request request = muster_state_request_defaults();

    request.donors = &(const char *){muster_state_address(state)};
    request.donor_count = 1;
    request.timeout_ms = ms;
    return muster_state_load(rt, &request, NULL);
}

/* Its last step was not taken, so it refuses another, after it has looked at the timeout. */
static int ask_average_step(int64_t ms)
{
    return muster_average_step(average, 1, ms, NULL);
}

/* --- those that only ask ---------------------------------------------------------------------- */

static int ask_future_wait(int64_t ms)
{
    return muster_rpc_future_wait(ended, ms);
}

static int ask_op_wait_for(int64_t ms)
{
    return muster_op_wait_for(ended_op, ms);
}

static int ask_queue_wait(int64_t ms)
{
    return muster_queue_wait(queue, ms);
}

static int ask_load_wait(int64_t ms)
{
    return muster_state_load_wait(load, ms);
}

static int ask_average_wait(int64_t ms)
{
    return muster_average_wait(average, ms);
}

static int ask_stream_send(int64_t ms)
{
    return muster_rpc_stream_send(over, NULL, 0, ms);
}

static int ask_stream_recv(int64_t ms)
{
    const struct muster_rpc_part *parts;
    size_t count;

    return muster_rpc_stream_recv(over, &parts, &count, ms);
}

static int ask_in_wait_canceled(int64_t ms)
{
    return muster_rpc_in_wait_canceled(call_in, ms);
}

static int ask_wait_confirmed(int64_t ms)
{
    return muster_rref_wait_confirmed(here, ms);
}

static int ask_rdzv_ended(int64_t ms)
{
    return muster_rdzv_ended(rdzv, ms);
}

static int ask_rdzv_explain(int64_t ms)
{
    return muster_rdzv_explain(rdzv, ms);
}

static int ask_rdzv_wait_event(int64_t ms)
{
    struct muster_rdzv_event event;

    return muster_rdzv_wait_event(rdzv, ms, &event);
}

/* --- the tables ------------------------------------------------------------------------------- */

struct row {
    const char *name;
    int (*ask)(int64_t ms);
    int status; /* with time enough */
};

/* They need time for an answer. */
static const struct row answered[] = {
    {"muster_store_set", ask_set, 0},
    {"muster_store_set_leased", ask_set_leased, 0},
    {"muster_store_get", ask_get, 0},
    {"muster_store_add", ask_add, 0},
    {"muster_store_compare_set", ask_compare_set, 0},
    {"muster_store_check", ask_check, 0},
    {"muster_store_wait", ask_wait, 0},
    {"muster_store_delete", ask_delete, 0},
    {"muster_store_num_keys", ask_num_keys, 0},
    {"muster_store_list_keys", ask_list_keys, 0},
    {"muster_store_append", ask_append, 0},
    {"muster_store_multi_get", ask_multi_get, 0},
    {"muster_store_multi_set", ask_multi_set, 0},
    {"muster_store_queue_push", ask_queue_push, 0},
    {"muster_store_queue_pop", ask_queue_pop, 0}, /* as many as were pushed */
    {"muster_store_queue_len", ask_queue_len, 0},
    {"muster_store_barrier", ask_barrier, 0},
    {"muster_store_lease_grant", ask_lease_grant, 0},
    {"muster_store_lease_keep", ask_lease_keep, MUSTER_ENOENT},
    {"muster_store_lease_revoke", ask_lease_revoke, MUSTER_ENOENT},
    {"muster_store_submit", ask_submit, 0},
    {"muster_store_open", ask_store_open, 0},
    {"muster_store_open, to connect", ask_store_connect, 0},
    {"muster_store_set_timeout", ask_store_set_timeout, 0},
    {"muster_rpc_start", ask_rpc_start, 0},
    {"muster_rpc_start, to connect", ask_rpc_connect, 0},
    {"muster_rpc_start, to connect again", ask_rpc_reconnect, 0},
    {"muster_rpc_set_timeout", ask_rpc_set_timeout, 0},
    {"muster_rpc_call", ask_call, 0},
    {"muster_rpc_sync", ask_sync, 0},
    {"muster_rpc_stream_open", ask_stream_open, 0},
    {"muster_rref_remote", ask_remote, 0},
    {"muster_rref_fetch", ask_fetch, 0},
    {"muster_rref_to_here", ask_to_here, 0},
    {"muster_rref_local_value", ask_local_value, 0},
    {"muster_rpc_join_group", ask_join_group, 0},
    {"muster_rpc_leave_group", ask_leave_group, 0},
    {"muster_rpc_follow_round", ask_follow_round, 0},
    {"muster_rpc_follow", ask_follow, 0},
    {"muster_rpc_all_gather", ask_all_gather, 0},
    {"muster_rpc_broadcast", ask_broadcast, 0},
    {"muster_state_announce", ask_announce, 0},
    {"muster_state_load", ask_load, MUSTER_ENOENT},
    {"muster_average_step", ask_average_step, MUSTER_EBUSY},
};

/* They ask, and what they ask for has happened. */
static const struct row asking[] = {
    {"muster_op_wait_for", ask_op_wait_for, 0},
    {"muster_queue_wait", ask_queue_wait, 0},
    {"muster_state_load_wait", ask_load_wait, 0},
    {"muster_average_wait", ask_average_wait, 0},
    {"muster_rpc_future_wait", ask_future_wait, 0},
    {"muster_rpc_stream_send", ask_stream_send, MUSTER_EWORKER},
    {"muster_rpc_stream_recv", ask_stream_recv, MUSTER_EWORKER},
    {"muster_rref_wait_confirmed", ask_wait_confirmed, 0},
    {"muster_rdzv_ended", ask_rdzv_ended, 0},
    {"muster_rdzv_explain", ask_rdzv_explain, MUSTER_ENOTSUP},
    {"muster_rdzv_wait_event", ask_rdzv_wait_event, MUSTER_ENOTSUP},
};

static const struct row in_a_handler[] = {
    {"muster_rpc_in_wait_canceled", ask_in_wait_canceled, 0},
};

static const char *fault; /* handlers run on other threads, where nothing may fail */
static char fault_text[400];

static bool expect(const struct row *row, int64_t ms, int status, const char *words)
{
    int err = row->ask(ms);

    if (err == status && (words == NULL || strstr(muster_errmsg(), words) != NULL)) {
        return true;
    }
    (void)snprintf(fault_text, sizeof(fault_text), "%s with a timeout of %lld: %d, not %d: %s",
                   row->name, (long long)ms, err, status, muster_errmsg());
    fault = fault_text;
    return false;
}

static bool try_all(const struct row *row, bool may_be_zero)
{
    static const int64_t good[] = {
        MUSTER_TIMEOUT_NEVER, MUSTER_TIMEOUT_DEFAULT,  60000,    INT32_MAX, (int64_t)INT32_MAX + 1,
        UINT32_MAX,           (int64_t)UINT32_MAX + 1, INT64_MAX};

    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        if (!expect(row, good[i], row->status, NULL)) {
            return false;
        }
    }
    return expect(row, 0, may_be_zero ? row->status : MUSTER_EINVAL,
                  may_be_zero ? NULL : "MUSTER_TIMEOUT_NEVER") &&
           expect(row, -3, MUSTER_EINVAL, "-3 is not a timeout") &&
           expect(row, INT64_MIN, MUSTER_EINVAL, "is not a timeout");
}

/* --- tests ------------------------------------------------------------------------------------ */

#define COUNT(table) (sizeof(table) / sizeof(table[0]))

static void test_timeout_of_what_is_answered(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < COUNT(answered); i++) {
        if (!try_all(&answered[i], false)) {
            fail_msg("%s", fault);
        }
    }
}

static void test_timeout_of_what_only_asks(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < COUNT(asking); i++) {
        if (!try_all(&asking[i], true)) {
            fail_msg("%s", fault);
        }
    }
}

static void test_timeout_is_told_as_it_was_given(void **unused)
{
    static const struct {
        int64_t given, store, rpc;
    } told[] = {
        {5, 5, 5},
        {MUSTER_TIMEOUT_NEVER, MUSTER_TIMEOUT_NEVER, MUSTER_TIMEOUT_NEVER},
        {INT64_MAX, INT32_MAX, INT32_MAX},
        {MUSTER_TIMEOUT_DEFAULT, 300000, 60000},
    };

    (void)unused;
    for (size_t i = 0; i < COUNT(told); i++) {
        assert_int_equal(muster_store_set_timeout(store, told[i].given), 0);
        assert_int_equal(muster_store_timeout(store), told[i].store);
        assert_int_equal(muster_rpc_set_timeout(b, told[i].given), 0);
        assert_int_equal(muster_rpc_timeout(b), told[i].rpc);
    }
    /* One that is refused changes nothing. */
    assert_int_equal(muster_store_set_timeout(store, 0), MUSTER_EINVAL);
    assert_int_equal(muster_store_timeout(store), 300000);
    assert_int_equal(muster_rpc_set_timeout(b, -3), MUSTER_EINVAL);
    assert_int_equal(muster_rpc_timeout(b), 60000);
}

/* A backend of a program's own is asked with the numbers that its header tells. */
static void test_timeout_reaches_registered_backends(void **unused)
{
    static const int64_t pairs[][2] = {{0, 0}, {5, 5}, {-1, -1}, {-2, -1}, {INT64_MAX, INT32_MAX}};

    (void)unused;
    for (size_t i = 0; i < COUNT(pairs); i++) {
        assert_int_equal(muster_rdzv_ended(rdzv, pairs[i][0]), 0);
        assert_int_equal(asked_ms, pairs[i][1]);
    }
}

static atomic_bool hanging;

static void hang(muster_rpc_call_in *call, void *context)
{
    (void)context;
    atomic_store(&hanging, true);
    (void)muster_rpc_in_wait_canceled(call, MUSTER_TIMEOUT_NEVER);
    call_in = call;
    (void)try_all(&in_a_handler[0], true);
    muster_rpc_fail(call, MUSTER_ECANCELED, "canceled");
}

static void test_timeout_in_a_handler(void **unused)
{
    struct muster_rpc_request q = to_b(MUSTER_TIMEOUT_DEFAULT);
    muster_rpc_future *future;

    (void)unused;
    fault = NULL;
    assert_int_equal(muster_rpc_register(b, "t::T.hang", hang, NULL, MUSTER_RPC_BLOCKS), 0);
    q.method = "t::T.hang";
    assert_int_equal(muster_rpc_call(a, &q, &future), 0);
    while (!atomic_load(&hanging)) {
        (void)sched_yield();
    }
    muster_rpc_future_cancel(future);
    assert_int_equal(muster_rpc_future_wait(future, MUSTER_TIMEOUT_NEVER), MUSTER_ECANCELED);
    muster_rpc_future_free(future);
    muster_rpc_shutdown(b); /* waits for the handler */
    b = NULL;
    assert_non_null(call_in);
    if (fault != NULL) {
        fail_msg("%s", fault);
    }
}

/* --- what they need --------------------------------------------------------------------------- */

static int next_is_closed(void *context, struct muster_rdzv_info *ret_info)
{
    (void)context;
    (void)ret_info;
    return MUSTER_ERDZV_CLOSED;
}

static int is_closed(void *context, bool *ret_closed)
{
    (void)context;
    *ret_closed = true;
    return 0;
}

static int set_closed(void *context)
{
    (void)context;
    return 0;
}

static int nobody_waits(void *context, uint32_t *ret_count)
{
    (void)context;
    *ret_count = 0;
    return 0;
}

static int note_timeout(void *context, int64_t timeout_ms)
{
    (void)context;
    asked_ms = timeout_ms;
    return 0;
}

static bool shut_down(void *context)
{
    (void)context;
    return true;
}

static void close_run(void *context)
{
    (void)context;
}

static void open_rdzv(void)
{
    struct muster_rdzv_ops ops = muster_rdzv_ops_defaults();

    ops.next = next_is_closed;
    ops.is_closed = is_closed;
    ops.set_closed = set_closed;
    ops.num_nodes_waiting = nobody_waits;
    ops.ended = note_timeout;
    ops.shutdown = shut_down;
    ops.close = close_run;
    assert_int_equal(muster_rdzv_new("mine", "job", &ops, NULL, &rdzv), 0);
}

static void open_queue(void)
{
    struct muster_store_request q = muster_store_request_defaults();
    struct muster_state_request request = muster_state_request_defaults();

    assert_int_equal(muster_queue_new(rt, &queue), 0);
    q.verb = MUSTER_STORE_NUM_KEYS;
    q.queue = queue;
    assert_int_equal(muster_store_submit(store, &q, &ended_op), 0);
    assert_int_equal(muster_op_wait(ended_op), 0);
    request.donors = &(const char *){muster_state_address(state)};
    request.donor_count = 1;
    request.queue = queue;
    assert_int_equal(muster_state_load_begin(rt, &request, &load), 0);
    assert_int_equal(muster_state_load_wait(load, MUSTER_TIMEOUT_NEVER), 0);
}

/* A step that has ended. */
static void open_average(void)
{
    struct muster_average_config config = muster_average_config_defaults();
    static float value;

    config.prefix = "mean";
    config.tensors =
        &(struct muster_tensor){.name = "t", .dtype = MUSTER_DTYPE_F32, .data = &value};
    config.tensor_count = 1;
    assert_int_equal(muster_average_open(rt, &config, &average), 0);
    assert_int_equal(muster_average_begin(average, NULL), 0);
    muster_average_cancel(average);
    assert_int_equal(muster_average_wait(average, MUSTER_TIMEOUT_NEVER), 0);
}

static int open_all(void **unused)
{
    struct muster_state_config config = muster_state_config_defaults();
    struct muster_rpc_part part = {KEY, MUSTER_RPC_CPU};
    struct muster_rpc_request q = to_b(MUSTER_TIMEOUT_DEFAULT);

    (void)open_two(unused);
    assert_int_equal(muster_store_open(rt, "hash:", NULL, &store), 0);
    assert_int_equal(muster_state_open(rt, &config, &state), 0);
    assert_int_equal(muster_rpc_sync(a, &q, &ended), 0);
    assert_int_equal(muster_rref_new(a, &part, 1, &here), 0);
    q.to = "nobody";
    assert_int_equal(muster_rpc_stream_open(a, &q, &over), 0);
    assert_int_equal(ask_stream_recv(MUSTER_TIMEOUT_NEVER), MUSTER_EWORKER);
    open_rdzv();
    open_queue();
    open_average();
    return 0;
}

static int close_all(void **unused)
{
    (void)muster_state_load_end(load, NULL);
    muster_average_close(average);
    muster_op_free(ended_op);
    muster_queue_free(queue);
    muster_rdzv_close(rdzv);
    muster_rpc_stream_close(over);
    muster_rref_free(here);
    muster_rpc_future_free(ended);
    muster_state_close(state);
    muster_store_close(store);
    return close_two(unused);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_timeout_of_what_is_answered),
        cmocka_unit_test(test_timeout_of_what_only_asks),
        cmocka_unit_test(test_timeout_is_told_as_it_was_given),
        cmocka_unit_test(test_timeout_reaches_registered_backends),
        cmocka_unit_test(test_timeout_in_a_handler),
    };

    return cmocka_run_group_tests(tests, open_all, close_all);
}
