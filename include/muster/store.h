/*
 * Stores: keys and values that the processes of a job share, and ways to wait for each other
 * through them. One type serves for every kind of store:
 *
 *     tcp://HOST[:PORT]      a muster server, or PyTorch's TCPStore of either generation
 *     file:///PATH           PyTorch's FileStore format, shared with PyTorch processes
 *     etcd://HOST[,HOST...]/PREFIX     an etcd cluster
 *     hash:                  in this process
 *
 * Parameters follow a question mark: tcp://10.0.0.1:29500?prefix=job7. `prefix` works with every
 * kind: it opens a view with a key space of its own.
 *
 *     muster_runtime *rt;
 *     muster_store *store;
 *     muster_runtime_new(&rt);
 *     if (muster_store_open(rt, "tcp://127.0.0.1:29500", NULL, &store) != 0)
 *         die(muster_errmsg());
 *     muster_store_set(store, muster_str("model"), muster_str("v1"), MUSTER_TIMEOUT_DEFAULT);
 *
 * Blocking calls may be made from any thread, several at a time; each waits for its own answer
 * only. muster_store_submit() starts any operation without waiting. Operations in flight at the
 * same time may happen in any order; one that was started after another ended happens after it.
 *
 * A lost connection to a muster server is made again in the background; operations under way go on,
 * and no operation is executed twice. If the server was restarted meanwhile, reads are repeated,
 * and other operations end with MUSTER_ESESSION: they may or may not have happened.
 *
 * Some kinds lack some operations (MUSTER_ENOTSUP): watches, leases and binding to the session need
 * a muster server, hash: or etcd; queues need one of these or PyTorch 2.x. PyTorch 1.13's server
 * cannot list its keys.
 */
#ifndef MUSTER_STORE_H
#define MUSTER_STORE_H

#include <muster/error.h>
#include <muster/queue.h>
#include <muster/runtime.h>
#include <muster/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct muster_store muster_store;

struct muster_store_config {
    size_t size;                /* set by the defaults */
    int64_t timeout_ms;         /* default of operations. 300,000 as in PyTorch */
    int64_t connect_timeout_ms; /* of muster_store_open(), retries included. 300,000 */
};

/** Fills in the defaults, in a struct that has `size` bytes. */
MUSTER_EXPORT void muster_store_config_init(struct muster_store_config *ret, size_t size);
/** The struct with the defaults. */
static inline struct muster_store_config muster_store_config_defaults(void)
{
    struct muster_store_config it;

    muster_store_config_init(&it, sizeof(it));
    return it;
}

/**
 * Opens a store and waits until it answers. `config` NULL: the defaults. Errors: MUSTER_EURL,
 * MUSTER_ECONN (nothing listens there), MUSTER_ENOTSTORE (what answers is not a store),
 * MUSTER_EREFUSED, MUSTER_ETIMEDOUT, MUSTER_ENOMEM, MUSTER_EINVAL.
 */
MUSTER_EXPORT int muster_store_open(muster_runtime *runtime, const char *url,
                                    const struct muster_store_config *config,
                                    muster_store **ret_store);
/** Closes the store and waits until it is closed. Operations under way end with MUSTER_ECLOSED.
 * NULL is fine. */
MUSTER_EXPORT void muster_store_close(muster_store *store);

/** The default timeout of operations; a change applies to those started later. MUSTER_EINVAL. */
MUSTER_EXPORT int muster_store_set_timeout(muster_store *store, int64_t timeout_ms);
MUSTER_EXPORT int64_t muster_store_timeout(const muster_store *store);

/*
 * Operations. All return 0 or an error; beside their own, any may return MUSTER_ETIMEDOUT (the text
 * names the missing keys), MUSTER_ECONN, MUSTER_ESESSION, MUSTER_ECLOSED, MUSTER_ELIMIT,
 * MUSTER_EFULL, MUSTER_ENOTSUP, MUSTER_ENOMEM, MUSTER_EINVAL. `timeout_ms`: MUSTER_TIMEOUT_DEFAULT
 * (a watch then has no timeout), MUSTER_TIMEOUT_NEVER, or 1 and more milliseconds. Results are
 * written through pointers on success only.
 */

