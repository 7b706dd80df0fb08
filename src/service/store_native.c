/*
 * The engine of a tcp store on the native wire: one session, linked over one connection after
 * another. An operation is one call; it survives a lost connection, because the session does.
 */
#include "service/store_engine.h"

#include <stdio.h>
#include <string.h>

#include "codec/store_msg.h"
#include "core/addr.h"
#include "core/alloc.h"
#include "core/assert.h"
#include "proto/rpc.h"
#include "service/log.h"

#define PARTS_MAX  (16u << 20) /* values in one answer */
#define STARVED_MS 10          /* until something that found no memory is tried again */

enum link_state {
    LINK_NONE = 0, /* waiting for the time to dial again */
    LINK_DIALLING,
    LINK_UP,      /* connected; greeted once mu_rpc_linked() */
    LINK_CLOSING, /* ours to close, `closed` will come */
};

/* A submitted op. */
struct flight {
    struct mu_map_node by_id; /* native->calls, once it is a call */
    struct mu_list link;      /* native->unsent until then, native->sent afterwards */
    struct mu_store_op *op;
    uint64_t id; /* 0: not a call yet */
};

struct native_store {
    struct mu_store base;
    struct mu_store_tcp_config config;
    struct mu_store_engine_events events;
    struct mu_rpc rpc;
    struct mu_conn conn;
    enum link_state link;
    bool blocked; /* the environment takes no more output */
    struct mu_timer timer;
    mu_mono_t dial_at;    /* when to dial again */
    mu_mono_t probe_at;   /* when a silent peer is no muster store */
    mu_mono_t give_up_at; /* when a missing connection fails what waits for it */
    uint32_t attempts;
    uint32_t greetings; /* that ended without an answer */
    int last_error;     /* of dialling or of the connection */
    bool ready;         /* was welcomed once */
    bool closing;
    bool reported; /* `mismatch` or `failed` was called: nothing more is done */
    bool starved;  /* the machine found no memory for what is due: not at once again */
    struct mu_map calls;
    struct mu_list unsent;
    struct mu_list sent;
    struct mu_buf scratch;
    char addr[MU_ADDR_HOST_MAX + 16];
};

static void pump(struct native_store *s);

/* --- ops -------------------------------------------------------------------------------------- */

static void end_flight(struct native_store *s, struct flight *f, int status, const char *text)
{
    struct mu_store_op *op = f->op;

    if (f->id != 0) {
        mu_map_remove(&s->calls, &f->by_id);
    }
    mu_list_remove(&f->link);
    mu_env_timer_arm(s->base.env, &op->timer, MU_MONO_NEVER);
    op->impl = NULL;
    mu_free(f);
    mu_store_finish(op, status, text);
}

static struct flight *find_flight(struct native_store *s, uint64_t id)
{
    struct mu_map_node *node = mu_map_find(&s->calls, mu_span(&id, sizeof(id)));

    return node == NULL ? NULL : MU_CONTAINER_OF(node, struct flight, by_id);
}

/* An op whose call has no answer yet is out of time, and so is one that never became a call. */
static void on_op_timeout(struct mu_timer *timer)
{
    struct mu_store_op *op = MU_CONTAINER_OF(timer, struct mu_store_op, timer);
    struct flight *f = op->impl;
    struct native_store *s = MU_CONTAINER_OF(op->store, struct native_store, base);
    char text[MU_ERRMSG_CAP];

    (void)snprintf(text, sizeof(text), "timed out after %u ms: no connection to %.120s%s%s",
                   op->timeout_ms, s->addr, s->last_error != 0 ? ": " : "",
                   s->last_error != 0 ? muster_strerror(s->last_error) : "");
    end_flight(s, f, MUSTER_ETIMEDOUT, text);
}

