/*
 * A server with a backing: requests of both wires go to gateway.h and come back as answers. On
 * either wire keys have a slash in front, except the worker count's; in etcd they have no slash, so
 * that clients of etcd:// stores share them. In another server they are unchanged.
 */
#include "service/server/server_internal.h"

#include <stdio.h>
#include <string.h>

#include "codec/store/torch_wire.h"
#include "core/alloc.h"
#include "core/assert.h"

#define NAMES_MAX ((size_t)1 << 30)

/* The state of a torch connection. It outlives the connection while requests of it are under
 * way. */
struct mu_store_peer {
    struct mu_backing_client client;
    struct mu_store_server *server;
    struct mu_store_conn *conn; /* NULL: gone */
    struct mu_list ops;         /* struct torch_op */
    struct mu_gateway_client gate;
};

struct torch_op {
    struct mu_gateway_op base;
    struct mu_store_peer *peer;
    struct mu_torch_request *request;
    struct mu_list link;
    bool dropped; /* the connection's machine does not want an answer */
};

/* A call of the native wire. */
struct native_op {
    struct mu_gateway_op base;
    struct mu_store_server *server;
    struct mu_store_exec *exec; /* NULL: the answer is not wanted */
    struct mu_span *parts;      /* of the request */
};

/* --- names ------------------------------------------------------------------------------------ */

/*
 * Turns a key of a request into etcd's form: without its slash. A key that has no slash on the wire
 * is marked, and so is the rare one that would look marked. Both kinds of request have room for the
 * mark before the key, in a copy that is ours.
 */
#define MARK_BARE  'b'
#define MARK_SLASH 's'

static void to_etcd(struct mu_span *key)
{
    bool slash = key->len != 0 && key->data[0] == '/';
    uint8_t *at = (uint8_t *)(uintptr_t)key->data;

    if (slash && (key->len == 1 || key->data[1] != '\0')) {
        *key = mu_span_skip(*key, 1);
        return;
    }
    if (slash) {
        at++;
    }
    at[-1] = slash ? MARK_SLASH : MARK_BARE;
    at[-2] = '\0';
    *key = mu_span(at - 2, key->len + 2 - (slash ? 1 : 0));
}

static bool is_remote(const struct mu_store_server *s)
{
    return s->backing->kind->remote;
}

/* Appends the wire's form of a key. */
static int append_name(struct mu_buf *out, struct mu_span key)
{
    bool marked = key.len >= 2 && key.data[0] == '\0';
    int err = mu_buf_reserve(out, key.len + 1);

    if (err == 0) {
        if (!marked || key.data[1] != MARK_BARE) {
            mu_buf_put_u8(out, '/');
        }
        mu_buf_put(out, mu_span_skip(key, marked ? 2 : 0));
    }
    return err;
}

/* Turns the keys in an answer into the wire's form. The caller frees `values` and `names`.
 * MUSTER_ENOMEM. */
static int name_keys(const struct mu_store_reply *reply, struct mu_buf *names,
                     struct mu_span **ret_values)
{
    struct mu_span *values = mu_calloc(reply->value_count + 1, sizeof(*values));
    struct mu_span rest;
    int err = values == NULL ? MUSTER_ENOMEM : 0;

    for (size_t i = 0; err == 0 && i < reply->value_count; i++) {
        size_t from = names->len;

        err = append_name(names, reply->values[i]);
        values[i].len = names->len - from;
    }
    if (err != 0) {
        mu_free(values);
        return err;
    }
    rest = mu_buf_span(names);
    for (size_t i = 0; i < reply->value_count; i++) {
        values[i].data = rest.data;
        rest = mu_span_skip(rest, values[i].len);
    }
    *ret_values = values;
    return 0;
}

/* --- PyTorch's wire --------------------------------------------------------------------------- */

static void free_peer_if_done(struct mu_store_peer *p)
{
    if (p->conn == NULL && mu_list_empty(&p->ops)) {
        mu_free(p);
    }
}

static void free_torch_op(struct torch_op *o)
{
    mu_list_remove(&o->link);
    mu_backing_op_fini(&o->base.base);
    mu_free(o);
}

/* Stops an op whose answer is not wanted. */
static void drop_torch_op(struct torch_op *o)
{
    if (mu_gateway_cancel(o->peer->server->backing, &o->base)) {
        mu_torch_request_free(o->request);
        free_torch_op(o);
    } else {
        o->dropped = true;
    }
}

