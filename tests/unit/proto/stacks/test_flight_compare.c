/*
 * Flight recorders of several ranks, compared: dumps are written by hand (flight_dump.h), decoded,
 * and the sentences that come of them are compared as a whole.
 */
#include "unit.h"

#include <stdio.h>

#include <muster/error.h>

#include "core/prng.h"
#include "failheap.h"
#include "flight_dump.h"
#include "proto/stacks/flight_compare.h"
#include "rdzv_vectors.h"

#define RANKS 8

/* A run whose ranks have recorded `seq` collectives each, which all have ended. */
struct run {
    struct dump dumps[RANKS];
    struct mu_flight flights[RANKS];
    struct mu_flight_dump in[RANKS];
    size_t count;
    struct mu_flight_compare c;
};

static const char all_ranks[] = "[0, 1, 2, 3, 4, 5, 6, 7]";

static void begin(struct run *r, size_t count)
{
    *r = (struct run){.count = count};
    for (size_t i = 0; i < count; i++) {
        dump_begin(&r->dumps[i], "2.10");
    }
}

static void group_all(struct run *r)
{
    for (size_t i = 0; i < r->count; i++) {
        dump_group(&r->dumps[i], "0", "default_pg", all_ranks);
    }
}

static void record(struct run *r, size_t rank, struct dump_op op)
{
    dump_entry(&r->dumps[rank], op);
}

static void record_all(struct run *r, struct dump_op op)
{
    for (size_t i = 0; i < r->count; i++) {
        record(r, i, op);
    }
}

/* Dumps that were shortened say the same. */
static void compare_briefs(const struct run *r)
{
    struct mu_flight_compare c;
    struct mu_flight briefs[RANKS];
    struct mu_flight_dump in[RANKS];
    struct mu_errmsg msg = {{0}};
    struct mu_buf out;

    mu_buf_init(&out, (size_t)64 << 10);
    for (size_t i = 0; i < r->count; i++) {
        mu_buf_reset(&out);
        assert_int_equal(mu_flight_brief(&r->flights[i], &out), 0);
        mu_flight_init(&briefs[i]);
        if (mu_flight_decode(&briefs[i], mu_buf_span(&out), &msg) != 0) {
            fail_msg("%s", msg.text);
        }
        in[i] = (struct mu_flight_dump){(uint32_t)i, &briefs[i]};
    }
    mu_flight_compare_init(&c);
    assert_int_equal(mu_flight_compare(&c, in, r->count), 0);
    assert_int_equal(c.finding_count, r->c.finding_count);
    for (size_t i = 0; i < c.finding_count; i++) {
        assert_string_equal(c.findings[i].text, r->c.findings[i].text);
        assert_int_equal(c.findings[i].count, r->c.findings[i].count);
    }
    for (size_t i = 0; i < r->count; i++) {
        mu_flight_fini(&briefs[i]);
    }
    mu_flight_compare_fini(&c);
    mu_buf_fini(&out);
}

static void compare(struct run *r)
{
    struct mu_errmsg msg = {{0}};

    for (size_t i = 0; i < r->count; i++) {
        mu_flight_init(&r->flights[i]);
        if (mu_flight_decode(&r->flights[i], dump_end(&r->dumps[i]), &msg) != 0) {
            fail_msg("%s", msg.text);
        }
        r->in[i] = (struct mu_flight_dump){(uint32_t)i, &r->flights[i]};
    }
    mu_flight_compare_init(&r->c);
    assert_int_equal(mu_flight_compare(&r->c, r->in, r->count), 0);
    compare_briefs(r);
}

static void end(struct run *r)
{
    for (size_t i = 0; i < r->count; i++) {
        mu_flight_fini(&r->flights[i]);
        dump_free(&r->dumps[i]);
    }
    mu_flight_compare_fini(&r->c);
}

