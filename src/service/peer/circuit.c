/*
 * Circuits of our own: an environment whose connections are streams to relays, after the messages
 * that make a circuit of them. The host that owns the streams owns the connections as well, so
 * every callback comes on a turn of its own: a stream's callback runs inside one of the host's.
 */
#include "service/peer/relay_internal.h"

#include <stdio.h>
#include <string.h>

#include <muster/error.h>

#include "codec/peer/multiaddr.h"
#include "core/alloc.h"
#include "core/assert.h"
#include "service/base/log.h"

#define PATIENCE_MS   5000  /* how long a refusal may take to go out */
#define ASKING_MS     30000 /* until a relay has said which peer it brings */
#define SILENT_MAX    16    /* streams of one peer that have not said so, at once */
#define STRANGERS_MAX 64    /* the same for all peers together that are not relays of ours */

static const struct mu_span hop_name = {(const uint8_t *)MU_RELAY_HOP_NAME,
                                        sizeof(MU_RELAY_HOP_NAME) - 1};

struct circuit {
    struct mu_stream_conn base;
    struct mu_relay_in in;
    struct mu_buf out; /* our messages to the relay, which go before all else */
    bool dialled;
    bool stranger; /* not from a relay of ours, and nothing has come on it yet */
    bool agreed;   /* the relay's messages are over: what comes now is from the other peer */
};

static struct circuit *circuit_of(struct mu_host_stream *stream)
{
    return MU_CONTAINER_OF(stream, struct circuit, base.stream);
}

static struct mu_circuits *circuits_of(const struct circuit *c)
{
    return MU_CONTAINER_OF(c->base.of, struct mu_circuits, conns);
}

static void unref(struct mu_circuits *of)
{
    if (of->relay == NULL && mu_list_empty(&of->conns.all)) {
        mu_free(of);
    }
}

static void free_circuit(struct mu_stream_conn *conn)
{
    struct circuit *c = MU_CONTAINER_OF(conn, struct circuit, base);
    struct mu_circuits *of = circuits_of(c);

    of->strangers -= c->stranger ? 1 : 0;
    mu_stream_conn_fini(conn);
    mu_relay_in_fini(&c->in);
    mu_buf_fini(&c->out);
    mu_free(c);
    unref(of);
}

static bool may_end(const struct mu_stream_conn *conn)
{
    const struct circuit *c = MU_CONTAINER_OF(conn, const struct circuit, base);

    return c->agreed && c->out.len == 0;
}

/* --- messages of the relay -------------------------------------------------------------------- */

static void flush(struct circuit *c)
{
    if (c->out.len != 0) {
        mu_buf_consume(&c->out, mu_host_stream_write(&c->base.stream, mu_buf_span(&c->out)));
    }
}

/* The relay has connected us to the other peer, or refuses. */
static void take_status(struct circuit *c, struct mu_span bytes)
{
    struct mu_relay_msg msg;

    if (mu_relay_msg_decode(MU_RELAY_HOP, bytes, &msg) != 0 || msg.type != MU_RELAY_STATUS) {
        mu_stream_conn_end(&c->base, MUSTER_EPROTO, "the relay broke the relay protocol");
        return;
    }
    if (msg.status != MU_RELAY_OK) {
        mu_stream_conn_end(&c->base,
                           msg.status == MU_RELAY_PERMISSION_DENIED         ? MUSTER_EPEERDENIED
                           : msg.status == MU_RELAY_RESOURCE_LIMIT_EXCEEDED ? MUSTER_ELIMIT
                                                                            : MUSTER_ECONN,
                           mu_relay_status_text(msg.status));
        return;
    }
    c->agreed = true;
    mu_stream_conn_open(&c->base);
}

/* Whether that relay may bring one more peer that has still to prove its id. All relays together
 * have half of the host's limit, in equal shares: no relay takes another's share, and none of them
 * keeps out a peer that dials us. */
static bool has_share(const struct mu_circuits *of, const struct mu_peer_id *relay)
{
    uint32_t share = mu_peer_host_pending_max(of->host) / 2 / (uint32_t)of->relay->place_count;
    uint32_t count = 0;

    MU_LIST_FOREACH (it, &of->conns.all) {
        const struct circuit *c = MU_CONTAINER_OF(it, struct circuit, base.link);

        count += !c->dialled && c->base.conn != NULL &&
                         mu_peer_id_eq(&c->base.stream.peer, relay) &&
                         mu_peer_host_is_pending(c->base.conn)
                     ? 1
                     : 0;
    }
    return count < (share == 0 ? 1 : share);
}

/* A relay brings a peer to us. */
static enum mu_relay_status take_in(struct circuit *c, const struct mu_relay_msg *msg)
{
    struct mu_circuits *of = circuits_of(c);

