/*
 * Loads of a state that nobody waits for: their end in a queue, how far they are when one asks, and
 * donors that are announced while they run.
 */
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "state_rig.h"

static muster_runtime *giver;
static muster_runtime *taker;
static muster_queue *queue;

static int open_runtimes(void **state)
{
    (void)state;
    return muster_runtime_new(&giver) != 0 || muster_runtime_new(&taker) != 0 ||
                   muster_queue_new(taker, &queue) != 0
               ? -1
               : 0;
}

static int close_runtimes(void **state)
{
    (void)state;
    rig_close_all();
    muster_queue_free(queue);
    muster_runtime_free(giver);
    muster_runtime_free(taker);
    return 0;
}

static struct muster_state_config at_rate(uint64_t rate_bytes)
{
    struct muster_state_config config = muster_state_config_defaults();

    config.listen = "127.0.0.1:0";
    config.rate_bytes = rate_bytes;
    return config;
}

static struct muster_state_request from(const char *const *donors, size_t count)
{
    struct muster_state_request r = muster_state_request_defaults();

    r.prefix = "job";
    r.donors = donors;
    r.donor_count = count;
    r.timeout_ms = 30000;
    r.queue = queue;
    return r;
}

static void take_loaded(const muster_state_loading *loading, const void *context)
{
    struct muster_queued event;

    assert_int_equal(muster_queue_wait(queue, 30000), 0);
    assert_int_equal(muster_queue_take(queue, &event, 1), 1);
    assert_int_equal(event.kind, MUSTER_QUEUED_LOADED);
    assert_ptr_equal(event.object, loading);
    assert_ptr_equal(event.context, context);
}

/* Takes whatever comes, as another thread of the program may. */
struct taker {
    atomic_int stop;
    atomic_int count;
};

static void *take_all(void *context)
{
    struct taker *t = context;
    struct muster_queued event;

    while (atomic_load(&t->stop) == 0) {
        (void)atomic_fetch_add(&t->count, (int)muster_queue_take(queue, &event, 1));
    }
    return NULL;
}

/* Nothing of a load is ever in the queue unless its caller gets it, not even for a moment. */
static void test_queue_never_has_a_load_that_nobody_can_end(void **state)
{
    struct muster_state_config config = at_rate(0);
    struct taker t = {0};
    muster_state_loading *loading;
    struct muster_state_request r;
    muster_state_copy *copy;
    muster_state *donor;
    const char *addr;
    pthread_t thread;
    struct model m;

    (void)state;
    model_make(&m, 1, 1);
    donor = donor_open(giver, &config, &m, 1);
    assert_int_equal(pthread_create(&thread, NULL, take_all, &t), 0);
    for (int i = 0; i < 20; i++) {
        addr = "not an address";
        r = from(&addr, 1);
        assert_int_equal(muster_state_load_begin(taker, &r, &loading), MUSTER_EURL);
        addr = muster_state_address(donor);
        assert_int_equal(muster_state_load(taker, &r, &copy), 0);
        muster_state_copy_free(copy);
    }
    atomic_store(&t.stop, 1);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(atomic_load(&t.count), 0);
    muster_state_close(donor);
    model_free(&m);
}

static void test_queue_gets_a_load_that_has_ended(void **state)
{
    struct muster_state_config config = at_rate(0);
    struct muster_state_request r;
    struct muster_state_progress progress;
    struct muster_state_info info = {0};
    muster_state_loading *loading;
    muster_state_copy *copy;
    muster_state *donor;
    const char *addr;
    struct model m;

    (void)state;
    model_make(&m, 8, 1);
    donor = donor_open(giver, &config, &m, 12);
    addr = muster_state_address(donor);
    r = from(&addr, 1);
    r.context = &r;
    assert_int_equal(muster_state_load_begin(taker, &r, &loading), 0);
    take_loaded(loading, &r);
    assert_int_equal(muster_state_load_wait(loading, 0), 0);
    muster_state_load_progress(loading, &progress, &info);
    assert_ptr_equal(progress.info, &info);
    assert_int_equal(info.epoch, 12);
    assert_int_equal(progress.bytes, model_bytes(&m));
    assert_int_equal(progress.total, model_bytes(&m));
    muster_state_load_progress(loading, &progress, NULL);
    assert_null(progress.info);
    muster_state_load_cancel(loading); /* harmless by now */
    assert_int_equal(muster_state_load_end(loading, &copy), 0);
    copy_assert_same(copy, &m);
    muster_state_copy_free(copy);
    muster_state_close(donor);
    model_free(&m);
}

