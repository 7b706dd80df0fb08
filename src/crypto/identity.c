#include "crypto/identity.h"

#include <openssl/evp.h>
#include <openssl/rsa.h>
#include <openssl/x509.h>

#include <muster/error.h>

#include "codec/bin/pb.h"
#include "crypto/hash.h"

enum {
    FIELD_TYPE = 1,
    FIELD_DATA = 2,
    ED25519_LEN = 32,
    RSA_BITS_MIN = 2048,
    RSA_BITS_MAX = 8192,
};

/* A public or private key as it is written: the kind, and bytes whose form depends on it. */
struct key_message {
    uint64_t type;
    struct mu_span data;
};

static int decode_message(struct mu_span in, struct key_message *ret)
{
    struct key_message found = {.type = UINT64_MAX};
    struct mu_pb_field f;
    int err;

    while ((err = mu_pb_next(&in, &f)) == 1) {
        if (f.number == FIELD_TYPE && f.type == MU_PB_VARINT) {
            found.type = f.value;
        } else if (f.number == FIELD_DATA && f.type == MU_PB_BYTES) {
            found.data = f.bytes;
        }
    }
    if (err != 0 || found.type > MU_KEY_ECDSA || found.data.len == 0) {
        return MUSTER_EINVAL;
    }
    *ret = found;
    return 0;
}

static int encode_message(struct mu_buf *out, enum mu_key_type type, struct mu_span data)
{
    struct mu_pb_out pb = mu_pb_out(out);

    mu_pb_put_varint(&pb, FIELD_TYPE, (uint64_t)type);
    mu_pb_put_bytes(&pb, FIELD_DATA, data);
    return pb.err;
}

int mu_public_key_peer(struct mu_span public_key, struct mu_peer_id *ret_id)
{
    struct mu_peer_id id = {0};
    struct key_message m;

    if (public_key.len > MU_PUBLIC_KEY_LEN_MAX || decode_message(public_key, &m) != 0) {
        return MUSTER_EINVAL;
    }
    if (public_key.len <= MU_PEER_KEY_INLINE) {
        id.bytes[0] = 0x00;
        id.bytes[1] = (uint8_t)public_key.len;
        memcpy(id.bytes + 2, public_key.data, public_key.len);
    } else {
        id.bytes[0] = 0x12;
        id.bytes[1] = MU_SHA256_LEN;
        mu_sha256(id.bytes + 2, public_key);
    }
    id.len = (uint8_t)(id.bytes[1] + 2);
    *ret_id = id;
    return 0;
}

/* --- public keys of other peers --------------------------------------------------------------- */

static EVP_PKEY *read_public(const struct key_message *m)
{
    const uint8_t *at = m->data.data;
    EVP_PKEY *key;
    int want = m->type == MU_KEY_RSA ? EVP_PKEY_RSA : EVP_PKEY_EC;

    if (m->type == MU_KEY_ED25519) {
        return m->data.len != ED25519_LEN
                   ? NULL
                   : EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, NULL, at, m->data.len);
    }
    key = d2i_PUBKEY(NULL, &at, (long)m->data.len);
    if (key == NULL) {
        return NULL;
    }
    if (at != m->data.data + m->data.len || EVP_PKEY_get_base_id(key) != want ||
        (want == EVP_PKEY_RSA &&
         (EVP_PKEY_get_bits(key) < RSA_BITS_MIN || EVP_PKEY_get_bits(key) > RSA_BITS_MAX))) {
        EVP_PKEY_free(key);
        return NULL;
    }
    return key;
}

static const EVP_MD *digest_of(uint64_t type)
{
    return type == MU_KEY_ED25519 ? NULL : EVP_sha256();
}

int mu_signature_check(void *context, struct mu_span message, struct mu_span signature)
{
    return EVP_DigestVerify(context, signature.data, signature.len, message.data, message.len) == 1
               ? 0
               : MUSTER_ECORRUPT;
}

