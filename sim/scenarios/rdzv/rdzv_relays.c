/*
 * Nodes that reach their server by relays stay in one round, whatever happens to one relay at a
 * time: it is killed and started again, loses its power, is stopped for longer than the silence
 * that ends a session, or is cut off from the server. Connections are reset meanwhile. No node is
 * lost, and the server is there, so the run fails if any node is told that its round has ended, or
 * anything else. Each node knows the relay of its group and the next one; the settings are the
 * defaults.
 *
 * In the end one node is killed: the others must hear of it, as of any other loss.
 */
#include <inttypes.h>
#include <string.h>

#include <muster/log.h>

#include "checkers/rounds.h"
#include "core/alloc.h"
#include "scenarios/scenarios.h"
#include "service/rdzv/rdzv.h"
#include "service/server/server.h"

#define NODES      140 /* above MU_RDZV_FEW: the list of members is in the store */
#define RELAYS     4
#define PORT       29400
#define GATHER_NS  (60 * MU_NS_PER_S)
#define STOPPED_NS (12 * MU_NS_PER_S) /* a relay, at most */
#define REST_NS    (8 * MU_NS_PER_S)  /* when all know again that it is there */
#define LENGTH_NS  (300 * MU_NS_PER_S)
#define LOST_NS    (5 * MU_NS_PER_S)

struct world;

struct place {
    struct world *world;
    struct mu_sim_host *host;
    struct mu_sim_proc *proc;
    struct mu_store_server *server;
};

struct node {
    struct world *world;
    uint32_t number;
    struct mu_sim_proc *proc;
    struct mu_rdzv_handler *handler;
};

struct world {
    struct mu_sim *sim;
    struct place server;
    struct place relays[RELAYS];
    struct node nodes[NODES];
    struct rounds rounds;
    uint32_t assigned;
    uint32_t ended;
    uint32_t carried_max; /* connections that one relay carried at once */
    bool ending;          /* one node was killed */
};

static void server_stopped(void *context, int status, const char *why)
{
    mu_sim_fail(((struct place *)context)->world->sim, "a server gave up: %d %s", status, why);
}

static int start_server(struct mu_env *env, void *arg)
{
    struct mu_store_server_config config = mu_store_server_config_defaults();
    struct place *p = arg;
    struct mu_errmsg msg;

    config.listen = (struct mu_addr){.kind = MU_ADDR_TCP, .port = PORT, .host = "0.0.0.0"};
    config.stopped = server_stopped;
    config.context = p;
    config.backing = p == &p->world->server ? NULL : "tcp://server:29400";
    return mu_store_server_start(env, &config, &p->server, &msg);
}

static void server_killed(void *arg)
{
    ((struct place *)arg)->server = NULL;
}

/* --- a node ----------------------------------------------------------------------------------- */

static void fail_node(void *context, const char *what, const char *more)
{
    struct node *n = context;

    mu_sim_fail(n->world->sim, "node %" PRIu32 " was told: %s %s", n->number, what, more);
}

static void on_assigned(void *context, const struct mu_rdzv_assignment *a)
{
    struct node *n = context;
    struct mu_errmsg msg;

    if (a->world != NODES) {
        fail_node(n, "assigned", "to a world of another size");
    } else if (a->member_count != (n->number % 10 == 0 ? NODES : 0)) {
        fail_node(n, "assigned", "without the members");
    } else if (rounds_assigned(&n->world->rounds, n->number, n->handler->node, 0, a, &msg) != 0) {
        fail_node(n, "assigned", msg.text);
    }
    n->world->assigned++;
}

