/* States in a swarm, in the simulator: peers of which some do not speak the native wire. */
#include "peer_rig.h"

#include "service/peer/env.h"
#include "service/state/swarm_load.h"

#define PREFIX   "run_state_averager"
#define AVERAGER "TrainingStateAverager"
#define COUNT    40000 /* floats of a state */

/* What hivemind's peers get. */
struct given {
    struct mu_state_share *share;
    struct mu_span value;
};

struct side {
    struct rig_node *node;
    struct mu_peer_env *peers;
    struct mu_state_swarm *swarm;
    struct mu_state_donor *donor;
    bool native;
    int joined, join_status;
    bool swarm_stopped, donor_stopped;
    uint8_t epoch;
    bool hidden;
    int released;
    /* A load. */
    struct mu_state_swarm_load *load;
    struct mu_layout expected;
    bool in_place;
    bool refuse;
    uint64_t timeout_ms;
    uint64_t bytes_max;
    const struct mu_peer_id *trust; /* the only one; NULL: all */
    int ended, closed, status;
    bool by_hivemind;
    uint8_t got_epoch;
    char report[16384];
};

static struct rig rig;
static struct side sides[5];

/* --- what is shared --------------------------------------------------------------------------- */

static void fill(float *values, uint8_t epoch)
{
    for (size_t i = 0; i < COUNT; i++) {
        values[i] = (float)epoch + (float)(i % 7);
    }
}

static void on_released(struct mu_state_share *share)
{
    mu_free(share->owner);
}

static void on_given(void *context)
{
    struct given *g = context;

    mu_state_share_drop(g->share);
    mu_free(g);
}

static void make_layout(struct mu_layout *layout)
{
    static const uint64_t shape[] = {COUNT};

    mu_layout_init(layout);
    assert_int_equal(mu_layout_add(layout, MU_SPAN_LIT("w"), MU_DTYPE_F32, shape, 1), 0);
}

static struct mu_state_share *new_share(struct side *s)
{
    struct mu_state_share_spec spec = {.prefix = MU_SPAN_LIT(PREFIX),
                                       .priority = s->epoch,
                                       .epoch = s->epoch,
                                       .metadata = MU_SPAN_LIT("\x81\xa5"
                                                               "epoch\x00"),
                                       .chunk_bytes = 1 << 14};
    uint8_t metadata[8];
    float *values = mu_malloc(COUNT * sizeof(*values));
    struct mu_state_share *share;
    struct mu_layout layout;
    struct mu_errmsg msg;

    memcpy(metadata, spec.metadata.data, sizeof(metadata));
    metadata[7] = s->epoch;
    spec.metadata = mu_span(metadata, sizeof(metadata));
    fill(values, s->epoch);
    make_layout(&layout);
    spec.layout = &layout;
    spec.data = (uint8_t *)values;
    assert_int_equal(mu_state_share_new(&spec, &share, &msg), 0);
    assert_int_equal(mu_state_share_hash(share, 0, share->chunks), 0);
    assert_int_equal(mu_state_share_seal(share, &s->node->identity, &msg), 0);
    mu_layout_fini(&layout);
    share->owner = values;
    share->released = on_released;
    return share;
}

static void share_inside(void *arg)
{
    struct side *s = arg;
    struct mu_state_share *share = new_share(s);
    struct given *g = mu_calloc(1, sizeof(*g));
    struct mu_hm_snapshot_config config = {.release = on_given, .context = g};
    struct mu_hm_snapshot *snapshot;
    struct mu_errmsg msg;

    g->share = share;
    g->value = mu_state_share_tensor(share, 0);
    config.state.layout = &share->offer.manifest.layout;
    config.state.values = &g->value;
    config.state.metadata = mu_buf_span(&share->offer.manifest.metadata);
    assert_int_equal(mu_hm_snapshot_new(&config, &snapshot, &msg), 0);
    assert_int_equal(mu_state_swarm_ready(s->swarm, PREFIX, &msg), 0);
    if (s->native) {
        assert_int_equal(mu_state_donor_put(s->donor, share), 0);
    }
    mu_state_swarm_put(s->swarm, PREFIX, snapshot, s->epoch, false, 1000);
    mu_hm_snapshot_unref(snapshot); /* It holds the reference of ours. */
}

