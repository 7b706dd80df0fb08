/* One node of the rendezvous' world: what it does with its handler, and what it is told. */
#include "scenarios/rdzv/rdzv_world.h"

#include <inttypes.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "service/rdzv/c10d.h"

#define STARVED_MAX  20                   /* failures for lack of memory until it starts again */
#define AGAIN_MAX_NS (50 * MU_NS_PER_MS)  /* how long a node takes to join again */
#define SLACK_NS     (500 * MU_NS_PER_MS) /* added to every deadline */
#define FREE_NS      (8 * MU_NS_PER_S)    /* when a handler must be freed: it may leave first */

static void open_handler(struct rdzv_life *l);

/* --- wishes ----------------------------------------------------------------------------------- */

static void note(struct rdzv_life *l, const char *what, const char *more)
{
    mu_sim_note(l->node->world->sim, l->node->proc, "%s %s%s%s", l->node->name, what,
                more[0] == '\0' ? "" : ": ", more);
}

static void think(struct rdzv_life *l, uint64_t max_ns)
{
    uint64_t ns = max_ns == 0 ? 0 : mu_prng_below(&l->prng, max_ns);

    mu_env_timer_arm(l->env, &l->timer, mu_mono_add_ns(mu_env_now(l->env).mono, ns));
}

static void phase(struct rdzv_node *n, enum rdzv_phase at)
{
    n->phase = at;
    n->since_ns = mu_sim_now_ns(n->world->sim);
}

/* Nodes that could host remember what they were told in memory only. */
static void forget(struct rdzv_node *n)
{
    struct rdzv_world *w = n->world;

    w->server_lives += w->setup->endpoints != 0 ? 1 : 0;
    w->anew = w->anew || n->number < w->setup->endpoints;
}

static void join(struct rdzv_life *l)
{
    struct rdzv_node *n = l->node;

    note(l, n->phase == RDZV_IN ? "gives its round up and joins" : "joins", "");
    if (n->world->setup->plant != RDZV_PLANT_DEAF || n->number != 0) {
        rounds_out(&n->world->rounds, n->number);
    }
    phase(n, RDZV_JOINING);
    l->calling = true;
    mu_rdzv_join(l->handler);
    l->calling = false;
}

static void leave(struct rdzv_life *l)
{
    struct rdzv_node *n = l->node;

    note(l, "leaves", "");
    forget(n);
    rounds_out(&n->world->rounds, n->number);
    phase(n, RDZV_LEAVING);
    l->calling = true;
    mu_rdzv_leave(l->handler);
    l->calling = false;
}

static void close_run(struct rdzv_life *l)
{
    struct rdzv_node *n = l->node;

    if (n->closing || n->over) {
        return;
    }
    note(l, "closes the run", "");
    n->closing = true;
    n->close_ns = mu_sim_now_ns(n->world->sim);
    l->calling = true;
    mu_rdzv_close_run(l->handler);
    l->calling = false;
}

static void free_handler(struct rdzv_life *l)
{
    struct rdzv_node *n = l->node;

    note(l, "frees its handler", "");
    forget(n);
    rounds_out(&n->world->rounds, n->number);
    n->closing = false;
    phase(n, RDZV_FREEING);
    mu_env_timer_arm(l->env, &l->timer, MU_MONO_NEVER);
    l->calling = true;
    mu_rdzv_free(l->handler);
    l->calling = false;
}

static void crash(struct mu_sim *sim, void *arg)
{
    struct rdzv_node *n = arg;
    struct mu_prng *prng = mu_sim_prng(sim);

    if (n->world->healed || !mu_sim_proc_alive(n->proc)) {
        return;
    }
    mu_sim_kill(n->proc, MU_SIM_KILL_PROCESS);
    if (mu_prng_below(prng, 2) == 0) {
        n->names++; /* It comes back under another name. */
    }
    mu_sim_restart(n->proc);
}

