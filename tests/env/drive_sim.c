#include "drive_sim.h"

#include <stddef.h>
#include <stdio.h>

struct drive_sim drive_sim_quiet(void)
{
    return (struct drive_sim){.faults = mu_sim_faults_none(), .seed = 1};
}

struct drive_sim drive_sim_rough(void)
{
    struct drive_sim rough = {.faults = mu_sim_faults_none(), .seed = 1000};

    rough.faults.capacity_bytes = 3000;
    rough.faults.short_take_ppm = 300000;
    rough.faults.spike_ppm = 100000;
    rough.faults.spike_max_ns = 100000;
    rough.faults.drift_ppm = 500;
    rough.faults.wall_skew_max_ns = 3600 * MU_NS_PER_S;
    rough.faults.work_max_ns = 20 * MU_NS_PER_MS;
    return rough;
}

static int start(struct mu_env *env, void *arg)
{
    (void)env;
    (void)arg;
    return 0;
}

int drive_sim_up(struct env_under_test *eut)
{
    struct drive_sim *rig = eut->context;

    rig->sim = mu_sim_new(&(struct mu_sim_config){.seed = rig->seed++, .faults = rig->faults});
    if (rig->sim == NULL) {
        return -1;
    }
    rig->proc = mu_sim_proc_new(mu_sim_host_new(rig->sim, "host"),
                                &(struct mu_sim_program){.name = "battery", .start = start});
    eut->env = mu_sim_proc_env(rig->proc);
    return mu_sim_step(rig->sim) ? 0 : -1;
}

void drive_sim_down(struct env_under_test *eut)
{
    struct drive_sim *rig = eut->context;

    if (!mu_sim_proc_idle(rig->proc)) {
        (void)fprintf(stderr, "the test left something open\n");
    }
    mu_sim_free(rig->sim);
}

/* A turn is all that happens at one moment. */
bool drive_sim_run_until(struct env_under_test *eut, bool (*done)(void *context), void *context)
{
    struct drive_sim *rig = eut->context;
    uint64_t until = mu_sim_now_ns(rig->sim) + 20 * MU_NS_PER_S;

    while (!done(context)) {
        if (!mu_sim_step(rig->sim) || mu_sim_now_ns(rig->sim) > until) {
            return false;
        }
        mu_sim_run_for(rig->sim, 0);
    }
    return true;
}
