/*
 * What the files of the remote references share.
 *
 *     rref.c        the table, messages and their answers
 *     rref_user.c   users in this process, and the tokens they give away
 *     rref_owner.c  values, forks, and what is said by others
 *     rref_peer.c   workers, their lives and their end
 */
#ifndef MU_RREF_INTERNAL_H
#define MU_RREF_INTERNAL_H

#include "proto/rpc/rref.h"

/* A token of ours on its way. */
struct mu_rref_child {
    struct mu_map_node by_number;
    struct mu_list link;    /* table->pending */
    struct mu_list by_dest; /* peer->children */
    struct mu_rref_user *parent;
    struct mu_rref_peer *dest; /* NULL: this process */
    uint64_t number;
    bool settled; /* only its message is still out */
    struct mu_rref_op op;
};

/* A token that must not be taken, any more or again. */
struct mu_rref_void {
    struct mu_list link;
    uint64_t number;
};

static inline bool mu_rref_is_self(const struct mu_rref_table *t, const char *name)
{
    return strcmp(t->config.name, name) == 0;
}

/* --- rref.c ----------------------------------------------------------------------------------- */

void mu_rref_op_init(struct mu_rref_op *op);
/** Has it handed out at that time, unless it is out. */
void mu_rref_op_queue(struct mu_rref_table *t, mu_mono_t at, struct mu_rref_op *op,
                      enum mu_rref_verb verb, struct mu_rref_peer *peer);
void mu_rref_op_drop(struct mu_rref_table *t, struct mu_rref_op *op);

/* --- rref_user.c ------------------------------------------------------------------------------ */

/** Does what is to be done next for a user; frees it if that is nothing. */
void mu_rref_advance(struct mu_rref_table *t, mu_mono_t now, struct mu_rref_user *u);
/** It has changed, and its handle is to be told. */
void mu_rref_changed(struct mu_rref_table *t, struct mu_rref_user *u);
/** Its owner is gone: it can be used no more. */
void mu_rref_user_lose(struct mu_rref_table *t, mu_mono_t now, struct mu_rref_user *u, int status);
/** Its parent need not be told any more. */
void mu_rref_user_told(struct mu_rref_table *t, mu_mono_t now, struct mu_rref_user *u);
void mu_rref_user_ended(struct mu_rref_table *t, mu_mono_t now, struct mu_rref_user *u, int status,
                        const struct mu_rref_answer *answer);
struct mu_rref_child *mu_rref_find_child(struct mu_rref_table *t, uint64_t number);
/** The parent need not stay for it any more. */
void mu_rref_settle(struct mu_rref_table *t, mu_mono_t now, struct mu_rref_child *c);
void mu_rref_child_ended(struct mu_rref_table *t, mu_mono_t now, struct mu_rref_child *c,
                         int status, const struct mu_rref_answer *answer);

/* --- rref_owner.c ----------------------------------------------------------------------------- */

/** MUSTER_ENOMEM. */
int mu_rref_add_value(struct mu_rref_table *t, struct mu_rref_id id,
                      struct mu_rref_value **ret_value);
int mu_rref_add_fork(struct mu_rref_table *t, struct mu_rref_value *v, struct mu_rref_id id,
                     struct mu_rref_peer *holder);
struct mu_rref_fork *mu_rref_find_fork(struct mu_rref_table *t, struct mu_rref_id id);
/** The value is dead with its last one. */
void mu_rref_remove_fork(struct mu_rref_table *t, struct mu_rref_fork *fork);

/* --- rref_peer.c ------------------------------------------------------------------------------ */

/** Finds or makes it. MUSTER_ELIMIT, MUSTER_ENOMEM. */
int mu_rref_peer_get(struct mu_rref_table *t, const char *name, struct mu_rref_peer **ret_peer);
struct mu_rref_peer *mu_rref_peer_find(struct mu_rref_table *t, const char *name);
void mu_rref_peer_free(struct mu_rref_table *t, struct mu_rref_peer *peer);
/** It was heard of. False: that was a life that is over. */
bool mu_rref_hear(struct mu_rref_table *t, mu_mono_t now, struct mu_rref_peer *peer, uint64_t life);
bool mu_rref_is_gone(const struct mu_rref_peer *peer, uint64_t life);
/** Whether a token of its, which nobody here has taken, is void. */
bool mu_rref_is_void(const struct mu_rref_peer *peer, struct mu_rref_id fork);
/** MUSTER_ENOMEM. */
int mu_rref_add_void(struct mu_rref_peer *peer, uint64_t number);
void mu_rref_raise_floor(struct mu_rref_peer *peer, uint64_t floor);
/** It holds something of ours from now on: it is to give signs of life. */
void mu_rref_watch(struct mu_rref_table *t, struct mu_rref_peer *peer);
void mu_rref_probe_ended(struct mu_rref_table *t, mu_mono_t now, struct mu_rref_peer *peer);

#endif
