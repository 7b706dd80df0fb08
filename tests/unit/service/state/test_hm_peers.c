/* States between peers in the simulator: donors and clients as hivemind's, over calls and a DHT. */
#include "peer_rig.h"

#include "service/state/hm_donor.h"
#include "service/state/hm_load.h"
#include "service/peer/kad.h"

#define PREFIX  "albert_state_averager"
#define NAME    PREFIX "::TrainingStateAverager.rpc_download_state"
#define COLUMNS 100000

/* One state, all of whose bytes say of which epoch it is. */
struct epoch {
    struct side *side;
    struct mu_layout layout;
    struct mu_span values[2];
    float *weights;
    int64_t step;
    uint8_t metadata[8];
};

struct side {
    struct rig_node *node;
    struct mu_peer_calls *calls;
    struct mu_kad *kad;
    struct mu_dht_service *dht;
    struct mu_dht_wish join;
    int joined;
    struct mu_hm_donor *donor;
    bool donating; /* not stopped yet */
    struct mu_hm_donor_config donor_config;
    int released;
    uint8_t next_epoch;
    double priority;
    struct mu_hm_load load;
    struct mu_hm_download_config download;
    int done, status;
    uint8_t got_epoch;
    char from;
    char text[512];
    char report[4096];
    struct mu_peer_items_handler bad; /* a donor who does not keep to anything */
    struct mu_peer_items bad_items;
    int bad_calls;
    bool bad_stalls;
};

static struct rig rig;
static struct side sides[4];

/* --- what is shared --------------------------------------------------------------------------- */

static void release_epoch(void *context)
{
    struct epoch *e = context;

    e->side->released++;
    mu_layout_fini(&e->layout);
    mu_free(e->weights);
    mu_free(e);
}

static struct epoch *new_epoch(struct side *s, uint8_t number)
{
    static const uint64_t shape[] = {3, COLUMNS};
    struct epoch *e = mu_calloc(1, sizeof(*e));

    e->side = s;
    mu_layout_init(&e->layout);
    assert_int_equal(mu_layout_add(&e->layout, MU_SPAN_LIT("w"), MU_DTYPE_F32, shape, 2), 0);
    assert_int_equal(mu_layout_add(&e->layout, MU_SPAN_LIT("step"), MU_DTYPE_I64, NULL, 0), 0);
    e->weights = mu_malloc((size_t)3 * COLUMNS * sizeof(float));
    for (size_t i = 0; i < (size_t)3 * COLUMNS; i++) {
        e->weights[i] = (float)number;
    }
    e->step = number;
    e->values[0] = mu_span(e->weights, (size_t)3 * COLUMNS * sizeof(float));
    e->values[1] = mu_span(&e->step, sizeof(e->step));
    memcpy(e->metadata,
           "\x81\xa5"
           "epoch",
           7);
    e->metadata[7] = number;
    return e;
}

/* Shares the next epoch. */
static void share_inside(void *arg)
{
    struct side *s = arg;
    struct epoch *e = new_epoch(s, s->next_epoch++);
    struct mu_hm_snapshot_config config = {
        .state = {.layout = &e->layout, .values = e->values, .metadata = mu_span(e->metadata, 8)},
        .release = release_epoch,
        .context = e,
    };
    struct mu_hm_snapshot *snapshot;
    struct mu_errmsg msg;

    assert_int_equal(mu_hm_snapshot_new(&config, &snapshot, &msg), 0);
    mu_hm_donor_set(s->donor, snapshot);
    mu_hm_snapshot_unref(snapshot);
}

static void share(struct side *s, uint8_t epoch)
{
    s->next_epoch = epoch;
    mu_sim_call(s->node->proc, share_inside, s);
}

static void on_donor_stopped(void *context)
{
    ((struct side *)context)->donating = false;
}

static void donate_inside(void *arg)
{
    struct side *s = arg;
    struct mu_errmsg msg;

    s->donor_config.calls = s->calls;
    s->donor_config.dht = s->dht;
    s->donor_config.self = s->node->identity.id;
    s->donor_config.prefix = PREFIX;
    s->donor_config.name = NAME;
    s->donor_config.stopped = on_donor_stopped;
    s->donor_config.context = s;
    s->donating = true;
    assert_int_equal(mu_hm_donor_start(s->node->env, &s->donor_config, &s->donor, &msg), 0);
    mu_hm_donor_set_priority(s->donor, s->priority);
}

