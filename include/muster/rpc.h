/*
 * RPC: named workers that call each other.
 *
 *     struct muster_rpc_config config = muster_rpc_config_defaults();
 *     config.name = "worker0";
 *     config.id = 0;
 *     muster_rpc_start(rt, &config, &agent);
 *     muster_rpc_register(agent, "app::Math.add", add, NULL, 0);
 *     muster_rpc_join_group(agent, store, "job7", 2, 60000);      names and addresses of the others
 *
 *     struct muster_rpc_request call = muster_rpc_request_defaults();
 *     call.to = "worker1";
 *     call.method = "app::Math.add";
 *     call.parts = parts;
 *     call.part_count = 2;
 *     if (muster_rpc_call(agent, &call, &future) == 0) {          begins it
 *         if (muster_rpc_future_wait(future, MUSTER_TIMEOUT_NEVER) == 0)
 *             use(muster_rpc_future_part(future, 0).data);
 *         else
 *             complain(muster_rpc_future_errmsg(future));
 *         muster_rpc_future_free(future);
 *     }
 *
 *     muster_rpc_leave_group(agent, store, 60000);                no worker has a call under way
 *     muster_rpc_shutdown(agent);
 *
 * Calls. Every call ends exactly once: with the handler's answer, with the handler's error, or with
 * an error from the way there or back (its deadline has passed, it was canceled, the worker cannot
 * be reached, the agent was shut down). The deadline travels with the call; the handler can see it.
 * One connection serves both directions between two workers; the first call makes it. A lost
 * connection is made again, and all calls go on; nothing runs twice.
 *
 * A worker says goodbye when it is shut down: from then on, calls to it end with MUSTER_ECLOSED at
 * once, until a worker of the same name is there again.
 *
 * MUSTER_ESESSION means that a worker was lost with the call: the call may or may not have run.
 * With retries (MUSTER_RPC_RETRY) it then runs again, so the method must tolerate that; with
 * MUSTER_RPC_ONCE the worker remembers what it answered, and the call runs at most once however
 * often it is sent.
 *
 * Handlers run on the runtime's thread and must not block there; with MUSTER_RPC_BLOCKS they run on
 * one of the agent's own threads, where they may block. Either kind may answer later, from any
 * thread.
 *
 * All functions may be called from any thread. Functions that wait return MUSTER_EINVAL on the
 * runtime's own thread.
 */
#ifndef MUSTER_RPC_H
#define MUSTER_RPC_H

#include <muster/rendezvous.h>
#include <muster/store.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct muster_rpc_agent muster_rpc_agent;
typedef struct muster_rpc_future muster_rpc_future;
typedef struct muster_rpc_call_in muster_rpc_call_in;
typedef struct muster_rpc_stream muster_rpc_stream;

/* --- the agent -------------------------------------------------------------------------------- */

/* Text is copied. The runtime's lock decides which calls are let in and out (muster/runtime.h).
 */
struct muster_rpc_config {
    size_t size;      /* set by the defaults */
    const char *name; /* 1 to 127 of A-Z a-z 0-9 - _ : */
    int32_t id;       /* 0 to 32767, unique in the group; -1: no id, cannot be called */
    /* "HOST:PORT", port 0: any; "unix:/PATH"; NULL: does not listen. Default: every address of the
     * host if the runtime's lock has a credential or is `insecure`; else loopback. */
    const char *listen;
    const char *advertise; /* the host that others dial. NULL: that of `listen`, or our host name */
    int64_t timeout_ms;    /* default of calls. 60,000 */
    uint32_t threads;      /* for handlers that block; started when first needed. 16 */
    int64_t connect_timeout_ms;    /* to make a first connection. 10,000 */
    int64_t reconnect_timeout_ms;  /* to make a lost one again. 5,000 */
    size_t message_bytes_max;      /* of one incoming message. 1 GiB */
    uint32_t retry_budget_percent; /* retries among the calls to one worker. 0: no bound */
    bool tcp_only;                 /* workers on one host use TCP too, not unix sockets */
};

/** Fills in the defaults, in a struct that has `size` bytes. */
MUSTER_EXPORT void muster_rpc_config_init(struct muster_rpc_config *ret, size_t size);
/** The struct with the defaults. */
static inline struct muster_rpc_config muster_rpc_config_defaults(void)
{
    struct muster_rpc_config it;

    muster_rpc_config_init(&it, sizeof(it));
    return it;
}

