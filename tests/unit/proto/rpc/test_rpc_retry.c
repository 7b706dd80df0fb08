#include "unit.h"

#include <math.h>

#include "proto/rpc/retry.h"

static mu_mono_t at_ms(uint64_t ms)
{
    return (mu_mono_t){ms * MU_NS_PER_MS};
}

struct timeline {
    uint64_t sends[16]; /* ms */
    size_t count;
    enum mu_rpc_retry_verdict last;
};

/*
 * Runs a call in virtual time: each attempt takes `takes_ms` and fails, but the one with the number
 * `succeeds` (from 0).
 */
static struct timeline play(struct mu_rpc_retry_set *set, const struct mu_rpc_retry_options *o,
                            uint64_t takes_ms, size_t succeeds, struct mu_rpc_budget *budget)
{
    struct timeline t = {.last = MU_RPC_RETRY_WAIT};
    struct mu_rpc_retry r;
    uint64_t now = 10000;

    mu_rpc_retry_begin(&r, o);
    while (t.count < 16) {
        size_t attempt = t.count;

        mu_rpc_retry_sent(set, &r, at_ms(now));
        t.sends[t.count++] = now;
        now += takes_ms;
        if (attempt == succeeds) {
            t.last = 0;
            break;
        }
        t.last = mu_rpc_retry_failed(set, &r, budget, true);
        if (t.last != MU_RPC_RETRY_WAIT) {
            break;
        }
        if (mu_rpc_retry_deadline(set).ns > at_ms(now).ns) {
            assert_null(mu_rpc_retry_next(set, at_ms(now)));
            now = mu_rpc_retry_deadline(set).ns / MU_NS_PER_MS;
        }
        assert_ptr_equal(mu_rpc_retry_next(set, at_ms(now)), &r);
        assert_null(mu_rpc_retry_next(set, at_ms(now)));
    }
    return t;
}

static void assert_gaps(const struct timeline *t, const uint64_t *gaps, size_t count)
{
    assert_int_equal(t->count, count + 1);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(t->sends[i + 1] - t->sends[i], gaps[i]);
    }
}

static void test_retry_defaults_have_the_gaps_of_the_formula(void **state)
{
    static const uint64_t gaps[] = {1000, 1000, 1500, 2250, 3375};
    struct mu_rpc_retry_options o = mu_rpc_retry_options_defaults();
    struct mu_rpc_retry_set set;
    struct timeline t;

    (void)state;
    mu_rpc_retry_set_init(&set, 1);
    t = play(&set, &o, 0, SIZE_MAX, NULL);
    assert_gaps(&t, gaps, 5);
    assert_int_equal(t.last, MU_RPC_RETRY_EXHAUSTED);
    assert_int_equal(set.waiting, 0);
}

static void test_retry_ends_with_the_first_success(void **state)
{
    struct mu_rpc_retry_options o = mu_rpc_retry_options_defaults();
    struct mu_rpc_retry_set set;

    (void)state;
    for (size_t k = 0; k <= 5; k++) {
        struct timeline t;

        mu_rpc_retry_set_init(&set, 1);
        t = play(&set, &o, 3, k, NULL);
        assert_int_equal(t.count, k + 1);
        assert_int_equal(t.last, 0);
        assert_int_equal(mu_rpc_retry_deadline(&set).ns, MU_MONO_NEVER.ns);
    }
}

static void test_retry_after_a_slow_failure_comes_at_once(void **state)
{
    /* Each attempt fails after 1.2 s: the gaps are counted from the sends. */
    static const uint64_t gaps[] = {1200, 1200, 1500, 2250, 3375};
    struct mu_rpc_retry_options o = mu_rpc_retry_options_defaults();
    struct mu_rpc_retry_set set;
    struct timeline t;

    (void)state;
    mu_rpc_retry_set_init(&set, 1);
    t = play(&set, &o, 1200, SIZE_MAX, NULL);
    assert_gaps(&t, gaps, 5);
}

static void test_retry_cuts_gaps_to_whole_milliseconds(void **state)
{
    static const uint64_t gaps[] = {7, 7, 8, 10}; /* 7, 7, 8.75, 10.9375 */
    struct mu_rpc_retry_options o = {.retries_max = 4, .duration_ms = 7, .backoff = 1.25};
    struct mu_rpc_retry_set set;
    struct mu_rpc_retry r;
    struct timeline t;

    (void)state;
    mu_rpc_retry_set_init(&set, 1);
    t = play(&set, &o, 0, SIZE_MAX, NULL);
    assert_gaps(&t, gaps, 4);
    /* And so are the times themselves. */
    mu_rpc_retry_begin(&r, &o);
    mu_rpc_retry_sent(&set, &r, (mu_mono_t){5 * MU_NS_PER_MS + 999999});
    assert_int_equal(r.again.ns, 12 * MU_NS_PER_MS);
}

