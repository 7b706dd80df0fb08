/*
 * A DHT that grows to a thousand nodes while nodes are killed and others come in their place. At
 * 64, at 256 and at 1,000 records are stored through some nodes and looked for through others.
 *
 * What must hold: nearly all are found; no lookup costs more than its budget of calls and time; the
 * way to a record, counted in nodes one after the other, grows no faster than the logarithm of
 * their number; and nothing is found that has expired, which short-lived records are stored for.
 */
#include "scenarios/scenarios.h"

#include <stdio.h>
#include <string.h>

#include <muster/log.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "service/dht/dht.h"
#include "sim_unary.h"

#define NODES_MAX 1000
#define RECORDS   60 /* records for each size */
#define SHORT     10 /* records that expire soon, for each size */
#define LOOKS     4  /* how often each of them is looked for */
#define SEEDS     3
#define OP_NS     (60 * MU_NS_PER_S) /* time limit of an operation */

static const uint32_t sizes[] = {64, 256, NODES_MAX};

struct member {
    struct swarm *swarm;
    uint32_t number;
    struct mu_sim_proc *proc;
    struct mu_env *env;
    struct mu_dht_service *dht; /* while it lives */
    struct sim_unary *unary;
    struct mu_dht_wish join;
    struct mu_dht_wish wish;
};

struct swarm {
    struct mu_sim *sim;
    struct member *members;
    uint32_t count;
    bool flat; /* a planted bug: nodes know hardly any others */
    bool done;
    uint32_t killed;
    /* Of the operation in progress. */
    uint32_t key;
    double in_s;
    double expiration;
    bool latest;
    /* Of the size that is measured. */
    uint32_t found;
    uint32_t asked;
    uint64_t hops;
    uint32_t hops_max;
    uint32_t calls_max;
    uint64_t took_max_ns;
    uint32_t gone; /* short-lived records that were looked for too late */
};

static struct mu_dht_id key_id(uint32_t key)
{
    uint8_t bytes[4];

    mu_put_u32(bytes, key);
    return mu_dht_key(mu_span(bytes, sizeof(bytes)));
}

/* --- a node ----------------------------------------------------------------------------------- */

/* The very first node finds no other, and finds others later. */
static void on_joined(struct mu_dht_wish *wish, const struct mu_dht_op *op)
{
    (void)wish;
    (void)op;
}

static bool has_joined(const struct member *m)
{
    return m->dht != NULL && mu_dht_routing(mu_dht_service_node(m->dht))->count > 0;
}

static int start_member(struct mu_env *env, void *arg)
{
    struct member *m = arg;
    struct mu_peer_id peers[SEEDS];
    struct mu_dht_service_config config = {.dht = mu_dht_config_defaults()};
    struct mu_errmsg msg;
    int err;

    m->env = env;
    err = sim_unary_new(env, m->number, &m->unary);
    if (err != 0) {
        return err;
    }
    config.unary = sim_unary_of(m->unary);
    config.dht.self.peer = sim_unary_peer(m->number);
    config.dht.bucket_size = m->swarm->flat ? 1 : 20;
    config.dht.search_calls_max = 128;
    err = mu_dht_service_start(env, &config, &m->dht, &msg);
    if (err != 0) {
        return err;
    }
    /* The first nodes let the others in, and are never killed. */
    for (uint32_t i = 0; i < SEEDS; i++) {
        peers[i] = sim_unary_peer((m->number + i) % SEEDS);
    }
    m->join.done = on_joined;
    return mu_dht_service_join(m->dht, &m->join, peers, SEEDS);
}

static void member_killed(void *arg)
{
    struct member *m = arg;

    m->dht = NULL;
}

/* --- the story -------------------------------------------------------------------------------- */

static bool all_joined(void *arg)
{
    struct swarm *s = arg;

    for (uint32_t i = 0; i < s->count; i++) {
        if (mu_sim_proc_alive(s->members[i].proc) && !has_joined(&s->members[i])) {
            return false;
        }
    }
    return true;
}

static void grow(struct swarm *s, uint32_t size)
{
    while (s->count < size && mu_sim_failure(s->sim) == NULL) {
        struct member *m = &s->members[s->count];
        char name[16];

        (void)snprintf(name, sizeof(name), "n%u", s->count);
        *m = (struct member){.swarm = s, .number = s->count};
        m->proc = mu_sim_proc_new(mu_sim_host_new(s->sim, name),
                                  &(struct mu_sim_program){.name = "dht",
                                                           .start = start_member,
                                                           .killed = member_killed,
                                                           .arg = m,
                                                           .flags = MU_SIM_KEEP_ALIVE});
        s->count++;
        mu_sim_run_for(s->sim, 20 * MU_NS_PER_MS);
    }
    if (!mu_sim_run_until(s->sim, 60 * MU_NS_PER_S, all_joined, s)) {
        mu_sim_fail(s->sim, "of %u nodes some have not joined", s->count);
    }
}

