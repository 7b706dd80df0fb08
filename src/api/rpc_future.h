/*
 * A call that was begun, from inside. The user holds it until muster_rpc_future_free(), the loop
 * until it has ended, and each post while it is under way; the last of them frees it.
 *
 * Callbacks run on the loop without the lock. `freed` is seen before each of them, and `calling`
 * tells the thread that frees the future to wait until after.
 */
#ifndef MU_API_RPC_FUTURE_H
#define MU_API_RPC_FUTURE_H

#include "api/queue_api.h"
#include "api/rpc_api.h"

struct muster_rpc_future {
    struct mu_rpc_out out; /* the loop's, until the end */
    muster_rpc_agent *agent;
    muster_runtime *rt;
    struct mu_post post;
    struct mu_post cancel_post;
    struct mu_post then_post;
    atomic_int refs;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    /* Under the lock. */
    bool ended;
    bool cancel_posted;
    bool then_posted;
    bool calling;             /* callbacks are being called */
    bool freed;               /* by its user: no callback begins any more, and it is not queued */
    muster_rpc_done *done;    /* of the request; NULL: none, or it was called */
    void *context;            /* likewise */
    struct mu_list callbacks; /* struct callback, those that were added */
    struct mu_queued place;
    /* What the library itself does at the end, whether its user has freed it or not. */
    void (*over)(void *context);
    void *over_context;
    /* The end. */
    int status;
    char *text;
    struct mu_rpc_pool *pool;
    struct mu_buf buf;
    struct mu_rpc_part *parts; /* of the answer, in `buf` */
    size_t part_count;
    /* The request. */
    int32_t to_id;
    bool by_name;
    char to[MU_RPC_WORKER_MAX + 1];
    char method[MU_RPC_METHOD_MAX + 1];
    struct mu_rpc_part *request;
    struct mu_rref_fetch *fetch; /* of a remote reference, whose call begins in its own way */
};

/** Fills in a zeroed one. Its request has been copied. */
void mu_rpc_future_init(muster_rpc_future *f, muster_rpc_agent *a,
                        const struct mu_rpc_request *asked);
/** On the loop: the call has ended, and the loop does not use it any more. */
void mu_rpc_future_end(muster_rpc_future *f, int status, const char *text);

#endif
