/*
 * Goal: a store in a file answers as PyTorch's does and writes the same bytes; each operation ends
 * exactly once, whatever the file, the disk and the other users do. Method: a log in memory whose
 * faults are switches, then real files.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <fcntl.h>

#include "unit.h"

#include "failheap.h"
#include "memory_log.h"
#include "service/store/file.h"
#include "service/store/file_cache.h"
#include "transport/uv_env.h"

static struct mu_uv_env *uv;
static struct memory_log memory;
static struct mu_store *store;
static bool store_closed;

/* An operation with room for its words. */
struct ask {
    struct mu_store_op op;
    struct mu_span keys[4];
    struct mu_span values[4];
    unsigned ends;
    bool submitting;
    int64_t number;
    size_t count;
    char first[64]; /* of the values in the reply */
};

static void on_done(struct mu_store_op *op)
{
    struct ask *a = MU_CONTAINER_OF(op, struct ask, op);

    assert_false(a->submitting);
    a->ends++;
    a->number = op->reply.number;
    a->count = op->reply.value_count;
    (void)snprintf(a->first, sizeof(a->first), "%.*s",
                   a->count == 0 ? 0 : (int)op->reply.values[0].len,
                   a->count == 0 ? "" : (const char *)op->reply.values[0].data);
}

static void prepare(struct ask *a, enum mu_store_verb verb, const char *key, const char *value,
                    const char *value2)
{
    memset(a, 0, sizeof(*a));
    a->keys[0] = key == NULL ? (struct mu_span){0} : mu_span_str(key);
    a->values[0] = value == NULL ? (struct mu_span){0} : mu_span_str(value);
    a->values[1] = value2 == NULL ? (struct mu_span){0} : mu_span_str(value2);
    a->op.request = (struct mu_store_request){
        .verb = verb,
        .keys = a->keys,
        .key_count = key != NULL ? 1 : 0,
        .values = a->values,
        .value_count = value2 != NULL  ? 2
                       : value != NULL ? 1
                                       : 0,
    };
    a->op.timeout_ms = 3000;
    a->op.done = on_done;
}

static void submit(struct mu_store *to, struct ask *a)
{
    a->submitting = true;
    mu_store_submit(to, &a->op);
    a->submitting = false;
}

static void start(struct mu_store *to, struct ask *a, enum mu_store_verb verb, const char *key,
                  const char *value, const char *value2)
{
    prepare(a, verb, key, value, value2);
    submit(to, a);
}

static void finish(struct ask *a)
{
    while (a->ends == 0) {
        mu_uv_env_turn(uv);
    }
    assert_int_equal(a->ends, 1);
}

static int ask(struct ask *a, enum mu_store_verb verb, const char *key, const char *value,
               const char *value2)
{
    start(store, a, verb, key, value, value2);
    finish(a);
    return a->op.status;
}

static int add(struct ask *a, const char *key, int64_t delta)
{
    prepare(a, MU_STORE_ADD, key, NULL, NULL);
    a->op.request.number = delta;
    submit(store, a);
    finish(a);
    return a->op.status;
}

static void on_closed(void *context)
{
    *(bool *)context = true;
}

static void close_store(struct mu_store *s)
{
    store_closed = false;
    mu_store_close(s, on_closed, &store_closed);
    assert_false(store_closed);
    while (!store_closed) {
        mu_uv_env_turn(uv);
    }
}

static void open_memory(int64_t world_size)
{
    assert_int_equal(
        mu_store_file_new_on(mu_uv_env_env(uv), &memory.base, "/the/file", world_size, &store), 0);
}

static int set_up(void **state)
{
    (void)state;
    memory_log_init(&memory);
    open_memory(-1);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    if (store != NULL) {
        close_store(store);
        store = NULL;
        assert_int_equal(memory.closes, 1);
        assert_false(memory.locked);
    }
    return 0;
}

/* --- answers ---------------------------------------------------------------------------------- */

