/*
 * Peers that give each other states as hivemind does, over a network that cuts, resets and stalls:
 * two donors whose states change all the time, and two clients that load them.
 *
 * What must hold: a loaded state is complete and all of one version, which the donor has shared;
 * every load ends exactly once; when the faults have ended every peer can load; and when all have
 * left every snapshot has been released.
 */
#include "scenarios/scenarios.h"

#include <stdio.h>
#include <string.h>

#include <muster/error.h>
#include <muster/log.h>

#include "checkers/once.h"
#include "codec/bin/msgpack.h"
#include "core/alloc.h"
#include "core/assert.h"
#include "scenarios/peer/peer_talk.h"
#include "service/state/hm_donor.h"
#include "service/state/hm_load.h"
#include "service/peer/kad.h"

#define HOSTS       3
#define DONORS      2 /* the first of them; the second loads as well */
#define PORT        4001
#define PREFIX      "sim_state_averager"
#define NAME        PREFIX "::TrainingStateAverager.rpc_download_state"
#define BYTES       200000
#define FAULTY_NS   (20 * MU_NS_PER_S)
#define CONVERGE_NS (300 * MU_NS_PER_S)
#define TURN_MS     400

static const char *const host_names[HOSTS] = {"h0", "h1", "h2"};

struct hm_world;

struct version {
    struct mu_layout layout;
    struct mu_span value;
    struct mu_buf metadata;
    struct app *app;
    uint8_t bytes[BYTES];
};

struct peer {
    struct hm_world *world;
    uint32_t number;
    struct mu_identity identity;
    struct mu_sim_host *sim_host;
    struct mu_sim_proc *proc;
    struct app *app; /* while it runs */
    uint32_t shared; /* versions so far, the first is 1 */
    uint32_t loaded, loaded_wanted;
};

struct hm_world {
    struct mu_sim *sim;
    struct once *loads;
    struct peer peers[HOSTS];
    bool torn; /* the planted bug: values change while they are read */
    bool healed;
    bool leaving;
};

struct app {
    struct peer *peer;
    struct mu_env *env;
    struct mu_peer_host *host;
    struct mu_peer_calls *calls;
    struct mu_kad *kad;
    struct mu_dht_service *dht;
    struct mu_dht_wish join;
    struct mu_hm_donor *donor;
    struct version *current;
    uint32_t held; /* snapshots that are not released */
    struct mu_hm_load load;
    struct mu_timer timer;
    uint64_t ticket;
    bool joined, loading, donor_stops, dht_stops;
};

/* --- giving ----------------------------------------------------------------------------------- */

static uint8_t byte_of(uint32_t donor, uint32_t version, size_t at)
{
    return (uint8_t)(version * 31 + donor * 101 + at * 7 + (at >> 12));
}

static void fill(struct version *v, uint32_t donor, uint32_t number)
{
    for (size_t i = 0; i < BYTES; i++) {
        v->bytes[i] = byte_of(donor, number, i);
    }
}

static void release_version(void *context)
{
    struct version *v = context;

    v->app->held--;
    if (v->app->current == v) {
        v->app->current = NULL;
    }
    mu_layout_fini(&v->layout);
    mu_buf_fini(&v->metadata);
    mu_free(v);
}

/* The metadata names the donor and the version. */
static void describe(struct version *v, uint32_t donor, uint32_t number)
{
    struct mu_mp_out out = mu_mp_out(&v->metadata);

    mu_mp_put_map(&out, 2);
    mu_mp_put_str(&out, MU_SPAN_LIT("epoch"));
    mu_mp_put_uint(&out, number);
    mu_mp_put_str(&out, MU_SPAN_LIT("donor"));
    mu_mp_put_uint(&out, donor);
    MU_ASSERT(out.err == 0);
}

