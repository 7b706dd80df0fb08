/* Connections that are streams: drives proto/p2pd/pipe.h. */
#include <stdio.h>

#include <muster/error.h>

#include "service/p2pd/p2pd_internal.h"

static struct mu_p2pd_client *client_of(struct mu_host_stream *s)
{
    return MU_CONTAINER_OF(s, struct mu_p2pd_client, stream);
}

static void act(struct mu_p2pd_client *c, const struct mu_p2pd_pipe_action *a)
{
    size_t taken;

    switch (a->type) {
    case MU_P2PD_PIPE_SEND:
        mu_env_send(c->d->env, &c->base, a->bytes, &taken);
        mu_p2pd_pipe_sent(&c->pipe, taken);
        break;
    case MU_P2PD_PIPE_CONSUMED:
        mu_host_stream_consumed(&c->stream, a->len);
        break;
    case MU_P2PD_PIPE_END:
        mu_host_stream_end(&c->stream);
        break;
    case MU_P2PD_PIPE_RESUME:
        mu_env_resume(c->d->env, &c->base);
        break;
    case MU_P2PD_PIPE_FINISH:
        if (!mu_env_finish(c->d->env, &c->base)) {
            mu_p2pd_client_close(c, false);
        }
        break;
    case MU_P2PD_PIPE_CLOSE:
    case MU_P2PD_PIPE_ABORT:
        mu_p2pd_client_close(c, a->type == MU_P2PD_PIPE_ABORT);
        break;
    }
}

static void pump(struct mu_p2pd_client *c)
{
    struct mu_p2pd_pipe_action action;

    while (!c->closing && mu_p2pd_pipe_next(&c->pipe, &action)) {
        act(c, &action);
    }
}

/* --- the socket ------------------------------------------------------------------------------- */

void mu_p2pd_pipe_flush(struct mu_p2pd_client *c)
{
    mu_p2pd_pipe_ready(&c->pipe);
    pump(c);
}

size_t mu_p2pd_pipe_data(struct mu_p2pd_client *c, struct mu_span bytes)
{
    return mu_p2pd_pipe_up(&c->pipe, bytes.len, mu_host_stream_write(&c->stream, bytes));
}

void mu_p2pd_pipe_eof(struct mu_p2pd_client *c)
{
    mu_p2pd_pipe_client_ended(&c->pipe);
    pump(c);
}

/* --- the stream ------------------------------------------------------------------------------- */

static void on_data(struct mu_host_stream *s, struct mu_span bytes)
{
    struct mu_p2pd_client *c = client_of(s);

    mu_p2pd_pipe_heard(&c->pipe, bytes);
    pump(c);
    mu_p2pd_pipe_keep(&c->pipe);
    pump(c);
}

static void on_eof(struct mu_host_stream *s)
{
    mu_p2pd_pipe_peer_ended(&client_of(s)->pipe);
    pump(client_of(s));
}

static void on_writable(struct mu_host_stream *s)
{
    mu_p2pd_pipe_writable(&client_of(s)->pipe);
    pump(client_of(s));
}

static void on_ended(struct mu_host_stream *s, int status, const char *text)
{
    (void)status;
    (void)text;
    mu_p2pd_pipe_gone(&client_of(s)->pipe);
    pump(client_of(s));
}

static const struct mu_host_stream_events pipe_events = {
    .data = on_data,
    .eof = on_eof,
    .writable = on_writable,
    .ended = on_ended,
};

/* The client hears first what the stream is: as an answer, behind what it is still to be told, or
 * bare. From then on the connection is the stream's. */
static int begin(struct mu_p2pd_client *c, const struct mu_peer_id *peer, struct mu_span name,
                 bool answer)
{
    struct mu_p2pd_stream_info info = {.peer = mu_peer_id_span(peer), .name = name};
    struct mu_buf addr;
    int err;

    mu_buf_init(&addr, MU_MULTIADDR_MAX);
    mu_p2pd_remote(c->d, peer, &addr);
    info.addr = mu_buf_span(&addr);
    err = answer ? mu_p2pd_conn_reply_stream(&c->pc, &info)
                 : mu_p2pd_put_stream_info(&c->pc.out, &info);
    mu_buf_fini(&addr);
    err = err != 0 ? err : mu_p2pd_pipe_head(&c->pipe, mu_p2pd_conn_output(&c->pc));
    if (err == 0) {
        mu_p2pd_conn_sent(&c->pc, c->pc.out.len);
        c->raw = true;
        c->d->calls.stats.streams++;
        c->stream.on = &pipe_events;
    }
    return err;
}

/* --- ours ------------------------------------------------------------------------------------- */

static void on_ready(struct mu_host_stream *s, struct mu_span name)
{
    struct mu_p2pd_client *c = client_of(s);

    mu_p2pd_request_drop(c);
    if (begin(c, &s->peer, name, true) != 0) {
        mu_p2pd_client_close(c, true);
        return;
    }
    if (c->eof) {
        mu_p2pd_pipe_client_ended(&c->pipe);
    }
    if (!c->blocked) {
        mu_p2pd_pipe_ready(&c->pipe);
    }
    pump(c);
    mu_p2pd_client_resume(c);
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

struct mu_host_stream *mu_p2pd_pipe_opened(struct mu_p2pd *d, const struct mu_p2pd_handler *handler,
                                           const struct mu_peer_id *peer, struct mu_span name)
{
    struct mu_p2pd_client *c = handler == NULL ? NULL : mu_p2pd_client_new(d);
    struct mu_addr to;

    if (c == NULL) {
        return NULL;
    }
    if (mu_multiaddr_dial(mu_span(handler->addr, handler->addr_len), &to, NULL) != 0 ||
        mu_env_dial(d->env, &c->base, &to) != 0) {
        mu_p2pd_client_free(c);
        return NULL;
    }
    if (begin(c, peer, name, false) != 0) {
        mu_p2pd_client_close(c, true);
        return NULL;
    }
    return &c->stream;
}
