#include "proto/dht/node_internal.h"

#include <muster/error.h>

#include "codec/bin/msgpack.h"
#include "core/assert.h"
#include "crypto/hash.h"

#define KEY_TEXT_MAX  (64u << 10)
#define BLACKLIST_MAX 4096
#define FAILURES_MAX  6 /* the backoff is at most 64 times the first one */
#define SPREAD_MAX    (512u << 10)
#define SPREAD_ITEMS  64
#define HORIZON_S     (30.0 * 86400)

const char *mu_dht_method_name(enum mu_dht_method method)
{
    switch (method) {
    case MU_DHT_PING:
        return MU_DHT_PING_METHOD;
    case MU_DHT_STORE:
        return MU_DHT_STORE_METHOD;
    case MU_DHT_FIND:
        break;
    }
    return MU_DHT_FIND_METHOD;
}

struct mu_dht_id mu_dht_key(struct mu_span encoded_or_raw)
{
    struct mu_dht_id id;

    mu_sha1(id.bytes, encoded_or_raw);
    return id;
}

int mu_dht_key_text(struct mu_span text, struct mu_dht_id *ret)
{
    struct mu_mp_out mp;
    struct mu_buf buf;

    mu_buf_init(&buf, KEY_TEXT_MAX);
    mp = mu_mp_out(&buf);
    mu_mp_put_str(&mp, text);
    if (mp.err == 0) {
        *ret = mu_dht_key(mu_buf_span(&buf));
    }
    mu_buf_fini(&buf);
    return mp.err;
}

/* --- life ------------------------------------------------------------------------------------- */

struct mu_dht_config mu_dht_config_defaults(void)
{
    return (struct mu_dht_config){
        .bucket_size = 20,
        .depth_modulo = 5,
        .replicas = 5,
        .workers = 4,
        .search_calls_max = 128,
        .wait_ms = 3000,
        .op_ms = 60000,
        .refresh_before_ms = 5000,
        .blacklist_ms = 5000,
        .upkeep_ms = 60000,
        .rejoin_ms = 5000,
        .clock_ms = 3000,
        .calls_max = 1024,
        .requests_max = 64,
        .owned_max = 1024,
        .message_len_max = 4u << 20,
        .storage = {.horizon_s = HORIZON_S},
        .cache = {.horizon_s = HORIZON_S},
    };
}

static void init_storages(struct mu_dht *d)
{
    d->config.storage.seed = d->config.seed;
    d->config.cache.seed = d->config.seed;
    d->config.cache.cache = true;
    mu_dht_storage_init(&d->main, &d->config.storage);
    mu_dht_storage_init(&d->cache, &d->config.cache);
    mu_dht_storage_init(&d->own, &(struct mu_dht_storage_config){.seed = d->config.seed});
}

int mu_dht_new(const struct mu_dht_config *config, struct mu_dht **ret)
{
    struct mu_dht_table_config table = {
        .self = config->self.node,
        .bucket_size = config->bucket_size,
        .depth_modulo = config->depth_modulo,
        .seed = config->seed,
    };
    struct mu_dht *d = mu_calloc(1, sizeof(*d));

    if (d == NULL) {
        return MUSTER_ENOMEM;
    }
    d->config = *config;
    if (mu_dht_table_init(&d->table, &table) != 0) {
        mu_free(d);
        return MUSTER_ENOMEM;
    }
    init_storages(d);
    mu_prng_seed(&d->prng, config->seed);
    mu_list_init(&d->ops);
    mu_list_init(&d->ended);
    mu_list_init(&d->to_send);
    mu_list_init(&d->under_way);
    mu_list_init(&d->replies);
    mu_list_init(&d->blacklist_order);
    mu_map_init(&d->refreshes, config->seed);
    mu_heap_init(&d->refresh_due);
    mu_map_init(&d->blacklist, config->seed);
    mu_buf_init(&d->lent, SIZE_MAX);
    d->upkeep_at = MU_MONO_NEVER;
    d->rejoin_at = MU_MONO_NEVER;
    *ret = d;
    return 0;
}

