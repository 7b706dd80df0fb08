/*
 * The failing heap over a script of all operations. Each run makes one more allocation succeed
 * than the last, and fails all behind it. A step that failed must have left the keyspace as it was:
 * it is repeated with memory, and has to go through as if nothing had happened. In the end the
 * outcome is the same as without failures, and the account of memory is empty again.
 */
#include "keyspace_fixture.h"

#include "failheap.h"

static struct mu_ks_wait waits[4];
static struct mu_ks_watch watches[2];
static uint64_t lease;
static uint8_t big[20000];

static int popped_len(uint8_t *popped, size_t len)
{
    mu_free(popped);
    return (int)len;
}

static int step_set_small(void)
{
    return mu_ks_set(&ks, MU_SPAN_LIT("job/a"), MU_SPAN_LIT("1"), 0);
}

static int step_set_big(void)
{
    return mu_ks_set(&ks, MU_SPAN_LIT("job/a"), mu_span(big, sizeof(big)), 0);
}

static int step_set_small_again(void)
{
    return mu_ks_set(&ks, MU_SPAN_LIT("job/a"), mu_span(big, 600), 0);
}

static int step_set_number(void)
{
    return mu_ks_set(&ks, MU_SPAN_LIT("job/a"), MU_SPAN_LIT("7"), 0);
}

static int step_add(void)
{
    int64_t sum;

    return mu_ks_add(&ks, MU_SPAN_LIT("job/a"), 1, 0, &sum);
}

static int step_append(void)
{
    size_t len;

    return mu_ks_append(&ks, MU_SPAN_LIT("job/log"), mu_span(big, 700), 0, &len);
}

static int step_compare_set(void)
{
    struct mu_span value;
    bool written;

    return mu_ks_compare_set(&ks, MU_SPAN_LIT("job/cas"), mu_span("", 0), MU_SPAN_LIT("x"), lease,
                             &value, &written);
}

static int step_multi_set(void)
{
    const struct mu_span keys[] = {MU_SPAN_LIT("job/a"), MU_SPAN_LIT("m1"), MU_SPAN_LIT("job/m2"),
                                   MU_SPAN_LIT("m1")};
    const struct mu_span values[] = {MU_SPAN_LIT("8"), mu_span(big, 1000), MU_SPAN_LIT("2"),
                                     mu_span(big, 3000)};

    return mu_ks_multi_set(&ks, keys, values, 4, 0);
}

static int step_push(void)
{
    size_t len;

    return mu_ks_queue_push(&ks, MU_SPAN_LIT("q"), MU_SPAN_LIT("element"), &len);
}

static int step_pop(void)
{
    uint8_t *data;
    size_t len;
    int64_t len_before;
    int err = mu_ks_queue_pop(&ks, MU_SPAN_LIT("q"), &data, &len, &len_before);

    if (err == 0) {
        assert_int_equal(popped_len(data, len), 7);
    }
    return err;
}

static int start_wait(size_t slot, enum mu_ks_wait_kind kind, size_t count)
{
    const struct mu_span keys[] = {MU_SPAN_LIT("q"), MU_SPAN_LIT("w1"), MU_SPAN_LIT("w2"),
                                   MU_SPAN_LIT("w1")};
    bool ready;
    int err = mu_ks_wait(&ks, &waits[slot], kind, keys, count, &ready);

    assert_int_equal(mu_ks_wait_active(&waits[slot]), err == 0);
    return err;
}

static int step_wait_torch(void)
{
    return start_wait(0, MU_KS_WAIT_TORCH, 4);
}

static int step_wait_all(void)
{
    return start_wait(1, MU_KS_WAIT_ALL, 3);
}

static int step_wait_pop(void)
{
    return start_wait(2, MU_KS_WAIT_POP, 1);
}

static int step_watch_key(void)
{
    return mu_ks_watch(&ks, &watches[0], MU_SPAN_LIT("job/a"), false);
}

static int step_watch_prefix(void)
{
    return mu_ks_watch(&ks, &watches[1], MU_SPAN_LIT("job/"), true);
}

static int step_grant(void)
{
    return mu_ks_lease_grant(&ks, (mu_mono_t){0}, 1000, &lease);
}

static int step_set_leased(void)
{
    return mu_ks_set(&ks, MU_SPAN_LIT("job/a"), MU_SPAN_LIT("leased"), lease);
}

static int step_revoke(void)
{
    size_t removed;
    int err = mu_ks_lease_revoke(&ks, lease, &removed);

    if (err == 0) {
        assert_int_equal(removed, 2);
    }
    return err;
}

static int step_delete(void)
{
    bool removed;
    int err = mu_ks_delete(&ks, MU_SPAN_LIT("job/log"), &removed);

    assert_true(err != 0 || removed);
    return err;
}

static int step_load(void)
{
    return mu_ks_load(&ks, MU_KS_JOURNAL_PUT, ks.record_id + 1, MU_SPAN_LIT("loaded"),
                      mu_span(big, 900));
}

