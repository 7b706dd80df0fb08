/* Stores, and storing our own records again after we have been away. */
#include "proto/dht/node_internal.h"

#include <muster/error.h>

#include "codec/bin/msgpack.h"

#define ITEMS_MAX 4096

/* --- sending ---------------------------------------------------------------------------------- */

/* Sends the items of one key to one node. */
static int collect(const struct dht_op *op, uint32_t key, struct mu_dht_item **ret,
                   size_t *ret_count)
{
    struct mu_dht_item *items = mu_calloc(op->item_count, sizeof(*items));
    size_t count = 0;

    if (items == NULL) {
        return MUSTER_ENOMEM;
    }
    for (size_t i = 0; i < op->item_count; i++) {
        if (op->items[i].key == key) {
            items[count++] = op->items[i].what;
        }
    }
    *ret = items;
    *ret_count = count;
    return 0;
}

static void tell(struct dht_op *op, uint32_t key, size_t nth, bool ok)
{
    for (size_t i = 0; i < op->item_count; i++) {
        if (op->items[i].key == key && nth-- == 0) {
            op->base.results[i].stored += ok;
            op->base.results[i].refused += !ok;
            return;
        }
    }
}

/* We are one of the nearest nodes ourselves. */
static void store_here(struct mu_dht *d, struct dht_op *op, uint32_t key)
{
    double now = mu_dht_time(d);
    size_t nth = 0;

    for (size_t i = 0; i < op->item_count; i++) {
        const struct mu_dht_item *item = &op->items[i].what;
        int err;

        if (op->items[i].key != key) {
            continue;
        }
        err =
            mu_dht_tag_is_regular(item->tag)
                ? mu_dht_storage_put(&d->main, now, NULL, &item->key, item->value, item->expiration)
                : mu_dht_storage_put_subkey(&d->main, now, NULL, &item->key, item->tag, item->value,
                                            item->expiration);
        tell(op, key, nth++, err == 0);
    }
    op->keys[key].answered++;
}

static int store_there(struct mu_dht *d, struct dht_op *op, uint32_t key,
                       const struct mu_dht_neighbour *who)
{
    struct mu_dht_head head = mu_dht_own_head(d);
    struct mu_dht_item *items;
    struct dht_call *c;
    size_t count;
    int err = collect(op, key, &items, &count);

    if (err != 0) {
        return err;
    }
    err = mu_dht_call_new(d, DHT_CALL_STORE, MU_DHT_STORE, who, true, &c);
    if (err == 0) {
        c->op = op;
        c->key = key;
        err = mu_dht_call_ready(d, c, mu_dht_store_encode(&c->message, &head, items, count));
    }
    mu_free(items);
    return err;
}

/* --- ends ------------------------------------------------------------------------------------- */

/* Other nodes will find what was stored, so our cache gets it too. */
static void cache_stored(struct mu_dht *d, const struct dht_op *op, uint32_t key)
{
    double now = mu_dht_time(d);

    for (size_t i = 0; i < op->item_count; i++) {
        const struct mu_dht_item *item = &op->items[i].what;
        const struct mu_dht_result *result = &op->base.results[i];

        if (op->items[i].key != key) {
            continue;
        }
        if (result->stored > 0 && mu_dht_tag_is_regular(item->tag)) {
            (void)mu_dht_storage_put(&d->cache, now, NULL, &item->key, item->value,
                                     item->expiration);
        } else if (mu_dht_storage_get(&d->cache, now, &item->key) != NULL) {
            if (result->stored > 0) {
                (void)mu_dht_storage_put_subkey(&d->cache, now, NULL, &item->key, item->tag,
                                                item->value, item->expiration);
            }
            mu_dht_refresh_at(d, &item->key, now); /* other nodes have written there too */
        }
    }
}

/* Sends the record to the nearest nodes until there are enough replicas; a refusal is an answer as
 * well. */