static void free_call(struct mu_dht *d, struct dht_call *c)
{
    d->back_count -= c->kind == DHT_CALL_BACK;
    d->call_count--;
    mu_list_remove(&c->link);
    mu_buf_fini(&c->message);
    mu_free(c);
}

static void free_lists(struct mu_dht *d)
{
    struct mu_list *const calls[] = {&d->to_send, &d->under_way};
    struct mu_list *const ops[] = {&d->ops, &d->ended};
    struct mu_list *node;

    for (size_t i = 0; i < 2; i++) {
        while (!mu_list_empty(calls[i])) {
            free_call(d, MU_CONTAINER_OF(calls[i]->next, struct dht_call, link));
        }
        while ((node = mu_list_pop(ops[i])) != NULL) {
            mu_dht_op_delete(MU_CONTAINER_OF(node, struct dht_op, link));
        }
    }
    while ((node = mu_list_pop(&d->replies)) != NULL) {
        struct dht_reply *r = MU_CONTAINER_OF(node, struct dht_reply, link);

        mu_buf_fini(&r->message);
        mu_free(r);
    }
    while ((node = mu_list_pop(&d->blacklist_order)) != NULL) {
        mu_free(MU_CONTAINER_OF(node, struct dht_blacklisted, link));
    }
}

void mu_dht_free(struct mu_dht *d)
{
    struct mu_heap_node *node;

    if (d == NULL) {
        return;
    }
    free_lists(d);
    while ((node = mu_heap_min(&d->refresh_due)) != NULL) {
        mu_heap_remove(&d->refresh_due, node);
        mu_free(MU_CONTAINER_OF(node, struct dht_refresh, due));
    }
    mu_map_fini(&d->refreshes);
    mu_map_fini(&d->blacklist);
    mu_dht_storage_fini(&d->main);
    mu_dht_storage_fini(&d->cache);
    mu_dht_storage_fini(&d->own);
    mu_dht_table_fini(&d->table);
    mu_buf_fini(&d->lent);
    mu_free(d->joined);
    mu_free(d);
}

void mu_dht_enter(struct mu_dht *d, struct mu_now now)
{
    d->now = now;
    mu_buf_fini(&d->lent);
}

/* --- calls ------------------------------------------------------------------------------------ */

struct mu_dht_head mu_dht_own_head(const struct mu_dht *d)
{
    return (struct mu_dht_head){.has_node = !d->config.client, .node = d->config.self.node};
}

int mu_dht_call_new(struct mu_dht *d, enum dht_call_kind kind, enum mu_dht_method method,
                    const struct mu_dht_neighbour *who, bool has_node, struct dht_call **ret)
{
    struct dht_call *c;

    if (d->call_count >= d->config.calls_max) {
        return MUSTER_ELIMIT;
    }
    c = mu_calloc(1, sizeof(*c));
    if (c == NULL) {
        return MUSTER_ENOMEM;
    }
    c->number = ++d->numbers;
    c->kind = kind;
    c->method = method;
    c->who = *who;
    c->has_node = has_node;
    c->sent = mu_dht_time(d);
    mu_list_init(&c->link);
    mu_buf_init(&c->message, d->config.message_len_max);
    d->call_count++;
    d->back_count += kind == DHT_CALL_BACK;
    *ret = c;
    return 0;
}

static int sign_request(struct mu_dht *d, struct dht_call *c)
{
    struct mu_buf made;
    int err;

    if (d->config.auth == NULL) {
        return 0;
    }
    mu_put_u64(c->nonce, mu_prng_u64(&d->prng));
    mu_buf_init(&made, d->config.message_len_max);
    err = mu_dht_auth_sign_request(d->config.auth, mu_dht_time(d), c->nonce,
                                   mu_buf_span(&c->message), &made);
    if (err != 0) {
        mu_buf_fini(&made);
        return err;
    }
    mu_buf_fini(&c->message);
    c->message = made;
    return 0;
}

