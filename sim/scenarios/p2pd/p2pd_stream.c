/* Streams of a client: it sends, ends, and gets everything back from the handler. */
#include <stdio.h>
#include <string.h>

#include <muster/error.h>

#include "core/alloc.h"
#include "scenarios/p2pd/p2pd_world.h"

#define HELD_MAX (1u << 20)

/* The client belongs to the test, so it has memory. */
static int append(struct mu_buf *buf, struct mu_span bytes)
{
    int err;

    mu_sim_spare_memory(true);
    err = mu_buf_append(buf, bytes);
    mu_sim_spare_memory(false);
    return err;
}

static void flush(struct p2pd_stream_app *s)
{
    size_t taken;

    if (s->out.len != 0) {
        mu_env_send(s->conn.env, &s->conn, mu_buf_span(&s->out), &taken);
        mu_buf_consume(&s->out, taken);
    }
}

/* --- ours ------------------------------------------------------------------------------------- */

static void send_more(struct p2pd_stream_app *s)
{
    flush(s);
    while (s->begun && s->out.len == 0 && s->sent < s->len) {
        uint8_t chunk[512];
        uint32_t n = s->len - s->sent < sizeof(chunk) ? s->len - s->sent : sizeof(chunk);

        for (uint32_t i = 0; i < n; i++) {
            chunk[i] = p2pd_byte(s->app->state->number, s->len, s->sent + i);
        }
        if (append(&s->out, mu_span(chunk, n)) != 0) {
            return;
        }
        s->sent += n;
        flush(s);
    }
    if (s->begun && s->sent == s->len && s->out.len == 0) {
        (void)mu_env_finish(s->conn.env, &s->conn);
    }
}

static void our_open(struct mu_conn *conn)
{
    struct p2pd_stream_app *s = MU_CONTAINER_OF(conn, struct p2pd_stream_app, conn);

    flush(s);
}

static size_t our_data(struct mu_conn *conn, struct mu_span in)
{
    struct p2pd_stream_app *s = MU_CONTAINER_OF(conn, struct p2pd_stream_app, conn);
    struct p2pd_world *w = s->app->state->world;
    struct mu_p2pd_response r;
    struct mu_span message;
    size_t used;

    if (append(&s->in, in) != 0) {
        mu_sim_fail(w->sim, "more comes than was said");
        return in.len;
    }
    if (!s->begun) {
        if (!p2pd_next_message(&s->in, &message, &used)) {
            return in.len;
        }
        if (mu_p2pd_response_decode(message, &r) != 0) {
            mu_sim_fail(w->sim, "a client cannot read what a daemon says");
        } else if (!r.ok) {
            mu_env_close(conn->env, conn, false);
            return in.len;
        }
        mu_buf_consume(&s->in, used);
        s->begun = true;
        send_more(s);
    }
    for (size_t i = 0; i < s->in.len; i++, s->got++) {
        if (s->got >= s->sent ||
            mu_buf_span(&s->in).data[i] != p2pd_byte(s->app->state->number, s->len, s->got)) {
            mu_sim_fail(w->sim, "client %u hears what it has not said", s->app->state->number);
            return in.len;
        }
    }
    mu_buf_reset(&s->in);
    return in.len;
}

static void our_eof(struct mu_conn *conn)
{
    struct p2pd_stream_app *s = MU_CONTAINER_OF(conn, struct p2pd_stream_app, conn);

    s->app->state->echoed += s->begun && s->got == s->len ? 1 : 0;
    mu_env_close(conn->env, conn, false);
}

static void our_writable(struct mu_conn *conn)
{
    send_more(MU_CONTAINER_OF(conn, struct p2pd_stream_app, conn));
}

static void our_closed(struct mu_conn *conn, int status)
{
    struct p2pd_stream_app *s = MU_CONTAINER_OF(conn, struct p2pd_stream_app, conn);
    struct p2pd_client_app *app = s->app;

    (void)status;
    once_end(app->state->world->streams, s->ticket);
    mu_buf_fini(&s->in);
    mu_buf_fini(&s->out);
    s->app = NULL;
    p2pd_client_check_left(app);
}

static const struct mu_conn_events our_events = {
    .open = our_open,
    .data = our_data,
    .eof = our_eof,
    .writable = our_writable,
    .closed = our_closed,
};

