#include "proto/store/keyspace.h"

#include "core/alloc.h"
#include "core/assert.h"
#include "proto/store/keyspace_internal.h"

/* A block that has become four times too big is freed, unless it is small. */
#define SHRINK_ABOVE ((size_t)4096)

struct mu_ks_config mu_ks_config_defaults(void)
{
    return (struct mu_ks_config){
        .key_bytes_max = 8192,
        .value_bytes_max = (size_t)8 << 20,
        .keys_max = 131072,
        .memory_bytes_max = (size_t)4 << 30,
        .leases_max = 65536,
    };
}

int mu_ks_init(struct mu_keyspace *ks, const struct mu_ks_config *config)
{
    if (config->key_bytes_max > UINT32_MAX || config->value_bytes_max > SIZE_MAX / 4) {
        return MUSTER_EINVAL;
    }
    *ks = (struct mu_keyspace){.config = *config};
    /* One seed for keys and watched keys: an entry's hash finds its watches as well. */
    mu_map_init(&ks->entries, config->seed);
    mu_map_init(&ks->watched, config->seed);
    mu_map_init(&ks->leases, config->seed);
    mu_heap_init(&ks->lease_deadlines);
    mu_list_init(&ks->ready);
    mu_list_init(&ks->changes);
    mu_buf_init(&ks->journal, SIZE_MAX);
    return 0;
}

void mu_ks_fini(struct mu_keyspace *ks)
{
    struct mu_map_node *node = mu_map_next(&ks->entries, NULL);

    MU_ASSERT(ks->wait_count == 0 && mu_list_empty(&ks->ready));
    while (node != NULL) {
        struct mu_map_node *next = mu_map_next(&ks->entries, node);

        mu_ks_entry_free(mu_ks_entry_of(node));
        node = next;
    }
    mu_map_fini(&ks->entries);
    mu_ks_watch_fini(ks);
    mu_ks_lease_fini(ks);
    mu_buf_fini(&ks->journal);
}

/* --- writing a value ------------------------------------------------------------------------- */

enum binding {
    BIND_KEEP,
    BIND_SET, /* binds to `lease`; NULL: unbinds */
};

/* A write that is ready to be carried out. */
struct put {
    struct mu_ks_entry *entry;
    struct mu_span value; /* the bytes to write at `at` */
    size_t at;            /* 0, or the old length for an append */
    bool moves;           /* the value moves into `block`, or back into the entry's room if that is
                             NULL */
    struct mu_ks_block *block;
    enum binding binding;
    struct mu_ks_lease *lease;
    struct mu_ks_change *change;
};

static int check_key_value(const struct mu_keyspace *ks, struct mu_span key, struct mu_span value)
{
    return key.len > ks->config.key_bytes_max || value.len > ks->config.value_bytes_max
               ? MUSTER_ELIMIT
               : 0;
}

/* Finds the lease that a write names. A write without a lease keeps the binding, except for a
 * set. */
static int find_binding(const struct mu_keyspace *ks, uint64_t lease, bool is_set, struct put *p)
{
    *p = (struct put){.binding = is_set ? BIND_SET : BIND_KEEP};
    if (lease != 0) {
        p->binding = BIND_SET;
        p->lease = mu_ks_lease_find(ks, lease);
        if (p->lease == NULL) {
            return MUSTER_ENOENT;
        }
    }
    return 0;
}

/*
 * Gets a block for `len` bytes if the value does not fit its place, or has far too much room, or is
 * held by a reader that must see it unchanged. An append leaves the old bytes as they were.
 */
