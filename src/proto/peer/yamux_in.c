/* yamux: reads the peer's frames. */
#include <muster/error.h>

#include "core/assert.h"
#include "proto/peer/yamux_internal.h"

static uint32_t get_be32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* The peer broke a rule: it is told once, and nothing more is taken from it. */
static int fail(struct mu_yamux *y, int code, const char *text)
{
    y->poison = code;
    (void)mu_yamux_put_control(y, GO_AWAY, 0, 0, MU_YAMUX_PROTOCOL_ERROR);
    return mu_err(&y->why, code, "%s", text);
}

/* --- frames in -------------------------------------------------------------------------------- */

struct header {
    uint8_t version;
    uint8_t type;
    uint16_t flags;
    uint32_t id;
    uint32_t length;
};

static int take_ping(struct mu_yamux *y, const struct header *h, mu_mono_t now)
{
    if ((h->flags & SYN) != 0) {
        return mu_yamux_put_control(y, PING, ACK, 0, h->length);
    }
    if ((h->flags & ACK) != 0 && y->pinged_at.ns != MU_MONO_NEVER.ns &&
        h->length == y->ping_value) {
        uint64_t rtt_ns = mu_mono_since(y->pinged_at, now) + 1; /* 0 means not measured */

        /* The answer may have waited behind data for as long as a window takes; windows that grow
         * with that time would grow without end. */
        y->rtt_ns = y->rtt_ns == 0 || rtt_ns < y->rtt_ns ? rtt_ns : y->rtt_ns;
        y->pinged_at = MU_MONO_NEVER;
        y->ping_value++;
        if (y->drains && y->ping_value == y->away_ping) {
            y->ping_at = now;
        }
    }
    return 0;
}

static int take_go_away(struct mu_yamux *y, const struct header *h)
{
    y->refused = true;
    y->away_event = true;
    y->away_code = h->length;
    return 0;
}

/* Ids of one side, numbered from 0. */
static uint32_t number_of(uint32_t id)
{
    return (id - 1) / 2;
}

static uint64_t *seen_word(struct mu_yamux *y, uint32_t number)
{
    return &y->seen[number % MU_YAMUX_SEEN / 64];
}

/* Returns whether the peer has used the id already, as far as is known: an id that is too old
 * counts as used. Reusing an id would make a handle mean another stream. */
static bool was_seen(struct mu_yamux *y, uint32_t id)
{
    uint32_t number = number_of(id);

    if (number >= y->seen_end) {
        return false;
    }
    return y->seen_end - number > MU_YAMUX_SEEN || (*seen_word(y, number) >> number % 64 & 1) != 0;
}

static void set_seen(struct mu_yamux *y, uint32_t id)
{
    uint32_t number = number_of(id);

    if (number >= y->seen_end && number - y->seen_end >= MU_YAMUX_SEEN) {
        memset(y->seen, 0, sizeof(y->seen));
        y->seen_end = number + 1;
    }
    for (; y->seen_end <= number; y->seen_end++) {
        *seen_word(y, y->seen_end) &= ~(UINT64_C(1) << y->seen_end % 64);
    }
    *seen_word(y, number) |= UINT64_C(1) << number % 64;
}

/* Accepts a stream that the peer opens, or refuses it with a reset. NULL with `*ret_err` 0:
 * refused.
 */
static struct mu_yamux_stream *accept_stream(struct mu_yamux *y, const struct header *h,
                                             mu_mono_t now, int *ret_err)
{
    bool odd = h->id % 2 == 1;
    struct mu_yamux_stream *s;

    *ret_err = 0;
    if (odd == (y->config.role == MU_YAMUX_DIALLER)) {
        *ret_err = fail(y, MUSTER_EPROTO, "the peer opened a stream with an id of ours");
        return NULL;
    }
    if (was_seen(y, h->id)) {
        *ret_err = fail(y, MUSTER_EPROTO, "the peer opened a stream twice");
        return NULL;
    }
    if ((y->away && !y->drains) || y->theirs >= y->config.streams_max) {
        *ret_err = mu_yamux_put_control(y, WINDOW_UPDATE, RST, h->id, 0);
        if (*ret_err == 0) {
            set_seen(y, h->id);
        }
        return NULL;
    }
    *ret_err = mu_buf_reserve(&y->out, MU_YAMUX_HEADER);
    s = *ret_err == 0 ? mu_yamux_new_stream(y, h->id, false, now) : NULL;
    if (s == NULL) {
        *ret_err = MUSTER_ENOMEM;
        return NULL;
    }
    set_seen(y, h->id);
    mu_yamux_put_header(y, WINDOW_UPDATE, ACK, h->id, 0);
    y->event = (struct mu_yamux_event){.type = MU_YAMUX_EV_OPENED, .id = h->id};
    return s;
}

static int grant(struct mu_yamux *y, struct mu_yamux_stream *s, uint32_t delta)
{
    if (delta > UINT32_MAX - s->send_window) {
        return fail(y, MUSTER_EWINDOW, "the peer granted more than a window can hold");
    }
    s->send_window += delta;
    if (s->wait == WAITS_WINDOW && s->send_window > 0) {
        mu_yamux_let_wait(y, s, WAITS_TOLD);
    }
    return 0;
}

