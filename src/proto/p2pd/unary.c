/* The stream of a unary call: one message each way, whole. */
#include <string.h>

#include <muster/error.h>

#include "codec/bin/uvarint.h"
#include "proto/p2pd/calls_internal.h"

void mu_p2pd_unary_init(struct mu_p2pd_calls *calls, struct mu_p2pd_unary *call, bool ours,
                        const struct mu_peer_id *peer, struct mu_span name)
{
    *call = (struct mu_p2pd_unary){
        .calls = calls,
        .ours = ours,
        .state = MU_P2PD_UNARY_READING,
        .has_stream = true,
        .peer = *peer,
        .name = name,
    };
    mu_buf_init(&call->in, calls->config.msg_len_max + calls->config.free_bytes);
    mu_buf_init(&call->out, calls->config.msg_len_max + MU_UVARINT_LEN_MAX);
    mu_heap_node_init(&call->timer);
    mu_list_init(&call->due);
    mu_list_init(&call->waiting);
    mu_list_init(&call->starving);
    mu_list_init(&call->link);
}

void mu_p2pd_unary_begin(struct mu_p2pd_unary *call)
{
    mu_list_push(&call->calls->list, &call->link);
    call->calls->stats.unary++;
}

bool mu_p2pd_unary_opened(struct mu_p2pd_calls *calls, struct mu_p2pd_unary *call, mu_mono_t now,
                          const struct mu_peer_id *peer, struct mu_span name)
{
    if (calls->stats.unary >= calls->config.calls_max) {
        return false;
    }
    mu_p2pd_unary_init(calls, call, false, peer, name);
    mu_p2pd_unary_begin(call);
    mu_heap_insert(&calls->timers, &call->timer, mu_mono_add_ms(now, calls->config.request_ms));
    return true;
}

/* --- the end ---------------------------------------------------------------------------------- */

/* It has no user any more. */
static void detach(struct mu_p2pd_unary *call)
{
    struct mu_p2pd_user *user = call->user;

    if (user == NULL) {
        return;
    }
    call->user = NULL;
    mu_list_remove(&call->waiting);
    if (call->ours) {
        mu_map_remove(&user->calls, &call->by_id);
        call->calls->stats.calls--;
        user->held_bytes -= call->out.len;
        mu_p2pd_user_due(user, MU_P2PD_ACTION_RESUME);
    } else {
        mu_map_remove(&user->served, &call->by_id);
        call->calls->stats.served--;
    }
}

static void consume(struct mu_p2pd_unary *call)
{
    call->consumed += call->unread;
    call->unread = 0;
    if (call->consumed != 0 && call->has_stream) {
        mu_p2pd_call_due(call, MU_P2PD_ACTION_CONSUMED);
    }
}

static void grant(struct mu_p2pd_unary *call)
{
    call->reserved = call->need;
    call->calls->stats.held_bytes += call->need;
    consume(call);
}

static bool may_grant(const struct mu_p2pd_unary *call)
{
    const struct mu_p2pd_calls *calls = call->calls;

    return calls->stats.held_bytes == 0 ||
           calls->stats.held_bytes + call->need <= calls->config.held_bytes_max;
}

/* The message that came is not needed any more: others may have its room. */
static void release(struct mu_p2pd_unary *call)
{
    struct mu_p2pd_calls *calls = call->calls;

    mu_list_remove(&call->starving);
    mu_buf_fini(&call->in);
    consume(call);
    if (call->reserved == 0) {
        return;
    }
    calls->stats.held_bytes -= call->reserved;
    call->reserved = 0;
    while (!mu_list_empty(&calls->starving)) {
        struct mu_p2pd_unary *next =
            MU_CONTAINER_OF(calls->starving.next, struct mu_p2pd_unary, starving);

        if (!may_grant(next)) {
            break;
        }
        mu_list_remove(&next->starving);
        grant(next);
    }
}

void mu_p2pd_unary_drop(struct mu_p2pd_unary *call)
{
    bool opened = (call->todo & 1u << MU_P2PD_ACTION_OPEN) == 0;

    detach(call);
    release(call);
    mu_heap_remove(&call->calls->timers, &call->timer);
    mu_list_remove(&call->link);
    mu_buf_fini(&call->out);
    call->calls->stats.unary--;
    call->state = MU_P2PD_UNARY_OVER;
    call->todo = 0;
    mu_list_remove(&call->due);
    if (call->has_stream && opened) {
        mu_p2pd_call_due(call, MU_P2PD_ACTION_RESET);
    }
    mu_p2pd_call_due(call, MU_P2PD_ACTION_OVER);
}

