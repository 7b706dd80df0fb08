/*
 * An intrusive hash map keyed by bytes. The node lives inside the element and its key points to
 * bytes that the element keeps as long as it is in the map. Hashes are seeded, so that a client
 * that chooses the keys cannot choose the collisions. Growing moves a few buckets with each
 * insertion, so that no single call stalls the loop.
 *
 * Iteration order depends on the seed; nothing that must be deterministic may depend on it, unless
 * the seed is fixed too.
 */
#ifndef MU_MAP_H
#define MU_MAP_H

#include <stddef.h>
#include <stdint.h>

#include "core/span.h"

struct mu_map_node {
    struct mu_map_node *next;
    uint64_t hash;
    struct mu_span key;
};

struct mu_map {
    struct mu_map_node **buckets;
    size_t bucket_count; /* a power of two, or 0 before the first insertion */
    size_t moved;        /* buckets of `old` that were moved already */
    struct mu_map_node **old;
    size_t old_count;
    size_t count;
    uint64_t seed;
};

void mu_map_init(struct mu_map *m, uint64_t seed);
/** Frees the table, not the elements. */
void mu_map_fini(struct mu_map *m);
/** The element with that key, or NULL. */
struct mu_map_node *mu_map_find(const struct mu_map *m, struct mu_span key);
/** As mu_map_find(), with the hash taken once by mu_map_hash() for a find and an insertion. */
struct mu_map_node *mu_map_find_hash(const struct mu_map *m, struct mu_span key, uint64_t hash);
uint64_t mu_map_hash(const struct mu_map *m, struct mu_span key);
/**
 * Adds `node` under `key`, which must not be in the map. MUSTER_ENOMEM is possible only for the
 * very first table; a table that cannot grow goes on with longer chains.
 */
int mu_map_insert(struct mu_map *m, struct mu_map_node *node, struct mu_span key);
int mu_map_insert_hash(struct mu_map *m, struct mu_map_node *node, struct mu_span key,
                       uint64_t hash);
/** Takes out a node that is in the map. */
void mu_map_remove(struct mu_map *m, struct mu_map_node *node);
/**
 * Any order: pass NULL for the first, the last result for the next; NULL at the end. The element
 * just returned may be removed only after its successor was asked for; nothing may be inserted.
 */
struct mu_map_node *mu_map_next(const struct mu_map *m, const struct mu_map_node *node);

#endif
