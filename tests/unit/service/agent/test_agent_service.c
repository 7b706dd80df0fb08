/*
 * Agents with real workers: several of them on one loop, with the native rendezvous on loopback
 * between them. Workers are scripts of the shell.
 */
#include "agent_seats.h"
#include "own_network.h"
#include "skipped.h"

#include <fcntl.h>
#include <sys/stat.h>

/* --- the tests -------------------------------------------------------------------------------- */

static void test_agent_service_runs_four_workers_on_two_nodes(void **state)
{
    static const char script[] = "echo rank=$RANK/$WORLD_SIZE local=$LOCAL_RANK "
                                 "group=$GROUP_RANK/$GROUP_WORLD_SIZE restart="
                                 "$TORCHELASTIC_RESTART_COUNT; "
                                 "echo master=$MASTER_ADDR:$MASTER_PORT";
    struct seat *a = seat_prepare(0, script, 2, 2, "");
    struct seat *b = seat_prepare(1, script, 2, 2, "");
    const char *master;
    char pair[64];
    (void)state;

    seat_start(a);
    seat_start(b);
    seat_wait_ended(a);
    seat_wait_ended(b);
    assert_outcome(a, MU_AGENT_SUCCEEDED);
    assert_outcome(b, MU_AGENT_SUCCEEDED);
    assert_int_equal(mu_agent_verdict_exit_code(&a->verdict), 0);
    for (int i = 0; i < 2; i++) {
        char line[64];
        int group = strstr(seats[i].out, "group=0/2") != NULL ? 0 : 1;

        for (int k = 0; k < 2; k++) {
            (void)snprintf(line, sizeof(line), "rank=%d/4 local=%d group=%d/2 restart=0",
                           group * 2 + k, k, group);
            assert_has(seats[i].out, line);
        }
    }
    /* One and the same address for all. */
    master = strstr(a->out, "master=127.0.0.1:");
    assert_non_null(master);
    (void)snprintf(pair, sizeof(pair), "%.*s", (int)strcspn(master, "\n"), master);
    assert_has(b->out, pair);
    assert_has(a->json, "\"outcome\": \"SUCCEEDED\", \"exit_code\": 0");
    assert_has(a->json, "\"first_failure\": null");
}

static const char *address; /* not loopback's; NULL: there is none */

static void test_agent_service_seals_the_way_to_the_workers_store(void **state)
{
    static const char script[] = "echo master=$MASTER_ADDR:$MASTER_PORT; "
                                 "echo share=$TORCHELASTIC_USE_AGENT_STORE";
    char way[96];
    struct seat *a = seat_prepare(0, script, 2, 2, "");
    struct seat *b = seat_prepare(1, script, 2, 2, "");
    (void)state;

    if (address == NULL) {
        skip_saying("there is no address but loopback's");
    }
    for (int i = 0; i < 2; i++) {
        seats[i].config.rdzv.local_addr = address;
        seats[i].config.sealed = true;
        seat_start(&seats[i]);
    }
    seat_wait_ended(a);
    seat_wait_ended(b);
    assert_outcome(a, MU_AGENT_SUCCEEDED);
    assert_outcome(b, MU_AGENT_SUCCEEDED);
    assert_has(a->out, "master=127.0.0.1:");
    assert_has(b->out, "master=127.0.0.1:");
    assert_has(a->out, "share=True");
    /* Rank 0 serves it, at that address only, and both pass on. */
    (void)snprintf(way, sizeof(way), "workers' store: at %s:", address);
    assert_has(a->log, way);
    assert_has(b->log, way);
    assert_null(strstr(a->out, address));
}

/* Standard output to nowhere; errors come as they do. */
static void hide_stdout(void *context, uint32_t local_rank, struct mu_spawn *what)
{
    (void)context;
    assert_true(local_rank < 2);
    assert_int_equal(what->streams[MU_STDOUT].to, MU_SPAWN_PIPE);
    what->streams[MU_STDOUT] = (struct mu_spawn_stream){.to = MU_SPAWN_NULL};
}

static void test_agent_service_streams_lead_where_its_user_says(void **state)
{
    struct seat *a = seat_prepare(0, "echo hidden; echo shown >&2", 1, 1, "");
    (void)state;

    a->streams = hide_stdout;
    seat_start(a);
    seat_wait_ended(a);
    assert_outcome(a, MU_AGENT_SUCCEEDED);
    assert_string_equal(a->out, "shown\nshown\n");
}