static void donate(struct side *s, double priority, uint8_t epoch)
{
    s->priority = priority;
    mu_sim_call(s->node->proc, donate_inside, s);
    share(s, epoch);
}

static void stop_donor_inside(void *arg)
{
    struct side *s = arg;

    mu_hm_donor_stop(s->donor);
    s->donor = NULL;
}

static void stop_donor(struct side *s)
{
    mu_sim_call(s->node->proc, stop_donor_inside, s);
}

static void allow_inside(void *arg)
{
    mu_hm_donor_set_allowed(((struct side *)arg)->donor, true);
}

static void deny_inside(void *arg)
{
    mu_hm_donor_set_allowed(((struct side *)arg)->donor, false);
}

static struct mu_hm_donor_stats stats_of(struct side *s)
{
    struct mu_hm_donor_stats stats;

    mu_hm_donor_stats(s->donor, &stats);
    return stats;
}

/* --- a donor who does not keep to anything ---------------------------------------------------- */

#define CUT_OFF                                                                                    \
    "\x0a\x08\x81\xa5"                                                                             \
    "epoch\x63"                                                                                    \
    "\x12\x19\x0a\x08"                                                                             \
    "\0\0\0\0\0\0\0\0"                                                                             \
    "\x12\x02\x02\x02"                                                                             \
    "\x22\x07"                                                                                     \
    "float32"                                                                                      \
    "\x30\x02"

static void on_bad_item(struct mu_peer_items *items, struct mu_span message)
{
    struct side *s = MU_CONTAINER_OF(items, struct side, bad_items);

    (void)message;
    s->bad_calls++;
    assert_int_equal(mu_peer_items_send(items, MU_SPAN_LIT(CUT_OFF)), 0);
    if (!s->bad_stalls) {
        assert_int_equal(mu_peer_items_end(items), 0);
    }
}

static void on_bad_ended(struct mu_peer_items *items, int status, const char *text)
{
    (void)items;
    (void)status;
    (void)text;
}

static const struct mu_peer_items_events bad_events = {.item = on_bad_item, .ended = on_bad_ended};

static struct mu_peer_items *on_bad_opened(struct mu_peer_items_handler *h,
                                           const struct mu_peer_id *peer)
{
    struct side *s = MU_CONTAINER_OF(h, struct side, bad);

    (void)peer;
    s->bad_items.on = &bad_events;
    return &s->bad_items;
}

/* Declares itself through a donor of another name, and answers by itself. */
static void be_bad_inside(void *arg)
{
    struct side *s = arg;
    struct mu_errmsg msg;

    s->donor_config.calls = s->calls;
    s->donor_config.dht = s->dht;
    s->donor_config.self = s->node->identity.id;
    s->donor_config.prefix = PREFIX;
    s->donor_config.name = "elsewhere";
    s->donor_config.stopped = on_donor_stopped;
    s->donor_config.context = s;
    s->donating = true;
    assert_int_equal(mu_hm_donor_start(s->node->env, &s->donor_config, &s->donor, &msg), 0);
    mu_hm_donor_set_priority(s->donor, 1000);
    share_inside(s);
    s->bad = (struct mu_peer_items_handler){.name = NAME, .opened = on_bad_opened};
    assert_int_equal(mu_peer_items_serve(s->calls, &s->bad), 0);
}

/* --- loading ---------------------------------------------------------------------------------- */

static char name_of(const struct mu_peer_id *id)
{
    for (size_t i = 0; i < rig.count; i++) {
        if (mu_peer_id_eq(id, &rig.node[i].identity.id)) {
            return rig.node[i].name[0];
        }
    }
    return '?';
}

static void check_loaded(struct side *s, const struct mu_hm_loaded *l)
{
    float w;

    assert_int_equal(l->layout.count, 2);
    assert_int_equal(l->metadata.len, 8);
    s->got_epoch = mu_buf_span(&l->metadata).data[7];
    w = (float)s->got_epoch;
    for (size_t i = 0; i < (size_t)3 * COLUMNS; i++) {
        assert_memory_equal(mu_hm_loaded_value(l, 0).data + 4 * i, &w, 4);
    }
    assert_int_equal(mu_get_u64(mu_hm_loaded_value(l, 1).data), s->got_epoch);
}

