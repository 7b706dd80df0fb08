/* Transactions that write: decisions from the mirror, and etcd's results. */
#include <inttypes.h>
#include <stdio.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "proto/store/backing_internal.h"
#include "proto/store/keyspace.h"

#define HOT 8u /* own transactions for a key that another server has changed */

bool mu_backing_is_write(const struct mu_backing *m, struct mu_backing_op *op)
{
    const struct mu_store_request *q = &op->request;

    if (q->verb == MU_STORE_QUEUE_POP) {
        /* Elements in the mirror can be taken; only etcd knows whether there are more. */
        return op->chosen || mu_backing_first_element(m, q->keys[0]) != NULL;
    }
    return mu_store_verb_facts(q->verb)->does == MU_STORE_CHANGES && q->key_count != 0;
}

/* --- deciding --------------------------------------------------------------------------------- */

/* What happens to an operation when a transaction is made. */
enum taken {
    TAKEN = 1,
    BLOCKED, /* not in this one */
    FULL,    /* nor any other operation */
};

/* The decision depends on the present value. */
static void guard(struct mu_backing_touch *touch)
{
    touch->guard = touch->guard || !touch->dirty;
}

/* The key will hold `first` followed by `second`. MUSTER_ENOMEM. */
static int hold(struct mu_backing_touch *touch, struct mu_span first, struct mu_span second)
{
    uint8_t *value = mu_malloc(first.len + second.len);

    if (value == NULL) {
        return MUSTER_ENOMEM;
    }
    if (first.len != 0) {
        memcpy(value, first.data, first.len);
    }
    if (second.len != 0) {
        memcpy(value + first.len, second.data, second.len);
    }
    if (touch->dirty) {
        mu_free(touch->value);
    }
    touch->value = value;
    touch->len = first.len + second.len;
    touch->present = true;
    touch->dirty = true;
    return 0;
}

static void drop_value(struct mu_backing_touch *touch)
{
    if (touch->dirty) {
        mu_free(touch->value);
    }
    touch->value = NULL;
    touch->len = 0;
    touch->lease = 0;
    touch->present = false;
    touch->dirty = true;
}

static int decide_add(struct mu_backing_touch *touch, struct mu_backing_op *op, int64_t delta)
{
    uint8_t text[24];
    int64_t number = 0;

    guard(touch);
    if (touch->present && !mu_ks_read_number(mu_backing_value(touch), &number)) {
        return MUSTER_ENOTNUM;
    }
    op->number = (int64_t)((uint64_t)number + (uint64_t)delta);
    return hold(touch, mu_ks_write_number(text, op->number), (struct mu_span){0});
}

static int decide_compare_set(struct mu_backing_touch *touch, struct mu_backing_op *op)
{
    const struct mu_span *values = op->request.values;
    bool equal =
        touch->present ? mu_span_eq(mu_backing_value(touch), values[0]) : values[0].len == 0;
    /* As in PyTorch: returns what was expected, if there is nothing and something was expected. */
    struct mu_span reply = equal ? values[1] : touch->present ? mu_backing_value(touch) : values[0];
    int err;

    guard(touch);
    op->number = equal ? 1 : 0;
    mu_buf_reset(&op->held);
    err = mu_buf_append(&op->held, reply);
    if (err == 0 && equal) {
        err = hold(touch, values[1], (struct mu_span){0});
    }
    return err;
}

