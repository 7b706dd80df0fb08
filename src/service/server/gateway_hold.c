#include "service/server/gateway_hold.h"

#include <stdio.h>
#include <string.h>

#include "codec/store/hold.h"
#include "core/alloc.h"
#include "core/assert.h"

#define AGAIN_MS   1000 /* until we ask again whether keys can be held */
#define STARVED_MS 10   /* until we try again to send what found no memory */
/* For how long a WAIT stays behind the client that was told of a queue's element. If that does not
 * pop it, the next push ends a WAIT that late at most. */
#define BEHIND_MS 1000

/* A call that clients share. */
struct shared {
    struct mu_store_op op;
    struct mu_gateway_hold *hold;
    struct mu_cache_flight *flight; /* one of these */
    struct mu_adds_call *call;
    bool relayed; /* it goes to a relay */
};

/* Keys that are given back. */
struct given {
    struct mu_store_op op;
    struct mu_gateway_hold *hold;
    uint8_t bytes[];
};

static mu_mono_t now_of(const struct mu_gateway_hold *h)
{
    return mu_env_now(h->env).mono;
}

static void pump(struct mu_gateway_hold *h);

/* --- ends ------------------------------------------------------------------------------------- */

static void leave_client(struct mu_gateway_op *o)
{
    struct mu_gateway_client *c = o->client;

    if (c != NULL && o->pends) {
        c->pending--;
        o->pends = false;
    }
    if (c != NULL && c->resting == o) {
        c->resting = NULL;
    }
}

/* Lets those go on who are behind this client; NULL: all. */
static void let_pass(struct mu_gateway_hold *h, const struct mu_gateway_client *c)
{
    struct mu_list passed;

    mu_list_init(&passed);
    MU_LIST_FOREACH_SAFE (it, tmp, &h->behind) {
        if (c == NULL || MU_CONTAINER_OF(it, struct mu_gateway_op, hit)->behind == c) {
            mu_list_remove(it);
            mu_list_push(&passed, it);
        }
    }
    while (!mu_list_empty(&passed)) {
        struct mu_gateway_op *o = MU_CONTAINER_OF(mu_list_pop(&passed), struct mu_gateway_op, hit);

        o->hit.next = NULL;
        o->behind = NULL;
        h->events.pass(h, o);
    }
}

void mu_gateway_hold_forget(struct mu_gateway_hold *h, struct mu_gateway_op *o)
{
    leave_client(o);
    if (o->client != NULL && o->base.request.verb == MU_STORE_QUEUE_POP &&
        !mu_list_empty(&h->behind)) {
        let_pass(h, o->client);
    }
}

void mu_gateway_disown(struct mu_gateway_op *o)
{
    leave_client(o);
    o->client = NULL;
}

static void end(struct mu_gateway_hold *h, struct mu_gateway_op *o, int status,
                const struct mu_store_reply *reply, const char *text)
{
    static const struct mu_store_reply none;

    o->base.reply = reply == NULL ? none : *reply;
    o->base.status = status;
    if (status != 0) {
        (void)mu_err(&o->base.errmsg, status, "%s", text);
    }
    h->events.ended(h, o);
}

/* Answers with what is known: the values, or that there are none. */
static void answer(struct mu_gateway_hold *h, struct mu_gateway_op *o, int status,
                   const struct mu_store_reply *reply)
{
    const struct mu_store_request *q = &o->base.request;
    char text[200];
    char quoted[100];

    if (status == 0 || q->key_count != 1) {
        end(h, o, status, reply, muster_strerror(status));
        return;
    }
    (void)snprintf(
        text, sizeof(text), "%s: %s", muster_strerror(status),
        mu_span_quote(quoted, sizeof(quoted),
                      mu_span_skip(q->keys[0], q->keys[0].len != 0 && q->keys[0].data[0] == '/')));
    end(h, o, status, NULL, text);
}

/* Takes an operation out of what it shares, and passes it on. */
static void force_out(struct mu_gateway_hold *h, struct mu_gateway_op *o)
{
    if (mu_gateway_hold_cancel(h, o)) {
        h->events.pass(h, o);
    }
}

static bool is_change(const struct mu_store_request *q)
{
    return mu_store_verb_facts(q->verb)->does == MU_STORE_CHANGES;
}

