#include "service/peer/kad.h"

#include <string.h>

#include <muster/error.h>

#include "codec/bin/uvarint.h"
#include "core/alloc.h"
#include "service/peer/kad_internal.h"

#define SERVING_MAX      256 /* streams */
#define SERVING_PEER_MAX 8   /* streams of one peer */
#define OUTPUT_HIGH      (2 * (size_t)MU_KAD_MSG_MAX)
#define NEAREST_MAX      64

struct mu_kad_config mu_kad_config_defaults(void)
{
    return (struct mu_kad_config){
        .nearest = 20,
        .parallel = 10,
        .asked_max = 64,
        .answer_ms = 10000,
        .table_max = 1024,
        .refresh_ms = 600000,
    };
}

/* --- the table -------------------------------------------------------------------------------- */

static struct mu_kad_entry *find_entry(const struct mu_kad *kad, const struct mu_peer_id *peer)
{
    for (size_t i = 0; i < kad->count; i++) {
        if (mu_peer_id_eq(&kad->table[i].id, peer)) {
            return &kad->table[i];
        }
    }
    return NULL;
}

void mu_kad_remember(struct mu_kad *kad, const struct mu_peer_id *peer)
{
    struct mu_kad_entry entry = {.id = *peer};
    size_t at = kad->count;

    if (find_entry(kad, peer) != NULL) {
        return;
    }
    mu_sha256(entry.key, mu_peer_id_span(peer));
    if (at == kad->config.table_max) {
        /* The farthest peer makes room, unless that is the new one. */
        at = 0;
        for (size_t i = 1; i < kad->count; i++) {
            if (mu_kad_nearer(kad->key, kad->table[at].key, kad->table[i].key)) {
                at = i;
            }
        }
        if (!mu_kad_nearer(kad->key, entry.key, kad->table[at].key)) {
            return;
        }
    } else {
        kad->count++;
    }
    kad->table[at] = entry;
}

void mu_kad_forget(struct mu_kad *kad, const struct mu_peer_id *peer)
{
    struct mu_kad_entry *entry = find_entry(kad, peer);

    if (entry != NULL) {
        *entry = kad->table[--kad->count];
    }
}

/* --- serving ---------------------------------------------------------------------------------- */

struct serving {
    struct mu_host_stream stream;
    struct mu_list link;
    struct mu_kad *kad;
    struct mu_buf in;
    struct mu_buf out;
    bool eof;
};

static void free_serving(struct serving *v)
{
    mu_list_remove(&v->link);
    mu_buf_fini(&v->in);
    mu_buf_fini(&v->out);
    mu_free(v);
}

static void drop_serving(struct serving *v)
{
    mu_host_stream_reset(&v->stream);
    free_serving(v);
}

/* Finds the nearest peers whose addresses we know, nearest first. */
static size_t find_nearest(const struct mu_kad *kad, const uint8_t key[MU_SHA256_LEN],
                           const struct mu_peer_id *but, const struct mu_peer_id *nor, size_t max,
                           const struct mu_kad_entry **ret)
{
    size_t count = 0;

    for (size_t i = 0; i < kad->count; i++) {
        const struct mu_kad_entry *entry = &kad->table[i];
        size_t at = count;

        if (mu_peer_id_eq(&entry->id, but) || mu_peer_id_eq(&entry->id, nor) ||
            mu_peer_host_addr(kad->host, &entry->id, 0).len == 0) {
            continue;
        }
        while (at > 0 && mu_kad_nearer(key, entry->key, ret[at - 1]->key)) {
            at--;
        }
        if (at == max) {
            continue;
        }
        count += count < max ? 1 : 0;
        memmove(&ret[at + 1], &ret[at], (count - at - 1) * sizeof(*ret));
        ret[at] = entry;
    }
    return count;
}

static void put_peer(struct mu_kad *kad, struct mu_kad_answer *answer, const struct mu_peer_id *id)
{
    bool self = mu_peer_id_eq(id, mu_peer_host_id(kad->host));
    struct mu_span addr;

    mu_kad_answer_peer(answer, id);
    for (size_t i = 0;; i++) {
        addr = self ? mu_peer_host_announced(kad->host, i) : mu_peer_host_addr(kad->host, id, i);
        if (addr.len == 0) {
            break;
        }
        mu_kad_answer_addr(answer, addr);
    }
    mu_kad_answer_peer_done(answer, self || mu_peer_host_connected(kad->host, id)
                                        ? MU_KAD_CONNECTED
                                        : MU_KAD_NOT_CONNECTED);
}

