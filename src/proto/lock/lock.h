/*
 * The lock: who may listen where, and who of those that connect is let in. Only decisions; the
 * environment that carries them out is service/lock/env.h.
 *
 * Loopback is open, everything else is locked. Beyond loopback a peer shows the job's credential by
 * completing TLS with it, or it is held off, with two exceptions that must be asked for: `insecure`
 * lets everybody in, and from the ranges of `allow` PyTorch's plain protocol is taken, which has no
 * place for a credential.
 */
#ifndef MU_LOCK_H
#define MU_LOCK_H

#include "codec/text/cidr.h"
#include "core/addr.h"
#include "core/err.h"

/* What TLS begins with, and the native wire: nothing of PyTorch's begins with either. */
#define MU_LOCK_FIRST_TLS    0x16
#define MU_LOCK_FIRST_NATIVE 'M'

struct mu_lock_policy {
    bool sealed;   /* there is a credential, so TLS can be spoken */
    bool insecure; /* everybody is let in */
    const struct mu_cidr *allow;
    size_t allow_count;
};

enum mu_lock_verdict {
    MU_LOCK_OPEN = 1, /* plain, and trusted as it is */
    MU_LOCK_SEALED,   /* it begins TLS; who completes it has shown the credential */
    MU_LOCK_PLAIN,    /* plain and not trusted: PyTorch's protocol is served, a native greeting is
                      answered with a refusal in words */
    MU_LOCK_SHUT,     /* closed without a word */
};

/** Whether the peer of an environment's text ("10.0.0.7:4711", "[::1]:80", "unix:...") is a process
 * of this host. What cannot be read is not. */
bool mu_lock_peer_is_near(const char *peer);
/** Its address in numbers. False: it has none. */
bool mu_lock_peer_ip(const char *peer, uint8_t ret_ip[MU_IP_LEN]);
/** Whether it is in one of the ranges from which plain connections are taken. */
bool mu_lock_peer_is_allowed(const struct mu_lock_policy *policy, const char *peer);

/** MUSTER_ELOCKED in words: the address is reachable from other hosts, and nothing was said of who
 * may come in. */
int mu_lock_listen(const struct mu_lock_policy *policy, const struct mu_addr *addr,
                   struct mu_errmsg *reterr_msg);

/** By its address and the first byte it sent. */
enum mu_lock_verdict mu_lock_judge(const struct mu_lock_policy *policy, const char *peer,
                                   uint8_t first);

/** How an address may be dialled by one who would speak plain, as PyTorch's protocol must. */
enum mu_lock_plain {
    MU_LOCK_PLAIN_YES = 1,
    MU_LOCK_PLAIN_IF_ALLOWED, /* a name: once it is connected, the peer's address decides */
    MU_LOCK_PLAIN_NO,
};
enum mu_lock_plain mu_lock_dial_plain(const struct mu_lock_policy *policy,
                                      const struct mu_addr *addr);

#endif
