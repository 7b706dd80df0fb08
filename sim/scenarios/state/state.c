/*
 * Newcomers load a state from donors that are killed, stopped, slow, crowded or partial, that go on
 * to newer versions, or that are malicious: corrupt chunks, a version that they do not have,
 * something else under a state's id, an offer that was tampered with. The newcomers serve each
 * other meanwhile.
 *
 * What must hold: every byte that counts as loaded is what the manifest says; nothing lands where
 * something else lands, is hashed or is verified; what is verified stays verified, unless its
 * version is gone; a donor that is lost costs at most the chunk that was half received; a load ends
 * once, before its deadline, and succeeds once all faults have ended.
 */
#include "scenarios/state/state_world.h"

#include <string.h>

#include <muster/log.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "crypto/state_tree.h"
#include "proto/state/fetch_internal.h"
#include "scenarios/scenarios.h"

#define FAULTY_NS   (15 * MU_NS_PER_S)
#define CONVERGE_NS (300 * MU_NS_PER_S)

uint32_t state_version_of(const struct state_world *w, const uint8_t id[MU_STATE_ID_LEN])
{
    uint32_t version = 0;

    while (version < STATE_VERSIONS && memcmp(w->ids[version], id, MU_STATE_ID_LEN) != 0) {
        version++;
    }
    return version;
}

/* --- what must hold --------------------------------------------------------------------------- */

/* Each place has at most one landing, and no landing while its chunk is verified or being
 * hashed. */
static void check_landings(struct state_world *w, const struct mu_state_loader *l)
{
    uint8_t used[STATE_BYTES_MAX / STATE_CHUNK / 8 + 1] = {0};
    uint32_t spares = 0;

    MU_LIST_FOREACH (it, &l->fetch.hashing) {
        const struct mu_state_ask *ask = MU_CONTAINER_OF(it, struct mu_state_ask, link);

        if (ask->spare == MU_STATE_NO_SPARE) {
            mu_state_bit_set(used, ask->chunk);
        } else {
            spares |= 1u << ask->spare;
        }
    }
    MU_LIST_FOREACH (it, &l->links) {
        const struct mu_state_link *k = MU_CONTAINER_OF(it, struct mu_state_link, link);

        if (!k->aimed) {
            continue;
        }
        if (k->aim.spare != MU_STATE_NO_SPARE) {
            if ((spares >> k->aim.spare & 1) != 0) {
                mu_sim_fail(w->sim, "two land in side buffer %u", k->aim.spare);
            }
            spares |= 1u << k->aim.spare;
        } else if (mu_state_bit(used, k->aim.chunk) || mu_state_bit(l->fetch.have, k->aim.chunk)) {
            mu_sim_fail(w->sim, "chunk %u is landed where it must not be", k->aim.chunk);
        } else {
            mu_state_bit_set(used, k->aim.chunk);
        }
    }
}

static void check_accounts(struct state_world *w, const struct mu_state_fetch *f)
{
    uint64_t wasted = 0;

    for (uint32_t i = 0; i < mu_state_fetch_donor_count(f); i++) {
        struct mu_state_donor_account a;

        mu_state_fetch_account(f, i, &a);
        if (a.half > a.losses + (a.state == MU_STATE_DONOR_BANNED ? 1 : 0) ||
            a.half_bytes > (uint64_t)a.half * STATE_CHUNK) {
            mu_sim_fail(w->sim, "%s was lost %u times, and that cost %u chunks", a.name, a.losses,
                        a.half);
        }
        wasted += a.half_bytes + (uint64_t)(a.duplicates + a.bad) * STATE_CHUNK;
    }
    if (mu_state_fetch_bytes_wasted(f) > wasted) {
        mu_sim_fail(w->sim, "more was wasted than the donors account for");
    }
}

static void check_taker(struct state_world *w, struct taker_app *app)
{
    struct mu_state_loader *l = app->loader;

    if (l == NULL || !l->has_fetch || l->share == NULL || app->ended) {
        return;
    }
    if (l->restarts != app->seen_restarts) {
        app->seen_restarts = l->restarts;
        app->seen_done = 0;
    }
    if (w->plant == STATE_PLANT_UNVERIFIED && !w->planted) {
        w->planted = load_plant_unverified(w->sim, l);
    }
    if (app->resume_least != 0 && !w->short_of_memory &&
        mu_state_fetch_chunks_done(&l->fetch) < app->resume_least) {
        mu_sim_fail(w->sim, "%u chunks of %u were found again", l->fetch.done, app->resume_least);
    }
    app->resume_least = 0;
    check_landings(w, l);
    if (mu_state_fetch_chunks_done(&l->fetch) != app->seen_done) {
        if (mu_state_fetch_chunks_done(&l->fetch) < app->seen_done) {
            mu_sim_fail(w->sim, "n%u has lost progress", app->state->number);
        }
        app->seen_done = mu_state_fetch_chunks_done(&l->fetch);
        load_check_chunks(w->sim, app->state->name, l, w->content[app->version], app->seen,
                          app->state->uses_file ? app->state->bits : NULL);
        check_accounts(w, &l->fetch);
    }
}

static void check(struct mu_sim *sim, void *arg)
{
    struct state_world *w = arg;

    (void)sim;
    for (uint32_t i = 0; i < w->taker_count; i++) {
        if (w->takers[i].app != NULL) {
            check_taker(w, w->takers[i].app);
        }
    }
}

/* --- the world -------------------------------------------------------------------------------- */

