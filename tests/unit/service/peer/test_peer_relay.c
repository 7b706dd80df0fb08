/* Peers that cannot be dialled, reached through a relay, in the simulator. */
#include "relay_rig.h"
#include "service/peer/relay_internal.h"

static struct relay_rig r;

#define NODE(i) (&r.base.node[i])
#define ID(i)   (&r.base.node[i].identity.id)

/* Node 1 has a place at node 0, and node 2 knows of it. */
static void set_up(void)
{
    relay_rig_run_all(&r);
    relay_rig_reserve(&r, 1, 0);
    rig_run(&r.base, 1000);
    relay_rig_learn(&r, 2, 1, 0);
}

static void test_relay_leads_two_peers_together(void **state)
{
    struct rig_call there;
    struct rig_call back;

    (void)state;
    relay_rig_open(&r, 3, NULL);
    set_up();
    assert_int_equal(relay_rig_stats(&r, 1).places, 1);
    assert_int_equal(relay_rig_stats(&r, 0).reservations, 1);
    rig_call(NODE(2), NODE(1), &there, 300000);
    rig_run(&r.base, 5000);
    rig_assert_echoed(&there);
    assert_true(mu_peer_host_limited(NODE(2)->host, ID(1)));
    assert_true(mu_peer_host_limited(NODE(1)->host, ID(2)));
    assert_false(mu_peer_host_limited(NODE(1)->host, ID(0)));
    assert_int_equal(relay_rig_stats(&r, 0).circuits, 1);
    assert_int_equal(relay_rig_stats(&r, 2).dialled, 1);
    assert_int_equal(relay_rig_stats(&r, 1).stopped, 1);
    assert_true(relay_rig_stats(&r, 0).bytes > 600000);
    /* The one that was dialled can call back over it. */
    rig_call(NODE(1), NODE(2), &back, 1000000);
    rig_run(&r.base, 5000);
    rig_assert_echoed(&back);
    relay_rig_close(&r);
}

static void test_relay_connection_is_identified_like_another(void **state)
{
    struct rig_call call;

    (void)state;
    relay_rig_open(&r, 3, NULL);
    set_up();
    rig_call(NODE(2), NODE(1), &call, 10);
    rig_run(&r.base, 2000);
    rig_assert_echoed(&call);
    assert_true(mu_peer_host_speaks(NODE(2)->host, ID(1), RIG_ECHO));
    assert_true(mu_peer_host_speaks(NODE(1)->host, ID(2), RIG_ECHO));
    relay_rig_close(&r);
}

static void test_relay_address_is_told_by_identify(void **state)
{
    char text[MU_MULTIADDR_TEXT_MAX];
    char want[MU_MULTIADDR_TEXT_MAX];

    (void)state;
    relay_rig_open(&r, 3, NULL);
    relay_rig_run_all(&r);
    relay_rig_reserve(&r, 1, 0);
    rig_run(&r.base, 1000);
    relay_rig_addr(&r, 0, true, want, sizeof(want));
    assert_string_equal(mu_multiaddr_format(mu_peer_relay_addr(r.relay[1], 0), text, sizeof(text)),
                        want);
    assert_int_equal(mu_peer_relay_addr(r.relay[1], 1).len, 0);
    assert_string_equal(
        mu_multiaddr_format(mu_peer_host_announced(NODE(1)->host, 0), text, sizeof(text)), want);
    assert_int_equal(r.changes[1], 1);
    /* The relay has heard it from node 1, and keeps it in its book. */
    assert_string_equal(
        mu_multiaddr_format(mu_peer_host_addr(NODE(0)->host, ID(1), 0), text, sizeof(text)), want);
    relay_rig_leave(&r, 1);
    rig_run(&r.base, 1000);
    assert_int_equal(mu_peer_host_announced(NODE(1)->host, 0).len, 0);
    relay_rig_close(&r);
}

