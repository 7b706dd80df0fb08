/* What all connections of TLS share: files, names, and when certificates end. */
#include "service/lock/tls_internal.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include <openssl/err.h>
#include <openssl/x509v3.h>

#include "core/alloc.h"
#include "core/civil.h"
#include "service/lock/tls_psk.h"

/* The side that dials prefers the first one. OpenSSL would begin with AES-256, which is slower. */
#define SUITES "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256:TLS_AES_256_GCM_SHA384"
/* A hello makes the listening side compute in its group before it knows anything of the client:
 * these two cost some 0.1 ms, ffdhe8192 145 ms. Every TLS library has one of them. */
#define GROUPS "X25519:P-256"
/* How many bytes the other end's certificates may have in all: they are kept for a stranger until
 * they are judged. */
#define CERTIFICATES_MAX 16384

const char *mu_tls_reason(void)
{
    unsigned long code = ERR_peek_last_error();
    const char *text = code == 0 ? NULL : ERR_reason_error_string(code);

    return text == NULL ? "no reason given" : text;
}

/* What went wrong first with a file: the later errors only name parts of OpenSSL. */
static const char *file_reason(void)
{
    unsigned long code = ERR_peek_error();
    const char *text = ERR_SYSTEM_ERROR(code) ? strerror(ERR_GET_REASON(code))
                       : code == 0            ? NULL
                                              : ERR_reason_error_string(code);

    return text == NULL ? "no reason given" : text;
}

/* --- when certificates end -------------------------------------------------------------------- */

/* Seconds since 1970; what cannot be read is long ago. */
static int64_t seconds_of(const ASN1_TIME *time)
{
    struct tm tm;
    struct mu_civil civil;
    int64_t us;

    if (ASN1_TIME_to_tm(time, &tm) != 1) {
        return 0;
    }
    civil = (struct mu_civil){.year = tm.tm_year + 1900,
                              .month = tm.tm_mon + 1,
                              .day = tm.tm_mday,
                              .hour = tm.tm_hour,
                              .minute = tm.tm_min,
                              .second = tm.tm_sec};
    return mu_civil_to_us(&civil, &us) == 0 ? us / 1000000 : 0;
}

void mu_tls_begin(void)
{
    (void)OPENSSL_init_crypto(0, NULL);
}

void mu_tls_format_end(int64_t at_s, char ret_text[MU_TLS_DATE_CAP])
{
    struct mu_civil c = {0};

    (void)mu_civil_from_us(at_s * 1000000, &c);
    (void)snprintf(ret_text, MU_TLS_DATE_CAP, "%04u-%02u-%02u %02u:%02u UTC",
                   (unsigned)c.year % 10000, (unsigned)c.month % 100, (unsigned)c.day % 100,
                   (unsigned)c.hour % 100, (unsigned)c.minute % 100);
}

static void note_end(struct mu_tls_end *end, const X509 *cert, const char *path)
{
    int64_t at_s = cert == NULL ? 0 : seconds_of(X509_get0_notAfter(cert));

    if (cert != NULL && (end->path[0] == '\0' || at_s < end->at_s)) {
        end->at_s = at_s;
        (void)snprintf(end->path, sizeof(end->path), "%s", path);
    }
}

/* Of several authorities in one file the one that lasts longest counts: the operator who put a new
 * one beside the old one knows that the old one ends. */
static void note_authority(struct mu_tls_end *end, SSL_CTX *ctx, const char *path)
{
    STACK_OF(X509_OBJECT) *all = X509_STORE_get0_objects(SSL_CTX_get_cert_store(ctx));
    const X509 *last = NULL;

    for (int i = 0; i < sk_X509_OBJECT_num(all); i++) {
        const X509 *cert = X509_OBJECT_get0_X509(sk_X509_OBJECT_value(all, i));

        if (cert != NULL && (last == NULL || seconds_of(X509_get0_notAfter(cert)) >
                                                 seconds_of(X509_get0_notAfter(last)))) {
            last = cert;
        }
    }
    note_end(end, last, path);
}

bool mu_tls_context_end(const struct mu_tls_context *context, struct mu_tls_end *ret)
{
    if (context->token) {
        return false;
    }
    *ret = context->end;
    return true;
}

