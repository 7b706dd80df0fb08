/* Watching: what is told to whom, and in which order. */
#include "keyspace_fixture.h"

static struct mu_ks_watch watches[4];

static int setup_watches(void **state)
{
    memset(watches, 0, sizeof(watches));
    return setup_keyspace(state);
}

static int teardown_watches(void **state)
{
    for (size_t i = 0; i < 4; i++) {
        mu_ks_unwatch(&ks, &watches[i]);
    }
    return teardown_keyspace(state);
}

static void watch(size_t slot, const char *key, bool prefix)
{
    assert_int_equal(mu_ks_watch(&ks, &watches[slot], mu_span_str(key), prefix), 0);
}

static uint64_t assert_change(size_t slot, enum mu_change_kind kind, const char *key,
                              const char *old_value, const char *value)
{
    struct mu_ks_watch *w;
    struct mu_change c;

    assert_true(mu_ks_next_change(&ks, &w, &c));
    assert_ptr_equal(w, &watches[slot]);
    assert_int_equal(c.kind, kind);
    assert_span_text(c.key, key);
    assert_span_text(c.old_value, old_value);
    assert_span_text(c.value, value);
    return c.revision;
}

static void assert_no_change(void)
{
    struct mu_ks_watch *w;
    struct mu_change c;

    assert_false(mu_ks_next_change(&ks, &w, &c));
}

static void test_keyspace_watch_is_told_the_story_of_its_key(void **state)
{
    uint64_t revision;

    (void)state;
    watch(0, "k", false);
    set("other", "x");
    set("k", "v1");
    revision = assert_change(0, MU_CHANGE_CREATED, "k", "", "v1");
    set("k", "v2");
    assert_int_equal(assert_change(0, MU_CHANGE_UPDATED, "k", "v1", "v2"), revision + 1);
    assert_true(compare_set("k", "v2", "5", "5"));
    assert_change(0, MU_CHANGE_UPDATED, "k", "v2", "5");
    assert_false(compare_set("k", "x", "6", "5"));
    assert_no_change();
    assert_int_equal(add("k", 2), 7);
    assert_change(0, MU_CHANGE_UPDATED, "k", "5", "7");
    append("k", "00");
    assert_change(0, MU_CHANGE_APPENDED, "k", "7", "700");
    assert_true(del("k"));
    assert_change(0, MU_CHANGE_DELETED, "k", "700", "");
    assert_false(del("k"));
    append("k", "new");
    assert_change(0, MU_CHANGE_CREATED, "k", "", "new");
    push("k", "queued");
    assert_no_change();
}

static void test_keyspace_watch_of_a_prefix_hears_of_all_below(void **state)
{
    (void)state;
    watch(0, "job/", true);
    set("job", "x");
    set("job/", "a");
    set("job/1", "b");
    set("jab/1", "x");
    assert_change(0, MU_CHANGE_CREATED, "job/", "", "a");
    assert_change(0, MU_CHANGE_CREATED, "job/1", "", "b");
    assert_no_change();
    mu_ks_unwatch(&ks, &watches[0]);
    watch(0, "", true);
    set("", "");
    set("x", "");
    assert_change(0, MU_CHANGE_CREATED, "", "", "");
    assert_change(0, MU_CHANGE_CREATED, "x", "", "");
    assert_no_change();
}

static void test_keyspace_watches_hear_in_order_the_key_then_ever_longer_prefixes(void **state)
{
    (void)state;
    watch(0, "ab", true);
    watch(1, "a", true);
    watch(2, "abc", false);
    watch(3, "abc", false);
    set("abc", "v");
    assert_change(2, MU_CHANGE_CREATED, "abc", "", "v");
    assert_change(3, MU_CHANGE_CREATED, "abc", "", "v");
    assert_change(1, MU_CHANGE_CREATED, "abc", "", "v");
    assert_change(0, MU_CHANGE_CREATED, "abc", "", "v");
    assert_no_change();
}

/* The same bytes as a key and as a prefix, watched and let go apart. */
static void test_keyspace_watch_tells_a_key_from_a_prefix(void **state)
{
    (void)state;
    watch(0, "a", false);
    watch(1, "a", true);
    set("ab", "1");
    assert_change(1, MU_CHANGE_CREATED, "ab", "", "1");
    assert_no_change();
    mu_ks_unwatch(&ks, &watches[1]);
    set("ab", "2");
    assert_no_change();
    set("a", "3");
    assert_change(0, MU_CHANGE_CREATED, "a", "", "3");
    assert_no_change();
}

