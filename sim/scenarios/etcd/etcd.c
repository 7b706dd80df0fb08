/*
 * Scenario: clients of an etcd cluster of three members that go down, are cut off, compact, lose
 * answers and let requests time out. Each client has a store with two workers on it, a watch, and a
 * lease that it keeps.
 *
 * Checked: what the workers did is linearizable, whatever was repeated below them; the watch told
 * every change once and in order, except those that were compacted away, and in the end knows the
 * present keys; the end of a lease was noticed before it, or at once; once all is healed every
 * worker makes progress; and all leave nothing behind.
 */
#include "scenarios/scenarios.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "checkers/linear.h"
#include "core/alloc.h"
#include "core/assert.h"
#include "fake_etcd.h"
#include "service/etcd/etcd.h"
#include "service/store/store.h"

#define CLIENTS     3
#define WORKERS     2
#define KEYS        4
#define LEASES_MAX  256
#define FAULTY_NS   (20 * MU_NS_PER_S)
#define CONVERGE_NS (90 * MU_NS_PER_S)
#define THINK_NS    (300 * MU_NS_PER_MS)
#define NOTICE_NS   (10 * MU_NS_PER_MS)
#define URL         "etcd://e0,e1,e2/p"
#define UNDER       "/p/k/"

struct world;
struct peer;

struct client {
    struct world *world;
    uint32_t number;
    struct mu_sim_proc *proc;
    struct peer *peer; /* NULL while it is dead */
    uint32_t done;     /* operations that were answered */
};

struct noted_lease {
    int64_t id;
    uint32_t client;
    uint64_t noticed_ns;
    bool orphan; /* its client died or gave it up */
};

struct world {
    struct mu_sim *sim;
    struct fake_etcd *etcd;
    struct client clients[CLIENTS];
    struct linear_history history;
    struct noted_lease leases[LEASES_MAX];
    size_t lease_count;
    int64_t unique;
    bool plant;
    bool stopping;
    bool leaving;
};

struct worker {
    struct peer *peer;
    struct mu_store_op op;
    struct mu_timer timer;
    struct mu_prng prng;
    struct mu_span key;
    struct mu_span values[2];
    char texts[3][24];
    uint32_t linear;
    enum linear_kind kind;
    uint32_t key_number;
    struct linear_value seen[KEYS];
    bool stopped;
};

/* What a client's process has. */
struct peer {
    struct client *client;
    struct mu_env *env;
    struct mu_store *store;
    struct worker workers[WORKERS];
    struct mu_etcd *etcd;
    struct mu_etcd_watch watch;
    struct mu_etcd_lease lease;
    struct mu_timer again;
    bool watching;
    bool standing; /* the watch has read the present keys */
    bool leased;
    int64_t cursor;      /* the last revision that was told */
    int64_t model[KEYS]; /* revision of the last change to each key, as told; 0: the key is
                            absent */
    uint32_t closing;
};

/* --- leases ----------------------------------------------------------------------------------- */

static void check_leases(struct mu_sim *sim, void *arg)
{
    struct world *w = arg;

    for (size_t i = 0; i < w->lease_count; i++) {
        struct noted_lease *l = &w->leases[i];
        uint64_t end = l->noticed_ns != 0 || l->orphan ? 0 : fake_etcd_lease_end(w->etcd, l->id);

        if (end != 0 && mu_sim_now_ns(sim) > end + NOTICE_NS) {
            mu_sim_fail(sim, "client %" PRIu32 " has not noticed that its lease has ended",
                        l->client);
        }
    }
}

static struct noted_lease *note_of(struct world *w, int64_t id)
{
    for (size_t i = 0; i < w->lease_count; i++) {
        if (w->leases[i].id == id) {
            return &w->leases[i];
        }
    }
    return NULL;
}

static void on_granted(struct mu_etcd_lease *lease)
{
    struct peer *p = MU_CONTAINER_OF(lease, struct peer, lease);
    struct world *w = p->client->world;

    if (w->lease_count < LEASES_MAX) {
        w->leases[w->lease_count++] =
            (struct noted_lease){.id = lease->id, .client = p->client->number};
    }
}

