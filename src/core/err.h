/* The error context of an object: a fixed text, prefixed on the way up, never a global. */
#ifndef MU_ERR_H
#define MU_ERR_H

#include <muster/error.h>

#define MU_ERRMSG_CAP 512

struct mu_errmsg {
    char text[MU_ERRMSG_CAP]; /* always terminated; empty when there is nothing to say */
};

/** Formats the text (cut at the capacity) and returns `code`, so that a failure is one statement.
 * It may contain text from outside, which is made printable (core/printable.h). */
int mu_err(struct mu_errmsg *e, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/** Puts a prefix and ": " before the present text. */
void mu_err_prefix(struct mu_errmsg *e, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