static int stage_room(struct mu_keyspace *ks, struct put *p, size_t len)
{
    struct mu_ks_entry *e = p->entry;
    bool inside = mu_ks_value_inside(e);
    size_t old_cost = inside ? 0 : mu_ks_block_cost(e->value_cap);
    bool shrinks = !inside && e->value_cap > SHRINK_ABOVE && len < e->value_cap / 4;
    bool held = !inside && mu_ks_block_of(e)->refs > 1 && p->at == 0;
    size_t cap = (len + 15) & ~(size_t)15;
    int err;

    if (len <= e->value_cap && !shrinks && !held) {
        return 0;
    }
    if ((shrinks || held) && len <= e->room) {
        p->moves = true;
        mu_ks_uncharge(ks, old_cost);
        return 0;
    }
    if (p->at != 0 && cap < 2 * p->at) {
        /* Appends double the block, so that growing a value piece by piece stays linear. */
        cap = 2 * p->at <= ks->config.value_bytes_max ? 2 * p->at : ks->config.value_bytes_max;
    }
    err = mu_ks_charge(ks, mu_ks_block_cost(cap), old_cost);
    if (err != 0) {
        return err;
    }
    p->block = mu_ks_block_new(ks, cap);
    if (p->block == NULL) {
        ks->memory_bytes = ks->memory_bytes + old_cost - mu_ks_block_cost(cap);
        /* A value that shrinks can stay where it is. */
        return shrinks && !held ? 0 : MUSTER_ENOMEM;
    }
    p->moves = true;
    return 0;
}

static void unstage(struct mu_keyspace *ks, struct put *p)
{
    struct mu_ks_entry *e = p->entry;

    if (p->moves) {
        ks->memory_bytes += mu_ks_value_inside(e) ? 0 : mu_ks_block_cost(e->value_cap);
        mu_ks_uncharge(ks, p->block == NULL ? 0 : mu_ks_block_cost(p->block->cap));
        mu_free(p->block);
    }
    mu_ks_change_free(ks, p->change);
    e->staged = false;
    mu_ks_entry_settle(ks, e);
}

/* Returns whether the value will be in the journal. */
static bool is_journaled(const struct put *p)
{
    return p->binding == BIND_SET ? p->lease == NULL : p->entry->lease == NULL;
}

/*
 * Does everything that can fail in a write. `e` is the key's entry or NULL; `*journal_len` is what
 * the staged writes of this call have reserved in the journal. On failure nothing has changed.
 */
static int stage(struct mu_keyspace *ks, struct put *p, struct mu_span key, uint64_t hash,
                 struct mu_ks_entry *e, struct mu_span value, bool append, size_t *journal_len)
{
    enum mu_change_kind kind;
    size_t len;
    int err = 0;

    if (e == NULL) {
        err = mu_ks_entry_new(ks, key, hash, value.len, &e);
        if (err != 0) {
            return err;
        }
    }
    p->entry = e;
    p->value = value;
    p->at = append ? e->value_len : 0;
    e->staged = true;
    len = p->at + value.len;
    err = stage_room(ks, p, len);
    if (err == 0 && ks->config.journal) {
        *journal_len += is_journaled(p)  ? mu_ks_journal_put_len(ks, key.len, len)
                        : e->record != 0 ? mu_ks_journal_del_len(ks)
                                         : 0;
        err = mu_ks_journal_reserve(ks, *journal_len);
    }
    if (err == 0 && ks->watch_count != 0) {
        kind = !e->has_value ? MU_CHANGE_CREATED : append ? MU_CHANGE_APPENDED : MU_CHANGE_UPDATED;
        err = mu_ks_change_new(ks, e, kind, mu_span(e->value, p->at), value, &p->change);
    }
    if (err != 0) {
        unstage(ks, p);
    }
    return err;
}

static void move_value(struct put *p)
{
    struct mu_ks_entry *e = p->entry;
    uint8_t *to = p->block != NULL ? p->block->bytes : e->bytes + e->node.key.len;

    if (p->at != 0) {
        memcpy(to, e->value, p->at);
    }
    if (!mu_ks_value_inside(e)) {
        mu_ks_block_leave(mu_ks_block_of(e));
    }
    e->value = to;
    e->value_cap = p->block != NULL ? p->block->cap : e->room;
}

