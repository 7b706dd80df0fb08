/*
 * Nodes of the DHT that store and look up records, come and go, and lose each other.
 *
 * What must hold: what is found was stored, with that very expiration; nothing is found, or kept,
 * after it has expired; of two values, the one that expires later stays; every operation ends once
 * and within its budget of calls and time; after the faults, every search for the newest record
 * finds it; and a node that had lost all others comes back, and brings what it stored meanwhile.
 */
#include "scenarios/scenarios.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <muster/log.h>

#include "checkers/once.h"
#include "codec/bin/msgpack.h"
#include "core/alloc.h"
#include "core/assert.h"
#include "service/dht/dht.h"
#include "sim_unary.h"

#define NODES_MAX   16
#define SEEDS       2 /* nodes through which the others join */
#define KEYS        8 /* the second half of them are dictionaries */
#define SUBKEYS     4
#define OFFERS_MAX  20000
#define FAULTY_NS   (20 * MU_NS_PER_S)
#define CONVERGE_NS (180 * MU_NS_PER_S)
#define OP_MS       15000
/* Where the simulator's wall clocks start. */
#define WALL_EPOCH_NS (UINT64_C(2000000000) * MU_NS_PER_S)

enum plant {
    PLANT_NONE,
    PLANT_STALE, /* a node's clock is far behind */
    PLANT_OLD,   /* a node goes back to an older value */
    PLANT_MUTE,  /* a node that has lost the others does not come back */
    PLANT_SLOW,  /* an operation has no time limit */
};

struct offer {
    uint32_t key;
    uint32_t subkey; /* UINT32_MAX: a regular value */
    double expiration;
};

struct node_state {
    struct dht_world *world;
    uint32_t number;
    struct mu_sim_proc *proc;
    struct node *node; /* while the process lives */
    double kept[KEYS]; /* when the record last seen in its storage expires */
};

struct dht_world {
    struct mu_sim *sim;
    enum plant plant;
    struct once *ops;
    struct node_state nodes[NODES_MAX];
    uint32_t count;
    struct offer *offers;
    uint32_t offer_count;
    bool calm; /* nodes start no operations by themselves any more */
    bool leaving;
    bool short_of_memory;
    uint64_t found, missed;
    /* An operation of the story. */
    uint32_t wanted_key;
    uint32_t wanted_offer;
    uint32_t done_count;
    uint32_t good_count;
};

struct node {
    struct node_state *state;
    struct mu_env *env;
    struct sim_unary *unary;
    struct mu_dht_service *dht;
    struct mu_timer next;
    struct mu_dht_wish join;
    uint32_t under_way;
    bool stopping;
};

struct op {
    struct mu_dht_wish wish;
    struct node *node;
    uint64_t ticket;
    uint64_t began_ns;
    uint32_t key;
    bool story;
};

/* Computed exactly as a node does, because a record may be found in the very moment before it
 * expires. */
static double true_time(const struct dht_world *w)
{
    return (double)(WALL_EPOCH_NS + mu_sim_now_ns(w->sim)) / 1e9;
}

static struct mu_dht_id key_id(uint32_t key)
{
    uint8_t byte = (uint8_t)key;

    return mu_dht_key(mu_span(&byte, 1));
}

/* --- results ---------------------------------------------------------------------------------- */

/* Finds the offer that the value names, if the value is what was offered. */
static uint32_t check_value(struct dht_world *w, uint32_t key, uint32_t subkey,
                            struct mu_span value, double expiration)
{
    struct mu_mp t = {0};
    const struct offer *o;

    if (mu_mp_next(&value, &t) != 0 || t.type != MU_MP_UINT || t.number >= w->offer_count) {
        mu_sim_fail(w->sim, "key %u: a value that nobody stored", key);
        return 0;
    }
    o = &w->offers[t.number];
    if (o->key != key || o->subkey != subkey || o->expiration != expiration) {
        mu_sim_fail(w->sim, "key %u/%u: the value of %u/%u, until %.3f and not %.3f", key, subkey,
                    o->key, o->subkey, expiration, o->expiration);
    }
    if (!(expiration > true_time(w))) {
        mu_sim_fail(w->sim, "key %u/%u: found at %.6f, though it expired at %.6f", key, subkey,
                    true_time(w), expiration);
    }
    return (uint32_t)t.number;
}

