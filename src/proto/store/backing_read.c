/* Transactions that only read: each key once, for all operations that want it. */
#include "core/alloc.h"
#include "core/assert.h"
#include "proto/store/backing_internal.h"

#define RANGES_MAX 120 /* etcd takes 128 */
#define CHUNK      50  /* keys of one check or wait; each may take two ranges */

/* --- making one ------------------------------------------------------------------------------- */

static size_t keys_wanted(const struct mu_backing_op *op)
{
    const struct mu_store_request *q = &op->request;
    size_t left = q->key_count - op->at;
    size_t chunk = q->verb == MU_STORE_MULTI_GET ? MU_BACKING_KEYS : CHUNK;

    return left < chunk ? left : chunk;
}

/* Adds what is wanted of one key. MUSTER_ENOMEM. */
static int want(struct mu_backing_txn *t, const struct mu_backing_op *op, struct mu_span key)
{
    struct mu_backing_touch *touch = mu_backing_touch(t, key);
    uint32_t flags = op->request.flags;

    if (touch == NULL) {
        return MUSTER_ENOMEM;
    }
    switch ((int)op->request.verb) {
    case MU_STORE_GET:
    case MU_STORE_MULTI_GET:
        if (!touch->wants_value) {
            touch->wants_value = true;
            touch->keys_only = touch->present && touch->len >= t->m->config.cached_bytes_min;
        }
        touch->keys_only = touch->keys_only && !op->full;
        break;
    case MU_STORE_CHECK:
    case MU_STORE_WAIT:
        touch->wants_presence = true;
        touch->wants_queue = touch->wants_queue || (flags & MU_BACKING_NO_QUEUES) == 0;
        break;
    default:
        touch->wants_queue = true;
        touch->wants_first = touch->wants_first || op->request.verb == MU_STORE_QUEUE_POP;
        break;
    }
    return 0;
}

/* False: it does not fit. */
static bool take(struct mu_backing_txn *t, struct mu_backing_op *op)
{
    const struct mu_store_request *q = &op->request;
    size_t count = keys_wanted(op);

    if (t->local && mu_backing_is_local(op)) {
        count = 0;
    }
    if (t->op_count != 0 && (t->touch_count + count + 1 > MU_BACKING_KEYS ||
                             2 * (t->touch_count + count) + 2 > RANGES_MAX)) {
        return false;
    }
    op->status = 0;
    op->upto = op->at + count;
    op->local = t->local && mu_backing_is_local(op);
    if (op->local) {
        op->upto = q->key_count;
    } else if (q->verb == MU_STORE_NUM_KEYS) {
        t->counts_keys = true;
    } else if (q->verb == MU_STORE_LIST_KEYS) {
        t->lists_keys = true;
    } else if (count == 0) {
        /* There is nothing to ask, but the operation must wait for its turn. */
        op->status = mu_backing_touch(t, (struct mu_span){0}) == NULL ? MUSTER_ENOMEM : 0;
    } else {
        for (size_t i = op->at; i < op->upto && op->status == 0; i++) {
            op->status = want(t, op, q->keys[i]);
        }
    }
    mu_backing_fly(t, op);
    return true;
}

static bool is_partial(const struct mu_backing_op *op)
{
    return op->upto < op->request.key_count && op->request.verb != MU_STORE_LIST_KEYS;
}

static bool take_from(struct mu_backing_txn *t, struct mu_backing_client *c)
{
    while (!mu_list_empty(&c->queue)) {
        struct mu_backing_op *op = MU_CONTAINER_OF(c->queue.next, struct mu_backing_op, link);

        if (mu_backing_is_write(t->m, op)) {
            return true;
        }
        if (!take(t, op)) {
            return false;
        }
        if (is_partial(op)) {
            return true;
        }
    }
    return true;
}

static struct mu_span last_name(const struct mu_buf *names, size_t from)
{
    return mu_span_skip(mu_buf_span(names), from);
}

static int reserve_names(struct mu_backing_txn *t, struct mu_buf *names)
{
    size_t each = t->m->prefix_len + 16;
    size_t bytes = 4 * each;

    for (size_t i = 0; i < t->touch_count; i++) {
        bytes += 3 * (each + t->touches[i].key->node.key.len);
    }
    return mu_buf_reserve(names, bytes);
}

