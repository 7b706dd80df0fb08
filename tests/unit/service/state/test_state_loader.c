/* A load from donors in the simulator: which state is taken, and who is asked for it. */
#include "unit.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include <muster/error.h>

#include "core/alloc.h"
#include "proto/state/fetch.h"
#include "service/state/loader_internal.h"
#include "sim.h"

#define DONORS 3
#define BYTES  50000
#define PORT   29700

/* Somebody who shares a state; each has its own key, and its own host: a, b, c. */
struct donor {
    struct mu_identity identity;
    struct mu_sim_proc *proc;
    struct mu_state_donor *donor;
    uint64_t epoch;
    double priority;
    uint8_t content; /* of all bytes */
    uint8_t id[MU_STATE_ID_LEN];
    size_t sessions_max;
    size_t asks_max;
    size_t more;         /* states beside that one */
    uint64_t more_epoch; /* of the last of them, which are all newer and newer */
    bool more_hidden;    /* They are listed, but not offered. */
    struct mu_state_share *shares[MU_STATE_ENTRIES_MAX];
    bool stopped;
};

static struct world {
    struct mu_sim *sim;
    struct donor donors[DONORS];
    struct mu_sim_proc *taker;
    struct mu_state_loader_config config;
    struct mu_state_loader *loader;
    bool guarded;              /* nothing may be put into memory that was not prepared */
    int prepared;              /* how often that was done */
    int room;                  /* how often it can be; below zero: always */
    struct mu_sim_proc *stall; /* stopped for a while when a state was chosen; NULL: nobody */
    int ended, closed, status;
    uint32_t restarts;
    uint8_t got;
    struct mu_peer_id signer;
    uint64_t epoch; /* of the state that was chosen last */
    char text[256];
    char report[4096];
} w;

/* --- donors ----------------------------------------------------------------------------------- */

static void on_released(struct mu_state_share *share)
{
    mu_free(share->owner);
}

static struct mu_state_share *new_share(struct donor *d, uint64_t epoch, uint8_t content)
{
    static const uint64_t shape[] = {BYTES};
    struct mu_state_share_spec spec = {.prefix = MU_SPAN_LIT("job"),
                                       .priority = d->priority,
                                       .epoch = epoch,
                                       .metadata = MU_SPAN_LIT("\x80"),
                                       .chunk_bytes = 1 << 12};
    struct mu_layout layout;
    struct mu_state_share *share;
    struct mu_errmsg msg;

    spec.data = mu_malloc(BYTES);
    memset(spec.data, content, BYTES);
    mu_layout_init(&layout);
    assert_int_equal(mu_layout_add(&layout, MU_SPAN_LIT("w"), MU_DTYPE_U8, shape, 1), 0);
    spec.layout = &layout;
    assert_int_equal(mu_state_share_new(&spec, &share, &msg), 0);
    assert_int_equal(mu_state_share_hash(share, 0, share->chunks), 0);
    assert_int_equal(mu_state_share_seal(share, &d->identity, &msg), 0);
    mu_layout_fini(&layout);
    share->owner = spec.data;
    share->released = on_released;
    return share;
}

static void put(struct donor *d)
{
    struct mu_state_share *share = new_share(d, d->epoch, d->content);

    memcpy(d->id, share->id, sizeof(d->id));
    assert_int_equal(mu_state_donor_put(d->donor, share), 0);
    mu_state_share_drop(share);
    for (size_t i = 0; i < d->more; i++) {
        share = new_share(d, d->more_epoch - d->more + 1 + i, d->content ^ 0x20);
        assert_int_equal(mu_state_donor_add(d->donor, share), 0);
        d->shares[i] = share;
        mu_state_share_drop(share);
    }
}

/* Offers no more what was listed beside the states that were put. */
static void hide(void)
{
    for (size_t i = 0; i < DONORS; i++) {
        for (size_t n = 0; w.donors[i].more_hidden && n < w.donors[i].more; n++) {
            w.donors[i].shares[n]->hidden = true;
        }
    }
}

static void on_donor_stopped(void *context)
{
    ((struct donor *)context)->stopped = true;
}