static void test_store_file_answers_each_verb(void **state)
{
    struct ask a;

    (void)state;
    assert_int_equal(ask(&a, MU_STORE_SET, "k", "v", NULL), 0);
    assert_int_equal(ask(&a, MU_STORE_GET, "k", NULL, NULL), 0);
    assert_string_equal(a.first, "v");
    assert_int_equal(add(&a, "n", 5), 0);
    assert_int_equal(a.number, 5);
    assert_int_equal(add(&a, "n", -7), 0);
    assert_int_equal(a.number, -2);
    assert_int_equal(add(&a, "k", 1), MUSTER_ENOTNUM);
    assert_int_equal(ask(&a, MU_STORE_APPEND, "k", "wx", NULL), 0);
    assert_int_equal(a.number, 3);
    assert_int_equal(ask(&a, MU_STORE_APPEND, "new", "y", NULL), 0);
    assert_int_equal(a.number, 1);
    assert_int_equal(ask(&a, MU_STORE_NUM_KEYS, NULL, NULL, NULL), 0);
    assert_int_equal(a.number, 3);
    assert_int_equal(ask(&a, MU_STORE_LIST_KEYS, "ne", NULL, NULL), 0);
    assert_int_equal(a.number, 1);
    assert_string_equal(a.first, "new");
    assert_int_equal(ask(&a, MU_STORE_CHECK, "k", NULL, NULL), 0);
    assert_int_equal(a.number, 1);
    assert_int_equal(ask(&a, MU_STORE_DELETE, "k", NULL, NULL), 0);
    assert_int_equal(a.number, 1);
    assert_int_equal(ask(&a, MU_STORE_DELETE, "k", NULL, NULL), 0);
    assert_int_equal(a.number, 0);
    assert_int_equal(ask(&a, MU_STORE_CHECK, "k", NULL, NULL), 0);
    assert_int_equal(a.number, 0);
    assert_int_equal(ask(&a, MU_STORE_WAIT, "n", NULL, NULL), 0);
}

static void test_store_file_compares_and_sets_as_pytorch(void **state)
{
    struct ask a;

    (void)state;
    assert_int_equal(ask(&a, MU_STORE_COMPARE_SET, "c", "x", "y"), 0);
    assert_string_equal(a.first, "x"); /* absent: what was expected, and nothing is written */
    assert_int_equal(a.number, 0);
    assert_int_equal(memory.size, 0);
    assert_int_equal(ask(&a, MU_STORE_COMPARE_SET, "c", "", "a"), 0);
    assert_string_equal(a.first, "a");
    assert_int_equal(a.number, 1);
    assert_int_equal(ask(&a, MU_STORE_COMPARE_SET, "c", "x", "y"), 0);
    assert_string_equal(a.first, "a");
    assert_int_equal(a.number, 0);
    assert_int_equal(ask(&a, MU_STORE_COMPARE_SET, "c", "a", "b"), 0);
    assert_string_equal(a.first, "b");
}

static void test_store_file_writes_the_bytes_that_pytorch_writes(void **state)
{
    static const char want[] = "\x02\0\0\0/k\x01\0\0\0v"
                               "\x01\0\0\0/\x01\0\0\0e"
                               "\x02\0\0\0/n\x02\0\0\0-2"
                               "\x03\0\0\0-/k\0\0\0\0";
    struct ask a;

    (void)state;
    assert_int_equal(ask(&a, MU_STORE_SET, "k", "v", NULL), 0);
    assert_int_equal(ask(&a, MU_STORE_SET, "", "e", NULL), 0);
    assert_int_equal(add(&a, "n", -2), 0);
    assert_int_equal(ask(&a, MU_STORE_DELETE, "k", NULL, NULL), 0);
    assert_int_equal(memory.size, sizeof(want) - 1);
    assert_memory_equal(memory.data, want, sizeof(want) - 1);
}

