/*
 * What the agents of a round exchange through its store: the ranks of their workers when it begins,
 * and a barrier at the end. The keys and values are PyTorch's, so that its agents may take part;
 * there are two generations, and all agents of a round must use the same one:
 *
 *     MU_EXCHANGE_2   as PyTorch 2.11: each agent writes how many workers it has, agent 0 reads all
 *                     and tells each its share. O(N) operations. Our default, too.
 *     MU_EXCHANGE_1   as PyTorch 1.13: each agent reads what all have written. O(N^2). The address
 *                     of the workers' store goes the same way.
 *
 *     x.config = ...; mu_agent_exchange_start(&x);     done(x, status) follows: x.ranks
 *     b.config = ...; mu_agent_barrier_start(&b);      done(b, status) follows
 *     mu_agent_exchange_cancel(&x);                    soon: done(x, MUSTER_ECANCELED)
 *
 * The struct is the caller's and must stay where it is until `done`, and the store open. `done` is
 * called exactly once, on a later turn; from inside it anything may be done, another start too.
 */
#ifndef MU_AGENT_EXCHANGE_H
#define MU_AGENT_EXCHANGE_H

#include "codec/agent/role_info.h"
#include "core/env.h"
#include "core/err.h"
#include "service/store/store.h"

#define MU_EXCHANGE_AGENTS_MAX 65536

enum mu_exchange_generation {
    MU_EXCHANGE_1 = 1,
    MU_EXCHANGE_2,
};

struct mu_agent_exchange;

struct mu_agent_exchange_config {
    struct mu_env *env;
    struct mu_store *store; /* the round's; borrowed */
    enum mu_exchange_generation generation;
    /* TORCH_ELASTIC_WORKER_IDENTICAL=1, on all nodes: role and number of workers are the same
     * everywhere, so ranks follow without an exchange. Only generation 2 has it. */
    bool identical;
    uint32_t rank;       /* of this agent */
    uint32_t world;      /* agents: 1 to MU_EXCHANGE_AGENTS_MAX */
    uint32_t workers;    /* of this agent */
    const char *role;    /* borrowed until `done`; at most MU_ROLE_LEN_MAX bytes */
    uint32_t timeout_ms; /* for all of it; 0: never. 300 s in PyTorch */
    /* Generation 1, agent 0: what it tells the others. Borrowed until `done`. */
    const char *master_addr;
    uint16_t master_port;
    /**
     * 0; MUSTER_ETIMEDOUT, the text names a key that is missing; MUSTER_EPROTO: another agent wrote
     * nonsense, or the keys of the other generation; MUSTER_ECANCELED; or the store's error.
     */
    void (*done)(struct mu_agent_exchange *x, int status);
    void *context;
};

struct mu_agent_exchange {
    struct mu_agent_exchange_config config; /* filled in before the start */
    /* The result, with status 0. */
    struct mu_ranks ranks;
    char master_addr[MU_ADDR_HOST_MAX + 1]; /* generation 1 */
    uint16_t master_port;                   /* generation 1 */
    struct mu_errmsg errmsg;                /* with any other status */

    /* Internal from here on. */
    struct mu_store_op op;
    struct mu_timer timer;
    mu_mono_t deadline;
    void (*next)(struct mu_agent_exchange *x);
    char port_text[8];
    void *block; /* the keys and values of the operation under way */
    int status;
    bool looking;       /* generation 2: the wait for others ends early, to look who they are */
    uint32_t look_rank; /* at whom it looked last */
    bool waiting;       /* for the operation, which can be canceled */
    bool canceled;
};

/** Cannot fail: errors come with `done`. */
void mu_agent_exchange_start(struct mu_agent_exchange *x);
/** The barrier at the end: role, workers and master play no part. */
void mu_agent_barrier_start(struct mu_agent_exchange *x);
/** Cancels either of them. Harmless once `done` was called, and when called twice. */
void mu_agent_exchange_cancel(struct mu_agent_exchange *x);

#endif