/* Done with: ends our side, and waits for the peer's. */
static void leave(struct mu_p2pd_unary *call)
{
    detach(call);
    release(call);
    call->state = MU_P2PD_UNARY_LEAVING;
    mu_p2pd_call_due(call, MU_P2PD_ACTION_END);
}

/* The stream has ended before its time. */
static void lose(struct mu_p2pd_unary *call, int status, const char *text)
{
    struct mu_p2pd_user *user = call->user;
    struct mu_span id = mu_span(call->id, sizeof(call->id));
    bool asked = call->state == MU_P2PD_UNARY_ASKED;
    struct mu_errmsg msg;

    mu_p2pd_unary_drop(call);
    if (user != NULL && call->ours) {
        (void)mu_err(
            &msg, status,
            status == MUSTER_EREFUSED ? "failed to negotiate protocol: %.*s: %s" : "%.*s%s",
            status == MUSTER_EREFUSED ? (int)(call->name.len < 128 ? call->name.len : 128) : 0,
            (const char *)call->name.data, text);
        call->calls->stats.failed++;
        mu_p2pd_user_tell_simply(user, id, MU_P2PD_DAEMON_ERROR, msg.text);
    } else if (user != NULL && asked) {
        mu_p2pd_user_tell_simply(user, id, MU_P2PD_CANCEL, "");
    }
}

/* --- what the user hears ---------------------------------------------------------------------- */

static int decode(const struct mu_p2pd_unary *call, struct mu_p2pd_call *ret)
{
    struct mu_span message = mu_span(mu_buf_span(&call->in).data, call->need);

    return mu_p2pd_call_decode(mu_span_skip(message, call->head), ret);
}

/* The answer to a call of its own. */
static void deliver_answer(struct mu_p2pd_unary *call)
{
    struct mu_span id = mu_span(call->id, sizeof(call->id));
    struct mu_p2pd_call answer;

    if (decode(call, &answer) == 0 && answer.kind == MU_P2PD_UNARY_RESPONSE) {
        answer.kind = MU_P2PD_CALL_RESPONSE;
        answer.id = id; /* ours: the peer's may be anything */
        call->calls->stats.answered++;
        mu_p2pd_user_tell(call->user, &answer);
    } else {
        call->calls->stats.failed++;
        mu_p2pd_user_tell_simply(call->user, id, MU_P2PD_DAEMON_ERROR,
                                 "the peer's answer cannot be read");
    }
    if (call->has_stream && call->out.len == 0) {
        leave(call);
    } else {
        mu_p2pd_unary_drop(call); /* with what the peer has not taken of the request */
    }
}

/* A call of a peer's. */
static void deliver_request(struct mu_p2pd_unary *call)
{
    struct mu_p2pd_call request;

    if (decode(call, &request) != 0) {
        mu_p2pd_unary_drop(call); /* It could be read before. */
        return;
    }
    request.kind = MU_P2PD_REQUEST;
    request.peer = mu_peer_id_span(&call->peer);
    call->state = MU_P2PD_UNARY_ASKED;
    mu_heap_remove(&call->calls->timers, &call->timer);
    mu_p2pd_user_tell(call->user, &request);
    release(call);
}

void mu_p2pd_unary_deliver(struct mu_p2pd_unary *call)
{
    if (call->ours) {
        deliver_answer(call);
    } else {
        deliver_request(call);
    }
}

/* The user is chosen now: the one that was there when the stream was opened may be gone. */
static bool choose_user(struct mu_p2pd_unary *call)
{
    struct mu_p2pd_handler *handler = mu_p2pd_names_next(&call->calls->names, call->name);
    struct mu_p2pd_user *user = handler == NULL ? NULL : handler->user;
    struct mu_p2pd_call request;

    if (user == NULL || decode(call, &request) != 0 || request.kind != MU_P2PD_CALL_UNARY ||
        mu_map_find(&user->served, request.id) != NULL) {
        return false;
    }
    memcpy(call->id, request.id.data, sizeof(call->id));
    if (mu_map_insert(&user->served, &call->by_id, mu_span(call->id, sizeof(call->id))) != 0) {
        return false;
    }
    call->user = user;
    call->calls->stats.served++;
    call->calls->stats.served_ever++;
    return true;
}

