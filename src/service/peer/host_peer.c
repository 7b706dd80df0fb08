/* The peers that a host knows: their addresses, dialling them, and the connection in use. */
#include "service/peer/host_internal.h"

#include <string.h>

#include <muster/error.h>

#include "core/alloc.h"
#include "core/assert.h"

enum {
    ATTEMPTS_MAX = 4, /* dials to one peer at a time */
    EVICT_LOOK = 64,  /* how many peers are looked at to find one that can be forgotten */
};

static mu_mono_t now_of(const struct mu_peer_host *h)
{
    return mu_env_now(h->env).mono;
}

/* --- the book --------------------------------------------------------------------------------- */

static void on_timer(struct mu_timer *timer)
{
    struct mu_host_peer *peer = MU_CONTAINER_OF(timer, struct mu_host_peer, timer);
    struct mu_peer_host *h = peer->host;

    mu_host_enter(h);
    peer->due = true;
    mu_host_peer_touch(peer);
    mu_host_leave(h);
}

struct mu_host_peer *mu_host_peer_find(const struct mu_peer_host *h, const struct mu_peer_id *id)
{
    struct mu_map_node *node = mu_map_find(&h->peers, mu_peer_id_span(id));

    return node == NULL ? NULL : MU_CONTAINER_OF(node, struct mu_host_peer, by_id);
}

void mu_host_peer_free(struct mu_host_peer *peer)
{
    struct mu_peer_host *h = peer->host;

    MU_ASSERT(mu_list_empty(&peer->waiting) && mu_list_empty(&peer->connects));
    MU_ASSERT(mu_list_empty(&peer->conns) && peer->attempts == 0);
    mu_env_timer_arm(h->env, &peer->timer, MU_MONO_NEVER);
    mu_map_remove(&h->peers, &peer->by_id);
    mu_list_remove(&peer->link);
    mu_list_remove(&peer->dirty);
    mu_host_addrs_free(&peer->addrs);
    mu_buf_fini(&peer->protocols);
    mu_free(peer);
}

static bool is_needed(const struct mu_host_peer *peer)
{
    return peer->dialling || peer->attempts != 0 || peer->keep != 0 || peer->allowed ||
           peer->banned || !mu_list_empty(&peer->conns) || !mu_list_empty(&peer->waiting) ||
           !mu_list_empty(&peer->connects);
}

/* Forgets a peer that is not needed, if there is one among the oldest. */
static bool evict(struct mu_peer_host *h)
{
    size_t looked = 0;

    MU_LIST_FOREACH_SAFE (it, tmp, &h->book) {
        struct mu_host_peer *peer = MU_CONTAINER_OF(it, struct mu_host_peer, link);

        if (!is_needed(peer)) {
            mu_host_peer_free(peer);
            return true;
        }
        if (++looked == EVICT_LOOK) {
            break;
        }
        /* Peers that are needed go to the back, so that the next look begins after them. */
        mu_list_remove(&peer->link);
        mu_list_push(&h->book, &peer->link);
    }
    return false;
}

struct mu_host_peer *mu_host_peer_get(struct mu_peer_host *h, const struct mu_peer_id *id)
{
    struct mu_host_peer *peer = mu_host_peer_find(h, id);

    if (peer != NULL) {
        mu_list_remove(&peer->link);
        mu_list_push(&h->book, &peer->link);
        return peer;
    }
    if (h->peers.count >= h->config.book_max && !evict(h)) {
        return NULL;
    }
    peer = mu_calloc(1, sizeof(*peer));
    if (peer == NULL) {
        return NULL;
    }
    peer->host = h;
    peer->id = *id;
    mu_list_init(&peer->dirty);
    mu_list_init(&peer->conns);
    mu_list_init(&peer->waiting);
    mu_list_init(&peer->connects);
    mu_list_init(&peer->addrs);
    mu_timer_init(&peer->timer, on_timer);
    mu_buf_init(&peer->protocols, (size_t)MU_IDENTIFY_MESSAGE_MAX * MU_IDENTIFY_MESSAGES_MAX);
    if (mu_map_insert(&h->peers, &peer->by_id, mu_peer_id_span(&peer->id)) != 0) {
        mu_free(peer);
        return NULL;
    }
    mu_list_push(&h->book, &peer->link);
    return peer;
}

