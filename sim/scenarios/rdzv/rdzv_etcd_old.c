/*
 * Scenario: nodes of PyTorch's etcd rendezvous (backend `etcd`) on a fake etcd of one to three
 * members, which go down and let requests time out, done or not. Nodes join, work for a while, and
 * then go on, report that their workers failed, leave and come back, or are killed by the faults.
 *
 * Checked: one world for each version, ranks unique, no node in two rounds, versions only grow (the
 * checker of rounds); a join ends when its time is up; once all is healed all nodes come to one
 * round, and stay in it; and all leave nothing behind.
 */
#include "scenarios/scenarios.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "checkers/rounds.h"
#include "core/alloc.h"
#include "core/assert.h"
#include "fake_etcd2.h"
#include "service/rdzv/rdzv.h"

#define NODES_MAX   6
#define FAULTY_NS   (90 * MU_NS_PER_S)
#define CONVERGE_NS (240 * MU_NS_PER_S)
#define CALM_NS     (30 * MU_NS_PER_S)
#define GO_NS       (30 * MU_NS_PER_S)
#define SLACK_NS    (14 * MU_NS_PER_S) /* making the store may take a call's time longer */

struct world;
struct life;

struct node {
    struct world *world;
    uint32_t number;
    struct mu_sim_proc *proc;
    struct life *life; /* NULL while it is dead */
    bool joining;
    uint64_t since_ns;
    uint32_t news;
};

struct world {
    struct mu_sim *sim;
    struct fake_etcd2 *etcd;
    size_t members;
    uint32_t node_count;
    uint32_t nodes_min;
    uint32_t nodes_max;
    uint64_t timeout_ms;
    uint64_t last_call_ms;
    uint64_t notice_ms;
    uint64_t work_max_ns;
    struct node nodes[NODES_MAX];
    struct rounds rounds;
    bool healed;
    bool leaving;
};

/* A node's process. */
struct life {
    struct node *node;
    struct mu_env *env;
    struct mu_prng prng;
    struct mu_timer timer;
    struct mu_rdzv_handler *handler;
    bool in;
};

/* --- nodes ------------------------------------------------------------------------------------ */

static void think(struct life *l, uint64_t max_ns)
{
    mu_env_timer_arm(l->env, &l->timer,
                     mu_mono_add_ns(mu_env_now(l->env).mono, 1 + mu_prng_below(&l->prng, max_ns)));
}

static void join(struct life *l)
{
    struct node *n = l->node;

    rounds_out(&n->world->rounds, n->number);
    l->in = false;
    n->joining = true;
    n->since_ns = mu_sim_now_ns(n->world->sim);
    mu_rdzv_join(l->handler);
}

static void on_assigned(void *context, const struct mu_rdzv_assignment *a)
{
    struct life *l = context;
    struct node *n = l->node;
    struct mu_sim_heap *heap = mu_sim_outside();
    struct mu_errmsg msg;

    n->joining = false;
    n->news++;
    l->in = true;
    mu_sim_note(n->world->sim, n->proc, "rank %" PRIu32 " of %" PRIu32 " in %" PRIu64, a->rank,
                a->world, a->round);
    if (a->world < n->world->nodes_min || a->world > n->world->nodes_max) {
        mu_sim_fail(n->world->sim, "a world of %" PRIu32, a->world);
    } else if (rounds_assigned(&n->world->rounds, n->number, l->handler->node, 0, a, &msg) != 0) {
        mu_sim_fail(n->world->sim, "%s", msg.text);
    }
    mu_sim_inside(heap);
    think(l, n->world->work_max_ns);
}

static void on_ended(void *context, const struct mu_rdzv_ending *ending)
{
    struct life *l = context;
    struct node *n = l->node;
    struct mu_errmsg msg;

    n->news++;
    mu_sim_note(n->world->sim, n->proc, "ended: %s", ending->text);
    if (rounds_ended(&n->world->rounds, n->number, ending->round, &msg) != 0) {
        mu_sim_fail(n->world->sim, "%s", msg.text);
    }
    join(l);
}

