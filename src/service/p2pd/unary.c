/* Unary calls: of clients to peers, and of peers to clients. */
#include <string.h>

#include <muster/error.h>

#include "codec/bin/uvarint.h"
#include "core/alloc.h"
#include "service/p2pd/p2pd_internal.h"

static struct mu_p2pd_leg *find_leg(const struct mu_map *map, struct mu_span id)
{
    struct mu_map_node *node = mu_map_find(map, id);

    return node == NULL ? NULL : MU_CONTAINER_OF(node, struct mu_p2pd_leg, by_id);
}

/* --- what a client hears ---------------------------------------------------------------------- */

static void tell_simply(struct mu_p2pd_client *c, struct mu_span id, enum mu_p2pd_call_kind kind,
                        const char *text)
{
    struct mu_p2pd_call call = {.kind = kind, .id = id, .data = mu_span_str(text)};

    mu_p2pd_client_tell(c, &call);
}

static struct mu_span message_of(const struct mu_p2pd_leg *leg)
{
    return mu_span_skip(mu_span(mu_buf_span(&leg->in).data, leg->need), leg->head);
}

/* The answer to a call of its own. */
static void deliver_answer(struct mu_p2pd_leg *leg)
{
    struct mu_p2pd_client *c = leg->client;
    struct mu_p2pd_call answer;
    bool readable =
        mu_p2pd_call_decode(message_of(leg), &answer) == 0 && answer.kind == MU_P2PD_UNARY_RESPONSE;
    uint8_t id[MU_P2PD_CALL_ID_LEN];

    memcpy(id, leg->id, sizeof(id));
    if (readable) {
        answer.kind = MU_P2PD_CALL_RESPONSE;
        answer.id = mu_span(id, sizeof(id)); /* ours: the peer's may be anything */
        leg->d->stats.answered++;
        mu_p2pd_client_tell(c, &answer);
    } else {
        leg->d->stats.failed++;
        tell_simply(c, mu_span(id, sizeof(id)), MU_P2PD_DAEMON_ERROR,
                    "the peer's answer cannot be read");
    }
    /* One that could not be told has been closed, and its calls with it. */
    if (c->closing) {
        return;
    }
    if (leg->stream.state == MU_HOST_STREAM_NONE) {
        mu_p2pd_leg_drop(leg);
    } else {
        mu_p2pd_leg_leave(leg);
    }
}

/* A call of a peer's. */
static void deliver_request(struct mu_p2pd_leg *leg)
{
    struct mu_p2pd_client *c = leg->client;
    struct mu_p2pd_call request;

    if (mu_p2pd_call_decode(message_of(leg), &request) != 0) {
        mu_p2pd_leg_drop(leg); /* It could be read before. */
        return;
    }
    request.kind = MU_P2PD_REQUEST;
    request.peer = mu_peer_id_span(&leg->stream.peer);
    leg->state = MU_P2PD_LEG_ASKED;
    mu_env_timer_arm(leg->d->env, &leg->timer, MU_MONO_NEVER);
    mu_p2pd_client_tell(c, &request);
    if (!c->closing) {
        mu_p2pd_leg_release(leg);
    }
}

static void deliver(struct mu_p2pd_leg *leg)
{
    if (leg->ours) {
        deliver_answer(leg);
    } else {
        deliver_request(leg);
    }
}

void mu_p2pd_unary_room(struct mu_p2pd_client *c)
{
    struct mu_list *link = mu_list_pop(&c->waiting);

    if (link != NULL) {
        deliver(MU_CONTAINER_OF(link, struct mu_p2pd_leg, waiting));
    }
}

/* Whom to ask is decided now: who was there when the stream was opened may be gone. */
static bool choose_client(struct mu_p2pd_leg *leg)
{
    struct mu_p2pd_target *target = mu_p2pd_name_next(leg->d, leg->name);
    struct mu_p2pd_call request;

    if (target == NULL || target->client == NULL ||
        mu_p2pd_call_decode(message_of(leg), &request) != 0 || request.kind != MU_P2PD_CALL_UNARY ||
        find_leg(&target->client->served, request.id) != NULL) {
        return false;
    }
    memcpy(leg->id, request.id.data, sizeof(leg->id));
    if (mu_map_insert(&target->client->served, &leg->by_id, mu_span(leg->id, sizeof(leg->id))) !=
        0) {
        return false;
    }
    leg->client = target->client;
    leg->d->stats.served++;
    leg->d->stats.served_ever++;
    return true;
}

void mu_p2pd_unary_whole(struct mu_p2pd_leg *leg)
{
    if (!leg->ours && !choose_client(leg)) {
        mu_p2pd_leg_drop(leg);
    } else if (leg->client->pc.out.len > MU_P2PD_HIGH_BYTES ||
               !mu_list_empty(&leg->client->waiting)) {
        mu_list_push(&leg->client->waiting, &leg->waiting);
    } else {
        deliver(leg);
    }
}

