/*
 * Peers and relays in the simulator, on tests/lib/peer_rig.h: node 0 is a relay; the others cannot
 * be dialled, and reach each other through it.
 */
#ifndef RELAY_RIG_H
#define RELAY_RIG_H

#include "peer_rig.h"
#include "service/peer/relay.h"

struct relay_rig {
    struct rig base;
    struct mu_peer_relay_config config[RIG_NODES];
    struct mu_peer_relay *relay[RIG_NODES];
    size_t changes[RIG_NODES];
};

struct relay_rig_at {
    struct relay_rig *r;
    size_t i;
    size_t to;
    size_t through;
    int err;
};

static void relay_rig_changed(void *context)
{
    (*(size_t *)context)++;
}

/* Where a node is, or would be; with `circuit`, who is reached through it. */
static inline void relay_rig_addr(const struct relay_rig *r, size_t i, bool circuit, char *text,
                                  size_t cap)
{
    char id[MU_PEER_ID_TEXT_MAX];

    (void)snprintf(text, cap, "/dns/%s/tcp/%d/p2p/%s%s", r->base.node[i].name, RIG_PORT,
                   mu_peer_id_format(&r->base.node[i].identity.id, id),
                   circuit ? "/p2p-circuit" : "");
}

static void relay_rig_start(void *arg)
{
    struct relay_rig_at *at = arg;
    struct mu_errmsg msg;

    assert_int_equal(mu_peer_relay_start(at->r->base.node[at->i].host, &at->r->config[at->i],
                                         &at->r->relay[at->i], &msg),
                     0);
}

static void relay_rig_free(void *arg)
{
    struct relay_rig_at *at = arg;

    mu_peer_relay_free(at->r->relay[at->i]);
    at->r->relay[at->i] = NULL;
}

static void relay_rig_reserve_inside(void *arg)
{
    struct relay_rig_at *at = arg;
    struct mu_errmsg msg;
    char text[256];

    relay_rig_addr(at->r, at->to, false, text, sizeof(text));
    at->err = mu_peer_relay_reserve(at->r->relay[at->i], text, &msg);
}

/* Node `i` asks for a place at node `at`. */
static inline void relay_rig_reserve(struct relay_rig *r, size_t i, size_t at)
{
    struct relay_rig_at a = {.r = r, .i = i, .to = at};

    mu_sim_call(r->base.node[i].proc, relay_rig_reserve_inside, &a);
    assert_int_equal(a.err, 0);
}

static void relay_rig_learn_inside(void *arg)
{
    struct relay_rig_at *at = arg;
    struct mu_buf addr;
    struct mu_errmsg msg;
    char text[400];

    relay_rig_addr(at->r, at->through, true, text, sizeof(text));
    mu_buf_init(&addr, MU_MULTIADDR_MAX);
    assert_int_equal(mu_multiaddr_parse(&addr, text, &msg), 0);
    assert_int_equal(mu_peer_host_add_addr(at->r->base.node[at->i].host,
                                           &at->r->base.node[at->to].identity.id,
                                           mu_buf_span(&addr)),
                     0);
    mu_buf_fini(&addr);
}

/* Node `i` learns that `to` is reached through `through`. */
static inline void relay_rig_learn(struct relay_rig *r, size_t i, size_t to, size_t through)
{
    struct relay_rig_at at = {.r = r, .i = i, .to = to, .through = through};

    mu_sim_call(r->base.node[i].proc, relay_rig_learn_inside, &at);
}

/* Configs may be changed between this and relay_rig_run_all(). */
static inline void relay_rig_open(struct relay_rig *r, size_t count,
                                  const struct mu_sim_faults *faults)
{
    memset(r, 0, sizeof(*r));
    rig_open(&r->base, count, faults);
    for (size_t i = 0; i < count; i++) {
        r->base.node[i].listens = i == 0;
        r->config[i] = mu_peer_relay_config_defaults();
        r->config[i].hop = i == 0;
        r->config[i].changed = relay_rig_changed;
        r->config[i].context = &r->changes[i];
    }
}

static inline void relay_rig_run_all(struct relay_rig *r)
{
    rig_run_all(&r->base);
    for (size_t i = 0; i < r->base.count; i++) {
        struct relay_rig_at at = {.r = r, .i = i};

        mu_sim_call(r->base.node[i].proc, relay_rig_start, &at);
    }
}

static inline void relay_rig_leave(struct relay_rig *r, size_t i)
{
    struct relay_rig_at at = {.r = r, .i = i};

    if (r->relay[i] != NULL) {
        mu_sim_call(r->base.node[i].proc, relay_rig_free, &at);
    }
}

static inline void relay_rig_close(struct relay_rig *r)
{
    for (size_t i = 0; i < r->base.count; i++) {
        relay_rig_leave(r, i);
    }
    rig_close(&r->base);
}

static inline struct mu_peer_relay_stats relay_rig_stats(const struct relay_rig *r, size_t i)
{
    struct mu_peer_relay_stats stats;

    mu_peer_relay_stats(r->relay[i], &stats);
    return stats;
}

#endif
