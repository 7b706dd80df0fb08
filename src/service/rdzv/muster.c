/*
 * The native backend: one session with a muster server, one call "join" in it for as long as the
 * node is a member. What is asked for and what the user is told is decided by proto/rdzv/member.h;
 * this file has the session, the calls and the one timer.
 */
#include "service/rdzv/muster.h"

#include <inttypes.h>
#include <string.h>

#include "codec/text/ip.h"
#include "core/addr.h"
#include "core/alloc.h"
#include "proto/rdzv/exclusions.h"
#include "service/rdzv/succession.h"
#include "service/server/server.h"

#define PROBE_MS  UINT32_C(5000)
#define GREETINGS 5
#define SAY_BYTES 64
#define RENEW_MS  1000 /* until another session is tried, after one that was of no use */

static const char given_up[] = "its session was given up";

static struct mu_rdzv_muster *native_of(struct mu_rdzv_handler *h)
{
    return MU_CONTAINER_OF(h, struct mu_rdzv_muster, base);
}

static mu_mono_t mono(struct mu_rdzv_muster *n)
{
    return mu_env_now(n->base.env).mono;
}

/* Tells the user, which may have to be ended by others, until when it is counted on. */
static void tell_counted(struct mu_rdzv_muster *n)
{
    mu_mono_t until = mu_member_counted_until(mu_rdzv_muster_member(n), mono(n));

    if (until.ns != n->until.ns && n->base.events.counted != NULL) {
        n->until = until;
        n->base.events.counted(n->base.events.context, until);
    }
}

static void rearm(struct mu_rdzv_muster *n)
{
    mu_mono_t at = n->soon != 0 ? mono(n)
                   : n->freeing ? MU_MONO_NEVER
                                : mu_mono_min(mu_member_deadline(&n->member),
                                              mu_mono_min(n->renew_at, n->leave_at));

    /* A timer that is late keeps its place among the others that are. */
    if (!mu_heap_contains(&n->timer.node) || n->timer.node.at.ns != at.ns) {
        mu_env_timer_arm(n->base.env, &n->timer, at);
    }
    if (!n->freeing && n->client != MU_RDZV_CLIENT_NONE) {
        tell_counted(n);
    }
}

struct mu_member *mu_rdzv_muster_member(struct mu_rdzv_muster *n)
{
    n->member.link = (struct mu_member_link){
        .linked = n->client == MU_RDZV_CLIENT_LIVE && mu_rpc_client_linked(&n->rpc),
        .hosting = n->base.hosting,
        .error = n->rpc.last_error,
        .kept_ms = mu_rpc_kept_ms(&n->rpc.rpc),
        .confirmed = mu_rpc_confirmed(&n->rpc.rpc),
    };
    if (n->base.hosting && n->heir != NULL) {
        /* Others may go on without the host as well. */
        mu_mono_t confirmed = mu_rdzv_lead_confirmed(&n->heir->lead, n->base.node);

        n->member.link.hosting = confirmed.ns == MU_MONO_NEVER.ns;
        n->member.link.confirmed = mu_mono_min(confirmed, n->member.link.confirmed);
    }
    return &n->member;
}

void mu_rdzv_muster_run(struct mu_rdzv_muster *n)
{
    struct mu_member_action action;

    while (!n->freeing && mu_member_next(&n->member, &action)) {
        mu_rdzv_muster_act(n, &action);
    }
    rearm(n);
}

/* --- what we say ------------------------------------------------------------------------------ */

/* What a host must know of one who could succeed it. */
static void add_heir(const struct mu_rdzv_muster *n, struct mu_rdzv_join *join)
{
    if (n->heir != NULL && !n->heir->plain) {
        join->flags |= MU_RDZV_JOIN_HEIR | MU_RDZV_JOIN_TERM;
        join->heir = mu_span_str(n->heir->address);
        join->term = n->heir->machine.promised;
        mu_rdzv_view_of(&join->view, &n->heir->machine.view);
    }
}

