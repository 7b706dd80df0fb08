/* Held keys at the server: who may answer for a key, and what a change has to wait for. */
#include "unit.h"

#include <muster/error.h>

#include "proto/store/holds.h"

static struct mu_holds holds;
static mu_mono_t now;
static int owners[200];

static int setup(void **state)
{
    struct mu_holds_config config = mu_holds_config_defaults();

    (void)state;
    now = (mu_mono_t){MU_NS_PER_S};
    mu_holds_init(&holds, &config);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    mu_holds_fini(&holds);
    return 0;
}

static struct mu_span span(const char *text)
{
    return mu_span_str(text);
}

static struct mu_holder *join(size_t i)
{
    struct mu_holder *holder = mu_holds_join(&holds, &owners[i]);

    assert_non_null(holder);
    assert_int_equal(mu_holds_renew(&holds, holder, now, MU_MONO_NEVER), 2000);
    return holder;
}

static bool grant(struct mu_holder *holder, const char *key)
{
    return mu_holds_grant(&holds, holder, now, span(key));
}

static int ask(struct mu_hold_writer *w, struct mu_holder *self, const char *key)
{
    struct mu_span one = span(key);

    return mu_holds_ask(&holds, w, self, now, &one, 1);
}

static size_t recalls(void)
{
    struct mu_holder *holder;
    struct mu_span key;
    size_t count = 0;

    while (mu_holds_next_recall(&holds, &holder, &key)) {
        count++;
    }
    return count;
}

static void test_holds_let_a_change_wait_for_all_holders(void **state)
{
    struct mu_hold_writer w = {0};
    struct mu_holder *a = join(0);
    struct mu_holder *b = join(1);

    (void)state;
    assert_int_equal(ask(&w, NULL, "k"), 1);
    assert_true(grant(a, "k"));
    assert_true(grant(b, "k"));
    assert_int_equal(ask(&w, NULL, "other"), 1);
    assert_int_equal(ask(&w, NULL, "k"), 0);
    assert_int_equal(recalls(), 2);
    assert_int_equal(recalls(), 0);
    assert_false(grant(a, "k")); /* nobody gets it while somebody wants to change it */
    mu_holds_drop(&holds, a, span("k"));
    assert_null(mu_holds_next_writer(&holds));
    mu_holds_drop(&holds, b, span("k"));
    assert_ptr_equal(mu_holds_next_writer(&holds), &w);
    assert_false(grant(a, "k")); /* nor before it was changed */
    assert_int_equal(ask(&w, NULL, "k"), 1);
    assert_true(grant(a, "k"));
    assert_int_equal(holds.recalls, 2);
}

static void test_holds_do_not_stand_in_their_own_way(void **state)
{
    struct mu_hold_writer w = {0};
    struct mu_holder *a = join(0);

    (void)state;
    assert_true(grant(a, "k"));
    assert_int_equal(ask(&w, a, "k"), 1);
    assert_int_equal(recalls(), 0);
    assert_int_equal(holds.count, 0);
}

static void test_holds_end_with_their_lease(void **state)
{
    struct mu_hold_writer w = {0};
    struct mu_holder *a = join(0);

    (void)state;
    assert_true(grant(a, "k"));
    assert_int_equal(ask(&w, NULL, "k"), 0);
    assert_int_equal(recalls(), 1);
    assert_int_equal(mu_holds_renew(&holds, a, now, MU_MONO_NEVER),
                     0); /* it has something to give back */
    /* Longer than the holder counts, for clocks of other rates. */
    assert_true(mu_holds_deadline(&holds).ns > mu_mono_add_ms(now, 2200).ns);
    now = mu_holds_deadline(&holds);
    mu_holds_tick(&holds, now);
    assert_ptr_equal(mu_holds_next_writer(&holds), &w);
    assert_int_equal(ask(&w, NULL, "k"), 1);
    assert_int_equal(holds.expired, 1);
    assert_false(grant(a, "k")); /* without a lease */
    assert_int_equal(mu_holds_renew(&holds, a, now, MU_MONO_NEVER), 2000);
    assert_true(grant(a, "k"));
    now = mu_mono_add_ms(now, 2400);
    assert_int_equal(ask(&w, NULL, "k"), 1); /* nobody need be asked */
    assert_int_equal(recalls(), 0);
}

static void test_holds_outlive_a_holder_that_may_not_know(void **state)
{
    struct mu_hold_writer w = {0};
    struct mu_holder *a = join(0);
    struct mu_holder *b = join(1);

    (void)state;
    assert_true(grant(a, "k"));
    assert_true(grant(b, "l"));
    mu_holds_leave(&holds, b, true);
    assert_int_equal(ask(&w, NULL, "l"), 1);
    mu_holds_leave(&holds, a, false);
    assert_int_equal(ask(&w, NULL, "k"), 0);
    assert_int_equal(recalls(), 0); /* there is nobody to ask */
    now = mu_holds_deadline(&holds);
    mu_holds_tick(&holds, now);
    assert_ptr_equal(mu_holds_next_writer(&holds), &w);
    assert_int_equal(ask(&w, NULL, "k"), 1);
    assert_int_equal(holds.holder_count, 0);
}

