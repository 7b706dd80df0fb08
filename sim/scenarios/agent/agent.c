/*
 * Whole agents: two to four of them, each on its own host with workers, and the native rendezvous
 * on a server. Workers succeed, fail, ignore SIGTERM, stop, leave descendants behind; agents are
 * signalled, killed, paused, started again, by a supervisor or for another run.
 *
 * After 20 s all faults end and workers only succeed soon: all agents must end.
 */
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>

#include <muster/log.h>

#include "core/alloc.h"
#include "scenarios/agent/agent_world.h"
#include "scenarios/scenarios.h"
#include "service/server/rdzv_hub_internal.h"
#include "service/rdzv/muster.h"
#include "service/server/server_internal.h"

#define WORKERS_MAX 3
#define PORT        29400
#define FAULTY_NS   (20 * MU_NS_PER_S)
#define DAY_NS      (24 * 3600 * MU_NS_PER_S)
#define CALM_NS     (10 * MU_NS_PER_S)
#define END_NS      (60 * MU_NS_PER_S) /* when every agent must have ended after that */
#define FREED_NS    (15 * MU_NS_PER_S) /* when an ended agent must be freed */
#define GO_NS       (60 * MU_NS_PER_S)
#define WAKE_NS     (10 * MU_NS_PER_MS) /* when a waking agent must have killed its old workers */

/* --- the server ------------------------------------------------------------------------------- */

static void restart_server(struct mu_sim *sim, void *arg)
{
    (void)sim;
    mu_sim_restart(((struct agents_world *)arg)->server_proc);
}

/* A server that ends by itself is started again, as a supervisor would do. */
static void server_stopped(void *context, int status, const char *why)
{
    struct agents_serving *s = context;
    struct agents_world *w = s->world;
    struct mu_env *env = s->env;

    if (!w->leaving) {
        if (status != MUSTER_EDISK && !(status == MUSTER_ENOMEM && w->memory)) {
            mu_sim_fail(w->sim, "the server gave up: %s", why == NULL ? "" : why);
        }
        (void)mu_sim_at(w->sim, mu_sim_now_ns(w->sim) + MU_NS_PER_S, restart_server, w);
    }
    w->serving = NULL;
    mu_store_server_free(s->server);
    mu_free(s);
    mu_sim_exit(env);
}

static int start_server(struct mu_env *env, void *arg)
{
    struct agents_world *w = arg;
    struct agents_serving *s = mu_sim_calloc(sizeof(*s));
    struct mu_store_server_config config = mu_store_server_config_defaults();
    struct mu_errmsg msg = {{0}};
    int rc = 0;

    *s = (struct agents_serving){.world = w, .env = env};
    config.listen = (struct mu_addr){.kind = MU_ADDR_TCP, .port = PORT, .host = "0.0.0.0"};
    config.stopped = server_stopped;
    config.context = s;
    if (w->disk) {
        config.sync = MU_SYNC_ALWAYS;
        rc = mu_sim_disk_open(env, "data", &config.disk, &msg);
    }
    if (rc == 0) {
        rc = mu_store_server_start(env, &config, &s->server, &msg);
        if (rc != 0 && config.disk != NULL) {
            config.disk->ops->close(config.disk);
        }
    }
    if (rc == 0) {
        w->serving = s;
        w->served_ns = mu_sim_now_ns(w->sim);
        return 0;
    }
    mu_free(s);
    mu_sim_exit(env);
    if (!w->memory) {
        mu_sim_fail(w->sim, "the server did not start: %s", msg.text);
    }
    (void)mu_sim_at(w->sim, mu_sim_now_ns(w->sim) + 100 * MU_NS_PER_MS, restart_server, w);
    return 0;
}

static void server_killed(void *arg)
{
    ((struct agents_world *)arg)->serving = NULL;
}

static void drain_server(void *arg)
{
    mu_store_server_drain(((struct agents_serving *)arg)->server);
}

/* --- checks ---------------------------------------------------------------------------------- */

static bool is_awake(const struct agents_node *n)
{
    return mu_sim_proc_alive(n->proc) && n->life != NULL &&
           mu_sim_proc_awake_ns(n->proc) <= mu_sim_now_ns(n->world->sim);
}

