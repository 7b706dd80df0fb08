/*
 * Handlers that send back what they receive, and hold as much as the window allows: for commands,
 * measurements and tests. One works on a bare stream, and two in hivemind's framing
 * (service/peer/call.h), a unary and a streaming one.
 */
#ifndef MU_PEER_ECHO_H
#define MU_PEER_ECHO_H

#include "service/peer/call.h"
#include "service/peer/host.h"

#define MU_PEER_ECHO_NAME   "/muster/echo/1.0.0"
#define MU_PEER_ECHO_UNARY  "muster::Echo.echo"
#define MU_PEER_ECHO_STREAM "muster::Echo.stream"

struct mu_peer_echo {
    struct mu_peer_handler handler;
    uint64_t streams; /* open now */
    uint64_t served;  /* so far */
    uint64_t bytes;
};

/** Prepares a handler for mu_peer_host_serve(h, &echo->handler). It must outlive its streams. */
void mu_peer_echo_init(struct mu_peer_echo *echo, const char *name);

struct mu_peer_echo_calls {
    struct mu_unary_handler unary;
    struct mu_peer_items_handler items;
    struct mu_peer_calls *calls;
    struct mu_list open; /* struct echo_items */
};

/** Serves both, until mu_peer_echo_calls_unserve(). MUSTER_EEXIST, MUSTER_ENOMEM: neither is
 * served. */
int mu_peer_echo_calls_serve(struct mu_peer_echo_calls *echo, struct mu_peer_calls *calls);
/** Calls under way are cut off. Before mu_peer_calls_free(). Harmless when it does not serve. */
void mu_peer_echo_calls_unserve(struct mu_peer_echo_calls *echo);

#endif
