/*
 * Messages of AutoNAT v1: a peer asks another to dial it back, to learn whether others can dial it.
 * On a stream named MU_AUTONAT_NAME goes one message each way, each behind its length as a uvarint
 * (mu_relay_in of codec/peer/relay_msg.h reads both):
 *
 *     Message {1 type: DIAL 0, DIAL_RESPONSE 1; 2 Dial{1 PeerInfo{1 id, 2 addrs}};
 *              3 DialResponse{1 status; 2 statusText; 3 addr}}
 */
#ifndef MU_AUTONAT_MSG_H
#define MU_AUTONAT_MSG_H

#include <stdbool.h>

#include "codec/peer/id.h"
#include "core/buf.h"
#include "core/span.h"

#define MU_AUTONAT_NAME    "/libp2p/autonat/1.0.0"
#define MU_AUTONAT_MSG_MAX 4096 /* bytes, without the length; others have the same limit */

/* The values of a status. It is kept as a number, since others may be added. */
enum mu_autonat_status {
    MU_AUTONAT_OK = 0,
    MU_AUTONAT_DIAL_ERROR = 100,
    MU_AUTONAT_DIAL_REFUSED = 101,
    MU_AUTONAT_BAD_REQUEST = 200,
    MU_AUTONAT_INTERNAL_ERROR = 300,
};

/* What was read; spans point into the input. Missing fields are zero. */
struct mu_autonat_msg {
    bool response;
    struct mu_span peer;  /* DIAL: the id of the peer that asks */
    struct mu_span addrs; /* DIAL: walk them with mu_autonat_next_addr() */
    uint32_t status;      /* DIAL_RESPONSE, and the rest */
    struct mu_span text;
    struct mu_span addr; /* the address that was reached */
};

/** MUSTER_EPROTO: it cannot be read, or has nothing of what its type needs. */
int mu_autonat_msg_decode(struct mu_span bytes, struct mu_autonat_msg *ret);
/** Takes the next address off `*walk`; what is not a known multiaddr is skipped. */
bool mu_autonat_next_addr(struct mu_span *walk, struct mu_span *ret_addr);

/** Appends a request, after its length: dial the peer at one of these. MUSTER_ELIMIT: it is too
 * long, or `out` is full; MUSTER_ENOMEM. On an error `out` is unchanged, as below. */
int mu_autonat_ask(const struct mu_peer_id *self, const struct mu_span *addrs, size_t count,
                   struct mu_buf *out);
/** Appends an answer, after its length. The address may be empty. */
int mu_autonat_answer(enum mu_autonat_status status, struct mu_span text, struct mu_span addr,
                      struct mu_buf *out);

#endif
