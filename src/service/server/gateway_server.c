/*
 * The keys are in another server: operations are calls of one native session with it. That session
 * outlives its connections, so a short loss costs only time. A request is passed on unchanged,
 * deadline included, so that the other server decides and says why.
 */
#include "service/server/gateway_hold.h"
#include "service/server/gateway_url.h"

#include <stdio.h>
#include <string.h>

#include "core/addr.h"
#include "core/alloc.h"
#include "core/assert.h"
#include "service/base/log.h"
#include "service/store/engine.h"
#include "service/wire/carry.h"

#define AGAIN_MS 1000 /* until we try again to reach a server */
/* How many calls of the session may block: if they took all that the other server serves of one
 * session at once, the calls that would end them could not get through. */
#define BLOCKED_MAX 32768
/* Of a relay: how long the first connection may take, and another one when it is lost. */
#define RELAY_CONNECT_MS   2000
#define RELAY_RECONNECT_MS 1000
/* A relay that is lost without a word is noticed long before the server would end our session. */
#define RELAY_BEAT_MS 1000
#define RELAY_DEAD_MS 3000

/* A simple request after a watch: when it is answered, the watch is up. */
struct mu_gateway_probe {
    struct mu_store_op op;
    struct mu_gateway_server *remote;
    struct mu_gateway_op *watch; /* NULL: gone */
};

struct mu_gateway_server {
    struct mu_gateway base;
    struct mu_gateway_hold hold;
    bool holds; /* the URL does not forbid it */
    struct mu_env *env;
    struct mu_gateway_events events;
    struct mu_store_tcp_config config;
    char addr[MU_ADDR_HOST_MAX + 16];
    struct mu_store *store;   /* NULL: not begun, or not reached; `status` says why */
    struct mu_store *leaving; /* until it is closed */
    /* With relays (`via`): keys are read and held by one of them, with a session of its own; the
     * session of `store` is carried by one. When all were tried, both go to the server itself. */
    struct mu_carry_env *carry; /* NULL: there are none */
    struct mu_addr relays[MU_CARRY_RELAYS_MAX];
    size_t relay_count;
    size_t relay_at;
    struct mu_store *reader; /* NULL: none now */
    struct mu_store *reader_leaving;
    int status;
    struct mu_errmsg why;
    mu_mono_t patient_until; /* operations that were not sent wait for another try until then */
    struct mu_timer again;
    struct mu_timer soon;  /* ends the operations in `failed`, or the gateway */
    struct mu_list failed; /* operations that end on a later turn, with the status they have */
    struct mu_list held;   /* operations that wait for the next try */
    size_t busy;           /* operations under way that do not block */
    size_t blocked;        /* and those that may */
    size_t probes;
    bool lost; /* the log has said so */
    bool closing;
    void (*closed)(void *context);
    void *context;
};

static struct mu_gateway_server *remote_of(const struct mu_gateway *k)
{
    return MU_CONTAINER_OF((struct mu_gateway *)(uintptr_t)k, struct mu_gateway_server, base);
}

static void run_soon(struct mu_gateway_server *r)
{
    mu_env_timer_arm(r->env, &r->soon, mu_env_now(r->env).mono);
}

static void finish_turn(struct mu_gateway_server *r)
{
    if (!r->closing) {
        r->events.turn_ended(r->events.context);
    }
}

/* --- status of the other server --------------------------------------------------------------- */

/* Whether the status is about the other server rather than the request. */
static bool is_loss(int status)
{
    return status == MUSTER_ECONN || status == MUSTER_ENAME || status == MUSTER_EREFUSED ||
           status == MUSTER_ENOTSTORE || status == MUSTER_ESESSION;
}

static void note_end(struct mu_gateway_server *r, int status, const char *why)
{
    if (is_loss(status) && !r->lost) {
        r->lost = true;
        mu_log(MUSTER_LOG_WARN, "BACKING-UNREACHABLE", "server=%s why=\"%s\"", r->addr, why);
    } else if (!is_loss(status) && status != MUSTER_ECLOSED && status != MUSTER_ECANCELED &&
               status != MUSTER_ETIMEDOUT && status != MUSTER_ENOMEM && r->lost) {
        r->lost = false;
        mu_log(MUSTER_LOG_WARN, "BACKING-REACHABLE", "server=%s", r->addr);
    }
}

