/* A room that goes on where another one was, whose host is lost. */
#include "unit.h"

#include "room_fixture.h"

static struct room_fixture f;

static void succeed(uint32_t min, uint32_t max, const struct mu_room_legacy *legacy)
{
    room_prepare(&f, min, max);
    f.config.restarts_max = 3;
    f.config.losses = (struct mu_losses){.max = 2, .window_ms = 3600000};
    assert_int_equal(mu_room_init(&f.room, &f.config, 7), 0);
    mu_room_succeed(&f.room, f.now, legacy);
}

static void test_room_succeed_goes_on_with_the_numbers(void **state)
{
    struct mu_room_member *m;
    struct mu_room_notice n;

    (void)state;
    succeed(2, 4, &(struct mu_room_legacy){.round = 8, .restarts = 1, .expected = 3});
    room_join(&f, "a");
    room_join(&f, "b");
    assert_int_equal(f.room.state, MU_ROOM_IS_GATHERING);
    room_join(&f, "c"); /* All but the lost host are here. */
    assert_int_equal(f.room.state, MU_ROOM_IS_RUNNING);
    assert_true(mu_room_next_notice(&f.room, &m, &n));
    assert_int_equal(n.kind, MU_ROOM_ASSIGNED);
    assert_int_equal(n.incarnation, 7);
    assert_int_equal(n.round, 9);
    assert_int_equal(n.world, 3);
    assert_int_equal(n.restarts_left, 2);
    room_teardown(&f);
}

/* The last call is as short as after a round, and as long as ever once there was one. */
static void test_room_succeed_waits_as_after_a_round(void **state)
{
    uint64_t ms;

    (void)state;
    succeed(2, 4, &(struct mu_room_legacy){.expected = 3});
    ms = f.config.last_call_ms;
    room_join(&f, "a");
    room_join(&f, "b");
    room_pass(&f, ms / MU_ROOM_REGROUP - 1);
    assert_int_equal(f.room.state, MU_ROOM_IS_GATHERING);
    room_pass(&f, 1);
    assert_int_equal(f.room.state, MU_ROOM_IS_RUNNING);
    room_teardown(&f);
}

static void test_room_succeed_is_held(void **state)
{
    (void)state;
    succeed(2, 2, &(struct mu_room_legacy){.expected = 2});
    mu_room_hold(&f.room, f.now, mu_mono_add_ms(f.now, 500));
    room_join(&f, "a");
    room_join(&f, "b");
    room_pass(&f, 499);
    assert_int_equal(f.room.state, MU_ROOM_IS_GATHERING);
    room_pass(&f, 1);
    assert_int_equal(f.room.state, MU_ROOM_IS_RUNNING);
    room_teardown(&f);
}

static void test_room_succeed_counts_the_loss_of_the_host(void **state)
{
    (void)state;
    succeed(1, 2, &(struct mu_room_legacy){.losses_until = mu_mono_add_ms(f.now, 3600000)});
    assert_int_equal(f.room.state, MU_ROOM_IS_FAILED); /* two of two were counted before */
    assert_true(f.room.too_many_losses);
    assert_int_equal(room_try_join(&f, "a"), MUSTER_ECLOSED);
    room_teardown(&f);
}

/* It had this rank in the room before. */
static void join_again(const char *name, uint64_t round, uint32_t rank)
{
    room_member(&f, name)->before =
        (struct mu_room_before){.known = true, .round = round, .rank = rank};
    room_join(&f, name);
}

static void set_topology(const char *name, const char *key)
{
    struct mu_room_member *m = room_member(&f, name);

    (void)snprintf(m->topology, sizeof(m->topology), "%s", key);
}

/* Those who ran keep their ranks, in whatever order they come; the spare that is nearest to the
 * lost host takes its place, though another came first, and stays what it was. */
static void test_room_succeed_keeps_ranks(void **state)
{
    (void)state;
    succeed(4, 4,
            &(struct mu_room_legacy){.round = 8,
                                     .expected = 4,
                                     .ran = 3,
                                     .place = {.name = "host", .topology = "b/2", .rank = 1}});
    set_topology("far", "a/1");
    set_topology("near", "b/1");
    room_join(&f, "far");
    join_again("three", 8, 3);
    room_join(&f, "near");
    join_again("two", 8, 2);
    assert_int_equal(f.room.state,
                     MU_ROOM_IS_GATHERING); /* Enough are here, but not all who ran. */
    join_again("zero", 8, 0);
    room_expect(&f, "zero assigned 9: 0/4\nnear assigned 9: 1/4\ntwo assigned 9: 2/4\n"
                    "three assigned 9: 3/4\n");
    assert_int_equal(room_member(&f, "far")->state, MU_ROOM_SPARE);
    room_teardown(&f);
}

/* A node that did not run stands by until those who ran are here, or the last call is over. */
static void test_room_succeed_lets_others_in_last(void **state)
{
    (void)state;
    succeed(2, 4, &(struct mu_room_legacy){.round = 3, .expected = 2, .ran = 2});
    room_join(&f, "new");
    join_again("two", 3, 2);
    assert_int_equal(room_member(&f, "new")->state, MU_ROOM_SPARE);
    assert_int_equal(f.room.state, MU_ROOM_IS_GATHERING);
    room_pass(&f, f.config.last_call_ms / MU_ROOM_REGROUP);
    room_expect(&f, "new assigned 4: 0/2\ntwo assigned 4: 1/2\n");
    room_teardown(&f);
}

/* Of two that claim one rank, the one that had it last keeps it. */
static void test_room_succeed_gives_no_rank_twice(void **state)
{
    (void)state;
    succeed(3, 3, &(struct mu_room_legacy){.round = 5, .expected = 3});
    join_again("old", 4, 0);
    join_again("first", 5, 0);
    join_again("high", 5, 77);
    room_expect(&f, "first assigned 6: 0/3\nhigh assigned 6: 1/3\nold assigned 6: 2/3\n");
    room_teardown(&f);

    /* Nor if the lost host had it, as far as is known, or one that is lost after it. */
    succeed(2, 3, &(struct mu_room_legacy){.round = 5, .place = {.name = "host", .rank = 0}});
    join_again("gone", 4, 0);
    room_lose(&f, "gone");
    join_again("first", 5, 0);
    room_join(&f, "host");
    room_join(&f, "gone");
    room_expect(&f, "first assigned 6: 0/3\ngone assigned 6: 1/3\nhost assigned 6: 2/3\n");
    room_teardown(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_room_succeed_goes_on_with_the_numbers),
        cmocka_unit_test(test_room_succeed_waits_as_after_a_round),
        cmocka_unit_test(test_room_succeed_is_held),
        cmocka_unit_test(test_room_succeed_counts_the_loss_of_the_host),
        cmocka_unit_test(test_room_succeed_keeps_ranks),
        cmocka_unit_test(test_room_succeed_lets_others_in_last),
        cmocka_unit_test(test_room_succeed_gives_no_rank_twice),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
