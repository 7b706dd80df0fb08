#include "service/peer/env.h"

#include <errno.h>
#include <stdio.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "service/peer/stream_conn.h"

struct mu_peer_env {
    struct mu_stream_conns conns;
    struct mu_peer_host *host;
    struct mu_peer_handler handler;
    struct mu_listener *listener; /* NULL: it does not listen */
    struct mu_timer unlistened;
};

static const struct mu_span wire_name = {(const uint8_t *)MU_PEER_WIRE_NAME,
                                         sizeof(MU_PEER_WIRE_NAME) - 1};

static struct mu_peer_env *peers_of(struct mu_env *env)
{
    return MU_CONTAINER_OF(env, struct mu_peer_env, conns.layer.env);
}

static struct mu_stream_conn *conn_of(struct mu_host_stream *stream)
{
    return MU_CONTAINER_OF(stream, struct mu_stream_conn, stream);
}

/* --- streams ---------------------------------------------------------------------------------- */

static void on_ready(struct mu_host_stream *stream, struct mu_span name)
{
    (void)name;
    mu_stream_conn_open(conn_of(stream));
}

static void on_data(struct mu_host_stream *stream, struct mu_span bytes)
{
    mu_stream_conn_data(conn_of(stream), bytes);
}

static void on_eof(struct mu_host_stream *stream)
{
    mu_stream_conn_eof(conn_of(stream));
}

static void on_writable(struct mu_host_stream *stream)
{
    mu_stream_conn_writable(conn_of(stream));
}

static void on_ended(struct mu_host_stream *stream, int status, const char *text)
{
    struct mu_stream_conn *c = conn_of(stream);

    c->gone = true;
    mu_stream_conn_end(c, status != 0 ? status : MUSTER_ECLOSED, text);
}

static const struct mu_host_stream_events stream_events = {
    .ready = on_ready,
    .data = on_data,
    .eof = on_eof,
    .writable = on_writable,
    .ended = on_ended,
};

/* Whether something may still be on its way, which a close lets go out. */
static bool has_said(const struct mu_stream_conn *c)
{
    return c->stream.state == MU_HOST_STREAM_OPEN ||
           (c->stream.state == MU_HOST_STREAM_OPENING && c->stream.used);
}

static void free_conn(struct mu_stream_conn *c)
{
    mu_stream_conn_fini(c);
    mu_free(c);
}

static struct mu_stream_conn *new_conn(struct mu_peer_env *peers)
{
    struct mu_stream_conn *c = mu_calloc(1, sizeof(*c));

    if (c != NULL) {
        mu_stream_conn_init(c, &peers->conns);
        c->stream.on = &stream_events;
    }
    return c;
}

/* --- dialling --------------------------------------------------------------------------------- */

static int env_dial(struct mu_env *env, struct mu_conn *conn, const struct mu_addr *addr)
{
    struct mu_peer_env *peers = peers_of(env);
    struct mu_peer_id peer;
    struct mu_errmsg msg;
    struct mu_stream_conn *c;

    if (addr->kind != MU_ADDR_PEER || mu_peer_id_parse(&peer, addr->host, &msg) != 0) {
        return MUSTER_EINVAL;
    }
    c = new_conn(peers);
    if (c == NULL) {
        return MUSTER_ENOMEM;
    }
    mu_stream_conn_own(c, conn);
    mu_host_stream_open(peers->host, &c->stream, &peer, &wire_name, 1);
    return 0;
}

static void env_peer(struct mu_env *env, const struct mu_conn *conn, char *buf, size_t cap)
{
    (void)env;
    mu_stream_conn_peer(conn, "peer:", "", buf, cap);
}

/* --- listening -------------------------------------------------------------------------------- */

static struct mu_host_stream *on_opened(struct mu_peer_handler *handler,
                                        const struct mu_peer_id *peer, struct mu_span name)
{
    struct mu_peer_env *peers = MU_CONTAINER_OF(handler, struct mu_peer_env, handler);
    struct mu_stream_conn *c = new_conn(peers);
    struct mu_conn *conn;

    (void)name;
    if (c == NULL) {
        return NULL;
    }
    c->stream.peer = *peer;
    conn = peers->listener->accept(peers->listener);
    if (conn == NULL) {
        c->gone = true; /* it was never open */
        free_conn(c);
        return NULL;
    }
    mu_stream_conn_own(c, conn);
    return &c->stream;
}

static int env_listen(struct mu_env *env, struct mu_listener *listener, struct mu_addr *addr)
{
    struct mu_peer_env *peers = peers_of(env);
    char text[MU_PEER_ID_TEXT_MAX];
    int err;

    (void)mu_peer_id_format(mu_peer_host_id(peers->host), text);
    if (addr->kind != MU_ADDR_PEER || (addr->host[0] != '\0' && strcmp(addr->host, text) != 0)) {
        return MUSTER_EINVAL;
    }
    if (peers->listener != NULL) {
        return -EADDRINUSE;
    }
    peers->handler = (struct mu_peer_handler){.name = MU_PEER_WIRE_NAME, .opened = on_opened};
    err = mu_peer_host_serve(peers->host, &peers->handler);
    if (err != 0) {
        return err == MUSTER_EEXIST ? -EADDRINUSE : err;
    }
    (void)snprintf(addr->host, sizeof(addr->host), "%s", text);
    listener->env = env;
    peers->listener = listener;
    return 0;
}

static void on_unlistened(struct mu_timer *timer)
{
    struct mu_peer_env *peers = MU_CONTAINER_OF(timer, struct mu_peer_env, unlistened);
    struct mu_listener *listener = peers->listener;

    peers->listener = NULL;
    listener->closed(listener);
}

static void env_unlisten(struct mu_env *env, struct mu_listener *listener)
{
    struct mu_peer_env *peers = peers_of(env);

    MU_ASSERT(peers->listener == listener);
    mu_peer_host_unserve(&peers->handler);
    mu_env_timer_arm(peers->conns.layer.below, &peers->unlistened,
                     mu_env_now(peers->conns.layer.below).mono);
}

static const struct mu_env_ops peer_ops = {
    MU_ENV_LAYER_OPS,
    .dial = env_dial,
    .listen = env_listen,
    .unlisten = env_unlisten,
    .sendv = mu_stream_conn_sendv,
    .resume = mu_stream_conn_resume,
    .close = mu_stream_conn_close,
    .peer = env_peer,
    .why = mu_stream_conn_why,
};

int mu_peer_env_new(struct mu_peer_host *host, struct mu_peer_env **ret)
{
    struct mu_peer_env *peers = mu_calloc(1, sizeof(*peers));

    if (peers == NULL) {
        return MUSTER_ENOMEM;
    }
    peers->conns.layer.env.ops = &peer_ops;
    peers->conns.layer.below = mu_peer_host_env(host);
    peers->host = host;
    mu_list_init(&peers->conns.all);
    peers->conns.may_end = has_said;
    peers->conns.over = free_conn;
    mu_timer_init(&peers->unlistened, on_unlistened);
    *ret = peers;
    return 0;
}

void mu_peer_env_free(struct mu_peer_env *peers)
{
    if (peers == NULL) {
        return;
    }
    MU_ASSERT(peers->listener == NULL);
    MU_LIST_FOREACH_SAFE (it, tmp, &peers->conns.all) {
        free_conn(MU_CONTAINER_OF(it, struct mu_stream_conn, link));
    }
    mu_free(peers);
}

struct mu_env *mu_peer_env_env(struct mu_peer_env *peers)
{
    return &peers->conns.layer.env;
}
