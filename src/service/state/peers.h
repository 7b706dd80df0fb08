/*
 * The download of states between peers: a host of peers, and the environment that it makes of its
 * connections, for donors and loaders that are given multiaddrs. On the loop's thread.
 *
 *     mu_state_peers_start(env, key, &peers, &msg);
 *     mu_state_peers_listen(peers, "/ip4/0.0.0.0/tcp/0", &msg);
 *     ... a donor or a loader in mu_state_peers_env(), with mu_state_peers_resolve() ...
 *     mu_state_peers_stop(peers, stopped, context);     when these are freed
 */
#ifndef MU_STATE_PEERS_H
#define MU_STATE_PEERS_H

#include "core/env.h"
#include "core/err.h"
#include "crypto/identity.h"
#include "service/peer/host.h"

struct mu_state_peers;

/** An identity from the bytes of a key file, or, if there are none, one of its own. MUSTER_EINVAL,
 * MUSTER_ENOMEM. */
int mu_state_key(struct mu_env *env, struct mu_span file, struct mu_identity *ret,
                 struct mu_errmsg *reterr_msg);

/** The identity is borrowed. With `closed`, none but those of mu_state_peers_allow() are spoken to.
 * MUSTER_ENOMEM. */
int mu_state_peers_start(struct mu_env *env, const struct mu_identity *identity, bool closed,
                         struct mu_state_peers **ret, struct mu_errmsg *reterr_msg);
/** A peer's id, or a multiaddr with one in it. MUSTER_EINVAL, MUSTER_EURL, MUSTER_ENOMEM. */
int mu_state_peers_allow(struct mu_state_peers *p, const char *text, struct mu_errmsg *reterr_msg);
/** Whether an address, "HOST:PORT" or a multiaddr, is in numbers and of another host: what a donor
 * may tell of. A name could be any host's, and is looked up here. */
bool mu_state_addr_is_elsewhere(const char *text);
/** Whether other hosts reach a multiaddr that is listened at. What cannot be read is reached. */
bool mu_state_peers_is_far(const char *multiaddr);
/** Errors as mu_peer_host_listen(). */
int mu_state_peers_listen(struct mu_state_peers *p, const char *multiaddr,
                          struct mu_errmsg *reterr_msg);
struct mu_env *mu_state_peers_env(struct mu_state_peers *p);
struct mu_peer_host *mu_state_peers_host(struct mu_state_peers *p);
/** Where others find us: a multiaddr with our id in it, terminated; "" if we listen nowhere. */
void mu_state_peers_address(struct mu_state_peers *p, char *text, size_t cap);
/** What to dial for a multiaddr with a peer's id in it; without an address ("/p2p/ID") the host has
 * to know where that is, or to find out. MUSTER_EURL, MUSTER_ENOMEM. */
int mu_state_peers_resolve(struct mu_state_peers *p, const char *text, struct mu_addr *ret,
                           struct mu_errmsg *reterr_msg);
/** Ends it; it is freed when `stopped` is called. Not from inside a callback of its connections. */
void mu_state_peers_stop(struct mu_state_peers *p, void (*stopped)(void *context), void *context);

#endif
