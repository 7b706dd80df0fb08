#include "service/state/peers.h"

#include <stdio.h>
#include <string.h>

#include "codec/text/cidr.h"
#include "codec/peer/multiaddr.h"
#include "core/alloc.h"
#include "service/peer/env.h"

struct mu_state_peers {
    struct mu_env *below;
    struct mu_peer_host *host;
    struct mu_peer_env *env;
    void (*stopped)(void *context);
    void *context;
};

int mu_state_key(struct mu_env *env, struct mu_span file, struct mu_identity *ret,
                 struct mu_errmsg *reterr_msg)
{
    uint8_t seed[MU_IDENTITY_SEED_LEN];
    int err;

    if (file.len != 0) {
        return mu_identity_decode(ret, file, reterr_msg);
    }
    mu_env_entropy(env, seed, sizeof(seed));
    err = mu_identity_from_seed(ret, seed);
    explicit_bzero(seed, sizeof(seed));
    return err == 0 ? 0 : mu_err(reterr_msg, err, "cannot make a key: %s", muster_strerror(err));
}

static void on_stopped(void *context)
{
    struct mu_state_peers *p = context;
    void (*stopped)(void *context) = p->stopped;
    void *told = p->context;

    mu_peer_host_free(p->host);
    mu_free(p);
    if (stopped != NULL) {
        stopped(told);
    }
}

int mu_state_peers_start(struct mu_env *env, const struct mu_identity *identity, bool closed,
                         struct mu_state_peers **ret, struct mu_errmsg *reterr_msg)
{
    struct mu_peer_host_config config = mu_peer_host_config_defaults();
    struct mu_state_peers *p = mu_calloc(1, sizeof(*p));
    int err;

    if (p == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    p->below = env;
    config.identity = identity;
    config.private_swarm = closed;
    config.stopped = on_stopped;
    config.context = p;
    err = mu_peer_host_start(env, &config, &p->host, reterr_msg);
    if (err != 0) {
        mu_free(p);
        return err;
    }
    if (mu_peer_env_new(p->host, &p->env) != 0) {
        mu_peer_host_stop(p->host); /* it frees the rest */
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    *ret = p;
    return 0;
}

int mu_state_peers_allow(struct mu_state_peers *p, const char *text, struct mu_errmsg *reterr_msg)
{
    const char *id = text[0] == '/' ? strstr(text, "/p2p/") : NULL;
    struct mu_peer_id peer;
    int err = mu_peer_id_parse(&peer, id != NULL ? id + 5 : text, reterr_msg);

    if (err == 0 && mu_peer_host_allow(p->host, &peer) != 0) {
        err = mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    return err;
}

bool mu_state_addr_is_elsewhere(const char *text)
{
    struct mu_errmsg msg;
    struct mu_addr addr;
    uint8_t ip[MU_IP_LEN];
    struct mu_buf bytes;
    int err;

    mu_buf_init(&bytes, MU_MULTIADDR_MAX);
    err = text[0] != '/' ? mu_addr_parse(text, 0, &addr, &msg)
          : mu_multiaddr_parse(&bytes, text, &msg) != 0
              ? MUSTER_EURL
              : mu_multiaddr_dial(mu_buf_span(&bytes), &addr, NULL);
    mu_buf_fini(&bytes);
    return err == 0 && addr.kind == MU_ADDR_TCP && mu_ip_parse(mu_span_str(addr.host), ip) &&
           !mu_ip_is_local(ip);
}

bool mu_state_peers_is_far(const char *multiaddr)
{
    struct mu_errmsg msg;
    struct mu_addr addr;
    struct mu_buf bytes;
    bool near;

    mu_buf_init(&bytes, MU_MULTIADDR_MAX);
    near = mu_multiaddr_parse(&bytes, multiaddr, &msg) == 0 &&
           mu_multiaddr_dial(mu_buf_span(&bytes), &addr, NULL) == 0 && mu_addr_is_loopback(&addr);
    mu_buf_fini(&bytes);
    return !near;
}

int mu_state_peers_listen(struct mu_state_peers *p, const char *multiaddr,
                          struct mu_errmsg *reterr_msg)
{
    return mu_peer_host_listen(p->host, multiaddr, reterr_msg);
}

struct mu_env *mu_state_peers_env(struct mu_state_peers *p)
{
    return mu_peer_env_env(p->env);
}

struct mu_peer_host *mu_state_peers_host(struct mu_state_peers *p)
{
    return p->host;
}

void mu_state_peers_address(struct mu_state_peers *p, char *text, size_t cap)
{
    struct mu_span addr = mu_peer_host_announced(p->host, 0);
    char id[MU_PEER_ID_TEXT_MAX];
    char base[512];

    addr = addr.len != 0 ? addr : mu_peer_host_listening(p->host, 0);
    text[0] = '\0';
    if (addr.len != 0) {
        (void)mu_multiaddr_format(addr, base, sizeof(base));
        (void)snprintf(
            text, cap, "%.300s%s%s", base, strstr(base, "/p2p/") != NULL ? "" : "/p2p/",
            strstr(base, "/p2p/") != NULL ? "" : mu_peer_id_format(mu_peer_host_id(p->host), id));
    }
}

int mu_state_peers_resolve(struct mu_state_peers *p, const char *text, struct mu_addr *ret,
                           struct mu_errmsg *reterr_msg)
{
    struct mu_peer_id peer = {0};
    struct mu_addr below;
    char id[MU_PEER_ID_TEXT_MAX];
    struct mu_buf addr;
    int err;

    if (strncmp(text, "/p2p/", 5) == 0 && strchr(text + 5, '/') == NULL) {
        if (mu_peer_id_parse(&peer, text + 5, reterr_msg) != 0) {
            return MUSTER_EURL;
        }
        *ret = (struct mu_addr){.kind = MU_ADDR_PEER};
        (void)snprintf(ret->host, sizeof(ret->host), "%s", mu_peer_id_format(&peer, id));
        return 0;
    }
    mu_buf_init(&addr, MU_MULTIADDR_MAX);
    err = mu_multiaddr_parse(&addr, text, reterr_msg);
    if (err == 0 && (mu_multiaddr_dial(mu_buf_span(&addr), &below, &peer) != 0 || peer.len == 0)) {
        err =
            mu_err(reterr_msg, MUSTER_EURL, "%.120s names no peer; it must end with /p2p/ID", text);
    }
    if (err == 0 && mu_peer_host_add_addr(p->host, &peer, mu_buf_span(&addr)) != 0) {
        err = mu_err(reterr_msg, MUSTER_EURL, "%.120s cannot be dialled", text);
    }
    mu_buf_fini(&addr);
    if (err == 0) {
        *ret = (struct mu_addr){.kind = MU_ADDR_PEER};
        (void)snprintf(ret->host, sizeof(ret->host), "%s", mu_peer_id_format(&peer, id));
    }
    return err;
}

void mu_state_peers_stop(struct mu_state_peers *p, void (*stopped)(void *context), void *context)
{
    p->stopped = stopped;
    p->context = context;
    mu_peer_env_free(p->env);
    mu_peer_host_stop(p->host);
}