static struct member *some_member(struct swarm *s)
{
    for (;;) {
        struct member *m = &s->members[mu_prng_below(mu_sim_prng(s->sim), s->count)];

        if (has_joined(m)) {
            return m;
        }
    }
}

/*
 * One node dies; nodes that died before come back under other ids. At every size about a tenth of
 * the nodes dies while it is measured: records with five replicas must survive that.
 */
static void churn(struct swarm *s)
{
    struct member *m;

    if (mu_sim_failure(s->sim) != NULL ||
        !mu_prng_chance(mu_sim_prng(s->sim), s->count * (1000000 / NODES_MAX))) {
        return;
    }
    m = some_member(s);
    for (uint32_t i = SEEDS; i < s->count; i++) {
        if (!mu_sim_proc_alive(s->members[i].proc)) {
            mu_sim_restart(s->members[i].proc);
        }
    }
    if (m->number >= SEEDS) {
        mu_sim_kill(m->proc, MU_SIM_KILL_PROCESS);
        s->killed++;
    }
}

static void on_stored(struct mu_dht_wish *wish, const struct mu_dht_op *op)
{
    struct swarm *s = MU_CONTAINER_OF(wish, struct member, wish)->swarm;

    if (op->results[0].stored == 0) {
        mu_sim_fail(s->sim, "a record was stored nowhere");
    }
    s->done = true;
}

/* A record that is found is what was stored, and has not expired. */
static void check_found(struct member *m, const struct mu_dht_result *r)
{
    struct swarm *s = m->swarm;
    double now = mu_dht_service_time(m->dht);

    if (r->type == MU_DHT_NOT_FOUND) {
        s->gone += !(s->expiration > now);
        return;
    }
    if (r->expiration != s->expiration || !(r->expiration > now)) {
        mu_sim_fail(s->sim, "found at %.6f what expires at %.6f, and was stored until %.6f", now,
                    r->expiration, s->expiration);
    }
    s->found++;
}

static void on_got(struct mu_dht_wish *wish, const struct mu_dht_op *op)
{
    struct member *m = MU_CONTAINER_OF(wish, struct member, wish);
    struct swarm *s = m->swarm;
    const struct mu_dht_result *r = &op->results[0];

    check_found(m, r);
    s->asked++;
    s->hops += r->hops;
    s->hops_max = r->hops > s->hops_max ? r->hops : s->hops_max;
    s->calls_max = r->calls > s->calls_max ? r->calls : s->calls_max;
    s->done = true;
}

static void do_store(void *arg)
{
    struct member *m = arg;
    struct mu_dht_put put = {
        .key = key_id(m->swarm->key),
        .value = MU_SPAN_LIT("\xc0"),
        .expiration = mu_dht_service_time(m->dht) + m->swarm->in_s,
    };

    m->swarm->expiration = put.expiration;
    m->wish.done = on_stored;
    MU_ASSERT(mu_dht_service_store(m->dht, &m->wish, &put, 1) == 0);
}

static void do_get(void *arg)
{
    struct member *m = arg;
    struct mu_dht_id id = key_id(m->swarm->key);

    m->wish.done = on_got;
    MU_ASSERT(mu_dht_service_get(m->dht, &m->wish, &id, 1, m->swarm->latest) == 0);
}

static bool is_done(void *arg)
{
    return ((struct swarm *)arg)->done;
}

static void do_with(struct swarm *s, void (*what)(void *arg))
{
    uint64_t began = mu_sim_now_ns(s->sim);
    struct member *m;

    if (mu_sim_failure(s->sim) != NULL) {
        return;
    }
    m = some_member(s);
    s->done = false;
    mu_sim_call(m->proc, what, m);
    if (!mu_sim_run_until(s->sim, OP_NS, is_done, s)) {
        mu_sim_fail(s->sim, "an operation did not end in time");
    }
    began = mu_sim_now_ns(s->sim) - began;
    s->took_max_ns = began > s->took_max_ns ? began : s->took_max_ns;
}

static uint64_t some_ms(struct swarm *s, uint64_t most)
{
    return mu_prng_below(mu_sim_prng(s->sim), most);
}

