/* The host's streams. */
#include "service/peer/host_internal.h"

#include <string.h>

#include <muster/error.h>

#include "core/alloc.h"
#include "core/assert.h"

enum {
    TRIES_MAX = 4, /* how many connections a stream tries, one after the other */
};

static struct mu_host_stream *find(const struct mu_host_conn *c, uint32_t id)
{
    struct mu_map_node *node = mu_map_find(&c->streams, mu_span(&id, sizeof(id)));

    return node == NULL ? NULL : MU_CONTAINER_OF(node, struct mu_host_stream, by_id);
}

static int attach(struct mu_host_conn *c, struct mu_host_stream *s, uint32_t id)
{
    int err;

    s->id = id;
    err = mu_map_insert(&c->streams, &s->by_id, mu_span(&s->id, sizeof(s->id)));
    if (err == 0) {
        s->conn = c;
        c->host->stats.streams_opened++;
    }
    return err;
}

static void detach(struct mu_host_stream *s)
{
    if (s->conn != NULL) {
        mu_map_remove(&s->conn->streams, &s->by_id);
        s->conn->host->stats.streams_closed++;
        s->conn = NULL;
    }
    mu_list_remove(&s->link);
}

void mu_host_stream_finish(struct mu_host_stream *s, int status, const char *text)
{
    detach(s);
    s->state = MU_HOST_STREAM_ENDING;
    s->status = status;
    (void)mu_err(&s->text, status, "%s", text);
    mu_list_push(&s->host->ending, &s->link);
    mu_host_touch(s->host);
}

/* The same as mu_host_stream_finish(), but calls `ended` now: for code that makes callbacks
 * anyway. */
static void end_now(struct mu_host_stream *s, int status, const char *text)
{
    detach(s);
    s->state = MU_HOST_STREAM_NONE;
    s->on->ended(s, status, text);
}

void mu_host_streams_tell(struct mu_peer_host *h)
{
    struct mu_list *link;

    while ((link = mu_list_pop(&h->ending)) != NULL) {
        struct mu_host_stream *s = MU_CONTAINER_OF(link, struct mu_host_stream, link);
        struct mu_errmsg text = s->text; /* the memory may be gone after the call */

        s->state = MU_HOST_STREAM_NONE;
        s->on->ended(s, s->status, text.text);
    }
}

void mu_host_streams_nudge(struct mu_host_conn *c)
{
    struct mu_list *link;

    while ((link = mu_list_pop(&c->nudged)) != NULL) {
        struct mu_host_stream *s = MU_CONTAINER_OF(link, struct mu_host_stream, link);

        s->wants = false;
        if (s->on->writable != NULL) {
            s->on->writable(s);
        }
    }
}

static bool has_room(const struct mu_host_conn *c)
{
    const struct mu_peer_host *h = c->host;

    return h->granted + MU_YAMUX_WINDOW_FIRST <= h->config.memory_bytes_max &&
           c->granted + MU_YAMUX_WINDOW_FIRST <= h->config.memory_bytes_max / MU_HOST_SHARE;
}

/* This is counted at once, since many streams may be opened before the connection is looked at
 * again. */
static void count_window(struct mu_host_conn *c)
{
    c->granted += MU_YAMUX_WINDOW_FIRST;
    c->host->granted += MU_YAMUX_WINDOW_FIRST;
}

/* --- our streams ------------------------------------------------------------------------------ */

static void set_up(struct mu_peer_host *h, struct mu_host_stream *s, const struct mu_peer_id *id,
                   const struct mu_span *names, size_t count)
{
    MU_ASSERT(s->state == MU_HOST_STREAM_NONE);
    s->host = h;
    s->peer = *id;
    s->ours = true;
    s->conn = NULL;
    s->names = names;
    s->name_count = count;
    s->used = s->wants = s->ending = s->remote_end = s->tied = false;
    s->tries = 0;
    s->text.text[0] = '\0';
    mu_list_init(&s->link);
}

void mu_host_stream_open_on(struct mu_host_conn *c, struct mu_host_stream *s,
                            const struct mu_span *names, size_t count)
{
    set_up(c->host, s, mu_peer_conn_peer(&c->pc), names, count);
    s->tied = true;
    mu_host_stream_begin(s, c);
}

