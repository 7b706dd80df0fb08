/*
 * Ten daemons whose clients call each other through them, unary and on streams, and are killed at
 * any time, over a network that cuts, chunks and stalls.
 *
 * What must hold: every call and every stream of a client that lives ends exactly once, as long as
 * its connection to the daemon does; an answer is what was asked; when the faults have ended every
 * call is answered; and clients that are gone leave nothing behind in any daemon: no handler, no
 * call, no stream, no byte.
 */
#include "scenarios/p2pd/p2pd_world.h"

#include <stdio.h>
#include <string.h>

#include <muster/error.h>
#include <muster/log.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "proto/p2pd/calls_internal.h"
#include "scenarios/peer/peer_talk.h"
#include "scenarios/scenarios.h"

#define FAULTY_NS   (6 * MU_NS_PER_S)
#define CONVERGE_NS (300 * MU_NS_PER_S)

/* --- a daemon --------------------------------------------------------------------------------- */

static void plant_bug(struct p2pd_daemon_state *state)
{
    struct p2pd_world *w = state->world;
    struct mu_errmsg msg;

    if (w->plant == P2PD_PLANT_CLINGS) {
        MU_LIST_FOREACH (it, &state->d->clients) {
            struct mu_p2pd_client *c = MU_CONTAINER_OF(it, struct mu_p2pd_client, link);

            /* As if the handler had been added twice, once by another client. */
            w->planted = w->planted || (c->persistent &&
                                        mu_p2pd_handle(state->d, mu_span_str("sim::Left"), &c->user,
                                                       mu_span_str("x"), true, &msg) == 0);
        }
        if (w->planted) {
            mu_p2pd_names_next(&state->d->calls.names, mu_span_str("sim::Left"))->user = NULL;
        }
        return;
    }
    MU_LIST_FOREACH_SAFE (it, tmp, &state->d->calls.list) {
        struct mu_p2pd_unary *call = MU_CONTAINER_OF(it, struct mu_p2pd_unary, link);

        if (!w->planted && call->ours && call->user != NULL) {
            w->planted = true;
            mu_p2pd_unary_drop(call);
        }
    }
    mu_p2pd_pump(state->d);
}

static void on_timer(struct mu_timer *timer)
{
    struct p2pd_daemon_state *state = MU_CONTAINER_OF(timer, struct p2pd_daemon_state, timer);
    struct p2pd_world *w = state->world;
    struct mu_env *env = mu_sim_proc_env(state->proc);

    if (w->stopping) {
        mu_p2pd_stop(state->d);
        return;
    }
    if (w->plant != P2PD_PLANT_NONE && w->healed && !w->planted) {
        plant_bug(state);
    }
    mu_env_timer_arm(
        env, timer, mu_mono_add_ms(mu_env_now(env).mono, w->plant != P2PD_PLANT_NONE ? 100 : 1000));
}

static void on_stopped(void *context)
{
    struct p2pd_daemon_state *state = context;

    mu_p2pd_free(state->d);
    state->d = NULL;
    mu_sim_exit(mu_sim_proc_env(state->proc));
}

static int introduce(struct p2pd_daemon_state *state)
{
    struct p2pd_world *w = state->world;
    int err = 0;

    for (uint32_t i = 0; i < P2PD_DAEMONS && err == 0; i++) {
        struct mu_buf addr;
        struct mu_errmsg msg;
        char text[64];

        if (i == state->number) {
            continue;
        }
        mu_buf_init(&addr, MU_MULTIADDR_MAX);
        (void)snprintf(text, sizeof(text), "/dns4/d%u/tcp/%d", i, P2PD_PORT);
        err = mu_multiaddr_parse(&addr, text, &msg);
        if (err == 0) {
            err = mu_peer_host_add_addr(mu_p2pd_host(state->d), &w->daemons[i].identity.id,
                                        mu_buf_span(&addr));
        }
        mu_buf_fini(&addr);
    }
    return err;
}

