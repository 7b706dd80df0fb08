/* A state from a donor to a client over real sockets on loopback: two hosts on one loop. */
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>

#include <muster/error.h>

#include "codec/peer/multiaddr.h"
#include "core/alloc.h"
#include "service/state/hm_donor.h"
#include "service/state/hm_load.h"
#include "service/peer/kad.h"
#include "transport/uv_env.h"

#define PREFIX   "albert_state_averager"
#define NAME     PREFIX "::TrainingStateAverager.rpc_download_state"
#define VALUES   1000000
#define PATIENCE 60000

struct node {
    struct mu_identity identity;
    struct mu_peer_host *host;
    struct mu_peer_calls *calls;
    struct mu_kad *kad;
    struct mu_dht_service *dht;
    struct mu_dht_wish join;
    int joined;
    bool dht_stopped, host_stopped;
};

static struct mu_uv_env *uv;
static struct mu_env *env;
static struct node nodes[2];
static struct mu_hm_donor *donor;
static bool donor_stopped;
static struct mu_layout layout;
static float *weights;
static struct mu_hm_load loading;
static int loads, load_status, released;
static struct mu_hm_loaded loaded;
static bool late;

static void on_late(struct mu_timer *timer)
{
    (void)timer;
    late = true;
}

/* Turns the loop until `*flag` is at least `wanted`. */
static void run_until(const int *flag, int wanted)
{
    struct mu_timer timer;

    mu_timer_init(&timer, on_late);
    mu_env_timer_arm(env, &timer, mu_mono_add_ms(mu_env_now(env).mono, PATIENCE));
    while (*flag < wanted && !late) {
        mu_uv_env_turn(uv);
    }
    mu_env_timer_arm(env, &timer, MU_MONO_NEVER);
    assert_false(late);
}

static void run_until_true(const bool *flag)
{
    while (!*flag) {
        mu_uv_env_turn(uv);
    }
}

static void on_joined(struct mu_dht_wish *wish, const struct mu_dht_op *op)
{
    assert_int_equal(op->status, 0);
    MU_CONTAINER_OF(wish, struct node, join)->joined++;
}

static void on_dht_stopped(void *context)
{
    ((struct node *)context)->dht_stopped = true;
}

static void on_host_stopped(void *context)
{
    ((struct node *)context)->host_stopped = true;
}

static void open_node(struct node *n, uint8_t number)
{
    struct mu_peer_host_config host = mu_peer_host_config_defaults();
    struct mu_dht_service_config dht = {
        .dht = mu_dht_config_defaults(), .stopped = on_dht_stopped, .context = n};
    struct mu_kad_config kad = mu_kad_config_defaults();
    uint8_t seed[MU_IDENTITY_SEED_LEN];
    struct mu_errmsg msg;

    memset(seed, number, sizeof(seed));
    assert_int_equal(mu_identity_from_seed(&n->identity, seed), 0);
    host.identity = &n->identity;
    host.stopped = on_host_stopped;
    host.context = n;
    assert_int_equal(mu_peer_host_start(env, &host, &n->host, &msg), 0);
    assert_int_equal(mu_peer_host_listen(n->host, "/ip4/127.0.0.1/tcp/0", &msg), 0);
    assert_int_equal(mu_peer_calls_new(n->host, NULL, &n->calls), 0);
    assert_int_equal(mu_kad_start(n->host, &kad, &n->kad), 0);
    dht.unary = mu_peer_calls_unary(n->calls);
    dht.dht.self.peer = n->identity.id;
    assert_int_equal(mu_dht_service_start(env, &dht, &n->dht, &msg), 0);
    n->join.done = on_joined;
    if (n != &nodes[0]) {
        assert_int_equal(mu_peer_host_add_addr(n->host, &nodes[0].identity.id,
                                               mu_peer_host_listening(nodes[0].host, 0)),
                         0);
    }
    assert_int_equal(
        mu_dht_service_join(n->dht, &n->join, &nodes[0].identity.id, n == &nodes[0] ? 0 : 1), 0);
    run_until(&n->joined, 1);
}

static void close_node(struct node *n)
{
    mu_dht_service_stop(n->dht);
    run_until_true(&n->dht_stopped);
    mu_dht_service_free(n->dht);
    mu_peer_calls_free(n->calls);
    mu_kad_stop(n->kad);
    mu_peer_host_stop(n->host);
    run_until_true(&n->host_stopped);
    mu_peer_host_free(n->host);
    mu_identity_fini(&n->identity);
}

static void on_released(void *context)
{
    (void)context;
    released++;
}

