/* The faults: which ones a seed gets, and the code that makes them strike. */
#include "sim_impl.h"

#include "core/alloc.h"

#define MS MU_NS_PER_MS

enum sim_fault_kind {
    FAULT_RESET = 0,
    FAULT_CUT,
    FAULT_PAUSE,
    FAULT_KILL,
    FAULT_WALL,
    FAULT_SHORTAGE,
    FAULT_KINDS,
};

struct strike {
    struct sim_action action;
    struct mu_sim *sim;
    enum sim_fault_kind kind;
};

struct sim_nemesis {
    struct strike strikes[FAULT_KINDS];
};

/* --- drawing ---------------------------------------------------------------------------------- */

uint64_t sim_draw_ns(struct mu_prng *prng, uint64_t max)
{
    if (max == 0) {
        return 0;
    }
    return mu_prng_below(prng, mu_prng_below(prng, 2) == 0 ? max / 10 + 1 : max + 1);
}

struct mu_sim_faults mu_sim_faults_none(void)
{
    return (struct mu_sim_faults){
        .latency_min_ns = 50000,
        .latency_max_ns = 200000,
        .work_max_ns = 100000,
    };
}

static bool one_in(struct mu_prng *prng, uint64_t n)
{
    return mu_prng_below(prng, n) == 0;
}

/* Draws between `low` and `high`, all orders of magnitude alike. */
static uint64_t draw_log(struct mu_prng *prng, uint64_t low, uint64_t high)
{
    uint64_t doublings = 0;
    uint64_t top;

    while (low << doublings < high) {
        doublings++;
    }
    top = low << mu_prng_below(prng, doublings + 1);
    top = top < high ? top : high;
    return top / 2 + mu_prng_below(prng, top / 2 + 1);
}

static void draw_links(struct mu_sim_faults *f, struct mu_prng *prng)
{
    f->latency_min_ns = draw_log(prng, 10000, 5 * MS);
    f->latency_max_ns = f->latency_min_ns + draw_log(prng, 10000, 50 * MS);
    if (one_in(prng, 3)) {
        f->spike_ppm = (uint32_t)draw_log(prng, 1000, 200000);
        f->spike_max_ns = draw_log(prng, MS, 2000 * MS);
    }
    if (one_in(prng, 3)) {
        f->ns_per_byte = (uint32_t)draw_log(prng, 1, 20000);
    }
    if (one_in(prng, 3)) {
        f->capacity_bytes = draw_log(prng, 16, 65536);
    }
    if (one_in(prng, 3)) {
        f->short_take_ppm = (uint32_t)draw_log(prng, 10000, 500000);
    }
    if (one_in(prng, 2)) {
        f->chunk_ppm = (uint32_t)draw_log(prng, 50000, 1000000);
        f->byte_ppm = one_in(prng, 2) ? (uint32_t)draw_log(prng, 50000, 600000) : 0;
    }
    if (one_in(prng, 4)) {
        f->dial_refuse_ppm = (uint32_t)draw_log(prng, 50000, 500000);
    }
    if (one_in(prng, 4)) {
        f->dial_slow_ppm = (uint32_t)draw_log(prng, 50000, 500000);
        f->dial_slow_max_ns = draw_log(prng, 100 * MS, 10000 * MS);
    }
    if (one_in(prng, 2)) {
        f->reset_every_ns = draw_log(prng, 50 * MS, 5000 * MS);
    }
    if (one_in(prng, 2)) {
        f->cut_every_ns = draw_log(prng, 200 * MS, 5000 * MS);
        f->cut_max_ns = draw_log(prng, 50 * MS, 20000 * MS);
        f->cut_reset_ppm = one_in(prng, 2) ? 500000 : 0;
    }
}

static void draw_hosts(struct mu_sim_faults *f, struct mu_prng *prng)
{
    if (one_in(prng, 2)) {
        f->pause_every_ns = draw_log(prng, 200 * MS, 5000 * MS);
        f->pause_max_ns = draw_log(prng, 20 * MS, 10000 * MS);
    }
    if (one_in(prng, 2)) {
        f->kill_every_ns = draw_log(prng, 200 * MS, 5000 * MS);
        f->down_max_ns = draw_log(prng, MS, 10000 * MS);
        f->power_ppm = one_in(prng, 2) ? 400000 : 0;
    }
    if (one_in(prng, 3)) {
        f->timer_late_ppm = (uint32_t)draw_log(prng, 10000, 500000);
        f->timer_late_max_ns = draw_log(prng, MS, 500 * MS);
    }
    f->work_max_ns = draw_log(prng, 10000, 200 * MS);
    if (one_in(prng, 2)) {
        f->drift_ppm = (uint32_t)draw_log(prng, 1, 500);
    }
    if (one_in(prng, 2)) {
        f->wall_skew_max_ns = draw_log(prng, MS, 86400000 * MS);
        f->wall_jump_every_ns = draw_log(prng, 500 * MS, 10000 * MS);
    }
}