static void test_retry_without_retries_ends_at_the_first_failure(void **state)
{
    struct mu_rpc_retry_options o = {.retries_max = 0, .duration_ms = 1000, .backoff = 1.5};
    struct mu_rpc_retry_set set;
    struct timeline t;

    (void)state;
    mu_rpc_retry_set_init(&set, 1);
    t = play(&set, &o, 0, SIZE_MAX, NULL);
    assert_int_equal(t.count, 1);
    assert_int_equal(t.last, MU_RPC_RETRY_EXHAUSTED);
}

static void test_retry_ends_at_once_with_a_final_error(void **state)
{
    struct mu_rpc_retry_options o = mu_rpc_retry_options_defaults();
    struct mu_rpc_retry_set set;
    struct mu_rpc_retry r;

    (void)state;
    mu_rpc_retry_set_init(&set, 1);
    mu_rpc_retry_begin(&r, &o);
    mu_rpc_retry_sent(&set, &r, at_ms(1));
    assert_int_equal(mu_rpc_retry_failed(&set, &r, NULL, false), MU_RPC_RETRY_FINAL);
    assert_int_equal(mu_rpc_retry_deadline(&set).ns, MU_MONO_NEVER.ns);
}

static void test_retry_stop_hands_out_all_that_wait_and_takes_no_more(void **state)
{
    struct mu_rpc_retry_options o = mu_rpc_retry_options_defaults();
    struct mu_rpc_retry_set set;
    struct mu_rpc_retry r[4];
    unsigned seen = 0;
    struct mu_rpc_retry *one;

    (void)state;
    mu_rpc_retry_set_init(&set, 1);
    for (size_t i = 0; i < 4; i++) {
        mu_rpc_retry_begin(&r[i], &o);
        mu_rpc_retry_sent(&set, &r[i], at_ms(i));
    }
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(mu_rpc_retry_failed(&set, &r[i], NULL, true), MU_RPC_RETRY_WAIT);
    }
    mu_rpc_retry_stop(&set);
    assert_null(mu_rpc_retry_next(&set, at_ms(100000)));
    while ((one = mu_rpc_retry_flush(&set)) != NULL) {
        seen |= 1u << (one - r);
    }
    assert_int_equal(seen, 7);
    /* One that was on its way fails afterwards: with its own error, and is not kept. */
    assert_int_equal(mu_rpc_retry_failed(&set, &r[3], NULL, true), MU_RPC_RETRY_STOPPED);
    assert_null(mu_rpc_retry_flush(&set));
    assert_int_equal(set.waiting, 0);
}

static void test_retry_serves_those_due_at_one_time_together(void **state)
{
    struct mu_rpc_retry_options o = mu_rpc_retry_options_defaults();
    struct mu_rpc_retry_set set;
    struct mu_rpc_retry r[3];

    (void)state;
    mu_rpc_retry_set_init(&set, 1);
    for (size_t i = 0; i < 3; i++) {
        mu_rpc_retry_begin(&r[i], &o);
        mu_rpc_retry_sent(&set, &r[i], at_ms(i < 2 ? 5 : 6));
        (void)mu_rpc_retry_failed(&set, &r[i], NULL, true);
    }
    assert_ptr_equal(mu_rpc_retry_next(&set, at_ms(1005)), &r[0]);
    assert_ptr_equal(mu_rpc_retry_next(&set, at_ms(1005)), &r[1]);
    assert_null(mu_rpc_retry_next(&set, at_ms(1005)));
    mu_rpc_retry_drop(&set, &r[2]);
    mu_rpc_retry_drop(&set, &r[2]);
    assert_null(mu_rpc_retry_next(&set, at_ms(9999)));
    assert_int_equal(set.waiting, 0);
}

