/* The store in etcd: its ops from submission to end, its session and its slots. */
#include "service/store/etcd.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"

#define BODY_MAX     (64u << 20) /* etcd takes 1.5 MiB, and refuses more itself */
#define SESSIONS_MAX 5u

/* --- ops -------------------------------------------------------------------------------------- */

static void check_closed(struct mu_setcd *s);

static void free_op(struct mu_setcd_op *e)
{
    mu_buf_fini(&e->body);
    mu_buf_fini(&e->held);
    mu_buf_fini(&e->watch_end);
    mu_free(e->element);
    mu_free(e->names);
    mu_free(e->regs);
    mu_free(e);
}

static void end_op(struct mu_setcd_op *e, int status, const char *text)
{
    struct mu_setcd *s = e->s;
    struct mu_store_op *op = e->op;

    if (e->slot != NULL) {
        mu_setcd_slot_give(s, e->slot, status == 0 || !e->call.unknown);
    }
    mu_setcd_unwait(e);
    mu_env_timer_arm(s->base.env, &op->timer, MU_MONO_NEVER);
    mu_list_remove(&e->link);
    mu_list_remove(&e->unbound);
    mu_list_remove(&e->due);
    op->impl = NULL;
    mu_store_finish(op, status, text);
    free_op(e);
    check_closed(s);
}

void mu_setcd_finish(struct mu_setcd_op *e, int status, const char *text)
{
    end_op(e, status, text);
}

void mu_setcd_answer(struct mu_setcd_op *e, int64_t number, const struct mu_span *values,
                     size_t count)
{
    e->op->reply =
        (struct mu_store_reply){.number = number, .values = values, .value_count = count};
    end_op(e, 0, NULL);
}

void mu_setcd_fail_later(struct mu_setcd_op *e, int status)
{
    e->ending = e->ending != 0 ? e->ending : status;
    mu_env_timer_arm(e->s->base.env, &e->op->timer, mu_env_now(e->s->base.env).mono);
}

static void finish_ended(struct mu_setcd_op *e)
{
    char text[MU_ERRMSG_CAP] = "";
    bool own_words = e->ending == e->call.status && e->call.errmsg.text[0] != '\0';
    bool write = !mu_store_verb_is_read(e->op->request.verb);

    if (e->ending == MUSTER_ETIMEDOUT) {
        mu_setcd_timeout_text(e, text, sizeof(text));
        if (write && e->call.unknown) {
            (void)snprintf(
                text, sizeof(text),
                "etcd did not answer within %u ms: the operation may or may not have happened",
                e->op->timeout_ms);
        }
    }
    if (own_words) {
        (void)snprintf(text, sizeof(text), "%s", e->call.errmsg.text);
    }
    end_op(e, e->ending, text[0] != '\0' ? text : NULL);
}

/* The op's time is up, or it was told to end. */
static void on_op_timer(struct mu_timer *timer)
{
    struct mu_store_op *op = MU_CONTAINER_OF(timer, struct mu_store_op, timer);
    struct mu_setcd_op *e = op->impl;

    e->ending = e->ending != 0 ? e->ending : MUSTER_ETIMEDOUT;
    if (mu_etcd_call_active(&e->call)) {
        mu_etcd_cancel(&e->call);
    } else if (e->watching) {
        mu_etcd_watch_cancel(&e->watch);
    } else {
        finish_ended(e);
    }
}

bool mu_setcd_call_failed(struct mu_setcd_op *e)
{
    struct mu_etcd_call *call = &e->call;
    struct mu_errmsg msg = call->errmsg;

    if (e->ending != 0) {
        finish_ended(e);
        return true;
    }
    if (call->status == 0) {
        return false;
    }
    if (e->slot != NULL && call->status == MUSTER_ENOENT) {
        bool own = e->op->request.lease != 0 && e->op->request.lease != MU_LEASE_SESSION;

        if (call->unknown) {
            end_op(e, MUSTER_ESESSION,
                   "our session in etcd has ended: the operation may or may not have happened");
        } else if (own || ++e->sessions > SESSIONS_MAX) {
            end_op(e, MUSTER_ENOENT, "etcd does not have this lease, or no longer has it");
        } else {
            uint64_t session = e->slot->session;

            mu_setcd_slot_give(e->s, e->slot, false);
            e->slot = NULL;
            mu_setcd_session_gone(e->s, session);
            mu_setcd_with_session(e, e->step);
        }
        return true;
    }
    if (call->unknown && e->slot != NULL) {
        mu_err_prefix(&msg, "it may or may not have happened");
    }
    end_op(e, call->status, msg.text);
    return true;
}

