/*
 * Objects of a whole group, through its agents: one of the group leads, the others call it, and
 * what they are answered is the result. So everybody has it after one call of each, and a call that
 * is not answered yet is who has come so far.
 *
 *     at the leader    mu_rpc_gather_open(g, &lead)       `done` follows
 *     at the others    a call of MU_RPC_GATHER_METHOD: three parts, the tag, the object, and for
 *                      how many milliseconds it waits (u32; 0: for ever)
 *
 * Who waits no longer is answered from here, so that it learns who is missing; it makes its call
 * without a deadline, and gives it up by itself if nothing comes of it for MU_RPC_GATHER_LATE_MS
 * more.
 *
 * Rooms are told apart by their tag, which can be used again once everybody has been answered.
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
    size_t place; /* of the leader among them: where its object goes */
    struct mu_span object;
    bool broadcast;      /* the object is for all, and they have none */
    uint32_t timeout_ms; /* 0: none */
    /** 0 and a message of one part for each, or (broadcast) of one; else a text. Lent. */
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
