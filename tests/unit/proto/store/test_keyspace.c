/* The verbs of the keyspace one by one, its limits, and its account of memory. */
#include "keyspace_fixture.h"

#include <stdio.h>

#include "failheap.h"

static void test_keyspace_set_replaces_and_get_lends(void **state)
{
    (void)state;
    assert_value("k", NULL);
    set("k", "one");
    assert_value("k", "one");
    set("k", "a longer one that does not fit into the first room of the value");
    assert_value("k", "a longer one that does not fit into the first room of the value");
    set("k", "");
    assert_value("k", "");
    assert_int_equal(ks.key_count, 1);
    assert_int_equal(ks.revision, 3);
}

static void test_keyspace_takes_any_bytes_as_key_and_value(void **state)
{
    struct mu_span value;

    (void)state;
    assert_int_equal(mu_ks_set(&ks, mu_span("a\0b", 3), mu_span("\0\xff", 2), 0), 0);
    assert_int_equal(mu_ks_set(&ks, (struct mu_span){0}, (struct mu_span){0}, 0), 0);
    assert_int_equal(mu_ks_get(&ks, mu_span("a\0b", 3), &value), 0);
    assert_int_equal(value.len, 2);
    assert_memory_equal(value.data, "\0\xff", 2);
    assert_value("a", NULL);
    assert_value("", "");
}

static void test_keyspace_add_reads_numbers_as_strtoll_does(void **state)
{
    static const struct {
        const char *text;
        int64_t sum; /* with 1 added */
    } good[] = {
        {"0", 1},
        {"41", 42},
        {"-7", -6},
        {"+7", 8},
        {" \t\n\v\f\r 7", 8},
        {"12abc", 13},
        {"007", 8},
        {"9223372036854775806", INT64_MAX},
        {"9223372036854775807", INT64_MIN},
        {"-9223372036854775808", -INT64_MAX},
        {"-9223372036854775808x", -INT64_MAX},
    };
    static const char *const bad[] = {
        "",
        " ",
        "abc",
        "-",
        "+",
        "--1",
        "- 1",
        "x1",
        "9223372036854775808",
        "-9223372036854775809",
        "18446744073709551617",
        "99999999999999999999999999",
    };
    char text[32];
    int64_t sum = 77;

    (void)state;
    assert_int_equal(add("fresh", 5), 5);
    assert_value("fresh", "5");
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        set("n", good[i].text);
        assert_int_equal(add("n", 1), good[i].sum);
        (void)snprintf(text, sizeof(text), "%lld", (long long)good[i].sum);
        assert_value("n", text);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        set("n", bad[i]);
        assert_int_equal(mu_ks_add(&ks, MU_SPAN_LIT("n"), 1, 0, &sum), MUSTER_ENOTNUM);
        assert_int_equal(sum, 77);
        assert_value("n", bad[i]);
    }
}

/* The rows of PyTorch's truth table. */
static void test_keyspace_compare_set_follows_the_truth_table(void **state)
{
    (void)state;
    assert_false(compare_set("k", "x", "new", "x"));
    assert_value("k", NULL);
    assert_int_equal(ks.entries.count, 0);
    assert_true(compare_set("k", "", "v", "v"));
    assert_false(compare_set("k", "", "w", "v"));
    assert_false(compare_set("k", "u", "w", "v"));
    assert_value("k", "v");
    assert_true(compare_set("k", "v", "w", "w"));
    assert_value("k", "w");
    set("k", "");
    assert_true(compare_set("k", "", "token", "token"));
    assert_int_equal(ks.revision, 4);
}

static void test_keyspace_append_grows_up_to_the_limit(void **state)
{
    struct mu_ks_config config = fixture_config();
    size_t len = 5;

    (void)state;
    assert_int_equal(append("k", "ab"), 2);
    assert_int_equal(append("k", ""), 2);
    assert_int_equal(append("k", "cd"), 4);
    assert_value("k", "abcd");
    mu_ks_fini(&ks);
    config.value_bytes_max = 100;
    assert_int_equal(mu_ks_init(&ks, &config), 0);
    for (size_t i = 1; i <= 20; i++) {
        assert_int_equal(append("k", "01234"), 5 * i);
    }
    assert_int_equal(mu_ks_append(&ks, MU_SPAN_LIT("k"), MU_SPAN_LIT("x"), 0, &len), MUSTER_ELIMIT);
    assert_int_equal(len, 5);
}

