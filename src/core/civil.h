/*
 * Calendar dates and times of day in UTC, as pure arithmetic: the proleptic Gregorian calendar of
 * years 1 to 9999, without leap seconds, to the microsecond. This is what Python's datetime holds.
 */
#ifndef MU_CIVIL_H
#define MU_CIVIL_H

#include <stdint.h>

struct mu_civil {
    int year;  /* 1 to 9999 */
    int month; /* 1 to 12 */
    int day;   /* 1 to the length of the month */
    int hour;
    int minute;
    int second; /* 0 to 59 */
    int microsecond;
};

/** Microseconds from 1970-01-01T00:00:00Z to that moment. MUSTER_EINVAL: no such moment. */
int mu_civil_to_us(const struct mu_civil *c, int64_t *ret_us);
/** The reverse. MUSTER_EINVAL: outside years 1 to 9999. */
int mu_civil_from_us(int64_t us, struct mu_civil *ret_civil);

#endif
