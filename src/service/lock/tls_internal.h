/* What the files of TLS share: the context, and the connection as OpenSSL sees it. */
#ifndef MU_TLS_INTERNAL_H
#define MU_TLS_INTERNAL_H

#include <openssl/ssl.h>

#include "service/lock/tls.h"

#define MU_TLS_NAME_MAX 255

struct mu_tls_context {
    SSL_CTX *ctx;
    BIO_METHOD *wire;
    bool token;
    bool any_name;
    bool has_name;
    char name[MU_TLS_NAME_MAX + 1];
    struct mu_tls_end end; /* of the certificate that ends first; unset with a token */
};

/** What went wrong last, in OpenSSL's words. */
const char *mu_tls_reason(void);
/** Makes OpenSSL check the server's certificate for a name, or for an address in numbers. */
bool mu_tls_expect_name(const struct mu_tls_context *context, SSL *ssl, const char *host);
/** The other end says that a certificate of ours has ended: writes which one, when, and what to do.
 * False: we have no certificate. */
bool mu_tls_context_expired(const struct mu_tls_context *context, struct mu_errmsg *ret_text);

/** Makes a wire whose BIOs have a struct mu_tls as their data. NULL: no memory. */
BIO_METHOD *mu_tls_wire_new(void);

#endif