/* Chooses what a node does once it has worked for a while; the weights are drawn for each seed. */
static enum rdzv_deed draw_deed(struct rdzv_life *l)
{
    const uint32_t *weights = l->node->world->churn;
    uint64_t sum = 0;
    uint64_t at;

    for (int i = 0; i < RDZV_DEEDS; i++) {
        sum += weights[i];
    }
    at = mu_prng_below(&l->prng, sum);
    for (int i = 0; i < RDZV_DEEDS; i++) {
        if (at < weights[i]) {
            return (enum rdzv_deed)i;
        }
        at -= weights[i];
    }
    return RDZV_DEED_GO_ON;
}

static void act(struct rdzv_life *l)
{
    struct rdzv_world *w = l->node->world;

    switch (draw_deed(l)) {
    case RDZV_DEED_GO_ON:
        break;
    case RDZV_DEED_FAIL:
        if (l->node->phase == RDZV_IN) {
            join(l);
        }
        break;
    case RDZV_DEED_LEAVE:
        leave(l);
        return;
    case RDZV_DEED_REOPEN:
        free_handler(l);
        return;
    case RDZV_DEED_CRASH:
        (void)mu_sim_at(w->sim, mu_sim_now_ns(w->sim), crash, l->node);
        return;
    case RDZV_DEED_CLOSE:
        close_run(l);
        break;
    case RDZV_DEEDS:
        break;
    }
    think(l, w->work_max_ns);
}

/* What the node waited for is there: it need not think any longer. */
static void thought(struct mu_timer *timer)
{
    struct rdzv_life *l = MU_CONTAINER_OF(timer, struct rdzv_life, timer);
    struct rdzv_node *n = l->node;
    bool sulks = n->world->setup->plant == RDZV_PLANT_SULKY && n->number == 0 && n->endings != 0;

    if (n->world->leaving) {
        return; /* rdzv_node_go() will handle it. */
    }
    if (l->handler == NULL) {
        open_handler(l);
        return;
    }
    if ((n->over || n->done) && n->phase != RDZV_LEAVING && n->phase != RDZV_FREEING) {
        free_handler(l);
        return;
    }
    switch (n->phase) {
    case RDZV_OUT:
        if (!sulks) {
            join(l);
            think(l, n->world->work_max_ns);
        }
        break;
    case RDZV_BETWEEN:
        if (!n->world->healed && mu_prng_below(&l->prng, 8) == 0) {
            leave(l);
        } else if (!sulks) {
            join(l);
            think(l, n->world->work_max_ns);
        }
        break;
    case RDZV_JOINING:
    case RDZV_IN:
        if (!n->world->healed) {
            act(l);
        } else if (n->world->setup->plant == RDZV_PLANT_RESTLESS && n->number == 0) {
            if (n->world->calm && n->phase == RDZV_IN) {
                join(l);
            }
            think(l, n->world->work_max_ns);
        }
        break;
    case RDZV_LEAVING:
    case RDZV_FREEING:
        break;
    }
}

/* --- events ----------------------------------------------------------------------------------- */

/* A callback has come: checks whether this node may be told anything now. */
static struct rdzv_life *told(void *context, const char *what, const char *more)
{
    struct rdzv_life *l = context;
    struct mu_sim *sim = l->node->world->sim;

    note(l, what, more);
    if (l->calling) {
        mu_sim_fail(sim, "%s was told \"%s\" from inside of a call", l->node->name, what);
    }
    if (l->handler == NULL) {
        mu_sim_fail(sim, "%s was told \"%s\" by a handler that is freed", l->node->name, what);
    }
    return l;
}

static void unexpected(struct rdzv_life *l, const char *what)
{
    static const char *const phases[] = {"out",     "joining", "in a round",
                                         "between", "leaving", "freeing its handler"};

    mu_sim_fail(l->node->world->sim, "%s was told \"%s\" while %s", l->node->name, what,
                phases[l->node->phase]);
}

