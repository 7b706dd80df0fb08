/*
 * Rendezvous: the nodes of a job find each other, agree on the members, and get a rank each; they
 * do so again whenever a node comes or goes.
 *
 *     struct muster_rdzv_params params = muster_rdzv_params_defaults();
 *     params.endpoint = "node0:29400";
 *     params.run_id = "job7";
 *     params.nodes_min = 2;
 *     params.nodes_max = 4;
 *     muster_rdzv *rdzv;
 *     struct muster_rdzv_info info;
 *     muster_rdzv_open(rt, &params, &rdzv);
 *     while (muster_rdzv_next(rdzv, &info) == 0) {
 *         ... work with info.store as rank info.rank of info.world_size ...
 *         ... until it is done, fails, or muster_rdzv_ended() says that the round is over ...
 *     }
 *     muster_rdzv_close(rdzv);
 *
 * Backends: "muster" (a muster server holds the state and tells every node at once what happens),
 * "c10d" (a key of a store, compatible with PyTorch's agents of 1.13 and 2.x), "etcd-v3" (etcd,
 * where each node's life is a lease), "etcd-v2" and "etcd" (etcd as PyTorch's backends of those
 * names have it), "static" (the user gives the ranks), and those that were registered. An endpoint
 * may also name everything: "BACKEND://ENDPOINT/RUN_ID?min_workers=N&max_workers=N&KEY=VALUE".
 *
 * Calls may come from any thread except the runtime's own, where calls that wait return
 * MUSTER_EINVAL.
 */
#ifndef MUSTER_RENDEZVOUS_H
#define MUSTER_RENDEZVOUS_H

#include <muster/store.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct muster_rdzv muster_rdzv;

/* Parts of a round that a node does not need; without them the round begins sooner. */
#define MUSTER_RDZV_NO_STORE     1u /* info.store is NULL; implies NO_BOOTSTRAP */
#define MUSTER_RDZV_NO_BOOTSTRAP 2u /* no bootstrap address. Only if no node of the run wants one */

/* Text is copied. NULL is the same as "". */
struct muster_rdzv_params {
    size_t size;          /* set by the defaults */
    const char *backend;  /* "muster" */
    const char *endpoint; /* "HOST[:PORT]"; c10d with store_type=file: a path; etcd:
                             "HOST:PORT,HOST:PORT,..." or "etcd://HOST:PORT,.../PREFIX?..." */
    const char *run_id;
    uint32_t nodes_min;     /* 1 */
    uint32_t nodes_max;     /* 1 */
    const char *local_addr; /* how others reach this node. Default: the host's name */
    const char *config;     /* "key=value,...": see muster-rdzv(1) for the keys of each backend */
    uint32_t flags;         /* MUSTER_RDZV_NO_* */
};

/** Fills in the defaults, in a struct that has `size` bytes. */
MUSTER_EXPORT void muster_rdzv_params_init(struct muster_rdzv_params *ret, size_t size);
/** The struct with the defaults. */
static inline struct muster_rdzv_params muster_rdzv_params_defaults(void)
{
    struct muster_rdzv_params it;

    muster_rdzv_params_init(&it, sizeof(it));
    return it;
}

/*
 * A round. Its pointers are valid until the next muster_rdzv_next() or muster_rdzv_close(); no
 * operation may be under way on the store when either is called.
 *
 * The bootstrap address is where the workers of the round meet (MASTER_ADDR and MASTER_PORT). Rank
 * 0 serves a new store there in every round, until it goes on to the next round; see
 * muster_rdzv_use_agent_store().
 */
struct muster_rdzv_info {
    muster_store *store; /* this round's own: other rounds do not see its keys */
    const char *store_url;
    uint64_t round;
    uint64_t incarnation; /* the run's: grows when a closed run begins again; 0: not known */
    uint32_t rank;
    uint32_t world_size;        /* nodes */
    uint32_t restarts_left;     /* UINT32_MAX: no bound, or the backend does not count */
    const char *bootstrap_addr; /* "" with MUSTER_RDZV_NO_BOOTSTRAP */
    uint16_t bootstrap_port;
    size_t member_count;        /* 0 where the backend was told not to say (members=false) */
    const char *const *members; /* their names, by rank */
    const char *const *member_addrs;
};

