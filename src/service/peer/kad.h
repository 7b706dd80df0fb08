/*
 * Peer routing by libp2p's own DHT (/ipfs/kad/1.0.0), as far as a swarm needs it. Other nodes may
 * pass on bare peer ids; this service finds their addresses. It asks the peers that it knows, the
 * nearest first, which peers are nearer still, until one names the wanted peer with an address:
 * proto/peer/kad_search.h decides, this drives it.
 *
 *     mu_kad_start(host, &config, &kad)       serves, and is the host's router
 *     mu_kad_stop(kad)                        at once
 *
 * Distance is the XOR of the SHA-256 of ids. Peers that say they speak the protocol are remembered,
 * `table_max` of them, near ones rather than far ones. As a client we ask and do not answer.
 */
#ifndef MU_KAD_H
#define MU_KAD_H

#include "service/peer/host.h"

#define MU_KAD_NAME "/ipfs/kad/1.0.0"

struct mu_kad;

struct mu_kad_config {
    bool client;         /* does not serve */
    uint32_t nearest;    /* peers in an answer. 20 */
    uint32_t parallel;   /* peers that one search asks at once. 10 */
    uint32_t asked_max;  /* peers that one search asks in all. 64 */
    uint32_t answer_ms;  /* for one peer to answer. 10 s */
    uint32_t table_max;  /* 1,024 */
    uint32_t refresh_ms; /* between searches for ourselves, by which others learn of us. 10 min */
};

struct mu_kad_config mu_kad_config_defaults(void);

/** The host outlives it. MUSTER_EEXIST (the host serves the name already), MUSTER_ENOMEM. */
int mu_kad_start(struct mu_peer_host *host, const struct mu_kad_config *config,
                 struct mu_kad **ret_kad);
/** Searches end without an answer; the service is gone when this returns. Before
 * mu_peer_host_stop(). NULL is fine. */
void mu_kad_stop(struct mu_kad *kad);
/** Searches for ourselves now, so that near peers learn of us. */
void mu_kad_refresh(struct mu_kad *kad);

struct mu_kad_stats {
    uint64_t searches, found; /* ever */
    uint64_t asked, answered; /* so far: by us */
    uint64_t served;          /* so far: for others */
    uint64_t table;           /* now */
};

void mu_kad_stats(const struct mu_kad *kad, struct mu_kad_stats *ret);

#endif
