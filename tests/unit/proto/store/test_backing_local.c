/* Reads that the mirror answers, and when it may. */
#include "backing_rig.h"
#include "failheap.h"

/* A watch that stands, and has told of "a" and all else up to revision 100. */
static void set_up_watched(struct rig *r, bool cached)
{
    set_up(r);
    r->m.config.cached = cached;
    mu_backing_set_watching(&r->m, false);
    mu_backing_begin_watch(&r->m);
    tell_put(r, "/p/k/a", "old", 90);
    mu_backing_told(&r->m, 100);
    mu_backing_set_watching(&r->m, true);
}

static bool is_probe(const struct mu_backing_txn *t)
{
    return strcmp(mu_backing_txn_path(t), "/v3/kv/range") == 0;
}

static void tell_delete(struct rig *r, const char *name, int64_t revision)
{
    struct mu_etcd_kv kv = {.key = mu_span_str(name), .mod_revision = revision};

    assert_int_equal(mu_backing_changed(&r->m, &kv, true, false, false, revision), 0);
}

/* A write that etcd takes at the next revision. */
static void write_one(struct rig *r, enum mu_store_verb verb, const char *key, const char *value)
{
    struct op op;

    submit(r, NULL, make(&op, verb, key, value));
    succeed(r, next(r));
    assert_done(r, &op, 0);
    drop(&op);
}

static void assert_get(struct rig *r, struct op *get, const char *value)
{
    assert_done(r, get, value == NULL ? MUSTER_ENOENT : 0);
    if (value != NULL) {
        assert_span_text(get->base.reply.values[0], value);
    }
    drop(get);
}

static void test_gets_of_many_keys_ask_for_one_revision(void **state)
{
    struct rig r;
    struct op ops[64];
    char keys[64][8];
    struct mu_backing_txn *t;

    (void)state;
    set_up_watched(&r, false);
    for (size_t i = 0; i < 64; i++) {
        (void)snprintf(keys[i], sizeof(keys[i]), "%zu", i);
        submit(&r, NULL, make_get(&ops[i], i == 63 ? "a" : keys[i]));
    }
    t = next(&r);
    assert_true(is_probe(t));
    assert_true(mu_backing_txn_body(t).len < 100);
    assert_null(mu_backing_next_txn(&r.m));
    assert_null(mu_backing_next_done(&r.m));
    succeed(&r, t);
    for (size_t i = 0; i < 64; i++) {
        assert_get(&r, &ops[i], i == 63 ? "old" : NULL);
    }
    assert_int_equal(r.m.stats.local_ops, 64);
    tear_down(&r);
}

static void test_a_get_waits_until_the_watch_has_reached_the_revision(void **state)
{
    struct rig r;
    struct op get;
    struct op other;

    (void)state;
    set_up_watched(&r, false);
    write_one(&r, MU_STORE_SET, "b", "new"); /* At 101: the watch will tell of it. */
    submit(&r, NULL, make_get(&get, "a"));
    succeed(&r, next(&r));
    assert_null(mu_backing_next_done(&r.m));
    assert_true(mu_backing_holds(&r.m));
    submit(&r, NULL, make_get(&other, "b"));
    succeed(&r, next(&r));
    assert_null(mu_backing_next_done(&r.m));
    tell_put(&r, "/p/k/b", "new", 101);
    assert_null(mu_backing_next_done(&r.m)); /* There may be more of that transaction. */
    mu_backing_told(&r.m, 101);
    assert_get(&r, &get, "old");
    assert_get(&r, &other, "new");
    assert_false(mu_backing_holds(&r.m));
    tear_down(&r);
}

