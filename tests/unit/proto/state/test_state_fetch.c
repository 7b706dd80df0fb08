/*
 * The scheduler of a download: what is asked of whom, and when. Donors that are no good are in
 * test_state_fetch_donors.c, the storms in test_state_fetch_model.c; sim/scenarios/state/state.c
 * has them with real donors.
 */
#include "failheap.h"
#include "fetch_rig.h"

static void test_state_fetch_asks_for_each_chunk_once_and_is_done(void **state)
{
    struct mu_state_ask_request request;
    struct fetch_rig w;
    uint8_t asked[4] = {0};
    uint32_t donor;
    uint32_t count = 0;

    (void)state;
    fetch_open(&w, 30);
    donor = fetch_add_full(&w, "a");
    while (mu_state_fetch_status(&w.f) == MU_STATE_FETCH_RUNNING) {
        while (mu_state_fetch_next(&w.f, w.now, &request)) {
            assert_int_equal(request.donor, donor);
            assert_int_equal(request.spare, MU_STATE_NO_SPARE);
            assert_false(mu_state_bit(asked, request.chunk));
            mu_state_bit_set(asked, request.chunk);
            count++;
        }
        assert_true(fetch_account(&w, donor).in_flight != 0);
        fetch_sleep_ms(&w, 1);
        fetch_answer(&w, donor, true);
        assert_int_equal(fetch_pull(&w, MU_STATE_FETCH_EV_HAVE), 1);
    }
    assert_int_equal(count, 30);
    assert_int_equal(mu_state_fetch_status(&w.f), MU_STATE_FETCH_DONE);
    assert_int_equal(mu_state_fetch_bytes_done(&w.f), 29 * CHUNK + 100);
    assert_int_equal(mu_state_fetch_bytes_wasted(&w.f), 0);
    assert_int_equal(fetch_account(&w, donor).chunks, 30);
    assert_true(fetch_account(&w, donor).bytes_per_s > 0);
    mu_state_fetch_fini(&w.f);
}

static void test_state_fetch_goes_on_where_it_was(void **state)
{
    struct mu_state_fetch_config config = fetch_config(20);
    struct mu_state_ask_request request;
    uint8_t have[3] = {0xff, 0xff, 0x07};
    struct fetch_rig w;

    (void)state;
    config.have = have;
    fetch_open_with(&w, &config);
    assert_int_equal(mu_state_fetch_chunks_done(&w.f), 19);
    (void)fetch_add_full(&w, "a");
    assert_int_equal(fetch_ask_all(&w, &request), 1);
    assert_int_equal(request.chunk, 19);
    mu_state_fetch_fini(&w.f);

    have[2] = 0x0f;
    fetch_open_with(&w, &config);
    assert_int_equal(mu_state_fetch_status(&w.f), MU_STATE_FETCH_DONE);
    assert_int_equal(fetch_pull(&w, MU_STATE_FETCH_EV_END), 1);
    assert_int_equal(w.last.status, 0);
    assert_true(mu_state_fetch_deadline(&w.f).ns == UINT64_MAX);
    mu_state_fetch_fini(&w.f);

    fetch_open(&w, 0);
    assert_int_equal(mu_state_fetch_status(&w.f), MU_STATE_FETCH_DONE);
    mu_state_fetch_fini(&w.f);
}

static void test_state_fetch_asks_more_of_the_quicker_one(void **state)
{
    struct mu_state_ask_request request;
    struct fetch_rig w;
    uint32_t quick;
    uint32_t slow;

    (void)state;
    fetch_open(&w, 400);
    quick = fetch_add_full(&w, "quick");
    slow = fetch_add_full(&w, "slow");
    for (int i = 0; i < 4000 && mu_state_fetch_status(&w.f) == MU_STATE_FETCH_RUNNING; i++) {
        (void)fetch_ask_all(&w, &request);
        fetch_sleep_ms(&w, 10);
        if (fetch_account(&w, quick).in_flight != 0) {
            fetch_answer(&w, quick, true);
        }
        if (i % 8 == 7 && fetch_account(&w, slow).in_flight != 0) {
            fetch_answer(&w, slow, true);
        }
        (void)fetch_pull(&w, MU_STATE_FETCH_EV_HAVE);
    }
    assert_int_equal(mu_state_fetch_status(&w.f), MU_STATE_FETCH_DONE);
    assert_in_range(fetch_account(&w, quick).chunks, 340, 370);
    assert_in_range(fetch_account(&w, slow).chunks, 30, 60);
    mu_state_fetch_fini(&w.f);
}