static int answer_torch(struct torch_op *o, struct mu_store_conn *c)
{
    struct mu_backing_op *b = &o->base.base;
    struct mu_store_reply reply = b->reply;
    struct mu_span *values = NULL;
    struct mu_buf names;
    int status = b->status;
    int err;

    mu_buf_init(&names, NAMES_MAX);
    if (status == 0 && b->request.verb == MU_STORE_LIST_KEYS && !is_remote(c->server)) {
        status = name_keys(&b->reply, &names, &values);
        reply.values = values;
    }
    err = mu_torch_server_answer(&c->torch, o->request, status, &reply,
                                 b->errmsg.text[0] != '\0' ? b->errmsg.text
                                                           : muster_strerror(status));
    mu_free(values);
    mu_buf_fini(&names);
    return err;
}

/* Whether other ops may be answered before this one. */
static bool lets_pass(const struct torch_op *o)
{
    enum mu_store_verb verb = o->base.base.request.verb;

    return o->dropped || verb == MU_STORE_WAIT || verb == MU_STORE_BARRIER ||
           verb == MU_STORE_WATCH;
}

/*
 * Answers have no ids on this wire: one that is sent out of order would be taken for another. They
 * come in order, unless there was no memory for an earlier one.
 */
static bool is_in_turn(const struct torch_op *o)
{
    MU_LIST_FOREACH (it, &o->peer->ops) {
        const struct torch_op *first = MU_CONTAINER_OF(it, struct torch_op, link);

        if (first == o) {
            break;
        }
        if (!lets_pass(first)) {
            return false;
        }
    }
    return true;
}

/* A watch that the client relies on is over: the client must be told. */
static void end_torch_watch(struct torch_op *o, struct mu_store_conn *c)
{
    struct mu_errmsg why = o->base.base.errmsg;

    if (o->base.stands != NULL) {
        struct mu_store_reply none = {0};

        (void)mu_torch_server_answer(&c->torch, o->request, o->base.base.status, &none, why.text);
    } else {
        mu_torch_request_free(o->request);
    }
    free_torch_op(o);
    mu_rpc_conn_drop(&c->base, why.text);
}

static void on_torch_done(struct mu_gateway_op *base)
{
    struct torch_op *o = MU_CONTAINER_OF(base, struct torch_op, base);
    struct mu_store_peer *p = o->peer;
    struct mu_store_conn *c = p->conn;

    if (o->dropped || c == NULL || o->request->server == NULL) {
        mu_torch_request_free(o->request);
    } else if (base->base.request.verb == MU_STORE_WATCH) {
        end_torch_watch(o, c);
        return;
    } else if (!is_in_turn(o)) {
        mu_torch_request_free(o->request);
        free_torch_op(o);
        mu_rpc_conn_drop(&c->base, "an earlier answer is missing because memory ran out");
        return;
    } else {
        if (answer_torch(o, c) != 0) {
            mu_store_conn_end_torch(c);
        }
        mu_rpc_conn_touch(&c->base); /* it may have ended before, and wait for this */
        mu_store_conn_account(c);
    }
    free_torch_op(o);
    free_peer_if_done(p);
}

static void on_torch_change(struct mu_gateway_op *base, const struct mu_change *change, bool gap)
{
    struct torch_op *o = MU_CONTAINER_OF(base, struct torch_op, base);
    struct mu_store_conn *c = o->peer->conn;
    struct mu_buf name;

    mu_buf_init(&name, NAMES_MAX);
    if (!gap && is_remote(c->server)) {
        gap = mu_torch_server_told(&c->torch, o->base.base.request.keys[0], change) != 0;
    } else if (!gap) {
        gap = append_name(&name, o->base.base.request.keys[0]) != 0 ||
              mu_torch_server_told(&c->torch, mu_buf_span(&name), change) != 0;
    }
    if (gap) {
        mu_store_conn_end_torch(c);
    } else {
        mu_rpc_conn_touch(&c->base);
    }
    mu_buf_fini(&name);
}

static void on_torch_stands(struct mu_gateway_op *base)
{
    struct torch_op *o = MU_CONTAINER_OF(base, struct torch_op, base);
    struct mu_store_conn *c = o->peer->conn;
    struct mu_store_reply none = {0};

    o->base.stands = NULL;
    if (mu_torch_server_answer(&c->torch, o->request, 0, &none, NULL) != 0) {
        mu_store_conn_end_torch(c);
    } else {
        mu_rpc_conn_touch(&c->base);
    }
}

static void fit_etcd(struct mu_torch_request *r, bool first)
{
    r->request.flags |= first ? MU_BACKING_NO_QUEUES : MU_BACKING_IN_TURN;
    r->request.flags |= !first && r->op == MU_TORCH_MULTI_GET ? MU_BACKING_OR_EMPTY : 0;
    for (size_t i = 0; i < r->request.key_count; i++) {
        to_etcd(&r->parts[i]);
    }
}

