/*
 * Both ends of yamux, joined by a wire that delivers in random pieces, doing at random what can be
 * done: many streams, half closed, ended, reset, with readers that fall behind. Whatever happens,
 * bytes arrive complete and in order, no window is exceeded, and no stream is lost track of.
 */
#include "unit.h"

#include <muster/error.h>

#include "core/prng.h"
#include "proto/peer/yamux.h"

enum {
    STREAMS = 64, /* in a run, of both sides together */
    BYTES_MAX = 700 * 1000,
    ID_MAX = 2 * STREAMS + 4,
};

/* One direction of a stream, seen by the one who writes and the one who reads. */
struct flow {
    uint32_t goal; /* so much is to be written */
    uint32_t written;
    uint32_t read;
    uint32_t unread; /* of that, lent to a reader who has not dealt with it */
    bool ended;
    bool eof;
    /* what the wire has seen */
    uint64_t granted;
    uint64_t sent;
};

struct end {
    struct mu_yamux y;
    struct mu_buf wire; /* on its way to the other */
    struct mu_buf seen; /* by the one who watches the wire: a frame that is not whole */
    uint32_t opened;    /* streams this end knows of, and those it knows to be gone */
    uint32_t closed;
    bool known[ID_MAX];
    bool wants[ID_MAX]; /* a write was short */
    uint32_t go_aways;
};

struct world {
    struct mu_prng rng;
    mu_mono_t now;
    struct end end[2];
    struct flow flow[2][ID_MAX]; /* [who writes] */
    bool gone[ID_MAX];           /* reset by one side */
    uint32_t opens_left;
};

static uint8_t pattern(size_t writer, uint32_t id, uint32_t offset)
{
    return (uint8_t)((offset * 2654435761u + id * 40503u + (uint32_t)writer * 97u) >> 13);
}

static void know(struct world *w, size_t me, uint32_t id)
{
    assert_true(id < ID_MAX && !w->end[me].known[id]);
    w->end[me].known[id] = true;
    w->end[me].opened++;
    w->end[me].wants[id] = true;
}

static void forget(struct world *w, size_t me, uint32_t id)
{
    assert_true(w->end[me].known[id]);
    w->end[me].known[id] = false;
    w->end[me].closed++;
}

/* Who watches the wire counts what is sent and granted, frame by frame. */
static void watch(struct world *w, size_t from, struct mu_span bytes)
{
    struct mu_buf *seen = &w->end[from].seen;

    assert_int_equal(mu_buf_append(seen, bytes), 0);
    while (seen->len >= MU_YAMUX_HEADER) {
        const uint8_t *h = mu_buf_span(seen).data;
        uint32_t id = (uint32_t)h[4] << 24 | (uint32_t)h[5] << 16 | (uint32_t)h[6] << 8 | h[7];
        uint32_t len = (uint32_t)h[8] << 24 | (uint32_t)h[9] << 16 | (uint32_t)h[10] << 8 | h[11];
        size_t whole = MU_YAMUX_HEADER + (h[1] == 0 ? len : 0);

        assert_true(id < ID_MAX);
        if (seen->len < whole) {
            break;
        }
        if (h[1] == 0) {
            assert_true(len <= MU_YAMUX_DATA_MAX);
            w->flow[from][id].sent += len;
            assert_true(w->flow[from][id].sent <=
                        MU_YAMUX_WINDOW_FIRST + w->flow[1 - from][id].granted);
        } else if (h[1] == 1) {
            w->flow[from][id].granted += len;
        }
        mu_buf_consume(seen, whole);
    }
}