static void test_state_fetch_sizes_what_is_under_way_by_pace_and_latency(void **state)
{
    struct mu_state_ask_request request;
    mu_mono_t due[64];
    struct fetch_rig w;
    uint32_t head = 0;
    uint32_t tail = 0;
    uint32_t donor;
    uint32_t most = 0;

    (void)state;
    /* Answers come 100 ms after they were asked for, however many. */
    fetch_open(&w, 2000);
    donor = fetch_add_full(&w, "far");
    while (mu_state_fetch_status(&w.f) == MU_STATE_FETCH_RUNNING && w.now.ns < 20 * MU_NS_PER_S) {
        while (mu_state_fetch_next(&w.f, w.now, &request)) {
            due[tail++ % 64] = mu_mono_add_ms(w.now, 100);
        }
        most =
            fetch_account(&w, donor).in_flight > most ? fetch_account(&w, donor).in_flight : most;
        fetch_sleep_ms(&w, 1);
        while (head < tail && mu_mono_reached(due[head % 64], w.now)) {
            fetch_answer(&w, donor, true);
            (void)fetch_pull(&w, MU_STATE_FETCH_EV_HAVE);
            head++;
        }
    }
    assert_int_equal(mu_state_fetch_status(&w.f), MU_STATE_FETCH_DONE);
    assert_int_equal(most, 32);
    mu_state_fetch_fini(&w.f);

    /* One that answers at once has no use for a long queue. */
    fetch_open(&w, 200);
    donor = fetch_add_full(&w, "near");
    most = 0;
    while (mu_state_fetch_status(&w.f) == MU_STATE_FETCH_RUNNING) {
        (void)fetch_ask_all(&w, &request);
        most =
            fetch_account(&w, donor).in_flight > most ? fetch_account(&w, donor).in_flight : most;
        fetch_sleep_ms(&w, 1);
        fetch_answer(&w, donor, true);
        (void)fetch_pull(&w, MU_STATE_FETCH_EV_HAVE);
    }
    assert_in_range(most, 2, 6);
    mu_state_fetch_fini(&w.f);
}

static void test_state_fetch_asks_a_second_one_for_the_last_chunks(void **state)
{
    struct mu_state_ask_request request;
    struct mu_state_ask_request owed;
    struct fetch_rig w;
    uint32_t stuck;
    uint32_t other;
    bool revoked;

    (void)state;
    fetch_open(&w, 2);
    stuck = fetch_add_full(&w, "stuck");
    assert_int_equal(fetch_ask_all(&w, &request), 2);
    other = fetch_add_full(&w, "other");

    assert_int_equal(fetch_ask_all(&w, &request), 2);
    assert_int_equal(request.donor, other);
    assert_int_not_equal(request.spare, MU_STATE_NO_SPARE);
    assert_true(mu_state_fetch_owes(&w.f, other, &owed, &revoked));

    fetch_sleep_ms(&w, 1);
    assert_int_equal(mu_state_fetch_received(&w.f, w.now, other, owed.chunk),
                     MU_STATE_FETCH_VERIFY);
    mu_state_fetch_verified(&w.f, w.now, other, owed.chunk, true);
    {
        struct mu_state_fetch_event event;

        /* First nobody may land there any more, then it is put there. */
        assert_true(mu_state_fetch_next_event(&w.f, &event));
        assert_int_equal(event.type, MU_STATE_FETCH_EV_REVOKE);
        assert_int_equal(event.donor, stuck);
        assert_int_equal(event.spare, MU_STATE_NO_SPARE);
        assert_true(mu_state_fetch_next_event(&w.f, &event));
        assert_int_equal(event.type, MU_STATE_FETCH_EV_HAVE);
        assert_int_equal(event.chunk, owed.chunk);
        assert_int_equal(event.spare, owed.spare);
    }
    /* What was revoked still comes, and is for nothing. */
    assert_true(mu_state_fetch_owes(&w.f, stuck, &owed, &revoked));
    assert_true(revoked);
    assert_int_equal(mu_state_fetch_received(&w.f, w.now, stuck, owed.chunk),
                     MU_STATE_FETCH_DISCARD);
    assert_int_equal(fetch_account(&w, stuck).duplicates, 1);
    assert_true(mu_state_fetch_bytes_wasted(&w.f) != 0);
    mu_state_fetch_fini(&w.f);
}

