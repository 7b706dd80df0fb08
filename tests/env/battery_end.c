/* Ends: closing, from where and how often; aborting; peers that go away. */
#include <string.h>

#include "battery_peer.h"

static void test_close_ends_with_all_that_was_taken(void **state)
{
    struct pair pair;

    (void)state;
    pair_init(&pair);
    pair.a.send_total = SIZE_MAX;
    pair.b.use_max = 1;
    pair_connect(&pair);
    battery_run_until_count(&pair.a.short_takes, 1);
    peer_close(&pair.a, false);
    pair.b.use_max = 0;
    if (pair.b.deliveries != 0) {
        peer_resume(&pair.b);
    }
    battery_run_until_set(&pair.b.eof);

    assert_int_equal(pair.b.received, pair.a.sent);
    battery_run_until_set(&pair.a.closed);
    assert_int_equal(pair.a.status, 0);
    assert_int_equal(pair.a.writables, 0);
    pair_end(&pair);
}

static void test_finish_ends_one_side_and_the_other_goes_on(void **state)
{
    struct pair pair;
    bool can;

    (void)state;
    pair_init(&pair);
    pair.a.send_total = 3u << 20;
    pair_connect(&pair);
    battery_run_until_count(&pair.a.sent, 3u << 20);
    VERB(can = mu_env_finish(battery_eut->env, &pair.a.conn));
    if (can) {
        battery_run_until_set(&pair.b.eof);
        assert_int_equal(pair.b.received, 3u << 20);

        /* What is sent behind the end is dropped; what comes from the other side is not. */
        pair.a.send_total += 1000;
        peer_push(&pair.a);
        pair.b.send_total = 2u << 20;
        peer_push(&pair.b);
        battery_run_until_count(&pair.a.received, 2u << 20);
        assert_int_equal(pair.b.received, 3u << 20);
        assert_false(pair.a.closed || pair.b.closed);
        VERB((void)mu_env_finish(battery_eut->env, &pair.b.conn));
        battery_run_until_set(&pair.a.eof);
    }
    pair_end(&pair);
}

static void say_and_close(struct peer *p)
{
    p->send_total = 1u << 20;
    peer_push(p);
    peer_close(p, false);
}

static void test_last_words_reach_a_peer_that_is_still_writing(void **state)
{
    struct pair pair;

    (void)state;
    pair_init(&pair);
    pair.a.send_total = 4u << 20;
    pair.a.use_max = 1;
    pair.b.on_data = say_and_close;
    pair_connect(&pair);
    battery_run_until_count(&pair.a.deliveries, 1);
    battery_run_for_ms(5);
    /* One end has closed, with much of what the other wrote unread; the other reads only now. */
    assert_true(pair.b.sent > 100);
    pair.a.use_max = 0;
    peer_resume(&pair.a);

    /* However the writer's connection ends, it has heard the last words before. */
    battery_run_until_count(&pair.a.received, pair.b.sent);
    battery_run_until_set(&pair.b.closed);
    assert_int_equal(pair.b.status, 0);
    pair_end(&pair);
}

static void test_eof_comes_once_and_the_other_end_may_take_its_time(void **state)
{
    struct pair pair;

    (void)state;
    pair_init(&pair);
    pair.a.send_total = 1000;
    pair_connect(&pair);
    peer_close(&pair.a, false);
    battery_run_until_set(&pair.b.eof);
    battery_run_until_set(&pair.a.closed);
    battery_run_for_ms(5);

    assert_int_equal(pair.b.received, 1000);
    assert_int_equal(pair.a.status, 0);
    assert_false(pair.b.closed);
    peer_close(&pair.b, false);
    assert_false(pair.b.closed);
    battery_run_until_set(&pair.b.closed);
    assert_int_equal(pair.b.status, 0);
    pair_end(&pair);
}

static void close_softly(struct peer *p)
{
    peer_close(p, false);
    EXPECT(!p->closed);
}

static void close_hard(struct peer *p)
{
    peer_close(p, true);
    EXPECT(!p->closed);
}

/* Closes one end from within one of its callbacks, softly or hard. */
static void close_within(bool hard, size_t which)
{
    void (*close)(struct peer * p) = hard ? close_hard : close_softly;
    struct pair pair;

    pair_init(&pair);
    pair.b.close_on_eof = true;
    switch (which) {
    case 0:
        pair.a.on_open = close;
        break;
    case 1:
        pair.b.send_total = 3000;
        pair.a.on_data = close;
        break;
    default:
        pair.a.on_eof = close;
        break;
    }
    hub_open(&pair.hub, &pair.b, 1);
    hub_dial(&pair.hub, &pair.a);
    battery_run_until_set(&pair.a.opened);
    if (which == 1) {
        battery_run_until_set(&pair.b.opened);
        peer_push(&pair.b);
    } else if (which == 2) {
        battery_run_until_set(&pair.b.opened);
        peer_close(&pair.b, false);
    }
    battery_run_until_set(&pair.a.closed);
    assert_int_equal(pair.a.status, 0);
    assert_int_equal(pair.a.deliveries, which == 1 ? 1 : 0);
    battery_run_until_set(&pair.b.opened);
    battery_run_until_set(&pair.b.closed);
    pair_end(&pair);
}

