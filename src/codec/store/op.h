/*
 * The vocabulary of a store: one request and one reply type for every operation, whichever wire it
 * came over and whichever kind of store answers it. All spans are borrowed.
 */
#ifndef MU_STORE_OP_H
#define MU_STORE_OP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/span.h"

/*
 * The verbs, one row each. Facts that hold for a verb on every wire and in every kind of store are
 * here and nowhere else; the words in capitals are explained below.
 *
 *     number   its number in the public API
 *     keys     the fewest and the most keys that a request names
 *     values   how many values it brings
 *     does     what it does to the keys
 *     waits    whether it may wait for another client's request
 *     known    which kinds know it, of those that do not know every verb
 *     lack     what a store without it lacks, in words; NULL: a store without it can make do with
 *              other verbs
 */
/* clang-format off */
#define MU_STORE_VERB_MAP(X)                                                                       \
    /* name       number  text         keys    values   does   waits   known   lack */             \
    X(SET,           1, "set",          1, 1,      1, CHANGES, NEVER,  EVERY,  NULL)               \
    X(GET,           2, "get",          1, 1,      0, READS,   UNLESS, EVERY,  NULL)               \
    X(ADD,           3, "add",          1, 1,      0, CHANGES, NEVER,  EVERY,  NULL)               \
    X(COMPARE_SET,   4, "compare_set",  1, 1,      2, CHANGES, NEVER,  EVERY,  NULL)               \
    X(CHECK,         5, "check",        0, ANY,    0, READS,   NEVER,  EVERY,  NULL)               \
    X(WAIT,          6, "wait",         0, ANY,    0, READS,   ALWAYS, EVERY,  NULL)               \
    X(DELETE,        7, "delete",       1, 1,      0, CHANGES, NEVER,  EVERY,  NULL)               \
    X(NUM_KEYS,      8, "num_keys",     0, 0,      0, LISTS,   NEVER,  EVERY,  NULL)               \
    X(LIST_KEYS,     9, "list_keys",    0, 1,      0, LISTS,   NEVER,  NEWER,  "list of its keys") \
    X(APPEND,       10, "append",       1, 1,      1, CHANGES, NEVER,  NEWER,  NULL)               \
    X(MULTI_GET,    11, "multi_get",    0, ANY,    0, READS,   UNLESS, NEWER,  NULL)               \
    X(MULTI_SET,    12, "multi_set",    0, ANY, EACH, CHANGES, NEVER,  NEWER,  NULL)               \
    X(QUEUE_PUSH,   13, "queue_push",   1, 1,      1, CHANGES, NEVER,  TORCH2, "queues")           \
    X(QUEUE_POP,    14, "queue_pop",    1, 1,      0, CHANGES, UNLESS, TORCH2, "queues")           \
    X(QUEUE_LEN,    15, "queue_len",    1, 1,      0, READS,   NEVER,  TORCH2, "queues")           \
    X(BARRIER,      16, "barrier",      1, 1,      0, CHANGES, ALWAYS, NONE,   "barriers")         \
    X(WATCH,        17, "watch",        1, 1,      0, WATCHES, ALWAYS, NONE,   "watches")          \
    X(LEASE_GRANT,  18, "lease_grant",  0, 0,      0, LEASES,  NEVER,  NONE,   "leases")           \
    X(LEASE_KEEP,   19, "lease_keep",   0, 0,      0, LEASES,  NEVER,  NONE,   "leases")           \
    X(LEASE_REVOKE, 20, "lease_revoke", 0, 0,      0, LEASES,  NEVER,  NONE,   "leases")
/* clang-format on */

enum mu_store_verb {
#define MU_STORE_VERB_ENUM(name, number, ...) MU_STORE_##name = (number),
    MU_STORE_VERB_MAP(MU_STORE_VERB_ENUM)
#undef MU_STORE_VERB_ENUM
};

enum mu_store_does {
    MU_STORE_READS = 1, /* it reads the keys that it names */
    MU_STORE_LISTS,     /* it reads all keys */
    MU_STORE_CHANGES,
    MU_STORE_WATCHES, /* it reads, but a client that repeats it misses changes */
    MU_STORE_LEASES,  /* it names a lease, not keys */
};

enum mu_store_waits {
    MU_STORE_NEVER,
    MU_STORE_UNLESS, /* unless the request has MU_STORE_NOWAIT */
    MU_STORE_ALWAYS,
};

/*
 * The kinds of stores that do not know every verb. Muster's servers, hash: and etcd know all; in a
 * store without barriers, one is made of other verbs (service/store/barrier.c).
 */
#define MU_STORE_IN_TORCH1 1u /* PyTorch 1.13's server */
#define MU_STORE_IN_TORCH2 2u /* PyTorch 2.x's */
#define MU_STORE_IN_FILE   4u
#define MU_STORE_IN_ETCD2  8u /* etcd by its API v2 */
#define MU_STORE_IN_NONE   0u
/* Every kind except PyTorch 1.13. */
#define MU_STORE_IN_NEWER (MU_STORE_IN_TORCH2 | MU_STORE_IN_FILE | MU_STORE_IN_ETCD2)
#define MU_STORE_IN_EVERY (MU_STORE_IN_TORCH1 | MU_STORE_IN_NEWER)

