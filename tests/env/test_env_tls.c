/* The battery over secure connections: on libuv, and on the simulator in a rough world. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "battery.h"
#include "certs.h"
#include "sim.h"
#include "transport/tls_env.h"
#include "transport/uv_env.h"

static struct mu_tls_config config;
static struct mu_tls_env *tls;

static int secure(struct env_under_test *eut)
{
    struct mu_errmsg why;

    if (mu_tls_env_new(eut->env, &config, &tls, &why) != 0) {
        (void)fprintf(stderr, "%s\n", why.text);
        return -1;
    }
    eut->env = mu_tls_env_env(tls);
    return 0;
}

/* On libuv. */

static int uv_up(struct env_under_test *eut)
{
    struct mu_uv_env *uv;

    if (mu_uv_env_new(&uv) != 0) {
        return -1;
    }
    eut->context = uv;
    eut->env = mu_uv_env_env(uv);
    return secure(eut);
}

static void uv_down(struct env_under_test *eut)
{
    mu_tls_env_free(tls);
    mu_uv_env_free(eut->context);
}

struct deadline {
    struct mu_timer timer;
    bool late;
};

static void on_deadline(struct mu_timer *timer)
{
    MU_CONTAINER_OF(timer, struct deadline, timer)->late = true;
}

static bool uv_run_until(struct env_under_test *eut, bool (*done)(void *context), void *context)
{
    struct deadline deadline = {0};

    mu_timer_init(&deadline.timer, on_deadline);
    mu_env_timer_arm(eut->env, &deadline.timer, mu_mono_add_ms(mu_env_now(eut->env).mono, 20000));
    while (!done(context) && !deadline.late) {
        mu_uv_env_turn(eut->context);
    }
    mu_env_timer_arm(eut->env, &deadline.timer, MU_MONO_NEVER);
    return !deadline.late;
}

/* On the simulator. */

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

static int sim_up(struct env_under_test *eut)
{
    struct rig *rig = eut->context;

    rig->sim = mu_sim_new(&(struct mu_sim_config){.seed = rig->seed++, .faults = rig->faults});
    if (rig->sim == NULL) {
        return -1;
    }
    rig->proc = mu_sim_proc_new(mu_sim_host_new(rig->sim, "host"),
                                &(struct mu_sim_program){.name = "battery", .start = start});
    eut->env = mu_sim_proc_env(rig->proc);
    return mu_sim_step(rig->sim) ? secure(eut) : -1;
}

static void sim_down(struct env_under_test *eut)
{
    struct rig *rig = eut->context;

    mu_tls_env_free(tls);
    if (!mu_sim_proc_idle(rig->proc)) {
        (void)fprintf(stderr, "the test left something open\n");
    }
    mu_sim_free(rig->sim);
}

static bool sim_run_until(struct env_under_test *eut, bool (*done)(void *context), void *context)
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

int main(int argc, char **argv)
{
    static const char *const files[] = {"ca", "node", NULL};
    struct rig rough = {.faults = mu_sim_faults_none(), .seed = 1000};
    struct env_under_test uv = {.up = uv_up,
                                .down = uv_down,
                                .run_until = uv_run_until,
                                .listen_addr = tcp_listen,
                                .dial_addr = same_addr,
                                .refused_addr = tcp_refused,
                                .reads_elsewhere = true,
                                .zoo = argc > 1 ? argv[1] : "zoo"};
    struct env_under_test sim = uv;
    struct cert_authority ca;
    char directory[] = "/tmp/muster-test-XXXXXX";
    char paths[3][64];
    struct rlimit limit;
    int failed;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < 4096) {
        limit.rlim_cur = limit.rlim_max < 4096 ? limit.rlim_max : 4096;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
    if (mkdtemp(directory) == NULL) {
        return 1;
    }
    certs_authority(&ca, directory, "ca");
    certs_leaf(&ca, directory, "node", "IP:127.0.0.1", 3600);
    (void)snprintf(paths[0], sizeof(paths[0]), "%s/node.pem", directory);
    (void)snprintf(paths[1], sizeof(paths[1]), "%s/node.key", directory);
    (void)snprintf(paths[2], sizeof(paths[2]), "%s/ca.pem", directory);
    config = (struct mu_tls_config){.cert = paths[0], .key = paths[1], .ca = paths[2]};

    sim.up = sim_up;
    sim.down = sim_down;
    sim.run_until = sim_run_until;
    sim.context = &rough;
    rough.faults.capacity_bytes = 3000;
    rough.faults.short_take_ppm = 300000;
    rough.faults.spike_ppm = 100000;
    rough.faults.spike_max_ns = 100000;
    failed = battery_main("env tls on uv", &uv);
    failed += battery_main("env tls on a rough sim", &sim);
    certs_authority_free(&ca);
    certs_remove(directory, files);
    return failed;
}
