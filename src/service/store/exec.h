/*
 * Store operations and their executors, for the native wire's handlers and the in-process store. A
 * request that can be answered is answered at once; one that must wait, or watches, needs a struct
 * mu_store_exec that lives until it is answered or ended.
 *
 * There are two executors: a keyspace in this process (mu_executor_local), and one whose keys are
 * elsewhere (gateway_serve.c), which answers nothing at once.
 */
#ifndef MU_STORE_EXEC_H
#define MU_STORE_EXEC_H

#include "proto/store/keyspace.h"

/* How a keyspace reaches the owner of a wait or a watch: their owner pointers point to this. */
struct mu_ks_owner {
    void (*ready)(struct mu_ks_owner *owner, struct mu_ks_wait *wait);
    void (*changed)(struct mu_ks_owner *owner, struct mu_ks_watch *watch,
                    const struct mu_change *change);
    /** Keys that a change of its waited for were given back: it asks again. NULL: it asks never. */
    void (*unheld)(struct mu_ks_owner *owner);
};

/** Tells all waiters and watchers of a keyspace what happened. To be called after every change. */
void mu_ks_tell_owners(struct mu_keyspace *ks);

/* Where answers go. All that is passed is lent for the call. */
struct mu_store_sink {
    /** The end of the operation; `text` says what went wrong if status is not 0. */
    void (*answer)(struct mu_store_sink *sink, int status, const struct mu_store_reply *reply,
                   const char *text);
    /** A watched key changed. False: the sink has ended the watch, and its memory may be gone. */
    bool (*change)(struct mu_store_sink *sink, const struct mu_change *change);
    mu_mono_t deadline; /* how long the client waits; for gateways. 0: for ever */
    bool wire_keys;     /* keys have the slash that clients put before them; texts leave it out */
};

struct mu_executor;
struct mu_store_exec;

struct mu_executor_ops {
    bool (*execute)(struct mu_executor *e, mu_mono_t now, const struct mu_store_request *request,
                    struct mu_store_sink *sink);
    void (*start)(struct mu_store_exec *x, const struct mu_store_request *request);
    void (*stop)(struct mu_store_exec *x, int why);
    void (*fini)(struct mu_store_exec *x);
};

struct mu_executor {
    const struct mu_executor_ops *ops;
    struct mu_keyspace *ks; /* of the local executor */
};

/** Executes on a keyspace, which it borrows. */
struct mu_executor mu_executor_local(struct mu_keyspace *ks);

/* An operation that goes on. Embedded by its owner. */
struct mu_store_exec {
    struct mu_executor *executor;
    void *impl; /* the executor's */
    struct mu_ks_owner owner;
    struct mu_keyspace *ks;
    struct mu_store_sink *sink;
    struct mu_store_request request; /* its keys point into `parts` */
    struct mu_span *parts;
    struct mu_ks_wait wait;
    struct mu_ks_watch watch;
    bool active;
};

/**
 * Executes a request. Returns true if it was answered; false if it has to wait or watches: then
 * nothing has happened yet, and the caller goes on with mu_store_exec_start().
 */
static inline bool mu_store_execute(struct mu_executor *e, mu_mono_t now,
                                    const struct mu_store_request *request,
                                    struct mu_store_sink *sink)
{
    return e->ops->execute(e, now, request, sink);
}
/** Starts what mu_store_execute() could not answer. The request is copied. It may be answered from
 * inside, with an error or otherwise. */
static inline void mu_store_exec_start(struct mu_store_exec *x, struct mu_executor *e,
                                       const struct mu_store_request *request,
                                       struct mu_store_sink *sink)
{
    *x = (struct mu_store_exec){.executor = e, .ks = e->ks, .sink = sink, .active = true};
    e->ops->start(x, request);
}
/** Answers with MUSTER_ETIMEDOUT, naming the keys that are missing, or with `why`. */
static inline void mu_store_exec_stop(struct mu_store_exec *x, int why)
{
    if (x->active) {
        x->executor->ops->stop(x, why);
    }
}
/** Frees everything, without an answer. Harmless when it was answered. */
static inline void mu_store_exec_fini(struct mu_store_exec *x)
{
    if (x->active) {
        x->executor->ops->fini(x);
    }
}

/** For executors: copies the request, whose keys then point into x->parts, each with a little room
 * before it. MUSTER_ENOMEM. */
#define MU_STORE_PART_ROOM 2
int mu_store_exec_copy(struct mu_store_exec *x, const struct mu_store_request *request);
/** For executors: writes the text for a wait that took too long. */
void mu_store_exec_explain(const struct mu_store_sink *sink, const struct mu_span *keys,
                           size_t count, size_t missing, char *text, size_t cap);
#define MU_STORE_MISSING_NAMED 8 /* keys that a timeout names */

#endif