/* Whatever there was no memory for: a place that is held is one that others know of. */
static void test_relay_address_is_told_in_spite_of_a_want_of_memory(void **state)
{
    char text[MU_MULTIADDR_TEXT_MAX];
    char want[MU_MULTIADDR_TEXT_MAX];
    bool more = true;

    (void)state;
    for (long nth = 0; more; nth++) {
        relay_rig_open(&r, 2, NULL);
        relay_rig_run_all(&r);
        relay_rig_reserve(&r, 1, 0);
        rig_miss(nth);
        rig_run(&r.base, 60000);
        more = rig_missed();
        relay_rig_addr(&r, 0, true, want, sizeof(want));
        assert_int_equal(relay_rig_stats(&r, 1).places, 1);
        assert_string_equal(
            mu_multiaddr_format(mu_peer_relay_addr(r.relay[1], 0), text, sizeof(text)), want);
        assert_string_equal(
            mu_multiaddr_format(mu_peer_host_announced(NODE(1)->host, 0), text, sizeof(text)),
            want);
        assert_string_equal(
            mu_multiaddr_format(mu_peer_host_addr(NODE(0)->host, ID(1), 0), text, sizeof(text)),
            want);
        relay_rig_close(&r);
    }
}

static void test_relay_is_found_among_connected_peers(void **state)
{
    struct rig_call call;

    (void)state;
    relay_rig_open(&r, 3, NULL);
    r.config[1].autorelay = true;
    relay_rig_run_all(&r);
    rig_introduce(NODE(1), NODE(0));
    rig_call(NODE(1), NODE(0), &call, 10);
    rig_run(&r.base, 2000);
    rig_assert_echoed(&call);
    assert_int_equal(relay_rig_stats(&r, 1).places, 1);
    /* Without the flag nobody is asked. */
    rig_introduce(NODE(2), NODE(0));
    rig_call(NODE(2), NODE(0), &call, 10);
    rig_run(&r.base, 2000);
    assert_int_equal(relay_rig_stats(&r, 2).places, 0);
    assert_int_equal(relay_rig_stats(&r, 0).reservations, 1);
    relay_rig_close(&r);
}

static void test_relay_that_says_no_is_replaced_by_another(void **state)
{
    (void)state;
    relay_rig_open(&r, 4, NULL);
    for (size_t i = 1; i < 3; i++) {
        r.base.node[i].listens = true;
        r.config[i].hop = true;
    }
    r.config[0].hop_terms.reservations_max = 0;
    r.config[3].autorelay = true;
    r.config[3].wanted = 1;
    relay_rig_run_all(&r);
    relay_rig_leave(&r, 3);
    for (size_t i = 0; i < 3; i++) {
        struct rig_call call;

        rig_introduce(NODE(3), NODE(i));
        rig_call(NODE(3), NODE(i), &call, 10);
        rig_run(&r.base, 1000);
        rig_assert_echoed(&call);
    }
    /* All are there before it begins to look. */
    mu_sim_call(NODE(3)->proc, relay_rig_start, &(struct relay_rig_at){.r = &r, .i = 3});
    rig_run(&r.base, 30000);
    assert_int_equal(relay_rig_stats(&r, 3).places, 1);
    assert_int_equal(relay_rig_stats(&r, 1).reservations + relay_rig_stats(&r, 2).reservations, 1);
    /* The one that it has goes, and the other is taken. */
    mu_sim_reset(NODE(3)->sim_host,
                 NODE(relay_rig_stats(&r, 1).reservations == 1 ? 1 : 2)->sim_host);
    rig_run(&r.base, 30000);
    assert_int_equal(relay_rig_stats(&r, 3).places, 1);
    relay_rig_close(&r);
}

static void test_relay_place_is_renewed_before_it_ends(void **state)
{
    struct rig_call call;

    (void)state;
    relay_rig_open(&r, 3, NULL);
    r.config[0].hop_terms.reservation_ms = 120000;
    set_up();
    rig_run(&r.base, 600000);
    assert_int_equal(relay_rig_stats(&r, 1).places, 1);
    assert_in_range(relay_rig_stats(&r, 0).reserved, 5, 8);
    assert_int_equal(relay_rig_stats(&r, 0).reservations, 1);
    assert_int_equal(r.changes[1], relay_rig_stats(&r, 0).reserved);
    rig_call(NODE(2), NODE(1), &call, 1000);
    rig_run(&r.base, 5000);
    rig_assert_echoed(&call);
    relay_rig_close(&r);
}

