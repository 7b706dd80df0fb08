/*
 * A method that is served and a call of it that came in, from inside. The call is the handler's
 * until it is answered: on the loop, on a thread of the agent, or on one that took it from a queue.
 */
#ifndef MU_API_RPC_SERVE_H
#define MU_API_RPC_SERVE_H

#include "api/queue_api.h"
#include "api/rpc_api.h"

struct mu_rpc_served {
    struct mu_rpc_method base;
    muster_rpc_handler *handler; /* NULL: its calls go into `queue` */
    muster_queue *queue;         /* a reference */
    void *context;
    uint32_t flags;
    struct muster_rpc_profile profile; /* in ns, under the agent's lock */
};

struct muster_rpc_call_in {
    muster_rpc_agent *agent;
    struct mu_rpc_served *method;
    struct mu_rpc_in *in; /* the loop's */
    struct mu_rpc_job job;
    struct mu_queued place;
    struct mu_post post;
    struct mu_buf buf; /* the message that came */
    struct mu_rpc_part *parts;
    size_t part_count;
    char caller[MU_RPC_WORKER_MAX + 1];
    struct timespec deadline; /* on the threads' clock */
    bool has_deadline;
    uint64_t came_ns; /* 0: profiling is off */
    uint64_t began_ns;
    /* Under the agent's lock. */
    int canceled;
    void (*on_cancel)(muster_rpc_call_in *call, void *context);
    void *cancel_context;
    /* The answer. */
    int status;
    struct mu_buf answer;
};

#endif
