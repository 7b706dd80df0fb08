/* Virtual time, hosts and processes: the heap of actions and what runs it. */
#include "sim.h"
#include "sim_impl.h"

#include <stdarg.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"

#define STEPS_MAX   UINT64_C(20000000)
#define WALL_EPOCH  (UINT64_C(2000000000) * MU_NS_PER_S) /* where the true wall clock starts */
#define BOOT_MAX_NS (UINT64_C(40) * 86400 * MU_NS_PER_S) /* how long a host was up before */

struct at_action {
    struct sim_action action;
    struct mu_list link;
    struct mu_sim *sim;
    void (*run)(struct mu_sim *sim, void *arg);
    void *arg;
};

/* --- actions ---------------------------------------------------------------------------------- */

void sim_schedule(struct mu_sim *sim, struct sim_action *action, uint64_t at_ns)
{
    mu_heap_remove(&sim->heap, &action->node);
    mu_heap_insert(&sim->heap, &action->node,
                   (mu_mono_t){at_ns < sim->now_ns ? sim->now_ns : at_ns});
}

void sim_cancel(struct mu_sim *sim, struct sim_action *action)
{
    mu_heap_remove(&sim->heap, &action->node);
}

void sim_enter(struct mu_sim_proc *proc)
{
    MU_ASSERT(proc->sim->running == NULL && proc->alive);
    proc->sim->running = proc;
    (void)sim_heap_swap(&proc->heap);
}

void sim_leave(struct mu_sim_proc *proc)
{
    MU_ASSERT(proc->sim->running == proc);
    proc->sim->running = NULL;
    (void)sim_heap_swap(NULL);
}

/* What a process that ended by itself has left behind. */
static void finish_exit(struct mu_sim_proc *proc)
{
    struct mu_sim *sim = proc->sim;

    if (!mu_sim_proc_idle(proc)) {
        mu_sim_fail(sim, "%s/%s exited with connections, listeners, timers, work or disks open",
                    proc->host->name, proc->program.name);
    } else if (proc->heap.count != 0) {
        mu_sim_fail(sim, "%s/%s exited and left %zu blocks of memory", proc->host->name,
                    proc->program.name, proc->heap.count);
    }
    mu_sim_kill(proc, MU_SIM_KILL_PROCESS);
    proc->exited = true;
}

static void run_action(struct mu_sim *sim, struct sim_action *action)
{
    struct mu_sim_proc *proc = action->proc;

    sim->steps++;
    sim->current = action;
    action->run(action);
    sim_trace_step(sim, 0, 0);
    MU_ASSERT(sim->running == NULL);
    if (proc != NULL && proc->exiting) {
        finish_exit(proc);
    }
    for (size_t i = 0; i < sim->checker_count && !sim->failed; i++) {
        sim->checkers[i].check(sim, sim->checkers[i].arg);
    }
    if (sim->steps >= sim->config.steps_max) {
        mu_sim_fail(sim, "still busy after %llu steps", (unsigned long long)sim->steps);
    }
}

/* Runs one action that is due by `until_ns`; an action of a paused process is put off. */
static bool step_until(struct mu_sim *sim, uint64_t until_ns)
{
    while (!sim->failed) {
        struct mu_heap_node *node = mu_heap_min(&sim->heap);
        struct sim_action *action;

        if (node == NULL || node->at.ns > until_ns) {
            return false;
        }
        sim->now_ns = node->at.ns;
        mu_heap_remove(&sim->heap, node);
        action = MU_CONTAINER_OF(node, struct sim_action, node);
        if (action->proc != NULL && action->proc->paused_until_ns > sim->now_ns) {
            sim_schedule(sim, action, action->proc->paused_until_ns);
            continue;
        }
        run_action(sim, action);
        return true;
    }
    return false;
}

bool mu_sim_step(struct mu_sim *sim)
{
    return step_until(sim, UINT64_MAX - 1);
}

void mu_sim_run_for(struct mu_sim *sim, uint64_t ns)
{
    uint64_t until = sim->now_ns + ns;

    while (step_until(sim, until)) {
    }
    if (!sim->failed) {
        sim->now_ns = until;
    }
}

bool mu_sim_run_until(struct mu_sim *sim, uint64_t ns, bool (*done)(void *arg), void *arg)
{
    uint64_t until = sim->now_ns + ns;

    while (!done(arg)) {
        if (!step_until(sim, until)) {
            if (!sim->failed) {
                sim->now_ns = until;
            }
            return !sim->failed && done(arg);
        }
    }
    return !sim->failed;
}