void mu_gateway_hold_sending(struct mu_gateway_hold *h, const struct mu_store_request *q)
{
    for (size_t i = 0; i < q->key_count && is_change(q); i++) {
        mu_cache_change(&h->cache, q->keys[i]);
    }
}

/* --- shared calls ----------------------------------------------------------------------------- */

/* Its wait was for a queue, whose element went to this client. */
static void stay_behind(struct mu_gateway_hold *h, struct mu_gateway_op *o,
                        const struct mu_gateway_client *c)
{
    if (c == NULL) {
        h->events.pass(h, o);
        return;
    }
    if (mu_list_empty(&h->behind)) {
        h->behind_until = mu_mono_add_ms(now_of(h), BEHIND_MS);
    }
    o->behind = c;
    mu_list_init(&o->hit);
    mu_list_push(&h->behind, &o->hit);
}

static void on_flight_done(struct shared *s)
{
    struct mu_gateway_hold *h = s->hold;
    struct mu_store_op *op = &s->op;
    const struct mu_gateway_client *taker = NULL; /* it may be gone, and is only compared */
    struct mu_cache_outcome out;

    mu_cache_land(&h->cache, now_of(h), s->flight, op->status,
                  op->status == 0 ? op->reply.values[0] : (struct mu_span){0});
    while (mu_cache_next(&h->cache, now_of(h), &out)) {
        struct mu_gateway_op *o = MU_CONTAINER_OF(out.ask, struct mu_gateway_op, ask);

        if (o->client != NULL && o->client->resting == o) {
            o->client->resting = NULL;
        }
        taker = out.took && o->client != NULL && o->client->single ? o->client : taker;
        if (out.late) {
            stay_behind(h, o, taker);
        } else if (out.pass || (out.failed && s->relayed)) {
            h->events.pass(h, o); /* a relay that fails is no answer */
        } else if (out.failed) {
            end(h, o, out.status, NULL,
                op->errmsg.text[0] != '\0' ? op->errmsg.text : muster_strerror(out.status));
        } else {
            if (o->fetch.len != 0 && out.brought) {
                out.reply = op->reply;
            }
            answer(h, o, out.status, &out.reply);
        }
    }
}

static void on_adds_done(struct shared *s)
{
    struct mu_gateway_hold *h = s->hold;
    struct mu_store_op *op = &s->op;
    struct mu_add *add;
    int64_t sum;
    int status;

    mu_adds_land(&h->adds, s->call, op->status, op->reply.number);
    while (mu_adds_next(&h->adds, &add, &status, &sum)) {
        struct mu_store_reply reply = {.number = sum};

        end(h, MU_CONTAINER_OF(add, struct mu_gateway_op, add), status, &reply,
            op->errmsg.text[0] != '\0' ? op->errmsg.text : muster_strerror(status));
    }
}

static void on_shared_done(struct mu_store_op *op)
{
    struct shared *s = MU_CONTAINER_OF(op, struct shared, op);
    struct mu_gateway_hold *h = s->hold;

    h->calls--;
    if (s->flight != NULL) {
        on_flight_done(s);
    } else {
        on_adds_done(s);
    }
    mu_free(s);
    pump(h);
    h->events.turn_ended(h);
}

static void send_shared(struct mu_gateway_hold *h, struct shared *s)
{
    s->hold = h;
    s->op.done = on_shared_done;
    if (s->flight != NULL) {
        s->flight->impl = s;
        s->op.request.verb = MU_STORE_CHECK; /* it can be repeated */
        s->op.method = MU_STORE_METHOD_FETCH;
        s->op.payload = s->flight->payload;
    } else {
        s->op.request = (struct mu_store_request){
            .verb = MU_STORE_ADD, .keys = &s->call->key, .key_count = 1, .number = s->call->delta};
    }
    h->calls++;
    mu_gateway_hold_sending(h, &s->op.request);
    s->relayed = s->flight != NULL && h->reader != h->store;
    mu_store_submit(s->flight != NULL ? h->reader : h->store, &s->op);
}

/* False: there is nothing to send, or no memory. */
static bool send_next(struct mu_gateway_hold *h)
{
    bool flies = !mu_list_empty(&h->cache.to_send) && h->reader != NULL;
    struct shared *s;

    if (h->store == NULL || (!flies && mu_list_empty(&h->adds.to_send))) {
        return false;
    }
    s = mu_calloc(1, sizeof(*s));
    if (s == NULL) {
        return false;
    }
    if (flies) {
        s->flight = mu_cache_next_flight(&h->cache, now_of(h));
    } else {
        s->call = mu_adds_next_call(&h->adds);
    }
    send_shared(h, s);
    return true;
}