static int encode_join(struct mu_rdzv_muster *n, struct mu_buf *out)
{
    struct mu_rdzv_join join = {
        .run_id = mu_span_str(n->base.run_id),
        .node = mu_span_str(n->base.node),
        .addr = mu_span_str(n->base.addr),
        .topology = mu_span_str(n->config.topology),
        .flags = n->config.join_flags | (n->member.spent != 0 ? MU_RDZV_JOIN_SPENT : 0) |
                 (n->base.page[0] != '\0' ? MU_RDZV_JOIN_PAGE : 0) | MU_RDZV_JOIN_MACHINE,
        .nodes_min = n->config.nodes_min,
        .nodes_max = n->config.nodes_max,
        .target = n->config.target,
        .restarts_max = n->config.restarts_max,
        .last_call_ms = n->config.last_call_ms,
        .upscale_delay_ms = n->config.upscale_delay_ms,
        .join_timeout_ms = n->config.join_timeout_ms,
        .incarnation = n->member.incarnation,
        .spares = n->config.spares,
        .spent = n->member.spent,
        .losses_max = n->config.losses_max,
        .losses_ms = n->config.losses_ms,
        .page = mu_span_str(n->base.page),
        .machine = mu_span_str(n->config.machine),
        .exclude_after = n->config.exclude_after,
        .exclude_within_ms = n->config.exclude_within_ms,
        .exclude_for_ms = n->config.exclude_for_ms,
    };

    add_heir(n, &join);
    return mu_rdzv_join_encode(out, &join);
}

int mu_rdzv_muster_ask(struct mu_rdzv_muster *n, struct mu_span method, uint32_t timeout_ms,
                       uint64_t *ret_id)
{
    struct mu_buf out;
    int err;

    mu_buf_init(&out, MU_RDZV_NAME_LEN_MAX + SAY_BYTES);
    err = mu_rdzv_run_id_encode(&out, mu_span_str(n->base.run_id));
    if (err == 0) {
        err = mu_rpc_client_call(&n->rpc, method, mu_buf_span(&out), timeout_ms, ret_id);
    }
    mu_buf_fini(&out);
    return err;
}

static int send(struct mu_rdzv_muster *n, enum mu_member_word word)
{
    struct mu_buf out;
    int err = 0;

    mu_buf_init(&out, 7 * (MU_RDZV_NAME_LEN_MAX + SAY_BYTES) + MU_RDZV_VIEW_BYTES);
    switch (word) {
    case MU_MEMBER_CALL_JOIN:
        err = encode_join(n, &out);
        err = err != 0 ? err
                       : mu_rpc_client_call(&n->rpc, MU_SPAN_LIT(MU_RDZV_METHOD_JOIN),
                                            mu_buf_span(&out), 0, &n->call);
        break;
    case MU_MEMBER_SAY:
        err = mu_rdzv_say_encode(&out, n->member.say, n->member.round);
        err = err != 0 ? err : mu_rpc_client_item(&n->rpc, n->call, mu_buf_span(&out));
        break;
    case MU_MEMBER_END_CALL:
        err = mu_rpc_client_end(&n->rpc, n->call);
        break;
    case MU_MEMBER_CALL_CLOSE:
        err = mu_rdzv_muster_ask(n, MU_SPAN_LIT(MU_RDZV_METHOD_CLOSE), MU_MEMBER_CLOSE_MS,
                                 &n->close_call);
        break;
    }
    mu_buf_fini(&out);
    return err;
}

/* Says what there is to say, as far as it can be said now. */
static void say(void *context)
{
    struct mu_rdzv_muster *n = context;
    enum mu_member_word word;
    int err = 0;

    while (err == 0 && !n->freeing && n->client == MU_RDZV_CLIENT_LIVE && n->rpc.ready &&
           mu_member_say(&n->member, &word)) {
        err = send(n, word);
        mu_member_said(&n->member, mono(n), word, err);
        if (word == MU_MEMBER_CALL_JOIN && err == 0) {
            mu_rdzv_handler_record(&n->base, MU_RDZV_RECORD_INIT, -1, "muster.join",
                                   "asked %.120s for a place, %" PRIu32 " to %" PRIu32 " nodes",
                                   n->address, n->config.nodes_min, n->config.nodes_max);
        }
    }
    if (n->heir != NULL && !n->freeing) {
        mu_rdzv_succession_turned(n->heir);
    }
    mu_rdzv_via_look(n);
    rearm(n);
}

static void finish_free(struct mu_rdzv_muster *n);
static void start_client(struct mu_rdzv_muster *n);
static void need_client(struct mu_rdzv_muster *n);

