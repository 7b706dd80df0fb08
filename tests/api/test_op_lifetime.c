/*
 * When callbacks of store operations and calls may still run: never after the operation has been
 * waited for, and never after it has been freed. Each context is freed as soon as the header allows
 * it, so that ASan and TSan see a callback that comes later.
 */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>
#include <muster/muster.h>

#include "rpc_two_rig.h"

static muster_store *store;

/* What a callback uses. */
struct seen {
    atomic_int begun;
    atomic_int over;
    atomic_int go_on; /* 0: the callback waits for it */
    int told;
    int status;
    muster_op *op;
    muster_rpc_future *future;
};

static struct seen *new_seen(void)
{
    struct seen *seen = calloc(1, sizeof(*seen));

    assert_non_null(seen);
    atomic_init(&seen->go_on, 1);
    return seen;
}

static void await(atomic_int *what)
{
    while (atomic_load(what) == 0) {
        (void)sched_yield();
    }
}

/* Long enough for another thread to come back too early. */
static void dawdle(void)
{
    (void)nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
}

static void run(struct seen *seen)
{
    atomic_store(&seen->begun, 1);
    await(&seen->go_on);
    dawdle();
    seen->told++;
    atomic_store(&seen->over, 1);
}

static void on_done(muster_op *op, void *context)
{
    struct seen *seen = context;

    seen->status = muster_op_status(op);
    run(seen);
}

static void on_change(muster_op *op, const struct muster_change *change, void *context)
{
    (void)op;
    (void)change;
    run(context);
}

static struct muster_store_request request(enum muster_store_verb verb,
                                           const struct muster_bytes *key)
{
    struct muster_store_request q = muster_store_request_defaults();

    q.verb = verb;
    q.keys = key;
    q.key_count = 1;
    return q;
}

static muster_op *submit(const struct muster_store_request *q)
{
    muster_op *op = NULL;

    assert_int_equal(muster_store_submit(store, q, &op), 0);
    return op;
}

static void set(const char *key)
{
    assert_int_equal(
        muster_store_set(store, muster_str(key), muster_str("x"), MUSTER_TIMEOUT_DEFAULT), 0);
}

/* A callback that holds up the loop until it is let go. */
static void on_hold(muster_op *op, void *context)
{
    struct seen *seen = context;

    (void)op;
    atomic_store(&seen->begun, 1);
    await(&seen->go_on);
}

static muster_op *hold_loop(struct seen *seen)
{
    struct muster_bytes key = muster_str("held");
    struct muster_store_request q = request(MUSTER_STORE_CHECK, &key);
    muster_op *op;

    atomic_store(&seen->go_on, 0);
    q.done = on_hold;
    q.context = seen;
    op = submit(&q);
    await(&seen->begun);
    return op;
}

static int open_store(void **state)
{
    return open_two(state) != 0 ? -1 : muster_store_open(rt, "hash:", NULL, &store);
}

static int close_store(void **state)
{
    muster_store_close(store);
    return close_two(state);
}

/* --- operations ------------------------------------------------------------------------------- */

static void test_lifetime_op_wait_returns_after_done(void **state)
{
    struct muster_bytes key = muster_str("k");
    struct muster_store_request q = request(MUSTER_STORE_CHECK, &key);

    (void)state;
    for (int i = 0; i < 4; i++) {
        struct seen *seen = new_seen();
        muster_op *op;

        q.done = on_done;
        q.context = seen;
        op = submit(&q);
        assert_int_equal(i % 2 == 0 ? muster_op_wait(op) : muster_op_wait_for(op, 20000), 0);
        assert_int_equal(seen->told, 1);
        free(seen);
        muster_op_free(op);
    }
}

static void test_lifetime_op_free_waits_for_done(void **state)
{
    struct muster_bytes key = muster_str("k");
    struct muster_store_request q = request(MUSTER_STORE_CHECK, &key);
    struct seen *seen = new_seen();
    muster_op *op;

    (void)state;
    q.done = on_done;
    q.context = seen;
    op = submit(&q);
    await(&seen->begun);
    muster_op_free(op);
    assert_int_equal(seen->told, 1);
    free(seen);
}