int mu_dht_call_ready(struct mu_dht *d, struct dht_call *c, int err)
{
    err = err != 0 ? err : sign_request(d, c);
    if (err != 0) {
        free_call(d, c);
        return err;
    }
    mu_list_push(&d->to_send, &c->link);
    d->stats.calls++;
    return 0;
}

int mu_dht_ping_node(struct mu_dht *d, enum dht_call_kind kind, const struct mu_dht_neighbour *who,
                     bool has_node, bool validate, struct dht_call **ret)
{
    struct mu_dht_ping ping = {.head = mu_dht_own_head(d), .validate = validate};
    struct dht_call *c;
    int err = mu_dht_call_new(d, kind, MU_DHT_PING, who, has_node, &c);

    if (err != 0) {
        return err;
    }
    err = mu_dht_call_ready(d, c, mu_dht_ping_encode(&c->message, &ping));
    if (err == 0 && ret != NULL) {
        *ret = c;
    }
    return err;
}

void mu_dht_spread(struct mu_dht *d, const struct mu_dht_neighbour *who,
                   const struct mu_dht_item *items, size_t count)
{
    struct mu_dht_head head = mu_dht_own_head(d);
    struct dht_call *c;

    if (mu_dht_call_new(d, DHT_CALL_SPREAD, MU_DHT_STORE, who, true, &c) == 0) {
        (void)mu_dht_call_ready(d, c, mu_dht_store_encode(&c->message, &head, items, count));
    }
}

/* --- other nodes ------------------------------------------------------------------------------ */

/* Returns whether a new node should keep this record, and we should send it. */
static bool is_for(struct mu_dht *d, const struct mu_dht_id *key, const struct mu_dht_id *node)
{
    struct mu_dht_neighbour near[16];
    size_t max = d->config.replicas < 16 ? d->config.replicas : 16;
    size_t count = mu_dht_table_nearest(&d->table, key, max, node, near);

    return count == 0 || (mu_dht_nearer(key, node, &near[count - 1].node) < 0 &&
                          mu_dht_nearer(key, &d->config.self.node, &near[0].node) < 0);
}

/*
 * A new node gets the records that it should keep from the nodes nearest to it, so that a search at
 * the nearest nodes finds them.
 */
static void hand_over(struct mu_dht *d, const struct mu_dht_neighbour *who)
{
    struct mu_dht_item items[SPREAD_ITEMS];
    struct mu_buf bufs[SPREAD_ITEMS];
    const struct mu_dht_record *r = NULL;
    size_t bytes = 0;
    size_t count = 0;

    mu_dht_storage_expire(&d->main, mu_dht_time(d));
    do {
        r = mu_dht_storage_next(&d->main, r);
        if (r != NULL && is_for(d, &r->key, &who->node)) {
            bool regular = r->type == MU_DHT_FOUND_REGULAR;

            mu_buf_init(&bufs[count], d->config.message_len_max);
            if (mu_dht_record_encode(r, &bufs[count]) == 0) {
                items[count] = (struct mu_dht_item){
                    .key = r->key,
                    .tag = regular ? MU_DHT_TAG_REGULAR : (struct mu_span){0},
                    .value = mu_buf_span(&bufs[count]),
                    .expiration = r->expiration,
                };
                bytes += items[count++].value.len;
            } else {
                mu_buf_fini(&bufs[count]);
            }
        }
        if (count == SPREAD_ITEMS || bytes > SPREAD_MAX || (r == NULL && count > 0)) {
            mu_dht_spread(d, who, items, count);
            for (; count > 0; count--) {
                mu_buf_fini(&bufs[count - 1]);
            }
            bytes = 0;
        }
    } while (r != NULL);
}

void mu_dht_heard(struct mu_dht *d, const struct mu_dht_id *node, const struct mu_peer_id *peer)
{
    struct mu_dht_neighbour who = {*node, *peer};
    struct mu_dht_neighbour silent;
    bool known = mu_dht_table_knows(&d->table, node);
    int err;

    if (mu_peer_id_eq(peer, &d->config.self.peer)) {
        return;
    }
    err = mu_dht_table_heard(&d->table, node, peer, &silent);
    if (err >= 0 && !known) {
        hand_over(d, &who);
    }
    if (err == 1) {
        (void)mu_dht_ping_node(d, DHT_CALL_EVICT, &silent, true, false, NULL);
    }
}

