/*
 * Hosts of peers that call each other on named streams, short and long, over a network that cuts,
 * chunks and stalls, beside a hostile guest that dials them and breaks the rules.
 *
 * What must hold: nothing of a payload before the handshake is done, no counter twice, no window
 * exceeded, streams opened = closed + held (peer_check.c); every stream ends exactly once; what is
 * delivered was sent by the named peer to this receiver, in order; a stranger to a private swarm is
 * never served; and when the faults have ended every host reaches every other.
 */
#include "scenarios/peer/peer_world.h"

#include <stdio.h>
#include <string.h>

#include <muster/error.h>
#include <muster/log.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "proto/peer/yamux_internal.h"
#include "scenarios/peer/peer_talk.h"
#include "scenarios/scenarios.h"

#define FAULTY_NS    (12 * MU_NS_PER_S)
#define CONVERGE_NS  (240 * MU_NS_PER_S)
#define UNDER_WAY    4
#define CALLS_FAULTY 16 /* before all is healed */
#define HEAD_LEN     12 /* of a call: from, number, bytes */
#define LONG_BYTES   (700u << 10)

static const char *const host_names[PEER_HOSTS] = {"h0", "h1", "h2"};
static const struct mu_span call_names[] = {
    {(const uint8_t *)"/sim/never/1.0.0", 16},
    {(const uint8_t *)PEER_NAME, sizeof(PEER_NAME) - 1},
};

/* Returns the byte of a call's stream at each place. */
static uint8_t byte_at(uint32_t from, uint32_t number, uint32_t bytes, uint32_t at)
{
    uint8_t head[HEAD_LEN];

    if (at >= HEAD_LEN) {
        return (uint8_t)(at * 31 + (at >> 8) * 7 + from * 101 + number);
    }
    mu_put_u32(head, from);
    mu_put_u32(head + 4, number);
    mu_put_u32(head + 8, bytes);
    return head[at];
}

/* --- serving ---------------------------------------------------------------------------------- */

struct served {
    struct peer_echo echo;
    struct peer_host_app *app;
    uint32_t from;
    uint8_t head[HEAD_LEN];
    uint32_t got;
};

static void check_served(struct peer_echo *echo, struct mu_span bytes)
{
    struct served *s = MU_CONTAINER_OF(echo, struct served, echo);
    struct peer_world *w = s->app->state->world;
    uint32_t number;
    const struct peer_made *made;

    for (size_t i = 0; i < bytes.len && s->got + i < HEAD_LEN; i++) {
        s->head[s->got + i] = bytes.data[i];
    }
    if (s->got + bytes.len < HEAD_LEN) {
        s->got += (uint32_t)bytes.len;
        return;
    }
    number = mu_get_u32(s->head + 4);
    made = &w->hosts[s->from].made[number % PEER_CALLS];
    if (mu_get_u32(s->head) != s->from || number >= w->hosts[s->from].made_count ||
        made->to != s->app->state->number || made->bytes != mu_get_u32(s->head + 8)) {
        mu_sim_fail(w->sim, "h%u was sent what h%u never said", s->app->state->number, s->from);
        return;
    }
    for (size_t i = 0; i < bytes.len; i++) {
        if (bytes.data[i] != byte_at(s->from, number, made->bytes, s->got + (uint32_t)i)) {
            mu_sim_fail(w->sim, "h%u was sent other bytes than h%u said", s->app->state->number,
                        s->from);
            return;
        }
    }
    s->got += (uint32_t)bytes.len;
}

static struct mu_host_stream *on_opened(struct mu_peer_handler *handler,
                                        const struct mu_peer_id *peer, struct mu_span name)
{
    struct peer_host_app *app = MU_CONTAINER_OF(handler, struct peer_host_app, handler);
    struct peer_world *w = app->state->world;
    struct served *s;
    uint32_t from = 0;

    (void)name;
    while (from < PEER_HOSTS && !mu_peer_id_eq(peer, &w->hosts[from].identity.id)) {
        from++;
    }
    if (from == PEER_HOSTS) {
        if (w->private_swarm) {
            mu_sim_fail(w->sim, "h%u serves a stranger to its swarm", app->state->number);
        }
        return NULL;
    }
    s = (struct served *)peer_echo_new(sizeof(*s), &app->serving);
    if (s == NULL) {
        return NULL;
    }
    s->echo.heard = check_served;
    s->app = app;
    s->from = from;
    return &s->echo.stream;
}

