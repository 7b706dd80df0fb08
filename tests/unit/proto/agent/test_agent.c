/* The agent's policy, rule by rule: the tests bear the names of the rules in proto/agent/agent.h.
 * */
#include "agent_rig.h"

#define TERM 15
#define INTR 2
#define USR1 10

#define JOIN     MU_AGENT_DO_JOIN
#define EXCHANGE MU_AGENT_DO_EXCHANGE
#define SPAWN    MU_AGENT_DO_SPAWN
#define SIGNAL   MU_AGENT_DO_SIGNAL
#define KILL     MU_AGENT_DO_KILL
#define BARRIER  MU_AGENT_DO_BARRIER
#define WARN     MU_AGENT_DO_WARN
#define REPORT   MU_AGENT_DO_REPORT
#define LEAVE    MU_AGENT_DO_LEAVE
#define CLOSE    MU_AGENT_DO_CLOSE
#define ENDED    MU_AGENT_ENDED

static int setup(void **state)
{
    (void)state;
    rig_init(rig_config());
    return 0;
}

static void test_agent_runs_to_success(void **state)
{
    (void)state;

    rig_run(0, 1);
    assert_int_equal(rig_exited(1, 1, 0), 0);
    assert_int_equal(rig_exited(1, 0, 0), BARRIER);
    assert_int_equal(rig.u.round, 0);
    assert_int_equal(rig_group(MU_AGENT_GROUP_GONE, 1), 0);

    assert_int_equal(rig_round(MU_AGENT_BARRIER_DONE, 0, 0), CLOSE | ENDED);
    assert_ended(MU_AGENT_SUCCEEDED);
    assert_int_equal(rig.u.first_rank, MU_AGENT_NO_RANK);
}

static void test_agent_never_two_generations_alive(void **state)
{
    (void)state;

    rig_run(0, 1);
    assert_int_equal(rig_exited(1, 0, 3), REPORT | JOIN | SIGNAL);
    /* The next round is there before the workers are gone: it waits. */
    assert_int_equal(rig_assigned(1), 0);
    assert_int_equal(rig_exited(1, 1, -TERM), 0);
    assert_int_equal(rig.a.state, MU_AGENT_IS_STOPPING);

    /* A grandchild was left; now it is gone as well. */
    assert_int_equal(rig_group(MU_AGENT_GROUP_GONE, 1), EXCHANGE);
    assert_int_equal(rig.u.round, 1);
    assert_int_equal(rig_round(MU_AGENT_READY, 1, 0), SPAWN);
    assert_int_equal(rig.u.generation, 2);
}

static void test_agent_round_that_ends_while_it_waits_is_joined_again(void **state)
{
    (void)state;

    rig_run(0, 1);
    assert_int_equal(rig_exited(1, 0, 3), REPORT | JOIN | SIGNAL);
    assert_int_equal(rig_assigned(1), 0);
    assert_int_equal(rig_round(MU_AGENT_ROUND_ENDED, 0, 0), 0);
    assert_int_equal(rig_round(MU_AGENT_ROUND_ENDED, 1, 0), JOIN);
    assert_int_equal(rig_exited(1, 1, 0), 0);
    assert_int_equal(rig_group(MU_AGENT_GROUP_GONE, 1), 0);
    assert_int_equal(rig.a.state, MU_AGENT_IS_JOINING);
    assert_int_equal(rig_assigned(2), EXCHANGE);
}

static void test_agent_each_child_is_reaped_once(void **state)
{
    struct mu_agent_event exited = {.type = MU_AGENT_EXITED, .generation = 1, .local_rank = 1};
    struct mu_agent_event gone = {.type = MU_AGENT_GROUP_GONE, .generation = 1};
    struct mu_agent before;
    (void)state;

    rig_run(0, 1);
    assert_int_equal(rig_step(exited), 0);
    before = rig.a;

    assert_int_equal(rig_try(exited), MUSTER_EINVAL);
    assert_int_equal(rig_try(gone), MUSTER_EINVAL);
    exited.local_rank = 2;
    assert_int_equal(rig_try(exited), MUSTER_EINVAL);
    exited.local_rank = 0;
    exited.generation = 2;
    assert_int_equal(rig_try(exited), MUSTER_EINVAL);
    exited.generation = 0;
    assert_int_equal(rig_try(exited), MUSTER_EINVAL);
    assert_int_equal(rig_try((struct mu_agent_event){.type = MU_AGENT_START}), MUSTER_EINVAL);
    assert_int_equal(rig_try((struct mu_agent_event){.type = MU_AGENT_SIGNAL}), MUSTER_EINVAL);
    assert_int_equal(rig_try((struct mu_agent_event){.type = 99}), MUSTER_EINVAL);
    assert_memory_equal(&before, &rig.a, sizeof before);
}

static void test_agent_one_deadline_for_all(void **state)
{
    (void)state;

    rig_run(0, 1);
    assert_int_equal(rig_round(MU_AGENT_ROUND_ENDED, 0, 0), JOIN | SIGNAL);
    assert_int_equal(rig.u.signal, TERM);
    assert_int_equal(mu_mono_until_ms(rig.u.deadline, rig.now), 30000);
    assert_int_equal(rig_pass(29999), 0);
    assert_int_equal(rig_exited(1, 0, -TERM), 0);
    assert_int_equal(rig_pass(1), KILL);
    assert_int_equal(mu_mono_until_ms(rig.u.deadline, rig.now), 10000);
    assert_int_equal(rig_exited(1, 1, -9), 0);
    assert_int_equal(rig_pass(9999), 0);
    assert_int_equal(rig_group(MU_AGENT_GROUP_GONE, 1), 0);
    assert_int_equal(rig.a.state, MU_AGENT_IS_JOINING);
    assert_int_equal(mu_agent_deadline(&rig.a).ns, MU_MONO_NEVER.ns);
}

