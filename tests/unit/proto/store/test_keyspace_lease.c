/* Leases: what they bind, when they end, and what happens when it was us who slept. */
#include "keyspace_fixture.h"

#include "failheap.h"

static mu_mono_t now;

static int setup_lease(void **state)
{
    now = (mu_mono_t){MU_NS_PER_S};
    return setup_keyspace(state);
}

static uint64_t grant(uint64_t ttl_ms)
{
    uint64_t lease = 0;

    assert_int_equal(mu_ks_lease_grant(&ks, now, ttl_ms, &lease), 0);
    assert_int_not_equal(lease, 0);
    return lease;
}

/* Lets time pass as a good driver does: a tick at every deadline on the way. */
static void pass_ms(uint64_t ms)
{
    mu_mono_t end = mu_mono_add_ms(now, ms);

    while (mu_ks_deadline(&ks).ns <= end.ns) {
        now = mu_ks_deadline(&ks);
        mu_ks_tick(&ks, now);
    }
    now = end;
}

static void test_keyspace_lease_takes_its_keys_along(void **state)
{
    uint64_t lease = grant(3000);

    (void)state;
    set_leased("a", "1", lease);
    set("b", "2");
    pass_ms(2999);
    assert_value("a", "1");
    pass_ms(1);
    assert_value("a", NULL);
    assert_value("b", "2");
    assert_true(mu_ks_deadline(&ks).ns == UINT64_MAX);
    assert_true(del("b"));
    assert_int_equal(ks.memory_bytes, 0);
}

static void test_keyspace_lease_that_is_kept_lives_on(void **state)
{
    uint64_t lease = grant(1000);
    uint64_t ttl;

    (void)state;
    set_leased("a", "1", lease);
    for (int i = 0; i < 5; i++) {
        pass_ms(900);
        assert_int_equal(mu_ks_lease_keep(&ks, now, lease, &ttl), 0);
        assert_int_equal(ttl, 1000);
    }
    assert_value("a", "1");
    pass_ms(1000);
    assert_value("a", NULL);
    assert_int_equal(mu_ks_lease_keep(&ks, now, lease, &ttl), MUSTER_ENOENT);
}

static void test_keyspace_lease_without_a_time_lasts_until_it_is_revoked(void **state)
{
    uint64_t lease = grant(0);
    size_t removed;

    (void)state;
    assert_true(mu_ks_deadline(&ks).ns == UINT64_MAX);
    set_leased("a", "1", lease);
    set_leased("b", "1", lease);
    now.ns += 1000 * 3600 * MU_NS_PER_S;
    mu_ks_tick(&ks, now);
    assert_value("a", "1");
    assert_int_equal(mu_ks_lease_revoke(&ks, lease, &removed), 0);
    assert_int_equal(removed, 2);
    assert_value("a", NULL);
    assert_int_equal(mu_ks_lease_revoke(&ks, lease, &removed), MUSTER_ENOENT);
    assert_int_equal(ks.memory_bytes, 0);
}

static void test_keyspace_set_without_a_lease_unbinds_and_other_writes_do_not(void **state)
{
    uint64_t lease = grant(0);
    uint64_t other = grant(0);
    size_t removed;
    int64_t sum;

    (void)state;
    set_leased("n", "1", lease);
    (void)add("n", 1);
    (void)append("n", "0");
    assert_true(compare_set("n", "20", "21", "21"));
    set_leased("unbound", "1", lease);
    set("unbound", "2");
    set_leased("gone", "1", lease);
    assert_true(del("gone"));
    set("gone", "3");
    set_leased("moved", "1", lease);
    assert_int_equal(mu_ks_add(&ks, MU_SPAN_LIT("moved"), 1, other, &sum), 0);
    assert_int_equal(mu_ks_lease_revoke(&ks, lease, &removed), 0);
    assert_int_equal(removed, 1);
    assert_value("n", NULL);
    assert_value("unbound", "2");
    assert_value("gone", "3");
    assert_value("moved", "2");
    assert_int_equal(mu_ks_lease_revoke(&ks, other, &removed), 0);
    assert_value("moved", NULL);
}