static void share(struct side *s, uint8_t epoch)
{
    s->epoch = epoch;
    mu_sim_call(s->node->proc, share_inside, s);
    rig_run(&rig, 2000);
}

/* --- a load ----------------------------------------------------------------------------------- */

static int resolve(void *context, const char *text, struct mu_addr *ret,
                   struct mu_errmsg *reterr_msg)
{
    (void)context;
    (void)reterr_msg;
    assert_memory_equal(text, "/p2p/", 5);
    *ret = (struct mu_addr){.kind = MU_ADDR_PEER};
    (void)snprintf(ret->host, sizeof(ret->host), "%s", text + 5);
    return 0;
}

static int accept(void *context, struct mu_state_plan *plan, struct mu_errmsg *reterr_msg)
{
    struct side *s = context;
    uint8_t *data;

    if (s->refuse) {
        return mu_err(reterr_msg, MUSTER_EINVAL, "another model");
    }
    data = mu_malloc(COUNT * sizeof(float));
    plan->owner = data;
    plan->released = on_released;
    return mu_state_segments_new(&plan->offer->manifest.layout, NULL, data, &plan->segments,
                                 &plan->segment_count);
}

static void check(struct side *s, struct mu_span metadata, const void *values)
{
    float *wanted = mu_malloc(COUNT * sizeof(*wanted));

    s->got_epoch = metadata.data[7];
    fill(wanted, s->got_epoch);
    assert_memory_equal(values, wanted, COUNT * sizeof(*wanted));
    mu_free(wanted);
}

static void on_ended(void *context, int status, const char *text, struct mu_state_share *share)
{
    struct side *s = context;
    struct mu_hm_loaded loaded;
    struct mu_buf report;
    double priority;

    (void)text;
    s->ended++;
    s->status = status;
    s->by_hivemind = status == 0 && share == NULL;
    if (share != NULL) {
        check(s, mu_buf_span(&share->offer.manifest.metadata),
              mu_state_share_tensor(share, 0).data);
        mu_state_share_drop(share);
    } else if (status == 0) {
        mu_state_swarm_load_take(s->load, &loaded, &priority);
        check(s, mu_buf_span(&loaded.metadata), loaded.values[0]);
        assert_true(priority == s->got_epoch);
        mu_hm_loaded_fini(&loaded);
    }
    mu_buf_init(&report, sizeof(s->report) - 1);
    (void)mu_state_swarm_load_report(s->load, &report);
    (void)snprintf(s->report, sizeof(s->report), "%.*s", (int)report.len,
                   report.len == 0 ? "" : (const char *)mu_buf_span(&report).data);
    mu_buf_fini(&report);
}

static void on_closed(void *context)
{
    ((struct side *)context)->closed++;
}

static void load_inside(void *arg)
{
    struct side *s = arg;
    struct mu_state_swarm_load_config config = {
        .swarm = s->swarm,
        .env = mu_peer_env_env(s->peers),
        .native = mu_state_loader_config_defaults(),
        .expected = s->in_place ? &s->expected : NULL,
        .bytes_max = s->bytes_max,
        .ended = on_ended,
        .closed = on_closed,
    };
    struct mu_errmsg msg;

    (void)snprintf(config.native.prefix, sizeof(config.native.prefix), PREFIX);
    config.native.resolve = resolve;
    config.native.accept = accept;
    config.native.context = s;
    config.native.timeout_ms = s->timeout_ms;
    config.native.trust = s->trust;
    config.native.trust_count = s->trust == NULL ? 0 : 1;
    s->ended = s->closed = 0;
    assert_int_equal(mu_state_swarm_load_start(&config, &s->load, &msg), 0);
}

static void free_load_inside(void *arg)
{
    struct side *s = arg;

    mu_state_swarm_load_free(s->load);
    s->load = NULL;
}

static void cancel_inside(void *arg)
{
    mu_state_swarm_load_cancel(((struct side *)arg)->load);
}

static void begin(struct side *s)
{
    mu_sim_call(s->node->proc, load_inside, s);
}

static void end(struct side *s)
{
    rig_run(&rig, 40000);
    assert_int_equal(s->ended, 1);
    assert_int_equal(s->closed, 1);
    mu_sim_call(s->node->proc, free_load_inside, s);
}

