/*
 * The engine of a tcp store on the native wire: one session, linked over one connection after
 * another. An operation is one call; it survives a lost connection, because the session does.
 */
#include "service/store/engine.h"

#include <stdio.h>
#include <string.h>

#include "codec/store/msg.h"
#include "core/alloc.h"
#include "service/wire/rpc_client.h"

#define PARTS_MAX (16u << 20) /* values in one answer */

/* A submitted op. */
struct flight {
    struct mu_map_node by_id; /* native->calls, once it is a call */
    struct mu_list link;      /* native->unsent until then, native->sent afterwards */
    struct mu_store_op *op;
    uint64_t id;    /* 0: not a call yet */
    uint64_t order; /* of submission */
};

struct native_store {
    struct mu_store base;
    struct mu_rpc_client rpc;
    struct mu_store_engine_events events;
    struct mu_map calls;
    struct mu_list unsent;
    struct mu_list sent;
    struct flight *again; /* in `unsent`, the last one that was put back, or NULL */
    uint64_t orders;
    bool wire_keys;
    void (*trouble)(void *context, int status); /* see mu_store_tcp_config */
    void *context;
    struct mu_buf scratch;
};

/* --- ops -------------------------------------------------------------------------------------- */

static void unlink_flight(struct native_store *s, struct flight *f)
{
    if (s->again == f) {
        s->again = NULL;
    }
    mu_list_remove(&f->link);
}

static void end_flight(struct native_store *s, struct flight *f, int status, const char *text)
{
    struct mu_store_op *op = f->op;

    if (f->id != 0) {
        mu_map_remove(&s->calls, &f->by_id);
    }
    unlink_flight(s, f);
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

/* Ends an op that is out of time while the server cannot be reached. */
static void end_out_of_reach(struct native_store *s, struct flight *f)
{
    char text[MU_ERRMSG_CAP];

    (void)snprintf(text, sizeof(text), "timed out after %u ms: no connection to %.120s%s%s",
                   f->op->timeout_ms, s->rpc.addr, s->rpc.last_error != 0 ? ": " : "",
                   s->rpc.last_error != 0 ? muster_strerror(s->rpc.last_error) : "");
    end_flight(s, f, MUSTER_ETIMEDOUT, text);
}

/* The op is out of time: its call has no answer yet, or it never became a call. */
static void on_op_timeout(struct mu_timer *timer)
{
    struct mu_store_op *op = MU_CONTAINER_OF(timer, struct mu_store_op, timer);

    end_out_of_reach(MU_CONTAINER_OF(op->store, struct native_store, base), op->impl);
}

/* Encodes a request with its keys as they are on the wire. */
static int encode_request(struct native_store *s, const struct mu_store_request *q)
{
    struct mu_store_request wire = *q;
    struct mu_span *keys;
    size_t bytes = 0;
    uint8_t *at;
    int err;

    if (s->wire_keys) {
        mu_buf_reset(&s->scratch);
        return mu_store_request_encode(&s->scratch, q);
    }
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

/* Sends the op as a call. MUSTER_EAGAIN: later. Other errors end it. */
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
    int err = op->method != NULL ? 0 : encode_request(s, &op->request);

    if (err == 0) {
        err = mu_rpc_client_call(
            &s->rpc,
            mu_span_str(op->method != NULL ? op->method
                                           : mu_store_verb_facts(op->request.verb)->method),
            op->method != NULL ? op->payload : mu_buf_span(&s->scratch), timeout_ms, &id);
    }
    mu_buf_trim(&s->scratch, 1 << 20);
    if (err != 0) {
        return err;
    }
    f->id = id;
    if (mu_map_insert(&s->calls, &f->by_id, mu_span(&f->id, sizeof(f->id))) != 0) {
        f->id = 0;
        (void)mu_rpc_client_cancel(&s->rpc, id);
        return MUSTER_ENOMEM;
    }
    unlink_flight(s, f);
    mu_list_push(&s->sent, &f->link);
    mu_env_timer_arm(s->base.env, &op->timer, MU_MONO_NEVER); /* the call has a deadline now */
    return 0;
}

/* Not while there is no connection: what was never sent has not happened, even if the server that
 * is there next is a new one. */
static void send_unsent(struct native_store *s)
{
    while (!mu_list_empty(&s->unsent) && mu_rpc_client_linked(&s->rpc)) {
        struct flight *f = MU_CONTAINER_OF(s->unsent.next, struct flight, link);
        int err = send_flight(s, f);

        if (err == MUSTER_EAGAIN) {
            return;
        }
        if (err != 0) {
            end_flight(s, f, err,
                       err == MUSTER_ELIMIT ? "keys and values are longer than the server takes in "
                                              "one message: see its option --max-value"
                                            : NULL);
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
                (void)mu_rpc_client_cancel(&s->rpc, f->id);
            }
            end_flight(s, f, status, text);
        }
    }
}

