/*
 * What keeps a store's keys in etcd: the machine of proto/store/backed.h with a client of etcd, one
 * watch over all keys, and the lease of its session.
 *
 *     mu_backing_new(env, "etcd://a,b,c/prefix", &events, &backing, &msg);
 *     op->done = on_done; mu_backing_submit(backing, &client, op);
 *
 * While etcd cannot be reached, operations wait, and go on when it is back; the log says so once.
 */
#ifndef MU_STORE_BACKING_H
#define MU_STORE_BACKING_H

#include "core/env.h"
#include "core/err.h"
#include "proto/store/backed.h"
#include "service/store/store.h"

struct mu_backing;

struct mu_backing_events {
    /** Operations may have ended, or been told of changes: all of that has been said. */
    void (*turn_ended)(void *context);
    void *context;
};

/* Zero it; set the request and the callbacks. The memory is the caller's, as in
 * proto/store/backed.h. */
struct mu_backing_op {
    struct mu_backed_op base;
    /** It ended; on a later turn. Everything is allowed in it. */
    void (*done)(struct mu_backing_op *op);
    /** watch: a change, lent. The op may be cancelled in it. `gap`: changes were missed, and no
     * more come; `change` is NULL. */
    void (*change)(struct mu_backing_op *op, const struct mu_change *change, bool gap);
    /** watch: whatever happens from now on will be told; not if it stood already when the op was
     * submitted (mu_backing_watches). May be NULL. It must not cancel others. */
    void (*stands)(struct mu_backing_op *op);
    /** When nobody waits for it any more; 0: never. Only who keeps the keys elsewhere looks at it.
     */
    mu_mono_t deadline;
    /* Private to remote.c from here. */
    struct mu_store_op remote;
    struct mu_remote *keeper;
    struct mu_remote_probe *probe;
    bool counted;
    bool canceled;
};

/** Whether a URL can be a backing. MUSTER_EURL in words. */
int mu_backing_check(const char *url, struct mu_errmsg *reterr_msg);
/**
 * Reaches for nobody yet. MUSTER_EURL in words (it is not an etcd:// URL, or not for v3),
 * MUSTER_ENOMEM.
 */
int mu_backing_new(struct mu_env *env, const char *url, const struct mu_backing_events *events,
                   struct mu_backing **ret_backing, struct mu_errmsg *reterr_msg);
/**
 * No operation may be left but those in transactions, which end with MUSTER_ECLOSED. With `drop`
 * all keys are deleted (tried for two seconds). Says goodbye to etcd, then calls `closed`, on a
 * later turn, and is gone.
 */
void mu_backing_close(struct mu_backing *backing, bool drop, void (*closed)(void *context),
                      void *context);

void mu_backing_submit(struct mu_backing *backing, struct mu_backed_client *client,
                       struct mu_backing_op *op);
/** As mu_backed_cancel(): true if the op is the caller's again; else `done` follows. */
bool mu_backing_cancel(struct mu_backing *backing, struct mu_backing_op *op);
/** Whether the watch over all keys stands. */
bool mu_backing_watches(const struct mu_backing *backing);
/** Tells a watch that has just been submitted what there is. The op may be cancelled by it. */
void mu_backing_tell_current(struct mu_backing *backing, struct mu_backing_op *op);
/** Nothing is under way but waits and watches. */
bool mu_backing_idle(const struct mu_backing *backing);
const struct mu_backed *mu_backing_machine(const struct mu_backing *backing);

#endif
