/* One agent of agent_world.h: its life, its workers, and its events. */
#include "scenarios/agent/agent_world.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "service/rdzv/muster.h"

uint32_t agents_draw(struct agents_world *w, uint32_t below)
{
    return (uint32_t)mu_prng_below(mu_sim_prng(w->sim), below);
}

/* --- workers ---------------------------------------------------------------------------------- */

static void say(struct agents_world *w, const char *word, uint32_t value)
{
    MU_ASSERT(w->word_count < AGENTS_WORDS_MAX);
    (void)snprintf(w->texts[w->word_count], sizeof(w->texts[0]), "%s=%" PRIu32, word, value);
    w->words[w->word_count] = w->texts[w->word_count];
    w->word_count++;
}

static void draw_oddity(struct agents_world *w)
{
    switch (agents_draw(w, 6)) {
    case 0:
        say(w, "ignore", SIGTERM);
        break;
    case 1:
        say(w, "child", agents_draw(w, 2) == 0 ? 0 : 1 + agents_draw(w, 3000));
        break;
    case 2:
        say(w, "daemon", agents_draw(w, 2) == 0 ? 0 : 1 + agents_draw(w, 3000));
        break;
    case 3:
        say(w, "ignore", SIGTERM);
        say(w, "child", 0);
        break;
    case 4:
        say(w, "flood", 1 + agents_draw(w, 100));
        break;
    default:
        if (!w->healed && !w->steady) {
            say(w, "sleep", 1 + agents_draw(w, w->work_max_ms));
            say(w, "raise", SIGSTOP);
        }
        break;
    }
}

struct agents_node *agents_node_of(struct agents_world *w, const struct mu_sim_host *host)
{
    for (uint32_t i = 0; i < w->node_count; i++) {
        if (w->nodes[i].host == host) {
            return &w->nodes[i];
        }
    }
    return NULL;
}

uint64_t agents_incarnation(const struct agents_life *l)
{
    /* A handler that is being freed is not the agent's any more. */
    return l->agent->rdzv == NULL
               ? 0
               : MU_CONTAINER_OF(l->agent->rdzv, struct mu_rdzv_muster, base)->member.incarnation;
}

/* --- the budget ------------------------------------------------------------------------------- */

static struct agents_meeting *find_meeting(struct agents_life *l, uint64_t round)
{
    struct agents_world *w = l->node->world;
    struct mu_rdzv_muster *rdzv = MU_CONTAINER_OF(l->agent->rdzv, struct mu_rdzv_muster, base);
    struct agents_meeting *m;

    for (uint32_t i = 0; i < w->meeting_count; i++) {
        m = &w->meetings[i];
        if (m->run == l->run && m->incarnation == rdzv->member.incarnation && m->round == round) {
            return m;
        }
    }
    if (w->meeting_count == AGENTS_MEETINGS) {
        mu_sim_fail(w->sim, "more than %d rounds", AGENTS_MEETINGS);
        return &w->meetings[0];
    }
    m = &w->meetings[w->meeting_count++];
    *m = (struct agents_meeting){.run = l->run,
                                 .incarnation = rdzv->member.incarnation,
                                 .round = round,
                                 .served_ns = w->served_ns};
    return m;
}

/* All agents that start in a round have spent the same budget, and not too much. It is no less than
 * in earlier rounds, unless nodes are lost: what was spent on the echo of a loss is given back. */
static void check_budget(struct agents_life *l, const struct mu_agent_attempt *attempt)
{
    struct agents_world *w = l->node->world;
    struct agents_meeting *m = find_meeting(l, attempt->round);
    uint32_t failed = 0;

    if (attempt->restart_count > w->restarts_max) {
        mu_sim_fail(w->sim, "restart %" PRIu32 " of %" PRIu32, attempt->restart_count,
                    w->restarts_max);
    }
    if (m->started && m->restart_count != attempt->restart_count) {
        mu_sim_fail(w->sim, "round %" PRIu64 " is restart %" PRIu32 " and %" PRIu32, m->round,
                    m->restart_count, attempt->restart_count);
    }
    m->started = true;
    m->restart_count = attempt->restart_count;
    for (uint32_t i = 0; i < w->meeting_count; i++) {
        const struct agents_meeting *o = &w->meetings[i];

        if (o->run != m->run || o->incarnation != m->incarnation || o == m) {
            continue;
        }
        failed += o->failed && o->round < m->round;
        if (w->quiet && o->started &&
            (o->round < m->round) != (o->restart_count < m->restart_count) &&
            o->restart_count != m->restart_count) {
            mu_sim_fail(w->sim,
                        "round %" PRIu64 " is restart %" PRIu32 ", %" PRIu64 " was %" PRIu32,
                        m->round, m->restart_count, o->round, o->restart_count);
        }
    }
    if (w->quiet && failed > w->restarts_max) {
        mu_sim_fail(w->sim, "workers start again after %" PRIu32 " failures of at most %" PRIu32,
                    failed, w->restarts_max);
    }
}

