/*
 * What the agents of a round say to each other through its store: the ranks of their workers when
 * it begins, and a barrier at the end. PyTorch's keys and values, so that its agents may be among
 * them; in two generations, which all agents of a round must agree on:
 *
 *     MU_EXCHANGE_2   as PyTorch 2.11: everybody says how many workers it has, agent 0 reads all
 *                     and tells each its share. O(N) operations. Ours, too.
 *     MU_EXCHANGE_1   as PyTorch 1.13: everybody reads what everybody says. O(N^2). The address of
 *                     the workers' store goes the same way.
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
    /* TORCH_ELASTIC_WORKER_IDENTICAL=1, on all nodes: the same role and number of workers
     * everywhere, so ranks follow without a word. Only generation 2 knows it. */
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
     * 0; MUSTER_ETIMEDOUT, the text names a key that is missing; MUSTER_EPROTO: a peer said what
     * makes no sense; MUSTER_ECANCELED; what the store failed with.
     */
    void (*done)(struct mu_agent_exchange *x, int status);
    void *context;
};

struct mu_agent_exchange {
    struct mu_agent_exchange_config config; /* filled in before the start */
    /* What came of it, with status 0. */
    struct mu_ranks ranks;
    char master_addr[MU_ADDR_HOST_MAX + 1]; /* generation 1 */
    uint16_t master_port;                   /* generation 1 */
    struct mu_errmsg errmsg;                /* with any other status */

    /* Its own from here. */
    struct mu_store_op op;
    struct mu_timer timer;
    mu_mono_t deadline;
    void (*next)(struct mu_agent_exchange *x);
    char port_text[8];
    void *block; /* the keys and values of the operation under way */
    int status;
    bool waiting; /* for the operation, which can be canceled */
    bool canceled;
};

/** Cannot fail: what is wrong comes as `done`. */
void mu_agent_exchange_start(struct mu_agent_exchange *x);
/** The barrier at the end: role, workers and master play no part. */
void mu_agent_barrier_start(struct mu_agent_exchange *x);
/** Either of them; harmless once `done` was called, and twice. */
void mu_agent_exchange_cancel(struct mu_agent_exchange *x);

#endif
