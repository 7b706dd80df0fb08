#include "proto/store/torch_server_private.h"

#include "core/alloc.h"
#include "core/assert.h"
#include "proto/store/torch_dialect.h"

/* --- failing ------------------------------------------------------------------------------- */

/* Fails with a text such as "GET of "/k": no such key". */
static int fail_key(struct mu_torch_server *t, enum mu_torch_op op, struct mu_span key, int err)
{
    struct mu_errmsg e;
    char quoted[96];

    return mu_torch_server_fail(t,
                                mu_err(&e, err, "%s of %s: %s", mu_torch_shapes[op].name,
                                       mu_span_quote(quoted, sizeof(quoted), key),
                                       muster_strerror(err)),
                                &e);
}

static int fail_op(struct mu_torch_server *t, enum mu_torch_op op, int err)
{
    struct mu_errmsg e;

    return mu_torch_server_fail(
        t, mu_err(&e, err, "%s: %s", mu_torch_shapes[op].name, muster_strerror(err)), &e);
}

/* --- answering ----------------------------------------------------------------------------- */

/* What an answer takes. */
struct room {
    size_t copied; /* bytes */
    size_t lent;   /* bytes that are lent, in */
    size_t loans;  /* this many values */
};

static bool is_lent(struct mu_span value)
{
    return value.len >= MU_TORCH_LEND_MIN;
}

static void add_value(struct room *room, struct mu_span value)
{
    room->copied += 8 + (is_lent(value) ? 0 : value.len);
    room->lent += is_lent(value) ? value.len : 0;
    room->loans += is_lent(value) ? 1 : 0;
}

static bool is_too_long(const struct mu_torch_server *t, const struct room *room)
{
    size_t max = t->limits->output_bytes_max;

    return room->copied > max || room->lent > max - room->copied;
}

/* Makes room for an answer, and for what it lends, if anything. */
static int reserve_lent(struct mu_torch_server *t, enum mu_torch_op op, const struct room *room,
                        struct mu_torch_loans **ret_loans)
{
    size_t n = room->copied;
    struct mu_errmsg e;
    int err;

    *ret_loans = NULL;
    if (is_too_long(t, room)) {
        return mu_torch_server_fail(t,
                                    mu_err(&e, MUSTER_ELIMIT,
                                           "the answer to %s is over the limit of %zu bytes",
                                           mu_torch_shapes[op].name, t->limits->output_bytes_max),
                                    &e);
    }
    if (t->out.cap == 0 && n < t->out_hint) {
        (void)mu_buf_reserve(&t->out, t->out_hint);
    }
    err = mu_buf_reserve(&t->out, n);
    if (err == 0 && room->loans != 0) {
        *ret_loans = mu_torch_loans_new(t, room->loans);
        err = *ret_loans == NULL ? MUSTER_ENOMEM : 0;
    }
    return err == 0 ? 0 : fail_op(t, op, err);
}

/* Makes room for an answer of `n` bytes; every request asks once. */
static int reserve(struct mu_torch_server *t, enum mu_torch_op op, size_t n)
{
    struct mu_torch_loans *none;

    return reserve_lent(t, op, &(struct room){.copied = n}, &none);
}

static void put_bytes(struct mu_torch_server *t, struct mu_span s)
{
    mu_buf_put_u64(&t->out, s.len);
    mu_buf_put(&t->out, s);
}

/* Puts a value for which room was made; `block` is the value's block. */
static void put_value(struct mu_torch_server *t, struct mu_torch_loans *loans, struct mu_span value,
                      struct mu_ks_block *block)
{
    if (is_lent(value)) {
        mu_buf_put_u64(&t->out, value.len);
        mu_torch_loans_put(t, loans, value, block);
    } else {
        put_bytes(t, value);
    }
}

static int answer_value(struct mu_torch_server *t, enum mu_torch_op op, struct mu_span value,
                        struct mu_ks_block *block)
{
    struct mu_torch_loans *loans;
    struct room room = {0};
    int err;

    add_value(&room, value);
    err = reserve_lent(t, op, &room, &loans);
    if (err == 0) {
        put_value(t, loans, value, block);
    }
    return err;
}