static int start_donor(struct mu_env *env, void *arg)
{
    struct donor *d = arg;
    struct mu_state_donor_config config = mu_state_donor_config_defaults();
    struct mu_errmsg msg;

    config.listen = (struct mu_addr){.kind = MU_ADDR_TCP, .port = PORT};
    (void)snprintf(config.listen.host, sizeof(config.listen.host), "%c",
                   (int)('a' + (d - w.donors)));
    config.name = "donor";
    config.sessions_max = d->sessions_max;
    config.asks_max = d->asks_max;
    config.stopped = on_donor_stopped;
    config.context = d;
    assert_int_equal(mu_state_donor_start(env, &config, &d->donor, &msg), 0);
    put(d);
    return 0;
}

/* --- the load --------------------------------------------------------------------------------- */

static void unmap(struct mu_state_share *share)
{
    assert_int_equal(munmap(share->owner, BYTES), 0);
}

/* From here on, writing there is no violation any more. */
static int prepare(struct mu_state_share *share, uint64_t offset, uint64_t len)
{
    if (w.prepared++ == w.room) {
        return -ENOSPC;
    }
    return mprotect((uint8_t *)share->owner + offset, (size_t)len, PROT_READ | PROT_WRITE);
}

static int on_accept(void *context, struct mu_state_plan *plan, struct mu_errmsg *reterr_msg)
{
    uint8_t *data = w.guarded ? mmap(NULL, BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                              : mu_malloc(BYTES);

    (void)context;
    (void)reterr_msg;
    plan->owner = data;
    plan->released = w.guarded ? unmap : on_released;
    plan->prepare = w.guarded ? prepare : NULL;
    return mu_state_segments_new(&plan->offer->manifest.layout, NULL, data, &plan->segments,
                                 &plan->segment_count);
}

static bool on_progress(void *context, const struct mu_state_loader_progress *p)
{
    (void)context;
    if (p->entry != NULL) {
        hide();
    }
    if (p->entry != NULL && w.stall != NULL) {
        mu_sim_pause(w.stall, 60 * MU_NS_PER_S);
        w.stall = NULL;
    }
    if (p->signer != NULL) {
        w.signer = *p->signer;
        w.epoch = p->entry->epoch;
    }
    return true;
}

static void on_ended(void *context, int status, const char *text, struct mu_state_share *share)
{
    struct mu_buf report;

    (void)context;
    w.restarts = w.loader->restarts;
    w.ended++;
    w.status = status;
    (void)snprintf(w.text, sizeof(w.text), "%s", text);
    mu_buf_init(&report, sizeof(w.report) - 1);
    (void)mu_state_loader_report(w.loader, &report);
    (void)snprintf(w.report, sizeof(w.report), "%.*s", (int)report.len,
                   report.len == 0 ? "" : (const char *)mu_buf_span(&report).data);
    mu_buf_fini(&report);
    if (share != NULL) {
        w.got = mu_state_share_tensor(share, 0).data[BYTES / 2];
        mu_state_share_drop(share);
    }
}

static void on_closed(void *context)
{
    (void)context;
    w.closed++;
}

static int start_taker(struct mu_env *env, void *arg)
{
    struct mu_errmsg msg;

    (void)arg;
    w.config.accept = on_accept;
    w.config.progress = on_progress;
    w.config.ended = on_ended;
    w.config.closed = on_closed;
    assert_int_equal(mu_state_loader_start(env, &w.config, &w.loader, &msg), 0);
    for (size_t i = 0; i < DONORS; i++) {
        char addr[16];

        (void)snprintf(addr, sizeof(addr), "%c:%d", (int)('a' + i), PORT);
        assert_int_equal(mu_state_loader_add(w.loader, addr, &msg),
                         i < w.config.links_max ? 0 : MUSTER_ELIMIT);
    }
    return 0;
}

static void free_loader(void *arg)
{
    (void)arg;
    mu_state_loader_free(w.loader);
}

/* Donors a, b and c; c has the oldest state. */
static int set_up(void **state)
{
    static const struct donor three[DONORS] = {
        {.epoch = 5, .priority = 5, .content = 'a'},
        {.epoch = 4, .priority = 4, .content = 'b'},
        {.epoch = 1, .priority = 1, .content = 'c'},
    };
    struct mu_sim_config config = {.seed = 7, .faults = mu_sim_faults_none()};

    (void)state;
    memset(&w, 0, sizeof(w));
    /* Long enough for a turn of the load to come between a question and its answer. */
    config.faults.latency_min_ns = config.faults.latency_max_ns = 5 * MU_NS_PER_MS;
    w.sim = mu_sim_new(&config);
    w.config = mu_state_loader_config_defaults();
    w.config.progress_ms = 1;
    w.room = -1;
    (void)snprintf(w.config.prefix, sizeof(w.config.prefix), "job");
    for (size_t i = 0; i < DONORS; i++) {
        uint8_t seed[MU_IDENTITY_SEED_LEN];

        w.donors[i] = three[i];
        w.donors[i].sessions_max = mu_state_donor_config_defaults().sessions_max;
        w.donors[i].asks_max = mu_state_donor_config_defaults().asks_max;
        memset(seed, (int)i + 1, sizeof(seed));
        assert_int_equal(mu_identity_from_seed(&w.donors[i].identity, seed), 0);
    }
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    assert_null(mu_sim_failure(w.sim));
    mu_sim_free(w.sim);
    for (size_t i = 0; i < DONORS; i++) {
        mu_identity_fini(&w.donors[i].identity);
    }
    return 0;
}

static bool is_closed(void *arg)
{
    (void)arg;
    return w.closed != 0;
}

static void start_donors(void)
{
    for (size_t i = 0; i < DONORS; i++) {
        const struct mu_sim_program program = {
            .name = "donor", .start = start_donor, .arg = &w.donors[i]};
        char name[2] = {(char)('a' + i), '\0'};

        w.donors[i].proc = mu_sim_proc_new(mu_sim_host_new(w.sim, name), &program);
    }
    mu_sim_run_for(w.sim, MU_NS_PER_S);
}

static void load(void)
{
    const struct mu_sim_program program = {.name = "taker", .start = start_taker};

    w.taker = mu_sim_proc_new(mu_sim_host_new(w.sim, "t"), &program);
    assert_true(mu_sim_run_until(w.sim, 120 * MU_NS_PER_S, is_closed, NULL));
    assert_int_equal(w.ended, 1);
    mu_sim_call(w.taker, free_loader, NULL);
}

static void expect(const struct donor *d)
{
    if (w.status != 0 || w.got != d->content) {
        fail_msg("%s: %s\n%s", muster_errname(w.status), w.text, w.report);
    }
    assert_true(mu_peer_id_eq(&w.signer, &d->identity.id));
}

/* --- which one -------------------------------------------------------------------------------- */

static void test_epoch_beats_a_priority_that_anybody_can_claim(void **state)
{
    (void)state;
    w.donors[2].priority = 999999;
    start_donors();
    load();
    expect(&w.donors[0]);
}

static void test_priority_decides_where_that_is_wanted(void **state)
{
    (void)state;
    w.donors[2].priority = 999999;
    w.config.by_priority = true;
    start_donors();
    load();
    expect(&w.donors[2]);
}

static void test_within_an_epoch_priority_decides(void **state)
{
    (void)state;
    w.donors[1].epoch = 5;
    w.donors[1].priority = 6;
    start_donors();
    load();
    expect(&w.donors[1]);
}

static void test_only_what_a_trusted_peer_has_signed_is_taken(void **state)
{
    (void)state;
    w.donors[0].epoch = 999999;
    w.config.trust = &w.donors[1].identity.id;
    w.config.trust_count = 1;
    start_donors();
    load();
    expect(&w.donors[1]);
    assert_non_null(strstr(w.report, "a:29700: ignored: its state is signed by 12D3"));
}

static void test_nothing_of_trusted_peers_is_an_error_that_says_so(void **state)
{
    struct mu_peer_id nobody;
    struct mu_errmsg msg;

    (void)state;
    assert_int_equal(
        mu_peer_id_parse(&nobody, "12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN", &msg), 0);
    w.config.trust = &nobody;
    w.config.trust_count = 1;
    start_donors();
    load();
    assert_int_equal(w.status, MUSTER_ENOENT);
    assert_non_null(strstr(w.text, "trusted"));
}

/* What others hold under signatures of their own is the same, chunk by chunk. */
static void test_chunks_come_from_those_too_who_are_not_trusted(void **state)
{
    (void)state;
    for (size_t i = 0; i < DONORS; i++) {
        w.donors[i].epoch = 5;
        w.donors[i].priority = 5;
        w.donors[i].content = 's';
    }
    w.config.trust = &w.donors[2].identity.id;
    w.config.trust_count = 1;
    start_donors();
    load();
    expect(&w.donors[2]);
    assert_non_null(strstr(w.report, "a:29700: "));
    assert_null(strstr(w.report, "a:29700: ignored"));
}

static void test_only_the_state_with_the_pinned_id_is_taken(void **state)
{
    uint8_t id[MU_STATE_ID_LEN];

    (void)state;
    start_donors();
    memcpy(id, w.donors[2].id, sizeof(id));
    w.config.id = id;
    load();
    expect(&w.donors[2]);
}

static void test_pinned_id_that_nobody_has_is_an_error_that_says_so(void **state)
{
    static const uint8_t id[MU_STATE_ID_LEN] = {1};

    (void)state;
    w.config.id = id;
    start_donors();
    load();
    assert_int_equal(w.status, MUSTER_ENOENT);
    assert_string_equal(w.text, "no donor has the requested state");
}

static int unwanted; /* how often it is asked before anything is wanted */

static bool wants_the_last(void *context, const struct mu_state_entry *entry)
{
    (void)context;
    return entry->epoch == w.donors[2].epoch && unwanted-- <= 0;
}

static void test_only_what_is_wanted_is_taken(void **state)
{
    (void)state;
    unwanted = 0;
    w.donors[2].epoch = 1;
    w.config.wants = wants_the_last;
    start_donors();
    load();
    expect(&w.donors[2]);
}

/* As long as nobody has what is wanted, donors are asked again, on the same connections. */
static void test_donors_are_asked_again_until_one_has_what_is_wanted(void **state)
{
    (void)state;
    unwanted = 20;
    w.donors[2].epoch = 1;
    w.config.wants = wants_the_last;
    w.config.expect_more = true;
    w.config.idle_ms = 0;
    w.config.again_ms = 100;
    start_donors();
    load();
    expect(&w.donors[2]);
    assert_true(unwanted <= 0);
}

/* --- who holds it up -------------------------------------------------------------------------- */

static void test_who_claims_the_newest_and_says_no_more_is_passed_over(void **state)
{
    (void)state;
    start_donors();
    w.stall = w.donors[0].proc;
    load();
    expect(&w.donors[1]);
    assert_non_null(strstr(w.report, "its offer did not come"));
}

/* The donor of the newest ends each stream with an error: others do not wait for it to the end.
 * Meets DOWNLOADS_MAX of service/state/loader_ask.c. */
static void test_who_claims_the_newest_and_gives_no_chunk_is_passed_over(void **state)
{
    (void)state;
    w.donors[0].asks_max = 1;
    start_donors();
    load();
    expect(&w.donors[1]);
    assert_non_null(strstr(w.report, "is passed over, no donor gives it"));
    assert_int_equal(w.restarts, 2);
}

/* --- limits ----------------------------------------------------------------------------------- */

static void add_too_much(void *arg)
{
    char addr[MU_STATE_ADDR_MAX + 2];
    struct mu_errmsg msg;

    (void)arg;
    assert_int_equal(mu_state_loader_add(w.loader, "d:1", &msg), MUSTER_ELIMIT);
    assert_string_equal(msg.text, "there are at most 2 donors");
    assert_int_equal(mu_state_loader_add(w.loader, "b:29700", &msg), 0); /* It is known. */
    memset(addr, 'a', sizeof(addr) - 1);
    addr[sizeof(addr) - 1] = '\0';
    assert_int_equal(mu_state_loader_add(w.loader, addr, &msg), MUSTER_ELIMIT);
    assert_string_equal(msg.text, "the address of a donor may have at most 255 bytes");
}

static void test_so_many_donors_are_asked_and_no_more(void **state)
{
    const struct mu_sim_program program = {.name = "taker", .start = start_taker};

    (void)state;
    w.config.links_max = 2;
    w.donors[2].epoch = 9; /* It has the newest, and comes too late. */
    start_donors();
    w.taker = mu_sim_proc_new(mu_sim_host_new(w.sim, "t"), &program);
    mu_sim_run_for(w.sim, MU_NS_PER_MS);
    mu_sim_call(w.taker, add_too_much, NULL);
    assert_true(mu_sim_run_until(w.sim, 120 * MU_NS_PER_S, is_closed, NULL));
    mu_sim_call(w.taker, free_loader, NULL);
    expect(&w.donors[0]);
}

static void assert_reported(const char *words)
{
    if (strstr(w.report, words) == NULL) {
        fail_msg("not in the report: %s\n%s", words, w.report);
    }
}

/* A donor that has no session for us is passed over; the next best is taken. */
static void test_donor_has_so_many_sessions(void **state)
{
    (void)state;
    w.donors[0].sessions_max = 0;
    w.donors[1].sessions_max = 1;
    start_donors();
    load();
    expect(&w.donors[1]);
    assert_reported("the server has as many sessions as it may");
}

static void test_donor_is_asked_ahead_for_so_many_chunks(void **state)
{
    (void)state;
    for (size_t i = 0; i < DONORS; i++) {
        w.donors[i].asks_max = 1;
    }
    start_donors();
    load();
    assert_int_not_equal(w.status, 0);
}

static void test_donor_that_is_asked_for_as_many_as_may_be_gives_them(void **state)
{
    (void)state;
    w.donors[0].asks_max = mu_state_fetch_config_defaults().in_flight_max;
    start_donors();
    load();
    expect(&w.donors[0]);
}

/* The newest state of a donor is its last: it counts as the last that a list may have. */
static void test_so_many_states_of_a_donor_count(void **state)
{
    (void)state;
    w.donors[0].more = MU_STATE_ENTRIES_MAX - 1;
    w.donors[0].more_epoch = 99;
    start_donors();
    load();
    assert_int_equal(w.status, 0);
    assert_int_equal(w.epoch, 99);
}

static void test_states_beyond_those_that_count_are_passed_over(void **state)
{
    (void)state;
    w.donors[0].more = MU_STATE_ENTRIES_MAX;
    w.donors[0].more_epoch = 99;
    start_donors();
    load();
    assert_int_equal(w.status, 0);
    assert_int_equal(w.epoch, 98);
}

/* Two donors list states that they do not offer, a good one behind them. */
static void list_in_vain(size_t count)
{
    w.donors[0].more = count / 2;
    w.donors[1].more = count - count / 2;
    w.donors[0].more_epoch = w.donors[1].more_epoch = 999;
    w.donors[0].more_hidden = w.donors[1].more_hidden = true;
    start_donors();
    load();
}

static void test_so_many_states_are_tried_in_vain(void **state)
{
    (void)state;
    list_in_vain(MU_STATE_REFUSED_MAX);
    expect(&w.donors[0]);
}

static void test_more_states_are_not_tried_in_vain(void **state)
{
    (void)state;
    list_in_vain(MU_STATE_REFUSED_MAX + 1);
    assert_int_equal(w.status, MUSTER_ELIMIT);
    assert_string_equal(w.text, "there are too many states of which no donor had a good offer");
}

/* Goal: nothing is put into memory that was not made ready, of which there are two stretches. */
static void test_memory_is_made_ready_before_chunks_land(void **state)
{
    (void)state;
    w.guarded = true;
    start_donors();
    load();
    expect(&w.donors[0]);
    assert_int_equal(w.prepared, 2);
}

static void test_no_room_for_a_chunk_ends_the_load(void **state)
{
    (void)state;
    w.guarded = true;
    w.room = 1;
    start_donors();
    load();
    assert_int_equal(w.status, -ENOSPC);
    assert_non_null(strstr(w.text, "no room"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_epoch_beats_a_priority_that_anybody_can_claim, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_priority_decides_where_that_is_wanted, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_within_an_epoch_priority_decides, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_only_what_a_trusted_peer_has_signed_is_taken, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_nothing_of_trusted_peers_is_an_error_that_says_so,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_chunks_come_from_those_too_who_are_not_trusted, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_only_the_state_with_the_pinned_id_is_taken, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_pinned_id_that_nobody_has_is_an_error_that_says_so,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_only_what_is_wanted_is_taken, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_donors_are_asked_again_until_one_has_what_is_wanted,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_who_claims_the_newest_and_says_no_more_is_passed_over,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(
            test_who_claims_the_newest_and_gives_no_chunk_is_passed_over, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_so_many_donors_are_asked_and_no_more, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_donor_has_so_many_sessions, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_donor_is_asked_ahead_for_so_many_chunks, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_donor_that_is_asked_for_as_many_as_may_be_gives_them,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_so_many_states_of_a_donor_count, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_states_beyond_those_that_count_are_passed_over, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_so_many_states_are_tried_in_vain, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_more_states_are_not_tried_in_vain, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_memory_is_made_ready_before_chunks_land, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_no_room_for_a_chunk_ends_the_load, set_up, tear_down),
    };

    return cmocka_run_group_tests_name("state_loader", tests, NULL, NULL);
}
