/*
 * Finding the addresses of peers: hivemind passes bare peer ids about and lets libp2p's own DHT
 * (/ipfs/kad/1.0.0) say where they are. So do we, as far as a swarm needs it: we ask the peers that
 * we are connected to, and those that they name, FIND_NODE; and answer the same question from the
 * book of the host. A peer that is connected to any of those who are asked is found.
 *
 *     mu_peer_kad_new(host, NULL, &kad);      the host's router from here on
 *     mu_peer_kad_free(kad);                  before the host is freed
 */
#ifndef MU_PEER_KAD_H
#define MU_PEER_KAD_H

#include "service/peer_host.h"

struct mu_peer_kad;

struct mu_peer_kad_config {
    bool client;         /* asks, and does not answer */
    uint32_t parallel;   /* peers that are asked at a time. 4 */
    uint32_t asks_max;   /* for one peer. 24 */
    uint32_t wait_ms;    /* for one answer. 2 s */
    uint32_t find_ms;    /* for all of them. 10 s */
    uint32_t finds_max;  /* at a time. 256 */
    uint32_t serves_max; /* streams of others. 512 */
};

struct mu_peer_kad_config mu_peer_kad_config_defaults(void);
/** `config` NULL: the defaults. MUSTER_EEXIST, MUSTER_ENOMEM. */
int mu_peer_kad_new(struct mu_peer_host *host, const struct mu_peer_kad_config *config,
                    struct mu_peer_kad **ret);
void mu_peer_kad_free(struct mu_peer_kad *k);

#endif