static void test_relay_connection_is_kept_while_a_place_is_held(void **state)
{
    (void)state;
    relay_rig_open(&r, 2, NULL);
    r.base.node[0].config.idle_ms = 5000;
    r.base.node[1].config.idle_ms = 5000;
    relay_rig_run_all(&r);
    relay_rig_reserve(&r, 1, 0);
    rig_run(&r.base, 60000);
    assert_int_equal(relay_rig_stats(&r, 1).places, 1);
    assert_int_equal(rig_stats(NODE(1)).dials, 1);
    relay_rig_leave(&r, 1);
    rig_run(&r.base, 60000);
    assert_int_equal(rig_stats(NODE(1)).conns, 0);
    assert_int_equal(relay_rig_stats(&r, 0).reservations, 0);
    relay_rig_close(&r);
}

static void test_relay_that_was_lost_is_asked_again(void **state)
{
    (void)state;
    relay_rig_open(&r, 2, NULL);
    relay_rig_run_all(&r);
    relay_rig_reserve(&r, 1, 0);
    rig_run(&r.base, 1000);
    mu_sim_reset(NODE(0)->sim_host, NODE(1)->sim_host);
    rig_run(&r.base, 10);
    assert_int_equal(relay_rig_stats(&r, 1).places, 0);
    assert_int_equal(relay_rig_stats(&r, 0).reservations, 0);
    assert_int_equal(mu_peer_relay_addr(r.relay[1], 0).len, 0);
    rig_run(&r.base, 5000);
    assert_int_equal(relay_rig_stats(&r, 1).places, 1);
    assert_int_equal(relay_rig_stats(&r, 0).reservations, 1);
    relay_rig_close(&r);
}

static void test_relay_ends_a_circuit_with_either_end(void **state)
{
    struct rig_call call;

    for (size_t end = 1; end < 3; end++) {
        relay_rig_open(&r, 3, NULL);
        set_up();
        rig_call(NODE(2), NODE(1), &call, 10);
        rig_run(&r.base, 2000);
        rig_assert_echoed(&call);
        rig_call(NODE(2), NODE(1), &call, 50u << 20);
        rig_run(&r.base, 10);
        assert_int_equal(call.ended, 0);
        mu_sim_reset(NODE(0)->sim_host, NODE(end)->sim_host);
        rig_run(&r.base, 1000);
        assert_int_equal(call.ended, 1);
        assert_int_not_equal(call.status, 0);
        assert_int_equal(relay_rig_stats(&r, 0).circuits, 0);
        assert_int_equal(relay_rig_stats(&r, 0).streams, 0);
        relay_rig_close(&r);
    }
    (void)state;
}

static void test_relay_circuit_ends_at_its_data_limit(void **state)
{
    struct rig_call call;

    (void)state;
    relay_rig_open(&r, 3, NULL);
    r.config[0].hop_terms.limit.data_bytes = 100000;
    set_up();
    rig_call(NODE(2), NODE(1), &call, 50000);
    rig_run(&r.base, 2000);
    rig_assert_echoed(&call);
    rig_call(NODE(2), NODE(1), &call, 100000);
    rig_run(&r.base, 2000);
    assert_int_equal(call.ended, 1);
    assert_int_not_equal(call.status, 0);
    assert_true(call.got < 100000);
    assert_in_range(relay_rig_stats(&r, 0).bytes, 100000, 200000);
    assert_int_equal(relay_rig_stats(&r, 0).circuits, 0);
    /* Another one has its own. */
    rig_call(NODE(2), NODE(1), &call, 50000);
    rig_run(&r.base, 5000);
    rig_assert_echoed(&call);
    relay_rig_close(&r);
}

static void test_relay_circuit_ends_at_its_time_limit(void **state)
{
    struct rig_call call;

    (void)state;
    relay_rig_open(&r, 3, NULL);
    r.config[0].hop_terms.limit.duration_s = 30;
    set_up();
    rig_call(NODE(2), NODE(1), &call, 10);
    rig_run(&r.base, 25000);
    assert_int_equal(relay_rig_stats(&r, 0).circuits, 1);
    rig_run(&r.base, 6000);
    assert_int_equal(relay_rig_stats(&r, 0).circuits, 0);
    assert_false(mu_peer_host_connected(NODE(2)->host, ID(1)));
    assert_true(mu_peer_host_connected(NODE(1)->host, ID(0)));
    relay_rig_close(&r);
}

