/* Children in the simulator: what scenarios see of them, what becomes of them with their agent. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <signal.h>
#include <string.h>

#include "core/alloc.h"
#include "sim.h"
#include "sim_child.h"

struct world {
    struct mu_sim *sim;
    struct mu_sim_proc *agent;
    size_t living;
    int64_t last_pid;
    char ranks[32];
    int statuses[4];
    size_t exited;
    size_t gone;
    uint64_t digest;
};

/* The agent: starts two workers and kills what they leave. */
struct worker {
    struct mu_child child;
    struct world *world;
};

static void on_started(struct mu_child *child, int status)
{
    (void)child;
    assert_int_equal(status, 0);
}

static void on_exited(struct mu_child *child, int status)
{
    struct world *w = MU_CONTAINER_OF(child, struct worker, child)->world;

    w->statuses[w->exited++] = status;
    (void)mu_env_child_signal(child->env, child, SIGKILL, MU_CHILD_FAMILY);
}

static void on_gone(struct mu_child *child)
{
    struct worker *worker = MU_CONTAINER_OF(child, struct worker, child);

    worker->world->gone++;
    mu_free(worker);
}

static int start_agent(struct mu_env *env, void *arg)
{
    static const struct mu_child_events events = {
        .started = on_started, .exited = on_exited, .gone = on_gone};
    static const char *const envs[2][2] = {{"RANK=0", NULL}, {"RANK=1", NULL}};
    static const char *const argv[] = {"train.py", NULL};

    for (int i = 0; i < 2; i++) {
        struct worker *worker = mu_calloc(1, sizeof(*worker));

        worker->world = arg;
        worker->child.on = &events;
        if (mu_env_spawn(env, &worker->child, &(struct mu_spawn){.argv = argv, .envp = envs[i]}) !=
            0) {
            return -1;
        }
    }
    return 0;
}

static int what_it_does(void *arg, struct mu_sim_host *host, const struct mu_spawn *what,
                        const char *const **ret_script)
{
    static const char *const script[] = {"daemon=0", "child=0", "sleep=1000", "exit=7", NULL};

    (void)arg;
    (void)host;
    if (strcmp(what->argv[0], "train.py") != 0) {
        return -ENOENT;
    }
    *ret_script = script;
    return 0;
}

static void count_one(void *arg, const struct mu_sim_process *p)
{
    struct world *w = arg;

    w->living++;
    if (p->pid == p->leader) {
        w->last_pid = p->pid;
        w->ranks[strlen(w->ranks)] = mu_sim_process_variable(p, "RANK")[0];
    }
    assert_null(mu_sim_process_variable(p, "RAN"));
}

static size_t count(struct world *w)
{
    w->living = 0;
    memset(w->ranks, 0, sizeof(w->ranks));
    mu_sim_each_process(w->sim, count_one, w);
    return w->living;
}

static void begin(struct world *w)
{
    memset(w, 0, sizeof(*w));
    w->sim = mu_sim_new(&(struct mu_sim_config){.seed = 7, .faults = mu_sim_faults_none()});
    mu_sim_set_exec(w->sim, what_it_does, NULL);
    w->agent =
        mu_sim_proc_new(mu_sim_host_new(w->sim, "a"),
                        &(struct mu_sim_program){.name = "agent", .start = start_agent, .arg = w});
    mu_sim_run_for(w->sim, 100 * MU_NS_PER_MS);
}

static void end(struct world *w)
{
    assert_null(mu_sim_failure(w->sim));
    w->digest = mu_sim_digest(w->sim);
    mu_sim_free(w->sim);
}

static void test_processes_are_seen_and_end(void **state)
{
    struct world w;

    (void)state;
    begin(&w);
    assert_int_equal(count(&w), 6);
    assert_string_equal(w.ranks, "01");
    assert_false(mu_sim_proc_idle(w.agent));

    mu_sim_run_for(w.sim, 2 * MU_NS_PER_S);

    assert_int_equal(w.exited, 2);
    assert_int_equal(w.statuses[0], 7);
    assert_int_equal(w.gone, 2);
    assert_int_equal(count(&w), 0);
    assert_true(mu_sim_proc_idle(w.agent));
    end(&w);
}

static void test_process_killed_from_outside(void **state)
{
    struct world w;

    (void)state;
    begin(&w);
    (void)count(&w);
    assert_true(mu_sim_process_signal(w.sim, w.last_pid, SIGSEGV));
    assert_false(mu_sim_process_signal(w.sim, 4711, SIGSEGV));
    mu_sim_run_for(w.sim, 100 * MU_NS_PER_MS);
    assert_int_equal(w.statuses[0], -SIGSEGV);
    assert_int_equal(w.gone, 1);
    assert_int_equal(count(&w), 3);
    end(&w);
}

static void test_processes_die_with_their_agent(void **state)
{
    struct world w;

    (void)state;
    begin(&w);
    mu_sim_kill(w.agent, MU_SIM_KILL_PROCESS);
    assert_int_equal(count(&w), 6);
    mu_sim_run_for(w.sim, MU_SIM_WATCH_NS);
    assert_int_equal(count(&w), 0);
    assert_int_equal(w.gone, 0); /* nobody is left to be told */

    /* The next agent starts its own. */
    mu_sim_restart(w.agent);
    mu_sim_run_for(w.sim, 100 * MU_NS_PER_MS);
    assert_int_equal(count(&w), 6);
    mu_sim_kill(w.agent, MU_SIM_KILL_POWER);
    assert_int_equal(count(&w), 0);
    end(&w);
}

static void test_same_seed_same_story(void **state)
{
    uint64_t first = 0;

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct world w;

        begin(&w);
        mu_sim_run_for(w.sim, 2 * MU_NS_PER_S);
        end(&w);
        first = i == 0 ? w.digest : first;
        assert_true(w.digest == first);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_processes_are_seen_and_end),
        cmocka_unit_test(test_process_killed_from_outside),
        cmocka_unit_test(test_processes_die_with_their_agent),
        cmocka_unit_test(test_same_seed_same_story),
    };

    return cmocka_run_group_tests_name("sim_child", tests, NULL, NULL);
}