static void test_agent_service_names_the_first_failure_everywhere(void **state)
{
    static const char script[] = "if [ $RANK = 3 ]; then echo about to fail; exit 7; fi; "
                                 "exec sleep 60";
    struct seat *a = seat_prepare(0, script, 2, 2, "max_restarts=0");
    struct seat *b = seat_prepare(1, script, 2, 2, "max_restarts=0");
    (void)state;

    (void)snprintf(a->error_text, sizeof(a->error_text),
                   "{\"message\": {\"message\": \"ValueError: boom\"}}");
    (void)snprintf(b->error_text, sizeof(b->error_text), "%s", a->error_text);
    seat_start(a);
    seat_start(b);
    seat_wait_ended(a);
    seat_wait_ended(b);
    for (int i = 0; i < 2; i++) {
        const struct mu_agent_verdict *v = &seats[i].verdict;

        assert_outcome(&seats[i], MU_AGENT_FAILED);
        assert_int_equal(mu_agent_verdict_exit_code(v), 1);
        assert_true(v->has_failure);
        assert_int_equal(v->first_failure.rank, 3);
        assert_int_equal(v->first_failure.local_rank, 1);
        assert_int_equal(v->first_failure.exit_code, 7);
        assert_string_equal(v->first_failure.tail, "about to fail\n");
        assert_has(seats[i].text, "first failure: rank 3 (local rank 1) on ");
        assert_has(seats[i].text, "exit code 7");
        assert_has(seats[i].text, "error:     ValueError: boom");
        assert_has(seats[i].text, "    | about to fail\n");
        if (v->failure_here) { /* What its own worker did was said at once, and is not repeated. */
            assert_has(seats[i].log, "\nrank 3 (local rank 1) exited with 7\n");
            assert_null(strstr(seats[i].log, "exited with 7; "));
        }
        assert_has(seats[i].text, "stopped by the agent on this node: rank");
        assert_has(seats[i].text, " by SIGTERM");
        assert_has(seats[i].json, "\"became\": \"stopped\"");
    }
    assert_true(a->verdict.failure_here != b->verdict.failure_here);
}

/* The others time out: the one that hangs has not failed, and is to blame. They do so at the same
 * moment, when all of them are there: it opens the pipe that they wait for. */
