/*
 * identify (/ipfs/id/1.0.0 and /ipfs/id/push/1.0.0): what a peer says of itself, as one to ten
 * messages, each behind its length, on a stream of their own. Together they are one: what is said
 * later goes before what was said earlier, and lists add up. That is how protocol buffers that are
 * written one behind the other are read, so messages are kept as they came and read once at the
 * end.
 *
 *     mu_identify_in_recv(&in, bytes)        what has come
 *     mu_identify_in_end(&in, &bytes)        the stream has ended: all of it
 *     mu_identify_decode(bytes, &id)
 *     while (mu_identify_next_protocol(&walk, &name)) ...
 *
 * In a push, what is not said has not changed.
 */
#ifndef MU_IDENTIFY_H
#define MU_IDENTIFY_H

#include <stdbool.h>

#include "codec/bin/uvarint.h"
#include "core/buf.h"
#include "core/span.h"

#define MU_IDENTIFY_MESSAGE_MAX   8192 /* bytes, without the length */
#define MU_IDENTIFY_MESSAGES_MAX  10
#define MU_IDENTIFY_ADDRS_MAX     256
#define MU_IDENTIFY_PROTOCOLS_MAX 2048
#define MU_IDENTIFY_NAME_MAX      1023 /* of a protocol: what can be negotiated */
#define MU_IDENTIFY_VERSION_MAX   256

/* What was read, lent by the bytes it is in. A span whose data is NULL: it was not said. */
struct mu_identify {
    struct mu_span public_key;
    struct mu_span observed_addr; /* a multiaddr, or none at all: it may be of any kind */
    struct mu_span protocol_version;
    struct mu_span agent_version;
    struct mu_span signed_record; /* see crypto/peer_record.h */
    struct mu_span all;           /* to be walked for addresses and protocols */
    size_t addr_count;            /* that can be read */
    size_t protocol_count;
};

/** MUSTER_EPROTO; MUSTER_ELIMIT: more, or longer, than anybody needs. */
int mu_identify_decode(struct mu_span bytes, struct mu_identify *ret);
/** Takes the next off `*walk`, which starts as `all`. Addresses of kinds that are not known here
 * are left out. False: that was all. */
bool mu_identify_next_addr(struct mu_span *walk, struct mu_span *ret_addr);
bool mu_identify_next_protocol(struct mu_span *walk, struct mu_span *ret_name);

/* Messages as they come on a stream. */
struct mu_identify_in {
    struct mu_buf bytes; /* of the messages, without their lengths */
    uint8_t head[MU_UVARINT_LEN_MAX];
    uint8_t head_len;
    size_t left; /* of the message that is being read */
    uint32_t messages;
    int poison;
};

/** Takes no memory. */
void mu_identify_in_init(struct mu_identify_in *in);
void mu_identify_in_fini(struct mu_identify_in *in);
/** Takes all of it. MUSTER_EPROTO, MUSTER_ELIMIT poison it; MUSTER_ENOMEM: nothing was taken. */
int mu_identify_in_recv(struct mu_identify_in *in, struct mu_span bytes);
/** All that came; lent. MUSTER_EPROTO: the last message is cut off, or there is none. */
int mu_identify_in_end(const struct mu_identify_in *in, struct mu_span *ret_bytes);

/* What is to be said; all borrowed. A span whose data is NULL is not said. */
struct mu_identify_out {
    struct mu_span public_key;
    const struct mu_span *addrs;
    size_t addr_count;
    const struct mu_span *protocols;
    size_t protocol_count;
    struct mu_span observed_addr;
    struct mu_span protocol_version;
    struct mu_span agent_version;
    struct mu_span signed_record;
};

/** Appends as many messages as it takes, each with its length. MUSTER_ELIMIT: it takes too many, or
 * `out` is full; MUSTER_ENOMEM. `out` may then hold a part of it. */
int mu_identify_encode(const struct mu_identify_out *say, struct mu_buf *out);

#endif