static void test_state_fetch_hashes_only_the_first_of_two_answers(void **state)
{
    struct mu_state_ask_request request;
    struct fetch_rig w;
    uint32_t a;
    uint32_t b;

    (void)state;
    fetch_open(&w, 1);
    a = fetch_add_full(&w, "a");
    assert_int_equal(fetch_ask_all(&w, &request), 1);
    b = fetch_add_full(&w, "b");
    assert_int_equal(fetch_ask_all(&w, &request), 1);
    assert_int_equal(request.donor, b);

    assert_int_equal(mu_state_fetch_received(&w.f, w.now, a, 0), MU_STATE_FETCH_VERIFY);
    assert_int_equal(mu_state_fetch_received(&w.f, w.now, b, 0), MU_STATE_FETCH_DISCARD);
    /* While it is hashed in its place, nobody is asked for it. */
    assert_int_equal(fetch_ask_all(&w, &request), 0);
    mu_state_fetch_verified(&w.f, w.now, a, 0, false);
    assert_int_equal(fetch_pull(&w, MU_STATE_FETCH_EV_BAN), 1);
    assert_int_equal(fetch_ask_all(&w, &request), 1);
    assert_int_equal(request.donor, b);
    assert_int_equal(request.spare, MU_STATE_NO_SPARE);
    mu_state_fetch_fini(&w.f);
}

static void test_state_fetch_asks_partial_donors_for_what_is_rare(void **state)
{
    struct mu_state_ask_request request;
    struct fetch_rig w;
    uint8_t most[2] = {0xff, 0x00};
    uint8_t some[2] = {0xff, 0x01};
    uint32_t donor;

    (void)state;
    fetch_open(&w, 16);
    for (int i = 0; i < 3; i++) {
        donor = fetch_add_donor(&w, "common");
        assert_int_equal(mu_state_fetch_have(&w.f, w.now, donor, most), 0);
        mu_state_fetch_lost(&w.f, w.now, donor, MUSTER_ECONN, "");
    }
    /* These three have gone; two others are there, and one chunk only one of them has. */
    donor = fetch_add_donor(&w, "a");
    assert_int_equal(mu_state_fetch_have(&w.f, w.now, donor, most), 0);
    mu_state_fetch_refuse(&w.f, &(struct mu_state_ask_request){donor, 0, MU_STATE_NO_SPARE});
    donor = fetch_add_donor(&w, "b");
    assert_int_equal(mu_state_fetch_have(&w.f, w.now, donor, some), 0);
    for (;;) {
        assert_true(mu_state_fetch_next(&w.f, w.now, &request));
        if (request.donor == donor) {
            break;
        }
    }
    assert_int_equal(request.chunk, 8);
    mu_state_fetch_fini(&w.f);
}

static void test_state_fetch_asks_the_full_one_for_what_newcomers_lack(void **state)
{
    struct mu_state_ask_request request;
    struct fetch_rig w;
    uint8_t first_half[2] = {0xff, 0x00};
    uint32_t donor;

    (void)state;
    fetch_open(&w, 16);
    donor = fetch_add_donor(&w, "newcomer");
    assert_int_equal(mu_state_fetch_have(&w.f, w.now, donor, first_half), 0);
    donor = fetch_add_full(&w, "full");
    for (int i = 0; i < 8; i++) {
        assert_true(mu_state_fetch_next(&w.f, w.now, &request));
        assert_true(request.donor == donor ? request.chunk >= 8 : request.chunk < 8);
    }
    mu_state_fetch_fini(&w.f);
}

/* What a newcomer asks of the one who has all, while somebody else says to have `first` to
 * `end`. */
static uint32_t first_asked(struct fetch_rig *w, uint32_t part, uint32_t parts, uint32_t first,
                            uint32_t end)
{
    struct mu_state_ask_request request;
    uint32_t full = fetch_add_full(w, "a");
    uint32_t newcomer = fetch_add_donor(w, "b");
    uint8_t bits[64 / 8] = {0};

    for (uint32_t i = first; i < end; i++) {
        mu_state_bit_set(bits, i);
    }
    assert_int_equal(mu_state_fetch_have(&w->f, w->now, newcomer, bits), 0);
    mu_state_fetch_part(&w->f, full, part, parts);
    do {
        assert_true(mu_state_fetch_next(&w->f, w->now, &request));
    } while (request.donor != full);
    return request.chunk;
}

