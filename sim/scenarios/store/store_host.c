#include "scenarios/store/store_world.h"

#include <inttypes.h>
#include <string.h>

#include <muster/log.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "fake_etcd.h"
#include "service/server/gateway_hold.h"
#include "service/server/server_internal.h"

void store_world_tell(struct store_world *w, enum store_news news)
{
    for (size_t i = 0; i < STORE_JOBS_MAX && w->setup->jobs[i] != NULL; i++) {
        const struct store_job *job = w->setup->jobs[i];
        void (*told)(struct store_world * w, void *state) = news == STORE_SERVER_UP ? job->server_up
                                                            : news == STORE_SERVER_DOWN
                                                                ? job->server_down
                                                                : job->calm;

        if (told != NULL) {
            told(w, w->states[i]);
        }
    }
}

static void restart_server(struct mu_sim *sim, void *arg)
{
    struct store_host *h = arg;

    (void)sim;
    mu_sim_restart(h->proc);
}

static void oracle_changed(struct mu_ks_owner *owner, struct mu_ks_watch *watch,
                           const struct mu_change *change)
{
    struct store_world *w = MU_CONTAINER_OF(owner, struct store_serving, owner)->world;

    (void)watch;
    for (size_t i = 0; i < STORE_JOBS_MAX && w->setup->jobs[i] != NULL; i++) {
        if (w->setup->jobs[i]->noted != NULL) {
            w->setup->jobs[i]->noted(w, w->states[i], change);
        }
    }
}

bool store_host_is_gateway(const struct store_host *h)
{
    return h->world->setup->gateways && h->number != 0;
}

uint32_t store_member_host(const struct store_member *m)
{
    static const uint32_t with_gateways[STORE_CLIENTS] = {1, 2, 0, 1, 2};
    static const uint32_t deep[STORE_CLIENTS] = {2, 3, 0, 1, 2};
    static const uint32_t tree[STORE_CLIENTS] = {3, 1, 0, 3, 3};

    return m->world->setup->deep       ? deep[m->number]
           : m->world->setup->tree     ? tree[m->number]
           : m->world->setup->gateways ? with_gateways[m->number]
                                       : m->number % m->world->host_count;
}

/* A server that ends by itself is started again, as a supervisor would do. */
static void server_stopped(void *context, int status, const char *why)
{
    struct store_serving *s = context;
    struct store_world *w = s->world;
    struct store_host *h = s->host;
    struct mu_env *env = s->env;

    mu_sim_note(w->sim, h->proc, "server stopped: %d %s", status, why == NULL ? "" : why);
    if (!w->leaving && status != MUSTER_EDISK && !(status == MUSTER_ENOMEM && w->memory)) {
        mu_sim_fail(w->sim, "the server gave up: %s", why == NULL ? "" : why);
    }
    if (!w->leaving) {
        (void)mu_sim_at(w->sim, mu_sim_now_ns(w->sim) + MU_NS_PER_S, restart_server, h);
    }
    if (!store_host_is_gateway(h)) {
        store_world_tell(w, STORE_SERVER_DOWN);
    }
    h->serving = NULL;
    mu_ks_unwatch(&s->server->ks, &s->watch);
    mu_store_server_free(s->server);
    mu_free(s);
    mu_sim_exit(env);
}

/* With a gateway to a gateway, the bug is in what gateways lend; only what becomes of that without
 * the lender is the server's. */
static enum mu_holds_plant plant_of_holds(const struct store_world *w, bool gateway)
{
    enum mu_holds_plant plant =
        (enum mu_holds_plant)((uint32_t)w->setup->plant - STORE_PLANT_HOLDS + 1);
    bool lends = w->setup->deep && plant != MU_HOLDS_PLANT_SHORT_LOAN;

    return w->setup->plant >= STORE_PLANT_HOLDS && w->setup->plant < STORE_PLANT_CACHE &&
                   gateway == lends
               ? plant
               : MU_HOLDS_PLANT_NOTHING;
}

static int open_gateway(struct store_serving *s, struct mu_errmsg *reterr_msg)
{
    struct mu_store_server_config config = mu_store_server_config_defaults();
    uint32_t plant = (uint32_t)s->world->setup->plant;
    int rc;

    config.listen = (struct mu_addr){.kind = MU_ADDR_TCP, .port = STORE_PORT, .host = "0.0.0.0"};
    config.rpc.grace_ms = s->world->grace_ms;
    config.backlog_bytes_max = 100000;
    config.stopped = server_stopped;
    config.context = s;
    /* Where held keys are not what it is about, one of two gateways holds none. */
    config.hold.lease_ms = s->world->lease_ms;
    config.hold.plant = plant_of_holds(s->world, true);
    config.backing = s->world->setup->tree && s->host->number == 3
                         ? "tcp://server:29500?connect=5000&via=server1:29500,server2:29500"
                     : s->world->setup->deep && s->host->number >= 2
                         ? "tcp://server1:29500?connect=5000"
                     : s->world->setup->reading || s->host->number % 2 == 0
                         ? "tcp://server:29500?connect=5000"
                         : "tcp://server:29500?connect=5000&hold=no";
    rc = mu_store_server_start(s->env, &config, &s->server, reterr_msg);
    if (rc == 0) {
        struct mu_gateway_hold *hold = mu_gateway_hold(s->server->backing);

        if (plant >= STORE_PLANT_CACHE && plant < STORE_PLANT_HELD_END) {
            hold->cache.config.plant = (enum mu_cache_plant)(plant - STORE_PLANT_CACHE + 1);
        }
    }
    return rc;
}

