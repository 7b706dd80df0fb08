/*
 * States in a swarm, on the loop's thread: a node of the DHT beside the native wire, on one peer
 * host. Shared states are announced in the DHT (service/state/hm_donor.h), and given to hivemind's
 * peers too if there is a class of averagers to imitate. A service: it runs on libuv and in the
 * simulator.
 *
 *     mu_state_swarm_start(&config, &swarm, &msg);     joined() follows
 *     mu_state_swarm_ready(swarm, "R_state_averager", &msg);
 *     mu_state_swarm_put(swarm, "R_state_averager", snapshot, priority, hidden, wait_ms);
 *     mu_state_swarm_withdraw(swarm, "R_state_averager", wait_ms);
 *     mu_state_swarm_stop(swarm);                      withdraws its entries; stopped() follows
 *
 * service/state/swarm_load.h loads through a swarm, service/state/progress_track.h reports a
 * trainer's progress through one.
 */
#ifndef MU_STATE_SWARM_H
#define MU_STATE_SWARM_H

#include "proto/dht/validate.h"
#include "service/dht/dht.h"
#include "service/state/hm_donor.h"
#include "service/peer/call.h"

struct mu_state_swarm;

struct mu_state_swarm_config {
    struct mu_peer_host *host;      /* borrowed until `stopped` */
    const struct mu_peer_id *peers; /* through which we join; the host knows their addresses */
    size_t peer_count;              /* 0: we are the first of a new swarm */
    bool client;                    /* asks, and does not serve */
    const char *averager;           /* the class that hivemind's peers call, or NULL. Copied */
    uint32_t slots;                 /* downloads by hivemind's peers at once, of each prefix. 4 */
    uint32_t declare_ms;            /* how long an entry lives in the DHT. 30 s */
    uint32_t op_ms;                 /* how long the DHT may take to answer. 10 s */
    /** Once: 0, or MUSTER_EDHT_NOBODY and others of mu_dht_bootstrap(). The swarm goes on
     * trying. */
    void (*joined)(void *context, int status);
    /** The last callback; the swarm is freed after it. */
    void (*stopped)(void *context);
    void *context;
};

struct mu_state_swarm_config mu_state_swarm_config_defaults(void);

/** MUSTER_EEXIST: the host is a node already; MUSTER_EINVAL, MUSTER_ENOMEM. */
int mu_state_swarm_start(const struct mu_state_swarm_config *config, struct mu_state_swarm **ret,
                         struct mu_errmsg *reterr_msg);
/** Cuts off downloads by hivemind's peers, and withdraws the entries. Nothing may use the swarm any
 * more. */
void mu_state_swarm_stop(struct mu_state_swarm *s);

/* --- sharing ---------------------------------------------------------------------------------- */

/** Prepares to share under a prefix; nothing is shared yet. MUSTER_EINVAL (an empty prefix, or one
 * with a dot), MUSTER_ENOMEM. */
int mu_state_swarm_ready(struct mu_state_swarm *s, const char *prefix,
                         struct mu_errmsg *reterr_msg);
/**
 * Shares under a prepared prefix. The snapshot, which gets a reference, is for hivemind's peers:
 * NULL without an averager. Downloads of the earlier one may go on for `wait_ms`. The priority is
 * finite.
 */
void mu_state_swarm_put(struct mu_state_swarm *s, const char *prefix,
                        struct mu_hm_snapshot *snapshot, double priority, bool hidden,
                        uint32_t wait_ms);
/** Sets the priority of what is shared. */
void mu_state_swarm_set(struct mu_state_swarm *s, const char *prefix, double priority, bool hidden);
void mu_state_swarm_withdraw(struct mu_state_swarm *s, const char *prefix, uint32_t wait_ms);
/** Counts all prefixes together. */
void mu_state_swarm_stats(const struct mu_state_swarm *s, struct mu_hm_donor_stats *ret);

/* --- for its users ---------------------------------------------------------------------------- */

struct mu_peer_host *mu_state_swarm_host(struct mu_state_swarm *s);
struct mu_peer_calls *mu_state_swarm_calls(struct mu_state_swarm *s);
struct mu_dht_service *mu_state_swarm_dht(struct mu_state_swarm *s);
/** NULL: there is no averager. */
const char *mu_state_swarm_averager(const struct mu_state_swarm *s);
/**
 * Signs records with our mark with this RSA key from now on, which is borrowed; NULL: no longer
 * signs. MUSTER_EBUSY: there is another key; MUSTER_EINVAL: it is not RSA; MUSTER_ENOMEM.
 */
int mu_state_swarm_own(struct mu_state_swarm *s, const struct mu_identity *key);
/** `[owner:...]`, the mark of that key. */
struct mu_span mu_state_swarm_mark(const struct mu_state_swarm *s);

#endif