static size_t add_touch(struct mu_backing_txn *t, struct mu_buf *names,
                        struct mu_backing_touch *touch, struct mu_etcd_op *ops, size_t count)
{
    struct mu_span key = touch->key->node.key;
    size_t from = names->len;

    if (touch->wants_value || touch->wants_presence || !touch->wants_queue) {
        (void)mu_backing_name_key(t->m, names, key);
        touch->value_at = count;
        ops[count++] = (struct mu_etcd_op){.kind = MU_ETCD_RANGE,
                                           .key = last_name(names, from),
                                           .keys_only = !touch->wants_value || touch->keys_only};
    }
    if (touch->wants_queue) {
        struct mu_etcd_op op = {.kind = MU_ETCD_RANGE,
                                .count_only = !touch->wants_first,
                                .by_creation = touch->wants_first,
                                .limit = touch->wants_first ? 1 : 0};

        from = names->len;
        (void)mu_backing_name_queue(t->m, names, key, false);
        op.key = last_name(names, from);
        from = names->len;
        (void)mu_backing_name_queue(t->m, names, key, true);
        op.end = last_name(names, from);
        touch->queue_at = count;
        ops[count++] = op;
    }
    return count;
}

static int encode(struct mu_backing_txn *t)
{
    struct mu_etcd_op ops[2 * MU_BACKING_KEYS + 2];
    struct mu_buf names;
    struct mu_span from;
    struct mu_span to;
    size_t count = 0;
    size_t at;
    int err;

    mu_buf_init(&names, SIZE_MAX / 2);
    err = reserve_names(t, &names);
    if (err == 0) {
        for (size_t i = 0; i < t->touch_count; i++) {
            count = add_touch(t, &names, &t->touches[i], ops, count);
        }
        at = names.len;
        (void)mu_backing_name_key(t->m, &names, (struct mu_span){0});
        from = last_name(&names, at);
        at = names.len;
        mu_buf_put(&names, from);
        to = last_name(&names, at);
        names.data[names.head + names.len - 1]++;
        t->count_at = count;
        if (t->counts_keys) {
            ops[count++] = (struct mu_etcd_op){
                .kind = MU_ETCD_RANGE, .key = from, .end = to, .count_only = true};
        }
        t->list_at = count;
        if (t->lists_keys) {
            ops[count++] = (struct mu_etcd_op){
                .kind = MU_ETCD_RANGE, .key = from, .end = to, .keys_only = true};
        }
        t->results = count;
        t->plain = count == 0;
        mu_buf_reset(&t->body);
        if (t->plain) {
            /* Any key will do: only the revision is wanted. */
            err = mu_etcd_encode_op(
                &t->body,
                &(struct mu_etcd_op){.kind = MU_ETCD_RANGE, .key = from, .count_only = true});
        } else {
            err = mu_etcd_encode_txn(&t->body,
                                     &(struct mu_etcd_txn){.success = ops, .success_count = count});
        }
    }
    mu_buf_fini(&names);
    return err;
}

static void end_all(struct mu_backing_txn *t, int status, const char *text)
{
    struct mu_backing *m = t->m;

    while (!mu_list_empty(&t->ops)) {
        struct mu_backing_op *op = MU_CONTAINER_OF(t->ops.next, struct mu_backing_op, link);

        if (!mu_backing_land(m, op)) {
            mu_backing_finish(m, op, status, text);
        }
    }
    mu_backing_release(t);
}

bool mu_backing_plan_reads(struct mu_backing_txn *t)
{
    t->local = mu_backing_trusts_mirror(t->m);
    if (!mu_backing_fill(t, take_from)) {
        return false;
    }
    if (encode(t) != 0) {
        end_all(t, MUSTER_ENOMEM, NULL);
        return false;
    }
    t->m->wary -= t->m->wary != 0 ? 1 : 0;
    if (!t->local) {
        mu_backing_note_gap(t->m);
    }
    return true;
}

/* --- results ---------------------------------------------------------------------------------- */

