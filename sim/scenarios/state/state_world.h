/*
 * What the files of the scenario `state` share.
 *
 *     state.c          the world, what must hold, how it ends
 *     state_giver.c    donors, honest and others
 *     state_taker.c    newcomers that load and serve what they have
 */
#ifndef MU_SIM_STATE_WORLD_H
#define MU_SIM_STATE_WORLD_H

#include "checkers/load.h"
#include "crypto/identity.h"
#include "service/state/donor.h"
#include "sim.h"

#define STATE_VERSIONS  3
#define STATE_GIVERS    4 /* at the most */
#define STATE_TAKERS    3 /* at the most */
#define STATE_TENSORS   4
#define STATE_CHUNK     LOAD_CHUNK
#define STATE_BYTES_MAX (48u * STATE_CHUNK)
#define STATE_PORT      29700
#define STATE_PREFIX    "run"

enum state_plant {
    STATE_PLANT_NONE = 0,
    STATE_PLANT_UNVERIFIED, /* a chunk counts as there that was never hashed */
};

enum giver_kind {
    GIVER_HONEST = 0,
    GIVER_CORRUPT, /* some bytes are not what they were */
    GIVER_BOASTER, /* claims a newer version than it has */
    GIVER_OTHER,   /* has something else under the id */
    GIVER_FORGER,  /* offers what it did not sign, or leaves of another tree */
    GIVER_PARTIAL, /* has only some chunks, which change */
    GIVER_CLIPPER, /* the last chunk is sometimes a byte short */
    GIVER_SLOW,
    GIVER_CROWDED, /* one download at a time */
    GIVER_FICKLE,  /* goes on to newer versions */
    GIVER_KINDS,
};

struct state_world;

struct state_giver {
    struct state_world *world;
    uint32_t number;
    enum giver_kind kind;
    uint32_t version; /* the version that it has */
    struct mu_sim_proc *proc;
    struct giver_app *app; /* while it runs */
};

/* A newcomer; this struct outlives its process. */
struct state_taker {
    struct state_world *world;
    uint32_t number;
    const char *name;
    struct mu_sim_proc *proc;
    struct taker_app *app; /* while it runs */
    uint32_t started;      /* loads */
    uint32_t loaded;       /* loads that succeeded */
    bool final_done;       /* a load after the healing succeeded */
    /* The content of a file: loads continue where they were. */
    bool uses_file;
    uint8_t *file;
    uint8_t bits[STATE_BYTES_MAX / STATE_CHUNK / 8 + 1];
    uint32_t file_version; /* of these chunks; STATE_VERSIONS: no version */
};

struct state_world {
    struct mu_sim *sim;
    enum state_plant plant;
    bool planted;
    bool healed;
    bool leaving;
    bool short_of_memory; /* this seed lacks memory */
    struct mu_layout layout;
    uint32_t bytes;
    uint32_t chunks;
    uint8_t *content[STATE_VERSIONS];
    uint8_t ids[STATE_VERSIONS][MU_STATE_ID_LEN];
    struct mu_identity identities[STATE_GIVERS];
    struct state_giver givers[STATE_GIVERS];
    uint32_t giver_count;
    struct state_taker takers[STATE_TAKERS];
    uint32_t taker_count;
};

struct giver_app {
    struct state_giver *state;
    struct mu_env *env;
    struct mu_state_donor *donor;
    struct mu_state_share *share; /* the donor's */
    struct mu_timer timer;
    bool clipped;
    bool stopping;
};

struct taker_app {
    struct state_taker *state;
    struct mu_env *env;
    struct mu_state_donor *donor;
    struct mu_state_loader *loader; /* while there is one */
    struct mu_state_share *kept;    /* a state that is passed on */
    struct mu_timer timer;
    bool donor_gone;
    bool ended; /* the load has ended */
    bool final; /* it was begun when all was healed */
    bool stopping;
    uint64_t begun_ns;
    uint64_t limit_ms; /* time limit of the load */
    uint32_t version;  /* the version that is being loaded */
    uint8_t *memory;   /* the destination, unless it is the file */
    uint32_t late;     /* donors that are added later */
    /* For the checker. */
    uint32_t seen_done;
    uint32_t seen_restarts;
    uint32_t resume_least; /* chunks that a resume must find */
    uint8_t seen[STATE_BYTES_MAX / STATE_CHUNK / 8 + 1];
};

/** Returns the version with this id; STATE_VERSIONS: there is no such version. */
uint32_t state_version_of(const struct state_world *w, const uint8_t id[MU_STATE_ID_LEN]);

/* --- state_giver.c ---------------------------------------------------------------------------- */

void state_giver_start(struct state_world *w, uint32_t number);

/* --- state_taker.c ---------------------------------------------------------------------------- */

void state_taker_start(struct state_world *w, uint32_t number);

#endif
