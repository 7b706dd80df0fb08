/*
 * Ranks that stay: a survivor keeps its rank, and a place that was lost goes to the right node.
 * Some stories, and a property over random churn.
 */
#include "unit.h"

#include "core/prng.h"
#include "room_fixture.h"

static struct room_fixture f;

static void join_at(const char *name, const char *topology)
{
    (void)snprintf(room_member(&f, name)->topology, MU_ROOM_TOPOLOGY_MAX, "%s", topology);
    room_join(&f, name);
}

static void drop_notices(void)
{
    struct mu_room_notice n;
    struct mu_room_member *m;

    while (mu_room_next_notice(&f.room, &m, &n)) {
    }
}

static void expect_ranks(const char *names)
{
    char text[256] = "";
    size_t len = 0;

    assert_int_equal(f.room.state, MU_ROOM_IS_RUNNING);
    MU_LIST_FOREACH (it, &f.room.in[MU_ROOM_RUNNING].members) {
        len += (size_t)snprintf(text + len, sizeof(text) - len, "%s%s", len == 0 ? "" : " ",
                                MU_CONTAINER_OF(it, struct mu_room_member, link)->name);
    }
    assert_string_equal(text, names);
    drop_notices();
}

/* --- spares ---------------------------------------------------------------------------------- */

static void test_room_spare_takes_exactly_the_lost_place(void **state)
{
    (void)state;
    room_setup(&f, 3, 3);
    room_join(&f, "c");
    room_join(&f, "d");
    room_join(&f, "e");
    room_join(&f, "z");
    room_join(&f, "a");
    expect_ranks("c d e");

    room_lose(&f, "d"); /* The first spare takes its place, whatever its name. */
    expect_ranks("c z e");
    room_leave(&f, "c");
    expect_ranks("a z e");
    room_join(&f, "d");
    room_lose(&f, "e");
    expect_ranks("a z d");
    room_teardown(&f);
}

static void test_room_spare_with_the_nearest_topology_is_taken(void **state)
{
    (void)state;
    room_setup(&f, 3, 3);
    join_at("a", "zone1/rack1");
    join_at("b", "zone1/rack2");
    join_at("c", "zone2/rack10");
    join_at("first", "zone3/rack2");
    join_at("part", "zone2/rack1");
    join_at("same", "zone1/rack2");
    join_at("none", "");
    expect_ranks("a b c");

    room_lose(&f, "b");
    expect_ranks("a same c");
    room_lose(&f, "c"); /* "zone2/rack1" has one part in common, not one and a half. */
    expect_ranks("a same part");
    room_lose(&f, "a"); /* No key has anything in common: first come. */
    expect_ranks("first same part");
    room_lose(&f, "same");
    expect_ranks("first none part");
    room_teardown(&f);
}

/* A key without the other's last part is nearer than one that begins with the same letters. */
static void test_room_nearness_counts_whole_parts(void **state)
{
    (void)state;
    room_setup(&f, 1, 1);
    join_at("a", "pod7-row2");
    join_at("letters", "pod77");
    join_at("more", "pod7-row22");
    join_at("whole", "pod7");
    expect_ranks("a");
    room_lose(&f, "a");
    expect_ranks("more"); /* As near as "pod7", and it came first. */
    room_lose(&f, "more");
    expect_ranks("whole");
    room_lose(&f, "whole");
    expect_ranks("letters");
    room_teardown(&f);
}

/* --- several places at once ------------------------------------------------------------------ */

static void test_room_places_go_to_the_nearest_of_those_who_come(void **state)
{
    (void)state;
    room_setup(&f, 4, 4);
    join_at("a", "zone1/rack1");
    join_at("b", "zone1/rack2");
    join_at("c", "zone2/rack1");
    join_at("d", "zone2/rack2");
    expect_ranks("a b c d");

    room_lose(&f, "b");
    room_lose(&f, "c");
    /* By order of names and keys alone, x would come first. */
    join_at("x", "zone2/rack0");
    join_at("y", "zone1/rack2");
    expect_ranks("a y x d");
    room_teardown(&f);
}

static void test_room_node_that_is_back_gets_its_place_again(void **state)
{
    (void)state;
    room_setup(&f, 4, 4);
    room_join(&f, "z");
    room_join(&f, "y");
    room_join(&f, "x");
    room_join(&f, "w");
    expect_ranks("w x y z");
    room_lose(&f, "w");
    room_join(&f, "a");
    expect_ranks("a x y z");

    room_lose(&f, "a");
    room_lose(&f, "z");
    room_join(&f, "b"); /* It comes before both in the order of names. */
    room_join(&f, "a");
    expect_ranks("a x y b");
    room_lose(&f, "x");
    room_lose(&f, "y");
    room_join(&f, "y");
    room_join(&f, "x");
    expect_ranks("a x y b");
    room_teardown(&f);
}

