#include "service/lock/tls.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "service/lock/tls_internal.h"

/* Plain bytes are taken until so much output waits; handshake and alerts come on top. */
#define OUTPUT_HIGH (256u * 1024)
#define OUTPUT_MAX  (2 * OUTPUT_HIGH)

/* What OpenSSL adds to the bytes of a record: head, type and tag. */
#define RECORD_EXTRA 22

/* The wire, as OpenSSL sees it: reads take off the span that was lent, writes go to the output. It
 * takes all that is written, or the connection fails, so OpenSSL never has to write again. */

static int wire_read(BIO *bio, char *buf, int len)
{
    struct mu_tls *t = BIO_get_data(bio);
    size_t n = len < 0 ? 0 : (size_t)len;

    BIO_clear_retry_flags(bio);
    if (t->in == NULL || t->in->len == 0) {
        BIO_set_retry_read(bio);
        return -1;
    }
    n = n < t->in->len ? n : t->in->len;
    memcpy(buf, t->in->data, n);
    *t->in = mu_span_skip(*t->in, n);
    return (int)n;
}

static int wire_write(BIO *bio, const char *buf, int len)
{
    struct mu_tls *t = BIO_get_data(bio);
    int err;

    BIO_clear_retry_flags(bio);
    if (t->ended) {
        return len; /* Nothing may follow our end; OpenSSL would still answer a KeyUpdate. */
    }
    err = mu_buf_append(&t->out, mu_span(buf, len < 0 ? 0 : (size_t)len));
    if (err == MUSTER_ELIMIT) {
        t->err = mu_err(
            &t->why, MUSTER_ETLS,
            "the other end asks for new keys but does not read our answers: %zu KiB are waiting",
            t->out.len / 1024);
    } else if (err != 0) {
        t->err = mu_err(&t->why, MUSTER_ENOMEM, "out of memory");
    }
    return err == 0 ? len : -1;
}

static long wire_ctrl(BIO *bio, int command, long number, void *pointer)
{
    (void)bio;
    (void)number;
    (void)pointer;
    return command == BIO_CTRL_FLUSH ? 1 : 0;
}

static int wire_create(BIO *bio)
{
    BIO_set_init(bio, 1);
    return 1;
}

BIO_METHOD *mu_tls_wire_new(void)
{
    BIO_METHOD *wire = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "muster");

    if (wire != NULL &&
        (BIO_meth_set_read(wire, wire_read) != 1 || BIO_meth_set_write(wire, wire_write) != 1 ||
         BIO_meth_set_ctrl(wire, wire_ctrl) != 1 || BIO_meth_set_create(wire, wire_create) != 1)) {
        BIO_meth_free(wire);
        return NULL;
    }
    return wire;
}

int mu_tls_init(struct mu_tls *t, struct mu_tls_context *context, const char *host)
{
    SSL *ssl = SSL_new(context->ctx);
    BIO *bio = BIO_new(context->wire);

    memset(t, 0, sizeof(*t));
    t->dials = host != NULL;
    t->token = context->token;
    t->context = context;
    mu_buf_init(&t->out, OUTPUT_MAX);
    if (ssl == NULL || bio == NULL || (host != NULL && !mu_tls_expect_name(context, ssl, host))) {
        SSL_free(ssl);
        BIO_free(bio);
        return MUSTER_ENOMEM;
    }
    BIO_set_data(bio, t);
    SSL_set_app_data(ssl, t);
    SSL_set_bio(ssl, bio, bio);
    t->ssl = ssl;
    if (host == NULL) {
        SSL_set_accept_state(ssl);
    } else {
        SSL_set_connect_state(ssl);
        ERR_clear_error();
        /* It says hello; there is nothing to read yet. */
        if (SSL_get_error(ssl, SSL_do_handshake(ssl)) != SSL_ERROR_WANT_READ) {
            return MUSTER_ENOMEM;
        }
    }
    return 0;
}

void mu_tls_fini(struct mu_tls *t)
{
    SSL_free(t->ssl);
    mu_buf_fini(&t->out);
    t->ssl = NULL;
}

/* What an alert of the other end means here, if we can say it better than OpenSSL does; or NULL. */
static const char *meaning_of_alert(struct mu_tls *t, int alert)
{
    switch (alert) {
    case SSL_AD_CERTIFICATE_EXPIRED:
        return mu_tls_context_expired(t->context, &t->blame) ? t->blame.text : NULL;
    case SSL_AD_ILLEGAL_PARAMETER:
    case SSL_AD_DECRYPT_ERROR:
        return t->token ? "it has a different token (--token-file)" : NULL;
    case SSL_AD_HANDSHAKE_FAILURE:
    case SSL_AD_UNKNOWN_PSK_IDENTITY:
    case SSL_AD_MISSING_EXTENSION:
        return t->token ? "it is locked with certificates, but we have a token (--token-file)"
                        : "it is locked with a token (--token-file), but we have certificates";
    default:
        return NULL;
    }
}

