/*
 * Native sessions as the store server sees them: what the wire needs of it, and what is answered. A
 * session's keys are deleted with it.
 */
#include "service/server/server_internal.h"

#include "core/alloc.h"
#include "service/base/log.h"

static struct mu_store_server *server_of(const struct mu_rpc_server *wire)
{
    return MU_CONTAINER_OF(wire, struct mu_store_server, wire);
}

static struct mu_store_session *session_of(struct mu_rpc_session *base)
{
    return MU_CONTAINER_OF(base, struct mu_store_session, base);
}

struct mu_store_session *mu_store_session_of(const struct mu_rpc_served *call)
{
    return session_of(call->session);
}

void mu_store_session_fail(struct mu_store_session *session, uint64_t id, bool item)
{
    struct mu_rpc_served *call = item ? mu_rpc_served_find(&session->base, id) : NULL;

    mu_rpc_fail(&session->base.rpc, mu_env_now(session->server->env), id, MUSTER_ENOMEM);
    if (call != NULL) {
        call->ops->free(call); /* No watch skips a change in silence. */
    }
    mu_rpc_session_touch(&session->base);
}

/* --- calls ------------------------------------------------------------------------------------ */

static void start_call(struct mu_rpc_session *base, const struct mu_rpc_event *event)
{
    struct mu_store_session *session = session_of(base);
    bool rdzv = mu_span_starts_with(event->method, MU_SPAN_LIT(MU_RDZV_METHOD_PREFIX));

    if (rdzv && session->server->backing != NULL) {
        mu_rpc_session_reply(&session->base, event->id, MUSTER_ENOTSUP,
                             MU_SPAN_LIT("this server's keys are elsewhere and it holds no "
                                         "rendezvous; rendezvous where the keys are"));
    } else if (rdzv) {
        mu_rdzv_hub_start(&session->server->hub, base, &session->joins, event);
    } else if (mu_span_eq(event->method, MU_SPAN_LIT(MU_STORE_METHOD_CLOCK))) {
        mu_store_clock_start(session, event);
    } else if (mu_span_eq(event->method, MU_SPAN_LIT(MU_CARRY_METHOD))) {
        mu_carry_serve(session->server->carry, base, event->id, &session->server->listener.base);
    } else {
        mu_store_holds_start(session, event);
    }
}

/* --- for the wire ----------------------------------------------------------------------------- */

static void complain(struct mu_rpc_server *wire, const char *peer, const char *why)
{
    mu_store_server_log_peer(server_of(wire), peer, why);
}

/* While too much waits for the disk, calls stay where they are. */
static bool is_busy(const struct mu_rpc_server *wire)
{
    return mu_store_commit_saturated(server_of(wire));
}

static void wait_for_disk(struct mu_rpc_conn *base)
{
    struct mu_store_conn *c = MU_CONTAINER_OF(base, struct mu_store_conn, base);

    if (mu_list_empty(&c->stalled)) {
        mu_list_push(&c->server->stalled, &c->stalled);
    }
}

static void account(struct mu_rpc_session *base, size_t bytes)
{
    struct mu_store_session *session = session_of(base);

    mu_store_account(session->server, &session->memory, bytes == 0 ? 0 : bytes + session->backlog);
}

static struct mu_rpc_session *session_new(struct mu_rpc_server *wire,
                                          const struct mu_rpc_hello *hello)
{
    struct mu_store_session *session = mu_calloc(1, sizeof(*session));

    if (session == NULL) {
        return NULL;
    }
    /* A gateway's clients may be of PyTorch's wire, whose answers must come in order. */
    session->client.in_order = mu_span_eq(hello->name, MU_SPAN_LIT(MU_GATEWAY_NAME));
    session->server = server_of(wire);
    mu_list_init(&session->recalled);
    mu_list_init(&session->unsure);
    mu_list_init(&session->deferred);
    mu_buf_init(&session->recalls, session->server->config.backlog_bytes_max);
    return &session->base;
}

static void session_free(struct mu_rpc_session *base)
{
    struct mu_store_session *session = session_of(base);
    struct mu_store_server *s = session->server;
    uint64_t lease = session->lease;

    mu_store_holds_leave(session);
    mu_store_gate_lease_end(session);
    mu_store_commit_forget(s, session);
    mu_store_account(s, &session->memory, 0);
    mu_free(session);
    if (lease != 0) {
        mu_ks_lease_end(&s->ks, mu_env_now(s->env).mono, lease);
    }
}

static void turn_ended(struct mu_rpc_server *wire)
{
    mu_store_server_finish_turn(server_of(wire));
}

static void on_accept_failed(struct mu_listener *listener, int status)
{
    (void)listener;
    mu_log(MUSTER_LOG_ERROR, "STORE-ACCEPT-FAILED",
           "why=\"%s\" remedy=\"raise the descriptor limit (ulimit -n) of the server; "
           "waiting clients are served as soon as others leave\"",
           muster_strerror(status));
}

const struct mu_rpc_server_ops mu_store_wire_ops = {
    .turn_ended = turn_ended,
    .complain = complain,
    .accept_failed = on_accept_failed,
    .protocol = &mu_store_protocol,
    .conn_new = mu_store_conn_new,
    .flush = mu_store_conn_flush,
    .release = mu_store_conn_release,
    .is_busy = is_busy,
    .wait = wait_for_disk,
    .account = account,
    .session_new = session_new,
    .session_free = session_free,
    .call = start_call,
};

/* --- answers ---------------------------------------------------------------------------------- */

void mu_store_session_lend(struct mu_store_session *session, uint64_t id, struct mu_rpc_lent *lent)
{
    int err = mu_rpc_reply_lent(&session->base.rpc, mu_env_now(session->server->env), id, lent);

    if (err != 0) {
        lent->release(lent);
    }
    if (err == MUSTER_ELIMIT) {
        mu_rpc_session_reply(&session->base, id, MUSTER_ELIMIT,
                             MU_SPAN_LIT("the answer is longer than the client takes"));
    } else if (err == MUSTER_ENOMEM) {
        mu_store_session_fail(session, id, false);
    }
    mu_rpc_session_touch(&session->base);
}

void mu_store_session_send(struct mu_store_session *session, uint64_t id, bool item, int status,
                           struct mu_span payload)
{
    struct mu_rpc_served *call = item ? mu_rpc_served_find(&session->base, id) : NULL;
    int err;

    if (!item) {
        mu_rpc_session_reply(&session->base, id, status, payload);
        return;
    }
    if (call == NULL) {
        /* The watch ended over a change that it could not tell, and this one, which waited for the
         * disk behind it, must not be told without that. */
        return;
    }
    err = mu_store_calls_waiting(session, id) ? MUSTER_EAGAIN
                                              : mu_rpc_session_item(&session->base, id, payload);
    if (err == MUSTER_EAGAIN) {
        mu_store_calls_backlog(session, id, payload);
    } else if (err == MUSTER_ENOMEM) {
        mu_store_session_fail(session, id, true);
    } else if (err == MUSTER_ELIMIT) {
        call->ops->cancel(call, MUSTER_ELIMIT); /* No watch skips a change in silence. */
    }
    mu_rpc_session_touch(&session->base);
}
