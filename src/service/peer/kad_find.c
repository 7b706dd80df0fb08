/*
 * Searches on streams: each is a machine (proto/peer/kad_search.h) and a stream to every peer that
 * it asks. The peers in the answers go into the host's address book.
 */
#include <muster/error.h>

#include "codec/bin/uvarint.h"
#include "core/alloc.h"
#include "service/peer/kad_internal.h"

#define SEARCHES_MAX 64
#define FAREWELL_MS  5000 /* how long an answered stream may take to end */

struct search {
    struct mu_list link;
    struct mu_kad *kad;
    struct mu_kad_search machine;
    struct mu_timer timer; /* at the machine's deadline */
    struct mu_list asks;   /* that are under way */
};

struct ask {
    struct mu_list link;
    struct mu_kad *kad;
    struct search *search; /* NULL: the peer has answered */
    struct mu_host_stream stream;
    struct mu_timer farewell;
    struct mu_buf in;
    struct mu_buf out;
};

static const struct mu_span kad_name = {(const uint8_t *)MU_KAD_NAME, sizeof(MU_KAD_NAME) - 1};

static struct mu_env *env_of(const struct mu_kad *kad)
{
    return mu_peer_host_env(kad->host);
}

static mu_mono_t now_of(const struct mu_kad *kad)
{
    return mu_env_now(env_of(kad)).mono;
}

static void free_ask(struct ask *a)
{
    mu_env_timer_arm(env_of(a->kad), &a->farewell, MU_MONO_NEVER);
    mu_list_remove(&a->link);
    mu_buf_fini(&a->in);
    mu_buf_fini(&a->out);
    mu_free(a);
}

static void drop_ask(struct ask *a)
{
    mu_host_stream_reset(&a->stream);
    free_ask(a);
}

static void drop_asks(struct mu_list *asks)
{
    MU_LIST_FOREACH_SAFE (it, tmp, asks) {
        drop_ask(MU_CONTAINER_OF(it, struct ask, link));
    }
}

/* --- driving the machine ---------------------------------------------------------------------- */

static void begin_ask(struct search *s, const struct mu_peer_id *peer);

static void drop_late(struct search *s, const struct mu_peer_id *peer)
{
    mu_kad_forget(s->kad, peer);
    MU_LIST_FOREACH_SAFE (it, tmp, &s->asks) {
        struct ask *a = MU_CONTAINER_OF(it, struct ask, link);

        if (mu_peer_id_eq(&a->stream.peer, peer)) {
            drop_ask(a);
            return;
        }
    }
}

static void end_search(struct search *s)
{
    struct mu_kad *kad = s->kad;

    drop_asks(&s->asks);
    kad->stats.found += s->machine.state == MU_KAD_SEARCH_FOUND ? 1 : 0;
    mu_env_timer_arm(env_of(kad), &kad->soon, now_of(kad));
}

static void pump(struct search *s)
{
    struct mu_kad_action action;

    while (mu_kad_search_next(&s->machine, now_of(s->kad), &action)) {
        switch (action.type) {
        case MU_KAD_ACTION_ASK:
            begin_ask(s, &action.peer);
            break;
        case MU_KAD_ACTION_LATE:
            drop_late(s, &action.peer);
            break;
        case MU_KAD_ACTION_END:
            end_search(s);
            break;
        }
    }
    mu_env_timer_arm(env_of(s->kad), &s->timer, mu_kad_search_deadline(&s->machine));
}

static void on_deadline(struct mu_timer *timer)
{
    pump(MU_CONTAINER_OF(timer, struct search, timer));
}

/* --- asks ------------------------------------------------------------------------------------- */

static void ask_failed(struct ask *a)
{
    struct search *s = a->search;

    if (s == NULL) {
        free_ask(a);
        return;
    }
    mu_kad_forget(a->kad, &a->stream.peer);
    mu_kad_search_failed(&s->machine, &a->stream.peer);
    free_ask(a);
    pump(s);
}

/* Puts the addresses of an answer into the book. Returns how many peers can be reached now.
 * Addresses of this host are of use only from a peer that is on it. */
