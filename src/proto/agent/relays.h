/*
 * Which nodes of a round are relays: their gateways read the workers' store for those of other
 * nodes, and carry what these change. All nodes find the same from their ranks and the same option.
 *
 * Node 0 has the store. The other nodes are divided into groups of neighbours by rank, as many as
 * the root of their number, and the first of each group is its relay. The others of the group fall
 * back to the relays of the next groups.
 */
#ifndef MU_RELAYS_H
#define MU_RELAYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MU_RELAYS_AUTO  0u         /* from MU_RELAYS_FROM nodes on */
#define MU_RELAYS_OFF   UINT32_MAX /* none */
#define MU_RELAYS_FROM  256u
#define MU_RELAYS_MAX   100u
#define MU_RELAYS_TRIED 3u /* that one node may be told */

struct mu_relays {
    uint32_t count; /* 0: there are none */
    uint32_t group; /* nodes in a group */
};

/** `wanted`: their number, or one of the above. */
struct mu_relays mu_relays_of(uint32_t wanted, uint32_t nodes);
/** The group of a node. UINT32_MAX: of none. */
uint32_t mu_relays_group(const struct mu_relays *r, uint32_t rank);
/** Whether a node is the relay of its group. */
bool mu_relays_is_one(const struct mu_relays *r, uint32_t rank);
/** The groups whose relays a node tries, in this order; at most MU_RELAYS_TRIED. Returns how many;
 * none for a relay. */
size_t mu_relays_for(const struct mu_relays *r, uint32_t rank, uint32_t *ret_groups);

#endif