static void go_on(struct mu_dht *d, struct dht_op *op, uint32_t key)
{
    struct dht_key *k = &op->keys[key];

    while (k->in_flight + k->answered < d->config.replicas && k->near_next < k->near_count) {
        const struct mu_dht_neighbour *who = &k->near[k->near_next++];

        if (mu_dht_id_eq(&who->node, &d->config.self.node)) {
            store_here(d, op, key);
        } else if (store_there(d, op, key, who) == 0) {
            k->in_flight++;
        }
    }
    if (k->in_flight == 0 && !k->done) {
        k->done = true;
        op->keys_done++;
        if (!d->config.no_cache) {
            cache_stored(d, op, key);
        }
    }
}

void mu_dht_store_answered(struct mu_dht *d, struct dht_op *op, uint32_t key, bool answered,
                           struct mu_dht_store_reply *reply)
{
    struct dht_key *k = &op->keys[key];
    size_t nth = 0;
    bool ok;

    k->in_flight--;
    if (answered) {
        k->answered++;
        while (mu_dht_store_reply_next(reply, &ok)) {
            tell(op, key, nth++, ok);
        }
    }
    go_on(d, op, key);
}

void mu_dht_store_found(struct mu_dht *d, struct dht_op *op, uint32_t key)
{
    struct dht_key *k = &op->keys[key];
    size_t max = d->config.bucket_size + 1;
    size_t at;

    for (size_t i = 0; i < op->item_count; i++) {
        if (op->items[i].key == key) {
            op->base.results[i].hops = mu_dht_search_hops(&op->search, k->query);
            op->base.results[i].calls = mu_dht_search_calls(&op->search, k->query);
        }
    }
    k->near = mu_calloc(max, sizeof(*k->near));
    if (k->near != NULL) {
        k->near_count = mu_dht_search_nearest(&op->search, k->query, max - 1, k->near);
        if (!d->config.client) {
            at = k->near_count;
            while (at > 0 &&
                   mu_dht_nearer(&k->id, &d->config.self.node, &k->near[at - 1].node) < 0) {
                at--;
            }
            memmove(k->near + at + 1, k->near + at, (k->near_count - at) * sizeof(*k->near));
            k->near[at] = d->config.self;
            k->near_count++;
        }
    }
    go_on(d, op, key);
}

/* --- beginning -------------------------------------------------------------------------------- */

/* Makes a copy of the record, signed unless it is signed already. */
static int copy_item(struct mu_dht *d, struct dht_item *item, const struct mu_dht_put *put,
                     bool is_signed)
{
    struct mu_span tag = put->subkey.len != 0 ? put->subkey : MU_DHT_TAG_REGULAR;
    struct mu_dht_claim claim = {mu_dht_id_span(&put->key), tag, put->value, put->expiration};
    int err;

    mu_buf_init(&item->bytes, d->config.message_len_max);
    err = mu_buf_append(&item->bytes, tag);
    err = err != 0    ? err
          : is_signed ? mu_buf_append(&item->bytes, put->value)
                      : mu_dht_chain_sign(&d->config.chain, &claim, &item->bytes);
    item->what = (struct mu_dht_item){
        .key = put->key,
        .tag = mu_span(mu_buf_span(&item->bytes).data, tag.len),
        .value = mu_span_skip(mu_buf_span(&item->bytes), err == 0 ? tag.len : 0),
        .expiration = put->expiration,
    };
    return err;
}

static int add_items(struct mu_dht *d, struct dht_op *op, const struct mu_dht_put *puts,
                     size_t count, bool is_signed)
{
    size_t keys = 0;

    op->items = mu_calloc(count, sizeof(*op->items));
    if (op->items == NULL) {
        return MUSTER_ENOMEM;
    }
    for (size_t i = 0; i < count; i++) {
        uint32_t key = 0;
        int err;

        while (key < keys && !mu_dht_id_eq(&op->keys[key].id, &puts[i].key)) {
            key++;
        }
        if (key == keys) {
            op->keys[keys++].id = puts[i].key;
        }
        op->base.results[i].key = puts[i].key;
        op->base.results[i].expiration = puts[i].expiration;
        op->items[i].key = key;
        op->item_count++;
        err = copy_item(d, &op->items[i], &puts[i], is_signed);
        if (err != 0) {
            return err;
        }
    }
    op->key_count = keys;
    return 0;
}

