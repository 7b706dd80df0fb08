/* Operations from submission to end, and when each transaction is sent. */
#include "proto/store/backing.h"

#include <stdio.h>

#include "codec/store/msg.h"
#include "core/alloc.h"
#include "core/assert.h"
#include "proto/store/backing_internal.h"

#define BODY_MAX ((size_t)256 << 20)
#define HELD_MAX ((size_t)1 << 30)
#define LARGE    8 /* operations from which on a transaction makes the next one gather */

struct mu_backing_config mu_backing_config_defaults(void)
{
    return (struct mu_backing_config){
        .writes_max = 2,
        .reads_max = 2,
        .txn_bytes_max = (size_t)512 << 10,
        .cached_bytes_min = 512,
        .loose_keys_max = (size_t)64 << 10,
        .loose_bytes_max = (size_t)64 << 20,
    };
}

static struct mu_backing_txn *new_txn(struct mu_backing *m, bool writes)
{
    struct mu_backing_txn *t = mu_calloc(1, sizeof(*t));

    if (t != NULL) {
        t->m = m;
        t->writes = writes;
        mu_list_init(&t->ops);
        mu_buf_init(&t->body, BODY_MAX);
    }
    return t;
}

static bool make_txns(struct mu_backing *m)
{
    bool made = true;

    for (size_t i = 0; i < m->config.writes_max; i++) {
        m->writes[i] = new_txn(m, true);
        made = made && m->writes[i] != NULL;
    }
    for (size_t i = 0; i < m->config.reads_max; i++) {
        m->reads[i] = new_txn(m, false);
        made = made && m->reads[i] != NULL;
    }
    m->mark = new_txn(m, true);
    return made && m->mark != NULL;
}

int mu_backing_init(struct mu_backing *m, const struct mu_backing_config *config)
{
    if (config->prefix.len >= MU_BACKING_PREFIX) {
        return MUSTER_ELIMIT;
    }
    MU_ASSERT(config->writes_max <= MU_BACKING_TXNS && config->reads_max <= MU_BACKING_TXNS);
    *m = (struct mu_backing){.config = *config, .prefix_len = config->prefix.len};
    memcpy(m->prefix, config->prefix.data, config->prefix.len);
    m->config.prefix = mu_span(m->prefix, m->prefix_len);
    mu_map_init(&m->keys, config->seed);
    mu_map_init(&m->elements, config->seed);
    mu_list_init(&m->clients);
    mu_list_init(&m->watchers);
    mu_list_init(&m->sleepers);
    mu_list_init(&m->held);
    mu_list_init(&m->tombs);
    m->gap_reads_max = MU_BACKING_GAP_READS;
    mu_list_init(&m->done);
    mu_buf_init(&m->old, HELD_MAX);
    if (!make_txns(m)) {
        mu_backing_fini(m);
        return MUSTER_ENOMEM;
    }
    return 0;
}

static void free_txn(struct mu_backing_txn *t)
{
    if (t != NULL) {
        MU_ASSERT(mu_list_empty(&t->ops));
        mu_buf_fini(&t->body);
        mu_free(t);
    }
}

void mu_backing_fini(struct mu_backing *m)
{
    MU_ASSERT(mu_list_empty(&m->clients) && mu_list_empty(&m->done));
    for (size_t i = 0; i < MU_BACKING_TXNS; i++) {
        free_txn(m->writes[i]);
        free_txn(m->reads[i]);
    }
    free_txn(m->mark);
    mu_backing_forget(m);
    mu_map_fini(&m->keys);
    mu_map_fini(&m->elements);
    mu_buf_fini(&m->old);
}

/* --- operations ------------------------------------------------------------------------------- */

static void put_in_queue(struct mu_backing *m, struct mu_backing_op *op, bool front)
{
    struct mu_backing_client *c = op->client;

    op->state = MU_BACKING_QUEUED;
    m->queued++;
    mu_list_push(front ? c->queue.next : &c->queue, &op->link);
    if (mu_list_empty(&c->link)) {
        mu_list_push(front ? m->clients.next : &m->clients, &c->link);
    }
}

/* This store has no leases. */
static bool is_well_formed(const struct mu_store_request *q)
{
    return mu_store_request_fits(q) && mu_store_verb_facts(q->verb)->does != MU_STORE_LEASES;
}

