/* Values and their forks, and messages of others. */
#include "proto/rpc/rref_internal.h"

#include "core/alloc.h"

/* --- values ----------------------------------------------------------------------------------- */

int mu_rref_add_value(struct mu_rref_table *t, struct mu_rref_id id,
                      struct mu_rref_value **ret_value)
{
    struct mu_rref_value *v = mu_calloc(1, sizeof(*v));

    if (v == NULL) {
        return MUSTER_ENOMEM;
    }
    v->id = id;
    mu_list_init(&v->forks);
    mu_list_init(&v->dead);
    mu_list_init(&v->waiting);
    mu_list_init(&v->local);
    mu_buf_init(&v->content, SIZE_MAX / 4);
    if (mu_map_insert(&t->values, &v->by_id, mu_span(&v->id, sizeof(v->id))) != 0) {
        mu_free(v);
        return MUSTER_ENOMEM;
    }
    *ret_value = v;
    return 0;
}

void mu_rref_value_free(struct mu_rref_table *t, struct mu_rref_value *v)
{
    (void)t;
    mu_list_remove(&v->dead);
    mu_buf_fini(&v->content);
    mu_free(v);
}

struct mu_rref_value *mu_rref_find_value(struct mu_rref_table *t, struct mu_rref_id id)
{
    struct mu_map_node *node = mu_map_find(&t->values, mu_span(&id, sizeof(id)));

    return node == NULL ? NULL : MU_CONTAINER_OF(node, struct mu_rref_value, by_id);
}

struct mu_rref_fork *mu_rref_find_fork(struct mu_rref_table *t, struct mu_rref_id id)
{
    struct mu_map_node *node = mu_map_find(&t->forks, mu_span(&id, sizeof(id)));

    return node == NULL ? NULL : MU_CONTAINER_OF(node, struct mu_rref_fork, by_id);
}

int mu_rref_add_fork(struct mu_rref_table *t, struct mu_rref_value *v, struct mu_rref_id id,
                     struct mu_rref_peer *holder)
{
    struct mu_rref_fork *fork = mu_calloc(1, sizeof(*fork));

    if (fork == NULL) {
        return MUSTER_ENOMEM;
    }
    *fork = (struct mu_rref_fork){.id = id, .value = v, .holder = holder};
    mu_list_init(&fork->held);
    if (mu_map_insert(&t->forks, &fork->by_id, mu_span(&fork->id, sizeof(fork->id))) != 0) {
        mu_free(fork);
        return MUSTER_ENOMEM;
    }
    mu_list_push(&v->forks, &fork->link);
    if (holder != NULL) {
        mu_list_push(&holder->forks, &fork->held);
        mu_rref_watch(t, holder);
    }
    return 0;
}

void mu_rref_remove_fork(struct mu_rref_table *t, struct mu_rref_fork *fork)
{
    struct mu_rref_value *v = fork->value;

    mu_map_remove(&t->forks, &fork->by_id);
    mu_list_remove(&fork->link);
    mu_list_remove(&fork->held);
    mu_free(fork);
    if (mu_list_empty(&v->forks)) {
        mu_map_remove(&t->values, &v->by_id); /* From now on it cannot be found. */
        mu_list_push(&t->dead, &v->dead);
    }
}

/* --- messages --------------------------------------------------------------------------------- */

/* Finds the sender. A positive verdict means that the message must be refused. */
static int listen_to(struct mu_rref_table *t, mu_mono_t now, const char *from,
                     const struct mu_rref_msg *msg, struct mu_rref_peer **ret_peer)
{
    int err = mu_rref_peer_get(t, from, ret_peer);

    if (err != 0) {
        return err;
    }
    if (!mu_rref_hear(t, now, *ret_peer, msg->life)) {
        return MU_RREF_STALE;
    }
    mu_rref_raise_floor(*ret_peer, msg->floor);
    return 0;
}

