/* What keeps a node out: its check, and the run. Two of the rules in proto/agent/agent.h. */
#include "agent_rig.h"

#define TERM 15

#define JOIN     MU_AGENT_DO_JOIN
#define EXCHANGE MU_AGENT_DO_EXCHANGE
#define SPAWN    MU_AGENT_DO_SPAWN
#define SIGNAL   MU_AGENT_DO_SIGNAL
#define REPORT   MU_AGENT_DO_REPORT
#define LEAVE    MU_AGENT_DO_LEAVE
#define CHECK    MU_AGENT_DO_CHECK
#define ENDED    MU_AGENT_ENDED

static unsigned checked(int code, const char *text)
{
    return rig_step(
        (struct mu_agent_event){.type = MU_AGENT_CHECKED, .exit_code = code, .text = text});
}

static unsigned excluded(void)
{
    return rig_step((struct mu_agent_event){.type = MU_AGENT_RDZV_FAILED,
                                            .code = MUSTER_ERDZV_EXCLUDED,
                                            .text = "this node is excluded for another 9 s"});
}

static void init(bool check, bool ends)
{
    struct mu_agent_config config = rig_config();

    config.check = check;
    config.excluded_ends = ends;
    rig_init(config);
}

static void test_agent_a_node_is_checked_before_it_joins(void **state)
{
    uint64_t pause_ms = 5000;

    (void)state;
    init(true, false);
    assert_int_equal(rig_start(), CHECK);
    assert_int_equal(rig.a.state, MU_AGENT_IS_CHECKING);
    for (unsigned i = 0; i < 10; i++) {
        assert_int_equal(checked(1, "no GPU"), 0);
        assert_string_equal(mu_agent_state_name(rig.a.state), "KEPT_OUT");
        assert_non_null(strstr(rig.u.text, "kept out by its check: no GPU"));
        assert_int_equal(rig_pass(pause_ms - 1), 0);
        assert_int_equal(rig_pass(1), CHECK);
        pause_ms = pause_ms * 2 < 300000 ? pause_ms * 2 : 300000;
    }
    assert_int_equal(checked(0, "all is well"), JOIN);
    assert_string_equal(rig.u.text, "the check of this node has passed");
    assert_int_equal(checked(1, "late"), 0); /* It is no longer asked. */
    rig_run_kept(0, 1, 2, false);
}

static void test_agent_a_node_is_checked_after_its_workers_failed(void **state)
{
    (void)state;
    init(true, false);
    assert_int_equal(rig_start(), CHECK);
    assert_int_equal(checked(0, ""), JOIN);
    rig_run_kept(0, 1, 2, false);

    /* The others hear of the failure at once; nothing is started before the check. */
    assert_int_equal(rig_exited(1, 0, 1), REPORT | SIGNAL | JOIN);
    assert_int_equal(rig_exited(1, 1, -TERM), 0);
    assert_int_equal(rig_group(MU_AGENT_GROUP_GONE, 1), CHECK);
    assert_int_equal(rig_assigned_kept(1, 1, false), 0);
    assert_int_equal(checked(0, ""), EXCHANGE);
    assert_int_equal(rig_round(MU_AGENT_READY, 1, 0), SPAWN);
    assert_int_equal(rig_group(MU_AGENT_SPAWNED, 2), 0);

    /* It fails this time: the node leaves the round that it was given. */
    assert_int_equal(rig_exited(2, 0, 1), REPORT | SIGNAL | JOIN);
    assert_int_equal(rig_assigned_kept(2, 0, false), 0);
    assert_int_equal(rig_exited(2, 1, -TERM), 0);
    assert_int_equal(rig_group(MU_AGENT_GROUP_GONE, 2), CHECK);
    assert_int_equal(checked(-9, ""), LEAVE);
    assert_non_null(strstr(rig.u.text, "it says nothing"));
    assert_int_equal(rig_pass(5000), CHECK);
    assert_int_equal(checked(0, ""), JOIN);
    rig_run_kept(3, 3, 0, false);

    /* The round of others ends: their failure is none of ours. */
    assert_int_equal(rig_round(MU_AGENT_ROUND_ENDED, 3, 0), SIGNAL | JOIN);
    assert_int_equal(rig_exited(3, 0, -TERM), 0);
    assert_int_equal(rig_exited(3, 1, -TERM), 0);
    assert_int_equal(rig_group(MU_AGENT_GROUP_GONE, 3), 0);
    assert_int_equal(rig.a.state, MU_AGENT_IS_JOINING);
}

