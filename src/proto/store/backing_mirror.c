/* What is known of keys, from the watch and from answers, and the operations that wait for them. */
#include "proto/store/backing_internal.h"

#include "core/alloc.h"
#include "core/assert.h"
#include "proto/store/keyspace.h"

/* --- keys ------------------------------------------------------------------------------------- */

struct mu_backing_key *mu_backing_find(const struct mu_backing *m, struct mu_span key)
{
    struct mu_map_node *node = mu_map_find(&m->keys, key);

    return node == NULL ? NULL : MU_CONTAINER_OF(node, struct mu_backing_key, node);
}

struct mu_backing_key *mu_backing_get(struct mu_backing *m, struct mu_span key)
{
    struct mu_backing_key *k = mu_backing_find(m, key);

    if (k != NULL) {
        return k;
    }
    k = mu_malloc(sizeof(*k) + key.len);
    if (k == NULL) {
        return NULL;
    }
    *k = (struct mu_backing_key){0};
    mu_list_init(&k->sleepers);
    mu_list_init(&k->elements);
    mu_list_init(&k->tomb);
    if (key.len != 0) {
        memcpy(k->bytes, key.data, key.len);
    }
    if (mu_map_insert(&m->keys, &k->node, mu_span(k->bytes, key.len)) != 0) {
        mu_free(k);
        return NULL;
    }
    return k;
}

void mu_backing_put(struct mu_backing *m, struct mu_backing_key *k)
{
    if (k->mod == 0 && k->gone == 0 && k->pins == 0 && mu_list_empty(&k->sleepers) &&
        mu_list_empty(&k->elements)) {
        mu_map_remove(&m->keys, &k->node);
        m->value_bytes -= k->len;
        mu_free(k->value);
        mu_free(k->was);
        mu_free(k);
    }
}

/* Takes ownership of the value. */
static void keep_value(struct mu_backing *m, struct mu_backing_key *k, uint8_t *value, size_t len)
{
    m->value_bytes = m->value_bytes - k->len + len;
    mu_free(k->was);
    k->was = NULL;
    k->was_len = 0;
    if (k->mod != 0 && !mu_list_empty(&m->watchers)) {
        k->was = k->value;
        k->was_len = k->len;
    } else {
        mu_free(k->value);
    }
    k->value = value;
    k->len = len;
}

/* --- waiting ---------------------------------------------------------------------------------- */

void mu_backing_unregister(struct mu_backing *m, struct mu_backing_op *op)
{
    for (size_t i = 0; i < op->reg_count; i++) {
        struct mu_backing_key *k = op->regs[i].key;

        if (k != NULL) {
            op->regs[i].key = NULL;
            mu_list_remove(&op->regs[i].link);
            mu_backing_put(m, k);
        }
    }
    mu_free(op->regs);
    op->regs = NULL;
    op->reg_count = 0;
    op->missing = 0;
}

int mu_backing_register(struct mu_backing *m, struct mu_backing_op *op, struct mu_span key,
                        int64_t since)
{
    struct mu_backing_key *k;

    if (op->regs == NULL) {
        op->regs = mu_calloc(op->request.key_count, sizeof(*op->regs));
        if (op->regs == NULL) {
            return MUSTER_ENOMEM;
        }
    }
    k = mu_backing_get(m, key);
    if (k == NULL) {
        return MUSTER_ENOMEM;
    }
    MU_ASSERT(op->reg_count < op->request.key_count);
    op->regs[op->reg_count] = (struct mu_backing_reg){.key = k, .op = op, .since = since};
    mu_list_init(&op->regs[op->reg_count].link);
    mu_list_push(&k->sleepers, &op->regs[op->reg_count].link);
    op->reg_count++;
    op->missing++;
    return 0;
}

/* The news that a sleeper may get. */
enum news {
    PUT = 1, /* the key has a value */
    PUSHED,
};

/* Returns whether the operation waits for this. */
static bool concerns(const struct mu_backing_reg *r, enum news news, int64_t revision,
                     struct mu_span value)
{
    const struct mu_store_request *q = &r->op->request;
    int64_t number;

    switch ((int)q->verb) {
    case MU_STORE_QUEUE_POP:
        return news == PUSHED;
    case MU_STORE_WAIT:
        return revision > r->since && (news == PUT || (q->flags & MU_BACKING_NO_QUEUES) == 0);
    case MU_STORE_BARRIER:
        return news == PUT && revision > r->since && mu_ks_read_number(value, &number) &&
               number >= q->number;
    default:
        return news == PUT && revision > r->since;
    }
}

