#include "proto/lock/lock.h"

#include <string.h>

/* The first byte of a connection: a TLS record with a handshake, or the native magic. PyTorch's
 * opcodes end at 18. */

/* Takes the host out of "host:port" or "[host]:port". */
bool mu_lock_peer_ip(const char *peer, uint8_t ret_ip[MU_IP_LEN])
{
    const char *end = strrchr(peer, ':');

    if (peer[0] == '[') {
        peer++;
        end = strchr(peer, ']');
    }
    return end != NULL && mu_ip_parse(mu_span(peer, (size_t)(end - peer)), ret_ip);
}

static bool is_allowed(const struct mu_lock_policy *policy, const uint8_t ip[MU_IP_LEN])
{
    for (size_t i = 0; i < policy->allow_count; i++) {
        if (mu_cidr_has(&policy->allow[i], ip)) {
            return true;
        }
    }
    return false;
}

bool mu_lock_peer_is_near(const char *peer)
{
    uint8_t ip[MU_IP_LEN];

    return strncmp(peer, "unix:", 5) == 0 || (mu_lock_peer_ip(peer, ip) && mu_ip_is_loopback(ip));
}

bool mu_lock_peer_is_allowed(const struct mu_lock_policy *policy, const char *peer)
{
    uint8_t ip[MU_IP_LEN];

    return mu_lock_peer_ip(peer, ip) && is_allowed(policy, ip);
}

int mu_lock_listen(const struct mu_lock_policy *policy, const struct mu_addr *addr,
                   struct mu_errmsg *reterr_msg)
{
    if (policy->sealed || policy->insecure || policy->allow_count != 0 ||
        mu_addr_is_loopback(addr)) {
        return 0;
    }
    return mu_err(reterr_msg, MUSTER_ELOCKED,
                  "other hosts can reach it, and the job has no credential: run `muster keygen "
                  "token FILE` and give every node --token-file FILE, or --allow CIDR (PyTorch "
                  "only) or --insecure");
}

enum mu_lock_verdict mu_lock_judge(const struct mu_lock_policy *policy, const char *peer,
                                   uint8_t first)
{
    if (first == MU_LOCK_FIRST_TLS && policy->sealed) {
        return MU_LOCK_SEALED;
    }
    if (policy->insecure || mu_lock_peer_is_near(peer)) {
        return MU_LOCK_OPEN;
    }
    if (first == MU_LOCK_FIRST_NATIVE || mu_lock_peer_is_allowed(policy, peer)) {
        return MU_LOCK_PLAIN;
    }
    return MU_LOCK_SHUT;
}

enum mu_lock_plain mu_lock_dial_plain(const struct mu_lock_policy *policy,
                                      const struct mu_addr *addr)
{
    uint8_t ip[MU_IP_LEN];

    if (!policy->sealed || policy->insecure || mu_addr_is_loopback(addr)) {
        return MU_LOCK_PLAIN_YES;
    }
    if (mu_ip_parse(mu_span_str(addr->host), ip)) {
        return is_allowed(policy, ip) ? MU_LOCK_PLAIN_YES : MU_LOCK_PLAIN_NO;
    }
    return policy->allow_count != 0 ? MU_LOCK_PLAIN_IF_ALLOWED : MU_LOCK_PLAIN_NO;
}