/* Nobody is called back, and the numbers move nevertheless. */
static void test_load_says_how_far_it_is(void **state)
{
    struct muster_state_config config = at_rate(2 << 20);
    struct muster_state_progress progress = {0};
    struct muster_state_info info;
    struct muster_state_request r;
    muster_state_loading *loading;
    uint64_t before;
    muster_state *donor;
    const char *addr;
    struct model m;

    (void)state;
    model_make(&m, 8, 1);
    donor = donor_open(giver, &config, &m, 3);
    addr = muster_state_address(donor);
    r = from(&addr, 1);
    r.progress_ms = 5;
    r.queue = NULL;
    assert_int_equal(muster_state_load_begin(taker, &r, &loading), 0);
    assert_int_equal(muster_state_load_wait(loading, 0), MUSTER_ETIMEDOUT);
    assert_int_equal(muster_state_load_wait(loading, 1), MUSTER_ETIMEDOUT);
    assert_int_equal(muster_state_load_wait(loading, -3), MUSTER_EINVAL);
    do {
        muster_state_load_progress(loading, &progress, &info);
        (void)sched_yield();
    } while (progress.bytes == 0);
    assert_ptr_equal(progress.info, &info);
    assert_int_equal(info.epoch, 3);
    assert_int_equal(progress.total, model_bytes(&m));
    assert_int_equal(progress.donors, 1);
    before = progress.bytes;
    do {
        muster_state_load_progress(loading, &progress, &info);
        (void)sched_yield();
    } while (progress.bytes == before);
    assert_true(progress.bytes > before);
    muster_state_load_cancel(loading);
    assert_int_equal(muster_state_load_wait(loading, MUSTER_TIMEOUT_NEVER), 0);
    assert_int_equal(muster_state_load_end(loading, NULL), MUSTER_ECANCELED);
    muster_state_close(donor);
    model_free(&m);
}

static void *cancel(void *context)
{
    muster_state_load_cancel(context);
    return NULL;
}

static void test_load_that_is_canceled_comes_into_the_queue(void **state)
{
    struct muster_state_config config = at_rate(1);
    struct muster_state_request r;
    muster_state_loading *loading;
    muster_state *donor;
    const char *addr;
    pthread_t thread;
    struct model m;

    (void)state;
    model_make(&m, 8, 1);
    donor = donor_open(giver, &config, &m, 1);
    addr = muster_state_address(donor);
    r = from(&addr, 1);
    assert_int_equal(muster_state_load_begin(taker, &r, &loading), 0);
    assert_int_equal(pthread_create(&thread, NULL, cancel, loading), 0);
    take_loaded(loading, NULL);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(muster_state_load_end(loading, NULL), MUSTER_ECANCELED);
    /* One whose end is not awaited leaves the queue when it is over. */
    assert_int_equal(muster_state_load_begin(taker, &r, &loading), 0);
    muster_state_load_cancel(loading);
    assert_int_equal(muster_queue_wait(queue, 30000), 0);
    assert_int_equal(muster_state_load_end(loading, NULL), MUSTER_ECANCELED);
    assert_int_equal(muster_queue_wait(queue, 0), MUSTER_ETIMEDOUT);
    muster_state_close(donor);
    model_free(&m);
}

/* The first donor would take for ever. The store has another runtime than the load. */
static void test_donor_is_found_while_nobody_waits_for_the_load(void **state)
{
    struct muster_state_config slow = at_rate(1);
    struct muster_state_config fast = at_rate(0);
    struct muster_state_progress progress = {0};
    struct muster_state_request r = from(NULL, 0);
    struct muster_state_info info;
    muster_state_loading *loading;
    muster_state_copy *copy;
    muster_state *first;
    muster_state *second;
    muster_store *store;
    struct model m;

    (void)state;
    model_make(&m, 8, 1);
    assert_int_equal(muster_store_open(giver, "hash:", NULL, &store), 0);
    first = donor_open(giver, &slow, &m, 1);
    assert_int_equal(muster_state_announce(first, store, "job", 10000), 0);
    r.store = store;
    r.progress_ms = 5;
    assert_int_equal(muster_state_load_begin(taker, &r, &loading), 0);
    while (progress.info == NULL) { /* it is loading from the first */
        muster_state_load_progress(loading, &progress, &info);
        (void)sched_yield();
    }
    second = donor_open(giver, &fast, &m, 1);
    assert_int_equal(muster_state_announce(second, store, "job", 10000), 0);
    take_loaded(loading, NULL);
    assert_int_equal(muster_state_load_end(loading, &copy), 0);
    copy_assert_same(copy, &m);
    muster_state_copy_free(copy);
    muster_state_close(first);
    muster_state_close(second);
    muster_store_close(store);
    model_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_queue_gets_a_load_that_has_ended),
        cmocka_unit_test(test_queue_never_has_a_load_that_nobody_can_end),
        cmocka_unit_test(test_load_says_how_far_it_is),
        cmocka_unit_test(test_load_that_is_canceled_comes_into_the_queue),
        cmocka_unit_test(test_donor_is_found_while_nobody_waits_for_the_load),
    };

    return cmocka_run_group_tests(tests, open_runtimes, close_runtimes);
}
