#include "service/peer/call_internal.h"

#include <muster/error.h>

#include "core/assert.h"

/*
 * A call of ours. When its answer has come, or is not wanted any more, it is a `ghost`: it exists
 * only until the other side has closed the stream as well.
 */
struct unary_out {
    struct mu_list link;
    struct mu_peer_calls *calls;
    struct mu_unary_call *call; /* NULL: a ghost */
    struct mu_host_stream stream;
    struct mu_timer timer;
    struct mu_span name;
    struct mu_buf out;
    struct mu_buf in;
};

struct unary_handler {
    struct mu_list link;
    struct mu_peer_handler base;
    struct mu_unary_handler *handler;
    struct mu_peer_calls *calls;
};

/* A call of another peer. */
struct unary_in {
    struct mu_list link;
    struct mu_unary_request request;
    struct mu_peer_calls *calls;
    struct mu_host_stream stream;
    struct mu_timer timer;
    struct mu_buf in;
    struct mu_buf out;
    uint8_t id[MU_CALL_ID_LEN];
    size_t id_len;
    bool started; /* the handler has it, and has not answered yet */
    bool answered;
};

struct mu_peer_calls_config mu_peer_calls_config_defaults(void)
{
    return (struct mu_peer_calls_config){
        .requests_max = 512,
        .request_bytes_max = 64u << 20,
        .linger_ms = 5000,
        .item_len_max = 64u << 20,
        .item_bytes_max = 1u << 20,
    };
}

/* --- calling ---------------------------------------------------------------------------------- */

static void free_out(struct unary_out *o)
{
    mu_env_timer_arm(o->calls->env, &o->timer, MU_MONO_NEVER);
    mu_list_remove(&o->link);
    mu_buf_fini(&o->out);
    mu_buf_fini(&o->in);
    mu_free(o);
}

static void flush_out(struct unary_out *o)
{
    if (o->out.len != 0) {
        mu_buf_consume(&o->out, mu_host_stream_write(&o->stream, mu_buf_span(&o->out)));
    }
}

/* A call is answered, and its stream ends by itself soon. Nothing is touched after `done`, which
 * may free all calls. */
static void finish_call(struct unary_out *o, int status, const char *text, struct mu_span message)
{
    struct mu_unary_call *call = o->call;
    struct mu_peer_calls *c = o->calls;

    o->call = NULL;
    call->impl = NULL;
    mu_host_stream_end(&o->stream);
    mu_env_timer_arm(c->env, &o->timer,
                     mu_mono_add_ms(mu_env_now(c->env).mono, c->config.linger_ms));
    call->done(call, status, text, message);
}

/* The call has failed, and its stream is gone. Otherwise as above. */
static void abandon_call(struct unary_out *o, int status, const char *text)
{
    struct mu_unary_call *call = o->call;

    free_out(o);
    if (call != NULL) {
        call->impl = NULL;
        call->done(call, status, text, (struct mu_span){0});
    }
}

static void on_out_ready(struct mu_host_stream *s, struct mu_span name)
{
    (void)name;
    flush_out(MU_CONTAINER_OF(s, struct unary_out, stream));
}

static void on_out_writable(struct mu_host_stream *s)
{
    flush_out(MU_CONTAINER_OF(s, struct unary_out, stream));
}

static void fail_out(struct unary_out *o, int status, const char *text)
{
    mu_host_stream_reset(&o->stream);
    abandon_call(o, status, text);
}

static void on_out_data(struct mu_host_stream *s, struct mu_span bytes)
{
    struct unary_out *o = MU_CONTAINER_OF(s, struct unary_out, stream);
    struct mu_call_frame f;
    struct mu_buf answer;
    size_t used;
    char text[128];
    int err;

    mu_host_stream_consumed(s, bytes.len);
    if (o->call == NULL) {
        return;
    }
    err = mu_buf_append(&o->in, bytes);
    err = err != 0 ? err : mu_call_frame_decode(mu_buf_span(&o->in), &f, &used);
    if (err == 0) {
        return;
    }
    if (err == 1 && f.kind == MU_CALL_REQUEST) {
        err = MUSTER_EPROTO;
    }
    if (err < 0) {
        fail_out(o, err, muster_strerror(err));
        return;
    }
    /* The owner may free us inside `done`, so the answer is taken out. */
    answer = o->in;
    mu_buf_init(&o->in, 0);
    if (f.kind == MU_CALL_RESPONSE) {
        finish_call(o, 0, "", f.data);
    } else {
        finish_call(o, MUSTER_EREMOTE, mu_span_quote(text, sizeof(text), f.data), f.data);
    }
    mu_buf_fini(&answer);
}

