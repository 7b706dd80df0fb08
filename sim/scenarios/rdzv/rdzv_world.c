#include "scenarios/rdzv/rdzv_world.h"

#include <inttypes.h>
#include <string.h>

#include <muster/log.h>

#include "core/alloc.h"
#include "core/assert.h"

#define PORT      29400
#define GO_NS     (60 * MU_NS_PER_S) /* when all nodes must have gone */
#define SETTLE_NS (5 * MU_NS_PER_S)  /* longer than it takes to find out that one is lost */
#define CALM_NS   (30 * MU_NS_PER_S) /* longer than a join may take */

/* --- the server ------------------------------------------------------------------------------- */

static void restart_server(struct mu_sim *sim, void *arg)
{
    struct rdzv_world *w = arg;

    (void)sim;
    mu_sim_restart(w->server_proc);
}

/* A server that ends by itself is started again, as a supervisor would do. */
static void server_stopped(void *context, int status, const char *why)
{
    struct rdzv_serving *s = context;
    struct rdzv_world *w = s->world;
    struct mu_env *env = s->env;

    mu_sim_note(w->sim, w->server_proc, "server stopped: %d %s", status, why == NULL ? "" : why);
    if (!w->leaving && status != MUSTER_EDISK && !(status == MUSTER_ENOMEM && w->memory)) {
        mu_sim_fail(w->sim, "the server gave up: %s", why == NULL ? "" : why);
    }
    if (!w->leaving) {
        (void)mu_sim_at(w->sim, mu_sim_now_ns(w->sim) + MU_NS_PER_S, restart_server, w);
    }
    w->serving = NULL;
    mu_store_server_free(s->server);
    mu_free(s);
    mu_sim_exit(env);
}

static int open_server(struct rdzv_serving *s, struct mu_errmsg *reterr_msg)
{
    struct mu_store_server_config config = mu_store_server_config_defaults();
    int rc = 0;

    config.listen = (struct mu_addr){.kind = MU_ADDR_TCP, .port = PORT, .host = "0.0.0.0"};
    config.stopped = server_stopped;
    config.context = s;
    if (s->world->disk) {
        config.sync = MU_SYNC_ALWAYS;
        rc = mu_sim_disk_open(s->env, "data", &config.disk, reterr_msg);
    }
    if (rc == 0) {
        rc = mu_store_server_start(s->env, &config, &s->server, reterr_msg);
        if (rc != 0 && config.disk != NULL) {
            config.disk->ops->close(config.disk);
        }
    }
    return rc;
}

static int start_server(struct mu_env *env, void *arg)
{
    struct rdzv_world *w = arg;
    struct rdzv_serving *s = mu_sim_calloc(sizeof(*s));
    struct mu_errmsg msg = {0};
    int rc;

    s->world = w;
    s->env = env;
    rc = open_server(s, &msg);
    if (rc != 0) {
        mu_free(s);
        if ((rc == MUSTER_ENOMEM || rc == MUSTER_EADDR) && w->memory) {
            (void)mu_sim_at(w->sim, mu_sim_now_ns(w->sim) + 100 * MU_NS_PER_MS, restart_server, w);
            mu_sim_exit(env);
        } else {
            mu_sim_fail(w->sim, "the server did not start: %s: %s", muster_errname(rc), msg.text);
        }
        return 0;
    }
    w->serving = s;
    return 0;
}

static void server_killed(void *arg)
{
    struct rdzv_world *w = arg;

    w->serving = NULL;
}

static void drain_server(void *arg)
{
    struct rdzv_serving *s = arg;

    mu_store_server_drain(s->server);
}

/* --- relays ----------------------------------------------------------------------------------- */

/* A process that is a relay. */
struct relay {
    struct rdzv_world *world;
    struct mu_env *env;
    struct mu_sim_proc *proc;
    struct mu_store_server *server;
};

static void restart_relay(struct mu_sim *sim, void *arg)
{
    (void)sim;
    mu_sim_restart(arg);
}

static void relay_ended(struct relay *r)
{
    struct mu_env *env = r->env;

    if (!r->world->leaving) {
        (void)mu_sim_at(r->world->sim, mu_sim_now_ns(r->world->sim) + MU_NS_PER_S, restart_relay,
                        r->proc);
    }
    mu_free(r);
    mu_sim_exit(env);
}