/* Somebody writes keys of his own: the revisions of those no watch of ours tells. */
static void test_a_revision_of_others_is_gone_round_and_then_got_past(void **state)
{
    struct rig r;
    struct op get;
    struct mu_backing_txn *t;

    (void)state;
    set_up_watched(&r, false);
    r.revision = 200;
    submit(&r, NULL, make_get(&get, "b"));
    t = next(&r);
    assert_true(is_probe(t));
    succeed(&r, t);
    assert_null(mu_backing_next_done(&r.m));
    for (int i = 0; i < MU_BACKING_GAP_READS; i++) {
        t = next(&r);
        assert_false(is_probe(t));
        assert_int_equal(mentions(t, "/p/k/b"), 1);
        succeed(&r, t);
        assert_get(&r, &get, NULL);
        submit(&r, NULL, make_get(&get, "b"));
    }
    t = next(&r); /* The mark. */
    assert_int_equal(mentions(t, "/p/m/0000000000000077"), 1);
    assert_int_equal(r.m.stats.marks, 1);
    succeed(&r, t);
    succeed(&r, next(&r));
    assert_get(&r, &get, NULL);
    tell_put(&r, "/p/m/0000000000000077", "", 201);
    mu_backing_told(&r.m, 201);
    for (int i = 0;; i++) { /* For a while it is wary. */
        submit(&r, NULL, make_get(&get, "b"));
        t = next(&r);
        if (is_probe(t)) {
            break;
        }
        assert_true(i < 16);
        succeed(&r, t);
        assert_get(&r, &get, NULL);
    }
    succeed(&r, t);
    assert_get(&r, &get, NULL);
    tear_down(&r);
}

static void test_reads_that_are_held_ask_etcd_when_the_watch_fails_them(void **state)
{
    for (int ended = 0; ended < 2; ended++) {
        struct rig r;
        struct mu_backing_client c = {0};
        struct op gets[2];
        struct op set;
        struct mu_backing_txn *t;

        (void)state;
        set_up_watched(&r, false);
        write_one(&r, MU_STORE_SET, "b", "new");
        submit(&r, &c, make_get(&gets[0], "x"));
        submit(&r, &c, make_get(&gets[1], "y"));
        submit(&r, &c, make(&set, MU_STORE_SET, "z", "1"));
        succeed(&r, next(&r));
        assert_null(mu_backing_next_txn(&r.m)); /* The set is behind them. */
        if (ended == 1) {
            mu_backing_set_watching(&r.m, false);
            mu_backing_forget(&r.m);
        } else {
            mu_backing_unhold(&r.m);
        }
        t = next(&r);
        assert_int_equal(mentions(t, "/p/k/x") + mentions(t, "/p/k/y"), 2);
        succeed(&r, t);
        assert_get(&r, &gets[0], NULL);
        assert_get(&r, &gets[1], NULL);
        succeed(&r, next(&r));
        assert_done(&r, &set, 0);
        drop(&set);
        tear_down(&r);
    }
}

static void test_cached_reads_ask_nobody_and_see_what_was_answered(void **state)
{
    struct rig r;
    struct op get;
    struct op check;

    (void)state;
    set_up_watched(&r, true);
    submit(&r, NULL, make_get(&get, "a"));
    submit(&r, NULL, make(&check, MU_STORE_CHECK, "b", NULL));
    assert_null(mu_backing_next_txn(&r.m));
    assert_get(&r, &get, "old");
    assert_done(&r, &check, 0);
    assert_int_equal(check.base.reply.number, 0);
    drop(&check);
    write_one(&r, MU_STORE_SET, "b", "new");
    submit(&r, NULL, make_get(&get, "a")); /* That may have changed before "b" did. */
    assert_null(mu_backing_next_txn(&r.m));
    assert_null(mu_backing_next_done(&r.m));
    tell_put(&r, "/p/k/b", "new", 101);
    mu_backing_told(&r.m, 101);
    assert_get(&r, &get, "old");
    tear_down(&r);
}

