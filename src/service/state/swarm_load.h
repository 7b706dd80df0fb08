/*
 * Loads a state through a swarm (service/state/swarm.h), on the loop's thread: finds the peers that
 * share one under the prefix in the DHT, and the protocols that they speak.
 *
 *     mu_state_swarm_load_start(&config, &load, &msg);
 *       accept(), progress() as of service/state/loader.h
 *     ended(): a share, or (NULL, with status 0) what mu_state_swarm_load_take() gives; or why not
 *     closed(): the last callback; mu_state_swarm_load_free()
 *
 *     FINDING ----> PROBING ----> hivemind's, if newer ----> native ----> hivemind's ----> end
 *     the DHT       which donors  than all native ones       all at once  one after
 *                   answer                                                the other
 *
 * All donors whose hosts say that they speak the native wire are asked at once, by that wire. Of
 * the rest, donors with a greater priority than any of these are asked before, one after the other,
 * and the others after, if there is an averager whose handler they can have. The first success ends
 * the load. We leave ourselves out.
 */
#ifndef MU_STATE_SWARM_LOAD_H
#define MU_STATE_SWARM_LOAD_H

#include "service/state/hm_load.h"
#include "service/state/loader.h"
#include "service/state/swarm.h"

struct mu_state_swarm_load;

struct mu_state_swarm_load_config {
    struct mu_state_swarm *swarm; /* borrowed, as the next, until `closed` */
    struct mu_env *env;           /* of the native wire */
    /* Its `ended` and `closed` are the load's. `resolve` has to handle "/p2p/ID". */
    struct mu_state_loader_config native;
    const char *const *donors; /* native ones, besides those that are found. Lent for the call */
    size_t donor_count;
    const struct mu_layout *expected; /* of hivemind's donors; NULL: anything. Borrowed */
    uint64_t bytes_max;      /* that they may send. 0: the default. For others `accept` decides */
    struct mu_hm_sink *sink; /* takes what they send as it comes; NULL: it is kept in memory */
    void (*ended)(void *context, int status, const char *text, struct mu_state_share *share);
    void (*closed)(void *context);
};

/** MUSTER_EINVAL (the prefix), MUSTER_ENOMEM; errors of mu_state_loader_add(). */
int mu_state_swarm_load_start(const struct mu_state_swarm_load_config *config,
                              struct mu_state_swarm_load **ret, struct mu_errmsg *reterr_msg);
/** Ends the load with MUSTER_ECANCELED, unless it is just ending otherwise. */
void mu_state_swarm_load_cancel(struct mu_state_swarm_load *l);
/** After `ended` with 0 and no share, once: what a hivemind donor gave, and its priority. */
void mu_state_swarm_load_take(struct mu_state_swarm_load *l, struct mu_hm_loaded *ret,
                              double *ret_priority);
/** The native part of the load, for its progress and rows; NULL: there was none. */
struct mu_state_loader *mu_state_swarm_load_native(struct mu_state_swarm_load *l);
/** After `ended`: appends what each donor did, a line each. MUSTER_ENOMEM, MUSTER_ELIMIT. */
int mu_state_swarm_load_report(const struct mu_state_swarm_load *l, struct mu_buf *out);

/* A peer from the DHT that does not speak the native wire, or does not answer. */
struct mu_state_swarm_row {
    char donor[MU_PEER_ID_TEXT_MAX + 8]; /* "/p2p/ID" */
    double priority;
    int status; /* 0: it answers */
    const char *text;
};

/** Gets row number `i`, after `ended`; false after the last. */
bool mu_state_swarm_load_row(const struct mu_state_swarm_load *l, size_t i,
                             struct mu_state_swarm_row *ret);
/** After `closed`. NULL is fine. */
void mu_state_swarm_load_free(struct mu_state_swarm_load *l);

#endif
