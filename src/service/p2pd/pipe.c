/*
 * Connections that are streams: bytes from one to the other, both ways, each side held back by the
 * other. Upwards nothing is kept: what the stream does not take stays with the environment.
 * Downwards what the client does not take is kept within the stream's window, which the peer is
 * given back only as the client reads.
 */
#include <stdio.h>

#include <muster/error.h>

#include "service/p2pd/p2pd_internal.h"

static struct mu_p2pd_client *client_of(struct mu_host_stream *s)
{
    return MU_CONTAINER_OF(s, struct mu_p2pd_client, stream);
}

/* --- down ------------------------------------------------------------------------------------- */

static void sent_down(struct mu_p2pd_client *c, size_t n)
{
    size_t own = n < c->down_own ? n : c->down_own;

    c->down_own -= own;
    mu_host_stream_consumed(&c->stream, n - own);
}

/* All that there was for the client is sent. */
static void end_down(struct mu_p2pd_client *c)
{
    if (c->stream.state == MU_HOST_STREAM_NONE) {
        mu_p2pd_client_close(c, false);
    } else if (!c->finished) {
        c->finished = true;
        if (!mu_env_finish(c->d->env, &c->base)) {
            mu_p2pd_client_close(c, false);
        }
    }
}

void mu_p2pd_pipe_down(struct mu_p2pd_client *c)
{
    if (c->closing || !c->open) {
        return;
    }
    if (c->down.len != 0 && !c->blocked) {
        size_t len = c->down.len;
        size_t taken;

        mu_env_send(c->d->env, &c->base, mu_buf_span(&c->down), &taken);
        c->blocked = taken < len;
        mu_buf_consume(&c->down, taken);
        mu_buf_trim(&c->down, 0);
        sent_down(c, taken);
    }
    if (c->down.len == 0 && c->down_end) {
        end_down(c);
    }
}

static void on_data(struct mu_host_stream *s, struct mu_span bytes)
{
    struct mu_p2pd_client *c = client_of(s);
    size_t taken = 0;

    if (c->open && !c->blocked && c->down.len == 0) {
        mu_env_send(c->d->env, &c->base, bytes, &taken);
        c->blocked = taken < bytes.len;
        mu_host_stream_consumed(s, taken);
    }
    if (taken < bytes.len && mu_buf_append(&c->down, mu_span_skip(bytes, taken)) != 0) {
        mu_p2pd_client_close(c, true);
    }
}

static void on_eof(struct mu_host_stream *s)
{
    struct mu_p2pd_client *c = client_of(s);

    c->down_end = true;
    mu_p2pd_pipe_down(c);
}

/* --- up --------------------------------------------------------------------------------------- */

size_t mu_p2pd_pipe_up(struct mu_p2pd_client *c, struct mu_span bytes)
{
    if (c->stream.state == MU_HOST_STREAM_NONE || c->stream.state == MU_HOST_STREAM_ENDING) {
        return bytes.len; /* Nobody is there to hear it. */
    }
    return mu_host_stream_write(&c->stream, bytes);
}

void mu_p2pd_pipe_eof(struct mu_p2pd_client *c)
{
    mu_host_stream_end(&c->stream);
}

static void on_writable(struct mu_host_stream *s)
{
    struct mu_p2pd_client *c = client_of(s);

    if (c->paused) {
        c->paused = false;
        mu_env_resume(c->d->env, &c->base);
    }
}

/* --- the end ---------------------------------------------------------------------------------- */

/* Whether it ended well or not, the client has what came before, and then the end. */
static void on_ended(struct mu_host_stream *s, int status, const char *text)
{
    struct mu_p2pd_client *c = client_of(s);

    (void)status;
    (void)text;
    c->down_end = true;
    on_writable(s); /* What it still says is dropped. */
    mu_p2pd_pipe_down(c);
}

static const struct mu_host_stream_events pipe_events = {
    .data = on_data,
    .eof = on_eof,
    .writable = on_writable,
    .ended = on_ended,
};

