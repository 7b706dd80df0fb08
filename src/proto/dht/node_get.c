/* Gets, caching of what they find, and asking again before a cached record expires. */
#include "proto/dht/node_internal.h"

#include <muster/error.h>

#define KEYS_MAX      4096
#define REFRESHES_MAX 4096
#define REFRESH_BATCH 16

/* --- merging ---------------------------------------------------------------------------------- */

/* Merges two records of a key by the rules of storages, subkey by subkey. */
static void merge_record(struct mu_dht_storage *to, double now, const struct mu_dht_record *r)
{
    struct mu_dht_entry e;
    const void *walk = NULL;

    if (r->type == MU_DHT_FOUND_REGULAR) {
        (void)mu_dht_storage_put(to, now, NULL, &r->key, r->value, r->expiration);
        return;
    }
    while (mu_dht_record_next(r, &walk, &e)) {
        (void)mu_dht_storage_put_subkey(to, now, NULL, &r->key, e.subkey, e.value, e.expiration);
    }
}

static int merge_found(struct mu_dht *d, struct dht_op *op, const struct dht_key *k,
                       const struct mu_dht_found *found)
{
    struct mu_dht_claim claim = {mu_dht_id_span(&k->id), MU_DHT_TAG_REGULAR, found->value,
                                 found->expiration};
    double now = mu_dht_time(d);
    struct mu_dht_dict dict;
    struct mu_dht_entry e;
    uint32_t owned = 0;
    int err;

    if (found->type == MU_DHT_FOUND_REGULAR) {
        err = mu_dht_chain_validate(&d->config.chain, &claim);
        return err != 0 ? err
                        : mu_dht_storage_put(&op->found, now, NULL, &k->id, found->value,
                                             found->expiration);
    }
    if (mu_dht_dict_decode(found->value, &dict) != 0) {
        return MUSTER_EDHT_VALUE;
    }
    while (mu_dht_dict_next(&dict, &e)) {
        if (!(e.expiration > now) || owned++ >= d->main.config.subkeys_max) {
            continue;
        }
        claim = (struct mu_dht_claim){mu_dht_id_span(&k->id), e.subkey, e.value, e.expiration};
        err = mu_dht_chain_validate(&d->config.chain, &claim);
        err = err != 0 ? err
                       : mu_dht_storage_put_subkey(&op->found, now, NULL, &k->id, e.subkey, e.value,
                                                   e.expiration);
        if (err != 0) {
            mu_dht_count_refusal(d, err == MUSTER_EDHT_OLD ? 0 : err);
        }
    }
    return 0;
}

void mu_dht_get_answered(struct mu_dht *d, struct dht_op *op, uint32_t query,
                         const struct mu_peer_id *from, const struct mu_dht_found *found)
{
    struct dht_key *k = &op->keys[op->by_query[query]];
    int err;

    if (k->done) {
        return;
    }
    err = merge_found(d, op, k, found);
    if (err != 0) {
        mu_dht_count_refusal(d, err == MUSTER_EDHT_OLD ? 0 : err);
    }
    if (k->source_count < DHT_SOURCES_MAX) {
        k->sources[k->source_count++] = *from;
    }
    if (!op->latest && mu_dht_storage_get(&op->found, mu_dht_time(d), &k->id) != NULL) {
        mu_dht_search_stop(&op->search, query);
    }
}

/* --- results ---------------------------------------------------------------------------------- */

static int encode_stripped(const struct mu_dht *d, const struct mu_dht_record *r,
                           struct mu_buf *out)
{
    struct mu_dht_entry e;
    const void *walk = NULL;
    struct mu_buf entries;
    struct mu_buf value;
    size_t count = 0;
    int err = 0;

    if (r->type == MU_DHT_FOUND_REGULAR) {
        return mu_dht_chain_strip(&d->config.chain, r->value, out);
    }
    mu_buf_init(&entries, d->config.message_len_max);
    mu_buf_init(&value, d->config.message_len_max);
    while (err == 0 && mu_dht_record_next(r, &walk, &e)) {
        mu_buf_reset(&value);
        err = mu_dht_chain_strip(&d->config.chain, e.value, &value);
        e.value = mu_buf_span(&value);
        err = err != 0 ? err : mu_dht_dict_put(&entries, &e);
        count++;
    }
    err = err != 0 ? err : mu_dht_dict_begin(out, r->expiration, count, entries.len);
    err = err != 0 ? err : mu_buf_append(out, mu_buf_span(&entries));
    mu_buf_fini(&entries);
    mu_buf_fini(&value);
    return err;
}

