#include "proto/yamux.h"

#include <muster/error.h>

#include "core/alloc.h"
#include "core/assert.h"

enum frame_type {
    DATA = 0,
    WINDOW_UPDATE = 1,
    PING = 2,
    GO_AWAY = 3,
};

enum {
    SYN = 1,
    ACK = 2,
    FIN = 4,
    RST = 8,
};

enum {
    /* What may be owed to a peer beside data: it stops being read when it reads nothing of that. */
    CONTROL_BYTES_MAX = 256 * 1024,
    /* The window doubles while its reader empties it within so many round trips. */
    ROUND_TRIPS = 4,
};

enum wait {
    WAITS_NOT = 0,
    WAITS_WINDOW,
    WAITS_ROOM, /* on no_room */
    WAITS_TOLD, /* on writable: WRITABLE is to be told */
};

struct stream {
    struct mu_map_node by_id;
    struct mu_list link; /* no_room or writable */
    uint32_t id;
    bool ours;
    bool acked;
    bool local_end;
    bool remote_end;
    bool reset; /* by the peer; gone once that is told */
    enum wait wait;
    uint32_t send_window;
    uint32_t recv_window; /* what the peer may still send */
    uint32_t unconsumed;  /* what it sent and nobody has dealt with */
    uint32_t target;      /* the window that is kept open */
    mu_mono_t updated_at;
};

/* --- frames out ------------------------------------------------------------------------------- */

static void put_be16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)(v >> 8);
    p[1] = (uint8_t)v;
}

static void put_be32(uint8_t *p, uint32_t v)
{
    put_be16(p, (uint16_t)(v >> 16));
    put_be16(p + 2, (uint16_t)v);
}

static uint32_t get_be32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* Room must have been reserved. */
static void put_header(struct mu_yamux *y, enum frame_type type, uint16_t flags, uint32_t id,
                       uint32_t length)
{
    uint8_t *to = mu_buf_grow(&y->out, MU_YAMUX_HEADER);

    to[0] = 0;
    to[1] = (uint8_t)type;
    put_be16(to + 2, flags);
    put_be32(to + 4, id);
    put_be32(to + 8, length);
}

/* MUSTER_ELIMIT cannot be: recv stops, and data leaves room for it. */
static int put_control(struct mu_yamux *y, enum frame_type type, uint16_t flags, uint32_t id,
                       uint32_t length)
{
    int err = mu_buf_reserve(&y->out, MU_YAMUX_HEADER);

    if (err == 0) {
        put_header(y, type, flags, id, length);
    }
    return err;
}

/* --- streams ---------------------------------------------------------------------------------- */

static struct stream *find_stream(const struct mu_yamux *y, uint32_t id)
{
    struct mu_map_node *node = mu_map_find(&y->streams, mu_span(&id, sizeof(id)));

    return node == NULL ? NULL : MU_CONTAINER_OF(node, struct stream, by_id);
}

static struct stream *new_stream(struct mu_yamux *y, uint32_t id, bool ours, mu_mono_t now)
{
    struct stream *s = mu_calloc(1, sizeof(*s));

    if (s == NULL) {
        return NULL;
    }
    s->id = id;
    s->ours = ours;
    s->send_window = MU_YAMUX_WINDOW_FIRST;
    s->recv_window = MU_YAMUX_WINDOW_FIRST;
    s->target = MU_YAMUX_WINDOW_FIRST;
    s->updated_at = now;
    mu_list_init(&s->link);
    if (mu_map_insert(&y->streams, &s->by_id, mu_span(&s->id, sizeof(s->id))) != 0) {
        mu_free(s);
        return NULL;
    }
    if (ours) {
        y->unacked++;
    } else {
        y->theirs++;
    }
    return s;
}

static void set_acked(struct mu_yamux *y, struct stream *s)
{
    if (s->ours && !s->acked) {
        s->acked = true;
        y->unacked--;
    }
}