static void run_at(struct sim_action *action)
{
    struct at_action *at = MU_CONTAINER_OF(action, struct at_action, action);
    struct mu_sim *sim = at->sim;

    sim_trace_step(sim, 0, 0);
    mu_list_remove(&at->link);
    at->run(sim, at->arg);
    mu_free(at);
}

int mu_sim_at(struct mu_sim *sim, uint64_t at_ns, void (*run)(struct mu_sim *sim, void *arg),
              void *arg)
{
    struct mu_sim_heap *heap = mu_sim_outside();
    struct at_action *at = mu_calloc(1, sizeof(*at));

    mu_sim_inside(heap);
    if (at == NULL) {
        return MUSTER_ENOMEM;
    }
    at->action = (struct sim_action){.run = run_at, .kind = SIM_AT};
    at->sim = sim;
    at->run = run;
    at->arg = arg;
    mu_list_push(&sim->ats, &at->link);
    sim_schedule(sim, &at->action, at_ns);
    return 0;
}

/* --- the world -------------------------------------------------------------------------------- */

struct mu_sim *mu_sim_new(const struct mu_sim_config *config)
{
    struct mu_sim *sim;

    MU_ASSERT(sim_heap_in_place() && sim_x25519_in_place());
    sim = mu_calloc(1, sizeof(*sim));
    if (sim == NULL) {
        return NULL;
    }
    sim->config = *config;
    if (sim->config.steps_max == 0) {
        sim->config.steps_max = STEPS_MAX;
    }
    sim->faults = config->faults;
    mu_prng_seed(&sim->prng, config->seed);
    mu_prng_seed(&sim->fault_prng, mu_prng_u64(&sim->prng));
    mu_prng_seed(&sim->user_prng, mu_prng_u64(&sim->prng));
    mu_heap_init(&sim->heap);
    mu_list_init(&sim->hosts);
    mu_list_init(&sim->pairs);
    mu_list_init(&sim->http_servers);
    mu_list_init(&sim->exchanges);
    mu_list_init(&sim->ats);
    mu_list_init(&sim->families);
    mu_list_init(&sim->zygotes);
    if (sim_fault_init(sim) != 0) {
        mu_free(sim);
        return NULL;
    }
    return sim;
}

static void free_host(struct mu_sim_host *host)
{
    struct mu_list *node;

    while ((node = mu_list_pop(&host->procs)) != NULL) {
        mu_free(MU_CONTAINER_OF(node, struct mu_sim_proc, link));
    }
    sim_disk_free(host);
    mu_free(host->links);
    mu_free(host);
}

void mu_sim_free(struct mu_sim *sim)
{
    struct mu_list *node;

    if (sim == NULL) {
        return;
    }
    sim_fault_stop(sim);
    MU_LIST_FOREACH (h, &sim->hosts) {
        struct mu_sim_host *host = MU_CONTAINER_OF(h, struct mu_sim_host, link);

        MU_LIST_FOREACH (p, &host->procs) {
            struct mu_sim_proc *proc = MU_CONTAINER_OF(p, struct mu_sim_proc, link);

            proc->program.killed = NULL;
            mu_sim_kill(proc, MU_SIM_KILL_PROCESS);
        }
    }
    sim_http_free(sim);
    sim_net_free(sim);
    sim_standbys_drop(sim, NULL);
    sim_child_free(sim);
    while ((node = mu_list_pop(&sim->hosts)) != NULL) {
        free_host(MU_CONTAINER_OF(node, struct mu_sim_host, link));
    }
    while ((node = mu_list_pop(&sim->ats)) != NULL) {
        mu_free(MU_CONTAINER_OF(node, struct at_action, link));
    }
    sim_fault_free(sim);
    mu_free(sim);
}

uint64_t mu_sim_now_ns(const struct mu_sim *sim)
{
    return sim->now_ns;
}

uint64_t mu_sim_steps(const struct mu_sim *sim)
{
    return sim->steps;
}

uint64_t mu_sim_digest(const struct mu_sim *sim)
{
    return sim->digest;
}

struct mu_prng *mu_sim_prng(struct mu_sim *sim)
{
    return &sim->user_prng;
}

const struct mu_sim_faults *mu_sim_faults(const struct mu_sim *sim)
{
    return &sim->faults;
}

uint64_t mu_sim_length_ns(const struct mu_sim *sim, uint64_t fallback)
{
    return sim->config.length_ns != 0 ? sim->config.length_ns : fallback;
}

void mu_sim_fail(struct mu_sim *sim, const char *format, ...)
{
    va_list args;

    if (sim->failed) {
        return;
    }
    sim->failed = true;
    va_start(args, format);
    (void)vsnprintf(sim->failure, sizeof(sim->failure), format, args);
    va_end(args);
    mu_sim_note(sim, sim->running, "FAILED: %s", sim->failure);
}

