#include "scenarios/store/store_world.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <muster/log.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "fake_etcd.h"

#define STARVED_MAX 20 /* operations in a row without memory until the client gives up */
#define CONVERGE_NS (600 * MU_NS_PER_S)
#define CALM_NS     (2 * MU_NS_PER_S)
#define PROMPT_NS   (50 * MU_NS_PER_MS) /* how soon an operation must be answered in a calm */

/* --- workers ---------------------------------------------------------------------------------- */

uint64_t store_world_order(struct store_world *w)
{
    return ++w->orders;
}

int64_t store_worker_unique(struct store_worker *worker)
{
    return (int64_t)store_world_order(worker->role->world) * 1000;
}

static void restart_client(struct mu_sim *sim, void *arg)
{
    struct store_member *m = arg;

    (void)sim;
    mu_sim_kill(m->proc, MU_SIM_KILL_PROCESS);
    mu_sim_restart(m->proc);
}

void store_worker_restart_client(struct store_worker *worker)
{
    struct store_world *w = worker->role->world;

    (void)mu_sim_at(w->sim, mu_sim_now_ns(w->sim), restart_client, worker->role->member);
}

/* Returns whether an operation may wait until another client does something. */
static bool may_block(const struct mu_store_request *q)
{
    bool waits =
        q->verb == MU_STORE_GET || q->verb == MU_STORE_MULTI_GET || q->verb == MU_STORE_QUEUE_POP;

    return q->verb == MU_STORE_WAIT || q->verb == MU_STORE_WATCH ||
           (waits && (q->flags & MU_STORE_NOWAIT) == 0);
}

static void check_prompt(struct store_worker *worker)
{
    struct store_world *w = worker->role->world;
    uint64_t took = mu_sim_now_ns(w->sim) - worker->submitted_ns;

    if (!worker->submitted_calm || may_block(&worker->op.request)) {
        return;
    }
    if (took > PROMPT_NS) {
        mu_sim_fail(w->sim, "client %" PRIu32 ": %s took %.3f s though all was calm",
                    worker->role->member->number,
                    mu_store_verb_facts(worker->op.request.verb)->name, (double)took / 1e9);
    } else if (worker->op.status != 0 && worker->op.status != MUSTER_ENOENT) {
        mu_sim_fail(w->sim, "client %" PRIu32 ": %s failed though all was calm: %s",
                    worker->role->member->number,
                    mu_store_verb_facts(worker->op.request.verb)->name, worker->op.errmsg.text);
    }
}

/*
 * A connection that is lost in the middle of its greeting looks as if the peer did not speak the
 * protocol, and that is final for the store; so is a client without memory at its start, and one
 * for which the server had no memory. Its user starts again. In a quiet world it must not happen.
 */
static void start_again(struct store_worker *worker)
{
    if (worker->role->member->quiet) {
        mu_sim_fail(worker->role->world->sim, "client %" PRIu32 " was told: %s",
                    worker->role->member->number, worker->op.errmsg.text);
    }
    store_worker_restart_client(worker);
}

static enum store_verdict judge(struct store_worker *worker)
{
    struct store_world *w = worker->role->world;

    switch (worker->op.status) {
    case 0:
        return STORE_DONE;
    case MUSTER_ENOENT:
        return STORE_ABSENT;
    case MUSTER_ETIMEDOUT:
    case MUSTER_ECONN:
    case MUSTER_ESESSION:
    case MUSTER_ECANCELED:
    case MUSTER_EOVERFLOW:
        return STORE_UNKNOWN;
    case MUSTER_ENOTSTORE:
        start_again(worker);
        return STORE_UNKNOWN;
    case MUSTER_EREFUSED:
        if (w->memory) {
            start_again(worker);
            return STORE_UNKNOWN;
        }
        break;
    case MUSTER_ENOMEM:
        if (w->memory) {
            if (++worker->peer->starved == STARVED_MAX) {
                start_again(worker);
            }
            return STORE_UNKNOWN;
        }
        break;
    default:
        break;
    }
    mu_sim_fail(w->sim, "client %" PRIu32 " was told: %s", worker->role->member->number,
                worker->op.errmsg.text);
    return STORE_UNKNOWN;
}

bool store_worker_told_timeout(const struct store_worker *worker)
{
    return worker->op.status == MUSTER_ETIMEDOUT &&
           worker->role->member->protocol == MU_STORE_TCP_MUSTER &&
           strncmp(worker->op.errmsg.text, "timed out waiting for", 21) == 0;
}

