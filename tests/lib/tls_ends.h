/*
 * A connection of ours (service/lock/tls.h) and a plain one of OpenSSL at its other end, with the
 * bytes between them in memory. Both have certificates, or a token.
 */
#ifndef MU_TEST_TLS_ENDS_H
#define MU_TEST_TLS_ENDS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <openssl/core_names.h>
#include <openssl/kdf.h>
#include <openssl/ssl.h>

#include "certs.h"
#include "core/buf.h"
#include "tls_forge.h"
#include "service/lock/tls.h"

struct tls_ends {
    /* Set before tls_ends_init(); zeroes will do. */
    bool we_dial;
    const char *token;       /* ours. NULL: certificates */
    const char *their_token; /* NULL: the same */
    const char *suite;       /* theirs. NULL: any */
    size_t padding;          /* of their records */
    int version;             /* the highest of theirs. 0: TLS 1.3 */
    size_t tickets;          /* that they send when they listen */
    size_t room;             /* for what we receive at a time. 0: all that a record may have */

    struct mu_tls_context *context;
    struct mu_tls t;
    SSL_CTX *ctx;
    SSL *ssl;
    BIO *to;   /* the other end */
    BIO *from; /* it */
    struct mu_buf got;
    int err;
};

static char tls_ends_directory[64];

/** Makes the certificates that both ends use. */
static inline void tls_ends_set_up(void)
{
    struct cert_authority ca;

    (void)snprintf(tls_ends_directory, sizeof(tls_ends_directory), "/tmp/muster-test-XXXXXX");
    certs_must(mkdtemp(tls_ends_directory) != NULL);
    certs_authority(&ca, tls_ends_directory, "ca");
    certs_leaf(&ca, tls_ends_directory, "node", "DNS:node1", 3600);
    certs_authority_free(&ca);
}

static inline void tls_ends_tear_down(void)
{
    static const char *const files[] = {"ca", "node", NULL};

    certs_remove(tls_ends_directory, files);
}

/* The key of a token, made with other code than ours: it is a part of the wire. */
static inline SSL_SESSION *tls_ends_session(SSL *ssl)
{
    static const unsigned char suite[2] = {0x13, 0x01};
    const struct tls_ends *e = SSL_get_app_data(ssl);
    const char *token = e->their_token != NULL ? e->their_token : e->token;
    EVP_KDF *kdf = EVP_KDF_fetch(NULL, "HKDF", NULL);
    EVP_KDF_CTX *context = EVP_KDF_CTX_new(kdf);
    SSL_SESSION *session = SSL_SESSION_new();
    char digest[] = "SHA256";
    char salt[] = "muster lock";
    char label[] = "muster tls psk 1";
    OSSL_PARAM params[] = {
        OSSL_PARAM_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, strlen(digest)),
        OSSL_PARAM_octet_string(OSSL_KDF_PARAM_SALT, salt, strlen(salt)),
        OSSL_PARAM_octet_string(OSSL_KDF_PARAM_INFO, label, strlen(label)),
        OSSL_PARAM_octet_string(OSSL_KDF_PARAM_KEY, (void *)(uintptr_t)token, strlen(token)),
        OSSL_PARAM_END};
    unsigned char key[32];

    certs_must(EVP_KDF_derive(context, key, sizeof(key), params) == 1 &&
               SSL_SESSION_set1_master_key(session, key, sizeof(key)) == 1 &&
               SSL_SESSION_set_cipher(session, SSL_CIPHER_find(ssl, suite)) == 1 &&
               SSL_SESSION_set1_id_context(session, (const uint8_t *)"test", 4) == 1 &&
               SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1);
    EVP_KDF_CTX_free(context);
    EVP_KDF_free(kdf);
    return session;
}

static inline int tls_ends_offer(SSL *ssl, const EVP_MD *md, const unsigned char **ret_id,
                                 size_t *ret_len, SSL_SESSION **ret_session)
{
    (void)md;
    *ret_id = (const unsigned char *)"muster";
    *ret_len = 6;
    *ret_session = tls_ends_session(ssl);
    return 1;
}

static inline int tls_ends_find(SSL *ssl, const unsigned char *id, size_t len,
                                SSL_SESSION **ret_session)
{
    certs_must(len == 6 && memcmp(id, "muster", 6) == 0);
    *ret_session = tls_ends_session(ssl);
    return 1;
}

