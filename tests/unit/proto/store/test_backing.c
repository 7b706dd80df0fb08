#include "backing_rig.h"
#include "failheap.h"

/* --- reading ---------------------------------------------------------------------------------- */

static void test_gets_of_one_key_share_a_range(void **state)
{
    struct rig r;
    struct op ops[4];
    struct mu_backing_txn *t;

    (void)state;
    set_up(&r);
    for (size_t i = 0; i < 4; i++) {
        submit(&r, NULL, make_get(&ops[i], i < 3 ? "a" : "b"));
    }
    t = next(&r);
    assert_false(mu_backing_txn_writes(t));
    assert_int_equal(mentions(t, "/p/k/a"), 1);
    assert_int_equal(mentions(t, "/p/k/b"), 1);
    assert_null(mu_backing_next_txn(&r.m));
    r.kvs[0] = (struct mu_etcd_kv){.mod_revision = 7, .value = MU_SPAN_LIT("x")};
    r.results[0] = (struct mu_etcd_result){.kvs = r.kvs, .kv_count = 1, .count = 1};
    r.reply = (struct mu_etcd_reply){
        .succeeded = true, .revision = 100, .results = r.results, .result_count = 2};
    mu_backing_txn_done(&r.m, t, 0, &r.reply, false, NULL);
    for (size_t i = 0; i < 4; i++) {
        assert_done(&r, &ops[i], i < 3 ? 0 : MUSTER_ENOENT);
        if (i < 3) {
            assert_span_text(ops[i].base.reply.values[0], "x");
        }
        drop(&ops[i]);
    }
    tear_down(&r);
}

static void test_a_get_follows_the_set_of_its_client(void **state)
{
    struct rig r;
    struct mu_backing_client c = {0};
    struct op set;
    struct op get;
    struct mu_backing_txn *t;

    (void)state;
    set_up(&r);
    submit(&r, &c, make(&set, MU_STORE_SET, "a", "1"));
    submit(&r, &c, make_get(&get, "a"));
    t = next(&r);
    assert_true(mu_backing_txn_writes(t));
    assert_null(mu_backing_next_txn(&r.m)); /* The get is not sent before the set is done. */
    succeed(&r, t);
    assert_done(&r, &set, 0);
    t = next(&r);
    assert_false(mu_backing_txn_writes(t));
    succeed(&r, t);
    assert_done(&r, &get, MUSTER_ENOENT);
    drop(&set);
    drop(&get);
    tear_down(&r);
}

static void test_a_long_value_that_is_known_is_not_sent_again(void **state)
{
    struct rig r;
    struct op get;
    struct mu_backing_txn *t;
    char value[2000];

    (void)state;
    set_up(&r);
    memset(value, 'v', sizeof(value));
    value[sizeof(value) - 1] = '\0';
    tell_put(&r, "/p/k/a", value, 50);
    submit(&r, NULL, make_get(&get, "a"));
    t = next(&r);
    assert_non_null(
        memmem(mu_backing_txn_body(t).data, mu_backing_txn_body(t).len, "keys_only", 9));
    r.kvs[0] = (struct mu_etcd_kv){.mod_revision = 60};
    r.results[0] = (struct mu_etcd_result){.kvs = r.kvs, .kv_count = 1, .count = 1};
    r.reply = (struct mu_etcd_reply){
        .succeeded = true, .revision = 100, .results = r.results, .result_count = 1};
    mu_backing_txn_done(&r.m, t, 0, &r.reply, false, NULL);
    assert_null(mu_backing_next_done(&r.m)); /* It has changed: now all of it is wanted. */
    t = next(&r);
    assert_null(memmem(mu_backing_txn_body(t).data, mu_backing_txn_body(t).len, "keys_only", 9));
    r.kvs[0].value = MU_SPAN_LIT("new");
    mu_backing_txn_done(&r.m, t, 0, &r.reply, false, NULL);
    assert_done(&r, &get, 0);
    assert_span_text(get.base.reply.values[0], "new");
    drop(&get);
    tear_down(&r);
}