/* Applies the operation to its one key. An error is its answer, if the guards hold. */
static int decide(struct mu_backing_touch *touch, struct mu_backing_op *op)
{
    const struct mu_store_request *q = &op->request;
    int err = 0;

    switch ((int)q->verb) {
    case MU_STORE_SET:
        err = hold(touch, q->values[0], (struct mu_span){0});
        touch->lease = err == 0 ? (int64_t)q->lease : touch->lease;
        return err;
    case MU_STORE_DELETE:
        guard(touch);
        op->number = touch->present ? 1 : 0;
        if (touch->present) {
            drop_value(touch);
        }
        return 0;
    case MU_STORE_ADD:
        err = decide_add(touch, op, q->number);
        break;
    case MU_STORE_BARRIER:
        err = decide_add(touch, op, 1);
        op->sleeps = op->number < q->number;
        return err;
    case MU_STORE_APPEND:
        guard(touch);
        err = hold(touch, mu_backing_value(touch), q->values[0]);
        op->number = (int64_t)touch->len;
        break;
    case MU_STORE_COMPARE_SET:
        err = decide_compare_set(touch, op);
        break;
    default:
        return MUSTER_ENOTSUP;
    }
    if (err == 0 && q->lease != 0 && touch->dirty) {
        touch->lease = (int64_t)q->lease;
    }
    return err;
}

static bool is_guarded(const struct mu_backing_op *op)
{
    return op->request.verb != MU_STORE_SET;
}

static enum taken take_one(struct mu_backing_txn *t, struct mu_backing_op *op)
{
    struct mu_span key = op->request.keys[0];
    struct mu_backing_key *k = mu_backing_get(t->m, key);
    struct mu_backing_touch *touch;

    if (k == NULL) {
        op->status = MUSTER_ENOMEM;
        return TAKEN;
    }
    if (k->writer != NULL || (t->only != NULL && t->only != k)) {
        return BLOCKED;
    }
    if (is_guarded(op) && k->hot != 0 && t->only == NULL) {
        if (t->op_count != 0) {
            return BLOCKED;
        }
        t->only = k;
    }
    if (k->draft == NULL && t->touch_count + t->queue_ops >= MU_BACKING_KEYS) {
        mu_backing_put(t->m, k);
        return FULL;
    }
    if (op->request.verb == MU_STORE_DELETE && k->draft != NULL && k->draft->dirty &&
        !(k->draft->guard && k->draft->mod != 0)) {
        return BLOCKED; /* It is unknown whether etcd has the key: a delete may then change nothing
                           that a watch could tell. */
    }
    touch = mu_backing_touch(t, key);
    op->status = decide(touch, op);
    return TAKEN;
}

static enum taken take_many(struct mu_backing_txn *t, struct mu_backing_op *op)
{
    const struct mu_store_request *q = &op->request;
    size_t room =
        t->op_count == 0 ? MU_BACKING_KEYS : MU_BACKING_KEYS - t->touch_count - t->queue_ops;
    size_t bytes = 0;
    size_t end = op->at;

    while (end < q->key_count && end - op->at < room &&
           (end == op->at || t->bytes + bytes + q->values[end].len <= t->m->config.txn_bytes_max)) {
        const struct mu_backing_key *k = mu_backing_find(t->m, q->keys[end]);

        if (k != NULL && k->writer != NULL) {
            return BLOCKED;
        }
        bytes += q->values[end++].len;
    }
    if (end < q->key_count && t->op_count != 0) {
        return FULL; /* It should stay whole if possible: it gets its own transaction. */
    }
    if (t->only != NULL) {
        return BLOCKED;
    }
    for (size_t i = op->at; i < end && op->status == 0; i++) {
        struct mu_backing_touch *touch = mu_backing_touch(t, q->keys[i]);

        op->status = touch == NULL ? MUSTER_ENOMEM : hold(touch, q->values[i], (struct mu_span){0});
        if (op->status == 0) {
            touch->lease = (int64_t)q->lease;
        }
    }
    t->bytes += bytes;
    t->starved = op->status != 0; /* All values are set, or nothing. */
    t->closed = t->starved || end < q->key_count;
    op->upto = end;
    return TAKEN;
}

