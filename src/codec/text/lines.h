/*
 * Cuts a stream of bytes into lines.
 *
 *     while (mu_lines_next(&lines, &in, &line)) { ... }
 *
 * A line ends with a line feed, with a carriage return and a line feed, with a carriage return
 * alone (a progress bar goes back to its start), or where it becomes longer than `max`. A line
 * without an end is kept, and can be read (mu_lines_peek) before it is whole. The same lines come
 * out, however the input is split.
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
    MU_LINE_NONE, /* the stream ended first, or the line is not whole */
};

struct mu_line {
    struct mu_span text; /* without its end; valid until the next call */
    enum mu_line_end end;
    bool goes_on; /* the line before was cut */
    size_t shown; /* how much of `text` mu_lines_peek() gave before */
};

struct mu_lines {
    struct mu_buf part; /* the line without an end */
    size_t drop;        /* how much of `part` was given as a line; the next call drops it */
    size_t shown;
    size_t max;
    bool goes_on;
    bool held; /* a carriage return was read, and what follows decides what it was */
};

/** `max` is the longest line in bytes. */
void mu_lines_init(struct mu_lines *l, size_t max);
void mu_lines_fini(struct mu_lines *l);
/**
 * Uses bytes of `in` up to the end of the next line, or all of them if there is no end: then false.
 * A lack of memory cuts a line short, but loses nothing.
 */
bool mu_lines_next(struct mu_lines *l, struct mu_span *in, struct mu_line *ret);
/** The part of an unfinished line that was not given by this yet; false: there is nothing. */
bool mu_lines_peek(struct mu_lines *l, struct mu_line *ret);
/** The stream has ended: gives the rest as the last line; false: there is nothing. */
bool mu_lines_end(struct mu_lines *l, struct mu_line *ret);

#endif
