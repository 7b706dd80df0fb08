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
 *     struct muster_rpc_request call = {
 *         .to = "worker1", .method = "app::Math.add", .parts = parts, .part_count = 2,
 *         .timeout_ms = MUSTER_TIMEOUT_DEFAULT,
 *     };
 *     if (muster_rpc_call(agent, &call, &future) == 0) {          begins it
 *         if (muster_rpc_future_wait(future, MUSTER_RPC_FOREVER) == 0)
 *             use(muster_rpc_future_part(future, 0).data);
 *         else
 *             complain(muster_rpc_future_errmsg(future));
 *         muster_rpc_future_free(future);
 *     }
 *
 *     muster_rpc_leave_group(agent, store, 60000);                nobody has a call under way
 *     muster_rpc_shutdown(agent);
 *
 * Calls. Every call ends exactly once: with the handler's answer, with the handler's error, or with
 * an error that was made on the way (its deadline has passed, it was canceled, the worker cannot be
 * reached, the agent was shut down). The deadline travels with the call; the handler can see it.
 * One connection serves both directions between two workers; it is made by the first call, and if
 * it is lost it is made again and everything goes on, nothing twice.
 *
 * A worker that was shut down has said so: calls to it end with MUSTER_ECLOSED at once, until one
 * of the same name is there again.
 *
 * MUSTER_ESESSION means that a worker was lost with the call: it may or may not have run. Retries
 * (MUSTER_RPC_RETRY) run a call again then, so what is called must bear that; with MUSTER_RPC_ONCE
 * the worker remembers what it answered, and the call runs at most once however often it is sent.
 *
 * Handlers run on the runtime's thread and must not block there; with MUSTER_RPC_BLOCKS they run on
 * one of the agent's own threads, where they may. Either may answer later, from any thread.
 *
 * All functions may be called from any thread. Those that wait return MUSTER_EINVAL on the
 * runtime's own.
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

#define MUSTER_RPC_FOREVER (-1)

/* --- the agent -------------------------------------------------------------------------------- */

/* Text is copied. Who may call and be called is a matter of the runtime's lock (muster/runtime.h).
 */
struct muster_rpc_config {
    const char *name; /* 1 to 127 of A-Z a-z 0-9 - _ : */
    int32_t id;       /* 0 to 32767, unique in the group; -1: none, it calls and is not called */
    /* "HOST:PORT", port 0: any; "unix:/PATH"; NULL: does not listen. Default: every address of the
     * host if the runtime's lock has a credential or is `insecure`; else loopback. */
    const char *listen;
    const char *advertise; /* the host that others dial. NULL: that of `listen`, or our name */
    uint32_t timeout_ms;   /* of calls that name none. 60,000; 0: never */
    uint32_t threads;      /* for handlers that block; started when first needed. 16 */
    uint32_t connect_timeout_ms;   /* of a connection that never was. 10,000 */
    uint32_t reconnect_timeout_ms; /* of one that was lost. 5,000 */
    size_t message_bytes_max;      /* of one message that comes in. 1 GiB */
    uint32_t retry_budget_percent; /* retries to one worker, of the calls to it. 0: no bound */
    bool tcp_only; /* workers of one host and group talk by TCP too, not by unix socket */
};

MUSTER_EXPORT struct muster_rpc_config muster_rpc_config_defaults(void);

/** MUSTER_EINVAL (a bad name or id), MUSTER_EADDR, MUSTER_EURL, MUSTER_ELOCKED (other hosts reach
 * the address, and the runtime's lock has no credential), MUSTER_ENOMEM. */
MUSTER_EXPORT int muster_rpc_start(muster_runtime *runtime, const struct muster_rpc_config *config,
                                   muster_rpc_agent **ret_agent);
/**
 * Ends the agent at once: calls under way end with MUSTER_ECLOSED, retries that wait as well;
 * handlers that run are told (muster_rpc_in_canceled()) and waited for; then it is freed. Futures
 * stay valid. If it is the current agent of the process, there is none from now on. Not on the
 * runtime's thread, where it would wait for itself: nothing happens there. NULL is fine.
 */