static void test_keyspace_delete_says_whether_there_was_a_value(void **state)
{
    (void)state;
    assert_false(del("k"));
    set("k", "v");
    assert_true(del("k"));
    assert_false(del("k"));
    assert_value("k", NULL);
    assert_int_equal(ks.key_count, 0);
    assert_int_equal(ks.revision, 2);
}

static void test_keyspace_delete_prefix_takes_values_and_queues_and_nothing_else(void **state)
{
    struct mu_ks_watch watch = {0};
    struct mu_ks_wait wait = {0};
    struct mu_ks_watch *told;
    struct mu_span never = MU_SPAN_LIT("job/1/never");
    struct mu_change change;
    uint64_t lease;
    size_t removed = 77;
    size_t len;
    bool ready;

    (void)state;
    mu_ks_delete_prefix(&ks, MU_SPAN_LIT("job/"), &removed);
    assert_int_equal(removed, 0);
    assert_int_equal(mu_ks_lease_grant(&ks, (mu_mono_t){1}, 0, &lease), 0);
    set("job/1/a", "1");
    set_leased("job/1/leased", "1", lease);
    set("job/10/a", "1");
    set("job", "1");
    assert_int_equal(mu_ks_queue_push(&ks, MU_SPAN_LIT("job/1/a"), MU_SPAN_LIT("x"), &len), 0);
    assert_int_equal(mu_ks_queue_push(&ks, MU_SPAN_LIT("job/1/q"), MU_SPAN_LIT("x"), &len), 0);
    assert_int_equal(mu_ks_queue_push(&ks, MU_SPAN_LIT("job/1/q"), MU_SPAN_LIT("y"), &len), 0);
    assert_int_equal(mu_ks_wait(&ks, &wait, MU_KS_WAIT_ALL, &never, 1, &ready), 0);
    assert_int_equal(mu_ks_watch(&ks, &watch, MU_SPAN_LIT("job/1/a"), false), 0);
    mu_ks_delete_prefix(&ks, MU_SPAN_LIT("job/1/"), &removed);
    assert_int_equal(removed, 3);
    assert_value("job/1/a", NULL);
    assert_value("job/1/leased", NULL);
    assert_int_equal(mu_ks_queue_len(&ks, MU_SPAN_LIT("job/1/a")), 0);
    assert_int_equal(mu_ks_queue_len(&ks, MU_SPAN_LIT("job/1/q")), 0);
    assert_value("job/10/a", "1");
    assert_value("job", "1");
    assert_int_equal(ks.key_count, 2);
    assert_true(mu_ks_next_change(&ks, &told, &change));
    assert_int_equal(change.kind, MU_CHANGE_DELETED);
    assert_span_text(change.key, "job/1/a");
    assert_false(mu_ks_next_change(&ks, &told, &change));
    /* Who waits goes on waiting. */
    assert_true(mu_ks_wait_active(&wait));
    mu_ks_wait_cancel(&ks, &wait);
    mu_ks_unwatch(&ks, &watch);
}

static void test_keyspace_delete_prefix_leaves_what_it_has_no_memory_to_tell_of(void **state)
{
    struct mu_ks_watch watch = {0};
    struct mu_ks_watch *told;
    struct mu_change change;
    size_t removed;

    (void)state;
    set("job/a", "1");
    assert_int_equal(mu_ks_watch(&ks, &watch, MU_SPAN_LIT("job/a"), false), 0);
    failheap_arm(0);
    mu_ks_delete_prefix(&ks, MU_SPAN_LIT("job/"), &removed);
    assert_true(failheap_fired());
    failheap_disarm();
    assert_int_equal(removed, 0);
    assert_value("job/a", "1");
    mu_ks_delete_prefix(&ks, MU_SPAN_LIT("job/"), &removed);
    assert_int_equal(removed, 1);
    assert_true(mu_ks_next_change(&ks, &told, &change));
    mu_ks_unwatch(&ks, &watch);
}