static int step_load_element(void)
{
    return mu_ks_load(&ks, MU_KS_JOURNAL_QUEUE, ks.record_id + 1, MU_SPAN_LIT("loaded"),
                      MU_SPAN_LIT("element"));
}

static int (*const script[])(void) = {
    step_load,
    step_load_element,
    step_set_small,
    step_watch_key,
    step_watch_prefix,
    step_set_big,
    step_set_small_again,
    step_set_number,
    step_add,
    step_append,
    step_append,
    step_append,
    step_grant,
    step_compare_set,
    step_multi_set,
    step_wait_torch,
    step_wait_all,
    step_wait_pop,
    step_push,
    step_push,
    step_push,
    step_pop,
    step_set_leased,
    step_delete,
    step_revoke,
};
#define STEPS (sizeof(script) / sizeof(script[0]))

struct counts {
    size_t memory, keys, waits, watches, entries, watched, leases, journal;
    uint64_t revision, record_id;
};

static struct counts count(void)
{
    return (struct counts){
        .memory = ks.memory_bytes,
        .keys = ks.key_count,
        .waits = ks.wait_count,
        .watches = ks.watch_count,
        .entries = ks.entries.count,
        .watched = ks.watched.count,
        .leases = ks.leases.count,
        .journal = mu_ks_journal_len(&ks),
        .revision = ks.revision,
        .record_id = ks.record_id,
    };
}

/* Pulls everything; returns how many waits ended and how many changes were told. */
static size_t pull(void)
{
    struct mu_ks_watch *w;
    struct mu_change c;
    size_t n = 0;

    while (mu_ks_next_ready(&ks) != NULL) {
        n++;
    }
    while (mu_ks_next_change(&ks, &w, &c)) {
        n++;
    }
    return n;
}

static void clear(void)
{
    const struct mu_map_node *cursor = NULL;
    struct mu_span key;
    struct mu_span value;
    bool removed;
    uint8_t *data;
    size_t len;
    int64_t len_before;

    for (size_t i = 0; i < 4; i++) {
        mu_ks_wait_cancel(&ks, &waits[i]);
    }
    for (size_t i = 0; i < 2; i++) {
        mu_ks_unwatch(&ks, &watches[i]);
    }
    while (mu_ks_next_key(&ks, &cursor, &key, &value)) {
        assert_int_equal(mu_ks_delete(&ks, key, &removed), 0);
        cursor = NULL;
    }
    while (mu_ks_queue_pop(&ks, MU_SPAN_LIT("q"), &data, &len, &len_before) == 0) {
        mu_free(data);
    }
    while (mu_ks_queue_pop(&ks, MU_SPAN_LIT("loaded"), &data, &len, &len_before) == 0) {
        mu_free(data);
    }
}

/* Runs the script; the allocation number `nth` fails (-1: none). Returns whether it was reached. */
static bool run(long nth, struct counts *ret_counts, size_t *ret_pulled)
{
    bool fired = false;

    memset(waits, 0, sizeof(waits));
    memset(watches, 0, sizeof(watches));
    *ret_pulled = 0;
    for (size_t i = 0; i < STEPS; i++) {
        struct counts before = count();
        struct counts after;
        int err;

        if (nth >= 0 && !fired) {
            failheap_arm(nth);
        }
        err = script[i]();
        if (nth >= 0 && !fired) {
            fired = failheap_fired();
            nth = failheap_left;
        }
        failheap_disarm();
        if (err != 0) {
            assert_int_equal(err, MUSTER_ENOMEM);
            after = count();
            assert_memory_equal(&before, &after, sizeof(before));
            assert_int_equal(pull(), 0);
            assert_int_equal(script[i](), 0);
        }
        *ret_pulled += pull();
    }
    *ret_counts = count();
    clear();
    assert_int_equal(ks.memory_bytes, 0);
    assert_int_equal(ks.entries.count, 0);
    return fired;
}

static void test_keyspace_step_that_found_no_memory_changed_nothing(void **state)
{
    struct counts expected;
    size_t expected_pulled;
    long nth = 0;
    bool fired = true;

    (void)state;
    assert_false(run(-1, &expected, &expected_pulled));
    assert_true(expected_pulled > 10);
    for (; fired; nth++) {
        struct counts counts;
        size_t pulled;

        assert_int_equal(teardown_keyspace(NULL), 0);
        assert_int_equal(setup_journaled(NULL), 0);
        fired = run(nth, &counts, &pulled);
        /* A table or a room that could not be made may differ in size, nothing else. */
        counts.memory = expected.memory;
        assert_memory_equal(&counts, &expected, sizeof(counts));
        assert_int_equal(pulled, expected_pulled);
    }
    assert_true(nth > 40);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_keyspace_step_that_found_no_memory_changed_nothing,
                                        setup_journaled, teardown_keyspace),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