/* --- answers ---------------------------------------------------------------------------------- */

/* Takes the slash off the keys in a list; keys without one are not users' keys. */
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

/* Puts the op before those that were submitted after it. Most often, ops are put back in order. */
static void put_back(struct native_store *s, struct flight *f)
{
    struct mu_list *at = &s->unsent;

    mu_list_remove(&f->link);
    if (s->again != NULL && s->again->order < f->order) {
        at = &s->again->link;
    }
    while (at->next != &s->unsent &&
           MU_CONTAINER_OF(at->next, struct flight, link)->order < f->order) {
        at = at->next;
    }
    mu_list_push(at->next, &f->link);
    s->again = f;
}

/* The outcome of a call is unknown, because the server has forgotten the session. */
static void on_session_lost(struct native_store *s, struct flight *f)
{
    char text[MU_ERRMSG_CAP];

    if (mu_store_verb_is_read(f->op->request.verb)) {
        mu_map_remove(&s->calls, &f->by_id);
        f->id = 0;
        put_back(s, f);
        mu_env_timer_arm(s->base.env, &f->op->timer, f->op->deadline);
        return;
    }
    (void)snprintf(text, sizeof(text),
                   "%.120s was restarted or forgot us while %s was under way: the operation may or "
                   "may not have happened",
                   s->rpc.addr, mu_store_verb_facts(f->op->request.verb)->name);
    end_flight(s, f, MUSTER_ESESSION, text);
}

static void on_reply(void *context, uint64_t id, int status, struct mu_span payload)
{
    struct native_store *s = context;
    struct flight *f = find_flight(s, id);
    struct mu_span *parts = NULL;
    char text[MU_ERRMSG_CAP];
    int err;

    if (f == NULL) {
        return; /* it was ended here before */
    }
    if (status == MUSTER_ESESSION) {
        on_session_lost(s, f);
        return;
    }
    if (status == MUSTER_ETIMEDOUT && s->rpc.last_error != 0) {
        end_out_of_reach(s, f);
        return;
    }
    if (status != 0) {
        (void)snprintf(text, sizeof(text), "%.*s",
                       (int)(payload.len > MU_ERRMSG_CAP ? MU_ERRMSG_CAP : payload.len),
                       (const char *)payload.data);
        end_flight(s, f, status, payload.len != 0 ? text : NULL);
        return;
    }
    if (f->op->method != NULL) {
        f->op->reply = (struct mu_store_reply){.values = &payload, .value_count = 1};
        end_flight(s, f, 0, NULL);
        return;
    }
    err = mu_store_reply_decode(payload, PARTS_MAX, &f->op->reply, &parts);
    if (err == 0 && f->op->request.verb == MU_STORE_LIST_KEYS && !s->wire_keys) {
        f->op->reply.value_count = strip_slashes(parts, f->op->reply.value_count);
        f->op->reply.number = (int64_t)f->op->reply.value_count;
    }
    end_flight(s, f, err, err == 0 ? NULL : "the server's answer is malformed");
    mu_free(parts);
}

static void on_item(void *context, uint64_t id, struct mu_span payload)
{
    struct native_store *s = context;
    struct flight *f = find_flight(s, id);
    struct mu_change change;

    if (f == NULL) {
        /* The op has ended, but there was no memory to tell the server: tells it now. */
        (void)mu_rpc_client_cancel(&s->rpc, id);
        return;
    }
    if (f->op->item != NULL) {
        f->op->item(f->op, payload);
        return;
    }
    if (f->op->change != NULL && mu_store_change_decode(payload, &change) == 0 &&
        (s->wire_keys || strip_slashes(&change.key, 1) == 1)) {
        f->op->change(f->op, &change);
    }
}

/* --- the session ------------------------------------------------------------------------------ */

static void on_ready(void *context)
{
    struct native_store *s = context;

    s->events.ready(s->events.context, MU_STORE_TCP_MUSTER);
}

static void on_mismatch(void *context, bool silent)
{
    struct native_store *s = context;

    s->events.mismatch(s->events.context, silent);
}

