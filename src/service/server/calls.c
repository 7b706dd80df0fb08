/*
 * The store's operations as calls of the native wire: requests are decoded and executed
 * (exec.c), answers and changes encoded and handed on. A call that goes on is kept in its
 * session's table. docs/native-wire.md lists the methods.
 */
#include "service/server/server_internal.h"

#include <stdio.h>

#include "codec/store/msg.h"
#include "core/alloc.h"

/* The sink of a request that is answered while it is being read; the one of a call that goes on is
 * below. */
struct direct_sink {
    struct mu_store_sink sink;
    struct mu_store_session *session;
    uint64_t id;
    enum mu_store_verb verb;
};

static bool is_about_lease(enum mu_store_verb verb)
{
    return mu_store_verb_facts(verb)->does == MU_STORE_LEASES;
}

/* Whether an answer reports a change that should be on disk. */
static bool is_change(enum mu_store_verb verb)
{
    return !mu_store_verb_is_read(verb) && !is_about_lease(verb);
}

static void send_answer(struct mu_store_session *session, uint64_t id, enum mu_store_verb verb,
                        int status, const struct mu_store_reply *reply, const char *text)
{
    struct mu_buf *out = &session->server->scratch;
    struct mu_rpc_lent *lent = status == 0 ? mu_store_lent_new(reply) : NULL;

    if (lent != NULL) {
        mu_store_answer_lent(session, id, lent);
        return;
    }
    mu_buf_reset(out);
    if (status == 0) {
        status = mu_store_reply_encode(out, reply);
        text = "the answer is too long";
    }
    if (status == MUSTER_EDISK && session->server->disk_full) {
        text = session->server->full_why.text;
    }
    mu_store_answer(session, id, false, is_change(verb), status,
                    status == 0 ? mu_buf_span(out) : mu_span_str(text));
    mu_buf_trim(out, 1 << 20);
}

static void answer_directly(struct mu_store_sink *sink, int status,
                            const struct mu_store_reply *reply, const char *text)
{
    struct direct_sink *d = MU_CONTAINER_OF(sink, struct direct_sink, sink);

    send_answer(d->session, d->id, d->verb, status, reply, text);
}

static const struct mu_rpc_served_ops call_ops;

static struct mu_store_call *find_call(struct mu_store_session *session, uint64_t id)
{
    struct mu_rpc_served *base = mu_rpc_served_find(&session->base, id);

    return base == NULL || base->ops != &call_ops
               ? NULL
               : MU_CONTAINER_OF(base, struct mu_store_call, base);
}

static void free_call(struct mu_rpc_served *base)
{
    struct mu_store_call *call = MU_CONTAINER_OF(base, struct mu_store_call, base);

    mu_store_exec_fini(&call->exec);
    mu_rpc_served_remove(base);
    mu_store_session_of(base)->backlog -= call->backlog.len;
    mu_buf_fini(&call->backlog);
    mu_free(call);
}

static void answer_call(struct mu_store_sink *sink, int status, const struct mu_store_reply *reply,
                        const char *text)
{
    struct mu_store_call *call = MU_CONTAINER_OF(sink, struct mu_store_call, sink);

    send_answer(mu_store_session_of(&call->base), call->base.id, call->exec.request.verb, status,
                reply, text);
    free_call(&call->base);
}

static bool send_change(struct mu_store_sink *sink, const struct mu_change *change)
{
    struct mu_store_call *call = MU_CONTAINER_OF(sink, struct mu_store_call, sink);
    struct mu_store_session *session = mu_store_session_of(&call->base);
    struct mu_buf *out = &session->server->scratch;
    uint64_t id = call->base.id;

    mu_buf_reset(out);
    if (mu_store_change_encode(out, change, (call->exec.request.flags & MU_STORE_OLD) != 0) == 0) {
        mu_store_answer(session, id, true, false, 0, mu_buf_span(out));
    } else {
        mu_store_session_fail(session, id, true);
    }
    mu_buf_trim(out, 1 << 20);
    return find_call(session, id) != NULL;
}

static int keep_call(struct mu_store_session *session, uint64_t id, mu_mono_t deadline,
                     const struct mu_store_request *q)
{
    struct mu_store_call *call = mu_calloc(1, sizeof(*call));

    if (call == NULL) {
        return MUSTER_ENOMEM;
    }
    call->sink.answer = answer_call;
    call->sink.change = send_change;
    call->sink.wire_keys = true;
    call->sink.deadline = deadline;
    mu_buf_init(&call->backlog, session->server->config.backlog_bytes_max);
    if (mu_rpc_served_add(&call->base, &call_ops, &session->base, id) != 0) {
        mu_free(call);
        return MUSTER_ENOMEM;
    }
    mu_store_exec_start(&call->exec, &session->server->executor, q, &call->sink);
    return 0;
}

/* --- watchers that are behind ----------------------------------------------------------------- */