static void load(struct side *s)
{
    begin(s);
    end(s);
}

static void expect_epoch(struct side *s, uint8_t epoch, bool by_hivemind)
{
    if (s->status != 0) {
        fail_msg("%s", s->report);
    }
    assert_int_equal(s->got_epoch, epoch);
    assert_int_equal(s->by_hivemind, by_hivemind);
}

/* --- the world -------------------------------------------------------------------------------- */

static void on_joined(void *context, int status)
{
    struct side *s = context;

    s->joined++;
    s->join_status = status;
}

static void on_swarm_stopped(void *context)
{
    ((struct side *)context)->swarm_stopped = true;
}

static void on_donor_stopped(void *context)
{
    ((struct side *)context)->donor_stopped = true;
}

static void open_side(void *arg)
{
    struct side *s = arg;
    struct mu_state_swarm_config config = mu_state_swarm_config_defaults();
    struct mu_state_donor_config donor = mu_state_donor_config_defaults();
    struct mu_errmsg msg;

    assert_int_equal(mu_peer_env_new(s->node->host, &s->peers), 0);
    if (s->native) {
        donor.name = s->node->name;
        donor.listen = (struct mu_addr){.kind = MU_ADDR_PEER};
        donor.stopped = on_donor_stopped;
        donor.context = s;
        assert_int_equal(mu_state_donor_start(mu_peer_env_env(s->peers), &donor, &s->donor, &msg),
                         0);
    }
    config.host = s->node->host;
    config.peers = &rig.node[0].identity.id;
    config.peer_count = s == &sides[0] ? 0 : 1;
    config.averager = AVERAGER;
    config.joined = on_joined;
    config.stopped = on_swarm_stopped;
    config.context = s;
    assert_int_equal(mu_state_swarm_start(&config, &s->swarm, &msg), 0);
}

/* Those with a bit speak the native wire. */
static void open_all(size_t count, unsigned native)
{
    rig_open(&rig, count, NULL);
    rig_run_all(&rig);
    memset(sides, 0, sizeof(sides));
    for (size_t i = 0; i < count; i++) {
        struct side *s = &sides[i];

        s->node = &rig.node[i];
        s->native = (native >> i & 1) != 0;
        s->timeout_ms = 30000;
        make_layout(&s->expected);
        if (i != 0) {
            rig_introduce(&rig.node[i], &rig.node[0]);
        }
        mu_sim_call(s->node->proc, open_side, s);
        rig_run(&rig, 3000);
        assert_int_equal(s->joined, 1);
        assert_int_equal(s->join_status, 0);
    }
}

static void stop_inside(void *arg)
{
    struct side *s = arg;

    mu_state_swarm_stop(s->swarm);
    if (s->donor != NULL) {
        mu_state_donor_stop(s->donor);
    }
}

static void free_inside(void *arg)
{
    struct side *s = arg;

    if (s->donor != NULL) {
        assert_true(s->donor_stopped);
        mu_state_donor_free(s->donor);
    }
    mu_peer_env_free(s->peers);
}

static void close_side(struct side *s)
{
    mu_sim_call(s->node->proc, stop_inside, s);
    rig_run(&rig, 10000);
    assert_true(s->swarm_stopped);
    mu_sim_call(s->node->proc, free_inside, s);
    rig_stop_node(s->node);
    rig_run(&rig, 1000);
    mu_layout_fini(&s->expected);
}

static void close_all(void)
{
    for (size_t i = rig.count; i-- > 0;) {
        if (!sides[i].swarm_stopped) {
            close_side(&sides[i]);
        }
    }
    rig_close(&rig);
}

/* --- tests ------------------------------------------------------------------------------------ */

static void test_state_swarm_newest_wins_in_whatever_protocol(void **unused)
{
    (void)unused;
    open_all(4, 1 << 1);
    share(&sides[1], 5);
    share(&sides[2], 6);
    load(&sides[3]);
    expect_epoch(&sides[3], 6, true);
    share(&sides[1], 7);
    load(&sides[3]);
    expect_epoch(&sides[3], 7, false);
    close_all();
}

static void withdraw_inside(void *arg)
{
    mu_state_swarm_withdraw(((struct side *)arg)->swarm, PREFIX, 0);
}

