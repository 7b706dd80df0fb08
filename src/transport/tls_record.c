#include "transport/tls_record.h"

#include <string.h>

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/ssl.h>

#include <muster/error.h>

#include "core/assert.h"

#define IV_LEN  12
#define TAG_LEN 16

/* HKDF-Expand-Label (RFC 8446, 7.1) without a context, of no more bytes than the hash has. */
static bool expand(const EVP_MD *md, struct mu_span secret, const char *label, uint8_t *ret,
                   size_t len)
{
    uint8_t block[EVP_MAX_MD_SIZE];
    uint8_t info[32];
    unsigned int made = 0;
    size_t n = strlen(label);
    bool good;

    MU_ASSERT(n + 11 <= sizeof(info));
    info[0] = 0;
    info[1] = (uint8_t)len;
    info[2] = (uint8_t)(6 + n);
    memcpy(info + 3, "tls13 ", 6);
    memcpy(info + 9, label, n);
    info[9 + n] = 0;
    info[10 + n] = 1; /* HKDF's first block, and the only one */
    good =
        HMAC(md, secret.data, (int)secret.len, info, n + 11, block, &made) != NULL && made >= len;
    if (good) {
        memcpy(ret, block, len);
    }
    OPENSSL_cleanse(block, sizeof(block));
    return good;
}

/* Makes what the records need of the secret. */
static int use_secret(struct mu_tls_half *h)
{
    const EVP_MD *md = SSL_CIPHER_get_handshake_digest(h->suite);
    const EVP_CIPHER *cipher = EVP_get_cipherbynid(SSL_CIPHER_get_cipher_nid(h->suite));
    struct mu_span secret = mu_span(h->secret, h->secret_len);
    uint8_t key[EVP_MAX_KEY_LENGTH];
    bool good;

    MU_ASSERT(md != NULL && cipher != NULL && EVP_CIPHER_get_iv_length(cipher) == IV_LEN);
    good = expand(md, secret, "key", key, (size_t)EVP_CIPHER_get_key_length(cipher)) &&
           expand(md, secret, "iv", h->iv, IV_LEN) &&
           EVP_CipherInit_ex(h->context, cipher, NULL, key, NULL, h->seals ? 1 : 0) == 1;
    OPENSSL_cleanse(key, sizeof(key));
    h->count = 0;
    return good ? 0 : MUSTER_ENOMEM;
}

int mu_tls_half_init(struct mu_tls_half *h, bool seals, const SSL_CIPHER *suite,
                     struct mu_span secret)
{
    MU_ASSERT(secret.len <= sizeof(h->secret));
    *h = (struct mu_tls_half){
        .suite = suite, .context = EVP_CIPHER_CTX_new(), .seals = seals, .secret_len = secret.len};
    memcpy(h->secret, secret.data, secret.len);
    return h->context == NULL ? MUSTER_ENOMEM : use_secret(h);
}

void mu_tls_half_fini(struct mu_tls_half *h)
{
    EVP_CIPHER_CTX_free(h->context);
    OPENSSL_cleanse(h, sizeof(*h));
}

int mu_tls_half_update(struct mu_tls_half *h)
{
    uint8_t next[MU_TLS_SECRET_MAX];

    if (!expand(SSL_CIPHER_get_handshake_digest(h->suite), mu_span(h->secret, h->secret_len),
                "traffic upd", next, h->secret_len)) {
        return MUSTER_ENOMEM;
    }
    memcpy(h->secret, next, h->secret_len);
    OPENSSL_cleanse(next, sizeof(next));
    return use_secret(h);
}

/* The number of the record makes its nonce, and no number comes twice; its head is vouched for. */
static bool begin(struct mu_tls_half *h, const uint8_t head[MU_TLS_RECORD_HEAD])
{
    uint8_t nonce[IV_LEN];
    int len;

    memcpy(nonce, h->iv, sizeof(nonce));
    for (int i = 0; i < 8; i++) {
        nonce[IV_LEN - 1 - i] ^= (uint8_t)(h->count >> (8 * i));
    }
    h->count++;
    return EVP_CipherInit_ex(h->context, NULL, NULL, NULL, nonce, -1) == 1 &&
           EVP_CipherUpdate(h->context, NULL, &len, head, MU_TLS_RECORD_HEAD) == 1;
}

int mu_tls_half_seal(struct mu_tls_half *h, enum mu_tls_type type, struct mu_span in, uint8_t *out)
{
    size_t sealed = in.len + MU_TLS_RECORD_EXTRA - MU_TLS_RECORD_HEAD;
    uint8_t *text = out + MU_TLS_RECORD_HEAD;
    uint8_t last = (uint8_t)type;
    int len;

    MU_ASSERT(in.len <= MU_TLS_RECORD_LONGEST - MU_TLS_RECORD_EXTRA);
    out[0] = MU_TLS_DATA; /* as all look from outside */
    out[1] = 3;
    out[2] = 3;
    out[3] = (uint8_t)(sealed >> 8);
    out[4] = (uint8_t)sealed;
    if (!begin(h, out) ||
        (in.len != 0 && EVP_CipherUpdate(h->context, text, &len, in.data, (int)in.len) != 1) ||
        EVP_CipherUpdate(h->context, text + in.len, &len, &last, 1) != 1 ||
        EVP_CipherFinal_ex(h->context, text + in.len + 1, &len) != 1 ||
        EVP_CIPHER_CTX_ctrl(h->context, EVP_CTRL_AEAD_GET_TAG, TAG_LEN, text + in.len + 1) != 1) {
        return MUSTER_ENOMEM;
    }
    return 0;
}

size_t mu_tls_record_len(const uint8_t head[MU_TLS_RECORD_HEAD])
{
    size_t len = (size_t)head[3] << 8 | head[4];

    return head[0] != MU_TLS_DATA || len < TAG_LEN + 1 || len > MU_TLS_RECORD_LONGEST
               ? 0
               : MU_TLS_RECORD_HEAD + len;
}

int mu_tls_half_open(struct mu_tls_half *h, struct mu_span record, uint8_t *out, uint8_t *ret_type,
                     size_t *ret_len)
{
    size_t n = record.len - MU_TLS_RECORD_EXTRA;
    const uint8_t *text = record.data + MU_TLS_RECORD_HEAD;
    uint8_t none[TAG_LEN];
    uint8_t tag[TAG_LEN];
    uint8_t type = 0;
    int len;

    MU_ASSERT(record.len >= MU_TLS_RECORD_EXTRA);
    memcpy(tag, text + n + 1, TAG_LEN);
    if (!begin(h, record.data) ||
        (n != 0 && EVP_CipherUpdate(h->context, out, &len, text, (int)n) != 1) ||
        EVP_CipherUpdate(h->context, &type, &len, text + n, 1) != 1 ||
        EVP_CIPHER_CTX_ctrl(h->context, EVP_CTRL_AEAD_SET_TAG, TAG_LEN, tag) != 1) {
        return MUSTER_ENOMEM;
    }
    if (EVP_CipherFinal_ex(h->context, none, &len) != 1) {
        return MUSTER_ECORRUPT;
    }
    /* Behind the type there may be zeroes, for show. */
    while (type == 0 && n != 0) {
        type = out[--n];
    }
    *ret_type = type;
    *ret_len = n;
    return 0;
}
