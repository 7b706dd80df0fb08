/* The text of a writing transaction: its slot, its guards, what it does, what it asks for if it
 * fails. */
#include "core/alloc.h"
#include "proto/store/backing_internal.h"

/* etcd takes 128 operations in each branch. */
#define SUCCESS_MAX (1 + 2 * MU_BACKING_KEYS)

struct text {
    struct mu_buf names;
    struct mu_etcd_compare compares[1 + MU_BACKING_KEYS];
    struct mu_etcd_op success[SUCCESS_MAX];
    struct mu_etcd_op failure[1 + MU_BACKING_KEYS];
    struct mu_etcd_txn txn;
};

static struct mu_span last_name(const struct mu_buf *names, size_t from)
{
    return mu_span_skip(mu_buf_span(names), from);
}

static void add_slot(struct mu_backing_txn *t, struct text *x)
{
    struct mu_span slot = mu_span(t->slot, t->slot_len);

    x->compares[0] =
        (struct mu_etcd_compare){.key = slot, .target = MU_ETCD_MOD, .number = t->slot_known};
    x->success[0] = (struct mu_etcd_op){.kind = MU_ETCD_PUT,
                                        .key = slot,
                                        .value = t->fencing ? MU_SPAN_LIT(MU_BACKING_FENCED)
                                                            : MU_SPAN_LIT(MU_BACKING_WRITTEN),
                                        .lease = t->slot_session};
    x->failure[0] = (struct mu_etcd_op){.kind = MU_ETCD_RANGE, .key = slot};
    x->txn = (struct mu_etcd_txn){
        .compares = x->compares,
        .compare_count = 1,
        .success = x->success,
        .success_count = 1,
        .failure = x->failure,
        .failure_count = 1,
    };
}

static void add_guard(struct text *x, struct mu_span name, int64_t mod, bool count_only)
{
    x->compares[x->txn.compare_count++] =
        (struct mu_etcd_compare){.key = name, .target = MU_ETCD_MOD, .number = mod};
    x->failure[x->txn.failure_count++] =
        (struct mu_etcd_op){.kind = MU_ETCD_RANGE, .key = name, .count_only = count_only};
}

static void add_touch(struct mu_backing_txn *t, struct text *x,
                      const struct mu_backing_touch *touch)
{
    size_t from = x->names.len;
    struct mu_span name;

    (void)mu_backing_name_key(t->m, &x->names, touch->key->node.key);
    name = last_name(&x->names, from);
    if (touch->guard) {
        add_guard(x, name, touch->mod, false);
    }
    if (touch->dirty) {
        x->success[x->txn.success_count++] = (struct mu_etcd_op){
            .kind = touch->present ? MU_ETCD_PUT : MU_ETCD_DELETE,
            .key = name,
            .value = mu_backing_value(touch),
            .lease = touch->lease,
        };
    }
}

static void add_queue_op(struct mu_backing_txn *t, struct text *x, struct mu_backing_op *op)
{
    struct mu_span name = mu_span(mu_buf_span(&op->held).data, op->name_len);
    bool push = op->request.verb == MU_STORE_QUEUE_PUSH;
    struct mu_etcd_op count = {.kind = MU_ETCD_RANGE, .count_only = true};
    size_t from = x->names.len;

    (void)mu_backing_name_queue(t->m, &x->names, op->request.keys[0], false);
    count.key = last_name(&x->names, from);
    from = x->names.len;
    (void)mu_backing_name_queue(t->m, &x->names, op->request.keys[0], true);
    count.end = last_name(&x->names, from);
    if (!push) {
        add_guard(x, name, op->element_mod, true);
    }
    x->success[x->txn.success_count++] = (struct mu_etcd_op){
        .kind = push ? MU_ETCD_PUT : MU_ETCD_DELETE,
        .key = name,
        .value = push ? op->request.values[0] : (struct mu_span){0},
    };
    op->result_at = x->txn.success_count;
    x->success[x->txn.success_count++] = count;
}

/* All names are written at once, so that no name moves. */
static int reserve_names(struct mu_backing_txn *t, struct mu_buf *names)
{
    size_t each = t->m->prefix_len + 16;
    size_t bytes = 0;

    for (size_t i = 0; i < t->touch_count; i++) {
        bytes += each + t->touches[i].key->node.key.len;
    }
    MU_LIST_FOREACH (it, &t->ops) {
        bytes += 2 * (each + MU_CONTAINER_OF(it, struct mu_backing_op, link)->request.keys[0].len);
    }
    return mu_buf_reserve(names, bytes);
}

/* Returns whether a guard is likely to fail: the key is unknown, or others change it. */
static bool may_conflict(const struct mu_backing_txn *t)
{
    for (size_t i = 0; i < t->touch_count; i++) {
        const struct mu_backing_touch *touch = &t->touches[i];

        if (touch->guard && (touch->key->as_of == 0 || touch->key->hot != 0)) {
            return true;
        }
    }
    MU_LIST_FOREACH (it, &t->ops) {
        if (MU_CONTAINER_OF(it, struct mu_backing_op, link)->request.verb == MU_STORE_QUEUE_POP) {
            return true;
        }
    }
    return false;
}

int mu_backing_encode(struct mu_backing_txn *t)
{
    struct text *x = mu_malloc(sizeof(*x));
    int err;

    if (x == NULL) {
        return MUSTER_ENOMEM;
    }
    mu_buf_init(&x->names, SIZE_MAX / 2);
    err = reserve_names(t, &x->names);
    if (err == 0) {
        add_slot(t, x);
        for (size_t i = 0; i < t->touch_count; i++) {
            add_touch(t, x, &t->touches[i]);
        }
        MU_LIST_FOREACH (it, &t->ops) {
            struct mu_backing_op *op = MU_CONTAINER_OF(it, struct mu_backing_op, link);

            if (mu_backing_on_queue(op)) {
                add_queue_op(t, x, op);
            }
        }
        t->results = x->txn.success_count;
        t->asking = t->asking || may_conflict(t);
        x->txn.failure_count = t->asking ? x->txn.failure_count : 0; /* etcd reads JSON slowly. */
        mu_buf_reset(&t->body);
        err = mu_etcd_encode_txn(&t->body, &x->txn);
    }
    mu_buf_fini(&x->names);
    mu_free(x);
    return err;
}

int mu_backing_encode_asking(struct mu_backing_txn *t)
{
    t->asking = true;
    return mu_backing_encode(t);
}

/* Writes only the slot: no earlier try of this can happen after it. */
int mu_backing_encode_fence(struct mu_backing_txn *t)
{
    struct text *x = mu_malloc(sizeof(*x));
    int err;

    if (x == NULL) {
        return MUSTER_ENOMEM;
    }
    add_slot(t, x);
    t->asking = true;
    mu_buf_reset(&t->body);
    err = mu_etcd_encode_txn(&t->body, &x->txn);
    mu_free(x);
    return err;
}
