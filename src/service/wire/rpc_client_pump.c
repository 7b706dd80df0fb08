/* What the client does by itself, and what it tells its owner and when: see rpc_client.h. */
#include "service/wire/rpc_client_internal.h"

#include <stdio.h>

#include "core/assert.h"
#include "service/base/log.h"

#define STARVED_MS 10 /* until something that found no memory is tried again */

int mu_rpc_client_begin_session(struct mu_rpc_client *c)
{
    struct mu_rpc_config config = c->terms;

    config.role = MU_RPC_CLIENT;
    config.name = c->config.name;
    config.credential = c->config.credential;
    config.grace_ms = c->config.grace_ms != 0 ? c->config.grace_ms : config.grace_ms;
    config.beat_ms = c->config.beat_ms != 0 ? c->config.beat_ms : config.beat_ms;
    config.dead_ms = c->config.dead_ms != 0 ? c->config.dead_ms : config.dead_ms;
    mu_env_entropy(c->env, config.session, sizeof(config.session));
    mu_env_entropy(c->env, &config.seed, sizeof(config.seed));
    return mu_rpc_init(&c->rpc, &config);
}

/* --- what is to be told ----------------------------------------------------------------------- */

void mu_rpc_client_note(struct mu_rpc_client *c, enum mu_rpc_client_news news, int status,
                        const char *text)
{
    c->news = news;
    c->news_status = mu_err(&c->news_text, status, "%s", text);
}

void mu_rpc_client_report(struct mu_rpc_client *c, enum mu_rpc_client_news news, int status,
                          const char *text)
{
    if (!c->reported && !c->ready && !c->closing) {
        c->reported = true;
        c->dial_at = MU_MONO_NEVER;
        mu_rpc_client_note(c, news, status, text);
    }
}

void mu_rpc_client_close_link(struct mu_rpc_client *c)
{
    if (c->link == MU_RPC_CLIENT_UP || c->link == MU_RPC_CLIENT_DIALLING) {
        mu_rpc_unlinked(&c->rpc, mu_env_now(c->env));
        c->link = MU_RPC_CLIENT_CLOSING;
        mu_env_close(c->env, &c->conn, true);
    }
}

static void on_welcomed(struct mu_rpc_client *c)
{
    c->welcomed_at = mu_env_now(c->env).mono;
    c->last_error = 0;
    c->give_up_at = MU_MONO_NEVER;
    c->probe_at = MU_MONO_NEVER;
    if (!c->ready) {
        c->ready = true;
        c->ready_owed = true;
    }
}

static void on_refused(struct mu_rpc_client *c, const struct mu_rpc_event *event)
{
    char text[MU_ERRMSG_CAP];

    (void)snprintf(text, sizeof(text), "%.80s refused the connection: %.*s", c->addr,
                   (int)(event->payload.len > 120 ? 120 : event->payload.len),
                   (const char *)event->payload.data);
    c->last_error = event->status;
    c->broken = c->rpc.closed && !c->closing; /* The session is over; another one may do. */
    mu_rpc_client_report(c, MU_RPC_CLIENT_FAILED, MUSTER_EREFUSED, text);
    mu_rpc_client_close_link(c);
}

/* The server broke the protocol: this session is over, the next connection begins another. */
static void break_session(struct mu_rpc_client *c, int err)
{
    mu_log(MUSTER_LOG_WARN, "RPC-SERVER-VIOLATION", "server=%s why=\"%s\"", c->addr,
           mu_rpc_errmsg(&c->rpc));
    c->last_error = err;
    c->broken = true;
    mu_rpc_client_report(c, MU_RPC_CLIENT_MISMATCH, err, "");
    mu_rpc_client_close_link(c);
}

/* What the client does by itself about something that the machine has to say. */
static void settle(struct mu_rpc_client *c, const struct mu_rpc_event *event)
{
    if (event->type == MU_RPC_EV_WELCOMED) {
        on_welcomed(c);
    } else if (event->type == MU_RPC_EV_REFUSED) {
        on_refused(c, event);
    } else if (event->type == MU_RPC_EV_LINK_DEAD) {
        c->last_error = c->trouble = MUSTER_ETIMEDOUT;
        c->trouble_open = c->silent = true;
        mu_rpc_client_close_link(c);
    } else if (event->type == MU_RPC_EV_CALL && c->events.event == NULL) {
        (void)mu_rpc_reply(&c->rpc, mu_env_now(c->env), event->id, MUSTER_ENOMETHOD,
                           MU_SPAN_LIT("this client serves no methods"));
    }
}

/* Gives the machine bytes until it has something to say. False: it has not, and all was taken. */
static bool take(struct mu_rpc_client *c, struct mu_span *in, struct mu_rpc_event *ret_event)
{
    while (!mu_rpc_next_event(&c->rpc, ret_event)) {
        size_t used = 0;
        int err;

        if (in->len == 0 || c->link != MU_RPC_CLIENT_UP) {
            return false;
        }
        err = mu_rpc_recv(&c->rpc, mu_env_now(c->env), *in, &used);
        *in = mu_span_skip(*in, used);
        if (err == MUSTER_ENOMEM) {
            /* The session is whole: what was not taken comes again on the next connection. */
            c->last_error = err;
            mu_rpc_client_close_link(c);
        } else if (err != 0) {
            break_session(c, err);
        }
    }
    settle(c, ret_event);
    return true;
}

