/*
 * Messages of libp2p's own DHT (/ipfs/kad/1.0.0), as far as they serve to find a peer's addresses.
 * Each follows its length as a uvarint.
 *
 *     mu_kad_msg_decode(bytes, &msg)
 *     while (mu_kad_next_peer(&msg.closer, &peer))
 *         while (mu_kad_next_addr(&peer.addrs, &addr)) ...
 */
#ifndef MU_KAD_MSG_H
#define MU_KAD_MSG_H

#include <stdbool.h>

#include "codec/peer/id.h"
#include "core/buf.h"
#include "core/span.h"

#define MU_KAD_MSG_MAX 65536 /* twenty peers with a dozen addresses have a quarter of it */

enum mu_kad_type {
    MU_KAD_PUT_VALUE = 0,
    MU_KAD_GET_VALUE,
    MU_KAD_ADD_PROVIDER,
    MU_KAD_GET_PROVIDERS,
    MU_KAD_FIND_NODE,
    MU_KAD_PING,
};

enum mu_kad_connection {
    MU_KAD_NOT_CONNECTED = 0,
    MU_KAD_CONNECTED,
};

struct mu_kad_msg {
    enum mu_kad_type type;
    struct mu_span key;    /* FIND_NODE: the bytes of a peer's id */
    struct mu_span closer; /* to be walked */
};

struct mu_kad_peer {
    struct mu_peer_id id;
    struct mu_span addrs; /* to be walked */
};

/** Spans point into the input. MUSTER_EPROTO. */
int mu_kad_msg_decode(struct mu_span bytes, struct mu_kad_msg *ret_msg);
/** Takes the next peer off; invalid ids are skipped. */
bool mu_kad_next_peer(struct mu_span *walk, struct mu_kad_peer *ret_peer);
/** Takes the next address off; what is not a multiaddr is skipped. */
bool mu_kad_next_addr(struct mu_span *walk, struct mu_span *ret_addr);

/** Appends a message without peers, after its length. MUSTER_ELIMIT, MUSTER_ENOMEM. */
int mu_kad_msg_encode(struct mu_buf *out, enum mu_kad_type type, struct mu_span key);

/*
 * An answer with peers: begun, filled, and sealed with its length.
 *
 *     mu_kad_answer_peer(&body, &id, connection); mu_kad_answer_addr() ...   into one buffer,
 *     mu_kad_answer_seal(out, MU_KAD_FIND_NODE, &body)                        and out of it
 */
struct mu_kad_answer {
    struct mu_buf peers; /* each a field of the message */
    struct mu_buf peer;  /* the peer that is being filled */
    int err;
};

void mu_kad_answer_init(struct mu_kad_answer *a);
void mu_kad_answer_fini(struct mu_kad_answer *a);
/** Begins a peer; the previous one must be done. */
void mu_kad_answer_peer(struct mu_kad_answer *a, const struct mu_peer_id *id);
/** Adds an address of the peer. */
void mu_kad_answer_addr(struct mu_kad_answer *a, struct mu_span addr);
/** Ends the peer. A peer without an address is left out. */
void mu_kad_answer_peer_done(struct mu_kad_answer *a, enum mu_kad_connection connection);
/** Appends the message. Returns the first error of all steps: MUSTER_ELIMIT, MUSTER_ENOMEM. */
int mu_kad_answer_seal(struct mu_kad_answer *a, enum mu_kad_type type, struct mu_buf *out);

#endif
