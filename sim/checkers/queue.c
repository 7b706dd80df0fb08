#include "checkers/queue.h"

#include <inttypes.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "sim.h"

void queue_fini(struct queue_history *h)
{
    mu_free(h->pushes.ops);
    mu_free(h->pops.ops);
    *h = (struct queue_history){0};
}

static size_t add_op(struct queue_ops *list, struct queue_op op)
{
    if (list->count == list->cap) {
        struct mu_sim_heap *heap = mu_sim_outside();

        list->cap = list->cap == 0 ? 64 : list->cap * 2;
        list->ops = mu_realloc(list->ops, list->cap * sizeof(*list->ops));
        mu_sim_inside(heap);
        MU_ASSERT(list->ops != NULL);
    }
    list->ops[list->count] = op;
    return list->count++;
}

size_t queue_push(struct queue_history *h, int64_t element, uint64_t now)
{
    return add_op(&h->pushes, (struct queue_op){.element = element, .invoked = now});
}

size_t queue_pop(struct queue_history *h, uint64_t now)
{
    return add_op(&h->pops, (struct queue_op){.invoked = now});
}

void queue_pushed(struct queue_history *h, size_t push, uint64_t now)
{
    h->pushes.ops[push].outcome = QUEUE_DONE;
    h->pushes.ops[push].returned = now;
}

void queue_popped(struct queue_history *h, size_t pop, enum queue_outcome outcome, int64_t element,
                  uint64_t now)
{
    h->pops.ops[pop].outcome = outcome;
    h->pops.ops[pop].returned = now;
    h->pops.ops[pop].element = element;
}

/* --- the check -------------------------------------------------------------------------------- */

/* Finds the push of each pop's element. */
static int match(struct queue_history *h, struct mu_errmsg *reterr_msg)
{
    for (size_t i = 0; i < h->pops.count; i++) {
        const struct queue_op *pop = &h->pops.ops[i];
        struct queue_op *push = h->pushes.ops;
        const struct queue_op *end = push + h->pushes.count;

        if (pop->outcome != QUEUE_DONE) {
            continue;
        }
        while (push < end && push->element != pop->element) {
            push++;
        }
        if (push == end || push->invoked > pop->returned) {
            return mu_err(reterr_msg, MUSTER_ECORRUPT, "%" PRId64 " was popped and never pushed",
                          pop->element);
        }
        if (push->popped_by != 0) {
            return mu_err(reterr_msg, MUSTER_ECORRUPT, "%" PRId64 " was popped twice",
                          pop->element);
        }
        push->popped_by = i + 1;
    }
    return 0;
}

static const struct queue_op *pop_of(const struct queue_history *h, const struct queue_op *push)
{
    return push->popped_by == 0 ? NULL : &h->pops.ops[push->popped_by - 1];
}

static int check_order(const struct queue_history *h, const struct queue_op *first,
                       const struct queue_op *second, struct mu_errmsg *reterr_msg)
{
    const struct queue_op *a = pop_of(h, first);
    const struct queue_op *b = pop_of(h, second);

    if (first->returned == 0 || first->returned > second->invoked || a == NULL || b == NULL ||
        b->returned > a->invoked) {
        return 0;
    }
    return mu_err(reterr_msg, MUSTER_ECORRUPT,
                  "%" PRId64 " was pushed before %" PRId64 " and popped after it", first->element,
                  second->element);
}

/* Returns whether the queue certainly held this element from the pop's beginning to its end. */
static int check_empty(const struct queue_history *h, const struct queue_op *pop,
                       const struct queue_op *push, struct mu_errmsg *reterr_msg)
{
    const struct queue_op *later = pop_of(h, push);

    if (push->returned == 0 || push->returned > pop->invoked || later == NULL ||
        later->invoked < pop->returned) {
        return 0;
    }
    return mu_err(reterr_msg, MUSTER_ECORRUPT,
                  "a pop from %" PRIu64 " to %" PRIu64 " found nothing while %" PRId64 " was there",
                  pop->invoked, pop->returned, push->element);
}

static int check_missing(const struct queue_history *h, struct mu_errmsg *reterr_msg)
{
    int64_t example = 0;
    size_t missing = 0;
    size_t unknown = 0;

    for (size_t i = 0; i < h->pushes.count; i++) {
        const struct queue_op *push = &h->pushes.ops[i];

        if (push->outcome == QUEUE_DONE && push->popped_by == 0) {
            missing++;
            example = push->element;
        }
    }
    for (size_t i = 0; i < h->pops.count; i++) {
        unknown += h->pops.ops[i].outcome == QUEUE_UNKNOWN ? 1 : 0;
    }
    if (missing <= unknown) {
        return 0;
    }
    return mu_err(reterr_msg, MUSTER_ECORRUPT,
                  "%zu elements were acknowledged and nobody got them, such as %" PRId64
                  "; %zu pops may have taken one",
                  missing, example, unknown);
}

int queue_check(struct queue_history *h, struct mu_errmsg *reterr_msg)
{
    int err = match(h, reterr_msg);

    for (size_t i = 0; i < h->pushes.count && err == 0; i++) {
        for (size_t k = 0; k < h->pushes.count && err == 0; k++) {
            err = check_order(h, &h->pushes.ops[i], &h->pushes.ops[k], reterr_msg);
        }
        for (size_t k = 0; k < h->pops.count && err == 0; k++) {
            if (h->pops.ops[k].outcome == QUEUE_EMPTY) {
                err = check_empty(h, &h->pops.ops[k], &h->pushes.ops[i], reterr_msg);
            }
        }
    }
    return err == 0 ? check_missing(h, reterr_msg) : err;
}
