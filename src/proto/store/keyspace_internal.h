/*
 * What the files of the keyspace share. keyspace_entry.c holds entries and the memory they take,
 * keyspace.c the verbs, and each of _wait, _watch, _lease and _journal its own subject.
 *
 * Every changing call has two halves: the first may fail and reserves everything that the second
 * needs; the second changes the keyspace and cannot fail.
 */
#ifndef MU_KEYSPACE_INTERNAL_H
#define MU_KEYSPACE_INTERNAL_H

#include "proto/store/keyspace.h"

/* What an allocation costs besides its bytes, for the memory limit. */
#define MU_KS_ALLOC_OVERHEAD ((size_t)16)

/* --- entries: keyspace_entry.c --------------------------------------------------------------- */

/* An element of a queue. Its bytes have their own block, since a pop hands them over. */
struct mu_ks_element {
    struct mu_list link;
    uint64_t record; /* its number in the journal, or 0 */
    size_t len;
    uint8_t *data;
};

/* A value that does not live with its key. `refs` counts its key and its readers. */
struct mu_ks_block {
    struct mu_keyspace *ks;
    size_t refs;
    bool gone; /* no key has it any more, and it counts in held_bytes */
    size_t cap;
    uint8_t bytes[];
};

/* The waits for a key, and the elements of its queue. Most keys have neither. */
struct mu_ks_waiting {
    struct mu_list torch; /* registrations of each kind, first come first */
    struct mu_list all;
    struct mu_list pops;
    struct mu_list elements; /* oldest first */
    size_t element_count;
};

/*
 * A key. The entry exists while the key has a value or a wait. One block holds the entry, the key's
 * bytes and some room for a small value; a value that has outgrown the room has its own block.
 */
struct mu_ks_entry {
    struct mu_map_node node;
    uint8_t *value; /* in `bytes`, or in its own block */
    size_t value_len;
    size_t value_cap;
    uint64_t record; /* the value's number in the journal, or 0 */
    struct mu_ks_waiting *waiting;
    struct mu_ks_lease *lease;
    struct mu_list lease_link;
    uint32_t room;  /* bytes after the key */
    bool has_value; /* false: only waits keep the entry */
    bool staged;    /* by the current multi_set */
    uint8_t bytes[];
};

static inline struct mu_ks_entry *mu_ks_entry_of(struct mu_map_node *node)
{
    return node == NULL ? NULL : MU_CONTAINER_OF(node, struct mu_ks_entry, node);
}

static inline struct mu_ks_entry *mu_ks_find(const struct mu_keyspace *ks, struct mu_span key)
{
    return mu_ks_entry_of(mu_map_find(&ks->entries, key));
}

static inline struct mu_span mu_ks_value(const struct mu_ks_entry *e)
{
    return (struct mu_span){e->value, e->value_len};
}

static inline bool mu_ks_value_inside(const struct mu_ks_entry *e)
{
    return e->value == e->bytes + e->node.key.len;
}

static inline bool mu_ks_present(const struct mu_ks_entry *e)
{
    return e->has_value || (e->waiting != NULL && e->waiting->element_count != 0);
}

/** Counts `added` bytes in place of `removed` ones. MUSTER_EFULL if that exceeds the limit. */
int mu_ks_charge(struct mu_keyspace *ks, size_t added, size_t removed);
/** Subtracts bytes from the count. */
void mu_ks_uncharge(struct mu_keyspace *ks, size_t removed);
/** Returns what a block for a value costs. */
static inline size_t mu_ks_block_cost(size_t cap)
{
    return sizeof(struct mu_ks_block) + cap + MU_KS_ALLOC_OVERHEAD;
}

/** Returns the value's block; NULL if the value lives with its key. */
static inline struct mu_ks_block *mu_ks_block_of(const struct mu_ks_entry *e)
{
    return mu_ks_value_inside(e)
               ? NULL
               : (struct mu_ks_block *)(void *)(e->value - offsetof(struct mu_ks_block, bytes));
}

/** Makes a block. NULL: no memory. The caller charges its cost. */
struct mu_ks_block *mu_ks_block_new(struct mu_keyspace *ks, size_t cap);
/** The block's key releases it; its cost is not the key's any more. */
void mu_ks_block_leave(struct mu_ks_block *block);

/** Makes an entry without a value, with room for one of `value_len` if that is small. */
int mu_ks_entry_new(struct mu_keyspace *ks, struct mu_span key, uint64_t hash, size_t value_len,
                    struct mu_ks_entry **ret);
