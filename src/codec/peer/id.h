/*
 * A peer's id: a multihash of its public key. It contains short keys (Ed25519) whole, others (RSA)
 * as their SHA-256. As text it is base58 of the bytes (Qm..., 12D3KooW...), which is the usual
 * form, or a CIDv1 in base32 (bafz...).
 */
#ifndef MU_PEER_ID_H
#define MU_PEER_ID_H

#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"
#include "core/span.h"

#define MU_PEER_ID_MAX      44 /* identity hash of a key of 42 bytes */
#define MU_PEER_ID_TEXT_MAX 64
#define MU_PEER_ID_CID_MAX  80 /* 46 bytes in base32, a letter before and a zero after them */
#define MU_PEER_KEY_INLINE  42 /* longer public keys are hashed */

struct mu_peer_id {
    uint8_t len;
    uint8_t bytes[MU_PEER_ID_MAX];
};

/** MUSTER_EINVAL: not the multihash of a key. */
int mu_peer_id_from_bytes(struct mu_peer_id *ret_id, struct mu_span bytes);
/** Parses either text form. MUSTER_EINVAL, with a text. */
int mu_peer_id_parse(struct mu_peer_id *ret_id, const char *text, struct mu_errmsg *reterr_msg);
/** Writes a terminated text; returns `text`. */
char *mu_peer_id_format(const struct mu_peer_id *id, char text[MU_PEER_ID_TEXT_MAX]);
/** The same as a CIDv1. */
char *mu_peer_id_format_cid(const struct mu_peer_id *id, char text[MU_PEER_ID_CID_MAX]);

static inline struct mu_span mu_peer_id_span(const struct mu_peer_id *id)
{
    return mu_span(id->bytes, id->len);
}

static inline bool mu_peer_id_eq(const struct mu_peer_id *a, const struct mu_peer_id *b)
{
    return mu_span_eq(mu_peer_id_span(a), mu_peer_id_span(b));
}

#endif
