/* Certificates for tests: an authority and what it signs, as files in a directory. */
#ifndef MU_TEST_CERTS_H
#define MU_TEST_CERTS_H

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

struct cert_authority {
    EVP_PKEY *key;
    X509 *cert;
    long serial;
};

static inline void certs_must(int held)
{
    if (!held) {
        (void)fprintf(stderr, "certificates for the test cannot be made\n");
        abort();
    }
}

static inline void certs_extend(X509 *cert, X509 *issuer, int what, const char *value)
{
    X509V3_CTX context;
    X509_EXTENSION *extension;

    X509V3_set_ctx(&context, issuer, cert, NULL, NULL, 0);
    extension = X509V3_EXT_conf_nid(NULL, &context, what, value);
    certs_must(extension != NULL && X509_add_ext(cert, extension, -1) == 1);
    X509_EXTENSION_free(extension);
}

/* `names` as OpenSSL has them: "DNS:node1,IP:127.0.0.1"; NULL: an authority of its own. Valid from
 * an hour ago for `seconds` from now, which may be below zero. */
static inline X509 *certs_make(struct cert_authority *ca, EVP_PKEY *key, const char *subject_name,
                               const char *names, long seconds)
{
    X509 *cert = X509_new();
    X509_NAME *subject;

    certs_must(cert != NULL);
    subject = X509_get_subject_name(cert);
    certs_must(X509_set_version(cert, 2) == 1 &&
               ASN1_INTEGER_set(X509_get_serialNumber(cert), ++ca->serial) == 1 &&
               X509_gmtime_adj(X509_getm_notBefore(cert), -7200) != NULL &&
               X509_gmtime_adj(X509_getm_notAfter(cert), seconds) != NULL &&
               X509_set_pubkey(cert, key) == 1 &&
               X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                                          (const unsigned char *)subject_name, -1, -1, 0) == 1);
    certs_must(
        X509_set_issuer_name(cert, names == NULL ? subject : X509_get_subject_name(ca->cert)) == 1);
    if (names == NULL) {
        certs_extend(cert, cert, NID_basic_constraints, "critical,CA:TRUE");
    } else {
        certs_extend(cert, ca->cert, NID_subject_alt_name, names);
    }
    certs_must(X509_sign(cert, ca->key, NULL) != 0);
    return cert;
}

static inline void certs_write(const char *directory, const char *name, X509 *cert, EVP_PKEY *key)
{
    char path[256];
    FILE *file;

    (void)snprintf(path, sizeof(path), "%s/%s.pem", directory, name);
    file = fopen(path, "w");
    certs_must(file != NULL && PEM_write_X509(file, cert) == 1 && fclose(file) == 0);
    (void)snprintf(path, sizeof(path), "%s/%s.key", directory, name);
    file = fopen(path, "w");
    certs_must(file != NULL && PEM_write_PrivateKey(file, key, NULL, NULL, 0, NULL, NULL) == 1 &&
               fclose(file) == 0);
}

/* Writes NAME.pem and NAME.key. */
static inline void certs_authority(struct cert_authority *ca, const char *directory,
                                   const char *name)
{
    *ca = (struct cert_authority){.key = EVP_PKEY_Q_keygen(NULL, NULL, "ED25519")};
    certs_must(ca->key != NULL);
    ca->cert = certs_make(ca, ca->key, name, NULL, 86400);
    certs_write(directory, name, ca->cert, ca->key);
}

static inline void certs_leaf(struct cert_authority *ca, const char *directory, const char *name,
                              const char *names, long seconds)
{
    EVP_PKEY *key = EVP_PKEY_Q_keygen(NULL, NULL, "ED25519");
    X509 *cert;

    certs_must(key != NULL);
    cert = certs_make(ca, key, name, names, seconds);
    certs_write(directory, name, cert, key);
    X509_free(cert);
    EVP_PKEY_free(key);
}

static inline void certs_authority_free(struct cert_authority *ca)
{
    X509_free(ca->cert);
    EVP_PKEY_free(ca->key);
}

static inline void certs_remove(const char *directory, const char *const *names)
{
    char path[256];

    for (; *names != NULL; names++) {
        (void)snprintf(path, sizeof(path), "%s/%s.pem", directory, *names);
        (void)remove(path);
        (void)snprintf(path, sizeof(path), "%s/%s.key", directory, *names);
        (void)remove(path);
    }
    (void)remove(directory);
}

#endif