/* What a failure at our end means, likewise. */
static const char *meaning_of_failure(const struct mu_tls *t, int why)
{
    switch (why) {
    case SSL_R_BINDER_DOES_NOT_VERIFY:
        return "the other end has a different token";
    case SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM:
    case SSL_R_NO_SHARED_CIPHER:
        return t->token ? "the other end has certificates, but we have a token" : NULL;
    case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
        return "the other end shows no certificate: it has a token, or a different key";
    default:
        return NULL;
    }
}

/* Whether OpenSSL failed, and not the other end: it ran out of memory, which it does not always
 * say. */
static bool ran_out(unsigned long code)
{
    return ERR_GET_REASON(ERR_peek_error()) == ERR_R_MALLOC_FAILURE ||
           ERR_GET_REASON(code) == ERR_R_MALLOC_FAILURE ||
           ERR_GET_REASON(code) == ERR_R_INTERNAL_ERROR;
}

/* Whether the other end has sent an alert. */
static bool is_alert(int why)
{
    return why >= SSL_AD_REASON_OFFSET && why < SSL_AD_REASON_OFFSET + 256;
}

/* Why a certificate is not accepted, likewise. */
static int fail_certificate(struct mu_tls *t, long verdict)
{
    if (verdict == X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN ||
        verdict == X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY) {
        return mu_err(&t->why, MUSTER_ETLS,
                      "the other end's certificate is not accepted: another authority than ours "
                      "(--tls-ca) has signed it");
    }
    return mu_err(&t->why, MUSTER_ETLS, "the other end's certificate is not accepted: %s%s",
                  X509_verify_cert_error_string(verdict), t->blame.text);
}

/* Says why the handshake failed, if there is more to say than OpenSSL's reason. */
static bool fail_handshake(struct mu_tls *t, int why)
{
    long verdict = SSL_get_verify_result(t->ssl);

    if (verdict == X509_V_ERR_UNSPECIFIED) {
        verdict = X509_V_OK; /* the result for a token that was accepted */
    }
    if (verdict != X509_V_OK && t->token) {
        t->err =
            mu_err(&t->why, MUSTER_ETLS,
                   "the other end is locked with certificates, but we have a token (--token-file)");
    } else if (verdict != X509_V_OK) {
        t->err = fail_certificate(t, verdict);
    } else if (why == SSL_AD_REASON_OFFSET + SSL_AD_INTERNAL_ERROR) {
        t->err = mu_err(&t->why, MUSTER_ECONN,
                        "the other end broke off the handshake because it is too busy; try again");
    } else if (why == SSL_R_DECRYPTION_FAILED_OR_BAD_RECORD_MAC ||
               why == SSL_AD_REASON_OFFSET + SSL_AD_BAD_RECORD_MAC) {
        /* This is not a wrong credential: that shows before anything is sealed. */
        t->err = mu_err(&t->why, MUSTER_ECONN, "the handshake was damaged on the way; try again");
    }
    return t->err != 0;
}

/* Says why OpenSSL gave up, in terms that help the operator to mend it. */
static int fail(struct mu_tls *t)
{
    unsigned long code = ERR_peek_last_error();
    int why = ERR_GET_LIB(code) == ERR_LIB_SSL ? ERR_GET_REASON(code) : 0;
    const char *text;

    if (t->err != 0) {
        return t->err; /* wire_write() has set the reason */
    }
    if (ran_out(code)) {
        t->err = mu_err(&t->why, MUSTER_ENOMEM, "out of memory (OpenSSL: %s)", mu_tls_reason());
    } else if (!t->ready && fail_handshake(t, why)) {
        return t->err;
    } else if (is_alert(why)) {
        text = meaning_of_alert(t, why - SSL_AD_REASON_OFFSET);
        t->err = mu_err(&t->why, MUSTER_ETLS, "the other end refuses us: %s",
                        text != NULL ? text : mu_tls_reason());
    } else {
        text = meaning_of_failure(t, why);
        t->err = mu_err(&t->why, MUSTER_ETLS, "the secure connection failed: %s",
                        text != NULL ? text : mu_tls_reason());
    }
    return t->err;
}

