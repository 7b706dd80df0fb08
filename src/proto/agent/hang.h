/*
 * What is done about a run that hangs: the agent of node 0 decides that for all. Pure.
 *
 * To exclude a node is to say that its machine is at fault, so it is done only if all ranks that
 * are missing are on one node, if that is more than a guess, and if enough nodes remain.
 * Otherwise a worker is ended, which costs a restart.
 */
#ifndef MU_AGENT_HANG_H
#define MU_AGENT_HANG_H

#include "codec/agent/hang.h"

struct mu_hang_view {
    enum mu_hang_action wanted;
    uint32_t missing_count; /* ranks */
    bool split;             /* who is missing is a guess */
    uint32_t missing_nodes; /* nodes that these ranks are on */
    uint32_t nodes;         /* of the round */
    uint32_t nodes_min;     /* that the run needs */
};

/** What to do. If that is less than what is wanted, *ret_why says why, as in "no node is excluded:
 * ..."; else it is NULL. Static. */
enum mu_hang_action mu_hang_decide(const struct mu_hang_view *c, const char **ret_why);

#endif