void p2pd_stream_open(struct p2pd_client_app *app, uint32_t to)
{
    struct p2pd_world *w = app->state->world;
    struct mu_addr addr = {.kind = MU_ADDR_UNIX, .host = P2PD_CONTROL};
    struct p2pd_stream_app *s = NULL;
    struct mu_p2pd_request r = {.type = MU_P2PD_STREAM_OPEN,
                                .peer = mu_peer_id_span(&w->daemons[to].identity.id)};
    int err;

    for (size_t i = 0; i < P2PD_STREAMS && s == NULL; i++) {
        s = app->streams[i].app == NULL ? &app->streams[i] : NULL;
    }
    if (s == NULL) {
        return;
    }
    *s = (struct p2pd_stream_app){.app = app, .ours = true};
    s->conn.on = &our_events;
    s->len = (uint32_t)(1 + mu_prng_below(mu_sim_prng(w->sim), 9000));
    mu_buf_init(&s->in, HELD_MAX);
    mu_buf_init(&s->out, HELD_MAX);
    mu_sim_spare_memory(true);
    err = mu_p2pd_request_encode(&s->out, &r, mu_span_str(P2PD_STREAM));
    mu_sim_spare_memory(false);
    if (err != 0 || mu_env_dial(app->env, &s->conn, &addr) != 0) {
        mu_buf_fini(&s->out);
        s->app = NULL;
        return;
    }
    s->ticket = once_begin(w->streams, app->state->number);
}

/* --- theirs ----------------------------------------------------------------------------------- */

static void echo_more(struct p2pd_stream_app *s)
{
    flush(s);
    if (s->ending && s->out.len == 0) {
        mu_env_close(s->conn.env, &s->conn, false);
    }
}

static size_t their_data(struct mu_conn *conn, struct mu_span in)
{
    struct p2pd_stream_app *s = MU_CONTAINER_OF(conn, struct p2pd_stream_app, conn);
    struct p2pd_world *w = s->app->state->world;
    struct mu_p2pd_stream_info info;
    struct mu_span message;
    size_t used;

    if (append(&s->in, in) != 0) {
        mu_sim_fail(w->sim, "more comes than was said");
        return in.len;
    }
    if (!s->begun && p2pd_next_message(&s->in, &message, &used)) {
        if (mu_p2pd_stream_info_decode(message, &info) != 0 ||
            !mu_span_eq(info.name, mu_span_str(P2PD_STREAM))) {
            mu_sim_fail(w->sim, "a stream was brought without saying which");
        }
        mu_buf_consume(&s->in, used);
        s->begun = true;
    }
    if (s->begun && append(&s->out, mu_buf_span(&s->in)) == 0) {
        mu_buf_reset(&s->in);
        flush(s);
    }
    return in.len;
}

static void their_eof(struct mu_conn *conn)
{
    struct p2pd_stream_app *s = MU_CONTAINER_OF(conn, struct p2pd_stream_app, conn);

    s->ending = true;
    echo_more(s);
}

static void their_writable(struct mu_conn *conn)
{
    echo_more(MU_CONTAINER_OF(conn, struct p2pd_stream_app, conn));
}

static void their_closed(struct mu_conn *conn, int status)
{
    struct p2pd_stream_app *s = MU_CONTAINER_OF(conn, struct p2pd_stream_app, conn);
    struct p2pd_client_app *app = s->app;

    (void)status;
    mu_buf_fini(&s->in);
    mu_buf_fini(&s->out);
    mu_free(s);
    app->brought--;
    p2pd_client_check_left(app);
}

static const struct mu_conn_events their_events = {
    .data = their_data,
    .eof = their_eof,
    .writable = their_writable,
    .closed = their_closed,
};

static struct mu_conn *on_accept(struct mu_listener *listener)
{
    struct p2pd_client_app *app = MU_CONTAINER_OF(listener, struct p2pd_client_app, listener);
    struct p2pd_stream_app *s;

    if (app->leaving) {
        return NULL;
    }
    s = mu_sim_calloc(sizeof(*s));
    s->app = app;
    s->conn.on = &their_events;
    mu_buf_init(&s->in, HELD_MAX);
    mu_buf_init(&s->out, HELD_MAX);
    app->brought++;
    return &s->conn;
}