/* Changes what a node was told, if it has a planted bug. */
static void misread(struct rdzv_node *n, struct mu_rdzv_assignment *a)
{
    enum rdzv_plant plant = n->world->setup->plant;
    const struct rounds_node *known = &n->world->rounds.nodes[n->number];

    if (n->number != 0) {
        return;
    }
    if (plant == RDZV_PLANT_DIZZY && known->ever) {
        a->rank = known->rank;
        a->member_count = 0;
    }
    if (plant == RDZV_PLANT_LOOSE && a->rank + 1 < a->world) {
        a->world--;
        a->member_count = 0;
    }
    if (plant == RDZV_PLANT_GHOST && known->fenced) {
        a->incarnation--;
    }
}

static void on_assigned(void *context, const struct mu_rdzv_assignment *assignment)
{
    struct rdzv_life *l = told(context, "assigned", assignment->store);
    struct rdzv_node *n = l->node;
    struct mu_rdzv_assignment a = *assignment;
    struct mu_errmsg msg;

    mu_sim_note(n->world->sim, n->proc,
                "%s: incarnation %" PRIu64 " round %" PRIu64 " rank %" PRIu32 " of %" PRIu32,
                n->name, a.incarnation, a.round, a.rank, a.world);
    if (n->phase != RDZV_JOINING) {
        unexpected(l, "assigned");
        return;
    }
    if (n->world->setup->plant == RDZV_PLANT_FORGETFUL && n->number == 0) {
        return; /* The node never notices. */
    }
    if (n->world->setup->final) {
        a.incarnation = n->run; /* Another run counts as another incarnation. */
    }
    misread(n, &a);
    if (a.world < n->world->nodes_min || a.world > n->world->nodes_max) {
        if (n->world->setup->plant == RDZV_PLANT_NOTHING) {
            mu_sim_fail(n->world->sim, "%s: a world of %" PRIu32, n->name, a.world);
        }
    }
    if (rounds_assigned(&n->world->rounds, n->number, l->handler->node, n->world->server_lives, &a,
                        &msg) != 0) {
        mu_sim_fail(n->world->sim, "%s", msg.text);
        return;
    }
    n->assignments++;
    l->starved = 0;
    phase(n, RDZV_IN);
    think(l, n->world->work_max_ns);
}

static void on_ended(void *context, const struct mu_rdzv_ending *ending)
{
    struct rdzv_life *l = told(context, "ended", ending->text);
    struct rdzv_node *n = l->node;
    struct mu_errmsg msg;

    if (n->world->setup->plant == RDZV_PLANT_FORGETFUL && n->number == 0) {
        return;
    }
    if (n->phase != RDZV_IN) {
        unexpected(l, "ended");
        return;
    }
    n->endings++;
    if (n->world->setup->plant == RDZV_PLANT_DEAF && n->number == 0) {
        phase(n, RDZV_BETWEEN);
        think(l, AGAIN_MAX_NS);
        return;
    }
    if (rounds_ended(&n->world->rounds, n->number, ending->round, &msg) != 0) {
        mu_sim_fail(n->world->sim, "%s", msg.text);
        return;
    }
    phase(n, RDZV_BETWEEN);
    think(l, AGAIN_MAX_NS);
}

static void on_waiting(void *context, uint32_t count)
{
    struct rdzv_life *l = told(context, "waiting", "");

    (void)count;
    if (l->node->world->setup->plant == RDZV_PLANT_FORGETFUL && l->node->number == 0) {
        return;
    }
    if (l->node->phase != RDZV_IN) {
        unexpected(l, "waiting");
    }
}

