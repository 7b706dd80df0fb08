#include "service/rdzv/ask.h"

#include <stdio.h>
#include <string.h>

#include "codec/rdzv/heir.h"
#include "codec/rdzv/params.h"
#include "core/alloc.h"
#include "service/base/log.h"
#include "service/wire/rpc_client.h"

#define PROBE_MS  5000
#define GREETINGS 3
#define SLOW_MS   2000 /* until the log says that there is no answer yet */
#define PASS_MS   1000 /* until one is passed over for the next */
#define HOPS_MAX  4    /* from one that knows who hosts the run to the next */

struct ask {
    struct mu_env *env;
    struct mu_rpc_client rpc;
    struct mu_timer slow; /* for that line of the log */
    struct mu_rdzv_ask_events events;
    struct mu_rdzv_ask_servers servers;
    size_t at; /* in these */
    uint32_t hops;
    enum mu_rdzv_question question;
    struct mu_buf payload;
    struct mu_buf run; /* the question for the host of the run */
    uint64_t call;
    uint32_t timeout_ms;
    bool one;   /* one run was asked for, */
    bool found; /* and it is there */
    bool where; /* The server does not have it: it was asked for the host. */
    bool again; /* The session ends, and the next server is asked. */
    bool ended;
    int status;
    struct mu_errmsg text;
};

/* `done` is called when the session has ended, so that nothing of it is left then. */
static void end(struct ask *a, int status, const char *text)
{
    if (a->ended) {
        return;
    }
    a->ended = true;
    a->status = mu_err(&a->text, status, "%s", text);
    mu_rpc_client_close(&a->rpc);
}

/* This server is of no use: the next one is asked, or it ends. */
static void pass(struct ask *a, int status, const char *text)
{
    if (!a->ended && a->at + 1 < a->servers.count) {
        a->at++;
        a->again = true;
        mu_rpc_client_close(&a->rpc);
    } else {
        end(a, status, text);
    }
}

/* --- the answer ------------------------------------------------------------------------------- */

static const char *name_of(const char *const *names, size_t count, uint32_t index)
{
    return index < count ? names[index] : "unknown";
}

/* Copies the exclusions of a run into one block, which may be NULL. MUSTER_ENOMEM. */
static int copy_exclusions(struct mu_span in, struct mu_rdzv_run_view *view, void **ret_block)
{
    struct mu_span rest = in;
    struct mu_rdzv_exclusion_msg msg;
    struct mu_rdzv_exclusion_view *all;
    size_t bytes = 0;
    size_t count = 0;
    char *at;

    *ret_block = NULL;
    while (mu_rdzv_exclusion_next(&rest, &msg) == 0) {
        bytes += msg.node.len + msg.key.len + msg.reason.len + 3;
        count++;
    }
    if (count == 0) {
        return 0;
    }
    all = mu_malloc(count * sizeof(*all) + bytes);
    if (all == NULL) {
        return MUSTER_ENOMEM;
    }
    at = (char *)(all + count);
    rest = in;
    for (size_t i = 0; i < count && mu_rdzv_exclusion_next(&rest, &msg) == 0; i++) {
        all[i].node = mu_span_put_text(&at, msg.node);
        all[i].machine = mu_span_put_text(&at, msg.key);
        all[i].reason = mu_span_put_text(&at, msg.reason);
        all[i].left_ms = msg.left_ms;
        all[i].by_hand = msg.by_hand;
    }
    view->exclusions = all;
    view->exclusion_count = count;
    *ret_block = all;
    return 0;
}