/* --- writing ---------------------------------------------------------------------------------- */

static void test_adds_of_many_clients_are_one_transaction(void **state)
{
    struct rig r;
    struct op ops[64];
    struct mu_backing_txn *t;

    (void)state;
    set_up(&r);
    for (size_t i = 0; i < 64; i++) {
        submit(&r, NULL, make_add(&ops[i], "n", 1));
    }
    t = next(&r);
    assert_int_equal(mentions(t, "64"), 1);
    assert_null(mu_backing_next_txn(&r.m));
    succeed(&r, t);
    for (size_t i = 0; i < 64; i++) {
        assert_done(&r, &ops[i], 0);
        assert_int_equal(ops[i].base.reply.number, i + 1);
        drop(&ops[i]);
    }
    tear_down(&r);
}

static void test_a_conflict_is_decided_anew_from_what_there_is(void **state)
{
    struct rig r;
    struct op add;
    struct op set;
    struct mu_backing_txn *t;
    struct mu_backing_txn *other;

    (void)state;
    set_up(&r);
    submit(&r, NULL, make_add(&add, "n", 5));
    submit(&r, NULL, make(&set, MU_STORE_SET, "other", "x"));
    t = next(&r);
    assert_int_equal(mentions(t, "/p/k/other"), 1);
    refuse(&r, t, 0, "", 90, "37", false);
    assert_null(mu_backing_next_done(&r.m));
    t = next(&r);
    other = next(&r); /* The key that was changed by others does not hold up the rest any more. */
    assert_int_equal(mentions(t, "42") + mentions(other, "42"), 1);
    assert_int_equal(
        mentions(t, "42") == 1 ? mentions(t, "/p/k/other") : mentions(other, "/p/k/other"), 0);
    succeed(&r, t);
    succeed(&r, other);
    assert_int_equal(r.m.stats.conflicts, 1);
    while (mu_backing_next_done(&r.m) != NULL) {
    }
    assert_int_equal(add.base.reply.number, 42);
    drop(&add);
    drop(&set);
    tear_down(&r);
}

static void test_a_write_whose_answer_was_lost_is_settled_by_its_slot(void **state)
{
    struct rig r;
    struct op add;
    struct mu_backing_txn *t;

    (void)state;
    set_up(&r);
    submit(&r, NULL, make_add(&add, "n", 5));
    t = next(&r);
    refuse(&r, t, 95, "w", 95, "5", true);
    assert_done(&r, &add, 0);
    assert_int_equal(add.base.reply.number, 5);
    assert_int_equal(r.m.stats.settled, 1);
    drop(&add);
    tear_down(&r);
}

static void test_a_conflict_in_doubt_is_fenced_before_it_is_decided_anew(void **state)
{
    for (int how = 0; how < 3; how++) {
        struct rig r;
        struct op add;
        struct mu_backing_txn *t;

        (void)state;
        set_up(&r);
        submit(&r, NULL, make_add(&add, "n", 5));
        t = next(&r);
        refuse(&r, t, 0, "", 90, "37", true); /* An earlier try may still be on its way. */
        assert_null(mu_backing_next_done(&r.m));
        t = next(&r);
        assert_int_equal(mentions(t, "/p/k/n"), 0);
        if (how == 0) {
            succeed(&r, t);
        } else if (how == 1) { /* The fence's own answer was lost. */
            refuse(&r, t, 101, "f", 0, "", true);
        } else { /* The earlier try has come first after all. */
            refuse(&r, t, 101, "w", 0, "", true);
        }
        if (how == 2) {
            assert_done(&r, &add, 0);
            assert_int_equal(add.base.reply.number, 5);
        } else {
            assert_null(mu_backing_next_done(&r.m));
            t = next(&r);
            assert_int_equal(mentions(t, "42"), 1);
            succeed(&r, t);
            assert_done(&r, &add, 0);
            assert_int_equal(add.base.reply.number, 42);
        }
        drop(&add);
        tear_down(&r);
    }
}

