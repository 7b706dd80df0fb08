/*
 * Lines: sessions with peers. Some were dialled by us, some by them; a peer has at most one that
 * calls go to. The callee's ids and the caller's are apart on the wire, so both ends call on it.
 */
#include "service/rpc/agent_internal.h"

#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"

#define DIAL_HELD_MS 200  /* how long is waited for the dial of a peer that refused ours for it */
#define DIAL_LEFT_MS 1000 /* how long a host may take to say that nobody is there any more */

static struct mu_rpc_dial *dial_of(struct mu_rpc_line *line)
{
    return MU_CONTAINER_OF(line, struct mu_rpc_dial, line);
}

static struct mu_rpc_accepted *accepted_of(struct mu_rpc_line *line)
{
    return MU_CONTAINER_OF(line, struct mu_rpc_accepted, line);
}

struct mu_rpc *mu_rpc_line_rpc(struct mu_rpc_line *line)
{
    return line->dialled ? &dial_of(line)->client.rpc : &accepted_of(line)->base.rpc;
}

static void init_line(struct mu_rpc_line *line, struct mu_rpc_peer *peer, bool dialled)
{
    line->agent = peer->agent;
    line->peer = peer;
    line->dialled = dialled;
    mu_list_init(&line->dirty);
    mu_map_init(&line->outs, peer->agent->config.rpc.seed);
    mu_map_init(&line->ins, peer->agent->config.rpc.seed);
    peer->lines++;
}

static void fini_line(struct mu_rpc_line *line)
{
    struct mu_rpc_peer *peer = line->peer;

    MU_ASSERT(line->lost);
    mu_list_remove(&line->dirty);
    mu_map_fini(&line->outs);
    mu_map_fini(&line->ins);
    peer->lines--;
    mu_rpc_peer_drop_guest(peer);
}

void mu_rpc_line_touch(struct mu_rpc_line *line)
{
    if (mu_list_empty(&line->dirty)) {
        mu_list_push(&line->agent->dirty_lines, &line->dirty);
    }
}

void mu_rpc_line_flush(struct mu_rpc_line *line)
{
    if (line->dialled) {
        mu_rpc_client_flush(&dial_of(line)->client);
    } else {
        mu_rpc_session_touch(&accepted_of(line)->base);
    }
}

static bool is_self(const struct mu_rpc_agent *a, const uint8_t *incarnation)
{
    return memcmp(a->server.incarnation, incarnation, sizeof(a->server.incarnation)) == 0;
}

void mu_rpc_line_lose(struct mu_rpc_line *line, int status, const char *text)
{
    struct mu_map_node *node;

    if (line->lost) {
        return;
    }
    line->lost = true;
    line->ready = false;
    if (line->peer->line == line) {
        line->peer->line = NULL;
        mu_rpc_peer_touch(line->peer);
    }
    while ((node = mu_map_next(&line->outs, NULL)) != NULL) {
        mu_rpc_out_failed(MU_CONTAINER_OF(node, struct mu_rpc_out, by_id), status, text);
    }
    while ((node = mu_map_next(&line->ins, NULL)) != NULL) {
        mu_rpc_in_orphan(MU_CONTAINER_OF(node, struct mu_rpc_in, by_id));
    }
}

/* --- what comes on a line --------------------------------------------------------------------- */

static struct mu_rpc_out *find_out(struct mu_rpc_line *line, uint64_t id)
{
    struct mu_map_node *node = mu_map_find(&line->outs, mu_span(&id, sizeof(id)));

    return node == NULL ? NULL : MU_CONTAINER_OF(node, struct mu_rpc_out, by_id);
}

static struct mu_rpc_in *find_in(struct mu_rpc_line *line, uint64_t id)
{
    struct mu_map_node *node = mu_map_find(&line->ins, mu_span(&id, sizeof(id)));

    return node == NULL ? NULL : MU_CONTAINER_OF(node, struct mu_rpc_in, by_id);
}

