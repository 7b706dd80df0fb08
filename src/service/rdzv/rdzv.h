/*
 * One node's rendezvous as its users on the loop's thread see it, with any backend: the launcher,
 * the command and the public API all stand on this.
 *
 *     mu_rdzv_open(env, &params, &events, &handler, &msg)   hosts the rendezvous, or connects to it
 *     mu_rdzv_join(handler)        assigned(...) follows, or failed(...)
 *                                  ended(...) comes when that round is over; then join again
 *     mu_rdzv_explain(handler)     while it joins: explained(...) follows
 *     mu_rdzv_leave(handler)       left(...) follows
 *     mu_rdzv_close_run(handler)   closed(...) follows, on all nodes of the run
 *     mu_rdzv_free(handler)        freed(...) follows: the last callback
 *
 * One shape for all backends:
 *
 *             join                   assigned                   ended
 *     OUT ----------> JOINING ------------------> IN A ROUND ----------> BETWEEN
 *      ^                 |                            |  |                  |
 *      |  failed, left   |                            |  | join: ends it    | join
 *      +-----------------+----------------------------+  +---> JOINING <----+
 *
 *  - `ended` says why: a member was lost, left, its workers failed, late nodes are let in, or the
 *    others took this node itself for dead (DROPPED). The node still counts as present where the
 *    backend allows it (its place in the next round is kept), but gets no rank before it joins
 *    again.
 *  - join while in a round means: this round is over for me (my workers failed). It ends for the
 *    others as well. `assigned` of a later round follows.
 *  - A run that was closed fails every join with MUSTER_ERDZV_CLOSED.
 *
 * No callback runs inside a call; from inside a callback anything may be called.
 */
#ifndef MU_RDZV_SERVICE_H
#define MU_RDZV_SERVICE_H

#include "core/env.h"
#include "core/err.h"
#include "codec/rdzv/params.h"

struct mu_rdzv_handler;

enum mu_rdzv_end_reason {
    MU_RDZV_ENDED_LOST = 1, /* a member vanished */
    MU_RDZV_ENDED_LEFT,     /* a member left */
    MU_RDZV_ENDED_UPSCALE,  /* late nodes are let in */
    MU_RDZV_ENDED_FAILED,   /* the workers of a member failed */
    MU_RDZV_ENDED_DROPPED,  /* the others have gone on without this node */
};

struct mu_rdzv_peer {
    const char *name; /* unique in the run */
    const char *addr; /* its address for the other nodes */
};

/* All lent for the callback. */
struct mu_rdzv_assignment {
    uint64_t incarnation; /* of the run; 0 where the backend has none */
    uint64_t round;
    uint32_t rank;
    uint32_t world;
    uint32_t restarts_left; /* UINT32_MAX: not counted, or no bound */
    size_t member_count;    /* `world`, or 0: not asked for (members=false), or too many */
    const struct mu_rdzv_peer *members; /* by rank */
    const char *store; /* URL of the round's store, its prefix in it: see mu_store_open() */
    /* The other nodes are PyTorch 1.13: ranks go by its exchange (service/agent/exchange.h), and
     * the workers' rank 0 serves the store at the bootstrap address itself, so no agent may. */
    bool torch_1;
    /* Workers expect that the first of them serves the store, as in the last case. */
    bool workers_serve;
};

struct mu_rdzv_ending {
    uint64_t round;
    enum mu_rdzv_end_reason reason;
    const char *who; /* the member that caused it, or NULL */
    uint32_t who_rank;
    const char *text; /* one sentence */
    bool host_gone;   /* the round's store is gone with the host */
};

enum mu_rdzv_record_state {
    MU_RDZV_RECORD_INIT = 1,
    MU_RDZV_RECORD_RUNNING,
    MU_RDZV_RECORD_SUCCEEDED,
    MU_RDZV_RECORD_FAILED,
};

/* A step that was taken, for the record. */
struct mu_rdzv_record {
    const char *name; /* such as "muster.join", "c10d.write" */
    const char *run_id;
    const char *message; /* one sentence */
    const char *node;
    enum mu_rdzv_record_state state;
    int64_t rank; /* -1: no rank */
};

