#include "service/store/exec.h"

#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "core/err.h"

void mu_ks_tell_owners(struct mu_keyspace *ks)
{
    struct mu_ks_wait *wait;
    struct mu_ks_watch *watch;
    struct mu_change change;

    while ((wait = mu_ks_next_ready(ks)) != NULL) {
        struct mu_ks_owner *owner = wait->owner;

        owner->ready(owner, wait);
    }
    while (mu_ks_next_change(ks, &watch, &change)) {
        struct mu_ks_owner *owner = watch->owner;

        owner->changed(owner, watch, &change);
    }
}

static void answer_value(struct mu_store_sink *sink, int64_t number, struct mu_span value)
{
    struct mu_store_reply reply = {.number = number, .values = &value, .value_count = 1};

    sink->answer(sink, 0, &reply, NULL);
}

static void answer_number(struct mu_store_sink *sink, int64_t number)
{
    struct mu_store_reply reply = {.number = number};

    sink->answer(sink, 0, &reply, NULL);
}

/* Quotes a key as its user wrote it. */
static char *quote_key(char *out, size_t cap, const struct mu_store_sink *sink, struct mu_span key)
{
    bool slash = sink->wire_keys && key.len != 0 && key.data[0] == '/';

    return mu_span_quote(out, cap, mu_span_skip(key, slash));
}

/* Answers with an error, and a text that names the key if there is one. */
static void answer_failure(struct mu_store_sink *sink, const struct mu_store_request *q, int err)
{
    struct mu_store_reply none = {0};
    char quoted[100];
    char text[200];

    if (q->key_count == 1) {
        (void)snprintf(text, sizeof(text), "%s: %s", muster_strerror(err),
                       quote_key(quoted, sizeof(quoted), sink, q->keys[0]));
    } else {
        (void)snprintf(text, sizeof(text), "%s", muster_strerror(err));
    }
    sink->answer(sink, err, &none, text);
}

static size_t longest(const struct mu_span *items, size_t count)
{
    size_t most = 0;

    for (size_t i = 0; i < count; i++) {
        most = items[i].len > most ? items[i].len : most;
    }
    return most;
}

/* The same for a change that is over a limit: says which one, where that can be seen. */
static void answer_limit(const struct mu_keyspace *ks, struct mu_store_sink *sink,
                         const struct mu_store_request *q)
{
    size_t key = longest(q->keys, q->key_count);
    size_t value = longest(q->values, q->value_count);
    size_t slash = sink->wire_keys ? 1 : 0; /* its user has not written that */
    bool is_key = key > ks->config.key_bytes_max;
    struct mu_store_reply none = {0};
    char text[200];

    if (!is_key && value <= ks->config.value_bytes_max) {
        answer_failure(sink, q, MUSTER_ELIMIT);
        return;
    }
    (void)snprintf(text, sizeof(text),
                   "the %s has %zu bytes, and the server takes %zu: see its option --max-%s",
                   is_key ? "key" : "value", is_key ? key - slash : value,
                   is_key ? ks->config.key_bytes_max - slash : ks->config.value_bytes_max,
                   is_key ? "key" : "value");
    sink->answer(sink, MUSTER_ELIMIT, &none, text);
}

/* Answers get or multi_get if every key is there, or need not be. False: one is missing. */
static bool answer_values(struct mu_keyspace *ks, const struct mu_store_request *q,
                          struct mu_store_sink *sink)
{
    bool or_empty = (q->flags & MU_STORE_OR_EMPTY) != 0;
    struct mu_ks_block **blocks;
    struct mu_span *values;
    bool all = true;

    if (q->key_count == 1) {
        struct mu_ks_block *block = NULL;
        struct mu_span value = {0};
        struct mu_store_reply reply = {.values = &value, .value_count = 1, .blocks = &block};

        if (mu_ks_get_block(ks, q->keys[0], &value, &block) != 0 && !or_empty) {
            return false;
        }
        sink->answer(sink, 0, &reply, NULL);
        return true;
    }
    values = mu_calloc(q->key_count, sizeof(*values) + sizeof(*blocks));
    if (values == NULL) {
        answer_failure(sink, q, MUSTER_ENOMEM);
        return true;
    }
    blocks = (struct mu_ks_block **)(void *)(values + q->key_count);
    for (size_t i = 0; all && i < q->key_count; i++) {
        all = mu_ks_get_block(ks, q->keys[i], &values[i], &blocks[i]) == 0 || or_empty;
    }
    if (all) {
        struct mu_store_reply reply = {
            .values = values, .value_count = q->key_count, .blocks = blocks};

        sink->answer(sink, 0, &reply, NULL);
    }
    mu_free(values);
    return all;
}

