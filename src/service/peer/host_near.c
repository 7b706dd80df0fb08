/* A host of peers: which peers are on this host, or on its link. */
#include "codec/text/cidr.h"
#include "proto/lock/lock.h"
#include "service/peer/host_internal.h"

bool mu_host_conn_is_near(const struct mu_host_conn *c)
{
    struct mu_errmsg msg;
    struct mu_addr addr;
    uint8_t ip[MU_IP_LEN];
    char from[128];

    mu_env_peer(mu_host_conn_env(c), &c->base, from, sizeof(from));
    return mu_lock_peer_is_near(from) ||
           (mu_addr_parse(from, 0, &addr, &msg) == 0 && addr.kind == MU_ADDR_TCP &&
            mu_ip_parse(mu_span_str(addr.host), ip) && mu_ip_is_local(ip));
}

bool mu_peer_host_near(const struct mu_peer_host *h, const struct mu_peer_id *id)
{
    const struct mu_host_peer *peer = mu_host_peer_find(h, id);
    const struct mu_host_conn *best = peer == NULL ? NULL : mu_host_peer_best(peer);

    return best != NULL && mu_host_conn_is_near(best);
}