/* Answers with the wanted peer if we know it, whether it serves or not, and with those that are
 * near it. */
static int answer_find(struct serving *v, struct mu_span key)
{
    struct mu_kad *kad = v->kad;
    const struct mu_kad_entry *nearest[NEAREST_MAX + 1];
    struct mu_peer_id target = {0};
    struct mu_kad_answer answer;
    uint8_t hash[MU_SHA256_LEN];
    size_t count;
    int err;

    mu_sha256(hash, key);
    mu_kad_answer_init(&answer);
    if (mu_peer_id_from_bytes(&target, key) == 0) {
        put_peer(kad, &answer, &target);
    }
    count = find_nearest(kad, hash, &v->stream.peer, &target, kad->config.nearest, nearest);
    for (size_t i = 0; i < count; i++) {
        put_peer(kad, &answer, &nearest[i]->id);
    }
    err = mu_kad_answer_seal(&answer, MU_KAD_FIND_NODE, &v->out);
    mu_kad_answer_fini(&answer);
    return err;
}

/* 1: a message was taken off and answered; 0: it is not whole yet. */
static int serve_one(struct serving *v)
{
    struct mu_span in = mu_buf_span(&v->in);
    struct mu_kad_msg msg;
    size_t head = 0;
    uint64_t len = 0;
    int err = mu_uvarint_get(in, &head, &len);

    if (err == MUSTER_EAGAIN) {
        return 0;
    }
    if (err != 0 || len > MU_KAD_MSG_MAX) {
        return MUSTER_EPROTO;
    }
    if (in.len - head < len) {
        return 0;
    }
    err = mu_kad_msg_decode(mu_span(in.data + head, (size_t)len), &msg);
    if (err == 0 && msg.type == MU_KAD_FIND_NODE) {
        err = answer_find(v, msg.key);
    } else if (err == 0 && msg.type == MU_KAD_PING) {
        err = mu_kad_msg_encode(&v->out, MU_KAD_PING, mu_span(NULL, 0));
    } else {
        err = MUSTER_EPROTO; /* values and providers are not kept here */
    }
    if (err != 0) {
        return err;
    }
    mu_buf_consume(&v->in, head + (size_t)len);
    v->kad->stats.served++;
    return 1;
}

/* Answers requests while the answers can be sent. */
static void serve(struct serving *v)
{
    int more = 1;

    while (more == 1) {
        size_t taken = v->out.len == 0 ? 0 : mu_host_stream_write(&v->stream, mu_buf_span(&v->out));

        mu_buf_consume(&v->out, taken);
        more = v->out.len < OUTPUT_HIGH / 2 ? serve_one(v) : 0;
    }
    if (more < 0) {
        drop_serving(v);
    } else if (v->eof && v->out.len == 0) {
        mu_host_stream_end(&v->stream);
    }
}

static void serving_data(struct mu_host_stream *s, struct mu_span bytes)
{
    struct serving *v = MU_CONTAINER_OF(s, struct serving, stream);

    if (mu_buf_append(&v->in, bytes) != 0) {
        drop_serving(v);
        return;
    }
    mu_host_stream_consumed(s, bytes.len);
    serve(v);
}

static void serving_eof(struct mu_host_stream *s)
{
    struct serving *v = MU_CONTAINER_OF(s, struct serving, stream);

    v->eof = true;
    serve(v);
}

static void serving_writable(struct mu_host_stream *s)
{
    serve(MU_CONTAINER_OF(s, struct serving, stream));
}

static void serving_ended(struct mu_host_stream *s, int status, const char *text)
{
    (void)status;
    (void)text;
    free_serving(MU_CONTAINER_OF(s, struct serving, stream));
}

static const struct mu_host_stream_events serving_events = {
    .data = serving_data,
    .eof = serving_eof,
    .writable = serving_writable,
    .ended = serving_ended,
};

