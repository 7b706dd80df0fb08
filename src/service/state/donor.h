/*
 * Gives states to others, on the loop's thread: a listener for sessions of the native wire, with
 * the methods of codec/state/msg.h. A service: it runs on libuv and in the simulator.
 *
 *     mu_state_donor_start(env, &config, &donor, &msg);
 *     mu_state_donor_put(donor, share);                in place of the one with the same prefix
 *     mu_state_donor_withdraw(donor, share, wait_ms);  its last reference goes when nobody needs it
 *     mu_state_donor_stop(donor);                      stopped() follows
 *
 * A download is one stream, and is served one version. A state that was withdrawn is still given to
 * those who are loading it, for as long as was said; then they are told that it is gone, and have
 * `drain_ms` to hear that before their session is ended: after that nothing looks at its memory.
 *
 * Chunks are lent to their connection from where they lie. Those of files that others may cut short
 * are lent only where the environment sends the pages of the file itself (`sends_files`), and are
 * read on a worker thread otherwise.
 *
 * No callback runs inside a function of this header.
 */
#ifndef MU_STATE_DONOR_H
#define MU_STATE_DONOR_H

#include "core/env.h"
#include "core/err.h"
#include "proto/state/gate.h"
#include "service/state/share.h"

struct mu_state_donor;

struct mu_state_donor_config {
    struct mu_addr listen; /* rewritten with the port that was found; kind 0: it does not listen */
    const char *name;      /* ours, in others' logs; borrowed */
    struct mu_state_gate_config gate;
    uint32_t replaced_ms; /* how long a state is given on that another took the place of. 60 s */
    uint32_t drain_ms;    /* see above. 2 s */
    uint32_t swarm_ms;    /* how long somebody counts as loading who does not ask again. 10 s */
    uint32_t again_ms;    /* when to ask again who else is loading. 1 s */
    size_t sessions_max;  /* 1,024 */
    size_t asks_max;      /* chunks that one may ask for ahead. 4,096 */
    bool sends_files;     /* see above */
    /** The last callback. */
    void (*stopped)(void *context);
    void *context;
};

struct mu_state_donor_config mu_state_donor_config_defaults(void);

struct mu_state_donor_stats {
    uint64_t downloads;   /* begun */
    uint64_t turned_away; /* no slot was free */
    uint64_t chunks;      /* given */
    uint64_t bytes;
    uint32_t active; /* downloads now */
};

/** MUSTER_EADDR, MUSTER_ELOCKED, MUSTER_ENOMEM. */
int mu_state_donor_start(struct mu_env *env, const struct mu_state_donor_config *config,
                         struct mu_state_donor **ret, struct mu_errmsg *reterr_msg);
const struct mu_addr *mu_state_donor_addr(const struct mu_state_donor *d);
/** Takes a reference. One that was put before under the same prefix is withdrawn, with
 * `replaced_ms`. MUSTER_ENOMEM, MUSTER_ECLOSED. */
int mu_state_donor_put(struct mu_state_donor *d, struct mu_state_share *share);
/** Takes a reference, beside whatever there is: what a loader has so far. Errors as above. */
int mu_state_donor_add(struct mu_state_donor *d, struct mu_state_share *share);
/** The one that was put under this prefix; NULL: none. */
struct mu_state_share *mu_state_donor_find(struct mu_state_donor *d, struct mu_span prefix);
/** Nobody begins to load it any more; its reference goes when the last has finished, and at the
 * latest `wait_ms` and `drain_ms` from now. A share that is not there is left alone. */
void mu_state_donor_withdraw(struct mu_state_donor *d, struct mu_state_share *share,
                             uint32_t wait_ms);
void mu_state_donor_stats(const struct mu_state_donor *d, struct mu_state_donor_stats *ret);

/* A download from here that goes on. */
struct mu_state_transfer {
    char peer[64];
    char prefix[MU_STATE_PREFIX_MAX + 1];
    uint64_t bytes;       /* that it was given; it may get others elsewhere */
    uint64_t total;       /* of the state */
    uint64_t bytes_per_s; /* lately */
    uint64_t age_ms;
};
/** Fills in up to `cap`; returns how many there are. */
size_t mu_state_donor_transfers(const struct mu_state_donor *d, struct mu_state_transfer *ret,
                                size_t cap);
/** From now on these limits. */
void mu_state_donor_limit(struct mu_state_donor *d, const struct mu_state_gate_config *gate);
/** Who is told of the end, in place of the config's. */
void mu_state_donor_on_stopped(struct mu_state_donor *d, void (*stopped)(void *context),
                               void *context);
/** Ends everything; `stopped` follows on a later turn. Twice is harmless. */
void mu_state_donor_stop(struct mu_state_donor *d);
/** After `stopped`. */
void mu_state_donor_free(struct mu_state_donor *d);

/** The terms that both ends of a download speak on. */
struct mu_rpc_config mu_state_rpc_terms(void);

#endif