static void write_some(struct world *w, size_t me, uint32_t id)
{
    struct end *e = &w->end[me];
    struct flow *f = &w->flow[me][id];
    static uint8_t bytes[100000];
    uint32_t len = f->goal - f->written;
    size_t taken;

    if (!e->known[id] || f->ended || w->gone[id]) {
        return;
    }
    len = len < sizeof(bytes) ? len : sizeof(bytes);
    len = len > 1 ? (uint32_t)mu_prng_below(&w->rng, len) + 1 : len;
    for (uint32_t i = 0; i < len; i++) {
        bytes[i] = pattern(me, id, f->written + i);
    }
    if (mu_yamux_write(&e->y, id, mu_span(bytes, len), &taken) != 0) {
        assert_true(w->gone[id]);
        return;
    }
    f->written += (uint32_t)taken;
    e->wants[id] = taken == len;
    if (f->written == f->goal) {
        bool last = w->flow[1 - me][id].eof;

        assert_int_equal(mu_yamux_end(&e->y, id), 0);
        assert_int_equal(mu_yamux_end(&e->y, id), last ? MUSTER_ENOENT : 0);
        f->ended = true;
        if (last) {
            forget(w, me, id);
        }
    }
}

static void take_event(struct world *w, size_t me, const struct mu_yamux_event *ev)
{
    struct flow *f = &w->flow[1 - me][ev->id];

    switch (ev->type) {
    case MU_YAMUX_EV_OPENED:
        know(w, me, ev->id);
        break;
    case MU_YAMUX_EV_DATA:
        assert_true(w->end[me].known[ev->id] && !f->eof);
        for (size_t i = 0; i < ev->data.len; i++) {
            if (ev->data.data[i] != pattern(1 - me, ev->id, f->read + (uint32_t)i)) {
                fail_msg("stream %u: another byte at %zu", ev->id, f->read + i);
            }
        }
        f->read += (uint32_t)ev->data.len;
        f->unread += (uint32_t)ev->data.len;
        break;
    case MU_YAMUX_EV_EOF:
        assert_true(w->end[me].known[ev->id] && !f->eof);
        assert_int_equal(f->read, f->goal);
        f->eof = true;
        if (w->flow[me][ev->id].ended) {
            forget(w, me, ev->id);
        }
        break;
    case MU_YAMUX_EV_RESET:
        assert_true(w->gone[ev->id]);
        forget(w, me, ev->id);
        break;
    case MU_YAMUX_EV_WRITABLE:
        assert_true(w->end[me].known[ev->id]);
        w->end[me].wants[ev->id] = true;
        break;
    case MU_YAMUX_EV_GO_AWAY:
        assert_int_equal(ev->code, 0);
        w->end[me].go_aways++;
        break;
    case MU_YAMUX_EV_DEAD:
        fail_msg("nobody is dead");
        break;
    }
}

/* Moves a random part of what one end has said, and hands the other a random part of that. */
static void move(struct world *w, size_t from)
{
    struct end *e = &w->end[from];
    struct end *to = &w->end[1 - from];
    struct mu_span out = mu_yamux_output(&e->y);
    struct mu_span in;
    struct mu_yamux_event ev;
    size_t used;

    out.len = (size_t)mu_prng_below(&w->rng, out.len + 1);
    out.len = mu_prng_chance(&w->rng, 100000) && out.len > 7 ? 7 : out.len;
    watch(w, from, out);
    assert_int_equal(mu_buf_append(&e->wire, out), 0);
    mu_yamux_sent(&e->y, out.len);
    in = mu_buf_span(&e->wire);
    in.len = (size_t)mu_prng_below(&w->rng, in.len + 1);
    do {
        assert_int_equal(mu_yamux_recv(&to->y, w->now, in, &used), 0);
        in = mu_span_skip(in, used);
        while (mu_yamux_next_event(&to->y, &ev)) {
            take_event(w, 1 - from, &ev);
        }
        mu_buf_consume(&e->wire, used);
    } while (used != 0 && in.len != 0);
}