struct mu_rdzv_events {
    void (*assigned)(void *context, const struct mu_rdzv_assignment *assignment);
    void (*ended)(void *context, const struct mu_rdzv_ending *ending);
    /**
     * The node has heard nothing for so long that from `by` on the others may go on without it: its
     * workers must have ended by then, at the latest. `by` is past if this process was stopped
     * meanwhile. Return true: no worker is left, and the node stays in its round as long as the
     * others keep it there. Return false, or leave this NULL: `ended` follows if the node was in a
     * round. Only the backend "muster" calls it.
     */
    bool (*cut_off)(void *context, mu_mono_t by);
    /**
     * The node is counted on until then: its workers must have ended by that time, even if this
     * process is stopped before (mu_env_children_until()). MU_MONO_NEVER: they need not. Comes
     * often, also inside a call, and must not call back. May be NULL. Only the backend "muster"
     * calls it.
     */
    void (*counted)(void *context, mu_mono_t until);
    /** Answers mu_rdzv_doubt(): all other members were heard since. May be NULL. */
    void (*sure)(void *context);
    /** How many nodes wait to be let in, while in a round; comes when that changes. */
    void (*waiting)(void *context, uint32_t count);
    /** Answers mu_rdzv_explain(): what a join under way waits for, in one sentence without a full
     * stop. May be NULL if that is never called. */
    void (*explained)(void *context, const char *text);
    /** The run is over. Once. A join under way has failed before with MUSTER_ERDZV_CLOSED. */
    void (*closed)(void *context);
    /** The join, or the membership, could not go on: MUSTER_ERDZV_*. The node is out. */
    void (*failed)(void *context, int status, const char *text);
    /** May be NULL if mu_rdzv_leave() is never called. */
    void (*left)(void *context);
    /** A close has failed: MUSTER_ERDZV_TIMEOUT, MUSTER_ERDZV_CONN. May be NULL if
     * mu_rdzv_close_run() is never called. */
    void (*close_failed)(void *context, int status, const char *text);
    /** May be NULL. */
    void (*record)(void *context, const struct mu_rdzv_record *record);
    void (*freed)(void *context);
    void *context;
};

struct mu_rdzv_handler_ops {
    void (*join)(struct mu_rdzv_handler *h);
    /** NULL: the backend cannot tell. */
    void (*explain)(struct mu_rdzv_handler *h);
    void (*leave)(struct mu_rdzv_handler *h);
    void (*close_run)(struct mu_rdzv_handler *h);
    /** See mu_rdzv_doubt(). NULL: it does not look. */
    void (*doubt)(struct mu_rdzv_handler *h);
    /** See mu_rdzv_exclude_self(). NULL: the backend excludes nobody. */
    bool (*exclude_self)(struct mu_rdzv_handler *h, const char *reason);
    /** Leaves without a callback if the node is in; `freed` follows. */
    void (*free)(struct mu_rdzv_handler *h);
    /** Whether the runs that are served here have no members. NULL: the backend cannot tell. */
    bool (*deserted)(struct mu_rdzv_handler *h);
};

#define MU_RDZV_TROUBLES_MAX 8 /* reasons; more are not recorded */

/* The first member of every backend's own. */
struct mu_rdzv_handler {
    const struct mu_rdzv_handler_ops *ops;
    struct mu_env *env;
    struct mu_rdzv_events events;
    char backend[32];
    char run_id[MU_RDZV_RUN_ID_MAX + 1];
    char node[MU_RDZV_RUN_ID_MAX + 1]; /* our name */
    char addr[MU_ADDR_HOST_MAX + 1];   /* our address for the others */
    char page[MU_RDZV_RUN_ID_MAX + 1]; /* HOST:PORT of our status page, for others; or "" */
    bool hosting;                      /* the server runs here */
    uint64_t doubt_ms;  /* in a round: within this time a member that is lost now is noticed; 0: the
                           backend counts restarts itself, or cannot tell */
    bool blameless;     /* join: the round is over for us, but not because our workers failed; it
                           costs no restart where the backend counts them */
    bool finished;      /* leave: our workers have all ended well */
    uint32_t linger_ms; /* how long a server here outlives `free`, so that others can go first. 0 */
    bool keep_trying;   /* config keep_trying: see mu_rdzv_open() */
    mu_mono_t join_by;  /* when the join under way is late, as of the last `explained`;
                           MU_MONO_NEVER: never, or not known */
    /* Why the rendezvous cannot be reached: the reasons that were recorded since it could, and the
     * last one. */
    int troubles[MU_RDZV_TROUBLES_MAX];
    size_t trouble_count; /* 0: it can be reached, or that is not known */
    struct mu_errmsg trouble;
    mu_mono_t unknown_since; /* the endpoint's name, while that is the last one */
};