static void on_closed(void *context)
{
    struct rdzv_life *l = told(context, "closed", "");
    struct rdzv_node *n = l->node;

    if (n->over) {
        mu_sim_fail(n->world->sim, "%s was told twice that the run is closed", n->name);
    }
    if (n->phase == RDZV_JOINING) {
        mu_sim_fail(n->world->sim, "%s was told of the end while its join had none", n->name);
    }
    n->closing = false;
    n->over = true;
    n->shut = true;
    n->knows = true;
    if (n->phase == RDZV_LEAVING || n->phase == RDZV_FREEING) {
        return;
    }
    if (!n->world->setup->final) { /* If it is final, a round goes on for its members. */
        rounds_out(&n->world->rounds, n->number);
        phase(n, RDZV_OUT);
    }
    think(l, AGAIN_MAX_NS);
}

/* Returns whether a node may be told this: most errors only when something is wrong. */
static bool is_fair(struct rdzv_life *l, int status)
{
    struct rdzv_world *w = l->node->world;

    switch (status) {
    case MUSTER_ERDZV_CLOSED:
    case MUSTER_ERDZV_GRACEFUL:
        return w->closes || w->leaving || w->restarts_max != UINT32_MAX;
    case MUSTER_ERDZV_RESTARTS:
        return w->restarts_max != UINT32_MAX;
    case MUSTER_ERDZV_LOSSES:
        return w->setup->endpoints != 0; /* The losses of all terms are counted together. */
    case MUSTER_ERDZV_TIMEOUT:
    case MUSTER_ERDZV_CONN:
        return true;
    case MUSTER_ERDZV_LOST:
        return true;
    case MUSTER_ERDZV_EXCLUDED:
        return w->excludes;
    case MUSTER_ENOMEM:
        return w->memory;
    default:
        return false;
    }
}

static void on_failed(void *context, int status, const char *text)
{
    struct rdzv_life *l = told(context, "failed", text);
    struct rdzv_node *n = l->node;

    if (n->phase != RDZV_JOINING && n->phase != RDZV_IN && n->phase != RDZV_BETWEEN) {
        unexpected(l, "failed");
        return;
    }
    if (!is_fair(l, status)) {
        mu_sim_fail(n->world->sim, "%s failed with %s: %s", n->name, muster_errname(status), text);
    }
    rounds_out(&n->world->rounds, n->number);
    phase(n, RDZV_OUT);
    n->failures++;
    n->knows = n->knows || status == MUSTER_ERDZV_CLOSED || status == MUSTER_ERDZV_GRACEFUL;
    n->shut = n->shut || status == MUSTER_ERDZV_CLOSED || status == MUSTER_ERDZV_GRACEFUL;
    n->done = status == MUSTER_ERDZV_CLOSED || status == MUSTER_ERDZV_RESTARTS ||
              status == MUSTER_ERDZV_GRACEFUL || status == MUSTER_ERDZV_LOSSES ||
              (status == MUSTER_ENOMEM && ++l->starved == STARVED_MAX);
    think(l, AGAIN_MAX_NS);
}

static void on_left(void *context)
{
    struct rdzv_life *l = told(context, "left", "");

    if (l->node->phase != RDZV_LEAVING) {
        unexpected(l, "left");
        return;
    }
    phase(l->node, RDZV_OUT);
    if (l->node->world->leaving) {
        l->exiting = true;
        free_handler(l);
        return;
    }
    think(l, l->node->world->work_max_ns);
}

static void on_close_failed(void *context, int status, const char *text)
{
    struct rdzv_life *l = told(context, "close failed", text);

    if (!l->node->closing || !is_fair(l, status)) {
        unexpected(l, "close failed");
    }
    l->node->closing = false;
}

static void on_record(void *context, const struct mu_rdzv_record *record)
{
    struct rdzv_life *l = context;

    if (mu_sim_tracing(l->node->world->sim)) {
        note(l, record->name, record->message);
    }
    if (strcmp(record->name, "muster.entered") == 0 && strstr(record->message, "spare") != NULL) {
        l->node->since_ns = mu_sim_now_ns(l->node->world->sim); /* perhaps for this step only */
    }
}

