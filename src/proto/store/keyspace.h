/*
 * The keyspace: keys, values, queues, and the waits, watches and leases on them. It is the store
 * without any wire: both generations of PyTorch's protocol, the native wire and the in-process
 * store are fronts of this one machine.
 *
 * A decision machine: calls change it, results for others are pulled.
 *
 *     mu_ks_set(&ks, key, value, 0);
 *     while ((wait = mu_ks_next_ready(&ks)) != NULL) { tell the owner of wait }
 *     while (mu_ks_next_change(&ks, &watch, &change)) { tell the owner of watch }
 *
 * Ownership: keys and values are copied in. Values handed out are lent until the next call that
 * changes the keyspace; a large one can be held for longer, see mu_ks_hold(). struct mu_ks_wait and
 * mu_ks_watch belong to the caller, which embeds them, and must be cancelled before their memory is
 * freed; a wait is back in the caller's hands once mu_ks_next_ready() returned it.
 *
 * A call that fails changes nothing. Errors that any changing call can return, besides its own:
 * MUSTER_ELIMIT (key, value or count over its limit), MUSTER_EFULL (the memory limit),
 * MUSTER_ENOMEM, MUSTER_ENOENT (the lease that it names). Spans passed in are borrowed for the call
 * and must not point into the keyspace's own memory.
 */
#ifndef MU_KEYSPACE_H
#define MU_KEYSPACE_H

#include "core/buf.h"
#include "core/err.h"
#include "core/heap.h"
#include "core/list.h"
#include "core/map.h"
#include "core/time.h"
#include "codec/store/op.h"

struct mu_ks_config {
    uint64_t seed;           /* seed of the hash tables */
    size_t key_bytes_max;    /* 8 KiB, as in PyTorch 2.x */
    size_t value_bytes_max;  /* 8 MiB, as in PyTorch 2.x; also the limit for append */
    size_t keys_max;         /* keys that a request may name: 131072, as in PyTorch 2.x */
    size_t memory_bytes_max; /* keys, values, queue elements, waits and their overhead: 4 GiB */
    size_t leases_max;       /* 65536 */
    bool journal;            /* record changes for a disk */
};

/** The defaults named above. */
struct mu_ks_config mu_ks_config_defaults(void);

/* --- waiting ------------------------------------------------------------------------------- */

enum mu_ks_wait_kind {
    /*
     * Waits until every key has existed, as PyTorch counts: a key that came and went counts; on a
     * queue's key a push ends one such wait, first come first served, since its owner is about to
     * pop. A wait that still misses other keys is counted down and takes no turn.
     */
    MU_KS_WAIT_TORCH = 1,
    /* Waits until every key has existed; a push wakes all of these waits. */
    MU_KS_WAIT_ALL,
    /* Waits until an element could be popped from the queue; `popped` holds it. One key. */
    MU_KS_WAIT_POP,
};

/* Private: one wait's place in the queue of one key. */
struct mu_ks_reg {
    struct mu_list link;
    struct mu_ks_entry *entry; /* NULL once the key came */
    struct mu_ks_wait *wait;
    uint64_t ticket; /* order of arrival */
};

/* Zero it before its first use; it must not move while it is active. */
struct mu_ks_wait {
    void *owner; /* the caller's */
    enum mu_ks_wait_kind kind;
    size_t missing;         /* keys that have not existed yet */
    size_t popped_len;      /* WAIT_POP: the element */
    uint8_t *popped;        /* the caller takes it with mu_ks_wait_take_popped() */
    int64_t len_before;     /* WAIT_POP: the queue's length before the pop */
    struct mu_list ready;   /* private from here: on the ready list, or next is NULL */
    struct mu_ks_reg *regs; /* its registrations, one for each key missing at the start */
    size_t reg_count;
    struct mu_ks_reg one; /* the registration of a wait for a single key, without an allocation */
};

/* --- watching ------------------------------------------------------------------------------ */

/* Zero it before its first use; it must not move while it is registered. */
struct mu_ks_watch {
    void *owner;              /* the caller's */
    struct mu_list link;      /* private from here */
    struct mu_ks_watched *on; /* NULL: idle */
    uint64_t since;           /* the revision at its start: it gets later changes */
    bool prefix;
};

/* Private: how many watched prefixes have this length. */
struct mu_ks_prefix_len {
    size_t len;
    size_t count;
};

/* --- the machine --------------------------------------------------------------------------- */

