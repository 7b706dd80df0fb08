/*
 * Cuts a stream of bytes into lines.
 *
 *     while (mu_lines_next(&lines, &in, &line)) { ... }
 *
 * A line ends with a line feed, with a carriage return and a line feed, with a carriage return
 * alone (a progress bar goes back to its start), or where it has become longer than `max`. What has
 * no end yet is kept, and can be looked at (mu_lines_peek) before it is whole. However the bytes
 * are cut on their way in, the same lines come out.
 */
#ifndef MU_LINES_H
#define MU_LINES_H

#include <stdbool.h>
#include <stddef.h>

#include "core/buf.h"
#include "core/span.h"

enum mu_line_end {
    MU_LINE_LF = 1,
    MU_LINE_CRLF,
    MU_LINE_CR,
    MU_LINE_CUT,  /* it goes on in the next one */
    MU_LINE_NONE, /* the stream ended first, or it is being looked at */
};

struct mu_line {
    struct mu_span text; /* without what ends it; lent until the next call */
    enum mu_line_end end;
    bool goes_on; /* the one before was cut */
    size_t shown; /* of `text`, what mu_lines_peek() gave before */
};

struct mu_lines {
    struct mu_buf part; /* what has no end yet */
    size_t drop;        /* of `part`, what was given as a line and goes with the next call */
    size_t shown;
    size_t max;
    bool goes_on;
    bool held; /* a carriage return was read, and what follows decides what it was */
};

/** `max` is the longest line in bytes. */
void mu_lines_init(struct mu_lines *l, size_t max);
void mu_lines_fini(struct mu_lines *l);
/**
 * Uses bytes of `in` up to the end of the next line, and all of them if there is none: false then.
 * A want of memory cuts a line short, and loses nothing.
 */
bool mu_lines_next(struct mu_lines *l, struct mu_span *in, struct mu_line *ret);
/** What there is of a line that has not ended and was not given by this yet; false: nothing. */
bool mu_lines_peek(struct mu_lines *l, struct mu_line *ret);
/** The stream has ended: what is left is the last line; false: nothing is. */
bool mu_lines_end(struct mu_lines *l, struct mu_line *ret);

#endif