bool mu_store_calls_waiting(struct mu_store_session *session, uint64_t id)
{
    struct mu_store_call *call = session->backlog == 0 ? NULL : find_call(session, id);

    return call != NULL && call->backlog.len != 0;
}

void mu_store_calls_backlog(struct mu_store_session *session, uint64_t id, struct mu_span payload)
{
    struct mu_store_call *call = find_call(session, id);

    if (call == NULL || !call->exec.active) {
        return;
    }
    if (mu_buf_reserve(&call->backlog, 4 + payload.len) != 0) {
        struct mu_store_reply none = {0};

        mu_store_exec_fini(&call->exec);
        answer_call(&call->sink, MUSTER_EOVERFLOW, &none,
                    "the watcher fell too far behind; watch again from the current state");
        return;
    }
    mu_buf_put_u32(&call->backlog, (uint32_t)payload.len);
    mu_buf_put(&call->backlog, payload);
    session->backlog += 4 + payload.len;
}

static void send_backlog(struct mu_rpc_served *base)
{
    struct mu_store_call *call = MU_CONTAINER_OF(base, struct mu_store_call, base);
    struct mu_store_session *session = mu_store_session_of(base);
    struct mu_now now = mu_env_now(session->server->env);

    while (call->backlog.len != 0) {
        struct mu_span held = mu_buf_span(&call->backlog);
        uint32_t len = mu_get_u32(held.data);

        int err = mu_rpc_item(&session->base.rpc, now, base->id, mu_span(held.data + 4, len));

        if (err == MUSTER_ENOMEM) {
            mu_store_session_fail(session, base->id, true);
        }
        if (err != 0) {
            return;
        }
        mu_buf_consume(&call->backlog, 4 + (size_t)len);
        session->backlog -= 4 + (size_t)len;
    }
    mu_buf_trim(&call->backlog, 0);
}

/* --- calls ------------------------------------------------------------------------------------ */

static void cancel_call(struct mu_rpc_served *base, int why)
{
    mu_store_exec_stop(&MU_CONTAINER_OF(base, struct mu_store_call, base)->exec, why);
}

/* No operation of the store takes items. */
static const struct mu_rpc_served_ops call_ops = {
    .cancel = cancel_call,
    .credit = send_backlog,
    .free = free_call,
};

static int resolve_lease(struct mu_store_session *session, struct mu_store_request *q)
{
    struct mu_store_server *s = session->server;
    int err;

    if (s->backing != NULL && s->backing->kind->remote) {
        if (q->lease != MU_LEASE_SESSION) {
            return 0; /* a lease of the other server */
        }
        return is_about_lease(q->verb) ? MUSTER_EINVAL : mu_store_gate_lease(session, &q->lease);
    }
    if (s->backing != NULL && (q->lease != 0 || q->verb == MU_STORE_LEASE_GRANT)) {
        return MUSTER_ENOTSUP; /* a lease would have to outlive this server, as its keys do */
    }
    if (q->lease != MU_LEASE_SESSION) {
        return 0;
    }
    if (q->verb == MU_STORE_LEASE_KEEP || q->verb == MU_STORE_LEASE_REVOKE) {
        return MUSTER_EINVAL; /* it ends with the session, not before and not after */
    }
    if (session->lease == 0) {
        err = mu_ks_lease_grant(&s->ks, mu_env_now(s->env).mono, 0, &session->lease);
        if (err != 0) {
            return err;
        }
    }
    q->lease = session->lease;
    return 0;
}

bool mu_store_calls_start(struct mu_store_session *session, const struct mu_rpc_event *event)
{
    struct mu_store_server *s = session->server;
    struct direct_sink direct = {
        {.answer = answer_directly, .wire_keys = true}, session, event->id};
    struct mu_store_reply none = {0};
    struct mu_store_request q = {0};
    struct mu_span *parts = NULL;
    enum mu_store_verb verb = MU_STORE_SET;
    int err = mu_store_verb_of(event->method, &verb);

    if (err != 0) {
        char quoted[128];
        char text[200];

        (void)snprintf(text, sizeof(text), "the server has no method %s",
                       mu_span_quote(quoted, sizeof(quoted), event->method));
        answer_directly(&direct.sink, err, &none, text);
        return true;
    }
    err = mu_store_request_decode(event->payload, verb, 2 * s->config.keyspace.keys_max + 2, &q,
                                  &parts);
    direct.verb = verb;
    if (err == 0 && s->grants && s->holds.count != 0 && !mu_store_holds_may(session, &q, &err) &&
        err == 0) {
        mu_free(parts);
        return false;
    }
    if (err == 0) {
        err = resolve_lease(session, &q);
    }
    if (err == 0 && !mu_store_execute(&s->executor, mu_env_now(s->env).mono, &q, &direct.sink)) {
        err = keep_call(session, event->id, event->deadline, &q);
    }
    if (err != 0) {
        answer_directly(&direct.sink, err, &none, muster_strerror(err));
    }
    mu_free(parts);
    return true;
}