int mu_rref_on_create(struct mu_rref_table *t, mu_mono_t now, const char *from,
                      const struct mu_rref_msg *msg, struct mu_rref_value **ret_value)
{
    struct mu_rref_peer *peer;
    struct mu_rref_fork *fork;
    struct mu_rref_value *v;
    int err = listen_to(t, now, from, msg, &peer);

    *ret_value = NULL;
    if (err != 0) {
        return err;
    }
    if (msg->rref.life != msg->life || msg->rref.number == 0 ||
        !mu_rref_id_equal(msg->rref, msg->fork)) {
        return MUSTER_EPROTO; /* The creator gives the numbers. */
    }
    fork = mu_rref_find_fork(t, msg->fork);
    if (fork != NULL) {
        return fork->holder == peer ? MU_RREF_DONE : MUSTER_EPROTO;
    }
    if (mu_rref_find_value(t, msg->rref) != NULL) {
        return MUSTER_EPROTO;
    }
    if (t->values.count >= t->config.values_max || t->forks.count >= t->config.forks_max) {
        return MUSTER_ELIMIT;
    }
    err = mu_rref_add_value(t, msg->rref, &v);
    if (err != 0) {
        return err;
    }
    err = mu_rref_add_fork(t, v, msg->fork, peer);
    if (err != 0) {
        mu_map_remove(&t->values, &v->by_id);
        mu_rref_value_free(t, v);
        return err;
    }
    *ret_value = v;
    return MU_RREF_DONE;
}

/* A token of ours has arrived. */
static void settle_own(struct mu_rref_table *t, mu_mono_t now, const struct mu_rref_peer *peer,
                       struct mu_rref_id fork)
{
    struct mu_rref_child *c =
        fork.life == t->config.life ? mu_rref_find_child(t, fork.number) : NULL;

    if (c != NULL && c->dest == peer) {
        mu_rref_settle(t, now, c);
    }
}

int mu_rref_on_fork(struct mu_rref_table *t, mu_mono_t now, const char *from,
                    const struct mu_rref_msg *msg)
{
    struct mu_rref_peer *peer;
    int err = listen_to(t, now, from, msg, &peer);
    struct mu_rref_value *v = mu_rref_find_value(t, msg->rref);
    const struct mu_rref_fork *fork = mu_rref_find_fork(t, msg->fork);

    if (err != 0) {
        return err;
    }
    if (fork != NULL && (fork->holder != peer || fork->value != v)) {
        return MUSTER_EPROTO;
    }
    if (v != NULL && fork == NULL) {
        err = t->forks.count >= t->config.forks_max ? MUSTER_ELIMIT
                                                    : mu_rref_add_fork(t, v, msg->fork, peer);
    }
    if (err == 0) { /* Not earlier: our own user may have been the last one. */
        settle_own(t, now, peer, msg->fork);
    }
    return err != 0 ? err : v != NULL ? MU_RREF_DONE : MU_RREF_UNKNOWN;
}

int mu_rref_on_accept(struct mu_rref_table *t, mu_mono_t now, const char *from,
                      const struct mu_rref_msg *msg)
{
    struct mu_rref_peer *peer;
    int err = listen_to(t, now, from, msg, &peer);

    if (err == 0) {
        settle_own(t, now, peer, msg->fork);
    }
    return err;
}

int mu_rref_on_delete(struct mu_rref_table *t, mu_mono_t now, const char *from,
                      const struct mu_rref_msg *msg)
{
    struct mu_rref_peer *peer;
    int err = listen_to(t, now, from, msg, &peer);
    struct mu_rref_fork *fork = err == 0 ? mu_rref_find_fork(t, msg->fork) : NULL;

    if (fork != NULL && fork->holder == peer) {
        mu_rref_remove_fork(t, fork);
    }
    return err;
}

int mu_rref_on_cancel(struct mu_rref_table *t, mu_mono_t now, const char *from,
                      const struct mu_rref_msg *msg)
{
    struct mu_map_node *node;
    struct mu_rref_peer *peer;
    int err = listen_to(t, now, from, msg, &peer);

    if (err != 0) {
        return err;
    }
    if (msg->fork.life != msg->life) {
        return MUSTER_EPROTO;
    }
    node = mu_map_find(&t->users, mu_span(&msg->fork, sizeof(msg->fork)));
    if (node != NULL) {
        const struct mu_rref_user *u = MU_CONTAINER_OF(node, struct mu_rref_user, by_fork);

        /* Once its parent was told or given up, there is nothing to wait for. */
        return u->asked && u->parent == NULL ? MU_RREF_VOID : MU_RREF_TAKEN;
    }
    err = mu_rref_add_void(peer, msg->fork.number);
    return err != 0 ? err : MU_RREF_VOID;
}

int mu_rref_on_probe(struct mu_rref_table *t, mu_mono_t now, const char *from,
                     const struct mu_rref_msg *msg)
{
    struct mu_rref_peer *peer;

    return listen_to(t, now, from, msg, &peer);
}