static void test_close_from_within_any_callback(void **state)
{
    (void)state;
    for (size_t which = 0; which < 3; which++) {
        close_within(false, which);
        if (which != 0 || !battery_eut->accepts_late) {
            close_within(true, which);
        }
    }
}

static void test_close_from_within_writable(void **state)
{
    struct pair pair;

    (void)state;
    pair_init(&pair);
    pair.a.send_total = SIZE_MAX;
    pair.b.use_max = 1;
    pair.b.close_on_eof = true;
    pair_connect(&pair);
    battery_run_until_count(&pair.a.short_takes, 1);
    battery_run_until_count(&pair.b.deliveries, 1);
    pair.a.on_writable = close_softly;
    pair.b.use_max = 0;
    peer_resume(&pair.b);

    battery_run_until_set(&pair.b.closed);

    assert_int_equal(pair.a.writables, 1);
    assert_int_equal(pair.b.received, pair.a.sent);
    pair_end(&pair);
}

static void test_close_twice_is_close_once(void **state)
{
    struct pair pair;

    (void)state;
    pair_init(&pair);
    pair_connect(&pair);
    peer_close(&pair.a, false);
    peer_close(&pair.a, false);
    peer_close(&pair.b, true);
    peer_close(&pair.b, true);
    peer_close(&pair.b, false);
    assert_false(pair.a.closed || pair.b.closed);
    battery_run_until_set(&pair.a.closed);
    battery_run_until_set(&pair.b.closed);
    peer_close(&pair.a, false);
    peer_close(&pair.b, true);
    battery_run_for_ms(3);

    assert_int_equal(pair.a.closed_count, 1);
    assert_int_equal(pair.b.closed_count, 1);
    assert_int_equal(pair.a.status, 0);
    assert_int_equal(pair.b.status, 0);
    pair_end(&pair);
}

static void test_abort_overtakes_a_close_that_lingers(void **state)
{
    struct pair pair;

    (void)state;
    pair_init(&pair);
    pair.a.send_total = SIZE_MAX;
    pair.b.use_max = 1;
    pair_connect(&pair);
    battery_run_until_count(&pair.a.short_takes, 1);
    peer_close(&pair.a, false);
    battery_run_for_ms(2);
    peer_close(&pair.a, true);
    battery_run_until_set(&pair.a.closed);

    assert_int_equal(pair.a.status, 0);
    peer_close(&pair.b, true);
    pair_end(&pair);
}

static void test_closed_connection_takes_all_and_says_nothing(void **state)
{
    struct pair pair;
    size_t taken = 0;

    (void)state;
    pair_init(&pair);
    pair.b.send_total = 1000;
    pair_connect(&pair);
    peer_close(&pair.a, false);
    VERB(mu_env_send(battery_eut->env, &pair.a.conn, MU_SPAN_LIT("late"), &taken));
    assert_int_equal(taken, 4);
    peer_resume(&pair.a);
    peer_push(&pair.b);
    battery_run_until_set(&pair.a.closed);
    taken = 0;
    VERB(mu_env_send(battery_eut->env, &pair.a.conn, MU_SPAN_LIT("late"), &taken));
    assert_int_equal(taken, 4);
    peer_resume(&pair.a);
    battery_run_for_ms(3);

    assert_int_equal(pair.a.deliveries, 0);
    assert_int_equal(pair.b.received, 0);
    pair_end(&pair);
}

static bool has_ended(void *context)
{
    struct peer *p = context;

    return p->eof || p->closed;
}

static void test_abort_ends_both_ends(void **state)
{
    struct pair pair;

    (void)state;
    pair_init(&pair);
    pair_connect(&pair);
    peer_close(&pair.a, true);
    assert_false(pair.a.closed);
    battery_run_until_set(&pair.a.closed);
    battery_run_until(has_ended, &pair.b);

    assert_int_equal(pair.a.status, 0);
    pair_end(&pair);
}