void mu_sim_faults_draw_memory(struct mu_sim_faults *f, struct mu_prng *prng)
{
    if (one_in(prng, 8)) {
        f->alloc_fail_ppm = (uint32_t)draw_log(prng, 20, 50000);
    }
    if (one_in(prng, 8)) {
        f->shortage_every_ns = draw_log(prng, 100 * MS, 5000 * MS);
        f->shortage_max_ns = draw_log(prng, MS, 1000 * MS);
    }
}

struct mu_sim_faults mu_sim_faults_draw(struct mu_prng *prng)
{
    struct mu_sim_faults f = mu_sim_faults_none();

    draw_links(&f, prng);
    draw_hosts(&f, prng);
    return f;
}

struct mu_sim_faults mu_sim_faults_draw_all(struct mu_prng *prng)
{
    struct mu_sim_faults f = mu_sim_faults_draw(prng);

    mu_sim_faults_draw_memory(&f, prng);
    return f;
}

/* --- striking --------------------------------------------------------------------------------- */

static struct mu_sim_host *pick_host(struct mu_sim *sim)
{
    uint64_t left = sim->host_count == 0 ? 0 : mu_prng_below(&sim->fault_prng, sim->host_count);

    MU_LIST_FOREACH (h, &sim->hosts) {
        if (left-- == 0) {
            return MU_CONTAINER_OF(h, struct mu_sim_host, link);
        }
    }
    return NULL;
}

/* Chooses a living process that the fault may strike, or NULL. */
static struct mu_sim_proc *pick_proc(struct mu_sim *sim, unsigned spared)
{
    struct mu_sim_host *host = pick_host(sim);

    if (host == NULL) {
        return NULL;
    }
    MU_LIST_FOREACH (p, &host->procs) {
        struct mu_sim_proc *proc = MU_CONTAINER_OF(p, struct mu_sim_proc, link);

        if (proc->alive && (proc->program.flags & spared) == 0) {
            return proc;
        }
    }
    return NULL;
}

static bool any_spared(const struct mu_sim_host *host)
{
    MU_LIST_FOREACH (p, &host->procs) {
        if (MU_CONTAINER_OF(p, struct mu_sim_proc, link)->program.flags & MU_SIM_KEEP_ALIVE) {
            return true;
        }
    }
    return false;
}

static void strike_kill(struct mu_sim *sim)
{
    struct mu_sim_proc *victim = pick_proc(sim, MU_SIM_KEEP_ALIVE);
    uint64_t back = sim->now_ns + 1 + sim_draw_ns(&sim->fault_prng, sim->faults.down_max_ns);
    enum mu_sim_kill how;

    if (victim == NULL) {
        return;
    }
    how = mu_prng_chance(&sim->fault_prng, sim->faults.power_ppm) && !any_spared(victim->host)
              ? MU_SIM_KILL_POWER
              : MU_SIM_KILL_PROCESS;
    MU_LIST_FOREACH (p, &victim->host->procs) {
        struct mu_sim_proc *proc = MU_CONTAINER_OF(p, struct mu_sim_proc, link);

        proc->doomed = (proc == victim || how == MU_SIM_KILL_POWER) &&
                       (proc->alive || proc->starting || sim_scheduled(&proc->reboot));
    }
    mu_sim_kill(victim, how);
    MU_LIST_FOREACH (p, &victim->host->procs) {
        struct mu_sim_proc *proc = MU_CONTAINER_OF(p, struct mu_sim_proc, link);

        if (proc->doomed) {
            proc->doomed = false;
            sim_schedule(sim, &proc->reboot, back);
        }
    }
}

static void strike_cut(struct mu_sim *sim)
{
    struct mu_sim_host *from = pick_host(sim);
    struct mu_sim_host *to = pick_host(sim);
    uint64_t length = sim_draw_ns(&sim->fault_prng, sim->faults.cut_max_ns);

    if (from == NULL || from == to) {
        return;
    }
    mu_sim_cut(from, to, length);
    if (mu_prng_chance(&sim->fault_prng, 500000)) {
        mu_sim_cut(to, from, length);
    }
    if (mu_prng_chance(&sim->fault_prng, sim->faults.cut_reset_ppm)) {
        sim_net_doom(from, to);
    }
}

static void strike_shortage(struct mu_sim_proc *proc)
{
    struct mu_sim *sim = proc->sim;
    uint64_t length = sim_draw_ns(&sim->fault_prng, sim->faults.shortage_max_ns);

    mu_sim_note(sim, proc, "has no memory for %.3f ms", (double)length / (double)MU_NS_PER_MS);
    proc->heap.short_until_ns = sim->now_ns + length;
}