static bool is_source(const struct dht_key *k, const struct mu_peer_id *peer)
{
    for (size_t i = 0; i < k->source_count; i++) {
        if (mu_peer_id_eq(&k->sources[i], peer)) {
            return true;
        }
    }
    return false;
}

/* Sends the record to the nearest node that did not have it, so that the next search finds it
 * sooner. */
static void cache_nearest(struct mu_dht *d, struct dht_op *op, const struct dht_key *k,
                          const struct mu_dht_record *r)
{
    struct mu_dht_neighbour near[DHT_SOURCES_MAX + 1];
    struct mu_dht_item item = {
        .key = k->id,
        .tag = r->type == MU_DHT_FOUND_REGULAR ? MU_DHT_TAG_REGULAR : (struct mu_span){0},
        .expiration = r->expiration,
        .in_cache = true,
    };
    size_t count =
        k->searched ? mu_dht_search_nearest(&op->search, k->query, DHT_SOURCES_MAX + 1, near) : 0;
    struct mu_buf value;

    for (size_t i = 0; i < count; i++) {
        if (!is_source(k, &near[i].peer)) {
            mu_buf_init(&value, d->config.message_len_max);
            if (mu_dht_record_encode(r, &value) == 0) {
                item.value = mu_buf_span(&value);
                mu_dht_spread(d, &near[i], &item, 1);
            }
            mu_buf_fini(&value);
            return;
        }
    }
}

/* Other gets of the same key can stop if this record is as new as they want it. */
static void share(struct mu_dht *d, const struct dht_op *op, const struct dht_key *k,
                  const struct mu_dht_record *r)
{
    MU_LIST_FOREACH (it, &d->ops) {
        struct dht_op *other = MU_CONTAINER_OF(it, struct dht_op, link);

        if (other == op || other->ended || other->base.type != MU_DHT_OP_GET ||
            (other->latest && !op->latest)) {
            continue;
        }
        for (size_t i = 0; i < other->key_count; i++) {
            struct dht_key *wanted = &other->keys[i];

            if (!wanted->done && wanted->searched && mu_dht_id_eq(&wanted->id, &k->id)) {
                merge_record(&other->found, mu_dht_time(d), r);
                mu_dht_search_stop(&other->search, wanted->query);
                d->moved = true;
            }
        }
    }
}

void mu_dht_get_found(struct mu_dht *d, struct dht_op *op, uint32_t key)
{
    struct dht_key *k = &op->keys[key];
    struct mu_dht_result *result = &op->base.results[key];
    const struct mu_dht_record *r;

    if (k->done) {
        return;
    }
    k->done = true;
    op->keys_done++;
    if (k->searched) {
        result->hops = mu_dht_search_hops(&op->search, k->query);
        result->calls = mu_dht_search_calls(&op->search, k->query);
    }
    r = mu_dht_storage_get(&op->found, mu_dht_time(d), &k->id);
    if (r == NULL) {
        return;
    }
    if (k->searched && r->expiration > k->local) {
        if (!d->config.no_cache) {
            merge_record(&d->cache, mu_dht_time(d), r);
        }
        if (!d->config.no_cache_nearest) {
            cache_nearest(d, op, k, r);
        }
    }
    if (k->searched) {
        share(d, op, k, r);
    }
}

/*
 * Results are written when they are handed out and not earlier, so that records that expire in
 * between are left out.
 */
void mu_dht_get_settle(struct mu_dht *d, struct dht_op *op)
{
    for (size_t i = 0; i < op->key_count; i++) {
        struct mu_dht_result *result = &op->base.results[i];
        const struct mu_dht_record *r =
            mu_dht_storage_get(&op->found, mu_dht_time(d), &op->keys[i].id);
        int err = r == NULL ? 0 : encode_stripped(d, r, &result->value);

        if (err != 0) {
            op->base.status = err;
        } else if (r != NULL) {
            result->type = r->type;
            result->expiration = r->expiration;
        }
    }
}