static void test_agent_unkillable_process_is_an_end(void **state)
{
    (void)state;

    rig_run(0, 1);
    assert_int_equal(rig_round(MU_AGENT_ROUND_ENDED, 0, 0), JOIN | SIGNAL);
    assert_int_equal(rig_assigned(1), 0);
    assert_int_equal(rig_pass(30000), KILL);
    assert_int_equal(rig_pass(10000), LEAVE | CLOSE | ENDED);
    assert_ended(MU_AGENT_ERROR);
    assert_int_equal(rig.u.code, MUSTER_ETIMEDOUT);
    /* What comes now is nobody's business any more. */
    assert_int_equal(rig_exited(1, 0, -9), 0);
}

static void test_agent_unkillable_process_keeps_the_outcome(void **state)
{
    (void)state;

    rig_run(0, 1);
    assert_int_equal(rig_signal(TERM), SIGNAL | LEAVE);
    assert_int_equal(rig_pass(30000), KILL);
    assert_int_equal(rig_pass(10000), ENDED);
    assert_ended(MU_AGENT_STOPPED);
    assert_non_null(strstr(rig.u.text, "cannot be killed"));
}

/* --- the budget ----------------------------------------------------------------------------- */

static void fail_and_restart(uint64_t generation, uint64_t next_round)
{
    assert_int_equal(rig_exited(generation, 0, 1), REPORT | JOIN | SIGNAL);
    assert_int_equal(rig_exited(generation, 1, -TERM), 0);
    assert_int_equal(rig_group(MU_AGENT_GROUP_GONE, generation), 0);
    assert_int_equal(rig_assigned(next_round), EXCHANGE);
    assert_int_equal(rig_round(MU_AGENT_READY, next_round, 0), SPAWN);
    assert_int_equal(rig.u.restart_count, generation);
    assert_int_equal(rig_group(MU_AGENT_SPAWNED, generation + 1), 0);
}

static void test_agent_the_restart_budget_is_our_own_where_nobody_keeps_it(void **state)
{
    (void)state;

    rig_run(0, 1);
    fail_and_restart(1, 1);
    fail_and_restart(2, 2);
    assert_int_equal(mu_agent_restarts_left(&rig.a), 0);

    assert_int_equal(rig_exited(3, 1, -11), REPORT | SIGNAL | LEAVE | CLOSE);
    assert_int_equal(rig.u.first_rank, 1);
    assert_int_equal(rig_exited(3, 0, -TERM), 0);
    assert_int_equal(rig_group(MU_AGENT_GROUP_GONE, 3), ENDED);
    assert_ended(MU_AGENT_FAILED);
    assert_int_equal(rig.u.first_rank, 1);
    assert_int_equal(rig.u.exit_code, -11);
}

static void test_agent_the_restart_budget_is_the_jobs_where_the_backend_keeps_it(void **state)
{
    (void)state;

    rig_run_kept(0, 1, 1, false);
    assert_int_equal(rig_exited(1, 0, 1), REPORT | JOIN | SIGNAL);
    assert_int_equal(rig_exited(1, 1, -TERM), 0);
    assert_int_equal(rig_group(MU_AGENT_GROUP_GONE, 1), 0);
    assert_int_equal(rig_assigned_kept(1, 0, false), EXCHANGE);
    assert_int_equal(rig_round(MU_AGENT_READY, 1, 0), SPAWN);
    assert_int_equal(rig.u.restart_count, 2);
    assert_int_equal(rig_group(MU_AGENT_SPAWNED, 2), 0);

    /* Told to the backend, which dismisses everybody. */
    assert_int_equal(rig_exited(2, 1, 5), REPORT | JOIN | SIGNAL);
    assert_int_equal(rig_rdzv_failed(MUSTER_ERDZV_RESTARTS), 0);
    assert_int_equal(rig_exited(2, 0, 0), 0);
    assert_int_equal(rig_group(MU_AGENT_GROUP_GONE, 2), ENDED);
    assert_ended(MU_AGENT_FAILED);
    assert_int_equal(rig.u.exit_code, 5);
}

static void test_agent_changes_of_membership_cost_nothing(void **state)
{
    (void)state;

    rig_run(0, 1);
    for (uint64_t i = 0; i < 10; i++) {
        assert_int_equal(rig_round(MU_AGENT_ROUND_ENDED, i, 0), JOIN | SIGNAL);
        assert_int_equal(rig_exited(i + 1, 1, 1), 0);
        assert_int_equal(rig_exited(i + 1, 0, -TERM), 0);
        assert_int_equal(rig_group(MU_AGENT_GROUP_GONE, i + 1), 0);
        rig_run(i + 1, i + 2);
    }
    assert_int_equal(mu_agent_restarts_left(&rig.a), 2);
}

static void test_agent_dismissed_by_the_backend_has_failed(void **state)
{
    (void)state;

    rig_run_kept(0, 1, 0, false);
    assert_int_equal(rig_rdzv_failed(MUSTER_ERDZV_RESTARTS), SIGNAL);
    assert_int_equal(rig_exited(1, 0, -TERM), 0);
    assert_int_equal(rig_exited(1, 1, -TERM), 0);
    assert_int_equal(rig_group(MU_AGENT_GROUP_GONE, 1), ENDED);
    assert_ended(MU_AGENT_FAILED);
    assert_int_equal(rig.u.first_rank, MU_AGENT_NO_RANK);
}

/* --- failures, success ---------------------------------------------------------------------- */

static void test_agent_the_first_failure_is_reported_at_once(void **state)
{
    (void)state;

    rig_run_kept(0, 1, 0, false);
    assert_int_equal(rig_exited(1, 1, -9), REPORT | JOIN | SIGNAL);
    assert_int_equal(rig.u.first_rank, 1);
    assert_int_equal(rig.u.exit_code, -9);
    assert_int_equal(rig.u.generation, 1);
    /* The others fall because of it, and are not named. */
    assert_int_equal(rig_exited(1, 0, 1), 0);
    assert_int_equal(rig_rdzv_failed(MUSTER_ERDZV_RESTARTS), 0);
    assert_int_equal(rig_group(MU_AGENT_GROUP_GONE, 1), ENDED);
    assert_ended(MU_AGENT_FAILED);
    assert_int_equal(rig.u.first_rank, 1);
    assert_string_equal(rig.u.text,
                        "rank 1 (local rank 1) was ended by SIGKILL; no restart is left");
}

