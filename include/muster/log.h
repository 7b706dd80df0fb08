/*
 * Logging. The library logs each decision once, with a stable id and key=value pairs:
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
    MUSTER_LOG_ERROR = 1, /* a person must act */
    MUSTER_LOG_WARN,      /* the library recovered by itself */
    MUSTER_LOG_INFO,      /* a change worth telling */
    MUSTER_LOG_DEBUG,     /* everything else */
};

/** Called with one line, without a newline; `id` is part of it. Most calls come from a runtime's
 * thread, but a caller's thread logs too, and several threads may call at the same time. */
typedef void muster_log_sink(void *context, enum muster_log_level level, const char *id,
                             const char *line);

/** Sets the sink (NULL: standard error) and the least important level that reaches it. It is not
 * synchronised: call it before any other function of the library. */
MUSTER_EXPORT void muster_log_set(muster_log_sink *sink, void *context,
                                  enum muster_log_level level);

#ifdef __cplusplus
}
#endif

#endif