/* What the operation waits for has come. */
static void wake(struct mu_backing *m, struct mu_backing_reg *r)
{
    struct mu_backing_op *op = r->op;

    if (op->request.verb == MU_STORE_WAIT) {
        mu_list_remove(&r->link);
        r->key = NULL;
        op->missing--;
        if (op->state == MU_BACKING_SLEEPING && op->missing == 0) {
            mu_backing_answer(m, op, 0, NULL, 0);
        }
    } else if (op->request.verb == MU_STORE_BARRIER) {
        mu_backing_answer(m, op, 0, NULL, 0);
    } else {
        mu_backing_unregister(m, op);
        op->at = 0;
        mu_buf_reset(&op->held);
        if (op->state == MU_BACKING_SLEEPING) {
            mu_backing_requeue(m, op);
        }
    }
}

static void wake_all(struct mu_backing *m, struct mu_backing_key *k, enum news news,
                     int64_t revision, struct mu_span value)
{
    struct mu_list waiting;
    struct mu_list *it;
    bool turn_taken = false;

    if (mu_list_empty(&k->sleepers)) {
        return;
    }
    mu_list_init(&waiting);
    while ((it = mu_list_pop(&k->sleepers)) != NULL) {
        mu_list_push(&waiting, it);
    }
    k->pins++;
    while ((it = mu_list_pop(&waiting)) != NULL) {
        struct mu_backing_reg *r = MU_CONTAINER_OF(it, struct mu_backing_reg, link);

        bool in_turn = news == PUSHED && (r->op->request.flags & MU_BACKING_IN_TURN) != 0 &&
                       r->op->missing == 1;

        if (!concerns(r, news, revision, value) || (in_turn && turn_taken)) {
            mu_list_push(&k->sleepers, it);
        } else {
            turn_taken = turn_taken || in_turn;
            wake(m, r);
        }
    }
    k->pins--;
}

void mu_backing_sleep(struct mu_backing *m, struct mu_backing_op *op)
{
    op->state = MU_BACKING_SLEEPING;
    if (op->missing == 0) {
        MU_ASSERT(op->request.verb == MU_STORE_WAIT);
        mu_backing_answer(m, op, 0, NULL, 0);
        return;
    }
    if (op->request.verb != MU_STORE_WAIT && op->request.verb != MU_STORE_BARRIER) {
        op->holds = true;
        op->client->flying++;
    }
    mu_list_push(&m->sleepers, &op->link);
    /* The watch may have been faster than the answer that makes the operation sleep. */
    for (size_t i = 0; op->state == MU_BACKING_SLEEPING && i < op->reg_count; i++) {
        struct mu_backing_reg *r = &op->regs[i];
        struct mu_backing_key *k = r->key;
        const struct mu_backing_element *e;

        if (k == NULL) {
            continue;
        }
        k->pins++;
        e = mu_backing_first_element(m, k->node.key);
        if ((k->mod != 0 && concerns(r, PUT, k->mod, mu_span(k->value, k->len))) ||
            (e != NULL && concerns(r, PUSHED, e->created, (struct mu_span){0})) ||
            /* A barrier whose key was deleted had been complete, or never will be. */
            (op->request.verb == MU_STORE_BARRIER && k->mod == 0 &&
             (k->as_of > r->since || (m->whole && m->reached > r->since)))) {
            wake(m, r);
        }
        k->pins--;
        mu_backing_put(m, k);
    }
}

/* The operation slept without a watch and may have missed what it waits for: etcd is asked once
 * more. */
static void look_again(struct mu_backing *m, struct mu_backing_op *op)
{
    if (op->request.verb == MU_STORE_WAIT && (op->request.flags & MU_BACKING_IN_TURN) != 0) {
        /* The watch has told of the present elements and woken one operation for each: if all asked
         * once more, all would find the same one. */
        return;
    }
    if (op->request.verb != MU_STORE_BARRIER) {
        mu_backing_unregister(m, op);
        op->at = 0;
        mu_buf_reset(&op->held);
        mu_backing_requeue(m, op);
    } else if (op->regs[0].key->mod == 0) {
        /* Its key was deleted: the barrier had been complete, or never will be. */
        mu_backing_answer(m, op, 0, NULL, 0);
    }
}

