/* Much data on a connection between peers: sealed from where it lies, in order, in turn, and with a
 * heap that fails. */
#include "unit.h"

#include <muster/error.h>

#include "core/prng.h"
#include "failheap.h"
#include "peer_side.h"

enum { STREAMS = 3 };

static mu_mono_t now_ms(uint64_t ms)
{
    return mu_mono_add_ms((mu_mono_t){MU_NS_PER_S}, ms);
}

static uint8_t byte_at(uint32_t id, size_t at)
{
    return (uint8_t)(at * 7 + (at >> 8) * 31 + (at >> 16) + id);
}

/* The bytes of a stream from `at` on, lent until the next call. */
static struct mu_span bytes_from(uint32_t id, size_t at, size_t len)
{
    static uint8_t bytes[1 << 20];

    for (size_t i = 0; i < len; i++) {
        bytes[i] = byte_at(id, at + i);
    }
    return mu_span(bytes, len);
}

struct bulk {
    struct peer_pair pair;
    uint32_t id[STREAMS];
    size_t streams;
    size_t sent[STREAMS];
    size_t got[STREAMS];
    size_t total; /* of each */
    size_t step;  /* of one write; 0: of many sizes */
    struct mu_prng prng;
    int errors;
};

static size_t index_of(const struct bulk *b, uint32_t id)
{
    size_t i = 0;

    while (b->id[i] != id) {
        i++;
        assert_true(i < b->streams);
    }
    return i;
}

/* Writes until the stream takes no more. */
static void write_some(struct bulk *b, size_t i)
{
    while (b->sent[i] < b->total) {
        size_t left = b->total - b->sent[i];
        size_t len = b->step != 0 ? b->step : (size_t)1 << mu_prng_below(&b->prng, 20);
        size_t taken = 99;
        int err;

        len = len < left ? len : left;
        err = mu_peer_conn_write(&b->pair.d.conn, b->id[i], bytes_from(b->id[i], b->sent[i], len),
                                 &taken);
        if (err != 0) {
            assert_int_equal(err, MUSTER_ENOMEM);
            assert_int_equal(taken, 0);
            failheap_disarm(); /* The same again, with memory. */
            b->errors++;
            continue;
        }
        b->sent[i] += taken;
        if (taken < len) {
            return;
        }
    }
}

static void take_data(struct bulk *b, const struct mu_peer_event *e)
{
    size_t i = index_of(b, e->id);

    for (size_t at = 0; at < e->data.len; at++) {
        if (e->data.data[at] != byte_at(e->id, b->got[i] + at)) {
            fail_msg("stream %u, byte %zu", e->id, b->got[i] + at);
        }
    }
    b->got[i] += e->data.len;
    mu_peer_conn_consumed(&b->pair.l.conn, now_ms(0), e->id, e->data.len);
}

static void drain_events(struct bulk *b)
{
    struct mu_peer_event e;

    while (mu_peer_conn_next_event(&b->pair.l.conn, &e)) {
        if (e.type == MU_PEER_EV_STREAM_OPENED) {
            int err = mu_peer_conn_accept(&b->pair.l.conn, e.id);

            assert_int_equal(err, 0);
        } else {
            assert_int_equal(e.type, MU_PEER_EV_DATA);
            take_data(b, &e);
        }
    }
    while (mu_peer_conn_next_event(&b->pair.d.conn, &e)) {
        if (e.type == MU_PEER_EV_WRITABLE) {
            write_some(b, index_of(b, e.id));
        } else {
            assert_int_equal(e.type, MU_PEER_EV_STREAM_READY);
        }
    }
}