MUSTER_EXPORT void muster_rpc_shutdown(muster_rpc_agent *agent);

/** As in its config; lent until it is shut down. */
MUSTER_EXPORT const char *muster_rpc_name(const muster_rpc_agent *agent);
MUSTER_EXPORT int32_t muster_rpc_id(const muster_rpc_agent *agent);
/** Where others dial it: "HOST:PORT", or "unix:/PATH"; "" if it does not listen. */
MUSTER_EXPORT const char *muster_rpc_address(const muster_rpc_agent *agent);
/** The timeout of calls that name none; counts for those begun later. */
MUSTER_EXPORT void muster_rpc_set_timeout(muster_rpc_agent *agent, uint32_t timeout_ms);
MUSTER_EXPORT uint32_t muster_rpc_timeout(const muster_rpc_agent *agent);

/**
 * The agent of the process, for code that is not handed one. Setting takes an agent while none is
 * set (else MUSTER_EEXIST), or NULL while one is (else MUSTER_ENOENT); asking while none is set is
 * MUSTER_ENOENT, too.
 */
MUSTER_EXPORT int muster_rpc_set_current(muster_rpc_agent *agent);
MUSTER_EXPORT int muster_rpc_current(muster_rpc_agent **ret_agent);

/* --- workers ---------------------------------------------------------------------------------- */

struct muster_rpc_worker {
    char name[128];
    int32_t id;
};

/**
 * Makes a worker known; again, to change its address: "HOST:PORT", "unix:/PATH", or both with a
 * comma between them, of which the second is tried first; NULL or "": not known, and it can be
 * called when it has called us. MUSTER_EEXIST (name and id do not fit
 * what is known), MUSTER_EINVAL, MUSTER_EURL, MUSTER_ENOMEM.
 */
MUSTER_EXPORT int muster_rpc_add_worker(muster_rpc_agent *agent, const char *name, int32_t id,
                                        const char *address);
/** It has left. Calls to it that wait end with MUSTER_EWORKER. MUSTER_EWORKER. */
MUSTER_EXPORT int muster_rpc_remove_worker(muster_rpc_agent *agent, const char *name);
/** `name` NULL: by id. MUSTER_EWORKER. */
MUSTER_EXPORT int muster_rpc_worker_info(muster_rpc_agent *agent, const char *name, int32_t id,
                                         struct muster_rpc_worker *ret_worker);
/** Fills up to `cap` of them, returns how many there are. */
MUSTER_EXPORT size_t muster_rpc_workers(muster_rpc_agent *agent,
                                        struct muster_rpc_worker *ret_workers, size_t cap);

/**
 * Tells the others who we are and learns who they are, through a store that all share: a
 * compare_set, a set and a multi_get. Waits until `world_size` workers with the ids 0 to
 * world_size - 1 are there. Those of one host talk by unix socket from then on, unless `tcp_only`
 * says no.
 * `group` (1 to 128 bytes) keeps groups apart that use one store: use a new one each time.
 * `timeout_ms` is that of the whole, MUSTER_TIMEOUT_DEFAULT the store's. MUSTER_EEXIST: two workers
 * have the same name, or the same id; the text says which, and everybody is told who has not joined
 * yet. MUSTER_EINVAL: what was passed cannot be, or (everybody is told) a device map names a worker
 * that is not in the group, or a device that its worker does not have. MUSTER_ETIMEDOUT names the
 * ids that are missing, and another try may follow. Errors of the store.
 */
MUSTER_EXPORT int muster_rpc_join_group(muster_rpc_agent *agent, muster_store *store,
                                        const char *group, uint32_t world_size, int64_t timeout_ms);
/**
 * Waits until every worker of the group has come here and no call is under way among them, those
 * included that handlers make. Then it is safe to shut down, the agent is in no group, and nothing
 * of the group is left in the store, which must be the one that it was joined with. `timeout_ms` is
 * that of the whole, MUSTER_TIMEOUT_DEFAULT the store's. The worker with the id 0 returns last: it
 * may be the one that has the store, and end that then. MUSTER_ETIMEDOUT says who has not come, or
 * where calls are under way; the agent is in the group as before, and may try again. MUSTER_EINVAL
 * (it is in no group), MUSTER_EBUSY (another thread does), errors of the store.
 */