/* Applies the flags of a frame once its body is complete. */
static void take_end(struct mu_yamux *y, struct mu_yamux_stream *s, uint16_t flags)
{
    if ((flags & RST) != 0) {
        s->reset = true;
        y->eof_id = s->id;
    } else if ((flags & FIN) != 0 && !s->remote_end) {
        s->remote_end = true;
        y->eof_id = s->id;
    }
}

static int take_stream_frame(struct mu_yamux *y, const struct header *h, mu_mono_t now)
{
    struct mu_yamux_stream *s;
    int err = 0;

    if (h->id == 0) {
        return fail(y, MUSTER_EPROTO, "a frame for no stream");
    }
    s = (h->flags & SYN) != 0 ? accept_stream(y, h, now, &err) : mu_yamux_find(y, h->id);
    if (err != 0) {
        return err;
    }
    if (h->type == DATA && h->length > y->config.window_bytes_max) {
        return fail(y, MUSTER_ELIMIT, "a frame greater than any window");
    }
    if (h->type == DATA) {
        y->data_id = s == NULL ? 0 : h->id;
        y->data_left = h->length;
        y->data_flags = h->flags;
    }
    if (s == NULL) {
        return 0; /* The stream was refused, or is gone already. */
    }
    if ((h->flags & ACK) != 0) {
        mu_yamux_set_acked(y, s);
    }
    if (h->type == WINDOW_UPDATE) {
        err = grant(y, s, h->length);
        if (err == 0) {
            take_end(y, s, h->flags);
        }
        return err;
    }
    if (h->length > s->recv_window) {
        return fail(y, MUSTER_EWINDOW, "the peer sent more than its window");
    }
    if (h->length > 0 && s->remote_end) {
        return fail(y, MUSTER_EPROTO, "the peer sent data after the end of a stream");
    }
    s->recv_window -= h->length;
    s->unconsumed += h->length;
    if (h->length == 0) {
        take_end(y, s, h->flags);
    }
    return 0;
}

static int take_header(struct mu_yamux *y, mu_mono_t now)
{
    const struct header h = {
        .version = y->head[0],
        .type = y->head[1],
        .flags = (uint16_t)(y->head[2] << 8 | y->head[3]),
        .id = get_be32(y->head + 4),
        .length = get_be32(y->head + 8),
    };

    if (h.version != 0) {
        return fail(y, MUSTER_EPROTO, "an unsupported version of yamux");
    }
    switch (h.type) {
    case DATA:
    case WINDOW_UPDATE:
        return take_stream_frame(y, &h, now);
    case PING:
        return take_ping(y, &h, now);
    case GO_AWAY:
        return take_go_away(y, &h);
    default:
        return fail(y, MUSTER_EPROTO, "a frame of an unknown kind");
    }
}

/* Takes a part of a frame's body; returns how much. */
static size_t take_body(struct mu_yamux *y, struct mu_span in)
{
    size_t len = y->data_left < in.len ? y->data_left : in.len;
    struct mu_yamux_stream *s = y->data_id == 0 ? NULL : mu_yamux_find(y, y->data_id);

    y->data_left -= (uint32_t)len;
    if (s != NULL) {
        y->event = (struct mu_yamux_event){
            .type = MU_YAMUX_EV_DATA, .id = s->id, .data = mu_span(in.data, len)};
        if (y->data_left == 0) {
            take_end(y, s, y->data_flags);
        }
    }
    return len;
}

static bool has_event(const struct mu_yamux *y)
{
    return y->event.type != 0 || y->eof_id != 0 || y->away_event || y->dead_event ||
           !mu_list_empty(&y->writable) || mu_yamux_has_turn(y);
}

int mu_yamux_recv(struct mu_yamux *y, mu_mono_t now, struct mu_span in, size_t *ret_used)
{
    size_t used = 0;
    size_t len;
    int err = 0;

    *ret_used = 0;
    if (y->poison != 0) {
        return y->poison;
    }
    if (in.len != 0) {
        y->heard_at = now;
    }
    while (used < in.len && err == 0 && !has_event(y) &&
           y->out.len < y->config.output_bytes_max + (size_t)CONTROL_BYTES_MAX) {
        if (y->data_left != 0) {
            used += take_body(y, mu_span_skip(in, used));
            continue;
        }
        len = MU_YAMUX_HEADER - (size_t)y->head_len;
        len = len < in.len - used ? len : in.len - used;
        memcpy(y->head + y->head_len, in.data + used, len);
        y->head_len += (uint8_t)len;
        used += len;
        if (y->head_len == MU_YAMUX_HEADER) {
            err = take_header(y, now);
            if (err == MUSTER_ENOMEM) {
                y->head_len--;
                used--;
                break; /* Its last byte was not taken and comes again. */
            }
            y->head_len = 0;
        }
    }
    *ret_used = used;
    return used != 0 && y->poison == 0 ? 0 : err;
}
