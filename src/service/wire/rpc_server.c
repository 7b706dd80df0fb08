#include "service/wire/rpc_server.h"

#include <inttypes.h>
#include <string.h>

#include "service/base/log.h"

#define LATER_MS 100 /* how soon is looked again at what could not be done */

/* How often we look whether we are awake, and how much later than that a look may be. The shortest
 * silence that can be agreed upon is two beats of 50 ms. */
#define PULSE_MS 50
#define LATE_MS  50

static bool is_busy(const struct mu_rpc_server *s)
{
    return s->ops->is_busy != NULL && s->ops->is_busy(s);
}

static void rearm(struct mu_rpc_session *session)
{
    struct mu_rpc_server *s = session->server;
    mu_mono_t at = mu_rpc_deadline(&session->rpc);

    if (at.ns == 0 && is_busy(s)) {
        /* What it has to tell must wait, and `wait` has seen to it if there is a link. */
        at = mu_mono_add_ms(mu_env_now(s->env).mono, LATER_MS);
    }
    at = mu_mono_min(at, mu_rpc_grace_deadline(&session->rpc));
    /* Every frame moves the deadline out. A timer that fires early just looks and is armed again,
     * which costs less than moving it each time. */
    if (!mu_heap_contains(&session->timer.node) || mu_mono_before(at, session->timer.node.at)) {
        mu_env_timer_arm(s->env, &session->timer, at);
    }
}

void mu_rpc_session_touch(struct mu_rpc_session *session)
{
    if (session->conn != NULL) {
        mu_rpc_conn_touch(session->conn);
    }
    rearm(session);
}

static void account(struct mu_rpc_session *session, size_t bytes)
{
    if (session->server->ops->account != NULL) {
        session->server->ops->account(session, bytes);
    }
}

/* --- the end of a session --------------------------------------------------------------------- */

void mu_rpc_session_end(struct mu_rpc_session *session, const char *why)
{
    struct mu_rpc_server *s = session->server;
    struct mu_rpc_conn *c = session->conn;

    mu_log(MUSTER_LOG_DEBUG, "RPC-SESSION-ENDED", "peer=%s why=\"%s\"", session->peer, why);
    if (c != NULL) {
        c->session = NULL;
        session->conn = NULL;
    }
    mu_map_remove(&s->sessions, &session->by_id);
    mu_list_remove(&session->link);
    s->frames_in += session->rpc.frames_in;
    s->frames_out += session->rpc.frames_out;
    account(session, 0);
    /* The end of one call may answer another, which needs the machine and arms the timer. */
    mu_rpc_served_free_all(session);
    mu_env_timer_arm(s->env, &session->timer, MU_MONO_NEVER);
    mu_rpc_fini(&session->rpc);
    if (c != NULL) {
        mu_rpc_conn_close(c, false);
    }
    s->ops->session_free(session);
}

/* --- events ----------------------------------------------------------------------------------- */

/* False if the session is no more. */
static bool handle_event(struct mu_rpc_session *session, const struct mu_rpc_event *event)
{
    switch (event->type) {
    case MU_RPC_EV_CALL:
    case MU_RPC_EV_CANCEL:
    case MU_RPC_EV_CREDIT:
    case MU_RPC_EV_ITEM:
    case MU_RPC_EV_END:
    case MU_RPC_EV_REPLY:
    case MU_RPC_EV_DRAIN:
        if (session->server->ops->event != NULL) {
            session->server->ops->event(session, event);
        } else {
            mu_rpc_served_event(session, event);
        }
        return true;
    case MU_RPC_EV_LINK_DEAD:
        if (session->conn != NULL) {
            mu_rpc_conn_drop(session->conn, "the peer has been silent for too long");
        }
        return true;
    case MU_RPC_EV_BYE:
        session->goodbye = true;
        mu_rpc_session_end(session, "the client said goodbye");
        return false;
    case MU_RPC_EV_WELCOMED:
    case MU_RPC_EV_REFUSED:
        return true;
    }
    return true;
}

