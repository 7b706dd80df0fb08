/*
 * The keyspace against a naive model: 100,000 random operations of every kind, with allocations
 * that fail now and then and a memory limit that is reached. After each one the waits that ended
 * and the changes that were told must be those of the model, in its order; a call that failed must
 * have changed nothing; and what the journal holds must rebuild the same keys and queues. In the
 * end everything is taken away, and not a byte may be left in the account.
 */
#include "unit.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/prng.h"
#include "failheap.h"
#include "keyspace_model.h"

#define STEPS       100000
#define MULTI       5
#define RECORDS_MAX 400000

static struct mu_keyspace ks;
static struct mu_prng prng;
static struct mu_ks_wait real_waits[WAITS];
static struct mu_ks_watch real_watches[WATCHES];
static uint8_t *records[RECORDS_MAX];
static unsigned failures;
static unsigned successes;
static mu_mono_t now;

static size_t pick(size_t bound)
{
    return (size_t)mu_prng_below(&prng, bound);
}

static void assert_bytes(struct mu_span s, const struct bytes *b)
{
    assert_int_equal(s.len, b->len);
    if (s.len != 0) {
        assert_memory_equal(s.data, b->data, s.len);
    }
}

static void random_bytes(struct bytes *b, size_t max)
{
    uint64_t what = pick(10);

    if (what < 4) {
        int64_t n = what == 0 ? INT64_MAX - (int64_t)pick(3) : (int64_t)pick(100) - 50;

        b->len = (size_t)snprintf((char *)b->data, VALUE_MAX, "%s%lld%s", pick(4) == 0 ? " \t" : "",
                                  (long long)n, pick(4) == 0 ? "x" : "");
        return;
    }
    b->len = what < 8 ? pick(40) : what < 9 ? pick(700) : pick(max);
    b->len = b->len > max ? max : b->len;
    for (size_t i = 0; i < b->len; i++) {
        b->data[i] = (uint8_t)mu_prng_u64(&prng);
    }
}

/* --- calls that may fail --------------------------------------------------------------------- */

static struct {
    size_t memory, key_count, wait_count, watch_count, journal_len, entries, lease_count;
    uint64_t revision;
} before;

static void remember(void)
{
    before.memory = ks.memory_bytes;
    before.key_count = ks.key_count;
    before.wait_count = ks.wait_count;
    before.watch_count = ks.watch_count;
    before.journal_len = mu_ks_journal_len(&ks);
    before.entries = ks.entries.count;
    before.lease_count = ks.leases.count;
    before.revision = ks.revision;
}

/* Before a call: now and then one of its allocations is going to fail. */
static void brace(void)
{
    remember();
    if (pick(6) == 0) {
        failheap_arm((long)pick(4));
    }
}

/* After a call: whether it was carried out. If not, nothing may have changed. */
static bool survived(int err)
{
    failheap_disarm();
    if (err == 0) {
        successes++;
        assert_true(ks.memory_bytes <= ks.config.memory_bytes_max ||
                    ks.memory_bytes <= before.memory);
        return true;
    }
    failures++;
    assert_int_equal(ks.memory_bytes, before.memory);
    assert_int_equal(ks.key_count, before.key_count);
    assert_int_equal(ks.wait_count, before.wait_count);
    assert_int_equal(ks.watch_count, before.watch_count);
    assert_int_equal(mu_ks_journal_len(&ks), before.journal_len);
    assert_int_equal(ks.entries.count, before.entries);
    assert_int_equal(ks.leases.count, before.lease_count);
    assert_int_equal(ks.revision, before.revision);
    return false;
}

/* As survived(), for calls that can fail for want of memory only. */
static bool went_well(int err)
{
    assert_true(err == 0 || err == MUSTER_ENOMEM || err == MUSTER_EFULL);
    return survived(err);
}

/* --- what comes out -------------------------------------------------------------------------- */