/* Without guards it does not ask what its slot holds, until it fails. */
static void test_a_set_asks_for_its_slot_only_when_it_failed(void **state)
{
    struct rig r;
    struct op set;
    struct mu_backing_txn *t;

    (void)state;
    set_up(&r);
    submit(&r, NULL, make(&set, MU_STORE_SET, "a", "x"));
    t = next(&r);
    assert_null(memmem(mu_backing_txn_body(t).data, mu_backing_txn_body(t).len, "range", 5));
    /* No answers at all are read as one that is empty. */
    r.reply = (struct mu_etcd_reply){.revision = 100, .results = r.results, .result_count = 1};
    mu_backing_txn_done(&r.m, t, 0, &r.reply, true, NULL);
    assert_null(mu_backing_next_done(&r.m));
    assert_ptr_equal(next(&r), t);
    assert_non_null(memmem(mu_backing_txn_body(t).data, mu_backing_txn_body(t).len, "range", 5));
    assert_int_equal(mentions(t, "/p/k/a"), 1);
    refuse(&r, t, 95, "w", 0, "", true);
    assert_done(&r, &set, 0);
    assert_int_equal(r.m.stats.settled, 1);
    assert_null(mu_backing_next_txn(&r.m));
    drop(&set);
    tear_down(&r);
}

static void test_two_transactions_never_write_one_key(void **state)
{
    struct rig r;
    struct op first;
    struct op second;
    struct op third;
    struct mu_backing_txn *t;
    struct mu_backing_txn *u;

    (void)state;
    set_up(&r);
    submit(&r, NULL, make(&first, MU_STORE_SET, "a", "1"));
    t = next(&r);
    submit(&r, NULL, make(&second, MU_STORE_SET, "a", "2"));
    assert_null(mu_backing_next_txn(&r.m));
    submit(&r, NULL, make(&third, MU_STORE_SET, "b", "3"));
    u = next(&r);
    assert_int_equal(mentions(u, "/p/k/a"), 0);
    succeed(&r, t);
    assert_done(&r, &first, 0);
    t = next(&r);
    assert_int_equal(mentions(t, "/p/k/a"), 1);
    succeed(&r, u);
    assert_done(&r, &third, 0);
    succeed(&r, t);
    assert_done(&r, &second, 0);
    drop(&first);
    drop(&second);
    drop(&third);
    tear_down(&r);
}

static void test_a_compare_that_fails_writes_nothing(void **state)
{
    struct rig r;
    struct op cas;
    struct mu_backing_txn *t;

    (void)state;
    set_up(&r);
    tell_put(&r, "/p/k/a", "is", 50);
    make(&cas, MU_STORE_COMPARE_SET, "a", "was");
    cas.values[1] = MU_SPAN_LIT("will");
    cas.base.request.value_count = 2;
    submit(&r, NULL, &cas);
    t = next(&r);
    assert_int_equal(mentions(t, "will"), 0);
    succeed(&r, t);
    assert_done(&r, &cas, 0);
    assert_int_equal(cas.base.reply.number, 0);
    assert_span_text(cas.base.reply.values[0], "is");
    drop(&cas);
    tear_down(&r);
}

static void test_a_lost_session_is_no_harm_unless_in_doubt(void **state)
{
    for (int doubt = 0; doubt < 2; doubt++) {
        struct rig r;
        struct op add;
        struct mu_backing_txn *t;

        (void)state;
        set_up(&r);
        submit(&r, NULL, make_add(&add, "n", 1));
        t = next(&r);
        mu_backing_txn_done(&r.m, t, MUSTER_ENOENT, NULL, doubt == 1, "no such lease");
        assert_int_equal(r.m.session, 0);
        if (doubt == 1) {
            assert_done(&r, &add, MUSTER_ESESSION);
            assert_true(add.base.unknown);
        } else {
            assert_null(mu_backing_next_txn(&r.m));
            mu_backing_set_session(&r.m, LEASE + 1);
            t = next(&r);
            assert_int_equal(mentions(t, "/p/s/0000000000000078/1"), 3);
            succeed(&r, t);
            assert_done(&r, &add, 0);
        }
        drop(&add);
        tear_down(&r);
    }
}

