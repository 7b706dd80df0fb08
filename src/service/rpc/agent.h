/*
 * The RPC agent, on the loop's thread: named workers that call each other. One session of the
 * native wire for each pair of workers, made when the first call wants it, used both ways. A
 * service: it runs on libuv and in the simulator; api/rpc.c has what other threads see.
 *
 *     mu_rpc_agent_start(env, &config, &agent, &msg);
 *     mu_rpc_agent_serve(agent, &handler);
 *     mu_rpc_agent_add(agent, "worker1", 1, &addr, &msg);
 *     mu_rpc_agent_call(agent, &out);          ended() follows, exactly once
 *     mu_rpc_agent_stop(agent);                every call ends; stopped() follows
 *
 * Calls. A struct mu_rpc_out is a call, embedded in the memory of its owner, whose payload it
 * borrows until `ended`. It waits for a session and for credit as long as its timeout allows. A
 * call ends with the answer of the handler, or with an error made here: MUSTER_ETIMEDOUT,
 * _ECANCELED, _ECONN (no connection), _ESESSION (the other worker has forgotten us or was
 * restarted: the call may or may not have run), _ECLOSED (shut down), _EONCE, _ENOMEM. The text
 * names the other worker.
 *
 * When two workers call each other for the first time at once, both dial. The dial of the worker
 * with the lesser name is kept; the other is refused and its calls use the one that is kept.
 *
 * Retries are those of proto/rpc/retry.h; each attempt has the whole timeout, as with PyTorch. A
 * call with `once` carries a key, and the callee answers a repetition with what it remembers
 * (proto/rpc/once.h). It is repeated only to the process that it was sent to at first.
 *
 * Handlers. A struct mu_rpc_in is a call that came in, from `start` until mu_rpc_in_reply(), which
 * must be called exactly once for each, canceled or not, at once or later.
 *
 * No callback runs inside a function of this header, except inside mu_rpc_agent_turn(). The caller
 * calls that after other functions, unless it is inside a callback of the agent.
 */
#ifndef MU_RPC_AGENT_H
#define MU_RPC_AGENT_H

#include "codec/rpc/msg.h"
#include "core/env.h"
#include "core/err.h"
#include "proto/rpc/rpc.h"
#include "proto/rpc/once.h"
#include "proto/rpc/retry.h"

struct mu_rpc_agent;
struct mu_rpc_peer;
struct mu_rpc_line;
struct mu_rpc_in;

/* A message that comes in pieces. */
struct mu_rpc_coming {
    struct mu_buf buf;
    size_t total; /* as its head says; 0: not known */
};

struct mu_rpc_agent_config {
    char name[MU_RPC_WORKER_MAX + 1];
    int32_t id; /* 0 to 32767; -1: no id, for a guest that only calls */
    bool listens;
    struct mu_addr listen;    /* the port is filled in */
    bool near;                /* listens at a unix socket too, for workers of this host */
    uint32_t connect_ms;      /* how long a first connection to a worker may take. 10 s */
    uint32_t reconnect_ms;    /* how long a connection may stay lost. 5 s */
    uint32_t eof_grace_ms;    /* of a session whose other end closed without a goodbye. 25 */
    size_t message_bytes_max; /* of one incoming message. 1 GiB */
    size_t coming_bytes_max;  /* of all incoming calls that are incomplete. 4 GiB */
    size_t sessions_max;      /* 65,536 */
    uint32_t budget_percent;  /* retries to one worker, in percent of the calls. 0: no bound */
    uint32_t budget_burst;    /* retries that are always allowed at first. 10 */
    struct mu_rpc_config rpc; /* terms of the sessions */
    struct mu_rpc_once_config once;
    /**
     * Take memory for long messages from the owner's stock: for `len` bytes if that is at hand,
     * else at least `least`; empty: there is none. And give memory back that is not needed any
     * more, which the owner may keep. Both may be NULL.
     */
    struct mu_buf (*take_buf)(void *context, size_t len, size_t least);
    void (*give_buf)(void *context, struct mu_buf *buf);
    /** The last callback. */
    void (*stopped)(void *context);
    void *context; /* of all callbacks of this struct */
};

struct mu_rpc_agent_config mu_rpc_agent_config_defaults(void);

/* --- life ------------------------------------------------------------------------------------- */

