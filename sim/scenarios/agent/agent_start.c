/*
 * The beginning of a job: two agents of "2:3" on one machine, or on two, started at the same moment
 * or a little apart. The agent that can bind the endpoint hosts the rendezvous; then they meet,
 * exchange their ranks and start workers. No other agent comes, and nothing is lost on the way but
 * time: dials are refused or slow, timers late, bytes come one by one. All workers run before long.
 */
#include <inttypes.h>

#include <muster/log.h>

#include "core/alloc.h"
#include "scenarios/scenarios.h"
#include "service/agent/agent_internal.h"
#include "sim_child.h"

#define STARTERS 2
#define BEGUN_NS (15 * MU_NS_PER_S) /* when workers must run on both */
#define ENDED_NS (30 * MU_NS_PER_S)

struct starting;

struct starter {
    struct starting *world;
    uint32_t number;
    struct mu_sim_host *host;
    struct mu_sim_proc *proc;
    struct mu_env *env;
    struct mu_agent_service *agent;
    uint32_t attempts;
    bool done;
    char config[160];
    const char *argv[2];
    const char *inherited[1];
};

struct starting {
    struct mu_sim *sim;
    uint32_t last_call_ms;
    struct starter agents[STARTERS];
    const char *script[3];
    char sleep[24];
};

static int on_exec(void *arg, struct mu_sim_host *host, const struct mu_spawn *what,
                   const char *const **ret_script)
{
    (void)host;
    (void)what;
    *ret_script = ((struct starting *)arg)->script;
    return 0;
}

static void on_log(void *context, const char *line)
{
    struct starter *s = context;

    mu_sim_note(s->world->sim, s->proc, "%s", line);
}

static int on_prepare(void *context, const struct mu_agent_attempt *attempt, struct mu_errmsg *msg)
{
    struct starter *s = context;

    (void)attempt;
    (void)msg;
    s->attempts++;
    return 0;
}

static size_t on_output(void *context, uint32_t local_rank, struct mu_child *child,
                        enum mu_stream stream, struct mu_span in)
{
    (void)context;
    (void)local_rank;
    (void)child;
    (void)stream;
    return in.len;
}

static size_t on_tail(void *context, uint32_t local_rank, uint8_t *buf, size_t cap)
{
    (void)context;
    (void)local_rank;
    (void)buf;
    (void)cap;
    return 0;
}

static void on_exited(void *context, const struct mu_agent_worker_end *end)
{
    (void)context;
    (void)end;
}

static void on_gone(void *context, const struct mu_agent_attempt *attempt)
{
    (void)context;
    (void)attempt;
}

static void on_ended(void *context, const struct mu_agent_verdict *v)
{
    struct starter *s = context;

    if (v->outcome != MU_AGENT_SUCCEEDED) {
        mu_sim_fail(s->world->sim, "agent %" PRIu32 " ended: %s: %s", s->number,
                    mu_agent_outcome_name(v->outcome), v->text);
    }
    mu_agent_service_free(s->agent);
}

static void on_freed(void *context)
{
    struct starter *s = context;

    s->done = true;
    s->agent = NULL;
    mu_sim_exit(s->env);
}

static int start_agent(struct mu_env *env, void *arg)
{
    struct starter *s = arg;
    struct mu_agent_service_config c = mu_agent_service_config_defaults();
    struct mu_errmsg msg = {{0}};
    int rc;

    s->env = env;
    (void)snprintf(s->config, sizeof(s->config),
                   "name=a%" PRIu32 ",addr=host0,last_call_timeout=%" PRIu32 ".%03" PRIu32,
                   s->number, s->world->last_call_ms / 1000, s->world->last_call_ms % 1000);
    s->argv[0] = "worker";
    c.policy.workers = 1;
    c.policy.trace = mu_sim_trace(env);
    c.rdzv = (struct mu_rdzv_params){.backend = "muster",
                                     .endpoint = "host0:29400",
                                     .run_id = "run",
                                     .nodes_min = STARTERS,
                                     .nodes_max = STARTERS + 1,
                                     .config = s->config};
    c.argv = s->argv;
    c.inherited = s->inherited;
    rc = mu_agent_service_new(env, &c,
                              &(struct mu_agent_service_events){.log = on_log,
                                                                .prepare = on_prepare,
                                                                .output = on_output,
                                                                .tail = on_tail,
                                                                .exited = on_exited,
                                                                .gone = on_gone,
                                                                .ended = on_ended,
                                                                .freed = on_freed,
                                                                .context = s},
                              &s->agent, &msg);
    if (rc != 0) {
        mu_sim_fail(s->world->sim, "agent %" PRIu32 " did not start: %s", s->number, msg.text);
        mu_sim_exit(env);
        return 0;
    }
    mu_agent_service_start(s->agent);
    return 0;
}

