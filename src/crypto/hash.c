#include "crypto/hash.h"

#include <openssl/evp.h>
#include <openssl/sha.h>

#include "core/assert.h"
#include "crypto/sha256_two.h"

#define BLOCK_LEN 64

void mu_sha256(uint8_t ret[MU_SHA256_LEN], struct mu_span in)
{
    (void)SHA256(in.data, in.len, ret);
}

void mu_sha1(uint8_t ret[MU_SHA1_LEN], struct mu_span in)
{
    (void)SHA1(in.data, in.len, ret);
}

void mu_sha512(uint8_t ret[MU_SHA512_LEN], struct mu_span in)
{
    (void)SHA512(in.data, in.len, ret);
}

/*
 * The functions with a context of their own are called deprecated, but take no memory, need no
 * lookup by name, and so cannot fail; those that replace them can.
 */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

void mu_sha256_pair(uint8_t ret[MU_SHA256_LEN], struct mu_span a, struct mu_span b)
{
    SHA256_CTX sha;

    (void)SHA256_Init(&sha);
    (void)SHA256_Update(&sha, a.data, a.len);
    (void)SHA256_Update(&sha, b.data, b.len);
    (void)SHA256_Final(ret, &sha);
}

_Static_assert(sizeof(SHA256_CTX) <= sizeof(struct mu_sha256), "the context must fit");

void mu_sha256_begin(struct mu_sha256 *h)
{
    (void)SHA256_Init((SHA256_CTX *)h);
}

void mu_sha256_add(struct mu_sha256 *h, struct mu_span in)
{
    (void)SHA256_Update((SHA256_CTX *)h, in.data, in.len);
}

/* Fills the block up, so that what is added next begins a new block. */
static struct mu_span fill_block(SHA256_CTX *sha, struct mu_span in)
{
    size_t n = sha->num == 0 ? 0 : BLOCK_LEN - sha->num;

    n = n < in.len ? n : in.len;
    (void)SHA256_Update(sha, in.data, n);
    return mu_span_skip(in, n);
}

/* Counts bytes that were hashed without SHA256_Update(). */
static void count_bytes(SHA256_CTX *sha, size_t n)
{
    uint64_t bits = ((uint64_t)sha->Nh << 32 | sha->Nl) + (uint64_t)n * 8;

    sha->Nl = (SHA_LONG)bits;
    sha->Nh = (SHA_LONG)(bits >> 32);
}

void mu_sha256_add_two(struct mu_sha256 *a, struct mu_span x, struct mu_sha256 *b, struct mu_span y)
{
    SHA256_CTX *first = (SHA256_CTX *)a;
    SHA256_CTX *second = (SHA256_CTX *)b;

    if (mu_sha256_two_can()) {
        size_t n;

        x = fill_block(first, x);
        y = fill_block(second, y);
        n = (x.len < y.len ? x.len : y.len) / BLOCK_LEN;
        if (n != 0) {
            mu_sha256_two_blocks(first->h, x.data, second->h, y.data, n);
            count_bytes(first, n * BLOCK_LEN);
            count_bytes(second, n * BLOCK_LEN);
            x = mu_span_skip(x, n * BLOCK_LEN);
            y = mu_span_skip(y, n * BLOCK_LEN);
        }
    }
    (void)SHA256_Update(first, x.data, x.len);
    (void)SHA256_Update(second, y.data, y.len);
}

void mu_sha256_end(struct mu_sha256 *h, uint8_t ret[MU_SHA256_LEN])
{
    (void)SHA256_Final(ret, (SHA256_CTX *)h);
}

void mu_hmac_sha256(uint8_t ret[MU_SHA256_LEN], struct mu_span key, struct mu_span a,
                    struct mu_span b)
{
    uint8_t pad[BLOCK_LEN] = {0};
    uint8_t inner[MU_SHA256_LEN];
    SHA256_CTX sha;

    MU_ASSERT(key.len <= BLOCK_LEN);
    if (key.len != 0) {
        memcpy(pad, key.data, key.len);
    }
    for (size_t i = 0; i < BLOCK_LEN; i++) {
        pad[i] ^= 0x36;
    }
    (void)SHA256_Init(&sha);
    (void)SHA256_Update(&sha, pad, sizeof(pad));
    (void)SHA256_Update(&sha, a.data, a.len);
    (void)SHA256_Update(&sha, b.data, b.len);
    (void)SHA256_Final(inner, &sha);
    for (size_t i = 0; i < BLOCK_LEN; i++) {
        pad[i] ^= 0x36 ^ 0x5c;
    }
    (void)SHA256_Init(&sha);
    (void)SHA256_Update(&sha, pad, sizeof(pad));
    (void)SHA256_Update(&sha, inner, sizeof(inner));
    (void)SHA256_Final(ret, &sha);
    explicit_bzero(pad, sizeof(pad));
    explicit_bzero(inner, sizeof(inner));
    explicit_bzero(&sha, sizeof(sha));
}

#pragma GCC diagnostic pop
