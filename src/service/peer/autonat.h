/*
 * AutoNAT v1 on a peer host: other peers are dialled back when they ask, and with `told` this host
 * asks others, to learn whether they can dial it. docs/relay.md says what it is for.
 *
 *     mu_peer_autonat_start(host, &config, &autonat, &msg);
 *     mu_peer_autonat_free(autonat);                          before mu_peer_host_stop()
 *
 * As a server it dials only the IP address from which the peer is connected, at up to four of the
 * ports that the peer names; a peer is dialled three times in a minute, and all together 30 times,
 * as other implementations have it.
 *
 * As a client it asks the first three peers that say that they dial back, once each, until one of
 * them has reached this host. A peer that refuses to dial (some do for private addresses) proves
 * nothing, and nothing is told.
 */
#ifndef MU_PEER_AUTONAT_H
#define MU_PEER_AUTONAT_H

#include "codec/peer/autonat_msg.h"
#include "service/peer/host.h"

struct mu_peer_autonat;

struct mu_peer_autonat_config {
    /**
     * A peer has tried to dial us. `text` says what failed, and is lent; it is empty if the peer
     * reached us, after which nothing more is told. NULL: no peer is asked. Called within the
     * host's turns; it must not free the service.
     */
    void (*told)(void *context, const struct mu_peer_id *by, bool reached, const char *text);
    void *context;
};

/** The host is borrowed. MUSTER_EEXIST: it has this service already; MUSTER_ENOMEM. */
int mu_peer_autonat_start(struct mu_peer_host *host, const struct mu_peer_autonat_config *config,
                          struct mu_peer_autonat **ret);
/** Not from a callback. NULL is fine. */
void mu_peer_autonat_free(struct mu_peer_autonat *a);

#endif
