/*
 * What peers in scenarios exchange: a call is a stream that sends a number of bytes, ends, and gets
 * them back; an echo is the handler's side of it, in the memory of the process that serves it. Each
 * is the first member of a scenario's own struct.
 */
#ifndef SCENARIOS_PEER_TALK_H
#define SCENARIOS_PEER_TALK_H

#include "core/buf.h"
#include "service/peer/host.h"
#include "sim.h"

struct peer_echo {
    struct mu_host_stream stream;
    struct mu_buf held;
    size_t *serving; /* counts one more while it lasts */
    /** Called with what has come before it is sent back. May be NULL. */
    void (*heard)(struct peer_echo *echo, struct mu_span bytes);
};

/** Makes a struct of `size` bytes, zeroed after the echo. NULL: no memory. It is freed with its
 * stream. */
struct peer_echo *peer_echo_new(size_t size, size_t *serving);

/* An echo that differs from what was sent fails the run, and so does a successful end of a call
 * without all of it. */
struct peer_call {
    struct mu_host_stream stream;
    struct mu_timer timer;
    struct mu_sim *sim;
    struct mu_env *env;
    mu_mono_t give_up_at; /* MU_MONO_NEVER: never */
    uint32_t bytes, sent, got;
    uint8_t (*byte_at)(const struct peer_call *call, uint32_t at);
    /** Called once, and frees the call. `text` NULL: it was given up. */
    void (*ended)(struct peer_call *call, int status, const char *text);
};

/** Starts a call whose members are set, except the stream and the timer. */
void peer_call_make(struct peer_call *call, struct mu_peer_host *host, const struct mu_peer_id *to,
                    const struct mu_span *name);

/**
 * The simulator cannot free libcrypto's memory: frees what a host holds of it that was killed, or
 * that has stopped because the run has failed.
 */
void peer_host_release_crypto(struct mu_peer_host *host);

#endif
