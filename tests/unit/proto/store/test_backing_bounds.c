/* The limits of a store over etcd: what one transaction carries, and how many are under way. */
#include "backing_rig.h"

static bool says(const struct mu_backing_txn *t, const char *text)
{
    struct mu_span body = mu_backing_txn_body(t);

    return memmem(body.data, body.len, text, strlen(text)) != NULL;
}

static void test_so_many_writes_are_under_way_and_no_more(void **state)
{
    static const char *const keys[] = {"a", "b", "c", "d"};
    struct mu_backing_txn *sent[2];
    struct op ops[4];
    struct rig r;

    (void)state;
    set_up(&r);
    assert_int_equal(r.m.config.writes_max, sizeof(sent) / sizeof(sent[0]));
    for (size_t i = 0; i < sizeof(sent) / sizeof(sent[0]); i++) {
        submit(&r, NULL, make(&ops[i], MU_STORE_SET, keys[i], "x"));
        sent[i] = next(&r);
    }
    submit(&r, NULL, make(&ops[2], MU_STORE_SET, keys[2], "x"));
    submit(&r, NULL, make(&ops[3], MU_STORE_SET, keys[3], "x"));
    assert_null(mu_backing_next_txn(&r.m));
    succeed(&r, sent[1]);
    assert_done(&r, &ops[1], 0);
    sent[1] = next(&r); /* What has waited goes together. */
    assert_int_equal(mentions(sent[1], "/p/k/c"), 1);
    assert_int_equal(mentions(sent[1], "/p/k/d"), 1);
    succeed(&r, sent[0]);
    succeed(&r, sent[1]);
    assert_done(&r, &ops[0], 0);
    assert_done(&r, &ops[2], 0);
    assert_done(&r, &ops[3], 0);
    for (size_t i = 0; i < 4; i++) {
        drop(&ops[i]);
    }
    tear_down(&r);
}

static void test_so_many_reads_are_under_way_and_no_more(void **state)
{
    static const char *const keys[] = {"a", "b", "c"};
    struct mu_backing_txn *sent[2];
    struct op ops[3];
    struct rig r;

    (void)state;
    set_up(&r);
    assert_int_equal(r.m.config.reads_max, sizeof(sent) / sizeof(sent[0]));
    for (size_t i = 0; i < sizeof(sent) / sizeof(sent[0]); i++) {
        submit(&r, NULL, make_get(&ops[i], keys[i]));
        sent[i] = next(&r);
    }
    submit(&r, NULL, make_get(&ops[2], keys[2]));
    assert_null(mu_backing_next_txn(&r.m));
    succeed(&r, sent[0]);
    sent[0] = next(&r);
    assert_int_equal(mentions(sent[0], "/p/k/c"), 1);
    succeed(&r, sent[1]);
    succeed(&r, sent[0]);
    for (size_t i = 0; i < 3; i++) {
        assert_done(&r, &ops[i], MUSTER_ENOENT);
        drop(&ops[i]);
    }
    tear_down(&r);
}

static void test_a_transaction_carries_so_many_bytes_of_values(void **state)
{
    static const char *const values[] = {"12345", "67890", "x", "longer than the limit", "y"};
    static const char *const keys[] = {"a", "b", "c", "d", "e"};
    static const char *const sent[] = {"ab", "c", "d", "e"};
    struct op ops[5];
    struct rig r;

    (void)state;
    set_up(&r);
    r.m.config.txn_bytes_max = 10;
    for (size_t i = 0; i < 5; i++) {
        submit(&r, NULL, make(&ops[i], MU_STORE_SET, keys[i], values[i]));
    }
    for (size_t i = 0; i < sizeof(sent) / sizeof(sent[0]);
         i++) { /* A value that is longer goes alone. */
        struct mu_backing_txn *t = next(&r);

        for (size_t k = 0; k < 5; k++) {
            char name[] = "/p/k/?";

            name[5] = keys[k][0];
            assert_int_equal(mentions(t, name), strchr(sent[i], keys[k][0]) != NULL);
        }
        succeed(&r, t);
    }
    for (size_t i = 0; i < 5; i++) {
        assert_done(&r, &ops[i], 0);
        drop(&ops[i]);
    }
    tear_down(&r);
}