static void on_out_ended(struct mu_host_stream *s, int status, const char *text)
{
    abandon_call(MU_CONTAINER_OF(s, struct unary_out, stream),
                 status != 0 ? status : MUSTER_ECLOSED,
                 status != 0 ? text : "the peer ended the call without an answer");
}

static void on_out_eof(struct mu_host_stream *s)
{
    struct unary_out *o = MU_CONTAINER_OF(s, struct unary_out, stream);

    if (o->call != NULL) {
        fail_out(o, MUSTER_ECLOSED, "the peer ended the call without an answer");
    }
}

static void on_out_timer(struct mu_timer *timer)
{
    struct unary_out *o = MU_CONTAINER_OF(timer, struct unary_out, timer);

    fail_out(o, MUSTER_ETIMEDOUT, "the peer has not answered in time");
}

static const struct mu_host_stream_events out_events = {
    .ready = on_out_ready,
    .data = on_out_data,
    .eof = on_out_eof,
    .writable = on_out_writable,
    .ended = on_out_ended,
};

/* Draws a UUID of version 4, as hivemind does. */
static void draw_id(struct mu_peer_calls *c, uint8_t ret_id[MU_CALL_ID_LEN])
{
    if (c->ids_left == 0) {
        mu_env_entropy(c->env, c->ids, sizeof(c->ids));
        c->ids_left = MU_PEER_CALL_IDS;
    }
    memcpy(ret_id, c->ids[--c->ids_left], MU_CALL_ID_LEN);
    ret_id[6] = (uint8_t)((ret_id[6] & 0x0f) | 0x40);
    ret_id[8] = (uint8_t)((ret_id[8] & 0x3f) | 0x80);
}

static int unary_call(struct mu_unary *unary, struct mu_unary_call *call, struct mu_span message)
{
    struct mu_peer_calls *c = MU_CONTAINER_OF(unary, struct mu_peer_calls, unary);
    struct unary_out *o = mu_calloc(1, sizeof(*o));
    uint8_t id[MU_CALL_ID_LEN];
    struct mu_call_frame f = {
        .kind = MU_CALL_REQUEST,
        .id = mu_span(id, sizeof(id)),
        .peer = mu_peer_id_span(&call->peer),
        .name = mu_span_str(call->method),
        .data = message,
    };
    int err;

    if (o == NULL) {
        return MUSTER_ENOMEM;
    }
    draw_id(c, id);
    mu_buf_init(&o->out, MU_CALL_FRAME_MAX + MU_ITEM_HEAD_LEN);
    mu_buf_init(&o->in, MU_CALL_FRAME_MAX + MU_ITEM_HEAD_LEN);
    err = mu_call_frame_encode(&o->out, &f);
    if (err != 0) {
        mu_buf_fini(&o->out);
        mu_free(o);
        return err;
    }
    o->calls = c;
    o->call = call;
    o->name = mu_span_str(call->method);
    o->stream.on = &out_events;
    call->impl = o;
    mu_timer_init(&o->timer, on_out_timer);
    mu_list_init(&o->link);
    mu_list_push(&c->outs, &o->link);
    if (call->timeout_ms != 0) {
        mu_env_timer_arm(c->env, &o->timer,
                         mu_mono_add_ms(mu_env_now(c->env).mono, call->timeout_ms));
    }
    mu_host_stream_open(c->host, &o->stream, &call->peer, &o->name, 1);
    flush_out(o);
    return 0;
}

static void unary_cancel(struct mu_unary *unary, struct mu_unary_call *call)
{
    struct unary_out *o = call->impl;

    (void)unary;
    if (o != NULL) {
        call->impl = NULL;
        mu_host_stream_reset(&o->stream);
        free_out(o);
    }
}

/* --- serving ---------------------------------------------------------------------------------- */

/* The request's stream is gone. `gone` may free all calls: the request is not on their list by
 * then. */
