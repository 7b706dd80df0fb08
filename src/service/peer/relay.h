/*
 * Circuit relay v2, on a peer host: it can be a relay, be reached through one, and reach others
 * through theirs. docs/relay.md has the picture.
 *
 *     mu_peer_relay_start(host, &config, &relay, &msg);    from here on circuits are dialled:
 *         mu_peer_host_connect() to /…/p2p/RELAY/p2p-circuit/p2p/PEER, or any stream to PEER once
 *         the book has such an address of it
 *     mu_peer_relay_reserve(relay, "/…/p2p/RELAY", &msg);  to be reached through that one
 *     mu_peer_relay_free(relay);                           before mu_peer_host_stop()
 *
 * A connection through a relay is secured between its two ends like any other: the relay sees which
 * peers talk and how much, but nothing of the content. The host uses it like others, reports that
 * it is limited (mu_peer_host_limited()), and prefers another one where there is one.
 *
 * Reservations. The service asks for a place at a relay, renews it before it ends, and asks again
 * when the connection to the relay is lost; meanwhile that connection is kept. Identify tells
 * others the addresses that it brings. With `autorelay`, it also asks connected peers that say that
 * they are relays, until `wanted` places are held: for hosts that no other peer can dial.
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
    /** Our addresses through relays have changed. May be NULL. It must not free the relay, and is
     * called within the host's turns. */
    void (*changed)(void *context);
    /** A relay of mu_peer_relay_reserve() gave us no place; it is asked again later. May be NULL.
     * The same holds. */
    void (*refused)(void *context, const struct mu_peer_id *at, const char *why);
    void *context;
};

struct mu_peer_relay_config mu_peer_relay_config_defaults(void);

/** The host is borrowed. MUSTER_EEXIST: it has a relay service already; MUSTER_ENOMEM. */
int mu_peer_relay_start(struct mu_peer_host *host, const struct mu_peer_relay_config *config,
                        struct mu_peer_relay **ret, struct mu_errmsg *reterr_msg);
/** Ends all circuits, and all places. Not from a callback. NULL is fine. */
void mu_peer_relay_free(struct mu_peer_relay *relay);

/** Asks for a place at that relay, and keeps it. The address must name the relay. MUSTER_EINVAL,
 * MUSTER_ELIMIT, MUSTER_ENOMEM, with a text. */
int mu_peer_relay_reserve(struct mu_peer_relay *relay, const char *multiaddr,
                          struct mu_errmsg *reterr_msg);
/** Returns address number `i` at which a relay reaches us, without our own id; empty after the
 * last. */
struct mu_span mu_peer_relay_addr(const struct mu_peer_relay *relay, size_t i);

struct mu_peer_relay_stats {
    /* As a relay. */
    uint64_t reserved, reserve_refused; /* so far; renewals count */
    uint64_t connected, connect_refused;
    uint64_t bytes;                  /* passed on, both ways */
    uint64_t reservations, circuits; /* now; circuits that are not open yet included */
    uint64_t streams;                /* now: of all requests */
    /* Behind relays. */
    uint64_t places;           /* now */
    uint64_t dialled, stopped; /* so far: circuits that we dialled, and that others dialled to us */
};

void mu_peer_relay_stats(const struct mu_peer_relay *relay, struct mu_peer_relay_stats *ret);

#endif