static void on_item(struct mu_rpc_line *line, const struct mu_rpc_event *event)
{
    struct mu_rpc_out *out = find_out(line, event->id);
    struct mu_rpc_in *in = out == NULL ? find_in(line, event->id) : NULL;

    line->agent->stats.bytes_in += event->payload.len;
    if (out != NULL) {
        mu_rpc_out_on_item(out, event);
    } else if (in != NULL) {
        mu_rpc_in_on_item(in, event);
    } else {
        (void)mu_rpc_consumed(mu_rpc_line_rpc(line), mu_env_now(line->agent->env), event->id,
                              event->payload.len);
    }
}

static void on_credit(struct mu_rpc_line *line, uint64_t id)
{
    struct mu_rpc_out *out = find_out(line, id);
    struct mu_rpc_in *in = out == NULL ? find_in(line, id) : NULL;

    if (id == 0) {
        mu_rpc_peer_touch(line->peer);
    } else if (out != NULL) {
        mu_rpc_out_on_credit(out);
    } else if (in != NULL) {
        mu_rpc_in_on_credit(in);
    }
}

static void line_event(struct mu_rpc_line *line, const struct mu_rpc_event *event)
{
    struct mu_rpc_agent *a = line->agent;
    struct mu_rpc_out *out;
    struct mu_rpc_in *in;

    mu_rpc_line_touch(line);
    a->in_event = true; /* What is made of many events goes out together, with the turn. */
    switch (event->type) {
    case MU_RPC_EV_CALL:
        line->agent->stats.bytes_in += event->payload.len;
        mu_rpc_in_on_call(line, event);
        break;
    case MU_RPC_EV_REPLY:
        line->agent->stats.bytes_in += event->payload.len;
        out = find_out(line, event->id);
        if (out != NULL) {
            mu_rpc_out_on_reply(out, event);
        }
        break;
    case MU_RPC_EV_ITEM:
        on_item(line, event);
        break;
    case MU_RPC_EV_END:
        in = find_in(line, event->id);
        if (in != NULL) {
            mu_rpc_in_on_end(in);
        }
        break;
    case MU_RPC_EV_CANCEL:
        in = find_in(line, event->id);
        if (in != NULL) {
            mu_rpc_in_on_cancel(in, event->status);
        }
        break;
    case MU_RPC_EV_CREDIT:
        on_credit(line, event->id);
        break;
    case MU_RPC_EV_WELCOMED:
    case MU_RPC_EV_REFUSED:
    case MU_RPC_EV_LINK_DEAD:
    case MU_RPC_EV_DRAIN:
    case MU_RPC_EV_BYE:
        break;
    }
    a->in_event = false;
}

/* --- lines that we dial ----------------------------------------------------------------------- */

static void close_dial(struct mu_rpc_dial *d, int status, const char *text)
{
    mu_rpc_line_lose(&d->line, status, text);
    if (!d->closing) {
        d->closing = true;
        mu_rpc_client_close(&d->client);
        mu_rpc_agent_soon(d->line.agent); /* The client's own turns end without ours from now on. */
    }
}

static void dial_ready(void *context)
{
    (void)context; /* The event that follows has more to say. */
}

static void on_welcomed(struct mu_rpc_dial *d)
{
    const uint8_t *incarnation = mu_rpc_peer_incarnation(&d->client.rpc);

    memcpy(d->line.incarnation, incarnation, sizeof(d->line.incarnation));
    d->line.peer->left = false;
    if (!d->line.lost) {
        d->line.ready = true;
        mu_rpc_peer_touch(d->line.peer);
    }
}

static void dial_event(void *context, const struct mu_rpc_event *event)
{
    struct mu_rpc_dial *d = context;

    switch (event->type) {
    case MU_RPC_EV_WELCOMED:
        on_welcomed(d);
        break;
    case MU_RPC_EV_REFUSED:
        if (d->line.ready) {
            close_dial(d, MUSTER_ESESSION, "the peer does not know us any more");
        }
        break;
    case MU_RPC_EV_BYE:
        d->line.peer->left = d->line.peer->left || d->line.peer->line == &d->line;
        close_dial(d, MUSTER_ECLOSED, "the peer said goodbye");
        break;
    case MU_RPC_EV_CALL:
    case MU_RPC_EV_ITEM:
    case MU_RPC_EV_END:
    case MU_RPC_EV_CANCEL:
    case MU_RPC_EV_REPLY:
    case MU_RPC_EV_CREDIT:
    case MU_RPC_EV_LINK_DEAD:
    case MU_RPC_EV_DRAIN:
        if (!d->line.lost) {
            line_event(&d->line, event);
        }
        break;
    }
}