static void on_freed(void *context)
{
    struct rdzv_life *l = told(context, "freed", "");
    struct rdzv_node *n = l->node;

    if (n->phase != RDZV_FREEING) {
        unexpected(l, "freed");
    }
    rounds_out(&n->world->rounds, n->number);
    if (n->shut && n->world->setup->final) {
        n->run++;
    }
    n->closing = false;
    n->over = false;
    n->shut = false;
    n->done = false;
    l->handler = NULL;
    phase(n, RDZV_OUT);
    if (l->exiting) {
        struct mu_env *env = l->env;

        mu_env_timer_arm(env, &l->timer, MU_MONO_NEVER);
        n->life = NULL;
        mu_free(l);
        mu_sim_exit(env);
        return;
    }
    think(l, AGAIN_MAX_NS);
}

/* --- life ------------------------------------------------------------------------------------- */

static void format_config(struct rdzv_node *n, char *text, size_t cap)
{
    struct rdzv_world *w = n->world;
    int len;

    (void)snprintf(n->name, sizeof(n->name), "n%" PRIu32 "-%" PRIu32, n->number, n->names);
    len = snprintf(text, cap, "%saddr=host%" PRIu32 ",join_timeout=%" PRIu64 ".%03" PRIu64,
                   w->hosting || w->setup->begin != NULL ? "" : "is_host=false,", n->number,
                   w->join_timeout_ms / 1000, w->join_timeout_ms % 1000);
    MU_ASSERT(len > 0 && (size_t)len < cap);
    w->setup->configure(n, text + len, cap - (size_t)len);
}

static void open_handler(struct rdzv_life *l)
{
    struct rdzv_node *n = l->node;
    struct rdzv_world *w = n->world;
    char config[512];
    char run[16];
    struct mu_errmsg msg = {0};
    int rc;

    (void)snprintf(run, sizeof(run), "run%" PRIu64, n->run);
    format_config(n, config, sizeof(config));
    rounds_fresh(&w->rounds, n->number, w->server_lives);
    l->calling = true;
    rc = mu_rdzv_open(l->env,
                      &(struct mu_rdzv_params){.backend = w->setup->backend,
                                               .endpoint = w->setup->endpoint != NULL
                                                               ? w->setup->endpoint
                                                           : w->hosting ? "host0:29400"
                                                                        : "server:29400",
                                               .run_id = run,
                                               .nodes_min = w->nodes_min,
                                               .nodes_max = w->nodes_max,
                                               .config = config},
                      &(struct mu_rdzv_events){.assigned = on_assigned,
                                               .ended = on_ended,
                                               .waiting = on_waiting,
                                               .closed = on_closed,
                                               .failed = on_failed,
                                               .left = on_left,
                                               .close_failed = on_close_failed,
                                               .record = on_record,
                                               .freed = on_freed,
                                               .context = l},
                      &l->handler, &msg);
    l->calling = false;
    if (rc != 0) {
        l->handler = NULL;
        if (rc != MUSTER_ENOMEM || !w->memory) {
            mu_sim_fail(w->sim, "%s cannot open a handler: %s: %s", n->name, muster_errname(rc),
                        msg.text);
        }
        think(l, 2 * AGAIN_MAX_NS);
        return;
    }
    phase(n, RDZV_OUT);
    think(l, w->healed || mu_prng_below(&l->prng, 2) == 0 ? 0 : w->work_max_ns);
}

int rdzv_node_start(struct mu_env *env, void *arg)
{
    struct rdzv_node *n = arg;
    struct rdzv_life *l = mu_sim_calloc(sizeof(*l));
    uint64_t seed;

    l->node = n;
    l->env = env;
    mu_env_entropy(env, &seed, sizeof(seed));
    mu_prng_seed(&l->prng, seed);
    mu_timer_init(&l->timer, thought);
    n->life = l;
    open_handler(l);
    return 0;
}

