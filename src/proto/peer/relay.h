/*
 * The decisions of circuit relay v2: at a relay, which peers may be reached through it and how much
 * passes; at a peer behind a relay, when it asks for a reservation. They are decision machines:
 * calls change them, and the driver (service/peer/relay.h) exchanges the messages.
 *
 * At the relay:
 *
 *     status = mu_relay_hop_reserve(&hop, now, &peer, ip, relayed, &expire_s)
 *     mu_relay_hop_forget(&hop, &peer)                    it is gone: its reservation ends
 *
 *     status = mu_relay_hop_connect(&hop, now, &from, &to, relayed, &circuit)
 *     mu_relay_circuit_open(&circuit, now)                the other end has agreed
 *     n = mu_relay_circuit_pass(&circuit, way, n)         less than asked for: the limit is reached
 *     mu_relay_circuit_end(&circuit)
 *
 * A reservation ends with the connection to its peer, or when its time is up. Circuits that are
 * open then go on.
 */
#ifndef MU_RELAY_H
#define MU_RELAY_H

#include <stdbool.h>

#include "codec/peer/relay_msg.h"
#include "core/list.h"
#include "core/map.h"
#include "core/prng.h"
#include "core/time.h"

/* --- at the relay ----------------------------------------------------------------------------- */

struct mu_relay_hop_config {
    uint64_t seed;
    uint32_t reservation_ms;      /* how long a reservation lasts. 1 h */
    uint32_t reservations_max;    /* 128: each keeps a connection */
    uint32_t reservations_ip_max; /* from one address, which may be one site or one attacker. 32 */
    uint32_t renewals_max;        /* by one peer in a minute: each costs a signature. 8 */
    uint32_t circuits_max;        /* of all peers. 1,024 */
    uint32_t circuits_peer_max;   /* of one peer, at either end. 16 */
    uint32_t open_ms;             /* time for the other end to answer. 30 s */
    struct mu_relay_limit limit;  /* of each circuit. 30 min, 4 GiB each way */
};

struct mu_relay_hop_config mu_relay_hop_config_defaults(void);

struct mu_relay_hop {
    struct mu_relay_hop_config config;
    struct mu_map by_peer;
    struct mu_list by_end; /* reservations; all last equally long, so the latest is the last */
    struct mu_list circuits;
    uint32_t circuit_count;
};

/* A circuit, in the driver's memory. */
struct mu_relay_circuit {
    struct mu_relay_hop *hop;
    struct mu_list link;
    struct mu_peer_id from;
    struct mu_peer_id to;
    mu_mono_t ends_at; /* when it must be ended */
    uint64_t left[2];  /* bytes from `from`, and from `to` */
    uint64_t passed[2];
};

/** Takes no memory. */
void mu_relay_hop_init(struct mu_relay_hop *hop, const struct mu_relay_hop_config *config);
/** Call it after its circuits have ended. */
void mu_relay_hop_fini(struct mu_relay_hop *hop);

/**
 * A peer at `ip` (any text; empty: no address limit applies) asks for a reservation, or to renew
 * it; `relayed`: it came through a relay itself. Returns MU_RELAY_OK and the time when it ends, or
 * the status to answer with: RESERVATION_REFUSED for every limit, PERMISSION_DENIED for a relayed
 * peer. On anything but OK, an earlier reservation stays as it was.
 */
enum mu_relay_status mu_relay_hop_reserve(struct mu_relay_hop *hop, struct mu_now now,
                                          const struct mu_peer_id *peer, struct mu_span ip,
                                          bool relayed, uint64_t *ret_expire_s);
/** Returns whether the peer has a reservation. */
bool mu_relay_hop_reserved(const struct mu_relay_hop *hop, mu_mono_t now,
                           const struct mu_peer_id *peer);
