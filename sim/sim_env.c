/* The environment of one simulated process: clock, entropy, timers and work. */
#include "sim_impl.h"

#include "core/alloc.h"
#include "core/assert.h"

struct sim_work {
    struct sim_action action;
    struct mu_list link; /* of proc->works */
    struct mu_work *work;
    uint64_t done_ns;
};

static struct mu_now env_now(struct mu_env *env)
{
    struct mu_sim_host *host = mu_sim_proc_of(env)->host;

    return (struct mu_now){
        .mono = sim_host_mono(host, host->sim->now_ns),
        .wall = {(uint64_t)((int64_t)host->sim->now_ns + host->wall_offset_ns)},
    };
}

static void env_entropy(struct mu_env *env, void *buf, size_t len)
{
    struct mu_sim_proc *proc = mu_sim_proc_of(env);
    uint8_t *out = buf;

    for (size_t i = 0; i < len; i++) {
        out[i] = (uint8_t)mu_prng_u64(&proc->entropy);
    }
}

/* --- timers ----------------------------------------------------------------------------------- */

/* Returns the first true time at which the host's clock shows `at` or more. */
static uint64_t global_time(const struct mu_sim_host *host, mu_mono_t at)
{
    uint64_t now = host->sim->now_ns;
    mu_mono_t local = sim_host_mono(host, now);
    uint64_t left = mu_mono_since(local, at);
    uint64_t guess;

    if (left == 0) {
        return now;
    }
    if (left > UINT64_MAX / 4) {
        return UINT64_MAX / 2; /* The deadline is beyond every run, and the arithmetic must not
                                  wrap. */
    }
    /* Clocks are off by less than a thousandth, so this converges from below in a few rounds. */
    guess = now + (left - left / 1000);
    while (mu_mono_before(sim_host_mono(host, guess), at)) {
        uint64_t short_by = mu_mono_since(sim_host_mono(host, guess), at);

        guess += short_by - short_by / 1000;
    }
    return guess;
}

/* How much later a timer fires that is `late` already: others of the process were due with it, and
 * together they are no later than the faults say. */
static uint64_t draw_lateness(struct mu_sim *sim, uint64_t late)
{
    uint64_t most = sim->faults.timer_late_max_ns;
    uint64_t more;

    if (!mu_prng_chance(&sim->prng, sim->faults.timer_late_ppm)) {
        return 0;
    }
    more = sim_draw_ns(&sim->prng, most);
    return late >= most ? 0 : more < most - late ? more : most - late;
}

/* All timers of a process share one action, which is due at the earliest of them. */
void sim_wake_rearm(struct mu_sim_proc *proc)
{
    struct mu_sim *sim = proc->sim;
    mu_mono_t deadline = mu_heap_deadline(&proc->timers);
    uint64_t at;

    if (deadline.ns == MU_MONO_NEVER.ns) {
        sim_cancel(sim, &proc->wake);
        return;
    }
    if (sim_scheduled(&proc->wake) && deadline.ns == proc->wake_for.ns) {
        return;
    }
    at = global_time(proc->host, deadline) +
         draw_lateness(sim, mu_mono_since(deadline, sim_host_mono(proc->host, sim->now_ns)));
    proc->wake_for = deadline;
    sim_schedule(sim, &proc->wake, at);
}

/* Each step fires one timer, so that the next one sees its changes. */
static void run_wake(struct sim_action *action)
{
    struct mu_sim_proc *proc = action->proc;
    mu_mono_t now = sim_host_mono(proc->host, proc->sim->now_ns);
    struct mu_heap_node *node = mu_heap_pop_due(&proc->timers, now);
    struct mu_timer *timer;

    if (node == NULL) {
        sim_wake_rearm(proc);
        return;
    }
    sim_trace_step(proc->sim, mu_mono_since(proc->wake_for, now), 0);
    sim_wake_rearm(proc);
    timer = MU_CONTAINER_OF(node, struct mu_timer, node);
    sim_enter(proc);
    timer->fire(timer);
    sim_leave(proc);
}

static void env_timer_arm(struct mu_env *env, struct mu_timer *timer, mu_mono_t at)
{
    struct mu_sim_proc *proc = mu_sim_proc_of(env);

    mu_mono_t now = sim_host_mono(proc->host, proc->sim->now_ns);

    mu_heap_remove(&proc->timers, &timer->node);
    if (at.ns != MU_MONO_NEVER.ns) {
        /* A time in the past counts as now: it does not overtake what was due before. */
        mu_heap_insert(&proc->timers, &timer->node, mu_mono_before(at, now) ? now : at);
    }
    sim_wake_rearm(proc);
}