static void expect(struct run *r, size_t i, enum mu_flight_fault fault, uint32_t first,
                   const char *text)
{
    assert_true(i < r->c.finding_count);
    assert_string_equal(r->c.findings[i].text, text);
    assert_int_equal(r->c.findings[i].fault, fault);
    assert_int_equal(r->c.ranks[r->c.findings[i].first], first);
}

static void test_compare_finds_nothing_in_a_healthy_run(void **unused)
{
    struct run r;

    (void)unused;
    begin(&r, RANKS);
    group_all(&r);
    for (int seq = 1; seq < 50; seq++) {
        record_all(&r, (struct dump_op){.seq = seq});
    }
    compare(&r);
    assert_int_equal(r.c.finding_count, 0);
    end(&r);
}

static void test_compare_tells_who_has_not_entered(void **unused)
{
    struct run r;

    (void)unused;
    begin(&r, RANKS);
    group_all(&r);
    record_all(&r, (struct dump_op){.seq = 117, .file = "/job/train.py", .line = 80});
    for (size_t rank = 0; rank < RANKS; rank++) {
        if (rank != 3) {
            record(&r, rank,
                   (struct dump_op){
                       .seq = 118, .state = "started", .file = "/job/train.py", .line = 81});
        }
    }
    compare(&r);
    assert_int_equal(r.c.finding_count, 1);
    expect(&r, 0, MU_FLIGHT_NOT_ENTERED, 3,
           "ranks 0-2,4-7 wait in all_reduce #118 of group default (train.py:81); "
           "rank 3 has not entered it: its last was all_reduce #117 (train.py:80)");
    assert_int_equal(r.c.findings[0].seq, 118);
    assert_int_equal(r.c.findings[0].count, 1);
    end(&r);
}

/* Two ranks are behind; one has recorded nothing at all. */
static void test_compare_tells_of_several_that_have_not_entered(void **unused)
{
    struct run r;

    (void)unused;
    begin(&r, RANKS);
    group_all(&r);
    for (size_t rank = 1; rank < RANKS; rank++) {
        record(&r, rank, (struct dump_op){.seq = 1});
        if (rank != 6) {
            record(&r, rank, (struct dump_op){.seq = 2, .state = "scheduled"});
        }
    }
    compare(&r);
    expect(&r, 0, MU_FLIGHT_NOT_ENTERED, 0,
           "ranks 1-7 wait in all_reduce #1 of group default; rank 0 has not entered it: "
           "its last was none of this group");
    end(&r);
    begin(&r, RANKS);
    group_all(&r);
    record_all(&r, (struct dump_op){.seq = 1});
    for (size_t rank = 0; rank < RANKS; rank++) {
        if (rank != 2 && rank != 6) {
            record(&r, rank, (struct dump_op){.seq = 2, .state = "scheduled"});
        }
    }
    compare(&r);
    expect(&r, 0, MU_FLIGHT_NOT_ENTERED, 2,
           "ranks 0,1,3-5,7 wait in all_reduce #2 of group default; ranks 2,6 have not entered it: "
           "the last of rank 2 was all_reduce #1");
    end(&r);
}

static void test_compare_tells_who_entered_another(void **unused)
{
    struct run r;

    (void)unused;
    begin(&r, RANKS);
    group_all(&r);
    for (size_t rank = 0; rank < RANKS; rank++) {
        record(&r, rank,
               (struct dump_op){.seq = 5,
                                .state = "started",
                                .name = rank == 0 ? "nccl:broadcast" : "nccl:all_reduce",
                                .file = "/job/train.py",
                                .line = rank == 0 ? 90 : 81});
    }
    compare(&r);
    expect(&r, 0, MU_FLIGHT_OTHER_OP, 0,
           "rank 0 entered broadcast #5 of group default (train.py:90), "
           "but ranks 1-7 entered all_reduce (train.py:81)");
    assert_int_equal(r.c.finding_count, 1);
    end(&r);
}

