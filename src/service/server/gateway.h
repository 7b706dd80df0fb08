/*
 * The backing of a server that does not keep its keys itself: etcd (gateway_etcd.h), or another
 * server (gateway_server.c), for which this one is a gateway. gateway_serve.c turns requests of
 * both wires into operations of this.
 *
 *     mu_gateway_new(env, "tcp://HOST:PORT", &events, &gateway, &msg);
 *     op->done = on_done; mu_gateway_submit(gateway, &client, op);
 *
 * Another server is reached over one native session, whatever the number of clients; an operation
 * that blocks there is one call. While it cannot be reached, operations wait, and go on when it is
 * back; if it stays away, they end with an error that names it, and the gateway tries again to
 * reach it.
 */
#ifndef MU_SERVER_GATEWAY_H
#define MU_SERVER_GATEWAY_H

#include "service/server/gateway_etcd.h"

struct mu_gateway;

/* How a gateway introduces itself to the other server. */
#define MU_GATEWAY_NAME "gateway"

struct mu_gateway_kind {
    /** The backing is another server: keys are as on the wire, and it handles deadlines and
     * leases. */
    bool remote;
    void (*submit)(struct mu_gateway *k, struct mu_backing_client *client,
                   struct mu_gateway_op *op);
    bool (*cancel)(struct mu_gateway *k, struct mu_gateway_op *op);
    bool (*watches)(const struct mu_gateway *k);
    void (*tell_current)(struct mu_gateway *k, struct mu_gateway_op *op);
    bool (*idle)(const struct mu_gateway *k);
    void (*close)(struct mu_gateway *k, bool drop, void (*closed)(void *context), void *context);
    void (*drop)(struct mu_gateway *k);
};

struct mu_gateway {
    const struct mu_gateway_kind *kind;
};

/**
 * Checks the URL of a backing: etcd://HOST,HOST/PREFIX?..., or tcp://HOST[:PORT], then perhaps
 * ?connect=MS&hold=no&via=HOST:PORT,.... MS is how long the first connection may take (300 s); with
 * hold=no every operation is a call of its own; `via` names relays (wire/carry.h). MUSTER_EURL with
 * a text.
 */
int mu_gateway_check(const char *url, struct mu_errmsg *reterr_msg);
/** Does not wait for the backing. MUSTER_EURL with a text, MUSTER_ENOMEM. */
int mu_gateway_new(struct mu_env *env, const char *url, const struct mu_gateway_events *events,
                   struct mu_gateway **ret_gateway, struct mu_errmsg *reterr_msg);

/*
 * These work as their namesakes in gateway_etcd.h. With another server, all operations take effect
 * in the order in which they are submitted, and end in that order, except those that block.
 */
static inline void mu_gateway_submit(struct mu_gateway *k, struct mu_backing_client *client,
                                     struct mu_gateway_op *op)
{
    k->kind->submit(k, client, op);
}

static inline bool mu_gateway_cancel(struct mu_gateway *k, struct mu_gateway_op *op)
{
    return k->kind->cancel(k, op);
}

static inline bool mu_gateway_watches(const struct mu_gateway *k)
{
    return k->kind->watches(k);
}

static inline void mu_gateway_tell_current(struct mu_gateway *k, struct mu_gateway_op *op)
{
    k->kind->tell_current(k, op);
}

static inline bool mu_gateway_idle(const struct mu_gateway *k)
{
    return k->kind->idle(k);
}

/** `drop` deletes the keys in etcd; those of another server stay. */
static inline void mu_gateway_close(struct mu_gateway *k, bool drop, void (*closed)(void *context),
                                    void *context)
{
    k->kind->close(k, drop, closed, context);
}

/** Instead of closing, on the turn that made the gateway, before anything was submitted. */
static inline void mu_gateway_drop(struct mu_gateway *k)
{
    k->kind->drop(k);
}

/** Whether the operation waits in this process, for a call that it shares: its deadline is ours to
 * keep. It has one key. */
static inline bool mu_gateway_rests(const struct mu_gateway_op *op)
{
    return op->ask.flight != NULL || op->behind != NULL;
}
/** The client of an operation that goes on is about to be gone. */
void mu_gateway_disown(struct mu_gateway_op *op);

/** What it holds of another server's keys; NULL: it is not a gateway to one. */
struct mu_gateway_hold *mu_gateway_hold(struct mu_gateway *k);

/** Where the other server is; NULL: it is not one. */
const struct mu_addr *mu_gateway_addr(const struct mu_gateway *k);
/** The backing in etcd; NULL where it is another server. */
const struct mu_gateway_etcd *mu_gateway_etcd(const struct mu_gateway *k);

/* gateway_server.c */
int mu_gateway_server_check(const char *url, struct mu_errmsg *reterr_msg);
int mu_gateway_server_new(struct mu_env *env, const char *url,
                          const struct mu_gateway_events *events, struct mu_gateway **ret_gateway,
                          struct mu_errmsg *reterr_msg);

#endif