static const struct mu_etcd_kv *kv_of(const struct mu_etcd_reply *reply,
                                      const struct mu_backing_touch *touch)
{
    const struct mu_etcd_result *found = &reply->results[touch->value_at];

    return found->kv_count > 0 ? &found->kvs[0] : NULL;
}

/* The mirror learns the present values. If it finds no memory, nothing is lost. */
static void learn(struct mu_backing_txn *t, const struct mu_etcd_reply *reply)
{
    for (size_t i = 0; i < t->touch_count; i++) {
        struct mu_backing_touch *touch = &t->touches[i];
        const struct mu_etcd_kv *kv = kv_of(reply, touch);

        touch->key->draft = touch;
        if (touch->wants_value && (kv == NULL || !touch->keys_only)) {
            (void)mu_backing_learn(t->m, touch->key, kv, reply->revision);
        } else if (touch->wants_presence && reply->results[touch->value_at].count == 0) {
            (void)mu_backing_learn(t->m, touch->key, NULL, reply->revision);
        }
        if (kv != NULL) {
            mu_backing_note_answered(t->m, kv->mod_revision);
            mu_backing_expect(t->m, kv->mod_revision);
        }
        mu_backing_note_answered(t->m, touch->key->gone);
        if (touch->wants_queue && !touch->wants_first) {
            mu_backing_note_answered(t->m,
                                     reply->revision); /* The revisions of its elements are not
                                                          told. */
        }
    }
    if (t->counts_keys || t->lists_keys) {
        mu_backing_note_answered(t->m, reply->revision);
    }
    mu_backing_note_probe(t->m, reply->revision);
}

/* What happened to an operation. */
enum outcome {
    OVER = 1, /* answered, or asleep */
    AGAIN,    /* it must be read once more, or continued */
};

static enum outcome finish(struct mu_backing *m, struct mu_backing_op *op, int status)
{
    mu_backing_finish(m, op, status, NULL);
    return OVER;
}

static enum outcome answer(struct mu_backing *m, struct mu_backing_op *op, int64_t number)
{
    mu_backing_answer(m, op, number, NULL, 0);
    return OVER;
}

static struct mu_backing_touch *touch_of(const struct mu_backing *m, const struct mu_backing_op *op,
                                         size_t i)
{
    return mu_backing_find(m, op->request.keys[i])->draft;
}

/* The operation sleeps until the key comes, or has ended. */
static enum outcome sleep_on(struct mu_backing *m, struct mu_backing_op *op, struct mu_span key,
                             int64_t revision)
{
    int err = mu_backing_register(m, op, key, revision);

    if (err != 0) {
        return finish(m, op, err);
    }
    mu_backing_sleep(m, op);
    return OVER;
}

/* Puts the value of key `i` into `held`: 1; 0: there is no value; `ret_again` tells AGAIN. */
static int hold_value(struct mu_backing *m, struct mu_backing_op *op, size_t i,
                      const struct mu_etcd_reply *reply, bool *ret_again)
{
    const struct mu_backing_touch *touch = touch_of(m, op, i);
    const struct mu_etcd_kv *kv = kv_of(reply, touch);
    int err;

    if (kv == NULL) {
        return 0;
    }
    if (touch->keys_only && touch->key->mod != kv->mod_revision) {
        *ret_again = true;
        return 0;
    }
    err = mu_buf_append(&op->held,
                        touch->keys_only ? mu_span(touch->key->value, touch->key->len) : kv->value);
    return err != 0 ? err : 1;
}

static enum outcome end_get(struct mu_backing *m, struct mu_backing_op *op,
                            const struct mu_etcd_reply *reply)
{
    bool again = false;
    int got;

    mu_buf_reset(&op->held);
    got = hold_value(m, op, 0, reply, &again);
    if (again) {
        op->full = true;
        return AGAIN;
    }
    if (got < 0) {
        return finish(m, op, got);
    }
    if (got == 1) {
        op->one = mu_buf_span(&op->held);
        mu_backing_answer(m, op, 0, &op->one, 1);
        return OVER;
    }
    if ((op->request.flags & MU_STORE_NOWAIT) != 0) {
        return finish(m, op, MUSTER_ENOENT);
    }
    return sleep_on(m, op, op->request.keys[0], reply->revision);
}

