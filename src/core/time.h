/*
 * Time, in two kinds that do not convert into each other. Intervals, deadlines and failure
 * detection use the monotonic clock; the wall clock is only for times that machines compare with
 * each other, and for display. A driver samples both once a turn and passes them in; nothing below
 * the driver reads a clock.
 */
#ifndef MU_TIME_H
#define MU_TIME_H

#include <stdbool.h>
#include <stdint.h>

typedef struct mu_mono {
    uint64_t ns;
} mu_mono_t;

typedef struct mu_wall {
    uint64_t ns; /* since 1970-01-01T00:00:00Z */
} mu_wall_t;

struct mu_now {
    mu_mono_t mono;
    mu_wall_t wall;
};

#define MU_NS_PER_MS UINT64_C(1000000)
#define MU_NS_PER_S  UINT64_C(1000000000)

/** A deadline that never comes. */
#define MU_MONO_NEVER ((mu_mono_t){UINT64_MAX})

/** `t` plus a duration; saturates at MU_MONO_NEVER. */
static inline mu_mono_t mu_mono_add_ns(mu_mono_t t, uint64_t ns)
{
    return (mu_mono_t){t.ns > UINT64_MAX - ns ? UINT64_MAX : t.ns + ns};
}

static inline mu_mono_t mu_mono_add_ms(mu_mono_t t, uint64_t ms)
{
    return mu_mono_add_ns(t, ms > UINT64_MAX / MU_NS_PER_MS ? UINT64_MAX : ms * MU_NS_PER_MS);
}

/** Whether the deadline `at` has been reached at `now`. */
static inline bool mu_mono_reached(mu_mono_t at, mu_mono_t now)
{
    return at.ns != UINT64_MAX && at.ns <= now.ns;
}

static inline bool mu_mono_before(mu_mono_t a, mu_mono_t b)
{
    return a.ns < b.ns;
}

static inline mu_mono_t mu_mono_min(mu_mono_t a, mu_mono_t b)
{
    return a.ns < b.ns ? a : b;
}

/** Nanoseconds from `since` to `now`; zero if `since` is later. */
static inline uint64_t mu_mono_since(mu_mono_t since, mu_mono_t now)
{
    return now.ns > since.ns ? now.ns - since.ns : 0;
}

/** Whole milliseconds from `now` until `at`, rounded up; zero if it has been reached. */
static inline uint64_t mu_mono_until_ms(mu_mono_t at, mu_mono_t now)
{
    return at.ns <= now.ns ? 0 : (at.ns - now.ns - 1) / MU_NS_PER_MS + 1;
}

#endif
