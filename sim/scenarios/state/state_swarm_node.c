/* A node of the scenario `state-swarm`: a peer in the DHT that shares something, or claims to. */
#include "scenarios/state/state_swarm_world.h"

#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "scenarios/peer/peer_talk.h"

#define PORT        4001
#define REPLACED_MS 700

/* What hivemind's peers get. */
struct given {
    struct mu_state_share *share;
    struct mu_span value;
};

static void rearm(struct swarm_app *app, uint64_t ms)
{
    mu_env_timer_arm(app->env, &app->timer, mu_mono_add_ms(mu_env_now(app->env).mono, ms));
}

/* --- what it shares --------------------------------------------------------------------------- */

static void on_given(void *context)
{
    struct given *g = context;

    mu_state_share_drop(g->share);
    mu_free(g);
}

static void release(struct mu_state_share *share)
{
    mu_free(share->owner);
}

static struct mu_hm_snapshot *make_snapshot(struct mu_state_share *share)
{
    struct given *g = mu_sim_calloc(sizeof(*g));
    struct mu_hm_snapshot_config config = {.release = on_given, .context = g};
    struct mu_hm_snapshot *snapshot;
    struct mu_errmsg msg;

    g->share = mu_state_share_hold(share);
    g->value = mu_state_share_tensor(share, 0);
    config.state.layout = &share->offer.manifest.layout;
    config.state.values = &g->value;
    config.state.metadata = mu_buf_span(&share->offer.manifest.metadata);
    MU_ASSERT(mu_hm_snapshot_new(&config, &snapshot, &msg) == 0);
    return snapshot;
}

static void tamper(struct swarm_app *app, struct mu_state_share *share)
{
    struct mu_prng *prng = mu_sim_prng(app->state->world->sim);
    uint8_t *data = share->owner;

    if (app->state->kind == SWARM_CORRUPT) {
        data[mu_prng_below(prng, SWARM_BYTES)] ^= (uint8_t)(1u << mu_prng_below(prng, 8));
    } else if (app->state->kind == SWARM_FORGER) {
        share->offer.bytes.data[share->offer.signature.data - share->offer.bytes.data] ^= 1;
    }
}

static void share_version(struct swarm_app *app)
{
    struct swarm_node *state = app->state;
    struct swarm_world *w = state->world;
    bool boasts =
        state->kind == SWARM_BOASTER || state->kind == SWARM_EMPTY || state->kind == SWARM_FORGER;
    double priority = state->version + (boasts ? SWARM_BOAST : 0);
    struct mu_hm_snapshot *snapshot = NULL;
    uint8_t *data = mu_sim_calloc(SWARM_BYTES);
    struct mu_state_share *share;

    memcpy(data, w->content[state->version], SWARM_BYTES);
    share = swarm_share(w, state->version, data, &state->identity);
    share->owner = data;
    share->released = release;
    tamper(app, share);
    if (app->donor != NULL && state->kind != SWARM_EMPTY) {
        MU_ASSERT(mu_state_donor_put(app->donor, share) == 0);
    }
    if (mu_state_swarm_averager(app->swarm) != NULL) {
        snapshot = make_snapshot(share);
    }
    mu_state_swarm_put(app->swarm, SWARM_PREFIX, snapshot, priority, false, REPLACED_MS);
    mu_hm_snapshot_unref(snapshot);
    mu_state_share_drop(share);
}

/* The donor is not always there. */
static void change(struct swarm_app *app)
{
    struct swarm_node *state = app->state;
    struct mu_prng *prng = mu_sim_prng(state->world->sim);

    if (app->settled || state->kind == SWARM_TAKER) {
        return;
    }
    if (state->world->quiet) {
        app->settled = true;
        share_version(app);
        return;
    }
    if (state->fickle && state->version + 1 < SWARM_VERSIONS && mu_prng_chance(prng, 100000)) {
        state->version++;
        mu_sim_note(state->world->sim, state->proc, "goes on to version %u", state->version);
        share_version(app);
    } else if (state->kind != SWARM_SEED && mu_prng_chance(prng, 30000)) {
        mu_state_swarm_withdraw(app->swarm, SWARM_PREFIX, REPLACED_MS);
    } else if (state->kind != SWARM_SEED && mu_prng_chance(prng, 60000)) {
        share_version(app);
    }
}

/* --- life ------------------------------------------------------------------------------------- */

static void on_host_stopped(void *context)
{
    struct swarm_app *app = context;

    mu_env_timer_arm(app->env, &app->timer, MU_MONO_NEVER);
    mu_peer_host_free(app->host);
    app->state->app = NULL;
    mu_sim_exit(app->env);
    mu_free(app);
}

static void on_swarm_stopped(void *context)
{
    ((struct swarm_app *)context)->swarm_stopped = true;
}

static void on_donor_stopped(void *context)
{
    ((struct swarm_app *)context)->donor_stopped = true;
}

static void leave(struct swarm_app *app)
{
    if (app->load != NULL) {
        return;
    }
    if (!app->stopping) {
        app->stopping = true;
        mu_state_swarm_stop(app->swarm);
        app->donor_stopped = app->donor == NULL;
        if (app->donor != NULL) {
            mu_state_donor_stop(app->donor);
        }
    } else if (app->swarm_stopped && app->donor_stopped && app->peers != NULL) {
        if (app->donor != NULL) {
            mu_state_donor_free(app->donor);
        }
        mu_peer_env_free(app->peers);
        app->peers = NULL;
        mu_peer_host_stop(app->host);
    }
}