static void on_ended(void *context, const struct mu_rdzv_ending *ending)
{
    struct node *n = context;

    if (!n->world->ending) {
        fail_node(n, "ended", ending->text);
    }
    n->world->ended++;
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

static void on_nothing(void *context)
{
    fail_node(context, "left or freed", "");
}

static void on_record(void *context, const struct mu_rdzv_record *record)
{
    struct node *n = context;

    mu_sim_note(n->world->sim, n->proc, "n%" PRIu32 " %s: %s", n->number, record->name,
                record->message);
}

static int start_node(struct mu_env *env, void *arg)
{
    struct node *n = arg;
    uint32_t relay = n->number * RELAYS / NODES;
    char config[160];
    struct mu_errmsg msg;
    int rc;

    (void)snprintf(config, sizeof(config),
                   "name=n%" PRIu32 ",members=%s,addr=h,via=relay%" PRIu32 ":29400,relay%" PRIu32
                   ":29400",
                   n->number, n->number % 10 == 0 ? "true" : "false", relay, (relay + 1) % RELAYS);
    rc = mu_rdzv_open(
        env,
        &(struct mu_rdzv_params){.backend = "muster",
                                 .endpoint = "server:29400",
                                 .run_id = "relayed",
                                 .nodes_min = NODES,
                                 .nodes_max = NODES,
                                 .config = config},
        &(struct mu_rdzv_events){.assigned = on_assigned,
                                 .ended = on_ended,
                                 .waiting = on_waiting,
                                 .closed = on_closed,
                                 .failed = on_failed,
                                 .left = on_nothing,
                                 .close_failed = on_failed,
                                 .record = mu_sim_tracing(n->world->sim) ? on_record : NULL,
                                 .freed = on_nothing,
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

static void restart_relay(struct mu_sim *sim, void *arg)
{
    (void)sim;
    mu_sim_restart(((struct place *)arg)->proc);
}

static void kill_relay(struct world *w, struct place *p, enum mu_sim_kill how, uint64_t ns)
{
    mu_sim_note(w->sim, p->proc, "a relay is killed");
    mu_sim_kill(p->proc, how);
    (void)mu_sim_at(w->sim, mu_sim_now_ns(w->sim) + ns, restart_relay, p);
}

static void trouble_relay(struct mu_sim *sim, void *arg)
{
    struct world *w = arg;
    struct mu_prng *prng = mu_sim_prng(sim);
    struct place *p = &w->relays[mu_prng_below(prng, RELAYS)];
    uint64_t ns = 1 + mu_prng_below(prng, STOPPED_NS);

    switch (w->ending ? 4 : mu_prng_below(prng, 4)) {
    case 0:
        kill_relay(w, p, MU_SIM_KILL_PROCESS, ns);
        break;
    case 1:
        kill_relay(w, p, MU_SIM_KILL_POWER, ns);
        break;
    case 2:
        mu_sim_note(sim, p->proc, "a relay is stopped");
        mu_sim_pause(p->proc, ns);
        break;
    case 3:
        mu_sim_note(sim, p->proc, "a relay is cut off");
        mu_sim_cut(p->host, w->server.host, ns);
        mu_sim_cut(w->server.host, p->host, ns);
        break;
    default:
        break;
    }
    (void)mu_sim_at(sim, mu_sim_now_ns(sim) + ns + REST_NS, trouble_relay, w);
}

static struct mu_sim_faults relays_faults(struct mu_prng *prng)
{
    struct mu_sim_faults f = mu_sim_faults_none();

    (void)prng;
    f.drift_ppm = 100;
    f.reset_every_ns = 2 * MU_NS_PER_S;
    return f;
}

/* --- the story -------------------------------------------------------------------------------- */

static void look_at_relays(struct mu_sim *sim, void *arg)
{
    struct world *w = arg;

    (void)sim;
    for (size_t i = 0; i < RELAYS; i++) {
        struct mu_store_server_stats stats = {0};

        if (w->relays[i].server != NULL) {
            mu_store_server_stats(w->relays[i].server, &stats);
        }
        w->carried_max = stats.carried > w->carried_max ? (uint32_t)stats.carried : w->carried_max;
    }
}

static void make_place(struct world *w, struct place *p, const char *name)
{
    p->world = w;
    p->host = mu_sim_host_new(w->sim, name);
    p->proc = mu_sim_proc_new(
        p->host, &(struct mu_sim_program){
                     .name = "serve", .start = start_server, .killed = server_killed, .arg = p});
}

static void make_world(struct world *w)
{
    char host[16];

    make_place(w, &w->server, "server");
    for (uint32_t i = 0; i < RELAYS; i++) {
        (void)snprintf(host, sizeof(host), "relay%" PRIu32, i);
        make_place(w, &w->relays[i], host);
    }
    for (uint32_t i = 0; i < NODES; i++) {
        struct node *n = &w->nodes[i];

        n->world = w;
        n->number = i;
        (void)snprintf(host, sizeof(host), "h%" PRIu32, i);
        n->proc =
            mu_sim_proc_new(mu_sim_host_new(w->sim, host),
                            &(struct mu_sim_program){.name = "n", .start = start_node, .arg = n});
    }
    mu_sim_add_checker(w->sim, look_at_relays, w);
}

static bool are_gathered(void *arg)
{
    return ((struct world *)arg)->assigned == NODES;
}

static bool have_heard(void *arg)
{
    return ((struct world *)arg)->ended == NODES - 1;
}

static void lose_one(struct world *w)
{
    struct mu_store_server_stats stats;

    w->ending = true;
    mu_sim_run_for(w->sim, STOPPED_NS + REST_NS);
    mu_sim_kill(w->nodes[mu_prng_below(mu_sim_prng(w->sim), NODES)].proc, MU_SIM_KILL_PROCESS);
    if (!mu_sim_run_until(w->sim, LOST_NS, have_heard, w)) {
        mu_sim_fail(w->sim, "%" PRIu32 " of %d nodes have heard of the loss", w->ended, NODES - 1);
    }
    mu_store_server_stats(w->server.server, &stats);
    if (stats.losses != 1 || w->carried_max < NODES / RELAYS) {
        mu_sim_fail(w->sim, "%" PRIu64 " losses; a relay carried %" PRIu32, stats.losses,
                    w->carried_max);
    }
}

static void run_world(struct mu_sim *sim)
{
    struct world *w = mu_sim_calloc(sizeof(*w));

    muster_log_set(NULL, NULL, MUSTER_LOG_ERROR);
    w->sim = sim;
    rounds_init(&w->rounds, NODES);
    make_world(w);
    if (!mu_sim_run_until(sim, GATHER_NS, are_gathered, w)) {
        mu_sim_fail(sim, "%" PRIu32 " of %d nodes got a rank", w->assigned, NODES);
    }
    (void)mu_sim_at(sim, mu_sim_now_ns(sim), trouble_relay, w);
    mu_sim_run_for(sim, mu_sim_length_ns(sim, LENGTH_NS));
    if (mu_sim_failure(sim) == NULL && !rounds_whole(&w->rounds, rounds_only(&w->rounds))) {
        mu_sim_fail(sim, "the round is not what it was");
    }
    if (mu_sim_failure(sim) == NULL) {
        lose_one(w);
    }
    rounds_fini(&w->rounds);
    muster_log_set(NULL, NULL, MUSTER_LOG_WARN);
    mu_free(w);
}

SIM_SCENARIO(rdzv_relays, "rdzv-relays",
             "nodes behind relays, which are killed, stopped and cut off: no node counts as lost",
             relays_faults, false, run_world(sim))