/* Encodes a request with its keys as they are on the wire. */
static int encode_request(struct native_store *s, const struct mu_store_request *q)
{
    struct mu_store_request wire = *q;
    struct mu_span *keys;
    size_t bytes = 0;
    uint8_t *at;
    int err;

    for (size_t i = 0; i < q->key_count; i++) {
        bytes += q->keys[i].len + 1;
    }
    keys = mu_malloc(q->key_count * sizeof(*keys) + bytes);
    if (keys == NULL) {
        return MUSTER_ENOMEM;
    }
    at = (uint8_t *)(keys + q->key_count);
    for (size_t i = 0; i < q->key_count; i++) {
        size_t slash = mu_store_key_is_bare(q->keys[i]) ? 0 : 1;

        *at = '/';
        if (q->keys[i].len != 0) {
            memcpy(at + slash, q->keys[i].data, q->keys[i].len);
        }
        keys[i] = mu_span(at, slash + q->keys[i].len);
        at += slash + q->keys[i].len;
    }
    wire.keys = keys;
    mu_buf_reset(&s->scratch);
    err = mu_store_request_encode(&s->scratch, &wire);
    mu_free(keys);
    return err;
}

/* Makes a call of it. MUSTER_EAGAIN: later. Other errors end it. */
static int send_flight(struct native_store *s, struct flight *f)
{
    struct mu_store_op *op = f->op;
    struct mu_now now = mu_env_now(s->base.env);
    uint64_t left = mu_mono_until_ms(op->deadline, now.mono);
    uint32_t timeout_ms = op->timeout_ms == 0      ? 0
                          : left == 0              ? 1
                          : left > UINT32_MAX / 2u ? UINT32_MAX / 2u
                                                   : (uint32_t)left;
    uint64_t id = 0;
    int err = encode_request(s, &op->request);

    if (err == 0) {
        err = mu_rpc_call(&s->rpc, now, mu_span_str(mu_store_method(op->request.verb)),
                          mu_buf_span(&s->scratch), timeout_ms, 0, &id);
    }
    mu_buf_trim(&s->scratch, 1 << 20);
    if (err != 0) {
        return err;
    }
    f->id = id;
    if (mu_map_insert(&s->calls, &f->by_id, mu_span(&f->id, sizeof(f->id))) != 0) {
        f->id = 0;
        (void)mu_rpc_cancel(&s->rpc, now, id);
        return MUSTER_ENOMEM;
    }
    mu_list_remove(&f->link);
    mu_list_push(&s->sent, &f->link);
    mu_env_timer_arm(s->base.env, &op->timer, MU_MONO_NEVER); /* The call has a deadline now. */
    return 0;
}

static void send_unsent(struct native_store *s)
{
    while (s->ready && !mu_list_empty(&s->unsent)) {
        struct flight *f = MU_CONTAINER_OF(s->unsent.next, struct flight, link);
        int err = send_flight(s, f);

        if (err == MUSTER_EAGAIN) {
            return;
        }
        if (err != 0) {
            end_flight(s, f, err, NULL);
        }
    }
}

static void end_all(struct native_store *s, int status, const char *text)
{
    struct mu_list *lists[] = {&s->unsent, &s->sent};

    for (size_t i = 0; i < 2; i++) {
        while (!mu_list_empty(lists[i])) {
            struct flight *f = MU_CONTAINER_OF(lists[i]->next, struct flight, link);

            if (f->id != 0) {
                (void)mu_rpc_cancel(&s->rpc, mu_env_now(s->base.env), f->id);
            }
            end_flight(s, f, status, text);
        }
    }
}

/* --- answers ---------------------------------------------------------------------------------- */

/* Keys in a list lose their slash; those without one are not the users' own. */
static size_t strip_slashes(struct mu_span *keys, size_t count)
{
    size_t kept = 0;

    for (size_t i = 0; i < count; i++) {
        if (keys[i].len != 0 && keys[i].data[0] == '/') {
            keys[kept++] = mu_span_skip(keys[i], 1);
        }
    }
    return kept;
}

