/*
 * Circuit relay v2, what is decided: at a relay, who may be reached through it and what passes; at
 * a peer behind one, when it asks for its place. Decision machines: calls change them, and the
 * driver (service/peer/relay.h) does the talking.
 *
 * At the relay:
 *
 *     status = mu_relay_hop_reserve(&hop, now, &peer, ip, relayed, &expire_s)
 *     mu_relay_hop_forget(&hop, &peer)                    it has gone: its place is free
 *
 *     status = mu_relay_hop_connect(&hop, now, &from, &to, relayed, &circuit)
 *     mu_relay_circuit_open(&circuit, now)                the other end has said yes
 *     n = mu_relay_circuit_pass(&circuit, way, n)         less than asked for: that was all it may
 *     mu_relay_circuit_end(&circuit)
 *
 * A reservation is worth what the connection to who has it is worth: it ends with that, or when its
 * time is up. Circuits that are open then go on.
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
    uint32_t reservation_ms;      /* how long one lasts. 1 h */
    uint32_t reservations_max;    /* 128: each keeps a connection */
    uint32_t reservations_ip_max; /* from one address: many may be one site, or one liar. 32 */
    uint32_t renewals_max;        /* by one peer in a minute: each costs a signature. 8 */
    uint32_t circuits_max;        /* of all. 1,024 */
    uint32_t circuits_peer_max;   /* that one peer is an end of. 16 */
    uint32_t open_ms;             /* until the other end has answered. 30 s */
    struct mu_relay_limit limit;  /* of each circuit. 30 min, 4 GiB each way */
};

struct mu_relay_hop_config mu_relay_hop_config_defaults(void);

struct mu_relay_hop {
    struct mu_relay_hop_config config;
    struct mu_map by_peer;
    struct mu_list by_end; /* reservations; all last as long, so who asked last is last */
    struct mu_list circuits;
    uint32_t circuit_count;
};

/* A circuit, in the driver's memory. */
struct mu_relay_circuit {
    struct mu_relay_hop *hop;
    struct mu_list link;
    struct mu_peer_id from;
    struct mu_peer_id to;
    mu_mono_t ends_at; /* it is to be ended then */
    uint64_t left[2];  /* bytes from `from`, and from `to` */
    uint64_t passed[2];
};

/** Takes no memory. */
void mu_relay_hop_init(struct mu_relay_hop *hop, const struct mu_relay_hop_config *config);
/** Its circuits have ended. */
void mu_relay_hop_fini(struct mu_relay_hop *hop);

/**
 * A peer at `ip` (any text; empty: it counts for none) asks for a place, or to keep it; `relayed`:
 * it came through a relay itself. MU_RELAY_OK, with the time until when; or the status to be
 * answered: RESERVATION_REFUSED for every limit, PERMISSION_DENIED for who is relayed. On anything
 * but OK what it had before stays as it was.
 */
enum mu_relay_status mu_relay_hop_reserve(struct mu_relay_hop *hop, struct mu_now now,
                                          const struct mu_peer_id *peer, struct mu_span ip,
                                          bool relayed, uint64_t *ret_expire_s);
/** Whether the peer can be reached. */
bool mu_relay_hop_reserved(const struct mu_relay_hop *hop, mu_mono_t now,
                           const struct mu_peer_id *peer);
/** It has no place any more. Harmless when it had none. */
void mu_relay_hop_forget(struct mu_relay_hop *hop, const struct mu_peer_id *peer);
size_t mu_relay_hop_count(const struct mu_relay_hop *hop);
/** When a reservation ends next. */
mu_mono_t mu_relay_hop_deadline(const struct mu_relay_hop *hop);
/** Takes one whose time is up: true, and whose it was. Asked until false. */
bool mu_relay_hop_expire(struct mu_relay_hop *hop, mu_mono_t now, struct mu_peer_id *ret_peer);

/**
 * `from` asks to be led to `to`. MU_RELAY_OK: the circuit counts, and is to be ended if `to` has
 * not said yes by its `ends_at`. Else PERMISSION_DENIED (`from` is relayed itself, or is `to`),
 * NO_RESERVATION, RESOURCE_LIMIT_EXCEEDED.
 */
enum mu_relay_status mu_relay_hop_connect(struct mu_relay_hop *hop, mu_mono_t now,
                                          const struct mu_peer_id *from,
                                          const struct mu_peer_id *to, bool relayed,
                                          struct mu_relay_circuit *ret_circuit);
/** From here on its time runs. */
void mu_relay_circuit_open(struct mu_relay_circuit *circuit, mu_mono_t now);
/** How many of `n` bytes may pass; way 0: from `from`, 1: from `to`. They count. */
size_t mu_relay_circuit_pass(struct mu_relay_circuit *circuit, unsigned way, size_t n);
/** Twice is harmless. */
void mu_relay_circuit_end(struct mu_relay_circuit *circuit);

/* --- behind a relay ---------------------------------------------------------------------------
 *
 * One's place at one relay:
 *
 *          .------------------------- refused, lost, no answer: later, and later each time
 *          v                                                     |
 *        WAITING -- due: the driver asks --> ASKING --- granted -'-> HELD -- before it ends: due
 *                                              ^                             |
 *                                              '---------- asks again -------' (and is held still)
 */
struct mu_relay_reservation_config {
    uint64_t seed;
    uint32_t margin_ms;    /* asks again so long before the end; at most a fourth of it. 2 min */
    uint32_t answer_ms;    /* until an answer must be there. 30 s */
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
    mu_mono_t until_at; /* while asking: an answer */
    mu_mono_t ends_at;  /* while held */
    uint32_t failures;  /* in a row */
};

/** It is due at once. */
void mu_relay_reservation_init(struct mu_relay_reservation *k,
                               const struct mu_relay_reservation_config *config, mu_mono_t now);
/** What the time has done: an answer that did not come, an end that was reached. */
void mu_relay_reservation_tick(struct mu_relay_reservation *k, mu_mono_t now);
/** Whether the relay is to be asked now; true means that it is, from here on. */
bool mu_relay_reservation_ask(struct mu_relay_reservation *k, mu_mono_t now);
/**
 * The relay has said yes, until `expire_s` of its clock. A relay whose clock is off by more than a
 * reservation lasts would grant what is over: it counts as a minute, and no grant as more than a
 * day.
 */
void mu_relay_reservation_granted(struct mu_relay_reservation *k, struct mu_now now,
                                  uint64_t expire_s);
/** It has said no, or nothing that can be used. What is held stays. Harmless while not asking. */
void mu_relay_reservation_failed(struct mu_relay_reservation *k, mu_mono_t now);
/** The connection to it is gone, and what was held with it. */
void mu_relay_reservation_lost(struct mu_relay_reservation *k, mu_mono_t now);
mu_mono_t mu_relay_reservation_deadline(const struct mu_relay_reservation *k);

#endif