static void on_loaded(struct mu_hm_load *load, int status, const char *text)
{
    struct side *s = MU_CONTAINER_OF(load, struct side, load);
    struct mu_buf report;

    s->done++;
    s->status = status;
    (void)snprintf(s->text, sizeof(s->text), "%s", text);
    mu_buf_init(&report, sizeof(s->report));
    assert_int_equal(mu_hm_download_report(mu_hm_load_machine(load), &report), 0);
    (void)snprintf(s->report, sizeof(s->report), "%.*s", (int)report.len,
                   report.len == 0 ? "" : (const char *)mu_buf_span(&report).data);
    mu_buf_fini(&report);
    if (status == 0) {
        struct mu_hm_loaded loaded;
        struct mu_peer_id from;

        mu_hm_load_take(load, &loaded, &from);
        s->from = name_of(&from);
        check_loaded(s, &loaded);
        mu_hm_loaded_fini(&loaded);
    }
    mu_hm_load_fini(load);
}

static void load_inside(void *arg)
{
    struct side *s = arg;
    struct mu_hm_load_config config = {
        .calls = s->calls, .dht = s->dht, .prefix = PREFIX, .name = NAME};

    config.download = s->download;
    config.download.self = s->node->identity.id;
    s->load.done = on_loaded;
    s->done = 0;
    assert_int_equal(mu_hm_load_start(s->node->env, &config, &s->load), 0);
}

static void cancel_inside(void *arg)
{
    mu_hm_load_cancel(&((struct side *)arg)->load);
}

static void load(struct side *s)
{
    mu_sim_call(s->node->proc, load_inside, s);
}

static void expect_from(struct side *s, char from, uint8_t epoch)
{
    assert_int_equal(s->done, 1);
    if (s->status != 0) {
        fail_msg("%s\n%s", s->text, s->report);
    }
    assert_int_equal(s->from, from);
    assert_int_equal(s->got_epoch, epoch);
}

/* --- the world -------------------------------------------------------------------------------- */

static void on_joined(struct mu_dht_wish *wish, const struct mu_dht_op *op)
{
    struct side *s = MU_CONTAINER_OF(wish, struct side, join);

    assert_int_equal(op->status, 0);
    s->joined++;
}

static void open_side(void *arg)
{
    struct side *s = arg;
    struct mu_dht_service_config config = {.dht = mu_dht_config_defaults()};
    struct mu_kad_config kad = mu_kad_config_defaults();
    struct mu_errmsg msg;

    assert_int_equal(mu_peer_calls_new(s->node->host, NULL, &s->calls), 0);
    assert_int_equal(mu_kad_start(s->node->host, &kad, &s->kad), 0);
    config.unary = mu_peer_calls_unary(s->calls);
    config.dht.self.peer = s->node->identity.id;
    assert_int_equal(mu_dht_service_start(s->node->env, &config, &s->dht, &msg), 0);
    s->join.done = on_joined;
    assert_int_equal(
        mu_dht_service_join(s->dht, &s->join, &rig.node[0].identity.id, s == &sides[0] ? 0 : 1), 0);
}

static void open_all(size_t count)
{
    rig_open(&rig, count, NULL);
    rig_run_all(&rig);
    memset(sides, 0, sizeof(sides));
    for (size_t i = 0; i < count; i++) {
        sides[i].node = &rig.node[i];
        sides[i].donor_config = mu_hm_donor_config_defaults();
        sides[i].download = mu_hm_download_config_defaults();
        if (i != 0) {
            rig_introduce(&rig.node[i], &rig.node[0]);
        }
        mu_sim_call(rig.node[i].proc, open_side, &sides[i]);
        rig_run(&rig, 3000);
        assert_int_equal(sides[i].joined, 1);
    }
}

static void close_side(void *arg)
{
    struct side *s = arg;

    if (s->bad.name != NULL) {
        mu_peer_items_unserve(&s->bad);
    }
    mu_dht_service_stop(s->dht);
}

static void free_side(void *arg)
{
    struct side *s = arg;

    mu_dht_service_free(s->dht);
    mu_peer_calls_free(s->calls);
    mu_kad_stop(s->kad);
}