static void on_reply(struct native_store *s, const struct mu_rpc_event *event)
{
    struct flight *f = find_flight(s, event->id);
    struct mu_span *parts = NULL;
    char text[MU_ERRMSG_CAP];
    int err;

    if (f == NULL) {
        return; /* It was ended here before. */
    }
    if (event->status == MUSTER_ESESSION && mu_store_verb_is_read(f->op->request.verb)) {
        mu_map_remove(&s->calls, &f->by_id);
        f->id = 0;
        mu_list_remove(&f->link);
        mu_list_push(&s->unsent, &f->link);
        mu_env_timer_arm(s->base.env, &f->op->timer, f->op->deadline);
        return;
    }
    if (event->status == MUSTER_ESESSION) {
        (void)snprintf(text, sizeof(text),
                       "%.120s was restarted or forgot us while %s was under way: "
                       "it may or may not have happened",
                       s->addr, mu_store_verb_name(f->op->request.verb));
        end_flight(s, f, MUSTER_ESESSION, text);
        return;
    }
    if (event->status != 0) {
        (void)snprintf(
            text, sizeof(text), "%.*s",
            (int)(event->payload.len > MU_ERRMSG_CAP ? MU_ERRMSG_CAP : event->payload.len),
            (const char *)event->payload.data);
        end_flight(s, f, event->status, event->payload.len != 0 ? text : NULL);
        return;
    }
    err = mu_store_reply_decode(event->payload, PARTS_MAX, &f->op->reply, &parts);
    if (err == 0 && f->op->request.verb == MU_STORE_LIST_KEYS) {
        f->op->reply.value_count = strip_slashes(parts, f->op->reply.value_count);
        f->op->reply.number = (int64_t)f->op->reply.value_count;
    }
    end_flight(s, f, err, err == 0 ? NULL : "the server's answer is malformed");
    mu_free(parts);
}

static void on_item(struct native_store *s, const struct mu_rpc_event *event)
{
    struct flight *f = find_flight(s, event->id);
    struct mu_change change;

    (void)mu_rpc_consumed(&s->rpc, mu_env_now(s->base.env), event->id, event->payload.len);
    if (f == NULL) {
        /* Nobody waits for it, and the server has not heard: there was no memory to say so. */
        (void)mu_rpc_cancel(&s->rpc, mu_env_now(s->base.env), event->id);
        return;
    }
    if (f->op->change == NULL || mu_store_change_decode(event->payload, &change) != 0) {
        return;
    }
    if (strip_slashes(&change.key, 1) == 1) {
        f->op->change(f->op, &change);
    }
}

/* --- the connection --------------------------------------------------------------------------- */

static bool is_told(const struct native_store *s)
{
    return s->config.protocol == MU_STORE_TCP_MUSTER;
}

/* Never greeted, and never to be: tells the owner once, who will close this engine. */
static void report(struct native_store *s, bool mismatch, bool silent, int status, const char *text)
{
    if (s->reported || s->ready) {
        return;
    }
    s->reported = true;
    if (mismatch) {
        s->events.mismatch(s->events.context, silent);
    } else {
        s->events.failed(s->events.context, status, text);
    }
}

static void close_link(struct native_store *s)
{
    if (s->link == LINK_UP || s->link == LINK_DIALLING) {
        mu_rpc_unlinked(&s->rpc, mu_env_now(s->base.env));
        s->link = LINK_CLOSING;
        mu_env_close(s->base.env, &s->conn, true);
    }
}

static void on_welcomed(struct native_store *s)
{
    s->attempts = 0;
    s->last_error = 0;
    s->give_up_at = MU_MONO_NEVER;
    s->probe_at = MU_MONO_NEVER;
    if (!s->ready) {
        s->ready = true;
        s->events.ready(s->events.context);
    }
}

static void handle_event(struct native_store *s, const struct mu_rpc_event *event)
{
    char text[MU_ERRMSG_CAP];

    switch (event->type) {
    case MU_RPC_EV_WELCOMED:
        on_welcomed(s);
        break;
    case MU_RPC_EV_REPLY:
        on_reply(s, event);
        break;
    case MU_RPC_EV_ITEM:
        on_item(s, event);
        break;
    case MU_RPC_EV_REFUSED:
        (void)snprintf(text, sizeof(text), "%.80s refused the connection: %.*s", s->addr,
                       (int)(event->payload.len > 120 ? 120 : event->payload.len),
                       (const char *)event->payload.data);
        report(s, false, false, MUSTER_EREFUSED, text);
        close_link(s);
        break;
    case MU_RPC_EV_LINK_DEAD:
        s->last_error = MUSTER_ETIMEDOUT;
        close_link(s);
        break;
    case MU_RPC_EV_CREDIT: /* send_unsent() follows in the pump */
    case MU_RPC_EV_DRAIN:
    case MU_RPC_EV_BYE:
    case MU_RPC_EV_CALL:
    case MU_RPC_EV_END:
    case MU_RPC_EV_CANCEL:
        break;
    }
}