/* Makes a new element's name; the names are in the order of this server's pushes. */
static int name_element(struct mu_backing *m, struct mu_backing_op *op)
{
    char text[40];
    int err = mu_backing_name_queue(m, &op->held, op->request.keys[0], false);

    if (err == 0) {
        (void)snprintf(text, sizeof(text), "%016" PRIx64 "%016" PRIx64, m->config.element_seed,
                       m->element_count++);
        err = mu_buf_append(&op->held, mu_span_str(text));
    }
    op->name_len = op->held.len;
    return err;
}

/* Puts the oldest known element into `held`. */
static int choose_element(struct mu_backing_txn *t, struct mu_backing_op *op)
{
    struct mu_backing_element *e;
    struct mu_backing_touch *touch = mu_backing_touch(t, op->request.keys[0]);
    int err = 0;

    if (touch == NULL) {
        return MUSTER_ENOMEM;
    }
    if (!op->chosen) {
        e = mu_backing_first_element(t->m, op->request.keys[0]);
        mu_buf_reset(&op->held);
        op->element_mod = e->created;
        op->name_len = e->name_len;
        err = mu_buf_append(&op->held, mu_span(e->bytes, e->name_len + e->len));
    } else {
        e = mu_backing_find_element(t->m, mu_span(mu_buf_span(&op->held).data, op->name_len));
    }
    if (err == 0) {
        touch->key->popper = t;
        op->chosen = true;
        if (e != NULL) {
            e->taken = true;
        }
    }
    return err;
}

static enum taken take_queue_op(struct mu_backing_txn *t, struct mu_backing_op *op)
{
    const struct mu_backing_key *k = mu_backing_find(t->m, op->request.keys[0]);
    bool pop = op->request.verb == MU_STORE_QUEUE_POP;

    /* Several may be taken at once if we know them all; two that etcd chose would be the same
     * one. */
    if (t->only != NULL ||
        (pop && k != NULL && k->popper != NULL && (k->popper != t || op->chosen))) {
        return BLOCKED;
    }
    if (t->touch_count + t->queue_ops + 3 > MU_BACKING_KEYS) {
        return FULL;
    }
    if (pop) {
        op->status = choose_element(t, op);
    } else {
        mu_buf_reset(&op->held);
        op->status = name_element(t->m, op);
    }
    t->queue_ops += op->status == 0 ? 2 : 0;
    return TAKEN;
}

static enum taken take(struct mu_backing_txn *t, struct mu_backing_op *op)
{
    size_t bytes = 0;
    enum taken taken;

    if (t->closed) {
        return FULL;
    }
    if (op->alone && t->op_count != 0) {
        return BLOCKED;
    }
    op->status = 0;
    op->number = 0;
    op->sleeps = false;
    if (op->request.verb == MU_STORE_MULTI_SET) {
        return take_many(t, op);
    }
    for (size_t i = 0; i < op->request.value_count; i++) {
        bytes += op->request.values[i].len;
    }
    if (op->request.verb == MU_STORE_APPEND) {
        const struct mu_backing_key *k = mu_backing_find(t->m, op->request.keys[0]);

        bytes += k == NULL ? 0 : k->len;
    }
    if (t->op_count != 0 && t->bytes + bytes > t->m->config.txn_bytes_max) {
        return FULL;
    }
    taken = op->request.verb == MU_STORE_QUEUE_PUSH || op->request.verb == MU_STORE_QUEUE_POP
                ? take_queue_op(t, op)
                : take_one(t, op);
    t->bytes += taken == TAKEN ? bytes : 0;
    t->closed = taken == TAKEN && op->alone;
    return taken;
}

/* Takes as much of a client's queue as fits. False: the transaction is full. */
static bool take_from(struct mu_backing_txn *t, struct mu_backing_client *c)
{
    enum taken taken = TAKEN;

    while (taken == TAKEN && !mu_list_empty(&c->queue)) {
        struct mu_backing_op *op = MU_CONTAINER_OF(c->queue.next, struct mu_backing_op, link);

        if (!mu_backing_is_write(t->m, op)) {
            return true;
        }
        taken = take(t, op);
        if (taken == TAKEN) {
            mu_backing_fly(t, op);
        }
    }
    return taken != FULL;
}

