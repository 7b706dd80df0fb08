/*
 * Two peers joined by a wire that delivers in random pieces, doing at random what can be done.
 * Nothing of a payload comes before the handshake; streams are opened for the names that were
 * meant; bytes arrive complete and in order; each stream ends exactly once; none is lost track of.
 */
#include "unit.h"

#include <muster/error.h>

#include "core/prng.h"
#include "peer_side.h"

enum {
    STREAMS = 40, /* in a run, of both sides together */
    ID_MAX = 2 * STREAMS + 4,
    BYTES_MAX = 800 * 1000,
};

struct flow {
    uint32_t goal;
    uint32_t written;
    uint32_t read;
    uint32_t unread;
    bool ended;
    bool eof;
};

struct end {
    struct peer_side side;
    struct mu_buf wire;
    bool secured;
    bool known[ID_MAX]; /* told of, or opened here, and not ended */
    bool ready[ID_MAX];
    bool wants[ID_MAX];
    uint32_t opened;
    uint32_t closed;
};

struct world {
    struct mu_prng rng;
    mu_mono_t now;
    struct end end[2];
    struct flow flow[2][ID_MAX];
    bool gone[ID_MAX];    /* reset by one side */
    bool refused[ID_MAX]; /* the other knows none of its names */
    uint32_t opens_left;
};

static uint8_t pattern(size_t writer, uint32_t id, uint32_t offset)
{
    return (uint8_t)((offset * 2654435761u + id * 40503u + (uint32_t)writer * 97u) >> 13);
}

static void forget(struct world *w, size_t me, uint32_t id)
{
    assert_true(w->end[me].known[id]);
    w->end[me].known[id] = false;
    w->end[me].closed++;
}

static void know(struct world *w, size_t me, uint32_t id)
{
    assert_true(id < ID_MAX && !w->end[me].known[id]);
    w->end[me].known[id] = true;
    w->end[me].wants[id] = true;
    w->end[me].opened++;
}

static void open_some(struct world *w, size_t me)
{
    static const struct mu_span names[] = {{(const uint8_t *)"/nobody/1", 9},
                                           {(const uint8_t *)"/nobody/2", 9},
                                           {(const uint8_t *)"/echo/1", 7}};
    size_t kind = (size_t)mu_prng_below(&w->rng, 8);
    size_t first = kind == 0 ? 0 : kind == 1 ? 0 : 2;
    size_t count = kind == 0 ? 2 : kind == 1 ? 3 : 1;
    uint32_t id;

    if (mu_peer_conn_open(&w->end[me].side.conn, w->now, names + first, count, &id) != 0) {
        return;
    }
    w->opens_left--;
    know(w, me, id);
    w->refused[id] = kind == 0;
    for (size_t i = 0; i < 2; i++) {
        w->flow[i][id].goal =
            (uint32_t)mu_prng_below(&w->rng, mu_prng_chance(&w->rng, 300000) ? BYTES_MAX : 2000);
    }
}

static void write_some(struct world *w, size_t me, uint32_t id)
{
    struct end *e = &w->end[me];
    struct flow *f = &w->flow[me][id];
    static uint8_t bytes[100000];
    uint32_t len = f->goal - f->written;
    size_t taken;

    if (f->ended) {
        return;
    }
    len = len < sizeof(bytes) ? len : sizeof(bytes);
    len = len > 1 ? (uint32_t)mu_prng_below(&w->rng, len) + 1 : len;
    for (uint32_t i = 0; i < len; i++) {
        bytes[i] = pattern(me, id, f->written + i);
    }
    if (mu_peer_conn_write(&e->side.conn, id, mu_span(bytes, len), &taken) != 0) {
        assert_true(w->gone[id] || w->refused[id]);
        e->wants[id] = false;
        return;
    }
    assert_true(taken == 0 || e->secured);
    f->written += (uint32_t)taken;
    e->wants[id] = taken == len;
    if (f->written == f->goal && mu_peer_conn_end(&e->side.conn, id) == 0) {
        f->ended = true;
        if (w->flow[1 - me][id].eof) {
            forget(w, me, id);
        }
    }
}

