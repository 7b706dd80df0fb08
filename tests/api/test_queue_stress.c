/*
 * Queues and many threads: everything is taken once, whatever the others do meanwhile; and runtimes
 * that come and go leave nothing behind.
 */
#include "queue_rig.h"

#include <dirent.h>
#include <malloc.h>

#define THREADS 4
#define ROUNDS  400

static void *must_alloc(size_t size)
{
    void *memory = calloc(1, size);

    assert_non_null(memory);
    return memory;
}

/* --- one event loop --------------------------------------------------------------------------- */

/* A program with a loop of its own: 64 operations in flight, and poll(2) says when to look. */
static void test_queue_is_driven_by_poll(void **state)
{
    struct pollfd poller = {.fd = muster_queue_fd(queue), .events = POLLIN};
    struct muster_queued events[16];
    size_t begun = 0;
    size_t ended = 0;

    (void)state;
    while (begun < 64) {
        (void)begin(MUSTER_STORE_CHECK, "k", &begun);
        begun++;
    }
    while (ended < 10000) {
        size_t count;

        assert_int_equal(poll(&poller, 1, 20000), 1);
        count = muster_queue_take(queue, events, 16);
        assert_true(count > 0); /* it is never readable in vain */
        for (size_t i = 0; i < count; i++) {
            assert_int_equal(events[i].kind, MUSTER_QUEUED_OP);
            assert_int_equal(muster_op_status(events[i].object), 0);
            muster_op_free(events[i].object);
            ended++;
            if (begun < 10000) {
                (void)begin(MUSTER_STORE_CHECK, "k", &begun);
                begun++;
            }
        }
    }
    assert_int_equal(ended, begun);
    assert_empty(queue);
}

/* --- many threads ----------------------------------------------------------------------------- */

/* An operation that one thread begins and another takes. */
struct item {
    atomic_int taken;
};

struct crowd {
    atomic_int under_way; /* in the queue, or on their way to it */
    atomic_int submitting;
    atomic_int wrong;
};

static struct crowd crowd;

/* Begins operations that end at once, some that end when they are canceled, and some that are freed
 * before or after they have ended. */
static void *submit_many(void *context)
{
    unsigned seed = *(unsigned *)context;

    for (int i = 0; i < ROUNDS; i++) {
        struct item *item = must_alloc(sizeof(*item));
        unsigned what = (seed = seed * 1103515245u + 12345u) >> 16 & 3;
        muster_op *op;

        if (what == 0) {
            /* The context is freed at once: nothing may come of it any more. */
            op = begin(MUSTER_STORE_GET, "never there", item);
            muster_op_free(op);
            free(item);
        } else if (what == 1) {
            struct muster_store_request q = muster_store_request_defaults();
            struct muster_bytes key = muster_str("k");

            q.verb = MUSTER_STORE_CHECK;
            q.keys = &key;
            q.key_count = 1;
            if (muster_store_submit(store, &q, &op) != 0 || muster_op_wait(op) != 0) {
                (void)atomic_fetch_add(&crowd.wrong, 1);
            }
            muster_op_free(op);
            free(item);
        } else {
            (void)atomic_fetch_add(&crowd.under_way, 1);
            op = begin(what == 2 ? MUSTER_STORE_CHECK : MUSTER_STORE_GET,
                       what == 2 ? "k" : "never there", item);
            if (what == 3) {
                muster_op_cancel(op);
            }
        }
    }
    (void)atomic_fetch_sub(&crowd.submitting, 1);
    return NULL;
}

static void take_some(void)
{
    struct muster_queued events[8];
    size_t count = muster_queue_take(queue, events, 8);

    for (size_t i = 0; i < count; i++) {
        struct item *item = events[i].context;

        if (atomic_fetch_add(&item->taken, 1) != 0) {
            (void)atomic_fetch_add(&crowd.wrong, 1);
        }
        muster_op_free(events[i].object);
        free(item);
        (void)atomic_fetch_sub(&crowd.under_way, 1);
    }
}

static void *take_many(void *context)
{
    (void)context;
    while (atomic_load(&crowd.submitting) > 0 || atomic_load(&crowd.under_way) > 0) {
        int err = muster_queue_wait(queue, 10);

        if (err != 0 && err != MUSTER_ETIMEDOUT) {
            (void)atomic_fetch_add(&crowd.wrong, 1);
        }
        take_some();
    }
    return NULL;
}

/* An operation is freed by whoever takes it, which may be while another thread is still in
 * muster_op_cancel() for it: an operation that ends only because of that cancel is still there. */
