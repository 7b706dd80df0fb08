/* What store.h and types.h promise beside the operations themselves: what the timeouts mean, who
 * owns what, what a failure leaves alone, how operations end. Over a server and in this process. */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>
#include <muster/muster.h>

#define DEFAULT MUSTER_TIMEOUT_DEFAULT

static muster_runtime *rt;
static muster_server *server;
static muster_store *stores[2]; /* over the wire; in this process */

static int open_stores(void **state)
{
    struct muster_server_config config = muster_server_config_defaults();
    char url[128];

    (void)state;
    assert_int_equal(muster_runtime_new(&rt), 0);
    config.listen = "127.0.0.1:0";
    assert_int_equal(muster_server_start(rt, &config, &server), 0);
    (void)snprintf(url, sizeof(url), "tcp://%s", muster_server_address(server));
    assert_int_equal(muster_store_open(rt, url, NULL, &stores[0]), 0);
    assert_int_equal(muster_store_open(rt, "hash:", NULL, &stores[1]), 0);
    return 0;
}

static int close_stores(void **state)
{
    (void)state;
    muster_store_close(stores[0]);
    muster_store_close(stores[1]);
    muster_server_free(server);
    muster_runtime_free(rt);
    return 0;
}

static muster_op *submit(muster_store *s, const struct muster_store_request *q)
{
    muster_op *op = NULL;

    assert_int_equal(muster_store_submit(s, q, &op), 0);
    return op;
}

/* --- timeouts --------------------------------------------------------------------------------- */

static void check_timeouts(muster_store *s)
{
    struct muster_bytes key = muster_str("never");
    struct muster_store_request get = {.size = sizeof(struct muster_store_request),
                                       .verb = MUSTER_STORE_GET,
                                       .keys = &key,
                                       .key_count = 1,
                                       .timeout_ms = DEFAULT};
    struct muster_store_request watch = {.size = sizeof(struct muster_store_request),
                                         .verb = MUSTER_STORE_WATCH,
                                         .keys = &key,
                                         .key_count = 1,
                                         .timeout_ms = DEFAULT};
    muster_op *patient;
    muster_op *watching;
    muster_op *waiting;

    assert_int_equal(muster_store_timeout(s), 300000);
    patient = submit(s, &get);
    muster_store_set_timeout(s, 20);
    assert_int_equal(muster_store_timeout(s), 20);
    watching = submit(s, &watch); /* It has a timeout only if it names one. */
    assert_int_equal(muster_store_get(s, key, &(struct muster_value){0}, DEFAULT),
                     MUSTER_ETIMEDOUT);
    assert_non_null(strstr(muster_errmsg(), "never"));
    muster_store_set_timeout(s, MUSTER_TIMEOUT_NEVER);
    waiting = submit(s, &get);
    assert_int_equal(muster_store_wait(s, &key, 1, 60), MUSTER_ETIMEDOUT);
    /* Those that were started with another timeout, or none, go on. */
    assert_int_equal(muster_store_set(s, key, muster_str("x"), DEFAULT), 0);
    assert_int_equal(muster_op_wait(patient), 0);
    assert_int_equal(muster_op_wait(waiting), 0);
    muster_op_cancel(watching);
    assert_int_equal(muster_op_wait(watching), MUSTER_ECANCELED);
    muster_op_free(patient);
    muster_op_free(waiting);
    muster_op_free(watching);
    assert_int_equal(muster_store_wait(s, &key, 1, 0), MUSTER_EINVAL);
    assert_int_equal(muster_store_wait(s, &key, 1, -3), MUSTER_EINVAL);
}

static void test_store_timeouts_are_default_never_or_milliseconds(void **state)
{
    (void)state;
    check_timeouts(stores[0]);
    check_timeouts(stores[1]);
}

static void check_barrier(muster_store *s)
{
    assert_int_equal(muster_store_barrier(s, muster_str("b"), 3, 30), MUSTER_ETIMEDOUT);
    if (strstr(muster_errmsg(), "1 of 3") == NULL) {
        fail_msg("it does not say how many came: %s", muster_errmsg());
    }
    assert_int_equal(muster_store_barrier(s, muster_str("one"), 1, DEFAULT), 0);
}

