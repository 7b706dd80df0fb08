/* The rendezvous' messages as payloads: their bytes, round trips, cuts, limits, what is refused. */
#include "unit.h"

#include <muster/error.h>

#include "codec/rdzv/msg.h"
#include "failheap.h"
#include "proto/rdzv/room.h"

static const struct mu_rdzv_join a_join = {
    .run_id = {(const uint8_t *)"run", 3},
    .node = {(const uint8_t *)"node-7", 6},
    .addr = {(const uint8_t *)"10.0.0.7", 8},
    .topology = {(const uint8_t *)"r1", 2},
    .flags = MU_RDZV_JOIN_MEMBERS,
    .nodes_min = 2,
    .nodes_max = 4,
    .target = 3,
    .restarts_max = UINT32_MAX,
    .last_call_ms = 1000,
    .upscale_delay_ms = UINT64_MAX,
    .join_timeout_ms = 600000,
    .incarnation = 9,
};

/* A buffer with two members of ranks 0 and 1. */
static void put_members(struct mu_buf *b)
{
    struct mu_rdzv_member_msg member = {.node = MU_SPAN_LIT("a"), .addr = MU_SPAN_LIT("10.0.0.1")};

    mu_buf_init(b, 4096);
    assert_int_equal(mu_rdzv_member_encode(b, &member), 0);
    member.node = MU_SPAN_LIT("b");
    member.rank = 1;
    member.place = MU_RDZV_PLACE_RUNNING;
    member.silent_ms = 17;
    assert_int_equal(mu_rdzv_member_encode(b, &member), 0);
}

static void test_rdzv_msg_join_has_the_bytes_of_its_layout(void **state)
{
    static const uint8_t expected[] = {
        1,    3,    'r',  'u',  'n',  6,    'n',  'o',  'd', 'e', '-', '7', /* who */
        8,    '1',  '0',  '.',  '0',  '.',  '0',  '.',  '7', 2,   'r', '1', /* where */
        1,    0,    0,    0,    2,    0,    0,    0,    4,   0,   0,   0,   /* flags, min, max */
        3,    0,    0,    0,    0xff, 0xff, 0xff, 0xff,                     /* target, restarts */
        0xe8, 3,    0,    0,    0,    0,    0,    0,                        /* last call */
        0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,                     /* upscale */
        0xc0, 0x27, 9,    0,    0,    0,    0,    0,                        /* timeout */
        9,    0,    0,    0,    0,    0,    0,    0,                        /* incarnation */
    };
    struct mu_rdzv_join out;
    struct mu_buf b;

    (void)state;
    mu_buf_init(&b, 4096);
    assert_int_equal(mu_rdzv_join_encode(&b, &a_join), 0);
    assert_int_equal(b.len, sizeof(expected));
    assert_memory_equal(mu_buf_span(&b).data, expected, sizeof(expected));
    assert_int_equal(mu_rdzv_join_decode(mu_buf_span(&b), &out), 0);
    assert_span_text(out.run_id, "run");
    assert_span_text(out.node, "node-7");
    assert_span_text(out.addr, "10.0.0.7");
    assert_span_text(out.topology, "r1");
    assert_int_equal(out.flags, MU_RDZV_JOIN_MEMBERS);
    assert_int_equal(out.nodes_min, 2);
    assert_int_equal(out.nodes_max, 4);
    assert_int_equal(out.target, 3);
    assert_int_equal(out.restarts_max, UINT32_MAX);
    assert_int_equal(out.last_call_ms, 1000);
    assert_int_equal(out.upscale_delay_ms, UINT64_MAX);
    assert_int_equal(out.join_timeout_ms, 600000);
    assert_int_equal(out.incarnation, 9);
    for (size_t n = 0; n < b.len; n++) {
        assert_int_equal(mu_rdzv_join_decode(mu_span(mu_buf_span(&b).data, n), &out),
                         MUSTER_EPROTO);
    }
    assert_int_equal(mu_buf_append(&b, MU_SPAN_LIT("later")), 0);
    assert_int_equal(mu_rdzv_join_decode(mu_buf_span(&b), &out), 0);
    b.data[b.head + 24] = 32; /* a flag that nobody knows */
    assert_int_equal(mu_rdzv_join_decode(mu_buf_span(&b), &out), MUSTER_EPROTO);
    b.data[b.head + 24] = 0;
    assert_int_equal(mu_rdzv_join_decode(mu_buf_span(&b), &out), 0);
    b.data[b.head] = 2; /* another version */
    assert_int_equal(mu_rdzv_join_decode(mu_buf_span(&b), &out), MUSTER_EPROTO);
    mu_buf_fini(&b);
}