/*
 * Returns whether others may rely on this agent's workers running only in its last round: not while
 * it is suspended, nor when it has left the run, or the run is over.
 */
static bool is_fenced(const struct agents_node *n)
{
    const struct mu_agent *m = &n->life->agent->machine;
    uint64_t late = mu_sim_faults(n->world->sim)->timer_late_max_ns + WAKE_NS;

    return mu_sim_now_ns(n->world->sim) > mu_sim_proc_awake_ns(n->proc) + late && m->outcome == 0 &&
           !m->closed && m->exited != n->world->workers;
}

/* A restarted server learns of an earlier world from its members. */
static bool nobody_knew(const struct agents_world *w, const struct agents_node *a,
                        const struct agents_node *b)
{
    const struct agents_meeting *later =
        a->meeting->incarnation > b->meeting->incarnation ? a->meeting : b->meeting;

    for (uint32_t i = 0; i < w->node_count; i++) {
        const struct agents_node *n = &w->nodes[i];

        if (n->meeting == later && n->entered_ns != 0 && n->entered_ns < later->served_ns) {
            return false;
        }
    }
    return a->meeting->incarnation != b->meeting->incarnation;
}

static void check_world(struct agents_world *w, const struct agents_node *n)
{
    const struct agents_node *o = w->worker_of;

    if (n->life == NULL || n->meeting == NULL || !is_fenced(n)) {
        return;
    }
    if (o == NULL || o->meeting->run != n->meeting->run) {
        w->worker_of = n;
    } else if (o->meeting != n->meeting && !nobody_knew(w, o, n)) {
        w->overlap = true;
        if (w->overlap_ns != 0 && mu_sim_now_ns(w->sim) - w->overlap_ns > w->late_ns) {
            mu_sim_fail(w->sim,
                        "two worlds at a time: agent %" PRIu32 " in round %" PRIu64 " of %" PRIu64
                        ", agent %" PRIu32 " in round %" PRIu64 " of %" PRIu64,
                        o->number, o->meeting->round, o->meeting->incarnation, n->number,
                        n->meeting->round, n->meeting->incarnation);
        }
    }
}

static void check_process(void *arg, const struct mu_sim_process *p)
{
    struct agents_world *w = arg;
    const struct agents_node *n = agents_node_of(w, p->host);
    const char *mark = mu_sim_process_variable(p, "ATTEMPT");
    uint64_t attempt = mark == NULL ? 0 : strtoull(mark, NULL, 10);

    if (p->left) {
        return; /* A successful worker left it behind. */
    }
    if (p->agent == NULL) {
        if (mu_sim_now_ns(w->sim) > n->died_ns + MU_SIM_WATCH_NS) {
            mu_sim_fail(w->sim, "process %" PRId64 " outlives agent %" PRIu32, p->pid, n->number);
        }
    } else if (attempt != n->attempt) {
        mu_sim_fail(w->sim,
                    "two generations of agent %" PRIu32 " live: process %" PRId64 " is of %" PRIu64
                    ", now is %" PRIu64,
                    n->number, p->pid, attempt, n->attempt);
    } else if (n->gone) {
        mu_sim_fail(w->sim,
                    "process %" PRId64 " of agent %" PRIu32 " lives, and is said to be gone",
                    p->pid, n->number);
    } else {
        check_world(w, n);
    }
}

/* Workers of two rounds of a run never live at the same time, except for as long as timers are
 * late. */
static void check_processes(struct agents_world *w)
{
    w->worker_of = NULL;
    w->overlap = false;
    mu_sim_each_process(w->sim, check_process, w);
    if (!w->overlap) {
        w->overlap_ns = 0;
    } else if (w->overlap_ns == 0) {
        w->overlap_ns = mu_sim_now_ns(w->sim);
    }
}

static void tell_gone_early(void *arg)
{
    struct mu_agent_service *s = arg;

    mu_agent_tell(
        s, (struct mu_agent_event){.type = MU_AGENT_GROUP_GONE, .generation = s->generation});
}

