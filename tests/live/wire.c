/* TLS is OpenSSL's, with a token's key made as docs/lock.md says; Noise is muster's own machine. */
#include <stdlib.h>
#include <string.h>

#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <openssl/ssl.h>

#include "proto/peer/noise.h"
#include "storm.h"

#define GREETING_LEN 28
#define NOISE_OUTPUT (1u << 20)

struct wire {
    enum way_kind kind;
    bool bad;
    uint64_t heard;
    struct bytes out;
    SSL *ssl;
    size_t greeted; /* bytes of the answer to the greeting */
    struct mu_noise noise;
    uint8_t opened[64]; /* a bit for each stream that has begun */
};

static const char greeting[] = "\x13/multistream/1.0.0\n\x07/noise\n";
static SSL_CTX *contexts[2]; /* of a token, of certificates */
static unsigned char token_key[32];
static struct mu_identity identity;

static void fail(const char *what, const char *name)
{
    fprintf(stderr, "storm: %s %s\n", what, name);
    exit(2);
}

/* -- bytes */

void bytes_add(struct bytes *b, const void *data, size_t len)
{
    if (b->len + len > b->cap) {
        b->cap = 2 * (b->len + len);
        b->data = realloc(b->data, b->cap);
        if (b->data == NULL) {
            abort();
        }
    }
    if (len > 0) {
        memcpy(b->data + b->len, data, len);
    }
    b->len += len;
}

void bytes_drop(struct bytes *b, size_t len)
{
    memmove(b->data, b->data + len, b->len - len);
    b->len -= len;
}

/* -- TLS */

static int offer(SSL *ssl, const EVP_MD *md, const unsigned char **ret_id, size_t *ret_len,
                 SSL_SESSION **ret_session)
{
    static const unsigned char suite[2] = {0x13, 0x01};
    SSL_SESSION *session = SSL_SESSION_new();

    (void)md;
    if (session == NULL ||
        SSL_SESSION_set1_master_key(session, token_key, sizeof(token_key)) != 1 ||
        SSL_SESSION_set_cipher(session, SSL_CIPHER_find(ssl, suite)) != 1 ||
        SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) != 1) {
        SSL_SESSION_free(session);
        return 0;
    }
    *ret_id = (const unsigned char *)"muster";
    *ret_len = 6;
    *ret_session = session;
    return 1;
}

static void make_token_key(const char *path)
{
    char line[1024];
    unsigned char prk[32];
    FILE *file = fopen(path, "r");

    if (file == NULL || fgets(line, sizeof(line), file) == NULL) {
        fail("cannot read", path);
    }
    fclose(file);
    HMAC(EVP_sha256(), "muster lock", 11, (unsigned char *)line, strcspn(line, "\r\n"), prk, NULL);
    HMAC(EVP_sha256(), prk, 32, (const unsigned char *)"muster tls psk 1\1", 17, token_key, NULL);
}

void wire_setup(const char *token_file, const char *cert_file, const char *key_file)
{
    uint8_t seed[MU_IDENTITY_SEED_LEN];

    for (int i = 0; i < 2; i++) {
        contexts[i] = SSL_CTX_new(TLS_client_method());
        SSL_CTX_set_min_proto_version(contexts[i], TLS1_3_VERSION);
        SSL_CTX_set_verify(contexts[i], SSL_VERIFY_NONE, NULL);
    }
    if (token_file != NULL) {
        make_token_key(token_file);
        SSL_CTX_set_ciphersuites(contexts[0], "TLS_AES_128_GCM_SHA256");
        SSL_CTX_set_psk_use_session_callback(contexts[0], offer);
    }
    if (cert_file != NULL &&
        (SSL_CTX_use_certificate_chain_file(contexts[1], cert_file) != 1 ||
         SSL_CTX_use_PrivateKey_file(contexts[1], key_file, SSL_FILETYPE_PEM) != 1)) {
        fail("cannot use", cert_file);
    }
    RAND_bytes(seed, sizeof(seed));
    if (mu_identity_from_seed(&identity, seed) != 0) {
        fail("cannot make", "an identity");
    }
}

void wire_teardown(void)
{
    SSL_CTX_free(contexts[0]);
    SSL_CTX_free(contexts[1]);
    mu_identity_fini(&identity);
}

/* What OpenSSL has for the socket. */
static void collect_tls(struct wire *w)
{
    char buffer[16384];
    int got;

    while ((got = BIO_read(SSL_get_wbio(w->ssl), buffer, sizeof(buffer))) > 0) {
        bytes_add(&w->out, buffer, (size_t)got);
    }
}

static bool recv_tls(struct wire *w, const uint8_t *data, size_t len)
{
    char buffer[16384];
    int got;

    if (BIO_write(SSL_get_rbio(w->ssl), data, (int)len) != (int)len) {
        return false;
    }
    if (!SSL_is_init_finished(w->ssl)) {
        SSL_do_handshake(w->ssl);
    }
    while ((got = SSL_read(w->ssl, buffer, sizeof(buffer))) > 0) {
        w->heard += (uint64_t)got;
    }
    collect_tls(w);
    return SSL_get_error(w->ssl, got) == SSL_ERROR_WANT_READ;
}

