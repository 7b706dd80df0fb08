/*
 * Peer routing from inside: kad.c has the table and what is served, kad_search.c the searches.
 */
#ifndef MU_KAD_INTERNAL_H
#define MU_KAD_INTERNAL_H

#include "codec/kad_msg.h"
#include "crypto/hash.h"
#include "service/kad.h"

#define MU_KAD_PEERS_MAX 64 /* of one answer that are looked at */

struct mu_kad_entry {
    struct mu_peer_id id;
    uint8_t key[MU_SHA256_LEN];
};

struct mu_kad {
    struct mu_peer_host *host;
    struct mu_kad_config config;
    uint8_t key[MU_SHA256_LEN]; /* ours */
    struct mu_peer_handler handler;
    struct mu_peer_router router;
    struct mu_peer_watch watch;
    struct mu_kad_entry *table;
    size_t count;
    struct mu_list serving;  /* struct serving */
    struct mu_list searches; /* struct mu_kad_search */
    struct mu_list asks;     /* struct ask whose search is over, or which have been answered */
    struct mu_timer timer;   /* the next refresh */
    struct mu_timer soon;    /* searches that are over are told */
    struct mu_kad_stats stats;
};

/** Whether `a` is nearer to `key` than `b`. */
bool mu_kad_nearer(const uint8_t key[MU_SHA256_LEN], const uint8_t a[MU_SHA256_LEN],
                   const uint8_t b[MU_SHA256_LEN]);
/** It speaks the protocol. */
void mu_kad_remember(struct mu_kad *kad, const struct mu_peer_id *peer);
/** It does not answer. */
void mu_kad_forget(struct mu_kad *kad, const struct mu_peer_id *peer);

void mu_kad_search_init(struct mu_kad *kad);
void mu_kad_search_fini(struct mu_kad *kad);
/** Looks for a peer; for ourselves, nobody is told. */
void mu_kad_search(struct mu_kad *kad, const struct mu_peer_id *target);

#endif