static void commit_bugs(struct agents_world *w)
{
    for (uint32_t i = 0; w->plant == AGENTS_PLANT_EARLY && i < w->node_count; i++) {
        const struct agents_node *n = &w->nodes[i];

        if (is_awake(n) && n->life->agent->machine.state == MU_AGENT_IS_STOPPING &&
            n->life->agent->machine.alive && n->life->agent->machine.outcome == 0 &&
            n->life->agent->machine.exited == w->workers) {
            mu_sim_call(n->proc, tell_gone_early, n->life->agent);
        }
    }
    for (uint32_t i = 0; w->plant == AGENTS_PLANT_NUMB && i < w->node_count; i++) {
        const struct agents_node *n = &w->nodes[i];

        if (is_awake(n) && n->life->agent->rdzv != NULL) {
            n->life->agent->rdzv->events.cut_off = NULL;
            MU_CONTAINER_OF(n->life->agent->rdzv, struct mu_rdzv_muster, base)->member.fence_at =
                MU_MONO_NEVER;
        }
    }
    if (w->plant == AGENTS_PLANT_SPENDTHRIFT && w->serving != NULL) {
        struct mu_rdzv_run *run = mu_rdzv_run_find(&w->serving->server->hub, MU_SPAN_LIT("run0"));

        if (run != NULL && !run->over) {
            run->room.restarts = 0;
        }
    }
}

static void check_step(struct mu_sim *sim, void *arg)
{
    struct agents_world *w = arg;

    commit_bugs(w);
    check_processes(w);
    for (uint32_t i = 0; i < w->node_count; i++) {
        struct agents_node *n = &w->nodes[i];
        uint64_t late = n->ended_ns + FREED_NS;

        if (n->life != NULL && n->entered_ns == 0 && agents_incarnation(n->life) != 0) {
            n->entered_ns = mu_sim_now_ns(sim);
        }

        if (n->life != NULL && n->ended && mu_sim_now_ns(sim) > late &&
            mu_sim_now_ns(sim) > mu_sim_proc_awake_ns(n->proc) + FREED_NS) {
            mu_sim_fail(sim, "agent %" PRIu32 " ended and is not freed", n->number);
        }
    }
}

/* --- the story -------------------------------------------------------------------------------- */

static void send_term(void *arg)
{
    mu_agent_service_signal(arg, SIGTERM);
}

static void signal_agent(struct mu_sim *sim, void *arg)
{
    struct agents_world *w = arg;
    struct agents_node *n = &w->nodes[agents_draw(w, w->node_count)];

    (void)sim;
    if (is_awake(n)) {
        mu_sim_note(sim, n->proc, "agent %" PRIu32 " is sent SIGTERM", n->number);
        mu_sim_call(n->proc, send_term, n->life->agent);
    }
}

static void wake_process(void *arg, const struct mu_sim_process *p)
{
    struct agents_world *w = arg;

    (void)mu_sim_process_signal(w->sim, p->pid, SIGCONT);
}

static void draw_terms(struct agents_world *w)
{
    const struct mu_sim_faults *f = mu_sim_faults(w->sim);

    w->quiet = f->kill_every_ns == 0 && f->pause_every_ns == 0 && f->reset_every_ns == 0 &&
               f->cut_every_ns == 0 && f->alloc_fail_ppm == 0 && f->shortage_every_ns == 0;
    w->late_ns = f->timer_late_ppm == 0 ? 0 : f->timer_late_max_ns;
    w->memory = f->alloc_fail_ppm != 0 || f->shortage_every_ns != 0;
    w->node_count = 2 + agents_draw(w, AGENTS_MAX - 1);
    w->nodes_min = 1 + agents_draw(w, w->node_count);
    w->workers = 1 + agents_draw(w, WORKERS_MAX);
    w->restarts_max = agents_draw(w, 2) == 0 ? agents_draw(w, 4) : 10 + agents_draw(w, 20);
    w->last_call_ms = 1 + (agents_draw(w, 2) == 0 ? agents_draw(w, 50) : agents_draw(w, 1000));
    w->upscale_ms = w->quiet || agents_draw(w, 4) == 0 ? UINT32_MAX : 1 + agents_draw(w, 1000);
    w->join_timeout_ms = (2 + agents_draw(w, 20)) * 1000;
    w->grace_ms = 50 + agents_draw(w, agents_draw(w, 2) == 0 ? 300 : 3000);
    w->work_max_ms = agents_draw(w, 2) == 0 ? 200 : 4000;
    w->fail_of_8 = agents_draw(w, 5);
    w->odd_of_8 = agents_draw(w, 7);
    w->signals = !w->quiet && agents_draw(w, 3) == 0;
    w->supervised = agents_draw(w, 3) != 0;
    w->disk = agents_draw(w, 2) == 0;
    if (w->steady) {
        w->restarts_max = 0;
        w->fail_of_8 = 0;
        w->work_max_ms = 20000;
        w->signals = false;
    }
    if (w->work_end_ns != 0) {
        w->node_count = AGENTS_MAX;
        w->nodes_min = 1;
        w->workers = 1;
        w->upscale_ms = 1000;
        w->join_timeout_ms = 600000;
        w->odd_of_8 = 0;
        w->supervised = true;
    }
}

