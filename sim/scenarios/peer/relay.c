/*
 * A relay, and two peers behind it that cannot dial each other: they hold reservations at it and
 * call each other through it, over a network that cuts, chunks and stalls, while any of the three
 * may die.
 *
 * What must hold: what a circuit passes and how long it lasts stays within the relay's limits, and
 * so do reservations and circuits; the relay holds no circuit without a stream; every call ends
 * exactly once, and what comes back is what was sent; when the faults have ended the two reach each
 * other; when one of the three then dies, its circuits end with it, on every side; and a peer that
 * leaves leaves nothing behind.
 */
#include <stdio.h>
#include <string.h>

#include <muster/error.h>
#include <muster/log.h>

#include "checkers/once.h"
#include "core/alloc.h"
#include "core/assert.h"
#include "scenarios/peer/peer_talk.h"
#include "scenarios/scenarios.h"
#include "service/peer/relay_internal.h"

#define HOSTS        3
#define RELAY        0
#define PORT         4001
#define ECHO_NAME    "/sim/echo/1.0.0"
#define FAULTY_NS    (20 * MU_NS_PER_S)
#define CONVERGE_NS  (300 * MU_NS_PER_S)
#define NOTICED_NS   (120 * MU_NS_PER_S) /* a silent death, by keepalive */
#define UNDER_WAY    3
#define CIRCUITS_MAX 6

static const char *const names[HOSTS] = {"r", "p1", "p2"};
static const struct mu_span echo_name = {(const uint8_t *)ECHO_NAME, sizeof(ECHO_NAME) - 1};

struct world;

struct host {
    struct world *world;
    uint32_t number;
    struct mu_identity identity;
    struct mu_sim_host *sim_host;
    struct mu_sim_proc *proc;
    struct app *app;  /* while it runs */
    uint32_t reached; /* calls to the other that were answered */
};

struct world {
    struct mu_sim *sim;
    struct once *calls;
    struct host hosts[HOSTS];
    struct mu_relay_limit limit;
    bool generous; /* the planted bug: the relay lets a circuit carry more */
    bool planted;
    bool healed;
    bool leaving;
    uint32_t wanted[HOSTS];
};

/* One of them, in its process's memory. */
struct app {
    struct host *host;
    struct mu_env *env;
    struct mu_peer_host *peers;
    struct mu_peer_relay *relay;
    struct mu_peer_handler handler;
    struct mu_timer timer;
    size_t under_way;
    size_t serving;
};

static uint8_t byte_at(const struct peer_call *call, uint32_t at)
{
    (void)call;
    return (uint8_t)(at * 31 + (at >> 8) * 7);
}

/* --- serving ---------------------------------------------------------------------------------- */

static struct mu_host_stream *on_opened(struct mu_peer_handler *handler,
                                        const struct mu_peer_id *peer, struct mu_span name)
{
    struct app *app = MU_CONTAINER_OF(handler, struct app, handler);
    struct world *w = app->host->world;
    struct peer_echo *echo = peer_echo_new(sizeof(*echo), &app->serving);

    (void)name;
    if (!mu_peer_id_eq(peer, &w->hosts[3 - app->host->number].identity.id)) {
        mu_sim_fail(w->sim, "%s is called by somebody else", names[app->host->number]);
    }
    return echo == NULL ? NULL : &echo->stream;
}

/* --- calling ---------------------------------------------------------------------------------- */

struct calling {
    struct peer_call call;
    struct app *app;
    uint64_t ticket;
};

static void call_ended(struct peer_call *call, int status, const char *text)
{
    struct calling *c = MU_CONTAINER_OF(call, struct calling, call);
    struct host *host = c->app->host;

    if (text != NULL && mu_sim_tracing(host->world->sim)) {
        mu_sim_note(host->world->sim, host->proc, "call: %d %s", status, text);
    }
    host->reached += status == 0 ? 1 : 0;
    once_end(host->world->calls, c->ticket);
    c->app->under_way--;
    mu_free(c);
}

