/*
 * Operations that end by themselves: a read, a guarded transaction, or both in turn until no other
 * client came in between.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codec/store/msg.h"
#include "core/alloc.h"
#include "core/assert.h"
#include "service/store/etcd.h"

#define CONFLICTS_MAX 10000u
#define NUMBER_MAX    24
/* What a slot holds: a fence that was repeated must not look like the write that it fences off. */
#define WRITTEN_BY MU_SPAN_LIT("w")
#define FENCED_BY  MU_SPAN_LIT("f")

/* --- names ------------------------------------------------------------------------------------ */

static uint8_t *put(uint8_t *at, struct mu_span s)
{
    if (s.len != 0) {
        memcpy(at, s.data, s.len);
    }
    return at + s.len;
}

/* Makes etcd's names of the keys of the request. */
static int make_names(struct mu_setcd_op *e)
{
    const struct mu_store_request *q = &e->op->request;
    struct mu_span prefix = mu_span(e->s->prefix, e->s->prefix_len);
    size_t bytes = 0;
    uint8_t *at;

    for (size_t i = 0; i < q->key_count; i++) {
        bytes += sizeof(*e->names) + 3 * (prefix.len + q->keys[i].len + 16);
    }
    e->names = mu_calloc(1, bytes + 1);
    if (e->names == NULL) {
        return MUSTER_ENOMEM;
    }
    at = (uint8_t *)(e->names + q->key_count);
    for (size_t i = 0; i < q->key_count; i++) {
        struct mu_setcd_name *n = &e->names[i];
        char len[16];
        uint8_t *from = at;

        at = put(put(put(at, prefix), MU_SPAN_LIT("/k/")), q->keys[i]);
        n->key = mu_span(from, (size_t)(at - from));
        (void)snprintf(len, sizeof(len), "/q/%08zx/", q->keys[i].len);
        for (int end = 0; end < 2; end++) {
            from = at;
            at = put(put(put(at, prefix), mu_span_str(len)), q->keys[i]);
            *at++ = end == 0 ? '/' : '/' + 1;
            *(end == 0 ? &n->queue : &n->queue_end) = mu_span(from, (size_t)(at - from));
        }
    }
    return 0;
}

static int64_t wanted_lease(const struct mu_setcd_op *e)
{
    uint64_t lease = e->op->request.lease;

    return lease == MU_LEASE_SESSION ? e->s->lease.id : (int64_t)lease;
}

/* --- guarded transactions --------------------------------------------------------------------- */

struct guarded {
    struct mu_etcd_compare compare; /* beside the slot's; target 0: no other */
    struct mu_etcd_op success[MU_SETCD_TXN_OPS];
    size_t success_count;
    struct mu_etcd_op failure[2]; /* beside the slot's */
    size_t failure_count;
};

/* Sends the transaction; `done` calls judge(). There is a session. */
static void send_guarded(struct mu_setcd_op *e, const struct guarded *g,
                         void (*done)(struct mu_etcd_call *call))
{
    struct mu_etcd_op success[MU_SETCD_TXN_OPS + 1];
    struct mu_etcd_op failure[3];
    struct mu_etcd_compare compares[2];
    struct mu_etcd_txn txn = {
        .compares = compares,
        .compare_count = 1,
        .success = success,
        .success_count = g->success_count + 1,
        .failure = failure,
        .failure_count = g->failure_count + 1,
    };
    struct mu_span slot;
    int err;

    if (e->slot == NULL) {
        e->slot = mu_setcd_slot_take(e->s);
    }
    if (e->slot == NULL) {
        mu_setcd_fail_later(e, MUSTER_ENOMEM);
        return;
    }
    slot = mu_span(e->slot->key, e->slot->len);
    compares[0] =
        (struct mu_etcd_compare){.key = slot, .target = MU_ETCD_MOD, .number = e->slot->known};
    if (g->compare.target != 0) {
        compares[1] = g->compare;
        txn.compare_count = 2;
    }
    success[0] = (struct mu_etcd_op){
        .kind = MU_ETCD_PUT, .key = slot, .value = WRITTEN_BY, .lease = e->s->lease.id};
    memcpy(success + 1, g->success, g->success_count * sizeof(*success));
    failure[0] = (struct mu_etcd_op){.kind = MU_ETCD_RANGE, .key = slot};
    memcpy(failure + 1, g->failure, g->failure_count * sizeof(*failure));
    mu_buf_reset(&e->body);
    err = mu_etcd_encode_txn(&e->body, &txn);
    if (err != 0) {
        mu_setcd_fail_later(e, err);
        return;
    }
    mu_setcd_send(e, "/v3/kv/txn", done);
}