static void pause_and_go_on(struct peer *p)
{
    mu_env_timer_arm(p->env, &p->again,
                     mu_mono_add_ms(mu_env_now(p->env).mono, p->client->world->leaving ? 0 : 200));
}

static void on_lost(struct mu_etcd_lease *lease, int status)
{
    struct peer *p = MU_CONTAINER_OF(lease, struct peer, lease);
    struct noted_lease *l = note_of(p->client->world, lease->id);

    (void)status;
    if (l != NULL) {
        l->noticed_ns = mu_sim_now_ns(p->client->world->sim);
    }
    p->leased = false;
    pause_and_go_on(p);
}

static void on_stopped(struct mu_etcd_lease *lease)
{
    struct peer *p = MU_CONTAINER_OF(lease, struct peer, lease);

    p->leased = false;
    pause_and_go_on(p);
}

/* --- the watch -------------------------------------------------------------------------------- */

static bool key_number(struct mu_span key, size_t *ret)
{
    size_t under = sizeof(UNDER) - 1;

    if (key.len != under + 1 || key.data[under] < '0' || key.data[under] >= '0' + KEYS) {
        return false;
    }
    *ret = (size_t)(key.data[under] - '0');
    return true;
}

/* Between the last change that was told and this one, no change may be missing that etcd still
 * has. */
static void check_gap(struct peer *p, int64_t revision)
{
    struct world *w = p->client->world;
    struct fake_etcd_event e;
    size_t key;

    for (size_t i = 0; fake_etcd_event(w->etcd, i, &e); i++) {
        if (e.revision > p->cursor && e.revision < revision && key_number(e.key, &key) &&
            e.revision + (e.deleted ? 0 : 1) > fake_etcd_compacted(w->etcd)) {
            mu_sim_fail(w->sim, "client %" PRIu32 "'s watch skipped revision %" PRId64,
                        p->client->number, e.revision);
        }
    }
}

static void check_told(struct peer *p, const struct mu_etcd_change *c, size_t key)
{
    struct world *w = p->client->world;
    struct fake_etcd_event e;
    bool found = false;
    bool there = false;

    for (size_t i = 0; fake_etcd_event(w->etcd, i, &e) && e.revision <= c->revision; i++) {
        if (mu_span_eq(e.key, c->kv.key)) {
            there = !e.deleted;
            found = e.revision == c->revision && e.deleted == c->deleted &&
                    (e.deleted || mu_span_eq(e.value, c->kv.value));
        }
    }
    /* A deletion that was found by reading again has the revision of that read. */
    if (!found && !(c->deleted && !there && c->revision <= fake_etcd_compacted(w->etcd) + 100000)) {
        mu_sim_fail(w->sim,
                    "client %" PRIu32 "'s watch told what never was: %s of key %zu at "
                    "%" PRId64,
                    p->client->number, c->deleted ? "deletion" : "put", key, c->revision);
    }
    if (!c->deleted && p->model[key] >= c->revision) {
        mu_sim_fail(w->sim, "client %" PRIu32 "'s watch told revision %" PRId64 " twice",
                    p->client->number, c->revision);
    }
}

static void on_change(struct mu_etcd_watch *watch, const struct mu_etcd_change *c)
{
    struct peer *p = MU_CONTAINER_OF(watch, struct peer, watch);
    size_t key;

    if (!key_number(c->kv.key, &key)) {
        mu_sim_fail(p->client->world->sim, "a watch told of a key that is not watched");
        return;
    }
    if (mu_sim_tracing(p->client->world->sim)) {
        mu_sim_note(p->client->world->sim, p->client->proc, "watch: %s key %zu at %" PRId64 "%s",
                    c->deleted ? "delete" : "put", key, c->revision,
                    c->initial ? " (initial)" : "");
    }
    if (!c->initial) {
        if (c->revision < p->cursor) {
            mu_sim_fail(p->client->world->sim, "a watch went back in time");
        }
        check_gap(p, c->revision);
        check_told(p, c, key);
        p->cursor = c->revision;
    }
    p->model[key] = c->deleted ? 0 : c->revision;
}

