/* The messages of succession: what is encoded is decoded to the same, and what is not whole, or
 * does not fit together, is refused. */
#include "codec/rdzv/heir.h"

#include <muster/error.h>

#include "unit.h"

#define NO_RANK UINT32_MAX

static const struct mu_rdzv_legacy a_legacy = {
    .term = 2,
    .round = 7,
    .version = 3,
    .incarnation = 1234567,
    .restarts = 1,
    .losses_for_ms = 36000,
    .members = 5,
    .nodes_min = 2,
    .nodes_max = 4,
    .members_max = 9,
    .restarts_max = 3,
    .losses_max = 100,
    .losses_ms = 3600000,
    .last_call_ms = 1000,
    .upscale_delay_ms = UINT64_MAX,
    .exclude_after = 3,
    .exclude_within_ms = 600000,
    .exclude_for_ms = 1800000,
    .host = {(const uint8_t *)"node1", 5},
    .topology = {(const uint8_t *)"zone/rack", 9},
    .rank = 2,
    .excluded = {(const uint8_t *)"bad", 3},
};

static const struct mu_rdzv_view a_view = {
    .term = 2,
    .round = 8,
    .step = 1,
    .count = 2,
    .may = {{1, 6, 4, 3, 99}, {2, 7, 3, NO_RANK, 99}},
    .told = {2, 8, 3, 1},
    .past_count = 1,
    .past = {{1, 5, 4, 2}},
};

static struct mu_buf encode_legacy(const struct mu_rdzv_legacy *legacy, int expected)
{
    struct mu_buf b;

    mu_buf_init(&b, 2 * MU_RDZV_LEGACY_MAX);
    assert_int_equal(mu_rdzv_legacy_encode(&b, legacy), expected);
    return b;
}

static void test_rdzv_heir_legacy_round_trips(void **state)
{
    static uint8_t long_list[MU_RDZV_LEGACY_MAX];
    struct mu_buf b = encode_legacy(&a_legacy, 0);
    struct mu_rdzv_legacy bad = a_legacy;
    struct mu_rdzv_legacy out;

    (void)state;
    assert_int_equal(mu_rdzv_legacy_decode(mu_buf_span(&b), &out), 0);
    assert_int_equal(out.term, 2);
    assert_int_equal(out.round, 7);
    assert_int_equal(out.version, 3);
    assert_int_equal(out.incarnation, 1234567);
    assert_int_equal(out.losses_for_ms, 36000);
    assert_int_equal(out.members, 5);
    assert_int_equal(out.members_max, 9);
    assert_true(out.upscale_delay_ms == UINT64_MAX);
    assert_int_equal(out.exclude_after, 3);
    assert_int_equal(out.exclude_within_ms, 600000);
    assert_int_equal(out.exclude_for_ms, 1800000);
    assert_true(mu_span_eq(out.host, a_legacy.host));
    assert_true(mu_span_eq(out.topology, a_legacy.topology));
    assert_int_equal(out.rank, 2);
    assert_true(mu_span_eq(out.excluded, a_legacy.excluded));
    for (size_t n = 0; n < b.len; n++) {
        assert_int_equal(mu_rdzv_legacy_decode(mu_span(mu_buf_span(&b).data, n), &out),
                         MUSTER_EPROTO);
    }
    mu_buf_fini(&b);
    bad.nodes_max = 1; /* below the minimum */
    b = encode_legacy(&bad, 0);
    assert_int_equal(mu_rdzv_legacy_decode(mu_buf_span(&b), &out), MUSTER_EPROTO);
    mu_buf_fini(&b);
    bad = a_legacy;
    bad.exclude_after = MU_RDZV_FAILURES_MAX + 1;
    b = encode_legacy(&bad, 0);
    assert_int_equal(mu_rdzv_legacy_decode(mu_buf_span(&b), &out), MUSTER_EPROTO);
    mu_buf_fini(&b);
    bad = a_legacy;
    bad.excluded = mu_span(long_list, MU_RDZV_LEGACY_EXCLUDED_MAX);
    b = encode_legacy(&bad, 0);
    assert_true(b.len <= MU_RDZV_LEGACY_MAX);
    assert_int_equal(mu_rdzv_legacy_decode(mu_buf_span(&b), &out), 0);
    mu_buf_fini(&b);
    bad.excluded.len++;
    b = encode_legacy(&bad, MUSTER_ELIMIT);
    mu_buf_fini(&b);
}

