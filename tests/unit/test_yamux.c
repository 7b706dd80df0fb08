/*
 * yamux, one end at a time: the bytes of the protocol, the rules a peer can break, what a peer that
 * never reads can cost, keep-alive, and a heap that fails.
 */
#include "unit.h"

#include <muster/error.h>

#include "core/prng.h"
#include "failheap.h"
#include "hex.h"
#include "proto/yamux.h"

static mu_mono_t at_ms(uint64_t ms)
{
    return mu_mono_add_ms((mu_mono_t){MU_NS_PER_S}, ms);
}

static void start(struct mu_yamux *y, enum mu_yamux_role role)
{
    struct mu_yamux_config config = mu_yamux_config_defaults();

    config.role = role;
    config.seed = 5;
    config.keep_alive_ms = 0;
    assert_int_equal(mu_yamux_init(y, &config, at_ms(0)), 0);
}

/* What it lends lives until the next call. */
static int feed(struct mu_yamux *y, const char *hex)
{
    static uint8_t bytes[512];
    size_t len = hex_decode(bytes, sizeof(bytes), hex);
    size_t used;

    return mu_yamux_recv(y, at_ms(0), mu_span(bytes, len), &used);
}

static void expect_output(struct mu_yamux *y, const char *hex)
{
    uint8_t bytes[512];
    size_t len = hex_decode(bytes, sizeof(bytes), hex);
    struct mu_span out = mu_yamux_output(y);

    assert_int_equal(out.len, len);
    if (len != 0) {
        assert_memory_equal(out.data, bytes, len);
    }
    mu_yamux_sent(y, len);
}

static struct mu_yamux_event expect_event(struct mu_yamux *y, enum mu_yamux_event_type type,
                                          uint32_t id)
{
    struct mu_yamux_event e = {0};

    assert_true(mu_yamux_next_event(y, &e));
    assert_int_equal(e.type, type);
    assert_int_equal(e.id, id);
    return e;
}

static void expect_no_event(struct mu_yamux *y)
{
    struct mu_yamux_event e;

    assert_false(mu_yamux_next_event(y, &e));
}

static void expect_write(struct mu_yamux *y, uint32_t id, struct mu_span data, size_t want)
{
    size_t taken = SIZE_MAX;

    assert_int_equal(mu_yamux_write(y, id, data, &taken), 0);
    assert_int_equal(taken, want);
}

/* A frame of zeroes with a body of `len`. */
static size_t put_data(uint8_t *to, uint16_t flags, uint32_t id, uint32_t len)
{
    const uint8_t head[MU_YAMUX_HEADER] = {
        0,
        0,
        (uint8_t)(flags >> 8),
        (uint8_t)flags,
        (uint8_t)(id >> 24),
        (uint8_t)(id >> 16),
        (uint8_t)(id >> 8),
        (uint8_t)id,
        (uint8_t)(len >> 24),
        (uint8_t)(len >> 16),
        (uint8_t)(len >> 8),
        (uint8_t)len,
    };

    memcpy(to, head, sizeof(head));
    memset(to + sizeof(head), 0, len);
    return sizeof(head) + len;
}

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
    static uint8_t data[1 << 20];
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
    assert_int_equal(mu_yamux_consumed(&y, at_ms(0), 1, MU_YAMUX_WINDOW_FIRST / 2 - 1), 0);
    expect_output(&y, "");
    assert_int_equal(mu_yamux_consumed(&y, at_ms(0), 1, 1), 0);
    expect_output(&y, "000100000000000100020000");
    assert_int_equal(mu_yamux_consumed(&y, at_ms(0), 1, MU_YAMUX_WINDOW_FIRST / 2), 0);
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
        uint64_t after_ms;
        uint64_t grown_max;
        uint32_t granted;
    } cases[] = {
        {39, 1 << 20, 2 * MU_YAMUX_WINDOW_FIRST},
        {41, 1 << 20, MU_YAMUX_WINDOW_FIRST},
        {39, MU_YAMUX_WINDOW_FIRST - 1, MU_YAMUX_WINDOW_FIRST},
        {39, MU_YAMUX_WINDOW_FIRST, 2 * MU_YAMUX_WINDOW_FIRST},
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
        assert_int_equal(mu_yamux_recv(&y, at_ms(10), mu_span(pong, sizeof(pong)), &used), 0);
        while (in.len != 0) {
            assert_int_equal(mu_yamux_recv(&y, at_ms(10), in, &used), 0);
            in = mu_span_skip(in, used);
            while (mu_yamux_next_event(&y, &e)) {
            }
        }
        mu_yamux_sent(&y, mu_yamux_output(&y).len);
        assert_int_equal(
            mu_yamux_consumed(&y, at_ms(10 + cases[i].after_ms), 1, MU_YAMUX_WINDOW_FIRST), 0);
        out = mu_yamux_output(&y);
        assert_int_equal(out.len, MU_YAMUX_HEADER);
        assert_int_equal(out.data[8] << 24 | out.data[9] << 16 | out.data[10] << 8 | out.data[11],
                         cases[i].granted);
        assert_int_equal(mu_yamux_reset(&y, 1), 0);
        assert_int_equal(y.grown, 0);
        mu_yamux_fini(&y);
    }
}

