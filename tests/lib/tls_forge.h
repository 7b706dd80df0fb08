/*
 * Records of TLS 1.3 that OpenSSL itself would not send: of any type, with anything in them, and
 * sealed with the right key. The secret comes from the key log of the end whose records they are;
 * that end must not seal any of its own meanwhile.
 */
#ifndef MU_TEST_TLS_FORGE_H
#define MU_TEST_TLS_FORGE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/ssl.h>

#include "core/span.h"

#define TLS_FORGE_HEAD      5
#define TLS_FORGE_EXTRA     22 /* bytes of a record beside what it carries */
#define TLS_FORGE_ALERT     21
#define TLS_FORGE_HANDSHAKE 22
#define TLS_FORGE_DATA      23

struct tls_forge {
    uint8_t secret[32]; /* of TLS_AES_128_GCM_SHA256 */
    uint8_t key[16];
    uint8_t iv[12];
    uint64_t count; /* of records with this key */
};

static inline void tls_forge_must(bool held)
{
    if (!held) {
        (void)fprintf(stderr, "records for the test cannot be made\n");
        abort();
    }
}

/* The last traffic secrets that a key log told: of the end that dials, of the one that listens. */
static uint8_t tls_forge_secrets[2][48];

/** For SSL_CTX_set_keylog_callback(). */
static inline void tls_forge_note(const SSL *ssl, const char *line)
{
    static const char *const names[] = {"CLIENT_TRAFFIC_SECRET_0 ", "SERVER_TRAFFIC_SECRET_0 "};
    size_t len;

    (void)ssl;
    for (int i = 0; i < 2; i++) {
        if (strncmp(line, names[i], strlen(names[i])) == 0) {
            tls_forge_must(OPENSSL_hexstr2buf_ex(tls_forge_secrets[i], 48, &len,
                                                 strrchr(line, ' ') + 1, '\0') == 1);
        }
    }
}

/* HKDF-Expand-Label (RFC 8446, 7.1) without a context. */
static inline void tls_forge_expand(const uint8_t secret[32], const char *label, uint8_t *ret,
                                    uint8_t len)
{
    uint8_t info[32] = {0, len, (uint8_t)(6 + strlen(label)), 't', 'l', 's', '1', '3', ' '};
    uint8_t block[32];
    size_t n = strlen(label);

    memcpy(info + 9, label, n);
    info[10 + n] = 1;
    tls_forge_must(HMAC(EVP_sha256(), secret, 32, info, n + 11, block, NULL) != NULL);
    memcpy(ret, block, len);
}

static inline void tls_forge_use(struct tls_forge *f)
{
    tls_forge_expand(f->secret, "key", f->key, sizeof(f->key));
    tls_forge_expand(f->secret, "iv", f->iv, sizeof(f->iv));
    f->count = 0;
}

/** Seals as the end that dials, or the one that listens, from its first record after the
 * handshake. */
static inline void tls_forge_init(struct tls_forge *f, bool dials)
{
    memcpy(f->secret, tls_forge_secrets[dials ? 0 : 1], sizeof(f->secret));
    tls_forge_use(f);
}

/** The key that follows a KeyUpdate. */
static inline void tls_forge_update(struct tls_forge *f)
{
    uint8_t next[32];

    tls_forge_expand(f->secret, "traffic upd", next, sizeof(next));
    memcpy(f->secret, next, sizeof(next));
    tls_forge_use(f);
}

/** Writes a record of in.len + TLS_FORGE_EXTRA bytes, and returns it. */
static inline struct mu_span tls_forge_seal(struct tls_forge *f, uint8_t type, struct mu_span in,
                                            uint8_t *out)
{
    EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
    size_t sealed = in.len + TLS_FORGE_EXTRA - TLS_FORGE_HEAD;
    uint8_t *text = out + TLS_FORGE_HEAD;
    uint8_t head[] = {TLS_FORGE_DATA, 3, 3, (uint8_t)(sealed >> 8), (uint8_t)sealed};
    uint8_t nonce[12];
    int len;

    memcpy(out, head, sizeof(head));
    memcpy(nonce, f->iv, sizeof(nonce));
    for (int i = 0; i < 8; i++) {
        nonce[11 - i] ^= (uint8_t)(f->count >> (8 * i));
    }
    f->count++;
    tls_forge_must(
        EVP_EncryptInit_ex(context, EVP_aes_128_gcm(), NULL, f->key, nonce) == 1 &&
        EVP_EncryptUpdate(context, NULL, &len, head, sizeof(head)) == 1 &&
        (in.len == 0 || EVP_EncryptUpdate(context, text, &len, in.data, (int)in.len) == 1) &&
        EVP_EncryptUpdate(context, text + in.len, &len, &type, 1) == 1 &&
        EVP_EncryptFinal_ex(context, text + in.len + 1, &len) == 1 &&
        EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, 16, text + in.len + 1) == 1);
    EVP_CIPHER_CTX_free(context);
    return mu_span(out, in.len + TLS_FORGE_EXTRA);
}

#endif
