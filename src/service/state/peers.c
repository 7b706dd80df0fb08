#include "service/state/peers.h"

#include <stdio.h>
#include <string.h>

#include "codec/text/cidr.h"
#include "codec/peer/multiaddr.h"
#include "core/alloc.h"
#include "service/base/log.h"
#include "service/peer/autonat.h"
#include "service/peer/env.h"
#include "service/peer/relay.h"

#define VIA_MS 20000 /* for the first relay to lead here */

struct mu_state_peers {
    struct mu_env *below;
    struct mu_peer_host *host;
    struct mu_peer_env *env;
    struct mu_peer_relay *relay;
    struct mu_peer_autonat *autonat;
    size_t asked;   /* relays, */
    size_t refused; /* and refusals */
    struct mu_timer timer;
    struct mu_errmsg why; /* of the last refusal */
    void (*placed)(void *context, int status, const char *text);
    void *waiter;
    bool unreached; /* a peer tried to dial us, and could not */
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

/* --- being reached ---------------------------------------------------------------------------- */

static void tell_placed(struct mu_state_peers *p, int status)
{
    void (*placed)(void *context, int status, const char *text) = p->placed;

    p->placed = NULL;
    mu_env_timer_arm(p->below, &p->timer, MU_MONO_NEVER);
    if (placed != NULL) {
        placed(p->waiter, status, p->why.text);
    }
}

static void on_relayed(void *context)
{
    struct mu_state_peers *p = context;

    if (mu_peer_relay_addr(p->relay, 0).len != 0) {
        tell_placed(p, 0);
    }
}

static void on_refused(void *context, const struct mu_peer_id *at, const char *why)
{
    struct mu_state_peers *p = context;
    char id[MU_PEER_ID_TEXT_MAX];

    (void)mu_err(&p->why, MUSTER_ECONN, "the relay %s does not lead here: %s",
                 mu_peer_id_format(at, id), why);
    if (++p->refused >= p->asked) {
        tell_placed(p, MUSTER_ECONN);
    }
}

static void on_timer(struct mu_timer *timer)
{
    tell_placed(MU_CONTAINER_OF(timer, struct mu_state_peers, timer), MUSTER_ECONN);
}

static void on_dialled_back(void *context, const struct mu_peer_id *by, bool reached,
                            const char *text)
{
    struct mu_state_peers *p = context;
    struct mu_span at = mu_peer_host_addr(p->host, by, 0);
    char relay[MU_MULTIADDR_TEXT_MAX] = "MULTIADDR";
    char id[MU_PEER_ID_TEXT_MAX];

    (void)mu_peer_id_format(by, id);
    if (mu_peer_host_speaks(p->host, by, MU_RELAY_HOP_NAME) && at.len != 0) {
        size_t len = strlen(mu_multiaddr_format(at, relay, sizeof(relay)));

        (void)snprintf(relay + len, sizeof(relay) - len, "/p2p/%s", id);
    }
    if (reached && p->unreached) {
        mu_log(MUSTER_LOG_INFO, "SWARM-REACHABLE", "peer=%s", id);
    } else if (!reached && !p->unreached && mu_peer_relay_addr(p->relay, 0).len == 0) {
        mu_log(MUSTER_LOG_WARN, "SWARM-UNREACHABLE",
               "peer=%s why=\"%s\", so others cannot load from here: open the port to them, or let "
               "a relay lead them here with --via %s",
               id, text, relay);
    }
    p->unreached = p->unreached || !reached;
}

int mu_state_peers_via(struct mu_state_peers *p, const char *multiaddr,
                       struct mu_errmsg *reterr_msg)
{
    int err = mu_peer_relay_reserve(p->relay, multiaddr, reterr_msg);

