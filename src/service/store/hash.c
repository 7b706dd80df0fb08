/* The store in this process: a keyspace of its own. */
#include "service/store/store.h"
#include "service/store/exec.h"

#include <string.h>

#include "core/alloc.h"

struct hash_op {
    struct mu_store_exec exec;
    struct mu_store_sink sink;
    struct mu_store_op *op;
    struct hash_store *store;
    struct mu_list link; /* store->ops */
};

struct hash_store {
    struct mu_store base;
    struct mu_keyspace ks;
    struct mu_executor executor;
    struct mu_timer timer; /* leases, and the turn on which things end */
    struct mu_list submitted;
    struct mu_list canceled; /* struct mu_store_op */
    struct mu_list ops;      /* struct hash_op that go on */
    uint64_t lease;          /* the session's; the session is the process */
    bool closing;
};

static void run_soon(struct hash_store *s)
{
    mu_env_timer_arm(s->base.env, &s->timer, mu_env_now(s->base.env).mono);
}

static void end_op(struct hash_op *h, int status, const struct mu_store_reply *reply,
                   const char *text)
{
    struct mu_store_op *op = h->op;

    mu_env_timer_arm(h->store->base.env, &op->timer, MU_MONO_NEVER);
    mu_list_remove(&op->link); /* it may have been cancelled on this very turn */
    mu_list_remove(&h->link);
    op->reply = *reply;
    op->impl = NULL;
    mu_store_finish(op, status, text);
    mu_free(h);
}

static void on_answer(struct mu_store_sink *sink, int status, const struct mu_store_reply *reply,
                      const char *text)
{
    end_op(MU_CONTAINER_OF(sink, struct hash_op, sink), status, reply, text);
}

static bool on_change(struct mu_store_sink *sink, const struct mu_change *change)
{
    struct mu_store_op *op = MU_CONTAINER_OF(sink, struct hash_op, sink)->op;

    op->change(op, change);
    return true; /* an op that its owner cancels ends on a later turn */
}

static void on_op_timeout(struct mu_timer *timer)
{
    struct mu_store_op *op = MU_CONTAINER_OF(timer, struct mu_store_op, timer);
    struct hash_op *h = op->impl;
    struct hash_store *s = h->store;

    mu_store_exec_stop(&h->exec, MUSTER_ETIMEDOUT);
    run_soon(s);
}

static int resolve_lease(struct hash_store *s, struct mu_store_request *q)
{
    int err = 0;

    if (q->lease == MU_LEASE_SESSION) {
        if (s->lease == 0) {
            err = mu_ks_lease_grant(&s->ks, mu_env_now(s->base.env).mono, 0, &s->lease);
        }
        q->lease = s->lease;
    }
    return err;
}

static void start_op(struct hash_store *s, struct mu_store_op *op)
{
    struct hash_op *h = mu_calloc(1, sizeof(*h));
    struct mu_store_request q = op->request;

    mu_list_init(&op->link);
    if (h == NULL || resolve_lease(s, &q) != 0) {
        mu_free(h);
        mu_store_finish(op, MUSTER_ENOMEM, NULL);
        return;
    }
    h->op = op;
    h->store = s;
    h->sink.answer = on_answer;
    h->sink.change = on_change;
    mu_list_push(&s->ops, &h->link);
    op->impl = h;
    if (!mu_store_execute(&s->executor, mu_env_now(s->base.env).mono, &q, &h->sink)) {
        mu_env_timer_arm(s->base.env, &op->timer, op->deadline);
        mu_store_exec_start(&h->exec, &s->executor, &q, &h->sink);
    }
}

static void free_store(struct hash_store *s)
{
    mu_ks_fini(&s->ks);
    mu_free(s);
}

static void close_now(struct hash_store *s)
{
    struct mu_list *it;

    while ((it = mu_list_pop(&s->submitted)) != NULL) {
        mu_store_finish(MU_CONTAINER_OF(it, struct mu_store_op, link), MUSTER_ECLOSED, NULL);
    }
    while ((it = s->ops.next) != &s->ops) {
        struct hash_op *h = MU_CONTAINER_OF(it, struct hash_op, link);

        mu_store_exec_stop(&h->exec, MUSTER_ECLOSED);
    }
    mu_env_timer_arm(s->base.env, &s->timer, MU_MONO_NEVER);
    if (s->base.closed != NULL) {
        s->base.closed(s->base.context);
    }
    free_store(s);
}

static void on_timer(struct mu_timer *timer)
{
    struct hash_store *s = MU_CONTAINER_OF(timer, struct hash_store, timer);
    struct mu_list *it;

    while ((it = mu_list_pop(&s->submitted)) != NULL) {
        start_op(s, MU_CONTAINER_OF(it, struct mu_store_op, link));
        mu_ks_tell_owners(&s->ks);
    }
    while ((it = mu_list_pop(&s->canceled)) != NULL) {
        struct mu_store_op *op = MU_CONTAINER_OF(it, struct mu_store_op, link);
        struct hash_op *h = op->impl;

        if (h != NULL) {
            mu_store_exec_stop(&h->exec, MUSTER_ECANCELED);
        } else {
            mu_store_finish(op, MUSTER_ECANCELED, NULL); /* it was never started */
        }
    }
    mu_ks_tick(&s->ks, mu_env_now(s->base.env).mono);
    mu_ks_tell_owners(&s->ks);
    if (s->closing) {
        close_now(s);
    } else if (mu_list_empty(&s->submitted) && mu_list_empty(&s->canceled)) {
        mu_env_timer_arm(s->base.env, &s->timer, mu_ks_deadline(&s->ks));
    } else {
        run_soon(s);
    }
}

static void hash_submit(struct mu_store *store, struct mu_store_op *op)
{
    struct hash_store *s = MU_CONTAINER_OF(store, struct hash_store, base);

    op->impl = NULL;
    op->deadline = mu_store_deadline(store, op);
    mu_timer_init(&op->timer, on_op_timeout);
    mu_list_push(&s->submitted, &op->link);
    run_soon(s);
}

static void hash_cancel(struct mu_store *store, struct mu_store_op *op)
{
    struct hash_store *s = MU_CONTAINER_OF(store, struct hash_store, base);

    /* The op is on the list of the submitted or of the cancelled, or on no list. */
    mu_list_remove(&op->link);
    mu_list_push(&s->canceled, &op->link);
    run_soon(s);
}

static void hash_close(struct mu_store *store)
{
    struct hash_store *s = MU_CONTAINER_OF(store, struct hash_store, base);

    s->closing = true;
    run_soon(s);
}

static const struct mu_store_kind hash_kind = {
    .submit = hash_submit,
    .cancel = hash_cancel,
    .close = hash_close,
};

int mu_store_hash_new(struct mu_env *env, struct mu_store **ret_store)
{
    struct hash_store *s = mu_calloc(1, sizeof(*s));
    struct mu_ks_config config = mu_ks_config_defaults();

    if (s == NULL) {
        return MUSTER_ENOMEM;
    }
    mu_env_entropy(env, &config.seed, sizeof(config.seed));
    if (mu_ks_init(&s->ks, &config) != 0) {
        mu_free(s);
        return MUSTER_ENOMEM;
    }
    s->executor = mu_executor_local(&s->ks);
    s->base.kind = &hash_kind;
    s->base.env = env;
    mu_timer_init(&s->timer, on_timer);
    mu_list_init(&s->submitted);
    mu_list_init(&s->canceled);
    mu_list_init(&s->ops);
    *ret_store = &s->base;
    return 0;
}
