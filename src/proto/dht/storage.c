#include "proto/dht/storage.h"

#include <muster/error.h>

#include "codec/bin/msgpack.h"
#include "core/alloc.h"
#include "core/assert.h"

/* A peer that has stored records here, for as long as any of them is kept. */
struct mu_dht_owner {
    struct mu_map_node by_peer;
    struct mu_peer_id peer;
    size_t bytes;
    uint32_t records; /* that it made */
    size_t holds;     /* records, entries and shares that point here */
};

/* How many subkeys of one dictionary a peer has stored. */
struct share {
    struct mu_map_node by_peer;
    struct mu_dht_owner *owner;
    uint32_t count;
};

struct entry {
    struct mu_map_node by_subkey;
    struct mu_heap_node due;
    struct mu_list link;
    struct mu_dht_record *record;
    struct mu_dht_owner *owner;
    struct mu_dht_entry what; /* in the bytes that follow */
    uint8_t bytes[];
};

void mu_dht_storage_init(struct mu_dht_storage *s, const struct mu_dht_storage_config *config)
{
    struct mu_dht_storage_config c = *config;

    c.records_max = c.records_max != 0 ? c.records_max : c.cache ? 16384 : 65536;
    c.peer_records_max = c.peer_records_max != 0 ? c.peer_records_max : (c.records_max + 7) / 8;
    c.subkeys_max = c.subkeys_max != 0 ? c.subkeys_max : 8192;
    c.peer_subkeys_max = c.peer_subkeys_max != 0 ? c.peer_subkeys_max : 1024;
    c.subkey_len_max = c.subkey_len_max != 0 ? c.subkey_len_max : 4096;
    c.value_len_max = c.value_len_max != 0 ? c.value_len_max : 256u << 10;
    c.dict_len_max = c.dict_len_max != 0 ? c.dict_len_max : 2u << 20;
    c.bytes_max = c.bytes_max != 0 ? c.bytes_max : c.cache ? 64u << 20 : 256u << 20;
    c.peer_bytes_max = c.peer_bytes_max != 0 ? c.peer_bytes_max : c.bytes_max / 8;
    *s = (struct mu_dht_storage){.config = c};
    mu_map_init(&s->by_key, c.seed);
    mu_map_init(&s->owners, c.seed);
    mu_heap_init(&s->due);
    mu_heap_init(&s->sub_due);
}

/* --- time ------------------------------------------------------------------------------------- */

/* Doubles above zero are in the order of their bits, so the heap of deadlines serves them too. */
static mu_mono_t order_of(double seconds)
{
    uint64_t bits;

    if (!(seconds > 0)) {
        return (mu_mono_t){0};
    }
    memcpy(&bits, &seconds, sizeof(bits));
    return (mu_mono_t){bits};
}

double mu_dht_storage_next_expiration(const struct mu_dht_storage *s)
{
    mu_mono_t at = mu_mono_min(mu_heap_deadline(&s->due), mu_heap_deadline(&s->sub_due));
    double seconds = __builtin_inf();

    if (at.ns != MU_MONO_NEVER.ns) {
        memcpy(&seconds, &at.ns, sizeof(seconds));
    }
    return seconds;
}

/* --- owners ----------------------------------------------------------------------------------- */

/*
 * Finds or makes the owner of a peer and holds it until release_owner(), so that it does not go
 * with the last of its earlier records.
 */
static int hold_owner(struct mu_dht_storage *s, const struct mu_peer_id *from,
                      struct mu_dht_owner **ret)
{
    struct mu_map_node *n;
    struct mu_dht_owner *o;

    *ret = NULL;
    if (from == NULL) {
        return 0;
    }
    n = mu_map_find(&s->owners, mu_peer_id_span(from));
    if (n != NULL) {
        *ret = MU_CONTAINER_OF(n, struct mu_dht_owner, by_peer);
        (*ret)->holds++;
        return 0;
    }
    o = mu_calloc(1, sizeof(*o));
    if (o == NULL) {
        return MUSTER_ENOMEM;
    }
    o->peer = *from;
    if (mu_map_insert(&s->owners, &o->by_peer, mu_peer_id_span(&o->peer)) != 0) {
        mu_free(o);
        return MUSTER_ENOMEM;
    }
    o->holds = 1;
    *ret = o;
    return 0;
}

