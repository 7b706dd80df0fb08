/* Donors of the scenario `state`: the real service, with shares that are not what they claim. */
#include "scenarios/state/state_world.h"

#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"

#define REPLACED_MS 700

static void release(struct mu_state_share *share)
{
    mu_free((void *)(uintptr_t)share->have);
    mu_free(share->owner);
}

/* --- what it shares --------------------------------------------------------------------------- */

static uint8_t *offer_byte(struct mu_state_share *share, const uint8_t *at)
{
    return share->offer.bytes.data + (at - share->offer.bytes.data);
}

static void draw_bits(struct giver_app *app, struct mu_state_share *share)
{
    struct state_world *w = app->state->world;
    uint8_t *bits = (uint8_t *)(uintptr_t)share->have;

    share->have_count = 0;
    for (uint32_t i = 0; i < w->chunks; i++) {
        if (mu_prng_chance(mu_sim_prng(w->sim), 600000)) {
            mu_state_bit_set(bits, i);
            share->have_count++;
        } else {
            mu_state_bit_clear(bits, i);
        }
    }
}

static void tamper(struct giver_app *app, struct mu_state_share *share)
{
    struct state_world *w = app->state->world;
    struct mu_prng *prng = mu_sim_prng(w->sim);
    uint8_t *data = share->owner;

    switch (app->state->kind) {
    case GIVER_CORRUPT:
        for (uint64_t n = 1 + mu_prng_below(prng, 3); n != 0; n--) {
            data[mu_prng_below(prng, w->bytes)] ^= (uint8_t)(1u << mu_prng_below(prng, 8));
        }
        break;
    case GIVER_BOASTER:
        share->offer.manifest.epoch += 5;
        share->priority += (double)mu_prng_below(prng, 2) * 10;
        break;
    case GIVER_OTHER:
        memcpy(share->id, w->ids[app->state->version], MU_STATE_ID_LEN);
        break;
    case GIVER_FORGER:
        if (mu_prng_chance(prng, 500000)) {
            *offer_byte(share, share->offer.signature.data) ^= 1;
        } else {
            *offer_byte(share, share->offer.leaves.data) ^= 1;
        }
        share->priority += (double)mu_prng_below(prng, 2) * 10;
        break;
    case GIVER_PARTIAL:
        share->have = mu_sim_calloc(mu_state_bits_len(w->chunks) + 1);
        draw_bits(app, share);
        break;
    case GIVER_HONEST:
    case GIVER_CLIPPER:
    case GIVER_SLOW:
    case GIVER_CROWDED:
    case GIVER_FICKLE:
    case GIVER_KINDS:
        break;
    }
}

static void share_version(struct giver_app *app)
{
    struct state_giver *state = app->state;
    struct state_world *w = state->world;
    struct mu_state_share *share;
    struct mu_errmsg msg;
    uint8_t *data;
    struct mu_state_share_spec spec = {
        .prefix = MU_SPAN_LIT(STATE_PREFIX),
        .priority = state->version,
        .epoch = state->version,
        .step = 7,
        .metadata = MU_SPAN_LIT("\x80"),
        .layout = &w->layout,
        .chunk_bytes = STATE_CHUNK,
    };

    mu_sim_spare_memory(true);
    data = mu_sim_calloc(w->bytes + 1);
    memcpy(data, w->content[state->version], w->bytes);
    if (state->kind == GIVER_OTHER) {
        data[0] ^= 1;
    }
    spec.data = data;
    MU_ASSERT(mu_state_share_new(&spec, &share, &msg) == 0);
    share->owner = data;
    share->released = release;
    MU_ASSERT(mu_state_share_hash(share, 0, w->chunks) == 0);
    MU_ASSERT(mu_state_share_seal(share, &w->identities[state->number], &msg) == 0);
    if (state->kind != GIVER_OTHER && state_version_of(w, share->id) != state->version) {
        mu_sim_fail(w->sim, "the same content has two ids");
    }
    tamper(app, share);
    MU_ASSERT(mu_state_donor_put(app->donor, share) == 0);
    app->share = share;
    mu_state_share_drop(share);
    mu_sim_spare_memory(false);
}