/* etcd's answer to a question for one key of somebody else's, before the watch stands. */
static void say_there(struct rig *r, bool value, bool element)
{
    struct mu_backing_txn *t = next(r);
    struct mu_span body = mu_backing_txn_body(t);

    /* Of a key it is to be said when it was written. */
    assert_int_equal(memmem(body.data, body.len, "count_only", 10) != NULL, element);
    memset(r->results, 0, sizeof(r->results));
    r->kvs[0] = (struct mu_etcd_kv){.mod_revision = r->revision};
    if (value) {
        r->results[0] = (struct mu_etcd_result){.kvs = &r->kvs[0], .kv_count = 1, .count = 1};
    }
    r->results[1].count = element ? 1 : 0;
    r->reply = (struct mu_etcd_reply){
        .succeeded = true, .revision = r->revision, .results = r->results, .result_count = 2};
    mu_backing_txn_done(&r->m, t, 0, &r->reply, false, NULL);
}

/* As PyTorch's clients read: they wait, and then get. */
static void test_what_was_said_to_be_there_is_there_for_cached_reads(void **state)
{
    struct rig r;
    struct op wait;
    struct op read;

    (void)state;
    for (int i = 0; i < 2; i++) {
        set_up(&r);
        r.m.config.cached = true;
        mu_backing_set_watching(&r.m, false);
        mu_backing_begin_watch(&r.m);
        r.revision = 101; /* At which somebody has written it. */
        make(&wait, MU_STORE_WAIT, "b", NULL);
        wait.base.request.flags = i == 0 ? MU_BACKING_NO_QUEUES : 0;
        submit(&r, NULL, &wait);
        say_there(&r, i == 0, i == 1);
        assert_done(&r, &wait, 0);
        drop(&wait);
        mu_backing_told(&r.m, 100);
        mu_backing_set_watching(&r.m, true);

        submit(&r, NULL,
               i == 0 ? make_get(&read, "b") : make(&read, MU_STORE_QUEUE_LEN, "b", NULL));
        assert_null(mu_backing_next_done(&r.m));
        if (i == 0) {
            assert_null(mu_backing_next_txn(&r.m));
            tell_put(&r, "/p/k/b", "new", 101);
            mu_backing_told(&r.m, 101);
            assert_get(&r, &read, "new");
        } else {
            say_there(&r, true, true); /* etcd is asked: the watch may never come to 101. */
            assert_done(&r, &read, 0);
            drop(&read);
        }
        tear_down(&r);
    }
}

/* The watch tells of a put by somebody else that our delete came behind. */
static void test_what_we_deleted_does_not_come_back(void **state)
{
    struct rig r;
    struct op get;

    (void)state;
    set_up_watched(&r, true);
    r.revision = 101;
    write_one(&r, MU_STORE_DELETE, "a", NULL); /* At 102. */
    tell_put(&r, "/p/k/a", "newer", 101);
    mu_backing_told(&r.m, 101);
    submit(&r, NULL, make_get(&get, "a"));
    assert_null(mu_backing_next_txn(&r.m));
    assert_null(mu_backing_next_done(&r.m));
    tell_delete(&r, "/p/k/a", 102);
    mu_backing_told(&r.m, 102);
    assert_get(&r, &get, NULL);
    assert_int_equal(r.m.keys.count, 0);
    tear_down(&r);
}

/* Of two keys one must not be newer than the other. */
static void test_a_key_that_is_ahead_of_the_watch_is_waited_for(void **state)
{
    for (int deleted = 0; deleted < 2; deleted++) {
        struct rig r;
        struct op get;
        struct op write;
        struct mu_backing_txn *t;

        (void)state;
        set_up_watched(&r, false);
        submit(&r, NULL, make_get(&get, "a"));
        t = next(&r);
        make(&write, deleted == 1 ? MU_STORE_DELETE : MU_STORE_SET, "a",
             deleted == 1 ? NULL : "new");
        submit(&r, NULL, &write);
        succeed(&r, next(&r)); /* At 101. */
        assert_done(&r, &write, 0);
        drop(&write);
        r.revision = 100;
        succeed(&r, t);
        assert_null(mu_backing_next_done(&r.m));
        if (deleted == 1) {
            tell_delete(&r, "/p/k/a", 101);
        } else {
            tell_put(&r, "/p/k/a", "new", 101);
        }
        mu_backing_told(&r.m, 101);
        assert_get(&r, &get, deleted == 1 ? NULL : "new");
        tear_down(&r);
    }
}

