/* What all operations of a node share: a search, calls, an end. */
#include "proto/dht/node_internal.h"

#include <muster/error.h>

#include "core/assert.h"

/* The greatest number of queries in one call is the square root of the number of queries. */
static uint32_t batch_for(size_t queries)
{
    uint32_t batch = 1;

    while (batch < MU_DHT_BATCH_MAX && (size_t)(batch + 1) * (batch + 1) <= queries) {
        batch++;
    }
    return batch;
}

int mu_dht_op_new(struct mu_dht *d, enum mu_dht_op_type type, size_t keys, size_t results,
                  struct dht_op **ret)
{
    struct mu_dht_search_config search = {
        .self = d->config.self,
        .beam =
            d->config.bucket_size > d->config.replicas ? d->config.bucket_size : d->config.replicas,
        .workers = d->config.workers,
        .batch = batch_for(keys),
        .calls_max = d->config.search_calls_max,
    };
    struct mu_dht_storage_config found = {.seed = d->config.seed,
                                          .horizon_s = d->config.storage.horizon_s};
    struct dht_op *op = mu_calloc(1, sizeof(*op));

    if (op == NULL) {
        return MUSTER_ENOMEM;
    }
    op->base.type = type;
    op->deadline = mu_mono_add_ms(d->now.mono, d->config.op_ms);
    mu_list_init(&op->link);
    mu_dht_search_init(&op->search, &search);
    mu_dht_storage_init(&op->found, &found);
    op->keys = mu_calloc(keys + 1, sizeof(*op->keys));
    op->by_query = mu_calloc(keys + 1, sizeof(*op->by_query));
    op->base.results = mu_calloc(results + 1, sizeof(*op->base.results));
    if (op->keys == NULL || op->by_query == NULL || op->base.results == NULL) {
        mu_dht_op_delete(op);
        return MUSTER_ENOMEM;
    }
    op->key_count = keys;
    op->base.count = results;
    for (size_t i = 0; i < results; i++) {
        mu_buf_init(&op->base.results[i].value, d->config.message_len_max);
    }
    *ret = op;
    return 0;
}

int mu_dht_op_begin(struct mu_dht *d, struct dht_op *op, int err, struct dht_op **ret)
{
    if (err != 0) {
        mu_dht_op_delete(op);
        return err;
    }
    mu_list_push(&d->ops, &op->link);
    d->moved = true;
    *ret = op;
    return 0;
}

void mu_dht_op_delete(struct dht_op *op)
{
    for (size_t i = 0; i < op->key_count; i++) {
        mu_free(op->keys[i].near);
    }
    for (size_t i = 0; i < op->item_count; i++) {
        mu_buf_fini(&op->items[i].bytes);
    }
    for (size_t i = 0; i < op->base.count; i++) {
        mu_buf_fini(&op->base.results[i].value);
    }
    mu_dht_search_fini(&op->search);
    mu_dht_storage_fini(&op->found);
    mu_free(op->items);
    mu_free(op->keys);
    mu_free(op->by_query);
    mu_free(op->base.results);
    mu_free(op);
}

void mu_dht_op_free(struct mu_dht_op *op)
{
    if (op != NULL) {
        mu_dht_op_delete(MU_CONTAINER_OF(op, struct dht_op, base));
    }
}

/* --- the search ------------------------------------------------------------------------------- */

int mu_dht_op_search(struct mu_dht *d, struct dht_op *op, uint32_t key)
{
    struct dht_key *k = &op->keys[key];
    struct mu_dht_neighbour *near = mu_calloc(d->config.bucket_size, sizeof(*near));
    size_t count;
    int err;

    if (near == NULL) {
        return MUSTER_ENOMEM;
    }
    count = mu_dht_table_nearest(&d->table, &k->id, d->config.bucket_size, NULL, near);
    k->query = (uint32_t)op->search.count;
    err = mu_dht_search_add(&op->search, &k->id, near, count);
    mu_free(near);
    if (err == 0) {
        op->by_query[k->query] = key;
        k->searched = true;
    }
    return err;
}

