#include "transport/tls.h"

#include <limits.h>

#include <openssl/err.h>
#include <openssl/ssl.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "transport/tls_internal.h"

/* Output is piled up so high and no higher by plain bytes; handshake and alerts come on top. */
#define OUTPUT_HIGH (256u * 1024)
#define OUTPUT_MAX  (2 * OUTPUT_HIGH)

/* Messages of the handshake that come after it. */
#define NEW_SESSION_TICKET 4
#define KEY_UPDATE         24

/* The wire, as OpenSSL sees it: reads take off the span that was lent, writes go to the output. */

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
    err = mu_buf_append(&t->out, mu_span(buf, len < 0 ? 0 : (size_t)len));
    if (err != 0) {
        t->err = err;
        return -1;
    }
    return len;
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

/* Keeps the secrets of what follows the handshake: a line is the name of one, whose it is, and the
 * secret. It is the way that OpenSSL has for whoever reads records without it. */
void mu_tls_note_secret(const SSL *ssl, const char *line)
{
    static const char *const names[] = {"CLIENT_TRAFFIC_SECRET_0 ", "SERVER_TRAFFIC_SECRET_0 "};
    struct mu_tls *t = SSL_get_app_data(ssl);

    for (size_t i = 0; i < 2; i++) {
        const char *hex = strrchr(line, ' ');

        if (strncmp(line, names[i], strlen(names[i])) != 0) {
            continue;
        }
        if (OPENSSL_hexstr2buf_ex(t->secrets[i], MU_TLS_SECRET_MAX, &t->secret_len, hex + 1,
                                  '\0') != 1) {
            t->secret_len = 0;
        }
    }
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
    mu_buf_init(&t->record, MU_TLS_RECORD_HEAD + MU_TLS_RECORD_LONGEST);
    mu_buf_init(&t->plain, MU_TLS_RECORD_LONGEST);
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
        (void)SSL_do_handshake(ssl); /* says hello; there is nothing to read yet */
    }
    return t->err;
}

void mu_tls_fini(struct mu_tls *t)
{
    SSL_free(t->ssl);
    mu_tls_half_fini(&t->sends);
    mu_tls_half_fini(&t->receives);
    OPENSSL_cleanse(t->secrets, sizeof(t->secrets));
    mu_buf_fini(&t->out);
    mu_buf_fini(&t->record);
    mu_buf_fini(&t->plain);
    t->ssl = NULL;
}

/* What a peer's alert means here, if it can be said better than OpenSSL does; or NULL. */
static const char *meaning_of_alert(struct mu_tls *t, int alert)
{
    switch (alert) {
    case SSL_AD_CERTIFICATE_EXPIRED:
        return mu_tls_context_expired(t->context, &t->blame) ? t->blame.text : NULL;
    case SSL_AD_ILLEGAL_PARAMETER:
    case SSL_AD_DECRYPT_ERROR:
        return t->token ? "its token is another one (--token-file)" : NULL;
    case SSL_AD_HANDSHAKE_FAILURE:
    case SSL_AD_UNKNOWN_PSK_IDENTITY:
    case SSL_AD_MISSING_EXTENSION:
        return t->token ? "it is locked with certificates, and we have a token (--token-file)"
                        : "it is locked with a token (--token-file), and we have certificates";
    default:
        return NULL;
    }
}

/* What went wrong at our end, likewise. */
static const char *meaning_of_failure(const struct mu_tls *t, int why)
{
    switch (why) {
    case SSL_R_BINDER_DOES_NOT_VERIFY:
        return "the peer's token is another one";
    case SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM:
    case SSL_R_NO_SHARED_CIPHER:
        return t->token ? "the peer has certificates, and we have a token" : NULL;
    case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
        return "the peer has no certificate: it has a token, or another key";
    default:
        return NULL;
    }
}