void mu_host_peer_touch(struct mu_host_peer *peer)
{
    if (mu_list_empty(&peer->dirty)) {
        mu_list_push(&peer->host->dirty_peers, &peer->dirty);
        mu_host_touch(peer->host);
    }
}

int mu_host_peer_learn(struct mu_host_peer *peer, struct mu_span addr)
{
    struct mu_host_addr *a = NULL;

    MU_LIST_FOREACH (it, &peer->addrs) {
        struct mu_host_addr *have = MU_CONTAINER_OF(it, struct mu_host_addr, link);

        if (mu_span_eq(mu_span(have->bytes, have->len), addr)) {
            a = have;
            break;
        }
    }
    if (a != NULL) {
        mu_list_remove(&a->link);
        peer->addr_count--;
    } else {
        a = mu_host_addr_new(addr);
        if (a == NULL) {
            return MUSTER_ENOMEM;
        }
    }
    if (peer->addr_count == peer->host->config.addrs_max) {
        struct mu_list *last = peer->addrs.prev;

        mu_list_remove(last);
        mu_free(MU_CONTAINER_OF(last, struct mu_host_addr, link));
        peer->addr_count--;
    }
    /* To the front: the newest address is tried first. */
    mu_list_push(peer->addrs.next, &a->link);
    peer->addr_count++;
    return 0;
}

/* Returns the address without the peer at its end; a relay on the way stays. */
static struct mu_span strip_peer(struct mu_span addr)
{
    struct mu_span rest = addr;
    struct mu_multiaddr_part part;
    const uint8_t *from = addr.data;

    while (mu_multiaddr_next(&rest, &part) == 1) {
        if (part.code == MU_MA_P2P && rest.len == 0) {
            return mu_span(addr.data, (size_t)(from - addr.data));
        }
        from = rest.data;
    }
    return addr;
}

static bool is_circuit(struct mu_span addr)
{
    return mu_multiaddr_circuit(addr, NULL, NULL, NULL) == 0;
}

/* Checks whether the address can be dialled here, and finds the peer in it, if there is one. */
static int read_addr(const struct mu_peer_host *h, struct mu_span addr, struct mu_addr *ret_addr,
                     struct mu_peer_id *ret_peer)
{
    return h->through != NULL && is_circuit(addr) ? mu_multiaddr_circuit(addr, NULL, NULL, ret_peer)
                                                  : mu_multiaddr_dial(addr, ret_addr, ret_peer);
}

int mu_peer_host_add_addr(struct mu_peer_host *h, const struct mu_peer_id *id, struct mu_span addr)
{
    struct mu_host_peer *peer;
    struct mu_peer_id named = {0};
    struct mu_addr to;
    int err = read_addr(h, addr, &to, &named);

    if (err != 0) {
        return err;
    }
    if (named.len != 0 && !mu_peer_id_eq(&named, id)) {
        return MUSTER_EPEERID;
    }
    peer = mu_host_peer_get(h, id);
    return peer == NULL ? MUSTER_ENOMEM : mu_host_peer_learn(peer, strip_peer(addr));
}

struct mu_span mu_peer_host_addr(const struct mu_peer_host *h, const struct mu_peer_id *id,
                                 size_t i)
{
    const struct mu_host_peer *peer = mu_host_peer_find(h, id);

    if (peer != NULL) {
        MU_LIST_FOREACH (it, &peer->addrs) {
            const struct mu_host_addr *a = MU_CONTAINER_OF(it, struct mu_host_addr, link);

            if (i-- == 0) {
                return mu_span(a->bytes, a->len);
            }
        }
    }
    return (struct mu_span){0};
}

/* --- access ----------------------------------------------------------------------------------- */

bool mu_host_peer_denied(const struct mu_host_peer *peer)
{
    return peer->banned || (peer->host->config.private_swarm && !peer->allowed);
}

