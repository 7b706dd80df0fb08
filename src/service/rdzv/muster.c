/*
 * The native backend: one session with a muster server, one call "join" in it for as long as the
 * node is a member. The server keeps the node in the run from round to round, so what a user sees
 * (service/rdzv/rdzv.h) and what the server knows differ in one place only: after a round has
 * ended, the next one may be assigned before the user asks for it. Then it is held back.
 *
 *     user       OUT ---join---> JOINING --assigned--> IN --ended--> BETWEEN ---join---> JOINING
 *     the call   none            out                   out           out, or none if the server
 *                                                                    has forgotten the session
 */
#include "service/rdzv/muster.h"

#include <inttypes.h>
#include <string.h>

#include "codec/text/ip.h"
#include "core/addr.h"
#include "core/alloc.h"
#include "service/server/server.h"

#define LEAVE_MS  UINT64_C(2000)  /* until a leave is over without the server's word */
#define CLOSE_MS  UINT64_C(30000) /* until a close has failed */
#define ANSWER_MS UINT64_C(5000)  /* how much longer than the server a joining node waits */
#define PROBE_MS  UINT32_C(5000)
#define GREETINGS 5
#define RETRY_MS  UINT64_C(10) /* until something that found no memory is tried again */
#define SAY_BYTES 64

static struct mu_rdzv_muster *native_of(struct mu_rdzv_handler *h)
{
    return MU_CONTAINER_OF(h, struct mu_rdzv_muster, base);
}

static mu_mono_t mono(struct mu_rdzv_muster *n)
{
    return mu_env_now(n->base.env).mono;
}

void mu_rdzv_muster_rearm(struct mu_rdzv_muster *n)
{
    mu_mono_t at = n->soon != 0 ? mono(n) : MU_MONO_NEVER;

    at = mu_mono_min(at, mu_mono_min(n->join_deadline, n->leave_deadline));
    at = mu_mono_min(at, mu_mono_min(n->close_deadline, n->retry_at));
    at = mu_mono_min(at, n->fence_at);
    mu_env_timer_arm(n->base.env, &n->timer, at);
}

void mu_rdzv_muster_arm_join(struct mu_rdzv_muster *n)
{
    if (n->config.join_timeout_ms != 0) {
        n->join_deadline = mu_mono_add_ms(mono(n), n->config.join_timeout_ms);
        n->join_extended = false;
        mu_rdzv_muster_rearm(n);
    }
}

void mu_rdzv_muster_soon(struct mu_rdzv_muster *n, unsigned what)
{
    n->soon |= what;
    mu_rdzv_muster_rearm(n);
}

void mu_rdzv_muster_retry_later(struct mu_rdzv_muster *n)
{
    n->retry_at = mu_mono_add_ms(mono(n), RETRY_MS);
    mu_rdzv_muster_rearm(n);
}

/* --- what we say ------------------------------------------------------------------------------ */

static int send_join(struct mu_rdzv_muster *n)
{
    struct mu_rdzv_join join = {
        .run_id = mu_span_str(n->base.run_id),
        .node = mu_span_str(n->base.node),
        .addr = mu_span_str(n->base.addr),
        .topology = mu_span_str(n->config.topology),
        .flags = n->config.join_flags | (n->spent != 0 ? MU_RDZV_JOIN_SPENT : 0),
        .nodes_min = n->config.nodes_min,
        .nodes_max = n->config.nodes_max,
        .target = n->config.target,
        .restarts_max = n->config.restarts_max,
        .last_call_ms = n->config.last_call_ms,
        .upscale_delay_ms = n->config.upscale_delay_ms,
        .join_timeout_ms = n->config.join_timeout_ms,
        .incarnation = n->incarnation,
        .spares = n->config.spares,
        .spent = n->spent,
    };
    struct mu_buf out;
    int err;

    mu_buf_init(&out, 5 * (MU_RDZV_NAME_LEN_MAX + 64));
    err = mu_rdzv_join_encode(&out, &join);
    if (err == 0) {
        err = mu_rpc_client_call(&n->rpc, MU_SPAN_LIT(MU_RDZV_METHOD_JOIN), mu_buf_span(&out), 0,
                                 &n->call);
    }
    mu_buf_fini(&out);
    if (err == 0) {
        n->join_said = mono(n);
        mu_rdzv_handler_record(&n->base, MU_RDZV_RECORD_INIT, -1, "muster.join",
                               "asked %.120s for a place, %" PRIu32 " to %" PRIu32 " nodes",
                               n->address, n->config.nodes_min, n->config.nodes_max);
    }
    return err;
}