/* --- calling ---------------------------------------------------------------------------------- */

struct calling {
    struct peer_call call;
    struct peer_host_app *app;
    uint64_t ticket;
    uint32_t to, number;
};

static uint8_t call_byte_at(const struct peer_call *call, uint32_t at)
{
    const struct calling *c = MU_CONTAINER_OF(call, const struct calling, call);

    return byte_at(c->app->state->number, c->number, call->bytes, at);
}

static void call_ended(struct peer_call *call, int status, const char *text)
{
    struct calling *c = MU_CONTAINER_OF(call, struct calling, call);
    struct peer_state *state = c->app->state;

    if (text != NULL && mu_sim_tracing(state->world->sim)) {
        mu_sim_note(state->world->sim, state->proc, "call %u to h%u: %d %s", c->number, c->to,
                    status, text);
    }
    state->reached[c->to] += status == 0 ? 1 : 0;
    once_end(state->world->calls, c->ticket);
    c->app->under_way--;
    mu_free(c);
}

static void make_call(struct peer_host_app *app, uint32_t to)
{
    struct peer_state *state = app->state;
    struct peer_world *w = state->world;
    struct mu_prng *prng = mu_sim_prng(w->sim);
    struct calling *c;
    uint64_t draw = mu_prng_below(prng, 100);

    if (state->made_count >= (w->healed ? PEER_CALLS : CALLS_FAULTY) ||
        app->under_way >= UNDER_WAY) {
        return;
    }
    c = mu_sim_calloc(sizeof(*c));
    c->app = app;
    c->to = to;
    c->number = state->made_count++;
    c->call.bytes = HEAD_LEN + (draw < 4    ? LONG_BYTES
                                : draw < 40 ? (uint32_t)mu_prng_below(prng, 5000)
                                            : (uint32_t)mu_prng_below(prng, 100));
    state->made[c->number] = (struct peer_made){.to = to, .bytes = c->call.bytes};
    c->ticket = once_begin(w->calls, state->number);
    c->call.sim = w->sim;
    c->call.env = app->env;
    c->call.byte_at = call_byte_at;
    c->call.ended = call_ended;
    /* Callers give some calls up. */
    c->call.give_up_at = !w->healed && mu_prng_chance(prng, 100000)
                             ? mu_mono_add_ms(mu_env_now(app->env).mono, mu_prng_below(prng, 3000))
                             : MU_MONO_NEVER;
    app->under_way++;
    /* Either an unknown name first, or only the right one. */
    peer_call_make(&c->call, app->host, &w->hosts[to].identity.id,
                   mu_prng_chance(prng, 200000) ? call_names : call_names + 1);
}

/* --- planted ---------------------------------------------------------------------------------- */

static void plant_bug(struct peer_host_app *app)
{
    struct peer_world *w = app->state->world;
    struct mu_map_node *node;

    MU_LIST_FOREACH (it, &app->host->conns) {
        struct mu_host_conn *c = MU_CONTAINER_OF(it, struct mu_host_conn, link);

        if (c->pc.stage != MU_PEER_OPEN || w->planted) {
            continue;
        }
        node = mu_map_next(&c->pc.yamux.streams, NULL);
        if (w->plant == PEER_PLANT_GREEDY && node != NULL) {
            MU_CONTAINER_OF(node, struct mu_yamux_stream, by_id)->send_window += 100000;
            w->planted = true;
        } else if (w->plant == PEER_PLANT_NONCE && c->pc.noise.sealed != 0) {
            c->pc.noise.sealed--;
            w->planted = true;
        } else if (w->plant == PEER_PLANT_LOSING && c->pc.closed != 0) {
            c->pc.closed--;
            w->planted = true;
        }
    }
}

/* --- a host ----------------------------------------------------------------------------------- */

static void on_timer(struct mu_timer *timer)
{
    struct peer_host_app *app = MU_CONTAINER_OF(timer, struct peer_host_app, timer);
    struct peer_world *w = app->state->world;
    struct mu_prng *prng = mu_sim_prng(w->sim);
    uint32_t me = app->state->number;

    if (w->leaving) {
        mu_peer_host_stop(app->host);
        return;
    }
    if (w->plant != PEER_PLANT_NONE && !w->planted && me == 0) {
        plant_bug(app);
    }
    if (!w->healed) {
        make_call(app, (me + 1 + (uint32_t)mu_prng_below(prng, PEER_HOSTS - 1)) % PEER_HOSTS);
    } else {
        for (uint32_t to = 0; to < PEER_HOSTS; to++) {
            if (to != me && app->state->reached[to] < w->wanted[me][to]) {
                make_call(app, to);
            }
        }
    }
    mu_env_timer_arm(
        app->env, &app->timer,
        mu_mono_add_ms(mu_env_now(app->env).mono, w->healed ? 5000 : mu_prng_below(prng, 3000)));
}

