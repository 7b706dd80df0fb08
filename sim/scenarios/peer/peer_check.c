/* What must hold of all connections, whatever the network does. */
#include "scenarios/peer/peer_world.h"

#include <inttypes.h>

#include <muster/error.h>

#include "proto/peer/conn_internal.h"
#include "proto/peer/yamux_internal.h"

/* No payload is sent or told before both sides have proved their ids. */
static void check_secrecy(struct peer_world *w, const struct mu_host_conn *c)
{
    const struct mu_peer_conn *pc = &c->pc;

    if (pc->stage == MU_PEER_RAW || pc->stage == MU_PEER_NOISE) {
        if (pc->noise.sealed != 0 || pc->noise.opened != 0 || pc->yamux.streams.count != 0 ||
            c->peer != NULL) {
            mu_sim_fail(w->sim, "a payload before the handshake was done");
        }
    }
    if (c->peer != NULL && !mu_peer_id_eq(&c->peer->id, mu_peer_conn_peer(pc))) {
        mu_sim_fail(w->sim, "a connection is taken for that of another peer");
    }
}

static void check_streams(struct peer_world *w, const struct mu_host_conn *c)
{
    const struct mu_peer_conn *pc = &c->pc;
    const struct mu_map_node *node = NULL;

    if (pc->opened != pc->closed + pc->streams.count) {
        mu_sim_fail(w->sim, "%" PRIu64 " streams opened, %" PRIu64 " closed, %zu held", pc->opened,
                    pc->closed, pc->streams.count);
    }
    while (pc->stage == MU_PEER_OPEN && (node = mu_map_next(&pc->yamux.streams, node)) != NULL) {
        const struct mu_yamux_stream *s = MU_CONTAINER_OF(node, struct mu_yamux_stream, by_id);

        if ((uint64_t)s->recv_window + s->unconsumed > s->target) {
            mu_sim_fail(w->sim, "stream %" PRIu32 " was granted more than its window", s->id);
        }
    }
}

/* Compares both ends of a connection: what one side may send, the other must expect. */
static void check_windows(struct peer_world *w, const struct mu_peer_conn *a,
                          const struct mu_peer_conn *b)
{
    const struct mu_map_node *node = NULL;

    while ((node = mu_map_next(&a->yamux.streams, node)) != NULL) {
        const struct mu_yamux_stream *s = MU_CONTAINER_OF(node, struct mu_yamux_stream, by_id);
        const struct mu_map_node *other = mu_map_find(&b->yamux.streams, node->key);
        const struct mu_yamux_stream *t =
            other == NULL ? NULL : MU_CONTAINER_OF(other, struct mu_yamux_stream, by_id);

        if (t != NULL && !t->remote_end && s->send_window > t->recv_window) {
            mu_sim_fail(w->sim, "a window exceeded: %" PRIu32 " may be sent, and %" PRIu32 " taken",
                        s->send_window, t->recv_window);
        }
    }
    /* Each message has its own counter; what was opened was sealed before. */
    if (a->noise.opened > b->noise.sealed) {
        mu_sim_fail(w->sim, "%" PRIu64 " messages were opened, and %" PRIu64 " sealed",
                    a->noise.opened, b->noise.sealed);
    }
}

/* Honest peers never break the rules. */
static void check_honour(struct peer_world *w, const struct mu_host_conn *c)
{
    int err = c->pc.err;

    for (uint32_t i = 0; i < PEER_HOSTS; i++) {
        if (mu_peer_id_eq(mu_peer_conn_peer(&c->pc), &w->hosts[i].identity.id) &&
            (err == MUSTER_EPROTO || err == MUSTER_EWINDOW || err == MUSTER_ELIMIT ||
             err == MUSTER_ECORRUPT || err == MUSTER_ESIGNATURE)) {
            mu_sim_fail(w->sim, "an honest peer is found to be none: %s",
                        mu_peer_conn_errmsg(&c->pc));
        }
    }
}

static bool is_open(const struct mu_host_conn *c)
{
    return c->pc.stage == MU_PEER_OPEN;
}

static void check_host(struct peer_world *w, struct mu_peer_host *h)
{
    uint64_t held = 0;

    MU_LIST_FOREACH (it, &h->conns) {
        const struct mu_host_conn *c = MU_CONTAINER_OF(it, struct mu_host_conn, link);

        check_secrecy(w, c);
        check_streams(w, c);
        check_honour(w, c);
        held += c->streams.count;
    }
    if (h->stats.streams_opened != h->stats.streams_closed + held) {
        mu_sim_fail(w->sim,
                    "a host has opened %" PRIu64 " streams, closed %" PRIu64 ", holds %" PRIu64,
                    h->stats.streams_opened, h->stats.streams_closed, held);
    }
    if (h->granted > h->config.memory_bytes_max + (uint64_t)16 * 1024 * 1024) {
        mu_sim_fail(w->sim, "windows grant more than a host has");
    }
}

static void check_pair(struct peer_world *w, struct mu_peer_host *a, struct mu_peer_host *b)
{
    MU_LIST_FOREACH (i, &a->conns) {
        const struct mu_host_conn *c = MU_CONTAINER_OF(i, struct mu_host_conn, link);

        MU_LIST_FOREACH (j, &b->conns) {
            const struct mu_host_conn *d = MU_CONTAINER_OF(j, struct mu_host_conn, link);

            if (is_open(c) && is_open(d) &&
                memcmp(c->pc.noise.hash, d->pc.noise.hash, sizeof(c->pc.noise.hash)) == 0) {
                check_windows(w, &c->pc, &d->pc);
                check_windows(w, &d->pc, &c->pc);
            }
        }
    }
}

void peer_check(struct mu_sim *sim, void *arg)
{
    struct peer_world *w = arg;

    (void)sim;
    /* A step changes little, so checking every few steps is enough. */
    if (++w->steps % 8 != 0) {
        return;
    }
    for (uint32_t i = 0; i < PEER_HOSTS; i++) {
        struct peer_host_app *app = w->hosts[i].app;

        if (app == NULL) {
            continue;
        }
        check_host(w, app->host);
        for (uint32_t j = i + 1; j < PEER_HOSTS; j++) {
            if (w->hosts[j].app != NULL) {
                check_pair(w, app->host, w->hosts[j].app->host);
            }
        }
    }
}