static uint64_t every_ns(const struct mu_sim_faults *f, enum sim_fault_kind kind)
{
    switch (kind) {
    case FAULT_RESET:
        return f->reset_every_ns;
    case FAULT_CUT:
        return f->cut_every_ns;
    case FAULT_PAUSE:
        return f->pause_every_ns;
    case FAULT_KILL:
        return f->kill_every_ns;
    case FAULT_WALL:
        return f->wall_jump_every_ns;
    case FAULT_SHORTAGE:
        return f->shortage_every_ns;
    case FAULT_KINDS:
        break;
    }
    return 0;
}

static void plan(struct strike *s)
{
    struct mu_sim *sim = s->sim;
    uint64_t every = every_ns(&sim->faults, s->kind);

    if (every != 0) {
        sim_schedule(sim, &s->action, sim->now_ns + 1 + mu_prng_below(&sim->fault_prng, 2 * every));
    }
}

static void run_strike(struct sim_action *action)
{
    struct strike *s = MU_CONTAINER_OF(action, struct strike, action);
    struct mu_sim *sim = s->sim;
    struct mu_prng *prng = &sim->fault_prng;
    struct mu_sim_proc *proc;
    struct mu_sim_host *host;
    size_t count;

    sim_trace_step(sim, (uint64_t)s->kind, 0);
    switch (s->kind) {
    case FAULT_RESET:
        count = sim_net_count(sim);
        if (count != 0) {
            /* Two draws are two statements, because compilers disagree about the order within
             * one. */
            bool both = one_in(prng, 2);

            sim_net_reset_one(sim, mu_prng_below(prng, 2 * count), both);
        }
        break;
    case FAULT_CUT:
        strike_cut(sim);
        break;
    case FAULT_PAUSE:
        proc = pick_proc(sim, MU_SIM_KEEP_AWAKE);
        if (proc != NULL) {
            mu_sim_pause(proc, sim_draw_ns(prng, sim->faults.pause_max_ns));
        }
        break;
    case FAULT_KILL:
        strike_kill(sim);
        break;
    case FAULT_WALL:
        host = pick_host(sim);
        if (host != NULL) {
            mu_sim_wall_jump(host, (int64_t)sim_draw_ns(prng, 2 * sim->faults.wall_skew_max_ns) -
                                       (int64_t)sim->faults.wall_skew_max_ns);
        }
        break;
    case FAULT_SHORTAGE:
        proc = pick_proc(sim, 0);
        if (proc != NULL) {
            strike_shortage(proc);
        }
        break;
    case FAULT_KINDS:
        break;
    }
    plan(s);
}

static void run_reboot(struct sim_action *action)
{
    struct mu_sim_proc *proc = MU_CONTAINER_OF(action, struct mu_sim_proc, reboot);

    sim_trace_step(proc->sim, 0, 0);
    mu_sim_restart(proc);
}

void sim_fault_proc_init(struct mu_sim_proc *proc)
{
    proc->reboot = (struct sim_action){.run = run_reboot, .kind = SIM_REBOOT};
}

int sim_fault_init(struct mu_sim *sim)
{
    sim->nemesis = mu_calloc(1, sizeof(*sim->nemesis));
    if (sim->nemesis == NULL) {
        return MUSTER_ENOMEM;
    }
    for (int i = 0; i < FAULT_KINDS; i++) {
        struct strike *s = &sim->nemesis->strikes[i];

        s->action = (struct sim_action){.run = run_strike, .kind = SIM_FAULT};
        s->sim = sim;
        s->kind = (enum sim_fault_kind)i;
        plan(s);
    }
    return 0;
}

void sim_fault_stop(struct mu_sim *sim)
{
    for (int i = 0; i < FAULT_KINDS; i++) {
        sim_cancel(sim, &sim->nemesis->strikes[i].action);
    }
}

void sim_fault_free(struct mu_sim *sim)
{
    mu_free(sim->nemesis);
}

void mu_sim_heal(struct mu_sim *sim)
{
    sim_fault_stop(sim);
    sim->faults = mu_sim_faults_none();
    mu_sim_note(sim, NULL, "all faults end");
    MU_LIST_FOREACH (h, &sim->hosts) {
        struct mu_sim_host *host = MU_CONTAINER_OF(h, struct mu_sim_host, link);

        MU_LIST_FOREACH (t, &sim->hosts) {
            struct mu_sim_host *to = MU_CONTAINER_OF(t, struct mu_sim_host, link);

            *sim_link_get(host, to) = (struct sim_link){0};
            sim_net_kick(sim, host, to);
            sim_http_kick(sim, host, to);
        }
        MU_LIST_FOREACH (p, &host->procs) {
            struct mu_sim_proc *proc = MU_CONTAINER_OF(p, struct mu_sim_proc, link);

            proc->heap.short_until_ns = 0;
            if (!proc->exited) {
                mu_sim_restart(proc);
            }
        }
    }
}