static int start_daemon(struct mu_env *env, void *arg)
{
    struct p2pd_daemon_state *state = arg;
    struct mu_p2pd_config config = mu_p2pd_config_defaults();
    struct mu_errmsg msg;
    char text[64];
    int err;

    mu_sim_spare_memory(true); /* there is memory at the start */
    config.identity = &state->identity;
    config.held_bytes_max = 600000; /* too little for two of the long messages */
    config.client_bytes_max = 300000;
    config.host.no_identify = true; /* identify has its own scenario */
    config.stopped = on_stopped;
    config.context = state;
    err = mu_p2pd_start(env, &config, &state->d, &msg);
    if (err == 0) {
        (void)snprintf(text, sizeof(text), "/dns/d%u/tcp/%d", state->number, P2PD_PORT);
        err = mu_peer_host_listen(mu_p2pd_host(state->d), text, &msg);
    }
    if (err == 0) {
        err = introduce(state);
    }
    if (err == 0) {
        err = mu_p2pd_listen(state->d, "/unix" P2PD_CONTROL, &msg);
    }
    mu_timer_init(&state->timer, on_timer);
    mu_env_timer_arm(env, &state->timer, mu_env_now(env).mono);
    mu_sim_spare_memory(false);
    return err;
}

/* --- the world -------------------------------------------------------------------------------- */

static void make_world(struct p2pd_world *w)
{
    uint8_t seed[MU_IDENTITY_SEED_LEN];
    char name[32];

    for (uint32_t i = 0; i < P2PD_DAEMONS; i++) {
        struct p2pd_daemon_state *state = &w->daemons[i];

        memset(seed, (int)i + 1, sizeof(seed));
        MU_ASSERT(mu_identity_from_seed(&state->identity, seed) == 0);
        state->world = w;
        state->number = i;
        (void)snprintf(name, sizeof(name), "d%u", i);
        state->sim_host = mu_sim_host_new(w->sim, name);
    }
    for (uint32_t i = 0; i < P2PD_DAEMONS; i++) {
        /* The simulator cannot free libcrypto's memory, so no daemon is killed. */
        w->daemons[i].proc = mu_sim_proc_new(w->daemons[i].sim_host,
                                             &(struct mu_sim_program){.name = "p2pd",
                                                                      .start = start_daemon,
                                                                      .arg = &w->daemons[i],
                                                                      .flags = MU_SIM_KEEP_ALIVE});
    }
    for (uint32_t i = 0; i < P2PD_CLIENTS; i++) {
        struct p2pd_client_state *state = &w->clients[i];

        state->world = w;
        state->number = i;
        state->daemon = i % P2PD_DAEMONS;
        state->proc = mu_sim_proc_new(w->daemons[state->daemon].sim_host,
                                      &(struct mu_sim_program){.name = "client",
                                                               .start = p2pd_client_start,
                                                               .killed = p2pd_client_killed,
                                                               .arg = state});
    }
}

static bool all_answered(void *arg)
{
    struct p2pd_world *w = arg;

    for (uint32_t i = 0; i < P2PD_CLIENTS; i++) {
        if (w->clients[i].answered < w->wanted_answers[i] ||
            w->clients[i].echoed < w->wanted_echoes[i]) {
            return false;
        }
    }
    return true;
}

static bool nothing_open(void *arg)
{
    struct p2pd_world *w = arg;

    return once_open(w->calls) == 0 && once_open(w->streams) == 0;
}

static bool nothing_left(void *arg)
{
    struct p2pd_world *w = arg;

    for (uint32_t i = 0; i < P2PD_CLIENTS; i++) {
        if (mu_sim_proc_alive(w->clients[i].proc)) {
            return false;
        }
    }
    for (uint32_t i = 0; i < P2PD_DAEMONS; i++) {
        struct mu_p2pd_stats s;

        mu_p2pd_stats(w->daemons[i].d, &s);
        if (s.clients + s.persistent + s.handlers + s.streams + s.calls + s.served + s.unary +
                s.held_bytes !=
            0) {
            return false;
        }
    }
    return true;
}

static bool all_stopped(void *arg)
{
    struct p2pd_world *w = arg;

    for (uint32_t i = 0; i < P2PD_DAEMONS; i++) {
        if (mu_sim_proc_alive(w->daemons[i].proc)) {
            return false;
        }
    }
    return true;
}

