#include "service/peer_env.h"

#include <errno.h>
#include <stdio.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "core/env_layer.h"

#define PATIENCE_MS 5000 /* how long what was taken may go out once its owner has closed */

struct mu_peer_env {
    struct mu_env_layer layer;
    struct mu_peer_host *host;
    struct mu_peer_handler handler;
    struct mu_listener *listener; /* NULL: nobody listens */
    struct mu_timer unlistened;
    struct mu_list conns; /* struct stream_conn */
    const char *why;      /* of the `closed` that is being told */
};

static const struct mu_span wire_name = {(const uint8_t *)MU_PEER_WIRE_NAME,
                                         sizeof(MU_PEER_WIRE_NAME) - 1};

/* A connection is a stream; it may outlive its owner while its last words go out. */
struct stream_conn {
    struct mu_list link;
    struct mu_host_stream stream;
    struct mu_conn *conn; /* its owner's; NULL: it was told that it is closed */
    struct mu_peer_env *env;
    struct mu_timer timer; /* what was not used comes again; closing: `closed`, the end */
    struct mu_buf rest;    /* what the owner has not used; the window bounds it */
    bool in_data;
    bool resume; /* asked for inside of `data` */
    bool paused;
    bool want_writable;
    bool eof;
    bool eof_told;
    bool closing; /* the owner has closed */
    bool gone;    /* so is the stream */
};

static struct mu_peer_env *peers_of(struct mu_env *env)
{
    return MU_CONTAINER_OF(env, struct mu_peer_env, layer.env);
}

static struct stream_conn *conn_of(struct mu_host_stream *stream)
{
    return MU_CONTAINER_OF(stream, struct stream_conn, stream);
}

static void arm(struct stream_conn *c, uint32_t ms)
{
    mu_env_timer_arm(c->env->layer.below, &c->timer,
                     mu_mono_add_ms(mu_env_now(c->env->layer.below).mono, ms));
}

static void free_conn(struct stream_conn *c)
{
    mu_env_timer_arm(c->env->layer.below, &c->timer, MU_MONO_NEVER);
    if (!c->gone) {
        mu_host_stream_reset(&c->stream);
    }
    mu_list_remove(&c->link);
    mu_buf_fini(&c->rest);
    mu_free(c);
}

static void tell_closed(struct stream_conn *c, int status, const char *text)
{
    struct mu_peer_env *peers = c->env;
    struct mu_conn *conn = c->conn;
    bool gone = c->gone;

    c->conn = NULL;
    conn->impl = NULL;
    if (gone) {
        free_conn(c);
    }
    peers->why = text;
    conn->on->closed(conn, status);
    peers->why = NULL;
}

/* --- receiving -------------------------------------------------------------------------------- */

/* Hands out bytes and says how many of them are done with. False: the owner has closed. */
static bool deliver(struct stream_conn *c, struct mu_span bytes, size_t *ret_used)
{
    c->in_data = true;
    c->resume = false;
    *ret_used = c->conn->on->data(c->conn, bytes);
    c->in_data = false;
    MU_ASSERT(*ret_used <= bytes.len);
    if (c->closing || c->gone) {
        /* Nobody wants the rest, but its window is still given back: the peer may have to say more
         * before it comes to its end. */
        mu_host_stream_consumed(&c->stream, bytes.len);
        return false;
    }
    mu_host_stream_consumed(&c->stream, *ret_used);
    c->paused = *ret_used < bytes.len;
    if (c->paused && c->resume) {
        arm(c, 0);
    }
    return true;
}

static void tell_eof(struct stream_conn *c)
{
    if (c->eof && !c->eof_told && !c->paused && !c->closing && !c->gone) {
        c->eof_told = true;
        c->conn->on->eof(c->conn);
    }
}

static void on_data(struct mu_host_stream *stream, struct mu_span bytes)
{
    struct stream_conn *c = conn_of(stream);
    size_t used = 0;

    if (c->closing) {
        mu_host_stream_consumed(stream, bytes.len);
        return;
    }
    if (!c->paused && !deliver(c, bytes, &used)) {
        return;
    }
    if (used < bytes.len && mu_buf_append(&c->rest, mu_span_skip(bytes, used)) != 0) {
        mu_host_stream_reset(stream);
        c->gone = true;
        tell_closed(c, MUSTER_ENOMEM, "out of memory");
    }
}

