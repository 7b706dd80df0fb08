/*
 * Queues: what is put into one, when it leaves, and what the descriptor says meanwhile. Operations,
 * watches, and calls both ways; loads are in test_queue_load.c, threads in test_queue_stress.c.
 */
#include "queue_rig.h"

#include <sys/eventfd.h>
#include <unistd.h>

/* As in src/api/store_api.h. Meets MU_OP_CHANGES_BYTES_MAX. */
#define CHANGES_BYTES_MAX ((size_t)16 << 20)

/* --- operations ------------------------------------------------------------------------------- */

static void test_queue_gets_operations_that_have_ended(void **state)
{
    int context = 0;
    muster_op *waiting = begin(MUSTER_STORE_GET, "later", &context);
    muster_op *op = begin(MUSTER_STORE_CHECK, "k", &op);

    (void)state;
    take_this(queue, MUSTER_QUEUED_OP, op, &op);
    assert_int_equal(muster_op_status(op), 0);
    assert_int_equal(muster_op_number(op), 0);
    assert_empty(queue);
    set_text("later", "v");
    take_this(queue, MUSTER_QUEUED_OP, waiting, &context);
    assert_int_equal(muster_op_wait(waiting), 0);
    assert_memory_equal(muster_op_value(waiting, 0).data, "v", 1);
    assert_empty(queue);
    muster_op_free(op);
    muster_op_free(waiting);
    /* One that is canceled ends as well. */
    waiting = begin(MUSTER_STORE_GET, "never", NULL);
    muster_op_cancel(waiting);
    take_this(queue, MUSTER_QUEUED_OP, waiting, NULL);
    assert_int_equal(muster_op_status(waiting), MUSTER_ECANCELED);
    muster_op_free(waiting);
}

static void test_queue_keeps_the_order_and_takes_many(void **state)
{
    struct muster_queued events[40];
    muster_op *ops[64];
    eventfd_t count = 0;

    (void)state;
    for (size_t i = 0; i < 64; i++) {
        ops[i] = begin(MUSTER_STORE_CHECK, "k", &ops[i]);
    }
    settle();
    /* The descriptor was raised once. (A program must not read it; the queue survives it.) */
    assert_int_equal(eventfd_read(muster_queue_fd(queue), &count), 0);
    assert_int_equal(count, 1);
    assert_int_equal(muster_queue_take(queue, events, 0), 0);
    assert_int_equal(muster_queue_take(queue, events, 40), 40);
    assert_int_equal(muster_queue_take(queue, events + 1, 39), 24);
    assert_ptr_equal(events[0].object, ops[0]);
    assert_ptr_equal(events[1].object, ops[40]);
    assert_ptr_equal(events[24].object, ops[63]);
    assert_empty(queue);
    for (size_t i = 0; i < 64; i++) {
        muster_op_free(ops[i]);
    }
}

static void test_queue_forgets_what_is_freed(void **state)
{
    muster_op *first = begin(MUSTER_STORE_CHECK, "k", NULL);
    muster_op *second = begin(MUSTER_STORE_CHECK, "k", NULL);
    muster_op *third = begin(MUSTER_STORE_GET, "never", NULL);

    (void)state;
    settle();
    muster_op_free(first);
    muster_op_free(third);
    settle();
    assert_true(is_readable(queue));
    take_this(queue, MUSTER_QUEUED_OP, second, NULL);
    assert_empty(queue);
    muster_op_free(second);
    first = begin(MUSTER_STORE_CHECK, "k", NULL);
    assert_int_equal(muster_queue_wait(queue, MUSTER_TIMEOUT_NEVER), 0);
    muster_op_free(first);
    assert_empty(queue);
}

static void never_called(muster_op *op, void *context)
{
    (void)op;
    (void)context;
    abort();
}