static void test_rdzv_msg_join_says_how_many_losses_if_they_are_bounded(void **state)
{
    struct mu_rdzv_join join = a_join;
    struct mu_rdzv_join out;
    struct mu_buf b;
    size_t len;

    (void)state;
    mu_buf_init(&b, 4096);
    assert_int_equal(mu_rdzv_join_encode(&b, &join), 0);
    len = b.len;
    mu_buf_reset(&b);
    join.flags |= MU_RDZV_JOIN_LOSSES | MU_RDZV_JOIN_SPENT;
    join.spent = 3;
    join.losses_max = 100;
    join.losses_ms = 3600000;
    assert_int_equal(mu_rdzv_join_encode(&b, &join), 0);
    assert_int_equal(b.len, len + 16);
    assert_int_equal(mu_rdzv_join_decode(mu_buf_span(&b), &out), 0);
    assert_int_equal(out.spent, 3);
    assert_int_equal(out.losses_max, 100);
    assert_int_equal(out.losses_ms, 3600000);
    assert_int_equal(mu_rdzv_join_decode(mu_span(mu_buf_span(&b).data, b.len - 1), &out),
                     MUSTER_EPROTO);
    mu_buf_fini(&b);
}

static void test_rdzv_msg_join_says_how_many_spares_if_they_are_bounded(void **state)
{
    struct mu_rdzv_join join = a_join;
    struct mu_rdzv_join out;
    struct mu_buf b;
    size_t len;

    (void)state;
    mu_buf_init(&b, 4096);
    join.spares = 0x01020304;
    assert_int_equal(mu_rdzv_join_encode(&b, &join), 0);
    len = b.len;
    assert_int_equal(mu_rdzv_join_decode(mu_buf_span(&b), &out), 0);
    assert_int_equal(out.spares, 0);
    mu_buf_reset(&b);
    join.flags |= MU_RDZV_JOIN_SPARES;
    assert_int_equal(mu_rdzv_join_encode(&b, &join), 0);
    assert_int_equal(b.len, len + 4);
    assert_memory_equal(mu_buf_span(&b).data + len, "\4\3\2\1", 4);
    assert_int_equal(mu_rdzv_join_decode(mu_buf_span(&b), &out), 0);
    assert_int_equal(out.flags, join.flags);
    assert_int_equal(out.spares, 0x01020304);
    for (size_t n = len; n < b.len; n++) {
        assert_int_equal(mu_rdzv_join_decode(mu_span(mu_buf_span(&b).data, n), &out),
                         MUSTER_EPROTO);
    }
    mu_buf_fini(&b);
}

