#include "transport/tls_make.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <openssl/ec.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

#define PATH_CAP       4096
#define HOST_MAX       253
#define AUTHORITY_DAYS 3650
/* A machine whose clock is a little behind must accept a new certificate. */
#define BEFORE_S 3600

struct pair {
    X509 *cert;
    EVP_PKEY *key;
};

static void pair_free(struct pair *p)
{
    X509_free(p->cert);
    EVP_PKEY_free(p->key);
    *p = (struct pair){0};
}

/* --- files ------------------------------------------------------------------------------------ */

static int file_error(const char *path, int err, struct mu_errmsg *msg)
{
    if (err == -EEXIST) {
        return mu_err(
            msg, MUSTER_EEXIST,
            "%.180s already exists and is not overwritten; choose another directory, or remove it",
            path);
    }
    return mu_err(msg, err, "cannot write %.150s: %s", path, muster_strerror(err));
}

static FILE *create(const char *path, int mode, struct mu_errmsg *msg, int *ret_err)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "w");

    if (f == NULL) {
        *ret_err = file_error(path, -errno, msg);
        if (fd >= 0) {
            (void)close(fd);
        }
    }
    return f;
}

static int write_pair(const struct pair *p, const char *cert_path, const char *key_path,
                      struct mu_errmsg *msg)
{
    int err = 0;
    FILE *f = create(key_path, 0600, msg, &err);
    bool good;

    if (f == NULL) {
        return err;
    }
    good = PEM_write_PrivateKey(f, p->key, NULL, NULL, 0, NULL, NULL) == 1;
    good = fclose(f) == 0 && good;
    if (good) {
        f = create(cert_path, 0644, msg, &err);
        if (f == NULL) {
            (void)unlink(key_path);
            return err;
        }
        good = PEM_write_X509(f, p->cert) == 1;
        good = fclose(f) == 0 && good;
    }
    if (!good) {
        (void)unlink(key_path);
        (void)unlink(cert_path);
        return mu_err(msg, -EIO, "cannot write %.180s", cert_path);
    }
    return 0;
}

static int read_pair(struct pair *p, const char *cert_path, const char *key_path,
                     struct mu_errmsg *msg)
{
    FILE *cert = fopen(cert_path, "re");
    FILE *key = fopen(key_path, "re");

    if (cert != NULL && key != NULL) {
        p->cert = PEM_read_X509(cert, NULL, NULL, NULL);
        p->key = PEM_read_PrivateKey(key, NULL, NULL, NULL);
    }
    if (cert != NULL) {
        (void)fclose(cert);
    }
    if (key != NULL) {
        (void)fclose(key);
    }
    if (p->cert == NULL || p->key == NULL || X509_check_private_key(p->cert, p->key) != 1) {
        pair_free(p);
        return mu_err(
            msg, MUSTER_ETLS,
            "%.90s and %.90s are not a valid authority: restore them, or use another directory",
            cert_path, key_path);
    }
    return 0;
}

/* --- certificates ----------------------------------------------------------------------------- */

static bool set_serial(X509 *cert)
{
    unsigned char bytes[16];
    BIGNUM *number;
    bool good;

    if (RAND_bytes(bytes, sizeof(bytes)) != 1) {
        return false;
    }
    bytes[0] &= 0x7f; /* the number must be positive */
    number = BN_bin2bn(bytes, sizeof(bytes), NULL);
    good = number != NULL && BN_to_ASN1_INTEGER(number, X509_get_serialNumber(cert)) != NULL;
    BN_free(number);
    return good;
}

static bool extend(X509 *cert, X509 *issuer, int nid, const char *value)
{
    X509_EXTENSION *extension;
    X509V3_CTX context;
    bool good;

    X509V3_set_ctx(&context, issuer, cert, NULL, NULL, 0);
    extension = X509V3_EXT_conf_nid(NULL, &context, nid, value);
    good = extension != NULL && X509_add_ext(cert, extension, -1) == 1;
    X509_EXTENSION_free(extension);
    return good;
}

static bool set_name(X509 *cert, const char *name)
{
    return X509_NAME_add_entry_by_txt(X509_get_subject_name(cert), "CN", MBSTRING_UTF8,
                                      (const unsigned char *)name, -1, -1, 0) == 1;
}