static void test_state_fetch_begins_with_its_own_part(void **state)
{
    struct fetch_rig w;

    (void)state;
    for (uint32_t part = 0; part < 4; part++) {
        fetch_open(&w, 64);
        assert_int_equal(first_asked(&w, part, 4, 0, 0), part * 16);
        mu_state_fetch_fini(&w.f);
    }
    /* What somebody has who is loading too is to be had there. */
    fetch_open(&w, 64);
    assert_int_equal(first_asked(&w, 1, 4, 12, 20), 20);
    mu_state_fetch_fini(&w.f);
    /* A part that there is not is none. */
    fetch_open(&w, 64);
    assert_in_range(first_asked(&w, 9, 4, 0, 63), 63, 63);
    mu_state_fetch_fini(&w.f);
}

/* Where the other one is there is nothing to be had: it asks for the next itself. */
static void test_state_fetch_does_not_follow_close_behind_another_newcomer(void **state)
{
    struct mu_state_fetch_config config = fetch_config(64);
    uint32_t behind = 0;

    (void)state;
    for (uint32_t seed = 0; seed < 64; seed++) {
        struct fetch_rig w;

        config.seed = seed;
        fetch_open_with(&w, &config);
        behind += first_asked(&w, 0, 2, 0, 40) == 40 ? 1 : 0;
        mu_state_fetch_fini(&w.f);
    }
    /* One of 24 by chance. */
    assert_in_range(behind, 0, 20);
}

static void test_state_fetch_learns_what_a_partial_donor_has_by_and_by(void **state)
{
    struct mu_state_ask_request request;
    struct fetch_rig w;
    uint8_t bits[2] = {0};
    uint32_t donor;

    (void)state;
    fetch_open(&w, 16);
    donor = fetch_add_donor(&w, "a");
    assert_int_equal(fetch_ask_all(&w, &request), 0);
    mu_state_fetch_tick(&w.f, w.now);
    assert_int_equal(fetch_pull(&w, MU_STATE_FETCH_EV_ASK_HAVE), 1);
    assert_int_equal(w.last.donor, donor);
    assert_int_equal(mu_state_fetch_have(&w.f, w.now, donor, bits), 0);
    assert_int_equal(fetch_ask_all(&w, &request), 0);
    fetch_sleep_ms(&w, 199);
    assert_int_equal(fetch_pull(&w, MU_STATE_FETCH_EV_ASK_HAVE), 0);
    fetch_sleep_ms(&w, 1);
    assert_int_equal(fetch_pull(&w, MU_STATE_FETCH_EV_ASK_HAVE), 1);
    mu_state_bit_set(bits, 5);
    assert_int_equal(mu_state_fetch_have(&w.f, w.now, donor, bits), 0);
    assert_int_equal(fetch_ask_all(&w, &request), 1);
    assert_int_equal(request.chunk, 5);

    /* It does not have it after all; it is not asked for that again before it says so. */
    assert_false(mu_state_fetch_absent(&w.f, w.now, donor, 4));
    assert_true(mu_state_fetch_absent(&w.f, w.now, donor, 5));
    assert_int_equal(fetch_ask_all(&w, &request), 0);
    assert_int_equal(fetch_account(&w, donor).absent, 1);
    mu_state_fetch_fini(&w.f);
}

static void test_state_fetch_ends_at_its_deadlines(void **state)
{
    struct mu_state_fetch_config config = fetch_config(10);
    struct mu_state_ask_request request;
    struct fetch_rig w;

    (void)state;
    config.deadline = (mu_mono_t){10 * MU_NS_PER_S};
    config.idle_ms = 3000;
    fetch_open_with(&w, &config);
    assert_int_equal(mu_state_fetch_deadline(&w.f).ns, 4 * MU_NS_PER_S);
    fetch_sleep_ms(&w, 2999);
    assert_int_equal(mu_state_fetch_status(&w.f), MU_STATE_FETCH_RUNNING);
    fetch_sleep_ms(&w, 1);
    assert_int_equal(mu_state_fetch_status(&w.f), MU_STATE_FETCH_FAILED);
    assert_int_equal(fetch_pull(&w, MU_STATE_FETCH_EV_END), 1);
    assert_int_equal(w.last.status, MUSTER_ETIMEDOUT);
    assert_non_null(strstr(w.last.text, "no donor sent anything for 3000 ms"));
    mu_state_fetch_fini(&w.f);

    /* With a chunk every two seconds it is the other one. */
    fetch_open_with(&w, &config);
    (void)fetch_add_full(&w, "a");
    for (int i = 0; i < 5; i++) {
        (void)fetch_ask_all(&w, &request);
        fetch_sleep_ms(&w, 2000);
        (void)fetch_pull(&w, MU_STATE_FETCH_EV_DROP);
        if (mu_state_fetch_status(&w.f) == MU_STATE_FETCH_RUNNING) {
            fetch_answer(&w, 0, true);
        }
        (void)fetch_pull(&w, MU_STATE_FETCH_EV_HAVE);
    }
    assert_int_equal(mu_state_fetch_status(&w.f), MU_STATE_FETCH_FAILED);
    assert_non_null(strstr(mu_state_fetch_errmsg(&w.f), "6 of 10 chunks are missing"));
    mu_state_fetch_fini(&w.f);
}

