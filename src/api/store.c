/* The public store: opening, closing, and calls that wait for the end of one operation. */
#include "api/store_api.h"

#include "api/rdzv_api.h"
#include "core/alloc.h"

/* The timeout of operations and of opening, as in PyTorch. */
#define TIMEOUT_MS 300000

/* How much longer muster_store_open() waits than a store tries to connect. */
#define OPEN_MARGIN_MS 250

void muster_store_config_init(struct muster_store_config *ret, size_t size)
{
    struct muster_store_config ours = {.timeout_ms = TIMEOUT_MS, .connect_timeout_ms = TIMEOUT_MS};

    mu_api_give(ret, size, &ours, sizeof(ours));
}

/* --- stores that are opened and closed elsewhere ---------------------------------------------- */

muster_store *mu_api_store_wrap(muster_runtime *rt, struct mu_store *inner)
{
    muster_store *store = mu_calloc(1, sizeof(*store));

    if (store != NULL) {
        store->rt = rt;
        store->store = inner;
        atomic_init(&store->timeout_ms, TIMEOUT_MS);
    }
    return store;
}

void mu_api_store_unwrap(muster_store *store)
{
    mu_free(store);
}

/* --- opening and closing ---------------------------------------------------------------------- */

struct store_door {
    struct mu_door door;
    muster_store *store;
    const char *url;
    uint32_t connect_ms;
    int err;
    struct mu_errmsg msg;
};

static void open_on_loop(struct mu_door *door)
{
    struct store_door *d = MU_CONTAINER_OF(door, struct store_door, door);

    d->err = mu_store_open(d->store->rt->env, d->url, d->connect_ms, &d->store->store, &d->msg);
    d->connect_ms = d->err == 0 ? d->store->store->connect_ms : 0; /* the URL may say it */
    mu_door_open(door);
}

static void on_store_closed(void *context)
{
    mu_door_open(context);
}

static void close_on_loop(struct mu_door *door)
{
    struct store_door *d = MU_CONTAINER_OF(door, struct store_door, door);

    mu_store_close(d->store->store, on_store_closed, door);
}

static int blocking(muster_store *store, struct muster_store_request *q, int64_t timeout_ms,
                    muster_op **ret_op);

/* The timeouts of a config, which may be NULL. */
static int take_config(const struct muster_store_config *given, uint32_t *ret_ms,
                       uint32_t *ret_connect_ms)
{
    struct muster_store_config config = muster_store_config_defaults();
    int err = given == NULL ? 0 : MU_API_TAKE(store_config, &config, given);

    if (err == 0) {
        err = mu_api_timeout(config.timeout_ms, TIMEOUT_MS, ret_ms);
    }
    return err != 0 ? err : mu_api_timeout(config.connect_timeout_ms, TIMEOUT_MS, ret_connect_ms);
}

int muster_store_open(muster_runtime *rt, const char *url, const struct muster_store_config *config,
                      muster_store **ret_store)
{
    struct store_door d = {.url = url};
    struct muster_store_request check = {.verb = MUSTER_STORE_CHECK};
    uint32_t timeout_ms;
    muster_store *store;
    int err;

    if (rt == NULL || url == NULL || ret_store == NULL || mu_runtime_is_mine(rt)) {
        return mu_api_error(MUSTER_EINVAL,
                            "muster_store_open() needs a runtime, a URL and a place for "
                            "the result, and waits: call it on a thread of your own");
    }
    err = take_config(config, &timeout_ms, &d.connect_ms);
    if (err != 0) {
        return err;
    }
    store = mu_calloc(1, sizeof(*store));
    if (store == NULL) {
        return mu_api_error(MUSTER_ENOMEM, NULL);
    }
    store->rt = rt;
    atomic_init(&store->timeout_ms, timeout_ms);
    d.store = store;
    mu_door_pass(rt, &d.door, open_on_loop);
    if (d.err != 0) {
        mu_free(store);
        return mu_api_error(d.err, d.msg.text);
    }
    /* Ask something that every store can answer: whether all of no keys exist. The store itself
     * gives up when the time to connect is over, and knows better what went wrong; but a server may
     * greet us and then hang. */
    err = blocking(
        store, &check,
        d.connect_ms == 0 ? MUSTER_TIMEOUT_NEVER : (int64_t)d.connect_ms + OPEN_MARGIN_MS, NULL);
    if (err != 0) {
        struct mu_errmsg why;

        if (err == MUSTER_ETIMEDOUT) {
            (void)mu_err(&why, err,
                         "%.150s was reached, but did not answer a first request within %u ms: "
                         "its server hangs, or it is not a store",
                         url, d.connect_ms);
        } else {
            (void)mu_err(&why, err, "%s", muster_errmsg());
        }
        muster_store_close(store);
        return mu_api_error(err, why.text);
    }
    *ret_store = store;
    return 0;
}