/* Copies all texts and members of a run into one block. MUSTER_EPROTO, MUSTER_ENOMEM. */
static int copy_members(const struct mu_rdzv_run_msg *msg, struct mu_rdzv_run_view *view,
                        void **ret_block)
{
    static const char *const places[] = {"", "gathering", "running", "waiting", "spare"};
    struct mu_span rest = msg->members;
    struct mu_rdzv_member_msg member;
    size_t bytes = msg->run_id.len + msg->text.len + 2;
    size_t count = 0;
    struct mu_rdzv_member_view *members;
    char *at;
    int err;

    while ((err = mu_rdzv_member_next(&rest, &member)) == 0) {
        bytes += member.node.len + member.addr.len + 2;
        count++;
    }
    if (err != MUSTER_ENOENT) {
        return MUSTER_EPROTO;
    }
    members = mu_malloc(count * sizeof(*members) + bytes);
    if (members == NULL) {
        return MUSTER_ENOMEM;
    }
    at = (char *)(members + count);
    rest = msg->members;
    for (size_t i = 0; i < count && mu_rdzv_member_next(&rest, &member) == 0; i++) {
        members[i].node = mu_span_put_text(&at, member.node);
        members[i].addr = mu_span_put_text(&at, member.addr);
        members[i].place = name_of(places, sizeof(places) / sizeof(places[0]), member.place);
        members[i].rank = member.rank == UINT32_MAX ? -1 : (int64_t)member.rank;
        members[i].silent_ms = member.silent_ms;
    }
    view->run_id = mu_span_put_text(&at, msg->run_id);
    view->text = mu_span_put_text(&at, msg->text);
    view->members = members;
    view->member_count = count;
    *ret_block = members;
    return 0;
}

static int tell_runs(struct ask *a, struct mu_span runs)
{
    static const char *const states[] = {"", "gathering", "running", "closed", "failed"};
    struct mu_rdzv_run_msg msg;
    int err;

    while ((err = mu_rdzv_run_next(&runs, &msg)) == 0) {
        struct mu_rdzv_run_view view = {
            .state = name_of(states, sizeof(states) / sizeof(states[0]), msg.state),
            .incarnation = msg.incarnation,
            .round = msg.round,
            .nodes_min = msg.nodes_min,
            .nodes_max = msg.nodes_max,
            .restarts_left = msg.restarts_left,
            .gathering = msg.counts[MU_RDZV_PLACE_GATHERING - 1],
            .running = msg.counts[MU_RDZV_PLACE_RUNNING - 1],
            .waiting = msg.counts[MU_RDZV_PLACE_WAITING - 1],
            .spare = msg.counts[MU_RDZV_PLACE_SPARE - 1],
            .server = a->servers.addrs[a->at],
        };
        void *exclusions = NULL;
        void *block;

        err = copy_members(&msg, &view, &block);
        if (err == 0) {
            err = copy_exclusions(msg.exclusions, &view, &exclusions);
            if (err != 0) {
                mu_free(block);
            }
        }
        if (err != 0) {
            return err;
        }
        a->events.run(a->events.context, &view);
        a->found = true;
        mu_free(block);
        mu_free(exclusions);
    }
    return err == MUSTER_ENOENT ? 0 : err;
}

/* The server does not have the run. It may know who has; otherwise this is the answer. */
static void seek(struct ask *a, int status, const char *text)
{
    a->status = mu_err(&a->text, status, "%s", text);
    a->where = true;
    a->call = 0; /* `turn_ended` follows. */
}

/* The host of the run is somewhere else: asks there. */
static void hop(struct ask *a, int status, struct mu_span payload)
{
    char text[MU_RDZV_NAME_LEN_MAX + 1];
    struct mu_errmsg said = a->text;
    struct mu_errmsg why;
    struct mu_addr host;

    if (status == 0 && payload.len < sizeof(text)) {
        memcpy(text, payload.data, payload.len);
        text[payload.len] = '\0';
        if (a->hops < HOPS_MAX && mu_rdzv_endpoint_parse(text, MU_RDZV_PORT, &host, &why) == 0) {
            a->hops++;
            a->servers = (struct mu_rdzv_ask_servers){.addrs = {host}, .count = 1};
            a->at = 0;
            a->again = true;
            mu_rpc_client_close(&a->rpc);
            return;
        }
    }
    pass(a, a->status, said.text);
}

