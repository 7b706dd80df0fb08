/* yamux, one end at a time: the bytes of the protocol, windows, keep-alive, a heap that fails. */
#include "yamux_side.h"

#include "core/prng.h"
#include "failheap.h"

/* --- vectors ---------------------------------------------------------------------------------- */

#define HEADER_AND_PING                                                                            \
    "132f6d756c746973747265616d2f312e302e300a 112f697066732f70696e672f312e302e300a"

static void test_yamux_dialler_speaks_the_vectors(void **unused)
{
    struct mu_yamux_config config = mu_yamux_config_defaults();
    struct mu_yamux y;
    uint8_t bytes[64];
    uint32_t id;

    (void)unused;
    config.role = MU_YAMUX_DIALLER;
    assert_int_equal(mu_yamux_init(&y, &config, at_ms(0)), 0);
    assert_int_equal(mu_yamux_tick(&y, at_ms(0)), 0);
    expect_output(&y, "000200010000000000000000");
    assert_int_equal(mu_yamux_open(&y, at_ms(0), &id), 0);
    assert_int_equal(id, 1);
    expect_output(&y, "000100010000000100000000");
    expect_write(&y, id, mu_span(bytes, hex_decode(bytes, sizeof(bytes), HEADER_AND_PING)), 38);
    expect_output(&y, "000000000000000100000026" HEADER_AND_PING);

    assert_int_equal(feed(&y, "000200020000000000000000"), 0);
    assert_int_equal(feed(&y, "000100020000000100000026"), 0);
    expect_no_event(&y);
    assert_int_equal(y.unacked, 0);
    assert_int_equal(feed(&y, "000000000000000100000004 01020304"), 0);
    assert_memory_equal(expect_event(&y, MU_YAMUX_EV_DATA, 1).data.data, "\1\2\3\4", 4);
    assert_int_equal(mu_yamux_end(&y, 1), 0);
    expect_output(&y, "000100040000000100000000");
    assert_int_equal(feed(&y, "000100040000000100000000"), 0);
    assert_int_equal(mu_yamux_count(&y), 1);
    (void)expect_event(&y, MU_YAMUX_EV_EOF, 1);
    assert_int_equal(mu_yamux_count(&y), 0);
    assert_int_equal(mu_yamux_go_away(&y, MU_YAMUX_NORMAL), 0);
    expect_output(&y, "000300000000000000000000");
    mu_yamux_fini(&y);
}

static void test_yamux_listener_speaks_the_vectors(void **unused)
{
    struct mu_yamux y;
    struct mu_yamux_event e;
    uint32_t id;

    start(&y, MU_YAMUX_LISTENER);
    (void)unused;
    assert_int_equal(feed(&y, "000200010000000000000007"), 0);
    expect_output(&y, "000200020000000000000007");
    assert_int_equal(feed(&y, "000100010000000100000000"), 0);
    (void)expect_event(&y, MU_YAMUX_EV_OPENED, 1);
    expect_output(&y, "000100020000000100000000");
    assert_int_equal(feed(&y, "000000000000000100000026" HEADER_AND_PING), 0);
    e = expect_event(&y, MU_YAMUX_EV_DATA, 1);
    assert_int_equal(e.data.len, 38);
    assert_int_equal(mu_yamux_open(&y, at_ms(0), &id), 0);
    assert_int_equal(id, 2);
    expect_output(&y, "000100010000000200000000");
    assert_int_equal(feed(&y, "000300000000000000000000"), 0);
    assert_int_equal(expect_event(&y, MU_YAMUX_EV_GO_AWAY, 0).code, 0);
    assert_int_equal(mu_yamux_open(&y, at_ms(0), &id), MUSTER_ECLOSED);
    mu_yamux_fini(&y);
}