static void check_result(struct op *op, const struct mu_dht_result *r)
{
    struct dht_world *w = op->node->state->world;
    struct mu_dht_dict dict;
    struct mu_dht_entry e;
    uint32_t offer = UINT32_MAX;

    if (r->type == MU_DHT_FOUND_REGULAR) {
        offer = check_value(w, op->key, UINT32_MAX, mu_buf_span(&r->value), r->expiration);
    } else if (r->type == MU_DHT_FOUND_DICTIONARY) {
        if (mu_dht_dict_decode(mu_buf_span(&r->value), &dict) != 0 || dict.count == 0) {
            mu_sim_fail(w->sim, "key %u: an empty dictionary, or none", op->key);
            return;
        }
        while (mu_dht_dict_next(&dict, &e)) {
            offer = check_value(w, op->key, e.subkey.data[0], e.value, e.expiration);
        }
    }
    w->found += r->type != MU_DHT_NOT_FOUND;
    w->missed += r->type == MU_DHT_NOT_FOUND;
    if (op->story && offer == w->wanted_offer) {
        w->good_count++;
    }
}

static void check_budget(struct op *op, const struct mu_dht_op *done)
{
    struct node_state *state = op->node->state;
    struct dht_world *w = state->world;
    uint64_t took = mu_sim_now_ns(w->sim) - op->began_ns;
    uint64_t allowed = OP_MS * MU_NS_PER_MS * 3 / 2 + 2 * mu_sim_faults(w->sim)->timer_late_max_ns;

    for (size_t i = 0; i < done->count; i++) {
        if (done->results[i].calls > 128 + 16) {
            mu_sim_fail(w->sim, "an operation asked %u nodes", done->results[i].calls);
        }
    }
    if (took > allowed && mu_sim_proc_awake_ns(state->proc) < op->began_ns) {
        mu_sim_fail(w->sim, "an operation took %.3f s", (double)took / 1e9);
    }
}

static void op_done(struct mu_dht_wish *wish, const struct mu_dht_op *done)
{
    struct op *op = MU_CONTAINER_OF(wish, struct op, wish);
    struct dht_world *w = op->node->state->world;

    once_end(w->ops, op->ticket);
    check_budget(op, done);
    if (done->status != 0 && done->status != MUSTER_ETIMEDOUT && done->status != MUSTER_ECLOSED &&
        !(w->short_of_memory && done->status == MUSTER_ENOMEM)) {
        mu_sim_fail(w->sim, "an operation ended with %d", done->status);
    }
    if (done->type == MU_DHT_OP_GET) {
        check_result(op, &done->results[0]);
    } else if (op->story && done->results[0].stored > 0) {
        w->good_count++;
    }
    w->done_count += op->story;
    op->node->under_way--;
    mu_free(op);
}

/* --- operations ------------------------------------------------------------------------------- */

static struct op *new_op(struct node *n, uint32_t key, bool story)
{
    struct op *op = mu_sim_calloc(sizeof(*op));

    op->wish.done = op_done;
    op->node = n;
    op->key = key;
    op->story = story;
    op->began_ns = mu_sim_now_ns(n->state->world->sim);
    op->ticket = once_begin(n->state->world->ops, n->state->number);
    n->under_way++;
    return op;
}

static void begun(struct op *op, int err)
{
    if (err != 0) {
        struct dht_world *w = op->node->state->world;

        if (err != MUSTER_ENOMEM) {
            mu_sim_fail(w->sim, "an operation could not begin: %d", err);
        }
        once_end(w->ops, op->ticket);
        op->node->under_way--;
        mu_free(op);
    }
}

static void begin_get(struct node *n, uint32_t key, bool latest, bool story)
{
    struct op *op = new_op(n, key, story);
    struct mu_dht_id id = key_id(key);

    begun(op, mu_dht_service_get(n->dht, &op->wish, &id, 1, latest));
}

static void begin_store(struct node *n, uint32_t key, uint32_t subkey, double in_s, bool story)
{
    struct dht_world *w = n->state->world;
    struct op *op = new_op(n, key, story);
    uint8_t value[5];
    uint8_t tag = (uint8_t)subkey;
    uint32_t id = w->offer_count++;
    struct mu_dht_put put = {
        .key = key_id(key),
        .subkey = mu_span(&tag, subkey == UINT32_MAX ? 0 : 1),
        .value = mu_span(value, sizeof(value)),
        .expiration = mu_dht_service_time(n->dht) + in_s,
    };

    MU_ASSERT(id < OFFERS_MAX);
    value[0] = 0xce;
    for (int i = 0; i < 4; i++) {
        value[1 + i] = (uint8_t)(id >> (8 * (3 - i)));
    }
    w->offers[id] = (struct offer){key, subkey, put.expiration};
    begun(op, mu_dht_service_store(n->dht, &op->wish, &put, 1));
}