/* --- operations that wait --------------------------------------------------------------------- */

static void local_fini(struct mu_store_exec *x)
{
    size_t len;

    x->active = false;
    mu_ks_wait_cancel(x->ks, &x->wait);
    mu_ks_unwatch(x->ks, &x->watch);
    mu_free(mu_ks_wait_take_popped(&x->wait, &len));
    mu_free(x->parts);
    x->parts = NULL;
}

/* Ends the operation, then answers: the sink may free the memory in which it lives. */
static void fail(struct mu_store_exec *x, int err)
{
    struct mu_store_sink *sink = x->sink;
    struct mu_store_reply none = {0};
    char quoted[100];
    char text[200];

    (void)snprintf(text, sizeof(text), "%s: %s", muster_strerror(err),
                   quote_key(quoted, sizeof(quoted), sink,
                             x->request.key_count > 0 ? x->request.keys[0] : mu_span("", 0)));
    local_fini(x);
    sink->answer(sink, err, &none, text);
}

/* Answers an operation whose keys have all been there. False: one has gone again. */
static bool complete(struct mu_store_exec *x)
{
    struct mu_store_sink *sink = x->sink;
    uint8_t *value = NULL;
    struct mu_span *parts = x->parts;
    struct mu_store_request request = x->request;
    bool answered = true;
    size_t len = 0;

    if (request.verb == MU_STORE_GET || request.verb == MU_STORE_MULTI_GET) {
        for (size_t i = 0; i < request.key_count; i++) {
            struct mu_span ignored;

            if (mu_ks_get(x->ks, request.keys[i], &ignored) != 0) {
                return false;
            }
        }
    }
    /* The sink may free the memory of `x`, so everything it needs is taken out first. */
    if (request.verb == MU_STORE_QUEUE_POP) {
        value = mu_ks_wait_take_popped(&x->wait, &len);
    }
    x->parts = NULL;
    x->active = false;
    switch ((int)request.verb) {
    case MU_STORE_WAIT:
    case MU_STORE_BARRIER:
        answer_number(sink, 0);
        break;
    case MU_STORE_QUEUE_POP:
        answer_value(sink, x->wait.len_before, mu_span(value, len));
        break;
    case MU_STORE_GET:
    case MU_STORE_MULTI_GET:
        answered = answer_values(x->ks, &request, sink);
        break;
    default:
        mu_panic(__FILE__, __LINE__, "only these wait");
    }
    MU_ASSERT(answered);
    mu_free(value);
    mu_free(parts);
    return true;
}

/* Waits until the operation can be completed; if a key came and went again, waits for it once
 * more. */
static void wait_for_keys(struct mu_store_exec *x)
{
    const struct mu_store_request *q = &x->request;
    enum mu_ks_wait_kind kind = q->verb == MU_STORE_QUEUE_POP        ? MU_KS_WAIT_POP
                                : (q->flags & MU_STORE_IN_TURN) != 0 ? MU_KS_WAIT_TORCH
                                                                     : MU_KS_WAIT_ALL;
    bool ready = false;
    int err = q->verb == MU_STORE_BARRIER
                  ? mu_ks_barrier(x->ks, &x->wait, q->keys[0], q->number, &ready)
                  : mu_ks_wait(x->ks, &x->wait, kind, q->keys, q->key_count, &ready);

    if (err != 0) {
        fail(x, err);
    } else if (ready && !complete(x)) {
        /* An element of a queue ends a wait for the key, but a get cannot answer with it. */
        fail(x, MUSTER_ENOENT);
    }
}

static void exec_ready(struct mu_ks_owner *owner, struct mu_ks_wait *wait)
{
    struct mu_store_exec *x = MU_CONTAINER_OF(owner, struct mu_store_exec, owner);

    (void)wait;
    if (!complete(x)) {
        wait_for_keys(x);
    }
}