static void come(struct mu_sim *sim, void *arg)
{
    struct starter *s = arg;

    (void)sim;
    s->proc = mu_sim_proc_new(s->host,
                              &(struct mu_sim_program){.name = s->number == 0 ? "first" : "second",
                                                       .start = start_agent,
                                                       .arg = s,
                                                       .flags = MU_SIM_KEEP_ALIVE});
}

static bool has_begun(void *arg)
{
    const struct starting *w = arg;

    for (uint32_t i = 0; i < STARTERS; i++) {
        if (w->agents[i].attempts == 0) {
            return false;
        }
    }
    return true;
}

static bool has_ended(void *arg)
{
    const struct starting *w = arg;

    return w->agents[0].done && w->agents[1].done;
}

static void run_start(struct mu_sim *sim)
{
    struct mu_prng *prng = mu_sim_prng(sim);
    struct starting w = {.sim = sim};
    struct mu_sim_host *hosts[STARTERS];
    bool together = mu_prng_below(prng, 2) == 0;

    muster_log_set(NULL, NULL, MUSTER_LOG_ERROR);
    w.last_call_ms = (uint32_t)(mu_prng_below(prng, 2) == 0 ? 1000 : 1 + mu_prng_below(prng, 300));
    (void)snprintf(w.sleep, sizeof(w.sleep), "sleep=%" PRIu64, 1 + mu_prng_below(prng, 2000));
    w.script[0] = w.sleep;
    w.script[1] = "exit=0";
    mu_sim_set_exec(sim, on_exec, &w);
    hosts[0] = mu_sim_host_new(sim, "host0");
    hosts[1] = mu_prng_below(prng, 3) == 0 ? mu_sim_host_new(sim, "host1") : hosts[0];
    for (uint32_t i = 0; i < STARTERS; i++) {
        struct starter *s = &w.agents[i];

        *s = (struct starter){.world = &w, .number = i, .host = hosts[i]};
        (void)mu_sim_at(sim, together ? 0 : mu_prng_below(prng, 5 * MU_NS_PER_MS), come, s);
    }
    if (!mu_sim_run_until(sim, BEGUN_NS, has_begun, &w)) {
        for (uint32_t i = 0; i < STARTERS; i++) {
            mu_sim_note(sim, w.agents[i].proc, "agent %" PRIu32 " is %s", i,
                        w.agents[i].agent == NULL
                            ? "gone"
                            : mu_agent_state_name(w.agents[i].agent->machine.state));
        }
        mu_sim_fail(sim, "no workers, long after both have come");
    }
    mu_sim_heal(sim);
    if (!mu_sim_run_until(sim, ENDED_NS, has_ended, &w)) {
        mu_sim_fail(sim, "the two do not end");
    }
    muster_log_set(NULL, NULL, MUSTER_LOG_WARN);
}

static uint64_t at_most(uint64_t value, uint64_t most)
{
    return value < most ? value : most;
}

/* Nothing is lost, but everything takes time, though not so long that a beat is not answered. */
static struct mu_sim_faults draw_slow(struct mu_prng *prng)
{
    struct mu_sim_faults f = mu_sim_faults_draw(prng);

    f.cut_every_ns = 0;
    f.kill_every_ns = 0;
    f.reset_every_ns = 0;
    f.latency_max_ns = at_most(f.latency_max_ns, 5 * MU_NS_PER_MS);
    f.latency_min_ns = at_most(f.latency_min_ns, f.latency_max_ns);
    f.spike_max_ns = at_most(f.spike_max_ns, 50 * MU_NS_PER_MS);
    f.ns_per_byte = (uint32_t)at_most(f.ns_per_byte, 1000);
    f.pause_max_ns = at_most(f.pause_max_ns, 300 * MU_NS_PER_MS);
    f.dial_slow_max_ns = at_most(f.dial_slow_max_ns, MU_NS_PER_S);
    f.timer_late_max_ns = at_most(f.timer_late_max_ns, 100 * MU_NS_PER_MS);
    return f;
}

SIM_SCENARIO(agent_start, "agent-start",
             "two agents of 2:3 that begin together: one hosts, and workers run soon", draw_slow,
             false, run_start(sim))
