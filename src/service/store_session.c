/*
 * Native sessions: one struct mu_rpc each, linked to one connection after another. A session
 * without a link lives on for its grace; then its calls are cancelled, its keys deleted.
 */
#include "service/store_server_internal.h"

#include <string.h>

#include "core/alloc.h"
#include "service/log.h"

#define LATER_MS 100 /* how soon is looked again at what could not be done */

static void rearm(struct mu_store_session *session)
{
    struct mu_store_server *s = session->server;
    mu_mono_t at = mu_rpc_deadline(&session->rpc);

    if (at.ns == 0 && mu_store_commit_saturated(s)) {
        /* What it has to tell must wait for the disk, which will see to it if there is a link. */
        at = mu_mono_add_ms(mu_env_now(s->env).mono, LATER_MS);
    }
    at = mu_mono_min(at, mu_rpc_grace_deadline(&session->rpc));
    /* Every frame moves the deadline out. A timer that fires early just looks and is armed again,
     * which costs less than moving it each time. */
    if (!mu_heap_contains(&session->timer.node) || mu_mono_before(at, session->timer.node.at)) {
        mu_env_timer_arm(s->env, &session->timer, at);
    }
}

/* The machine was given something to send. */
static void touch(struct mu_store_session *session)
{
    if (session->conn != NULL) {
        mu_store_conn_touch(session->conn);
    }
    rearm(session);
}

void mu_store_session_fail(struct mu_store_session *session, uint64_t id, bool item)
{
    struct mu_served *call = item ? mu_served_find(session, id) : NULL;

    mu_rpc_fail(&session->rpc, mu_env_now(session->server->env), id, MUSTER_ENOMEM);
    if (call != NULL) {
        call->ops->free(call); /* No watch skips a change in silence. */
    }
    touch(session);
}

void mu_store_session_sent(struct mu_store_session *session)
{
    /* The machine holds back calls while too much waits to be sent; its deadline says when it has
     * something to tell. */
    if (mu_rpc_deadline(&session->rpc).ns == 0) {
        rearm(session);
    }
}

void mu_store_session_unlink(struct mu_store_session *session)
{
    if (session->conn != NULL) {
        session->conn->u.session = NULL;
        session->conn = NULL;
        mu_rpc_unlinked(&session->rpc, mu_env_now(session->server->env));
        rearm(session);
    }
}

void mu_store_session_eof(struct mu_store_session *session)
{
    struct mu_store_server *s = session->server;

    session->conn->u.session = NULL;
    session->conn = NULL;
    mu_rpc_eof(&session->rpc, mu_env_now(s->env), s->config.eof_grace_ms);
    rearm(session);
}

/* --- calls that go on ------------------------------------------------------------------------- */

int mu_served_add(struct mu_served *base, const struct mu_served_ops *ops,
                  struct mu_store_session *session, uint64_t id)
{
    base->ops = ops;
    base->session = session;
    base->id = id;
    return mu_map_insert(&session->calls, &base->by_id, mu_span(&base->id, sizeof(base->id)));
}

void mu_served_remove(struct mu_served *base)
{
    mu_map_remove(&base->session->calls, &base->by_id);
}

struct mu_served *mu_served_find(struct mu_store_session *session, uint64_t id)
{
    struct mu_map_node *node = mu_map_find(&session->calls, mu_span(&id, sizeof(id)));

    return node == NULL ? NULL : MU_CONTAINER_OF(node, struct mu_served, by_id);
}

static void free_calls(struct mu_store_session *session)
{
    struct mu_map_node *node;

    while ((node = mu_map_next(&session->calls, NULL)) != NULL) {
        struct mu_served *call = MU_CONTAINER_OF(node, struct mu_served, by_id);

        call->ops->free(call);
    }
}

/* --- the end of a session --------------------------------------------------------------------- */

