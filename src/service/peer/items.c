/* Streaming calls between peers. */
#include "service/peer/call_internal.h"

#include <muster/error.h>

#include "codec/peer/frame.h"

static void let_go(struct mu_peer_items *it)
{
    it->active = false;
    if (it->gone != NULL) {
        *it->gone = true;
    }
    mu_list_remove(&it->link);
    mu_buf_fini(&it->in);
    mu_buf_fini(&it->out);
}

static void end_with(struct mu_peer_items *it, int status, const char *text)
{
    struct mu_errmsg copy;

    (void)mu_err(&copy, status, "%s", text);
    let_go(it);
    it->on->ended(it, status, copy.text);
}

static void fail(struct mu_peer_items *it, int status, const char *text)
{
    mu_host_stream_reset(&it->stream);
    end_with(it, status, text);
}

void mu_peer_items_cancel(struct mu_peer_items *it)
{
    if (it->active) {
        mu_host_stream_reset(&it->stream);
        let_go(it);
    }
}

/* --- out -------------------------------------------------------------------------------------- */

static void flush(struct mu_peer_items *it)
{
    if (it->out.len != 0) {
        mu_buf_consume(&it->out, mu_host_stream_write(&it->stream, mu_buf_span(&it->out)));
    }
    /* The handler's side ends the stream; the caller closes when it has received all. */
    if (it->out.len == 0 && it->closing && !it->ours) {
        mu_host_stream_end(&it->stream);
    }
}

int mu_peer_items_send_two(struct mu_peer_items *it, struct mu_span a, struct mu_span b)
{
    size_t len = a.len + b.len;
    size_t max;
    int err;

    if (!it->active || it->closing) {
        return MUSTER_ECLOSED;
    }
    max = it->calls->config.item_bytes_max;
    if (len > it->calls->config.item_len_max) {
        return MUSTER_ELIMIT;
    }
    /* An item that is longer than the room goes when nothing else waits. */
    if (it->out.len != 0 && it->out.len + len > max) {
        it->wants = true;
        return MUSTER_EAGAIN;
    }
    err = mu_item_encode_two(&it->out, MU_ITEM_MARKER_DATA, a, b);
    if (err == 0) {
        flush(it);
    }
    return err;
}

int mu_peer_items_send(struct mu_peer_items *it, struct mu_span message)
{
    return mu_peer_items_send_two(it, message, (struct mu_span){0});
}

size_t mu_peer_items_partial(const struct mu_peer_items *it)
{
    return it->active ? it->in.len : 0;
}

int mu_peer_items_end(struct mu_peer_items *it)
{
    int err = 0;

    if (!it->active || it->closing) {
        return MUSTER_ECLOSED;
    }
    if (it->ours) {
        err = mu_item_error_encode(&it->out, (struct mu_span){0});
    }
    if (err == 0) {
        it->closing = true;
        flush(it);
    }
    return err;
}

void mu_peer_items_fail(struct mu_peer_items *it, const char *text)
{
    int err;

    if (!it->active || it->closing) {
        return;
    }
    err = mu_item_error_encode(&it->out, mu_span_str(text));
    if (err != 0) {
        fail(it, err, muster_strerror(err));
        return;
    }
    it->closing = true;
    flush(it);
}

/* --- in --------------------------------------------------------------------------------------- */

static int take_error(struct mu_peer_items *it, struct mu_span message)
{
    struct mu_span text;
    char quoted[MU_ERRMSG_CAP];

    if (!it->ours) {
        it->over = true; /* whatever the error is */
        if (it->on->end != NULL) {
            it->on->end(it);
        }
        return 0;
    }
    if (mu_item_error_decode(message, &text) != 0) {
        return MUSTER_EPROTO;
    }
    it->failed = true;
    it->over = true;
    (void)mu_err(&it->text, MUSTER_EREMOTE, "%s", mu_span_quote(quoted, sizeof(quoted), text));
    return 0;
}

/* Takes one message off the front. 1: taken; 0: it is not all there, or the owner has canceled. */
static int take_one(struct mu_peer_items *it, const bool *gone)
{
    struct mu_span in = mu_buf_span(&it->in);
    struct mu_span message;
    struct mu_buf held;
    uint8_t marker;
    uint64_t len;
    int got = mu_item_head_decode(in, &marker, &len);

    if (got != 1) {
        return got;
    }
    if (len > it->calls->config.item_len_max) {
        return MUSTER_ELIMIT;
    }
    if (in.len - MU_ITEM_HEAD_LEN < len) {
        return 0;
    }
    message = mu_span(in.data + MU_ITEM_HEAD_LEN, (size_t)len);
    /* The buffer is set aside: the owner may cancel inside a callback. */
    held = it->in;
    mu_buf_init(&it->in, held.max);
    got = 0;
    if (marker == MU_ITEM_MARKER_ERROR) {
        got = take_error(it, message);
    } else if (!it->over) {
        it->on->item(it, message);
    }
    mu_buf_consume(&held, MU_ITEM_HEAD_LEN + (size_t)len);
    if (*gone || got != 0) {
        mu_buf_fini(&held);
        return *gone ? 0 : got;
    }
    it->in = held;
    return 1;
}

