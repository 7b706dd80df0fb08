/* The public store: operations copied in, posted to the loop, their results copied out. */
#include "api/api.h"

#include <stdatomic.h>
#include <string.h>

#include "api/rdzv_api.h"
#include "core/alloc.h"
#include "service/store/store.h"

/* How much longer muster_store_open() waits than a store tries to connect. */
#define OPEN_MARGIN_MS 250

struct muster_store {
    muster_runtime *rt;
    struct mu_store *store;
    atomic_uint timeout_ms;
};

/*
 * An operation. Two sides hold it: the user, until muster_op_free(), and the loop, until it has
 * ended; the last of them frees it.
 */
struct muster_op {
    struct mu_store_op op;
    struct mu_post post;
    struct mu_post cancel_post;
    muster_store *store;
    muster_runtime *rt;
    muster_op_done *done;
    muster_store_on_change *on_change;
    void *context;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    unsigned holders; /* under the lock */
    bool started;     /* loop only: submitted */
    bool ended;       /* under the lock */
    bool canceling;   /* under the lock: the cancel_post was posted */
    int64_t number;
    struct muster_value *values;
    size_t value_count;
    struct mu_span spans[]; /* keys, then values, then their bytes */
};

struct muster_store_config muster_store_config_defaults(void)
{
    return (struct muster_store_config){.timeout_ms = 300000, .connect_timeout_ms = 300000};
}

/* --- an operation's life ---------------------------------------------------------------------- */

static void free_results(muster_op *op)
{
    for (size_t i = 0; i < op->value_count; i++) {
        mu_free(op->values[i].data);
    }
    mu_free(op->values);
    op->values = NULL;
    op->value_count = 0;
}

static void let_go(muster_op *op)
{
    unsigned left;

    (void)pthread_mutex_lock(&op->lock);
    left = --op->holders;
    (void)pthread_mutex_unlock(&op->lock);
    if (left == 0) {
        free_results(op);
        (void)pthread_cond_destroy(&op->cond);
        (void)pthread_mutex_destroy(&op->lock);
        mu_free(op);
    }
}

static bool copy_value(struct muster_value *ret, struct mu_span from)
{
    ret->data = mu_strndup((const char *)(from.len == 0 ? (const void *)"" : from.data), from.len);
    ret->len = from.len;
    return ret->data != NULL;
}

static int copy_results(muster_op *op)
{
    const struct mu_store_reply *reply = &op->op.reply;

    op->number = reply->number;
    if (reply->value_count == 0) {
        return 0;
    }
    op->values = mu_calloc(reply->value_count, sizeof(*op->values));
    if (op->values == NULL) {
        return MUSTER_ENOMEM;
    }
    for (; op->value_count < reply->value_count; op->value_count++) {
        if (!copy_value(&op->values[op->value_count], reply->values[op->value_count])) {
            free_results(op);
            return MUSTER_ENOMEM;
        }
    }
    return 0;
}

static void on_done(struct mu_store_op *inner)
{
    muster_op *op = MU_CONTAINER_OF(inner, muster_op, op);

    if (inner->status == 0) {
        inner->status = copy_results(op);
        if (inner->status != 0) {
            (void)mu_err(&inner->errmsg, inner->status, "out of memory");
        }
    }
    (void)pthread_mutex_lock(&op->lock);
    op->ended = true;
    (void)pthread_cond_broadcast(&op->cond);
    (void)pthread_mutex_unlock(&op->lock);
    if (op->done != NULL) {
        op->done(op, op->context);
    }
    let_go(op);
}

static void on_change(struct mu_store_op *inner, const struct mu_change *change)
{
    muster_op *op = MU_CONTAINER_OF(inner, muster_op, op);
    struct muster_change out = {
        .kind = (enum muster_change_kind)change->kind,
        .revision = change->revision,
        .key = {change->key.data, change->key.len},
        .value = {change->value.data, change->value.len},
    };

    if (op->on_change != NULL) {
        op->on_change(op, &out, op->context);
    }
}