static void test_queue_refuses_callbacks_and_strangers(void **state)
{
    struct muster_store_request q = muster_store_request_defaults();
    struct muster_rpc_request call_q = muster_rpc_request_defaults();
    struct muster_bytes key = muster_str("k");
    struct muster_change change;
    muster_rpc_future *future;
    muster_runtime *other_rt;
    muster_queue *other;
    muster_op *op;

    (void)state;
    assert_int_equal(muster_queue_new(NULL, &other), MUSTER_EINVAL);
    assert_int_equal(muster_queue_new(rt, NULL), MUSTER_EINVAL);
    muster_queue_free(NULL);
    q.verb = MUSTER_STORE_CHECK;
    q.keys = &key;
    q.key_count = 1;
    q.queue = queue;
    q.done = never_called;
    assert_int_equal(muster_store_submit(store, &q, &op), MUSTER_EINVAL);
    q.done = NULL;
    assert_int_equal(muster_runtime_new(&other_rt), 0);
    assert_int_equal(muster_queue_new(other_rt, &other), 0);
    q.queue = other;
    assert_int_equal(muster_store_submit(store, &q, &op), MUSTER_EINVAL);
    assert_non_null(strstr(muster_errmsg(), "runtime"));
    call_q.to = "b";
    call_q.method = "t::T.echo";
    call_q.queue = other;
    assert_int_equal(muster_rpc_call(a, &call_q, &future), MUSTER_EINVAL);
    assert_int_equal(muster_rpc_register_queue(b, "t::T.other", other, NULL), MUSTER_EINVAL);
    assert_int_equal(muster_rpc_register_queue(b, "t::T.other", NULL, NULL), MUSTER_EINVAL);
    assert_int_equal(muster_rpc_register_queue(b, "other", queue, NULL), MUSTER_EINVAL);
    assert_int_equal(muster_rpc_register_queue(b, "t::T.echo", queue, NULL), MUSTER_EEXIST);
    muster_queue_free(other);
    muster_runtime_free(other_rt);
    assert_int_equal(muster_queue_wait(queue, -3), MUSTER_EINVAL);
    /* Only a watch with a queue has changes to take. */
    op = begin(MUSTER_STORE_CHECK, "k", NULL);
    assert_int_equal(muster_op_change_next(op, &change), MUSTER_EINVAL);
    muster_op_free(op);
    q.verb = MUSTER_STORE_WATCH;
    q.queue = NULL;
    assert_int_equal(muster_store_submit(store, &q, &op), 0);
    assert_int_equal(muster_op_change_next(op, &change), MUSTER_EINVAL);
    muster_op_free(op);
}

struct asked {
    int no_wait;
    int wait;
};

static void ask_on_loop(muster_op *op, void *context)
{
    struct asked *asked = context;

    (void)op;
    asked->no_wait = muster_queue_wait(queue, 0);
    asked->wait = muster_queue_wait(queue, 10);
}