static void test_agent_a_round_that_ends_during_the_check_is_joined_again(void **state)
{
    (void)state;
    init(true, false);
    assert_int_equal(rig_start(), CHECK);
    assert_int_equal(checked(0, ""), JOIN);
    rig_run_kept(0, 1, 2, false);
    assert_int_equal(rig_exited(1, 0, 1), REPORT | SIGNAL | JOIN);
    assert_int_equal(rig_exited(1, 1, -TERM), 0);
    assert_int_equal(rig_group(MU_AGENT_GROUP_GONE, 1), CHECK);
    assert_int_equal(rig_assigned_kept(1, 1, false), 0);
    assert_int_equal(rig_round(MU_AGENT_ROUND_ENDED, 1, 0), JOIN);
    assert_int_equal(checked(0, ""), 0);
    assert_int_equal(rig.a.state, MU_AGENT_IS_JOINING);
    assert_int_equal(rig_assigned_kept(2, 1, false), EXCHANGE);
}

static void test_agent_a_signal_ends_a_check(void **state)
{
    (void)state;
    init(true, false);
    assert_int_equal(rig_start(), CHECK);
    assert_int_equal(rig_signal(TERM), ENDED);
    assert_int_equal(rig.u.outcome, MU_AGENT_STOPPED);

    init(true, false);
    assert_int_equal(rig_start(), CHECK);
    assert_int_equal(checked(1, ""), 0);
    assert_int_equal(rig_signal(TERM), ENDED);
    assert_int_equal(rig.u.outcome, MU_AGENT_STOPPED);
}

static void test_agent_an_excluded_node_waits(void **state)
{
    (void)state;
    init(false, false);
    rig_run_kept(0, 1, 2, false);
    assert_int_equal(excluded(), SIGNAL);
    assert_string_equal(rig.u.text, "this node is excluded for another 9 s; waiting");
    assert_int_equal(rig_exited(1, 0, -TERM), 0);
    assert_int_equal(rig_exited(1, 1, -TERM), 0);
    assert_int_equal(rig_group(MU_AGENT_GROUP_GONE, 1), 0);
    assert_int_equal(rig.a.state, MU_AGENT_IS_KEPT_OUT);

    /* It asks every two seconds, and says so every minute. */
    for (unsigned i = 1; i < 60; i++) {
        assert_int_equal(rig_pass(2000), JOIN);
        assert_int_equal(excluded(), 0);
        assert_true((rig.u.text != NULL) == (i % 30 == 0));
    }
    assert_int_equal(rig_pass(2000), JOIN);
    rig_run_kept(1, 2, 2, false);
    assert_int_equal(excluded(), SIGNAL);
    assert_non_null(rig.u.text); /* That is another time. */
}

static void test_agent_an_excluded_node_ends_with_the_run(void **state)
{
    (void)state;
    init(false, false);
    assert_int_equal(rig_start(), JOIN);
    assert_int_equal(excluded(), 0);
    assert_int_equal(rig_pass(2000), JOIN);
    assert_int_equal(rig_rdzv_failed(MUSTER_ERDZV_CLOSED), ENDED);
    assert_int_equal(rig.u.outcome, MU_AGENT_GRACEFUL);
}

static void test_agent_an_excluded_node_ends_if_it_should(void **state)
{
    (void)state;
    init(false, true);
    assert_int_equal(rig_start(), JOIN);
    assert_int_equal(excluded(), ENDED);
    assert_int_equal(rig.u.outcome, MU_AGENT_ERROR);
    assert_int_equal(rig.u.code, MUSTER_ERDZV_EXCLUDED);
}

/* All workers have succeeded: that stands. */
static void test_agent_success_stands_for_an_excluded_node(void **state)
{
    (void)state;
    init(false, false);
    rig_run_kept(0, 1, 2, false);
    rig_succeed(1);
    assert_true((excluded() & ENDED) != 0);
    assert_int_equal(rig.u.outcome, MU_AGENT_SUCCEEDED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_agent_a_node_is_checked_before_it_joins),
        cmocka_unit_test(test_agent_a_node_is_checked_after_its_workers_failed),
        cmocka_unit_test(test_agent_a_round_that_ends_during_the_check_is_joined_again),
        cmocka_unit_test(test_agent_a_signal_ends_a_check),
        cmocka_unit_test(test_agent_an_excluded_node_waits),
        cmocka_unit_test(test_agent_an_excluded_node_ends_with_the_run),
        cmocka_unit_test(test_agent_an_excluded_node_ends_if_it_should),
        cmocka_unit_test(test_agent_success_stands_for_an_excluded_node),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