static void on_ready(struct mu_etcd_watch *watch)
{
    struct peer *p = MU_CONTAINER_OF(watch, struct peer, watch);

    p->standing = true;
    p->cursor = watch->next - 1; /* The watch has read the keys at that revision. */
}

static void on_ended(struct mu_etcd_watch *watch, int status)
{
    struct peer *p = MU_CONTAINER_OF(watch, struct peer, watch);

    (void)status;
    p->watching = false;
    p->standing = false;
    pause_and_go_on(p);
}

static void start_watch(struct peer *p)
{
    memset(p->model, 0, sizeof(p->model));
    p->cursor = INT64_MAX;
    p->watching = true;
    p->watch = (struct mu_etcd_watch){
        .key = MU_SPAN_LIT(UNDER),
        .end = MU_SPAN_LIT("/p/k0"),
        .current = true,
        .change = on_change,
        .ready = on_ready,
        .ended = on_ended,
    };
    mu_etcd_watch_start(p->etcd, &p->watch);
}

/* In the end the watch must know exactly the present keys. */
static void check_model(struct world *w, struct client *c)
{
    int64_t truth[KEYS] = {0};
    struct fake_etcd_event e;
    size_t key;

    if (c->peer == NULL || !c->peer->watching || !c->peer->standing) {
        mu_sim_fail(w->sim, "client %" PRIu32 " has no watch in the end", c->number);
        return;
    }
    for (size_t i = 0; fake_etcd_event(w->etcd, i, &e); i++) {
        if (key_number(e.key, &key)) {
            truth[key] = e.deleted ? 0 : e.revision;
        }
    }
    for (size_t i = 0; i < KEYS; i++) {
        if (truth[i] != c->peer->model[i]) {
            mu_sim_fail(w->sim,
                        "client %" PRIu32 "'s watch has key %zu at %" PRId64 ", etcd at %" PRId64,
                        c->number, i, c->peer->model[i], truth[i]);
        }
    }
}

/* --- workers ---------------------------------------------------------------------------------- */

static void think(struct worker *k);

static void try_leave(struct peer *p);

static struct mu_span number_text(struct worker *k, size_t i, int64_t number)
{
    int n = snprintf(k->texts[i], sizeof(k->texts[i]), "%" PRId64, number);

    return mu_span(k->texts[i], (size_t)n);
}

static void learn(struct worker *k, const struct linear_result *r)
{
    if (k->kind == LINEAR_GET || k->kind == LINEAR_ADD || k->kind == LINEAR_COMPARE_SET) {
        k->seen[k->key_number] = r->value;
    }
}

static bool read_result(struct worker *k, struct linear_result *ret)
{
    const struct mu_store_reply *reply = &k->op.reply;
    bool valued = k->kind == LINEAR_GET || k->kind == LINEAR_COMPARE_SET;

    *ret = (struct linear_result){.flag = reply->number != 0, .flag_known = true};
    if (k->kind == LINEAR_ADD) {
        ret->value = (struct linear_value){true, reply->number};
    } else if (valued && reply->value_count == 1 && reply->values[0].len > 0) {
        char text[32] = "";

        memcpy(text, reply->values[0].data, reply->values[0].len < 31 ? reply->values[0].len : 31);
        ret->value = (struct linear_value){true, strtoll(text, NULL, 10)};
    }
    return true;
}

static void on_op_done(struct mu_store_op *op)
{
    struct worker *k = MU_CONTAINER_OF(op, struct worker, op);
    struct world *w = k->peer->client->world;
    struct linear_result result = {.flag_known = true};
    bool read = k->kind == LINEAR_GET || k->kind == LINEAR_CHECK;

    if (mu_sim_tracing(w->sim)) {
        mu_sim_note(w->sim, k->peer->client->proc, "op %" PRIu32 " ends: %d %s", k->linear,
                    op->status, op->errmsg.text);
    }
    if (op->status == 0) {
        (void)read_result(k, &result);
        linear_return(&w->history, k->linear, &result, mu_sim_now_ns(w->sim));
        learn(k, &result);
        k->peer->client->done++;
    } else if (op->status == MUSTER_ENOENT && k->kind == LINEAR_GET) {
        linear_return(&w->history, k->linear, &result, mu_sim_now_ns(w->sim));
        learn(k, &result);
        k->peer->client->done++;
    } else if (read || op->status == MUSTER_ECLOSED) {
        if (read) {
            linear_drop(&w->history, k->linear);
        }
    } else if (w->plant && k->kind == LINEAR_ADD) {
        op->request.number = k->op.request.number;
        mu_store_submit(k->peer->store, op);
        return;
    }
    think(k);
}