/* SYN, data, FIN in one frame; an empty frame with FIN; RST with data. */
static void test_yamux_flags_may_ride_on_data(void **unused)
{
    struct mu_yamux y;

    start(&y, MU_YAMUX_LISTENER);
    (void)unused;
    assert_int_equal(feed(&y, "000000050000000100000001 ff"), 0);
    (void)expect_event(&y, MU_YAMUX_EV_OPENED, 1);
    assert_int_equal(feed(&y, "ff"), 0);
    (void)expect_event(&y, MU_YAMUX_EV_DATA, 1);
    (void)expect_event(&y, MU_YAMUX_EV_EOF, 1);
    expect_no_event(&y);
    assert_int_equal(feed(&y, "000000050000000300000000"), 0);
    (void)expect_event(&y, MU_YAMUX_EV_OPENED, 3);
    (void)expect_event(&y, MU_YAMUX_EV_EOF, 3);
    assert_int_equal(feed(&y, "000000090000000500000001"), 0);
    (void)expect_event(&y, MU_YAMUX_EV_OPENED, 5);
    assert_int_equal(feed(&y, "ff"), 0);
    (void)expect_event(&y, MU_YAMUX_EV_DATA, 5);
    (void)expect_event(&y, MU_YAMUX_EV_RESET, 5);
    assert_int_equal(mu_yamux_count(&y), 2);
    mu_yamux_fini(&y);
}

/* --- windows ---------------------------------------------------------------------------------- */

static void test_yamux_write_stops_at_window(void **unused)
{
    static uint8_t data[MU_YAMUX_WINDOW_FIRST + 10];
    struct mu_yamux y;
    uint32_t id;

    start(&y, MU_YAMUX_DIALLER);
    (void)unused;
    assert_int_equal(mu_yamux_open(&y, at_ms(0), &id), 0);
    expect_write(&y, id, mu_span(data, sizeof(data)), MU_YAMUX_WINDOW_FIRST);
    expect_no_event(&y);
    assert_int_equal(feed(&y, "000100000000000100000003"), 0);
    (void)expect_event(&y, MU_YAMUX_EV_WRITABLE, id);
    expect_no_event(&y);
    expect_write(&y, id, mu_span(data, 10), 3);
    /* The rest of it never goes: the other side throws the stream away. */
    assert_int_equal(feed(&y, "000100080000000100000000"), 0);
    (void)expect_event(&y, MU_YAMUX_EV_RESET, id);
    expect_no_event(&y);
    assert_int_equal(mu_yamux_write(&y, id, MU_SPAN_LIT("x"), &(size_t){0}), MUSTER_ENOENT);
    mu_yamux_fini(&y);
}

static void test_yamux_streams_that_wait_for_room_write_in_turn(void **unused)
{
    static uint8_t data[3 << 19];
    struct mu_yamux y;
    size_t written[3] = {0};
    uint32_t last = 5;

    start(&y, MU_YAMUX_DIALLER);
    (void)unused;
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t id;

        assert_int_equal(mu_yamux_open(&y, at_ms(0), &id), 0);
        assert_int_equal(id, 1 + 2 * i);
        /* A window of a gigabyte: only the output holds them back. */
        assert_int_equal(feed(&y, i == 0   ? "000100020000000140000000"
                                  : i == 1 ? "000100020000000340000000"
                                           : "000100020000000540000000"),
                         0);
        assert_int_equal(mu_yamux_write(&y, id, mu_span(data, sizeof(data)), &written[i]), 0);
    }
    assert_true(written[0] > 1 << 19);
    assert_int_equal(written[1] + written[2], 0);
    written[0] = 0;
    /* To ask again costs nobody its place. */
    expect_write(&y, 1, mu_span(data, 1), 0);
    for (int turn = 0; turn < 30; turn++) {
        struct mu_yamux_event e;

        mu_yamux_sent(&y, mu_yamux_output(&y).len);
        /* There is room, but it is another's turn. */
        expect_write(&y, last, mu_span(data, 1), 0);
        while (mu_yamux_next_event(&y, &e)) {
            size_t taken;

            assert_int_equal(e.type, MU_YAMUX_EV_WRITABLE);
            assert_int_equal(e.id, last == 5 ? 1 : last + 2);
            last = e.id;
            assert_int_equal(mu_yamux_write(&y, e.id, mu_span(data, sizeof(data)), &taken), 0);
            written[e.id / 2] += taken;
        }
    }
    assert_true(written[0] > 5 << 20 && written[1] > 5 << 20 && written[2] > 5 << 20);
    mu_yamux_fini(&y);
}