static void test_keyspace_multi_set_lets_the_last_of_a_repeated_key_win(void **state)
{
    const struct mu_span keys[] = {MU_SPAN_LIT("a"), MU_SPAN_LIT("b"), MU_SPAN_LIT("a")};
    const struct mu_span values[] = {MU_SPAN_LIT("1"), MU_SPAN_LIT("2"), MU_SPAN_LIT("3")};

    (void)state;
    assert_int_equal(mu_ks_multi_set(&ks, keys, values, 3, 0), 0);
    assert_value("a", "3");
    assert_value("b", "2");
    assert_int_equal(ks.key_count, 2);
    assert_int_equal(ks.revision, 2);
    assert_int_equal(mu_ks_multi_set(&ks, NULL, NULL, 0, 0), 0);
}

static void test_keyspace_multi_set_is_all_or_nothing(void **state)
{
    struct mu_ks_config config = fixture_config();
    const struct mu_span keys[] = {MU_SPAN_LIT("a"), MU_SPAN_LIT("b"), MU_SPAN_LIT("c")};
    static uint8_t big[4000];
    const struct mu_span values[] = {mu_span(big, 3000), mu_span(big, 100), mu_span(big, 4000)};

    (void)state;
    mu_ks_fini(&ks);
    config.value_bytes_max = 3500;
    assert_int_equal(mu_ks_init(&ks, &config), 0);
    set("b", "old");
    assert_int_equal(mu_ks_multi_set(&ks, keys, values, 3, 0), MUSTER_ELIMIT);
    ks.config.value_bytes_max = 4000;
    ks.config.memory_bytes_max = 5000;
    assert_int_equal(mu_ks_multi_set(&ks, keys, values, 3, 0), MUSTER_EFULL);
    ks.config.keys_max = 2;
    assert_int_equal(mu_ks_multi_set(&ks, keys, values, 3, 0), MUSTER_ELIMIT);
    assert_value("a", NULL);
    assert_value("b", "old");
    assert_value("c", NULL);
    assert_int_equal(ks.key_count, 1);
    assert_int_equal(ks.revision, 1);
    assert_true(del("b"));
    assert_int_equal(ks.memory_bytes, 0);
}

static void test_keyspace_queue_is_first_in_first_out_and_apart_from_values(void **state)
{
    uint8_t *data;
    size_t len;
    int64_t len_before;

    (void)state;
    assert_int_equal(push("q", "one"), 1);
    assert_int_equal(push("q", ""), 2);
    assert_int_equal(mu_ks_queue_len(&ks, MU_SPAN_LIT("q")), 2);
    assert_value("q", NULL);
    assert_true(mu_ks_has(&ks, MU_SPAN_LIT("q")));
    assert_int_equal(ks.key_count, 0);
    assert_false(del("q"));
    assert_int_equal(pop("q", "one"), 2);
    assert_int_equal(pop("q", ""), 1);
    assert_int_equal(mu_ks_queue_pop(&ks, MU_SPAN_LIT("q"), &data, &len, &len_before),
                     MUSTER_ENOENT);
    assert_false(mu_ks_has(&ks, MU_SPAN_LIT("q")));
    set("q", "value");
    assert_int_equal(mu_ks_queue_pop(&ks, MU_SPAN_LIT("q"), &data, &len, &len_before),
                     MUSTER_ENOENT);
    push("q", "three");
    assert_true(del("q"));
    assert_int_equal(pop("q", "three"), 1);
    assert_int_equal(ks.memory_bytes, 0);
}

static void test_keyspace_lists_keys_that_have_a_value(void **state)
{
    const struct mu_map_node *cursor = NULL;
    struct mu_span key;
    struct mu_span value;
    unsigned seen = 0;

    (void)state;
    push("queue", "x");
    for (int i = 0; i < 100; i++) {
        char name[16];

        (void)snprintf(name, sizeof(name), "%02d", i);
        set(name, name);
    }
    while (mu_ks_next_key(&ks, &cursor, &key, &value)) {
        assert_true(mu_span_eq(key, value));
        seen++;
    }
    assert_int_equal(seen, 100);
    assert_int_equal(ks.key_count, 100);
}

