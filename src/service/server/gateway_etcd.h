/*
 * What keeps a store's keys in etcd: the machine of proto/store/backing.h with a client of etcd,
 * one watch over all keys, and the lease of its session.
 *
 *     mu_gateway_etcd_new(env, "etcd://a,b,c/prefix", &events, &backing, &msg);
 *     op->done = on_done; mu_gateway_etcd_submit(backing, &client, op);
 *
 * While etcd cannot be reached, operations wait, and go on when it is back; the log says so once.
 */
#ifndef MU_SERVER_GATEWAY_ETCD_H
#define MU_SERVER_GATEWAY_ETCD_H

#include "core/env.h"
#include "core/err.h"
#include "proto/store/backing.h"
#include "service/store/store.h"

struct mu_gateway_etcd;

struct mu_gateway_events {
    /** Operations may have ended, or been told of changes: all of that has been said. */
    void (*turn_ended)(void *context);
    void *context;
};

/* Zero it; set the request and the callbacks. The memory is the caller's, as in
 * proto/store/backing.h. */
struct mu_gateway_op {
    struct mu_backing_op base;
    /** It ended; on a later turn. Everything is allowed in it. */
    void (*done)(struct mu_gateway_op *op);
    /** watch: a change, lent. The op may be cancelled in it. `gap`: changes were missed, and no
     * more come; `change` is NULL. */
    void (*change)(struct mu_gateway_op *op, const struct mu_change *change, bool gap);
    /** watch: whatever happens from now on will be told; not if it stood already when the op was
     * submitted (mu_gateway_etcd_watches). May be NULL. It must not cancel others. */
    void (*stands)(struct mu_gateway_op *op);
    /** When nobody waits for it any more; 0: never. Only who keeps the keys elsewhere looks at it.
     */
    mu_mono_t deadline;
    /* Private to gateway_server.c from here. */
    struct mu_store_op remote;
    struct mu_gateway_server *gateway;
    struct mu_gateway_probe *probe;
    bool counted;
    bool canceled;
};

/** Whether a URL can be a backing. MUSTER_EURL in words. */
int mu_gateway_etcd_check(const char *url, struct mu_errmsg *reterr_msg);
/**
 * Reaches for nobody yet. MUSTER_EURL in words (it is not an etcd:// URL, or not for v3),
 * MUSTER_ENOMEM.
 */
int mu_gateway_etcd_new(struct mu_env *env, const char *url, const struct mu_gateway_events *events,
                        struct mu_gateway_etcd **ret_gateway, struct mu_errmsg *reterr_msg);
/**
 * No operation may be left but those in transactions, which end with MUSTER_ECLOSED. With `drop`
 * all keys are deleted (tried for two seconds). Says goodbye to etcd, then calls `closed`, on a
 * later turn, and is gone.
 */
void mu_gateway_etcd_close(struct mu_gateway_etcd *backing, bool drop,
                           void (*closed)(void *context), void *context);

void mu_gateway_etcd_submit(struct mu_gateway_etcd *backing, struct mu_backing_client *client,
                            struct mu_gateway_op *op);
/** As mu_backing_cancel(): true if the op is the caller's again; else `done` follows. */
bool mu_gateway_etcd_cancel(struct mu_gateway_etcd *backing, struct mu_gateway_op *op);
/** Whether the watch over all keys stands. */
bool mu_gateway_etcd_watches(const struct mu_gateway_etcd *backing);
/** Tells a watch that has just been submitted what there is. The op may be cancelled by it. */
void mu_gateway_etcd_tell_current(struct mu_gateway_etcd *backing, struct mu_gateway_op *op);
/** Nothing is under way but waits and watches. */
bool mu_gateway_etcd_idle(const struct mu_gateway_etcd *backing);
const struct mu_backing *mu_gateway_etcd_machine(const struct mu_gateway_etcd *backing);

#endif
