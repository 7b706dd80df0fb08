/*
 * The votes of those who join a host of the succession: a voter has one in each base, however often
 * it joins.
 */
#include "unit.h"

#include <string.h>

#include "proto/rdzv/succession_internal.h"

#define NONE  MU_SUCCESSION_NO_RANK
#define PEERS 6

static struct mu_succession m;
static struct mu_succession_peer peers[PEERS];
static const mu_mono_t now = {MU_NS_PER_S};

/* --- the rig ---------------------------------------------------------------------------------- */

static struct mu_succession_view committed(uint64_t round, uint32_t world, uint32_t rank)
{
    return (struct mu_succession_view){
        .term = 1,
        .round = round,
        .step = MU_SUCCESSION_COMMITTED,
        .count = 1,
        .may = {{.term = 1, .round = round, .world = world, .rank = rank}}};
}

/* The host of term 1, which has committed the first `count` rounds, or may have. */
static void host(uint32_t count, uint32_t world)
{
    static const struct mu_succession_heir heir = {"a", "a:1"};

    memset(peers, 0, sizeof(peers));
    mu_succession_init(
        &m, &(struct mu_succession_config){.name = heir.name, .address = heir.address, .seed = 1});
    mu_succession_start(&m, now, &(struct mu_succession_line){.count = 1, .heirs = &heir}, 0);
    assert_int_equal(m.state, MU_SUCCESSION_HOSTING);
    for (uint32_t i = 0; i < count; i++) {
        m.bases[i] = (struct mu_electorate){.term = 1, .round = i + 1, .world = world};
    }
    m.base_count = count;
    m.first_round = count + 1;
}

static void join(size_t who, struct mu_succession_view view)
{
    peers[who].view = view;
    mu_succession_peer_in(&m, now, &peers[who]);
}

static void say(size_t who, enum mu_succession_step step)
{
    mu_succession_ready(&m, now, &peers[who], 1, m.preparing.round, step);
}

/* --- tests ------------------------------------------------------------------------------------ */

static void test_votes_voter_that_joins_again_has_one(void **state)
{
    struct mu_errmsg msg;

    (void)state;
    host(1, 5);
    join(0, committed(1, 5, 0));
    assert_int_equal(mu_succession_begin(&m, 2, 1, &msg), 0);
    mu_succession_seat(&m, &peers[0], 0);
    mu_succession_go(&m, now);
    say(0, MU_SUCCESSION_TOLD);
    say(0, MU_SUCCESSION_BOUND);
    for (size_t i = 1; i < 4; i++) {
        join(i, committed(1, 5, 1)); /* always the same one */
        say(i, MU_SUCCESSION_BOUND);
        assert_int_equal(mu_succession_count_ready(&m, 0), 2);
    }
    say(1, MU_SUCCESSION_BOUND); /* It has no vote any more. */
    assert_true(mu_succession_waits(&m));
    join(4, committed(1, 5, 3));
    say(4, MU_SUCCESSION_BOUND);
    assert_false(mu_succession_waits(&m));
    assert_int_equal(m.bases[0].round, 2);
    assert_int_equal(peers[0].votes[0], 0);
    join(5, committed(2, 1, 0)); /* the only one of the new round */
    assert_int_equal(peers[0].votes[0], NONE);
    assert_int_equal(peers[5].votes[0], 0);
}

/* Its workers have ended, and begin again, while it goes on hosting: what its vote counts for while
 * it is away, it does not count for twice. */
static void test_votes_host_that_joins_again_has_one(void **state)
{
    (void)state;
    host(2, 3);
    m.view = committed(1, 3, 0);
    join(0, m.view);
    join(1, committed(1, 3, 1));
    mu_succession_peer_out(&m, now, &peers[1], true);
    mu_succession_peer_out(&m, now, &peers[0], true);
    assert_int_equal(mu_succession_count_ready(&m, 0), 2);
    assert_int_equal(mu_succession_count_ready(&m, 1), 0);
    join(0, m.view);
    assert_int_equal(mu_succession_count_ready(&m, 0), 1);
    mu_succession_peer_out(&m, now, &peers[0], false); /* lost: it may be anywhere */
    assert_int_equal(mu_succession_count_ready(&m, 0), 1);
}

/* The bases are so large that some voters of one share their marks with some of the other. */
static void test_votes_in_two_large_bases_are_told_apart(void **state)
{
    struct mu_succession_view first = committed(1, 40000, MU_SUCCESSION_WORLD_MAX / 2 + 5);
    struct mu_succession_view second = committed(2, 40000, 5);

    (void)state;
    host(2, 40000);
    join(1, first);
    join(2, second);
    assert_int_equal(peers[1].votes[0], first.may[0].rank);
    assert_int_equal(peers[2].votes[1], 5);
    join(3, second);
    join(4, first);
    assert_int_equal(peers[1].votes[0], NONE);
    assert_int_equal(peers[2].votes[1], NONE);
    assert_int_equal(peers[3].votes[1], 5);
    assert_int_equal(peers[4].votes[0], first.may[0].rank);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_votes_voter_that_joins_again_has_one),
        cmocka_unit_test(test_votes_host_that_joins_again_has_one),
        cmocka_unit_test(test_votes_in_two_large_bases_are_told_apart),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