static int begin_store(struct mu_dht *d, const struct mu_dht_put *puts, size_t count, bool internal,
                       struct dht_op **ret)
{
    struct dht_op *op;
    int err = mu_dht_op_new(d, MU_DHT_OP_STORE, count, count, &op);

    if (err != 0) {
        return err;
    }
    op->internal = internal;
    err = add_items(d, op, puts, count, internal);
    for (uint32_t i = 0; i < op->key_count && err == 0; i++) {
        err = mu_dht_op_search(d, op, i);
    }
    return mu_dht_op_begin(d, op, err, ret);
}

/* Our own records are remembered, so that they can be stored again if we lose the other nodes. */
static void remember(struct mu_dht *d, const struct dht_op *op)
{
    double now = mu_dht_time(d);

    for (size_t i = 0; i < op->item_count; i++) {
        const struct mu_dht_item *item = &op->items[i].what;

        if (mu_dht_tag_is_regular(item->tag)) {
            (void)mu_dht_storage_put(&d->own, now, NULL, &item->key, item->value, item->expiration);
        } else {
            (void)mu_dht_storage_put_subkey(&d->own, now, NULL, &item->key, item->tag, item->value,
                                            item->expiration);
        }
    }
}

int mu_dht_store(struct mu_dht *d, struct mu_now now, const struct mu_dht_put *puts, size_t count,
                 struct mu_dht_op **ret)
{
    struct dht_op *op;
    int err;

    mu_dht_enter(d, now);
    if (count == 0 || count > ITEMS_MAX) {
        return MUSTER_EINVAL;
    }
    for (size_t i = 0; i < count; i++) {
        if (!(puts[i].expiration > mu_dht_time(d))) {
            return MUSTER_EDHT_EXPIRED;
        }
        if (!mu_mp_is_value(puts[i].value) ||
            (puts[i].subkey.len != 0 &&
             (!mu_mp_is_value(puts[i].subkey) || mu_dht_tag_is_regular(puts[i].subkey)))) {
            return MUSTER_EDHT_VALUE;
        }
    }
    err = begin_store(d, puts, count, false, &op);
    if (err == 0) {
        remember(d, op);
        *ret = &op->base;
        mu_dht_pump(d);
    }
    return err;
}

/* --- again ------------------------------------------------------------------------------------ */

static size_t put_of(const struct mu_dht_record *r, struct mu_dht_put *puts, size_t count)
{
    struct mu_dht_entry e;
    const void *walk = NULL;

    if (r->type == MU_DHT_FOUND_REGULAR) {
        puts[count++] =
            (struct mu_dht_put){.key = r->key, .value = r->value, .expiration = r->expiration};
    }
    while (count < ITEMS_MAX && mu_dht_record_next(r, &walk, &e)) {
        puts[count++] = (struct mu_dht_put){r->key, e.subkey, e.value, e.expiration};
    }
    return count;
}

void mu_dht_store_anew(struct mu_dht *d)
{
    struct mu_dht_put *puts = mu_calloc(ITEMS_MAX, sizeof(*puts));
    const struct mu_dht_record *r = NULL;
    struct dht_op *op;
    size_t count = 0;

    if (puts == NULL) {
        return;
    }
    mu_dht_storage_expire(&d->own, mu_dht_time(d));
    while (count < ITEMS_MAX && (r = mu_dht_storage_next(&d->own, r)) != NULL) {
        count = put_of(r, puts, count);
    }
    if (count > 0) {
        (void)begin_store(d, puts, count, true, &op);
    }
    mu_free(puts);
}