static void set_up(struct agents_world *w)
{
    bool dies = agents_draw(w, 3) == 0 && w->work_end_ns == 0;

    draw_terms(w);
    mu_sim_set_exec(w->sim, agents_script, w);
    w->server_proc =
        mu_sim_proc_new(mu_sim_host_new(w->sim, "server"),
                        &(struct mu_sim_program){.name = "serve",
                                                 .start = start_server,
                                                 .killed = server_killed,
                                                 .arg = w,
                                                 .flags = dies ? 0 : MU_SIM_KEEP_ALIVE});
    for (uint32_t i = 0; i < w->node_count; i++) {
        struct agents_node *n = &w->nodes[i];
        char host[16];

        (void)snprintf(host, sizeof(host), "host%" PRIu32, i);
        *n = (struct agents_node){.world = w, .number = i, .host = mu_sim_host_new(w->sim, host)};
        n->proc = mu_sim_proc_new(n->host, &(struct mu_sim_program){.name = "agent",
                                                                    .start = agents_node_start,
                                                                    .killed = agents_node_killed,
                                                                    .arg = n});
    }
    for (uint32_t i = 0; w->signals && i < 6; i++) {
        (void)mu_sim_at(w->sim, mu_prng_below(mu_sim_prng(w->sim), FAULTY_NS), signal_agent, w);
    }
    mu_sim_add_checker(w->sim, check_step, w);
}

static bool agents_gone(void *arg)
{
    struct agents_world *w = arg;

    for (uint32_t i = 0; i < w->node_count; i++) {
        if (mu_sim_proc_alive(w->nodes[i].proc)) {
            return false;
        }
    }
    return true;
}

static bool server_gone(void *arg)
{
    return !mu_sim_proc_alive(((struct agents_world *)arg)->server_proc);
}

static void blame(struct agents_world *w)
{
    for (uint32_t i = 0; i < w->node_count; i++) {
        const struct agents_node *n = &w->nodes[i];

        if (mu_sim_proc_alive(n->proc)) {
            mu_sim_fail(w->sim, "long after all faults have ended agent %" PRIu32 " is still %s", i,
                        n->life == NULL ? "without a life"
                        : n->ended      ? "being freed"
                                        : mu_agent_state_name(n->life->agent->machine.state));
        }
    }
}

static void run_world(struct mu_sim *sim, struct agents_world w, uint64_t faulty_ns)
{
    muster_log_set(NULL, NULL, MUSTER_LOG_ERROR);
    set_up(&w);
    mu_sim_run_for(sim, faulty_ns);
    w.healed = true;
    mu_sim_heal(sim);
    mu_sim_run_for(sim, CALM_NS); /* Agents that were about to stop have stopped, and the dead are
                                     up again. */
    mu_sim_each_process(sim, wake_process, &w);
    if (!mu_sim_run_until(sim, END_NS, agents_gone, &w)) {
        blame(&w);
    }
    w.leaving = true;
    if (mu_sim_failure(sim) == NULL && w.serving == NULL) {
        mu_sim_run_for(sim, 2 * MU_NS_PER_S);
    }
    if (mu_sim_failure(sim) == NULL && w.serving != NULL) {
        mu_sim_call(w.server_proc, drain_server, w.serving);
        if (!mu_sim_run_until(sim, GO_NS, server_gone, &w)) {
            mu_sim_fail(sim, "the server did not leave");
        }
    }
    muster_log_set(NULL, NULL, MUSTER_LOG_WARN);
}

