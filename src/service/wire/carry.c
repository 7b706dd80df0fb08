#include "service/wire/carry.h"

#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "core/env_layer.h"

/* What its owner may leave unused for longer, and what a moment brings at most: then it ends. */
#define REST_MAX ((size_t)8 << 20)
/* For how long a relay is dialled, before the next one is. */
#define DIAL_MS 2000
/* And for how long the server's first bytes by it are waited for. */
#define ANSWER_MS 4000

struct mu_carry_env {
    struct mu_env_layer layer;
    struct mu_addr relays[MU_CARRY_RELAYS_MAX];
    size_t relay_count;
    size_t at;
    struct mu_list dialled;
    void (*moved)(void *context);
    void *context;
    size_t live;
};

enum kind {
    DIALLED = 1,
    CARRIED,
};

/* What `impl` of our connections points to: the first member of one of the next two. */
struct ours {
    enum kind kind;
    struct mu_carry_env *carry;
    struct mu_conn *conn; /* the owner's */
};

/* A connection that we dial. */
struct dialled {
    struct ours base;
    struct mu_conn raw;
    struct mu_list link;   /* carry->dialled */
    struct mu_timer timer; /* until the server answers by it */
    size_t relay;          /* the count: none */
    bool relayed;
    bool lost;
    bool opened; /* the owner was told */
    bool answered;
    bool closing;
    size_t magic; /* bytes of it that were sent */
};

/* A connection that a relay carries to us. What comes for it is told on turns of its own, since its
 * owner may be the one whose session the call belongs to. */
struct carried {
    struct ours base;
    struct mu_rpc_served call; /* session NULL: it has ended */
    struct mu_timer timer;
    struct mu_buf rest;
    int status;
    bool paused;
    bool want_writable;
    bool due_writable;
    bool eof;
    bool eof_told;
    bool closing; /* the owner has closed */
};

static struct mu_carry_env *carry_of(struct mu_env *env)
{
    return MU_CONTAINER_OF((struct mu_env_layer *)env, struct mu_carry_env, layer);
}

static bool is_ours(const struct mu_env *env, const struct mu_conn *conn)
{
    return conn->env == env;
}

/* Its owner is told that it is over; it is freed before. */
static void end(struct ours *o, int status)
{
    struct mu_conn *conn = o->conn;

    conn->impl = NULL;
    o->carry->live--;
    mu_free(o);
    conn->on->closed(conn, status);
}

/* --- dialling --------------------------------------------------------------------------------- */

static struct dialled *dialled_of(struct mu_conn *raw)
{
    return MU_CONTAINER_OF(raw, struct dialled, raw);
}

/* The server greets back at once. Who waits for that sends nothing, by which it would notice that
 * the relay has forgotten it. */
static void await_answer(struct dialled *d)
{
    struct mu_env *below = d->base.carry->layer.below;

    if (d->relayed) {
        mu_env_timer_arm(below, &d->timer, mu_mono_add_ms(mu_env_now(below).mono, ANSWER_MS));
    }
}

static void raw_open(struct mu_conn *raw)
{
    struct dialled *d = dialled_of(raw);
    size_t taken = 0;

    if (d->closing || d->lost) {
        return;
    }
    if (d->relayed) {
        mu_env_send(d->base.carry->layer.below, raw,
                    mu_span_skip(mu_span(MU_CARRY_MAGIC, MU_CARRY_MAGIC_LEN), d->magic), &taken);
        d->magic += taken;
    }
    if (!d->relayed || d->magic == MU_CARRY_MAGIC_LEN) {
        await_answer(d);
        d->opened = true;
        d->base.conn->on->open(d->base.conn);
    }
}

static size_t raw_data(struct mu_conn *raw, struct mu_span in)
{
    struct dialled *d = dialled_of(raw);

    if (d->closing || d->lost) {
        return in.len;
    }
    if (!d->answered) {
        d->answered = true;
        mu_env_timer_arm(d->base.carry->layer.below, &d->timer, MU_MONO_NEVER);
    }
    return d->base.conn->on->data(d->base.conn, in);
}

static struct mu_space raw_room(struct mu_conn *raw)
{
    struct dialled *d = dialled_of(raw);

    return d->closing || d->lost || d->base.conn->on->room == NULL
               ? (struct mu_space){0}
               : d->base.conn->on->room(d->base.conn);
}

static void raw_eof(struct mu_conn *raw)
{
    struct dialled *d = dialled_of(raw);

    if (!d->closing && !d->lost) {
        d->base.conn->on->eof(d->base.conn);
    }
}

