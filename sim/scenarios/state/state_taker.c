/* Newcomers of the scenario `state`: they load, again and again, and serve what they have. */
#include "scenarios/state/state_world.h"

#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"

#define LOADS_FAULTY 3 /* before all is healed */

static void rearm(struct taker_app *app, uint64_t ms)
{
    mu_env_timer_arm(app->env, &app->timer, mu_mono_add_ms(mu_env_now(app->env).mono, ms));
}

/* --- the destination -------------------------------------------------------------------------- */

static int read_file(struct mu_state_share *share, uint64_t offset, void *buf, size_t len)
{
    struct state_taker *state = share->owner;

    memcpy(buf, state->file + offset, len);
    return 0;
}

static void release_memory(struct mu_state_share *share)
{
    mu_free(share->owner);
}

/* Spoils what was put there before: nothing may be. */
static int prepare_memory(struct mu_state_share *share, uint64_t offset, uint64_t len)
{
    memset((uint8_t *)share->owner + offset, 0xee, (size_t)len);
    return 0;
}

/* Tensors at scattered places, in reverse order. */
static int scatter(struct taker_app *app, struct mu_state_plan *plan)
{
    const struct mu_layout *layout = &app->state->world->layout;
    uint8_t *tensors[STATE_TENSORS];
    size_t at = 0;

    for (size_t i = layout->count; i-- != 0;) {
        tensors[i] = app->memory + at;
        at += layout->tensors[i].len + 3;
    }
    return mu_state_segments_new(layout, tensors, NULL, &plan->segments, &plan->segment_count);
}

static void resume_file(struct taker_app *app, struct mu_state_plan *plan)
{
    struct state_taker *state = app->state;
    struct state_world *w = state->world;

    if (state->file_version != app->version) {
        memset(state->bits, 0, sizeof(state->bits));
        state->file_version = app->version;
        return;
    }
    plan->maybe = mu_calloc(1, sizeof(state->bits));
    if (plan->maybe == NULL) {
        return;
    }
    memcpy(plan->maybe, state->bits, sizeof(state->bits));
    for (uint32_t i = 0; i < w->chunks; i++) {
        app->resume_least += mu_state_bit(state->bits, i) ? 1 : 0;
        /* A load may search the file for chunks that are not recorded as there. */
        if (mu_prng_chance(mu_sim_prng(w->sim), 100000)) {
            mu_state_bit_set(plan->maybe, i);
        }
    }
}

static int on_accept(void *context, struct mu_state_plan *plan, struct mu_errmsg *reterr_msg)
{
    struct taker_app *app = context;
    struct state_taker *state = app->state;
    struct state_world *w = state->world;
    uint32_t version = state_version_of(w, plan->entry->id);
    bool in_pieces;
    int err;

    if (version == STATE_VERSIONS || plan->entry->epoch != version ||
        plan->offer->manifest.epoch != version) {
        mu_sim_fail(w->sim, "n%u believes in a state that nobody has", state->number);
    }
    app->version = version;
    app->resume_least = 0;
    app->seen_done = 0;
    memset(app->seen, 0, sizeof(app->seen));
    if (state->uses_file) {
        resume_file(app, plan);
        plan->owner = state;
        plan->read = read_file;
        err = mu_state_segments_new(&w->layout, NULL, state->file, &plan->segments,
                                    &plan->segment_count);
    } else {
        app->memory = mu_calloc(1, w->bytes + 64);
        in_pieces = mu_prng_chance(mu_sim_prng(w->sim), 500000);
        plan->owner = app->memory;
        plan->released = release_memory;
        plan->prepare = in_pieces ? NULL : prepare_memory;
        err = app->memory == NULL ? MUSTER_ENOMEM
              : in_pieces         ? scatter(app, plan)
                          : mu_state_segments_new(&w->layout, NULL, app->memory, &plan->segments,
                                                  &plan->segment_count);
    }
    if (err != 0) {
        mu_free(plan->maybe);
        mu_free(app->memory);
        app->memory = NULL;
        return mu_err(reterr_msg, err, "no memory for it");
    }
    return 0;
}

/* --- a load ----------------------------------------------------------------------------------- */

static bool on_progress(void *context, const struct mu_state_loader_progress *progress)
{
    struct taker_app *app = context;
    struct state_world *w = app->state->world;

    if (progress->total != 0 && progress->bytes > progress->total) {
        mu_sim_fail(w->sim, "more progress than there is to make");
    }
    return w->healed || !mu_prng_chance(mu_sim_prng(w->sim), 2000);
}