static void test_compare_tells_whose_sizes_and_types_differ(void **unused)
{
    struct run r;

    (void)unused;
    begin(&r, RANKS);
    group_all(&r);
    for (size_t rank = 0; rank < RANKS; rank++) {
        record(&r, rank,
               (struct dump_op){.seq = 9, .state = "started", .in = rank == 5 ? 1000 : 1024});
    }
    compare(&r);
    assert_int_equal(r.c.finding_count, 1);
    expect(&r, 0, MU_FLIGHT_OTHER_SIZES, 5,
           "rank 5 entered all_reduce #9 of group default with sizes [[1000]], "
           "but ranks 0-4,6,7 with [[1024]]");
    assert_true(mu_flight_is_certain(&r.c, RANKS));
    assert_false(mu_flight_is_certain(&r.c, 1));
    end(&r);
    begin(&r, RANKS);
    group_all(&r);
    for (size_t rank = 0; rank < RANKS; rank++) {
        record(&r, rank,
               (struct dump_op){.seq = 9,
                                .state = "started",
                                .name = "nccl:_all_gather_base",
                                .type = rank < 2 ? "Half" : "Float",
                                .out = rank == 7 ? 1 : 2});
    }
    compare(&r);
    assert_int_equal(r.c.finding_count, 2);
    expect(&r, 0, MU_FLIGHT_OTHER_SIZES, 7,
           "rank 7 entered _all_gather_base #9 of group default with sizes [[1]], "
           "but ranks 0-6 with [[2]]");
    expect(&r, 1, MU_FLIGHT_OTHER_TYPES, 0,
           "ranks 0,1 entered _all_gather_base #9 of group default with types [Half], "
           "but ranks 2-7 with [Float]");
    end(&r);
}

/* An all_gather may be uneven in what goes in; of an all_to_all nothing is known. */
static void test_compare_allows_sizes_that_may_differ(void **unused)
{
    struct run r;

    (void)unused;
    begin(&r, RANKS);
    group_all(&r);
    for (size_t rank = 0; rank < RANKS; rank++) {
        int64_t size = 10 + (int64_t)rank;

        record(&r, rank, (struct dump_op){.seq = 1, .name = "nccl:all_gather", .in = size});
        record(&r, rank, (struct dump_op){.seq = 2, .name = "nccl:reduce_scatter", .out = size});
        record(&r, rank,
               (struct dump_op){.seq = 3, .name = "nccl:all_to_all", .in = size, .out = size});
    }
    compare(&r);
    assert_int_equal(r.c.finding_count, 0);
    end(&r);
}

static void test_compare_tells_what_has_not_finished(void **unused)
{
    struct run r;

    (void)unused;
    begin(&r, RANKS);
    group_all(&r);
    record_all(&r, (struct dump_op){.seq = 3, .state = "started"});
    record_all(&r, (struct dump_op){.seq = 4, .state = "scheduled"});
    compare(&r);
    assert_int_equal(r.c.finding_count, 1);
    expect(&r, 0, MU_FLIGHT_NOT_FINISHED, 0,
           "ranks 0-7 have entered all_reduce #3 of group default and not finished it");
    end(&r);
    begin(&r, RANKS);
    group_all(&r);
    for (size_t rank = 0; rank < RANKS; rank++) {
        record(&r, rank, (struct dump_op){.seq = 3, .state = rank == 4 ? "started" : "completed"});
    }
    compare(&r);
    expect(&r, 0, MU_FLIGHT_NOT_FINISHED, 4,
           "rank 4 has entered all_reduce #3 of group default and not finished it, "
           "but ranks 0-3,5-7 have");
    end(&r);
}

