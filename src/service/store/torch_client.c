/*
 * The engine of a tcp store on PyTorch's protocol: finds out the generation, keeps a main
 * connection, opens others for steps that block, and sends the steps of the tasks.
 */
#include "service/store/torch_client.h"

#include <stdio.h>

#include "core/alloc.h"
#include "service/wire/rpc_client.h"

/*
 * How often a server may close the connection or be silent before we say that it is not a store:
 * one that dies, or is cut off, while we probe it must not be taken for something else.
 */
#define PROBES      5
#define PROBES_NEXT 2 /* probes that end in a close, where there is another generation to try */

/* --- sending ---------------------------------------------------------------------------------- */

void mu_torch_store_wake(struct torch_store *s)
{
    mu_env_timer_arm(s->base.env, &s->timer, mu_env_now(s->base.env).mono);
}

static bool main_is_up(const struct torch_store *s)
{
    return s->main != NULL && s->main->state == TORCH_CONN_UP;
}

/* False if the step has to wait its turn. */
static bool send_step(struct torch_conn *c, struct torch_step *step)
{
    int err = mu_torch_conn_send(c, step);

    /* A step that does not fit behind the output that waits may fit later. */
    if (err == MUSTER_EAGAIN || (err == MUSTER_ELIMIT && !mu_torch_conn_idle(c))) {
        return false;
    }
    if (err != 0) {
        mu_torch_task_end(step->task, err, NULL);
    }
    return true;
}

static void send_main(struct torch_store *s)
{
    while (main_is_up(s) && !mu_list_empty(&s->main_queue) &&
           send_step(s->main, MU_CONTAINER_OF(s->main_queue.next, struct torch_step, link))) {
    }
}

static struct torch_conn *find_idle(struct torch_store *s)
{
    MU_LIST_FOREACH (it, &s->conns) {
        struct torch_conn *c = MU_CONTAINER_OF(it, struct torch_conn, link);

        if (c != s->main && mu_torch_conn_idle(c)) {
            return c;
        }
    }
    return NULL;
}

/* Sends blocking steps on connections that are idle. */
static void send_own(struct torch_store *s)
{
    struct torch_conn *c;

    while (!mu_list_empty(&s->own_queue) && (c = find_idle(s)) != NULL &&
           send_step(c, MU_CONTAINER_OF(s->own_queue.next, struct torch_step, link))) {
    }
    if (mu_list_empty(&s->own_queue)) {
        s->own_dialler.give_up_at = MU_MONO_NEVER;
    }
}

static void back_off(struct torch_store *s, struct torch_dialler *d)
{
    mu_mono_t now = mu_env_now(s->base.env).mono;

    d->at = mu_mono_add_ms(now, mu_rpc_client_backoff_ms(&d->attempts, s->base.env));
    if (d->give_up_at.ns == MU_MONO_NEVER.ns) {
        d->give_up_at = mu_mono_add_ms(now, s->config.reconnect_ms);
    }
}

/* Opens connections for blocking steps that have no connection, nor one on the way. */
static void dial_own(struct torch_store *s)
{
    struct torch_dialler *d = &s->own_dialler;
    size_t missing = 0;
    size_t open = 0;

    MU_LIST_FOREACH (it, &s->own_queue) {
        missing++;
    }
    MU_LIST_FOREACH (it, &s->conns) {
        struct torch_conn *c = MU_CONTAINER_OF(it, struct torch_conn, link);

        if (c != s->main && c->state != TORCH_CONN_CLOSING) {
            open++;
            if (c->state != TORCH_CONN_UP && missing > 0) {
                missing--;
            }
        }
    }
    while (missing > 0 && open < s->config.waits_max && main_is_up(s) &&
           mu_mono_reached(d->at, mu_env_now(s->base.env).mono)) {
        struct torch_conn *c;
        int err = mu_torch_conn_dial(s, &c);

        if (err != 0) {
            s->last_error = err;
            back_off(s, d);
            return;
        }
        missing--;
        open++;
    }
}

/* --- the main connection, and which generation it speaks -------------------------------------- */

/* The server is not a store: tells the owner once, which will close this engine. */
static void report_mismatch(struct torch_store *s, bool silent)
{
    if (!s->reported) {
        s->reported = true;
        s->events.mismatch(s->events.context, silent);
    }
}