MUSTER_EXPORT int muster_rpc_leave_group(muster_rpc_agent *agent, muster_store *store,
                                         int64_t timeout_ms);

/* --- a group that comes and goes --------------------------------------------------------------
 *
 * The workers of a rendezvous: whenever it begins a round, those that are new are added, those that
 * are gone are removed (calls to them end with MUSTER_EWORKER, their references are released), and
 * calls among those that stay go on. A worker's id is its rank in the round.
 */

/**
 * Makes the group of a round the agent's: tells the others our name and address and learns theirs
 * through the round's store, with an operation more than above, and leaves nothing there. The
 * agent must listen; the id that it was started with does not matter. Again for the same round it
 * does nothing. MUSTER_EINVAL (the round has no store), MUSTER_EEXIST (two workers have one name),
 * MUSTER_ETIMEDOUT, errors of the store. With an error the group is as it was.
 */
MUSTER_EXPORT int muster_rpc_follow_round(muster_rpc_agent *agent,
                                          const struct muster_rdzv_info *round, int64_t timeout_ms);

struct muster_rpc_following {
    /** A round has begun and the agent has its group; lent for the call. May be NULL. */
    void (*round)(muster_rpc_agent *agent, const struct muster_rdzv_info *round, void *context);
    void *context;
    int64_t timeout_ms; /* of learning the group of one round; 0: as long as the round lasts */
};

/**
 * Follows a rendezvous until it is closed (0) or fails: joins, takes the group of each round, lets
 * those in that wait, goes on to the next when it ends. Runs as long as that takes: give it a
 * thread. Ends with MUSTER_ECLOSED when the rendezvous is closed here with muster_rdzv_close(), on
 * another thread and not inside `round`: that waits for this to return. MUSTER_EEXIST as above;
 * errors of muster_rdzv_next().
 */
MUSTER_EXPORT int muster_rpc_follow(muster_rpc_agent *agent, muster_rdzv *rdzv,
                                    const struct muster_rpc_following *following);

/* --- calling ---------------------------------------------------------------------------------- */

#define MUSTER_RPC_CPU (-1)

/* A piece of a message. What `device` means is the users' matter. */
struct muster_rpc_part {
    struct muster_bytes data;
    int32_t device; /* MUSTER_RPC_CPU, or a device of the one that has it */
};

#define MUSTER_RPC_RETRY  1u /* try again, by `retry` */
#define MUSTER_RPC_ONCE   2u /* it runs at most once, however often it is sent */
#define MUSTER_RPC_BORROW 4u /* the parts are not copied: they stay as they are until the end */

/* As PyTorch's agent does it: when an attempt is sent, the next one is planned `duration_ms` *
 * backoff^(retries before it) later; it follows if this one has failed by then, or as soon as it
 * fails. With the defaults the gaps are 1.0, 1.0, 1.5, 2.25 and 3.375 s. Each attempt has the whole
 * timeout. An error that another try cannot mend ends the call at once: canceled, no such method or
 * worker, invalid, too long. */
struct muster_rpc_retry {
    int32_t retries_max; /* 5 */
    int64_t duration_ms; /* 1000 */
    double backoff;      /* 1.5 */
    double jitter;       /* 0 to 1: by how much of itself a gap may be shorter. 0 */
};

MUSTER_EXPORT struct muster_rpc_retry muster_rpc_retry_defaults(void);

/** Called once, on the runtime's thread, when the call has ended. */
typedef void muster_rpc_done(muster_rpc_future *future, void *context);

struct muster_rpc_request {
    const char *to; /* a worker's name; NULL: by `to_id` */
    int32_t to_id;
    const char *method; /* "namespace::Service.method", up to 255 printable characters */
    const struct muster_rpc_part *parts;
    size_t part_count;
    int64_t timeout_ms; /* MUSTER_TIMEOUT_DEFAULT, MUSTER_TIMEOUT_NEVER, or milliseconds */
    uint32_t flags;
    struct muster_rpc_retry retry; /* with MUSTER_RPC_RETRY */
    muster_rpc_done *done;         /* may be NULL */
    void *context;
};

