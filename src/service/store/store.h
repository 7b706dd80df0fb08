/*
 * A store of any kind, as its users on the loop's thread see it: requests go in, and each ends
 * exactly once. The public muster_store wraps this for other threads.
 *
 *     op->request = ...; op->timeout_ms = 1000; op->done = on_done;
 *     mu_store_submit(store, op);        on_done(op) follows, on a later turn, exactly once
 *
 * The op is the caller's and must stay where it is until `done`; so must what the request points
 * to.
 */
#ifndef MU_STORE_H
#define MU_STORE_H

#include "codec/store/op.h"
#include "core/env.h"
#include "core/err.h"
#include "core/list.h"

struct mu_store;

struct mu_store_op {
    struct mu_store_request request;
    uint32_t timeout_ms; /* 0: never. Counts from the submission */
    /** The end. `status`, `reply` (lent for the call) and, if status is not 0, `errmsg` are set. */
    void (*done)(struct mu_store_op *op);
    /** MU_STORE_WATCH: a change, lent for the call. */
    void (*change)(struct mu_store_op *op, const struct mu_change *change);
    /**
     * For the native engine: a call of this method with this payload, in place of the request,
     * whose verb says only whether the call may be repeated. Its answer is the one value of the
     * reply; its items go to `item`, lent for the call. NULL: the request.
     */
    const char *method;
    struct mu_span payload;
    void (*item)(struct mu_store_op *op, struct mu_span payload);
    int status;
    struct mu_store_reply reply;
    struct mu_errmsg errmsg;

    /* Internal to the store from here on. */
    struct mu_store *store;
    struct mu_list link;
    struct mu_timer timer;
    mu_mono_t deadline;
    uint64_t id;
    uint32_t state;
    void *impl;
};

struct mu_store_kind {
    /** Starts an op; it ends through mu_store_finish(), on a later turn. */
    void (*submit)(struct mu_store *store, struct mu_store_op *op);
    /** Ends it soon (MUSTER_ECANCELED), unless it ends otherwise first. */
    void (*cancel)(struct mu_store *store, struct mu_store_op *op);
    /** Ends all ops with MUSTER_ECLOSED, frees everything, then calls `closed`. */
    void (*close)(struct mu_store *store);
};

struct mu_store {
    const struct mu_store_kind *kind;
    struct mu_env *env;
    uint32_t connect_ms; /* how long it may take to reach the server; 0: for ever */
    /** The last callback; the store is freed right after it returns. */
    void (*closed)(void *context);
    void *context;
};

static inline void mu_store_submit(struct mu_store *store, struct mu_store_op *op)
{
    op->store = store;
    store->kind->submit(store, op);
}

static inline void mu_store_cancel(struct mu_store_op *op)
{
    op->store->kind->cancel(op->store, op);
}

/** `closed` follows, on a later turn. */
static inline void mu_store_close(struct mu_store *store, void (*closed)(void *context),
                                  void *context)
{
    store->closed = closed;
    store->context = context;
    store->kind->close(store);
}

/** Whether the verb and the counts of a request fit: MUSTER_ENOMETHOD, MUSTER_EINVAL. */
int mu_store_check(const struct mu_store_request *q);
/** For kinds: sets the status and calls `done`. */
void mu_store_finish(struct mu_store_op *op, int status, const char *text);
/** For kinds: ends an op that cannot be started, on the next turn, without any memory. */
void mu_store_fail_later(struct mu_store *store, struct mu_store_op *op, int status);
/** For kinds: allocates `size` zero bytes for an op. NULL: the op ends on the next turn, with
 * `refusal`, or, if that is 0, with MUSTER_ENOMEM. */
void *mu_store_alloc(struct mu_store *store, struct mu_store_op *op, int refusal, size_t size);
/** For kinds: takes an op that is being submitted; its timer calls `on_timeout` at its deadline. */
void mu_store_begin(struct mu_store *store, struct mu_store_op *op, void *impl,
                    void (*on_timeout)(struct mu_timer *timer));
/** For kinds: returns the deadline of an op that is being submitted. */
mu_mono_t mu_store_deadline(struct mu_store *store, const struct mu_store_op *op);

/* --- kinds ------------------------------------------------------------------------------------ */

