/*
 * A handler's stream that says again what it hears, in the memory of the process that serves it. It
 * is the first member of what a scenario keeps of such a stream.
 */
#ifndef SCENARIOS_PEER_ECHO_H
#define SCENARIOS_PEER_ECHO_H

#include "core/buf.h"
#include "service/peer_host.h"

struct peer_echo {
    struct mu_host_stream stream;
    struct mu_buf held;
    size_t *serving; /* one more, while it lasts */
    /** What has come, before it is said again. May be NULL. */
    void (*heard)(struct peer_echo *echo, struct mu_span bytes);
};

/** Of `size` bytes, all zero behind the echo. NULL: no memory. It goes with its stream. */
struct peer_echo *peer_echo_new(size_t size, size_t *serving);

#endif