/**
 * Begins a call. The future must be freed. An error means that nothing was begun: MUSTER_EINVAL,
 * MUSTER_ENOMEM. A worker that is not known is an error of the call (MUSTER_EWORKER).
 */
MUSTER_EXPORT int muster_rpc_call(muster_rpc_agent *agent, const struct muster_rpc_request *request,
                                  muster_rpc_future **ret_future);

enum muster_rpc_kind {
    MUSTER_RPC_UNKNOWN = 0,
    MUSTER_RPC_TIMEOUT = 1,  /* as PyTorch numbers them */
    MUSTER_RPC_INJECTED = 2, /* failed on purpose, by a test */
    MUSTER_RPC_REMOTE = 3,   /* the handler's own error */
    MUSTER_RPC_LOST = 4,     /* the worker cannot be reached, or was lost with the call */
    MUSTER_RPC_CANCELED = 5,
    MUSTER_RPC_SHUT_DOWN = 6, /* one of the two agents was shut down */
    MUSTER_RPC_REFUSED = 7,   /* no such worker or method; too long; not to run twice */
};

/** Waits for its end. 0: it has ended well; its error; MUSTER_ETIMEDOUT if it has not ended within
 * `timeout_ms` (MUSTER_RPC_FOREVER: no bound; 0: asks without waiting, on any thread), which
 * muster_rpc_future_ended() can tell apart. */
MUSTER_EXPORT int muster_rpc_future_wait(muster_rpc_future *future, int64_t timeout_ms);
/** Whether it has ended. */
MUSTER_EXPORT bool muster_rpc_future_ended(muster_rpc_future *future);
/** Has `done` called when it has ended, or on the next turn if it has. In order. MUSTER_ENOMEM. */
MUSTER_EXPORT int muster_rpc_future_then(muster_rpc_future *future, muster_rpc_done *done,
                                         void *context);
/** Asks for its early end; the handler is told. It may still end otherwise. */
MUSTER_EXPORT void muster_rpc_future_cancel(muster_rpc_future *future);
/** Lets go of it. A call that is under way goes on, and its callbacks are called. NULL is fine. */
MUSTER_EXPORT void muster_rpc_future_free(muster_rpc_future *future);

/* Once it has ended; lent until muster_rpc_future_free(). */
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
 * the answer and returns the call's error. The future is there with 0 only.
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
 * Everybody of `workers`, which names this worker too, makes the same call with the same tag. One
 * of them is called by all others and answers with the result, so a group of N makes N - 1 calls:
 * the first by name for all_gather, the root for broadcast. A tag may be used again when the call
 * has returned well. A timeout names who did not come, and who came and gave up; if nothing is
 * heard of the one that is called, it may be a quarter of a second late. MUSTER_ETIMEDOUT,
 * MUSTER_EINVAL, MUSTER_EBUSY (the tag is in use here), MUSTER_ENOMEM, and errors of calls.
 */

/** Everybody gets the objects of all, in the order of `workers`. Free with muster_values_free(). */
MUSTER_EXPORT int muster_rpc_all_gather(muster_rpc_agent *agent, const char *const *workers,
                                        size_t count, const char *tag, struct muster_bytes object,
                                        int64_t timeout_ms, struct muster_values *ret_values);
/** Everybody gets the root's object; the root returns when all have. Free with
 * muster_value_free(). */
MUSTER_EXPORT int muster_rpc_broadcast(muster_rpc_agent *agent, const char *const *workers,
                                       size_t count, const char *root, const char *tag,
                                       struct muster_bytes object, int64_t timeout_ms,
                                       struct muster_value *ret_value);

/* --- serving ---------------------------------------------------------------------------------- */

#define MUSTER_RPC_BLOCKS 1u /* runs on a thread of the agent's own */

/** A call has come. It must be answered exactly once, now or later, with one of the two below. */
typedef void muster_rpc_handler(muster_rpc_call_in *call, void *context);