/* --- beginning -------------------------------------------------------------------------------- */

/* Takes what is stored here already; returns true if that is enough. */
static bool look_here(struct mu_dht *d, struct dht_op *op, struct dht_key *k)
{
    double now = mu_dht_time(d);
    const struct mu_dht_record *kept = mu_dht_storage_get(&d->main, now, &k->id);
    const struct mu_dht_record *cached = mu_dht_storage_get(&d->cache, now, &k->id);
    const struct mu_dht_record *r;

    if (kept != NULL) {
        merge_record(&op->found, now, kept);
    }
    if (cached != NULL) {
        merge_record(&op->found, now, cached);
        if (!op->internal) {
            mu_dht_refresh_at(d, &k->id, cached->expiration);
        }
    }
    r = mu_dht_storage_get(&op->found, now, &k->id);
    k->local = r == NULL ? 0 : r->expiration;
    return r != NULL && !op->latest;
}

static int begin_get(struct mu_dht *d, const struct mu_dht_id *keys, size_t count, bool latest,
                     bool internal, struct dht_op **ret)
{
    struct dht_op *op;
    int err = mu_dht_op_new(d, MU_DHT_OP_GET, count, count, &op);

    if (err != 0) {
        return err;
    }
    op->latest = latest;
    op->internal = internal;
    for (uint32_t i = 0; i < count && err == 0; i++) {
        op->keys[i].id = keys[i];
        op->base.results[i].key = keys[i];
        if (look_here(d, op, &op->keys[i])) {
            mu_dht_get_found(d, op, i);
        } else {
            err = mu_dht_op_search(d, op, i);
        }
    }
    return mu_dht_op_begin(d, op, err, ret);
}

int mu_dht_get(struct mu_dht *d, struct mu_now now, const struct mu_dht_id *keys, size_t count,
               bool latest, struct mu_dht_op **ret)
{
    struct dht_op *op;
    int err;

    mu_dht_enter(d, now);
    if (count == 0 || count > KEYS_MAX) {
        return MUSTER_EINVAL;
    }
    err = begin_get(d, keys, count, latest, false, &op);
    if (err == 0) {
        *ret = &op->base;
        mu_dht_pump(d);
    }
    return err;
}

/* --- asking again ----------------------------------------------------------------------------- */

void mu_dht_refresh_at(struct mu_dht *d, const struct mu_dht_id *key, double expiration)
{
    double in_s = expiration - mu_dht_time(d) - (double)d->config.refresh_before_ms / 1e3;
    struct dht_refresh *r;

    if (d->config.no_refresh || d->config.no_cache || in_s > 86400 ||
        d->refreshes.count >= REFRESHES_MAX ||
        mu_map_find(&d->refreshes, mu_dht_id_span(key)) != NULL) {
        return;
    }
    r = mu_calloc(1, sizeof(*r));
    if (r == NULL) {
        return;
    }
    r->key = *key;
    mu_heap_node_init(&r->due);
    if (mu_map_insert(&d->refreshes, &r->by_key, mu_dht_id_span(&r->key)) != 0) {
        mu_free(r);
        return;
    }
    mu_heap_insert(&d->refresh_due, &r->due,
                   mu_mono_add_ms(d->now.mono, in_s > 0 ? (uint64_t)(in_s * 1e3) : 0));
}

void mu_dht_refresh_due(struct mu_dht *d)
{
    struct mu_dht_id keys[REFRESH_BATCH];
    struct mu_heap_node *node;
    struct dht_op *op;
    size_t count = 0;

    while (count < REFRESH_BATCH &&
           (node = mu_heap_pop_due(&d->refresh_due, d->now.mono)) != NULL) {
        struct dht_refresh *r = MU_CONTAINER_OF(node, struct dht_refresh, due);

        keys[count++] = r->key;
        mu_map_remove(&d->refreshes, &r->by_key);
        mu_free(r);
    }
    if (count > 0) {
        (void)begin_get(d, keys, count, true, true, &op);
    }
}
