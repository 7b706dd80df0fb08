/*
 * Messages of circuit relay v2: how a peer that cannot be dialled is reached through one that can.
 * On a stream named MU_RELAY_HOP_NAME a peer speaks to a relay (the hop's side); on one named
 * MU_RELAY_STOP_NAME a relay speaks to the target peer (the stop's side). Each message follows its
 * length as a uvarint.
 *
 *     RESERVE -> STATUS                       hop: let others reach me through you
 *     CONNECT -> STATUS                       hop: connect me to that peer
 *     CONNECT -> STATUS                       stop: that peer wants to reach you
 *
 * After a CONNECT and a STATUS of MU_RELAY_OK the stream carries a connection between the two
 * peers, and no more messages of the relay.
 */
#ifndef MU_RELAY_MSG_H
#define MU_RELAY_MSG_H

#include <stdbool.h>

#include "codec/peer/id.h"
#include "codec/bin/uvarint.h"
#include "core/buf.h"
#include "core/span.h"

#define MU_RELAY_HOP_NAME    "/libp2p/circuit/relay/0.2.0/hop"
#define MU_RELAY_STOP_NAME   "/libp2p/circuit/relay/0.2.0/stop"
#define MU_RELAY_MSG_MAX     4096 /* bytes, without the length; others have the same limit */
#define MU_RELAY_VOUCHER_MAX 2048 /* one signed with RSA has 900 */

enum mu_relay_side {
    MU_RELAY_HOP = 1,
    MU_RELAY_STOP,
};

enum mu_relay_type {
    MU_RELAY_RESERVE = 1, /* hop only */
    MU_RELAY_CONNECT,
    MU_RELAY_STATUS,
};

/* The values of a STATUS. It is kept as a number, since others may be added. */
enum mu_relay_status {
    MU_RELAY_UNSAID = 0,
    MU_RELAY_OK = 100,
    MU_RELAY_RESERVATION_REFUSED = 200,
    MU_RELAY_RESOURCE_LIMIT_EXCEEDED = 201,
    MU_RELAY_PERMISSION_DENIED = 202,
    MU_RELAY_CONNECTION_FAILED = 203,
    MU_RELAY_NO_RESERVATION = 204,
    MU_RELAY_MALFORMED_MESSAGE = 400,
    MU_RELAY_UNEXPECTED_MESSAGE = 401,
};

/** A text for any status. */
const char *mu_relay_status_text(uint32_t status);

/* The limits of one circuit; 0: no limit. */
struct mu_relay_limit {
    uint32_t duration_s;
    uint64_t data_bytes; /* in each direction */
};

/* What was read; spans point into the input. Missing fields are zero. */
struct mu_relay_msg {
    enum mu_relay_type type;
    struct mu_peer_id peer; /* CONNECT: the target (hop), the caller (stop) */
    bool reserved;          /* there is a reservation */
    uint64_t expire_s;      /* since 1970 */
    struct mu_span addrs;   /* the relay's; walk them with mu_relay_next_addr() */
    struct mu_span voucher; /* see crypto/relay_voucher.h */
    bool limited;           /* there is a limit */
    struct mu_relay_limit limit;
    uint32_t status; /* STATUS */
};

/** MUSTER_EPROTO: it cannot be read, has no type, or a CONNECT has no peer. */
int mu_relay_msg_decode(enum mu_relay_side side, struct mu_span bytes, struct mu_relay_msg *ret);
/** Takes the next address off `*walk`; what is not a known multiaddr is skipped. */
bool mu_relay_next_addr(struct mu_span *walk, struct mu_span *ret_addr);

/* What to write; everything is borrowed. Zero fields are left out. */
struct mu_relay_out {
    enum mu_relay_type type;
    const struct mu_peer_id *peer;
    uint64_t expire_s; /* not 0: there is a reservation */
    const struct mu_span *addrs;
    size_t addr_count;
    struct mu_span voucher;
    struct mu_relay_limit limit;
    enum mu_relay_status status;
};

/** Appends the message, after its length. MUSTER_ELIMIT: it is too long, or `out` is full;
 * MUSTER_ENOMEM. On an error `out` is unchanged. */
int mu_relay_msg_encode(enum mu_relay_side side, const struct mu_relay_out *say,
                        struct mu_buf *out);

/* One message as it comes on a stream; what follows it is not the relay's. */
struct mu_relay_in {
    struct mu_buf bytes;
    uint8_t head[2]; /* enough for MU_RELAY_MSG_MAX */
    uint8_t head_len;
    size_t left; /* of the message, once its length is known */
    bool known;
    int poison;
};

/** Takes no memory. */
void mu_relay_in_init(struct mu_relay_in *in);
void mu_relay_in_fini(struct mu_relay_in *in);
/**
 * Takes bytes up to the end of the message. 1: the message is whole, and valid until the next call,
 * which begins another; 0: more is needed. MUSTER_EPROTO, MUSTER_ELIMIT (too long): it cannot be
 * used any more; MUSTER_ENOMEM: nothing was taken.
 */
int mu_relay_in_recv(struct mu_relay_in *in, struct mu_span bytes, size_t *ret_used,
                     struct mu_span *ret_msg);

/* What a relay promises, in a form that it signs: which peer, at which relay, until when. */
struct mu_relay_voucher {
    struct mu_peer_id relay;
    struct mu_peer_id peer;
    uint64_t expire_s;
};

/** Appends it. MUSTER_ELIMIT, MUSTER_ENOMEM. */
int mu_relay_voucher_encode(const struct mu_relay_voucher *voucher, struct mu_buf *out);
/** MUSTER_EPROTO. */
int mu_relay_voucher_decode(struct mu_span bytes, struct mu_relay_voucher *ret);

#endif
