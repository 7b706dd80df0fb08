/*
 * A keyspace and a few connections of PyTorch's protocol around it, in memory: what a server would
 * do, without one. Bytes are fed in pieces of a chosen size; what the connections answer is
 * collected.
 */
#ifndef MU_TORCH_RIG_H
#define MU_TORCH_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include "codec/store/torch_wire.h"
#include "core/alloc.h"
#include "core/prng.h"
#include "proto/store/torch_server.h"

#define RIG_CONNS 6

/* How input is cut: in one piece, byte by byte, or at random. */
enum rig_split {
    RIG_WHOLE = 0,
    RIG_BYTES,
    RIG_RANDOM,
};

struct rig_conn {
    struct mu_torch_server t;
    struct mu_buf got; /* everything it answered and nobody looked at yet */
    int err;
    bool deaf; /* its output is not drained */
};

struct rig {
    struct mu_torch_limits limits;
    struct mu_keyspace ks;
    struct rig_conn conns[RIG_CONNS];
    enum rig_split split;
    struct mu_prng prng;
    uint64_t steps; /* calls of recv */
};

static inline void rig_open(struct rig *r, size_t i)
{
    r->conns[i] = (struct rig_conn){.err = 0};
    mu_torch_server_init(&r->conns[i].t, &r->limits, &r->conns[i]);
    mu_buf_init(&r->conns[i].got, SIZE_MAX / 4);
}

static inline void rig_close(struct rig *r, size_t i)
{
    mu_torch_server_fini(&r->conns[i].t, &r->ks);
    mu_buf_fini(&r->conns[i].got);
}

static inline void rig_init(struct rig *r, enum rig_split split, uint64_t seed)
{
    struct mu_ks_config config = mu_ks_config_defaults();

    config.seed = 1;
    r->limits = mu_torch_limits_defaults();
    r->split = split;
    r->steps = 0;
    mu_prng_seed(&r->prng, seed);
    assert_int_equal(mu_ks_init(&r->ks, &config), 0);
    for (size_t i = 0; i < RIG_CONNS; i++) {
        rig_open(r, i);
    }
}

static inline void rig_fini(struct rig *r)
{
    for (size_t i = 0; i < RIG_CONNS; i++) {
        rig_close(r, i);
    }
    mu_ks_fini(&r->ks);
}

static inline void rig_drain(struct rig_conn *c)
{
    struct mu_span out;

    while (!c->deaf && mu_torch_server_output(&c->t, &out, 1) != 0 &&
           mu_buf_append(&c->got, out) == 0) {
        mu_torch_server_sent(&c->t, out.len);
    }
}

static inline struct rig_conn *rig_conn_of(struct mu_torch_server *t)
{
    return MU_CONTAINER_OF(t, struct rig_conn, t);
}

/* What an owner does after each call: hands out what others get from it. */
static inline void rig_pump(struct rig *r)
{
    struct mu_ks_wait *wait;
    struct mu_ks_watch *watch;
    struct mu_change change;

    while ((wait = mu_ks_next_ready(&r->ks)) != NULL) {
        struct rig_conn *c = rig_conn_of(mu_torch_server_of_wait(wait));
        int err = mu_torch_server_wake(&c->t, wait);

        assert_ptr_equal(wait->owner, c);
        c->err = c->err != 0 ? c->err : err;
    }
    while (mu_ks_next_change(&r->ks, &watch, &change)) {
        struct rig_conn *c = rig_conn_of(mu_torch_server_of_watch(watch));
        int err = mu_torch_server_changed(&c->t, watch, &change);

        assert_ptr_equal(watch->owner, c);
        c->err = c->err != 0 ? c->err : err;
    }
    for (size_t i = 0; i < RIG_CONNS; i++) {
        rig_drain(&r->conns[i]);
    }
}

static inline size_t rig_piece(struct rig *r, size_t left)
{
    size_t n = left;

    if (r->split == RIG_BYTES) {
        n = 1;
    } else if (r->split == RIG_RANDOM) {
        n = 1 + (size_t)mu_prng_below(&r->prng, mu_prng_chance(&r->prng, 500000) ? 4 : 40);
    }
    return n < left ? n : left;
}

