/* What services log with. Only service/ and cli/ log; see muster/log.h for the form of a line. */
#ifndef MU_LOG_H
#define MU_LOG_H

#include <stdbool.h>
#include <stdint.h>

#include <muster/log.h>

#include "core/time.h"

/** `id` is static, such as "STORE-SERVING"; the rest are key=value pairs, peers' strings quoted. */
void mu_log(enum muster_log_level level, const char *id, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

bool mu_log_enabled(enum muster_log_level level);

/* For lines that strangers can cause as often as they like: one in a second, which says how many
 * there would have been since the one before it. All zeroes to begin with. */
struct mu_log_limit {
    mu_mono_t until;
    uint64_t unsaid; /* the owner counts them */
};

/** Whether it is time for a line. */
bool mu_log_may(const struct mu_log_limit *limit, mu_mono_t now);
/** The line, with `more=N` behind it if some were not said. */
void mu_log_said(struct mu_log_limit *limit, mu_mono_t now, enum muster_log_level level,
                 const char *id, const char *format, ...) __attribute__((format(printf, 5, 6)));
/** When mu_log_rest() is due: no line has come for a second that could have said it.
 * MU_MONO_NEVER: everything is said. */
mu_mono_t mu_log_rest_at(const struct mu_log_limit *limit);
/** A line with nothing but `more=N`, if some were not said. */
void mu_log_rest(struct mu_log_limit *limit, enum muster_log_level level, const char *id);

#endif