static void share(struct app *app)
{
    static const uint64_t shape[] = {BYTES};
    struct peer *p = app->peer;
    struct version *v;
    struct mu_hm_snapshot *snapshot;
    struct mu_hm_snapshot_config config = {.release = release_version};
    struct mu_errmsg msg;

    p->shared++;
    if (p->world->torn && app->current != NULL) {
        fill(app->current, p->number, p->shared);
        return;
    }
    v = mu_sim_calloc(sizeof(*v));
    v->app = app;
    mu_layout_init(&v->layout);
    mu_buf_init(&v->metadata, 64);
    MU_ASSERT(mu_layout_add(&v->layout, MU_SPAN_LIT("w"), MU_DTYPE_U8, shape, 1) == 0);
    describe(v, p->number, p->shared);
    fill(v, p->number, p->shared);
    v->value = mu_span(v->bytes, BYTES);
    config.state.layout = &v->layout;
    config.state.values = &v->value;
    config.state.metadata = mu_buf_span(&v->metadata);
    config.context = v;
    app->held++;
    app->current = v;
    MU_ASSERT(mu_hm_snapshot_new(&config, &snapshot, &msg) == 0);
    mu_hm_donor_set(app->donor, snapshot);
    mu_hm_donor_set_priority(app->donor, p->shared);
    mu_hm_snapshot_unref(snapshot);
}

/* --- taking ----------------------------------------------------------------------------------- */

static void check_loaded(struct app *app, const struct mu_hm_loaded *l,
                         const struct mu_peer_id *from)
{
    struct mu_sim *sim = app->peer->world->sim;
    const struct peer *donor = NULL;
    uint64_t version = 0;

    for (uint32_t i = 0; i < DONORS; i++) {
        if (mu_peer_id_eq(from, &app->peer->world->peers[i].identity.id)) {
            donor = &app->peer->world->peers[i];
        }
    }
    if (donor == NULL || donor == app->peer ||
        mu_hm_metadata_epoch(mu_buf_span(&l->metadata), &version) != 0 || version == 0 ||
        version > donor->shared || l->layout.count != 1 || l->layout.bytes != BYTES) {
        mu_sim_fail(sim, "h%u loaded what nobody shares", app->peer->number);
        return;
    }
    for (size_t i = 0; i < BYTES; i++) {
        if (mu_hm_loaded_value(l, 0).data[i] != byte_of(donor->number, (uint32_t)version, i)) {
            mu_sim_fail(sim, "h%u loaded version %u of h%u, and byte %zu is of another",
                        app->peer->number, (unsigned)version, donor->number, i);
            return;
        }
    }
    app->peer->loaded++;
}

static void on_loaded(struct mu_hm_load *load, int status, const char *text)
{
    struct app *app = MU_CONTAINER_OF(load, struct app, load);
    struct mu_hm_loaded loaded;
    struct mu_peer_id from;

    app->loading = false;
    once_end(app->peer->world->loads, app->ticket);
    mu_sim_note(app->peer->world->sim, app->peer->proc, "load: %d %s", status, text);
    if (status == 0) {
        mu_hm_load_take(load, &loaded, &from);
        check_loaded(app, &loaded, &from);
        mu_hm_loaded_fini(&loaded);
    }
    mu_hm_load_fini(load);
}

static void begin_load(struct app *app)
{
    struct mu_hm_load_config config = {
        .calls = app->calls,
        .dht = app->dht,
        .prefix = PREFIX,
        .name = NAME,
        .download = mu_hm_download_config_defaults(),
    };

    config.download.self = app->peer->identity.id;
    config.download.idle_ms = 2000;
    config.download.total_ms = 10000;
    app->load.done = on_loaded;
    app->loading = true;
    app->ticket = once_begin(app->peer->world->loads, app->peer->number);
    if (mu_hm_load_start(app->env, &config, &app->load) != 0) {
        app->loading = false;
        once_end(app->peer->world->loads, app->ticket);
    }
}

/* --- one peer --------------------------------------------------------------------------------- */

static void on_host_stopped(void *context)
{
    struct app *app = context;

    if (app->held != 0) {
        mu_sim_fail(app->peer->world->sim, "h%u left, and %u snapshots were not released",
                    app->peer->number, app->held);
    }
    mu_peer_host_free(app->host);
    app->peer->app = NULL;
    mu_sim_exit(app->env);
    mu_free(app);
}

static void on_dht_stopped(void *context)
{
    struct app *app = context;

    mu_env_timer_arm(app->env, &app->timer, MU_MONO_NEVER);
    mu_dht_service_free(app->dht);
    mu_peer_calls_free(app->calls);
    mu_kad_stop(app->kad);
    mu_peer_host_stop(app->host);
}

static void on_donor_stopped(void *context)
{
    ((struct app *)context)->donor = NULL;
}

