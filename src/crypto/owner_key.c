#include "crypto/owner_key.h"

#include <openssl/evp.h>
#include <openssl/rsa.h>
#include <openssl/x509.h>

#include <muster/error.h>

#include "codec/text/base64.h"
#include "codec/bin/pb.h"
#include "core/reader.h"

enum {
    DER_INTEGER = 0x02,
    DER_BITS = 0x03,
    DER_SEQUENCE = 0x30,
    RSA_BITS_MIN = 2048,
    RSA_BITS_MAX = 8192,
    DER_MAX = 4096,
    FIELD_DATA = 2,
};

#define SSH_NAME "ssh-rsa"

/* SEQUENCE { OBJECT rsaEncryption, NULL } */
static const uint8_t rsa_algorithm[] = {0x30, 0x0d, 0x06, 0x09, 0x2a, 0x86, 0x48, 0x86,
                                        0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00};

/* --- the two encodings of a public key -------------------------------------------------------- */

static uint32_t read_big32(struct mu_reader *r)
{
    struct mu_span s = mu_read_bytes(r, 4);

    return r->failed ? 0
                     : (uint32_t)s.data[0] << 24 | (uint32_t)s.data[1] << 16 |
                           (uint32_t)s.data[2] << 8 | s.data[3];
}

static struct mu_span read_string(struct mu_reader *r)
{
    return mu_read_bytes(r, read_big32(r));
}

/* The contents of the next DER value of that type. */
static struct mu_span read_der(struct mu_reader *r, uint8_t type)
{
    size_t len;

    if (mu_read_u8(r) != type) {
        r->failed = true;
    }
    len = mu_read_u8(r);
    if (len >= 0x80) {
        size_t bytes = len & 0x7f;

        if (bytes > 4) {
            r->failed = true;
        }
        for (len = 0; bytes > 0 && !r->failed; bytes--) {
            len = len << 8 | mu_read_u8(r);
        }
    }
    return mu_read_bytes(r, len);
}

static int put_der_head(struct mu_buf *out, uint8_t type, size_t len)
{
    uint8_t head[4] = {type, 0x82, (uint8_t)(len >> 8), (uint8_t)len};

    if (len < 0x80) {
        head[1] = (uint8_t)len;
        return mu_buf_append(out, mu_span(head, 2));
    }
    if (len < 0x100) {
        head[1] = 0x81;
        head[2] = (uint8_t)len;
        return mu_buf_append(out, mu_span(head, 3));
    }
    return mu_buf_append(out, mu_span(head, 4));
}

static size_t der_len(size_t len)
{
    return len + (len < 0x80 ? 2 : len < 0x100 ? 3 : 4);
}

static int put_der(struct mu_buf *out, uint8_t type, struct mu_span value)
{
    int err = put_der_head(out, type, value.len);

    return err != 0 ? err : mu_buf_append(out, value);
}

/* Writes a SubjectPublicKeyInfo of both numbers, which OpenSSH and DER write in the same way. */
static int encode_der(struct mu_span n, struct mu_span e, struct mu_buf *out)
{
    size_t numbers = der_len(n.len) + der_len(e.len);
    size_t bits = 1 + der_len(numbers);
    static const uint8_t zero;
    int err = put_der_head(out, DER_SEQUENCE, sizeof(rsa_algorithm) + der_len(bits));

    err = err != 0 ? err : mu_buf_append(out, mu_span(rsa_algorithm, sizeof(rsa_algorithm)));
    err = err != 0 ? err : put_der_head(out, DER_BITS, bits);
    err = err != 0 ? err : mu_buf_append(out, mu_span(&zero, 1));
    err = err != 0 ? err : put_der_head(out, DER_SEQUENCE, numbers);
    err = err != 0 ? err : put_der(out, DER_INTEGER, n);
    return err != 0 ? err : put_der(out, DER_INTEGER, e);
}

/* --- other keys ------------------------------------------------------------------------------- */

static int line_to_der(struct mu_span line, struct mu_buf *der)
{
    struct mu_span name;
    struct mu_span n;
    struct mu_span e;
    struct mu_buf blob;
    struct mu_reader r;
    int err;

    if (line.len > MU_OWNER_LINE_MAX || !mu_span_starts_with(line, MU_SPAN_LIT(SSH_NAME " "))) {
        return MUSTER_EINVAL;
    }
    mu_buf_init(&blob, MU_OWNER_LINE_MAX);
    err = mu_base64_decode(&blob, mu_span_skip(line, sizeof(SSH_NAME)));
    if (err == 0) {
        r = mu_reader(mu_buf_span(&blob));
        name = read_string(&r);
        e = read_string(&r);
        n = read_string(&r);
        err = mu_reader_done(&r) && mu_span_eq(name, MU_SPAN_LIT(SSH_NAME)) && n.len != 0 &&
                      e.len != 0
                  ? encode_der(n, e, der)
                  : MUSTER_EINVAL;
    }
    mu_buf_fini(&blob);
    return err == MUSTER_ENOMEM ? err : err != 0 ? MUSTER_EINVAL : 0;
}