static void test_what_is_too_large_together_goes_alone(void **state)
{
    struct rig r;
    struct op ops[2];
    struct mu_backing_txn *t;

    (void)state;
    set_up(&r);
    submit(&r, NULL, make(&ops[0], MU_STORE_SET, "a", "1"));
    submit(&r, NULL, make(&ops[1], MU_STORE_SET, "b", "2"));
    t = next(&r);
    mu_backing_txn_done(&r.m, t, MUSTER_ELIMIT, NULL, false, "too large");
    t = next(&r);
    assert_int_equal(mentions(t, "/p/k/a") + mentions(t, "/p/k/b"), 1);
    mu_backing_txn_done(&r.m, t, MUSTER_ELIMIT, NULL, false, "too large");
    assert_done(&r, &ops[0], MUSTER_ELIMIT);
    t = next(&r);
    succeed(&r, t);
    assert_done(&r, &ops[1], 0);
    drop(&ops[0]);
    drop(&ops[1]);
    tear_down(&r);
}

static void test_a_multi_set_of_many_keys_goes_in_parts(void **state)
{
    static struct mu_span keys[150];
    static struct mu_span values[150];
    static char names[150][8];
    struct rig r;
    struct op set;

    (void)state;
    set_up(&r);
    make(&set, MU_STORE_MULTI_SET, "", NULL);
    for (size_t i = 0; i < 150; i++) {
        (void)snprintf(names[i], sizeof(names[i]), "%zu", i);
        keys[i] = values[i] = mu_span_str(names[i]);
    }
    set.base.request.keys = keys;
    set.base.request.values = values;
    set.base.request.key_count = set.base.request.value_count = 150;
    submit(&r, NULL, &set);
    succeed(&r, next(&r));
    assert_null(mu_backing_next_done(&r.m));
    succeed(&r, next(&r));
    assert_done(&r, &set, 0);
    drop(&set);
    tear_down(&r);
}

/* --- waiting ---------------------------------------------------------------------------------- */

static void test_a_wait_ends_with_a_later_put_only(void **state)
{
    struct rig r;
    struct mu_backing_client c = {0};
    struct op wait;
    struct op get;

    (void)state;
    set_up(&r);
    submit(&r, &c, make(&wait, MU_STORE_WAIT, "a", NULL));
    succeed(&r, next(&r)); /* Not there at revision 100. */
    assert_null(mu_backing_next_done(&r.m));
    submit(&r, &c, make_get(&get, "b"));
    succeed(&r, next(&r)); /* It lets others pass. */
    assert_done(&r, &get, MUSTER_ENOENT);
    tell_put(&r, "/p/k/a", "old", 99);
    assert_null(mu_backing_next_done(&r.m));
    tell_put(&r, "/p/k/a", "new", 101);
    assert_done(&r, &wait, 0);
    drop(&wait);
    drop(&get);
    tear_down(&r);
}

static void test_the_watch_may_be_ahead_of_the_answer(void **state)
{
    struct rig r;
    struct op wait;
    struct mu_backing_txn *t;

    (void)state;
    set_up(&r);
    submit(&r, NULL, make(&wait, MU_STORE_WAIT, "a", NULL));
    t = next(&r);
    tell_put(&r, "/p/k/a", "new", 101);
    succeed(&r, t); /* As of 100 it was not there. */
    assert_done(&r, &wait, 0);
    drop(&wait);
    tear_down(&r);
}

