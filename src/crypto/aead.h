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
/** Wipes the key. A zeroed struct is fine. */
void mu_aead_fini(struct mu_aead *a);

/**
 * Seals `count` spans, one after the other, as one text; writes MU_AEAD_TAG_LEN bytes more than
 * they have to `out`, which may be the place of a single span. MUSTER_ENOMEM.
 */
int mu_aead_sealv(struct mu_aead *a, uint64_t counter, struct mu_span extra,
                  const struct mu_span *in, size_t count, uint8_t *out);

static inline int mu_aead_seal(struct mu_aead *a, uint64_t counter, struct mu_span extra,
                               struct mu_span in, uint8_t *out)
{
    return mu_aead_sealv(a, counter, extra, &in, 1, out);
}

/**
 * Writes in.len - MU_AEAD_TAG_LEN bytes to `out`, which may be the place of `in`. MUSTER_ECORRUPT:
 * the input is too short, or was not sealed with this key and counter; `out` then holds nothing of
 * use. MUSTER_ENOMEM.
 */
int mu_aead_open(struct mu_aead *a, uint64_t counter, struct mu_span extra, struct mu_span in,
                 uint8_t *out);

#endif
