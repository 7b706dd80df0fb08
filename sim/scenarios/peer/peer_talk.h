/*
 * What scenarios of peers say to each other: a call is a stream that says so many bytes, ends, and
 * hears them again; an echo is the handler's side of it, in the memory of the process that serves
 * it. Each is the first member of what a scenario keeps of it.
 */
#ifndef SCENARIOS_PEER_TALK_H
#define SCENARIOS_PEER_TALK_H

#include "core/buf.h"
#include "service/peer/host.h"
#include "sim.h"

struct peer_echo {
    struct mu_host_stream stream;
    struct mu_buf held;
    size_t *serving; /* one more, while it lasts */
    /** What has come, before it is said again. May be NULL. */
    void (*heard)(struct peer_echo *echo, struct mu_span bytes);
};

/** Of `size` bytes, all zero behind the echo. NULL: no memory. It goes with its stream. */
struct peer_echo *peer_echo_new(size_t size, size_t *serving);

/* Another echo than what was said is a failure of the run, and so is the end of a call that went
 * well without all of it. */
struct peer_call {
    struct mu_host_stream stream;
    struct mu_timer timer;
    struct mu_sim *sim;
    struct mu_env *env;
    mu_mono_t give_up_at; /* MU_MONO_NEVER: it is waited for */
    uint32_t bytes, sent, got;
    uint8_t (*byte_at)(const struct peer_call *call, uint32_t at);
    /** Once. `text` NULL: it was given up. Frees it. */
    void (*ended)(struct peer_call *call, int status, const char *text);
};

/** With its members set, all but the stream and the timer: from here on it is being made. */
void peer_call_make(struct peer_call *call, struct mu_peer_host *host, const struct mu_peer_id *to,
                    const struct mu_span *name);

/**
 * libcrypto's memory is not the simulator's to free: gives back what a host holds of it that was
 * killed, or that runs no more as the run has failed.
 */
void peer_host_release_crypto(struct mu_peer_host *host);

#endif