static void close_all(void)
{
    for (size_t i = 0; i < rig.count; i++) {
        if (sides[i].donor != NULL) {
            stop_donor(&sides[i]);
        }
    }
    rig_run(&rig, 10000);
    for (size_t i = 0; i < rig.count; i++) {
        if (rig.node[i].host != NULL) {
            assert_false(sides[i].donating);
            mu_sim_call(rig.node[i].proc, close_side, &sides[i]);
        }
    }
    rig_run(&rig, 1000);
    for (size_t i = 0; i < rig.count; i++) {
        if (rig.node[i].host != NULL) {
            mu_sim_call(rig.node[i].proc, free_side, &sides[i]);
        }
    }
    rig_close(&rig);
}

/* --- tests ------------------------------------------------------------------------------------ */

static void test_hm_peers_load_from_the_donor_with_the_greatest_priority(void **unused)
{
    (void)unused;
    open_all(4);
    donate(&sides[0], 5, 5);
    donate(&sides[1], 7, 7);
    donate(&sides[2], 6, 6);
    rig_run(&rig, 2000);
    load(&sides[3]);
    rig_run(&rig, 10000);
    expect_from(&sides[3], 'b', 7);
    assert_int_equal(stats_of(&sides[1]).completed, 1);
    assert_int_equal(stats_of(&sides[1]).messages, 20);
    assert_int_equal(stats_of(&sides[0]).downloads, 0);
    /* Priorities change; and a donor that loads does not ask itself. */
    sides[1].priority = 1;
    mu_sim_call(rig.node[1].proc, stop_donor_inside, &sides[1]);
    rig_run(&rig, 5000);
    assert_int_equal(sides[1].released, 1);
    load(&sides[2]);
    rig_run(&rig, 10000);
    expect_from(&sides[2], 'a', 5);
    close_all();
}

static void test_hm_peers_a_download_keeps_its_snapshot(void **unused)
{
    (void)unused;
    open_all(2);
    donate(&sides[0], 1, 1);
    rig_run(&rig, 2000);
    load(&sides[1]);
    /* New states all the while. */
    for (uint8_t i = 2; i < 100; i++) {
        rig_run(&rig, 1);
        share(&sides[0], i);
    }
    rig_run(&rig, 10000);
    assert_int_equal(sides[1].done, 1);
    assert_int_equal(sides[1].status, 0); /* what is in it is checked when it comes */
    assert_int_equal(sides[0].released, 98);
    close_all();
    assert_int_equal(sides[0].released, 99);
}

static void replace_inside(void *arg)
{
    struct side *s = arg;

    mu_hm_donor_replace(s->donor, NULL, 0);
}

static void test_hm_peers_a_snapshot_that_was_replaced_is_given_no_longer_than_said(void **unused)
{
    (void)unused;
    open_all(2);
    donate(&sides[0], 1, 1);
    rig_run(&rig, 2000);
    load(&sides[1]);
    for (int i = 0; i < 3000 && stats_of(&sides[0]).messages == 0; i++) {
        rig_run(&rig, 1);
    }
    assert_int_equal(stats_of(&sides[0]).active, 1);
    mu_sim_call(rig.node[0].proc, replace_inside, &sides[0]);
    assert_int_equal(sides[0].released, 0);
    rig_run(&rig, 3);
    assert_int_equal(sides[0].released, 1);
    assert_int_equal(stats_of(&sides[0]).cut_off, 1);
    rig_run(&rig, 10000);
    assert_int_equal(sides[1].done, 1);
    assert_true(sides[1].status < 0);
    close_all();
}

static void announce_inside(void *arg)
{
    struct side *s = arg;
    struct mu_errmsg msg;

    s->donor_config.dht = s->dht;
    s->donor_config.calls = s->calls;
    s->donor_config.self = s->node->identity.id;
    s->donor_config.prefix = PREFIX;
    s->donor_config.name = NULL;
    s->donor_config.stopped = on_donor_stopped;
    s->donor_config.context = s;
    s->donating = true;
    assert_int_equal(mu_hm_donor_start(s->node->env, &s->donor_config, &s->donor, &msg), 0);
    mu_hm_donor_set_allowed(s->donor, false);
    mu_hm_donor_set_allowed(s->donor, true);
}