/* --- life ------------------------------------------------------------------------------------- */

static void on_stopped(void *context)
{
    struct giver_app *app = context;

    mu_env_timer_arm(app->env, &app->timer, MU_MONO_NEVER);
    mu_state_donor_free(app->donor);
    app->state->app = NULL;
    mu_sim_exit(app->env);
    mu_free(app);
}

static void on_timer(struct mu_timer *timer)
{
    struct giver_app *app = MU_CONTAINER_OF(timer, struct giver_app, timer);
    struct state_giver *state = app->state;
    struct state_world *w = state->world;
    struct mu_prng *prng = mu_sim_prng(w->sim);

    if (w->leaving && !app->stopping) {
        app->stopping = true;
        mu_state_donor_stop(app->donor);
        return;
    }
    if (state->kind == GIVER_FICKLE && !w->healed && state->version + 1 < STATE_VERSIONS &&
        mu_prng_chance(prng, 300000)) {
        state->version++;
        mu_sim_note(w->sim, state->proc, "goes on to version %u", state->version);
        share_version(app);
    }
    if (state->kind == GIVER_PARTIAL && mu_prng_chance(prng, 300000)) {
        draw_bits(app, app->share);
    }
    if (state->kind == GIVER_CLIPPER && mu_prng_chance(prng, 300000)) {
        app->share->offer.manifest.layout.bytes = w->bytes - (app->clipped ? 0 : 1);
        app->clipped = !app->clipped;
    }
    mu_env_timer_arm(
        app->env, &app->timer,
        mu_mono_add_ms(mu_env_now(app->env).mono, state->kind == GIVER_PARTIAL ? 30 : 1000));
}

static int start(struct mu_env *env, void *arg)
{
    struct state_giver *state = arg;
    struct mu_state_donor_config config = mu_state_donor_config_defaults();
    struct giver_app *app = mu_sim_calloc(sizeof(*app));
    struct mu_prng *prng = mu_sim_prng(state->world->sim);
    struct mu_errmsg msg;
    char text[64];
    int err;

    mu_sim_spare_memory(true);
    app->state = state;
    app->env = env;
    (void)snprintf(text, sizeof(text), "d%u:%d", state->number, STATE_PORT);
    err = mu_addr_parse(text, 0, &config.listen, &msg);
    config.name = "giver";
    config.replaced_ms = REPLACED_MS;
    config.drain_ms = 500;
    config.stopped = on_stopped;
    config.context = app;
    if (state->kind == GIVER_SLOW) {
        config.gate.bytes_per_s = 20000 + mu_prng_below(prng, 100000);
        config.gate.burst_bytes = STATE_CHUNK;
    }
    if (state->kind == GIVER_CROWDED) {
        config.gate.slots = 1;
    }
    if (err == 0) {
        err = mu_state_donor_start(env, &config, &app->donor, &msg);
    }
    if (err == 0) {
        share_version(app);
        mu_timer_init(&app->timer, on_timer);
        mu_env_timer_arm(env, &app->timer, mu_mono_add_ms(mu_env_now(env).mono, 500));
        state->app = app;
    }
    mu_sim_spare_memory(false);
    return err;
}

static void on_killed(void *arg)
{
    ((struct state_giver *)arg)->app = NULL;
}

void state_giver_start(struct state_world *w, uint32_t number)
{
    static const char *const names[STATE_GIVERS] = {"d0", "d1", "d2", "d3"};
    struct state_giver *state = &w->givers[number];
    struct mu_prng *prng = mu_sim_prng(w->sim);

    state->world = w;
    state->number = number;
    /* One donor is reliable once the world is quiet. */
    state->kind = number == 0 ? GIVER_HONEST : (enum giver_kind)mu_prng_below(prng, GIVER_KINDS);
    state->proc =
        mu_sim_proc_new(mu_sim_host_new(w->sim, names[number]),
                        &(struct mu_sim_program){
                            .name = "giver", .start = start, .killed = on_killed, .arg = state});
}