static void test_rdzv_msg_names_have_a_longest(void **state)
{
    static const uint8_t long_name[MU_RDZV_NAME_LEN_MAX + 1];
    struct mu_rdzv_member_msg member = {.node = mu_span(long_name, sizeof(long_name))};
    struct mu_rdzv_notice notice = {.kind = MU_RDZV_NOTICE_ENDED};
    struct mu_rdzv_run_msg run = {.state = MU_ROOM_IS_RUNNING};
    struct mu_rdzv_join join = a_join;
    struct mu_rdzv_join out;
    struct mu_buf b;

    (void)state;
    mu_buf_init(&b, 65536);
    notice.who = run.run_id = join.topology = member.node;
    assert_int_equal(mu_rdzv_join_encode(&b, &join), MUSTER_ELIMIT);
    assert_int_equal(mu_rdzv_member_encode(&b, &member), MUSTER_ELIMIT);
    assert_int_equal(mu_rdzv_notice_encode(&b, &notice), MUSTER_ELIMIT);
    assert_int_equal(mu_rdzv_run_encode(&b, &run), MUSTER_ELIMIT);
    assert_int_equal(mu_rdzv_run_id_encode(&b, member.node), MUSTER_ELIMIT);
    run.run_id.len = 0;
    run.text = (struct mu_span){long_name, UINT16_MAX + 1}; /* its bytes are not looked at */
    assert_int_equal(mu_rdzv_run_encode(&b, &run), MUSTER_ELIMIT);
    assert_int_equal(b.len, 0);
    join.topology.len--;
    assert_int_equal(mu_rdzv_join_encode(&b, &join), 0);
    assert_int_equal(mu_rdzv_join_decode(mu_buf_span(&b), &out), 0);
    assert_int_equal(out.topology.len, MU_RDZV_NAME_LEN_MAX);
    mu_buf_fini(&b);
}

static void test_rdzv_msg_what_a_member_says_round_trips(void **state)
{
    static const enum mu_rdzv_say words[] = {MU_RDZV_SAY_FAILED, MU_RDZV_SAY_STOPPED,
                                             MU_RDZV_SAY_DONE};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        enum mu_rdzv_say what = 0;
        uint64_t round = 0;
        struct mu_buf b;

        mu_buf_init(&b, 64);
        assert_int_equal(mu_rdzv_say_encode(&b, words[i], UINT64_MAX - 1), 0);
        assert_int_equal(mu_rdzv_say_decode(mu_buf_span(&b), &what, &round), 0);
        assert_int_equal(what, words[i]);
        assert_int_equal(round, UINT64_MAX - 1);
        for (size_t n = 0; n < b.len; n++) {
            assert_int_equal(mu_rdzv_say_decode(mu_span(mu_buf_span(&b).data, n), &what, &round),
                             MUSTER_EPROTO);
        }
        b.data[b.head + 1] = 5; /* another word */
        assert_int_equal(mu_rdzv_say_decode(mu_buf_span(&b), &what, &round), MUSTER_EPROTO);
        mu_buf_fini(&b);
    }
}

static void test_rdzv_msg_join_says_what_was_spent(void **state)
{
    struct mu_rdzv_join join = a_join;
    struct mu_rdzv_join out;
    struct mu_buf b;

    (void)state;
    join.flags |= MU_RDZV_JOIN_SPENT;
    join.spent = 7;
    mu_buf_init(&b, 4096);
    assert_int_equal(mu_rdzv_join_encode(&b, &join), 0);
    assert_int_equal(mu_rdzv_join_decode(mu_buf_span(&b), &out), 0);
    assert_int_equal(out.spent, 7);
    assert_int_equal(out.spares, join.spares);
    assert_int_equal(
        mu_rdzv_join_decode(mu_span(mu_buf_span(&b).data, mu_buf_span(&b).len - 1), &out),
        MUSTER_EPROTO);
    mu_buf_fini(&b);
}

