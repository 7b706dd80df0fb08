#include "crypto/hash.h"

#include <openssl/evp.h>
#include <openssl/sha.h>

#include "core/assert.h"

#define BLOCK_LEN 64

void mu_sha256(uint8_t ret[MU_SHA256_LEN], struct mu_span in)
{
    (void)SHA256(in.data, in.len, ret);
}

void mu_sha1(uint8_t ret[MU_SHA1_LEN], struct mu_span in)
{
    (void)SHA1(in.data, in.len, ret);
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
