/*
 * Circuits of our own: an environment whose connections are streams to relays, behind the words
 * that make a circuit of them. The host that owns the streams owns the connections as well, so that
 * everything is told on a turn of its own: a stream's callback is within one of the host's.
 */
#include "service/peer_relay_internal.h"

#include <stdio.h>
#include <string.h>

#include <muster/error.h>

#include "codec/multiaddr.h"
#include "core/alloc.h"
#include "core/assert.h"
#include "service/log.h"

#define PATIENCE_MS   5000  /* how long what was taken may go out once its owner has closed */
#define ASKING_MS     30000 /* until a relay has said for whom it has come */
#define SILENT_MAX    16    /* streams of one peer that have not, at once */
#define STRANGERS_MAX 64    /* of all peers together that are no relays of ours */

static const struct mu_span hop_name = {(const uint8_t *)MU_RELAY_HOP_NAME,
                                        sizeof(MU_RELAY_HOP_NAME) - 1};

/* It may outlive its owner while its last words go out. */
struct circuit {
    struct mu_list link;
    struct mu_circuits *of;
    struct mu_host_stream stream;
    struct mu_conn *conn; /* its owner's; NULL: there is none yet, or none any more */
    struct mu_timer timer;
    struct mu_relay_in in;
    struct mu_buf out;  /* our words to the relay, which go before all else */
    struct mu_buf rest; /* what the owner has not used; the window bounds it */
    struct mu_errmsg text;
    int status;
    bool in_data;
    bool resume; /* asked for inside of `data` */
    bool dialled;
    bool stranger; /* it has come from one that is no relay of ours, and has said nothing yet */
    bool agreed;   /* the relay's words are over: what comes is the other peer's */
    bool due_open;
    bool paused;
    bool want_writable;
    bool due_writable;
    bool eof;
    bool eof_told;
    bool closing; /* the owner has closed */
    bool gone;    /* the stream is */
};

static struct circuit *circuit_of(struct mu_host_stream *stream)
{
    return MU_CONTAINER_OF(stream, struct circuit, stream);
}

static void arm(struct circuit *c, uint32_t ms)
{
    struct mu_env *env = c->of->layer.below;

    mu_env_timer_arm(env, &c->timer, mu_mono_add_ms(mu_env_now(env).mono, ms));
}

static void unref(struct mu_circuits *of)
{
    if (of->relay == NULL && mu_list_empty(&of->all)) {
        mu_free(of);
    }
}

static void free_circuit(struct circuit *c)
{
    struct mu_circuits *of = c->of;

    MU_ASSERT(c->conn == NULL);
    mu_env_timer_arm(of->layer.below, &c->timer, MU_MONO_NEVER);
    if (!c->gone) {
        mu_host_stream_reset(&c->stream);
    }
    of->strangers -= c->stranger ? 1 : 0;
    mu_list_remove(&c->link);
    mu_relay_in_fini(&c->in);
    mu_buf_fini(&c->out);
    mu_buf_fini(&c->rest);
    mu_free(c);
    unref(of);
}

/* There is no more of it: its owner hears so, and it goes, on a turn of its own. */
static void give_up(struct circuit *c, int status, const char *text)
{
    if (!c->gone) {
        mu_host_stream_reset(&c->stream);
        c->gone = true;
    }
    if (c->status == 0) {
        c->status = status;
        (void)mu_err(&c->text, status, "%s", text);
    }
    arm(c, 0);
}

/* --- what is told ----------------------------------------------------------------------------- */

static void tell_closed(struct circuit *c)
{
    struct mu_circuits *of = c->of;
    struct mu_conn *conn = c->conn;
    struct mu_errmsg text = c->text;
    int status = c->closing ? 0 : c->status;

    c->conn = NULL;
    conn->impl = NULL;
    of->why = text.text;
    conn->on->closed(conn, status);
    of->why = NULL;
    if (c->gone) {
        free_circuit(c);
    } else {
        arm(c, PATIENCE_MS);
    }
}

