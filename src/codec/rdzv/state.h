/*
 * The state of a rendezvous as PyTorch's dynamic rendezvous keeps it in a store: which nodes take
 * part in the round, which wait for the next one, which are spare, and when each was last heard.
 *
 * On the wire it is base64 of a Python pickle. The codec reads and writes exactly the classes that
 * make up such a state and refuses everything else; it never runs anything. Three dialects exist,
 * and all agents of a run must write the same one:
 *
 *     1.13      the node's address is called `fqdn`, times are naive, no redundancy list
 *     2-naive   `addr`, times are naive, a redundancy list
 *     2         `addr`, times carry a time zone, a redundancy list (2.11)
 */
#ifndef MU_RDZV_STATE_H
#define MU_RDZV_STATE_H

#include "core/buf.h"
#include "core/err.h"
#include "core/span.h"
#include "core/time.h"

enum mu_rdzv_dialect {
    MU_RDZV_DIALECT_UNKNOWN = 0, /* a state without a node or a time does not show it */
    MU_RDZV_DIALECT_1_13,
    MU_RDZV_DIALECT_2_NAIVE,
    MU_RDZV_DIALECT_2,
};

/* The local ids that muster's nodes draw are at least this. PyTorch counts its own from 0. */
#define MU_RDZV_OWN_ID (INT64_C(1) << 30)

/* One per handler of a process. Ordered by (addr by code point, pid, local_id). */
struct mu_rdzv_node {
    char *addr; /* terminated; owned by the state that holds the node */
    int64_t pid;
    int64_t local_id;
};

/* What a state knows of a node. A node is in the state if any of its flags is set. */
struct mu_rdzv_member {
    struct mu_rdzv_node node;
    bool participant;
    int64_t rank; /* of a participant; 0 until the round is complete */
    bool waiting;
    bool spare;
    bool has_heartbeat;
    mu_wall_t heartbeat; /* microseconds matter on the wire; finer digits are cut */
    int64_t born; /* which life of the node it is, with leases (codec/rdzv/leased.h); else 0 */
};

struct mu_rdzv_state {
    int64_t round;
    bool complete;
    bool closed;
    bool has_deadline;
    mu_wall_t deadline;             /* end of the last call */
    struct mu_rdzv_member *members; /* in the order in which they came; owned */
    size_t member_count;
    size_t member_cap;
    uint32_t *order; /* indices of all members, sorted by node: the order of ranks; owned */
    /*
     * How a node in several lists is written: once and then referred to, as agents do, or each time
     * again. Both forms are read; a decoded state is encoded in the same form.
     */
    bool nodes_repeated;
};

#define MU_RDZV_MEMBERS_MAX     65536
#define MU_RDZV_ADDR_MAX        1024               /* bytes of a node's address */
#define MU_RDZV_ROUND_MAX       (INT64_C(1) << 62) /* leaves room to count further */
#define MU_RDZV_STATE_BYTES_MAX (32u << 20)        /* of the pickle, before base64 */

/** An empty state: round 0, without nodes. */
void mu_rdzv_state_init(struct mu_rdzv_state *s);
void mu_rdzv_state_fini(struct mu_rdzv_state *s);
/** A deep copy into an initialised (or filled) state. MUSTER_ENOMEM: `to` is unchanged. */
int mu_rdzv_state_copy(struct mu_rdzv_state *to, const struct mu_rdzv_state *from);
bool mu_rdzv_node_equal(const struct mu_rdzv_node *a, const struct mu_rdzv_node *b);
/** The order of PyTorch's ranks: < 0, 0, > 0. */
int mu_rdzv_node_compare(const struct mu_rdzv_node *a, const struct mu_rdzv_node *b);
/** The member, or NULL, by bisection. Valid until members are added or removed. */
struct mu_rdzv_member *mu_rdzv_state_find(const struct mu_rdzv_state *s,
                                          const struct mu_rdzv_node *node);
/**
 * The member, which is made without a flag if necessary; the address is copied. MUSTER_ENOMEM,
 * MUSTER_ELIMIT (too many members, too long an address): nothing changed.
 */
int mu_rdzv_state_add(struct mu_rdzv_state *s, const struct mu_rdzv_node *node,
                      struct mu_rdzv_member **ret_member);
/** Drops members that have no flag left (a heartbeat counts as a flag). */
void mu_rdzv_state_compact(struct mu_rdzv_state *s);

/**
 * Decodes a pickle (protocols 2 to 5). `ret` is an initialised state, replaced on success.
 *
 * MUSTER_ECORRUPT: it is not such a state: damaged, another class, another opcode, a reference to
 * nothing, an attribute missing or of another kind, nodes or times of two dialects. MUSTER_ELIMIT:
 * longer, with more members or a longer address than the limits above allow, or in need of more
 * memory than 64 KiB and 16 times its length, at most 96 MiB (the members apart). For a rendezvous
 * both mean a corrupt state; both have a text. MUSTER_ENOMEM.
 *
 * `ret_dialect` is the dialect, as far as the state shows it. Without nodes, a state without a
 * redundancy list is taken for 1.13; one with such a list and without times may be 2 or 2-naive,
 * and is unknown.
 *
 * Unknown attributes are skipped and not kept. Times before 1970 or after 2554 become the nearest
 * that mu_wall_t holds.
 */
int mu_rdzv_state_decode(struct mu_span in, struct mu_rdzv_state *ret,
                         enum mu_rdzv_dialect *ret_dialect, struct mu_errmsg *reterr_msg);
/**
 * Appends the pickle (protocol 4) of a state in a dialect, byte for byte as Python would write it.
 * 1.13 has no place for spares, so they are left out. MUSTER_EINVAL: the dialect is unknown;
 * MUSTER_ELIMIT, MUSTER_ENOMEM; nothing appended.
 */
int mu_rdzv_state_encode(struct mu_buf *out, const struct mu_rdzv_state *s,
                         enum mu_rdzv_dialect dialect);

#endif
