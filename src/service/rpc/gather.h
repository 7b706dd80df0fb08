/*
 * Exchanges objects of a whole group, through its agents: one worker leads, the others call it, and
 * the answer is the result. So every worker has it after one call, and the calls that are not
 * answered yet show which workers have come.
 *
 *     at the leader    mu_rpc_gather_open(g, &lead)       `done` follows
 *     at the others    a call of MU_RPC_GATHER_METHOD: three parts, the tag, the object, and for
 *                      how many milliseconds it waits (u32; 0: for ever)
 *
 * The leader answers a worker whose time is up, so that it learns which workers are missing. The
 * worker makes its call without a deadline, and gives up by itself if no answer comes for
 * MU_RPC_GATHER_LATE_MS more.
 *
 * A room is known by its tag, which can be used again once all workers have their answer.
 */
#ifndef MU_RPC_GATHER_H
#define MU_RPC_GATHER_H

#include "service/rpc/agent.h"

#define MU_RPC_GATHER_METHOD  "muster::Group.gather"
#define MU_RPC_GATHER_TAG_MAX 200
#define MU_RPC_GATHER_LATE_MS 250

struct mu_rpc_gather;
struct mu_rpc_room;

/* The leader's part, in its memory until `done`. */
struct mu_rpc_lead {
    const char *tag;
    const char *const *names; /* of the others, without itself, ascending by bytes */
    size_t count;
    size_t place; /* of the leader among them, for its object */
    struct mu_span object;
    bool broadcast;      /* the leader's object is for all, and the others have none */
    uint32_t timeout_ms; /* 0: no limit */
    /** 0 and a message of one part for each worker, or (broadcast) of one part; else a text.
     * Lent. */
    void (*done)(struct mu_rpc_lead *lead, int status, struct mu_span message);
    struct mu_rpc_room *room; /* private */
};

/** MUSTER_EEXIST, MUSTER_ENOMEM. */
int mu_rpc_gather_start(struct mu_env *env, struct mu_rpc_agent *agent,
                        struct mu_rpc_gather **ret_gather);
/** MUSTER_EBUSY (the tag is in use), MUSTER_ECLOSED, MUSTER_ENOMEM: `done` is not called. It may be
 * called before this returns, if all have come before. */
int mu_rpc_gather_open(struct mu_rpc_gather *g, struct mu_rpc_lead *lead);
/** Before mu_rpc_agent_stop(): all that wait are answered. */
void mu_rpc_gather_stop(struct mu_rpc_gather *g);
/** After the agent's `stopped`, and before it is freed. NULL is fine. */
void mu_rpc_gather_free(struct mu_rpc_gather *g);

#endif