void mu_backing_set_watching(struct mu_backing *m, bool watching)
{
    struct mu_list *it = m->sleepers.prev;

    m->watching = watching;
    if (!watching) {
        m->tracking = false;
        mu_backing_unhold(m);
    }
    while (watching && it != &m->sleepers) {
        struct mu_backing_op *op = MU_CONTAINER_OF(it, struct mu_backing_op, link);

        it = it->prev;
        look_again(m, op);
    }
}

/* --- learning --------------------------------------------------------------------------------- */

/* The key was deleted, and the watch has yet to tell: until then the deletion must be
 * remembered. */
static void bury(struct mu_backing *m, struct mu_backing_key *k, int64_t revision)
{
    if (m->tracking && k->mod != 0) {
        k->gone = revision;
        mu_list_remove(&k->tomb);
        mu_list_push(&m->tombs, &k->tomb);
    }
}

/* An answer may be older than what the watch has told. */
static bool is_old_news(const struct mu_backing *m, const struct mu_backing_key *k,
                        int64_t revision)
{
    return revision <= k->as_of || (m->whole && revision <= m->reached);
}

void mu_backing_learn_own(struct mu_backing *m, struct mu_backing_key *k, uint8_t *value,
                          size_t len, bool present, int64_t lease, int64_t revision)
{
    if (is_old_news(m, k, revision)) {
        mu_free(value);
        return;
    }
    if (!present) {
        bury(m, k, revision);
    }
    keep_value(m, k, value, len);
    k->lease = lease;
    k->mod = present ? revision : 0;
    k->as_of = revision;
    if (present) {
        wake_all(m, k, PUT, k->mod, mu_span(value, len));
    }
}

int mu_backing_learn(struct mu_backing *m, struct mu_backing_key *k, const struct mu_etcd_kv *kv,
                     int64_t revision)
{
    uint8_t *value = NULL;

    if (is_old_news(m, k, revision)) {
        return 0;
    }
    if (kv != NULL && kv->mod_revision == k->mod) {
        k->as_of = revision;
        return 0;
    }
    if (kv != NULL) {
        value = mu_malloc(kv->value.len);
        if (value == NULL) {
            return MUSTER_ENOMEM;
        }
        if (kv->value.len != 0) {
            memcpy(value, kv->value.data, kv->value.len);
        }
    }
    if (kv == NULL) {
        bury(m, k, revision);
    }
    keep_value(m, k, value, kv == NULL ? 0 : kv->value.len);
    k->lease = kv == NULL ? 0 : kv->lease;
    k->mod = kv == NULL ? 0 : kv->mod_revision;
    k->as_of = revision;
    if (kv != NULL) {
        wake_all(m, k, PUT, k->mod, kv->value);
    }
    return 0;
}

/* --- queues ----------------------------------------------------------------------------------- */

struct mu_backing_element *mu_backing_find_element(const struct mu_backing *m, struct mu_span name)
{
    struct mu_map_node *node = mu_map_find(&m->elements, name);

    return node == NULL ? NULL : MU_CONTAINER_OF(node, struct mu_backing_element, node);
}

struct mu_backing_element *mu_backing_first_element(const struct mu_backing *m, struct mu_span key)
{
    const struct mu_backing_key *k = mu_backing_find(m, key);

    if (k == NULL) {
        return NULL;
    }
    MU_LIST_FOREACH (it, &k->elements) {
        struct mu_backing_element *e = MU_CONTAINER_OF(it, struct mu_backing_element, link);

        if (!e->taken) {
            return e;
        }
    }
    return NULL;
}

static void drop_element(struct mu_backing *m, struct mu_backing_element *e)
{
    struct mu_backing_key *k = e->key;

    mu_list_remove(&e->link);
    mu_map_remove(&m->elements, &e->node);
    mu_free(e);
    mu_backing_put(m, k);
}

/* Oldest first; elements of one transaction in the order of their names. */
static bool is_behind(const struct mu_backing_element *a, const struct mu_backing_element *b)
{
    size_t len = a->name_len < b->name_len ? a->name_len : b->name_len;
    int order;

    if (a->created != b->created) {
        return a->created > b->created;
    }
    order = memcmp(a->bytes, b->bytes, len);
    return order != 0 ? order > 0 : a->name_len > b->name_len;
}