static void on_failed(void *context, int status, const char *text)
{
    struct life *l = context;
    struct node *n = l->node;

    n->joining = false;
    n->news++;
    rounds_out(&n->world->rounds, n->number);
    mu_sim_note(n->world->sim, n->proc, "failed: %s", text);
    if (status != MUSTER_ERDZV_TIMEOUT && status != MUSTER_ERDZV_CONN) {
        mu_sim_fail(n->world->sim, "a join failed with %s: %s", muster_errname(status), text);
    }
    think(l, MU_NS_PER_S);
}

static void on_left(void *context)
{
    struct life *l = context;

    if (!l->node->world->leaving) {
        think(l, MU_NS_PER_S);
    } else {
        mu_rdzv_free(l->handler);
    }
}

static void on_waiting(void *context, uint32_t count)
{
    (void)context;
    (void)count;
}

static void on_closed(void *context)
{
    struct life *l = context;

    mu_sim_fail(l->node->world->sim, "a run that nobody closed is closed");
}

static void on_freed(void *context)
{
    struct life *l = context;
    struct mu_env *env = l->env;

    l->node->life = NULL;
    mu_env_timer_arm(env, &l->timer, MU_MONO_NEVER);
    mu_free(l);
    mu_sim_exit(env);
}

static void on_timer(struct mu_timer *timer)
{
    struct life *l = MU_CONTAINER_OF(timer, struct life, timer);
    struct node *n = l->node;

    if (n->world->leaving) {
        return;
    }
    if (!l->in) {
        join(l);
        return;
    }
    if (n->world->healed) {
        return;
    }
    switch (mu_prng_below(&l->prng, 4)) {
    case 0:
        join(l); /* Its workers failed. */
        break;
    case 1:
        rounds_out(&n->world->rounds, n->number);
        l->in = false;
        n->joining = false;
        mu_rdzv_leave(l->handler);
        break;
    default:
        think(l, n->world->work_max_ns);
        break;
    }
}

static int start_node(struct mu_env *env, void *arg)
{
    struct node *n = arg;
    struct world *w = n->world;
    struct life *l = mu_sim_calloc(sizeof(*l));
    static const char *const endpoints[] = {"e0", "e0,e1", "e0,e1,e2"};
    char config[128];
    const struct mu_rdzv_events events = {
        .assigned = on_assigned,
        .ended = on_ended,
        .waiting = on_waiting,
        .closed = on_closed,
        .failed = on_failed,
        .left = on_left,
        .freed = on_freed,
        .context = l,
    };
    struct mu_rdzv_params params = {
        .backend = "etcd",
        .endpoint = endpoints[w->members - 1],
        .run_id = "job",
        .nodes_min = w->nodes_min,
        .nodes_max = w->nodes_max,
        .config = config,
    };
    struct mu_errmsg msg = {{0}};

    (void)snprintf(
        config, sizeof(config),
        "timeout=%" PRIu64 ",last_call_timeout=%" PRIu64 ".%03" PRIu64 ",notice_delay=%" PRIu64,
        w->timeout_ms / 1000, w->last_call_ms / 1000, w->last_call_ms % 1000, w->notice_ms / 1000);
    l->node = n;
    l->env = env;
    mu_env_entropy(env, &l->prng.state, sizeof(l->prng.state));
    mu_timer_init(&l->timer, on_timer);
    rounds_fresh(&w->rounds, n->number, 0);
    n->life = l;
    if (mu_rdzv_open(env, &params, &events, &l->handler, &msg) != 0) {
        mu_sim_fail(w->sim, "the handler could not be opened: %s", msg.text);
        return 0;
    }
    think(l, 2 * MU_NS_PER_S);
    return 0;
}

