/* The changes of a watch that has a queue: kept until they are taken, up to a bound. */
#include "api/store_api.h"

#include <string.h>

#include "core/alloc.h"

struct mu_op_change {
    struct mu_list link;
    struct muster_change change;
    uint8_t bytes[]; /* key, then value */
};

static size_t size_of(size_t key_len, size_t value_len)
{
    return sizeof(struct mu_op_change) + key_len + value_len;
}

void mu_op_changes_init(muster_op *op)
{
    mu_list_init(&op->changes.waiting);
}

void mu_op_changes_fini(muster_op *op)
{
    struct mu_list *it;

    while ((it = mu_list_pop(&op->changes.waiting)) != NULL) {
        mu_free(MU_CONTAINER_OF(it, struct mu_op_change, link));
    }
    mu_free(op->changes.taken);
    op->changes.taken = NULL;
}

bool mu_op_changes_keep(muster_op *op, const struct mu_change *change)
{
    struct mu_op_changes *c = &op->changes;
    size_t size = size_of(change->key.len, change->value.len);
    struct mu_op_change *kept;

    if (c->lost != 0) {
        return true; /* it is ending already */
    }
    if (size > MU_OP_CHANGES_BYTES_MAX - c->bytes) {
        c->lost = MUSTER_EOVERFLOW;
        return false;
    }
    kept = mu_malloc(size);
    if (kept == NULL) {
        c->lost = MUSTER_ENOMEM;
        return false;
    }
    kept->change = (struct muster_change){
        .kind = (enum muster_change_kind)change->kind,
        .revision = change->revision,
        .key = {kept->bytes, change->key.len},
        .value = {kept->bytes + change->key.len, change->value.len},
    };
    if (change->key.len != 0) {
        memcpy(kept->bytes, change->key.data, change->key.len);
    }
    if (change->value.len != 0) {
        memcpy(kept->bytes + change->key.len, change->value.data, change->value.len);
    }
    c->bytes += size;
    mu_list_init(&kept->link);
    mu_list_push(&c->waiting, &kept->link);
    (void)mu_queued_push(&op->place, MUSTER_QUEUED_CHANGE);
    return true;
}

void mu_op_changes_end(muster_op *op)
{
    if (mu_list_empty(&op->changes.waiting) && !op->changes.end_told) {
        op->changes.end_told = true;
        (void)mu_queued_push(&op->place, MUSTER_QUEUED_OP);
    }
}

static struct mu_op_change *take(struct mu_op_changes *c)
{
    struct mu_list *it = mu_list_pop(&c->waiting);
    struct mu_op_change *taken = it == NULL ? NULL : MU_CONTAINER_OF(it, struct mu_op_change, link);

    if (taken != NULL) {
        c->bytes -= size_of(taken->change.key.len, taken->change.value.len);
    }
    return taken;
}

int muster_op_change_next(muster_op *op, struct muster_change *ret_change)
{
    struct mu_op_changes *c = &op->changes;
    struct mu_op_change *old;
    bool came;

    if (op->place.queue == NULL || op->op.request.verb != MU_STORE_WATCH) {
        return mu_api_error(MUSTER_EINVAL, "only a watch that was submitted with a queue has "
                                           "changes to take");
    }
    (void)pthread_mutex_lock(&op->lock);
    old = c->taken;
    c->taken = take(c);
    came = c->taken != NULL;
    if (came) {
        *ret_change = c->taken->change;
    }
    /* A queue never says that there are changes when there are none. */
    if (mu_list_empty(&c->waiting) && !c->end_told) {
        (void)mu_queued_leave(&op->place);
        if (op->ended) {
            mu_op_changes_end(op);
        }
    }
    (void)pthread_mutex_unlock(&op->lock);
    mu_free(old);
    return came ? 1 : 0;
}