static void test_rdzv_msg_join_says_where_its_page_is(void **state)
{
    struct mu_rdzv_join join = a_join;
    struct mu_rdzv_join out;
    struct mu_buf b;
    char name[MU_RDZV_NAME_LEN_MAX + 1];

    (void)state;
    join.flags |= MU_RDZV_JOIN_PAGE;
    join.page = MU_SPAN_LIT("node1:29501");
    mu_buf_init(&b, 4096);
    assert_int_equal(mu_rdzv_join_encode(&b, &join), 0);
    assert_int_equal(mu_rdzv_join_decode(mu_buf_span(&b), &out), 0);
    assert_true(mu_span_eq(out.page, join.page));
    assert_int_equal(
        mu_rdzv_join_decode(mu_span(mu_buf_span(&b).data, mu_buf_span(&b).len - 1), &out),
        MUSTER_EPROTO);
    memset(name, 'x', sizeof(name));
    join.page = mu_span(name, sizeof(name));
    assert_int_equal(mu_rdzv_join_encode(&b, &join), MUSTER_ELIMIT);
    mu_buf_fini(&b);
}

static void test_rdzv_msg_notice_round_trips(void **state)
{
    struct mu_rdzv_notice in = {.kind = MU_RDZV_NOTICE_ASSIGNED,
                                .incarnation = 3,
                                .round = 7,
                                .rank = 1,
                                .world = 2,
                                .restarts_left = 5,
                                .waiters = 6,
                                .reason = MU_ROOM_END_FAILED,
                                .place = MU_RDZV_PLACE_SPARE,
                                .has_who = true,
                                .who = MU_SPAN_LIT("node-3"),
                                .who_rank = 4};
    struct mu_rdzv_member_msg member;
    struct mu_rdzv_notice out;
    struct mu_buf members;
    struct mu_buf b;

    (void)state;
    put_members(&members);
    in.members = mu_buf_span(&members);
    mu_buf_init(&b, 4096);
    assert_int_equal(mu_rdzv_notice_encode(&b, &in), 0);
    assert_int_equal(mu_rdzv_notice_decode(mu_buf_span(&b), &out), 0);
    assert_int_equal(out.kind, MU_RDZV_NOTICE_ASSIGNED);
    assert_int_equal(out.incarnation, 3);
    assert_int_equal(out.round, 7);
    assert_int_equal(out.rank, 1);
    assert_int_equal(out.world, 2);
    assert_int_equal(out.restarts_left, 5);
    assert_int_equal(out.waiters, 6);
    assert_int_equal(out.reason, MU_ROOM_END_FAILED);
    assert_int_equal(out.place, MU_RDZV_PLACE_SPARE);
    assert_true(out.has_who);
    assert_span_text(out.who, "node-3");
    assert_int_equal(out.who_rank, 4);
    assert_int_equal(mu_rdzv_member_next(&out.members, &member), 0);
    assert_span_text(member.node, "a");
    assert_span_text(member.addr, "10.0.0.1");
    assert_int_equal(member.rank, 0);
    assert_int_equal(mu_rdzv_member_next(&out.members, &member), 0);
    assert_span_text(member.node, "b");
    assert_int_equal(member.rank, 1);
    assert_int_equal(member.place, MU_RDZV_PLACE_RUNNING);
    assert_int_equal(member.silent_ms, 17);
    assert_int_equal(mu_rdzv_member_next(&out.members, &member), MUSTER_ENOENT);
    for (size_t n = 0; n < b.len; n++) {
        assert_int_equal(mu_rdzv_notice_decode(mu_span(mu_buf_span(&b).data, n), &out),
                         MUSTER_EPROTO);
    }
    assert_int_equal(mu_buf_append(&b, MU_SPAN_LIT("later")), 0);
    assert_int_equal(mu_rdzv_notice_decode(mu_buf_span(&b), &out), 0);
    for (unsigned kind = 0; kind < 256; kind++) {
        b.data[b.head + 1] = (uint8_t)kind;
        assert_int_equal(mu_rdzv_notice_decode(mu_buf_span(&b), &out),
                         kind >= 1 && kind <= 3 ? 0 : MUSTER_EPROTO); /* The rest tells of terms. */
    }
    mu_buf_fini(&members);
    mu_buf_fini(&b);
}

