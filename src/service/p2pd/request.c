/* What clients request. */
#include <stdio.h>
#include <string.h>

#include <muster/error.h>

#include "core/alloc.h"
#include "crypto/hash.h"
#include "service/p2pd/p2pd_internal.h"

#define ADDRS_MAX     64
#define NAMES_MAX     64
#define NEAREST       20
#define TIMEOUT_S_MAX 86400

static void reply_error(struct mu_p2pd_client *c, const char *text)
{
    mu_p2pd_client_replied(c, mu_p2pd_conn_reply_error(&c->pc, text));
}

static void reply_ok(struct mu_p2pd_client *c)
{
    mu_p2pd_client_replied(c, mu_p2pd_conn_reply_ok(&c->pc));
}

/* The peer that a request is about; false: that was told. */
static bool read_peer(struct mu_p2pd_client *c, const struct mu_p2pd_request *r,
                      struct mu_peer_id *ret)
{
    if (mu_peer_id_from_bytes(ret, r->peer) != 0) {
        reply_error(c, "failed to parse peer ID: it is not the multihash of a key");
        return false;
    }
    return true;
}

void mu_p2pd_remote(struct mu_p2pd *d, const struct mu_peer_id *peer, struct mu_buf *out)
{
    char text[MU_ADDR_HOST_MAX + 16];
    struct mu_errmsg msg;
    struct mu_addr addr;

    mu_peer_host_remote(d->host, peer, text, sizeof(text));
    if (mu_addr_parse(text, 1, &addr, &msg) == 0 && addr.kind == MU_ADDR_TCP &&
        mu_multiaddr_from(out, &addr, &msg) == 0) {
        return;
    }
    mu_buf_reset(out);
    if (mu_peer_host_addr(d->host, peer, 0).len != 0) {
        (void)mu_buf_append(out, mu_peer_host_addr(d->host, peer, 0));
    } else {
        (void)mu_multiaddr_parse(out, "/ip4/0.0.0.0/tcp/0", &msg);
    }
}

/* --- under way -------------------------------------------------------------------------------- */

static void on_timer(struct mu_timer *timer)
{
    struct mu_p2pd_client *c = MU_CONTAINER_OF(timer, struct mu_p2pd_client, work.timer);
    struct mu_p2pd *d = c->d;
    char text[128];

    (void)snprintf(text, sizeof(text), "%s: deadline exceeded",
                   c->work.type == MU_P2PD_STREAM_OPEN ? "failed to open a stream"
                                                       : "failed to reach the peer");
    mu_host_stream_reset(&c->stream);
    mu_peer_host_connect_cancel(&c->work.connect);
    reply_error(c, text);
    mu_p2pd_turn(d);
}

static void start_timer(struct mu_p2pd_client *c, const struct mu_p2pd_request *r)
{
    uint64_t ms = c->d->config.request_ms;

    if (r->timeout_s > 0) {
        ms = (uint64_t)(r->timeout_s < TIMEOUT_S_MAX ? r->timeout_s : TIMEOUT_S_MAX) * 1000;
    }
    mu_timer_init(&c->work.timer, on_timer);
    mu_env_timer_arm(c->d->env, &c->work.timer, mu_mono_add_ms(mu_env_now(c->d->env).mono, ms));
}

void mu_p2pd_request_drop(struct mu_p2pd_client *c)
{
    mu_peer_host_connect_cancel(&c->work.connect);
    if (mu_heap_contains(&c->work.timer.node)) {
        mu_env_timer_arm(c->d->env, &c->work.timer, MU_MONO_NEVER);
    }
}

/* --- connect ---------------------------------------------------------------------------------- */

static void reply_found(struct mu_p2pd_client *c, const struct mu_peer_id *peer)
{
    struct mu_span addrs[ADDRS_MAX];
    struct mu_p2pd_peer info = {.id = mu_peer_id_span(peer), .addrs = addrs};

    while (info.addr_count < ADDRS_MAX &&
           (addrs[info.addr_count] = mu_peer_host_addr(c->d->host, peer, info.addr_count)).len !=
               0) {
        info.addr_count++;
    }
    mu_p2pd_client_replied(c, mu_p2pd_conn_reply_dht(&c->pc, true, false, MU_P2PD_DHT_VALUE, &info,
                                                     (struct mu_span){0}));
}

