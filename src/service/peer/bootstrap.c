#include "service/peer/bootstrap.h"

#include <muster/error.h>

enum {
    DELAY_MS_FIRST = 1000,
    DELAY_MS_MAX = 30000,
};

static void try_it(struct mu_peer_bootstrap *b)
{
    /* Another peer may be there by now: only a peer id in the address says which one it must be. */
    b->connect.peer.len = 0;
    b->connect.addr = mu_buf_span(&b->addr);
    mu_peer_host_connect(b->host, &b->connect);
}

static void try_later(struct mu_peer_bootstrap *b)
{
    struct mu_env *env = mu_peer_host_env(b->host);

    mu_env_timer_arm(env, &b->timer, mu_mono_add_ms(mu_env_now(env).mono, b->delay_ms));
    b->delay_ms = b->delay_ms < DELAY_MS_MAX / 2 ? b->delay_ms * 2 : DELAY_MS_MAX;
}

static void let_go(struct mu_peer_bootstrap *b)
{
    if (b->kept) {
        b->kept = false;
        (void)mu_peer_host_keep(b->host, &b->peer, false);
    }
}

static void miss(struct mu_peer_bootstrap *b, int status, const char *text)
{
    bool tell = !b->missed;

    b->missed = true;
    try_later(b);
    if (tell && b->told != NULL) {
        b->told(b, status, text);
    }
}

static void on_done(struct mu_peer_connect *connect, int status, const char *text)
{
    struct mu_peer_bootstrap *b = MU_CONTAINER_OF(connect, struct mu_peer_bootstrap, connect);

    if (status != 0) {
        miss(b, status, text);
        return;
    }
    if (!mu_peer_host_connected(b->host, &connect->peer)) {
        miss(b, MUSTER_ECLOSED, "the peer disconnected at once");
        return;
    }
    let_go(b); /* of the peer that was there before */
    b->peer = connect->peer;
    b->kept = mu_peer_host_keep(b->host, &b->peer, true) == 0;
    b->met = true;
    b->missed = false;
    b->delay_ms = DELAY_MS_FIRST;
    if (b->told != NULL) {
        b->told(b, 0, "");
    }
}

static void on_disconnected(struct mu_peer_watch *watch, const struct mu_peer_id *peer, int why)
{
    struct mu_peer_bootstrap *b = MU_CONTAINER_OF(watch, struct mu_peer_bootstrap, watch);

    if (b->met && mu_peer_id_eq(peer, &b->peer)) {
        b->met = false;
        miss(b, why != 0 ? why : MUSTER_ECLOSED, "the connection was lost");
    }
}

static void on_timer(struct mu_timer *timer)
{
    try_it(MU_CONTAINER_OF(timer, struct mu_peer_bootstrap, timer));
}

int mu_peer_bootstrap_start(struct mu_peer_host *host, struct mu_peer_bootstrap *b,
                            struct mu_span addr)
{
    int err;

    *b = (struct mu_peer_bootstrap){.told = b->told, .delay_ms = DELAY_MS_FIRST};
    mu_buf_init(&b->addr, MU_MULTIADDR_MAX);
    err = mu_buf_append(&b->addr, addr);
    if (err != 0) {
        return err;
    }
    b->host = host;
    b->connect.done = on_done;
    b->watch.disconnected = on_disconnected;
    mu_timer_init(&b->timer, on_timer);
    mu_peer_host_watch(host, &b->watch);
    try_it(b);
    return 0;
}

void mu_peer_bootstrap_stop(struct mu_peer_bootstrap *b)
{
    if (b->host == NULL) {
        return;
    }
    mu_peer_host_connect_cancel(&b->connect);
    mu_peer_host_unwatch(&b->watch);
    mu_env_timer_arm(mu_peer_host_env(b->host), &b->timer, MU_MONO_NEVER);
    let_go(b);
    mu_buf_fini(&b->addr);
    b->met = false;
    b->host = NULL;
}
