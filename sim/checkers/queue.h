/*
 * Checker: a queue. Each push has its own element. What is popped was pushed, and is popped once;
 * of two elements where one was there before the other was pushed, the first leaves no later, as
 * far as real time tells; no client is told that the queue is empty while it certainly is not; and
 * when it has been drained at the end, the acknowledged elements that no client got are no more
 * than what pops of unknown outcome may have taken.
 *
 * Times are ticks of any clock that has no two events at once, and never 0.
 */
#ifndef MU_SIM_QUEUE_H
#define MU_SIM_QUEUE_H

#include <stddef.h>
#include <stdint.h>

#include "core/err.h"

enum queue_outcome {
    QUEUE_UNKNOWN = 0, /* until another outcome is recorded */
    QUEUE_DONE,
    QUEUE_EMPTY,   /* a pop that did not wait */
    QUEUE_NOTHING, /* a pop that certainly took nothing */
};

struct queue_op {
    int64_t element; /* pushed, or popped */
    uint64_t invoked;
    uint64_t returned; /* 0 while unknown */
    enum queue_outcome outcome;
    size_t popped_by; /* push: the pop that got it, plus one */
};

struct queue_ops {
    struct queue_op *ops;
    size_t count;
    size_t cap;
};

struct queue_history {
    struct queue_ops pushes;
    struct queue_ops pops;
};

void queue_fini(struct queue_history *h);
/** A push or a pop begins; returns its number. */
size_t queue_push(struct queue_history *h, int64_t element, uint64_t now);
size_t queue_pop(struct queue_history *h, uint64_t now);
void queue_pushed(struct queue_history *h, size_t push, uint64_t now);
/** `element` counts with QUEUE_DONE. */
void queue_popped(struct queue_history *h, size_t pop, enum queue_outcome outcome, int64_t element,
                  uint64_t now);
/** Checks the history. MUSTER_ECORRUPT with a message. */
int queue_check(struct queue_history *h, struct mu_errmsg *reterr_msg);

#endif
