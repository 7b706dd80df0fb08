#include "proto/peer/yamux.h"

#include <muster/error.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "proto/peer/yamux_internal.h"

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

static void write_header(uint8_t to[MU_YAMUX_HEADER], enum mu_yamux_frame type, uint16_t flags,
                         uint32_t id, uint32_t length)
{
    to[0] = 0;
    to[1] = (uint8_t)type;
    put_be16(to + 2, flags);
    put_be32(to + 4, id);
    put_be32(to + 8, length);
}

void mu_yamux_put_header(struct mu_yamux *y, enum mu_yamux_frame type, uint16_t flags, uint32_t id,
                         uint32_t length)
{
    write_header(mu_buf_grow(&y->out, MU_YAMUX_HEADER), type, flags, id, length);
}

int mu_yamux_put_control(struct mu_yamux *y, enum mu_yamux_frame type, uint16_t flags, uint32_t id,
                         uint32_t length)
{
    int err = mu_buf_reserve(&y->out, MU_YAMUX_HEADER);

    if (err == 0) {
        mu_yamux_put_header(y, type, flags, id, length);
    }
    return err;
}

/* --- streams ---------------------------------------------------------------------------------- */

struct mu_yamux_stream *mu_yamux_find(const struct mu_yamux *y, uint32_t id)
{
    struct mu_map_node *node = mu_map_find(&y->streams, mu_span(&id, sizeof(id)));

    return node == NULL ? NULL : MU_CONTAINER_OF(node, struct mu_yamux_stream, by_id);
}