/* Sends what has to be sent; arms the timers. */
static void pump(struct mu_gateway_hold *h)
{
    mu_mono_t at;

    while (send_next(h)) {
    }
    at = h->renewing ? MU_MONO_NEVER : mu_cache_renew_at(&h->cache); /* also for what was sent */
    if (h->store != NULL &&
        (!mu_list_empty(&h->cache.to_send) || !mu_list_empty(&h->adds.to_send))) {
        at = mu_mono_min(at, mu_mono_add_ms(now_of(h), STARVED_MS));
    }
    if (h->stream_at.ns != 0) {
        at = mu_mono_min(at, h->stream_at);
    }
    if (!mu_list_empty(&h->behind)) {
        at = mu_mono_min(at, h->behind_until);
    }
    mu_env_timer_arm(h->env, &h->timer, h->store == NULL ? MU_MONO_NEVER : at);
}

/* --- keys that are asked back ----------------------------------------------------------------- */

static void on_given(struct mu_store_op *op)
{
    struct given *g = MU_CONTAINER_OF(op, struct given, op);

    g->hold->calls--;
    mu_free(g);
}

/* Forgets the keys; also what is on its way: it may be the answer to a fetch that was sent before
 * we say that we hold nothing. */
static void forget_keys(struct mu_gateway_hold *h, struct mu_span payload)
{
    struct mu_span *keys = NULL;
    size_t count = 0;

    if (mu_hold_keys_decode(payload, &keys, &count) != 0) {
        mu_cache_clear(&h->cache); /* no memory */
        return;
    }
    for (size_t i = 0; i < count; i++) {
        mu_cache_recall(&h->cache, keys[i]);
    }
    mu_free(keys);
}

void mu_gateway_hold_give_back(struct mu_gateway_hold *h, struct mu_span payload)
{
    struct given *g = h->reader == NULL ? NULL : mu_calloc(1, sizeof(*g) + payload.len);

    forget_keys(h, payload);
    if (g == NULL) {
        return; /* the lease will be over */
    }
    memcpy(g->bytes, payload.data, payload.len);
    g->hold = h;
    g->op.request.verb = MU_STORE_CHECK;
    g->op.method = MU_STORE_METHOD_DROP;
    g->op.payload = mu_span(g->bytes, payload.len);
    g->op.done = on_given;
    h->calls++;
    mu_store_submit(h->reader, &g->op);
}

/* --- keys that are lent ----------------------------------------------------------------------- */

static void on_lend_done(struct mu_store_op *op);

static void ask_to_lend(struct mu_gateway_hold *h)
{
    if (h->lending == MU_GATEWAY_ASKS && h->cache.on && !h->lend_busy && !h->refused) {
        h->lend_busy = true;
        h->lend_stale = false;
        h->lend = (struct mu_store_op){.request.verb = MU_STORE_LEASE_KEEP,
                                       .method = MU_STORE_METHOD_LEND,
                                       .done = on_lend_done};
        mu_store_submit(h->reader, &h->lend);
    }
}

static void refuse(struct mu_gateway_hold *h, int status)
{
    h->refused = true;
    h->events.lends(h, status);
}

static void on_lend_done(struct mu_store_op *op)
{
    struct mu_gateway_hold *h = MU_CONTAINER_OF(op, struct mu_gateway_hold, lend);

    h->lend_busy = false;
    if (h->lend_stale) {
        ask_to_lend(h);
    } else if (op->status == 0 && h->cache.on) {
        h->lending = MU_GATEWAY_LENDS;
        h->events.lends(h, 0);
    } else if (op->status == MUSTER_ENOMETHOD || op->status == MUSTER_ENOTSUP) {
        refuse(h, op->status);
    }
    h->events.turn_ended(h);
}

void mu_gateway_hold_lend(struct mu_gateway_hold *h)
{
    if (h->lending == MU_GATEWAY_KEEPS) {
        h->lending = MU_GATEWAY_ASKS;
        ask_to_lend(h);
    }
}

