/*
 * The locked environment. It stands on another one and does all that that one does, except that
 * connections from and to other hosts must pass the job's lock (proto/lock/lock.h):
 *
 *     mu_lock_env_new(env, &policy, &lock);
 *     mu_tls_env_new(mu_lock_env_wire(lock), &credential, &tls, &msg);     with a credential
 *     mu_tls_env_on_refused(tls, mu_lock_env_refused, lock);
 *     mu_tls_env_on_shown(tls, mu_lock_env_shown, lock);
 *     mu_lock_env_seal(lock, mu_tls_env_env(tls));
 *     ... mu_lock_env_env(lock) ...                                        for all the rest
 *     mu_lock_env_free(lock), mu_tls_env_free(tls)
 *
 * listen beyond loopback fails with MUSTER_ELOCKED where no rule lets anybody in; errors of the
 * environment below about the address come first. A connection is judged by its address and its
 * first byte before its listener hears of it. A client that must show the credential does so by
 * TLS, which the layer on the wire speaks; a client that is refused never reaches `accept`. A
 * connection from another host that stays silent is dropped after MU_LOCK_SPEAK_MS: as in all our
 * protocols, the end that dials speaks first. One from loopback goes to its listener then.
 * mu_env_trust() marks the clients that are let in for PyTorch's protocol
 * alone.
 *
 * Strangers are cheap, and cannot keep others out. No TLS state is made before a hello is whole,
 * which may take MU_LOCK_HELLO_MS at most. Then the connection waits for its turn: each turn of the
 * loop begins one handshake, and the addresses take turns. A handshake is 0.2 ms of arithmetic with
 * a token, 0.3 ms with a certificate of P-256 and 0.5 ms with one of RSA-2048: less than a thread
 * would be worth, and the other connections wait no longer than for one of them. The number of
 * guests is bounded, in all and for one address (service/lock/guests.h says which one has to go); a
 * guest that has to go learns so by an alert, and may come again.
 *
 * The log names every refused client and the reason: LOCK-REFUSED, at most a line a second, and one
 * a minute for an address and a reason; `more` counts those that got no line.
 *
 * dial beyond loopback speaks TLS if there is a credential, and plain otherwise: the server
 * decides. Loopback costs nothing: without a credential its connections are those of the
 * environment below.
 */
#ifndef MU_LOCK_ENV_H
#define MU_LOCK_ENV_H

#include <muster/log.h>

#include "core/env.h"
#include "proto/lock/lock.h"
#include "service/lock/guests.h"

/* A client that has connected must send something within this time, */
#define MU_LOCK_SPEAK_MS 10000
/* and one that has begun TLS must have sent its hello within this. */
#define MU_LOCK_HELLO_MS 5000
/* How many connections may be silent at a time; past that, the newest is turned away. Those of
 * other hosts are bounded more tightly. */
#define MU_LOCK_SILENT_MAX 16384

/*
 * Bounds on guests: connections that have not shown a credential yet. A guest costs some 5 KiB,
 * most of it the kernel's, and its hello at most 4: 36 MiB for all. A thousand workers behind a
 * gateway may share one address. A handshake under way costs 45 KiB: 45 MiB for all; the bound for
 * one address is small since its other guests wait.
 */
#define MU_LOCK_GUESTS             4096
#define MU_LOCK_GUESTS_OF_ADDRESS  1024
#define MU_LOCK_SHAKING            1024
#define MU_LOCK_SHAKING_OF_ADDRESS 64

struct mu_lock_env;

/** `env` is borrowed; the ranges of the policy are copied, `sealed` is set by mu_lock_env_seal().
 * MUSTER_ENOMEM. */
int mu_lock_env_new(struct mu_env *env, const struct mu_lock_policy *policy,
                    struct mu_lock_env **ret);
/** Sets other bounds than those above. Before anything listens. */
void mu_lock_env_limit(struct mu_lock_env *lock, const struct mu_lock_limits *limits);
/** The environment on which the layer that secures connections stands. */
struct mu_env *mu_lock_env_wire(struct mu_lock_env *lock);
/** Sets that layer. Before anything listens or dials. */
void mu_lock_env_seal(struct mu_lock_env *lock, struct mu_env *sealed);
struct mu_env *mu_lock_env_env(struct mu_lock_env *lock);
const struct mu_lock_policy *mu_lock_env_policy(const struct mu_lock_env *lock);
/** Logs that the layer that secures connections has refused a client. `lock` is a mu_lock_env. */
void mu_lock_env_refused(void *lock, const char *peer, const char *why);
/** That layer reports that the client on this connection of the wire has shown the credential. */
void mu_lock_env_shown(void *lock, struct mu_conn *wire);
/** Logs a line about the credential. */
void mu_lock_env_say(enum muster_log_level level, const char *id, const char *text);
/** Whether nothing of the lock is still closing: a listener that was refused takes another turn. */
bool mu_lock_env_idle(const struct mu_lock_env *lock);
/** Only when the lock is idle, after the last callback of its connections and listeners. NULL is
 * fine. */
void mu_lock_env_free(struct mu_lock_env *lock);

#endif