/* Says why OpenSSL gave up, in the terms of who has to mend it. */
static int fail(struct mu_tls *t)
{
    unsigned long code = ERR_peek_last_error();
    int why = ERR_GET_LIB(code) == ERR_LIB_SSL ? ERR_GET_REASON(code) : 0;
    long verdict = SSL_get_verify_result(t->ssl);
    const char *text;

    if (t->err != 0) {
        return mu_err(&t->why, t->err, "no room for what is to be sent");
    }
    if (verdict != X509_V_OK && t->token) {
        t->err = mu_err(&t->why, MUSTER_ETLS,
                        "the peer is locked with certificates, and we have a token (--token-file)");
    } else if (verdict != X509_V_OK) {
        t->err = mu_err(&t->why, MUSTER_ETLS, "the peer's certificate is not accepted: %s%s",
                        X509_verify_cert_error_string(verdict), t->blame.text);
    } else if (why == SSL_AD_REASON_OFFSET + SSL_AD_INTERNAL_ERROR) {
        t->err = mu_err(&t->why, MUSTER_ECONN,
                        "the peer broke off the handshake: it is too busy for another one");
    } else if (why == SSL_R_DECRYPTION_FAILED_OR_BAD_RECORD_MAC ||
               why == SSL_AD_REASON_OFFSET + SSL_AD_BAD_RECORD_MAC) {
        /* A wrong credential is found out before anything is sealed. */
        t->err = mu_err(&t->why, MUSTER_ECONN, "the handshake was damaged on the way");
    } else if (why > SSL_AD_REASON_OFFSET) {
        text = meaning_of_alert(t, why - SSL_AD_REASON_OFFSET);
        t->err = mu_err(&t->why, MUSTER_ETLS, "the peer refuses us: %s",
                        text != NULL ? text : mu_tls_reason());
    } else {
        text = meaning_of_failure(t, why);
        t->err = mu_err(&t->why, MUSTER_ETLS, "the secure connection failed: %s",
                        text != NULL ? text : mu_tls_reason());
    }
    return t->err;
}

/* Whether an answer to our hello begins as one: with a record of a handshake, or an alert. */
static bool is_answer(uint8_t first)
{
    return first == SSL3_RT_HANDSHAKE || first == SSL3_RT_ALERT;
}

/* From here on the records are ours; OpenSSL has neither sealed nor opened one with these keys. */
static int take_over(struct mu_tls *t)
{
    const SSL_CIPHER *suite = SSL_get_current_cipher(t->ssl);
    struct mu_span mine = mu_span(t->secrets[t->dials ? 0 : 1], t->secret_len);
    struct mu_span theirs = mu_span(t->secrets[t->dials ? 1 : 0], t->secret_len);

    if (t->token && SSL_session_reused(t->ssl) != 1) {
        /* Nothing else is configured, so this cannot be; and must not, whatever else may. */
        t->err = mu_err(&t->why, MUSTER_ETLS, "the peer has not shown the token");
    } else if (t->secret_len == 0 || mu_tls_half_init(&t->sends, true, suite, mine) != 0 ||
               mu_tls_half_init(&t->receives, false, suite, theirs) != 0) {
        t->err = mu_err(&t->why, MUSTER_ENOMEM, "out of memory");
    }
    OPENSSL_cleanse(t->secrets, sizeof(t->secrets));
    t->ready = t->err == 0;
    return t->err;
}

static int shake_hands(struct mu_tls *t, struct mu_span *in)
{
    int result;

    ERR_clear_error();
    t->in = in;
    result = SSL_do_handshake(t->ssl);
    t->in = NULL;
    if (result == 1) {
        return take_over(t);
    }
    switch (SSL_get_error(t->ssl, result)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
        return t->err != 0 ? fail(t) : 0;
    default:
        return fail(t);
    }
}

static int seal_one(struct mu_tls *t, enum mu_tls_type type, struct mu_span in)
{
    int err = mu_buf_reserve(&t->out, in.len + MU_TLS_RECORD_EXTRA);

    if (err == 0) {
        err = mu_tls_half_seal(&t->sends, type, in,
                               mu_buf_grow(&t->out, in.len + MU_TLS_RECORD_EXTRA));
    }
    return err;
}

/* The peer hears of it with the old key. */
static int update_key(struct mu_tls *t)
{
    static const uint8_t text[] = {KEY_UPDATE, 0, 0, 1, SSL_KEY_UPDATE_NOT_REQUESTED};
    int err = seal_one(t, MU_TLS_HANDSHAKE, mu_span(text, sizeof(text)));

    return err != 0 ? err : mu_tls_half_update(&t->sends);
}