static void test_store_barrier_says_how_many_came(void **state)
{
    (void)state;
    check_barrier(stores[0]);
    check_barrier(stores[1]);
}

/* --- results ---------------------------------------------------------------------------------- */

static void check_failures(muster_store *s)
{
    struct muster_bytes key = muster_str("absent");
    struct muster_value value = {&key, 77};
    struct muster_values values = {NULL, 77};
    int64_t number = 77;
    bool yes = true;

    assert_int_equal(muster_store_set(s, muster_str("text"), muster_str("x"), DEFAULT), 0);
    assert_int_equal(muster_store_add(s, muster_str("text"), 1, &number, DEFAULT), MUSTER_ENOTNUM);
    assert_int_equal(number, 77);
    assert_int_equal(muster_store_get(s, key, &value, 10), MUSTER_ETIMEDOUT);
    assert_ptr_equal(value.data, &key);
    assert_int_equal(value.len, 77);
    assert_int_equal(muster_store_multi_get(s, &key, 1, &values, 10), MUSTER_ETIMEDOUT);
    assert_int_equal(values.count, 77);
    assert_int_equal(muster_store_queue_pop(s, key, false, &value, DEFAULT), MUSTER_ENOENT);
    assert_int_equal(value.len, 77);
    /* What may be NULL. */
    assert_int_equal(muster_store_delete(s, key, NULL, DEFAULT), 0);
    assert_int_equal(
        muster_store_compare_set(s, key, muster_str(""), muster_str("y"), NULL, NULL, DEFAULT), 0);
    assert_int_equal(
        muster_store_compare_set(s, key, muster_str("n"), muster_str("z"), NULL, &yes, DEFAULT), 0);
    assert_false(yes);
}

static void test_store_failure_leaves_the_callers_variables_alone(void **state)
{
    (void)state;
    check_failures(stores[0]);
    check_failures(stores[1]);
}

static void check_values(muster_store *s)
{
    struct muster_bytes keys[] = {muster_str("b"), muster_str("a"), muster_str("b")};
    struct muster_bytes with_zero = {"a\0b", 3};
    struct muster_values values;
    struct muster_value value;
    bool there = false;
    int64_t n;

    assert_int_equal(muster_store_set(s, keys[1], with_zero, DEFAULT), 0);
    assert_int_equal(muster_store_set(s, keys[0], muster_str(""), DEFAULT), 0);
    assert_int_equal(muster_store_get(s, keys[1], &value, DEFAULT), 0);
    assert_int_equal(value.len, 3);
    assert_memory_equal(value.data, "a\0b", 4); /* and the zero behind its end */
    muster_value_free(&value);
    assert_null(value.data);
    muster_value_free(&value);
    assert_int_equal(muster_store_multi_get(s, keys, 3, &values, DEFAULT), 0);
    assert_int_equal(values.count, 3);
    assert_int_equal(values.items[0].len, 0);
    assert_string_equal(values.items[0].data, "");
    assert_int_equal(values.items[1].len, 3);
    muster_values_free(&values);
    assert_int_equal(values.count, 0);
    muster_values_free(&values);
    assert_int_equal(muster_store_list_keys(s, muster_str(""), &values, DEFAULT), 0);
    assert_int_equal(muster_store_num_keys(s, &n, DEFAULT), 0);
    assert_int_equal(values.count, (size_t)n);
    muster_values_free(&values);
    /* All of none. */
    assert_int_equal(muster_store_check(s, NULL, 0, &there, DEFAULT), 0);
    assert_true(there);
    assert_int_equal(muster_store_wait(s, NULL, 0, DEFAULT), 0);
    assert_int_equal(muster_store_multi_get(s, NULL, 0, &values, DEFAULT), 0);
    assert_int_equal(values.count, 0);
    muster_values_free(&values);
    assert_int_equal(muster_store_queue_len(s, muster_str("no queue"), &n, DEFAULT), 0);
    assert_int_equal(n, 0);
}