static int open_server(struct store_serving *s, struct mu_errmsg *reterr_msg)
{
    struct store_world *w = s->world;
    struct mu_store_server_config config = mu_store_server_config_defaults();
    int rc = 0;

    config.listen = (struct mu_addr){.kind = MU_ADDR_TCP, .port = STORE_PORT, .host = "0.0.0.0"};
    config.sync = w->disk == STORE_DISK_INTERVAL ? MU_SYNC_INTERVAL : MU_SYNC_ALWAYS;
    config.sync_interval_ms =
        w->sync_interval_ms * (w->setup->plant == STORE_PLANT_SLOW_SYNC ? 5 : 1);
    config.journal_bytes_high = w->journal_bytes_high;
    config.hold.lease_ms = w->lease_ms;
    config.hold.plant = plant_of_holds(w, false);
    config.rpc.grace_ms = w->grace_ms;
    config.backlog_bytes_max = 100000;
    config.stopped = server_stopped;
    config.context = s;
    config.backing = w->setup->cached   ? "etcd://e0,e1,e2/p?reads=cached"
                     : w->setup->backed ? "etcd://e0,e1,e2/p"
                                        : NULL;
    if (w->disk != STORE_DISK_NONE) {
        rc = mu_sim_disk_open(s->env, "data", &config.disk, reterr_msg);
    }
    if (rc == 0) {
        rc = mu_store_server_start(s->env, &config, &s->server, reterr_msg);
        if (rc != 0 && config.disk != NULL) {
            config.disk->ops->close(config.disk);
        }
    }
    if (rc == 0 && w->setup->plant == STORE_PLANT_HASTY_READS) {
        const struct mu_backing *machine =
            mu_gateway_etcd_machine(mu_gateway_etcd(s->server->backing));

        ((struct mu_backing *)(uintptr_t)machine)->config.hasty = true;
    }
    return rc;
}

int store_host_start(struct mu_env *env, void *arg)
{
    struct store_host *h = arg;
    struct store_world *w = h->world;
    struct store_serving *s = mu_sim_calloc(sizeof(*s));
    struct mu_errmsg msg = {0};
    int rc;

    s->world = w;
    s->host = h;
    s->env = env;
    rc = store_host_is_gateway(h) ? open_gateway(s, &msg) : open_server(s, &msg);
    if (rc != 0) {
        mu_free(s);
        if ((rc == MUSTER_ENOMEM || rc == MUSTER_EADDR) && w->memory) {
            (void)mu_sim_at(w->sim, mu_sim_now_ns(w->sim) + 100 * MU_NS_PER_MS, restart_server, h);
            mu_sim_exit(env);
        } else {
            mu_sim_fail(w->sim, "the server did not start: %s: %s", muster_errname(rc), msg.text);
        }
        return 0;
    }
    h->serving = s;
    if (store_host_is_gateway(h)) {
        return 0;
    }
    w->incarnation++;
    if (w->setup->oracle) {
        s->owner.changed = oracle_changed;
        s->watch.owner = &s->owner;
        mu_sim_spare_memory(true);
        rc = mu_ks_watch(&s->server->ks, &s->watch, mu_span("", 0), true);
        mu_sim_spare_memory(false);
        MU_ASSERT(rc == 0);
    }
    store_world_tell(w, STORE_SERVER_UP);
    return 0;
}

void store_host_killed(void *arg)
{
    struct store_host *h = arg;

    if (h->serving != NULL && !store_host_is_gateway(h)) {
        store_world_tell(h->world, STORE_SERVER_DOWN);
    }
    h->serving = NULL;
}

void store_host_drain(void *arg)
{
    struct store_serving *s = arg;

    mu_store_server_drain(s->server);
}

static void kill_server(struct mu_sim *sim, void *arg)
{
    struct store_host *h = arg;

    if (!h->world->healed && mu_sim_proc_alive(h->proc)) {
        mu_sim_kill(h->proc, mu_prng_below(mu_sim_prng(sim), 2) == 0 ? MU_SIM_KILL_PROCESS
                                                                     : MU_SIM_KILL_POWER);
        (void)mu_sim_at(sim, mu_sim_now_ns(sim) + 100 * MU_NS_PER_MS, restart_server, h);
    }
}

/* A promise is easiest to break just after it was made. */
void store_host_aim(struct store_world *w, const struct store_member *m)
{
    struct mu_prng *prng = mu_sim_prng(w->sim);

    if (mu_prng_chance(prng, w->aim_ppm) &&
        (w->disk != STORE_DISK_NONE || w->setup->backed || store_member_host(m) != 0)) {
        (void)mu_sim_at(w->sim, mu_sim_now_ns(w->sim) + mu_prng_below(prng, 2 * MU_NS_PER_MS),
                        kill_server, &w->hosts[store_member_host(m)]);
    }
}

bool store_world_peek(const struct store_world *w, const char *key, struct mu_span *ret_value)
{
    char wire[64];

    (void)snprintf(wire, sizeof(wire), "/%s", key);
    return w->hosts[0].serving != NULL &&
           mu_ks_get(&w->hosts[0].serving->server->ks, mu_span_str(wire), ret_value) == 0;
}