static void test_store_file_sets_and_gets_many_in_order(void **state)
{
    struct ask a;

    (void)state;
    memset(&a, 0, sizeof(a));
    for (int i = 0; i < 3; i++) {
        a.keys[i] = mu_span_str(i == 0 ? "a" : i == 1 ? "b" : "a");
        a.values[i] = mu_span_str(i == 0 ? "1" : i == 1 ? "2" : "3");
    }
    a.op.request = (struct mu_store_request){.verb = MU_STORE_MULTI_SET,
                                             .keys = a.keys,
                                             .key_count = 3,
                                             .values = a.values,
                                             .value_count = 3};
    a.op.done = on_done;
    mu_store_submit(store, &a.op);
    finish(&a);
    assert_int_equal(a.op.status, 0);
    a.ends = 0;
    a.op.request.verb = MU_STORE_MULTI_GET;
    a.op.request.key_count = 2;
    mu_store_submit(store, &a.op);
    finish(&a);
    assert_int_equal(a.count, 2);
    assert_string_equal(a.first, "3");
}

static void test_store_file_says_what_it_cannot_do(void **state)
{
    static const enum mu_store_verb verbs[] = {MU_STORE_QUEUE_PUSH, MU_STORE_QUEUE_POP,
                                               MU_STORE_WATCH, MU_STORE_LEASE_GRANT};
    struct ask a;

    (void)state;
    for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++) {
        assert_int_equal(ask(&a, verbs[i], "k", "v", NULL), MUSTER_ENOTSUP);
        assert_non_null(strstr(a.op.errmsg.text, "muster serve"));
    }
    assert_int_equal(memory.looks, 0);
}

/* --- waiting ---------------------------------------------------------------------------------- */

static void test_store_file_get_waits_for_another_users_set(void **state)
{
    struct ask get;
    struct ask wait;
    unsigned locks;

    (void)state;
    memory_log_add(&memory, "\x02\0\0\0/a\x01\0\0\0v", 11);
    start(store, &get, MU_STORE_GET, "k", NULL, NULL);
    start(store, &wait, MU_STORE_WAIT, "k", NULL, NULL);
    while (memory_log_count(&memory, &memory.looks) < 4) {
        mu_uv_env_turn(uv);
    }
    assert_int_equal(get.ends + wait.ends, 0);
    assert_int_equal(memory_log_count(&memory, &memory.locks),
                     1); /* Afterwards, looking at its size was enough. */
    locks = memory_log_count(&memory, &memory.locks);
    memory_log_add(&memory, "\x02\0\0\0/k\x01\0\0\0v", 11);
    finish(&get);
    finish(&wait);
    assert_string_equal(get.first, "v");
    assert_int_equal(memory.locks, locks + 1); /* one for both */
}

static void test_store_file_get_is_ended_by_our_own_set(void **state)
{
    struct ask get;
    struct ask set;

    (void)state;
    start(store, &get, MU_STORE_GET, "k", NULL, NULL);
    start(store, &set, MU_STORE_SET, "k", "v", NULL);
    finish(&set);
    assert_int_equal(get.ends, 1);
    assert_string_equal(get.first, "v");
}

static void test_store_file_timeout_names_the_missing_keys(void **state)
{
    struct ask a;

    (void)state;
    start(store, &a, MU_STORE_SET, "there", "1", NULL);
    finish(&a);
    prepare(&a, MU_STORE_WAIT, "there", NULL, NULL);
    a.keys[1] = mu_span_str("gone");
    a.op.request.key_count = 2;
    a.op.timeout_ms = 25;
    submit(store, &a);
    finish(&a);
    assert_int_equal(a.op.status, MUSTER_ETIMEDOUT);
    assert_string_equal(a.op.errmsg.text, "timed out waiting for 1 key: \"gone\"");
}

static void test_store_file_get_that_must_not_wait_does_not(void **state)
{
    struct ask a;

    (void)state;
    prepare(&a, MU_STORE_GET, "k", NULL, NULL);
    a.op.request.flags = MU_STORE_NOWAIT;
    submit(store, &a);
    finish(&a);
    assert_int_equal(a.op.status, MUSTER_ENOENT);
}