static int send_word(struct mu_rdzv_muster *n)
{
    struct mu_buf out;
    int err;

    mu_buf_init(&out, SAY_BYTES);
    err = mu_rdzv_say_encode(&out, (enum mu_rdzv_say)n->say, n->round);
    if (err == 0) {
        err = mu_rpc_client_item(&n->rpc, n->call, mu_buf_span(&out));
    }
    mu_buf_fini(&out);
    return err;
}

static int send_close(struct mu_rdzv_muster *n)
{
    struct mu_buf out;
    int err;

    mu_buf_init(&out, MU_RDZV_NAME_LEN_MAX + SAY_BYTES);
    err = mu_rdzv_run_id_encode(&out, mu_span_str(n->base.run_id));
    if (err == 0) {
        err = mu_rpc_client_call(&n->rpc, MU_SPAN_LIT(MU_RDZV_METHOD_CLOSE), mu_buf_span(&out),
                                 (uint32_t)CLOSE_MS, &n->close_call);
    }
    mu_buf_fini(&out);
    return err;
}

/* Says what there is to say, as far as it can be said now. */
static void say(struct mu_rdzv_muster *n)
{
    int err = 0;

    if (n->client != MU_RDZV_CLIENT_LIVE || !n->rpc.ready || n->freeing) {
        return;
    }
    if (n->state == MU_RDZV_JOINING && n->call == 0 && !n->closed &&
        (n->soon & MU_RDZV_SOON_FAIL) == 0) {
        err = send_join(n);
    }
    if (err == 0 && n->say != 0 && n->call != 0) {
        err = send_word(n);
        n->say = err != 0 ? n->say : 0;
    }
    if (err == 0 && n->say_end && n->call != 0) {
        err = mu_rpc_client_end(&n->rpc, n->call);
        n->say_end = err != 0;
    }
    if (err == 0 && n->closing && n->close_call == 0 && !n->closed) {
        err = send_close(n);
    }
    if (err == MUSTER_ENOMEM) {
        mu_rdzv_muster_retry_later(n); /* What lacked credit is tried again when there is some. */
    }
}

static void finish_free(struct mu_rdzv_muster *n);
static void start_client(struct mu_rdzv_muster *n);
static void need_client(struct mu_rdzv_muster *n);

/* --- the session ------------------------------------------------------------------------------ */

static void on_turn_ended(void *context)
{
    say(context);
}

/* There is no use in this client any more. */
static void drop_client(struct mu_rdzv_muster *n)
{
    if (n->client == MU_RDZV_CLIENT_LIVE) {
        n->client = MU_RDZV_CLIENT_CLOSING;
        n->call = n->close_call = n->explain_call = 0;
        mu_rpc_client_close(&n->rpc);
    }
}

static void fail_all(struct mu_rdzv_muster *n, int status, const char *text)
{
    struct mu_errmsg copy;

    (void)mu_err(&copy, status, "%s", text);
    drop_client(n);
    if (n->closing) {
        mu_rdzv_muster_tell_close_failed(n, status, copy.text);
    }
    if (n->leaving) {
        mu_rdzv_muster_tell_left(n);
    } else if (n->state == MU_RDZV_JOINING) {
        mu_rdzv_muster_tell_failed(n, status, copy.text);
    }
}