static void test_yamux_frame_is_for_what_may_be_sent(void **unused)
{
    static uint8_t data[3 << 19];
    static const uint8_t want[MU_YAMUX_HEADER] = {0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0xff, 0xe3};
    uint8_t head[MU_YAMUX_HEADER];
    struct mu_yamux y;
    uint32_t id;

    (void)unused;
    start(&y, MU_YAMUX_DIALLER);
    assert_int_equal(mu_yamux_open(&y, at_ms(0), &id), 0);
    assert_int_equal(mu_yamux_frame(&y, id, 100000, head), 0); /* There is something before it. */
    mu_yamux_sent(&y, mu_yamux_output(&y).len);
    assert_int_equal(mu_yamux_frame(&y, id + 2, 100000, head), 0);
    assert_int_equal(mu_yamux_frame(&y, id, 100000, head), MU_YAMUX_DATA_MAX);
    assert_memory_equal(head, want, sizeof(want));
    /* To ask changes nothing; to have sent it does. */
    for (int i = 0; i < 4; i++) {
        assert_int_equal(mu_yamux_frame(&y, id, 100000, head), MU_YAMUX_DATA_MAX);
        mu_yamux_framed(&y, id, MU_YAMUX_DATA_MAX);
    }
    assert_int_equal(mu_yamux_frame(&y, id, 100000, head),
                     MU_YAMUX_WINDOW_FIRST - 4 * MU_YAMUX_DATA_MAX);
    assert_int_equal(mu_yamux_frame(&y, id, 7, head), 7);
    expect_write(&y, id, mu_span(data, 1000), MU_YAMUX_WINDOW_FIRST - 4 * MU_YAMUX_DATA_MAX);
    mu_yamux_sent(&y, mu_yamux_output(&y).len);
    assert_int_equal(mu_yamux_frame(&y, id, 7, head), 0);
    mu_yamux_fini(&y);
}

/* What was taken over and is not on the wire yet holds writers back as the output does. */
static void test_yamux_what_is_behind_counts_as_output(void **unused)
{
    struct mu_yamux y;
    uint8_t head[MU_YAMUX_HEADER];
    uint32_t id;

    (void)unused;
    start(&y, MU_YAMUX_DIALLER);
    assert_int_equal(mu_yamux_open(&y, at_ms(0), &id), 0);
    mu_yamux_sent(&y, mu_yamux_output(&y).len);
    mu_yamux_set_behind(&y, y.config.output_bytes_max - 1);
    assert_int_equal(mu_yamux_frame(&y, id, 5, head), 5);
    mu_yamux_set_behind(&y, y.config.output_bytes_max);
    assert_int_equal(mu_yamux_frame(&y, id, 5, head), 0);
    expect_write(&y, id, MU_SPAN_LIT("words"), 0);
    expect_no_event(&y);
    mu_yamux_set_behind(&y, y.config.output_bytes_max / 4 + 1);
    expect_no_event(&y);
    mu_yamux_set_behind(&y, y.config.output_bytes_max / 4);
    (void)expect_event(&y, MU_YAMUX_EV_WRITABLE, id);
    expect_write(&y, id, MU_SPAN_LIT("words"), 5);
    mu_yamux_fini(&y);
}

