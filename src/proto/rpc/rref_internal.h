/*
 * What the files of the remote references share.
 *
 *     rref.c        the table, messages and their answers
 *     rref_user.c   users in this process, and the tokens they give away
 *     rref_owner.c  values, forks, and messages of others
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
    bool settled; /* it only waits for the answer to its message */
    struct mu_rref_op op;
};

/* A token that must not be taken, because it is void or was taken. */
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
/** Has a message handed out at that time, unless it is out. */
void mu_rref_op_queue(struct mu_rref_table *t, mu_mono_t at, struct mu_rref_op *op,
                      enum mu_rref_verb verb, struct mu_rref_peer *peer);
void mu_rref_op_drop(struct mu_rref_table *t, struct mu_rref_op *op);

/* --- rref_user.c ------------------------------------------------------------------------------ */

/** Takes the next step for a user; frees it if there is nothing left to do. */
void mu_rref_advance(struct mu_rref_table *t, mu_mono_t now, struct mu_rref_user *u);
/** Marks a user as changed, so that its handle is told. */
void mu_rref_changed(struct mu_rref_table *t, struct mu_rref_user *u);
/** The user's owner is gone: it cannot be used any more. */
void mu_rref_user_lose(struct mu_rref_table *t, mu_mono_t now, struct mu_rref_user *u, int status);
/** The user's parent need not be told any more. */
void mu_rref_user_told(struct mu_rref_table *t, mu_mono_t now, struct mu_rref_user *u);
void mu_rref_user_ended(struct mu_rref_table *t, mu_mono_t now, struct mu_rref_user *u, int status,
                        const struct mu_rref_answer *answer);
struct mu_rref_child *mu_rref_find_child(struct mu_rref_table *t, uint64_t number);
/** Settles a token: its parent need not stay for it any more. */
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
/** Removes a fork; the value is dead with its last one. */
void mu_rref_remove_fork(struct mu_rref_table *t, struct mu_rref_fork *fork);

/* --- rref_peer.c ------------------------------------------------------------------------------ */

/** Finds or makes a worker. MUSTER_ELIMIT, MUSTER_ENOMEM. */
int mu_rref_peer_get(struct mu_rref_table *t, const char *name, struct mu_rref_peer **ret_peer);
struct mu_rref_peer *mu_rref_peer_find(struct mu_rref_table *t, const char *name);
void mu_rref_peer_free(struct mu_rref_table *t, struct mu_rref_peer *peer);
/** A message of this life came. False: the life is over. */
bool mu_rref_hear(struct mu_rref_table *t, mu_mono_t now, struct mu_rref_peer *peer, uint64_t life);
bool mu_rref_is_gone(const struct mu_rref_peer *peer, uint64_t life);
/** Returns whether a token of that worker, which was not taken here, is void. */
bool mu_rref_is_void(const struct mu_rref_peer *peer, struct mu_rref_id fork);
/** MUSTER_ENOMEM. */
int mu_rref_add_void(struct mu_rref_peer *peer, uint64_t number);
void mu_rref_raise_floor(struct mu_rref_peer *peer, uint64_t floor);
/** The worker holds something of ours from now on and must give signs of life. */
void mu_rref_watch(struct mu_rref_table *t, struct mu_rref_peer *peer);
void mu_rref_probe_ended(struct mu_rref_table *t, mu_mono_t now, struct mu_rref_peer *peer);

#endif