static void relay_stopped(void *context, int status, const char *why)
{
    struct relay *r = context;

    if (status != MUSTER_ENOMEM || !r->world->memory) {
        mu_sim_fail(r->world->sim, "a relay gave up: %s", why == NULL ? "" : why);
    }
    mu_store_server_free(r->server);
    relay_ended(r);
}

static int start_relay(struct mu_env *env, void *arg)
{
    struct rdzv_world *w = arg;
    struct mu_store_server_config config = mu_store_server_config_defaults();
    struct relay *r = mu_sim_calloc(sizeof(*r));
    struct mu_errmsg msg = {0};
    struct mu_self self;
    int rc;

    mu_env_self(env, &self);
    *r = (struct relay){
        .world = w, .env = env, .proc = w->relay_procs[strcmp(self.host, "relay0") == 0 ? 0 : 1]};
    config.listen = (struct mu_addr){.kind = MU_ADDR_TCP, .port = PORT, .host = "0.0.0.0"};
    config.stopped = relay_stopped;
    config.context = r;
    config.backing = "tcp://server:29400";
    rc = mu_store_server_start(env, &config, &r->server, &msg);
    if (rc != 0) {
        if ((rc != MUSTER_ENOMEM && rc != MUSTER_EADDR) || !w->memory) {
            mu_sim_fail(w->sim, "a relay did not start: %s", msg.text);
        }
        relay_ended(r);
    }
    return 0;
}

static void make_relays(struct rdzv_world *w)
{
    for (size_t i = 0; i < RDZV_RELAYS && w->setup->relays; i++) {
        char name[16];

        (void)snprintf(name, sizeof(name), "relay%zu", i);
        w->relay_procs[i] =
            mu_sim_proc_new(mu_sim_host_new(w->sim, name),
                            &(struct mu_sim_program){
                                .name = "relay", .start = start_relay, .killed = NULL, .arg = w});
    }
}

/* --- checks ---------------------------------------------------------------------------------- */

static void find_server(struct rdzv_world *w)
{
    const struct rdzv_life *host = w->hosting ? w->nodes[0].life : NULL;
    struct mu_store_server *server = NULL;

    if (w->serving != NULL) {
        server = w->serving->server;
    } else if (host != NULL && host->handler != NULL) {
        server = w->setup->hosted(host);
    }
    if (server != w->server) {
        w->server = server;
        w->server_lives += server == NULL ? 0 : 1;
        w->seen_news = 0;
        if (server != NULL && w->setup->plant == RDZV_PLANT_RECOUNT) {
            server->hub.incarnation = 0;
        }
    }
}

/* After every step: no node waits for longer than it should. */
static void check_step(struct mu_sim *sim, void *arg)
{
    struct rdzv_world *w = arg;

    (void)sim;
    find_server(w);
    for (uint32_t i = 0; i < w->node_count; i++) {
        rdzv_node_check_deadlines(&w->nodes[i]);
    }
    if (w->setup->check != NULL) {
        w->setup->check(w);
    }
}

static uint32_t count_alive(const struct rdzv_world *w)
{
    uint32_t alive = 0;

    for (uint32_t i = 0; i < w->node_count; i++) {
        alive += w->nodes[i].life != NULL ? 1 : 0;
    }
    return alive;
}

/*
 * Returns whether all nodes are together: all nodes in a round are in the same one, which is
 * complete, and all others are spare, or late where late nodes are not let in.
 */
static bool are_together(void *arg)
{
    struct rdzv_world *w = arg;
    const struct rounds_world *round = rounds_only(&w->rounds);

    if (round == NULL || !rounds_whole(&w->rounds, round)) {
        return false;
    }
    for (uint32_t i = 0; i < w->node_count; i++) {
        if (w->nodes[i].closing) {
            return false; /* The close was requested while there were faults, and may still come. */
        }
        if (w->nodes[i].life != NULL && w->nodes[i].run != round->incarnation && w->setup->final) {
            return false; /* The node has not heard yet that its run is closed. */
        }
    }
    if (round->size < w->nodes_max && w->upscale_delay_ms == UINT64_MAX) {
        return true;
    }
    if (round->size < w->nodes_max && round->size < count_alive(w)) {
        return false;
    }
    for (uint32_t i = 0; i < w->node_count; i++) {
        struct rdzv_node *n = &w->nodes[i];
        bool is_in = n->phase == RDZV_IN && w->rounds.nodes[i].in;

        if (n->life != NULL && !is_in && !(n->phase == RDZV_JOINING && w->setup->may_wait(n))) {
            return false;
        }
    }
    return true;
}

