/*
 * Scenarios of the store: which jobs run together, on what kind of disk, and with which planted
 * fault. scenarios/store/store_world.h describes their common story.
 */
#include "scenarios/scenarios.h"
#include "scenarios/store/store_world.h"

static struct mu_sim_faults lying_faults(struct mu_prng *prng)
{
    struct mu_sim_faults f = mu_sim_faults_draw(prng);

    f.disk_lie_ppm = 50000;
    f.kill_every_ns = 3 * MU_NS_PER_S;
    f.down_max_ns = MU_NS_PER_S;
    return f;
}

/* Kills are frequent enough that there is something to lose. */
static struct mu_sim_faults deadly_faults(struct mu_prng *prng)
{
    struct mu_sim_faults f = store_world_faults(prng);

    if (f.kill_every_ns == 0) {
        f.kill_every_ns = 3 * MU_NS_PER_S;
        f.down_max_ns = MU_NS_PER_S;
    }
    return f;
}

static struct mu_sim_faults starving_faults(struct mu_prng *prng)
{
    struct mu_sim_faults f = mu_sim_faults_none();

    f.alloc_fail_ppm = 1000 + (uint32_t)mu_prng_below(prng, 20000);
    return f;
}

/* Answers of etcd are lost, and no process runs out of memory; other scenarios test that. */
static struct mu_sim_faults backed_faults(struct mu_prng *prng)
{
    struct mu_sim_faults f = mu_sim_faults_draw(prng);

    if (f.reset_every_ns == 0 && mu_prng_below(prng, 2) == 0) {
        f.reset_every_ns = MU_NS_PER_S;
    }
    return f;
}

/* Everything but memory; gateways are paused for longer than their leases, and lost. */
static struct mu_sim_faults held_faults(struct mu_prng *prng)
{
    struct mu_sim_faults f = mu_sim_faults_draw(prng);

    if (f.pause_every_ns == 0 && mu_prng_below(prng, 2) == 0) {
        f.pause_every_ns = 2 * MU_NS_PER_S;
        f.pause_max_ns = 3 * MU_NS_PER_S;
    }
    return f;
}