/* No session could be had. */
static void dial_failed(void *context, int status, const char *text)
{
    struct mu_rpc_dial *d = context;
    struct mu_rpc_peer *peer = d->line.peer;
    struct mu_rpc_agent *a = d->line.agent;

    if (d->client.last_error == MUSTER_EBUSY && peer->line == &d->line) {
        /* It dials us at this moment. If that comes to nothing, we try again. */
        peer->dial_held = true;
        mu_env_timer_arm(a->env, &peer->dial_timer,
                         mu_mono_add_ms(mu_env_now(a->env).mono, DIAL_HELD_MS));
    } else if (peer->line == &d->line && peer->left && status == MUSTER_ECONN) {
        status = MUSTER_ECLOSED;
        text = "the peer said goodbye, and nobody is at its address since";
        mu_rpc_calls_fail(peer, status, text);
    } else if (peer->line == &d->line) {
        mu_rpc_calls_fail(peer, status, text);
    }
    close_dial(d, status, text);
}

static void dial_mismatch(void *context, bool silent)
{
    struct mu_rpc_dial *d = context;
    char text[MU_ERRMSG_CAP];

    (void)snprintf(text, sizeof(text), "%.80s %s", d->client.addr,
                   silent ? "does not answer a greeting" : "is no muster worker");
    dial_failed(context, MUSTER_ECONN, text);
}

static void dial_gave_up(void *context, int status, const char *text)
{
    struct mu_rpc_dial *d = context;

    if (!d->line.lost) {
        mu_rpc_calls_fail(d->line.peer, status, text);
    }
    close_dial(d, status, text);
}

static void dial_turn_ended(void *context)
{
    mu_rpc_agent_turn(((struct mu_rpc_dial *)context)->line.agent);
}

static void dial_closed(void *context)
{
    struct mu_rpc_dial *d = context;
    struct mu_rpc_agent *a = d->line.agent;

    mu_rpc_line_lose(&d->line, MUSTER_ECLOSED, NULL);
    mu_list_remove(&d->link);
    fini_line(&d->line);
    mu_free(d);
    mu_rpc_agent_turn(a);
}

static void dial(struct mu_rpc_peer *peer)
{
    struct mu_rpc_agent *a = peer->agent;
    struct mu_rpc_dial *d = mu_calloc(1, sizeof(*d));
    struct mu_rpc_card card = {.id = a->config.id, .meant = mu_span_str(peer->name)};
    struct mu_buf buf;
    struct mu_rpc_client_config config = {
        .addr = peer->addr,
        .near = peer->near,
        .name = a->config.name,
        .connect_ms = a->config.connect_ms,
        .reconnect_ms = a->config.reconnect_ms,
        .probe_ms = a->config.connect_ms,
        .greetings = UINT32_MAX,
        .try_once = peer->left,
        .grace_ms = a->config.rpc.grace_ms,
        .beat_ms = a->config.rpc.beat_ms,
        .dead_ms = a->config.rpc.dead_ms,
        .terms = &a->config.rpc,
    };
    struct mu_rpc_client_events events = {
        .ready = dial_ready,
        .mismatch = dial_mismatch,
        .failed = dial_failed,
        .gave_up = dial_gave_up,
        .event = dial_event,
        .turn_ended = dial_turn_ended,
        .closed = dial_closed,
        .context = d,
    };

    if (d == NULL) {
        mu_rpc_calls_fail(peer, MUSTER_ENOMEM, "out of memory for a connection");
        return;
    }
    if (peer->left && (config.connect_ms == 0 || config.connect_ms > DIAL_LEFT_MS)) {
        config.connect_ms = DIAL_LEFT_MS;
    }
    memcpy(card.incarnation, a->server.incarnation, sizeof(card.incarnation));
    mu_buf_init(&buf, sizeof(d->card));
    if (mu_rpc_card_encode(&buf, &card) != 0) {
        mu_free(d);
        mu_rpc_calls_fail(peer, MUSTER_ENOMEM, "out of memory for a connection");
        return;
    }
    memcpy(d->card, mu_buf_span(&buf).data, buf.len);
    config.credential = mu_span(d->card, buf.len);
    mu_buf_fini(&buf);
    if (mu_rpc_client_init(&d->client, a->env, &config, &events) != 0) {
        mu_free(d);
        mu_rpc_calls_fail(peer, MUSTER_EADDR, "its address cannot be dialled");
        return;
    }
    init_line(&d->line, peer, true);
    mu_list_push(&a->dials, &d->link);
    peer->line = &d->line;
    a->stats.dials++;
}