static void blame(struct rdzv_world *w, const char *when)
{
    static const char phases[] = "ojibLF";
    char text[RDZV_NODES_MAX * 8 + 1] = "";
    size_t len = 0;

    for (uint32_t i = 0; i < w->node_count; i++) {
        const struct rdzv_node *n = &w->nodes[i];

        len += (size_t)snprintf(text + len, sizeof(text) - len, " %c%" PRIu64,
                                n->life == NULL ? '+' : phases[n->phase],
                                w->rounds.nodes[i].round % 10000);
    }
    mu_sim_fail(w->sim,
                "%s, the nodes are not in one round of %" PRIu32 " to %" PRIu32
                ", but (+ dead, out, joining, in, between, Leaving, Freeing):%s",
                when, w->nodes_min, w->nodes_max, text);
}

/* Returns how much all nodes together were told. */
static uint32_t count_news(const struct rdzv_world *w)
{
    uint32_t news = 0;

    for (uint32_t i = 0; i < w->node_count; i++) {
        const struct rdzv_node *n = &w->nodes[i];

        /* A late node that is not let in tries again and again. */
        news += n->assignments + n->endings + (w->upscale_delay_ms == UINT64_MAX ? 0 : n->failures);
    }
    return news;
}

/* All nodes meet and stay together: something may still have been on its way. */
static void meet(struct rdzv_world *w, const char *when)
{
    uint64_t until = mu_sim_now_ns(w->sim) + w->setup->converge_ns;
    uint32_t news;

    do {
        uint64_t now = mu_sim_now_ns(w->sim);

        if (now >= until || !mu_sim_run_until(w->sim, until - now, are_together, w)) {
            w->hopeless = w->setup->excused != NULL && w->setup->excused(w);
            if (!w->hopeless) {
                blame(w, when);
            }
            return;
        }
        news = count_news(w);
        mu_sim_run_for(w->sim, SETTLE_NS);
    } while (mu_sim_failure(w->sim) == NULL && (news != count_news(w) || !are_together(w)));
}

/* The common round lasts while nothing happens. */
static void stay_calm(struct rdzv_world *w)
{
    uint32_t news = count_news(w);

    w->calm = true;
    mu_sim_run_for(w->sim, CALM_NS);
    w->calm = false;
    if (count_news(w) != news || !are_together(w)) {
        blame(w, "though all was calm");
    }
}

size_t rdzv_config_delay(char *text, size_t cap, const char *key, uint64_t ms)
{
    int len = ms == UINT64_MAX ? snprintf(text, cap, ",%s=never", key)
              : ms == 0
                  ? snprintf(text, cap, ",%s=0", key)
                  : snprintf(text, cap, ",%s=%" PRIu64 ".%03" PRIu64, key, ms / 1000, ms % 1000);

    MU_ASSERT(len > 0 && (size_t)len < cap);
    return (size_t)len;
}

/* --- the story -------------------------------------------------------------------------------- */

static void draw_churn(struct rdzv_world *w)
{
    struct mu_prng *prng = mu_sim_prng(w->sim);

    w->churn[0] = 1 + (uint32_t)mu_prng_below(prng, 20);
    for (size_t i = 1; i < RDZV_DEEDS; i++) {
        w->churn[i] = mu_prng_below(prng, 2) == 0 ? 0 : 1 + (uint32_t)mu_prng_below(prng, 4);
    }
    if (!w->closes) {
        w->churn[RDZV_DEED_CLOSE] = 0;
    }
    w->work_max_ns =
        (20 + mu_prng_below(prng, mu_prng_below(prng, 2) == 0 ? 200 : 4000)) * MU_NS_PER_MS;
}

static uint64_t draw_delay_ms(struct mu_prng *prng)
{
    switch (mu_prng_below(prng, 4)) {
    case 0:
        return 0;
    case 1:
        return 1 + mu_prng_below(prng, 50);
    default:
        return 1 + mu_prng_below(prng, 1500);
    }
}

