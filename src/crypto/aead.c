#include "crypto/aead.h"

#include <limits.h>

#include <openssl/evp.h>

#include <muster/error.h>

#include "core/assert.h"
#include "core/buf.h"

#define NONCE_LEN 12

int mu_aead_init(struct mu_aead *a, enum mu_aead_use use, const uint8_t key[MU_AEAD_KEY_LEN])
{
    EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();

    if (context == NULL) {
        return MUSTER_ENOMEM;
    }
    if (EVP_CipherInit_ex(context, EVP_chacha20_poly1305(), NULL, key, NULL, use == MU_AEAD_SEAL) !=
        1) {
        EVP_CIPHER_CTX_free(context);
        return MUSTER_ENOMEM;
    }
    a->context = context;
    return 0;
}

void mu_aead_fini(struct mu_aead *a)
{
    EVP_CIPHER_CTX_free(a->context);
    a->context = NULL;
}

/* Four zero bytes, then the counter, little-endian. */
static void make_nonce(uint8_t nonce[NONCE_LEN], uint64_t counter)
{
    memset(nonce, 0, 4);
    mu_put_u64(nonce + 4, counter);
}

/* The extra data, then all of the text. */
static bool run(EVP_CIPHER_CTX *context, struct mu_span extra, struct mu_span in, uint8_t *out)
{
    int len;

    MU_ASSERT(in.len <= INT_MAX && extra.len <= INT_MAX);
    if (extra.len != 0 && EVP_CipherUpdate(context, NULL, &len, extra.data, (int)extra.len) != 1) {
        return false;
    }
    return in.len == 0 || EVP_CipherUpdate(context, out, &len, in.data, (int)in.len) == 1;
}

int mu_aead_seal(struct mu_aead *a, uint64_t counter, struct mu_span extra, struct mu_span in,
                 uint8_t *out)
{
    uint8_t nonce[NONCE_LEN];
    uint8_t none[MU_AEAD_TAG_LEN];
    int len;

    make_nonce(nonce, counter);
    if (EVP_CipherInit_ex(a->context, NULL, NULL, NULL, nonce, -1) != 1 ||
        !run(a->context, extra, in, out) || EVP_CipherFinal_ex(a->context, none, &len) != 1 ||
        EVP_CIPHER_CTX_ctrl(a->context, EVP_CTRL_AEAD_GET_TAG, MU_AEAD_TAG_LEN, out + in.len) !=
            1) {
        return MUSTER_ENOMEM;
    }
    return 0;
}

int mu_aead_open(struct mu_aead *a, uint64_t counter, struct mu_span extra, struct mu_span in,
                 uint8_t *out)
{
    uint8_t nonce[NONCE_LEN];
    uint8_t tag[MU_AEAD_TAG_LEN];
    uint8_t none[MU_AEAD_TAG_LEN];
    int len;

    if (in.len < MU_AEAD_TAG_LEN) {
        return MUSTER_ECORRUPT;
    }
    in.len -= MU_AEAD_TAG_LEN;
    memcpy(tag, in.data + in.len, sizeof(tag));
    make_nonce(nonce, counter);
    if (EVP_CipherInit_ex(a->context, NULL, NULL, NULL, nonce, -1) != 1 ||
        !run(a->context, extra, in, out) ||
        EVP_CIPHER_CTX_ctrl(a->context, EVP_CTRL_AEAD_SET_TAG, MU_AEAD_TAG_LEN, tag) != 1) {
        return MUSTER_ENOMEM;
    }
    return EVP_CipherFinal_ex(a->context, none, &len) == 1 ? 0 : MUSTER_ECORRUPT;
}
