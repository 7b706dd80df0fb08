/*
 * Barriers for every kind of store, made of add, set and wait, with the keys that PyTorch's elastic
 * helper uses, so that its processes and ours can meet at one:
 *
 *     ADD  KEY/num_members 1          the caller that gets exactly the world size
 *     SET  KEY/last_member            opens it
 *     WAIT KEY/last_member
 *
 * A barrier's key serves once. After a timeout the barrier reads the count, to say how many are
 * missing.
 */
#include "service/store/store.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"

#define COUNT_TIMEOUT_MS 1000

enum barrier_state {
    ARRIVING = 1, /* the add is out */
    OPENING,      /* the set is out */
    WAITING,      /* the wait is out */
    COUNTING,     /* it timed out; asking how many came */
};

struct barrier {
    struct mu_store_op sub;
    struct mu_store_op *op;
    enum barrier_state state;
    mu_mono_t deadline;
    struct mu_span key; /* of the request that is out */
    struct mu_span value;
    bool canceled;
    struct mu_list link;
    size_t base_len;
    char text[]; /* the barrier's key with the name of the part behind it */
};

struct barrier_store {
    struct mu_store base;
    struct mu_store *inner;
    struct mu_list barriers;
};

static void on_sub_done(struct mu_store_op *sub);

static void submit_sub(struct barrier *b, struct mu_store *inner, enum barrier_state state)
{
    struct mu_now now = mu_env_now(inner->env);
    const char *part = state == ARRIVING || state == COUNTING ? "/num_members" : "/last_member";
    uint64_t left = mu_mono_until_ms(b->deadline, now.mono);

    b->state = state;
    memcpy(b->text + b->base_len, part, strlen(part));
    b->key = mu_span(b->text, b->base_len + strlen(part));
    b->value = MU_SPAN_LIT("<val_ignored>");
    b->sub = (struct mu_store_op){
        .request =
            {
                .verb = state == OPENING   ? MU_STORE_SET
                        : state == WAITING ? MU_STORE_WAIT
                                           : MU_STORE_ADD,
                .keys = &b->key,
                .key_count = 1,
                .values = state == OPENING ? &b->value : NULL,
                .value_count = state == OPENING ? 1 : 0,
                .number = state == ARRIVING ? 1 : 0,
            },
        .done = on_sub_done,
    };
    b->sub.timeout_ms = state == COUNTING        ? COUNT_TIMEOUT_MS
                        : b->op->timeout_ms == 0 ? 0
                        : left > UINT32_MAX      ? UINT32_MAX
                        : left == 0              ? 1
                                                 : (uint32_t)left;
    mu_store_submit(inner, &b->sub);
}

static void finish(struct barrier *b, int status, const char *text)
{
    struct mu_store_op *op = b->op;

    mu_list_remove(&b->link);
    op->reply = (struct mu_store_reply){0};
    op->impl = NULL;
    mu_store_finish(op, status, text);
    mu_free(b);
}

/* The count came, or did not: ends the op, and says how many are missing. */
static void finish_timeout(struct barrier *b)
{
    char quoted[80];
    char text[MU_ERRMSG_CAP];

    (void)mu_span_quote(quoted, sizeof(quoted), mu_span(b->text, b->base_len));
    if (b->sub.status == 0) {
        (void)snprintf(text, sizeof(text),
                       "timed out at barrier %s: %" PRId64 " of %" PRId64 " arrived within %u ms",
                       quoted, b->sub.reply.number, b->op->request.number, b->op->timeout_ms);
    } else {
        (void)snprintf(text, sizeof(text), "timed out at barrier %s after %u ms", quoted,
                       b->op->timeout_ms);
    }
    finish(b, MUSTER_ETIMEDOUT, text);
}

static void on_sub_done(struct mu_store_op *sub)
{
    struct barrier *b = MU_CONTAINER_OF(sub, struct barrier, sub);
    struct mu_store *inner = sub->store;

    if (b->state == COUNTING) {
        finish_timeout(b);
    } else if (sub->status == MUSTER_ETIMEDOUT && b->state == WAITING && !b->canceled) {
        submit_sub(b, inner, COUNTING);
    } else if (sub->status != 0 || b->state == WAITING) {
        finish(b, sub->status, sub->errmsg.text);
    } else if (b->canceled) {
        finish(b, MUSTER_ECANCELED, NULL);
    } else if (b->state == ARRIVING && sub->reply.number == b->op->request.number) {
        submit_sub(b, inner, OPENING);
    } else {
        submit_sub(b, inner, WAITING);
    }
}

static void barrier_submit(struct mu_store *store, struct mu_store_op *op)
{
    struct barrier_store *s = MU_CONTAINER_OF(store, struct barrier_store, base);
    struct mu_span key;
    struct barrier *b;

    if (op->request.verb != MU_STORE_BARRIER) {
        mu_store_submit(s->inner, op);
        return;
    }
    key = op->request.keys[0];
    b = mu_store_alloc(store, op, 0, sizeof(*b) + key.len + sizeof("/num_members"));
    if (b == NULL) {
        return;
    }
    if (key.len != 0) {
        memcpy(b->text, key.data, key.len);
    }
    b->base_len = key.len;
    b->op = op;
    b->deadline = mu_store_deadline(store, op);
    op->impl = b;
    mu_list_push(&s->barriers, &b->link);
    submit_sub(b, s->inner, ARRIVING);
}

static void barrier_cancel(struct mu_store *store, struct mu_store_op *op)
{
    struct barrier *b = op->impl;

    (void)store;
    if (b != NULL) {
        b->canceled = true;
        mu_store_cancel(&b->sub);
    }
}

static void on_inner_closed(void *context)
{
    struct barrier_store *s = context;

    if (s->base.closed != NULL) {
        s->base.closed(s->base.context);
    }
    mu_free(s);
}

static void barrier_close(struct mu_store *store)
{
    struct barrier_store *s = MU_CONTAINER_OF(store, struct barrier_store, base);

    mu_store_close(s->inner, on_inner_closed, s);
}

static const struct mu_store_kind barrier_kind = {
    .submit = barrier_submit,
    .cancel = barrier_cancel,
    .close = barrier_close,
};

int mu_store_barrier_new(struct mu_env *env, struct mu_store **ret_store)
{
    struct barrier_store *s = mu_calloc(1, sizeof(*s));

    if (s == NULL) {
        return MUSTER_ENOMEM;
    }
    s->base.kind = &barrier_kind;
    s->base.env = env;
    mu_list_init(&s->barriers);
    *ret_store = &s->base;
    return 0;
}

void mu_store_barrier_onto(struct mu_store *barrier, struct mu_store *inner)
{
    MU_CONTAINER_OF(barrier, struct barrier_store, base)->inner = inner;
}

void mu_store_barrier_drop(struct mu_store *barrier)
{
    if (barrier != NULL) {
        mu_free(MU_CONTAINER_OF(barrier, struct barrier_store, base));
    }
}