int mu_peer_host_allow(struct mu_peer_host *h, const struct mu_peer_id *id)
{
    struct mu_host_peer *peer = mu_host_peer_get(h, id);

    if (peer == NULL) {
        return MUSTER_ENOMEM;
    }
    peer->allowed = true;
    return 0;
}

static void close_all(struct mu_host_peer *peer, int why, const char *text)
{
    MU_LIST_FOREACH (it, &peer->conns) {
        mu_host_conn_close(MU_CONTAINER_OF(it, struct mu_host_conn, of_peer), why, text);
    }
    MU_LIST_FOREACH (it, &peer->host->conns) {
        struct mu_host_conn *c = MU_CONTAINER_OF(it, struct mu_host_conn, link);

        if (c->target == peer) {
            mu_host_conn_close(c, why, text);
        }
    }
}

int mu_peer_host_ban(struct mu_peer_host *h, const struct mu_peer_id *id)
{
    struct mu_host_peer *peer = mu_host_peer_get(h, id);

    if (peer == NULL) {
        return MUSTER_ENOMEM;
    }
    peer->banned = true;
    close_all(peer, MUSTER_EPEERDENIED, "the peer was banned");
    mu_host_peer_touch(peer);
    return 0;
}

void mu_peer_host_unban(struct mu_peer_host *h, const struct mu_peer_id *id)
{
    struct mu_host_peer *peer = mu_host_peer_find(h, id);

    if (peer != NULL) {
        peer->banned = false;
    }
}

void mu_peer_host_disconnect(struct mu_peer_host *h, const struct mu_peer_id *id)
{
    struct mu_host_peer *peer = mu_host_peer_find(h, id);

    if (peer != NULL) {
        close_all(peer, MUSTER_ECLOSED, "the connection was closed");
    }
}

/* --- the connection in use -------------------------------------------------------------------- */

/* Whether the newer of two connections should be used. */
static bool is_better(const struct mu_host_conn *newer, const struct mu_host_conn *older)
{
    const struct mu_peer_host *h = newer->host;
    uint64_t apart = mu_mono_since(older->secured_at, newer->secured_at);
    struct mu_span us = mu_peer_id_span(mu_peer_host_id(h));
    struct mu_span them = mu_peer_id_span(&newer->peer->id);
    size_t len = us.len < them.len ? us.len : them.len;
    int cmp = memcmp(us.data, them.data, len);

    if (newer->limited != older->limited) {
        return older->limited;
    }
    if (newer->dialled == older->dialled || apart > h->config.settle_ms * MU_NS_PER_MS) {
        return true;
    }
    /* Both sides dialled at once: both keep the dial of the lesser id. */
    if (cmp == 0) {
        cmp = us.len < them.len ? -1 : 1;
    }
    return newer->dialled == (cmp < 0);
}

struct mu_host_conn *mu_host_peer_best(const struct mu_host_peer *peer)
{
    struct mu_host_conn *best = NULL;

    MU_LIST_FOREACH (it, &peer->conns) {
        struct mu_host_conn *c = MU_CONTAINER_OF(it, struct mu_host_conn, of_peer);

        if (c->over || c->drains || c->away || c->pc.stage == MU_PEER_OVER) {
            continue;
        }
        if (best == NULL || is_better(c, best)) {
            best = c;
        }
    }
    return best;
}

/* Drops dials that are not needed any more. */
static void drop_attempts(struct mu_host_peer *peer, const struct mu_host_conn *but)
{
    MU_LIST_FOREACH (it, &peer->host->conns) {
        struct mu_host_conn *c = MU_CONTAINER_OF(it, struct mu_host_conn, link);

        if (c != but && c->target == peer) {
            c->target = NULL;
            peer->attempts--;
            mu_host_conn_close(c, MUSTER_ECANCELED, "another address was quicker");
        }
    }
}