struct mu_keyspace {
    struct mu_ks_config config;
    /*
     * The revision of the last change to a value; it grows. The loader of a journal sets it, so
     * that it also grows across restarts.
     */
    uint64_t revision;
    uint64_t lease_id;   /* id of the last lease; may be set to a random start before the first */
    size_t key_count;    /* keys with a value */
    size_t memory_bytes; /* in use, counted against the limit */
    int frozen; /* 0, or the error of every change that a disk must hold; the owner sets it */
    size_t held_bytes;     /* of deleted values that readers still hold; not in memory_bytes */
    size_t wait_count;     /* registered waits */
    size_t watch_count;    /* registered watches */
    struct mu_map entries; /* private from here */
    struct mu_map watched;
    struct mu_map leases;
    struct mu_heap lease_deadlines;
    struct mu_list ready;
    struct mu_list changes;
    struct mu_list *cursor; /* the next watch to be told of the first change; NULL: not begun */
    struct mu_ks_prefix_len *prefix_lens; /* of watched prefixes, ascending */
    size_t prefix_len_count;
    size_t prefix_len_cap;
    struct mu_buf journal;
    uint64_t record_id; /* of the last record */
    uint64_t ticket;    /* of the last registration */
    mu_mono_t last_tick;
};

/** Allocates nothing. MUSTER_EINVAL: key_bytes_max is longer than a journal record can hold. */
int mu_ks_init(struct mu_keyspace *ks, const struct mu_ks_config *config);
/** Frees everything. No wait or watch may be registered, and no ready wait unpulled; this is
 * asserted. */
void mu_ks_fini(struct mu_keyspace *ks);

/* Changing calls. `lease`: 0 for no lease, else the lease that the key is bound to from now on (the
 * key is deleted when it ends). A set without a lease unbinds. add, append and compare_set without
 * a lease leave the binding as it is. */
int mu_ks_set(struct mu_keyspace *ks, struct mu_span key, struct mu_span value, uint64_t lease);
/** Sets all or nothing. `keys` may repeat; the last one wins. */
int mu_ks_multi_set(struct mu_keyspace *ks, const struct mu_span *keys,
                    const struct mu_span *values, size_t count, uint64_t lease);
/**
 * Adds to a decimal number, 0 if absent. The old text is read as strtoll() base 10 reads it:
 * leading white space and trailing garbage are accepted; the sum wraps. MUSTER_ENOTNUM if there are
 * no digits (or the value is empty) or it is out of range.
 */
int mu_ks_add(struct mu_keyspace *ks, struct mu_span key, int64_t delta, uint64_t lease,
              int64_t *ret_sum);
/**
 * Writes `desired` if the key holds `expected`, or is absent and `expected` is empty. The reply is
 * PyTorch's: the present value, or `expected` itself if the key is absent and `expected` is not
 * empty. `ret_value` is lent (by the keyspace, or by the caller's own `expected`).
 */
int mu_ks_compare_set(struct mu_keyspace *ks, struct mu_span key, struct mu_span expected,
                      struct mu_span desired, uint64_t lease, struct mu_span *ret_value,
                      bool *ret_written);
int mu_ks_append(struct mu_keyspace *ks, struct mu_span key, struct mu_span value, uint64_t lease,
                 size_t *ret_len);
/** Reads the number in a value as mu_ks_add() does. False: MUSTER_ENOTNUM. */
bool mu_ks_read_number(struct mu_span s, int64_t *ret);
/** Writes a number as mu_ks_add() does; lent by `text`. */
struct mu_span mu_ks_write_number(uint8_t text[24], int64_t number);
/** `ret_removed` says whether there was a value. Queues are not touched. Never ELIMIT or EFULL. */
int mu_ks_delete(struct mu_keyspace *ks, struct mu_span key, bool *ret_removed);
/**
 * Deletes the values and the queues of all keys that begin with `prefix`, as far as there is memory
 * for the news; returns how many keys are gone. It looks at every key, so do not call it in every
 * turn.
 */
void mu_ks_delete_prefix(struct mu_keyspace *ks, struct mu_span prefix, size_t *ret_removed);
/** `ret_len` is the length with the new element, before a wait took it. */
int mu_ks_queue_push(struct mu_keyspace *ks, struct mu_span key, struct mu_span value,
                     size_t *ret_len);
/**
 * Pops the oldest element. MUSTER_ENOENT if the queue is empty. The caller owns the element: free
 * it with mu_free().
 */