/* --- a worker's environment
 * -------------------------------------------------------------------- */

static const char *variable(const struct mu_spawn *what, const char *name)
{
    const char *v = mu_sim_process_variable(&(struct mu_sim_process){.envp = what->envp}, name);

    return v == NULL ? "" : v;
}

/* All workers of a round have one world and one meeting place, and each has its own rank. */
static void check_environment(struct agents_node *n, const struct mu_spawn *what)
{
    struct mu_sim *sim = n->world->sim;
    struct agents_meeting *m = find_meeting(n->life, n->life->agent->attempt.round);
    const char *world = variable(what, "WORLD_SIZE");
    unsigned long rank = strtoul(variable(what, "RANK"), NULL, 10);
    char master[sizeof(m->master)];

    (void)snprintf(master, sizeof(master), "%s:%s", variable(what, "MASTER_ADDR"),
                   variable(what, "MASTER_PORT"));
    if (m->world[0] == '\0') {
        (void)snprintf(m->world, sizeof(m->world), "%s", world);
        (void)snprintf(m->master, sizeof(m->master), "%s", master);
    }
    if (strcmp(m->world, world) != 0 || strcmp(m->master, master) != 0) {
        mu_sim_fail(sim, "workers of round %" PRIu64 " are told %s at %s, and %s at %s", m->round,
                    m->world, m->master, world, master);
    }
    if (rank >= strtoul(world, NULL, 10) || rank >= 64 || (m->ranks >> rank & 1) != 0) {
        mu_sim_fail(sim, "a second worker of round %" PRIu64 " is rank %lu of %s", m->round, rank,
                    world);
        return;
    }
    m->ranks |= UINT64_C(1) << rank;
}

static void forget_rank(struct agents_node *n, const struct mu_spawn *what)
{
    struct agents_meeting *m = find_meeting(n->life, n->life->agent->attempt.round);

    m->ranks &= ~(UINT64_C(1) << strtoul(variable(what, "RANK"), NULL, 10));
}

int agents_script(void *arg, struct mu_sim_host *host, const struct mu_spawn *what,
                  const char *const **ret_script)
{
    struct agents_world *w = arg;
    struct agents_node *n = agents_node_of(w, host);

    check_environment(n, what);
    memset((void *)w->words, 0, sizeof(w->words));
    w->word_count = 0;
    if (!w->healed && !w->quiet && !w->steady && agents_draw(w, 100) == 0) {
        if (what->from != NULL) {
            forget_rank(n, what); /* it is started again, plainly */
        }
        return -ENOENT;
    }
    if (agents_draw(w, 8) < w->odd_of_8) {
        draw_oddity(w);
    }
    if (w->work_end_ns != 0) {
        say(w, "sleep", (uint32_t)((w->work_end_ns - mu_sim_now_ns(w->sim)) / MU_NS_PER_MS));
    } else {
        say(w, "sleep", 1 + agents_draw(w, w->healed ? 1000 : w->work_max_ms));
    }
    if (!w->healed && agents_draw(w, 8) < w->fail_of_8) {
        int code = agents_draw(w, 2) == 0 ? SIGSEGV : SIGABRT;

        if (agents_draw(w, 2) == 0) {
            w->words[w->word_count++] = "err=Traceback (most recent call last):";
        }
        say(w, agents_draw(w, 2) == 0 ? "exit" : "raise", (uint32_t)code);
    } else {
        say(w, "exit", 0);
    }
    n->spawned++;
    *ret_script = w->words;
    return 0;
}

/* --- an agent's events ------------------------------------------------------------------------ */

static void on_log(void *context, const char *line)
{
    struct agents_life *l = context;

    mu_sim_note(l->node->world->sim, l->node->proc, "agent %" PRIu32 ": %s", l->node->number, line);
}

