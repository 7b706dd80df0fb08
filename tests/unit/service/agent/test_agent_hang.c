/*
 * The hang watchdog of agents with real workers, which are scripts of the shell: several agents on
 * one loop, with the native rendezvous on loopback between them.
 */
#include "agent_seats.h"

#define HANG_MS 1000

static struct seat *start(int i, const char *script, uint32_t nodes_min, uint32_t nodes_max,
                          enum mu_hang_action action)
{
    struct seat *seat = seat_prepare(i, script, nodes_min, nodes_max,
                                     i == 0 ? "max_restarts=1,name=a,machine=a,is_host=true"
                                            : "max_restarts=1,name=b,machine=b,is_host=false");

    seat->config.policy.restarts_max = 1;
    seat->config.policy.excluded_ends = true;
    seat->config.hang_ms = HANG_MS;
    seat->config.hang_action = action;
    seat_start(seat);
    return seat;
}

static void wait_both_ended(void)
{
    seat_wait_ended(&seats[0]);
    seat_wait_ended(&seats[1]);
}

/* Three ranks sleep; the fourth reads what nobody writes. */
#define STUCK                                                                                      \
    "if [ $RANK = 3 ]; then p=$(mktemp -u); mkfifo $p; exec 3<>$p; rm $p; exec cat <&3; fi; "      \
    "exec sleep 1000"

/* --- the tests -------------------------------------------------------------------------------- */

static void test_hang_is_told_on_every_node(void **state)
{
    (void)state;
    (void)start(0, STUCK, 2, 2, MU_HANG_TELL);
    (void)start(1, STUCK, 2, 2, MU_HANG_TELL);
    while (seats[0].hangs == 0 || seats[1].hangs == 0) {
        mu_uv_env_turn(uv);
    }
    for (int i = 0; i < 2; i++) {
        assert_has(seats[i].log, "no rank has made progress for 1 s: rank 3 (");
        assert_has(seats[i].log, ") is missing");
    }
    /* Who ends it now can read what was seen. */
    mu_agent_service_signal(seats[0].agent, SIGTERM);
    mu_agent_service_signal(seats[1].agent, SIGTERM);
    wait_both_ended();
    for (int i = 0; i < 2; i++) {
        assert_int_equal(seats[i].verdict.outcome, MU_AGENT_STOPPED);
        assert_has(seats[i].text, "hung before: no rank has made progress");
        assert_has(seats[i].json, "\"missing\": \"3\"");
        assert_int_equal(seats[i].hangs, 1);
    }
}

static void test_hang_that_ends_is_over_and_not_in_the_verdict(void **state)
{
    struct seat *a;

    (void)state;
    a = start(0, "[ $RANK = 0 ] && sleep 3; echo done", 1, 1, MU_HANG_TELL);
    seat_wait_ended(a);
    assert_int_equal(a->hangs, 1);
    assert_int_equal(a->verdict.outcome, MU_AGENT_SUCCEEDED);
    assert_has(a->json, "\"hang\": null");
}

static void test_hang_costs_a_restart(void **state)
{
    static const char script[] = "[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; " STUCK;

    (void)state;
    (void)start(0, script, 2, 2, MU_HANG_RESTART);
    (void)start(1, script, 2, 2, MU_HANG_RESTART);
    wait_both_ended();
    for (int i = 0; i < 2; i++) {
        assert_int_equal(seats[i].verdict.outcome, MU_AGENT_SUCCEEDED);
    }
    assert_true(
        strstr(seats[0].log, "rank 3 (local rank 1) is ended because the run hangs") != NULL ||
        strstr(seats[1].log, "rank 3 (local rank 1) is ended because the run hangs") != NULL);
}

static void test_hang_without_a_restart_left_is_the_cause_of_the_failure(void **state)
{
    (void)state;
    (void)start(0, STUCK, 2, 2, MU_HANG_RESTART);
    (void)start(1, STUCK, 2, 2, MU_HANG_RESTART);
    wait_both_ended();
    for (int i = 0; i < 2; i++) {
        assert_int_equal(seats[i].verdict.outcome, MU_AGENT_FAILED);
        assert_has(seats[i].text, "first failure: rank 3 ");
        assert_has(seats[i].text, "the watchdog ended it: no rank has made progress");
    }
}

/* The node that did not host is excluded, and the other one goes on alone. Each has two ranks: who
 * has rank 3 depends on who came first. */
static void test_hang_excludes_the_node(void **state)
{
    static const char script[] = "[ $GROUP_WORLD_SIZE = 1 ] && exit 0; " STUCK;
    int gone;

    (void)state;
    (void)start(0, script, 1, 2, MU_HANG_EXCLUDE);
    (void)start(1, script, 1, 2, MU_HANG_EXCLUDE);
    wait_both_ended();
    gone = strstr(seats[0].log, "this node asks to be excluded") != NULL ? 0 : 1;
    assert_has(seats[gone].log, "this node asks to be excluded: rank 3 was missing in a hang");
    assert_int_equal(seats[gone].verdict.outcome, MU_AGENT_ERROR);
    assert_int_equal(seats[gone].verdict.code, MUSTER_ERDZV_EXCLUDED);
    assert_int_equal(seats[1 - gone].verdict.outcome, MU_AGENT_SUCCEEDED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_hang_is_told_on_every_node, seats_setup,
                                        seats_teardown),
        cmocka_unit_test_setup_teardown(test_hang_that_ends_is_over_and_not_in_the_verdict,
                                        seats_setup, seats_teardown),
        cmocka_unit_test_setup_teardown(test_hang_costs_a_restart, seats_setup, seats_teardown),
        cmocka_unit_test_setup_teardown(
            test_hang_without_a_restart_left_is_the_cause_of_the_failure, seats_setup,
            seats_teardown),
        cmocka_unit_test_setup_teardown(test_hang_excludes_the_node, seats_setup, seats_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
