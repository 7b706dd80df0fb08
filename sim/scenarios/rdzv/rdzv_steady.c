/*
 * A thousand nodes in one round, for hours. Nodes are paused for up to 800 ms, connections are
 * reset, for both ends or for one that finds out when it next sends, and the server is paused as
 * well, now and then for up to 1.5 s. (A node that finds no server for the two seconds of its grace
 * gives its round up by itself, whatever the server says later.) No node is dead, so the round must
 * stay the same: the run fails if any node is told that it has ended, or anything else. The
 * settings are the defaults: a beat a second, dead after three.
 */

#include <inttypes.h>
#include <string.h>

#include <muster/log.h>

#include "checkers/rounds.h"
#include "core/alloc.h"
#include "core/assert.h"
#include "scenarios/scenarios.h"
#include "service/rdzv/rdzv.h"
#include "service/server/server.h"

#define NODES          1000
#define GATHER_NS      (60 * MU_NS_PER_S)
#define PAUSE_MAX_NS   (800 * MU_NS_PER_MS)
#define TROUBLE_NS     (200 * MU_NS_PER_MS) /* mean time between pauses of a node */
#define SERVER_NS      (30 * MU_NS_PER_S)   /* mean time between pauses of the server */
#define SERVER_LONG_NS (1500 * MU_NS_PER_MS)
#define REST_NS        (5 * MU_NS_PER_S) /* between two troubles of one node */

#define LENGTH_NS (600 * MU_NS_PER_S) /* unless another length is asked for */

struct steady;

struct steady_node {
    struct steady *world;
    uint32_t number;
    struct mu_sim_proc *proc;
    struct mu_rdzv_handler *handler;
    uint64_t rested_ns; /* no pause or reset before that */
};

struct steady {
    struct mu_sim *sim;
    struct mu_sim_proc *server;
    struct steady_node nodes[NODES];
    struct rounds rounds;
    uint32_t assigned;
    bool gathered;
    const char *dead; /* for the configuration; NULL: the default */
};

static void server_stopped(void *context, int status, const char *why)
{
    mu_sim_fail(((struct steady *)context)->sim, "the server gave up: %d %s", status, why);
}

static int start_server(struct mu_env *env, void *arg)
{
    struct mu_store_server_config config = mu_store_server_config_defaults();
    struct mu_store_server *server;
    struct mu_errmsg msg;

    config.listen = (struct mu_addr){.kind = MU_ADDR_TCP, .port = 29400, .host = "0.0.0.0"};
    config.stopped = server_stopped;
    config.context = arg;
    return mu_store_server_start(env, &config, &server, &msg);
}

/* --- a node ----------------------------------------------------------------------------------- */

static void fail_node(void *context, const char *what, const char *more)
{
    struct steady_node *n = context;

    mu_sim_fail(n->world->sim, "node %" PRIu32 " was told: %s %s", n->number, what, more);
}

static void on_assigned(void *context, const struct mu_rdzv_assignment *a)
{
    struct steady_node *n = context;
    struct mu_errmsg msg;

    if (a->world != NODES) {
        fail_node(n, "assigned", "to a world of another size");
    } else if (rounds_assigned(&n->world->rounds, n->number, n->handler->node, 0, a, &msg) != 0) {
        fail_node(n, "assigned", msg.text);
    }
    n->world->assigned++;
}

static void on_ended(void *context, const struct mu_rdzv_ending *ending)
{
    fail_node(context, "ended", ending->text);
}

static void on_waiting(void *context, uint32_t count)
{
    (void)count;
    fail_node(context, "waiting", "");
}

static void on_closed(void *context)
{
    fail_node(context, "closed", "");
}

static void on_failed(void *context, int status, const char *text)
{
    fail_node(context, muster_errname(status), text);
}

static void on_left(void *context)
{
    fail_node(context, "left", "");
}

static void on_close_failed(void *context, int status, const char *text)
{
    fail_node(context, muster_errname(status), text);
}

static void on_freed(void *context)
{
    fail_node(context, "freed", "");
}

static int start_node(struct mu_env *env, void *arg)
{
    struct steady_node *n = arg;
    const char *dead = n->world->dead;
    char config[128];
    struct mu_errmsg msg;
    int rc;

    (void)snprintf(config, sizeof(config), "is_host=false,members=%s,name=n%" PRIu32 ",addr=h%s%s",
                   n->number % 100 == 0 ? "true" : "false", n->number,
                   dead == NULL ? "" : ",dead=", dead == NULL ? "" : dead);
    rc = mu_rdzv_open(env,
                      &(struct mu_rdzv_params){.backend = "muster",
                                               .endpoint = "server:29400",
                                               .run_id = "steady",
                                               .nodes_min = NODES,
                                               .nodes_max = NODES,
                                               .config = config},
                      &(struct mu_rdzv_events){.assigned = on_assigned,
                                               .ended = on_ended,
                                               .waiting = on_waiting,
                                               .closed = on_closed,
                                               .failed = on_failed,
                                               .left = on_left,
                                               .close_failed = on_close_failed,
                                               .freed = on_freed,
                                               .context = n},
                      &n->handler, &msg);
    if (rc != 0) {
        mu_sim_fail(n->world->sim, "node %" PRIu32 ": %s", n->number, msg.text);
        return 0;
    }
    mu_rdzv_join(n->handler);
    return 0;
}

