/*
 * Who keeps the keys of a server that does not keep them itself: etcd (backing.h), or another
 * server (remote.c), for which this one is a gateway. Requests of both wires become
 * operations of this; backed.c does that.
 *
 *     mu_keeper_new(env, "tcp://HOST:PORT", &events, &keeper, &msg);
 *     op->done = on_done; mu_keeper_submit(keeper, &client, op);
 *
 * Another server is reached over one native session, whatever the number of clients; what blocks
 * there is one call. While it cannot be reached operations wait, and go on when it is back; if it
 * stays away they end with an error that names it, and it is reached for again.
 */
#ifndef MU_STORE_KEEPER_H
#define MU_STORE_KEEPER_H

#include "service/server/backing.h"

struct mu_keeper;

struct mu_keeper_kind {
    /** Another server: keys are as on the wire, deadlines and leases are its own matter. */
    bool remote;
    void (*submit)(struct mu_keeper *k, struct mu_backed_client *client, struct mu_backing_op *op);
    bool (*cancel)(struct mu_keeper *k, struct mu_backing_op *op);
    bool (*watches)(const struct mu_keeper *k);
    void (*tell_current)(struct mu_keeper *k, struct mu_backing_op *op);
    bool (*idle)(const struct mu_keeper *k);
    void (*close)(struct mu_keeper *k, bool drop, void (*closed)(void *context), void *context);
    void (*drop)(struct mu_keeper *k);
};

struct mu_keeper {
    const struct mu_keeper_kind *kind;
};

/**
 * Whether a URL can be one: etcd://HOST,HOST/PREFIX?..., or tcp://HOST[:PORT][?connect=MS], where
 * MS is how long the first connection may take (300 s). MUSTER_EURL in words.
 */
int mu_keeper_check(const char *url, struct mu_errmsg *reterr_msg);
/** Waits for nobody. MUSTER_EURL in words, MUSTER_ENOMEM. */
int mu_keeper_new(struct mu_env *env, const char *url, const struct mu_backing_events *events,
                  struct mu_keeper **ret_keeper, struct mu_errmsg *reterr_msg);

/*
 * As their namesakes in backing.h. Of another server: what one client submits takes effect in
 * that order, as does all that is submitted, and is given back in it, but for what blocks.
 */
static inline void mu_keeper_submit(struct mu_keeper *k, struct mu_backed_client *client,
                                    struct mu_backing_op *op)
{
    k->kind->submit(k, client, op);
}

static inline bool mu_keeper_cancel(struct mu_keeper *k, struct mu_backing_op *op)
{
    return k->kind->cancel(k, op);
}

static inline bool mu_keeper_watches(const struct mu_keeper *k)
{
    return k->kind->watches(k);
}

static inline void mu_keeper_tell_current(struct mu_keeper *k, struct mu_backing_op *op)
{
    k->kind->tell_current(k, op);
}

static inline bool mu_keeper_idle(const struct mu_keeper *k)
{
    return k->kind->idle(k);
}

/** `drop` deletes keys in etcd; those of another server are that server's. */
static inline void mu_keeper_close(struct mu_keeper *k, bool drop, void (*closed)(void *context),
                                   void *context)
{
    k->kind->close(k, drop, closed, context);
}

/** In place of closing, on the turn that made it, before anything was submitted. */
static inline void mu_keeper_drop(struct mu_keeper *k)
{
    k->kind->drop(k);
}

/** What keeps them in etcd; NULL where that is another server. */
const struct mu_backing *mu_keeper_etcd(const struct mu_keeper *k);

/* remote.c */
int mu_remote_check(const char *url, struct mu_errmsg *reterr_msg);
int mu_remote_new(struct mu_env *env, const char *url, const struct mu_backing_events *events,
                  struct mu_keeper **ret_keeper, struct mu_errmsg *reterr_msg);

#endif