/* Reports a change, or answers with it. False: the watch has ended, its memory may be gone. */
static bool tell(struct mu_store_exec *x, const struct mu_change *change)
{
    struct mu_store_sink *sink = x->sink;
    int64_t revision = (int64_t)change->revision;

    if ((x->request.flags & MU_STORE_ONCE) == 0) {
        return sink->change(sink, change);
    }
    local_fini(x);
    answer_number(sink, revision);
    return false;
}

static void exec_changed(struct mu_ks_owner *owner, struct mu_ks_watch *watch,
                         const struct mu_change *change)
{
    struct mu_store_exec *x = MU_CONTAINER_OF(owner, struct mu_store_exec, owner);

    (void)watch;
    (void)tell(x, change);
}

/*
 * Reports the keys that are there when a watch begins, as if they had just been created. The sink
 * may end the watch and free the memory in which it lives, but never changes the keyspace.
 */
static void send_current(struct mu_store_exec *x)
{
    const struct mu_keyspace *ks = x->ks;
    const struct mu_map_node *cursor = NULL;
    struct mu_change change = {.kind = MU_CHANGE_CREATED, .revision = ks->revision};
    bool goes_on = true;

    if ((x->request.flags & MU_STORE_PREFIX) == 0) {
        change.key = x->request.keys[0];
        if (mu_ks_get(ks, change.key, &change.value) == 0) {
            (void)tell(x, &change);
        }
        return;
    }
    while (goes_on && mu_ks_next_key(ks, &cursor, &change.key, &change.value)) {
        if (mu_span_starts_with(change.key, x->request.keys[0])) {
            goes_on = tell(x, &change);
        }
    }
}

static void start_watch(struct mu_store_exec *x)
{
    int err = mu_ks_watch(x->ks, &x->watch, x->request.keys[0],
                          (x->request.flags & MU_STORE_PREFIX) != 0);

    if (err != 0) {
        fail(x, err);
    } else if ((x->request.flags & MU_STORE_CURRENT) != 0) {
        send_current(x);
    }
}

static struct mu_span part_of(const struct mu_store_request *q, size_t i)
{
    return i < q->key_count ? q->keys[i] : q->values[i - q->key_count];
}

/* The request's bytes may be gone when the operation goes on, so they are copied. */
int mu_store_exec_copy(struct mu_store_exec *x, const struct mu_store_request *q)
{
    size_t count = q->key_count + q->value_count;
    size_t bytes = count * sizeof(struct mu_span);
    uint8_t *at;

    for (size_t i = 0; i < count; i++) {
        bytes += MU_STORE_PART_ROOM + part_of(q, i).len;
    }
    x->parts = mu_malloc(bytes);
    if (x->parts == NULL) {
        return MUSTER_ENOMEM;
    }
    at = (uint8_t *)(x->parts + count);
    for (size_t i = 0; i < count; i++) {
        struct mu_span part = part_of(q, i);

        at += MU_STORE_PART_ROOM;
        if (part.len != 0) {
            memcpy(at, part.data, part.len);
        }
        x->parts[i] = mu_span(at, part.len);
        at += part.len;
    }
    x->request = *q;
    x->request.keys = x->parts;
    x->request.values = x->parts + q->key_count;
    return 0;
}

static void local_start(struct mu_store_exec *x, const struct mu_store_request *request)
{
    x->owner.ready = exec_ready;
    x->owner.changed = exec_changed;
    x->wait.owner = &x->owner;
    x->watch.owner = &x->owner;
    if (mu_store_exec_copy(x, request) != 0) {
        x->active = false;
        answer_failure(x->sink, request, MUSTER_ENOMEM);
    } else if (request->verb == MU_STORE_WATCH) {
        start_watch(x);
    } else {
        wait_for_keys(x);
    }
}

void mu_store_exec_explain(const struct mu_store_sink *sink, const struct mu_span *keys,
                           size_t count, size_t missing, char *text, size_t cap)
{
    size_t n = (size_t)snprintf(text, cap, "timed out waiting for %zu %s:", missing,
                                missing == 1 ? "key" : "keys");

    for (size_t i = 0; i < missing && i < count && n + 80 < cap; i++) {
        char quoted[72];

        n += (size_t)snprintf(text + n, cap - n, " %s",
                              quote_key(quoted, sizeof(quoted), sink, keys[i]));
    }
    if (missing > count) {
        (void)snprintf(text + n, cap - n, " and %zu more", missing - count);
    }
}

