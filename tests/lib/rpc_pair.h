/*
 * Two ends of a session with a wire between them that can be cut: the wire is two byte queues, what
 * is in them is lost with the link, and how many bytes move at a time is the test's to choose.
 *
 *     struct rpc_pair p;
 *     rpc_pair_init(&p, NULL, NULL);
 *     p.on_event = ...;              called for every event of either end
 *     rpc_pair_link(&p);             a connection; the greeting is done by the pump
 *     rpc_pair_pump(&p);             until nothing moves any more
 *     rpc_pair_cut(&p);
 *     rpc_pair_fini(&p);
 */
#ifndef MU_RPC_PAIR_H
#define MU_RPC_PAIR_H

#include "unit.h"

#include <stdlib.h>
#include <string.h>

#include "core/buf.h"
#include "proto/rpc/rpc.h"

struct rpc_pair;

struct rpc_end {
    struct mu_rpc rpc;
    struct mu_buf wire; /* bytes on their way to this end */
    int error;          /* what its last recv returned, if not 0 */
};

struct rpc_pair {
    struct rpc_end client;
    struct rpc_end server;
    struct mu_rpc_config client_config;
    struct mu_rpc_config server_config;
    struct mu_rpc_greet greet;
    bool linked;
    bool greeted;     /* the server's end has its HELLO */
    int refused_with; /* what mu_rpc_accepted() returned, if not 0 */
    /* Called when there was no memory; what did not work is then tried again. NULL: a failure. */
    void (*on_nomem)(void);
    struct mu_now now;
    size_t send_chunk; /* bytes that leave at a time; 0: all */
    size_t recv_chunk; /* bytes that arrive at a time; 0: all */
    bool use_room;     /* bytes arrive where the machine wants them, if it says so */
    size_t delivered;  /* bytes in all, both ways */
    size_t cut_after;  /* cut when so many were delivered; 0: never */
    void (*on_event)(struct rpc_pair *p, struct rpc_end *at, const struct mu_rpc_event *ev);
    void *context;
};

static inline void rpc_pair_ms(struct rpc_pair *p, uint64_t ms)
{
    p->now.mono = mu_mono_add_ms(p->now.mono, ms);
}

static inline void rpc_pair_init(struct rpc_pair *p, const struct mu_rpc_config *client,
                                 const struct mu_rpc_config *server)
{
    *p = (struct rpc_pair){.now = {.mono = {MU_NS_PER_S}}};
    p->client_config = client != NULL ? *client : mu_rpc_config_defaults();
    p->server_config = server != NULL ? *server : mu_rpc_config_defaults();
    p->client_config.role = MU_RPC_CLIENT;
    p->server_config.role = MU_RPC_SERVER;
    memset(p->client_config.session, 0x5e, MU_RPC_SESSION_LEN);
    memset(p->server_config.incarnation, 0x1c, MU_RPC_SESSION_LEN);
    assert_int_equal(mu_rpc_init(&p->client.rpc, &p->client_config), 0);
    assert_int_equal(mu_rpc_init(&p->server.rpc, &p->server_config), 0);
    mu_buf_init(&p->client.wire, SIZE_MAX / 4);
    mu_buf_init(&p->server.wire, SIZE_MAX / 4);
    mu_rpc_greet_init(&p->greet);
}

static inline void rpc_pair_fini(struct rpc_pair *p)
{
    mu_rpc_fini(&p->client.rpc);
    mu_rpc_fini(&p->server.rpc);
    mu_buf_fini(&p->client.wire);
    mu_buf_fini(&p->server.wire);
    mu_rpc_greet_fini(&p->greet);
}

static inline void rpc_pair_cut(struct rpc_pair *p)
{
    mu_buf_reset(&p->client.wire);
    mu_buf_reset(&p->server.wire);
    mu_rpc_unlinked(&p->client.rpc, p->now);
    mu_rpc_unlinked(&p->server.rpc, p->now);
    mu_buf_reset(&p->greet.in);
    p->linked = false;
    p->greeted = false;
}

static inline int rpc_pair_link(struct rpc_pair *p)
{
    int err = mu_rpc_dialled(&p->client.rpc, p->now);

    p->linked = err == 0;
    return err;
}

/* The server forgets everything, as if it had been started anew. */
static inline void rpc_pair_restart_server(struct rpc_pair *p)
{
    mu_rpc_fini(&p->server.rpc);
    assert_int_equal(mu_rpc_init(&p->server.rpc, &p->server_config), 0);
}

static inline void rpc_pair_events(struct rpc_pair *p, struct rpc_end *at)
{
    struct mu_rpc_event ev;

    while (mu_rpc_next_event(&at->rpc, &ev)) {
        if (p->on_event != NULL) {
            p->on_event(p, at, &ev);
        }
    }
}