static void raw_writable(struct mu_conn *raw)
{
    struct dialled *d = dialled_of(raw);

    if (!d->opened) {
        raw_open(raw);
    } else if (!d->closing && !d->lost) {
        d->base.conn->on->writable(d->base.conn);
    }
}

/* Whatever ended it, the next one goes another way. */
static void raw_closed(struct mu_conn *raw, int status)
{
    struct dialled *d = dialled_of(raw);
    struct mu_carry_env *carry = d->base.carry;
    bool closing = d->closing;

    status = d->lost ? MUSTER_ECONN : status;
    mu_list_remove(&d->link);
    mu_env_timer_arm(carry->layer.below, &d->timer, MU_MONO_NEVER);
    if (d->relay == carry->at) {
        carry->at = (carry->at + 1) % (carry->relay_count + 1);
        carry->moved(carry->context);
    }
    end(&d->base, closing ? 0 : status);
}

static void lose(struct dialled *d)
{
    if (!d->lost && !d->closing) {
        d->lost = true;
        mu_env_close(d->base.carry->layer.below, &d->raw, true);
    }
}

static void on_dial_timeout(struct mu_timer *timer)
{
    lose(MU_CONTAINER_OF(timer, struct dialled, timer));
}

void mu_carry_env_next(struct mu_carry_env *carry)
{
    carry->at = (carry->at + 1) % (carry->relay_count + 1);
    MU_LIST_FOREACH (it, &carry->dialled) {
        lose(MU_CONTAINER_OF(it, struct dialled, link));
    }
}

const struct mu_addr *mu_carry_env_relay(const struct mu_carry_env *carry)
{
    return carry->at < carry->relay_count ? &carry->relays[carry->at] : NULL;
}

static const struct mu_conn_events raw_events = {
    .open = raw_open,
    .data = raw_data,
    .room = raw_room,
    .eof = raw_eof,
    .writable = raw_writable,
    .closed = raw_closed,
};

static int carry_dial(struct mu_env *env, struct mu_conn *conn, const struct mu_addr *addr)
{
    struct mu_carry_env *carry = carry_of(env);
    struct dialled *d;
    int err;

    if (carry->relay_count == 0) {
        return mu_env_dial(carry->layer.below, conn, addr);
    }
    d = mu_calloc(1, sizeof(*d));
    if (d == NULL) {
        return MUSTER_ENOMEM;
    }
    d->base = (struct ours){.kind = DIALLED, .carry = carry, .conn = conn};
    d->raw.on = &raw_events;
    d->relay = carry->at;
    d->relayed = carry->at < carry->relay_count;
    mu_timer_init(&d->timer, on_dial_timeout);
    err = mu_env_dial(carry->layer.below, &d->raw, d->relayed ? &carry->relays[carry->at] : addr);
    if (err != 0) {
        mu_free(d);
        return err;
    }
    conn->env = env;
    conn->impl = d;
    carry->live++;
    mu_list_init(&d->link);
    mu_list_push(&carry->dialled, &d->link);
    if (d->relayed) {
        mu_env_timer_arm(carry->layer.below, &d->timer,
                         mu_mono_add_ms(mu_env_now(env).mono, DIAL_MS));
    }
    return 0;
}

static int carry_dial_plain(struct mu_env *env, struct mu_conn *conn, const struct mu_addr *addr)
{
    return mu_env_dial_plain(carry_of(env)->layer.below, conn, addr);
}

/* --- what a relay carries to us --------------------------------------------------------------- */

static struct carried *carried_of(struct mu_rpc_served *call)
{
    return MU_CONTAINER_OF(call, struct carried, call);
}

static void run_soon(struct carried *c)
{
    struct mu_env *below = c->base.carry->layer.below;

    mu_env_timer_arm(below, &c->timer, mu_env_now(below).mono);
}

/* The call is over, or about to be. */
static void leave_call(struct carried *c, int status)
{
    if (c->call.session != NULL) {
        mu_rpc_served_remove(&c->call);
        c->call.session = NULL;
        c->status = c->closing ? 0 : status;
        run_soon(c);
    }
}

static void free_call(struct mu_rpc_served *call)
{
    leave_call(carried_of(call), MUSTER_ECONN);
}

static void cancel_call(struct mu_rpc_served *call, int why)
{
    struct mu_rpc_session *session = call->session;
    uint64_t id = call->id;

    leave_call(carried_of(call), MUSTER_ECONN);
    mu_rpc_session_reply(session, id, why, mu_span_str(muster_strerror(why)));
}

static void credit_call(struct mu_rpc_served *call)
{
    struct carried *c = carried_of(call);

    c->due_writable = c->want_writable;
    run_soon(c);
}