static void test_keyspace_lease_tells_watchers_in_the_order_of_binding(void **state)
{
    static const char *const order[] = {"c", "d", "a", "b"};
    struct mu_ks_watch watch = {0};
    struct mu_ks_watch *w;
    struct mu_change c;
    uint64_t lease = grant(500);

    (void)state;
    set_leased("c", "1", lease);
    set_leased("d", "1", lease);
    set_leased("a", "1", lease);
    set_leased("b", "1", lease);
    set_leased("c", "2", lease);
    assert_int_equal(mu_ks_watch(&ks, &watch, MU_SPAN_LIT(""), true), 0);
    pass_ms(500);
    for (size_t i = 0; i < 4; i++) {
        assert_true(mu_ks_next_change(&ks, &w, &c));
        assert_int_equal(c.kind, MU_CHANGE_EXPIRED);
        assert_span_text(c.key, order[i]);
        assert_span_text(c.old_value, i == 0 ? "2" : "1");
        assert_int_equal(c.value.len, 0);
        assert_int_equal(c.revision, 6 + i);
    }
    assert_false(mu_ks_next_change(&ks, &w, &c));
    mu_ks_unwatch(&ks, &watch);
}

/* Only one of the lease's keys is watched: its change still carries its own revision. */
static void test_keyspace_lease_counts_the_keys_nobody_watches(void **state)
{
    struct mu_ks_watch watch = {0};
    struct mu_ks_watch *w;
    struct mu_change c;
    uint64_t lease = grant(0);
    size_t removed;

    (void)state;
    set_leased("a", "1", lease);
    set_leased("b", "1", lease);
    set_leased("c", "1", lease);
    assert_int_equal(mu_ks_watch(&ks, &watch, MU_SPAN_LIT("b"), false), 0);
    assert_int_equal(mu_ks_lease_revoke(&ks, lease, &removed), 0);
    assert_int_equal(ks.revision, 6);
    assert_true(mu_ks_next_change(&ks, &w, &c));
    assert_int_equal(c.revision, 5);
    assert_span_text(c.key, "b");
    assert_false(mu_ks_next_change(&ks, &w, &c));
    mu_ks_unwatch(&ks, &watch);
}

static void test_keyspace_lease_does_not_disturb_waiters_and_queues(void **state)
{
    struct mu_ks_wait wait = {0};
    struct mu_span k = MU_SPAN_LIT("k");
    uint64_t lease = grant(500);
    bool ready;

    (void)state;
    set_leased("k", "1", lease);
    assert_int_equal(mu_ks_wait(&ks, &wait, MU_KS_WAIT_POP, &k, 1, &ready), 0);
    pass_ms(500);
    assert_value("k", NULL);
    assert_null(mu_ks_next_ready(&ks));
    push("k", "x");
    assert_ptr_equal(mu_ks_next_ready(&ks), &wait);
    mu_ks_wait_cancel(&ks, &wait);
}

/* We slept for a minute. Nobody could have kept a lease: each gets its full time once more. */
static void test_keyspace_lease_is_spared_when_we_slept(void **state)
{
    uint64_t lease = grant(2000);
    uint64_t longer = grant(90000);

    (void)state;
    set_leased("a", "1", lease);
    set_leased("b", "1", longer);
    pass_ms(700);
    now.ns += 60 * MU_NS_PER_S;
    mu_ks_tick(&ks, now);
    assert_value("a", "1");
    pass_ms(1999);
    assert_value("a", "1");
    pass_ms(1);
    assert_value("a", NULL);
    /* The other had not run out, and its time goes on. */
    pass_ms(90000 - 60000 - 700 - 2000 - 1);
    assert_value("b", "1");
    pass_ms(1);
    assert_value("b", NULL);
}

/* The deadline lay just before we woke: only regular ticks can tell that we slept before it. */
static void test_keyspace_lease_is_spared_when_we_slept_until_just_after_its_time(void **state)
{
    uint64_t lease = grant(10000);

    (void)state;
    set_leased("a", "1", lease);
    now.ns += 10100 * MU_NS_PER_MS;
    mu_ks_tick(&ks, now);
    assert_value("a", "1");
    pass_ms(10000);
    assert_value("a", NULL);
}

static void test_keyspace_lease_ends_when_a_tick_is_a_little_late(void **state)
{
    uint64_t lease = grant(400);

    (void)state;
    set_leased("a", "1", lease);
    now.ns += 400 * MU_NS_PER_MS + MU_KS_TILT_NS;
    mu_ks_tick(&ks, now);
    assert_value("a", NULL);
}

/* A quiet time without leases is no sleep of ours. */
static void test_keyspace_lease_granted_after_a_quiet_hour_ends_in_time(void **state)
{
    uint64_t lease;

    (void)state;
    lease = grant(100);
    pass_ms(200);
    now.ns += 3600 * MU_NS_PER_S;
    lease = grant(400);
    set_leased("a", "1", lease);
    pass_ms(400);
    assert_value("a", NULL);
}

static void test_keyspace_lease_count_has_a_limit(void **state)
{
    uint64_t lease;
    size_t removed;

    (void)state;
    ks.config.leases_max = 2;
    (void)grant(0);
    lease = grant(10);
    assert_int_equal(mu_ks_lease_grant(&ks, now, 0, &lease), MUSTER_ELIMIT);
    assert_int_equal(mu_ks_lease_revoke(&ks, lease, &removed), 0);
    assert_true(grant(0) > lease);
}