static int ask_and_decode(const struct mu_rdzv_promise *in, struct mu_rdzv_promise *out,
                          struct mu_buf *b)
{
    mu_buf_init(b, 3 * MU_RDZV_LEGACY_MAX);
    assert_int_equal(mu_rdzv_promise_encode(b, in), 0);
    return mu_rdzv_promise_decode(mu_buf_span(b), out);
}

static void test_rdzv_heir_ask_round_trips(void **state)
{
    struct mu_buf legacy = encode_legacy(&a_legacy, 0);
    struct mu_rdzv_promise in = {
        .kind = MU_RDZV_PROMISE_ASK,
        .run_id = MU_SPAN_LIT("run"),
        .node = MU_SPAN_LIT("node2"),
        .term = 3,
        .promised = 3,
        .stopped_in_ms = 812,
        .lost = MU_SPAN_LIT("node1"),
        .view = a_view,
        .legacy = mu_buf_span(&legacy),
    };
    struct mu_rdzv_promise out;
    struct mu_buf b;

    (void)state;
    assert_int_equal(ask_and_decode(&in, &out, &b), 0);
    assert_int_equal(out.kind, MU_RDZV_PROMISE_ASK);
    assert_true(mu_span_eq(out.node, in.node));
    assert_true(mu_span_eq(out.lost, in.lost));
    assert_int_equal(out.term, 3);
    assert_int_equal(out.stopped_in_ms, 812);
    assert_int_equal(out.view.count, 2);
    assert_int_equal(out.view.may[0].rank, 3);
    assert_true(out.view.may[1].rank == NO_RANK);
    assert_int_equal(out.view.told.round, 8);
    assert_int_equal(out.view.past_count, 1);
    assert_int_equal(out.view.past[0].rank, 2);
    assert_true(mu_span_eq(out.legacy, in.legacy));
    for (size_t n = 0; n < b.len; n++) {
        assert_int_equal(mu_rdzv_promise_decode(mu_span(mu_buf_span(&b).data, n), &out),
                         MUSTER_EPROTO);
    }
    mu_buf_fini(&b);
    in.view.may[0].rank = 4; /* not below the world */
    assert_int_equal(ask_and_decode(&in, &out, &b), MUSTER_EPROTO);
    mu_buf_fini(&b);
    in.view = (struct mu_rdzv_view){.step = 3}; /* a step of nothing */
    assert_int_equal(ask_and_decode(&in, &out, &b), MUSTER_EPROTO);
    mu_buf_fini(&b);
    in.view = (struct mu_rdzv_view){.count = MU_RDZV_ELECTORATES_MAX + 1};
    mu_buf_init(&b, 4096);
    assert_int_equal(mu_rdzv_promise_encode(&b, &in), MUSTER_ELIMIT);
    mu_buf_fini(&b);
    mu_buf_fini(&legacy);
}

static void test_rdzv_heir_probe_says_who_hosts(void **state)
{
    struct mu_rdzv_promise in = {
        .kind = MU_RDZV_PROMISE_PROBE,
        .run_id = MU_SPAN_LIT("run"),
        .node = MU_SPAN_LIT("node2"),
        .addr = MU_SPAN_LIT("node2:29400"),
        .term = 2,
        .round = 9,
    };
    struct mu_rdzv_promise out;
    struct mu_buf b;

    (void)state;
    assert_int_equal(ask_and_decode(&in, &out, &b), 0);
    assert_int_equal(out.term, 2);
    assert_int_equal(out.round, 9);
    assert_true(mu_span_eq(out.addr, in.addr));
    mu_buf_fini(&b);
    in.addr.len = 0;
    assert_int_equal(ask_and_decode(&in, &out, &b), MUSTER_EPROTO);
    mu_buf_fini(&b);
}

static int answer_and_decode(const struct mu_rdzv_answer *in, struct mu_rdzv_answer *out)
{
    struct mu_buf b;
    int err;

    mu_buf_init(&b, 512);
    assert_int_equal(mu_rdzv_answer_encode(&b, in), 0);
    for (size_t n = 0; n < b.len; n++) {
        assert_int_equal(mu_rdzv_answer_decode(mu_span(mu_buf_span(&b).data, n), out),
                         MUSTER_EPROTO);
    }
    err = mu_rdzv_answer_decode(mu_buf_span(&b), out);
    mu_buf_fini(&b);
    return err;
}