static void draw_terms(struct rdzv_world *w)
{
    const struct mu_sim_faults *f = mu_sim_faults(w->sim);
    struct mu_prng *prng = mu_sim_prng(w->sim);

    w->node_count =
        RDZV_NODES_MIN + (uint32_t)mu_prng_below(prng, RDZV_NODES_MAX - RDZV_NODES_MIN + 1);
    if (mu_prng_below(prng, 2) == 0) {
        w->node_count = RDZV_NODES_MIN + (uint32_t)mu_prng_below(prng, 3);
    }
    w->nodes_min = 1 + (uint32_t)mu_prng_below(prng, w->node_count);
    w->nodes_max = w->nodes_min + (uint32_t)mu_prng_below(prng, w->node_count - w->nodes_min + 2);
    w->join_timeout_ms = 1000 + mu_prng_below(prng, mu_prng_below(prng, 2) == 0 ? 4000 : 20000);
    w->last_call_ms = draw_delay_ms(prng);
    w->upscale_delay_ms = mu_prng_below(prng, 8) == 0 ? UINT64_MAX : draw_delay_ms(prng);
    /* If nodes give up and come back in turn, with less than a last call between, no last call ever
     * ends. */
    w->join_timeout_ms += w->node_count * w->last_call_ms +
                          (w->upscale_delay_ms == UINT64_MAX ? 0 : w->upscale_delay_ms);
    w->restarts_max = mu_prng_below(prng, 4) == 0 ? (uint32_t)mu_prng_below(prng, 10) : UINT32_MAX;
    w->target = mu_prng_below(prng, 4) == 0 ? w->node_count : 0;
    w->racks = w->node_count < 6 ? 1 : 3;
    w->excludes = w->node_count % 2 == 0;
    w->closes = mu_prng_below(prng, 3) == 0;
    w->hosting = !w->setup->relays && w->setup->hosted != NULL && mu_prng_below(prng, 5) == 0;
    w->disk = mu_prng_below(prng, 2) == 0;
    w->server_dies = mu_prng_below(prng, 2) == 0;
    w->late_ns = f->timer_late_max_ns;
    w->memory = f->alloc_fail_ppm != 0 || f->shortage_every_ns != 0;
    draw_churn(w);
    if (w->setup->tune != NULL) {
        w->setup->tune(w);
    }
}

static void set_up(struct rdzv_world *w)
{
    struct mu_prng *prng = mu_sim_prng(w->sim);

    draw_terms(w);
    rounds_init(&w->rounds, w->node_count);
    if (w->setup->begin != NULL) {
        w->setup->begin(w);
    } else if (!w->hosting) {
        w->server_proc = mu_sim_proc_new(
            mu_sim_host_new(w->sim, "server"),
            &(struct mu_sim_program){.name = "serve",
                                     .start = start_server,
                                     .killed = server_killed,
                                     .arg = w,
                                     .flags = w->server_dies ? 0 : MU_SIM_KEEP_ALIVE});
    }
    make_relays(w);
    for (uint32_t i = 0; i < w->node_count; i++) {
        struct rdzv_node *n = &w->nodes[i];
        char host[16];

        *n = (struct rdzv_node){
            .world = w, .number = i, .polls = w->setup->polling && mu_prng_below(prng, 3) == 0};
        (void)snprintf(host, sizeof(host), "host%" PRIu32, i);
        n->proc = mu_sim_proc_new(
            mu_sim_host_new(w->sim, host),
            &(struct mu_sim_program){
                .name = "node", .start = rdzv_node_start, .killed = rdzv_node_killed, .arg = n});
    }
    mu_sim_add_checker(w->sim, check_step, w);
}

static void heal(struct rdzv_world *w)
{
    uint64_t pause_ns = mu_sim_faults(w->sim)->pause_max_ns;

    w->healed = true;
    mu_sim_heal(w->sim);
    if (w->setup->heal != NULL) {
        w->setup->heal(w);
    }
    mu_sim_wall_set(w->sim);
    mu_sim_run_for(w->sim, pause_ns);
}