static void on_connected(struct mu_peer_connect *connect, int status, const char *text)
{
    struct mu_p2pd_client *c = MU_CONTAINER_OF(connect, struct mu_p2pd_client, work.connect);
    char id[MU_PEER_ID_TEXT_MAX];
    struct mu_errmsg msg;

    mu_p2pd_request_drop(c);
    if (status != 0) {
        (void)mu_err(&msg, status, "failed to %s %s: %s",
                     c->work.type == MU_P2PD_DHT ? "find" : "dial",
                     mu_peer_id_format(&connect->peer, id), text);
        reply_error(c, msg.text);
    } else if (c->work.type == MU_P2PD_DHT) {
        reply_found(c, &connect->peer);
    } else {
        reply_ok(c);
    }
}

/* Connects; the answer follows. */
static void begin_connect(struct mu_p2pd_client *c, const struct mu_p2pd_request *r,
                          const struct mu_peer_id *peer)
{
    c->work.type = r->type;
    c->work.connect.peer = *peer;
    c->work.connect.addr = (struct mu_span){0};
    c->work.connect.done = on_connected;
    start_timer(c, r);
    mu_peer_host_connect(c->d->host, &c->work.connect);
}

static void do_connect(struct mu_p2pd_client *c, const struct mu_p2pd_request *r)
{
    struct mu_span walk = r->all;
    struct mu_peer_id peer;
    struct mu_span addr;

    if (!read_peer(c, r, &peer)) {
        return;
    }
    while (mu_p2pd_next_addr(r, &walk, &addr)) {
        if (mu_multiaddr_check(addr) != 0) {
            reply_error(c, "failed to parse multiaddr: it is not one, or has parts that are not "
                           "known here");
            return;
        }
    }
    walk = r->all;
    while (mu_p2pd_next_addr(r, &walk, &addr)) {
        int err = mu_peer_host_add_addr(c->d->host, &peer, addr);

        if (err == MUSTER_EPEERID) {
            reply_error(c, "peer ID mismatch: an address names another peer");
            return;
        }
    }
    begin_connect(c, r, &peer);
}

/* --- the simple ones -------------------------------------------------------------------------- */

static void do_identify(struct mu_p2pd_client *c)
{
    struct mu_span addrs[ADDRS_MAX];
    struct mu_p2pd_peer self = {.id = mu_peer_id_span(mu_peer_host_id(c->d->host)), .addrs = addrs};

    while (self.addr_count < ADDRS_MAX &&
           (addrs[self.addr_count] = mu_peer_host_announced(c->d->host, self.addr_count)).len !=
               0) {
        self.addr_count++;
    }
    mu_p2pd_client_replied(c, mu_p2pd_conn_reply_identify(&c->pc, &self));
}

struct listed {
    struct mu_buf addr;
    struct mu_span span;
};

static void do_list_peers(struct mu_p2pd_client *c)
{
    struct mu_p2pd *d = c->d;
    const struct mu_peer_id *id = NULL;
    struct mu_p2pd_peer *peers;
    struct listed *listed;
    size_t count = 0;
    size_t n = 0;
    int err = MUSTER_ENOMEM;

    while ((id = mu_peer_host_next_peer(d->host, id)) != NULL) {
        count++;
    }
    peers = mu_calloc(count + 1, sizeof(*peers));
    listed = mu_calloc(count + 1, sizeof(*listed));
    while (peers != NULL && listed != NULL && n < count &&
           (id = mu_peer_host_next_peer(d->host, id)) != NULL) {
        mu_buf_init(&listed[n].addr, MU_MULTIADDR_MAX);
        mu_p2pd_remote(d, id, &listed[n].addr);
        listed[n].span = mu_buf_span(&listed[n].addr);
        peers[n] = (struct mu_p2pd_peer){mu_peer_id_span(id), &listed[n].span, 1};
        n++;
    }
    if (peers != NULL && listed != NULL) {
        err = mu_p2pd_conn_reply_peers(&c->pc, peers, n);
    }
    for (size_t i = 0; i < n; i++) {
        mu_buf_fini(&listed[i].addr);
    }
    mu_free(peers);
    mu_free(listed);
    mu_p2pd_client_replied(c, err);
}

static void do_disconnect(struct mu_p2pd_client *c, const struct mu_p2pd_request *r)
{
    struct mu_peer_id peer;

    if (read_peer(c, r, &peer)) {
        mu_peer_host_disconnect(c->d->host, &peer);
        reply_ok(c);
    }
}