/** Ends its reservation. Harmless if it has no reservation. */
void mu_relay_hop_forget(struct mu_relay_hop *hop, const struct mu_peer_id *peer);
size_t mu_relay_hop_count(const struct mu_relay_hop *hop);
/** Returns when the next reservation ends. */
mu_mono_t mu_relay_hop_deadline(const struct mu_relay_hop *hop);
/** Removes a reservation whose time is up; returns true and its peer. Call it until it returns
 * false. */
bool mu_relay_hop_expire(struct mu_relay_hop *hop, mu_mono_t now, struct mu_peer_id *ret_peer);

/**
 * `from` asks for a circuit to `to`. MU_RELAY_OK: the circuit counts, and the driver ends it if
 * `to` has not agreed by its `ends_at`. Else PERMISSION_DENIED (`from` is relayed itself, or is
 * `to`), NO_RESERVATION, RESOURCE_LIMIT_EXCEEDED.
 */
enum mu_relay_status mu_relay_hop_connect(struct mu_relay_hop *hop, mu_mono_t now,
                                          const struct mu_peer_id *from,
                                          const struct mu_peer_id *to, bool relayed,
                                          struct mu_relay_circuit *ret_circuit);
/** Starts the circuit's time limit. */
void mu_relay_circuit_open(struct mu_relay_circuit *circuit, mu_mono_t now);
/** Returns how many of `n` bytes may pass, and counts them; way 0: from `from`, 1: from `to`. */
size_t mu_relay_circuit_pass(struct mu_relay_circuit *circuit, unsigned way, size_t n);
/** A second call is harmless. */
void mu_relay_circuit_end(struct mu_relay_circuit *circuit);

/* --- behind a relay ---------------------------------------------------------------------------
 *
 * A peer's reservation at one relay:
 *
 *          .------------------------- refused, lost, no answer: later, and later each time
 *          v                                                     |
 *        WAITING -- due: the driver asks --> ASKING --- granted -'-> HELD -- before it ends: due
 *                                              ^                             |
 *                                              '---------- asks again -------' (and is held still)
 */
struct mu_relay_reservation_config {
    uint64_t seed;
    uint32_t margin_ms;    /* how long before the end it asks again; at most a fourth of the time. 2
                              min */
    uint32_t answer_ms;    /* time for an answer. 30 s */
    uint32_t retry_ms;     /* after the first failure; each doubles it. 2 s */
    uint32_t retry_max_ms; /* 5 min */
};

struct mu_relay_reservation_config mu_relay_reservation_config_defaults(void);

struct mu_relay_reservation {
    struct mu_relay_reservation_config config;
    struct mu_prng prng;
    bool asking;
    bool held;
    mu_mono_t ask_at;   /* while not asking */
    mu_mono_t until_at; /* while asking: when the answer must be there */
    mu_mono_t ends_at;  /* while held */
    uint32_t failures;  /* in a row */
};

/** The first request is due at once. */
void mu_relay_reservation_init(struct mu_relay_reservation *k,
                               const struct mu_relay_reservation_config *config, mu_mono_t now);
/** Applies the passing of time: an answer that did not come, an end that was reached. */
void mu_relay_reservation_tick(struct mu_relay_reservation *k, mu_mono_t now);
/** Returns whether the relay must be asked now; after true, the machine is ASKING. */
bool mu_relay_reservation_ask(struct mu_relay_reservation *k, mu_mono_t now);
/**
 * The relay has granted the reservation until `expire_s` of its clock. If the relay's clock is so
 * far off that the end has passed, the grant counts as one minute; no grant counts as more than a
 * day.
 */
void mu_relay_reservation_granted(struct mu_relay_reservation *k, struct mu_now now,
                                  uint64_t expire_s);
/** The relay has refused, or its answer cannot be used. A reservation that is held stays. Harmless
 * while not asking. */
void mu_relay_reservation_failed(struct mu_relay_reservation *k, mu_mono_t now);
/** The connection to the relay is gone, and the reservation with it. */
void mu_relay_reservation_lost(struct mu_relay_reservation *k, mu_mono_t now);
mu_mono_t mu_relay_reservation_deadline(const struct mu_relay_reservation *k);

#endif