/** MUSTER_EINVAL (a bad name or id), MUSTER_EADDR, MUSTER_EURL, MUSTER_ELOCKED (other hosts can
 * reach the address, and the runtime's lock has no credential), MUSTER_ENOMEM. */
MUSTER_EXPORT int muster_rpc_start(muster_runtime *runtime, const struct muster_rpc_config *config,
                                   muster_rpc_agent **ret_agent);
/**
 * Ends the agent at once. Calls under way and waiting retries end with MUSTER_ECLOSED; handlers
 * that run are told (muster_rpc_in_canceled()), and this waits for them and then frees the agent.
 * Futures stay valid. If this was the current agent of the process, the process no longer has one.
 * On the runtime's thread, where it would wait for itself, it does nothing. NULL is fine.
 */
MUSTER_EXPORT void muster_rpc_shutdown(muster_rpc_agent *agent);

/** As in its config; valid until the agent is shut down. */
MUSTER_EXPORT const char *muster_rpc_name(const muster_rpc_agent *agent);
MUSTER_EXPORT int32_t muster_rpc_id(const muster_rpc_agent *agent);
/** Where others dial it: "HOST:PORT", or "unix:/PATH"; "" if it does not listen. */
MUSTER_EXPORT const char *muster_rpc_address(const muster_rpc_agent *agent);
/** The default timeout of calls; a change applies to those begun later. MUSTER_EINVAL. */
MUSTER_EXPORT int muster_rpc_set_timeout(muster_rpc_agent *agent, int64_t timeout_ms);
MUSTER_EXPORT int64_t muster_rpc_timeout(const muster_rpc_agent *agent);

/**
 * The agent of the process, for code that is not handed one. You can set an agent while there is no
 * current one (otherwise MUSTER_EEXIST), or NULL while there is one (otherwise MUSTER_ENOENT).
 * Asking while there is no current agent is MUSTER_ENOENT, too.
 */
MUSTER_EXPORT int muster_rpc_set_current(muster_rpc_agent *agent);
MUSTER_EXPORT int muster_rpc_current(muster_rpc_agent **ret_agent);

/* --- workers ---------------------------------------------------------------------------------- */

struct muster_rpc_worker {
    char name[128];
    int32_t id;
};

/**
 * Makes a worker known, or changes its address: "HOST:PORT", "unix:/PATH", or both with a comma
 * between them, of which the second is tried first; NULL or "": the address is unknown, and the
 * worker can be called once it has called us. MUSTER_EEXIST (name and id do not match a known
 * worker), MUSTER_EINVAL, MUSTER_EURL, MUSTER_ENOMEM.
 */
MUSTER_EXPORT int muster_rpc_add_worker(muster_rpc_agent *agent, const char *name, int32_t id,
                                        const char *address);
/** Forgets a worker that has left. Calls that wait for it end with MUSTER_EWORKER. Returns
 * MUSTER_EWORKER if no worker has that name. */
MUSTER_EXPORT int muster_rpc_remove_worker(muster_rpc_agent *agent, const char *name);
/** Looks a worker up by name, or, with NULL as `name`, by id. MUSTER_EWORKER. */
MUSTER_EXPORT int muster_rpc_worker_info(muster_rpc_agent *agent, const char *name, int32_t id,
                                         struct muster_rpc_worker *ret_worker);
/** Fills in up to `cap` workers and returns how many there are. */
MUSTER_EXPORT size_t muster_rpc_workers(muster_rpc_agent *agent,
                                        struct muster_rpc_worker *ret_workers, size_t cap);

/**
 * Tells the others our name and address and learns theirs, through a store that all share: a
 * compare_set, a set and a multi_get. Waits until `world_size` workers with the ids 0 to world_size
 * - 1 are there. From then on, workers on one host use unix sockets, unless `tcp_only` is set.
 * `group` (1 to 128 bytes) keeps groups apart that use one store: use a new name each time.
 * `timeout_ms` covers the whole; MUSTER_TIMEOUT_DEFAULT is the store's timeout. MUSTER_EEXIST: two
 * workers have the same name, or the same id; the text says which, and every worker that has not
 * joined yet is told. MUSTER_EINVAL: an argument is invalid, or (every worker is told) a device map
 * names a worker that is not in the group, or a device that its worker does not have.
 * MUSTER_ETIMEDOUT names the missing ids; you may try again. Errors of the store.
 */