/* Who falls asleep without a watch may have missed what it waits for before there is one. */
static void test_who_sleeps_without_a_watch_is_asked_for_again_when_it_stands(void **state)
{
    struct rig r;
    struct mu_backing_client c = {0};
    struct op waits[2];
    struct op get;

    (void)state;
    set_up(&r);
    mu_backing_set_watching(&r.m, false);
    submit(&r, &c, make(&waits[0], MU_STORE_WAIT, "a", NULL));
    succeed(&r, next(&r));
    submit(&r, &c, make(&waits[1], MU_STORE_WAIT, "b", NULL));
    succeed(&r, next(&r));
    submit(&r, NULL, make(&get, MU_STORE_GET, "c", NULL));
    succeed(&r, next(&r));
    mu_backing_forget(&r.m);
    tell_put(&r, "/p/k/b", "new", 101); /* What the watch begins with ends some of them. */
    assert_done(&r, &waits[1], 0);
    mu_backing_set_watching(&r.m, true);
    r.revision = 103; /* "a" was there at 102, for an instant. */
    succeed(&r, next(&r));
    assert_null(mu_backing_next_done(&r.m));
    assert_null(mu_backing_next_txn(&r.m));
    tell_put(&r, "/p/k/a", "new", 103);
    assert_null(mu_backing_next_done(&r.m));
    tell_put(&r, "/p/k/a", "new", 104);
    assert_done(&r, &waits[0], 0);
    tell_put(&r, "/p/k/c", "new", 105);
    assert_true(mu_backing_cancel(&r.m, &get.base));
    drop(&waits[0]);
    drop(&waits[1]);
    drop(&get);
    tear_down(&r);
}

static void test_a_barrier_whose_key_is_gone_when_the_watch_stands_is_over(void **state)
{
    for (int gone = 0; gone < 2; gone++) {
        struct rig r;
        struct op barrier;

        (void)state;
        set_up(&r);
        mu_backing_set_watching(&r.m, false);
        make(&barrier, MU_STORE_BARRIER, "n", NULL);
        barrier.base.request.number = 2;
        submit(&r, NULL, &barrier);
        succeed(&r, next(&r));
        assert_null(mu_backing_next_done(&r.m));
        mu_backing_forget(&r.m);
        if (gone == 0) {
            tell_put(&r, "/p/k/n", "1", r.revision);
        }
        mu_backing_set_watching(&r.m, true);
        if (gone == 0) {
            assert_null(mu_backing_next_done(&r.m));
            tell_put(&r, "/p/k/n", "2", ++r.revision);
        }
        assert_done(&r, &barrier, 0);
        drop(&barrier);
        tear_down(&r);
    }
}

/* What a watcher's own client does behind it must be told. */
static void test_nothing_is_sent_behind_a_watcher_until_the_watch_stands(void **state)
{
    struct rig r;
    struct op watch;
    struct op set;

    (void)state;
    set_up(&r);
    mu_backing_set_watching(&r.m, false);
    submit(&r, NULL, make(&watch, MU_STORE_WATCH, "a", NULL));
    submit(&r, NULL, make(&set, MU_STORE_SET, "a", "x"));
    assert_null(mu_backing_next_txn(&r.m));
    mu_backing_set_watching(&r.m, true);
    succeed(&r, next(&r));
    assert_done(&r, &set, 0);
    assert_true(mu_backing_cancel(&r.m, &watch.base));
    drop(&watch);
    drop(&set);
    tear_down(&r);
}

/* The answer to a write of ours may overtake what the watch tells of it. */
static void test_a_change_says_what_it_replaced_whichever_is_told_first(void **state)
{
    for (int answer_first = 0; answer_first < 2; answer_first++) {
        struct rig r;
        struct op watch;
        struct op set;
        struct mu_backing_op *who;
        struct mu_backing_txn *t;
        struct mu_change change;

        (void)state;
        set_up(&r);
        tell_put(&r, "/p/k/a", "one", r.revision);
        submit(&r, NULL, make(&watch, MU_STORE_WATCH, "a", NULL));
        submit(&r, NULL, make(&set, MU_STORE_SET, "a", "two"));
        t = next(&r);
        if (answer_first == 1) {
            succeed(&r, t);
        }
        tell_put(&r, "/p/k/a", "two", r.revision + (answer_first == 1 ? 0 : 1));
        assert_true(mu_backing_next_watcher(&r.m, &who, &change));
        assert_ptr_equal(who, &watch.base);
        assert_int_equal(change.old_value.len, 3);
        assert_memory_equal(change.old_value.data, "one", 3);
        if (answer_first == 0) {
            succeed(&r, t);
        }
        assert_done(&r, &set, 0);
        assert_true(mu_backing_cancel(&r.m, &watch.base));
        drop(&watch);
        drop(&set);
        tear_down(&r);
    }
}

