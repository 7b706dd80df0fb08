/*
 * Some nodes of the DHT in memory, without a network: calls are answered at once, in the order they
 * were made. A node that is `dead` answers nobody.
 */
#ifndef MU_TEST_DHT_SWARM_H
#define MU_TEST_DHT_SWARM_H

#include "unit.h"

#include <muster/error.h>

#include "proto/dht/node.h"

#define SWARM_MAX  64
#define SWARM_WALL 1000000

struct swarm_node {
    struct mu_dht *dht;
    bool dead;
    uint64_t calls; /* that it was asked */
};

static struct swarm_node swarm[SWARM_MAX];
static size_t swarm_count;
static uint64_t swarm_ns; /* since the start */

static inline struct mu_now swarm_now(void)
{
    return (struct mu_now){.mono = {1 + swarm_ns}, .wall = {SWARM_WALL * MU_NS_PER_S + swarm_ns}};
}

static inline double swarm_time(void)
{
    return SWARM_WALL + (double)swarm_ns / 1e9;
}

static inline struct mu_peer_id swarm_peer(size_t n)
{
    return (struct mu_peer_id){.len = 34, .bytes = {0x12, 0x20, (uint8_t)n, 0x77}};
}

static inline struct mu_dht_config swarm_config(size_t n)
{
    struct mu_dht_config config = mu_dht_config_defaults();
    uint8_t byte = (uint8_t)n;

    config.self.peer = swarm_peer(n);
    config.self.node = mu_dht_key(mu_span(&byte, 1));
    config.seed = n + 1;
    return config;
}

struct swarm_reply {
    struct mu_buf message;
    int status;
    bool there;
};

static void swarm_pump(void);

/* Whoever asks node `to` gets its answer, which may need calls of that node's own. */
static inline struct swarm_reply swarm_ask(size_t to, const struct mu_peer_id *from,
                                           enum mu_dht_method method, struct mu_span message);

/* Calls that wait for their turn. */
struct swarm_call {
    size_t from, to;
    uint64_t number;
    enum mu_dht_method method;
    struct mu_buf message;
};

#define SWARM_CALLS 4096
static struct swarm_call swarm_queue[SWARM_CALLS];
static size_t swarm_head, swarm_tail;

struct swarm_wait {
    size_t from;
    uint64_t number;
    bool used;
};

/* Requests that are not answered yet: the token is the index and one. */
static struct swarm_wait swarm_waits[SWARM_CALLS];
static struct swarm_reply swarm_outer; /* of a request from outside: the last token */
static struct mu_dht_op *swarm_ended;

static inline void swarm_drain(size_t n)
{
    struct mu_dht_event e;

    while (mu_dht_next_event(swarm[n].dht, &e)) {
        if (e.type == MU_DHT_EVENT_CALL) {
            struct swarm_call *c = &swarm_queue[swarm_tail++ % SWARM_CALLS];

            assert_true(swarm_tail - swarm_head < SWARM_CALLS);
            *c = (struct swarm_call){n, e.peer.bytes[2], e.number, e.method, {0}};
            mu_buf_init(&c->message, SIZE_MAX);
            assert_int_equal(mu_buf_append(&c->message, e.message), 0);
        } else if (e.type == MU_DHT_EVENT_ENDED) {
            swarm_ended = e.op;
        } else if (e.number == SWARM_CALLS) {
            swarm_outer.there = true;
            swarm_outer.status = e.status;
            mu_buf_init(&swarm_outer.message, SIZE_MAX);
            assert_int_equal(mu_buf_append(&swarm_outer.message, e.message), 0);
        } else {
            struct swarm_wait *w = &swarm_waits[e.number - 1];
            struct mu_buf copy;

            assert_true(w->used);
            w->used = false;
            mu_buf_init(&copy, SIZE_MAX);
            assert_int_equal(mu_buf_append(&copy, e.message), 0);
            mu_dht_answer(swarm[w->from].dht, swarm_now(), w->number, e.status, mu_buf_span(&copy));
            mu_buf_fini(&copy);
            if (w->from != n) {
                swarm_drain(w->from);
            }
        }
    }
}