/* Rank 1 enters the collectives of two groups in the other order. */
static void test_compare_tells_of_a_wrong_order_of_groups(void **unused)
{
    struct run r;

    (void)unused;
    begin(&r, 2);
    for (size_t rank = 0; rank < 2; rank++) {
        dump_group(&r.dumps[rank], "0", "default_pg", "[0, 1]");
        dump_group(&r.dumps[rank], "1", "tp", "[0, 1]");
    }
    record(&r, 0, (struct dump_op){.seq = 1, .state = "started"});
    record(&r, 1,
           (struct dump_op){.seq = 1,
                            .state = "started",
                            .group = "1",
                            .desc = "tp",
                            .name = "nccl:all_gather",
                            .file = "/job/model.py",
                            .line = 7});
    compare(&r);
    assert_int_equal(r.c.finding_count, 2);
    expect(
        &r, 0, MU_FLIGHT_NOT_ENTERED, 1,
        "rank 0 waits in all_reduce #1 of group default; rank 1 has not entered it: its last was "
        "none of this group, and it waits in all_gather #1 of group tp (model.py:7)");
    expect(&r, 1, MU_FLIGHT_NOT_ENTERED, 0,
           "rank 1 waits in all_gather #1 of group tp (model.py:7); rank 0 has not entered it: its "
           "last was none of this group, and it waits in all_reduce #1 of group default");
    end(&r);
}

/* Groups of one name but with other members are different groups. */
static void test_compare_tells_groups_apart_by_their_members(void **unused)
{
    struct run r;

    (void)unused;
    begin(&r, 4);
    for (size_t rank = 0; rank < 4; rank++) {
        dump_group(&r.dumps[rank], "1", "undefined", rank < 2 ? "[0, 1]" : "[2, 3]");
        record(&r, rank,
               (struct dump_op){.seq = rank < 2 ? 8 : 2,
                                .state = rank == 2 ? "started" : "completed",
                                .group = "1",
                                .desc = "undefined"});
    }
    compare(&r);
    assert_int_equal(r.c.finding_count, 1);
    expect(&r, 0, MU_FLIGHT_NOT_FINISHED, 2,
           "rank 2 has entered all_reduce #2 of group 1 and not finished it, but rank 3 has");
    end(&r);
}

static void test_compare_names_ranks_without_a_dump(void **unused)
{
    struct run r;

    (void)unused;
    begin(&r, 3);
    group_all(&r);
    record_all(&r, (struct dump_op){.seq = 1});
    compare(&r);
    assert_int_equal(r.c.finding_count, 1);
    expect(&r, 0, MU_FLIGHT_NO_DUMP, 3,
           "there is no dump of ranks 3-7, which belong to group default");
    assert_int_equal(r.c.findings[0].count, 5);
    end(&r);
}

/* Recorders that are full begin at different numbers; a rank may be behind all of them. */
static void test_compare_begins_where_all_recorders_do(void **unused)
{
    struct run r;

    (void)unused;
    begin(&r, 3);
    for (size_t rank = 0; rank < 3; rank++) {
        dump_group(&r.dumps[rank], "0", "default_pg", "[0, 1, 2]");
        for (int64_t seq = 10 + (int64_t)rank; seq < 20; seq++) {
            record(&r, rank, (struct dump_op){.seq = seq});
        }
    }
    compare(&r);
    assert_int_equal(r.c.finding_count, 0);
    end(&r);
    begin(&r, 3);
    for (size_t rank = 0; rank < 3; rank++) {
        dump_group(&r.dumps[rank], "0", "default_pg", "[0, 1, 2]");
        for (int64_t seq = rank == 1 ? 1 : 100; seq < (rank == 1 ? 4 : 105); seq++) {
            record(&r, rank,
                   (struct dump_op){.seq = seq, .state = seq == 3 ? "started" : "completed"});
        }
    }
    compare(&r);
    assert_int_equal(r.c.finding_count, 1);
    expect(&r, 0, MU_FLIGHT_NOT_ENTERED, 1,
           "ranks 0,2 wait in all_reduce #100 of group default; rank 1 has not entered it: its "
           "last was all_reduce #3, and it waits in all_reduce #3 of group default");
    end(&r);
}