static void make_layout(struct state_world *w)
{
    static const char *const names[STATE_TENSORS] = {"embed", "bias", "empty", "head"};
    struct mu_prng *prng = mu_sim_prng(w->sim);

    mu_layout_init(&w->layout);
    for (size_t i = 0; i < STATE_TENSORS; i++) {
        uint64_t n = i == 2 ? 0 : 1 + mu_prng_below(prng, i == 1 ? 3000 : 90000);

        MU_ASSERT(mu_layout_add(&w->layout, mu_span_str(names[i]), MU_DTYPE_U8, &n, 1) == 0);
    }
    w->bytes = (uint32_t)w->layout.bytes;
    w->chunks = (uint32_t)mu_state_chunks(w->bytes, STATE_CHUNK);
}

/* Makes the content of each version, and its id, which does not depend on the signer. */
static void make_versions(struct state_world *w)
{
    uint8_t seed[MU_IDENTITY_SEED_LEN];

    for (uint32_t i = 0; i < STATE_GIVERS; i++) {
        memset(seed, (int)i + 1, sizeof(seed));
        MU_ASSERT(mu_identity_from_seed(&w->identities[i], seed) == 0);
    }
    for (uint32_t v = 0; v < STATE_VERSIONS; v++) {
        struct mu_state_share *share;
        struct mu_errmsg msg;
        struct mu_state_share_spec spec = {
            .prefix = MU_SPAN_LIT(STATE_PREFIX),
            .epoch = v,
            .step = 7,
            .metadata = MU_SPAN_LIT("\x80"),
            .layout = &w->layout,
            .chunk_bytes = STATE_CHUNK,
        };

        w->content[v] = mu_sim_calloc(w->bytes + 8);
        for (uint32_t i = 0; i < w->bytes; i += 8) {
            uint64_t word = mu_prng_u64(mu_sim_prng(w->sim));

            memcpy(w->content[v] + i, &word, sizeof(word));
        }
        spec.data = w->content[v];
        MU_ASSERT(mu_state_share_new(&spec, &share, &msg) == 0);
        MU_ASSERT(mu_state_share_hash(share, 0, w->chunks) == 0);
        MU_ASSERT(mu_state_share_seal(share, &w->identities[0], &msg) == 0);
        memcpy(w->ids[v], share->id, MU_STATE_ID_LEN);
        mu_state_share_drop(share);
    }
}

static bool all_loaded(void *arg)
{
    struct state_world *w = arg;

    for (uint32_t i = 0; i < w->taker_count; i++) {
        if (!w->takers[i].final_done) {
            return false;
        }
    }
    return true;
}

static bool all_left(void *arg)
{
    struct state_world *w = arg;

    for (uint32_t i = 0; i < w->giver_count; i++) {
        if (mu_sim_proc_alive(w->givers[i].proc)) {
            return false;
        }
    }
    for (uint32_t i = 0; i < w->taker_count; i++) {
        if (mu_sim_proc_alive(w->takers[i].proc)) {
            return false;
        }
    }
    return true;
}

static void run_world(struct mu_sim *sim, enum state_plant what)
{
    struct state_world *w = mu_sim_calloc(sizeof(*w));
    struct mu_prng *prng = mu_sim_prng(sim);
    struct mu_sim_faults f = *mu_sim_faults(sim);

    mu_sim_trace_log(sim);
    w->sim = sim;
    w->plant = what;
    w->short_of_memory = f.alloc_fail_ppm != 0 || f.shortage_every_ns != 0;
    w->giver_count = 1 + (uint32_t)mu_prng_below(prng, STATE_GIVERS);
    w->taker_count = 1 + (uint32_t)mu_prng_below(prng, STATE_TAKERS);
    make_layout(w);
    make_versions(w);
    mu_sim_add_checker(sim, check, w);
    for (uint32_t i = 0; i < w->giver_count; i++) {
        state_giver_start(w, i);
    }
    for (uint32_t i = 0; i < w->taker_count; i++) {
        state_taker_start(w, i);
    }
    mu_sim_run_for(sim, FAULTY_NS);
    mu_sim_heal(sim);
    mu_sim_run_for(sim, f.pause_max_ns + MU_NS_PER_S); /* until pauses are over */
    w->healed = true;
    if (mu_prng_chance(prng, 500000)) {
        /* The reliable donor is not the first to answer. */
        mu_sim_pause(w->givers[0].proc, 1 + mu_prng_below(prng, 900 * MU_NS_PER_MS));
    }
    if (!mu_sim_run_until(sim, CONVERGE_NS, all_loaded, w)) {
        mu_sim_fail(sim, "somebody could not load though all faults had ended");
    }
    w->leaving = true;
    if (!mu_sim_run_until(sim, CONVERGE_NS, all_left, w)) {
        mu_sim_fail(sim, "somebody did not stop");
    }
    for (uint32_t i = 0; i < STATE_VERSIONS; i++) {
        mu_free(w->content[i]);
    }
    for (uint32_t i = 0; i < STATE_GIVERS; i++) {
        mu_identity_fini(&w->identities[i]);
    }
    for (uint32_t i = 0; i < w->taker_count; i++) {
        mu_free(w->takers[i].file);
    }
    mu_layout_fini(&w->layout);
    mu_free(w);
    muster_log_set(NULL, NULL, MUSTER_LOG_WARN);
}

SIM_SCENARIO(state, "state",
             "newcomers load from donors that fail and lie: no byte unverified, all in time",
             mu_sim_faults_draw_all, false, run_world(sim, STATE_PLANT_NONE))
SIM_SCENARIO(state_unverified, "state-unverified",
             "the same, where a chunk counts as loaded that was never verified",
             mu_sim_faults_draw_all, true, run_world(sim, STATE_PLANT_UNVERIFIED))