/* The bytes of one stream come and are consumed without end, on a path with no length. */
static void test_yamux_window_of_a_short_path_grows_no_further_than_it_needs(void **unused)
{
    static uint8_t frame[MU_YAMUX_HEADER + MU_YAMUX_WINDOW_FIRST];
    struct mu_yamux_config config = mu_yamux_config_defaults();
    const uint8_t pong[MU_YAMUX_HEADER] = {0, 2, 0, 2};
    struct mu_yamux_event e;
    struct mu_yamux y;
    size_t used;

    (void)unused;
    config.role = MU_YAMUX_LISTENER;
    assert_int_equal(mu_yamux_init(&y, &config, at_ms(0)), 0);
    assert_int_equal(mu_yamux_tick(&y, at_ms(0)), 0);
    assert_int_equal(mu_yamux_recv(&y, at_ms(0), mu_span(pong, sizeof(pong)), &used), 0);
    for (uint64_t i = 0; i < 200; i++) {
        struct mu_span in = mu_span(frame, put_data(frame, i == 0, 1, MU_YAMUX_WINDOW_FIRST));

        while (in.len != 0) {
            assert_int_equal(mu_yamux_recv(&y, at_ms(i), in, &used), 0);
            in = mu_span_skip(in, used);
            while (mu_yamux_next_event(&y, &e)) {
            }
        }
        assert_int_equal(mu_yamux_consumed(&y, at_ms(i), 1, MU_YAMUX_WINDOW_FIRST), 0);
        mu_yamux_sent(&y, mu_yamux_output(&y).len);
    }
    assert_int_equal(y.grown, (4 << 20) - MU_YAMUX_WINDOW_FIRST);
    mu_yamux_fini(&y);
}

static void test_yamux_who_has_ended_is_not_told_to_write(void **unused)
{
    static uint8_t data[1 << 20];
    struct mu_yamux y;
    uint32_t id;

    (void)unused;
    start(&y, MU_YAMUX_DIALLER);
    y.config.output_bytes_max = 2 * MU_YAMUX_DATA_MAX;
    assert_int_equal(mu_yamux_open(&y, at_ms(0), &id), 0);
    assert_int_equal(mu_yamux_write(&y, id, mu_span(data, sizeof(data)), &(size_t){0}), 0);
    assert_int_equal(mu_yamux_end(&y, id), 0);
    mu_yamux_sent(&y, mu_yamux_output(&y).len);
    expect_no_event(&y);
    mu_yamux_fini(&y);
}

/* The other side's end has come, and ours goes out before that is told. */
static void test_yamux_an_end_is_told_though_both_have_ended(void **unused)
{
    struct mu_yamux y;
    uint32_t id;

    (void)unused;
    start(&y, MU_YAMUX_DIALLER);
    assert_int_equal(mu_yamux_open(&y, at_ms(0), &id), 0);
    assert_int_equal(feed(&y, "000100040000000100000000"), 0);
    assert_int_equal(mu_yamux_end(&y, id), 0);
    (void)expect_event(&y, MU_YAMUX_EV_EOF, id);
    assert_int_equal(mu_yamux_count(&y), 0);
    mu_yamux_fini(&y);
}

static void test_yamux_grants_what_was_consumed_and_not_before(void **unused)
{
    static uint8_t frame[MU_YAMUX_HEADER + MU_YAMUX_WINDOW_FIRST];
    struct mu_yamux y;
    size_t len = put_data(frame, 1, 1, MU_YAMUX_WINDOW_FIRST);
    size_t used;

    start(&y, MU_YAMUX_LISTENER);
    (void)unused;
    assert_int_equal(mu_yamux_recv(&y, at_ms(0), mu_span(frame, len), &used), 0);
    assert_int_equal(used, MU_YAMUX_HEADER);
    (void)expect_event(&y, MU_YAMUX_EV_OPENED, 1);
    assert_int_equal(mu_yamux_recv(&y, at_ms(0), mu_span_skip(mu_span(frame, len), used), &used),
                     0);
    assert_int_equal(expect_event(&y, MU_YAMUX_EV_DATA, 1).data.len, MU_YAMUX_WINDOW_FIRST);
    mu_yamux_sent(&y, mu_yamux_output(&y).len);
    assert_int_equal(mu_yamux_consumed(&y, at_ms(20), 1, MU_YAMUX_WINDOW_FIRST / 2 - 1), 0);
    expect_output(&y, "");
    assert_int_equal(mu_yamux_consumed(&y, at_ms(20), 1, 1), 0);
    expect_output(&y, "000100000000000100020000");
    assert_int_equal(mu_yamux_consumed(&y, at_ms(40), 1, MU_YAMUX_WINDOW_FIRST / 2), 0);
    expect_output(&y, "000100000000000100020000");
    mu_yamux_fini(&y);
}