static void check_ready(void)
{
    for (size_t i = 0; i < ready_count; i++) {
        struct mu_ks_wait *w = mu_ks_next_ready(&ks);

        assert_ptr_equal(w, &real_waits[ready[i]]);
        assert_false(mu_ks_wait_active(w));
        if (w->kind == MU_KS_WAIT_POP) {
            size_t len;
            uint8_t *popped = mu_ks_wait_take_popped(w, &len);

            assert_bytes(mu_span(popped, len), &waits[ready[i]].popped);
            assert_int_equal(w->len_before, waits[ready[i]].len_before);
            mu_free(popped);
        }
    }
    assert_null(mu_ks_next_ready(&ks));
    ready_count = 0;
}

static void check_changes(void)
{
    struct mu_ks_watch *w;
    struct mu_change c;

    for (size_t i = 0; i < listener_count; i++) {
        const struct news *n = &news[listeners[i].news];

        assert_true(mu_ks_next_change(&ks, &w, &c));
        assert_ptr_equal(w, &real_watches[listeners[i].watch]);
        assert_int_equal(c.kind, n->kind);
        assert_int_equal(c.revision, n->revision);
        assert_true(mu_span_eq(c.key, key_span(n->key)));
        assert_bytes(c.old_value, &n->old_value);
        assert_bytes(c.value, &n->value);
    }
    assert_false(mu_ks_next_change(&ks, &w, &c));
    assert_int_equal(ks.revision, revision);
    listener_count = 0;
    news_count = 0;
}

static void store_records(void)
{
    struct mu_buf journal;
    struct mu_span s;

    mu_buf_init(&journal, SIZE_MAX);
    mu_ks_journal_take(&ks, &journal);
    s = mu_buf_span(&journal);
    while (s.len != 0) {
        uint64_t number = mu_get_u64(s.data + 1);
        size_t len = 9;

        assert_true(number != 0 && number < RECORDS_MAX);
        if (s.data[0] != MU_KS_JOURNAL_DEL) {
            len = 21 + mu_get_u32(s.data + 9) + (size_t)mu_get_u64(s.data + 13);
        } else {
            assert_non_null(records[number]);
        }
        assert_true(len <= s.len);
        mu_free(records[number]);
        records[number] = NULL;
        if (s.data[0] != MU_KS_JOURNAL_DEL) {
            records[number] = mu_malloc(len);
            assert_non_null(records[number]);
            memcpy(records[number], s.data, len);
        }
        s = mu_span_skip(s, len);
    }
    mu_buf_fini(&journal);
}

/* Compares values and queues; a keyspace from the journal has no leased ones. */
static void check_keys(struct mu_keyspace *real, bool from_journal)
{
    const struct mu_map_node *cursor = NULL;
    struct mu_span key;
    struct mu_span value;
    size_t there = 0;
    size_t listed = 0;

    for (size_t i = 0; i < KEYS; i++) {
        bool expected = keys[i].there && (!from_journal || keys[i].lease == -1);

        assert_int_equal(mu_ks_get(real, key_span(i), &value), expected ? 0 : MUSTER_ENOENT);
        if (expected) {
            assert_bytes(value, &keys[i].value);
            there++;
        }
        assert_int_equal(mu_ks_queue_len(real, key_span(i)), keys[i].queue_len);
        assert_int_equal(mu_ks_has(real, key_span(i)), expected || keys[i].queue_len != 0);
    }
    assert_int_equal(real->key_count, there);
    while (mu_ks_next_key(real, &cursor, &key, &value)) {
        listed++;
    }
    assert_int_equal(listed, there);
}