static void node_killed(void *arg)
{
    struct node *n = arg;

    n->life = NULL;
    n->joining = false;
    rounds_out(&n->world->rounds, n->number);
}

/* --- the story -------------------------------------------------------------------------------- */

static void check_joins(struct mu_sim *sim, void *arg)
{
    struct world *w = arg;
    uint64_t limit =
        w->timeout_ms * MU_NS_PER_MS * 11 / 10 + SLACK_NS + mu_sim_faults(sim)->pause_max_ns;

    for (uint32_t i = 0; i < w->node_count; i++) {
        const struct node *n = &w->nodes[i];
        uint64_t since = n->since_ns;

        if (n->joining && n->life != NULL) {
            uint64_t awake = mu_sim_proc_awake_ns(n->proc);

            since = awake > since ? awake : since;
            if (mu_sim_now_ns(sim) > since + limit) {
                mu_sim_fail(sim, "the join of node %" PRIu32 " does not end", i);
            }
        }
    }
}

/* A member of the cluster goes down, or comes back; one of them is always there. */
static void shake(struct mu_sim *sim, void *arg)
{
    struct world *w = arg;
    struct mu_prng *prng = mu_sim_prng(sim);

    if (w->healed) {
        return;
    }
    for (size_t i = 0; i < w->members; i++) {
        fake_etcd2_down(w->etcd, i, mu_prng_below(prng, 4) == 0);
    }
    fake_etcd2_down(w->etcd, mu_prng_below(prng, w->members), false);
    MU_ASSERT(mu_sim_at(sim, mu_sim_now_ns(sim) + (1 + mu_prng_below(prng, 10)) * MU_NS_PER_S,
                        shake, w) == 0);
}

/* All nodes that have a place are in one complete round. */
static bool are_together(void *arg)
{
    struct world *w = arg;
    const struct rounds_world *round = rounds_only(&w->rounds);
    uint32_t places = w->node_count < w->nodes_max ? w->node_count : w->nodes_max;

    return round != NULL && round->size == places && rounds_whole(&w->rounds, round);
}

static uint32_t count_news(const struct world *w)
{
    uint32_t news = 0;

    for (uint32_t i = 0; i < w->node_count; i++) {
        /* A node that finds no place tries again and again. */
        news += rounds_of(&w->rounds, i) != NULL ? w->nodes[i].news : 0;
    }
    return news;
}

static void blame(struct world *w, const char *when)
{
    char text[256] = "";
    size_t len = 0;

    for (uint32_t i = 0; i < w->node_count; i++) {
        const struct rounds_world *round = rounds_of(&w->rounds, i);

        len += (size_t)snprintf(text + len, sizeof(text) - len, " %s%" PRIu64,
                                w->nodes[i].life == NULL ? "+"
                                : w->nodes[i].joining    ? "j"
                                                         : "",
                                round == NULL ? 0 : round->round);
    }
    mu_sim_fail(w->sim,
                "%s, %" PRIu32 " nodes are not in one round of %" PRIu32 " to %" PRIu32
                ":%s; the state is %.300s",
                when, w->node_count, w->nodes_min, w->nodes_max, text,
                etcd2_model_value(fake_etcd2_model(w->etcd),
                                  "/torchelastic/p2p/run_job/rdzv/active_version"));
}

static void leave_node(void *arg)
{
    struct node *n = arg;

    rounds_out(&n->world->rounds, n->number);
    n->joining = false;
    mu_rdzv_leave(n->life->handler);
}

static bool all_gone(void *arg)
{
    struct world *w = arg;

    for (uint32_t i = 0; i < w->node_count; i++) {
        if (w->nodes[i].life != NULL) {
            return false;
        }
    }
    return true;
}

