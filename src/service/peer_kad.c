#include "service/peer_kad.h"

#include <muster/error.h>

#include "codec/kad_msg.h"
#include "core/alloc.h"
#include "crypto/hash.h"

#define CANDIDATES_MAX 64
#define CLOSER_MAX     20 /* peers of one answer */
#define ADDRS_MAX      8  /* of one of them */
#define IN_MAX         (MU_KAD_MESSAGE_MAX + 16)

struct candidate {
    struct mu_peer_id id;
    uint8_t distance[MU_SHA256_LEN];
    bool asked;
};

/* A peer that is being looked for. */
struct lookup {
    struct mu_list link;
    struct mu_peer_kad *kad;
    struct mu_peer_id target;
    uint8_t hash[MU_SHA256_LEN];
    struct candidate candidates[CANDIDATES_MAX]; /* nearest first */
    size_t count;
    uint32_t asked;
    uint32_t active;
    bool found;
    struct mu_timer timer;
};

struct ask {
    struct mu_list link;
    struct mu_peer_kad *kad;
    struct lookup *lookup; /* NULL: it is over */
    struct mu_host_stream stream;
    struct mu_timer timer;
    struct mu_buf in;
    struct mu_buf out;
};

/* A stream on which somebody asks us. */
struct served {
    struct mu_list link;
    struct mu_peer_kad *kad;
    struct mu_host_stream stream;
    struct mu_peer_id peer;
    struct mu_buf in;
    struct mu_buf out;
    bool ending;
};

struct mu_peer_kad {
    struct mu_peer_router router;
    struct mu_peer_host *host;
    struct mu_env *env;
    struct mu_peer_kad_config config;
    struct mu_peer_handler handler;
    struct mu_list lookups;
    struct mu_list asks;
    struct mu_list served;
    uint32_t lookup_count;
    uint32_t served_count;
};

static const struct mu_span kad_name = {(const uint8_t *)MU_KAD_NAME, sizeof(MU_KAD_NAME) - 1};

struct mu_peer_kad_config mu_peer_kad_config_defaults(void)
{
    return (struct mu_peer_kad_config){.parallel = 4,
                                       .asks_max = 24,
                                       .wait_ms = 2000,
                                       .find_ms = 10000,
                                       .finds_max = 256,
                                       .serves_max = 512};
}

static void distance_to(uint8_t ret[MU_SHA256_LEN], const uint8_t hash[MU_SHA256_LEN],
                        const struct mu_peer_id *peer)
{
    mu_sha256(ret, mu_peer_id_span(peer));
    for (int i = 0; i < MU_SHA256_LEN; i++) {
        ret[i] ^= hash[i];
    }
}

/* Puts a peer in its place; of too many the farthest is forgotten. */
static size_t add_candidate(struct candidate *list, size_t count, size_t max,
                            const struct mu_peer_id *id, const uint8_t distance[MU_SHA256_LEN])
{
    size_t at = 0;

    while (at < count && memcmp(list[at].distance, distance, MU_SHA256_LEN) < 0) {
        at++;
    }
    if (at == max || (at < count && mu_peer_id_eq(&list[at].id, id))) {
        return count;
    }
    count += count < max;
    memmove(list + at + 1, list + at, (count - at - 1) * sizeof(*list));
    list[at] = (struct candidate){.id = *id};
    memcpy(list[at].distance, distance, MU_SHA256_LEN);
    return count;
}

/* --- asking ----------------------------------------------------------------------------------- */

static void go_on(struct lookup *l);

static void free_ask(struct ask *a)
{
    mu_env_timer_arm(a->kad->env, &a->timer, MU_MONO_NEVER);
    mu_list_remove(&a->link);
    mu_buf_fini(&a->in);
    mu_buf_fini(&a->out);
    mu_free(a);
}

/* The ask is over, however; its lookup goes on. */
static void end_ask(struct ask *a)
{
    struct lookup *l = a->lookup;

    mu_host_stream_reset(&a->stream);
    free_ask(a);
    if (l != NULL) {
        l->active--;
        go_on(l);
    }
}

static void free_lookup(struct lookup *l)
{
    struct mu_peer_kad *k = l->kad;

    MU_LIST_FOREACH (it, &k->asks) {
        struct ask *a = MU_CONTAINER_OF(it, struct ask, link);

        a->lookup = a->lookup == l ? NULL : a->lookup;
    }
    mu_env_timer_arm(k->env, &l->timer, MU_MONO_NEVER);
    mu_list_remove(&l->link);
    k->lookup_count--;
    mu_free(l);
}