/*
 * PyTorch's clients block on connections of their own, which say nothing of the main one. The main
 * one may be dead, and only keep-alive finds out, after a minute.
 */
static bool shows_progress(const struct store_worker *worker, enum store_verdict verdict)
{
    bool blocks = may_block(&worker->op.request);

    if (worker->role->member->protocol != MU_STORE_TCP_MUSTER && blocks) {
        return false;
    }
    return verdict != STORE_UNKNOWN || store_worker_told_timeout(worker);
}

static void op_done(struct mu_store_op *op)
{
    struct store_worker *worker = MU_CONTAINER_OF(op, struct store_worker, op);
    struct store_role *role = worker->role;
    struct store_world *w = role->world;
    enum store_verdict verdict;

    once_end(w->ops, worker->ticket);
    if (!worker->busy) {
        return; /* The run has failed. */
    }
    worker->busy = false;
    role->doing = NULL;
    if (mu_sim_tracing(w->sim)) {
        mu_sim_note(w->sim, role->member->proc, "%s ends: %d %s",
                    mu_store_verb_facts(op->request.verb)->name, op->status,
                    op->status == 0 ? "" : op->errmsg.text);
    }
    check_prompt(worker);
    verdict = judge(worker);
    if (verdict != STORE_UNKNOWN) {
        worker->peer->starved = 0;
        store_host_aim(w, role->member);
    }
    if (shows_progress(worker, verdict)) {
        role->answered++;
    }
    if (w->setup->plant == STORE_PLANT_BLIND_TO_ENOMEM && op->status == MUSTER_ENOMEM &&
        op->request.value_count != 0) {
        verdict = STORE_DONE;
    }
    role->job->done(worker, verdict);
}

static void op_change(struct mu_store_op *op, const struct mu_change *change)
{
    struct store_worker *worker = MU_CONTAINER_OF(op, struct store_worker, op);

    worker->role->job->change(worker, change);
}

void store_worker_submit(struct store_worker *worker)
{
    struct store_world *w = worker->role->world;

    MU_ASSERT(!worker->busy && !worker->stopped);
    worker->busy = true;
    worker->ticket = once_begin(w->ops, worker->role->member->number);
    worker->role->doing = mu_store_verb_facts(worker->op.request.verb)->name;
    worker->submitted_ns = mu_sim_now_ns(w->sim);
    worker->submitted_calm = w->calm;
    worker->incarnation = w->incarnation;
    worker->op.done = op_done;
    worker->op.change = worker->role->job->change == NULL ? NULL : op_change;
    mu_store_submit(worker->peer->store, &worker->op);
}

static void think_over(struct mu_timer *timer)
{
    struct store_worker *worker = MU_CONTAINER_OF(timer, struct store_worker, timer);

    worker->role->job->next(worker);
}

void store_worker_think(struct store_worker *worker, uint32_t percent)
{
    struct store_world *w = worker->role->world;
    struct mu_env *env = worker->peer->env;
    uint64_t slower = w->healed && !w->calm ? 4 : 1; /* while the others catch up */
    uint64_t max = w->finishing ? MU_NS_PER_MS : slower * w->think_max_ns * percent / 100 + 1;
    mu_mono_t at = mu_mono_add_ns(mu_env_now(env).mono, mu_prng_below(&worker->prng, max));

    if (w->bursts != STORE_BURSTS_NONE && !w->finishing) {
        uint64_t grid = w->think_max_ns / 4;
        uint64_t true_ns = mu_sim_now_ns(w->sim) + mu_mono_since(mu_env_now(env).mono, at);
        uint64_t ns = w->bursts == STORE_BURSTS_ALL ? true_ns : at.ns;

        at = mu_mono_add_ns(at, grid - ns % grid);
    }
    mu_env_timer_arm(env, &worker->timer, at);
}

static void peer_closed(void *context)
{
    struct store_peer *p = context;

    mu_sim_exit(p->env);
    for (uint32_t i = 0; i < p->member->role_count; i++) {
        mu_free(p->workers[i]);
    }
    mu_free(p);
}

void store_worker_stop(struct store_worker *worker)
{
    struct store_peer *p = worker->peer;

    MU_ASSERT(!worker->busy && !worker->stopped);
    worker->stopped = true;
    if (--p->working == 0) {
        mu_store_close(p->store, peer_closed, p);
    }
}

