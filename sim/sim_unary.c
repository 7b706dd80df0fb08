#include "sim_unary.h"

#include <errno.h>
#include <stdio.h>

#include <muster/error.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "core/buf.h"
#include "core/list.h"

#define PORT      6000
#define FRAME_MAX (8u << 20)
#define HEAD_LEN  8 /* length of the rest, then method and number, or status */

struct sim_unary {
    struct mu_unary unary;
    struct mu_env *env;
    struct mu_peer_id self;
    uint32_t number;
    struct mu_listener listener;
    bool listening;
    struct mu_list handlers;
    struct mu_list lines;
    void (*done)(void *context);
    void *context;
};

struct handler_link {
    struct mu_list link;
    struct mu_unary_handler *handler;
};

/* A connection: a call of ours, or a request of another node. */
struct line {
    struct mu_list link;
    struct sim_unary *unary;
    struct mu_conn conn;
    struct mu_timer timer;
    struct mu_buf in;
    struct mu_buf out;
    bool closing;
    struct mu_unary_call *call;
    struct mu_unary_request request;
    bool started;
};

struct mu_peer_id sim_unary_peer(uint32_t number)
{
    struct mu_peer_id id = {.len = 34, .bytes = {0x12, 0x20}};

    mu_put_u32(id.bytes + 2, number);
    id.bytes[6] = 0x5a;
    return id;
}

uint32_t sim_unary_number(const struct mu_peer_id *peer)
{
    return mu_get_u32(peer->bytes + 2);
}

static void finish_close(struct sim_unary *u)
{
    if (u->done != NULL && !u->listening && mu_list_empty(&u->lines)) {
        void (*done)(void *) = u->done;
        void *context = u->context;

        mu_free(u);
        done(context);
    }
}

static void close_line(struct line *l, bool abort)
{
    if (!l->closing) {
        l->closing = true;
        mu_env_timer_arm(l->unary->env, &l->timer, MU_MONO_NEVER);
        mu_env_close(l->unary->env, &l->conn, abort);
    }
}

static void flush(struct line *l)
{
    size_t taken = 0;

    if (l->out.len != 0) {
        mu_env_send(l->unary->env, &l->conn, mu_buf_span(&l->out), &taken);
        mu_buf_consume(&l->out, taken);
    }
    if (l->out.len == 0 && l->call == NULL && !l->started && l->request.handler != NULL) {
        close_line(l, false); /* the answer was sent */
    }
}

static void end_call(struct line *l, int status, struct mu_span message)
{
    struct mu_unary_call *call = l->call;

    if (call != NULL) {
        l->call = NULL;
        call->impl = NULL;
        call->done(call, status, status == 0 ? "" : muster_strerror(status), message);
    }
}

/* --- frames ----------------------------------------------------------------------------------- */

static int put_frame(struct mu_buf *out, uint32_t word, struct mu_span extra,
                     struct mu_span message)
{
    int err = mu_buf_reserve(out, HEAD_LEN + extra.len + message.len);

    if (err == 0) {
        mu_buf_put_u32(out, (uint32_t)(extra.len + message.len));
        mu_buf_put_u32(out, word);
        mu_buf_put(out, extra);
        mu_buf_put(out, message);
    }
    return err;
}

static bool whole_frame(const struct line *l, uint32_t *ret_word, struct mu_span *ret_body)
{
    struct mu_span in = mu_buf_span(&l->in);

    if (in.len < HEAD_LEN || in.len - HEAD_LEN < mu_get_u32(in.data)) {
        return false;
    }
    *ret_word = mu_get_u32(in.data + 4);
    *ret_body = mu_span(in.data + HEAD_LEN, mu_get_u32(in.data));
    return true;
}

static void start_request(struct line *l, uint32_t from, struct mu_span body)
{
    size_t name_len = body.data[0];
    struct mu_span name = mu_span(body.data + 1, name_len);

    MU_LIST_FOREACH (it, &l->unary->handlers) {
        struct mu_unary_handler *h = MU_CONTAINER_OF(it, struct handler_link, link)->handler;

        if (mu_span_eq(mu_span_str(h->method), name)) {
            struct mu_buf held = l->in;

            mu_buf_init(&l->in, FRAME_MAX);
            l->request = (struct mu_unary_request){
                .peer = sim_unary_peer(from), .handler = h, .unary = &l->unary->unary};
            l->started = true;
            h->start(h, &l->request, mu_span_skip(body, 1 + name_len));
            mu_buf_fini(&held);
            return;
        }
    }
    close_line(l, true);
}

