/*
 * Records of the DHT that a node keeps: a value under a key until it expires, or a dictionary whose
 * subkeys expire one by one. Pure. A node has two storages: what it was asked to store, and what it
 * has seen in searches (the cache).
 *
 * The rules, which are hivemind's:
 *  - Of two values of a key, or of a subkey, the one that expires later is kept; of two that expire
 *    together, the first.
 *  - A dictionary lasts until the latest expiration that was ever offered to it. A regular value is
 *    replaced by a dictionary, and the other way round, if the new one expires later.
 *  - An expired record is never returned, and the next call frees its memory.
 *
 * hivemind does not have limits; these keep other nodes from filling a node up. Each has its own
 * error: MUSTER_EDHT_EXPIRED, _FUTURE (expires after the horizon), _OLD (the kept record expires no
 * earlier), _VALUE (too long), _SUBKEYS (of one dictionary), _QUOTA (of one peer); MUSTER_EFULL. In
 * a cache the record that expires first makes room instead.
 *
 * Times are seconds since 1970 as a double, as they are on the wire. `from` is the peer that sent
 * the record; NULL is ourselves, and no quota applies to us.
 */
#ifndef MU_DHT_STORAGE_H
#define MU_DHT_STORAGE_H

#include <stdbool.h>

#include "codec/dht/dict.h"
#include "codec/dht/id.h"
#include "codec/dht/msg.h"
#include "codec/peer/id.h"
#include "core/buf.h"
#include "core/heap.h"
#include "core/list.h"
#include "core/map.h"

struct mu_dht_storage_config {
    bool cache;                /* evicts instead of refusing */
    uint32_t records_max;      /* 65,536; a cache: 16,384 */
    uint32_t peer_records_max; /* from one peer. An eighth of records_max */
    uint32_t subkeys_max;      /* of one dictionary. 8,192 */
    uint32_t peer_subkeys_max; /* of one dictionary, from one peer. 1,024 */
    size_t subkey_len_max;     /* 4 KiB: an owner's key has 400 bytes */
    size_t value_len_max;      /* 256 KiB */
    size_t dict_len_max;       /* 2 MiB encoded: what an answer of 4 MiB can carry */
    size_t bytes_max;          /* in all. 256 MiB; a cache: 64 MiB */
    size_t peer_bytes_max;     /* from one peer, with the cost of keeping it. An eighth of
                                  bytes_max */
    double horizon_s;          /* how long a record may last. 30 days; 0: no limit */
    uint64_t seed;
};

struct mu_dht_owner;

/* A record, lent until the next call. */
struct mu_dht_record {
    struct mu_dht_id key;
    enum mu_dht_found_type type;
    double expiration;
    struct mu_span value; /* FOUND_REGULAR */
    /* private */
    struct mu_map_node by_key;
    struct mu_heap_node due;
    struct mu_dht_owner *maker; /* the record itself counts against this peer */
    struct mu_dht_owner *owner; /* its value counts against this peer */
    struct mu_map subkeys;
    struct mu_map shares;   /* how many of them came from each peer */
    struct mu_list entries; /* in the order in which they came */
    size_t entry_bytes;     /* encoded */
    size_t value_cost;
};

struct mu_dht_storage {
    struct mu_dht_storage_config config;
    struct mu_map by_key;
    struct mu_heap due;     /* records, by the bits of their expiration */
    struct mu_heap sub_due; /* subkeys, likewise */
    struct mu_map owners;   /* what each peer has stored */
    size_t bytes;
    uint64_t refused; /* ever */
};

/** Fills in the defaults of limits that are zero. */
void mu_dht_storage_init(struct mu_dht_storage *s, const struct mu_dht_storage_config *config);
void mu_dht_storage_fini(struct mu_dht_storage *s);

/** Keeps a copy. Returns the errors above or MUSTER_ENOMEM, and has changed nothing then. */
int mu_dht_storage_put(struct mu_dht_storage *s, double now, const struct mu_peer_id *from,
                       const struct mu_dht_id *key, struct mu_span value, double expiration);
/** The same for one subkey of a dictionary. */
int mu_dht_storage_put_subkey(struct mu_dht_storage *s, double now, const struct mu_peer_id *from,
                              const struct mu_dht_id *key, struct mu_span subkey,
                              struct mu_span value, double expiration);
/** Returns the record of the key, or NULL. */
const struct mu_dht_record *mu_dht_storage_get(struct mu_dht_storage *s, double now,
                                               const struct mu_dht_id *key);
/** Returns the next entry of a dictionary; `*walk` starts as NULL. False: there are no more. */
bool mu_dht_record_next(const struct mu_dht_record *r, const void **walk, struct mu_dht_entry *ret);
/** Appends the record's value as it goes over the wire. MUSTER_ELIMIT, MUSTER_ENOMEM. */
int mu_dht_record_encode(const struct mu_dht_record *r, struct mu_buf *out);
size_t mu_dht_record_len(const struct mu_dht_record *r);
/** Returns the record after `record`, in any order; NULL begins and ends the walk. Nothing may be
 * stored between two calls. */
const struct mu_dht_record *mu_dht_storage_next(const struct mu_dht_storage *s,
                                                const struct mu_dht_record *r);
/** Frees the memory of expired records; all functions above do it too. */
void mu_dht_storage_expire(struct mu_dht_storage *s, double now);
/** Returns when the next record expires; infinity: there is no record. */
double mu_dht_storage_next_expiration(const struct mu_dht_storage *s);

#endif