static void test_lifetime_op_free_waits_for_a_change(void **state)
{
    struct muster_bytes key = muster_str("watched");
    struct muster_store_request q = request(MUSTER_STORE_WATCH, &key);
    struct seen *seen = new_seen();
    muster_op *op;

    (void)state;
    q.on_change = on_change;
    q.done = on_done;
    q.context = seen;
    op = submit(&q);
    set("watched");
    await(&seen->begun);
    muster_op_free(op);
    assert_int_equal(seen->told, 1); /* the change, and not the end */
    free(seen);
    set("watched");
}

static void test_lifetime_op_freed_before_its_end_tells_nothing(void **state)
{
    struct muster_bytes key = muster_str("never there");
    struct muster_store_request q = request(MUSTER_STORE_GET, &key);
    struct muster_store_request soon = request(MUSTER_STORE_CHECK, &key);
    struct seen *seen = new_seen();
    struct seen *holding = new_seen();
    muster_op *held;
    muster_op *op;

    (void)state;
    q.done = on_done;
    q.context = seen;
    soon.done = on_done;
    soon.context = seen;
    op = submit(&q);
    assert_int_equal(muster_op_wait_for(op, 1), MUSTER_ETIMEDOUT);
    assert_false(muster_op_ended(op));
    held = hold_loop(holding);
    muster_op_free(op);
    muster_op_free(submit(&soon)); /* it has not even begun */
    assert_int_equal(seen->told, 0);
    free(seen);
    atomic_store(&holding->go_on, 1);
    set("k"); /* the loop has done all that by now */
    muster_op_free(held);
    free(holding);
}

/* A change that comes after the watch was freed and before it was canceled. */
static void test_lifetime_op_freed_watch_tells_no_change(void **state)
{
    struct muster_bytes key = muster_str("changed");
    struct muster_bytes value = muster_str("x");
    struct muster_store_request q = request(MUSTER_STORE_WATCH, &key);
    struct muster_store_request change = request(MUSTER_STORE_SET, &key);
    struct seen *seen = new_seen();
    struct seen *holding = new_seen();
    muster_op *watch;
    muster_op *held;
    muster_op *op;

    (void)state;
    q.on_change = on_change;
    q.context = seen;
    watch = submit(&q);
    held = hold_loop(holding);
    change.values = &value;
    change.value_count = 1;
    op = submit(&change);
    muster_op_free(watch);
    free(seen);
    atomic_store(&holding->go_on, 1);
    assert_int_equal(muster_op_wait(op), 0);
    muster_op_free(op);
    muster_op_free(held);
    free(holding);
}

/* Frees the op inside its callback, and counts callbacks that come nevertheless. */
static void on_done_free(muster_op *op, void *context)
{
    struct seen *seen = context;

    /* Here it has ended, and one can ask. */
    assert_true(muster_op_ended(op));
    assert_int_equal(muster_op_wait_for(op, 0), 0);
    assert_int_equal(muster_op_wait(op), MUSTER_EINVAL);
    assert_int_equal(muster_op_wait_for(op, 1), MUSTER_EINVAL);
    muster_op_free(op);
    atomic_store(&seen->over, 1);
}

static void on_change_free(muster_op *op, const struct muster_change *change, void *context)
{
    struct seen *seen = context;

    (void)change;
    if (seen->told++ == 0) {
        assert_false(muster_op_ended(op));
        muster_op_free(op);
    }
    atomic_store(&seen->over, 1);
}