void mu_host_stream_open(struct mu_peer_host *h, struct mu_host_stream *s,
                         const struct mu_peer_id *id, const struct mu_span *names, size_t count)
{
    struct mu_host_peer *peer;
    struct mu_host_conn *best;

    set_up(h, s, id, names, count);
    if (h->stopping) {
        mu_host_stream_finish(s, MUSTER_ECLOSED, "the host is closed");
        return;
    }
    peer = mu_host_peer_get(h, id);
    if (peer == NULL) {
        mu_host_stream_finish(s, MUSTER_ELIMIT, "there is no room for another peer");
        return;
    }
    best = mu_host_peer_best(peer);
    if (best != NULL) {
        mu_host_stream_begin(s, best);
        return;
    }
    s->state = MU_HOST_STREAM_WAITING;
    mu_list_push(&peer->waiting, &s->link);
    mu_host_peer_touch(peer);
}

void mu_host_stream_begin(struct mu_host_stream *s, struct mu_host_conn *c)
{
    struct mu_peer_host *h = s->host;
    uint32_t id;
    int err = has_room(c)
                  ? mu_peer_conn_open(&c->pc, mu_env_now(h->env).mono, s->names, s->name_count, &id)
                  : MUSTER_ELIMIT;

    if (err == 0) {
        err = attach(c, s, id);
        if (err != 0) {
            mu_peer_conn_reset(&c->pc, id);
        }
    }
    if (err != 0) {
        mu_host_stream_finish(
            s, err, err == MUSTER_ELIMIT ? "there are too many streams" : muster_strerror(err));
        return;
    }
    s->state = MU_HOST_STREAM_OPENING;
    s->tries++;
    count_window(c);
    if (s->ending) {
        (void)mu_peer_conn_end(&c->pc, id);
    } else if (s->wants) {
        mu_list_push(&c->nudged, &s->link); /* it has tried to write: now it can */
    }
    mu_host_conn_touch(c);
}

/* The connection was closed before the peer accepted the stream, and nothing was written to it yet:
 * opens it on another one. */
static bool begin_again(struct mu_host_stream *s, int err)
{
    struct mu_peer_host *h = s->host;
    struct mu_host_peer *peer;

    if ((err != MUSTER_ECLOSED && err != MUSTER_ECONN) || s->used || s->tries >= TRIES_MAX ||
        h->stopping || s->tied || s->conn->refused != 0 ||
        (s->conn->pc.stage != MU_PEER_OVER && !s->conn->away && !s->conn->drains)) {
        return false;
    }
    peer = mu_host_peer_get(h, &s->peer);
    if (peer == NULL || mu_host_peer_denied(peer)) {
        return false;
    }
    detach(s);
    s->state = MU_HOST_STREAM_WAITING;
    mu_list_push(&peer->waiting, &s->link);
    mu_host_peer_touch(peer);
    return true;
}

size_t mu_host_stream_write(struct mu_host_stream *s, struct mu_span bytes)
{
    size_t taken = 0;

    if (s->state == MU_HOST_STREAM_WAITING) {
        s->wants = bytes.len != 0;
        return 0;
    }
    if ((s->state != MU_HOST_STREAM_OPENING && s->state != MU_HOST_STREAM_OPEN) || s->ending) {
        return 0;
    }
    if (mu_peer_conn_write(&s->conn->pc, s->id, bytes, &taken) == MUSTER_ENOMEM) {
        mu_list_remove(&s->link);
        mu_list_push(&s->conn->starved, &s->link);
        mu_host_conn_starve(s->conn);
    }
    s->wants = taken < bytes.len;
    s->used = s->used || taken != 0;
    mu_host_conn_touch(s->conn);
    return taken;
}

void mu_host_stream_consumed(struct mu_host_stream *s, size_t n)
{
    if (s->conn != NULL) {
        mu_peer_conn_consumed(&s->conn->pc, mu_env_now(s->host->env).mono, s->id, n);
        mu_host_conn_touch(s->conn);
    }
}

void mu_host_stream_end(struct mu_host_stream *s)
{
    if (s->ending || s->state == MU_HOST_STREAM_NONE || s->state == MU_HOST_STREAM_ENDING) {
        return;
    }
    s->ending = true;
    s->wants = false;
    if (s->conn != NULL) {
        (void)mu_peer_conn_end(&s->conn->pc, s->id);
        s->used = true;
        mu_host_conn_touch(s->conn);
        if (s->remote_end) {
            mu_host_stream_finish(s, 0, "");
        }
    }
}