static void test_keyspace_watch_hears_of_later_changes_only(void **state)
{
    (void)state;
    watch(0, "k", false);
    set("k", "1");
    watch(1, "k", false);
    set("k", "2");
    assert_change(0, MU_CHANGE_CREATED, "k", "", "1");
    assert_change(0, MU_CHANGE_UPDATED, "k", "1", "2");
    assert_change(1, MU_CHANGE_UPDATED, "k", "1", "2");
    assert_no_change();
}

static void test_keyspace_unwatch_drops_what_was_not_pulled(void **state)
{
    (void)state;
    mu_ks_unwatch(&ks, &watches[0]);
    watch(0, "k", false);
    watch(1, "k", false);
    watch(2, "k", false);
    watch(3, "", true);
    set("k", "1");
    set("k", "2");
    assert_change(0, MU_CHANGE_CREATED, "k", "", "1");
    /* The one that would be next, the one after it, and the one that was told just now. */
    mu_ks_unwatch(&ks, &watches[1]);
    mu_ks_unwatch(&ks, &watches[2]);
    mu_ks_unwatch(&ks, &watches[0]);
    assert_change(3, MU_CHANGE_CREATED, "k", "", "1");
    assert_change(3, MU_CHANGE_UPDATED, "k", "1", "2");
    assert_no_change();
    set("k", "3");
    mu_ks_unwatch(&ks, &watches[3]);
    assert_int_equal(ks.watch_count, 0);
    assert_no_change();
    assert_true(del("k"));
    assert_int_equal(ks.memory_bytes, 0);
}

/* A watch that goes and comes back between two pulls must not be told of what it missed. */
static void test_keyspace_watch_that_comes_back_starts_anew(void **state)
{
    (void)state;
    watch(0, "k", false);
    set("k", "1");
    mu_ks_unwatch(&ks, &watches[0]);
    watch(0, "k", false);
    assert_no_change();
    set("k", "2");
    assert_change(0, MU_CHANGE_UPDATED, "k", "1", "2");
    assert_no_change();
}

static void test_keyspace_fini_drops_changes_nobody_pulled(void **state)
{
    (void)state;
    watch(0, "", true);
    set("k", "1");
    set("k", "2");
}

static void test_keyspace_watch_is_counted_against_the_memory_limit(void **state)
{
    (void)state;
    ks.config.memory_bytes_max = 10;
    assert_int_equal(mu_ks_watch(&ks, &watches[0], MU_SPAN_LIT("k"), true), MUSTER_EFULL);
    assert_int_equal(ks.watch_count, 0);
    assert_int_equal(ks.prefix_len_count, 0);
    ks.config.memory_bytes_max = 1000;
    watch(0, "k", true);
    watch(1, "k", true);
    assert_int_equal(ks.prefix_len_count, 1);
    assert_true(ks.memory_bytes != 0);
    mu_ks_unwatch(&ks, &watches[0]);
    assert_int_equal(ks.prefix_len_count, 1);
    mu_ks_unwatch(&ks, &watches[1]);
    assert_int_equal(ks.prefix_len_count, 0);
    assert_int_equal(ks.memory_bytes, 0);
}

int main(void)
{
#define WATCH_TEST(name) cmocka_unit_test_setup_teardown(name, setup_watches, teardown_watches)
    const struct CMUnitTest tests[] = {
        WATCH_TEST(test_keyspace_watch_is_told_the_story_of_its_key),
        WATCH_TEST(test_keyspace_watch_of_a_prefix_hears_of_all_below),
        WATCH_TEST(test_keyspace_watches_hear_in_order_the_key_then_ever_longer_prefixes),
        WATCH_TEST(test_keyspace_watch_tells_a_key_from_a_prefix),
        WATCH_TEST(test_keyspace_watch_hears_of_later_changes_only),
        WATCH_TEST(test_keyspace_unwatch_drops_what_was_not_pulled),
        WATCH_TEST(test_keyspace_watch_that_comes_back_starts_anew),
        WATCH_TEST(test_keyspace_fini_drops_changes_nobody_pulled),
        WATCH_TEST(test_keyspace_watch_is_counted_against_the_memory_limit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