/** MUSTER_EINVAL (the name, the id), MUSTER_EADDR, MUSTER_ELOCKED, MUSTER_ENOMEM. */
int mu_rpc_agent_start(struct mu_env *env, const struct mu_rpc_agent_config *config,
                       struct mu_rpc_agent **ret_agent, struct mu_errmsg *reterr_msg);
const struct mu_addr *mu_rpc_agent_addr(const struct mu_rpc_agent *a);
/** The address for workers of this host; kind 0: there is no other one. */
const struct mu_addr *mu_rpc_agent_near_addr(const struct mu_rpc_agent *a);
/** The tail of a turn: sends output, begins calls that can begin, reports calls that have ended. */
void mu_rpc_agent_turn(struct mu_rpc_agent *a);
/** Calls mu_rpc_agent_turn() on the next turn of the loop, if not before. */
void mu_rpc_agent_soon(struct mu_rpc_agent *a);
/**
 * Ends everything: calls with MUSTER_ECLOSED, sessions with a goodbye. `stopped` follows when the
 * handlers that run have answered. Twice is harmless.
 */
void mu_rpc_agent_stop(struct mu_rpc_agent *a);
/** After `stopped`. */
void mu_rpc_agent_free(struct mu_rpc_agent *a);

/* --- workers ---------------------------------------------------------------------------------- */

/**
 * Adds a worker, ourselves included. Adding it again is fine, and changes its address;
 * MUSTER_EEXIST: the id belongs to another name, or the name has another id. MUSTER_EINVAL,
 * MUSTER_ENOMEM.
 */
int mu_rpc_agent_add(struct mu_rpc_agent *a, const char *name, int32_t id,
                     const struct mu_addr *addr, struct mu_errmsg *reterr_msg);
/**
 * Sets the worker's address for this host (mu_rpc_agent_near_addr() there): it is tried first, and
 * the other address is used if nothing answers. NULL: not known. MUSTER_EWORKER.
 */
int mu_rpc_agent_set_near(struct mu_rpc_agent *a, const char *name, const struct mu_addr *addr);
/** A worker has left: calls to it end with MUSTER_EWORKER, sent or not. MUSTER_EWORKER: it is not
 * known. */
int mu_rpc_agent_remove(struct mu_rpc_agent *a, const char *name);
/**
 * Gives known workers new ids, all at once, so that they can swap them. No other worker may have
 * these ids (MUSTER_EEXIST, and nothing has changed). `own` is ours from now on.
 */
int mu_rpc_agent_renumber(struct mu_rpc_agent *a, struct mu_rpc_peer *const *peers,
                          const int32_t *ids, size_t count, int32_t own);
/** NULL: not known. */
struct mu_rpc_peer *mu_rpc_agent_find(struct mu_rpc_agent *a, const char *name);
struct mu_rpc_peer *mu_rpc_agent_find_id(struct mu_rpc_agent *a, int32_t id);
const char *mu_rpc_peer_name(const struct mu_rpc_peer *peer);
int32_t mu_rpc_peer_id(const struct mu_rpc_peer *peer);
/** Returns the next worker that was added; begins with NULL, and ends with NULL. */
struct mu_rpc_peer *mu_rpc_agent_next(struct mu_rpc_agent *a, const struct mu_rpc_peer *after);

/* --- calling ---------------------------------------------------------------------------------- */

enum mu_rpc_out_state {
    MU_RPC_OUT_IDLE = 0, /* not begun, or ended */
    MU_RPC_OUT_QUEUED,   /* waits for a session or for credit */
    MU_RPC_OUT_SENDING,  /* a part of its message is not sent yet */
    MU_RPC_OUT_SENT,
    MU_RPC_OUT_RETRY,  /* waits for its next try */
    MU_RPC_OUT_ENDING, /* `ended` follows on this turn */
};

