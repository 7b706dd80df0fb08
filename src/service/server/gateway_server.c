/*
 * The keys are in another server: operations are calls of one native session with it. That session
 * outlives its connections, so a short loss costs only time. A request is passed on unchanged,
 * deadline included, so that the other server decides and says why.
 */
#include "service/server/gateway_hold.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/addr.h"
#include "core/alloc.h"
#include "core/assert.h"
#include "core/url.h"
#include "service/base/log.h"
#include "service/store/engine.h"

#define DEFAULT_PORT 29500
#define AGAIN_MS     1000 /* until we try again to reach a server */
/* How many calls of the session may block: if they took all that the other server serves of one
 * session at once, the calls that would end them could not get through. */
#define BLOCKED_MAX 32768

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

/* There is no server, or not a muster server. Operations that wait for it end, or are held, as its
 * store closes. */
static void on_failed(void *context, int status, const char *text)
{
    struct mu_gateway_server *r = context;

    r->status = mu_err(&r->why, status, "%s", text);
    note_end(r, status, r->why.text);
    r->leaving = r->store;
    r->store = NULL;
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

    int err = mu_store_native_new(r->env, &r->config, &events, &r->store);

    r->status = err;
    if (err != 0) {
        r->store = NULL;
        (void)mu_err(&r->why, err, "%s", muster_strerror(err));
    } else {
        mu_gateway_hold_open(&r->hold, r->store);
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
    } else if (r->store == NULL && r->leaving == NULL) {
        void (*closed)(void *) = r->closed;
        void *context = r->context;

        MU_ASSERT(r->busy == 0 && r->blocked == 0 && r->probes == 0);
        mu_gateway_hold_fini(&r->hold);
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

/* --- life ------------------------------------------------------------------------------------- */

static int parse_params(const struct mu_url *url, uint32_t *connect_ms, bool *holds,
                        struct mu_errmsg *reterr_msg)
{
    const char *hold = mu_url_param(url, "hold");
    const char *text = mu_url_param(url, "connect");
    char *end;
    long long v;

    for (size_t i = 0; i < url->param_count; i++) {
        if (strcmp(url->params[i].name, "connect") != 0 &&
            strcmp(url->params[i].name, "hold") != 0) {
            return mu_err(reterr_msg, MUSTER_EURL,
                          "a backing's tcp: URL has no parameter \"%.64s\"", url->params[i].name);
        }
    }
    if (hold != NULL && strcmp(hold, "yes") != 0 && strcmp(hold, "no") != 0) {
        return mu_err(reterr_msg, MUSTER_EURL, "the URL's hold=%.64s is neither yes nor no", hold);
    }
    *holds = hold == NULL || strcmp(hold, "yes") == 0;
    if (text == NULL) {
        return 0;
    }
    errno = 0;
    v = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || v < 1 || v > INT32_MAX) {
        return mu_err(reterr_msg, MUSTER_EURL,
                      "the URL's connect=%.64s is not a number of milliseconds", text);
    }
    *connect_ms = (uint32_t)v;
    return 0;
}

static int parse_url(const char *text, struct mu_store_tcp_config *config, bool *holds,
                     struct mu_errmsg *reterr_msg)
{
    struct mu_url url;
    int err = mu_url_parse(&url, text, reterr_msg);

    *config = mu_store_tcp_config_defaults();
    config->protocol = MU_STORE_TCP_MUSTER;
    config->name = MU_GATEWAY_NAME;
    config->wire_keys = true;
    if (err == 0 && url.path[0] != '\0' && strcmp(url.path, "/") != 0) {
        err =
            mu_err(reterr_msg, MUSTER_EURL,
                   "a backing's tcp: URL has no path, since all of that server's keys are served");
    }
    if (err == 0) {
        err = parse_params(&url, &config->connect_ms, holds, reterr_msg);
    }
    if (err == 0) {
        err = mu_addr_parse(url.authority, DEFAULT_PORT, &config->addr, reterr_msg);
    }
    if (err == 0 && config->addr.kind == MU_ADDR_TCP && config->addr.port == 0) {
        err = mu_err(reterr_msg, MUSTER_EURL, "the URL names port 0; name the port of the server");
    }
    return err;
}

int mu_gateway_server_check(const char *url, struct mu_errmsg *reterr_msg)
{
    struct mu_store_tcp_config config;
    bool holds;

    return parse_url(url, &config, &holds, reterr_msg);
}

int mu_gateway_server_new(struct mu_env *env, const char *url,
                          const struct mu_gateway_events *events, struct mu_gateway **ret_gateway,
                          struct mu_errmsg *reterr_msg)
{
    struct mu_gateway_server *r = mu_calloc(1, sizeof(*r));
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
    err = parse_url(url, &r->config, &r->holds, reterr_msg);
    if (err != 0) {
        mu_free(r);
        return err;
    }
    mu_gateway_hold_init(&r->hold, env, r->holds,
                         &(struct mu_gateway_hold_events){.pass = pass_held,
                                                          .ended = end_held,
                                                          .recalled = recall_lent,
                                                          .lends = tell_lends,
                                                          .turn_ended = end_held_turn});
    (void)mu_addr_format(&r->config.addr, r->addr, sizeof(r->addr));
    be_patient(r);
    /* Connects on the next turn: until then the gateway can be dropped. */
    mu_env_timer_arm(env, &r->again, mu_env_now(env).mono);
    *ret_gateway = &r->base;
    return 0;
}