static void fit_remote(struct mu_torch_request *r, bool first)
{
    r->request.flags |= r->op == MU_TORCH_WAIT                  ? MU_STORE_IN_TURN
                        : r->op == MU_TORCH_WATCH_KEY           ? MU_STORE_OLD
                        : !first && r->op == MU_TORCH_MULTI_GET ? MU_STORE_OR_EMPTY
                                                                : 0;
}

static int submit_torch(struct mu_store_peer *p, struct mu_torch_request *r)
{
    struct torch_op *o = mu_calloc(1, sizeof(*o));
    bool first = p->conn->torch.generation == MU_TORCH_1;
    struct mu_store_reply none = {0};

    if (o == NULL) {
        return mu_torch_server_answer(&p->conn->torch, r, MUSTER_ENOMEM, &none, "out of memory");
    }
    if (is_remote(p->server)) {
        fit_remote(r, first);
    } else {
        fit_etcd(r, first);
    }
    r->impl = o;
    o->peer = p;
    o->request = r;
    o->base.base.request = r->request;
    o->base.done = on_torch_done;
    o->base.change = on_torch_change;
    o->base.client = &p->gate;
    mu_list_init(&o->link);
    mu_list_push(&p->ops, &o->link);
    if (r->op == MU_TORCH_WATCH_KEY && !mu_gateway_watches(p->server->backing)) {
        o->base.stands = on_torch_stands;
    }
    mu_gateway_submit(p->server->backing, &p->client, &o->base);
    return r->op == MU_TORCH_WATCH_KEY && o->base.stands == NULL
               ? mu_torch_server_answer(&p->conn->torch, r, 0, &none, NULL)
               : 0;
}

int mu_store_backed_open(struct mu_store_conn *c)
{
    struct mu_store_peer *p = mu_calloc(1, sizeof(*p));

    if (p == NULL) {
        return MUSTER_ENOMEM;
    }
    p->server = c->server;
    p->conn = c;
    p->gate.in_order = true;
    p->gate.single = true;
    mu_list_init(&p->ops);
    c->peer = p;
    return 0;
}

int mu_store_backed_take(struct mu_store_conn *c)
{
    struct mu_torch_request *r;
    int err = 0;

    while ((r = mu_torch_server_next_dropped(&c->torch)) != NULL) {
        drop_torch_op(r->impl);
    }
    while (err == 0 && (r = mu_torch_server_next_request(&c->torch)) != NULL) {
        err = submit_torch(c->peer, r);
    }
    return err;
}

/* Whether an op exists only for its answer and can be stopped; others were requested, and are
 * carried out. */
static bool is_for_its_answer(enum mu_store_verb verb)
{
    return verb == MU_STORE_WAIT || verb == MU_STORE_WATCH || verb == MU_STORE_BARRIER ||
           verb == MU_STORE_QUEUE_POP;
}

void mu_store_backed_release(struct mu_store_conn *c)
{
    struct mu_store_peer *p = c->peer;

    if (p == NULL) {
        return;
    }
    c->peer = NULL;
    MU_LIST_FOREACH_SAFE (it, tmp, &p->ops) {
        struct torch_op *o = MU_CONTAINER_OF(it, struct torch_op, link);

        if (is_for_its_answer(o->base.base.request.verb) && !o->dropped) {
            drop_torch_op(o);
        }
    }
    p->conn = NULL;
    free_peer_if_done(p);
}

/* --- the native wire -------------------------------------------------------------------------- */

static void free_native_op(struct native_op *o)
{
    mu_backing_op_fini(&o->base.base);
    mu_free(o->parts);
    mu_free(o);
}

/* Takes the op from its call. */
static struct mu_store_sink *detach(struct native_op *o)
{
    struct mu_store_exec *x = o->exec;

    o->exec = NULL;
    x->impl = NULL;
    x->active = false;
    return x->sink;
}

static void on_native_done(struct mu_gateway_op *base)
{
    struct native_op *o = MU_CONTAINER_OF(base, struct native_op, base);
    struct mu_backing_op *b = &o->base.base;
    struct mu_store_reply reply = b->reply;
    struct mu_span *values = NULL;
    struct mu_buf names;

    if (o->exec != NULL) {
        struct mu_store_sink *sink = detach(o);
        int status = b->status;

        mu_buf_init(&names, NAMES_MAX);
        if (status == 0 && b->request.verb == MU_STORE_LIST_KEYS && !is_remote(o->server)) {
            status = name_keys(&b->reply, &names, &values);
            reply.values = values;
        }
        sink->answer(sink, status, &reply, b->errmsg.text);
        mu_free(values);
        mu_buf_fini(&names);
    }
    free_native_op(o);
}