/** Writes the value over what the key holds, and wakes the callers that wait for the key. */
MUSTER_EXPORT int muster_store_set(muster_store *store, struct muster_bytes key,
                                   struct muster_bytes value, int64_t timeout_ms);
/** Waits until the key exists, and reads it. */
MUSTER_EXPORT int muster_store_get(muster_store *store, struct muster_bytes key,
                                   struct muster_value *ret_value, int64_t timeout_ms);
/** Adds to a decimal number; an absent key counts as 0. MUSTER_ENOTNUM. */
MUSTER_EXPORT int muster_store_add(muster_store *store, struct muster_bytes key, int64_t delta,
                                   int64_t *ret_sum, int64_t timeout_ms);
/**
 * Writes `desired` if the key holds `expected`, or is absent and `expected` is empty. `ret_value`
 * (may be NULL) is what the key holds now; if the key is absent and `expected` is not empty, it is
 * `expected`, as with PyTorch. `ret_written` (may be NULL) says whether it was written; with
 * PyTorch's servers this is a guess: whether the answer equals `desired`.
 */
MUSTER_EXPORT int muster_store_compare_set(muster_store *store, struct muster_bytes key,
                                           struct muster_bytes expected,
                                           struct muster_bytes desired,
                                           struct muster_value *ret_value, bool *ret_written,
                                           int64_t timeout_ms);
/** Whether all of the keys exist. */
MUSTER_EXPORT int muster_store_check(muster_store *store, const struct muster_bytes *keys,
                                     size_t count, bool *ret_there, int64_t timeout_ms);
/** Waits until each of the keys has existed. */
MUSTER_EXPORT int muster_store_wait(muster_store *store, const struct muster_bytes *keys,
                                    size_t count, int64_t timeout_ms);
/** Deletes the key; `ret_removed` (may be NULL) says whether it existed. */
MUSTER_EXPORT int muster_store_delete(muster_store *store, struct muster_bytes key,
                                      bool *ret_removed, int64_t timeout_ms);
/** How many keys there are. */
MUSTER_EXPORT int muster_store_num_keys(muster_store *store, int64_t *ret_count,
                                        int64_t timeout_ms);
/** Lists the keys that begin with `prefix` (empty: all), in no order. */
MUSTER_EXPORT int muster_store_list_keys(muster_store *store, struct muster_bytes prefix,
                                         struct muster_values *ret_keys, int64_t timeout_ms);
/** Appends the value to what the key holds. */
MUSTER_EXPORT int muster_store_append(muster_store *store, struct muster_bytes key,
                                      struct muster_bytes value, int64_t timeout_ms);
/** Waits until all keys exist, and reads them in the order of `keys`. */
MUSTER_EXPORT int muster_store_multi_get(muster_store *store, const struct muster_bytes *keys,
                                         size_t count, struct muster_values *ret_values,
                                         int64_t timeout_ms);
/** Writes all of the keys; a muster server writes all of them or none of them. */
MUSTER_EXPORT int muster_store_multi_set(muster_store *store, const struct muster_bytes *keys,
                                         const struct muster_bytes *values, size_t count,
                                         int64_t timeout_ms);
/** Puts an element at the end of a queue. */
MUSTER_EXPORT int muster_store_queue_push(muster_store *store, struct muster_bytes key,
                                          struct muster_bytes value, int64_t timeout_ms);
/** Takes the oldest element; waits for one with `block`, otherwise returns MUSTER_ENOENT. */
MUSTER_EXPORT int muster_store_queue_pop(muster_store *store, struct muster_bytes key, bool block,
                                         struct muster_value *ret_value, int64_t timeout_ms);
/** How many elements the queue has; 0 if it does not exist. */
MUSTER_EXPORT int muster_store_queue_len(muster_store *store, struct muster_bytes key,
                                         int64_t *ret_len, int64_t timeout_ms);
