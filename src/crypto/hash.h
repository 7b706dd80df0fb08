/* Hashes. Pure; cannot fail. */
#ifndef MU_HASH_H
#define MU_HASH_H

#include "core/span.h"

#define MU_SHA256_LEN 32
#define MU_SHA1_LEN   20
#define MU_SHA512_LEN 64

void mu_sha256(uint8_t ret[MU_SHA256_LEN], struct mu_span in);
/** The hash of two spans, one after the other. */
void mu_sha256_pair(uint8_t ret[MU_SHA256_LEN], struct mu_span a, struct mu_span b);
/* SHA-256 of input that comes in pieces. Each thread may have its own. */
struct mu_sha256 {
    uint64_t opaque[16];
};

void mu_sha256_begin(struct mu_sha256 *h);
void mu_sha256_add(struct mu_sha256 *h, struct mu_span in);
/** Adds `x` to one and `y` to another. On processors with instructions for SHA-256 this takes
 * little longer than one of them alone; it is fastest if both have the same length. */
void mu_sha256_add_two(struct mu_sha256 *a, struct mu_span x, struct mu_sha256 *b,
                       struct mu_span y);
/** Writes the hash; call mu_sha256_init() before using `h` again. */
void mu_sha256_end(struct mu_sha256 *h, uint8_t ret[MU_SHA256_LEN]);
/** For the ids of hivemind's DHT; nothing here relies on it being hard to invert. */
void mu_sha1(uint8_t ret[MU_SHA1_LEN], struct mu_span in);
void mu_sha512(uint8_t ret[MU_SHA512_LEN], struct mu_span in);
/** HMAC-SHA-256 of two spans, one after the other. */
void mu_hmac_sha256(uint8_t ret[MU_SHA256_LEN], struct mu_span key, struct mu_span a,
                    struct mu_span b);

#endif