/* SCENARIO(identifier, name, summary, faults, bug, setup...) */
#define SCENARIO(id, text, words, faults_of, is_planted, ...)                                      \
    static const struct store_setup setup_##id = {__VA_ARGS__};                                    \
    SIM_SCENARIO(id, text, words, faults_of, is_planted, store_world_run(sim, &setup_##id))

SCENARIO(store, "store",
         "server, native and PyTorch clients: linearizable, exactly once, nothing lost",
         store_world_faults, false, .jobs = {&store_job_linear, &store_job_append})
SCENARIO(store_queue, "store-queue", "queues: once, in order, nothing acknowledged is missing",
         store_world_faults, false, .jobs = {&store_job_queue, &store_job_linear})
SCENARIO(store_watch, "store-watch", "watches: every change, in order, no change twice or skipped",
         store_world_faults, false, .jobs = {&store_job_watch, &store_job_write, &store_job_lease},
         .oracle = true)
SCENARIO(store_lease, "store-lease", "keys under leases and sessions: not too early, not too late",
         store_world_faults, false, .jobs = {&store_job_session, &store_job_lease}, .oracle = true,
         .wait_ns = 28 * MU_NS_PER_S)
SCENARIO(store_interval, "store-interval", "sync interval: a crash loses no more than is promised",
         deadly_faults, false, .jobs = {&store_job_loss}, .disk = STORE_DISK_INTERVAL,
         .keep_awake = true)

SCENARIO(store_lying_disk, "store-lying-disk",
         "planted bug: a disk that forgets what it said it kept", lying_faults, true,
         .jobs = {&store_job_linear}, .disk = STORE_DISK_ALWAYS, .plant = STORE_PLANT_LYING_DISK)
SCENARIO(store_retry, "store-retry",
         "planted bug: a client that repeats an add whose outcome is unknown", store_world_faults,
         true, .jobs = {&store_job_linear}, .plant = STORE_PLANT_RETRYING_CLIENT)
SCENARIO(store_torn_set, "store-torn-set", "planted bug: a multi_set that is several sets",
         store_world_faults, true, .jobs = {&store_job_linear}, .plant = STORE_PLANT_TORN_SET)
SCENARIO(store_enomem, "store-enomem",
         "planted bug: a client that counts an operation as done that found no memory",
         starving_faults, true, .jobs = {&store_job_append}, .plant = STORE_PLANT_BLIND_TO_ENOMEM)
SCENARIO(store_push_twice, "store-push-twice",
         "planted bug: a client that repeats a push whose outcome is unknown", store_world_faults,
         true, .jobs = {&store_job_queue}, .plant = STORE_PLANT_RETRYING_PUSH)
SCENARIO(store_pop_twice, "store-pop-twice",
         "planted bug: a client that repeats a pop whose outcome is unknown", store_world_faults,
         true, .jobs = {&store_job_queue}, .plant = STORE_PLANT_RETRYING_POP)
SCENARIO(store_pop_order, "store-pop-order",
         "planted bug: a client that turns to its second element first", store_world_faults, true,
         .jobs = {&store_job_queue}, .plant = STORE_PLANT_IMPATIENT_POP)
SCENARIO(store_watch_gap, "store-watch-gap",
         "planted bug: a watcher that goes on after a loss as if nothing had happened",
         store_world_faults, true, .jobs = {&store_job_watch, &store_job_write}, .oracle = true,
         .plant = STORE_PLANT_FORGETFUL_WATCH)
SCENARIO(store_lease_early, "store-lease-early",
         "planted bug: a holder that counts its keep as acknowledged once it is sent",
         store_world_faults, true, .jobs = {&store_job_lease}, .oracle = true,
         .plant = STORE_PLANT_CARELESS_KEEPER)
SCENARIO(store_session_early, "store-session-early",
         "planted bug: a client that counts itself as connected while it tries", store_world_faults,
         true, .jobs = {&store_job_session}, .oracle = true, .plant = STORE_PLANT_WISHFUL_CLIENT)
SCENARIO(store_slow_sync, "store-slow-sync",
         "planted bug: a server that writes to its disk five times too seldom", deadly_faults, true,
         .jobs = {&store_job_loss}, .disk = STORE_DISK_INTERVAL, .keep_awake = true,
         .plant = STORE_PLANT_SLOW_SYNC)
SCENARIO(backed, "backed",
         "several servers on one etcd cluster: linearizable, exactly once, nothing lost",
         backed_faults, false, .jobs = {&store_job_linear, &store_job_append},
         .disk = STORE_DISK_NONE, .backed = true)
SCENARIO(backed_queue, "backed-queue", "queues in etcd: once, in order, nothing is missing",
         backed_faults, false, .jobs = {&store_job_queue, &store_job_linear},
         .disk = STORE_DISK_NONE, .backed = true)
SCENARIO(backed_cached, "backed-cached",
         "servers that read from their mirrors: nothing older than what they answered",
         backed_faults, false, .jobs = {&store_job_reads, &store_job_queue},
         .disk = STORE_DISK_NONE, .backed = true, .cached = true)
SCENARIO(backed_hasty, "backed-hasty",
         "planted bug: the mirror of etcd answers before the watch has reached the revision",
         backed_faults, true, .jobs = {&store_job_linear}, .disk = STORE_DISK_NONE, .backed = true,
         .plant = STORE_PLANT_HASTY_READS)
SCENARIO(backed_cached_hasty, "backed-cached-hasty",
         "planted bug: cached reads that do not wait for what the server has answered",
         backed_faults, true, .jobs = {&store_job_reads}, .disk = STORE_DISK_NONE, .backed = true,
         .cached = true, .plant = STORE_PLANT_HASTY_READS)
SCENARIO(backed_cached_linear, "backed-cached-linear",
         "planted bug: cached reads, checked for what linearizable ones promise", backed_faults,
         true, .jobs = {&store_job_linear}, .disk = STORE_DISK_NONE, .backed = true, .cached = true)
SCENARIO(backed_retry, "backed-retry", "a client that repeats an add whose outcome is unknown",
         backed_faults, true, .jobs = {&store_job_linear}, .disk = STORE_DISK_NONE, .backed = true,
         .plant = STORE_PLANT_RETRYING_CLIENT)
SCENARIO(gateway, "gateway",
         "clients behind two gateways to one server: linearizable, exactly once, nothing lost",
         store_world_faults, false, .jobs = {&store_job_linear, &store_job_append},
         .gateways = true)
SCENARIO(gateway_queue, "gateway-queue",
         "queues through gateways: once, in order, nothing is missing", store_world_faults, false,
         .jobs = {&store_job_queue, &store_job_linear}, .gateways = true)
SCENARIO(gateway_watch, "gateway-watch", "watches through gateways: every change, in order",
         store_world_faults, false, .jobs = {&store_job_watch, &store_job_write}, .oracle = true,
         .gateways = true)
SCENARIO(gateway_retry, "gateway-retry",
         "planted bug: a client behind a gateway that repeats an add whose outcome is unknown",
         store_world_faults, true, .jobs = {&store_job_linear}, .gateways = true,
         .plant = STORE_PLANT_RETRYING_CLIENT)

#define HELD(id, text, words, bug, ...)                                                            \
    SCENARIO(id, text, words, held_faults, bug, .jobs = {&store_job_linear},                       \
             .disk = STORE_DISK_NONE, .gateways = true, .reading = true,                           \
             .wait_ns = 4 * MU_NS_PER_S, __VA_ARGS__)

HELD(gateway_held, "gateway-held",
     "clients at a server and at gateways that answer for its keys: linearizable", false,
     .plant = STORE_PLANT_NOTHING)
HELD(gateway_deep, "gateway-deep",
     "the same with gateways to a gateway, which lends them what it holds, and is lost", false,
     .deep = true)
HELD(gateway_tree, "gateway-tree",
     "the same behind relays, which carry what changes a key, and are lost", false, .tree = true)
HELD(tree_kept, "tree-kept",
     "planted bug: a gateway behind a relay that keeps what it says it has given back", true,
     .tree = true, .plant = STORE_PLANT_CACHE)
HELD(tree_forever, "tree-forever",
     "planted bug: a gateway that forgets nothing when its relay is lost", true, .tree = true,
     .plant = STORE_PLANT_CACHE + 3)
HELD(tree_spoiled, "tree-spoiled",
     "planted bug: a gateway that keeps what it has changed while a relay was asked", true,
     .tree = true, .plant = STORE_PLANT_CACHE + 4)
HELD(lent_late_recall, "lent-late-recall",
     "planted bug: a gateway that gives back, or passes on changes of, what it has lent", true,
     .deep = true, .plant = STORE_PLANT_HOLDS)
HELD(lent_early_grant, "lent-early-grant",
     "planted bug: a gateway that lends a key while it is asked back", true, .deep = true,
     .plant = STORE_PLANT_HOLDS + 1)
HELD(lent_short_lease, "lent-short-lease",
     "planted bug: a gateway that counts half of the lease for which it lends", true, .deep = true,
     .plant = STORE_PLANT_HOLDS + 2)
HELD(lent_short_loan, "lent-short-loan",
     "planted bug: what a gateway has lent ends with its process", true, .deep = true,
     .plant = STORE_PLANT_HOLDS + 3)
HELD(lent_long_lease, "lent-long-lease",
     "planted bug: a gateway that lends for longer than it holds", true, .deep = true,
     .plant = STORE_PLANT_HOLDS + 4)
HELD(held_late_recall, "held-late-recall",
     "planted bug: keys are asked back after they were changed", true, .plant = STORE_PLANT_HOLDS)
HELD(held_early_grant, "held-early-grant", "planted bug: a key is granted while it is asked back",
     true, .plant = STORE_PLANT_HOLDS + 1)
HELD(held_short_lease, "held-short-lease",
     "planted bug: a server that counts half of the lease that it grants", true,
     .plant = STORE_PLANT_HOLDS + 2)
HELD(held_kept, "held-kept", "planted bug: a gateway that keeps what it says it has given back",
     true, .plant = STORE_PLANT_CACHE)
HELD(held_late_lease, "held-late-lease",
     "planted bug: a gateway that counts its lease from the answer", true,
     .plant = STORE_PLANT_CACHE + 1)
HELD(held_no_lease, "held-no-lease", "planted bug: a gateway that answers after its lease", true,
     .plant = STORE_PLANT_CACHE + 2)
HELD(held_forever, "held-forever",
     "planted bug: a gateway that forgets nothing when its session is over", true,
     .plant = STORE_PLANT_CACHE + 3)
HELD(held_spoiled, "held-spoiled",
     "planted bug: a gateway that keeps what was asked back on its way", true,
     .plant = STORE_PLANT_CACHE + 4)
HELD(held_eager_wait, "held-eager-wait",
     "planted bug: a wait that is answered with the news that its key is not there", true,
     .plant = STORE_PLANT_CACHE + 5)