void mu_dht_lost(struct mu_dht *d, const struct mu_dht_neighbour *who, bool has_node)
{
    const struct mu_dht_id *node = mu_dht_table_node_of(&d->table, &who->peer);

    /* What another peer says of an id must not cost the id's owner its place. */
    if (node != NULL && (!has_node || mu_dht_id_eq(node, &who->node))) {
        struct mu_dht_id copy = *node;

        mu_dht_table_lost(&d->table, &copy);
    }
}

static struct dht_blacklisted *find_blacklisted(const struct mu_dht *d,
                                                const struct mu_peer_id *peer)
{
    struct mu_map_node *n = mu_map_find(&d->blacklist, mu_peer_id_span(peer));

    return n == NULL ? NULL : MU_CONTAINER_OF(n, struct dht_blacklisted, by_peer);
}

bool mu_dht_is_blacklisted(const struct mu_dht *d, const struct mu_peer_id *peer)
{
    const struct dht_blacklisted *b = find_blacklisted(d, peer);

    return b != NULL && mu_mono_before(d->now.mono, b->until);
}

static void forgive(struct mu_dht *d, struct dht_blacklisted *b)
{
    mu_map_remove(&d->blacklist, &b->by_peer);
    mu_list_remove(&b->link);
    mu_free(b);
}

static void blacklist(struct mu_dht *d, const struct mu_peer_id *peer)
{
    struct dht_blacklisted *b = find_blacklisted(d, peer);

    if (b == NULL) {
        if (d->blacklist.count >= BLACKLIST_MAX) {
            forgive(d, MU_CONTAINER_OF(d->blacklist_order.next, struct dht_blacklisted, link));
        }
        b = mu_calloc(1, sizeof(*b));
        if (b == NULL) {
            return;
        }
        b->peer = *peer;
        mu_list_init(&b->link);
        if (mu_map_insert(&d->blacklist, &b->by_peer, mu_peer_id_span(&b->peer)) != 0) {
            mu_free(b);
            return;
        }
        mu_list_push(&d->blacklist_order, &b->link);
    }
    b->until = mu_mono_add_ms(d->now.mono, (uint64_t)d->config.blacklist_ms << b->failures);
    b->failures += b->failures < FAILURES_MAX;
}

/* The node has answered another call: it may be asked again, but its failures still count. */
static void give_another_chance(struct mu_dht *d, const struct mu_peer_id *peer)
{
    struct dht_blacklisted *b = find_blacklisted(d, peer);

    if (b != NULL) {
        b->until = d->now.mono;
    }
}

/* --- answers ---------------------------------------------------------------------------------- */

static void answer_find(struct mu_dht *d, struct dht_call *c, bool ok, struct mu_span message)
{
    struct mu_dht_find_reply reply = {0};
    struct mu_dht_found found;
    struct mu_dht_neighbour near;

    ok = ok && mu_dht_find_reply_decode(message, &reply) == 0;
    if (ok) {
        struct dht_blacklisted *b = find_blacklisted(d, &c->who.peer);

        if (b != NULL) {
            forgive(d, b);
        }
    } else {
        blacklist(d, &c->who.peer);
    }
    for (size_t i = 0; ok && c->op != NULL && i < c->search.count; i++) {
        uint32_t query = c->search.queries[i];
        size_t left = 4 * d->config.bucket_size; /* no node has more to say about a key */

        if (!mu_dht_find_reply_next(&reply, &found)) {
            break;
        }
        if (c->op->base.type == MU_DHT_OP_GET && found.type != MU_DHT_NOT_FOUND) {
            mu_dht_get_answered(d, c->op, query, &c->who.peer, &found);
        }
        while (left-- > 0 && mu_dht_found_next(&found, &near)) {
            (void)mu_dht_search_learn(&c->op->search, &c->search, query, &near);
        }
    }
    if (c->op != NULL) {
        mu_dht_search_answered(&c->op->search, c->search.number, ok);
    }
    if (!ok) {
        mu_dht_lost(d, &c->who, true);
    } else if (reply.head.has_node) {
        mu_dht_heard(d, &reply.head.node, &c->who.peer);
    } else {
        mu_dht_heard(d, &c->who.node, &c->who.peer);
    }
}

