/* Connections of clients, and to them: bytes, messages, the end. */
#include <muster/error.h>

#include "core/alloc.h"
#include "service/base/log.h"
#include "service/p2pd/p2pd_internal.h"

static const struct mu_conn_events client_events;

/* --- the beginning ---------------------------------------------------------------------------- */

struct mu_p2pd_client *mu_p2pd_client_new(struct mu_p2pd *d)
{
    struct mu_p2pd_conn_config config = {
        .msg_len_max = d->config.msg_len_max,
        .out_len_max =
            MU_P2PD_HIGH_BYTES + 2 * (d->config.msg_len_max + MU_P2PD_CALL_EXTRA) + (4u << 20),
    };
    struct mu_p2pd_client *c;

    if (d->stopping || d->calls.stats.clients >= d->config.clients_max) {
        return NULL;
    }
    c = mu_calloc(1, sizeof(*c));
    if (c == NULL) {
        return NULL;
    }
    c->base.on = &client_events;
    c->d = d;
    mu_p2pd_conn_init(&c->pc, &config);
    /* As much as a stream's window may bring, and a head. */
    mu_p2pd_pipe_init(&c->pipe, d->config.host.conn.yamux.window_bytes_max + (1u << 20));
    mu_list_init(&c->link);
    mu_list_push(&d->clients, &c->link);
    d->calls.stats.clients++;
    return c;
}

struct mu_conn *mu_p2pd_accept(struct mu_listener *listener)
{
    struct mu_p2pd_listener *l = MU_CONTAINER_OF(listener, struct mu_p2pd_listener, base);
    struct mu_p2pd_client *c = mu_p2pd_client_new(l->d);

    if (c == NULL) {
        return NULL;
    }
    c->open = true;
    return &c->base;
}

/* --- the end ---------------------------------------------------------------------------------- */

void mu_p2pd_client_free(struct mu_p2pd_client *c)
{
    struct mu_p2pd *d = c->d;

    d->calls.stats.clients--;
    mu_list_remove(&c->link);
    mu_p2pd_conn_fini(&c->pc);
    mu_free(c->work.names);
    mu_p2pd_pipe_fini(&c->pipe);
    mu_p2pd_user_fini(&c->user);
    mu_free(c);
}

/* All that it has here goes with it. */
static void let_go(struct mu_p2pd_client *c)
{
    mu_p2pd_request_drop(c);
    if (c->raw) {
        c->raw = false;
        c->d->calls.stats.streams--;
    }
    mu_host_stream_reset(&c->stream);
    if (c->persistent) {
        c->persistent = false;
        mu_p2pd_user_leave(&c->user);
        mu_p2pd_persistent(c->d, false);
    }
}

void mu_p2pd_client_close(struct mu_p2pd_client *c, bool abort)
{
    if (!c->closing || abort) {
        c->closing = true;
        let_go(c);
        mu_env_close(c->d->env, &c->base, abort);
    }
}

static void on_closed(struct mu_conn *conn, int status)
{
    struct mu_p2pd_client *c = MU_CONTAINER_OF(conn, struct mu_p2pd_client, base);
    struct mu_p2pd *d = c->d;

    if (!c->open && !c->closing) {
        mu_log(MUSTER_LOG_WARN, "P2PD-HANDLER-UNREACHABLE", "error=\"%s\"",
               muster_strerror(status));
    }
    c->closing = true;
    let_go(c);
    mu_p2pd_client_free(c);
    mu_p2pd_turn(d);
    mu_p2pd_check_stopped(d);
}

/* --- sending ---------------------------------------------------------------------------------- */

void mu_p2pd_client_send(struct mu_p2pd_client *c)
{
    struct mu_span out = mu_p2pd_conn_output(&c->pc);
    size_t taken;

    if (out.len != 0 && !c->blocked) {
        mu_env_send(c->d->env, &c->base, out, &taken);
        c->blocked = taken < out.len;
        mu_p2pd_conn_sent(&c->pc, taken);
        if (c->persistent) {
            mu_p2pd_user_sent(&c->user);
        }
    }
}

void mu_p2pd_client_flush(struct mu_p2pd_client *c)
{
    if (c->closing || !c->open) {
        return;
    }
    if (c->raw) {
        mu_p2pd_pipe_flush(c);
        return;
    }
    mu_p2pd_client_send(c);
    if (c->last && c->pc.out.len == 0) {
        mu_p2pd_client_close(c, false);
        return;
    }
    mu_p2pd_client_resume(c);
}

static void on_writable(struct mu_conn *conn)
{
    struct mu_p2pd_client *c = MU_CONTAINER_OF(conn, struct mu_p2pd_client, base);
    struct mu_p2pd *d = c->d;

    c->blocked = false;
    mu_p2pd_client_flush(c);
    mu_p2pd_turn(d);
}