static void test_queue_wait_times_out_and_never_waits_on_the_loop(void **state)
{
    struct muster_store_request q = muster_store_request_defaults();
    struct muster_bytes key = muster_str("k");
    struct asked asked = {0};
    struct timespec before;
    struct timespec after;
    muster_op *op;

    (void)state;
    (void)clock_gettime(CLOCK_MONOTONIC, &before);
    assert_int_equal(muster_queue_wait(queue, 30), MUSTER_ETIMEDOUT);
    (void)clock_gettime(CLOCK_MONOTONIC, &after);
    assert_true(
        (after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1000000 >= 29);
    q.verb = MUSTER_STORE_CHECK;
    q.keys = &key;
    q.key_count = 1;
    q.done = ask_on_loop;
    q.context = &asked;
    assert_int_equal(muster_store_submit(store, &q, &op), 0);
    assert_int_equal(muster_op_wait(op), 0);
    muster_op_free(op);
    assert_int_equal(asked.no_wait, MUSTER_ETIMEDOUT);
    assert_int_equal(asked.wait, MUSTER_EINVAL);
}

/* What is under way goes on when its queue is freed, and does not touch it. */
static void test_queue_may_be_freed_while_things_are_under_way(void **state)
{
    muster_queue *kept = queue;
    struct muster_change change;
    muster_op *ended;
    muster_op *waiting;
    muster_op *watch;

    (void)state;
    assert_int_equal(muster_queue_new(rt, &queue), 0);
    ended = begin(MUSTER_STORE_CHECK, "k", NULL);
    settle();
    waiting = begin(MUSTER_STORE_GET, "goes on", NULL);
    watch = begin(MUSTER_STORE_WATCH, "goes on", NULL);
    muster_queue_free(queue);
    queue = kept;
    set_text("goes on", "v");
    assert_int_equal(muster_op_wait(waiting), 0);
    assert_int_equal(muster_op_wait(ended), 0);
    settle();
    assert_int_equal(muster_op_change_next(watch, &change), 1);
    assert_int_equal(muster_op_change_next(watch, &change), 0);
    muster_op_free(ended);
    muster_op_free(waiting);
    muster_op_free(watch);
    assert_empty(queue);
}

/* --- watches ---------------------------------------------------------------------------------- */

static void take_change(muster_op *op, enum muster_change_kind kind, const char *value)
{
    struct muster_change change;

    assert_int_equal(muster_op_change_next(op, &change), 1);
    assert_int_equal(change.kind, kind);
    assert_int_equal(change.value.len, strlen(value));
    assert_memory_equal(change.value.data, value, strlen(value));
    assert_true(change.key.len == 1 && *(const char *)change.key.data == 'w');
}

static void test_queue_gets_the_changes_of_a_watch_before_its_end(void **state)
{
    int context;
    muster_op *op = begin(MUSTER_STORE_WATCH, "w", &context);
    struct muster_change change;

    (void)state;
    settle();
    assert_int_equal(muster_op_change_next(op, &change), 0);
    set_text("w", "1");
    take_this(queue, MUSTER_QUEUED_CHANGE, op, &context);
    take_change(op, MUSTER_CHANGE_CREATED, "1");
    assert_int_equal(muster_op_change_next(op, &change), 0);
    assert_empty(queue);
    /* Several have one place. Those that are taken in time do not come back. */
    set_text("w", "22");
    set_text("w", "333");
    settle();
    take_this(queue, MUSTER_QUEUED_CHANGE, op, &context);
    assert_empty(queue);
    set_text("w", "");
    settle();
    assert_true(is_readable(queue));
    take_change(op, MUSTER_CHANGE_UPDATED, "22");
    take_change(op, MUSTER_CHANGE_UPDATED, "333");
    take_change(op, MUSTER_CHANGE_UPDATED, "");
    assert_empty(queue);
    /* The end comes last. */
    set_text("w", "4");
    settle();
    muster_op_cancel(op);
    assert_int_equal(muster_op_wait(op), MUSTER_ECANCELED);
    take_this(queue, MUSTER_QUEUED_CHANGE, op, &context);
    assert_empty(queue);
    take_change(op, MUSTER_CHANGE_UPDATED, "4");
    take_this(queue, MUSTER_QUEUED_OP, op, &context);
    assert_int_equal(muster_op_change_next(op, &change), 0);
    assert_empty(queue);
    muster_op_free(op);
}

static void test_queue_gets_the_end_of_a_quiet_watch_at_once(void **state)
{
    muster_op *op = begin(MUSTER_STORE_WATCH, "quiet", NULL);
    muster_op *freed = begin(MUSTER_STORE_WATCH, "w", NULL);
    struct muster_change change;

    (void)state;
    muster_op_cancel(op);
    take_this(queue, MUSTER_QUEUED_OP, op, NULL);
    assert_int_equal(muster_op_change_next(op, &change), 0);
    muster_op_free(op);
    /* A watch that is freed with its changes leaves nothing behind. */
    set_text("w", "5");
    settle();
    assert_true(is_readable(queue));
    muster_op_free(freed);
    set_text("w", "6");
    assert_empty(queue);
}

/* Changes that nobody takes end the watch. Those from before that can still be taken. */
static void test_queue_watch_ends_when_its_changes_are_not_taken(void **state)
{
    size_t piece_len = 1 << 20;
    struct muster_bytes key = muster_str("w");
    char *piece = calloc(1, piece_len);
    muster_op *op = begin(MUSTER_STORE_WATCH, "w", NULL);
    struct muster_change change;
    size_t taken = 0;

    (void)state;
    assert_non_null(piece);
    /* Those that are taken do not count. */
    for (size_t i = 0; i < 2 * CHANGES_BYTES_MAX / piece_len; i++) {
        assert_int_equal(muster_store_set(store, key, (struct muster_bytes){piece, piece_len},
                                          MUSTER_TIMEOUT_DEFAULT),
                         0);
        take_this(queue, MUSTER_QUEUED_CHANGE, op, NULL);
        assert_int_equal(muster_op_change_next(op, &change), 1);
    }
    for (size_t i = 0; i < CHANGES_BYTES_MAX / piece_len; i++) {
        assert_false(muster_op_ended(op));
        assert_int_equal(muster_store_set(store, key, (struct muster_bytes){piece, piece_len},
                                          MUSTER_TIMEOUT_DEFAULT),
                         0);
    }
    assert_int_equal(muster_op_wait_for(op, 20000), MUSTER_EOVERFLOW);
    assert_non_null(strstr(muster_op_errmsg(op), "16 MiB"));
    take_this(queue, MUSTER_QUEUED_CHANGE, op, NULL);
    while (muster_op_change_next(op, &change) == 1) {
        assert_int_equal(change.value.len, piece_len);
        taken++;
    }
    assert_int_equal(taken, CHANGES_BYTES_MAX / piece_len - 1);
    take_this(queue, MUSTER_QUEUED_OP, op, NULL);
    muster_op_free(op);
    free(piece);
    assert_empty(queue);
}

/* --- calls that we make ----------------------------------------------------------------------- */

static muster_rpc_future *begin_call(const char *method, void *context, muster_queue *into)
{
    struct muster_rpc_request q = muster_rpc_request_defaults();
    struct muster_rpc_part part = {muster_str("x"), MUSTER_RPC_CPU};
    muster_rpc_future *future = NULL;

    q.to = "b";
    q.method = method;
    q.parts = &part;
    q.part_count = 1;
    q.queue = into;
    q.context = context;
    assert_int_equal(muster_rpc_call(a, &q, &future), 0);
    return future;
}

static void test_queue_gets_calls_that_have_ended(void **state)
{
    muster_rpc_future *future = begin_call("t::T.echo", &future, queue);

    (void)state;
    take_this(queue, MUSTER_QUEUED_FUTURE, future, &future);
    assert_int_equal(muster_rpc_future_wait(future, 0), 0);
    assert_memory_equal(muster_rpc_future_part(future, 0).data.data, "x", 1);
    muster_rpc_future_free(future);
    future = begin_call("t::T.missing", NULL, queue);
    assert_int_equal(muster_queue_wait(queue, 20000), 0);
    assert_int_equal(muster_rpc_future_status(future), MUSTER_ENOMETHOD);
    muster_rpc_future_free(future); /* it leaves the queue */
    assert_empty(queue);
    muster_rpc_future_free(begin_call("t::T.echo", NULL, queue));
    assert_int_equal(call(a, "b", "t::T.echo"), 0);
    assert_empty(queue);
}

/* --- calls that come in ----------------------------------------------------------------------- */

static void test_queue_gets_calls_that_come_in(void **state)
{
    static int context;
    struct muster_queued event;
    muster_rpc_future *future;
    muster_rpc_call_in *in;
    struct muster_rpc_part part;

    (void)state;
    assert_int_equal(muster_rpc_register_queue(b, "t::T.queued", queue, &context), 0);
    future = begin_call("t::T.queued", NULL, NULL);
    event = take_one(queue);
    assert_int_equal(event.kind, MUSTER_QUEUED_CALL);
    assert_ptr_equal(event.context, &context);
    in = event.object;
    assert_string_equal(muster_rpc_in_method(in), "t::T.queued");
    assert_string_equal(muster_rpc_in_caller(in), "a");
    part = muster_rpc_in_part(in, 0);
    muster_rpc_reply(in, &part, 1);
    assert_int_equal(muster_rpc_future_wait(future, 20000), 0);
    assert_memory_equal(muster_rpc_future_part(future, 0).data.data, "x", 1);
    muster_rpc_future_free(future);
    /* Each has its own place. */
    for (int i = 0; i < 3; i++) {
        muster_rpc_future_free(begin_call("t::T.queued", NULL, NULL));
    }
    for (int i = 0; i < 3; i++) {
        muster_rpc_fail(take_one(queue).object, MUSTER_EREMOTE, "no");
    }
    assert_empty(queue);
}

static void test_queue_forgets_calls_that_are_canceled(void **state)
{
    muster_rpc_future *future;
    muster_rpc_call_in *in;

    (void)state;
    (void)muster_rpc_register_queue(b, "t::T.canceled", queue, NULL);
    future = begin_call("t::T.canceled", NULL, NULL);
    assert_int_equal(muster_queue_wait(queue, 20000), 0);
    muster_rpc_future_cancel(future);
    assert_int_equal(muster_rpc_future_wait(future, 20000), MUSTER_ECANCELED);
    muster_rpc_future_free(future);
    assert_int_equal(call(a, "b", "t::T.echo"), 0); /* comes after the cancel */
    assert_empty(queue);
    /* One that was taken is still to be answered. */
    future = begin_call("t::T.canceled", NULL, NULL);
    in = take_one(queue).object;
    muster_rpc_future_cancel(future);
    assert_int_equal(muster_rpc_future_wait(future, 20000), MUSTER_ECANCELED);
    assert_int_equal(muster_rpc_in_wait_canceled(in, 20000), 0);
    assert_int_equal(muster_rpc_in_canceled(in), MUSTER_ECANCELED);
    muster_rpc_fail(in, MUSTER_ECANCELED, "canceled");
    muster_rpc_future_free(future);
    assert_empty(queue);
}

static void test_queue_that_is_freed_answers_its_calls(void **state)
{
    muster_rpc_future *future;
    muster_rpc_future *second;
    muster_queue *own;

    (void)state;
    assert_int_equal(muster_queue_new(rt, &own), 0);
    assert_int_equal(muster_rpc_register_queue(b, "t::T.freed", own, NULL), 0);
    future = begin_call("t::T.freed", NULL, NULL);
    second = begin_call("t::T.freed", NULL, NULL);
    assert_int_equal(muster_queue_wait(own, 20000), 0);
    muster_queue_free(own);
    assert_int_equal(muster_rpc_future_wait(future, 20000), MUSTER_ECLOSED);
    assert_non_null(strstr(muster_rpc_future_errmsg(future), "queue"));
    assert_int_equal(muster_rpc_future_wait(second, 20000), MUSTER_ECLOSED);
    muster_rpc_future_free(future);
    muster_rpc_future_free(second);
    assert_int_equal(call(a, "b", "t::T.freed"), MUSTER_ECLOSED);
}

struct ending {
    muster_rpc_agent *agent;
    atomic_int over;
};

static void *shut_down(void *context)
{
    struct ending *ending = context;

    muster_rpc_shutdown(ending->agent);
    atomic_store(&ending->over, 1);
    return NULL;
}

/* Calls that nobody took end with the agent; one that was taken holds it up until its answer. */
static void test_queue_calls_end_with_their_agent(void **state)
{
    struct ending ending = {.agent = start_agent("c", 2, "127.0.0.1:0")};
    struct muster_rpc_request q = muster_rpc_request_defaults();
    muster_rpc_future *futures[3];
    muster_rpc_call_in *in;
    pthread_t thread;

    (void)state;
    assert_int_equal(muster_rpc_register_queue(ending.agent, "t::T.queued", queue, NULL), 0);
    assert_int_equal(muster_rpc_add_worker(a, "c", 2, muster_rpc_address(ending.agent)), 0);
    q.to = "c";
    q.method = "t::T.queued";
    for (int i = 0; i < 3; i++) {
        assert_int_equal(muster_rpc_call(a, &q, &futures[i]), 0);
    }
    in = take_one(queue).object;
    assert_int_equal(muster_queue_wait(queue, 20000), 0);
    assert_int_equal(pthread_create(&thread, NULL, shut_down, &ending), 0);
    assert_int_equal(muster_rpc_in_wait_canceled(in, 20000), 0);
    assert_true(muster_rpc_in_canceled(in) != 0);
    assert_int_equal(atomic_load(&ending.over), 0);
    muster_rpc_reply(in, NULL, 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_empty(queue);
    for (int i = 0; i < 3; i++) {
        assert_true(muster_rpc_future_wait(futures[i], 20000) != 0);
        muster_rpc_future_free(futures[i]);
    }
    assert_int_equal(muster_rpc_remove_worker(a, "c"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_queue_gets_operations_that_have_ended),
        cmocka_unit_test(test_queue_keeps_the_order_and_takes_many),
        cmocka_unit_test(test_queue_forgets_what_is_freed),
        cmocka_unit_test(test_queue_refuses_callbacks_and_strangers),
        cmocka_unit_test(test_queue_wait_times_out_and_never_waits_on_the_loop),
        cmocka_unit_test(test_queue_may_be_freed_while_things_are_under_way),
        cmocka_unit_test(test_queue_gets_the_changes_of_a_watch_before_its_end),
        cmocka_unit_test(test_queue_gets_the_end_of_a_quiet_watch_at_once),
        cmocka_unit_test(test_queue_watch_ends_when_its_changes_are_not_taken),
        cmocka_unit_test(test_queue_gets_calls_that_have_ended),
        cmocka_unit_test(test_queue_gets_calls_that_come_in),
        cmocka_unit_test(test_queue_forgets_calls_that_are_canceled),
        cmocka_unit_test(test_queue_that_is_freed_answers_its_calls),
        cmocka_unit_test(test_queue_calls_end_with_their_agent),
    };

    return cmocka_run_group_tests(tests, open_queue, close_queue);
}
