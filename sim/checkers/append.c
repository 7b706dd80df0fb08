#include "checkers/append.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "sim.h"

#define NOWHERE SIZE_MAX

void append_init(struct append_log *log)
{
    *log = (struct append_log){0};
    mu_buf_init(&log->longest, SIZE_MAX);
}

void append_fini(struct append_log *log)
{
    mu_buf_fini(&log->longest);
    mu_free(log->ops);
    append_init(log);
}

void append_format(int64_t token, char text[APPEND_TOKEN_LEN + 1])
{
    for (size_t i = APPEND_TOKEN_LEN - 1; i-- > 0; token /= 10) {
        text[i] = (char)('0' + token % 10);
    }
    memcpy(text + APPEND_TOKEN_LEN - 1, ".", 2);
}

static struct append_op *add_op(struct append_log *log)
{
    if (log->count == log->cap) {
        struct mu_sim_heap *heap = mu_sim_outside();

        log->cap = log->cap == 0 ? 64 : log->cap * 2;
        log->ops = mu_realloc(log->ops, log->cap * sizeof(*log->ops));
        mu_sim_inside(heap);
        MU_ASSERT(log->ops != NULL);
    }
    return &log->ops[log->count++];
}

size_t append_invoke(struct append_log *log, int64_t token, uint64_t now)
{
    *add_op(log) = (struct append_op){.token = token, .invoked = now};
    return log->count - 1;
}

void append_return(struct append_log *log, size_t op, size_t len, uint64_t now)
{
    log->ops[op].returned = now;
    log->ops[op].told = len / APPEND_TOKEN_LEN;
}

int append_read(struct append_log *log, struct mu_span value, uint64_t invoked, uint64_t returned,
                struct mu_errmsg *reterr_msg)
{
    struct mu_span longest = mu_buf_span(&log->longest);
    size_t shorter = value.len < longest.len ? value.len : longest.len;
    size_t tokens = value.len / APPEND_TOKEN_LEN;

    if (value.len % APPEND_TOKEN_LEN != 0) {
        return mu_err(reterr_msg, MUSTER_ECORRUPT, "an appended value has %zu bytes: half a token",
                      value.len);
    }
    if (shorter != 0 && memcmp(value.data, longest.data, shorter) != 0) {
        return mu_err(reterr_msg, MUSTER_ECORRUPT,
                      "two values of %zu and %zu bytes that were only appended to differ",
                      value.len, longest.len);
    }
    if (value.len > longest.len) {
        struct mu_sim_heap *heap = mu_sim_outside();
        int rc = mu_buf_append(&log->longest, mu_span_skip(value, longest.len));

        mu_sim_inside(heap);
        MU_ASSERT(rc == 0);
    }
    *add_op(log) = (struct append_op){
        .invoked = invoked, .returned = returned, .before = tokens, .after = tokens};
    return 0;
}

/* --- the check -------------------------------------------------------------------------------- */

/* Finds the place of each token in the longest value. */
static int place(struct append_log *log, struct append_op *op, struct mu_errmsg *reterr_msg)
{
    struct mu_span value = mu_buf_span(&log->longest);
    char text[APPEND_TOKEN_LEN + 1];

    append_format(op->token, text);
    op->before = NOWHERE;
    for (size_t i = 0; i < value.len; i += APPEND_TOKEN_LEN) {
        if (memcmp(value.data + i, text, APPEND_TOKEN_LEN) != 0) {
            continue;
        }
        if (op->before != NOWHERE) {
            return mu_err(reterr_msg, MUSTER_ECORRUPT, "append of %s took effect twice", text);
        }
        op->before = i / APPEND_TOKEN_LEN;
        op->after = op->before + 1;
    }
    if (op->before != NOWHERE && op->told != 0 && op->told != op->after) {
        return mu_err(reterr_msg, MUSTER_ECORRUPT,
                      "append of %s was told to be number %zu and is number %zu", text, op->told,
                      op->after);
    }
    return 0;
}

static int by_invoked(const void *a, const void *b)
{
    const struct append_op *x = *(const struct append_op *const *)a;
    const struct append_op *y = *(const struct append_op *const *)b;

    return x->invoked < y->invoked ? -1 : 1;
}

static int by_returned(const void *a, const void *b)
{
    const struct append_op *x = *(const struct append_op *const *)a;
    const struct append_op *y = *(const struct append_op *const *)b;

    return x->returned < y->returned ? -1 : 1;
}

static int explain(const struct append_op *first, const struct append_op *second,
                   struct mu_errmsg *reterr_msg)
{
    if (first->before == NOWHERE) {
        return mu_err(reterr_msg, MUSTER_ECORRUPT,
                      "append of %" PRId64 " was acknowledged at %" PRIu64
                      " and is not in what was read from %" PRIu64 " on",
                      first->token, first->returned, second->invoked);
    }
    return mu_err(reterr_msg, MUSTER_ECORRUPT,
                  "%s that ended at %" PRIu64 " found or made %zu tokens, %s that began at %" PRIu64
                  " found %zu",
                  first->token == 0 ? "a read" : "an append", first->returned, first->after,
                  second->token == 0 ? "a read" : "an append", second->invoked, second->before);
}

/* Of two operations where one ended before the other began, the first left no more than the second
 * found. */
static int check_order(struct append_op **began, struct append_op **ended, size_t count,
                       size_t ended_count, struct mu_errmsg *reterr_msg)
{
    const struct append_op *most = NULL;
    size_t k = 0;

    for (size_t i = 0; i < count; i++) {
        for (; k < ended_count && ended[k]->returned < began[i]->invoked; k++) {
            size_t after = ended[k]->before == NOWHERE ? SIZE_MAX : ended[k]->after;

            if (most == NULL || after > most->after || ended[k]->before == NOWHERE) {
                most = ended[k];
            }
            if (ended[k]->before == NOWHERE) {
                break; /* A token that is nowhere is also missing from every later read. */
            }
        }
        /* If one append or both are missing, nothing is known about their order. */
        if (most == NULL || began[i]->before == NOWHERE ||
            (most->before == NOWHERE && began[i]->token != 0)) {
            continue;
        }
        if (most->before == NOWHERE || most->after > began[i]->before) {
            return explain(most, began[i], reterr_msg);
        }
    }
    return 0;
}

int append_check(struct append_log *log, struct mu_errmsg *reterr_msg)
{
    struct append_op **began = mu_calloc(log->count + 1, sizeof(struct append_op *));
    struct append_op **ended = mu_calloc(log->count + 1, sizeof(struct append_op *));
    size_t ended_count = 0;
    int err = 0;

    MU_ASSERT(began != NULL && ended != NULL);
    for (size_t i = 0; i < log->count && err == 0; i++) {
        struct append_op *op = &log->ops[i];

        if (op->token != 0) {
            err = place(log, op, reterr_msg);
        }
        began[i] = op;
        if (op->returned != 0) {
            ended[ended_count++] = op;
        }
    }
    if (err == 0) {
        qsort(began, log->count, sizeof(struct append_op *), by_invoked);
        qsort(ended, ended_count, sizeof(struct append_op *), by_returned);
        err = check_order(began, ended, log->count, ended_count, reterr_msg);
    }
    mu_free(began);
    mu_free(ended);
    return err;
}