/* Sets the spans of all values, which do not move any more. */
void mu_backing_answer_many(struct mu_backing *m, struct mu_backing_op *op)
{
    size_t count = op->request.key_count;
    struct mu_span rest = mu_buf_span(&op->held);

    op->values = mu_calloc(count + 1, sizeof(*op->values));
    if (op->values == NULL) {
        mu_backing_finish(m, op, MUSTER_ENOMEM, NULL);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        op->values[i] = mu_span(rest.data, op->lens[i]);
        rest = mu_span_skip(rest, op->lens[i]);
    }
    mu_backing_answer(m, op, 0, op->values, count);
}

int mu_backing_make_lens(struct mu_backing_op *op)
{
    if (op->lens == NULL) {
        op->lens = mu_calloc(op->request.key_count + 1, sizeof(*op->lens));
    }
    return op->lens == NULL ? MUSTER_ENOMEM : 0;
}

static enum outcome end_multi_get(struct mu_backing *m, struct mu_backing_op *op,
                                  const struct mu_etcd_reply *reply)
{
    bool empty = (op->request.flags & MU_BACKING_OR_EMPTY) != 0;
    bool again = false;
    size_t before = op->held.len;

    if (mu_backing_make_lens(op) != 0) {
        return finish(m, op, MUSTER_ENOMEM);
    }
    for (size_t i = op->at; i < op->upto; i++) {
        size_t from = op->held.len;
        int got = hold_value(m, op, i, reply, &again);

        if (again) {
            op->held.len = before;
            op->full = true;
            return AGAIN;
        }
        if (got < 0) {
            return finish(m, op, got);
        }
        if (got == 0 && !empty && (op->request.flags & MU_STORE_NOWAIT) != 0) {
            return finish(m, op, MUSTER_ENOENT);
        }
        if (got == 0 && !empty) {
            return sleep_on(m, op, op->request.keys[i], reply->revision);
        }
        op->lens[i] = op->held.len - from;
    }
    op->at = op->upto;
    if (op->at < op->request.key_count) {
        return AGAIN;
    }
    mu_backing_answer_many(m, op);
    return OVER;
}

static bool is_there(const struct mu_backing *m, const struct mu_backing_op *op, size_t i,
                     const struct mu_etcd_reply *reply)
{
    const struct mu_backing_touch *touch = touch_of(m, op, i);

    return reply->results[touch->value_at].count > 0 ||
           ((op->request.flags & MU_BACKING_NO_QUEUES) == 0 &&
            reply->results[touch->queue_at].count > 0);
}

static enum outcome end_check(struct mu_backing *m, struct mu_backing_op *op,
                              const struct mu_etcd_reply *reply)
{
    for (size_t i = op->at; i < op->upto; i++) {
        if (!is_there(m, op, i, reply)) {
            return answer(m, op, 0);
        }
    }
    op->at = op->upto;
    return op->at < op->request.key_count ? AGAIN : answer(m, op, 1);
}

static enum outcome end_wait(struct mu_backing *m, struct mu_backing_op *op,
                             const struct mu_etcd_reply *reply)
{
    for (size_t i = op->at; i < op->upto; i++) {
        int err = is_there(m, op, i, reply)
                      ? 0
                      : mu_backing_register(m, op, op->request.keys[i], reply->revision);

        if (err != 0) {
            return finish(m, op, err);
        }
    }
    op->at = op->upto;
    if (op->at < op->request.key_count) {
        return AGAIN;
    }
    mu_backing_sleep(m, op);
    return OVER;
}

/* The mirror has nothing: etcd has nothing either, or tells which element is the first. */
static enum outcome end_pop(struct mu_backing *m, struct mu_backing_op *op,
                            const struct mu_etcd_reply *reply)
{
    const struct mu_etcd_result *found = &reply->results[touch_of(m, op, 0)->queue_at];
    int err;

    if (found->kv_count == 0 && (op->request.flags & MU_STORE_NOWAIT) != 0) {
        return finish(m, op, MUSTER_ENOENT);
    }
    if (found->kv_count == 0) {
        return sleep_on(m, op, op->request.keys[0], reply->revision);
    }
    mu_buf_reset(&op->held);
    err = mu_buf_append(&op->held, found->kvs[0].key);
    if (err == 0) {
        err = mu_buf_append(&op->held, found->kvs[0].value);
    }
    if (err != 0) {
        return finish(m, op, err);
    }
    op->name_len = found->kvs[0].key.len;
    op->element_mod = found->kvs[0].mod_revision;
    op->chosen = true;
    return AGAIN;
}