/* Returns whether it may sleep, watch, or be answered by the mirror. */
static bool needs_watch(const struct mu_store_request *q)
{
    const struct mu_store_verb_facts *facts = mu_store_verb_facts(q->verb);

    return q->key_count != 0 && (facts->does == MU_STORE_READS || facts->waits != MU_STORE_NEVER);
}

bool mu_backing_fill(struct mu_backing_txn *t,
                     bool (*take)(struct mu_backing_txn *t, struct mu_backing_client *c))
{
    bool room = true;

    MU_LIST_FOREACH_SAFE (it, tmp, &t->m->clients) {
        struct mu_backing_client *c = MU_CONTAINER_OF(it, struct mu_backing_client, link);

        if (room && c->flying == 0) {
            room = take(t, c);
        }
    }
    if (t->op_count == 0) {
        mu_backing_release(t);
    }
    return t->op_count != 0;
}

void mu_backing_submit(struct mu_backing *m, struct mu_backing_client *client,
                       struct mu_backing_op *op)
{
    MU_ASSERT(op->state == MU_BACKING_IDLE);
    op->client = client != NULL ? client : &op->own;
    if (op->client->queue.next == NULL) {
        mu_list_init(&op->client->queue);
        mu_list_init(&op->client->link);
    }
    m->wants_watch = m->wants_watch || needs_watch(&op->request);
    mu_list_init(&op->link);
    mu_buf_init(&op->held, HELD_MAX);
    if (!is_well_formed(&op->request)) {
        m->op_count++;
        mu_backing_finish(m, op, MUSTER_EINVAL, NULL);
    } else if (op->request.verb == MU_STORE_WATCH) {
        op->state = MU_BACKING_WATCHING;
        mu_list_push(&m->watchers, &op->link);
    } else {
        m->op_count++;
        put_in_queue(m, op, false);
    }
}

void mu_backing_let_pass(struct mu_backing_op *op)
{
    if (op->holds) {
        op->holds = false;
        op->client->flying--;
    }
}

void mu_backing_finish(struct mu_backing *m, struct mu_backing_op *op, int status, const char *text)
{
    m->queued -= op->state == MU_BACKING_QUEUED ? 1 : 0;
    op->status = status;
    if (status != 0) {
        op->reply = (struct mu_store_reply){0};
        (void)mu_err(&op->errmsg, status, "%s", text != NULL ? text : muster_strerror(status));
    }
    mu_backing_let_pass(op);
    mu_backing_unregister(m, op);
    mu_list_remove(&op->link);
    if (mu_list_empty(&op->client->queue)) {
        mu_list_remove(&op->client->link);
    }
    op->state = MU_BACKING_DONE;
    mu_list_push(&m->done, &op->link);
}

void mu_backing_answer(struct mu_backing *m, struct mu_backing_op *op, int64_t number,
                       const struct mu_span *values, size_t count)
{
    op->reply = (struct mu_store_reply){.number = number, .values = values, .value_count = count};
    mu_backing_finish(m, op, 0, NULL);
}

void mu_backing_requeue(struct mu_backing *m, struct mu_backing_op *op)
{
    mu_backing_let_pass(op);
    mu_list_remove(&op->link);
    put_in_queue(m, op, true);
}

void mu_backing_fly(struct mu_backing_txn *t, struct mu_backing_op *op)
{
    mu_list_remove(&op->link);
    mu_list_push(&t->ops, &op->link);
    t->m->queued--;
    op->state = MU_BACKING_FLYING;
    op->client->flying++;
    t->op_count++;
    if (mu_list_empty(&op->client->queue)) {
        mu_list_remove(&op->client->link);
    }
}

bool mu_backing_land(struct mu_backing *m, struct mu_backing_op *op)
{
    mu_list_remove(&op->link);
    op->client->flying--;
    if (op->canceled) {
        mu_backing_finish(m, op, MUSTER_ECANCELED, NULL);
        return true;
    }
    return false;
}

bool mu_backing_cancel(struct mu_backing *m, struct mu_backing_op *op)
{
    switch (op->state) {
    case MU_BACKING_IDLE:
        return true;
    case MU_BACKING_FLYING:
        op->canceled = true;
        return false;
    case MU_BACKING_WATCHING:
        if (m->cursor == &op->link) {
            m->cursor = op->link.next;
        }
        m->op_count++; /* It was not counted, and is subtracted below. */
        break;
    case MU_BACKING_QUEUED:
        m->queued--;
        break;
    case MU_BACKING_SLEEPING:
    case MU_BACKING_DONE:
        break;
    }
    m->op_count--;
    mu_backing_let_pass(op);
    mu_backing_unregister(m, op);
    mu_list_remove(&op->link);
    if (mu_list_empty(&op->client->queue)) {
        mu_list_remove(&op->client->link);
    }
    op->state = MU_BACKING_IDLE;
    return true;
}