static int answer_u8(struct mu_torch_server *t, enum mu_torch_op op, uint8_t v)
{
    int err = reserve(t, op, 1);

    if (err == 0) {
        mu_buf_put_u8(&t->out, v);
    }
    return err;
}

static int answer_i64(struct mu_torch_server *t, enum mu_torch_op op, int64_t v)
{
    int err = reserve(t, op, 8);

    if (err == 0) {
        mu_buf_put_u64(&t->out, (uint64_t)v);
    }
    return err;
}

/* --- parsing requests, which are known to be complete ------------------------------------- */

/* Takes the part that `*rest` begins with; `*rest` moves behind it. */
static struct mu_span next_part(struct mu_span *rest)
{
    struct mu_span part = {rest->data + 8, (size_t)mu_get_u64(rest->data)};

    *rest = mu_span_skip(*rest, 8 + part.len);
    return part;
}

/* Lists of up to this many keys need no allocation. */
#define FEW 16

/* The keys (and values) of a list request. */
struct parts {
    size_t count;
    struct mu_span *keys;
    struct mu_span *values; /* NULL if there are no values */
    struct mu_span few[2 * FEW];
};

static int parts_read(struct parts *p, struct mu_span request, bool pairs)
{
    struct mu_span rest = mu_span_skip(request, 9);

    p->count = (size_t)mu_get_u64(request.data + 1);
    p->keys = p->few;
    if (p->count > FEW) {
        /* The request itself holds at least 8 bytes for each, so this memory is in proportion. */
        p->keys = mu_malloc(p->count * (pairs ? 2 : 1) * sizeof(p->keys[0]));
        if (p->keys == NULL) {
            return MUSTER_ENOMEM;
        }
    }
    p->values = pairs ? p->keys + p->count : NULL;
    for (size_t i = 0; i < p->count; i++) {
        p->keys[i] = next_part(&rest);
        if (pairs) {
            p->values[i] = next_part(&rest);
        }
    }
    return 0;
}

static void parts_free(struct parts *p)
{
    if (p->keys != p->few) {
        mu_free(p->keys);
    }
}

/* --- one key ------------------------------------------------------------------------------- */

static int do_set(struct mu_torch_server *t, struct mu_keyspace *ks, enum mu_torch_op op,
                  struct mu_span key, struct mu_span rest)
{
    struct mu_span value = next_part(&rest);
    size_t len;
    int err;

    if (op == MU_TORCH_SET) {
        err = mu_ks_set(ks, key, value, 0);
    } else if (op == MU_TORCH_APPEND) {
        err = mu_ks_append(ks, key, value, 0, &len);
    } else {
        err = mu_ks_queue_push(ks, key, value, &len);
    }
    return err == 0 ? 0 : fail_key(t, op, key, err);
}

static int do_get(struct mu_torch_server *t, struct mu_keyspace *ks, struct mu_span key)
{
    struct mu_ks_block *block = NULL;
    struct mu_span value = {0};
    int err;

    if (t->agent && mu_torch_dialect_is_state(key)) {
        mu_torch_dialect_fit(ks, key);
    }
    err = mu_ks_get_block(ks, key, &value, &block);
    if (err != 0 && (err != MUSTER_ENOENT || t->generation == MU_TORCH_1)) {
        return fail_key(t, MU_TORCH_GET, key, err);
    }
    return answer_value(t, MU_TORCH_GET, value, block);
}

static int do_add(struct mu_torch_server *t, struct mu_keyspace *ks, struct mu_span key,
                  struct mu_span rest)
{
    int64_t sum;
    int err = reserve(t, MU_TORCH_ADD, 8);

    if (err != 0) {
        return err;
    }
    err = mu_ks_add(ks, key, (int64_t)mu_get_u64(rest.data), 0, &sum);
    if (err != 0) {
        return fail_key(t, MU_TORCH_ADD, key, err);
    }
    mu_buf_put_u64(&t->out, (uint64_t)sum);
    return 0;
}

static int do_compare_set(struct mu_torch_server *t, struct mu_keyspace *ks, struct mu_span key,
                          struct mu_span rest)
{
    struct mu_span expected = next_part(&rest);
    struct mu_span desired = next_part(&rest);
    struct mu_ks_block *block;
    struct mu_torch_loans *loans;
    struct room room = {0};
    struct mu_span value;
    bool written;
    int err;