/* A window that is emptied within a round trip or four doubles, up to its bound and to that of all
 * streams together; one that is not stays. */
static void test_yamux_window_grows_with_the_path(void **unused)
{
    static uint8_t frame[MU_YAMUX_HEADER + MU_YAMUX_WINDOW_FIRST];
    struct mu_yamux_config config = mu_yamux_config_defaults();
    static const struct {
        uint64_t rtt_ms;
        uint64_t after_ms;
        uint64_t grown_max;
        uint32_t granted;
    } cases[] = {
        {10, 39, 1 << 20, 2 * MU_YAMUX_WINDOW_FIRST},
        {10, 41, 1 << 20, MU_YAMUX_WINDOW_FIRST},
        {10, 39, MU_YAMUX_WINDOW_FIRST - 1, MU_YAMUX_WINDOW_FIRST},
        {10, 39, MU_YAMUX_WINDOW_FIRST, 2 * MU_YAMUX_WINDOW_FIRST},
        {0, 9, 1 << 20, 2 * MU_YAMUX_WINDOW_FIRST}, /* A path with no length has its turns. */
        {0, 11, 1 << 20, MU_YAMUX_WINDOW_FIRST},
    };

    (void)unused;
    config.role = MU_YAMUX_LISTENER;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct mu_yamux y;
        struct mu_yamux_event e;
        struct mu_span out;
        struct mu_span in = mu_span(frame, put_data(frame, 1, 1, MU_YAMUX_WINDOW_FIRST));
        const uint8_t pong[MU_YAMUX_HEADER] = {0, 2, 0, 2};
        size_t used;

        config.grown_bytes_max = cases[i].grown_max;
        assert_int_equal(mu_yamux_init(&y, &config, at_ms(0)), 0);
        assert_int_equal(mu_yamux_tick(&y, at_ms(0)), 0);
        assert_int_equal(
            mu_yamux_recv(&y, at_ms(cases[i].rtt_ms), mu_span(pong, sizeof(pong)), &used), 0);
        while (in.len != 0) {
            assert_int_equal(mu_yamux_recv(&y, at_ms(cases[i].rtt_ms), in, &used), 0);
            in = mu_span_skip(in, used);
            while (mu_yamux_next_event(&y, &e)) {
            }
        }
        mu_yamux_sent(&y, mu_yamux_output(&y).len);
        assert_int_equal(mu_yamux_consumed(&y, at_ms(cases[i].rtt_ms + cases[i].after_ms), 1,
                                           MU_YAMUX_WINDOW_FIRST),
                         0);
        out = mu_yamux_output(&y);
        assert_int_equal(out.len, MU_YAMUX_HEADER);
        assert_int_equal(out.data[8] << 24 | out.data[9] << 16 | out.data[10] << 8 | out.data[11],
                         cases[i].granted);
        assert_int_equal(mu_yamux_reset(&y, 1), 0);
        assert_int_equal(y.grown, 0);
        mu_yamux_fini(&y);
    }
}

/* On a short path a window grows though no ping was answered yet; on others it does not. */
static void test_yamux_window_of_a_path_that_is_not_measured(void **unused)
{
    static uint8_t frame[MU_YAMUX_HEADER + MU_YAMUX_WINDOW_FIRST];
    struct mu_yamux_event e;
    struct mu_yamux y;
    size_t used;

    (void)unused;
    for (uint64_t after_ms = 9; after_ms <= 11; after_ms += 2) {
        struct mu_span in = mu_span(frame, put_data(frame, 1, 1, MU_YAMUX_WINDOW_FIRST));

        start(&y, MU_YAMUX_LISTENER);
        while (in.len != 0) {
            assert_int_equal(mu_yamux_recv(&y, at_ms(0), in, &used), 0);
            in = mu_span_skip(in, used);
            while (mu_yamux_next_event(&y, &e)) {
            }
        }
        assert_int_equal(mu_yamux_consumed(&y, at_ms(after_ms), 1, MU_YAMUX_WINDOW_FIRST), 0);
        assert_int_equal(y.grown, after_ms < 10 ? MU_YAMUX_WINDOW_FIRST : 0);
        mu_yamux_fini(&y);
    }
}