/* --- the session ------------------------------------------------------------------------------ */

/* Closes a client that is of no use any more. */
static void drop_client(struct mu_rdzv_muster *n, enum mu_rdzv_muster_client what, const char *why)
{
    if (n->client == MU_RDZV_CLIENT_LIVE) {
        n->call = n->close_call = n->explain_call = 0;
        n->list.call = n->list.relayed ? n->list.call : 0;
        mu_member_lost(mu_rdzv_muster_member(n), mono(n), why);
        mu_rpc_client_close(&n->rpc);
    }
    n->client = n->client == MU_RDZV_CLIENT_NONE ? MU_RDZV_CLIENT_NONE : what;
}

/* What the user waits for fails, on the next turn. */
static void fail_all(struct mu_rdzv_muster *n, int status, const char *text)
{
    drop_client(n, MU_RDZV_CLIENT_CLOSING, given_up);
    mu_member_unreached(&n->member, mono(n), status, text);
    rearm(n);
}

/* Begins another session in a moment: this one is of no use, but another one may be. */
static void renew_later(struct mu_rdzv_muster *n)
{
    drop_client(n, MU_RDZV_CLIENT_CLOSING, given_up);
    n->renew_at = mu_mono_add_ms(mono(n), RENEW_MS);
    rearm(n);
}

static void note_silence(struct mu_rdzv_muster *n)
{
    mu_rdzv_handler_trouble(&n->base, MUSTER_ETIMEDOUT, n->address,
                            "it takes the connection, but does not answer. It is busy or stopped, "
                            "or it is not a muster server (PyTorch's store needs --rdzv-backend "
                            "c10d)");
}

static void on_mismatch(void *context, bool silent)
{
    struct mu_rdzv_muster *n = context;
    struct mu_errmsg text;

    if (silent) {
        /* A server that was stopped, or is busy, is silent as well, and may wake. */
        note_silence(n);
        renew_later(n);
        return;
    }
    (void)mu_err(&text, 0,
                 "what listens on %.100s does not understand us: it is not a muster server. Start "
                 "`muster serve` there, or use the c10d backend if it is PyTorch's store",
                 n->address);
    fail_all(n, MUSTER_ERDZV_CONN, text.text);
}

static void on_failed(void *context, int status, const char *text)
{
    struct mu_rdzv_muster *n = context;

    if (n->base.keep_trying && mu_rdzv_is_refusal(status)) {
        mu_rdzv_handler_trouble(&n->base, status, n->address, text);
        renew_later(n);
    } else {
        fail_all(n, MUSTER_ERDZV_CONN, text);
    }
}

static void on_trouble(void *context, int status, bool was_open)
{
    struct mu_rdzv_muster *n = context;

    if (n->heir != NULL && mu_rdzv_succession_trouble(n->heir, status, was_open)) {
        return;
    }
    /* What runs has its fence; what waits must know why. */
    if (n->member.user == MU_MEMBER_JOINING && was_open && status == MUSTER_ETIMEDOUT) {
        note_silence(n);
    } else if (n->member.user == MU_MEMBER_JOINING) {
        mu_rdzv_handler_trouble(&n->base, status, n->address, NULL);
    }
    mu_rdzv_via_look(n);
    rearm(n);
}

/* The node that can bind the endpoint hosts the rendezvous. This node tries again whenever no
 * server answers: the host may be gone, and this node may be the one to take its place. */
static int elect(struct mu_rdzv_muster *n, struct mu_errmsg *reterr_msg)
{
    uint8_t bytes[16];
    struct mu_span host = mu_span_str(n->endpoint.host);
    int rc;

    if (n->server != NULL || n->elsewhere || n->heir != NULL) {
        return 0;
    }
    rc = mu_rdzv_host(n->base.env, n->config.host, n->config.succession != MU_RDZV_SUCCESSION_OFF,
                      &n->endpoint, &n->server, reterr_msg);
    if (rc < 0) {
        return rc;
    }
    n->base.hosting = rc == 1;
    /* Everything waits while a name is looked up, the fence too, and a name server that does not
     * answer takes many seconds. A name that led elsewhere is not looked up again. */
    n->elsewhere =
        rc == MU_RDZV_ELSEWHERE && !mu_ip4_parse(host, bytes) && !mu_ip6_parse(host, bytes);
    (void)mu_addr_format(&n->endpoint, n->address, sizeof(n->address));
    if (strcmp(n->host_text.text, reterr_msg->text) != 0) {
        n->host_text = *reterr_msg;
        n->soon |= MU_RDZV_SOON_RECORD;
        rearm(n);
    }
    return 0;
}