static void test_hm_peers_who_has_no_handler_is_found_and_passed_over(void **unused)
{
    (void)unused;
    open_all(3);
    mu_sim_call(rig.node[0].proc, announce_inside, &sides[0]);
    rig_run(&rig, 2000);
    assert_int_equal(stats_of(&sides[0]).declared, 1);
    load(&sides[2]);
    rig_run(&rig, 10000);
    assert_int_equal(sides[2].done, 1);
    assert_int_equal(sides[2].status, MUSTER_EREFUSED);
    donate(&sides[1], -1, 4);
    rig_run(&rig, 2000);
    load(&sides[2]);
    rig_run(&rig, 10000);
    expect_from(&sides[2], 'b', 4);
    close_all();
}

static void test_hm_peers_who_does_not_share_is_not_found(void **unused)
{
    (void)unused;
    open_all(2);
    donate(&sides[0], 1, 1);
    rig_run(&rig, 2000);
    mu_sim_call(rig.node[0].proc, deny_inside, &sides[0]);
    rig_run(&rig, 2000);
    load(&sides[1]);
    rig_run(&rig, 10000);
    assert_int_equal(sides[1].done, 1);
    assert_int_equal(sides[1].status, MUSTER_ENOENT);
    mu_sim_call(rig.node[0].proc, allow_inside, &sides[0]);
    rig_run(&rig, 2000);
    load(&sides[1]);
    rig_run(&rig, 10000);
    expect_from(&sides[1], 'a', 1);
    /* Stopping is said at once, not when the entry ends. */
    stop_donor(&sides[0]);
    rig_run(&rig, 1000);
    assert_false(sides[0].donating);
    load(&sides[1]);
    rig_run(&rig, 10000);
    assert_int_equal(sides[1].status, MUSTER_ENOENT);
    close_all();
}

static void test_hm_peers_an_entry_lives_as_long_as_the_donor(void **unused)
{
    (void)unused;
    open_all(3);
    donate(&sides[1], 1, 1);
    for (int i = 0; i < 20; i++) {
        rig_run(&rig, 9000 + (uint64_t)i * 700);
        load(&sides[2]);
        rig_run(&rig, 6000);
        expect_from(&sides[2], 'b', 1);
    }
    assert_in_range(stats_of(&sides[1]).declared, 30, 60);
    assert_int_equal(stats_of(&sides[1]).unheard, 0);
    close_all();
}

static void test_hm_peers_take_the_next_donor_when_one_cuts_off_or_stalls(void **unused)
{
    (void)unused;
    for (int stalls = 0; stalls < 2; stalls++) {
        open_all(3);
        donate(&sides[0], 1, 42);
        sides[1].bad_stalls = stalls == 1;
        mu_sim_call(rig.node[1].proc, be_bad_inside, &sides[1]);
        rig_run(&rig, 2000);
        load(&sides[2]);
        rig_run(&rig, 14000);
        assert_int_equal(sides[2].done, stalls == 1 ? 0 : 1);
        rig_run(&rig, 10000);
        expect_from(&sides[2], 'a', 42);
        assert_int_equal(sides[1].bad_calls, 1);
        assert_non_null(strstr(sides[2].report, stalls == 1 ? "silent for 15000 ms after 1"
                                                            : "ended early: tensor 0"));
        close_all();
    }
}

static void test_hm_peers_take_the_next_donor_when_one_is_gone(void **unused)
{
    (void)unused;
    open_all(4);
    donate(&sides[0], 1, 1);
    donate(&sides[1], 2, 2);
    rig_run(&rig, 2000);
    load(&sides[2]);
    while (stats_of(&sides[1]).downloads == 0) {
        rig_run(&rig, 1);
    }
    assert_int_equal(sides[2].done, 0);
    stop_donor(&sides[1]);
    rig_run(&rig, 20000);
    expect_from(&sides[2], 'a', 1);
    close_all();
}

static void test_hm_peers_without_a_slot_go_elsewhere(void **unused)
{
    (void)unused;
    open_all(4);
    sides[1].donor_config.slots = 1;
    donate(&sides[0], 1, 1);
    donate(&sides[1], 2, 2);
    rig_run(&rig, 2000);
    load(&sides[2]);
    load(&sides[3]);
    rig_run(&rig, 20000);
    assert_true(sides[2].done == 1 && sides[2].status == 0);
    assert_true(sides[3].done == 1 && sides[3].status == 0);
    assert_true((sides[2].from == 'a') != (sides[3].from == 'a'));
    assert_int_equal(stats_of(&sides[1]).busy, 1);
    assert_int_equal(stats_of(&sides[1]).active, 0);
    assert_non_null(strstr(sides[sides[2].from == 'a' ? 2 : 3].report, "busy"));
    close_all();
}