/* Connections are not trimmed here, so that there is nothing that a tag could save one from. */
static void do_connmanager(struct mu_p2pd_client *c, const struct mu_p2pd_request *r)
{
    struct mu_peer_id peer;

    if (r->what > 2) {
        reply_error(c, "Unexpected request");
    } else if (r->what == 2) {
        reply_ok(c);
    } else if (!r->has_peer) {
        reply_error(c, "Malformed request; missing peer parameter");
    } else if (read_peer(c, r, &peer)) {
        reply_ok(c);
    }
}

/* --- streams ---------------------------------------------------------------------------------- */

static void do_handler(struct mu_p2pd_client *c, const struct mu_p2pd_request *r)
{
    struct mu_span walk = r->all;
    struct mu_errmsg msg;
    struct mu_addr to;
    struct mu_span name;

    if (mu_multiaddr_check(r->addr) != 0 || mu_multiaddr_dial(r->addr, &to, NULL) != 0) {
        reply_error(c, "failed to parse multiaddr: a handler is at a unix socket or a TCP port");
        return;
    }
    while (mu_p2pd_next_name(r, &walk, &name)) {
        int err = r->type == MU_P2PD_STREAM_HANDLER
                      ? mu_p2pd_handle(c->d, name, NULL, r->addr, r->balanced, &msg)
                      : mu_p2pd_names_remove(&c->d->calls.names, name, NULL, r->addr, &msg);

        if (err != 0) {
            reply_error(c, msg.text);
            return;
        }
    }
    reply_ok(c);
}

static void do_stream_open(struct mu_p2pd_client *c, const struct mu_p2pd_request *r)
{
    struct mu_span *names = mu_calloc(NAMES_MAX, sizeof(*names));
    struct mu_span walk = r->all;
    struct mu_peer_id peer;
    struct mu_span more;
    size_t count = 0;
    bool fit = true;

    mu_free(c->work.names);
    c->work.names = names; /* The texts are the request's. */
    if (!read_peer(c, r, &peer)) {
        return;
    }
    if (names == NULL) {
        mu_p2pd_client_replied(c, MUSTER_ENOMEM);
        return;
    }
    while (count < NAMES_MAX && mu_p2pd_next_name(r, &walk, &names[count])) {
        fit = fit && names[count].len != 0 && names[count].len <= MU_MSS_NAME_MAX;
        count++;
    }
    if (count == 0 || !fit) {
        reply_error(c, "failed to negotiate protocol: there is none, or its name is too long");
        return;
    }
    if (count == NAMES_MAX && mu_p2pd_next_name(r, &walk, &more)) {
        reply_error(c, "failed to negotiate protocol: a request may name at most 64");
        return;
    }
    c->work.type = r->type;
    start_timer(c, r);
    mu_p2pd_pipe_open(c, &peer, names, count);
}

/* --- routing ---------------------------------------------------------------------------------- */

struct near {
    struct mu_peer_id id;
    uint8_t distance[MU_SHA256_LEN];
};

/* Keeps the nearest, in order. Returns how many there are. */
static size_t add_near(struct near *list, size_t count, const struct near *one)
{
    size_t at = count;

    while (at > 0 && memcmp(one->distance, list[at - 1].distance, MU_SHA256_LEN) < 0) {
        at--;
    }
    if (at == NEAREST) {
        return count;
    }
    count += count < NEAREST ? 1 : 0;
    memmove(&list[at + 1], &list[at], (count - at - 1) * sizeof(*list));
    list[at] = *one;
    return count;
}