enum outcome {
    ENDED = 0, /* the op is over */
    WRITTEN,   /* just now, and the answer is here */
    EARLIER,   /* by a try whose answer was lost, at e->revision */
    CONFLICT,  /* the other compare did not hold, and the answer says what there is */
};

/* The slot is gone, and so is the session. The op ends, unless its write certainly did not
 * happen. */
static enum outcome lose_slot(struct mu_setcd_op *e, bool unknown)
{
    uint64_t session = e->slot->session;

    mu_setcd_slot_give(e->s, e->slot, false);
    e->slot = NULL;
    mu_setcd_session_gone(e->s, session);
    if (unknown) {
        mu_setcd_finish(
            e, MUSTER_ESESSION,
            "our session in etcd has ended: the operation may or may not have happened");
    } else {
        mu_setcd_with_session(e, e->step); /* it did not happen: the slot was gone before */
    }
    return ENDED;
}

/* Finds the outcome of a guarded transaction. results[0] of the reply is the slot's. */
static enum outcome judge(struct mu_setcd_op *e)
{
    const struct mu_etcd_reply *r = e->call.reply;
    struct mu_setcd_slot *slot = e->slot;
    const struct mu_etcd_result *found;

    if (mu_setcd_call_failed(e)) {
        return ENDED;
    }
    if (r->result_count == 0) {
        mu_setcd_finish(e, MUSTER_EPROTO, "etcd's answer to a transaction is empty");
        return ENDED;
    }
    if (r->succeeded) {
        slot->known = r->revision;
        return WRITTEN;
    }
    found = &r->results[0];
    if (found->kv_count == 1 && found->kvs[0].mod_revision != slot->known) {
        slot->known = e->revision = found->kvs[0].mod_revision;
        return EARLIER;
    }
    if (found->kv_count == 0 && slot->known != 0) {
        return lose_slot(e, e->call.tries > 0); /* an earlier try may have happened */
    }
    return CONFLICT;
}

/* Reads something as of the revision at which the write happened. */
static void look_back(struct mu_setcd_op *e, const struct mu_etcd_op *op,
                      void (*done)(struct mu_etcd_call *call))
{
    int err;

    mu_buf_reset(&e->body);
    err = mu_etcd_encode_op(&e->body, op);
    if (err != 0) {
        mu_setcd_fail_later(e, err);
        return;
    }
    mu_setcd_send(e, mu_etcd_op_path(MU_ETCD_RANGE), done);
}

static struct mu_setcd_op *op_of(struct mu_etcd_call *call)
{
    return MU_CONTAINER_OF(call, struct mu_setcd_op, call);
}

int mu_setcd_range(struct mu_setcd_op *e, const struct mu_etcd_op *op,
                   void (*done)(struct mu_etcd_call *call))
{
    int err;

    mu_buf_reset(&e->body);
    err = mu_etcd_encode_op(&e->body, op);
    if (err == 0) {
        mu_setcd_send(e, mu_etcd_op_path(MU_ETCD_RANGE), done);
    }
    return err;
}

/* --- set, multi_set --------------------------------------------------------------------------- */

static void set_some(struct mu_setcd_op *e);

/* As many keys as a transaction takes. */
static size_t end_of_part(const struct mu_setcd_op *e)
{
    size_t count = e->op->request.key_count;

    return count - e->at < MU_SETCD_TXN_OPS ? count : e->at + MU_SETCD_TXN_OPS;
}

static void on_set(struct mu_etcd_call *call)
{
    struct mu_setcd_op *e = op_of(call);
    enum outcome outcome = judge(e);

    if (outcome == ENDED) {
        return;
    }
    MU_ASSERT(outcome != CONFLICT);
    e->at = end_of_part(e);
    if (e->at < e->op->request.key_count) {
        set_some(e);
    } else {
        mu_setcd_answer(e, 0, NULL, 0);
    }
}

