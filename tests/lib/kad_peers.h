/*
 * Peers for tests of a search in libp2p's DHT, named by their distance: number 1 is the nearest to
 * the target, KAD_PEERS the farthest. Number 0 is the target itself.
 */
#ifndef MU_TEST_KAD_PEERS_H
#define MU_TEST_KAD_PEERS_H

#include <stdlib.h>
#include <string.h>

#include "proto/peer/kad_search.h"

#define KAD_PEERS 400

static struct mu_peer_id kad_peer[KAD_PEERS + 1];

/* The hash of a key, as peers with RSA keys have it; `n` stands for the key. */
static inline struct mu_peer_id kad_make_peer(uint16_t n)
{
    struct mu_peer_id id = {.len = 34, .bytes = {0x12, 0x20}};

    memcpy(&id.bytes[2], &(uint8_t[]){(uint8_t)(n >> 8), (uint8_t)n}, 2);
    return id;
}

static inline int kad_compare(const void *a, const void *b)
{
    uint8_t key[MU_SHA256_LEN];
    uint8_t x[MU_SHA256_LEN];
    uint8_t y[MU_SHA256_LEN];

    mu_sha256(key, mu_peer_id_span(&kad_peer[0]));
    mu_sha256(x, mu_peer_id_span(a));
    mu_sha256(y, mu_peer_id_span(b));
    for (size_t i = 0; i < MU_SHA256_LEN; i++) {
        x[i] ^= key[i];
        y[i] ^= key[i];
    }
    return memcmp(x, y, sizeof(x));
}

static inline void kad_make_peers(void)
{
    for (uint16_t n = 0; n <= KAD_PEERS; n++) {
        kad_peer[n] = kad_make_peer(n);
    }
    qsort(&kad_peer[1], KAD_PEERS, sizeof(kad_peer[0]), kad_compare);
}

/** The number of a peer. Those that were not made here are 1 above the last. */
static inline unsigned kad_number(const struct mu_peer_id *peer)
{
    unsigned n = 0;

    while (n <= KAD_PEERS && !mu_peer_id_eq(&kad_peer[n], peer)) {
        n++;
    }
    return n;
}

#endif