    if (!mu_relay_has_place(of->relay, &c->base.stream.peer) ||
        mu_host_stream_limited(&c->base.stream)) {
        return MU_RELAY_PERMISSION_DENIED;
    }
    c->base.conn =
        has_share(of, &c->base.stream.peer) ? mu_peer_host_accept(of->host, &msg->peer) : NULL;
    if (c->base.conn == NULL) {
        return MU_RELAY_RESOURCE_LIMIT_EXCEEDED;
    }
    mu_stream_conn_own(&c->base, c->base.conn);
    of->stopped++;
    return MU_RELAY_OK;
}

static void take_stop(struct circuit *c, struct mu_span bytes)
{
    struct mu_circuits *of = circuits_of(c);
    struct mu_relay_out say = {.type = MU_RELAY_STATUS};
    struct mu_relay_msg msg;
    int err = mu_relay_msg_decode(MU_RELAY_STOP, bytes, &msg);

    say.status = err != 0                       ? MU_RELAY_MALFORMED_MESSAGE
                 : msg.type != MU_RELAY_CONNECT ? MU_RELAY_UNEXPECTED_MESSAGE
                                                : take_in(c, &msg);
    c->agreed = true;
    of->strangers -= c->stranger ? 1 : 0;
    c->stranger = false;
    err = mu_relay_msg_encode(MU_RELAY_STOP, &say, &c->out);
    if (err != 0) {
        mu_stream_conn_end(&c->base, err, "out of memory");
        return;
    }
    flush(c);
    if (c->base.conn == NULL) {
        /* The relay hears why, and the stream ends. */
        mu_host_stream_end(&c->base.stream);
        mu_stream_conn_arm(&c->base, PATIENCE_MS);
    } else {
        mu_env_timer_arm(of->conns.layer.below, &c->base.timer, MU_MONO_NEVER);
    }
}

/* Takes the relay's own bytes. Returns how many; if not all, the rest is the other peer's. */
static size_t take_words(struct circuit *c, struct mu_span bytes)
{
    struct mu_span msg;
    size_t used = 0;
    int err = mu_relay_in_recv(&c->in, bytes, &used, &msg);

    if (err < 0) {
        mu_stream_conn_end(&c->base, err, "the relay's answer cannot be read");
        return bytes.len;
    }
    mu_host_stream_consumed(&c->base.stream, used);
    if (err == 1 && c->dialled) {
        take_status(c, msg);
    } else if (err == 1) {
        take_stop(c, msg);
    }
    return used;
}

/* --- the stream ------------------------------------------------------------------------------- */

static void on_data(struct mu_host_stream *stream, struct mu_span bytes)
{
    struct circuit *c = circuit_of(stream);

    if (!c->agreed) {
        bytes = mu_span_skip(bytes, take_words(c, bytes));
    }
    if (bytes.len != 0 && !c->base.gone) {
        mu_stream_conn_data(&c->base, bytes);
    }
}

static void on_ready(struct mu_host_stream *stream, struct mu_span name)
{
    (void)name;
    flush(circuit_of(stream));
}

static void on_writable(struct mu_host_stream *stream)
{
    struct circuit *c = circuit_of(stream);

    flush(c);
    if (c->out.len == 0) {
        mu_stream_conn_writable(&c->base);
    }
}

static void on_eof(struct mu_host_stream *stream)
{
    struct circuit *c = circuit_of(stream);

    if (!c->agreed) {
        mu_stream_conn_end(&c->base, MUSTER_ECLOSED,
                           "the relay has closed the stream without an answer");
    } else {
        mu_stream_conn_eof(&c->base);
    }
}

static void on_ended(struct mu_host_stream *stream, int status, const char *text)
{
    struct circuit *c = circuit_of(stream);

    c->base.gone = true;
    c->base.paused = false; /* what is left is offered once more */
    if (status == MUSTER_EREFUSED) {
        mu_stream_conn_end(&c->base, MUSTER_ECONN, "that peer is not a relay");
    } else {
        mu_stream_conn_end(&c->base, status != 0 ? status : MUSTER_ECLOSED, text);
    }
}

static const struct mu_host_stream_events stream_events = {
    .ready = on_ready,
    .data = on_data,
    .eof = on_eof,
    .writable = on_writable,
    .ended = on_ended,
};

/* --- the environment -------------------------------------------------------------------------- */

static void env_sendv(struct mu_env *env, struct mu_conn *conn, const struct mu_span *spans,
                      size_t count, size_t *ret_taken)
{
    struct circuit *c = conn->impl;

    if (c != NULL && !c->base.closing && !c->base.gone && c->out.len != 0) {
        c->base.want_writable = true;
        *ret_taken = 0;
    } else {
        mu_stream_conn_sendv(env, conn, spans, count, ret_taken);
    }
}

static void env_peer(struct mu_env *env, const struct mu_conn *conn, char *buf, size_t cap)
{
    (void)env;
    mu_stream_conn_peer(conn, "/p2p/", "/p2p-circuit", buf, cap);
}