static void answer_store(struct mu_dht *d, struct dht_call *c, bool ok, struct mu_span message)
{
    struct mu_dht_store_reply reply = {0};

    ok = ok && mu_dht_store_reply_decode(message, &reply) == 0;
    if (!ok) {
        mu_dht_lost(d, &c->who, c->has_node);
    } else {
        give_another_chance(d, &c->who.peer);
    }
    if (ok && reply.head.has_node) {
        mu_dht_heard(d, &reply.head.node, &c->who.peer);
    }
    if (c->op != NULL && c->kind == DHT_CALL_STORE) {
        mu_dht_store_answered(d, c->op, c->key, ok, &reply);
    }
}

static void answer_ping(struct mu_dht *d, struct dht_call *c, bool ok, struct mu_span message)
{
    struct mu_dht_ping_reply reply = {0};

    ok = ok && mu_dht_ping_reply_decode(message, &reply) == 0;
    if (ok) {
        give_another_chance(d, &c->who.peer);
    }
    if (c->kind == DHT_CALL_BACK) {
        mu_dht_ping_answered_back(
            d, c, ok && reply.head.has_node && mu_dht_id_eq(&reply.head.node, &c->who.node));
    } else if (!ok) {
        mu_dht_lost(d, &c->who, c->has_node);
    } else if (reply.head.has_node) {
        mu_dht_heard(d, &reply.head.node, &c->who.peer);
    }
    if (c->kind == DHT_CALL_JOIN && c->op != NULL) {
        mu_dht_join_answered(d, c->op, c, ok ? &reply : NULL);
    }
}

void mu_dht_answer(struct mu_dht *d, struct mu_now now, uint64_t number, int status,
                   struct mu_span message)
{
    struct dht_call *c = NULL;
    bool ok = status >= 0;

    mu_dht_enter(d, now);
    MU_LIST_FOREACH (it, &d->under_way) {
        c = MU_CONTAINER_OF(it, struct dht_call, link);
        if (c->number == number) {
            break;
        }
    }
    if (c == NULL || c->number != number) {
        return;
    }
    if (ok && d->config.auth != NULL &&
        mu_dht_auth_check_reply(d->config.auth, mu_dht_time(d), c->nonce, message) != 0) {
        d->stats.denied++;
        ok = false;
    }
    switch (c->method) {
    case MU_DHT_PING:
        answer_ping(d, c, ok, message);
        break;
    case MU_DHT_STORE:
        answer_store(d, c, ok, message);
        break;
    case MU_DHT_FIND:
        answer_find(d, c, ok, message);
        break;
    }
    d->stats.calls_failed += !ok;
    free_call(d, c);
    mu_dht_pump(d);
}

/* --- out -------------------------------------------------------------------------------------- */

int mu_dht_reply_new(struct mu_dht *d, uint64_t token, int status, struct mu_buf *message)
{
    struct dht_reply *r = mu_calloc(1, sizeof(*r));

    if (r == NULL) {
        mu_buf_fini(message);
        return MUSTER_ENOMEM;
    }
    r->token = token;
    r->status = status;
    r->message = *message;
    mu_list_init(&r->link);
    mu_list_push(&d->replies, &r->link);
    return 0;
}

static void emit_call(struct mu_dht *d, struct mu_dht_event *ret)
{
    struct dht_call *c = MU_CONTAINER_OF(mu_list_pop(&d->to_send), struct dht_call, link);

    mu_list_push(&d->under_way, &c->link);
    d->lent = c->message;
    mu_buf_init(&c->message, 0);
    *ret = (struct mu_dht_event){
        .type = MU_DHT_EVENT_CALL,
        .number = c->number,
        .method = c->method,
        .peer = c->who.peer,
        .timeout_ms = d->config.wait_ms,
        .message = mu_buf_span(&d->lent),
    };
}

