/*
 * A peer through whom others are found: it is connected to, and stays so. One that is not up yet,
 * or goes, is tried again, after a second first and then after twice as long each time, up to half
 * a minute.
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
    /** It was reached (0), or could not be, or was lost; once for each change. `text` is lent. */
    void (*told)(struct mu_peer_bootstrap *b, int status, const char *text);
    /* To be read. */
    struct mu_peer_id peer; /* once it was reached */
    bool met;               /* it is connected */
    /* private from here */
    struct mu_peer_host *host;
    struct mu_peer_connect connect;
    struct mu_peer_watch watch;
    struct mu_timer timer;
    struct mu_buf addr;
    uint32_t delay_ms; /* before the next try */
    bool missed;       /* that it could not be reached is told */
    bool kept;
};

/** `addr` is a multiaddr; with a peer in it that one is meant, else whoever is there.
 * MUSTER_ENOMEM: nothing was begun. */
int mu_peer_bootstrap_start(struct mu_peer_host *host, struct mu_peer_bootstrap *b,
                            struct mu_span addr);
/** Nothing comes any more; a connection that is there stays until it is idle. Harmless for one that
 * is all zero, and twice. */
void mu_peer_bootstrap_stop(struct mu_peer_bootstrap *b);

#endif