/* --- parameters ------------------------------------------------------------------------------- */

/** MUSTER_EINVAL; muster_errmsg() says which parameter is wrong and why. */
MUSTER_EXPORT int muster_rdzv_params_check(const struct muster_rdzv_params *params);
/** Reads a typed value of the config: `fallback` if the key is absent, MUSTER_EINVAL if its value
 * has another type. Booleans: 1 true t yes y, 0 false f no n, in any case. */
MUSTER_EXPORT int muster_rdzv_config_bool(const struct muster_rdzv_params *params, const char *key,
                                          bool fallback, bool *ret);
MUSTER_EXPORT int muster_rdzv_config_int(const struct muster_rdzv_params *params, const char *key,
                                         int64_t fallback, int64_t *ret);
/** The text belongs to `params` or `fallback`, and has no terminator. */
MUSTER_EXPORT struct muster_bytes muster_rdzv_config_text(const struct muster_rdzv_params *params,
                                                          const char *key, const char *fallback);

/* --- handlers --------------------------------------------------------------------------------- */

/**
 * Opens a rendezvous. It sends nothing to other nodes yet, but this node may have become the
 * rendezvous host, which listens at the endpoint. MUSTER_EINVAL, MUSTER_ENOENT (no backend of that
 * name), MUSTER_EADDR, MUSTER_ENOMEM.
 */
MUSTER_EXPORT int muster_rdzv_open(muster_runtime *runtime, const struct muster_rdzv_params *params,
                                   muster_rdzv **ret_rdzv);
/**
 * Waits for the next round and fills `*ret_info`. A node that is in a round leaves it first, which
 * ends the round for the others as well. One call at a time (MUSTER_EBUSY). MUSTER_ERDZV_CLOSED,
 * _TIMEOUT (the text says which nodes are missing), _CONN, _STATE, _GRACEFUL (closed while this
 * node was spare: not a failure), _RESTARTS; MUSTER_ECLOSED (muster_rdzv_close() on another
 * thread), MUSTER_EADDR (no port for the bootstrap address), MUSTER_ENOMEM. After an error the node
 * is in no round, and may try again.
 */
MUSTER_EXPORT int muster_rdzv_next(muster_rdzv *rdzv, struct muster_rdzv_info *ret_info);
/**
 * Asks, on another thread, what the muster_rdzv_next() under way waits for. Returns 0 when the
 * answer is there; muster_errmsg() is then one sentence without a full stop, such as "1 of 2 nodes
 * is here: node0". MUSTER_ETIMEDOUT: there was no answer within `timeout_ms`; MUSTER_ENOENT: no
 * call waits, or it ended first; MUSTER_ECLOSED; MUSTER_ENOTSUP: the backend cannot tell.
 */
MUSTER_EXPORT int muster_rdzv_explain(muster_rdzv *rdzv, int64_t timeout_ms);
/** Whether the run is closed, as far as this node knows. */
MUSTER_EXPORT int muster_rdzv_is_closed(muster_rdzv *rdzv, bool *ret_closed);
/** Closes the run for all nodes. MUSTER_ERDZV_TIMEOUT, MUSTER_ERDZV_CONN, MUSTER_ECLOSED. */
MUSTER_EXPORT int muster_rdzv_set_closed(muster_rdzv *rdzv);
/** How many nodes wait to be let in; muster_rdzv_next() lets them in. Sends nothing. */
MUSTER_EXPORT int muster_rdzv_num_nodes_waiting(muster_rdzv *rdzv, uint32_t *ret_count);
/**
 * Waits until the round is over or `timeout_ms` have passed (MUSTER_ETIMEDOUT); 0 asks without
 * waiting. Returns 0 if the round is over, or if no round has begun; muster_errmsg() then says why
 * in a sentence. MUSTER_ECLOSED. Registered backends may not support this (MUSTER_ENOTSUP).
 */
MUSTER_EXPORT int muster_rdzv_ended(muster_rdzv *rdzv, int64_t timeout_ms);
/** As they were given; valid until the rendezvous is closed. */
MUSTER_EXPORT const char *muster_rdzv_backend(const muster_rdzv *rdzv);
MUSTER_EXPORT const char *muster_rdzv_run_id(const muster_rdzv *rdzv);
/**
 * Whether a store serves at the bootstrap address for as long as the round lasts, so that all
 * workers are clients of it. False if TORCH_DISABLE_SHARE_RDZV_TCP_STORE is 1, as with PyTorch, or
 * if the other nodes run PyTorch 1.13: then the first worker of rank 0 serves there.
 */