static const char *host_name(uint32_t number)
{
    static const char *const names[STORE_SERVERS_MAX] = {"server", "server1", "server2", "server3"};

    return names[number];
}

static int start_client(struct mu_env *env, void *arg)
{
    struct store_member *m = arg;
    struct store_world *w = m->world;
    struct store_peer *p = mu_sim_calloc(sizeof(*p));
    struct mu_store_tcp_config config = mu_store_tcp_config_defaults();
    int rc;

    m->quiet = w->healed;
    m->lives++;
    p->member = m;
    p->env = env;
    config.addr = (struct mu_addr){
        .kind = MU_ADDR_TCP,
        .port = STORE_PORT,
    };
    (void)snprintf(config.addr.host, sizeof(config.addr.host), "%s",
                   host_name(store_member_host(m)));
    config.protocol = m->protocol;
    config.name = "sim";
    rc = mu_store_tcp_new(env, &config, &p->store);
    if (rc == MUSTER_ENOMEM && w->memory) {
        mu_free(p);
        mu_sim_exit(env);
        (void)mu_sim_at(w->sim, mu_sim_now_ns(w->sim) + 100 * MU_NS_PER_MS, restart_client, m);
        return 0;
    }
    if (rc != 0) {
        return rc;
    }
    p->working = m->role_count;
    for (uint32_t i = 0; i < m->role_count; i++) {
        struct store_worker *worker = mu_sim_calloc(m->roles[i].job->worker_size);
        uint64_t seed;

        p->workers[i] = worker;
        worker->role = &m->roles[i];
        worker->peer = p;
        mu_env_entropy(env, &seed, sizeof(seed));
        mu_prng_seed(&worker->prng, seed);
        mu_timer_init(&worker->timer, think_over);
        store_worker_think(worker, 100);
    }
    return 0;
}

static void client_killed(void *arg)
{
    struct store_member *m = arg;

    once_forgive(m->world->ops, m->number);
    for (uint32_t i = 0; i < m->role_count; i++) {
        if (m->roles[i].job->killed != NULL) {
            m->roles[i].job->killed(&m->roles[i]);
        }
    }
}

/* --- the story -------------------------------------------------------------------------------- */

static bool role_got_on(const struct store_role *role)
{
    return role->job->got_on != NULL ? role->job->got_on(role) : role->answered >= role->wanted;
}

static bool all_got_on(void *arg)
{
    struct store_world *w = arg;

    for (uint32_t i = 0; i < STORE_CLIENTS; i++) {
        struct store_member *m = &w->members[i];

        for (uint32_t k = 0; k < m->role_count; k++) {
            if (!role_got_on(&m->roles[k])) {
                return false;
            }
        }
    }
    return true;
}

/* Names the worker that all others wait for. */
static void blame(struct store_world *w)
{
    for (uint32_t i = 0; i < STORE_CLIENTS; i++) {
        struct store_member *m = &w->members[i];

        for (uint32_t k = 0; k < m->role_count; k++) {
            if (!role_got_on(&m->roles[k])) {
                mu_sim_fail(w->sim,
                            "client %" PRIu32 " made no progress though all faults had ended "
                            "(role %" PRIu32 ", %s)",
                            i, k, m->roles[k].doing == NULL ? "idle" : m->roles[k].doing);
            }
        }
    }
}

static bool clients_left(void *arg)
{
    struct store_world *w = arg;

    for (uint32_t i = 0; i < STORE_CLIENTS; i++) {
        if (w->members[i].role_count != 0 && mu_sim_proc_alive(w->members[i].proc)) {
            return false;
        }
    }
    return true;
}

static bool server_left(void *arg)
{
    struct store_world *w = arg;

    for (uint32_t i = 0; i < w->host_count; i++) {
        if (mu_sim_proc_alive(w->hosts[i].proc)) {
            return false;
        }
    }
    return true;
}

/* Chooses the job of the next role: at first each in turn, then any that fits. -1: no job fits. */
static int draw_job(struct store_world *w, const struct store_member *m)
{
    size_t suited[STORE_JOBS_MAX];
    size_t count = 0;

    for (size_t i = 0; i < STORE_JOBS_MAX && w->setup->jobs[i] != NULL; i++) {
        if (w->setup->jobs[i]->suits == NULL || w->setup->jobs[i]->suits(m->protocol)) {
            suited[count++] = i;
        }
    }
    if (count == 0) {
        return -1;
    }
    if (m->role_count == 0 && m->number < STORE_NATIVES) {
        return (int)suited[m->number % count];
    }
    return (int)suited[mu_prng_below(mu_sim_prng(w->sim), count)];
}

