/*
 * A peer through which we find others: we connect to it, and stay connected. If it is not up yet,
 * or goes, we try again, first after a second and then after twice as long each time, up to half a
 * minute.
 *
 *     b->told = ...;                              may be NULL
 *     mu_peer_bootstrap_start(host, b, addr)
 *     mu_peer_bootstrap_stop(b)                   before mu_peer_host_stop()
 */
#ifndef MU_PEER_BOOTSTRAP_H
#define MU_PEER_BOOTSTRAP_H

#include "core/buf.h"
#include "service/peer/host.h"

/* Embedded in its owner's memory. */
struct mu_peer_bootstrap {
    /* The owner's. */
    /** The peer was reached (0), could not be reached, or was lost; once for each change. `text` is
     * lent. */
    void (*told)(struct mu_peer_bootstrap *b, int status, const char *text);
    /* Read-only. */
    struct mu_peer_id peer; /* set once it was reached */
    bool met;               /* it is connected */
    /* private from here */
    struct mu_peer_host *host;
    struct mu_peer_connect connect;
    struct mu_peer_watch watch;
    struct mu_timer timer;
    struct mu_buf addr;
    uint32_t delay_ms; /* before the next try */
    bool missed;       /* the failure to reach it was reported */
    bool kept;
};

/** `addr` is a multiaddr. If it names a peer, that peer must be there; else any peer will do.
 * MUSTER_ENOMEM: nothing was begun. */
int mu_peer_bootstrap_start(struct mu_peer_host *host, struct mu_peer_bootstrap *b,
                            struct mu_span addr);
/** No callback comes any more; a connection that is there stays until it is idle. Harmless for a
 * struct that is all zero, and when called twice. */
void mu_peer_bootstrap_stop(struct mu_peer_bootstrap *b);

#endif