    if (t->generation == MU_TORCH_1 && mu_torch_dialect_is_state(key)) {
        t->agent = true;
        mu_torch_dialect_fit(ks, key);
    }
    /* Makes room for the answer in case it writes; if it does not write, a failure below loses
     * nothing. */
    add_value(&room, desired);
    err = reserve_lent(t, MU_TORCH_COMPARE_SET, &room, &loans);
    if (err != 0) {
        return err;
    }
    err = mu_ks_compare_set(ks, key, expected, desired, 0, &value, &written);
    if (err == 0 && written) {
        (void)mu_ks_get_block(ks, key, &value, &block);
        put_value(t, loans, value, block);
        return 0;
    }
    if (loans != NULL) {
        mu_torch_loans_drop(t, loans);
    }
    if (err != 0) {
        return fail_key(t, MU_TORCH_COMPARE_SET, key, err);
    }
    if (mu_ks_get_block(ks, key, &value, &block) == 0) {
        return answer_value(t, MU_TORCH_COMPARE_SET, value, block);
    }
    /* There is no value, and the expected value is returned. */
    err = reserve(t, MU_TORCH_COMPARE_SET, 8 + expected.len);
    if (err == 0) {
        put_bytes(t, expected);
    }
    return err;
}

static int do_delete(struct mu_torch_server *t, struct mu_keyspace *ks, struct mu_span key)
{
    bool removed;
    int err = reserve(t, MU_TORCH_DELETE_KEY, 8);

    if (err != 0) {
        return err;
    }
    err = mu_ks_delete(ks, key, &removed);
    if (err != 0) {
        return fail_key(t, MU_TORCH_DELETE_KEY, key, err);
    }
    mu_buf_put_u64(&t->out, removed ? 1 : 0);
    return 0;
}

static int do_queue_pop(struct mu_torch_server *t, struct mu_keyspace *ks, struct mu_span key)
{
    uint8_t *value;
    size_t len;
    int64_t len_before;
    int err = mu_ks_queue_pop(ks, key, &value, &len, &len_before);

    if (err == MUSTER_ENOENT) {
        return answer_i64(t, MU_TORCH_QUEUE_POP, 0);
    }
    if (err != 0) {
        return fail_key(t, MU_TORCH_QUEUE_POP, key, err);
    }
    /*
     * A failure here loses the element with the connection, as does any connection that breaks
     * before its answer arrived: the protocol does not acknowledge a pop.
     */
    err = reserve(t, MU_TORCH_QUEUE_POP, 16 + len);
    if (err == 0) {
        mu_buf_put_u64(&t->out, (uint64_t)len_before);
        put_bytes(t, mu_span(value, len));
    }
    mu_free(value);
    return err;
}

static int do_watch(struct mu_torch_server *t, struct mu_keyspace *ks, struct mu_span key)
{
    struct mu_torch_watch *w;
    struct mu_errmsg e;
    int err;

    if (t->watch_count >= t->limits->watches_max) {
        return mu_torch_server_fail(t,
                                    mu_err(&e, MUSTER_ELIMIT,
                                           "WATCH_KEY over the limit of %zu on one connection",
                                           t->limits->watches_max),
                                    &e);
    }
    err = reserve(t, MU_TORCH_WATCH_KEY, 1);
    if (err != 0) {
        return err;
    }
    w = mu_calloc(1, sizeof(*w));
    if (w == NULL) {
        return fail_key(t, MU_TORCH_WATCH_KEY, key, MUSTER_ENOMEM);
    }
    w->server = t;
    w->watch.owner = t->owner;
    err = mu_ks_watch(ks, &w->watch, key, false);
    if (err != 0) {
        mu_free(w);
        return fail_key(t, MU_TORCH_WATCH_KEY, key, err);
    }
    mu_list_push(&t->watches, &w->link);
    t->watch_count++;
    mu_buf_put_u8(&t->out, MU_TORCH_KEY_CALLBACK_REGISTERED);
    return 0;
}

/* --- barrier ------------------------------------------------------------------------------- */

static int do_barrier(struct mu_torch_server *t, struct mu_keyspace *ks, struct mu_span key,
                      struct mu_span rest)
{
    bool ready;
    int err;