static void test_without_a_watch_the_mirror_does_not_grow_for_ever(void **state)
{
    struct rig r;
    struct op set;
    char key[16];

    (void)state;
    set_up(&r);
    r.m.config.loose_keys_max = 10;
    for (int watching = 1; watching >= 0; watching--) {
        mu_backing_set_watching(&r.m, watching != 0);
        for (int i = 0; i < 50; i++) {
            (void)snprintf(key, sizeof(key), "%d.%d", watching, i);
            submit(&r, NULL, make(&set, MU_STORE_SET, key, "four"));
            succeed(&r, next(&r));
            assert_done(&r, &set, 0);
            drop(&set);
        }
        assert_int_equal(r.m.keys.count > 11, watching);
        assert_int_equal(r.m.value_bytes, 4 * r.m.keys.count);
    }
    r.m.config.loose_keys_max = 1000;
    r.m.config.loose_bytes_max = 9;
    assert_null(mu_backing_next_txn(&r.m));
    assert_int_equal(r.m.keys.count, 0);
    assert_int_equal(r.m.value_bytes, 0);
    tear_down(&r);
}

static void test_pops_of_one_queue_follow_each_other(void **state)
{
    struct rig r;
    struct op pops[3];
    struct mu_backing_txn *t;

    (void)state;
    set_up(&r);
    tell_put(&r, "/p/q/00000001/q/1", "one", 50);
    tell_put(&r, "/p/q/00000001/q/2", "two", 51);
    submit(&r, NULL, make(&pops[0], MU_STORE_QUEUE_POP, "q", NULL));
    t = next(&r);
    assert_int_equal(mentions(t, "/p/q/00000001/q/1"), 3);
    submit(&r, NULL, make(&pops[1], MU_STORE_QUEUE_POP, "q", NULL));
    assert_null(mu_backing_next_txn(&r.m));
    succeed(&r, t);
    assert_done(&r, &pops[0], 0);
    assert_span_text(pops[0].base.reply.values[0], "one");
    succeed(&r, next(&r));
    assert_done(&r, &pops[1], 0);
    assert_span_text(pops[1].base.reply.values[0], "two");
    submit(&r, NULL, make(&pops[2], MU_STORE_QUEUE_POP, "q", NULL));
    succeed(&r, next(&r)); /* Empty, says etcd: it sleeps. */
    assert_null(mu_backing_next_done(&r.m));
    tell_put(&r, "/p/q/00000001/q/3", "three", 120);
    succeed(&r, next(&r));
    assert_done(&r, &pops[2], 0);
    assert_span_text(pops[2].base.reply.values[0], "three");
    for (size_t i = 0; i < 3; i++) {
        drop(&pops[i]);
    }
    tear_down(&r);
}

static void test_a_cancelled_operation_is_given_back(void **state)
{
    struct rig r;
    struct op queued;
    struct op flying;
    struct op asleep;
    struct mu_backing_txn *t;

    (void)state;
    set_up(&r);
    submit(&r, NULL, make(&asleep, MU_STORE_WAIT, "a", NULL));
    succeed(&r, next(&r));
    submit(&r, NULL, make_add(&flying, "n", 1));
    t = next(&r);
    submit(&r, NULL, make_add(&queued, "n", 1));
    assert_true(mu_backing_cancel(&r.m, &queued.base));
    assert_true(mu_backing_cancel(&r.m, &asleep.base));
    assert_false(mu_backing_cancel(&r.m, &flying.base));
    succeed(&r, t);
    assert_done(&r, &flying, MUSTER_ECANCELED);
    drop(&queued);
    drop(&flying);
    drop(&asleep);
    tear_down(&r);
}