static void release_owner(struct mu_dht_storage *s, struct mu_dht_owner *o)
{
    if (o != NULL && --o->holds == 0) {
        mu_map_remove(&s->owners, &o->by_peer);
        mu_free(o);
    }
}

static void charge(struct mu_dht_storage *s, struct mu_dht_owner *o, size_t bytes)
{
    s->bytes += bytes;
    if (o != NULL) {
        o->bytes += bytes;
        o->holds++;
    }
}

static void discharge(struct mu_dht_storage *s, struct mu_dht_owner *o, size_t bytes)
{
    s->bytes -= bytes;
    if (o != NULL) {
        o->bytes -= bytes;
        release_owner(s, o);
    }
}

static struct share *find_share(const struct mu_dht_record *r, const struct mu_dht_owner *o)
{
    struct mu_map_node *n = o == NULL ? NULL : mu_map_find(&r->shares, mu_peer_id_span(&o->peer));

    return n == NULL ? NULL : MU_CONTAINER_OF(n, struct share, by_peer);
}

static int add_share(struct mu_dht_record *r, struct mu_dht_owner *o)
{
    struct share *share = find_share(r, o);

    if (o == NULL) {
        return 0;
    }
    if (share == NULL) {
        share = mu_calloc(1, sizeof(*share));
        if (share == NULL) {
            return MUSTER_ENOMEM;
        }
        share->owner = o;
        if (mu_map_insert(&r->shares, &share->by_peer, mu_peer_id_span(&o->peer)) != 0) {
            mu_free(share);
            return MUSTER_ENOMEM;
        }
        o->holds++;
    }
    share->count++;
    return 0;
}

static void drop_share(struct mu_dht_storage *s, struct mu_dht_record *r, struct mu_dht_owner *o)
{
    struct share *share = find_share(r, o);

    if (share != NULL && --share->count == 0) {
        mu_map_remove(&r->shares, &share->by_peer);
        mu_free(share);
        release_owner(s, o);
    }
}

/* --- removal ---------------------------------------------------------------------------------- */

static size_t entry_cost(const struct entry *e)
{
    return sizeof(*e) + e->what.subkey.len + e->what.value.len;
}

static void drop_entry(struct mu_dht_storage *s, struct entry *e)
{
    struct mu_dht_record *r = e->record;
    struct mu_dht_owner *o = e->owner;

    mu_heap_remove(&s->sub_due, &e->due);
    mu_map_remove(&r->subkeys, &e->by_subkey);
    mu_list_remove(&e->link);
    r->entry_bytes -= mu_dht_entry_len(&e->what);
    drop_share(s, r, o);
    discharge(s, o, entry_cost(e));
    mu_free(e);
}

/* Frees what the record holds, a value or a dictionary. */
static void drop_content(struct mu_dht_storage *s, struct mu_dht_record *r)
{
    struct mu_list *node;

    if (r->type == MU_DHT_FOUND_REGULAR) {
        discharge(s, r->owner, r->value_cost);
        mu_free((void *)r->value.data);
        r->value = (struct mu_span){0};
        r->owner = NULL;
        r->value_cost = 0;
    }
    while ((node = r->entries.next) != &r->entries) {
        drop_entry(s, MU_CONTAINER_OF(node, struct entry, link));
    }
}

static void drop_record(struct mu_dht_storage *s, struct mu_dht_record *r)
{
    drop_content(s, r);
    mu_map_fini(&r->subkeys);
    mu_map_fini(&r->shares);
    mu_heap_remove(&s->due, &r->due);
    mu_map_remove(&s->by_key, &r->by_key);
    if (r->maker != NULL) {
        r->maker->records--;
    }
    discharge(s, r->maker, sizeof(*r));
    mu_free(r);
}

void mu_dht_storage_fini(struct mu_dht_storage *s)
{
    struct mu_heap_node *node;

    while ((node = mu_heap_min(&s->due)) != NULL) {
        drop_record(s, MU_CONTAINER_OF(node, struct mu_dht_record, due));
    }
    MU_ASSERT(s->bytes == 0 && s->owners.count == 0);
    mu_map_fini(&s->by_key);
    mu_map_fini(&s->owners);
}

void mu_dht_storage_expire(struct mu_dht_storage *s, double now)
{
    mu_mono_t at = order_of(now);
    struct mu_heap_node *node;

    while ((node = mu_heap_pop_due(&s->due, at)) != NULL) {
        drop_record(s, MU_CONTAINER_OF(node, struct mu_dht_record, due));
    }
    while ((node = mu_heap_pop_due(&s->sub_due, at)) != NULL) {
        drop_entry(s, MU_CONTAINER_OF(node, struct entry, due));
    }
}