static int seal(struct mu_tls *t, enum mu_tls_type type, struct mu_span in)
{
    int err = t->sends.count < MU_TLS_RECORDS_OF_A_KEY ? 0 : update_key(t);

    return err != 0 ? err : seal_one(t, type, in);
}

static int seal_alert(struct mu_tls *t, uint8_t level, uint8_t alert)
{
    uint8_t text[2] = {level, alert};

    return seal(t, MU_TLS_ALERT, mu_span(text, sizeof(text)));
}

/* The peer has sent what it must not; it is told. */
static int refuse(struct mu_tls *t, uint8_t alert, const char *text)
{
    t->err = mu_err(&t->why, MUSTER_ETLS, "the secure connection failed: %s", text);
    if (!t->ended) {
        (void)seal_alert(t, SSL3_AL_FATAL, alert);
    }
    return t->err;
}

static int take_alert(struct mu_tls *t, struct mu_span text)
{
    const char *meaning;

    if (text.len != 2) {
        return refuse(t, SSL_AD_DECODE_ERROR, "an alert of another length");
    }
    if (text.data[1] == SSL_AD_CLOSE_NOTIFY) {
        t->peer_ended = true;
        return 0;
    }
    meaning = meaning_of_alert(t, text.data[1]);
    if (meaning == NULL) {
        meaning = ERR_reason_error_string(
            ERR_PACK(ERR_LIB_SSL, 0, (unsigned long)SSL_AD_REASON_OFFSET + text.data[1]));
    }
    t->err = mu_err(&t->why, MUSTER_ETLS, "the peer refuses us: %s",
                    meaning != NULL ? meaning : "no reason given");
    return t->err;
}

static int run_out(struct mu_tls *t)
{
    t->err = mu_err(&t->why, MUSTER_ENOMEM, "out of memory");
    return t->err;
}

/* What follows is sealed with its next key. If it wishes, so is what we say. */
static int take_key_update(struct mu_tls *t, struct mu_span text)
{
    static const uint8_t head[] = {KEY_UPDATE, 0, 0, 1};
    int err;

    if (text.len != 5 || memcmp(text.data, head, sizeof(head)) != 0) {
        return refuse(t, SSL_AD_DECODE_ERROR, "a change of the key that is malformed");
    }
    if (text.data[4] > SSL_KEY_UPDATE_REQUESTED) {
        return refuse(t, SSL_AD_ILLEGAL_PARAMETER, "a change of the key that asks for more");
    }
    err = mu_tls_half_update(&t->receives);
    if (err == 0 && text.data[4] == SSL_KEY_UPDATE_REQUESTED && !t->ended) {
        err = update_key(t);
    }
    return err == 0 ? 0 : run_out(t);
}

/* Has `record` hold so many bytes. False: they have not come yet, or (err) there is no memory. */
static bool gather(struct mu_tls *t, struct mu_span *in, size_t want)
{
    size_t n = t->record.len < want ? want - t->record.len : 0;

    if (mu_buf_reserve(&t->record, n) != 0) {
        (void)run_out(t);
        return false;
    }
    n = n < in->len ? n : in->len;
    mu_buf_put(&t->record, mu_span(in->data, n));
    *in = mu_span_skip(*in, n);
    return t->record.len >= want;
}

/* The next whole record, taken off `*in`; an empty one: not all of it has come. */
static int next_record(struct mu_tls *t, struct mu_span *in, struct mu_span *ret)
{
    bool here = t->record.len == 0 && in->len >= MU_TLS_RECORD_HEAD;
    size_t len;

    *ret = (struct mu_span){0};
    if (!here && !gather(t, in, MU_TLS_RECORD_HEAD)) {
        return t->err;
    }
    len = mu_tls_record_len(here ? in->data : mu_buf_span(&t->record).data);
    if (len == 0) {
        return refuse(t, SSL_AD_UNEXPECTED_MESSAGE, "what came is no record");
    }
    if (here && in->len >= len) { /* It is opened where it is. */
        *ret = mu_span(in->data, len);
        *in = mu_span_skip(*in, len);
    } else if (gather(t, in, len)) {
        *ret = mu_buf_span(&t->record);
    }
    return t->err;
}

