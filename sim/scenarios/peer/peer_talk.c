#include "scenarios/peer/peer_talk.h"

#include <muster/error.h>

#include "core/alloc.h"
#include "service/peer/host_internal.h"

#define HELD_MAX (32u << 20)

/* --- the handler ------------------------------------------------------------------------------ */

static void echo_more(struct mu_host_stream *stream)
{
    struct peer_echo *e = MU_CONTAINER_OF(stream, struct peer_echo, stream);
    size_t taken = mu_host_stream_write(stream, mu_buf_span(&e->held));

    mu_buf_consume(&e->held, taken);
    mu_host_stream_consumed(stream, taken);
    if (e->held.len == 0 && stream->remote_end) {
        mu_host_stream_end(stream);
    }
}

static void echo_ended(struct mu_host_stream *stream, int status, const char *text)
{
    struct peer_echo *e = MU_CONTAINER_OF(stream, struct peer_echo, stream);

    (void)status;
    (void)text;
    (*e->serving)--;
    mu_buf_fini(&e->held);
    mu_free(e);
}

static void echo_data(struct mu_host_stream *stream, struct mu_span bytes)
{
    struct peer_echo *e = MU_CONTAINER_OF(stream, struct peer_echo, stream);

    if (e->heard != NULL) {
        e->heard(e, bytes);
    }
    if (mu_buf_append(&e->held, bytes) != 0) {
        mu_host_stream_reset(stream);
        echo_ended(stream, MUSTER_ENOMEM, "");
        return;
    }
    echo_more(stream);
}

static const struct mu_host_stream_events echo_events = {
    .data = echo_data,
    .eof = echo_more,
    .writable = echo_more,
    .ended = echo_ended,
};

struct peer_echo *peer_echo_new(size_t size, size_t *serving)
{
    struct peer_echo *e = mu_calloc(1, size);

    if (e != NULL) {
        e->stream.on = &echo_events;
        mu_buf_init(&e->held, HELD_MAX);
        e->serving = serving;
        (*serving)++;
    }
    return e;
}

/* --- the caller ------------------------------------------------------------------------------- */

static void call_more(struct mu_host_stream *stream)
{
    struct peer_call *c = MU_CONTAINER_OF(stream, struct peer_call, stream);

    while (c->sent < c->bytes) {
        uint8_t chunk[4096];
        uint32_t n = c->bytes - c->sent < sizeof(chunk) ? c->bytes - c->sent : sizeof(chunk);
        size_t taken;

        for (uint32_t i = 0; i < n; i++) {
            chunk[i] = c->byte_at(c, c->sent + i);
        }
        taken = mu_host_stream_write(stream, mu_span(chunk, n));
        c->sent += (uint32_t)taken;
        if (taken < n) {
            return;
        }
    }
    mu_host_stream_end(stream);
}

static void call_data(struct mu_host_stream *stream, struct mu_span bytes)
{
    struct peer_call *c = MU_CONTAINER_OF(stream, struct peer_call, stream);

    for (size_t i = 0; i < bytes.len; i++) {
        if (c->got + i >= c->sent || bytes.data[i] != c->byte_at(c, c->got + (uint32_t)i)) {
            mu_sim_fail(c->sim, "an echo of what was not said");
            return;
        }
    }
    c->got += (uint32_t)bytes.len;
    mu_host_stream_consumed(stream, bytes.len);
}

static void call_ended(struct mu_host_stream *stream, int status, const char *text)
{
    struct peer_call *c = MU_CONTAINER_OF(stream, struct peer_call, stream);

    if (status == 0 && c->got != c->bytes) {
        mu_sim_fail(c->sim, "a call ended well with %u of %u bytes", c->got, c->bytes);
    }
    mu_env_timer_arm(c->env, &c->timer, MU_MONO_NEVER);
    c->ended(c, status, text);
}

static const struct mu_host_stream_events call_events = {
    .data = call_data,
    .writable = call_more,
    .ended = call_ended,
};

static void give_up(struct mu_timer *timer)
{
    struct peer_call *c = MU_CONTAINER_OF(timer, struct peer_call, timer);

    mu_host_stream_reset(&c->stream);
    c->ended(c, MUSTER_ECANCELED, NULL);
}

void peer_call_make(struct peer_call *call, struct mu_peer_host *host, const struct mu_peer_id *to,
                    const struct mu_span *name)
{
    call->stream.on = &call_events;
    mu_timer_init(&call->timer, give_up);
    mu_env_timer_arm(call->env, &call->timer, call->give_up_at);
    mu_host_stream_open(host, &call->stream, to, name, 1);
    call_more(&call->stream);
}

/* --- its end ---------------------------------------------------------------------------------- */

void peer_host_release_crypto(struct mu_peer_host *host)
{
    MU_LIST_FOREACH (it, &host->conns) {
        struct mu_host_conn *c = MU_CONTAINER_OF(it, struct mu_host_conn, link);

        mu_aead_fini(&c->pc.noise.sealing);
        mu_aead_fini(&c->pc.noise.opening);
    }
}