/* Rebuilds a keyspace from the records, and compares; the queues by popping them empty. */
static void check_journal(void)
{
    struct mu_ks_config config = mu_ks_config_defaults();
    struct mu_keyspace loaded;

    store_records();
    assert_int_equal(mu_ks_init(&loaded, &config), 0);
    for (size_t i = 1; i < RECORDS_MAX; i++) {
        const uint8_t *r = records[i];

        if (r != NULL) {
            size_t key_len = mu_get_u32(r + 9);

            assert_int_equal(mu_ks_load(&loaded, r[0], i, mu_span(r + 21, key_len),
                                        mu_span(r + 21 + key_len, (size_t)mu_get_u64(r + 13))),
                             0);
        }
    }
    check_keys(&loaded, true);
    for (size_t i = 0; i < KEYS; i++) {
        for (size_t j = 0; j < keys[i].queue_len; j++) {
            uint8_t *data;
            size_t len;
            int64_t len_before;

            assert_int_equal(mu_ks_queue_pop(&loaded, key_span(i), &data, &len, &len_before), 0);
            assert_bytes(mu_span(data, len), &keys[i].queue[j]);
            mu_free(data);
        }
    }
    mu_ks_fini(&loaded);
}

/* --- the operations -------------------------------------------------------------------------- */

/* A lease to write under: mostly none. Returns its number for the call. */
static uint64_t pick_lease(int *ret)
{
    *ret = (int)pick(4 * LEASES);
    if (*ret >= LEASES || !leases[*ret].active) {
        *ret = -1;
        return 0;
    }
    return leases[*ret].id;
}

static void step_set(size_t key)
{
    static struct bytes value;
    int lease;
    uint64_t id = pick_lease(&lease);

    random_bytes(&value, VALUE_MAX);
    brace();
    if (went_well(mu_ks_set(&ks, key_span(key), bytes_span(&value), id))) {
        model_put(key, bytes_span(&value), MU_CHANGE_UPDATED, true, lease);
    }
}

static void step_multi_set(void)
{
    static struct bytes values[MULTI];
    struct mu_span key_spans[MULTI];
    struct mu_span value_spans[MULTI];
    size_t at[MULTI];
    size_t count = pick(MULTI + 1);
    int lease;
    uint64_t id = pick_lease(&lease);

    for (size_t i = 0; i < count; i++) {
        at[i] = pick(KEYS);
        random_bytes(&values[i], VALUE_MAX / 4);
        key_spans[i] = key_span(at[i]);
        value_spans[i] = bytes_span(&values[i]);
    }
    brace();
    if (!went_well(mu_ks_multi_set(&ks, key_spans, value_spans, count, id))) {
        return;
    }
    for (size_t i = 0; i < count; i++) {
        bool again = false;

        for (size_t j = i + 1; j < count; j++) {
            again = again || at[j] == at[i];
        }
        if (!again) {
            model_put(at[i], value_spans[i], MU_CHANGE_UPDATED, true, lease);
        }
    }
}

static void step_add(size_t key)
{
    char text[VALUE_MAX + 1];
    int64_t delta = pick(3) == 0 ? INT64_MAX : (int64_t)pick(100) - 50;
    long long old = 0;
    bool is_number = true;
    int64_t sum;
    int lease;
    uint64_t id = pick_lease(&lease);
    int err;

    if (keys[key].there) {
        char *end;

        memcpy(text, keys[key].value.data, keys[key].value.len);
        text[keys[key].value.len] = '\0';
        errno = 0;
        old = strtoll(text, &end, 10);
        is_number = end != text && errno == 0;
    }
    brace();
    err = mu_ks_add(&ks, key_span(key), delta, id, &sum);
    if (!is_number) {
        assert_int_equal(err, MUSTER_ENOTNUM);
        assert_false(survived(err));
    } else if (went_well(err)) {
        int n = snprintf(text, sizeof(text), "%lld", (long long)((uint64_t)old + (uint64_t)delta));

        assert_int_equal(sum, (uint64_t)old + (uint64_t)delta);
        model_put(key, mu_span(text, (size_t)n), MU_CHANGE_UPDATED, id != 0, lease);
    }
}

