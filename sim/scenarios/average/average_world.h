/*
 * What the files of the scenario `average` share.
 *
 *     average.c         the world, what must hold, how it ends
 *     average_service.c what must hold on the native wire
 *     average_node.c    a node: a peer in the DHT that averages again and again
 */
#ifndef MU_SIM_AVERAGE_WORLD_H
#define MU_SIM_AVERAGE_WORLD_H

#include "service/average/averager_native.h"
#include "service/state/swarm.h"
#include "sim.h"

#define AVERAGE_NODES      6 /* at the most */
#define AVERAGE_TENSORS    3
#define AVERAGE_FLOATS     1100u
#define AVERAGE_PART_BYTES 256
#define AVERAGE_STEPS      256 /* of a node */
#define AVERAGE_PREFIX     "run_params"
#define AVERAGE_TIMEOUT_MS 24000

enum average_plant {
    AVERAGE_PLANT_NONE = 0,
    AVERAGE_PLANT_WRONG,     /* a value of a sum is changed */
    AVERAGE_PLANT_STUCK,     /* the deadlines of a round are forgotten */
    AVERAGE_PLANT_HALF,      /* parts without a result count as averaged */
    AVERAGE_PLANT_AVERAGE,   /* native: a value of an average is changed */
    AVERAGE_PLANT_DEADLINES, /* native: the deadlines of a round are forgotten */
    AVERAGE_PLANT_COUNT,     /* native: somebody is named who is not in the average */
    AVERAGE_PLANT_RESIDUAL,  /* native: what is rounded off is forgotten */
};

struct average_world;
struct average_app;

/* A step of a node, as the world knows it. */
struct average_record {
    float in[AVERAGE_FLOATS];
    float out[AVERAGE_FLOATS];
    double weight;
    bool ended;
    int status;
    uint32_t members; /* 0: there was no group */
    uint8_t group_id[MU_AVG_GROUP_ID_LEN];
    uint32_t nodes[AVERAGE_NODES]; /* the members, */
    uint32_t steps[AVERAGE_NODES]; /* and which of their steps it was */
    uint32_t parts_local;
    bool calm; /* it began after all faults had ended */
    /* On the native wire. */
    float given[AVERAGE_FLOATS]; /* what is encoded: `in`, and what was rounded off before */
    uint32_t counted;            /* members in the average, as bits */
    double weights[AVERAGE_NODES];
    uint8_t digest[MU_NATIVE_DIGEST_LEN];
};

/* What outlives its process. */
struct average_node {
    struct average_world *world;
    uint32_t number;
    char name[8];
    enum mu_avg_mode mode;
    struct mu_identity identity;
    struct mu_sim_proc *proc;
    struct average_app *app; /* while it runs */
    struct average_record *records;
    uint32_t steps;
    uint32_t good; /* steps after the healing that succeeded */
};

struct average_world {
    struct mu_sim *sim;
    enum average_plant plant;
    bool planted;
    bool quiet; /* all faults have ended */
    bool leaving;
    bool native;
    enum mu_quant quant;
    uint32_t target; /* size of a group, or 0 */
    struct mu_layout layout;
    struct average_node nodes[AVERAGE_NODES];
    uint32_t count;
};

/* One node, in its process's memory. */
struct average_app {
    struct average_node *state;
    struct mu_env *env;
    struct mu_peer_host *host;
    struct mu_state_swarm *swarm;
    struct mu_averager *averager;
    struct mu_averager_step step;
    struct mu_timer timer;
    float values[AVERAGE_FLOATS];
    float residuals[AVERAGE_FLOATS]; /* on the native wire, before this step */
    uint8_t *data[AVERAGE_TENSORS];
    bool active; /* a step is under way */
    uint32_t at; /* which */
    uint64_t begun_ns;
    bool stopping, averager_stopped, swarm_stopped;
};

void average_node_start(struct average_world *w, uint32_t number);
/** The node's process is gone, or ends with the run. */
void average_node_killed(void *node);
/** The same on the native wire; `app` is the record's node, `own` its place in the group. */
void average_check_native(struct average_world *w, const struct average_app *app,
                          const struct average_record *r, uint32_t own);
/** What a step begins with on the native wire. */
void average_note_given(struct average_app *app, struct average_record *r);
/** Plants a bug of the native wire. */
void average_plant_native(struct average_world *w, struct average_app *app);
/** Goes through the parts of all tensors, as they are cut: returns the values of the next. */
uint32_t average_next_part(const struct average_world *w, size_t *tensor, uint64_t *at);
/** A step has ended: compares its result with a model. */
void average_check(struct average_world *w, const struct average_app *app,
                   const struct average_record *r);

#endif