/* Records of up to three seconds, looked for while they last and when they have expired. */
static void look_for_expired(struct swarm *s, uint32_t first)
{
    for (uint32_t i = 0; i < SHORT && mu_sim_failure(s->sim) == NULL; i++) {
        s->key = first + i;
        s->in_s = (double)(200 + some_ms(s, 3000)) / 1e3;
        do_with(s, do_store);
        for (uint32_t look = 0; look < LOOKS; look++) {
            s->latest = mu_prng_chance(mu_sim_prng(s->sim), 300000);
            do_with(s, do_get);
            mu_sim_run_for(s->sim, some_ms(s, 1500) * MU_NS_PER_MS);
        }
        churn(s);
    }
    if (s->gone == 0) {
        mu_sim_fail(s->sim, "no record was looked for behind its time");
    }
}

static double log2_of(uint32_t n)
{
    double log = 0;

    for (; n > 1; n /= 2) {
        log += 1;
    }
    return log;
}

/* Each record is looked for once, so no node has cached it. */
static void walk(struct swarm *s, uint32_t first)
{
    double until[RECORDS];

    s->asked = s->found = s->hops_max = s->calls_max = 0;
    s->hops = s->took_max_ns = 0;
    s->in_s = 3600;
    s->latest = false;
    for (uint32_t i = 0; i < RECORDS; i++) {
        s->key = first + i;
        do_with(s, do_store);
        until[i] = s->expiration;
        churn(s);
        mu_sim_run_for(s->sim, 100 * MU_NS_PER_MS);
    }
    for (uint32_t i = 0; i < RECORDS; i++) {
        s->key = first + i;
        s->expiration = until[i];
        do_with(s, do_get);
        churn(s);
        mu_sim_run_for(s->sim, 100 * MU_NS_PER_MS);
    }
}

static void measure(struct swarm *s)
{
    double mean;

    walk(s, s->count * 1000);
    if (mu_sim_failure(s->sim) != NULL) {
        return;
    }
    mean = (double)s->hops / s->asked;
    mu_sim_note(s->sim, NULL,
                "%u nodes: %u of %u found, %.2f hops (%u at most), %u calls and %.1f s at most",
                s->count, s->found, s->asked, mean, s->hops_max, s->calls_max,
                (double)s->took_max_ns / 1e9);
    /*
     * A bucket of 20 nodes brings four bits and more at each step: 0.9 to 1.0, 1.3 and 1.6 to 1.8
     * hops were seen. With buckets of one, as in `dht-flat`, it takes more than is allowed.
     */
    if (mean > log2_of(s->count) / 4 || s->hops_max > 2 + log2_of(s->count)) {
        mu_sim_fail(s->sim, "of %u nodes: %.2f hops on average, %u at most", s->count, mean,
                    s->hops_max);
    }
    if (s->found * 100 < s->asked * 98) {
        mu_sim_fail(s->sim, "of %u nodes: only %u of %u records were found", s->count, s->found,
                    s->asked);
    }
    if (s->calls_max > 128) {
        mu_sim_fail(s->sim, "of %u nodes: a lookup asked %u", s->count, s->calls_max);
    }
}

static void run_swarm(struct mu_sim *sim, bool flat)
{
    struct swarm *s = mu_sim_calloc(sizeof(*s));

    muster_log_set(NULL, NULL, MUSTER_LOG_ERROR);
    s->sim = sim;
    s->flat = flat;
    s->members = mu_sim_calloc(NODES_MAX * sizeof(*s->members));
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]) && mu_sim_failure(sim) == NULL; i++) {
        grow(s, sizes[i]);
        if (mu_sim_failure(sim) == NULL) {
            measure(s);
            look_for_expired(s, s->count * 1000 + RECORDS);
        }
    }
    muster_log_set(NULL, NULL, MUSTER_LOG_WARN);
    mu_free(s->members);
    mu_free(s);
}

static void run_dht_swarm(struct mu_sim *sim)
{
    run_swarm(sim, false);
}

static struct mu_sim_faults quiet(struct mu_prng *prng)
{
    (void)prng;
    return mu_sim_faults_none();
}

const struct mu_sim_scenario mu_sim_scenario_dht_swarm = {
    .name = "dht-swarm",
    .summary = "1,000 nodes of the DHT, some dying: the way to a record grows as their logarithm",
    .faults = quiet,
    .run = run_dht_swarm,
    .slow = true,
};

SIM_SCENARIO(dht_flat, "dht-flat", "the same, with buckets of one", quiet, true,
             run_swarm(sim, true))