static void tell_data(struct circuit *c)
{
    size_t len = c->rest.len;
    size_t used;

    c->in_data = true;
    c->resume = false;
    used = c->conn->on->data(c->conn, mu_buf_span(&c->rest));
    c->in_data = false;
    if (c->closing) {
        return; /* And the rest was given back. */
    }
    /* More may have come meanwhile, at its end. */
    mu_buf_consume(&c->rest, used);
    mu_buf_trim(&c->rest, 0);
    mu_host_stream_consumed(&c->stream, used);
    c->paused = used < len && !c->resume;
}

/* All that is to be told, in order; each may bring the end of it. */
static void tell(struct circuit *c)
{
    if (c->due_open && !c->closing) {
        c->due_open = false;
        c->conn->on->open(c->conn);
    }
    if (c->rest.len != 0 && !c->paused && !c->closing) {
        tell_data(c);
    }
    if (c->due_writable && !c->closing && !c->gone) {
        c->due_writable = false;
        c->conn->on->writable(c->conn);
    }
    if (c->eof && !c->eof_told && c->rest.len == 0 && !c->closing) {
        c->eof_told = true;
        c->conn->on->eof(c->conn);
    }
    if (c->closing || c->gone) {
        tell_closed(c);
    } else if (c->rest.len != 0 && !c->paused) {
        arm(c, 0);
    }
}

static void on_timer(struct mu_timer *timer)
{
    struct circuit *c = MU_CONTAINER_OF(timer, struct circuit, timer);

    if (c->conn != NULL) {
        tell(c);
    } else {
        free_circuit(c); /* It has had its time. */
    }
}

/* --- the relay's words ------------------------------------------------------------------------ */

static void flush(struct circuit *c)
{
    if (c->out.len != 0) {
        mu_buf_consume(&c->out, mu_host_stream_write(&c->stream, mu_buf_span(&c->out)));
    }
}

/* The relay has led us to the other peer, or has not. */
static void take_status(struct circuit *c, struct mu_span bytes)
{
    struct mu_relay_msg msg;

    if (mu_relay_msg_decode(MU_RELAY_HOP, bytes, &msg) != 0 || msg.type != MU_RELAY_STATUS) {
        give_up(c, MUSTER_EPROTO, "the relay does not answer as it should");
        return;
    }
    if (msg.status != MU_RELAY_OK) {
        give_up(c,
                msg.status == MU_RELAY_PERMISSION_DENIED         ? MUSTER_EPEERDENIED
                : msg.status == MU_RELAY_RESOURCE_LIMIT_EXCEEDED ? MUSTER_ELIMIT
                                                                 : MUSTER_ECONN,
                mu_relay_status_text(msg.status));
        return;
    }
    c->agreed = true;
    c->due_open = true;
    arm(c, 0);
}

/* Whether that relay may lead one more to us who has still to prove who it is. All relays together
 * have half of what the host bears, in equal shares: none takes what is another's, and who dials us
 * is not kept out by any of them. */
static bool has_share(const struct mu_circuits *of, const struct mu_peer_id *relay)
{
    uint32_t share = mu_peer_host_pending_max(of->host) / 2 / (uint32_t)of->relay->place_count;
    uint32_t count = 0;

    MU_LIST_FOREACH (it, &of->all) {
        const struct circuit *c = MU_CONTAINER_OF(it, struct circuit, link);

        count += !c->dialled && c->conn != NULL && mu_peer_id_eq(&c->stream.peer, relay) &&
                         mu_peer_host_is_pending(c->conn)
                     ? 1
                     : 0;
    }
    return count < (share == 0 ? 1 : share);
}

/* Somebody is led to us. */
static enum mu_relay_status take_in(struct circuit *c, const struct mu_relay_msg *msg)
{
    struct mu_circuits *of = c->of;

    if (!mu_relay_has_place(of->relay, &c->stream.peer) || mu_host_stream_limited(&c->stream)) {
        return MU_RELAY_PERMISSION_DENIED;
    }
    c->conn = has_share(of, &c->stream.peer) ? mu_peer_host_accept(of->host, &msg->peer) : NULL;
    if (c->conn == NULL) {
        return MU_RELAY_RESOURCE_LIMIT_EXCEEDED;
    }
    c->conn->env = &of->layer.env;
    c->conn->impl = c;
    of->stopped++;
    return MU_RELAY_OK;
}