/** Waits for `world_size` callers. A key works once. A timeout's text says how many arrived. */
MUSTER_EXPORT int muster_store_barrier(muster_store *store, struct muster_bytes key,
                                       int64_t world_size, int64_t timeout_ms);

/* --- leases ----------------------------------------------------------------------------------- */

/**
 * Grants a lease. Its keys are deleted when it ends: when it is revoked, or was not kept for
 * `ttl_ms`.
 */
MUSTER_EXPORT int muster_store_lease_grant(muster_store *store, uint64_t ttl_ms,
                                           uint64_t *ret_lease, int64_t timeout_ms);
/** Starts the lease's time again. MUSTER_ENOENT: the lease has ended. */
MUSTER_EXPORT int muster_store_lease_keep(muster_store *store, uint64_t lease, int64_t timeout_ms);
/** Ends the lease and deletes its keys. */
MUSTER_EXPORT int muster_store_lease_revoke(muster_store *store, uint64_t lease,
                                            int64_t timeout_ms);
/** Instead of a lease's number: the key lives as long as this client's session. */
#define MUSTER_LEASE_SESSION UINT64_MAX
/** As muster_store_set(), with the key bound to a lease. */
MUSTER_EXPORT int muster_store_set_leased(muster_store *store, struct muster_bytes key,
                                          struct muster_bytes value, uint64_t lease,
                                          int64_t timeout_ms);

/* --- operations without waiting --------------------------------------------------------------- */

enum muster_store_verb {
    MUSTER_STORE_SET = 1,
    MUSTER_STORE_GET,
    MUSTER_STORE_ADD,
    MUSTER_STORE_COMPARE_SET,
    MUSTER_STORE_CHECK,
    MUSTER_STORE_WAIT,
    MUSTER_STORE_DELETE,
    MUSTER_STORE_NUM_KEYS,
    MUSTER_STORE_LIST_KEYS,
    MUSTER_STORE_APPEND,
    MUSTER_STORE_MULTI_GET,
    MUSTER_STORE_MULTI_SET,
    MUSTER_STORE_QUEUE_PUSH,
    MUSTER_STORE_QUEUE_POP,
    MUSTER_STORE_QUEUE_LEN,
    MUSTER_STORE_BARRIER,
    MUSTER_STORE_WATCH,
    MUSTER_STORE_LEASE_GRANT,
    MUSTER_STORE_LEASE_KEEP,
    MUSTER_STORE_LEASE_REVOKE,
};

#define MUSTER_STORE_NOWAIT  1u /* get, multi_get, queue_pop: MUSTER_ENOENT instead of waiting */
#define MUSTER_STORE_PREFIX  2u /* watch: all keys that begin with the key */
#define MUSTER_STORE_CURRENT 4u /* watch: begin with the current values */
#define MUSTER_STORE_ONCE    8u /* watch: no stream; the first change ends it, with its revision */

enum muster_change_kind {
    MUSTER_CHANGE_CREATED = 1,
    MUSTER_CHANGE_UPDATED,
    MUSTER_CHANGE_APPENDED,
    MUSTER_CHANGE_DELETED,
    MUSTER_CHANGE_EXPIRED, /* deleted because its lease or its session ended */
};

/** A change of a watched key; valid during the callback. */
struct muster_change {
    enum muster_change_kind kind;
    uint64_t revision; /* numbers all changes of the store; it grows */
    struct muster_bytes key;
    struct muster_bytes value;
};

/** An operation under way, or ended. */
typedef struct muster_op muster_op;

/** Called once, on the runtime's thread, when the operation has ended; never after
 * muster_op_free(). */
typedef void muster_op_done(muster_op *op, void *context);
/** Called on the runtime's thread for each change, in order, before the operation ends. */
typedef void muster_store_on_change(muster_op *op, const struct muster_change *change,
                                    void *context);

/* An operation takes the fields that the blocking call of the same name takes. compare_set has two
 * values, expected and desired. number is add's delta, barrier's world size, or lease_grant's ttl
 * in ms. */
