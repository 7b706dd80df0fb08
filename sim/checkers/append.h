/*
 * Checker: values that only grow by append. Each append has its own token, so the longest value
 * that was read tells the order in which they took effect. Every other value read must be a
 * beginning of it; what was acknowledged must be in it, once; and an append that was answered
 * before another began must come before it.
 *
 * Times are ticks of any clock that has no two events at once, and never 0.
 */
#ifndef MU_SIM_APPEND_H
#define MU_SIM_APPEND_H

#include <stddef.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/err.h"
#include "core/span.h"

#define APPEND_TOKEN_LEN 10 /* nine digits and a full stop */

/* An append (with a token) or a read (without one). */
struct append_op {
    int64_t token;
    uint64_t invoked;
    uint64_t returned; /* 0: its outcome is unknown */
    size_t before;     /* tokens there before it took effect */
    size_t after;      /* tokens after it: set by reads at once, for appends by the check */
    size_t told;       /* append: the length that was answered, in tokens; 0: not answered */
};

struct append_log {
    struct mu_buf longest;
    struct append_op *ops;
    size_t count;
    size_t cap;
};

void append_init(struct append_log *log);
void append_fini(struct append_log *log);
/** Writes the text of a token, APPEND_TOKEN_LEN bytes and a NUL. */
void append_format(int64_t token, char text[APPEND_TOKEN_LEN + 1]);
/** An append begins; returns its number. */
size_t append_invoke(struct append_log *log, int64_t token, uint64_t now);
/** The append was answered with the length of the value in bytes; 0: not told. */
void append_return(struct append_log *log, size_t op, size_t len, uint64_t now);
/** A value was read. MUSTER_ECORRUPT with a message if it does not fit earlier reads. */
int append_read(struct append_log *log, struct mu_span value, uint64_t invoked, uint64_t returned,
                struct mu_errmsg *reterr_msg);
/** Checks everything. MUSTER_ECORRUPT with a message. */
int append_check(struct append_log *log, struct mu_errmsg *reterr_msg);

#endif
