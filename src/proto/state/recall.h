/*
 * Recall: which kept version the workers of a round load. The agent of node 0 decides, from what
 * the agents of all nodes report before they start workers:
 *
 *     mu_recall_init(&r, nodes);
 *     mu_recall_take(&r, node, &report);         once for each node, in any order
 *     mu_recall_decide(&r, nonce, &answer);
 *     mu_recall_fini(&r);
 *
 * A version counts if every rank of the new round can have it from its own node: its own shard, of
 * a world of the same size; or, if the version is replicated, any rank's. The newest one that
 * counts is loaded by all. A node without a report keeps nothing, so nothing counts then.
 */
#ifndef MU_RECALL_H
#define MU_RECALL_H

#include "codec/state/kept.h"

/* As many as the exchange of ranks takes. */
#define MU_RECALL_NODES_MAX 65536

struct mu_recall_node {
    bool reported;
    uint32_t workers;
};

struct mu_recall_entry {
    struct mu_kept_head head;
    uint32_t node;
};

struct mu_recall {
    struct mu_recall_node *nodes;
    uint32_t node_count;
    uint32_t reports;
    struct mu_recall_entry *entries;
    size_t entry_count;
    size_t entry_cap;
    uint64_t era; /* the highest that was reported */
};

/** MUSTER_ELIMIT, MUSTER_ENOMEM. */
int mu_recall_init(struct mu_recall *r, uint32_t nodes);
void mu_recall_fini(struct mu_recall *r);
/** Takes the report of a node below `nodes`, once. MUSTER_ENOMEM. */
int mu_recall_take(struct mu_recall *r, uint32_t node, const struct mu_kept_report *report);
/** How many nodes have not reported. */
uint32_t mu_recall_missing(const struct mu_recall *r);
/** Decides. `nonce` is random. The entries are sorted by this. */
void mu_recall_decide(struct mu_recall *r, uint64_t nonce, struct mu_kept_answer *ret_answer);

#endif