static void local_stop(struct mu_store_exec *x, int why)
{
    struct mu_store_sink *sink = x->sink;
    struct mu_store_reply none = {0};
    char text[768];

    if (why == MUSTER_ETIMEDOUT && mu_ks_wait_active(&x->wait)) {
        struct mu_span keys[MU_STORE_MISSING_NAMED];
        size_t missing = mu_ks_wait_missing(&x->wait, keys, MU_STORE_MISSING_NAMED);

        mu_store_exec_explain(sink, keys, MU_STORE_MISSING_NAMED, missing, text, sizeof(text));
    } else {
        (void)snprintf(text, sizeof(text), "%s", muster_strerror(why));
    }
    local_fini(x);
    sink->answer(sink, why, &none, text);
}

/* --- operations that are answered at once ----------------------------------------------------- */

static int list_keys(const struct mu_keyspace *ks, const struct mu_store_request *q,
                     struct mu_store_sink *sink)
{
    struct mu_span prefix = q->key_count == 1 ? q->keys[0] : (struct mu_span){0};
    struct mu_span *keys = mu_calloc(ks->key_count, sizeof(*keys));
    const struct mu_map_node *cursor = NULL;
    struct mu_store_reply reply = {.values = keys};
    struct mu_span key;
    struct mu_span value;

    if (keys == NULL) {
        return MUSTER_ENOMEM;
    }
    while (mu_ks_next_key(ks, &cursor, &key, &value)) {
        if (mu_span_starts_with(key, prefix)) {
            keys[reply.value_count++] = key;
        }
    }
    reply.number = (int64_t)reply.value_count;
    sink->answer(sink, 0, &reply, NULL);
    mu_free(keys);
    return 0;
}

static bool has_all(const struct mu_keyspace *ks, const struct mu_store_request *q)
{
    for (size_t i = 0; i < q->key_count; i++) {
        if (!mu_ks_has(ks, q->keys[i])) {
            return false;
        }
    }
    return true;
}

static int pop_now(struct mu_keyspace *ks, const struct mu_store_request *q,
                   struct mu_store_sink *sink)
{
    uint8_t *value;
    size_t len;
    int64_t before;
    int err = mu_ks_queue_pop(ks, q->keys[0], &value, &len, &before);

    if (err == 0) {
        answer_value(sink, before, mu_span(value, len));
        mu_free(value);
    }
    return err;
}

/* Operations that change one key and are answered at once, with `ret_number`. */
static int change_key(struct mu_keyspace *ks, const struct mu_store_request *q, int64_t *ret_number)
{
    size_t len = 0;
    bool removed = false;
    int err = MUSTER_ENOMETHOD;

    *ret_number = 0;
    switch ((int)q->verb) {
    case MU_STORE_SET:
        err = mu_ks_set(ks, q->keys[0], q->values[0], q->lease);
        break;
    case MU_STORE_ADD:
        err = mu_ks_add(ks, q->keys[0], q->number, q->lease, ret_number);
        break;
    case MU_STORE_APPEND:
        err = mu_ks_append(ks, q->keys[0], q->values[0], q->lease, &len);
        *ret_number = (int64_t)len;
        break;
    case MU_STORE_MULTI_SET:
        err = mu_ks_multi_set(ks, q->keys, q->values, q->key_count, q->lease);
        break;
    case MU_STORE_DELETE:
        err = mu_ks_delete(ks, q->keys[0], &removed);
        *ret_number = removed;
        break;
    case MU_STORE_QUEUE_PUSH:
        err = mu_ks_queue_push(ks, q->keys[0], q->values[0], &len);
        *ret_number = (int64_t)len;
        break;
    default:
        break;
    }
    return err;
}