MUSTER_EXPORT bool muster_rdzv_use_agent_store(const muster_rdzv *rdzv);
/** Closes the run, as PyTorch's shutdown() does; true if that worked. */
MUSTER_EXPORT bool muster_rdzv_shutdown(muster_rdzv *rdzv);
/**
 * Ends the calls that wait, now and from now on, with MUSTER_ECLOSED; the rendezvous stays valid
 * until muster_rdzv_close(). For programs that cannot tell whether another thread is about to make
 * a call, when it may not be freed yet: interrupt it, wait for that thread, close it. From any
 * thread, and harmless more than once. The handlers of registered backends are not interrupted.
 */
MUSTER_EXPORT void muster_rdzv_interrupt(muster_rdzv *rdzv);
/**
 * Leaves the round, if the node is in one, and frees the rendezvous. The run goes on for the other
 * nodes. Calls under way on other threads end with MUSTER_ECLOSED; no new call may begin. The
 * rendezvous host waits up to a second for the others to hang up, since its server ends with it.
 * NULL is fine.
 */
MUSTER_EXPORT void muster_rdzv_close(muster_rdzv *rdzv);

/* --- what happens during a round -------------------------------------------------------------- */

enum muster_rdzv_event_kind {
    MUSTER_RDZV_EVENT_WAITING = 1, /* the number of nodes that wait has changed */
    MUSTER_RDZV_EVENT_ENDED,       /* the round is over */
    MUSTER_RDZV_EVENT_CLOSED,      /* the run is closed */
};

enum muster_rdzv_end_reason {
    MUSTER_RDZV_ENDED_LOST = 1, /* a member vanished */
    MUSTER_RDZV_ENDED_LEFT,     /* a member left */
    MUSTER_RDZV_ENDED_UPSCALE,  /* late nodes are let in */
    MUSTER_RDZV_ENDED_FAILED,   /* the workers of a member failed */
    MUSTER_RDZV_ENDED_DROPPED,  /* the other nodes have gone on without this one */
    MUSTER_RDZV_ENDED_OUT,      /* this node is out: `status` says why */
    MUSTER_RDZV_ENDED_CLOSED,   /* the run was closed */
};

/* Pointers are valid until the next muster_rdzv_wait_event(). */
struct muster_rdzv_event {
    enum muster_rdzv_event_kind kind;
    uint32_t waiting; /* WAITING */
    uint64_t round;
    enum muster_rdzv_end_reason reason; /* ENDED */
    int status;                         /* ENDED_OUT: MUSTER_ERDZV_* */
    const char *who;                    /* the member that caused it, or NULL */
    uint32_t who_rank;
    const char *text; /* one sentence */
};

/**
 * Waits for the next event, with timeouts as muster_rdzv_ended(). Each event is reported once; of
 * several at the same time, the one that enum muster_rdzv_event_kind lists first. One thread at a
 * time may wait. MUSTER_ETIMEDOUT, MUSTER_ECLOSED, MUSTER_ENOTSUP (registered backends).
 */
MUSTER_EXPORT int muster_rdzv_wait_event(muster_rdzv *rdzv, int64_t timeout_ms,
                                         struct muster_rdzv_event *ret_event);

/* --- backends of your own --------------------------------------------------------------------- */

/*
 * The functions above, in the same order. All of them may block, and may be called from any thread.
 * `context` is what muster_rdzv_new() was given. `ended` and `use_agent_store` may be NULL. To
 * return an error with a sentence, use muster_rdzv_fail().
 */
struct muster_rdzv_ops {
    size_t size; /* set by the defaults */
    int (*next)(void *context, struct muster_rdzv_info *ret_info);
    int (*is_closed)(void *context, bool *ret_closed);
    int (*set_closed)(void *context);
    int (*num_nodes_waiting)(void *context, uint32_t *ret_count);
    int (*ended)(void *context, int64_t timeout_ms);
    bool (*use_agent_store)(void *context);
    bool (*shutdown)(void *context);
    void (*close)(void *context);
};

