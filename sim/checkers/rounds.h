/*
 * Checker: the rounds of one run of a rendezvous, as the nodes were told.
 *
 *  - one world for each round: all nodes that were told of a round, by its incarnation and number,
 *    were told the same world size, the same members and the same store;
 *  - ranks are unique and contiguous: each is below the world's size and was told to one node only,
 *    and the list of members has that node at that place and no name twice;
 *  - a number is given once, in ascending order: a node is only told of rounds that are later than
 *    all it was told before, in any life of its process. (A restarted server must not give a number
 *    again; but whether its numbers are above those before is up to its clock.);
 *  - no node is in two rounds: a node in a round is told of another only after it was told that the
 *    first is over, or has given it up itself; and the end that it is told is that of its own
 *    round;
 *  - no news of an old incarnation: a handler is told of one incarnation only, unless the server
 *    was restarted meanwhile.
 *
 * rounds_whole() checks that all ranks of a round were told, once there was time for it.
 */
#ifndef MU_SIM_ROUNDS_H
#define MU_SIM_ROUNDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"
#include "service/rdzv/rdzv.h"

struct rounds_world {
    uint64_t incarnation;
    uint64_t round;
    uint32_t size;
    uint32_t told;    /* how many of its ranks were told */
    uint32_t *nodes;  /* by rank: the node that was told it, plus 1; 0: no node yet */
    uint64_t members; /* a hash of their names in order; 0: no node asked for them */
    char *store;
};

struct rounds_node {
    bool in;     /* it believes that it is in the round below */
    bool ever;   /* it was told of that round at some time */
    bool fenced; /* its handler knows the incarnation below */
    uint64_t incarnation;
    uint64_t round;
    uint32_t rank;
    uint32_t life; /* of the server, when its handler was opened */
    uint32_t seen; /* or the life that told of that round */
};

struct rounds {
    struct rounds_world *worlds;
    size_t world_count;
    size_t world_cap;
    struct rounds_node *nodes; /* by number */
    size_t node_count;
};

/** For nodes 0 to node_count - 1. */
void rounds_init(struct rounds *r, size_t node_count);
void rounds_fini(struct rounds *r);

/** Records what a node was told. `life` is the server's, now. MUSTER_ECORRUPT with a message. */
int rounds_assigned(struct rounds *r, uint32_t node, const char *name, uint32_t life,
                    const struct mu_rdzv_assignment *a, struct mu_errmsg *reterr_msg);
int rounds_ended(struct rounds *r, uint32_t node, uint64_t round, struct mu_errmsg *reterr_msg);
/** The node is in no round any more: it left, was told to go, died, or asked for another. */
void rounds_out(struct rounds *r, uint32_t node);
/** The node has another handler, which knows no incarnation yet, opened in that life of the
 * server. */
void rounds_fresh(struct rounds *r, uint32_t node, uint32_t life);

/** Returns the round that the node is in, or NULL. */
const struct rounds_world *rounds_of(const struct rounds *r, uint32_t node);
/** Returns the round that all nodes in a round share; NULL: there is no round, or more than one. */
const struct rounds_world *rounds_only(const struct rounds *r);
/** Returns whether all its ranks were told, and all those nodes are still in it. */
bool rounds_whole(const struct rounds *r, const struct rounds_world *w);

#endif