/* Of those that we are connected to and that speak the protocol. */
static void do_closest(struct mu_p2pd_client *c, const struct mu_p2pd_request *r)
{
    struct mu_p2pd *d = c->d;
    struct near list[NEAREST];
    struct near one;
    uint8_t key[MU_SHA256_LEN];
    const struct mu_peer_id *id = NULL;
    size_t count = 0;
    int err;

    mu_sha256(key, r->key);
    while ((id = mu_peer_host_next_peer(d->host, id)) != NULL) {
        if (!mu_peer_host_speaks(d->host, id, MU_KAD_NAME)) {
            continue;
        }
        one.id = *id;
        mu_sha256(one.distance, mu_peer_id_span(id));
        for (size_t i = 0; i < MU_SHA256_LEN; i++) {
            one.distance[i] ^= key[i];
        }
        count = add_near(list, count, &one);
    }
    err = mu_p2pd_conn_reply_dht(&c->pc, true, true, MU_P2PD_DHT_BEGIN, NULL, (struct mu_span){0});
    for (size_t i = 0; err == 0 && i < count; i++) {
        err = mu_p2pd_conn_reply_dht(&c->pc, false, true, MU_P2PD_DHT_VALUE, NULL,
                                     mu_peer_id_span(&list[i].id));
    }
    err = err != 0 ? err
                   : mu_p2pd_conn_reply_dht(&c->pc, false, false, MU_P2PD_DHT_END, NULL,
                                            (struct mu_span){0});
    mu_p2pd_client_replied(c, err);
}

/* Short keys are in the id whole, behind its two bytes of head. */
static void do_public_key(struct mu_p2pd_client *c, const struct mu_peer_id *peer)
{
    if (peer->len < 2 || peer->bytes[0] != 0) {
        reply_error(c, "the public key of that peer is not in its id, and is not looked up here");
        return;
    }
    mu_p2pd_client_replied(c, mu_p2pd_conn_reply_dht(&c->pc, true, false, MU_P2PD_DHT_VALUE, NULL,
                                                     mu_span_skip(mu_peer_id_span(peer), 2)));
}

static void do_dht(struct mu_p2pd_client *c, const struct mu_p2pd_request *r)
{
    struct mu_peer_id peer;
    bool of_peer = r->what == MU_P2PD_FIND_PEER || r->what == MU_P2PD_GET_PUBLIC_KEY;

    if (c->d->kad == NULL) {
        reply_error(c, "DHT not enabled");
    } else if (!r->given) {
        reply_error(c, "Malformed request; missing parameters");
    } else if (r->what > MU_P2PD_PROVIDE) {
        reply_error(c, "Unexpected request");
    } else if (of_peer && !r->has_peer) {
        reply_error(c, "Malformed request; missing peer parameter");
    } else if (r->what == MU_P2PD_GET_CLOSEST_PEERS && !r->has_key) {
        reply_error(c, "Malformed request; missing key parameter");
    } else if (of_peer && !read_peer(c, r, &peer)) {
        return;
    } else if (r->what == MU_P2PD_GET_CLOSEST_PEERS) {
        do_closest(c, r);
    } else if (r->what == MU_P2PD_GET_PUBLIC_KEY) {
        do_public_key(c, &peer);
    } else if (r->what == MU_P2PD_FIND_PEER) {
        begin_connect(c, r, &peer);
    } else {
        reply_error(c, "not supported: this daemon routes to peers, and keeps no values");
    }
}

void mu_p2pd_request(struct mu_p2pd_client *c, const struct mu_p2pd_request *r)
{
    bool has_params = r->type != MU_P2PD_IDENTIFY && r->type != MU_P2PD_LIST_PEERS &&
                      r->type != MU_P2PD_UPGRADE && r->type != MU_P2PD_DHT &&
                      r->type != MU_P2PD_PUBSUB;

    if (has_params && !r->given) {
        reply_error(c, "Malformed request; missing parameters");
        return;
    }
    switch (r->type) {
    case MU_P2PD_IDENTIFY:
        do_identify(c);
        break;
    case MU_P2PD_CONNECT:
        do_connect(c, r);
        break;
    case MU_P2PD_STREAM_OPEN:
        do_stream_open(c, r);
        break;
    case MU_P2PD_STREAM_HANDLER:
    case MU_P2PD_REMOVE_STREAM_HANDLER:
        do_handler(c, r);
        break;
    case MU_P2PD_DHT:
        do_dht(c, r);
        break;
    case MU_P2PD_LIST_PEERS:
        do_list_peers(c);
        break;
    case MU_P2PD_CONNMANAGER:
        do_connmanager(c, r);
        break;
    case MU_P2PD_DISCONNECT:
        do_disconnect(c, r);
        break;
    case MU_P2PD_PUBSUB:
        reply_error(c, "PubSub not enabled");
        break;
    case MU_P2PD_UPGRADE:
        mu_p2pd_client_replied(c, mu_p2pd_conn_reply_upgrade(&c->pc));
        break;
    }
}
