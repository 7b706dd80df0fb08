/*
 * The lock: where a process may listen, and which connections are let in. It only decides; the
 * environment that carries the decisions out is service/lock/env.h.
 *
 * Loopback is open, everything else is locked. Beyond loopback, the other end must show the job's
 * credential by completing TLS with it, with two exceptions that must be asked for: `insecure` lets
 * everyone in, and PyTorch's plain protocol, which has no place for a credential, is accepted from
 * the ranges of `allow`.
 */
#ifndef MU_LOCK_H
#define MU_LOCK_H

#include "codec/text/cidr.h"
#include "core/addr.h"
#include "core/err.h"

/* The bytes that TLS and the native wire begin with. Nothing of PyTorch's begins with either. */
#define MU_LOCK_FIRST_TLS    0x16
#define MU_LOCK_FIRST_NATIVE 'M'

struct mu_lock_policy {
    bool sealed;   /* there is a credential, so TLS can be used */
    bool insecure; /* everyone is let in */
    const struct mu_cidr *allow;
    size_t allow_count;
};

enum mu_lock_verdict {
    MU_LOCK_OPEN = 1, /* plain, and trusted as it is */
    MU_LOCK_SEALED,   /* it begins TLS; completing it shows the credential */
    MU_LOCK_PLAIN,    /* plain and not trusted: PyTorch's protocol is served, a native greeting is
                         refused with a message */
    MU_LOCK_SHUT,     /* closed without a message */
};

/** Returns whether an address in the environment's text form ("10.0.0.7:4711", "[::1]:80",
 * "unix:...") is a process of this host. An address that cannot be read is not. */
bool mu_lock_peer_is_near(const char *peer);
/** Parses its numeric address. False: it has no numeric address. */
bool mu_lock_peer_ip(const char *peer, uint8_t ret_ip[MU_IP_LEN]);
/** Returns whether it is in one of the ranges from which plain connections are accepted. */
bool mu_lock_peer_is_allowed(const struct mu_lock_policy *policy, const char *peer);

/** Returns MUSTER_ELOCKED, with a message, if other hosts can reach the address and nothing says
 * which may connect. */
int mu_lock_listen(const struct mu_lock_policy *policy, const struct mu_addr *addr,
                   struct mu_errmsg *reterr_msg);

/** Decides by the other end's address and the first byte that it sent. */
enum mu_lock_verdict mu_lock_judge(const struct mu_lock_policy *policy, const char *peer,
                                   uint8_t first);

/** How an address may be dialled in plain, as PyTorch's protocol must. */
enum mu_lock_plain {
    MU_LOCK_PLAIN_YES = 1,
    MU_LOCK_PLAIN_IF_ALLOWED, /* a name: the address of the established connection decides */
    MU_LOCK_PLAIN_NO,
};
enum mu_lock_plain mu_lock_dial_plain(const struct mu_lock_policy *policy,
                                      const struct mu_addr *addr);

#endif
