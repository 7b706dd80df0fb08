/*
 * Internals of peer routing: kad.c has the table and the serving side, kad_find.c the searches.
 */
#ifndef MU_KAD_INTERNAL_H
#define MU_KAD_INTERNAL_H

#include "codec/peer/kad_msg.h"
#include "crypto/hash.h"
#include "proto/peer/kad_search.h"
#include "service/peer/kad.h"

struct mu_kad_entry {
    struct mu_peer_id id;
    uint8_t key[MU_SHA256_LEN];
};

struct mu_kad {
    struct mu_peer_host *host;
    struct mu_kad_config config;
    uint8_t key[MU_SHA256_LEN]; /* our own */
    struct mu_peer_handler handler;
    struct mu_peer_router router;
    struct mu_peer_watch watch;
    struct mu_kad_entry *table;
    size_t count;
    struct mu_list serving;  /* struct serving */
    struct mu_list searches; /* struct search */
    struct mu_list asks;     /* struct ask that were answered */
    struct mu_timer timer;   /* the next refresh */
    struct mu_timer soon;    /* reports searches that are over */
    struct mu_kad_stats stats;
};

/** The peer speaks the protocol. */
void mu_kad_remember(struct mu_kad *kad, const struct mu_peer_id *peer);
/** The peer does not answer. */
void mu_kad_forget(struct mu_kad *kad, const struct mu_peer_id *peer);

void mu_kad_find_init(struct mu_kad *kad);
void mu_kad_find_fini(struct mu_kad *kad);
/** Searches for a peer, and tells the host when that is over. For ourselves, the host is not
 * told. */
void mu_kad_find(struct mu_kad *kad, const struct mu_peer_id *target);

#endif