int mu_ks_queue_pop(struct mu_keyspace *ks, struct mu_span key, uint8_t **ret_value,
                    size_t *ret_value_len, int64_t *ret_len_before);

/* Reading calls. */
/** Reads a value, which is lent. MUSTER_ENOENT. */
int mu_ks_get(const struct mu_keyspace *ks, struct mu_span key, struct mu_span *ret_value);
/*
 * A value that is too large to live with its key has its own block. A reader can hold the block
 * instead of a copy: its bytes stay unchanged, whatever happens to the key.
 */
struct mu_ks_block;
/** The same as mu_ks_get(); `*ret_block` is the value's block, or NULL for a small value. */
int mu_ks_get_block(const struct mu_keyspace *ks, struct mu_span key, struct mu_span *ret_value,
                    struct mu_ks_block **ret_block);
/** Holds a block; each call needs one mu_ks_release() before mu_ks_fini(). */
void mu_ks_hold(struct mu_ks_block *block);
void mu_ks_release(struct mu_ks_block *block);
/** Returns whether the key has a value or its queue an element. */
bool mu_ks_has(const struct mu_keyspace *ks, struct mu_span key);
size_t mu_ks_queue_len(const struct mu_keyspace *ks, struct mu_span key);
/** Returns whether the key is bound to a lease. */
bool mu_ks_is_leased(const struct mu_keyspace *ks, struct mu_span key);
/**
 * Walks the keys that have a value, in any order: start with *cursor NULL; false at the end. The
 * keyspace must not change in between.
 */
bool mu_ks_next_key(const struct mu_keyspace *ks, const struct mu_map_node **cursor,
                    struct mu_span *ret_key, struct mu_span *ret_value);

/* Waiting. */
/**
 * Starts a wait for all of `keys`. If nothing is missing, `*ret_ready` is true, nothing is
 * registered (and for MU_KS_WAIT_POP the element is in `w`). Otherwise the wait is registered and
 * mu_ks_next_ready() will return it once. A key named twice counts once. Errors: MUSTER_ELIMIT,
 * MUSTER_EFULL, MUSTER_ENOMEM.
 */
int mu_ks_wait(struct mu_keyspace *ks, struct mu_ks_wait *w, enum mu_ks_wait_kind kind,
               const struct mu_span *keys, size_t count, bool *ret_ready);
/**
 * Ends a registered wait, or takes back a ready one that was not pulled. An element that it popped
 * and the caller did not take is freed, as it would be lost with a reply on the wire. Harmless on
 * an idle wait.
 */
void mu_ks_wait_cancel(struct mu_keyspace *ks, struct mu_ks_wait *w);
/** Returns whether the wait is registered or ready and not yet pulled. */
bool mu_ks_wait_active(const struct mu_ks_wait *w);
/** Lists the missing keys: fills up to `cap` lent spans, returns how many are missing in all. */
size_t mu_ks_wait_missing(const struct mu_ks_wait *w, struct mu_span *ret_keys, size_t cap);
/** Returns the element of a ready MU_KS_WAIT_POP; the caller frees it with mu_free(). */
uint8_t *mu_ks_wait_take_popped(struct mu_ks_wait *w, size_t *ret_len);
/** Returns the next wait that ended, in the order in which they ended; NULL if there is none. */
static inline struct mu_ks_wait *mu_ks_next_ready(struct mu_keyspace *ks)
{
    struct mu_list *first = ks->ready.next;

    if (first == &ks->ready) {
        return NULL;
    }
    mu_list_remove(first);
    first->next = NULL;
    return MU_CONTAINER_OF(first, struct mu_ks_wait, ready);
}

/**
 * Arrives at a barrier: the arrivals are counted in the key itself. `*ret_ready`: all `world`
 * clients are there, and the waiting ones are awake; otherwise `w` is registered, as by
 * mu_ks_wait(). The barrier can be used again once its key was deleted. Errors as of mu_ks_wait()
 * and mu_ks_add(); then nothing was counted.
 */
int mu_ks_barrier(struct mu_keyspace *ks, struct mu_ks_wait *w, struct mu_span key, int64_t world,
                  bool *ret_ready);

/* Watching. */
/**
 * Watches every change from now on to the value of `key`, or with `prefix` to all keys that begin
 * with it. MUSTER_ELIMIT, MUSTER_EFULL, MUSTER_ENOMEM.
 */