static void test_state_swarm_who_leaves_is_not_found(void **unused)
{
    (void)unused;
    open_all(4, 0);
    share(&sides[1], 5);
    share(&sides[2], 6);
    mu_sim_call(sides[2].node->proc, withdraw_inside, &sides[2]);
    rig_run(&rig, 2000);
    load(&sides[3]);
    expect_epoch(&sides[3], 5, true);
    close_side(&sides[1]);
    load(&sides[3]);
    assert_int_equal(sides[3].status, MUSTER_ENOENT);
    assert_string_equal(sides[3].report, "");
    close_all();
}

static void test_state_swarm_refused_layout_leaves_the_others(void **unused)
{
    (void)unused;
    open_all(4, 1 << 1);
    share(&sides[1], 9);
    share(&sides[2], 6);
    sides[3].refuse = true; /* what native donors have */
    load(&sides[3]);
    expect_epoch(&sides[3], 6, true);
    assert_non_null(strstr(sides[3].report, "gave its state"));
    /* Nobody has it as it is wanted. */
    sides[3].in_place = true;
    mu_layout_fini(&sides[3].expected);
    mu_layout_init(&sides[3].expected);
    assert_int_equal(mu_layout_add(&sides[3].expected, MU_SPAN_LIT("v"), MU_DTYPE_I32,
                                   &(const uint64_t){COUNT}, 1),
                     0);
    load(&sides[3]);
    assert_int_equal(sides[3].status, MUSTER_EINVAL);
    close_all();
}

/* Nothing comes from it or gets there any more: as if it had lost its power. */
static void isolate(struct side *s, uint64_t ms)
{
    for (size_t i = 0; i < rig.count; i++) {
        struct mu_sim_host *other = rig.node[i].sim_host;

        if (other != s->node->sim_host) {
            mu_sim_cut(s->node->sim_host, other, ms * MU_NS_PER_MS);
            mu_sim_cut(other, s->node->sim_host, ms * MU_NS_PER_MS);
        }
    }
}

static void test_state_swarm_lost_donors_are_passed_over(void **unused)
{
    (void)unused;
    for (unsigned native = 0; native < 4; native++) {
        open_all(4, native << 1);
        share(&sides[1], 8);
        share(&sides[2], 7);
        /* Without a word, and its entry in the DHT is the newest; or in the middle of it. */
        for (uint64_t ms = 0; ms < 20; ms += 4) {
            begin(&sides[3]);
            rig_run(&rig, ms);
            isolate(&sides[1], 20000);
            end(&sides[3]);
            if (sides[3].got_epoch != 8) {
                expect_epoch(&sides[3], 7, (native & 2) == 0);
            }
            assert_true(ms != 0 || sides[3].got_epoch == 7);
        }
        close_all();
    }
}

/* --- a stranger's many names ------------------------------------------------------------------ */

#define NAMES 80

static struct {
    struct mu_dht_wish wish;
    struct mu_dht_put puts[NAMES];
    uint8_t subkeys[NAMES][2 + MU_PEER_ID_MAX];
    size_t count;
    int done;
} crowd;

static void on_crowded(struct mu_dht_wish *wish, const struct mu_dht_op *op)
{
    (void)wish;
    (void)op;
    crowd.done++;
}

/* Peers that there are not, each with a priority beyond all others'. */
static void waiting_inside(void *arg)
{
    static const uint8_t value[] = {0xcb, 0x41, 0x2e, 0x84, 0x7e, 0, 0, 0, 0}; /* 999999.0 */
    struct side *s = arg;

    for (size_t i = 0; i < crowd.count; i++) {
        uint8_t seed[MU_IDENTITY_SEED_LEN] = {99, (uint8_t)i};
        struct mu_identity name;
        struct mu_dht_put *put = &crowd.puts[i];

        assert_int_equal(mu_identity_from_seed(&name, seed), 0);
        crowd.subkeys[i][0] = 0xc4;
        crowd.subkeys[i][1] = (uint8_t)name.id.len;
        memcpy(crowd.subkeys[i] + 2, mu_peer_id_span(&name.id).data, name.id.len);
        put->subkey = mu_span(crowd.subkeys[i], 2 + name.id.len);
        put->value = mu_span(value, sizeof(value));
        put->expiration = mu_dht_service_time(mu_state_swarm_dht(s->swarm)) + 300;
        assert_int_equal(mu_hm_all_averagers(PREFIX, &put->key), 0);
        mu_identity_fini(&name);
    }
    crowd.wish.done = on_crowded;
    assert_int_equal(
        mu_dht_service_store(mu_state_swarm_dht(s->swarm), &crowd.wish, crowd.puts, crowd.count),
        0);
}