/* --- results ---------------------------------------------------------------------------------- */

static void return_element(struct mu_backing *m, const struct mu_backing_op *op)
{
    struct mu_backing_element *e;

    if (op->request.verb == MU_STORE_QUEUE_POP && op->held.len != 0) {
        e = mu_backing_find_element(m, mu_span(mu_buf_span(&op->held).data, op->name_len));
        if (e != NULL) {
            mu_backing_untake(m, e);
        }
    }
}

/* Nothing of the transaction has happened: all operations are decided again, in order. */
static void do_again(struct mu_backing_txn *t, bool keep_taken)
{
    struct mu_backing *m = t->m;

    while (!mu_list_empty(&t->ops)) {
        struct mu_backing_op *op = MU_CONTAINER_OF(t->ops.prev, struct mu_backing_op, link);

        if (!keep_taken) {
            return_element(m, op);
        }
        if (!mu_backing_land(m, op)) {
            op->status = 0;
            op->chosen = false;
            mu_buf_reset(&op->held);
            mu_backing_requeue(m, op);
        }
    }
    mu_backing_release(t);
}

static void end_all(struct mu_backing_txn *t, int status, const char *text)
{
    struct mu_backing *m = t->m;
    bool unknown = t->doubtful;

    while (!mu_list_empty(&t->ops)) {
        struct mu_backing_op *op = MU_CONTAINER_OF(t->ops.next, struct mu_backing_op, link);

        if (!unknown) {
            return_element(m, op);
        }
        op->unknown = unknown;
        if (!mu_backing_land(m, op)) {
            mu_backing_finish(m, op, status, text);
        }
    }
    mu_backing_release(t);
}

static int64_t count_of(const struct mu_backing_op *op, const struct mu_etcd_reply *reply)
{
    return reply != NULL && op->result_at < reply->result_count
               ? reply->results[op->result_at].count
               : 0;
}

/* Counts a queue's elements in the mirror, for the rare answer that was lost. */
static int64_t guess_count(const struct mu_backing *m, const struct mu_backing_op *op)
{
    const struct mu_backing_key *k = mu_backing_find(m, op->request.keys[0]);
    int64_t count = 0;

    if (k != NULL) {
        MU_LIST_FOREACH (it, &k->elements) {
            count += MU_CONTAINER_OF(it, struct mu_backing_element, link)->taken ? 0 : 1;
        }
    }
    return count;
}

static void answer_one(struct mu_backing *m, struct mu_backing_op *op,
                       const struct mu_etcd_reply *reply, int64_t revision)
{
    struct mu_span held = mu_buf_span(&op->held);
    int64_t count;

    switch ((int)op->request.verb) {
    case MU_STORE_MULTI_SET:
        op->at = op->upto;
        if (op->at < op->request.key_count) {
            mu_backing_requeue(m, op);
            return;
        }
        break;
    case MU_STORE_COMPARE_SET:
        op->one = held;
        mu_backing_answer(m, op, op->number, &op->one, 1);
        return;
    case MU_STORE_QUEUE_PUSH:
        count = reply != NULL ? count_of(op, reply) : guess_count(m, op);
        mu_backing_answer(m, op, count > 0 ? count : 1, NULL, 0);
        return;
    case MU_STORE_QUEUE_POP:
        count = reply != NULL ? count_of(op, reply) : guess_count(m, op);
        op->one = mu_span_skip(held, op->name_len);
        mu_backing_answer(m, op, count + 1, &op->one, 1);
        return;
    case MU_STORE_BARRIER:
        if (op->sleeps) {
            int err = mu_backing_register(m, op, op->request.keys[0], revision);

            if (err != 0) {
                mu_backing_finish(m, op, err, NULL);
            } else {
                mu_backing_sleep(m, op);
            }
            return;
        }
        break;
    default:
        break;
    }
    mu_backing_answer(m, op, op->number, NULL, 0);
}

