#include "service/store/file_cache.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/list.h"

#define READ_BYTES    (1u << 20)
#define BUFFER_KEEP   (64u << 10)
#define NUMBER_CAP    24
#define MISSING_NAMED 8 /* how many keys a timeout names */

struct entry {
    struct mu_map_node node;
    struct mu_list link; /* staged */
    size_t key_len;
    size_t value_len;
    uint8_t bytes[];
};

static struct entry *find(const struct mu_file_cache *c, struct mu_span key)
{
    struct mu_map_node *node = mu_map_find(&c->map, key);

    return node == NULL ? NULL : MU_CONTAINER_OF(node, struct entry, node);
}

static struct mu_span value_of(const struct entry *e)
{
    return mu_span(e->bytes + e->key_len, e->value_len);
}

/* Makes an entry of `value` with `more` behind it. NULL: no memory. */
static struct entry *make_entry(struct mu_span key, struct mu_span value, struct mu_span more)
{
    struct entry *e = mu_malloc(sizeof(*e) + key.len + value.len + more.len);
    const struct mu_span parts[] = {key, value, more};
    uint8_t *at;

    if (e == NULL) {
        return NULL;
    }
    at = e->bytes;
    for (size_t i = 0; i < 3; i++) {
        if (parts[i].len != 0) {
            memcpy(at, parts[i].data, parts[i].len);
        }
        at += parts[i].len;
    }
    e->node = (struct mu_map_node){0};
    e->key_len = key.len;
    e->value_len = value.len + more.len;
    mu_list_init(&e->link);
    return e;
}

static void drop_entry(struct mu_file_cache *c, struct entry *e)
{
    mu_map_remove(&c->map, &e->node);
    mu_free(e);
    c->generation++;
}

/* Cannot fail: the map's first table was made with the cache. */
static void put_entry(struct mu_file_cache *c, struct entry *e)
{
    struct mu_span key = mu_span(e->bytes, e->key_len);
    struct entry *old = find(c, key);

    if (old != NULL) {
        drop_entry(c, old);
    }
    (void)mu_map_insert(&c->map, &e->node, key);
    c->generation++;
}

int mu_file_cache_init(struct mu_file_cache *c, uint64_t seed)
{
    struct mu_map_node first = {0};
    int err;

    *c = (struct mu_file_cache){0};
    mu_map_init(&c->map, seed);
    mu_buf_init(&c->out, MU_FILE_BYTES_MAX);
    mu_buf_init(&c->in, 2 * MU_FILE_BYTES_MAX);
    err = mu_map_insert(&c->map, &first, MU_SPAN_LIT("/"));
    if (err == 0) {
        mu_map_remove(&c->map, &first);
    }
    return err;
}

void mu_file_cache_reset(struct mu_file_cache *c)
{
    const struct mu_map_node *node = mu_map_next(&c->map, NULL);

    if (c->map.count != 0) {
        c->generation++;
    }
    while (node != NULL) {
        const struct mu_map_node *next = mu_map_next(&c->map, node);
        struct entry *e = MU_CONTAINER_OF(node, struct entry, node);

        mu_map_remove(&c->map, &e->node);
        mu_free(e);
        node = next;
    }
    c->pos = 0;
    c->size = 0;
    mu_buf_reset(&c->out);
    mu_buf_reset(&c->in);
}

void mu_file_cache_fini(struct mu_file_cache *c)
{
    mu_file_cache_reset(c);
    mu_map_fini(&c->map);
    mu_buf_fini(&c->out);
    mu_buf_fini(&c->in);
}

/* --- the file --------------------------------------------------------------------------------- */

static int apply(struct mu_file_cache *c, const struct mu_file_record *record)
{
    struct entry *e;

    if (record->deletion) {
        e = find(c, record->key);
        if (e != NULL) {
            drop_entry(c, e);
        }
        return 0;
    }
    e = make_entry(record->key, record->value, (struct mu_span){0});
    if (e == NULL) {
        return MUSTER_ENOMEM;
    }
    put_entry(c, e);
    return 0;
}