/* Whether a later key of the request is the same: the last one wins, and etcd takes each once. */
static bool is_repeated(const struct mu_store_request *q, size_t at, size_t end)
{
    for (size_t i = at + 1; i < end; i++) {
        if (mu_span_eq(q->keys[i], q->keys[at])) {
            return true;
        }
    }
    return false;
}

static void set_some(struct mu_setcd_op *e)
{
    const struct mu_store_request *q = &e->op->request;
    struct guarded g = {0};
    size_t end = end_of_part(e);

    for (size_t i = e->at; i < end; i++) {
        if (!is_repeated(q, i, end)) {
            g.success[g.success_count++] = (struct mu_etcd_op){
                .kind = MU_ETCD_PUT,
                .key = e->names[i].key,
                .value = q->values[i],
                .lease = wanted_lease(e),
            };
        }
    }
    send_guarded(e, &g, on_set);
}

/* --- delete ----------------------------------------------------------------------------------- */

static void on_deleted_before(struct mu_etcd_call *call)
{
    struct mu_setcd_op *e = op_of(call);

    if (!mu_setcd_call_failed(e)) {
        mu_setcd_answer(e, call->reply->results[0].count, NULL, 0);
    }
}

static void on_deleted(struct mu_etcd_call *call)
{
    struct mu_setcd_op *e = op_of(call);
    enum outcome outcome = judge(e);

    if (outcome == EARLIER) {
        struct mu_etcd_op op = {.kind = MU_ETCD_RANGE,
                                .key = e->names[0].key,
                                .count_only = true,
                                .revision = e->revision - 1};

        look_back(e, &op, on_deleted_before);
    } else if (outcome != ENDED) {
        mu_setcd_answer(e, call->reply->result_count > 1 ? call->reply->results[1].deleted : 0,
                        NULL, 0);
    }
}

static void start_delete(struct mu_setcd_op *e)
{
    struct guarded g = {.success_count = 1};

    g.success[0] = (struct mu_etcd_op){.kind = MU_ETCD_DELETE, .key = e->names[0].key};
    send_guarded(e, &g, on_deleted);
}

/* --- add, append, compare_set: read, decide, write unless the key changed in between ---------- */

static void write_changed(struct mu_setcd_op *e);

bool mu_setcd_read_number(struct mu_span s, int64_t *ret)
{
    char text[64];
    size_t at = 0;
    char *end;
    long long v;

    while (at < s.len && (s.data[at] == ' ' || (s.data[at] >= '\t' && s.data[at] <= '\r'))) {
        at++;
    }
    s = mu_span_skip(s, at);
    if (s.len >= sizeof(text)) {
        s.len = sizeof(text) - 1;
    }
    if (s.len != 0) {
        memcpy(text, s.data, s.len);
    }
    text[s.len] = '\0';
    errno = 0;
    v = strtoll(text, &end, 10);
    *ret = v;
    return end != text && errno == 0;
}

static int hold(struct mu_setcd_op *e, struct mu_span first, struct mu_span second)
{
    int err;

    mu_buf_reset(&e->held);
    err = mu_buf_append(&e->held, first);
    return err != 0 ? err : mu_buf_append(&e->held, second);
}

/*
 * Puts the value to write into `held`, and the answer into e->number. Returns 1 if there is nothing
 * to write: then `held` (or, with value_is_expected, `expected`) is the answer.
 */
static int decide(struct mu_setcd_op *e, const struct mu_etcd_kv *kv)
{
    const struct mu_store_request *q = &e->op->request;
    struct mu_span old = kv != NULL ? kv->value : (struct mu_span){0};
    char text[NUMBER_MAX];
    int64_t number = 0;
    int err;

    e->seen = kv != NULL ? kv->mod_revision : 0;
    e->seen_lease = kv != NULL ? kv->lease : 0;
    e->value_is_expected = false;
    if (q->verb == MU_STORE_ADD) {
        if (kv != NULL && !mu_setcd_read_number(old, &number)) {
            return MUSTER_ENOTNUM;
        }
        e->number = (int64_t)((uint64_t)number + (uint64_t)q->number);
        (void)snprintf(text, sizeof(text), "%" PRId64, e->number);
        return hold(e, mu_span_str(text), (struct mu_span){0});
    }
    if (q->verb == MU_STORE_APPEND) {
        e->number = (int64_t)(old.len + q->values[0].len);
        return hold(e, old, q->values[0]);
    }
    if (kv == NULL ? q->values[0].len == 0 : mu_span_eq(old, q->values[0])) {
        e->number = 1;
        return hold(e, q->values[1], (struct mu_span){0});
    }
    e->number = 0;
    e->value_is_expected = kv == NULL;
    err = hold(e, old, (struct mu_span){0});
    return err != 0 ? err : 1;
}