/* --- connections ------------------------------------------------------------------------------ */

static void on_open(struct mu_conn *conn)
{
    flush(MU_CONTAINER_OF(conn, struct line, conn));
}

static size_t on_data(struct mu_conn *conn, struct mu_span in)
{
    struct line *l = MU_CONTAINER_OF(conn, struct line, conn);
    struct mu_span body;
    uint32_t word;

    if (l->closing) {
        return in.len;
    }
    if (mu_buf_append(&l->in, in) != 0) {
        close_line(l, true);
        end_call(l, MUSTER_ENOMEM, (struct mu_span){0});
        return in.len;
    }
    if (!whole_frame(l, &word, &body)) {
        return in.len;
    }
    if (l->call == NULL && l->request.handler == NULL) {
        start_request(l, word, body);
    } else if (l->call != NULL) {
        struct mu_buf held = l->in;

        mu_buf_init(&l->in, FRAME_MAX);
        close_line(l, false);
        end_call(l, (int32_t)word, body);
        mu_buf_fini(&held);
    }
    return in.len;
}

static void on_eof(struct mu_conn *conn)
{
    struct line *l = MU_CONTAINER_OF(conn, struct line, conn);

    close_line(l, false);
}

static void on_writable(struct mu_conn *conn)
{
    flush(MU_CONTAINER_OF(conn, struct line, conn));
}

static void on_closed(struct mu_conn *conn, int status)
{
    struct line *l = MU_CONTAINER_OF(conn, struct line, conn);
    struct sim_unary *u = l->unary;

    (void)status;
    l->closing = true;
    mu_env_timer_arm(u->env, &l->timer, MU_MONO_NEVER);
    if (l->started) {
        l->started = false;
        l->request.handler->gone(l->request.handler, &l->request);
    }
    end_call(l, MUSTER_ECONN, (struct mu_span){0});
    mu_list_remove(&l->link);
    mu_buf_fini(&l->in);
    mu_buf_fini(&l->out);
    mu_free(l);
    finish_close(u);
}

static void on_timer(struct mu_timer *timer)
{
    struct line *l = MU_CONTAINER_OF(timer, struct line, timer);

    close_line(l, true);
    end_call(l, MUSTER_ETIMEDOUT, (struct mu_span){0});
}

static const struct mu_conn_events events = {
    .open = on_open,
    .data = on_data,
    .eof = on_eof,
    .writable = on_writable,
    .closed = on_closed,
};

static struct line *new_line(struct sim_unary *u)
{
    struct line *l = mu_calloc(1, sizeof(*l));

    if (l != NULL) {
        l->unary = u;
        l->conn.on = &events;
        mu_timer_init(&l->timer, on_timer);
        mu_buf_init(&l->in, FRAME_MAX);
        mu_buf_init(&l->out, FRAME_MAX);
        mu_list_init(&l->link);
        mu_list_push(&u->lines, &l->link);
    }
    return l;
}

static struct mu_conn *on_accept(struct mu_listener *listener)
{
    struct line *l = new_line(MU_CONTAINER_OF(listener, struct sim_unary, listener));

    return l == NULL ? NULL : &l->conn;
}

static void on_unlistened(struct mu_listener *listener)
{
    struct sim_unary *u = MU_CONTAINER_OF(listener, struct sim_unary, listener);

    u->listening = false;
    finish_close(u);
}

/* --- verbs ------------------------------------------------------------------------------------ */