static void test_store_file_cancel_ends_before_and_while_waiting(void **state)
{
    struct ask a;

    (void)state;
    start(store, &a, MU_STORE_GET, "k", NULL, NULL);
    mu_store_cancel(&a.op);
    assert_int_equal(a.ends, 0);
    finish(&a);
    assert_int_equal(a.op.status, MUSTER_ECANCELED);
    start(store, &a, MU_STORE_GET, "k", NULL, NULL);
    while (memory_log_count(&memory, &memory.looks) < 2) {
        mu_uv_env_turn(uv);
    }
    mu_store_cancel(&a.op);
    finish(&a);
    assert_int_equal(a.op.status, MUSTER_ECANCELED);
}

static void test_store_file_close_ends_what_is_under_way(void **state)
{
    struct ask a[3];

    (void)state;
    start(store, &a[0], MU_STORE_GET, "k", NULL, NULL);
    while (memory_log_count(&memory, &memory.looks) < 2) {
        mu_uv_env_turn(uv);
    }
    start(store, &a[1], MU_STORE_WAIT, "k", NULL, NULL);
    start(store, &a[2], MU_STORE_QUEUE_LEN, "k", NULL, NULL);
    close_store(store);
    store = NULL;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(a[i].ends, 1);
    }
    assert_int_equal(a[0].op.status, MUSTER_ECLOSED);
    assert_int_equal(a[1].op.status, MUSTER_ECLOSED);
    assert_int_equal(a[2].op.status, MUSTER_ENOTSUP);
}

static void test_store_file_takes_the_lock_once_for_a_batch(void **state)
{
    struct ask a[50];

    (void)state;
    for (int i = 0; i < 50; i++) {
        start(store, &a[i], MU_STORE_APPEND, "k", "x", NULL);
    }
    for (int i = 0; i < 50; i++) {
        finish(&a[i]);
        assert_int_equal(a[i].number, i + 1);
    }
    assert_int_equal(memory.locks, 1);
}

/* --- faults ----------------------------------------------------------------------------------- */

static void test_store_file_that_is_locked_elsewhere_times_out_saying_so(void **state)
{
    struct ask a;

    (void)state;
    memory.busy = true;
    memory_log_add(&memory, "\x02\0\0\0/k\x01\0\0\0v", 11);
    start(store, &a, MU_STORE_SET, "k", "w", NULL);
    for (int i = 0; i < 5; i++) {
        mu_uv_env_turn(uv);
    }
    mu_store_cancel(&a.op);
    finish(&a);
    assert_int_equal(a.op.status, MUSTER_ECANCELED);
    prepare(&a, MU_STORE_GET, "k", NULL, NULL);
    a.op.timeout_ms = 30;
    submit(store, &a);
    finish(&a);
    assert_int_equal(a.op.status, MUSTER_ETIMEDOUT);
    assert_non_null(strstr(a.op.errmsg.text, "/the/file"));
    memory.busy = false;
    assert_int_equal(ask(&a, MU_STORE_GET, "k", NULL, NULL), 0);
    assert_string_equal(a.first, "v");
}

static void test_store_file_full_disk_fails_the_write_and_nobody_sees_it(void **state)
{
    struct ask set;
    struct ask get;
    struct ask a;

    (void)state;
    assert_int_equal(ask(&a, MU_STORE_SET, "k", "old", NULL), 0);
    memory.full = true;
    start(store, &set, MU_STORE_SET, "k", "new", NULL);
    start(store, &get, MU_STORE_GET, "k", NULL, NULL);
    finish(&set);
    finish(&get);
    assert_int_equal(set.op.status, MUSTER_EDISK);
    assert_string_equal(set.op.errmsg.text, "cannot write to the memory: it is full");
    assert_int_equal(get.op.status, 0);
    assert_string_equal(get.first, "old");
    memory.full = false;
    assert_int_equal(ask(&a, MU_STORE_SET, "k", "new", NULL), 0);
    assert_int_equal(ask(&a, MU_STORE_GET, "k", NULL, NULL), 0);
    assert_string_equal(a.first, "new");
}