/* --- work ------------------------------------------------------------------------------------- */

static void run_done(struct sim_action *action)
{
    struct sim_work *w = MU_CONTAINER_OF(action, struct sim_work, action);
    struct mu_sim_proc *proc = action->proc;
    struct mu_work *work = w->work;

    sim_trace_step(proc->sim, 0, 0);
    mu_list_remove(&w->link);
    mu_free(w);
    work->impl = NULL;
    sim_enter(proc);
    work->done(work);
    sim_leave(proc);
}

static void run_work(struct sim_action *action)
{
    struct sim_work *w = MU_CONTAINER_OF(action, struct sim_work, action);
    struct mu_sim_proc *proc = action->proc;

    sim_trace_step(proc->sim, 0, 0);
    sim_enter(proc);
    w->work->run(w->work);
    sim_leave(proc);
    w->action.run = run_done;
    w->action.kind = SIM_DONE;
    sim_schedule(proc->sim, &w->action, w->done_ns);
}

/*
 * The body runs at a random moment between the request and the answer: a kill before it finds the
 * work undone, a kill after it finds it done and not yet told.
 */
static int env_work(struct mu_env *env, struct mu_work *work)
{
    struct mu_sim_proc *proc = mu_sim_proc_of(env);
    struct mu_sim *sim = proc->sim;
    uint64_t length = sim_draw_ns(&sim->prng, sim->faults.work_max_ns + 1000);
    struct mu_sim_heap *heap;
    struct sim_work *w;

    if (mu_sim_out_of_memory(env)) {
        return MUSTER_ENOMEM;
    }
    heap = mu_sim_outside();
    w = mu_sim_calloc(sizeof(*w));
    mu_sim_inside(heap);
    w->action = (struct sim_action){.run = run_work, .proc = proc, .kind = SIM_WORK};
    w->work = work;
    w->done_ns = sim->now_ns + length;
    work->env = env;
    work->impl = w;
    mu_list_push(&proc->works, &w->link);
    sim_schedule(sim, &w->action, sim->now_ns + mu_prng_below(&sim->prng, length + 1));
    return 0;
}

/* A process has the name of its host, and another pid each time it is started. */
static void env_self(struct mu_env *env, struct mu_self *ret_self)
{
    const struct mu_sim_proc *proc = mu_sim_proc_of(env);

    *ret_self = (struct mu_self){.pid = 100 + proc->starts};
    (void)snprintf(ret_self->host, sizeof(ret_self->host), "%s", proc->host->name);
}

static const struct mu_peek *env_peek(struct mu_env *env)
{
    return mu_sim_proc_of(env)->sim->peek;
}

void mu_sim_set_peek(struct mu_sim *sim, const struct mu_peek *peek)
{
    sim->peek = peek;
}

void sim_env_drop(struct mu_sim_proc *proc)
{
    struct mu_list *node;

    mu_heap_init(&proc->timers);
    sim_cancel(proc->sim, &proc->wake);
    while ((node = mu_list_pop(&proc->works)) != NULL) {
        struct sim_work *w = MU_CONTAINER_OF(node, struct sim_work, link);

        sim_cancel(proc->sim, &w->action);
        mu_free(w);
    }
}

const struct mu_env_ops sim_env_ops = {
    .now = env_now,
    .entropy = env_entropy,
    .self = env_self,
    .peek = env_peek,
    .timer_arm = env_timer_arm,
    .dial = sim_net_dial,
    .listen = sim_net_listen,
    .unlisten = sim_net_unlisten,
    .sendv = sim_net_sendv,
    .resume = sim_net_resume,
    .finish = sim_net_finish,
    .close = sim_net_close,
    .peer = sim_net_peer,
    .work = env_work,
    .http = sim_http_start,
    .http_resume = sim_http_resume,
    .http_cancel = sim_http_cancel,
    .spawn = sim_child_spawn,
    .child_signal = sim_child_signal,
    .child_resume = sim_child_resume,
    .child_leave = sim_child_leave,
    .standbys_open = sim_standbys_open,
    .standbys_want = sim_standbys_want,
    .standbys_close = sim_standbys_close,
};

void sim_env_init(struct mu_sim_proc *proc)
{
    proc->env.ops = &sim_env_ops;
    mu_heap_init(&proc->timers);
    proc->wake = (struct sim_action){.run = run_wake, .proc = proc, .kind = SIM_TIMER};
    mu_list_init(&proc->ends);
    mu_list_init(&proc->listeners);
    mu_list_init(&proc->works);
}
