/*
 * The locked environment: it stands on another one and does all that that one does, except that
 * connections from and to other hosts are held to the job's lock (proto/lock/lock.h):
 *
 *     mu_lock_env_new(env, &policy, &lock);
 *     mu_tls_env_new(mu_lock_env_wire(lock), &credential, &tls, &msg);     with a credential
 *     mu_tls_env_on_refused(tls, mu_lock_env_refused, lock);
 *     mu_tls_env_on_shown(tls, mu_lock_env_shown, lock);
 *     mu_lock_env_seal(lock, mu_tls_env_env(tls));
 *     ... mu_lock_env_env(lock) ...                                        to whoever needs one
 *     mu_lock_env_free(lock), mu_tls_env_free(tls)
 *
 * listen beyond loopback fails with MUSTER_ELOCKED where nothing says who may come in; what the
 * environment below has to say of the address comes first. Whoever connects is judged by its
 * address and its first byte before its listener hears of it: who has to show the credential does
 * so by TLS, which the layer on the wire speaks; who is not let in never reaches `accept`. So a
 * peer that says nothing is nobody: it is dropped after MU_LOCK_SPEAK_MS. It is
 * always the one that dials who speaks first, as in all our protocols.
 * mu_env_trust() tells those apart who are let in for PyTorch's protocol alone.
 *
 * Strangers are cheap, and cannot keep others out. Nothing of TLS is made before a hello is whole,
 * which takes MU_LOCK_HELLO_MS at most. Then it waits for its turn: one handshake begins in a turn
 * of the loop, of each address in its order. That is 0.2 ms of arithmetic with a token, 0.3 ms with
 * a certificate of P-256 and 0.5 ms with one of RSA-2048: less than a thread would be worth, and
 * the other connections wait no longer than for one of them. The guests are bounded, in all and for
 * one address (service/lock/guests.h says who has to go); it learns so by an alert, and
 * may come again.
 *
 * Who is refused is named in the log, with the reason: LOCK-REFUSED, at most a line in a second,
 * and one for an address and a reason in a minute; `more` counts those who got no line.
 *
 * dial beyond loopback speaks TLS if there is a credential, and else plain: the server decides.
 * Loopback costs nothing: without a credential its connections are those of the environment below.
 */
#ifndef MU_LOCK_ENV_H
#define MU_LOCK_ENV_H

#include <muster/log.h>

#include "core/env.h"
#include "proto/lock/lock.h"
#include "service/lock/guests.h"

/* A peer that has connected says something within this time, */
#define MU_LOCK_SPEAK_MS 10000
/* and one that has begun TLS has said its hello within this. */
#define MU_LOCK_HELLO_MS 5000
/* So many may be silent at a time; past that, the newest is turned away. Others than processes of
 * this host are bounded more tightly. */
#define MU_LOCK_SILENT_MAX 16384

/*
 * Of those who have not shown who they are. A guest costs some 5 KiB, most of it the kernel's, and
 * its hello at most 4: 36 MiB for all. One address may be that of a thousand workers behind a
 * gateway. A handshake under way costs 45 KiB: 45 MiB for all; the bound of an address is small
 * since its others wait.
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
/** Other bounds than those above. Before anything listens. */
void mu_lock_env_limit(struct mu_lock_env *lock, const struct mu_lock_limits *limits);
/** What the layer that secures connections stands on. */
struct mu_env *mu_lock_env_wire(struct mu_lock_env *lock);
/** That layer. Before anything listens or dials. */
void mu_lock_env_seal(struct mu_lock_env *lock, struct mu_env *sealed);
struct mu_env *mu_lock_env_env(struct mu_lock_env *lock);
const struct mu_lock_policy *mu_lock_env_policy(const struct mu_lock_env *lock);
/** A line for the log: the layer that secures connections has refused somebody. `lock` is one. */
void mu_lock_env_refused(void *lock, const char *peer, const char *why);
/** That layer says that who is on this connection of the wire has shown the credential. */
void mu_lock_env_shown(void *lock, struct mu_conn *wire);
/** Lines for the log: what there is to say of the credential. */
void mu_lock_env_say(enum muster_log_level level, const char *id, const char *text);
/** Whether nothing of it is about to be closed: a listener that was refused takes another turn. */
bool mu_lock_env_idle(const struct mu_lock_env *lock);
/** When it is idle. After the last callback of its connections and listeners. NULL is fine. */
void mu_lock_env_free(struct mu_lock_env *lock);

#endif