static void test_store_file_cuts_off_half_a_record_with_the_next_write(void **state)
{
    struct ask a;

    (void)state;
    memory_log_add(&memory, "\x02\0\0\0/k\x01\0\0\0v", 11);
    memory_log_add(&memory, "\x06\0\0\0/to", 7);
    assert_int_equal(ask(&a, MU_STORE_GET, "k", NULL, NULL), 0);
    assert_string_equal(a.first, "v");
    assert_int_equal(memory.size, 18); /* Reading changes nothing. */
    assert_int_equal(ask(&a, MU_STORE_SET, "n", "5", NULL), 0);
    assert_int_equal(memory.size, 22);
    assert_memory_equal(memory.data + 11, "\x02\0\0\0/n\x01\0\0\0005", 11);
}

static void test_store_file_of_too_many_bytes_is_not_read(void **state)
{
    struct mu_file_cache c;
    struct mu_errmsg msg;

    (void)state;
    assert_int_equal(mu_file_cache_init(&c, 1), 0);
    assert_int_equal(mu_file_cache_read(&c, &memory.base, "/the/file", MU_FILE_BYTES_MAX + 1, &msg),
                     MUSTER_ELIMIT);
    assert_non_null(strstr(msg.text, "/the/file has 1073741825 bytes"));
    mu_file_cache_fini(&c);
}

static void test_store_file_leaves_alone_what_is_not_a_store(void **state)
{
    struct ask a;

    (void)state;
    memory_log_add(&memory, "#!/bin/sh\n", 10);
    assert_int_equal(ask(&a, MU_STORE_GET, "k", NULL, NULL), MUSTER_ECORRUPT);
    assert_int_equal(ask(&a, MU_STORE_SET, "k", "v", NULL), MUSTER_ECORRUPT);
    assert_non_null(strstr(a.op.errmsg.text, "/the/file is not a FileStore"));
    assert_int_equal(memory.size, 10);
    memory.size = 0;
    memory_log_add(&memory, "hi\n", 3); /* too short to tell */
    assert_int_equal(ask(&a, MU_STORE_SET, "k", "v", NULL), MUSTER_ECORRUPT);
    assert_int_equal(memory.size, 3);
}

static void test_store_file_that_was_replaced_is_read_anew(void **state)
{
    struct ask a;

    (void)state;
    assert_int_equal(ask(&a, MU_STORE_SET, "k", "old", NULL), 0);
    memory.size = 0;
    memory.replaced = true;
    memory_log_add(&memory,
                   "\x02\0\0\0/n\x03\0\0\0"
                   "123",
                   13);
    assert_int_equal(ask(&a, MU_STORE_CHECK, "k", NULL, NULL), 0);
    assert_int_equal(a.number, 0);
    assert_int_equal(ask(&a, MU_STORE_GET, "n", NULL, NULL), 0);
    assert_string_equal(a.first, "123");
}

static void test_store_file_out_of_memory_fails_one_op_and_keeps_the_file_whole(void **state)
{
    struct ask a;

    (void)state;
    for (long nth = 0;; nth++) {
        bool fired;
        int err;

        memory.size = 0;
        memory.replaced = true;
        memory_log_add(&memory, "\x02\0\0\0/k\x01\0\0\0v", 11);
        failheap_arm(nth);
        err = ask(&a, MU_STORE_APPEND, "k", "x", NULL);
        fired = failheap_fired();
        failheap_disarm();
        assert_int_equal(err, fired ? MUSTER_ENOMEM : 0);
        assert_int_equal(memory.size, fired ? 11 : 23);
        memory.replaced = true;
        failheap_arm(nth);
        err = ask(&a, MU_STORE_GET, "k", NULL, NULL);
        fired = fired || failheap_fired();
        failheap_disarm();
        assert_true(err == 0 || (fired && err == MUSTER_ENOMEM));
        assert_int_equal(ask(&a, MU_STORE_GET, "k", NULL, NULL), 0);
        assert_string_equal(a.first, memory.size == 11 ? "v" : "vx");
        if (!fired) {
            break;
        }
        assert_true(nth < 100);
    }
}

/* --- the last one removes the file ------------------------------------------------------------ */