static void fill(struct worker *k, const struct linear_op *op)
{
    struct mu_store_request *q = &k->op.request;

    (void)snprintf(k->texts[2], sizeof(k->texts[2]), "%" PRIu32, op->key);
    k->key = mu_span_str(k->texts[2]);
    *q = (struct mu_store_request){.keys = &k->key, .key_count = 1};
    switch (op->kind) {
    case LINEAR_GET:
        q->verb = MU_STORE_GET;
        q->flags = MU_STORE_NOWAIT;
        break;
    case LINEAR_SET:
        q->verb = MU_STORE_SET;
        k->values[0] = number_text(k, 0, op->number);
        q->values = k->values;
        q->value_count = 1;
        break;
    case LINEAR_ADD:
        q->verb = MU_STORE_ADD;
        q->number = op->number;
        break;
    case LINEAR_COMPARE_SET:
        q->verb = MU_STORE_COMPARE_SET;
        k->values[0] =
            op->expected.present ? number_text(k, 0, op->expected.number) : (struct mu_span){0};
        k->values[1] = number_text(k, 1, op->number);
        q->values = k->values;
        q->value_count = 2;
        break;
    case LINEAR_DELETE:
        q->verb = MU_STORE_DELETE;
        break;
    case LINEAR_CHECK:
    case LINEAR_WAIT:
        q->verb = MU_STORE_CHECK;
        break;
    }
}

static void act(struct worker *k)
{
    static const enum linear_kind kinds[] = {LINEAR_GET,  LINEAR_SET,         LINEAR_ADD,
                                             LINEAR_ADD,  LINEAR_COMPARE_SET, LINEAR_DELETE,
                                             LINEAR_CHECK};
    struct world *w = k->peer->client->world;
    struct linear_op op = {
        .kind = kinds[mu_prng_below(&k->prng, sizeof(kinds) / sizeof(kinds[0]))],
        .client = k->peer->client->number,
        .key = (uint32_t)mu_prng_below(&k->prng, KEYS),
        .number = ++w->unique * 1000,
    };

    if (op.kind == LINEAR_ADD) {
        op.number = 1;
    }
    op.expected = k->seen[op.key];
    k->kind = op.kind;
    k->key_number = op.key;
    k->linear = linear_invoke(&w->history, &op, mu_sim_now_ns(w->sim));
    fill(k, &op);
    k->op.done = on_op_done;
    k->op.timeout_ms = 300 + (uint32_t)mu_prng_below(&k->prng, 12000);
    if (mu_sim_tracing(w->sim)) {
        char text[160];

        mu_sim_note(w->sim, k->peer->client->proc, "op %" PRIu32 " key %" PRIu32 ": %s", k->linear,
                    op.key, linear_format(&w->history.ops[k->linear], text, sizeof(text)));
    }
    mu_store_submit(k->peer->store, &k->op);
}

static void on_thought(struct mu_timer *timer)
{
    struct worker *k = MU_CONTAINER_OF(timer, struct worker, timer);

    if (k->peer->client->world->stopping) {
        k->stopped = true;
        try_leave(k->peer);
    } else {
        act(k);
    }
}

static void think(struct worker *k)
{
    mu_env_timer_arm(
        k->peer->env, &k->timer,
        mu_mono_add_ns(mu_env_now(k->peer->env).mono, mu_prng_below(&k->prng, THINK_NS)));
}

/* --- a client --------------------------------------------------------------------------------- */

static void on_part_closed(void *context)
{
    struct peer *p = context;
    struct mu_env *env = p->env;

    if (--p->closing == 0) {
        p->client->peer = NULL;
        mu_free(p);
        mu_sim_exit(env);
    }
}