static void on_mismatch(void *context, bool silent)
{
    struct mu_rdzv_muster *n = context;
    struct mu_errmsg text;

    (void)mu_err(
        &text, 0,
        "what listens on %.100s %s: it is not a muster server. Start `muster serve` there, "
        "or use the c10d backend if it is PyTorch's store",
        n->address, silent ? "does not answer" : "does not understand us");
    fail_all(n, MUSTER_ERDZV_CONN, text.text);
}

static void on_failed(void *context, int status, const char *text)
{
    (void)status;
    fail_all(context, MUSTER_ERDZV_CONN, text);
}

/* Whoever can bind the endpoint hosts. Asked again whenever there is nobody to connect to: the host
 * may be gone, and this node be the one to take its place. */
static int elect(struct mu_rdzv_muster *n, struct mu_errmsg *reterr_msg)
{
    uint8_t bytes[16];
    struct mu_span host = mu_span_str(n->endpoint.host);
    int rc;

    if (n->server != NULL || n->elsewhere) {
        return 0;
    }
    rc = mu_rdzv_host(n->base.env, n->config.host, &n->endpoint, &n->server, reterr_msg);
    if (rc < 0) {
        return rc;
    }
    n->base.hosting = rc == 1;
    /* Everything waits while a name is looked up, the fence too, and where nobody answers that is
     * for many seconds. A name that led elsewhere is not looked up again. */
    n->elsewhere =
        rc == MU_RDZV_ELSEWHERE && !mu_ip4_parse(host, bytes) && !mu_ip6_parse(host, bytes);
    (void)mu_addr_format(&n->endpoint, n->address, sizeof(n->address));
    if (strcmp(n->host_text.text, reterr_msg->text) != 0) {
        n->host_text = *reterr_msg;
        mu_rdzv_muster_soon(n, MU_RDZV_SOON_RECORD);
    }
    return 0;
}

/*
 * No connection for a while. The session is kept: a server that was stopped knows it when it wakes.
 * But if the server is gone, this node may be the one to take its place; then it knows nobody, and
 * the members find out. What runs meanwhile is the fence's to look after.
 */
static void on_gave_up(void *context, int status, const char *text)
{
    struct mu_rdzv_muster *n = context;
    struct mu_errmsg msg = {{0}};

    (void)status;
    if (n->freeing) {
        return;
    }
    if (n->rpc.last_error != MUSTER_ESESSION) {
        (void)elect(n, &msg); /* Whoever cannot host tries on. */
        return;
    }
    /* The server has a session of that name, and ours is another: it does not help to try on. */
    if (n->call != 0) {
        (void)mu_rpc_client_cancel(&n->rpc, n->call);
    }
    mu_rdzv_muster_dropped(n, text);
    if (n->state == MU_RDZV_JOINING && n->client == MU_RDZV_CLIENT_LIVE) {
        need_client(n);
    }
}

static void on_ready(void *context)
{
    struct mu_rdzv_muster *n = context;

    mu_rdzv_handler_record(&n->base, MU_RDZV_RECORD_INIT, -1, "muster.connected",
                           "connected to %.120s", n->address); /* `turn_ended` follows. */
}

static void on_client_closed(void *context)
{
    struct mu_rdzv_muster *n = context;

    n->client = MU_RDZV_CLIENT_NONE;
    if (n->freeing) {
        finish_free(n);
    } else if (n->client_again) {
        n->client_again = false;
        start_client(n);
    }
}

