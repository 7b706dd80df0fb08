/*
 * Keys that own records of the DHT: RSA, written as OpenSSH writes public keys ("ssh-rsa AAAA..."),
 * signing with PSS: SHA-256, MGF1 with SHA-256, as much salt as fits. That is hivemind's
 * RSASignatureValidator. The key has nothing to do with the peer's identity, though any RSA
 * identity can serve as one.
 */
#ifndef MU_OWNER_KEY_H
#define MU_OWNER_KEY_H

#include "core/buf.h"
#include "crypto/identity.h"

#define MU_OWNER_LINE_MAX 1600 /* of a key of 8192 bits; one of 2048 has 380 bytes */

/** Appends the public key's line, without a comment. MUSTER_EINVAL: it is not RSA; MUSTER_ELIMIT,
 * MUSTER_ENOMEM. */
int mu_owner_line(const struct mu_identity *key, struct mu_buf *out);
/** Appends the signature. The salt is OpenSSL's own randomness. Errors as above. */
int mu_owner_sign(const struct mu_identity *key, struct mu_span message, struct mu_buf *out);
/** Verifies a signature. MUSTER_ECORRUPT: that key did not sign it; MUSTER_EINVAL: the line is not
 * a key of 2048 to 8192 bits; MUSTER_ENOMEM. */
int mu_owner_verify(struct mu_span line, struct mu_span message, struct mu_span signature);

#endif
