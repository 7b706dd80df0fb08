#include "service/peer/stream_conn.h"

#include <stdio.h>

#include <muster/error.h>

#include "core/assert.h"

#define PATIENCE_MS 5000 /* how long output may take once the owner has closed */

static void on_timer(struct mu_timer *timer);

void mu_stream_conn_init(struct mu_stream_conn *c, struct mu_stream_conns *of)
{
    c->of = of;
    mu_timer_init(&c->timer, on_timer);
    mu_buf_init(&c->rest, SIZE_MAX / 4); /* the window bounds it */
    mu_list_init(&c->link);
    mu_list_push(&of->all, &c->link);
}

void mu_stream_conn_fini(struct mu_stream_conn *c)
{
    MU_ASSERT(c->conn == NULL);
    mu_env_timer_arm(c->of->layer.below, &c->timer, MU_MONO_NEVER);
    if (!c->gone) {
        mu_host_stream_reset(&c->stream);
    }
    mu_list_remove(&c->link);
    mu_buf_fini(&c->rest);
}

void mu_stream_conn_own(struct mu_stream_conn *c, struct mu_conn *conn)
{
    c->conn = conn;
    conn->env = &c->of->layer.env;
    conn->impl = c;
}

void mu_stream_conn_arm(struct mu_stream_conn *c, uint32_t ms)
{
    struct mu_env *env = c->of->layer.below;

    mu_env_timer_arm(env, &c->timer, mu_mono_add_ms(mu_env_now(env).mono, ms));
}

/* --- callbacks of the owner ------------------------------------------------------------------- */

static void tell_closed(struct mu_stream_conn *c)
{
    struct mu_conn *conn = c->conn;
    struct mu_errmsg text = c->text;

    c->conn = NULL;
    conn->impl = NULL;
    c->of->why = c->closing ? "" : text.text;
    conn->on->closed(conn, c->closing ? 0 : c->status);
    c->of->why = NULL;
    if (c->gone) {
        c->of->over(c);
    } else {
        mu_stream_conn_arm(c, PATIENCE_MS);
    }
}

/* Hands out bytes and returns how many of them are done with: all, if the owner has closed. */
static size_t deliver(struct mu_stream_conn *c, struct mu_span bytes)
{
    size_t used;

    c->in_data = true;
    c->resume = false;
    used = c->conn->on->data(c->conn, bytes);
    c->in_data = false;
    MU_ASSERT(used <= bytes.len);
    if (c->closing) {
        /* The rest is not wanted, but its window is still given back: the peer may have to send
         * more before it ends. */
        used = bytes.len;
    }
    mu_host_stream_consumed(&c->stream, used);
    c->paused = used < bytes.len && !c->resume;
    return used;
}

/* Makes all callbacks that are due, in order; each may end the connection. An end that the owner
 * asks for here is reported on a turn of its own. */
static void tell(struct mu_stream_conn *c, bool own_turn)
{
    if (c->due_open && !c->closing) {
        c->due_open = false;
        c->conn->on->open(c->conn);
    }
    if (c->rest.len != 0 && !c->paused && !c->closing) {
        /* More may be appended meanwhile. */
        mu_buf_consume(&c->rest, deliver(c, mu_buf_span(&c->rest)));
        mu_buf_trim(&c->rest, 0);
    }
    if (c->due_writable && !c->closing && !c->gone) {
        c->due_writable = false;
        c->conn->on->writable(c->conn);
    }
    if (c->eof && !c->eof_told && c->rest.len == 0 && !c->closing) {
        c->eof_told = true;
        c->conn->on->eof(c->conn);
    }
    if (c->closing ? own_turn : c->gone) {
        tell_closed(c);
    } else if (c->rest.len != 0 && !c->paused) {
        mu_stream_conn_arm(c, 0);
    }
}

static void on_timer(struct mu_timer *timer)
{
    struct mu_stream_conn *c = MU_CONTAINER_OF(timer, struct mu_stream_conn, timer);

    if (c->conn != NULL) {
        tell(c, true);
    } else {
        c->of->over(c); /* its time is up */
    }
}

/* --- events of the stream --------------------------------------------------------------------- */

/* A callback is due; without an owner there is none to make. */
static void become_due(struct mu_stream_conn *c)
{
    if (c->conn == NULL) {
        return;
    }
    if (c->of->deferred || c->closing) {
        mu_stream_conn_arm(c, 0);
    } else {
        tell(c, false);
    }
}