/* An answer that comes late says what was before the watch began anew. */
static void test_a_late_answer_does_not_bring_back_what_is_gone(void **state)
{
    struct rig r;
    struct op set;
    struct op get;
    struct mu_backing_txn *t;

    (void)state;
    set_up_watched(&r, true);
    submit(&r, NULL, make(&set, MU_STORE_SET, "b", "1"));
    t = next(&r);
    mu_backing_set_watching(&r.m, false);
    mu_backing_begin_watch(&r.m); /* It was there at 101, and is not any more at 102. */
    mu_backing_told(&r.m, 102);
    mu_backing_set_watching(&r.m, true);
    succeed(&r, t); /* At 101. */
    assert_done(&r, &set, 0);
    drop(&set);
    submit(&r, NULL, make_get(&get, "b"));
    assert_null(mu_backing_next_txn(&r.m));
    assert_get(&r, &get, NULL);
    tear_down(&r);
}

/* What was written while the watch began may be gone by the time it knows what there is. */
static void test_what_the_watch_does_not_find_at_first_is_not_there(void **state)
{
    struct rig r;
    struct op get;

    (void)state;
    set_up(&r);
    r.m.config.cached = true;
    mu_backing_set_watching(&r.m, false);
    mu_backing_begin_watch(&r.m);
    write_one(&r, MU_STORE_SET, "b", "1"); /* At 101; somebody deletes it at 102, */
    r.revision = 102;                      /* which is when it is read what there is. */
    write_one(&r, MU_STORE_SET, "c", "1"); /* At 103. */
    mu_backing_told(&r.m, 102);
    mu_backing_set_watching(&r.m, true);
    assert_int_equal(r.m.keys.count, 1);
    tell_put(&r, "/p/k/c", "1", 103);
    mu_backing_told(&r.m, 103);
    submit(&r, NULL, make_get(&get, "b"));
    assert_null(mu_backing_next_txn(&r.m));
    assert_get(&r, &get, NULL);
    submit(&r, NULL, make_get(&get, "c"));
    assert_null(mu_backing_next_txn(&r.m));
    assert_get(&r, &get, "1");
    tear_down(&r);
}

/* etcd tells of no deletion where there was nothing, and a read would wait for it. */
static void test_a_delete_is_not_decided_behind_a_set_in_one_transaction(void **state)
{
    struct rig r;
    struct op set;
    struct op del;
    struct mu_backing_txn *t;

    (void)state;
    set_up_watched(&r, false);
    submit(&r, NULL, make(&set, MU_STORE_SET, "b", "1"));
    submit(&r, NULL, make(&del, MU_STORE_DELETE, "b", NULL));
    t = next(&r);
    assert_null(mu_backing_next_txn(&r.m));
    succeed(&r, t);
    assert_done(&r, &set, 0);
    succeed(&r, next(&r));
    assert_done(&r, &del, 0);
    assert_int_equal(del.base.reply.number, 1);
    drop(&set);
    drop(&del);
    tear_down(&r);
}

/* Two who wait for their turn at a queue before there is a watch: one element is for one. */
static void test_one_element_that_the_watch_begins_with_ends_one_wait(void **state)
{
    struct rig r;
    struct op waits[2];

    (void)state;
    set_up(&r);
    mu_backing_set_watching(&r.m, false);
    for (size_t i = 0; i < 2; i++) {
        make(&waits[i], MU_STORE_WAIT, "q", NULL);
        waits[i].base.request.flags = MU_BACKING_IN_TURN;
        submit(&r, NULL, &waits[i]);
    }
    succeed(&r, next(&r));
    assert_null(mu_backing_next_done(&r.m));
    mu_backing_begin_watch(&r.m);
    tell_put(&r, "/p/q/00000001/q/1", "one", 101);
    mu_backing_told(&r.m, 101);
    mu_backing_set_watching(&r.m, true);
    assert_done(&r, &waits[0], 0);
    assert_null(mu_backing_next_done(&r.m));
    assert_null(mu_backing_next_txn(&r.m));
    tell_put(&r, "/p/q/00000001/q/2", "two", 102);
    mu_backing_told(&r.m, 102);
    assert_done(&r, &waits[1], 0);
    drop(&waits[0]);
    drop(&waits[1]);
    tear_down(&r);
}