/* Notes what the watch will tell of it, and what its answers tell. */
static void note_revision(struct mu_backing_txn *t, int64_t revision)
{
    struct mu_backing *m = t->m;
    bool changes = t->queue_ops != 0;

    for (size_t i = 0; i < t->touch_count; i++) {
        const struct mu_backing_touch *touch = &t->touches[i];

        changes = changes || touch->dirty;
        mu_backing_note_answered(m, touch->mod);
        mu_backing_note_answered(m, touch->key->gone);
    }
    if (changes) {
        mu_backing_expect(m, revision);
        mu_backing_note_answered(m, revision);
    }
}

/* The transaction has happened, at that revision, as it was decided. `reply` NULL: the answer was
 * lost. */
static void commit(struct mu_backing_txn *t, int64_t revision, const struct mu_etcd_reply *reply)
{
    struct mu_backing *m = t->m;
    struct mu_list ops;
    struct mu_list *it;

    t->slot_known = revision;
    note_revision(t, revision);
    mu_list_init(&ops);
    while ((it = mu_list_pop(&t->ops)) != NULL) {
        mu_list_push(&ops, it);
    }
    for (size_t i = 0; i < t->touch_count; i++) {
        struct mu_backing_touch *touch = &t->touches[i];

        touch->key->hot -= touch->key->hot != 0 ? 1 : 0;
        if (touch->dirty) {
            touch->dirty = false;
            mu_backing_learn_own(m, touch->key, touch->value, touch->len, touch->present,
                                 touch->lease, revision);
        }
    }
    mu_backing_release(t);
    while (!mu_list_empty(&ops)) {
        struct mu_backing_op *op = MU_CONTAINER_OF(ops.next, struct mu_backing_op, link);

        if (mu_backing_land(m, op)) {
            continue;
        }
        if (op->status != 0) {
            mu_backing_finish(m, op, op->status, NULL);
        } else {
            answer_one(m, op, reply, revision);
        }
    }
}

/* Learns what the failure branch tells of each guard. */
static void learn_guards(struct mu_backing_txn *t, const struct mu_etcd_reply *reply)
{
    struct mu_backing *m = t->m;
    size_t at = 1;

    for (size_t i = 0; i < t->touch_count; i++) {
        struct mu_backing_touch *touch = &t->touches[i];
        const struct mu_etcd_result *found;
        const struct mu_etcd_kv *kv;

        if (!touch->guard || at >= reply->result_count) {
            continue;
        }
        found = &reply->results[at++];
        kv = found->kv_count > 0 ? &found->kvs[0] : NULL;
        if ((kv == NULL ? 0 : kv->mod_revision) != touch->mod) {
            touch->key->hot = HOT;
        }
        if (mu_backing_learn(m, touch->key, kv, reply->revision) != 0) {
            touch->key->mod = touch->key->as_of = 0; /* The key is read once more then. */
            m->holed = true;
        }
    }
    MU_LIST_FOREACH (it, &t->ops) {
        struct mu_backing_op *op = MU_CONTAINER_OF(it, struct mu_backing_op, link);

        if (mu_backing_on_queue(op) && op->request.verb == MU_STORE_QUEUE_POP &&
            at < reply->result_count && reply->results[at++].count != 0) {
            return_element(m, op); /* Otherwise another client has it, and it stays taken. */
        }
    }
}

/* The text was made again. */
static void send_again(struct mu_backing_txn *t, int err)
{
    if (err != 0) {
        end_all(t, MUSTER_ENOMEM, NULL);
    } else {
        t->again = true;
        t->m->fences++;
    }
}

/* The guards did not hold. */
static void conflict(struct mu_backing_txn *t, const struct mu_etcd_reply *reply)
{
    t->m->stats.conflicts++;
    learn_guards(t, reply);
    if (!t->doubtful) {
        do_again(t, true);
        return;
    }
    t->m->stats.fences++;
    t->fencing = true;
    send_again(t, mu_backing_encode_fence(t));
}