/* --- violations ------------------------------------------------------------------------------- */

static void test_yamux_every_violation_has_its_own_words(void **unused)
{
    static const struct {
        const char *hex; /* behind a SYN for stream 1 */
        int err;
        const char *text;
    } cases[] = {
        {"010000000000000100000000", MUSTER_EPROTO, "version"},
        {"000400000000000100000000", MUSTER_EPROTO, "kind"},
        {"000100010000000200000000", MUSTER_EPROTO, "id of ours"},
        {"000100010000000100000000", MUSTER_EPROTO, "twice"},
        {"000100000000000000000000", MUSTER_EPROTO, "no stream"},
        {"000000010000000000000000", MUSTER_EPROTO, "no stream"},
        {"000000000000000100040001", MUSTER_EWINDOW, "more than its window"},
        {"000000000000000900ffffff000000000000000901000001", MUSTER_ELIMIT, "any window"},
        {"0000000000000001ffffffff", MUSTER_ELIMIT, "any window"},
        {"0001000000000001ffffffff", MUSTER_EWINDOW, "window can hold"},
        {"000100040000000100000000 000000000000000100000001", MUSTER_EPROTO, "behind the end"},
    };

    (void)unused;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct mu_yamux y;
        struct mu_yamux_event e;
        uint8_t bytes[64];
        struct mu_span in = mu_span(bytes, hex_decode(bytes, sizeof(bytes), cases[i].hex));
        size_t used;
        int err;

        start(&y, MU_YAMUX_LISTENER);
        assert_int_equal(feed(&y, "000100010000000100000000"), 0);
        (void)expect_event(&y, MU_YAMUX_EV_OPENED, 1);
        mu_yamux_sent(&y, mu_yamux_output(&y).len);
        if (i == 7) { /* What is for nobody may be as long as a window, and is skipped. */
            static uint8_t zeroes[0xffffff];

            assert_int_equal(mu_yamux_recv(&y, at_ms(0), mu_span(bytes, 12), &used), 0);
            assert_int_equal(mu_yamux_recv(&y, at_ms(0), mu_span(zeroes, 0xffffff), &used), 0);
            assert_int_equal(used, 0xffffff);
            in = mu_span_skip(in, 12);
        }
        do {
            err = mu_yamux_recv(&y, at_ms(0), in, &used);
            in = mu_span_skip(in, used);
            while (mu_yamux_next_event(&y, &e)) {
            }
        } while (err == 0 && in.len != 0);
        assert_int_equal(err, cases[i].err);
        assert_non_null(strstr(mu_yamux_errmsg(&y), cases[i].text));
        /* It says so, once, and is of no use any more. */
        expect_output(&y, "000300000000000000000001");
        assert_int_equal(feed(&y, "000200010000000000000000"), cases[i].err);
        assert_int_equal(mu_yamux_write(&y, 1, MU_SPAN_LIT("x"), &used), cases[i].err);
        assert_int_equal(mu_yamux_end(&y, 1), cases[i].err);
        assert_int_equal(mu_yamux_reset(&y, 1), 0);
        assert_int_equal(mu_yamux_open(&y, at_ms(0), &(uint32_t){0}), MUSTER_ECLOSED);
        assert_int_equal(mu_yamux_go_away(&y, MU_YAMUX_NORMAL), 0);
        assert_int_equal(mu_yamux_deadline(&y).ns, MU_MONO_NEVER.ns);
        expect_output(&y, "");
        mu_yamux_fini(&y);
    }
}

