/* Unary calls: drives proto/p2pd/calls.h, and has the streams. */
#include <string.h>

#include <muster/error.h>

#include "core/alloc.h"
#include "service/base/log.h"
#include "service/p2pd/p2pd_internal.h"

struct call {
    struct mu_p2pd_unary unary;
    struct mu_p2pd *d;
    struct mu_host_stream stream;
    char name[];
};

static const struct mu_host_stream_events call_events;

static struct call *call_of(struct mu_host_stream *s)
{
    return MU_CONTAINER_OF(s, struct call, stream);
}

static struct call *new_call(struct mu_p2pd *d, struct mu_span name)
{
    struct call *call = mu_calloc(1, sizeof(*call) + name.len);

    if (call != NULL) {
        call->d = d;
        call->stream.on = &call_events;
        if (name.len != 0) {
            memcpy(call->name, name.data, name.len);
        }
    }
    return call;
}

/* --- actions ---------------------------------------------------------------------------------- */

static void act(const struct mu_p2pd_action *a)
{
    struct call *call = a->call == NULL ? NULL : MU_CONTAINER_OF(a->call, struct call, unary);
    struct mu_p2pd_client *c =
        a->user == NULL ? NULL : MU_CONTAINER_OF(a->user, struct mu_p2pd_client, user);

    switch (a->type) {
    case MU_P2PD_ACTION_OPEN:
        mu_host_stream_open(call->d->host, &call->stream, &a->call->peer, &a->call->name, 1);
        break;
    case MU_P2PD_ACTION_CONSUMED:
        mu_host_stream_consumed(&call->stream, a->len);
        break;
    case MU_P2PD_ACTION_WRITE:
        mu_p2pd_unary_written(a->call, mu_host_stream_write(&call->stream, a->bytes));
        break;
    case MU_P2PD_ACTION_END:
        mu_host_stream_end(&call->stream);
        break;
    case MU_P2PD_ACTION_RESET:
        mu_host_stream_reset(&call->stream);
        break;
    case MU_P2PD_ACTION_OVER:
        mu_free(call);
        break;
    case MU_P2PD_ACTION_SEND:
        mu_p2pd_client_send(c);
        break;
    case MU_P2PD_ACTION_RESUME:
        mu_p2pd_client_resume(c);
        break;
    case MU_P2PD_ACTION_CLOSE:
        mu_log(MUSTER_LOG_WARN, "P2PD-CLIENT-SLOW", "unsent=%zu", c->pc.out.len);
        mu_p2pd_client_close(c, true);
        break;
    case MU_P2PD_ACTION_UNSERVE:
        mu_p2pd_unserve(a->name);
        break;
    }
}

void mu_p2pd_pump(struct mu_p2pd *d)
{
    mu_mono_t now = mu_env_now(d->env).mono;
    struct mu_p2pd_action action;
    mu_mono_t until;

    while (mu_p2pd_calls_next(&d->calls, now, &action)) {
        act(&action);
    }
    until = mu_p2pd_calls_deadline(&d->calls);
    if (until.ns != d->calls_until.ns) {
        d->calls_until = until;
        mu_env_timer_arm(d->env, &d->calls_timer, until);
    }
}

void mu_p2pd_calls_timer(struct mu_timer *timer)
{
    struct mu_p2pd *d = MU_CONTAINER_OF(timer, struct mu_p2pd, calls_timer);

    d->calls_until = MU_MONO_NEVER;
    mu_p2pd_turn(d);
}

/* --- what clients say ------------------------------------------------------------------------- */

static void begin_call(struct mu_p2pd_client *c, const struct mu_p2pd_call *m,
                       struct mu_span message)
{
    struct call *call = new_call(c->d, m->name);
    struct mu_span name = call == NULL ? m->name : mu_span(call->name, m->name.len);

    if (!mu_p2pd_user_call(&c->user, call == NULL ? NULL : &call->unary, name, m, message)) {
        mu_free(call);
    }
}

void mu_p2pd_said(struct mu_p2pd_client *c, const struct mu_p2pd_call *m, struct mu_span message)
{
    struct mu_span none = {0};
    struct mu_errmsg msg;
    int err;

    if (m->kind == MU_P2PD_CALL_UNARY) {
        begin_call(c, m, message);
    } else if (m->kind == MU_P2PD_ADD_UNARY) {
        err = mu_p2pd_handle(c->d, m->name, &c->user, none, m->balanced, &msg);
        mu_p2pd_user_answer(&c->user, m->id, err == 0 ? NULL : msg.text);
    } else if (m->kind == MU_P2PD_REMOVE_UNARY) {
        err = mu_p2pd_names_remove(&c->d->calls.names, m->name, &c->user, none, &msg);
        mu_p2pd_user_answer(&c->user, m->id, err == 0 ? NULL : msg.text);
    } else {
        mu_p2pd_user_said(&c->user, m, message);
    }
}

/* --- what peers say --------------------------------------------------------------------------- */

struct mu_host_stream *mu_p2pd_call_opened(struct mu_p2pd *d, const struct mu_peer_id *peer,
                                           struct mu_span name)
{
    struct call *call = new_call(d, name);

    if (call != NULL && !mu_p2pd_unary_opened(&d->calls, &call->unary, mu_env_now(d->env).mono,
                                              peer, mu_span(call->name, name.len))) {
        mu_free(call);
        call = NULL;
    }
    return call == NULL ? NULL : &call->stream;
}

/* Of a stream's callbacks `call` may be gone after the actions. */
static void on_data(struct mu_host_stream *s, struct mu_span bytes)
{
    struct mu_p2pd *d = call_of(s)->d;

    mu_p2pd_unary_heard(&call_of(s)->unary, bytes);
    mu_p2pd_pump(d);
}

static void on_eof(struct mu_host_stream *s)
{
    struct mu_p2pd *d = call_of(s)->d;

    mu_p2pd_unary_eof(&call_of(s)->unary);
    mu_p2pd_pump(d);
}

static void on_writable(struct mu_host_stream *s)
{
    struct mu_p2pd *d = call_of(s)->d;

    mu_p2pd_unary_writable(&call_of(s)->unary);
    mu_p2pd_pump(d);
}

static void on_ended(struct mu_host_stream *s, int status, const char *text)
{
    struct mu_p2pd *d = call_of(s)->d;

    mu_p2pd_unary_ended(&call_of(s)->unary, status, text);
    mu_p2pd_pump(d);
}

static const struct mu_host_stream_events call_events = {
    .data = on_data,
    .eof = on_eof,
    .writable = on_writable,
    .ended = on_ended,
};