/* A pong that waited behind data does not make the path longer. */
static void test_yamux_path_is_as_long_as_the_shortest_round_trip(void **unused)
{
    static const uint64_t rtt_ms[] = {7, 5, 900};
    static const uint64_t least_ms[] = {7, 5, 5};
    struct mu_yamux_config config = mu_yamux_config_defaults();
    uint8_t pong[MU_YAMUX_HEADER] = {0, 2, 0, 2};
    struct mu_yamux y;
    size_t used;

    (void)unused;
    config.role = MU_YAMUX_LISTENER;
    assert_int_equal(mu_yamux_init(&y, &config, at_ms(0)), 0);
    for (size_t i = 0; i < 3; i++) {
        uint64_t at = i * config.keep_alive_ms;

        assert_int_equal(mu_yamux_tick(&y, at_ms(at)), 0);
        mu_yamux_sent(&y, mu_yamux_output(&y).len);
        pong[11] = (uint8_t)i;
        assert_int_equal(
            mu_yamux_recv(&y, at_ms(at + rtt_ms[i]), mu_span(pong, sizeof(pong)), &used), 0);
        assert_int_equal(y.rtt_ns, least_ms[i] * MU_NS_PER_MS + 1);
    }
    mu_yamux_fini(&y);
}

/* --- time ------------------------------------------------------------------------------------- */

static void test_yamux_a_peer_that_does_not_answer_is_dead(void **unused)
{
    struct mu_yamux_config config = mu_yamux_config_defaults();
    struct mu_yamux y;
    const uint8_t other[MU_YAMUX_HEADER] = {0, 1, 0, 0, 0, 0, 0, 9};
    const uint8_t pong[MU_YAMUX_HEADER] = {0, 2, 0, 2};
    size_t used;

    (void)unused;
    config.role = MU_YAMUX_DIALLER;
    assert_int_equal(mu_yamux_init(&y, &config, at_ms(0)), 0);
    assert_int_equal(mu_yamux_deadline(&y).ns, at_ms(0).ns);
    assert_int_equal(mu_yamux_tick(&y, at_ms(0)), 0);
    expect_output(&y, "000200010000000000000000");
    assert_int_equal(mu_yamux_deadline(&y).ns, at_ms(10000).ns);
    assert_int_equal(mu_yamux_recv(&y, at_ms(25), mu_span(pong, sizeof(pong)), &used), 0);
    assert_int_equal(mu_yamux_deadline(&y).ns, at_ms(30000).ns);
    assert_int_equal(mu_yamux_tick(&y, at_ms(29999)), 0);
    expect_output(&y, "");
    assert_int_equal(mu_yamux_tick(&y, at_ms(30000)), 0);
    expect_output(&y, "000200010000000000000001");
    /* An old answer is none, but something was heard. */
    assert_int_equal(mu_yamux_recv(&y, at_ms(31000), mu_span(pong, sizeof(pong)), &used), 0);
    assert_int_equal(mu_yamux_recv(&y, at_ms(39000), mu_span(other, sizeof(other)), &used), 0);
    assert_int_equal(mu_yamux_deadline(&y).ns, at_ms(49000).ns);
    assert_int_equal(mu_yamux_tick(&y, at_ms(48999)), 0);
    expect_no_event(&y);
    assert_int_equal(mu_yamux_tick(&y, at_ms(49000)), 0);
    (void)expect_event(&y, MU_YAMUX_EV_DEAD, 0);
    assert_int_equal(mu_yamux_deadline(&y).ns, MU_MONO_NEVER.ns);
    mu_yamux_fini(&y);
}