/* Operations that were put together have one number. */
static void test_compare_looks_into_coalesced_collectives(void **unused)
{
    static const char *const names[] = {"nccl:all_gather", "nccl:broadcast", "nccl:coalesced"};
    struct run r;

    (void)unused;
    begin(&r, RANKS);
    group_all(&r);
    for (size_t rank = 0; rank < RANKS; rank++) {
        for (size_t i = 0; i < 3; i++) {
            record(&r, rank,
                   (struct dump_op){.seq = 4,
                                    .name = rank == 6 && i == 1 ? "nccl:all_reduce" : names[i]});
        }
    }
    compare(&r);
    assert_int_equal(r.c.finding_count, 1);
    expect(&r, 0, MU_FLIGHT_OTHER_OP, 6,
           "rank 6 entered all_reduce #4 of group default, but ranks 0-5,7 entered broadcast");
    /* They have ended it. */
    assert_false(mu_flight_is_certain(&r.c, RANKS));
    end(&r);
}

static void test_compare_tells_what_was_left_out_of_a_coalesced_collective(void **unused)
{
    struct run r;

    (void)unused;
    begin(&r, RANKS);
    group_all(&r);
    for (size_t rank = 0; rank < RANKS; rank++) {
        record(&r, rank, (struct dump_op){.seq = 4, .name = "nccl:broadcast"});
        if (rank != 6) {
            record(&r, rank, (struct dump_op){.seq = 4, .name = "nccl:all_gather"});
        }
        record(&r, rank, (struct dump_op){.seq = 5, .state = rank == 0 ? "started" : "completed"});
    }
    compare(&r);
    /* The oldest that is recorded may be cut, so what lacks there says nothing. */
    assert_int_equal(r.c.finding_count, 1);
    assert_int_equal(r.c.findings[0].fault, MU_FLIGHT_NOT_FINISHED);
    end(&r);
    begin(&r, RANKS);
    group_all(&r);
    for (size_t rank = 0; rank < RANKS; rank++) {
        record(&r, rank, (struct dump_op){.seq = 3});
        record(&r, rank, (struct dump_op){.seq = 4, .name = "nccl:broadcast"});
        if (rank != 6) {
            record(&r, rank, (struct dump_op){.seq = 4, .name = "nccl:all_gather"});
        }
        record(&r, rank, (struct dump_op){.seq = 5, .state = "started"});
    }
    compare(&r);
    assert_int_equal(r.c.finding_count, 1);
    expect(&r, 0, MU_FLIGHT_LEFT_OUT, 6,
           "ranks 0-5,7 entered all_gather #4 of group default, "
           "which rank 6 left out for all_reduce #5");
    assert_false(mu_flight_is_certain(&r.c, RANKS));
    end(&r);
}

static void test_compare_tells_who_is_missing_in_a_coalesced_collective(void **unused)
{
    struct run r;

    (void)unused;
    begin(&r, RANKS);
    group_all(&r);
    record_all(&r, (struct dump_op){.seq = 4, .name = "nccl:broadcast"});
    for (size_t rank = 0; rank < RANKS; rank++) {
        if (rank != 6) {
            record(&r, rank, (struct dump_op){.seq = 4, .state = "started"});
        }
    }
    compare(&r);
    assert_int_equal(r.c.finding_count, 1);
    expect(&r, 0, MU_FLIGHT_NOT_ENTERED, 6,
           "ranks 0-5,7 wait in all_reduce #4 of group default; rank 6 has not entered it: "
           "its last was broadcast #4");
    end(&r);
}

/* Two threads may record in another order than that of the numbers. */
static void test_compare_goes_by_numbers(void **unused)
{
    struct run r;

    (void)unused;
    begin(&r, RANKS);
    group_all(&r);
    for (size_t rank = 0; rank < RANKS; rank++) {
        for (int64_t seq = 1; seq <= 2; seq++) {
            int64_t number = rank == 3 ? 3 - seq : seq;

            record(&r, rank,
                   (struct dump_op){.seq = number,
                                    .name = number == 1 ? "nccl:broadcast" : "nccl:all_gather"});
        }
    }
    compare(&r);
    assert_int_equal(r.c.finding_count, 0);
    end(&r);
}