/* Moves bytes from an end into the wire. Whether there were any. */
static inline bool rpc_pair_send(struct rpc_pair *p, struct rpc_end *from, struct rpc_end *to)
{
    struct mu_span out = mu_rpc_output(&from->rpc);

    if (!p->linked || out.len == 0) {
        return false;
    }
    if (p->send_chunk != 0 && out.len > p->send_chunk) {
        out.len = p->send_chunk;
    }
    assert_int_equal(mu_buf_append(&to->wire, out), 0);
    mu_rpc_sent(&from->rpc, out.len);
    rpc_pair_events(p, from);
    return true;
}

/* Gives an end some bytes; returns how many it took. */
static inline size_t rpc_pair_feed(struct rpc_pair *p, struct rpc_end *at, struct mu_span in)
{
    struct mu_rpc_hello hello;
    size_t used = 0;
    int err;

    if (at == &p->server && !p->greeted) {
        err = mu_rpc_greet_recv(&p->greet, in, &used, &hello);
        if (err == 0) {
            p->greeted = true;
            p->refused_with = mu_rpc_accepted(&at->rpc, p->now, &hello);
            if (p->refused_with == MUSTER_ENOMEM && p->on_nomem != NULL) {
                p->on_nomem();
                p->refused_with = mu_rpc_accepted(&at->rpc, p->now, &hello);
            }
        } else if (err == MUSTER_ENOMEM && p->on_nomem != NULL) {
            p->on_nomem();
        } else {
            assert_int_equal(err, MUSTER_EAGAIN);
        }
        return used;
    }
    err = mu_rpc_recv(&at->rpc, p->now, in, &used);
    if (err == MUSTER_ENOMEM && p->on_nomem != NULL) {
        p->on_nomem();
    } else if (err != 0) {
        at->error = err;
        used = in.len;
    }
    return used;
}

/* As rpc_pair_feed(), with the bytes where the machine wants them. False: it does not say. */
static inline bool rpc_pair_feed_room(struct rpc_pair *p, struct rpc_end *at, struct mu_span in,
                                      size_t *used)
{
    struct mu_space room = {0};
    size_t n;

    if (p->use_room && (at != &p->server || p->greeted)) {
        room = mu_rpc_room(&at->rpc);
    }
    if (room.len == 0) {
        return false;
    }
    n = in.len < room.len ? in.len : room.len;
    memcpy(room.data, in.data, n);
    assert_int_equal(rpc_pair_feed(p, at, mu_span(room.data, n)), n);
    *used += n;
    return true;
}

/* Moves bytes out of the wire into an end. Whether there were any. */
static inline bool rpc_pair_receive(struct rpc_pair *p, struct rpc_end *at)
{
    struct mu_span in = mu_buf_span(&at->wire);
    uint8_t *copy;
    size_t used = 0;

    if (!p->linked || in.len == 0) {
        return false;
    }
    if (p->recv_chunk != 0 && in.len > p->recv_chunk) {
        in.len = p->recv_chunk;
    }
    if (p->cut_after != 0 && in.len > p->cut_after - p->delivered) {
        in.len = p->cut_after - p->delivered;
    }
    copy = malloc(in.len); /* of the exact size, so that a sanitizer sees a read behind it */
    assert_non_null(copy);
    memcpy(copy, in.data, in.len);
    mu_buf_consume(&at->wire, in.len);
    while (used < in.len && p->linked) {
        if (!rpc_pair_feed_room(p, at, mu_span(copy + used, in.len - used), &used)) {
            used += rpc_pair_feed(p, at, mu_span(copy + used, in.len - used));
        }
        rpc_pair_events(p, at);
    }
    free(copy);
    p->delivered += in.len;
    if (p->cut_after != 0 && p->delivered == p->cut_after) {
        p->cut_after = 0;
        rpc_pair_cut(p);
    }
    return true;
}

/* Until nothing moves any more or the link was cut. */
static inline void rpc_pair_pump(struct rpc_pair *p)
{
    bool moved = true;

    rpc_pair_events(p, &p->client);
    rpc_pair_events(p, &p->server);
    while (moved && p->linked) {
        moved = rpc_pair_send(p, &p->client, &p->server);
        moved = rpc_pair_send(p, &p->server, &p->client) || moved;
        moved = rpc_pair_receive(p, &p->server) || moved;
        moved = rpc_pair_receive(p, &p->client) || moved;
    }
}

static inline void rpc_pair_tick(struct rpc_pair *p, uint64_t ms)
{
    rpc_pair_ms(p, ms);
    (void)mu_rpc_tick(&p->client.rpc, p->now);
    (void)mu_rpc_tick(&p->server.rpc, p->now);
    rpc_pair_events(p, &p->client);
    rpc_pair_events(p, &p->server);
}

#endif
