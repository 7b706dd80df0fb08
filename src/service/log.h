/* What services log with. Only service/ and cli/ log; see muster/log.h for the form of a line. */
#ifndef MU_LOG_H
#define MU_LOG_H

#include <stdbool.h>

#include <muster/log.h>

/** `id` is static, such as "STORE-SERVING"; the rest are key=value pairs, peers' strings quoted. */
void mu_log(enum muster_log_level level, const char *id, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

bool mu_log_enabled(enum muster_log_level level);

#endif
