/*
 * identify (/ipfs/id/1.0.0 and /ipfs/id/push/1.0.0): what a peer tells about itself, as one to ten
 * messages, each after its length, on a stream of their own. Together they are one message: later
 * values win over earlier ones, and lists add up. Concatenated protocol buffers are read in this
 * way, so messages are kept as they came and read once at the end.
 *
 *     mu_identify_in_recv(&in, bytes)        bytes have come
 *     mu_identify_in_end(&in, &bytes)        the stream has ended: all of it
 *     mu_identify_decode(bytes, &id)
 *     while (mu_identify_next_protocol(&walk, &name)) ...
 *
 * In a push, missing values have not changed.
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
#define MU_IDENTIFY_NAME_MAX      1023 /* of a protocol that can be negotiated */
#define MU_IDENTIFY_VERSION_MAX   256

/* What was read; spans point into the input. A span whose data is NULL is missing. */
struct mu_identify {
    struct mu_span public_key;
    struct mu_span observed_addr; /* any bytes: perhaps not a multiaddr */
    struct mu_span protocol_version;
    struct mu_span agent_version;
    struct mu_span signed_record; /* see crypto/peer_record.h */
    struct mu_span all;           /* walked for addresses and protocols */
    size_t addr_count;            /* how many can be read */
    size_t protocol_count;
};

/** MUSTER_EPROTO; MUSTER_ELIMIT: more, or longer, than the limits above. */
int mu_identify_decode(struct mu_span bytes, struct mu_identify *ret);
/** Takes the next address or protocol off `*walk`, which starts as `all`. Addresses of unknown
 * kinds are skipped. False: there are no more. */
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
/** Takes all bytes. MUSTER_EPROTO, MUSTER_ELIMIT: it cannot be used any more; MUSTER_ENOMEM:
 * nothing was taken. */
int mu_identify_in_recv(struct mu_identify_in *in, struct mu_span bytes);
/** Everything that came; points into `in`. MUSTER_EPROTO: the last message is cut off, or there is
 * no message. */
int mu_identify_in_end(const struct mu_identify_in *in, struct mu_span *ret_bytes);

/* What to write; everything is borrowed. A span whose data is NULL is left out. */
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

/** Appends as many messages as necessary, each with its length. MUSTER_ELIMIT: there would be too
 * many, or `out` is full; MUSTER_ENOMEM. After an error `out` may hold a part. */
int mu_identify_encode(const struct mu_identify_out *say, struct mu_buf *out);

#endif