bool mu_gateway_hold_lends(const struct mu_gateway_hold *h, struct mu_span key)
{
    return h->lending == MU_GATEWAY_LENDS && !mu_adds_has(&h->adds, key);
}

mu_mono_t mu_gateway_hold_until(struct mu_gateway_hold *h)
{
    mu_mono_t until = mu_cache_until(&h->cache, now_of(h));

    pump(h);
    return h->lending == MU_GATEWAY_LENDS ? until : (mu_mono_t){0};
}

/* The session is over, and what was lent in it is over with its lease. */
static void stop_lending(struct mu_gateway_hold *h)
{
    h->lending = h->lending == MU_GATEWAY_LENDS ? MU_GATEWAY_ASKS : h->lending;
    h->lend_stale = h->lend_busy;
    h->era++;
}

static void on_recall(struct mu_store_op *op, struct mu_span payload)
{
    struct mu_gateway_hold *h = MU_CONTAINER_OF(op, struct mu_gateway_hold, stream);
    bool first = payload.len <= 4; /* without keys */

    if (h->store == NULL || h->streams_in != h->reader) {
        return;
    }
    h->cache.on = true;
    ask_to_lend(h);
    if (!first && !h->events.recalled(h, payload)) {
        mu_gateway_hold_give_back(h, payload);
    }
    pump(h);
    h->events.turn_ended(h);
}

static void on_stream_done(struct mu_store_op *op);

static void start_stream(struct mu_gateway_hold *h)
{
    h->stream_at = (mu_mono_t){0};
    if (h->streams_in == NULL && h->wanted && h->reader != NULL) {
        h->streams_in = h->reader;
        h->stream = (struct mu_store_op){.request.verb = MU_STORE_WATCH,
                                         .method = MU_STORE_METHOD_HOLD,
                                         .item = on_recall,
                                         .done = on_stream_done};
        mu_store_submit(h->reader, &h->stream);
    }
}

/* The session is over, or the server does not do that: nothing is held. */
static void on_stream_done(struct mu_store_op *op)
{
    struct mu_gateway_hold *h = MU_CONTAINER_OF(op, struct mu_gateway_hold, stream);
    bool current = h->streams_in == h->reader;

    h->streams_in = NULL;
    h->cache.on = false;
    mu_cache_clear(&h->cache);
    stop_lending(h);
    if (h->store != NULL && current &&
        (op->status == MUSTER_ENOMETHOD || op->status == MUSTER_ENOTSUP)) {
        refuse(h, op->status);
    }
    if (h->store == NULL || h->refused) {
        h->events.turn_ended(h);
        return;
    }
    if (current && h->reader != h->store) {
        h->events.lost(h); /* also if it is there again: what it carried may not know */
    } else if (!current || op->status == MUSTER_ESESSION) {
        start_stream(h);
    } else {
        h->stream_at = mu_mono_add_ms(now_of(h), AGAIN_MS);
    }
    pump(h);
}

/* --- the lease -------------------------------------------------------------------------------- */

static void on_renewed(struct mu_store_op *op)
{
    struct mu_gateway_hold *h = MU_CONTAINER_OF(op, struct mu_gateway_hold, renewal);
    uint32_t lease_ms;

    h->renewing = false;
    if (op->status == 0 && h->cache.on && h->renewal_era == h->era &&
        mu_hold_lease_decode(op->reply.values[0], &lease_ms) == 0) {
        mu_cache_renewed(&h->cache, now_of(h), h->renewal_at, lease_ms);
        pump(h);
    }
}

static void on_timer(struct mu_timer *timer)
{
    struct mu_gateway_hold *h = MU_CONTAINER_OF(timer, struct mu_gateway_hold, timer);
    mu_mono_t now = now_of(h);

    if (h->store == NULL) {
        return;
    }
    if (h->stream_at.ns != 0 && !mu_mono_before(now, h->stream_at)) {
        start_stream(h);
    }
    if (!mu_list_empty(&h->behind) && !mu_mono_before(now, h->behind_until)) {
        let_pass(h, NULL);
    }
    if (h->reader != NULL && !h->renewing && !mu_mono_before(now, mu_cache_renew_at(&h->cache))) {
        h->renewing = true;
        h->renewal_at = now;
        h->renewal_era = h->era;
        h->renewal = (struct mu_store_op){.request.verb = MU_STORE_LEASE_KEEP,
                                          .method = MU_STORE_METHOD_RENEW,
                                          .done = on_renewed};
        mu_store_submit(h->reader, &h->renewal);
    }
    pump(h);
}