static void test_agent_ranks_are_the_worlds(void **state)
{
    (void)state;

    assert_int_equal(rig_start(), JOIN);
    assert_int_equal(rig_assigned(0), EXCHANGE);
    assert_int_equal(
        rig_step((struct mu_agent_event){.type = MU_AGENT_READY, .round = 0, .base = 6}), SPAWN);
    assert_int_equal(rig_group(MU_AGENT_SPAWNED, 1), 0);
    assert_int_equal(rig_exited(1, 1, 3), REPORT | JOIN | SIGNAL);
    assert_string_equal(
        rig.u.text, "rank 7 (local rank 1) exited with 3; restarting all, 1 of 2 restarts left");
}

static void test_agent_promises_no_restart_that_is_not_left(void **state)
{
    const struct mu_agent_event failed = {.type = MU_AGENT_ROUND_ENDED,
                                          .round = 0,
                                          .failed = true,
                                          .text = "the workers of b failed"};

    (void)state;
    rig_run_kept(0, 1, 0, false);
    (void)rig_step(failed);
    assert_string_equal(rig.u.text,
                        "the workers of b failed; no restart is left, unless a node was lost");
}

static void test_agent_the_backend_that_keeps_it_decides_when_it_is_spent(void **state)
{
    (void)state;

    /* A member was lost, and our worker ended because of that: the job goes on. */
    rig_run_kept(0, 1, 0, false);
    assert_int_equal(rig_exited(1, 1, 1), REPORT | JOIN | SIGNAL);
    assert_true(rig.u.failed);
    assert_int_equal(rig_exited(1, 0, -TERM), 0);
    assert_int_equal(rig_group(MU_AGENT_GROUP_GONE, 1), 0);
    assert_int_equal(rig.a.state, MU_AGENT_IS_JOINING);
    assert_int_equal(rig_assigned_kept(1, 0, false), EXCHANGE);
    assert_int_equal(rig_round(MU_AGENT_READY, 1, 0), SPAWN);

    /* Then one fails by itself, and that is the end. */
    assert_int_equal(rig_group(MU_AGENT_SPAWNED, 2), 0);
    assert_int_equal(rig_exited(2, 0, 7), REPORT | JOIN | SIGNAL);
    assert_int_equal(rig_exited(2, 1, -TERM), 0);
    assert_int_equal(rig_group(MU_AGENT_GROUP_GONE, 2), 0);
    assert_int_equal(rig_rdzv_failed(MUSTER_ERDZV_RESTARTS), ENDED);
    assert_ended(MU_AGENT_FAILED);
    assert_int_equal(rig.u.exit_code, 7);
}

static void test_agent_failure_while_the_others_still_start(void **state)
{
    (void)state;

    assert_int_equal(rig_start(), JOIN);
    assert_int_equal(rig_assigned(0), EXCHANGE);
    assert_int_equal(rig_round(MU_AGENT_READY, 0, 0), SPAWN);
    assert_int_equal(rig_exited(1, 0, 1), REPORT | JOIN | SIGNAL);
    assert_int_equal(rig_group(MU_AGENT_SPAWNED, 1), 0);
    assert_int_equal(rig.a.state, MU_AGENT_IS_STOPPING);
    assert_int_equal(rig_exited(1, 1, -TERM), 0);
    assert_int_equal(rig_group(MU_AGENT_GROUP_GONE, 1), 0);
    assert_int_equal(rig.a.state, MU_AGENT_IS_JOINING);
}

static void test_agent_workers_may_end_before_all_are_told_to_run(void **state)
{
    (void)state;

    assert_int_equal(rig_start(), JOIN);
    assert_int_equal(rig_assigned(0), EXCHANGE);
    assert_int_equal(rig_round(MU_AGENT_READY, 0, 0), SPAWN);
    assert_int_equal(rig_exited(1, 0, 0), 0);
    assert_int_equal(rig_exited(1, 1, 0), BARRIER);
    assert_int_equal(rig_group(MU_AGENT_SPAWNED, 1), 0);
    assert_int_equal(rig_group(MU_AGENT_GROUP_GONE, 1), 0);
    assert_int_equal(rig_round(MU_AGENT_BARRIER_DONE, 0, 0), CLOSE | ENDED);
}

static void test_agent_worker_that_cannot_start_is_an_error(void **state)
{
    (void)state;

    assert_int_equal(rig_start(), JOIN);
    assert_int_equal(rig_assigned(0), EXCHANGE);
    assert_int_equal(rig_round(MU_AGENT_READY, 0, 0), SPAWN);
    assert_int_equal(rig_step((struct mu_agent_event){.type = MU_AGENT_SPAWN_FAILED,
                                                      .generation = 1,
                                                      .local_rank = 1,
                                                      .code = MUSTER_ENOENT,
                                                      .text = "no such program"}),
                     SIGNAL | LEAVE | CLOSE);
    assert_int_equal(rig_exited(1, 0, -TERM), 0);
    assert_int_equal(rig_group(MU_AGENT_GROUP_GONE, 1), ENDED);
    assert_ended(MU_AGENT_ERROR);
    assert_int_equal(rig.u.code, MUSTER_ENOENT);
    assert_non_null(
        strstr(rig.u.text, "rank 1 (local rank 1) could not be started: no such program"));
}

