/*
 * Queues: how a program that has an event loop of its own learns what has ended, without being
 * called on the runtime's thread. Bindings of other languages need no callback at all.
 *
 *     muster_queue *queue;
 *     struct muster_queued events[64];
 *     muster_queue_new(rt, &queue);
 *     ... let epoll, libuv, asyncio or Qt watch muster_queue_fd(queue) for reading ...
 *
 *     struct muster_store_request request = muster_store_request_defaults();
 *     request.queue = queue;                   instead of `done`
 *     request.context = me;
 *     muster_store_submit(store, &request, &op);
 *
 *     when it is readable
 *     while ((n = muster_queue_take(queue, events, 64)) > 0)
 *         for (i = 0; i < n; i++)
 *             look_at(&events[i]);             its kind says what its object is
 *
 * What is in a queue: store operations, watches, RPC calls both ways, loads of a state and steps of
 * an averager that named it. Each has at most one place in the queue at a time, except that every
 * call that comes in has its own. What was freed is no longer in the queue. If several threads
 * take, see to it that none frees what another has just taken.
 *
 * A queue belongs to a runtime; what is put into it must be of the same one. All functions may be
 * called from any thread. Several threads may take from one queue.
 */
#ifndef MUSTER_QUEUE_H
#define MUSTER_QUEUE_H

#include <muster/runtime.h>
#include <muster/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct muster_queue muster_queue;

enum muster_queued_kind {
    MUSTER_QUEUED_OP = 1,   /* a store operation has ended: a muster_op */
    MUSTER_QUEUED_CHANGE,   /* a watch has changes for muster_op_change_next(): a muster_op. Its end
                             is queued when the changes before it have been taken */
    MUSTER_QUEUED_FUTURE,   /* an RPC call has ended: a muster_rpc_future */
    MUSTER_QUEUED_CALL,     /* a call came in, which must be answered: a muster_rpc_call_in */
    MUSTER_QUEUED_LOADED,   /* a load has ended: a muster_state_loading */
    MUSTER_QUEUED_AVERAGED, /* a step has ended: a muster_average */
};

/* Something that is due. */
struct muster_queued {
    enum muster_queued_kind kind;
    void *object;
    void *context; /* the context that came with the request or with the registration */
};

/** MUSTER_EINVAL, MUSTER_ENOMEM, or a negated errno: there are no descriptors left. */
MUSTER_EXPORT int muster_queue_new(muster_runtime *runtime, muster_queue **ret_queue);
/** A descriptor that is readable while something is in the queue. Watch it and nothing else: it
 * belongs to the queue, and muster_queue_take() reads it. */
MUSTER_EXPORT int muster_queue_fd(const muster_queue *queue);
/** Takes up to `cap` things, the oldest first, and returns how many; 0: there is nothing. Does not
 * wait. */
MUSTER_EXPORT size_t muster_queue_take(muster_queue *queue, struct muster_queued *ret, size_t cap);
/** Waits until something is in the queue, for up to `timeout_ms`; 0 asks without waiting.
 * MUSTER_ETIMEDOUT; MUSTER_EINVAL on the runtime's thread, unless `timeout_ms` is 0. */
MUSTER_EXPORT int muster_queue_wait(muster_queue *queue, int64_t timeout_ms);
/**
 * Frees the queue. What was under way goes on, and is not queued any more; calls that are in the
 * queue, and those that come in later for it, are answered with MUSTER_ECLOSED. No other thread may
 * use the queue then. Free it before its runtime. NULL is fine.
 */
MUSTER_EXPORT void muster_queue_free(muster_queue *queue);

#ifdef __cplusplus
}
#endif

#endif
