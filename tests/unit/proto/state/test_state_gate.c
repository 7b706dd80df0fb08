/* A donor's door: slots, and how much leaves in a second. */
#include "unit.h"

#include <muster/error.h>

#include "proto/state/gate.h"

static mu_mono_t ms(uint64_t n)
{
    return (mu_mono_t){n * MU_NS_PER_MS};
}

static void open_gate(struct mu_state_gate *g, uint32_t slots, uint64_t rate, uint64_t burst)
{
    struct mu_state_gate_config config = mu_state_gate_config_defaults();

    config.slots = slots;
    config.bytes_per_s = rate;
    config.burst_bytes = burst;
    mu_state_gate_init(g, &config, ms(1000));
}

static void test_state_gate_has_so_many_slots(void **state)
{
    struct mu_state_gate g;
    uint32_t retry_ms = 0;

    (void)state;
    open_gate(&g, 2, 0, 0);
    assert_int_equal(mu_state_gate_enter(&g, &retry_ms), 0);
    assert_int_equal(mu_state_gate_enter(&g, &retry_ms), 0);
    assert_int_equal(retry_ms, 0);
    assert_int_equal(mu_state_gate_enter(&g, &retry_ms), MUSTER_EBUSY);
    assert_int_equal(retry_ms, 250);
    mu_state_gate_leave(&g);
    assert_int_equal(mu_state_gate_enter(&g, &retry_ms), 0);
    assert_int_equal(mu_state_gate_enter(&g, &retry_ms), MUSTER_EBUSY);
}

static void test_state_gate_spreads_those_it_sends_away(void **state)
{
    struct mu_state_gate g;
    uint32_t first = 0;
    uint32_t retry_ms = 0;

    (void)state;
    open_gate(&g, 1, 0, 0);
    assert_int_equal(mu_state_gate_enter(&g, &first), 0);
    assert_int_equal(mu_state_gate_enter(&g, &first), MUSTER_EBUSY);
    for (int i = 0; i < 1000; i++) {
        uint32_t before = retry_ms;

        assert_int_equal(mu_state_gate_enter(&g, &retry_ms), MUSTER_EBUSY);
        assert_true(retry_ms >= before);
    }
    assert_true(retry_ms > first);
    assert_true(retry_ms <= 10000);
    mu_state_gate_leave(&g);
    assert_int_equal(mu_state_gate_enter(&g, &retry_ms), 0);
    assert_int_equal(mu_state_gate_enter(&g, &retry_ms), MUSTER_EBUSY);
    assert_int_equal(retry_ms, first);
}

static void test_state_gate_lets_everything_out_at_once_without_a_limit(void **state)
{
    struct mu_state_gate g;
    struct mu_state_turn turn;

    (void)state;
    open_gate(&g, 1, 0, 0);
    mu_state_turn_init(&turn);
    for (int i = 0; i < 100; i++) {
        mu_state_gate_wait(&g, &turn, (size_t)1 << 30);
        assert_int_equal(mu_state_gate_deadline(&g).ns, ms(1000).ns);
        assert_ptr_equal(mu_state_gate_next(&g, ms(1000)), &turn);
    }
    assert_null(mu_state_gate_next(&g, ms(1000)));
    assert_true(mu_state_gate_deadline(&g).ns == UINT64_MAX);
}

static void test_state_gate_lets_out_what_its_rate_allows(void **state)
{
    struct mu_state_gate g;
    struct mu_state_turn turn;
    uint64_t left = 0;
    mu_mono_t now = ms(1000);

    (void)state;
    open_gate(&g, 1, 1000, 500);
    mu_state_turn_init(&turn);
    /* Ten seconds at 1000 bytes a second, by a driver that comes when it is told to. */
    while (now.ns <= ms(11000).ns) {
        mu_state_gate_wait(&g, &turn, 77);
        if (mu_state_gate_next(&g, now) != NULL) {
            left += 77;
            continue;
        }
        assert_true(mu_state_gate_deadline(&g).ns > now.ns);
        now = mu_state_gate_deadline(&g);
        assert_ptr_equal(mu_state_gate_next(&g, now), &turn);
        left += 77;
    }
    /* What the bucket held at first, and one that takes it below zero. */
    assert_in_range(left, 10000, 10000 + 500 + 2 * 77);
}

static void test_state_gate_counts_parts_of_a_byte(void **state)
{
    struct mu_state_gate g;
    struct mu_state_turn turn;
    uint64_t left = 0;

    (void)state;
    open_gate(&g, 1, 3, 3);
    mu_state_turn_init(&turn);
    for (uint64_t i = 0; i < 100000; i += 10) {
        mu_state_gate_wait(&g, &turn, 1);
        left += mu_state_gate_next(&g, ms(1000 + i)) != NULL;
    }
    assert_in_range(left, 299, 304);
}

