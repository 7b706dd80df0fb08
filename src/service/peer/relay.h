/*
 * Circuit relay v2, on a host of peers: to be a relay, to be reached through one, and to reach
 * others through theirs. docs/relay.md has the picture.
 *
 *     mu_peer_relay_start(host, &config, &relay, &msg);    from here on circuits are dialled:
 *         mu_peer_host_connect() to /…/p2p/RELAY/p2p-circuit/p2p/PEER, or any stream to PEER once
 *         the book has such an address of it
 *     mu_peer_relay_reserve(relay, "/…/p2p/RELAY", &msg);  be reached through that one
 *     mu_peer_relay_free(relay);                           before mu_peer_host_stop()
 *
 * A connection through a relay is secured between its two ends like any other: the relay sees who
 * speaks to whom and how much, and nothing of what. The host offers it as it does others, says that
 * it is limited (mu_peer_host_limited()), and uses another one where there is one.
 *
 * Reservations. A place at a relay is asked for, renewed before it ends, and asked for again when
 * the connection to the relay is lost; meanwhile that connection is kept. Where it leads to is told
 * to others by identify. With `autorelay`, connected peers that say that they are relays are asked
 * as well, until `wanted` places are held: for hosts that know that nobody can dial them.
 */
#ifndef MU_PEER_RELAY_H
#define MU_PEER_RELAY_H

#include "proto/peer/relay.h"
#include "service/peer/host.h"

struct mu_peer_relay;

struct mu_peer_relay_config {
    bool hop;                             /* be a relay for others */
    struct mu_relay_hop_config hop_terms; /* but for the seed */
    bool autorelay;
    uint32_t wanted;                                /* places, with autorelay. 2 */
    struct mu_relay_reservation_config reservation; /* but for the seed */
    /** Where we can be reached through relays has changed. May be NULL. It may not free the relay,
     * and is called within the host's turns. */
    void (*changed)(void *context);
    void *context;
};

struct mu_peer_relay_config mu_peer_relay_config_defaults(void);

/** The host is borrowed. MUSTER_EEXIST: it has one already; MUSTER_ENOMEM. */
int mu_peer_relay_start(struct mu_peer_host *host, const struct mu_peer_relay_config *config,
                        struct mu_peer_relay **ret, struct mu_errmsg *reterr_msg);
/** Ends all circuits, and all places. Not from a callback. NULL is fine. */
void mu_peer_relay_free(struct mu_peer_relay *relay);

/** Asks for a place there, for as long as it is needed. The address must name the relay.
 * MUSTER_EINVAL, MUSTER_ELIMIT, MUSTER_ENOMEM, in words. */
int mu_peer_relay_reserve(struct mu_peer_relay *relay, const char *multiaddr,
                          struct mu_errmsg *reterr_msg);
/** Address number `i` that we are reached at through a relay, without our own name; empty behind
 * the last. */
struct mu_span mu_peer_relay_addr(const struct mu_peer_relay *relay, size_t i);

struct mu_peer_relay_stats {
    /* As a relay. */
    uint64_t reserved, reserve_refused; /* ever; renewals count */
    uint64_t connected, connect_refused;
    uint64_t bytes;                  /* passed on, both ways */
    uint64_t reservations, circuits; /* now; circuits that are not open yet included */
    uint64_t streams;                /* now: of all who have asked something */
    /* Behind relays. */
    uint64_t places;           /* now */
    uint64_t dialled, stopped; /* ever: circuits of ours, and of others to us */
};

void mu_peer_relay_stats(const struct mu_peer_relay *relay, struct mu_peer_relay_stats *ret);

#endif
