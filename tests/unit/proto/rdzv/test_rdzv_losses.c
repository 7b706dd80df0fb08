/* How often a run may lose nodes, in virtual time. */
#include "unit.h"

#include "proto/rdzv/losses.h"

#define HOUR_MS UINT64_C(3600000)

static const struct mu_losses usual = MU_LOSSES_DEFAULT;

static void test_losses_that_come_at_once_are_within_the_bound_up_to_its_number(void **state)
{
    mu_mono_t until = {0};
    mu_mono_t now = {MU_NS_PER_S};

    (void)state;
    for (uint32_t i = 0; i < usual.max; i++) {
        assert_true(mu_losses_add(&until, &usual, now));
    }
    assert_false(mu_losses_add(&until, &usual, now));
    assert_false(mu_losses_add(&until, &usual, now)); /* One that was refused does not count. */
    now = mu_mono_add_ms(now, HOUR_MS / 100);
    assert_true(mu_losses_add(&until, &usual, now));
    assert_false(mu_losses_add(&until, &usual, now));
    now = mu_mono_add_ms(now, HOUR_MS);
    for (uint32_t i = 0; i < usual.max; i++) {
        assert_true(mu_losses_add(&until, &usual, now));
    }
    assert_false(mu_losses_add(&until, &usual, now));
}

static void test_losses_of_two_weeks_with_one_every_hour_are_within_the_bound(void **state)
{
    mu_mono_t until = {0};
    mu_mono_t now = {MU_NS_PER_S};

    (void)state;
    for (unsigned hour = 0; hour < 14 * 24; hour++) {
        assert_true(mu_losses_add(&until, &usual, now));
        now = mu_mono_add_ms(now, HOUR_MS);
    }
}

/* It starts in 5 s, and dies of its first step. */
static void test_losses_of_a_node_that_dies_whenever_it_starts_meet_the_bound(void **state)
{
    mu_mono_t until = {0};
    mu_mono_t now = {MU_NS_PER_S};
    unsigned count = 0;

    (void)state;
    while (mu_losses_add(&until, &usual, now)) {
        count++;
        now = mu_mono_add_ms(now, 5000);
    }
    assert_in_range(count, 100, 120);
}

static void test_losses_may_be_none_or_have_no_bound(void **state)
{
    mu_mono_t until = {0};
    mu_mono_t now = {MU_NS_PER_S};

    (void)state;
    assert_false(mu_losses_add(&until, &(struct mu_losses){0, 1000}, now));
    for (unsigned i = 0; i < 100000; i++) {
        assert_true(mu_losses_add(&until, &(struct mu_losses){0, 0}, now));
    }
    assert_true(mu_losses_add(&until, &(struct mu_losses){1, UINT64_MAX}, now));
    assert_false(mu_losses_add(&until, &(struct mu_losses){1, UINT64_MAX}, now));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_losses_that_come_at_once_are_within_the_bound_up_to_its_number),
        cmocka_unit_test(test_losses_of_two_weeks_with_one_every_hour_are_within_the_bound),
        cmocka_unit_test(test_losses_of_a_node_that_dies_whenever_it_starts_meet_the_bound),
        cmocka_unit_test(test_losses_may_be_none_or_have_no_bound),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