static void start(struct bulk *b, size_t streams, size_t total, size_t step)
{
    *b = (struct bulk){.streams = streams, .total = total, .step = step};
    mu_prng_seed(&b->prng, total + step);
    peer_pair_start(&b->pair, false, now_ms(0));
    for (size_t i = 0; i < streams; i++) {
        assert_int_equal(
            mu_peer_conn_open(&b->pair.d.conn, now_ms(0), &MU_SPAN_LIT("/bulk"), 1, &b->id[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        (void)peer_carry(&b->pair.d, &b->pair.l, now_ms(0));
        drain_events(b);
        (void)peer_carry(&b->pair.l, &b->pair.d, now_ms(0));
        drain_events(b);
    }
}

static bool is_done(const struct bulk *b)
{
    for (size_t i = 0; i < b->streams; i++) {
        if (b->got[i] < b->total) {
            return false;
        }
    }
    return true;
}

static void finish(struct bulk *b)
{
    for (int turn = 0; !is_done(b); turn++) {
        assert_in_range(turn, 0, 100000);
        (void)peer_carry(&b->pair.d, &b->pair.l, now_ms(0));
        drain_events(b);
        (void)peer_carry(&b->pair.l, &b->pair.d, now_ms(0));
        drain_events(b);
    }
    for (size_t i = 0; i < b->streams; i++) {
        assert_int_equal(b->got[i], b->total);
    }
    peer_pair_fini(&b->pair);
}

static void test_peer_conn_bulk_is_a_message_for_each_frame_and_is_not_copied(void **unused)
{
    struct bulk b;
    uint64_t sealed;

    (void)unused;
    start(&b, 1, 4 << 20, 1 << 20);
    (void)mu_peer_conn_output(&b.pair.d.conn);
    sealed = b.pair.d.conn.noise.sealed;
    write_some(&b, 0);
    /* As much as the window has: four frames, and a rest that is not worth a message of its own. */
    assert_in_range(b.sent[0], MU_YAMUX_WINDOW_FIRST - 100, MU_YAMUX_WINDOW_FIRST);
    assert_int_equal(b.pair.d.conn.noise.sealed - sealed, 4);
    assert_int_equal(mu_yamux_output(&b.pair.d.conn.yamux).len,
                     MU_YAMUX_HEADER + b.sent[0] - (size_t)4 * MU_YAMUX_DATA_MAX);
    finish(&b);
}

static void test_peer_conn_small_writes_become_one_message(void **unused)
{
    struct bulk b;
    uint64_t sealed;

    (void)unused;
    start(&b, 1, 60000, 100);
    (void)mu_peer_conn_output(&b.pair.d.conn);
    sealed = b.pair.d.conn.noise.sealed;
    write_some(&b, 0);
    assert_int_equal(b.sent[0], 60000);
    assert_int_equal(b.pair.d.conn.noise.sealed, sealed);
    assert_int_not_equal(mu_peer_conn_output(&b.pair.d.conn).len, 0);
    assert_int_equal(b.pair.d.conn.noise.sealed, sealed + 2);
    finish(&b);
}

static void test_peer_conn_bulk_of_all_sizes_comes_in_order(void **unused)
{
    struct bulk b;

    (void)unused;
    start(&b, STREAMS, 3 << 20, 0);
    for (size_t i = 0; i < STREAMS; i++) {
        write_some(&b, i);
    }
    finish(&b);
}

static void test_peer_conn_bulk_that_waits_for_the_wire_is_bounded_and_goes_in_turn(void **unused)
{
    struct bulk b;
    uint32_t max = mu_peer_conn_config_defaults().yamux.output_bytes_max;
    size_t first[STREAMS];

    (void)unused;
    start(&b, STREAMS, 3 << 20, 1 << 20);
    for (int round = 0; round < 20; round++) {
        /* Nothing of the data is sent: what is kept for it stays within its bound. */
        for (size_t i = 0; i < STREAMS; i++) {
            write_some(&b, i);
        }
        assert_in_range(b.pair.d.conn.noise.out.len + b.pair.d.conn.yamux.out.len, 0,
                        max + 2 * MU_NOISE_FRAME_MAX);
    }
    /* Two windows fill it, and the third stream waits. */
    assert_int_equal(b.sent[2], 0);
    memcpy(first, b.sent, sizeof(first));
    for (int turn = 0; turn < 12; turn++) {
        (void)peer_carry(&b.pair.d, &b.pair.l, now_ms(0));
        drain_events(&b);
        (void)peer_carry(&b.pair.l, &b.pair.d, now_ms(0));
        drain_events(&b);
    }
    for (size_t i = 0; i < STREAMS; i++) {
        assert_true(b.sent[i] > first[i]);
    }
    finish(&b);
}

static void test_peer_conn_bulk_survives_a_failing_heap(void **unused)
{
    bool fired = true;
    int errors = 0;
    int partial = 0;

    (void)unused;
    for (long nth = 0; fired; nth++) {
        struct bulk b;

        start(&b, 1, 1 << 20, 1 << 18);
        /* The buffers are as they were in the beginning, so that they must be got again. */
        (void)mu_peer_conn_output(&b.pair.d.conn);
        mu_peer_conn_sent(&b.pair.d.conn, mu_peer_conn_output(&b.pair.d.conn).len);
        mu_buf_trim(&b.pair.d.conn.noise.out, 0);
        mu_buf_trim(&b.pair.d.conn.yamux.out, 0);
        failheap_arm(nth);
        write_some(&b, 0);
        fired = failheap_fired();
        partial += fired && b.errors == 0 ? 1 : 0;
        failheap_disarm();
        errors += b.errors;
        finish(&b);
    }
    assert_true(errors > 0 && partial > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_peer_conn_bulk_is_a_message_for_each_frame_and_is_not_copied),
        cmocka_unit_test(test_peer_conn_small_writes_become_one_message),
        cmocka_unit_test(test_peer_conn_bulk_of_all_sizes_comes_in_order),
        cmocka_unit_test(test_peer_conn_bulk_that_waits_for_the_wire_is_bounded_and_goes_in_turn),
        cmocka_unit_test(test_peer_conn_bulk_survives_a_failing_heap),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