/**
 * Opens the backend params->backend: "muster", "c10d", "etcd", "etcd-v2", "etcd-v3" or "static";
 * the endpoint may be a URL that holds everything (service/rdzv/url.h). Parses the whole config and
 * refuses options that it does not know, by name. This call settles which node hosts, as far as
 * binding goes; joining shows whether the host answers. MUSTER_EINVAL with a text, MUSTER_EADDR,
 * MUSTER_ENOMEM.
 *
 * A join tries to connect until join_timeout is over, with two exceptions: it ends early if the
 * other end refuses this node's credential, and if the endpoint's name has been unknown for
 * MU_RDZV_NAME_MS. With keep_trying=true in the config it goes on in both cases.
 */
#define MU_RDZV_NAME_MS 60000 /* a name that comes up with its host is there by then */
int mu_rdzv_open(struct mu_env *env, const struct mu_rdzv_params *params,
                 const struct mu_rdzv_events *events, struct mu_rdzv_handler **ret_handler,
                 struct mu_errmsg *reterr_msg);

static inline void mu_rdzv_join(struct mu_rdzv_handler *h)
{
    h->ops->join(h);
}

/** Asks what a join under way waits for. `explained` follows, unless the join is over first. False:
 * the backend cannot tell. */
static inline bool mu_rdzv_explain(struct mu_rdzv_handler *h)
{
    if (h->ops->explain != NULL) {
        h->ops->explain(h);
    }
    return h->ops->explain != NULL;
}

/** In a round, our workers have failed: is a member lost? `sure` follows when all others were heard
 * since, and `ended` when one is not; or nothing, in which case none was lost after `doubt_ms`. */
static inline void mu_rdzv_doubt(struct mu_rdzv_handler *h)
{
    if (h->ops->doubt != NULL) {
        h->ops->doubt(h);
    }
}

/** In a round, asks that this node be excluded from the run for the time that the run has set;
 * `ended` or `failed` follows. `reason` is short. False: the backend cannot, or not now. */
static inline bool mu_rdzv_exclude_self(struct mu_rdzv_handler *h, const char *reason)
{
    return h->ops->exclude_self != NULL && h->ops->exclude_self(h, reason);
}

static inline void mu_rdzv_leave(struct mu_rdzv_handler *h)
{
    h->ops->leave(h);
}

static inline void mu_rdzv_close_run(struct mu_rdzv_handler *h)
{
    h->ops->close_run(h);
}

static inline void mu_rdzv_free(struct mu_rdzv_handler *h)
{
    h->ops->free(h);
}

/* --- for backends ----------------------------------------------------------------------------- */

/** Keeps env and events, and checks and copies run id, name and address (config `name`, `addr`). */
int mu_rdzv_handler_init(struct mu_rdzv_handler *h, const struct mu_rdzv_handler_ops *ops,
                         struct mu_env *env, const struct mu_rdzv_params *params,
                         const struct mu_rdzv_events *events, struct mu_errmsg *reterr_msg);
/** Refuses keys of the config that the backend does not have, by name, and logs those that it
 * ignores (codec/rdzv/keys.h): MUSTER_EINVAL. */
int mu_rdzv_handler_keys(const struct mu_rdzv_params *params, struct mu_errmsg *reterr_msg);
/** Logs that the backend ignores a part of its config. */
void mu_rdzv_handler_ignore(const struct mu_rdzv_params *params, const char *what);
/** How long a node may be silent before it counts as lost, in PyTorch's words: keep_alive_interval
 * times keep_alive_max_attempt. 0: neither is given. MUSTER_EINVAL with a text. */
int mu_rdzv_handler_silence(const struct mu_rdzv_params *params, uint64_t *ret_ms,
                            struct mu_errmsg *reterr_msg);