static int change_lease(struct mu_keyspace *ks, mu_mono_t now, const struct mu_store_request *q,
                        int64_t *ret_number)
{
    uint64_t got = 0;
    size_t removed = 0;
    int err;

    if (q->verb == MU_STORE_LEASE_GRANT) {
        if (q->number <= 0) {
            return MUSTER_EINVAL;
        }
        got = q->lease;
        err = got != 0 ? mu_ks_lease_grant_as(ks, now, (uint64_t)q->number, got)
                       : mu_ks_lease_grant(ks, now, (uint64_t)q->number, &got);
    } else if (q->verb == MU_STORE_LEASE_KEEP) {
        err = mu_ks_lease_keep(ks, now, q->lease, &got);
    } else {
        err = mu_ks_lease_revoke(ks, q->lease, &removed);
        got = removed;
    }
    *ret_number = (int64_t)got;
    return err;
}

/* Whether a request cannot be answered now. */
static bool must_go_on(const struct mu_keyspace *ks, const struct mu_store_request *q)
{
    struct mu_span value;

    switch ((int)q->verb) {
    case MU_STORE_WATCH:
    case MU_STORE_BARRIER:
        return true;
    case MU_STORE_WAIT:
        return !has_all(ks, q);
    case MU_STORE_QUEUE_POP:
        return (q->flags & MU_STORE_NOWAIT) == 0 && mu_ks_queue_len(ks, q->keys[0]) == 0;
    case MU_STORE_GET:
    case MU_STORE_MULTI_GET:
        for (size_t i = 0; (q->flags & MU_STORE_NOWAIT) == 0 && i < q->key_count; i++) {
            if (mu_ks_get(ks, q->keys[i], &value) != 0) {
                return true;
            }
        }
        return false;
    default:
        return false;
    }
}

/* Answers; on an error the caller has to answer. */
static int execute(struct mu_keyspace *ks, mu_mono_t now, const struct mu_store_request *q,
                   struct mu_store_sink *sink)
{
    struct mu_span value = {0};
    int64_t number = 0;
    bool written = false;
    int err = 0;

    switch (q->verb) {
    case MU_STORE_GET:
    case MU_STORE_MULTI_GET:
        return answer_values(ks, q, sink) ? 0 : MUSTER_ENOENT;
    case MU_STORE_QUEUE_POP:
        return pop_now(ks, q, sink);
    case MU_STORE_LIST_KEYS:
        return list_keys(ks, q, sink);
    case MU_STORE_COMPARE_SET:
        err = mu_ks_compare_set(ks, q->keys[0], q->values[0], q->values[1], q->lease, &value,
                                &written);
        if (err == 0) {
            answer_value(sink, written, value);
        }
        return err;
    case MU_STORE_WAIT:
        break;
    case MU_STORE_CHECK:
        number = has_all(ks, q);
        break;
    case MU_STORE_NUM_KEYS:
        number = (int64_t)ks->key_count;
        break;
    case MU_STORE_QUEUE_LEN:
        number = (int64_t)mu_ks_queue_len(ks, q->keys[0]);
        break;
    case MU_STORE_LEASE_GRANT:
    case MU_STORE_LEASE_KEEP:
    case MU_STORE_LEASE_REVOKE:
        err = change_lease(ks, now, q, &number);
        break;
    case MU_STORE_SET:
    case MU_STORE_ADD:
    case MU_STORE_APPEND:
    case MU_STORE_MULTI_SET:
    case MU_STORE_DELETE:
    case MU_STORE_QUEUE_PUSH:
        err = change_key(ks, q, &number);
        break;
    case MU_STORE_BARRIER:
    case MU_STORE_WATCH:
        return MUSTER_ENOMETHOD;
    }
    if (err == 0) {
        answer_number(sink, number);
    }
    return err;
}

static bool local_execute(struct mu_executor *e, mu_mono_t now,
                          const struct mu_store_request *request, struct mu_store_sink *sink)
{
    int err;

    if (must_go_on(e->ks, request)) {
        return false;
    }
    err = execute(e->ks, now, request, sink);
    if (err == MUSTER_ELIMIT) {
        answer_limit(e->ks, sink, request);
    } else if (err != 0) {
        answer_failure(sink, request, err);
    }
    return true;
}

struct mu_executor mu_executor_local(struct mu_keyspace *ks)
{
    static const struct mu_executor_ops ops = {
        .execute = local_execute,
        .start = local_start,
        .stop = local_stop,
        .fini = local_fini,
    };

    return (struct mu_executor){.ops = &ops, .ks = ks};
}
