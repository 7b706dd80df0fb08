/* The scheduler of a download, and donors that lie, fall silent, fail or have nothing more. */
#include "fetch_rig.h"

static void test_state_fetch_bans_who_sends_a_bad_chunk(void **state)
{
    struct mu_state_ask_request request;
    struct fetch_rig w;
    uint32_t liar;
    uint32_t other;
    uint32_t asked;

    (void)state;
    fetch_open(&w, 50);
    liar = fetch_add_full(&w, "liar");
    asked = fetch_ask_all(&w, &request);
    assert_true(asked > 1);
    fetch_answer(&w, liar, true);
    fetch_answer(&w, liar, false);
    assert_int_equal(fetch_pull(&w, MU_STATE_FETCH_EV_BAN), 1);
    assert_int_equal(w.last.donor, liar);
    assert_int_equal(fetch_account(&w, liar).state, MU_STATE_DONOR_BANNED);
    assert_int_equal(fetch_account(&w, liar).in_flight, 0);
    assert_int_equal(fetch_account(&w, liar).bad, 1);
    assert_int_equal(fetch_ask_all(&w, &request), 0);

    /* What it sent before is kept; all else is to be had from others, and it never comes back. */
    other = fetch_add_full(&w, "other");
    while (mu_state_fetch_status(&w.f) == MU_STATE_FETCH_RUNNING) {
        (void)fetch_ask_all(&w, &request);
        fetch_sleep_ms(&w, 100);
        fetch_answer(&w, other, true);
        assert_int_equal(fetch_pull(&w, MU_STATE_FETCH_EV_OPEN), 0);
    }
    assert_int_equal(fetch_account(&w, other).chunks, 49);
    mu_state_fetch_ready(&w.f, w.now, liar);
    assert_int_equal(fetch_account(&w, liar).state, MU_STATE_DONOR_BANNED);
    mu_state_fetch_fini(&w.f);
}

static void test_state_fetch_keeps_what_a_lost_donor_sent_whole(void **state)
{
    struct mu_state_ask_request request;
    struct fetch_rig w;
    uint32_t donor;
    uint32_t chunk;
    bool revoked;

    (void)state;
    fetch_open(&w, 10);
    donor = fetch_add_full(&w, "a");
    (void)fetch_ask_all(&w, &request);
    assert_true(mu_state_fetch_owes(&w.f, donor, &request, &revoked));
    chunk = request.chunk;
    assert_int_equal(mu_state_fetch_received(&w.f, w.now, donor, chunk), MU_STATE_FETCH_VERIFY);
    mu_state_fetch_heard(&w.f, w.now, donor, 1000);
    mu_state_fetch_lost(&w.f, w.now, donor, MUSTER_ECONN, "reset by peer");

    assert_int_equal(fetch_account(&w, donor).half, 1);
    assert_int_equal(fetch_account(&w, donor).half_bytes, 1000);
    assert_string_equal(fetch_account(&w, donor).text, "reset by peer");
    mu_state_fetch_verified(&w.f, w.now, donor, chunk, true);
    assert_int_equal(fetch_pull(&w, MU_STATE_FETCH_EV_HAVE), 1);
    assert_int_equal(mu_state_fetch_chunks_done(&w.f), 1);

    /* It is tried again after a rest. */
    fetch_sleep_ms(&w, 100);
    assert_int_equal(fetch_pull(&w, MU_STATE_FETCH_EV_OPEN), 0);
    fetch_sleep_ms(&w, 300);
    assert_int_equal(fetch_pull(&w, MU_STATE_FETCH_EV_OPEN), 1);
    mu_state_fetch_ready(&w.f, w.now, donor);
    assert_true(fetch_ask_all(&w, &request) > 0);
    mu_state_fetch_fini(&w.f);
}

static void test_state_fetch_drops_who_says_nothing(void **state)
{
    struct mu_state_ask_request request;
    struct fetch_rig w;
    uint32_t donor;

    (void)state;
    fetch_open(&w, 10);
    donor = fetch_add_full(&w, "a");
    (void)fetch_ask_all(&w, &request);
    fetch_sleep_ms(&w, 4999);
    assert_int_equal(fetch_pull(&w, MU_STATE_FETCH_EV_DROP), 0);
    mu_state_fetch_heard(&w.f, w.now, donor, 10);
    fetch_sleep_ms(&w, 4999);
    assert_int_equal(fetch_pull(&w, MU_STATE_FETCH_EV_DROP), 0);
    fetch_sleep_ms(&w, 2);
    assert_int_equal(fetch_pull(&w, MU_STATE_FETCH_EV_DROP), 1);
    assert_int_equal(w.last.status, MUSTER_ETIMEDOUT);
    assert_non_null(strstr(w.last.text, "5000 ms"));
    assert_int_equal(fetch_account(&w, donor).in_flight, 0);
    assert_int_equal(fetch_account(&w, donor).half, 1);
    mu_state_fetch_fini(&w.f);
}