static int add_element(struct mu_backing *m, struct mu_span key, const struct mu_etcd_kv *kv)
{
    struct mu_backing_element *e = mu_backing_find_element(m, kv->key);
    struct mu_backing_key *k;
    struct mu_list *at;

    if (e != NULL) {
        return 0; /* An element is never written twice. */
    }
    k = mu_backing_get(m, key);
    e = k == NULL ? NULL : mu_malloc(sizeof(*e) + kv->key.len + kv->value.len);
    if (e == NULL) {
        if (k != NULL) {
            mu_backing_put(m, k);
        }
        return MUSTER_ENOMEM;
    }
    *e = (struct mu_backing_element){
        .key = k, .created = kv->create_revision, .name_len = kv->key.len, .len = kv->value.len};
    memcpy(e->bytes, kv->key.data, kv->key.len);
    e->value = e->bytes + kv->key.len;
    if (kv->value.len != 0) {
        memcpy(e->value, kv->value.data, kv->value.len);
    }
    if (mu_map_insert(&m->elements, &e->node, mu_span(e->bytes, e->name_len)) != 0) {
        mu_free(e);
        mu_backing_put(m, k);
        return MUSTER_ENOMEM;
    }
    at = k->elements.prev;
    while (at != &k->elements &&
           is_behind(MU_CONTAINER_OF(at, struct mu_backing_element, link), e)) {
        at = at->prev;
    }
    mu_list_init(&e->link);
    mu_list_push(at->next, &e->link); /* It is inserted before the next one. */
    k->pins++;
    wake_all(m, k, PUSHED, e->created, (struct mu_span){0});
    k->pins--;
    return 0;
}

void mu_backing_untake(struct mu_backing *m, struct mu_backing_element *e)
{
    e->taken = false;
    wake_all(m, e->key, PUSHED, e->created, (struct mu_span){0});
}

/* --- the watch -------------------------------------------------------------------------------- */

/* Finds the key whose queue an element belongs to, after "PREFIX/q/": eight digits, a slash, the
 * key. */
static bool read_queue_name(struct mu_span rest, struct mu_span *ret_key)
{
    size_t len = 0;

    if (rest.len < 10) {
        return false;
    }
    for (size_t i = 0; i < 8; i++) {
        uint8_t c = rest.data[i];
        uint8_t digit = c >= '0' && c <= '9' ? (uint8_t)(c - '0') : (uint8_t)(c - 'a' + 10);

        if (digit > 15) {
            return false;
        }
        len = len << 4 | digit;
    }
    rest = mu_span_skip(rest, 9);
    if (len >= rest.len || rest.data[len] != '/') {
        return false;
    }
    *ret_key = mu_span(rest.data, len);
    return true;
}

static int change_value(struct mu_backing *m, struct mu_span key, const struct mu_etcd_kv *kv,
                        bool deleted, int64_t revision)
{
    struct mu_backing_key *k = deleted ? mu_backing_find(m, key) : mu_backing_get(m, key);
    int err;

    if (k == NULL) {
        return deleted ? 0 : MUSTER_ENOMEM;
    }
    mu_buf_reset(&m->old);
    if (!mu_list_empty(&m->watchers)) {
        /* The answer to a write of ours may have come before the watch tells of it. */
        struct mu_span old = k->as_of >= revision
                                 ? mu_span(k->was, k->mod == revision ? k->was_len : 0)
                             : k->mod != 0 ? mu_span(k->value, k->len)
                                           : (struct mu_span){0};

        err = mu_buf_append(&m->old, old);
        if (err != 0) {
            return err;
        }
    }
    k->pins++;
    err = mu_backing_learn(m, k, deleted ? NULL : kv, revision);
    if (!deleted) {
        k->told = true;
        /* An answer may have been ahead of this, but sleeping operations have not seen it. */
        wake_all(m, k, PUT, kv->mod_revision, kv->value);
    }
    k->pins--;
    mu_backing_put(m, k);
    return err;
}

int mu_backing_changed(struct mu_backing *m, const struct mu_etcd_kv *kv, bool deleted,
                       bool created, bool initial, int64_t revision)
{
    struct mu_span rest = kv->key;
    struct mu_span key;

    m->cursor = NULL;
    if (rest.len < m->prefix_len + 3) {
        return 0;
    }
    rest = mu_span_skip(rest, m->prefix_len);
    if (mu_span_starts_with(rest, MU_SPAN_LIT("/q/"))) {
        struct mu_backing_element *e = mu_backing_find_element(m, kv->key);

        if (deleted && e != NULL) {
            drop_element(m, e);
        }
        return deleted || !read_queue_name(mu_span_skip(rest, 3), &key) ? 0
                                                                        : add_element(m, key, kv);
    }
    if (!mu_span_starts_with(rest, MU_SPAN_LIT("/k/"))) {
        return 0;
    }
    key = mu_span_skip(rest, 3);
    m->told = (struct mu_change){
        .kind = deleted   ? MU_CHANGE_DELETED
                : created ? MU_CHANGE_CREATED
                          : MU_CHANGE_UPDATED,
        .revision = (uint64_t)revision,
        .key = key,
        .value = deleted ? (struct mu_span){0} : kv->value,
    };
    m->told_initial = initial;
    m->cursor = m->watchers.next;
    return change_value(m, key, kv, deleted, revision);
}

