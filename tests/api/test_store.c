/*
 * The public store, every operation over every kind that has it, from several threads: one battery,
 * run over hash:, over a muster server and through a prefix.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>
#include <muster/muster.h>

#define DEFAULT MUSTER_TIMEOUT_DEFAULT

struct fixture {
    muster_runtime *rt;
    muster_server *server;
    muster_store *store;
    char url[128];
};

static void open_fixture(struct fixture *f, const char *kind)
{
    struct muster_server_config config = muster_server_config_defaults();

    assert_int_equal(muster_runtime_new(&f->rt), 0);
    f->server = NULL;
    if (kind[0] == 't') {
        config.listen = "127.0.0.1:0";
        assert_int_equal(muster_server_start(f->rt, &config, &f->server), 0);
        (void)snprintf(f->url, sizeof(f->url), "tcp://%s%s", muster_server_address(f->server),
                       kind + 3);
    } else {
        (void)snprintf(f->url, sizeof(f->url), "%s", kind);
    }
    assert_int_equal(muster_store_open(f->rt, f->url, NULL, &f->store), 0);
}

static void close_fixture(struct fixture *f)
{
    muster_store_close(f->store);
    muster_server_free(f->server);
    muster_runtime_free(f->rt);
}

static void assert_value(struct muster_value *value, const char *text)
{
    assert_int_equal(value->len, strlen(text));
    assert_memory_equal(value->data, text, value->len);
    muster_value_free(value);
}

/* --- the battery ------------------------------------------------------------------------------ */

static void check_values(muster_store *s)
{
    struct muster_value value;
    int64_t n;
    bool yes;

    assert_int_equal(muster_store_set(s, muster_str("k"), muster_str("v"), DEFAULT), 0);
    assert_int_equal(muster_store_get(s, muster_str("k"), &value, DEFAULT), 0);
    assert_value(&value, "v");
    assert_int_equal(muster_store_append(s, muster_str("k"), muster_str("w"), DEFAULT), 0);
    assert_int_equal(muster_store_get(s, muster_str("k"), &value, DEFAULT), 0);
    assert_value(&value, "vw");
    assert_int_equal(muster_store_add(s, muster_str("n"), 40, &n, DEFAULT), 0);
    assert_int_equal(muster_store_add(s, muster_str("n"), 2, &n, DEFAULT), 0);
    assert_int_equal(n, 42);
    assert_int_equal(muster_store_add(s, muster_str("k"), 1, &n, DEFAULT), MUSTER_ENOTNUM);
    assert_non_null(strstr(muster_errmsg(), "not a number"));
    assert_int_equal(muster_store_delete(s, muster_str("k"), &yes, DEFAULT), 0);
    assert_true(yes);
    assert_int_equal(muster_store_delete(s, muster_str("k"), &yes, DEFAULT), 0);
    assert_false(yes);
}

static void check_compare_set(muster_store *s)
{
    struct muster_value value;
    bool written;

    assert_int_equal(muster_store_compare_set(s, muster_str("c"), muster_str(""), muster_str("a"),
                                              &value, &written, DEFAULT),
                     0);
    assert_true(written);
    assert_value(&value, "a");
    assert_int_equal(muster_store_compare_set(s, muster_str("c"), muster_str("x"), muster_str("b"),
                                              &value, &written, DEFAULT),
                     0);
    assert_false(written);
    assert_value(&value, "a");
    assert_int_equal(muster_store_compare_set(s, muster_str("none"), muster_str("x"),
                                              muster_str("b"), &value, &written, DEFAULT),
                     0);
    assert_false(written);
    assert_value(&value, "x");
}

