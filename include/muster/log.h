/*
 * Logging. The library logs decisions, once each, with a stable id and key=value pairs:
 *
 *     STORE-PEER-DROPPED peer=127.0.0.1:40512 why="key of 9000 bytes is over the limit of 8192"
 *
 * By default, lines of level MUSTER_LOG_WARN and above go to standard error.
 */
#ifndef MUSTER_LOG_H
#define MUSTER_LOG_H

#include <muster/export.h>

#ifdef __cplusplus
extern "C" {
#endif

enum muster_log_level {
    MUSTER_LOG_ERROR = 1, /* somebody must act */
    MUSTER_LOG_WARN,      /* we coped */
    MUSTER_LOG_INFO,      /* a change a human would narrate */
    MUSTER_LOG_DEBUG,     /* everything else */
};

/** Called with one line, without a newline; `id` is part of it. Mostly on a runtime's thread, but
 * on that of a caller as well, and at the same time where there are several of either. */
typedef void muster_log_sink(void *context, enum muster_log_level level, const char *id,
                             const char *line);

/** Sets the sink (NULL: standard error) and the least important level that reaches it. Call it
 * before anything else of the library; it is not synchronised. */
MUSTER_EXPORT void muster_log_set(muster_log_sink *sink, void *context,
                                  enum muster_log_level level);

#ifdef __cplusplus
}
#endif

#endif