/* --- memory ----------------------------------------------------------------------------------- */

static void run_some(struct rig *r, struct op *ops, size_t count)
{
    struct mu_backing_txn *t;

    for (size_t i = 0; i < count; i++) {
        static const enum mu_store_verb verbs[] = {MU_STORE_SET,    MU_STORE_ADD,
                                                   MU_STORE_GET,    MU_STORE_QUEUE_PUSH,
                                                   MU_STORE_APPEND, MU_STORE_WAIT};
        enum mu_store_verb verb = verbs[i % 6];
        bool has_value =
            verb == MU_STORE_SET || verb == MU_STORE_QUEUE_PUSH || verb == MU_STORE_APPEND;

        submit(r, NULL, make(&ops[i], verb, i % 2 == 0 ? "a" : "b", has_value ? "7" : NULL));
    }
    for (int i = 0; i < 8 && (t = mu_backing_next_txn(&r->m)) != NULL; i++) {
        succeed(r, t);
    }
    {
        struct mu_etcd_kv kv = {
            .key = MU_SPAN_LIT("/p/k/a"), .value = MU_SPAN_LIT("v"), .mod_revision = 500};

        (void)mu_backing_changed(&r->m, &kv, false, true, false, 500);
        kv.key = MU_SPAN_LIT("/p/q/00000001/b/1");
        kv.create_revision = 501;
        (void)mu_backing_changed(&r->m, &kv, false, true, false, 501);
    }
}

static void test_it_bears_a_want_of_memory(void **state)
{
    bool fired = true;

    (void)state;
    for (long nth = 0; fired; nth++) {
        struct rig r;
        struct op ops[12];

        set_up(&r);
        failheap_arm(nth);
        run_some(&r, ops, 12);
        fired = failheap_fired();
        failheap_disarm();
        stop_all(&r, ops, 12);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gets_of_one_key_share_a_range),
        cmocka_unit_test(test_a_get_follows_the_set_of_its_client),
        cmocka_unit_test(test_a_long_value_that_is_known_is_not_sent_again),
        cmocka_unit_test(test_adds_of_many_clients_are_one_transaction),
        cmocka_unit_test(test_a_conflict_is_decided_anew_from_what_there_is),
        cmocka_unit_test(test_a_write_whose_answer_was_lost_is_settled_by_its_slot),
        cmocka_unit_test(test_a_conflict_in_doubt_is_fenced_before_it_is_decided_anew),
        cmocka_unit_test(test_a_set_asks_for_its_slot_only_when_it_failed),
        cmocka_unit_test(test_two_transactions_never_write_one_key),
        cmocka_unit_test(test_a_compare_that_fails_writes_nothing),
        cmocka_unit_test(test_a_lost_session_is_no_harm_unless_in_doubt),
        cmocka_unit_test(test_what_is_too_large_together_goes_alone),
        cmocka_unit_test(test_a_multi_set_of_many_keys_goes_in_parts),
        cmocka_unit_test(test_a_wait_ends_with_a_later_put_only),
        cmocka_unit_test(test_the_watch_may_be_ahead_of_the_answer),
        cmocka_unit_test(test_who_sleeps_without_a_watch_is_asked_for_again_when_it_stands),
        cmocka_unit_test(test_a_barrier_whose_key_is_gone_when_the_watch_stands_is_over),
        cmocka_unit_test(test_nothing_is_sent_behind_a_watcher_until_the_watch_stands),
        cmocka_unit_test(test_a_change_says_what_it_replaced_whichever_is_told_first),
        cmocka_unit_test(test_without_a_watch_the_mirror_does_not_grow_for_ever),
        cmocka_unit_test(test_pops_of_one_queue_follow_each_other),
        cmocka_unit_test(test_a_cancelled_operation_is_given_back),
        cmocka_unit_test(test_it_bears_a_want_of_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
