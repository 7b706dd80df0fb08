/*
 * The leader of the etcd-v3 rendezvous: wishes and keys go in, the next state comes out. Revisions
 * are given by the test; there is no time but whether a last call is over.
 */
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>

#include "failheap.h"
#include "proto/rdzv/leader.h"

#define ENTRIES_MAX 16

static struct mu_rdzv_state state;
static struct mu_rdzv_settings settings;
static int64_t seen;
static struct mu_rdzv_entry entries[ENTRIES_MAX];
static size_t entry_count;
static int64_t revision;
static struct mu_rdzv_leader_result result;

static int setup(void **unused)
{
    (void)unused;
    mu_rdzv_state_init(&state);
    settings = mu_rdzv_settings_defaults();
    settings.min_nodes = 2;
    settings.max_nodes = 3;
    seen = 0;
    entry_count = 0;
    revision = 10;
    return 0;
}

static int teardown(void **unused)
{
    (void)unused;
    mu_rdzv_state_fini(&state);
    return 0;
}

static struct mu_rdzv_node node_of(const char *addr)
{
    return (struct mu_rdzv_node){.addr = (char *)(uintptr_t)addr, .pid = 7, .local_id = 1};
}

static struct mu_rdzv_entry *find_entry(const char *addr)
{
    for (size_t i = entry_count; i-- > 0;) {
        if (strcmp(entries[i].node.addr, addr) == 0) {
            return &entries[i];
        }
    }
    return NULL;
}

/* A node begins a life with a wish. */
static void born(const char *addr, enum mu_rdzv_wish wish)
{
    revision++;
    assert_true(entry_count < ENTRIES_MAX);
    entries[entry_count++] = (struct mu_rdzv_entry){
        .node = node_of(addr), .born = revision, .revision = revision, .wish = wish};
}

static void wishes(const char *addr, enum mu_rdzv_wish wish)
{
    struct mu_rdzv_entry *e = find_entry(addr);

    assert_non_null(e);
    e->wish = wish;
    e->revision = ++revision;
}

static void dies(const char *addr)
{
    struct mu_rdzv_entry *e = find_entry(addr);

    assert_non_null(e);
    revision++;
    *e = entries[--entry_count];
}

static int by_revision(const void *a, const void *b)
{
    const struct mu_rdzv_entry *x = *(const struct mu_rdzv_entry *const *)a;
    const struct mu_rdzv_entry *y = *(const struct mu_rdzv_entry *const *)b;

    return x->revision < y->revision ? -1 : x->revision > y->revision;
}

static int try_step(bool last_call_over)
{
    const struct mu_rdzv_entry *list[ENTRIES_MAX];

    for (size_t i = 0; i < entry_count; i++) {
        list[i] = &entries[i];
    }
    qsort(list, entry_count, sizeof(list[0]), by_revision);
    return mu_rdzv_leader_step(&state, &seen, list, entry_count, &settings, last_call_over,
                               &result);
}

static void step(bool last_call_over)
{
    assert_int_equal(try_step(last_call_over), 0);
}

/* What the state says of a node: p, w, s, or - where it is not there; the rank behind a p. */
static const char *place(const char *addr)
{
    static char text[16];
    struct mu_rdzv_node node = node_of(addr);
    const struct mu_rdzv_member *m = mu_rdzv_state_find(&state, &node);

    if (m == NULL) {
        return "-";
    }
    assert_false(m->has_heartbeat);
    if (m->participant) {
        (void)snprintf(text, sizeof(text), "p%d", (int)m->rank);
        return text;
    }
    return m->waiting ? "w" : "s";
}

/* --- who gets in ---------------------------------------------------------------------------- */

static void test_leader_takes_all_wishes_in_one_step(void **unused)
{
    (void)unused;
    born("c", MU_RDZV_WISH_JOIN);
    born("a", MU_RDZV_WISH_JOIN);
    born("b", MU_RDZV_WISH_JOIN);
    born("d", MU_RDZV_WISH_JOIN);
    step(false);
    assert_true(result.changed);
    assert_true(result.urgent);
    assert_true(state.complete);
    assert_int_equal(seen, revision);
    assert_string_equal(place("a"), "p0");
    assert_string_equal(place("b"), "p1");
    assert_string_equal(place("c"), "p2");
    assert_string_equal(place("d"), "s"); /* Who came last finds no seat. */
    assert_true(mu_rdzv_intact(&state));
}

static void test_leader_does_nothing_twice(void **unused)
{
    (void)unused;
    born("a", MU_RDZV_WISH_JOIN);
    step(false);
    assert_true(result.changed);
    assert_false(result.urgent);
    step(false);
    assert_false(result.changed);
    wishes("a", MU_RDZV_WISH_OUT);
    step(false);
    assert_string_equal(place("a"), "-");
    step(false);
    assert_false(result.changed);
}

static void test_leader_says_that_it_has_seen_a_wish_that_changes_nothing(void **unused)
{
    (void)unused;
    born("a", MU_RDZV_WISH_UNSPARE);
    step(false);
    assert_true(result.changed);
    assert_int_equal(seen, revision);
    assert_string_equal(place("a"), "-");
}

