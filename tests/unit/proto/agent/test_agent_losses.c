/* What the loss of other nodes costs an agent that keeps its own budget: two of the rules in
 * proto/agent/agent.h. */
#include "agent_rig.h"

#define TERM 15

#define JOIN     MU_AGENT_DO_JOIN
#define EXCHANGE MU_AGENT_DO_EXCHANGE
#define SPAWN    MU_AGENT_DO_SPAWN
#define SIGNAL   MU_AGENT_DO_SIGNAL
#define REPORT   MU_AGENT_DO_REPORT
#define LEAVE    MU_AGENT_DO_LEAVE
#define CLOSE    MU_AGENT_DO_CLOSE
#define DOUBT    MU_AGENT_DO_DOUBT
#define ENDED    MU_AGENT_ENDED

static int setup(void **state)
{
    (void)state;
    rig_init(rig_config());
    return 0;
}

/** As rig_run(), in a round with other nodes whose loss is noticed within 15 s. */
static void run_among_others(uint64_t round, uint64_t generation, bool fewer)
{
    if (rig.a.state == MU_AGENT_IS_IDLE) {
        assert_int_equal(rig_start(), JOIN);
    }
    assert_int_equal(rig_step((struct mu_agent_event){.type = MU_AGENT_ASSIGNED,
                                                      .round = round,
                                                      .restarts_left = MU_AGENT_NOT_KEPT,
                                                      .doubt_ms = 15000,
                                                      .fewer = fewer}),
                     EXCHANGE);
    assert_int_equal(rig_round(MU_AGENT_READY, round, 0), SPAWN);
    assert_int_equal(rig_group(MU_AGENT_SPAWNED, generation), 0);
}

static void end_workers(uint64_t generation, unsigned flags)
{
    assert_int_equal(rig_exited(generation, 0, 1), flags);
    assert_int_equal(rig_exited(generation, 1, -TERM), 0);
}

static unsigned lose_one(uint64_t round)
{
    return rig_step((struct mu_agent_event){
        .type = MU_AGENT_ROUND_ENDED, .round = round, .lost = true, .text = "b is gone"});
}

static void start_without_restarts(void)
{
    struct mu_agent_config config = rig_config();

    config.restarts_max = 0;
    rig_init(config);
    run_among_others(0, 1, false);
}

static void test_agent_the_echo_of_a_loss_is_not_charged(void **state)
{
    (void)state;

    /* No restart is left, and the loss is noticed 14 s after the workers' failure. */
    start_without_restarts();
    end_workers(1, REPORT | SIGNAL | DOUBT);
    assert_string_equal(mu_agent_state_name(rig.a.state), "STOPPING");
    assert_int_equal(rig_group(MU_AGENT_GROUP_GONE, 1), 0);
    assert_int_equal(rig.a.state, MU_AGENT_IS_DOUBTING);
    assert_int_equal(rig_pass(14000), 0);
    assert_int_equal(lose_one(0), JOIN);
    assert_string_equal(rig.u.text,
                        "b is gone; this ended the workers, which start again in the next round");
    run_among_others(1, 2, true);

    /* It is noticed while the workers are being stopped. */
    assert_int_equal(rig_exited(2, 0, 1), REPORT | SIGNAL | DOUBT);
    assert_int_equal(lose_one(1), JOIN);
    assert_int_equal(rig_exited(2, 1, -TERM), 0);
    assert_int_equal(rig_group(MU_AGENT_GROUP_GONE, 2), 0);
    run_among_others(2, 3, true);
    assert_int_equal(mu_agent_restarts_left(&rig.a), 0);
}