int mu_public_key_verify(struct mu_span public_key, struct mu_span message,
                         struct mu_span signature)
{
    struct key_message m;
    EVP_MD_CTX *context;
    EVP_PKEY *key;
    int err = MUSTER_ENOMEM;

    if (public_key.len > MU_PUBLIC_KEY_LEN_MAX || decode_message(public_key, &m) != 0) {
        return MUSTER_EINVAL;
    }
    if (m.type == MU_KEY_SECP256K1) {
        return MUSTER_ENOTSUP;
    }
    key = read_public(&m);
    if (key == NULL) {
        return MUSTER_EINVAL;
    }
    context = EVP_MD_CTX_new();
    if (context != NULL && EVP_DigestVerifyInit(context, NULL, digest_of(m.type), NULL, key) == 1) {
        err = mu_signature_check(context, message, signature);
    }
    EVP_MD_CTX_free(context);
    EVP_PKEY_free(key);
    return err;
}

/* --- our own ---------------------------------------------------------------------------------- */

/* Fills in what follows from the private key; takes ownership of it, even on an error. */
static int finish(struct mu_identity *ret, enum mu_key_type type, EVP_PKEY *key)
{
    struct mu_identity made = {.type = type, .key = key};
    uint8_t raw[ED25519_LEN];
    uint8_t *der = NULL;
    size_t raw_len = sizeof(raw);
    int der_len = 0;
    int err = MUSTER_ENOMEM;

    mu_buf_init(&made.public_key, MU_PUBLIC_KEY_LEN_MAX);
    if (type == MU_KEY_ED25519) {
        if (EVP_PKEY_get_raw_public_key(key, raw, &raw_len) == 1) {
            err = encode_message(&made.public_key, type, mu_span(raw, raw_len));
        }
    } else {
        der_len = i2d_PUBKEY(key, &der);
        if (der_len > 0) {
            err = encode_message(&made.public_key, type, mu_span(der, (size_t)der_len));
        }
        OPENSSL_free(der);
    }
    if (err == 0) {
        err = mu_public_key_peer(mu_buf_span(&made.public_key), &made.id);
    }
    if (err != 0) {
        mu_identity_fini(&made);
        return err;
    }
    *ret = made;
    return 0;
}

int mu_identity_from_seed(struct mu_identity *ret, const uint8_t seed[MU_IDENTITY_SEED_LEN])
{
    EVP_PKEY *key = EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, NULL, seed, ED25519_LEN);

    return key == NULL ? MUSTER_ENOMEM : finish(ret, MU_KEY_ED25519, key);
}

/* The seed, then the public key once or twice. */
static int decode_ed25519(struct mu_identity *ret, struct mu_span data,
                          struct mu_errmsg *reterr_msg)
{
    struct mu_identity made;
    struct mu_span public_key;
    int err;

    if (data.len != 2 * ED25519_LEN && data.len != 3 * ED25519_LEN) {
        return mu_err(reterr_msg, MUSTER_EINVAL, "an Ed25519 key has 64 bytes, this one has %zu",
                      data.len);
    }
    err = mu_identity_from_seed(&made, data.data);
    if (err != 0) {
        return mu_err(reterr_msg, err, "%s", muster_strerror(err));
    }
    public_key = mu_buf_span(&made.public_key);
    for (size_t at = ED25519_LEN; at < data.len; at += ED25519_LEN) {
        if (memcmp(public_key.data + public_key.len - ED25519_LEN, data.data + at, ED25519_LEN) !=
            0) {
            mu_identity_fini(&made);
            return mu_err(reterr_msg, MUSTER_EINVAL,
                          "the public half of the key does not belong to its private half");
        }
    }
    *ret = made;
    return 0;
}