void muster_store_close(muster_store *store)
{
    struct store_door d = {.store = store};

    if (store != NULL && !mu_runtime_would_wait(store->rt, "muster_store_close")) {
        mu_door_pass(store->rt, &d.door, close_on_loop);
        mu_free(store);
    }
}

int muster_store_set_timeout(muster_store *store, int64_t timeout_ms)
{
    uint32_t ms;
    int err = mu_api_timeout(timeout_ms, TIMEOUT_MS, &ms);

    if (err == 0) {
        atomic_store(&store->timeout_ms, ms);
    }
    return err;
}

int64_t muster_store_timeout(const muster_store *store)
{
    return mu_api_timeout_public(atomic_load(&store->timeout_ms));
}

/* --- blocking calls --------------------------------------------------------------------------- */

/* Runs a request to its end. On success `ret_op` (may be NULL) is set, and must be freed. */
static int blocking(muster_store *store, struct muster_store_request *q, int64_t timeout_ms,
                    muster_op **ret_op)
{
    muster_op *op;
    int err;

    if (mu_runtime_is_mine(store->rt)) {
        return mu_api_error(MUSTER_EINVAL,
                            "this call waits: make it on a thread of your own, not the runtime's");
    }
    q->timeout_ms = timeout_ms;
    err = mu_api_submit(store, q, &op);
    if (err != 0) {
        return err;
    }
    err = muster_op_wait(op);
    if (err != 0 || ret_op == NULL) {
        muster_op_free(op);
    } else {
        *ret_op = op;
    }
    return err;
}

/* As above, for operations whose answer is a number. */
static int blocking_number(muster_store *store, struct muster_store_request *q, int64_t timeout_ms,
                           int64_t *ret_number)
{
    muster_op *op;
    int err = blocking(store, q, timeout_ms, &op);

    if (err == 0) {
        if (ret_number != NULL) {
            *ret_number = op->number;
        }
        muster_op_free(op);
    }
    return err;
}

/* As above, for operations whose answer is one value, which the caller gets. */
static int blocking_value(muster_store *store, struct muster_store_request *q, int64_t timeout_ms,
                          struct muster_value *ret_value, int64_t *ret_number)
{
    muster_op *op;
    int err = blocking(store, q, timeout_ms, &op);

    if (err != 0) {
        return err;
    }
    if (ret_value != NULL) {
        *ret_value = (struct muster_value){0};
        if (op->value_count > 0) {
            *ret_value = op->values[0];
            op->values[0] = (struct muster_value){0};
        }
    }
    if (ret_number != NULL) {
        *ret_number = op->number;
    }
    muster_op_free(op);
    return 0;
}

static int blocking_values(muster_store *store, struct muster_store_request *q, int64_t timeout_ms,
                           struct muster_values *ret_values)
{
    muster_op *op;
    int err = blocking(store, q, timeout_ms, &op);

    if (err == 0) {
        *ret_values = (struct muster_values){op->values, op->value_count};
        op->values = NULL;
        op->value_count = 0;
        muster_op_free(op);
    }
    return err;
}