static void act(struct world *w, size_t me)
{
    struct end *e = &w->end[me];
    uint32_t id = (uint32_t)mu_prng_below(&w->rng, ID_MAX);

    if (w->opens_left > 0 && mu_prng_chance(&w->rng, 30000) &&
        mu_yamux_open(&e->y, w->now, &id) == 0) {
        w->opens_left--;
        know(w, me, id);
        for (size_t i = 0; i < 2; i++) {
            w->flow[i][id].goal = (uint32_t)mu_prng_below(
                &w->rng, mu_prng_chance(&w->rng, 300000) ? BYTES_MAX : 2000);
        }
    }
    for (id = 1; id < ID_MAX; id++) {
        struct flow *theirs = &w->flow[1 - me][id];

        if (e->known[id] && e->wants[id]) {
            write_some(w, me, id);
        }
        /* A slow reader: some of what it holds, now and then. */
        if (theirs->unread > 0 && mu_prng_chance(&w->rng, 300000)) {
            uint32_t n = (uint32_t)mu_prng_below(&w->rng, theirs->unread) + 1;

            assert_int_equal(mu_yamux_consumed(&e->y, w->now, id, n), 0);
            theirs->unread -= n;
        }
    }
    id = (uint32_t)mu_prng_below(&w->rng, ID_MAX);
    if (e->known[id] && mu_prng_chance(&w->rng, 4000)) {
        w->gone[id] = true;
        assert_int_equal(mu_yamux_reset(&e->y, id), 0);
        forget(w, me, id);
    }
    if (mu_mono_reached(mu_yamux_deadline(&e->y), w->now)) {
        assert_int_equal(mu_yamux_tick(&e->y, w->now), 0);
    }
}

static void check(struct world *w)
{
    for (size_t i = 0; i < 2; i++) {
        struct end *e = &w->end[i];

        assert_int_equal(mu_yamux_count(&e->y), e->opened - e->closed);
        assert_true(mu_yamux_output(&e->y).len <= e->y.config.output_bytes_max + 320 * 1024);
    }
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
        struct mu_yamux_config config = mu_yamux_config_defaults();

        config.role = i == 0 ? MU_YAMUX_DIALLER : MU_YAMUX_LISTENER;
        config.keep_alive_ms = 20;
        config.unacked_max = 8;
        config.window_bytes_max = 1 << (18 + mu_prng_below(&w.rng, 4));
        config.output_bytes_max = 1 << (18 + mu_prng_below(&w.rng, 3));
        assert_int_equal(mu_yamux_init(&w.end[i].y, &config, w.now), 0);
        mu_buf_init(&w.end[i].wire, 64 << 20);
        mu_buf_init(&w.end[i].seen, 1 << 20);
    }
    do {
        w.now = mu_mono_add_ns(w.now, mu_prng_below(&w.rng, 2 * MU_NS_PER_MS));
        for (size_t i = 0; i < 2; i++) {
            act(&w, i);
            move(&w, i);
            check(&w);
        }
        assert_true(++steps < 200000);
    } while (w.opens_left > 0 || w.end[0].closed < w.end[0].opened ||
             w.end[1].closed < w.end[1].opened || w.end[0].wire.len != 0 ||
             mu_yamux_output(&w.end[0].y).len != 0);
    for (uint32_t id = 1; id < ID_MAX; id++) {
        for (size_t i = 0; i < 2 && !w.gone[id]; i++) {
            assert_int_equal(w.flow[i][id].read, w.flow[i][id].goal);
        }
    }
    assert_true(w.end[0].y.rtt_ns != 0 && w.end[1].y.rtt_ns != 0);
    assert_int_equal(w.end[0].y.grown + w.end[1].y.grown, 0);
    assert_int_equal(mu_yamux_go_away(&w.end[0].y, MU_YAMUX_NORMAL), 0);
    while (w.end[1].go_aways == 0) {
        move(&w, 0);
    }
    assert_int_equal(mu_yamux_open(&w.end[1].y, w.now, &(uint32_t){0}), MUSTER_ECLOSED);
    for (size_t i = 0; i < 2; i++) {
        mu_yamux_fini(&w.end[i].y);
        mu_buf_fini(&w.end[i].wire);
        mu_buf_fini(&w.end[i].seen);
    }
}

static void test_yamux_pair_loses_nothing_whatever_happens(void **unused)
{
    (void)unused;
    for (uint64_t seed = 1; seed <= 12; seed++) {
        run(seed);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_yamux_pair_loses_nothing_whatever_happens),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