static void make_call(struct app *app)
{
    struct world *w = app->host->world;
    struct mu_prng *prng = mu_sim_prng(w->sim);
    uint64_t draw = mu_prng_below(prng, 100);
    struct calling *c;

    if (app->under_way >= UNDER_WAY) {
        return;
    }
    c = mu_sim_calloc(sizeof(*c));
    c->app = app;
    /* A long call is sometimes more than a circuit may carry. */
    c->call.bytes = draw < 15 && !w->healed ? (uint32_t)mu_prng_below(prng, 400000)
                                            : (uint32_t)mu_prng_below(prng, 3000);
    c->ticket = once_begin(w->calls, app->host->number);
    c->call.sim = w->sim;
    c->call.env = app->env;
    c->call.byte_at = byte_at;
    c->call.ended = call_ended;
    c->call.give_up_at = !w->healed && mu_prng_chance(prng, 100000)
                             ? mu_mono_add_ms(mu_env_now(app->env).mono, mu_prng_below(prng, 3000))
                             : MU_MONO_NEVER;
    app->under_way++;
    peer_call_make(&c->call, app->peers, &w->hosts[3 - app->host->number].identity.id, &echo_name);
}

/* --- a process -------------------------------------------------------------------------------- */

static void plant_bug(struct app *app)
{
    MU_LIST_FOREACH (it, &app->relay->hop.circuits) {
        struct mu_relay_circuit *c = MU_CONTAINER_OF(it, struct mu_relay_circuit, link);

        c->left[0] = c->left[1] = UINT64_MAX;
        app->host->world->planted = true;
    }
}

static void on_timer(struct mu_timer *timer)
{
    struct app *app = MU_CONTAINER_OF(timer, struct app, timer);
    struct host *host = app->host;
    struct world *w = host->world;
    uint64_t ms = w->healed ? 3000 : mu_prng_below(mu_sim_prng(w->sim), 1500);

    if (w->leaving) {
        mu_peer_relay_free(app->relay);
        app->relay = NULL;
        mu_peer_host_stop(app->peers);
        return;
    }
    if (host->number == RELAY) {
        ms = 20;
        if (w->generous && !w->planted) {
            plant_bug(app);
        }
    } else if (!w->healed || host->reached < w->wanted[host->number]) {
        make_call(app);
    }
    mu_env_timer_arm(app->env, &app->timer, mu_mono_add_ms(mu_env_now(app->env).mono, ms));
}

static void on_stopped(void *context)
{
    struct app *app = context;

    if (app->under_way != 0 || app->serving != 0) {
        mu_sim_fail(app->host->world->sim, "a host stopped with streams that have not ended");
    }
    app->host->app = NULL;
    mu_env_timer_arm(app->env, &app->timer, MU_MONO_NEVER);
    mu_peer_host_free(app->peers);
    mu_sim_exit(app->env);
    mu_free(app);
}

static int start_relay(struct app *app, struct mu_errmsg *msg)
{
    struct world *w = app->host->world;
    struct mu_peer_relay_config config = mu_peer_relay_config_defaults();

    config.hop = app->host->number == RELAY;
    config.hop_terms.limit = w->limit;
    config.hop_terms.circuits_max = CIRCUITS_MAX;
    config.hop_terms.reservations_max = 2;
    config.hop_terms.reservation_ms = 60000;
    config.hop_terms.open_ms = 5000;
    config.reservation.retry_max_ms = 10000;
    config.reservation.answer_ms = 10000;
    return mu_peer_relay_start(app->peers, &config, &app->relay, msg);
}

/* Adds the addresses: the relay at its own, the other peer behind it. */
static int introduce(struct app *app, struct mu_errmsg *msg)
{
    struct world *w = app->host->world;
    char id[MU_PEER_ID_TEXT_MAX];
    char text[256];
    struct mu_buf addr;
    int err;

    if (app->host->number == RELAY) {
        (void)snprintf(text, sizeof(text), "/dns/%s/tcp/%d", names[RELAY], PORT);
        return mu_peer_host_listen(app->peers, text, msg);
    }
    (void)snprintf(text, sizeof(text), "/dns/%s/tcp/%d/p2p/%s", names[RELAY], PORT,
                   mu_peer_id_format(&w->hosts[RELAY].identity.id, id));
    err = mu_peer_relay_reserve(app->relay, text, msg);
    (void)snprintf(text + strlen(text), sizeof(text) - strlen(text), "/p2p-circuit");
    mu_buf_init(&addr, MU_MULTIADDR_MAX);
    err = err != 0 ? err : mu_multiaddr_parse(&addr, text, msg);
    if (err == 0) {
        err = mu_peer_host_add_addr(app->peers, &w->hosts[3 - app->host->number].identity.id,
                                    mu_buf_span(&addr));
    }
    mu_buf_fini(&addr);
    return err;
}