static void test_compare_tells_of_messages(void **unused)
{
    struct run r;

    (void)unused;
    begin(&r, 2);
    for (size_t rank = 0; rank < 2; rank++) {
        dump_group(&r.dumps[rank], "0", "default_pg", "[0, 1]");
    }
    record(&r, 0, (struct dump_op){.seq = 1, .p2p = true, .name = "nccl:send 0->1"});
    record(&r, 1,
           (struct dump_op){.seq = 2, .p2p = true, .name = "nccl:recv 1<-0", .state = "started"});
    compare(&r);
    assert_int_equal(r.c.finding_count, 1);
    expect(&r, 0, MU_FLIGHT_MESSAGE, 1,
           "rank 1 waits in recv 1<-0 of group default; "
           "rank 0 is not in the send that belongs to it");
    end(&r);
    begin(&r, 2);
    for (size_t rank = 0; rank < 2; rank++) {
        dump_group(&r.dumps[rank], "0", "default_pg", "[0, 1]");
    }
    record(&r, 0,
           (struct dump_op){.seq = 1, .p2p = true, .name = "nccl:send 0->1", .state = "started"});
    record(&r, 1,
           (struct dump_op){.seq = 2, .p2p = true, .name = "nccl:recv 1<-0", .state = "started"});
    compare(&r);
    assert_int_equal(r.c.finding_count, 2);
    expect(&r, 0, MU_FLIGHT_MESSAGE, 0,
           "rank 0 waits in send 0->1 of group default; rank 1 is in the recv that belongs to it");
    end(&r);
}

/* Rank 2 enters 4 of 5 collectives 30 ms after the others, and rank 0 one of them 10 ms after. */
static void test_compare_measures_who_kept_the_others_waiting(void **unused)
{
    const int64_t second = 1000000000;
    struct run r;

    (void)unused;
    begin(&r, 3);
    for (size_t rank = 0; rank < 3; rank++) {
        dump_group(&r.dumps[rank], "0", "default_pg", "[0, 1, 2]");
        for (int64_t seq = 1; seq <= 5; seq++) {
            bool late = seq == 5 ? rank == 0 : rank == 2;
            double ms = seq == 5 ? (late ? 2 : 12) : (late ? 5 : rank == 0 ? 35 : 36);

            record(&r, rank,
                   (struct dump_op){.seq = seq,
                                    .duration_ms = ms,
                                    .created_ns = (int64_t)rank * 77 * second + seq * second,
                                    .completed_ns =
                                        (int64_t)rank * 77 * second + seq * second + second});
        }
    }
    compare(&r);
    assert_int_equal(r.c.finding_count, 0);
    assert_int_equal(r.c.lags[2].collectives, 5);
    assert_int_equal(r.c.lags[2].last, 4);
    assert_int_equal(r.c.lags[2].kept_ns, 4 * 30 * 1000000);
    assert_int_equal(r.c.lags[2].waited_ns, 10 * 1000000);
    assert_int_equal(r.c.lags[2].span_ns, 5 * second);
    assert_int_equal(mu_flight_lag_permille(&r.c.lags[2]), 24);
    assert_int_equal(r.c.lags[0].last, 1);
    assert_int_equal(r.c.lags[0].kept_ns, 10 * 1000000);
    assert_int_equal(r.c.lags[1].last, 0);
    assert_int_equal(r.c.lags[1].waited_ns, (4 * 31 + 10) * 1000000);
    end(&r);
}

/* Without measured durations, it is the time between two moments of one clock. */
static void test_compare_measures_without_durations(void **unused)
{
    struct run r;

    (void)unused;
    begin(&r, 2);
    for (size_t rank = 0; rank < 2; rank++) {
        dump_group(&r.dumps[rank], "0", "default_pg", "[0, 1]");
        record(&r, rank,
               (struct dump_op){
                   .seq = 1, .created_ns = 1000, .completed_ns = rank == 0 ? 5000 : 2000});
        record(&r, rank, (struct dump_op){.seq = 2, .created_ns = 6000});
    }
    compare(&r);
    assert_int_equal(r.c.lags[0].collectives, 1);
    assert_int_equal(r.c.lags[1].kept_ns, 3000);
    assert_int_equal(r.c.lags[0].waited_ns, 3000);
    end(&r);
}

