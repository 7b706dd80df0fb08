#include "core/alloc.h"
#include "core/assert.h"
#include "proto/store/keyspace_internal.h"

/*
 * Bytes that are watched, as a key, as a prefix, or both. A change finds its watches with one
 * lookup of its key and one for each length that a watched prefix has.
 */
struct mu_ks_watched {
    struct mu_map_node node;
    struct mu_list exact; /* watches of this key */
    struct mu_list below; /* watches of all keys that begin with it */
    size_t change_count;  /* changes not pulled that point here */
    uint8_t bytes[];
};

static struct mu_ks_watched *watched_of(struct mu_map_node *node)
{
    return node == NULL ? NULL : MU_CONTAINER_OF(node, struct mu_ks_watched, node);
}

static struct mu_list *list_of(struct mu_ks_watched *on, bool prefix)
{
    return prefix ? &on->below : &on->exact;
}

static size_t watched_cost(size_t len)
{
    return sizeof(struct mu_ks_watched) + len + 2 * sizeof(void *) + MU_KS_ALLOC_OVERHEAD;
}

static void settle_watched(struct mu_keyspace *ks, struct mu_ks_watched *on)
{
    if (mu_list_empty(&on->exact) && mu_list_empty(&on->below) && on->change_count == 0) {
        mu_map_remove(&ks->watched, &on->node);
        mu_ks_uncharge(ks, watched_cost(on->node.key.len));
        mu_free(on);
    }
}

/* --- the lengths of watched prefixes --------------------------------------------------------- */

static size_t prefix_len_index(const struct mu_keyspace *ks, size_t len)
{
    size_t i = 0;

    while (i < ks->prefix_len_count && ks->prefix_lens[i].len < len) {
        i++;
    }
    return i;
}

/* Counts one more watched prefix of that length; needs room for one more. */
static void add_prefix_len(struct mu_keyspace *ks, size_t len)
{
    size_t i = prefix_len_index(ks, len);

    if (i < ks->prefix_len_count && ks->prefix_lens[i].len == len) {
        ks->prefix_lens[i].count++;
        return;
    }
    memmove(ks->prefix_lens + i + 1, ks->prefix_lens + i,
            (ks->prefix_len_count - i) * sizeof(*ks->prefix_lens));
    ks->prefix_lens[i] = (struct mu_ks_prefix_len){.len = len, .count = 1};
    ks->prefix_len_count++;
}

static void remove_prefix_len(struct mu_keyspace *ks, size_t len)
{
    size_t i = prefix_len_index(ks, len);

    MU_ASSERT(i < ks->prefix_len_count && ks->prefix_lens[i].len == len);
    if (--ks->prefix_lens[i].count == 0) {
        ks->prefix_len_count--;
        memmove(ks->prefix_lens + i, ks->prefix_lens + i + 1,
                (ks->prefix_len_count - i) * sizeof(*ks->prefix_lens));
    }
}

static int reserve_prefix_len(struct mu_keyspace *ks)
{
    size_t cap = ks->prefix_len_cap == 0 ? 8 : ks->prefix_len_cap * 2;
    struct mu_ks_prefix_len *bigger;

    if (ks->prefix_len_count < ks->prefix_len_cap) {
        return 0;
    }
    bigger = mu_realloc(ks->prefix_lens, cap * sizeof(*bigger));
    if (bigger == NULL) {
        return MUSTER_ENOMEM;
    }
    ks->prefix_lens = bigger;
    ks->prefix_len_cap = cap;
    return 0;
}

/* --- watching -------------------------------------------------------------------------------- */

static int watched_new(struct mu_keyspace *ks, struct mu_span key, uint64_t hash,
                       struct mu_ks_watched **ret)
{
    struct mu_ks_watched *on;
    int err = mu_ks_charge(ks, watched_cost(key.len), 0);

    if (err != 0) {
        return err;
    }
    on = mu_malloc(sizeof(*on) + key.len);
    if (on == NULL) {
        mu_ks_uncharge(ks, watched_cost(key.len));
        return MUSTER_ENOMEM;
    }
    *on = (struct mu_ks_watched){0};
    if (key.len != 0) {
        memcpy(on->bytes, key.data, key.len);
    }
    mu_list_init(&on->exact);
    mu_list_init(&on->below);
    err = mu_map_insert_hash(&ks->watched, &on->node, mu_span(on->bytes, key.len), hash);
    if (err != 0) {
        mu_ks_uncharge(ks, watched_cost(key.len));
        mu_free(on);
        return err;
    }
    *ret = on;
    return 0;
}

int mu_ks_watch(struct mu_keyspace *ks, struct mu_ks_watch *w, struct mu_span key, bool prefix)
{
    uint64_t hash = mu_map_hash(&ks->watched, key);
    struct mu_ks_watched *on;
    int err = 0;

    MU_ASSERT(w->on == NULL);
    if (key.len > ks->config.key_bytes_max) {
        return MUSTER_ELIMIT;
    }
    if (prefix) {
        err = reserve_prefix_len(ks);
    }
    on = watched_of(mu_map_find_hash(&ks->watched, key, hash));
    if (err == 0 && on == NULL) {
        err = watched_new(ks, key, hash, &on);
    }
    if (err != 0) {
        return err;
    }
    if (prefix && mu_list_empty(&on->below)) {
        add_prefix_len(ks, key.len);
    }
    w->on = on;
    w->prefix = prefix;
    w->since = ks->revision;
    mu_list_push(list_of(on, prefix), &w->link);
    ks->watch_count++;
    return 0;
}