static void step_compare_set(size_t key)
{
    static struct bytes expected;
    static struct bytes desired;
    struct mu_span value;
    bool written;
    int lease;
    uint64_t id = pick_lease(&lease);
    bool fits;

    random_bytes(&desired, VALUE_MAX / 4);
    if (pick(2) == 0) {
        bytes_set(&expected, keys[key].there ? bytes_span(&keys[key].value) : mu_span("", 0));
    } else {
        random_bytes(&expected, 4);
    }
    fits = mu_span_eq(keys[key].there ? bytes_span(&keys[key].value) : (struct mu_span){0},
                      bytes_span(&expected));
    brace();
    if (!went_well(mu_ks_compare_set(&ks, key_span(key), bytes_span(&expected),
                                     bytes_span(&desired), id, &value, &written))) {
        return;
    }
    assert_int_equal(written, fits);
    if (fits) {
        assert_bytes(value, &desired);
        model_put(key, bytes_span(&desired), MU_CHANGE_UPDATED, id != 0, lease);
    } else {
        assert_bytes(value, keys[key].there ? &keys[key].value : &expected);
    }
}

static void step_append(size_t key)
{
    static struct bytes piece;
    static struct bytes whole;
    size_t len;
    int lease;
    uint64_t id = pick_lease(&lease);
    int err;

    random_bytes(&piece, VALUE_MAX / 3);
    brace();
    err = mu_ks_append(&ks, key_span(key), bytes_span(&piece), id, &len);
    if (keys[key].value.len + piece.len > VALUE_MAX) {
        assert_int_equal(err, MUSTER_ELIMIT);
        assert_false(survived(err));
    } else if (went_well(err)) {
        whole = keys[key].value;
        memcpy(whole.data + whole.len, piece.data, piece.len);
        whole.len += piece.len;
        assert_int_equal(len, whole.len);
        model_put(key, bytes_span(&whole), MU_CHANGE_APPENDED, id != 0, lease);
    }
}

static void step_delete(size_t key)
{
    bool removed;
    int err;

    brace();
    err = mu_ks_delete(&ks, key_span(key), &removed);
    assert_int_not_equal(err, MUSTER_EFULL);
    if (went_well(err)) {
        assert_int_equal(removed, keys[key].there);
        if (removed) {
            model_delete(key, MU_CHANGE_DELETED);
        }
    }
}

static void step_push(size_t key)
{
    static struct bytes value;
    size_t len;

    if (keys[key].queue_len == QUEUE_MAX) {
        return;
    }
    random_bytes(&value, 300);
    brace();
    if (went_well(mu_ks_queue_push(&ks, key_span(key), bytes_span(&value), &len))) {
        assert_int_equal(len, keys[key].queue_len + 1);
        model_push(key, bytes_span(&value));
    }
}

static void step_pop(size_t key)
{
    static struct bytes expected;
    uint8_t *data;
    size_t len;
    int64_t len_before;
    int err;

    brace();
    err = mu_ks_queue_pop(&ks, key_span(key), &data, &len, &len_before);
    if (keys[key].queue_len == 0) {
        assert_int_equal(err, MUSTER_ENOENT);
        assert_false(survived(err));
    } else if (went_well(err)) {
        assert_int_equal(len_before, keys[key].queue_len);
        model_pop(key, &expected);
        assert_bytes(mu_span(data, len), &expected);
        mu_free(data);
    }
}