/* -- Noise */

static void collect_noise(struct wire *w)
{
    struct mu_span out = mu_noise_output(&w->noise);

    bytes_add(&w->out, out.data, out.len);
    mu_noise_sent(&w->noise, out.len);
}

static bool recv_noise(struct wire *w, const uint8_t *data, size_t len)
{
    if (w->greeted < GREETING_LEN) {
        size_t more = GREETING_LEN - w->greeted < len ? GREETING_LEN - w->greeted : len;

        if (memcmp(&greeting[w->greeted], data, more) != 0) {
            return false;
        }
        w->greeted += more;
        data += more;
        len -= more;
        if (w->greeted == GREETING_LEN) {
            collect_noise(w);
        }
    }
    while (len > 0) {
        size_t used = 0;

        if (mu_noise_recv(&w->noise, (struct mu_span){data, len}, &used) != 0) {
            return false;
        }
        w->heard += mu_noise_plain(&w->noise).len;
        mu_noise_consume(&w->noise, mu_noise_plain(&w->noise).len);
        data += used;
        len -= used;
    }
    collect_noise(w);
    return true;
}

static void seal_noise(struct wire *w, const uint8_t *data, size_t len)
{
    while (len > 0) {
        size_t taken = 0;

        if (mu_noise_send(&w->noise, (struct mu_span){data, len}, &taken) != 0 || taken == 0) {
            return;
        }
        collect_noise(w);
        data += taken;
        len -= taken;
    }
}

/* -- any */

struct wire *wire_new(enum way_kind kind)
{
    struct wire *w = calloc(1, sizeof(*w));
    struct mu_noise_config config = {.role = MU_NOISE_DIALLER,
                                     .identity = &identity,
                                     .muxer = "/yamux/1.0.0",
                                     .output_bytes_max = NOISE_OUTPUT};

    if (w == NULL) {
        abort();
    }
    w->kind = kind;
    if (kind == WAY_TOKEN || kind == WAY_CERTS) {
        w->ssl = SSL_new(contexts[kind == WAY_CERTS]);
        SSL_set_bio(w->ssl, BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
        SSL_set_connect_state(w->ssl);
        SSL_do_handshake(w->ssl);
        collect_tls(w);
    } else if (kind == WAY_NOISE) {
        RAND_bytes(config.secret_static, sizeof(config.secret_static));
        RAND_bytes(config.secret_ephemeral, sizeof(config.secret_ephemeral));
        if (mu_noise_init(&w->noise, &config) != 0) {
            abort();
        }
        bytes_add(&w->out, greeting, GREETING_LEN);
    }
    return w;
}

void wire_free(struct wire *w)
{
    if (w == NULL) {
        return;
    }
    if (w->kind == WAY_NOISE) {
        mu_noise_fini(&w->noise);
    }
    SSL_free(w->ssl);
    free(w->out.data);
    free(w);
}

bool wire_ready(const struct wire *w)
{
    return w->kind == WAY_PLAIN ||
           (w->kind == WAY_NOISE ? mu_noise_done(&w->noise) : SSL_is_init_finished(w->ssl) == 1);
}

bool wire_recv(struct wire *w, const uint8_t *data, size_t len)
{
    if (w->kind == WAY_PLAIN) {
        w->heard += len;
        return true;
    }
    return w->kind == WAY_NOISE ? recv_noise(w, data, len) : recv_tls(w, data, len);
}

/* Frames of yamux around what is said on a stream. */
static void frame(struct wire *w, const struct step *step, struct bytes *out)
{
    unsigned bit = (unsigned)step->stream % 512;
    uint8_t head[12] = {0, 1, 0, 1};

    for (int i = 0; i < 4; i++) {
        head[7 - i] = (uint8_t)((unsigned)step->stream >> (8 * i));
    }
    if ((w->opened[bit / 8] & 1u << bit % 8) == 0) {
        w->opened[bit / 8] |= (uint8_t)(1u << bit % 8);
        bytes_add(out, head, sizeof(head));
    }
    head[1] = 0;
    head[3] = 0;
    for (int i = 0; i < 4; i++) {
        head[11 - i] = (uint8_t)(step->len >> (8 * i));
    }
    bytes_add(out, head, sizeof(head));
}

void wire_say(struct wire *w, const struct step *step)
{
    struct bytes framed = {0};

    if (step->stream >= 0) {
        frame(w, step, &framed);
    }
    bytes_add(&framed, step->data, step->len);
    if (w->kind == WAY_PLAIN) {
        bytes_add(&w->out, framed.data, framed.len);
    } else if (w->kind == WAY_NOISE) {
        seal_noise(w, framed.data, framed.len);
    } else if (framed.len > 0) {
        SSL_write(w->ssl, framed.data, (int)framed.len);
        collect_tls(w);
    }
    free(framed.data);
}

struct bytes *wire_output(struct wire *w)
{
    return &w->out;
}

uint64_t wire_heard(const struct wire *w)
{
    return w->heard;
}