static inline void swarm_pump(void)
{
    for (size_t i = 0; i < swarm_count; i++) {
        swarm_drain(i);
    }
    while (swarm_head != swarm_tail) {
        struct swarm_call c = swarm_queue[swarm_head++ % SWARM_CALLS];
        struct mu_peer_id from = swarm_peer(c.from);

        if (c.to >= swarm_count || swarm[c.to].dead || swarm[c.from].dead) {
            mu_dht_answer(swarm[c.from].dht, swarm_now(), c.number, MUSTER_ECONN,
                          (struct mu_span){0});
        } else {
            size_t slot = 0;

            while (swarm_waits[slot].used) {
                slot++;
            }
            swarm_waits[slot] = (struct swarm_wait){c.from, c.number, true};
            swarm[c.to].calls++;
            assert_int_equal(mu_dht_request(swarm[c.to].dht, swarm_now(), slot + 1, &from, c.method,
                                            mu_buf_span(&c.message)),
                             0);
            swarm_drain(c.to);
        }
        mu_buf_fini(&c.message);
        swarm_drain(c.from);
    }
}

static inline struct swarm_reply swarm_ask(size_t to, const struct mu_peer_id *from,
                                           enum mu_dht_method method, struct mu_span message)
{
    struct swarm_reply reply;

    swarm_outer = (struct swarm_reply){0};
    assert_int_equal(mu_dht_request(swarm[to].dht, swarm_now(), SWARM_CALLS, from, method, message),
                     0);
    swarm_pump();
    reply = swarm_outer;
    assert_true(reply.there);
    return reply;
}

static inline void swarm_tick(uint64_t ms)
{
    swarm_ns += ms * MU_NS_PER_MS;
    for (size_t i = 0; i < swarm_count; i++) {
        if (!swarm[i].dead) {
            mu_dht_tick(swarm[i].dht, swarm_now());
        }
    }
    swarm_pump();
}

/* The operation that has ended; the caller frees it. */
static inline struct mu_dht_op *swarm_finish(struct mu_dht_op *op)
{
    for (int i = 0; i < 100 && swarm_ended != op; i++) {
        swarm_pump();
        if (swarm_ended != op) {
            swarm_tick(1000);
        }
    }
    assert_ptr_equal(swarm_ended, op);
    swarm_ended = NULL;
    return op;
}

static inline void swarm_add(const struct mu_dht_config *config)
{
    struct mu_peer_id peers[2] = {swarm_peer(0), swarm_peer(swarm_count / 2)};
    struct mu_dht_op *op;
    size_t n = swarm_count++;

    swarm[n] = (struct swarm_node){0};
    assert_int_equal(mu_dht_new(config, &swarm[n].dht), 0);
    assert_int_equal(mu_dht_bootstrap(swarm[n].dht, swarm_now(), peers, n == 0 ? 0 : 2, &op), 0);
    swarm_finish(op);
    assert_int_equal(op->status, 0);
    mu_dht_op_free(op);
}

static inline void swarm_start(size_t count)
{
    swarm_count = 0;
    swarm_ns = 0;
    swarm_head = swarm_tail = 0;
    swarm_ended = NULL;
    memset(swarm_waits, 0, sizeof(swarm_waits));
    for (size_t i = 0; i < count; i++) {
        struct mu_dht_config config = swarm_config(i);

        swarm_add(&config);
    }
}

static inline void swarm_stop(void)
{
    for (; swarm_head != swarm_tail; swarm_head++) {
        mu_buf_fini(&swarm_queue[swarm_head % SWARM_CALLS].message);
    }
    for (size_t i = 0; i < swarm_count; i++) {
        mu_dht_free(swarm[i].dht);
    }
    swarm_count = 0;
}

static inline struct mu_dht_op *swarm_store(size_t n, const struct mu_dht_put *puts, size_t count)
{
    struct mu_dht_op *op;

    assert_int_equal(mu_dht_store(swarm[n].dht, swarm_now(), puts, count, &op), 0);
    return swarm_finish(op);
}

static inline struct mu_dht_op *swarm_get(size_t n, const struct mu_dht_id *key, bool latest)
{
    struct mu_dht_op *op;

    assert_int_equal(mu_dht_get(swarm[n].dht, swarm_now(), key, 1, latest, &op), 0);
    return swarm_finish(op);
}

/* --- values under keys that are texts -------------------------------------------------------- */

static inline struct mu_dht_id swarm_key(const char *text)
{
    struct mu_dht_id id;

    assert_int_equal(mu_dht_key_text(mu_span_str(text), &id), 0);
    return id;
}

static inline uint32_t swarm_store_text(size_t n, const char *key, const char *value, double in_s)
{
    struct mu_dht_put put = {
        .key = swarm_key(key), .value = mu_span_str(value), .expiration = swarm_time() + in_s};
    struct mu_dht_op *op = swarm_store(n, &put, 1);
    uint32_t stored = op->results[0].stored;

    mu_dht_op_free(op);
    return stored;
}

static inline int swarm_tear_down(void **unused)
{
    (void)unused;
    swarm_stop();
    return 0;
}

#endif