static void test_agent_all_with_0_is_success(void **state)
{
    (void)state;

    /* One that finished stays finished, but does not make up for another's failure. */
    rig_run(0, 1);
    assert_int_equal(rig_exited(1, 0, 0), 0);
    assert_int_equal(rig_exited(1, 1, 7), REPORT | JOIN | SIGNAL);
    assert_int_equal(rig_group(MU_AGENT_GROUP_GONE, 1), 0);

    /* Once the round is over no exit counts. */
    rig_run(1, 2);
    assert_int_equal(rig_exited(2, 0, 0), 0);
    assert_int_equal(rig_round(MU_AGENT_ROUND_ENDED, 1, 0), JOIN | SIGNAL);
    assert_int_equal(rig_exited(2, 1, 0), 0);
    assert_int_equal(rig_group(MU_AGENT_GROUP_GONE, 2), 0);
    assert_int_equal(rig.a.state, MU_AGENT_IS_JOINING);
    assert_int_equal(mu_agent_restarts_left(&rig.a), 1);
}

static void test_agent_stragglers_are_named(void **state)
{
    (void)state;

    rig_run(0, 1);
    assert_int_equal(mu_agent_deadline(&rig.a).ns, MU_MONO_NEVER.ns);
    assert_int_equal(rig_exited(1, 0, 0), 0);
    assert_int_equal(rig_pass(29999), 0);
    assert_null(rig.u.text);
    assert_int_equal(rig_pass(1), 0);
    assert_string_equal(
        rig.u.text,
        "1 of 2 workers still run 30 s after the last one ended; rank 1 (local rank 1) is the one");
    /* Once is enough, and the worker may take its time. */
    assert_int_equal(mu_agent_deadline(&rig.a).ns, MU_MONO_NEVER.ns);
    assert_int_equal(rig_pass(3600000), 0);
    assert_null(rig.u.text);
    assert_int_equal(rig_exited(1, 1, 0), BARRIER);

    /* One that ended before all were told to run counts as well. */
    rig_init(rig_config());
    assert_int_equal(rig_start(), JOIN);
    assert_int_equal(rig_assigned(0), EXCHANGE);
    assert_int_equal(rig_round(MU_AGENT_READY, 0, 0), SPAWN);
    assert_int_equal(rig_exited(1, 1, 0), 0);
    assert_int_equal(rig_group(MU_AGENT_SPAWNED, 1), 0);
    assert_int_equal(rig_pass(30000), 0);
    assert_string_equal(
        rig.u.text,
        "1 of 2 workers still run 30 s after the last one ended; rank 0 (local rank 0) is the one");
}

static void test_agent_left_overs_do_not_delay_success(void **state)
{
    (void)state;

    rig_run(0, 1);
    assert_int_equal(rig_exited(1, 0, 0), 0);
    assert_int_equal(rig_exited(1, 1, 0), BARRIER);
    assert_int_equal(rig_round(MU_AGENT_BARRIER_DONE, 0, 0), CLOSE | ENDED);
    assert_ended(MU_AGENT_SUCCEEDED);
}

/* --- the fence ------------------------------------------------------------------------------- */

static void test_agent_a_node_that_is_cut_off_stops_in_time(void **state)
{
    (void)state;

    /* Some of the grace is left, not all of it. */
    rig_run(0, 1);
    assert_int_equal(rig_cut_off(500), 0);
    assert_int_equal(rig_round(MU_AGENT_ROUND_ENDED, 0, 0), JOIN | SIGNAL);
    assert_int_equal(rig_pass(499), 0);
    assert_int_equal(rig_pass(1), KILL);
    assert_int_equal(rig_exited(1, 0, -9), 0);
    assert_int_equal(rig_exited(1, 1, -9), 0);
    assert_int_equal(rig_group(MU_AGENT_GROUP_GONE, 1), 0);
    /* What is started later has nothing to do with it. */
    assert_int_equal(rig_assigned(1), EXCHANGE);
    assert_int_equal(rig_round(MU_AGENT_READY, 1, 0), SPAWN);
    assert_int_equal(rig_round(MU_AGENT_ROUND_ENDED, 1, 0), JOIN | SIGNAL);
    assert_int_equal(mu_mono_until_ms(rig.u.deadline, rig.now), 30000);
}

static void test_agent_who_is_cut_off_while_it_stops_or_saves_stops_sooner(void **state)
{
    struct mu_agent_config config = rig_config();

    (void)state;
    rig_run(0, 1);
    assert_int_equal(rig_round(MU_AGENT_ROUND_ENDED, 0, 0), JOIN | SIGNAL);
    assert_int_equal(rig_cut_off(700), 0);
    assert_int_equal(rig_pass(700), KILL);

    config.change_ms = 5000;
    rig_init(config);
    rig_run(0, 1);
    assert_int_equal(rig_round(MU_AGENT_ROUND_ENDED, 0, 0), JOIN | WARN);
    assert_int_equal(rig_cut_off(700), SIGNAL);
    assert_int_equal(rig_pass(700), KILL);

    /* There is no time to save for who is cut off first. */
    rig_init(config);
    rig_run(0, 1);
    assert_int_equal(rig_cut_off(700), 0);
    assert_int_equal(rig_round(MU_AGENT_ROUND_ENDED, 0, 0), JOIN | SIGNAL);
}

/* As an agent that was stopped finds when it wakes. */
static void test_agent_who_was_cut_off_kills_at_once(void **state)
{
    (void)state;

    rig_run(0, 1);
    assert_int_equal(rig_cut_off(0), 0);
    assert_int_equal(rig_round(MU_AGENT_ROUND_ENDED, 0, 0), JOIN | SIGNAL | KILL);
}

static void test_agent_who_is_cut_off_at_the_end_waits_a_while(void **state)
{
    (void)state;

    rig_run(0, 1);
    rig_succeed(1);
    assert_int_equal(rig_cut_off(500), 0);
    assert_int_equal(rig_pass(29999), 0);
    assert_int_equal(rig_pass(1), CLOSE | ENDED);
    assert_ended(MU_AGENT_SUCCEEDED);
}

/* --- a time to save ------------------------------------------------------------------------- */