static void test_relay_holds_back_who_writes_too_much(void **state)
{
    struct rig_call call;

    (void)state;
    relay_rig_open(&r, 3, NULL);
    set_up();
    rig_call(NODE(2), NODE(1), &call, 10);
    rig_run(&r.base, 2000);
    rig_call(NODE(2), NODE(1), &call, 20u << 20);
    mu_sim_pause(NODE(1)->proc, 4 * MU_NS_PER_S);
    rig_run(&r.base, 3000);
    assert_true(call.sent < 6u << 20);
    rig_run(&r.base, 60000);
    rig_assert_echoed(&call);
    relay_rig_close(&r);
}

static void test_relay_is_left_for_a_direct_way(void **state)
{
    struct rig_call call;

    (void)state;
    relay_rig_open(&r, 3, NULL);
    r.base.node[2].listens = true;
    set_up();
    rig_call(NODE(2), NODE(1), &call, 10);
    rig_run(&r.base, 2000);
    rig_assert_echoed(&call);
    assert_true(mu_peer_host_limited(NODE(2)->host, ID(1)));
    /* Node 1 has no reason to dial; when it does so, it has a better way. */
    mu_sim_reset(NODE(0)->sim_host, NODE(1)->sim_host);
    rig_run(&r.base, 10000);
    rig_introduce(NODE(1), NODE(2));
    rig_call(NODE(1), NODE(2), &call, 10);
    rig_run(&r.base, 2000);
    rig_assert_echoed(&call);
    assert_false(mu_peer_host_limited(NODE(2)->host, ID(1)));
    assert_false(mu_peer_host_limited(NODE(1)->host, ID(2)));
    rig_run(&r.base, 10000);
    assert_int_equal(relay_rig_stats(&r, 0).circuits, 0);
    relay_rig_close(&r);
}

/* A connection to whoever is there: dialled whatever there is already. */
static struct mu_peer_connect to_anybody;
static int connected;

static void on_connected(struct mu_peer_connect *connect, int status, const char *text)
{
    (void)connect;
    assert_string_equal(text, "");
    assert_int_equal(status, 0);
    connected++;
}

static void connect_inside(void *arg)
{
    const struct rig_pair *pair = arg;
    struct mu_errmsg msg;
    struct mu_buf addr;
    char text[64];

    mu_buf_init(&addr, MU_MULTIADDR_MAX);
    (void)snprintf(text, sizeof(text), "/dns/%s/tcp/%d", pair->who->name, RIG_PORT);
    assert_int_equal(mu_multiaddr_parse(&addr, text, &msg), 0);
    to_anybody = (struct mu_peer_connect){.addr = mu_buf_span(&addr), .done = on_connected};
    mu_peer_host_connect(pair->of->host, &to_anybody);
    mu_buf_fini(&addr);
}

static void test_relay_is_not_used_beside_a_direct_way(void **state)
{
    (void)state;
    /* Whichever of the two has the lesser id, which settles it between two of a kind. */
    for (size_t from = 1; from < 3; from++) {
        size_t to = 3 - from;
        struct rig_call call;

        relay_rig_open(&r, 3, NULL);
        r.base.node[from].listens = true;
        relay_rig_run_all(&r);
        relay_rig_reserve(&r, to, 0);
        rig_run(&r.base, 1000);
        relay_rig_learn(&r, from, to, 0);
        rig_call(NODE(from), NODE(to), &call, 10);
        rig_run(&r.base, 100);
        rig_assert_echoed(&call);
        assert_true(mu_peer_host_limited(NODE(to)->host, ID(from)));
        connected = 0;
        mu_sim_call(NODE(to)->proc, connect_inside, &(struct rig_pair){NODE(to), NODE(from)});
        rig_run(&r.base, 100);
        assert_int_equal(connected, 1);
        assert_false(mu_peer_host_limited(NODE(1)->host, ID(2)));
        assert_false(mu_peer_host_limited(NODE(2)->host, ID(1)));
        rig_run(&r.base, 10000);
        assert_int_equal(relay_rig_stats(&r, 0).circuits, 0);
        assert_true(mu_peer_host_connected(NODE(1)->host, ID(2)));
        relay_rig_close(&r);
    }
}

