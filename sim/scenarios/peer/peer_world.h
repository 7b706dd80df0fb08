/*
 * What the scenario `peer` shares with its hostile guest.
 *
 *     peer.c            hosts that call each other, and what must hold
 *     peer_check.c      the checker that looks into the connections after every step
 *     peer_hostile.c    a guest that breaks the rules
 */
#ifndef MU_SIM_PEER_WORLD_H
#define MU_SIM_PEER_WORLD_H

#include "checkers/once.h"
#include "service/peer/host_internal.h"
#include "sim.h"

#define PEER_HOSTS 3
#define PEER_PORT  4001
#define PEER_NAME  "/sim/echo/1.0.0"
#define PEER_CALLS 128 /* of one host, at most */

enum peer_plant {
    PEER_PLANT_NONE = 0,
    PEER_PLANT_GREEDY,   /* a host grants itself a larger window */
    PEER_PLANT_NONCE,    /* a host seals a message with a counter that was used */
    PEER_PLANT_OPENDOOR, /* a host of the private swarm lets every peer in */
    PEER_PLANT_LOSING,   /* a host forgets that a stream has ended */
};

struct peer_world;

/* A call that was made. It outlives its stream. */
struct peer_made {
    uint32_t to;
    uint32_t bytes;
};

struct peer_state {
    struct peer_world *world;
    uint32_t number;
    struct mu_identity identity;
    struct mu_sim_host *sim_host;
    struct mu_sim_proc *proc;
    struct peer_host_app *app; /* while it runs */
    struct peer_made made[PEER_CALLS];
    uint32_t made_count;
    uint32_t reached[PEER_HOSTS]; /* calls that were answered, by host */
};

struct peer_world {
    struct mu_sim *sim;
    struct once *calls;
    struct peer_state hosts[PEER_HOSTS];
    struct mu_identity stranger; /* the guest's, valid but not on the list */
    struct mu_sim_proc *guest;
    struct guest *guest_app; /* while it runs */
    enum peer_plant plant;
    bool planted; /* the planted bug has happened */
    bool private_swarm;
    bool healed;
    bool leaving;
    uint32_t wanted[PEER_HOSTS][PEER_HOSTS];
    uint64_t steps;
};

/* One host, in its process's memory. */
struct peer_host_app {
    struct peer_state *state;
    struct mu_env *env;
    struct mu_peer_host *host;
    struct mu_peer_handler handler;
    struct mu_timer timer;
    size_t under_way;
    size_t serving;
    bool stopping;
};

/** Called after every step. */
void peer_check(struct mu_sim *sim, void *arg);
/** Starts the guest. */
void peer_hostile_start(struct peer_world *w);
/** Frees what the guest holds and the simulator cannot free. */
void peer_hostile_release(struct peer_world *w);

#endif