static void try_again_later(struct mu_gateway_server *r)
{
    mu_env_timer_arm(r->env, &r->again, mu_mono_add_ms(mu_env_now(r->env).mono, AGAIN_MS));
}

static void be_patient(struct mu_gateway_server *r)
{
    r->patient_until = mu_mono_add_ms(mu_env_now(r->env).mono, r->config.connect_ms);
}

/* Whether operations that were not sent yet should wait for the next try. */
static bool is_patient(const struct mu_gateway_server *r)
{
    return r->status != MUSTER_EREFUSED &&
           mu_mono_before(mu_env_now(r->env).mono, r->patient_until);
}

static void on_left(void *context)
{
    struct mu_gateway_server *r = context;

    r->leaving = NULL;
    if (r->closing) {
        run_soon(r);
    } else {
        if (!is_patient(r)) {
            be_patient(r); /* for operations that come from now on */
        }
        try_again_later(r);
    }
}

/* --- the relay -------------------------------------------------------------------------------- */

static void open_reader(struct mu_gateway_server *r);

static void on_reader_left(void *context)
{
    struct mu_gateway_server *r = context;

    r->reader_leaving = NULL;
    if (r->closing) {
        run_soon(r);
    } else {
        open_reader(r);
    }
}

/* What waits for it is passed on to the server. */
static void leave_reader(struct mu_gateway_server *r)
{
    if (r->reader != NULL) {
        r->reader_leaving = r->reader;
        r->reader = NULL;
        mu_gateway_hold_read_from(&r->hold, NULL);
        mu_store_close(r->reader_leaving, on_reader_left, r);
    }
}

static void move_on(struct mu_gateway_server *r)
{
    r->relay_at = (r->relay_at + 1) % (r->relay_count + 1);
    if (r->reader != NULL) {
        leave_reader(r);
    } else {
        open_reader(r);
    }
}

/* The connection of our session was lost: keys are read by the relay that is next for both. */
static void on_moved(void *context)
{
    struct mu_gateway_server *r = context;

    if (!r->closing && r->store != NULL) {
        move_on(r);
    } else {
        r->relay_at = (r->relay_at + 1) % (r->relay_count + 1);
    }
}

static void lose_reader(struct mu_gateway_server *r, const char *why)
{
    if (r->reader != NULL) {
        char at[MU_ADDR_HOST_MAX + 16];

        mu_log(MUSTER_LOG_INFO, "RELAY-LOST", "relay=%s why=\"%s\"",
               mu_addr_format(&r->relays[r->relay_at], at, sizeof(at)), why);
        move_on(r);
        mu_carry_env_next(r->carry);
    }
}

static void on_reader_ready(void *context, enum mu_store_tcp_protocol found)
{
    (void)context;
    (void)found;
}

static void on_reader_mismatch(void *context, bool silent)
{
    lose_reader(context, silent ? "it does not answer" : "it is not a muster server");
}

static void on_reader_failed(void *context, int status, const char *text)
{
    (void)status;
    lose_reader(context, text);
}

static void on_reader_lost(struct mu_gateway_hold *h)
{
    lose_reader(MU_CONTAINER_OF(h, struct mu_gateway_server, hold), "the connection is lost");
}

/* Keys are read by the next relay, or, if all were tried, by our session with the server. */
static void open_reader(struct mu_gateway_server *r)
{
    const struct mu_store_engine_events events = {.ready = on_reader_ready,
                                                  .mismatch = on_reader_mismatch,
                                                  .failed = on_reader_failed,
                                                  .context = r};
    struct mu_store_tcp_config config = r->config;

    if (r->store == NULL || r->reader != NULL || r->reader_leaving != NULL || !r->holds) {
        return;
    }
    config.connect_ms = RELAY_CONNECT_MS;
    config.reconnect_ms = RELAY_RECONNECT_MS;
    config.beat_ms = RELAY_BEAT_MS;
    config.dead_ms = RELAY_DEAD_MS;
    while (r->relay_at < r->relay_count) {
        config.addr = r->relays[r->relay_at];
        if (mu_store_native_new(r->env, &config, &events, &r->reader) == 0) {
            mu_gateway_hold_read_from(&r->hold, r->reader);
            return;
        }
        r->reader = NULL;
        r->relay_at++;
        mu_carry_env_next(r->carry);
    }
    if (r->hold.reader != r->store) {
        mu_gateway_hold_read_from(&r->hold, r->store);
    }
}