/** Returns the entry's waiting list, and makes it if necessary. */
int mu_ks_entry_waiting(struct mu_keyspace *ks, struct mu_ks_entry *e);
/** Drops what is empty: the waiting list, and the entry when nothing is left in it. */
void mu_ks_entry_settle(struct mu_keyspace *ks, struct mu_ks_entry *e);
/** Drops the value; the entry stays. The caller handles binding, journal and watches. */
void mu_ks_entry_clear(struct mu_keyspace *ks, struct mu_ks_entry *e);
/** Frees the entry with everything in it, but leaves it in the map: for mu_ks_fini(). */
void mu_ks_entry_free(struct mu_ks_entry *e);

/* --- waits ----------------------------------------------------------------------------------- */

/** The key has a value now: counts down every wait for it. */
void mu_ks_wake(struct mu_keyspace *ks, struct mu_ks_waiting *waiting);
/** The key's queue has one more element: serves the waits for it, in their order. */
void mu_ks_serve_push(struct mu_keyspace *ks, struct mu_ks_waiting *waiting);

/* --- watches --------------------------------------------------------------------------------- */

struct mu_ks_target {
    struct mu_ks_watched *on;
    bool prefix;
};

/*
 * News that were not pulled. They point to what is watched, not to the watches: a watch that ended
 * is no longer found there, and one that began later is recognized by its `since`.
 */
struct mu_ks_change {
    struct mu_list link;   /* in the keyspace's changes; until it is committed, for its maker */
    struct mu_change what; /* its spans point after the targets */
    size_t target_count;
    size_t at; /* the current target */
    struct mu_ks_target targets[];
};

/**
 * Prepares the news of a change if the key is watched; `*ret` is NULL otherwise. The new value is
 * `head` followed by `tail`. The old value is what the entry holds.
 */
int mu_ks_change_new(struct mu_keyspace *ks, const struct mu_ks_entry *e, enum mu_change_kind kind,
                     struct mu_span head, struct mu_span tail, struct mu_ks_change **ret);
/** Counts a change and queues its news, if any. */
void mu_ks_change_commit(struct mu_keyspace *ks, struct mu_ks_change *change);
/** `news` may be NULL. */
void mu_ks_change_free(struct mu_keyspace *ks, struct mu_ks_change *change);
/** For mu_ks_fini(). */
void mu_ks_watch_fini(struct mu_keyspace *ks);

/* --- leases ---------------------------------------------------------------------------------- */

struct mu_ks_lease {
    struct mu_map_node node; /* keyed by `key` */
    struct mu_heap_node deadline;
    struct mu_list entries;
    uint64_t ttl_ms;
    bool over; /* it must end, and only memory was missing */
    uint8_t key[8];
};

/** Returns NULL if there is no such lease. */
struct mu_ks_lease *mu_ks_lease_find(const struct mu_keyspace *ks, uint64_t lease);
/** Binds an entry to a lease; NULL: unbinds it. */
void mu_ks_lease_bind(struct mu_ks_entry *e, struct mu_ks_lease *lease);
/** For mu_ks_fini(). */
void mu_ks_lease_fini(struct mu_keyspace *ks);

/* --- the journal ----------------------------------------------------------------------------- */

/** Returns the length of a record that puts a value; 0 if there is no journal. */
size_t mu_ks_journal_put_len(const struct mu_keyspace *ks, size_t key_len, size_t value_len);
/** Returns the length of a record that deletes; 0 if there is no journal. */
size_t mu_ks_journal_del_len(const struct mu_keyspace *ks);
/** Makes room for `n` bytes of records. MUSTER_ENOMEM, or the error that the keyspace is frozen
 * with. */
int mu_ks_journal_reserve(struct mu_keyspace *ks, size_t n);
/** Records the value as it is now: a put, or a delete if a lease took it out of the journal. */
void mu_ks_journal_value(struct mu_keyspace *ks, struct mu_ks_entry *e);
/** Records a new element. */
void mu_ks_journal_element(struct mu_keyspace *ks, const struct mu_ks_entry *e,
                           struct mu_ks_element *element);
/** Records that `*record` is gone and zeroes it; nothing to do for 0. */
void mu_ks_journal_del(struct mu_keyspace *ks, uint64_t *record);

/** Restores a value from the journal. MUSTER_ECORRUPT if the key has a value. */
int mu_ks_load_value(struct mu_keyspace *ks, uint64_t number, struct mu_span key,
                     struct mu_span value);
/** Restores a queue's element. */
int mu_ks_load_element(struct mu_keyspace *ks, uint64_t number, struct mu_span key,
                       struct mu_span value);

/* --- queues: keyspace_queue.c ---------------------------------------------------------------- */

/** Unlinks the oldest element, which must exist, journals that, and hands its bytes over. */
uint8_t *mu_ks_element_take(struct mu_keyspace *ks, struct mu_ks_waiting *waiting, size_t *ret_len);

#endif