struct mu_rpc_line *mu_rpc_peer_line(struct mu_rpc_peer *peer)
{
    if (peer->line != NULL) {
        return peer->line->ready ? peer->line : NULL;
    }
    if (peer->has_addr && !peer->dial_held) {
        dial(peer);
    } else if (!peer->has_addr) {
        mu_rpc_calls_fail(peer, MUSTER_ECONN,
                          "there is no connection, and its address is not known");
    }
    return NULL;
}

/* --- lines that they dial --------------------------------------------------------------------- */

static struct mu_rpc_agent *agent_of(const struct mu_rpc_server *s)
{
    return MU_CONTAINER_OF(s, struct mu_rpc_agent, server);
}

static struct mu_rpc_line *line_of(struct mu_rpc_session *base)
{
    return &MU_CONTAINER_OF(base, struct mu_rpc_accepted, base)->line;
}

/*
 * Whether our own line to the one that greets is kept. While both dial, it is the one of the lesser
 * name; a connection that is not up yet counts for nothing, and neither does a line to a process
 * that was there before.
 */
static bool keeps_own_dial(const struct mu_rpc_agent *a, const struct mu_rpc_peer *peer,
                           const struct mu_rpc_card *card)
{
    const struct mu_rpc_line *line = peer->line;
    const struct mu_rpc_dial *d;

    if (line == NULL || !line->dialled || strcmp(a->config.name, peer->name) >= 0) {
        return false;
    }
    d = MU_CONTAINER_OF(line, struct mu_rpc_dial, line);
    if (d->client.link != MU_RPC_CLIENT_UP) {
        return false;
    }
    return !line->ready ||
           (mu_rpc_client_linked(&d->client) &&
            memcmp(line->incarnation, card->incarnation, sizeof(line->incarnation)) == 0);
}

static int greet(struct mu_rpc_server *s, const struct mu_rpc_hello *hello,
                 struct mu_rpc_session *known, struct mu_errmsg *reterr_msg)
{
    struct mu_rpc_agent *a = agent_of(s);
    struct mu_rpc_card card;
    struct mu_map_node *node;

    if (a->stopping) {
        return mu_err(reterr_msg, MUSTER_EDRAIN, "%s is shutting down", a->config.name);
    }
    if (!mu_rpc_worker_name_ok(hello->name) || mu_rpc_card_decode(hello->credential, &card) != 0) {
        return mu_err(reterr_msg, MUSTER_EREFUSED, "this is an RPC worker, and you are none");
    }
    if (card.meant.len != 0 && !mu_span_eq(card.meant, mu_span_str(a->config.name))) {
        return mu_err(reterr_msg, MUSTER_EREFUSED, "this is %s, and not the worker you mean",
                      a->config.name);
    }
    node = mu_map_find(&a->by_name, hello->name);
    if (known != NULL || node == NULL || is_self(a, card.incarnation)) {
        return 0;
    }
    if (keeps_own_dial(a, MU_CONTAINER_OF(node, struct mu_rpc_peer, by_name), &card)) {
        return mu_err(reterr_msg, MUSTER_EBUSY, "%s has dialled you already", a->config.name);
    }
    return 0;
}

static struct mu_rpc_session *session_new(struct mu_rpc_server *s, const struct mu_rpc_hello *hello)
{
    struct mu_rpc_agent *a = agent_of(s);
    struct mu_map_node *node = mu_map_find(&a->by_name, hello->name);
    struct mu_rpc_accepted *v = mu_calloc(1, sizeof(*v));
    struct mu_rpc_peer *peer;
    struct mu_rpc_card card;