/* --- the store -------------------------------------------------------------------------------- */

/* There is no server, or not a muster server. Operations that wait for it end, or are held, as its
 * store closes. */
static void on_failed(void *context, int status, const char *text)
{
    struct mu_gateway_server *r = context;

    r->status = mu_err(&r->why, status, "%s", text);
    note_end(r, status, r->why.text);
    r->leaving = r->store;
    r->store = NULL;
    leave_reader(r);
    mu_gateway_hold_leave(&r->hold);
    mu_store_close(r->leaving, on_left, r);
}

static void on_mismatch(void *context, bool silent)
{
    struct mu_gateway_server *r = context;
    char text[MU_ERRMSG_CAP];

    (void)snprintf(text, sizeof(text),
                   "%.160s is not a muster server%s; check the backing's address", r->addr,
                   silent ? ": it does not answer" : "");
    on_failed(r, MUSTER_ENOTSTORE, text);
}

static void on_ready(void *context, enum mu_store_tcp_protocol found)
{
    struct mu_gateway_server *r = context;

    (void)found;
    be_patient(r);
    mu_log(MUSTER_LOG_INFO, "BACKING-CONNECTED", "server=%s", r->addr);
    note_end(r, 0, "");
}

static int open_store(struct mu_gateway_server *r)
{
    const struct mu_store_engine_events events = {
        .ready = on_ready, .mismatch = on_mismatch, .failed = on_failed, .context = r};

    struct mu_env *env = r->carry == NULL ? r->env : mu_carry_env_env(r->carry);
    int err = mu_store_native_new(env, &r->config, &events, &r->store);

    r->status = err;
    if (err != 0) {
        r->store = NULL;
        (void)mu_err(&r->why, err, "%s", muster_strerror(err));
    } else {
        mu_gateway_hold_open(&r->hold, r->store, r->carry == NULL ? r->store : NULL);
        if (r->carry != NULL) {
            open_reader(r);
        }
    }
    return err;
}

/* --- operations ------------------------------------------------------------------------------- */

static void hold(struct mu_gateway_server *r, struct mu_gateway_op *o)
{
    mu_list_init(&o->base.link);
    mu_list_push(&r->held, &o->base.link);
}

static void count(struct mu_gateway_server *r, struct mu_gateway_op *o)
{
    *(mu_store_may_block(&o->base.request) ? &r->blocked : &r->busy) += 1;
    o->counted = true;
}

static bool is_resting(const struct mu_gateway_op *o)
{
    return o->base.link.next != NULL && !mu_list_empty(&o->base.link);
}

static void forget(struct mu_gateway_server *r, struct mu_gateway_op *o)
{
    mu_gateway_hold_forget(&r->hold, o);
    if (o->counted) {
        *(mu_store_may_block(&o->base.request) ? &r->blocked : &r->busy) -= 1;
        o->counted = false;
    }
    if (o->probe != NULL) {
        o->probe->watch = NULL;
        o->probe = NULL;
    }
}

/* Gives an operation back. */
static void end_op(struct mu_gateway_server *r, struct mu_gateway_op *o)
{
    forget(r, o);
    o->done(o);
}

/* An operation has ended, with what it has in `base`. */
static void settle(struct mu_gateway_server *r, struct mu_gateway_op *o)
{
    struct mu_backing_op *b = &o->base;

    if (b->status == MUSTER_ECLOSED && r->leaving != NULL && !r->closing) {
        if (is_patient(r) && !o->canceled) {
            hold(r, o); /* this store was never ready: nothing was sent */
            return;
        }
        b->status = r->status;
        b->errmsg = r->why;
    }
    note_end(r, b->status, b->errmsg.text);
    if (is_loss(b->status) && b->status != MUSTER_ESESSION) {
        b->status = MUSTER_ECONN; /* to our client, this is a lost connection */
    }
    if (is_loss(b->status) && strstr(b->errmsg.text, r->addr) == NULL) {
        mu_err_prefix(&b->errmsg, "the store at %.100s", r->addr);
    }
    b->unknown = b->status != 0;
    end_op(r, o);
}

