/* What a donor does with those who come and go, in the simulator. */
#include "unit.h"

#include <stdio.h>
#include <string.h>

#include <muster/error.h>

#include "core/alloc.h"
#include "service/state/donor.h"
#include "service/wire/rpc_client.h"
#include "sim.h"

#define PORT   29700
#define BYTES  8192
#define OFFERS 8 /* at once: some come before the download in their session's table, some after */

static struct world {
    struct mu_sim *sim;
    struct mu_identity identity;
    struct mu_sim_proc *giver;
    struct mu_sim_proc *taker;
    struct mu_state_donor *donor;
    uint64_t epoch;
    uint8_t id[MU_STATE_ID_LEN]; /* of the newest state */
    struct mu_rpc_client client;
    int replies;
} w;

/* --- the donor -------------------------------------------------------------------------------- */

static void on_released(struct mu_state_share *share)
{
    mu_free(share->owner);
}

/* The next version of the state. Its offer is too long to be sent in one piece. */
static void put(void *arg)
{
    static const uint64_t shape[] = {BYTES};
    static uint8_t metadata[1 << 20];
    struct mu_state_share_spec spec = {.prefix = MU_SPAN_LIT("job"),
                                       .priority = 1,
                                       .epoch = ++w.epoch,
                                       .metadata = mu_span(metadata, sizeof(metadata))};
    struct mu_layout layout;
    struct mu_state_share *share;
    struct mu_errmsg msg;

    (void)arg;
    spec.data = mu_calloc(1, BYTES);
    mu_layout_init(&layout);
    assert_int_equal(mu_layout_add(&layout, MU_SPAN_LIT("w"), MU_DTYPE_U8, shape, 1), 0);
    spec.layout = &layout;
    assert_int_equal(mu_state_share_new(&spec, &share, &msg), 0);
    assert_int_equal(mu_state_share_hash(share, 0, share->chunks), 0);
    assert_int_equal(mu_state_share_seal(share, &w.identity, &msg), 0);
    mu_layout_fini(&layout);
    share->owner = spec.data;
    share->released = on_released;
    memcpy(w.id, share->id, sizeof(w.id));
    assert_int_equal(mu_state_donor_put(w.donor, share), 0);
    mu_state_share_drop(share);
}

static int start_donor(struct mu_env *env, void *arg)
{
    struct mu_state_donor_config config = mu_state_donor_config_defaults();
    struct mu_errmsg msg;

    config.listen = (struct mu_addr){.kind = MU_ADDR_TCP, .host = "a", .port = PORT};
    assert_int_equal(mu_state_donor_start(env, &config, &w.donor, &msg), 0);
    put(arg);
    return 0;
}

/* --- who takes -------------------------------------------------------------------------------- */

static void on_news(void *context, int status, const char *text)
{
    (void)context;
    fail_msg("%s: %s", muster_errname(status), text);
}

static void on_mismatch(void *context, bool silent)
{
    on_news(context, 0, silent ? "silent" : "mismatch");
}

static void on_nothing(void *context)
{
    (void)context;
}

/* It reads nothing of an answer that is long. */
static void on_event(void *context, const struct mu_rpc_event *event)
{
    (void)context;
    w.replies += event->type == MU_RPC_EV_REPLY ? 1 : 0;
}

static int start_taker(struct mu_env *env, void *arg)
{
    struct mu_rpc_config terms = mu_rpc_config_defaults();
    struct mu_rpc_client_config config = {
        .addr = {.kind = MU_ADDR_TCP, .host = "a", .port = PORT},
        .name = "taker",
        .connect_ms = 1000,
        .reconnect_ms = 1000,
        .probe_ms = 1000,
        .greetings = 1,
        .terms = &terms,
    };
    const struct mu_rpc_client_events events = {
        .ready = on_nothing,
        .mismatch = on_mismatch,
        .failed = on_news,
        .gave_up = on_news,
        .event = on_event,
        .closed = on_nothing,
    };

    (void)arg;
    terms.item_window_bytes = terms.item_window_bytes_max = 1;
    return mu_rpc_client_init(&w.client, env, &config, &events);
}

static void ask(void *arg)
{
    struct mu_state_which which = {.by_id = true};
    struct mu_buf question;
    uint64_t id;

    (void)arg;
    memcpy(which.id, w.id, sizeof(which.id));
    mu_buf_init(&question, 256);
    assert_int_equal(mu_state_which_encode(&question, &which), 0);
    for (int i = 0; i < OFFERS; i++) {
        assert_int_equal(mu_rpc_client_call(&w.client, MU_SPAN_LIT(MU_STATE_METHOD_OFFER),
                                            mu_buf_span(&question), 0, &id),
                         0);
    }
    mu_buf_fini(&question);
    assert_int_equal(mu_rpc_client_call(&w.client, MU_SPAN_LIT(MU_STATE_METHOD_FETCH),
                                        mu_span(w.id, sizeof(w.id)), 0, &id),
                     0);
}

static int set_up(void **state)
{
    static const uint8_t seed[MU_IDENTITY_SEED_LEN] = {1};
    struct mu_sim_config config = {.seed = 7, .faults = mu_sim_faults_none()};
    const struct mu_sim_program giver = {.name = "donor", .start = start_donor};
    const struct mu_sim_program taker = {.name = "taker", .start = start_taker};

    (void)state;
    memset(&w, 0, sizeof(w));
    w.sim = mu_sim_new(&config);
    assert_int_equal(mu_identity_from_seed(&w.identity, seed), 0);
    w.giver = mu_sim_proc_new(mu_sim_host_new(w.sim, "a"), &giver);
    mu_sim_run_for(w.sim, MU_NS_PER_S);
    w.taker = mu_sim_proc_new(mu_sim_host_new(w.sim, "t"), &taker);
    mu_sim_run_for(w.sim, MU_NS_PER_S);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    assert_null(mu_sim_failure(w.sim));
    mu_sim_free(w.sim);
    mu_identity_fini(&w.identity);
    return 0;
}

/* The download is the last thing that keeps the replaced state; it goes with its session, and so do
 * the offers. */
static void test_client_goes_while_offers_of_a_replaced_state_are_on_their_way(void **state)
{
    struct mu_state_donor_stats stats;

    (void)state;
    mu_sim_call(w.taker, ask, NULL);
    mu_sim_run_for(w.sim, MU_NS_PER_S);
    mu_state_donor_stats(w.donor, &stats);
    assert_int_equal(stats.active, 1);
    assert_int_equal(w.replies, 0);
    mu_sim_call(w.giver, put, NULL);
    mu_sim_run_for(w.sim, MU_NS_PER_S);
    mu_sim_kill(w.taker, MU_SIM_KILL_PROCESS);
    mu_sim_run_for(w.sim, 100 * MU_NS_PER_S);
    mu_state_donor_stats(w.donor, &stats);
    assert_int_equal(stats.active, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            test_client_goes_while_offers_of_a_replaced_state_are_on_their_way, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