static void check_loaded(struct taker_app *app, const struct mu_state_share *share)
{
    struct state_world *w = app->state->world;
    uint8_t chunk[STATE_CHUNK];

    if (share == NULL || memcmp(share->id, w->ids[app->version], MU_STATE_ID_LEN) != 0) {
        mu_sim_fail(w->sim, "a load went well and gave another state");
        return;
    }
    for (uint32_t i = 0; i < w->chunks; i++) {
        mu_state_share_gather(share, i, chunk);
        if (memcmp(chunk, w->content[app->version] + (size_t)i * STATE_CHUNK,
                   mu_state_share_len(share, i)) != 0) {
            mu_sim_fail(w->sim, "a load went well and chunk %u is wrong", i);
        }
    }
}

static void check_end(struct taker_app *app, int status, const char *text)
{
    struct state_world *w = app->state->world;

    if (mu_sim_tracing(w->sim)) {
        struct mu_buf report;

        mu_buf_init(&report, 65536);
        (void)mu_state_loader_report(app->loader, &report);
        mu_sim_note(w->sim, app->state->proc, "load of version %u ended: %d %s\n%.*s", app->version,
                    status, text, (int)report.len, (const char *)mu_buf_span(&report).data);
        mu_buf_fini(&report);
    }
    load_check_time(w->sim, app->state->name, app->state->proc, app->begun_ns, app->limit_ms);
    if (app->final && status != 0) {
        mu_sim_fail(w->sim, "n%u: a load failed though all faults had ended: %s",
                    app->state->number, text);
    }
    if (app->ended) {
        mu_sim_fail(w->sim, "a load ended twice");
    }
}

static void on_ended(void *context, int status, const char *text, struct mu_state_share *share)
{
    struct taker_app *app = context;
    struct state_taker *state = app->state;

    check_end(app, status, text);
    app->ended = true;
    if (status != 0) {
        app->memory = NULL;
        return;
    }
    check_loaded(app, share);
    state->loaded++;
    state->final_done = state->final_done || app->final;
    if (state->uses_file) {
        /* The next load begins with nothing. */
        state->file_version = STATE_VERSIONS;
    }
    if (app->loader->config.keep) {
        app->kept = share;
    } else {
        mu_state_share_drop(share);
    }
    app->memory = NULL;
}

static void on_closed(void *context)
{
    struct taker_app *app = context;

    if (!app->ended) {
        mu_sim_fail(app->state->world->sim, "a loader was closed before its load had ended");
    }
    mu_state_loader_free(app->loader);
    app->loader = NULL;
    rearm(app, mu_prng_below(mu_sim_prng(app->state->world->sim), 500));
}

static void add_giver(struct taker_app *app, const char *kind, uint32_t number)
{
    struct mu_errmsg msg;
    char text[64];

    (void)snprintf(text, sizeof(text), "%s%u:%d", kind, number, STATE_PORT);
    (void)mu_state_loader_add(app->loader, text, &msg);
}

static void add_all(struct taker_app *app)
{
    struct state_world *w = app->state->world;
    struct mu_prng *prng = mu_sim_prng(w->sim);

    app->late = 0;
    for (uint32_t i = 0; i < w->giver_count; i++) {
        if (i != 0 && app->loader->config.expect_more && mu_prng_chance(prng, 500000)) {
            app->late |= 1u << i;
        } else {
            add_giver(app, "d", i);
        }
    }
    for (uint32_t i = 0; i < w->taker_count; i++) {
        if (i != app->state->number && mu_prng_chance(prng, 300000)) {
            add_giver(app, "n", i);
        }
    }
}