static void test_state_fetch_can_be_canceled(void **state)
{
    struct mu_state_ask_request request;
    struct fetch_rig w;
    uint32_t donor;
    bool revoked;

    (void)state;
    fetch_open(&w, 10);
    donor = fetch_add_full(&w, "a");
    (void)fetch_ask_all(&w, &request);
    assert_true(mu_state_fetch_owes(&w.f, donor, &request, &revoked));
    assert_int_equal(mu_state_fetch_received(&w.f, w.now, donor, request.chunk),
                     MU_STATE_FETCH_VERIFY);
    mu_state_fetch_cancel(&w.f);
    mu_state_fetch_cancel(&w.f);
    assert_int_equal(fetch_pull(&w, MU_STATE_FETCH_EV_END), 1);
    assert_int_equal(w.last.status, MUSTER_ECANCELED);
    /* A hash that was under way comes to nothing. */
    mu_state_fetch_verified(&w.f, w.now, donor, request.chunk, true);
    assert_int_equal(mu_state_fetch_chunks_done(&w.f), 0);
    assert_int_equal(fetch_ask_all(&w, &request), 0);
    assert_int_equal(mu_state_fetch_add(&w.f, w.now, MU_SPAN_LIT("b"), &donor), MUSTER_ECLOSED);
    mu_state_fetch_fini(&w.f);
}

static void test_state_fetch_takes_a_refused_ask_back(void **state)
{
    struct mu_state_ask_request request;
    struct mu_state_ask_request again;
    struct fetch_rig w;

    (void)state;
    fetch_open(&w, 10);
    (void)fetch_add_full(&w, "a");
    assert_true(mu_state_fetch_next(&w.f, w.now, &request));
    mu_state_fetch_refuse(&w.f, &request);
    assert_false(mu_state_fetch_next(&w.f, w.now, &again));
    mu_state_fetch_resume(&w.f, request.donor);
    assert_int_equal(fetch_ask_all(&w, &again), 4);
    mu_state_fetch_fini(&w.f);
}

static void test_state_fetch_takes_no_answer_that_was_not_asked_for(void **state)
{
    struct mu_state_ask_request request;
    struct fetch_rig w;
    uint32_t donor;

    (void)state;
    fetch_open(&w, 10);
    donor = fetch_add_full(&w, "a");
    assert_int_equal(mu_state_fetch_received(&w.f, w.now, donor, 3), MU_STATE_FETCH_NOT_ASKED);
    (void)fetch_ask_all(&w, &request);
    /* Not the one that it owes next. */
    assert_int_equal(mu_state_fetch_received(&w.f, w.now, donor, request.chunk),
                     MU_STATE_FETCH_NOT_ASKED);
    mu_state_fetch_verified(&w.f, w.now, donor, request.chunk, true);
    assert_int_equal(mu_state_fetch_chunks_done(&w.f), 0);
    mu_state_fetch_fini(&w.f);
}

static void test_state_fetch_reports_what_each_donor_did(void **state)
{
    struct mu_state_ask_request request;
    struct mu_buf out;
    struct fetch_rig w;
    uint32_t a;
    uint32_t b;
    uint32_t c;

    (void)state;
    fetch_open(&w, 100);
    a = fetch_add_full(&w, "10.0.0.1:7777");
    b = fetch_add_full(&w, "10.0.0.2:7777");
    c = fetch_add_full(&w, "10.0.0.3:7777");
    (void)fetch_ask_all(&w, &request);
    fetch_answer(&w, a, true);
    fetch_answer(&w, b, false);
    mu_state_fetch_lost(&w.f, w.now, c, MUSTER_EPROTO, "said nonsense");
    mu_buf_init(&out, 4096);
    assert_int_equal(mu_state_fetch_report(&w.f, &out), 0);
    assert_int_equal(mu_buf_append(&out, mu_span("", 1)), 0);
    assert_non_null(strstr((char *)out.data, "10.0.0.1:7777: 1 chunks, 0.0 MiB\n"));
    assert_non_null(strstr((char *)out.data, "10.0.0.2:7777: 0 chunks, 0.0 MiB, 1 bad; banned: "
                                             "chunk "));
    assert_non_null(
        strstr((char *)out.data, "10.0.0.3:7777: 0 chunks, 0.0 MiB; given up: said nonsense\n"));
    mu_buf_fini(&out);
    mu_state_fetch_fini(&w.f);
}