static void test_retry_refuses_options_out_of_range(void **state)
{
    struct mu_rpc_retry_options o = mu_rpc_retry_options_defaults();
    struct mu_errmsg msg;

    (void)state;
    assert_int_equal(mu_rpc_retry_check(&o, &msg), 0);
    o.retries_max = -1;
    assert_int_equal(mu_rpc_retry_check(&o, &msg), MUSTER_EINVAL);
    o = mu_rpc_retry_options_defaults();
    o.backoff = 0.99;
    assert_int_equal(mu_rpc_retry_check(&o, &msg), MUSTER_EINVAL);
    o.backoff = NAN;
    assert_int_equal(mu_rpc_retry_check(&o, &msg), MUSTER_EINVAL);
    o = mu_rpc_retry_options_defaults();
    o.duration_ms = -1;
    assert_int_equal(mu_rpc_retry_check(&o, &msg), MUSTER_EINVAL);
    o = mu_rpc_retry_options_defaults();
    o.jitter = 1.01;
    assert_int_equal(mu_rpc_retry_check(&o, &msg), MUSTER_EINVAL);
    o.jitter = -0.1;
    assert_int_equal(mu_rpc_retry_check(&o, &msg), MUSTER_EINVAL);
    o.jitter = NAN;
    assert_int_equal(mu_rpc_retry_check(&o, &msg), MUSTER_EINVAL);
}

static void test_retry_huge_numbers_do_not_overflow(void **state)
{
    struct mu_rpc_retry_options o = {
        .retries_max = INT32_MAX, .duration_ms = INT64_MAX, .backoff = 1e300};
    struct mu_rpc_retry_set set;
    struct mu_rpc_retry r;

    (void)state;
    mu_rpc_retry_set_init(&set, 1);
    mu_rpc_retry_begin(&r, &o);
    for (int i = 0; i < 100; i++) {
        mu_rpc_retry_sent(&set, &r, at_ms(77));
        assert_true(r.again.ns > at_ms(77).ns);
        assert_true(r.again.ns < MU_MONO_NEVER.ns);
    }
    o.duration_ms = 0;
    mu_rpc_retry_begin(&r, &o);
    mu_rpc_retry_sent(&set, &r, at_ms(77));
    assert_int_equal(r.again.ns, at_ms(77).ns);
}

static void test_retry_jitter_stays_within_its_part_and_varies(void **state)
{
    struct mu_rpc_retry_options o = mu_rpc_retry_options_defaults();
    struct mu_rpc_retry_set set;
    uint64_t least = UINT64_MAX;
    uint64_t most = 0;

    (void)state;
    o.jitter = 0.25;
    mu_rpc_retry_set_init(&set, 42);
    for (int i = 0; i < 1000; i++) {
        struct mu_rpc_retry r;
        uint64_t gap;

        mu_rpc_retry_begin(&r, &o);
        mu_rpc_retry_sent(&set, &r, at_ms(0));
        gap = r.again.ns / MU_NS_PER_MS;
        least = gap < least ? gap : least;
        most = gap > most ? gap : most;
    }
    assert_true(least >= 750 && least < 760);
    assert_true(most <= 1000 && most > 990);
}

static void test_retry_budget_bounds_retries_to_a_part_of_calls(void **state)
{
    struct mu_rpc_retry_options o = mu_rpc_retry_options_defaults();
    struct mu_rpc_retry_set set;
    struct mu_rpc_budget budget;
    size_t sends = 0;

    (void)state;
    mu_rpc_retry_set_init(&set, 1);
    mu_rpc_budget_init(&budget, 20, 3);
    for (int i = 0; i < 100; i++) {
        struct timeline t;

        mu_rpc_budget_earn(&budget);
        t = play(&set, &o, 0, SIZE_MAX, &budget);
        sends += t.count;
        assert_true(t.last == MU_RPC_RETRY_BUDGET || t.last == MU_RPC_RETRY_EXHAUSTED);
    }
    /* Three to begin with, and one for every five calls but the first, which earned nothing. */
    assert_int_equal(sends, 100 + 3 + 19);
    mu_rpc_budget_init(&budget, 0, 0);
    assert_int_equal(play(&set, &o, 0, SIZE_MAX, &budget).count, 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_retry_defaults_have_the_gaps_of_the_formula),
        cmocka_unit_test(test_retry_ends_with_the_first_success),
        cmocka_unit_test(test_retry_after_a_slow_failure_comes_at_once),
        cmocka_unit_test(test_retry_cuts_gaps_to_whole_milliseconds),
        cmocka_unit_test(test_retry_without_retries_ends_at_the_first_failure),
        cmocka_unit_test(test_retry_ends_at_once_with_a_final_error),
        cmocka_unit_test(test_retry_stop_hands_out_all_that_wait_and_takes_no_more),
        cmocka_unit_test(test_retry_serves_those_due_at_one_time_together),
        cmocka_unit_test(test_retry_refuses_options_out_of_range),
        cmocka_unit_test(test_retry_huge_numbers_do_not_overflow),
        cmocka_unit_test(test_retry_jitter_stays_within_its_part_and_varies),
        cmocka_unit_test(test_retry_budget_bounds_retries_to_a_part_of_calls),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