int mu_ks_watch(struct mu_keyspace *ks, struct mu_ks_watch *w, struct mu_span key, bool prefix);
/** Ends a watch. Harmless on an idle watch. Changes that were not pulled yet are dropped. */
void mu_ks_unwatch(struct mu_keyspace *ks, struct mu_ks_watch *w);
/* Private: the rest of mu_ks_next_change(). */
bool mu_ks_pull_change(struct mu_keyspace *ks, struct mu_ks_watch **ret_watch,
                       struct mu_change *ret_change);
/**
 * Returns the next (watch, change) pair, in the order of the changes; false if there is none. The
 * spans are lent until the next such call. Pull until it returns false after every changing call:
 * changes that are not pulled hold copies that the memory limit does not count.
 */
static inline bool mu_ks_next_change(struct mu_keyspace *ks, struct mu_ks_watch **ret_watch,
                                     struct mu_change *ret_change)
{
    return !mu_list_empty(&ks->changes) && mu_ks_pull_change(ks, ret_watch, ret_change);
}

/* Leases. A lease without a time to live (ttl_ms 0) lasts until it is revoked: sessions hold one.
 */
int mu_ks_lease_grant(struct mu_keyspace *ks, mu_mono_t now, uint64_t ttl_ms, uint64_t *ret_lease);
/** The same with a number that the caller has drawn. MUSTER_EINVAL: it is taken, or is 0. */
int mu_ks_lease_grant_as(struct mu_keyspace *ks, mu_mono_t now, uint64_t ttl_ms, uint64_t lease);
/** Starts the lease's time again. MUSTER_ENOENT. */
int mu_ks_lease_keep(struct mu_keyspace *ks, mu_mono_t now, uint64_t lease, uint64_t *ret_ttl_ms);
/** Ends the lease and deletes its keys (MU_CHANGE_EXPIRED). MUSTER_ENOENT, MUSTER_ENOMEM. */
int mu_ks_lease_revoke(struct mu_keyspace *ks, uint64_t lease, size_t *ret_removed);
/**
 * The same as mu_ks_lease_revoke() for a caller that cannot try again: if there is no memory, a
 * later mu_ks_tick() does it.
 */
void mu_ks_lease_end(struct mu_keyspace *ks, mu_mono_t now, uint64_t lease);
/** Returns when to call mu_ks_tick(). */
mu_mono_t mu_ks_deadline(const struct mu_keyspace *ks);
/*
 * While leases run, mu_ks_deadline() asks for a tick at least this often, even if no lease is due:
 * only so can a pause of the whole process be told from a quiet time.
 */
#define MU_KS_TICK_NS (500 * MU_NS_PER_MS)
/* A tick that is late by more than this means that our own process was suspended. */
#define MU_KS_TILT_NS (500 * MU_NS_PER_MS)
/**
 * Ends leases whose time is up. If the call is later than mu_ks_deadline() by more than
 * MU_KS_TILT_NS, our own process was suspended, and no client could keep its lease: leases that ran
 * out meanwhile get one more full time to live. A lease that cannot be ended for lack of memory is
 * tried again at the next tick.
 */
void mu_ks_tick(struct mu_keyspace *ks, mu_mono_t now);

/*
 * The journal: what a disk must hold so that the keyspace can be rebuilt. Every record has a
 * number; a put replaces the record of that number, a delete removes it. Loading all records in
 * ascending order of their numbers restores values and the order of queues. Keys bound to a lease
 * are not in it: leases end with the process.
 *
 * A record: u8 op (1 put value, 2 put queue element, 3 delete), u64 number, u32 key length,
 * u64 value length, key, value; a delete ends after the number.
 */
#define MU_KS_JOURNAL_PUT   1
#define MU_KS_JOURNAL_QUEUE 2
#define MU_KS_JOURNAL_DEL   3
/** Moves the records since the last call into `ret_journal`, whose old content is dropped. */
void mu_ks_journal_take(struct mu_keyspace *ks, struct mu_buf *ret_journal);
/** Returns how many bytes mu_ks_journal_take() would move. */
size_t mu_ks_journal_len(const struct mu_keyspace *ks);
/**
 * Restores one record (op is MU_KS_JOURNAL_PUT or _QUEUE), in a keyspace that is not used yet, in
 * ascending order of `number`. MUSTER_ECORRUPT, MUSTER_EFULL, MUSTER_ENOMEM.
 */
int mu_ks_load(struct mu_keyspace *ks, uint8_t op, uint64_t number, struct mu_span key,
               struct mu_span value);

#endif