static void say_left(struct p2pd_world *w)
{
    for (uint32_t i = 0; i < P2PD_DAEMONS; i++) {
        struct mu_p2pd_stats s;

        mu_p2pd_stats(w->daemons[i].d, &s);
        if (s.clients + s.handlers + s.streams + s.unary + s.held_bytes != 0) {
            mu_sim_fail(w->sim,
                        "of clients that are gone d%u has kept: %u connections, %u handlers, %u "
                        "streams, %u calls, %u served, %u streams of those, %u bytes",
                        i, (unsigned)s.clients, (unsigned)s.handlers, (unsigned)s.streams,
                        (unsigned)s.calls, (unsigned)s.served, (unsigned)s.unary,
                        (unsigned)s.held_bytes);
        }
    }
    mu_sim_fail(w->sim, "a client did not leave");
}

static void heal(struct p2pd_world *w)
{
    mu_sim_heal(w->sim);
    w->healed = true;
    for (uint32_t i = 0; i < P2PD_CLIENTS; i++) {
        w->wanted_answers[i] = w->clients[i].answered + 2;
        w->wanted_echoes[i] = w->clients[i].echoed + 1;
    }
}

static void release_crypto(struct p2pd_world *w)
{
    for (uint32_t i = 0; i < P2PD_DAEMONS; i++) {
        if (w->daemons[i].d != NULL) {
            peer_host_release_crypto(w->daemons[i].d->host);
        }
        mu_identity_fini(&w->daemons[i].identity);
    }
}

/* Some clients have no time to announce that they leave. */
static void end_clients(struct p2pd_world *w)
{
    w->leaving = true;
    for (uint32_t i = 0; i < P2PD_CLIENTS; i++) {
        if (mu_prng_chance(mu_sim_prng(w->sim), 500000)) {
            mu_sim_kill(w->clients[i].proc, MU_SIM_KILL_PROCESS);
        }
    }
}

static void run_world(struct mu_sim *sim, enum p2pd_plant plant)
{
    struct p2pd_world *w = mu_sim_calloc(sizeof(*w));

    mu_sim_trace_log(sim);
    w->sim = sim;
    w->plant = plant;
    w->calls = once_new(sim, "call");
    w->streams = once_new(sim, "stream");
    make_world(w);
    mu_sim_run_for(sim, FAULTY_NS);
    heal(w);
    if (!mu_sim_run_until(sim, CONVERGE_NS, all_answered, w)) {
        mu_sim_fail(sim, "a client was not answered though all faults had ended");
    }
    if (!mu_sim_run_until(sim, CONVERGE_NS, nothing_open, w)) {
        mu_sim_fail(sim, "%u calls and %u streams are left hanging", (unsigned)once_open(w->calls),
                    (unsigned)once_open(w->streams));
    }
    end_clients(w);
    if (!mu_sim_run_until(sim, CONVERGE_NS, nothing_left, w) && mu_sim_failure(sim) == NULL) {
        say_left(w);
    }
    w->stopping = true;
    if (!mu_sim_run_until(sim, CONVERGE_NS, all_stopped, w)) {
        mu_sim_fail(sim, "a daemon did not stop");
    }
    once_finish(w->calls);
    once_finish(w->streams);
    once_free(w->calls);
    once_free(w->streams);
    release_crypto(w);
    mu_free(w);
    muster_log_set(NULL, NULL, MUSTER_LOG_WARN);
}

/* Clients die all the time, and are back soon. */
static struct mu_sim_faults draw_faults(struct mu_prng *prng)
{
    struct mu_sim_faults f = mu_sim_faults_draw(prng);

    f.kill_every_ns = MU_NS_PER_S / 4 + mu_prng_below(prng, 3 * MU_NS_PER_S);
    f.down_max_ns = MU_NS_PER_S;
    f.power_ppm = 0;
    mu_sim_faults_draw_memory(&f, prng);
    return f;
}

SIM_SCENARIO(p2pd, "p2pd",
             "ten daemons whose clients die at random: no call hangs, nothing is left behind",
             draw_faults, false, run_world(sim, P2PD_PLANT_NONE))
SIM_SCENARIO(p2pd_forgets, "p2pd-forgets", "the same, with a daemon that forgets a call",
             draw_faults, true, run_world(sim, P2PD_PLANT_FORGETS))
SIM_SCENARIO(p2pd_clings, "p2pd-clings",
             "the same, with a daemon that keeps a handler of a client that is gone", draw_faults,
             true, run_world(sim, P2PD_PLANT_CLINGS))