static void free_in(struct unary_in *i)
{
    struct mu_peer_calls *c = i->calls;

    mu_env_timer_arm(c->env, &i->timer, MU_MONO_NEVER);
    c->in_count--;
    c->in_bytes -= i->in.len;
    mu_list_remove(&i->link);
    if (i->started) {
        i->started = false;
        i->request.handler->gone(i->request.handler, &i->request);
    }
    mu_buf_fini(&i->in);
    mu_buf_fini(&i->out);
    mu_free(i);
}

static void drop_in(struct unary_in *i)
{
    mu_host_stream_reset(&i->stream);
    free_in(i);
}

/* Once all is written, our side ends; the stream goes when the caller has closed its side. */
static void flush_in(struct unary_in *i)
{
    if (!i->answered) {
        return;
    }
    if (i->out.len != 0) {
        mu_buf_consume(&i->out, mu_host_stream_write(&i->stream, mu_buf_span(&i->out)));
    }
    if (i->out.len == 0) {
        mu_host_stream_end(&i->stream);
    }
}

static void unary_reply(struct mu_unary_request *request, int status, struct mu_span message)
{
    struct unary_in *i = MU_CONTAINER_OF(request, struct unary_in, request);
    struct mu_peer_calls *c = i->calls;
    struct mu_call_frame f = {
        .kind = status < 0 ? MU_CALL_ERROR : MU_CALL_RESPONSE,
        .id = mu_span(i->id, i->id_len),
        .data = message,
    };

    MU_ASSERT(i->started);
    i->started = false;
    i->answered = true;
    if (mu_call_frame_encode(&i->out, &f) != 0) {
        mu_buf_reset(&i->out); /* the caller sees the stream end without an answer */
    }
    mu_env_timer_arm(c->env, &i->timer,
                     mu_mono_add_ms(mu_env_now(c->env).mono, c->config.linger_ms));
    flush_in(i);
}

static void start_request(struct unary_in *i, const struct mu_call_frame *f)
{
    struct mu_peer_calls *c = i->calls;
    struct mu_buf message = i->in;

    i->id_len = f->id.len;
    if (f->id.len != 0) {
        memcpy(i->id, f->id.data, f->id.len);
    }
    i->started = true;
    c->in_bytes -= i->in.len;
    mu_buf_init(&i->in, 0);
    i->request.handler->start(i->request.handler, &i->request, f->data);
    mu_buf_fini(&message);
}

static void on_in_data(struct mu_host_stream *s, struct mu_span bytes)
{
    struct unary_in *i = MU_CONTAINER_OF(s, struct unary_in, stream);
    struct mu_peer_calls *c = i->calls;
    struct mu_call_frame f;
    size_t used;
    int err;

    mu_host_stream_consumed(s, bytes.len);
    if (i->started || i->answered) {
        return; /* nothing may follow a request */
    }
    err = c->in_bytes + bytes.len > c->config.request_bytes_max ? MUSTER_ELIMIT
                                                                : mu_buf_append(&i->in, bytes);
    if (err != 0) {
        drop_in(i);
        return;
    }
    c->in_bytes += bytes.len;
    err = mu_call_frame_decode(mu_buf_span(&i->in), &f, &used);
    if (err == 1 && (f.kind != MU_CALL_REQUEST || f.id.len > MU_CALL_ID_LEN)) {
        err = MUSTER_EPROTO;
    }
    if (err < 0) {
        drop_in(i);
    } else if (err == 1) {
        start_request(i, &f);
    }
}

/* The caller closes once it has the answer; if it closes before that, it does not want it any
 * more. */
static void on_in_eof(struct mu_host_stream *s)
{
    struct unary_in *i = MU_CONTAINER_OF(s, struct unary_in, stream);

    if (!i->answered) {
        drop_in(i);
    }
}

static void on_in_writable(struct mu_host_stream *s)
{
    flush_in(MU_CONTAINER_OF(s, struct unary_in, stream));
}

static void on_in_ended(struct mu_host_stream *s, int status, const char *text)
{
    (void)status;
    (void)text;
    free_in(MU_CONTAINER_OF(s, struct unary_in, stream));
}

static void on_in_timer(struct mu_timer *timer)
{
    drop_in(MU_CONTAINER_OF(timer, struct unary_in, timer));
}

static const struct mu_host_stream_events in_events = {
    .data = on_in_data,
    .eof = on_in_eof,
    .writable = on_in_writable,
    .ended = on_in_ended,
};

static struct mu_host_stream *on_opened(struct mu_peer_handler *base, const struct mu_peer_id *peer,
                                        struct mu_span name)
{
    struct unary_handler *h = MU_CONTAINER_OF(base, struct unary_handler, base);
    struct mu_peer_calls *c = h->calls;
    struct unary_in *i;