/* Applies the complete records of `in`. MUSTER_EAGAIN: one more needs `*ret_needed` bytes. */
static int apply_all(struct mu_file_cache *c, size_t *ret_needed)
{
    struct mu_file_record record;
    size_t used = 0;
    int err;

    for (;;) {
        err = mu_file_record_decode(mu_buf_span(&c->in), &record, &used, ret_needed);
        if (err == 0) {
            err = apply(c, &record);
        }
        if (err != 0) {
            return err;
        }
        mu_buf_consume(&c->in, used);
        c->pos += used;
    }
}

static int read_records(struct mu_file_cache *c, struct mu_file_log *log, uint64_t size,
                        struct mu_errmsg *reterr_msg)
{
    size_t needed = 1;

    while (needed <= size - c->pos) {
        uint64_t at = c->pos + c->in.len;
        uint64_t left = size - at;
        size_t want = needed > c->in.len + READ_BYTES ? needed - c->in.len : READ_BYTES;
        size_t got = 0;
        int err;

        want = want < left ? want : (size_t)left;
        err = mu_buf_reserve(&c->in, want);
        if (err == 0) {
            err = log->ops->read(log, at, c->in.data + c->in.head + c->in.len, want, &got,
                                 reterr_msg);
        }
        if (err != 0) {
            return err;
        }
        if (got == 0) {
            return 0; /* a process that ignores the lock cut the file */
        }
        (void)mu_buf_grow(&c->in, got);
        err = apply_all(c, &needed);
        if (err != MUSTER_EAGAIN) {
            return err;
        }
    }
    return 0;
}

int mu_file_cache_read(struct mu_file_cache *c, struct mu_file_log *log, const char *path,
                       uint64_t size, struct mu_errmsg *reterr_msg)
{
    int err;

    if (size < c->pos) {
        mu_file_cache_reset(c); /* another process emptied it and began anew */
    }
    if (size > MU_FILE_BYTES_MAX) {
        return mu_err(reterr_msg, MUSTER_ELIMIT,
                      "%.140s has %" PRIu64
                      " bytes, which is too long for a store; remove it when no process uses it",
                      path, size);
    }
    reterr_msg->text[0] = '\0';
    err = read_records(c, log, size, reterr_msg);
    if (err == MUSTER_ECORRUPT) {
        err = mu_err(reterr_msg, err,
                     "%.140s is not a FileStore: there is no record at byte %" PRIu64 "; "
                     "remove it or use another path",
                     path, c->pos);
    } else if (err != 0 && reterr_msg->text[0] == '\0') {
        err = mu_err(reterr_msg, err, "cannot load %.140s: %s", path, muster_strerror(err));
    }
    mu_buf_reset(&c->in);
    mu_buf_trim(&c->in, BUFFER_KEEP);
    c->size = err == 0 ? size : 0;
    return err;
}

int mu_file_cache_write(struct mu_file_cache *c, struct mu_file_log *log, const char *path,
                        struct mu_errmsg *reterr_msg)
{
    int err = 0;

    if (c->out.len == 0) {
        return 0;
    }
    if (c->pos == 0 && c->size > 0 && c->size <= sizeof(uint32_t)) {
        /* A few bytes may be anything; only a complete record, or a key that begins as one does,
         * shows that we may cut the file. */
        err = mu_err(reterr_msg, MUSTER_ECORRUPT,
                     "%.140s has %" PRIu64
                     " bytes that are not a record of a FileStore; remove it or use another path",
                     path, c->size);
    } else {
        err = log->ops->append(log, c->pos, mu_buf_span(&c->out), reterr_msg);
    }
    if (err != 0) {
        mu_file_cache_reset(c); /* it holds what was not written */
    } else {
        c->pos += c->out.len;
        c->size = c->pos;
    }
    mu_buf_reset(&c->out);
    mu_buf_trim(&c->out, BUFFER_KEEP);
    return err;
}