MUSTER_EXPORT int muster_rpc_join_group(muster_rpc_agent *agent, muster_store *store,
                                        const char *group, uint32_t world_size, int64_t timeout_ms);
/**
 * Waits until every worker of the group has called this and no call is under way among them,
 * including calls that handlers make. Then it is safe to shut down, the agent is in no group, and
 * nothing of the group is left in the store, which must be the one that the group was joined with.
 * `timeout_ms` covers the whole; MUSTER_TIMEOUT_DEFAULT is the store's timeout. The worker with the
 * id 0 returns last: it may be the one that serves the store, and may then stop serving it.
 * MUSTER_ETIMEDOUT says which workers are missing, or where calls are under way; the agent is still
 * in the group, and may try again. MUSTER_EINVAL (it is in no group), MUSTER_EBUSY (another thread
 * is leaving), errors of the store.
 */
MUSTER_EXPORT int muster_rpc_leave_group(muster_rpc_agent *agent, muster_store *store,
                                         int64_t timeout_ms);

/* --- a group that comes and goes --------------------------------------------------------------
 *
 * The workers of a rendezvous. At the beginning of each round, new workers are added and those that
 * are gone are removed (calls to them end with MUSTER_EWORKER, and their references are released);
 * calls among workers that stay go on. A worker's id is its rank in the round.
 */

/**
 * Makes the round's workers the agent's group: tells the others our name and address and learns
 * theirs through the round's store, with one operation more than above, and leaves nothing there.
 * The agent must listen; the id that it was started with does not matter. A second call for the
 * same round does nothing. MUSTER_EINVAL (the round has no store), MUSTER_EEXIST (two workers have
 * one name), MUSTER_ETIMEDOUT, errors of the store. After an error the group is unchanged.
 */
MUSTER_EXPORT int muster_rpc_follow_round(muster_rpc_agent *agent,
                                          const struct muster_rdzv_info *round, int64_t timeout_ms);

struct muster_rpc_following {
    size_t size; /* set by the defaults */
    /** A round has begun, and its workers are the agent's group; `round` is valid during the call.
     * May be NULL. */
    void (*round)(muster_rpc_agent *agent, const struct muster_rdzv_info *round, void *context);
    void *context;
    int64_t timeout_ms; /* to learn the group of one round; MUSTER_TIMEOUT_NEVER, the default: as
                           long as the round lasts */
};

/** Fills in the defaults, in a struct that has `size` bytes. */
MUSTER_EXPORT void muster_rpc_following_init(struct muster_rpc_following *ret, size_t size);
/** The struct with the defaults. */
static inline struct muster_rpc_following muster_rpc_following_defaults(void)
{
    struct muster_rpc_following it;

    muster_rpc_following_init(&it, sizeof(it));
    return it;
}

/**
 * Follows a rendezvous until it is closed (0) or fails: joins, takes the group of each round, lets
 * waiting nodes in, and goes on to the next round when one ends. Runs as long as that takes: give
 * it a thread. Ends with MUSTER_ECLOSED when muster_rdzv_close() is called for the rendezvous on
 * another thread; not inside `round`, since the close waits for this to return. MUSTER_EEXIST as
 * above; errors of muster_rdzv_next().
 */
MUSTER_EXPORT int muster_rpc_follow(muster_rpc_agent *agent, muster_rdzv *rdzv,
                                    const struct muster_rpc_following *following);

/* --- calling ---------------------------------------------------------------------------------- */

#define MUSTER_RPC_CPU (-1)

/* A piece of a message. The program decides what `device` means. */
struct muster_rpc_part {
    struct muster_bytes data;
    int32_t device; /* MUSTER_RPC_CPU, or a device of the worker that holds it */
};

#define MUSTER_RPC_RETRY  1u /* try again, by `retry` */
#define MUSTER_RPC_ONCE   2u /* it runs at most once, however often it is sent */
#define MUSTER_RPC_BORROW 4u /* the parts are not copied: leave them unchanged until the end */

