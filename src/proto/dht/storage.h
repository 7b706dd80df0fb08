/*
 * Records of the DHT that a node keeps: a value under a key until it expires, or a dictionary whose
 * subkeys expire one by one. Pure. A node has two: what it was asked to store, and what it has seen
 * on the way (the cache).
 *
 * The rules, which are hivemind's:
 *  - Of two values of a key, or of a subkey, the one that expires later is kept; of two that expire
 *    together the first.
 *  - A dictionary lasts until the latest expiration that was ever offered to it. A regular value is
 *    replaced by a dictionary, and the other way round, if the newcomer expires later.
 *  - What has expired is never given out, and gives its memory back with the next call.
 *
 * And what hivemind does not have: limits, so that nobody can fill a node up. Each has its own
 * error: MUSTER_EDHT_EXPIRED, _FUTURE (expires after the horizon), _OLD (what is there expires no
 * earlier), _VALUE (too long), _SUBKEYS (of one dictionary), _QUOTA (of one peer); MUSTER_EFULL. In
 * a cache the record that expires first makes room instead.
 *
 * Times are seconds since 1970 as a double, as they are on the wire. `from` is whoever brought the
 * record; a NULL is ourselves, whom no quota binds.
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
    uint32_t subkeys_max;      /* of one dictionary. 8,192 */
    uint32_t peer_subkeys_max; /* in one dictionary, from one peer. 1,024 */
    size_t subkey_len_max;     /* 4 KiB: an owner's key has 400 bytes */
    size_t value_len_max;      /* 256 KiB */
    size_t dict_len_max;       /* 2 MiB encoded: what an answer of 4 MiB can carry */
    size_t bytes_max;          /* in all. 256 MiB; a cache: 64 MiB */
    size_t peer_bytes_max;     /* from one peer, with what it costs to keep. An eighth of it */
    double horizon_s;          /* how long a record may last. 30 days; 0: as it likes */
    uint64_t seed;
};

struct mu_dht_owner;

/* A record, as it is lent until the next call. */
struct mu_dht_record {
    struct mu_dht_id key;
    enum mu_dht_found_type type;
    double expiration;
    struct mu_span value; /* FOUND_REGULAR */
    /* private from here */
    struct mu_map_node by_key;
    struct mu_heap_node due;
    struct mu_dht_owner *maker; /* pays for the record itself */
    struct mu_dht_owner *owner; /* and this one for its value */
    struct mu_map subkeys;
    struct mu_map shares;   /* how many of them came from whom */
    struct mu_list entries; /* in the order they came */
    size_t entry_bytes;     /* encoded */
    size_t value_cost;
};

struct mu_dht_storage {
    struct mu_dht_storage_config config;
    struct mu_map by_key;
    struct mu_heap due;     /* records, by the bits of their expiration */
    struct mu_heap sub_due; /* and subkeys */
    struct mu_map owners;   /* what each peer has brought */
    size_t bytes;
    uint64_t refused; /* ever */
};

/** Fills in the defaults of limits that are zero. */
void mu_dht_storage_init(struct mu_dht_storage *s, const struct mu_dht_storage_config *config);
void mu_dht_storage_fini(struct mu_dht_storage *s);

/** Keeps a copy. Errors as above; MUSTER_ENOMEM. Nothing has changed then. */
int mu_dht_storage_put(struct mu_dht_storage *s, double now, const struct mu_peer_id *from,
                       const struct mu_dht_id *key, struct mu_span value, double expiration);
/** The same for one subkey of a dictionary. */
int mu_dht_storage_put_subkey(struct mu_dht_storage *s, double now, const struct mu_peer_id *from,
                              const struct mu_dht_id *key, struct mu_span subkey,
                              struct mu_span value, double expiration);
/** What is kept under the key, or NULL. */
const struct mu_dht_record *mu_dht_storage_get(struct mu_dht_storage *s, double now,
                                               const struct mu_dht_id *key);
/** The next entry of a dictionary; `*walk` starts as NULL. False: that was all. */
bool mu_dht_record_next(const struct mu_dht_record *r, const void **walk, struct mu_dht_entry *ret);
/** Appends the record's value as it goes over the wire. MUSTER_ELIMIT, MUSTER_ENOMEM. */
int mu_dht_record_encode(const struct mu_dht_record *r, struct mu_buf *out);
size_t mu_dht_record_len(const struct mu_dht_record *r);
/** Any order; NULL for the first and behind the last. Nothing may be put between two calls. */
const struct mu_dht_record *mu_dht_storage_next(const struct mu_dht_storage *s,
                                                const struct mu_dht_record *r);
/** Gives back the memory of what has expired; all of the above do it too. */
void mu_dht_storage_expire(struct mu_dht_storage *s, double now);
/** When the next of them expires; infinity: there is none. */
double mu_dht_storage_next_expiration(const struct mu_dht_storage *s);

#endif
