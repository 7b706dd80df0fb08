#include "proto/dht/table.h"

#include <muster/error.h>

#include "core/alloc.h"
#include "core/assert.h"

enum {
    BUCKET_SIZE = 20,
    DEPTH_MODULO = 5,
    NODES_MAX = 4096,
};

static struct mu_dht_bucket *new_bucket(const struct mu_dht_id *low, unsigned depth)
{
    struct mu_dht_bucket *b = mu_calloc(1, sizeof(*b));

    if (b != NULL) {
        b->low = *low;
        b->depth = depth;
        mu_list_init(&b->nodes);
        mu_list_init(&b->spares);
    }
    return b;
}

int mu_dht_table_init(struct mu_dht_table *t, const struct mu_dht_table_config *config)
{
    static const struct mu_dht_id zero;

    *t = (struct mu_dht_table){.config = *config};
    t->config.bucket_size = config->bucket_size != 0 ? config->bucket_size : BUCKET_SIZE;
    t->config.depth_modulo = config->depth_modulo != 0 ? config->depth_modulo : DEPTH_MODULO;
    t->config.nodes_max = config->nodes_max != 0 ? config->nodes_max : NODES_MAX;
    mu_map_init(&t->by_node, config->seed);
    mu_map_init(&t->by_peer, config->seed);
    t->buckets = mu_calloc(1, sizeof(*t->buckets));
    if (t->buckets == NULL) {
        return MUSTER_ENOMEM;
    }
    t->buckets[0] = new_bucket(&zero, 0);
    if (t->buckets[0] == NULL) {
        mu_free(t->buckets);
        return MUSTER_ENOMEM;
    }
    t->bucket_count = 1;
    t->bucket_cap = 1;
    return 0;
}

void mu_dht_table_fini(struct mu_dht_table *t)
{
    for (size_t i = 0; i < t->bucket_count; i++) {
        struct mu_list *const lists[] = {&t->buckets[i]->nodes, &t->buckets[i]->spares};

        for (size_t j = 0; j < 2; j++) {
            struct mu_list *node;

            while ((node = mu_list_pop(lists[j])) != NULL) {
                mu_free(MU_CONTAINER_OF(node, struct mu_dht_contact, link));
            }
        }
        mu_free(t->buckets[i]);
    }
    mu_free(t->buckets);
    t->buckets = NULL;
    t->bucket_count = 0;
    mu_map_fini(&t->by_node);
    mu_map_fini(&t->by_peer);
}

/* --- lookup ----------------------------------------------------------------------------------- */

/* Finds the last bucket that does not begin after the id. */
static size_t bucket_index(const struct mu_dht_table *t, const struct mu_dht_id *id)
{
    size_t low = 0;
    size_t high = t->bucket_count;

    while (high - low > 1) {
        size_t mid = low + (high - low) / 2;

        if (memcmp(t->buckets[mid]->low.bytes, id->bytes, MU_DHT_ID_LEN) <= 0) {
            low = mid;
        } else {
            high = mid;
        }
    }
    return low;
}

static struct mu_dht_contact *find_node(const struct mu_dht_table *t, const struct mu_dht_id *node)
{
    struct mu_map_node *n = mu_map_find(&t->by_node, mu_dht_id_span(node));

    return n == NULL ? NULL : MU_CONTAINER_OF(n, struct mu_dht_contact, by_node);
}

static struct mu_dht_contact *find_peer(const struct mu_dht_table *t, const struct mu_peer_id *peer)
{
    struct mu_map_node *n = mu_map_find(&t->by_peer, mu_peer_id_span(peer));

    return n == NULL ? NULL : MU_CONTAINER_OF(n, struct mu_dht_contact, by_peer);
}

const struct mu_dht_id *mu_dht_table_node_of(const struct mu_dht_table *t,
                                             const struct mu_peer_id *peer)
{
    const struct mu_dht_contact *c = find_peer(t, peer);

    return c == NULL ? NULL : &c->who.node;
}

bool mu_dht_table_knows(const struct mu_dht_table *t, const struct mu_dht_id *node)
{
    return find_node(t, node) != NULL;
}

/*
 * Inserts a node among the nearest so far. A node that falls off the end is farther than all that
 * are kept.
 */
static size_t keep_nearest(const struct mu_dht_id *target, struct mu_dht_neighbour *out,
                           size_t count, size_t max, const struct mu_dht_neighbour *who)
{
    size_t at = count;

    while (at > 0 && mu_dht_nearer(target, &who->node, &out[at - 1].node) < 0) {
        at--;
    }
    if (at == max) {
        return count;
    }
    if (count < max) {
        count++;
    }
    memmove(out + at + 1, out + at, (count - at - 1) * sizeof(*out));
    out[at] = *who;
    return count;
}

