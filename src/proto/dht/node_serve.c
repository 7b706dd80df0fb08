/* Answers the requests of other nodes. */
#include "proto/dht/node_internal.h"

#include <muster/error.h>

/* After this many bytes, an answer gets no more values, only nodes that are near. */
#define REPLY_ROOM (64u << 10)

/* --- ping ------------------------------------------------------------------------------------- */

static int reply_signed(struct mu_dht *d, uint64_t token, const uint8_t *nonce,
                        struct mu_buf *message)
{
    struct mu_buf made;
    int err;

    if (d->config.auth == NULL) {
        return mu_dht_reply_new(d, token, 0, message);
    }
    mu_buf_init(&made, d->config.message_len_max);
    err = mu_dht_auth_sign_reply(d->config.auth, nonce, mu_buf_span(message), &made);
    mu_buf_fini(message);
    if (err != 0) {
        mu_buf_fini(&made);
        return err;
    }
    return mu_dht_reply_new(d, token, 0, &made);
}

static int reply_ping(struct mu_dht *d, uint64_t token, const uint8_t *nonce, bool available)
{
    struct mu_dht_ping_reply reply = {
        .head = mu_dht_own_head(d), .dht_time = mu_dht_time(d), .available = available};
    struct mu_buf message;
    int err;

    mu_buf_init(&message, d->config.message_len_max);
    err = mu_dht_ping_reply_encode(&message, &reply);
    if (err != 0) {
        mu_buf_fini(&message);
        return err;
    }
    return reply_signed(d, token, nonce, &message);
}

void mu_dht_ping_answered_back(struct mu_dht *d, struct dht_call *c, bool reached)
{
    if (reached) {
        mu_dht_heard(d, &c->who.node, &c->who.peer);
    } else {
        mu_dht_lost(d, &c->who, true);
    }
    if (c->token != 0) {
        (void)reply_ping(d, c->token, c->back_nonce, reached);
    }
}

static int serve_ping(struct mu_dht *d, uint64_t token, const uint8_t *nonce,
                      const struct mu_peer_id *from, struct mu_span message)
{
    struct mu_dht_neighbour who = {.peer = *from};
    struct mu_dht_ping ping;
    struct dht_call *c;
    int err = mu_dht_ping_decode(message, &ping);

    if (err != 0) {
        return err;
    }
    who.node = ping.head.node;
    if (ping.head.has_node && ping.validate && d->back_count < d->config.requests_max &&
        mu_dht_ping_node(d, DHT_CALL_BACK, &who, true, false, &c) == 0) {
        c->token = token;
        memcpy(c->back_nonce, nonce, MU_DHT_NONCE_LEN);
        return 0;
    }
    if (ping.head.has_node && !ping.validate) {
        mu_dht_heard(d, &who.node, from);
    }
    return reply_ping(d, token, nonce, false);
}

/* --- store ------------------------------------------------------------------------------------ */

struct storing {
    struct mu_dht *d;
    const struct mu_peer_id *from;
    uint32_t owned; /* how many signatures were checked */
};

static int validate(struct storing *s, const struct mu_dht_claim *claim)
{
    const struct mu_dht_storage_config *limits = &s->d->main.config;

    if (claim->tag.len > limits->subkey_len_max || claim->value.len > limits->value_len_max) {
        return MUSTER_EDHT_VALUE;
    }
    if (mu_dht_chain_concerns(&s->d->config.chain, claim) && ++s->owned > s->d->config.owned_max) {
        return MUSTER_ELIMIT;
    }
    return mu_dht_chain_validate(&s->d->config.chain, claim);
}

static int store_one(struct storing *s, const struct mu_dht_item *item, struct mu_span tag,
                     struct mu_span value, double expiration)
{
    struct mu_dht_storage *storage = item->in_cache ? &s->d->cache : &s->d->main;
    struct mu_dht_claim claim = {mu_dht_id_span(&item->key), tag, value, expiration};
    double now = mu_dht_time(s->d);
    int err = expiration > now ? validate(s, &claim) : MUSTER_EDHT_EXPIRED;

