/*
 * What the files of a load through a swarm share.
 *
 *     swarm_load.c  its life, its phases, native donors
 *     swarm_find.c  which donors there are, and their protocols
 *     swarm_hm.c    hivemind's donors
 */
#ifndef MU_STATE_SWARM_LOAD_INTERNAL_H
#define MU_STATE_SWARM_LOAD_INTERNAL_H

#include "service/state/swarm_load.h"

#define MU_STATE_SWARM_NAME_CAP 512 /* of a handler's name */

enum mu_state_swarm_phase {
    FINDING = 1,
    PROBING,
    NEWER,  /* hivemind's donors with greater priorities than all native ones */
    NATIVE, /* native ones */
    REST,   /* hivemind's others */
    ENDED,
};

enum mu_state_swarm_kind {
    UNKNOWN = 0,
    SPEAKS_NATIVE,
    SPEAKS_OTHER,
    UNREACHED,
};

/* A peer from the DHT. */
struct mu_state_found {
    struct mu_state_swarm_load *load;
    struct mu_peer_connect connect;
    double priority;
    bool trusted; /* its signatures are trusted */
    uint64_t lot; /* decides between equals */
    enum mu_state_swarm_kind kind;
    bool connecting;
    bool connected;
    bool asked; /* as a hivemind donor */
    mu_mono_t identify_by;
    int status;
    char text[MU_ERRMSG_CAP];
};

struct mu_state_swarm_load {
    struct mu_state_swarm_load_config config;
    struct mu_env *env; /* of the host */
    struct mu_peer_watch watch;
    struct mu_timer timer;
    enum mu_state_swarm_phase phase;
    bool busy; /* the phase is under way, and its end will come */
    bool canceled;
    mu_mono_t deadline;
    mu_mono_t probe_by;
    mu_mono_t progress_at;
    struct mu_dht_id key;
    struct mu_dht_wish wish;
    char **donors;
    size_t donor_count;
    struct mu_state_found *found; /* by priority, trusted ones first */
    size_t found_count;
    struct mu_state_loader *loader;
    struct mu_state_share *share;
    struct mu_hm_load hm;
    struct mu_buf known;
    char name[MU_STATE_SWARM_NAME_CAP];
    struct mu_hm_loaded loaded;
    bool has_loaded;
    double priority;
    int status;
    struct mu_errmsg text;
    struct mu_buf report;
};

static inline mu_mono_t mu_state_swarm_now(const struct mu_state_swarm_load *l)
{
    return mu_env_now(l->env).mono;
}

static inline bool mu_state_swarm_is_native(const struct mu_state_found *f)
{
    return f->kind == SPEAKS_NATIVE;
}

/* --- swarm_load.c ----------------------------------------------------------------------- */

/** The timer does everything: no callback of another module is on the stack then. */
void mu_state_swarm_turn_later(struct mu_state_swarm_load *l);
/** Notes why the load fails, if there is no reason yet. */
void mu_state_swarm_note(struct mu_state_swarm_load *l, int status, const char *text);
void mu_state_swarm_add_native(struct mu_state_swarm_load *l, const struct mu_state_found *f);
size_t mu_state_swarm_count_native(const struct mu_state_swarm_load *l);
/** Returns at least 1. */
uint64_t mu_state_swarm_ms_left(const struct mu_state_swarm_load *l);

/* --- swarm_find.c ----------------------------------------------------------------------- */

/** The DHT has answered. */
void mu_state_swarm_looked(struct mu_dht_wish *wish, const struct mu_dht_op *op);
/** Asks all donors for their protocols. */
void mu_state_swarm_probe(struct mu_state_swarm_load *l);
/** Whether these are known of all donors, or the wait for the others is over. */
bool mu_state_swarm_probed(struct mu_state_swarm_load *l);
void mu_state_swarm_identified(struct mu_peer_watch *watch, const struct mu_peer_id *peer);

/* --- swarm_hm.c ------------------------------------------------------------------------- */

/** Begins a phase of hivemind's donors: `busy`, if there are any. */
void mu_state_swarm_start_hm(struct mu_state_swarm_load *l, enum mu_state_swarm_phase phase);

#endif