static void test_keyspace_refuses_what_is_over_its_limits(void **state)
{
    struct mu_ks_config config = fixture_config();
    struct mu_span big = {(const uint8_t *)"12345", 5};
    struct mu_span ok = {(const uint8_t *)"1234", 4};
    struct mu_ks_wait wait = {0};
    struct mu_ks_watch watch = {0};
    struct mu_span value;
    int64_t sum;
    size_t len;
    bool flag;

    (void)state;
    mu_ks_fini(&ks);
    config.key_bytes_max = 4;
    config.value_bytes_max = 4;
    assert_int_equal(mu_ks_init(&ks, &config), 0);
    assert_int_equal(mu_ks_set(&ks, big, ok, 0), MUSTER_ELIMIT);
    assert_int_equal(mu_ks_set(&ks, ok, big, 0), MUSTER_ELIMIT);
    assert_int_equal(mu_ks_add(&ks, big, 1, 0, &sum), MUSTER_ELIMIT);
    assert_int_equal(mu_ks_add(&ks, ok, 12345, 0, &sum), MUSTER_ELIMIT);
    assert_int_equal(mu_ks_append(&ks, big, ok, 0, &len), MUSTER_ELIMIT);
    assert_int_equal(mu_ks_append(&ks, ok, big, 0, &len), MUSTER_ELIMIT);
    assert_int_equal(mu_ks_compare_set(&ks, big, ok, ok, 0, &value, &flag), MUSTER_ELIMIT);
    assert_int_equal(mu_ks_compare_set(&ks, ok, ok, big, 0, &value, &flag), MUSTER_ELIMIT);
    assert_int_equal(mu_ks_queue_push(&ks, big, ok, &len), MUSTER_ELIMIT);
    assert_int_equal(mu_ks_queue_push(&ks, ok, big, &len), MUSTER_ELIMIT);
    assert_int_equal(mu_ks_wait(&ks, &wait, MU_KS_WAIT_ALL, &big, 1, &flag), MUSTER_ELIMIT);
    assert_int_equal(mu_ks_watch(&ks, &watch, big, true), MUSTER_ELIMIT);
    assert_int_equal(mu_ks_delete(&ks, big, &flag), 0);
    assert_int_equal(ks.memory_bytes, 0);
    assert_int_equal(mu_ks_set(&ks, ok, ok, 0), 0);
}

static void test_keyspace_refuses_keys_that_no_record_could_hold(void **state)
{
    struct mu_ks_config config = fixture_config();
    struct mu_keyspace other;

    (void)state;
    config.key_bytes_max = (size_t)UINT32_MAX + 1;
    assert_int_equal(mu_ks_init(&other, &config), MUSTER_EINVAL);
}

static void test_keyspace_stops_at_its_memory_limit_and_goes_on_below(void **state)
{
    static uint8_t kilobyte[1024];
    struct mu_ks_config config = fixture_config();
    char name[16];
    int full = 0;

    (void)state;
    mu_ks_fini(&ks);
    config.memory_bytes_max = 100000;
    assert_int_equal(mu_ks_init(&ks, &config), 0);
    for (int i = 0; i < 1000; i++) {
        int err;

        (void)snprintf(name, sizeof(name), "%d", i);
        err = mu_ks_set(&ks, mu_span_str(name), mu_span(kilobyte, sizeof(kilobyte)), 0);
        assert_true(err == 0 || err == MUSTER_EFULL);
        full += err != 0 ? 1 : 0;
        assert_true(ks.memory_bytes <= 100000);
    }
    assert_true(full > 900 && full < 930);
    /* In place, and instead of something as long, there is room. */
    assert_int_equal(mu_ks_set(&ks, MU_SPAN_LIT("0"), mu_span(kilobyte, 1000), 0), 0);
    assert_true(del("0"));
    set("x", "y");
}