static int decode_after(const struct mu_rdzv_notice *in)
{
    struct mu_rdzv_notice out;
    struct mu_buf b;
    int err;

    mu_buf_init(&b, 4096);
    assert_int_equal(mu_rdzv_notice_encode(&b, in), 0);
    err = mu_rdzv_notice_decode(mu_buf_span(&b), &out);
    mu_buf_fini(&b);
    return err;
}

static void test_rdzv_msg_notice_names_a_list_that_is_elsewhere(void **state)
{
    struct mu_rdzv_notice in = {.kind = MU_RDZV_NOTICE_ASSIGNED,
                                .incarnation = 5,
                                .round = 2,
                                .world = 1000,
                                .list = {.len = 40000, .hash = {0xab, 1}}};
    char text[MU_RDZV_LIST_KEY_MAX];
    struct mu_rdzv_notice out;
    struct mu_buf b;

    (void)state;
    mu_buf_init(&b, 4096);
    assert_int_equal(mu_rdzv_notice_encode(&b, &in), 0);
    assert_int_equal(mu_rdzv_notice_decode(mu_buf_span(&b), &out), 0);
    assert_int_equal(out.members.len, 0);
    assert_int_equal(out.list.len, 40000);
    assert_memory_equal(out.list.hash, in.list.hash, sizeof(in.list.hash));
    assert_span_text(mu_rdzv_list_key(text, MU_SPAN_LIT("run a"), 5, 2, &out.list, 7),
                     "/rdzv/run a/5.2/members."
                     "ab01000000000000000000000000000000000000000000000000000000000000.7");
    for (size_t n = b.len - 35; n < b.len; n++) { /* without it, it is a whole notice */
        assert_int_equal(mu_rdzv_notice_decode(mu_span(mu_buf_span(&b).data, n), &out),
                         MUSTER_EPROTO);
    }
    mu_buf_fini(&b);
    in.list.len = MU_RDZV_LIST_BYTES_MAX + 1;
    assert_int_equal(decode_after(&in), MUSTER_EPROTO);
}

static void test_rdzv_msg_notice_has_one_member_for_each_rank(void **state)
{
    struct mu_rdzv_notice in = {.kind = MU_RDZV_NOTICE_ASSIGNED, .rank = 0, .world = 2};
    struct mu_buf members;

    (void)state;
    put_members(&members);
    in.members = mu_buf_span(&members);
    assert_int_equal(decode_after(&in), 0);
    in.world = 1; /* one too many */
    assert_int_equal(decode_after(&in), MUSTER_EPROTO);
    in.world = 3; /* one too few */
    assert_int_equal(decode_after(&in), MUSTER_EPROTO);
    in.world = 2;
    members.data[members.head + 2 + 2 + 9] = 1; /* out of order */
    assert_int_equal(decode_after(&in), MUSTER_EPROTO);
    in.members.len = 0;
    assert_int_equal(decode_after(&in), 0);
    in.rank = 2; /* beyond the world */
    assert_int_equal(decode_after(&in), MUSTER_EPROTO);
    in.rank = 0;
    in.reason = MU_ROOM_END_FAILED + 1;
    assert_int_equal(decode_after(&in), MUSTER_EPROTO);
    in.reason = 0;
    in.place = MU_RDZV_PLACE_SPARE + 1;
    assert_int_equal(decode_after(&in), MUSTER_EPROTO);
    mu_buf_fini(&members);
}

