/*
 * What a command says of its work on standard error, as text or as JSON lines, and the same as JSON
 * lines in a file (docs/operate.md has the members):
 *
 *     struct cli_log_options log = {0};
 *     ... CLI_LOG_OPTIONS(log) in the table of options ...
 *     cli_log_open(&log, MUSTER_LOG_WARN, MUSTER_LOG_INFO);     the library's lines go here, too
 *     cli_log_place(run, round, rank);                          in every line from here on
 *     cli_log_tell(MUSTER_LOG_INFO, "WORKER-ENDED", rank, fields, "rank %d ended", rank);
 *
 * The file gets every cli_log_tell() and the library's lines up to MUSTER_LOG_INFO. Lines stay
 * whole, whoever else writes there.
 */
#ifndef MU_CLI_LOG_H
#define MU_CLI_LOG_H

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include "cli/cli.h"

struct cli_log_options {
    const char *format; /* "text", "json"; NULL: text */
    const char *events; /* a path, "-" for standard error; NULL: none */
};

extern const char *const cli_log_formats[];

/* Two entries of a table of options. */
#define CLI_LOG_OPTIONS(log)                                                                       \
    {"log-format",                                                                                 \
     "text, json",                                                                                 \
     "format of the log on standard error (text, MUSTER_LOG_FORMAT)",                              \
     CLI_TEXT,                                                                                     \
     &(log).format,                                                                                \
     0,                                                                                            \
     .variable = "MUSTER_LOG_FORMAT",                                                              \
     .of = cli_log_formats,                                                                        \
     .whole = true},                                                                               \
    {                                                                                              \
        "events", "FILE", "append events to FILE as JSON lines (MUSTER_EVENTS)", CLI_TEXT,         \
            &(log).events, 0, .variable = "MUSTER_EVENTS", .whole = true                           \
    }

/**
 * `library`: the least important of the library's lines that standard error gets, `own`: of the
 * command's own. 0 or CLI_FAILED, said.
 */
int cli_log_open(const struct cli_log_options *o, enum muster_log_level library,
                 enum muster_log_level own);
/** The format that the words of the command line name, and that of the environment; NULL: none.
 * What is said before cli_log_open() is in it, if it is a format. Words count, once there were. */
void cli_log_foresee(const char *word, const char *variable);
bool cli_log_is_json(void);
/** Where JSON lines for standard error go instead, each with its end; NULL: there. */
void cli_log_divert(void (*write)(void *context, const char *line, size_t len), void *context);
/** Of lines that do not say it themselves. `run` is borrowed, NULL: none; -1: none. */
void cli_log_place(const char *run, int64_t round, int64_t rank);
/**
 * To the file, and as JSON to standard error if the level is wanted there; text for people is the
 * caller's own matter. `rank` -1: that of the place. Takes `fields`, which may be NULL.
 */
void cli_log_tell(enum muster_log_level level, const char *id, int64_t rank, json_t *fields,
                  const char *format, ...) __attribute__((format(printf, 5, 6)));
/** Text of anybody's as JSON: what is no UTF-8 becomes "?". */
json_t *cli_log_text(const char *text);
/** One JSON line of a log line "ID key=value key=\"...\" words"; a new reference. For tests. */
json_t *cli_log_line(enum muster_log_level level, const char *id, const char *line);

#endif