static void on_reply(void *context, uint64_t id, int status, struct mu_span payload)
{
    struct ask *a = context;
    struct mu_errmsg text;

    if (id != a->call || a->ended || a->again) {
        return;
    }
    if (a->where) {
        hop(a, status, payload);
        return;
    }
    if (status == 0 && a->question == MU_RDZV_ASK_STATUS) {
        status = tell_runs(a, payload);
        if (status == 0 && !a->found) {
            seek(a, a->one ? MUSTER_ENOENT : 0, "");
            return;
        }
        if (status == MUSTER_EPROTO) {
            end(a, MUSTER_ERDZV_STATE, "the server's answer cannot be understood");
            return;
        }
        payload.len = 0;
    }
    if (status == MUSTER_ENOMETHOD) {
        end(a, MUSTER_ERDZV_CONN,
            a->question == MU_RDZV_ASK_EXCLUDE ? "the server is too old: it excludes no nodes"
                                               : "the server is too old: it has no rendezvous");
        return;
    }
    if (status == MUSTER_ENOENT) {
        seek(a, status, muster_strerror(status));
        return;
    }
    (void)mu_err(&text, 0, "%.*s", (int)(payload.len < MU_ERRMSG_CAP ? payload.len : MU_ERRMSG_CAP),
                 (const char *)payload.data);
    end(a, status == MUSTER_ETIMEDOUT ? MUSTER_ERDZV_TIMEOUT : status,
        status == 0            ? ""
        : text.text[0] != '\0' ? text.text
                               : muster_strerror(status));
}

/* --- the session ------------------------------------------------------------------------------ */

static void on_turn_ended(void *context)
{
    static const char *const methods[] = {
        [MU_RDZV_ASK_STATUS] = MU_RDZV_METHOD_STATUS,
        [MU_RDZV_ASK_CLOSE] = MU_RDZV_METHOD_CLOSE,
        [MU_RDZV_ASK_EXCLUDE] = MU_RDZV_METHOD_EXCLUDE,
    };
    struct ask *a = context;
    int err;

    if (a->call != 0 || a->ended || a->again) {
        return;
    }
    err = mu_rpc_client_call(
        &a->rpc, mu_span_str(a->where ? MU_RDZV_METHOD_HOST : methods[a->question]),
        mu_buf_span(a->where ? &a->run : &a->payload), a->timeout_ms, &a->call);
    if (err != 0 && err != MUSTER_EAGAIN) {
        end(a, err, muster_strerror(err));
    }
}

static void on_ready(void *context)
{
    (void)context; /* `turn_ended` follows. */
}

static void on_mismatch(void *context, bool silent)
{
    struct ask *a = context;
    struct mu_errmsg text;

    (void)mu_err(&text, 0, "the server at %.120s %s it is not a muster server", a->rpc.addr,
                 silent ? "does not answer: it is busy or stopped, or" : "does not understand us:");
    pass(a, MUSTER_ERDZV_CONN, text.text);
}

static void on_failed(void *context, int status, const char *text)
{
    (void)status;
    pass(context, MUSTER_ERDZV_CONN, text);
}

static void on_slow(struct mu_timer *timer)
{
    struct ask *a = MU_CONTAINER_OF(timer, struct ask, slow);

    if (!a->ended && !a->rpc.ready) {
        mu_log(MUSTER_LOG_WARN, "RDZV-UNREACHED", "server=%s why=\"%s\"; still trying", a->rpc.addr,
               a->rpc.last_error != 0 ? muster_strerror(a->rpc.last_error) : "it does not answer");
    }
}

static void free_ask(struct ask *a)
{
    mu_buf_fini(&a->payload);
    mu_buf_fini(&a->run);
    mu_free(a);
}

static void on_closed(void *context);