static void on_open(struct mu_conn *conn)
{
    struct mu_p2pd_client *c = MU_CONTAINER_OF(conn, struct mu_p2pd_client, base);
    struct mu_p2pd *d = c->d;

    c->open = true;
    mu_p2pd_client_flush(c);
    mu_p2pd_turn(d);
}

/* --- reading ---------------------------------------------------------------------------------- */

/* Whether it should be read from now. */
static bool may_read(const struct mu_p2pd_client *c)
{
    return !c->closing && !c->pc.asked && c->pc.out.len <= MU_P2PD_HIGH_BYTES &&
           c->user.held_bytes <= c->d->config.client_bytes_max;
}

void mu_p2pd_client_resume(struct mu_p2pd_client *c)
{
    if (c->paused && may_read(c)) {
        c->paused = false;
        mu_env_resume(c->d->env, &c->base);
    }
}

static void take_events(struct mu_p2pd_client *c)
{
    struct mu_p2pd_event e;

    while (!c->closing && mu_p2pd_conn_next_event(&c->pc, &e)) {
        switch (e.type) {
        case MU_P2PD_EV_REQUEST:
            mu_p2pd_request(c, &e.request);
            break;
        case MU_P2PD_EV_CALL:
            mu_p2pd_said(c, &e.call, e.message);
            break;
        }
        mu_p2pd_pump(c->d);
    }
    if (c->pc.err != 0 && !c->closing) {
        mu_log(MUSTER_LOG_INFO, "P2PD-CLIENT-VIOLATION", "error=\"%s\"",
               mu_p2pd_conn_errmsg(&c->pc));
        mu_p2pd_client_close(c, false);
    }
}

static size_t take_messages(struct mu_p2pd_client *c, struct mu_span in)
{
    size_t used = 0;

    while (used < in.len && may_read(c) && !c->raw) {
        size_t n;
        int err = mu_p2pd_conn_recv(&c->pc, mu_span_skip(in, used), &n);

        if (err == MUSTER_ENOMEM) {
            mu_p2pd_client_close(c, true);
        }
        if (err == 0) {
            used += n;
        }
        take_events(c);
    }
    return c->closing ? in.len : used;
}

static size_t on_data(struct mu_conn *conn, struct mu_span in)
{
    struct mu_p2pd_client *c = MU_CONTAINER_OF(conn, struct mu_p2pd_client, base);
    struct mu_p2pd *d = c->d;
    size_t used = 0;

    c->paused = false;
    if (c->closing) {
        return in.len;
    }
    if (c->raw) {
        used = mu_p2pd_pipe_data(c, in);
    } else {
        used = take_messages(c, in);
        mu_p2pd_client_send(c);
    }
    c->paused = used < in.len && !c->raw;
    mu_p2pd_turn(d);
    return used;
}

static void on_eof(struct mu_conn *conn)
{
    struct mu_p2pd_client *c = MU_CONTAINER_OF(conn, struct mu_p2pd_client, base);
    struct mu_p2pd *d = c->d;

    c->eof = true;
    if (c->closing) {
        return;
    }
    if (c->raw) {
        mu_p2pd_pipe_eof(c);
    } else if (c->persistent) {
        mu_p2pd_client_close(c, true);
    } else if (!c->pc.asked) {
        c->last = true;
        mu_p2pd_client_flush(c);
    }
    mu_p2pd_turn(d);
}

/* What it has asked for is for nobody. A stream is not: what was said on it still goes its way. */
static void on_hung_up(struct mu_conn *conn)
{
    struct mu_p2pd_client *c = MU_CONTAINER_OF(conn, struct mu_p2pd_client, base);
    struct mu_p2pd *d = c->d;

    if (!c->closing && !c->raw) {
        mu_p2pd_client_close(c, true);
        mu_p2pd_turn(d);
    }
}

void mu_p2pd_client_replied(struct mu_p2pd_client *c, int err)
{
    if (c->closing) {
        return;
    }
    if (err != 0) {
        mu_p2pd_client_close(c, true);
        return;
    }
    if (c->pc.phase == MU_P2PD_PERSISTENT && !c->persistent) {
        c->persistent = true;
        mu_p2pd_user_init(&c->d->calls, &c->user, &c->pc);
        mu_p2pd_persistent(c->d, true);
    }
    if (c->eof && !c->raw) {
        c->last = true; /* nobody asks for more */
    }
    mu_p2pd_client_flush(c);
}

static const struct mu_conn_events client_events = {
    .open = on_open,
    .data = on_data,
    .eof = on_eof,
    .hung_up = on_hung_up,
    .writable = on_writable,
    .closed = on_closed,
};