/** MUSTER_EEXIST (it has a handler), MUSTER_EINVAL (not namespace::Service.method; unknown flags),
 * MUSTER_ENOMEM. */
MUSTER_EXPORT int muster_rpc_register(muster_rpc_agent *agent, const char *method,
                                      muster_rpc_handler *handler, void *context, uint32_t flags);

/* The call, until it is answered. */
MUSTER_EXPORT const char *muster_rpc_in_method(const muster_rpc_call_in *call);
MUSTER_EXPORT const char *muster_rpc_in_caller(const muster_rpc_call_in *call);
MUSTER_EXPORT size_t muster_rpc_in_part_count(const muster_rpc_call_in *call);
MUSTER_EXPORT struct muster_rpc_part muster_rpc_in_part(const muster_rpc_call_in *call,
                                                        size_t index);
/** Milliseconds until its deadline; 0: it has passed; -1: it has none. */
MUSTER_EXPORT int64_t muster_rpc_in_time_left(const muster_rpc_call_in *call);
/** 0, or why nobody waits for the answer any more. */
MUSTER_EXPORT int muster_rpc_in_canceled(const muster_rpc_call_in *call);
/** Waits until it is canceled (0) or that long (MUSTER_ETIMEDOUT). For MUSTER_RPC_BLOCKS:
 * MUSTER_EINVAL on the runtime's thread. */
MUSTER_EXPORT int muster_rpc_in_wait_canceled(muster_rpc_call_in *call, uint32_t timeout_ms);
/** Has `canceled` called on the runtime's thread if the call is canceled; if it was, it is called
 * before this returns. */
MUSTER_EXPORT void
muster_rpc_in_on_cancel(muster_rpc_call_in *call,
                        void (*canceled)(muster_rpc_call_in *call, void *context), void *context);
/** Answers; the parts are copied. `call` is gone. */
MUSTER_EXPORT void muster_rpc_reply(muster_rpc_call_in *call, const struct muster_rpc_part *parts,
                                    size_t count);
/** Answers with an error: a negative code (MUSTER_EREMOTE if nothing fits better, and for any other
 * number) and a text, which may be NULL, and of which 1024 bytes are sent. `call` is gone. */
MUSTER_EXPORT void muster_rpc_fail(muster_rpc_call_in *call, int code, const char *text);

/* --- streams ----------------------------------------------------------------------------------
 *
 * A call whose two ends send each other messages, in order, for as long as it lasts. Who sends more
 * than the other takes has to wait: at most some MiB are under way.
 *
 *     muster_rpc_stream_open(agent, &request, &stream);       the request's parts come first
 *     muster_rpc_stream_send(stream, parts, count, 1000);
 *     muster_rpc_stream_end(stream);                          nothing more from here
 *     while ((n = muster_rpc_stream_recv(stream, &parts, &count, 1000)) == 1)
 *         ...
 *     if (n < 0) complain(muster_errmsg());
 *     muster_rpc_stream_close(stream);
 */

/** Errors as muster_rpc_call(), and MUSTER_EINVAL for a device that is not mapped: the map of this
 * moment is that of the whole stream, and so is the timeout. A stream is not tried again, and has
 * no ONCE. `done` is not used. */
MUSTER_EXPORT int muster_rpc_stream_open(muster_rpc_agent *agent,
                                         const struct muster_rpc_request *request,
                                         muster_rpc_stream **ret_stream);
/** Sends a copy, in its turn; waits while too much is under way, for up to `timeout_ms`
 * (MUSTER_RPC_FOREVER: no bound; 0, and on the runtime's thread any: not at all). MUSTER_ETIMEDOUT,
 * MUSTER_ECLOSED (it is over, or was ended here), what it failed with, MUSTER_EINVAL (a device that
 * is not mapped), MUSTER_ELIMIT, MUSTER_ENOMEM. */
MUSTER_EXPORT int muster_rpc_stream_send(muster_rpc_stream *stream,
                                         const struct muster_rpc_part *parts, size_t count,
                                         int64_t timeout_ms);