struct mu_rpc_out {
    /* The owner's. */
    struct mu_rpc_peer *to;
    const char *method;
    const struct mu_rpc_part *parts;
    size_t part_count;
    uint32_t timeout_ms; /* 0: no limit */
    bool once;
    bool raw;      /* its only part is an encoded message already */
    bool stream;   /* items go both ways, until mu_rpc_out_end() and `ended` */
    bool retrying; /* tried again by `retry` */
    struct mu_rpc_retry_options retry;
    /** The call has ended. With 0 `message` is the answer, lent; else `text` says what happened. */
    void (*ended)(struct mu_rpc_out *out, int status, const char *text, struct mu_span message);
    /** stream: an item, lent; the owner calls mu_rpc_out_consumed() when it has handled it. */
    void (*item)(struct mu_rpc_out *out, struct mu_span message);
    /** stream: an item that found no room can be sent now. */
    void (*writable)(struct mu_rpc_out *out);

    /* private from here */
    struct mu_rpc_agent *agent;
    enum mu_rpc_out_state state;
    struct mu_rpc_line *line;
    struct mu_map_node by_id; /* line->outs */
    uint64_t id;
    struct mu_list link; /* peer->unsent, agent->ending */
    struct mu_list all;  /* peer->outs */
    struct mu_list key;  /* agent->once_outs */
    struct mu_heap_node deadline;
    struct mu_rpc_retry again;
    mu_mono_t begun;
    uint64_t seq;  /* once */
    bool was_sent; /* once: to the process `sent_to` */
    uint8_t sent_to[MU_RPC_SESSION_LEN];
    size_t part; /* SENDING: the position in the parts */
    size_t part_at;
    bool lent;               /* some of its parts are sent from the owner's memory */
    struct mu_rpc_coming in; /* the answer */
    int status;              /* ENDING */
    char *text;
};

/** The defaults of `retry`: PyTorch's; see proto/rpc/retry.h for the others. */
struct mu_rpc_retry_options mu_rpc_out_retry_defaults(void);
int mu_rpc_out_retry_check(const struct mu_rpc_retry_options *o, struct mu_errmsg *reterr_msg);
/** Begins a call. Errors come with `ended`. */
void mu_rpc_agent_call(struct mu_rpc_agent *a, struct mu_rpc_out *out);
/**
 * Inside `ended` or `start`: takes over the memory of `message`, if it came in pieces; else returns
 * an empty buffer, and the message must be copied.
 */
struct mu_buf mu_rpc_agent_steal(struct mu_rpc_agent *a);
/**
 * Calls `ended` of a call that was never begun: its answer came from elsewhere. `message` (not with
 * an error) can be stolen there, and is freed afterwards.
 */
void mu_rpc_agent_tell(struct mu_rpc_agent *a, struct mu_rpc_out *out, int status, const char *text,
                       struct mu_buf *message);
/** Ends the call with MUSTER_ECANCELED, unless it is just ending otherwise. */
void mu_rpc_out_cancel(struct mu_rpc_out *out);
/** stream: MUSTER_EAGAIN (`writable` follows), MUSTER_ELIMIT, MUSTER_EINVAL, MUSTER_ENOMEM. */
int mu_rpc_out_item(struct mu_rpc_out *out, struct mu_span message);
int mu_rpc_out_end(struct mu_rpc_out *out);
void mu_rpc_out_consumed(struct mu_rpc_out *out, size_t n);

/* --- serving ---------------------------------------------------------------------------------- */

struct mu_rpc_handler {
    const char *method;
    bool stream;
    /** A call has come with its complete message; a stream with its first one. Lent for the
     * call. */
    void (*start)(struct mu_rpc_handler *handler, struct mu_rpc_in *in, struct mu_span message);
    /** stream */
    void (*item)(struct mu_rpc_in *in, struct mu_span message);
    void (*end)(struct mu_rpc_in *in);
    void (*writable)(struct mu_rpc_in *in);
    /** The caller does not wait any more; the handler still has to answer. May be NULL. */
    void (*cancel)(struct mu_rpc_in *in, int why);
    struct mu_map_node by_method; /* private */
};

enum mu_rpc_in_state {
    MU_RPC_IN_COMING = 1, /* its message is not complete yet */
    MU_RPC_IN_JOINED,     /* waits for the answer of the same call */
    MU_RPC_IN_RUNNING,
    MU_RPC_IN_REPLYING, /* its answer is on its way */
};

/** The answer to a call of this process, as given to mu_rpc_in_reply(); `in` is gone then. */
typedef void mu_rpc_answered(struct mu_rpc_in *in, int status, struct mu_span message);