/* Carries out a staged write. */
static void commit(struct mu_keyspace *ks, struct put *p)
{
    struct mu_ks_entry *e = p->entry;

    if (p->moves) {
        move_value(p);
    }
    if (p->value.len != 0) {
        memcpy(e->value + p->at, p->value.data, p->value.len);
    }
    e->value_len = p->at + p->value.len;
    e->staged = false;
    if (!e->has_value) {
        e->has_value = true;
        ks->key_count++;
    }
    if (p->binding == BIND_SET && p->lease != e->lease) {
        mu_ks_lease_bind(e, p->lease);
    }
    if (ks->config.journal) {
        mu_ks_journal_value(ks, e);
    }
    mu_ks_change_commit(ks, p->change);
    if (e->waiting != NULL) {
        mu_ks_wake(ks, e->waiting);
        mu_ks_entry_settle(ks, e);
    }
}

int mu_ks_set(struct mu_keyspace *ks, struct mu_span key, struct mu_span value, uint64_t lease)
{
    uint64_t hash = mu_map_hash(&ks->entries, key);
    size_t journal_len = 0;
    struct put p;
    int err = check_key_value(ks, key, value);

    if (err == 0) {
        err = find_binding(ks, lease, true, &p);
    }
    if (err == 0) {
        struct mu_map_node *node = mu_map_find_hash(&ks->entries, key, hash);

        err = stage(ks, &p, key, hash, mu_ks_entry_of(node), value, false, &journal_len);
    }
    if (err != 0) {
        return err;
    }
    commit(ks, &p);
    return 0;
}

/*
 * Stages from the last to the first, so that of a key that is named twice the last write counts;
 * the others are left out. The staged writes end up at the end of `puts`, in order.
 */
static int stage_multi(struct mu_keyspace *ks, const struct mu_span *keys,
                       const struct mu_span *values, size_t count, const struct put *binding,
                       struct put *puts, size_t *ret_first)
{
    size_t journal_len = 0;
    size_t first = count;
    int err = 0;

    for (size_t i = count; i-- > 0 && err == 0;) {
        uint64_t hash = mu_map_hash(&ks->entries, keys[i]);
        struct mu_ks_entry *e = mu_ks_entry_of(mu_map_find_hash(&ks->entries, keys[i], hash));

        err = check_key_value(ks, keys[i], values[i]);
        if (err == 0 && (e == NULL || !e->staged)) {
            puts[first - 1] = *binding;
            err = stage(ks, &puts[first - 1], keys[i], hash, e, values[i], false, &journal_len);
            first -= err == 0 ? 1 : 0;
        }
    }
    while (err != 0 && first < count) {
        unstage(ks, &puts[first++]);
    }
    *ret_first = first;
    return err;
}

int mu_ks_multi_set(struct mu_keyspace *ks, const struct mu_span *keys,
                    const struct mu_span *values, size_t count, uint64_t lease)
{
    struct put binding;
    struct put *puts;
    size_t first;
    int err;

    if (count > ks->config.keys_max) {
        return MUSTER_ELIMIT;
    }
    err = find_binding(ks, lease, true, &binding);
    if (err != 0 || count == 0) {
        return err;
    }
    puts = mu_calloc(count, sizeof(*puts));
    if (puts == NULL) {
        return MUSTER_ENOMEM;
    }
    err = stage_multi(ks, keys, values, count, &binding, puts, &first);
    for (size_t i = first; err == 0 && i < count; i++) {
        commit(ks, &puts[i]);
    }
    mu_free(puts);
    return err;
}

/* Reads a number as strtoll() does in base 10. False if there is no number or it is out of
 * range. */
bool mu_ks_read_number(struct mu_span s, int64_t *ret)
{
    size_t i = 0;
    bool negative = false;
    size_t digits;
    uint64_t limit;
    uint64_t n = 0;

    while (i < s.len && (s.data[i] == ' ' || (s.data[i] >= '\t' && s.data[i] <= '\r'))) {
        i++;
    }
    if (i < s.len && (s.data[i] == '-' || s.data[i] == '+')) {
        negative = s.data[i++] == '-';
    }
    limit = (uint64_t)INT64_MAX + (negative ? 1 : 0);
    for (digits = 0; i < s.len && s.data[i] >= '0' && s.data[i] <= '9'; i++, digits++) {
        uint64_t d = (uint64_t)(s.data[i] - '0');

        if (n > (limit - d) / 10) {
            return false;
        }
        n = n * 10 + d;
    }
    *ret = (int64_t)(negative ? 0 - n : n);
    return digits != 0;
}