static void test_holds_of_many_holders(void **state)
{
    struct mu_holder *all[200];
    struct mu_hold_writer w = {0};
    struct mu_span keys[3] = {MU_SPAN_LIT("k"), MU_SPAN_LIT("k"), MU_SPAN_LIT("m")};

    (void)state;
    for (size_t i = 0; i < 200; i++) {
        all[i] = join(i);
        assert_true(grant(all[i], "k"));
        assert_true(grant(all[i], "k"));
    }
    assert_true(grant(all[7], "m"));
    assert_int_equal(holds.holds, 201);
    assert_int_equal(mu_holds_ask(&holds, &w, all[3], now, keys, 3), 0);
    assert_int_equal(recalls(), 200);
    for (size_t i = 0; i < 200; i++) {
        mu_holds_drop(&holds, all[i], span("k"));
    }
    assert_null(mu_holds_next_writer(&holds));
    mu_holds_drop(&holds, all[7], span("m"));
    assert_ptr_equal(mu_holds_next_writer(&holds), &w);
    assert_int_equal(mu_holds_ask(&holds, &w, all[3], now, keys, 3), 1);
    assert_int_equal(holds.count, 0);
    assert_int_equal(holds.bytes, 0);
}

static void test_holds_of_a_prefix(void **state)
{
    struct mu_hold_writer w = {0};
    struct mu_holder *a = join(0);

    (void)state;
    assert_true(grant(a, "p/1"));
    assert_true(grant(a, "p/2"));
    assert_true(grant(a, "q"));
    assert_int_equal(mu_holds_ask_prefix(&holds, &w, now, span("p/")), 0);
    assert_int_equal(recalls(), 2);
    mu_holds_withdraw(&holds, &w);
    mu_holds_drop(&holds, a, span("p/1"));
    mu_holds_drop(&holds, a, span("p/2"));
    assert_null(mu_holds_next_writer(&holds));
    assert_int_equal(holds.count, 1);
}

static void test_holds_that_are_lent_end_before_the_lease_they_depend_on(void **state)
{
    mu_mono_t limit = mu_mono_add_ms(now, 900);
    struct mu_holder *a = mu_holds_join(&holds, &owners[0]);
    uint32_t lease_ms = mu_holds_renew(&holds, a, now, limit);

    (void)state;
    assert_in_range(lease_ms, 700, 800);
    assert_true(a->until.ns <= limit.ns); /* with the margin for clocks of other rates */
    assert_true(mu_mono_add_ms(now, lease_ms + lease_ms / 8).ns <= limit.ns);
    /* A renewal by less than it has takes nothing away, and one that would be too short is none. */
    now = mu_mono_add_ms(now, 100);
    assert_int_not_equal(mu_holds_renew(&holds, a, now, mu_mono_add_ms(now, 400)), 0);
    assert_true(a->until.ns > mu_mono_add_ms(now, 400).ns);
    assert_int_equal(mu_holds_renew(&holds, a, now, mu_mono_add_ms(now, 100)), 0);
    assert_int_equal(mu_holds_renew(&holds, a, now, now), 0);
    assert_int_equal(mu_holds_renew(&holds, a, now, (mu_mono_t){0}), 0);
    assert_int_equal(mu_holds_renew(&holds, a, now, MU_MONO_NEVER), 2000);
}

/* Meets keys_max, bytes_max and renewals_max of proto/store/holds.h, and LEASE_MS_MAX of
 * proto/store/holds.c. */
static void test_holds_keep_their_bounds(void **state)
{
    struct mu_holder *a = join(0);
    struct mu_holder *more[100];

    (void)state;
    holds.config.keys_max = 1;
    assert_true(grant(a, "k"));
    assert_false(grant(a, "l"));
    holds.config.keys_max = 10;
    holds.config.bytes_max = holds.bytes;
    assert_false(grant(a, "l"));
    for (size_t i = 0; i < 100; i++) {
        more[i] = join(i);
    }
    holds.config.renewals_max = 10; /* 101 holders that renew every ten seconds */
    assert_int_equal(mu_holds_renew(&holds, more[0], now, MU_MONO_NEVER), 20200);
    holds.config.renewals_max = 1;
    assert_int_equal(mu_holds_renew(&holds, more[0], now, MU_MONO_NEVER), 60000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_holds_let_a_change_wait_for_all_holders, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_holds_do_not_stand_in_their_own_way, setup, teardown),
        cmocka_unit_test_setup_teardown(test_holds_end_with_their_lease, setup, teardown),
        cmocka_unit_test_setup_teardown(test_holds_outlive_a_holder_that_may_not_know, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_holds_of_many_holders, setup, teardown),
        cmocka_unit_test_setup_teardown(test_holds_of_a_prefix, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_holds_that_are_lent_end_before_the_lease_they_depend_on, setup, teardown),
        cmocka_unit_test_setup_teardown(test_holds_keep_their_bounds, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