/*
 * XOR with the target maps the buckets, which are subtrees, to intervals that do not overlap. So
 * all nodes of a bucket that is nearer by its first id are nearer than all of one that is farther,
 * and a walk through the buckets in that order may stop as soon as there are enough nodes.
 */
static struct mu_dht_bucket *next_bucket(const struct mu_dht_table *t,
                                         const struct mu_dht_id *target,
                                         const struct mu_dht_bucket *last)
{
    struct mu_dht_bucket *best = NULL;
    struct mu_dht_id best_at = {{0}};
    struct mu_dht_id last_at = {{0}};

    for (size_t i = 0; i <= t->bucket_count; i++) {
        const struct mu_dht_bucket *b = i == 0 ? last : t->buckets[i - 1];
        struct mu_dht_id at;

        if (b == NULL) {
            continue;
        }
        at = mu_dht_distance(&b->low, target);
        for (unsigned bit = b->depth; bit < MU_DHT_ID_BITS; bit++) {
            at.bytes[bit / 8] &= (uint8_t) ~(0x80u >> bit % 8);
        }
        if (i == 0) {
            last_at = at;
        } else if ((last == NULL || memcmp(at.bytes, last_at.bytes, MU_DHT_ID_LEN) > 0) &&
                   (best == NULL || memcmp(at.bytes, best_at.bytes, MU_DHT_ID_LEN) < 0)) {
            best = t->buckets[i - 1];
            best_at = at;
        }
    }
    return best;
}

size_t mu_dht_table_nearest(const struct mu_dht_table *t, const struct mu_dht_id *target,
                            size_t max, const struct mu_dht_id *but, struct mu_dht_neighbour *out)
{
    const struct mu_dht_bucket *b = NULL;
    size_t count = 0;

    while (count < max && (b = next_bucket(t, target, b)) != NULL) {
        MU_LIST_FOREACH (it, &b->nodes) {
            const struct mu_dht_contact *c = MU_CONTAINER_OF(it, struct mu_dht_contact, link);

            if (but == NULL || !mu_dht_id_eq(&c->who.node, but)) {
                count = keep_nearest(target, out, count, max, &c->who);
            }
        }
    }
    return count;
}

/* --- adding, removal -------------------------------------------------------------------------- */

static void place(struct mu_dht_table *t, struct mu_dht_bucket *b, struct mu_dht_contact *c)
{
    c->spare = b->count >= t->config.bucket_size;
    mu_list_push(c->spare ? &b->spares : &b->nodes, &c->link);
    if (c->spare) {
        b->spare_count++;
    } else {
        b->count++;
        t->count++;
    }
}

static void unplace(struct mu_dht_table *t, struct mu_dht_bucket *b, struct mu_dht_contact *c)
{
    mu_list_remove(&c->link);
    if (c->spare) {
        b->spare_count--;
    } else {
        b->count--;
        t->count--;
    }
}

static void forget(struct mu_dht_table *t, struct mu_dht_bucket *b, struct mu_dht_contact *c)
{
    unplace(t, b, c);
    mu_map_remove(&t->by_node, &c->by_node);
    mu_map_remove(&t->by_peer, &c->by_peer);
    mu_free(c);
}

static void remove_contact(struct mu_dht_table *t, struct mu_dht_contact *c)
{
    struct mu_dht_bucket *b = t->buckets[bucket_index(t, &c->who.node)];

    forget(t, b, c);
    if (b->count < t->config.bucket_size && b->spare_count > 0) {
        struct mu_dht_contact *newest =
            MU_CONTAINER_OF(b->spares.prev, struct mu_dht_contact, link);

        unplace(t, b, newest);
        place(t, b, newest);
    }
}

void mu_dht_table_lost(struct mu_dht_table *t, const struct mu_dht_id *node)
{
    struct mu_dht_contact *c = find_node(t, node);

    if (c != NULL) {
        remove_contact(t, c);
    }
}

static bool may_split(const struct mu_dht_table *t, size_t index)
{
    const struct mu_dht_bucket *b = t->buckets[index];

    return b->depth < MU_DHT_ID_BITS &&
           (bucket_index(t, &t->config.self) == index || b->depth % t->config.depth_modulo != 0);
}

static bool make_room(struct mu_dht_table *t)
{
    size_t cap = t->bucket_cap * 2;
    struct mu_dht_bucket **grown;

    if (t->bucket_count < t->bucket_cap) {
        return true;
    }
    grown = mu_realloc(t->buckets, cap * sizeof(*grown));
    if (grown == NULL) {
        return false;
    }
    t->buckets = grown;
    t->bucket_cap = cap;
    return true;
}

/* Splits a bucket; the lower half stays where it is. False: there is no memory, and nothing has
 * changed. */