/* What a record carried that is no data, or more of it than there may be. */
static int take_other(struct mu_tls *t, uint8_t type, struct mu_span text)
{
    if (text.len > MU_TLS_RECORD_MAX) {
        return refuse(t, SSL_AD_RECORD_OVERFLOW, "a record that is too long");
    }
    if (type == MU_TLS_ALERT) {
        return take_alert(t, text);
    }
    if (type == MU_TLS_HANDSHAKE && text.len != 0 && text.data[0] == NEW_SESSION_TICKET) {
        return 0;
    }
    if (type == MU_TLS_HANDSHAKE && text.len != 0 && text.data[0] == KEY_UPDATE) {
        return take_key_update(t, text);
    }
    return refuse(t, SSL_AD_UNEXPECTED_MESSAGE, "a message that is out of place");
}

/* Opens a record to `buf`, or, if it may have more than `cap` bytes, to `plain`. How many are in
 * `buf` then: none, if it was another kind of record. */
static int open_record(struct mu_tls *t, struct mu_span record, uint8_t *buf, size_t cap,
                       size_t *ret_len)
{
    size_t room = record.len - MU_TLS_RECORD_EXTRA;
    bool here = room <= cap;
    uint8_t type = 0;
    size_t len = 0;
    int err;

    if (!here) {
        if (mu_buf_reserve(&t->plain, room) != 0) {
            return run_out(t);
        }
        buf = t->plain.data;
    }
    err = mu_tls_half_open(&t->receives, record, buf, &type, &len);
    mu_buf_reset(&t->record);
    mu_buf_trim(&t->record, 0);
    if (err != 0) {
        return err == MUSTER_ECORRUPT
                   ? refuse(t, SSL_AD_BAD_RECORD_MAC, "decryption failed or bad record mac")
                   : run_out(t);
    }
    if (type != MU_TLS_DATA || len > MU_TLS_RECORD_MAX) {
        return take_other(t, type, mu_span(buf, len));
    }
    if (here) {
        *ret_len = len;
    } else {
        (void)mu_buf_grow(&t->plain, len);
    }
    return 0;
}

static int recv_data(struct mu_tls *t, struct mu_span *in, uint8_t *buf, size_t cap,
                     size_t *ret_len)
{
    size_t len = 0;
    int err = 0;

    while (err == 0 && len == 0 && t->plain.len == 0 && !t->peer_ended) {
        struct mu_span record;

        err = next_record(t, in, &record);
        if (record.len == 0) {
            break;
        }
        err = open_record(t, record, buf, cap, &len);
    }
    if (err != 0) {
        return err;
    }
    if (t->plain.len != 0) {
        len = t->plain.len < cap ? t->plain.len : cap;
        memcpy(buf, mu_buf_span(&t->plain).data, len);
        mu_buf_consume(&t->plain, len);
        mu_buf_trim(&t->plain, 0);
    }
    *ret_len = len;
    return 0;
}

int mu_tls_recv(struct mu_tls *t, struct mu_span *in, uint8_t *buf, size_t cap, size_t *ret_len)
{
    if (t->err != 0) {
        return t->err;
    }
    if (t->peer_ended) {
        *ret_len = 0;
        return 0;
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
    if (!t->ready) {
        *ret_len = 0;
        return 0;
    }
    return recv_data(t, in, buf, cap, ret_len);
}

bool mu_tls_ready(const struct mu_tls *t)
{
    return t->ready && t->err == 0;
}

int mu_tls_write(struct mu_tls *t, struct mu_span data, size_t *ret_taken)
{
    size_t taken = 0;

    MU_ASSERT(t->ready && !t->ended);
    while (t->err == 0 && taken < data.len && t->out.len < OUTPUT_HIGH) {
        size_t n = data.len - taken;

        n = n < MU_TLS_RECORD_MAX ? n : MU_TLS_RECORD_MAX;
        if (seal(t, MU_TLS_DATA, mu_span(data.data + taken, n)) != 0) {
            return run_out(t);
        }
        taken += n;
    }
    if (t->err != 0) {
        return t->err;
    }
    *ret_taken = taken;
    return 0;
}

void mu_tls_end(struct mu_tls *t)
{
    if (t->ready && !t->ended && t->err == 0) {
        (void)seal_alert(t, SSL3_AL_WARNING, SSL_AD_CLOSE_NOTIFY);
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