static void test_relay_is_dialled_through_when_nothing_else_helps(void **state)
{
    struct rig_call call;

    (void)state;
    relay_rig_open(&r, 3, NULL);
    r.base.node[1].listens = true;
    relay_rig_run_all(&r);
    relay_rig_reserve(&r, 1, 0);
    rig_run(&r.base, 1000);
    /* What was heard of last is tried first, but for this. */
    rig_introduce(NODE(2), NODE(1));
    relay_rig_learn(&r, 2, 1, 0);
    rig_call(NODE(2), NODE(1), &call, 10);
    rig_run(&r.base, 1000);
    rig_assert_echoed(&call);
    assert_int_equal(relay_rig_stats(&r, 2).dialled, 0);
    assert_false(mu_peer_host_limited(NODE(2)->host, ID(1)));
    relay_rig_close(&r);
    /* And when nobody answers there, it helps. */
    relay_rig_open(&r, 3, NULL);
    relay_rig_run_all(&r);
    relay_rig_reserve(&r, 1, 0);
    rig_run(&r.base, 1000);
    rig_introduce(NODE(2), NODE(1));
    relay_rig_learn(&r, 2, 1, 0);
    rig_call(NODE(2), NODE(1), &call, 10);
    rig_run(&r.base, 1000);
    rig_assert_echoed(&call);
    assert_true(mu_peer_host_limited(NODE(2)->host, ID(1)));
    relay_rig_close(&r);
}

static void test_relay_that_stops_ends_all_circuits(void **state)
{
    struct rig_call call;

    (void)state;
    relay_rig_open(&r, 3, NULL);
    set_up();
    rig_call(NODE(2), NODE(1), &call, 10);
    rig_run(&r.base, 500);
    rig_call(NODE(2), NODE(1), &call, 50u << 20);
    rig_run(&r.base, 10);
    assert_int_equal(relay_rig_stats(&r, 0).circuits, 1);
    relay_rig_leave(&r, 0);
    rig_run(&r.base, 1000);
    assert_int_equal(call.ended, 1);
    assert_int_not_equal(call.status, 0);
    assert_false(mu_peer_host_connected(NODE(2)->host, ID(1)));
    assert_true(mu_peer_host_connected(NODE(2)->host, ID(0)));
    relay_rig_close(&r);
}

static void test_relay_without_the_service_is_not_dialled_through(void **state)
{
    struct mu_buf addr;
    struct mu_errmsg msg;
    char text[400];

    (void)state;
    relay_rig_open(&r, 3, NULL);
    relay_rig_run_all(&r);
    relay_rig_leave(&r, 2);
    relay_rig_addr(&r, 0, true, text, sizeof(text));
    mu_buf_init(&addr, MU_MULTIADDR_MAX);
    assert_int_equal(mu_multiaddr_parse(&addr, text, &msg), 0);
    assert_int_equal(mu_peer_host_add_addr(NODE(2)->host, ID(1), mu_buf_span(&addr)),
                     MUSTER_ENOTSUP);
    mu_buf_fini(&addr);
    relay_rig_close(&r);
}

/* A circuit whose owner is not the host, and takes what comes as it likes. */
struct slow {
    struct mu_conn conn;
    size_t i, to, through;
    char got[64];
    size_t got_len;
    size_t offers;
    bool greedy; /* a byte at a time, and more at once; else nothing for now */
    bool opened, closed;
};

static struct slow slow;
static const char hello[] = "\x13/multistream/1.0.0\n"; /* which is answered with the same */

static void slow_open(struct mu_conn *conn)
{
    size_t taken;

    slow.opened = true;
    mu_env_send(conn->env, conn, mu_span(hello, sizeof(hello) - 1), &taken);
    assert_int_equal(taken, sizeof(hello) - 1);
}

static size_t slow_data(struct mu_conn *conn, struct mu_span in)
{
    slow.offers++;
    if (!slow.greedy || slow.got_len == sizeof(slow.got)) {
        return 0;
    }
    slow.got[slow.got_len++] = (char)in.data[0];
    mu_env_resume(conn->env, conn);
    return 1;
}