static void test_lifetime_op_may_be_freed_in_its_callbacks(void **state)
{
    struct muster_bytes key = muster_str("freed");
    struct muster_store_request q = request(MUSTER_STORE_CHECK, &key);
    struct seen seen = {.go_on = 1};

    (void)state;
    q.done = on_done_free;
    q.context = &seen;
    (void)submit(&q);
    await(&seen.over);

    atomic_store(&seen.over, 0);
    q = request(MUSTER_STORE_WATCH, &key);
    q.on_change = on_change_free;
    q.done = on_done;
    q.context = &seen;
    (void)submit(&q);
    set("freed");
    await(&seen.over);
    set("freed");
    set("freed");
    assert_int_equal(seen.told, 1);
}

static void test_lifetime_op_wait_for_tells_its_timeout_from_the_operations(void **state)
{
    struct muster_bytes key = muster_str("not there");
    struct muster_store_request q = request(MUSTER_STORE_GET, &key);
    muster_op *op;

    (void)state;
    q.timeout_ms = 20;
    op = submit(&q);
    assert_int_equal(muster_op_wait_for(op, MUSTER_TIMEOUT_NEVER), MUSTER_ETIMEDOUT);
    assert_true(muster_op_ended(op));
    assert_non_null(strstr(muster_errmsg(), "not there"));
    muster_op_free(op);
    q.timeout_ms = MUSTER_TIMEOUT_NEVER;
    op = submit(&q);
    assert_int_equal(muster_op_wait_for(op, 0), MUSTER_ETIMEDOUT);
    assert_int_equal(muster_op_wait_for(op, 20), MUSTER_ETIMEDOUT);
    assert_false(muster_op_ended(op));
    assert_int_equal(muster_op_wait_for(op, -3), MUSTER_EINVAL);
    muster_op_cancel(op);
    assert_int_equal(muster_op_wait(op), MUSTER_ECANCELED);
    muster_op_free(op);
}

static void *close_it(void *context)
{
    muster_store_close(context);
    return NULL;
}

/* A store that is closed while a callback of an operation runs waits for it, and ends the rest. */
static void test_lifetime_op_callback_holds_up_the_close(void **state)
{
    struct muster_bytes key = muster_str("not there");
    struct muster_store_request q = request(MUSTER_STORE_GET, &key);
    struct seen *holding = new_seen();
    struct seen *seen = new_seen();
    muster_store *old = store;
    pthread_t thread;
    muster_op *held;
    muster_op *op;

    (void)state;
    assert_int_equal(muster_store_open(rt, "hash:", NULL, &store), 0);
    q.done = on_done;
    q.context = seen;
    op = submit(&q);
    held = hold_loop(holding);
    assert_int_equal(pthread_create(&thread, NULL, close_it, store), 0);
    store = old;
    atomic_store(&holding->go_on, 1);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(muster_op_wait(op), MUSTER_ECLOSED);
    assert_int_equal(seen->told, 1);
    assert_int_equal(seen->status, MUSTER_ECLOSED);
    muster_op_free(op);
    muster_op_free(held);
    free(seen);
    free(holding);
}

/* --- calls ------------------------------------------------------------------------------------ */

static void on_call_done(muster_rpc_future *future, void *context)
{
    struct seen *seen = context;

    seen->status = muster_rpc_future_status(future);
    run(seen);
}

static muster_rpc_future *call_echo(muster_rpc_done *done, void *context)
{
    struct muster_rpc_request q = muster_rpc_request_defaults();
    struct muster_rpc_part part = {muster_str("x"), MUSTER_RPC_CPU};
    muster_rpc_future *future = NULL;

    q.to = "b";
    q.method = "t::T.echo";
    q.parts = &part;
    q.part_count = 1;
    q.done = done;
    q.context = context;
    assert_int_equal(muster_rpc_call(a, &q, &future), 0);
    return future;
}