int mu_host_peer_attach(struct mu_host_conn *c, struct mu_errmsg *reterr_msg)
{
    struct mu_peer_host *h = c->host;
    const struct mu_peer_id *id = mu_peer_conn_peer(&c->pc);
    struct mu_host_peer *peer;

    if (mu_peer_id_eq(id, mu_peer_host_id(h))) {
        return mu_err(reterr_msg, MUSTER_EPEERID, "that is this peer itself");
    }
    peer = mu_host_peer_get(h, id);
    if (peer == NULL) {
        return mu_err(reterr_msg, MUSTER_ELIMIT, "there is no room for another peer");
    }
    if (mu_host_peer_denied(peer)) {
        return mu_err(reterr_msg, MUSTER_EPEERDENIED, "%s",
                      peer->banned ? "the peer is banned" : "the peer is not on the list");
    }
    if (peer->conn_count >= h->config.conns_peer_max && !mu_host_conn_make_room(peer)) {
        return mu_err(reterr_msg, MUSTER_ELIMIT, "there are %u connections to that peer already",
                      peer->conn_count);
    }
    c->peer = peer;
    c->secured_at = now_of(h);
    mu_list_push(&peer->conns, &c->of_peer);
    peer->conn_count++;
    if (c->target != NULL) {
        c->target->attempts--;
        c->target = NULL;
    }
    drop_attempts(peer, c);
    if (c->connect != NULL) {
        struct mu_peer_connect *connect = c->connect;

        c->connect = NULL;
        connect->peer = peer->id;
        mu_host_connect_end(connect, 0, "");
    }
    /* Connections that are not used any more check their timers. */
    MU_LIST_FOREACH (it, &peer->conns) {
        mu_host_conn_touch(MU_CONTAINER_OF(it, struct mu_host_conn, of_peer));
    }
    mu_host_peer_touch(peer);
    return 0;
}

static void tell_watches(struct mu_host_peer *peer, bool connected, int why)
{
    /* A callback may end its own watch, but no other. */
    MU_LIST_FOREACH_SAFE (it, tmp, &peer->host->watches) {
        struct mu_peer_watch *w = MU_CONTAINER_OF(it, struct mu_peer_watch, link);

        if (connected && w->connected != NULL) {
            w->connected(w, &peer->id);
        } else if (!connected && w->disconnected != NULL) {
            w->disconnected(w, &peer->id, why);
        }
    }
}

void mu_host_peer_detach(struct mu_host_conn *c, int why)
{
    struct mu_host_peer *peer = c->peer;

    c->peer = NULL;
    mu_list_remove(&c->of_peer);
    peer->conn_count--;
    mu_host_peer_touch(peer);
    if (peer->conn_count == 0 && peer->told) {
        peer->told = false;
        peer->identified = false;
        mu_buf_reset(&peer->protocols);
        mu_buf_trim(&peer->protocols, 0);
        tell_watches(peer, false, why);
    }
}

/* --- dialling --------------------------------------------------------------------------------- */

void mu_host_connect_end(struct mu_peer_connect *connect, int status, const char *text)
{
    mu_list_remove(&connect->link);
    connect->status = status;
    (void)mu_err(&connect->text, status, "%s", text);
    mu_list_push(&connect->host->connects, &connect->link);
    mu_host_touch(connect->host);
}

void mu_host_attempt_failed(struct mu_host_conn *c, int status, const char *text)
{
    struct mu_host_peer *peer = c->target;

    if (c->connect != NULL) {
        struct mu_peer_connect *connect = c->connect;

        c->connect = NULL;
        mu_host_connect_end(connect, status, text);
    }
    if (peer != NULL) {
        c->target = NULL;
        peer->attempts--;
        peer->due = true;
        peer->why_status = status;
        (void)mu_err(&peer->why, status, "%s", text);
        mu_host_peer_touch(peer);
    }
}

static void end_dialling(struct mu_host_peer *peer)
{
    peer->dialling = false;
    peer->routing = false;
    mu_env_timer_arm(peer->host->env, &peer->timer, MU_MONO_NEVER);
}