static void run_with_time_to_save(void)
{
    struct mu_agent_config config = rig_config();

    config.change_ms = 5000;
    rig_init(config);
    rig_run(0, 1);
    assert_int_equal(rig_round(MU_AGENT_ROUND_ENDED, 0, 0), JOIN | WARN);
    assert_int_equal(rig.u.within_ms, 5000);
    assert_int_equal(rig.a.state, MU_AGENT_IS_SAVING);
}

static void test_agent_workers_that_asked_have_time_to_save(void **state)
{
    (void)state;

    run_with_time_to_save();
    assert_int_equal(rig_assigned(1), 0);
    assert_int_equal(rig_exited(1, 0, 4), 0);
    assert_int_equal(rig_group(MU_AGENT_SAVED, 1), SIGNAL);
    assert_int_equal(rig_exited(1, 1, -TERM), 0);
    assert_int_equal(rig_group(MU_AGENT_GROUP_GONE, 1), EXCHANGE);

    run_with_time_to_save();
    assert_int_equal(rig_pass(4999), 0);
    assert_int_equal(rig_pass(1), SIGNAL);
    assert_int_equal(mu_mono_until_ms(rig.u.deadline, rig.now), 30000);

    /* All are gone by themselves; what they left behind is not. */
    run_with_time_to_save();
    assert_int_equal(rig_exited(1, 0, 0), 0);
    assert_int_equal(rig_exited(1, 1, 0), SIGNAL);
    assert_int_equal(rig_group(MU_AGENT_GROUP_GONE, 1), 0);
    assert_int_equal(rig.a.state, MU_AGENT_IS_JOINING);

    run_with_time_to_save();
    assert_int_equal(rig_signal(INTR), SIGNAL | LEAVE);
    assert_int_equal(rig.u.signal, INTR);
}

static void test_agent_saving_goes_on_when_the_run_is_over(void **state)
{
    (void)state;

    run_with_time_to_save();
    assert_int_equal(rig_rdzv_failed(MUSTER_ERDZV_CLOSED), 0);
    assert_int_equal(rig.a.state, MU_AGENT_IS_SAVING);
    assert_int_equal(rig_closed(), 0);
    assert_int_equal(rig_group(MU_AGENT_SAVED, 1), SIGNAL);
    assert_int_equal(rig_exited(1, 0, 0), 0);
    assert_int_equal(rig_exited(1, 1, 0), 0);
    assert_int_equal(rig_group(MU_AGENT_GROUP_GONE, 1), ENDED);
    assert_ended(MU_AGENT_ERROR);
    assert_int_equal(rig.u.code, MUSTER_ERDZV_CLOSED);
}

/* --- signals -------------------------------------------------------------------------------- */

static void test_agent_a_signal_is_passed_on(void **state)
{
    struct mu_agent_config config = rig_config();
    (void)state;

    config.signal_map[USR1] = TERM;
    rig_init(config);
    rig_run(0, 1);
    assert_int_equal(rig_signal(USR1), SIGNAL | LEAVE);
    assert_int_equal(rig.u.signal, TERM);
    assert_int_equal(rig_pass(100), 0);
    assert_int_equal(rig_signal(INTR), KILL);
    assert_int_equal(rig_signal(INTR), 0);
    assert_int_equal(rig_exited(1, 0, -9), 0);
    assert_int_equal(rig_exited(1, 1, -9), 0);
    assert_int_equal(rig_group(MU_AGENT_GROUP_GONE, 1), ENDED);
    assert_ended(MU_AGENT_STOPPED);
    assert_non_null(strstr(rig.u.text, "signal 10"));
}

static void test_agent_a_signal_before_workers_run_ends_at_once(void **state)
{
    (void)state;

    assert_int_equal(rig_signal(TERM), ENDED);
    assert_ended(MU_AGENT_STOPPED);

    rig_init(rig_config());
    assert_int_equal(rig_start(), JOIN);
    assert_int_equal(rig_signal(TERM), LEAVE | ENDED);
    assert_ended(MU_AGENT_STOPPED);

    rig_init(rig_config());
    assert_int_equal(rig_start(), JOIN);
    assert_int_equal(rig_assigned(0), EXCHANGE);
    assert_int_equal(rig_signal(TERM), LEAVE | ENDED);
    assert_ended(MU_AGENT_STOPPED);
    assert_int_equal(rig_signal(TERM), 0);
}

static void test_agent_a_signal_while_it_starts_or_restarts(void **state)
{
    (void)state;

    assert_int_equal(rig_start(), JOIN);
    assert_int_equal(rig_assigned(0), EXCHANGE);
    assert_int_equal(rig_round(MU_AGENT_READY, 0, 0), SPAWN);
    assert_int_equal(rig_signal(INTR), SIGNAL | LEAVE);
    assert_int_equal(rig_exited(1, 0, -INTR), 0);
    /* The second was not started any more. */
    assert_int_equal(rig_group(MU_AGENT_GROUP_GONE, 1), ENDED);
    assert_ended(MU_AGENT_STOPPED);

    rig_init(rig_config());
    rig_run(0, 1);
    assert_int_equal(rig_round(MU_AGENT_ROUND_ENDED, 0, 0), JOIN | SIGNAL);
    assert_int_equal(rig_pass(20000), 0);
    assert_int_equal(rig_signal(INTR), SIGNAL | LEAVE);
    assert_int_equal(mu_mono_until_ms(rig.u.deadline, rig.now), 10000);
    assert_int_equal(rig_assigned(1), 0);
    assert_int_equal(rig_exited(1, 0, 0), 0);
    assert_int_equal(rig_exited(1, 1, 0), 0);
    assert_int_equal(rig_group(MU_AGENT_GROUP_GONE, 1), ENDED);
    assert_ended(MU_AGENT_STOPPED);
}

static void test_agent_a_signal_does_not_hide_a_failure(void **state)
{
    struct mu_agent_config config = rig_config();
    (void)state;

    config.restarts_max = 0;
    rig_init(config);
    rig_run(0, 1);
    assert_int_equal(rig_exited(1, 0, 3), REPORT | SIGNAL | LEAVE | CLOSE);
    assert_int_equal(rig_signal(INTR), SIGNAL);
    assert_int_equal(rig_signal(INTR), KILL);
    assert_int_equal(rig_exited(1, 1, -9), 0);
    assert_int_equal(rig_group(MU_AGENT_GROUP_GONE, 1), ENDED);
    assert_ended(MU_AGENT_FAILED);
    assert_int_equal(rig.u.exit_code, 3);
}

