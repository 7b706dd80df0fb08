/*
 * A workload of store operations: clients that issue one random operation after another, a history
 * of what they were told, and the checks over it. Generic: how an operation is really issued is a
 * function of the client, so every kind of store and every protocol can take part.
 *
 *     struct workload w;
 *     workload_init(&w, sim, keys);
 *     ... client processes embed struct workload_client and call workload_client_start() ...
 *     run, heal;  workload_finish(&w): every client reads every key once more, then stops
 *     workload_check(&w);
 *
 * The workload is the test's and outlives the clients, which may be killed at any moment.
 */
#ifndef MU_SIM_WORKLOAD_H
#define MU_SIM_WORKLOAD_H

#include "checkers/linear.h"
#include "checkers/once.h"
#include "core/env.h"
#include "core/prng.h"
#include "sim.h"

#define WORKLOAD_KEYS_MAX    16
#define WORKLOAD_CLIENTS_MAX 16

struct workload {
    struct mu_sim *sim;
    struct linear_history history;
    struct once *ops; /* each operation ends exactly once */
    uint32_t keys;
    uint64_t think_max_ns; /* between two operations of a client */
    bool finishing;        /* read every key, then stop */
    struct workload_tally {
        uint32_t completed; /* operations that ended, whatever the outcome */
        uint32_t known;     /* of these, with a known outcome */
        bool stopped;
    } tallies[WORKLOAD_CLIENTS_MAX];
};

struct workload_client;

struct workload_client_ops {
    /** Starts an operation; workload_done() follows exactly once, on a later turn. */
    void (*issue)(struct workload_client *client, const struct linear_op *op);
    /** The client has done its part: it closes what it has and exits. */
    void (*stop)(struct workload_client *client);
};

/* Lives in the client's process. */
struct workload_client {
    const struct workload_client_ops *ops;
    struct workload *workload;
    uint32_t number; /* of the client, below WORKLOAD_CLIENTS_MAX */
    struct mu_env *env;
    struct mu_prng prng;
    struct mu_timer think;
    struct linear_value seen[WORKLOAD_KEYS_MAX]; /* what it last saw: to compare with */
    uint32_t op;                                 /* in the history */
    uint64_t ticket;
    bool busy;
    uint32_t read; /* keys read since the workload is finishing */
    int64_t unique;
};

enum workload_outcome {
    WORKLOAD_KNOWN = 1, /* `result` says what */
    WORKLOAD_UNKNOWN,   /* it may have taken effect, now or later */
    WORKLOAD_NOTHING,   /* it certainly has not, or says nothing */
};

void workload_init(struct workload *w, struct mu_sim *sim, uint32_t keys);
void workload_fini(struct workload *w);
/** Every client that still lives reads all keys and stops. */
void workload_finish(struct workload *w);
/** Fails the run if an operation never ended, or the history is not linearizable. */
void workload_check(struct workload *w);
/** The client of that number was killed: what it had begun stays unknown. */
void workload_client_killed(struct workload *w, uint32_t number);

/** Begins to issue operations. The caller has set `ops`. */
void workload_client_start(struct workload_client *c, struct workload *w, uint32_t number,
                           struct mu_env *env);
/** The operation ended. `result` counts if the outcome is known. */
void workload_done(struct workload_client *c, enum workload_outcome outcome,
                   const struct linear_result *result);

#endif