static void on_unlistened(struct mu_listener *listener)
{
    struct p2pd_client_app *app = MU_CONTAINER_OF(listener, struct p2pd_client_app, listener);

    app->listening = false;
    p2pd_client_check_left(app);
}

/* --- telling the daemon ----------------------------------------------------------------------- */

static void handler_path(const struct p2pd_client_app *app, char *text, size_t cap)
{
    (void)snprintf(text, cap, "/client%u", app->state->number);
}

static void tell_open(struct mu_conn *conn)
{
    struct p2pd_client_app *app = MU_CONTAINER_OF(conn, struct p2pd_client_app, handler_conn);
    struct mu_p2pd_request r = {.type = MU_P2PD_STREAM_HANDLER, .balanced = true};
    struct mu_errmsg msg;
    struct mu_buf addr;
    struct mu_buf out;
    char path[32];
    char text[64];
    size_t taken;

    handler_path(app, path, sizeof(path));
    (void)snprintf(text, sizeof(text), "/unix%s", path);
    mu_buf_init(&addr, MU_MULTIADDR_MAX);
    mu_buf_init(&out, 1024);
    mu_sim_spare_memory(true);
    if (mu_multiaddr_parse(&addr, text, &msg) == 0) {
        r.addr = mu_buf_span(&addr);
        if (mu_p2pd_request_encode(&out, &r, mu_span_str(P2PD_STREAM)) == 0) {
            mu_env_send(conn->env, conn, mu_buf_span(&out), &taken);
            if (taken < out.len) {
                mu_env_close(conn->env, conn, true); /* tried again later */
            }
        }
    }
    mu_sim_spare_memory(false);
    mu_buf_fini(&addr);
    mu_buf_fini(&out);
}

static size_t tell_data(struct mu_conn *conn, struct mu_span in)
{
    struct p2pd_client_app *app = MU_CONTAINER_OF(conn, struct p2pd_client_app, handler_conn);

    /* The daemon may have had no memory for it, or this is a part of the answer: it is tried
     * again. */
    app->told = in.len == 3 && in.data[2] == 0;
    mu_env_close(conn->env, conn, false);
    return in.len;
}

static void tell_eof(struct mu_conn *conn)
{
    mu_env_close(conn->env, conn, false);
}

static void tell_writable(struct mu_conn *conn)
{
    (void)conn;
}

static void tell_closed(struct mu_conn *conn, int status)
{
    struct p2pd_client_app *app = MU_CONTAINER_OF(conn, struct p2pd_client_app, handler_conn);

    (void)status;
    app->telling = false;
    p2pd_client_check_left(app);
}

static const struct mu_conn_events tell_events = {
    .open = tell_open,
    .data = tell_data,
    .eof = tell_eof,
    .writable = tell_writable,
    .closed = tell_closed,
};

void p2pd_streams_listen(struct p2pd_client_app *app)
{
    struct mu_addr addr = {.kind = MU_ADDR_UNIX};

    if (!app->listening) {
        handler_path(app, addr.host, sizeof(addr.host));
        app->listener.accept = on_accept;
        app->listener.closed = on_unlistened;
        app->listening = mu_env_listen(app->env, &app->listener, &addr) == 0;
    }
    if (app->listening && !app->told && !app->telling) {
        addr = (struct mu_addr){.kind = MU_ADDR_UNIX, .host = P2PD_CONTROL};
        app->handler_conn.on = &tell_events;
        app->telling = mu_env_dial(app->env, &app->handler_conn, &addr) == 0;
    }
}

void p2pd_streams_leave(struct p2pd_client_app *app)
{
    if (app->listening) {
        mu_env_unlisten(app->env, &app->listener);
    }
    if (app->telling) {
        mu_env_close(app->env, &app->handler_conn, true);
    }
    for (size_t i = 0; i < P2PD_STREAMS; i++) {
        if (app->streams[i].app != NULL) {
            mu_env_close(app->env, &app->streams[i].conn, true);
        }
    }
}

bool p2pd_streams_left(const struct p2pd_client_app *app)
{
    for (size_t i = 0; i < P2PD_STREAMS; i++) {
        if (app->streams[i].app != NULL) {
            return false;
        }
    }
    return !app->listening && !app->telling && app->brought == 0;
}