void mu_backing_stop(struct mu_backing *m)
{
    for (size_t i = 0; i < m->config.writes_max; i++) {
        struct mu_backing_txn *t = m->writes[i];

        if (t->again) {
            t->again = false;
            m->fences--;
            mu_backing_written(t, MUSTER_ECLOSED, NULL, NULL);
        }
    }
    m->mark_due = false;
    mu_backing_unhold(m);
    while (!mu_list_empty(&m->clients)) {
        struct mu_backing_client *c =
            MU_CONTAINER_OF(m->clients.next, struct mu_backing_client, link);

        mu_backing_finish(m, MU_CONTAINER_OF(c->queue.next, struct mu_backing_op, link),
                          MUSTER_ECLOSED, NULL);
    }
}

struct mu_backing_op *mu_backing_next_done(struct mu_backing *m)
{
    struct mu_list *it = mu_list_pop(&m->done);
    struct mu_backing_op *op;

    if (it == NULL) {
        return NULL;
    }
    op = MU_CONTAINER_OF(it, struct mu_backing_op, link);
    op->state = MU_BACKING_IDLE;
    m->op_count--;
    return op;
}

void mu_backing_op_fini(struct mu_backing_op *op)
{
    MU_ASSERT(op->state == MU_BACKING_IDLE && op->regs == NULL);
    mu_buf_fini(&op->held);
    mu_free(op->lens);
    mu_free(op->values);
    op->lens = NULL;
    op->values = NULL;
}

size_t mu_backing_missing(const struct mu_backing_op *op, struct mu_span *ret_keys, size_t cap)
{
    size_t n = 0;

    for (size_t i = 0; i < op->reg_count; i++) {
        if (op->regs[i].key != NULL) {
            if (n < cap) {
                ret_keys[n] = op->regs[i].key->node.key;
            }
            n++;
        }
    }
    return n;
}

/* --- transactions ----------------------------------------------------------------------------- */

void mu_backing_set_session(struct mu_backing *m, int64_t lease)
{
    m->session = lease;
}

struct mu_backing_touch *mu_backing_touch(struct mu_backing_txn *t, struct mu_span key)
{
    struct mu_backing_key *k = mu_backing_get(t->m, key);

    if (k == NULL) {
        return NULL;
    }
    if (k->draft == NULL) {
        MU_ASSERT(t->touch_count < MU_BACKING_KEYS);
        k->draft = &t->touches[t->touch_count++];
        *k->draft = (struct mu_backing_touch){.key = k,
                                              .mod = k->mod,
                                              .present = k->mod != 0,
                                              .lease = k->lease,
                                              .value = k->value,
                                              .len = k->len};
        k->pins++;
    }
    return k->draft;
}

void mu_backing_release(struct mu_backing_txn *t)
{
    for (size_t i = 0; i < t->touch_count; i++) {
        struct mu_backing_touch *touch = &t->touches[i];
        struct mu_backing_key *k = touch->key;

        if (touch->dirty) {
            mu_free(touch->value);
        }
        k->writer = k->writer == t ? NULL : k->writer;
        k->popper = k->popper == t ? NULL : k->popper;
        k->draft = k->draft == touch ? NULL : k->draft;
        k->pins--;
        mu_backing_put(t->m, k);
    }
    t->touch_count = 0;
    t->op_count = 0;
    t->bytes = 0;
    t->results = 0;
    t->only = NULL;
    t->queue_ops = 0;
    t->closed = t->fencing = t->asking = t->doubtful = t->counts_keys = false;
    t->lists_keys = t->starved = t->local = t->plain = false;
    mu_buf_reset(&t->body);
    mu_buf_trim(&t->body, 64 << 10);
}

static bool is_busy(const struct mu_backing_txn *t)
{
    return t->op_count != 0;
}

/* A transaction is complete: drafts belong to the one that is being made. */
static struct mu_backing_txn *seal(struct mu_backing_txn *t)
{
    for (size_t i = 0; i < t->touch_count; i++) {
        t->touches[i].key->draft = NULL;
    }
    return t;
}

