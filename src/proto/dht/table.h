/*
 * The nodes that a node of the DHT knows: buckets that halve the space of ids, each with the nodes
 * of its part in the order in which they were last heard, and some in reserve. Pure.
 *
 *     mu_dht_table_heard(t, &node, &peer, &ping)      a node called, or answered
 *     mu_dht_table_lost(t, &node)                     a node did not answer
 *     mu_dht_table_nearest(t, &key, k, &but, out)     the nearest, nearest first
 *
 * A full bucket is split if it holds our own id, or if its depth is not a multiple of
 * `depth_modulo`; otherwise a new node is kept in reserve and the caller pings the node that was
 * silent the longest (`ret_ping`): if it does not answer, the newest of the reserve takes its
 * place. So a crowd of new nodes cannot drive out old ones.
 *
 * A peer has one place: its latest id replaces the earlier one, since a node has a new id at every
 * start. An id belongs to the peer that claimed it first, as long as that peer is known, so a peer
 * cannot take the place of another.
 */
#ifndef MU_DHT_TABLE_H
#define MU_DHT_TABLE_H

#include <stdbool.h>

#include "codec/dht/id.h"
#include "codec/dht/msg.h"
#include "codec/peer/id.h"
#include "core/list.h"
#include "core/map.h"

struct mu_dht_table_config {
    struct mu_dht_id self;
    uint32_t bucket_size;  /* 20 */
    uint32_t depth_modulo; /* 5 */
    uint32_t nodes_max;    /* including the reserve. 4,096: far more than any run has */
    uint64_t seed;
};

struct mu_dht_bucket {
    struct mu_dht_id low; /* the first id of its part: `depth` bits, then zeros */
    unsigned depth;
    uint32_t count;
    uint32_t spare_count;
    struct mu_list nodes; /* silent the longest first */
    struct mu_list spares;
};

struct mu_dht_contact {
    struct mu_dht_neighbour who;
    struct mu_map_node by_node;
    struct mu_map_node by_peer;
    struct mu_list link;
    bool spare;
    bool pinged;
};

struct mu_dht_table {
    struct mu_dht_table_config config;
    struct mu_dht_bucket **buckets; /* in the order of their ids */
    size_t bucket_count;
    size_t bucket_cap;
    struct mu_map by_node;
    struct mu_map by_peer;
    size_t count; /* without the reserve */
};

/** Fills in the defaults of sizes that are zero. MUSTER_ENOMEM. */
int mu_dht_table_init(struct mu_dht_table *t, const struct mu_dht_table_config *config);
void mu_dht_table_fini(struct mu_dht_table *t);

/**
 * A node called or answered. Returns 0, or 1 if the caller must ping `*ret_ping`, whose place is
 * wanted. MUSTER_EEXIST: the id is another peer's; MUSTER_EINVAL: it is our own; MUSTER_ELIMIT,
 * MUSTER_ENOMEM.
 */
int mu_dht_table_heard(struct mu_dht_table *t, const struct mu_dht_id *node,
                       const struct mu_peer_id *peer, struct mu_dht_neighbour *ret_ping);
/** Removes a node; one in reserve takes its place. Does nothing for an unknown node. */
void mu_dht_table_lost(struct mu_dht_table *t, const struct mu_dht_id *node);
/** Returns the node of a peer, or NULL. It is lent. */
const struct mu_dht_id *mu_dht_table_node_of(const struct mu_dht_table *t,
                                             const struct mu_peer_id *peer);
/** Returns whether the node is known, in reserve or not. */
bool mu_dht_table_knows(const struct mu_dht_table *t, const struct mu_dht_id *node);
/** Writes the nearest `max` nodes except `but`, which may be NULL; returns how many there were. */
size_t mu_dht_table_nearest(const struct mu_dht_table *t, const struct mu_dht_id *target,
                            size_t max, const struct mu_dht_id *but, struct mu_dht_neighbour *out);

#endif