/* Counts that depend on the request. */
#define MU_STORE_ANY  UINT8_MAX       /* keys: any number */
#define MU_STORE_EACH (UINT8_MAX - 1) /* values: one for each key */

#define MU_STORE_SERVICE "muster::Store."

struct mu_store_verb_facts {
    const char *name;
    const char *method; /* on the native wire: MU_STORE_SERVICE and the name */
    uint8_t name_len;
    uint8_t keys_min;
    uint8_t keys_max;
    uint8_t values;
    uint8_t known; /* MU_STORE_IN_... */
    enum mu_store_does does;
    enum mu_store_waits waits;
    const char *lack;
};

/* Flags of a request. */
#define MU_STORE_NOWAIT  1u /* get, multi_get, queue_pop: MUSTER_ENOENT instead of waiting */
#define MU_STORE_PREFIX  2u /* watch, list_keys: the key is a prefix */
#define MU_STORE_CURRENT 4u /* watch: begin with the current values */
#define MU_STORE_ONCE    8u /* watch: no stream; the first change ends it, with its revision */
/* For servers that pass on what PyTorch's clients ask for: */
#define MU_STORE_IN_TURN  16u /* wait: a push ends one such wait, first come, first served */
#define MU_STORE_OR_EMPTY 32u /* multi_get, nowait: the empty value for a missing key */
#define MU_STORE_OLD      64u /* watch: changes carry the old value, too */
#define MU_STORE_FLAGS    127u

/* In place of a lease's number: the lease that ends with the caller's session. */
#define MU_LEASE_SESSION UINT64_MAX

/*
 * What the fields mean, beside the keys and values:
 *
 * verb          number        reply
 * set                         -
 * get                         1 value
 * add           delta         number: the sum
 * compare_set                 1 value; number: 1 if it was written. Values: expected, desired
 * check                       number: 1 if all are there
 * wait                        -
 * delete                      number: how many were removed
 * num_keys                    number
 * list_keys                   values: the keys. The key, if there is one, is a prefix
 * append                      number: the length now
 * multi_get                   values, in order
 * multi_set                   -
 * queue_push                  number: the length now
 * queue_pop                   1 value; number: the length before
 * queue_len                   number
 * barrier       world size    -
 * watch                       a stream of changes; once: number
 * lease_grant   ttl in ms     number: the lease, whose number may be given in `lease`
 * lease_keep    (lease)       number: ttl in ms
 * lease_revoke  (lease)       number: keys removed
 */
struct mu_store_request {
    enum mu_store_verb verb;
    uint32_t flags;
    const struct mu_span *keys;
    size_t key_count;
    const struct mu_span *values;
    size_t value_count;
    int64_t number;
    uint64_t lease; /* set, add, compare_set, append, multi_set: bind to it; lease_*: this one */
};

/** The row of a verb. A number without a verb has a row that fits no request, named "?". */
const struct mu_store_verb_facts *mu_store_verb_facts(enum mu_store_verb verb);
/** The verb of a method. MUSTER_ENOMETHOD. */
int mu_store_verb_of(struct mu_span method, enum mu_store_verb *ret_verb);
/** Whether an operation may be repeated when it is unknown whether it ran. */
bool mu_store_verb_is_read(enum mu_store_verb verb);
/** Whether a request may wait for another client's. */
bool mu_store_may_block(const struct mu_store_request *q);
/** Whether the request has as many keys and values as the verb takes. */
bool mu_store_request_fits(const struct mu_store_request *request);
/** What a kind of store (MU_STORE_IN_...) lacks to serve a request, as a text; NULL: nothing. */
const char *mu_store_lacks(unsigned kind, const struct mu_store_request *q);

struct mu_ks_block; /* proto/store/keyspace.h */

struct mu_store_reply {
    int64_t number;
    const struct mu_span *values;
    size_t value_count;
    /* NULL, or for each value the block it is in, if that can be held (mu_ks_hold()), else NULL. */
    struct mu_ks_block *const *blocks;
};

/* What a watcher sees. */
enum mu_change_kind {
    MU_CHANGE_CREATED = 1,
    MU_CHANGE_UPDATED,
    MU_CHANGE_APPENDED,
    MU_CHANGE_DELETED,
    MU_CHANGE_EXPIRED, /* deleted because its lease or its session ended */
};

struct mu_change {
    enum mu_change_kind kind;
    uint64_t revision; /* numbers all changes of the store; it grows */
    struct mu_span key;
    struct mu_span old_value; /* on the native wire only if it was asked for */
    struct mu_span value;     /* for appended: the whole new value */
};

#endif