/*
 * No connection for a while. The session is kept: a server that was stopped knows it when it wakes.
 * But if the server is gone, this node may be the one to take its place; the new server then knows
 * no members, and they find out. The fence looks after what runs meanwhile.
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
        (void)elect(n, &msg); /* A node that cannot host tries on. */
        return;
    }
    /* The server has a session of that name, and ours is another: it does not help to try on. */
    if (n->call != 0) {
        (void)mu_rpc_client_cancel(&n->rpc, n->call);
    }
    n->call = n->close_call = 0;
    mu_member_lost(mu_rdzv_muster_member(n), mono(n), text);
    mu_rdzv_muster_run(n);
    if (n->member.user == MU_MEMBER_JOINING && n->client == MU_RDZV_CLIENT_LIVE) {
        need_client(n);
    }
}

static void on_ready(void *context)
{
    struct mu_rdzv_muster *n = context;
    char via[MU_ADDR_HOST_MAX + 32];

    n->base.trouble_count = 0;
    mu_rdzv_handler_record(&n->base, MU_RDZV_RECORD_INIT, -1, "muster.connected",
                           "connected to %.120s%s", n->address,
                           mu_rdzv_via_text(n, via, sizeof(via))); /* `turn_ended` follows. */
}

static void on_client_closed(void *context)
{
    struct mu_rdzv_muster *n = context;
    bool renewing = n->client == MU_RDZV_CLIENT_RENEWING;

    n->client = MU_RDZV_CLIENT_NONE;
    if (n->freeing) {
        finish_free(n);
    } else if (renewing) {
        start_client(n);
    }
}

static void start_client(struct mu_rdzv_muster *n)
{
    const struct mu_rpc_client_events events = {
        .ready = on_ready,
        .mismatch = on_mismatch,
        .failed = on_failed,
        .trouble = on_trouble,
        .gave_up = on_gave_up,
        .reply = mu_rdzv_muster_reply,
        .item = mu_rdzv_muster_item,
        .turn_ended = say,
        .closed = on_client_closed,
        .context = n,
    };
    struct mu_rpc_config terms = mu_rpc_config_defaults();
    struct mu_rpc_client_config config = {
        .addr = n->endpoint,
        .name = n->base.node,
        .connect_ms = 0, /* for ever: a join, or a close, has its own deadline */
        .reconnect_ms = n->config.dead_ms / 3, /* until we look whether we can host */
        .probe_ms = PROBE_MS,
        .greetings = GREETINGS,
        .name_ms = n->base.keep_trying ? 0 : MU_RDZV_NAME_MS,
        .grace_ms = n->config.grace_ms,
        .beat_ms = n->config.beat_ms,
        .dead_ms = n->config.dead_ms,
        .terms = &terms,
    };
    struct mu_errmsg text;
    int err;

    terms.confirms = true;
    err = mu_rpc_client_init(&n->rpc, mu_rdzv_via_env(n), &config, &events);
    if (err == 0) {
        n->client = MU_RDZV_CLIENT_LIVE;
        return;
    }
    (void)mu_err(&text, err, "cannot make a session: %s", muster_strerror(err));
    fail_all(n, err, text.text);
}

/* Sees to it that there is a client, and a fresh one if the old one found no server. */
static void need_client(struct mu_rdzv_muster *n)
{
    struct mu_errmsg msg = {{0}};

    if (n->heir != NULL && !mu_rdzv_succession_begin(n->heir)) {
        return; /* Nobody hosts: one is being looked for. */
    }
    if (n->client == MU_RDZV_CLIENT_LIVE && (n->call != 0 || n->rpc.last_error == 0)) {
        mu_rpc_client_run_soon(&n->rpc);
        return;
    }
    if (elect(n, &msg) != 0) {
        fail_all(n, MUSTER_ERDZV_CONN, msg.text);
    } else if (n->client == MU_RDZV_CLIENT_NONE) {
        start_client(n);
    } else {
        drop_client(n, MU_RDZV_CLIENT_RENEWING, given_up);
    }
}