static void leave(struct app *app)
{
    if (app->loading) {
        mu_hm_load_cancel(&app->load);
    }
    if (app->donor != NULL && !app->donor_stops) {
        app->donor_stops = true;
        mu_hm_donor_stop(app->donor);
    }
    if (!app->loading && app->donor == NULL && !app->dht_stops) {
        app->dht_stops = true;
        mu_dht_service_stop(app->dht);
    }
}

static void on_joined(struct mu_dht_wish *wish, const struct mu_dht_op *op)
{
    (void)op; /* a node that has found no other tries again by itself */
    MU_CONTAINER_OF(wish, struct app, join)->joined = true;
}

static void on_timer(struct mu_timer *timer)
{
    struct app *app = MU_CONTAINER_OF(timer, struct app, timer);
    struct hm_world *w = app->peer->world;
    struct mu_prng *prng = mu_sim_prng(w->sim);

    mu_sim_spare_memory(true);
    if (w->leaving) {
        leave(app);
    } else if (app->joined) {
        if (app->donor != NULL && mu_prng_chance(prng, 500000)) {
            share(app);
        }
        if (app->peer->number != 0 && !app->loading) {
            begin_load(app);
        } else if (app->loading && !w->healed && mu_prng_chance(prng, 50000)) {
            mu_hm_load_cancel(&app->load);
        }
    }
    if (!app->dht_stops) {
        mu_env_timer_arm(
            app->env, timer,
            mu_mono_add_ms(mu_env_now(app->env).mono, 1 + mu_prng_below(prng, 2 * TURN_MS)));
    }
    mu_sim_spare_memory(false);
}

static int start_services(struct app *app)
{
    struct mu_dht_service_config dht = {
        .dht = mu_dht_config_defaults(), .stopped = on_dht_stopped, .context = app};
    struct mu_kad_config kad = mu_kad_config_defaults();
    struct mu_hm_donor_config donor = mu_hm_donor_config_defaults();
    struct mu_peer_id first = app->peer->world->peers[0].identity.id;
    struct mu_errmsg msg;
    int err = mu_peer_calls_new(app->host, NULL, &app->calls);

    err = err != 0 ? err : mu_kad_start(app->host, &kad, &app->kad);
    if (err != 0) {
        return err;
    }
    dht.unary = mu_peer_calls_unary(app->calls);
    dht.dht.self.peer = app->peer->identity.id;
    err = mu_dht_service_start(app->env, &dht, &app->dht, &msg);
    app->join.done = on_joined;
    err = err != 0
              ? err
              : mu_dht_service_join(app->dht, &app->join, &first, app->peer->number == 0 ? 0 : 1);
    if (err != 0 || app->peer->number >= DONORS) {
        return err;
    }
    donor.calls = app->calls;
    donor.dht = app->dht;
    donor.self = app->peer->identity.id;
    donor.prefix = PREFIX;
    donor.name = NAME;
    donor.idle_ms = 5000;
    donor.stopped = on_donor_stopped;
    donor.context = app;
    return mu_hm_donor_start(app->env, &donor, &app->donor, &msg);
}

static int introduce(struct app *app)
{
    int err = 0;

    for (uint32_t i = 0; i < HOSTS && err == 0; i++) {
        struct mu_errmsg msg;
        struct mu_buf addr;
        char text[64];

        mu_buf_init(&addr, 256);
        (void)snprintf(text, sizeof(text), "/dns4/%s/tcp/%d", host_names[i], PORT);
        err = mu_multiaddr_parse(&addr, text, &msg);
        if (err == 0 && i != app->peer->number) {
            err = mu_peer_host_add_addr(app->host, &app->peer->world->peers[i].identity.id,
                                        mu_buf_span(&addr));
        }
        mu_buf_fini(&addr);
    }
    return err;
}

