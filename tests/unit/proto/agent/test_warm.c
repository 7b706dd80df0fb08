/* When an agent starts a zygote, fills up its standbys, tries again and gives up. */
#include "proto/agent/warm.h"

#include "unit.h"

static mu_mono_t at_ms(uint64_t ms)
{
    return (mu_mono_t){.ns = ms * MU_NS_PER_MS};
}

static struct mu_warm opened_at(uint64_t ms)
{
    struct mu_warm w;

    mu_warm_init(&w, at_ms(ms));
    assert_int_equal(mu_warm_next(&w, at_ms(ms)), MU_WARM_OPEN);
    return w;
}

static void test_it_opens_at_once_and_then_rests(void **state)
{
    struct mu_warm w = opened_at(5);

    (void)state;
    assert_int_equal(mu_warm_next(&w, at_ms(5)), MU_WARM_NOTHING);
    assert_int_equal(mu_warm_deadline(&w).ns, MU_MONO_NEVER.ns);
    assert_int_equal(mu_warm_next(&w, at_ms(1000000)), MU_WARM_NOTHING);
}

static void test_it_fills_up_a_moment_after_workers_started(void **state)
{
    struct mu_warm w = opened_at(0);

    (void)state;
    mu_warm_used(&w, false, at_ms(100));
    assert_int_equal(mu_warm_deadline(&w).ns, at_ms(100 + MU_WARM_REST_MS).ns);
    assert_int_equal(mu_warm_next(&w, at_ms(99 + MU_WARM_REST_MS)), MU_WARM_NOTHING);
    assert_int_equal(mu_warm_next(&w, at_ms(100 + MU_WARM_REST_MS)), MU_WARM_FILL);
    assert_int_equal(mu_warm_deadline(&w).ns, MU_MONO_NEVER.ns);
}

static void test_a_dead_standby_is_replaced_later_and_does_not_put_off_others(void **state)
{
    struct mu_warm w = opened_at(0);

    (void)state;
    mu_warm_lost(&w, at_ms(10));
    assert_int_equal(mu_warm_deadline(&w).ns, at_ms(10 + MU_WARM_RETRY_MS).ns);
    mu_warm_used(&w, true, at_ms(20));
    assert_int_equal(mu_warm_deadline(&w).ns, at_ms(20 + MU_WARM_REST_MS).ns);
    mu_warm_lost(&w, at_ms(30));
    assert_int_equal(mu_warm_deadline(&w).ns, at_ms(20 + MU_WARM_REST_MS).ns);
}

static void test_what_happens_without_a_zygote_asks_for_nothing(void **state)
{
    struct mu_warm w = opened_at(0);
    uint64_t ms = 0;

    (void)state;
    assert_true(mu_warm_ended(&w, false, at_ms(50), &ms));
    assert_int_equal(ms, MU_WARM_RETRY_MS);
    mu_warm_used(&w, false, at_ms(51));
    mu_warm_lost(&w, at_ms(51));
    assert_int_equal(mu_warm_deadline(&w).ns, at_ms(50 + MU_WARM_RETRY_MS).ns);
    assert_int_equal(mu_warm_next(&w, at_ms(50 + MU_WARM_RETRY_MS)), MU_WARM_OPEN);
}

static void test_it_tries_ever_later_and_gives_up(void **state)
{
    struct mu_warm w = opened_at(0);
    uint64_t now = 0;
    uint64_t ms = 0;

    (void)state;
    for (unsigned i = 1; i < MU_WARM_DEATHS_MAX; i++) {
        uint64_t before = ms;

        assert_true(mu_warm_ended(&w, false, at_ms(now), &ms));
        assert_true(ms > before);
        now += ms;
        assert_int_equal(mu_warm_next(&w, at_ms(now)), MU_WARM_OPEN);
    }
    assert_false(mu_warm_ended(&w, false, at_ms(now), &ms));
    assert_int_equal(mu_warm_next(&w, at_ms(now + 1000000)), MU_WARM_NOTHING);
    assert_int_equal(mu_warm_deadline(&w).ns, MU_MONO_NEVER.ns);
}

static void test_deaths_are_forgotten_once_it_was_of_use(void **state)
{
    struct mu_warm w = opened_at(0);
    uint64_t ms = 0;

    (void)state;
    for (unsigned i = 0; i < 3 * MU_WARM_DEATHS_MAX; i++) {
        assert_true(mu_warm_ended(&w, false, at_ms(i * 10000), &ms));
        assert_int_equal(ms, MU_WARM_RETRY_MS);
        assert_int_equal(mu_warm_next(&w, at_ms(i * 10000 + ms)), MU_WARM_OPEN);
        mu_warm_used(&w, true, at_ms(i * 10000 + ms));
    }
}

static void test_a_refusal_is_final(void **state)
{
    struct mu_warm w = opened_at(0);
    uint64_t ms = 0;

    (void)state;
    assert_false(mu_warm_ended(&w, true, at_ms(1), &ms));
    assert_int_equal(mu_warm_next(&w, at_ms(1000000)), MU_WARM_NOTHING);
}

static void test_nothing_comes_after_the_stop(void **state)
{
    struct mu_warm w = opened_at(0);

    (void)state;
    mu_warm_used(&w, true, at_ms(1));
    mu_warm_stop(&w);
    assert_int_equal(mu_warm_deadline(&w).ns, MU_MONO_NEVER.ns);
    assert_int_equal(mu_warm_next(&w, at_ms(1000000)), MU_WARM_NOTHING);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_it_opens_at_once_and_then_rests),
        cmocka_unit_test(test_it_fills_up_a_moment_after_workers_started),
        cmocka_unit_test(test_a_dead_standby_is_replaced_later_and_does_not_put_off_others),
        cmocka_unit_test(test_what_happens_without_a_zygote_asks_for_nothing),
        cmocka_unit_test(test_it_tries_ever_later_and_gives_up),
        cmocka_unit_test(test_deaths_are_forgotten_once_it_was_of_use),
        cmocka_unit_test(test_a_refusal_is_final),
        cmocka_unit_test(test_nothing_comes_after_the_stop),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
