/* Which donor is asked, for how long, and what becomes of those who fail; in virtual time. */
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>

#include "codec/dht/dict.h"
#include "codec/bin/msgpack.h"
#include "core/alloc.h"
#include "failheap.h"
#include "hex.h"
#include "proto/state/hm_download.h"

#define START_S 1647814000
#define FIRST                                                                                      \
    "0a0881a565706f636805 1221 0a100000803f000000c00000003f00004040 12020202 "                     \
    "2207666c6f61743332 3001"
/* The same tensor in two chunks, of which this is one, with its metadata. */
#define HALF_1 "0a0881a565706f636805 1219 0a080000803f000000c0 12020202 2207666c6f61743332 3002"
#define HALF_2 "120a 0a080000003f00004040"

struct world {
    struct mu_hm_download d;
    struct mu_now now;
    struct mu_buf dict;
    struct mu_buf entries;
    size_t count;
};

static struct world w;

static struct mu_peer_id peer(uint8_t n)
{
    struct mu_peer_id id = {.len = 34, .bytes = {0x12, 0x20}};

    memset(id.bytes + 2, n, 32);
    return id;
}

/* An entry of a donor, or of one who has stopped sharing. */
static void announce(uint8_t n, double priority, bool shares, double expires_s)
{
    struct mu_peer_id id = peer(n);
    struct mu_buf s, v;
    struct mu_mp_out out;
    struct mu_dht_entry entry;

    mu_buf_init(&s, 64);
    mu_buf_init(&v, 64);
    out = mu_mp_out(&s);
    mu_mp_put_bin(&out, mu_peer_id_span(&id));
    out = mu_mp_out(&v);
    if (shares) {
        mu_mp_put_double(&out, priority);
    } else {
        mu_mp_put_nil(&out);
    }
    entry = (struct mu_dht_entry){mu_buf_span(&s), mu_buf_span(&v), START_S + expires_s};
    assert_int_equal(mu_dht_dict_put(&w.entries, &entry), 0);
    w.count++;
    mu_buf_fini(&s);
    mu_buf_fini(&v);
}

static void begin_with(uint64_t seed, uint64_t epoch_min)
{
    struct mu_hm_download_config config = mu_hm_download_config_defaults();

    memset(&w, 0, sizeof(w));
    mu_buf_init(&w.dict, 1 << 20);
    mu_buf_init(&w.entries, 1 << 20);
    w.now.mono.ns = 1000 * MU_NS_PER_S;
    w.now.wall.ns = START_S * MU_NS_PER_S;
    config.self = peer(1);
    config.seed = seed;
    config.epoch_wanted = epoch_min != 0;
    config.epoch_min = epoch_min;
    mu_hm_download_init(&w.d, &config, w.now);
}

static void begin(void)
{
    begin_with(1, 0);
}

static void end(void)
{
    mu_hm_download_fini(&w.d);
    mu_buf_fini(&w.dict);
    mu_buf_fini(&w.entries);
}

/* Expects an event, and gives its number. */
static uint64_t expect(enum mu_hm_download_event_type type, uint8_t who)
{
    struct mu_hm_download_event e;
    struct mu_peer_id id = peer(who);

    assert_true(mu_hm_download_next_event(&w.d, &e));
    assert_int_equal(e.type, type);
    if (type == MU_HM_DOWNLOAD_OPEN && who != 0) {
        assert_true(mu_peer_id_eq(&e.peer, &id));
    }
    return e.number;
}

static void expect_nothing(void)
{
    struct mu_hm_download_event e;

    assert_false(mu_hm_download_next_event(&w.d, &e));
}

static void found(void)
{
    expect(MU_HM_DOWNLOAD_FIND, 0);
    expect_nothing();
    assert_int_equal(mu_dht_dict_begin(&w.dict, START_S + 30, w.count, w.entries.len), 0);
    assert_int_equal(mu_buf_append(&w.dict, mu_buf_span(&w.entries)), 0);
    mu_hm_download_found(&w.d, w.now, 0, mu_buf_span(&w.dict));
}

static void item(uint64_t number, const char *hex)
{
    uint8_t bytes[128];

    mu_hm_download_item(&w.d, w.now, number, mu_span(bytes, hex_decode(bytes, sizeof(bytes), hex)));
}

static void pass_ms(uint64_t ms)
{
    w.now.mono = mu_mono_add_ms(w.now.mono, ms);
    w.now.wall.ns += ms * MU_NS_PER_MS;
    mu_hm_download_tick(&w.d, w.now);
}