    if (err == 0) {
        err = mu_dht_tag_is_regular(tag)
                  ? mu_dht_storage_put(storage, now, s->from, &item->key, value, expiration)
                  : mu_dht_storage_put_subkey(storage, now, s->from, &item->key, tag, value,
                                              expiration);
    }
    if (err != 0) {
        mu_dht_count_refusal(s->d, err);
    }
    return err;
}

/* A record that was there already counts as stored, because a dictionary is offered again and
 * again. */
static bool store_item(struct storing *s, const struct mu_dht_item *item)
{
    struct mu_dht_dict dict;
    struct mu_dht_entry e;
    bool ok = true;

    if (item->tag.len != 0) {
        return store_one(s, item, item->tag, item->value, item->expiration) == 0;
    }
    if (mu_dht_dict_decode(item->value, &dict) != 0) {
        mu_dht_count_refusal(s->d, MUSTER_EDHT_VALUE);
        return false;
    }
    while (mu_dht_dict_next(&dict, &e)) {
        ok = store_one(s, item, e.subkey, e.value, e.expiration) == 0 && ok;
    }
    return ok;
}

static int serve_store(struct mu_dht *d, uint64_t token, const uint8_t *nonce,
                       const struct mu_peer_id *from, struct mu_span message)
{
    struct mu_dht_head head = mu_dht_own_head(d);
    struct storing s = {.d = d, .from = from};
    struct mu_dht_store store;
    struct mu_dht_item item;
    struct mu_buf out;
    bool *ok;
    size_t i = 0;
    int err = mu_dht_store_decode(message, &store);

    if (err != 0) {
        return err;
    }
    ok = mu_calloc(store.count + 1, sizeof(*ok));
    if (ok == NULL) {
        return MUSTER_ENOMEM;
    }
    while (i < store.count && mu_dht_store_next(&store, &item)) {
        ok[i++] = store_item(&s, &item);
    }
    mu_buf_init(&out, d->config.message_len_max);
    err = mu_dht_store_reply_encode(&out, &head, ok, store.count);
    mu_free(ok);
    if (err != 0) {
        mu_buf_fini(&out);
        return err;
    }
    err = reply_signed(d, token, nonce, &out);
    if (err == 0 && store.head.has_node) {
        mu_dht_heard(d, &store.head.node, from);
    }
    return err;
}

/* --- find ------------------------------------------------------------------------------------- */

/* Finds the record of a key: of both storages, the one that expires later. */
static const struct mu_dht_record *find_here(struct mu_dht *d, const struct mu_dht_id *key)
{
    const struct mu_dht_record *kept = mu_dht_storage_get(&d->main, mu_dht_time(d), key);
    const struct mu_dht_record *cached = mu_dht_storage_get(&d->cache, mu_dht_time(d), key);

    return cached != NULL && (kept == NULL || cached->expiration > kept->expiration) ? cached
                                                                                     : kept;
}

static int find_one(struct mu_dht *d, const struct mu_dht_find *find, const struct mu_dht_id *key,
                    struct mu_dht_neighbour *near, struct mu_buf *out)
{
    const struct mu_dht_record *r = find_here(d, key);
    struct mu_dht_finding finding = {
        .near = near,
        .near_count = mu_dht_table_nearest(&d->table, key, d->config.bucket_size,
                                           find->head.has_node ? &find->head.node : NULL, near),
    };
    struct mu_buf value;
    int err = 0;

    mu_buf_init(&value, d->config.message_len_max);
    /* A value that does not fit beside the others is left out; other nodes will have it. */
    if (r != NULL && out->len + mu_dht_record_len(r) + REPLY_ROOM <= d->config.message_len_max) {
        err = mu_dht_record_encode(r, &value);
        finding.type = r->type;
        finding.expiration = r->expiration;
        finding.value = mu_buf_span(&value);
    }
    err = err != 0 ? err : mu_dht_finding_encode(out, &finding);
    mu_buf_fini(&value);
    return err;
}