/* A connection was made, but it was not that of a store. */
static void on_probe_failed(struct torch_store *s, int status)
{
    bool silent = status == MUSTER_ETIMEDOUT;
    bool next = s->config.protocol == MU_STORE_TCP_ANY && s->generation == MU_TORCH_1;

    if (status == MUSTER_ENOMEM) {
        back_off(s, &s->main_dialler);
        return;
    }
    if (status == MUSTER_EPROTO || status == MUSTER_ELIMIT) {
        report_mismatch(s, false); /* it speaks another protocol */
        return;
    }
    if (!(next && silent) && !s->config.once && ++s->probes < (next ? PROBES_NEXT : PROBES)) {
        back_off(s, &s->main_dialler);
    } else if (next) {
        s->generation = MU_TORCH_2;
        s->probes = 0;
        s->main_dialler.at = mu_env_now(s->base.env).mono;
    } else {
        report_mismatch(s, silent);
    }
}

/* This protocol is plain, and the lock does not allow that there. */
static void report_locked(struct torch_store *s)
{
    char text[MU_ERRMSG_CAP];

    if (!s->reported) {
        s->reported = true;
        (void)snprintf(text, sizeof(text), "cannot connect to %.80s: %s", s->addr,
                       mu_env_strerror(s->base.env, MUSTER_ELOCKED));
        s->events.failed(s->events.context, MUSTER_ELOCKED, text);
    }
}

/* Returns whether the name has been unknown for too long, after which nothing more is done. */
static bool is_unknown(struct torch_store *s, int status)
{
    mu_mono_t now = mu_env_now(s->base.env).mono;
    char text[MU_ERRMSG_CAP];

    if (status != MUSTER_ENAME || s->unknown_since.ns == MU_MONO_NEVER.ns) {
        s->unknown_since = status != MUSTER_ENAME ? MU_MONO_NEVER : now;
        return false;
    }
    if (s->config.name_ms == 0 || s->reported ||
        mu_mono_since(s->unknown_since, now) < s->config.name_ms * MU_NS_PER_MS) {
        return false;
    }
    s->reported = true;
    (void)snprintf(text, sizeof(text), MU_RPC_CLIENT_UNKNOWN_TEXT, s->addr,
                   s->config.name_ms / 1000);
    s->events.failed(s->events.context, MUSTER_ENAME, text);
    return true;
}

static void on_dial_failed(struct torch_store *s, int status)
{
    s->last_error = status;
    if (status == MUSTER_ELOCKED && !s->ready) {
        report_locked(s);
        return;
    }
    if (s->config.trouble != NULL) {
        s->config.trouble(s->config.context, status);
    }
    if (!s->ready && is_unknown(s, status)) {
        return;
    }
    back_off(s, &s->main_dialler);
    /*
     * The next server to answer may be another one. A server of generation 1 that is greeted as one
     * of generation 2 takes that for a SET, waits for its rest for ever, and blocks all its
     * clients.
     */
    if (!s->ready && s->config.protocol == MU_STORE_TCP_ANY) {
        s->generation = MU_TORCH_1;
        s->probes = 0;
    }
}

void mu_torch_store_conn_up(struct torch_store *s, struct torch_conn *c)
{
    if (c != s->main) {
        return;
    }
    /* While there is something to send, only an answer shows that the server is well. */
    if (!s->ready || mu_list_empty(&s->main_queue)) {
        mu_torch_store_conn_answered(s, c);
    }
    if (!s->ready && !s->closing) {
        s->ready = true;
        s->events.ready(s->events.context,
                        s->generation == MU_TORCH_1 ? MU_STORE_TCP_TORCH1 : MU_STORE_TCP_TORCH2);
    }
}

void mu_torch_store_conn_answered(struct torch_store *s, struct torch_conn *c)
{
    struct torch_dialler *d = c == s->main ? &s->main_dialler : &s->own_dialler;

    d->attempts = 0;
    d->give_up_at = MU_MONO_NEVER;
    s->last_error = 0;
}

/*
 * The server may be gone, and a connection that only waits for it would never notice: drops the
 * waiting connections whose steps may be sent again.
 */
static void drop_waiting(struct torch_store *s)
{
    struct mu_list *it = s->conns.next;

    while (it != &s->conns) {
        struct torch_conn *c = MU_CONTAINER_OF(it, struct torch_conn, link);

        it = it->next;
        if (c != s->main && c->state == TORCH_CONN_UP &&
            (mu_list_empty(&c->steps) ||
             mu_torch_step_repeats(MU_CONTAINER_OF(c->steps.next, struct torch_step, link)))) {
            mu_torch_conn_drop(c, 0);
        }
    }
}