static void try_leave(struct peer *p)
{
    struct world *w = p->client->world;

    for (size_t i = 0; i < WORKERS; i++) {
        if (!p->workers[i].stopped) {
            return;
        }
    }
    if (!w->leaving || p->closing != 0) {
        return;
    }
    if (p->leased) {
        struct noted_lease *l = note_of(w, p->lease.id);

        if (l != NULL) {
            l->orphan = true;
        }
        mu_etcd_lease_stop(&p->lease, true);
    } else if (p->watching) {
        mu_etcd_watch_cancel(&p->watch);
    } else {
        p->closing = 2;
        mu_env_timer_arm(p->env, &p->again, MU_MONO_NEVER);
        mu_store_close(p->store, on_part_closed, p);
        mu_etcd_close(p->etcd, on_part_closed, p);
    }
}

/* The lease or the watch has ended: opens another one, or takes the next step of leaving. */
static void on_again(struct mu_timer *timer)
{
    struct peer *p = MU_CONTAINER_OF(timer, struct peer, again);

    if (p->client->world->leaving) {
        try_leave(p);
        return;
    }
    if (!p->watching) {
        start_watch(p);
    }
    if (!p->leased) {
        p->leased = true;
        p->lease = (struct mu_etcd_lease){
            .ttl_s = 3, .granted = on_granted, .lost = on_lost, .stopped = on_stopped};
        mu_etcd_lease_start(p->etcd, &p->lease);
    }
}

static int start_client(struct mu_env *env, void *arg)
{
    struct client *c = arg;
    struct mu_etcd_config config = mu_etcd_config_defaults();
    struct mu_errmsg msg;
    struct peer *p = mu_sim_calloc(sizeof(*p));

    p->client = c;
    p->env = env;
    c->peer = p;
    config.endpoints = "e0,e1,e2";
    mu_sim_spare_memory(true);
    MU_ASSERT(mu_store_open(env, URL, 30000, &p->store, &msg) == 0);
    MU_ASSERT(mu_etcd_new(env, &config, &p->etcd, &msg) == 0);
    mu_sim_spare_memory(false);
    mu_timer_init(&p->again, on_again);
    for (size_t i = 0; i < WORKERS; i++) {
        struct worker *k = &p->workers[i];

        k->peer = p;
        mu_prng_seed(&k->prng, mu_prng_u64(mu_sim_prng(c->world->sim)));
        mu_timer_init(&k->timer, on_thought);
        think(k);
    }
    pause_and_go_on(p);
    return 0;
}

static void on_killed(void *arg)
{
    struct client *c = arg;

    for (size_t i = 0; i < c->world->lease_count; i++) {
        if (c->world->leases[i].client == c->number) {
            c->world->leases[i].orphan = true;
        }
    }
    c->peer = NULL;
}

/* --- the story -------------------------------------------------------------------------------- */

static void on_nemesis(struct mu_sim *sim, void *arg)
{
    struct world *w = arg;
    bool over = mu_sim_now_ns(sim) > FAULTY_NS;

    fake_etcd_trouble(w->etcd, mu_sim_prng(sim), over);
    if (!over) {
        MU_ASSERT(mu_sim_at(sim,
                            mu_sim_now_ns(sim) + mu_prng_below(mu_sim_prng(sim), 2 * MU_NS_PER_S),
                            on_nemesis, w) == 0);
    }
}

struct progress {
    struct world *world;
    uint32_t done[CLIENTS];
};

static bool all_got_on(void *arg)
{
    struct progress *g = arg;

    for (size_t i = 0; i < CLIENTS; i++) {
        const struct client *c = &g->world->clients[i];

        if (c->done < g->done[i] + 5 || c->peer == NULL || !c->peer->standing) {
            return false;
        }
    }
    return true;
}

static bool all_stopped(void *arg)
{
    struct world *w = arg;

    for (size_t i = 0; i < CLIENTS; i++) {
        for (size_t k = 0; k < WORKERS; k++) {
            if (w->clients[i].peer == NULL || !w->clients[i].peer->workers[k].stopped) {
                return false;
            }
        }
    }
    return true;
}

