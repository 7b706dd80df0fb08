#include "proto/store/keyspace_internal.h"

#include "core/alloc.h"
#include "core/assert.h"

/* Any number fits the least room, so that add never allocates for an existing key. */
#define ROOM_MIN ((size_t)24)
/* A value up to this length gets its room in the entry's own block. */
#define ROOM_MAX ((size_t)512)
/* An entry's share of the hash table: at most two buckets while it grows. */
#define BUCKET_COST (2 * sizeof(void *))

int mu_ks_charge(struct mu_keyspace *ks, size_t added, size_t removed)
{
    size_t limit = ks->config.memory_bytes_max;

    MU_ASSERT(removed <= ks->memory_bytes);
    if (added > removed &&
        (ks->memory_bytes > limit || added - removed > limit - ks->memory_bytes)) {
        return MUSTER_EFULL;
    }
    ks->memory_bytes = ks->memory_bytes - removed + added;
    return 0;
}

void mu_ks_uncharge(struct mu_keyspace *ks, size_t removed)
{
    MU_ASSERT(removed <= ks->memory_bytes);
    ks->memory_bytes -= removed;
}

struct mu_ks_block *mu_ks_block_new(struct mu_keyspace *ks, size_t cap)
{
    struct mu_ks_block *block = mu_malloc(sizeof(*block) + cap);

    if (block != NULL) {
        *block = (struct mu_ks_block){.ks = ks, .refs = 1, .cap = cap};
    }
    return block;
}

void mu_ks_hold(struct mu_ks_block *block)
{
    block->refs++;
}

void mu_ks_release(struct mu_ks_block *block)
{
    if (--block->refs == 0) {
        block->ks->held_bytes -= block->gone ? mu_ks_block_cost(block->cap) : 0;
        mu_free(block);
    }
}

void mu_ks_block_leave(struct mu_ks_block *block)
{
    block->gone = true;
    block->ks->held_bytes += mu_ks_block_cost(block->cap);
    mu_ks_release(block);
}

static size_t entry_cost(size_t key_len, size_t room)
{
    return sizeof(struct mu_ks_entry) + key_len + room + MU_KS_ALLOC_OVERHEAD + BUCKET_COST;
}

static size_t waiting_cost(void)
{
    return sizeof(struct mu_ks_waiting) + MU_KS_ALLOC_OVERHEAD;
}

int mu_ks_entry_new(struct mu_keyspace *ks, struct mu_span key, uint64_t hash, size_t value_len,
                    struct mu_ks_entry **ret)
{
    size_t room =
        value_len > ROOM_MIN && value_len <= ROOM_MAX ? (value_len + 15) & ~(size_t)15 : ROOM_MIN;
    struct mu_ks_entry *e;
    int err = mu_ks_charge(ks, entry_cost(key.len, room), 0);

    if (err != 0) {
        return err;
    }
    e = mu_malloc(sizeof(*e) + key.len + room);
    if (e == NULL) {
        mu_ks_uncharge(ks, entry_cost(key.len, room));
        return MUSTER_ENOMEM;
    }
    *e = (struct mu_ks_entry){.room = (uint32_t)room, .value_cap = room};
    if (key.len != 0) {
        memcpy(e->bytes, key.data, key.len);
    }
    e->value = e->bytes + key.len;
    mu_list_init(&e->lease_link);
    err = mu_map_insert_hash(&ks->entries, &e->node, mu_span(e->bytes, key.len), hash);
    if (err != 0) {
        mu_ks_uncharge(ks, entry_cost(key.len, room));
        mu_free(e);
        return err;
    }
    *ret = e;
    return 0;
}

int mu_ks_entry_waiting(struct mu_keyspace *ks, struct mu_ks_entry *e)
{
    struct mu_ks_waiting *waiting;
    int err;

    if (e->waiting != NULL) {
        return 0;
    }
    err = mu_ks_charge(ks, waiting_cost(), 0);
    if (err != 0) {
        return err;
    }
    waiting = mu_malloc(sizeof(*waiting));
    if (waiting == NULL) {
        mu_ks_uncharge(ks, waiting_cost());
        return MUSTER_ENOMEM;
    }
    mu_list_init(&waiting->torch);
    mu_list_init(&waiting->all);
    mu_list_init(&waiting->pops);
    mu_list_init(&waiting->elements);
    waiting->element_count = 0;
    e->waiting = waiting;
    return 0;
}

static bool waiting_is_empty(const struct mu_ks_waiting *waiting)
{
    return mu_list_empty(&waiting->torch) && mu_list_empty(&waiting->all) &&
           mu_list_empty(&waiting->pops) && mu_list_empty(&waiting->elements);
}

void mu_ks_entry_settle(struct mu_keyspace *ks, struct mu_ks_entry *e)
{
    if (e->waiting != NULL && waiting_is_empty(e->waiting)) {
        mu_free(e->waiting);
        e->waiting = NULL;
        mu_ks_uncharge(ks, waiting_cost());
    }
    if (e->waiting == NULL && !e->has_value && !e->staged) {
        MU_ASSERT(e->lease == NULL && mu_ks_value_inside(e));
        mu_map_remove(&ks->entries, &e->node);
        mu_ks_uncharge(ks, entry_cost(e->node.key.len, e->room));
        mu_free(e);
    }
}

void mu_ks_entry_clear(struct mu_keyspace *ks, struct mu_ks_entry *e)
{
    MU_ASSERT(e->has_value);
    if (!mu_ks_value_inside(e)) {
        mu_ks_uncharge(ks, mu_ks_block_cost(e->value_cap));
        mu_ks_block_leave(mu_ks_block_of(e));
        e->value = e->bytes + e->node.key.len;
        e->value_cap = e->room;
    }
    e->value_len = 0;
    e->has_value = false;
    ks->key_count--;
}

void mu_ks_entry_free(struct mu_ks_entry *e)
{
    if (e->waiting != NULL) {
        struct mu_list *at;

        MU_ASSERT(mu_list_empty(&e->waiting->torch) && mu_list_empty(&e->waiting->all) &&
                  mu_list_empty(&e->waiting->pops));
        while ((at = mu_list_pop(&e->waiting->elements)) != NULL) {
            struct mu_ks_element *el = MU_CONTAINER_OF(at, struct mu_ks_element, link);

            mu_free(el->data);
            mu_free(el);
        }
        mu_free(e->waiting);
    }
    if (!mu_ks_value_inside(e)) {
        MU_ASSERT(mu_ks_block_of(e)->refs == 1);
        mu_free(mu_ks_block_of(e));
    }
    mu_free(e);
}