/* It dials multiaddrs only, and does not listen: see circuits_dial() and stop_opened(). */
static const struct mu_env_ops circuit_ops = {
    MU_ENV_LAYER_OPS,
    .sendv = env_sendv,
    .resume = mu_stream_conn_resume,
    .close = mu_stream_conn_close,
    .peer = env_peer,
    .why = mu_stream_conn_why,
};

/* --- dialling and accepting ------------------------------------------------------------------- */

static struct circuit *new_circuit(struct mu_circuits *of, bool dialled)
{
    struct circuit *c = mu_calloc(1, sizeof(*c));

    if (c != NULL) {
        mu_stream_conn_init(&c->base, &of->conns);
        c->base.stream.on = &stream_events;
        c->dialled = dialled;
        mu_relay_in_init(&c->in);
        mu_buf_init(&c->out, MU_RELAY_MSG_MAX + 2);
    }
    return c;
}

static int circuits_dial(struct mu_peer_circuits *dialler, struct mu_conn *conn,
                         struct mu_span addr, const struct mu_peer_id *peer)
{
    struct mu_circuits *of = MU_CONTAINER_OF(dialler, struct mu_circuits, dialler);
    const struct mu_relay_out say = {.type = MU_RELAY_CONNECT, .peer = peer};
    struct mu_peer_id relay;
    struct mu_span before;
    struct circuit *c;
    int err = mu_multiaddr_circuit(addr, &before, &relay, NULL);

    if (err != 0 || mu_peer_id_eq(&relay, mu_peer_host_id(of->host)) ||
        mu_peer_id_eq(&relay, peer)) {
        return MUSTER_EINVAL;
    }
    /* If the address is only the relay's id, the book knows where the relay is. */
    (void)mu_peer_host_add_addr(of->host, &relay, before);
    c = new_circuit(of, true);
    if (c == NULL) {
        return MUSTER_ENOMEM;
    }
    err = mu_relay_msg_encode(MU_RELAY_HOP, &say, &c->out);
    if (err != 0) {
        c->base.gone = true; /* it was never open */
        free_circuit(&c->base);
        return err;
    }
    mu_stream_conn_own(&c->base, conn);
    of->dialled++;
    mu_host_stream_open(of->host, &c->base.stream, &relay, &hop_name, 1);
    return 0;
}

static size_t count_silent(const struct mu_circuits *of, const struct mu_peer_id *peer)
{
    size_t count = 0;

    MU_LIST_FOREACH (it, &of->conns.all) {
        const struct circuit *c = MU_CONTAINER_OF(it, struct circuit, base.link);

        count += !c->dialled && !c->agreed && mu_peer_id_eq(&c->base.stream.peer, peer) ? 1 : 0;
    }
    return count;
}

static struct mu_host_stream *stop_opened(struct mu_peer_handler *handler,
                                          const struct mu_peer_id *peer, struct mu_span name)
{
    struct mu_circuits *of = MU_CONTAINER_OF(handler, struct mu_circuits, stop_handler);
    bool stranger = !mu_relay_has_place(of->relay, peer);
    struct circuit *c = NULL;

    (void)name;
    if (count_silent(of, peer) < SILENT_MAX && (!stranger || of->strangers < STRANGERS_MAX)) {
        c = new_circuit(of, false);
    }
    if (c == NULL) {
        return NULL;
    }
    c->base.stream.peer = *peer;
    c->stranger = stranger;
    of->strangers += stranger ? 1 : 0;
    mu_stream_conn_arm(&c->base, ASKING_MS);
    return &c->base.stream;
}

int mu_circuits_new(struct mu_peer_relay *relay, struct mu_circuits **ret)
{
    struct mu_circuits *of = mu_calloc(1, sizeof(*of));
    int err;

    if (of == NULL) {
        return MUSTER_ENOMEM;
    }
    of->conns.layer.env.ops = &circuit_ops;
    of->conns.layer.below = relay->env;
    of->dialler.dial = circuits_dial;
    of->host = relay->host;
    of->relay = relay;
    of->conns.deferred = true;
    of->conns.may_end = may_end;
    of->conns.over = free_circuit;
    mu_list_init(&of->conns.all);
    of->stop_handler = (struct mu_peer_handler){.name = MU_RELAY_STOP_NAME, .opened = stop_opened};
    err = mu_peer_host_serve(of->host, &of->stop_handler);
    if (err != 0) {
        mu_free(of);
        return err;
    }
    mu_peer_host_set_circuits(of->host, &of->dialler);
    *ret = of;
    return 0;
}

void mu_circuits_leave(struct mu_circuits *of)
{
    mu_peer_host_set_circuits(of->host, NULL);
    mu_peer_host_unserve(&of->stop_handler);
    MU_LIST_FOREACH_SAFE (it, tmp, &of->conns.all) {
        struct mu_stream_conn *c = MU_CONTAINER_OF(it, struct mu_stream_conn, link);

        if (c->conn == NULL) {
            free_circuit(c);
        } else {
            mu_stream_conn_end(c, MUSTER_ECLOSED, "the relay service has ended");
        }
    }
    of->relay = NULL;
    unref(of);
}