static void free_session(struct mu_store_session *session)
{
    struct mu_store_server *s = session->server;

    if (session->conn != NULL) {
        session->conn->u.session = NULL;
        session->conn = NULL;
    }
    free_calls(session);
    mu_store_commit_forget(s, session);
    mu_map_fini(&session->calls);
    mu_map_remove(&s->sessions, &session->by_id);
    mu_list_remove(&session->link);
    s->stats.messages_in += session->rpc.frames_in;
    s->stats.messages_out += session->rpc.frames_out;
    mu_rpc_fini(&session->rpc);
    (void)mu_store_account(s, &session->memory, 0);
    mu_free(session);
}

void mu_store_session_end(struct mu_store_session *session, const char *why)
{
    struct mu_store_server *s = session->server;
    struct mu_store_conn *c = session->conn;
    uint64_t lease = session->lease;

    mu_log(MUSTER_LOG_DEBUG, "STORE-SESSION-ENDED", "peer=%s why=\"%s\"", session->peer, why);
    mu_env_timer_arm(s->env, &session->timer, MU_MONO_NEVER);
    free_session(session);
    if (c != NULL) {
        mu_store_conn_close(c, false);
    }
    if (lease != 0) {
        mu_ks_lease_end(&s->ks, mu_env_now(s->env).mono, lease);
    }
}

/* --- events ----------------------------------------------------------------------------------- */

static void start_call(struct mu_store_session *session, const struct mu_rpc_event *event)
{
    if (mu_span_starts_with(event->method, MU_SPAN_LIT(MU_RDZV_METHOD_PREFIX))) {
        mu_rdzv_hub_start(session, event);
    } else {
        mu_store_calls_start(session, event);
    }
}

static void take_item(struct mu_store_session *session, const struct mu_rpc_event *event)
{
    struct mu_served *call = mu_served_find(session, event->id);

    if (call != NULL && call->ops->item != NULL) {
        call->ops->item(call, event->payload);
    }
    /* Answered or not, and wanted or not: it is dealt with. */
    (void)mu_rpc_consumed(&session->rpc, mu_env_now(session->server->env), event->id,
                          event->payload.len);
}

/* False if the session is no more. */
static bool handle_event(struct mu_store_session *session, const struct mu_rpc_event *event)
{
    struct mu_served *call;

    switch (event->type) {
    case MU_RPC_EV_CALL:
        start_call(session, event);
        return true;
    case MU_RPC_EV_CANCEL:
        call = mu_served_find(session, event->id);
        if (call != NULL) { /* Otherwise it was answered; that may still wait for the disk. */
            call->ops->cancel(call, event->status);
        }
        return true;
    case MU_RPC_EV_CREDIT:
        call = mu_served_find(session, event->id);
        if (call != NULL) {
            call->ops->credit(call);
        }
        return true;
    case MU_RPC_EV_ITEM:
        take_item(session, event);
        return true;
    case MU_RPC_EV_END:
        call = mu_served_find(session, event->id);
        if (call != NULL && call->ops->end != NULL) {
            call->ops->end(call);
        }
        return true;
    case MU_RPC_EV_LINK_DEAD:
        if (session->conn != NULL) {
            mu_store_conn_drop(session->conn, "the peer has been silent for too long");
        }
        return true;
    case MU_RPC_EV_BYE:
        session->goodbye = true;
        mu_store_session_end(session, "the client said goodbye");
        return false;
    case MU_RPC_EV_WELCOMED:
    case MU_RPC_EV_REFUSED:
    case MU_RPC_EV_REPLY:
    case MU_RPC_EV_DRAIN:
        return true;
    }
    return true;
}

/* False if the session is no more. While too much waits for the disk, calls stay in the machine. */
static bool drain_events(struct mu_store_session *session)
{
    struct mu_store_server *s = session->server;
    struct mu_rpc_event event;

    for (;;) {
        if (mu_store_commit_saturated(s)) {
            if (session->conn != NULL && mu_list_empty(&session->conn->stalled)) {
                mu_list_push(&s->stalled, &session->conn->stalled);
            }
            return true;
        }
        if (!mu_rpc_next_event(&session->rpc, &event)) {
            return true;
        }
        if (!handle_event(session, &event)) {
            return false;
        }
    }
}