bool mu_dht_next_event(struct mu_dht *d, struct mu_dht_event *ret)
{
    struct mu_list *node;

    mu_buf_fini(&d->lent);
    if (!mu_list_empty(&d->to_send)) {
        emit_call(d, ret);
        return true;
    }
    node = mu_list_pop(&d->replies);
    if (node != NULL) {
        struct dht_reply *r = MU_CONTAINER_OF(node, struct dht_reply, link);

        d->lent = r->message;
        *ret = (struct mu_dht_event){
            .type = MU_DHT_EVENT_REPLY,
            .number = r->token,
            .status = r->status,
            .message = mu_buf_span(&d->lent),
        };
        mu_free(r);
        return true;
    }
    node = mu_list_pop(&d->ended);
    if (node != NULL) {
        struct dht_op *op = MU_CONTAINER_OF(node, struct dht_op, link);

        if (op->base.type == MU_DHT_OP_GET) {
            mu_dht_get_settle(d, op);
        }
        *ret = (struct mu_dht_event){.type = MU_DHT_EVENT_ENDED, .op = &op->base};
        return true;
    }
    return false;
}

void mu_dht_count_refusal(struct mu_dht *d, int err)
{
    uint64_t *const counters[] = {
        &d->stats.refused_expired, &d->stats.refused_future,  &d->stats.refused_old,
        &d->stats.refused_owner,   &d->stats.refused_subkeys, &d->stats.refused_value,
        &d->stats.refused_quota,
    };
    int index = MUSTER_EDHT_EXPIRED - err;

    if (err == MUSTER_EFULL || err == MUSTER_ELIMIT) {
        d->stats.refused_full++;
    } else if (index >= 0 && (size_t)index < sizeof(counters) / sizeof(counters[0])) {
        ++*counters[index];
    }
}

void mu_dht_stats(const struct mu_dht *d, struct mu_dht_stats *ret)
{
    *ret = d->stats;
    ret->nodes = d->table.count;
    ret->records = d->main.by_key.count;
    ret->cached = d->cache.by_key.count;
    ret->bytes = d->main.bytes + d->cache.bytes + d->own.bytes;
}

struct mu_dht_storage *mu_dht_main_storage(struct mu_dht *d)
{
    return &d->main;
}

const struct mu_dht_table *mu_dht_routing(const struct mu_dht *d)
{
    return &d->table;
}

/* --- time ------------------------------------------------------------------------------------- */

mu_mono_t mu_dht_deadline(const struct mu_dht *d)
{
    mu_mono_t at = mu_mono_min(d->upkeep_at, d->rejoin_at);

    at = mu_mono_min(at, mu_heap_deadline(&d->refresh_due));
    MU_LIST_FOREACH (it, &d->ops) {
        at = mu_mono_min(at, MU_CONTAINER_OF(it, struct dht_op, link)->deadline);
    }
    return at;
}

void mu_dht_tick(struct mu_dht *d, struct mu_now now)
{
    mu_dht_enter(d, now);
    MU_LIST_FOREACH_SAFE (it, next, &d->ops) {
        struct dht_op *op = MU_CONTAINER_OF(it, struct dht_op, link);

        if (!mu_mono_reached(op->deadline, now.mono)) {
            continue;
        }
        if (op->base.type == MU_DHT_OP_BOOTSTRAP) {
            mu_dht_join_late(d, op);
        } else {
            mu_dht_op_end(d, op, MUSTER_ETIMEDOUT);
        }
    }
    mu_dht_storage_expire(&d->main, mu_dht_time(d));
    mu_dht_storage_expire(&d->cache, mu_dht_time(d));
    mu_dht_storage_expire(&d->own, mu_dht_time(d));
    mu_dht_refresh_due(d);
    mu_dht_join_tick(d);
    mu_dht_pump(d);
}
