/*
 * libp2p's signed envelope: some bytes, what kind of bytes they are, and who has signed them. A
 * domain keeps a signature for one purpose from being used for another.
 */
#ifndef MU_ENVELOPE_H
#define MU_ENVELOPE_H

#include "crypto/identity.h"

#define MU_ENVELOPE_MAX 8192

/**
 * Reads one that must be of this kind; the payload is lent. MUSTER_EPROTO: it is none, or of
 * another kind; MUSTER_ESIGNATURE: its key did not sign it; MUSTER_ENOTSUP, MUSTER_ENOMEM.
 */
int mu_envelope_open(struct mu_span envelope, struct mu_span domain, struct mu_span type,
                     struct mu_span *ret_payload, struct mu_peer_id *ret_signer);
/** Appends one of our own. MUSTER_ELIMIT, MUSTER_ENOMEM. */
int mu_envelope_seal(const struct mu_identity *identity, struct mu_span domain, struct mu_span type,
                     struct mu_span payload, struct mu_buf *out);

#endif