static void take_data(struct world *w, size_t me, const struct mu_peer_event *ev)
{
    struct flow *f = &w->flow[1 - me][ev->id];

    assert_true(w->end[me].known[ev->id] && w->end[me].ready[ev->id] && !f->eof);
    for (size_t i = 0; i < ev->data.len; i++) {
        if (ev->data.data[i] != pattern(1 - me, ev->id, f->read + (uint32_t)i)) {
            fail_msg("stream %u: another byte at %zu", ev->id, f->read + i);
        }
    }
    f->read += (uint32_t)ev->data.len;
    f->unread += (uint32_t)ev->data.len;
}

static void take_event(struct world *w, size_t me, const struct mu_peer_event *ev)
{
    struct end *e = &w->end[me];

    assert_true(e->secured || ev->type == MU_PEER_EV_SECURED);
    switch (ev->type) {
    case MU_PEER_EV_SECURED:
        assert_false(e->secured);
        e->secured = true;
        break;
    case MU_PEER_EV_STREAM_OPENED:
        if (mu_span_eq(ev->name, MU_SPAN_LIT("/echo/1"))) {
            assert_false(w->refused[ev->id]);
            assert_int_equal(mu_peer_conn_accept(&e->side.conn, ev->id), 0);
            know(w, me, ev->id);
            e->ready[ev->id] = true;
        } else if (mu_prng_chance(&w->rng, 500000)) {
            assert_int_equal(mu_peer_conn_refuse(&e->side.conn, ev->id), 0);
        }
        break;
    case MU_PEER_EV_STREAM_READY:
        assert_false(e->ready[ev->id]);
        if (ev->err != 0) {
            /* What rode with a name that is refused is no name: a reset may overtake the refusal,
             * if there was no room for that. */
            assert_true(w->refused[ev->id] || (ev->err != MUSTER_EREFUSED && w->gone[ev->id]));
            forget(w, me, ev->id);
        } else {
            assert_span_text(ev->name, "/echo/1");
            e->ready[ev->id] = true;
        }
        break;
    case MU_PEER_EV_DATA:
        take_data(w, me, ev);
        break;
    case MU_PEER_EV_EOF:
        assert_true(e->known[ev->id] && !w->flow[1 - me][ev->id].eof);
        assert_int_equal(w->flow[1 - me][ev->id].read, w->flow[1 - me][ev->id].goal);
        w->flow[1 - me][ev->id].eof = true;
        if (w->flow[me][ev->id].ended) {
            forget(w, me, ev->id);
        }
        break;
    case MU_PEER_EV_RESET:
        assert_true(w->gone[ev->id]);
        forget(w, me, ev->id);
        break;
    case MU_PEER_EV_WRITABLE:
        assert_true(e->known[ev->id] && !e->wants[ev->id]);
        e->wants[ev->id] = true;
        break;
    case MU_PEER_EV_GO_AWAY:
    case MU_PEER_EV_CLOSED:
    case MU_PEER_EV_FAILED:
        fail_msg("event %d: %s", (int)ev->type, mu_peer_conn_errmsg(&e->side.conn));
        break;
    }
}

static void move(struct world *w, size_t from)
{
    struct end *e = &w->end[from];
    struct end *to = &w->end[1 - from];
    struct mu_span out = mu_peer_conn_output(&e->side.conn);
    struct mu_span in;
    struct mu_peer_event ev;
    size_t used;

    out.len = (size_t)mu_prng_below(&w->rng, out.len + 1);
    out.len = mu_prng_chance(&w->rng, 100000) && out.len > 7 ? 7 : out.len;
    assert_int_equal(mu_buf_append(&e->wire, out), 0);
    mu_peer_conn_sent(&e->side.conn, out.len);
    in = mu_buf_span(&e->wire);
    in.len = (size_t)mu_prng_below(&w->rng, in.len + 1);
    do {
        assert_int_equal(mu_peer_conn_recv(&to->side.conn, w->now, in, &used), 0);
        in = mu_span_skip(in, used);
        while (mu_peer_conn_next_event(&to->side.conn, &ev)) {
            take_event(w, 1 - from, &ev);
        }
        mu_buf_consume(&e->wire, used);
    } while (used != 0 && in.len != 0);
}