static void test_state_fetch_forgives_silence_while_we_were_away(void **state)
{
    struct mu_state_ask_request request;
    struct fetch_rig w;

    (void)state;
    fetch_open(&w, 10);
    (void)fetch_add_full(&w, "a");
    (void)fetch_ask_all(&w, &request);
    w.now = mu_mono_add_ms(w.now, 100000);
    mu_state_fetch_away(&w.f, 100000 * MU_NS_PER_MS);
    mu_state_fetch_tick(&w.f, w.now);
    assert_int_equal(fetch_pull(&w, MU_STATE_FETCH_EV_DROP), 0);
    assert_int_equal(mu_state_fetch_status(&w.f), MU_STATE_FETCH_RUNNING);
    mu_state_fetch_fini(&w.f);
}

static void test_state_fetch_gives_up_a_donor_that_fails_again_and_again(void **state)
{
    struct fetch_rig w;
    uint32_t donor;
    int opened = 1;

    (void)state;
    fetch_open(&w, 10);
    assert_int_equal(mu_state_fetch_add(&w.f, w.now, MU_SPAN_LIT("a"), &donor), 0);
    mu_state_fetch_expect(&w.f, w.now, false);
    (void)fetch_pull(&w, MU_STATE_FETCH_EV_OPEN);
    for (int i = 0; i < 1000 && mu_state_fetch_status(&w.f) == MU_STATE_FETCH_RUNNING; i++) {
        mu_state_fetch_lost(&w.f, w.now, donor, MUSTER_ECONN, NULL);
        w.now = mu_state_fetch_deadline(&w.f).ns > w.now.ns ? mu_state_fetch_deadline(&w.f) : w.now;
        mu_state_fetch_tick(&w.f, w.now);
        if (mu_state_fetch_status(&w.f) == MU_STATE_FETCH_RUNNING) {
            opened += fetch_pull(&w, MU_STATE_FETCH_EV_OPEN);
        }
    }
    assert_int_equal(opened, 6);
    assert_int_equal(fetch_account(&w, donor).state, MU_STATE_DONOR_GIVEN_UP);
    assert_int_equal(fetch_pull(&w, MU_STATE_FETCH_EV_END), 1);
    assert_int_equal(w.last.status, MUSTER_ECONN);
    assert_non_null(strstr(w.last.text, "10 of 10 chunks are missing"));
    mu_state_fetch_fini(&w.f);
}

static void test_state_fetch_does_not_return_to_who_has_it_no_more(void **state)
{
    struct fetch_rig w;
    uint32_t donor;

    (void)state;
    fetch_open(&w, 10);
    donor = fetch_add_full(&w, "a");
    mu_state_fetch_lost(&w.f, w.now, donor, MUSTER_ENOENT, "gone: version was replaced");
    assert_int_equal(fetch_account(&w, donor).state, MU_STATE_DONOR_GIVEN_UP);
    assert_int_equal(mu_state_fetch_status(&w.f), MU_STATE_FETCH_RUNNING);
    mu_state_fetch_expect(&w.f, w.now, false);
    assert_int_equal(mu_state_fetch_status(&w.f), MU_STATE_FETCH_FAILED);
    mu_state_fetch_fini(&w.f);
}

static void test_state_fetch_fails_though_no_donor_said_why(void **state)
{
    struct mu_state_fetch_config config = fetch_config(10);
    struct fetch_rig w;
    uint32_t donor;

    (void)state;
    config.tries = 1;
    fetch_open_with(&w, &config);
    donor = fetch_add_full(&w, "a");
    mu_state_fetch_expect(&w.f, w.now, false);
    mu_state_fetch_lost(&w.f, w.now, donor, 0, NULL);
    assert_int_equal(fetch_pull(&w, MU_STATE_FETCH_EV_END), 1);
    assert_int_equal(w.last.status, MUSTER_ECONN);
    mu_state_fetch_fini(&w.f);
}