void mu_ks_unwatch(struct mu_keyspace *ks, struct mu_ks_watch *w)
{
    struct mu_ks_watched *on = w->on;

    if (on == NULL) {
        return;
    }
    if (ks->cursor == &w->link) {
        ks->cursor = w->link.next;
    }
    mu_list_remove(&w->link);
    w->on = NULL;
    ks->watch_count--;
    if (w->prefix && mu_list_empty(&on->below)) {
        remove_prefix_len(ks, on->node.key.len);
    }
    settle_watched(ks, on);
}

/* --- news ------------------------------------------------------------------------------------ */

/* Finds the watched bytes that `key` concerns; fills `targets` unless it is NULL, and counts. */
static size_t find_targets(const struct mu_keyspace *ks, const struct mu_map_node *key,
                           struct mu_ks_target *targets)
{
    struct mu_ks_watched *on = watched_of(mu_map_find_hash(&ks->watched, key->key, key->hash));
    size_t n = 0;

    if (on != NULL && !mu_list_empty(&on->exact)) {
        if (targets != NULL) {
            targets[n] = (struct mu_ks_target){.on = on};
        }
        n++;
    }
    for (size_t i = 0; i < ks->prefix_len_count && ks->prefix_lens[i].len <= key->key.len; i++) {
        struct mu_span prefix = {key->key.data, ks->prefix_lens[i].len};

        on = watched_of(mu_map_find(&ks->watched, prefix));
        if (on != NULL && !mu_list_empty(&on->below)) {
            if (targets != NULL) {
                targets[n] = (struct mu_ks_target){.on = on, .prefix = true};
            }
            n++;
        }
    }
    return n;
}

static struct mu_span put_copy(uint8_t **at, struct mu_span s)
{
    struct mu_span copy = {*at, s.len};

    if (s.len != 0) {
        memcpy(*at, s.data, s.len);
    }
    *at += s.len;
    return copy;
}

int mu_ks_change_new(struct mu_keyspace *ks, const struct mu_ks_entry *e, enum mu_change_kind kind,
                     struct mu_span head, struct mu_span tail, struct mu_ks_change **ret)
{
    size_t n = find_targets(ks, &e->node, NULL);
    struct mu_span old = mu_ks_value(e);
    struct mu_ks_change *c;
    uint8_t *at;

    if (n == 0) {
        *ret = NULL;
        return 0;
    }
    c = mu_malloc(sizeof(*c) + n * sizeof(c->targets[0]) + e->node.key.len + old.len + head.len +
                  tail.len);
    if (c == NULL) {
        return MUSTER_ENOMEM;
    }
    *c = (struct mu_ks_change){.target_count = n, .what.kind = kind};
    (void)find_targets(ks, &e->node, c->targets);
    for (size_t i = 0; i < n; i++) {
        c->targets[i].on->change_count++;
    }
    at = (uint8_t *)&c->targets[n];
    c->what.key = put_copy(&at, e->node.key);
    c->what.old_value = put_copy(&at, old);
    c->what.value = put_copy(&at, head);
    c->what.value.len += put_copy(&at, tail).len;
    mu_list_init(&c->link);
    *ret = c;
    return 0;
}

void mu_ks_change_commit(struct mu_keyspace *ks, struct mu_ks_change *change)
{
    ks->revision++;
    if (change != NULL) {
        change->what.revision = ks->revision;
        mu_list_push(&ks->changes, &change->link);
    }
}

void mu_ks_change_free(struct mu_keyspace *ks, struct mu_ks_change *change)
{
    if (change == NULL) {
        return;
    }
    for (size_t i = 0; i < change->target_count; i++) {
        struct mu_ks_watched *on = change->targets[i].on;

        on->change_count--;
        settle_watched(ks, on);
    }
    mu_list_remove(&change->link);
    mu_free(change);
}

/* Returns the next watch to tell of the first change; NULL when all were told. */
static struct mu_ks_watch *next_listener(struct mu_keyspace *ks, struct mu_ks_change *c)
{
    for (; c->at < c->target_count; c->at++, ks->cursor = NULL) {
        struct mu_list *list = list_of(c->targets[c->at].on, c->targets[c->at].prefix);
        struct mu_list *at = ks->cursor == NULL ? list->next : ks->cursor;

        for (; at != list; at = at->next) {
            struct mu_ks_watch *w = MU_CONTAINER_OF(at, struct mu_ks_watch, link);

            if (w->since < c->what.revision) {
                ks->cursor = at->next;
                return w;
            }
        }
    }
    return NULL;
}

bool mu_ks_pull_change(struct mu_keyspace *ks, struct mu_ks_watch **ret_watch,
                       struct mu_change *ret_change)
{
    while (!mu_list_empty(&ks->changes)) {
        struct mu_ks_change *c = MU_CONTAINER_OF(ks->changes.next, struct mu_ks_change, link);
        struct mu_ks_watch *w = next_listener(ks, c);

        if (w != NULL) {
            *ret_watch = w;
            *ret_change = c->what;
            return true;
        }
        mu_ks_change_free(ks, c);
    }
    return false;
}

void mu_ks_watch_fini(struct mu_keyspace *ks)
{
    MU_ASSERT(ks->watch_count == 0);
    while (!mu_list_empty(&ks->changes)) {
        mu_ks_change_free(ks, MU_CONTAINER_OF(ks->changes.next, struct mu_ks_change, link));
    }
    mu_map_fini(&ks->watched);
    mu_free(ks->prefix_lens);
    ks->prefix_lens = NULL;
}
