#include "core/map.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "core/err.h"

#define FIRST_BUCKETS   16
#define MOVE_PER_INSERT 4

void mu_map_init(struct mu_map *m, uint64_t seed)
{
    *m = (struct mu_map){.seed = seed};
}

void mu_map_fini(struct mu_map *m)
{
    mu_free(m->buckets);
    mu_free(m->old);
    *m = (struct mu_map){.seed = m->seed};
}

uint64_t mu_map_hash(const struct mu_map *m, struct mu_span key)
{
    return XXH3_64bits_withSeed(key.data, key.len, m->seed);
}

/*
 * The bucket that holds (or would hold) a hash. While a table is being moved, buckets below `moved`
 * of the old one are empty and their elements are in the new one.
 */
static struct mu_map_node **bucket_of(const struct mu_map *m, uint64_t hash)
{
    if (m->old != NULL && (hash & (m->old_count - 1)) >= m->moved) {
        return &m->old[hash & (m->old_count - 1)];
    }
    return &m->buckets[hash & (m->bucket_count - 1)];
}

struct mu_map_node *mu_map_find_hash(const struct mu_map *m, struct mu_span key, uint64_t hash)
{
    if (m->buckets == NULL) {
        return NULL;
    }
    for (struct mu_map_node *n = *bucket_of(m, hash); n != NULL; n = n->next) {
        if (n->hash == hash && mu_span_eq(n->key, key)) {
            return n;
        }
    }
    return NULL;
}

struct mu_map_node *mu_map_find(const struct mu_map *m, struct mu_span key)
{
    return mu_map_find_hash(m, key, mu_map_hash(m, key));
}

static void move_some(struct mu_map *m, size_t buckets)
{
    while (m->old != NULL && buckets-- > 0) {
        struct mu_map_node *n = m->old[m->moved];

        m->old[m->moved++] = NULL;
        while (n != NULL) {
            struct mu_map_node *next = n->next;
            struct mu_map_node **to = &m->buckets[n->hash & (m->bucket_count - 1)];

            n->next = *to;
            *to = n;
            n = next;
        }
        if (m->moved == m->old_count) {
            mu_free(m->old);
            m->old = NULL;
            m->old_count = 0;
            m->moved = 0;
        }
    }
}

static void start_growing(struct mu_map *m)
{
    struct mu_map_node **bigger = mu_calloc(m->bucket_count * 2, sizeof(*bigger));

    if (bigger == NULL) {
        return; /* Longer chains are slower, not wrong. */
    }
    m->old = m->buckets;
    m->old_count = m->bucket_count;
    m->moved = 0;
    m->buckets = bigger;
    m->bucket_count *= 2;
}

int mu_map_insert_hash(struct mu_map *m, struct mu_map_node *node, struct mu_span key,
                       uint64_t hash)
{
    struct mu_map_node **bucket;

    if (m->buckets == NULL) {
        m->buckets = mu_calloc(FIRST_BUCKETS, sizeof(*m->buckets));
        if (m->buckets == NULL) {
            return MUSTER_ENOMEM;
        }
        m->bucket_count = FIRST_BUCKETS;
    }
    if (m->old != NULL) {
        move_some(m, MOVE_PER_INSERT);
    } else if (m->count >= m->bucket_count) {
        start_growing(m);
    }
    node->hash = hash;
    node->key = key;
    bucket = bucket_of(m, hash);
    node->next = *bucket;
    *bucket = node;
    m->count++;
    return 0;
}

int mu_map_insert(struct mu_map *m, struct mu_map_node *node, struct mu_span key)
{
    return mu_map_insert_hash(m, node, key, mu_map_hash(m, key));
}

void mu_map_remove(struct mu_map *m, struct mu_map_node *node)
{
    struct mu_map_node **at = bucket_of(m, node->hash);

    while (*at != node) {
        MU_ASSERT(*at != NULL);
        at = &(*at)->next;
    }
    *at = node->next;
    node->next = NULL;
    m->count--;
}

/* The first element in old buckets from `oi` on, then in new buckets from `ni` on. */
static struct mu_map_node *first_from(const struct mu_map *m, size_t oi, size_t ni)
{
    for (; m->old != NULL && oi < m->old_count; oi++) {
        if (m->old[oi] != NULL) {
            return m->old[oi];
        }
    }
    for (; ni < m->bucket_count; ni++) {
        if (m->buckets[ni] != NULL) {
            return m->buckets[ni];
        }
    }
    return NULL;
}

struct mu_map_node *mu_map_next(const struct mu_map *m, const struct mu_map_node *node)
{
    if (node == NULL) {
        return first_from(m, 0, 0);
    }
    if (node->next != NULL) {
        return node->next;
    }
    if (m->old != NULL && (node->hash & (m->old_count - 1)) >= m->moved) {
        return first_from(m, (node->hash & (m->old_count - 1)) + 1, 0);
    }
    return first_from(m, m->old_count, (node->hash & (m->bucket_count - 1)) + 1);
}
