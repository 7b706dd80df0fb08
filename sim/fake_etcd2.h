/*
 * etcd's v2 API for scenarios: the model of etcd2_model.h behind the simulated HTTP, at several
 * members that all have the same keys. A member can be down; requests may time out, done or not.
 * Keys end by true time.
 */
#ifndef MU_FAKE_ETCD2_H
#define MU_FAKE_ETCD2_H

#include "etcd2_model.h"
#include "sim.h"

#define FAKE_ETCD2_PORT    2379
#define FAKE_ETCD2_MEMBERS 3

struct fake_etcd2;

/** Creates members on hosts of these names. `timeout_ppm` of the requests time out. */
struct fake_etcd2 *fake_etcd2_new(struct mu_sim *sim, const char *const *hosts, size_t count,
                                  uint32_t timeout_ppm);
void fake_etcd2_free(struct fake_etcd2 *etcd);
void fake_etcd2_down(struct fake_etcd2 *etcd, size_t member, bool down);
/** A planted bug: it swaps without comparing. */
void fake_etcd2_careless(struct fake_etcd2 *etcd);
/** From now on no request times out. */
void fake_etcd2_heal(struct fake_etcd2 *etcd);
const struct etcd2_model *fake_etcd2_model(const struct fake_etcd2 *etcd);

#endif
