/* Reading several keys at one revision, waiting for those that are missing, and watching. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "service/store/etcd.h"

#define KEY_MAX       (64u << 20)
#define LINGER_MS     1000u /* how long the watch goes on when no op waits */
#define NAMED         3u    /* how many missing keys a timeout names */
#define QUEUE_LEN_HEX 8u

/* A key that ops wait for. */
struct mu_setcd_key {
    struct mu_map_node node;
    struct mu_list regs;
    size_t len;
    uint8_t bytes[];
};

/* --- keys and the ops that wait for them ------------------------------------------------------ */

static void wake_later(struct mu_setcd *s);

static bool is_wait(const struct mu_setcd_op *e)
{
    return e->op->request.verb == MU_STORE_WAIT;
}

static struct mu_setcd_key *find_key(struct mu_setcd *s, struct mu_span key)
{
    struct mu_map_node *node = mu_map_find(&s->waited, key);

    return node == NULL ? NULL : MU_CONTAINER_OF(node, struct mu_setcd_key, node);
}

static int add_reg(struct mu_setcd_op *e, size_t index, struct mu_span key)
{
    struct mu_setcd *s = e->s;
    struct mu_setcd_key *k = find_key(s, key);
    struct mu_setcd_reg *reg = &e->regs[e->reg_count];

    if (k == NULL) {
        k = mu_malloc(sizeof(*k) + key.len);
        if (k == NULL) {
            return MUSTER_ENOMEM;
        }
        mu_list_init(&k->regs);
        k->len = key.len;
        memcpy(k->bytes, key.data, key.len);
        if (mu_map_insert(&s->waited, &k->node, mu_span(k->bytes, k->len)) != 0) {
            mu_free(k);
            return MUSTER_ENOMEM;
        }
    }
    *reg = (struct mu_setcd_reg){.key = k, .e = e, .index = index};
    mu_list_init(&reg->link);
    mu_list_push(&k->regs, &reg->link);
    e->reg_count++;
    return 0;
}

void mu_setcd_unwait(struct mu_setcd_op *e)
{
    for (size_t i = 0; i < e->reg_count; i++) {
        struct mu_setcd_key *k = e->regs[i].key;

        mu_list_remove(&e->regs[i].link);
        if (mu_list_empty(&k->regs)) {
            mu_map_remove(&e->s->waited, &k->node);
            mu_free(k);
        }
    }
    if (e->reg_count > 0) {
        e->reg_count = 0;
        wake_later(e->s);
    }
    e->waiting = false;
}

/* Registers the op for every key it needs, once, until it ends. */
static int add_regs(struct mu_setcd_op *e)
{
    const struct mu_store_request *q = &e->op->request;
    bool values = q->verb != MU_STORE_QUEUE_POP;
    bool queues = q->verb == MU_STORE_QUEUE_POP || is_wait(e);
    int err = 0;

    if (e->regs != NULL) {
        return 0;
    }
    e->regs = mu_calloc(q->key_count * 2 + 1, sizeof(*e->regs));
    if (e->regs == NULL) {
        return MUSTER_ENOMEM;
    }
    for (size_t i = 0; err == 0 && i < q->key_count; i++) {
        err = values ? add_reg(e, i, e->names[i].key) : 0;
        if (err == 0 && queues) {
            err = add_reg(e, i, e->names[i].queue);
        }
    }
    return err;
}

/* --- the watch that wakes them ---------------------------------------------------------------- */

static bool all_come(const struct mu_setcd_op *e)
{
    for (size_t i = 0; i < e->op->request.key_count; i++) {
        if (!e->names[i].come) {
            return false;
        }
    }
    return true;
}

/* A key may have come: the op reads again, now or when its present read has ended. */
static void poke(struct mu_setcd_op *e)
{
    if (e->ending != 0) {
        return;
    }
    if (!e->waiting) {
        e->poked = true;
        return;
    }
    e->waiting = false;
    e->step(e);
}