static void on_op_done(struct mu_store_op *op)
{
    struct mu_gateway_op *o = MU_CONTAINER_OF(op, struct mu_gateway_op, remote);
    struct mu_gateway_server *r = o->gateway;

    o->base.status = op->status;
    o->base.reply = op->reply;
    o->base.errmsg = op->errmsg;
    settle(r, o);
    finish_turn(r);
}

static void on_op_change(struct mu_store_op *op, const struct mu_change *change)
{
    struct mu_gateway_op *o = MU_CONTAINER_OF(op, struct mu_gateway_op, remote);
    struct mu_gateway_server *r = o->gateway;

    if (!o->canceled) {
        o->change(o, change, false);
        finish_turn(r);
    }
}

static void fail_soon(struct mu_gateway_server *r, struct mu_gateway_op *o, int status,
                      const char *text)
{
    o->base.status = mu_err(&o->base.errmsg, status, "%s", text);
    mu_list_init(&o->base.link);
    mu_list_push(&r->failed, &o->base.link);
    run_soon(r);
}

/* --- watches ---------------------------------------------------------------------------------- */

static void on_probed(struct mu_store_op *op)
{
    struct mu_gateway_probe *p = MU_CONTAINER_OF(op, struct mu_gateway_probe, op);
    struct mu_gateway_op *watch = p->watch;
    struct mu_gateway_server *r = p->remote;
    bool stands = op->status == 0;

    r->probes--;
    mu_free(p);
    if (watch != NULL) {
        watch->probe = NULL;
        if (stands && !watch->canceled) {
            watch->stands(watch);
        } else if (!watch->canceled) {
            mu_store_cancel(&watch->remote); /* it would never learn that it is up */
        }
        finish_turn(r);
    }
}

/* Calls of a session begin in order: when this one is answered, the watch has begun. */
static void probe(struct mu_gateway_server *r, struct mu_gateway_op *o, struct mu_gateway_probe *p)
{
    p->remote = r;
    p->watch = o;
    p->op.request.verb = MU_STORE_NUM_KEYS;
    p->op.done = on_probed;
    o->probe = p;
    r->probes++;
    mu_store_submit(r->store, &p->op);
}

/* --- the gateway -------------------------------------------------------------------------------
 * */

/* Sends an operation to the present store. */
static void send(struct mu_gateway_server *r, struct mu_gateway_op *o)
{
    uint64_t left = mu_mono_until_ms(o->deadline, mu_env_now(r->env).mono);
    struct mu_gateway_probe *p = NULL;

    if (o->stands != NULL) {
        p = mu_calloc(1, sizeof(*p));
        if (p == NULL) {
            fail_soon(r, o, MUSTER_ENOMEM, "out of memory");
            return;
        }
    }
    o->remote = (struct mu_store_op){
        .request = o->base.request, .done = on_op_done, .change = on_op_change};
    if (o->fetch.len != 0) {
        o->remote.method = MU_STORE_METHOD_FETCH;
        o->remote.payload = o->fetch;
    }
    if (o->deadline.ns != 0 && o->deadline.ns != MU_MONO_NEVER.ns) {
        o->remote.timeout_ms = left == 0                ? 1
                               : left > UINT32_MAX / 2u ? UINT32_MAX / 2u
                                                        : (uint32_t)left;
    }
    mu_gateway_hold_sending(&r->hold, &o->base.request);
    mu_store_submit(r->store, &o->remote);
    if (p != NULL) {
        probe(r, o, p);
    }
}

/* Sends an operation as a call of its own, now or when there is a store. */
static void pass(struct mu_gateway_server *r, struct mu_gateway_op *o)
{
    if (r->closing) {
        fail_soon(r, o, MUSTER_ECLOSED, muster_strerror(MUSTER_ECLOSED));
    } else if (r->store == NULL) {
        hold(r, o);
    } else {
        send(r, o);
    }
}