static void test_yamux_who_slept_finds_nobody_dead(void **unused)
{
    struct mu_yamux_config config = mu_yamux_config_defaults();
    struct mu_yamux y;

    (void)unused;
    config.role = MU_YAMUX_DIALLER;
    assert_int_equal(mu_yamux_init(&y, &config, at_ms(0)), 0);
    assert_int_equal(mu_yamux_tick(&y, at_ms(0)), 0);
    assert_int_equal(mu_yamux_tick(&y, at_ms(600000)), 0);
    expect_no_event(&y);
    assert_int_equal(mu_yamux_deadline(&y).ns, at_ms(610000).ns);
    assert_int_equal(mu_yamux_tick(&y, at_ms(610000)), 0);
    (void)expect_event(&y, MU_YAMUX_EV_DEAD, 0);
    mu_yamux_fini(&y);
}

/* --- pieces, garbage, memory ------------------------------------------------------------------ */

/* What a peer may say in one go, and the events it makes, as text; data in one piece counts as the
 * same data in many. */
static void tell_story(const char *hex, size_t step, char *story, size_t cap)
{
    struct mu_yamux y;
    struct mu_prng rng = {step};
    uint8_t bytes[512];
    struct mu_span in = mu_span(bytes, hex_decode(bytes, sizeof(bytes), hex));
    uint32_t in_data = 0;
    size_t at = 0;

    start(&y, MU_YAMUX_LISTENER);
    while (in.len != 0) {
        size_t piece = step == 0 ? (size_t)mu_prng_below(&rng, 40) + 1 : step;
        struct mu_yamux_event e;
        size_t used;

        piece = piece < in.len ? piece : in.len;
        assert_int_equal(mu_yamux_recv(&y, at_ms(0), mu_span(in.data, piece), &used), 0);
        in = mu_span_skip(in, used);
        while (mu_yamux_next_event(&y, &e)) {
            if (e.type != MU_YAMUX_EV_DATA || e.id != in_data) {
                at += (size_t)snprintf(story + at, cap - at, " %d:%u", (int)e.type, e.id);
            }
            in_data = e.type == MU_YAMUX_EV_DATA ? e.id : 0;
            for (size_t i = 0; e.type == MU_YAMUX_EV_DATA && i < e.data.len; i++) {
                at += (size_t)snprintf(story + at, cap - at, "%02x", e.data.data[i]);
            }
        }
    }
    for (size_t i = 0; i < mu_yamux_output(&y).len; i++) {
        at += (size_t)snprintf(story + at, cap - at, "%02x", mu_yamux_output(&y).data[i]);
    }
    mu_yamux_fini(&y);
}

static const char conversation[] =
    "000200010000000000000001 000100010000000100000000 000000000000000100000005 0102030405"
    "000000010000000300000003 aabbcc 000000000000000100000002 0607 000000000000000900000004 "
    "deadbeef"
    "000000040000000100000001 08 000100080000000300000000 000000000000000300000002 ffff"
    "000200010000000000000002 000300000000000000000000";

static void test_yamux_pieces_make_no_difference(void **unused)
{
    char whole[2048] = "";
    char pieces[2048] = "";

    (void)unused;
    tell_story(conversation, 512, whole, sizeof(whole));
    assert_non_null(strstr(whole, "0102030405"));
    for (size_t step = 0; step < 40; step++) {
        tell_story(conversation, step, pieces, sizeof(pieces));
        assert_string_equal(pieces, whole);
    }
}