static void on_stopped(void *context)
{
    struct peer_host_app *app = context;

    if (app->under_way != 0 || app->serving != 0) {
        mu_sim_fail(app->state->world->sim, "a host stopped with streams that have not ended");
    }
    app->state->app = NULL;
    mu_env_timer_arm(app->env, &app->timer, MU_MONO_NEVER);
    mu_peer_host_free(app->host);
    mu_sim_exit(app->env);
    mu_free(app);
}

static int introduce(struct peer_host_app *app)
{
    struct peer_world *w = app->state->world;
    int err = 0;

    for (uint32_t i = 0; i < PEER_HOSTS && err == 0; i++) {
        struct mu_buf addr;
        struct mu_errmsg msg;
        char text[64];

        if (i == app->state->number) {
            continue;
        }
        mu_buf_init(&addr, 256);
        (void)snprintf(text, sizeof(text), "/dns4/%s/tcp/%d", host_names[i], PEER_PORT);
        err = mu_multiaddr_parse(&addr, text, &msg);
        if (err == 0) {
            err = mu_peer_host_add_addr(app->host, &w->hosts[i].identity.id, mu_buf_span(&addr));
        }
        if (err == 0 && w->private_swarm) {
            err = mu_peer_host_allow(app->host, &w->hosts[i].identity.id);
        }
        mu_buf_fini(&addr);
    }
    return err;
}

static int start_host(struct mu_env *env, void *arg)
{
    struct mu_peer_host_config config = mu_peer_host_config_defaults();
    struct peer_state *state = arg;
    struct peer_world *w = state->world;
    struct peer_host_app *app = mu_sim_calloc(sizeof(*app));
    struct mu_errmsg msg;
    char text[64];
    int err;

    mu_sim_spare_memory(true); /* there is memory at the start */
    app->state = state;
    app->env = env;
    config.identity = &state->identity;
    config.idle_ms = (uint32_t)(2000 + mu_prng_below(mu_sim_prng(w->sim), 20000));
    config.memory_bytes_max = 16u << 20;
    config.pending_max = 8;
    config.private_swarm =
        w->private_swarm && !(w->plant == PEER_PLANT_OPENDOOR && state->number == 1);
    config.no_identify = mu_prng_chance(mu_sim_prng(w->sim), 500000);
    config.conn.muxer_late = mu_prng_chance(mu_sim_prng(w->sim), 300000);
    config.stopped = on_stopped;
    config.context = app;
    err = mu_peer_host_start(env, &config, &app->host, &msg);
    if (err == 0) {
        app->handler = (struct mu_peer_handler){.name = PEER_NAME, .opened = on_opened};
        err = mu_peer_host_serve(app->host, &app->handler);
    }
    if (err == 0) {
        (void)snprintf(text, sizeof(text), "/dns/%s/tcp/%d", host_names[state->number], PEER_PORT);
        err = mu_peer_host_listen(app->host, text, &msg);
    }
    if (err == 0) {
        err = introduce(app);
    }
    mu_timer_init(&app->timer, on_timer);
    mu_env_timer_arm(env, &app->timer, mu_env_now(env).mono);
    state->app = app;
    mu_sim_spare_memory(false);
    return err;
}

/* --- the world -------------------------------------------------------------------------------- */

static bool all_reached(void *arg)
{
    struct peer_world *w = arg;

    for (uint32_t i = 0; i < PEER_HOSTS; i++) {
        for (uint32_t j = 0; j < PEER_HOSTS; j++) {
            if (i != j && w->hosts[i].reached[j] < w->wanted[i][j]) {
                return false;
            }
        }
    }
    return true;
}

static bool all_left(void *arg)
{
    struct peer_world *w = arg;

    for (uint32_t i = 0; i < PEER_HOSTS; i++) {
        if (mu_sim_proc_alive(w->hosts[i].proc)) {
            return false;
        }
    }
    return true;
}

