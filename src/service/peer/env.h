/*
 * An environment whose connections are streams between peers: encrypted, to a peer that has proved
 * its id, over any path. It stands on the environment of a peer host and does all that that one
 * does, except that it dials and listens only with peer ids for addresses ("peer:12D3KooW..."). The
 * native wire runs over it unchanged, and with it the RPC agent.
 */
#ifndef MU_PEER_ENV_H
#define MU_PEER_ENV_H

#include "core/env.h"
#include "service/peer/host.h"

#define MU_PEER_WIRE_NAME "/muster/rpc/1.0.0" /* the native wire, on a stream */

struct mu_peer_env;

/** The host is borrowed. MUSTER_ENOMEM. */
int mu_peer_env_new(struct mu_peer_host *host, struct mu_peer_env **ret);
/** After the last callback of its connections and listeners, and not inside it; before
 * mu_peer_host_stop(). Bytes that were not sent yet are dropped. NULL is fine. */
void mu_peer_env_free(struct mu_peer_env *peers);
struct mu_env *mu_peer_env_env(struct mu_peer_env *peers);

#endif