/* --- what the peer says ----------------------------------------------------------------------- */

static void whole(struct mu_p2pd_unary *call)
{
    call->state = MU_P2PD_UNARY_WHOLE;
    if (!call->ours && !choose_user(call)) {
        mu_p2pd_unary_drop(call);
    } else if (call->user->conn->out.len > call->calls->config.high_bytes ||
               !mu_list_empty(&call->user->waiting)) {
        mu_list_push(&call->user->waiting, &call->waiting);
    } else {
        mu_p2pd_unary_deliver(call);
    }
}

/* How long the message is going to be, once that is there. */
static int read_head(struct mu_p2pd_unary *call)
{
    struct mu_p2pd_calls *calls = call->calls;
    uint64_t len;
    int err = mu_uvarint_get(mu_buf_span(&call->in), &call->head, &len);

    if (err == MUSTER_EAGAIN) {
        return 0;
    }
    if (err != 0 || len > calls->config.msg_len_max) {
        return err != 0 ? err : MUSTER_ELIMIT;
    }
    call->need = call->head + (size_t)len;
    if (call->need <= calls->config.free_bytes) {
        return 0;
    }
    if (may_grant(call) && mu_list_empty(&calls->starving)) {
        grant(call);
    } else {
        mu_list_push(&calls->starving, &call->starving);
    }
    return 0;
}

void mu_p2pd_unary_heard(struct mu_p2pd_unary *call, struct mu_span bytes)
{
    int err;

    call->unread += bytes.len;
    if (call->state != MU_P2PD_UNARY_READING) {
        consume(call); /* Nothing may come behind a message. */
        return;
    }
    err = mu_buf_append(&call->in, bytes);
    if (err == 0 && call->need == 0) {
        err = read_head(call);
    }
    if (err != 0) {
        lose(call, err,
             err == MUSTER_ELIMIT ? "the peer's message is longer than may be"
                                  : muster_strerror(err));
        return;
    }
    if (call->reserved != 0 || (call->need != 0 && call->need <= call->calls->config.free_bytes)) {
        consume(call);
    }
    if (call->need != 0 && call->in.len >= call->need) {
        whole(call);
    }
}

/* A peer that calls does not end its side before it has the answer, unless it does not want it any
 * more. A peer that was called and ends it without an answer has none. */
void mu_p2pd_unary_eof(struct mu_p2pd_unary *call)
{
    if (call->state < MU_P2PD_UNARY_ANSWERING &&
        !(call->ours && call->state == MU_P2PD_UNARY_WHOLE)) {
        lose(call, MUSTER_ECLOSED, "EOF: the peer has ended the call without an answer");
    }
}

void mu_p2pd_unary_ended(struct mu_p2pd_unary *call, int status, const char *text)
{
    call->has_stream = false;
    if (call->state == MU_P2PD_UNARY_LEAVING) {
        mu_p2pd_unary_drop(call);
    } else if (!(call->ours && call->state == MU_P2PD_UNARY_WHOLE)) {
        lose(call, status, text); /* else the message is there, and the user will have it */
    }
}

/* --- what it hears ---------------------------------------------------------------------------- */

void mu_p2pd_unary_answer(struct mu_p2pd_unary *call, struct mu_span message)
{
    detach(call);
    if (mu_buf_append(&call->out, message) != 0) {
        mu_p2pd_unary_drop(call);
        return;
    }
    call->state = MU_P2PD_UNARY_ANSWERING;
    mu_p2pd_unary_writable(call);
}

void mu_p2pd_unary_writable(struct mu_p2pd_unary *call)
{
    if (call->out.len != 0) {
        mu_p2pd_call_due(call, MU_P2PD_ACTION_WRITE);
    }
}

void mu_p2pd_unary_written(struct mu_p2pd_unary *call, size_t n)
{
    mu_buf_consume(&call->out, n);
    mu_buf_trim(&call->out, 0);
    if (call->ours && call->user != NULL && n != 0) {
        call->user->held_bytes -= n;
        mu_p2pd_user_due(call->user, MU_P2PD_ACTION_RESUME);
    }
    if (call->out.len == 0 && call->state == MU_P2PD_UNARY_ANSWERING) {
        leave(call);
    }
}
