/*
 * Searches. Each has a list of those it has heard of, nearest to what it seeks first, and asks them
 * from the front, several at once. It is over when somebody names the one that is sought with an
 * address, when the nearest have all been asked, or when it has cost enough.
 */
#include <string.h>

#include <muster/error.h>

#include "codec/uvarint.h"
#include "core/alloc.h"
#include "service/kad_internal.h"

#define SEARCHES_MAX   64
#define CANDIDATES_MAX 128
#define FAREWELL_MS    5000 /* how long an answered stream may take to end */

enum candidate_state { NEW = 0, ASKED, ANSWERED, FAILED };

struct candidate {
    struct mu_peer_id id;
    uint8_t key[MU_SHA256_LEN];
    enum candidate_state state;
};

struct mu_kad_search {
    struct mu_list link;
    struct mu_kad *kad;
    struct mu_peer_id target;
    uint8_t key[MU_SHA256_LEN];
    bool for_self;
    bool over; /* to be told and freed */
    uint32_t asked;
    struct mu_list asks;
    size_t count;
    struct candidate candidates[CANDIDATES_MAX]; /* nearest first */
};

struct ask {
    struct mu_list link;
    struct mu_kad *kad;
    struct mu_kad_search *search; /* NULL: it was answered, or the search is over */
    struct mu_host_stream stream;
    struct mu_timer timer;
    struct mu_buf in;
    struct mu_buf out;
};

static const struct mu_span kad_name = {(const uint8_t *)MU_KAD_NAME, sizeof(MU_KAD_NAME) - 1};

static struct mu_env *env_of(struct mu_kad *kad)
{
    return mu_peer_host_env(kad->host);
}