/* --- telling it ------------------------------------------------------------------------------- */

/* False: there are none. */
static bool tell_news(struct mu_rpc_client *c)
{
    enum mu_rpc_client_news news = c->news;
    int trouble = c->trouble;

    c->trouble = 0;
    c->news = MU_RPC_CLIENT_NO_NEWS;
    if (trouble != 0 && news == MU_RPC_CLIENT_NO_NEWS && c->events.trouble != NULL && !c->closing) {
        c->events.trouble(c->events.context, trouble, c->trouble_open);
    }
    switch (news) {
    case MU_RPC_CLIENT_NO_NEWS:
        return false;
    case MU_RPC_CLIENT_MISMATCH:
    case MU_RPC_CLIENT_SILENT:
        c->events.mismatch(c->events.context, news == MU_RPC_CLIENT_SILENT);
        break;
    case MU_RPC_CLIENT_FAILED:
        c->events.failed(c->events.context, c->news_status, c->news_text.text);
        break;
    case MU_RPC_CLIENT_GAVE_UP:
        c->events.gave_up(c->events.context, c->news_status, c->news_text.text);
        break;
    }
    return true;
}

static void tell(struct mu_rpc_client *c, const struct mu_rpc_event *event)
{
    if (c->ready_owed) {
        c->ready_owed = false;
        c->events.ready(c->events.context);
    }
    if (c->events.event != NULL) {
        c->events.event(c->events.context, event);
    } else if (event->type == MU_RPC_EV_REPLY) {
        c->events.reply(c->events.context, event->id, event->status, event->payload);
    } else if (event->type == MU_RPC_EV_ITEM) {
        if (c->events.item != NULL) {
            c->events.item(c->events.context, event->id, event->payload);
        }
        (void)mu_rpc_consumed(&c->rpc, mu_env_now(c->env), event->id, event->payload.len);
    }
}

/* --- the pump --------------------------------------------------------------------------------- */

static void flush(struct mu_rpc_client *c)
{
    while (c->link == MU_RPC_CLIENT_UP && !c->blocked) {
        struct mu_span out[MU_RPC_SPANS];
        size_t count = mu_rpc_outputv(&c->rpc, out, MU_RPC_SPANS);
        size_t taken = 0;

        if (count == 0) {
            return;
        }
        mu_env_sendv(c->env, &c->conn, out, count, &taken);
        c->blocked = taken < mu_span_total(out, count);
        mu_rpc_sent(&c->rpc, taken);
    }
}

static void finish_close(struct mu_rpc_client *c)
{
    mu_env_timer_arm(c->env, &c->timer, MU_MONO_NEVER);
    mu_rpc_fini(&c->rpc);
    c->events.closed(c->events.context);
}

static void arm_timer(struct mu_rpc_client *c)
{
    mu_mono_t at = mu_rpc_deadline(&c->rpc);

    if (c->starved) {
        mu_mono_t later = mu_mono_add_ms(mu_env_now(c->env).mono, STARVED_MS);

        at = mu_mono_before(at, later) ? later : at;
    }
    at = mu_mono_min(at, mu_mono_min(c->dial_at, c->give_up_at));
    at = mu_mono_min(at, mu_mono_min(c->probe_at, c->linger_at));
    /* Every frame moves the keep-alive out; a timer that fires early just looks again. One that
     * was armed for this very turn has done its work. */
    if (!mu_heap_contains(&c->timer.node) || mu_mono_before(at, c->timer.node.at) ||
        mu_mono_reached(c->timer.node.at, mu_env_now(c->env).mono)) {
        mu_env_timer_arm(c->env, &c->timer, at);
    }
}

static void renew_session(struct mu_rpc_client *c)
{
    int err;

    mu_rpc_fini(&c->rpc);
    c->broken = false;
    err = mu_rpc_client_begin_session(c);
    MU_ASSERT(err == 0); /* It allocates nothing, and its config was good before. */
}

void mu_rpc_client_pump(struct mu_rpc_client *c, struct mu_span in)
{
    struct mu_rpc_event event;
    bool has_event;
    bool told;

    do {
        has_event = take(c, &in, &event);
        told = tell_news(c);
        if (has_event) {
            tell(c, &event);
        }
    } while (has_event || told);
    if (c->broken) {
        renew_session(c);
    }
    if (c->ready && !c->closing && c->events.turn_ended != NULL) {
        c->events.turn_ended(c->events.context);
    }
    flush(c);
    if (c->closing && c->link == MU_RPC_CLIENT_DOWN) {
        finish_close(c);
        return;
    }
    if (c->closing && c->link == MU_RPC_CLIENT_UP && mu_rpc_output(&c->rpc).len == 0) {
        mu_rpc_unlinked(&c->rpc, mu_env_now(c->env));
        c->link = MU_RPC_CLIENT_CLOSING;
        mu_env_close(c->env, &c->conn, false);
    }
    arm_timer(c);
}

void mu_rpc_client_flush(struct mu_rpc_client *c)
{
    flush(c);
    arm_timer(c);
}