void mu_host_peer_fail(struct mu_host_peer *peer, int status, const char *text)
{
    struct mu_list *link;

    end_dialling(peer);
    if (text != peer->why.text) {
        (void)mu_err(&peer->why, status, "%s", text);
    }
    while ((link = mu_list_pop(&peer->waiting)) != NULL) {
        mu_host_stream_finish(MU_CONTAINER_OF(link, struct mu_host_stream, link), status, text);
    }
    while ((link = peer->connects.next) != &peer->connects) {
        mu_host_connect_end(MU_CONTAINER_OF(link, struct mu_peer_connect, link), status, text);
    }
    drop_attempts(peer, NULL);
}

/* Addresses through relays come last. */
static struct mu_host_addr *next_untried(struct mu_host_peer *peer)
{
    struct mu_host_addr *circuit = NULL;

    MU_LIST_FOREACH (it, &peer->addrs) {
        struct mu_host_addr *a = MU_CONTAINER_OF(it, struct mu_host_addr, link);

        if (a->tried) {
            continue;
        }
        if (!is_circuit(mu_span(a->bytes, a->len))) {
            return a;
        }
        circuit = circuit != NULL ? circuit : a;
    }
    return circuit;
}

static void start_dialling(struct mu_host_peer *peer)
{
    MU_LIST_FOREACH (it, &peer->addrs) {
        MU_CONTAINER_OF(it, struct mu_host_addr, link)->tried = false;
    }
    peer->dialling = true;
    peer->due = true;
    peer->routing = false;
    peer->routed = false;
    peer->why_status = MUSTER_ENOENT;
    (void)mu_err(&peer->why, MUSTER_ENOENT, "no address of that peer is known");
    peer->give_up_at = mu_mono_add_ms(now_of(peer->host), peer->host->config.connect_ms);
}

static void try_next(struct mu_host_peer *peer)
{
    struct mu_peer_host *h = peer->host;
    struct mu_host_addr *a;

    while (peer->due && peer->attempts < ATTEMPTS_MAX && (a = next_untried(peer)) != NULL) {
        struct mu_span addr = mu_span(a->bytes, a->len);
        char text[MU_MULTIADDR_TEXT_MAX];
        struct mu_addr to = {0};
        int err;

        a->tried = true;
        if (is_circuit(addr)) {
            (void)mu_multiaddr_format(addr, text, sizeof(text));
            err = mu_host_dial_circuit(h, peer, addr, &peer->why);
        } else {
            err = mu_multiaddr_dial(addr, &to, NULL);
            (void)mu_addr_format(&to, text, sizeof(text));
            err = err != 0 ? err : mu_host_dial(h, peer, NULL, &to, &peer->why);
        }
        if (err == 0) {
            /* Until it fails or succeeds, this is what can be said of it. */
            peer->why_status =
                mu_err(&peer->why, MUSTER_ETIMEDOUT, "%s: there was no answer in time", text);
            peer->due = false;
            peer->next_at = mu_mono_add_ms(now_of(h), h->config.stagger_ms);
        } else {
            peer->why_status = err;
        }
    }
    peer->due = false;
}

static void go_on_dialling(struct mu_host_peer *peer)
{
    struct mu_peer_host *h = peer->host;

    if (mu_mono_reached(peer->give_up_at, now_of(h))) {
        if (peer->attempts != 0 || peer->routing) {
            peer->why_status = MUSTER_ETIMEDOUT;
        }
        mu_host_peer_fail(peer, peer->why_status,
                          peer->routing ? "the peer was not found in time" : peer->why.text);
        return;
    }
    if (!mu_mono_reached(peer->next_at, now_of(h)) && peer->attempts != 0 && !peer->due) {
        return;
    }
    try_next(peer);
    if (peer->attempts == 0 && !peer->routing && next_untried(peer) == NULL) {
        if (h->router == NULL || peer->routed) {
            mu_host_peer_fail(peer, peer->why_status, peer->why.text);
            return;
        }
        peer->routing = true;
        peer->routed = true;
        h->router->find(h->router, &peer->id);
    }
    mu_env_timer_arm(h->env, &peer->timer,
                     next_untried(peer) != NULL ? mu_mono_min(peer->next_at, peer->give_up_at)
                                                : peer->give_up_at);
}

