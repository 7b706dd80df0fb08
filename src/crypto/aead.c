#include "crypto/aead.h"

#include <limits.h>

#include <openssl/evp.h>

#include <muster/error.h>

#include "core/assert.h"
#include "core/buf.h"

#define NONCE_LEN 12

/* The cipher goes over a text twice, once for each of its halves. In pieces of this length, the
 * second pass finds the text in the processor's nearest cache. A multiple of ChaCha20's block. */
#define PIECE_LEN 8192

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

/* Runs the cipher over the next part of the text, which follows its first `*done` bytes. */
static bool run_part(EVP_CIPHER_CTX *context, struct mu_span in, uint8_t *out, size_t *done)
{
    while (in.len != 0) {
        size_t piece = PIECE_LEN - *done % PIECE_LEN;
        int len;

        piece = piece < in.len ? piece : in.len;
        if (EVP_CipherUpdate(context, out + *done, &len, in.data, (int)piece) != 1) {
            return false;
        }
        in = mu_span_skip(in, piece);
        *done += piece;
    }
    return true;
}

/* The counter, then the extra data. */
static bool begin(EVP_CIPHER_CTX *context, uint64_t counter, struct mu_span extra)
{
    uint8_t nonce[NONCE_LEN];
    int len;

    MU_ASSERT(extra.len <= INT_MAX);
    make_nonce(nonce, counter);
    return EVP_CipherInit_ex(context, NULL, NULL, NULL, nonce, -1) == 1 &&
           (extra.len == 0 ||
            EVP_CipherUpdate(context, NULL, &len, extra.data, (int)extra.len) == 1);
}

int mu_aead_sealv(struct mu_aead *a, uint64_t counter, struct mu_span extra,
                  const struct mu_span *in, size_t count, uint8_t *out)
{
    uint8_t none[MU_AEAD_TAG_LEN];
    size_t done = 0;
    int len;

    if (!begin(a->context, counter, extra)) {
        return MUSTER_ENOMEM;
    }
    for (size_t i = 0; i < count; i++) {
        if (!run_part(a->context, in[i], out, &done)) {
            return MUSTER_ENOMEM;
        }
    }
    if (EVP_CipherFinal_ex(a->context, none, &len) != 1 ||
        EVP_CIPHER_CTX_ctrl(a->context, EVP_CTRL_AEAD_GET_TAG, MU_AEAD_TAG_LEN, out + done) != 1) {
        return MUSTER_ENOMEM;
    }
    return 0;
}

int mu_aead_open(struct mu_aead *a, uint64_t counter, struct mu_span extra, struct mu_span in,
                 uint8_t *out)
{
    uint8_t tag[MU_AEAD_TAG_LEN];
    uint8_t none[MU_AEAD_TAG_LEN];
    size_t done = 0;
    int len;

    if (in.len < MU_AEAD_TAG_LEN) {
        return MUSTER_ECORRUPT;
    }
    in.len -= MU_AEAD_TAG_LEN;
    memcpy(tag, in.data + in.len, sizeof(tag));
    if (!begin(a->context, counter, extra) || !run_part(a->context, in, out, &done) ||
        EVP_CIPHER_CTX_ctrl(a->context, EVP_CTRL_AEAD_SET_TAG, MU_AEAD_TAG_LEN, tag) != 1) {
        return MUSTER_ENOMEM;
    }
    return EVP_CipherFinal_ex(a->context, none, &len) == 1 ? 0 : MUSTER_ECORRUPT;
}