static void check_many(muster_store *s)
{
    struct muster_bytes keys[] = {muster_str("m1"), muster_str("m2")};
    struct muster_bytes values[] = {muster_str("1"), muster_str("22")};
    struct muster_bytes missing[] = {muster_str("m1"), muster_str("gone"), muster_str("away")};
    struct muster_values got;
    int64_t n;
    bool yes;

    assert_int_equal(muster_store_multi_set(s, keys, values, 2, DEFAULT), 0);
    assert_int_equal(muster_store_multi_get(s, keys, 2, &got, DEFAULT), 0);
    assert_int_equal(got.count, 2);
    assert_memory_equal(got.items[1].data, "22", 2);
    muster_values_free(&got);
    assert_int_equal(muster_store_check(s, keys, 2, &yes, DEFAULT), 0);
    assert_true(yes);
    assert_int_equal(muster_store_check(s, missing, 3, &yes, DEFAULT), 0);
    assert_false(yes);
    assert_int_equal(muster_store_wait(s, keys, 2, DEFAULT), 0);
    assert_int_equal(muster_store_wait(s, missing, 3, 20), MUSTER_ETIMEDOUT);
    assert_non_null(strstr(muster_errmsg(), "gone\""));
    assert_non_null(strstr(muster_errmsg(), "away\""));
    assert_null(strstr(muster_errmsg(), "m1"));
    assert_null(strstr(muster_errmsg(), "\"/")); /* Keys as their user wrote them. */
    assert_int_equal(muster_store_list_keys(s, muster_str("m"), &got, DEFAULT), 0);
    assert_int_equal(got.count, 2);
    assert_int_equal(got.items[0].len, 2);
    muster_values_free(&got);
    assert_int_equal(muster_store_num_keys(s, &n, DEFAULT), 0);
    assert_true(n >= 2);
}

static void check_queues(muster_store *s)
{
    struct muster_value value;
    int64_t n;

    assert_int_equal(muster_store_queue_pop(s, muster_str("q"), false, &value, DEFAULT),
                     MUSTER_ENOENT);
    assert_int_equal(muster_store_queue_pop(s, muster_str("q"), true, &value, 20),
                     MUSTER_ETIMEDOUT);
    assert_int_equal(muster_store_queue_push(s, muster_str("q"), muster_str("1"), DEFAULT), 0);
    assert_int_equal(muster_store_queue_push(s, muster_str("q"), muster_str("2"), DEFAULT), 0);
    assert_int_equal(muster_store_queue_len(s, muster_str("q"), &n, DEFAULT), 0);
    assert_int_equal(n, 2);
    assert_int_equal(muster_store_queue_pop(s, muster_str("q"), true, &value, DEFAULT), 0);
    assert_value(&value, "1");
    assert_int_equal(muster_store_queue_pop(s, muster_str("q"), false, &value, DEFAULT), 0);
    assert_value(&value, "2");
}

struct seen {
    atomic_int count;
    enum muster_change_kind kinds[16];
    char keys[16][32];
    size_t value_bytes;
    atomic_int done;
};

static void on_change(muster_op *op, const struct muster_change *change, void *context)
{
    struct seen *seen = context;
    int i = atomic_load(&seen->count);

    (void)op;
    if (i < 16) {
        seen->kinds[i] = change->kind;
        (void)snprintf(seen->keys[i], 32, "%.*s", (int)change->key.len,
                       (const char *)change->key.data);
        seen->value_bytes += change->value.len;
        atomic_store(&seen->count, i + 1);
    }
}

static void on_watch_done(muster_op *op, void *context)
{
    struct seen *seen = context;

    (void)op;
    atomic_fetch_add(&seen->done, 1);
}

static void await_count(atomic_int *count, int wanted)
{
    while (atomic_load(count) < wanted) {
        (void)sched_yield();
    }
}

static void check_watch(muster_store *s)
{
    struct seen seen = {0};
    struct muster_bytes key = muster_str("w/");
    struct muster_store_request q = {.size = sizeof(struct muster_store_request),
                                     .verb = MUSTER_STORE_WATCH,
                                     .keys = &key,
                                     .key_count = 1,
                                     .flags = MUSTER_STORE_PREFIX | MUSTER_STORE_CURRENT,
                                     .timeout_ms = DEFAULT,
                                     .on_change = on_change,
                                     .done = on_watch_done,
                                     .context = &seen};
    muster_op *op;
    int64_t n;

    assert_int_equal(muster_store_set(s, muster_str("w/0"), muster_str("x"), DEFAULT), 0);
    assert_int_equal(muster_store_submit(s, &q, &op), 0);
    await_count(&seen.count, 1);
    assert_int_equal(muster_store_set(s, muster_str("w/1"), muster_str("x"), DEFAULT), 0);
    assert_int_equal(muster_store_add(s, muster_str("other"), 1, &n, DEFAULT), 0);
    assert_int_equal(muster_store_append(s, muster_str("w/1"), muster_str("y"), DEFAULT), 0);
    assert_int_equal(muster_store_delete(s, muster_str("w/1"), NULL, DEFAULT), 0);
    await_count(&seen.count, 4);
    muster_op_cancel(op);
    assert_int_equal(muster_op_wait(op), MUSTER_ECANCELED);
    assert_int_equal(atomic_load(&seen.done), 1);
    muster_op_free(op);
    assert_int_equal(seen.kinds[0], MUSTER_CHANGE_CREATED);
    assert_string_equal(seen.keys[0], "w/0");
    assert_int_equal(seen.kinds[1], MUSTER_CHANGE_CREATED);
    assert_int_equal(seen.kinds[2], MUSTER_CHANGE_APPENDED);
    assert_int_equal(seen.kinds[3], MUSTER_CHANGE_DELETED);
    assert_string_equal(seen.keys[3], "w/1");
    assert_int_equal(seen.value_bytes, 4);
}