struct mu_store_tcp_config {
    struct mu_addr addr;
    enum mu_store_tcp_protocol {
        MU_STORE_TCP_ANY = 0, /* found by trying: see docs/store.md */
        MU_STORE_TCP_MUSTER,
        MU_STORE_TCP_TORCH1,
        MU_STORE_TCP_TORCH2,
    } protocol;
    uint32_t connect_ms;    /* how long the first connection may take, retries included. 300 s */
    uint32_t reconnect_ms;  /* how long a connection may stay lost before its ops fail. 10 s */
    uint32_t probe_ms;      /* how long a server may be silent before the next protocol. 1 s */
    uint32_t beat_ms;       /* the native protocol: our wishes, as in struct mu_rpc_config; 0: */
    uint32_t dead_ms;       /* its defaults */
    uint32_t waits_max;     /* PyTorch's protocol: connections for blocking ops. 64 */
    size_t value_bytes_max; /* PyTorch's protocol: a longer answer is MUSTER_ELIMIT. 1 GiB */
    const char *name;       /* our name in the server's logs; borrowed for the store's life */
    bool once; /* PyTorch's protocol: a server that hangs up has answered, and is not asked again */
    bool wire_keys; /* the native protocol: keys are as on the wire, slashes included */
    uint32_t
        name_ms; /* how long the host's name may be unknown until ops fail with MUSTER_ENAME, if
                         there was no connection yet; 0: as long as connect_ms. 0 */
    /** A try to connect has failed, and it goes on trying; also after a connection was lost. Each
     * time. NULL: a line of the log says it after 2 s, until there was a connection. */
    void (*trouble)(void *context, int status);
    void *context;
};

struct mu_store_tcp_config mu_store_tcp_config_defaults(void);

/** Makes a client. It connects at once; ops may be submitted right away. MUSTER_ENOMEM. */
int mu_store_tcp_new(struct mu_env *env, const struct mu_store_tcp_config *config,
                     struct mu_store **ret_store);
/**
 * Returns the protocol that the server speaks, once an op has been answered. MU_STORE_TCP_ANY: not
 * known yet, or not a store of mu_store_tcp_new().
 */
enum mu_store_tcp_protocol mu_store_tcp_found(const struct mu_store *store);
/** Makes a store in this process. MUSTER_ENOMEM. */
int mu_store_hash_new(struct mu_env *env, struct mu_store **ret_store);
/**
 * Makes a store in PyTorch's FileStore format, shared under its file lock. `world_size` is
 * PyTorch's: when so many users have closed the store, the file is removed; negative: the file
 * stays. MUSTER_ENOMEM.
 */
int mu_store_file_new(struct mu_env *env, const char *path, int64_t world_size,
                      struct mu_store **ret_store);
/*
 * Layers. Each is made first and put onto an open store later, which cannot fail: an open store
 * takes time to close. It takes the store and closes it. A layer that is not needed is dropped;
 * NULL is fine. MUSTER_ENOMEM.
 */
/** Puts `prefix` and '/' before every key. */
int mu_store_prefix_new(struct mu_env *env, const char *prefix, struct mu_store **ret_store);
void mu_store_prefix_onto(struct mu_store *prefix, struct mu_store *inner);
void mu_store_prefix_drop(struct mu_store *prefix);
/** Adds MU_STORE_BARRIER to a kind that lacks it, made of add, set and wait. */
int mu_store_barrier_new(struct mu_env *env, struct mu_store **ret_store);
void mu_store_barrier_onto(struct mu_store *barrier, struct mu_store *inner);
void mu_store_barrier_drop(struct mu_store *barrier);

/**
 * By URL:
 *     tcp://HOST[:PORT][?protocol=muster|torch1|torch2][&connect=MS][&prefix=P]
 *     file:///PATH[?world_size=N][&prefix=P]
 *     hash:[?prefix=P]
 *     etcd://HOST[:PORT][,HOST[:PORT]...][/PREFIX][?api=v3|v2][&tls=true][&cacert=FILE][&cert=FILE]
 *         [&key=FILE][&user=NAME][&password_file=FILE][&connect=MS][&prefix=P]
 * The default port is 29500, etcd's 2379; etcd's default prefix is /muster. `connect_ms` holds
 * where the URL has no connect=MS. MUSTER_EURL with a text, MUSTER_ENOMEM.
 */
int mu_store_open(struct mu_env *env, const char *url, uint32_t connect_ms,
                  struct mu_store **ret_store, struct mu_errmsg *reterr_msg);

#endif