bool mu_tls_context_expired(const struct mu_tls_context *context, struct mu_errmsg *ret_text)
{
    char when[MU_TLS_DATE_CAP];

    if (context->token) {
        return false;
    }
    mu_tls_format_end(context->end.at_s, when);
    if (context->end.at_s <= (int64_t)time(NULL)) {
        (void)mu_err(ret_text, 0,
                     "our certificate %.100s ended on %s; put a new one in its place (muster "
                     "keygen tls), which needs no restart",
                     context->end.path, when);
    } else {
        (void)mu_err(ret_text, 0,
                     "by its clock our certificate %.100s has ended, but it is valid until %s; "
                     "compare the clocks",
                     context->end.path, when);
    }
    return true;
}

/* The name in a certificate is its owner's choice, and may end up on a terminal. */
static void name_of(X509 *cert, char ret_name[65])
{
    int len = X509_NAME_get_text_by_NID(X509_get_subject_name(cert), NID_commonName, ret_name, 65);

    for (int i = 0; i < len; i++) {
        if ((unsigned char)ret_name[i] < 0x20 || (unsigned char)ret_name[i] >= 0x7f ||
            ret_name[i] == '"') {
            ret_name[i] = '?';
        }
    }
    if (len < 0) {
        (void)snprintf(ret_name, 65, "?");
    }
}

/* Says whose certificate is not accepted and, if it is a matter of time, since when. */
static int note_verdict(int good, X509_STORE_CTX *store)
{
    SSL *ssl = X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx());
    struct mu_tls *t = SSL_get_app_data(ssl);
    X509 *cert = X509_STORE_CTX_get_current_cert(store);
    int why = X509_STORE_CTX_get_error(store);
    char when[MU_TLS_DATE_CAP];
    char name[65];

    if (good == 1 || cert == NULL) {
        return good;
    }
    name_of(cert, name);
    if (why == X509_V_ERR_CERT_HAS_EXPIRED) {
        mu_tls_format_end(seconds_of(X509_get0_notAfter(cert)), when);
        (void)mu_err(&t->blame, 0,
                     ": that of %s ended on %s; put a new one there (muster keygen tls)", name,
                     when);
    } else if (why == X509_V_ERR_CERT_NOT_YET_VALID) {
        mu_tls_format_end(seconds_of(X509_get0_notBefore(cert)), when);
        (void)mu_err(&t->blame, 0, ": that of %s begins on %s; compare the clocks", name, when);
    } else {
        (void)mu_err(&t->blame, 0, ": that of %s", name);
    }
    return 0;
}

/* --- making ----------------------------------------------------------------------------------- */

static int load_files(SSL_CTX *ctx, const struct mu_tls_config *config, struct mu_tls_end *ret_end,
                      struct mu_errmsg *reterr_msg)
{
    *ret_end = (struct mu_tls_end){0};
    ERR_clear_error();
    if (SSL_CTX_use_certificate_chain_file(ctx, config->cert) != 1) {
        return mu_err(reterr_msg, MUSTER_ETLS, "the certificate %.100s cannot be used: %s",
                      config->cert, file_reason());
    }
    if (SSL_CTX_use_PrivateKey_file(ctx, config->key, SSL_FILETYPE_PEM) != 1) {
        return ERR_GET_REASON(ERR_peek_last_error()) == X509_R_KEY_VALUES_MISMATCH
                   ? mu_err(reterr_msg, MUSTER_ETLS,
                            "the key %.80s does not belong to the certificate %.80s", config->key,
                            config->cert)
                   : mu_err(reterr_msg, MUSTER_ETLS, "the key %.100s cannot be used: %s",
                            config->key, file_reason());
    }
    if (SSL_CTX_load_verify_locations(ctx, config->ca, NULL) != 1) {
        return mu_err(reterr_msg, MUSTER_ETLS, "the authority %.100s cannot be used: %s",
                      config->ca, file_reason());
    }
    note_end(ret_end, SSL_CTX_get0_certificate(ctx), config->cert);
    note_authority(ret_end, ctx, config->ca);
    return 0;
}

static int make_ctx(const struct mu_tls_config *config, SSL_CTX **ret, struct mu_tls_end *ret_end,
                    struct mu_errmsg *reterr_msg)
{
    SSL_CTX *ctx;
    int err = 0;

