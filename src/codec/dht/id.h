/*
 * Ids in the DHT: 160 bits for nodes and keys alike, big-endian, and the distance between two of
 * them, which is their XOR as a number.
 */
#ifndef MU_DHT_ID_H
#define MU_DHT_ID_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "core/span.h"

#define MU_DHT_ID_LEN  20
#define MU_DHT_ID_BITS 160

struct mu_dht_id {
    uint8_t bytes[MU_DHT_ID_LEN];
};

static inline struct mu_span mu_dht_id_span(const struct mu_dht_id *id)
{
    return mu_span(id->bytes, MU_DHT_ID_LEN);
}

static inline bool mu_dht_id_eq(const struct mu_dht_id *a, const struct mu_dht_id *b)
{
    return memcmp(a->bytes, b->bytes, MU_DHT_ID_LEN) == 0;
}

/** False: the length is wrong. */
static inline bool mu_dht_id_from(struct mu_dht_id *ret, struct mu_span bytes)
{
    if (bytes.len != MU_DHT_ID_LEN) {
        return false;
    }
    memcpy(ret->bytes, bytes.data, MU_DHT_ID_LEN);
    return true;
}

static inline struct mu_dht_id mu_dht_distance(const struct mu_dht_id *a, const struct mu_dht_id *b)
{
    struct mu_dht_id d;

    for (int i = 0; i < MU_DHT_ID_LEN; i++) {
        d.bytes[i] = a->bytes[i] ^ b->bytes[i];
    }
    return d;
}

/** Below zero if `a` is nearer to `target` than `b` is, zero if they are the same. */
static inline int mu_dht_nearer(const struct mu_dht_id *target, const struct mu_dht_id *a,
                                const struct mu_dht_id *b)
{
    for (int i = 0; i < MU_DHT_ID_LEN; i++) {
        int x = a->bytes[i] ^ target->bytes[i];
        int y = b->bytes[i] ^ target->bytes[i];

        if (x != y) {
            return x - y;
        }
    }
    return 0;
}

/** Bit `n` counted from the most significant. */
static inline bool mu_dht_id_bit(const struct mu_dht_id *id, unsigned n)
{
    return (id->bytes[n / 8] >> (7 - n % 8) & 1) != 0;
}

#endif
