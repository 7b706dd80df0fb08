/*
 * Nodes of a DHT share states and load them without knowing of each other: donors that die, come
 * back, withdraw and go on to newer versions, some on the native wire and some with hivemind's
 * protocol, some that claim a greater priority than they have, have nothing, send wrong bytes or
 * forge signatures. Entries of dead nodes stay in the DHT until they expire.
 *
 * What must hold: every byte that counts as loaded is what the manifest says; a load ends once,
 * before its deadline; once all faults have ended and earlier entries have expired, each load
 * succeeds and brings the newest version that an honest donor has.
 */
#include "scenarios/state/state_swarm_world.h"

#include <string.h>

#include <muster/log.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "scenarios/scenarios.h"
#include "service/state/swarm_load_internal.h"

#define FAULTY_NS   (25 * MU_NS_PER_S)
#define EXPIRE_NS   (45 * MU_NS_PER_S) /* entries of dead nodes expire, and true ones are renewed */
#define CONVERGE_NS (300 * MU_NS_PER_S)

uint32_t swarm_version_of(const struct swarm_world *w, const uint8_t id[MU_STATE_ID_LEN])
{
    uint32_t version = 0;

    while (version < SWARM_VERSIONS && memcmp(w->ids[version], id, MU_STATE_ID_LEN) != 0) {
        version++;
    }
    return version;
}

struct mu_span swarm_metadata(uint8_t *buf, uint32_t version)
{
    memcpy(buf,
           "\x81\xa5"
           "epoch",
           7);
    buf[7] = (uint8_t)version;
    return mu_span(buf, 8);
}

struct mu_state_share *swarm_share(struct swarm_world *w, uint32_t version, uint8_t *data,
                                   const struct mu_identity *identity)
{
    uint8_t metadata[8];
    struct mu_state_share_spec spec = {
        .prefix = MU_SPAN_LIT(SWARM_PREFIX),
        .priority = version,
        .epoch = version,
        .metadata = swarm_metadata(metadata, version),
        .layout = &w->layout,
        .data = data,
        .chunk_bytes = SWARM_CHUNK,
    };
    struct mu_state_share *share;
    struct mu_errmsg msg;

    MU_ASSERT(mu_state_share_new(&spec, &share, &msg) == 0);
    MU_ASSERT(mu_state_share_hash(share, 0, share->chunks) == 0);
    MU_ASSERT(mu_state_share_seal(share, identity, &msg) == 0);
    return share;
}

/* --- what must hold --------------------------------------------------------------------------- */

/* Donors with the greatest true priority are not asked. */
static void plant_old(struct swarm_world *w, struct mu_state_swarm_load *load)
{
    for (size_t i = 0; load->phase == PROBING && i < load->found_count; i++) {
        struct mu_state_found *f = &load->found[i];

        for (uint32_t n = 0; n < w->givers; n++) {
            if (mu_peer_id_eq(&f->connect.peer, &w->nodes[n].identity.id) &&
                w->nodes[n].version != 0) {
                f->kind = UNREACHED;
                w->planted = true;
            }
        }
    }
}

static void check_taker(struct swarm_world *w, struct swarm_app *app)
{
    struct mu_state_loader *l;

    if (app->load == NULL || app->ended) {
        return;
    }
    if (w->plant == SWARM_PLANT_OLD && w->healed) {
        plant_old(w, app->load);
    }
    l = mu_state_swarm_load_native(app->load);
    if (l == NULL || !l->has_fetch || l->share == NULL || app->version == SWARM_VERSIONS) {
        return;
    }
    if (w->plant == SWARM_PLANT_UNVERIFIED && !w->planted) {
        w->planted = load_plant_unverified(w->sim, l);
    }
    if (mu_state_fetch_chunks_done(&l->fetch) != app->seen_done) {
        app->seen_done = mu_state_fetch_chunks_done(&l->fetch);
        load_check_chunks(w->sim, app->state->name, l, (const uint8_t *)w->content[app->version],
                          app->seen, NULL);
    }
}

static void check(struct mu_sim *sim, void *arg)
{
    struct swarm_world *w = arg;

    (void)sim;
    for (uint32_t i = w->givers; i < w->count; i++) {
        if (w->nodes[i].app != NULL) {
            check_taker(w, w->nodes[i].app);
        }
    }
}

/* --- the world -------------------------------------------------------------------------------- */

