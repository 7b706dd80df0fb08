/* Where the swarm is, where we are, and who is believed. */
#include "unit.h"

#include <math.h>
#include <stdlib.h>

#include <muster/error.h>

#include "codec/dht/dict.h"
#include "codec/bin/msgpack.h"
#include "hex.h"
#include "proto/state/progress.h"

#define START_S 1000

struct world {
    struct mu_progress p;
    struct mu_now now;
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

static void begin(void)
{
    struct mu_progress_config config = mu_progress_config_defaults();

    memset(&w, 0, sizeof(w));
    mu_buf_init(&w.entries, 1 << 20);
    w.now.mono.ns = 5 * MU_NS_PER_S;
    w.now.wall.ns = START_S * MU_NS_PER_S;
    config.self = peer(1);
    config.target_batch_size = 1000;
    mu_progress_init(&w.p, &config, w.now);
}

static void end(void)
{
    mu_buf_fini(&w.entries);
}

static void pass_ms(uint64_t ms)
{
    w.now.mono = mu_mono_add_ms(w.now.mono, ms);
    w.now.wall.ns += ms * MU_NS_PER_MS;
}

static void put_value(uint8_t n, struct mu_span value, double expiration)
{
    uint8_t subkey[] = {0xc4, 1, n};
    struct mu_dht_entry entry = {mu_span(subkey, 3), value, expiration};

    assert_int_equal(mu_dht_dict_put(&w.entries, &entry), 0);
    w.count++;
}

/* A record of peer `n`, told `ago_s` ago. */
static void say(uint8_t n, uint64_t epoch, uint64_t samples, double speed, double ago_s,
                bool client)
{
    struct mu_peer_id id = peer(n);
    double now = (double)w.now.wall.ns / 1e9;
    struct mu_progress_record r = {mu_peer_id_span(&id), epoch, samples, speed,
                                   now - ago_s,          client};
    struct mu_buf value;

    mu_buf_init(&value, 512);
    assert_int_equal(mu_progress_record_encode(&r, &value), 0);
    put_value(n, mu_buf_span(&value), now + 30);
    mu_buf_fini(&value);
}

static void fetched(void)
{
    struct mu_buf dict;

    mu_buf_init(&dict, 1 << 20);
    assert_int_equal(mu_dht_dict_begin(&dict, START_S + 1e6, w.count, w.entries.len), 0);
    assert_int_equal(mu_buf_append(&dict, mu_buf_span(&w.entries)), 0);
    mu_progress_fetched(&w.p, w.now, 0, mu_buf_span(&dict));
    mu_buf_fini(&dict);
    mu_buf_reset(&w.entries);
    w.count = 0;
}

static void assert_near(double a, double b)
{
    if (!(fabs(a - b) < 1e-6 * (1 + fabs(b)))) {
        fail_msg("%g is not %g", a, b);
    }
}

static uint64_t next_fetch_ms(void)
{
    return mu_mono_until_ms(w.p.next_fetch, w.now.mono);
}

/* --- records ---------------------------------------------------------------------------------- */

static void test_progress_record_is_hiveminds_map(void **state)
{
    static const char hex[] =
        "86 a7706565725f6964 c4020102 a565706f6368 cd0f5d b373616d706c65735f616363756d756c61746564 "
        "40 b273616d706c65735f7065725f7365636f6e64 cb4028000000000000 a474696d65 "
        "cb41d88dea0a600000 ab636c69656e745f6d6f6465 c2";
    uint8_t bytes[256];
    size_t len = hex_decode(bytes, sizeof(bytes), hex);
    struct mu_progress_record r;
    struct mu_buf out;

    (void)state;
    assert_int_equal(mu_progress_record_decode(mu_span(bytes, len), &r), 0);
    assert_true(r.epoch == 3933 && r.samples == 64 && !r.client && r.peer.len == 2);
    assert_near(r.samples_per_second, 12);
    assert_near(r.time, 1647814697.5);
    mu_buf_init(&out, 512);
    assert_int_equal(mu_progress_record_encode(&r, &out), 0);
    assert_int_equal(out.len, len);
    assert_memory_equal(mu_buf_span(&out).data, bytes, len);
    mu_buf_fini(&out);
    for (size_t n = 0; n < len; n++) {
        assert_int_equal(mu_progress_record_decode(mu_span(bytes, n), &r), MUSTER_EPROTO);
    }
}

static void test_progress_record_types_are_strict(void **state)
{
    struct mu_progress_record r;
    struct mu_progress_record good = {MU_SPAN_LIT("ab"), 1, 2, 3, 4, false};
    struct mu_buf out;

    (void)state;
    assert_int_equal(mu_progress_record_decode(MU_SPAN_LIT("\xc0"), &r), MUSTER_ENOENT);
    assert_int_equal(mu_progress_record_decode(MU_SPAN_LIT("\x01"), &r), MUSTER_EPROTO);
    assert_int_equal(mu_progress_record_decode(MU_SPAN_LIT("\x80"), &r), MUSTER_EPROTO);
    mu_buf_init(&out, 512);
    good.samples_per_second = -1;
    assert_int_equal(mu_progress_record_encode(&good, &out), 0);
    assert_int_equal(mu_progress_record_decode(mu_buf_span(&out), &r), MUSTER_EPROTO);
    mu_buf_reset(&out);
    good.samples_per_second = 1;
    good.time = (double)NAN;
    assert_int_equal(mu_progress_record_encode(&good, &out), 0);
    assert_int_equal(mu_progress_record_decode(mu_buf_span(&out), &r), MUSTER_EPROTO);
    mu_buf_fini(&out);
}

/* --- the swarm -------------------------------------------------------------------------------- */

static void test_progress_adds_up_who_is_in_the_epoch(void **state)
{
    (void)state;
    begin();
    assert_true(mu_progress_fetch_due(&w.p, w.now));
    assert_false(mu_progress_fetch_due(&w.p, w.now));
    say(2, 7, 100, 10, 5, false); /* 150 by now */
    say(3, 7, 200, 20, 0, false);
    say(4, 6, 900, 30, 0, false); /* late: its speed counts, its samples do not */
    say(5, 8, 500, 0, 0, true);   /* a client says nothing about the epoch */
    put_value(6, MU_SPAN_LIT("\xc0"), START_S + 30); /* said goodbye */
    put_value(7, MU_SPAN_LIT("\x05"), START_S + 30); /* nonsense */
    fetched();
    assert_int_equal(w.p.swarm.epoch, 7);
    assert_int_equal(w.p.swarm.samples, 300);
    assert_near(w.p.swarm.estimated_samples, 350);
    assert_near(w.p.swarm.samples_per_second, 60);
    assert_near(w.p.swarm.eta, START_S + 650.0 / 60);
    assert_true(w.p.swarm.peers == 4 && w.p.swarm.clients == 1 && w.p.swarm.bad == 1);
    assert_int_equal(next_fetch_ms(), (int)(650.0 / 60 * 1000 * 4 / 7));
    end();
}

static void test_progress_fetches_neither_too_often_nor_too_rarely(void **state)
{
    (void)state;
    begin();
    say(2, 0, 0, 1e-3, 0, false);
    fetched();
    assert_int_equal(next_fetch_ms(), 10000);
    say(2, 0, 999, 1000, 0, false);
    fetched();
    assert_int_equal(next_fetch_ms(), 500);
    fetched(); /* nobody */
    assert_int_equal(next_fetch_ms(), 3000);
    mu_progress_fetched(&w.p, w.now, MUSTER_ETIMEDOUT, (struct mu_span){0});
    assert_int_equal(next_fetch_ms(), 3000);
    end();
}

static void test_progress_alone_estimates_by_its_own_speed(void **state)
{
    (void)state;
    begin();
    pass_ms(10000);
    mu_progress_report(&w.p, w.now, 0, 100); /* ten a second */
    assert_near(w.p.samples_per_second, 10);
    fetched();
    assert_near(w.p.swarm.eta, START_S + 10 + 90);
    assert_false(mu_progress_ready(&w.p, w.now));
    pass_ms(90000);
    assert_true(mu_progress_ready(&w.p, w.now));
    end();
}

static void test_progress_speed_is_a_moving_average(void **state)
{
    (void)state;
    begin();
    pass_ms(1000);
    mu_progress_report(&w.p, w.now, 0, 10); /* 0.1 s each */
    pass_ms(2000);
    mu_progress_report(&w.p, w.now, 0, 20); /* 0.2 s each */
    /* (0.1 * 0.1 * 0.9 + 0.1 * 0.2) / (1 - 0.81) */
    assert_near(w.p.samples_per_second, 0.19 / 0.029);
    /* What was thrown away is no work, and time while paused does not count. */
    mu_progress_report(&w.p, w.now, 0, 0);
    mu_progress_pause(&w.p);
    pass_ms(100000);
    mu_progress_resume(&w.p, w.now);
    pass_ms(1000);
    mu_progress_report(&w.p, w.now, 0, 10);
    assert_near(w.p.samples_per_second, (1 - 0.729) / (0.9 * 0.029 + 0.01));
    end();
}

static void test_progress_is_ready_when_the_batch_is_full(void **state)
{
    (void)state;
    begin();
    say(1, 0, 0, 1, 0, false);
    say(2, 0, 400, 1, 0, false);
    say(3, 0, 500, 1, 0, false);
    fetched();
    assert_false(mu_progress_ready(&w.p, w.now));
    mu_progress_report(&w.p, w.now, 0, 60);
    assert_int_equal(w.p.swarm.samples, 960);
    mu_progress_report(&w.p, w.now, 0, 100);
    assert_true(mu_progress_ready(&w.p, w.now));
    mu_progress_report(&w.p, w.now, 0, 0); /* lost after all */
    assert_false(mu_progress_ready(&w.p, w.now));
    mu_progress_update_epoch(&w.p, w.now, 1);
    assert_true(w.p.swarm.epoch == 1 && w.p.swarm.samples == 0);
    assert_false(mu_progress_ready(&w.p, w.now));
    say(2, 2, 0, 1, 0, false);
    say(3, 2, 0, 1, 0, false);
    fetched(); /* the others have gone on */
    assert_true(mu_progress_ready(&w.p, w.now));
    end();
}

static void test_progress_is_stored_after_a_step_and_before_it_expires(void **state)
{
    struct mu_progress_record r;

    (void)state;
    begin();
    mu_progress_fetched(&w.p, w.now, 0, (struct mu_span){0});
    assert_false(mu_progress_store_due(&w.p, w.now));
    mu_progress_report(&w.p, w.now, 0, 0);
    assert_false(mu_progress_store_due(&w.p, w.now)); /* nothing to tell */
    mu_progress_report(&w.p, w.now, 0, 5);
    assert_int_equal(mu_progress_deadline(&w.p).ns, 0);
    assert_true(mu_progress_store_due(&w.p, w.now));
    assert_false(mu_progress_store_due(&w.p, w.now));
    r = mu_progress_record(&w.p, w.now);
    assert_true(r.samples == 5 && r.epoch == 0 && r.peer.len == 34);
    pass_ms(29999);
    assert_false(mu_progress_store_due(&w.p, w.now));
    pass_ms(1);
    assert_true(mu_progress_store_due(&w.p, w.now));
    /* Who has fallen behind says nothing. */
    say(2, 5, 0, 1, 0, false);
    mu_progress_report(&w.p, w.now, 0, 0);
    fetched();
    assert_false(mu_progress_store_due(&w.p, w.now));
    end();
}

/* --- being behind ----------------------------------------------------------------------------- */

static void test_progress_needs_a_state_when_it_is_behind(void **state)
{
    (void)state;
    begin();
    assert_false(mu_progress_needs_state(&w.p)); /* nothing is known yet */
    say(2, 1, 0, 1, 0, false);
    say(3, 1, 0, 1, 0, false);
    fetched();
    assert_true(mu_progress_needs_state(&w.p)); /* exact, once for each epoch */
    assert_false(mu_progress_needs_state(&w.p));
    say(2, 2, 0, 1, 0, false);
    say(3, 2, 0, 1, 0, false);
    fetched();
    assert_true(mu_progress_needs_state(&w.p)); /* two behind, always */
    assert_true(mu_progress_needs_state(&w.p));
    mu_progress_update_epoch(&w.p, w.now, 2);
    say(2, 2, 0, 1, 0, false);
    say(3, 2, 0, 1, 0, false);
    fetched();
    assert_false(mu_progress_needs_state(&w.p));
    end();
}

static void test_progress_does_not_believe_one_record_that_is_far_ahead(void **state)
{
    (void)state;
    begin();
    mu_progress_update_epoch(&w.p, w.now, 100);
    say(2, 100, 10, 1, 0, false);
    say(3, 101, 10, 1, 0, false); /* one ahead is how epochs end */
    say(4, UINT64_MAX, 1u << 30, 1e9, 0, false);
    fetched();
    assert_int_equal(w.p.swarm.epoch, 101);
    assert_int_equal(w.p.swarm.samples, 10);
    assert_near(w.p.swarm.samples_per_second, 2);
    assert_int_equal(w.p.swarm.suspects, 1);
    /* The same epoch from two is where the swarm is. */
    say(2, 100, 10, 1, 0, false);
    say(3, 200, 10, 1, 0, false);
    say(4, 201, 10, 1, 0, false);
    fetched();
    assert_int_equal(w.p.swarm.epoch, 201);
    assert_true(mu_progress_needs_state(&w.p));
    /* Our own record is no witness: we can have been away. */
    say(1, 100, 10, 1, 0, false);
    say(2, 300, 10, 1, 0, false);
    fetched();
    assert_int_equal(w.p.swarm.epoch, 300);
    end();
}

static void test_progress_does_not_look_again_and_again_for_what_nobody_has(void **state)
{
    static const struct mu_progress_hooks none = {0};

    (void)state;
    begin();
    mu_progress_update_epoch(&w.p, w.now, 100);
    say(2, 1u << 30, 0, 1, 0, false);
    fetched();
    assert_true(mu_progress_needs_state(&w.p)); /* the only one there is */
    assert_int_equal(mu_progress_enter(&w.p, &none), 0);
    assert_int_equal(mu_progress_leave(&w.p, w.now, MUSTER_ENOENT, 0), 100);
    say(2, 1u << 30, 0, 1, 0, false);
    fetched();
    assert_int_equal(w.p.swarm.epoch, 100);
    assert_int_equal(w.p.swarm.suspects, 1);
    assert_false(mu_progress_needs_state(&w.p));
    pass_ms(60000); /* and then it may be true */
    say(2, 1u << 30, 0, 1, 0, false);
    fetched();
    assert_true(mu_progress_needs_state(&w.p));
    end();
}

/* --- loading ---------------------------------------------------------------------------------- */

struct trainer {
    int round, updates; /* what the hooks return */
    int rounds, awaited;
};

static int join_round(void *context)
{
    struct trainer *t = context;

    t->rounds++;
    return t->round;
}

static int await_updates(void *context)
{
    struct trainer *t = context;

    t->awaited++;
    return t->updates;
}

static void test_progress_joins_the_round_and_awaits_updates_before_a_load(void **state)
{
    struct trainer t = {.round = MUSTER_EAGAIN};
    struct mu_progress_hooks hooks = {join_round, await_updates, &t};

    (void)state;
    begin();
    say(2, 9, 0, 1, 0, false);
    fetched();
    assert_int_equal(mu_progress_enter(&w.p, &hooks), MUSTER_EAGAIN);
    assert_true(t.rounds == 1 && t.awaited == 0);
    t.round = MUSTER_ETIMEDOUT; /* the round failed, which keeps nobody */
    t.updates = MUSTER_EAGAIN;
    assert_int_equal(mu_progress_enter(&w.p, &hooks), MUSTER_EAGAIN);
    assert_int_equal(mu_progress_enter(&w.p, &hooks), MUSTER_EAGAIN);
    assert_true(t.rounds == 2 && t.awaited == 2);
    assert_false(w.p.paused);
    t.updates = 0;
    assert_int_equal(mu_progress_enter(&w.p, &hooks), 0);
    assert_true(w.p.paused);
    /* What is fetched meanwhile is not taken. */
    say(2, 50, 0, 1, 0, false);
    fetched();
    assert_int_equal(w.p.swarm.epoch, 9);
    assert_false(mu_progress_fetch_due(&w.p, w.now));
    /* One behind is accepted as being there. */
    assert_int_equal(mu_progress_leave(&w.p, w.now, 0, 8), 9);
    assert_true(w.p.epoch == 9 && w.p.samples == 0 && !w.p.paused);
    assert_true(mu_progress_fetch_due(&w.p, w.now));
    end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_progress_record_is_hiveminds_map),
        cmocka_unit_test(test_progress_record_types_are_strict),
        cmocka_unit_test(test_progress_adds_up_who_is_in_the_epoch),
        cmocka_unit_test(test_progress_fetches_neither_too_often_nor_too_rarely),
        cmocka_unit_test(test_progress_alone_estimates_by_its_own_speed),
        cmocka_unit_test(test_progress_speed_is_a_moving_average),
        cmocka_unit_test(test_progress_is_ready_when_the_batch_is_full),
        cmocka_unit_test(test_progress_is_stored_after_a_step_and_before_it_expires),
        cmocka_unit_test(test_progress_needs_a_state_when_it_is_behind),
        cmocka_unit_test(test_progress_does_not_believe_one_record_that_is_far_ahead),
        cmocka_unit_test(test_progress_does_not_look_again_and_again_for_what_nobody_has),
        cmocka_unit_test(test_progress_joins_the_round_and_awaits_updates_before_a_load),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