/* A record that a node keeps may go when it has expired, but must not become older. */
static void check_kept(struct node *n)
{
    struct node_state *state = n->state;
    struct dht_world *w = state->world;
    double now = mu_dht_service_time(n->dht);

    for (uint32_t key = 0; key < KEYS; key++) {
        struct mu_dht_id id = key_id(key);
        struct mu_dht_storage *s = mu_dht_main_storage(mu_dht_service_node(n->dht));
        const struct mu_dht_record *r = mu_dht_storage_get(s, now, &id);

        if (r != NULL && !(r->expiration > now)) {
            mu_sim_fail(w->sim, "n%u keeps key %u, which has expired", state->number, key);
        }
        if ((r == NULL ? 0 : r->expiration) < state->kept[key] && state->kept[key] > now) {
            mu_sim_fail(w->sim, "n%u kept key %u until %.3f and now keeps what is older",
                        state->number, key, state->kept[key]);
        }
        state->kept[key] = r == NULL ? 0 : r->expiration;
    }
}

/* A planted bug: the first value is replaced by one that expires sooner. */
static void go_back(struct node *n)
{
    struct mu_dht_storage *s = mu_dht_main_storage(mu_dht_service_node(n->dht));
    double now = mu_dht_service_time(n->dht);
    struct mu_dht_id id = key_id(0);
    const struct mu_dht_record *r = mu_dht_storage_get(s, now, &id);
    uint8_t value[8];
    size_t len;
    double sooner;

    if (r == NULL || r->value.len > sizeof(value)) {
        return;
    }
    len = r->value.len;
    memcpy(value, r->value.data, len);
    sooner = now + (r->expiration - now) / 2;
    mu_dht_storage_expire(s, 1e300);
    (void)mu_dht_storage_put(s, now, NULL, &id, mu_span(value, len), sooner);
}

static void do_something(struct node *n)
{
    struct dht_world *w = n->state->world;
    struct mu_prng *prng = mu_sim_prng(w->sim);
    uint32_t key = (uint32_t)mu_prng_below(prng, KEYS);
    bool dict = key >= KEYS / 2;

    check_kept(n);
    if (w->plant == PLANT_OLD && mu_prng_chance(prng, 100000)) {
        go_back(n);
    }
    if (n->under_way >= 8) {
        return;
    }
    if (w->offer_count < OFFERS_MAX - 1000 && mu_prng_chance(prng, 400000)) {
        begin_store(n, key, dict ? (uint32_t)mu_prng_below(prng, SUBKEYS) : UINT32_MAX,
                    0.1 + (double)mu_prng_below(prng, 30000) / 1e3, false);
    } else {
        begin_get(n, key, mu_prng_chance(prng, 300000), false);
    }
}

/* --- a node ----------------------------------------------------------------------------------- */

static void on_unary_closed(void *context)
{
    struct node *n = context;
    struct mu_env *env = n->env;

    n->state->node = NULL;
    mu_free(n);
    mu_sim_exit(env);
}

static void on_stopped(void *context)
{
    struct node *n = context;

    if (n->under_way != 0) {
        mu_sim_fail(n->state->world->sim, "the service stopped with %u operations under way",
                    n->under_way);
    }
    mu_dht_service_free(n->dht);
    n->dht = NULL;
    sim_unary_close(n->unary, on_unary_closed, n);
}

static void on_next(struct mu_timer *timer)
{
    struct node *n = MU_CONTAINER_OF(timer, struct node, next);
    struct dht_world *w = n->state->world;

    if (w->leaving) {
        if (!n->stopping) {
            n->stopping = true;
            mu_dht_service_stop(n->dht);
        }
        return;
    }
    if (!w->calm) {
        do_something(n);
    }
    mu_env_timer_arm(
        n->env, timer,
        mu_mono_add_ms(mu_env_now(n->env).mono, 50 + mu_prng_below(mu_sim_prng(w->sim), 400)));
}

static void on_joined(struct mu_dht_wish *wish, const struct mu_dht_op *op)
{
    struct node *n = MU_CONTAINER_OF(wish, struct node, join);

    if (op->status == MUSTER_EDHT_CLOCK && n->state->world->plant != PLANT_STALE) {
        mu_sim_fail(n->state->world->sim, "clocks agree, and were said not to");
    }
}

static struct mu_dht_service_config config_of(struct node *n)
{
    struct dht_world *w = n->state->world;
    struct mu_dht_service_config config = {.dht = mu_dht_config_defaults(),
                                           .unary = sim_unary_of(n->unary),
                                           .stopped = on_stopped,
                                           .context = n};

