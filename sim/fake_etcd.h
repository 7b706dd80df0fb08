/*
 * An etcd cluster for scenarios: one state, several members that speak the v3 gateway over the
 * simulated HTTP. A member can be down, or be cut off from the others: then it refuses requests
 * because it has no leader, or lets them time out (done or not), and its watches stop. Leases end
 * by true time. Nothing that was answered is ever lost.
 *
 * The whole history is kept, so that a test can compare what was told with what was.
 */
#ifndef MU_FAKE_ETCD_H
#define MU_FAKE_ETCD_H

#include "sim.h"

#define FAKE_ETCD_PORT    2379
#define FAKE_ETCD_MEMBERS 3

struct fake_etcd;

/* One change of the history. */
struct fake_etcd_event {
    int64_t revision;
    bool deleted;
    struct mu_span key;
    struct mu_span value;
    int64_t create_revision;
    int64_t version;
    int64_t lease;
    uint64_t at_ns;
    int64_t until; /* the revision of the next change to the key; 0: there is none */
};

/** Creates members on hosts of these names. */
struct fake_etcd *fake_etcd_new(struct mu_sim *sim, const char *const *hosts, size_t count);
void fake_etcd_free(struct fake_etcd *etcd);
void fake_etcd_down(struct fake_etcd *etcd, size_t member, bool down);
void fake_etcd_isolate(struct fake_etcd *etcd, size_t member, bool isolated);
/** Restores all members and their connections. */
void fake_etcd_mend(struct fake_etcd *etcd);
/**
 * Heals the cluster; then, unless only that is asked for, one member may go down or be cut off,
 * which a cluster of three survives, and the history may be compacted.
 */
void fake_etcd_trouble(struct fake_etcd *etcd, struct mu_prng *prng, bool mend_only);
/** Writes a key, as another client would. */
void fake_etcd_put(struct fake_etcd *etcd, const char *key);
/** Leases no longer end by themselves: a planted bug. */
void fake_etcd_immortal(struct fake_etcd *etcd);
/** Compacts the history before a revision. */
void fake_etcd_compact(struct fake_etcd *etcd, int64_t revision);
int64_t fake_etcd_revision(const struct fake_etcd *etcd);
int64_t fake_etcd_compacted(const struct fake_etcd *etcd);
/** Returns change number `i` from 0; false after the last. */
bool fake_etcd_event(const struct fake_etcd *etcd, size_t i, struct fake_etcd_event *ret);
/** Returns when a lease ended (by itself or revoked); 0: it has not ended. */
uint64_t fake_etcd_lease_end(const struct fake_etcd *etcd, int64_t lease);

#endif