static void test_agent_a_signal_during_the_barrier_stops(void **state)
{
    (void)state;

    rig_run(0, 1);
    rig_succeed(1);
    assert_int_equal(rig_signal(TERM), LEAVE | ENDED);
    assert_ended(MU_AGENT_STOPPED);
}

/* --- closing, the barrier ------------------------------------------------------------------- */

static void test_agent_a_closed_run_lets_workers_finish(void **state)
{
    (void)state;

    rig_run(0, 1);
    assert_int_equal(rig_closed(), 0);
    assert_int_equal(rig.a.state, MU_AGENT_IS_RUNNING);
    rig_succeed(1);
    assert_int_equal(mu_mono_until_ms(mu_agent_deadline(&rig.a), rig.now), 30000);
    assert_int_equal(rig_pass(30000), ENDED);
    assert_ended(MU_AGENT_SUCCEEDED);
}

static void test_agent_a_closed_run_restarts_nothing(void **state)
{
    (void)state;

    rig_run(0, 1);
    assert_int_equal(rig_closed(), 0);
    assert_int_equal(rig_exited(1, 0, 1), REPORT | SIGNAL | LEAVE);
    assert_int_equal(rig_exited(1, 1, 1), 0);
    assert_int_equal(rig_group(MU_AGENT_GROUP_GONE, 1), ENDED);
    assert_ended(MU_AGENT_FAILED);

    rig_init(rig_config());
    rig_run(0, 1);
    assert_int_equal(rig_rdzv_failed(MUSTER_ERDZV_CLOSED), 0);
    assert_int_equal(rig_round(MU_AGENT_ROUND_ENDED, 0, 0), SIGNAL | LEAVE);
    assert_int_equal(rig_exited(1, 0, 0), 0);
    assert_int_equal(rig_exited(1, 1, 0), 0);
    assert_int_equal(rig_group(MU_AGENT_GROUP_GONE, 1), ENDED);
    assert_ended(MU_AGENT_ERROR);
    assert_int_equal(rig.u.code, MUSTER_ERDZV_CLOSED);
}

static void test_agent_a_run_closed_before_workers_run_is_an_error(void **state)
{
    (void)state;

    assert_int_equal(rig_start(), JOIN);
    assert_int_equal(rig_closed(), LEAVE | ENDED);
    assert_ended(MU_AGENT_ERROR);

    rig_init(rig_config());
    assert_int_equal(rig_start(), JOIN);
    assert_int_equal(rig_rdzv_failed(MUSTER_ERDZV_CLOSED), ENDED);
    assert_ended(MU_AGENT_ERROR);
    assert_int_equal(rig.u.code, MUSTER_ERDZV_CLOSED);

    rig_init(rig_config());
    rig_run(0, 1);
    assert_int_equal(rig_round(MU_AGENT_ROUND_ENDED, 0, 0), JOIN | SIGNAL);
    assert_int_equal(rig_closed(), LEAVE);
    assert_int_equal(rig_exited(1, 0, 0), 0);
    assert_int_equal(rig_exited(1, 1, 0), 0);
    assert_int_equal(rig_group(MU_AGENT_GROUP_GONE, 1), ENDED);
    assert_ended(MU_AGENT_ERROR);
}

static void test_agent_success_stands(void **state)
{
    (void)state;

    /* A member is lost: leave, so that those that go on are not closed. */
    rig_run(0, 1);
    rig_succeed(1);
    assert_int_equal(rig_round(MU_AGENT_ROUND_ENDED, 0, 0), LEAVE | ENDED);
    assert_ended(MU_AGENT_SUCCEEDED);

    rig_init(rig_config());
    rig_run(0, 1);
    rig_succeed(1);
    assert_int_equal(rig_rdzv_failed(MUSTER_ERDZV_CONN), ENDED);
    assert_ended(MU_AGENT_SUCCEEDED);

    rig_init(rig_config());
    rig_run(0, 1);
    rig_succeed(1);
    assert_int_equal(rig_round(MU_AGENT_BARRIER_DONE, 0, MUSTER_ECONN), CLOSE | ENDED);
    assert_ended(MU_AGENT_SUCCEEDED);

    rig_init(rig_config());
    rig_run(0, 1);
    rig_succeed(1);
    assert_int_equal(rig_pass(300000), CLOSE | ENDED);
    assert_ended(MU_AGENT_SUCCEEDED);

    rig_init(rig_config());
    rig_run(0, 1);
    rig_succeed(1);
    assert_int_equal(rig_closed(), 0);
    assert_int_equal(rig_pass(30000), ENDED);
    assert_ended(MU_AGENT_SUCCEEDED);
}

static void test_agent_a_host_stays_for_the_others(void **state)
{
    (void)state;

    rig_run_kept(0, 1, MU_AGENT_NOT_KEPT, true);
    rig_succeed(1);
    assert_false(mu_agent_hosts_only(&rig.a));
    assert_int_equal(rig_round(MU_AGENT_ROUND_ENDED, 0, 0), LEAVE);
    assert_true(mu_agent_hosts_only(&rig.a));
    assert_int_equal(rig_pass(299999), 0);
    assert_int_equal(rig_closed(), ENDED);
    assert_ended(MU_AGENT_SUCCEEDED);

    rig_init(rig_config());
    rig_run_kept(0, 1, MU_AGENT_NOT_KEPT, true);
    rig_succeed(1);
    assert_int_equal(rig_step((struct mu_agent_event){.type = MU_AGENT_ALONE}), 0);
    assert_int_equal(rig_round(MU_AGENT_ROUND_ENDED, 0, 0), LEAVE);
    assert_int_equal(rig_step((struct mu_agent_event){.type = MU_AGENT_ALONE}), ENDED);
    assert_ended(MU_AGENT_SUCCEEDED);

    rig_init(rig_config());
    rig_run_kept(0, 1, MU_AGENT_NOT_KEPT, true);
    rig_succeed(1);
    assert_int_equal(rig_closed(), 0);
    assert_int_equal(rig_pass(299999), 0);
    assert_int_equal(rig_pass(1), ENDED);
    assert_ended(MU_AGENT_SUCCEEDED);
}