#define SILENT 75

static struct mu_host_stream silent[SILENT];
static size_t silent_ended;

static void on_silent_data(struct mu_host_stream *s, struct mu_span in)
{
    (void)s;
    (void)in;
}

static void on_silent_ended(struct mu_host_stream *s, int status, const char *text)
{
    (void)s;
    (void)status;
    (void)text;
    silent_ended++;
}

static const struct mu_host_stream_events silent_events = {.data = on_silent_data,
                                                           .ended = on_silent_ended};

static void open_silent(void *arg)
{
    struct mu_span name = MU_SPAN_LIT(NAME);
    struct side *s = arg;

    for (size_t i = 0; i < SILENT; i++) {
        silent[i] = (struct mu_host_stream){.on = &silent_events};
        mu_host_stream_open(s->node->host, &silent[i], &sides[0].node->identity.id, &name, 1);
    }
}

/* Beside the slots, so many streams may be there to be refused. Meets REFUSALS_MAX of
 * service/state/hm_donor.c. */
static void test_hm_peers_that_ask_nothing_have_so_many_streams(void **unused)
{
    (void)unused;
    open_all(2);
    donate(&sides[0], 1, 1);
    rig_run(&rig, 2000);
    silent_ended = 0;
    mu_sim_call(sides[1].node->proc, open_silent, &sides[1]);
    rig_run(&rig, 1000);
    assert_int_equal(silent_ended, SILENT - (sides[0].donor_config.slots + 64));
    rig_run(&rig, 60000);
    assert_int_equal(silent_ended, SILENT);
    close_all();
}

static void test_hm_peers_a_load_can_be_canceled_at_any_time(void **unused)
{
    (void)unused;
    for (uint64_t ms = 0; ms < 200; ms += 20) {
        open_all(2);
        donate(&sides[0], 1, 1);
        rig_run(&rig, 2000);
        load(&sides[1]);
        rig_run(&rig, ms);
        if (sides[1].done == 0) {
            mu_sim_call(rig.node[1].proc, cancel_inside, &sides[1]);
            assert_int_equal(sides[1].done, 0);
            rig_run(&rig, 1000);
            assert_int_equal(sides[1].status, MUSTER_ECANCELED);
        }
        assert_int_equal(sides[1].done, 1);
        rig_run(&rig, 70000);
        assert_int_equal(stats_of(&sides[0]).active, 0);
        close_all();
    }
}

static void test_hm_peers_end_in_time(void **unused)
{
    (void)unused;
    open_all(2);
    mu_sim_call(rig.node[0].proc, be_bad_inside, &sides[0]);
    sides[0].bad_stalls = true;
    sides[1].download.total_ms = 5000;
    rig_run(&rig, 2000);
    load(&sides[1]);
    rig_run(&rig, 4999);
    assert_int_equal(sides[1].done, 0);
    rig_run(&rig, 100);
    assert_int_equal(sides[1].done, 1);
    assert_int_equal(sides[1].status, MUSTER_ETIMEDOUT);
    close_all();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hm_peers_load_from_the_donor_with_the_greatest_priority),
        cmocka_unit_test(test_hm_peers_a_download_keeps_its_snapshot),
        cmocka_unit_test(test_hm_peers_a_snapshot_that_was_replaced_is_given_no_longer_than_said),
        cmocka_unit_test(test_hm_peers_who_has_no_handler_is_found_and_passed_over),
        cmocka_unit_test(test_hm_peers_who_does_not_share_is_not_found),
        cmocka_unit_test(test_hm_peers_an_entry_lives_as_long_as_the_donor),
        cmocka_unit_test(test_hm_peers_take_the_next_donor_when_one_cuts_off_or_stalls),
        cmocka_unit_test(test_hm_peers_take_the_next_donor_when_one_is_gone),
        cmocka_unit_test(test_hm_peers_without_a_slot_go_elsewhere),
        cmocka_unit_test(test_hm_peers_that_ask_nothing_have_so_many_streams),
        cmocka_unit_test(test_hm_peers_a_load_can_be_canceled_at_any_time),
        cmocka_unit_test(test_hm_peers_end_in_time),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