static void start_wait(size_t slot)
{
    struct model_wait *w = &waits[slot];
    struct mu_span spans[MULTI];
    size_t at[MULTI];
    enum mu_ks_wait_kind kind = (enum mu_ks_wait_kind)(1 + pick(3));
    size_t count = kind == MU_KS_WAIT_POP ? 1 : pick(MULTI + 1);
    bool is_ready;

    for (size_t i = 0; i < count; i++) {
        at[i] = pick(KEYS);
        spans[i] = key_span(at[i]);
    }
    brace();
    if (!went_well(mu_ks_wait(&ks, &real_waits[slot], kind, spans, count, &is_ready))) {
        assert_false(mu_ks_wait_active(&real_waits[slot]));
        return;
    }
    *w = (struct model_wait){.active = true, .kind = kind, .ticket = ++ticket};
    for (size_t i = 0; i < count; i++) {
        const struct model_key *k = &keys[at[i]];

        w->missing[at[i]] =
            kind == MU_KS_WAIT_POP ? k->queue_len == 0 : !k->there && k->queue_len == 0;
    }
    assert_int_equal(is_ready, is_complete(w));
    assert_int_equal(mu_ks_wait_active(&real_waits[slot]), !is_ready);
    if (is_ready) {
        w->active = false;
        if (kind == MU_KS_WAIT_POP) {
            size_t len;
            uint8_t *popped = mu_ks_wait_take_popped(&real_waits[slot], &len);

            assert_int_equal(real_waits[slot].len_before, keys[at[0]].queue_len);
            model_pop(at[0], &w->popped);
            assert_bytes(mu_span(popped, len), &w->popped);
            mu_free(popped);
        }
    }
}

static void step_wait(void)
{
    size_t slot = pick(WAITS);
    struct mu_span missing[KEYS];
    size_t expected = 0;

    if (!waits[slot].active) {
        start_wait(slot);
        return;
    }
    for (size_t i = 0; i < KEYS; i++) {
        expected += waits[slot].missing[i] ? 1 : 0;
    }
    assert_int_equal(mu_ks_wait_missing(&real_waits[slot], missing, KEYS), expected);
    for (size_t i = 0; i < expected; i++) {
        size_t key = 0;

        while (!mu_span_eq(missing[i], key_span(key))) {
            key++;
            assert_true(key < KEYS);
        }
        assert_true(waits[slot].missing[key]);
    }
    if (pick(3) == 0) {
        mu_ks_wait_cancel(&ks, &real_waits[slot]);
        assert_false(mu_ks_wait_active(&real_waits[slot]));
        waits[slot].active = false;
    }
}

static void step_watch(void)
{
    size_t slot = pick(WATCHES);
    struct model_watch *w = &watches[slot];

    if (w->active) {
        if (pick(4) == 0) {
            mu_ks_unwatch(&ks, &real_watches[slot]);
            w->active = false;
        }
        return;
    }
    *w = (struct model_watch){.key = pick(KEYS), .prefix = pick(2) == 0, .ticket = ++ticket};
    brace();
    w->active = went_well(mu_ks_watch(&ks, &real_watches[slot], key_span(w->key), w->prefix));
}

static void step_lease(void)
{
    int slot = (int)pick(LEASES);
    struct model_lease *l = &leases[slot];
    size_t removed;
    uint64_t ttl;

    brace();
    if (!l->active) {
        l->ttl_ms = pick(3) == 0 ? 0 : 1 + pick(3000);
        l->active = went_well(mu_ks_lease_grant(&ks, now, l->ttl_ms, &l->id));
        l->deadline_ns = now.ns + l->ttl_ms * MU_NS_PER_MS;
        l->armed = ++ticket;
    } else if (pick(3) != 0) {
        assert_true(went_well(mu_ks_lease_keep(&ks, now, l->id, &ttl)));
        assert_int_equal(ttl, l->ttl_ms);
        l->deadline_ns = now.ns + l->ttl_ms * MU_NS_PER_MS;
        l->armed = ++ticket;
    } else if (went_well(mu_ks_lease_revoke(&ks, l->id, &removed))) {
        size_t expected = 0;

        for (size_t i = 0; i < KEYS; i++) {
            expected += keys[i].there && keys[i].lease == slot ? 1 : 0;
        }
        assert_int_equal(removed, expected);
        model_end_lease(slot);
    }
}