static void test_lifetime_future_wait_returns_after_the_callbacks(void **state)
{
    struct seen *first = new_seen();
    struct seen *second = new_seen();
    muster_rpc_future *future = call_echo(on_call_done, first);

    (void)state;
    assert_int_equal(muster_rpc_future_then(future, on_call_done, second), 0);
    assert_int_equal(muster_rpc_future_wait(future, MUSTER_TIMEOUT_NEVER), 0);
    assert_int_equal(first->told, 1);
    assert_int_equal(second->told, 1);
    /* One that is added after the end is waited for, too. */
    assert_int_equal(muster_rpc_future_then(future, on_call_done, second), 0);
    assert_int_equal(muster_rpc_future_wait(future, 20000), 0);
    assert_int_equal(second->told, 2);
    free(first);
    free(second);
    muster_rpc_future_free(future);
}

static void test_lifetime_future_free_waits_for_a_callback(void **state)
{
    struct seen *seen = new_seen();
    struct seen *never = new_seen();
    muster_rpc_future *future = call_echo(on_call_done, seen);

    (void)state;
    assert_int_equal(muster_rpc_future_then(future, on_call_done, never), 0);
    await(&seen->begun);
    /* It has ended, but not yet for us. */
    assert_int_equal(muster_rpc_future_wait(future, 0), MUSTER_ETIMEDOUT);
    assert_false(muster_rpc_future_ended(future));
    muster_rpc_future_free(future);
    assert_int_equal(seen->told, 1);
    assert_int_equal(never->told, 0);
    free(seen);
    free(never);
    assert_int_equal(call(a, "b", "t::T.echo"), 0);
}

static void count_call(muster_rpc_call_in *in, void *context)
{
    (void)atomic_fetch_add((atomic_int *)context, 1);
    muster_rpc_reply(in, NULL, 0);
}

static void test_lifetime_future_freed_before_its_end_tells_nothing(void **state)
{
    struct muster_rpc_request q = muster_rpc_request_defaults();
    struct seen *seen = new_seen();
    struct seen *holding = new_seen();
    muster_rpc_future *future = NULL;
    static atomic_int came;
    muster_op *held;

    (void)state;
    assert_int_equal(muster_rpc_register(b, "t::T.count", count_call, &came, 0), 0);
    held = hold_loop(holding);
    q.to = "b";
    q.method = "t::T.count";
    q.done = on_call_done;
    q.context = seen;
    assert_int_equal(muster_rpc_call(a, &q, &future), 0);
    assert_int_equal(muster_rpc_future_then(future, on_call_done, seen), 0);
    muster_rpc_future_free(future);
    muster_rpc_future_free(NULL);
    assert_int_equal(seen->told, 0);
    free(seen);
    atomic_store(&holding->go_on, 1);
    await(&came); /* it goes on nevertheless */
    assert_int_equal(call(a, "b", "t::T.echo"), 0);
    muster_op_free(held);
    free(holding);
}

/* The first callback frees the future; the second, and one that the first adds, never run. */
static void on_call_free(muster_rpc_future *future, void *context)
{
    struct seen *seen = context;

    assert_true(muster_rpc_future_ended(future));
    assert_int_equal(muster_rpc_future_wait(future, 0), 0);
    assert_int_equal(muster_rpc_future_wait(future, MUSTER_TIMEOUT_NEVER), MUSTER_EINVAL);
    assert_int_equal(muster_rpc_future_then(future, on_call_done, seen), 0);
    muster_rpc_future_free(future);
    atomic_store(&seen->over, 1);
}

static void test_lifetime_future_may_be_freed_in_its_callbacks(void **state)
{
    struct seen seen = {.go_on = 1};
    struct seen again = {.go_on = 1};
    muster_rpc_future *future;

    (void)state;
    future = call_echo(on_call_free, &seen);
    await(&seen.over);
    assert_int_equal(call(a, "b", "t::T.echo"), 0);
    assert_int_equal(seen.told, 0);

    /* In one that was added when the call had ended already. */
    future = call_echo(NULL, NULL);
    assert_int_equal(muster_rpc_future_wait(future, MUSTER_TIMEOUT_NEVER), 0);
    assert_int_equal(muster_rpc_future_then(future, on_call_free, &again), 0);
    await(&again.over);
    assert_int_equal(call(a, "b", "t::T.echo"), 0);
    assert_int_equal(again.told, 0);
}