/* False if the session is no more. While the owner is busy, events stay in the machine. */
static bool drain_events(struct mu_rpc_session *session)
{
    struct mu_rpc_event event;

    for (;;) {
        if (is_busy(session->server)) {
            if (session->conn != NULL) {
                session->server->ops->wait(session->conn);
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

void mu_rpc_session_pump(struct mu_rpc_session *session)
{
    if (drain_events(session)) {
        account(session, mu_rpc_memory(&session->rpc));
        mu_rpc_session_touch(session);
    }
}

static void on_timer(struct mu_timer *timer)
{
    struct mu_rpc_session *session = MU_CONTAINER_OF(timer, struct mu_rpc_session, timer);
    struct mu_rpc_server *s = session->server;
    struct mu_now now = mu_env_now(s->env);

    mu_rpc_server_feel_pulse(s);
    if (session->conn != NULL && session->conn->paused) {
        /* It is us who do not listen, for as long as there is too much to do. */
        mu_rpc_stalled(&session->rpc, now, UINT64_MAX);
    }
    if (mu_mono_reached(mu_rpc_grace_deadline(&session->rpc), now.mono)) {
        mu_rpc_session_end(session, "no connection within its grace");
    } else if (mu_rpc_tick(&session->rpc, now) == MUSTER_ENOMEM) {
        mu_env_timer_arm(s->env, &session->timer, mu_mono_add_ms(now.mono, LATER_MS));
    } else {
        mu_rpc_session_pump(session);
    }
    mu_rpc_server_end_turn(s);
}

/* --- our own absence -------------------------------------------------------------------------- */

void mu_rpc_server_feel_pulse(struct mu_rpc_server *s)
{
    struct mu_now now = mu_env_now(s->env);
    uint64_t since = mu_mono_since(s->pulse, now.mono);

    s->pulse = now.mono;
    if (since <= (PULSE_MS + LATE_MS) * MU_NS_PER_MS || s->sessions.count == 0) {
        return;
    }
    mu_log(MUSTER_LOG_DEBUG, "RPC-STALLED", "ms=%" PRIu64, since / MU_NS_PER_MS);
    MU_LIST_FOREACH (it, &s->list) {
        mu_rpc_stalled(&MU_CONTAINER_OF(it, struct mu_rpc_session, link)->rpc, now, since);
    }
}

static void start_pulse(struct mu_rpc_server *s)
{
    mu_mono_t now = mu_env_now(s->env).mono;

    if (!mu_heap_contains(&s->pulse_timer.node)) {
        s->pulse = now;
        mu_env_timer_arm(s->env, &s->pulse_timer, mu_mono_add_ms(now, PULSE_MS));
    }
}

static void on_pulse(struct mu_timer *timer)
{
    struct mu_rpc_server *s = MU_CONTAINER_OF(timer, struct mu_rpc_server, pulse_timer);

    mu_rpc_server_feel_pulse(s);
    if (s->sessions.count != 0) {
        mu_env_timer_arm(s->env, timer, mu_mono_add_ms(s->pulse, PULSE_MS));
    }
}

/* --- greeting --------------------------------------------------------------------------------- */

static void refuse(struct mu_rpc_conn *c, int status, const char *text)
{
    struct mu_buf out;
    size_t taken;

    mu_buf_init(&out, 4096);
    if (mu_rpc_refuse(&out, status, text) == 0) {
        mu_env_send(c->server->env, &c->base, mu_buf_span(&out), &taken);
    }
    mu_buf_fini(&out);
    if (status == MUSTER_EBUSY || status == MUSTER_EREFUSED) {
        /* Nobody did anything wrong; or it was the lock's to say. */
        mu_rpc_conn_close(c, false);
    } else {
        mu_rpc_conn_drop(c, text);
    }
}

static struct mu_rpc_session *new_session(struct mu_rpc_server *s, const struct mu_rpc_hello *hello)
{
    struct mu_rpc_session *session = s->ops->session_new(s, hello);
    struct mu_rpc_config config = s->config.rpc;

    if (session == NULL) {
        return NULL;
    }
    config.role = MU_RPC_SERVER;
    memcpy(config.session, hello->session, sizeof(config.session));
    memcpy(config.incarnation, s->incarnation, sizeof(config.incarnation));
    memcpy(session->id, hello->session, sizeof(session->id));
    session->server = s;
    mu_map_init(&session->calls, s->config.rpc.seed);
    if (mu_rpc_init(&session->rpc, &config) != 0) {
        s->ops->session_free(session);
        return NULL;
    }
    if (mu_map_insert(&s->sessions, &session->by_id, mu_span(session->id, sizeof(session->id))) !=
        0) {
        mu_rpc_fini(&session->rpc);
        s->ops->session_free(session);
        return NULL;
    }
    mu_timer_init(&session->timer, on_timer);
    mu_list_push(&s->list, &session->link);
    start_pulse(s);
    return session;
}

static int link_session(struct mu_rpc_conn *c, struct mu_rpc_session *session,
                        const struct mu_rpc_hello *hello)
{
    struct mu_rpc_conn *old = session->conn;
    int err = mu_rpc_accepted(&session->rpc, mu_env_now(c->server->env), hello);

    if (err == MUSTER_ENOMEM) {
        /* Who is refused does not come back; who is just dropped does. */
        mu_rpc_conn_drop(c, "out of memory for a session");
    } else if (err != 0) {
        /* A session that goes on elsewhere is not harmed by a greeting that comes too late. */
        refuse(c, err, muster_strerror(err));
    }
    if (err != 0) {
        return err;
    }
    if (old != NULL) {
        /* The client has given up the old connection before we noticed. The machine has let go of
         * it already. */
        old->session = NULL;
        mu_rpc_conn_close(old, true);
    }
    session->conn = c;
    c->session = session;
    mu_env_peer(c->server->env, &c->base, session->peer, sizeof(session->peer));
    return 0;
}

/* Finds or makes the session that is meant, and links it; or refuses and closes. */
static void greet(struct mu_rpc_conn *c, const struct mu_rpc_hello *hello)
{
    struct mu_rpc_server *s = c->server;
    struct mu_map_node *node =
        mu_map_find(&s->sessions, mu_span(hello->session, sizeof(hello->session)));
    struct mu_rpc_session *session =
        node == NULL ? NULL : MU_CONTAINER_OF(node, struct mu_rpc_session, by_id);
    struct mu_errmsg why = {0};
    int err;

    if (mu_env_trust(s->env, &c->base) != MU_TRUST_OPEN) {
        refuse(c, MUSTER_EREFUSED,
               "it wants the job's credential: --token-file FILE, or MUSTER_TOKEN_FILE");
        return;
    }
    err = s->ops->greet == NULL ? 0 : s->ops->greet(s, hello, session, &why);
    if (err != 0) {
        refuse(c, err, why.text);
        return;
    }
    if (session == NULL && s->sessions.count >= s->config.sessions_max) {
        refuse(c, MUSTER_ELIMIT, "the server has as many sessions as it may");
        return;
    }
    if (session == NULL) {
        session = new_session(s, hello);
    }
    if (session == NULL) {
        mu_rpc_conn_drop(c, "out of memory for a session");
        return;
    }
    if (link_session(c, session, hello) != 0) {
        if (node == NULL) {
            mu_rpc_session_end(session, "refused");
        }
        return;
    }
    if (s->ops->session_linked != NULL) {
        s->ops->session_linked(session);
    }
    mu_rpc_session_pump(session);
}

/* --- the bytes of a connection ---------------------------------------------------------------- */

static size_t greeting_input(struct mu_rpc_conn *c, struct mu_span in)
{
    struct mu_rpc_hello hello;
    size_t used = 0;
    int err = mu_rpc_greet_recv(&c->greet, in, &used, &hello);

    if (err == MUSTER_EAGAIN) {
        return used;
    }
    if (err != 0) {
        mu_rpc_conn_drop(c, "malformed greeting on the native wire");
        return in.len;
    }
    c->greeted = true;
    greet(c, &hello);
    mu_rpc_greet_fini(&c->greet);
    return used;
}

static size_t session_input(struct mu_rpc_conn *c, struct mu_span in)
{
    struct mu_rpc_server *s = c->server;
    size_t done = 0;

    while (done < in.len && c->session != NULL && !is_busy(s)) {
        struct mu_rpc_session *session = c->session;
        size_t used = 0;
        int err = mu_rpc_recv(&session->rpc, mu_env_now(s->env), mu_span_skip(in, done), &used);

        done += used;
        if (err == MUSTER_ENOMEM) {
            /* The session is whole: its client sends again, on another connection, what was not
             * taken from this one. */
            mu_rpc_conn_drop(c, "out of memory for what it sent");
            break;
        }
        if (err != 0) {
            char peer[64];
            struct mu_errmsg why;

            mu_env_peer(s->env, &c->base, peer, sizeof(peer));
            s->ops->complain(s, peer, mu_rpc_errmsg(&session->rpc));
            (void)mu_err(&why, err, "%s", mu_rpc_errmsg(&session->rpc));
            mu_rpc_session_end(session, why.text);
            break;
        }
        if (!drain_events(session)) {
            break;
        }
    }
    if (c->session != NULL) {
        mu_rpc_session_pump(c->session);
    }
    return c->session == NULL ? in.len : done;
}

static size_t take_input(struct mu_rpc_conn *c, struct mu_span in)
{
    size_t used = c->greeted ? 0 : greeting_input(c, in);

    if (c->greeted && !c->closing && used < in.len) {
        used += session_input(c, mu_span_skip(in, used));
    }
    return used;
}

static size_t get_output(const struct mu_rpc_conn *c, struct mu_span *spans, size_t cap)
{
    return c->session == NULL ? 0 : mu_rpc_outputv(&c->session->rpc, spans, cap);
}

static void note_sent(struct mu_rpc_conn *c, size_t n)
{
    mu_rpc_sent(&c->session->rpc, n);
}

void mu_rpc_conn_flushed(struct mu_rpc_conn *c)
{
    /* The machine holds back calls while too much waits to be sent; its deadline says when it has
     * something to tell. */
    if (c->session != NULL && mu_rpc_deadline(&c->session->rpc).ns == 0) {
        rearm(c->session);
    }
}

static struct mu_rpc_session *let_go(struct mu_rpc_conn *c)
{
    struct mu_rpc_session *session = c->session;

    if (session != NULL) {
        c->session = NULL;
        session->conn = NULL;
    }
    return session;
}

static bool end_input(struct mu_rpc_conn *c)
{
    struct mu_rpc_session *session = let_go(c);

    if (session != NULL) {
        mu_rpc_eof(&session->rpc, mu_env_now(c->server->env), c->server->config.eof_grace_ms);
        rearm(session);
    }
    return false;
}

const struct mu_rpc_protocol mu_rpc_native = {
    .input = take_input,
    .output = get_output,
    .sent = note_sent,
    .eof = end_input,
};

void mu_rpc_conn_unlink(struct mu_rpc_conn *c)
{
    struct mu_rpc_session *session = let_go(c);

    if (!c->greeted) {
        c->greeted = true;
        mu_rpc_greet_fini(&c->greet);
    }
    if (session != NULL) {
        mu_rpc_unlinked(&session->rpc, mu_env_now(c->server->env));
        rearm(session);
    }
}

/* --- life ------------------------------------------------------------------------------------- */

void mu_rpc_server_init(struct mu_rpc_server *s, struct mu_env *env,
                        const struct mu_rpc_server_config *config,
                        const struct mu_rpc_server_ops *ops)
{
    *s = (struct mu_rpc_server){.env = env, .config = *config, .ops = ops};
    mu_env_entropy(env, s->incarnation, sizeof(s->incarnation));
    mu_map_init(&s->sessions, config->rpc.seed);
    mu_list_init(&s->list);
    mu_list_init(&s->listeners);
    mu_list_init(&s->conns);
    mu_list_init(&s->touched);
    mu_timer_init(&s->pulse_timer, on_pulse);
}

void mu_rpc_server_stop(struct mu_rpc_server *s)
{
    mu_env_timer_arm(s->env, &s->pulse_timer, MU_MONO_NEVER);
}

void mu_rpc_server_end_all(struct mu_rpc_server *s, const char *why)
{
    MU_LIST_FOREACH_SAFE (it, tmp, &s->list) {
        mu_rpc_session_end(MU_CONTAINER_OF(it, struct mu_rpc_session, link), why);
    }
}

void mu_rpc_server_leave(struct mu_rpc_server *s, const char *why)
{
    s->leaving = true;
    mu_rpc_server_unlisten(s);
    MU_LIST_FOREACH (it, &s->list) {
        struct mu_rpc_session *session = MU_CONTAINER_OF(it, struct mu_rpc_session, link);

        (void)mu_rpc_close(&session->rpc, mu_env_now(s->env));
        if (session->conn != NULL) {
            (void)mu_rpc_conn_send(session->conn, SIZE_MAX);
        }
    }
    mu_rpc_server_end_all(s, why);
    mu_rpc_server_close_conns(s, false);
}

void mu_rpc_server_fini(struct mu_rpc_server *s)
{
    mu_map_fini(&s->sessions);
}

void mu_rpc_server_drain(struct mu_rpc_server *s, const char *why)
{
    MU_LIST_FOREACH (it, &s->list) {
        struct mu_rpc_session *session = MU_CONTAINER_OF(it, struct mu_rpc_session, link);

        if (session->conn != NULL) {
            (void)mu_rpc_drain(&session->rpc, mu_env_now(s->env), why);
            mu_rpc_conn_touch(session->conn);
        }
    }
}

void mu_rpc_server_frames(const struct mu_rpc_server *s, uint64_t *ret_in, uint64_t *ret_out)
{
    *ret_in = s->frames_in;
    *ret_out = s->frames_out;
    MU_LIST_FOREACH (it, &s->list) {
        const struct mu_rpc_session *session = MU_CONTAINER_OF(it, struct mu_rpc_session, link);

        *ret_in += session->rpc.frames_in;
        *ret_out += session->rpc.frames_out;
    }
}