/* --- ours ------------------------------------------------------------------------------------- */

static void on_ready(struct mu_host_stream *s, struct mu_span name)
{
    struct mu_p2pd_client *c = client_of(s);
    struct mu_p2pd_stream_info info = {.peer = mu_peer_id_span(&s->peer), .name = name};
    struct mu_buf addr;
    int err;

    mu_p2pd_request_drop(c);
    mu_buf_init(&addr, MU_MULTIADDR_MAX);
    mu_p2pd_remote(c->d, &s->peer, &addr);
    info.addr = mu_buf_span(&addr);
    err = mu_p2pd_conn_reply_stream(&c->pc, &info);
    mu_buf_fini(&addr);
    if (err == 0) {
        /* What is still to be said of before goes the same way. */
        err = mu_buf_append(&c->down, mu_p2pd_conn_output(&c->pc));
        c->down_own = c->down.len;
        mu_p2pd_conn_sent(&c->pc, c->pc.out.len);
    }
    if (err != 0) {
        mu_p2pd_client_close(c, true);
        return;
    }
    c->raw = true;
    c->d->stats.streams++;
    s->on = &pipe_events;
    if (c->eof) {
        mu_p2pd_pipe_eof(c);
    }
    mu_p2pd_pipe_down(c);
    on_writable(s);
}

static void on_failed(struct mu_host_stream *s, int status, const char *text)
{
    struct mu_p2pd_client *c = client_of(s);
    char id[MU_PEER_ID_TEXT_MAX];
    struct mu_errmsg msg;

    mu_p2pd_request_drop(c);
    (void)mu_err(&msg, status,
                 status == MUSTER_EREFUSED ? "failed to negotiate protocol: %s: %s"
                                           : "failed to open stream to %s: %s",
                 mu_peer_id_format(&s->peer, id), text);
    mu_p2pd_client_replied(c, mu_p2pd_conn_reply_error(&c->pc, msg.text));
}

static void ignore_data(struct mu_host_stream *s, struct mu_span bytes)
{
    mu_host_stream_consumed(s, bytes.len);
}

static const struct mu_host_stream_events opening_events = {
    .ready = on_ready,
    .data = ignore_data, /* there is none before */
    .ended = on_failed,
};

void mu_p2pd_pipe_open(struct mu_p2pd_client *c, const struct mu_peer_id *peer,
                       const struct mu_span *names, size_t count)
{
    c->stream.on = &opening_events;
    mu_host_stream_open(c->d->host, &c->stream, peer, names, count);
}

/* --- theirs ----------------------------------------------------------------------------------- */

struct mu_host_stream *mu_p2pd_pipe_opened(struct mu_p2pd *d, const struct mu_p2pd_target *target,
                                           const struct mu_peer_id *peer, struct mu_span name)
{
    struct mu_p2pd_stream_info info = {.peer = mu_peer_id_span(peer), .name = name};
    struct mu_p2pd_client *c = target == NULL ? NULL : mu_p2pd_client_new(d);
    struct mu_buf addr;
    struct mu_addr to;
    int err;

    if (c == NULL) {
        return NULL;
    }
    mu_buf_init(&addr, MU_MULTIADDR_MAX);
    mu_p2pd_remote(d, peer, &addr);
    info.addr = mu_buf_span(&addr);
    err = mu_p2pd_put_stream_info(&c->down, &info);
    c->down_own = c->down.len;
    mu_buf_fini(&addr);
    err = err != 0 ? err : mu_multiaddr_dial(mu_span(target->addr, target->addr_len), &to, NULL);
    err = err != 0 ? err : mu_env_dial(d->env, &c->base, &to);
    if (err != 0) {
        mu_p2pd_client_free(c);
        return NULL;
    }
    c->raw = true;
    d->stats.streams++;
    c->stream.on = &pipe_events;
    return &c->stream;
}