static void answer_change(struct mu_setcd_op *e)
{
    struct mu_span value = e->value_is_expected ? e->op->request.values[0] : mu_buf_span(&e->held);

    if (e->op->request.verb == MU_STORE_COMPARE_SET) {
        mu_setcd_answer(e, e->number, &value, 1);
    } else {
        mu_setcd_answer(e, e->number, NULL, 0);
    }
}

/* The present value is known: goes on from it. */
static void change_from(struct mu_setcd_op *e, const struct mu_etcd_result *found)
{
    int err = decide(e, found->kv_count > 0 ? &found->kvs[0] : NULL);

    if (err < 0) {
        mu_setcd_finish(e, err, NULL);
    } else if (err == 1) {
        answer_change(e);
    } else {
        mu_setcd_with_session(e, write_changed);
    }
}

static void on_change_read(struct mu_etcd_call *call)
{
    struct mu_setcd_op *e = op_of(call);

    if (!mu_setcd_call_failed(e)) {
        change_from(e, &call->reply->results[0]);
    }
}

static void on_fenced(struct mu_etcd_call *call)
{
    struct mu_setcd_op *e = op_of(call);
    struct mu_etcd_op read = {.kind = MU_ETCD_RANGE, .key = e->names[0].key};
    const struct mu_etcd_reply *r = call->reply;
    const struct mu_etcd_kv *kv;

    if (call->status != 0 || e->ending != 0) {
        call->unknown = true; /* the write that is fenced off may have happened, or may yet */
    }
    if (mu_setcd_call_failed(e)) {
        return;
    }
    kv = !r->succeeded && r->result_count > 0 && r->results[0].kv_count > 0 ? r->results[0].kvs
                                                                            : NULL;
    if (!r->succeeded && kv == NULL) {
        (void)lose_slot(e, true);
        return;
    }
    e->slot->known = kv != NULL ? kv->mod_revision : r->revision;
    if (kv != NULL && !mu_span_eq(kv->value, FENCED_BY)) {
        answer_change(e); /* the earlier try came first after all */
    } else if (mu_setcd_range(e, &read, on_change_read) != 0) {
        mu_setcd_finish(e, MUSTER_ENOMEM, NULL);
    }
}

/*
 * An earlier try may still be on its way. A revision that it expects exists only once, but the
 * absence of the key can come again: it may be deleted. So the slot alone is changed first; the try
 * can then never happen.
 */
static void fence(struct mu_setcd_op *e)
{
    struct mu_span slot = mu_span(e->slot->key, e->slot->len);
    struct mu_etcd_compare compare = {.key = slot, .target = MU_ETCD_MOD, .number = e->slot->known};
    struct mu_etcd_op put = {
        .kind = MU_ETCD_PUT, .key = slot, .value = FENCED_BY, .lease = e->s->lease.id};
    struct mu_etcd_op get = {.kind = MU_ETCD_RANGE, .key = slot};
    const struct mu_etcd_txn txn = {
        .compares = &compare,
        .compare_count = 1,
        .success = &put,
        .success_count = 1,
        .failure = &get,
        .failure_count = 1,
    };
    int err;

    mu_buf_reset(&e->body);
    err = mu_etcd_encode_txn(&e->body, &txn);
    if (err != 0) {
        e->call.unknown = true;
        mu_setcd_fail_later(e, err);
    } else {
        mu_setcd_send(e, "/v3/kv/txn", on_fenced);
    }
}

static void on_changed(struct mu_etcd_call *call)
{
    struct mu_setcd_op *e = op_of(call);

    switch (judge(e)) {
    case ENDED:
        break;
    case WRITTEN:
    case EARLIER:
        answer_change(e);
        break;
    case CONFLICT:
        if (++e->conflicts > CONFLICTS_MAX || call->reply->result_count < 2) {
            mu_setcd_finish(e, MUSTER_EAGAIN, "other clients kept changing this key; try again");
        } else if (call->tries > 0 && e->seen == 0) {
            fence(e);
        } else {
            change_from(e, &call->reply->results[1]);
        }
        break;
    }
}