static void test_state_fetch_returns_to_a_busy_donor_when_it_said(void **state)
{
    struct fetch_rig w;
    uint32_t donor;

    (void)state;
    fetch_open(&w, 10);
    assert_int_equal(mu_state_fetch_add(&w.f, w.now, MU_SPAN_LIT("a"), &donor), 0);
    (void)fetch_pull(&w, MU_STATE_FETCH_EV_OPEN);
    for (int i = 0; i < 20; i++) {
        mu_state_fetch_busy(&w.f, w.now, donor, 1000);
        fetch_sleep_ms(&w, 740);
        assert_int_equal(fetch_pull(&w, MU_STATE_FETCH_EV_OPEN), 0);
        fetch_sleep_ms(&w, 520);
        assert_int_equal(fetch_pull(&w, MU_STATE_FETCH_EV_OPEN), 1);
    }
    assert_int_equal(fetch_account(&w, donor).status, MUSTER_EBUSY);
    mu_state_fetch_fini(&w.f);
}

/* Meets MISSES_MAX of proto/state/fetch_chunk.c. */
static void test_state_fetch_gives_up_who_never_has_what_it_says(void **state)
{
    struct mu_state_ask_request request;
    struct fetch_rig w;
    uint32_t donor;

    (void)state;
    fetch_open(&w, 1);
    donor = fetch_add_full(&w, "a");
    for (int i = 0; i < 16; i++) {
        assert_int_equal(fetch_account(&w, donor).state, MU_STATE_DONOR_READY);
        assert_int_equal(fetch_ask_all(&w, &request), 1);
        assert_true(mu_state_fetch_absent(&w.f, w.now, donor, 0));
        (void)fetch_pull(&w, MU_STATE_FETCH_EV_DROP);
        assert_int_equal(mu_state_fetch_have(&w.f, w.now, donor, NULL), 0);
    }
    assert_int_equal(fetch_account(&w, donor).state, MU_STATE_DONOR_GIVEN_UP);
    mu_state_fetch_fini(&w.f);
}

/* --- limits ----------------------------------------------------------------------------------- */

static void test_state_fetch_knows_so_many_donors(void **state)
{
    struct mu_state_fetch_config config = fetch_config(10);
    struct mu_state_ask_request request;
    struct fetch_rig w;
    uint32_t donor;

    (void)state;
    config.donors_max = 2;
    fetch_open_with(&w, &config);
    donor = fetch_add_full(&w, "a");
    (void)fetch_add_full(&w, "b");
    /* Those that were given up count, too. */
    mu_state_fetch_lost(&w.f, w.now, donor, MUSTER_EPROTO, "nonsense");
    assert_int_equal(fetch_account(&w, donor).state, MU_STATE_DONOR_GIVEN_UP);
    assert_int_equal(mu_state_fetch_add(&w.f, w.now, MU_SPAN_LIT("c"), &donor), MUSTER_ELIMIT);
    assert_int_equal(mu_state_fetch_donor_count(&w.f), 2);
    assert_true(fetch_ask_all(&w, &request) > 0);
    mu_state_fetch_fini(&w.f);
}

static void test_state_fetch_a_donor_owes_so_much_at_a_time(void **state)
{
    struct mu_state_fetch_config config = fetch_config(200);
    struct mu_state_ask_request request;
    struct fetch_rig w;
    uint32_t most = 0;
    uint32_t donor;

    (void)state;
    config.in_flight_max = 7; /* It is far, and could owe more. */
    fetch_open_with(&w, &config);
    donor = fetch_add_full(&w, "a");
    while (mu_state_fetch_status(&w.f) == MU_STATE_FETCH_RUNNING) {
        uint32_t owed;

        (void)fetch_ask_all(&w, &request);
        owed = fetch_account(&w, donor).in_flight;
        most = owed > most ? owed : most;
        fetch_sleep_ms(&w, 100);
        while (owed-- != 0) {
            fetch_answer(&w, donor, true);
            (void)fetch_pull(&w, MU_STATE_FETCH_EV_HAVE);
        }
    }
    assert_int_equal(most, 7);
    mu_state_fetch_fini(&w.f);
}

/* A donor that wants us back in a month is asked again after an hour: BUSY_MS_MAX of
 * proto/state/fetch_donor.c. */