static void take_from(uint8_t who)
{
    struct mu_hm_loaded loaded;
    struct mu_peer_id from;
    struct mu_peer_id wanted = peer(who);

    expect(MU_HM_DOWNLOAD_ENDED, 0);
    expect_nothing();
    assert_int_equal(mu_hm_download_status(&w.d), 0);
    mu_hm_download_take(&w.d, &loaded, &from);
    assert_true(mu_peer_id_eq(&from, &wanted));
    assert_int_equal(loaded.layout.count, 1);
    assert_int_equal(loaded.metadata.len, 8);
    mu_hm_loaded_fini(&loaded);
    assert_true(mu_hm_download_deadline(&w.d).ns == MU_MONO_NEVER.ns);
}

static void assert_reported(const char *words)
{
    struct mu_buf report;

    mu_buf_init(&report, 1 << 20);
    assert_int_equal(mu_hm_download_report(&w.d, &report), 0);
    assert_int_equal(mu_buf_append(&report, mu_span("", 1)), 0);
    if (strstr((const char *)report.data, words) == NULL) {
        fail_msg("not in the report: %s\n%s", words, (const char *)report.data);
    }
    mu_buf_fini(&report);
}

/* --- who is asked ----------------------------------------------------------------------------- */

static void test_hm_download_asks_by_priority_and_not_itself(void **state)
{
    uint64_t n;

    (void)state;
    begin();
    announce(1, 9000, true, 30); /* ourselves */
    announce(2, 3, true, 30);
    announce(3, 3933, true, 30);
    announce(4, 0, false, 30);              /* has stopped sharing */
    announce(5, 5000, true, -1);            /* is over */
    announce(6, __builtin_inf(), true, 30); /* says too much */
    announce(7, __builtin_nan(""), true, 30);
    found();
    n = expect(MU_HM_DOWNLOAD_OPEN, 3);
    expect_nothing();
    mu_hm_download_closed(&w.d, w.now, n, MUSTER_ECONN, "no way to it");
    n = expect(MU_HM_DOWNLOAD_OPEN, 2);
    item(n, FIRST);
    mu_hm_download_closed(&w.d, w.now, n, 0, "");
    take_from(2);
    assert_int_equal(w.d.donor_count, 2);
    assert_reported("priority 3933: no way to it (0 messages");
    assert_reported("priority 3: gave its state (1 messages, 16 bytes)");
    end();
}

static void test_hm_download_draws_lots_among_equals(void **state)
{
    unsigned seen = 0;

    (void)state;
    for (uint64_t seed = 0; seed < 64; seed++) {
        struct mu_hm_download_event e;

        begin_with(seed, 0);
        for (uint8_t i = 2; i < 6; i++) {
            announce(i, 7, true, 30);
        }
        found();
        assert_true(mu_hm_download_next_event(&w.d, &e));
        seen |= 1u << e.peer.bytes[2];
        end();
    }
    assert_int_equal(seen, 0x3c);
}

static void test_hm_download_without_donors_says_so(void **state)
{
    (void)state;
    begin();
    announce(1, 1, true, 30);
    found();
    expect(MU_HM_DOWNLOAD_ENDED, 0);
    assert_int_equal(mu_hm_download_status(&w.d), MUSTER_ENOENT);
    end();
    begin();
    expect(MU_HM_DOWNLOAD_FIND, 0);
    mu_hm_download_found(&w.d, w.now, 0, (struct mu_span){0});
    expect(MU_HM_DOWNLOAD_ENDED, 0);
    assert_int_equal(mu_hm_download_status(&w.d), MUSTER_ENOENT);
    end();
    begin();
    expect(MU_HM_DOWNLOAD_FIND, 0);
    mu_hm_download_found(&w.d, w.now, MUSTER_ETIMEDOUT, (struct mu_span){0});
    expect(MU_HM_DOWNLOAD_ENDED, 0);
    assert_int_equal(mu_hm_download_status(&w.d), MUSTER_ETIMEDOUT);
    assert_non_null(strstr(mu_hm_download_text(&w.d), "looked up"));
    end();
}

/* --- what goes wrong -------------------------------------------------------------------------- */

/* The metadata of the first must not become the second's state. */
static void test_hm_download_keeps_nothing_of_a_failed_donor(void **state)
{
    uint64_t n;

    (void)state;
    begin();
    announce(2, 2, true, 30);
    announce(3, 1, true, 30);
    found();
    n = expect(MU_HM_DOWNLOAD_OPEN, 2);
    item(n, HALF_1);
    mu_hm_download_closed(&w.d, w.now, n, 0, ""); /* cut off, as if it were whole */
    n = expect(MU_HM_DOWNLOAD_OPEN, 3);
    mu_hm_download_closed(&w.d, w.now, n, 0, ""); /* shares nothing */
    expect(MU_HM_DOWNLOAD_ENDED, 0);
    expect_nothing();
    assert_int_equal(mu_hm_download_status(&w.d), MUSTER_EREFUSED);
    assert_non_null(strstr(mu_hm_download_text(&w.d), "from 2 donors"));
    assert_reported("the stream ended early: tensor 0 has 1 of 2 chunks (1 messages, 8 bytes)");
    assert_reported("the donor does not share its state (0 messages");
    end();
}