static void start_client(struct mu_rdzv_muster *n)
{
    const struct mu_rpc_client_events events = {
        .ready = on_ready,
        .mismatch = on_mismatch,
        .failed = on_failed,
        .gave_up = on_gave_up,
        .reply = mu_rdzv_muster_reply,
        .item = mu_rdzv_muster_item,
        .turn_ended = on_turn_ended,
        .closed = on_client_closed,
        .context = n,
    };
    struct mu_rpc_config terms = mu_rpc_config_defaults();
    struct mu_rpc_client_config config = {
        .addr = n->endpoint,
        .name = n->base.node,
        .connect_ms = 0, /* for ever: a join, or a close, has its own deadline */
        .reconnect_ms = n->config.dead_ms / 3, /* until it is looked whether we can host */
        .probe_ms = PROBE_MS,
        .greetings = GREETINGS,
        .grace_ms = n->config.grace_ms,
        .beat_ms = n->config.beat_ms,
        .dead_ms = n->config.dead_ms,
        .terms = &terms,
    };
    int err;

    terms.confirms = true;
    err = mu_rpc_client_init(&n->rpc, n->base.env, &config, &events);

    if (err == 0) {
        n->client = MU_RDZV_CLIENT_LIVE;
        return;
    }
    n->soon_status = mu_err(&n->soon_text, err, "cannot make a session: %s", muster_strerror(err));
    mu_rdzv_muster_soon(n, MU_RDZV_SOON_FAIL);
}

/* Sees to it that there is a client, and a fresh one if the old one found nobody. */
static void need_client(struct mu_rdzv_muster *n)
{
    struct mu_errmsg msg = {{0}};

    if (n->client == MU_RDZV_CLIENT_LIVE && (n->call != 0 || n->rpc.last_error == 0)) {
        mu_rpc_client_run_soon(&n->rpc);
        return;
    }
    if (elect(n, &msg) != 0) {
        n->soon_status = MUSTER_ERDZV_CONN;
        n->soon_text = msg;
        mu_rdzv_muster_soon(n, MU_RDZV_SOON_FAIL);
        return;
    }
    if (n->client == MU_RDZV_CLIENT_NONE) {
        start_client(n);
    } else {
        n->client_again = true;
        drop_client(n);
    }
}

/* --- time ------------------------------------------------------------------------------------- */

static bool is_linked(const struct mu_rdzv_muster *n)
{
    return n->client == MU_RDZV_CLIENT_LIVE && mu_rpc_client_linked(&n->rpc);
}

static void join_is_late(struct mu_rdzv_muster *n)
{
    struct mu_errmsg text;
    bool linked = is_linked(n);
    int why = n->rpc.last_error != 0 ? n->rpc.last_error : MUSTER_ETIMEDOUT;

    n->join_deadline = MU_MONO_NEVER;
    if (n->state != MU_RDZV_JOINING) {
        return;
    }
    if (linked && !n->join_extended) {
        /* The server counts from when it heard of us, and can say who is missing. */
        n->join_extended = true;
        n->join_deadline = mu_mono_add_ms(mono(n), n->config.join_timeout_ms + ANSWER_MS);
        return;
    }
    if (linked) {
        (void)mu_err(&text, 0, "no round within %g s, and %.100s does not say why",
                     (double)n->config.join_timeout_ms / 1000, n->address);
    } else {
        (void)mu_err(&text, 0,
                     "cannot connect to %.100s: %s (tried for %g s); is a server running there?",
                     n->address, muster_strerror(why), (double)n->config.join_timeout_ms / 1000);
    }
    mu_rdzv_muster_tell_failed(n, linked ? MUSTER_ERDZV_TIMEOUT : MUSTER_ERDZV_CONN, text.text);
}

static void close_is_late(struct mu_rdzv_muster *n)
{
    bool linked = is_linked(n);
    struct mu_errmsg text;

    (void)mu_err(&text, 0, "%.120s %s within %" PRIu64 " s", n->address,
                 linked ? "did not answer a close" : "could not be connected to", CLOSE_MS / 1000);
    mu_rdzv_muster_tell_close_failed(n, linked ? MUSTER_ERDZV_TIMEOUT : MUSTER_ERDZV_CONN,
                                     text.text);
}