    (void)name;
    if (c->in_count >= c->config.requests_max) {
        return NULL;
    }
    i = mu_calloc(1, sizeof(*i));
    if (i == NULL) {
        return NULL;
    }
    i->calls = c;
    i->request.peer = *peer;
    i->request.handler = h->handler;
    i->request.unary = &c->unary;
    i->stream.on = &in_events;
    mu_timer_init(&i->timer, on_in_timer);
    mu_buf_init(&i->in, MU_CALL_FRAME_MAX + MU_ITEM_HEAD_LEN);
    mu_buf_init(&i->out, MU_CALL_FRAME_MAX + MU_ITEM_HEAD_LEN);
    mu_list_init(&i->link);
    mu_list_push(&c->ins, &i->link);
    c->in_count++;
    return &i->stream;
}

static int unary_serve(struct mu_unary *unary, struct mu_unary_handler *handler)
{
    struct mu_peer_calls *c = MU_CONTAINER_OF(unary, struct mu_peer_calls, unary);
    struct unary_handler *h = mu_calloc(1, sizeof(*h));
    int err;

    if (h == NULL) {
        return MUSTER_ENOMEM;
    }
    h->calls = c;
    h->handler = handler;
    h->base.name = handler->method;
    h->base.opened = on_opened;
    mu_list_init(&h->link);
    err = mu_peer_host_serve(c->host, &h->base);
    if (err != 0) {
        mu_free(h);
        return err;
    }
    handler->impl = h;
    mu_list_push(&c->handlers, &h->link);
    return 0;
}

static void unary_unserve(struct mu_unary *unary, struct mu_unary_handler *handler)
{
    struct mu_peer_calls *c = MU_CONTAINER_OF(unary, struct mu_peer_calls, unary);
    struct unary_handler *h = handler->impl;

    MU_LIST_FOREACH_SAFE (it, next, &c->ins) {
        struct unary_in *i = MU_CONTAINER_OF(it, struct unary_in, link);

        if (i->request.handler == handler && !i->answered) {
            drop_in(i);
        }
    }
    mu_peer_host_unserve(&h->base);
    mu_list_remove(&h->link);
    handler->impl = NULL;
    mu_free(h);
}

/* --- life ------------------------------------------------------------------------------------- */

static const struct mu_unary_ops ops = {
    .call = unary_call,
    .cancel = unary_cancel,
    .serve = unary_serve,
    .unserve = unary_unserve,
    .reply = unary_reply,
};

int mu_peer_calls_new(struct mu_peer_host *host, const struct mu_peer_calls_config *config,
                      struct mu_peer_calls **ret)
{
    struct mu_peer_calls *c = mu_calloc(1, sizeof(*c));

    if (c == NULL) {
        return MUSTER_ENOMEM;
    }
    c->unary.ops = &ops;
    c->host = host;
    c->env = mu_peer_host_env(host);
    c->config = config != NULL ? *config : mu_peer_calls_config_defaults();
    mu_list_init(&c->outs);
    mu_list_init(&c->ins);
    mu_list_init(&c->handlers);
    mu_list_init(&c->items);
    *ret = c;
    return 0;
}

void mu_peer_calls_free(struct mu_peer_calls *c)
{
    if (c == NULL) {
        return;
    }
    while (!mu_list_empty(&c->handlers)) {
        struct unary_handler *h = MU_CONTAINER_OF(c->handlers.next, struct unary_handler, link);

        unary_unserve(&c->unary, h->handler);
    }
    while (!mu_list_empty(&c->ins)) {
        drop_in(MU_CONTAINER_OF(c->ins.next, struct unary_in, link));
    }
    while (!mu_list_empty(&c->outs)) {
        struct unary_out *o = MU_CONTAINER_OF(c->outs.next, struct unary_out, link);

        mu_host_stream_reset(&o->stream);
        if (o->call != NULL) {
            o->call->impl = NULL;
        }
        free_out(o);
    }
    while (!mu_list_empty(&c->items)) {
        mu_peer_items_cancel(MU_CONTAINER_OF(c->items.next, struct mu_peer_items, link));
    }
    mu_free(c);
}

struct mu_unary *mu_peer_calls_unary(struct mu_peer_calls *c)
{
    return &c->unary;
}