static void never_answer(muster_rpc_call_in *in, void *context)
{
    (void)context;
    (void)muster_rpc_in_wait_canceled(in, 20000);
    muster_rpc_fail(in, MUSTER_ECANCELED, "canceled");
}

/* The agent ends while calls are under way: their callbacks run before the shutdown returns. */
static void test_lifetime_future_is_told_before_the_agent_ends(void **state)
{
    struct muster_rpc_request q = muster_rpc_request_defaults();
    muster_rpc_agent *c = start_agent("c", 2, NULL);
    struct seen *seen = new_seen();
    muster_rpc_future *future = NULL;

    (void)state;
    assert_int_equal(muster_rpc_register(b, "t::T.mute", never_answer, NULL, MUSTER_RPC_BLOCKS), 0);
    assert_int_equal(muster_rpc_add_worker(c, "b", 1, muster_rpc_address(b)), 0);
    q.to = "b";
    q.method = "t::T.mute";
    q.done = on_call_done;
    q.context = seen;
    assert_int_equal(muster_rpc_call(c, &q, &future), 0);
    muster_rpc_shutdown(c);
    assert_int_equal(seen->told, 1);
    free(seen);
    assert_int_equal(muster_rpc_future_wait(future, 0), MUSTER_ECLOSED);
    muster_rpc_future_free(future);
}

/* A call with tokens gives them back at its end, also when its future was freed long before. */
static void test_lifetime_future_with_references_may_be_freed_early(void **state)
{
    struct muster_rpc_request q = muster_rpc_request_defaults();
    struct muster_rpc_part part = {muster_str("value"), MUSTER_RPC_CPU};
    struct seen *holding = new_seen();
    muster_rpc_future *future = NULL;
    struct seen *seen = new_seen();
    muster_rref *rref = NULL;
    muster_op *held;

    (void)state;
    assert_int_equal(muster_rref_new(a, &part, 1, &rref), 0);
    q.to = "b";
    q.method = "t::T.echo";
    q.done = on_call_done;
    q.context = seen;
    assert_int_equal(muster_rref_call(a, &q, &rref, 1, &future), 0);
    assert_int_equal(muster_rpc_future_wait(future, MUSTER_TIMEOUT_NEVER), 0);
    assert_int_equal(seen->told, 1);
    muster_rpc_future_free(future);
    assert_int_equal(muster_rref_call(a, &q, &rref, 1, &future), 0);
    muster_rpc_future_free(future);
    free(seen);
    held = hold_loop(holding);
    atomic_store(&holding->go_on, 1);
    muster_op_free(held);
    free(holding);
    muster_rref_free(rref);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lifetime_op_wait_returns_after_done),
        cmocka_unit_test(test_lifetime_op_free_waits_for_done),
        cmocka_unit_test(test_lifetime_op_free_waits_for_a_change),
        cmocka_unit_test(test_lifetime_op_freed_before_its_end_tells_nothing),
        cmocka_unit_test(test_lifetime_op_freed_watch_tells_no_change),
        cmocka_unit_test(test_lifetime_op_may_be_freed_in_its_callbacks),
        cmocka_unit_test(test_lifetime_op_wait_for_tells_its_timeout_from_the_operations),
        cmocka_unit_test(test_lifetime_op_callback_holds_up_the_close),
        cmocka_unit_test(test_lifetime_future_wait_returns_after_the_callbacks),
        cmocka_unit_test(test_lifetime_future_free_waits_for_a_callback),
        cmocka_unit_test(test_lifetime_future_freed_before_its_end_tells_nothing),
        cmocka_unit_test(test_lifetime_future_may_be_freed_in_its_callbacks),
        cmocka_unit_test(test_lifetime_future_is_told_before_the_agent_ends),
        cmocka_unit_test(test_lifetime_future_with_references_may_be_freed_early),
    };

    return cmocka_run_group_tests(tests, open_store, close_store);
}
