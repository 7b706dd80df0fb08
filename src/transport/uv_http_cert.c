/*
 * Why a server may have refused our certificate. TLS tells the refused end hardly more than that it
 * was refused, and Go's servers say "bad certificate" for every reason; but our own certificate is
 * a file that we can look at.
 */
#include <openssl/bio.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <stdio.h>
#include <string.h>

#include "transport/uv_internal.h"

/* A certificate's time as text, such as "Feb  1 00:00:00 2020 GMT". */
static void print_time(const ASN1_TIME *time, char *buf, size_t cap)
{
    BIO *out = BIO_new(BIO_s_mem());
    int n = out == NULL || ASN1_TIME_print(out, time) != 1 ? 0 : BIO_read(out, buf, (int)cap - 1);

    buf[n > 0 ? n : 0] = '\0';
    BIO_free(out);
}

void mu_uv_http_explain_cert(const char *path, bool certain, char *text, size_t cap)
{
    BIO *in = BIO_new_file(path, "r");
    X509 *cert = in == NULL ? NULL : PEM_read_bio_X509(in, NULL, NULL, NULL);
    size_t len = strlen(text);
    char when[64];

    if (cert != NULL && X509_cmp_current_time(X509_get0_notAfter(cert)) < 0) {
        print_time(X509_get0_notAfter(cert), when, sizeof(when));
        (void)snprintf(text, cap, "our certificate %.80s expired on %s", path, when);
    } else if (cert != NULL && X509_cmp_current_time(X509_get0_notBefore(cert)) > 0) {
        print_time(X509_get0_notBefore(cert), when, sizeof(when));
        (void)snprintf(text, cap, "our certificate %.80s is valid only from %s", path, when);
    } else {
        (void)snprintf(text + len, cap - len,
                       ": %sthe server does not accept our certificate %.80s",
                       certain ? "" : "perhaps ", path);
    }
    X509_free(cert);
    BIO_free(in);
}