static void take_stop(struct circuit *c, struct mu_span bytes)
{
    struct mu_relay_out say = {.type = MU_RELAY_STATUS};
    struct mu_relay_msg msg;
    int err = mu_relay_msg_decode(MU_RELAY_STOP, bytes, &msg);

    say.status = err != 0                       ? MU_RELAY_MALFORMED_MESSAGE
                 : msg.type != MU_RELAY_CONNECT ? MU_RELAY_UNEXPECTED_MESSAGE
                                                : take_in(c, &msg);
    c->agreed = true;
    c->of->strangers -= c->stranger ? 1 : 0;
    c->stranger = false;
    err = mu_relay_msg_encode(MU_RELAY_STOP, &say, &c->out);
    if (err != 0) {
        give_up(c, err, "out of memory");
        return;
    }
    flush(c);
    if (c->conn == NULL) {
        /* It hears why, and that is all. */
        mu_host_stream_end(&c->stream);
        arm(c, PATIENCE_MS);
    } else {
        mu_env_timer_arm(c->of->layer.below, &c->timer, MU_MONO_NEVER);
    }
}

/* Bytes of the relay's own. Says how many; less than all: the rest is the other peer's. */
static size_t take_words(struct circuit *c, struct mu_span bytes)
{
    struct mu_span msg;
    size_t used = 0;
    int err = mu_relay_in_recv(&c->in, bytes, &used, &msg);

    if (err < 0) {
        give_up(c, err, "the relay's answer cannot be read");
        return bytes.len;
    }
    mu_host_stream_consumed(&c->stream, used);
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
    if (bytes.len == 0 || c->gone) {
        return;
    }
    if (c->closing || c->conn == NULL) {
        mu_host_stream_consumed(stream, bytes.len);
        return;
    }
    if (mu_buf_append(&c->rest, bytes) != 0) {
        give_up(c, MUSTER_ENOMEM, "out of memory");
    } else if (!c->paused) {
        arm(c, 0);
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
    if (c->out.len == 0 && c->want_writable && !c->closing && c->conn != NULL) {
        c->want_writable = false;
        c->due_writable = true;
        arm(c, 0);
    }
}

static void on_eof(struct mu_host_stream *stream)
{
    struct circuit *c = circuit_of(stream);

    c->eof = true;
    if (!c->agreed) {
        give_up(c, MUSTER_ECLOSED, "the relay has closed the stream without an answer");
    } else if (c->conn != NULL && !c->closing) {
        arm(c, 0);
    }
}

static void on_ended(struct mu_host_stream *stream, int status, const char *text)
{
    struct circuit *c = circuit_of(stream);

    c->gone = true;
    c->paused = false;
    if (c->conn == NULL) {
        free_circuit(c);
    } else if (status == MUSTER_EREFUSED) {
        give_up(c, MUSTER_ECONN, "that peer is no relay");
    } else {
        give_up(c, status != 0 ? status : MUSTER_ECLOSED, text);
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
    bool deaf = c == NULL || c->closing || c->gone;
    bool full = !deaf && c->out.len != 0;
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

static void env_resume(struct mu_env *env, struct mu_conn *conn)
{
    struct circuit *c = conn->impl;

    (void)env;
    if (c != NULL && c->in_data) {
        c->resume = true;
    } else if (c != NULL && c->paused) {
        c->paused = false;
        arm(c, 0);
    }
}

static void env_close(struct mu_env *env, struct mu_conn *conn, bool abort)
{
    struct circuit *c = conn->impl;

    (void)env;
    if (c == NULL) {
        return;
    }
    if (!c->closing) {
        c->closing = true;
        if (!abort && !c->gone && c->agreed && c->out.len == 0) {
            mu_host_stream_consumed(&c->stream, c->rest.len);
            mu_buf_reset(&c->rest);
            mu_host_stream_end(&c->stream);
        } else {
            abort = true;
        }
    }
    if (abort && !c->gone) {
        mu_host_stream_reset(&c->stream);
        c->gone = true;
    }
    arm(c, 0);
}

static void env_peer(struct mu_env *env, const struct mu_conn *conn, char *buf, size_t cap)
{
    const struct circuit *c = conn->impl;
    char text[MU_PEER_ID_TEXT_MAX];

    (void)env;
    if (c == NULL) {
        (void)snprintf(buf, cap, "?");
        return;
    }
    (void)snprintf(buf, cap, "/p2p/%s/p2p-circuit", mu_peer_id_format(&c->stream.peer, text));
}

static const char *env_why(struct mu_env *env)
{
    const char *why = MU_CONTAINER_OF(env, struct mu_circuits, layer.env)->why;

    return why == NULL ? "" : why;
}

/* What is dialled is a multiaddr, and nobody listens: see circuits_dial() and stop_opened(). */
static int env_dial(struct mu_env *env, struct mu_conn *conn, const struct mu_addr *addr)
{
    (void)env;
    (void)conn;
    (void)addr;
    return MUSTER_EINVAL;
}

static int env_listen(struct mu_env *env, struct mu_listener *listener, struct mu_addr *addr)
{
    (void)env;
    (void)listener;
    (void)addr;
    return MUSTER_EINVAL;
}

static void env_unlisten(struct mu_env *env, struct mu_listener *listener)
{
    (void)env;
    (void)listener;
}

static const struct mu_env_ops circuit_ops = {
    MU_ENV_LAYER_OPS,         .dial = env_dial,   .listen = env_listen,
    .unlisten = env_unlisten, .sendv = env_sendv, .resume = env_resume,
    .close = env_close,       .peer = env_peer,   .why = env_why,
};

/* --- there and back --------------------------------------------------------------------------- */

static struct circuit *new_circuit(struct mu_circuits *of, bool dialled)
{
    struct circuit *c = mu_calloc(1, sizeof(*c));

    if (c != NULL) {
        c->of = of;
        c->dialled = dialled;
        c->stream.on = &stream_events;
        mu_timer_init(&c->timer, on_timer);
        mu_relay_in_init(&c->in);
        mu_buf_init(&c->out, MU_RELAY_MSG_MAX + 2);
        mu_buf_init(&c->rest, SIZE_MAX / 4);
        mu_list_init(&c->link);
        mu_list_push(&of->all, &c->link);
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
    /* An address that is only the relay's name leaves where it is to the book. */
    (void)mu_peer_host_add_addr(of->host, &relay, before);
    c = new_circuit(of, true);
    if (c == NULL) {
        return MUSTER_ENOMEM;
    }
    err = mu_relay_msg_encode(MU_RELAY_HOP, &say, &c->out);
    if (err != 0) {
        c->gone = true; /* it never was */
        free_circuit(c);
        return err;
    }
    c->conn = conn;
    conn->env = &of->layer.env;
    conn->impl = c;
    of->dialled++;
    mu_host_stream_open(of->host, &c->stream, &relay, &hop_name, 1);
    return 0;
}

static size_t count_silent(const struct mu_circuits *of, const struct mu_peer_id *peer)
{
    size_t count = 0;

    MU_LIST_FOREACH (it, &of->all) {
        const struct circuit *c = MU_CONTAINER_OF(it, struct circuit, link);

        count += !c->dialled && !c->agreed && mu_peer_id_eq(&c->stream.peer, peer) ? 1 : 0;
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
    c->stream.peer = *peer;
    c->stranger = stranger;
    of->strangers += stranger ? 1 : 0;
    arm(c, ASKING_MS);
    return &c->stream;
}

int mu_circuits_new(struct mu_peer_relay *relay, struct mu_circuits **ret)
{
    struct mu_circuits *of = mu_calloc(1, sizeof(*of));
    int err;

    if (of == NULL) {
        return MUSTER_ENOMEM;
    }
    of->layer.env.ops = &circuit_ops;
    of->layer.below = relay->env;
    of->dialler.dial = circuits_dial;
    of->host = relay->host;
    of->relay = relay;
    mu_list_init(&of->all);
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
    MU_LIST_FOREACH_SAFE (it, tmp, &of->all) {
        struct circuit *c = MU_CONTAINER_OF(it, struct circuit, link);

        if (c->conn == NULL) {
            free_circuit(c);
        } else {
            give_up(c, MUSTER_ECLOSED, "relays are not used any more");
        }
    }
    of->relay = NULL;
    unref(of);
}