/* Ids may come out of order, as from a peer with several threads, but none of them twice, not even
 * when the stream is long gone: it would be taken for the other by whoever still knows its id. */
static void test_yamux_an_id_is_never_used_again(void **unused)
{
    static const char *const again[] = {"000100010000000300000000", "000100010000000100000000",
                                        "000100010000000500000000"};

    (void)unused;
    for (size_t i = 0; i < 3; i++) {
        struct mu_yamux y;

        start(&y, MU_YAMUX_LISTENER);
        assert_int_equal(feed(&y, "000100010000000500000000"), 0);
        (void)expect_event(&y, MU_YAMUX_EV_OPENED, 5);
        assert_int_equal(feed(&y, "000100010000000100000000"), 0);
        (void)expect_event(&y, MU_YAMUX_EV_OPENED, 1);
        assert_int_equal(feed(&y, "000100010000000300000000"), 0);
        (void)expect_event(&y, MU_YAMUX_EV_OPENED, 3);
        assert_int_equal(feed(&y, "000100010000000900000000"), 0);
        (void)expect_event(&y, MU_YAMUX_EV_OPENED, 9);
        for (uint32_t id = 1; id <= 5; id += 2) {
            assert_int_equal(mu_yamux_reset(&y, id), 0);
        }
        assert_int_equal(feed(&y, again[i]), MUSTER_EPROTO);
        mu_yamux_fini(&y);
    }
    {
        struct mu_yamux y;

        start(&y, MU_YAMUX_LISTENER);
        /* A leap forgets nothing that could still be used. */
        assert_int_equal(feed(&y, "000100010000000500000000"), 0);
        (void)expect_event(&y, MU_YAMUX_EV_OPENED, 5);
        assert_int_equal(feed(&y, "00010001fffffffd00000000"), 0);
        (void)expect_event(&y, MU_YAMUX_EV_OPENED, 0xfffffffd);
        assert_int_equal(feed(&y, "00010001fffffffb00000000"), 0);
        (void)expect_event(&y, MU_YAMUX_EV_OPENED, 0xfffffffb);
        assert_int_equal(feed(&y, "000100010000000700000000"), MUSTER_EPROTO);
        mu_yamux_fini(&y);
    }
}

/* What is remembered of ids is a ring: none of it is taken for a later id. */
static void test_yamux_ids_may_come_late_at_any_time(void **unused)
{
    static const uint32_t numbers[] = {0, 1, 2, 1000, 1100, 1024, 1025, 1026, 1099, 2100, 2047};
    struct mu_yamux y;

    (void)unused;
    start(&y, MU_YAMUX_LISTENER);
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        uint32_t id = 2 * numbers[i] + 1;
        const uint8_t head[MU_YAMUX_HEADER] = {0, 1, 0, 1, 0, 0, (uint8_t)(id >> 8), (uint8_t)id};
        size_t used;

        assert_int_equal(mu_yamux_recv(&y, at_ms(0), mu_span(head, sizeof(head)), &used), 0);
        (void)expect_event(&y, MU_YAMUX_EV_OPENED, id);
    }
    mu_yamux_fini(&y);
}