static void write_changed(struct mu_setcd_op *e)
{
    struct guarded g = {
        .compare = {.key = e->names[0].key, .target = MU_ETCD_MOD, .number = e->seen},
        .success_count = 1,
        .failure_count = 1,
    };

    g.success[0] = (struct mu_etcd_op){
        .kind = MU_ETCD_PUT,
        .key = e->names[0].key,
        .value = mu_buf_span(&e->held),
        .lease = e->op->request.lease != 0 ? wanted_lease(e) : e->seen_lease,
    };
    g.failure[0] = (struct mu_etcd_op){.kind = MU_ETCD_RANGE, .key = e->names[0].key};
    send_guarded(e, &g, on_changed);
}

/* Guesses that the key is absent, which costs no read; the answer to a wrong guess has the
 * value. */
static int start_change(struct mu_setcd_op *e)
{
    struct mu_etcd_op op = {.kind = MU_ETCD_RANGE, .key = e->names[0].key};
    int err = decide(e, NULL);

    if (err < 0) {
        return err;
    }
    if (err == 1) {
        return mu_setcd_range(e, &op, on_change_read);
    }
    mu_setcd_with_session(e, write_changed);
    return 0;
}

/* --- queues ----------------------------------------------------------------------------------- */

static void on_pushed_before(struct mu_etcd_call *call)
{
    struct mu_setcd_op *e = op_of(call);

    if (!mu_setcd_call_failed(e)) {
        mu_setcd_answer(e, call->reply->results[0].count + (e->element == NULL ? 1 : 0),
                        e->element == NULL ? &e->target : NULL, e->element == NULL ? 1 : 0);
    }
}

static struct mu_etcd_op count_queue(const struct mu_setcd_op *e)
{
    return (struct mu_etcd_op){.kind = MU_ETCD_RANGE,
                               .key = e->names[0].queue,
                               .end = e->names[0].queue_end,
                               .count_only = true};
}

static void on_pushed(struct mu_etcd_call *call)
{
    struct mu_setcd_op *e = op_of(call);
    enum outcome outcome = judge(e);

    if (outcome == EARLIER) {
        struct mu_etcd_op op = count_queue(e);

        op.revision = e->revision;
        look_back(e, &op, on_pushed_before);
    } else if (outcome != ENDED) {
        mu_setcd_answer(e, call->reply->result_count > 2 ? call->reply->results[2].count : 0, NULL,
                        0);
    }
}

static void push(struct mu_setcd_op *e)
{
    struct guarded g = {.success_count = 2};

    g.success[0] = (struct mu_etcd_op){
        .kind = MU_ETCD_PUT, .key = e->target, .value = e->op->request.values[0]};
    g.success[1] = count_queue(e);
    send_guarded(e, &g, on_pushed);
}

static int start_push(struct mu_setcd_op *e)
{
    struct mu_span queue = e->names[0].queue;

    e->element = mu_malloc(queue.len + 48);
    if (e->element == NULL) {
        return MUSTER_ENOMEM;
    }
    memcpy(e->element, queue.data, queue.len);
    e->target = mu_span(e->element,
                        queue.len + (size_t)snprintf(e->element + queue.len, 48,
                                                     "%016" PRIx64 "%016" PRIx64,
                                                     e->s->element_seed, e->s->element_count++));
    mu_setcd_with_session(e, push);
    return 0;
}

static void pop_read(struct mu_setcd_op *e);
static void pop_write(struct mu_setcd_op *e);

/* Takes the first element; if there is no element, the op waits, if it may. */
static void pop_from(struct mu_setcd_op *e, const struct mu_etcd_result *found, int64_t revision)
{
    const struct mu_etcd_kv *kv = found->kvs;

    if (found->kv_count == 0) {
        if ((e->op->request.flags & MU_STORE_NOWAIT) != 0) {
            mu_setcd_finish(e, MUSTER_ENOENT, "the queue is empty");
        } else {
            e->step = pop_read;
            mu_setcd_sleep(e, revision);
        }
        return;
    }
    /* The element's name and its value, one behind the other. */
    e->seen = kv->mod_revision;
    e->at = kv->key.len;
    if (hold(e, kv->key, kv->value) != 0) {
        mu_setcd_finish(e, MUSTER_ENOMEM, NULL);
        return;
    }
    mu_setcd_with_session(e, pop_write);
}