static void test_keyspace_lease_with_an_endless_time_never_ends(void **state)
{
    uint64_t lease = grant(UINT64_MAX);

    (void)state;
    set_leased("a", "1", lease);
    pass_ms(5000);
    assert_value("a", "1");
}

/* Without memory for the news the lease waits, and nothing is lost. */
static void test_keyspace_lease_is_tried_again_when_memory_ran_out(void **state)
{
    struct mu_ks_watch watch = {0};
    struct mu_ks_watch *w;
    struct mu_change c;
    uint64_t lease = grant(400);
    size_t removed;

    (void)state;
    set_leased("a", "1", lease);
    set_leased("b", "1", lease);
    assert_int_equal(mu_ks_watch(&ks, &watch, MU_SPAN_LIT(""), true), 0);
    failheap_arm(1);
    assert_int_equal(mu_ks_lease_revoke(&ks, lease, &removed), MUSTER_ENOMEM);
    failheap_arm(1);
    now = mu_ks_deadline(&ks);
    mu_ks_tick(&ks, now);
    failheap_disarm();
    assert_value("a", "1");
    assert_value("b", "1");
    assert_false(mu_ks_next_change(&ks, &w, &c));
    assert_true(mu_ks_deadline(&ks).ns > now.ns);
    pass_ms(2000);
    assert_value("a", NULL);
    assert_value("b", NULL);
    assert_true(mu_ks_next_change(&ks, &w, &c));
    assert_true(mu_ks_next_change(&ks, &w, &c));
    mu_ks_unwatch(&ks, &watch);
}

static void test_keyspace_lease_that_is_to_end_ends_when_there_is_memory_again(void **state)
{
    struct mu_ks_watch watch = {0};
    struct mu_ks_watch *w;
    struct mu_change c;
    uint64_t lease = grant(0); /* as a session's */
    uint64_t ttl;

    (void)state;
    set_leased("a", "1", lease);
    assert_int_equal(mu_ks_watch(&ks, &watch, MU_SPAN_LIT("a"), false), 0);
    failheap_arm(0);
    mu_ks_lease_end(&ks, now, lease);
    pass_ms(1200);
    assert_true(failheap_fired());
    failheap_disarm();
    assert_value("a", "1");
    assert_int_equal(mu_ks_lease_keep(&ks, now, lease, &ttl), MUSTER_ENOENT);

    /* Nor does it help that we slept: nobody is there to keep it. */
    now = mu_mono_add_ms(now, 5000);
    mu_ks_tick(&ks, now);
    assert_value("a", NULL);
    assert_true(mu_ks_next_change(&ks, &w, &c));
    assert_int_equal(c.kind, MU_CHANGE_EXPIRED);
    mu_ks_unwatch(&ks, &watch);
    assert_true(mu_ks_deadline(&ks).ns == UINT64_MAX);
    mu_ks_lease_end(&ks, now, lease); /* Once is enough. */
}

int main(void)
{
#define LEASE_TEST(name) cmocka_unit_test_setup_teardown(name, setup_lease, teardown_keyspace)
    const struct CMUnitTest tests[] = {
        LEASE_TEST(test_keyspace_lease_takes_its_keys_along),
        LEASE_TEST(test_keyspace_lease_that_is_kept_lives_on),
        LEASE_TEST(test_keyspace_lease_without_a_time_lasts_until_it_is_revoked),
        LEASE_TEST(test_keyspace_set_without_a_lease_unbinds_and_other_writes_do_not),
        LEASE_TEST(test_keyspace_lease_tells_watchers_in_the_order_of_binding),
        LEASE_TEST(test_keyspace_lease_counts_the_keys_nobody_watches),
        LEASE_TEST(test_keyspace_lease_does_not_disturb_waiters_and_queues),
        LEASE_TEST(test_keyspace_lease_is_spared_when_we_slept),
        LEASE_TEST(test_keyspace_lease_is_spared_when_we_slept_until_just_after_its_time),
        LEASE_TEST(test_keyspace_lease_ends_when_a_tick_is_a_little_late),
        LEASE_TEST(test_keyspace_lease_granted_after_a_quiet_hour_ends_in_time),
        LEASE_TEST(test_keyspace_lease_count_has_a_limit),
        LEASE_TEST(test_keyspace_lease_with_an_endless_time_never_ends),
        LEASE_TEST(test_keyspace_lease_is_tried_again_when_memory_ran_out),
        LEASE_TEST(test_keyspace_lease_that_is_to_end_ends_when_there_is_memory_again),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
