/*
 * Who keeps the keys of a server that does not keep them itself: etcd (gateway_etcd.h), or another
 * server (gateway_server.c), for which this one is a gateway. Requests of both wires become
 * operations of this; gateway_serve.c does that.
 *
 *     mu_gateway_new(env, "tcp://HOST:PORT", &events, &gateway, &msg);
 *     op->done = on_done; mu_gateway_submit(gateway, &client, op);
 *
 * Another server is reached over one native session, whatever the number of clients; what blocks
 * there is one call. While it cannot be reached operations wait, and go on when it is back; if it
 * stays away they end with an error that names it, and it is reached for again.
 */
#ifndef MU_SERVER_GATEWAY_H
#define MU_SERVER_GATEWAY_H

#include "service/server/gateway_etcd.h"

struct mu_gateway;

struct mu_gateway_kind {
    /** Another server: keys are as on the wire, deadlines and leases are its own matter. */
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
 * Whether a URL can be one: etcd://HOST,HOST/PREFIX?..., or tcp://HOST[:PORT][?connect=MS], where
 * MS is how long the first connection may take (300 s). MUSTER_EURL in words.
 */
int mu_gateway_check(const char *url, struct mu_errmsg *reterr_msg);
/** Waits for nobody. MUSTER_EURL in words, MUSTER_ENOMEM. */
int mu_gateway_new(struct mu_env *env, const char *url, const struct mu_gateway_events *events,
                   struct mu_gateway **ret_gateway, struct mu_errmsg *reterr_msg);

/*
 * As their namesakes in gateway_etcd.h. Of another server: what one client submits takes effect in
 * that order, as does all that is submitted, and is given back in it, but for what blocks.
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

/** `drop` deletes keys in etcd; those of another server are that server's. */
static inline void mu_gateway_close(struct mu_gateway *k, bool drop, void (*closed)(void *context),
                                    void *context)
{
    k->kind->close(k, drop, closed, context);
}

/** In place of closing, on the turn that made it, before anything was submitted. */
static inline void mu_gateway_drop(struct mu_gateway *k)
{
    k->kind->drop(k);
}

/** What keeps them in etcd; NULL where that is another server. */
const struct mu_gateway_etcd *mu_gateway_etcd(const struct mu_gateway *k);

/* gateway_server.c */
int mu_gateway_server_check(const char *url, struct mu_errmsg *reterr_msg);
int mu_gateway_server_new(struct mu_env *env, const char *url,
                          const struct mu_gateway_events *events, struct mu_gateway **ret_gateway,
                          struct mu_errmsg *reterr_msg);

#endif
