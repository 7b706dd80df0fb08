/*
 * Messages of libp2p's own DHT (/ipfs/kad/1.0.0) as far as peers need them to find each other's
 * addresses: FIND_NODE, and PING. Each goes behind its length as a uvarint; several may follow each
 * other on a stream.
 */
#ifndef MU_KAD_MSG_H
#define MU_KAD_MSG_H

#include <stdbool.h>

#include "core/buf.h"
#include "core/span.h"

#define MU_KAD_NAME        "/ipfs/kad/1.0.0"
#define MU_KAD_MESSAGE_MAX (64u << 10) /* twenty peers with all their addresses have far less */

enum mu_kad_type {
    MU_KAD_FIND_NODE = 4,
    MU_KAD_PING = 5,
};

struct mu_kad_message {
    uint64_t type; /* others than these two are not understood here */
    struct mu_span key;
    struct mu_span peers; /* to be walked */
};

struct mu_kad_peer {
    struct mu_span id;
    struct mu_span addrs; /* to be walked */
};

/** The message at the front, lent. 1, of `*ret_used` bytes; 0: more must come; MUSTER_EPROTO,
 * MUSTER_ELIMIT. */
int mu_kad_decode(struct mu_span in, struct mu_kad_message *ret, size_t *ret_used);
/** Takes the next off. False: that was all. */
bool mu_kad_next_peer(struct mu_span *walk, struct mu_kad_peer *ret);
bool mu_kad_next_addr(struct mu_span *walk, struct mu_span *ret);

/** Appends a request, with its length. MUSTER_ELIMIT, MUSTER_ENOMEM. */
int mu_kad_request_encode(struct mu_buf *out, enum mu_kad_type type, struct mu_span key);
/** Appends one peer to the body of an answer; each address of `addrs` is one of its own. */
int mu_kad_peer_encode(struct mu_buf *body, struct mu_span id, const struct mu_span *addrs,
                       size_t count, bool connected);
/** Appends the answer with such a body, with its length. */
int mu_kad_reply_encode(struct mu_buf *out, enum mu_kad_type type, struct mu_span body);

#endif