static int on_prepare(void *context, const struct mu_agent_attempt *attempt, struct mu_errmsg *msg)
{
    struct agents_life *l = context;
    struct agents_node *n = l->node;

    (void)msg;
    if (!n->gone) {
        mu_sim_fail(n->world->sim, "agent %" PRIu32 " starts workers before the last are gone",
                    n->number);
    }
    n->attempt++;
    n->spawned = 0;
    n->exited = 0;
    n->gone = false;
    (void)snprintf(l->mark, sizeof(l->mark), "ATTEMPT=%" PRIu64, n->attempt);
    check_budget(l, attempt);
    n->meeting = find_meeting(l, attempt->round);
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
    struct agents_life *l = context;
    struct agents_node *n = l->node;
    const struct mu_agent *m = &l->agent->machine;
    bool runs = m->state == MU_AGENT_IS_STARTING || m->state == MU_AGENT_IS_RUNNING;

    if ((n->exited >> end->local_rank & 1) != 0) {
        mu_sim_fail(n->world->sim, "agent %" PRIu32 " reaped worker %" PRIu32 " twice", n->number,
                    end->local_rank);
    }
    n->exited |= UINT32_C(1) << end->local_rank;
    if (end->exit_code != 0 && !end->stopped && runs && m->in_round) {
        find_meeting(l, l->agent->attempt.round)->failed = true;
    }
}

static void on_gone(void *context, const struct mu_agent_attempt *attempt)
{
    struct agents_life *l = context;
    struct agents_node *n = l->node;
    uint32_t exited = (uint32_t)__builtin_popcount(n->exited);

    (void)attempt;
    if (n->gone || exited != n->spawned) {
        mu_sim_fail(n->world->sim, "agent %" PRIu32 " reaped %" PRIu32 " of %" PRIu32 " workers%s",
                    n->number, exited, n->spawned, n->gone ? ", again" : "");
    }
    n->gone = true;
}

static void free_agent(void *arg)
{
    struct agents_life *l = arg;

    mu_agent_service_free(l->agent);
}

static void on_ended(void *context, const struct mu_agent_verdict *v)
{
    struct agents_life *l = context;
    struct agents_node *n = l->node;
    struct agents_world *w = n->world;

    mu_sim_note(w->sim, n->proc, "agent %" PRIu32 " ended: %s: %s", n->number,
                mu_agent_outcome_name(v->outcome), v->text);
    if (n->ended) {
        mu_sim_fail(w->sim, "agent %" PRIu32 " ended twice", n->number);
    }
    if (!n->gone) {
        mu_sim_fail(w->sim, "agent %" PRIu32 " ended before its workers: %s", n->number, v->text);
    }
    for (uint32_t i = 0; v->outcome == MU_AGENT_SUCCEEDED && i < v->worker_count; i++) {
        if (!v->workers[i].exited || v->workers[i].exit_code != 0) {
            mu_sim_fail(w->sim, "agent %" PRIu32 " succeeded, its worker %" PRIu32 " did not",
                        n->number, i);
        }
    }
    if (w->steady && v->outcome == MU_AGENT_FAILED) {
        mu_sim_fail(w->sim, "agent %" PRIu32 " failed, and no worker did: %s", n->number, v->text);
    }
    if (w->work_end_ns != 0 && v->outcome != MU_AGENT_SUCCEEDED &&
        v->outcome != MU_AGENT_GRACEFUL) {
        mu_sim_fail(w->sim, "agent %" PRIu32 " did not end well: %s", n->number, v->text);
    }
    n->ended = true;
    n->ended_ns = mu_sim_now_ns(w->sim);
    if (l->run == w->run && v->outcome != MU_AGENT_STOPPED) {
        w->run++;
    }
    free_agent(l);
}

static void start_again(struct mu_sim *sim, void *arg)
{
    struct agents_node *n = arg;

    (void)sim;
    if (!n->world->healed) {
        mu_sim_restart(n->proc);
    }
}

static void start_later(struct agents_node *n, uint32_t ms)
{
    struct agents_world *w = n->world;

    (void)mu_sim_at(w->sim, mu_sim_now_ns(w->sim) + ms * MU_NS_PER_MS, start_again, n);
}

static void on_freed(void *context)
{
    struct agents_life *l = context;
    struct agents_node *n = l->node;
    struct mu_env *env = l->env;

    if (!n->ended) {
        mu_sim_fail(n->world->sim, "agent %" PRIu32 " is freed and has not ended", n->number);
    }
    n->life = NULL;
    n->died_ns = mu_sim_now_ns(n->world->sim);
    mu_free(l);
    mu_sim_exit(env);
    if (n->world->supervised && !n->world->healed) {
        start_later(n, 1 + agents_draw(n->world, 2000));
    }
}

