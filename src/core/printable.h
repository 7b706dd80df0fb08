/*
 * Text from outside, made safe to show. Everything that a terminal would obey, and everything that
 * is not UTF-8, becomes "\x1b" and the like: control bytes, DEL, the control characters after it
 * (U+0080 to U+009F), and those that change the direction of writing. All errors (core/err.h), all
 * lines of the log (service/base/log.h) and all that the command prints to a terminal
 * (cli/cli_terminal.h) go through here.
 */
#ifndef MU_PRINTABLE_H
#define MU_PRINTABLE_H

#include <stdbool.h>

#include "core/span.h"

#define MU_PRINTABLE_MAX 12 /* bytes that one character can become */

/**
 * Writes the next character of `in`, which is not empty, to `out` in a form that may be shown;
 * `*ret_taken` is how many bytes of `in` that took. Returns how many were written. With `lines`,
 * newlines and tabs stay.
 */
size_t mu_printable_next(char out[MU_PRINTABLE_MAX], struct mu_span in, bool lines,
                         size_t *ret_taken);
/** Writes all of `in`, terminated, cut at a character; `out` is not `in`. Returns the length. */
size_t mu_printable(char *out, size_t cap, struct mu_span in, bool lines);

#endif
