/*
 * An environment whose connections are secure: it stands on another one and does all that that one
 * does, except that each connection, dialled or accepted, is TLS 1.3 with certificates on both
 * sides, or a token (service/lock/tls.h). Its users need not know.
 *
 * A dialled connection is open when the handshake is done. One that comes in is accepted when its
 * handshake is done; if that fails within five seconds, its listener never hears of it. A dialled
 * server without TLS hangs up, answers with something else, or says nothing: MUSTER_ENOTLS.
 *
 * When the other end hangs up without TLS's close_notify, its stream has ended all the same, since
 * that is what a dead process leaves behind: `eof` is called, and mu_env_why() says in it that the
 * end may have been cut off. After a close_notify it says nothing. The protocols above have
 * farewells of their own.
 */
#ifndef MU_TLS_ENV_H
#define MU_TLS_ENV_H

#include "core/env.h"
#include "service/lock/tls.h"

struct mu_tls_env;

/** `env` is borrowed. Errors as mu_tls_context_new(). */
int mu_tls_env_new(struct mu_env *env, const struct mu_tls_config *config, struct mu_tls_env **ret,
                   struct mu_errmsg *reterr_msg);
/** After the last callback of its connections and listeners. NULL is fine. */
void mu_tls_env_free(struct mu_tls_env *tls);
struct mu_env *mu_tls_env_env(struct mu_tls_env *tls);
/** What its connections share: the caller may renew it, or ask when its certificates end. */
struct mu_tls_context *mu_tls_env_context(struct mu_tls_env *tls);
/** Sets a callback before each handshake, which then begins with what the context has. */
void mu_tls_env_on_begin(struct mu_tls_env *tls, void (*begin)(void *context), void *context);
/** Sets a callback for when a client that was accepted on `wire`, the connection below, has shown
 * the credential: right before its listener hears of it. */
void mu_tls_env_on_shown(struct mu_tls_env *tls, void (*shown)(void *context, struct mu_conn *wire),
                         void *context);
/** Sets a callback for when an accepted connection fails in TLS, in its handshake for example; it
 * comes before the connection is closed. `peer` as mu_env_peer() has it; both are lent. */
void mu_tls_env_on_refused(struct mu_tls_env *tls,
                           void (*refused)(void *context, const char *peer, const char *why),
                           void *context);

#endif
