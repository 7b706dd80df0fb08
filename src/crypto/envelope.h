/*
 * libp2p's signed envelope: some bytes, their kind, and the key that signed them. The domain
 * prevents a signature for one purpose from being used for another.
 */
#ifndef MU_ENVELOPE_H
#define MU_ENVELOPE_H

#include "crypto/identity.h"

#define MU_ENVELOPE_MAX 8192

/**
 * Reads an envelope that must be of this kind; the payload points into it. MUSTER_EPROTO: it is not
 * an envelope; MUSTER_ENOENT: it is of another kind; MUSTER_ESIGNATURE: its key did not sign it;
 * MUSTER_ENOTSUP, MUSTER_ENOMEM.
 */
int mu_envelope_open(struct mu_span envelope, struct mu_span domain, struct mu_span type,
                     struct mu_span *ret_payload, struct mu_peer_id *ret_signer);
/** Appends an envelope of our own. MUSTER_ELIMIT, MUSTER_ENOMEM. */
int mu_envelope_seal(const struct mu_identity *identity, struct mu_span domain, struct mu_span type,
                     struct mu_span payload, struct mu_buf *out);

#endif
