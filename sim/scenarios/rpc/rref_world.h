/*
 * The world of the scenario "rref".
 *
 *     rref.c         the story: the workers, when the faults end, what must be left
 *     rref_worker.c  a worker, and what must hold at each of its steps
 */
#ifndef MU_SIM_RREF_WORLD_H
#define MU_SIM_RREF_WORLD_H

#include "checkers/once.h"
#include "service/rpc/rref_agent.h"
#include "sim.h"

#define WORKERS   4
#define USERS_MAX 4096

struct worker;

struct worker_state {
    struct rref_world *world;
    uint32_t number;
    uint64_t life;       /* life of its process, or of its last one */
    struct worker *live; /* its process; NULL: dead */
    struct mu_sim_proc *proc;
    bool left; /* it left for good */
};

/* A user as the test sees it, whatever happened to its process. */
struct user_record {
    struct mu_rref_id rref;
    struct mu_rref_id fork;
    uint32_t worker;
    uint64_t life;
    uint32_t owner;
    uint64_t owner_life; /* 0: not known yet */
    uint32_t parent;     /* of a token; WORKERS: no parent */
    uint64_t parent_life;
    bool confirmed;
    bool released;
};

/* What outlives the processes. */
struct rref_world {
    struct mu_sim *sim;
    struct once *calls;
    struct worker_state workers[WORKERS];
    struct user_record users[USERS_MAX];
    size_t user_count;
    uint64_t passed;
    uint64_t fetched;
    bool draining; /* nothing new is made, and everything is released */
    bool leaving;
    bool short_of_memory;
    bool hasty;
    bool leaky;
};

extern const char *const rref_names[WORKERS];

/** The program of a worker; `arg` is its state. */
int rref_worker_start(struct mu_env *env, void *arg);
void rref_worker_killed(void *arg);
/** Describes its references. */
void rref_worker_stats(const struct worker *w, struct mu_rref_stats *ret);

#endif