    ERR_clear_error();
    ctx = SSL_CTX_new(TLS_method());
    if (ctx == NULL || SSL_CTX_set_min_proto_version(ctx, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_ciphersuites(ctx, SUITES) != 1 || SSL_CTX_set1_groups_list(ctx, GROUPS) != 1 ||
        SSL_CTX_set_num_tickets(ctx, 0) != 1) {
        SSL_CTX_free(ctx);
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    SSL_CTX_set_mode(ctx, SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_max_cert_list(ctx, CERTIFICATES_MAX);
    SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, note_verdict);
    if (config->token.len == 0) {
        err = load_files(ctx, config, ret_end, reterr_msg);
    } else if (!mu_tls_psk_use(ctx, config->token)) {
        err = mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    if (err != 0) {
        SSL_CTX_free(ctx);
        return err;
    }
    *ret = ctx;
    return 0;
}

static int check(const struct mu_tls_config *config, struct mu_errmsg *reterr_msg)
{
    bool none = config->cert == NULL && config->key == NULL && config->ca == NULL;

    if (config->token.len != 0 && !none) {
        return mu_err(reterr_msg, MUSTER_EINVAL,
                      "a connection is secured by a token or by certificates, not by both");
    }
    if (config->token.len == 0 &&
        (config->cert == NULL || config->key == NULL || config->ca == NULL)) {
        return mu_err(reterr_msg, MUSTER_EINVAL,
                      "a secure connection needs a certificate, its key and the authority: %s is "
                      "missing",
                      config->cert == NULL  ? "the certificate"
                      : config->key == NULL ? "the key"
                                            : "the authority");
    }
    if (config->name != NULL && strlen(config->name) > MU_TLS_NAME_MAX) {
        return mu_err(reterr_msg, MUSTER_EINVAL, "no certificate has a name of more than %d bytes",
                      MU_TLS_NAME_MAX);
    }
    return 0;
}

int mu_tls_context_new(const struct mu_tls_config *config, struct mu_tls_context **ret,
                       struct mu_errmsg *reterr_msg)
{
    struct mu_tls_context *context;
    int err = check(config, reterr_msg);

    if (err != 0) {
        return err;
    }
    context = mu_calloc(1, sizeof(*context));
    if (context == NULL || (context->wire = mu_tls_wire_new()) == NULL) {
        mu_free(context);
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    err = make_ctx(config, &context->ctx, &context->end, reterr_msg);
    if (err != 0) {
        mu_tls_context_free(context);
        return err;
    }
    context->token = config->token.len != 0;
    if (config->name != NULL) {
        context->has_name = config->name[0] != '\0';
        context->any_name = !context->has_name;
        memcpy(context->name, config->name, strlen(config->name) + 1);
    }
    *ret = context;
    return 0;
}

int mu_tls_context_renew(struct mu_tls_context *context, const struct mu_tls_config *config,
                         struct mu_errmsg *reterr_msg)
{
    struct mu_tls_end end = {0};
    SSL_CTX *ctx = NULL;
    int err = check(config, reterr_msg);

    err = err != 0 ? err : make_ctx(config, &ctx, &end, reterr_msg);
    if (err == 0 && config->token.len == 0 && end.at_s <= (int64_t)time(NULL)) {
        char when[MU_TLS_DATE_CAP];

        mu_tls_format_end(end.at_s, when);
        SSL_CTX_free(ctx);
        err = mu_err(reterr_msg, MUSTER_ETLS, "the certificate %.100s ended on %s", end.path, when);
    }
    if (err == 0) {
        SSL_CTX_free(context->ctx); /* connections keep the one that they began with */
        context->ctx = ctx;
        context->end = end;
        context->token = config->token.len != 0;
    }
    return err;
}

void mu_tls_context_free(struct mu_tls_context *context)
{
    if (context != NULL) {
        SSL_CTX_free(context->ctx);
        BIO_meth_free(context->wire);
        mu_free(context);
    }
}

bool mu_tls_expect_name(const struct mu_tls_context *context, SSL *ssl, const char *host)
{
    const char *name = context->has_name ? context->name : host;
    X509_VERIFY_PARAM *param = SSL_get0_param(ssl);

    if (context->any_name || context->token) {
        return true;
    }
    if (X509_VERIFY_PARAM_set1_ip_asc(param, name) == 1) {
        return true;
    }
    X509_VERIFY_PARAM_set_hostflags(param, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    return SSL_set1_host(ssl, name) == 1 && SSL_set_tlsext_host_name(ssl, name) == 1;
}