void mu_sim_undecided(struct mu_sim *sim)
{
    sim->undecided = true;
}

const char *mu_sim_failure(const struct mu_sim *sim)
{
    return sim->failed ? sim->failure : NULL;
}

void mu_sim_add_checker(struct mu_sim *sim, void (*check)(struct mu_sim *sim, void *arg), void *arg)
{
    MU_ASSERT(sim->checker_count < SIM_CHECKERS_MAX);
    sim->checkers[sim->checker_count++] = (struct sim_checker){check, arg};
}

/* --- hosts ------------------------------------------------------------------------------------ */

mu_mono_t sim_host_mono(const struct mu_sim_host *host, uint64_t global_ns)
{
    int64_t passed = (int64_t)(global_ns - host->since_ns);

    if (host->drift_ppm == 0) {
        return (mu_mono_t){host->mono_base_ns + (uint64_t)passed};
    }
    return (mu_mono_t){host->mono_base_ns +
                       (uint64_t)(passed + passed / 1000000 * host->drift_ppm +
                                  passed % 1000000 * host->drift_ppm / 1000000)};
}

static int64_t draw_signed(struct mu_prng *prng, uint64_t max)
{
    return max == 0 ? 0 : (int64_t)mu_prng_below(prng, 2 * max + 1) - (int64_t)max;
}

void sim_boot(struct mu_sim_host *host)
{
    struct mu_sim *sim = host->sim;

    host->up = true;
    host->since_ns = sim->now_ns;
    host->mono_base_ns = MU_NS_PER_S + mu_prng_below(&sim->prng, BOOT_MAX_NS);
    host->drift_ppm = draw_signed(&sim->prng, sim->faults.drift_ppm);
}

struct mu_sim_host *mu_sim_host_new(struct mu_sim *sim, const char *name)
{
    struct mu_sim_host *host;

    MU_ASSERT(strlen(name) < SIM_NAME_MAX && mu_sim_host_find(sim, name) == NULL);
    host = mu_calloc(1, sizeof(*host));
    if (host == NULL) {
        return NULL;
    }
    host->sim = sim;
    memcpy(host->name, name, strlen(name) + 1);
    host->index = sim->host_count++;
    host->next_port = 40000;
    mu_list_init(&host->procs);
    mu_list_init(&host->disks);
    mu_list_push(&sim->hosts, &host->link);
    host->wall_offset_ns =
        (int64_t)WALL_EPOCH + draw_signed(&sim->prng, sim->faults.wall_skew_max_ns);
    sim_boot(host);
    return host;
}

struct mu_sim_host *mu_sim_host_find(struct mu_sim *sim, const char *name)
{
    MU_LIST_FOREACH (h, &sim->hosts) {
        struct mu_sim_host *host = MU_CONTAINER_OF(h, struct mu_sim_host, link);

        if (strcmp(host->name, name) == 0) {
            return host;
        }
    }
    return NULL;
}

void mu_sim_wall_jump(struct mu_sim_host *host, int64_t ns)
{
    host->wall_offset_ns += ns;
}

void mu_sim_wall_set(struct mu_sim *sim)
{
    MU_LIST_FOREACH (h, &sim->hosts) {
        MU_CONTAINER_OF(h, struct mu_sim_host, link)->wall_offset_ns = (int64_t)WALL_EPOCH;
    }
}

/* --- processes -------------------------------------------------------------------------------- */

static void run_start(struct sim_action *action)
{
    struct mu_sim_proc *proc = action->proc;
    int rc;

    action->subject = ++proc->starts;
    sim_trace_step(proc->sim, 0, 0);
    proc->starting = false;
    proc->alive = true;
    mu_prng_seed(&proc->entropy, mu_prng_u64(&proc->sim->prng));
    sim_enter(proc);
    rc = proc->program.start(&proc->env, proc->program.arg);
    sim_leave(proc);
    if (rc < 0) {
        mu_sim_fail(proc->sim, "%s/%s did not start: %d", proc->host->name, proc->program.name, rc);
    }
}

struct mu_sim_proc *mu_sim_proc_new(struct mu_sim_host *host, const struct mu_sim_program *program)
{
    struct mu_sim_heap *heap = mu_sim_outside();
    struct mu_sim_proc *proc = mu_calloc(1, sizeof(*proc));