void mu_setcd_send(struct mu_setcd_op *e, const char *path, void (*done)(struct mu_etcd_call *call))
{
    e->call = (struct mu_etcd_call){
        .path = path,
        .body = mu_buf_span(&e->body),
        .repeat = true,
        .done = done,
    };
    mu_etcd_submit(e->s->etcd, &e->call);
}

/* --- slots ------------------------------------------------------------------------------------ */

struct mu_setcd_slot *mu_setcd_slot_take(struct mu_setcd *s)
{
    struct mu_list *it;
    struct mu_setcd_slot *slot;
    size_t cap = s->prefix_len + 48;

    while ((it = mu_list_pop(&s->slots)) != NULL) {
        slot = MU_CONTAINER_OF(it, struct mu_setcd_slot, link);
        if (slot->session == s->session) {
            return slot;
        }
        mu_free(slot);
    }
    slot = mu_malloc(sizeof(*slot) + cap);
    if (slot != NULL) {
        mu_list_init(&slot->link);
        slot->known = 0;
        slot->session = s->session;
        slot->len = (size_t)snprintf(slot->key, cap, "%s/s/%016" PRIx64 "/%" PRIx64, s->prefix,
                                     (uint64_t)s->lease.id, s->slot_count++);
    }
    return slot;
}

void mu_setcd_slot_give(struct mu_setcd *s, struct mu_setcd_slot *slot, bool clean)
{
    if (clean && slot->session == s->session) {
        mu_list_push(&s->slots, &slot->link);
    } else {
        mu_free(slot); /* its revision is unknown; its key goes with the session */
    }
}

static void drop_slots(struct mu_setcd *s)
{
    struct mu_list *it;

    while ((it = mu_list_pop(&s->slots)) != NULL) {
        mu_free(MU_CONTAINER_OF(it, struct mu_setcd_slot, link));
    }
}

/* --- the session ------------------------------------------------------------------------------ */

static void on_granted(struct mu_etcd_lease *lease);
static void on_lost(struct mu_etcd_lease *lease, int status);
static void on_stopped(struct mu_etcd_lease *lease);

static void start_session(struct mu_setcd *s)
{
    s->session++;
    s->session_state = MU_SETCD_STARTING;
    s->lease = (struct mu_etcd_lease){
        .ttl_s = MU_SETCD_SESSION_S,
        .granted = on_granted,
        .lost = on_lost,
        .stopped = on_stopped,
    };
    mu_etcd_lease_start(s->etcd, &s->lease);
}

static void on_granted(struct mu_etcd_lease *lease)
{
    struct mu_setcd *s = MU_CONTAINER_OF(lease, struct mu_setcd, lease);
    struct mu_list *it;

    s->session_state = MU_SETCD_UP;
    while (s->session_state == MU_SETCD_UP && (it = mu_list_pop(&s->unbound)) != NULL) {
        struct mu_setcd_op *e = MU_CONTAINER_OF(it, struct mu_setcd_op, unbound);

        if (e->ending == 0) {
            e->step(e);
        }
    }
}

/* There is no session any more: an op that needs one gets the next. */
static void end_session(struct mu_setcd *s)
{
    s->session_state = MU_SETCD_NONE;
    s->session++;
    drop_slots(s);
    if (!s->closing && !mu_list_empty(&s->unbound)) {
        start_session(s);
    }
    check_closed(s);
}

static void on_lost(struct mu_etcd_lease *lease, int status)
{
    struct mu_setcd *s = MU_CONTAINER_OF(lease, struct mu_setcd, lease);
    struct mu_errmsg why = lease->errmsg;
    struct mu_list failed;
    struct mu_list *it;

    mu_list_init(&failed);
    while (s->session_state == MU_SETCD_STARTING && (it = mu_list_pop(&s->unbound)) != NULL) {
        mu_list_push(&failed, it);
    }
    s->session_state = MU_SETCD_NONE;
    while ((it = mu_list_pop(&failed)) != NULL) {
        struct mu_setcd_op *e = MU_CONTAINER_OF(it, struct mu_setcd_op, unbound);

        end_op(e, e->ending != 0 ? e->ending : status, why.text);
    }
    if (s->session_state == MU_SETCD_NONE) {
        end_session(s);
    }
}

static void on_stopped(struct mu_etcd_lease *lease)
{
    end_session(MU_CONTAINER_OF(lease, struct mu_setcd, lease));
}

void mu_setcd_session_gone(struct mu_setcd *s, uint64_t session)
{
    if (s->session == session && s->session_state == MU_SETCD_UP) {
        s->session_state = MU_SETCD_STOPPING;
        mu_etcd_lease_stop(&s->lease, false);
    }
}