static void test_rdzv_heir_answers_say_where(void **state)
{
    const struct mu_span where = MU_SPAN_LIT("node2:29400");
    struct mu_rdzv_answer out;

    (void)state;
    assert_int_equal(
        answer_and_decode(&(struct mu_rdzv_answer){.kind = MU_RDZV_ANSWER_RAISE, .term = 2}, &out),
        0);
    assert_int_equal(
        answer_and_decode(
            &(struct mu_rdzv_answer){.kind = MU_RDZV_ANSWER_FOLLOW, .term = 2, .addr = where},
            &out),
        0);
    assert_int_equal(out.kind, MU_RDZV_ANSWER_FOLLOW);
    assert_int_equal(
        answer_and_decode(&(struct mu_rdzv_answer){.kind = MU_RDZV_ANSWER_FOLLOW, .term = 2}, &out),
        MUSTER_EPROTO);
    assert_int_equal(
        answer_and_decode(&(struct mu_rdzv_answer){.kind = MU_RDZV_ANSWER_FORGET, .addr = where},
                          &out),
        MUSTER_EPROTO);
    assert_int_equal(
        answer_and_decode(&(struct mu_rdzv_answer){.kind = MU_RDZV_ANSWER_PROBED}, &out), 0);
    assert_int_equal(
        answer_and_decode(&(struct mu_rdzv_answer){.kind = MU_RDZV_ANSWER_PROBED + 1, .term = 1},
                          &out),
        MUSTER_EPROTO);
}

static void test_rdzv_heir_line_is_bounded(void **state)
{
    const struct mu_rdzv_heir heir = {.node = MU_SPAN_LIT("n"), .addr = MU_SPAN_LIT("n:1")};
    const struct mu_rdzv_heir nowhere = {.node = MU_SPAN_LIT("n")};
    struct mu_rdzv_heir out;
    struct mu_span rest;
    struct mu_buf b;

    (void)state;
    mu_buf_init(&b, 1 << 20);
    for (int i = 0; i < MU_RDZV_LINE_MAX; i++) {
        assert_int_equal(mu_rdzv_heir_encode(&b, &heir), 0);
    }
    assert_true(mu_rdzv_line_fits(mu_buf_span(&b)));
    rest = mu_buf_span(&b);
    assert_int_equal(mu_rdzv_heir_next(&rest, &out), 0);
    assert_true(mu_span_eq(out.addr, heir.addr));
    assert_int_equal(mu_rdzv_heir_encode(&b, &heir), 0);
    assert_false(mu_rdzv_line_fits(mu_buf_span(&b)));
    mu_buf_reset(&b);
    assert_int_equal(mu_rdzv_heir_encode(&b, &nowhere), 0);
    assert_false(mu_rdzv_line_fits(mu_buf_span(&b)));
    mu_buf_fini(&b);
}

/* --- what join, notices and READY say of it --------------------------------------------------- */

