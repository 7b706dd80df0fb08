/* The host's connections. */
#include "service/peer/host_internal.h"

#include <stdio.h>
#include <string.h>

#include <muster/error.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "service/base/log.h"

enum {
    /* How long a connection through a relay lives beside a direct one before it is closed: the
     * other side has to hear of the one that is used. */
    RETIRE_MS = 1000,
    STARVED_MS = 10,
};

static void on_open(struct mu_conn *conn);
static size_t on_data(struct mu_conn *conn, struct mu_span in);
static void on_eof(struct mu_conn *conn);
static void on_writable(struct mu_conn *conn);
static void on_closed(struct mu_conn *conn, int status);
static void on_timer(struct mu_timer *timer);
static void close_now(struct mu_host_conn *c, bool abort);

static const struct mu_conn_events conn_events = {
    .open = on_open,
    .data = on_data,
    .eof = on_eof,
    .writable = on_writable,
    .closed = on_closed,
};

static mu_mono_t now_of(const struct mu_host_conn *c)
{
    return mu_env_now(c->host->env).mono;
}

/* --- life ------------------------------------------------------------------------------------- */

static struct mu_host_conn *new_conn(struct mu_peer_host *h, bool dialled,
                                     const struct mu_peer_id *expected)
{
    struct mu_peer_conn_config config = h->config.conn;
    struct mu_host_conn *c = mu_calloc(1, sizeof(*c));
    int err;

    if (c == NULL) {
        return NULL;
    }
    c->base.on = &conn_events;
    c->host = h;
    c->dialled = dialled;
    config.role = dialled ? MU_PEER_DIALLER : MU_PEER_LISTENER;
    config.identity = h->config.identity;
    config.seed = mu_prng_u64(&h->prng);
    if (dialled) {
        config.handshake_ms = h->config.dial_ms;
    }
    if (expected != NULL) {
        config.expected = *expected;
    }
    mu_env_entropy(h->env, config.secret_static, sizeof(config.secret_static));
    mu_env_entropy(h->env, config.secret_ephemeral, sizeof(config.secret_ephemeral));
    err = mu_peer_conn_init(&c->pc, &config, mu_env_now(h->env).mono);
    explicit_bzero(&config, sizeof(config));
    if (err != 0) {
        mu_free(c);
        return NULL;
    }
    mu_map_init(&c->streams, mu_prng_u64(&h->prng));
    mu_timer_init(&c->timer, on_timer);
    mu_list_init(&c->dirty);
    mu_list_init(&c->of_peer);
    mu_list_init(&c->nudged);
    mu_list_init(&c->starved);
    c->idle_at = MU_MONO_NEVER;
    c->close_at = MU_MONO_NEVER;
    c->retry_at = MU_MONO_NEVER;
    c->ask.at = MU_MONO_NEVER;
    c->push.at = MU_MONO_NEVER;
    mu_list_push(&h->conns, &c->link);
    h->conn_count++;
    return c;
}

static void free_conn(struct mu_host_conn *c)
{
    struct mu_peer_host *h = c->host;

    mu_env_timer_arm(h->env, &c->timer, MU_MONO_NEVER);
    mu_list_remove(&c->link);
    mu_list_remove(&c->dirty);
    h->conn_count--;
    h->pending -= c->pending ? 1 : 0;
    h->granted -= c->granted;
    mu_peer_conn_fini(&c->pc);
    mu_map_fini(&c->streams);
    mu_free(c);
}

static void turn_away(struct mu_peer_host *h, const char *limit)
{
    h->stats.turned_away++;
    h->stats.last_failure = MUSTER_ELIMIT;
    mu_log(MUSTER_LOG_INFO, "PEER-TURNED-AWAY", "limit=%s", limit);
}

/* Of the incoming connections whose peer has not proved its id, the oldest makes room: an honest
 * peer needs only a moment, and a silent one would keep its place until the handshake's time is
 * over. */
static bool make_room(struct mu_peer_host *h)
{
    MU_LIST_FOREACH (it, &h->conns) {
        struct mu_host_conn *c = MU_CONTAINER_OF(it, struct mu_host_conn, link);

        if (c->pending && !c->limited) {
            c->pending = false;
            h->pending--;
            turn_away(h, "pending_max");
            mu_host_conn_close(c, MUSTER_ELIMIT, "other peers have come and need the place");
            close_now(c, true);
            return true;
        }
    }
    return false;
}

/* A connection has come; `from` is the peer's id according to a relay, or NULL. */
static struct mu_conn *take_in(struct mu_peer_host *h, const struct mu_peer_id *from)
{
    struct mu_host_conn *c;