static void test_agent_spare_at_the_end_is_graceful(void **state)
{
    (void)state;

    assert_int_equal(rig_start(), JOIN);
    assert_int_equal(rig_rdzv_failed(MUSTER_ERDZV_GRACEFUL), ENDED);
    assert_ended(MU_AGENT_GRACEFUL);
    assert_int_equal(rig.u.code, 0);
}

static void test_agent_rendezvous_that_fails_is_the_end(void **state)
{
    static const int codes[] = {MUSTER_ERDZV_TIMEOUT, MUSTER_ERDZV_CONN, MUSTER_ERDZV_LOST};
    (void)state;

    for (size_t i = 0; i < 3; i++) {
        rig_init(rig_config());
        assert_int_equal(rig_start(), JOIN);
        assert_int_equal(rig_rdzv_failed(codes[i]), ENDED);
        assert_ended(MU_AGENT_ERROR);
        assert_int_equal(rig.u.code, codes[i]);

        rig_init(rig_config());
        rig_run(0, 1);
        assert_int_equal(rig_rdzv_failed(codes[i]), SIGNAL);
        assert_int_equal(rig_exited(1, 0, -TERM), 0);
        assert_int_equal(rig_exited(1, 1, -TERM), 0);
        assert_int_equal(rig_group(MU_AGENT_GROUP_GONE, 1), ENDED);
        assert_ended(MU_AGENT_ERROR);
        assert_int_equal(rig.u.code, codes[i]);
    }
}

/* --- the exchange --------------------------------------------------------------------------- */

static void test_agent_a_round_that_ends_while_exchanging_is_joined_again(void **state)
{
    (void)state;

    assert_int_equal(rig_start(), JOIN);
    assert_int_equal(rig_assigned(4), EXCHANGE);
    assert_int_equal(rig_round(MU_AGENT_ROUND_ENDED, 3, 0), 0);
    assert_int_equal(rig_round(MU_AGENT_ROUND_ENDED, 4, 0), JOIN);
    /* The exchange of the old round fails, of course. */
    assert_int_equal(rig_round(MU_AGENT_NOT_READY, 4, MUSTER_ECONN), 0);
    assert_int_equal(rig_assigned(5), EXCHANGE);
    assert_int_equal(rig_round(MU_AGENT_READY, 4, 0), 0);
    assert_int_equal(rig_round(MU_AGENT_READY, 5, 0), SPAWN);
    assert_int_equal(rig.u.restart_count, 0);
}

static void test_agent_a_failed_exchange_is_tried_again(void **state)
{
    (void)state;

    assert_int_equal(rig_start(), JOIN);
    assert_int_equal(rig_assigned(0), EXCHANGE);
    assert_int_equal(rig_round(MU_AGENT_NOT_READY, 0, MUSTER_ECONN), JOIN);
    assert_int_equal(rig_assigned(1), EXCHANGE);
    assert_int_equal(rig_pass(300000), JOIN);
    assert_int_equal(rig_assigned(2), EXCHANGE);
    assert_int_equal(rig_round(MU_AGENT_NOT_READY, 2, MUSTER_ECONN), LEAVE | CLOSE | ENDED);
    assert_ended(MU_AGENT_ERROR);
    assert_int_equal(rig.u.code, MUSTER_ECONN);

    /* In a row: one that works makes up for those before. */
    rig_init(rig_config());
    assert_int_equal(rig_start(), JOIN);
    for (uint64_t i = 0; i < 6; i += 3) {
        assert_int_equal(rig_assigned(i), EXCHANGE);
        assert_int_equal(rig_round(MU_AGENT_NOT_READY, i, MUSTER_ECONN), JOIN);
        assert_int_equal(rig_assigned(i + 1), EXCHANGE);
        assert_int_equal(rig_round(MU_AGENT_NOT_READY, i + 1, MUSTER_ECONN), JOIN);
        rig_run(i + 2, i / 3 + 1);
        assert_int_equal(rig_round(MU_AGENT_ROUND_ENDED, i + 2, 0), JOIN | SIGNAL);
        assert_int_equal(rig_exited(i / 3 + 1, 0, 0), 0);
        assert_int_equal(rig_exited(i / 3 + 1, 1, 0), 0);
        assert_int_equal(rig_group(MU_AGENT_GROUP_GONE, i / 3 + 1), 0);
    }
}

static void test_agent_stale_events_are_ignored(void **state)
{
    (void)state;

    rig_run(7, 1);
    assert_int_equal(rig_round(MU_AGENT_ROUND_ENDED, 6, 0), 0);
    assert_int_equal(rig_round(MU_AGENT_ROUND_ENDED, 8, 0), 0);
    assert_int_equal(rig_assigned(8), 0);
    assert_int_equal(rig_round(MU_AGENT_READY, 7, 0), 0);
    assert_int_equal(rig_round(MU_AGENT_NOT_READY, 7, MUSTER_ECONN), 0);
    assert_int_equal(rig_round(MU_AGENT_BARRIER_DONE, 7, 0), 0);
    assert_int_equal(rig_group(MU_AGENT_SAVED, 1), 0);
    assert_int_equal(rig_group(MU_AGENT_GROUP_GONE, 0), 0);
    assert_int_equal(rig_pass(1000000), 0);
    assert_int_equal(rig.a.state, MU_AGENT_IS_RUNNING);

    assert_int_equal(rig_round(MU_AGENT_ROUND_ENDED, 7, 0), JOIN | SIGNAL);
    assert_int_equal(rig_exited(1, 0, 0), 0);
    assert_int_equal(rig_exited(1, 1, 0), 0);
    assert_int_equal(rig_group(MU_AGENT_GROUP_GONE, 1), 0);
    rig_run(8, 2);
    assert_int_equal(rig_exited(1, 0, 1), 0);
    assert_int_equal(rig_group(MU_AGENT_GROUP_GONE, 1), 0);
    assert_int_equal(rig_group(MU_AGENT_SPAWN_FAILED, 1), 0);
    assert_int_equal(rig.a.state, MU_AGENT_IS_RUNNING);
    rig_succeed(2);
    assert_int_equal(rig_round(MU_AGENT_BARRIER_DONE, 7, 0), 0);
}