int muster_store_set(muster_store *store, struct muster_bytes key, struct muster_bytes value,
                     int64_t timeout_ms)
{
    return muster_store_set_leased(store, key, value, 0, timeout_ms);
}

int muster_store_set_leased(muster_store *store, struct muster_bytes key, struct muster_bytes value,
                            uint64_t lease, int64_t timeout_ms)
{
    struct muster_store_request q = {.verb = MUSTER_STORE_SET,
                                     .keys = &key,
                                     .key_count = 1,
                                     .values = &value,
                                     .value_count = 1,
                                     .lease = lease};

    return blocking(store, &q, timeout_ms, NULL);
}

int muster_store_get(muster_store *store, struct muster_bytes key, struct muster_value *ret_value,
                     int64_t timeout_ms)
{
    struct muster_store_request q = {.verb = MUSTER_STORE_GET, .keys = &key, .key_count = 1};

    return blocking_value(store, &q, timeout_ms, ret_value, NULL);
}

int muster_store_add(muster_store *store, struct muster_bytes key, int64_t delta, int64_t *ret_sum,
                     int64_t timeout_ms)
{
    struct muster_store_request q = {
        .verb = MUSTER_STORE_ADD, .keys = &key, .key_count = 1, .number = delta};

    return blocking_number(store, &q, timeout_ms, ret_sum);
}

int muster_store_compare_set(muster_store *store, struct muster_bytes key,
                             struct muster_bytes expected, struct muster_bytes desired,
                             struct muster_value *ret_value, bool *ret_written, int64_t timeout_ms)
{
    struct muster_bytes values[2] = {expected, desired};
    struct muster_store_request q = {.verb = MUSTER_STORE_COMPARE_SET,
                                     .keys = &key,
                                     .key_count = 1,
                                     .values = values,
                                     .value_count = 2};
    int64_t written = 0;
    int err = blocking_value(store, &q, timeout_ms, ret_value, &written);

    if (err == 0 && ret_written != NULL) {
        *ret_written = written != 0;
    }
    return err;
}

int muster_store_check(muster_store *store, const struct muster_bytes *keys, size_t count,
                       bool *ret_there, int64_t timeout_ms)
{
    struct muster_store_request q = {.verb = MUSTER_STORE_CHECK, .keys = keys, .key_count = count};
    int64_t there = 0;
    int err = blocking_number(store, &q, timeout_ms, &there);

    if (err == 0) {
        *ret_there = there != 0;
    }
    return err;
}

int muster_store_wait(muster_store *store, const struct muster_bytes *keys, size_t count,
                      int64_t timeout_ms)
{
    struct muster_store_request q = {.verb = MUSTER_STORE_WAIT, .keys = keys, .key_count = count};

    return blocking(store, &q, timeout_ms, NULL);
}

int muster_store_delete(muster_store *store, struct muster_bytes key, bool *ret_removed,
                        int64_t timeout_ms)
{
    struct muster_store_request q = {.verb = MUSTER_STORE_DELETE, .keys = &key, .key_count = 1};
    int64_t removed = 0;
    int err = blocking_number(store, &q, timeout_ms, &removed);

    if (err == 0 && ret_removed != NULL) {
        *ret_removed = removed != 0;
    }
    return err;
}

int muster_store_num_keys(muster_store *store, int64_t *ret_count, int64_t timeout_ms)
{
    struct muster_store_request q = {.verb = MUSTER_STORE_NUM_KEYS};

    return blocking_number(store, &q, timeout_ms, ret_count);
}

int muster_store_list_keys(muster_store *store, struct muster_bytes prefix,
                           struct muster_values *ret_keys, int64_t timeout_ms)
{
    struct muster_store_request q = {
        .verb = MUSTER_STORE_LIST_KEYS, .keys = &prefix, .key_count = prefix.len != 0};

