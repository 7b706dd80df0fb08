/* A node of the scenario `state-swarm` that loads what others share, again and again. */
#include "scenarios/state/state_swarm_world.h"

#include <stdio.h>
#include <string.h>

#include "core/alloc.h"

#define LOADS_FAULTY 6 /* before all is healed */

/* --- what it gets ----------------------------------------------------------------------------- */

static int resolve(void *context, const char *text, struct mu_addr *ret,
                   struct mu_errmsg *reterr_msg)
{
    (void)context;
    if (strncmp(text, "/p2p/", 5) != 0) {
        return mu_err(reterr_msg, MUSTER_EURL, "not a peer");
    }
    *ret = (struct mu_addr){.kind = MU_ADDR_PEER};
    (void)snprintf(ret->host, sizeof(ret->host), "%s", text + 5);
    return 0;
}

static void release(struct mu_state_share *share)
{
    mu_free(share->owner);
}

static int on_accept(void *context, struct mu_state_plan *plan, struct mu_errmsg *reterr_msg)
{
    struct swarm_app *app = context;
    struct swarm_world *w = app->state->world;
    uint8_t *data = mu_calloc(1, SWARM_BYTES);

    app->version = swarm_version_of(w, plan->entry->id);
    if (app->version == SWARM_VERSIONS || plan->offer->manifest.epoch != app->version) {
        mu_sim_fail(w->sim, "s%u believes in a state that nobody has", app->state->number);
    }
    app->seen_done = 0;
    memset(app->seen, 0, sizeof(app->seen));
    if (data == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "no memory for it");
    }
    plan->owner = data;
    plan->released = release;
    return mu_state_segments_new(&w->layout, NULL, data, &plan->segments, &plan->segment_count);
}

static bool on_progress(void *context, const struct mu_state_loader_progress *progress)
{
    struct swarm_app *app = context;
    struct swarm_world *w = app->state->world;

    if (progress->total != 0 && progress->bytes > progress->total) {
        mu_sim_fail(w->sim, "more progress than there is to make");
    }
    return !w->leaving && (w->healed || !mu_prng_chance(mu_sim_prng(w->sim), 2000));
}

/* Returns the version that must be found when all is quiet. hivemind's donors count only if no
 * donor on the native wire boasts or is corrupt, because then they may be asked after all
 * others. */
static uint32_t newest(const struct swarm_world *w)
{
    uint32_t version = 0;
    bool boasted = false;

    for (uint32_t i = 0; i < w->givers; i++) {
        enum swarm_kind kind = w->nodes[i].kind;

        boasted = boasted || kind == SWARM_BOASTER || kind == SWARM_EMPTY || kind == SWARM_FORGER ||
                  kind == SWARM_CORRUPT;
    }
    for (uint32_t i = 0; i < w->givers; i++) {
        const struct swarm_node *n = &w->nodes[i];

        if (n->kind == SWARM_SEED || n->kind == SWARM_HONEST ||
            (n->kind == SWARM_HIVEMIND && !boasted)) {
            version = n->version > version ? n->version : version;
        }
    }
    return version;
}

static void check_bytes(struct swarm_app *app, uint32_t version, const void *values)
{
    struct swarm_world *w = app->state->world;

    if (version >= SWARM_VERSIONS || memcmp(values, w->content[version], SWARM_BYTES) != 0) {
        mu_sim_fail(w->sim, "s%u: a load went well and gave something else", app->state->number);
        return;
    }
    if (app->final && version < newest(w)) {
        mu_sim_fail(w->sim, "s%u loaded version %u, and there is version %u", app->state->number,
                    version, newest(w));
    }
}

static void note(struct swarm_app *app, int status, const char *text)
{
    struct swarm_world *w = app->state->world;
    struct mu_buf report;

    if (mu_sim_tracing(w->sim)) {
        mu_buf_init(&report, 65536);
        (void)mu_state_swarm_load_report(app->load, &report);
        mu_sim_note(w->sim, app->state->proc, "load ended: %d %s\n%.*s", status, text,
                    (int)report.len, (const char *)mu_buf_span(&report).data);
        mu_buf_fini(&report);
    }
}