static int decode_rsa(struct mu_identity *ret, struct mu_span data, struct mu_errmsg *reterr_msg)
{
    const uint8_t *at = data.data;
    EVP_PKEY *key = d2i_PrivateKey(EVP_PKEY_RSA, NULL, &at, (long)data.len);
    int bits = key == NULL ? 0 : EVP_PKEY_get_bits(key);
    int err;

    if (key == NULL || at != data.data + data.len || EVP_PKEY_get_base_id(key) != EVP_PKEY_RSA) {
        EVP_PKEY_free(key);
        return mu_err(reterr_msg, MUSTER_EINVAL,
                      "the file says that it holds an RSA key, but it does "
                      "not");
    }
    if (bits < RSA_BITS_MIN || bits > RSA_BITS_MAX) {
        EVP_PKEY_free(key);
        return mu_err(reterr_msg, MUSTER_EINVAL, "the RSA key has %d bits; it must have %d to %d",
                      bits, RSA_BITS_MIN, RSA_BITS_MAX);
    }
    err = finish(ret, MU_KEY_RSA, key);
    return err == 0 ? 0 : mu_err(reterr_msg, err, "%s", muster_strerror(err));
}

int mu_identity_decode(struct mu_identity *ret, struct mu_span file, struct mu_errmsg *reterr_msg)
{
    struct key_message m;

    if (file.len > MU_IDENTITY_FILE_MAX || decode_message(file, &m) != 0) {
        return mu_err(reterr_msg, MUSTER_EINVAL, "this is not a private key in libp2p's format");
    }
    switch ((enum mu_key_type)m.type) {
    case MU_KEY_ED25519:
        return decode_ed25519(ret, m.data, reterr_msg);
    case MU_KEY_RSA:
        return decode_rsa(ret, m.data, reterr_msg);
    case MU_KEY_SECP256K1:
    case MU_KEY_ECDSA:
        break;
    }
    return mu_err(reterr_msg, MUSTER_EINVAL,
                  "an identity must be an Ed25519 or RSA key; this one is %s",
                  m.type == MU_KEY_ECDSA ? "ECDSA" : "secp256k1");
}

int mu_identity_encode(const struct mu_identity *identity, struct mu_buf *out)
{
    uint8_t raw[2 * ED25519_LEN];
    uint8_t *der = NULL;
    size_t half = ED25519_LEN;
    int len;
    int err = MUSTER_ENOMEM;

    if (identity->type == MU_KEY_ED25519) {
        if (EVP_PKEY_get_raw_private_key(identity->key, raw, &half) == 1 &&
            EVP_PKEY_get_raw_public_key(identity->key, raw + ED25519_LEN, &half) == 1) {
            err = encode_message(out, identity->type, mu_span(raw, sizeof(raw)));
        }
        explicit_bzero(raw, sizeof(raw));
        return err;
    }
    len = i2d_PrivateKey(identity->key, &der);
    if (len > 0) {
        err = encode_message(out, identity->type, mu_span(der, (size_t)len));
        OPENSSL_clear_free(der, (size_t)len);
    }
    return err;
}

void mu_identity_fini(struct mu_identity *identity)
{
    EVP_PKEY_free(identity->key);
    identity->key = NULL;
    mu_buf_fini(&identity->public_key);
}

int mu_identity_sign(const struct mu_identity *identity, struct mu_span message, struct mu_buf *out)
{
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    uint8_t signature[MU_IDENTITY_SIG_LEN_MAX];
    size_t len = sizeof(signature);
    int err = MUSTER_ENOMEM;

    if (context != NULL &&
        EVP_DigestSignInit(context, NULL, digest_of((uint64_t)identity->type), NULL,
                           identity->key) == 1 &&
        EVP_DigestSign(context, signature, &len, message.data, message.len) == 1) {
        err = mu_buf_append(out, mu_span(signature, len));
    }
    EVP_MD_CTX_free(context);
    return err;
}

int mu_identity_generate_rsa(struct mu_identity *ret, unsigned bits)
{
    EVP_PKEY *key;

    if (bits < RSA_BITS_MIN || bits > RSA_BITS_MAX) {
        return MUSTER_EINVAL;
    }
    key = EVP_RSA_gen(bits);
    return key == NULL ? MUSTER_ENOMEM : finish(ret, MU_KEY_RSA, key);
}