static void backed_fini(struct mu_store_exec *x)
{
    struct native_op *o = x->impl;

    x->active = false;
    if (o != NULL) {
        (void)detach(o);
        mu_gateway_disown(&o->base); /* its session may be about to end */
        if (mu_gateway_cancel(o->server->backing, &o->base)) {
            free_native_op(o);
        }
    }
}

static void on_native_change(struct mu_gateway_op *base, const struct mu_change *change, bool gap)
{
    struct native_op *o = MU_CONTAINER_OF(base, struct native_op, base);
    struct mu_store_exec *x = o->exec;
    struct mu_store_sink *sink = x->sink;
    struct mu_store_reply none = {0};
    struct mu_change named;
    struct mu_buf name;

    if (gap) {
        backed_fini(x);
        sink->answer(sink, MUSTER_EOVERFLOW, &none,
                     "changes were missed; watch again from the current state");
        return;
    }
    if ((o->base.base.request.flags & MU_STORE_ONCE) != 0) {
        none.number = (int64_t)change->revision;
        backed_fini(x);
        sink->answer(sink, 0, &none, NULL);
        return;
    }
    if (is_remote(o->server)) {
        (void)sink->change(sink, change);
        return;
    }
    mu_buf_init(&name, NAMES_MAX);
    named = *change;
    if (append_name(&name, change->key) != 0) {
        backed_fini(x);
        sink->answer(sink, MUSTER_ENOMEM, &none, "out of memory");
    } else {
        named.key = mu_buf_span(&name);
        (void)sink->change(sink, &named);
    }
    mu_buf_fini(&name);
}

static bool backed_execute(struct mu_executor *e, mu_mono_t now,
                           const struct mu_store_request *request, struct mu_store_sink *sink)
{
    (void)e;
    (void)now;
    (void)request;
    (void)sink;
    return false;
}

static void backed_start(struct mu_store_exec *x, const struct mu_store_request *request)
{
    struct mu_store_server *s = MU_CONTAINER_OF(x->executor, struct mu_store_server, executor);
    struct native_op *o = mu_calloc(1, sizeof(*o));
    struct mu_store_reply none = {0};

    if (o == NULL || mu_store_exec_copy(x, request) != 0) {
        mu_free(o);
        x->active = false;
        x->sink->answer(x->sink, MUSTER_ENOMEM, &none, "out of memory");
        return;
    }
    for (size_t i = 0; i < request->key_count && !is_remote(s); i++) {
        if (x->parts[i].len != 0 || (request->flags & MU_STORE_PREFIX) == 0) {
            to_etcd(&x->parts[i]);
        }
    }
    o->server = s;
    o->exec = x;
    o->parts = x->parts;
    o->base.base.request = x->request;
    o->base.done = on_native_done;
    o->base.change = on_native_change;
    o->base.deadline = x->sink->deadline;
    o->base.client =
        &mu_store_session_of(&MU_CONTAINER_OF(x->sink, struct mu_store_call, sink)->base)->client;
    x->parts = NULL;
    x->impl = o;
    mu_gateway_submit(s->backing, NULL, &o->base);
    if (request->verb == MU_STORE_WATCH && (request->flags & MU_STORE_CURRENT) != 0) {
        mu_gateway_tell_current(s->backing, &o->base);
    }
}

static void backed_stop(struct mu_store_exec *x, int why)
{
    struct native_op *o = x->impl;
    struct mu_store_sink *sink = x->sink;
    struct mu_store_reply none = {0};
    struct mu_span keys[MU_STORE_MISSING_NAMED];
    size_t missing = mu_backing_missing(&o->base.base, keys, MU_STORE_MISSING_NAMED);
    char text[768];

    if (why == MUSTER_ETIMEDOUT && is_remote(o->server) && !mu_gateway_rests(&o->base)) {
        return; /* the other server knows the deadline, and answers with the missing keys */
    }
    if (is_remote(o->server) && why == MUSTER_ETIMEDOUT) {
        keys[0] = o->base.base.request.keys[0];
        missing = 1;
    }
    if (why != MUSTER_ETIMEDOUT) {
        (void)snprintf(text, sizeof(text), "%s", muster_strerror(why));
    } else if (missing != 0) {
        mu_store_exec_explain(sink, keys, MU_STORE_MISSING_NAMED, missing, text, sizeof(text));
    } else {
        (void)snprintf(text, sizeof(text), "etcd did not answer in time%s",
                       mu_store_verb_is_read(o->base.base.request.verb)
                           ? ""
                           : ": the operation may or may not have happened");
    }
    backed_fini(x);
    sink->answer(sink, why, &none, text);
}

struct mu_executor mu_executor_backed(void)
{
    static const struct mu_executor_ops ops = {
        .execute = backed_execute,
        .start = backed_start,
        .stop = backed_stop,
        .fini = backed_fini,
    };

    return (struct mu_executor){.ops = &ops};
}