static void free_stream(struct mu_yamux *y, struct stream *s)
{
    set_acked(y, s);
    y->theirs -= s->ours ? 0 : 1;
    mu_list_remove(&s->link);
    mu_map_remove(&y->streams, &s->by_id);
    mu_free(s);
}

static void let_wait(struct mu_yamux *y, struct stream *s, enum wait wait)
{
    mu_list_remove(&s->link);
    s->wait = wait;
    if (wait == WAITS_ROOM) {
        mu_list_push(&y->no_room, &s->link);
    } else if (wait == WAITS_TOLD) {
        mu_list_push(&y->writable, &s->link);
    }
}

/* --- life ------------------------------------------------------------------------------------- */

struct mu_yamux_config mu_yamux_config_defaults(void)
{
    return (struct mu_yamux_config){
        .streams_max = 4096,
        .unacked_max = 256,
        .window_bytes_max = 16 << 20,
        .output_bytes_max = 1 << 20,
        .keep_alive_ms = 30000,
        .dead_ms = 10000,
    };
}

int mu_yamux_init(struct mu_yamux *y, const struct mu_yamux_config *config, mu_mono_t now)
{
    if (config->window_bytes_max < MU_YAMUX_WINDOW_FIRST || config->window_bytes_max > 1u << 30 ||
        config->output_bytes_max < 2 * MU_YAMUX_DATA_MAX || config->dead_ms == 0) {
        return MUSTER_EINVAL;
    }
    *y = (struct mu_yamux){.config = *config};
    mu_map_init(&y->streams, config->seed);
    y->next_id = config->role == MU_YAMUX_DIALLER ? 1 : 2;
    y->heard_at = now;
    y->ping_at = config->keep_alive_ms == 0 ? MU_MONO_NEVER : now;
    y->pinged_at = MU_MONO_NEVER;
    mu_list_init(&y->writable);
    mu_list_init(&y->no_room);
    mu_buf_init(&y->out, (size_t)config->output_bytes_max + (size_t)2 * CONTROL_BYTES_MAX);
    return 0;
}

void mu_yamux_fini(struct mu_yamux *y)
{
    struct mu_map_node *node;

    while ((node = mu_map_next(&y->streams, NULL)) != NULL) {
        free_stream(y, MU_CONTAINER_OF(node, struct stream, by_id));
    }
    mu_map_fini(&y->streams);
    mu_buf_fini(&y->out);
}

size_t mu_yamux_count(const struct mu_yamux *y)
{
    return y->streams.count;
}

const char *mu_yamux_errmsg(const struct mu_yamux *y)
{
    return y->why.text;
}