    mu_sim_inside(heap);
    if (proc == NULL) {
        return NULL;
    }
    proc->sim = host->sim;
    proc->host = host;
    proc->program = *program;
    proc->start = (struct sim_action){.run = run_start, .proc = proc, .kind = SIM_START};
    sim_heap_init(&proc->heap);
    proc->heap.sim = proc->sim;
    /* This does not use the simulation's own random numbers, so that a run without memory faults
     * stays the same. */
    mu_prng_seed(&proc->heap.prng, ~proc->sim->config.seed + ++proc->sim->proc_count);
    sim_env_init(proc);
    sim_fault_proc_init(proc);
    mu_list_push(&host->procs, &proc->link);
    mu_sim_restart(proc);
    return proc;
}

bool mu_sim_proc_alive(const struct mu_sim_proc *proc)
{
    return proc->alive;
}

bool mu_sim_proc_idle(const struct mu_sim_proc *proc)
{
    return mu_list_empty(&proc->ends) && mu_list_empty(&proc->listeners) &&
           mu_list_empty(&proc->works) && mu_heap_min(&proc->timers) == NULL &&
           sim_disk_held(proc) == 0 && sim_child_held(proc) == 0 && sim_standbys_held(proc) == 0 &&
           sim_http_idle(proc);
}

uint32_t mu_sim_proc_starts(const struct mu_sim_proc *proc)
{
    return proc->starts;
}

uint64_t mu_sim_proc_awake_ns(const struct mu_sim_proc *proc)
{
    return proc->paused_until_ns;
}

struct mu_env *mu_sim_proc_env(struct mu_sim_proc *proc)
{
    return &proc->env;
}

struct mu_sim_proc *mu_sim_proc_of(struct mu_env *env)
{
    return (struct mu_sim_proc *)env;
}

struct mu_sim *mu_sim_of(struct mu_env *env)
{
    return mu_sim_proc_of(env)->sim;
}

struct mu_sim_host *mu_sim_proc_host(struct mu_sim_proc *proc)
{
    return proc->host;
}

bool mu_sim_out_of_memory(struct mu_env *env)
{
    return sim_heap_fails(&mu_sim_proc_of(env)->heap);
}

size_t mu_sim_proc_blocks(const struct mu_sim_proc *proc)
{
    return proc->heap.count;
}

void mu_sim_call(struct mu_sim_proc *proc, void (*run)(void *arg), void *arg)
{
    sim_enter(proc);
    run(arg);
    sim_leave(proc);
    if (proc->exiting) {
        finish_exit(proc);
    }
}

void mu_sim_exit(struct mu_env *env)
{
    mu_sim_proc_of(env)->exiting = true;
}

static void kill_one(struct mu_sim_proc *proc, enum mu_sim_kill how)
{
    MU_ASSERT(proc->sim->running != proc);
    sim_cancel(proc->sim, &proc->start);
    sim_cancel(proc->sim, &proc->reboot);
    proc->starting = false;
    if (!proc->alive) {
        return;
    }
    mu_sim_note(proc->sim, proc, "dies%s", how == MU_SIM_KILL_POWER ? " with its host" : "");
    proc->alive = false;
    sim_env_drop(proc);
    sim_http_drop(proc);
    sim_net_drop(proc, how);
    sim_disk_drop(proc);
    sim_child_drop(proc, how);
    sim_standbys_drop(proc->sim, proc);
    if (proc->program.killed != NULL && !proc->exiting) {
        proc->program.killed(proc->program.arg);
    }
    proc->exiting = false;
    proc->paused_until_ns = 0;
    proc->heap.short_until_ns = 0;
    sim_heap_drop(&proc->heap);
}

void mu_sim_kill(struct mu_sim_proc *proc, enum mu_sim_kill how)
{
    if (how == MU_SIM_KILL_PROCESS) {
        kill_one(proc, how);
        return;
    }
    if (!proc->host->up) {
        return;
    }
    proc->host->up = false;
    MU_LIST_FOREACH (p, &proc->host->procs) {
        kill_one(MU_CONTAINER_OF(p, struct mu_sim_proc, link), how);
    }
}

void mu_sim_restart(struct mu_sim_proc *proc)
{
    if (proc->alive || proc->starting) {
        return;
    }
    if (!proc->host->up) {
        sim_boot(proc->host);
        sim_net_reboot(proc->host);
    }
    sim_cancel(proc->sim, &proc->reboot);
    proc->exited = false;
    proc->starting = true;
    sim_schedule(proc->sim, &proc->start, proc->sim->now_ns);
}

void mu_sim_pause(struct mu_sim_proc *proc, uint64_t ns)
{
    uint64_t until = proc->sim->now_ns + ns;

    if (proc->alive && until > proc->paused_until_ns) {
        mu_sim_note(proc->sim, proc, "pauses for %.3f ms", (double)ns / (double)MU_NS_PER_MS);
        proc->paused_until_ns = until;
    }
}