static void test_rdzv_heir_prepare_and_moved(void **state)
{
    static const uint8_t long_line[MU_RDZV_LINE_BYTES_MAX + 1];
    const struct mu_rdzv_heir heir = {.addr = MU_SPAN_LIT("node2:1")};
    struct mu_rdzv_notice in = {.kind = MU_RDZV_NOTICE_PREPARE,
                                .round = 8,
                                .rank = 1,
                                .world = 3,
                                .term = 2,
                                .step = 1,
                                .base_count = 1,
                                .bases = {{1, 7, 4, NO_RANK}}};
    struct mu_rdzv_notice out;
    struct mu_buf line;
    struct mu_buf b;

    (void)state;
    mu_buf_init(&line, 100);
    mu_buf_init(&b, 4096);
    assert_int_equal(mu_rdzv_heir_encode(&line, &heir), 0);
    in.line = mu_buf_span(&line);
    assert_int_equal(mu_rdzv_notice_encode(&b, &in), 0);
    assert_int_equal(mu_rdzv_notice_decode(mu_buf_span(&b), &out), 0);
    assert_int_equal(out.term, 2);
    assert_int_equal(out.step, 1);
    assert_int_equal(out.base_count, 1);
    assert_int_equal(out.bases[0].world, 4);
    assert_true(mu_span_eq(out.line, in.line));
    for (size_t n = 0; n < b.len; n++) {
        assert_int_equal(mu_rdzv_notice_decode(mu_span(mu_buf_span(&b).data, n), &out),
                         MUSTER_EPROTO);
    }
    mu_buf_reset(&b);
    in.step = MU_RDZV_STEP_MAX + 1;
    assert_int_equal(mu_rdzv_notice_encode(&b, &in), 0);
    assert_int_equal(mu_rdzv_notice_decode(mu_buf_span(&b), &out), MUSTER_EPROTO);
    in.step = 1;
    mu_buf_reset(&b);
    in.line = mu_span(long_line, sizeof(long_line));
    assert_int_equal(mu_rdzv_notice_encode(&b, &in), MUSTER_ELIMIT);
    in.line = mu_buf_span(&line);
    mu_buf_reset(&b);
    in.rank = 3; /* not below the world */
    assert_int_equal(mu_rdzv_notice_encode(&b, &in), 0);
    assert_int_equal(mu_rdzv_notice_decode(mu_buf_span(&b), &out), MUSTER_EPROTO);
    mu_buf_reset(&b);
    in = (struct mu_rdzv_notice){.kind = MU_RDZV_NOTICE_MOVED, .term = 2, .line = in.line};
    assert_int_equal(mu_rdzv_notice_encode(&b, &in), 0);
    assert_int_equal(mu_rdzv_notice_decode(mu_buf_span(&b), &out), 0);
    mu_buf_reset(&b);
    in.line.len = 0; /* to nowhere */
    assert_int_equal(mu_rdzv_notice_encode(&b, &in), 0);
    assert_int_equal(mu_rdzv_notice_decode(mu_buf_span(&b), &out), MUSTER_EPROTO);
    mu_buf_fini(&line);
    mu_buf_fini(&b);
}

static void test_rdzv_heir_join_and_ready(void **state)
{
    struct mu_rdzv_join join = {.run_id = MU_SPAN_LIT("run"),
                                .node = MU_SPAN_LIT("node2"),
                                .flags = MU_RDZV_JOIN_HEIR | MU_RDZV_JOIN_TERM,
                                .heir = MU_SPAN_LIT("node2:1"),
                                .term = 2,
                                .view = a_view};
    struct mu_rdzv_ready ready = {.round = 8, .term = 2, .step = 2};
    struct mu_rdzv_ready said;
    struct mu_rdzv_join out;
    enum mu_rdzv_say what;
    struct mu_buf b;
    uint64_t round;

    (void)state;
    mu_buf_init(&b, 4096);
    assert_int_equal(mu_rdzv_join_encode(&b, &join), 0);
    assert_int_equal(mu_rdzv_join_decode(mu_buf_span(&b), &out), 0);
    assert_true(mu_span_eq(out.heir, join.heir));
    assert_int_equal(out.term, 2);
    assert_int_equal(out.view.may[0].rank, 3);
    for (size_t n = 0; n < b.len; n++) {
        assert_int_equal(mu_rdzv_join_decode(mu_span(mu_buf_span(&b).data, n), &out),
                         MUSTER_EPROTO);
    }
    mu_buf_reset(&b);
    assert_int_equal(mu_rdzv_ready_encode(&b, &ready), 0);
    assert_int_equal(mu_rdzv_say_decode(mu_buf_span(&b), &what, &round), 0);
    assert_int_equal(what, MU_RDZV_SAY_READY);
    assert_int_equal(mu_rdzv_ready_decode(mu_buf_span(&b), &said), 0);
    assert_int_equal(said.step, 2);
    assert_int_equal(mu_rdzv_ready_decode(mu_span(mu_buf_span(&b).data, b.len - 1), &said),
                     MUSTER_EPROTO);
    mu_buf_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rdzv_heir_legacy_round_trips),
        cmocka_unit_test(test_rdzv_heir_ask_round_trips),
        cmocka_unit_test(test_rdzv_heir_probe_says_who_hosts),
        cmocka_unit_test(test_rdzv_heir_answers_say_where),
        cmocka_unit_test(test_rdzv_heir_line_is_bounded),
        cmocka_unit_test(test_rdzv_heir_prepare_and_moved),
        cmocka_unit_test(test_rdzv_heir_join_and_ready),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
