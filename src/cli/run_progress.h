/*
 * --progress-regex: lines of the workers' output that are marks of progress.
 *
 *     code = run_progress_open(&p, "step ([0-9]+)", workers)
 *     run_progress_take(&p, local_rank, stream, bytes, mark, context)
 *     run_progress_close(&p)
 *
 * The pattern is the user's, and the output anybody's, so both are bounded. Only the first
 * RUN_PROGRESS_LINE bytes of a line are looked at. Back-references, which can take forever, are
 * refused, as are long patterns and large or several counts of repetitions. What is left can take
 * some tens of milliseconds for a line at worst; and if it takes more than RUN_PROGRESS_NS in a
 * second, the rest of the lines of that second is not looked at.
 */
#ifndef MU_RUN_PROGRESS_H
#define MU_RUN_PROGRESS_H

#include <regex.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/child.h"
#include "core/span.h"

#define RUN_PROGRESS_PATTERN 256  /* bytes */
#define RUN_PROGRESS_LINE    1024 /* bytes */
#define RUN_PROGRESS_REPEATS 1    /* counts such as {2,5} in a pattern */
#define RUN_PROGRESS_COUNT   64   /* the largest of them */
#define RUN_PROGRESS_ENOUGH  20   /* lines of which one should have matched */
#define RUN_PROGRESS_NS      UINT64_C(20000000)

/* The beginning of a line that has no end yet. */
struct run_progress_line {
    size_t len;
    char text[RUN_PROGRESS_LINE];
};

struct run_progress {
    bool on;
    regex_t regex;
    struct run_progress_line *lines; /* two of each worker */
    uint32_t workers;
    uint64_t seen;   /* lines that were looked at until the first that matched */
    bool matched;    /* one has */
    uint64_t second; /* since when `spent_ns` counts */
    uint64_t spent_ns;
    bool late; /* a line of this second was not looked at */
    bool told; /* the user knows */
};

/** NULL is no pattern. Returns 0, or CLI_USAGE or CLI_FAILED after it has printed the error. */
int run_progress_open(struct run_progress *p, const char *pattern, uint32_t workers);
void run_progress_close(struct run_progress *p);
/** Calls `mark` for each line that matches, with the number in its first group, or NULL. Returns
 * true once: lines were left out. */
bool run_progress_take(struct run_progress *p, uint32_t local_rank, enum mu_stream stream,
                       struct mu_span bytes,
                       void (*mark)(void *context, uint32_t local_rank, const uint64_t *step),
                       void *context);
/** Whether no line has matched, though there were RUN_PROGRESS_ENOUGH: it may be mistyped. */
bool run_progress_missed(const struct run_progress *p);

#endif