static void flush(struct native_store *s)
{
    while (s->link == LINK_UP && !s->blocked) {
        struct mu_span out = mu_rpc_output(&s->rpc);
        size_t taken = 0;

        if (out.len == 0) {
            return;
        }
        mu_env_send(s->base.env, &s->conn, out, &taken);
        s->blocked = taken < out.len;
        mu_rpc_sent(&s->rpc, taken);
    }
}

static void finish_close(struct native_store *s)
{
    mu_env_timer_arm(s->base.env, &s->timer, MU_MONO_NEVER);
    if (s->base.closed != NULL) {
        s->base.closed(s->base.context);
    }
    mu_rpc_fini(&s->rpc);
    mu_map_fini(&s->calls);
    mu_buf_fini(&s->scratch);
    mu_free(s);
}

/* After anything happened. May free the store. */
static void pump(struct native_store *s)
{
    struct mu_rpc_event event;
    mu_mono_t at;

    while (mu_rpc_next_event(&s->rpc, &event)) {
        handle_event(s, &event);
    }
    send_unsent(s);
    flush(s);
    if (s->closing && s->link == LINK_NONE) {
        end_all(s, MUSTER_ECLOSED, NULL);
        finish_close(s);
        return;
    }
    if (s->closing && s->link == LINK_UP && mu_rpc_output(&s->rpc).len == 0) {
        mu_rpc_unlinked(&s->rpc, mu_env_now(s->base.env));
        s->link = LINK_CLOSING;
        mu_env_close(s->base.env, &s->conn, false);
    }
    at = mu_rpc_deadline(&s->rpc);
    if (s->starved) {
        mu_mono_t later = mu_mono_add_ms(mu_env_now(s->base.env).mono, STARVED_MS);

        at = mu_mono_before(at, later) ? later : at;
    }
    at = mu_mono_min(at, mu_mono_min(s->dial_at, s->give_up_at));
    mu_env_timer_arm(s->base.env, &s->timer, mu_mono_min(at, s->probe_at));
}

static int init_session(struct native_store *s)
{
    struct mu_rpc_config config = mu_rpc_config_defaults();

    config.role = MU_RPC_CLIENT;
    config.name = s->config.name;
    mu_env_entropy(s->base.env, config.session, sizeof(config.session));
    mu_env_entropy(s->base.env, &config.seed, sizeof(config.seed));
    return mu_rpc_init(&s->rpc, &config);
}

/* The server broke the protocol: this session is over, the next connection begins another. */
static void abandon_session(struct native_store *s, int err)
{
    struct mu_rpc_event event;
    int again;

    mu_log(MUSTER_LOG_WARN, "STORE-SERVER-VIOLATION", "server=%s why=\"%s\"", s->addr,
           mu_rpc_errmsg(&s->rpc));
    s->last_error = err;
    report(s, true, false, err, NULL);
    close_link(s);
    while (mu_rpc_next_event(&s->rpc, &event)) {
        handle_event(s, &event);
    }
    mu_rpc_fini(&s->rpc);
    again = init_session(s);
    MU_ASSERT(again == 0); /* It allocates nothing, and its config was good before. */
}

static size_t on_data(struct mu_conn *conn, struct mu_span in)
{
    struct native_store *s = MU_CONTAINER_OF(conn, struct native_store, conn);
    size_t done = 0;

    while (done < in.len && s->link == LINK_UP) {
        struct mu_rpc_event event;
        size_t used = 0;
        int err = mu_rpc_recv(&s->rpc, mu_env_now(s->base.env), mu_span_skip(in, done), &used);

        done += used;
        if (err == MUSTER_ENOMEM) {
            /* The session is whole: what was not taken comes again on the next connection. */
            s->last_error = err;
            close_link(s);
            break;
        }
        if (err != 0) {
            abandon_session(s, err);
            break;
        }
        while (mu_rpc_next_event(&s->rpc, &event)) {
            handle_event(s, &event);
        }
    }
    pump(s);
    return in.len;
}

