/*
 * The stacks of a whole run. Whoever can use the store of its round asks there, and each agent of
 * the round answers with what its workers are doing (codec/stacks/answer.h):
 *
 *     muster/stacks/ask          a counter: how often was asked in this round
 *     muster/stacks/ask/N        question N: "main", or "all" for all threads; and for how many
 *                                milliseconds flight recorders may be waited for: "main 1500"
 *     muster/stacks/N/NODE       the answer of a node, by its rank in the round
 *
 * Who asks adds 1 to the counter, which gives N, and sets question N; every agent waits for the
 * question that comes after the last that it has seen. That is a wait for a key, which every kind
 * of store has and which costs nothing while nobody asks. An agent reads the counter again when it
 * wakes, and so answers the latest question even if one before it was never set.
 *
 *     ask.config = (struct mu_stacks_ask_config){.timeout_ms = 2000, .answer = ..., .done = ...};
 *     mu_stacks_ask_start(&ask)             of any round: with `env`, `store` and `nodes` set, too
 *     mu_agent_stacks_ask(agent, &ask)      inside an agent, of the round that it is in
 *         answer(...) for each node that answers, this one included; then done(...)
 *     mu_stacks_ask_has(&ask, node)         in `done`: whether it has answered
 *
 * An agent that is stopped, lost or of a version without this does not answer: it is one of those
 * that are missing when the time is over. Each agent answers once a second at most; questions that
 * come faster share an answer. Reading never stops a worker (service/stacks/take.h).
 */
#ifndef MU_AGENT_STACKS_H
#define MU_AGENT_STACKS_H

#include "codec/stacks/answer.h"
#include "service/agent/agent.h"

#define MU_AGENT_STACKS_KEY     "muster/stacks/"
#define MU_AGENT_STACKS_ASK_KEY MU_AGENT_STACKS_KEY "ask"
#define MU_AGENT_STACKS_REST_MS 1000 /* between two answers of an agent */
#define MU_AGENT_STACKS_LOOK_MS 1200 /* for its own workers: who takes longer is not waited for */
/* For their flight recorders, if who asks has the time. */
#define MU_AGENT_STACKS_FLIGHT_MS_MAX 10000

struct mu_stacks_ask;
struct mu_stacks_ask_node;

/* All pointers are borrowed until `done`. */
struct mu_stacks_ask_config {
    struct mu_env *env;
    struct mu_store *store; /* the round's */
    uint32_t nodes;         /* of the round: 1 to MU_EXCHANGE_AGENTS_MAX */
    uint32_t timeout_ms;    /* for all of it, more than 0 */
    bool all_threads;       /* else the main thread of each worker is enough */
    /** A node has answered. All is lent for the call, which must not call back. */
    void (*answer)(void *context, uint32_t node, const struct mu_stacks_answer *answer);
    /**
     * Called once, on a later turn than the start; from inside it anything may be done. 0: all
     * nodes have answered, or the time is over. MUSTER_ECANCELED; MUSTER_ENOMEM; or the store's
     * error, if the question could not even be asked. The text is in `errmsg`.
     */
    void (*done)(struct mu_stacks_ask *ask, int status);
    void *context;
};

/* It must stay where it is until `done`. */
struct mu_stacks_ask {
    struct mu_stacks_ask_config config; /* filled in before the start */
    uint32_t answered;                  /* how many nodes have */
    struct mu_errmsg errmsg;            /* with a status other than 0 */

    /* Internal from here on. */
    struct mu_agent_round *round; /* mu_agent_stacks_ask(): its list has us */
    struct mu_list link;
    struct mu_store_op op;
    struct mu_timer timer;
    mu_mono_t deadline;
    uint64_t question;
    struct mu_stacks_ask_node *nodes;
    uint32_t waiting; /* operations that have not ended */
    int status;
    bool canceled;
    struct mu_span keys[2];
    struct mu_span values[2];
    char names[2][48];
    char text[24]; /* the question */
};

/** Asks. Cannot fail: errors come with `done`. */
void mu_stacks_ask_start(struct mu_stacks_ask *ask);
/** Soon: done(ask, MUSTER_ECANCELED), unless it ends otherwise first. */
void mu_stacks_ask_cancel(struct mu_stacks_ask *ask);
/** Whether a node has answered; until `done` has returned. */
bool mu_stacks_ask_has(const struct mu_stacks_ask *ask, uint32_t node);

/**
 * Asks all agents of the round that this agent is in; `env`, `store` and `nodes` are set here. It
 * is canceled when the round ends, and `done` comes before the agent is freed. MUSTER_ENOENT: there
 * is no round with a store just now; `done` does not follow then.
 */
int mu_agent_stacks_ask(struct mu_agent_service *s, struct mu_stacks_ask *ask);
/** The name of a node of that round; "": it is not known. Lent until the round ends. */
const char *mu_agent_stacks_node(const struct mu_agent_service *s, uint32_t node);

#endif