static void claim(struct side *s, size_t count)
{
    memset(&crowd, 0, sizeof(crowd));
    crowd.count = count;
    mu_sim_call(s->node->proc, waiting_inside, s);
    rig_run(&rig, 5000);
    assert_int_equal(crowd.done, 1);
}

static void test_state_swarm_claimed_priorities_do_not_hide_the_others(void **unused)
{
    (void)unused;
    open_all(4, 1 << 1 | 1 << 3);
    share(&sides[1], 5);
    claim(&sides[2], NAMES);
    sides[3].trust = &sides[1].node->identity.id;
    load(&sides[3]);
    expect_epoch(&sides[3], 5, false);
    close_all();
}

/* The donors that a load considers are all in its report, for none of them is there. Meets
 * FOUND_MAX of service/state/swarm_find.c. */
static void test_state_swarm_considers_so_many_donors(void **unused)
{
    (void)unused;
    for (size_t count = 63; count <= 65; count++) {
        size_t lines = 0;

        open_all(3, 0);
        claim(&sides[1], count);
        load(&sides[2]);
        assert_int_not_equal(sides[2].status, 0);
        for (const char *at = sides[2].report; (at = strstr(at, ", priority ")) != NULL; at++) {
            lines++;
        }
        assert_int_equal(lines, count < 64 ? count : 64);
        close_all();
    }
}

static void test_state_swarm_with_trust_nothing_is_taken_that_nobody_signed(void **unused)
{
    (void)unused;
    open_all(4, 1 << 1);
    share(&sides[1], 5);
    share(&sides[2], 6);
    sides[3].trust = &sides[1].node->identity.id;
    load(&sides[3]);
    expect_epoch(&sides[3], 5, false);
    assert_non_null(strstr(sides[3].report, "is not signed"));
    close_all();
}

static void test_state_swarm_load_can_be_canceled_at_any_time(void **unused)
{
    int canceled = 0;

    (void)unused;
    open_all(4, 1 << 1);
    share(&sides[1], 5);
    share(&sides[2], 6);
    for (uint64_t ms = 0; ms < 60; ms++) {
        begin(&sides[3]);
        rig_run(&rig, ms);
        mu_sim_call(sides[3].node->proc, cancel_inside, &sides[3]);
        end(&sides[3]);
        canceled += sides[3].status == MUSTER_ECANCELED;
        assert_true(sides[3].status == 0 || sides[3].status == MUSTER_ECANCELED);
    }
    assert_in_range(canceled, 1, 59);
    close_all();
}

static void test_state_swarm_takes_so_many_bytes_of_hivemind(void **unused)
{
    (void)unused;
    open_all(4, 0);
    share(&sides[2], 6);
    sides[3].bytes_max = COUNT * sizeof(float);
    load(&sides[3]);
    expect_epoch(&sides[3], 6, true);
    sides[3].bytes_max--;
    load(&sides[3]);
    assert_int_equal(sides[3].status, MUSTER_ELIMIT);
    assert_non_null(strstr(sides[3].report, "159999 bytes"));
    close_all();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_state_swarm_newest_wins_in_whatever_protocol),
        cmocka_unit_test(test_state_swarm_who_leaves_is_not_found),
        cmocka_unit_test(test_state_swarm_refused_layout_leaves_the_others),
        cmocka_unit_test(test_state_swarm_lost_donors_are_passed_over),
        cmocka_unit_test(test_state_swarm_claimed_priorities_do_not_hide_the_others),
        cmocka_unit_test(test_state_swarm_considers_so_many_donors),
        cmocka_unit_test(test_state_swarm_with_trust_nothing_is_taken_that_nobody_signed),
        cmocka_unit_test(test_state_swarm_load_can_be_canceled_at_any_time),
        cmocka_unit_test(test_state_swarm_takes_so_many_bytes_of_hivemind),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