static void test_writer_whose_peer_aborts_is_closed_once(void **state)
{
    struct pair pair;

    (void)state;
    pair_init(&pair);
    pair.a.send_total = SIZE_MAX;
    pair.b.use_max = 1;
    pair_connect(&pair);
    battery_run_until_count(&pair.a.short_takes, 1);
    peer_close(&pair.b, true);
    /* The writer is held back now. It learns of the end without sending a byte more. */
    battery_run_until_set(&pair.a.closed);

    assert_true(pair.a.status < 0);
    pair_end(&pair);
}

static void test_connection_that_is_paused_survives_a_reset_in_good_order(void **state)
{
    struct pair pair;

    (void)state;
    pair_init(&pair);
    pair.a.send_total = 10;
    pair.b.use_max = 1;
    pair_connect(&pair);
    battery_run_until_count(&pair.b.received, 1);
    peer_close(&pair.a, true);
    battery_run_for_ms(2);
    /* Whether it heard of it or not: it can be taken up again, or closed. */
    peer_resume(&pair.b);
    battery_run_for_ms(2);
    pair_end(&pair);
}

struct redialer {
    struct hub *hub;
    struct peer *peer;
    int rc;
};

static struct redialer redialer;

static void dial_again(struct peer *p)
{
    /* The memory is the owner's in `closed`, for a connection anew. */
    peer_init(p);
    p->send_total = 10;
    VERB(redialer.rc = mu_env_dial(battery_eut->env, &p->conn, &redialer.hub->dial));
}

static void test_memory_can_be_dialled_again_within_closed(void **state)
{
    struct hub hub;
    struct peer a;
    struct peer b[2];

    (void)state;
    peer_init(&a);
    peer_init(&b[0]);
    peer_init(&b[1]);
    b[0].close_on_eof = b[1].close_on_eof = true;
    b[1].echo = true;
    hub_open(&hub, b, 2);
    redialer = (struct redialer){.hub = &hub, .peer = &a, .rc = 1};
    a.on_closed = dial_again;
    hub_dial(&hub, &a);
    battery_run_until_set(&a.opened);
    peer_close(&a, false);

    battery_run_until_count(&a.received, 10);

    assert_int_equal(redialer.rc, 0);
    peer_close(&a, false);
    battery_run_until_set(&a.closed);
    battery_run_until_set(&b[0].closed);
    battery_run_until_set(&b[1].closed);
    hub_close(&hub);
}

static struct peer *victim;

static void close_victim(struct peer *p)
{
    (void)p;
    peer_close(victim, true);
}

static void test_one_connection_closes_another_that_has_bytes_waiting(void **state)
{
    struct hub hub;
    struct peer a[2];
    struct peer b[2];

    (void)state;
    for (int i = 0; i < 2; i++) {
        peer_init(&a[i]);
        peer_init(&b[i]);
        b[i].close_on_eof = true;
    }
    hub_open(&hub, b, 2);
    hub_dial(&hub, &a[0]);
    battery_run_until_set(&b[0].opened);
    hub_dial(&hub, &a[1]);
    battery_run_until_set(&b[1].opened);
    battery_run_until_set(&a[0].opened);
    battery_run_until_set(&a[1].opened);
    /* Both get bytes in the same turn; whoever is told first closes the other. */
    victim = &a[1];
    a[0].on_data = close_victim;
    b[0].send_total = b[1].send_total = 100;
    peer_push(&b[0]);
    peer_push(&b[1]);
    battery_run_until_set(&a[1].closed);

    assert_int_equal(a[0].received, 100);
    peer_close(&a[0], false);
    for (int i = 0; i < 2; i++) {
        battery_run_until_set(&a[i].closed);
        battery_run_until_set(&b[i].closed);
    }
    hub_close(&hub);
}

const struct CMUnitTest battery_end_tests[] = {
    cmocka_unit_test(test_close_ends_with_all_that_was_taken),
    cmocka_unit_test(test_last_words_reach_a_peer_that_is_still_writing),
    cmocka_unit_test(test_eof_comes_once_and_the_other_end_may_take_its_time),
    cmocka_unit_test(test_close_from_within_any_callback),
    cmocka_unit_test(test_close_from_within_writable),
    cmocka_unit_test(test_close_twice_is_close_once),
    cmocka_unit_test(test_abort_overtakes_a_close_that_lingers),
    cmocka_unit_test(test_closed_connection_takes_all_and_says_nothing),
    cmocka_unit_test(test_abort_ends_both_ends),
    cmocka_unit_test(test_writer_whose_peer_aborts_is_closed_once),
    cmocka_unit_test(test_connection_that_is_paused_survives_a_reset_in_good_order),
    cmocka_unit_test(test_memory_can_be_dialled_again_within_closed),
    cmocka_unit_test(test_one_connection_closes_another_that_has_bytes_waiting),
    cmocka_unit_test(test_finish_ends_one_side_and_the_other_goes_on),
    {0},
};
