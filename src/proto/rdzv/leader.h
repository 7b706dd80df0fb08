/*
 * The etcd-v3 rendezvous: one node decides for all.
 *
 * Every node has its own key, which ends with its lease and holds its wish. The node whose key is
 * the oldest is the leader: it takes in the wishes of all, applies the rules of proto/rdzv/rules.h
 * to each in the order in which they were written, drops members whose key is gone, and writes the
 * result in one compare-and-set. So N joining nodes cost N writes of their own keys and a few of
 * the state. The only clock that counts is the leader's, which measures the last call and is never
 * shared.
 *
 * Correctness does not depend on a single leader: the state only ever changes by a compare-and-set
 * on its revision, and each step below is a function of the state and of the keys as they were. Two
 * nodes that take themselves for the leader cost each other a write.
 *
 * What a step does, in this order:
 *     1. drops members whose key is gone, or belongs to another life of theirs
 *     2. considers each wish that is newer than `seen`; `seen` moves on
 *     3. lets waiting nodes into a round that is open
 *     4. completes the round whose last call is over
 */
#ifndef MU_RDZV_LEADER_H
#define MU_RDZV_LEADER_H

#include "codec/rdzv/leased.h"
#include "proto/rdzv/rules.h"

/* A node's key. */
struct mu_rdzv_entry {
    struct mu_rdzv_node node;
    int64_t born;     /* the revision that created it */
    int64_t revision; /* the revision that wrote it last */
    enum mu_rdzv_wish wish;
};

struct mu_rdzv_leader_result {
    bool changed; /* there is something to write */
    bool urgent;  /* nodes wait for it: a round has begun, or has lost a member */
};

/**
 * Makes the next state out of the present one. `entries` are all keys, by revision. After
 * MUSTER_ENOMEM or MUSTER_ELIMIT the state is useless.
 */
int mu_rdzv_leader_step(struct mu_rdzv_state *s, int64_t *seen,
                        const struct mu_rdzv_entry *const *entries, size_t count,
                        const struct mu_rdzv_settings *settings, bool last_call_over,
                        struct mu_rdzv_leader_result *ret);

#endif
