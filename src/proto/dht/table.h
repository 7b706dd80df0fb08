/*
 * Whom a node of the DHT knows: buckets that halve the space of ids, each with the nodes of its
 * part in the order in which they were last heard of, and some in reserve. Pure.
 *
 *     mu_dht_table_heard(t, &node, &peer, &ping)      somebody spoke, or answered
 *     mu_dht_table_lost(t, &node)                     somebody did not answer
 *     mu_dht_table_nearest(t, &key, k, &but, out)     the nearest, nearest first
 *
 * A full bucket is split if it holds our own id, or if its depth is no multiple of `depth_modulo`;
 * otherwise a newcomer is kept in reserve and the node that was longest silent is to be pinged
 * (`ret_ping`): if it does not answer, the newest of the reserve takes its place. So nodes that
 * have long been there are not driven out by those that come in numbers.
 *
 * A peer has one place: what it says of itself later goes before what it said earlier, since a node
 * has a new id at every start. And an id belongs to the peer that said it first, as long as that
 * one is known: nobody can put himself in the place of another.
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
    uint32_t nodes_max;    /* with those in reserve; 4,096: a swarm far beyond any run's */
    uint64_t seed;
};

struct mu_dht_bucket {
    struct mu_dht_id low; /* the first id of its part: `depth` bits, then zeroes */
    unsigned depth;
    uint32_t count;
    uint32_t spare_count;
    struct mu_list nodes; /* longest silent first */
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
    size_t count; /* without those in reserve */
};

/** Fills in the defaults of sizes that are zero. MUSTER_ENOMEM. */
int mu_dht_table_init(struct mu_dht_table *t, const struct mu_dht_table_config *config);
void mu_dht_table_fini(struct mu_dht_table *t);

/**
 * A node spoke or answered. 0; 1: `*ret_ping` is to be pinged, for its place is wanted.
 * MUSTER_EEXIST: the id is another peer's; MUSTER_EINVAL: it is our own; MUSTER_ELIMIT,
 * MUSTER_ENOMEM.
 */
int mu_dht_table_heard(struct mu_dht_table *t, const struct mu_dht_id *node,
                       const struct mu_peer_id *peer, struct mu_dht_neighbour *ret_ping);
/** It is taken out, and one in reserve takes its place. Harmless for one that is not known. */
void mu_dht_table_lost(struct mu_dht_table *t, const struct mu_dht_id *node);
/** The node of a peer, or NULL. Lent. */
const struct mu_dht_id *mu_dht_table_node_of(const struct mu_dht_table *t,
                                             const struct mu_peer_id *peer);
/** Whether the node is known, in reserve or not. */
bool mu_dht_table_knows(const struct mu_dht_table *t, const struct mu_dht_id *node);
/** Writes the nearest `max` nodes but one (`but` may be NULL); returns how many there were. */
size_t mu_dht_table_nearest(const struct mu_dht_table *t, const struct mu_dht_id *target,
                            size_t max, const struct mu_dht_id *but, struct mu_dht_neighbour *out);

#endif
