/*
 * Copies of kept states, between agents (docs/kept.md): what an agent holds for others, and what
 * the agent of node 0 decides when all agents of a round make copies. Where one does not, they say
 * only what codec/state/kept.h has.
 *
 * A holding, little-endian; texts have a u8 length before them:
 *
 *     "MUKC", u8 1, u8 copies, the address, the topology key, u32 heads,
 *     for each: u64 era, u64 nonce, u64 step, u32 flags (1: replicated), u32 rank, u32 world
 *
 * A plan:
 *
 *     "MUKP", u8 1, the answer (MU_KEPT_ANSWER_LEN bytes), u8 copies,
 *     u32 fetches, for each: u32 rank, u32 node three times; the last ones may be 0xffffffff,
 *     u32 parts, for each: u32 nodes, u32 key
 *
 * The parts say which nodes have the same topology key: so many nodes, from rank 0 on, have the key
 * of this number. Without any, no node has one.
 */
#ifndef MU_STATE_KEPT_PLAN_H
#define MU_STATE_KEPT_PLAN_H

#include "codec/state/kept.h"

#define MU_KEPT_COPIES_MAX  3 /* of a node's states */
#define MU_KEPT_SOURCES_MAX 3 /* nodes that a rank may fetch from */
#define MU_KEPT_TEXT_MAX    255

/* Limits of a holding: two versions of each rank of as many nodes, and one that was fetched. */
#define MU_KEPT_HELD_MAX ((size_t)MU_KEPT_WORKERS_MAX * (2 * MU_KEPT_COPIES_MAX + 1))
#define MU_KEPT_HOLDING_BYTES_MAX                                                                  \
    (4 + 1 + 1 + 2 * (1 + (size_t)MU_KEPT_TEXT_MAX) + 4 +                                          \
     MU_KEPT_HELD_MAX * MU_KEPT_REPORT_ENTRY_LEN)
/* Limits of a plan. */
#define MU_KEPT_FETCHES_MAX   ((size_t)65536)
#define MU_KEPT_PARTS_MAX     ((size_t)65536)
#define MU_KEPT_PLAN_HEAD_LEN (5 + MU_KEPT_ANSWER_LEN + 1)
#define MU_KEPT_FETCH_LEN     16
#define MU_KEPT_PART_LEN      8
#define MU_KEPT_PLAN_BYTES_MAX                                                                     \
    (MU_KEPT_PLAN_HEAD_LEN + 8 + MU_KEPT_FETCHES_MAX * MU_KEPT_FETCH_LEN +                         \
     MU_KEPT_PARTS_MAX * MU_KEPT_PART_LEN)

struct mu_kept_holding {
    uint32_t copies;            /* how many nodes are to hold copies of a node's states; 1 to 3 */
    struct mu_span addr;        /* where this agent gives what it has */
    struct mu_span topology;    /* "": none */
    struct mu_kept_head *heads; /* without `bytes` */
    size_t head_count;
};

/** Appends it. MUSTER_ELIMIT, MUSTER_ENOMEM. */
int mu_kept_holding_encode(const struct mu_kept_holding *holding, struct mu_buf *out);
/** Its texts point into the input, its heads are for mu_free(). MUSTER_EPROTO, MUSTER_ENOMEM. */
int mu_kept_holding_decode(struct mu_span in, struct mu_kept_holding *ret_holding);

/* A rank, or the node of a rank, that does not have the version, and nodes that do. */
struct mu_kept_fetch {
    uint32_t rank;
    uint32_t nodes[MU_KEPT_SOURCES_MAX];
    uint32_t node_count; /* at least 1 */
};

/* Nodes with the same topology key, whose ranks follow each other. */
struct mu_kept_part {
    uint32_t nodes;
    uint32_t key;
};

struct mu_kept_plan {
    struct mu_kept_answer answer;
    uint32_t copies;
    struct mu_kept_fetch *fetches; /* by rank */
    size_t fetch_count;
    struct mu_kept_part *parts;
    size_t part_count;
};

/** Appends it. MUSTER_ELIMIT, MUSTER_ENOMEM. */
int mu_kept_plan_encode(const struct mu_kept_plan *plan, struct mu_buf *out);
/** For mu_kept_plan_fini(). MUSTER_EPROTO, MUSTER_ENOMEM. */
int mu_kept_plan_decode(struct mu_span in, struct mu_kept_plan *ret_plan);
void mu_kept_plan_fini(struct mu_kept_plan *plan);

#endif