/* The first change is the answer, and nothing is streamed. */
static void check_watch_once(muster_store *s)
{
    struct seen seen = {0};
    struct muster_bytes key = muster_str("quiet");
    struct muster_store_request q = {.size = sizeof(struct muster_store_request),
                                     .verb = MUSTER_STORE_WATCH,
                                     .keys = &key,
                                     .key_count = 1,
                                     .flags = MUSTER_STORE_ONCE,
                                     .timeout_ms = DEFAULT,
                                     .on_change = on_change,
                                     .done = on_watch_done,
                                     .context = &seen};
    muster_op *op;
    int64_t before;

    assert_int_equal(muster_store_submit(s, &q, &op), 0);
    assert_int_equal(muster_store_set(s, muster_str("loud"), muster_str("x"), DEFAULT), 0);
    assert_int_equal(atomic_load(&seen.done), 0);
    assert_int_equal(muster_store_set(s, key, muster_str("y"), DEFAULT), 0);
    assert_int_equal(muster_store_set(s, key, muster_str("z"), DEFAULT), 0);
    assert_int_equal(muster_op_wait(op), 0);
    before = muster_op_number(op);
    assert_true(before > 0);
    muster_op_free(op);
    /* One that begins with what is there has its answer at once. */
    q.flags |= MUSTER_STORE_CURRENT;
    assert_int_equal(muster_store_submit(s, &q, &op), 0);
    assert_int_equal(muster_op_wait(op), 0);
    assert_true(muster_op_number(op) > before);
    muster_op_free(op);
    assert_int_equal(atomic_load(&seen.done), 2);
    assert_int_equal(atomic_load(&seen.count), 0);
}

static void check_leases(muster_store *s)
{
    struct seen seen = {0};
    struct muster_bytes key = muster_str("leased");
    struct muster_store_request q = {.size = sizeof(struct muster_store_request),
                                     .verb = MUSTER_STORE_WATCH,
                                     .keys = &key,
                                     .key_count = 1,
                                     .timeout_ms = DEFAULT,
                                     .on_change = on_change,
                                     .done = on_watch_done,
                                     .context = &seen};
    muster_op *op;
    uint64_t lease;
    bool there;

    assert_int_equal(muster_store_submit(s, &q, &op), 0);
    assert_int_equal(muster_store_lease_grant(s, 30, &lease, DEFAULT), 0);
    assert_int_equal(muster_store_set_leased(s, key, muster_str("x"), lease, DEFAULT), 0);
    await_count(&seen.count, 2);
    assert_int_equal(seen.kinds[1], MUSTER_CHANGE_EXPIRED);
    assert_int_equal(muster_store_lease_keep(s, lease, DEFAULT), MUSTER_ENOENT);
    assert_int_equal(muster_store_lease_grant(s, 3600000, &lease, DEFAULT), 0);
    assert_int_equal(muster_store_set_leased(s, key, muster_str("x"), lease, DEFAULT), 0);
    assert_int_equal(muster_store_lease_keep(s, lease, DEFAULT), 0);
    assert_int_equal(muster_store_lease_revoke(s, lease, DEFAULT), 0);
    assert_int_equal(muster_store_check(s, &key, 1, &there, DEFAULT), 0);
    assert_false(there);
    muster_op_free(op);
    assert_int_equal(atomic_load(&seen.done), 0); /* freed, and not told */
}

static void run_battery(const char *kind)
{
    struct fixture f;

    open_fixture(&f, kind);
    check_values(f.store);
    check_compare_set(f.store);
    check_many(f.store);
    check_queues(f.store);
    check_watch(f.store);
    check_watch_once(f.store);
    check_leases(f.store);
    close_fixture(&f);
}

static void test_store_hash_has_every_operation(void **state)
{
    (void)state;
    run_battery("hash:");
}