    mu_ks_wait_cancel(ks, &t->wait);
    err = mu_ks_barrier(ks, &t->wait, key, (int64_t)mu_get_u64(rest.data), &ready);
    if (err != 0) {
        return fail_key(t, MU_TORCH_BARRIER, key, err);
    }
    return ready ? answer_u8(t, MU_TORCH_BARRIER, MU_TORCH_STOP_WAITING) : 0;
}

/* --- many keys ----------------------------------------------------------------------------- */

static int do_check(struct mu_torch_server *t, struct mu_keyspace *ks, struct mu_span request)
{
    uint64_t count = mu_get_u64(request.data + 1);
    struct mu_span rest = mu_span_skip(request, 9);
    bool all = true;

    for (uint64_t i = 0; i < count && all; i++) {
        all = mu_ks_has(ks, next_part(&rest));
    }
    return answer_u8(t, MU_TORCH_CHECK, all ? MU_TORCH_READY : MU_TORCH_NOT_READY);
}

static int do_wait(struct mu_torch_server *t, struct mu_keyspace *ks, struct mu_span request)
{
    struct parts p;
    bool ready;
    int err = parts_read(&p, request, false);

    if (err != 0) {
        return fail_op(t, MU_TORCH_WAIT, err);
    }
    /* A second WAIT replaces the first, whose answer then never comes. */
    mu_ks_wait_cancel(ks, &t->wait);
    err = mu_ks_wait(ks, &t->wait, MU_KS_WAIT_TORCH, p.keys, p.count, &ready);
    parts_free(&p);
    if (err != 0) {
        return fail_op(t, MU_TORCH_WAIT, err);
    }
    return ready ? answer_u8(t, MU_TORCH_WAIT, MU_TORCH_STOP_WAITING) : 0;
}

static int do_multi_get(struct mu_torch_server *t, struct mu_keyspace *ks, struct mu_span request)
{
    uint64_t count = mu_get_u64(request.data + 1);
    struct mu_span rest = mu_span_skip(request, 9);
    struct mu_torch_loans *loans;
    struct room room = {0};
    int err;

    /* The keys are walked once for the size and once for the bytes: the whole answer is written, or
     * nothing. */
    for (uint64_t i = 0; i < count && !is_too_long(t, &room); i++) {
        struct mu_span key = next_part(&rest);
        struct mu_span value = {0};

        err = mu_ks_get(ks, key, &value);
        if (err != 0 && t->generation == MU_TORCH_1) {
            return fail_key(t, MU_TORCH_MULTI_GET, key, err);
        }
        add_value(&room, err == 0 ? value : (struct mu_span){0});
    }
    err = reserve_lent(t, MU_TORCH_MULTI_GET, &room, &loans);
    if (err != 0) {
        return err;
    }
    rest = mu_span_skip(request, 9);
    for (uint64_t i = 0; i < count; i++) {
        struct mu_ks_block *block = NULL;
        struct mu_span value = {0};

        (void)mu_ks_get_block(ks, next_part(&rest), &value, &block);
        put_value(t, loans, value, block);
    }
    return 0;
}

static int do_multi_set(struct mu_torch_server *t, struct mu_keyspace *ks, struct mu_span request)
{
    struct parts p;
    int err = parts_read(&p, request, true);

    if (err == 0) {
        err = mu_ks_multi_set(ks, p.keys, p.values, p.count, 0);
        parts_free(&p);
    }
    return err == 0 ? 0 : fail_op(t, MU_TORCH_MULTI_SET, err);
}

/* --- no key -------------------------------------------------------------------------------- */

static int do_list_keys(struct mu_torch_server *t, struct mu_keyspace *ks)
{
    const struct mu_map_node *cursor = NULL;
    struct mu_span key;
    struct mu_span value;
    size_t total = 8;
    uint64_t count = 0;
    int err;

    while (total <= t->limits->output_bytes_max && mu_ks_next_key(ks, &cursor, &key, &value)) {
        total += 8 + key.len;
        count++;
    }
    err = reserve(t, MU_TORCH_LIST_KEYS, total);
    if (err != 0) {
        return err;
    }
    mu_buf_put_u64(&t->out, count);
    cursor = NULL;
    while (mu_ks_next_key(ks, &cursor, &key, &value)) {
        put_bytes(t, key);
    }
    return 0;
}