static void close_one(int64_t world_size, const char *key)
{
    struct ask a;

    memory.closes = 0;
    open_memory(world_size);
    if (key != NULL) {
        assert_int_equal(ask(&a, MU_STORE_SET, key, "v", NULL), 0);
    }
    close_store(store);
    store = NULL;
}

static void test_store_file_is_removed_by_the_last_of_the_world(void **state)
{
    static const char cleanup[] = "\x08\0\0\0cleanup/\x01\0\0\0"
                                  "1";

    (void)state;
    close_store(store);
    store = NULL;
    assert_false(memory.exists); /* Without a world nothing is counted. */
    close_one(2, NULL);
    assert_false(memory.exists); /* Nothing was there, nothing is made. */
    close_one(2, "k");
    assert_int_equal(memory.size, 11 + sizeof(cleanup) - 1);
    assert_memory_equal(memory.data + 11, cleanup, sizeof(cleanup) - 1);
    close_one(2, NULL);
    assert_false(memory.exists);
    /* A PyTorch 2.x process has it open. */
    memory_log_add(&memory, "\x09\0\0\0refcount/\x01\0\0\0001", 18);
    close_one(1, NULL);
    assert_true(memory.exists);
}

/* --- real files ------------------------------------------------------------------------------- */

static char folder[64];