static struct mu_host_stream *on_opened(struct mu_peer_handler *handler,
                                        const struct mu_peer_id *peer, struct mu_span name)
{
    struct mu_kad *kad = MU_CONTAINER_OF(handler, struct mu_kad, handler);
    struct serving *v;
    size_t all = 0;
    size_t same = 0;

    (void)name;
    MU_LIST_FOREACH (it, &kad->serving) {
        v = MU_CONTAINER_OF(it, struct serving, link);
        all++;
        same += mu_peer_id_eq(&v->stream.peer, peer) ? 1 : 0;
    }
    v = all < SERVING_MAX && same < SERVING_PEER_MAX ? mu_calloc(1, sizeof(*v)) : NULL;
    if (v == NULL) {
        return NULL;
    }
    v->kad = kad;
    v->stream.on = &serving_events;
    mu_buf_init(&v->in, MU_KAD_MSG_MAX + MU_UVARINT_LEN_MAX + OUTPUT_HIGH);
    mu_buf_init(&v->out, OUTPUT_HIGH);
    mu_list_push(&kad->serving, &v->link);
    return &v->stream;
}

/* --- life ------------------------------------------------------------------------------------- */

static void arm_refresh(struct mu_kad *kad)
{
    struct mu_env *env = mu_peer_host_env(kad->host);

    mu_env_timer_arm(env, &kad->timer,
                     mu_mono_add_ms(mu_env_now(env).mono, kad->config.refresh_ms));
}

void mu_kad_refresh(struct mu_kad *kad)
{
    mu_kad_find(kad, mu_peer_host_id(kad->host));
    arm_refresh(kad);
}

static void on_timer(struct mu_timer *timer)
{
    mu_kad_refresh(MU_CONTAINER_OF(timer, struct mu_kad, timer));
}

static void on_identified(struct mu_peer_watch *watch, const struct mu_peer_id *peer)
{
    struct mu_kad *kad = MU_CONTAINER_OF(watch, struct mu_kad, watch);
    bool first = kad->count == 0;

    if (!mu_peer_host_speaks(kad->host, peer, MU_KAD_NAME)) {
        mu_kad_forget(kad, peer);
        return;
    }
    mu_kad_remember(kad, peer);
    if (first) {
        mu_kad_refresh(kad);
    }
}

static void on_find(struct mu_peer_router *router, const struct mu_peer_id *peer)
{
    mu_kad_find(MU_CONTAINER_OF(router, struct mu_kad, router), peer);
}

int mu_kad_start(struct mu_peer_host *host, const struct mu_kad_config *config,
                 struct mu_kad **ret_kad)
{
    struct mu_kad *kad = mu_calloc(1, sizeof(*kad));
    int err;

    if (kad == NULL) {
        return MUSTER_ENOMEM;
    }
    kad->host = host;
    kad->config = *config;
    if (kad->config.nearest > NEAREST_MAX) {
        kad->config.nearest = NEAREST_MAX;
    }
    kad->handler = (struct mu_peer_handler){.name = MU_KAD_NAME, .opened = on_opened};
    kad->router.find = on_find;
    kad->watch.identified = on_identified;
    mu_sha256(kad->key, mu_peer_id_span(mu_peer_host_id(host)));
    mu_list_init(&kad->serving);
    mu_timer_init(&kad->timer, on_timer);
    mu_kad_find_init(kad);
    kad->table = mu_calloc(config->table_max, sizeof(*kad->table));
    err = kad->table == NULL ? MUSTER_ENOMEM
          : config->client   ? 0
                             : mu_peer_host_serve(host, &kad->handler);
    if (err != 0) {
        mu_free(kad->table);
        mu_free(kad);
        return err;
    }
    mu_peer_host_set_router(host, &kad->router);
    mu_peer_host_watch(host, &kad->watch);
    arm_refresh(kad);
    *ret_kad = kad;
    return 0;
}

void mu_kad_stop(struct mu_kad *kad)
{
    struct mu_env *env;

    if (kad == NULL) {
        return;
    }
    env = mu_peer_host_env(kad->host);
    if (!kad->config.client) {
        mu_peer_host_unserve(&kad->handler);
    }
    mu_peer_host_unwatch(&kad->watch);
    mu_kad_find_fini(kad);
    mu_peer_host_set_router(kad->host, NULL);
    MU_LIST_FOREACH_SAFE (it, tmp, &kad->serving) {
        drop_serving(MU_CONTAINER_OF(it, struct serving, link));
    }
    mu_env_timer_arm(env, &kad->timer, MU_MONO_NEVER);
    mu_free(kad->table);
    mu_free(kad);
}

void mu_kad_stats(const struct mu_kad *kad, struct mu_kad_stats *ret)
{
    *ret = kad->stats;
    ret->table = kad->count;
}
