/*
 * Checker: a history of store operations is linearizable, that is, each operation that was answered
 * can be given one moment between its call and its answer so that all answers are what a single
 * store would have said. An operation whose outcome is unknown (no answer, or an ambiguous error)
 * may have taken effect at any moment after its call, or never.
 *
 *     uint32_t op = linear_invoke(&history, &(struct linear_op){.kind = LINEAR_SET, ...});
 *     linear_return(&history, op, &(struct linear_result){...});
 *     verdict = linear_check(&history, &msg);
 *
 * Keys are checked one by one: a history is linearizable if each key's part is. The search is that
 * of Wing and Gong with Lowe's memory of what was tried: it tries the calls that may come next, and
 * never looks twice at the same set of operations with the same resulting value.
 *
 * Values are decimal numbers, so that add works on what set wrote. The order is that of the calls
 * to this module, not of clocks.
 */
#ifndef MU_SIM_LINEAR_H
#define MU_SIM_LINEAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "core/err.h"

#define LINEAR_KEY_OPS_MAX 1024    /* operations on one key */
#define LINEAR_STATES_MAX  2000000 /* tried on one key before the checker gives up */

enum linear_kind {
    LINEAR_GET = 1,
    LINEAR_SET,
    LINEAR_ADD,
    LINEAR_COMPARE_SET,
    LINEAR_DELETE,
    LINEAR_CHECK,
    LINEAR_WAIT, /* answered only while the key is there */
};

/* What a key holds. */
struct linear_value {
    bool present;
    int64_t number; /* zero if absent */
};

struct linear_result {
    struct linear_value value; /* get: what it holds; add: the sum; compare_set: the reply */
    bool flag;       /* delete: there was one; check: it is there; compare_set: it was written */
    bool flag_known; /* PyTorch's wire does not tell for compare_set and, in part, delete */
};

struct linear_op {
    enum linear_kind kind;
    uint32_t client;
    uint32_t key;
    int64_t number; /* set: the value; add: the delta; compare_set: the desired value */
    struct linear_value expected; /* compare_set; absent stands for the empty value */
    /* The history's own: */
    uint64_t invoked;  /* when it was called */
    uint64_t returned; /* when it was answered; 0: no answer, the outcome is unknown */
    uint64_t invoked_ns;
    uint64_t returned_ns;
    bool dropped; /* it certainly had no effect and no answer */
    struct linear_result result;
};

struct linear_history {
    struct linear_op *ops;
    size_t count;
    size_t cap;
    uint64_t order;
};

void linear_init(struct linear_history *h);
void linear_fini(struct linear_history *h);
/** Records a call at virtual time `now_ns`; returns its number. The caller sets the fields before
 * "The history's own". */
uint32_t linear_invoke(struct linear_history *h, const struct linear_op *op, uint64_t now_ns);
/** Records an answer. An operation without one has an unknown outcome. */
void linear_return(struct linear_history *h, uint32_t op, const struct linear_result *result,
                   uint64_t now_ns);
/** Records that an operation certainly did nothing. */
void linear_drop(struct linear_history *h, uint32_t op);

enum linear_verdict {
    LINEAR_OK = 0,
    LINEAR_VIOLATION, /* the text says which key, and the operation that cannot be placed */
    LINEAR_GAVE_UP,   /* too many operations on one key, or too many ways to order them */
};

enum linear_verdict linear_check(const struct linear_history *h, struct mu_errmsg *ret_msg);
/** One line for each operation on `key`. */
void linear_print(const struct linear_history *h, uint32_t key, FILE *out);
/** One operation and its answer as text, at most `cap` bytes. Returns `buf`. */
char *linear_format(const struct linear_op *op, char *buf, size_t cap);

#endif