static size_t learn(struct mu_kad *kad, const struct mu_kad_msg *msg, bool near,
                    struct mu_peer_id named[MU_KAD_NAMED_MAX])
{
    struct mu_span walk = msg->closer;
    struct mu_kad_peer peer;
    size_t count = 0;

    for (size_t n = 0; n < MU_KAD_NAMED_MAX && mu_kad_next_peer(&walk, &peer); n++) {
        struct mu_span addr;
        bool known = false;

        if (mu_peer_id_eq(&peer.id, mu_peer_host_id(kad->host))) {
            continue;
        }
        while (mu_kad_next_addr(&peer.addrs, &addr)) {
            if (near || !mu_multiaddr_is_local(addr)) {
                known = mu_peer_host_add_addr(kad->host, &peer.id, addr) == 0 || known;
            }
        }
        if (known) {
            named[count++] = peer.id;
        }
    }
    return count;
}

static void ask_answered(struct ask *a, struct mu_span bytes)
{
    struct search *s = a->search;
    struct mu_kad *kad = a->kad;
    struct mu_peer_id named[MU_KAD_NAMED_MAX];
    struct mu_kad_msg msg;
    size_t count;

    if (mu_kad_msg_decode(bytes, &msg) != 0 || msg.type != MU_KAD_FIND_NODE) {
        mu_host_stream_reset(&a->stream);
        ask_failed(a);
        return;
    }
    kad->stats.answered++;
    mu_kad_remember(kad, &a->stream.peer);
    count = learn(kad, &msg, mu_peer_host_near(kad->host, &a->stream.peer), named);
    /* The stream ends by itself. */
    a->search = NULL;
    mu_list_remove(&a->link);
    mu_list_push(&kad->asks, &a->link);
    mu_env_timer_arm(env_of(kad), &a->farewell, mu_mono_add_ms(now_of(kad), FAREWELL_MS));
    mu_host_stream_end(&a->stream);
    mu_kad_search_answered(&s->machine, &a->stream.peer, named, count);
    pump(s);
}

static void ask_data(struct mu_host_stream *stream, struct mu_span bytes)
{
    struct ask *a = MU_CONTAINER_OF(stream, struct ask, stream);
    struct mu_span in;
    size_t head = 0;
    uint64_t len = 0;
    int err;

    mu_host_stream_consumed(stream, bytes.len);
    if (a->search == NULL) {
        return;
    }
    err = mu_buf_append(&a->in, bytes);
    in = mu_buf_span(&a->in);
    if (err == 0) {
        err = mu_uvarint_get(in, &head, &len);
        if (err == MUSTER_EAGAIN) {
            return;
        }
    }
    if (err != 0 || len > MU_KAD_MSG_MAX) {
        mu_host_stream_reset(stream);
        ask_failed(a);
    } else if (in.len - head >= len) {
        ask_answered(a, mu_span(in.data + head, (size_t)len));
    }
}

static void ask_write(struct mu_host_stream *stream)
{
    struct ask *a = MU_CONTAINER_OF(stream, struct ask, stream);

    if (a->out.len != 0) {
        mu_buf_consume(&a->out, mu_host_stream_write(stream, mu_buf_span(&a->out)));
    }
}

static void ask_ended(struct mu_host_stream *stream, int status, const char *text)
{
    (void)status;
    (void)text;
    ask_failed(MU_CONTAINER_OF(stream, struct ask, stream));
}

static void on_farewell(struct mu_timer *timer)
{
    drop_ask(MU_CONTAINER_OF(timer, struct ask, farewell));
}

static const struct mu_host_stream_events ask_events = {
    .data = ask_data,
    .writable = ask_write,
    .ended = ask_ended,
};