/** Fills in the defaults, in a struct that has `size` bytes. */
MUSTER_EXPORT void muster_rdzv_ops_init(struct muster_rdzv_ops *ret, size_t size);
/** The struct with the defaults. */
static inline struct muster_rdzv_ops muster_rdzv_ops_defaults(void)
{
    struct muster_rdzv_ops it;

    muster_rdzv_ops_init(&it, sizeof(it));
    return it;
}

/**
 * Makes a handler for a backend of your own; creators call this. `ops` and the texts are copied. On
 * an error `context` is still the caller's, and `close` is not called. MUSTER_EINVAL (no name, or
 * one of more than 31 bytes; an op is missing), MUSTER_ENOMEM.
 */
MUSTER_EXPORT int muster_rdzv_new(const char *backend, const char *run_id,
                                  const struct muster_rdzv_ops *ops, void *context,
                                  muster_rdzv **ret_rdzv);
/** Keeps `text` for muster_errmsg() and returns `code`; backends call this. */
MUSTER_EXPORT int muster_rdzv_fail(int code, const char *text);
/** `params` have been checked, and are valid during the call. */
typedef int muster_rdzv_creator(muster_runtime *runtime, const struct muster_rdzv_params *params,
                                muster_rdzv **ret_rdzv);
/**
 * Makes a backend known to muster_rdzv_open(). Registering the same creator twice is fine; another
 * creator for a name that is taken is refused, and the built-in names are taken (MUSTER_EEXIST). If
 * the creator returns a handler with another backend name, muster_rdzv_open() refuses it
 * (MUSTER_EINVAL) and closes it. MUSTER_EINVAL, MUSTER_ENOMEM. Safe from any thread.
 */
MUSTER_EXPORT int muster_rdzv_register(const char *backend, muster_rdzv_creator *create);

/* --- records ---------------------------------------------------------------------------------- */

enum muster_rdzv_state {
    MUSTER_RDZV_INIT = 1,
    MUSTER_RDZV_RUNNING,
    MUSTER_RDZV_SUCCEEDED,
    MUSTER_RDZV_FAILED,
};

/** A step that a node took; valid during the call. */
struct muster_rdzv_record {
    const char *name; /* such as "muster.join" */
    const char *run_id;
    const char *message;
    const char *host;
    int64_t pid;
    enum muster_rdzv_state state;
    int64_t rank; /* -1: the node has no rank */
    const char *node;
    int64_t time_us; /* since 1970 in UTC */
};

typedef void muster_rdzv_sink(const struct muster_rdzv_record *record, void *context);
/**
 * Sets where the records of all handlers in the process go; NULL: nowhere. Until this is called,
 * the sink is muster_rdzv_sink_default. Sinks run on the runtime's thread, one at a time. The texts
 * contain names that nodes gave themselves: treat them as untrusted bytes. Returns when no call to
 * the previous sink is under way; do not call it from a sink.
 */
MUSTER_EXPORT void muster_rdzv_set_sink(muster_rdzv_sink *sink, void *context);
/**
 * A sink that writes one line of JSON for each record to the `FILE *` that is its context, and
 * flushes it. The keys are those of PyTorch's events; bytes that are not UTF-8 become U+FFFD.
 *
 *     {"time":1700000000.123456,"name":"muster.join","run_id":"job7","message":"…",
 *      "hostname":"node0","pid":4711,"node_state":"RUNNING","rank":null,"node":"node0_4711_0"}
 */
MUSTER_EXPORT void muster_rdzv_sink_json(const struct muster_rdzv_record *record, void *context);
/**
 * The default sink: it writes the lines of muster_rdzv_sink_json where the environment variable
 * MUSTER_RDZV_EVENTS pointed at the first record. A path: lines are appended to that file, each
 * with one write, so that processes can share it. `-`: standard error. Not set, empty, or in a
 * program that runs with another user's rights: nowhere. A file that cannot be opened is logged
 * once (RDZV-EVENTS-LOST). It does not use the context.
 */
MUSTER_EXPORT void muster_rdzv_sink_default(const struct muster_rdzv_record *record, void *context);

#ifdef __cplusplus
}
#endif

#endif