void mu_host_peer_step(struct mu_host_peer *peer)
{
    struct mu_peer_host *h = peer->host;
    struct mu_host_conn *best = mu_host_peer_best(peer);
    struct mu_list *link;

    if (peer->conn_count != 0 && !peer->told) {
        peer->told = true;
        tell_watches(peer, true, 0);
    }
    if (best != NULL) {
        end_dialling(peer);
        while ((link = peer->connects.next) != &peer->connects) {
            mu_host_connect_end(MU_CONTAINER_OF(link, struct mu_peer_connect, link), 0, "");
        }
        while ((link = mu_list_pop(&peer->waiting)) != NULL) {
            mu_host_stream_begin(MU_CONTAINER_OF(link, struct mu_host_stream, link), best);
        }
        return;
    }
    if (mu_list_empty(&peer->waiting) && mu_list_empty(&peer->connects)) {
        end_dialling(peer);
        return;
    }
    if (h->stopping) {
        mu_host_peer_fail(peer, MUSTER_ECLOSED, "the host is closed");
    } else if (mu_peer_id_eq(&peer->id, mu_peer_host_id(h))) {
        mu_host_peer_fail(peer, MUSTER_EPEERID, "that is this peer itself");
    } else if (mu_host_peer_denied(peer)) {
        mu_host_peer_fail(peer, MUSTER_EPEERDENIED,
                          peer->banned ? "the peer is banned" : "the peer is not on the list");
    } else {
        if (!peer->dialling) {
            start_dialling(peer);
        }
        go_on_dialling(peer);
    }
}

void mu_peer_host_found(struct mu_peer_host *h, const struct mu_peer_id *id)
{
    struct mu_host_peer *peer = mu_host_peer_find(h, id);

    if (peer != NULL && peer->routing) {
        peer->routing = false;
        peer->due = true;
        mu_host_peer_touch(peer);
    }
}

/* --- connect ---------------------------------------------------------------------------------- */

void mu_peer_host_connect(struct mu_peer_host *h, struct mu_peer_connect *connect)
{
    struct mu_host_peer *peer = NULL;
    struct mu_peer_id named = {0};
    struct mu_addr to;
    int err = 0;

    connect->host = h;
    connect->conn = NULL;
    connect->active = true;
    connect->text.text[0] = '\0';
    mu_list_init(&connect->link);
    if (connect->addr.len != 0) {
        err = read_addr(h, connect->addr, &to, &named);
        if (err != 0) {
            mu_host_connect_end(connect, err, mu_multiaddr_refusal(connect->addr));
            return;
        }
        if (named.len == 0 && connect->peer.len == 0 && is_circuit(connect->addr)) {
            mu_host_connect_end(connect, MUSTER_EINVAL,
                                "the address names no peer after the relay");
            return;
        }
        if (named.len != 0 && connect->peer.len != 0 && !mu_peer_id_eq(&named, &connect->peer)) {
            mu_host_connect_end(connect, MUSTER_EPEERID, "the address names another peer");
            return;
        }
        if (connect->peer.len == 0) {
            connect->peer = named;
        }
    }
    if (h->stopping) {
        mu_host_connect_end(connect, MUSTER_ECLOSED, "the host is closed");
        return;
    }
    if (connect->peer.len == 0) {
        struct mu_errmsg msg;

        err = connect->addr.len == 0
                  ? mu_err(&msg, MUSTER_EINVAL, "give a peer, an address, or both")
                  : mu_host_dial(h, NULL, connect, &to, &msg);
        if (err != 0) {
            mu_host_connect_end(connect, err, msg.text);
        }
        return;
    }
    peer = mu_host_peer_get(h, &connect->peer);
    if (peer == NULL) {
        mu_host_connect_end(connect, MUSTER_ELIMIT, "there is no room for another peer");
        return;
    }
    if (connect->addr.len != 0) {
        (void)mu_host_peer_learn(peer, strip_peer(connect->addr));
    }
    mu_list_push(&peer->connects, &connect->link);
    mu_host_peer_touch(peer);
}