static void end_lookup(struct lookup *l)
{
    struct mu_peer_host *host = l->kad->host;
    struct mu_peer_id target = l->target;

    free_lookup(l);
    mu_peer_host_found(host, &target);
}

static void take_peer(struct lookup *l, const struct mu_kad_peer *peer)
{
    uint8_t distance[MU_SHA256_LEN];
    struct mu_span walk = peer->addrs;
    struct mu_peer_id id;
    struct mu_span addr;
    size_t count = 0;

    if (mu_peer_id_from_bytes(&id, peer->id) != 0 ||
        mu_peer_id_eq(&id, mu_peer_host_id(l->kad->host))) {
        return;
    }
    for (size_t i = 0; i < ADDRS_MAX && mu_kad_next_addr(&walk, &addr); i++) {
        count += mu_peer_host_add_addr(l->kad->host, &id, addr) == 0;
    }
    if (mu_peer_id_eq(&id, &l->target)) {
        l->found = l->found || count > 0;
    } else if (count > 0) {
        distance_to(distance, l->hash, &id);
        l->count = add_candidate(l->candidates, l->count, CANDIDATES_MAX, &id, distance);
    }
}

static void on_ask_data(struct mu_host_stream *s, struct mu_span bytes)
{
    struct ask *a = MU_CONTAINER_OF(s, struct ask, stream);
    struct mu_kad_message m;
    struct mu_kad_peer peer;
    size_t used;
    int got;

    mu_host_stream_consumed(s, bytes.len);
    got = mu_buf_append(&a->in, bytes);
    got = got != 0 ? got : mu_kad_decode(mu_buf_span(&a->in), &m, &used);
    if (got == 0) {
        return;
    }
    if (got == 1 && m.type == MU_KAD_FIND_NODE && a->lookup != NULL) {
        for (size_t i = 0; i <= CLOSER_MAX && mu_kad_next_peer(&m.peers, &peer); i++) {
            take_peer(a->lookup, &peer);
        }
    }
    end_ask(a);
}

static void on_ask_eof(struct mu_host_stream *s)
{
    end_ask(MU_CONTAINER_OF(s, struct ask, stream));
}

static void flush_ask(struct mu_host_stream *s)
{
    struct ask *a = MU_CONTAINER_OF(s, struct ask, stream);

    if (a->out.len != 0) {
        mu_buf_consume(&a->out, mu_host_stream_write(s, mu_buf_span(&a->out)));
    }
}

static void on_ask_ready(struct mu_host_stream *s, struct mu_span name)
{
    (void)name;
    flush_ask(s);
}

static void on_ask_ended(struct mu_host_stream *s, int status, const char *text)
{
    (void)status;
    (void)text;
    end_ask(MU_CONTAINER_OF(s, struct ask, stream));
}

static void on_ask_timer(struct mu_timer *timer)
{
    end_ask(MU_CONTAINER_OF(timer, struct ask, timer));
}

static const struct mu_host_stream_events ask_events = {
    .ready = on_ask_ready,
    .data = on_ask_data,
    .eof = on_ask_eof,
    .writable = flush_ask,
    .ended = on_ask_ended,
};

static int ask(struct lookup *l, const struct mu_peer_id *peer)
{
    struct mu_peer_kad *k = l->kad;
    struct ask *a = mu_calloc(1, sizeof(*a));

    if (a == NULL) {
        return MUSTER_ENOMEM;
    }
    a->kad = k;
    a->lookup = l;
    a->stream.on = &ask_events;
    mu_timer_init(&a->timer, on_ask_timer);
    mu_list_init(&a->link);
    mu_list_push(&k->asks, &a->link);
    mu_buf_init(&a->in, IN_MAX);
    mu_buf_init(&a->out, MU_KAD_MESSAGE_MAX);
    if (mu_kad_request_encode(&a->out, MU_KAD_FIND_NODE, mu_peer_id_span(&l->target)) != 0) {
        free_ask(a);
        return MUSTER_ENOMEM;
    }
    mu_env_timer_arm(k->env, &a->timer, mu_mono_add_ms(mu_env_now(k->env).mono, k->config.wait_ms));
    mu_host_stream_open(k->host, &a->stream, peer, &kad_name, 1);
    flush_ask(&a->stream);
    l->active++;
    return 0;
}