/* --- answers ---------------------------------------------------------------------------------- */

void mu_file_answer_clear(struct mu_file_answer *answer)
{
    mu_free(answer->values);
    answer->values = NULL;
    answer->value_count = 0;
    answer->number = 0;
    answer->status = 0;
    answer->given = false;
}

static void give_number(struct mu_file_answer *answer, int64_t number)
{
    answer->number = number;
    answer->given = true;
}

/* Copies the values: the next operation may change them before this one's owner sees them. */
static int give_values(struct mu_file_answer *answer, const struct mu_span *values, size_t count)
{
    size_t bytes = count * sizeof(*values);
    uint8_t *at;

    for (size_t i = 0; i < count; i++) {
        bytes += values[i].len;
    }
    answer->values = mu_malloc(bytes);
    if (answer->values == NULL) {
        return MUSTER_ENOMEM;
    }
    at = (uint8_t *)(answer->values + count);
    for (size_t i = 0; i < count; i++) {
        if (values[i].len != 0) {
            memcpy(at, values[i].data, values[i].len);
        }
        answer->values[i] = mu_span(at, values[i].len);
        at += values[i].len;
    }
    answer->value_count = count;
    answer->given = true;
    return 0;
}

static void give_failure(struct mu_file_answer *answer, const struct mu_store_request *q, int err)
{
    char quoted[100];

    mu_file_answer_clear(answer);
    answer->given = true;
    answer->status = err;
    if (err == MUSTER_EFULL) {
        (void)mu_err(
            &answer->errmsg, err,
            "the store's file has reached its limit of %u MiB; remove it when no process uses it",
            (unsigned)(MU_FILE_BYTES_MAX >> 20));
    } else if (q->key_count == 1) {
        (void)mu_err(&answer->errmsg, err, "%s: %s", muster_strerror(err),
                     mu_span_quote(quoted, sizeof(quoted), mu_span_skip(q->keys[0], 1)));
    } else {
        (void)mu_err(&answer->errmsg, err, "%s", muster_strerror(err));
    }
}

void mu_file_cache_explain(const struct mu_file_cache *c, const struct mu_store_request *q,
                           struct mu_errmsg *reterr_msg)
{
    char named[MU_ERRMSG_CAP] = "";
    size_t missing = 0;
    size_t n = 0;

    for (size_t i = 0; i < q->key_count; i++) {
        char quoted[72];

        if (find(c, q->keys[i]) != NULL) {
            continue;
        }
        missing++;
        if (missing <= MISSING_NAMED && n + 120 < sizeof(named)) {
            n += (size_t)snprintf(
                named + n, sizeof(named) - n, " %s",
                mu_span_quote(quoted, sizeof(quoted), mu_span_skip(q->keys[i], 1)));
        } else if (missing == MISSING_NAMED + 1 || n + 120 >= sizeof(named)) {
            n = sizeof(named);
        }
    }
    (void)mu_err(reterr_msg, MUSTER_ETIMEDOUT, "timed out waiting for %zu %s:%s%s", missing,
                 missing == 1 ? "key" : "keys", named, n == sizeof(named) ? " and others" : "");
}

/* --- operations ------------------------------------------------------------------------------- */

/* Reads a number as PyTorch does here: 0 if empty, else as strtoll, with garbage behind it
 * allowed. */
static bool parse_number(struct mu_span value, int64_t *ret)
{
    char text[64];
    char *end;
    long long v;
    size_t len = value.len < sizeof(text) - 1 ? value.len : sizeof(text) - 1;

    *ret = 0;
    if (value.len == 0) {
        return true;
    }
    memcpy(text, value.data, len);
    text[len] = '\0';
    errno = 0;
    v = strtoll(text, &end, 10);
    *ret = v;
    return end != text && errno == 0;
}

