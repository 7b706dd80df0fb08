/* Ping, both sides: answering and asking. */
#include "service/peer/host_internal.h"

#include <string.h>

#include <muster/error.h>

#include "core/alloc.h"

enum {
    PINGS_MAX = 2,            /* streams that the peer of one connection may open */
    ECHO_BYTES_MAX = 1 << 16, /* bytes that the peer has not read back yet */
};

static const struct mu_span ping_name[] = {
    {(const uint8_t *)MU_PEER_PING_NAME, sizeof(MU_PEER_PING_NAME) - 1}};

/* --- answering -------------------------------------------------------------------------------- */

struct echo {
    struct mu_host_stream stream;
    struct mu_host_conn *conn;
    struct mu_buf held;
};

static void echo_more(struct mu_host_stream *s)
{
    struct echo *echo = MU_CONTAINER_OF(s, struct echo, stream);
    size_t taken = mu_host_stream_write(s, mu_buf_span(&echo->held));

    mu_buf_consume(&echo->held, taken);
    mu_host_stream_consumed(s, taken);
    if (echo->held.len == 0 && s->remote_end) {
        mu_host_stream_end(s);
    }
}

static void echo_data(struct mu_host_stream *s, struct mu_span bytes)
{
    struct echo *echo = MU_CONTAINER_OF(s, struct echo, stream);

    if (mu_buf_append(&echo->held, bytes) != 0) {
        mu_host_stream_reset(s);
        s->on->ended(s, MUSTER_ELIMIT, "");
        return;
    }
    echo_more(s);
}

static void echo_ended(struct mu_host_stream *s, int status, const char *text)
{
    struct echo *echo = MU_CONTAINER_OF(s, struct echo, stream);

    (void)status;
    (void)text;
    if (echo->conn != NULL) {
        echo->conn->pings--;
    }
    mu_buf_fini(&echo->held);
    mu_free(echo);
}

static void echo_begin(struct mu_host_stream *s)
{
    struct echo *echo = MU_CONTAINER_OF(s, struct echo, stream);

    if (echo->conn == NULL) {
        /* A stream ends before its connection goes, so this pointer stays valid. */
        echo->conn = s->conn;
        if (echo->conn->pings++ >= PINGS_MAX) {
            s->host->stats.streams_refused++;
            mu_host_stream_reset(s);
            s->on->ended(s, MUSTER_ELIMIT, "");
            return;
        }
    }
    echo_more(s);
}

static const struct mu_host_stream_events echo_events = {
    .data = echo_data,
    .eof = echo_more,
    .writable = echo_begin,
    .ended = echo_ended,
};

static struct mu_host_stream *ping_opened(struct mu_peer_handler *handler,
                                          const struct mu_peer_id *peer, struct mu_span name)
{
    struct echo *echo = mu_calloc(1, sizeof(*echo));

    (void)handler;
    (void)peer;
    (void)name;
    if (echo == NULL) {
        return NULL;
    }
    echo->stream.on = &echo_events;
    mu_buf_init(&echo->held, ECHO_BYTES_MAX);
    return &echo->stream;
}

/* --- asking ----------------------------------------------------------------------------------- */

static void end_ping(struct mu_peer_ping *ping, int status, const char *text, uint64_t rtt_ns)
{
    mu_env_timer_arm(ping->stream.host->env, &ping->timer, MU_MONO_NEVER);
    ping->done(ping, status, text, rtt_ns);
}

static void ping_more(struct mu_host_stream *s)
{
    struct mu_peer_ping *ping = MU_CONTAINER_OF(s, struct mu_peer_ping, stream);

    if (s->state == MU_HOST_STREAM_OPEN) {
        ping->sent += mu_host_stream_write(
            s, mu_span(ping->bytes + ping->sent, sizeof(ping->bytes) - ping->sent));
    }
}

static void ping_ready(struct mu_host_stream *s, struct mu_span name)
{
    struct mu_peer_ping *ping = MU_CONTAINER_OF(s, struct mu_peer_ping, stream);

    (void)name;
    ping->at = mu_env_now(s->host->env).mono;
    ping_more(s);
}

static void ping_data(struct mu_host_stream *s, struct mu_span bytes)
{
    struct mu_peer_ping *ping = MU_CONTAINER_OF(s, struct mu_peer_ping, stream);
    uint64_t rtt_ns = mu_mono_since(ping->at, mu_env_now(s->host->env).mono);

    mu_host_stream_consumed(s, bytes.len);
    if (bytes.len > ping->sent - ping->got ||
        memcmp(bytes.data, ping->bytes + ping->got, bytes.len) != 0) {
        mu_host_stream_reset(s);
        end_ping(ping, MUSTER_EPROTO, "the answer differs from what was sent", 0);
        return;
    }
    ping->got += bytes.len;
    if (ping->got == sizeof(ping->bytes)) {
        ping->rtt_ns = rtt_ns;
        mu_host_stream_end(s); /* `ended` follows */
    }
}

static void ping_eof(struct mu_host_stream *s)
{
    mu_host_stream_end(s);
}

static void ping_ended(struct mu_host_stream *s, int status, const char *text)
{
    struct mu_peer_ping *ping = MU_CONTAINER_OF(s, struct mu_peer_ping, stream);

    if (ping->got == sizeof(ping->bytes)) {
        end_ping(ping, 0, "", ping->rtt_ns);
    } else {
        end_ping(ping, status != 0 ? status : MUSTER_ECLOSED,
                 status != 0 ? text : "the peer did not answer", 0);
    }
}

static const struct mu_host_stream_events ping_events = {
    .ready = ping_ready,
    .data = ping_data,
    .eof = ping_eof,
    .writable = ping_more,
    .ended = ping_ended,
};

static void on_ping_timer(struct mu_timer *timer)
{
    struct mu_peer_ping *ping = MU_CONTAINER_OF(timer, struct mu_peer_ping, timer);
    struct mu_peer_host *h = ping->stream.host;

    mu_host_enter(h);
    mu_host_stream_reset(&ping->stream);
    if (ping->got == sizeof(ping->bytes)) {
        ping->done(ping, 0, "", ping->rtt_ns);
    } else {
        ping->done(ping, MUSTER_ETIMEDOUT, "the peer did not answer in time", 0);
    }
    mu_host_leave(h);
}

void mu_peer_host_ping(struct mu_peer_host *h, struct mu_peer_ping *ping)
{
    ping->stream = (struct mu_host_stream){.on = &ping_events};
    ping->sent = 0;
    ping->got = 0;
    mu_timer_init(&ping->timer, on_ping_timer);
    mu_env_entropy(h->env, ping->bytes, sizeof(ping->bytes));
    mu_host_stream_open(h, &ping->stream, &ping->peer, ping_name, 1);
    if (ping->timeout_ms != 0) {
        mu_env_timer_arm(h->env, &ping->timer,
                         mu_mono_add_ms(mu_env_now(h->env).mono, ping->timeout_ms));
    }
}

void mu_peer_host_ping_cancel(struct mu_peer_ping *ping)
{
    if (ping->stream.host != NULL) {
        mu_env_timer_arm(ping->stream.host->env, &ping->timer, MU_MONO_NEVER);
        mu_host_stream_reset(&ping->stream);
    }
}

int mu_host_ping_init(struct mu_peer_host *h)
{
    h->ping_handler = (struct mu_peer_handler){.name = MU_PEER_PING_NAME, .opened = ping_opened};
    return mu_peer_host_serve(h, &h->ping_handler);
}