/* The peer broke a rule: it is told so, once, and nothing more is taken from it. */
static int fail(struct mu_yamux *y, int code, const char *text)
{
    y->poison = code;
    (void)put_control(y, GO_AWAY, 0, 0, MU_YAMUX_PROTOCOL_ERROR);
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
        /* Of several that were not answered yet, the last one is. */
        y->pong_owed = true;
        y->pong_value = h->length;
    } else if ((h->flags & ACK) != 0 && y->pinged_at.ns != MU_MONO_NEVER.ns &&
               h->length == y->ping_value) {
        y->rtt_ns = mu_mono_since(y->pinged_at, now);
        y->pinged_at = MU_MONO_NEVER;
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

/* A stream that the peer opens: accepted, or refused with a reset. NULL with `*ret_err` 0: refused.
 */
static struct stream *accept_stream(struct mu_yamux *y, const struct header *h, mu_mono_t now,
                                    int *ret_err)
{
    bool odd = h->id % 2 == 1;
    struct stream *s;

    *ret_err = 0;
    if (odd == (y->config.role == MU_YAMUX_DIALLER)) {
        *ret_err = fail(y, MUSTER_EPROTO, "the peer opened a stream with an id of ours");
        return NULL;
    }
    if (find_stream(y, h->id) != NULL) {
        *ret_err = fail(y, MUSTER_EPROTO, "the peer opened a stream twice");
        return NULL;
    }
    if (y->away || y->theirs >= y->config.streams_max) {
        *ret_err = put_control(y, WINDOW_UPDATE, RST, h->id, 0);
        return NULL;
    }
    *ret_err = mu_buf_reserve(&y->out, MU_YAMUX_HEADER);
    s = *ret_err == 0 ? new_stream(y, h->id, false, now) : NULL;
    if (s == NULL) {
        *ret_err = MUSTER_ENOMEM;
        return NULL;
    }
    put_header(y, WINDOW_UPDATE, ACK, h->id, 0);
    y->event = (struct mu_yamux_event){.type = MU_YAMUX_EV_OPENED, .id = h->id};
    return s;
}

static int grant(struct mu_yamux *y, struct stream *s, uint32_t delta)
{
    if (delta > UINT32_MAX - s->send_window) {
        return fail(y, MUSTER_EWINDOW, "the peer granted more than a window can hold");
    }
    s->send_window += delta;
    if (s->wait == WAITS_WINDOW && s->send_window > 0) {
        let_wait(y, s, WAITS_TOLD);
    }
    return 0;
}

/* What the flags at the end of a frame mean, once its body is there. */
static void take_end(struct mu_yamux *y, struct stream *s, uint16_t flags)
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
    struct stream *s;
    int err = 0;

    if (h->id == 0) {
        return fail(y, MUSTER_EPROTO, "a frame for no stream");
    }
    s = (h->flags & SYN) != 0 ? accept_stream(y, h, now, &err) : find_stream(y, h->id);
    if (err != 0) {
        return err;
    }
    if (s != NULL && s->reset) {
        s = NULL; /* Whatever still comes of it is nobody's. */
    }
    if (h->type == DATA) {
        y->data_id = s == NULL ? 0 : h->id;
        y->data_left = h->length;
        y->data_flags = h->flags;
    }
    if (s == NULL) {
        return 0; /* It was refused, or is gone already. */
    }
    if ((h->flags & ACK) != 0) {
        set_acked(y, s);
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
        return fail(y, MUSTER_EPROTO, "the peer sent data behind the end of a stream");
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
        return fail(y, MUSTER_EPROTO, "not the version of yamux that is spoken here");
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
        return fail(y, MUSTER_EPROTO, "a frame of a kind that is not known");
    }
}

/* A part of a frame's body; returns how much was taken. */
static size_t take_body(struct mu_yamux *y, struct mu_span in)
{
    size_t len = y->data_left < in.len ? y->data_left : in.len;
    struct stream *s = y->data_id == 0 ? NULL : find_stream(y, y->data_id);

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
           !mu_list_empty(&y->writable);
}

static void answer_ping(struct mu_yamux *y)
{
    if (y->pong_owed && y->out.len < y->config.output_bytes_max + (size_t)CONTROL_BYTES_MAX &&
        put_control(y, PING, ACK, 0, y->pong_value) == 0) {
        y->pong_owed = false;
    }
}

int mu_yamux_recv(struct mu_yamux *y, mu_mono_t now, struct mu_span in, size_t *ret_used)
{
    size_t used = 0;
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
        y->head[y->head_len] = in.data[used];
        if (y->head_len + 1 == MU_YAMUX_HEADER) {
            err = take_header(y, now);
            if (err == MUSTER_ENOMEM) {
                break; /* Its last byte was not taken: it comes again. */
            }
            y->head_len = 0;
        } else {
            y->head_len++;
        }
        used++;
    }
    answer_ping(y);
    *ret_used = used;
    return used != 0 && y->poison == 0 ? 0 : err;
}

/* --- events ----------------------------------------------------------------------------------- */

/* The end that was seen last, as far as the stream is still there to have one. */
static bool tell_end(struct mu_yamux *y, struct mu_yamux_event *ret)
{
    struct stream *s = find_stream(y, y->eof_id);

    y->eof_id = 0;
    if (s == NULL) {
        return false;
    }
    *ret = (struct mu_yamux_event){
        .type = s->reset ? MU_YAMUX_EV_RESET : MU_YAMUX_EV_EOF,
        .id = s->id,
    };
    if (s->reset || s->local_end) {
        free_stream(y, s);
    }
    return true;
}