    config.dht.self.peer = sim_unary_peer(n->state->number);
    config.dht.wait_ms = 1000;
    config.dht.op_ms = w->plant == PLANT_SLOW ? 300000 : OP_MS;
    config.dht.wait_ms = w->plant == PLANT_SLOW ? 120000 : 1000;
    config.dht.upkeep_ms = 5000;
    config.dht.rejoin_ms = w->plant == PLANT_MUTE ? 86400000 : 2000;
    config.dht.blacklist_ms = 1000;
    return config;
}

static int start_node(struct mu_env *env, void *arg)
{
    struct node_state *state = arg;
    struct node *n = mu_sim_calloc(sizeof(*n));
    struct mu_peer_id peers[SEEDS];
    struct mu_dht_service_config config;
    struct mu_errmsg msg;
    int err;

    n->state = state;
    n->env = env;
    memset(state->kept, 0, sizeof(state->kept));
    mu_sim_spare_memory(true); /* A node that cannot start is not tested here. */
    err = sim_unary_new(env, state->number, &n->unary);
    if (err != 0) {
        return err;
    }
    config = config_of(n);
    err = mu_dht_service_start(env, &config, &n->dht, &msg);
    if (err != 0) {
        return err;
    }
    for (uint32_t i = 0; i < SEEDS; i++) {
        peers[i] = sim_unary_peer(i);
    }
    n->join.done = on_joined;
    MU_ASSERT(mu_dht_service_join(n->dht, &n->join, peers, SEEDS) == 0);
    mu_sim_spare_memory(false);
    mu_timer_init(&n->next, on_next);
    mu_env_timer_arm(env, &n->next, mu_mono_add_ms(mu_env_now(env).mono, 500));
    state->node = n;
    return 0;
}

static void node_killed(void *arg)
{
    struct node_state *state = arg;

    state->node = NULL;
    once_forgive(state->world->ops, state->number);
}

/* --- the story -------------------------------------------------------------------------------- */

static bool all_there(void *arg)
{
    struct dht_world *w = arg;

    for (uint32_t i = 0; i < w->count; i++) {
        struct node *n = w->nodes[i].node;

        if (n == NULL || n->dht == NULL || n->under_way != 0 ||
            mu_dht_routing(mu_dht_service_node(n->dht))->count + 1 < w->count) {
            return false;
        }
    }
    return true;
}

static bool all_left(void *arg)
{
    struct dht_world *w = arg;

    for (uint32_t i = 0; i < w->count; i++) {
        if (mu_sim_proc_alive(w->nodes[i].proc)) {
            return false;
        }
    }
    return true;
}

static bool all_done(void *arg)
{
    struct dht_world *w = arg;

    return once_open(w->ops) == 0;
}

struct told {
    struct node_state *state;
    uint32_t key;
    double in_s;
    bool store;
    bool dict;
};

static void do_told(void *arg)
{
    struct told *t = arg;

    if (t->store) {
        begin_store(t->state->node, t->key, t->dict ? 7 : UINT32_MAX, t->in_s, true);
    } else {
        begin_get(t->state->node, t->key, true, true);
    }
}

/* Makes one node do one thing, and waits until it is done. */
static void tell(struct dht_world *w, uint32_t node, struct told t)
{
    if (mu_sim_failure(w->sim) != NULL || w->nodes[node].node == NULL) {
        return;
    }
    t.state = &w->nodes[node];
    mu_sim_call(w->nodes[node].proc, do_told, &t);
    if (!mu_sim_run_until(w->sim, 60 * MU_NS_PER_S, all_done, w)) {
        mu_sim_fail(w->sim, "n%u did not end what it was told to do", node);
    }
}

/* Of three values, stored by three nodes, all find the one that lasts longest. */
static void check_newest(struct dht_world *w, uint32_t key, bool dict)
{
    static const double in_s[] = {300, 600, 450};

    for (uint32_t i = 0; i < 3; i++) {
        if (i == 1) {
            w->wanted_offer = w->offer_count;
        }
        tell(w, i % w->count,
             (struct told){.key = key, .in_s = in_s[i], .store = true, .dict = dict});
    }
    for (uint32_t i = 0; i < w->count; i++) {
        w->good_count = 0;
        tell(w, i, (struct told){.key = key});
        if (w->good_count != 1) {
            mu_sim_fail(w->sim, "n%u did not find the newest value", i);
        }
    }
}