/* Begins a session with the next server. */
static int dial(struct ask *a)
{
    bool last = a->at + 1 == a->servers.count;
    uint32_t ms = !last && a->timeout_ms > PASS_MS ? PASS_MS : a->timeout_ms;
    const struct mu_rpc_client_config config = {
        .addr = a->servers.addrs[a->at],
        .name = "muster rdzv",
        .connect_ms = ms,
        .reconnect_ms = ms,
        .probe_ms = PROBE_MS < ms / 2 ? PROBE_MS : ms / 2,
        .greetings = GREETINGS,
    };
    const struct mu_rpc_client_events events = {
        .ready = on_ready,
        .mismatch = on_mismatch,
        .failed = on_failed,
        .gave_up = on_failed,
        .reply = on_reply,
        .turn_ended = on_turn_ended,
        .closed = on_closed,
        .context = a,
    };

    a->call = 0;
    a->where = a->again = false;
    return mu_rpc_client_init(&a->rpc, a->env, &config, &events);
}

static void on_closed(void *context)
{
    struct ask *a = context;

    if (a->again) {
        int err = dial(a);

        if (err == 0) {
            return;
        }
        a->status = mu_err(&a->text, err, "%s", muster_strerror(err));
    }
    mu_env_timer_arm(a->env, &a->slow, MU_MONO_NEVER);
    a->events.done(a->events.context, a->status, a->text.text);
    free_ask(a);
}

/* Takes over the payload. */
static int start(struct mu_env *env, enum mu_rdzv_question question,
                 const struct mu_rdzv_ask_servers *servers, struct mu_buf *payload,
                 const char *run_id, uint32_t timeout_ms, const struct mu_rdzv_ask_events *events)
{
    struct ask *a = mu_calloc(1, sizeof(*a));
    int err;

    if (a == NULL) {
        mu_buf_fini(payload);
        return MUSTER_ENOMEM;
    }
    a->env = env;
    mu_timer_init(&a->slow, on_slow);
    a->events = *events;
    a->servers = *servers;
    a->question = question;
    a->one = run_id[0] != '\0';
    a->timeout_ms = timeout_ms;
    a->payload = *payload;
    mu_buf_init(&a->run, MU_RDZV_NAME_LEN_MAX + 64);
    err = mu_rdzv_run_id_encode(&a->run, mu_span_str(run_id));
    if (err == 0) {
        err = dial(a);
    }
    if (err != 0) {
        free_ask(a);
        return err;
    }
    mu_env_timer_arm(env, &a->slow, mu_mono_add_ms(mu_env_now(env).mono, SLOW_MS));
    return 0;
}

int mu_rdzv_ask(struct mu_env *env, enum mu_rdzv_question question,
                const struct mu_rdzv_ask_servers *servers, const char *run_id, uint32_t timeout_ms,
                const struct mu_rdzv_ask_events *events)
{
    struct mu_buf payload;
    int err;

    mu_buf_init(&payload, MU_RDZV_NAME_LEN_MAX + 64);
    err = mu_rdzv_run_id_encode(&payload, mu_span_str(run_id));
    if (err != 0) {
        mu_buf_fini(&payload);
        return err;
    }
    return start(env, question, servers, &payload, run_id, timeout_ms, events);
}

int mu_rdzv_ask_exclude(struct mu_env *env, const struct mu_rdzv_ask_servers *servers,
                        const char *run_id, const char *who, const char *reason, uint64_t for_ms,
                        uint32_t timeout_ms, const struct mu_rdzv_ask_events *events)
{
    const struct mu_rdzv_exclude_msg msg = {
        .run_id = mu_span_str(run_id),
        .who = mu_span_str(who),
        .reason = mu_span_str(reason),
        .for_ms = for_ms,
    };
    struct mu_buf payload;
    int err;

    mu_buf_init(&payload, 3 * MU_RDZV_NAME_LEN_MAX + 64);
    err = mu_rdzv_exclude_encode(&payload, &msg);
    if (err != 0) {
        mu_buf_fini(&payload);
        return err;
    }
    return start(env, MU_RDZV_ASK_EXCLUDE, servers, &payload, run_id, timeout_ms, events);
}