/* The slot is gone, and so is the session. */
static void lose_session(struct mu_backing_txn *t)
{
    if (t->slot_session == t->m->session) {
        t->m->session = 0;
    }
    if (t->doubtful) {
        end_all(t, MUSTER_ESESSION,
                "our session in etcd has ended: it may or may not have happened");
    } else {
        do_again(t, false);
    }
}

/* Returns whether any of its operations names its own lease, which may be what is missing. */
static bool names_lease(const struct mu_backing_txn *t)
{
    MU_LIST_FOREACH (it, &t->ops) {
        if (MU_CONTAINER_OF(it, struct mu_backing_op, link)->request.lease != 0) {
            return true;
        }
    }
    return false;
}

static void fail(struct mu_backing_txn *t, int status, const char *text)
{
    bool split = status == MUSTER_ELIMIT || (status == MUSTER_ENOENT && names_lease(t));

    if (split && !t->doubtful && t->op_count > 1) {
        MU_LIST_FOREACH (it, &t->ops) {
            MU_CONTAINER_OF(it, struct mu_backing_op, link)->alone = true;
        }
        do_again(t, false);
    } else if (status == MUSTER_ENOENT && !names_lease(t)) {
        lose_session(t);
    } else {
        end_all(t, status, text);
    }
}

void mu_backing_written(struct mu_backing_txn *t, int status, const struct mu_etcd_reply *reply,
                        const char *text)
{
    const struct mu_etcd_result *found;

    if (status != 0) {
        fail(t, status, text);
        return;
    }
    if (!reply->succeeded && !t->asking) {
        send_again(t, mu_backing_encode_asking(t));
        return;
    }
    if (reply->result_count == 0) {
        t->doubtful = true;
        end_all(t, MUSTER_EPROTO, "etcd's answer to a transaction is empty");
        return;
    }
    if (reply->succeeded) {
        if (t->fencing) {
            t->slot_known = reply->revision;
            do_again(t, true);
        } else {
            commit(t, reply->revision, reply);
        }
        return;
    }
    found = &reply->results[0];
    if (found->kv_count == 1 && found->kvs[0].mod_revision != t->slot_known && t->fencing &&
        mu_span_eq(found->kvs[0].value, MU_SPAN_LIT(MU_BACKING_FENCED))) {
        t->slot_known = found->kvs[0].mod_revision;
        do_again(t, true);
    } else if (found->kv_count == 1 && found->kvs[0].mod_revision != t->slot_known) {
        t->m->stats.settled++;
        commit(t, found->kvs[0].mod_revision, NULL);
    } else if (found->kv_count == 0 && t->slot_known != 0) {
        lose_session(t);
    } else {
        conflict(t, reply);
    }
}

/* --- making one ------------------------------------------------------------------------------- */

static void take_slot(struct mu_backing_txn *t)
{
    struct mu_backing *m = t->m;

    if (t->slot_session != m->session) {
        t->slot_session = m->session;
        t->slot_known = 0;
        t->slot_len =
            (size_t)snprintf(t->slot, sizeof(t->slot), "%.*s/s/%016" PRIx64 "/%" PRIx64,
                             (int)m->prefix_len, m->prefix, (uint64_t)m->session, m->slots++);
    }
}

bool mu_backing_plan_writes(struct mu_backing_txn *t)
{
    if (!mu_backing_fill(t, take_from)) {
        return false;
    }
    take_slot(t);
    for (size_t i = 0; i < t->touch_count; i++) {
        if (t->touches[i].dirty) {
            t->touches[i].key->writer = t;
        }
    }
    if (t->starved || mu_backing_encode(t) != 0) {
        end_all(t, MUSTER_ENOMEM, NULL);
        return false;
    }
    return true;
}