static void slow_nothing(struct mu_conn *conn)
{
    (void)conn;
}

static void slow_closed(struct mu_conn *conn, int status)
{
    (void)conn;
    (void)status;
    slow.closed = true;
}

static const struct mu_conn_events slow_events = {
    .open = slow_open,
    .data = slow_data,
    .eof = slow_nothing,
    .writable = slow_nothing,
    .closed = slow_closed,
};

static void slow_dial_inside(void *arg)
{
    struct mu_peer_circuits *dialler = &r.relay[slow.i]->circuits->dialler;
    struct mu_errmsg msg;
    struct mu_buf addr;
    char text[400];

    (void)arg;
    relay_rig_addr(&r, slow.through, true, text, sizeof(text));
    mu_buf_init(&addr, MU_MULTIADDR_MAX);
    assert_int_equal(mu_multiaddr_parse(&addr, text, &msg), 0);
    slow.conn.on = &slow_events;
    assert_int_equal(dialler->dial(dialler, &slow.conn, mu_buf_span(&addr), ID(slow.to)), 0);
    mu_buf_fini(&addr);
}

static void slow_resume_inside(void *arg)
{
    (void)arg;
    mu_env_resume(slow.conn.env, &slow.conn);
}

static void slow_close_inside(void *arg)
{
    (void)arg;
    mu_env_close(slow.conn.env, &slow.conn, true);
}

static void test_relay_circuit_offers_again_what_was_left(void **state)
{
    (void)state;
    relay_rig_open(&r, 3, NULL);
    set_up();
    slow = (struct slow){.i = 2, .to = 1, .through = 0};
    mu_sim_call(NODE(2)->proc, slow_dial_inside, NULL);
    rig_run(&r.base, 1000);
    assert_true(slow.opened);
    /* Once, and not again before it is asked for. */
    assert_int_equal(slow.offers, 1);
    mu_sim_call(NODE(2)->proc, slow_resume_inside, NULL);
    assert_int_equal(slow.offers, 1); /* not inside of the verb */
    rig_run(&r.base, 1000);
    assert_int_equal(slow.offers, 2);
    slow.greedy = true;
    mu_sim_call(NODE(2)->proc, slow_resume_inside, NULL);
    rig_run(&r.base, 1000);
    assert_int_equal(slow.got_len, sizeof(hello) - 1);
    assert_memory_equal(slow.got, hello, sizeof(hello) - 1);
    assert_int_equal(slow.offers, 2 + slow.got_len);
    mu_sim_call(NODE(2)->proc, slow_close_inside, NULL);
    rig_run(&r.base, 1000);
    assert_true(slow.closed);
    relay_rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_relay_leads_two_peers_together),
        cmocka_unit_test(test_relay_connection_is_identified_like_another),
        cmocka_unit_test(test_relay_address_is_told_by_identify),
        cmocka_unit_test(test_relay_address_is_told_in_spite_of_a_want_of_memory),
        cmocka_unit_test(test_relay_is_found_among_connected_peers),
        cmocka_unit_test(test_relay_that_says_no_is_replaced_by_another),
        cmocka_unit_test(test_relay_place_is_renewed_before_it_ends),
        cmocka_unit_test(test_relay_connection_is_kept_while_a_place_is_held),
        cmocka_unit_test(test_relay_that_was_lost_is_asked_again),
        cmocka_unit_test(test_relay_ends_a_circuit_with_either_end),
        cmocka_unit_test(test_relay_circuit_ends_at_its_data_limit),
        cmocka_unit_test(test_relay_circuit_ends_at_its_time_limit),
        cmocka_unit_test(test_relay_holds_back_who_writes_too_much),
        cmocka_unit_test(test_relay_is_left_for_a_direct_way),
        cmocka_unit_test(test_relay_is_not_used_beside_a_direct_way),
        cmocka_unit_test(test_relay_is_dialled_through_when_nothing_else_helps),
        cmocka_unit_test(test_relay_that_stops_ends_all_circuits),
        cmocka_unit_test(test_relay_without_the_service_is_not_dialled_through),
        cmocka_unit_test(test_relay_circuit_offers_again_what_was_left),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