/* `signer` NULL: makes an authority, which signs itself. `names`: for what it signs. */
static int make_pair(struct pair *p, const struct pair *signer, const char *name, const char *names,
                     uint32_t days, struct mu_errmsg *msg)
{
    const struct pair *by = signer == NULL ? p : signer;

    p->key = EVP_EC_gen("P-256");
    p->cert = X509_new();
    if (p->key == NULL || p->cert == NULL || X509_set_version(p->cert, X509_VERSION_3) != 1 ||
        !set_serial(p->cert) || X509_gmtime_adj(X509_getm_notBefore(p->cert), -BEFORE_S) == NULL ||
        X509_gmtime_adj(X509_getm_notAfter(p->cert), (long)days * 86400) == NULL ||
        X509_set_pubkey(p->cert, p->key) != 1 || !set_name(p->cert, name) ||
        X509_set_issuer_name(p->cert, X509_get_subject_name(by->cert)) != 1 ||
        !extend(p->cert, by->cert, NID_basic_constraints,
                signer == NULL ? "critical,CA:TRUE,pathlen:0" : "critical,CA:FALSE") ||
        !extend(p->cert, by->cert, NID_key_usage,
                signer == NULL ? "critical,keyCertSign,cRLSign" : "critical,digitalSignature") ||
        !extend(p->cert, by->cert, NID_subject_key_identifier, "hash") ||
        (signer != NULL &&
         (!extend(p->cert, by->cert, NID_authority_key_identifier, "keyid") ||
          !extend(p->cert, by->cert, NID_ext_key_usage, "serverAuth,clientAuth") ||
          !extend(p->cert, by->cert, NID_subject_alt_name, names))) ||
        X509_sign(p->cert, by->key, EVP_sha256()) == 0) {
        pair_free(p);
        return mu_err(msg, MUSTER_ENOMEM, "cannot make the certificate of %.100s", name);
    }
    return 0;
}

/* --- the directory ---------------------------------------------------------------------------- */

static bool join(char path[PATH_CAP], const char *directory, const char *name, const char *ending)
{
    return snprintf(path, PATH_CAP, "%s/%s.%s", directory, name, ending) < PATH_CAP;
}

static bool is_host(const char *host)
{
    size_t len = strlen(host);

    for (size_t i = 0; i < len; i++) {
        char c = host[i];

        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
              c == '-' || c == '.' || c == ':')) {
            return false;
        }
    }
    return len != 0 && len <= HOST_MAX && host[0] != '.' && host[0] != '-' &&
           strcmp(host, "ca") != 0;
}

static int make_host(const char *directory, const struct pair *authority, const char *host,
                     uint32_t days, struct mu_errmsg *msg)
{
    ASN1_OCTET_STRING *number = a2i_IPADDRESS(host);
    struct pair p = {0};
    char cert[PATH_CAP];
    char key[PATH_CAP];
    char names[HOST_MAX + 8];
    int err;

    (void)snprintf(names, sizeof(names), "%s:%s", number != NULL ? "IP" : "DNS", host);
    ASN1_OCTET_STRING_free(number);
    if (!join(cert, directory, host, "pem") || !join(key, directory, host, "key")) {
        return mu_err(msg, -ENAMETOOLONG, "the path of %.100s is too long for a file name", host);
    }
    err = make_pair(&p, authority, host, names, days, msg);
    if (err == 0) {
        err = write_pair(&p, cert, key, msg);
    }
    pair_free(&p);
    return err;
}

int mu_tls_make(const char *directory, const char *const *hosts, size_t count, uint32_t days,
                bool *ret_made, struct mu_errmsg *reterr_msg)
{
    struct pair authority = {0};
    char cert[PATH_CAP];
    char key[PATH_CAP];
    bool made;
    int err;

    for (size_t i = 0; i < count; i++) {
        if (!is_host(hosts[i])) {
            return mu_err(reterr_msg, MUSTER_EINVAL, "\"%.100s\" does not name a host", hosts[i]);
        }
    }
    if (!join(cert, directory, "ca", "pem") || !join(key, directory, "ca", "key")) {
        return mu_err(reterr_msg, -ENAMETOOLONG, "the path of the directory is too long");
    }
    made = access(cert, F_OK) != 0 && access(key, F_OK) != 0;
    if (made) {
        err = make_pair(&authority, NULL, "muster job", NULL, AUTHORITY_DAYS, reterr_msg);
        err = err != 0 ? err : write_pair(&authority, cert, key, reterr_msg);
    } else {
        err = read_pair(&authority, cert, key, reterr_msg);
    }
    for (size_t i = 0; i < count && err == 0; i++) {
        err = make_host(directory, &authority, hosts[i], days, reterr_msg);
    }
    pair_free(&authority);
    if (err == 0) {
        *ret_made = made;
    }
    return err;
}

bool mu_tls_make_token(char ret_token[MU_TLS_TOKEN_CAP])
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    unsigned char bytes[32];
    uint32_t bits = 0;
    unsigned count = 0;
    size_t len = 0;

    if (RAND_priv_bytes(bytes, sizeof(bytes)) != 1) {
        return false;
    }
    for (size_t i = 0; i < sizeof(bytes); i++) {
        bits = bits << 8 | bytes[i];
        for (count += 8; count >= 6; count -= 6) {
            ret_token[len++] = digits[bits >> (count - 6) & 63];
        }
    }
    ret_token[len++] = digits[bits << (6 - count) & 63];
    ret_token[len] = '\0';
    OPENSSL_cleanse(bytes, sizeof(bytes));
    return true;
}