static void take_item(struct mu_rpc_served *call, struct mu_span payload)
{
    struct carried *c = carried_of(call);

    if (c->closing) {
        return;
    }
    if (mu_buf_append(&c->rest, payload) != 0) {
        cancel_call(call, MUSTER_ELIMIT);
        return;
    }
    run_soon(c);
}

static void end_items(struct mu_rpc_served *call)
{
    struct carried *c = carried_of(call);

    c->eof = true;
    run_soon(c);
}

static const struct mu_rpc_served_ops call_ops = {
    .cancel = cancel_call,
    .credit = credit_call,
    .item = take_item,
    .end = end_items,
    .free = free_call,
};

/* Gives the owner what has come. */
static void tell_data(struct carried *c)
{
    struct mu_conn *conn = c->base.conn;
    size_t used;

    if (c->rest.len == 0 || c->paused || c->closing) {
        return;
    }
    used = conn->on->data(conn, mu_buf_span(&c->rest));
    mu_buf_consume(&c->rest, used);
    c->paused = c->rest.len != 0 && !c->closing;
}

/* Tells the owner what is due. It may close in each of these. */
static void on_soon(struct mu_timer *timer)
{
    struct carried *c = MU_CONTAINER_OF(timer, struct carried, timer);
    struct mu_conn *conn = c->base.conn;

    tell_data(c);
    if (c->due_writable && !c->closing) {
        c->due_writable = false;
        c->want_writable = false;
        conn->on->writable(conn);
    }
    if (c->eof && !c->eof_told && c->rest.len == 0 && !c->closing) {
        c->eof_told = true;
        conn->on->eof(conn);
    }
    if (c->call.session != NULL) {
        return;
    }
    mu_env_timer_arm(c->base.carry->layer.below, &c->timer, MU_MONO_NEVER);
    mu_buf_fini(&c->rest);
    end(&c->base, c->closing ? 0 : c->status);
}

void mu_carry_serve(struct mu_carry_env *carry, struct mu_rpc_session *session, uint64_t id,
                    struct mu_listener *listener)
{
    struct carried *c = mu_calloc(1, sizeof(*c));
    int err = c == NULL ? MUSTER_ENOMEM : mu_rpc_served_add(&c->call, &call_ops, session, id);
    struct mu_conn *conn = err == 0 ? listener->accept(listener) : NULL;

    if (conn == NULL) {
        if (err == 0) {
            mu_rpc_served_remove(&c->call);
            err = MUSTER_EBUSY;
        }
        mu_free(c);
        mu_rpc_session_reply(session, id, err, mu_span_str(muster_strerror(err)));
        return;
    }
    c->base = (struct ours){.kind = CARRIED, .carry = carry, .conn = conn};
    mu_timer_init(&c->timer, on_soon);
    mu_buf_init(&c->rest, REST_MAX);
    conn->env = &carry->layer.env;
    conn->impl = c;
    carry->live++;
}

/* --- verbs ------------------------------------------------------------------------------------ */

/* Sends a part of a span as one item. False: there is no room for it now. */
static bool send_item(struct carried *c, struct mu_span part)
{
    int err = mu_rpc_session_item(c->call.session, c->call.id, part);

    if (err == MUSTER_EAGAIN) {
        c->want_writable = true;
        return false;
    }
    if (err != 0) {
        cancel_call(&c->call, err);
    }
    return true;
}

static void carried_sendv(struct carried *c, const struct mu_span *spans, size_t count,
                          size_t *ret_taken)
{
    *ret_taken = 0;
    for (size_t i = 0; i < count; i++) {
        for (size_t at = 0; at < spans[i].len;) {
            struct mu_span part = mu_span_skip(spans[i], at);

            part.len = part.len < MU_CARRY_ITEM_MAX ? part.len : MU_CARRY_ITEM_MAX;
            if (c->call.session != NULL && !send_item(c, part)) {
                return;
            }
            at += part.len;
            *ret_taken += part.len;
        }
    }
}

/* It is being closed, and its owner does not know yet. */
static bool is_lost(const struct ours *o)
{
    return o->kind == DIALLED && ((const struct dialled *)o)->lost;
}

static void carry_sendv(struct mu_env *env, struct mu_conn *conn, const struct mu_span *spans,
                        size_t count, size_t *ret_taken)
{
    struct ours *o = conn->impl;

    if (!is_ours(env, conn)) {
        mu_env_sendv(mu_env_below(env), conn, spans, count, ret_taken);
    } else if (o == NULL || is_lost(o)) {
        *ret_taken = mu_span_total(spans, count);
    } else if (o->kind == DIALLED) {
        mu_env_sendv(mu_env_below(env), &((struct dialled *)o)->raw, spans, count, ret_taken);
    } else {
        carried_sendv((struct carried *)o, spans, count, ret_taken);
    }
}