/* Writes a number in decimal to the end of `text`, which holds 24 bytes. */
struct mu_span mu_ks_write_number(uint8_t text[24], int64_t number)
{
    uint64_t n = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    size_t at = 24;

    do {
        text[--at] = (uint8_t)('0' + n % 10);
        n /= 10;
    } while (n != 0);
    if (number < 0) {
        text[--at] = '-';
    }
    return mu_span(text + at, 24 - at);
}

int mu_ks_add(struct mu_keyspace *ks, struct mu_span key, int64_t delta, uint64_t lease,
              int64_t *ret_sum)
{
    uint64_t hash = mu_map_hash(&ks->entries, key);
    struct mu_ks_entry *e = mu_ks_entry_of(mu_map_find_hash(&ks->entries, key, hash));
    size_t journal_len = 0;
    int64_t old = 0;
    int64_t sum;
    uint8_t text[24];
    struct mu_span value;
    struct put p;
    int err;

    if (e != NULL && e->has_value && !mu_ks_read_number(mu_ks_value(e), &old)) {
        return MUSTER_ENOTNUM;
    }
    sum = (int64_t)((uint64_t)old + (uint64_t)delta);
    value = mu_ks_write_number(text, sum);
    err = check_key_value(ks, key, value);
    if (err == 0) {
        err = find_binding(ks, lease, false, &p);
    }
    if (err == 0) {
        err = stage(ks, &p, key, hash, e, value, false, &journal_len);
    }
    if (err != 0) {
        return err;
    }
    commit(ks, &p);
    *ret_sum = sum;
    return 0;
}

int mu_ks_compare_set(struct mu_keyspace *ks, struct mu_span key, struct mu_span expected,
                      struct mu_span desired, uint64_t lease, struct mu_span *ret_value,
                      bool *ret_written)
{
    uint64_t hash = mu_map_hash(&ks->entries, key);
    struct mu_ks_entry *e = mu_ks_entry_of(mu_map_find_hash(&ks->entries, key, hash));
    bool there = e != NULL && e->has_value;
    size_t journal_len = 0;
    struct put p;
    int err = check_key_value(ks, key, desired);

    if (err == 0) {
        err = find_binding(ks, lease, false, &p);
    }
    if (err != 0) {
        return err;
    }
    if (!mu_span_eq(there ? mu_ks_value(e) : (struct mu_span){0}, expected)) {
        *ret_value = there ? mu_ks_value(e) : expected;
        *ret_written = false;
        return 0;
    }
    err = stage(ks, &p, key, hash, e, desired, false, &journal_len);
    if (err != 0) {
        return err;
    }
    commit(ks, &p);
    *ret_value = mu_ks_value(p.entry);
    *ret_written = true;
    return 0;
}

int mu_ks_append(struct mu_keyspace *ks, struct mu_span key, struct mu_span value, uint64_t lease,
                 size_t *ret_len)
{
    uint64_t hash = mu_map_hash(&ks->entries, key);
    struct mu_ks_entry *e = mu_ks_entry_of(mu_map_find_hash(&ks->entries, key, hash));
    size_t journal_len = 0;
    struct put p;
    int err = check_key_value(ks, key, value);

    /* A value from the journal may be over a limit that was lowered since; it stays as it is. */
    if (err == 0 && e != NULL && e->value_len != 0 &&
        (e->value_len > ks->config.value_bytes_max ||
         value.len > ks->config.value_bytes_max - e->value_len)) {
        err = MUSTER_ELIMIT;
    }
    if (err == 0) {
        err = find_binding(ks, lease, false, &p);
    }
    if (err == 0) {
        err = stage(ks, &p, key, hash, e, value, true, &journal_len);
    }
    if (err != 0) {
        return err;
    }
    commit(ks, &p);
    *ret_len = p.entry->value_len;
    return 0;
}

