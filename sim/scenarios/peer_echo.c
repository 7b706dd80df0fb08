#include "scenarios/peer_echo.h"

#include <muster/error.h>

#include "core/alloc.h"

#define HELD_MAX (32u << 20)

static void say_more(struct mu_host_stream *stream)
{
    struct peer_echo *e = MU_CONTAINER_OF(stream, struct peer_echo, stream);
    size_t taken = mu_host_stream_write(stream, mu_buf_span(&e->held));

    mu_buf_consume(&e->held, taken);
    mu_host_stream_consumed(stream, taken);
    if (e->held.len == 0 && stream->remote_end) {
        mu_host_stream_end(stream);
    }
}

static void on_ended(struct mu_host_stream *stream, int status, const char *text)
{
    struct peer_echo *e = MU_CONTAINER_OF(stream, struct peer_echo, stream);

    (void)status;
    (void)text;
    (*e->serving)--;
    mu_buf_fini(&e->held);
    mu_free(e);
}

static void on_data(struct mu_host_stream *stream, struct mu_span bytes)
{
    struct peer_echo *e = MU_CONTAINER_OF(stream, struct peer_echo, stream);

    if (e->heard != NULL) {
        e->heard(e, bytes);
    }
    if (mu_buf_append(&e->held, bytes) != 0) {
        mu_host_stream_reset(stream);
        on_ended(stream, MUSTER_ENOMEM, "");
        return;
    }
    say_more(stream);
}

static const struct mu_host_stream_events echo_events = {
    .data = on_data,
    .eof = say_more,
    .writable = say_more,
    .ended = on_ended,
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
