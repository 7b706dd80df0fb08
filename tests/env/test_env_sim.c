/*
 * The battery over the simulator: once in a quiet world, and with what a kernel may do at any time
 * without breaking a promise. Faults that end connections are for the scenarios.
 */
#include <stddef.h>
#include <stdio.h>

#include "battery.h"
#include "sim.h"

struct rig {
    struct mu_sim_faults faults;
    uint64_t seed;
    struct mu_sim *sim;
    struct mu_sim_proc *proc;
};

static int start(struct mu_env *env, void *arg)
{
    (void)env;
    (void)arg;
    return 0;
}

static int up(struct env_under_test *eut)
{
    struct rig *rig = eut->context;

    rig->sim = mu_sim_new(&(struct mu_sim_config){.seed = rig->seed++, .faults = rig->faults});
    if (rig->sim == NULL) {
        return -1;
    }
    rig->proc = mu_sim_proc_new(mu_sim_host_new(rig->sim, "host"),
                                &(struct mu_sim_program){.name = "battery", .start = start});
    eut->env = mu_sim_proc_env(rig->proc);
    return mu_sim_step(rig->sim) ? 0 : -1;
}

static void down(struct env_under_test *eut)
{
    struct rig *rig = eut->context;

    if (!mu_sim_proc_idle(rig->proc)) {
        (void)fprintf(stderr, "the test left something open\n");
    }
    mu_sim_free(rig->sim);
}

/* A turn is all that happens at one moment. */
static bool run_until(struct env_under_test *eut, bool (*done)(void *context), void *context)
{
    struct rig *rig = eut->context;
    uint64_t until = mu_sim_now_ns(rig->sim) + 20 * MU_NS_PER_S;

    while (!done(context)) {
        if (!mu_sim_step(rig->sim) || mu_sim_now_ns(rig->sim) > until) {
            return false;
        }
        mu_sim_run_for(rig->sim, 0);
    }
    return true;
}

static void tcp_listen(struct env_under_test *eut, struct mu_addr *ret)
{
    (void)eut;
    *ret = (struct mu_addr){.kind = MU_ADDR_TCP, .host = "127.0.0.1"};
}

static void unix_listen(struct env_under_test *eut, struct mu_addr *ret)
{
    static unsigned number;

    (void)eut;
    *ret = (struct mu_addr){.kind = MU_ADDR_UNIX};
    (void)snprintf(ret->host, sizeof(ret->host), "/run/%u", number++);
}

static void same_addr(struct env_under_test *eut, const struct mu_addr *listening,
                      struct mu_addr *ret)
{
    (void)eut;
    *ret = *listening;
}

static void tcp_refused(struct env_under_test *eut, struct mu_addr *ret)
{
    (void)eut;
    *ret = (struct mu_addr){.kind = MU_ADDR_TCP, .host = "127.0.0.1", .port = 1};
}

int main(void)
{
    struct rig quiet = {.faults = mu_sim_faults_none(), .seed = 1};
    struct rig rough = {.faults = mu_sim_faults_none(), .seed = 1000};
    struct env_under_test tcp = {.up = up,
                                 .down = down,
                                 .run_until = run_until,
                                 .listen_addr = tcp_listen,
                                 .dial_addr = same_addr,
                                 .refused_addr = tcp_refused,
                                 .zoo = "zoo",
                                 .context = &quiet};
    struct env_under_test un = tcp;
    struct env_under_test hard = tcp;
    int failed;

    un.listen_addr = unix_listen;
    rough.faults.capacity_bytes = 3000;
    rough.faults.short_take_ppm = 300000;
    rough.faults.spike_ppm = 100000;
    rough.faults.spike_max_ns = 100000;
    rough.faults.drift_ppm = 500;
    rough.faults.wall_skew_max_ns = 3600 * MU_NS_PER_S;
    rough.faults.work_max_ns = 20 * MU_NS_PER_MS;
    hard.context = &rough;
    failed = battery_main("env sim tcp", &tcp);
    failed += battery_main("env sim unix", &un);
    failed += battery_main("env sim tcp, rough", &hard);
    return failed;
}
