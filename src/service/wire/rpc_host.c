#include "service/wire/rpc_host.h"

#include <inttypes.h>
#include <string.h>

#include "service/base/log.h"

#define LATER_MS 100 /* how soon is looked again at what could not be done */

/* How often we look whether we are awake, and how much later than that a look may be. The shortest
 * silence that can be agreed upon is two beats of 50 ms. */
#define PULSE_MS 50
#define LATE_MS  50

static bool is_busy(const struct mu_rpc_host *h)
{
    return h->ops->is_busy != NULL && h->ops->is_busy(h);
}

static void rearm(struct mu_rpc_session *session)
{
    struct mu_rpc_host *h = session->host;
    mu_mono_t at = mu_rpc_deadline(&session->rpc);

    if (at.ns == 0 && is_busy(h)) {
        /* What it has to tell must wait, and `wait` has seen to it if there is a link. */
        at = mu_mono_add_ms(mu_env_now(h->env).mono, LATER_MS);
    }
    at = mu_mono_min(at, mu_rpc_grace_deadline(&session->rpc));
    /* Every frame moves the deadline out. A timer that fires early just looks and is armed again,
     * which costs less than moving it each time. */
    if (!mu_heap_contains(&session->timer.node) || mu_mono_before(at, session->timer.node.at)) {
        mu_env_timer_arm(h->env, &session->timer, at);
    }
}

void mu_rpc_session_touch(struct mu_rpc_session *session)
{
    if (session->conn != NULL) {
        session->host->ops->touch(session->conn);
    }
    rearm(session);
}

/* --- the end of a session --------------------------------------------------------------------- */

void mu_rpc_session_end(struct mu_rpc_session *session, const char *why)
{
    struct mu_rpc_host *h = session->host;
    struct mu_rpc_hosted *c = session->conn;

    mu_log(MUSTER_LOG_DEBUG, "RPC-SESSION-ENDED", "peer=%s why=\"%s\"", session->peer, why);
    mu_env_timer_arm(h->env, &session->timer, MU_MONO_NEVER);
    if (c != NULL) {
        c->session = NULL;
        session->conn = NULL;
    }
    mu_map_remove(&h->sessions, &session->by_id);
    mu_list_remove(&session->link);
    h->frames_in += session->rpc.frames_in;
    h->frames_out += session->rpc.frames_out;
    (void)h->ops->account(session, 0);
    mu_rpc_fini(&session->rpc);
    if (c != NULL && !c->released) {
        h->ops->close(c, false);
    }
    h->ops->session_free(session);
}

/* --- events ----------------------------------------------------------------------------------- */