static void on_ended(void *context, int status, const char *text, struct mu_state_share *share)
{
    struct swarm_app *app = context;
    struct swarm_world *w = app->state->world;

    note(app, status, text);
    load_check_time(w->sim, app->state->name, app->state->proc, app->begun_ns, app->limit_ms);
    if (app->ended) {
        mu_sim_fail(w->sim, "a load ended twice");
    }
    app->ended = true;
    if (status != 0) {
        if (app->final && !w->leaving) {
            mu_sim_fail(w->sim, "s%u: a load failed though all faults had ended: %s",
                        app->state->number, text);
        }
        return;
    }
    if (share != NULL) {
        check_bytes(app, swarm_version_of(w, share->id), mu_state_share_tensor(share, 0).data);
        mu_state_share_drop(share);
    } else {
        struct mu_hm_loaded loaded;
        struct mu_span metadata;
        double priority;

        /* The donor may have gone on to a newer version since its entry in the DHT. */
        mu_state_swarm_load_take(app->load, &loaded, &priority);
        metadata = mu_buf_span(&loaded.metadata);
        check_bytes(app, metadata.len == 8 ? metadata.data[7] : SWARM_VERSIONS, loaded.values[0]);
        mu_hm_loaded_fini(&loaded);
    }
    app->state->final_done = app->state->final_done || app->final;
}

static void on_closed(void *context)
{
    struct swarm_app *app = context;

    if (!app->ended) {
        mu_sim_fail(app->state->world->sim, "a load was closed before it had ended");
    }
    app->closed = true;
}

/* --- a load ----------------------------------------------------------------------------------- */

static void begin(struct swarm_app *app)
{
    struct swarm_world *w = app->state->world;
    struct mu_prng *prng = mu_sim_prng(w->sim);
    struct mu_state_swarm_load_config config = {
        .swarm = app->swarm,
        .env = mu_peer_env_env(app->peers),
        .native = mu_state_loader_config_defaults(),
        .ended = on_ended,
        .closed = on_closed,
    };
    struct mu_errmsg msg;

    (void)snprintf(config.native.prefix, sizeof(config.native.prefix), SWARM_PREFIX);
    config.native.name = "taker";
    config.native.resolve = resolve;
    config.native.accept = on_accept;
    config.native.progress = on_progress;
    config.native.context = app;
    config.native.timeout_ms = w->healed ? 60000 : 1000 + mu_prng_below(prng, 15000);
    config.native.idle_ms = w->healed ? 40000 : 1000 + (uint32_t)mu_prng_below(prng, 8000);
    config.native.stall_ms = 300 + (uint32_t)mu_prng_below(prng, 2500);
    config.native.connect_ms = 1000 + (uint32_t)mu_prng_below(prng, 2000);
    config.native.settle_ms = 1 + (uint32_t)mu_prng_below(prng, 500);
    if (w->healed) {
        /* Long enough to hear from all present donors. */
        config.native.settle_ms = 3000;
        config.native.connect_ms = 5000;
    }
    app->ended = app->closed = false;
    app->final = w->healed;
    app->begun_ns = mu_sim_now_ns(w->sim);
    app->limit_ms = config.native.timeout_ms;
    app->version = SWARM_VERSIONS;
    if (mu_state_swarm_load_start(&config, &app->load, &msg) == 0) {
        app->state->started++;
    }
}

void swarm_load_turn(struct swarm_app *app)
{
    struct swarm_world *w = app->state->world;

    if (app->load != NULL && app->closed) {
        mu_state_swarm_load_free(app->load);
        app->load = NULL;
    } else if (app->load != NULL && w->leaving) {
        mu_state_swarm_load_cancel(app->load);
    }
    if (app->load == NULL && !w->leaving && !app->stopping &&
        (w->healed ? !app->state->final_done : app->state->started < LOADS_FAULTY)) {
        begin(app);
    }
}