/* Feeds a connection until it is all used, or refused, or nothing is taken any more. */
static inline size_t rig_feed(struct rig *r, size_t i, struct mu_span in)
{
    struct rig_conn *c = &r->conns[i];
    size_t done = 0;

    while (done < in.len && c->err == 0) {
        size_t n = rig_piece(r, in.len - done);
        /* An exact copy lets the sanitizer see a read behind the piece. */
        uint8_t *copy = malloc(n);
        size_t used = 0;

        memcpy(copy, in.data + done, n);
        r->steps++;
        c->err = mu_torch_server_recv(&c->t, &r->ks, mu_span(copy, n), &used);
        free(copy);
        rig_pump(r);
        if (c->err == 0 && used == 0) {
            break;
        }
        done += used;
    }
    return done;
}

/* --- requests by hand ---------------------------------------------------------------------- */

/*
 * Writes a pattern: 'b' a byte (int), 'n' a u64 (uint64_t), 'w' a u32 (unsigned), 's' a string with
 * its length (const char *). The result lives until the next but seven calls.
 */
static inline struct mu_span rig_bytes(const char *pattern, ...)
{
    static uint8_t store[8][4096];
    static unsigned turn;
    uint8_t *buf = store[turn++ % 8];
    size_t len = 0;
    va_list args;

    va_start(args, pattern);
    for (; *pattern != '\0'; pattern++) {
        if (*pattern == 'b') {
            buf[len++] = (uint8_t)va_arg(args, int);
        } else if (*pattern == 'n') {
            mu_put_u64(buf + len, va_arg(args, uint64_t));
            len += 8;
        } else if (*pattern == 'w') {
            mu_put_u32(buf + len, va_arg(args, unsigned));
            len += 4;
        } else {
            const char *s = va_arg(args, const char *);

            mu_put_u64(buf + len, strlen(s));
            memcpy(buf + len + 8, s, strlen(s));
            len += 8 + strlen(s);
        }
    }
    va_end(args);
    return mu_span(buf, len);
}

static inline void rig_say(struct rig *r, size_t i, struct mu_span in)
{
    size_t done = rig_feed(r, i, in);

    assert_int_equal(r->conns[i].err, 0);
    assert_int_equal(done, in.len);
}

static inline void rig_print(const char *title, struct mu_span s)
{
    (void)fprintf(stderr, "%s (%zu):", title, s.len);
    for (size_t i = 0; i < s.len && i < 96; i++) {
        (void)fprintf(stderr, " %02x", s.data[i]);
    }
    (void)fprintf(stderr, "\n");
}

/* The connection has answered exactly this since it was asked last. */
static inline void rig_expect(struct rig *r, size_t i, struct mu_span want)
{
    struct mu_buf *got = &r->conns[i].got;

    if (!mu_span_eq(mu_buf_span(got), want)) {
        rig_print("got ", mu_buf_span(got));
        rig_print("want", want);
        fail();
    }
    mu_buf_reset(got);
}

static inline void rig_ask(struct rig *r, size_t i, struct mu_span in, struct mu_span want)
{
    rig_say(r, i, in);
    rig_expect(r, i, want);
}

/* This input is refused with that code, and the connection stays refused. */
static inline void rig_refuse(struct rig *r, size_t i, struct mu_span in, int code)
{
    size_t used;

    (void)rig_feed(r, i, in);
    assert_int_equal(r->conns[i].err, code);
    assert_true(mu_torch_server_errmsg(&r->conns[i].t)[0] != '\0');
    assert_int_equal(mu_torch_server_recv(&r->conns[i].t, &r->ks, MU_SPAN_LIT("\1"), &used), code);
}

#define RIG_NOTHING ((struct mu_span){0})

/* The handshake of generation 2, as PyTorch 2.11 sends it. */
static inline void rig_greet(struct rig *r, size_t i)
{
    rig_ask(r, i, rig_bytes("bwbw", 0, MU_TORCH_MAGIC, MU_TORCH_PING, 0x279u),
            rig_bytes("w", 0x279u));
    assert_int_equal(r->conns[i].t.generation, MU_TORCH_2);
}

#endif