static void test_state_fetch_survives_every_failing_allocation(void **state)
{
    struct mu_state_fetch_config config = fetch_config(100);
    uint8_t bits[13] = {0x55};
    bool fired = true;

    (void)state;
    for (long nth = 0; fired; nth++) {
        struct mu_state_ask_request request;
        struct mu_state_fetch_event event;
        struct mu_state_fetch f;
        mu_mono_t now = {MU_NS_PER_S};
        uint32_t donor;
        int err;

        failheap_arm(nth);
        err = mu_state_fetch_init(&f, &config, now);
        if (err == 0) {
            err = mu_state_fetch_add(&f, now, MU_SPAN_LIT("a"), &donor);
            while (mu_state_fetch_next_event(&f, &event)) {
            }
            if (err == 0) {
                mu_state_fetch_ready(&f, now, donor);
                err = mu_state_fetch_have(&f, now, donor, bits);
                err = err == 0 ? mu_state_fetch_have(&f, now, donor, NULL) : err;
            }
            if (err == 0 && mu_state_fetch_next(&f, now, &request)) {
                (void)mu_state_fetch_absent(&f, now, donor, request.chunk);
            }
        }
        fired = failheap_fired();
        failheap_disarm();
        assert_true(err == 0 || (fired && err == MUSTER_ENOMEM));
        mu_state_fetch_fini(&f);
    }
}

static void test_state_fetch_refuses_a_config_that_cannot_be(void **state)
{
    struct mu_state_fetch_config config = fetch_config(10);
    struct mu_state_fetch f;
    mu_mono_t now = {1};

    (void)state;
    config.last_bytes = CHUNK + 1;
    assert_int_equal(mu_state_fetch_init(&f, &config, now), MUSTER_EINVAL);
    config = fetch_config(10);
    config.last_bytes = 0;
    assert_int_equal(mu_state_fetch_init(&f, &config, now), MUSTER_EINVAL);
    config = fetch_config(10);
    config.asks_max = 0;
    assert_int_equal(mu_state_fetch_init(&f, &config, now), MUSTER_EINVAL);
    config = fetch_config(UINT32_MAX);
    assert_int_equal(mu_state_fetch_init(&f, &config, now), MUSTER_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_state_fetch_asks_for_each_chunk_once_and_is_done),
        cmocka_unit_test(test_state_fetch_goes_on_where_it_was),
        cmocka_unit_test(test_state_fetch_asks_more_of_the_quicker_one),
        cmocka_unit_test(test_state_fetch_sizes_what_is_under_way_by_pace_and_latency),
        cmocka_unit_test(test_state_fetch_asks_a_second_one_for_the_last_chunks),
        cmocka_unit_test(test_state_fetch_hashes_only_the_first_of_two_answers),
        cmocka_unit_test(test_state_fetch_asks_partial_donors_for_what_is_rare),
        cmocka_unit_test(test_state_fetch_asks_the_full_one_for_what_newcomers_lack),
        cmocka_unit_test(test_state_fetch_begins_with_its_own_part),
        cmocka_unit_test(test_state_fetch_does_not_follow_close_behind_another_newcomer),
        cmocka_unit_test(test_state_fetch_learns_what_a_partial_donor_has_by_and_by),
        cmocka_unit_test(test_state_fetch_ends_at_its_deadlines),
        cmocka_unit_test(test_state_fetch_can_be_canceled),
        cmocka_unit_test(test_state_fetch_takes_a_refused_ask_back),
        cmocka_unit_test(test_state_fetch_takes_no_answer_that_was_not_asked_for),
        cmocka_unit_test(test_state_fetch_reports_what_each_donor_did),
        cmocka_unit_test(test_state_fetch_survives_every_failing_allocation),
        cmocka_unit_test(test_state_fetch_refuses_a_config_that_cannot_be),
    };

    return cmocka_run_group_tests_name("state_fetch", tests, NULL, NULL);
}