static void test_yamux_frames_for_streams_that_are_gone_are_skipped(void **unused)
{
    struct mu_yamux y;
    uint32_t id;

    start(&y, MU_YAMUX_DIALLER);
    (void)unused;
    assert_int_equal(mu_yamux_open(&y, at_ms(0), &id), 0);
    assert_int_equal(mu_yamux_reset(&y, id), 0);
    assert_int_equal(mu_yamux_count(&y), 0);
    mu_yamux_sent(&y, mu_yamux_output(&y).len);
    assert_int_equal(feed(&y, "000000020000000100000003 010203 000100000000000100000005"
                              "000100080000000100000000 000200010000000000000009"),
                     0);
    expect_no_event(&y);
    expect_output(&y, "000200020000000000000009");
    assert_int_equal(mu_yamux_consumed(&y, at_ms(0), id, 3), 0);
    assert_int_equal(mu_yamux_end(&y, id), MUSTER_ENOENT);
    mu_yamux_fini(&y);
}

/* --- a peer that never reads ------------------------------------------------------------------ */

static void flood(struct mu_yamux *y, bool pings, size_t *ret_out_max)
{
    struct mu_yamux_event e;
    size_t out_max = 0;
    uint32_t opened = 0;

    for (uint32_t i = 0; i < 200000; i++) {
        uint8_t head[MU_YAMUX_HEADER] = {0, pings ? 2 : 1, 0, 1};
        uint32_t id = pings ? 0 : 2 * i + 1;
        size_t used;

        head[4] = (uint8_t)(id >> 24);
        head[5] = (uint8_t)(id >> 16);
        head[6] = (uint8_t)(id >> 8);
        head[7] = (uint8_t)id;
        assert_int_equal(mu_yamux_recv(y, at_ms(0), mu_span(head, sizeof(head)), &used), 0);
        while (mu_yamux_next_event(y, &e)) {
            opened++;
        }
        out_max = mu_yamux_output(y).len > out_max ? mu_yamux_output(y).len : out_max;
        if (used == 0) {
            break;
        }
    }
    assert_int_equal(opened, pings ? 0 : y->config.streams_max);
    assert_int_equal(mu_yamux_count(y), opened);
    *ret_out_max = out_max;
}

static void test_yamux_a_flood_by_a_peer_that_never_reads_is_not_taken(void **unused)
{
    (void)unused;
    for (int pings = 0; pings < 2; pings++) {
        struct mu_yamux y;
        size_t out_max;
        size_t used;

        start(&y, MU_YAMUX_LISTENER);
        flood(&y, pings != 0, &out_max);
        assert_true(out_max <= y.config.output_bytes_max + 256 * 1024 + MU_YAMUX_HEADER);
        assert_int_equal(feed(&y, "0002"), 0);
        assert_int_equal(mu_yamux_recv(&y, at_ms(0), MU_SPAN_LIT("\0\2"), &used), 0);
        assert_int_equal(used, 0);
        /* Once it reads, it is read. */
        mu_yamux_sent(&y, 1000);
        assert_int_equal(mu_yamux_recv(&y, at_ms(0), MU_SPAN_LIT("\0\2"), &used), 0);
        assert_int_equal(used, 2);
        mu_yamux_fini(&y);
    }
}

static void test_yamux_refuses_streams_beyond_its_limit_and_after_go_away(void **unused)
{
    struct mu_yamux y;

    start(&y, MU_YAMUX_LISTENER);
    (void)unused;
    y.config.streams_max = 1;
    assert_int_equal(feed(&y, "000100010000000100000000"), 0);
    (void)expect_event(&y, MU_YAMUX_EV_OPENED, 1);
    mu_yamux_sent(&y, mu_yamux_output(&y).len);
    assert_int_equal(feed(&y, "000000010000000300000002 aabb"), 0);
    expect_no_event(&y);
    expect_output(&y, "000100080000000300000000");
    assert_int_equal(mu_yamux_reset(&y, 1), 0);
    assert_int_equal(feed(&y, "000100010000000500000000"), 0);
    (void)expect_event(&y, MU_YAMUX_EV_OPENED, 5);
    y.config.streams_max = 100;
    assert_int_equal(mu_yamux_go_away(&y, MU_YAMUX_NORMAL), 0);
    mu_yamux_sent(&y, mu_yamux_output(&y).len);
    assert_int_equal(feed(&y, "000100010000000700000000"), 0);
    expect_no_event(&y);
    expect_output(&y, "000100080000000700000000");
    /* The one that is open goes on. */
    expect_write(&y, 5, MU_SPAN_LIT("x"), 1);
    mu_yamux_fini(&y);
}