void mu_p2pd_unary_lost(struct mu_p2pd_leg *leg, int status, const char *text)
{
    struct mu_p2pd_client *c = leg->client;
    enum mu_p2pd_leg_state state = leg->state;
    bool ours = leg->ours;
    uint8_t id[MU_P2PD_CALL_ID_LEN];
    struct mu_errmsg msg;

    memcpy(id, leg->id, sizeof(id));
    (void)mu_err(&msg, status,
                 status == MUSTER_EREFUSED ? "failed to negotiate protocol: %.*s: %s" : "%.*s%s",
                 status == MUSTER_EREFUSED ? (int)(leg->name.len < 128 ? leg->name.len : 128) : 0,
                 leg->text, text);
    mu_p2pd_leg_drop(leg);
    if (c == NULL) {
        return;
    }
    if (ours) {
        c->d->stats.failed++;
        tell_simply(c, mu_span(id, sizeof(id)), MU_P2PD_DAEMON_ERROR, msg.text);
    } else if (state == MU_P2PD_LEG_ASKED) {
        tell_simply(c, mu_span(id, sizeof(id)), MU_P2PD_CANCEL, "");
    }
}

/* --- what a client says ----------------------------------------------------------------------- */

static void begin_call(struct mu_p2pd_client *c, const struct mu_p2pd_call *call,
                       struct mu_span message)
{
    struct mu_p2pd *d = c->d;
    struct mu_p2pd_leg *leg = NULL;
    struct mu_peer_id peer;
    const char *why = NULL;

    if (mu_peer_id_from_bytes(&peer, call->peer) != 0) {
        why = "failed to parse peer ID: it is not the multihash of a key";
    } else if (call->name.len == 0 || call->name.len > MU_MSS_NAME_MAX) {
        why = "failed to negotiate protocol: there is none, or its name is too long";
    } else if (find_leg(&c->calls, call->id) != NULL) {
        why = "a call with that id is under way";
    } else {
        leg = mu_p2pd_leg_new(d, true, call->name);
        why = leg == NULL ? "there are as many calls under way as may be" : NULL;
    }
    if (leg != NULL) {
        memcpy(leg->id, call->id.data, sizeof(leg->id));
        if (mu_buf_append(&leg->out, message) != 0 ||
            mu_map_insert(&c->calls, &leg->by_id, mu_span(leg->id, sizeof(leg->id))) != 0) {
            mu_p2pd_leg_drop(leg);
            why = "out of memory";
        }
    }
    if (why != NULL) {
        tell_simply(c, call->id, MU_P2PD_DAEMON_ERROR, why);
        return;
    }
    leg->client = c;
    c->held_bytes += leg->out.len;
    d->stats.calls++;
    d->stats.calls_ever++;
    mu_host_stream_open(d->host, &leg->stream, &peer, &leg->name, 1);
    mu_p2pd_leg_flush(leg);
}

static void cancel_call(struct mu_p2pd_client *c, struct mu_span id)
{
    struct mu_p2pd_leg *leg = find_leg(&c->calls, id);

    if (leg != NULL) {
        c->d->stats.canceled++;
        mu_p2pd_leg_drop(leg);
        tell_simply(c, id, MU_P2PD_CANCEL, "");
    }
}

/* What it says goes to the peer as it is. */
static void answer_request(struct mu_p2pd_client *c, struct mu_span id, struct mu_span message)
{
    struct mu_p2pd_leg *leg = find_leg(&c->served, id);

    if (leg == NULL || leg->state != MU_P2PD_LEG_ASKED) {
        return;
    }
    mu_p2pd_leg_detach(leg);
    if (mu_buf_append(&leg->out, message) != 0) {
        mu_p2pd_leg_drop(leg);
        return;
    }
    leg->state = MU_P2PD_LEG_ANSWERING;
    mu_p2pd_leg_flush(leg);
}

static void change_handler(struct mu_p2pd_client *c, const struct mu_p2pd_call *call)
{
    struct mu_errmsg msg;
    int err = call->kind == MU_P2PD_ADD_UNARY
                  ? mu_p2pd_name_add(c->d, call->name, c, (struct mu_span){0}, call->balanced, &msg)
                  : mu_p2pd_name_remove(c->d, call->name, c, (struct mu_span){0}, &msg);

    tell_simply(c, call->id, err == 0 ? MU_P2PD_NOTHING : MU_P2PD_DAEMON_ERROR,
                err == 0 ? "" : msg.text);
}

void mu_p2pd_unary(struct mu_p2pd_client *c, const struct mu_p2pd_call *call,
                   struct mu_span message)
{
    switch (call->kind) {
    case MU_P2PD_ADD_UNARY:
    case MU_P2PD_REMOVE_UNARY:
        change_handler(c, call);
        break;
    case MU_P2PD_CALL_UNARY:
        begin_call(c, call, message);
        break;
    case MU_P2PD_UNARY_RESPONSE:
        answer_request(c, call->id, message);
        break;
    case MU_P2PD_CANCEL:
        cancel_call(c, call->id);
        break;
    case MU_P2PD_NOTHING:
    case MU_P2PD_CALL_RESPONSE:
    case MU_P2PD_REQUEST:
    case MU_P2PD_DAEMON_ERROR:
        break;
    }
}

void mu_p2pd_client_drop_calls(struct mu_p2pd_client *c)
{
    struct mu_map_node *node;

    while ((node = mu_map_next(&c->calls, NULL)) != NULL) {
        mu_p2pd_leg_drop(MU_CONTAINER_OF(node, struct mu_p2pd_leg, by_id));
    }
    while ((node = mu_map_next(&c->served, NULL)) != NULL) {
        mu_p2pd_leg_drop(MU_CONTAINER_OF(node, struct mu_p2pd_leg, by_id));
    }
}