static void drop(struct mu_rpc_hosted *c, const char *why)
{
    char peer[64];

    if (!c->released) {
        mu_env_peer(c->host->env, c->conn, peer, sizeof(peer));
        c->host->ops->complain(c->host, peer, why);
        c->host->ops->close(c, false);
    }
}

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
        session->host->ops->event(session, event);
        return true;
    case MU_RPC_EV_LINK_DEAD:
        if (session->conn != NULL) {
            drop(session->conn, "the peer has been silent for too long");
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
        if (is_busy(session->host)) {
            if (session->conn != NULL) {
                session->host->ops->wait(session->conn);
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
    struct mu_rpc_host *h = session->host;

    if (!drain_events(session)) {
        return;
    }
    if (!h->ops->account(session, mu_rpc_memory(&session->rpc))) {
        h->ops->complain(h, session->peer,
                         "the buffers of all connections together are over their limit");
        mu_rpc_session_end(session, "buffers over the limit");
        return;
    }
    mu_rpc_session_touch(session);
}

static void on_timer(struct mu_timer *timer)
{
    struct mu_rpc_session *session = MU_CONTAINER_OF(timer, struct mu_rpc_session, timer);
    struct mu_rpc_host *h = session->host;
    struct mu_now now = mu_env_now(h->env);

    mu_rpc_host_feel_pulse(h);
    if (session->conn != NULL && h->ops->is_paused(session->conn)) {
        /* It is us who do not listen, for as long as there is too much to do. */
        mu_rpc_stalled(&session->rpc, now, UINT64_MAX);
    }
    if (mu_mono_reached(mu_rpc_grace_deadline(&session->rpc), now.mono)) {
        mu_rpc_session_end(session, "no connection within its grace");
    } else if (mu_rpc_tick(&session->rpc, now) == MUSTER_ENOMEM) {
        mu_env_timer_arm(h->env, &session->timer, mu_mono_add_ms(now.mono, LATER_MS));
    } else {
        mu_rpc_session_pump(session);
    }
    h->ops->turn_ended(h);
}

/* --- our own absence -------------------------------------------------------------------------- */

void mu_rpc_host_feel_pulse(struct mu_rpc_host *h)
{
    struct mu_now now = mu_env_now(h->env);
    uint64_t since = mu_mono_since(h->pulse, now.mono);

    h->pulse = now.mono;
    if (since <= (PULSE_MS + LATE_MS) * MU_NS_PER_MS || h->sessions.count == 0) {
        return;
    }
    mu_log(MUSTER_LOG_DEBUG, "RPC-STALLED", "ms=%" PRIu64, since / MU_NS_PER_MS);
    MU_LIST_FOREACH (it, &h->list) {
        mu_rpc_stalled(&MU_CONTAINER_OF(it, struct mu_rpc_session, link)->rpc, now, since);
    }
}

static void start_pulse(struct mu_rpc_host *h)
{
    mu_mono_t now = mu_env_now(h->env).mono;

    if (!mu_heap_contains(&h->pulse_timer.node)) {
        h->pulse = now;
        mu_env_timer_arm(h->env, &h->pulse_timer, mu_mono_add_ms(now, PULSE_MS));
    }
}

static void on_pulse(struct mu_timer *timer)
{
    struct mu_rpc_host *h = MU_CONTAINER_OF(timer, struct mu_rpc_host, pulse_timer);

    mu_rpc_host_feel_pulse(h);
    if (h->sessions.count != 0) {
        mu_env_timer_arm(h->env, timer, mu_mono_add_ms(h->pulse, PULSE_MS));
    }
}

/* --- greeting --------------------------------------------------------------------------------- */

static void refuse(struct mu_rpc_hosted *c, int status, const char *text)
{
    struct mu_buf out;
    size_t taken;

    mu_buf_init(&out, 4096);
    if (mu_rpc_refuse(&out, status, text) == 0) {
        mu_env_send(c->host->env, c->conn, mu_buf_span(&out), &taken);
    }
    mu_buf_fini(&out);
    if (status == MUSTER_EBUSY || status == MUSTER_EREFUSED) {
        /* Nobody did anything wrong; or it was the lock's to say. */
        c->host->ops->close(c, false);
    } else {
        drop(c, text);
    }
}

static struct mu_rpc_session *new_session(struct mu_rpc_host *h, const struct mu_rpc_hello *hello)
{
    struct mu_rpc_session *session = h->ops->session_new(h, hello);
    struct mu_rpc_config config = h->config.rpc;

    if (session == NULL) {
        return NULL;
    }
    config.role = MU_RPC_SERVER;
    memcpy(config.session, hello->session, sizeof(config.session));
    memcpy(config.incarnation, h->incarnation, sizeof(config.incarnation));
    memcpy(session->id, hello->session, sizeof(session->id));
    session->host = h;
    if (mu_rpc_init(&session->rpc, &config) != 0) {
        h->ops->session_free(session);
        return NULL;
    }
    if (mu_map_insert(&h->sessions, &session->by_id, mu_span(session->id, sizeof(session->id))) !=
        0) {
        mu_rpc_fini(&session->rpc);
        h->ops->session_free(session);
        return NULL;
    }
    mu_timer_init(&session->timer, on_timer);
    mu_list_push(&h->list, &session->link);
    start_pulse(h);
    return session;
}

static int link_session(struct mu_rpc_hosted *c, struct mu_rpc_session *session,
                        const struct mu_rpc_hello *hello)
{
    struct mu_rpc_hosted *old = session->conn;
    int err = mu_rpc_accepted(&session->rpc, mu_env_now(c->host->env), hello);

    if (err == MUSTER_ENOMEM) {
        /* Who is refused does not come back; who is just dropped does. */
        drop(c, "out of memory for a session");
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
        c->host->ops->close(old, true);
    }
    session->conn = c;
    c->session = session;
    mu_env_peer(c->host->env, c->conn, session->peer, sizeof(session->peer));
    return 0;
}

/* Finds or makes the session that is meant, and links it; or refuses and closes. */
static void greet(struct mu_rpc_hosted *c, const struct mu_rpc_hello *hello)
{
    struct mu_rpc_host *h = c->host;
    struct mu_map_node *node =
        mu_map_find(&h->sessions, mu_span(hello->session, sizeof(hello->session)));
    struct mu_rpc_session *session =
        node == NULL ? NULL : MU_CONTAINER_OF(node, struct mu_rpc_session, by_id);
    struct mu_errmsg why = {0};
    int err;

    if (mu_env_trust(h->env, c->conn) != MU_TRUST_OPEN) {
        refuse(c, MUSTER_EREFUSED,
               "it wants the job's credential: --token-file FILE, or MUSTER_TOKEN_FILE");
        return;
    }
    err = h->ops->greet == NULL ? 0 : h->ops->greet(h, hello, session, &why);
    if (err != 0) {
        refuse(c, err, why.text);
        return;
    }
    if (session == NULL && h->sessions.count >= h->config.sessions_max) {
        refuse(c, MUSTER_ELIMIT, "the server has as many sessions as it may");
        return;
    }
    if (session == NULL) {
        session = new_session(h, hello);
    }
    if (session == NULL) {
        drop(c, "out of memory for a session");
        return;
    }
    if (link_session(c, session, hello) != 0) {
        if (node == NULL) {
            mu_rpc_session_end(session, "refused");
        }
        return;
    }
    if (h->ops->session_linked != NULL) {
        h->ops->session_linked(session);
    }
    mu_rpc_session_pump(session);
}

/* --- connections ------------------------------------------------------------------------------ */

void mu_rpc_hosted_init(struct mu_rpc_hosted *c, struct mu_rpc_host *h, struct mu_conn *conn)
{
    *c = (struct mu_rpc_hosted){.host = h, .conn = conn, .greeting = true};
    mu_rpc_greet_init(&c->greet);
}

static size_t greeting_input(struct mu_rpc_hosted *c, struct mu_span in)
{
    struct mu_rpc_hello hello;
    size_t used = 0;
    int err = mu_rpc_greet_recv(&c->greet, in, &used, &hello);

    if (err == MUSTER_EAGAIN) {
        return used;
    }
    if (err != 0) {
        drop(c, "malformed greeting on the native wire");
        return in.len;
    }
    c->greeting = false;
    greet(c, &hello);
    mu_rpc_greet_fini(&c->greet);
    return used;
}

static size_t session_input(struct mu_rpc_hosted *c, struct mu_span in)
{
    struct mu_rpc_host *h = c->host;
    size_t done = 0;

    while (done < in.len && c->session != NULL && !is_busy(h)) {
        struct mu_rpc_session *session = c->session;
        size_t used = 0;
        int err = mu_rpc_recv(&session->rpc, mu_env_now(h->env), mu_span_skip(in, done), &used);

        done += used;
        if (err == MUSTER_ENOMEM) {
            /* The session is whole: its client sends again, on another connection, what was not
             * taken from this one. */
            drop(c, "out of memory for what it sent");
            break;
        }
        if (err != 0) {
            char peer[64];
            struct mu_errmsg why;

            mu_env_peer(h->env, c->conn, peer, sizeof(peer));
            h->ops->complain(h, peer, mu_rpc_errmsg(&session->rpc));
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

size_t mu_rpc_hosted_input(struct mu_rpc_hosted *c, struct mu_span in)
{
    size_t used = c->greeting ? greeting_input(c, in) : 0;

    if (!c->greeting && !c->released && used < in.len) {
        used += session_input(c, mu_span_skip(in, used));
    }
    return c->released ? in.len : used;
}

struct mu_span mu_rpc_hosted_output(const struct mu_rpc_hosted *c)
{
    return c->session == NULL ? (struct mu_span){0} : mu_rpc_output(&c->session->rpc);
}

size_t mu_rpc_hosted_outputv(const struct mu_rpc_hosted *c, struct mu_span *spans, size_t cap)
{
    return c->session == NULL ? 0 : mu_rpc_outputv(&c->session->rpc, spans, cap);
}

struct mu_space mu_rpc_hosted_room(struct mu_rpc_hosted *c)
{
    return c->session == NULL || c->released ? (struct mu_space){0} : mu_rpc_room(&c->session->rpc);
}

void mu_rpc_hosted_sent(struct mu_rpc_hosted *c, size_t n)
{
    mu_rpc_sent(&c->session->rpc, n);
}

void mu_rpc_hosted_flushed(struct mu_rpc_hosted *c)
{
    /* The machine holds back calls while too much waits to be sent; its deadline says when it has
     * something to tell. */
    if (c->session != NULL && mu_rpc_deadline(&c->session->rpc).ns == 0) {
        rearm(c->session);
    }
}

static struct mu_rpc_session *let_go(struct mu_rpc_hosted *c)
{
    struct mu_rpc_session *session = c->session;

    if (session != NULL) {
        c->session = NULL;
        session->conn = NULL;
    }
    return session;
}

void mu_rpc_hosted_eof(struct mu_rpc_hosted *c)
{
    struct mu_rpc_session *session = let_go(c);

    if (session != NULL) {
        mu_rpc_eof(&session->rpc, mu_env_now(c->host->env), c->host->config.eof_grace_ms);
        rearm(session);
    }
}

void mu_rpc_hosted_release(struct mu_rpc_hosted *c)
{
    struct mu_rpc_session *session = let_go(c);

    c->released = true;
    if (c->greeting) {
        c->greeting = false;
        mu_rpc_greet_fini(&c->greet);
    }
    if (session != NULL) {
        mu_rpc_unlinked(&session->rpc, mu_env_now(c->host->env));
        rearm(session);
    }
}

/* --- life ------------------------------------------------------------------------------------- */

void mu_rpc_host_init(struct mu_rpc_host *h, struct mu_env *env,
                      const struct mu_rpc_host_config *config, const struct mu_rpc_host_ops *ops)
{
    *h = (struct mu_rpc_host){.env = env, .config = *config, .ops = ops};
    mu_env_entropy(env, h->incarnation, sizeof(h->incarnation));
    mu_map_init(&h->sessions, config->rpc.seed);
    mu_list_init(&h->list);
    mu_timer_init(&h->pulse_timer, on_pulse);
}

void mu_rpc_host_stop(struct mu_rpc_host *h)
{
    mu_env_timer_arm(h->env, &h->pulse_timer, MU_MONO_NEVER);
}

void mu_rpc_host_end_all(struct mu_rpc_host *h, const char *why)
{
    MU_LIST_FOREACH_SAFE (it, tmp, &h->list) {
        mu_rpc_session_end(MU_CONTAINER_OF(it, struct mu_rpc_session, link), why);
    }
}

void mu_rpc_host_fini(struct mu_rpc_host *h)
{
    mu_map_fini(&h->sessions);
}

void mu_rpc_host_drain(struct mu_rpc_host *h, const char *why)
{
    MU_LIST_FOREACH (it, &h->list) {
        struct mu_rpc_session *session = MU_CONTAINER_OF(it, struct mu_rpc_session, link);

        if (session->conn != NULL) {
            (void)mu_rpc_drain(&session->rpc, mu_env_now(h->env), why);
            h->ops->touch(session->conn);
        }
    }
}

void mu_rpc_host_frames(const struct mu_rpc_host *h, uint64_t *ret_in, uint64_t *ret_out)
{
    *ret_in = h->frames_in;
    *ret_out = h->frames_out;
    MU_LIST_FOREACH (it, &h->list) {
        const struct mu_rpc_session *session = MU_CONTAINER_OF(it, struct mu_rpc_session, link);

        *ret_in += session->rpc.frames_in;
        *ret_out += session->rpc.frames_out;
    }
}