static int start_peer(struct mu_env *env, void *arg)
{
    struct peer *p = arg;
    struct app *app = mu_sim_calloc(sizeof(*app));
    struct mu_peer_host_config config = mu_peer_host_config_defaults();
    struct mu_errmsg msg;
    char text[64];
    int err;

    mu_sim_spare_memory(true);
    app->peer = p;
    app->env = env;
    config.identity = &p->identity;
    config.stopped = on_host_stopped;
    config.context = app;
    (void)snprintf(text, sizeof(text), "/dns/%s/tcp/%d", host_names[p->number], PORT);
    err = mu_peer_host_start(env, &config, &app->host, &msg);
    err = err != 0 ? err : mu_peer_host_listen(app->host, text, &msg);
    err = err != 0 ? err : introduce(app);
    err = err != 0 ? err : start_services(app);
    mu_timer_init(&app->timer, on_timer);
    mu_env_timer_arm(env, &app->timer, mu_env_now(env).mono);
    p->app = app;
    mu_sim_spare_memory(false);
    return err;
}

/* --- the world -------------------------------------------------------------------------------- */

static bool all_loaded(void *arg)
{
    struct hm_world *w = arg;

    for (uint32_t i = 1; i < HOSTS; i++) {
        if (w->peers[i].loaded < w->peers[i].loaded_wanted) {
            return false;
        }
    }
    return true;
}

static bool all_left(void *arg)
{
    struct hm_world *w = arg;

    for (uint32_t i = 0; i < HOSTS; i++) {
        if (mu_sim_proc_alive(w->peers[i].proc)) {
            return false;
        }
    }
    return true;
}

static void make_peers(struct hm_world *w)
{
    uint8_t seed[MU_IDENTITY_SEED_LEN];

    for (uint32_t i = 0; i < HOSTS; i++) {
        struct peer *p = &w->peers[i];

        memset(seed, (int)i + 1, sizeof(seed));
        MU_ASSERT(mu_identity_from_seed(&p->identity, seed) == 0);
        p->world = w;
        p->number = i;
        p->sim_host = mu_sim_host_new(w->sim, host_names[i]);
    }
    for (uint32_t i = 0; i < HOSTS; i++) {
        /* The simulator cannot free libcrypto's memory, so no peer is killed. */
        w->peers[i].proc = mu_sim_proc_new(w->peers[i].sim_host,
                                           &(struct mu_sim_program){.name = "peer",
                                                                    .start = start_peer,
                                                                    .arg = &w->peers[i],
                                                                    .flags = MU_SIM_KEEP_ALIVE});
    }
}

static void release_crypto(struct hm_world *w)
{
    for (uint32_t i = 0; i < HOSTS; i++) {
        if (w->peers[i].app != NULL && w->peers[i].app->host != NULL) {
            peer_host_release_crypto(w->peers[i].app->host);
        }
        mu_identity_fini(&w->peers[i].identity);
    }
}

static void run_world(struct mu_sim *sim, bool torn)
{
    struct hm_world *w = mu_sim_calloc(sizeof(*w));

    mu_sim_trace_log(sim);
    w->sim = sim;
    w->torn = torn;
    w->loads = once_new(sim, "load");
    make_peers(w);
    mu_sim_run_for(sim, FAULTY_NS);
    mu_sim_heal(sim);
    w->healed = true;
    for (uint32_t i = 1; i < HOSTS; i++) {
        w->peers[i].loaded_wanted = w->peers[i].loaded + 1;
    }
    if (!mu_sim_run_until(sim, CONVERGE_NS, all_loaded, w)) {
        mu_sim_fail(sim, "nobody gave a state though all faults had ended");
    }
    w->leaving = true;
    if (!mu_sim_run_until(sim, CONVERGE_NS, all_left, w)) {
        mu_sim_fail(sim, "a peer did not stop");
    }
    once_finish(w->loads);
    once_free(w->loads);
    release_crypto(w);
    mu_free(w);
    muster_log_set(NULL, NULL, MUSTER_LOG_WARN);
}

static struct mu_sim_faults draw_faults(struct mu_prng *prng)
{
    struct mu_sim_faults f = mu_sim_faults_draw(prng);

    f.kill_every_ns = 0;
    /* Entries expire by the wall clock; the DHT's own scenario changes that clock. */
    f.wall_skew_max_ns = 0;
    f.wall_jump_every_ns = 0;
    mu_sim_faults_draw_memory(&f, prng);
    return f;
}

SIM_SCENARIO(hm_state, "hm-state",
             "donors and clients of hivemind's states: whole, of one version, each load ends once",
             draw_faults, false, run_world(sim, false))
SIM_SCENARIO(hm_state_torn, "hm-state-torn",
             "the same, with a donor that changes a snapshot that is being read", draw_faults, true,
             run_world(sim, true))