/* A value that was big gives its memory back when a small one takes its place. */
static void test_keyspace_does_not_keep_the_room_of_a_big_value(void **state)
{
    static uint8_t big[1 << 20];
    size_t small;

    (void)state;
    set("k", "small");
    small = ks.memory_bytes;
    assert_int_equal(mu_ks_set(&ks, MU_SPAN_LIT("k"), mu_span(big, sizeof(big)), 0), 0);
    assert_true(ks.memory_bytes > sizeof(big));
    set("k", "small");
    assert_int_equal(ks.memory_bytes, small);
    assert_int_equal(mu_ks_set(&ks, MU_SPAN_LIT("k"), mu_span(big, sizeof(big)), 0), 0);
    assert_int_equal(mu_ks_set(&ks, MU_SPAN_LIT("k"), mu_span(big, 600), 0), 0);
    assert_true(ks.memory_bytes < small + 1000);
    assert_true(del("k"));
    assert_int_equal(ks.memory_bytes, 0);
}

/* Memory that only saves memory is not worth a failure. */
static void test_keyspace_shrinks_a_value_even_without_memory(void **state)
{
    static uint8_t big[1 << 16];
    struct mu_span value;

    (void)state;
    assert_int_equal(mu_ks_set(&ks, MU_SPAN_LIT("k"), mu_span(big, sizeof(big)), 0), 0);
    failheap_arm(0);
    assert_int_equal(mu_ks_set(&ks, MU_SPAN_LIT("k"), mu_span(big, 1000), 0), 0);
    assert_true(failheap_fired());
    failheap_disarm();
    assert_int_equal(mu_ks_get(&ks, MU_SPAN_LIT("k"), &value), 0);
    assert_int_equal(value.len, 1000);
    assert_true(del("k"));
    assert_int_equal(ks.memory_bytes, 0);
}

static void test_keyspace_refuses_a_lease_that_is_not_there(void **state)
{
    struct mu_span k = MU_SPAN_LIT("k");
    struct mu_span value;
    int64_t sum;
    size_t len;
    bool written;

    (void)state;
    assert_int_equal(mu_ks_set(&ks, k, k, 9), MUSTER_ENOENT);
    assert_int_equal(mu_ks_multi_set(&ks, &k, &k, 1, 9), MUSTER_ENOENT);
    assert_int_equal(mu_ks_add(&ks, k, 1, 9, &sum), MUSTER_ENOENT);
    assert_int_equal(mu_ks_append(&ks, k, k, 9, &len), MUSTER_ENOENT);
    assert_int_equal(mu_ks_compare_set(&ks, k, mu_span("", 0), k, 9, &value, &written),
                     MUSTER_ENOENT);
    assert_int_equal(ks.entries.count, 0);
}

int main(void)
{
#define KS_TEST(name) cmocka_unit_test_setup_teardown(name, setup_keyspace, teardown_keyspace)
    const struct CMUnitTest tests[] = {
        KS_TEST(test_keyspace_set_replaces_and_get_lends),
        KS_TEST(test_keyspace_takes_any_bytes_as_key_and_value),
        KS_TEST(test_keyspace_add_reads_numbers_as_strtoll_does),
        KS_TEST(test_keyspace_compare_set_follows_the_truth_table),
        KS_TEST(test_keyspace_append_grows_up_to_the_limit),
        KS_TEST(test_keyspace_delete_says_whether_there_was_a_value),
        KS_TEST(test_keyspace_delete_prefix_takes_values_and_queues_and_nothing_else),
        KS_TEST(test_keyspace_delete_prefix_leaves_what_it_has_no_memory_to_tell_of),
        KS_TEST(test_keyspace_multi_set_lets_the_last_of_a_repeated_key_win),
        KS_TEST(test_keyspace_multi_set_is_all_or_nothing),
        KS_TEST(test_keyspace_queue_is_first_in_first_out_and_apart_from_values),
        KS_TEST(test_keyspace_lists_keys_that_have_a_value),
        KS_TEST(test_keyspace_refuses_what_is_over_its_limits),
        KS_TEST(test_keyspace_refuses_keys_that_no_record_could_hold),
        KS_TEST(test_keyspace_stops_at_its_memory_limit_and_goes_on_below),
        KS_TEST(test_keyspace_does_not_keep_the_room_of_a_big_value),
        KS_TEST(test_keyspace_shrinks_a_value_even_without_memory),
        KS_TEST(test_keyspace_refuses_a_lease_that_is_not_there),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
