/*
 * What the files of the scenario `state-swarm` share.
 *
 *     state_swarm.c       the world, what must hold, how it ends
 *     state_swarm_node.c  a node: what it shares, honestly or not
 *     state_swarm_load.c  a node that loads
 */
#ifndef MU_SIM_STATE_SWARM_WORLD_H
#define MU_SIM_STATE_SWARM_WORLD_H

#include "checkers/load.h"
#include "service/peer/env.h"
#include "service/state/swarm_load.h"
#include "sim.h"

#define SWARM_NODES    7 /* at the most */
#define SWARM_TAKERS   2 /* of them, at most; the last ones */
#define SWARM_VERSIONS 3
#define SWARM_FLOATS   20000u
#define SWARM_BYTES    (SWARM_FLOATS * 4)
#define SWARM_CHUNK    LOAD_CHUNK
#define SWARM_CHUNKS   ((SWARM_BYTES + SWARM_CHUNK - 1) / SWARM_CHUNK)
#define SWARM_PREFIX   "run_state_averager"
#define SWARM_AVERAGER "TrainingStateAverager"
#define SWARM_BOAST    100 /* how much a false priority is too great */

enum swarm_kind {
    SWARM_SEED = 0, /* the first, through which all join; honest, and always there */
    SWARM_HONEST,   /* on the native wire */
    SWARM_HIVEMIND, /* honest, and speaks only hivemind's protocol */
    SWARM_BOASTER,  /* claims a greater priority in the DHT */
    SWARM_EMPTY,    /* likewise, and has nothing */
    SWARM_CORRUPT,  /* some bytes are not what they were */
    SWARM_FORGER,   /* likewise, and its signature is invalid */
    SWARM_KINDS,
    SWARM_TAKER,
};

enum swarm_plant {
    SWARM_PLANT_NONE = 0,
    SWARM_PLANT_UNVERIFIED, /* a chunk counts as there that was never hashed */
    SWARM_PLANT_OLD,        /* the entries of the newest donors are ignored */
};

struct swarm_world;

/* What outlives its process. */
struct swarm_node {
    struct swarm_world *world;
    uint32_t number;
    const char *name;
    enum swarm_kind kind;
    bool fickle; /* goes on to newer versions */
    uint32_t version;
    struct mu_identity identity;
    struct mu_sim_proc *proc;
    struct swarm_app *app; /* while it runs */
    uint32_t started;      /* loads */
    bool final_done;       /* a load after the healing succeeded */
};

struct swarm_world {
    struct mu_sim *sim;
    enum swarm_plant plant;
    bool planted;
    bool quiet;  /* all faults have ended */
    bool healed; /* earlier entries have expired */
    bool leaving;
    struct mu_layout layout;
    float *content[SWARM_VERSIONS];
    uint8_t ids[SWARM_VERSIONS][MU_STATE_ID_LEN];
    struct swarm_node nodes[SWARM_NODES];
    uint32_t count;
    uint32_t givers; /* the first of them */
};

/* One node, in its process's memory. */
struct swarm_app {
    struct swarm_node *state;
    struct mu_env *env;
    struct mu_peer_host *host;
    struct mu_peer_env *peers;
    struct mu_state_swarm *swarm;
    struct mu_state_donor *donor; /* NULL: it does not use the native wire */
    struct mu_timer timer;
    bool settled; /* it shares what it will share to the end */
    bool swarm_stopped, donor_stopped, stopping;
    /* A load. */
    struct mu_state_swarm_load *load;
    bool ended, closed, final;
    uint64_t begun_ns, limit_ms;
    uint32_t version; /* the version that is being loaded; SWARM_VERSIONS: no version */
    uint32_t seen_done;
    uint8_t seen[SWARM_CHUNKS / 8 + 1];
};

/* --- state_swarm.c ---------------------------------------------------------------------------- */

/** Returns the version with this id; SWARM_VERSIONS: there is no such version. */
uint32_t swarm_version_of(const struct swarm_world *w, const uint8_t id[MU_STATE_ID_LEN]);
/** Writes the metadata of a version to `buf`, 8 bytes. */
struct mu_span swarm_metadata(uint8_t *buf, uint32_t version);
struct mu_state_share *swarm_share(struct swarm_world *w, uint32_t version, uint8_t *data,
                                   const struct mu_identity *identity);

/* --- state_swarm_node.c ----------------------------------------------------------------------- */

void swarm_node_start(struct swarm_world *w, uint32_t number);
/** The node's process is gone, or ends with the run. */
void swarm_node_killed(void *node);

/* --- state_swarm_load.c ----------------------------------------------------------------------- */

/** Manages its loads: begins one, frees one. */
void swarm_load_turn(struct swarm_app *app);

#endif