/* One member of the round is killed: the others hear of it soon, and all meet again twice. */
static void lose_one(struct rdzv_world *w)
{
    struct mu_prng *prng = mu_sim_prng(w->sim);
    struct rdzv_node *n = &w->nodes[mu_prng_below(prng, w->node_count)];
    const struct rounds_world *round = rounds_of(&w->rounds, n->number);
    uint64_t number = round == NULL ? 0 : round->round;
    uint64_t incarnation = round == NULL ? 0 : round->incarnation;
    bool was_in = round != NULL;

    mu_sim_note(w->sim, NULL, "one is killed: %s", n->name);
    mu_sim_kill(n->proc, MU_SIM_KILL_PROCESS);
    mu_sim_run_for(w->sim, w->setup->lost_ns);
    for (uint32_t i = 0; i < w->node_count && was_in; i++) {
        round = rounds_of(&w->rounds, i);
        if (round != NULL && round->round == number && round->incarnation == incarnation) {
            mu_sim_fail(w->sim, "%s still believes in a round that lost %s %.3f s ago",
                        w->nodes[i].name, n->name, (double)w->setup->lost_ns / 1e9);
        }
    }
    if (w->node_count > w->nodes_min && !(w->hosting && n->number == 0)) {
        meet(w, "after one was killed");
    }
    mu_sim_restart(n->proc);
    mu_sim_run_for(w->sim, MU_NS_PER_S);
    if (!w->hopeless) {
        meet(w, "after it was started again");
    }
}

static bool nodes_gone(void *arg)
{
    struct rdzv_world *w = arg;

    for (uint32_t i = 0; i < w->node_count; i++) {
        if (mu_sim_proc_alive(w->nodes[i].proc)) {
            return false;
        }
    }
    return true;
}

static bool server_gone(void *arg)
{
    struct rdzv_world *w = arg;

    return !mu_sim_proc_alive(w->server_proc);
}

/* A server that found no memory when it began is started again a moment later. */
static bool server_there(void *arg)
{
    const struct rdzv_world *w = arg;

    return w->serving != NULL;
}

static bool all_over(void *arg)
{
    struct rdzv_world *w = arg;

    for (uint32_t i = 0; i < w->node_count; i++) {
        if (w->nodes[i].life != NULL && !w->nodes[i].knows) {
            return false;
        }
    }
    return true;
}

static void go(struct rdzv_world *w)
{
    w->leaving = true;
    for (uint32_t i = 0; i < w->node_count; i++) {
        /* A late node that is not let in may be between two tries. */
        w->nodes[i].knows = w->nodes[i].phase == RDZV_OUT;
    }
    if (!w->hopeless && mu_prng_below(mu_sim_prng(w->sim), 2) == 0) {
        mu_sim_call(w->nodes[0].proc, rdzv_node_close, w->nodes[0].life);
        if (!mu_sim_run_until(w->sim, w->setup->close_ns, all_over, w)) {
            mu_sim_fail(w->sim, "somebody has not heard that the run is closed");
        }
    }
    for (uint32_t i = 0; i < w->node_count; i++) {
        if (w->nodes[i].life != NULL) {
            mu_sim_call(w->nodes[i].proc, rdzv_node_go, w->nodes[i].life);
        }
    }
    if (!mu_sim_run_until(w->sim, GO_NS, nodes_gone, w)) {
        mu_sim_fail(w->sim, "a node did not go");
        return;
    }
    if (w->hosting || w->setup->begin != NULL) {
        return;
    }
    if (!mu_sim_run_until(w->sim, GO_NS, server_there, w)) {
        mu_sim_fail(w->sim, "the server is not there at the end");
        return;
    }
    for (size_t i = 0; i < RDZV_RELAYS && w->relay_procs[i] != NULL; i++) {
        mu_sim_kill(w->relay_procs[i], MU_SIM_KILL_PROCESS);
    }
    mu_sim_call(w->server_proc, drain_server, w->serving);
    if (!mu_sim_run_until(w->sim, GO_NS, server_gone, w)) {
        mu_sim_fail(w->sim, "the server did not leave");
    }
}

void rdzv_world_run(struct mu_sim *sim, const struct rdzv_setup *setup)
{
    struct rdzv_world w = {.sim = sim, .setup = setup};

    mu_sim_trace_log(sim);
    set_up(&w);
    mu_sim_run_for(sim, RDZV_FAULTY_NS);
    heal(&w);
    if (mu_sim_failure(sim) == NULL && !w.hopeless) {
        meet(&w, "long after all faults have ended");
    }
    if (mu_sim_failure(sim) == NULL && !w.hopeless) {
        stay_calm(&w);
    }
    if (mu_sim_failure(sim) == NULL && !w.hopeless) {
        lose_one(&w);
    }
    if (mu_sim_failure(sim) == NULL) {
        go(&w);
    }
    if (setup->finish != NULL) {
        setup->finish(&w);
    }
    rounds_fini(&w.rounds);
    muster_log_set(NULL, NULL, MUSTER_LOG_WARN);
}
