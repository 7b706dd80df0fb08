/*
 * The hang watchdog of whole agents: one to four of them, each on its own host with workers, and
 * the native rendezvous on a server. What can be seen of a worker (sim.h: mu_sim_set_peek) follows
 * a truth that the scenario keeps: it computes, by itself or in a descendant, writes, waits for
 * others, is stuck elsewhere, stopped, or held by a debugger. Machines fall asleep, with all that
 * is on them, and agents are paused while their workers go on.
 *
 * - A hang is told only if all ranks have stood still for about the hang time.
 * - An agent tells a hang once, and its end once.
 * - After all faults have ended, each agent tells a hang in time, names the ranks that are missing,
 *   and tells that it is over.
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include <muster/log.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "proto/stacks/group.h"
#include "scenarios/agent/agent_hang_world.h"
#include "scenarios/scenarios.h"

#define SCENES        12 /* while there are faults */
#define HANGS         2  /* after them */
#define BEGIN_NS      (60 * MU_NS_PER_S)
#define END_NS        (60 * MU_NS_PER_S)
#define CALM_NS       (5 * MU_NS_PER_S)
#define ASK_NS        (4 * MU_NS_PER_S)     /* agents are asked for stacks before a hang is told */
#define PAUSE_MAX_NS  (1500 * MU_NS_PER_MS) /* a node that is silent for longer is lost */
#define DROWSY_MAX_NS (300 * MU_NS_PER_MS)  /* between the waking of an agent and of its workers */

static uint32_t draw(struct hang_world *w, uint32_t below)
{
    return (uint32_t)mu_prng_below(mu_sim_prng(w->sim), below);
}

/* Called before and after each change of the truth. */
static void end_silence(struct hang_world *w)
{
    uint64_t now = mu_sim_now_ns(w->sim);

    if (w->still_since_ns != UINT64_MAX && now - w->still_since_ns > w->interval_ns) {
        w->silence_ns = now - w->still_since_ns;
        w->silence_end_ns = now;
    }
    w->still_since_ns = UINT64_MAX;
}

static void begin_silence(struct hang_world *w)
{
    for (uint32_t i = 0; i < hang_rank_count(w); i++) {
        if (!hang_is_still(w->truths[i].act)) {
            return;
        }
    }
    w->still_since_ns = mu_sim_now_ns(w->sim);
}

/* --- what an agent tells ---------------------------------------------------------------------- */