/* Wakes the ops that wait for that key, once for all that came at a time. */
static void tell_regs(struct mu_setcd *s, struct mu_span key)
{
    struct mu_setcd_key *k = find_key(s, key);
    struct mu_list *it;

    if (k == NULL) {
        return;
    }
    MU_LIST_FOREACH (r, &k->regs) {
        struct mu_setcd_reg *reg = MU_CONTAINER_OF(r, struct mu_setcd_reg, link);

        reg->e->names[reg->index].come = true;
        if (mu_list_empty(&reg->e->due)) {
            mu_list_push(&s->due, &reg->e->due);
        }
    }
    /* From here on ops may end, and the key's record with them. */
    while ((it = mu_list_pop(&s->due)) != NULL) {
        struct mu_setcd_op *e = MU_CONTAINER_OF(it, struct mu_setcd_op, due);

        if (!is_wait(e)) {
            poke(e);
        } else if (e->waiting && e->ending == 0 && all_come(e)) {
            mu_setcd_answer(e, 0, NULL, 0);
        }
    }
}

/* The name under which ops may wait for what was put: a key's own, or its queue's. */
static struct mu_span waited_name(const struct mu_setcd *s, struct mu_span key)
{
    struct mu_span rest;
    size_t len = 0;

    if (key.len < s->prefix_len + 3) {
        return key;
    }
    rest = mu_span_skip(key, s->prefix_len);
    if (!mu_span_starts_with(rest, MU_SPAN_LIT("/q/")) || rest.len < 4 + QUEUE_LEN_HEX) {
        return key;
    }
    for (size_t i = 3; i < 3 + QUEUE_LEN_HEX; i++) {
        uint8_t c = rest.data[i];

        len = len << 4 | (size_t)(c >= 'a' ? c - 'a' + 10 : c - '0');
    }
    len += s->prefix_len + 3 + QUEUE_LEN_HEX + 2;
    return len < key.len ? mu_span(key.data, len) : key;
}

static void on_wake_change(struct mu_etcd_watch *watch, const struct mu_etcd_change *change)
{
    struct mu_setcd *s = MU_CONTAINER_OF(watch, struct mu_setcd, wake);

    tell_regs(s, waited_name(s, change->kv.key));
}

static void on_wake_ended(struct mu_etcd_watch *watch, int status)
{
    struct mu_setcd *s = MU_CONTAINER_OF(watch, struct mu_setcd, wake);
    struct mu_errmsg why = watch->errmsg;

    s->wake_runs = false;
    MU_LIST_FOREACH_SAFE (it, tmp, &s->ops) {
        struct mu_setcd_op *e = MU_CONTAINER_OF(it, struct mu_setcd_op, link);

        if (!e->waiting || e->ending != 0) {
            continue;
        }
        if (status == MUSTER_ECANCELED) {
            poke(e); /* the key came just when the watch was let go */
        } else {
            e->waiting = false;
            e->call.errmsg = why;
            e->call.status = status;
            mu_setcd_fail_later(e, status);
        }
    }
}

static void on_wake_idle(struct mu_timer *timer)
{
    struct mu_setcd *s = MU_CONTAINER_OF(timer, struct mu_setcd, wake_idle);

    if (s->wake_runs && s->waited.count == 0) {
        mu_etcd_watch_cancel(&s->wake);
    }
}

static void wake_later(struct mu_setcd *s)
{
    if (s->waited.count == 0 && !s->closing) {
        mu_env_timer_arm(s->base.env, &s->wake_idle,
                         mu_mono_add_ms(mu_env_now(s->base.env).mono, LINGER_MS));
    }
}

void mu_setcd_wake_init(struct mu_setcd *s)
{
    mu_buf_init(&s->wake_from, KEY_MAX);
    mu_buf_init(&s->wake_to, KEY_MAX);
    mu_timer_init(&s->wake_idle, on_wake_idle);
}

void mu_setcd_sleep(struct mu_setcd_op *e, int64_t revision)
{
    struct mu_setcd *s = e->s;
    int err = add_regs(e);

    if (err != 0) {
        mu_setcd_finish(e, err, NULL);
        return;
    }
    mu_env_timer_arm(s->base.env, &s->wake_idle, MU_MONO_NEVER);
    if (!s->wake_runs) {
        s->wake_runs = true;
        s->wake = (struct mu_etcd_watch){
            .key = mu_buf_span(&s->wake_from),
            .end = mu_buf_span(&s->wake_to),
            .puts_only = true,
            .from = revision + 1,
            .change = on_wake_change,
            .ended = on_wake_ended,
        };
        mu_etcd_watch_start(s->etcd, &s->wake);
    }
    e->waiting = true;
    if (e->poked || s->wake.next > revision + 1) {
        /* The watch has passed that revision, and may have reported the key before we waited. */
        e->poked = false;
        e->waiting = false;
        e->step(e);
    }
}