static void test_compare_keeps_nobody_waiting_alone(void **unused)
{
    struct run r;

    (void)unused;
    begin(&r, 1);
    dump_group(&r.dumps[0], "0", "default_pg", "[0]");
    record(&r, 0, (struct dump_op){.seq = 1, .duration_ms = 5});
    compare(&r);
    assert_int_equal(r.c.lags[0].collectives, 0);
    assert_int_equal(r.c.lags[0].kept_ns, 0);
    end(&r);
}

/* Meets MU_FLIGHT_FINDINGS_MAX and MU_FLIGHT_DUMPS_MAX. */
static void test_compare_has_an_end_to_findings(void **unused)
{
    static char names[MU_FLIGHT_FINDINGS_MAX + 3][8];
    struct run r;

    (void)unused;
    begin(&r, 1);
    for (size_t i = 0; i < MU_FLIGHT_FINDINGS_MAX + 3; i++) {
        (void)snprintf(names[i], sizeof(names[i]), "%zu", i);
        record(&r, 0, (struct dump_op){.seq = 1, .state = "started", .group = names[i]});
    }
    compare(&r);
    assert_int_equal(r.c.finding_count, MU_FLIGHT_FINDINGS_MAX);
    assert_int_equal(r.c.left_out, 3);
    assert_int_equal(mu_flight_compare(&r.c, r.in, MU_FLIGHT_DUMPS_MAX + 1), MUSTER_ELIMIT);
    assert_int_equal(mu_flight_compare(&r.c, r.in, 0), 0);
    assert_int_equal(r.c.finding_count, 0);
    end(&r);
}

/* Dumps that PyTorch wrote itself, of four ranks. */
static void compare_recorded(struct run *r, const char *file, const char *what)
{
    struct mu_errmsg msg = {{0}};
    struct mu_buf b;

    *r = (struct run){.count = 4};
    mu_buf_init(&b, 8192);
    for (size_t rank = 0; rank < r->count; rank++) {
        char name[32];

        (void)snprintf(name, sizeof(name), "%s, rank %zu", what, rank);
        assert_true(rdzv_vector(file, name, 0, &b));
        mu_flight_init(&r->flights[rank]);
        if (mu_flight_decode(&r->flights[rank], mu_buf_span(&b), &msg) != 0) {
            fail_msg("%s: %s", name, msg.text);
        }
        r->in[rank] = (struct mu_flight_dump){(uint32_t)rank, &r->flights[rank]};
    }
    mu_buf_fini(&b);
    mu_flight_compare_init(&r->c);
    assert_int_equal(mu_flight_compare(&r->c, r->in, r->count), 0);
}

static void test_compare_understands_recorded_dumps(void **unused)
{
    struct run r;

    (void)unused;
    for (size_t i = 0; i < 2; i++) {
        compare_recorded(&r, i == 0 ? "flight-2.11.txt" : "flight-2.15.txt", "missing");
        assert_int_equal(r.c.finding_count, 1);
        expect(&r, 0, MU_FLIGHT_NOT_ENTERED, 2,
               "ranks 0,1,3 wait in all_reduce #4 of group default (train.py:19); "
               "rank 2 has not entered it: its last was all_reduce #3 (train.py:14)");
        end(&r);
    }
    compare_recorded(&r, "flight-2.15.txt", "groups");
    assert_int_equal(r.c.finding_count, 2);
    expect(&r, 0, MU_FLIGHT_NOT_ENTERED, 2,
           "ranks 0,1,3 wait in all_reduce #4 of group default (train.py:33); "
           "rank 2 has not entered it: its last was all_reduce #3 (train.py:14), "
           "and it waits in all_gather #1 of group 1 (train.py:32)");
    expect(&r, 1, MU_FLIGHT_NOT_FINISHED, 2,
           "rank 2 has entered all_gather #1 of group 1 and not finished it (train.py:32)");
    end(&r);
}