void mu_rdzv_handler_record(struct mu_rdzv_handler *h, enum mu_rdzv_record_state state,
                            int64_t rank, const char *name, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/**
 * A try to reach the rendezvous at `where` has failed. A reason that is new becomes a record
 * "BACKEND.trouble". `why` NULL: what muster_strerror() says. The backend sets `trouble_count` to 0
 * when it has reached the rendezvous, and when a join begins.
 */
void mu_rdzv_handler_trouble(struct mu_rdzv_handler *h, int status, const char *where,
                             const char *why);
/** Whether the endpoint's name has been unknown for too long, after such a `status`. */
bool mu_rdzv_handler_gives_up(const struct mu_rdzv_handler *h, int status);
/** Writes what a join that cannot reach `where` waits for. `doctor` is what to ask, after `muster
 * doctor`. */
void mu_rdzv_handler_unreached(const struct mu_rdzv_handler *h, const char *where,
                               const char *doctor, struct mu_errmsg *ret);
/** Answers mu_rdzv_explain(). `by`: when the join is late. */
void mu_rdzv_handler_explained(struct mu_rdzv_handler *h, mu_mono_t by, const char *text);
/** Whether a join failed because the run is over. */
bool mu_rdzv_is_over(int status);
/** Whether the other end refused this node, so that trying again would not help. */
bool mu_rdzv_is_refusal(int status);

int mu_rdzv_muster_new(struct mu_env *env, const struct mu_rdzv_params *params,
                       const struct mu_rdzv_events *events, struct mu_rdzv_handler **ret_handler,
                       struct mu_errmsg *reterr_msg);
int mu_rdzv_c10d_new(struct mu_env *env, const struct mu_rdzv_params *params,
                     const struct mu_rdzv_events *events, struct mu_rdzv_handler **ret_handler,
                     struct mu_errmsg *reterr_msg);
int mu_rdzv_etcd_new(struct mu_env *env, const struct mu_rdzv_params *params,
                     const struct mu_rdzv_events *events, struct mu_rdzv_handler **ret_handler,
                     struct mu_errmsg *reterr_msg);
int mu_rdzv_static_new(struct mu_env *env, const struct mu_rdzv_params *params,
                       const struct mu_rdzv_events *events, struct mu_rdzv_handler **ret_handler,
                       struct mu_errmsg *reterr_msg);

/* --- hosting ---------------------------------------------------------------------------------- */

struct mu_store_server;

enum mu_rdzv_host_wish {
    MU_RDZV_HOST_TRY = 0, /* the node that can bind the endpoint hosts */
    MU_RDZV_HOST_YES,     /* is_host=true: this node must host */
    MU_RDZV_HOST_NO,
};

/**
 * Tries to bind the endpoint and to serve there. 1: this process hosts, `*ret_server` is its server
 * and `*endpoint` has the port; 0: another process hosts, connect to it; MU_RDZV_ELSEWHERE:
 * likewise, and the endpoint is not an address of this host. MUSTER_EADDR: is_host is true, but
 * hosting is impossible; MUSTER_ENOMEM. `why` says in one line what was chosen, and why. The server
 * listens at the endpoint's own addresses (see mu_rdzv_place()); at all of the host's only if the
 * endpoint says so, which needs is_host. `confirms`: it finds out which of its clients hear it, as
 * a host must that can be succeeded. mu_rdzv_unhost() ends the server.
 */
#define MU_RDZV_ELSEWHERE 2
int mu_rdzv_host(struct mu_env *env, enum mu_rdzv_host_wish wish, bool confirms,
                 struct mu_addr *endpoint, struct mu_store_server **ret_server,
                 struct mu_errmsg *why);
/**
 * Finds where to listen for other hosts that know this one by `addr`: at `addr`, if it can be
 * bound. A name that leads to loopback on this host, as Debian sets a host's own name, leads
 * elsewhere on the others: it becomes "::", all addresses. 0, or why `addr` cannot be bound, as
 * mu_env_listen().
 */
int mu_rdzv_place(struct mu_env *env, struct mu_addr *addr);
/** Whether the name, or the address, is one of this host only. */
bool mu_rdzv_is_loopback(const char *host);
/**
 * Ends such a server when its last client has gone or `linger_ms` are over; `done` (may be NULL)
 * follows, on a later turn, when the server is gone.
 */
void mu_rdzv_unhost(struct mu_store_server *server, uint32_t linger_ms, void (*done)(void *context),
                    void *context);

#endif