static void test_rdzv_msg_member_skips_what_a_later_version_added(void **state)
{
    struct mu_rdzv_member_msg member;
    struct mu_span rest;
    struct mu_buf b;
    struct mu_buf grown;

    (void)state;
    put_members(&b);
    mu_buf_init(&grown, 4096);
    /* The same two members, the first of them three bytes longer. */
    assert_int_equal(mu_buf_append(&grown, mu_span(b.data + b.head, 2 + 24)), 0);
    assert_int_equal(mu_buf_append(&grown, MU_SPAN_LIT("new")), 0);
    assert_int_equal(mu_buf_append(&grown, mu_span_skip(mu_buf_span(&b), 2 + 24)), 0);
    mu_put_u16(grown.data + grown.head, 24 + 3);
    rest = mu_buf_span(&grown);
    assert_int_equal(mu_rdzv_member_next(&rest, &member), 0);
    assert_span_text(member.node, "a");
    assert_int_equal(mu_rdzv_member_next(&rest, &member), 0);
    assert_span_text(member.node, "b");
    assert_int_equal(mu_rdzv_member_next(&rest, &member), MUSTER_ENOENT);
    for (size_t n = 1; n < 2 + 24; n++) {
        rest = mu_span(mu_buf_span(&b).data, n);
        assert_int_equal(mu_rdzv_member_next(&rest, &member), MUSTER_EPROTO);
        assert_int_equal(rest.len, n);
    }
    mu_buf_fini(&grown);
    mu_buf_fini(&b);
}

static void test_rdzv_msg_run_id_round_trips(void **state)
{
    struct mu_span id;
    struct mu_buf b;

    (void)state;
    mu_buf_init(&b, 64);
    assert_int_equal(mu_rdzv_run_id_encode(&b, MU_SPAN_LIT("run")), 0);
    assert_int_equal(mu_rdzv_run_id_decode(mu_buf_span(&b), &id), 0);
    assert_span_text(id, "run");
    for (size_t n = 0; n < b.len; n++) {
        assert_int_equal(mu_rdzv_run_id_decode(mu_span(mu_buf_span(&b).data, n), &id),
                         MUSTER_EPROTO);
    }
    mu_buf_reset(&b);
    assert_int_equal(mu_rdzv_run_id_encode(&b, (struct mu_span){0}), 0);
    assert_int_equal(mu_rdzv_run_id_decode(mu_buf_span(&b), &id), 0);
    assert_int_equal(id.len, 0);
    mu_buf_fini(&b);
}

static void test_rdzv_msg_runs_round_trip(void **state)
{
    struct mu_rdzv_run_msg in = {.run_id = MU_SPAN_LIT("run"),
                                 .state = MU_ROOM_IS_FAILED,
                                 .incarnation = 2,
                                 .round = 9,
                                 .nodes_min = 1,
                                 .nodes_max = 8,
                                 .restarts_left = 3,
                                 .counts = {4, 5, 6, 7},
                                 .text = MU_SPAN_LIT("3 of 4 nodes are here"),
                                 .member_count = 2};
    struct mu_rdzv_run_msg out;
    struct mu_span rest;
    struct mu_buf members;
    struct mu_buf b;
    size_t first;

    (void)state;
    put_members(&members);
    in.members = mu_buf_span(&members);
    mu_buf_init(&b, 4096);
    assert_int_equal(mu_rdzv_run_encode(&b, &in), 0);
    first = b.len;
    in.members.len = 0; /* as in the list of all */
    assert_int_equal(mu_rdzv_run_encode(&b, &in), 0);
    rest = mu_buf_span(&b);
    assert_int_equal(mu_rdzv_run_next(&rest, &out), 0);
    assert_span_text(out.run_id, "run");
    assert_int_equal(out.state, MU_ROOM_IS_FAILED);
    assert_int_equal(out.incarnation, 2);
    assert_int_equal(out.round, 9);
    assert_int_equal(out.nodes_min, 1);
    assert_int_equal(out.nodes_max, 8);
    assert_int_equal(out.restarts_left, 3);
    assert_int_equal(out.counts[0], 4);
    assert_int_equal(out.counts[3], 7);
    assert_span_text(out.text, "3 of 4 nodes are here");
    assert_int_equal(out.member_count, 2);
    assert_int_equal(out.members.len, members.len);
    assert_int_equal(mu_rdzv_run_next(&rest, &out), 0);
    assert_int_equal(out.members.len, 0);
    assert_int_equal(out.member_count, 2);
    assert_int_equal(mu_rdzv_run_next(&rest, &out), MUSTER_ENOENT);
    for (size_t n = 1; n < first; n++) {
        rest = mu_span(mu_buf_span(&b).data, n);
        assert_int_equal(mu_rdzv_run_next(&rest, &out), MUSTER_EPROTO);
    }
    mu_buf_reset(&b);
    in.members = mu_buf_span(&members);
    in.member_count = 1;
    assert_int_equal(mu_rdzv_run_encode(&b, &in), 0);
    rest = mu_buf_span(&b);
    assert_int_equal(mu_rdzv_run_next(&rest, &out), MUSTER_EPROTO);
    mu_buf_fini(&members);
    mu_buf_fini(&b);
}