static void test_hm_download_drops_a_donor_that_sends_nonsense(void **state)
{
    uint64_t n;

    (void)state;
    begin();
    announce(2, 2, true, 30);
    announce(3, 1, true, 30);
    found();
    n = expect(MU_HM_DOWNLOAD_OPEN, 2);
    item(n, HALF_1);
    item(n, HALF_1);
    assert_int_equal(expect(MU_HM_DOWNLOAD_DROP, 0), n);
    /* What still comes of it changes nothing. */
    item(n, HALF_2);
    mu_hm_download_closed(&w.d, w.now, n, 0, "");
    n = expect(MU_HM_DOWNLOAD_OPEN, 3);
    expect_nothing();
    item(n, HALF_1);
    item(n, HALF_2);
    mu_hm_download_closed(&w.d, w.now, n, 0, "");
    take_from(3);
    end();
}

static void test_hm_download_waits_for_each_message_so_long(void **state)
{
    uint64_t n;

    (void)state;
    begin();
    announce(2, 2, true, 3000);
    announce(3, 1, true, 3000);
    found();
    n = expect(MU_HM_DOWNLOAD_OPEN, 2);
    pass_ms(14999);
    item(n, HALF_1);
    pass_ms(14999);
    expect_nothing();
    assert_int_equal(mu_mono_until_ms(mu_hm_download_deadline(&w.d), w.now.mono), 1);
    pass_ms(1);
    assert_int_equal(expect(MU_HM_DOWNLOAD_DROP, 0), n);
    n = expect(MU_HM_DOWNLOAD_OPEN, 3);
    assert_reported("silent for 15000 ms after 1 messages");
    pass_ms(15000); /* not even opened */
    assert_int_equal(expect(MU_HM_DOWNLOAD_DROP, 0), n);
    expect(MU_HM_DOWNLOAD_ENDED, 0);
    assert_int_equal(mu_hm_download_status(&w.d), MUSTER_ETIMEDOUT);
    end();
}

/* A donor that drips, always just in time, does not outlast the whole. */
static void test_hm_download_ends_in_time_whatever_comes(void **state)
{
    uint64_t n;

    (void)state;
    begin();
    announce(2, 2, true, 3000);
    announce(3, 1, true, 3000);
    found();
    n = expect(MU_HM_DOWNLOAD_OPEN, 2);
    item(n, "0a0881a565706f636805");
    for (int i = 0; i < 59; i++) {
        pass_ms(10000);
        item(n, "0a0881a565706f636805");
        expect_nothing();
    }
    assert_int_equal(mu_mono_until_ms(mu_hm_download_deadline(&w.d), w.now.mono), 10000);
    pass_ms(10000);
    assert_int_equal(expect(MU_HM_DOWNLOAD_DROP, 0), n);
    expect(MU_HM_DOWNLOAD_ENDED, 0);
    expect_nothing();
    assert_int_equal(mu_hm_download_status(&w.d), MUSTER_ETIMEDOUT);
    assert_reported("the total time was over after 60 messages");
    assert_reported("not asked");
    end();
}

static void test_hm_download_ends_in_time_while_it_looks_for_donors(void **state)
{
    (void)state;
    begin();
    expect(MU_HM_DOWNLOAD_FIND, 0);
    pass_ms(599999);
    expect_nothing();
    pass_ms(1);
    expect(MU_HM_DOWNLOAD_ENDED, 0);
    assert_int_equal(mu_hm_download_status(&w.d), MUSTER_ETIMEDOUT);
    mu_hm_download_found(&w.d, w.now, 0, (struct mu_span){0});
    expect_nothing();
    end();
}

static void test_hm_download_takes_no_state_that_is_too_old(void **state)
{
    uint64_t n;

    (void)state;
    begin_with(1, 6);
    announce(2, 2, true, 30);
    found();
    n = expect(MU_HM_DOWNLOAD_OPEN, 2);
    item(n, FIRST);
    mu_hm_download_closed(&w.d, w.now, n, 0, "");
    expect(MU_HM_DOWNLOAD_ENDED, 0);
    assert_int_equal(mu_hm_download_status(&w.d), MUSTER_EINVAL);
    assert_non_null(strstr(mu_hm_download_text(&w.d), "of epoch 5, and 6 was wanted"));
    end();
}