static int do_ping(struct mu_torch_server *t, struct mu_span request)
{
    int err = reserve(t, MU_TORCH_PING, 4);

    if (err == 0) {
        mu_buf_put(&t->out, mu_span_skip(request, 1));
    }
    return err;
}

/* --- requests ------------------------------------------------------------------------------ */

static int dispatch_key(struct mu_torch_server *t, struct mu_keyspace *ks, enum mu_torch_op op,
                        struct mu_span request)
{
    struct mu_span rest = mu_span_skip(request, 1);
    struct mu_span key = next_part(&rest);

    switch ((int)op) {
    case MU_TORCH_SET:
    case MU_TORCH_APPEND:
    case MU_TORCH_QUEUE_PUSH:
        return do_set(t, ks, op, key, rest);
    case MU_TORCH_GET:
        return do_get(t, ks, key);
    case MU_TORCH_ADD:
        return do_add(t, ks, key, rest);
    case MU_TORCH_COMPARE_SET:
        return do_compare_set(t, ks, key, rest);
    case MU_TORCH_DELETE_KEY:
        return do_delete(t, ks, key);
    case MU_TORCH_QUEUE_POP:
        return do_queue_pop(t, ks, key);
    case MU_TORCH_QUEUE_LEN:
        return answer_i64(t, op, (int64_t)mu_ks_queue_len(ks, key));
    case MU_TORCH_BARRIER:
        return do_barrier(t, ks, key, rest);
    default:
        MU_ASSERT(op == MU_TORCH_WATCH_KEY);
        return do_watch(t, ks, key);
    }
}

static int dispatch(struct mu_torch_server *t, struct mu_keyspace *ks, enum mu_torch_op op,
                    struct mu_span request)
{
    switch ((int)op) {
    case MU_TORCH_CHECK:
        return do_check(t, ks, request);
    case MU_TORCH_WAIT:
        return do_wait(t, ks, request);
    case MU_TORCH_MULTI_GET:
        return do_multi_get(t, ks, request);
    case MU_TORCH_MULTI_SET:
        return do_multi_set(t, ks, request);
    case MU_TORCH_GETNUMKEYS:
        return answer_i64(t, op, (int64_t)ks->key_count);
    case MU_TORCH_CANCEL_WAIT:
        mu_ks_wait_cancel(ks, &t->wait);
        return answer_u8(t, op, MU_TORCH_WAIT_CANCELED);
    case MU_TORCH_PING:
        return do_ping(t, request);
    case MU_TORCH_LIST_KEYS:
        return do_list_keys(t, ks);
    default:
        return dispatch_key(t, ks, op, request);
    }
}

/* Asks for all keys of a request. 1, 0 or an error. */
static int ask(struct mu_torch_server *t, struct mu_holds *h, const struct mu_span *keys,
               size_t count)
{
    bool held = t->writer != NULL;
    int may;

    for (size_t i = 0; i < count && !held; i++) {
        held = mu_holds_has(h, keys[i]);
    }
    if (!held) {
        return 1;
    }
    if (t->writer == NULL) {
        t->writer = mu_calloc(1, sizeof(*t->writer));
        if (t->writer == NULL) {
            return MUSTER_ENOMEM;
        }
        t->writer->owner = t->owner;
    }
    may = mu_holds_ask(h, t->writer, NULL, h->now, keys, count);
    if (may != 0) {
        mu_free(t->writer);
        t->writer = NULL;
    }
    return may;
}

int mu_torch_server_ask(struct mu_torch_server *t, enum mu_torch_op op, struct mu_span request)
{
    struct mu_span rest = mu_span_skip(request, 1);
    struct mu_span key;
    struct parts p = {0};
    int may;

    switch ((int)op) {
    case MU_TORCH_SET:
    case MU_TORCH_COMPARE_SET:
    case MU_TORCH_ADD:
    case MU_TORCH_DELETE_KEY:
    case MU_TORCH_APPEND:
    case MU_TORCH_QUEUE_PUSH:
    case MU_TORCH_QUEUE_POP:
    case MU_TORCH_BARRIER:
        key = next_part(&rest);
        may = ask(t, t->holds, &key, 1);
        break;
    case MU_TORCH_MULTI_SET:
        may = parts_read(&p, request, true);
        if (may == 0) {
            may = ask(t, t->holds, p.keys, p.count);
            parts_free(&p);
        }
        break;
    default:
        return 1;
    }
    return may < 0 ? fail_op(t, op, may) : may;
}

