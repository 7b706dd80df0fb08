/*
 * Queues from inside: how an object of the API gets into one and out of it.
 *
 *     struct muster_op { ...; struct mu_queued place; };
 *     mu_queued_init(&op->place, queue, op, context);       may be NULL: then nothing is queued
 *     mu_queued_push(&op->place, MUSTER_QUEUED_OP);         it has ended
 *     mu_queued_leave(&op->place);                          its user frees it
 *     mu_queued_fini(&op->place);                           with its memory
 *
 * A place holds a reference to its queue, so the queue's memory outlives everything that could be
 * put into it. The lock of a queue is the innermost: nothing is called under it, and an object may
 * hold its own lock while it enters or leaves.
 */
#ifndef MU_API_QUEUE_H
#define MU_API_QUEUE_H

#include <stdatomic.h>

#include <muster/queue.h>

#include "api/api.h"
#include "core/list.h"

struct muster_queue {
    muster_runtime *rt;
    pthread_mutex_t lock;
    atomic_uint refs; /* the user's, and one for each place and method */
    /* Under the lock. */
    struct mu_list places; /* struct mu_queued, the oldest first */
    int fd;                /* readable while `places` is not empty; -1: freed */
};

/* The place of an object in a queue. */
struct mu_queued {
    struct mu_list link; /* queue->places */
    muster_queue *queue; /* NULL: it has none */
    struct muster_queued what;
    /** The queue is freed, and this was in it. Called without a lock. May be NULL. */
    void (*dropped)(struct mu_queued *place);
};

muster_queue *mu_queue_ref(muster_queue *queue);
void mu_queue_unref(muster_queue *queue);
/** MUSTER_EINVAL, and its text is kept: the queue is another runtime's. NULL is fine. */
int mu_queue_check(const muster_queue *queue, const muster_runtime *rt);

void mu_queued_init(struct mu_queued *place, muster_queue *queue, void *object, void *context);
/** Harmless on a zeroed one, and twice. */
void mu_queued_fini(struct mu_queued *place);
/** Puts it into the queue unless it is there. False: there is no queue, or it was freed. */
bool mu_queued_push(struct mu_queued *place, enum muster_queued_kind kind);
/** Takes it out; returns whether it was there. Then nobody else gets it. */
bool mu_queued_leave(struct mu_queued *place);

#endif
