#include "proto/rpc/rref_internal.h"

#include "core/alloc.h"
#include "core/assert.h"

struct mu_rref_config mu_rref_config_defaults(void)
{
    return (struct mu_rref_config){
        .again_ms = 200,
        .again_ms_max = 5000,
        .probe_ms = 10000,
        .values_max = (size_t)1 << 20,
        .forks_max = (size_t)1 << 22,
        .peers_max = 65536,
    };
}

void mu_rref_init(struct mu_rref_table *t, const struct mu_rref_config *config)
{
    *t = (struct mu_rref_table){.config = *config};
    mu_map_init(&t->peers, config->seed);
    mu_map_init(&t->values, config->seed);
    mu_map_init(&t->forks, config->seed);
    mu_map_init(&t->users, config->seed);
    mu_map_init(&t->children, config->seed);
    mu_list_init(&t->all_peers);
    mu_list_init(&t->all_users);
    mu_list_init(&t->pending);
    mu_list_init(&t->changed);
    mu_list_init(&t->dead);
    mu_heap_init(&t->due);
}

void mu_rref_fini(struct mu_rref_table *t)
{
    struct mu_map_node *node;
    struct mu_list *it;

    while ((it = mu_list_pop(&t->pending)) != NULL) {
        mu_free(MU_CONTAINER_OF(it, struct mu_rref_child, link));
    }
    while ((it = mu_list_pop(&t->all_users)) != NULL) {
        struct mu_rref_user *u = MU_CONTAINER_OF(it, struct mu_rref_user, all);

        mu_free(u->payload);
        mu_free(u);
    }
    while ((node = mu_map_next(&t->forks, NULL)) != NULL) {
        mu_rref_remove_fork(t, MU_CONTAINER_OF(node, struct mu_rref_fork, by_id));
    }
    while ((it = mu_list_pop(&t->dead)) != NULL) {
        mu_rref_value_free(t, MU_CONTAINER_OF(it, struct mu_rref_value, dead));
    }
    while ((it = mu_list_pop(&t->all_peers)) != NULL) {
        mu_rref_peer_free(t, MU_CONTAINER_OF(it, struct mu_rref_peer, all));
    }
    mu_map_fini(&t->peers);
    mu_map_fini(&t->values);
    mu_map_fini(&t->forks);
    mu_map_fini(&t->users);
    mu_map_fini(&t->children);
}

void mu_rref_stop(struct mu_rref_table *t)
{
    t->stopped = true;
}

/* --- messages --------------------------------------------------------------------------------- */

void mu_rref_op_init(struct mu_rref_op *op)
{
    *op = (struct mu_rref_op){.state = MU_RREF_OP_IDLE};
    mu_heap_node_init(&op->due);
}

void mu_rref_op_drop(struct mu_rref_table *t, struct mu_rref_op *op)
{
    if (op->state == MU_RREF_OP_QUEUED) {
        mu_heap_remove(&t->due, &op->due);
        op->state = MU_RREF_OP_IDLE;
    }
}

void mu_rref_op_queue(struct mu_rref_table *t, mu_mono_t at, struct mu_rref_op *op,
                      enum mu_rref_verb verb, struct mu_rref_peer *peer)
{
    if (op->state == MU_RREF_OP_OUT) {
        return;
    }
    mu_rref_op_drop(t, op);
    if (op->verb != verb) {
        op->failures = 0;
    }
    op->verb = verb;
    op->peer = peer;
    op->state = MU_RREF_OP_QUEUED;
    mu_heap_insert(&t->due, &op->due, at);
}

uint64_t mu_rref_floor(const struct mu_rref_table *t)
{
    return mu_list_empty(&t->pending)
               ? t->number + 1
               : MU_CONTAINER_OF(t->pending.next, struct mu_rref_child, link)->number;
}