void rdzv_node_killed(void *arg)
{
    struct rdzv_node *n = arg;

    forget(n);
    rounds_out(&n->world->rounds, n->number);
    n->life = NULL;
    n->closing = false;
    n->over = false;
    n->shut = false;
    n->done = false;
    phase(n, RDZV_OUT);
}

void rdzv_node_go(void *arg)
{
    struct rdzv_life *l = arg;

    l->exiting = true;
    if (l->handler == NULL) {
        l->node->life = NULL;
        mu_env_timer_arm(l->env, &l->timer, MU_MONO_NEVER);
        mu_sim_exit(l->env);
        mu_free(l);
    } else if (l->node->phase == RDZV_OUT) {
        free_handler(l);
    } else if (l->node->phase != RDZV_LEAVING && l->node->phase != RDZV_FREEING) {
        mu_env_timer_arm(l->env, &l->timer, MU_MONO_NEVER);
        leave(l);
    }
}

void rdzv_node_close(void *arg)
{
    close_run(arg);
}

/* --- deadlines -------------------------------------------------------------------------------- */

/* Returns whether the node has waited since `since` for more than `ns`, and has been awake for more
 * than `more`. */
static bool is_late(const struct rdzv_node *n, uint64_t since, uint64_t ns, uint64_t more)
{
    uint64_t slack = SLACK_NS + n->world->late_ns + ns / 1000;
    uint64_t now = mu_sim_now_ns(n->world->sim);

    return now > since + ns + slack && now > mu_sim_proc_awake_ns(n->proc) + more + slack;
}

void rdzv_node_note_spare(struct rdzv_node *n)
{
    bool spare = n->world->setup->may_wait(n);

    if (n->spare && !spare) {
        n->since_ns = mu_sim_now_ns(n->world->sim);
    }
    n->spare = spare;
}

void rdzv_node_check_deadlines(struct rdzv_node *n)
{
    struct rdzv_world *w = n->world;
    uint64_t once_ns = w->join_timeout_ms * MU_NS_PER_MS + w->setup->answer_ns;
    uint64_t join_ns = once_ns + (w->setup->join_factor - 1) * w->join_timeout_ms * MU_NS_PER_MS;

    if (n->life == NULL) {
        return;
    }
    if (n->phase == RDZV_JOINING && is_late(n, n->since_ns, join_ns, once_ns) &&
        !w->setup->may_wait(n)) {
        if (n->spare) { /* It is no longer spare, since this very step. */
            n->spare = false;
            n->since_ns = mu_sim_now_ns(w->sim);
            return;
        }
        mu_sim_fail(w->sim, "%s: a join of %.3f s has not ended after its deadline", n->name,
                    (double)(mu_sim_now_ns(w->sim) - n->since_ns) / 1e9);
    }
    if (n->phase == RDZV_LEAVING && is_late(n, n->since_ns, w->setup->leave_ns, 0)) {
        mu_sim_fail(w->sim, "%s has not left", n->name);
    }
    if (n->phase == RDZV_FREEING && is_late(n, n->since_ns, FREE_NS, 0)) {
        mu_sim_fail(w->sim, "%s: its handler is not freed", n->name);
    }
    if (n->closing && is_late(n, n->close_ns, w->setup->close_ns, 0)) {
        mu_sim_fail(w->sim, "%s has not closed the run", n->name);
    }
}

bool rdzv_c10d_may_wait(const struct rdzv_node *n)
{
    const struct mu_rdzv_c10d *h =
        n->life == NULL || n->life->handler == NULL
            ? NULL
            : MU_CONTAINER_OF(n->life->handler, struct mu_rdzv_c10d, base);
    const struct mu_rdzv_member *m =
        h == NULL ? NULL : mu_rdzv_state_find(&h->machine.state, &h->machine.node);

    return m != NULL && m->spare;
}