static void seat_workers(struct store_world *w, struct store_member *m, uint32_t *numbers)
{
    struct mu_prng *prng = mu_sim_prng(w->sim);
    uint64_t most = mu_prng_below(prng, 2) == 0 ? 2 : STORE_WORKERS_MAX;
    uint64_t count = 1 + mu_prng_below(prng, m->number < STORE_NATIVES ? most : 2);

    while (m->role_count < count) {
        int job = draw_job(w, m);

        if (job < 0) {
            return;
        }
        m->roles[m->role_count++] = (struct store_role){.world = w,
                                                        .member = m,
                                                        .job = w->setup->jobs[job],
                                                        .state = w->states[job],
                                                        .number = numbers[job]++};
    }
}

static void set_up_clients(struct store_world *w)
{
    static const struct {
        const char *name;
        enum mu_store_tcp_protocol protocol;
    } kinds[STORE_CLIENTS] = {{"native0", MU_STORE_TCP_MUSTER},
                              {"native1", MU_STORE_TCP_MUSTER},
                              {"native2", MU_STORE_TCP_MUSTER},
                              {"torch1", MU_STORE_TCP_TORCH1},
                              {"torch2", MU_STORE_TCP_TORCH2}};
    uint32_t numbers[STORE_JOBS_MAX] = {0};

    for (uint32_t i = 0; i < STORE_CLIENTS; i++) {
        struct store_member *m = &w->members[i];

        *m = (struct store_member){.world = w, .number = i, .protocol = kinds[i].protocol};
        seat_workers(w, m, numbers);
        if (m->role_count == 0) {
            continue;
        }
        m->proc = mu_sim_proc_new(
            mu_sim_host_new(w->sim, kinds[i].name),
            &(struct mu_sim_program){
                .name = "client", .start = start_client, .killed = client_killed, .arg = m});
    }
}

static void set_up(struct store_world *w)
{
    struct mu_prng *prng = mu_sim_prng(w->sim);
    unsigned flags;

    w->disk = w->setup->disk;
    if (w->disk == STORE_DISK_DRAWN) {
        w->disk = mu_prng_below(prng, 2) == 0 ? STORE_DISK_NONE : STORE_DISK_ALWAYS;
    }
    w->aim_ppm = (w->disk != STORE_DISK_NONE || w->setup->backed || w->setup->gateways) &&
                         mu_prng_below(prng, 2) == 0
                     ? 20000
                     : 0;
    w->journal_bytes_high = (size_t)64 << 20;
    if (mu_prng_below(prng, 3) == 0) {
        w->journal_bytes_high = (size_t)mu_prng_below(prng, mu_prng_below(prng, 2) == 0 ? 20 : 200);
    }
    w->grace_ms = mu_prng_below(prng, 4) == 0 ? 1000 : 10000;
    w->sync_interval_ms = mu_prng_below(prng, 2) == 0 ? 100 : 20;
    w->lease_ms = w->setup->reading ? 200 + (uint32_t)mu_prng_below(prng, 3000) : 500;
    w->think_max_ns = (150 + mu_prng_below(prng, 450)) * MU_NS_PER_MS;
    w->bursts = (enum store_bursts)mu_prng_below(prng, 3);
    w->memory =
        mu_sim_faults(w->sim)->alloc_fail_ppm != 0 || mu_sim_faults(w->sim)->shortage_every_ns != 0;
    w->ops = once_new(w->sim, "operation");
    for (size_t i = 0; i < STORE_JOBS_MAX && w->setup->jobs[i] != NULL; i++) {
        w->states[i] = mu_sim_calloc(w->setup->jobs[i]->state_size);
        w->setup->jobs[i]->make(w, w->states[i]);
    }
    flags = (w->disk == STORE_DISK_NONE && !w->setup->backed ? MU_SIM_KEEP_ALIVE : 0) |
            (w->setup->keep_awake ? MU_SIM_KEEP_AWAKE : 0);
    w->host_count = w->setup->deep || w->setup->tree         ? 4
                    : w->setup->backed || w->setup->gateways ? 3
                                                             : 1;
    for (uint32_t i = 0; i < w->host_count; i++) {
        struct store_host *h = &w->hosts[i];

        *h = (struct store_host){.world = w, .number = i};
        h->proc = mu_sim_proc_new(
            mu_sim_host_new(w->sim, host_name(i)),
            &(struct mu_sim_program){.name = "store",
                                     .start = store_host_start,
                                     .killed = store_host_killed,
                                     .arg = h,
                                     .flags = store_host_is_gateway(h) ? 0 : flags});
    }
    set_up_clients(w);
}