/* Hands over all that is there, unless the owner pauses. */
static void take_all(struct mu_peer_items *it)
{
    bool gone = false; /* then its memory may be gone, too */
    int err = 1;

    it->gone = &gone;
    it->taking = true;
    while (err == 1 && !it->paused) {
        err = take_one(it, &gone);
        if (gone) {
            return;
        }
    }
    it->gone = NULL;
    it->taking = false;
    if (err < 0) {
        fail(it, err, muster_strerror(err));
    }
}

static void on_data(struct mu_host_stream *s, struct mu_span bytes)
{
    struct mu_peer_items *it = MU_CONTAINER_OF(s, struct mu_peer_items, stream);
    int err = mu_buf_append(&it->in, bytes);

    if (err != 0) {
        fail(it, err, muster_strerror(err));
    } else if (it->paused) {
        it->unread += bytes.len;
    } else {
        mu_host_stream_consumed(s, bytes.len);
        take_all(it);
    }
}

void mu_peer_items_pause(struct mu_peer_items *it)
{
    it->paused = it->active;
}

void mu_peer_items_resume(struct mu_peer_items *it)
{
    size_t unread = it->unread;

    if (!it->active || !it->paused) {
        return;
    }
    it->paused = false;
    it->unread = 0;
    if (unread != 0) {
        mu_host_stream_consumed(&it->stream, unread);
    }
    if (!it->taking) {
        take_all(it);
    }
}

static void on_eof(struct mu_host_stream *s)
{
    struct mu_peer_items *it = MU_CONTAINER_OF(s, struct mu_peer_items, stream);

    if (it->in.len != 0 && !it->paused) {
        fail(it, MUSTER_EPROTO, "the stream ended within a message");
    } else if (it->ours) {
        it->over = true;
        mu_host_stream_end(s);
    } else if (!it->closing || it->out.len != 0) {
        fail(it, MUSTER_ECANCELED, "the caller is gone");
    }
}

static void on_ready(struct mu_host_stream *s, struct mu_span name)
{
    (void)name;
    flush(MU_CONTAINER_OF(s, struct mu_peer_items, stream));
}

static void on_writable(struct mu_host_stream *s)
{
    struct mu_peer_items *it = MU_CONTAINER_OF(s, struct mu_peer_items, stream);

    flush(it);
    if (it->wants && it->out.len == 0) {
        it->wants = false;
        if (it->on->writable != NULL) {
            it->on->writable(it);
        }
    }
}

static void on_ended(struct mu_host_stream *s, int status, const char *text)
{
    struct mu_peer_items *it = MU_CONTAINER_OF(s, struct mu_peer_items, stream);

    if (it->failed) {
        end_with(it, MUSTER_EREMOTE, it->text.text);
    } else if (status == 0 && it->in.len != 0) {
        end_with(it, MUSTER_EPROTO, "the stream ended within a message");
    } else {
        end_with(it, status, text);
    }
}

static const struct mu_host_stream_events events = {
    .ready = on_ready,
    .data = on_data,
    .eof = on_eof,
    .writable = on_writable,
    .ended = on_ended,
};

/* --- opening ---------------------------------------------------------------------------------- */

static void begin(struct mu_peer_calls *c, struct mu_peer_items *it, const struct mu_peer_id *peer)
{
    const struct mu_peer_items_events *on = it->on;

    *it = (struct mu_peer_items){.on = on, .peer = *peer, .calls = c, .active = true};
    it->stream.on = &events;
    mu_buf_init(&it->in, c->config.item_len_max + 2 * MU_ITEM_HEAD_LEN + (1u << 20));
    mu_buf_init(&it->out, c->config.item_len_max + c->config.item_bytes_max + 2 * MU_ITEM_HEAD_LEN);
    mu_list_init(&it->link);
    mu_list_push(&c->items, &it->link);
}

void mu_peer_items_open(struct mu_peer_calls *c, struct mu_peer_items *it,
                        const struct mu_peer_id *peer, const char *name)
{
    begin(c, it, peer);
    it->ours = true;
    it->name = mu_span_str(name);
    mu_host_stream_open(c->host, &it->stream, peer, &it->name, 1);
}

static struct mu_host_stream *on_opened(struct mu_peer_handler *base, const struct mu_peer_id *peer,
                                        struct mu_span name)
{
    struct mu_peer_items_handler *h = MU_CONTAINER_OF(base, struct mu_peer_items_handler, base);
    struct mu_peer_items *it = h->opened(h, peer);

    (void)name;
    if (it == NULL) {
        return NULL;
    }
    begin(h->calls, it, peer);
    return &it->stream;
}

int mu_peer_items_serve(struct mu_peer_calls *c, struct mu_peer_items_handler *handler)
{
    handler->calls = c;
    handler->base = (struct mu_peer_handler){.name = handler->name, .opened = on_opened};
    return mu_peer_host_serve(c->host, &handler->base);
}

void mu_peer_items_unserve(struct mu_peer_items_handler *handler)
{
    mu_peer_host_unserve(&handler->base);
}
