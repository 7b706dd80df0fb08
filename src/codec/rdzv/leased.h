/*
 * The texts that the etcd-v3 rendezvous keeps in etcd. They are JSON, so that an operator can read
 * them.
 *
 * The state of a run, one key:
 *
 *     {"round":3,"complete":true,"world":2,"closed":false,"seen":"57","nodes":[
 *      {"addr":"a","pid":7,"id":"1","born":"40","rank":0},
 *      {"addr":"b","pid":9,"id":"2","born":"41","rank":1},
 *      {"addr":"c","pid":5,"id":"3","born":"55","list":"wait"}]}
 *
 * `world` is how many nodes were in the round when it was completed; before that there is
 * `last_call` instead, true once there are enough nodes. `born` is the revision at which the node's
 * own key was created: a new key is a new life of the node. `seen` is the revision up to which the
 * wishes of nodes were considered. The state has no times.
 *
 * A node's wish, the value of its own key, which goes with its lease:
 *
 *     {"addr":"a","pid":7,"id":"1","wish":"join","number":"1"}
 */
#ifndef MU_RDZV_LEASED_H
#define MU_RDZV_LEASED_H

#include "codec/rdzv/state.h"

enum mu_rdzv_wish {
    MU_RDZV_WISH_JOIN = 1, /* into a round, or the best list with room */
    MU_RDZV_WISH_OUT,      /* out of the round, or off the wait list */
    MU_RDZV_WISH_UNSPARE,  /* off the redundancy list */
};

/** Appends the text. MUSTER_ELIMIT, MUSTER_ENOMEM; nothing appended. */
int mu_rdzv_leased_encode(struct mu_buf *out, const struct mu_rdzv_state *s, int64_t seen);
/**
 * `ret` is an initialised state, replaced on success. The deadline of a last call is never, since
 * the nodes have no common clock. MUSTER_ECORRUPT (not JSON, a member missing or of another kind, a
 * node twice), MUSTER_ELIMIT, both with a text; MUSTER_ENOMEM.
 */
int mu_rdzv_leased_decode(struct mu_span in, struct mu_rdzv_state *ret, int64_t *ret_seen,
                          struct mu_errmsg *reterr_msg);

/** `number` makes each wish of a node a different text. Errors as above. */
int mu_rdzv_wish_encode(struct mu_buf *out, const struct mu_rdzv_node *node, enum mu_rdzv_wish wish,
                        uint64_t number);
/** The caller frees the address of `ret_node` with mu_free(). MUSTER_ECORRUPT, MUSTER_ENOMEM. */
int mu_rdzv_wish_decode(struct mu_span in, struct mu_rdzv_node *ret_node,
                        enum mu_rdzv_wish *ret_wish);

#endif