static void test_a_multi_set_of_many_bytes_goes_in_parts(void **state)
{
    struct mu_span keys[] = {MU_SPAN_LIT("a"), MU_SPAN_LIT("b"), MU_SPAN_LIT("c")};
    struct mu_span values[] = {MU_SPAN_LIT("12345"), MU_SPAN_LIT("67890"), MU_SPAN_LIT("x")};
    struct mu_backing_txn *t;
    struct op set;
    struct rig r;

    (void)state;
    set_up(&r);
    r.m.config.txn_bytes_max = 10;
    make(&set, MU_STORE_MULTI_SET, "", NULL);
    set.base.request.keys = keys;
    set.base.request.values = values;
    set.base.request.key_count = set.base.request.value_count = 3;
    submit(&r, NULL, &set);
    t = next(&r);
    assert_int_equal(mentions(t, "/p/k/b"), 1);
    assert_int_equal(mentions(t, "/p/k/c"), 0);
    succeed(&r, t);
    assert_null(mu_backing_next_done(&r.m));
    t = next(&r);
    assert_int_equal(mentions(t, "/p/k/b"), 0);
    assert_int_equal(mentions(t, "/p/k/c"), 1);
    succeed(&r, t);
    assert_done(&r, &set, 0);
    drop(&set);
    tear_down(&r);
}

/* A known value of this length is asked for by its revision only; a shorter one is read again. */
static void test_a_value_counts_as_long_from_its_bound_on(void **state)
{
    for (size_t shorter = 0; shorter < 2; shorter++) {
        struct mu_backing_txn *t;
        char value[1024] = {0};
        struct op get;
        struct rig r;

        (void)state;
        set_up(&r);
        assert_true(r.m.config.cached_bytes_min < sizeof(value));
        memset(value, 'v', r.m.config.cached_bytes_min - shorter);
        tell_put(&r, "/p/k/a", value, 50);
        submit(&r, NULL, make_get(&get, "a"));
        t = next(&r);
        assert_int_equal(says(t, "keys_only"), shorter == 0);
        r.kvs[0] = (struct mu_etcd_kv){.mod_revision = 50, .value = mu_span_str(value)};
        r.results[0] = (struct mu_etcd_result){.kvs = r.kvs, .kv_count = 1, .count = 1};
        r.reply = (struct mu_etcd_reply){
            .succeeded = true, .revision = 100, .results = r.results, .result_count = 1};
        mu_backing_txn_done(&r.m, t, 0, &r.reply, false, NULL);
        assert_done(&r, &get, 0);
        assert_span_text(get.base.reply.values[0], value);
        drop(&get);
        tear_down(&r);
    }
}

/* How many reads go round the gaps that others make with each write, until a mark is written. */
static uint32_t read_until_a_mark(struct rig *r)
{
    uint64_t marks = r->m.stats.marks;
    uint32_t reads = 0;

    for (int tries = 0; r->m.stats.marks == marks; tries++) {
        struct mu_backing_txn *t;
        struct op get;

        assert_true(tries < 10000);
        r->revision++;
        submit(r, NULL, make_get(&get, "b"));
        while ((t = mu_backing_next_txn(&r->m)) != NULL) {
            reads += r->m.gap != 0 && mentions(t, "/p/k/b") != 0;
            succeed(r, t);
            if (r->m.stats.marks != marks) {
                tell_put(r, "/p/m/0000000000000077", "", r->revision);
                mu_backing_told(&r->m, r->revision);
            }
        }
        assert_done(r, &get, MUSTER_ENOENT);
        drop(&get);
    }
    return reads;
}

static void test_marks_that_do_not_help_become_rare_up_to_a_bound(void **state)
{
    struct rig r;

    (void)state;
    set_up(&r);
    mu_backing_set_watching(&r.m, false);
    mu_backing_begin_watch(&r.m);
    mu_backing_told(&r.m, 100);
    mu_backing_set_watching(&r.m, true);
    for (uint32_t reads = MU_BACKING_GAP_READS; reads <= 4096; reads *= 2) {
        assert_int_equal(r.m.gap_reads_max, reads);
        assert_int_equal(read_until_a_mark(&r), reads);
    }
    assert_int_equal(r.m.gap_reads_max, 4096);
    assert_int_equal(read_until_a_mark(&r), 4096);
    tear_down(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_so_many_writes_are_under_way_and_no_more),
        cmocka_unit_test(test_so_many_reads_are_under_way_and_no_more),
        cmocka_unit_test(test_a_transaction_carries_so_many_bytes_of_values),
        cmocka_unit_test(test_a_multi_set_of_many_bytes_goes_in_parts),
        cmocka_unit_test(test_a_value_counts_as_long_from_its_bound_on),
        cmocka_unit_test(test_marks_that_do_not_help_become_rare_up_to_a_bound),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
