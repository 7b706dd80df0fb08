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
 *
 * Where all nodes make copies, what another node has counts as well, and the plan says who fetches
 * what from where:
 *
 *     mu_recall_take_holding(&r, node, &holding);     once for each node, beside its report
 *     mu_recall_plan(&r, nonce, &plan);               in place of mu_recall_decide()
 *     mu_recall_exclude(&r, &plan.answer.version);    somebody could not fetch it: and again
 */
#ifndef MU_RECALL_H
#define MU_RECALL_H

#include "codec/state/kept_plan.h"

/* As many as the exchange of ranks takes. */
#define MU_RECALL_NODES_MAX 65536
/* Ranks of a world, of which some may fetch; and different topology keys that count. With more, no
 * rank fetches a shard, and no key counts. */
#define MU_RECALL_RANKS_MAX ((uint64_t)1 << 20)
#define MU_RECALL_KEYS_MAX  4096u

struct mu_recall_node {
    bool reported;
    uint32_t workers;
    uint32_t base; /* its first rank */
    uint32_t key;  /* the number of its topology key */
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
    uint64_t era;    /* the highest that was reported */
    uint32_t copies; /* the fewest that a node makes */
    struct mu_buf *keys;
    uint32_t key_count; /* above MU_RECALL_KEYS_MAX: too many */
};

/** MUSTER_ELIMIT, MUSTER_ENOMEM. */
int mu_recall_init(struct mu_recall *r, uint32_t nodes);
void mu_recall_fini(struct mu_recall *r);
/** Takes the report of a node below `nodes`, once. MUSTER_ENOMEM. */
int mu_recall_take(struct mu_recall *r, uint32_t node, const struct mu_kept_report *report);
/** How many nodes have not reported. */
uint32_t mu_recall_missing(const struct mu_recall *r);
/** Takes what a node holds beside its report. MUSTER_ENOMEM. */
int mu_recall_take_holding(struct mu_recall *r, uint32_t node,
                           const struct mu_kept_holding *holding);
/** Decides. `nonce` is random. The entries are sorted by this. */
void mu_recall_decide(struct mu_recall *r, uint64_t nonce, struct mu_kept_answer *ret_answer);
/** Decides, with copies. The plan is for mu_kept_plan_fini(). MUSTER_ENOMEM. */
int mu_recall_plan(struct mu_recall *r, uint64_t nonce, struct mu_kept_plan *ret_plan);
/** Forgets a version. */
void mu_recall_exclude(struct mu_recall *r, const struct mu_kept_version *version);

#endif