static void make_world(struct swarm_world *w)
{
    const uint64_t shape[] = {SWARM_FLOATS};
    uint8_t seed[MU_IDENTITY_SEED_LEN];

    for (uint32_t i = 0; i < w->count; i++) {
        memset(seed, (int)i + 1, sizeof(seed));
        w->nodes[i].world = w;
        w->nodes[i].number = i;
        MU_ASSERT(mu_identity_from_seed(&w->nodes[i].identity, seed) == 0);
    }
    mu_layout_init(&w->layout);
    MU_ASSERT(mu_layout_add(&w->layout, MU_SPAN_LIT("w"), MU_DTYPE_F32, shape, 1) == 0);
    for (uint32_t v = 0; v < SWARM_VERSIONS; v++) {
        struct mu_state_share *share;

        w->content[v] = mu_sim_calloc(SWARM_BYTES);
        for (uint32_t i = 0; i < SWARM_FLOATS; i++) {
            w->content[v][i] = (float)(mu_prng_u64(mu_sim_prng(w->sim)) % 1000000);
        }
        share = swarm_share(w, v, (uint8_t *)w->content[v], &w->nodes[0].identity);
        memcpy(w->ids[v], share->id, MU_STATE_ID_LEN);
        mu_state_share_drop(share);
    }
}

static bool all_loaded(void *arg)
{
    const struct swarm_world *w = arg;

    for (uint32_t i = w->givers; i < w->count; i++) {
        if (!w->nodes[i].final_done) {
            return false;
        }
    }
    return true;
}

static bool all_left(void *arg)
{
    const struct swarm_world *w = arg;

    for (uint32_t i = 0; i < w->count; i++) {
        if (mu_sim_proc_alive(w->nodes[i].proc)) {
            return false;
        }
    }
    return true;
}

static void run_world(struct mu_sim *sim, enum swarm_plant plant)
{
    struct swarm_world *w = mu_sim_calloc(sizeof(*w));
    struct mu_prng *prng = mu_sim_prng(sim);
    struct mu_sim_faults f = *mu_sim_faults(sim);

    mu_sim_trace_log(sim);
    mu_sim_wall_set(sim);
    w->sim = sim;
    w->plant = plant;
    w->givers = 1 + (uint32_t)mu_prng_below(prng, SWARM_NODES - SWARM_TAKERS);
    w->count = w->givers + 1 + (uint32_t)mu_prng_below(prng, SWARM_TAKERS);
    make_world(w);
    mu_sim_add_checker(sim, check, w);
    for (uint32_t i = 0; i < w->count; i++) {
        swarm_node_start(w, i);
        mu_sim_run_for(sim, mu_prng_below(prng, 500) * MU_NS_PER_MS);
    }
    mu_sim_run_for(sim, FAULTY_NS);
    mu_sim_heal(sim);
    w->quiet = true;
    mu_sim_run_for(sim, f.pause_max_ns + EXPIRE_NS);
    w->healed = true;
    if (!mu_sim_run_until(sim, CONVERGE_NS, all_loaded, w)) {
        mu_sim_fail(sim, "somebody could not load though all faults had ended");
    }
    w->leaving = true;
    if (!mu_sim_run_until(sim, CONVERGE_NS, all_left, w)) {
        mu_sim_fail(sim, "somebody did not stop");
    }
    for (uint32_t i = 0; i < SWARM_VERSIONS; i++) {
        mu_free(w->content[i]);
    }
    for (uint32_t i = 0; i < w->count; i++) {
        swarm_node_killed(&w->nodes[i]); /* a node that still runs because the run has failed */
        mu_identity_fini(&w->nodes[i].identity);
    }
    mu_layout_fini(&w->layout);
    mu_free(w);
    muster_log_set(NULL, NULL, MUSTER_LOG_WARN);
}

/* All nodes must agree on the lifetime of entries. */
static struct mu_sim_faults draw_faults(struct mu_prng *prng)
{
    struct mu_sim_faults f = mu_sim_faults_draw(prng);

    f.wall_skew_max_ns = 0;
    f.wall_jump_every_ns = 0;
    return f;
}

SIM_SCENARIO(state_swarm, "state-swarm",
             "newcomers find donors in a DHT, the dead and liars among them: the newest, verified",
             draw_faults, false, run_world(sim, SWARM_PLANT_NONE))
SIM_SCENARIO(state_swarm_unverified, "state-swarm-unverified",
             "the same, where a chunk counts as loaded that was never verified", draw_faults, true,
             run_world(sim, SWARM_PLANT_UNVERIFIED))
SIM_SCENARIO(state_swarm_old, "state-swarm-old",
             "the same, where those with newer versions are not asked", draw_faults, true,
             run_world(sim, SWARM_PLANT_OLD))
