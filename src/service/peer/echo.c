#include "service/peer/echo.h"

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

    /* Bytes that can go at once are not kept. */
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

/* --- in hivemind's framing -------------------------------------------------------------------- */

/* Items wait here while the caller does not take those that went before. */
struct echo_items {
    struct mu_peer_items items;
    struct mu_peer_echo_calls *echo;
    struct mu_list link;
    struct mu_buf held; /* each behind its length, eight bytes */
    bool over;          /* the caller has sent all of its own */
};

/* How many bytes one caller may have sent and not taken back. */
#define HELD_MAX ((size_t)64 << 20)

static void echo_unary(struct mu_unary_handler *handler, struct mu_unary_request *request,
                       struct mu_span message)
{
    (void)handler;
    mu_unary_reply(request, 0, message);
}

static void unary_gone(struct mu_unary_handler *handler, struct mu_unary_request *request)
{
    (void)handler;
    (void)request;
}

static void free_items(struct echo_items *e)
{
    mu_list_remove(&e->link);
    mu_buf_fini(&e->held);
    mu_free(e);
}

static void send_held(struct mu_peer_items *items)
{
    struct echo_items *e = MU_CONTAINER_OF(items, struct echo_items, items);

    while (e->held.len != 0) {
        struct mu_span held = mu_buf_span(&e->held);
        size_t len = (size_t)mu_get_u64(held.data);
        int err = mu_peer_items_send(items, mu_span(held.data + 8, len));

        if (err == MUSTER_EAGAIN) {
            return;
        }
        if (err != 0) {
            mu_peer_items_fail(items, muster_strerror(err));
            return;
        }
        mu_buf_consume(&e->held, 8 + len);
    }
    if (e->over) {
        (void)mu_peer_items_end(items);
    }
}

static void take_item(struct mu_peer_items *items, struct mu_span message)
{
    struct echo_items *e = MU_CONTAINER_OF(items, struct echo_items, items);
    uint8_t len[8];

    mu_put_u64(len, message.len);
    if (mu_buf_append(&e->held, mu_span(len, sizeof(len))) != 0 ||
        mu_buf_append(&e->held, message) != 0) {
        mu_buf_reset(&e->held);
        mu_peer_items_fail(items, "too many bytes wait to be read back");
        return;
    }
    send_held(items);
}

static void take_end(struct mu_peer_items *items)
{
    MU_CONTAINER_OF(items, struct echo_items, items)->over = true;
    send_held(items);
}

static void items_ended(struct mu_peer_items *items, int status, const char *text)
{
    (void)status;
    (void)text;
    free_items(MU_CONTAINER_OF(items, struct echo_items, items));
}

static const struct mu_peer_items_events items_events = {
    .item = take_item,
    .end = take_end,
    .writable = send_held,
    .ended = items_ended,
};

static struct mu_peer_items *on_items(struct mu_peer_items_handler *handler,
                                      const struct mu_peer_id *peer)
{
    struct mu_peer_echo_calls *echo = MU_CONTAINER_OF(handler, struct mu_peer_echo_calls, items);
    struct echo_items *e = mu_calloc(1, sizeof(*e));

    (void)peer;
    if (e == NULL) {
        return NULL;
    }
    e->items.on = &items_events;
    e->echo = echo;
    mu_buf_init(&e->held, HELD_MAX);
    mu_list_init(&e->link);
    mu_list_push(&echo->open, &e->link);
    return &e->items;
}

int mu_peer_echo_calls_serve(struct mu_peer_echo_calls *echo, struct mu_peer_calls *calls)
{
    struct mu_unary *unary = mu_peer_calls_unary(calls);
    int err;

    *echo = (struct mu_peer_echo_calls){
        .unary = {.method = MU_PEER_ECHO_UNARY, .start = echo_unary, .gone = unary_gone},
        .items = {.name = MU_PEER_ECHO_STREAM, .opened = on_items},
    };
    mu_list_init(&echo->open);
    err = unary->ops->serve(unary, &echo->unary);
    if (err != 0) {
        return err;
    }
    err = mu_peer_items_serve(calls, &echo->items);
    if (err != 0) {
        unary->ops->unserve(unary, &echo->unary);
        return err;
    }
    echo->calls = calls;
    return 0;
}

void mu_peer_echo_calls_unserve(struct mu_peer_echo_calls *echo)
{
    struct mu_unary *unary;

    if (echo->calls == NULL) {
        return;
    }
    unary = mu_peer_calls_unary(echo->calls);
    unary->ops->unserve(unary, &echo->unary);
    mu_peer_items_unserve(&echo->items);
    MU_LIST_FOREACH_SAFE (it, tmp, &echo->open) {
        struct echo_items *e = MU_CONTAINER_OF(it, struct echo_items, link);

        mu_peer_items_cancel(&e->items);
        free_items(e);
    }
    echo->calls = NULL;
}
