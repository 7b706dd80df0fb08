/* The journal: which records are made, byte for byte, and what they rebuild. */
#include "keyspace_fixture.h"

#include "core/reader.h"

static struct mu_buf taken;
static struct mu_reader reader;

static int setup_journal(void **state)
{
    mu_buf_init(&taken, SIZE_MAX);
    return setup_journaled(state);
}

static int teardown_journal(void **state)
{
    mu_buf_fini(&taken);
    return teardown_keyspace(state);
}

/* Takes what was recorded since the last time, for the assertions below to read. */
static void take(void)
{
    size_t len = mu_ks_journal_len(&ks);

    mu_ks_journal_take(&ks, &taken);
    assert_int_equal(taken.len, len);
    assert_int_equal(mu_ks_journal_len(&ks), 0);
    reader = mu_reader(mu_buf_span(&taken));
}

static void assert_put(uint8_t op, uint64_t number, const char *key, const char *value)
{
    uint32_t key_len;
    uint64_t value_len;

    assert_int_equal(mu_read_u8(&reader), op);
    assert_int_equal(mu_read_u64(&reader), number);
    key_len = mu_read_u32(&reader);
    value_len = mu_read_u64(&reader);
    assert_span_text(mu_read_bytes(&reader, key_len), key);
    assert_span_text(mu_read_bytes(&reader, value_len), value);
    assert_false(reader.failed);
}

static void assert_deleted(uint64_t number)
{
    assert_int_equal(mu_read_u8(&reader), MU_KS_JOURNAL_DEL);
    assert_int_equal(mu_read_u64(&reader), number);
    assert_false(reader.failed);
}

static void assert_end(void)
{
    assert_true(mu_reader_done(&reader));
}

static void test_keyspace_journal_has_the_bytes_the_header_says(void **state)
{
    static const uint8_t bytes[] = {1, 1, 0, 0,   0,   0,   0,   0,   0, 2, 0, 0, 0, 3, 0, 0, 0, 0,
                                    0, 0, 0, 'k', 'y', 'v', 'a', 'l', 3, 1, 0, 0, 0, 0, 0, 0, 0};

    (void)state;
    set("ky", "val");
    assert_true(del("ky"));
    take();
    assert_int_equal(taken.len, sizeof(bytes));
    assert_memory_equal(mu_buf_span(&taken).data, bytes, sizeof(bytes));
}

static void test_keyspace_journal_keeps_the_number_of_a_key(void **state)
{
    (void)state;
    set("a", "1");
    set("b", "1");
    (void)add("a", 1);
    (void)append("a", "x");
    assert_true(compare_set("a", "2x", "", ""));
    assert_false(compare_set("a", "2x", "y", ""));
    assert_true(del("a"));
    assert_false(del("a"));
    set("a", "again");
    take();
    assert_put(MU_KS_JOURNAL_PUT, 1, "a", "1");
    assert_put(MU_KS_JOURNAL_PUT, 2, "b", "1");
    assert_put(MU_KS_JOURNAL_PUT, 1, "a", "2");
    assert_put(MU_KS_JOURNAL_PUT, 1, "a", "2x");
    assert_put(MU_KS_JOURNAL_PUT, 1, "a", "");
    assert_deleted(1);
    assert_put(MU_KS_JOURNAL_PUT, 3, "a", "again");
    assert_end();
}

static void test_keyspace_journal_numbers_each_element_of_a_queue(void **state)
{
    (void)state;
    push("q", "one");
    push("q", "two");
    assert_int_equal(pop("q", "one"), 2);
    take();
    assert_put(MU_KS_JOURNAL_QUEUE, 1, "q", "one");
    assert_put(MU_KS_JOURNAL_QUEUE, 2, "q", "two");
    assert_deleted(1);
    assert_end();
    assert_int_equal(pop("q", "two"), 1);
    take();
    assert_deleted(2);
    assert_end();
}

static void test_keyspace_journal_never_sees_an_element_handed_to_a_waiter(void **state)
{
    struct mu_ks_wait wait = {0};
    struct mu_span q = MU_SPAN_LIT("q");
    bool ready;

    (void)state;
    assert_int_equal(mu_ks_wait(&ks, &wait, MU_KS_WAIT_POP, &q, 1, &ready), 0);
    push("q", "x");
    assert_ptr_equal(mu_ks_next_ready(&ks), &wait);
    mu_ks_wait_cancel(&ks, &wait);
    take();
    assert_end();
}

static void test_keyspace_journal_leaves_out_what_is_leased(void **state)
{
    mu_mono_t now = {0};
    uint64_t lease;
    size_t removed;

    (void)state;
    assert_int_equal(mu_ks_lease_grant(&ks, now, 0, &lease), 0);
    set("a", "1");
    set_leased("a", "2", lease);
    set_leased("b", "1", lease);
    (void)add("a", 1);
    set("b", "free");
    set_leased("c", "1", lease);
    assert_true(del("c"));
    assert_int_equal(mu_ks_lease_revoke(&ks, lease, &removed), 0);
    assert_int_equal(removed, 1);
    take();
    assert_put(MU_KS_JOURNAL_PUT, 1, "a", "1");
    assert_deleted(1);
    assert_put(MU_KS_JOURNAL_PUT, 2, "b", "free");
    assert_end();
}