/* Retries work as in PyTorch's agent: when an attempt is sent, the next one is planned
 * `duration_ms` * backoff^(retries before it) later; it is sent then if this attempt has failed, or
 * later, as soon as it fails. With the defaults the gaps are 1.0, 1.0, 1.5, 2.25 and 3.375 s. Each
 * attempt has the whole timeout. An error that another attempt cannot mend ends the call at once:
 * canceled, no such method or worker, invalid, too long. */
struct muster_rpc_retry {
    size_t size;         /* set by the defaults */
    int32_t retries_max; /* 5 */
    int64_t duration_ms; /* 1000 */
    double backoff;      /* 1.5 */
    double jitter;       /* 0 to 1: the part of a gap that may be cut at random. 0 */
};

/** Fills in the defaults, in a struct that has `size` bytes. */
MUSTER_EXPORT void muster_rpc_retry_init(struct muster_rpc_retry *ret, size_t size);
/** The struct with the defaults. */
static inline struct muster_rpc_retry muster_rpc_retry_defaults(void)
{
    struct muster_rpc_retry it;

    muster_rpc_retry_init(&it, sizeof(it));
    return it;
}

/** Called once, on the runtime's thread, when the call has ended; never after
 * muster_rpc_future_free(). */
typedef void muster_rpc_done(muster_rpc_future *future, void *context);

struct muster_rpc_request {
    size_t size;    /* set by the defaults */
    const char *to; /* a worker's name; NULL: by `to_id` */
    int32_t to_id;
    const char *method; /* "namespace::Service.method", up to 255 printable characters */
    const struct muster_rpc_part *parts;
    size_t part_count;
    int64_t timeout_ms; /* MUSTER_TIMEOUT_DEFAULT */
    uint32_t flags;
    const struct muster_rpc_retry *retry; /* with MUSTER_RPC_RETRY; NULL: its defaults */
    muster_rpc_done *done;                /* may be NULL */
    void *context;
    /* Instead of `done`, which must be NULL then: the future is put into this queue when the call
     * has ended. */
    muster_queue *queue;
};

/** Fills in the defaults, in a struct that has `size` bytes. */
MUSTER_EXPORT void muster_rpc_request_init(struct muster_rpc_request *ret, size_t size);
/** The struct with the defaults. */
static inline struct muster_rpc_request muster_rpc_request_defaults(void)
{
    struct muster_rpc_request it;

    muster_rpc_request_init(&it, sizeof(it));
    return it;
}

/**
 * Begins a call. The future must be freed. An error means that nothing was begun: MUSTER_EINVAL,
 * MUSTER_ENOMEM. A worker that is not known is an error of the call (MUSTER_EWORKER).
 */
MUSTER_EXPORT int muster_rpc_call(muster_rpc_agent *agent, const struct muster_rpc_request *request,
                                  muster_rpc_future **ret_future);

enum muster_rpc_kind {
    MUSTER_RPC_UNKNOWN = 0,
    MUSTER_RPC_TIMEOUT = 1,  /* as PyTorch numbers them */
    MUSTER_RPC_INJECTED = 2, /* a test made it fail */
    MUSTER_RPC_REMOTE = 3,   /* the handler's own error */
    MUSTER_RPC_LOST = 4,     /* the worker cannot be reached, or was lost with the call */
    MUSTER_RPC_CANCELED = 5,
    MUSTER_RPC_SHUT_DOWN = 6, /* one of the two agents was shut down */
    MUSTER_RPC_REFUSED = 7,   /* no such worker or method; too long; it must not run twice */
};

/** Waits for the call's end, and until its callbacks have returned. Returns 0 if it ended well, the
 * call's error, or MUSTER_ETIMEDOUT if it has not ended within `timeout_ms` (0 asks without
 * waiting, on any thread); muster_rpc_future_ended() tells that from a call that timed out. */
MUSTER_EXPORT int muster_rpc_future_wait(muster_rpc_future *future, int64_t timeout_ms);
/** Whether the call has ended, and no callback runs or is due; inside a callback it has ended. */
MUSTER_EXPORT bool muster_rpc_future_ended(muster_rpc_future *future);
/** Calls `done` when the call ends, or on the runtime's next turn if it has ended. Callbacks are
 * called in order. MUSTER_ENOMEM. */
MUSTER_EXPORT int muster_rpc_future_then(muster_rpc_future *future, muster_rpc_done *done,
                                         void *context);