static void test_leader_completes_when_the_last_call_is_over(void **unused)
{
    (void)unused;
    born("a", MU_RDZV_WISH_JOIN);
    step(true);
    assert_false(state.complete);
    assert_false(state.has_deadline);
    born("b", MU_RDZV_WISH_JOIN);
    step(false);
    assert_false(state.complete);
    assert_true(state.has_deadline);
    step(true);
    assert_true(state.complete);
    assert_true(result.urgent);
    assert_string_equal(place("b"), "p1");
}

static void test_leader_completes_no_closed_run(void **unused)
{
    (void)unused;
    born("a", MU_RDZV_WISH_JOIN);
    born("b", MU_RDZV_WISH_JOIN);
    step(false);
    state.closed = true;
    step(true);
    assert_false(state.complete);
    born("c", MU_RDZV_WISH_JOIN);
    step(true);
    assert_string_equal(place("c"), "-");
    assert_int_equal(seen, revision);
}

/* --- who is out ----------------------------------------------------------------------------- */

static void meet(void)
{
    born("a", MU_RDZV_WISH_JOIN);
    born("b", MU_RDZV_WISH_JOIN);
    step(false);
    step(true);
    assert_true(state.complete);
}

static void test_leader_drops_whose_key_is_gone(void **unused)
{
    (void)unused;
    meet();
    dies("a");
    step(false);
    assert_true(result.urgent);
    assert_string_equal(place("a"), "-");
    assert_true(state.complete);
    assert_false(mu_rdzv_intact(&state));
    dies("b");
    step(false);
    assert_false(state.complete);
    assert_int_equal(state.round, 1);
}

static void test_leader_takes_another_key_for_another_life(void **unused)
{
    (void)unused;
    meet();
    /* The old key is still there: etcd has not noticed. */
    born("a", MU_RDZV_WISH_JOIN);
    step(false);
    assert_false(mu_rdzv_intact(&state));
    assert_string_equal(place("a"), "w");
    /* Nor does it count when it goes, or wishes once more. */
    entries[0].wish = MU_RDZV_WISH_OUT;
    entries[0].revision = ++revision;
    step(false);
    assert_string_equal(place("a"), "w");
    entries[0] = entries[--entry_count];
    step(false);
    assert_string_equal(place("a"), "w");
}

static void test_leader_lets_in_who_waits_when_a_round_is_over(void **unused)
{
    (void)unused;
    meet();
    born("c", MU_RDZV_WISH_JOIN);
    step(false);
    assert_string_equal(place("c"), "w");
    wishes("a", MU_RDZV_WISH_OUT);
    step(false);
    wishes("b", MU_RDZV_WISH_OUT);
    step(false);
    assert_int_equal(state.round, 1);
    assert_string_equal(place("c"), "p0"); /* Without having asked again. */
    wishes("c", MU_RDZV_WISH_OUT);
    step(false);
    assert_string_equal(place("c"), "-");
}

static void test_leader_keeps_spares_until_they_ask(void **unused)
{
    (void)unused;
    settings.max_nodes = 2;
    born("a", MU_RDZV_WISH_JOIN);
    born("b", MU_RDZV_WISH_JOIN);
    born("c", MU_RDZV_WISH_JOIN);
    step(false);
    assert_string_equal(place("c"), "s");
    dies("a");
    step(false);
    assert_string_equal(place("c"), "s");
    wishes("c", MU_RDZV_WISH_UNSPARE);
    step(false);
    assert_string_equal(place("c"), "-");
    wishes("c", MU_RDZV_WISH_JOIN);
    step(false);
    assert_string_equal(place("c"), "w");
}

static void test_leader_mends_a_state_of_other_settings(void **unused)
{
    (void)unused;
    settings.min_nodes = 3;
    born("a", MU_RDZV_WISH_JOIN);
    born("b", MU_RDZV_WISH_JOIN);
    step(false);
    assert_false(state.has_deadline);
    settings.min_nodes = 2;
    step(false);
    assert_true(result.changed);
    assert_true(state.has_deadline);
}

static void test_leader_bears_a_want_of_memory(void **unused)
{
    (void)unused;
    for (long nth = 0;; nth++) {
        int err;

        (void)teardown(NULL);
        (void)setup(NULL);
        born("a", MU_RDZV_WISH_JOIN);
        born("b", MU_RDZV_WISH_JOIN);
        step(false);
        born("c", MU_RDZV_WISH_JOIN);
        failheap_arm(nth);
        err = try_step(false);
        if (!failheap_fired()) {
            failheap_disarm();
            assert_int_equal(err, 0);
            assert_true(nth > 0);
            break;
        }
        failheap_disarm();
        assert_int_equal(err, MUSTER_ENOMEM);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(test_leader_takes_all_wishes_in_one_step),
        TEST(test_leader_does_nothing_twice),
        TEST(test_leader_says_that_it_has_seen_a_wish_that_changes_nothing),
        TEST(test_leader_completes_when_the_last_call_is_over),
        TEST(test_leader_completes_no_closed_run),
        TEST(test_leader_drops_whose_key_is_gone),
        TEST(test_leader_takes_another_key_for_another_life),
        TEST(test_leader_lets_in_who_waits_when_a_round_is_over),
        TEST(test_leader_keeps_spares_until_they_ask),
        TEST(test_leader_mends_a_state_of_other_settings),
        TEST(test_leader_bears_a_want_of_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