int64_t mu_file_cache_counter(const struct mu_file_cache *c, struct mu_span key)
{
    const struct entry *e = find(c, key);
    int64_t number = 0;

    return e != NULL && parse_number(value_of(e), &number) ? number : 0;
}

static int add_record(struct mu_file_cache *c, const struct mu_file_record *record)
{
    if (c->pos + c->out.len + mu_file_record_size(record) > MU_FILE_BYTES_MAX) {
        return MUSTER_EFULL;
    }
    return mu_file_record_encode(&c->out, record);
}

/* Sets a new value of a key: its record goes to `out`, its entry waits in `staged`. */
static int stage(struct mu_file_cache *c, struct mu_list *staged, struct mu_span key,
                 struct mu_span value, struct mu_span more)
{
    struct entry *e = make_entry(key, value, more);
    struct mu_file_record record = {.key = key};

    if (e == NULL) {
        return MUSTER_ENOMEM;
    }
    mu_list_push(staged, &e->link);
    record.value = value_of(e);
    return add_record(c, &record);
}

static int set_all(struct mu_file_cache *c, struct mu_list *staged,
                   const struct mu_store_request *q, struct mu_file_answer *answer)
{
    int err = 0;

    for (size_t i = 0; err == 0 && i < q->key_count; i++) {
        err = stage(c, staged, q->keys[i], q->values[i], (struct mu_span){0});
    }
    give_number(answer, 0);
    return err;
}

static int add_number(struct mu_file_cache *c, struct mu_list *staged,
                      const struct mu_store_request *q, struct mu_file_answer *answer)
{
    const struct entry *e = find(c, q->keys[0]);
    char text[NUMBER_CAP];
    int64_t old = 0;
    int64_t sum;

    if (e != NULL && !parse_number(value_of(e), &old)) {
        return MUSTER_ENOTNUM;
    }
    sum = (int64_t)((uint64_t)old + (uint64_t)q->number);
    (void)snprintf(text, sizeof(text), "%" PRId64, sum);
    give_number(answer, sum);
    return stage(c, staged, q->keys[0], mu_span_str(text), (struct mu_span){0});
}

static int compare_set(struct mu_file_cache *c, struct mu_list *staged,
                       const struct mu_store_request *q, struct mu_file_answer *answer)
{
    const struct entry *e = find(c, q->keys[0]);
    struct mu_span now = e != NULL ? value_of(e) : q->values[0];
    bool write = e != NULL ? mu_span_eq(now, q->values[0]) : q->values[0].len == 0;
    int err = give_values(answer, write ? &q->values[1] : &now, 1);

    answer->number = write;
    if (err == 0 && write) {
        err = stage(c, staged, q->keys[0], q->values[1], (struct mu_span){0});
    }
    return err;
}

static int append_value(struct mu_file_cache *c, struct mu_list *staged,
                        const struct mu_store_request *q, struct mu_file_answer *answer)
{
    const struct entry *e = find(c, q->keys[0]);
    struct mu_span old = e != NULL ? value_of(e) : (struct mu_span){0};

    give_number(answer, (int64_t)(old.len + q->values[0].len));
    return stage(c, staged, q->keys[0], old, q->values[0]);
}

static int delete_key(struct mu_file_cache *c, const struct mu_store_request *q,
                      struct mu_file_answer *answer)
{
    struct mu_file_record record = {.key = q->keys[0], .deletion = true};
    struct entry *e = find(c, q->keys[0]);
    int err = 0;

    if (e != NULL) {
        err = add_record(c, &record);
    }
    if (err == 0) {
        give_number(answer, e != NULL);
    }
    if (err == 0 && e != NULL) {
        drop_entry(c, e);
    }
    return err;
}

static bool has_all(const struct mu_file_cache *c, const struct mu_store_request *q)
{
    for (size_t i = 0; i < q->key_count; i++) {
        if (find(c, q->keys[i]) == NULL) {
            return false;
        }
    }
    return true;
}

