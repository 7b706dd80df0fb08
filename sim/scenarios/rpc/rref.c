/*
 * Workers that make values on each other, pass references around, fetch and release them, while
 * connections break and processes are killed; one worker may leave for good, and the others remove
 * it.
 *
 * What must hold: a value is not freed while a living user is confirmed; a user whose parent and
 * owner live finds it; what is fetched is what was made; and when all workers have released
 * everything, nothing is left anywhere: no value, no fork, no user, no token.
 */
#include "scenarios/scenarios.h"

#include <inttypes.h>

#include <muster/log.h>

#include "core/alloc.h"
#include "scenarios/rpc/rref_world.h"

#define FAULTY_NS   (8 * MU_NS_PER_S)
#define CONVERGE_NS (240 * MU_NS_PER_S)

/* --- the story -------------------------------------------------------------------------------- */

static bool all_free(void *arg)
{
    struct rref_world *w = arg;

    for (int i = 0; i < WORKERS; i++) {
        struct mu_rref_stats stats;

        if (w->workers[i].left) {
            continue;
        }
        if (w->workers[i].live == NULL) {
            return false;
        }
        rref_worker_stats(w->workers[i].live, &stats);
        if (stats.values + stats.forks + stats.users + stats.children != 0) {
            return false;
        }
    }
    return true;
}

static bool all_left(void *arg)
{
    struct rref_world *w = arg;

    for (int i = 0; i < WORKERS; i++) {
        if (mu_sim_proc_alive(w->workers[i].proc)) {
            return false;
        }
    }
    return true;
}

static void tell_what_is_left(struct rref_world *w)
{
    for (int i = 0; i < WORKERS; i++) {
        struct mu_rref_stats s = {0};

        if (w->workers[i].live != NULL) {
            rref_worker_stats(w->workers[i].live, &s);
        }
        if (s.values + s.forks + s.users + s.children != 0) {
            mu_sim_fail(w->sim,
                        "%s has %zu values, %zu forks, %zu users and %zu tokens though all was "
                        "released",
                        rref_names[i], s.values, s.forks, s.users, s.children);
        }
    }
    mu_sim_fail(w->sim, "a worker did not come back");
}

static void run_story(struct rref_world *w)
{
    struct mu_sim *sim = w->sim;

    mu_sim_run_for(sim, FAULTY_NS / 2);
    /* In some runs the last worker leaves for good: killed, or in order. */
    if (mu_prng_chance(mu_sim_prng(sim), 300000)) {
        w->workers[WORKERS - 1].left = true;
    }
    mu_sim_run_for(sim, FAULTY_NS / 2);
    mu_sim_heal(sim);
    mu_sim_run_for(sim, MU_NS_PER_S);
    w->draining = true;
    if (!mu_sim_run_until(sim, CONVERGE_NS, all_free, w)) {
        tell_what_is_left(w);
    }
    w->leaving = true;
    if (!mu_sim_run_until(sim, CONVERGE_NS, all_left, w)) {
        mu_sim_fail(sim, "a worker did not leave");
    }
}

static void run_world(struct mu_sim *sim, bool hasty, bool leaky)
{
    struct rref_world *w = mu_sim_calloc(sizeof(*w));

    mu_sim_trace_log(sim);
    w->sim = sim;
    w->hasty = hasty;
    w->leaky = leaky;
    w->short_of_memory =
        mu_sim_faults(sim)->alloc_fail_ppm != 0 || mu_sim_faults(sim)->shortage_every_ns != 0;
    w->calls = once_new(sim, "call");
    for (uint32_t i = 0; i < WORKERS; i++) {
        w->workers[i] = (struct worker_state){.world = w, .number = i};
        w->workers[i].proc = mu_sim_proc_new(mu_sim_host_new(sim, rref_names[i]),
                                             &(struct mu_sim_program){.name = "worker",
                                                                      .start = rref_worker_start,
                                                                      .killed = rref_worker_killed,
                                                                      .arg = &w->workers[i]});
    }
    run_story(w);
    once_finish(w->calls);
    once_free(w->calls);
    if (mu_sim_tracing(sim)) {
        mu_sim_note(sim, NULL, "%zu users, %" PRIu64 " tokens taken, %" PRIu64 " fetched",
                    w->user_count, w->passed, w->fetched);
    }
    mu_free(w);
    muster_log_set(NULL, NULL, MUSTER_LOG_WARN);
}

SIM_SCENARIO(rref, "rref",
             "remote references: a value is freed when, and only when, its last user is gone",
             mu_sim_faults_draw_all, false, run_world(sim, false, false))
SIM_SCENARIO(
    rref_early, "rref-early",
    "the same, and a worker that gives a reference away does not wait until it has arrived",
    mu_sim_faults_draw_all, true, run_world(sim, true, false))
SIM_SCENARIO(rref_leak, "rref-leak",
             "the same, and a worker that is restarted keeps what it held before",
             mu_sim_faults_draw_all, true, run_world(sim, false, true))
