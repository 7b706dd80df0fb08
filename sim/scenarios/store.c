/*
 * Scenario: the real store server and its real clients, native and PyTorch's protocol, under all
 * faults. Every operation must end exactly once; the history must be linearizable, so nothing
 * acknowledged is lost and nothing is applied twice, also across kills with a disk; when all faults
 * have ended every client must get on with its work; at the end everybody leaves without a trace.
 *
 * Half of the seeds have a disk (`--sync always`) and a server that can be killed; the others keep
 * all in memory, so there the server lives through the run.
 */
#include "scenarios/scenarios.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <muster/log.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "service/store.h"
#include "service/store_server.h"
#include "workload.h"

#define PORT        29500
#define KEYS        6
#define CLIENTS     5
#define FAULTY_NS   (15 * MU_NS_PER_S)
#define CONVERGE_NS (600 * MU_NS_PER_S)

/* What may be wrong on purpose. */
enum plant {
    PLANT_NOTHING = 0,
    PLANT_LYING_DISK,      /* commits are sometimes lost in silence */
    PLANT_RETRYING_CLIENT, /* a client repeats an add of unknown outcome */
};

struct member {
    struct world *world;
    uint32_t number;
    enum mu_store_tcp_protocol protocol;
    struct mu_sim_proc *proc;
    bool quiet; /* it was started after all faults had ended */
};

struct world {
    struct mu_sim *sim;
    enum plant plant;
    bool durable;
    size_t journal_bytes_high; /* small in some runs, so that requests have to wait for the disk */
    struct workload workload;
    struct member members[CLIENTS];
    struct mu_sim_proc *server_proc;
    struct serving *serving; /* NULL while the server is dead */
    uint32_t aim_ppm;        /* how often an answer is followed by the death of who gave it */
    bool healed;
    bool leaving;
    uint32_t wanted[CLIENTS];
};

/* --- the server ------------------------------------------------------------------------------- */

struct serving {
    struct world *world;
    struct mu_env *env;
    struct mu_store_server *server;
};

static void restart_server(struct mu_sim *sim, void *arg)
{
    struct world *w = arg;

    (void)sim;
    mu_sim_restart(w->server_proc);
}