struct mu_rpc_in {
    /* Read-only for handlers. */
    struct mu_rpc_agent *agent;
    mu_mono_t deadline;
    int canceled; /* 0, or why */
    void *owner;  /* the handler's */
    /* private from here */
    enum mu_rpc_in_state state;
    struct mu_rpc_in **slot;
    struct mu_rpc_handler *handler;
    struct mu_rpc_line *line; /* NULL: the line is gone */
    struct mu_map_node by_id; /* line->ins */
    uint64_t id;
    struct mu_list joined;
    struct mu_list running; /* agent->running */
    bool once;
    struct mu_rpc_key key_of;
    struct mu_rpc_once_key *key;
    struct mu_rpc_coming message; /* COMING */
    size_t coming;                /* its bytes that are counted in agent->coming */
    struct mu_rpc_blob *answer;   /* REPLYING */
    size_t answer_at;             /* how many of its bytes the session has */
    mu_mono_t begun;
    char caller[MU_RPC_WORKER_MAX + 1];
    int32_t caller_id;
    mu_rpc_answered *answered; /* of a call that did not come over the wire */
    void *asker;
};

/** `handler` is borrowed until the agent is freed. MUSTER_EEXIST, MUSTER_EINVAL, MUSTER_ENOMEM. */
int mu_rpc_agent_serve(struct mu_rpc_agent *a, struct mu_rpc_handler *handler);
/**
 * Runs a handler of our own, for a call that came by other means, without a deadline. `message` is
 * taken over. `*slot` is the call while it runs, and NULL again when `answered` has been called,
 * which may be before this returns. MUSTER_ENOMETHOD, MUSTER_EINVAL (a stream), MUSTER_EDRAIN,
 * MUSTER_ENOMEM: nothing was run.
 */
int mu_rpc_agent_run(struct mu_rpc_agent *a, struct mu_span method, struct mu_buf *message,
                     const char *caller, int32_t caller_id, mu_rpc_answered *answered, void *asker,
                     struct mu_rpc_in **slot);
/** Tells the handler that the caller does not wait any more; it still has to answer. */
void mu_rpc_in_cancel(struct mu_rpc_in *in, int why);
/**
 * Answers. With 0 `message` is the answer, which is copied; else the error's text. `in` is gone
 * afterwards.
 */
void mu_rpc_in_reply(struct mu_rpc_in *in, int status, struct mu_span message);
/** The same with a buffer, which is taken over. */
void mu_rpc_in_reply_buf(struct mu_rpc_in *in, int status, struct mu_buf *message);
/** stream: MUSTER_EAGAIN (`writable` follows), MUSTER_ECANCELED, MUSTER_ELIMIT, MUSTER_ENOMEM. */
int mu_rpc_in_item(struct mu_rpc_in *in, struct mu_span message);
void mu_rpc_in_consumed(struct mu_rpc_in *in, size_t n);

/* --- quiet ------------------------------------------------------------------------------------ */

/* Waits until nothing is under way: no call of ours, and no call that runs here. */
struct mu_rpc_idle {
    struct mu_list link; /* private; remove it to stop waiting */
    void (*idle)(struct mu_rpc_idle *idle);
};

/** `idle` follows, once, on the first turn that finds nothing under way. */
void mu_rpc_agent_when_idle(struct mu_rpc_agent *a, struct mu_rpc_idle *idle);
/** Writes one of the calls under way, and how many there are. "": no call is under way. */
void mu_rpc_agent_busy(const struct mu_rpc_agent *a, char *text, size_t cap);

/* --- statistics ------------------------------------------------------------------------------- */

#define MU_RPC_BUCKETS 32

struct mu_rpc_agent_stats {
    uint64_t calls, calls_ok, calls_failed, timeouts, retries; /* ours */
    uint64_t served, serve_errors, replays;                    /* others' */
    uint64_t in_flight, waiting, serving, sessions, workers;   /* now */
    uint64_t dials, accepts, bytes_in, bytes_out;
    uint64_t near_connections; /* now, by unix socket */
    /* How long calls took: bucket n counts those below 2^n microseconds. */
    uint64_t latency[MU_RPC_BUCKETS];
    uint64_t handling[MU_RPC_BUCKETS];
};

void mu_rpc_agent_stats(const struct mu_rpc_agent *a, struct mu_rpc_agent_stats *ret);

#endif