static void test_agent_init_refuses_what_cannot_be(void **state)
{
    struct mu_agent_config config = rig_config();
    struct mu_errmsg msg;
    (void)state;

    config.workers = 0;
    assert_int_equal(mu_agent_init(&rig.a, &config, &msg), MUSTER_EINVAL);
    config.workers = MU_AGENT_WORKERS_MAX + 1;
    assert_int_equal(mu_agent_init(&rig.a, &config, &msg), MUSTER_EINVAL);
    assert_string_equal(msg.text, "there can be 1 to 4096 workers, not 4097");
    config.workers = 1;
    config.stop_signal = 65;
    assert_int_equal(mu_agent_init(&rig.a, &config, &msg), MUSTER_EINVAL);
    config.stop_signal = 15;
    config.signal_map[3] = 65;
    assert_int_equal(mu_agent_init(&rig.a, &config, &msg), MUSTER_EINVAL);
}

static void test_agent_thousands_of_workers(void **state)
{
    struct mu_agent_config config = rig_config();
    (void)state;

    config.workers = MU_AGENT_WORKERS_MAX;
    rig_init(config);
    rig_run(0, 1);
    rig_succeed(1);
    assert_int_equal(rig_round(MU_AGENT_BARRIER_DONE, 0, 0), CLOSE | ENDED);
}

static void test_agent_exchanges_are_tried_so_often(void **state)
{
    struct mu_agent_config config = rig_config();

    (void)state;
    for (uint32_t tries = 1; tries < 5; tries++) {
        config.exchange_tries_max = tries;
        rig_init(config);
        assert_int_equal(rig_start(), JOIN);
        for (uint32_t i = 0; i < tries; i++) {
            assert_int_equal(rig_assigned(i), EXCHANGE);
            assert_int_equal(rig_round(MU_AGENT_NOT_READY, i, MUSTER_ECONN),
                             i + 1 < tries ? JOIN : LEAVE | CLOSE | ENDED);
        }
        assert_ended(MU_AGENT_ERROR);
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup(name, setup)
    const struct CMUnitTest tests[] = {
        TEST(test_agent_runs_to_success),
        TEST(test_agent_never_two_generations_alive),
        TEST(test_agent_round_that_ends_while_it_waits_is_joined_again),
        TEST(test_agent_each_child_is_reaped_once),
        TEST(test_agent_one_deadline_for_all),
        TEST(test_agent_unkillable_process_is_an_end),
        TEST(test_agent_unkillable_process_keeps_the_outcome),
        TEST(test_agent_the_restart_budget_is_our_own_where_nobody_keeps_it),
        TEST(test_agent_the_restart_budget_is_the_jobs_where_the_backend_keeps_it),
        TEST(test_agent_changes_of_membership_cost_nothing),
        TEST(test_agent_dismissed_by_the_backend_has_failed),
        TEST(test_agent_the_first_failure_is_reported_at_once),
        TEST(test_agent_ranks_are_the_worlds),
        TEST(test_agent_promises_no_restart_that_is_not_left),
        TEST(test_agent_the_backend_that_keeps_it_decides_when_it_is_spent),
        TEST(test_agent_failure_while_the_others_still_start),
        TEST(test_agent_workers_may_end_before_all_are_told_to_run),
        TEST(test_agent_worker_that_cannot_start_is_an_error),
        TEST(test_agent_all_with_0_is_success),
        TEST(test_agent_stragglers_are_named),
        TEST(test_agent_left_overs_do_not_delay_success),
        TEST(test_agent_a_node_that_is_cut_off_stops_in_time),
        TEST(test_agent_who_is_cut_off_while_it_stops_or_saves_stops_sooner),
        TEST(test_agent_who_was_cut_off_kills_at_once),
        TEST(test_agent_who_is_cut_off_at_the_end_waits_a_while),
        TEST(test_agent_workers_that_asked_have_time_to_save),
        TEST(test_agent_saving_goes_on_when_the_run_is_over),
        TEST(test_agent_a_signal_is_passed_on),
        TEST(test_agent_a_signal_before_workers_run_ends_at_once),
        TEST(test_agent_a_signal_while_it_starts_or_restarts),
        TEST(test_agent_a_signal_does_not_hide_a_failure),
        TEST(test_agent_a_signal_during_the_barrier_stops),
        TEST(test_agent_a_closed_run_lets_workers_finish),
        TEST(test_agent_a_closed_run_restarts_nothing),
        TEST(test_agent_a_run_closed_before_workers_run_is_an_error),
        TEST(test_agent_success_stands),
        TEST(test_agent_a_host_stays_for_the_others),
        TEST(test_agent_spare_at_the_end_is_graceful),
        TEST(test_agent_rendezvous_that_fails_is_the_end),
        TEST(test_agent_a_round_that_ends_while_exchanging_is_joined_again),
        TEST(test_agent_a_failed_exchange_is_tried_again),
        TEST(test_agent_stale_events_are_ignored),
        TEST(test_agent_init_refuses_what_cannot_be),
        TEST(test_agent_thousands_of_workers),
        TEST(test_agent_exchanges_are_tried_so_often),
    };
#undef TEST

    return cmocka_run_group_tests_name("agent", tests, NULL, NULL);
}