/** Asks for the call's early end, and tells the handler. The call may still end otherwise. */
MUSTER_EXPORT void muster_rpc_future_cancel(muster_rpc_future *future);
/** Frees the future. A call under way goes on, unless it was canceled; parts that it borrowed are
 * read until it ends. No callback runs after this returns: one that runs is waited for, so do not
 * hold a lock that it takes; one that has not begun is not called any more. It may be called inside
 * the future's own callbacks, but not while another thread uses it or waits for it. NULL is
 * fine. */
MUSTER_EXPORT void muster_rpc_future_free(muster_rpc_future *future);

/* Results, once the call has ended; valid until muster_rpc_future_free(). */
MUSTER_EXPORT int muster_rpc_future_status(const muster_rpc_future *future);
MUSTER_EXPORT enum muster_rpc_kind muster_rpc_future_kind(const muster_rpc_future *future);
/** What happened, and with which worker. */
MUSTER_EXPORT const char *muster_rpc_future_errmsg(const muster_rpc_future *future);
/** The answer; an index past its end gives an empty part. */
MUSTER_EXPORT size_t muster_rpc_future_part_count(const muster_rpc_future *future);
MUSTER_EXPORT struct muster_rpc_part muster_rpc_future_part(const muster_rpc_future *future,
                                                            size_t index);

/**
 * PyTorch's names for the two ways to call: rpc_async() is muster_rpc_call(); rpc_sync() waits for
 * the answer and returns the call's error. It returns a future with 0 only.
 */
static inline int muster_rpc_async(muster_rpc_agent *agent,
                                   const struct muster_rpc_request *request,
                                   muster_rpc_future **ret_future)
{
    return muster_rpc_call(agent, request, ret_future);
}
MUSTER_EXPORT int muster_rpc_sync(muster_rpc_agent *agent, const struct muster_rpc_request *request,
                                  muster_rpc_future **ret_future);

/* --- objects of a whole group -----------------------------------------------------------------
 *
 * Every worker in `workers`, which includes this one, makes the same call with the same tag. All
 * others call one of them, which answers with the result, so a group of N makes N - 1 calls:
 * all_gather calls the first by name, broadcast the root. A tag may be used again when the call has
 * returned 0. A timeout names the workers that did not come, and those that came and gave up; if
 * the worker that is called stays silent, the timeout may be a quarter of a second late.
 * MUSTER_ETIMEDOUT, MUSTER_EINVAL, MUSTER_EBUSY (the tag is in use here), MUSTER_ENOMEM, and errors
 * of calls.
 */

/** Every worker gets the objects of all, in the order of `workers`. Free with
 * muster_values_free(). */
MUSTER_EXPORT int muster_rpc_all_gather(muster_rpc_agent *agent, const char *const *workers,
                                        size_t count, const char *tag, struct muster_bytes object,
                                        int64_t timeout_ms, struct muster_values *ret_values);
/** Every worker gets the root's object; the root returns when all have it. Free with
 * muster_value_free(). */
MUSTER_EXPORT int muster_rpc_broadcast(muster_rpc_agent *agent, const char *const *workers,
                                       size_t count, const char *root, const char *tag,
                                       struct muster_bytes object, int64_t timeout_ms,
                                       struct muster_value *ret_value);

/* --- serving ---------------------------------------------------------------------------------- */

#define MUSTER_RPC_BLOCKS 1u /* the handler runs on one of the agent's own threads */

/** Handles a call. It must be answered exactly once, now or later, with muster_rpc_reply() or
 * muster_rpc_fail(). */
typedef void muster_rpc_handler(muster_rpc_call_in *call, void *context);

/** MUSTER_EEXIST (the method has a handler), MUSTER_EINVAL (not namespace::Service.method; unknown
 * flags), MUSTER_ENOMEM. */
MUSTER_EXPORT int muster_rpc_register(muster_rpc_agent *agent, const char *method,
                                      muster_rpc_handler *handler, void *context, uint32_t flags);
/** Without a handler: calls of the method are put into a queue (MUSTER_QUEUED_CALL), with
 * `context`. The program answers them from any thread. A call that is canceled before it is taken
 * leaves the queue; one that was taken must be answered in any case, and muster_rpc_shutdown()
 * waits for that, as it does for a handler. Errors as muster_rpc_register(). */