/* --- lookup ----------------------------------------------------------------------------------- */

static struct mu_dht_record *find_record(const struct mu_dht_storage *s,
                                         const struct mu_dht_id *key)
{
    struct mu_map_node *n = mu_map_find(&s->by_key, mu_dht_id_span(key));

    return n == NULL ? NULL : MU_CONTAINER_OF(n, struct mu_dht_record, by_key);
}

/* A dictionary may outlive all its subkeys; then there is nothing to return. */
static bool is_empty(const struct mu_dht_record *r)
{
    return r->type == MU_DHT_FOUND_DICTIONARY && mu_list_empty(&r->entries);
}

const struct mu_dht_record *mu_dht_storage_get(struct mu_dht_storage *s, double now,
                                               const struct mu_dht_id *key)
{
    struct mu_dht_record *r;

    mu_dht_storage_expire(s, now);
    r = find_record(s, key);
    return r == NULL || is_empty(r) ? NULL : r;
}

bool mu_dht_record_next(const struct mu_dht_record *r, const void **walk, struct mu_dht_entry *ret)
{
    const struct mu_list *last = *walk;
    const struct mu_list *node = last == NULL ? r->entries.next : last->next;

    if (r->type != MU_DHT_FOUND_DICTIONARY || node == &r->entries) {
        return false;
    }
    *ret = MU_CONTAINER_OF(node, const struct entry, link)->what;
    *walk = node;
    return true;
}

size_t mu_dht_record_len(const struct mu_dht_record *r)
{
    return r->type == MU_DHT_FOUND_REGULAR ? r->value.len
                                           : mu_dht_dict_len(r->subkeys.count, r->entry_bytes);
}

int mu_dht_record_encode(const struct mu_dht_record *r, struct mu_buf *out)
{
    struct mu_dht_entry e;
    const void *walk = NULL;
    int err;

    if (r->type == MU_DHT_FOUND_REGULAR) {
        return mu_buf_append(out, r->value);
    }
    err = mu_dht_dict_begin(out, r->expiration, r->subkeys.count, r->entry_bytes);
    while (err == 0 && mu_dht_record_next(r, &walk, &e)) {
        err = mu_dht_dict_put(out, &e);
    }
    return err;
}

const struct mu_dht_record *mu_dht_storage_next(const struct mu_dht_storage *s,
                                                const struct mu_dht_record *r)
{
    struct mu_map_node *n = mu_map_next(&s->by_key, r == NULL ? NULL : &r->by_key);

    while (n != NULL && is_empty(MU_CONTAINER_OF(n, struct mu_dht_record, by_key))) {
        n = mu_map_next(&s->by_key, n);
    }
    return n == NULL ? NULL : MU_CONTAINER_OF(n, struct mu_dht_record, by_key);
}

/* --- adding ----------------------------------------------------------------------------------- */

static int check_time(const struct mu_dht_storage *s, double now, double expiration)
{
    if (!(expiration > now)) {
        return MUSTER_EDHT_EXPIRED; /* or not a number */
    }
    if (s->config.horizon_s > 0 && expiration > now + s->config.horizon_s) {
        return MUSTER_EDHT_FUTURE;
    }
    return 0;
}

/*
 * Returns whether so many more bytes may be added; `freed` of them replace what the owner of
 * `before` had. In a cache other records make room, but not the one that is being changed.
 */
static int check_room(struct mu_dht_storage *s, const struct mu_dht_record *keep,
                      const struct mu_dht_owner *o, size_t bytes, size_t freed,
                      const struct mu_dht_owner *before)
{
    size_t mine = o == NULL ? 0 : o->bytes - (before == o ? freed : 0);

    if (o != NULL && (mine + bytes > s->config.peer_bytes_max ||
                      (keep == NULL && o->records >= s->config.peer_records_max))) {
        return MUSTER_EDHT_QUOTA;
    }
    while (s->bytes - freed + bytes > s->config.bytes_max ||
           (keep == NULL && s->by_key.count >= s->config.records_max)) {
        struct mu_heap_node *first = mu_heap_min(&s->due);
        struct mu_dht_record *r =
            first == NULL ? NULL : MU_CONTAINER_OF(first, struct mu_dht_record, due);

        if (!s->config.cache || r == NULL || r == keep) {
            return MUSTER_EFULL;
        }
        drop_record(s, r);
    }
    return 0;
}