static void test_agent_a_failure_in_doubt_is_the_end_when_all_others_are_there(void **state)
{
    (void)state;

    start_without_restarts();
    end_workers(1, REPORT | SIGNAL | DOUBT);
    assert_int_equal(rig_group(MU_AGENT_GROUP_GONE, 1), 0);
    assert_int_equal(rig_round(MU_AGENT_SURE, 0, 0), LEAVE | CLOSE | ENDED);
    assert_ended(MU_AGENT_FAILED);
    assert_string_equal(rig.u.text, "rank 0 (local rank 0) exited with 1; no restart is left");

    /* Nobody says so, but the time is up. */
    start_without_restarts();
    end_workers(1, REPORT | SIGNAL | DOUBT);
    assert_int_equal(rig_group(MU_AGENT_GROUP_GONE, 1), 0);
    assert_int_equal(rig_pass(14999), 0);
    assert_int_equal(rig_pass(1), LEAVE | CLOSE | ENDED);
    assert_ended(MU_AGENT_FAILED);

    /* They are, before the workers are gone. */
    start_without_restarts();
    assert_int_equal(rig_exited(1, 0, 1), REPORT | SIGNAL | DOUBT);
    assert_int_equal(rig_round(MU_AGENT_SURE, 0, 0), LEAVE | CLOSE);
    assert_int_equal(rig_exited(1, 1, -TERM), 0);
    assert_int_equal(rig_group(MU_AGENT_GROUP_GONE, 1), ENDED);
    assert_ended(MU_AGENT_FAILED);

    /* Another node has closed the run, because its workers failed. */
    start_without_restarts();
    end_workers(1, REPORT | SIGNAL | DOUBT);
    assert_int_equal(rig_group(MU_AGENT_GROUP_GONE, 1), 0);
    assert_int_equal(rig_closed(), LEAVE | ENDED);
    assert_ended(MU_AGENT_FAILED);

    /* A signal ends all of it. */
    start_without_restarts();
    end_workers(1, REPORT | SIGNAL | DOUBT);
    assert_int_equal(rig_group(MU_AGENT_GROUP_GONE, 1), 0);
    assert_int_equal(rig_signal(TERM), LEAVE | ENDED);
    assert_ended(MU_AGENT_STOPPED);
}

static void test_agent_a_restart_is_given_back_when_a_node_did_not_come_back(void **state)
{
    (void)state;

    run_among_others(0, 1, false);
    end_workers(1, REPORT | JOIN | SIGNAL); /* Restarts are left: nobody waits. */
    assert_int_equal(rig_group(MU_AGENT_GROUP_GONE, 1), 0);
    assert_int_equal(mu_agent_restarts_left(&rig.a), 1);
    run_among_others(1, 2, true);
    assert_int_equal(mu_agent_restarts_left(&rig.a), 2);

    end_workers(2, REPORT | JOIN | SIGNAL);
    assert_int_equal(rig_group(MU_AGENT_GROUP_GONE, 2), 0);
    run_among_others(2, 3, false);
    assert_int_equal(mu_agent_restarts_left(&rig.a), 1);
}

static void test_agent_losses_without_end_are_an_end(void **state)
{
    struct mu_agent_config config = rig_config();

    (void)state;
    config.losses = (struct mu_losses){.max = 2, .window_ms = 60000};
    rig_init(config);
    run_among_others(0, 1, false);
    for (uint64_t i = 0; i < 2; i++) {
        assert_int_equal(lose_one(i), JOIN | SIGNAL);
        end_workers(i + 1, 0);
        assert_int_equal(rig_group(MU_AGENT_GROUP_GONE, i + 1), 0);
        run_among_others(i + 1, i + 2, true);
    }
    assert_int_equal(lose_one(2), SIGNAL | LEAVE | CLOSE);
    end_workers(3, 0);
    assert_int_equal(rig_group(MU_AGENT_GROUP_GONE, 3), ENDED);
    assert_ended(MU_AGENT_FAILED);
    assert_string_equal(rig.u.text,
                        "b is gone; nodes were lost more than 2 times within 60 s (--max-losses)");

    /* A backend that keeps the budget counts them, too. */
    rig_init(rig_config());
    rig_run_kept(0, 1, 0, false);
    assert_int_equal(rig_rdzv_failed(MUSTER_ERDZV_LOSSES), SIGNAL);
    end_workers(1, 0);
    assert_int_equal(rig_group(MU_AGENT_GROUP_GONE, 1), ENDED);
    assert_ended(MU_AGENT_FAILED);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup(name, setup)
    const struct CMUnitTest tests[] = {
        TEST(test_agent_the_echo_of_a_loss_is_not_charged),
        TEST(test_agent_a_failure_in_doubt_is_the_end_when_all_others_are_there),
        TEST(test_agent_a_restart_is_given_back_when_a_node_did_not_come_back),
        TEST(test_agent_losses_without_end_are_an_end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