void mu_store_session_pump(struct mu_store_session *session)
{
    if (!drain_events(session)) {
        return;
    }
    if (!mu_store_account(session->server, &session->memory,
                          mu_rpc_memory(&session->rpc) + session->backlog)) {
        mu_store_server_log_peer(session->server, session->peer,
                                 "the buffers of all connections together are over their limit");
        mu_store_session_end(session, "buffers over the limit");
        return;
    }
    if (session->conn != NULL) {
        mu_store_conn_touch(session->conn);
    }
    rearm(session);
}

static void on_timer(struct mu_timer *timer)
{
    struct mu_store_session *session = MU_CONTAINER_OF(timer, struct mu_store_session, timer);
    struct mu_store_server *s = session->server;
    struct mu_now now = mu_env_now(s->env);

    mu_store_server_feel_pulse(s);
    if (session->conn != NULL && session->conn->paused) {
        /* It is us who do not listen, for as long as the disk has too much to do. */
        mu_rpc_stalled(&session->rpc, now, UINT64_MAX);
    }
    if (mu_mono_reached(mu_rpc_grace_deadline(&session->rpc), now.mono)) {
        mu_store_session_end(session, "no connection within its grace");
    } else if (mu_rpc_tick(&session->rpc, now) == MUSTER_ENOMEM) {
        mu_env_timer_arm(s->env, &session->timer, mu_mono_add_ms(now.mono, LATER_MS));
    } else {
        mu_store_session_pump(session);
    }
    mu_store_server_finish_turn(s);
}

/* --- links ------------------------------------------------------------------------------------ */

static void refuse(struct mu_store_conn *c, int status, const char *text)
{
    struct mu_buf out;
    size_t taken;

    mu_buf_init(&out, 4096);
    if (mu_rpc_refuse(&out, status, text) == 0) {
        mu_env_send(c->server->env, &c->base, mu_buf_span(&out), &taken);
    }
    mu_buf_fini(&out);
    mu_store_conn_drop(c, text);
}

static struct mu_store_session *new_session(struct mu_store_server *s,
                                            const struct mu_rpc_hello *hello)
{
    struct mu_store_session *session = mu_calloc(1, sizeof(*session));
    struct mu_rpc_config config = s->config.rpc;

    if (session == NULL) {
        return NULL;
    }
    config.role = MU_RPC_SERVER;
    config.seed = s->config.keyspace.seed;
    memcpy(config.session, hello->session, sizeof(config.session));
    memcpy(config.incarnation, s->incarnation, sizeof(config.incarnation));
    memcpy(session->id, hello->session, sizeof(session->id));
    if (mu_rpc_init(&session->rpc, &config) != 0) {
        mu_free(session);
        return NULL;
    }
    if (mu_map_insert(&s->sessions, &session->by_id, mu_span(session->id, sizeof(session->id))) !=
        0) {
        mu_rpc_fini(&session->rpc);
        mu_free(session);
        return NULL;
    }
    session->server = s;
    mu_map_init(&session->calls, config.seed);
    mu_timer_init(&session->timer, on_timer);
    mu_list_push(&s->session_list, &session->link);
    mu_store_server_start_pulse(s);
    return session;
}

void mu_store_session_greet(struct mu_store_conn *c, const struct mu_rpc_hello *hello)
{
    struct mu_store_server *s = c->server;
    struct mu_map_node *node =
        mu_map_find(&s->sessions, mu_span(hello->session, sizeof(hello->session)));
    struct mu_store_session *session = NULL;
    int err;

    if (node != NULL) {
        session = MU_CONTAINER_OF(node, struct mu_store_session, by_id);
    } else if (s->sessions.count >= s->config.sessions_max) {
        refuse(c, MUSTER_ELIMIT, "the server has as many sessions as it may");
        return;
    } else {
        session = new_session(s, hello);
        if (session == NULL) {
            mu_store_conn_drop(c, "out of memory for a session");
            return;
        }
    }
    err = mu_rpc_accepted(&session->rpc, mu_env_now(s->env), hello);
    if (err == MUSTER_ENOMEM) {
        /* Who is refused does not come back; who is just dropped does. */
        mu_store_conn_drop(c, "out of memory for a session");
    } else if (err != 0) {
        /* A session that goes on elsewhere is not harmed by a greeting that comes too late. */
        refuse(c, err, muster_strerror(err));
    }
    if (err != 0) {
        if (node == NULL) {
            mu_store_session_end(session, "refused");
        }
        return;
    }
    if (session->conn != NULL) {
        /* The client has given up the old connection before we noticed. The machine has let go of
         * it already. */
        struct mu_store_conn *old = session->conn;

        old->u.session = NULL;
        mu_store_conn_close(old, true);
    }
    session->conn = c;
    c->u.session = session;
    mu_env_peer(s->env, &c->base, session->peer, sizeof(session->peer));
    mu_store_session_pump(session);
}