static void deliver_held(struct mu_rdzv_muster *n)
{
    struct mu_rdzv_notice notice;
    struct mu_buf held = n->held;

    if (n->state != MU_RDZV_JOINING || held.len == 0 || mu_rdzv_muster_is_cut_off(n)) {
        return;
    }
    mu_buf_init(&n->held, held.max);
    n->say = 0; /* What there was to say of the round before, the server knows. */
    if (mu_rdzv_notice_decode(mu_buf_span(&held), &notice) == 0) {
        mu_rdzv_muster_tell_assigned(n, &notice);
    }
    mu_buf_fini(&held);
}

static void run_soon(struct mu_rdzv_muster *n, unsigned what)
{
    if ((what & MU_RDZV_SOON_RECORD) != 0 && n->host_text.text[0] != '\0') {
        mu_rdzv_handler_record(&n->base, MU_RDZV_RECORD_INIT, -1, "muster.host", "%s",
                               n->host_text.text);
    }
    if ((what & MU_RDZV_SOON_EXPLAIN) != 0) {
        mu_rdzv_muster_explain(n);
    }
    if ((what & MU_RDZV_SOON_CLOSED) != 0) {
        mu_rdzv_muster_tell_closed(n, MUSTER_ERDZV_CLOSED, "the run is closed");
    } else if ((what & MU_RDZV_SOON_FAIL) != 0) {
        fail_all(n, n->soon_status, n->soon_text.text);
    } else if ((what & MU_RDZV_SOON_LEFT) != 0) {
        mu_rdzv_muster_tell_left(n);
    } else if ((what & MU_RDZV_SOON_HELD) != 0) {
        deliver_held(n);
    }
}

static void on_timer(struct mu_timer *timer)
{
    struct mu_rdzv_muster *n = MU_CONTAINER_OF(timer, struct mu_rdzv_muster, timer);
    mu_mono_t now = mono(n);
    unsigned what = n->soon;

    n->soon = 0;
    if ((what & MU_RDZV_SOON_FREE) != 0) {
        finish_free(n);
        return;
    }
    run_soon(n, what);
    if (mu_mono_reached(n->retry_at, now)) {
        n->retry_at = MU_MONO_NEVER;
        say(n);
    }
    if (mu_mono_reached(n->fence_at, now)) {
        mu_rdzv_muster_fence(n);
    }
    if (mu_mono_reached(n->join_deadline, now)) {
        join_is_late(n);
    }
    if (mu_mono_reached(n->leave_deadline, now)) {
        mu_rdzv_muster_tell_left(n);
    }
    if (mu_mono_reached(n->close_deadline, now)) {
        close_is_late(n);
    }
    mu_rdzv_muster_rearm(n);
}

/* --- for its user ----------------------------------------------------------------------------- */

static void native_join(struct mu_rdzv_handler *h)
{
    struct mu_rdzv_muster *n = native_of(h);
    bool was_in = n->state == MU_RDZV_IN;

    if (n->freeing || n->state == MU_RDZV_JOINING) {
        return;
    }
    n->state = MU_RDZV_JOINING;
    n->rank = -1;
    if (n->closed) {
        n->soon_status = mu_err(&n->soon_text, MUSTER_ERDZV_CLOSED, "the run is closed");
        mu_rdzv_muster_soon(n, MU_RDZV_SOON_FAIL);
        return;
    }
    mu_rdzv_muster_arm_join(n);
    if (was_in && n->call != 0) {
        n->say = n->base.blameless || mu_rdzv_muster_in_doubt(n) ? MU_RDZV_SAY_STOPPED
                                                                 : MU_RDZV_SAY_FAILED;
    }
    if (n->held.len != 0) {
        mu_rdzv_muster_soon(n, MU_RDZV_SOON_HELD);
    }
    need_client(n);
    mu_rdzv_muster_rearm(n);
}

static void native_explain(struct mu_rdzv_handler *h)
{
    mu_rdzv_muster_soon(native_of(h), MU_RDZV_SOON_EXPLAIN);
}

