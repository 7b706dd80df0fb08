/*
 * The DHT as a service, on the loop's thread: a node (proto/dht/node.h) on an environment, over
 * calls that something else carries (service/base/unary.h). docs/dht.md says what it is for.
 *
 *     mu_dht_service_start(env, &config, &service, &msg);
 *     mu_dht_service_join(service, &wish, peers, count);
 *     mu_dht_service_store(service, &wish, puts, count);
 *     mu_dht_service_get(service, &wish, keys, count, latest);
 *     mu_dht_service_stop(service);        `stopped` follows; then mu_dht_service_free()
 *
 * A wish is embedded in its owner's memory, from the function that takes it until its `done`, which
 * comes exactly once and on a later turn.
 */
#ifndef MU_DHT_SERVICE_H
#define MU_DHT_SERVICE_H

#include "core/env.h"
#include "core/err.h"
#include "proto/dht/node.h"
#include "service/base/unary.h"

struct mu_dht_service;

struct mu_dht_service_config {
    struct mu_dht_config dht; /* `self.peer` is ours; the service draws node id and seed */
    struct mu_unary *unary;   /* borrowed */
    /** The last callback. */
    void (*stopped)(void *context);
    void *context;
};

struct mu_dht_wish {
    /** The operation has ended; it is lent for the call. Its status is MUSTER_ECLOSED when the
     * service stops. */
    void (*done)(struct mu_dht_wish *wish, const struct mu_dht_op *op);
    /* private from here */
    struct mu_dht_op *op;
    struct mu_dht_service *service;
};

/** MUSTER_EEXIST: these methods are served already; MUSTER_ENOMEM. */
int mu_dht_service_start(struct mu_env *env, const struct mu_dht_service_config *config,
                         struct mu_dht_service **ret, struct mu_errmsg *reterr_msg);
void mu_dht_service_stop(struct mu_dht_service *s);
void mu_dht_service_free(struct mu_dht_service *s);

/** Errors as those of mu_dht_bootstrap(), mu_dht_store() and mu_dht_get(); `done` will not come. */
int mu_dht_service_join(struct mu_dht_service *s, struct mu_dht_wish *wish,
                        const struct mu_peer_id *peers, size_t count);
int mu_dht_service_store(struct mu_dht_service *s, struct mu_dht_wish *wish,
                         const struct mu_dht_put *puts, size_t count);
int mu_dht_service_get(struct mu_dht_service *s, struct mu_dht_wish *wish,
                       const struct mu_dht_id *keys, size_t count, bool latest);
/** `done` comes with MUSTER_ECANCELED. Harmless when the wish is done. */
void mu_dht_service_cancel(struct mu_dht_wish *wish);

/** The time by which records live: seconds since 1970. */
double mu_dht_service_time(const struct mu_dht_service *s);
/** For statistics and tests. */
struct mu_dht *mu_dht_service_node(struct mu_dht_service *s);

#endif