    err = err != 0 ? err : mu_state_peers_allow(p, multiaddr, reterr_msg);
    p->asked += err == 0 ? 1 : 0;
    return err;
}

void mu_state_peers_await(struct mu_state_peers *p,
                          void (*placed)(void *context, int status, const char *text),
                          void *context)
{
    p->placed = placed;
    p->waiter = context;
    (void)mu_err(&p->why, MUSTER_ECONN, "no relay answered within %d s", VIA_MS / 1000);
    mu_env_timer_arm(p->below, &p->timer, mu_mono_add_ms(mu_env_now(p->below).mono, VIA_MS));
}

/* --- life ------------------------------------------------------------------------------------- */

/* Relays of others lead us to their peers in any case. */
static int start_services(struct mu_state_peers *p, bool minds, struct mu_errmsg *reterr_msg)
{
    struct mu_peer_relay_config relay = mu_peer_relay_config_defaults();
    struct mu_peer_autonat_config autonat = {.told = minds ? on_dialled_back : NULL, .context = p};
    int err;

    relay.changed = on_relayed;
    relay.refused = on_refused;
    relay.context = p;
    err = mu_peer_relay_start(p->host, &relay, &p->relay, reterr_msg);
    if (err == 0 && (mu_peer_autonat_start(p->host, &autonat, &p->autonat) != 0 ||
                     mu_peer_env_new(p->host, &p->env) != 0)) {
        err = mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    return err;
}

static void stop_services(struct mu_state_peers *p)
{
    mu_env_timer_arm(p->below, &p->timer, MU_MONO_NEVER);
    mu_peer_autonat_free(p->autonat);
    mu_peer_relay_free(p->relay);
    mu_peer_host_stop(p->host); /* on_stopped() frees the rest */
}

int mu_state_peers_start(struct mu_env *env, const struct mu_identity *identity, bool closed,
                         bool minds, struct mu_state_peers **ret, struct mu_errmsg *reterr_msg)
{
    struct mu_peer_host_config config = mu_peer_host_config_defaults();
    struct mu_state_peers *p = mu_calloc(1, sizeof(*p));
    int err;

    if (p == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    p->below = env;
    mu_timer_init(&p->timer, on_timer);
    config.identity = identity;
    config.private_swarm = closed;
    config.stopped = on_stopped;
    config.context = p;
    err = mu_peer_host_start(env, &config, &p->host, reterr_msg);
    if (err != 0) {
        mu_free(p);
        return err;
    }
    err = start_services(p, minds, reterr_msg);
    if (err != 0) {
        stop_services(p);
        return err;
    }
    *ret = p;
    return 0;
}

static int allow(struct mu_state_peers *p, const struct mu_peer_id *peer,
                 struct mu_errmsg *reterr_msg)
{
    return mu_peer_host_allow(p->host, peer) == 0
               ? 0
               : mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
}

int mu_state_peers_allow(struct mu_state_peers *p, const char *text, struct mu_errmsg *reterr_msg)
{
    struct mu_span rest;
    struct mu_multiaddr_part part;
    struct mu_peer_id peer;
    struct mu_buf addr;
    int err;

    if (text[0] != '/') {
        err = mu_peer_id_parse(&peer, text, reterr_msg);
        return err != 0 ? err : allow(p, &peer, reterr_msg);
    }
    mu_buf_init(&addr, MU_MULTIADDR_MAX);
    err = mu_multiaddr_parse(&addr, text, reterr_msg);
    rest = mu_buf_span(&addr);
    while (err == 0 && mu_multiaddr_next(&rest, &part) == 1) {
        if (part.code == MU_MA_P2P && mu_peer_id_from_bytes(&peer, part.value) == 0) {
            err = allow(p, &peer, reterr_msg);
        }
    }
    mu_buf_fini(&addr);
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

void mu_state_peers_add_number(struct mu_state_peers *p, const char *ip)
{
    (void)mu_peer_host_add_number(p->host, ip);
}

const char *mu_state_peers_why(const struct mu_state_peers *p, const struct mu_peer_id *peer)
{
    return mu_peer_host_why(p->host, peer);
}

struct mu_env *mu_state_peers_env(struct mu_state_peers *p)
{
    return mu_peer_env_env(p->env);
}

struct mu_peer_host *mu_state_peers_host(struct mu_state_peers *p)
{
    return p->host;
}

int mu_state_peers_advertise(struct mu_state_peers *p, const char *host,
                             struct mu_errmsg *reterr_msg)
{
    struct mu_addr addr = {0};
    char text[MU_MULTIADDR_TEXT_MAX];
    struct mu_buf bytes;
    int err;

    if (host[0] == '/') {
        return mu_peer_host_announce(p->host, host, reterr_msg);
    }
    (void)mu_multiaddr_dial(mu_peer_host_listening(p->host, 0), &addr, NULL);
    (void)snprintf(addr.host, sizeof(addr.host), "%s", host);
    mu_buf_init(&bytes, MU_MULTIADDR_MAX);
    err = mu_multiaddr_from(&bytes, &addr, reterr_msg);
    err = err != 0
              ? err
              : mu_peer_host_announce(p->host,
                                      mu_multiaddr_format(mu_buf_span(&bytes), text, sizeof(text)),
                                      reterr_msg);
    mu_buf_fini(&bytes);
    return err;
}

void mu_state_peers_address(struct mu_state_peers *p, size_t i, char *text, size_t cap)
{
    struct mu_span addr = mu_peer_host_announced(p->host, i);
    struct mu_peer_id named = {0};
    struct mu_addr unused;
    char id[MU_PEER_ID_TEXT_MAX];
    size_t len;

    text[0] = '\0';
    if (addr.len == 0) {
        return;
    }
    (void)mu_multiaddr_dial(addr, &unused, &named);
    len = strlen(mu_multiaddr_format(addr, text, cap));
    if (named.len == 0) {
        (void)snprintf(text + len, cap - len, "/p2p/%s",
                       mu_peer_id_format(mu_peer_host_id(p->host), id));
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
    if (err == 0 && ((mu_multiaddr_dial(mu_buf_span(&addr), &below, &peer) != 0 &&
                      mu_multiaddr_circuit(mu_buf_span(&addr), NULL, NULL, &peer) != 0) ||
                     peer.len == 0)) {
        err =
            mu_err(reterr_msg, MUSTER_EURL, "%.190s names no peer; it must end with /p2p/ID", text);
    }
    if (err == 0 && mu_peer_host_add_addr(p->host, &peer, mu_buf_span(&addr)) != 0) {
        err = mu_err(reterr_msg, MUSTER_EURL, "%.190s cannot be dialled", text);
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
    stop_services(p);
}