/* A node is cut off, stores something, and comes back: the others find it. */
static void check_return(struct dht_world *w)
{
    uint32_t away = w->count - 1;
    struct mu_sim_host *host = mu_sim_proc_host(w->nodes[away].proc);
    uint64_t until = mu_sim_now_ns(w->sim) + 60 * MU_NS_PER_S;

    for (uint32_t i = 0; i < away; i++) {
        struct mu_sim_host *other = mu_sim_proc_host(w->nodes[i].proc);

        mu_sim_cut(host, other, 60 * MU_NS_PER_S);
        mu_sim_cut(other, host, 60 * MU_NS_PER_S);
    }
    w->wanted_offer = w->offer_count;
    tell(w, away, (struct told){.key = 101, .in_s = 600, .store = true});
    if (mu_sim_failure(w->sim) != NULL) {
        return;
    }
    if (until > mu_sim_now_ns(w->sim)) {
        mu_sim_run_for(w->sim, until - mu_sim_now_ns(w->sim));
    }
    mu_sim_run_for(w->sim, 60 * MU_NS_PER_S);
    for (uint32_t i = 0; i < away; i++) {
        w->good_count = 0;
        tell(w, i, (struct told){.key = 101});
        if (w->good_count != 1) {
            mu_sim_fail(w->sim, "n%u does not find what n%u stored while it was away", i, away);
        }
    }
}

static struct dht_world *new_world(struct mu_sim *sim, enum plant plant)
{
    struct dht_world *w = mu_sim_calloc(sizeof(*w));

    w->sim = sim;
    w->plant = plant;
    w->short_of_memory =
        mu_sim_faults(sim)->alloc_fail_ppm != 0 || mu_sim_faults(sim)->shortage_every_ns != 0;
    w->ops = once_new(sim, "operation");
    w->offers = mu_sim_calloc(OFFERS_MAX * sizeof(*w->offers));
    w->count = 4 + (uint32_t)mu_prng_below(mu_sim_prng(sim), NODES_MAX - 3);
    for (uint32_t i = 0; i < w->count; i++) {
        char name[16];

        (void)snprintf(name, sizeof(name), "n%u", i);
        w->nodes[i] = (struct node_state){.world = w, .number = i};
        w->nodes[i].proc = mu_sim_proc_new(
            mu_sim_host_new(sim, name),
            &(struct mu_sim_program){
                .name = "dht", .start = start_node, .killed = node_killed, .arg = &w->nodes[i]});
    }
    if (plant == PLANT_STALE) {
        mu_sim_wall_jump(mu_sim_host_find(sim, "n1"), -(int64_t)(10 * MU_NS_PER_S));
    }
    return w;
}

static void run_world(struct mu_sim *sim, enum plant plant)
{
    struct dht_world *w = new_world(sim, plant);

    mu_sim_trace_log(sim);
    mu_sim_run_for(sim, FAULTY_NS);
    mu_sim_heal(sim);
    mu_sim_run_for(sim, 10 * MU_NS_PER_S);
    w->calm = true;
    if (!mu_sim_run_until(sim, CONVERGE_NS, all_there, w)) {
        mu_sim_fail(sim, "the nodes do not know each other though all faults have ended");
    }
    check_newest(w, 100, false);
    check_newest(w, 102, true);
    check_return(w);
    w->leaving = true;
    if (!mu_sim_run_until(sim, CONVERGE_NS, all_left, w)) {
        mu_sim_fail(sim, "a node did not leave");
    }
    once_finish(w->ops);
    once_free(w->ops);
    mu_free(w->offers);
    mu_free(w);
    muster_log_set(NULL, NULL, MUSTER_LOG_WARN);
}

/* Records expire by the wall clock, and nodes whose clocks differ do not let each other in. */
static struct mu_sim_faults draw_faults(struct mu_prng *prng)
{
    struct mu_sim_faults f = mu_sim_faults_draw(prng);

    mu_sim_faults_draw_memory(&f, prng);
    f.wall_skew_max_ns = 0;
    f.wall_jump_every_ns = 0;
    return f;
}

SIM_SCENARIO(dht, "dht",
             "nodes of the DHT: nothing expired is found, the newer wins, a lost node comes back",
             draw_faults, false, run_world(sim, PLANT_NONE))
SIM_SCENARIO(dht_stale, "dht-stale", "the same, with a node whose clock is far behind", draw_faults,
             true, run_world(sim, PLANT_STALE))
SIM_SCENARIO(dht_old, "dht-old", "the same, with nodes that go back to older values", draw_faults,
             true, run_world(sim, PLANT_OLD))
SIM_SCENARIO(dht_mute, "dht-mute", "the same, with nodes that do not come back", draw_faults, true,
             run_world(sim, PLANT_MUTE))
SIM_SCENARIO(dht_slow, "dht-slow", "the same, with operations without a time limit", draw_faults,
             true, run_world(sim, PLANT_SLOW))