static void fill(struct mu_rref_table *t, struct mu_rref_op *op)
{
    const struct mu_rref_user *u;
    const struct mu_rref_child *c;

    op->msg = (struct mu_rref_msg){.life = t->config.life, .floor = mu_rref_floor(t)};
    switch (op->verb) {
    case MU_RREF_CREATE:
    case MU_RREF_FORK:
    case MU_RREF_ACCEPT:
    case MU_RREF_DELETE:
        u = MU_CONTAINER_OF(op, struct mu_rref_user, op);
        op->msg.rref = u->rref;
        op->msg.fork = u->fork;
        return;
    case MU_RREF_CANCEL:
        c = MU_CONTAINER_OF(op, struct mu_rref_child, op);
        op->msg.rref = c->parent->rref;
        op->msg.fork = (struct mu_rref_id){t->config.life, c->number};
        return;
    case MU_RREF_PROBE:
        return;
    }
}

struct mu_rref_op *mu_rref_next_op(struct mu_rref_table *t, mu_mono_t now)
{
    struct mu_heap_node *node = t->stopped ? NULL : mu_heap_pop_due(&t->due, now);
    struct mu_rref_op *op;

    if (node == NULL) {
        return NULL;
    }
    op = MU_CONTAINER_OF(node, struct mu_rref_op, due);
    op->state = MU_RREF_OP_OUT;
    fill(t, op);
    return op;
}

struct mu_rref_user *mu_rref_op_user(struct mu_rref_op *op)
{
    MU_ASSERT(op->verb == MU_RREF_CREATE);
    return MU_CONTAINER_OF(op, struct mu_rref_user, op);
}

void mu_rref_op_ended(struct mu_rref_table *t, mu_mono_t now, struct mu_rref_op *op, int status,
                      const struct mu_rref_answer *answer)
{
    struct mu_rref_answer none = {0};

    MU_ASSERT(op->state == MU_RREF_OP_OUT);
    /* A message that is out is not freed, whatever follows from a new life. */
    if (status == 0 && !mu_rref_hear(t, now, op->peer, answer->life)) {
        status = MUSTER_ESESSION;
    }
    if (status == 0) {
        mu_rref_raise_floor(op->peer, answer->floor);
    }
    answer = status == 0 ? answer : &none;
    op->state = MU_RREF_OP_IDLE;
    op->failures += status != 0 ? 1 : 0;
    switch (op->verb) {
    case MU_RREF_CREATE:
    case MU_RREF_FORK:
    case MU_RREF_ACCEPT:
    case MU_RREF_DELETE:
        mu_rref_user_ended(t, now, MU_CONTAINER_OF(op, struct mu_rref_user, op), status, answer);
        return;
    case MU_RREF_CANCEL:
        mu_rref_child_ended(t, now, MU_CONTAINER_OF(op, struct mu_rref_child, op), status, answer);
        return;
    case MU_RREF_PROBE:
        mu_rref_probe_ended(t, now, MU_CONTAINER_OF(op, struct mu_rref_peer, probe));
        return;
    }
}

struct mu_rref_user *mu_rref_next_changed(struct mu_rref_table *t)
{
    struct mu_list *it = mu_list_pop(&t->changed);

    return it == NULL ? NULL : MU_CONTAINER_OF(it, struct mu_rref_user, changed);
}

struct mu_rref_value *mu_rref_next_dead(struct mu_rref_table *t)
{
    struct mu_list *it = mu_list_pop(&t->dead);

    return it == NULL ? NULL : MU_CONTAINER_OF(it, struct mu_rref_value, dead);
}

mu_mono_t mu_rref_deadline(const struct mu_rref_table *t)
{
    return t->stopped ? MU_MONO_NEVER : mu_heap_deadline(&t->due);
}

void mu_rref_stats(const struct mu_rref_table *t, struct mu_rref_stats *ret)
{
    *ret = (struct mu_rref_stats){
        .values = t->values.count,
        .forks = t->forks.count,
        .users = t->users.count,
        .children = t->children.count,
    };
    MU_LIST_FOREACH (it, &t->all_users) {
        ret->pending_users += MU_CONTAINER_OF(it, struct mu_rref_user, all)->asked ? 0 : 1;
    }
}