static void test_keyspace_without_a_journal_records_nothing(void **state)
{
    (void)state;
    ks.config.journal = false;
    set("a", "1");
    push("q", "1");
    assert_int_equal(pop("q", "1"), 1);
    assert_true(del("a"));
    assert_int_equal(mu_ks_journal_len(&ks), 0);
}

static int load(uint8_t op, uint64_t number, const char *key, const char *value)
{
    return mu_ks_load(&ks, op, number, mu_span_str(key), mu_span_str(value));
}

static void test_keyspace_load_restores_values_and_queues_and_goes_on_from_there(void **state)
{
    (void)state;
    assert_int_equal(load(MU_KS_JOURNAL_PUT, 3, "a", "1"), 0);
    assert_int_equal(load(MU_KS_JOURNAL_QUEUE, 4, "a", "first"), 0);
    assert_int_equal(load(MU_KS_JOURNAL_QUEUE, 9, "a", "second"), 0);
    assert_int_equal(load(MU_KS_JOURNAL_PUT, 12, "b", ""), 0);
    assert_int_equal(mu_ks_journal_len(&ks), 0);
    assert_int_equal(ks.key_count, 2);
    assert_true(ks.revision >= 2);
    assert_int_equal(add("a", 1), 2);
    assert_int_equal(pop("a", "first"), 2);
    push("a", "third");
    set("c", "new");
    take();
    assert_put(MU_KS_JOURNAL_PUT, 3, "a", "2");
    assert_deleted(4);
    assert_put(MU_KS_JOURNAL_QUEUE, 13, "a", "third");
    assert_put(MU_KS_JOURNAL_PUT, 14, "c", "new");
    assert_end();
    assert_int_equal(pop("a", "second"), 2);
}

static void test_keyspace_load_refuses_what_cannot_have_been_recorded(void **state)
{
    (void)state;
    assert_int_equal(load(MU_KS_JOURNAL_PUT, 0, "a", "1"), MUSTER_ECORRUPT);
    assert_int_equal(load(MU_KS_JOURNAL_PUT, 5, "a", "1"), 0);
    assert_int_equal(load(MU_KS_JOURNAL_PUT, 5, "b", "1"), MUSTER_ECORRUPT);
    assert_int_equal(load(MU_KS_JOURNAL_PUT, 4, "b", "1"), MUSTER_ECORRUPT);
    assert_int_equal(load(MU_KS_JOURNAL_PUT, 6, "a", "1"), MUSTER_ECORRUPT);
    assert_int_equal(load(MU_KS_JOURNAL_DEL, 6, "a", "1"), MUSTER_ECORRUPT);
    assert_int_equal(load(0, 6, "b", "1"), MUSTER_ECORRUPT);
    ks.config.memory_bytes_max = ks.memory_bytes;
    assert_int_equal(load(MU_KS_JOURNAL_PUT, 6, "b", "1"), MUSTER_EFULL);
    assert_int_equal(load(MU_KS_JOURNAL_QUEUE, 6, "a", "1"), MUSTER_EFULL);
    assert_int_equal(ks.memory_bytes, ks.config.memory_bytes_max);
    assert_int_equal(ks.key_count, 1);
}

/* A limit that was lowered since is about requests, not about what is on disk. */
static void test_keyspace_load_takes_values_over_the_limit_of_a_request(void **state)
{
    size_t len;

    (void)state;
    ks.config.value_bytes_max = 3;
    assert_int_equal(load(MU_KS_JOURNAL_PUT, 1, "a", "12345"), 0);
    assert_value("a", "12345");
    assert_int_equal(mu_ks_append(&ks, MU_SPAN_LIT("a"), MU_SPAN_LIT(""), 0, &len), MUSTER_ELIMIT);
}

int main(void)
{
#define JOURNAL_TEST(name) cmocka_unit_test_setup_teardown(name, setup_journal, teardown_journal)
    const struct CMUnitTest tests[] = {
        JOURNAL_TEST(test_keyspace_journal_has_the_bytes_the_header_says),
        JOURNAL_TEST(test_keyspace_journal_keeps_the_number_of_a_key),
        JOURNAL_TEST(test_keyspace_journal_numbers_each_element_of_a_queue),
        JOURNAL_TEST(test_keyspace_journal_never_sees_an_element_handed_to_a_waiter),
        JOURNAL_TEST(test_keyspace_journal_leaves_out_what_is_leased),
        JOURNAL_TEST(test_keyspace_without_a_journal_records_nothing),
        JOURNAL_TEST(test_keyspace_load_restores_values_and_queues_and_goes_on_from_there),
        JOURNAL_TEST(test_keyspace_load_refuses_what_cannot_have_been_recorded),
        JOURNAL_TEST(test_keyspace_load_takes_values_over_the_limit_of_a_request),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