/* --- faults ----------------------------------------------------------------------------------- */

static void trouble_node(struct mu_sim *sim, void *arg)
{
    struct steady *s = arg;
    struct mu_prng *prng = mu_sim_prng(sim);
    struct steady_node *n = &s->nodes[mu_prng_below(prng, NODES)];
    uint64_t now = mu_sim_now_ns(sim);

    if (now >= n->rested_ns) {
        n->rested_ns = now + REST_NS;
        mu_sim_pause(n->proc, mu_prng_below(prng, PAUSE_MAX_NS + 1));
    }
    (void)mu_sim_at(sim, now + 1 + mu_prng_below(prng, 2 * TROUBLE_NS), trouble_node, s);
}

static void trouble_server(struct mu_sim *sim, void *arg)
{
    struct steady *s = arg;
    struct mu_prng *prng = mu_sim_prng(sim);
    uint64_t max = mu_prng_below(prng, 4) == 0 ? SERVER_LONG_NS : PAUSE_MAX_NS;

    mu_sim_pause(s->server, mu_prng_below(prng, max + 1));
    (void)mu_sim_at(
        sim, mu_sim_now_ns(sim) + SERVER_LONG_NS + REST_NS + mu_prng_below(prng, 2 * SERVER_NS),
        trouble_server, s);
}

static struct mu_sim_faults steady_faults(struct mu_prng *prng)
{
    struct mu_sim_faults f = mu_sim_faults_none();

    (void)prng;
    f.drift_ppm = 100;
    f.reset_every_ns = 300 * MU_NS_PER_MS;
    return f;
}

static bool are_gathered(void *arg)
{
    struct steady *s = arg;

    return s->assigned == NODES;
}

static void run_world(struct mu_sim *sim, const char *dead)
{
    struct steady *s = mu_sim_calloc(sizeof(*s));

    muster_log_set(NULL, NULL, MUSTER_LOG_ERROR);
    s->sim = sim;
    s->dead = dead;
    rounds_init(&s->rounds, NODES);
    s->server =
        mu_sim_proc_new(mu_sim_host_new(sim, "server"),
                        &(struct mu_sim_program){.name = "serve", .start = start_server, .arg = s});
    for (uint32_t i = 0; i < NODES; i++) {
        struct steady_node *n = &s->nodes[i];
        char host[16];

        n->world = s;
        n->number = i;
        (void)snprintf(host, sizeof(host), "h%" PRIu32, i);
        n->proc =
            mu_sim_proc_new(mu_sim_host_new(sim, host),
                            &(struct mu_sim_program){.name = "n", .start = start_node, .arg = n});
    }
    if (!mu_sim_run_until(sim, GATHER_NS, are_gathered, s)) {
        mu_sim_fail(sim, "%" PRIu32 " of %d nodes got a rank", s->assigned, NODES);
    }
    (void)mu_sim_at(sim, mu_sim_now_ns(sim), trouble_node, s);
    (void)mu_sim_at(sim, mu_sim_now_ns(sim), trouble_server, s);
    mu_sim_run_for(sim, mu_sim_length_ns(sim, LENGTH_NS));
    if (mu_sim_failure(sim) == NULL && !rounds_whole(&s->rounds, rounds_only(&s->rounds))) {
        mu_sim_fail(sim, "the round is not what it was");
    }
    rounds_fini(&s->rounds);
    muster_log_set(NULL, NULL, MUSTER_LOG_WARN);
    mu_free(s);
}

static void run_steady(struct mu_sim *sim)
{
    run_world(sim, NULL);
}

const struct mu_sim_scenario mu_sim_scenario_rdzv_steady = {
    .name = "rdzv-steady",
    .summary = "1,000 nodes in one round, pauses and resets: no node counts as lost",
    .faults = steady_faults,
    .run = run_steady,
    .slow = true,
};

SIM_SCENARIO(rdzv_hasty, "rdzv-hasty",
             "planted bug: the same with nodes that count as lost after 0.6 s", steady_faults, true,
             run_world(sim, "0.6"))
