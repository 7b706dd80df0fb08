/* Dates: each day of 9999 years, the edges of each field, and the ends of the calendar. */
#include "unit.h"

#include <muster/error.h>

#include "core/civil.h"
#include "core/prng.h"

#define US_PER_DAY INT64_C(86400000000)
#define FIRST_US   INT64_C(-62135596800000000) /* 0001-01-01 */
#define LAST_US    INT64_C(253402300799999999) /* 9999-12-31T23:59:59.999999 */

static void test_civil_knows_these_moments(void **unused)
{
    static const struct {
        struct mu_civil civil;
        int64_t us;
    } known[] = {
        {{1970, 1, 1, 0, 0, 0, 0}, 0},
        {{1969, 12, 31, 23, 59, 59, 999999}, -1},
        {{2000, 2, 29, 12, 0, 0, 0}, INT64_C(951825600000000)},
        {{2026, 11, 15, 9, 48, 56, 123456}, INT64_C(1794736136123456)},
        {{1, 1, 1, 0, 0, 0, 0}, FIRST_US},
        {{9999, 12, 31, 23, 59, 59, 999999}, LAST_US},
    };

    (void)unused;
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        struct mu_civil civil = {0};
        int64_t us = 0;

        assert_int_equal(mu_civil_to_us(&known[i].civil, &us), 0);
        assert_int_equal(us, known[i].us);
        assert_int_equal(mu_civil_from_us(known[i].us, &civil), 0);
        assert_memory_equal(&civil, &known[i].civil, sizeof(civil));
    }
}

/* A calendar that is counted up by hand, day by day, must agree with the arithmetic. */
static void test_civil_counts_each_day_of_the_calendar(void **unused)
{
    static const int lengths[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    struct mu_civil day = {.year = 1, .month = 1, .day = 1};
    int64_t at = FIRST_US;

    (void)unused;
    for (; day.year <= 9999; at += US_PER_DAY) {
        struct mu_civil got;
        int64_t us = 0;
        int length = lengths[day.month - 1];

        if (mu_civil_to_us(&day, &us) != 0 || us != at || mu_civil_from_us(at, &got) != 0 ||
            memcmp(&got, &day, sizeof(day)) != 0) {
            fail_msg("%d-%d-%d", day.year, day.month, day.day);
        }
        if (day.month == 2 && (day.year % 400 == 0 || (day.year % 4 == 0 && day.year % 100 != 0))) {
            length = 29;
        }
        if (++day.day > length) {
            day.day = 1;
            day.month++;
        }
        if (day.month > 12) {
            day.month = 1;
            day.year++;
        }
    }
    assert_int_equal(at, LAST_US + 1);
}

static void test_civil_returns_to_the_microsecond(void **unused)
{
    struct mu_prng rng;

    (void)unused;
    mu_prng_seed(&rng, 3);
    for (int i = 0; i < 10000; i++) {
        uint64_t span = (uint64_t)(LAST_US - FIRST_US) + 1;
        int64_t us = FIRST_US + (int64_t)(mu_prng_u64(&rng) % span);
        struct mu_civil civil;
        int64_t back = 0;

        assert_int_equal(mu_civil_from_us(us, &civil), 0);
        assert_int_equal(mu_civil_to_us(&civil, &back), 0);
        assert_int_equal(back, us);
    }
}

static void test_civil_refuses_what_is_not_in_the_calendar(void **unused)
{
    static const struct mu_civil wrong[] = {
        {0, 1, 1, 0, 0, 0, 0},      {10000, 1, 1, 0, 0, 0, 0},      {2026, 0, 1, 0, 0, 0, 0},
        {2026, 13, 1, 0, 0, 0, 0},  {2026, 1, 0, 0, 0, 0, 0},       {2026, 1, 32, 0, 0, 0, 0},
        {2026, 2, 29, 0, 0, 0, 0},  {1900, 2, 29, 0, 0, 0, 0},      {2026, 4, 31, 0, 0, 0, 0},
        {2026, 12, 32, 0, 0, 0, 0}, {2026, 1, 1, 24, 0, 0, 0},      {2026, 1, 1, 0, 60, 0, 0},
        {2026, 1, 1, 0, 0, 60, 0},  {2026, 1, 1, 0, 0, 0, 1000000}, {2026, 1, 1, -1, 0, 0, 0},
    };
    static const int64_t outside[] = {FIRST_US - 1, LAST_US + 1, INT64_MIN, INT64_MAX};

    (void)unused;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        int64_t us = 42;

        assert_int_equal(mu_civil_to_us(&wrong[i], &us), MUSTER_EINVAL);
        assert_int_equal(us, 42);
    }
    for (size_t i = 0; i < sizeof(outside) / sizeof(outside[0]); i++) {
        struct mu_civil civil = {.year = 42};

        assert_int_equal(mu_civil_from_us(outside[i], &civil), MUSTER_EINVAL);
        assert_int_equal(civil.year, 42);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_civil_knows_these_moments),
        cmocka_unit_test(test_civil_counts_each_day_of_the_calendar),
        cmocka_unit_test(test_civil_returns_to_the_microsecond),
        cmocka_unit_test(test_civil_refuses_what_is_not_in_the_calendar),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