static struct mu_dht_record *add_record(struct mu_dht_storage *s, struct mu_dht_owner *maker,
                                        const struct mu_dht_id *key, double expiration)
{
    struct mu_dht_record *r = mu_calloc(1, sizeof(*r));

    if (r == NULL) {
        return NULL;
    }
    r->key = *key;
    r->type = MU_DHT_FOUND_DICTIONARY; /* empty until there is a value */
    r->expiration = expiration;
    mu_list_init(&r->entries);
    mu_map_init(&r->subkeys, s->config.seed);
    mu_map_init(&r->shares, s->config.seed);
    mu_heap_node_init(&r->due);
    if (mu_map_insert(&s->by_key, &r->by_key, mu_dht_id_span(&r->key)) != 0) {
        mu_free(r);
        return NULL;
    }
    mu_heap_insert(&s->due, &r->due, order_of(expiration));
    r->maker = maker;
    if (maker != NULL) {
        maker->records++;
    }
    charge(s, maker, sizeof(*r));
    return r;
}

static void prolong(struct mu_dht_storage *s, struct mu_dht_record *r, double expiration)
{
    r->expiration = expiration;
    mu_heap_remove(&s->due, &r->due);
    mu_heap_insert(&s->due, &r->due, order_of(expiration));
}

static int put_value(struct mu_dht_storage *s, struct mu_dht_owner *o, const struct mu_dht_id *key,
                     struct mu_span value, double expiration)
{
    struct mu_dht_record *r = find_record(s, key);
    uint8_t *copy;
    int err;

    if (r != NULL && !(expiration > r->expiration)) {
        return MUSTER_EDHT_OLD;
    }
    err = check_room(s, r, o, value.len + (r == NULL ? sizeof(*r) : 0),
                     r == NULL ? 0 : r->value_cost, r == NULL ? NULL : r->owner);
    copy = err == 0 ? mu_malloc(value.len) : NULL;
    if (copy == NULL) {
        return err != 0 ? err : MUSTER_ENOMEM;
    }
    if (r == NULL) {
        r = add_record(s, o, key, expiration);
        if (r == NULL) {
            mu_free(copy);
            return MUSTER_ENOMEM;
        }
    }
    drop_content(s, r);
    prolong(s, r, expiration);
    if (value.len != 0) {
        memcpy(copy, value.data, value.len);
    }
    r->type = MU_DHT_FOUND_REGULAR;
    r->value = mu_span(copy, value.len);
    r->value_cost = value.len;
    r->owner = o;
    charge(s, o, value.len);
    return 0;
}

int mu_dht_storage_put(struct mu_dht_storage *s, double now, const struct mu_peer_id *from,
                       const struct mu_dht_id *key, struct mu_span value, double expiration)
{
    struct mu_dht_owner *o = NULL;
    int err = check_time(s, now, expiration);

    mu_dht_storage_expire(s, now);
    if (err == 0 && value.len > s->config.value_len_max) {
        err = MUSTER_EDHT_VALUE;
    }
    err = err != 0 ? err : hold_owner(s, from, &o);
    err = err != 0 ? err : put_value(s, o, key, value, expiration);
    release_owner(s, o);
    s->refused += err != 0;
    return err;
}

static struct entry *find_entry(const struct mu_dht_record *r, struct mu_span subkey)
{
    struct mu_map_node *n = mu_map_find(&r->subkeys, subkey);

    return n == NULL ? NULL : MU_CONTAINER_OF(n, struct entry, by_subkey);
}

static struct entry *new_entry(const struct mu_dht_entry *what)
{
    struct entry *e = mu_malloc(sizeof(*e) + what->subkey.len + what->value.len);

    if (e == NULL) {
        return NULL;
    }
    *e = (struct entry){.what = *what};
    memcpy(e->bytes, what->subkey.data, what->subkey.len);
    if (what->value.len != 0) {
        memcpy(e->bytes + what->subkey.len, what->value.data, what->value.len);
    }
    e->what.subkey = mu_span(e->bytes, what->subkey.len);
    e->what.value = mu_span(e->bytes + what->subkey.len, what->value.len);
    mu_list_init(&e->link);
    mu_heap_node_init(&e->due);
    return e;
}

