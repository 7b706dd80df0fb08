/* yamux against a peer that breaks its rules, never reads, or asks for too much. */
#include "failheap.h"
#include "yamux_side.h"

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
        {"000100040000000100000000 000000000000000100000001", MUSTER_EPROTO, "after the end"},
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
    assert_int_equal(mu_yamux_drain(&y, at_ms(0)), 0);
    expect_output(&y, "000300000000000000000000");
    assert_int_equal(mu_yamux_open(&y, at_ms(0), &id), MUSTER_ECLOSED);
    assert_int_equal(feed(&y, "000100010000000100000000"), 0);
    (void)expect_event(&y, MU_YAMUX_EV_OPENED, 1);
    expect_output(&y, "000100020000000100000000");
    assert_int_equal(mu_yamux_drain(&y, at_ms(0)), 0); /* once is enough */
    assert_int_equal(mu_yamux_output(&y).len, 0);
    mu_yamux_fini(&y);
}

static void test_yamux_knows_when_the_peer_has_heard_that_it_drains(void **unused)
{
    struct mu_yamux y;

    (void)unused;
    start(&y, MU_YAMUX_LISTENER);
    y.ping_value = 7;
    assert_int_equal(mu_yamux_drain(&y, at_ms(0)), 0);
    assert_int_equal(mu_yamux_tick(&y, at_ms(0)), 0);
    expect_output(&y, "000300000000000000000000"
                      "000200010000000000000007");
    assert_false(mu_yamux_drained(&y));
    assert_int_equal(feed(&y, "000200020000000000000007"), 0);
    assert_true(mu_yamux_drained(&y));
    mu_yamux_fini(&y);

    /* The answer to an earlier ping proves nothing. */
    start(&y, MU_YAMUX_LISTENER);
    y.ping_at = at_ms(0);
    assert_int_equal(mu_yamux_tick(&y, at_ms(0)), 0);
    assert_int_equal(mu_yamux_drain(&y, at_ms(0)), 0);
    expect_output(&y, "000200010000000000000000"
                      "000300000000000000000000");
    assert_int_equal(feed(&y, "000200020000000000000000"), 0);
    assert_false(mu_yamux_drained(&y));
    assert_int_equal(mu_yamux_tick(&y, at_ms(0)), 0);
    expect_output(&y, "000200010000000000000001");
    assert_int_equal(feed(&y, "000200020000000000000001"), 0);
    assert_true(mu_yamux_drained(&y));
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

/* A peer that never heard of a reset would wait for ever. */
static void test_yamux_a_reset_is_not_forgotten_for_want_of_memory(void **unused)
{
    struct mu_yamux y;
    size_t taken;

    start(&y, MU_YAMUX_LISTENER);
    (void)unused;
    y.config.streams_max = 2;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(feed(&y, i == 0 ? "000100010000000100000000" : "000100010000000300000000"),
                         0);
        (void)expect_event(&y, MU_YAMUX_EV_OPENED, i == 0 ? 1 : 3);
    }
    mu_buf_reset(&y.out);
    mu_buf_trim(&y.out, 0);
    failheap_arm(0);
    assert_int_equal(mu_yamux_reset(&y, 1), MUSTER_ENOMEM);
    assert_int_equal(mu_yamux_reset(&y, 3), MUSTER_ENOMEM);
    assert_int_equal(mu_yamux_say_resets(&y), MUSTER_ENOMEM);
    /* Here they are gone, but for their places: they are still the peer's. */
    assert_int_equal(mu_yamux_count(&y), 0);
    assert_int_equal(mu_yamux_write(&y, 1, MU_SPAN_LIT("x"), &taken), MUSTER_ENOENT);
    assert_int_equal(feed(&y, "000000000000000100000002 aabb"), 0);
    expect_no_event(&y);
    failheap_disarm();
    assert_int_equal(feed(&y, "000100010000000500000000"), 0);
    expect_no_event(&y);
    expect_output(&y, "000100080000000500000000");
    assert_int_equal(mu_yamux_say_resets(&y), 0);
    expect_output(&y, "000100080000000100000000 000100080000000300000000");
    assert_int_equal(mu_yamux_say_resets(&y), 0);
    assert_int_equal(mu_yamux_output(&y).len, 0);
    assert_int_equal(feed(&y, "000100010000000700000000"), 0);
    (void)expect_event(&y, MU_YAMUX_EV_OPENED, 7);
    mu_yamux_fini(&y);
}

/* Nor for want of room, while the peer reads nothing. */
static void test_yamux_a_reset_waits_for_room_in_the_output(void **unused)
{
    struct mu_yamux y;
    uint32_t id;

    start(&y, MU_YAMUX_DIALLER);
    (void)unused;
    assert_int_equal(mu_yamux_open(&y, at_ms(0), &id), 0);
    while (mu_buf_reserve(&y.out, MU_YAMUX_HEADER) == 0) {
        mu_buf_put(&y.out, mu_span((const uint8_t[MU_YAMUX_HEADER]){0}, MU_YAMUX_HEADER));
    }
    assert_int_equal(mu_yamux_reset(&y, id), 0);
    assert_int_equal(mu_yamux_say_resets(&y), 0);
    mu_yamux_sent(&y, mu_yamux_output(&y).len);
    assert_int_equal(mu_yamux_say_resets(&y), 0);
    expect_output(&y, "000100080000000100000000");
    /* One that is never said is freed with the rest. */
    assert_int_equal(mu_yamux_open(&y, at_ms(0), &id), 0);
    mu_buf_reset(&y.out);
    mu_buf_trim(&y.out, 0);
    failheap_arm(0);
    assert_int_equal(mu_yamux_reset(&y, id), MUSTER_ENOMEM);
    failheap_disarm();
    mu_yamux_fini(&y);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_yamux_every_violation_has_its_own_words),
        cmocka_unit_test(test_yamux_an_id_is_never_used_again),
        cmocka_unit_test(test_yamux_ids_may_come_late_at_any_time),
        cmocka_unit_test(test_yamux_frames_for_streams_that_are_gone_are_skipped),
        cmocka_unit_test(test_yamux_a_flood_by_a_peer_that_never_reads_is_not_taken),
        cmocka_unit_test(test_yamux_refuses_streams_beyond_its_limit_and_after_go_away),
        cmocka_unit_test(test_yamux_that_drains_takes_what_was_opened_before_it_was_heard),
        cmocka_unit_test(test_yamux_knows_when_the_peer_has_heard_that_it_drains),
        cmocka_unit_test(test_yamux_opens_no_more_than_the_peer_has_accepted),
        cmocka_unit_test(test_yamux_a_reset_is_not_forgotten_for_want_of_memory),
        cmocka_unit_test(test_yamux_a_reset_waits_for_room_in_the_output),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