static void find_nodes(struct mu_dht *d, struct dht_op *op, const struct mu_dht_search_call *what)
{
    struct mu_dht_head head = mu_dht_own_head(d);
    struct mu_dht_id keys[MU_DHT_BATCH_MAX];
    struct dht_call *c;
    int err = MUSTER_ECONN;

    for (size_t i = 0; i < what->count; i++) {
        keys[i] = *mu_dht_search_target(&op->search, what->queries[i]);
    }
    if (!mu_dht_is_blacklisted(d, &what->who.peer)) {
        err = mu_dht_call_new(d, DHT_CALL_FIND, MU_DHT_FIND, &what->who, true, &c);
    }
    if (err == 0) {
        c->op = op;
        c->search = *what;
        err = mu_dht_call_ready(d, c, mu_dht_find_encode(&c->message, &head, keys, what->count));
    }
    if (err != 0) {
        mu_dht_search_answered(&op->search, what->number, false);
    }
}

static void query_ended(struct mu_dht *d, struct dht_op *op, uint32_t query)
{
    switch (op->base.type) {
    case MU_DHT_OP_BOOTSTRAP:
        mu_dht_join_found(d, op);
        break;
    case MU_DHT_OP_GET:
        mu_dht_get_found(d, op, op->by_query[query]);
        break;
    case MU_DHT_OP_STORE:
        mu_dht_store_found(d, op, op->by_query[query]);
        break;
    }
}

void mu_dht_op_advance(struct mu_dht *d, struct dht_op *op)
{
    struct mu_dht_search_call call;
    uint32_t query;
    bool more = true;

    while (more && !op->ended) {
        more = false;
        while (!op->ended && mu_dht_search_next_call(&op->search, &call)) {
            find_nodes(d, op, &call);
        }
        while (!op->ended && mu_dht_search_next_end(&op->search, &query)) {
            query_ended(d, op, query);
            more = true;
        }
    }
    if (!op->ended && op->base.type != MU_DHT_OP_BOOTSTRAP && op->keys_done == op->key_count) {
        mu_dht_op_end(d, op, 0);
    }
}

/* --- the end ---------------------------------------------------------------------------------- */

void mu_dht_op_end(struct mu_dht *d, struct dht_op *op, int status)
{
    struct mu_list *const lists[] = {&d->to_send, &d->under_way};

    if (op->ended) {
        return;
    }
    if (op->base.type == MU_DHT_OP_GET) {
        for (uint32_t i = 0; i < op->key_count; i++) {
            mu_dht_get_found(d, op, i);
        }
    }
    op->ended = true;
    op->base.status = status;
    for (size_t i = 0; i < 2; i++) {
        MU_LIST_FOREACH (it, lists[i]) {
            struct dht_call *c = MU_CONTAINER_OF(it, struct dht_call, link);

            c->op = c->op == op ? NULL : c->op;
        }
    }
    /* An internal operation is freed when everything is at rest, because a caller may still use
     * it. */
    mu_list_remove(&op->link);
    mu_list_push(&d->ended, &op->link);
    d->moved = true;
}

void mu_dht_op_cancel(struct mu_dht *d, struct mu_dht_op *op)
{
    mu_dht_op_end(d, MU_CONTAINER_OF(op, struct dht_op, base), MUSTER_ECANCELED);
    mu_dht_pump(d);
}

/*
 * Advances every operation until no operation can continue. The end of one may begin or end others
 * (our records are stored again, gets of one key share what was found), so the list is walked again
 * then.
 */
void mu_dht_pump(struct mu_dht *d)
{
    do {
        d->moved = false;
        MU_LIST_FOREACH (it, &d->ops) {
            mu_dht_op_advance(d, MU_CONTAINER_OF(it, struct dht_op, link));
            if (d->moved) {
                break; /* the list has changed */
            }
        }
    } while (d->moved);
    /* All nodes that we knew are lost: they must be found again. */
    if (d->table.count > 0) {
        d->alone = false;
        d->had_others = true;
    } else if (!d->alone && d->had_others && d->joined_count > 0 && !mu_dht_is_joining(d)) {
        d->alone = true;
        d->rejoin_at = mu_mono_add_ms(d->now.mono, d->config.rejoin_ms);
    }
    MU_LIST_FOREACH_SAFE (it, next, &d->ended) {
        struct dht_op *op = MU_CONTAINER_OF(it, struct dht_op, link);

        if (op->internal) {
            mu_list_remove(&op->link);
            mu_dht_op_delete(op);
        }
    }
}

void mu_dht_close(struct mu_dht *d)
{
    while (!mu_list_empty(&d->ops)) {
        mu_dht_op_end(d, MU_CONTAINER_OF(d->ops.next, struct dht_op, link), MUSTER_ECLOSED);
    }
    d->joined_count = 0;
    mu_dht_pump(d);
}
