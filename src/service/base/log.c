#include "service/base/log.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include "core/printable.h"

static muster_log_sink *log_sink;
static void *log_context;
static enum muster_log_level log_level = MUSTER_LOG_WARN;

static const char *level_name(enum muster_log_level level)
{
    switch (level) {
    case MUSTER_LOG_ERROR:
        return "error";
    case MUSTER_LOG_WARN:
        return "warn";
    case MUSTER_LOG_INFO:
        return "info";
    case MUSTER_LOG_DEBUG:
        return "debug";
    }
    return "?";
}

void muster_log_set(muster_log_sink *sink, void *context, enum muster_log_level level)
{
    log_sink = sink;
    log_context = context;
    log_level = level;
}

bool mu_log_enabled(enum muster_log_level level)
{
    return level <= log_level;
}

void mu_log(enum muster_log_level level, const char *id, const char *format, ...)
{
    char text[1024];
    char line[sizeof(text)];
    va_list args;
    int n;

    if (!mu_log_enabled(level)) {
        return;
    }
    n = snprintf(text, sizeof(text), "%s ", id);
    va_start(args, format);
    (void)vsnprintf(text + n, sizeof(text) - (size_t)n, format, args);
    va_end(args);
    (void)mu_printable(line, sizeof(line), mu_span_str(text), false);
    if (log_sink != NULL) {
        log_sink(log_context, level, id, line);
    } else {
        (void)fprintf(stderr, "muster: %s: %s\n", level_name(level), line);
    }
}

bool mu_log_may(const struct mu_log_limit *limit, mu_mono_t now)
{
    return !mu_mono_before(now, limit->until);
}

void mu_log_said(struct mu_log_limit *limit, mu_mono_t now, enum muster_log_level level,
                 const char *id, const char *format, ...)
{
    char text[512];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (limit->unsaid == 0) {
        mu_log(level, id, "%s", text);
    } else {
        mu_log(level, id, "%s more=%" PRIu64, text, limit->unsaid);
    }
    limit->until = mu_mono_add_ms(now, 1000);
    limit->unsaid = 0;
}

mu_mono_t mu_log_rest_at(const struct mu_log_limit *limit)
{
    return limit->unsaid == 0 ? MU_MONO_NEVER : mu_mono_add_ms(limit->until, 1000);
}

void mu_log_rest(struct mu_log_limit *limit, enum muster_log_level level, const char *id)
{
    if (limit->unsaid != 0) {
        mu_log(level, id, "more=%" PRIu64, limit->unsaid);
        limit->unsaid = 0;
    }
}
