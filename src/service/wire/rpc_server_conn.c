/* The connections of a native server: their bytes, their output, their end of life. */
#include "core/alloc.h"
#include "service/wire/rpc_server.h"

static struct mu_rpc_conn *conn_of(struct mu_conn *base)
{
    return MU_CONTAINER_OF(base, struct mu_rpc_conn, base);
}

/* --- output ----------------------------------------------------------------------------------- */

void mu_rpc_conn_touch(struct mu_rpc_conn *c)
{
    if (!c->closing && mu_list_empty(&c->touched)) {
        mu_list_push(&c->server->touched, &c->touched);
    }
}

/* The first `max` bytes of what may be sent; how many spans. */
static size_t cut_output(const struct mu_rpc_conn *c, struct mu_span *spans, size_t max)
{
    size_t count = c->server->ops->protocol->output(c, spans, MU_ENV_SPANS_MAX);
    size_t n = 0;

    while (n < count && max != 0) {
        spans[n].len = spans[n].len < max ? spans[n].len : max;
        max -= spans[n++].len;
    }
    return n;
}

size_t mu_rpc_conn_send(struct mu_rpc_conn *c, size_t max)
{
    struct mu_span spans[MU_ENV_SPANS_MAX];
    size_t left = max;

    while (!c->closing && !c->blocked) {
        size_t count = cut_output(c, spans, left);
        size_t bytes = mu_span_total(spans, count);
        size_t taken = 0;

        if (bytes == 0) {
            break;
        }
        mu_env_sendv(c->server->env, &c->base, spans, count, &taken);
        c->server->ops->protocol->sent(c, taken);
        c->blocked = taken < bytes;
        left -= taken;
    }
    return max - left;
}

void mu_rpc_conn_flush(struct mu_rpc_conn *c)
{
    (void)mu_rpc_conn_send(c, SIZE_MAX);
    mu_rpc_conn_flushed(c);
}

void mu_rpc_server_flush(struct mu_rpc_server *s)
{
    void (*flush)(struct mu_rpc_conn *) = s->ops->flush != NULL ? s->ops->flush : mu_rpc_conn_flush;
    struct mu_list *it;

    while ((it = mu_list_pop(&s->touched)) != NULL) {
        flush(MU_CONTAINER_OF(it, struct mu_rpc_conn, touched));
    }
}

/* --- the end of a connection ------------------------------------------------------------------ */

static void release(struct mu_rpc_conn *c)
{
    c->closing = true;
    mu_list_remove(&c->touched);
    mu_rpc_conn_unlink(c);
    if (c->server->ops->release != NULL) {
        c->server->ops->release(c);
    }
}

void mu_rpc_conn_close(struct mu_rpc_conn *c, bool abort)
{
    if (!c->closing) {
        release(c);
        mu_env_close(c->server->env, &c->base, abort);
    }
}

void mu_rpc_conn_drop(struct mu_rpc_conn *c, const char *why)
{
    char peer[64];

    if (!c->closing) {
        mu_env_peer(c->server->env, &c->base, peer, sizeof(peer));
        c->server->ops->complain(c->server, peer, why);
        mu_rpc_conn_close(c, false);
    }
}

void mu_rpc_server_close_conns(struct mu_rpc_server *s, bool abort)
{
    MU_LIST_FOREACH_SAFE (it, tmp, &s->conns) {
        mu_rpc_conn_close(MU_CONTAINER_OF(it, struct mu_rpc_conn, link), abort);
    }
}

/* --- what the environment tells --------------------------------------------------------------- */

static size_t on_data(struct mu_conn *base, struct mu_span in)
{
    struct mu_rpc_conn *c = conn_of(base);
    size_t used = c->closing ? in.len : c->server->ops->protocol->input(c, in);

    used = c->closing ? in.len : used;
    c->paused = used < in.len;
    mu_rpc_server_end_turn(c->server);
    return used;
}