static int start_app(struct mu_env *env, void *arg)
{
    struct mu_peer_host_config config = mu_peer_host_config_defaults();
    struct host *host = arg;
    struct app *app = mu_sim_calloc(sizeof(*app));
    struct mu_errmsg msg;
    int err;

    mu_sim_spare_memory(true); /* there is memory at the start */
    app->host = host;
    app->env = env;
    config.identity = &host->identity;
    config.idle_ms = (uint32_t)(2000 + mu_prng_below(mu_sim_prng(host->world->sim), 20000));
    config.stopped = on_stopped;
    config.context = app;
    err = mu_peer_host_start(env, &config, &app->peers, &msg);
    if (err == 0 && host->number != RELAY) {
        app->handler = (struct mu_peer_handler){.name = ECHO_NAME, .opened = on_opened};
        err = mu_peer_host_serve(app->peers, &app->handler);
    }
    err = err != 0 ? err : start_relay(app, &msg);
    err = err != 0 ? err : introduce(app, &msg);
    mu_timer_init(&app->timer, on_timer);
    mu_env_timer_arm(env, &app->timer, mu_env_now(env).mono);
    host->app = app;
    mu_sim_spare_memory(false);
    return err;
}

static void on_killed(void *arg)
{
    struct host *host = arg;

    if (host->app == NULL) {
        return;
    }
    peer_host_release_crypto(host->app->peers);
    host->app = NULL;
    once_forgive(host->world->calls, host->number);
}

/* --- what must hold --------------------------------------------------------------------------- */

static void check(struct mu_sim *sim, void *arg)
{
    const struct world *w = arg;
    const struct app *app = w->hosts[RELAY].app;
    const struct mu_peer_relay *relay = app == NULL ? NULL : app->relay;
    uint32_t circuits = 0;

    if (relay == NULL) {
        return;
    }
    MU_LIST_FOREACH (it, &relay->hop.circuits) {
        const struct mu_relay_circuit *c = MU_CONTAINER_OF(it, struct mu_relay_circuit, link);

        circuits++;
        if (c->passed[0] > w->limit.data_bytes || c->passed[1] > w->limit.data_bytes) {
            mu_sim_fail(sim, "a circuit has carried more than it may");
        }
        if (c->ends_at.ns >
            mu_mono_add_ms(mu_env_now(app->env).mono, (uint64_t)w->limit.duration_s * 1000 + 5000)
                .ns) {
            mu_sim_fail(sim, "a circuit may last longer than it may");
        }
    }
    if (circuits != relay->hop.circuit_count || circuits > CIRCUITS_MAX ||
        circuits > relay->hop_count) {
        mu_sim_fail(sim, "the relay has %u circuits, counts %u, on %zu streams", circuits,
                    relay->hop.circuit_count, relay->hop_count);
    }
    if (mu_relay_hop_count(&relay->hop) > 2) {
        mu_sim_fail(sim, "the relay has more reservations than places");
    }
}

static bool all_reached(void *arg)
{
    const struct world *w = arg;

    return w->hosts[1].reached >= w->wanted[1] && w->hosts[2].reached >= w->wanted[2];
}

static bool all_left(void *arg)
{
    const struct world *w = arg;

    for (uint32_t i = 0; i < HOSTS; i++) {
        if (mu_sim_proc_alive(w->hosts[i].proc)) {
            return false;
        }
    }
    return true;
}

/* No peer has a circuit through the relay any more, or believes so. */
static bool all_cut(void *arg)
{
    const struct world *w = arg;

    for (uint32_t i = 0; i < HOSTS; i++) {
        const struct app *app = w->hosts[i].app;

        if (app == NULL) {
            continue;
        }
        if (i == RELAY ? app->relay->hop.circuit_count != 0
                       : mu_peer_host_connected(app->peers, &w->hosts[3 - i].identity.id)) {
            return false;
        }
    }
    return true;
}