static void remote_submit(struct mu_gateway *k, struct mu_backing_client *client,
                          struct mu_gateway_op *o)
{
    struct mu_gateway_server *r = remote_of(k);

    (void)client; /* there is one session, so all operations are in order */
    o->gateway = r;
    if (r->store == NULL && r->status != 0 && !is_patient(r)) {
        fail_soon(r, o, MUSTER_ECONN, r->why.text);
    } else if (mu_store_may_block(&o->base.request) && r->blocked >= BLOCKED_MAX) {
        fail_soon(r, o, MUSTER_ELIMIT,
                  "too many operations wait through this server; use another server, or wait less");
    } else {
        count(r, o);
        if (!mu_gateway_hold_take(&r->hold, o)) {
            pass(r, o);
        }
    }
}

static struct mu_gateway_server *server_of(struct mu_gateway_hold *h)
{
    return MU_CONTAINER_OF(h, struct mu_gateway_server, hold);
}

static void pass_held(struct mu_gateway_hold *h, struct mu_gateway_op *o)
{
    pass(server_of(h), o);
}

static void end_held(struct mu_gateway_hold *h, struct mu_gateway_op *o)
{
    settle(server_of(h), o);
}

static bool recall_lent(struct mu_gateway_hold *h, struct mu_span payload)
{
    struct mu_gateway_server *r = server_of(h);

    return r->events.recalled != NULL && r->events.recalled(r->events.context, payload);
}

static void tell_lends(struct mu_gateway_hold *h, int status)
{
    struct mu_gateway_server *r = server_of(h);

    if (r->events.lends != NULL && !r->closing) {
        r->events.lends(r->events.context, status);
    }
}

static void end_held_turn(struct mu_gateway_hold *h)
{
    finish_turn(server_of(h));
}

static void on_again(struct mu_timer *timer)
{
    struct mu_gateway_server *r = MU_CONTAINER_OF(timer, struct mu_gateway_server, again);
    struct mu_list *it;

    if (open_store(r) != 0) {
        try_again_later(r);
        return;
    }
    while ((it = mu_list_pop(&r->held)) != NULL) {
        send(r, MU_CONTAINER_OF(it, struct mu_gateway_op, base.link));
    }
}

static bool remote_cancel(struct mu_gateway *k, struct mu_gateway_op *o)
{
    struct mu_gateway_server *r = remote_of(k);

    o->canceled = true;
    if (mu_gateway_hold_cancel(&r->hold, o)) {
        forget(r, o);
        return true;
    }
    if (o->add.call != NULL) {
        return false; /* it is under way with others, and ends with them */
    }
    if (is_resting(o)) {
        mu_list_remove(&o->base.link); /* it waits here, for a try or for its end */
        forget(r, o);
        return true;
    }
    mu_store_cancel(&o->remote);
    return false;
}

/* Each watch is a call of its own, and is up when that has begun. */
static bool remote_watches(const struct mu_gateway *k)
{
    (void)k;
    return false;
}

/* The other server reports the present keys itself. */
static void remote_tell_current(struct mu_gateway *k, struct mu_gateway_op *o)
{
    (void)k;
    (void)o;
}

static bool remote_idle(const struct mu_gateway *k)
{
    const struct mu_gateway_server *r = remote_of(k);

    return r->busy == 0 && mu_list_empty(&r->failed);
}

static void on_soon(struct mu_timer *timer)
{
    struct mu_gateway_server *r = MU_CONTAINER_OF(timer, struct mu_gateway_server, soon);
    struct mu_list *it;

    while ((it = mu_list_pop(&r->failed)) != NULL) {
        end_op(r, MU_CONTAINER_OF(it, struct mu_gateway_op, base.link));
    }
    if (!r->closing) {
        finish_turn(r);
    } else if (r->store == NULL && r->leaving == NULL && r->reader_leaving == NULL) {
        void (*closed)(void *) = r->closed;
        void *context = r->context;

        MU_ASSERT(r->busy == 0 && r->blocked == 0 && r->probes == 0);
        mu_gateway_hold_fini(&r->hold);
        mu_carry_env_free(r->carry);
        mu_free(r);
        closed(context);
    }
}