static void on_open(struct mu_conn *conn)
{
    struct native_store *s = MU_CONTAINER_OF(conn, struct native_store, conn);
    struct mu_now now = mu_env_now(s->base.env);

    s->link = LINK_UP;
    s->blocked = false;
    if (!s->ready) {
        s->probe_at = mu_mono_add_ms(now.mono, (uint64_t)s->config.probe_ms *
                                                   (is_told(s) ? MU_STORE_TOLD_PATIENCE : 1));
    }
    if (mu_rpc_dialled(&s->rpc, now) != 0) {
        close_link(s);
    }
    pump(s);
}

static void on_eof(struct mu_conn *conn)
{
    struct native_store *s = MU_CONTAINER_OF(conn, struct native_store, conn);

    s->last_error = MUSTER_ECLOSED;
    close_link(s);
    pump(s);
}

static void on_writable(struct mu_conn *conn)
{
    struct native_store *s = MU_CONTAINER_OF(conn, struct native_store, conn);

    s->blocked = false;
    pump(s);
}

static void on_closed(struct mu_conn *conn, int status)
{
    struct native_store *s = MU_CONTAINER_OF(conn, struct native_store, conn);
    struct mu_now now = mu_env_now(s->base.env);
    bool was_open = s->link == LINK_UP || s->link == LINK_CLOSING;

    if (status != 0) {
        s->last_error = status;
    }
    if (s->link == LINK_UP) {
        mu_rpc_unlinked(&s->rpc, now);
    }
    s->link = LINK_NONE;
    s->probe_at = MU_MONO_NEVER;
    if (!s->ready && was_open && !s->closing &&
        ++s->greetings >= (is_told(s) ? MU_STORE_TOLD_GREETINGS : 1)) {
        report(s, true, false, 0, NULL);
    }
    if (s->give_up_at.ns == MU_MONO_NEVER.ns) {
        s->give_up_at = mu_mono_add_ms(now.mono, s->config.reconnect_ms);
    }
    s->dial_at = s->closing || s->reported
                     ? MU_MONO_NEVER
                     : mu_mono_add_ms(now.mono, mu_store_backoff_ms(&s->attempts, s->base.env));
    pump(s);
}

static const struct mu_conn_events conn_events = {
    .open = on_open,
    .data = on_data,
    .eof = on_eof,
    .writable = on_writable,
    .closed = on_closed,
};

static void dial(struct native_store *s)
{
    int err;

    s->dial_at = MU_MONO_NEVER;
    s->conn.on = &conn_events;
    err = mu_env_dial(s->base.env, &s->conn, &s->config.addr);
    if (err != 0) {
        s->last_error = err;
        s->dial_at = mu_mono_add_ms(mu_env_now(s->base.env).mono,
                                    mu_store_backoff_ms(&s->attempts, s->base.env));
    } else {
        s->link = LINK_DIALLING;
    }
}

static void give_up(struct native_store *s)
{
    char text[MU_ERRMSG_CAP];

    s->give_up_at = MU_MONO_NEVER;
    if (!s->ready) {
        (void)snprintf(text, sizeof(text),
                       "cannot connect to %.120s: %s (tried for %u ms); is a server running there?",
                       s->addr,
                       muster_strerror(s->last_error != 0 ? s->last_error : MUSTER_ETIMEDOUT),
                       s->config.connect_ms);
        report(s, false, false, MUSTER_ECONN, text);
        return;
    }
    (void)snprintf(text, sizeof(text), "lost the connection to %.120s: %s (tried again for %u ms)",
                   s->addr, muster_strerror(s->last_error != 0 ? s->last_error : MUSTER_ECLOSED),
                   s->config.reconnect_ms);
    end_all(s, MUSTER_ECONN, text);
}

static void on_timer(struct mu_timer *timer)
{
    struct native_store *s = MU_CONTAINER_OF(timer, struct native_store, timer);
    struct mu_now now = mu_env_now(s->base.env);

    s->starved = mu_rpc_tick(&s->rpc, now) == MUSTER_ENOMEM;
    if (mu_mono_reached(s->give_up_at, now.mono)) {
        give_up(s);
    }
    if (mu_mono_reached(s->probe_at, now.mono)) {
        s->probe_at = MU_MONO_NEVER;
        report(s, true, true, 0, NULL);
    }
    if (mu_mono_reached(s->dial_at, now.mono) && s->link == LINK_NONE && !s->closing &&
        !s->reported) {
        dial(s);
    }
    pump(s);
}