static void test_compare_survives_a_failing_heap(void **unused)
{
    struct run r;

    (void)unused;
    begin(&r, 3);
    group_all(&r);
    record(&r, 0, (struct dump_op){.seq = 1, .state = "started"});
    compare(&r);
    for (long nth = 0;; nth++) {
        bool fired;
        int err;

        failheap_arm(nth);
        err = mu_flight_compare(&r.c, r.in, r.count);
        fired = failheap_fired();
        failheap_disarm();
        assert_int_equal(err, fired ? MUSTER_ENOMEM : 0);
        assert_int_equal(r.c.finding_count, fired ? 0 : 2);
        if (!fired) {
            assert_true(nth > 7);
            break;
        }
    }
    end(&r);
}

/* Whatever a worker has written: here, dumps with bytes that were changed. */
static void test_compare_survives_any_dump(void **unused)
{
    struct mu_errmsg msg;
    struct mu_prng prng;
    struct run r;

    (void)unused;
    mu_prng_seed(&prng, 5);
    begin(&r, 3);
    group_all(&r);
    for (int64_t seq = 1; seq < 6; seq++) {
        record_all(&r, (struct dump_op){.seq = seq, .file = "train.py", .duration_ms = 1});
        record_all(&r, (struct dump_op){.seq = seq, .p2p = true, .name = "nccl:send 0->1"});
    }
    compare(&r);
    for (int i = 0; i < 5000; i++) {
        size_t rank = mu_prng_below(&prng, 3);
        struct mu_buf *b = &r.dumps[rank].b;
        uint8_t *byte = &b->data[b->head + mu_prng_below(&prng, b->len)];
        uint8_t was = *byte;

        *byte = (uint8_t)mu_prng_u64(&prng);
        (void)mu_flight_decode(&r.flights[rank], mu_buf_span(b), &msg);
        assert_int_equal(mu_flight_compare(&r.c, r.in, r.count), 0);
        *byte = was;
        assert_int_equal(mu_flight_decode(&r.flights[rank], mu_buf_span(b), &msg), 0);
    }
    end(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_compare_finds_nothing_in_a_healthy_run),
        cmocka_unit_test(test_compare_tells_who_has_not_entered),
        cmocka_unit_test(test_compare_tells_of_several_that_have_not_entered),
        cmocka_unit_test(test_compare_tells_who_entered_another),
        cmocka_unit_test(test_compare_tells_whose_sizes_and_types_differ),
        cmocka_unit_test(test_compare_allows_sizes_that_may_differ),
        cmocka_unit_test(test_compare_tells_what_has_not_finished),
        cmocka_unit_test(test_compare_tells_of_a_wrong_order_of_groups),
        cmocka_unit_test(test_compare_tells_groups_apart_by_their_members),
        cmocka_unit_test(test_compare_names_ranks_without_a_dump),
        cmocka_unit_test(test_compare_begins_where_all_recorders_do),
        cmocka_unit_test(test_compare_looks_into_coalesced_collectives),
        cmocka_unit_test(test_compare_tells_what_was_left_out_of_a_coalesced_collective),
        cmocka_unit_test(test_compare_tells_who_is_missing_in_a_coalesced_collective),
        cmocka_unit_test(test_compare_goes_by_numbers),
        cmocka_unit_test(test_compare_tells_of_messages),
        cmocka_unit_test(test_compare_measures_who_kept_the_others_waiting),
        cmocka_unit_test(test_compare_measures_without_durations),
        cmocka_unit_test(test_compare_keeps_nobody_waiting_alone),
        cmocka_unit_test(test_compare_has_an_end_to_findings),
        cmocka_unit_test(test_compare_understands_recorded_dumps),
        cmocka_unit_test(test_compare_survives_a_failing_heap),
        cmocka_unit_test(test_compare_survives_any_dump),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