static void carry_resume(struct mu_env *env, struct mu_conn *conn)
{
    struct ours *o = conn->impl;

    if (!is_ours(env, conn)) {
        mu_env_resume(mu_env_below(env), conn);
    } else if (o != NULL && is_lost(o)) {
        return;
    } else if (o != NULL && o->kind == DIALLED) {
        mu_env_resume(mu_env_below(env), &((struct dialled *)o)->raw);
    } else if (o != NULL) {
        ((struct carried *)o)->paused = false;
        run_soon((struct carried *)o);
    }
}

static void close_carried(struct carried *c)
{
    struct mu_rpc_session *session = c->call.session;
    uint64_t id = c->call.id;

    c->closing = true;
    if (session != NULL) {
        leave_call(c, 0);
        mu_rpc_session_reply(session, id, 0, (struct mu_span){0});
    }
}

static void carry_close(struct mu_env *env, struct mu_conn *conn, bool abort)
{
    struct ours *o = conn->impl;

    if (!is_ours(env, conn)) {
        mu_env_close(mu_env_below(env), conn, abort);
    } else if (o != NULL && o->kind == DIALLED) {
        ((struct dialled *)o)->closing = true;
        if (!is_lost(o)) {
            mu_env_close(mu_env_below(env), &((struct dialled *)o)->raw, abort);
        }
    } else if (o != NULL) {
        close_carried((struct carried *)o);
    }
}

static void carry_peer(struct mu_env *env, const struct mu_conn *conn, char *buf, size_t cap)
{
    const struct ours *o = conn->impl;

    if (!is_ours(env, conn)) {
        mu_env_peer(mu_env_below(env), conn, buf, cap);
    } else if (o == NULL) {
        (void)snprintf(buf, cap, "?");
    } else if (o->kind == DIALLED) {
        mu_env_peer(mu_env_below(env), &((const struct dialled *)o)->raw, buf, cap);
    } else {
        const struct mu_rpc_session *session = ((const struct carried *)o)->call.session;

        (void)snprintf(buf, cap, "behind %s", session == NULL ? "?" : session->peer);
    }
}

/* A relay greets only if it is trusted, and lets in only whom it trusts. */
static enum mu_trust carry_trust(struct mu_env *env, const struct mu_conn *conn)
{
    return is_ours(env, conn) ? MU_TRUST_OPEN : mu_env_trust(mu_env_below(env), conn);
}

static int carry_listen(struct mu_env *env, struct mu_listener *l, struct mu_addr *addr)
{
    return mu_env_listen(mu_env_below(env), l, addr);
}

static void carry_unlisten(struct mu_env *env, struct mu_listener *l)
{
    mu_env_unlisten(mu_env_below(env), l);
}

static const char *carry_why(struct mu_env *env)
{
    return mu_env_why(mu_env_below(env));
}

static const struct mu_env_ops carry_ops = {
    MU_ENV_LAYER_OPS,       .dial = carry_dial,         .dial_plain = carry_dial_plain,
    .listen = carry_listen, .unlisten = carry_unlisten, .sendv = carry_sendv,
    .resume = carry_resume, .close = carry_close,       .peer = carry_peer,
    .trust = carry_trust,   .why = carry_why,
};

/* --- life ------------------------------------------------------------------------------------- */

int mu_carry_env_new(struct mu_env *below, struct mu_carry_env **ret_carry)
{
    struct mu_carry_env *carry = mu_calloc(1, sizeof(*carry));

    if (carry == NULL) {
        return MUSTER_ENOMEM;
    }
    carry->layer.env.ops = &carry_ops;
    carry->layer.below = below;
    mu_list_init(&carry->dialled);
    *ret_carry = carry;
    return 0;
}

void mu_carry_env_free(struct mu_carry_env *carry)
{
    if (carry != NULL) {
        MU_ASSERT(carry->live == 0);
        mu_free(carry);
    }
}

struct mu_env *mu_carry_env_env(struct mu_carry_env *carry)
{
    return &carry->layer.env;
}

void mu_carry_env_via(struct mu_carry_env *carry, const struct mu_addr *relays, size_t count,
                      void (*moved)(void *context), void *context)
{
    MU_ASSERT(count <= MU_CARRY_RELAYS_MAX);
    memcpy(carry->relays, relays, count * sizeof(*relays));
    carry->relay_count = count;
    carry->at = 0;
    carry->moved = moved;
    carry->context = context;
}
