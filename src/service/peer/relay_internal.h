/*
 * What the files of the relay share.
 *
 *     relay.c        life; places at relays, and what follows from them
 *     relay_hop.c    being a relay: reservations, circuits, what passes through them
 *     circuit.c      circuits of our own, as connections of an environment
 */
#ifndef MU_PEER_RELAY_INTERNAL_H
#define MU_PEER_RELAY_INTERNAL_H

#include "service/peer/relay.h"
#include "service/peer/stream_conn.h"

/* Our own circuits. They outlive the relay service while the end of one has to be reported. */
struct mu_circuits {
    struct mu_stream_conns conns; /* each a struct circuit */
    struct mu_peer_circuits dialler;
    struct mu_peer_handler stop_handler;
    struct mu_peer_host *host;
    struct mu_peer_relay *relay; /* NULL: the service is gone */
    size_t strangers;            /* how many of them no relay of ours brought, so far */
    uint64_t dialled, stopped;
};

struct mu_relay_place;

struct mu_peer_relay {
    struct mu_peer_host *host;
    struct mu_env *env;
    struct mu_peer_relay_config config;
    struct mu_circuits *circuits;
    struct mu_peer_watch watch;
    struct mu_prng prng;
    /* as a relay */
    struct mu_relay_hop hop;
    struct mu_peer_handler hop_handler;
    struct mu_timer hop_timer;
    struct mu_list hops; /* struct hop: requests */
    size_t hop_count;
    struct mu_peer_relay_stats stats;
    /* behind relays */
    struct mu_timer tell_timer; /* the host had no memory for our addresses */
    struct mu_list places;
    size_t place_count;
};

/* --- relay.c ----------------------------------------------------------------------------- */

/** Whether we have, or want, a place at that relay: then it may bring others to us. */
bool mu_relay_has_place(const struct mu_peer_relay *relay, const struct mu_peer_id *at);

/* --- relay_hop.c ------------------------------------------------------------------------- */

int mu_relay_hop_serve(struct mu_peer_relay *relay);
void mu_relay_hop_unserve(struct mu_peer_relay *relay);
/** A peer has gone. */
void mu_relay_hop_gone(struct mu_peer_relay *relay, const struct mu_peer_id *peer);

/* --- circuit.c --------------------------------------------------------------------------- */

int mu_circuits_new(struct mu_peer_relay *relay, struct mu_circuits **ret);
/** Ends all circuits; the struct is freed when they are gone. */
void mu_circuits_leave(struct mu_circuits *circuits);

#endif