static void test_state_fetch_a_busy_donor_cannot_send_us_away_for_long(void **state)
{
    struct mu_state_fetch_config config = fetch_config(10);
    struct fetch_rig w;
    uint32_t donor;

    (void)state;
    config.idle_ms = 0;
    fetch_open_with(&w, &config);
    assert_int_equal(mu_state_fetch_add(&w.f, w.now, MU_SPAN_LIT("a"), &donor), 0);
    (void)fetch_pull(&w, MU_STATE_FETCH_EV_OPEN);
    mu_state_fetch_busy(&w.f, w.now, donor, UINT32_MAX);
    fetch_sleep_ms(&w, 3600000 / 4 * 3 - 1);
    assert_int_equal(fetch_pull(&w, MU_STATE_FETCH_EV_OPEN), 0);
    fetch_sleep_ms(&w, 3600000 / 2 + 1);
    assert_int_equal(fetch_pull(&w, MU_STATE_FETCH_EV_OPEN), 1);
    mu_state_fetch_fini(&w.f);
}

static void test_state_fetch_cuts_a_long_name_of_a_donor(void **state)
{
    char name[MU_STATE_DONOR_NAME_MAX + 2];
    struct fetch_rig w;
    uint32_t donor;

    (void)state;
    memset(name, 'n', sizeof(name));
    fetch_open(&w, 10);
    assert_int_equal(mu_state_fetch_add(&w.f, w.now, mu_span(name, sizeof(name)), &donor), 0);
    assert_int_equal(strlen(fetch_account(&w, donor).name), MU_STATE_DONOR_NAME_MAX);
    mu_state_fetch_fini(&w.f);
}

/* Each rest is drawn from a quarter less to a quarter more. */
static void test_state_fetch_a_donor_rests_longer_each_time_up_to_a_bound(void **state)
{
    static const uint64_t rests_ms[] = {100, 200, 400, 500, 500};
    struct mu_state_fetch_config config = fetch_config(10);
    struct fetch_rig w;
    uint32_t donor;

    (void)state;
    config.rest_ms = 100;
    config.rest_ms_max = 500;
    fetch_open_with(&w, &config);
    assert_int_equal(mu_state_fetch_add(&w.f, w.now, MU_SPAN_LIT("a"), &donor), 0);
    (void)fetch_pull(&w, MU_STATE_FETCH_EV_OPEN);
    for (size_t i = 0; i < sizeof(rests_ms) / sizeof(rests_ms[0]); i++) {
        mu_state_fetch_lost(&w.f, w.now, donor, MUSTER_ECONN, NULL);
        (void)fetch_pull(&w, MU_STATE_FETCH_EV_OPEN);
        fetch_sleep_ms(&w, rests_ms[i] * 3 / 4 - 1);
        assert_int_equal(fetch_pull(&w, MU_STATE_FETCH_EV_OPEN), 0);
        fetch_sleep_ms(&w, rests_ms[i] / 2 + 1);
        assert_int_equal(fetch_pull(&w, MU_STATE_FETCH_EV_OPEN), 1);
    }
    mu_state_fetch_fini(&w.f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_state_fetch_bans_who_sends_a_bad_chunk),
        cmocka_unit_test(test_state_fetch_keeps_what_a_lost_donor_sent_whole),
        cmocka_unit_test(test_state_fetch_drops_who_says_nothing),
        cmocka_unit_test(test_state_fetch_forgives_silence_while_we_were_away),
        cmocka_unit_test(test_state_fetch_gives_up_a_donor_that_fails_again_and_again),
        cmocka_unit_test(test_state_fetch_does_not_return_to_who_has_it_no_more),
        cmocka_unit_test(test_state_fetch_fails_though_no_donor_said_why),
        cmocka_unit_test(test_state_fetch_returns_to_a_busy_donor_when_it_said),
        cmocka_unit_test(test_state_fetch_gives_up_who_never_has_what_it_says),
        cmocka_unit_test(test_state_fetch_knows_so_many_donors),
        cmocka_unit_test(test_state_fetch_a_donor_owes_so_much_at_a_time),
        cmocka_unit_test(test_state_fetch_a_busy_donor_cannot_send_us_away_for_long),
        cmocka_unit_test(test_state_fetch_cuts_a_long_name_of_a_donor),
        cmocka_unit_test(test_state_fetch_a_donor_rests_longer_each_time_up_to_a_bound),
    };

    return cmocka_run_group_tests_name("state_fetch", tests, NULL, NULL);
}