int mu_ks_delete(struct mu_keyspace *ks, struct mu_span key, bool *ret_removed)
{
    struct mu_ks_entry *e = mu_ks_find(ks, key);
    struct mu_ks_change *change = NULL;
    int err;

    if (e == NULL || !e->has_value) {
        *ret_removed = false;
        return 0;
    }
    err = mu_ks_journal_reserve(ks, e->record != 0 ? mu_ks_journal_del_len(ks) : 0);
    if (err == 0 && ks->watch_count != 0) {
        err = mu_ks_change_new(ks, e, MU_CHANGE_DELETED, (struct mu_span){0}, (struct mu_span){0},
                               &change);
    }
    if (err != 0) {
        return err;
    }
    mu_ks_journal_del(ks, &e->record);
    mu_ks_change_commit(ks, change);
    if (e->lease != NULL) {
        mu_ks_lease_bind(e, NULL);
    }
    mu_ks_entry_clear(ks, e);
    mu_ks_entry_settle(ks, e);
    *ret_removed = true;
    return 0;
}

int mu_ks_load_value(struct mu_keyspace *ks, uint64_t number, struct mu_span key,
                     struct mu_span value)
{
    uint64_t hash = mu_map_hash(&ks->entries, key);
    struct mu_ks_entry *e = mu_ks_entry_of(mu_map_find_hash(&ks->entries, key, hash));
    struct put p = {.binding = BIND_KEEP};
    int err;

    if (e != NULL && e->has_value) {
        return MUSTER_ECORRUPT;
    }
    if (e == NULL) {
        err = mu_ks_entry_new(ks, key, hash, value.len, &e);
        if (err != 0) {
            return err;
        }
    }
    p.entry = e;
    p.value = value;
    err = stage_room(ks, &p, value.len);
    if (err != 0) {
        mu_ks_entry_settle(ks, e);
        return err;
    }
    if (p.moves) {
        move_value(&p);
    }
    if (value.len != 0) {
        memcpy(e->value, value.data, value.len);
    }
    e->value_len = value.len;
    e->has_value = true;
    e->record = number;
    ks->key_count++;
    ks->revision++;
    return 0;
}

/* --- reading --------------------------------------------------------------------------------- */

int mu_ks_get(const struct mu_keyspace *ks, struct mu_span key, struct mu_span *ret_value)
{
    const struct mu_ks_entry *e = mu_ks_find(ks, key);

    if (e == NULL || !e->has_value) {
        return MUSTER_ENOENT;
    }
    *ret_value = mu_ks_value(e);
    return 0;
}

int mu_ks_get_block(const struct mu_keyspace *ks, struct mu_span key, struct mu_span *ret_value,
                    struct mu_ks_block **ret_block)
{
    const struct mu_ks_entry *e = mu_ks_find(ks, key);

    if (e == NULL || !e->has_value) {
        return MUSTER_ENOENT;
    }
    *ret_value = mu_ks_value(e);
    *ret_block = mu_ks_block_of(e);
    return 0;
}

bool mu_ks_has(const struct mu_keyspace *ks, struct mu_span key)
{
    const struct mu_ks_entry *e = mu_ks_find(ks, key);

    return e != NULL && mu_ks_present(e);
}

bool mu_ks_is_leased(const struct mu_keyspace *ks, struct mu_span key)
{
    const struct mu_ks_entry *e = mu_ks_find(ks, key);

    return e != NULL && e->lease != NULL;
}

bool mu_ks_next_key(const struct mu_keyspace *ks, const struct mu_map_node **cursor,
                    struct mu_span *ret_key, struct mu_span *ret_value)
{
    struct mu_map_node *node = mu_map_next(&ks->entries, *cursor);

    while (node != NULL && !mu_ks_entry_of(node)->has_value) {
        node = mu_map_next(&ks->entries, node);
    }
    *cursor = node;
    if (node == NULL) {
        return false;
    }
    *ret_key = node->key;
    *ret_value = mu_ks_value(mu_ks_entry_of(node));
    return true;
}