MUSTER_EXPORT int muster_rpc_register_queue(muster_rpc_agent *agent, const char *method,
                                            muster_queue *queue, void *context);

/* The call, until it is answered. */
MUSTER_EXPORT const char *muster_rpc_in_method(const muster_rpc_call_in *call);
MUSTER_EXPORT const char *muster_rpc_in_caller(const muster_rpc_call_in *call);
MUSTER_EXPORT size_t muster_rpc_in_part_count(const muster_rpc_call_in *call);
MUSTER_EXPORT struct muster_rpc_part muster_rpc_in_part(const muster_rpc_call_in *call,
                                                        size_t index);
/** Milliseconds until its deadline; 0: the deadline has passed; -1: there is no deadline. */
MUSTER_EXPORT int64_t muster_rpc_in_time_left(const muster_rpc_call_in *call);
/** 0, or the reason why the caller no longer waits for the answer. */
MUSTER_EXPORT int muster_rpc_in_canceled(const muster_rpc_call_in *call);
/** Waits until the call is canceled (0) or `timeout_ms` have passed (MUSTER_ETIMEDOUT). For
 * handlers with MUSTER_RPC_BLOCKS: on the runtime's thread it is MUSTER_EINVAL. */
MUSTER_EXPORT int muster_rpc_in_wait_canceled(muster_rpc_call_in *call, int64_t timeout_ms);
/** Calls `canceled` on the runtime's thread if the call is canceled; if it has been canceled
 * already, before this returns. */
MUSTER_EXPORT void
muster_rpc_in_on_cancel(muster_rpc_call_in *call,
                        void (*canceled)(muster_rpc_call_in *call, void *context), void *context);
/** Answers; the parts are copied. `call` is freed. */
MUSTER_EXPORT void muster_rpc_reply(muster_rpc_call_in *call, const struct muster_rpc_part *parts,
                                    size_t count);
/** Answers with an error: a negative code (MUSTER_EREMOTE if nothing fits better, and for any other
 * number) and a text, which may be NULL; 1024 bytes of it are sent. `call` is freed. */
MUSTER_EXPORT void muster_rpc_fail(muster_rpc_call_in *call, int code, const char *text);

/* --- streams ----------------------------------------------------------------------------------
 *
 * A call whose two ends send each other messages, in order, for as long as it lasts. An end that
 * sends more than the other one takes must wait: at most a few MiB are under way.
 *
 *     muster_rpc_stream_open(agent, &request, &stream);       the request's parts come first
 *     muster_rpc_stream_send(stream, parts, count, 1000);
 *     muster_rpc_stream_end(stream);                          nothing more from here
 *     while ((n = muster_rpc_stream_recv(stream, &parts, &count, 1000)) == 1)
 *         ...
 *     if (n < 0) complain(muster_errmsg());
 *     muster_rpc_stream_close(stream);
 */

/** Errors as muster_rpc_call(), and MUSTER_EINVAL for a device that is not mapped: the whole stream
 * uses the map of this moment, and the timeout covers the whole stream. A stream has no retries and
 * no ONCE. `done` is not used. */
MUSTER_EXPORT int muster_rpc_stream_open(muster_rpc_agent *agent,
                                         const struct muster_rpc_request *request,
                                         muster_rpc_stream **ret_stream);
/** Sends a copy, in order; waits while too much is under way, for up to `timeout_ms` (0, and any
 * value on the runtime's thread: does not wait).
 * MUSTER_ETIMEDOUT, MUSTER_ECLOSED (the stream is over, or was ended here), the stream's error,
 * MUSTER_EINVAL (a device that is not mapped), MUSTER_ELIMIT, MUSTER_ENOMEM. */
MUSTER_EXPORT int muster_rpc_stream_send(muster_rpc_stream *stream,
                                         const struct muster_rpc_part *parts, size_t count,
                                         int64_t timeout_ms);
/** Says that the caller has nothing more to send. */
MUSTER_EXPORT int muster_rpc_stream_end(muster_rpc_stream *stream);
/**
 * Takes the next message: returns 1, and its parts, which are valid until the next call or the end
 * of the stream. 0: there are no more messages, and the other end has ended in order. Negative: the
 * stream's error, or MUSTER_ETIMEDOUT (`timeout_ms` as above).
 */