    if (h->stopping) {
        return NULL;
    }
    if (h->conn_count >= h->config.conns_max) {
        turn_away(h, "conns_max");
        return NULL;
    }
    /* Peers that come through a relay have a share, and displace no others (circuit.c). */
    if (h->pending >= h->config.pending_max && (from != NULL || !make_room(h))) {
        turn_away(h, "pending_max");
        return NULL;
    }
    c = new_conn(h, false, from);
    if (c == NULL) {
        turn_away(h, "memory");
        return NULL;
    }
    c->limited = from != NULL;
    c->open = true;
    c->pending = true;
    h->pending++;
    h->stats.accepts++;
    mu_host_conn_touch(c);
    return &c->base;
}

struct mu_conn *mu_host_accept(struct mu_listener *listener)
{
    return take_in(MU_CONTAINER_OF(listener, struct mu_host_listener, base)->host, NULL);
}

struct mu_conn *mu_peer_host_accept(struct mu_peer_host *h, const struct mu_peer_id *from)
{
    return take_in(h, from);
}

bool mu_peer_host_is_pending(const struct mu_conn *conn)
{
    return MU_CONTAINER_OF(conn, const struct mu_host_conn, base)->pending;
}

uint32_t mu_peer_host_pending_max(const struct mu_peer_host *h)
{
    return h->config.pending_max;
}

static int dial(struct mu_peer_host *h, struct mu_host_peer *target,
                struct mu_peer_connect *connect, const struct mu_addr *addr, struct mu_span circuit,
                struct mu_errmsg *reterr_msg)
{
    struct mu_host_conn *c;
    int err;

    if (h->conn_count >= h->config.conns_max) {
        return mu_err(reterr_msg, MUSTER_ELIMIT, "there are %u connections already",
                      h->config.conns_max);
    }
    c = new_conn(h, true, target != NULL ? &target->id : NULL);
    if (c == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    c->addr = *addr;
    c->limited = circuit.len != 0;
    err = c->limited ? h->through->dial(h->through, &c->base, circuit, &target->id)
                     : mu_env_dial(h->env, &c->base, addr);
    if (err != 0) {
        free_conn(c);
        return mu_err(reterr_msg, err, "%s", muster_strerror(err));
    }
    c->target = target;
    c->connect = connect;
    if (connect != NULL) {
        connect->conn = c;
    }
    if (target != NULL) {
        target->attempts++;
    }
    h->stats.dials++;
    mu_host_conn_touch(c);
    return 0;
}

int mu_host_dial(struct mu_peer_host *h, struct mu_host_peer *target,
                 struct mu_peer_connect *connect, const struct mu_addr *addr,
                 struct mu_errmsg *reterr_msg)
{
    return dial(h, target, connect, addr, (struct mu_span){0}, reterr_msg);
}

int mu_host_dial_circuit(struct mu_peer_host *h, struct mu_host_peer *target, struct mu_span addr,
                         struct mu_errmsg *reterr_msg)
{
    struct mu_addr way = {.kind = MU_ADDR_PEER}; /* the whole address, for errors */
    char text[MU_PEER_ID_TEXT_MAX];
    size_t len;