static int read_line(struct mu_span line, EVP_PKEY **ret)
{
    struct mu_buf der;
    EVP_PKEY *key = NULL;
    int err;

    mu_buf_init(&der, DER_MAX);
    err = line_to_der(line, &der);
    if (err == 0) {
        const uint8_t *at = mu_buf_span(&der).data;

        key = d2i_PUBKEY(NULL, &at, (long)der.len);
    }
    mu_buf_fini(&der);
    if (err != 0) {
        return err;
    }
    if (key == NULL || EVP_PKEY_get_base_id(key) != EVP_PKEY_RSA ||
        EVP_PKEY_get_bits(key) < RSA_BITS_MIN || EVP_PKEY_get_bits(key) > RSA_BITS_MAX) {
        EVP_PKEY_free(key);
        return MUSTER_EINVAL;
    }
    *ret = key;
    return 0;
}

static bool set_pss(EVP_PKEY_CTX *context)
{
    return EVP_PKEY_CTX_set_rsa_padding(context, RSA_PKCS1_PSS_PADDING) == 1 &&
           EVP_PKEY_CTX_set_rsa_pss_saltlen(context, RSA_PSS_SALTLEN_MAX) == 1;
}

int mu_owner_verify(struct mu_span line, struct mu_span message, struct mu_span signature)
{
    EVP_PKEY_CTX *terms = NULL; /* the context's */
    EVP_MD_CTX *context;
    EVP_PKEY *key;
    int err = read_line(line, &key);

    if (err != 0) {
        return err;
    }
    err = MUSTER_ENOMEM;
    context = EVP_MD_CTX_new();
    if (context != NULL && EVP_DigestVerifyInit(context, &terms, EVP_sha256(), NULL, key) == 1 &&
        set_pss(terms)) {
        err = mu_signature_check(context, message, signature);
    }
    EVP_MD_CTX_free(context);
    EVP_PKEY_free(key);
    return err;
}

/* --- our own ---------------------------------------------------------------------------------- */

/* Finds the key's numbers in its protocol buffer, which holds DER that OpenSSL wrote. */
static int find_numbers(const struct mu_identity *key, struct mu_span *ret_n, struct mu_span *ret_e)
{
    struct mu_span message = mu_buf_span(&key->public_key);
    struct mu_span der = {0};
    struct mu_pb_field f;
    struct mu_reader r;

    while (mu_pb_next(&message, &f) == 1) {
        if (f.number == FIELD_DATA && f.type == MU_PB_BYTES) {
            der = f.bytes;
        }
    }
    r = mu_reader(der);
    r = mu_reader(read_der(&r, DER_SEQUENCE));
    (void)read_der(&r, DER_SEQUENCE);
    r = mu_reader(read_der(&r, DER_BITS));
    (void)mu_read_u8(&r);
    r = mu_reader(read_der(&r, DER_SEQUENCE));
    *ret_n = read_der(&r, DER_INTEGER);
    *ret_e = read_der(&r, DER_INTEGER);
    return mu_reader_done(&r) ? 0 : MUSTER_EINVAL;
}

static int put_string(struct mu_buf *out, struct mu_span s)
{
    uint8_t len[4] = {(uint8_t)(s.len >> 24), (uint8_t)(s.len >> 16), (uint8_t)(s.len >> 8),
                      (uint8_t)s.len};
    int err = mu_buf_append(out, mu_span(len, sizeof(len)));

    return err != 0 ? err : mu_buf_append(out, s);
}

int mu_owner_line(const struct mu_identity *key, struct mu_buf *out)
{
    struct mu_span n;
    struct mu_span e;
    struct mu_buf blob;
    int err;

    if (key->type != MU_KEY_RSA || find_numbers(key, &n, &e) != 0) {
        return MUSTER_EINVAL;
    }
    mu_buf_init(&blob, MU_OWNER_LINE_MAX);
    err = put_string(&blob, MU_SPAN_LIT(SSH_NAME));
    err = err != 0 ? err : put_string(&blob, e);
    err = err != 0 ? err : put_string(&blob, n);
    err = err != 0 ? err : mu_buf_append(out, MU_SPAN_LIT(SSH_NAME " "));
    err = err != 0 ? err : mu_base64_encode(out, mu_buf_span(&blob));
    mu_buf_fini(&blob);
    return err;
}

int mu_owner_sign(const struct mu_identity *key, struct mu_span message, struct mu_buf *out)
{
    uint8_t signature[MU_IDENTITY_SIG_LEN_MAX];
    size_t len = sizeof(signature);
    EVP_PKEY_CTX *terms = NULL;
    EVP_MD_CTX *context;
    int err = MUSTER_ENOMEM;

    if (key->type != MU_KEY_RSA) {
        return MUSTER_EINVAL;
    }
    context = EVP_MD_CTX_new();
    if (context != NULL && EVP_DigestSignInit(context, &terms, EVP_sha256(), NULL, key->key) == 1 &&
        set_pss(terms) &&
        EVP_DigestSign(context, signature, &len, message.data, message.len) == 1) {
        err = mu_buf_append(out, mu_span(signature, len));
    }
    EVP_MD_CTX_free(context);
    return err;
}