static bool split(struct mu_dht_table *t, size_t index)
{
    struct mu_dht_bucket *lower = t->buckets[index];
    struct mu_dht_id middle = lower->low;
    struct mu_dht_bucket *upper;
    struct mu_list all;
    struct mu_list *node;

    middle.bytes[lower->depth / 8] |= (uint8_t)(0x80u >> lower->depth % 8);
    upper = make_room(t) ? new_bucket(&middle, lower->depth + 1) : NULL;
    if (upper == NULL) {
        return false;
    }
    memmove(t->buckets + index + 2, t->buckets + index + 1,
            (t->bucket_count - index - 1) * sizeof(struct mu_dht_bucket *));
    t->buckets[index + 1] = upper;
    t->bucket_count++;
    mu_list_init(&all);
    while ((node = mu_list_pop(&lower->nodes)) != NULL) {
        mu_list_push(&all, node);
    }
    while ((node = mu_list_pop(&lower->spares)) != NULL) {
        mu_list_push(&all, node);
    }
    t->count -= lower->count;
    lower->count = 0;
    lower->spare_count = 0;
    lower->depth++;
    while ((node = mu_list_pop(&all)) != NULL) {
        struct mu_dht_contact *c = MU_CONTAINER_OF(node, struct mu_dht_contact, link);

        place(t, mu_dht_id_bit(&c->who.node, lower->depth - 1) ? upper : lower, c);
    }
    return true;
}

/* Finds the node that was silent the longest and is not being pinged already. */
static bool longest_silent(struct mu_dht_bucket *b, struct mu_dht_neighbour *ret)
{
    MU_LIST_FOREACH (it, &b->nodes) {
        struct mu_dht_contact *c = MU_CONTAINER_OF(it, struct mu_dht_contact, link);

        if (!c->pinged) {
            c->pinged = true;
            *ret = c->who;
            return true;
        }
    }
    return false;
}

/* Gives a contact that is in no list its place; 1: the caller must ping another node first. */
static int settle(struct mu_dht_table *t, struct mu_dht_contact *c,
                  struct mu_dht_neighbour *ret_ping)
{
    size_t index = bucket_index(t, &c->who.node);
    struct mu_dht_bucket *b;

    while (t->buckets[index]->count >= t->config.bucket_size && may_split(t, index) &&
           split(t, index)) {
        index = bucket_index(t, &c->who.node);
    }
    b = t->buckets[index];
    place(t, b, c);
    if (!c->spare) {
        return 0;
    }
    if (b->spare_count > t->config.bucket_size) {
        forget(t, b, MU_CONTAINER_OF(b->spares.next, struct mu_dht_contact, link));
    }
    return longest_silent(b, ret_ping) ? 1 : 0;
}

static int new_contact(struct mu_dht_table *t, const struct mu_dht_id *node,
                       const struct mu_peer_id *peer, struct mu_dht_contact **ret)
{
    struct mu_dht_contact *c;

    if (t->by_node.count >= t->config.nodes_max) {
        return MUSTER_ELIMIT;
    }
    c = mu_calloc(1, sizeof(*c));
    if (c == NULL) {
        return MUSTER_ENOMEM;
    }
    c->who = (struct mu_dht_neighbour){*node, *peer};
    mu_list_init(&c->link);
    if (mu_map_insert(&t->by_node, &c->by_node, mu_dht_id_span(&c->who.node)) != 0) {
        mu_free(c);
        return MUSTER_ENOMEM;
    }
    if (mu_map_insert(&t->by_peer, &c->by_peer, mu_peer_id_span(&c->who.peer)) != 0) {
        mu_map_remove(&t->by_node, &c->by_node);
        mu_free(c);
        return MUSTER_ENOMEM;
    }
    *ret = c;
    return 0;
}

int mu_dht_table_heard(struct mu_dht_table *t, const struct mu_dht_id *node,
                       const struct mu_peer_id *peer, struct mu_dht_neighbour *ret_ping)
{
    struct mu_dht_contact *c = find_node(t, node);
    struct mu_dht_contact *before = find_peer(t, peer);
    int err;

    if (mu_dht_id_eq(node, &t->config.self)) {
        return MUSTER_EINVAL;
    }
    if (c != NULL && c != before) {
        return MUSTER_EEXIST;
    }
    if (c != NULL) {
        struct mu_dht_bucket *b = t->buckets[bucket_index(t, node)];

        c->pinged = false;
        unplace(t, b, c);
        return settle(t, c, ret_ping);
    }
    if (before != NULL) {
        remove_contact(t, before);
    }
    err = new_contact(t, node, peer, &c);
    return err != 0 ? err : settle(t, c, ret_ping);
}