MUSTER_EXPORT int muster_rpc_stream_recv(muster_rpc_stream *stream,
                                         const struct muster_rpc_part **ret_parts,
                                         size_t *ret_count, int64_t timeout_ms);
/** For the caller: cancels the stream if it is under way, and frees it. NULL is fine. */
MUSTER_EXPORT void muster_rpc_stream_close(muster_rpc_stream *stream);

/** Runs on one of the agent's threads. The first message is the request. When the handler returns,
 * the stream is over: in order (0), or with an error. */
typedef int muster_rpc_stream_handler(muster_rpc_stream *stream, void *context);
/** As muster_rpc_register(), for a stream. */
MUSTER_EXPORT int muster_rpc_register_stream(muster_rpc_agent *agent, const char *method,
                                             muster_rpc_stream_handler *handler, void *context);

/* --- devices ---------------------------------------------------------------------------------- */

struct muster_rpc_device_pair {
    int32_t local;
    int32_t remote;
};

/**
 * Sets which devices this worker has; without any (`count` 0, the default), maps may name any
 * device. MUSTER_EINVAL (a negative one), MUSTER_EEXIST (one twice), MUSTER_ENOMEM.
 */
MUSTER_EXPORT int muster_rpc_set_devices(muster_rpc_agent *agent, const int32_t *devices,
                                         size_t count);
/** Fills in up to `cap` devices, ascending, and returns how many there are: those that were set, or
 * else those that maps name, both ours and, once we joined a group, the others'. */
MUSTER_EXPORT size_t muster_rpc_devices(muster_rpc_agent *agent, int32_t *ret_devices, size_t cap);

/**
 * Maps our devices to those of a worker. A part on a device goes to the device that it is mapped
 * to, and what comes back is mapped the other way; a device that is not mapped is an error of the
 * call (MUSTER_EINVAL). Parts in memory stay in memory, and need no map: a negative device is
 * MUSTER_EINVAL, as is an invalid worker's name. The map must be one to one (MUSTER_EEXIST). It
 * replaces the previous map. MUSTER_ENOMEM. muster_rpc_join_group() checks the maps that were set
 * before it.
 */
MUSTER_EXPORT int muster_rpc_set_device_map(muster_rpc_agent *agent, const char *worker,
                                            const struct muster_rpc_device_pair *pairs,
                                            size_t count);

/** Fills in up to `cap` pairs of the map to a worker; returns how many there are. 0: only
 * memory. */
MUSTER_EXPORT size_t muster_rpc_device_map(muster_rpc_agent *agent, const char *worker,
                                           struct muster_rpc_device_pair *ret_pairs, size_t cap);

/* --- metrics and profiles --------------------------------------------------------------------- */

struct muster_rpc_metric {
    char name[48];
    char value[32];
};

/**
 * Fills in up to `cap` pairs and returns how many there are: agent.client_active_calls,
 * agent.server_active_calls, agent.num_idle_threads, agent.thread_pool_size (as PyTorch's), and
 * more: calls, retries, bytes, connections, references, queue times, the histogram of latencies.
 * docs/rpc.md lists them; room for 128 is enough.
 */
MUSTER_EXPORT size_t muster_rpc_metrics(muster_rpc_agent *agent,
                                        struct muster_rpc_metric *ret_metrics, size_t cap);

/* How the handlers of one method performed since profiling began. Streams are not counted. */
struct muster_rpc_profile {
    char method[256];
    uint64_t calls; /* calls that were answered */
    uint64_t errors;
    uint64_t queue_us; /* from the arrival of the whole call to its handler's start, summed */
    uint64_t queue_us_max;
    uint64_t handler_us; /* from then until the answer, summed */
    uint64_t handler_us_max;
};

/** Off by default, since it reads the clock three times for each call. Switching it on sets all
 * figures to zero. */
MUSTER_EXPORT void muster_rpc_set_profiling(muster_rpc_agent *agent, bool on);
MUSTER_EXPORT bool muster_rpc_profiling(const muster_rpc_agent *agent);
/** Fills in up to `cap` profiles, one for each method with a handler; returns how many there
 * are. */
MUSTER_EXPORT size_t muster_rpc_profiles(muster_rpc_agent *agent,
                                         struct muster_rpc_profile *ret_profiles, size_t cap);

#ifdef __cplusplus
}
#endif

#endif
