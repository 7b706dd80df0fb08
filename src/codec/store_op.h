/*
 * The vocabulary of a store: one request and one reply type for every operation, whichever wire it
 * came over and whichever kind of store answers it. All spans are borrowed.
 */
#ifndef MU_STORE_OP_H
#define MU_STORE_OP_H

#include <stddef.h>
#include <stdint.h>

#include "core/span.h"

/* X(enum suffix, number on the native wire, method name) */
#define MU_STORE_VERB_MAP(X)                                                                       \
    X(SET, 1, "set")                                                                               \
    X(GET, 2, "get")                                                                               \
    X(ADD, 3, "add")                                                                               \
    X(COMPARE_SET, 4, "compare_set")                                                               \
    X(CHECK, 5, "check")                                                                           \
    X(WAIT, 6, "wait")                                                                             \
    X(DELETE, 7, "delete")                                                                         \
    X(NUM_KEYS, 8, "num_keys")                                                                     \
    X(LIST_KEYS, 9, "list_keys")                                                                   \
    X(APPEND, 10, "append")                                                                        \
    X(MULTI_GET, 11, "multi_get")                                                                  \
    X(MULTI_SET, 12, "multi_set")                                                                  \
    X(QUEUE_PUSH, 13, "queue_push")                                                                \
    X(QUEUE_POP, 14, "queue_pop")                                                                  \
    X(QUEUE_LEN, 15, "queue_len")                                                                  \
    X(BARRIER, 16, "barrier")                                                                      \
    X(WATCH, 17, "watch")                                                                          \
    X(LEASE_GRANT, 18, "lease_grant")                                                              \
    X(LEASE_KEEP, 19, "lease_keep")                                                                \
    X(LEASE_REVOKE, 20, "lease_revoke")

enum mu_store_verb {
#define MU_STORE_VERB_ENUM(name, number, text) MU_STORE_##name = (number),
    MU_STORE_VERB_MAP(MU_STORE_VERB_ENUM)
#undef MU_STORE_VERB_ENUM
};

/* Flags of a request. */
#define MU_STORE_NOWAIT  1u /* get, multi_get, queue_pop: MUSTER_ENOENT instead of waiting */
#define MU_STORE_PREFIX  2u /* watch, list_keys: the key is a prefix */
#define MU_STORE_CURRENT 4u /* watch: begin with what is there */
#define MU_STORE_ONCE    8u /* watch: no stream; the first change ends it, with its revision */
/* For servers that pass on what PyTorch's clients ask for: */
#define MU_STORE_IN_TURN  16u /* wait: a push ends one such, first come, first served */
#define MU_STORE_OR_EMPTY 32u /* multi_get, nowait: the empty value where there is none */
#define MU_STORE_OLD      64u /* watch: changes tell what was there before, too */
#define MU_STORE_FLAGS    127u

/* The lease that ends with the caller's session, in place of a lease's number. */
#define MU_LEASE_SESSION UINT64_MAX

/*
 * verb          keys    values             number        reply
 * set           1       1                                -
 * get           1                                        1 value
 * add           1                          delta         number: the sum
 * compare_set   1       expected, desired                1 value; number: 1 if it was written
 * check         any                                      number: 1 if all are there
 * wait          any                                      -
 * delete        1                                        number: how many were removed
 * num_keys                                               number
 * list_keys     0 or 1 (a prefix)                        values: the keys
 * append        1       1                                number: the length now
 * multi_get     any                                      values, in order
 * multi_set     any     as many                          -
 * queue_push    1       1                                number: the length now
 * queue_pop     1                                        1 value; number: the length before
 * queue_len     1                                        number
 * barrier       1                          world size    -
 * watch         1                                        a stream of changes; once: number
 * lease_grant                              ttl in ms     number: the lease, whose number may be
 *                                                        given in `lease`
 * lease_keep                               (lease)       number: ttl in ms
 * lease_revoke                             (lease)       number: keys removed
 */
struct mu_store_request {
    enum mu_store_verb verb;
    uint32_t flags;
    const struct mu_span *keys;
    size_t key_count;
    const struct mu_span *values;
    size_t value_count;
    int64_t number;
    uint64_t lease; /* set, add, compare_set, append, multi_set: bound to it; lease_*: which */
};

struct mu_ks_block; /* proto/keyspace.h */

struct mu_store_reply {
    int64_t number;
    const struct mu_span *values;
    size_t value_count;
    /* NULL, or for each value what it lies in, if that can be held (mu_ks_hold()), else NULL. */
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
    uint64_t revision; /* counts all changes of the store; grows */
    struct mu_span key;
    struct mu_span old_value; /* on the native wire only if it was asked for */
    struct mu_span value;     /* for appended: the whole new value */
};

#endif
