/*
 * An etcd cluster for scenarios: one state, several members that speak the v3 gateway over the
 * simulated HTTP. A member can be down, or be cut off from the others: then it refuses requests for
 * want of a leader, or lets them time out (done or not), and its watches stand still. Leases end by
 * true time. Nothing is ever lost that was answered.
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

/** Members on hosts of these names. */
struct fake_etcd *fake_etcd_new(struct mu_sim *sim, const char *const *hosts, size_t count);
void fake_etcd_free(struct fake_etcd *etcd);
void fake_etcd_down(struct fake_etcd *etcd, size_t member, bool down);
void fake_etcd_isolate(struct fake_etcd *etcd, size_t member, bool isolated);
/** All members are back, and hear each other. */
void fake_etcd_mend(struct fake_etcd *etcd);
/**
 * Mends it; and then, unless that is to be all, one member may be away or cut off, which a cluster
 * of three can bear, and what has been may be forgotten.
 */
void fake_etcd_trouble(struct fake_etcd *etcd, struct mu_prng *prng, bool mend_only);
/** Somebody writes a key. */
void fake_etcd_put(struct fake_etcd *etcd, const char *key);
/** Leases end no more by themselves: a bug to plant. */
void fake_etcd_immortal(struct fake_etcd *etcd);
/** Forgets what was before a revision. */
void fake_etcd_compact(struct fake_etcd *etcd, int64_t revision);
int64_t fake_etcd_revision(const struct fake_etcd *etcd);
int64_t fake_etcd_compacted(const struct fake_etcd *etcd);
/** Change number `i` from 0; false behind the last. */
bool fake_etcd_event(const struct fake_etcd *etcd, size_t i, struct fake_etcd_event *ret);
/** When a lease ended (by itself or revoked); 0: it has not. */
uint64_t fake_etcd_lease_end(const struct fake_etcd *etcd, int64_t lease);

#endif