/* Makes a transaction if one may be made now, or returns NULL. */
static struct mu_backing_txn *find_free(const struct mu_backing *m,
                                        struct mu_backing_txn *const *txns, size_t count)
{
    struct mu_backing_txn *found = NULL;

    for (size_t i = 0; i < count; i++) {
        if (!is_busy(txns[i])) {
            found = txns[i];
        } else if (txns[i]->op_count >= LARGE && m->queued < MU_BACKING_KEYS) {
            return NULL; /* It is better to gather. */
        }
    }
    return found;
}

struct mu_backing_txn *mu_backing_next_txn(struct mu_backing *m)
{
    struct mu_backing_txn *t;

    for (size_t i = 0; i < m->config.writes_max; i++) {
        t = m->writes[i];
        if (t->again) {
            t->again = false;
            t->sent = true;
            m->fences--;
            return t;
        }
    }
    if (!m->watching &&
        (m->keys.count > m->config.loose_keys_max || m->value_bytes > m->config.loose_bytes_max)) {
        mu_backing_forget(m);
    }
    if (m->mark_due && !m->marking && m->session != 0 && mu_backing_plan_mark(m)) {
        return m->mark;
    }
    if (mu_list_empty(&m->clients) || (!m->watching && !mu_list_empty(&m->watchers))) {
        return NULL;
    }
    if (m->config.cached) {
        mu_backing_read_cached(m);
    }
    t = m->session == 0 ? NULL : find_free(m, m->writes, m->config.writes_max);
    if (t != NULL && mu_backing_plan_writes(t)) {
        m->stats.writes++;
        m->stats.written_ops += t->op_count;
        t->sent = true;
        return seal(t);
    }
    t = find_free(m, m->reads, m->config.reads_max);
    if (t != NULL && mu_backing_plan_reads(t)) {
        m->stats.reads++;
        m->stats.read_ops += t->op_count;
        t->sent = true;
        return seal(t);
    }
    return NULL;
}

const char *mu_backing_txn_path(const struct mu_backing_txn *t)
{
    return t->plain ? mu_etcd_op_path(MU_ETCD_RANGE) : "/v3/kv/txn";
}

struct mu_span mu_backing_txn_body(const struct mu_backing_txn *t)
{
    return mu_buf_span(&t->body);
}

bool mu_backing_txn_writes(const struct mu_backing_txn *t)
{
    return t->writes;
}

void **mu_backing_txn_context(struct mu_backing_txn *t)
{
    return &t->context;
}

void mu_backing_txn_done(struct mu_backing *m, struct mu_backing_txn *t, int status,
                         const struct mu_etcd_reply *reply, bool retried, const char *text)
{
    t->sent = false;
    t->doubtful = t->doubtful || retried;
    if (t == m->mark) {
        mu_backing_marked(m, status, reply);
    } else if (t->writes) {
        mu_backing_written(t, status, reply, text);
    } else {
        mu_backing_read(t, status, reply, text);
    }
}

/* --- names ------------------------------------------------------------------------------------ */

int mu_backing_name_key(const struct mu_backing *m, struct mu_buf *out, struct mu_span key)
{
    int err = mu_buf_reserve(out, m->prefix_len + 3 + key.len);

    if (err == 0) {
        mu_buf_put(out, m->config.prefix);
        mu_buf_put(out, MU_SPAN_LIT("/k/"));
        mu_buf_put(out, key);
    }
    return err;
}

int mu_backing_name_queue(const struct mu_backing *m, struct mu_buf *out, struct mu_span key,
                          bool end)
{
    char text[16];
    int err = mu_buf_reserve(out, m->prefix_len + 16 + key.len);

    if (err == 0) {
        (void)snprintf(text, sizeof(text), "/q/%08zx/", key.len);
        mu_buf_put(out, m->config.prefix);
        mu_buf_put(out, mu_span_str(text));
        mu_buf_put(out, key);
        mu_buf_put_u8(out, end ? '/' + 1 : '/');
    }
    return err;
}

int mu_backing_watch_range(const struct mu_backing *m, struct mu_buf *from, struct mu_buf *to)
{
    int err = mu_backing_name_key(m, from, (struct mu_span){0});

    if (err == 0) {
        err = mu_buf_append(to, m->config.prefix);
    }
    return err != 0 ? err : mu_buf_append(to, MU_SPAN_LIT("/r/"));
}