void mu_torch_store_conn_lost(struct torch_store *s, struct torch_conn *c,
                              enum torch_conn_state was, int status)
{
    if (status != 0) {
        s->last_error = status;
    }
    if (c != s->main) {
        if (status != 0 && (was != TORCH_CONN_UP || !mu_list_empty(&c->steps))) {
            back_off(s, &s->own_dialler);
        }
        return;
    }
    s->main = NULL;
    if (s->closing) {
        return;
    }
    if (was == TORCH_CONN_DIALLING) {
        on_dial_failed(s, status);
    } else if (!s->ready) {
        on_probe_failed(s, status);
    } else {
        back_off(s, &s->main_dialler);
        drop_waiting(s);
    }
}

static void dial_main(struct torch_store *s)
{
    int err;

    s->main_dialler.at = MU_MONO_NEVER;
    err = mu_torch_conn_dial(s, &s->main);
    if (err != 0) {
        s->main = NULL;
        on_dial_failed(s, err);
    }
}

/* --- time ------------------------------------------------------------------------------------- */

/* Ends the tasks of queued steps. */
static void end_queued(struct mu_list *queue, const char *text)
{
    while (!mu_list_empty(queue)) {
        mu_torch_task_give_up(MU_CONTAINER_OF(queue->next, struct torch_step, link)->task, text);
    }
}

static void end_tasks(struct mu_list *tasks, int status, const char *text)
{
    while (!mu_list_empty(tasks)) {
        mu_torch_task_end(MU_CONTAINER_OF(tasks->next, struct torch_task, link), status, text);
    }
}

static void give_up(struct torch_store *s, struct torch_dialler *d)
{
    char text[MU_ERRMSG_CAP];

    d->give_up_at = MU_MONO_NEVER;
    if (d == &s->main_dialler && main_is_up(s)) {
        return;
    }
    if (!s->ready) {
        (void)snprintf(text, sizeof(text), "cannot connect to %.120s: %s (tried for %u ms)",
                       s->addr,
                       muster_strerror(s->last_error != 0 ? s->last_error : MUSTER_ETIMEDOUT),
                       s->config.connect_ms);
        if (!s->reported) {
            s->reported = true;
            s->events.failed(s->events.context, MUSTER_ECONN, text);
        }
        return;
    }
    (void)snprintf(text, sizeof(text), "lost the connection to %.120s: %s (tried again for %u ms)",
                   s->addr, muster_strerror(s->last_error != 0 ? s->last_error : MUSTER_ECLOSED),
                   s->config.reconnect_ms);
    end_queued(&s->own_queue, text);
    if (d == &s->main_dialler) {
        end_queued(&s->main_queue, text);
    }
}

static void on_timer(struct mu_timer *timer)
{
    struct torch_store *s = MU_CONTAINER_OF(timer, struct torch_store, timer);
    mu_mono_t now = mu_env_now(s->base.env).mono;

    if (!s->closing && mu_mono_reached(s->main_dialler.give_up_at, now)) {
        give_up(s, &s->main_dialler);
    }
    if (!s->closing && mu_mono_reached(s->own_dialler.give_up_at, now)) {
        give_up(s, &s->own_dialler);
    }
    if (!s->closing && !s->reported && s->main == NULL &&
        mu_mono_reached(s->main_dialler.at, now)) {
        dial_main(s);
    }
    mu_torch_store_pump(s);
}

static void arm_timer(struct torch_store *s)
{
    mu_mono_t now = mu_env_now(s->base.env).mono;
    mu_mono_t at = mu_mono_min(s->main_dialler.give_up_at, s->own_dialler.give_up_at);
    bool waiting = !mu_list_empty(&s->main_queue) || !mu_list_empty(&s->own_queue);

    if (s->ready && s->main == NULL && waiting &&
        s->main_dialler.give_up_at.ns == MU_MONO_NEVER.ns) {
        s->main_dialler.give_up_at = mu_mono_add_ms(now, s->config.reconnect_ms);
        at = mu_mono_min(at, s->main_dialler.give_up_at);
    }
    if (s->main == NULL && !s->reported) {
        at = mu_mono_min(at, s->main_dialler.at);
    }
    if (!mu_list_empty(&s->own_queue) && main_is_up(s) &&
        !mu_mono_reached(s->own_dialler.at, now)) {
        at = mu_mono_min(at, s->own_dialler.at);
    }
    /* What came while the pump was running is for the next turn. */
    if (s->closing || (s->ready && !mu_list_empty(&s->incoming))) {
        at = now;
    }
    mu_env_timer_arm(s->base.env, &s->timer, at);
}