void mu_rpc_conn_resume(struct mu_rpc_conn *c)
{
    if (c->paused) {
        c->paused = false;
        mu_env_resume(c->server->env, &c->base);
    }
}

static struct mu_space on_room(struct mu_conn *base)
{
    struct mu_rpc_session *session = conn_of(base)->session;

    return session == NULL ? (struct mu_space){0} : mu_rpc_room(&session->rpc);
}

static void on_eof(struct mu_conn *base)
{
    struct mu_rpc_conn *c = conn_of(base);

    if (!c->server->ops->protocol->eof(c)) {
        mu_rpc_conn_close(c, false);
    }
    mu_rpc_server_end_turn(c->server);
}

static void on_writable(struct mu_conn *base)
{
    struct mu_rpc_conn *c = conn_of(base);

    c->blocked = false;
    mu_rpc_conn_touch(c);
    mu_rpc_server_end_turn(c->server);
}

static void on_closed(struct mu_conn *base, int status)
{
    struct mu_rpc_conn *c = conn_of(base);
    struct mu_rpc_server *s = c->server;

    if (!c->closing) {
        release(c);
    }
    mu_list_remove(&c->link);
    s->conn_count--;
    if (s->ops->closed != NULL) {
        s->ops->closed(c, status);
    }
    mu_free(c);
    mu_rpc_server_end_turn(s);
}

/* --- listening -------------------------------------------------------------------------------- */

static struct mu_rpc_conn *new_conn(struct mu_rpc_server *s)
{
    if (s->ops->conn_new != NULL) {
        return s->ops->conn_new(s);
    }
    return s->leaving ? NULL : mu_calloc(1, sizeof(struct mu_rpc_conn));
}

static struct mu_conn *on_accept(struct mu_listener *listener)
{
    struct mu_rpc_server *s = MU_CONTAINER_OF(listener, struct mu_rpc_listener, base)->server;
    struct mu_rpc_conn *c = new_conn(s);

    if (c == NULL) {
        return NULL;
    }
    c->base.on = &s->conn_events;
    c->server = s;
    c->listener = listener;
    mu_rpc_greet_init(&c->greet);
    mu_list_init(&c->touched);
    mu_list_push(&s->conns, &c->link);
    s->conn_count++;
    return &c->base;
}

static void on_listener_closed(struct mu_listener *listener)
{
    struct mu_rpc_server *s = MU_CONTAINER_OF(listener, struct mu_rpc_listener, base)->server;

    s->listening--;
    mu_rpc_server_end_turn(s);
}

int mu_rpc_server_listen(struct mu_rpc_server *s, struct mu_rpc_listener *l, struct mu_addr *addr)
{
    int err;

    /* Accepted connections are open from the start. Bytes that lie in the room that they were given
     * must be taken, and a server that is busy takes none. */
    s->conn_events = (struct mu_conn_events){
        .data = on_data,
        .room = s->ops->is_busy == NULL ? on_room : NULL,
        .eof = on_eof,
        .writable = on_writable,
        .closed = on_closed,
    };
    *l = (struct mu_rpc_listener){
        .base = {.accept = on_accept,
                 .accept_failed = s->ops->accept_failed,
                 .closed = on_listener_closed},
        .server = s,
    };
    err = mu_env_listen(s->env, &l->base, addr);
    if (err == 0) {
        mu_list_push(&s->listeners, &l->link);
        s->listening++;
    }
    return err;
}

void mu_rpc_server_unlisten(struct mu_rpc_server *s)
{
    struct mu_list *it;

    while ((it = mu_list_pop(&s->listeners)) != NULL) {
        mu_env_unlisten(s->env, &MU_CONTAINER_OF(it, struct mu_rpc_listener, link)->base);
    }
}

bool mu_rpc_server_is_empty(const struct mu_rpc_server *s)
{
    return s->listening == 0 && mu_list_empty(&s->conns);
}
