/*
 * The backing of a store in etcd: the machine of proto/store/backing.h with a client of etcd, one
 * watch over all keys, and the lease of its session.
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
#include "proto/store/adds.h"
#include "proto/store/backing.h"
#include "proto/store/cache.h"
#include "service/store/store.h"

struct mu_gateway_etcd;

struct mu_gateway_events {
    /** Operations may have ended or got changes on this turn: all their callbacks have come. */
    void (*turn_ended)(void *context);
    /** Keys that the other server wants back, as they came. False: they can be given back at once;
     * true: mu_gateway_hold_give_back() follows. May be NULL, as the next one. */
    bool (*recalled)(void *context, struct mu_span payload);
    /** What is held may be lent on from now on; or, with a status, never. */
    void (*lends)(void *context, int status);
    void *context;
};

/* One client of a gateway: a connection of PyTorch's wire, or a native session. Zeroes to begin
 * with. Only gateway_server.c looks at it. */
struct mu_gateway_client {
    bool in_order;                 /* answers must come in order */
    bool single;                   /* one of PyTorch's, which does one thing after another */
    size_t pending;                /* operations under way that later ones must not overtake */
    struct mu_gateway_op *resting; /* one of these that was not sent, because it shares a call */
};

/* Begin with zeros; set the request and the callbacks. The memory is the caller's, as in
 * proto/store/backing.h. */
struct mu_gateway_op {
    struct mu_backing_op base;
    /** The operation has ended; on a later turn. Everything may be called inside. */
    void (*done)(struct mu_gateway_op *op);
    /** watch: a change, lent. The op may be cancelled inside. `gap`: changes were missed, and no
     * more come; `change` is NULL. */
    void (*change)(struct mu_gateway_op *op, const struct mu_change *change, bool gap);
    /** watch: all changes from now on will be reported; does not come if the watch was up already
     * when the op was submitted (mu_gateway_etcd_watches). May be NULL. It must not cancel
     * others. */
    void (*stands)(struct mu_gateway_op *op);
    /** When the client stops waiting; 0: never. Only gateway_server.c uses it.
     */
    mu_mono_t deadline;
    /** Whose it is; NULL: nobody's. Only gateway_server.c uses it. Until it has ended, or
     * mu_gateway_disown(). */
    struct mu_gateway_client *client;
    /** The payload of a fetch, which is then sent in the place of the request; the answer is one
     * value, the payload of what was found, or none, if all of it is in memory. Only
     * gateway_server.c uses it. */
    struct mu_span fetch;
    /* Private to gateway_server.c from here. */
    struct mu_store_op remote;
    struct mu_cache_ask ask;
    struct mu_add add;
    struct mu_list hit; /* answered on the next turn, from memory; or it is `behind` a client */
    const struct mu_gateway_client *behind; /* that is about to pop what this has waited for */
    bool pends;                             /* counted in client->pending */
    struct mu_gateway_server *gateway;
    struct mu_gateway_probe *probe;
    bool counted;
    bool canceled;
};

/** Checks the URL of a backing. MUSTER_EURL with a text. */
int mu_gateway_etcd_check(const char *url, struct mu_errmsg *reterr_msg);
/**
 * Does not connect yet. MUSTER_EURL with a text (it is not an etcd:// URL, or not for v3),
 * MUSTER_ENOMEM.
 */
int mu_gateway_etcd_new(struct mu_env *env, const char *url, const struct mu_gateway_events *events,
                        struct mu_gateway_etcd **ret_gateway, struct mu_errmsg *reterr_msg);
/**
 * No operation may be left but those in transactions, which end with MUSTER_ECLOSED. With `drop`
 * all keys are deleted (tried for two seconds). Ends the session in etcd, then calls `closed`, on a
 * later turn, and is gone.
 */
void mu_gateway_etcd_close(struct mu_gateway_etcd *backing, bool drop,
                           void (*closed)(void *context), void *context);

void mu_gateway_etcd_submit(struct mu_gateway_etcd *backing, struct mu_backing_client *client,
                            struct mu_gateway_op *op);
/** As mu_backing_cancel(): true if the op is the caller's again; else `done` follows. */
bool mu_gateway_etcd_cancel(struct mu_gateway_etcd *backing, struct mu_gateway_op *op);
/** Whether the watch over all keys is up. */
bool mu_gateway_etcd_watches(const struct mu_gateway_etcd *backing);
/** Reports the present keys to a watch that has just been submitted. Its callback may cancel the
 * op. */
void mu_gateway_etcd_tell_current(struct mu_gateway_etcd *backing, struct mu_gateway_op *op);
/** Whether nothing is under way but waits and watches. */
bool mu_gateway_etcd_idle(const struct mu_gateway_etcd *backing);
const struct mu_backing *mu_gateway_etcd_machine(const struct mu_gateway_etcd *backing);

#endif