static void test_hm_download_can_be_canceled(void **state)
{
    uint64_t n;

    (void)state;
    begin();
    announce(2, 2, true, 30);
    found();
    n = expect(MU_HM_DOWNLOAD_OPEN, 2);
    mu_hm_download_cancel(&w.d);
    assert_int_equal(expect(MU_HM_DOWNLOAD_DROP, 0), n);
    expect(MU_HM_DOWNLOAD_ENDED, 0);
    assert_int_equal(mu_hm_download_status(&w.d), MUSTER_ECANCELED);
    end();
    /* A call that was never made need not be dropped. */
    begin();
    announce(2, 2, true, 30);
    found();
    mu_hm_download_cancel(&w.d);
    expect(MU_HM_DOWNLOAD_ENDED, 0);
    expect_nothing();
    end();
}

/* A reason of our own ends it for all donors, and is told of the one whose turn it was. */
static void test_hm_download_can_fail_here(void **state)
{
    uint64_t n;

    (void)state;
    begin();
    announce(2, 2, true, 30);
    announce(3, 1, true, 30);
    found();
    n = expect(MU_HM_DOWNLOAD_OPEN, 2);
    mu_hm_download_fail(&w.d, MUSTER_EDISK, "the disk is full");
    assert_int_equal(expect(MU_HM_DOWNLOAD_DROP, 0), n);
    expect(MU_HM_DOWNLOAD_ENDED, 0);
    expect_nothing();
    assert_int_equal(mu_hm_download_status(&w.d), MUSTER_EDISK);
    assert_string_equal(mu_hm_download_text(&w.d), "the disk is full");
    assert_int_equal(w.d.donors[0].status, MUSTER_EDISK);
    assert_reported("priority 2: the disk is full");
    assert_reported("priority 1: not asked");
    end();
}

static void test_hm_download_survives_a_failing_heap(void **state)
{
    bool fired = true;

    (void)state;
    for (long nth = 0; fired; nth++) {
        struct mu_hm_download_event e;
        uint64_t n = 0;

        begin();
        announce(2, 2, true, 30);
        assert_int_equal(mu_dht_dict_begin(&w.dict, START_S + 30, w.count, w.entries.len), 0);
        assert_int_equal(mu_buf_append(&w.dict, mu_buf_span(&w.entries)), 0);
        expect(MU_HM_DOWNLOAD_FIND, 0);
        failheap_arm(nth);
        mu_hm_download_found(&w.d, w.now, 0, mu_buf_span(&w.dict));
        if (mu_hm_download_next_event(&w.d, &e) && e.type == MU_HM_DOWNLOAD_OPEN) {
            n = e.number;
            item(n, HALF_1);
            item(n, HALF_2);
            mu_hm_download_closed(&w.d, w.now, n, 0, "");
        }
        fired = failheap_fired();
        failheap_disarm();
        assert_int_equal(mu_hm_download_status(&w.d), fired ? MUSTER_ENOMEM : 0);
        end();
    }
}

static void test_hm_download_gives_so_many_donors_a_turn(void **state)
{
    (void)state;
    begin();
    w.d.config.donors_max = 2;
    announce(2, 1, true, 30);
    announce(3, 3, true, 30);
    announce(4, 2, true, 30);
    found();
    mu_hm_download_closed(&w.d, w.now, expect(MU_HM_DOWNLOAD_OPEN, 3), MUSTER_ECONN, "gone");
    mu_hm_download_closed(&w.d, w.now, expect(MU_HM_DOWNLOAD_OPEN, 4), MUSTER_ECONN, "gone");
    expect(MU_HM_DOWNLOAD_ENDED, 0); /* The one with the least priority has none. */
    assert_int_not_equal(mu_hm_download_status(&w.d), 0);
    assert_int_equal(w.d.donor_count, 2);
    end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hm_download_asks_by_priority_and_not_itself),
        cmocka_unit_test(test_hm_download_draws_lots_among_equals),
        cmocka_unit_test(test_hm_download_without_donors_says_so),
        cmocka_unit_test(test_hm_download_keeps_nothing_of_a_failed_donor),
        cmocka_unit_test(test_hm_download_drops_a_donor_that_sends_nonsense),
        cmocka_unit_test(test_hm_download_waits_for_each_message_so_long),
        cmocka_unit_test(test_hm_download_ends_in_time_whatever_comes),
        cmocka_unit_test(test_hm_download_ends_in_time_while_it_looks_for_donors),
        cmocka_unit_test(test_hm_download_takes_no_state_that_is_too_old),
        cmocka_unit_test(test_hm_download_can_be_canceled),
        cmocka_unit_test(test_hm_download_can_fail_here),
        cmocka_unit_test(test_hm_download_survives_a_failing_heap),
        cmocka_unit_test(test_hm_download_gives_so_many_donors_a_turn),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