/* Returns whether the dictionary, which may not exist yet, takes the entry. */
static int check_subkey(struct mu_dht_storage *s, struct mu_dht_record *r,
                        const struct mu_dht_owner *o, const struct mu_dht_entry *what)
{
    bool dict = r != NULL && r->type == MU_DHT_FOUND_DICTIONARY;
    struct entry *old = dict ? find_entry(r, what->subkey) : NULL;
    size_t cost = sizeof(*old) + what->subkey.len + what->value.len + (r == NULL ? sizeof(*r) : 0);
    size_t count = dict ? r->subkeys.count : 0;
    size_t len = dict ? r->entry_bytes : 0;
    struct share *share = dict ? find_share(r, o) : NULL;

    if (old != NULL && !(what->expiration > old->what.expiration)) {
        return MUSTER_EDHT_OLD;
    }
    if (r != NULL && !dict && !(what->expiration > r->expiration)) {
        return MUSTER_EDHT_OLD;
    }
    len -= old != NULL ? mu_dht_entry_len(&old->what) : 0;
    if ((old == NULL && (count >= s->config.subkeys_max ||
                         (share != NULL && share->count >= s->config.peer_subkeys_max))) ||
        mu_dht_dict_len(count + 1, len + mu_dht_entry_len(what)) > s->config.dict_len_max) {
        return MUSTER_EDHT_SUBKEYS;
    }
    return check_room(s, r, o, cost,
                      old != NULL         ? entry_cost(old)
                      : dict || r == NULL ? 0
                                          : r->value_cost,
                      old != NULL ? old->owner
                      : r == NULL ? NULL
                                  : r->owner);
}

/* The entry has its place; what it replaces is removed. */
static void settle_entry(struct mu_dht_storage *s, struct mu_dht_record *r, struct entry *e)
{
    charge(s, e->owner, entry_cost(e));
    mu_list_push(&r->entries, &e->link);
    mu_heap_insert(&s->sub_due, &e->due, order_of(e->what.expiration));
    r->entry_bytes += mu_dht_entry_len(&e->what);
    if (e->what.expiration > r->expiration) {
        prolong(s, r, e->what.expiration);
    }
}

static int put_entry(struct mu_dht_storage *s, struct mu_dht_owner *o, const struct mu_dht_id *key,
                     const struct mu_dht_entry *what)
{
    struct mu_dht_record *r = find_record(s, key);
    int err = check_subkey(s, r, o, what);
    struct entry *e = err == 0 ? new_entry(what) : NULL;
    struct entry *old;

    if (e == NULL) {
        return err != 0 ? err : MUSTER_ENOMEM;
    }
    if (r == NULL) {
        r = add_record(s, o, key, what->expiration);
    }
    if (r == NULL || add_share(r, o) != 0) {
        goto no_memory;
    }
    old = find_entry(r, what->subkey);
    if (old != NULL) {
        drop_entry(s, old);
    }
    if (mu_map_insert(&r->subkeys, &e->by_subkey, e->what.subkey) != 0) {
        drop_share(s, r, o); /* the very first entry, so there was no old one */
        goto no_memory;
    }
    if (r->type == MU_DHT_FOUND_REGULAR) {
        drop_content(s, r);
        r->type = MU_DHT_FOUND_DICTIONARY;
    }
    e->record = r;
    e->owner = o;
    settle_entry(s, r, e);
    return 0;

no_memory:
    if (r != NULL && is_empty(r)) {
        drop_record(s, r);
    }
    mu_free(e);
    return MUSTER_ENOMEM;
}

int mu_dht_storage_put_subkey(struct mu_dht_storage *s, double now, const struct mu_peer_id *from,
                              const struct mu_dht_id *key, struct mu_span subkey,
                              struct mu_span value, double expiration)
{
    struct mu_dht_entry what = {subkey, value, expiration};
    struct mu_dht_owner *o = NULL;
    int err = check_time(s, now, expiration);

    mu_dht_storage_expire(s, now);
    if (err == 0 && (subkey.len > s->config.subkey_len_max || value.len > s->config.value_len_max ||
                     !mu_mp_is_value(subkey))) {
        err = MUSTER_EDHT_VALUE;
    }
    err = err != 0 ? err : hold_owner(s, from, &o);
    err = err != 0 ? err : put_entry(s, o, key, &what);
    release_owner(s, o);
    s->refused += err != 0;
    return err;
}