/* --- the store -------------------------------------------------------------------------------- */

static void native_submit(struct mu_store *store, struct mu_store_op *op)
{
    struct native_store *s = MU_CONTAINER_OF(store, struct native_store, base);
    struct flight *f = mu_calloc(1, sizeof(*f));
    mu_mono_t now = mu_env_now(store->env).mono;

    if (f == NULL) {
        mu_store_fail_later(store, op, MUSTER_ENOMEM);
        return;
    }
    f->op = op;
    op->impl = f;
    op->deadline = mu_store_deadline(store, op);
    mu_timer_init(&op->timer, on_op_timeout);
    mu_env_timer_arm(store->env, &op->timer, op->deadline);
    mu_list_push(&s->unsent, &f->link);
    if (s->link != LINK_UP && s->ready && s->give_up_at.ns == MU_MONO_NEVER.ns) {
        s->give_up_at = mu_mono_add_ms(now, s->config.reconnect_ms);
    }
    /* Sent on the next turn, with whatever else is submitted on this one. */
    mu_env_timer_arm(store->env, &s->timer, now);
}

static void native_cancel(struct mu_store *store, struct mu_store_op *op)
{
    struct native_store *s = MU_CONTAINER_OF(store, struct native_store, base);
    struct flight *f = op->impl;

    if (f == NULL) {
        return;
    }
    if (f->id != 0 && mu_rpc_cancel(&s->rpc, mu_env_now(store->env), f->id) != MUSTER_ENOMEM) {
        mu_env_timer_arm(store->env, &s->timer, mu_env_now(store->env).mono);
        return; /* Its reply event follows. */
    }
    if (f->id != 0) {
        mu_map_remove(&s->calls, &f->by_id);
    }
    mu_list_remove(&f->link);
    mu_env_timer_arm(store->env, &op->timer, MU_MONO_NEVER);
    mu_free(f);
    mu_store_fail_later(store, op, MUSTER_ECANCELED);
}

static void native_close(struct mu_store *store)
{
    struct native_store *s = MU_CONTAINER_OF(store, struct native_store, base);

    s->closing = true;
    s->dial_at = s->give_up_at = s->probe_at = MU_MONO_NEVER;
    (void)mu_rpc_close(&s->rpc, mu_env_now(store->env));
    if (s->link == LINK_DIALLING || (s->link == LINK_UP && !s->ready)) {
        close_link(s);
    }
    mu_env_timer_arm(store->env, &s->timer, mu_env_now(store->env).mono);
}

static const struct mu_store_kind native_kind = {
    .submit = native_submit,
    .cancel = native_cancel,
    .close = native_close,
};

int mu_store_native_new(struct mu_env *env, const struct mu_store_tcp_config *config,
                        const struct mu_store_engine_events *events, struct mu_store **ret_store)
{
    struct native_store *s = mu_calloc(1, sizeof(*s));
    mu_mono_t now = mu_env_now(env).mono;
    uint64_t seed;

    if (s == NULL) {
        return MUSTER_ENOMEM;
    }
    s->base.kind = &native_kind;
    s->base.env = env;
    s->config = *config;
    s->events = *events;
    if (init_session(s) != 0) {
        mu_free(s);
        return MUSTER_ENOMEM;
    }
    (void)mu_addr_format(&config->addr, s->addr, sizeof(s->addr));
    mu_env_entropy(env, &seed, sizeof(seed));
    mu_map_init(&s->calls, seed);
    mu_list_init(&s->unsent);
    mu_list_init(&s->sent);
    mu_buf_init(&s->scratch, SIZE_MAX);
    mu_timer_init(&s->timer, on_timer);
    s->dial_at = now;
    s->probe_at = MU_MONO_NEVER;
    s->give_up_at =
        config->connect_ms == 0 ? MU_MONO_NEVER : mu_mono_add_ms(now, config->connect_ms);
    mu_env_timer_arm(env, &s->timer, now);
    *ret_store = &s->base;
    return 0;
}