static bool all_left(void *arg)
{
    struct world *w = arg;

    for (size_t i = 0; i < CLIENTS; i++) {
        if (mu_sim_proc_alive(w->clients[i].proc)) {
            return false;
        }
    }
    return true;
}

static void leave_client(void *arg)
{
    try_leave(arg);
}

static void end_story(struct world *w)
{
    struct mu_sim *sim = w->sim;
    struct progress g = {.world = w};
    struct mu_errmsg msg;

    for (size_t i = 0; i < CLIENTS; i++) {
        g.done[i] = w->clients[i].done;
    }
    if (!mu_sim_run_until(sim, CONVERGE_NS, all_got_on, &g)) {
        mu_sim_fail(sim, "not everybody got on after all was healed");
    }
    w->stopping = true;
    if (!mu_sim_run_until(sim, CONVERGE_NS, all_stopped, w)) {
        mu_sim_fail(sim, "an operation has not ended");
    }
    /* A request that was lost in a cut is given up only when the cut would have ended. */
    mu_sim_run_for(sim, 25 * MU_NS_PER_S);
    for (size_t i = 0; i < CLIENTS && mu_sim_failure(sim) == NULL; i++) {
        check_model(w, &w->clients[i]);
    }
    w->leaving = true;
    for (size_t i = 0; i < CLIENTS && mu_sim_failure(sim) == NULL; i++) {
        mu_sim_call(w->clients[i].proc, leave_client, w->clients[i].peer);
    }
    if (!mu_sim_run_until(sim, CONVERGE_NS, all_left, w)) {
        mu_sim_fail(sim, "not everybody could leave");
    }
    if (mu_sim_failure(sim) == NULL) {
        switch (linear_check(&w->history, &msg)) {
        case LINEAR_OK:
            break;
        case LINEAR_VIOLATION:
            mu_sim_fail(sim, "%s", msg.text);
            break;
        case LINEAR_GAVE_UP:
            mu_sim_undecided(sim);
            break;
        }
    }
}

static void run_story(struct mu_sim *sim, bool plant)
{
    static const char *const hosts[] = {"e0", "e1", "e2"};
    static const char *const names[] = {"c0", "c1", "c2"};
    struct world *w = mu_calloc(1, sizeof(*w));

    MU_ASSERT(w != NULL);
    w->sim = sim;
    w->plant = plant;
    linear_init(&w->history);
    w->etcd = fake_etcd_new(sim, hosts, FAKE_ETCD_MEMBERS);
    mu_sim_add_checker(sim, check_leases, w);
    for (uint32_t i = 0; i < CLIENTS; i++) {
        struct client *c = &w->clients[i];

        c->world = w;
        c->number = i;
        c->proc = mu_sim_proc_new(
            mu_sim_host_new(sim, names[i]),
            &(struct mu_sim_program){
                .name = names[i], .start = start_client, .killed = on_killed, .arg = c});
    }
    on_nemesis(sim, w);
    mu_sim_run_for(sim, FAULTY_NS + 3 * MU_NS_PER_S);
    mu_sim_heal(sim);
    end_story(w);
    fake_etcd_free(w->etcd);
    linear_fini(&w->history);
    mu_free(w);
}

/* A process that sleeps or is late cannot notice anything in time; another scenario tests that. */
static struct mu_sim_faults draw_faults(struct mu_prng *prng)
{
    struct mu_sim_faults f = mu_sim_faults_draw(prng);

    f.pause_every_ns = 0;
    f.timer_late_ppm = 0;
    if (f.reset_every_ns == 0 && mu_prng_below(prng, 2) == 0) {
        f.reset_every_ns = MU_NS_PER_S;
    }
    return f;
}

SIM_SCENARIO(etcd, "etcd",
             "stores, watches and leases on an etcd cluster whose members come and go", draw_faults,
             false, run_story(sim, false))
SIM_SCENARIO(etcd_repeat, "etcd-repeat", "a client that repeats an add whose outcome is unknown",
             draw_faults, true, run_story(sim, true))