    if (h->through == NULL || mu_multiaddr_circuit(addr, NULL, NULL, NULL) != 0) {
        return mu_err(reterr_msg, MUSTER_ENOTSUP, "relays are not in use here");
    }
    len = strlen(mu_multiaddr_format(addr, way.host, sizeof(way.host)));
    (void)snprintf(way.host + len, sizeof(way.host) - len, "/p2p/%s",
                   mu_peer_id_format(&target->id, text));
    return dial(h, target, NULL, &way, addr, reterr_msg);
}

void mu_host_conn_touch(struct mu_host_conn *c)
{
    if (mu_list_empty(&c->dirty)) {
        mu_list_push(&c->host->dirty_conns, &c->dirty);
        mu_host_touch(c->host);
    }
}

void mu_host_conn_starve(struct mu_host_conn *c)
{
    c->retry_at = mu_mono_add_ms(now_of(c), STARVED_MS);
    mu_host_conn_touch(c);
}

void mu_host_conn_close(struct mu_host_conn *c, int why, const char *text)
{
    if (c->refused == 0) {
        c->refused = why;
        (void)mu_err(&c->why, why, "%s", text);
    }
    mu_peer_conn_close(&c->pc);
    mu_host_conn_touch(c);
}

bool mu_host_conn_make_room(struct mu_host_peer *peer)
{
    const struct mu_host_conn *best = mu_host_peer_best(peer);

    MU_LIST_FOREACH (it, &peer->conns) {
        struct mu_host_conn *c = MU_CONTAINER_OF(it, struct mu_host_conn, of_peer);

        if (c != best && c->pc.stage != MU_PEER_OVER && c->idle_at.ns != MU_MONO_NEVER.ns) {
            mu_host_conn_close(c, MUSTER_ECLOSED, "there are newer ones");
            return true;
        }
    }
    return false;
}

/* --- events ----------------------------------------------------------------------------------- */

/* Puts the address that was dialled into an error. */
static void name_dial(const struct mu_host_conn *c, struct mu_errmsg *msg)
{
    char text[MU_ADDR_HOST_MAX + 16];

    mu_err_prefix(msg, "%s",
                  c->limited ? c->addr.host : mu_addr_format(&c->addr, text, sizeof(text)));
}

static void fail_dial(struct mu_host_conn *c, int status, const char *text)
{
    struct mu_errmsg msg;

    (void)mu_err(&msg, status, "%s", text);
    name_dial(c, &msg);
    mu_host_attempt_failed(c, status, msg.text);
}

static void take_secured(struct mu_host_conn *c)
{
    struct mu_peer_host *h = c->host;
    struct mu_errmsg msg;
    char id[MU_PEER_ID_TEXT_MAX];
    int err = mu_host_peer_attach(c, &msg);

    if (c->pending) {
        c->pending = false;
        h->pending--;
    }
    c->idle_at = now_of(c);
    (void)mu_peer_id_format(mu_peer_conn_peer(&c->pc), id);
    if (err != 0) {
        h->stats.denied += err == MUSTER_EPEERDENIED ? 1 : 0;
        h->stats.turned_away += err == MUSTER_ELIMIT ? 1 : 0;
        h->stats.last_failure = err;
        mu_log(MUSTER_LOG_INFO, "PEER-REFUSED", "peer=%s why=\"%s\"", id, msg.text);
        mu_host_conn_close(c, err, msg.text);
        return;
    }
    h->stats.secured++;
    mu_log(MUSTER_LOG_DEBUG, "PEER-CONNECTED", "peer=%s dialled=%d", id, c->dialled ? 1 : 0);
    if (!h->config.no_identify) {
        mu_host_identify(c);
    }
}

/* The connection is over, and its streams have ended. */
static void take_over(struct mu_host_conn *c, int err)
{
    struct mu_peer_host *h = c->host;
    bool proved = mu_peer_conn_peer(&c->pc)->len != 0;
    const char *text = err != 0 ? mu_peer_conn_errmsg(&c->pc) : c->why.text;
    int why = err != 0 ? err : c->refused;
    char from[80];

    c->over = true;
    c->close_at = mu_mono_add_ms(now_of(c), h->config.drain_ms);
    if (err != 0) {
        mu_env_peer(mu_host_conn_env(c), &c->base, from, sizeof(from));
        mu_log(proved ? MUSTER_LOG_INFO : MUSTER_LOG_DEBUG, "PEER-LOST", "from=%s why=\"%s\"", from,
               text);
        h->stats.failed += proved ? 0 : 1;
        h->stats.violations += proved && err != MUSTER_ECONN && err != MUSTER_ETIMEDOUT ? 1 : 0;
        h->stats.last_failure = err;
    }
    if (c->target != NULL || c->connect != NULL) {
        if (!c->open && err == MUSTER_ETIMEDOUT) {
            text = "there was no connection in time";
        }
        fail_dial(c, why != 0 ? why : MUSTER_ECLOSED, text[0] != '\0' ? text : "closed");
    }
    if (c->peer != NULL) {
        mu_host_peer_detach(c, why);
    }
}

static void drain_events(struct mu_host_conn *c)
{
    struct mu_peer_event e;

    while (mu_peer_conn_next_event(&c->pc, &e)) {
        switch (e.type) {
        case MU_PEER_EV_SECURED:
            take_secured(c);
            break;
        case MU_PEER_EV_GO_AWAY:
            c->away = true;
            if (c->peer != NULL) {
                mu_host_peer_touch(c->peer);
            }
            break;
        case MU_PEER_EV_CLOSED:
        case MU_PEER_EV_FAILED:
            take_over(c, e.err);
            break;
        case MU_PEER_EV_STREAM_OPENED:
        case MU_PEER_EV_STREAM_READY:
        case MU_PEER_EV_DATA:
        case MU_PEER_EV_EOF:
        case MU_PEER_EV_RESET:
        case MU_PEER_EV_WRITABLE:
            mu_host_stream_event(c, &e);
            break;
        }
    }
}

/* --- the pump --------------------------------------------------------------------------------- */

/* Sends output. True: some was sent. */
static bool send_output(struct mu_host_conn *c)
{
    bool some = false;

    while (c->open && !c->blocked && !c->closing) {
        struct mu_span out = mu_peer_conn_output(&c->pc);
        size_t taken;

        if (out.len == 0) {
            break;
        }
        mu_env_send(mu_host_conn_env(c), &c->base, out, &taken);
        c->blocked = taken < out.len;
        c->host->stats.bytes_out += taken;
        some = some || taken != 0;
        mu_peer_conn_sent(&c->pc, taken);
    }
    return some;
}

/* The bytes that windows allow are bounded for all connections together, and for each: streams
 * whose name is not agreed on yet count nothing, as their data is not kept. */
static void account(struct mu_host_conn *c)
{
    struct mu_peer_host *h = c->host;
    uint64_t max = h->config.memory_bytes_max;
    uint64_t granted =
        c->over ? 0
                : mu_peer_conn_grown(&c->pc) + (uint64_t)c->streams.count * MU_YAMUX_WINDOW_FIRST;
    uint64_t room;

    h->granted += granted - c->granted;
    c->granted = granted;
    room = max > h->granted ? max - h->granted : 0;
    max /= MU_HOST_SHARE;
    if (room > (max > granted ? max - granted : 0)) {
        room = max > granted ? max - granted : 0;
    }
    mu_peer_conn_limit_growth(&c->pc, room);
}

static mu_mono_t idle_deadline(const struct mu_host_conn *c)
{
    const struct mu_peer_host *h = c->host;
    const struct mu_host_conn *best;

    if (c->peer == NULL || c->drains || c->idle_at.ns == MU_MONO_NEVER.ns) {
        return MU_MONO_NEVER;
    }
    best = mu_host_peer_best(c->peer);
    if (best != c && best != NULL && c->limited && !best->limited) {
        return mu_mono_add_ms(c->idle_at, RETIRE_MS);
    }
    /* The peer may use another one than we do: its streams would fail with that one. */
    if (h->config.idle_ms == 0 || (best == c && c->peer->keep != 0)) {
        return MU_MONO_NEVER;
    }
    return mu_mono_add_ms(c->idle_at, h->config.idle_ms);
}

static void keep_time(struct mu_host_conn *c)
{
    mu_mono_t at = mu_peer_conn_deadline(&c->pc);

    if (c->closing) {
        at = MU_MONO_NEVER;
    } else {
        at = mu_mono_min(at, mu_mono_min(c->close_at, c->retry_at));
        at = mu_mono_min(at, mu_mono_min(c->ask.at, c->push.at));
        at = mu_mono_min(at, idle_deadline(c));
    }
    if (mu_mono_reached(at, now_of(c))) {
        /* There was no memory for what is due. */
        at = mu_mono_add_ms(now_of(c), STARVED_MS);
    }
    mu_env_timer_arm(c->host->env, &c->timer, at);
}

/* Looks whether the connection has streams, and sets its timers. */
static void look_idle(struct mu_host_conn *c)
{
    bool idle = mu_peer_conn_count(&c->pc) == 0;

    if (c->over || c->peer == NULL) {
        return;
    }
    if (!idle) {
        c->idle_at = MU_MONO_NEVER;
        c->close_at = MU_MONO_NEVER;
        return;
    }
    if (c->idle_at.ns == MU_MONO_NEVER.ns) {
        c->idle_at = now_of(c);
    }
    if (c->away) {
        mu_host_conn_close(c, MUSTER_ECLOSED, "the peer has closed the connection");
    } else if (c->drains && mu_peer_conn_drained(&c->pc)) {
        mu_host_conn_close(c, MUSTER_ECLOSED, "idle");
    } else if (c->drains && c->close_at.ns == MU_MONO_NEVER.ns) {
        c->close_at = mu_mono_add_ms(now_of(c), c->host->config.drain_ms);
    }
}

static void close_now(struct mu_host_conn *c, bool abort)
{
    if (!c->closing) {
        c->closing = true;
        mu_env_close(mu_host_conn_env(c), &c->base, abort);
    }
}

void mu_host_conn_pump(struct mu_host_conn *c)
{
    bool some = false;

    mu_host_streams_nudge(c);
    if (mu_mono_reached(mu_peer_conn_deadline(&c->pc), now_of(c))) {
        /* This does not wait for the timer: a busy connection would put that off again and
         * again. */
        mu_peer_conn_tick(&c->pc, now_of(c));
    }
    do {
        drain_events(c);
        some = send_output(c);
        if (some && c->paused) {
            mu_env_resume(mu_host_conn_env(c), &c->base);
        }
    } while (some && !c->blocked);
    account(c);
    look_idle(c);
    if (c->over && !c->closing && (!c->open || mu_peer_conn_done(&c->pc))) {
        close_now(c, !c->open);
    }
    keep_time(c);
}

/* --- callbacks of the environment ------------------------------------------------------------- */

static void on_open(struct mu_conn *conn)
{
    struct mu_host_conn *c = MU_CONTAINER_OF(conn, struct mu_host_conn, base);
    struct mu_peer_host *h = c->host;

    mu_host_enter(h);
    c->open = true;
    mu_host_conn_touch(c);
    mu_host_leave(h);
}

static size_t on_data(struct mu_conn *conn, struct mu_span in)
{
    struct mu_host_conn *c = MU_CONTAINER_OF(conn, struct mu_host_conn, base);
    struct mu_peer_host *h = c->host;
    size_t used = 0;

    mu_host_enter(h);
    for (;;) {
        size_t n = 0;
        int err = mu_peer_conn_recv(&c->pc, now_of(c), mu_span_skip(in, used), &n);

        used += n;
        drain_events(c);
        if (c->over) {
            used = in.len;
        } else if (err == MUSTER_ENOMEM) {
            mu_host_conn_starve(c);
        }
        if (used == in.len || n == 0) {
            break;
        }
    }
    c->paused = used < in.len;
    h->stats.bytes_in += used;
    mu_host_conn_touch(c);
    mu_host_leave(h);
    return used;
}

static void on_eof(struct mu_conn *conn)
{
    struct mu_host_conn *c = MU_CONTAINER_OF(conn, struct mu_host_conn, base);
    struct mu_peer_host *h = c->host;

    mu_host_enter(h);
    mu_peer_conn_eof(&c->pc, now_of(c));
    mu_host_conn_touch(c);
    mu_host_leave(h);
}

static void on_writable(struct mu_conn *conn)
{
    struct mu_host_conn *c = MU_CONTAINER_OF(conn, struct mu_host_conn, base);
    struct mu_peer_host *h = c->host;

    mu_host_enter(h);
    c->blocked = false;
    mu_host_conn_touch(c);
    mu_host_leave(h);
}

static void on_closed(struct mu_conn *conn, int status)
{
    struct mu_host_conn *c = MU_CONTAINER_OF(conn, struct mu_host_conn, base);
    struct mu_peer_host *h = c->host;

    mu_host_enter(h);
    c->closing = true;
    if (!c->open && (c->target != NULL || c->connect != NULL)) {
        const char *why = c->limited ? mu_env_why(mu_host_conn_env(c)) : "";
        bool kept = c->limited || status == MUSTER_ENAME || status == MUSTER_EINVAL;

        fail_dial(c, kept ? status : MUSTER_ECONN, why[0] != '\0' ? why : muster_strerror(status));
    }
    mu_peer_conn_eof(&c->pc, now_of(c));
    drain_events(c);
    if (!c->over) {
        /* There is no memory to report what is left: ends without it. */
        mu_peer_conn_close(&c->pc);
        drain_events(c);
    }
    free_conn(c);
    mu_host_leave(h);
}

static void on_timer(struct mu_timer *timer)
{
    struct mu_host_conn *c = MU_CONTAINER_OF(timer, struct mu_host_conn, timer);
    struct mu_peer_host *h = c->host;
    mu_mono_t now = now_of(c);
    struct mu_list *link;

    mu_host_enter(h);
    c->retry_at = MU_MONO_NEVER;
    while ((link = mu_list_pop(&c->starved)) != NULL) {
        mu_list_push(&c->nudged, link);
    }
    mu_peer_conn_tick(&c->pc, now);
    mu_host_identify_again(c);
    if (c->paused) {
        mu_env_resume(mu_host_conn_env(c), &c->base);
    }
    if (mu_mono_reached(c->close_at, now)) {
        c->close_at = MU_MONO_NEVER;
        if (c->over) {
            close_now(c, true);
        } else {
            mu_host_conn_close(c, MUSTER_ECLOSED, "idle");
        }
    } else if (mu_mono_reached(idle_deadline(c), now)) {
        int err = mu_peer_conn_drain(&c->pc, now);

        if (err == MUSTER_ENOMEM) {
            mu_host_conn_starve(c);
        } else {
            c->drains = true;
            c->close_at = mu_mono_add_ms(now, h->config.drain_ms);
        }
    }
    mu_host_conn_touch(c);
    mu_host_leave(h);
}