struct mu_yamux_stream *mu_yamux_new_stream(struct mu_yamux *y, uint32_t id, bool ours,
                                            mu_mono_t now)
{
    struct mu_yamux_stream *s = mu_calloc(1, sizeof(*s));

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

void mu_yamux_set_acked(struct mu_yamux *y, struct mu_yamux_stream *s)
{
    if (s->ours && !s->acked) {
        s->acked = true;
        y->unacked--;
    }
}

/* The stream cannot be found any more. */
static void forget_stream(struct mu_yamux *y, struct mu_yamux_stream *s)
{
    mu_yamux_set_acked(y, s);
    y->grown -= s->target - MU_YAMUX_WINDOW_FIRST;
    mu_list_remove(&s->link);
    mu_map_remove(&y->streams, &s->by_id);
}

static void free_forgotten(struct mu_yamux *y, struct mu_yamux_stream *s)
{
    y->theirs -= s->ours ? 0 : 1;
    mu_list_remove(&s->link);
    mu_free(s);
}

void mu_yamux_free_stream(struct mu_yamux *y, struct mu_yamux_stream *s)
{
    forget_stream(y, s);
    free_forgotten(y, s);
}

void mu_yamux_let_wait(struct mu_yamux *y, struct mu_yamux_stream *s, enum mu_yamux_wait wait)
{
    if (s->wait == WAITS_ROOM && wait == WAITS_ROOM) {
        return; /* The stream keeps its place in the queue. */
    }
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
        .grown_bytes_max = 64 << 20,
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
    mu_list_init(&y->unsaid);
    mu_buf_init(&y->out, (size_t)config->output_bytes_max + (size_t)2 * CONTROL_BYTES_MAX);
    return 0;
}

void mu_yamux_fini(struct mu_yamux *y)
{
    struct mu_map_node *node;

    while ((node = mu_map_next(&y->streams, NULL)) != NULL) {
        mu_yamux_free_stream(y, MU_CONTAINER_OF(node, struct mu_yamux_stream, by_id));
    }
    while (!mu_list_empty(&y->unsaid)) {
        free_forgotten(y, MU_CONTAINER_OF(y->unsaid.next, struct mu_yamux_stream, link));
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

/* --- events ----------------------------------------------------------------------------------- */

/* Takes the end that was read last, if the stream still exists. */
static bool tell_end(struct mu_yamux *y, struct mu_yamux_event *ret)
{
    struct mu_yamux_stream *s = mu_yamux_find(y, y->eof_id);

    y->eof_id = 0;
    if (s == NULL) {
        return false;
    }
    *ret = (struct mu_yamux_event){
        .type = s->reset ? MU_YAMUX_EV_RESET : MU_YAMUX_EV_EOF,
        .id = s->id,
    };
    if (s->reset || s->local_end) {
        mu_yamux_free_stream(y, s);
    }
    return true;
}

static bool tell_writable(struct mu_yamux *y, struct mu_yamux_event *ret)
{
    struct mu_list *link = mu_list_pop(&y->writable);
    struct mu_yamux_stream *s;

    if (link == NULL && mu_yamux_has_turn(y)) {
        link = mu_list_pop(&y->no_room);
    }
    if (link == NULL) {
        return false;
    }
    s = MU_CONTAINER_OF(link, struct mu_yamux_stream, link);
    s->turn = s->wait == WAITS_ROOM;
    s->wait = WAITS_NOT;
    *ret = (struct mu_yamux_event){.type = MU_YAMUX_EV_WRITABLE, .id = s->id};
    return true;
}

bool mu_yamux_next_event(struct mu_yamux *y, struct mu_yamux_event *ret_event)
{
    struct mu_yamux_event event = y->event;

    if (event.type != 0) {
        y->event = (struct mu_yamux_event){0};
        if (mu_yamux_find(y, event.id) != NULL) {
            *ret_event = event;
            return true;
        }
    }
    if (y->eof_id != 0 && tell_end(y, ret_event)) {
        return true;
    }
    if (tell_writable(y, ret_event)) {
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

/* --- our calls -------------------------------------------------------------------------------- */

int mu_yamux_allot(struct mu_yamux *y, uint32_t *ret_id)
{
    if (y->next_id > UINT32_MAX - 2) {
        return MUSTER_ECLOSED;
    }
    *ret_id = y->next_id;
    y->next_id += 2;
    return 0;
}

int mu_yamux_open_as(struct mu_yamux *y, mu_mono_t now, uint32_t id)
{
    int err;

    MU_ASSERT(id < y->next_id && mu_yamux_find(y, id) == NULL);
    if (y->poison != 0 || y->refused || y->away) {
        return MUSTER_ECLOSED;
    }
    if (y->unacked >= y->config.unacked_max) {
        return MUSTER_EAGAIN;
    }
    err = mu_buf_reserve(&y->out, MU_YAMUX_HEADER);
    if (err != 0) {
        return err == MUSTER_ELIMIT ? MUSTER_EAGAIN : err;
    }
    if (mu_yamux_new_stream(y, id, true, now) == NULL) {
        return MUSTER_ENOMEM;
    }
    mu_yamux_put_header(y, WINDOW_UPDATE, SYN, id, 0);
    return 0;
}

int mu_yamux_open(struct mu_yamux *y, mu_mono_t now, uint32_t *ret_id)
{
    uint32_t id;
    int err = mu_yamux_allot(y, &id);

    if (err == 0) {
        err = mu_yamux_open_as(y, now, id);
        if (err == 0) {
            *ret_id = id;
        } else {
            y->next_id = id;
        }
    }
    return err;
}

/* Returns how much of `len` bytes may go out in one frame; 0 also when it is another stream's
 * turn. */
static size_t frame_len(const struct mu_yamux *y, const struct mu_yamux_stream *s, size_t len)
{
    if (!(s->turn || mu_list_empty(&y->no_room)) ||
        y->out.len + y->behind >= y->config.output_bytes_max) {
        return 0;
    }
    len = len < MU_YAMUX_DATA_MAX ? len : MU_YAMUX_DATA_MAX;
    return len < s->send_window ? len : s->send_window;
}

size_t mu_yamux_frame(const struct mu_yamux *y, uint32_t id, size_t len,
                      uint8_t ret_head[MU_YAMUX_HEADER])
{
    const struct mu_yamux_stream *s = mu_yamux_find(y, id);

    if (y->poison != 0 || y->out.len != 0 || s == NULL || s->reset || s->local_end) {
        return 0;
    }
    len = frame_len(y, s, len);
    if (len != 0) {
        write_header(ret_head, DATA, 0, id, (uint32_t)len);
    }
    return len;
}

void mu_yamux_framed(struct mu_yamux *y, uint32_t id, size_t len)
{
    struct mu_yamux_stream *s = mu_yamux_find(y, id);

    MU_ASSERT(s != NULL && len <= s->send_window);
    s->send_window -= (uint32_t)len;
}

int mu_yamux_write(struct mu_yamux *y, uint32_t id, struct mu_span data, size_t *ret_taken)
{
    struct mu_yamux_stream *s = mu_yamux_find(y, id);
    size_t taken = 0;
    size_t len;
    int err = 0;

    *ret_taken = 0;
    if (y->poison != 0) {
        return y->poison;
    }
    if (s == NULL || s->reset) {
        return MUSTER_ENOENT;
    }
    if (s->local_end) {
        return MUSTER_EINVAL;
    }
    while ((len = frame_len(y, s, data.len - taken)) != 0) {
        err = mu_buf_reserve(&y->out, MU_YAMUX_HEADER + len);
        if (err != 0) {
            break;
        }
        mu_yamux_put_header(y, DATA, 0, id, (uint32_t)len);
        mu_buf_put(&y->out, mu_span(data.data + taken, len));
        s->send_window -= (uint32_t)len;
        taken += len;
    }
    s->turn = false;
    *ret_taken = taken;
    if (err == MUSTER_ENOMEM && taken == 0) {
        return err;
    }
    if (taken < data.len) {
        mu_yamux_let_wait(y, s, s->send_window == 0 ? WAITS_WINDOW : WAITS_ROOM);
    }
    return 0;
}

int mu_yamux_end(struct mu_yamux *y, uint32_t id)
{
    struct mu_yamux_stream *s = mu_yamux_find(y, id);
    int err;

    if (y->poison != 0) {
        return y->poison;
    }
    if (s == NULL || s->reset) {
        return MUSTER_ENOENT;
    }
    if (s->local_end) {
        return 0;
    }
    err = mu_yamux_put_control(y, WINDOW_UPDATE, FIN, id, 0);
    if (err != 0) {
        return MUSTER_ENOMEM;
    }
    s->local_end = true;
    mu_yamux_let_wait(y, s, WAITS_NOT);
    if (s->remote_end && y->eof_id != id) {
        mu_yamux_free_stream(y, s);
    }
    return 0;
}

int mu_yamux_reset(struct mu_yamux *y, uint32_t id)
{
    struct mu_yamux_stream *s = mu_yamux_find(y, id);

    if (s == NULL) {
        return 0;
    }
    if (s->reset || y->poison != 0) {
        mu_yamux_free_stream(y, s);
        return 0;
    }
    /* A peer that never hears of the reset would wait for ever, so the record is kept until it is
     * sent. */
    forget_stream(y, s);
    mu_list_push(&y->unsaid, &s->link);
    return mu_yamux_say_resets(y);
}

int mu_yamux_say_resets(struct mu_yamux *y)
{
    while (!mu_list_empty(&y->unsaid) && y->poison == 0) {
        struct mu_yamux_stream *s = MU_CONTAINER_OF(y->unsaid.next, struct mu_yamux_stream, link);
        int err = mu_yamux_put_control(y, WINDOW_UPDATE, RST, s->id, 0);

        if (err != 0) {
            return err == MUSTER_ELIMIT ? 0 : err; /* There will be room once something was sent. */
        }
        free_forgotten(y, s);
    }
    return 0;
}

/* Chooses the window to keep open: a larger one if the last was emptied quickly. */
static uint32_t next_target(const struct mu_yamux *y, const struct mu_yamux_stream *s,
                            mu_mono_t now)
{
    uint32_t max = y->config.window_bytes_max;
    uint32_t target = s->target < max - s->target ? s->target * 2 : max;
    uint64_t quick_ns = ROUND_TRIPS * y->rtt_ns;

    /* This needs no round-trip time, because perhaps no ping was answered yet. */
    if (target <= WINDOW_LOCAL_MAX && quick_ns < GROW_NS_MIN) {
        quick_ns = GROW_NS_MIN;
    }
    if (mu_mono_since(s->updated_at, now) >= quick_ns ||
        target - s->target > y->config.grown_bytes_max - y->grown) {
        return s->target;
    }
    return target;
}

int mu_yamux_consumed(struct mu_yamux *y, mu_mono_t now, uint32_t id, uint32_t n)
{
    struct mu_yamux_stream *s = mu_yamux_find(y, id);
    uint32_t target;
    uint32_t delta;
    int err;

    if (s == NULL || s->reset || y->poison != 0) {
        return 0;
    }
    MU_ASSERT(n <= s->unconsumed);
    /* What was granted and not used, and what waits here, is part of the open window. */
    delta = s->target - s->recv_window - (s->unconsumed - n);
    if (s->remote_end || delta < s->target / 2) {
        s->unconsumed -= n;
        return 0;
    }
    target = next_target(y, s, now);
    err = mu_yamux_put_control(y, WINDOW_UPDATE, 0, id, delta + (target - s->target));
    if (err != 0) {
        return MUSTER_ENOMEM;
    }
    s->unconsumed -= n;
    s->recv_window += delta + (target - s->target);
    y->grown += target - s->target;
    s->target = target;
    s->updated_at = now;
    return 0;
}

int mu_yamux_go_away(struct mu_yamux *y, enum mu_yamux_go_away code)
{
    int err =
        y->away || y->poison != 0 ? 0 : mu_yamux_put_control(y, GO_AWAY, 0, 0, (uint32_t)code);

    y->away = y->away || err == 0;
    return err == 0 ? 0 : MUSTER_ENOMEM;
}

int mu_yamux_drain(struct mu_yamux *y, mu_mono_t now)
{
    bool waits = y->pinged_at.ns != MU_MONO_NEVER.ns;
    bool first = !y->away;
    int err = mu_yamux_go_away(y, MU_YAMUX_NORMAL);

    if (first && err == 0) {
        y->drains = true;
        y->away_ping = y->ping_value + (waits ? 1 : 0);
        if (!waits) {
            y->ping_at = now;
        }
    }
    return err;
}

bool mu_yamux_drained(const struct mu_yamux *y)
{
    return y->drains && (int32_t)(y->ping_value - y->away_ping) > 0;
}

/* --- out, and time ---------------------------------------------------------------------------- */

struct mu_span mu_yamux_output(const struct mu_yamux *y)
{
    return mu_buf_span(&y->out);
}

void mu_yamux_sent(struct mu_yamux *y, size_t len)
{
    mu_buf_consume(&y->out, len);
}

void mu_yamux_set_behind(struct mu_yamux *y, size_t len)
{
    y->behind = len;
}

static mu_mono_t dead_at(const struct mu_yamux *y)
{
    /* Any byte is a sign of life, because a pong can be stuck behind data. */
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
    if (mu_mono_reached(mu_mono_add_ms(dead_at(y), y->config.dead_ms), now)) {
        y->heard_at = now; /* If we slept for so long, we were not listening. */
    }
    if (mu_mono_reached(dead_at(y), now)) {
        y->pinged_at = MU_MONO_NEVER;
        y->ping_at = MU_MONO_NEVER;
        y->dead_event = true;
        return 0;
    }
    if (mu_mono_reached(y->ping_at, now)) {
        if (y->pinged_at.ns == MU_MONO_NEVER.ns) {
            if (mu_yamux_put_control(y, PING, SYN, 0, y->ping_value) != 0) {
                return MUSTER_ENOMEM;
            }
            y->pinged_at = now;
        }
        y->ping_at = y->config.keep_alive_ms == 0 ? MU_MONO_NEVER
                                                  : mu_mono_add_ms(now, y->config.keep_alive_ms);
    }
    return 0;
}