static void begin_ask(struct search *s, const struct mu_peer_id *peer)
{
    struct mu_kad *kad = s->kad;
    struct ask *a = mu_calloc(1, sizeof(*a));

    if (a == NULL) {
        mu_kad_search_failed(&s->machine, peer);
        return;
    }
    a->kad = kad;
    a->search = s;
    a->stream.on = &ask_events;
    mu_list_init(&a->link);
    mu_timer_init(&a->farewell, on_farewell);
    mu_buf_init(&a->in, MU_KAD_MSG_MAX + MU_UVARINT_LEN_MAX);
    mu_buf_init(&a->out, MU_PEER_ID_MAX + 32);
    if (mu_kad_msg_encode(&a->out, MU_KAD_FIND_NODE, mu_peer_id_span(&s->machine.config.target)) !=
        0) {
        free_ask(a);
        mu_kad_search_failed(&s->machine, peer);
        return;
    }
    kad->stats.asked++;
    mu_list_push(&s->asks, &a->link);
    mu_host_stream_open(kad->host, &a->stream, peer, &kad_name, 1);
    ask_write(&a->stream);
}

/* --- searches --------------------------------------------------------------------------------- */

/* Whether this search may begin. Asking a peer may itself begin a search for it, so no search
 * begins for a peer that is being asked. */
static bool may_begin(const struct mu_kad *kad, const struct mu_peer_id *target)
{
    size_t count = 0;

    MU_LIST_FOREACH (it, &kad->searches) {
        if (++count == SEARCHES_MAX ||
            mu_kad_search_is_asking(&MU_CONTAINER_OF(it, struct search, link)->machine, target)) {
            return false;
        }
    }
    return true;
}

/* The peers to begin with: those that speak the protocol and can be reached. */
static void add_known(struct search *s)
{
    struct mu_kad *kad = s->kad;

    for (size_t i = 0; i < kad->count; i++) {
        const struct mu_peer_id *id = &kad->table[i].id;

        if (mu_peer_host_connected(kad->host, id) || mu_peer_host_addr(kad->host, id, 0).len != 0) {
            mu_kad_search_add(&s->machine, id);
        }
    }
}

void mu_kad_find(struct mu_kad *kad, const struct mu_peer_id *target)
{
    struct mu_kad_search_config config = {
        .self = *mu_peer_host_id(kad->host),
        .target = *target,
        .nearest = kad->config.nearest,
        .parallel = kad->config.parallel,
        .asked_max = kad->config.asked_max,
        .answer_ms = kad->config.answer_ms,
    };
    struct search *s = mu_calloc(1, sizeof(*s));

    if (s == NULL) {
        return; /* the host's own deadline ends the wait */
    }
    s->kad = kad;
    mu_list_init(&s->asks);
    mu_timer_init(&s->timer, on_deadline);
    mu_kad_search_init(&s->machine, &config);
    kad->stats.searches++;
    if (may_begin(kad, target)) {
        add_known(s);
    } else {
        mu_kad_search_stop(&s->machine);
    }
    mu_list_push(&kad->searches, &s->link);
    pump(s);
}

/* After a search for ourselves there is nothing to report. */
static void free_search(struct search *s)
{
    struct mu_kad *kad = s->kad;
    struct mu_peer_id target = s->machine.config.target;

    drop_asks(&s->asks);
    mu_env_timer_arm(env_of(kad), &s->timer, MU_MONO_NEVER);
    mu_list_remove(&s->link);
    mu_free(s);
    if (!mu_peer_id_eq(&target, mu_peer_host_id(kad->host))) {
        mu_peer_host_found(kad->host, &target);
    }
}

static void on_soon(struct mu_timer *timer)
{
    struct mu_kad *kad = MU_CONTAINER_OF(timer, struct mu_kad, soon);

    MU_LIST_FOREACH_SAFE (it, tmp, &kad->searches) {
        struct search *s = MU_CONTAINER_OF(it, struct search, link);

        if (s->machine.state != MU_KAD_SEARCH_ASKING) {
            free_search(s);
        }
    }
}

void mu_kad_find_init(struct mu_kad *kad)
{
    mu_list_init(&kad->searches);
    mu_list_init(&kad->asks);
    mu_timer_init(&kad->soon, on_soon);
}

void mu_kad_find_fini(struct mu_kad *kad)
{
    MU_LIST_FOREACH_SAFE (it, tmp, &kad->searches) {
        free_search(MU_CONTAINER_OF(it, struct search, link));
    }
    drop_asks(&kad->asks);
    mu_env_timer_arm(env_of(kad), &kad->soon, MU_MONO_NEVER);
}