    return blocking_values(store, &q, timeout_ms, ret_keys);
}

int muster_store_append(muster_store *store, struct muster_bytes key, struct muster_bytes value,
                        int64_t timeout_ms)
{
    struct muster_store_request q = {.verb = MUSTER_STORE_APPEND,
                                     .keys = &key,
                                     .key_count = 1,
                                     .values = &value,
                                     .value_count = 1};

    return blocking(store, &q, timeout_ms, NULL);
}

int muster_store_multi_get(muster_store *store, const struct muster_bytes *keys, size_t count,
                           struct muster_values *ret_values, int64_t timeout_ms)
{
    struct muster_store_request q = {
        .verb = MUSTER_STORE_MULTI_GET, .keys = keys, .key_count = count};

    return blocking_values(store, &q, timeout_ms, ret_values);
}

int muster_store_multi_set(muster_store *store, const struct muster_bytes *keys,
                           const struct muster_bytes *values, size_t count, int64_t timeout_ms)
{
    struct muster_store_request q = {.verb = MUSTER_STORE_MULTI_SET,
                                     .keys = keys,
                                     .key_count = count,
                                     .values = values,
                                     .value_count = count};

    return blocking(store, &q, timeout_ms, NULL);
}

int muster_store_queue_push(muster_store *store, struct muster_bytes key, struct muster_bytes value,
                            int64_t timeout_ms)
{
    struct muster_store_request q = {.verb = MUSTER_STORE_QUEUE_PUSH,
                                     .keys = &key,
                                     .key_count = 1,
                                     .values = &value,
                                     .value_count = 1};

    return blocking(store, &q, timeout_ms, NULL);
}

int muster_store_queue_pop(muster_store *store, struct muster_bytes key, bool block,
                           struct muster_value *ret_value, int64_t timeout_ms)
{
    struct muster_store_request q = {.verb = MUSTER_STORE_QUEUE_POP,
                                     .keys = &key,
                                     .key_count = 1,
                                     .flags = block ? 0 : MUSTER_STORE_NOWAIT};

    return blocking_value(store, &q, timeout_ms, ret_value, NULL);
}

int muster_store_queue_len(muster_store *store, struct muster_bytes key, int64_t *ret_len,
                           int64_t timeout_ms)
{
    struct muster_store_request q = {.verb = MUSTER_STORE_QUEUE_LEN, .keys = &key, .key_count = 1};

    return blocking_number(store, &q, timeout_ms, ret_len);
}

int muster_store_barrier(muster_store *store, struct muster_bytes key, int64_t world_size,
                         int64_t timeout_ms)
{
    struct muster_store_request q = {
        .verb = MUSTER_STORE_BARRIER, .keys = &key, .key_count = 1, .number = world_size};

    return blocking(store, &q, timeout_ms, NULL);
}

int muster_store_lease_grant(muster_store *store, uint64_t ttl_ms, uint64_t *ret_lease,
                             int64_t timeout_ms)
{
    struct muster_store_request q = {.verb = MUSTER_STORE_LEASE_GRANT,
                                     .number = ttl_ms > INT64_MAX ? INT64_MAX : (int64_t)ttl_ms};
    int64_t lease = 0;
    int err = blocking_number(store, &q, timeout_ms, &lease);

    if (err == 0) {
        *ret_lease = (uint64_t)lease;
    }
    return err;
}

int muster_store_lease_keep(muster_store *store, uint64_t lease, int64_t timeout_ms)
{
    struct muster_store_request q = {.verb = MUSTER_STORE_LEASE_KEEP, .lease = lease};

    return blocking(store, &q, timeout_ms, NULL);
}

int muster_store_lease_revoke(muster_store *store, uint64_t lease, int64_t timeout_ms)
{
    struct muster_store_request q = {.verb = MUSTER_STORE_LEASE_REVOKE, .lease = lease};

    return blocking(store, &q, timeout_ms, NULL);
}
