/*
 * Which nodes of a round hold copies of what others keep. All nodes find the same from the number
 * of nodes, the same option, and the topology keys, if there are any:
 *
 *     mu_partners_init(&p, wanted, nodes, keys);
 *     mu_partners_of(&p, rank, ret);                 who holds copies of this node's states
 *     mu_partners_sources(&p, rank, ret);            whose states this node holds copies of
 *     mu_partners_fini(&p);
 *
 * The nodes stand in a ring, and a node's partners are some that follow it, at the same distance
 * for all: so each has as many sources as partners. Without topology keys the ring is the ranks,
 * and the partners are the next ones. With keys, nodes of the same key stand together, and the
 * distance is as long as the longest such part of the ring, so that no partner has the node's own
 * key, unless more than half of the nodes have one and the same. A node is never its own partner.
 */
#ifndef MU_PARTNERS_H
#define MU_PARTNERS_H

#include <stddef.h>
#include <stdint.h>

#define MU_PARTNERS_MAX 3u /* of a node */

struct mu_partners {
    uint32_t nodes;
    uint32_t wanted; /* how many each node has */
    uint32_t distance;
    uint32_t *ring;  /* the nodes, by their place */
    uint32_t *place; /* of each node */
};

/** `keys`: a number below `nodes` for each node's topology key, the same for the same key; NULL:
 * there are none. There are fewer partners than were wanted if there are fewer other nodes.
 * MUSTER_ELIMIT: `wanted` is above MU_PARTNERS_MAX; MUSTER_ENOMEM. */
int mu_partners_init(struct mu_partners *p, uint32_t wanted, uint32_t nodes, const uint32_t *keys);
void mu_partners_fini(struct mu_partners *p);
/** Both return p->wanted. */
size_t mu_partners_of(const struct mu_partners *p, uint32_t rank, uint32_t ret[MU_PARTNERS_MAX]);
size_t mu_partners_sources(const struct mu_partners *p, uint32_t rank,
                           uint32_t ret[MU_PARTNERS_MAX]);

#endif