int mu_torch_server_execute(struct mu_torch_server *t, struct mu_keyspace *ks, enum mu_torch_op op,
                            struct mu_span request)
{
    int err;

    /*
     * A client of generation 1 holds a lock while it waits: if it sends anything else, its WAIT has
     * timed out, which it cannot tell us. Answering that WAIT later would put the client out of
     * step by one byte for ever.
     */
    if (t->generation == MU_TORCH_1 && mu_ks_wait_active(&t->wait)) {
        mu_ks_wait_cancel(ks, &t->wait);
    }
    err = dispatch(t, ks, op, request);
    if (err != 0) {
        return err;
    }
    /*
     * If the connection ended its own WAIT, the answer goes here, between those of the requests
     * around it, however the bytes were split on their way.
     */
    if (mu_ks_wait_active(&t->wait) && t->wait.missing == 0) {
        mu_ks_wait_cancel(ks, &t->wait);
        return answer_u8(t, MU_TORCH_WAIT, MU_TORCH_STOP_WAITING);
    }
    return 0;
}

int mu_torch_server_wake(struct mu_torch_server *t, struct mu_ks_wait *wait)
{
    MU_ASSERT(wait == &t->wait);
    if (t->poison != 0) {
        return t->poison;
    }
    return answer_u8(t, MU_TORCH_WAIT, MU_TORCH_STOP_WAITING);
}

/* --- watching ------------------------------------------------------------------------------ */

struct mu_torch_server *mu_torch_server_of_watch(struct mu_ks_watch *watch)
{
    return MU_CONTAINER_OF(watch, struct mu_torch_watch, watch)->server;
}

static uint8_t notification_kind(enum mu_change_kind kind)
{
    switch (kind) {
    case MU_CHANGE_CREATED:
        return MU_TORCH_KEY_CREATED;
    case MU_CHANGE_UPDATED:
        return MU_TORCH_KEY_UPDATED;
    case MU_CHANGE_APPENDED:
        return MU_TORCH_KEY_APPENDED;
    case MU_CHANGE_DELETED:
    case MU_CHANGE_EXPIRED:
        return MU_TORCH_KEY_DELETED;
    }
    mu_panic(__FILE__, __LINE__, "a change of no known kind");
}

int mu_torch_server_told(struct mu_torch_server *t, struct mu_span key,
                         const struct mu_change *change)
{
    struct mu_span old_value = change->old_value;
    struct mu_span value = change->value;
    struct mu_errmsg e;
    size_t len;
    int err;

    if (t->poison != 0) {
        return t->poison;
    }
    if (change->kind == MU_CHANGE_APPENDED) {
        /* As in PyTorch: only the appended piece, and no old value. */
        value = mu_span_skip(value, old_value.len);
        old_value = (struct mu_span){0};
    } else if (notification_kind(change->kind) == MU_TORCH_KEY_DELETED) {
        value = (struct mu_span){0};
    }
    len = 25 + key.len + old_value.len + value.len;
    if (len > t->limits->output_bytes_max ||
        mu_torch_server_output_len(t) > t->limits->output_bytes_max - len) {
        return mu_torch_server_fail(t,
                                    mu_err(&e, MUSTER_EOVERFLOW,
                                           "reads its notifications too slowly: over %zu bytes "
                                           "wait to be sent",
                                           t->limits->output_bytes_max),
                                    &e);
    }
    err = reserve(t, MU_TORCH_WATCH_KEY, len);
    if (err == 0) {
        mu_buf_put_u8(&t->out, notification_kind(change->kind));
        put_bytes(t, key);
        put_bytes(t, old_value);
        put_bytes(t, value);
    }
    return err;
}

int mu_torch_server_changed(struct mu_torch_server *t, struct mu_ks_watch *watch,
                            const struct mu_change *change)
{
    MU_ASSERT(mu_torch_server_of_watch(watch) == t);
    return mu_torch_server_told(t, change->key, change);
}
