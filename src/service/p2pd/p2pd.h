/*
 * A p2p daemon: programs on this machine that speak to peers through it, as hivemind's do through
 * libp2p's. It has an identity among peers (service/peer/host.h) and listens for clients
 * (proto/p2pd/conn.h); docs/p2pd.md has the protocol in words.
 *
 *     mu_p2pd_start(env, &config, &d, &msg);
 *     mu_peer_host_listen(mu_p2pd_host(d), "/ip4/127.0.0.1/tcp/0", &msg);   for peers
 *     mu_p2pd_bootstrap(d, "/ip4/…/p2p/…", &msg);                           if there are others
 *     mu_p2pd_listen(d, "/unix/tmp/p2pd.sock", &msg);                       for clients
 *     mu_p2pd_stop(d);                                                      `stopped` follows
 *
 * What clients are promised: requests on a connection are answered in order; calls each exactly
 * once; a connection that a stream was opened on is a pipe to it, both ways, which holds back whom
 * it must; a client that is gone takes its unary handlers, its calls and what it was asked with it,
 * and the peers that wait for those hear of it at once.
 *
 * Memory is bounded: `held_bytes_max` for messages from peers that are not whole yet or not taken,
 * a window for each stream, and a client that does not read, or sends faster than peers take it, is
 * not read from.
 */
#ifndef MU_P2PD_H
#define MU_P2PD_H

#include "core/env.h"
#include "core/err.h"
#include "crypto/identity.h"
#include "proto/p2pd/calls.h"
#include "service/peer/host.h"
#include "service/peer/relay.h"

struct mu_p2pd;

enum mu_p2pd_routing {
    MU_P2PD_ROUTING_OFF = 0, /* peers are found at addresses that are told */
    MU_P2PD_ROUTING_CLIENT,
    MU_P2PD_ROUTING_SERVER,
};

enum mu_p2pd_end {
    MU_P2PD_END_IDLE = 1, /* no client has stayed within `idle_ms` */
    MU_P2PD_END_LAST,     /* the last persistent connection is gone */
};

struct mu_p2pd_config {
    const struct mu_identity *identity; /* borrowed until it is freed */
    const char *agent;                  /* what peers are told. "muster-p2pd" */
    enum mu_p2pd_routing routing;
    size_t msg_len_max;        /* of a message, clients' and unary ones of peers. 4 MiB */
    uint32_t request_ms;       /* for requests that do not say. 60 s */
    uint32_t idle_ms;          /* until the first persistent connection. 0: for ever */
    uint32_t bootstrap_ms;     /* for the first of those to bootstrap from. 60 s */
    uint32_t rebootstrap_ms;   /* until those that were lost are sought again. 15 min */
    uint32_t linger_ms;        /* for the other side to end a stream that is done with. 5 s */
    uint32_t clients_max;      /* connections of theirs, and to them. 65,536 */
    uint32_t calls_max;        /* unary, under way, both ways. 65,536 */
    uint64_t held_bytes_max;   /* 512 MiB */
    uint64_t client_bytes_max; /* of calls of one client that peers have not taken. 256 MiB */
    const struct mu_peer_relay_config *relay; /* terms of relaying; NULL: none. Copied */
    bool autonat;                    /* dials peers back that ask whether they can be dialled */
    struct mu_peer_host_config host; /* terms of the host, but for identity, agent, stopped */
    /** There is nobody left to serve; the owner may stop it. May be NULL. */
    void (*ended)(void *context, enum mu_p2pd_end why);
    /** One of those to bootstrap from was reached (0), or none could be: exactly once after
     * mu_p2pd_bootstrap_begin(). */
    void (*bootstrapped)(void *context, int status, const char *text);
    /** The last callback. */
    void (*stopped)(void *context);
    void *context;
};

struct mu_p2pd_config mu_p2pd_config_defaults(void);

/** MUSTER_EINVAL, MUSTER_ENOMEM. */
int mu_p2pd_start(struct mu_env *env, const struct mu_p2pd_config *config, struct mu_p2pd **ret,
                  struct mu_errmsg *reterr_msg);
/** Everything ends; `stopped` follows. Twice is harmless. Not from a callback of the host's. */
void mu_p2pd_stop(struct mu_p2pd *d);
/** After `stopped`. */
void mu_p2pd_free(struct mu_p2pd *d);
struct mu_peer_host *mu_p2pd_host(struct mu_p2pd *d);
/** NULL: there is none. */
struct mu_peer_relay *mu_p2pd_relay(struct mu_p2pd *d);

/** Listens for clients at a multiaddr of TCP or a unix socket. Errors as mu_peer_host_listen(). */
int mu_p2pd_listen(struct mu_p2pd *d, const char *multiaddr, struct mu_errmsg *reterr_msg);
/** Address number `i` of those, with the port that was found; empty behind the last. */
struct mu_span mu_p2pd_listening(const struct mu_p2pd *d, size_t i);

/** One of those to bootstrap from, by its multiaddr. MUSTER_EINVAL, in words; MUSTER_ENOMEM. */
int mu_p2pd_bootstrap(struct mu_p2pd *d, const char *multiaddr, struct mu_errmsg *reterr_msg);
/** Dials them in any order, four at a time, and keeps up with them. */
void mu_p2pd_bootstrap_begin(struct mu_p2pd *d);

void mu_p2pd_stats(const struct mu_p2pd *d, struct mu_p2pd_stats *ret);

#endif