static void test_store_tcp_has_every_operation(void **state)
{
    (void)state;
    run_battery("tcp");
}

static void test_store_prefix_has_every_operation(void **state)
{
    (void)state;
    run_battery("tcp?prefix=job%2F7");
    run_battery("hash:?prefix=p");
}

/* --- threads ---------------------------------------------------------------------------------- */

struct worker {
    pthread_t thread;
    muster_store *store;
    int rank;
    int status;
};

enum { WORKERS = 8, ADDS = 200 }; /* 1600 in all */

static void *work(void *context)
{
    struct worker *w = context;
    struct muster_value value = {0};
    char key[32];
    int64_t n;

    for (int i = 0; i < ADDS && w->status == 0; i++) {
        w->status = muster_store_add(w->store, muster_str("sum"), 1, &n, DEFAULT);
    }
    if (w->status == 0) {
        w->status = muster_store_barrier(w->store, muster_str("b"), WORKERS, DEFAULT);
    }
    /* Behind the barrier the sum is whole, for everybody. */
    if (w->status == 0) {
        w->status = muster_store_get(w->store, muster_str("sum"), &value, DEFAULT);
    }
    if (w->status == 0 && strcmp(value.data, "1600") != 0) {
        w->status = 1;
    }
    muster_value_free(&value);
    /* A ring: each waits for its left neighbour, the first for nobody. */
    (void)snprintf(key, sizeof(key), "ring%d", w->rank - 1);
    if (w->status == 0 && w->rank > 0) {
        struct muster_bytes k = muster_str(key);

        w->status = muster_store_wait(w->store, &k, 1, DEFAULT);
    }
    (void)snprintf(key, sizeof(key), "ring%d", w->rank);
    if (w->status == 0) {
        w->status = muster_store_set(w->store, muster_str(key), muster_str(""), DEFAULT);
    }
    return NULL;
}

static void run_workers(const char *kind, bool own_store)
{
    struct worker workers[WORKERS] = {0};
    struct fixture f;

    open_fixture(&f, kind);
    for (int i = 0; i < WORKERS; i++) {
        workers[i].rank = i;
        workers[i].store = f.store;
        if (own_store) {
            assert_int_equal(muster_store_open(f.rt, f.url, NULL, &workers[i].store), 0);
        }
    }
    for (int i = WORKERS - 1; i >= 0; i--) {
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < WORKERS; i++) {
        (void)pthread_join(workers[i].thread, NULL);
        assert_int_equal(workers[i].status, 0);
        if (own_store) {
            muster_store_close(workers[i].store);
        }
    }
    close_fixture(&f);
}

static void test_store_serves_threads_that_share_it(void **state)
{
    (void)state;
    run_workers("hash:", false);
    run_workers("tcp", false);
}

static void test_store_serves_threads_with_their_own(void **state)
{
    (void)state;
    run_workers("tcp", true);
}

/* --- the ends of operations ------------------------------------------------------------------- */

static void test_store_close_ends_what_is_under_way(void **state)
{
    struct muster_bytes key = muster_str("never");
    struct muster_store_request q = {.size = sizeof(struct muster_store_request),
                                     .verb = MUSTER_STORE_WAIT,
                                     .keys = &key,
                                     .key_count = 1,
                                     .timeout_ms = MUSTER_TIMEOUT_NEVER};
    static const char *const kinds[] = {"hash:", "tcp", "tcp?prefix=p"};

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct fixture f;
        muster_op *op;

        open_fixture(&f, kinds[i]);
        assert_int_equal(muster_store_submit(f.store, &q, &op), 0);
        close_fixture(&f);
        assert_int_equal(muster_op_status(op), MUSTER_ECLOSED);
        muster_op_free(op);
    }
}

static void test_store_cancel_is_quicker_than_the_key(void **state)
{
    struct muster_bytes key = muster_str("never");
    struct muster_store_request q = {.size = sizeof(struct muster_store_request),
                                     .verb = MUSTER_STORE_GET,
                                     .keys = &key,
                                     .key_count = 1,
                                     .timeout_ms = MUSTER_TIMEOUT_NEVER};
    struct fixture f;
    muster_op *op;

    (void)state;
    open_fixture(&f, "tcp");
    for (int i = 0; i < 100; i++) {
        assert_int_equal(muster_store_submit(f.store, &q, &op), 0);
        muster_op_cancel(op);
        assert_int_equal(muster_op_wait(op), MUSTER_ECANCELED);
        muster_op_free(op);
    }
    close_fixture(&f);
}

