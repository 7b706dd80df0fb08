/*
 * Who a peer is: a key pair, in libp2p's encodings. Ed25519 by default; RSA because hivemind's key
 * files are; ECDSA of others is verified. A key file holds the private key's protocol buffer and
 * nothing else.
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

/** An Ed25519 identity of 32 random bytes. MUSTER_ENOMEM. */
int mu_identity_from_seed(struct mu_identity *ret, const uint8_t seed[MU_IDENTITY_SEED_LEN]);
/** A private key's protocol buffer. MUSTER_EINVAL, in words; MUSTER_ENOMEM. */
int mu_identity_decode(struct mu_identity *ret, struct mu_span file, struct mu_errmsg *reterr_msg);
/** Appends the private key's protocol buffer. MUSTER_ENOMEM, MUSTER_ELIMIT. */
int mu_identity_encode(const struct mu_identity *identity, struct mu_buf *out);
void mu_identity_fini(struct mu_identity *identity);

/** Appends the signature of a message. MUSTER_ENOMEM, MUSTER_ELIMIT. */
int mu_identity_sign(const struct mu_identity *identity, struct mu_span message,
                     struct mu_buf *out);

/** The peer whose public key this is. MUSTER_EINVAL: it is none. */
int mu_public_key_peer(struct mu_span public_key, struct mu_peer_id *ret_id);
/** MUSTER_ECORRUPT: that key did not sign it; MUSTER_ENOTSUP: a kind of key that is not known here;
 * MUSTER_EINVAL: no key at all; MUSTER_ENOMEM. */
int mu_public_key_verify(struct mu_span public_key, struct mu_span message,
                         struct mu_span signature);
/** Whether the signature is good, in OpenSSL's context of a verification that has begun.
 * MUSTER_ECORRUPT: it is not. */
int mu_signature_check(void *context, struct mu_span message, struct mu_span signature);

/**
 * The one function here that is not pure: an RSA key of so many bits (2048 to 8192) is drawn from
 * the library's own randomness, and takes a good part of a second. MUSTER_EINVAL, MUSTER_ENOMEM.
 */
int mu_identity_generate_rsa(struct mu_identity *ret, unsigned bits);

#endif