    if (v == NULL || mu_rpc_card_decode(hello->credential, &card) != 0) {
        mu_free(v);
        return NULL;
    }
    peer = node != NULL ? MU_CONTAINER_OF(node, struct mu_rpc_peer, by_name)
                        : mu_rpc_peer_new(a, hello->name, card.id, true);
    if (peer == NULL) {
        mu_free(v);
        return NULL;
    }
    init_line(&v->line, peer, false);
    memcpy(v->line.incarnation, card.incarnation, sizeof(v->line.incarnation));
    return &v->base;
}

static void session_linked(struct mu_rpc_session *session)
{
    struct mu_rpc_line *line = line_of(session);
    struct mu_rpc_peer *peer = line->peer;
    struct mu_rpc_line *old = peer->line;

    if (line->ready) {
        return;
    }
    line->ready = true;
    line->agent->stats.accepts++;
    if (is_self(line->agent, line->incarnation)) {
        return; /* Our own calls to ourselves go by the end that dialled. */
    }
    peer->line = line;
    peer->left = false;
    peer->dial_held = false;
    mu_env_timer_arm(line->agent->env, &peer->dial_timer, MU_MONO_NEVER);
    mu_rpc_peer_touch(peer);
    if (old != NULL && old->dialled) {
        close_dial(dial_of(old), MUSTER_ESESSION, "the peer began a new session");
    } else if (old != NULL) {
        mu_rpc_line_lose(old, MUSTER_ESESSION, "the peer began a new session");
        mu_rpc_session_end(&accepted_of(old)->base, "another session of the same worker");
    }
}

static void session_free(struct mu_rpc_session *session)
{
    struct mu_rpc_accepted *v = MU_CONTAINER_OF(session, struct mu_rpc_accepted, base);

    if (session->goodbye) {
        v->line.peer->left = v->line.peer->left || v->line.peer->line == &v->line;
        mu_rpc_line_lose(&v->line, MUSTER_ECLOSED, "the peer said goodbye");
    } else {
        mu_rpc_line_lose(&v->line, MUSTER_ESESSION,
                         "the connection was lost and did not come back");
    }
    fini_line(&v->line);
    mu_free(v);
}

static void session_event(struct mu_rpc_session *session, const struct mu_rpc_event *event)
{
    if (!line_of(session)->lost) {
        line_event(line_of(session), event);
    }
}

/* --- the table -------------------------------------------------------------------------------- */

static void complain(struct mu_rpc_server *s, const char *peer, const char *why)
{
    struct mu_rpc_agent *a = agent_of(s);
    mu_mono_t now = mu_env_now(a->env).mono;

    if (!mu_log_may(&a->dropped, now)) {
        a->dropped.unsaid++;
        return;
    }
    mu_log_said(&a->dropped, now, MUSTER_LOG_WARN, MU_RPC_DROPPED, "worker=%s peer=%s why=\"%s\"",
                a->config.name, peer, why);
}

static void turn_ended(struct mu_rpc_server *s)
{
    mu_rpc_agent_turn(agent_of(s));
}

static void on_accept_failed(struct mu_listener *listener, int status)
{
    (void)listener;
    mu_log(MUSTER_LOG_ERROR, "RPC-ACCEPT-FAILED",
           "why=\"%s\" remedy=\"raise the descriptor limit (ulimit -n) of this process\"",
           muster_strerror(status));
}

const struct mu_rpc_server_ops mu_rpc_agent_server_ops = {
    .turn_ended = turn_ended,
    .complain = complain,
    .accept_failed = on_accept_failed,
    .protocol = &mu_rpc_native,
    .greet = greet,
    .session_new = session_new,
    .session_linked = session_linked,
    .session_free = session_free,
    .event = session_event,
};

/* --- the end ---------------------------------------------------------------------------------- */

void mu_rpc_lines_close(struct mu_rpc_agent *a)
{
    MU_LIST_FOREACH_SAFE (it, tmp, &a->dials) {
        close_dial(MU_CONTAINER_OF(it, struct mu_rpc_dial, link), MUSTER_ECLOSED, NULL);
    }
    MU_LIST_FOREACH (it, &a->server.list) {
        mu_rpc_line_lose(line_of(MU_CONTAINER_OF(it, struct mu_rpc_session, link)), MUSTER_ECLOSED,
                         NULL);
    }
    mu_rpc_server_leave(&a->server, "shut down");
}