static void test_yamux_that_drains_takes_what_was_opened_before_it_was_heard(void **unused)
{
    struct mu_yamux y;
    uint32_t id;

    start(&y, MU_YAMUX_LISTENER);
    (void)unused;
    assert_int_equal(mu_yamux_drain(&y), 0);
    expect_output(&y, "000300000000000000000000");
    assert_int_equal(mu_yamux_open(&y, at_ms(0), &id), MUSTER_ECLOSED);
    assert_int_equal(feed(&y, "000100010000000100000000"), 0);
    (void)expect_event(&y, MU_YAMUX_EV_OPENED, 1);
    expect_output(&y, "000100020000000100000000");
    assert_int_equal(mu_yamux_drain(&y), 0); /* once is enough */
    assert_int_equal(mu_yamux_output(&y).len, 0);
    mu_yamux_fini(&y);
}

static void test_yamux_opens_no_more_than_the_peer_has_accepted(void **unused)
{
    struct mu_yamux y;
    uint32_t id;

    start(&y, MU_YAMUX_DIALLER);
    (void)unused;
    y.config.unacked_max = 2;
    assert_int_equal(mu_yamux_open(&y, at_ms(0), &id), 0);
    assert_int_equal(mu_yamux_open(&y, at_ms(0), &id), 0);
    assert_int_equal(mu_yamux_open(&y, at_ms(0), &id), MUSTER_EAGAIN);
    assert_int_equal(feed(&y, "000100020000000100000000"), 0);
    assert_int_equal(mu_yamux_open(&y, at_ms(0), &id), 0);
    assert_int_equal(id, 5);
    assert_int_equal(mu_yamux_open(&y, at_ms(0), &id), MUSTER_EAGAIN);
    assert_int_equal(mu_yamux_reset(&y, 3), 0);
    assert_int_equal(mu_yamux_allot(&y, &id), 0);
    assert_int_equal(mu_yamux_open_as(&y, at_ms(0), id), 0);
    assert_int_equal(id, 7);
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
        cmocka_unit_test(test_yamux_who_has_ended_is_not_told_to_write),
        cmocka_unit_test(test_yamux_an_end_is_told_though_both_have_ended),
        cmocka_unit_test(test_yamux_grants_what_was_consumed_and_not_before),
        cmocka_unit_test(test_yamux_window_grows_with_the_path),
        cmocka_unit_test(test_yamux_every_violation_has_its_own_words),
        cmocka_unit_test(test_yamux_an_id_is_never_used_again),
        cmocka_unit_test(test_yamux_ids_may_come_late_at_any_time),
        cmocka_unit_test(test_yamux_frames_for_streams_that_are_gone_are_skipped),
        cmocka_unit_test(test_yamux_a_flood_by_a_peer_that_never_reads_is_not_taken),
        cmocka_unit_test(test_yamux_refuses_streams_beyond_its_limit_and_after_go_away),
        cmocka_unit_test(test_yamux_that_drains_takes_what_was_opened_before_it_was_heard),
        cmocka_unit_test(test_yamux_opens_no_more_than_the_peer_has_accepted),
        cmocka_unit_test(test_yamux_a_peer_that_does_not_answer_is_dead),
        cmocka_unit_test(test_yamux_who_slept_finds_nobody_dead),
        cmocka_unit_test(test_yamux_pieces_make_no_difference),
        cmocka_unit_test(test_yamux_survives_garbage),
        cmocka_unit_test(test_yamux_survives_a_failing_heap),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