void mu_setcd_with_session(struct mu_setcd_op *e, void (*step)(struct mu_setcd_op *e))
{
    struct mu_setcd *s = e->s;

    e->step = step;
    if (s->session_state == MU_SETCD_UP) {
        step(e);
        return;
    }
    mu_list_push(&s->unbound, &e->unbound);
    if (s->session_state == MU_SETCD_NONE && !s->closing) {
        start_session(s);
    }
}

/* --- the store -------------------------------------------------------------------------------- */

static void setcd_submit(struct mu_store *store, struct mu_store_op *op)
{
    struct mu_setcd *s = MU_CONTAINER_OF(store, struct mu_setcd, base);
    struct mu_setcd_op *e = mu_store_alloc(store, op, s->closing ? MUSTER_ECLOSED : 0, sizeof(*e));
    int err;

    if (e == NULL) {
        return;
    }
    e->s = s;
    e->op = op;
    mu_list_init(&e->unbound);
    mu_list_init(&e->due);
    mu_buf_init(&e->body, BODY_MAX);
    mu_buf_init(&e->held, BODY_MAX);
    mu_buf_init(&e->watch_end, BODY_MAX);
    mu_list_push(&s->ops, &e->link);
    mu_store_begin(store, op, e, on_op_timer);
    err = mu_setcd_start(e);
    if (err != 0) {
        mu_setcd_fail_later(e, err);
    }
}

static void setcd_cancel(struct mu_store *store, struct mu_store_op *op)
{
    (void)store;
    if (op->impl != NULL) { /* else it ends on the next turn */
        mu_setcd_fail_later(op->impl, MUSTER_ECANCELED);
    }
}

static void free_store(struct mu_setcd *s)
{
    drop_slots(s);
    mu_map_fini(&s->waited);
    mu_buf_fini(&s->wake_from);
    mu_buf_fini(&s->wake_to);
    mu_free(s);
}

static void on_etcd_closed(void *context)
{
    struct mu_setcd *s = context;

    if (s->base.closed != NULL) {
        s->base.closed(s->base.context);
    }
    free_store(s);
}

/* All ops have ended: the session is closed, then the client. */
static void check_closed(struct mu_setcd *s)
{
    if (!s->closing || s->leaving || !mu_list_empty(&s->ops)) {
        return;
    }
    if (s->session_state == MU_SETCD_UP || s->session_state == MU_SETCD_STARTING) {
        s->session_state = MU_SETCD_STOPPING;
        mu_etcd_lease_stop(&s->lease, true);
    } else if (s->session_state == MU_SETCD_NONE) {
        s->leaving = true;
        mu_env_timer_arm(s->base.env, &s->wake_idle, MU_MONO_NEVER);
        mu_etcd_close(s->etcd, on_etcd_closed, s);
    }
}

static void setcd_close(struct mu_store *store)
{
    struct mu_setcd *s = MU_CONTAINER_OF(store, struct mu_setcd, base);

    s->closing = true;
    MU_LIST_FOREACH (it, &s->ops) {
        mu_setcd_fail_later(MU_CONTAINER_OF(it, struct mu_setcd_op, link), MUSTER_ECLOSED);
    }
    check_closed(s);
}

static const struct mu_store_kind setcd_kind = {
    .submit = setcd_submit,
    .cancel = setcd_cancel,
    .close = setcd_close,
};

int mu_store_etcd_new(struct mu_etcd *etcd, struct mu_env *env, const char *prefix,
                      struct mu_store **ret_store)
{
    size_t len = strlen(prefix);
    struct mu_setcd *s = mu_calloc(1, sizeof(*s) + len + 1);
    uint64_t seed;

    if (s == NULL) {
        return MUSTER_ENOMEM;
    }
    s->base.kind = &setcd_kind;
    s->base.env = env;
    s->etcd = etcd;
    s->prefix_len = len;
    memcpy(s->prefix, prefix, len + 1);
    mu_list_init(&s->ops);
    mu_list_init(&s->unbound);
    mu_list_init(&s->due);
    mu_list_init(&s->slots);
    mu_env_entropy(env, &seed, sizeof(seed));
    mu_map_init(&s->waited, seed);
    mu_env_entropy(env, &s->element_seed, sizeof(s->element_seed));
    mu_setcd_wake_init(s);
    if (mu_buf_reserve(&s->wake_from, len + 4) != 0 || mu_buf_reserve(&s->wake_to, len + 4) != 0) {
        free_store(s);
        return MUSTER_ENOMEM;
    }
    mu_buf_put(&s->wake_from, mu_span(prefix, len));
    mu_buf_put(&s->wake_from, MU_SPAN_LIT("/k/"));
    mu_buf_put(&s->wake_to, mu_span(prefix, len));
    mu_buf_put(&s->wake_to, MU_SPAN_LIT("/r/"));
    *ret_store = &s->base;
    return 0;
}