/* A server that ends by itself is started again, as whoever watches over it would. */
static void server_stopped(void *context, int status, const char *why)
{
    struct serving *s = context;
    struct world *w = s->world;
    struct mu_env *env = s->env;

    mu_sim_note(w->sim, w->server_proc, "server stopped: %d %s", status, why == NULL ? "" : why);
    if (!w->leaving && status != MUSTER_EDISK) {
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

static int start_server(struct mu_env *env, void *arg)
{
    struct world *w = arg;
    struct serving *s = mu_calloc(1, sizeof(*s));
    struct mu_store_server_config config = mu_store_server_config_defaults();
    struct mu_errmsg msg = {0};
    int rc = 0;

    MU_ASSERT(s != NULL);
    s->world = w;
    s->env = env;
    config.listen = (struct mu_addr){.kind = MU_ADDR_TCP, .port = PORT, .host = "0.0.0.0"};
    config.sync = MU_SYNC_ALWAYS;
    config.journal_bytes_high = w->journal_bytes_high;
    config.stopped = server_stopped;
    config.context = s;
    if (w->durable) {
        rc = mu_sim_disk_open(env, "data", &config.disk, &msg);
    }
    if (rc == 0) {
        rc = mu_store_server_start(env, &config, &s->server, &msg);
    }
    if (rc != 0) {
        mu_sim_fail(w->sim, "the server did not start: %s: %s", muster_errname(rc), msg.text);
        return 0;
    }
    w->serving = s;
    return 0;
}

static void server_killed(void *arg)
{
    struct world *w = arg;

    w->serving = NULL;
}

static void drain_server(void *arg)
{
    struct serving *s = arg;

    mu_store_server_drain(s->server);
}

static void kill_server(struct mu_sim *sim, void *arg)
{
    struct world *w = arg;

    if (w->aim_ppm != 0 && mu_sim_proc_alive(w->server_proc)) {
        mu_sim_kill(w->server_proc, mu_prng_below(mu_sim_prng(sim), 2) == 0 ? MU_SIM_KILL_PROCESS
                                                                            : MU_SIM_KILL_POWER);
        (void)mu_sim_at(sim, mu_sim_now_ns(sim) + 100 * MU_NS_PER_MS, restart_server, w);
    }
}

/* The moment at which a promise is easiest to break is just after it was made. */
static void aim_at_server(struct world *w)
{
    struct mu_prng *prng = mu_sim_prng(w->sim);

    if (mu_prng_chance(prng, w->aim_ppm)) {
        (void)mu_sim_at(w->sim, mu_sim_now_ns(w->sim) + mu_prng_below(prng, 2 * MU_NS_PER_MS),
                        kill_server, w);
    }
}

/* --- clients ---------------------------------------------------------------------------------- */

struct store_client {
    struct workload_client base;
    struct member *member;
    struct mu_store *store;
    struct mu_store_op op;
    enum linear_kind kind;
    char key_text[16];
    char texts[2][24];
    struct mu_span key;
    struct mu_span values[2];
};

static struct mu_span put_number(char *text, size_t cap, int64_t number)
{
    (void)snprintf(text, cap, "%" PRId64, number);
    return mu_span_str(text);
}

static enum mu_store_verb verb_of(enum linear_kind kind)
{
    switch (kind) {
    case LINEAR_GET:
        return MU_STORE_GET;
    case LINEAR_SET:
        return MU_STORE_SET;
    case LINEAR_ADD:
        return MU_STORE_ADD;
    case LINEAR_COMPARE_SET:
        return MU_STORE_COMPARE_SET;
    case LINEAR_DELETE:
        return MU_STORE_DELETE;
    case LINEAR_CHECK:
        return MU_STORE_CHECK;
    case LINEAR_WAIT:
        return MU_STORE_WAIT;
    }
    return MU_STORE_GET;
}

/* A number in decimal; false for anything else. */
static bool read_number(struct mu_span text, struct linear_value *ret)
{
    char copy[32];
    char *end;

    if (text.len == 0 || text.len >= sizeof(copy)) {
        return false;
    }
    memcpy(copy, text.data, text.len);
    copy[text.len] = '\0';
    *ret = (struct linear_value){true, strtoll(copy, &end, 10)};
    return *end == '\0';
}

/* What the answer says, in the checker's words. */
static enum workload_outcome read_reply(struct store_client *c, struct linear_result *ret)
{
    const struct mu_store_reply *reply = &c->op.reply;
    bool torch = c->member->protocol != MU_STORE_TCP_MUSTER;

    *ret = (struct linear_result){.flag = reply->number != 0, .flag_known = true};
    switch (c->kind) {
    case LINEAR_GET:
    case LINEAR_COMPARE_SET:
        /* PyTorch's protocol only guesses whether it was written. */
        ret->flag_known = c->kind == LINEAR_GET || !torch;
        if (reply->value_count == 1 && reply->values[0].len == 0 &&
            (torch || c->kind == LINEAR_COMPARE_SET)) {
            /* A PyTorch client's get is two requests, and a key deleted in between reads as
             * empty: that says nothing. An empty answer to compare_set: absent, as expected. */
            return c->kind == LINEAR_GET ? WORKLOAD_NOTHING : WORKLOAD_KNOWN;
        }
        if (reply->value_count != 1 || !read_number(reply->values[0], &ret->value)) {
            mu_sim_fail(c->base.workload->sim, "client %" PRIu32 " got no number", c->base.number);
        }
        return WORKLOAD_KNOWN;
    case LINEAR_ADD:
        ret->value = (struct linear_value){true, reply->number};
        return WORKLOAD_KNOWN;
    case LINEAR_SET:
    case LINEAR_DELETE:
    case LINEAR_CHECK:
    case LINEAR_WAIT:
        break;
    }
    return WORKLOAD_KNOWN;
}

static void restart_client(struct mu_sim *sim, void *arg)
{
    struct member *m = arg;

    (void)sim;
    mu_sim_kill(m->proc, MU_SIM_KILL_PROCESS);
    mu_sim_restart(m->proc);
}

/*
 * A connection that is lost in the middle of its greeting looks as if the peer did not speak the
 * protocol, and that is final for the store. Its user starts again. In a quiet world it must not
 * happen.
 */
static void start_again(struct store_client *c)
{
    struct mu_sim *sim = c->base.workload->sim;

    if (c->member->quiet) {
        mu_sim_fail(sim, "client %" PRIu32 " was told: %s", c->base.number, c->op.errmsg.text);
    }
    (void)mu_sim_at(sim, mu_sim_now_ns(sim), restart_client, c->member);
}

static void client_done(struct mu_store_op *op)
{
    struct store_client *c = MU_CONTAINER_OF(op, struct store_client, op);
    struct linear_result result = {.flag_known = true};
    enum workload_outcome outcome = WORKLOAD_UNKNOWN;

    switch (op->status) {
    case 0:
        outcome = read_reply(c, &result);
        aim_at_server(c->member->world);
        break;
    case MUSTER_ENOENT:
        outcome = c->kind == LINEAR_GET ? WORKLOAD_KNOWN : WORKLOAD_NOTHING;
        break;
    case MUSTER_ETIMEDOUT:
    case MUSTER_ECONN:
    case MUSTER_ESESSION:
        if (c->member->world->plant == PLANT_RETRYING_CLIENT && c->kind == LINEAR_ADD) {
            mu_store_submit(c->store, op);
            return;
        }
        break;
    case MUSTER_ENOTSTORE:
        start_again(c);
        break;
    default:
        mu_sim_fail(c->base.workload->sim, "client %" PRIu32 " was told: %s", c->base.number,
                    op->errmsg.text);
        break;
    }
    if (mu_sim_tracing(c->base.workload->sim) && op->status != 0) {
        mu_sim_note(c->base.workload->sim, c->member->proc, "status %d: %s", op->status,
                    op->errmsg.text);
    }
    workload_done(&c->base, outcome, &result);
}

static void client_issue(struct workload_client *base, const struct linear_op *op)
{
    struct store_client *c = MU_CONTAINER_OF(base, struct store_client, base);
    struct mu_store_request *r = &c->op.request;

    c->kind = op->kind;
    (void)snprintf(c->key_text, sizeof(c->key_text), "k%" PRIu32, op->key);
    c->key = mu_span_str(c->key_text);
    c->op = (struct mu_store_op){.done = client_done};
    *r = (struct mu_store_request){.verb = verb_of(op->kind), .keys = &c->key, .key_count = 1};
    c->op.timeout_ms = 200 + (uint32_t)mu_prng_below(&base->prng, 10000);
    switch (op->kind) {
    case LINEAR_GET:
        r->flags =
            mu_prng_below(&base->prng, 5) == 0 && !base->workload->finishing ? 0 : MU_STORE_NOWAIT;
        break;
    case LINEAR_SET:
        c->values[0] = put_number(c->texts[0], sizeof(c->texts[0]), op->number);
        r->values = c->values;
        r->value_count = 1;
        break;
    case LINEAR_ADD:
        r->number = op->number;
        break;
    case LINEAR_COMPARE_SET:
        c->values[0] = op->expected.present
                           ? put_number(c->texts[0], sizeof(c->texts[0]), op->expected.number)
                           : mu_span("", 0);
        c->values[1] = put_number(c->texts[1], sizeof(c->texts[1]), op->number);
        r->values = c->values;
        r->value_count = 2;
        break;
    case LINEAR_DELETE:
    case LINEAR_CHECK:
    case LINEAR_WAIT:
        break;
    }
    mu_store_submit(c->store, &c->op);
}

static void client_closed(void *context)
{
    struct store_client *c = context;

    mu_sim_exit(c->base.env);
    mu_free(c);
}

static void client_stop(struct workload_client *base)
{
    struct store_client *c = MU_CONTAINER_OF(base, struct store_client, base);

    mu_store_close(c->store, client_closed, c);
}

static const struct workload_client_ops client_ops = {
    .issue = client_issue,
    .stop = client_stop,
};

static int start_client(struct mu_env *env, void *arg)
{
    struct member *m = arg;
    struct store_client *c = mu_calloc(1, sizeof(*c));
    struct mu_store_tcp_config config = mu_store_tcp_config_defaults();
    int rc;

    MU_ASSERT(c != NULL);
    m->quiet = m->world->healed;
    c->member = m;
    c->base.ops = &client_ops;
    config.addr = (struct mu_addr){.kind = MU_ADDR_TCP, .port = PORT, .host = "server"};
    config.protocol = m->protocol;
    config.name = "sim";
    rc = mu_store_tcp_new(env, &config, &c->store);
    if (rc != 0) {
        return rc;
    }
    workload_client_start(&c->base, &m->world->workload, m->number, env);
    return 0;
}

static void client_killed(void *arg)
{
    struct member *m = arg;

    workload_client_killed(&m->world->workload, m->number);
}

/* --- the story -------------------------------------------------------------------------------- */

/* Service log lines become lines of the trace. */
static void trace_log(void *context, enum muster_log_level level, const char *id, const char *line)
{
    (void)level;
    (void)id;
    mu_sim_note(context, NULL, "log: %s", line);
}

static bool all_progressed(void *arg)
{
    struct world *w = arg;

    for (uint32_t i = 0; i < CLIENTS; i++) {
        if (w->workload.tallies[i].known < w->wanted[i]) {
            return false;
        }
    }
    return true;
}

static bool clients_left(void *arg)
{
    struct world *w = arg;

    for (uint32_t i = 0; i < CLIENTS; i++) {
        if (mu_sim_proc_alive(w->members[i].proc)) {
            return false;
        }
    }
    return true;
}

static bool server_left(void *arg)
{
    struct world *w = arg;

    return !mu_sim_proc_alive(w->server_proc);
}

static void set_up(struct world *w)
{
    static const struct {
        const char *name;
        enum mu_store_tcp_protocol protocol;
    } kinds[CLIENTS] = {{"native0", MU_STORE_TCP_MUSTER},
                        {"native1", MU_STORE_TCP_MUSTER},
                        {"native2", MU_STORE_TCP_MUSTER},
                        {"torch1", MU_STORE_TCP_TORCH1},
                        {"torch2", MU_STORE_TCP_TORCH2}};

    workload_init(&w->workload, w->sim, KEYS);
    w->server_proc =
        mu_sim_proc_new(mu_sim_host_new(w->sim, "server"),
                        &(struct mu_sim_program){.name = "store",
                                                 .start = start_server,
                                                 .killed = server_killed,
                                                 .arg = w,
                                                 .flags = w->durable ? 0 : MU_SIM_KEEP_ALIVE});
    for (uint32_t i = 0; i < CLIENTS; i++) {
        struct member *m = &w->members[i];

        *m = (struct member){.world = w, .number = i, .protocol = kinds[i].protocol};
        m->proc = mu_sim_proc_new(
            mu_sim_host_new(w->sim, kinds[i].name),
            &(struct mu_sim_program){
                .name = "client", .start = start_client, .killed = client_killed, .arg = m});
    }
}

static void leave(struct world *w)
{
    workload_finish(&w->workload);
    if (!mu_sim_run_until(w->sim, CONVERGE_NS, clients_left, w)) {
        mu_sim_fail(w->sim, "a client did not leave");
        return;
    }
    w->leaving = true;
    if (w->serving == NULL) {
        mu_sim_fail(w->sim, "the server is not there at the end");
        return;
    }
    mu_sim_call(w->server_proc, drain_server, w->serving);
    if (!mu_sim_run_until(w->sim, CONVERGE_NS, server_left, w)) {
        mu_sim_fail(w->sim, "the server did not leave");
    }
}

static void run_planted(struct mu_sim *sim, enum plant plant)
{
    struct world w = {.sim = sim, .plant = plant};
    uint64_t pause_ns;

    w.durable = plant == PLANT_LYING_DISK || mu_prng_below(mu_sim_prng(sim), 2) == 0;
    muster_log_set(trace_log, sim, mu_sim_tracing(sim) ? MUSTER_LOG_DEBUG : MUSTER_LOG_ERROR);
    if (w.durable && mu_prng_below(mu_sim_prng(sim), 2) == 0) {
        w.aim_ppm = 20000;
    }
    w.journal_bytes_high = mu_prng_below(mu_sim_prng(sim), 3) == 0
                               ? (size_t)mu_prng_below(mu_sim_prng(sim), 200)
                               : (size_t)64 << 20;
    set_up(&w);
    mu_sim_run_for(sim, FAULTY_NS);
    w.aim_ppm = 0;
    pause_ns = mu_sim_faults(sim)->pause_max_ns;
    mu_sim_heal(sim);
    mu_sim_run_for(sim, pause_ns);
    w.healed = true;
    for (uint32_t i = 0; i < CLIENTS; i++) {
        w.wanted[i] = w.workload.tallies[i].known + 3;
    }
    if (!mu_sim_run_until(sim, CONVERGE_NS, all_progressed, &w)) {
        mu_sim_fail(sim, "a client made no progress though all faults had ended");
    }
    if (mu_sim_failure(sim) == NULL) {
        leave(&w);
    }
    if (mu_sim_failure(sim) == NULL) {
        workload_check(&w.workload);
    }
    workload_fini(&w.workload);
    muster_log_set(NULL, NULL, MUSTER_LOG_WARN);
}

static void run_store(struct mu_sim *sim)
{
    run_planted(sim, PLANT_NOTHING);
}

static void run_lying_disk(struct mu_sim *sim)
{
    run_planted(sim, PLANT_LYING_DISK);
}

static void run_retrying_client(struct mu_sim *sim)
{
    run_planted(sim, PLANT_RETRYING_CLIENT);
}

static struct mu_sim_faults store_faults(struct mu_prng *prng)
{
    struct mu_sim_faults f = mu_sim_faults_draw(prng);

    f.disk_fail_ppm = mu_prng_below(prng, 8) == 0 ? 5000 : 0;
    return f;
}

static struct mu_sim_faults lying_faults(struct mu_prng *prng)
{
    struct mu_sim_faults f = mu_sim_faults_draw(prng);

    f.disk_lie_ppm = 50000;
    f.kill_every_ns = 3 * MU_NS_PER_S;
    f.down_max_ns = MU_NS_PER_S;
    return f;
}

const struct mu_sim_scenario mu_sim_scenario_store = {
    .name = "store",
    .summary = "server, native and PyTorch clients: linearizable, exactly once, nothing lost",
    .faults = store_faults,
    .run = run_store,
};

const struct mu_sim_scenario mu_sim_scenario_store_lying_disk = {
    .name = "store-lying-disk",
    .summary = "planted bug: a disk that forgets what it said it kept",
    .faults = lying_faults,
    .run = run_lying_disk,
    .planted = true,
};

const struct mu_sim_scenario mu_sim_scenario_store_retry = {
    .name = "store-retry",
    .summary = "planted bug: a client that repeats an add whose outcome is unknown",
    .faults = store_faults,
    .run = run_retrying_client,
    .planted = true,
};