/* --- operations ------------------------------------------------------------------------------- */

/* Whether later operations of its client must not overtake it. */
static bool must_pend(const struct mu_gateway_client *c, const struct mu_store_request *q)
{
    return c->in_order ? !mu_store_may_block(q) : is_change(q);
}

/* PyTorch's WAIT for one key may be for a queue, of which each push wakes one who waits. It shares
 * a call only if we see when that one pops, which we do not if it is behind a gateway of ours: then
 * it must stand in the line at the server by itself. */
static bool is_in_line(const struct mu_gateway_op *o)
{
    const struct mu_store_request *q = &o->base.request;

    return q->verb == MU_STORE_WAIT && q->key_count == 1 && (q->flags & MU_STORE_IN_TURN) != 0 &&
           (o->client == NULL || !o->client->single);
}

static bool join(struct mu_gateway_hold *h, struct mu_gateway_op *o)
{
    o->ask.request = &o->base.request;
    if (is_in_line(o) || mu_cache_join(&h->cache, &o->ask) != 0) {
        o->ask.flight = NULL;
        return false;
    }
    if (o->client != NULL && o->pends) {
        o->client->resting = o;
    }
    return true;
}

/* Whether a read may be answered here. The deadline of one that waits is kept here only if it names
 * one key. */
static bool is_ours(const struct mu_gateway_hold *h, const struct mu_gateway_op *o)
{
    return h->cache.on && mu_cache_fits(&o->base.request) &&
           (!mu_store_may_block(&o->base.request) || o->base.request.key_count == 1 ||
            o->deadline.ns == 0 || o->deadline.ns == MU_MONO_NEVER.ns);
}

static bool take_read(struct mu_gateway_hold *h, struct mu_gateway_op *o)
{
    if (mu_cache_knows(&h->cache, now_of(h), &o->base.request)) {
        mu_list_init(&o->hit);
        mu_list_push(&h->hits, &o->hit);
        if (o->pends) {
            o->client->resting = o; /* a later change by its client must not be seen by it */
        }
        mu_env_timer_arm(h->env, &h->soon, now_of(h));
        return true;
    }
    return join(h, o);
}

static bool take_add(struct mu_gateway_hold *h, struct mu_gateway_op *o)
{
    const struct mu_store_request *q = &o->base.request;

    if (q->lease != 0 || mu_adds_submit(&h->adds, &o->add, q->keys[0], q->number) != 0) {
        return false;
    }
    o->client->resting = o;
    return true;
}

bool mu_gateway_hold_take(struct mu_gateway_hold *h, struct mu_gateway_op *o)
{
    const struct mu_store_request *q = &o->base.request;
    struct mu_gateway_client *c = o->client;
    bool taken = false;
    bool alone;

    if (c != NULL && c->resting != NULL) {
        force_out(h, c->resting);
    }
    if (c == NULL) {
        taken = o->fetch.len != 0 && h->store != NULL && is_ours(h, o) && take_read(h, o);
        if (taken) {
            pump(h);
        }
        return taken;
    }
    alone = c->pending == 0;
    o->pends = must_pend(c, q);
    c->pending += o->pends ? 1 : 0;
    if (h->store != NULL && alone && h->wanted) {
        taken = q->verb == MU_STORE_ADD ? take_add(h, o) : is_ours(h, o) && take_read(h, o);
    }
    if (taken) {
        pump(h);
        if (o->add.sent && c->resting == o) {
            c->resting = NULL;
        }
    }
    return taken;
}

/* Answers from memory what came on the turn before. */
static void on_soon(struct mu_timer *timer)
{
    struct mu_gateway_hold *h = MU_CONTAINER_OF(timer, struct mu_gateway_hold, soon);
    struct mu_list *it;

    while ((it = mu_list_pop(&h->hits)) != NULL) {
        struct mu_gateway_op *o = MU_CONTAINER_OF(it, struct mu_gateway_op, hit);
        struct mu_store_reply reply;
        int status = mu_cache_answer(&h->cache, now_of(h), &o->base.request, &reply);

        o->hit.next = NULL;
        if (o->client != NULL && o->client->resting == o) {
            o->client->resting = NULL;
        }
        if (status != MUSTER_EAGAIN) {
            answer(h, o, status, &reply);
        } else if (h->store == NULL || !h->cache.on || !join(h, o)) {
            h->events.pass(h, o);
        }
    }
    pump(h);
    h->events.turn_ended(h);
}