static void renew(struct mu_rdzv_muster *n)
{
    n->renew_at = MU_MONO_NEVER;
    if (!n->reaches) {
        return;
    }
    if (n->client == MU_RDZV_CLIENT_NONE) {
        start_client(n);
    } else if (n->client == MU_RDZV_CLIENT_CLOSING) {
        n->client = MU_RDZV_CLIENT_RENEWING;
    }
}

void mu_rdzv_muster_connect(struct mu_rdzv_muster *n)
{
    (void)mu_addr_format(&n->endpoint, n->address, sizeof(n->address));
    n->reaches = true;
    n->renew_at = MU_MONO_NEVER;
    if (n->client == MU_RDZV_CLIENT_NONE) {
        start_client(n);
    } else {
        drop_client(n, MU_RDZV_CLIENT_RENEWING, given_up);
    }
    mu_rdzv_muster_run(n);
}

void mu_rdzv_muster_disconnect(struct mu_rdzv_muster *n, const char *why)
{
    n->reaches = false;
    drop_client(n, MU_RDZV_CLIENT_CLOSING, why);
    mu_rdzv_muster_run(n);
}

/* --- for its user ----------------------------------------------------------------------------- */

static void on_timer(struct mu_timer *timer)
{
    struct mu_rdzv_muster *n = MU_CONTAINER_OF(timer, struct mu_rdzv_muster, timer);
    bool again = mu_mono_reached(n->member.retry_at, mono(n));
    unsigned what = n->soon;

    n->soon = 0;
    if ((what & MU_RDZV_SOON_FREE) != 0) {
        finish_free(n);
        return;
    }
    if ((what & MU_RDZV_SOON_RECORD) != 0 && n->host_text.text[0] != '\0') {
        mu_rdzv_handler_record(&n->base, MU_RDZV_RECORD_INIT, -1, "muster.host", "%s",
                               n->host_text.text);
    }
    if ((what & MU_RDZV_SOON_EXPLAIN) != 0) {
        mu_rdzv_muster_explain(n);
    }
    if (mu_mono_reached(n->renew_at, mono(n))) {
        renew(n);
    }
    mu_rdzv_via_look(n);
    mu_member_tick(mu_rdzv_muster_member(n), mono(n));
    mu_rdzv_muster_run(n);
    if (again) {
        say(n);
    }
}

static void native_join(struct mu_rdzv_handler *h)
{
    struct mu_rdzv_muster *n = native_of(h);

    h->trouble_count = 0;
    if (!n->freeing && mu_member_join(mu_rdzv_muster_member(n), mono(n), h->blameless)) {
        need_client(n);
        if (n->heir != NULL) {
            mu_rdzv_succession_joins(n->heir);
        }
    }
    rearm(n);
}

static void native_explain(struct mu_rdzv_handler *h)
{
    native_of(h)->soon |= MU_RDZV_SOON_EXPLAIN;
    rearm(native_of(h));
}

static void native_leave(struct mu_rdzv_handler *h)
{
    struct mu_rdzv_muster *n = native_of(h);

    if (n->freeing) {
        return;
    }
    if (h->finished) {
        mu_member_finish(&n->member);
    }
    mu_member_leave(&n->member, mono(n));
    if (n->call != 0) {
        mu_rpc_client_run_soon(&n->rpc);
    }
    rearm(n);
}

static void native_close_run(struct mu_rdzv_handler *h)
{
    struct mu_rdzv_muster *n = native_of(h);

    if (!n->freeing && mu_member_close(&n->member, mono(n))) {
        need_client(n);
    }
    rearm(n);
}

