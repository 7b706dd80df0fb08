/* Bytes: connecting, sending, receiving, back-pressure. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "battery_peer.h"

static void test_bytes_come_back_from_an_echo(void **state)
{
    struct pair pair;

    (void)state;
    pair_init(&pair);
    pair.a.send_total = 100000;
    pair.b.echo = true;
    pair_connect(&pair);

    battery_run_until_count(&pair.a.received, 100000);

    assert_int_equal(pair.b.received, 100000);
    assert_false(pair.a.eof || pair.b.eof || pair.a.closed || pair.b.closed);
    pair_end(&pair);
}

static void test_accepted_end_can_speak_first(void **state)
{
    struct pair pair;

    (void)state;
    pair_init(&pair);
    pair.b.send_total = 10;
    pair_connect(&pair);
    peer_push(&pair.b);

    battery_run_until_count(&pair.a.received, 10);

    pair_end(&pair);
}

static void test_empty_send_is_taken(void **state)
{
    struct pair pair;
    size_t taken = 7;

    (void)state;
    pair_init(&pair);
    pair_connect(&pair);
    VERB(mu_env_send(battery_eut->env, &pair.a.conn, mu_span(NULL, 0), &taken));

    assert_int_equal(taken, 0);
    pair_end(&pair);
}

static void test_spans_are_sent_one_behind_the_other(void **state)
{
    struct pair pair;

    (void)state;
    pair_init(&pair);
    pair.a.in_spans = true;
    pair.a.send_total = 3u << 20;
    pair_connect(&pair);

    battery_run_until_count(&pair.b.received, 3u << 20);

    assert_int_equal(pair.a.writables, pair.a.short_takes);
    pair_end(&pair);
}

static void test_spans_of_nothing_are_taken(void **state)
{
    const struct mu_span nothing[3] = {{0}};
    struct pair pair;
    size_t taken = 7;

    (void)state;
    pair_init(&pair);
    pair_connect(&pair);
    VERB(mu_env_sendv(battery_eut->env, &pair.a.conn, nothing, 3, &taken));
    assert_int_equal(taken, 0);
    taken = 7;
    VERB(mu_env_sendv(battery_eut->env, &pair.a.conn, NULL, 0, &taken));

    assert_int_equal(taken, 0);
    pair_end(&pair);
}

static void test_bytes_come_where_they_are_to_lie(void **state)
{
    struct pair pair;
    size_t total = 4u << 20;
    uint8_t *room = calloc(1, total + 100000);

    (void)state;
    assert_non_null(room);
    pair_init(&pair);
    pair.a.send_total = total;
    pair.b.room = room;
    pair.b.room_len = 100000;
    pair_connect(&pair);

    battery_run_until_count(&pair.b.received, total);

    /* Not all: what is behind the end of a room has been read with it. But most. */
    assert_true(pair.b.in_room > total / 2 || battery_eut->reads_elsewhere);
    pair_end(&pair);
    free(room);
}

static void close_in_room(struct peer *p)
{
    if (p->received > 50000) {
        p->on_data = NULL;
        peer_close(p, false);
    }
}

static void test_connection_can_be_closed_with_its_room(void **state)
{
    struct pair pair;
    uint8_t *room = calloc(1, 2000000);

    (void)state;
    assert_non_null(room);
    pair_init(&pair);
    pair.a.send_total = 1000000;
    pair.b.room = room;
    pair.b.room_len = 30000;
    pair.b.on_data = close_in_room;
    pair_connect(&pair);

    battery_run_until_set(&pair.b.closed);

    free(room); /* A sanitizer sees who still writes there. */
    pair.b.room = NULL;
    pair_end(&pair);
}

static void resume_soon(struct peer *p)
{
    /* `data` will have used less than all; resuming from inside of it must be as good. */
    peer_resume(p);
}

static void test_slow_reader_holds_back_the_writer_and_loses_nothing(void **state)
{
    struct pair pair;
    size_t total;

    (void)state;
    pair_init(&pair);
    pair.a.send_total = SIZE_MAX;
    pair.b.use_max = 1; /* takes one byte and then no more until it is resumed */
    pair_connect(&pair);
    /* It is held back: with nobody reading, what is under way is bounded. */
    battery_run_until_count(&pair.a.short_takes, 1);
    battery_run_for_ms(20);

    assert_int_equal(pair.b.received, 1);
    assert_true(pair.a.want_writable);

    total = pair.a.sent + (4u << 20);
    pair.a.send_total = total;
    pair.b.use_max = 50000;
    pair.b.on_data = resume_soon;
    peer_resume(&pair.b);
    battery_run_until_count(&pair.b.received, total);

    assert_int_equal(pair.a.sent, total);
    assert_int_equal(pair.a.writables, pair.a.short_takes);
    pair_end(&pair);
}