static const char *path_of(const char *name)
{
    static char path[128];

    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

static void open_real(const char *path)
{
    assert_int_equal(mu_store_file_new(mu_uv_env_env(uv), path, -1, &store), 0);
}

static void close_real(void)
{
    close_store(store);
    store = NULL;
}

static void test_store_file_two_users_of_a_real_file_add_exactly(void **state)
{
    struct mu_store *stores[2];
    struct ask a[2];
    int64_t last = 0;

    (void)state;
    open_real(path_of("race"));
    stores[0] = store;
    open_real(path_of("race"));
    stores[1] = store;
    for (int i = 0; i < 100; i++) {
        int64_t seen[2];

        for (int k = 0; k < 2; k++) {
            start(stores[k], &a[k], MU_STORE_APPEND, "n", "x", NULL);
        }
        for (int k = 0; k < 2; k++) {
            finish(&a[k]);
            assert_int_equal(a[k].op.status, 0);
            seen[k] = a[k].number;
        }
        assert_int_equal(seen[0] + seen[1], 2 * last + 3);
        assert_true(seen[0] != seen[1]);
        last += 2;
    }
    close_store(stores[0]);
    close_real();
}

static void test_store_file_that_was_removed_and_made_again_begins_anew(void **state)
{
    struct ask a;

    (void)state;
    open_real(path_of("again"));
    assert_int_equal(ask(&a, MU_STORE_SET, "k", "v", NULL), 0);
    assert_int_equal(unlink(path_of("again")), 0);
    assert_int_equal(ask(&a, MU_STORE_CHECK, "k", NULL, NULL), 0);
    assert_int_equal(a.number, 0);
    assert_int_equal(access(path_of("again"), F_OK), -1); /* Reading makes no file. */
    assert_int_equal(ask(&a, MU_STORE_SET, "k", "w", NULL), 0);
    assert_int_equal(access(path_of("again"), F_OK), 0);
    close_real();
}

static void test_store_file_names_path_and_remedy(void **state)
{
    struct ask a;

    (void)state;
    open_real(folder);
    assert_int_equal(ask(&a, MU_STORE_SET, "k", "v", NULL), MUSTER_EDISK);
    assert_non_null(strstr(a.op.errmsg.text, folder));
    assert_non_null(strstr(a.op.errmsg.text, "name a file in it"));
    close_real();
    open_real(path_of("no/such"));
    assert_int_equal(ask(&a, MU_STORE_SET, "k", "v", NULL), MUSTER_EDISK);
    assert_non_null(strstr(a.op.errmsg.text, "make its directory first"));
    close_real();
    open_real("/dev/null");
    assert_int_equal(ask(&a, MU_STORE_SET, "k", "v", NULL), MUSTER_EDISK);
    close_real();
}

static void test_store_file_write_that_fails_halfway_is_taken_back(void **state)
{
    static char big[9000];
    struct rlimit old;
    struct rlimit small;
    struct stat st;
    struct ask a;

    (void)state;
    memset(big, 'x', sizeof(big) - 1);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    open_real(path_of("full"));
    assert_int_equal(ask(&a, MU_STORE_SET, "k", "v", NULL), 0);
    (void)signal(SIGXFSZ, SIG_IGN);
    small = (struct rlimit){.rlim_cur = 4096, .rlim_max = old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    assert_int_equal(ask(&a, MU_STORE_SET, "k", big, NULL), MUSTER_EDISK);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(stat(path_of("full"), &st), 0);
    assert_int_equal(st.st_size, 11);
    assert_int_equal(ask(&a, MU_STORE_GET, "k", NULL, NULL), 0);
    assert_string_equal(a.first, "v");
    close_real();
}

static void test_store_file_minds_flock(void **state)
{
    int fd = open(path_of("locked"), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    struct ask a;

    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(flock(fd, LOCK_SH), 0);
    open_real(path_of("locked"));
    start(store, &a, MU_STORE_SET, "k", "v", NULL);
    for (int i = 0; i < 5; i++) {
        mu_uv_env_turn(uv);
    }
    assert_int_equal(a.ends, 0);
    assert_int_equal(flock(fd, LOCK_UN), 0);
    finish(&a);
    assert_int_equal(a.op.status, 0);
    close_real();
    (void)close(fd);
}

static int start_group(void **state)
{
    (void)state;
    (void)snprintf(folder, sizeof(folder), "/tmp/test_store_file.XXXXXX");
    assert_non_null(mkdtemp(folder));
    return mu_uv_env_new(&uv);
}

static int end_group(void **state)
{
    static const char *const names[] = {"race", "again", "full", "locked"};

    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        (void)unlink(path_of(names[i]));
    }
    (void)rmdir(folder);
    mu_uv_env_free(uv);
    return 0;
}

#define IN_MEMORY(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_MEMORY(test_store_file_answers_each_verb),
        IN_MEMORY(test_store_file_compares_and_sets_as_pytorch),
        IN_MEMORY(test_store_file_writes_the_bytes_that_pytorch_writes),
        IN_MEMORY(test_store_file_sets_and_gets_many_in_order),
        IN_MEMORY(test_store_file_says_what_it_cannot_do),
        IN_MEMORY(test_store_file_get_waits_for_another_users_set),
        IN_MEMORY(test_store_file_get_is_ended_by_our_own_set),
        IN_MEMORY(test_store_file_timeout_names_the_missing_keys),
        IN_MEMORY(test_store_file_get_that_must_not_wait_does_not),
        IN_MEMORY(test_store_file_cancel_ends_before_and_while_waiting),
        IN_MEMORY(test_store_file_close_ends_what_is_under_way),
        IN_MEMORY(test_store_file_takes_the_lock_once_for_a_batch),
        IN_MEMORY(test_store_file_that_is_locked_elsewhere_times_out_saying_so),
        IN_MEMORY(test_store_file_full_disk_fails_the_write_and_nobody_sees_it),
        IN_MEMORY(test_store_file_cuts_off_half_a_record_with_the_next_write),
        IN_MEMORY(test_store_file_of_too_many_bytes_is_not_read),
        IN_MEMORY(test_store_file_leaves_alone_what_is_not_a_store),
        IN_MEMORY(test_store_file_that_was_replaced_is_read_anew),
        IN_MEMORY(test_store_file_out_of_memory_fails_one_op_and_keeps_the_file_whole),
        IN_MEMORY(test_store_file_is_removed_by_the_last_of_the_world),
        cmocka_unit_test(test_store_file_two_users_of_a_real_file_add_exactly),
        cmocka_unit_test(test_store_file_that_was_removed_and_made_again_begins_anew),
        cmocka_unit_test(test_store_file_names_path_and_remedy),
        cmocka_unit_test(test_store_file_write_that_fails_halfway_is_taken_back),
        cmocka_unit_test(test_store_file_minds_flock),
    };

    return cmocka_run_group_tests(tests, start_group, end_group);
}