static void on_popped(struct mu_etcd_call *call)
{
    struct mu_setcd_op *e = op_of(call);
    struct mu_etcd_op op = count_queue(e);

    switch (judge(e)) {
    case ENDED:
        break;
    case WRITTEN:
        mu_setcd_answer(e, 1 + (call->reply->result_count > 2 ? call->reply->results[2].count : 0),
                        &e->target, 1);
        break;
    case EARLIER:
        op.revision = e->revision;
        look_back(e, &op, on_pushed_before);
        break;
    case CONFLICT: /* another client took it */
        if (call->reply->result_count < 2) {
            mu_setcd_finish(e, MUSTER_EPROTO, NULL);
        } else {
            pop_from(e, &call->reply->results[1], call->reply->revision);
        }
        break;
    }
}

static struct mu_etcd_op first_element(const struct mu_setcd_op *e)
{
    return (struct mu_etcd_op){.kind = MU_ETCD_RANGE,
                               .key = e->names[0].queue,
                               .end = e->names[0].queue_end,
                               .by_creation = true,
                               .limit = 1};
}

static void pop_write(struct mu_setcd_op *e)
{
    struct mu_span name = mu_span(mu_buf_span(&e->held).data, e->at);
    struct guarded g = {
        .compare = {.key = name, .target = MU_ETCD_MOD, .number = e->seen},
        .success_count = 2,
        .failure_count = 1,
    };

    e->target = mu_span_skip(mu_buf_span(&e->held), e->at);
    g.success[0] = (struct mu_etcd_op){.kind = MU_ETCD_DELETE, .key = name};
    g.success[1] = count_queue(e);
    g.failure[0] = first_element(e);
    send_guarded(e, &g, on_popped);
}

static void on_pop_read(struct mu_etcd_call *call)
{
    struct mu_setcd_op *e = op_of(call);

    if (!mu_setcd_call_failed(e)) {
        pop_from(e, &call->reply->results[0], call->reply->revision);
    }
}

static void pop_read(struct mu_setcd_op *e)
{
    struct mu_etcd_op op = first_element(e);
    int err = mu_setcd_range(e, &op, on_pop_read);

    if (err != 0) {
        mu_setcd_fail_later(e, err);
    }
}

/* --- start ------------------------------------------------------------------------------------ */

int mu_setcd_start(struct mu_setcd_op *e)
{
    const struct mu_store_request *q = &e->op->request;
    struct mu_etcd_op op;
    bool fits = mu_store_request_fits(q) && (q->verb != MU_STORE_MULTI_SET || q->key_count > 0);
    int err = fits ? make_names(e) : MUSTER_EINVAL;

    if (err != 0) {
        return err;
    }
    switch (q->verb) {
    case MU_STORE_SET:
    case MU_STORE_MULTI_SET:
        mu_setcd_with_session(e, set_some);
        break;
    case MU_STORE_DELETE:
        mu_setcd_with_session(e, start_delete);
        break;
    case MU_STORE_ADD:
    case MU_STORE_APPEND:
    case MU_STORE_COMPARE_SET:
        return start_change(e);
    case MU_STORE_GET:
    case MU_STORE_MULTI_GET:
    case MU_STORE_CHECK:
    case MU_STORE_WAIT:
        mu_setcd_read(e);
        break;
    case MU_STORE_QUEUE_PUSH:
        return start_push(e);
    case MU_STORE_QUEUE_POP:
        pop_read(e);
        break;
    case MU_STORE_QUEUE_LEN:
        op = count_queue(e);
        return mu_setcd_range(e, &op, mu_setcd_on_counted);
    case MU_STORE_NUM_KEYS:
    case MU_STORE_LIST_KEYS:
        return mu_setcd_list(e, q->verb == MU_STORE_NUM_KEYS);
    case MU_STORE_WATCH:
        mu_setcd_watch(e);
        break;
    case MU_STORE_LEASE_GRANT:
    case MU_STORE_LEASE_KEEP:
    case MU_STORE_LEASE_REVOKE:
        return mu_setcd_lease(e);
    case MU_STORE_BARRIER:
        return MUSTER_ENOTSUP; /* barrier.c makes it of add, set and wait */
    }
    return 0;
}