static void test_state_gate_takes_turns(void **state)
{
    struct mu_state_gate g;
    struct mu_state_turn turns[3];
    mu_mono_t now = ms(1000);

    (void)state;
    open_gate(&g, 3, 100, 1);
    for (int i = 0; i < 3; i++) {
        mu_state_turn_init(&turns[i]);
        mu_state_gate_wait(&g, &turns[i], 10);
    }
    for (int i = 0; i < 30; i++) {
        struct mu_state_turn *turn = mu_state_gate_next(&g, now);

        assert_ptr_equal(turn, &turns[i % 3]);
        mu_state_gate_wait(&g, turn, 10);
        mu_state_gate_wait(&g, turn, 10); /* twice is as once */
        now = mu_state_gate_deadline(&g);
    }
    mu_state_gate_unwait(&turns[0]);
    mu_state_gate_unwait(&turns[0]);
    assert_ptr_equal(mu_state_gate_next(&g, now), &turns[1]);
}

static void test_state_gate_gives_back_what_did_not_leave(void **state)
{
    struct mu_state_gate g;
    struct mu_state_turn turn;

    (void)state;
    open_gate(&g, 1, 1000, 100);
    mu_state_turn_init(&turn);
    mu_state_gate_wait(&g, &turn, 100);
    assert_non_null(mu_state_gate_next(&g, ms(1000)));
    mu_state_gate_wait(&g, &turn, 100);
    assert_null(mu_state_gate_next(&g, ms(1000)));
    mu_state_gate_refund(&g, 100);
    assert_non_null(mu_state_gate_next(&g, ms(1000)));
}

static void test_state_gate_takes_new_limits_while_it_is_used(void **state)
{
    struct mu_state_gate_config config = mu_state_gate_config_defaults();
    struct mu_state_gate g;
    struct mu_state_turn turn;
    uint32_t retry_ms;

    (void)state;
    open_gate(&g, 2, 0, 0);
    mu_state_turn_init(&turn);
    assert_int_equal(mu_state_gate_enter(&g, &retry_ms), 0);
    assert_int_equal(mu_state_gate_enter(&g, &retry_ms), 0);
    config.slots = 1;
    config.bytes_per_s = 10;
    config.burst_bytes = 10;
    mu_state_gate_configure(&g, &config, ms(1000));
    mu_state_gate_leave(&g);
    assert_int_equal(mu_state_gate_enter(&g, &retry_ms), MUSTER_EBUSY);
    mu_state_gate_wait(&g, &turn, 20);
    assert_non_null(mu_state_gate_next(&g, ms(1000)));
    mu_state_gate_wait(&g, &turn, 20);
    assert_null(mu_state_gate_next(&g, ms(2000)));
    assert_non_null(mu_state_gate_next(&g, ms(2101)));
}

static void test_state_gate_does_not_overflow(void **state)
{
    struct mu_state_gate g;
    struct mu_state_turn turn;

    (void)state;
    open_gate(&g, 1, UINT64_MAX, UINT64_MAX);
    mu_state_turn_init(&turn);
    mu_state_gate_wait(&g, &turn, 1);
    assert_non_null(mu_state_gate_next(&g, (mu_mono_t){UINT64_MAX - 1}));

    open_gate(&g, 1, 18000000000u, UINT64_MAX);
    mu_state_gate_wait(&g, &turn, (size_t)1 << 62);
    assert_non_null(mu_state_gate_next(&g, ms(1001)));
    mu_state_gate_wait(&g, &turn, (size_t)1 << 62);
    assert_non_null(mu_state_gate_next(&g, (mu_mono_t){UINT64_MAX - 1}));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_state_gate_has_so_many_slots),
        cmocka_unit_test(test_state_gate_spreads_those_it_sends_away),
        cmocka_unit_test(test_state_gate_lets_everything_out_at_once_without_a_limit),
        cmocka_unit_test(test_state_gate_lets_out_what_its_rate_allows),
        cmocka_unit_test(test_state_gate_counts_parts_of_a_byte),
        cmocka_unit_test(test_state_gate_takes_turns),
        cmocka_unit_test(test_state_gate_gives_back_what_did_not_leave),
        cmocka_unit_test(test_state_gate_takes_new_limits_while_it_is_used),
        cmocka_unit_test(test_state_gate_does_not_overflow),
    };

    return cmocka_run_group_tests_name("state_gate", tests, NULL, NULL);
}