static void set_up(struct world *w, struct mu_sim *sim, bool careless)
{
    static const char *const hosts[] = {"e0", "e1", "e2"};
    struct mu_prng *prng = mu_sim_prng(sim);

    w->sim = sim;
    w->members = 1 + mu_prng_below(prng, FAKE_ETCD2_MEMBERS);
    w->etcd =
        fake_etcd2_new(sim, hosts, w->members,
                       mu_prng_below(prng, 2) == 0 ? 0 : (uint32_t)mu_prng_below(prng, 30000));
    if (careless) {
        fake_etcd2_careless(w->etcd);
    }
    w->node_count = 2 + (uint32_t)mu_prng_below(prng, NODES_MAX - 1);
    w->nodes_min = 1 + (uint32_t)mu_prng_below(prng, w->node_count);
    w->nodes_max = w->nodes_min + (uint32_t)mu_prng_below(prng, w->node_count - w->nodes_min + 2);
    w->timeout_ms = (30 + mu_prng_below(prng, 90)) * 1000;
    /* Long enough for all earlier nodes to come: otherwise rounds of a few end for the others again
     * and again. */
    w->last_call_ms = 1000 + mu_prng_below(prng, 4000);
    w->notice_ms = mu_prng_below(prng, 6) * 1000;
    w->work_max_ns = (1 + mu_prng_below(prng, 30)) * MU_NS_PER_S;
    rounds_init(&w->rounds, w->node_count);
    for (uint32_t i = 0; i < w->node_count; i++) {
        struct node *n = &w->nodes[i];
        char host[16];

        *n = (struct node){.world = w, .number = i};
        (void)snprintf(host, sizeof(host), "host%" PRIu32, i);
        n->proc = mu_sim_proc_new(
            mu_sim_host_new(sim, host),
            &(struct mu_sim_program){
                .name = "node", .start = start_node, .killed = node_killed, .arg = n});
    }
    mu_sim_add_checker(sim, check_joins, w);
    shake(sim, w);
}

static void run_story(struct mu_sim *sim, bool careless)
{
    struct world *w = mu_sim_calloc(sizeof(*w));
    uint32_t news;

    set_up(w, sim, careless);
    mu_sim_run_for(sim, mu_sim_length_ns(sim, FAULTY_NS));
    w->healed = true;
    mu_sim_heal(sim);
    fake_etcd2_heal(w->etcd);
    for (size_t i = 0; i < w->members; i++) {
        fake_etcd2_down(w->etcd, i, false);
    }
    mu_sim_run_for(sim, mu_sim_faults(sim)->pause_max_ns);
    if (!mu_sim_run_until(sim, CONVERGE_NS, are_together, w)) {
        blame(w, "though all is healed");
    }
    /* A node may have announced that it waits before it was let in. */
    mu_sim_run_for(sim, CALM_NS);
    if (!mu_sim_run_until(sim, CONVERGE_NS, are_together, w)) {
        blame(w, "after a while");
    }
    news = count_news(w);
    mu_sim_run_for(sim, CALM_NS);
    if (w->nodes_max >= w->node_count && (news != count_news(w) || !are_together(w))) {
        blame(w, "though all was calm");
    }
    w->leaving = true;
    for (uint32_t i = 0; i < w->node_count; i++) {
        if (w->nodes[i].life != NULL && mu_sim_failure(sim) == NULL) {
            mu_sim_call(w->nodes[i].proc, leave_node, &w->nodes[i]);
        }
    }
    if (!mu_sim_run_until(sim, GO_NS, all_gone, w)) {
        blame(w, "though all were to go");
    }
    rounds_fini(&w->rounds);
    fake_etcd2_free(w->etcd);
    mu_free(w);
}

SIM_SCENARIO(rdzv_etcd_old, "rdzv-etcd-old",
             "nodes of PyTorch's etcd rendezvous on a fake etcd (v2) that fails",
             mu_sim_faults_draw, false, run_story(sim, false))
SIM_SCENARIO(rdzv_etcd_old_careless, "rdzv-etcd-old-careless",
             "the same with an etcd that swaps without comparing", mu_sim_faults_draw, true,
             run_story(sim, true))