static void begin_load(struct taker_app *app)
{
    struct state_taker *state = app->state;
    struct state_world *w = state->world;
    struct mu_prng *prng = mu_sim_prng(w->sim);
    struct mu_state_loader_config config = mu_state_loader_config_defaults();
    struct mu_errmsg msg;

    if (app->kept != NULL) {
        mu_state_donor_withdraw(app->donor, app->kept, 0);
        mu_state_share_drop(app->kept);
        app->kept = NULL;
    }
    (void)snprintf(config.prefix, sizeof(config.prefix), "%s", STATE_PREFIX);
    (void)snprintf(config.own_addr, sizeof(config.own_addr), "n%u:%d", state->number, STATE_PORT);
    config.name = "taker";
    config.timeout_ms = w->healed ? 60000 : 500 + mu_prng_below(prng, 12000);
    config.idle_ms = w->healed ? 40000 : 1000 + (uint32_t)mu_prng_below(prng, 6000);
    config.stall_ms = 300 + (uint32_t)mu_prng_below(prng, 2500);
    config.connect_ms = 1000 + (uint32_t)mu_prng_below(prng, 2000);
    config.settle_ms = mu_prng_chance(prng, 500000) ? 1 : (uint32_t)mu_prng_below(prng, 500);
    config.expect_more = mu_prng_chance(prng, 300000);
    config.keep = mu_prng_chance(prng, 300000);
    config.donor = mu_prng_chance(prng, 800000) ? app->donor : NULL;
    config.keep = config.keep && config.donor != NULL && !state->uses_file;
    config.accept = on_accept;
    config.progress = on_progress;
    config.ended = on_ended;
    config.closed = on_closed;
    config.context = app;
    if (mu_state_loader_start(app->env, &config, &app->loader, &msg) != 0) {
        return;
    }
    state->started++;
    app->ended = false;
    app->final = w->healed;
    app->begun_ns = mu_sim_now_ns(w->sim);
    app->limit_ms = config.timeout_ms;
    app->version = STATE_VERSIONS;
    app->seen_restarts = 0;
    app->seen_done = 0;
    mu_sim_spare_memory(true); /* there is memory at least for the list of donors */
    add_all(app);
    mu_sim_spare_memory(false);
}

/* --- life ------------------------------------------------------------------------------------- */

static void leave(struct taker_app *app)
{
    if (app->loader != NULL) {
        mu_state_loader_cancel(app->loader);
    } else if (!app->stopping) {
        app->stopping = true;
        mu_state_donor_stop(app->donor);
    }
    if (app->donor_gone) {
        mu_env_timer_arm(app->env, &app->timer, MU_MONO_NEVER);
        mu_state_donor_free(app->donor);
        mu_state_share_drop(app->kept);
        app->state->app = NULL;
        mu_sim_exit(app->env);
        mu_free(app);
        return;
    }
    rearm(app, 50);
}

static void on_timer(struct mu_timer *timer)
{
    struct taker_app *app = MU_CONTAINER_OF(timer, struct taker_app, timer);
    struct state_taker *state = app->state;
    struct state_world *w = state->world;

    if (w->leaving) {
        leave(app);
        return;
    }
    if (app->loader == NULL && (w->healed ? !state->final_done : state->started < LOADS_FAULTY)) {
        begin_load(app);
    } else if (app->loader != NULL && app->loader->config.expect_more) {
        for (uint32_t i = 0; i < w->giver_count; i++) {
            if ((app->late >> i & 1) != 0) {
                add_giver(app, "d", i);
            }
        }
        app->late = 0;
        mu_state_loader_expect(app->loader, false);
    }
    rearm(app, 200 + mu_prng_below(mu_sim_prng(w->sim), 800));
}

static void on_stopped(void *context)
{
    struct taker_app *app = context;

    app->donor_gone = true;
    rearm(app, 0);
}

static int start(struct mu_env *env, void *arg)
{
    struct state_taker *state = arg;
    struct mu_state_donor_config config = mu_state_donor_config_defaults();
    struct taker_app *app = mu_sim_calloc(sizeof(*app));
    struct mu_errmsg msg;
    char text[64];
    int err;

    mu_sim_spare_memory(true);
    app->state = state;
    app->env = env;
    app->version = STATE_VERSIONS;
    (void)snprintf(text, sizeof(text), "n%u:%d", state->number, STATE_PORT);
    err = mu_addr_parse(text, 0, &config.listen, &msg);
    config.name = "taker";
    config.drain_ms = 300;
    config.stopped = on_stopped;
    config.context = app;
    if (err == 0) {
        err = mu_state_donor_start(env, &config, &app->donor, &msg);
    }
    if (err == 0) {
        mu_timer_init(&app->timer, on_timer);
        rearm(app, mu_prng_below(mu_sim_prng(state->world->sim), 3000));
        state->app = app;
    }
    mu_sim_spare_memory(false);
    return err;
}

static void on_killed(void *arg)
{
    ((struct state_taker *)arg)->app = NULL;
}

void state_taker_start(struct state_world *w, uint32_t number)
{
    static const char *const names[STATE_TAKERS] = {"n0", "n1", "n2"};
    struct state_taker *state = &w->takers[number];

    state->world = w;
    state->number = number;
    state->name = names[number];
    state->file_version = STATE_VERSIONS;
    state->uses_file = mu_prng_chance(mu_sim_prng(w->sim), 400000);
    state->file = mu_sim_calloc(STATE_BYTES_MAX);
    state->proc =
        mu_sim_proc_new(mu_sim_host_new(w->sim, state->name),
                        &(struct mu_sim_program){
                            .name = "taker", .start = start, .killed = on_killed, .arg = state});
}