static void heal(struct store_world *w)
{
    uint64_t pause_ns = mu_sim_faults(w->sim)->pause_max_ns;

    w->aim_ppm = 0;
    mu_sim_heal(w->sim);
    mu_sim_run_for(w->sim, pause_ns);
    w->quiet_ns = mu_sim_now_ns(w->sim);
    w->healed = true;
    mu_sim_run_for(w->sim, w->setup->wait_ns);
    for (uint32_t i = 0; i < STORE_CLIENTS; i++) {
        struct store_member *m = &w->members[i];

        for (uint32_t k = 0; k < m->role_count; k++) {
            m->roles[k].wanted = m->roles[k].answered + 2;
        }
    }
    if (!mu_sim_run_until(w->sim, CONVERGE_NS, all_got_on, w)) {
        blame(w);
    }
    w->calm = true;
    mu_sim_run_for(w->sim, CALM_NS);
    store_world_tell(w, STORE_CALM);
    w->calm = false;
}

static void leave(struct store_world *w)
{
    w->finishing = true;
    if (!mu_sim_run_until(w->sim, CONVERGE_NS, clients_left, w)) {
        mu_sim_fail(w->sim, "a client did not leave");
        return;
    }
    w->leaving = true;
    for (uint32_t i = 0; i < w->host_count; i++) {
        if (w->hosts[i].serving == NULL) {
            mu_sim_fail(w->sim, "the server is not there at the end");
            return;
        }
        mu_sim_call(w->hosts[i].proc, store_host_drain, w->hosts[i].serving);
    }
    if (!mu_sim_run_until(w->sim, CONVERGE_NS, server_left, w)) {
        mu_sim_fail(w->sim, "the server did not leave");
    }
}

/* A server that left in order has kept everything: another one finds it. */
static void come_back(struct store_world *w)
{
    w->drained = true;
    mu_sim_restart(w->hosts[0].proc);
    mu_sim_run_for(w->sim, MU_NS_PER_S);
    if (mu_sim_failure(w->sim) == NULL && w->hosts[0].serving != NULL) {
        mu_sim_call(w->hosts[0].proc, store_host_drain, w->hosts[0].serving);
        if (!mu_sim_run_until(w->sim, CONVERGE_NS, server_left, w)) {
            mu_sim_fail(w->sim, "the server did not leave again");
        }
    }
}

void store_world_run(struct mu_sim *sim, const struct store_setup *setup)
{
    static const char *const members[FAKE_ETCD_MEMBERS] = {"e0", "e1", "e2"};
    struct store_world w = {.sim = sim, .setup = setup};

    mu_sim_trace_log(sim);
    if (setup->backed) {
        w.etcd = fake_etcd_new(sim, members, FAKE_ETCD_MEMBERS);
        store_world_trouble_etcd(sim, &w);
        if (mu_prng_below(mu_sim_prng(sim), 2) == 0) {
            store_world_write_elsewhere(sim, &w);
        }
    }
    set_up(&w);
    mu_sim_run_for(sim, STORE_FAULTY_NS);
    heal(&w);
    if (mu_sim_failure(sim) == NULL) {
        leave(&w);
    }
    if (mu_sim_failure(sim) == NULL && w.disk != STORE_DISK_NONE) {
        come_back(&w);
    }
    once_finish(w.ops);
    for (size_t i = 0; i < STORE_JOBS_MAX && setup->jobs[i] != NULL; i++) {
        if (mu_sim_failure(sim) == NULL) {
            setup->jobs[i]->check(&w, w.states[i]);
        }
        setup->jobs[i]->drop(w.states[i]);
        mu_free(w.states[i]);
    }
    once_free(w.ops);
    if (w.etcd != NULL) {
        fake_etcd_free(w.etcd);
    }
    muster_log_set(NULL, NULL, MUSTER_LOG_WARN);
}