static int unary_call(struct mu_unary *unary, struct mu_unary_call *call, struct mu_span message)
{
    struct sim_unary *u = MU_CONTAINER_OF(unary, struct sim_unary, unary);
    struct mu_addr addr = {.kind = MU_ADDR_TCP, .port = PORT};
    struct line *l = new_line(u);
    uint8_t head[64];
    size_t len = strlen(call->method);
    int err;

    if (l == NULL) {
        return MUSTER_ENOMEM;
    }
    MU_ASSERT(len < sizeof(head));
    head[0] = (uint8_t)len;
    memcpy(head + 1, call->method, len);
    (void)snprintf(addr.host, sizeof(addr.host), "n%u", sim_unary_number(&call->peer));
    err = put_frame(&l->out, u->number, mu_span(head, 1 + len), message);
    err = err != 0 ? err : mu_env_dial(u->env, &l->conn, &addr);
    if (err != 0) {
        mu_list_remove(&l->link);
        mu_buf_fini(&l->out);
        mu_free(l);
        return err;
    }
    l->call = call;
    call->impl = l;
    mu_env_timer_arm(u->env, &l->timer, mu_mono_add_ms(mu_env_now(u->env).mono, call->timeout_ms));
    return 0;
}

static void unary_cancel(struct mu_unary *unary, struct mu_unary_call *call)
{
    struct line *l = call->impl;

    (void)unary;
    if (l != NULL) {
        l->call = NULL;
        call->impl = NULL;
        close_line(l, true);
    }
}

static int unary_serve(struct mu_unary *unary, struct mu_unary_handler *handler)
{
    struct sim_unary *u = MU_CONTAINER_OF(unary, struct sim_unary, unary);
    struct handler_link *h = mu_calloc(1, sizeof(*h));

    if (h == NULL) {
        return MUSTER_ENOMEM;
    }
    h->handler = handler;
    handler->impl = h;
    mu_list_init(&h->link);
    mu_list_push(&u->handlers, &h->link);
    return 0;
}

static void unary_unserve(struct mu_unary *unary, struct mu_unary_handler *handler)
{
    struct sim_unary *u = MU_CONTAINER_OF(unary, struct sim_unary, unary);
    struct handler_link *h = handler->impl;

    MU_LIST_FOREACH (it, &u->lines) {
        struct line *l = MU_CONTAINER_OF(it, struct line, link);

        if (l->started && l->request.handler == handler) {
            l->started = false;
            handler->gone(handler, &l->request);
            close_line(l, true);
        }
    }
    mu_list_remove(&h->link);
    mu_free(h);
}

static void unary_reply(struct mu_unary_request *request, int status, struct mu_span message)
{
    struct line *l = MU_CONTAINER_OF(request, struct line, request);

    l->started = false;
    if (l->closing) {
        return;
    }
    if (put_frame(&l->out, (uint32_t)status, (struct mu_span){0}, message) != 0) {
        close_line(l, true);
        return;
    }
    flush(l);
}

static const struct mu_unary_ops ops = {
    .call = unary_call,
    .cancel = unary_cancel,
    .serve = unary_serve,
    .unserve = unary_unserve,
    .reply = unary_reply,
};

int sim_unary_new(struct mu_env *env, uint32_t number, struct sim_unary **ret)
{
    struct mu_addr addr = {.kind = MU_ADDR_TCP, .port = PORT, .host = "0.0.0.0"};
    struct sim_unary *u = mu_calloc(1, sizeof(*u));
    int err;

    if (u == NULL) {
        return MUSTER_ENOMEM;
    }
    u->unary.ops = &ops;
    u->env = env;
    u->number = number;
    u->self = sim_unary_peer(number);
    mu_list_init(&u->handlers);
    mu_list_init(&u->lines);
    u->listener.accept = on_accept;
    u->listener.closed = on_unlistened;
    err = mu_env_listen(env, &u->listener, &addr);
    if (err != 0) {
        mu_free(u);
        return err;
    }
    u->listening = true;
    *ret = u;
    return 0;
}

struct mu_unary *sim_unary_of(struct sim_unary *u)
{
    return &u->unary;
}

void sim_unary_close(struct sim_unary *u, void (*done)(void *context), void *context)
{
    u->done = done;
    u->context = context;
    MU_LIST_FOREACH (it, &u->lines) {
        close_line(MU_CONTAINER_OF(it, struct line, link), true);
    }
    mu_env_unlisten(u->env, &u->listener);
}