static void test_store_values_belong_to_who_asked(void **state)
{
    (void)state;
    check_values(stores[0]);
    check_values(stores[1]);
}

/* --- operations ------------------------------------------------------------------------------- */

static void count(muster_op *op, void *context)
{
    (void)op;
    (void)atomic_fetch_add((atomic_int *)context, 1);
}

static void check_ops(muster_store *s)
{
    atomic_int done = 0;
    char text[] = "later";
    struct muster_bytes key = {text, 5};
    struct muster_store_request q = {.size = sizeof(struct muster_store_request),
                                     .verb = MUSTER_STORE_GET,
                                     .keys = &key,
                                     .key_count = 1,
                                     .timeout_ms = MUSTER_TIMEOUT_NEVER,
                                     .done = count,
                                     .context = &done};
    muster_op *op = submit(s, &q);

    /* What was passed was copied. */
    memset(text, 'x', sizeof(text) - 1);
    assert_int_equal(muster_store_set(s, muster_str("later"), muster_str("y"), DEFAULT), 0);
    assert_int_equal(muster_op_wait(op), 0);
    assert_int_equal(muster_op_status(op), 0);
    assert_int_equal(muster_op_value_count(op), 1);
    assert_memory_equal(muster_op_value(op, 0).data, "y", 1);
    assert_int_equal(muster_op_value(op, 1).len, 0);
    assert_int_equal(atomic_load(&done), 1);
    muster_op_cancel(op); /* harmless afterwards */
    muster_op_cancel(op);
    assert_int_equal(muster_op_wait(op), 0);
    muster_op_free(op);
    /* Freed under way: canceled, and not told. */
    op = submit(s, &q);
    muster_op_free(op);
    muster_op_free(NULL);
    /* Without waiting. */
    q.flags = MUSTER_STORE_NOWAIT;
    op = submit(s, &q);
    assert_int_equal(muster_op_wait(op), MUSTER_ENOENT);
    assert_true(muster_op_errmsg(op)[0] != '\0');
    muster_op_free(op);
    assert_int_equal(atomic_load(&done), 2);
    /* What was refused was not begun. */
    q.flags = 16;
    assert_int_equal(muster_store_submit(s, &q, &op), MUSTER_EINVAL);
    q.flags = 0;
    q.value_count = 1;
    q.values = &key;
    assert_int_equal(muster_store_submit(s, &q, &op), MUSTER_EINVAL);
    assert_int_equal(atomic_load(&done), 2);
}

static void test_store_operations_end_once_and_are_told(void **state)
{
    (void)state;
    check_ops(stores[0]);
    check_ops(stores[1]);
}

static void *first_words(void *context)
{
    *(bool *)context = muster_errmsg() != NULL && muster_errmsg()[0] == '\0';
    return NULL;
}

static void test_errors_have_a_text_for_each_thread(void **state)
{
    bool empty = false;
    pthread_t thread;

    (void)state;
    assert_int_equal(muster_store_wait(stores[1], NULL, 0, -3), MUSTER_EINVAL);
    assert_true(muster_errmsg()[0] != '\0');
    assert_int_equal(pthread_create(&thread, NULL, first_words, &empty), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(empty);
    assert_string_equal(muster_errname(MUSTER_ETIMEDOUT), "MUSTER_ETIMEDOUT");
    assert_string_equal(muster_errname(-2), "unknown");
    assert_non_null(muster_strerror(-2)); /* of the system */
    assert_non_null(muster_strerror(12345));
}

#define WITH_STORES(test) cmocka_unit_test_setup_teardown(test, open_stores, close_stores)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_STORES(test_store_timeouts_are_default_never_or_milliseconds),
        WITH_STORES(test_store_barrier_says_how_many_came),
        WITH_STORES(test_store_failure_leaves_the_callers_variables_alone),
        WITH_STORES(test_store_values_belong_to_who_asked),
        WITH_STORES(test_store_operations_end_once_and_are_told),
        WITH_STORES(test_errors_have_a_text_for_each_thread),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
