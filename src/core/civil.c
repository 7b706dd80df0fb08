#include "core/civil.h"

#include <stdbool.h>

#include <muster/error.h>

#define US_PER_S      INT64_C(1000000)
#define US_PER_DAY    (86400 * US_PER_S)
#define DAYS_PER_YEAR 365
#define DAYS_PER_4    (4 * DAYS_PER_YEAR + 1)
#define DAYS_PER_100  (25 * DAYS_PER_4 - 1)
#define DAYS_PER_400  (4 * DAYS_PER_100 + 1)
#define YEAR_MAX      9999
#define EPOCH_DAY     719162 /* days from 0001-01-01 to 1970-01-01 */

/* Days of the year before the first of each month, in a common year. */
static const int days_before[] = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334, 365};

static bool is_leap(int year)
{
    return year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
}

/* Days of the year before the first of month `month`, 1 to 13. */
static int days_before_month(int year, int month)
{
    return days_before[month - 1] + (month > 2 && is_leap(year) ? 1 : 0);
}

static bool is_within(int value, int low, int high)
{
    return value >= low && value <= high;
}

int mu_civil_to_us(const struct mu_civil *c, int64_t *ret_us)
{
    int64_t years = (int64_t)c->year - 1;
    int64_t day;

    if (!is_within(c->year, 1, YEAR_MAX) || !is_within(c->month, 1, 12) ||
        !is_within(c->day, 1,
                   days_before_month(c->year, c->month + 1) -
                       days_before_month(c->year, c->month)) ||
        !is_within(c->hour, 0, 23) || !is_within(c->minute, 0, 59) ||
        !is_within(c->second, 0, 59) || !is_within(c->microsecond, 0, 999999)) {
        return MUSTER_EINVAL;
    }
    day = years * DAYS_PER_YEAR + years / 4 - years / 100 + years / 400 +
          days_before_month(c->year, c->month) + c->day - 1 - EPOCH_DAY;
    *ret_us = day * US_PER_DAY +
              ((int64_t)c->hour * 3600 + (int64_t)c->minute * 60 + c->second) * US_PER_S +
              c->microsecond;
    return 0;
}

/* Splits days since 0001-01-01. The last day of a cycle belongs to the cycle, not to a fifth part
 * of it: hence the two minima. */
static void split_day(int day, struct mu_civil *c)
{
    int n400 = day / DAYS_PER_400;
    int n100;
    int n4;
    int n1;

    day %= DAYS_PER_400;
    n100 = day / DAYS_PER_100 < 3 ? day / DAYS_PER_100 : 3;
    day -= n100 * DAYS_PER_100;
    n4 = day / DAYS_PER_4;
    day -= n4 * DAYS_PER_4;
    n1 = day / DAYS_PER_YEAR < 3 ? day / DAYS_PER_YEAR : 3;
    day -= n1 * DAYS_PER_YEAR;
    c->year = n400 * 400 + n100 * 100 + n4 * 4 + n1 + 1;
    c->month = 1;
    while (day >= days_before_month(c->year, c->month + 1)) {
        c->month++;
    }
    c->day = day - days_before_month(c->year, c->month) + 1;
}

int mu_civil_from_us(int64_t us, struct mu_civil *ret_civil)
{
    int64_t day = us / US_PER_DAY + EPOCH_DAY;
    int64_t rest = us % US_PER_DAY;
    struct mu_civil c = {0};

    if (rest < 0) {
        rest += US_PER_DAY;
        day--;
    }
    if (day < 0 || day >= (int64_t)DAYS_PER_400 * 25 - (DAYS_PER_YEAR + 1)) {
        return MUSTER_EINVAL;
    }
    split_day((int)day, &c);
    c.microsecond = (int)(rest % US_PER_S);
    rest /= US_PER_S;
    c.second = (int)(rest % 60);
    c.minute = (int)(rest / 60 % 60);
    c.hour = (int)(rest / 3600);
    *ret_civil = c;
    return 0;
}