static void go_on(struct lookup *l)
{
    struct mu_peer_kad *k = l->kad;

    for (size_t i = 0; i < l->count && !l->found && l->active < k->config.parallel &&
                       l->asked < k->config.asks_max;
         i++) {
        if (!l->candidates[i].asked) {
            l->candidates[i].asked = true;
            l->asked++;
            (void)ask(l, &l->candidates[i].id);
        }
    }
    if (l->found || l->active == 0) {
        end_lookup(l);
    }
}

static void on_lookup_timer(struct mu_timer *timer)
{
    struct lookup *l = MU_CONTAINER_OF(timer, struct lookup, timer);

    if (l->asked == 0) {
        mu_env_timer_arm(l->kad->env, timer,
                         mu_mono_add_ms(mu_env_now(l->kad->env).mono, l->kad->config.find_ms));
        go_on(l);
    } else {
        end_lookup(l);
    }
}

/* Begins on the next turn: the host wants nothing to happen within its own call. */
static void find(struct mu_peer_router *router, const struct mu_peer_id *peer)
{
    struct mu_peer_kad *k = MU_CONTAINER_OF(router, struct mu_peer_kad, router);
    const struct mu_peer_id *other = NULL;
    struct lookup *l = k->lookup_count < k->config.finds_max ? mu_calloc(1, sizeof(*l)) : NULL;

    if (l == NULL) {
        return; /* the host gives up by itself in time */
    }
    l->kad = k;
    l->target = *peer;
    mu_sha256(l->hash, mu_peer_id_span(peer));
    mu_timer_init(&l->timer, on_lookup_timer);
    mu_list_init(&l->link);
    mu_list_push(&k->lookups, &l->link);
    k->lookup_count++;
    while ((other = mu_peer_host_next_peer(k->host, other)) != NULL) {
        uint8_t distance[MU_SHA256_LEN];

        distance_to(distance, l->hash, other);
        l->count = add_candidate(l->candidates, l->count, CANDIDATES_MAX, other, distance);
    }
    mu_env_timer_arm(k->env, &l->timer, mu_env_now(k->env).mono);
}

/* --- answering -------------------------------------------------------------------------------- */

static void free_served(struct served *s)
{
    s->kad->served_count--;
    mu_list_remove(&s->link);
    mu_buf_fini(&s->in);
    mu_buf_fini(&s->out);
    mu_free(s);
}

static void drop_served(struct served *s)
{
    mu_host_stream_reset(&s->stream);
    free_served(s);
}

static int put_peer(struct mu_peer_kad *k, const struct mu_peer_id *id, struct mu_buf *body)
{
    bool self = mu_peer_id_eq(id, mu_peer_host_id(k->host));
    struct mu_span addrs[ADDRS_MAX];
    size_t count = 0;

    while (count < ADDRS_MAX) {
        addrs[count] =
            self ? mu_peer_host_announced(k->host, count) : mu_peer_host_addr(k->host, id, count);
        if (addrs[count].len == 0) {
            break;
        }
        count++;
    }
    return count == 0 ? 0
                      : mu_kad_peer_encode(body, mu_peer_id_span(id), addrs, count,
                                           mu_peer_host_connected(k->host, id));
}

/* Who is asked for, if we know where that is, and those near to it that we are connected to. */
static int answer_find(struct served *s, struct mu_span key, struct mu_buf *body)
{
    struct mu_peer_kad *k = s->kad;
    struct candidate near[CLOSER_MAX];
    const struct mu_peer_id *other = NULL;
    uint8_t hash[MU_SHA256_LEN];
    struct mu_peer_id target;
    size_t count = 0;
    bool known = mu_peer_id_from_bytes(&target, key) == 0;
    int err = known ? put_peer(k, &target, body) : 0;

    mu_sha256(hash, key);
    while ((other = mu_peer_host_next_peer(k->host, other)) != NULL) {
        uint8_t distance[MU_SHA256_LEN];

        if (mu_peer_id_eq(other, &s->peer) || (known && mu_peer_id_eq(other, &target))) {
            continue;
        }
        distance_to(distance, hash, other);
        count = add_candidate(near, count, CLOSER_MAX, other, distance);
    }
    for (size_t i = 0; i < count && err == 0; i++) {
        err = put_peer(k, &near[i].id, body);
    }
    return err;
}

static int answer(struct served *s, const struct mu_kad_message *m)
{
    struct mu_buf body;
    int err;

    if (m->type == MU_KAD_PING) {
        return mu_kad_request_encode(&s->out, MU_KAD_PING, m->key);
    }
    if (m->type != MU_KAD_FIND_NODE) {
        return MUSTER_ENOTSUP;
    }
    mu_buf_init(&body, MU_KAD_MESSAGE_MAX);
    err = answer_find(s, m->key, &body);
    err = err != 0 ? err : mu_kad_reply_encode(&s->out, MU_KAD_FIND_NODE, mu_buf_span(&body));
    mu_buf_fini(&body);
    return err;
}