static void want_more(struct world *w)
{
    for (uint32_t i = 1; i < HOSTS; i++) {
        w->wanted[i] = w->hosts[i].reached + 1;
    }
}

/* --- the world -------------------------------------------------------------------------------- */

static void make_hosts(struct world *w)
{
    uint8_t seed[MU_IDENTITY_SEED_LEN];

    for (uint32_t i = 0; i < HOSTS; i++) {
        struct host *host = &w->hosts[i];

        memset(seed, (int)i + 1, sizeof(seed));
        MU_ASSERT(mu_identity_from_seed(&host->identity, seed) == 0);
        host->world = w;
        host->number = i;
        host->sim_host = mu_sim_host_new(w->sim, names[i]);
    }
    for (uint32_t i = 0; i < HOSTS; i++) {
        w->hosts[i].proc = mu_sim_proc_new(
            w->hosts[i].sim_host,
            &(struct mu_sim_program){
                .name = names[i], .start = start_app, .killed = on_killed, .arg = &w->hosts[i]});
    }
}

/* One of them dies while there is a circuit between the two. */
static void let_one_die(struct world *w)
{
    struct mu_prng *prng = mu_sim_prng(w->sim);
    uint32_t who = (uint32_t)mu_prng_below(prng, HOSTS);

    mu_sim_kill(w->hosts[who].proc,
                mu_prng_chance(prng, 500000) ? MU_SIM_KILL_PROCESS : MU_SIM_KILL_POWER);
    if (!mu_sim_run_until(w->sim, NOTICED_NS, all_cut, w)) {
        mu_sim_fail(w->sim, "%s has died, and a circuit has not", names[who]);
    }
    mu_sim_restart(w->hosts[who].proc);
    want_more(w);
    if (!mu_sim_run_until(w->sim, CONVERGE_NS, all_reached, w)) {
        mu_sim_fail(w->sim, "%s is back, and the two do not reach each other", names[who]);
    }
}

static void run_world(struct mu_sim *sim, bool generous)
{
    struct world *w = mu_sim_calloc(sizeof(*w));
    struct mu_prng *prng = mu_sim_prng(sim);

    mu_sim_trace_log(sim);
    w->sim = sim;
    w->generous = generous;
    w->limit = (struct mu_relay_limit){.duration_s = (uint32_t)(10 + mu_prng_below(prng, 60)),
                                       .data_bytes =
                                           20000 + mu_prng_below(prng, generous ? 30000 : 1000000)};
    w->calls = once_new(sim, "call");
    mu_sim_add_checker(sim, check, w);
    make_hosts(w);
    mu_sim_run_for(sim, FAULTY_NS);
    mu_sim_heal(sim);
    w->healed = true;
    want_more(w);
    if (!mu_sim_run_until(sim, CONVERGE_NS, all_reached, w)) {
        mu_sim_fail(sim, "the two do not reach each other though all faults have ended");
    }
    if (mu_sim_failure(sim) == NULL) {
        let_one_die(w);
    }
    w->leaving = true;
    if (!mu_sim_run_until(sim, CONVERGE_NS, all_left, w)) {
        mu_sim_fail(sim, "somebody did not stop");
    }
    once_finish(w->calls);
    for (uint32_t i = 0; i < HOSTS; i++) {
        on_killed(&w->hosts[i]); /* a host that still runs because the run has failed */
        mu_identity_fini(&w->hosts[i].identity);
    }
    once_free(w->calls);
    mu_free(w);
    muster_log_set(NULL, NULL, MUSTER_LOG_WARN);
}

SIM_SCENARIO(relay, "relay",
             "two peers that reach each other through a relay: limits, deaths, nothing left",
             mu_sim_faults_draw_all, false, run_world(sim, false))
SIM_SCENARIO(relay_generous, "relay-generous",
             "the same, with a relay that lets a circuit carry more than its limit",
             mu_sim_faults_draw_all, true, run_world(sim, true))