static void act(struct world *w, size_t me)
{
    struct end *e = &w->end[me];
    uint32_t id;

    if (w->opens_left > 0 && mu_prng_chance(&w->rng, 30000)) {
        open_some(w, me);
    }
    for (id = 1; id < ID_MAX; id++) {
        struct flow *theirs = &w->flow[1 - me][id];

        if (e->known[id] && e->wants[id]) {
            write_some(w, me, id);
        }
        if (theirs->unread > 0 && mu_prng_chance(&w->rng, 300000)) {
            uint32_t n = (uint32_t)mu_prng_below(&w->rng, theirs->unread) + 1;

            mu_peer_conn_consumed(&e->side.conn, w->now, id, n);
            theirs->unread -= n;
        }
    }
    id = (uint32_t)mu_prng_below(&w->rng, ID_MAX);
    if (e->known[id] && mu_prng_chance(&w->rng, 3000)) {
        w->gone[id] = true;
        mu_peer_conn_reset(&e->side.conn, id);
        forget(w, me, id);
    }
    if (mu_mono_reached(mu_peer_conn_deadline(&e->side.conn), w->now)) {
        mu_peer_conn_tick(&e->side.conn, w->now);
    }
}

/* What is held, and is known to be held; a stream whose name is not agreed on is not known to the
 * one who is asked for it. */
static void check(const struct world *w)
{
    for (size_t i = 0; i < 2; i++) {
        const struct mu_peer_conn *c = &w->end[i].side.conn;

        assert_int_equal(mu_peer_conn_count(c), c->opened - c->closed);
        assert_true(mu_peer_conn_count(c) >= w->end[i].opened - w->end[i].closed);
    }
}

static void finish(struct world *w)
{
    struct mu_peer_event ev;

    for (uint32_t id = 1; id < ID_MAX; id++) {
        for (size_t i = 0; i < 2 && !w->gone[id] && !w->refused[id]; i++) {
            assert_int_equal(w->flow[i][id].read, w->flow[i][id].goal);
        }
    }
    mu_peer_conn_close(&w->end[0].side.conn);
    assert_true(mu_peer_conn_next_event(&w->end[0].side.conn, &ev));
    assert_int_equal(ev.type, MU_PEER_EV_CLOSED);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(mu_peer_conn_count(&w->end[i].side.conn), 0);
        /* A nonce for each message, and both have counted the same. */
        assert_true(w->end[i].side.conn.noise.sealed >= w->end[1 - i].side.conn.noise.opened);
        peer_side_fini(&w->end[i].side);
        mu_buf_fini(&w->end[i].wire);
    }
}

static bool is_busy(struct world *w)
{
    if (w->opens_left > 0) {
        return true;
    }
    for (size_t i = 0; i < 2; i++) {
        if (w->end[i].closed < w->end[i].opened || w->end[i].wire.len != 0 ||
            mu_peer_conn_count(&w->end[i].side.conn) != 0 ||
            mu_peer_conn_output(&w->end[i].side.conn).len != 0) {
            return true;
        }
    }
    return false;
}

static void run(uint64_t seed)
{
    static struct world w;
    uint32_t steps = 0;

    memset(&w, 0, sizeof(w));
    mu_prng_seed(&w.rng, seed);
    w.now = (mu_mono_t){MU_NS_PER_S};
    w.opens_left = STREAMS;
    for (size_t i = 0; i < 2; i++) {
        struct mu_peer_conn_config config =
            peer_side_config(i == 0 ? MU_PEER_DIALLER : MU_PEER_LISTENER);

        config.yamux.keep_alive_ms = 20;
        config.yamux.unacked_max = 4;
        config.yamux.window_bytes_max = 1 << (18 + mu_prng_below(&w.rng, 4));
        config.muxer_late = mu_prng_chance(&w.rng, 200000);
        config.handshake_ms = 1000000;
        config.negotiate_ms = 1000000;
        config.yamux.dead_ms = 1000000;
        assert_int_equal(peer_side_init(&w.end[i].side, config, w.now), 0);
        mu_buf_init(&w.end[i].wire, 64 << 20);
    }
    do {
        w.now = mu_mono_add_ns(w.now, mu_prng_below(&w.rng, 2 * MU_NS_PER_MS));
        for (size_t i = 0; i < 2; i++) {
            act(&w, i);
            move(&w, i);
            check(&w);
        }
        assert_true(++steps < 100000);
    } while (is_busy(&w));
    finish(&w);
}

static void test_peer_conn_pair_loses_nothing_whatever_happens(void **unused)
{
    (void)unused;
    for (uint64_t seed = 1; seed <= 15; seed++) {
        run(seed);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_peer_conn_pair_loses_nothing_whatever_happens),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