static void test_rdzv_msg_encoders_fail_without_a_trace(void **state)
{
    struct mu_rdzv_notice notice = {.kind = MU_RDZV_NOTICE_ENDED};
    struct mu_rdzv_run_msg run = {.state = MU_ROOM_IS_RUNNING};
    struct mu_rdzv_member_msg member = {.rank = 1};
    struct mu_buf b;

    (void)state;
    mu_buf_init(&b, 4096);
    failheap_arm(0);
    assert_int_equal(mu_rdzv_join_encode(&b, &a_join), MUSTER_ENOMEM);
    assert_int_equal(mu_rdzv_say_encode(&b, MU_RDZV_SAY_FAILED, 1), MUSTER_ENOMEM);
    assert_int_equal(mu_rdzv_notice_encode(&b, &notice), MUSTER_ENOMEM);
    assert_int_equal(mu_rdzv_member_encode(&b, &member), MUSTER_ENOMEM);
    assert_int_equal(mu_rdzv_run_id_encode(&b, a_join.run_id), MUSTER_ENOMEM);
    assert_int_equal(mu_rdzv_run_encode(&b, &run), MUSTER_ENOMEM);
    failheap_disarm();
    assert_int_equal(b.len, 0);
    b.max = 3;
    assert_int_equal(mu_rdzv_join_encode(&b, &a_join), MUSTER_ELIMIT);
    mu_buf_fini(&b);
}

static void test_rdzv_msg_join_with_a_machine_and_a_policy(void **state)
{
    struct mu_rdzv_join join = a_join;
    struct mu_rdzv_join out;
    struct mu_buf b;

    (void)state;
    join.flags = MU_RDZV_JOIN_PAGE | MU_RDZV_JOIN_MACHINE | MU_RDZV_JOIN_EXCLUDE;
    join.page = MU_SPAN_LIT("n:80");
    join.machine = MU_SPAN_LIT("m1");
    join.exclude_after = MU_RDZV_FAILURES_MAX;
    join.exclude_within_ms = 600000;
    join.exclude_for_ms = 1800000;
    mu_buf_init(&b, 4096);
    assert_int_equal(mu_rdzv_join_encode(&b, &join), 0);
    assert_int_equal(mu_rdzv_join_decode(mu_buf_span(&b), &out), 0);
    assert_span_text(out.page, "n:80");
    assert_span_text(out.machine, "m1");
    assert_int_equal(out.exclude_after, MU_RDZV_FAILURES_MAX);
    assert_int_equal(out.exclude_within_ms, 600000);
    assert_int_equal(out.exclude_for_ms, 1800000);
    for (size_t n = 0; n < b.len; n++) {
        assert_int_equal(mu_rdzv_join_decode(mu_span(mu_buf_span(&b).data, n), &out),
                         MUSTER_EPROTO);
    }
    mu_buf_reset(&b);
    join.exclude_after++;
    assert_int_equal(mu_rdzv_join_encode(&b, &join), 0);
    assert_int_equal(mu_rdzv_join_decode(mu_buf_span(&b), &out), MUSTER_EPROTO);
    mu_buf_fini(&b);
}