static void test_both_directions_are_full_at_once(void **state)
{
    struct pair pair;

    (void)state;
    pair_init(&pair);
    pair.a.send_total = SIZE_MAX;
    pair.b.send_total = SIZE_MAX;
    pair.a.use_max = pair.b.use_max = 1;
    pair_connect(&pair);
    peer_push(&pair.b);
    battery_run_until_count(&pair.a.short_takes, 1);
    battery_run_until_count(&pair.b.short_takes, 1);
    pair.a.send_total = pair.a.sent + (2u << 20);
    pair.b.send_total = pair.b.sent + (2u << 20);
    pair.a.use_max = pair.b.use_max = 30000;
    pair.a.on_data = pair.b.on_data = resume_soon;
    peer_resume(&pair.a);
    peer_resume(&pair.b);

    battery_run_until_count(&pair.a.received, pair.b.send_total);
    battery_run_until_count(&pair.b.received, pair.a.send_total);

    pair_end(&pair);
}

static void test_what_was_not_used_comes_again_after_resume(void **state)
{
    struct pair pair;

    (void)state;
    pair_init(&pair);
    pair.a.send_total = 10;
    pair.b.use_max = 1;
    pair_connect(&pair);
    battery_run_until_count(&pair.b.deliveries, 1);
    battery_run_for_ms(5);
    assert_int_equal(pair.b.deliveries, 1);
    assert_int_equal(pair.b.received, 1);

    for (size_t i = 2; i <= 10; i++) {
        size_t before = pair.b.deliveries;

        peer_resume(&pair.b);
        peer_resume(&pair.b); /* twice is once */
        assert_int_equal(pair.b.deliveries, before);
        battery_run_until_count(&pair.b.received, i);
        battery_run_for_ms(1);
        assert_int_equal(pair.b.received, i);
    }
    peer_resume(&pair.b); /* nothing is held back: nothing happens */
    battery_run_for_ms(1);
    assert_int_equal(pair.b.received, 10);
    pair_end(&pair);
}

static void test_eof_waits_for_what_was_not_used(void **state)
{
    struct pair pair;

    (void)state;
    pair_init(&pair);
    pair.a.send_total = 10;
    pair.b.use_max = 4;
    pair_connect(&pair);
    battery_run_until_count(&pair.b.received, 1);
    peer_close(&pair.a, false);
    battery_run_for_ms(10);
    assert_false(pair.b.eof);

    pair.b.on_data = resume_soon;
    peer_resume(&pair.b);
    battery_run_until_set(&pair.b.eof);

    assert_int_equal(pair.b.received, 10);
    pair_end(&pair);
}

static void test_peer_has_a_text(void **state)
{
    struct pair pair;
    char text[64];
    char tiny[4];

    (void)state;
    pair_init(&pair);
    pair_connect(&pair);
    memset(text, 'x', sizeof(text));
    mu_env_peer(battery_eut->env, &pair.b.conn, text, sizeof(text));
    mu_env_peer(battery_eut->env, &pair.b.conn, tiny, sizeof(tiny));

    assert_non_null(memchr(text, '\0', sizeof(text)));
    assert_true(text[0] != '\0');
    assert_non_null(memchr(tiny, '\0', sizeof(tiny)));
    pair_end(&pair);
}

static void test_dial_where_nobody_listens_is_closed_with_an_error(void **state)
{
    struct mu_addr addr;
    struct peer p;
    int rc;

    (void)state;
    peer_init(&p);
    battery_eut->refused_addr(battery_eut, &addr);
    VERB(rc = mu_env_dial(battery_eut->env, &p.conn, &addr));
    assert_int_equal(rc, 0);
    battery_run_until_set(&p.closed);

    assert_false(p.opened);
    assert_true(p.status < 0);
}

static void test_dial_closed_at_once_never_opens(void **state)
{
    struct hub hub;
    struct peer b;
    struct peer a;

    (void)state;
    peer_init(&a);
    peer_init(&b);
    b.close_on_eof = true;
    hub_open(&hub, &b, 1);
    hub_dial(&hub, &a);
    peer_close(&a, false);
    assert_false(a.closed);
    battery_run_until_set(&a.closed);
    battery_run_for_ms(10);

    assert_false(a.opened);
    assert_int_equal(a.status, 0);
    hub_close(&hub);
    if (b.opened && !b.closed) {
        peer_close(&b, true);
        battery_run_until_set(&b.closed);
    }
}

static void test_port_zero_finds_a_port_each_time(void **state)
{
    struct hub one;
    struct hub two;

    (void)state;
    hub_open(&one, NULL, 0);
    hub_open(&two, NULL, 0);

    if (one.addr.kind == MU_ADDR_TCP) {
        assert_int_not_equal(one.addr.port, 0);
        assert_int_not_equal(one.addr.port, two.addr.port);
    }
    hub_close(&one);
    hub_close(&two);
}