static void on_eof(struct mu_host_stream *stream)
{
    struct stream_conn *c = conn_of(stream);

    c->eof = true;
    if (c->conn != NULL) {
        tell_eof(c);
    }
}

static void deliver_rest(struct stream_conn *c)
{
    size_t used = 0;

    if (!deliver(c, mu_buf_span(&c->rest), &used)) {
        return;
    }
    mu_buf_consume(&c->rest, used);
    if (!c->paused) {
        mu_buf_trim(&c->rest, 0);
        tell_eof(c);
    }
}

static void on_timer(struct mu_timer *timer)
{
    struct stream_conn *c = MU_CONTAINER_OF(timer, struct stream_conn, timer);

    if (!c->closing) {
        if (c->paused) {
            deliver_rest(c);
        }
    } else if (c->conn == NULL) {
        free_conn(c); /* it has had its time */
    } else {
        if (!c->gone) {
            arm(c, PATIENCE_MS);
        }
        tell_closed(c, 0, "");
    }
}

static void env_resume(struct mu_env *env, struct mu_conn *conn)
{
    struct stream_conn *c = conn->impl;

    (void)env;
    if (c == NULL) {
        return;
    }
    if (c->in_data) {
        c->resume = true;
    } else if (c->paused && !c->closing) {
        arm(c, 0);
    }
}

/* --- sending ---------------------------------------------------------------------------------- */

static void env_sendv(struct mu_env *env, struct mu_conn *conn, const struct mu_span *spans,
                      size_t count, size_t *ret_taken)
{
    struct stream_conn *c = conn->impl;
    bool deaf = c == NULL || c->closing;
    bool full = false;
    size_t taken = 0;

    (void)env;
    for (size_t i = 0; i < count && !full; i++) {
        size_t n =
            deaf || spans[i].len == 0 ? spans[i].len : mu_host_stream_write(&c->stream, spans[i]);

        taken += n;
        full = n < spans[i].len;
    }
    if (!deaf) {
        c->want_writable = full;
    }
    *ret_taken = taken;
}

static void on_writable(struct mu_host_stream *stream)
{
    struct stream_conn *c = conn_of(stream);

    if (c->want_writable && !c->closing) {
        c->want_writable = false;
        c->conn->on->writable(c->conn);
    }
}

/* --- beginning and end ------------------------------------------------------------------------ */

static void on_ready(struct mu_host_stream *stream, struct mu_span name)
{
    struct stream_conn *c = conn_of(stream);

    (void)name;
    if (!c->closing) {
        c->conn->on->open(c->conn);
    }
}

static void on_ended(struct mu_host_stream *stream, int status, const char *text)
{
    struct stream_conn *c = conn_of(stream);

    c->gone = true;
    if (c->conn == NULL) {
        free_conn(c);
    } else if (!c->closing) {
        tell_closed(c, status != 0 ? status : MUSTER_ECLOSED, text);
    }
    /* Else the timer is about to tell. */
}

static const struct mu_host_stream_events stream_events = {
    .ready = on_ready,
    .data = on_data,
    .eof = on_eof,
    .writable = on_writable,
    .ended = on_ended,
};

static struct stream_conn *new_conn(struct mu_peer_env *peers)
{
    struct stream_conn *c = mu_calloc(1, sizeof(*c));

    if (c != NULL) {
        c->env = peers;
        c->stream.on = &stream_events;
        mu_timer_init(&c->timer, on_timer);
        mu_buf_init(&c->rest, SIZE_MAX / 4);
        mu_list_push(&peers->conns, &c->link);
    }
    return c;
}

static void own(struct stream_conn *c, struct mu_conn *conn)
{
    c->conn = conn;
    conn->env = &c->env->layer.env;
    conn->impl = c;
}