bool mu_yamux_next_event(struct mu_yamux *y, struct mu_yamux_event *ret_event)
{
    struct mu_list *link;

    if (y->event.type != 0) {
        *ret_event = y->event;
        y->event = (struct mu_yamux_event){0};
        if (find_stream(y, ret_event->id) != NULL) {
            return true;
        }
    }
    if (y->eof_id != 0 && tell_end(y, ret_event)) {
        return true;
    }
    link = mu_list_pop(&y->writable);
    if (link != NULL) {
        struct stream *s = MU_CONTAINER_OF(link, struct stream, link);

        s->wait = WAITS_NOT;
        *ret_event = (struct mu_yamux_event){.type = MU_YAMUX_EV_WRITABLE, .id = s->id};
        return true;
    }
    if (y->away_event) {
        y->away_event = false;
        *ret_event = (struct mu_yamux_event){.type = MU_YAMUX_EV_GO_AWAY, .code = y->away_code};
        return true;
    }
    if (y->dead_event) {
        y->dead_event = false;
        *ret_event = (struct mu_yamux_event){.type = MU_YAMUX_EV_DEAD};
        return true;
    }
    return false;
}

/* --- what we want ----------------------------------------------------------------------------- */

int mu_yamux_open(struct mu_yamux *y, mu_mono_t now, uint32_t *ret_id)
{
    uint32_t id = y->next_id;
    int err;

    if (y->poison != 0 || y->refused || y->away || id > UINT32_MAX - 2) {
        return MUSTER_ECLOSED;
    }
    if (y->unacked >= y->config.unacked_max) {
        return MUSTER_EAGAIN;
    }
    err = mu_buf_reserve(&y->out, MU_YAMUX_HEADER);
    if (err != 0) {
        return err == MUSTER_ELIMIT ? MUSTER_EAGAIN : err;
    }
    if (new_stream(y, id, true, now) == NULL) {
        return MUSTER_ENOMEM;
    }
    put_header(y, WINDOW_UPDATE, SYN, id, 0);
    y->next_id += 2;
    *ret_id = id;
    return 0;
}

int mu_yamux_write(struct mu_yamux *y, uint32_t id, struct mu_span data, size_t *ret_taken)
{
    struct stream *s = find_stream(y, id);
    size_t taken = 0;
    int err = 0;

    *ret_taken = 0;
    if (s == NULL || s->reset) {
        return MUSTER_ENOENT;
    }
    if (s->local_end) {
        return MUSTER_EINVAL;
    }
    while (taken < data.len && s->send_window > 0 && y->out.len < y->config.output_bytes_max) {
        size_t len = data.len - taken;

        len = len < MU_YAMUX_DATA_MAX ? len : MU_YAMUX_DATA_MAX;
        len = len < s->send_window ? len : s->send_window;
        err = mu_buf_reserve(&y->out, MU_YAMUX_HEADER + len);
        if (err != 0) {
            break;
        }
        put_header(y, DATA, 0, id, (uint32_t)len);
        mu_buf_put(&y->out, mu_span(data.data + taken, len));
        s->send_window -= (uint32_t)len;
        taken += len;
    }
    *ret_taken = taken;
    if (err == MUSTER_ENOMEM && taken == 0) {
        return err;
    }
    if (taken < data.len) {
        let_wait(y, s, s->send_window == 0 ? WAITS_WINDOW : WAITS_ROOM);
    }
    return 0;
}

int mu_yamux_end(struct mu_yamux *y, uint32_t id)
{
    struct stream *s = find_stream(y, id);
    int err;

    if (s == NULL || s->reset) {
        return MUSTER_ENOENT;
    }
    if (s->local_end) {
        return 0;
    }
    err = put_control(y, WINDOW_UPDATE, FIN, id, 0);
    if (err != 0) {
        return MUSTER_ENOMEM;
    }
    s->local_end = true;
    let_wait(y, s, WAITS_NOT);
    if (s->remote_end && y->eof_id != id) {
        free_stream(y, s);
    }
    return 0;
}

