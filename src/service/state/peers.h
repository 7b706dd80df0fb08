/*
 * States between peers: a peer host, and the environment made of its connections, for donors and
 * loaders whose addresses are multiaddrs. On the loop's thread.
 *
 *     mu_state_peers_start(env, key, false, true, &peers, &msg);
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

/** Makes an identity from the bytes of a key file, or, if there are none, a new one. MUSTER_EINVAL,
 * MUSTER_ENOMEM. */
int mu_state_key(struct mu_env *env, struct mu_span file, struct mu_identity *ret,
                 struct mu_errmsg *reterr_msg);

/** The identity is borrowed. With `closed`, only peers of mu_state_peers_allow() are let in. With
 * `minds`, the log says if others cannot dial us (SWARM-UNREACHABLE). MUSTER_ENOMEM. */
int mu_state_peers_start(struct mu_env *env, const struct mu_identity *identity, bool closed,
                         bool minds, struct mu_state_peers **ret, struct mu_errmsg *reterr_msg);
/** Adds an IP address of this host, for listening everywhere. */
void mu_state_peers_add_number(struct mu_state_peers *p, const char *ip);
/** Why the last dial to a peer failed: see mu_peer_host_why(). */
const char *mu_state_peers_why(const struct mu_state_peers *p, const struct mu_peer_id *peer);
/** Allows a peer, by its id or a multiaddr with one in it, and a relay on the way to it.
 * MUSTER_EINVAL, MUSTER_EURL, MUSTER_ENOMEM. */
int mu_state_peers_allow(struct mu_state_peers *p, const char *text, struct mu_errmsg *reterr_msg);
/** Whether an address, "HOST:PORT" or a multiaddr, is numeric and of another host: only such
 * addresses are taken from a donor. A name could be any host's, and would be looked up here. */
bool mu_state_addr_is_elsewhere(const char *text);
/** Whether other hosts can reach us when we listen at this multiaddr. One that cannot be parsed
 * counts as reachable. */
bool mu_state_peers_is_far(const char *multiaddr);
/** Asks for a place at a relay, through which others reach us, and keeps it. Errors as
 * mu_peer_relay_reserve(). */
int mu_state_peers_via(struct mu_state_peers *p, const char *multiaddr,
                       struct mu_errmsg *reterr_msg);
/** After all mu_state_peers_via(): calls `placed` once, with 0 as soon as one of the relays leads
 * here, or with MUSTER_ECONN and a text when all of them have refused, or did not answer in
 * time. */
void mu_state_peers_await(struct mu_state_peers *p,
                          void (*placed)(void *context, int status, const char *text),
                          void *context);
/** Errors as mu_peer_host_listen(). */
int mu_state_peers_listen(struct mu_state_peers *p, const char *multiaddr,
                          struct mu_errmsg *reterr_msg);
struct mu_env *mu_state_peers_env(struct mu_state_peers *p);
struct mu_peer_host *mu_state_peers_host(struct mu_state_peers *p);
/** Announces a host, by name or number, or a multiaddr, in place of the address at which we listen.
 * Errors as mu_peer_host_announce(). */
int mu_state_peers_advertise(struct mu_state_peers *p, const char *host,
                             struct mu_errmsg *reterr_msg);
/** Writes address number `i` that others can dial: a multiaddr with our id in it, terminated; ""
 * after the last. */
void mu_state_peers_address(struct mu_state_peers *p, size_t i, char *text, size_t cap);
/** Finds what to dial for a multiaddr with a peer's id in it; without an address ("/p2p/ID") the
 * host has to know the peer's address, or to find it. MUSTER_EURL, MUSTER_ENOMEM. */
int mu_state_peers_resolve(struct mu_state_peers *p, const char *text, struct mu_addr *ret,
                           struct mu_errmsg *reterr_msg);
/** Ends the host; it is freed when `stopped` is called. Not from inside a callback of its
 * connections. */
void mu_state_peers_stop(struct mu_state_peers *p, void (*stopped)(void *context), void *context);

#endif