static void native_leave(struct mu_rdzv_handler *h)
{
    struct mu_rdzv_muster *n = native_of(h);

    if (n->freeing || n->leaving) {
        return;
    }
    n->leaving = true;
    if (n->call == 0) {
        mu_rdzv_muster_soon(n, MU_RDZV_SOON_LEFT);
        return;
    }
    n->say_end = true;
    n->leave_deadline = mu_mono_add_ms(mono(n), LEAVE_MS);
    n->join_deadline = MU_MONO_NEVER;
    mu_rpc_client_run_soon(&n->rpc);
    mu_rdzv_muster_rearm(n);
}

static void native_close_run(struct mu_rdzv_handler *h)
{
    struct mu_rdzv_muster *n = native_of(h);

    if (n->freeing || n->closing) {
        return;
    }
    if (n->closed) {
        mu_rdzv_muster_soon(n, MU_RDZV_SOON_CLOSED);
        return;
    }
    n->closing = true;
    n->close_deadline = mu_mono_add_ms(mono(n), CLOSE_MS);
    need_client(n);
    mu_rdzv_muster_rearm(n);
}

static bool native_deserted(const struct mu_rdzv_handler *h)
{
    const struct mu_rdzv_muster *n = MU_CONTAINER_OF(h, const struct mu_rdzv_muster, base);
    struct mu_store_server_stats stats;

    if (n->server == NULL) {
        return false;
    }
    mu_store_server_stats(n->server, &stats);
    return stats.members == 0;
}

static void on_unhosted(void *context)
{
    struct mu_rdzv_muster *n = context;

    n->server = NULL;
    finish_free(n);
}

static void finish_free(struct mu_rdzv_muster *n)
{
    if (n->server != NULL) {
        mu_rdzv_unhost(n->server, n->base.linger_ms, on_unhosted, n);
        return;
    }
    mu_env_timer_arm(n->base.env, &n->timer, MU_MONO_NEVER);
    mu_buf_fini(&n->held);
    n->base.events.freed(n->base.events.context);
    mu_free(n);
}

static void native_free(struct mu_rdzv_handler *h)
{
    struct mu_rdzv_muster *n = native_of(h);

    if (n->freeing) {
        return;
    }
    n->freeing = true;
    n->join_deadline = n->leave_deadline = n->close_deadline = n->retry_at = MU_MONO_NEVER;
    mu_rdzv_muster_unfence(n);
    n->soon = 0;
    if (n->client == MU_RDZV_CLIENT_NONE) {
        mu_rdzv_muster_soon(n, MU_RDZV_SOON_FREE);
    } else {
        drop_client(n);
        mu_rdzv_muster_rearm(n);
    }
}

static const struct mu_rdzv_handler_ops native_ops = {
    .join = native_join,
    .explain = native_explain,
    .leave = native_leave,
    .close_run = native_close_run,
    .free = native_free,
    .deserted = native_deserted,
};

int mu_rdzv_muster_new(struct mu_env *env, const struct mu_rdzv_params *params,
                       const struct mu_rdzv_events *events, struct mu_rdzv_handler **ret_handler,
                       struct mu_errmsg *reterr_msg)
{
    struct mu_rdzv_muster *n = mu_calloc(1, sizeof(*n));
    int err;

    if (n == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    mu_timer_init(&n->timer, on_timer);
    mu_buf_init(&n->held, (size_t)64 << 20); /* as long as a frame can be */
    n->join_deadline = n->leave_deadline = n->close_deadline = n->retry_at = MU_MONO_NEVER;
    mu_rdzv_muster_unfence(n);
    n->rank = -1;
    err = mu_rdzv_handler_init(&n->base, &native_ops, env, params, events, reterr_msg);
    if (err == 0) {
        err = mu_rdzv_muster_configure(&n->config, params, reterr_msg);
    }
    if (err == 0) {
        err = mu_rdzv_endpoint_parse(params->endpoint, MU_RDZV_PORT, &n->endpoint, reterr_msg);
    }
    if (err == 0) {
        err = elect(n, reterr_msg);
    }
    if (err != 0) {
        mu_free(n);
        return err;
    }
    start_client(n);
    *ret_handler = &n->base;
    return 0;
}