/* More places were lost than are kept: the rest are filled in order, and nobody else moves. */
static void test_room_loses_more_places_than_it_keeps(void **state)
{
    enum { NODES = MU_ROOM_PLACES_MAX + 8 };
    static struct mu_room_member crowd[2 * NODES];

    (void)state;
    memset(crowd, 0, sizeof(crowd));
    room_setup(&f, NODES, NODES);
    for (int i = 0; i < 2 * NODES; i++) {
        (void)snprintf(crowd[i].name, 8, "n%d", i);
        assert_int_equal(mu_room_join(&f.room, f.now, &crowd[i], NODES, NODES, &f.msg), 0);
    }
    mu_room_hold(&f.room, f.now, mu_mono_add_ms(f.now, 1000));
    for (int i = 2; i < NODES - 2; i++) {
        mu_room_lost(&f.room, f.now, &crowd[i]);
    }
    room_pass(&f, 1000);
    assert_int_equal(f.room.in[MU_ROOM_RUNNING].count, NODES);
    for (uint32_t i = 0; i < NODES; i++) {
        assert_true((i >= 2 && i < NODES - 2) || crowd[i].rank == i);
    }
    drop_notices();
    for (int i = 0; i < 2 * NODES; i++) {
        mu_room_lost(&f.room, f.now, &crowd[i]);
    }
    room_teardown(&f);
}

/* --- a property ------------------------------------------------------------------------------ */

#define CHURN_NODES 12

struct seat {
    bool in; /* it has been a member without a break since the last round */
    uint32_t rank;
};

static struct mu_room_member crowd[CHURN_NODES];
static struct seat seats[CHURN_NODES];
static unsigned kept, replaced;

/* Whoever was in since the last round has the rank that it had, if the world is that large. */
static void check_seats(void)
{
    uint32_t world = f.room.in[MU_ROOM_RUNNING].count;

    for (size_t i = 0; i < CHURN_NODES; i++) {
        if (crowd[i].state != MU_ROOM_RUNNING) {
            continue;
        }
        if (seats[i].in && seats[i].rank < world) {
            assert_int_equal(crowd[i].rank, seats[i].rank);
            kept++;
        }
        replaced += !seats[i].in;
        seats[i] = (struct seat){.in = true, .rank = crowd[i].rank};
    }
}

static void churn(struct mu_prng *prng, bool fixed)
{
    size_t i = mu_prng_below(prng, CHURN_NODES);
    uint64_t rounds = f.room.rounds;

    switch (mu_prng_below(prng, 4)) {
    case 0:
        if (crowd[i].state == MU_ROOM_OUT) {
            (void)snprintf(crowd[i].topology, 32, "zone%u/rack%u", (unsigned)mu_prng_below(prng, 3),
                           (unsigned)mu_prng_below(prng, 3));
            assert_int_equal(mu_room_join(&f.room, f.now, &crowd[i], f.config.nodes_min,
                                          f.config.nodes_max, &f.msg),
                             0);
        }
        break;
    case 1:
        seats[i].in = false;
        (mu_prng_below(prng, 2) == 0 ? mu_room_lost : mu_room_leave)(&f.room, f.now, &crowd[i]);
        break;
    case 2:
        mu_room_fail(&f.room, f.now, &crowd[i], f.room.round);
        break;
    default:
        room_pass(&f, mu_prng_below(prng, 2000));
        break;
    }
    if (f.room.rounds != rounds) {
        assert_true(!fixed || f.room.in[MU_ROOM_RUNNING].count == f.config.nodes_max);
        check_seats();
    }
    drop_notices();
}

static void test_room_survivors_keep_their_ranks_whatever_happens(void **state)
{
    struct mu_prng prng;

    (void)state;
    mu_prng_seed(&prng, 20261117);
    for (unsigned run = 0; run < 300; run++) {
        bool fixed = run % 2 == 0; /* a world that is as large as it can be, with spares */

        memset(crowd, 0, sizeof(crowd));
        memset(seats, 0, sizeof(seats));
        room_setup(&f, fixed ? 6 : 2, fixed ? 6 : 8);
        for (size_t i = 0; i < CHURN_NODES; i++) {
            (void)snprintf(crowd[i].name, 8, "n%u",
                           (unsigned)mu_prng_below(&prng, 1000) * 16 + (unsigned)i);
        }
        for (unsigned step = 0; step < 400; step++) {
            churn(&prng, fixed);
        }
        for (size_t i = 0; i < CHURN_NODES; i++) {
            mu_room_lost(&f.room, f.now, &crowd[i]);
        }
        room_teardown(&f);
    }
    print_message("%u ranks were kept, %u given anew\n", kept, replaced);
    assert_true(kept > 10000 && replaced > 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_room_spare_takes_exactly_the_lost_place),
        cmocka_unit_test(test_room_spare_with_the_nearest_topology_is_taken),
        cmocka_unit_test(test_room_nearness_counts_whole_parts),
        cmocka_unit_test(test_room_places_go_to_the_nearest_of_those_who_come),
        cmocka_unit_test(test_room_node_that_is_back_gets_its_place_again),
        cmocka_unit_test(test_room_loses_more_places_than_it_keeps),
        cmocka_unit_test(test_room_survivors_keep_their_ranks_whatever_happens),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