static void on_log(void *context, const char *line)
{
    struct hang_node *n = context;

    mu_sim_note(n->world->sim, n->proc, "%s", line);
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

/* Only who has judged can be held to what was true then. */
static void check_silence(struct hang_node *n)
{
    struct hang_world *w = n->world;
    uint64_t now = mu_sim_now_ns(w->sim);
    uint64_t hang_ns = w->hang_ms * MU_NS_PER_MS;
    uint64_t least = hang_ns < w->slack_ns ? 0 : hang_ns - w->slack_ns;
    bool lasts = w->still_since_ns != UINT64_MAX && now - w->still_since_ns >= least;
    bool lasted = w->silence_ns >= least && now - w->silence_end_ns <= w->stale_ns;
    /* Before a machine slept, it may have said that its workers stand still. */
    bool stale = w->napper != NULL && w->napper != n && now <= w->napped_ns + w->stale_ns;

    if (!lasts && !lasted && !stale) {
        mu_sim_fail(w->sim,
                    "agent %" PRIu32 " tells a hang of %" PRIu64 " ms: all were silent for %" PRIu64
                    " ms, %" PRIu64 " ms ago, and are for %" PRIu64,
                    n->number, w->hang_ms, w->silence_ns / MU_NS_PER_MS,
                    (now - w->silence_end_ns) / MU_NS_PER_MS,
                    w->still_since_ns == UINT64_MAX ? 0 : (now - w->still_since_ns) / MU_NS_PER_MS);
    }
}

static void on_hang(void *context, const struct mu_hang *h)
{
    struct hang_node *n = context;
    struct hang_world *w = n->world;

    if (h->over == !n->hung) {
        mu_sim_fail(w->sim, "agent %" PRIu32 " tells %s twice", n->number,
                    h->over ? "the end of a hang" : "a hang");
    }
    n->hung = !h->over;
    n->told += h->over ? 0 : 1;
    n->told_over += h->over ? 1 : 0;
    if (!h->over) {
        (void)snprintf(n->missing, sizeof(n->missing), "%s", h->split ? "?" : h->missing);
    }
    if (!h->over && n->agent->round->rank == 0) {
        check_silence(n);
    }
}

static void on_started(void *context, const struct mu_agent_attempt *attempt)
{
    struct hang_node *n = context;

    (void)attempt;
    n->hung = false; /* what is known of other workers is forgotten */
    n->world->spawned++;
}

static void on_ended(void *context, const struct mu_agent_verdict *v)
{
    struct hang_node *n = context;

    if (!n->world->leaving) {
        mu_sim_fail(n->world->sim, "agent %" PRIu32 " ended: %s", n->number, v->text);
    }
    mu_agent_service_free(n->agent);
}

static void on_freed(void *context)
{
    struct hang_node *n = context;

    n->done = true;
    n->agent = NULL;
    mu_sim_exit(n->env);
}

/* --- programs --------------------------------------------------------------------------------- */

static int on_exec(void *arg, struct mu_sim_host *host, const struct mu_spawn *what,
                   const char *const **ret_script)
{
    (void)host;
    (void)what;
    *ret_script = ((struct hang_world *)arg)->script;
    return 0;
}

static int start_agent(struct mu_env *env, void *arg)
{
    struct hang_node *n = arg;
    struct hang_world *w = n->world;
    struct mu_agent_service_config c = mu_agent_service_config_defaults();
    struct mu_errmsg msg = {{0}};
    int rc;

    n->env = env;
    (void)snprintf(n->config, sizeof(n->config),
                   "is_host=false,name=a%" PRIu32 ",addr=host%" PRIu32 ",last_call_timeout=0.1",
                   n->number, n->number);
    n->argv[0] = "worker";
    c.policy.workers = w->workers;
    c.policy.restarts_max = 100;
    c.policy.trace = mu_sim_trace(env);
    c.hang_ms = w->hang_ms;
    c.straggle_ms = 2000;
    c.rdzv = (struct mu_rdzv_params){.backend = "muster",
                                     .endpoint = "server:29400",
                                     .run_id = "run",
                                     .nodes_min = w->node_count,
                                     .nodes_max = w->node_count,
                                     .config = n->config};
    c.argv = n->argv;
    c.inherited = n->inherited;
    rc = mu_agent_service_new(env, &c,
                              &(struct mu_agent_service_events){.log = on_log,
                                                                .output = on_output,
                                                                .tail = on_tail,
                                                                .started = on_started,
                                                                .hang = on_hang,
                                                                .ended = on_ended,
                                                                .freed = on_freed,
                                                                .context = n},
                              &n->agent, &msg);
    if (rc != 0) {
        mu_sim_fail(w->sim, "agent %" PRIu32 " did not start: %s", n->number, msg.text);
        mu_sim_exit(env);
        return 0;
    }
    mu_agent_service_start(n->agent);
    return 0;
}

static void server_stopped(void *context, int status, const char *why)
{
    struct hang_world *w = context;
    struct mu_env *env = w->server_env;

    if (!w->leaving) {
        mu_sim_fail(w->sim, "the server gave up: %d: %s", status, why == NULL ? "" : why);
    }
    mu_store_server_free(w->server);
    w->server = NULL;
    mu_sim_exit(env);
}

static int start_server(struct mu_env *env, void *arg)
{
    struct hang_world *w = arg;
    struct mu_store_server_config config = mu_store_server_config_defaults();
    struct mu_errmsg msg = {{0}};

    w->server_env = env;
    config.listen = (struct mu_addr){.kind = MU_ADDR_TCP, .port = 29400, .host = "0.0.0.0"};
    config.stopped = server_stopped;
    config.context = w;
    return mu_store_server_start(env, &config, &w->server, &msg);
}

/* --- planted bugs ----------------------------------------------------------------------------- */

static void commit_bug(struct hang_node *n)
{
    struct mu_agent_watchdog *d = &n->agent->watchdog;
    struct mu_agent_round *r = n->agent->round;

    if (!d->sampling || r == NULL || mu_sim_proc_awake_ns(n->proc) > mu_sim_now_ns(n->world->sim)) {
        return;
    }
    switch (n->world->plant) {
    case HANG_PLANT_SLEEPLESS:
        d->machine.config.interval_ns = 1000 * MU_NS_PER_S; /* nothing is late */
        break;
    case HANG_PLANT_FORGETFUL:
        if (r->rank == 0 && d->run.hangs && !d->asking) {
            d->run.hangs = false;
        }
        break;
    case HANG_PLANT_DEAF:
        if (r->rank != 0) {
            d->read_at = mu_env_now(n->env).mono;
        }
        break;
    case HANG_PLANT_MUTE:
        if (r->rank != 0) {
            d->said_still = false;
        }
        break;
    case HANG_PLANT_SWAPPED:
        if (n->world->workers > 1) {
            d->machine.workers[0].rank = n->agent->attempt.ranks.base + 1;
            d->machine.workers[1].rank = n->agent->attempt.ranks.base;
        }
        break;
    case HANG_PLANT_LIARS:
        if (r->rank != 0) {
            d->machine.workers[0].rank = n->lie;
        }
        break;
    case HANG_PLANT_NOTHING:
    case HANG_PLANT_CHILDLESS:
        break;
    }
}

static void check_step(struct mu_sim *sim, void *arg)
{
    struct hang_world *w = arg;

    (void)sim;
    for (uint32_t i = 0; i < w->node_count; i++) {
        if (w->nodes[i].agent != NULL && mu_sim_proc_alive(w->nodes[i].proc)) {
            commit_bug(&w->nodes[i]);
        }
    }
}

/* --- the story -------------------------------------------------------------------------------- */

static void note_acts(struct hang_world *w)
{
    static const char letters[] = "CDWTwsS"; /* as in enum act */
    char acts[RANKS_MAX + 1] = "";

    for (uint32_t i = 0; i < hang_rank_count(w); i++) {
        acts[i] = letters[w->truths[i].act];
    }
    mu_sim_note(w->sim, NULL, "acts: %s", acts);
}

/* All ranks do something, and one of them is not still. */
static void play_healthy(struct hang_world *w)
{
    uint64_t now = mu_sim_now_ns(w->sim);

    end_silence(w);
    for (uint32_t i = 0; i < hang_rank_count(w); i++) {
        hang_set_act(w, i, (enum act)draw(w, ACT_STOPPED + 1), now);
    }
    hang_set_act(w, draw(w, hang_rank_count(w)), (enum act)draw(w, ACT_WAIT), now);
    note_acts(w);
}

/* All wait for the victims, which are a bit each. */
static void play_hang(struct hang_world *w, uint32_t victims, enum act how)
{
    end_silence(w);
    for (uint32_t i = 0; i < hang_rank_count(w); i++) {
        hang_set_act(w, i, (victims >> i & 1) != 0 ? how : ACT_WAIT, mu_sim_now_ns(w->sim));
    }
    begin_silence(w);
    note_acts(w);
}

/* A machine sleeps: its agent, and its workers, which may need a little longer to wake up. */
static void play_nap(struct hang_world *w)
{
    struct hang_node *n = &w->nodes[draw(w, w->node_count)];
    uint64_t ns = mu_prng_below(mu_sim_prng(w->sim), PAUSE_MAX_NS);
    uint64_t up = mu_sim_now_ns(w->sim) + ns;

    if (n->agent == NULL || n->agent->round == NULL) {
        return;
    }
    mu_sim_note(w->sim, n->proc, "sleeps for %" PRIu64 " ms", ns / MU_NS_PER_MS);
    end_silence(w);
    mu_sim_pause(n->proc, ns);
    w->napper = n;
    w->napped_ns = up;
    for (uint32_t i = 0; i < hang_rank_count(w); i++) {
        uint32_t base = n->agent->attempt.ranks.base;
        bool here = i >= base && i < base + w->workers;

        hang_set_act(w, i, here ? ACT_COMPUTE : ACT_WAIT,
                     here ? up + mu_prng_below(mu_sim_prng(w->sim), DROWSY_MAX_NS)
                          : mu_sim_now_ns(w->sim));
    }
}

/* The ranks of less than half, so that nobody has to guess. */
static uint32_t draw_victims(struct hang_world *w)
{
    uint32_t count = hang_rank_count(w);
    uint32_t most = (count - 1) / 2;
    uint32_t victims = 0;

    for (uint32_t i = 0, n = 1 + draw(w, most == 0 ? 1 : most); i < n && most != 0; i++) {
        victims |= UINT32_C(1) << draw(w, count);
    }
    return victims;
}

static void play_scene(struct hang_world *w)
{
    uint64_t hang_ns = w->hang_ms * MU_NS_PER_MS;

    switch (draw(w, 4)) {
    case 0:
        play_hang(w, draw_victims(w), draw(w, 2) == 0 ? ACT_STUCK : ACT_STOPPED);
        mu_sim_run_for(w->sim, mu_prng_below(mu_sim_prng(w->sim), 3 * hang_ns));
        break;
    case 1:
        play_nap(w);
        mu_sim_run_for(w->sim, PAUSE_MAX_NS + DROWSY_MAX_NS);
        break;
    default:
        play_healthy(w);
        mu_sim_run_for(w->sim, mu_prng_below(mu_sim_prng(w->sim), 3 * hang_ns));
        break;
    }
    play_healthy(w); /* long enough for it to be seen */
    mu_sim_run_for(w->sim, 2 * w->slack_ns);
}

static bool all_told(void *arg)
{
    const struct hang_world *w = arg;

    for (uint32_t i = 0; i < w->node_count; i++) {
        if (!w->nodes[i].hung) {
            return false;
        }
    }
    return true;
}

static bool none_hung(void *arg)
{
    const struct hang_world *w = arg;

    for (uint32_t i = 0; i < w->node_count; i++) {
        if (w->nodes[i].hung) {
            return false;
        }
    }
    return true;
}

static void check_names(struct hang_world *w, uint32_t victims)
{
    uint32_t ranks[RANKS_MAX];
    uint32_t count = 0;
    char expected[64] = "";

    for (uint32_t i = 0; i < hang_rank_count(w); i++) {
        if ((victims >> i & 1) != 0) {
            ranks[count++] = i;
        }
    }
    if (count != 0) {
        (void)mu_groups_ranges(expected, sizeof(expected), ranks, count);
    }
    for (uint32_t i = 0; i < w->node_count; i++) {
        if (strcmp(w->nodes[i].missing, expected) != 0) {
            mu_sim_fail(w->sim, "agent %" PRIu32 " misses ranks '%s', which are '%s'", i,
                        w->nodes[i].missing, expected);
        }
    }
}

/* Nothing goes wrong any more but the job. */
static void play_calm(struct hang_world *w)
{
    uint64_t hang_ns = w->hang_ms * MU_NS_PER_MS;

    for (uint32_t i = 0; i < HANGS && mu_sim_failure(w->sim) == NULL; i++) {
        uint32_t victims = draw_victims(w);

        play_healthy(w);
        mu_sim_run_for(w->sim, CALM_NS + hang_ns);
        if (!none_hung(w)) {
            mu_sim_fail(w->sim, "a run that moves is said to hang");
        }
        play_hang(w, victims, draw(w, 2) == 0 ? ACT_STUCK : ACT_STOPPED);
        if (!mu_sim_run_until(w->sim, 2 * hang_ns + CALM_NS + ASK_NS, all_told, w)) {
            mu_sim_fail(w->sim, "a hang is not told by all");
        }
        check_names(w, victims);
        mu_sim_run_for(w->sim, mu_prng_below(mu_sim_prng(w->sim), 2 * hang_ns));
        play_healthy(w);
        if (!mu_sim_run_until(w->sim, hang_ns + CALM_NS, none_hung, w)) {
            mu_sim_fail(w->sim, "the end of a hang is not told by all");
        }
    }
}

static bool all_started(void *arg)
{
    const struct hang_world *w = arg;

    return w->spawned >= w->node_count;
}

static void send_term(void *arg)
{
    mu_agent_service_signal(arg, SIGTERM);
}

static void drain_server(void *arg)
{
    mu_store_server_drain(arg);
}

static bool all_gone(void *arg)
{
    const struct hang_world *w = arg;
    bool gone = true;

    for (uint32_t i = 0; i < w->node_count; i++) {
        gone = gone && w->nodes[i].done;
    }
    return gone;
}

static bool server_gone(void *arg)
{
    return ((const struct hang_world *)arg)->server == NULL;
}

/* In the middle of a hang, or not. */
static void leave(struct hang_world *w)
{
    if (draw(w, 2) == 0) {
        play_hang(w, draw_victims(w), ACT_STUCK);
        mu_sim_run_for(w->sim, mu_prng_below(mu_sim_prng(w->sim), 2 * w->hang_ms * MU_NS_PER_MS));
    }
    w->leaving = true;
    for (uint32_t i = 0; mu_sim_failure(w->sim) == NULL && i < w->node_count; i++) {
        if (w->nodes[i].agent != NULL) {
            mu_sim_call(w->nodes[i].proc, send_term, w->nodes[i].agent);
        }
    }
    if (!mu_sim_run_until(w->sim, END_NS, all_gone, w)) {
        mu_sim_fail(w->sim, "the agents do not end");
    }
    if (mu_sim_failure(w->sim) == NULL) {
        mu_sim_call(w->server_proc, drain_server, w->server);
        if (!mu_sim_run_until(w->sim, END_NS, server_gone, w)) {
            mu_sim_fail(w->sim, "the server does not end");
        }
    }
}

static void set_up(struct hang_world *w)
{
    const struct mu_sim_faults *f = mu_sim_faults(w->sim);

    w->node_count = 1 + draw(w, NODES_MAX);
    w->workers = 1 + draw(w, WORKERS_MAX);
    w->hang_ms = 1000 + draw(w, draw(w, 2) == 0 ? 2000 : 20000);
    if (w->plant == HANG_PLANT_SLEEPLESS) { /* a nap is as long as a hang */
        w->node_count = 1;
        w->hang_ms = 1000;
    }
    w->interval_ns = (w->hang_ms < 5000 ? 250 : w->hang_ms / 20) * MU_NS_PER_MS;
    w->stale_ns = ASK_NS + w->hang_ms * MU_NS_PER_MS;
    /* A worker may have moved at the beginning of an interval, and what an agent has said of its
     * workers may be as old as it was paused, or as its message was on the way. */
    w->slack_ns = 3 * w->interval_ns + f->pause_max_ns + f->timer_late_max_ns + f->work_max_ns +
                  4 * (f->latency_max_ns + f->spike_max_ns) + f->cut_max_ns;
    w->still_since_ns = UINT64_MAX;
    w->script[0] = "sleep=4000000000";
    w->script[1] = "exit=0";
    mu_sim_set_exec(w->sim, on_exec, w);
    mu_sim_set_peek(w->sim, hang_peek(w));
    w->server_proc = mu_sim_proc_new(
        mu_sim_host_new(w->sim, "server"),
        &(struct mu_sim_program){
            .name = "serve", .start = start_server, .arg = w, .flags = MU_SIM_KEEP_ALIVE});
    for (uint32_t i = 0; i < w->node_count; i++) {
        struct hang_node *n = &w->nodes[i];
        char host[16];

        (void)snprintf(host, sizeof(host), "host%" PRIu32, i);
        *n = (struct hang_node){.world = w,
                                .number = i,
                                .host = mu_sim_host_new(w->sim, host),
                                .lie = draw(w, draw(w, 2) == 0 ? RANKS_MAX : UINT32_MAX)};
        n->proc = mu_sim_proc_new(n->host, &(struct mu_sim_program){.name = "agent",
                                                                    .start = start_agent,
                                                                    .arg = n,
                                                                    .flags = MU_SIM_KEEP_ALIVE});
    }
    mu_sim_add_checker(w->sim, check_step, w);
}

static void run_hang(struct mu_sim *sim, enum hang_plant plant)
{
    struct hang_world w = {.sim = sim, .plant = plant};

    muster_log_set(NULL, NULL, MUSTER_LOG_ERROR);
    set_up(&w);
    if (!mu_sim_run_until(sim, BEGIN_NS, all_started, &w)) {
        mu_sim_fail(sim, "the workers do not start");
    }
    for (uint32_t i = 0; i < SCENES && mu_sim_failure(sim) == NULL; i++) {
        play_scene(&w);
    }
    mu_sim_heal(sim);
    play_healthy(&w);
    mu_sim_run_for(sim, BEGIN_NS);
    if (mu_sim_failure(sim) == NULL && plant != HANG_PLANT_LIARS) {
        play_calm(&w);
    }
    leave(&w);
    muster_log_set(NULL, NULL, MUSTER_LOG_WARN);
}

static uint64_t at_most(uint64_t value, uint64_t most)
{
    return value < most ? value : most;
}

/* Agents live, and are not silent for so long that their node is lost. */
static struct mu_sim_faults draw_hang_faults(struct mu_prng *prng)
{
    struct mu_sim_faults f = mu_sim_faults_draw(prng);

    if (mu_prng_below(prng, 3) == 0) {
        return mu_sim_faults_none();
    }
    f.kill_every_ns = 0;
    if (f.reset_every_ns != 0 && f.reset_every_ns < 2 * MU_NS_PER_S) {
        f.reset_every_ns = 2 * MU_NS_PER_S;
    }
    f.latency_max_ns = at_most(f.latency_max_ns, 20 * MU_NS_PER_MS);
    f.latency_min_ns = at_most(f.latency_min_ns, f.latency_max_ns);
    f.spike_max_ns = at_most(f.spike_max_ns, 100 * MU_NS_PER_MS);
    f.ns_per_byte = (uint32_t)at_most(f.ns_per_byte, 1000);
    f.cut_max_ns = at_most(f.cut_max_ns, 500 * MU_NS_PER_MS);
    f.pause_max_ns = at_most(f.pause_max_ns, 500 * MU_NS_PER_MS);
    f.work_max_ns = at_most(f.work_max_ns, 200 * MU_NS_PER_MS);
    f.timer_late_max_ns = at_most(f.timer_late_max_ns, 200 * MU_NS_PER_MS);
    return f;
}

SIM_SCENARIO(agent_hang, "agent-hang",
             "the hang watchdog: told in time, once, with the missing ranks, and only if it is one",
             draw_hang_faults, false, run_hang(sim, HANG_PLANT_NOTHING))

SIM_SCENARIO(agent_hang_liars, "agent-hang-liars",
             "the hang watchdog with agents that say anything: no alarm without a hang",
             draw_hang_faults, false, run_hang(sim, HANG_PLANT_LIARS))

#define PLANTED(id, bug, words)                                                                    \
    SIM_SCENARIO(agent_hang_##id, "agent-hang-" #id, "planted bug: " words, draw_hang_faults,      \
                 true, run_hang(sim, bug))

PLANTED(sleepless, HANG_PLANT_SLEEPLESS, "time that a machine slept counts as silence")
PLANTED(forgetful, HANG_PLANT_FORGETFUL, "an agent forgets that it has told a hang")
PLANTED(deaf, HANG_PLANT_DEAF, "agents do not read what the first one tells")
PLANTED(mute, HANG_PLANT_MUTE, "an agent does not say that its workers move again")
PLANTED(childless, HANG_PLANT_CHILDLESS, "descendants of workers are overlooked")
PLANTED(swapped, HANG_PLANT_SWAPPED, "an agent mixes up two of its workers")
