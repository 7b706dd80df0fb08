/*
 * ChaCha20-Poly1305 (RFC 8439) with a counter for a nonce, as Noise uses it. One struct is one key
 * in one direction. Pure: what comes out depends on what goes in.
 */
#ifndef MU_AEAD_H
#define MU_AEAD_H

#include <stdbool.h>

#include "core/span.h"

#define MU_AEAD_KEY_LEN 32
#define MU_AEAD_TAG_LEN 16

enum mu_aead_use {
    MU_AEAD_SEAL = 1,
    MU_AEAD_OPEN,
};

struct mu_aead {
    void *context; /* NULL: no key */
};

/** MUSTER_ENOMEM. */
int mu_aead_init(struct mu_aead *a, enum mu_aead_use use, const uint8_t key[MU_AEAD_KEY_LEN]);
/** Also of a zeroed one. The key is wiped. */
void mu_aead_fini(struct mu_aead *a);

/** Writes in.len + MU_AEAD_TAG_LEN bytes to `out`, which may be where `in` is. MUSTER_ENOMEM. */
int mu_aead_seal(struct mu_aead *a, uint64_t counter, struct mu_span extra, struct mu_span in,
                 uint8_t *out);
/**
 * Writes in.len - MU_AEAD_TAG_LEN bytes to `out`, which may be where `in` is. MUSTER_ECORRUPT: it
 * is too short, or was not sealed so; what `out` holds then is of no use. MUSTER_ENOMEM.
 */
int mu_aead_open(struct mu_aead *a, uint64_t counter, struct mu_span extra, struct mu_span in,
                 uint8_t *out);

#endif