static int get_all(const struct mu_file_cache *c, const struct mu_store_request *q,
                   struct mu_file_answer *answer)
{
    struct mu_span *values;
    int err;

    if (!has_all(c, q)) {
        return (q->flags & MU_STORE_NOWAIT) != 0 ? MUSTER_ENOENT : 0;
    }
    values = mu_calloc(q->key_count, sizeof(*values));
    if (values == NULL) {
        return MUSTER_ENOMEM;
    }
    for (size_t i = 0; i < q->key_count; i++) {
        values[i] = value_of(find(c, q->keys[i]));
    }
    err = give_values(answer, values, q->key_count);
    mu_free(values);
    return err;
}

static int list_keys(const struct mu_file_cache *c, const struct mu_store_request *q,
                     struct mu_file_answer *answer)
{
    struct mu_span prefix = q->key_count == 1 ? q->keys[0] : MU_SPAN_LIT("/");
    struct mu_span *keys = mu_calloc(c->map.count, sizeof(*keys));
    const struct mu_map_node *node = NULL;
    size_t count = 0;
    int err;

    if (keys == NULL) {
        return MUSTER_ENOMEM;
    }
    while ((node = mu_map_next(&c->map, node)) != NULL) {
        if (mu_span_starts_with(node->key, prefix)) {
            keys[count++] = mu_span_skip(node->key, 1);
        }
    }
    err = give_values(answer, keys, count);
    answer->number = (int64_t)count;
    mu_free(keys);
    return err;
}

static int execute(struct mu_file_cache *c, struct mu_list *staged,
                   const struct mu_store_request *q, struct mu_file_answer *answer)
{
    switch ((int)q->verb) {
    case MU_STORE_SET:
    case MU_STORE_MULTI_SET:
        return set_all(c, staged, q, answer);
    case MU_STORE_ADD:
        return add_number(c, staged, q, answer);
    case MU_STORE_COMPARE_SET:
        return compare_set(c, staged, q, answer);
    case MU_STORE_APPEND:
        return append_value(c, staged, q, answer);
    case MU_STORE_DELETE:
        return delete_key(c, q, answer);
    case MU_STORE_GET:
    case MU_STORE_MULTI_GET:
        return get_all(c, q, answer);
    case MU_STORE_WAIT:
        if (has_all(c, q)) {
            give_number(answer, 0);
        }
        return 0;
    case MU_STORE_CHECK:
        give_number(answer, has_all(c, q));
        return 0;
    case MU_STORE_NUM_KEYS:
        give_number(answer, (int64_t)c->map.count);
        return 0;
    case MU_STORE_LIST_KEYS:
        return list_keys(c, q, answer);
    default:
        return MUSTER_ENOTSUP;
    }
}

void mu_file_cache_execute(struct mu_file_cache *c, const struct mu_store_request *q,
                           struct mu_file_answer *answer)
{
    size_t out_len = c->out.len;
    struct mu_list staged;
    struct mu_list *it;
    int err;

    mu_list_init(&staged);
    mu_file_answer_clear(answer);
    err = execute(c, &staged, q, answer);
    while ((it = mu_list_pop(&staged)) != NULL) {
        struct entry *e = MU_CONTAINER_OF(it, struct entry, link);

        if (err == 0) {
            put_entry(c, e);
        } else {
            mu_free(e);
        }
    }
    if (err != 0) {
        c->out.len = out_len;
        give_failure(answer, q, err);
    }
}

bool mu_file_supports(const struct mu_store_request *q, struct mu_errmsg *reterr_msg)
{
    const char *what = mu_store_lacks(MU_STORE_IN_FILE, q);

    if (what != NULL) {
        (void)mu_err(reterr_msg, MUSTER_ENOTSUP,
                     "a store in a file does not support %s; use a server (muster serve) instead",
                     what);
    }
    return what == NULL;
}