static void run_agents(struct mu_sim *sim, enum agents_plant plant, bool steady)
{
    run_world(sim, (struct agents_world){.sim = sim, .plant = plant, .steady = steady}, FAULTY_NS);
}

static void run_hourly(struct mu_sim *sim)
{
    uint64_t length = mu_sim_length_ns(sim, DAY_NS);

    run_world(
        sim, (struct agents_world){.sim = sim, .steady = true, .work_end_ns = length + 2 * CALM_NS},
        length);
}

/* In every fourth seed nothing is lost, so that failures can be counted. */
static struct mu_sim_faults draw_faults(struct mu_prng *prng)
{
    struct mu_sim_faults f = mu_sim_faults_draw(prng);

    if (mu_prng_below(prng, 4) == 0) {
        return mu_sim_faults_none();
    }
    mu_sim_faults_draw_memory(&f, prng);
    return f;
}

/* There are cuts in every seed, some of them longer than a node may be silent. Kills are at
 * least a second apart on average, so that the losses stay within their bound. */
static struct mu_sim_faults draw_cuts(struct mu_prng *prng)
{
    struct mu_sim_faults f = mu_sim_faults_draw(prng);

    if (f.kill_every_ns != 0 && f.kill_every_ns < MU_NS_PER_S) {
        f.kill_every_ns = MU_NS_PER_S;
    }
    f.cut_every_ns = (500 + mu_prng_below(prng, 4000)) * MU_NS_PER_MS;
    f.cut_max_ns = (1000 + mu_prng_below(prng, 15000)) * MU_NS_PER_MS;
    if (mu_prng_below(prng, 2) == 0) {
        f.pause_every_ns = (500 + mu_prng_below(prng, 4000)) * MU_NS_PER_MS;
        f.pause_max_ns = (1000 + mu_prng_below(prng, 15000)) * MU_NS_PER_MS;
    }
    return f;
}

SIM_SCENARIO(agent, "agent",
             "whole agents: one generation at a time, all reaped, the budget kept, all end",
             draw_faults, false, run_agents(sim, AGENTS_PLANT_NOTHING, false))
SIM_SCENARIO(agent_warm, "agent-warm",
             "agents with standbys, some of whose zygotes refuse or die: the same promises",
             draw_faults, false,
             run_world(sim, (struct agents_world){.sim = sim, .warm = true}, FAULTY_NS))
SIM_SCENARIO(agent_fence, "agent-fence",
             "agents that are cut off, paused and killed: one world at a time, no restart charged",
             draw_cuts, false, run_agents(sim, AGENTS_PLANT_NOTHING, true))
/* An agent is killed every hour, and is back within ten minutes. */
static struct mu_sim_faults draw_losses(struct mu_prng *prng)
{
    struct mu_sim_faults f = mu_sim_faults_none();

    (void)prng;
    f.kill_every_ns = 3600 * MU_NS_PER_S;
    f.down_max_ns = 600 * MU_NS_PER_S;
    return f;
}

SIM_SCENARIO(agent_hourly, "agent-hourly",
             "one job that loses a node every hour, and has no restart to spend", draw_losses,
             false, run_hourly(sim))
SIM_SCENARIO(agent_numb, "agent-numb",
             "planted bug: agents that do not notice that they are cut off", draw_cuts, true,
             run_agents(sim, AGENTS_PLANT_NUMB, true))
SIM_SCENARIO(agent_early, "agent-early",
             "planted bug: an agent starts workers before the descendants of the last are gone",
             draw_faults, true, run_agents(sim, AGENTS_PLANT_EARLY, false))
SIM_SCENARIO(agent_spendthrift, "agent-spendthrift",
             "planted bug: a server that forgets how many restarts were spent", draw_faults, true,
             run_agents(sim, AGENTS_PLANT_SPENDTHRIFT, false))