static inline void tls_ends_init(struct tls_ends *e)
{
    char paths[3][128];
    static const char *const names[] = {"node.pem", "node.key", "ca.pem"};
    struct mu_tls_config config = {.cert = paths[0], .key = paths[1], .ca = paths[2]};
    struct mu_errmsg why;

    for (int i = 0; i < 3; i++) {
        (void)snprintf(paths[i], sizeof(paths[i]), "%s/%s", tls_ends_directory, names[i]);
    }
    e->ctx = SSL_CTX_new(TLS_method());
    if (e->token != NULL) {
        config = (struct mu_tls_config){.token = mu_span_str(e->token)};
        SSL_CTX_set_psk_use_session_callback(e->ctx, tls_ends_offer);
        SSL_CTX_set_psk_find_session_callback(e->ctx, tls_ends_find);
    } else {
        assert_int_equal(SSL_CTX_use_certificate_chain_file(e->ctx, paths[0]), 1);
        assert_int_equal(SSL_CTX_use_PrivateKey_file(e->ctx, paths[1], SSL_FILETYPE_PEM), 1);
        assert_int_equal(SSL_CTX_load_verify_locations(e->ctx, paths[2], NULL), 1);
        SSL_CTX_set_verify(e->ctx, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    }
    assert_int_equal(mu_tls_context_new(&config, &e->context, &why), 0);
    assert_int_equal(SSL_CTX_set_session_id_context(e->ctx, (const uint8_t *)"test", 4), 1);
    assert_int_equal(SSL_CTX_set_max_proto_version(e->ctx, e->version), 1);
    assert_int_equal(SSL_CTX_set_num_tickets(e->ctx, e->tickets), 1);
    SSL_CTX_set_keylog_callback(e->ctx, tls_forge_note);
    if (e->suite != NULL) {
        assert_int_equal(SSL_CTX_set_ciphersuites(e->ctx, e->suite), 1);
    }
    if (e->padding != 0) {
        assert_int_equal(SSL_CTX_set_block_padding(e->ctx, e->padding), 1);
    }
    e->ssl = SSL_new(e->ctx);
    SSL_set_app_data(e->ssl, e);
    e->to = BIO_new(BIO_s_mem());
    e->from = BIO_new(BIO_s_mem());
    SSL_set_bio(e->ssl, e->to, e->from);
    if (e->we_dial) {
        SSL_set_accept_state(e->ssl);
    } else {
        SSL_set_connect_state(e->ssl);
    }
    assert_int_equal(mu_tls_init(&e->t, e->context, e->we_dial ? "node1" : NULL), 0);
    mu_buf_init(&e->got, 1u << 24);
    e->room = e->room != 0 ? e->room : MU_TLS_RECORD_MAX;
}

static inline void tls_ends_fini(struct tls_ends *e)
{
    mu_tls_fini(&e->t);
    mu_tls_context_free(e->context);
    SSL_free(e->ssl);
    SSL_CTX_free(e->ctx);
    mu_buf_fini(&e->got);
}

/** They get all that we have said. */
static inline void tls_ends_to_them(struct tls_ends *e)
{
    struct mu_span out = mu_tls_output(&e->t);

    if (out.len != 0) {
        assert_int_equal(BIO_write(e->to, out.data, (int)out.len), (int)out.len);
        mu_tls_sent(&e->t, out.len);
    }
}

/** We get these bytes. */
static inline void tls_ends_hear(struct tls_ends *e, struct mu_span in)
{
    static uint8_t plain[MU_TLS_RECORD_MAX];
    size_t len = 1;

    while (e->err == 0 && (in.len != 0 || len != 0) && !e->t.peer_ended) {
        e->err = mu_tls_recv(&e->t, &in, plain, e->room, &len);
        if (e->err == 0) {
            assert_int_equal(mu_buf_append(&e->got, mu_span(plain, len)), 0);
        }
    }
}

/** We get all that they have said, in two parts, so that a record is cut. */
static inline void tls_ends_to_us(struct tls_ends *e)
{
    char *bytes;
    long all = BIO_get_mem_data(e->from, &bytes);
    size_t half = (size_t)all / 2;

    tls_ends_hear(e, mu_span(bytes, half));
    tls_ends_hear(e, mu_span(bytes + half, (size_t)all - half));
    (void)BIO_reset(e->from);
}

/** As far as it goes. */
static inline void tls_ends_try(struct tls_ends *e)
{
    for (int i = 0; i < 4; i++) {
        tls_ends_to_them(e);
        (void)SSL_do_handshake(e->ssl);
        tls_ends_to_us(e);
    }
}

static inline void tls_ends_shake_hands(struct tls_ends *e)
{
    tls_ends_try(e);
    assert_int_equal(e->err, 0);
    assert_true(mu_tls_ready(&e->t));
    assert_int_equal(SSL_is_init_finished(e->ssl), 1);
}

/** The bytes of a transfer cross, in either direction at once. */
static inline void tls_ends_cross(struct tls_ends *e)
{
    static uint8_t data[100000];
    static uint8_t got[100000];
    size_t taken = 0;
    size_t have = 0;
    size_t n = 0;

    for (size_t i = 0; i < sizeof(data); i++) {
        data[i] = (uint8_t)(i * 7 + (i >> 8));
    }
    mu_buf_reset(&e->got);
    assert_int_equal(SSL_write_ex(e->ssl, data, sizeof(data), &n), 1);
    tls_ends_to_us(e);
    assert_int_equal(e->err, 0);
    assert_true(mu_span_eq(mu_buf_span(&e->got), mu_span(data, sizeof(data))));
    assert_int_equal(mu_tls_write(&e->t, mu_span(data, sizeof(data)), &taken), 0);
    assert_int_equal(taken, sizeof(data));
    tls_ends_to_them(e);
    while (have < sizeof(got) && SSL_read_ex(e->ssl, got + have, sizeof(got) - have, &n) == 1) {
        have += n;
    }
    assert_int_equal(have, sizeof(got));
    assert_memory_equal(got, data, sizeof(data));
}

#endif