void mu_stream_conn_open(struct mu_stream_conn *c)
{
    c->due_open = true;
    become_due(c);
}

void mu_stream_conn_data(struct mu_stream_conn *c, struct mu_span bytes)
{
    bool directly = !c->of->deferred && c->rest.len == 0;

    if (c->closing || c->conn == NULL) {
        mu_host_stream_consumed(&c->stream, bytes.len);
        return;
    }
    if (directly) {
        bytes = mu_span_skip(bytes, deliver(c, bytes));
    }
    if (bytes.len == 0) {
        return;
    }
    if (mu_buf_append(&c->rest, bytes) != 0) {
        mu_stream_conn_end(c, MUSTER_ENOMEM, "out of memory");
    } else if (!c->paused) {
        mu_stream_conn_arm(c, 0);
    }
}

void mu_stream_conn_eof(struct mu_stream_conn *c)
{
    c->eof = true;
    become_due(c);
}

void mu_stream_conn_writable(struct mu_stream_conn *c)
{
    if (c->want_writable && !c->closing) {
        c->want_writable = false;
        c->due_writable = true;
        become_due(c);
    }
}

void mu_stream_conn_end(struct mu_stream_conn *c, int status, const char *text)
{
    if (!c->gone) {
        mu_host_stream_reset(&c->stream);
        c->gone = true;
    }
    if (c->status == 0) {
        c->status = status;
        (void)mu_err(&c->text, status, "%s", text);
    }
    if (c->of->deferred) {
        mu_stream_conn_arm(c, 0);
    } else if (c->conn == NULL) {
        c->of->over(c);
    } else {
        become_due(c);
    }
}

/* --- verbs ------------------------------------------------------------------------------------ */

void mu_stream_conn_sendv(struct mu_env *env, struct mu_conn *conn, const struct mu_span *spans,
                          size_t count, size_t *ret_taken)
{
    struct mu_stream_conn *c = conn->impl;
    bool deaf = c == NULL || c->closing || c->gone;
    bool full = false;
    size_t taken = 0;

    (void)env;
    for (size_t i = 0; i < count && !full; i++) {
        size_t n =
            deaf || spans[i].len == 0 ? spans[i].len : mu_host_stream_write(&c->stream, spans[i]);

        taken += n;
        full = n < spans[i].len;
    }
    if (!deaf) {
        c->want_writable = full;
    }
    *ret_taken = taken;
}

void mu_stream_conn_resume(struct mu_env *env, struct mu_conn *conn)
{
    struct mu_stream_conn *c = conn->impl;

    (void)env;
    if (c != NULL && c->in_data) {
        c->resume = true;
    } else if (c != NULL && c->paused) {
        c->paused = false;
        mu_stream_conn_arm(c, 0);
    }
}

void mu_stream_conn_close(struct mu_env *env, struct mu_conn *conn, bool abort)
{
    struct mu_stream_conn *c = conn->impl;

    (void)env;
    if (c == NULL) {
        return;
    }
    if (!c->closing) {
        c->closing = true;
        if (!abort && !c->gone && c->of->may_end(c)) {
            /* Inside `data` the rest is lent, and deliver() gives it back. */
            if (!c->in_data) {
                mu_host_stream_consumed(&c->stream, c->rest.len);
                mu_buf_reset(&c->rest);
            }
            mu_host_stream_end(&c->stream);
        } else {
            abort = true;
        }
    }
    if (abort && !c->gone) {
        mu_host_stream_reset(&c->stream);
        c->gone = true;
    }
    mu_stream_conn_arm(c, 0);
}

const char *mu_stream_conn_why(struct mu_env *env)
{
    const char *why = MU_CONTAINER_OF(env, struct mu_stream_conns, layer.env)->why;

    return why == NULL ? "" : why;
}

void mu_stream_conn_peer(const struct mu_conn *conn, const char *before, const char *behind,
                         char *buf, size_t cap)
{
    const struct mu_stream_conn *c = conn->impl;
    char text[MU_PEER_ID_TEXT_MAX];

    if (c == NULL) {
        (void)snprintf(buf, cap, "?");
    } else {
        (void)snprintf(buf, cap, "%s%s%s", before, mu_peer_id_format(&c->stream.peer, text),
                       behind);
    }
}