static void test_queue_gives_everything_once_to_many_threads(void **state)
{
    pthread_t threads[2 * THREADS];
    unsigned seeds[THREADS];

    (void)state;
    atomic_store(&crowd.submitting, THREADS);
    for (unsigned i = 0; i < THREADS; i++) {
        seeds[i] = i + 1;
        assert_int_equal(pthread_create(&threads[i], NULL, submit_many, &seeds[i]), 0);
        assert_int_equal(pthread_create(&threads[THREADS + i], NULL, take_many, NULL), 0);
    }
    for (unsigned i = 0; i < 2 * THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    assert_int_equal(atomic_load(&crowd.under_way), 0);
    assert_int_equal(atomic_load(&crowd.wrong), 0);
    assert_empty(queue);
}

/* --- things that come and go ------------------------------------------------------------------ */

static void *make_changes(void *context)
{
    atomic_int *stop = context;

    while (atomic_load(stop) == 0) {
        set_text("busy", "x");
    }
    return NULL;
}

/* Queues, watches and calls that are freed while things come into them. */
static void test_queue_and_watches_may_go_at_any_time(void **state)
{
    muster_queue *kept = queue;
    atomic_int stop = 0;
    pthread_t thread;

    (void)state;
    assert_int_equal(pthread_create(&thread, NULL, make_changes, &stop), 0);
    for (int i = 0; i < 300; i++) {
        struct muster_rpc_request q = muster_rpc_request_defaults();
        struct muster_queued events[4];
        struct muster_change change;
        muster_rpc_future *future;
        muster_op *op;

        assert_int_equal(muster_queue_new(rt, &queue), 0);
        op = begin(MUSTER_STORE_WATCH, "busy", NULL);
        q.to = "b";
        q.method = "t::T.echo";
        q.queue = queue;
        assert_int_equal(muster_rpc_call(a, &q, &future), 0);
        if (i % 2 == 0) {
            assert_int_equal(muster_queue_wait(queue, 20000), 0);
            (void)muster_queue_take(queue, events, 4);
        }
        if (i % 3 == 0) {
            (void)muster_op_change_next(op, &change);
            muster_queue_free(queue);
            muster_op_free(op);
        } else {
            muster_op_free(op);
            muster_queue_free(queue);
        }
        muster_rpc_future_free(future);
    }
    atomic_store(&stop, 1);
    assert_int_equal(pthread_join(thread, NULL), 0);
    queue = kept;
    assert_empty(queue);
}

static size_t count_descriptors(void)
{
    DIR *dir = opendir("/proc/self/fd");
    size_t count = 0;

    assert_non_null(dir);
    while (readdir(dir) != NULL) {
        count++;
    }
    (void)closedir(dir);
    return count;
}

static void come_and_go(int times)
{
    for (int i = 0; i < times; i++) {
        struct muster_store_request q = muster_store_request_defaults();
        struct muster_bytes key = muster_str("k");
        muster_runtime *own_rt;
        muster_store *own_store;
        muster_queue *own;
        muster_op *op;

        assert_int_equal(muster_runtime_new(&own_rt), 0);
        assert_int_equal(muster_queue_new(own_rt, &own), 0);
        assert_int_equal(muster_store_open(own_rt, "hash:", NULL, &own_store), 0);
        q.verb = i % 2 == 0 ? MUSTER_STORE_CHECK : MUSTER_STORE_GET;
        q.keys = &key;
        q.key_count = 1;
        q.queue = own;
        assert_int_equal(muster_store_submit(own_store, &q, &op), 0);
        if (i % 2 == 0) {
            assert_int_equal(muster_queue_wait(own, 20000), 0);
        }
        if (i % 3 == 0) {
            muster_queue_free(own);
            muster_op_free(op);
            muster_store_close(own_store);
        } else {
            muster_store_close(own_store);
            muster_op_free(op);
            muster_queue_free(own);
        }
        muster_runtime_free(own_rt);
    }
}

static void test_queue_runtimes_come_and_go_without_a_trace(void **state)
{
    size_t descriptors;
    size_t bytes;

    (void)state;
    come_and_go(200);
    descriptors = count_descriptors();
    bytes = mallinfo2().uordblks;
    come_and_go(10000);
    assert_int_equal(count_descriptors(), descriptors);
    /* Less than a byte for each is left to chance. */
    assert_true(mallinfo2().uordblks < bytes + 10000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_queue_is_driven_by_poll),
        cmocka_unit_test(test_queue_gives_everything_once_to_many_threads),
        cmocka_unit_test(test_queue_and_watches_may_go_at_any_time),
        cmocka_unit_test(test_queue_runtimes_come_and_go_without_a_trace),
    };

    return cmocka_run_group_tests(tests, open_queue, close_queue);
}