static int serve_find(struct mu_dht *d, uint64_t token, const uint8_t *nonce,
                      const struct mu_peer_id *from, struct mu_span message)
{
    struct mu_dht_head head = mu_dht_own_head(d);
    struct mu_dht_neighbour *near;
    struct mu_dht_find find;
    struct mu_dht_id key;
    struct mu_buf out;
    int err = mu_dht_find_decode(message, &find);

    if (err != 0) {
        return err;
    }
    near = mu_calloc(d->config.bucket_size, sizeof(*near));
    if (near == NULL) {
        return MUSTER_ENOMEM;
    }
    mu_buf_init(&out, d->config.message_len_max);
    while (err == 0 && mu_dht_find_next(&find, &key)) {
        err = find_one(d, &find, &key, near, &out);
    }
    err = err != 0 ? err : mu_dht_find_reply_end(&out, &head);
    mu_free(near);
    if (err != 0) {
        mu_buf_fini(&out);
        return err;
    }
    err = reply_signed(d, token, nonce, &out);
    if (err == 0 && find.head.has_node) {
        mu_dht_heard(d, &find.head.node, from);
    }
    return err;
}

/* --- requests --------------------------------------------------------------------------------- */

static int serve(struct mu_dht *d, uint64_t token, const struct mu_peer_id *from,
                 enum mu_dht_method method, struct mu_span message)
{
    uint8_t nonce[MU_DHT_NONCE_LEN] = {0};
    int err;

    if (d->config.client) {
        return MUSTER_ENOMETHOD;
    }
    if (message.len > d->config.message_len_max) {
        return MUSTER_ELIMIT;
    }
    if (d->config.auth != NULL) {
        err = mu_dht_auth_check_request(d->config.auth, mu_dht_time(d), message, nonce);
        if (err != 0) {
            d->stats.denied++;
            return err;
        }
    }
    switch (method) {
    case MU_DHT_PING:
        return serve_ping(d, token, nonce, from, message);
    case MU_DHT_STORE:
        return serve_store(d, token, nonce, from, message);
    case MU_DHT_FIND:
        break;
    }
    return serve_find(d, token, nonce, from, message);
}

int mu_dht_request(struct mu_dht *d, struct mu_now now, uint64_t token,
                   const struct mu_peer_id *from, enum mu_dht_method method, struct mu_span message)
{
    struct mu_buf text;
    int err;

    mu_dht_enter(d, now);
    d->stats.requests++;
    err = serve(d, token, from, method, message);
    if (err != 0 && err != MUSTER_ENOMEM) {
        mu_buf_init(&text, MU_ERRMSG_CAP);
        (void)mu_buf_append(&text, mu_span_str(muster_strerror(err)));
        err = mu_dht_reply_new(d, token, err, &text);
    }
    mu_dht_pump(d);
    return err;
}

void mu_dht_request_gone(struct mu_dht *d, uint64_t token)
{
    struct mu_list *const lists[] = {&d->to_send, &d->under_way};

    for (size_t i = 0; i < 2; i++) {
        MU_LIST_FOREACH (it, lists[i]) {
            struct dht_call *c = MU_CONTAINER_OF(it, struct dht_call, link);

            if (c->kind == DHT_CALL_BACK && c->token == token) {
                c->token = 0;
            }
        }
    }
    MU_LIST_FOREACH_SAFE (it, next, &d->replies) {
        struct dht_reply *r = MU_CONTAINER_OF(it, struct dht_reply, link);

        if (r->token == token) {
            mu_list_remove(&r->link);
            mu_buf_fini(&r->message);
            mu_free(r);
        }
    }
}