static void start_on_loop(struct mu_post *post)
{
    muster_op *op = MU_CONTAINER_OF(post, muster_op, post);

    op->started = true;
    mu_store_submit(op->store->store, &op->op);
}

static void cancel_on_loop(struct mu_post *post)
{
    muster_op *op = MU_CONTAINER_OF(post, muster_op, cancel_post);
    bool ended;

    (void)pthread_mutex_lock(&op->lock);
    ended = op->ended;
    (void)pthread_mutex_unlock(&op->lock);
    if (!ended) {
        mu_store_cancel(&op->op);
    }
    let_go(op);
}

/* --- requests --------------------------------------------------------------------------------- */

/* The public numbers are the internal ones. */
#define SAME(name, ...)                                                                            \
    _Static_assert((int)MUSTER_STORE_##name == (int)MU_STORE_##name, "MUSTER_STORE_" #name);
MU_STORE_VERB_MAP(SAME)
SAME(NOWAIT)
SAME(PREFIX)
SAME(CURRENT)
SAME(ONCE)
#undef SAME
_Static_assert((int)MUSTER_CHANGE_CREATED == (int)MU_CHANGE_CREATED &&
                   (int)MUSTER_CHANGE_EXPIRED == (int)MU_CHANGE_EXPIRED,
               "kinds of changes");

static int check_request(const struct muster_store_request *q)
{
    struct mu_store_request inner = {.verb = (enum mu_store_verb)q->verb,
                                     .key_count = q->key_count,
                                     .value_count = q->value_count};
    int err = mu_store_check(&inner);

    if (err == MUSTER_ENOMETHOD) {
        return mu_api_error(MUSTER_EINVAL, "there is no such store operation");
    }
    if (err != 0 || q->flags > 15 || q->timeout_ms < -1 || q->timeout_ms > UINT32_MAX ||
        (q->verb == MUSTER_STORE_BARRIER && q->number < 1)) {
        return mu_api_error(MUSTER_EINVAL, "the store operation does not take these arguments");
    }
    return 0;
}

static size_t total_len(const struct muster_bytes *items, size_t count)
{
    size_t n = 0;

    for (size_t i = 0; i < count; i++) {
        n += items[i].len;
    }
    return n;
}

static uint8_t *copy_spans(struct mu_span *to, const struct muster_bytes *from, size_t count,
                           uint8_t *at)
{
    for (size_t i = 0; i < count; i++) {
        if (from[i].len != 0) {
            memcpy(at, from[i].data, from[i].len);
        }
        to[i] = mu_span(at, from[i].len);
        at += from[i].len;
    }
    return at;
}

int muster_store_submit(muster_store *store, const struct muster_store_request *q,
                        muster_op **ret_op)
{
    size_t parts = q->key_count + q->value_count;
    int err = check_request(q);
    muster_op *op;
    uint8_t *at;

    if (err != 0) {
        return err;
    }
    op = mu_calloc(1, sizeof(*op) + parts * sizeof(struct mu_span) +
                          total_len(q->keys, q->key_count) + total_len(q->values, q->value_count));
    if (op == NULL) {
        return mu_api_error(MUSTER_ENOMEM, NULL);
    }
    at = copy_spans(op->spans, q->keys, q->key_count, (uint8_t *)(op->spans + parts));
    (void)copy_spans(op->spans + q->key_count, q->values, q->value_count, at);
    op->op.request = (struct mu_store_request){
        .verb = (enum mu_store_verb)q->verb,
        .flags = q->flags,
        .keys = op->spans,
        .key_count = q->key_count,
        .values = op->spans + q->key_count,
        .value_count = q->value_count,
        .number = q->number,
        .lease = q->lease,
    };
    /* A watch goes on until it is cancelled, unless a timeout is named. */
    op->op.timeout_ms = q->timeout_ms >= 0              ? (uint32_t)q->timeout_ms
                        : q->verb == MUSTER_STORE_WATCH ? 0
                                                        : atomic_load(&store->timeout_ms);
    op->op.done = on_done;
    op->op.change = on_change;
    op->store = store;
    op->rt = store->rt;
    op->done = q->done;
    op->on_change = q->on_change;
    op->context = q->context;
    op->holders = 2;
    (void)pthread_mutex_init(&op->lock, NULL);
    (void)pthread_cond_init(&op->cond, NULL);
    op->post.run = start_on_loop;
    op->cancel_post.run = cancel_on_loop;
    *ret_op = op; /* before the loop may end it and call `done` */
    mu_uv_env_post(store->rt->uv, &op->post);
    return 0;
}

int muster_op_wait(muster_op *op)
{
    if (mu_runtime_is_mine(op->rt)) {
        return mu_api_error(MUSTER_EINVAL,
                            "this call waits: make it on a thread of your own, not the runtime's");
    }
    (void)pthread_mutex_lock(&op->lock);
    while (!op->ended) {
        (void)pthread_cond_wait(&op->cond, &op->lock);
    }
    (void)pthread_mutex_unlock(&op->lock);
    return mu_api_error(op->op.status, op->op.errmsg.text);
}

void muster_op_cancel(muster_op *op)
{
    bool post;

    (void)pthread_mutex_lock(&op->lock);
    post = !op->ended && !op->canceling;
    if (post) {
        op->canceling = true;
        op->holders++;
    }
    (void)pthread_mutex_unlock(&op->lock);
    if (post) {
        mu_uv_env_post(op->rt->uv, &op->cancel_post);
    }
}

void muster_op_free(muster_op *op)
{
    if (op != NULL) {
        muster_op_cancel(op);
        let_go(op);
    }
}

int muster_op_status(const muster_op *op)
{
    return op->op.status;
}

const char *muster_op_errmsg(const muster_op *op)
{
    return op->op.errmsg.text;
}

int64_t muster_op_number(const muster_op *op)
{
    return op->number;
}

size_t muster_op_value_count(const muster_op *op)
{
    return op->value_count;
}

struct muster_bytes muster_op_value(const muster_op *op, size_t index)
{
    return index < op->value_count
               ? (struct muster_bytes){op->values[index].data, op->values[index].len}
               : (struct muster_bytes){0};
}

/* --- stores that are opened and closed elsewhere ---------------------------------------------- */

muster_store *mu_api_store_wrap(muster_runtime *rt, struct mu_store *inner)
{
    muster_store *store = mu_calloc(1, sizeof(*store));

    if (store != NULL) {
        store->rt = rt;
        store->store = inner;
        atomic_init(&store->timeout_ms, muster_store_config_defaults().timeout_ms);
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

int muster_store_open(muster_runtime *rt, const char *url, const struct muster_store_config *config,
                      muster_store **ret_store)
{
    struct muster_store_config defaults = muster_store_config_defaults();
    struct store_door d = {.url = url};
    struct muster_store_request check = {.verb = MUSTER_STORE_CHECK};
    muster_store *store;
    int err;

    if (rt == NULL || url == NULL || ret_store == NULL || mu_runtime_is_mine(rt)) {
        return mu_api_error(MUSTER_EINVAL,
                            "muster_store_open() needs a runtime, a URL and a place for "
                            "the result, and waits: call it on a thread of your own");
    }
    config = config == NULL ? &defaults : config;
    store = mu_calloc(1, sizeof(*store));
    if (store == NULL) {
        return mu_api_error(MUSTER_ENOMEM, NULL);
    }
    store->rt = rt;
    atomic_init(&store->timeout_ms, config->timeout_ms);
    d.store = store;
    d.connect_ms = config->connect_timeout_ms;
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

void muster_store_set_timeout(muster_store *store, uint32_t timeout_ms)
{
    atomic_store(&store->timeout_ms, timeout_ms);
}

uint32_t muster_store_timeout(const muster_store *store)
{
    return atomic_load(&store->timeout_ms);
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
    err = muster_store_submit(store, q, &op);
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