bool mu_backing_next_watcher(struct mu_backing *m, struct mu_backing_op **ret_op,
                             struct mu_change *ret_change)
{
    while (m->cursor != NULL && m->cursor != &m->watchers) {
        struct mu_backing_op *op = MU_CONTAINER_OF(m->cursor, struct mu_backing_op, link);
        const struct mu_store_request *q = &op->request;

        m->cursor = m->cursor->next;
        if (m->told_initial && (q->flags & MU_STORE_CURRENT) == 0) {
            continue;
        }
        if ((q->flags & MU_STORE_PREFIX) != 0 ? mu_span_starts_with(m->told.key, q->keys[0])
                                              : mu_span_eq(m->told.key, q->keys[0])) {
            *ret_op = op;
            *ret_change = m->told;
            ret_change->old_value = mu_buf_span(&m->old);
            return true;
        }
    }
    m->cursor = NULL;
    return false;
}

bool mu_backing_next_key(const struct mu_backing *m, const struct mu_map_node **cursor,
                         struct mu_change *ret_change)
{
    const struct mu_map_node *node = *cursor;

    while ((node = mu_map_next(&m->keys, node)) != NULL) {
        const struct mu_backing_key *k = MU_CONTAINER_OF(node, struct mu_backing_key, node);

        if (k->mod != 0) {
            *cursor = node;
            *ret_change = (struct mu_change){
                .kind = MU_CHANGE_CREATED,
                .revision = (uint64_t)k->mod,
                .key = k->node.key,
                .value = mu_span(k->value, k->len),
            };
            return true;
        }
    }
    return false;
}

/* Keys that answers told while the watch began may have been deleted before the watch read the
 * present keys. */
static void drop_untold(struct mu_backing *m, int64_t revision)
{
    struct mu_map_node *node = mu_map_next(&m->keys, NULL);

    while (node != NULL) {
        struct mu_map_node *next = mu_map_next(&m->keys, node);
        struct mu_backing_key *k = MU_CONTAINER_OF(node, struct mu_backing_key, node);

        if (k->mod != 0 && !k->told && k->mod <= revision) {
            k->mod = k->lease = 0;
            mu_backing_put(m, k);
        }
        node = next;
    }
}

static void drop_tombs(struct mu_backing *m)
{
    MU_LIST_FOREACH_SAFE (it, tmp, &m->tombs) {
        struct mu_backing_key *k = MU_CONTAINER_OF(it, struct mu_backing_key, tomb);

        if (k->gone <= m->reached) {
            k->gone = 0;
            mu_list_remove(&k->tomb);
            mu_backing_put(m, k);
        }
    }
}

void mu_backing_told(struct mu_backing *m, int64_t revision)
{
    if (!m->whole) {
        drop_untold(m, revision);
        m->whole = true;
    }
    m->reached = revision > m->reached ? revision : m->reached;
    drop_tombs(m);
    if (m->gap != 0 && m->gap <= m->reached) {
        m->gap = 0;
        m->gap_reads = 0;
        m->mark_due = false;
    }
    mu_backing_settle(m);
}

void mu_backing_begin_watch(struct mu_backing *m)
{
    mu_backing_forget(m);
    m->tracking = true;
}

void mu_backing_forget(struct mu_backing *m)
{
    struct mu_map_node *node = mu_map_next(&m->elements, NULL);

    m->cursor = NULL;
    m->whole = m->holed = m->mark_due = false;
    m->reached = m->expected = m->gap = 0;
    while (node != NULL) {
        struct mu_map_node *next = mu_map_next(&m->elements, node);

        drop_element(m, MU_CONTAINER_OF(node, struct mu_backing_element, node));
        node = next;
    }
    node = mu_map_next(&m->keys, NULL);
    while (node != NULL) {
        struct mu_map_node *next = mu_map_next(&m->keys, node);
        struct mu_backing_key *k = MU_CONTAINER_OF(node, struct mu_backing_key, node);

        k->mod = k->as_of = k->lease = k->gone = 0;
        k->told = false;
        mu_list_remove(&k->tomb);
        mu_backing_put(m, k);
        node = next;
    }
}