static int env_dial(struct mu_env *env, struct mu_conn *conn, const struct mu_addr *addr)
{
    struct mu_peer_env *peers = peers_of(env);
    struct mu_peer_id peer;
    struct mu_errmsg msg;
    struct stream_conn *c;

    if (addr->kind != MU_ADDR_PEER || mu_peer_id_parse(&peer, addr->host, &msg) != 0) {
        return MUSTER_EINVAL;
    }
    c = new_conn(peers);
    if (c == NULL) {
        return MUSTER_ENOMEM;
    }
    own(c, conn);
    mu_host_stream_open(peers->host, &c->stream, &peer, &wire_name, 1);
    return 0;
}

/* Whether there may be something on its way, which a close lets go out. */
static bool has_said(const struct stream_conn *c)
{
    return c->stream.state == MU_HOST_STREAM_OPEN ||
           (c->stream.state == MU_HOST_STREAM_OPENING && c->stream.used);
}

static void env_close(struct mu_env *env, struct mu_conn *conn, bool abort)
{
    struct stream_conn *c = conn->impl;

    (void)env;
    if (c == NULL) {
        return;
    }
    if (!c->closing) {
        c->closing = true;
        if (!abort && !c->gone && has_said(c)) {
            /* Inside of `data` the rest is lent, and deliver() gives it back. */
            if (!c->in_data) {
                mu_host_stream_consumed(&c->stream, c->rest.len);
                mu_buf_reset(&c->rest);
            }
            mu_host_stream_end(&c->stream);
        } else {
            abort = true;
        }
        arm(c, 0);
    }
    if (abort && !c->gone) {
        mu_host_stream_reset(&c->stream);
        c->gone = true;
    }
}

static void env_peer(struct mu_env *env, const struct mu_conn *conn, char *buf, size_t cap)
{
    const struct stream_conn *c = conn->impl;
    char text[MU_PEER_ID_TEXT_MAX];

    (void)env;
    if (c == NULL) {
        (void)snprintf(buf, cap, "?");
        return;
    }
    (void)snprintf(buf, cap, "peer:%s", mu_peer_id_format(&c->stream.peer, text));
}

static const char *env_why(struct mu_env *env)
{
    const char *why = peers_of(env)->why;

    return why == NULL ? "" : why;
}

/* --- listening -------------------------------------------------------------------------------- */

static struct mu_host_stream *on_opened(struct mu_peer_handler *handler,
                                        const struct mu_peer_id *peer, struct mu_span name)
{
    struct mu_peer_env *peers = MU_CONTAINER_OF(handler, struct mu_peer_env, handler);
    struct stream_conn *c = new_conn(peers);
    struct mu_conn *conn;

    (void)name;
    if (c == NULL) {
        return NULL;
    }
    c->stream.peer = *peer;
    conn = peers->listener->accept(peers->listener);
    if (conn == NULL) {
        c->gone = true; /* it never was */
        free_conn(c);
        return NULL;
    }
    own(c, conn);
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
    mu_env_timer_arm(peers->layer.below, &peers->unlistened, mu_env_now(peers->layer.below).mono);
}

static const struct mu_env_ops peer_ops = {
    MU_ENV_LAYER_OPS,         .dial = env_dial,   .listen = env_listen,
    .unlisten = env_unlisten, .sendv = env_sendv, .resume = env_resume,
    .close = env_close,       .peer = env_peer,   .why = env_why,
};

int mu_peer_env_new(struct mu_peer_host *host, struct mu_peer_env **ret)
{
    struct mu_peer_env *peers = mu_calloc(1, sizeof(*peers));

    if (peers == NULL) {
        return MUSTER_ENOMEM;
    }
    peers->layer.env.ops = &peer_ops;
    peers->layer.below = mu_peer_host_env(host);
    peers->host = host;
    mu_list_init(&peers->conns);
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
    MU_LIST_FOREACH_SAFE (it, tmp, &peers->conns) {
        struct stream_conn *c = MU_CONTAINER_OF(it, struct stream_conn, link);

        MU_ASSERT(c->conn == NULL);
        free_conn(c);
    }
    mu_free(peers);
}

struct mu_env *mu_peer_env_env(struct mu_peer_env *peers)
{
    return &peers->layer.env;
}