static void free_ask(struct ask *a)
{
    mu_env_timer_arm(env_of(a->kad), &a->timer, MU_MONO_NEVER);
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

/* --- candidates ------------------------------------------------------------------------------- */

static struct candidate *find_candidate(struct mu_kad_search *s, const struct mu_peer_id *id)
{
    for (size_t i = 0; i < s->count; i++) {
        if (mu_peer_id_eq(&s->candidates[i].id, id)) {
            return &s->candidates[i];
        }
    }
    return NULL;
}

static void add_candidate(struct mu_kad_search *s, const struct mu_peer_id *id)
{
    struct candidate c = {.id = *id};
    size_t at = s->count;

    if (mu_peer_id_eq(id, mu_peer_host_id(s->kad->host)) || mu_peer_id_eq(id, &s->target) ||
        find_candidate(s, id) != NULL) {
        return;
    }
    mu_sha256(c.key, mu_peer_id_span(id));
    while (at > 0 && mu_kad_nearer(s->key, c.key, s->candidates[at - 1].key)) {
        at--;
    }
    if (at == CANDIDATES_MAX) {
        return;
    }
    /* The farthest falls off the end; if it was being asked, its answer still counts. */
    s->count += s->count < CANDIDATES_MAX ? 1 : 0;
    memmove(&s->candidates[at + 1], &s->candidates[at],
            (s->count - at - 1) * sizeof(*s->candidates));
    s->candidates[at] = c;
}

/* The nearest that was not asked, if it is among the nearest of those that have not failed. */
static struct candidate *next_candidate(struct mu_kad_search *s)
{
    uint32_t alive = 0;

    for (size_t i = 0; i < s->count && alive < s->kad->config.nearest; i++) {
        if (s->candidates[i].state == NEW) {
            return &s->candidates[i];
        }
        alive += s->candidates[i].state != FAILED ? 1 : 0;
    }
    return NULL;
}

static bool is_asked(const struct mu_kad *kad, const struct mu_peer_id *peer)
{
    MU_LIST_FOREACH (it, &kad->searches) {
        MU_LIST_FOREACH (at, &MU_CONTAINER_OF(it, struct mu_kad_search, link)->asks) {
            if (mu_peer_id_eq(&MU_CONTAINER_OF(at, struct ask, link)->stream.peer, peer)) {
                return true;
            }
        }
    }
    return false;
}

/* --- asking ----------------------------------------------------------------------------------- */

static void end_search(struct mu_kad_search *s)
{
    struct mu_kad *kad = s->kad;

    MU_LIST_FOREACH_SAFE (it, tmp, &s->asks) {
        drop_ask(MU_CONTAINER_OF(it, struct ask, link));
    }
    s->over = true;
    mu_env_timer_arm(env_of(kad), &kad->soon, mu_env_now(env_of(kad)).mono);
}

static void begin_ask(struct mu_kad_search *s, struct candidate *c);

static void advance(struct mu_kad_search *s)
{
    size_t under_way = 0;

    MU_LIST_FOREACH (it, &s->asks) {
        (void)it;
        under_way++;
    }
    while (under_way < s->kad->config.parallel && s->asked < s->kad->config.asked_max) {
        struct candidate *c = next_candidate(s);

        if (c == NULL) {
            break;
        }
        begin_ask(s, c);
        under_way += c->state == ASKED ? 1 : 0;
    }
    if (under_way == 0) {
        end_search(s);
    }
}

static void ask_failed(struct ask *a)
{
    struct mu_kad_search *s = a->search;
    struct candidate *c = s == NULL ? NULL : find_candidate(s, &a->stream.peer);

    if (c != NULL) {
        c->state = FAILED;
    }
    if (s != NULL) {
        mu_kad_forget(a->kad, &a->stream.peer);
    }
    free_ask(a);
    if (s != NULL) {
        advance(s);
    }
}

/* What one of them has answered. True: the one that is sought is among them. Addresses of this host
 * are of use only from who is on it. */
static bool learn(struct mu_kad_search *s, const struct mu_kad_msg *msg, bool near)
{
    struct mu_span walk = msg->closer;
    struct mu_kad_peer peer;
    bool found = false;

    for (size_t n = 0; n < MU_KAD_PEERS_MAX && mu_kad_next_peer(&walk, &peer); n++) {
        struct mu_span addr;
        bool known = false;

        if (mu_peer_id_eq(&peer.id, mu_peer_host_id(s->kad->host))) {
            continue;
        }
        while (mu_kad_next_addr(&peer.addrs, &addr)) {
            if (near || !mu_multiaddr_is_local(addr)) {
                known = mu_peer_host_add_addr(s->kad->host, &peer.id, addr) == 0 || known;
            }
        }
        if (!known) {
            continue;
        }
        if (!s->for_self && mu_peer_id_eq(&peer.id, &s->target)) {
            found = true;
        }
        add_candidate(s, &peer.id);
    }
    return found;
}

static void ask_answered(struct ask *a, struct mu_span bytes)
{
    struct mu_kad_search *s = a->search;
    struct candidate *c = find_candidate(s, &a->stream.peer);
    struct mu_kad_msg msg;
    bool found;

    if (mu_kad_msg_decode(bytes, &msg) != 0 || msg.type != MU_KAD_FIND_NODE) {
        mu_host_stream_reset(&a->stream);
        ask_failed(a);
        return;
    }
    s->kad->stats.answered++;
    if (c != NULL) {
        c->state = ANSWERED;
    }
    mu_kad_remember(s->kad, &a->stream.peer);
    found = learn(s, &msg, mu_peer_host_near(s->kad->host, &a->stream.peer));
    /* The stream ends by itself. */
    a->search = NULL;
    mu_list_remove(&a->link);
    mu_list_push(&s->kad->asks, &a->link);
    mu_env_timer_arm(env_of(s->kad), &a->timer,
                     mu_mono_add_ms(mu_env_now(env_of(s->kad)).mono, FAREWELL_MS));
    mu_host_stream_end(&a->stream);
    if (found) {
        s->kad->stats.found++;
        end_search(s);
    } else {
        advance(s);
    }
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

static void ask_late(struct mu_timer *timer)
{
    struct ask *a = MU_CONTAINER_OF(timer, struct ask, timer);

    mu_host_stream_reset(&a->stream);
    ask_failed(a);
}

static const struct mu_host_stream_events ask_events = {
    .data = ask_data,
    .writable = ask_write,
    .ended = ask_ended,
};

static void begin_ask(struct mu_kad_search *s, struct candidate *c)
{
    struct mu_kad *kad = s->kad;
    struct ask *a = mu_calloc(1, sizeof(*a));

    c->state = FAILED;
    if (a == NULL) {
        return;
    }
    a->kad = kad;
    a->search = s;
    a->stream.on = &ask_events;
    mu_list_init(&a->link);
    mu_timer_init(&a->timer, ask_late);
    mu_buf_init(&a->in, MU_KAD_MSG_MAX + MU_UVARINT_LEN_MAX);
    mu_buf_init(&a->out, MU_PEER_ID_MAX + 32);
    if (mu_kad_msg_encode(&a->out, MU_KAD_FIND_NODE, mu_peer_id_span(&s->target)) != 0) {
        free_ask(a);
        return;
    }
    c->state = ASKED;
    s->asked++;
    kad->stats.asked++;
    mu_list_push(&s->asks, &a->link);
    mu_env_timer_arm(env_of(kad), &a->timer,
                     mu_mono_add_ms(mu_env_now(env_of(kad)).mono, kad->config.answer_ms));
    mu_host_stream_open(kad->host, &a->stream, &c->id, &kad_name, 1);
    ask_write(&a->stream);
}

/* --- searches --------------------------------------------------------------------------------- */

/* Those whom we can ask: whoever speaks the protocol, and can be reached. */
static void add_known(struct mu_kad_search *s)
{
    struct mu_kad *kad = s->kad;

    for (size_t i = 0; i < kad->count; i++) {
        const struct mu_peer_id *id = &kad->table[i].id;

        if (mu_peer_host_connected(kad->host, id) || mu_peer_host_addr(kad->host, id, 0).len != 0) {
            add_candidate(s, id);
        }
    }
}

void mu_kad_search(struct mu_kad *kad, const struct mu_peer_id *target)
{
    struct mu_kad_search *s;
    size_t count = 0;

    MU_LIST_FOREACH (it, &kad->searches) {
        (void)it;
        count++;
    }
    s = mu_calloc(1, sizeof(*s));
    if (s == NULL) {
        return; /* whoever waits for it has a deadline */
    }
    s->kad = kad;
    s->target = *target;
    s->for_self = mu_peer_id_eq(target, mu_peer_host_id(kad->host));
    mu_sha256(s->key, mu_peer_id_span(target));
    mu_list_init(&s->asks);
    mu_list_push(&kad->searches, &s->link);
    kad->stats.searches++;
    /* To ask somebody may itself mean to look for it: nobody is looked for while it is asked. */
    if (count < SEARCHES_MAX && !is_asked(kad, target)) {
        add_known(s);
        advance(s);
    } else {
        end_search(s);
    }
}

static void on_soon(struct mu_timer *timer)
{
    struct mu_kad *kad = MU_CONTAINER_OF(timer, struct mu_kad, soon);

    MU_LIST_FOREACH_SAFE (it, tmp, &kad->searches) {
        struct mu_kad_search *s = MU_CONTAINER_OF(it, struct mu_kad_search, link);
        struct mu_peer_id target = s->target;
        bool tell = !s->for_self;

        if (s->over) {
            mu_list_remove(&s->link);
            mu_free(s);
            if (tell) {
                mu_peer_host_found(kad->host, &target);
            }
        }
    }
}

void mu_kad_search_init(struct mu_kad *kad)
{
    mu_list_init(&kad->searches);
    mu_list_init(&kad->asks);
    mu_timer_init(&kad->soon, on_soon);
}

void mu_kad_search_fini(struct mu_kad *kad)
{
    MU_LIST_FOREACH_SAFE (it, tmp, &kad->searches) {
        struct mu_kad_search *s = MU_CONTAINER_OF(it, struct mu_kad_search, link);

        end_search(s);
        mu_list_remove(&s->link);
        if (!s->for_self) {
            mu_peer_host_found(kad->host, &s->target);
        }
        mu_free(s);
    }
    MU_LIST_FOREACH_SAFE (it, tmp, &kad->asks) {
        drop_ask(MU_CONTAINER_OF(it, struct ask, link));
    }
    mu_env_timer_arm(env_of(kad), &kad->soon, MU_MONO_NEVER);
}