void mu_host_stream_reset(struct mu_host_stream *s)
{
    if (s->state == MU_HOST_STREAM_NONE) {
        return;
    }
    if (s->conn != NULL) {
        mu_peer_conn_reset(&s->conn->pc, s->id);
        mu_host_conn_touch(s->conn);
    }
    detach(s);
    s->state = MU_HOST_STREAM_NONE;
}

uint64_t mu_host_stream_rtt_ns(const struct mu_host_stream *s)
{
    return s->conn == NULL ? 0 : mu_peer_conn_rtt_ns(&s->conn->pc);
}

bool mu_host_stream_limited(const struct mu_host_stream *s)
{
    return s->conn != NULL && s->conn->limited;
}

/* --- events of connections -------------------------------------------------------------------- */

static void take_opened(struct mu_host_conn *c, const struct mu_peer_event *e)
{
    struct mu_peer_host *h = c->host;
    struct mu_peer_handler *handler = mu_host_find_handler(h, e->name);
    struct mu_host_stream *s;
    uint32_t id = e->id;

    if (handler == NULL || c->peer == NULL || h->stopping) {
        return; /* it is refused when the next event is taken */
    }
    if (!has_room(c)) {
        h->stats.streams_refused++;
        h->stats.last_failure = MUSTER_ELIMIT;
        return;
    }
    s = handler->opened(handler, &c->peer->id, e->name);
    if (s == NULL) {
        return;
    }
    s->host = h;
    s->peer = c->peer->id;
    s->ours = false;
    s->conn = NULL;
    s->used = true;
    s->wants = s->ending = s->remote_end = false;
    mu_list_init(&s->link);
    if (attach(c, s, id) != 0 || mu_peer_conn_accept(&c->pc, id) != 0) {
        end_now(s, MUSTER_ENOMEM, "out of memory");
        return;
    }
    s->state = MU_HOST_STREAM_OPEN;
    count_window(c);
    if (s->on->writable != NULL) {
        s->on->writable(s);
    }
}

static void take_ready(struct mu_host_stream *s, const struct mu_peer_event *e)
{
    struct mu_host_conn *c = s->conn;

    if (e->err != 0) {
        if (!begin_again(s, e->err)) {
            const char *text = e->err == MUSTER_EREFUSED ? "the peer does not speak this protocol"
                               : c->pc.err != 0          ? mu_peer_conn_errmsg(&c->pc)
                               : c->why.text[0] != '\0'  ? c->why.text
                                                         : muster_strerror(e->err);

            end_now(s, c->refused != 0 && e->err != MUSTER_EREFUSED ? c->refused : e->err, text);
        }
        return;
    }
    s->state = MU_HOST_STREAM_OPEN;
    if (s->on->ready != NULL) {
        s->on->ready(s, e->name);
    }
}

static void take_reset(struct mu_host_stream *s, const struct mu_peer_event *e)
{
    const struct mu_host_conn *c = s->conn;

    if (c->pc.stage != MU_PEER_OVER) {
        end_now(s, MUSTER_ECLOSED, "reset by the peer");
    } else {
        end_now(s, c->refused != 0 ? c->refused : e->err,
                c->pc.err != 0           ? mu_peer_conn_errmsg(&c->pc)
                : c->why.text[0] != '\0' ? c->why.text
                                         : "the connection was closed");
    }
}

void mu_host_stream_event(struct mu_host_conn *c, const struct mu_peer_event *e)
{
    struct mu_host_stream *s;

    if (e->type == MU_PEER_EV_STREAM_OPENED) {
        take_opened(c, e);
        return;
    }
    s = find(c, e->id);
    if (s == NULL) {
        return;
    }
    if (e->type == MU_PEER_EV_STREAM_READY) {
        take_ready(s, e);
    } else if (e->type == MU_PEER_EV_DATA) {
        s->on->data(s, e->data);
    } else if (e->type == MU_PEER_EV_EOF) {
        s->remote_end = true;
        if (s->ending) {
            if (s->on->eof != NULL) {
                s->on->eof(s);
            }
            s = find(c, e->id); /* it may have been reset in the callback */
            if (s != NULL) {
                end_now(s, 0, "");
            }
        } else if (s->on->eof != NULL) {
            s->on->eof(s);
        }
    } else if (e->type == MU_PEER_EV_RESET) {
        take_reset(s, e);
    } else if (e->type == MU_PEER_EV_WRITABLE && s->on->writable != NULL && !s->ending) {
        s->wants = false;
        s->on->writable(s);
    }
}
