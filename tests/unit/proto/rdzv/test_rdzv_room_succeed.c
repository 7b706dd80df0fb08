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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_room_succeed_goes_on_with_the_numbers),
        cmocka_unit_test(test_room_succeed_waits_as_after_a_round),
        cmocka_unit_test(test_room_succeed_is_held),
        cmocka_unit_test(test_room_succeed_counts_the_loss_of_the_host),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