static bool native_deserted(struct mu_rdzv_handler *h)
{
    const struct mu_rdzv_muster *n = MU_CONTAINER_OF(h, const struct mu_rdzv_muster, base);
    struct mu_store_server_stats stats;

    if (n->server == NULL || !n->base.hosting) {
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

void mu_rdzv_muster_ended(struct mu_rdzv_muster *n)
{
    if (n->client == MU_RDZV_CLIENT_NONE) {
        finish_free(n);
    }
}

static void finish_free(struct mu_rdzv_muster *n)
{
    if (!mu_rdzv_list_end(n)) {
        return;
    }
    if (n->heir != NULL && !mu_rdzv_succession_end(n->heir)) {
        return;
    }
    if (n->server != NULL) {
        mu_rdzv_unhost(n->server, n->base.hosting ? n->base.linger_ms : 0, on_unhosted, n);
        return;
    }
    if (n->heir != NULL) {
        mu_rdzv_succession_free(n->heir);
    }
    mu_env_timer_arm(n->base.env, &n->timer, MU_MONO_NEVER);
    mu_buf_fini(&n->held);
    mu_carry_env_free(n->carry);
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
    n->soon = n->client == MU_RDZV_CLIENT_NONE ? MU_RDZV_SOON_FREE : 0;
    drop_client(n, MU_RDZV_CLIENT_CLOSING, given_up);
    rearm(n);
}

/* The answer is not waited for: the round ends, or it does not. */
static bool native_exclude_self(struct mu_rdzv_handler *h, const char *reason)
{
    struct mu_rdzv_muster *n = native_of(h);
    const struct mu_rdzv_exclude_msg msg = {
        .run_id = mu_span_str(h->run_id),
        .who = mu_span_str(h->node),
        .reason = mu_span_str(reason),
        .for_ms = n->config.exclude_for_ms != 0 ? n->config.exclude_for_ms : MU_EXCLUDE_FOR_MS,
    };
    struct mu_buf out;
    uint64_t id;
    int err;

    mu_buf_init(&out, 4 * (MU_RDZV_NAME_LEN_MAX + SAY_BYTES));
    err = n->client == MU_RDZV_CLIENT_LIVE && n->rpc.ready ? mu_rdzv_exclude_encode(&out, &msg)
                                                           : MUSTER_EAGAIN;
    if (err == 0) {
        err = mu_rpc_client_call(&n->rpc, MU_SPAN_LIT(MU_RDZV_METHOD_EXCLUDE), mu_buf_span(&out),
                                 MU_MEMBER_CLOSE_MS, &id);
    }
    if (err == 0) {
        mu_rpc_client_run_soon(&n->rpc);
    }
    mu_buf_fini(&out);
    return err == 0;
}

static const struct mu_rdzv_handler_ops native_ops = {
    .join = native_join,
    .explain = native_explain,
    .leave = native_leave,
    .close_run = native_close_run,
    .free = native_free,
    .deserted = native_deserted,
    .exclude_self = native_exclude_self,
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
    n->until = MU_MONO_NEVER;
    mu_timer_init(&n->timer, on_timer);
    mu_rdzv_list_init(n);
    n->renew_at = n->leave_at = n->left_since = MU_MONO_NEVER;
    mu_buf_init(&n->held, (size_t)64 << 20); /* as long as a frame can be */
    err = mu_rdzv_handler_init(&n->base, &native_ops, env, params, events, reterr_msg);
    if (err == 0) {
        err = mu_rdzv_muster_configure(&n->config, params, reterr_msg);
    }
    if (err == 0 && n->config.machine[0] == '\0') {
        mu_rdzv_machine(env, n->config.machine);
    }
    if (err == 0 && mu_rdzv_via_new(n) != 0) {
        err = mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    n->reaches = n->config.succession == MU_RDZV_SUCCESSION_OFF;
    if (err == 0 && n->reaches) {
        err = mu_rdzv_endpoint_parse(params->endpoint, MU_RDZV_PORT, &n->endpoint, reterr_msg);
    }
    if (err == 0) {
        mu_member_init(&n->member, &(struct mu_member_config){
                                       .address = n->address,
                                       .join_timeout_ms = n->config.join_timeout_ms,
                                       .restarts_max = n->config.restarts_max,
                                   });
        err = n->reaches ? elect(n, reterr_msg)
                         : mu_rdzv_succession_new(n, params->endpoint, reterr_msg);
    }
    if (err != 0) {
        mu_carry_env_free(n->carry);
        mu_free(n);
        return err;
    }
    if (n->heir != NULL && n->host_text.text[0] != '\0') {
        n->soon |= MU_RDZV_SOON_RECORD;
    }
    if (n->reaches && n->client == MU_RDZV_CLIENT_NONE) {
        start_client(n);
    }
    rearm(n);
    *ret_handler = &n->base;
    return 0;
}
