/*
 * A handler that sends back what it is sent, with as much in hand as the window allows: for
 * commands, measurements and tests.
 */
#ifndef MU_PEER_ECHO_H
#define MU_PEER_ECHO_H

#include "service/peer_host.h"

#define MU_PEER_ECHO_NAME "/muster/echo/1.0.0"

struct mu_peer_echo {
    struct mu_peer_handler handler;
    uint64_t streams; /* open now */
    uint64_t served;  /* ever */
    uint64_t bytes;
};

/** To be served: mu_peer_host_serve(h, &echo->handler). It outlives its streams. */
void mu_peer_echo_init(struct mu_peer_echo *echo, const char *name);

#endif