static void on_donor_stopped(void *context)
{
    (void)context;
    donor_stopped = true;
}

static void share(enum mu_hm_compression compression)
{
    struct mu_span value = mu_span(weights, VALUES * sizeof(*weights));
    struct mu_hm_snapshot_config config = {
        .state = {.layout = &layout,
                  .values = &value,
                  .metadata = MU_SPAN_LIT("\x81\xa5"
                                          "epoch\x05"),
                  .compression = compression},
        .release = on_released,
    };
    struct mu_hm_snapshot *snapshot;
    struct mu_errmsg msg;

    assert_int_equal(mu_hm_snapshot_new(&config, &snapshot, &msg), 0);
    mu_hm_donor_set(donor, snapshot);
    mu_hm_snapshot_unref(snapshot);
}

static void on_loaded(struct mu_hm_load *load, int status, const char *text)
{
    struct mu_peer_id from;

    if (status != 0) {
        (void)fprintf(stderr, "%s\n", text);
    }
    loads++;
    load_status = status;
    if (status == 0) {
        mu_hm_load_take(load, &loaded, &from);
        assert_true(mu_peer_id_eq(&from, &nodes[0].identity.id));
    }
    mu_hm_load_fini(load);
}

static void start_donor(void)
{
    struct mu_hm_donor_config config = mu_hm_donor_config_defaults();
    struct mu_errmsg msg;

    config.calls = nodes[0].calls;
    config.dht = nodes[0].dht;
    config.self = nodes[0].identity.id;
    config.prefix = PREFIX;
    config.name = NAME;
    config.stopped = on_donor_stopped;
    assert_int_equal(mu_hm_donor_start(env, &config, &donor, &msg), 0);
}

static void load(void)
{
    struct mu_hm_load_config config = {
        .calls = nodes[1].calls,
        .dht = nodes[1].dht,
        .prefix = PREFIX,
        .name = NAME,
        .download = mu_hm_download_config_defaults(),
    };
    int before = loads;

    config.download.self = nodes[1].identity.id;
    config.download.state.expected = &layout;
    config.download.epoch_wanted = true;
    config.download.epoch_min = 5;
    loading.done = on_loaded;
    assert_int_equal(mu_hm_load_start(env, &config, &loading), 0);
    run_until(&loads, before + 1);
}

/* The entry in the DHT is there when a node has accepted it. */
static void await_declared(void)
{
    struct mu_hm_donor_stats stats;

    mu_hm_donor_stats(donor, &stats);
    while (stats.declared == 0) {
        mu_uv_env_turn(uv);
        mu_hm_donor_stats(donor, &stats);
    }
}

static void test_hm_loopback_a_state_comes_over_in_every_encoding(void **state)
{
    static const uint64_t shape[] = {100, VALUES / 100};

    (void)state;
    assert_int_equal(mu_uv_env_new(&uv), 0);
    env = mu_uv_env_env(uv);
    mu_layout_init(&layout);
    assert_int_equal(mu_layout_add(&layout, MU_SPAN_LIT("w"), MU_DTYPE_F32, shape, 2), 0);
    weights = malloc(VALUES * sizeof(*weights));
    for (size_t i = 0; i < VALUES; i++) {
        weights[i] = (float)(i % 128) / 32;
    }
    open_node(&nodes[0], 1);
    open_node(&nodes[1], 2);
    start_donor();
    for (int c = 0; c <= MU_HM_COMPRESSION_LAST; c++) {
        share((enum mu_hm_compression)c);
        await_declared();
        load();
        assert_int_equal(load_status, 0);
        for (size_t i = 0; i < VALUES; i++) {
            float got;
            float off;

            memcpy(&got, mu_hm_loaded_value(&loaded, 0).data + 4 * i, 4);
            off = got - weights[i];
            assert_true(off < 0.04f && off > -0.04f);
            assert_true((c != MU_HM_NONE && c != MU_HM_FLOAT16) || got == weights[i]);
        }
        mu_hm_loaded_fini(&loaded);
        assert_int_equal(released, c);
    }
    mu_hm_donor_stop(donor);
    run_until_true(&donor_stopped);
    assert_int_equal(released, MU_HM_COMPRESSION_LAST + 1);
    load();
    assert_int_equal(load_status, MUSTER_ENOENT);
    close_node(&nodes[1]);
    close_node(&nodes[0]);
    mu_layout_fini(&layout);
    free(weights);
    mu_uv_env_free(uv);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hm_loopback_a_state_comes_over_in_every_encoding),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
