/* The log of the services. Only service/ and cli/ log; see muster/log.h for the form of a line. */
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

/* A limit for lines that strangers can cause as often as they like: one line a second, which says
 * how many were left out since the line before it. It begins as all zeroes. */
struct mu_log_limit {
    mu_mono_t until;
    uint64_t unsaid; /* lines that were left out; the owner counts them */
};

/** Whether it is time for a line. */
bool mu_log_may(const struct mu_log_limit *limit, mu_mono_t now);
/** Logs the line, with `more=N` behind it if some were left out. */
void mu_log_said(struct mu_log_limit *limit, mu_mono_t now, enum muster_log_level level,
                 const char *id, const char *format, ...) __attribute__((format(printf, 5, 6)));
/** When mu_log_rest() is due: for a second no line has come that could have carried the count.
 * MU_MONO_NEVER: nothing was left out. */
mu_mono_t mu_log_rest_at(const struct mu_log_limit *limit);
/** Logs a line with nothing but `more=N`, if some were left out. */
void mu_log_rest(struct mu_log_limit *limit, enum muster_log_level level, const char *id);

#endif