static void test_agent_service_names_who_still_ran_everywhere(void **state)
{
    static const char format[] =
        "cd %s; if [ $RANK = 3 ]; then until [ $(wc -l <here) = 3 ]; do sleep 0.02; done; "
        "exec 5>pipe; exec sleep 60; fi; echo >>here; : <pipe; "
        "echo 'Traceback (most recent call last):' >&2; "
        "echo 'RuntimeError: Timed out waiting 200ms for recv operation to complete' >&2; exit 1";
    char place[] = "/tmp/muster-still-XXXXXX";
    char here[64];
    char pipe[64];
    char script[512];
    struct seat *a;
    struct seat *b;
    (void)state;

    assert_non_null(mkdtemp(place));
    (void)snprintf(here, sizeof(here), "%s/here", place);
    (void)snprintf(pipe, sizeof(pipe), "%s/pipe", place);
    assert_int_equal(mkfifo(pipe, 0600), 0);
    close(open(here, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    (void)snprintf(script, sizeof(script), format, place);
    a = seat_prepare(0, script, 2, 2, "max_restarts=0");
    b = seat_prepare(1, script, 2, 2, "max_restarts=0");
    seat_start(a);
    seat_start(b);
    seat_wait_ended(a);
    seat_wait_ended(b);
    (void)unlink(pipe);
    (void)unlink(here);
    (void)rmdir(place);
    for (int i = 0; i < 2; i++) {
        assert_outcome(&seats[i], MU_AGENT_FAILED);
        assert_true(seats[i].verdict.first_failure.effect);
        assert_int_equal(seats[i].verdict.running_count, 1);
        assert_has(seats[i].text, "still running then, perhaps hung: rank 3 (local rank 1) on ");
        assert_null(strstr(seats[i].text, "stopped by the agent"));
        assert_has(seats[i].json,
                   "\"still_running\": [{\"rank\": 3, \"local_rank\": 1, \"host\": ");
    }
}

/* More of them than are named one by one. The one that fails is the last that is started. */
static void test_agent_service_counts_who_still_ran(void **state)
{
    static const char script[] =
        "[ $LOCAL_RANK = 17 ] || exec sleep 60; echo 'Traceback (most recent call last):' >&2; "
        "echo 'RuntimeError: Timed out' >&2; exit 1";
    struct seat *a = seat_prepare(0, script, 1, 1, "max_restarts=0");
    (void)state;

    a->config.policy.workers = MU_AGENT_RUNNING_MAX + 2;
    seat_start(a);
    seat_wait_ended(a);
    assert_outcome(a, MU_AGENT_FAILED);
    assert_int_equal(a->verdict.running_count, MU_AGENT_RUNNING_MAX + 1);
    assert_has(a->text, "rank 0 (local rank 0) on ");
    assert_has(a->text, ", and 11 more\n");
    assert_has(a->json, "{\"rank\": 15, \"local_rank\": 15");
    assert_null(strstr(a->json, "{\"rank\": 16, \"local_rank\": 16, \"host\""));
}

static void test_agent_service_restarts_within_the_budget(void **state)
{
    static const char script[] = "echo start $TORCHELASTIC_RESTART_COUNT of $RANK; "
                                 "if [ $RANK = 1 ] && [ $TORCHELASTIC_RESTART_COUNT -lt 2 ]; "
                                 "then kill -9 $$$$; fi; "
                                 "[ $TORCHELASTIC_RESTART_COUNT = 2 ] || sleep 60";
    struct seat *a = seat_prepare(0, script, 2, 2, "max_restarts=2");
    struct seat *b = seat_prepare(1, script, 2, 2, "max_restarts=2");
    (void)state;

    a->config.policy.restarts_max = 2;
    b->config.policy.restarts_max = 2;
    seat_start(a);
    seat_start(b);
    seat_wait_ended(a);
    seat_wait_ended(b);
    for (int i = 0; i < 2; i++) {
        assert_outcome(&seats[i], MU_AGENT_SUCCEEDED);
        assert_int_equal(seats[i].starts, 3);
        assert_int_equal(seats[i].verdict.restart_count, 2);
        assert_has(seats[i].out, "start 1 of");
    }
}

static void test_agent_service_forgets_a_failure_that_it_recovered_from(void **state)
{
    static const char script[] = "[ $TORCHELASTIC_RESTART_COUNT$RANK != 01 ] || exit 3; "
                                 "[ $TORCHELASTIC_RESTART_COUNT = 0 ] || echo again; exec sleep 60";
    struct seat *a = seat_prepare(0, script, 1, 1, "max_restarts=1");
    (void)state;

    a->config.policy.restarts_max = 1;
    seat_start(a);
    seat_wait_output(a, "again\nagain\n");
    mu_agent_service_signal(a->agent, SIGTERM);
    seat_wait_ended(a);
    assert_outcome(a, MU_AGENT_STOPPED);
    assert_int_equal(a->verdict.restart_count, 1);
    assert_null(strstr(a->text, "first failure"));
    assert_has(a->text, "stopped by the agent on this node: rank 0 (");
    assert_has(a->text, "rank 1 (");
    assert_has(a->json, "\"first_failure\": null");
}

/* Its host is lost, and the worker fails because of that: nothing stands between it and the next
 * round. */
static void test_agent_service_asks_nothing_of_a_store_that_is_gone(void **state)
{
    struct seat *a = seat_prepare(0, "echo ready; exec sleep 60", 1, 1, "");
    struct mu_agent_round *r;
    (void)state;

    a->config.policy.workers = 1;
    seat_start(a);
    seat_wait_output(a, "ready");
    r = a->agent->round;
    assert_true(r->store_open);
    mu_agent_failure_give_up(r);
    mu_agent_failure_publish(&a->agent->workers[0]);
    assert_false(mu_agent_failure_is_publishing(a->agent));
    assert_true(r->failure_known);
    mu_agent_failure_read(r);
    assert_false(r->op_busy);
    mu_agent_service_signal(a->agent, SIGTERM);
    seat_wait_ended(a);
}

/* We were away for too long, and the watcher has ended the worker; before we notice that, we are
 * told that we are counted on for longer. The worker has not failed. */
static void test_agent_service_does_not_charge_what_the_watcher_ended(void **state)
{
    struct seat *a = seat_prepare(0, "echo ready; exec sleep 60", 1, 1, "");
    struct mu_agent_service *s;
    (void)state;

    a->config.policy.workers = 1;
    seat_start(a);
    seat_wait_output(a, "ready");
    s = a->agent;
    s->until = (mu_mono_t){1};
    s->rdzv->events.counted(s->rdzv->events.context,
                            mu_mono_add_ms(mu_env_now(s->env).mono, 60000));
    assert_int_equal(kill((pid_t)s->workers[0].end.pid, SIGKILL), 0);
    while (a->starts < 2 && !a->ended) {
        mu_uv_env_turn(uv);
    }
    assert_false(a->ended);
    assert_true(s->missed_at.ns == MU_MONO_NEVER.ns); /* What is killed now has failed. */
    mu_agent_service_signal(s, SIGTERM);
    seat_wait_ended(a);
}

/* Both have failed by themselves: the second is dead before the first one's end is noticed, or has
 * raised an exception and takes a while to end. */
static void test_agent_service_does_not_call_a_failure_stopped(void **state)
{
    static const char script[] = "if [ $RANK = 0 ]; then sleep 0.2; exit 3; fi; "
                                 "echo 'Traceback (most recent call last)' >&2; sleep 0.7; exit 5";
    struct seat *a = seat_prepare(0, script, 1, 1, "max_restarts=0");
    (void)state;

    seat_start(a);
    seat_wait_ended(a);
    assert_outcome(a, MU_AGENT_FAILED);
    assert_has(a->json, "\"exit_code\": 3, \"became\"");
    assert_has(a->json, "\"exit_code\": 5, \"became\"");
    assert_null(strstr(a->json, "\"stopped\""));
    assert_null(strstr(a->text, "stopped by the agent"));
    assert_has(a->text, "failed as well on this node: rank ");
}

static void test_agent_service_sees_two_that_failed_at_once(void **state)
{
    struct seat *a = seat_prepare(0, "echo $$$$; exec sleep 60", 1, 1, "max_restarts=0");
    const char *second;
    (void)state;

    seat_start(a);
    while (a->starts == 0 || (second = strchr(a->out, '\n')) == NULL ||
           strchr(second + 1, '\n') == NULL) {
        mu_uv_env_turn(uv);
    }
    assert_int_equal(kill((pid_t)strtol(a->out, NULL, 10), SIGABRT), 0);
    assert_int_equal(kill((pid_t)strtol(second + 1, NULL, 10), SIGABRT), 0);
    seat_wait_ended(a);
    assert_outcome(a, MU_AGENT_FAILED);
    assert_null(strstr(a->text, "stopped by the agent"));
    assert_has(a->text, "failed as well on this node: rank ");
}

static void test_agent_service_passes_a_signal_on(void **state)
{
    static const char script[] = "trap 'echo got INT; exit 0' INT; echo ready; "
                                 "while :; do sleep 0.05; done";
    struct seat *a = seat_prepare(0, script, 1, 1, "");
    (void)state;

    a->config.policy.workers = 1;
    seat_start(a);
    seat_wait_output(a, "ready");
    mu_agent_service_signal(a->agent, SIGINT);
    seat_wait_ended(a);
    assert_outcome(a, MU_AGENT_STOPPED);
    assert_int_equal(a->verdict.signal, SIGINT);
    assert_has(a->out, "got INT");
    assert_has(a->json, "\"signal\": \"SIGINT\"");
}

static void test_agent_service_kills_who_does_not_obey(void **state)
{
    static const char script[] = "trap '' TERM; echo ready; while :; do sleep 0.05; done";
    struct seat *a = seat_prepare(0, script, 1, 1, "");
    (void)state;

    a->config.policy.grace_ms = 100;
    seat_start(a);
    seat_wait_output(a, "ready\nready");
    mu_agent_service_signal(a->agent, SIGTERM);
    seat_wait_ended(a);
    assert_outcome(a, MU_AGENT_STOPPED);
    assert_int_equal(a->verdict.workers[0].exit_code, -SIGKILL);
    assert_int_equal(a->verdict.workers[1].exit_code, -SIGKILL);
    assert_true(a->verdict.workers[0].stopped);
    assert_has(a->log, "killing them");
}

static void test_agent_service_leaves_no_grandchild_behind(void **state)
{
    static const char script[] = "setsid sh -c 'trap \"\" TERM; echo pid $$$$; "
                                 "exec sleep 1000' & sleep 0.2";
    struct seat *a = seat_prepare(0, script, 1, 1, "");
    const char *at;
    int found = 0;
    (void)state;

    a->config.policy.grace_ms = 100;
    seat_start(a);
    seat_wait_ended(a);
    assert_outcome(a, MU_AGENT_SUCCEEDED);
    /* They are nobody's to wait for, and are killed all the same. */
    for (at = strstr(a->out, "pid "); at != NULL; at = strstr(at + 1, "pid ")) {
        while (kill((pid_t)strtol(at + 4, NULL, 10), 0) == 0) {
            mu_uv_env_turn(uv);
        }
        found += 1;
    }
    assert_int_equal(found, 2);
}

static void test_agent_service_program_that_is_none_is_an_error(void **state)
{
    struct seat *a = seat_prepare(0, "", 1, 1, "");
    (void)state;

    a->argv[0] = "/no/such/program";
    seat_start(a);
    seat_wait_ended(a);
    assert_outcome(a, MU_AGENT_ERROR);
    assert_has(a->verdict.text, "/no/such/program");
    assert_has(a->json, "\"became\": \"not started\"");
}

static void test_agent_service_says_once_what_ends_it(void **state)
{
    struct seat *a = seat_prepare(0, "exec sleep 60", 1, 2, "last_call_timeout=0.01");
    struct seat *b = seat_prepare(1, "exec sleep 60", 1, 3, "");
    (void)state;

    seat_start(a);
    while (a->starts == 0) {
        mu_uv_env_turn(uv);
    }
    /* Nothing has to be stopped first: the verdict says it at once. */
    seat_start(b);
    seat_wait_ended(b);
    assert_outcome(b, MU_AGENT_ERROR);
    assert_string_equal(b->verdict.unsaid, b->verdict.text);
    assert_has(b->text, b->verdict.text);
    assert_null(strstr(b->log, b->verdict.text));
    /* Workers take a while to stop: it is said before. */
    mu_agent_service_signal(a->agent, SIGTERM);
    seat_wait_ended(a);
    assert_string_equal(a->verdict.unsaid, "");
    assert_has(a->log, a->verdict.text);
    assert_has(a->text, "STOPPED after 0.");
}

static void test_agent_service_absorbs_a_late_comer(void **state)
{
    static const char script[] = "echo world=$WORLD_SIZE; [ $WORLD_SIZE = 4 ] || exec sleep 60";
    const char *conf = "last_call_timeout=0.01,upscale_delay=0";
    struct seat *a = seat_prepare(0, script, 1, 2, conf);
    struct seat *b = seat_prepare(1, script, 1, 2, conf);
    (void)state;

    seat_start(a);
    seat_wait_output(a, "world=2\nworld=2");
    seat_start(b);
    seat_wait_ended(a);
    seat_wait_ended(b);
    assert_outcome(a, MU_AGENT_SUCCEEDED);
    assert_outcome(b, MU_AGENT_SUCCEEDED);
    assert_has(a->out, "world=4");
    assert_has(b->out, "world=4");
    assert_int_equal(a->starts, 2);
    assert_int_equal(a->verdict.restart_count, 0);
}

static void test_agent_service_gives_workers_time_to_save(void **state)
{
    static const char script[] =
        "if [ $WORLD_SIZE = 4 ]; then exit 0; fi; exec 3<&$MUSTER_NOTIFY_FD; "
        "echo notify >&3; echo ready; read word ms <&3; echo $word $ms; echo saved >&3; "
        "exec sleep 60";
    const char *conf = "last_call_timeout=0.01,upscale_delay=0";
    struct seat *a = seat_prepare(0, script, 1, 2, conf);
    struct seat *b = seat_prepare(1, script, 1, 2, conf);
    (void)state;

    a->config.policy.change_ms = 20000;
    b->config.policy.change_ms = 20000;
    seat_start(a);
    seat_wait_output(a, "ready\nready");
    seat_start(b);
    seat_wait_ended(a);
    seat_wait_ended(b);
    assert_outcome(a, MU_AGENT_SUCCEEDED);
    assert_outcome(b, MU_AGENT_SUCCEEDED);
    assert_has(a->out, "change 20000\nchange 20000");
}

static void test_agent_service_hears_of_steps(void **state)
{
    static const char script[] =
        "exec 3<&$MUSTER_NOTIFY_FD; [ $RANK = 1 ] || exit 0; "
        "echo step 41 >&3; echo step 42x >&3; echo step >&3; echo step -3 >&3; "
        "echo step 1234567890123456789 >&3; echo step 123456789012345678 >&3; echo step 43 >&3";
    struct seat *a = seat_prepare(0, script, 1, 1, "last_call_timeout=0.01");
    (void)state;

    a->config.policy.change_ms = 20000; /* so that there is a channel */
    seat_start(a);
    seat_wait_ended(a);
    assert_outcome(a, MU_AGENT_SUCCEEDED);
    assert_has(a->log, "worker 1: step 41\n\nworker 1: step 123456789012345678\n\n"
                       "worker 1: step 43\n");
}

static void test_agent_service_survivors_go_on_when_one_leaves(void **state)
{
    static const char script[] = "echo world=$WORLD_SIZE; [ $WORLD_SIZE = 2 ] || exec sleep 60";
    const char *conf = "last_call_timeout=0.01,max_restarts=3";
    struct seat *a = seat_prepare(0, script, 1, 2, "last_call_timeout=0.5,max_restarts=3");
    struct seat *b = seat_prepare(1, script, 1, 2, conf);
    (void)state;

    seat_start(a);
    seat_start(b);
    seat_wait_output(a, "world=4");
    seat_wait_output(b, "world=4");
    mu_agent_service_signal(b->agent, SIGTERM);
    seat_wait_ended(b);
    assert_outcome(b, MU_AGENT_STOPPED);
    seat_release(b);
    seat_wait_ended(a);
    assert_outcome(a, MU_AGENT_SUCCEEDED);
    assert_has(a->out, "world=2");
}

static void test_agent_service_freed_before_it_joins_says_nothing_of_waiting(void **state)
{
    struct seat *a = seat_prepare(0, "exit 0", 2, 2, "");
    (void)state;

    seat_start(a);
    mu_agent_service_free(a->agent);
    while (a->agent->rdzv != NULL) {
        mu_uv_env_turn(uv);
    }
    /* Its last join was begun before that. If the process is stopped now, what it would say of its
     * waiting is due when it wakes. */
    assert_true(mu_heap_contains(&a->agent->wait_timer.node));
    mu_env_timer_arm(mu_uv_env_env(uv), &a->agent->wait_timer, mu_env_now(mu_uv_env_env(uv)).mono);
    while (!a->freed) {
        mu_uv_env_turn(uv);
    }
    a->agent = NULL;
    assert_null(strstr(a->log, "still waiting"));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, seats_setup, seats_teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_agent_service_runs_four_workers_on_two_nodes),
        TEST(test_agent_service_seals_the_way_to_the_workers_store),
        TEST(test_agent_service_streams_lead_where_its_user_says),
        TEST(test_agent_service_names_the_first_failure_everywhere),
        TEST(test_agent_service_names_who_still_ran_everywhere),
        TEST(test_agent_service_counts_who_still_ran),
        TEST(test_agent_service_restarts_within_the_budget),
        TEST(test_agent_service_forgets_a_failure_that_it_recovered_from),
        TEST(test_agent_service_asks_nothing_of_a_store_that_is_gone),
        TEST(test_agent_service_does_not_charge_what_the_watcher_ended),
        TEST(test_agent_service_does_not_call_a_failure_stopped),
        TEST(test_agent_service_sees_two_that_failed_at_once),
        TEST(test_agent_service_passes_a_signal_on),
        TEST(test_agent_service_kills_who_does_not_obey),
        TEST(test_agent_service_leaves_no_grandchild_behind),
        TEST(test_agent_service_program_that_is_none_is_an_error),
        TEST(test_agent_service_says_once_what_ends_it),
        TEST(test_agent_service_absorbs_a_late_comer),
        TEST(test_agent_service_gives_workers_time_to_save),
        TEST(test_agent_service_hears_of_steps),
        TEST(test_agent_service_survivors_go_on_when_one_leaves),
        TEST(test_agent_service_freed_before_it_joins_says_nothing_of_waiting),
    };
#undef TEST

    (void)signal(SIGPIPE, SIG_IGN);
    address = own_network();
    return skipped_or(cmocka_run_group_tests_name("agent_service", tests, NULL, NULL));
}