/* --- the store -------------------------------------------------------------------------------- */

/* Frees the store once the last connection is closed. */
static void close_all(struct torch_store *s)
{
    struct mu_list *it = s->conns.next;

    end_tasks(&s->tasks, MUSTER_ECLOSED, NULL);
    end_tasks(&s->incoming, MUSTER_ECLOSED, NULL);
    while (it != &s->conns) {
        struct torch_conn *c = MU_CONTAINER_OF(it, struct torch_conn, link);

        it = it->next; /* a connection leaves the list on a later turn */
        mu_torch_conn_drop(c, 0);
    }
    mu_env_timer_arm(s->base.env, &s->timer, MU_MONO_NEVER);
    if (!mu_list_empty(&s->conns)) {
        return;
    }
    if (s->base.closed != NULL) {
        s->base.closed(s->base.context);
    }
    mu_free(s);
}

void mu_torch_store_pump(struct torch_store *s)
{
    struct mu_list begin;

    if (s->closing) {
        close_all(s);
        return;
    }
    /* Only the tasks that are there now: owners of ops that end at once may submit others. */
    mu_list_init(&begin);
    if (s->ready && !mu_list_empty(&s->incoming)) {
        begin = s->incoming;
        begin.next->prev = &begin;
        begin.prev->next = &begin;
        mu_list_init(&s->incoming);
    }
    while (!mu_list_empty(&begin)) {
        struct torch_task *t = MU_CONTAINER_OF(begin.next, struct torch_task, link);

        mu_list_remove(&t->link);
        mu_list_push(&s->tasks, &t->link);
        mu_torch_task_start(t);
    }
    send_main(s);
    send_own(s);
    dial_own(s);
    arm_timer(s);
}

static void torch_submit(struct mu_store *store, struct mu_store_op *op)
{
    struct torch_store *s = MU_CONTAINER_OF(store, struct torch_store, base);
    struct torch_task *t = mu_torch_task_new(s, op);

    if (t == NULL) {
        mu_store_fail_later(store, op, MUSTER_ENOMEM);
        return;
    }
    mu_list_push(&s->incoming, &t->link);
    mu_torch_store_wake(
        s); /* sent on the next turn, together with all that is submitted on this one */
}

static void torch_cancel(struct mu_store *store, struct mu_store_op *op)
{
    struct torch_store *s = MU_CONTAINER_OF(store, struct torch_store, base);

    if (op->impl != NULL) {
        mu_torch_task_abandon(op->impl);
        mu_store_fail_later(store, op, MUSTER_ECANCELED);
        mu_torch_store_wake(s);
    }
}

static void torch_close(struct mu_store *store)
{
    struct torch_store *s = MU_CONTAINER_OF(store, struct torch_store, base);

    s->closing = true;
    s->reported = true; /* the owner wants to hear only that it is closed */
    mu_torch_store_wake(s);
}

static const struct mu_store_kind torch_kind = {
    .submit = torch_submit,
    .cancel = torch_cancel,
    .close = torch_close,
};

int mu_store_torch_new(struct mu_env *env, const struct mu_store_tcp_config *config,
                       const struct mu_store_engine_events *events, struct mu_store **ret_store)
{
    struct torch_store *s = mu_calloc(1, sizeof(*s));
    mu_mono_t now = mu_env_now(env).mono;

    if (s == NULL) {
        return MUSTER_ENOMEM;
    }
    s->base.kind = &torch_kind;
    s->base.env = env;
    s->config = *config;
    s->events = *events;
    s->generation = config->protocol == MU_STORE_TCP_TORCH2 ? MU_TORCH_2 : MU_TORCH_1;
    (void)mu_addr_format(&config->addr, s->addr, sizeof(s->addr));
    mu_list_init(&s->conns);
    mu_list_init(&s->incoming);
    mu_list_init(&s->tasks);
    mu_list_init(&s->main_queue);
    mu_list_init(&s->own_queue);
    mu_timer_init(&s->timer, on_timer);
    s->unknown_since = MU_MONO_NEVER;
    s->main_dialler.at = now;
    s->main_dialler.give_up_at =
        config->connect_ms == 0 ? MU_MONO_NEVER : mu_mono_add_ms(now, config->connect_ms);
    s->own_dialler.at = now;
    s->own_dialler.give_up_at = MU_MONO_NEVER;
    mu_env_timer_arm(env, &s->timer, now);
    *ret_store = &s->base;
    return 0;
}