/* --- reading ---------------------------------------------------------------------------------- */

/* How many keys one transaction reads. A check or a wait reads the queue of each as well. */
static size_t keys_per_txn(const struct mu_setcd_op *e)
{
    bool both = is_wait(e) || e->op->request.verb == MU_STORE_CHECK;

    return both ? MU_SETCD_TXN_OPS / 2 : MU_SETCD_TXN_OPS;
}

static bool counts_only(const struct mu_setcd_op *e)
{
    return keys_per_txn(e) != MU_SETCD_TXN_OPS;
}

static void on_read(struct mu_etcd_call *call);

static void read_part(struct mu_setcd_op *e)
{
    struct mu_etcd_op ops[MU_SETCD_TXN_OPS];
    struct mu_etcd_txn txn = {.success = ops};
    size_t end = e->at + keys_per_txn(e);
    int err;

    end = end < e->op->request.key_count ? end : e->op->request.key_count;
    for (size_t i = e->at; i < end; i++) {
        ops[txn.success_count++] = (struct mu_etcd_op){
            .kind = MU_ETCD_RANGE,
            .key = e->names[i].key,
            .count_only = counts_only(e),
            .revision = e->revision,
        };
        if (counts_only(e)) {
            ops[txn.success_count++] = (struct mu_etcd_op){
                .kind = MU_ETCD_RANGE,
                .key = e->names[i].queue,
                .end = e->names[i].queue_end,
                .count_only = true,
                .revision = e->revision,
            };
        }
    }
    mu_buf_reset(&e->body);
    err = mu_etcd_encode_txn(&e->body, &txn);
    if (err != 0) {
        mu_setcd_fail_later(e, err);
    } else {
        mu_setcd_send(e, "/v3/kv/txn", on_read);
    }
}

void mu_setcd_read(struct mu_setcd_op *e)
{
    e->step = mu_setcd_read;
    e->at = 0;
    e->revision = 0; /* the first part is read now, the others as of that revision */
    mu_buf_reset(&e->held);
    if (!is_wait(e)) {
        for (size_t i = 0; i < e->op->request.key_count; i++) {
            e->names[i].come = false;
        }
    }
    read_part(e);
}

static void answer_values(struct mu_setcd_op *e)
{
    size_t count = e->op->request.key_count;
    struct mu_span *values = mu_malloc((count + 1) * sizeof(*values));

    if (values == NULL) {
        mu_setcd_finish(e, MUSTER_ENOMEM, NULL);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        values[i] = mu_span_skip(mu_buf_span(&e->held), e->names[i].offset);
        values[i].len = e->names[i].len;
    }
    mu_setcd_answer(e, 0, values, count);
    mu_free(values);
}

/* Ends the read: all parts are there. */
static void end_read(struct mu_setcd_op *e)
{
    const struct mu_store_request *q = &e->op->request;
    bool all = all_come(e);

    if (q->verb == MU_STORE_CHECK) {
        mu_setcd_answer(e, all ? 1 : 0, NULL, 0);
    } else if (all && is_wait(e)) {
        mu_setcd_answer(e, 0, NULL, 0);
    } else if (all) {
        answer_values(e);
    } else if ((q->flags & MU_STORE_NOWAIT) != 0) {
        mu_setcd_finish(e, MUSTER_ENOENT, NULL);
    } else {
        mu_setcd_sleep(e, e->revision);
    }
}

static int take_value(struct mu_setcd_op *e, size_t i, const struct mu_etcd_result *found)
{
    struct mu_setcd_name *n = &e->names[i];

    if (found->kv_count == 0) {
        return 0;
    }
    n->come = true;
    n->offset = e->held.len;
    n->len = found->kvs[0].value.len;
    return mu_buf_append(&e->held, found->kvs[0].value);
}

static void on_read(struct mu_etcd_call *call)
{
    struct mu_setcd_op *e = MU_CONTAINER_OF(call, struct mu_setcd_op, call);
    const struct mu_etcd_reply *r = call->reply;
    size_t step = counts_only(e) ? 2 : 1;
    int err = 0;

    if (e->ending == 0 && call->status == MUSTER_EOVERFLOW) {
        mu_setcd_read(e); /* the revision was compacted between two parts */
        return;
    }
    if (mu_setcd_call_failed(e)) {
        return;
    }
    for (size_t i = 0; err == 0 && i + step <= r->result_count; i += step) {
        if (e->at >= e->op->request.key_count) {
            err = MUSTER_EPROTO;
        } else if (step == 1) {
            err = take_value(e, e->at, &r->results[i]);
        } else if (r->results[i].count > 0 || r->results[i + 1].count > 0) {
            e->names[e->at].come = true;
        }
        e->at++;
    }
    e->revision = e->revision == 0 ? r->revision : e->revision;
    if (err != 0) {
        mu_setcd_finish(e, err, NULL);
    } else if (e->at < e->op->request.key_count && r->result_count > 0) {
        read_part(e);
    } else {
        end_read(e);
    }
}

