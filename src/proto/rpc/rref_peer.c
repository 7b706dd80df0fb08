/* Workers: their lives, what they leave behind, and the requests for signs of life. */
#include "proto/rpc/rref_internal.h"

#include "core/alloc.h"

struct mu_rref_peer *mu_rref_peer_find(struct mu_rref_table *t, const char *name)
{
    struct mu_map_node *node = mu_map_find(&t->peers, mu_span_str(name));

    return node == NULL ? NULL : MU_CONTAINER_OF(node, struct mu_rref_peer, by_name);
}

int mu_rref_peer_get(struct mu_rref_table *t, const char *name, struct mu_rref_peer **ret_peer)
{
    struct mu_rref_peer *peer = mu_rref_peer_find(t, name);

    if (peer == NULL && t->peers.count >= t->config.peers_max) {
        return MUSTER_ELIMIT;
    }
    if (peer == NULL) {
        peer = mu_calloc(1, sizeof(*peer));
        if (peer == NULL) {
            return MUSTER_ENOMEM;
        }
        memcpy(peer->name, name, strlen(name) + 1);
        mu_list_init(&peer->forks);
        mu_list_init(&peer->users);
        mu_list_init(&peer->taken);
        mu_list_init(&peer->children);
        mu_list_init(&peer->voids);
        mu_rref_op_init(&peer->probe);
        if (mu_map_insert(&t->peers, &peer->by_name, mu_span_str(peer->name)) != 0) {
            mu_free(peer);
            return MUSTER_ENOMEM;
        }
        mu_list_push(&t->all_peers, &peer->all);
    }
    *ret_peer = peer;
    return 0;
}

static void drop_voids(struct mu_rref_peer *peer, uint64_t below)
{
    MU_LIST_FOREACH_SAFE (it, tmp, &peer->voids) {
        struct mu_rref_void *v = MU_CONTAINER_OF(it, struct mu_rref_void, link);

        if (v->number < below) {
            mu_list_remove(it);
            mu_free(v);
        }
    }
}

void mu_rref_peer_free(struct mu_rref_table *t, struct mu_rref_peer *peer)
{
    drop_voids(peer, UINT64_MAX);
    mu_map_remove(&t->peers, &peer->by_name);
    mu_free(peer);
}

/* --- its tokens ------------------------------------------------------------------------------- */

void mu_rref_raise_floor(struct mu_rref_peer *peer, uint64_t floor)
{
    if (floor > peer->floor) {
        peer->floor = floor;
        drop_voids(peer, floor);
    }
}

int mu_rref_add_void(struct mu_rref_peer *peer, uint64_t number)
{
    struct mu_rref_void *v;

    MU_LIST_FOREACH (it, &peer->voids) {
        if (MU_CONTAINER_OF(it, struct mu_rref_void, link)->number == number) {
            return 0;
        }
    }
    v = mu_calloc(1, sizeof(*v));
    if (v == NULL) {
        return MUSTER_ENOMEM;
    }
    v->number = number;
    mu_list_push(&peer->voids, &v->link);
    return 0;
}

bool mu_rref_is_void(const struct mu_rref_peer *peer, struct mu_rref_id fork)
{
    if (peer->life != 0 && fork.life != peer->life) {
        return false;
    }
    MU_LIST_FOREACH (it, &peer->voids) {
        if (MU_CONTAINER_OF(it, struct mu_rref_void, link)->number == fork.number) {
            return true;
        }
    }
    return peer->life != 0 && fork.number < peer->floor;
}

/* --- lives ------------------------------------------------------------------------------------ */

bool mu_rref_is_gone(const struct mu_rref_peer *peer, uint64_t life)
{
    for (size_t i = 0; i < MU_RREF_LIVES_MAX; i++) {
        if (peer->gone[i] == life) {
            return true;
        }
    }
    return peer->removed;
}

/* The worker's process has ended, or does not count any more. */
static void lose(struct mu_rref_table *t, mu_mono_t now, struct mu_rref_peer *peer, int status)
{
    uint64_t life = peer->life;
    struct mu_list users;
    struct mu_list *it;

    if (status == MUSTER_ESESSION) {
        peer->gone[peer->gone_count++ % MU_RREF_LIVES_MAX] = life;
    }
    peer->life = 0;
    peer->floor = 0;
    drop_voids(peer, UINT64_MAX);
    while (!mu_list_empty(&peer->forks) && (!t->config.leaky || status != MUSTER_ESESSION)) {
        mu_rref_remove_fork(t, MU_CONTAINER_OF(peer->forks.next, struct mu_rref_fork, held));
    }
    /* Tokens to a worker that was restarted may be on their way to the new process: their calls,
     * and CANCEL after them, will tell whether they have arrived. */
    while (!mu_list_empty(&peer->children) && status == MUSTER_EWORKER) {
        mu_rref_settle(t, now, MU_CONTAINER_OF(peer->children.next, struct mu_rref_child, by_dest));
    }
    while (!mu_list_empty(&peer->taken)) {
        mu_rref_user_told(t, now,
                          MU_CONTAINER_OF(peer->taken.next, struct mu_rref_user, by_parent));
    }
    /* Each may be freed, and others with it. */
    mu_list_init(&users);
    while ((it = mu_list_pop(&peer->users)) != NULL) {
        mu_list_push(&users, it);
    }
    while ((it = mu_list_pop(&users)) != NULL) {
        struct mu_rref_user *u = MU_CONTAINER_OF(it, struct mu_rref_user, by_owner);

        mu_list_push(&peer->users, it);
        /* A value that is being created may be at the new process already: its answer will tell. */
        if (status == MUSTER_EWORKER || u->owner_life == life) {
            mu_rref_user_lose(t, now, u, status);
        }
    }
}

bool mu_rref_hear(struct mu_rref_table *t, mu_mono_t now, struct mu_rref_peer *peer, uint64_t life)
{
    if (mu_rref_is_gone(peer, life)) {
        return false;
    }
    if (peer->life != 0 && peer->life != life) {
        lose(t, now, peer, MUSTER_ESESSION);
    }
    peer->life = life;
    peer->heard = now;
    return true;
}

int mu_rref_peer_back(struct mu_rref_table *t, const char *name)
{
    struct mu_rref_peer *peer;
    int err = mu_rref_is_self(t, name) ? 0 : mu_rref_peer_get(t, name, &peer);

    if (err == 0 && !mu_rref_is_self(t, name)) {
        peer->removed = false;
    }
    return err;
}

void mu_rref_peer_gone(struct mu_rref_table *t, mu_mono_t now, const char *name)
{
    struct mu_rref_peer *peer = mu_rref_peer_find(t, name);

    if (peer != NULL) {
        peer->removed = true;
        lose(t, now, peer, MUSTER_EWORKER);
    }
}

/* --- signs of life ---------------------------------------------------------------------------- */

void mu_rref_watch(struct mu_rref_table *t, struct mu_rref_peer *peer)
{
    if (peer->probe.state == MU_RREF_OP_IDLE) {
        mu_rref_op_queue(t, mu_mono_add_ms(peer->heard, t->config.probe_ms), &peer->probe,
                         MU_RREF_PROBE, peer);
    }
}

void mu_rref_probe_ended(struct mu_rref_table *t, mu_mono_t now, struct mu_rref_peer *peer)
{
    if (!mu_list_empty(&peer->forks) || !mu_list_empty(&peer->children)) {
        mu_rref_op_queue(t, mu_mono_add_ms(now, t->config.probe_ms), &peer->probe, MU_RREF_PROBE,
                         peer);
    }
}