static void test_listening_where_somebody_listens_is_refused(void **state)
{
    struct hub one;
    struct hub two;
    struct mu_addr addr;
    int rc;

    (void)state;
    hub_open(&one, NULL, 0);
    two = one;
    two.closed = false;
    addr = one.addr;
    VERB(rc = mu_env_listen(battery_eut->env, &two.listener, &addr));
    assert_int_equal(rc, -EADDRINUSE);
    hub_close(&one);
    battery_run_for_ms(1);
    assert_false(two.closed);

    /* It is free again. */
    VERB(rc = mu_env_listen(battery_eut->env, &two.listener, &addr));
    assert_int_equal(rc, 0);
    hub_close(&two);
}

static void test_connections_outlive_their_listener(void **state)
{
    struct pair pair;
    struct peer late;

    (void)state;
    pair_init(&pair);
    pair.b.echo = true;
    pair_connect(&pair);
    hub_close(&pair.hub);
    peer_init(&late);
    hub_dial(&pair.hub, &late);
    battery_run_until_set(&late.closed);
    assert_true(late.status < 0);

    pair.a.send_total = 10;
    peer_push(&pair.a);
    battery_run_until_count(&pair.a.received, 10);

    peer_close(&pair.a, false);
    battery_run_until_set(&pair.b.eof);
    peer_close(&pair.b, false);
    battery_run_until_set(&pair.b.closed);
    battery_run_until_set(&pair.a.closed);
}

static bool has_ended(void *context)
{
    struct peer *p = context;

    return p->eof || p->closed;
}

static void test_connection_that_is_turned_away_ends(void **state)
{
    struct hub hub;
    struct peer a;

    (void)state;
    peer_init(&a);
    hub_open(&hub, NULL, 0);
    hub_dial(&hub, &a);
    battery_run_until(has_ended, &a);
    peer_close(&a, false);
    battery_run_until_set(&a.closed);
    hub_close(&hub);
}

#define MANY 1000u

static void test_thousand_connections_echo(void **state)
{
    struct peer *a = calloc(MANY, sizeof(*a));
    struct peer *b = calloc(MANY, sizeof(*b));
    struct hub hub;

    (void)state;
    assert_non_null(a);
    assert_non_null(b);
    for (size_t i = 0; i < MANY; i++) {
        peer_init(&a[i]);
        peer_init(&b[i]);
        a[i].send_total = 100 + i;
        b[i].echo = true;
        b[i].close_on_eof = true;
    }
    hub_open(&hub, b, MANY);
    for (size_t i = 0; i < MANY; i++) {
        hub_dial(&hub, &a[i]);
    }
    for (size_t i = 0; i < MANY; i++) {
        battery_run_until_count(&a[i].received, 100 + i);
    }
    for (size_t i = 0; i < MANY; i++) {
        peer_close(&a[i], false);
    }
    for (size_t i = 0; i < MANY; i++) {
        battery_run_until_set(&a[i].closed);
        battery_run_until_set(&b[i].closed);
    }
    hub_close(&hub);
    free(a);
    free(b);
}

const struct CMUnitTest battery_conn_tests[] = {
    cmocka_unit_test(test_bytes_come_back_from_an_echo),
    cmocka_unit_test(test_accepted_end_can_speak_first),
    cmocka_unit_test(test_empty_send_is_taken),
    cmocka_unit_test(test_spans_are_sent_one_behind_the_other),
    cmocka_unit_test(test_spans_of_nothing_are_taken),
    cmocka_unit_test(test_bytes_come_where_they_are_to_lie),
    cmocka_unit_test(test_connection_can_be_closed_with_its_room),
    cmocka_unit_test(test_slow_reader_holds_back_the_writer_and_loses_nothing),
    cmocka_unit_test(test_both_directions_are_full_at_once),
    cmocka_unit_test(test_what_was_not_used_comes_again_after_resume),
    cmocka_unit_test(test_eof_waits_for_what_was_not_used),
    cmocka_unit_test(test_peer_has_a_text),
    cmocka_unit_test(test_dial_where_nobody_listens_is_closed_with_an_error),
    cmocka_unit_test(test_dial_closed_at_once_never_opens),
    cmocka_unit_test(test_port_zero_finds_a_port_each_time),
    cmocka_unit_test(test_listening_where_somebody_listens_is_refused),
    cmocka_unit_test(test_connections_outlive_their_listener),
    cmocka_unit_test(test_connection_that_is_turned_away_ends),
    cmocka_unit_test(test_thousand_connections_echo),
    {0},
};