size_t mu_store_session_input(struct mu_store_conn *c, struct mu_span in)
{
    struct mu_store_server *s = c->server;
    size_t done = 0;

    while (done < in.len && c->u.session != NULL && !c->closing && !mu_store_commit_saturated(s)) {
        struct mu_store_session *session = c->u.session;
        size_t used = 0;
        int err = mu_rpc_recv(&session->rpc, mu_env_now(s->env), mu_span_skip(in, done), &used);

        done += used;
        if (err == MUSTER_ENOMEM) {
            /* The session is whole: its client sends again, on another connection, what was not
             * taken from this one. */
            mu_store_conn_drop(c, "out of memory for what it sent");
            break;
        }
        if (err != 0) {
            char peer[64];
            struct mu_errmsg why;

            mu_env_peer(s->env, &c->base, peer, sizeof(peer));
            mu_store_server_log_peer(s, peer, mu_rpc_errmsg(&session->rpc));
            (void)mu_err(&why, err, "%s", mu_rpc_errmsg(&session->rpc));
            mu_store_session_end(session, why.text);
            break;
        }
        if (!drain_events(session)) {
            break;
        }
    }
    if (c->u.session != NULL && !c->closing) {
        mu_store_session_pump(c->u.session);
    }
    return c->u.session == NULL || c->closing ? in.len : done;
}

/* --- answers ---------------------------------------------------------------------------------- */

int mu_store_session_item(struct mu_store_session *session, uint64_t id, struct mu_span payload)
{
    int err = mu_rpc_item(&session->rpc, mu_env_now(session->server->env), id, payload);

    if (err == 0) {
        touch(session);
    }
    return err;
}

void mu_store_session_reply(struct mu_store_session *session, uint64_t id, int status,
                            struct mu_span payload)
{
    struct mu_now now = mu_env_now(session->server->env);
    int err = mu_rpc_reply(&session->rpc, now, id, status, payload);

    if (err == MUSTER_ELIMIT) {
        err = mu_rpc_reply(&session->rpc, now, id, MUSTER_ELIMIT,
                           MU_SPAN_LIT("the answer is longer than the client takes"));
    }
    if (err == MUSTER_ENOMEM) {
        /* What was done is done; an answer with content is lost, one without is not. */
        mu_rpc_fail(&session->rpc, now, id,
                    status == 0 && payload.len != 0 ? MUSTER_ENOMEM : status);
    }
    touch(session);
}

void mu_store_session_send(struct mu_store_session *session, uint64_t id, bool item, int status,
                           struct mu_span payload)
{
    struct mu_served *call = item ? mu_served_find(session, id) : NULL;
    int err;

    if (!item) {
        mu_store_session_reply(session, id, status, payload);
        return;
    }
    if (call == NULL) {
        /* The watch ended over a change that it could not tell, and this one, which waited for the
         * disk behind it, must not be told without that. */
        return;
    }
    err = mu_store_calls_waiting(session, id) ? MUSTER_EAGAIN
                                              : mu_store_session_item(session, id, payload);
    if (err == MUSTER_EAGAIN) {
        mu_store_calls_backlog(session, id, payload);
    } else if (err == MUSTER_ENOMEM) {
        mu_store_session_fail(session, id, true);
    } else if (err == MUSTER_ELIMIT) {
        call->ops->cancel(call, MUSTER_ELIMIT); /* No watch skips a change in silence. */
    }
    touch(session);
}