void mu_setcd_timeout_text(const struct mu_setcd_op *e, char *text, size_t cap)
{
    const struct mu_store_request *q = &e->op->request;
    size_t missing = 0;
    size_t n;
    char quoted[48];

    for (size_t i = 0; e->reg_count > 0 && i < q->key_count; i++) {
        missing += e->names[i].come ? 0 : 1;
    }
    if (missing == 0) {
        (void)snprintf(text, cap, "etcd did not answer within %u ms%s%.120s", e->op->timeout_ms,
                       e->call.errmsg.text[0] != '\0' ? ": " : "", e->call.errmsg.text);
        return;
    }
    n = (size_t)snprintf(text, cap, "timed out waiting for %zu %s:", missing,
                         missing == 1 ? "key" : "keys");
    for (size_t i = 0, named = 0; i < q->key_count && named < NAMED && n + 64 < cap; i++) {
        if (!e->names[i].come) {
            n += (size_t)snprintf(text + n, cap - n, " %s",
                                  mu_span_quote(quoted, sizeof(quoted), q->keys[i]));
            named++;
        }
    }
    if (missing > NAMED && n < cap) {
        (void)snprintf(text + n, cap - n, " and %zu more", missing - NAMED);
    }
}

/* --- watching --------------------------------------------------------------------------------- */

static void on_change(struct mu_etcd_watch *watch, const struct mu_etcd_change *c)
{
    struct mu_setcd_op *e = MU_CONTAINER_OF(watch, struct mu_setcd_op, watch);
    size_t skip = e->s->prefix_len + 3;
    struct mu_change change = {
        .revision = (uint64_t)c->revision,
        .key = c->kv.key.len < skip ? (struct mu_span){0} : mu_span_skip(c->kv.key, skip),
    };

    if (e->ending != 0) {
        return;
    }
    if ((e->op->request.flags & MU_STORE_ONCE) != 0) {
        e->number = c->revision;
        mu_etcd_watch_cancel(watch);
        return;
    }
    if (!c->deleted) {
        change.kind = c->created || c->initial ? MU_CHANGE_CREATED : MU_CHANGE_UPDATED;
        change.value = c->kv.value;
    } else {
        /* etcd does not say why a key went. A key with a lease rarely goes in another way. */
        change.kind = c->has_prev && c->prev.lease != 0 ? MU_CHANGE_EXPIRED : MU_CHANGE_DELETED;
    }
    if (c->has_prev) {
        change.old_value = c->prev.value;
    }
    e->op->change(e->op, &change);
}

static void on_watch_ended(struct mu_etcd_watch *watch, int status)
{
    struct mu_setcd_op *e = MU_CONTAINER_OF(watch, struct mu_setcd_op, watch);

    e->watching = false;
    if (e->ending == 0 && e->number != 0) {
        mu_setcd_answer(e, e->number, NULL, 0); /* a watch for one change is done */
        return;
    }
    mu_setcd_finish(e, e->ending != 0 ? e->ending : status,
                    e->ending != 0 ? NULL : watch->errmsg.text);
}

void mu_setcd_watch(struct mu_setcd_op *e)
{
    bool prefix = (e->op->request.flags & MU_STORE_PREFIX) != 0;
    int err = prefix ? mu_etcd_prefix_end(&e->watch_end, e->names[0].key) : 0;

    if (err != 0) {
        mu_setcd_fail_later(e, err);
        return;
    }
    e->watch = (struct mu_etcd_watch){
        .key = e->names[0].key,
        .end = mu_buf_span(&e->watch_end),
        .current = (e->op->request.flags & MU_STORE_CURRENT) != 0,
        .prev_kv = true,
        .change = on_change,
        .ended = on_watch_ended,
    };
    e->watching = true;
    mu_etcd_watch_start(e->s->etcd, &e->watch);
}
