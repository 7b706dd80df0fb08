#include "service/lock/tls_psk.h"

#include <string.h>
#include <time.h>

#include <openssl/crypto.h>
#include <openssl/hmac.h>

#include "core/assert.h"

#define KEY_LEN 32

/* The labels keep the key apart from any other use of the same token. */
static const char salt[] = "muster lock";
static const char tls_label[] = "muster tls psk 1";
/* There is one key, so the name is always the same. */
static const char identity[] = "muster";

/* HKDF (RFC 5869) with SHA-256, for one block of output: extract, then expand. */
static bool derive(struct mu_span token, struct mu_span label, unsigned char ret_key[KEY_LEN])
{
    unsigned char prk[KEY_LEN];
    unsigned char block[32]; /* the label, and the number of the block */
    unsigned int len = 0;
    bool good;

    MU_ASSERT(label.len < sizeof(block));
    memcpy(block, label.data, label.len);
    block[label.len] = 1;
    good =
        HMAC(EVP_sha256(), salt, (int)sizeof(salt) - 1, token.data, token.len, prk, &len) != NULL &&
        HMAC(EVP_sha256(), prk, KEY_LEN, block, label.len + 1, ret_key, &len) != NULL;
    OPENSSL_cleanse(prk, sizeof(prk));
    return good;
}

static void free_session(void *parent, void *ptr, CRYPTO_EX_DATA *ad, int index, long argl,
                         void *argp)
{
    (void)parent;
    (void)ad;
    (void)index;
    (void)argl;
    (void)argp;
    SSL_SESSION_free(ptr);
}

/* Where a context keeps the session that stands for the key; the same place in all of them. */
static CRYPTO_ONCE slot_once = CRYPTO_ONCE_STATIC_INIT;
static int slot = -1;

static void find_slot(void)
{
    slot = SSL_CTX_get_ex_new_index(0, NULL, NULL, NULL, free_session);
}

/* The session that stands for the key, for one handshake, which may write to it. OpenSSL lets a
 * session expire 304 s after its time, even one that is an external key; a token does not expire,
 * so each handshake gets a session made at that moment. */
static SSL_SESSION *new_session(SSL *ssl)
{
    SSL_SESSION *session = SSL_SESSION_dup(SSL_CTX_get_ex_data(SSL_get_SSL_CTX(ssl), slot));

    if (session != NULL) {
        (void)SSL_SESSION_set_time(session, (long)time(NULL));
    }
    return session;
}

/* What the dialling side offers. With a digest the first flight is being made again, and the digest
 * is that of our only suite. */
static int offer(SSL *ssl, const EVP_MD *md, const unsigned char **ret_id, size_t *ret_len,
                 SSL_SESSION **ret_session)
{
    SSL_SESSION *session = new_session(ssl);

    (void)md;
    if (session == NULL) {
        return 0;
    }
    *ret_id = (const unsigned char *)identity;
    *ret_len = sizeof(identity) - 1;
    *ret_session = session;
    return 1;
}

/* What the listening side knows under that name. If it knows nothing, it would have to show a
 * certificate, has none, and refuses. */
static int find(SSL *ssl, const unsigned char *id, size_t len, SSL_SESSION **ret_session)
{
    *ret_session = NULL;
    if (len != sizeof(identity) - 1 || memcmp(id, identity, len) != 0) {
        return 1;
    }
    *ret_session = new_session(ssl);
    return *ret_session != NULL;
}

static SSL_SESSION *make_session(SSL_CTX *ctx, struct mu_span token)
{
    static const unsigned char suite[2] = {0x13, 0x01}; /* TLS_AES_128_GCM_SHA256 */
    SSL_SESSION *session = SSL_SESSION_new();
    SSL *ssl = SSL_new(ctx); /* only a connection has the list of suites */
    const SSL_CIPHER *cipher = ssl == NULL ? NULL : SSL_CIPHER_find(ssl, suite);
    unsigned char key[KEY_LEN];

    if (session == NULL || cipher == NULL || !derive(token, mu_span_str(tls_label), key) ||
        SSL_SESSION_set1_master_key(session, key, sizeof(key)) != 1 ||
        SSL_SESSION_set_cipher(session, cipher) != 1 ||
        SSL_SESSION_set1_id_context(session, (const unsigned char *)identity,
                                    sizeof(identity) - 1) != 1 ||
        SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) != 1) {
        SSL_SESSION_free(session);
        session = NULL;
    }
    OPENSSL_cleanse(key, sizeof(key));
    SSL_free(ssl);
    return session;
}

bool mu_tls_psk_use(SSL_CTX *ctx, struct mu_span token)
{
    SSL_SESSION *session;

    if (CRYPTO_THREAD_run_once(&slot_once, find_slot) != 1 || slot < 0 ||
        SSL_CTX_set_ciphersuites(ctx, "TLS_AES_128_GCM_SHA256") != 1 ||
        /* Without it, a side that wants certificates takes no session. */
        SSL_CTX_set_session_id_context(ctx, (const unsigned char *)identity,
                                       sizeof(identity) - 1) != 1) {
        return false;
    }
    session = make_session(ctx, token);
    if (session == NULL || SSL_CTX_set_ex_data(ctx, slot, session) != 1) {
        SSL_SESSION_free(session);
        return false;
    }
    SSL_CTX_set_psk_use_session_callback(ctx, offer);
    SSL_CTX_set_psk_find_session_callback(ctx, find);
    return true;
}