int mu_yamux_reset(struct mu_yamux *y, uint32_t id)
{
    struct stream *s = find_stream(y, id);
    int err;

    if (s == NULL) {
        return 0;
    }
    err = s->reset ? 0 : put_control(y, WINDOW_UPDATE, RST, id, 0);
    free_stream(y, s);
    return err == 0 ? 0 : MUSTER_ENOMEM;
}

int mu_yamux_consumed(struct mu_yamux *y, mu_mono_t now, uint32_t id, uint32_t n)
{
    struct stream *s = find_stream(y, id);
    uint32_t target;
    uint32_t delta;
    int err;

    if (s == NULL || s->reset) {
        return 0;
    }
    MU_ASSERT(n <= s->unconsumed);
    target = s->target;
    if (y->rtt_ns != 0 && target < y->config.window_bytes_max &&
        mu_mono_since(s->updated_at, now) < ROUND_TRIPS * y->rtt_ns) {
        target = target * 2 < y->config.window_bytes_max ? target * 2 : y->config.window_bytes_max;
    }
    /* What was granted and not used, and what waits here, is part of the window that is open. */
    delta = s->target - s->recv_window - (s->unconsumed - n);
    if (s->remote_end || delta < s->target / 2) {
        s->unconsumed -= n;
        return 0;
    }
    err = put_control(y, WINDOW_UPDATE, 0, id, delta + (target - s->target));
    if (err != 0) {
        return MUSTER_ENOMEM;
    }
    s->unconsumed -= n;
    s->recv_window += delta + (target - s->target);
    s->target = target;
    s->updated_at = now;
    return 0;
}

int mu_yamux_go_away(struct mu_yamux *y, enum mu_yamux_go_away code)
{
    int err = y->away ? 0 : put_control(y, GO_AWAY, 0, 0, (uint32_t)code);

    y->away = y->away || err == 0;
    return err == 0 ? 0 : MUSTER_ENOMEM;
}

/* --- out, and time ---------------------------------------------------------------------------- */

struct mu_span mu_yamux_output(const struct mu_yamux *y)
{
    return mu_buf_span(&y->out);
}

void mu_yamux_sent(struct mu_yamux *y, size_t len)
{
    mu_buf_consume(&y->out, len);
    answer_ping(y);
    if (y->out.len <= y->config.output_bytes_max / 2) {
        while (!mu_list_empty(&y->no_room)) {
            let_wait(y, MU_CONTAINER_OF(y->no_room.next, struct stream, link), WAITS_TOLD);
        }
    }
}

static mu_mono_t dead_at(const struct mu_yamux *y)
{
    /* Whatever comes is a sign of life: a pong can be stuck behind data. */
    mu_mono_t since = mu_mono_before(y->pinged_at, y->heard_at) ? y->heard_at : y->pinged_at;

    return y->pinged_at.ns == MU_MONO_NEVER.ns ? MU_MONO_NEVER
                                               : mu_mono_add_ms(since, y->config.dead_ms);
}

mu_mono_t mu_yamux_deadline(const struct mu_yamux *y)
{
    return y->poison != 0 ? MU_MONO_NEVER : mu_mono_min(dead_at(y), y->ping_at);
}

int mu_yamux_tick(struct mu_yamux *y, mu_mono_t now)
{
    if (y->poison != 0) {
        return 0;
    }
    if (mu_mono_reached(dead_at(y), now)) {
        y->pinged_at = MU_MONO_NEVER;
        y->ping_at = MU_MONO_NEVER;
        y->dead_event = true;
        return 0;
    }
    if (mu_mono_reached(y->ping_at, now)) {
        if (y->pinged_at.ns == MU_MONO_NEVER.ns) {
            if (put_control(y, PING, SYN, 0, y->ping_value + 1) != 0) {
                return MUSTER_ENOMEM;
            }
            y->ping_value++;
            y->pinged_at = now;
        }
        y->ping_at = mu_mono_add_ms(now, y->config.keep_alive_ms);
    }
    return 0;
}