/** The caller has nothing more to send. */
MUSTER_EXPORT int muster_rpc_stream_end(muster_rpc_stream *stream);
/**
 * Takes the next message: 1, and its parts, lent until the next call or the end of the stream. 0:
 * there are no more, the other end has ended in order. Negative: what the stream failed with, or
 * MUSTER_ETIMEDOUT (`timeout_ms` as above).
 */
MUSTER_EXPORT int muster_rpc_stream_recv(muster_rpc_stream *stream,
                                         const struct muster_rpc_part **ret_parts,
                                         size_t *ret_count, int64_t timeout_ms);
/** The caller's: cancels it if it is under way, and frees it. NULL is fine. */
MUSTER_EXPORT void muster_rpc_stream_close(muster_rpc_stream *stream);

/** Runs on a thread of the agent's. The first message is the request's. When it returns, the stream
 * is over: in order (0), or with an error. */
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
 * Which devices this worker has; with none (`count` 0, as it begins) maps may name any.
 * MUSTER_EINVAL (a negative one), MUSTER_EEXIST (one twice), MUSTER_ENOMEM.
 */
MUSTER_EXPORT int muster_rpc_set_devices(muster_rpc_agent *agent, const int32_t *devices,
                                         size_t count);
/** Fills up to `cap` of them, ascending, returns how many there are: those that were set, or else
 * those that maps name, ours and, since we joined a group, the others'. */
MUSTER_EXPORT size_t muster_rpc_devices(muster_rpc_agent *agent, int32_t *ret_devices, size_t cap);

/**
 * Which of our devices is which one of a worker's. A part on a device goes to the one that it is
 * mapped to, and what comes back is mapped the other way; one that is not mapped is an error of the
 * call (MUSTER_EINVAL). What is in memory stays in memory, and needs no map: a negative device is
 * MUSTER_EINVAL, as is what cannot be a worker's name. One to one (MUSTER_EEXIST). Replaces the map
 * there was. MUSTER_ENOMEM. Those that are set before muster_rpc_join_group() are checked there.
 */
MUSTER_EXPORT int muster_rpc_set_device_map(muster_rpc_agent *agent, const char *worker,
                                            const struct muster_rpc_device_pair *pairs,
                                            size_t count);

/** Fills up to `cap` pairs of the map to a worker, returns how many there are. 0: only memory. */
MUSTER_EXPORT size_t muster_rpc_device_map(muster_rpc_agent *agent, const char *worker,
                                           struct muster_rpc_device_pair *ret_pairs, size_t cap);

/* --- for show --------------------------------------------------------------------------------- */

struct muster_rpc_metric {
    char name[48];
    char value[32];
};

/**
 * Fills up to `cap` pairs, returns how many there are: agent.client_active_calls,
 * agent.server_active_calls, agent.num_idle_threads, agent.thread_pool_size (as PyTorch's), and
 * more: calls, retries, bytes, connections, references, queue times, the histogram of latencies.
 * docs/rpc.md lists them; 128 have room.
 */
MUSTER_EXPORT size_t muster_rpc_metrics(muster_rpc_agent *agent,
                                        struct muster_rpc_metric *ret_metrics, size_t cap);

/* How the handlers of one method fare, since profiling was switched on. Streams are not counted. */
struct muster_rpc_profile {
    char method[256];
    uint64_t calls; /* that were answered */
    uint64_t errors;
    uint64_t queue_us; /* from when the call was whole until its handler began, of all together */
    uint64_t queue_us_max;
    uint64_t handler_us; /* from then until it was answered */
    uint64_t handler_us_max;
};

/** Off by default, since it reads the clock three times for each call. On: all begins with zero. */
MUSTER_EXPORT void muster_rpc_set_profiling(muster_rpc_agent *agent, bool on);
MUSTER_EXPORT bool muster_rpc_profiling(const muster_rpc_agent *agent);
/** Fills up to `cap`, one for each method that has a handler, returns how many there are. */
MUSTER_EXPORT size_t muster_rpc_profiles(muster_rpc_agent *agent,
                                         struct muster_rpc_profile *ret_profiles, size_t cap);

#ifdef __cplusplus
}
#endif

#endif