struct muster_store_request {
    size_t size; /* set by the defaults */
    enum muster_store_verb verb;
    uint32_t flags;
    const struct muster_bytes *keys; /* copied, as everything that is passed */
    size_t key_count;
    const struct muster_bytes *values;
    size_t value_count;
    int64_t number;
    /* The lease that set, add, compare_set, append and multi_set bind to (0: no lease), and the one
     * that lease_* is about. */
    uint64_t lease;
    int64_t timeout_ms;                /* MUSTER_TIMEOUT_DEFAULT */
    muster_op_done *done;              /* may be NULL */
    muster_store_on_change *on_change; /* watch */
    void *context;
    /* Instead of `done` and `on_change`, which must be NULL then: the operation is put into this
     * queue when it has ended, a watch also when it has changes (muster_op_change_next()). */
    muster_queue *queue;
};

/** Fills in the defaults, in a struct that has `size` bytes. */
MUSTER_EXPORT void muster_store_request_init(struct muster_store_request *ret, size_t size);
/** The struct with the defaults. */
static inline struct muster_store_request muster_store_request_defaults(void)
{
    struct muster_store_request it;

    muster_store_request_init(&it, sizeof(it));
    return it;
}

/**
 * Starts an operation. The op must be freed. On an error nothing was started, and `done` is not
 * called. MUSTER_EINVAL (wrong number of keys or values), MUSTER_ENOMEM.
 */
MUSTER_EXPORT int muster_store_submit(muster_store *store,
                                      const struct muster_store_request *request,
                                      muster_op **ret_op);
/** Waits for the operation's end and returns its status. `done` has returned by then, so what
 * it uses may be freed. Not on the runtime's thread (MUSTER_EINVAL). */
MUSTER_EXPORT int muster_op_wait(muster_op *op);
/** The same for up to `timeout_ms`; 0 asks without waiting, on any thread. MUSTER_ETIMEDOUT if the
 * operation has not ended, which muster_op_ended() tells from an operation that timed out. */
MUSTER_EXPORT int muster_op_wait_for(muster_op *op, int64_t timeout_ms);
/** Whether the operation has ended, and `done` has returned; inside `done` it has ended. */
MUSTER_EXPORT bool muster_op_ended(muster_op *op);
/** Asks for an early end (MUSTER_ECANCELED); the operation may still end otherwise. Harmless once
 * it has ended. */
MUSTER_EXPORT void muster_op_cancel(muster_op *op);
/**
 * Frees the op, and cancels it if it is still under way. No callback of it runs after this returns:
 * one that runs on the runtime's thread is waited for, so do not hold a lock that it takes; one
 * that has not begun is not called any more. It may be called inside the op's own callbacks, but
 * not while another thread uses the op or waits for it. NULL is fine.
 */
MUSTER_EXPORT void muster_op_free(muster_op *op);
/**
 * Takes the next change of a watch that was submitted with a queue: returns 1 and the change, whose
 * bytes are valid until the next call for this op, or 0 if there is none now. Take them until there
 * is none: the watch comes into the queue again only with another change. A watch whose changes are
 * not taken ends with MUSTER_EOVERFLOW when more than 16 MiB of them would wait; those that wait
 * can still be taken. One thread at a time. MUSTER_EINVAL: it is not such a watch.
 */
MUSTER_EXPORT int muster_op_change_next(muster_op *op, struct muster_change *ret_change);

/* Results, once the operation has ended; valid until muster_op_free(). */
MUSTER_EXPORT int muster_op_status(const muster_op *op);
MUSTER_EXPORT const char *muster_op_errmsg(const muster_op *op);
MUSTER_EXPORT int64_t muster_op_number(const muster_op *op);
MUSTER_EXPORT size_t muster_op_value_count(const muster_op *op);
MUSTER_EXPORT struct muster_bytes muster_op_value(const muster_op *op, size_t index);

#ifdef __cplusplus
}
#endif

#endif