static void test_who_only_writes_wants_no_watch(void **state)
{
    struct rig r;
    struct op get;

    (void)state;
    set_up(&r);
    write_one(&r, MU_STORE_SET, "a", "1");
    assert_false(r.m.wants_watch);
    submit(&r, NULL, make_get(&get, "a"));
    assert_true(r.m.wants_watch);
    succeed(&r, next(&r));
    assert_get(&r, &get, NULL);
    tear_down(&r);
}

static void test_what_is_held_can_be_cancelled_and_stopped(void **state)
{
    struct rig r;
    struct op gets[2];

    (void)state;
    set_up_watched(&r, true);
    write_one(&r, MU_STORE_SET, "b", "new");
    submit(&r, NULL, make_get(&gets[0], "a"));
    submit(&r, NULL, make_get(&gets[1], "a"));
    assert_null(mu_backing_next_txn(&r.m));
    assert_false(mu_backing_cancel(&r.m, &gets[0].base));
    mu_backing_stop(&r.m);
    assert_done(&r, &gets[0], MUSTER_ECANCELED);
    assert_done(&r, &gets[1], MUSTER_ECLOSED);
    drop(&gets[0]);
    drop(&gets[1]);
    tear_down(&r);
}

static void run_some(struct rig *r, struct op *ops, size_t count)
{
    static const enum mu_store_verb verbs[] = {MU_STORE_GET, MU_STORE_MULTI_GET, MU_STORE_CHECK,
                                               MU_STORE_WAIT, MU_STORE_QUEUE_LEN};
    struct mu_backing_txn *t;

    for (size_t i = 0; i < count; i++) {
        make(&ops[i], verbs[i % 5], i % 2 == 0 ? "a" : "b", NULL);
        submit(r, NULL, &ops[i]);
    }
    for (int i = 0; i < 8 && (t = mu_backing_next_txn(&r->m)) != NULL; i++) {
        succeed(r, t);
    }
}

static void test_it_bears_a_want_of_memory(void **state)
{
    bool fired = true;

    (void)state;
    for (long nth = 0; fired; nth++) {
        struct rig r;
        struct op ops[10];

        set_up_watched(&r, nth % 2 == 0);
        r.revision = nth % 3 == 0 ? 200 : 100;
        failheap_arm(nth / 6);
        run_some(&r, ops, 10);
        fired = failheap_fired() || nth % 6 != 5;
        failheap_disarm();
        stop_all(&r, ops, 10);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gets_of_many_keys_ask_for_one_revision),
        cmocka_unit_test(test_a_get_waits_until_the_watch_has_reached_the_revision),
        cmocka_unit_test(test_a_revision_of_others_is_gone_round_and_then_got_past),
        cmocka_unit_test(test_reads_that_are_held_ask_etcd_when_the_watch_fails_them),
        cmocka_unit_test(test_cached_reads_ask_nobody_and_see_what_was_answered),
        cmocka_unit_test(test_what_was_said_to_be_there_is_there_for_cached_reads),
        cmocka_unit_test(test_what_we_deleted_does_not_come_back),
        cmocka_unit_test(test_a_key_that_is_ahead_of_the_watch_is_waited_for),
        cmocka_unit_test(test_a_late_answer_does_not_bring_back_what_is_gone),
        cmocka_unit_test(test_what_the_watch_does_not_find_at_first_is_not_there),
        cmocka_unit_test(test_a_delete_is_not_decided_behind_a_set_in_one_transaction),
        cmocka_unit_test(test_one_element_that_the_watch_begins_with_ends_one_wait),
        cmocka_unit_test(test_who_only_writes_wants_no_watch),
        cmocka_unit_test(test_what_is_held_can_be_cancelled_and_stopped),
        cmocka_unit_test(test_it_bears_a_want_of_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