static void remote_close(struct mu_gateway *k, bool drop, void (*closed)(void *context),
                         void *context)
{
    struct mu_gateway_server *r = remote_of(k);
    struct mu_list *it;

    (void)drop;
    r->closing = true;
    r->closed = closed;
    r->context = context;
    mu_env_timer_arm(r->env, &r->again, MU_MONO_NEVER);
    while ((it = mu_list_pop(&r->held)) != NULL) {
        fail_soon(r, MU_CONTAINER_OF(it, struct mu_gateway_op, base.link), MUSTER_ECLOSED,
                  muster_strerror(MUSTER_ECLOSED));
    }
    leave_reader(r);
    mu_gateway_hold_leave(&r->hold);
    if (r->store != NULL) {
        r->leaving = r->store;
        r->store = NULL;
        mu_store_close(r->leaving, on_left, r);
    }
    run_soon(r);
}

/* Nothing was begun but a timer. */
static void remote_drop(struct mu_gateway *k)
{
    struct mu_gateway_server *r = remote_of(k);

    mu_env_timer_arm(r->env, &r->again, MU_MONO_NEVER);
    mu_gateway_hold_fini(&r->hold);
    mu_carry_env_free(r->carry);
    mu_free(r);
}

static const struct mu_gateway_kind remote_kind = {
    .remote = true,
    .submit = remote_submit,
    .cancel = remote_cancel,
    .watches = remote_watches,
    .tell_current = remote_tell_current,
    .idle = remote_idle,
    .close = remote_close,
    .drop = remote_drop,
};

struct mu_gateway_hold *mu_gateway_hold(struct mu_gateway *k)
{
    return k->kind == &remote_kind ? &remote_of(k)->hold : NULL;
}

const struct mu_addr *mu_gateway_addr(const struct mu_gateway *k)
{
    return k->kind == &remote_kind ? &remote_of(k)->config.addr : NULL;
}

/* --- life ------------------------------------------------------------------------------------- */

int mu_gateway_server_check(const char *url, struct mu_errmsg *reterr_msg)
{
    struct mu_gateway_url facts;

    return mu_gateway_url_parse(url, &facts, reterr_msg);
}

int mu_gateway_server_new(struct mu_env *env, const char *url,
                          const struct mu_gateway_events *events, struct mu_gateway **ret_gateway,
                          struct mu_errmsg *reterr_msg)
{
    struct mu_gateway_server *r = mu_calloc(1, sizeof(*r));
    struct mu_gateway_url facts;
    int err;

    if (r == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    r->base.kind = &remote_kind;
    r->env = env;
    r->events = *events;
    mu_list_init(&r->failed);
    mu_list_init(&r->held);
    mu_timer_init(&r->again, on_again);
    mu_timer_init(&r->soon, on_soon);
    err = mu_gateway_url_parse(url, &facts, reterr_msg);
    /* That a relay is lost is seen by what is held through it. */
    facts.relay_count = err == 0 && facts.holds ? facts.relay_count : 0;
    if (err == 0 && facts.relay_count != 0) {
        err = mu_carry_env_new(env, &r->carry);
    }
    if (err != 0) {
        mu_free(r);
        return err == MUSTER_ENOMEM ? mu_err(reterr_msg, err, "out of memory") : err;
    }
    r->config = facts.config;
    r->holds = facts.holds;
    r->relay_count = facts.relay_count;
    memcpy(r->relays, facts.relays, sizeof(r->relays));
    if (r->carry != NULL) {
        mu_carry_env_via(r->carry, r->relays, r->relay_count, on_moved, r);
    }
    mu_gateway_hold_init(&r->hold, env, r->holds,
                         &(struct mu_gateway_hold_events){.pass = pass_held,
                                                          .ended = end_held,
                                                          .recalled = recall_lent,
                                                          .lends = tell_lends,
                                                          .lost = on_reader_lost,
                                                          .turn_ended = end_held_turn});
    (void)mu_addr_format(&r->config.addr, r->addr, sizeof(r->addr));
    be_patient(r);
    /* Connects on the next turn: until then the gateway can be dropped. */
    mu_env_timer_arm(env, &r->again, mu_env_now(env).mono);
    *ret_gateway = &r->base;
    return 0;
}