/* --- an agent's life -------------------------------------------------------------------------- */

static void configure(struct agents_life *l, struct mu_agent_service_config *c)
{
    struct agents_node *n = l->node;
    struct agents_world *w = n->world;
    char upscale[32] = "never";

    if (w->upscale_ms != UINT32_MAX) {
        (void)snprintf(upscale, sizeof(upscale), "%" PRIu32 ".%03" PRIu32, w->upscale_ms / 1000,
                       w->upscale_ms % 1000);
    }
    (void)snprintf(l->run_id, sizeof(l->run_id), "run%" PRIu32, l->run);
    (void)snprintf(l->config, sizeof(l->config),
                   "is_host=false,addr=host%" PRIu32 ",name=a%" PRIu32 "-%" PRIu32
                   ",max_restarts=%" PRIu32 ",join_timeout=%" PRIu32 ",last_call_timeout=%" PRIu32
                   ".%03" PRIu32 ",upscale_delay=%s",
                   n->number, n->number, n->lives, w->restarts_max, w->join_timeout_ms / 1000,
                   w->last_call_ms / 1000, w->last_call_ms % 1000, upscale);
    l->argv[0] = "worker";
    l->inherited[0] = l->mark;
    (void)snprintf(l->mark, sizeof(l->mark), "ATTEMPT=0");
    *c = mu_agent_service_config_defaults();
    c->policy.workers = w->workers;
    c->policy.restarts_max = w->restarts_max;
    c->policy.grace_ms = w->grace_ms;
    c->policy.kill_ms = 30000; /* Longer than any pause. */
    c->policy.exchange_ms = 10000;
    c->policy.exit_barrier_ms = 300000; /* Beyond the end of the run, so that an agent that waits in
                                           vain is found. */
    c->policy.trace = mu_sim_trace(l->env);
    c->store_ms = 10000;
    c->rdzv = (struct mu_rdzv_params){.backend = "muster",
                                      .endpoint = "server:29400",
                                      .run_id = l->run_id,
                                      .nodes_min = w->nodes_min,
                                      .nodes_max = w->node_count,
                                      .config = l->config};
    c->argv = l->argv;
    c->inherited = l->inherited;
}

/* Most zygotes do their work, some refuse it, and some die every few seconds. */
static void configure_standbys(struct agents_life *l, struct mu_agent_service_config *c)
{
    struct agents_world *w = l->node->world;
    uint32_t kind = agents_draw(w, 4);

    (void)snprintf(l->death, sizeof(l->death), "dies=%" PRIu32, 1 + agents_draw(w, 8000));
    l->zygote[0] = "zoo";
    l->zygote[1] = "zygote";
    l->zygote[2] = kind == 0 ? "refuse=no" : kind == 1 ? l->death : NULL;
    c->zygote = l->zygote;
}

int agents_node_start(struct mu_env *env, void *arg)
{
    struct agents_node *n = arg;
    struct agents_life *l = mu_sim_calloc(sizeof(*l));
    struct mu_agent_service_config config;
    struct mu_errmsg msg = {{0}};
    int rc;

    *l = (struct agents_life){.node = n, .env = env, .run = n->world->run};
    n->lives++;
    n->entered_ns = 0;
    n->gone = true;
    n->ended = false;
    configure(l, &config);
    if (n->world->warm) {
        configure_standbys(l, &config);
    }
    rc = mu_agent_service_new(env, &config,
                              &(struct mu_agent_service_events){.log = on_log,
                                                                .prepare = on_prepare,
                                                                .output = on_output,
                                                                .tail = on_tail,
                                                                .exited = on_exited,
                                                                .gone = on_gone,
                                                                .ended = on_ended,
                                                                .freed = on_freed,
                                                                .context = l},
                              &l->agent, &msg);
    if (rc != 0) {
        mu_free(l);
        mu_sim_exit(env);
        if (rc != MUSTER_ENOMEM || !n->world->memory) {
            mu_sim_fail(n->world->sim, "an agent did not start: %s", msg.text);
        }
        start_later(n, 100);
        return 0;
    }
    n->life = l;
    mu_agent_service_start(l->agent);
    return 0;
}

void agents_node_killed(void *arg)
{
    struct agents_node *n = arg;

    n->life = NULL;
    n->ended = false;
    n->died_ns = mu_sim_now_ns(n->world->sim);
}