static void make_hosts(struct peer_world *w)
{
    uint8_t seed[MU_IDENTITY_SEED_LEN];

    for (uint32_t i = 0; i < PEER_HOSTS; i++) {
        struct peer_state *state = &w->hosts[i];

        memset(seed, (int)i + 1, sizeof(seed));
        MU_ASSERT(mu_identity_from_seed(&state->identity, seed) == 0);
        state->world = w;
        state->number = i;
        state->sim_host = mu_sim_host_new(w->sim, host_names[i]);
    }
    memset(seed, 99, sizeof(seed));
    MU_ASSERT(mu_identity_from_seed(&w->stranger, seed) == 0);
    for (uint32_t i = 0; i < PEER_HOSTS; i++) {
        /* The simulator cannot free libcrypto's memory, so no host is killed. */
        w->hosts[i].proc = mu_sim_proc_new(w->hosts[i].sim_host,
                                           &(struct mu_sim_program){.name = "peer",
                                                                    .start = start_host,
                                                                    .arg = &w->hosts[i],
                                                                    .flags = MU_SIM_KEEP_ALIVE});
    }
}

static void heal(struct peer_world *w)
{
    mu_sim_heal(w->sim);
    w->healed = true;
    for (uint32_t i = 0; i < PEER_HOSTS; i++) {
        for (uint32_t j = 0; j < PEER_HOSTS; j++) {
            w->wanted[i][j] = w->hosts[i].reached[j] + 1;
        }
    }
}

static void release_crypto(struct peer_world *w)
{
    for (uint32_t i = 0; i < PEER_HOSTS; i++) {
        if (w->hosts[i].app != NULL) {
            peer_host_release_crypto(w->hosts[i].app->host);
        }
        w->hosts[i].app = NULL;
    }
    peer_hostile_release(w);
}

static void run_world(struct mu_sim *sim, enum peer_plant plant)
{
    struct peer_world *w = mu_sim_calloc(sizeof(*w));
    struct mu_prng *prng = mu_sim_prng(sim);

    mu_sim_trace_log(sim);
    w->sim = sim;
    w->plant = plant;
    w->private_swarm = plant == PEER_PLANT_OPENDOOR || mu_prng_chance(prng, 500000);
    w->calls = once_new(sim, "call");
    mu_sim_add_checker(sim, peer_check, w);
    make_hosts(w);
    if (plant == PEER_PLANT_OPENDOOR || mu_prng_chance(prng, 600000)) {
        peer_hostile_start(w);
    }
    mu_sim_run_for(sim, FAULTY_NS);
    heal(w);
    if (!mu_sim_run_until(sim, CONVERGE_NS, all_reached, w)) {
        mu_sim_fail(sim, "a peer was not reached though all faults had ended");
    }
    w->leaving = true;
    if (!mu_sim_run_until(sim, CONVERGE_NS, all_left, w)) {
        mu_sim_fail(sim, "a host did not stop");
    }
    once_finish(w->calls);
    once_free(w->calls);
    release_crypto(w);
    for (uint32_t i = 0; i < PEER_HOSTS; i++) {
        mu_identity_fini(&w->hosts[i].identity);
    }
    mu_identity_fini(&w->stranger);
    mu_free(w);
    muster_log_set(NULL, NULL, MUSTER_LOG_WARN);
}

static struct mu_sim_faults draw_faults(struct mu_prng *prng)
{
    struct mu_sim_faults f = mu_sim_faults_draw(prng);

    f.kill_every_ns = 0;
    mu_sim_faults_draw_memory(&f, prng);
    return f;
}

SIM_SCENARIO(peer, "peer",
             "hosts of peers and a hostile guest: secrecy, windows, every stream ends once",
             draw_faults, false, run_world(sim, PEER_PLANT_NONE))
SIM_SCENARIO(peer_greedy, "peer-greedy", "the same, with a host that grants itself a larger window",
             draw_faults, true, run_world(sim, PEER_PLANT_GREEDY))
SIM_SCENARIO(peer_nonce, "peer-nonce", "the same, with a host that seals with a counter twice",
             draw_faults, true, run_world(sim, PEER_PLANT_NONCE))
SIM_SCENARIO(peer_open_door, "peer-open-door",
             "the same, with a host that lets strangers into a private swarm", draw_faults, true,
             run_world(sim, PEER_PLANT_OPENDOOR))
SIM_SCENARIO(peer_losing, "peer-losing",
             "the same, with a host that forgets that a stream has ended", draw_faults, true,
             run_world(sim, PEER_PLANT_LOSING))