static void step_time(void)
{
    now.ns += pick(300) * MU_NS_PER_MS;
    mu_ks_tick(&ks, now);
    for (;;) {
        int due = -1;

        for (int i = 0; i < LEASES; i++) {
            if (leases[i].active && leases[i].ttl_ms != 0 && leases[i].deadline_ns <= now.ns &&
                (due == -1 || leases[i].deadline_ns < leases[due].deadline_ns ||
                 (leases[i].deadline_ns == leases[due].deadline_ns &&
                  leases[i].armed < leases[due].armed))) {
                due = i;
            }
        }
        if (due == -1) {
            return;
        }
        model_end_lease(due);
    }
}

static void step(void)
{
    size_t key = pick(KEYS);
    void (*const by_key[])(size_t) = {step_set,    step_set,    step_add,    step_add,
                                      step_push,   step_append, step_pop,    step_compare_set,
                                      step_delete, step_delete, step_delete, step_compare_set};
    void (*const others[])(void) = {step_multi_set, step_wait, step_wait,  step_wait,
                                    step_watch,     step_time, step_lease, step_lease};
    size_t what = pick(20);

    if (what < 12) {
        by_key[what](key);
    } else {
        others[what - 12]();
    }
    check_ready();
    check_changes();
}

/* Takes everything away again. */
static void clear_all(void)
{
    for (size_t i = 0; i < WAITS; i++) {
        mu_ks_wait_cancel(&ks, &real_waits[i]);
        waits[i].active = false;
    }
    for (size_t i = 0; i < WATCHES; i++) {
        mu_ks_unwatch(&ks, &real_watches[i]);
        watches[i].active = false;
    }
    for (int i = 0; i < LEASES; i++) {
        size_t removed;

        if (leases[i].active) {
            assert_int_equal(mu_ks_lease_revoke(&ks, leases[i].id, &removed), 0);
            model_end_lease(i);
        }
    }
    for (size_t i = 0; i < KEYS; i++) {
        bool removed;

        assert_int_equal(mu_ks_delete(&ks, key_span(i), &removed), 0);
        if (removed) {
            model_delete(i, MU_CHANGE_DELETED);
        }
        while (keys[i].queue_len != 0) {
            step_pop(i);
        }
    }
}

static void run(uint64_t seed, int steps, size_t memory_bytes_max)
{
    struct mu_ks_config config = mu_ks_config_defaults();

    mu_prng_seed(&prng, seed);
    config.seed = mu_prng_u64(&prng);
    config.journal = true;
    config.value_bytes_max = VALUE_MAX;
    config.memory_bytes_max = memory_bytes_max;
    assert_int_equal(mu_ks_init(&ks, &config), 0);
    revision = 0;
    for (size_t i = 0; i < KEYS; i++) {
        keys[i].lease = -1;
    }
    for (int i = 1; i <= steps; i++) {
        step();
        if (i % 64 == 0) {
            check_keys(&ks, false);
        }
        if (i % (steps / 8) == 0) {
            check_journal();
        }
    }
    clear_all();
    check_keys(&ks, false);
    assert_int_equal(ks.memory_bytes, 0);
    assert_int_equal(ks.entries.count, 0);
    assert_int_equal(ks.watched.count, 0);
    assert_int_equal(ks.leases.count, 0);
    assert_int_equal(ks.wait_count, 0);
    assert_int_equal(ks.watch_count, 0);
    assert_int_equal(ks.prefix_len_count, 0);
    store_records();
    for (size_t i = 0; i < RECORDS_MAX; i++) {
        assert_null(records[i]);
    }
    mu_ks_fini(&ks);
}

static void test_keyspace_agrees_with_a_model_over_random_operations(void **state)
{
    (void)state;
    successes = failures = 0;
    run(1, STEPS, (size_t)1 << 30);
    assert_true(successes > STEPS / 2 && failures > 1000);
}

static void test_keyspace_agrees_with_a_model_at_its_memory_limit(void **state)
{
    (void)state;
    run(2, STEPS / 4, 12000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keyspace_agrees_with_a_model_over_random_operations),
        cmocka_unit_test(test_keyspace_agrees_with_a_model_at_its_memory_limit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