static void test_rdzv_msg_exclusions_come_back_as_they_were(void **state)
{
    struct mu_rdzv_exclusion_msg in = {.key = MU_SPAN_LIT("m1"),
                                       .node = MU_SPAN_LIT("n1"),
                                       .reason = MU_SPAN_LIT("why"),
                                       .by_hand = true,
                                       .left_ms = 7,
                                       .failure_count = 2,
                                       .ago_ms = {5, 3}};
    struct mu_rdzv_exclude_msg ask = {.run_id = MU_SPAN_LIT("run"),
                                      .who = MU_SPAN_LIT("n1"),
                                      .reason = MU_SPAN_LIT("why"),
                                      .for_ms = 9};
    struct mu_rdzv_exclusion_msg out;
    struct mu_rdzv_exclude_msg asked;
    struct mu_span rest;
    struct mu_buf b;

    (void)state;
    mu_buf_init(&b, 4096);
    assert_int_equal(mu_rdzv_exclusion_encode(&b, &in), 0);
    rest = mu_buf_span(&b);
    assert_int_equal(mu_rdzv_exclusion_next(&rest, &out), 0);
    assert_span_text(out.key, "m1");
    assert_span_text(out.node, "n1");
    assert_span_text(out.reason, "why");
    assert_true(out.by_hand && out.left_ms == 7 && out.failure_count == 2);
    assert_true(out.ago_ms[0] == 5 && out.ago_ms[1] == 3);
    assert_int_equal(mu_rdzv_exclusion_next(&rest, &out), MUSTER_ENOENT);
    for (size_t n = 1; n < b.len; n++) {
        rest = mu_span(mu_buf_span(&b).data, n);
        assert_int_equal(mu_rdzv_exclusion_next(&rest, &out), MUSTER_EPROTO);
    }
    in.failure_count = MU_RDZV_FAILURES_MAX + 1;
    assert_int_equal(mu_rdzv_exclusion_encode(&b, &in), MUSTER_ELIMIT);
    mu_buf_reset(&b);
    assert_int_equal(mu_rdzv_exclude_encode(&b, &ask), 0);
    assert_int_equal(mu_rdzv_exclude_decode(mu_buf_span(&b), &asked), 0);
    assert_span_text(asked.who, "n1");
    assert_int_equal(asked.for_ms, 9);
    for (size_t n = 0; n < b.len; n++) {
        assert_int_equal(mu_rdzv_exclude_decode(mu_span(mu_buf_span(&b).data, n), &asked),
                         MUSTER_EPROTO);
    }
    mu_buf_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rdzv_msg_join_with_a_machine_and_a_policy),
        cmocka_unit_test(test_rdzv_msg_exclusions_come_back_as_they_were),
        cmocka_unit_test(test_rdzv_msg_join_has_the_bytes_of_its_layout),
        cmocka_unit_test(test_rdzv_msg_join_says_how_many_losses_if_they_are_bounded),
        cmocka_unit_test(test_rdzv_msg_join_says_how_many_spares_if_they_are_bounded),
        cmocka_unit_test(test_rdzv_msg_names_have_a_longest),
        cmocka_unit_test(test_rdzv_msg_what_a_member_says_round_trips),
        cmocka_unit_test(test_rdzv_msg_join_says_what_was_spent),
        cmocka_unit_test(test_rdzv_msg_join_says_where_its_page_is),
        cmocka_unit_test(test_rdzv_msg_notice_round_trips),
        cmocka_unit_test(test_rdzv_msg_notice_names_a_list_that_is_elsewhere),
        cmocka_unit_test(test_rdzv_msg_notice_has_one_member_for_each_rank),
        cmocka_unit_test(test_rdzv_msg_member_skips_what_a_later_version_added),
        cmocka_unit_test(test_rdzv_msg_run_id_round_trips),
        cmocka_unit_test(test_rdzv_msg_runs_round_trip),
        cmocka_unit_test(test_rdzv_msg_encoders_fail_without_a_trace),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
