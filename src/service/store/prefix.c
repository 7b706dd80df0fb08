/*
 * A view of another store: `prefix` and '/' before every key on the way in, off again on the way
 * out. It works as PyTorch's PrefixStore, except that list_keys respects the slash; num_keys counts
 * the whole inner store, as there.
 */
#include "service/store/store.h"

#include <string.h>

#include "core/alloc.h"

struct prefix_op {
    struct mu_store_op sub;
    struct mu_store_op *op;
    struct prefix_store *store;
    struct mu_list link;
    struct mu_span keys[]; /* the bytes of the keys follow */
};

struct prefix_store {
    struct mu_store base;
    struct mu_store *inner;
    struct mu_list ops;
    size_t prefix_len; /* with its slash */
    char prefix[];
};

/* Strips the prefix off keys in a list, and drops those that do not have it. */
static size_t strip_keys(const struct prefix_store *s, struct mu_span *keys, size_t count)
{
    struct mu_span prefix = mu_span(s->prefix, s->prefix_len);
    size_t kept = 0;

    for (size_t i = 0; i < count; i++) {
        if (mu_span_starts_with(keys[i], prefix)) {
            keys[kept++] = mu_span_skip(keys[i], s->prefix_len);
        }
    }
    return kept;
}

static void on_sub_done(struct mu_store_op *sub)
{
    struct prefix_op *p = MU_CONTAINER_OF(sub, struct prefix_op, sub);
    struct mu_store_op *op = p->op;
    struct mu_span *keys = NULL;

    mu_list_remove(&p->link);
    op->impl = NULL;
    op->reply = sub->reply;
    if (op->request.verb == MU_STORE_LIST_KEYS && sub->status == 0) {
        keys = mu_calloc(sub->reply.value_count, sizeof(*keys));
        if (keys == NULL) {
            mu_store_finish(op, MUSTER_ENOMEM, NULL);
            mu_free(p);
            return;
        }
        if (sub->reply.value_count != 0) {
            memcpy(keys, sub->reply.values, sub->reply.value_count * sizeof(*keys));
        }
        op->reply.value_count = strip_keys(p->store, keys, sub->reply.value_count);
        op->reply.number = (int64_t)op->reply.value_count;
        op->reply.values = keys;
    }
    mu_store_finish(op, sub->status, sub->errmsg.text);
    mu_free(keys);
    mu_free(p);
}

static void on_sub_change(struct mu_store_op *sub, const struct mu_change *change)
{
    struct prefix_op *p = MU_CONTAINER_OF(sub, struct prefix_op, sub);
    struct mu_change stripped = *change;

    if (strip_keys(p->store, &stripped.key, 1) == 1) {
        p->op->change(p->op, &stripped);
    }
}

static void prefix_submit(struct mu_store *store, struct mu_store_op *op)
{
    struct prefix_store *s = MU_CONTAINER_OF(store, struct prefix_store, base);
    const struct mu_store_request *q = &op->request;
    /* A list without a key lists all keys that begin with the prefix. */
    size_t count = q->verb == MU_STORE_LIST_KEYS ? 1 : q->key_count;
    size_t bytes = sizeof(struct prefix_op) + count * (sizeof(struct mu_span) + s->prefix_len);
    struct prefix_op *p;
    uint8_t *at;

    for (size_t i = 0; i < q->key_count; i++) {
        bytes += q->keys[i].len;
    }
    p = mu_store_alloc(store, op, 0, bytes);
    if (p == NULL) {
        return;
    }
    at = (uint8_t *)(p->keys + count);
    for (size_t i = 0; i < count; i++) {
        struct mu_span key = i < q->key_count ? q->keys[i] : (struct mu_span){0};

        memcpy(at, s->prefix, s->prefix_len);
        if (key.len != 0) {
            memcpy(at + s->prefix_len, key.data, key.len);
        }
        p->keys[i] = mu_span(at, s->prefix_len + key.len);
        at += s->prefix_len + key.len;
    }
    p->op = op;
    p->store = s;
    p->sub.request = *q;
    p->sub.request.keys = p->keys;
    p->sub.request.key_count = count;
    p->sub.timeout_ms = op->timeout_ms;
    p->sub.done = on_sub_done;
    p->sub.change = on_sub_change;
    op->impl = p;
    mu_list_push(&s->ops, &p->link);
    mu_store_submit(s->inner, &p->sub);
}

static void prefix_cancel(struct mu_store *store, struct mu_store_op *op)
{
    struct prefix_op *p = op->impl;

    (void)store;
    if (p != NULL) {
        mu_store_cancel(&p->sub);
    }
}

static void on_inner_closed(void *context)
{
    struct prefix_store *s = context;

    if (s->base.closed != NULL) {
        s->base.closed(s->base.context);
    }
    mu_free(s);
}

static void prefix_close(struct mu_store *store)
{
    struct prefix_store *s = MU_CONTAINER_OF(store, struct prefix_store, base);

    mu_store_close(s->inner, on_inner_closed, s);
}

static const struct mu_store_kind prefix_kind = {
    .submit = prefix_submit,
    .cancel = prefix_cancel,
    .close = prefix_close,
};

int mu_store_prefix_new(struct mu_env *env, const char *prefix, struct mu_store **ret_store)
{
    size_t len = strlen(prefix);
    struct prefix_store *s = mu_calloc(1, sizeof(*s) + len + 1);

    if (s == NULL) {
        return MUSTER_ENOMEM;
    }
    s->base.kind = &prefix_kind;
    s->base.env = env;
    memcpy(s->prefix, prefix, len);
    s->prefix[len] = '/';
    s->prefix_len = len + 1;
    mu_list_init(&s->ops);
    *ret_store = &s->base;
    return 0;
}

void mu_store_prefix_onto(struct mu_store *prefix, struct mu_store *inner)
{
    MU_CONTAINER_OF(prefix, struct prefix_store, base)->inner = inner;
}

void mu_store_prefix_drop(struct mu_store *prefix)
{
    if (prefix != NULL) {
        mu_free(MU_CONTAINER_OF(prefix, struct prefix_store, base));
    }
}