static void flush_served(struct mu_host_stream *stream)
{
    struct served *s = MU_CONTAINER_OF(stream, struct served, stream);

    if (s->out.len != 0) {
        mu_buf_consume(&s->out, mu_host_stream_write(stream, mu_buf_span(&s->out)));
    }
    if (s->out.len == 0 && s->ending) {
        mu_host_stream_end(stream);
    }
}

static void on_served_data(struct mu_host_stream *stream, struct mu_span bytes)
{
    struct served *s = MU_CONTAINER_OF(stream, struct served, stream);
    struct mu_kad_message m;
    size_t used;
    int got = mu_buf_append(&s->in, bytes);

    mu_host_stream_consumed(stream, bytes.len);
    while (got == 0 && (got = mu_kad_decode(mu_buf_span(&s->in), &m, &used)) == 1) {
        got = answer(s, &m);
        mu_buf_consume(&s->in, used);
        if (s->in.len == 0) {
            break;
        }
    }
    if (got < 0) {
        drop_served(s);
        return;
    }
    flush_served(stream);
}

static void on_served_eof(struct mu_host_stream *stream)
{
    struct served *s = MU_CONTAINER_OF(stream, struct served, stream);

    s->ending = true;
    flush_served(stream);
}

static void on_served_ended(struct mu_host_stream *stream, int status, const char *text)
{
    (void)status;
    (void)text;
    free_served(MU_CONTAINER_OF(stream, struct served, stream));
}

static const struct mu_host_stream_events served_events = {
    .data = on_served_data,
    .eof = on_served_eof,
    .writable = flush_served,
    .ended = on_served_ended,
};

static struct mu_host_stream *on_opened(struct mu_peer_handler *handler,
                                        const struct mu_peer_id *peer, struct mu_span name)
{
    struct mu_peer_kad *k = MU_CONTAINER_OF(handler, struct mu_peer_kad, handler);
    struct served *s = k->served_count < k->config.serves_max ? mu_calloc(1, sizeof(*s)) : NULL;

    (void)name;
    if (s == NULL) {
        return NULL;
    }
    s->kad = k;
    s->peer = *peer;
    s->stream.on = &served_events;
    mu_buf_init(&s->in, IN_MAX);
    mu_buf_init(&s->out, 4 * IN_MAX);
    mu_list_init(&s->link);
    mu_list_push(&k->served, &s->link);
    k->served_count++;
    return &s->stream;
}

/* --- life ------------------------------------------------------------------------------------- */

int mu_peer_kad_new(struct mu_peer_host *host, const struct mu_peer_kad_config *config,
                    struct mu_peer_kad **ret)
{
    struct mu_peer_kad *k = mu_calloc(1, sizeof(*k));
    int err = 0;

    if (k == NULL) {
        return MUSTER_ENOMEM;
    }
    k->router.find = find;
    k->host = host;
    k->env = mu_peer_host_env(host);
    k->config = config != NULL ? *config : mu_peer_kad_config_defaults();
    k->handler.name = MU_KAD_NAME;
    k->handler.opened = on_opened;
    mu_list_init(&k->lookups);
    mu_list_init(&k->asks);
    mu_list_init(&k->served);
    if (!k->config.client) {
        err = mu_peer_host_serve(host, &k->handler);
    }
    if (err != 0) {
        mu_free(k);
        return err;
    }
    mu_peer_host_set_router(host, &k->router);
    *ret = k;
    return 0;
}

void mu_peer_kad_free(struct mu_peer_kad *k)
{
    if (k == NULL) {
        return;
    }
    mu_peer_host_set_router(k->host, NULL);
    if (!k->config.client) {
        mu_peer_host_unserve(&k->handler);
    }
    while (!mu_list_empty(&k->lookups)) {
        free_lookup(MU_CONTAINER_OF(k->lookups.next, struct lookup, link));
    }
    while (!mu_list_empty(&k->asks)) {
        struct ask *a = MU_CONTAINER_OF(k->asks.next, struct ask, link);

        mu_host_stream_reset(&a->stream);
        free_ask(a);
    }
    while (!mu_list_empty(&k->served)) {
        drop_served(MU_CONTAINER_OF(k->served.next, struct served, link));
    }
    mu_free(k);
}