static void test_yamux_survives_garbage(void **unused)
{
    struct mu_prng rng = {77};

    (void)unused;
    for (int round = 0; round < 3000; round++) {
        struct mu_yamux y;
        int err = 0;

        start(&y, round % 2 == 0 ? MU_YAMUX_LISTENER : MU_YAMUX_DIALLER);
        for (int i = 0; i < 40 && err == 0; i++) {
            uint8_t head[MU_YAMUX_HEADER + 4] = {0};
            struct mu_yamux_event e;
            size_t used;

            head[1] = (uint8_t)mu_prng_below(&rng, mu_prng_chance(&rng, 20000) ? 256 : 4);
            head[3] = (uint8_t)mu_prng_below(&rng, 16);
            head[7] = (uint8_t)mu_prng_below(&rng, 8);
            head[11] = (uint8_t)mu_prng_below(&rng, 9);
            err = mu_yamux_recv(&y, at_ms(0), mu_span(head, sizeof(head)), &used);
            while (mu_yamux_next_event(&y, &e)) {
            }
        }
        assert_true(err == 0 || err == MUSTER_EPROTO || err == MUSTER_EWINDOW ||
                    err == MUSTER_ELIMIT);
        mu_yamux_fini(&y);
    }
}

static void test_yamux_survives_a_failing_heap(void **unused)
{
    uint8_t bytes[512];
    size_t len = hex_decode(bytes, sizeof(bytes), conversation);
    size_t out_len = 0;
    bool fired = true;

    (void)unused;
    for (long nth = 0; fired; nth++) {
        struct mu_yamux y;
        struct mu_span in = mu_span(bytes, len);
        uint32_t id = 0;
        bool wrote = false;

        start(&y, MU_YAMUX_LISTENER);
        failheap_arm(nth);
        while (in.len != 0 || !wrote) {
            struct mu_yamux_event e;
            size_t used = 0;
            int err = mu_yamux_recv(&y, at_ms(0), in, &used);

            in = mu_span_skip(in, used);
            while (mu_yamux_next_event(&y, &e)) {
            }
            if (err == 0 && id == 0) {
                err = mu_yamux_open(&y, at_ms(0), &id);
            }
            if (err == 0 && !wrote) {
                err = mu_yamux_write(&y, id, MU_SPAN_LIT("some words"), &used);
                wrote = err == 0;
            }
            if (err != 0) {
                assert_int_equal(err, MUSTER_ENOMEM);
                failheap_disarm(); /* The same again, with memory. */
            }
        }
        fired = failheap_fired();
        failheap_disarm();
        assert_int_equal(mu_yamux_count(&y), 2);
        out_len = out_len == 0 ? mu_yamux_output(&y).len : out_len;
        assert_int_equal(mu_yamux_output(&y).len, out_len);
        mu_yamux_fini(&y);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_yamux_dialler_speaks_the_vectors),
        cmocka_unit_test(test_yamux_listener_speaks_the_vectors),
        cmocka_unit_test(test_yamux_flags_may_ride_on_data),
        cmocka_unit_test(test_yamux_write_stops_at_window),
        cmocka_unit_test(test_yamux_streams_that_wait_for_room_write_in_turn),
        cmocka_unit_test(test_yamux_frame_is_for_what_may_be_sent),
        cmocka_unit_test(test_yamux_what_is_behind_counts_as_output),
        cmocka_unit_test(test_yamux_who_has_ended_is_not_told_to_write),
        cmocka_unit_test(test_yamux_an_end_is_told_though_both_have_ended),
        cmocka_unit_test(test_yamux_grants_what_was_consumed_and_not_before),
        cmocka_unit_test(test_yamux_window_grows_with_the_path),
        cmocka_unit_test(test_yamux_window_of_a_path_that_is_not_measured),
        cmocka_unit_test(test_yamux_path_is_as_long_as_the_shortest_round_trip),
        cmocka_unit_test(test_yamux_window_of_a_short_path_grows_no_further_than_it_needs),
        cmocka_unit_test(test_yamux_a_peer_that_does_not_answer_is_dead),
        cmocka_unit_test(test_yamux_who_slept_finds_nobody_dead),
        cmocka_unit_test(test_yamux_pieces_make_no_difference),
        cmocka_unit_test(test_yamux_survives_garbage),
        cmocka_unit_test(test_yamux_survives_a_failing_heap),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