bool mu_gateway_hold_cancel(struct mu_gateway_hold *h, struct mu_gateway_op *o)
{
    bool here = true;

    if (o->hit.next != NULL) {
        mu_list_remove(&o->hit);
        o->hit.next = NULL;
        o->behind = NULL;
    } else if (o->ask.flight != NULL) {
        struct mu_cache_flight *empty = mu_cache_leave(&h->cache, &o->ask);

        if (empty != NULL) {
            mu_store_cancel(&((struct shared *)empty->impl)->op);
        }
    } else if (o->add.call != NULL) {
        here = mu_adds_leave(&h->adds, &o->add);
    } else {
        here = false;
    }
    if (here && o->client != NULL && o->client->resting == o) {
        o->client->resting = NULL;
    }
    return here;
}

/* --- life ------------------------------------------------------------------------------------- */

void mu_gateway_hold_init(struct mu_gateway_hold *h, struct mu_env *env, bool wanted,
                          const struct mu_gateway_hold_events *events)
{
    struct mu_cache_config config = mu_cache_config_defaults();

    h->env = env;
    h->events = *events;
    h->wanted = wanted;
    mu_env_entropy(env, &config.seed, sizeof(config.seed));
    mu_cache_init(&h->cache, &config);
    mu_adds_init(&h->adds, config.seed);
    mu_list_init(&h->hits);
    mu_list_init(&h->behind);
    mu_timer_init(&h->timer, on_timer);
    mu_timer_init(&h->soon, on_soon);
}

void mu_gateway_hold_fini(struct mu_gateway_hold *h)
{
    MU_ASSERT(h->calls == 0 && h->streams_in == NULL && !h->renewing && !h->lend_busy &&
              mu_list_empty(&h->hits) && mu_list_empty(&h->behind));
    mu_env_timer_arm(h->env, &h->timer, MU_MONO_NEVER);
    mu_env_timer_arm(h->env, &h->soon, MU_MONO_NEVER);
    mu_cache_fini(&h->cache);
    mu_adds_fini(&h->adds);
}

void mu_gateway_hold_open(struct mu_gateway_hold *h, struct mu_store *store,
                          struct mu_store *reader)
{
    h->store = store;
    h->reader = reader;
    start_stream(h);
    pump(h);
}

/* Ends what waits to be sent to a relay that there is not. */
static void pass_unsent(struct mu_gateway_hold *h)
{
    struct shared s = {.hold = h, .relayed = true, .op.status = MUSTER_ECONN};

    while ((s.flight = mu_cache_next_flight(&h->cache, now_of(h))) != NULL) {
        on_flight_done(&s);
    }
}

void mu_gateway_hold_read_from(struct mu_gateway_hold *h, struct mu_store *reader)
{
    if (h->streams_in != NULL && h->streams_in == h->store && reader != h->store) {
        mu_store_cancel(&h->stream); /* which ends all holds; the other store is about to close */
    }
    h->reader = reader;
    h->cache.on = false;
    mu_cache_clear(&h->cache);
    stop_lending(h);
    pass_unsent(h);
    start_stream(h);
    pump(h);
}

/* Ends what found no memory to be sent; the rest ends with the store. */
static void end_unsent(struct mu_gateway_hold *h)
{
    struct shared s = {.hold = h};

    s.op.status = mu_err(&s.op.errmsg, MUSTER_ECLOSED, "%s", muster_strerror(MUSTER_ECLOSED));
    while ((s.flight = mu_cache_next_flight(&h->cache, now_of(h))) != NULL) {
        on_flight_done(&s);
    }
    while ((s.call = mu_adds_next_call(&h->adds)) != NULL) {
        on_adds_done(&s);
    }
}

void mu_gateway_hold_leave(struct mu_gateway_hold *h)
{
    h->store = NULL;
    h->reader = NULL;
    h->cache.on = false;
    h->refused = false; /* the next one may be another server */
    mu_cache_clear(&h->cache);
    stop_lending(h);
    mu_env_timer_arm(h->env, &h->timer, MU_MONO_NEVER);
    let_pass(h, NULL);
    end_unsent(h);
}