static void call_from_callback(muster_op *op, void *context)
{
    muster_store *store = *(muster_store **)context;
    int64_t n;

    *(muster_store **)context = NULL;
    assert_int_equal(muster_store_num_keys(store, &n, DEFAULT), MUSTER_EINVAL);
    assert_int_equal(muster_op_wait(op), MUSTER_EINVAL);
}

static void test_store_refuses_to_wait_on_the_runtimes_thread(void **state)
{
    muster_store *context;
    struct muster_store_request q = {.size = sizeof(struct muster_store_request),
                                     .verb = MUSTER_STORE_NUM_KEYS,
                                     .timeout_ms = DEFAULT,
                                     .done = call_from_callback,
                                     .context = &context};
    struct fixture f;
    muster_op *op;

    (void)state;
    open_fixture(&f, "hash:");
    context = f.store;
    assert_int_equal(muster_store_submit(f.store, &q, &op), 0);
    assert_int_equal(muster_op_wait(op), 0);
    muster_op_free(op);
    close_fixture(&f);
    assert_null(context);
}

static void test_store_open_says_what_is_wrong(void **state)
{
    struct muster_store_config quick = {
        .size = sizeof(struct muster_store_config), .timeout_ms = 1000, .connect_timeout_ms = 200};
    static const struct {
        const char *url;
        int status;
        const char *says;
    } cases[] = {
        {"nonsense", MUSTER_EURL, "tcp://HOST:PORT"},
        {"smb://x", MUSTER_EURL, "there is no store of kind \"smb\""},
        {"tcp://", MUSTER_EURL, ""},
        {"tcp://:1", MUSTER_EURL, "tcp://HOST:1"},
        {"tcp://*", MUSTER_EURL, "tcp://HOST:29500"},
        {"tcp://h:99999", MUSTER_EURL, "99999"},
        {"tcp://h:1/path", MUSTER_EURL, "?prefix=path"},
        {"tcp://h:1?color=red", MUSTER_EURL, "\"color\""},
        {"tcp://h:1?protocol=smtp", MUSTER_EURL, "protocol=smtp"},
        {"hash:x", MUSTER_EURL, "hash:?prefix=P"},
        {"file://host/x", MUSTER_EURL, "three slashes"},
        {"tcp://127.0.0.1:1?connect=100", MUSTER_ECONN, "cannot connect to 127.0.0.1:1"},
    };
    muster_runtime *rt;
    muster_store *store;

    (void)state;
    assert_int_equal(muster_runtime_new(&rt), 0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(muster_store_open(rt, cases[i].url, &quick, &store), cases[i].status);
        if (strstr(muster_errmsg(), cases[i].says) == NULL) {
            fail_msg("%s: \"%s\" does not say \"%s\"", cases[i].url, muster_errmsg(),
                     cases[i].says);
        }
    }
    muster_runtime_free(rt);
}

static void test_store_submit_refuses_wrong_arguments(void **state)
{
    struct muster_store_request none = {.size = sizeof(struct muster_store_request),
                                        .verb = MUSTER_STORE_SET,
                                        .timeout_ms = DEFAULT};
    struct muster_store_request odd = {.size = sizeof(struct muster_store_request),
                                       .verb = (enum muster_store_verb)99};
    struct fixture f;
    muster_op *op;

    (void)state;
    open_fixture(&f, "hash:");
    assert_int_equal(muster_store_submit(f.store, &none, &op), MUSTER_EINVAL);
    assert_int_equal(muster_store_submit(f.store, &odd, &op), MUSTER_EINVAL);
    assert_int_equal(muster_store_barrier(f.store, muster_str("b"), 0, DEFAULT), MUSTER_EINVAL);
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_store_hash_has_every_operation),
        cmocka_unit_test(test_store_tcp_has_every_operation),
        cmocka_unit_test(test_store_prefix_has_every_operation),
        cmocka_unit_test(test_store_serves_threads_that_share_it),
        cmocka_unit_test(test_store_serves_threads_with_their_own),
        cmocka_unit_test(test_store_close_ends_what_is_under_way),
        cmocka_unit_test(test_store_cancel_is_quicker_than_the_key),
        cmocka_unit_test(test_store_refuses_to_wait_on_the_runtimes_thread),
        cmocka_unit_test(test_store_open_says_what_is_wrong),
        cmocka_unit_test(test_store_submit_refuses_wrong_arguments),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
