/*
 * Gives a state to hivemind's peers (docs/hivemind-state.md): serves `rpc_download_state` among
 * peers and announces it in the DHT, under `<prefix>.all_averagers`. On the loop's thread.
 *
 *     mu_hm_snapshot_new(&config, &snapshot, &msg);     anywhere: it may take long
 *     mu_hm_donor_start(env, &config, &donor, &msg);
 *     mu_hm_donor_set(donor, snapshot);                 as often as there is a new one
 *     mu_hm_donor_set_priority(donor, epoch);           loaders begin with the greatest
 *     mu_hm_donor_stop(donor);                          withdraws the entry; `stopped` follows
 *
 * A download that has begun goes on with the snapshot that it began with, whatever is set
 * meanwhile: no peer gets halves of two states. All downloads of a snapshot share its memory; each
 * needs one chunk of its own.
 *
 * The entry in the DHT lives for `declare_ms` and is written anew after a third of that, so that
 * two writes can be lost before a living donor is out of sight (hivemind writes when its entry has
 * just ended). A donor that stops sharing writes nil over it.
 *
 * Downloads beyond `slots` at a time are refused with a text, after which a client asks the next
 * donor; so is a peer that has half of the slots already. A client that reads nothing for `idle_ms`
 * is cut off.
 */
#ifndef MU_HM_DONOR_H
#define MU_HM_DONOR_H

#include "codec/state/hm_state.h"
#include "proto/state/hm_download.h"
#include "service/dht/dht.h"
#include "service/peer/call.h"

/* --- snapshots -------------------------------------------------------------------------------- */

struct mu_hm_snapshot_config {
    struct mu_hm_state_config state;
    /** The snapshot is not used any more. On the loop's thread; may be NULL. */
    void (*release)(void *context);
    void *context;
};

struct mu_hm_snapshot;

/**
 * The caller gets one reference. Errors as mu_hm_state_init(); `release` is not called then. It may
 * be made on any thread, and then belongs to the loop's.
 */
int mu_hm_snapshot_new(const struct mu_hm_snapshot_config *config, struct mu_hm_snapshot **ret,
                       struct mu_errmsg *reterr_msg);
void mu_hm_snapshot_ref(struct mu_hm_snapshot *s);
/** NULL is fine. */
void mu_hm_snapshot_unref(struct mu_hm_snapshot *s);

/* --- the donor -------------------------------------------------------------------------------- */

struct mu_hm_donor;

struct mu_hm_donor_config {
    struct mu_peer_calls *calls; /* borrowed, until `stopped` */
    struct mu_dht_service *dht;  /* the same. NULL: nothing is announced */
    struct mu_peer_id self;
    const char *prefix;  /* "R_state_averager". Borrowed for the call, as the next */
    const char *name;    /* of the handler: see mu_hm_handler_name(). NULL: there is no handler, and
                            the state is only announced, with or without a snapshot */
    bool allowed;        /* sharing is allowed from the beginning. True */
    uint32_t slots;      /* 4 */
    uint32_t declare_ms; /* 30 s */
    uint32_t idle_ms;    /* 60 s */
    uint32_t goodbye_ms; /* for the last write to the DHT. 3 s */
    /** The last callback. */
    void (*stopped)(void *context);
    void *context;
};

struct mu_hm_donor_stats {
    uint64_t downloads; /* that began, */
    uint64_t completed; /* that were sent completely, */
    uint64_t cut_off;   /* or were cut off */
    uint64_t busy;      /* refused for lack of a slot */
    uint64_t denied;    /* refused while nothing is shared */
    uint64_t messages;
    uint64_t declared; /* writes that a node of the DHT accepted, */
    uint64_t unheard;  /* and that no node accepted */
    uint32_t active;
};

struct mu_hm_donor_config mu_hm_donor_config_defaults(void);
/** MUSTER_EEXIST: the host serves that name already; MUSTER_EINVAL, MUSTER_ENOMEM. */
int mu_hm_donor_start(struct mu_env *env, const struct mu_hm_donor_config *config,
                      struct mu_hm_donor **ret, struct mu_errmsg *reterr_msg);
/** Shares this snapshot from now on; NULL: nothing. Takes a reference of its own. */
void mu_hm_donor_set(struct mu_hm_donor *d, struct mu_hm_snapshot *snapshot);
/** The same, and downloads of the earlier snapshot are cut off after `wait_ms`. */
void mu_hm_donor_replace(struct mu_hm_donor *d, struct mu_hm_snapshot *snapshot, uint32_t wait_ms);
void mu_hm_donor_set_allowed(struct mu_hm_donor *d, bool allowed);
/** The priority is finite. */
void mu_hm_donor_set_priority(struct mu_hm_donor *d, double priority);
void mu_hm_donor_stats(const struct mu_hm_donor *d, struct mu_hm_donor_stats *ret);
/** Downloads under way are cut off. `stopped` follows, and then the donor is gone. */
void mu_hm_donor_stop(struct mu_hm_donor *d);

#endif