static enum outcome end_list(struct mu_backing *m, struct mu_backing_op *op,
                             const struct mu_etcd_result *found)
{
    struct mu_span prefix = op->request.key_count == 1 ? op->request.keys[0] : (struct mu_span){0};
    size_t skip = m->prefix_len + 3;
    size_t bytes = 0;
    size_t count = 0;

    op->values = mu_calloc(found->kv_count + 1, sizeof(*op->values));
    for (size_t i = 0; i < found->kv_count; i++) {
        bytes += found->kvs[i].key.len;
    }
    mu_buf_reset(&op->held);
    if (op->values == NULL || mu_buf_reserve(&op->held, bytes) != 0) {
        return finish(m, op, MUSTER_ENOMEM);
    }
    for (size_t i = 0; i < found->kv_count; i++) {
        struct mu_span key = found->kvs[i].key;
        size_t from = op->held.len;

        if (key.len < skip || !mu_span_starts_with(mu_span_skip(key, skip), prefix)) {
            continue;
        }
        mu_buf_put(&op->held, mu_span_skip(key, skip));
        op->values[count++] = mu_span_skip(mu_buf_span(&op->held), from);
    }
    mu_backing_answer(m, op, (int64_t)count, op->values, count);
    return OVER;
}

static enum outcome end_one(struct mu_backing_txn *t, struct mu_backing_op *op,
                            const struct mu_etcd_reply *reply)
{
    struct mu_backing *m = t->m;

    if (op->status != 0) {
        return finish(m, op, op->status);
    }
    switch ((int)op->request.verb) {
    case MU_STORE_GET:
        return end_get(m, op, reply);
    case MU_STORE_MULTI_GET:
        return end_multi_get(m, op, reply);
    case MU_STORE_CHECK:
        return end_check(m, op, reply);
    case MU_STORE_WAIT:
        return end_wait(m, op, reply);
    case MU_STORE_QUEUE_POP:
        return end_pop(m, op, reply);
    case MU_STORE_QUEUE_LEN:
        return answer(m, op, reply->results[touch_of(m, op, 0)->queue_at].count);
    case MU_STORE_NUM_KEYS:
        return answer(m, op, reply->results[t->count_at].count);
    case MU_STORE_LIST_KEYS:
        return end_list(m, op, &reply->results[t->list_at]);
    default:
        MU_ASSERT(op->request.verb == MU_STORE_MULTI_SET); /* Of nothing. */
        return answer(m, op, 0);
    }
}

void mu_backing_read(struct mu_backing_txn *t, int status, const struct mu_etcd_reply *reply,
                     const char *text)
{
    struct mu_backing *m = t->m;
    struct mu_list again;

    if (status == 0 && reply->result_count < t->results) {
        status = MUSTER_EPROTO;
        text = "etcd's answer to a transaction is too short";
    }
    if (status != 0) {
        end_all(t, status, text);
        return;
    }
    learn(t, reply);
    mu_list_init(&again);
    while (!mu_list_empty(&t->ops)) {
        struct mu_backing_op *op = MU_CONTAINER_OF(t->ops.next, struct mu_backing_op, link);
        struct mu_backing_client *c = op->client;

        if (op->local && !c->stuck) {
            mu_backing_hold(m, op, reply->revision);
            continue;
        }
        if (mu_backing_land(m, op)) {
            continue;
        }
        /* Answers come in order: after one that is read again, all are read again. */
        if (c->stuck || c->held != 0 || end_one(t, op, reply) == AGAIN) {
            c->stuck = true;
            mu_list_push(&again, &op->link);
        }
    }
    while (!mu_list_empty(&again)) {
        struct mu_backing_op *op = MU_CONTAINER_OF(again.prev, struct mu_backing_op, link);

        op->client->stuck = false;
        mu_backing_requeue(m, op);
    }
    mu_backing_release(t);
    mu_backing_settle(m);
}