void mu_peer_host_connect_cancel(struct mu_peer_connect *connect)
{
    if (connect->active) {
        connect->active = false;
        mu_list_remove(&connect->link);
        if (connect->conn != NULL && connect->conn->connect == connect) {
            connect->conn->connect = NULL;
        }
    }
}

/* --- queries ---------------------------------------------------------------------------------- */

bool mu_peer_host_connected(const struct mu_peer_host *h, const struct mu_peer_id *id)
{
    const struct mu_host_peer *peer = mu_host_peer_find(h, id);

    return peer != NULL && mu_host_peer_best(peer) != NULL;
}

bool mu_peer_host_limited(const struct mu_peer_host *h, const struct mu_peer_id *id)
{
    const struct mu_host_peer *peer = mu_host_peer_find(h, id);
    const struct mu_host_conn *best = peer == NULL ? NULL : mu_host_peer_best(peer);

    return best != NULL && best->limited;
}

int mu_peer_host_keep(struct mu_peer_host *h, const struct mu_peer_id *id, bool keep)
{
    struct mu_host_peer *peer = keep ? mu_host_peer_get(h, id) : mu_host_peer_find(h, id);

    if (peer == NULL) {
        return keep ? MUSTER_ENOMEM : 0;
    }
    if (keep) {
        peer->keep++;
    } else if (peer->keep != 0) {
        peer->keep--;
    }
    MU_LIST_FOREACH (it, &peer->conns) {
        mu_host_conn_touch(MU_CONTAINER_OF(it, struct mu_host_conn, of_peer));
    }
    return 0;
}

bool mu_peer_host_speaks(const struct mu_peer_host *h, const struct mu_peer_id *id,
                         const char *name)
{
    const struct mu_host_peer *peer = mu_host_peer_find(h, id);
    struct mu_span all = peer == NULL ? (struct mu_span){0} : mu_buf_span(&peer->protocols);

    while (all.len >= 2) {
        size_t len = mu_get_u16(all.data);

        all = mu_span_skip(all, 2);
        if (mu_span_eq(mu_span(all.data, len), mu_span_str(name))) {
            return true;
        }
        all = mu_span_skip(all, len);
    }
    return false;
}

struct mu_span mu_peer_host_agent(const struct mu_peer_host *h, const struct mu_peer_id *id)
{
    const struct mu_host_peer *peer = mu_host_peer_find(h, id);

    return peer == NULL ? (struct mu_span){0} : mu_span_str(peer->agent);
}

const char *mu_peer_host_why(const struct mu_peer_host *h, const struct mu_peer_id *id)
{
    const struct mu_host_peer *peer = mu_host_peer_find(h, id);

    return peer == NULL || mu_host_peer_best(peer) != NULL ? "" : peer->why.text;
}

const struct mu_peer_id *mu_peer_host_next_peer(const struct mu_peer_host *h,
                                                const struct mu_peer_id *after)
{
    const struct mu_list *at = &h->book;

    if (after != NULL) {
        const struct mu_host_peer *peer = mu_host_peer_find(h, after);

        at = peer == NULL ? h->book.prev : &peer->link;
    }
    for (at = at->next; at != &h->book; at = at->next) {
        const struct mu_host_peer *peer = MU_CONTAINER_OF(at, struct mu_host_peer, link);

        if (mu_host_peer_best(peer) != NULL) {
            return &peer->id;
        }
    }
    return NULL;
}

void mu_peer_host_remote(const struct mu_peer_host *h, const struct mu_peer_id *id, char *text,
                         size_t cap)
{
    const struct mu_host_peer *peer = mu_host_peer_find(h, id);
    const struct mu_host_conn *best = peer == NULL ? NULL : mu_host_peer_best(peer);

    text[0] = '\0';
    if (best != NULL) {
        mu_env_peer(mu_host_conn_env(best), &best->base, text, cap);
    }
}