static void on_timer(struct mu_timer *timer)
{
    struct swarm_app *app = MU_CONTAINER_OF(timer, struct swarm_app, timer);
    struct swarm_world *w = app->state->world;

    rearm(app, 200 + mu_prng_below(mu_sim_prng(w->sim), 300));
    if (app->state->kind == SWARM_TAKER) {
        swarm_load_turn(app);
    }
    if (w->leaving) {
        leave(app);
    } else {
        change(app);
    }
}

static int start_host(struct swarm_app *app)
{
    struct mu_peer_host_config config = mu_peer_host_config_defaults();
    struct swarm_node *state = app->state;
    struct swarm_node *seed = &state->world->nodes[0];
    struct mu_errmsg msg;
    struct mu_buf addr;
    char text[64];
    int err;

    config.identity = &state->identity;
    config.connect_ms = 4000;
    config.stopped = on_host_stopped;
    config.context = app;
    err = mu_peer_host_start(app->env, &config, &app->host, &msg);
    (void)snprintf(text, sizeof(text), "/dns/s%u/tcp/%d", state->number, PORT);
    err = err != 0 ? err : mu_peer_host_listen(app->host, text, &msg);
    if (err == 0 && state != seed) {
        mu_buf_init(&addr, MU_MULTIADDR_MAX);
        (void)snprintf(text, sizeof(text), "/dns/s0/tcp/%d", PORT);
        err = mu_multiaddr_parse(&addr, text, &msg);
        err = err != 0 ? err
                       : mu_peer_host_add_addr(app->host, &seed->identity.id, mu_buf_span(&addr));
        mu_buf_fini(&addr);
    }
    return err != 0 ? err : mu_peer_env_new(app->host, &app->peers);
}

static int start_swarm(struct swarm_app *app)
{
    struct mu_state_swarm_config config = mu_state_swarm_config_defaults();
    struct swarm_node *state = app->state;
    struct mu_errmsg msg;
    int err;

    config.host = app->host;
    config.peers = &state->world->nodes[0].identity.id;
    config.peer_count = state->number == 0 ? 0 : 1;
    config.averager =
        state->kind == SWARM_HIVEMIND || state->kind == SWARM_TAKER ? SWARM_AVERAGER : NULL;
    config.stopped = on_swarm_stopped;
    config.context = app;
    err = mu_state_swarm_start(&config, &app->swarm, &msg);
    if (err == 0 && state->kind != SWARM_TAKER) {
        err = mu_state_swarm_ready(app->swarm, SWARM_PREFIX, &msg);
    }
    return err;
}

static int start_donor(struct swarm_app *app)
{
    struct mu_state_donor_config config = mu_state_donor_config_defaults();
    struct mu_errmsg msg;

    config.name = "giver";
    config.listen = (struct mu_addr){.kind = MU_ADDR_PEER};
    config.replaced_ms = REPLACED_MS;
    config.drain_ms = 500;
    config.stopped = on_donor_stopped;
    config.context = app;
    return mu_state_donor_start(mu_peer_env_env(app->peers), &config, &app->donor, &msg);
}

static int start(struct mu_env *env, void *arg)
{
    struct swarm_node *state = arg;
    struct swarm_app *app = mu_sim_calloc(sizeof(*app));
    int err;

    app->state = state;
    app->env = env;
    mu_timer_init(&app->timer, on_timer);
    err = start_host(app);
    err = err != 0 || state->kind == SWARM_HIVEMIND || state->kind == SWARM_TAKER
              ? err
              : start_donor(app);
    err = err != 0 ? err : start_swarm(app);
    if (err == 0) {
        state->app = app;
        if (state->kind != SWARM_TAKER) {
            share_version(app);
        }
        rearm(app, 100);
    }
    return err;
}

void swarm_node_killed(void *arg)
{
    struct swarm_node *state = arg;

    if (state->app != NULL && state->app->host != NULL) {
        peer_host_release_crypto(state->app->host);
    }
    state->app = NULL;
}

static const char *word_of(enum swarm_kind kind)
{
    switch (kind) {
    case SWARM_SEED:
        return "seed";
    case SWARM_HONEST:
        return "honest";
    case SWARM_HIVEMIND:
        return "hivemind's";
    case SWARM_BOASTER:
        return "boaster";
    case SWARM_EMPTY:
        return "empty";
    case SWARM_CORRUPT:
        return "corrupt";
    case SWARM_FORGER:
        return "forger";
    case SWARM_TAKER:
        return "newcomer";
    case SWARM_KINDS:
        break;
    }
    return "";
}

void swarm_node_start(struct swarm_world *w, uint32_t number)
{
    static const char *const names[SWARM_NODES] = {"s0", "s1", "s2", "s3", "s4", "s5", "s6"};
    struct swarm_node *state = &w->nodes[number];
    struct mu_prng *prng = mu_sim_prng(w->sim);

    state->name = names[number];
    state->kind = number == 0 ? SWARM_SEED
                  : number >= w->givers
                      ? SWARM_TAKER
                      : (enum swarm_kind)(1 + mu_prng_below(prng, SWARM_KINDS - 1));
    state->fickle = mu_prng_chance(prng, 500000);
    state->proc =
        mu_sim_proc_new(mu_sim_host_new(w->sim, state->name),
                        &(struct mu_sim_program){.name = "node",
                                                 .start = start,
                                                 .killed = swarm_node_killed,
                                                 .arg = state,
                                                 .flags = number == 0 ? MU_SIM_KEEP_ALIVE : 0});
    mu_sim_note(w->sim, state->proc, "is %s: %s%s",
                mu_peer_id_format(&state->identity.id, (char[MU_PEER_ID_TEXT_MAX]){0}),
                word_of(state->kind), state->fickle ? ", fickle" : "");
}
