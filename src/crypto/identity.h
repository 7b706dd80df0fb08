/*
 * A peer's identity: a key pair, in libp2p's encodings. The default is Ed25519; RSA is there
 * because hivemind's key files use it; ECDSA signatures of other peers are verified. A key file
 * holds the private key's protocol buffer and nothing else.
 */
#ifndef MU_IDENTITY_H
#define MU_IDENTITY_H

#include "codec/peer/id.h"
#include "core/buf.h"
#include "core/err.h"

#define MU_IDENTITY_SEED_LEN    32
#define MU_IDENTITY_FILE_MAX    8192 /* of a private key; one of 4096 bits has 2.4 KiB */
#define MU_PUBLIC_KEY_LEN_MAX   2048 /* the protocol buffer */
#define MU_IDENTITY_SIG_LEN_MAX 1024

enum mu_key_type {
    MU_KEY_RSA = 0,
    MU_KEY_ED25519 = 1,
    MU_KEY_SECP256K1 = 2,
    MU_KEY_ECDSA = 3,
};

struct mu_identity {
    enum mu_key_type type;
    void *key; /* the private one */
    struct mu_peer_id id;
    struct mu_buf public_key; /* its protocol buffer */
};

/** Makes an Ed25519 identity from 32 random bytes. MUSTER_ENOMEM. */
int mu_identity_from_seed(struct mu_identity *ret, const uint8_t seed[MU_IDENTITY_SEED_LEN]);
/** Reads a private key's protocol buffer. MUSTER_EINVAL, with a text; MUSTER_ENOMEM. */
int mu_identity_decode(struct mu_identity *ret, struct mu_span file, struct mu_errmsg *reterr_msg);
/** Appends the private key's protocol buffer. MUSTER_ENOMEM, MUSTER_ELIMIT. */
int mu_identity_encode(const struct mu_identity *identity, struct mu_buf *out);
void mu_identity_fini(struct mu_identity *identity);

/** Appends the signature of a message. MUSTER_ENOMEM, MUSTER_ELIMIT. */
int mu_identity_sign(const struct mu_identity *identity, struct mu_span message,
                     struct mu_buf *out);

/** The id of the peer whose public key this is. MUSTER_EINVAL: it is not a key. */
int mu_public_key_peer(struct mu_span public_key, struct mu_peer_id *ret_id);
/** Verifies a signature. MUSTER_ECORRUPT: that key did not sign it; MUSTER_ENOTSUP: an unknown kind
 * of key; MUSTER_EINVAL: not a key at all; MUSTER_ENOMEM. */
int mu_public_key_verify(struct mu_span public_key, struct mu_span message,
                         struct mu_span signature);
/** Checks a signature, in OpenSSL's context of a verification that has begun. MUSTER_ECORRUPT. */
int mu_signature_check(void *context, struct mu_span message, struct mu_span signature);

/**
 * The one function here that is not pure: it makes an RSA key of `bits` bits (2048 to 8192) from
 * OpenSSL's own randomness, which takes a good part of a second. MUSTER_EINVAL, MUSTER_ENOMEM.
 */
int mu_identity_generate_rsa(struct mu_identity *ret, unsigned bits);

#endif