/* Whether an answer to our hello begins like TLS: with a handshake record, or an alert. */
static bool is_answer(uint8_t first)
{
    return first == SSL3_RT_HANDSHAKE || first == SSL3_RT_ALERT;
}

/* Handles the result of OpenSSL's last call, if it did not succeed. */
static int judge(struct mu_tls *t, int result)
{
    switch (SSL_get_error(t->ssl, result)) {
    case SSL_ERROR_WANT_READ:
        return 0;
    case SSL_ERROR_ZERO_RETURN:
        t->peer_ended = true;
        return 0;
    default:
        return fail(t);
    }
}

static int shake_hands(struct mu_tls *t, struct mu_span *in)
{
    int result;

    ERR_clear_error();
    t->in = in;
    result = SSL_do_handshake(t->ssl);
    t->in = NULL;
    if (result != 1) {
        return judge(t, result);
    }
    if (t->token && SSL_session_reused(t->ssl) != 1) {
        /* Nothing else is configured, so this cannot happen; and it must not, so it is checked. */
        t->err = mu_err(&t->why, MUSTER_ETLS, "the other end has not shown the token");
    }
    t->ready = t->err == 0;
    return t->err;
}

static int recv_data(struct mu_tls *t, struct mu_span *in, uint8_t *buf, size_t cap,
                     size_t *ret_len)
{
    int result;

    if (in->len == 0 && SSL_pending(t->ssl) == 0) {
        return 0;
    }
    ERR_clear_error();
    t->in = in;
    result = SSL_read_ex(t->ssl, buf, cap, ret_len);
    t->in = NULL;
    return result == 1 ? 0 : judge(t, result);
}

int mu_tls_recv(struct mu_tls *t, struct mu_span *in, uint8_t *buf, size_t cap, size_t *ret_len)
{
    *ret_len = 0;
    if (t->err != 0 || t->peer_ended) {
        return t->err;
    }
    if (!t->heard && in->len != 0) {
        t->heard = true;
        if (t->dials && !is_answer(in->data[0])) {
            t->err = mu_err(&t->why, MUSTER_ENOTLS, "%s", muster_strerror(MUSTER_ENOTLS));
            return t->err;
        }
    }
    if (!t->ready) {
        int err = shake_hands(t, in);

        if (err != 0) {
            return err;
        }
    }
    return t->ready ? recv_data(t, in, buf, cap, ret_len) : 0;
}

bool mu_tls_ready(const struct mu_tls *t)
{
    return t->ready && t->err == 0;
}

int mu_tls_write(struct mu_tls *t, struct mu_span data, size_t *ret_taken)
{
    size_t room = t->out.len < OUTPUT_HIGH ? OUTPUT_HIGH - t->out.len : 0;
    size_t records = (room + MU_TLS_RECORD_MAX - 1) / MU_TLS_RECORD_MAX;
    size_t n = data.len < records * MU_TLS_RECORD_MAX ? data.len : records * MU_TLS_RECORD_MAX;

    MU_ASSERT(t->ready && !t->ended);
    *ret_taken = 0;
    /* OpenSSL writes no data while a message of the other end has come only in part. */
    if (t->err != 0 || n == 0 || SSL_is_init_finished(t->ssl) != 1) {
        return t->err;
    }
    records = (n + MU_TLS_RECORD_MAX - 1) / MU_TLS_RECORD_MAX;
    if (mu_buf_reserve(&t->out, n + records * RECORD_EXTRA) != 0) {
        t->err = mu_err(&t->why, MUSTER_ENOMEM, "out of memory");
        return t->err;
    }
    ERR_clear_error();
    if (t->sealed >= MU_TLS_RECORDS_OF_A_KEY) {
        if (SSL_key_update(t->ssl, SSL_KEY_UPDATE_NOT_REQUESTED) != 1) {
            return fail(t);
        }
        t->sealed = 0;
    }
    t->sealed += records;
    return SSL_write_ex(t->ssl, data.data, n, ret_taken) == 1 ? 0 : fail(t);
}

void mu_tls_end(struct mu_tls *t)
{
    if (t->ready && !t->ended && t->err == 0) {
        ERR_clear_error();
        (void)SSL_shutdown(t->ssl);
        t->ended = true;
    }
}

struct mu_span mu_tls_output(const struct mu_tls *t)
{
    return mu_buf_span(&t->out);
}

void mu_tls_sent(struct mu_tls *t, size_t len)
{
    mu_buf_consume(&t->out, len);
    mu_buf_trim(&t->out, MU_TLS_RECORD_MAX);
}

const char *mu_tls_errmsg(const struct mu_tls *t)
{
    return t->why.text;
}
