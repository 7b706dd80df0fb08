#include "service/peer_echo.h"

#include <muster/error.h>

#include "core/alloc.h"

struct echo_stream {
    struct mu_host_stream stream;
    struct mu_peer_echo *echo;
    struct mu_buf held; /* read and not written yet; the window bounds it */
};

static void release(struct mu_host_stream *s, int status, const char *text)
{
    struct echo_stream *e = MU_CONTAINER_OF(s, struct echo_stream, stream);

    (void)status;
    (void)text;
    e->echo->streams--;
    mu_buf_fini(&e->held);
    mu_free(e);
}

static void write_held(struct mu_host_stream *s)
{
    struct echo_stream *e = MU_CONTAINER_OF(s, struct echo_stream, stream);

    if (e->held.len != 0) {
        size_t taken = mu_host_stream_write(s, mu_buf_span(&e->held));

        mu_buf_consume(&e->held, taken);
        mu_host_stream_consumed(s, taken);
        e->echo->bytes += taken;
    }
    if (e->held.len == 0 && s->remote_end) {
        mu_host_stream_end(s);
    }
}

static void take_data(struct mu_host_stream *s, struct mu_span bytes)
{
    struct echo_stream *e = MU_CONTAINER_OF(s, struct echo_stream, stream);

    /* What can go at once is not kept. */
    if (e->held.len == 0) {
        size_t taken = mu_host_stream_write(s, bytes);

        mu_host_stream_consumed(s, taken);
        e->echo->bytes += taken;
        bytes = mu_span_skip(bytes, taken);
    }
    if (bytes.len != 0 && mu_buf_append(&e->held, bytes) != 0) {
        mu_host_stream_reset(s);
        release(s, MUSTER_ENOMEM, "");
    }
}

static const struct mu_host_stream_events events = {
    .data = take_data,
    .eof = write_held,
    .writable = write_held,
    .ended = release,
};

static struct mu_host_stream *on_opened(struct mu_peer_handler *handler,
                                        const struct mu_peer_id *peer, struct mu_span name)
{
    struct mu_peer_echo *echo = MU_CONTAINER_OF(handler, struct mu_peer_echo, handler);
    struct echo_stream *e = mu_calloc(1, sizeof(*e));

    (void)peer;
    (void)name;
    if (e == NULL) {
        return NULL;
    }
    e->stream.on = &events;
    e->echo = echo;
    mu_buf_init(&e->held, SIZE_MAX / 4);
    echo->streams++;
    echo->served++;
    return &e->stream;
}

void mu_peer_echo_init(struct mu_peer_echo *echo, const char *name)
{
    *echo = (struct mu_peer_echo){.handler = {.name = name, .opened = on_opened}};
}