static void on_failed(void *context, int status, const char *text)
{
    struct native_store *s = context;

    s->events.failed(s->events.context, status, text);
}

/* A server that hangs up may be a store of PyTorch's, which is tried next. */
static void on_trouble(void *context, int status, bool was_open)
{
    struct native_store *s = context;

    if (s->trouble != NULL && !was_open) {
        s->trouble(s->context, status);
    }
}

static void on_gave_up(void *context, int status, const char *text)
{
    end_all(context, status, text);
}

static void on_turn_ended(void *context)
{
    send_unsent(context);
}

static void on_closed(void *context)
{
    struct native_store *s = context;

    end_all(s, MUSTER_ECLOSED, NULL);
    if (s->base.closed != NULL) {
        s->base.closed(s->base.context);
    }
    mu_map_fini(&s->calls);
    mu_buf_fini(&s->scratch);
    mu_free(s);
}

/* --- the store -------------------------------------------------------------------------------- */

static void native_submit(struct mu_store *store, struct mu_store_op *op)
{
    struct native_store *s = MU_CONTAINER_OF(store, struct native_store, base);
    struct flight *f = mu_store_alloc(store, op, 0, sizeof(*f));

    if (f == NULL) {
        return;
    }
    f->op = op;
    f->order = s->orders++;
    mu_store_begin(store, op, f, on_op_timeout);
    mu_list_push(&s->unsent, &f->link);
    mu_rpc_client_need(&s->rpc);
    mu_rpc_client_run_soon(&s->rpc);
}

static void native_cancel(struct mu_store *store, struct mu_store_op *op)
{
    struct native_store *s = MU_CONTAINER_OF(store, struct native_store, base);
    struct flight *f = op->impl;

    if (f == NULL) {
        return;
    }
    if (f->id != 0 && mu_rpc_client_cancel(&s->rpc, f->id) != MUSTER_ENOMEM) {
        return; /* its reply follows */
    }
    if (f->id != 0) {
        mu_map_remove(&s->calls, &f->by_id);
    }
    unlink_flight(s, f);
    mu_env_timer_arm(store->env, &op->timer, MU_MONO_NEVER);
    mu_free(f);
    mu_store_fail_later(store, op, MUSTER_ECANCELED);
}

static void native_close(struct mu_store *store)
{
    mu_rpc_client_close(&MU_CONTAINER_OF(store, struct native_store, base)->rpc);
}

static const struct mu_store_kind native_kind = {
    .submit = native_submit,
    .cancel = native_cancel,
    .close = native_close,
};

int mu_store_native_new(struct mu_env *env, const struct mu_store_tcp_config *config,
                        const struct mu_store_engine_events *events, struct mu_store **ret_store)
{
    bool told = config->protocol == MU_STORE_TCP_MUSTER;
    struct mu_rpc_client_config rpc = {
        .addr = config->addr,
        .name = config->name,
        .connect_ms = config->connect_ms,
        .reconnect_ms = config->reconnect_ms,
        .probe_ms = config->probe_ms * (told ? MU_STORE_TOLD_PATIENCE : 1),
        .greetings = told ? MU_STORE_TOLD_GREETINGS : 1,
        .name_ms = config->name_ms,
        .beat_ms = config->beat_ms,
        .dead_ms = config->dead_ms,
    };
    struct native_store *s = mu_calloc(1, sizeof(*s));
    struct mu_rpc_client_events rpc_events = {
        .ready = on_ready,
        .mismatch = on_mismatch,
        .failed = on_failed,
        .trouble = on_trouble,
        .gave_up = on_gave_up,
        .reply = on_reply,
        .item = on_item,
        .turn_ended = on_turn_ended,
        .closed = on_closed,
        .context = s,
    };
    uint64_t seed;
    int err;

    if (s == NULL) {
        return MUSTER_ENOMEM;
    }
    s->base.kind = &native_kind;
    s->base.env = env;
    s->events = *events;
    s->wire_keys = config->wire_keys;
    s->trouble = config->trouble;
    s->context = config->context;
    mu_env_entropy(env, &seed, sizeof(seed));
    mu_map_init(&s->calls, seed);
    mu_list_init(&s->unsent);
    mu_list_init(&s->sent);
    mu_buf_init(&s->scratch, SIZE_MAX);
    err = mu_rpc_client_init(&s->rpc, env, &rpc, &rpc_events);
    if (err != 0) {
        mu_free(s);
        return err;
    }
    *ret_store = &s->base;
    return 0;
}
