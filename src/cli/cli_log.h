/*
 * The log of a command: on standard error as text or JSON lines, and in a file as JSON lines
 * (docs/operate.md lists the members):
 *
 *     struct cli_log_options log = {0};
 *     ... CLI_LOG_OPTIONS(log) in the table of options ...
 *     cli_log_open(&log, MUSTER_LOG_WARN, MUSTER_LOG_INFO);     also takes the library's lines
 *     cli_log_place(run, round, rank);                          in every line from here on
 *     cli_log_tell(MUSTER_LOG_INFO, "WORKER-ENDED", rank, fields, "rank %d ended", rank);
 *
 * The file gets every cli_log_tell() and the library's lines up to MUSTER_LOG_INFO. Lines stay
 * whole even if other processes write to the same file.
 */
#ifndef MU_CLI_LOG_H
#define MU_CLI_LOG_H

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include "cli/cli.h"

struct cli_log_options {
    const char *format; /* "text", "json"; NULL: text */
    const char *events; /* a path, or "-" for standard error; NULL: no events */
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
 * Opens the log. Standard error gets the library's lines down to level `library`, and the command's
 * own down to level `own`. Returns 0, or CLI_FAILED after it has printed the error.
 */
int cli_log_open(const struct cli_log_options *o, enum muster_log_level library,
                 enum muster_log_level own);
/** Sets the format that the command line and the environment name; NULL: not named. Messages before
 * cli_log_open() use it, if it is a valid format. The command line takes precedence. */
void cli_log_foresee(const char *word, const char *variable);
bool cli_log_is_json(void);
/** Sends the JSON lines for standard error to a function instead, each with its newline; NULL: to
 * standard error. */
void cli_log_divert(void (*write)(void *context, const char *line, size_t len), void *context);
/** Sets the run, round and rank of lines that do not name them. `run` is borrowed; NULL and -1: not
 * known. */
void cli_log_place(const char *run, int64_t round, int64_t rank);
/**
 * Writes a line to the file, and as JSON to standard error if the level is logged there. The caller
 * prints text for people itself. `rank` -1: that of cli_log_place(). Takes ownership of `fields`,
 * which may be NULL.
 */
void cli_log_tell(enum muster_log_level level, const char *id, int64_t rank, json_t *fields,
                  const char *format, ...) __attribute__((format(printf, 5, 6)));
/** Returns untrusted text as JSON: bytes that are not UTF-8 become "?". */
json_t *cli_log_text(const char *text);
/** Converts a log line "ID key=value key=\"...\" words" to its JSON object; returns a new
 * reference. For tests. */
json_t *cli_log_line(enum muster_log_level level, const char *id, const char *line);

#endif
