/* Hosts of peers in the simulator: who is reached on which connection, and what ends how. */
#include "peer_rig.h"

static void test_peer_host_echoes_over_a_dial(void **state)
{
    struct rig r;
    struct rig_call call;

    (void)state;
    rig_open(&r, 2, NULL);
    rig_run_all(&r);
    rig_introduce(&r.node[0], &r.node[1]);
    rig_call(&r.node[0], &r.node[1], &call, 100000);
    rig_run(&r, 2000);
    rig_assert_echoed(&call);
    assert_true(call.ready);
    assert_int_equal(rig_stats(&r.node[0]).dials, 1);
    assert_int_equal(r.node[0].connected, 1);
    assert_int_equal(r.node[1].connected, 1);
    assert_int_equal(r.node[0].identified, 1);
    assert_int_equal(r.node[1].identified, 1);
    assert_true(mu_peer_host_speaks(r.node[0].host, &r.node[1].identity.id, RIG_ECHO));
    assert_false(mu_peer_host_speaks(r.node[0].host, &r.node[1].identity.id, "/no/such"));
    rig_close(&r);
}

static void test_peer_host_calls_back_over_the_same_connection(void **state)
{
    struct rig r;
    struct rig_call there;
    struct rig_call back;

    (void)state;
    rig_open(&r, 2, NULL);
    r.node[0].listens = false;
    rig_run_all(&r);
    rig_introduce(&r.node[0], &r.node[1]);
    rig_call(&r.node[0], &r.node[1], &there, 10);
    rig_run(&r, 1000);
    rig_call(&r.node[1], &r.node[0], &back, 1000000);
    rig_run(&r, 5000);
    rig_assert_echoed(&there);
    rig_assert_echoed(&back);
    assert_int_equal(rig_stats(&r.node[1]).dials, 0);
    assert_int_equal(rig_stats(&r.node[1]).conns, 1);
    rig_close(&r);
}

static void test_peer_host_without_an_address_says_so(void **state)
{
    struct rig r;
    struct rig_call call;

    (void)state;
    rig_open(&r, 2, NULL);
    rig_run_all(&r);
    rig_call(&r.node[0], &r.node[1], &call, 10);
    rig_run(&r, 100);
    assert_int_equal(call.ended, 1);
    assert_int_equal(call.status, MUSTER_ENOENT);
    rig_close(&r);
}

static void test_peer_host_settles_simultaneous_dials(void **state)
{
    struct rig r;
    struct rig_call call[2][20];

    (void)state;
    rig_open(&r, 2, NULL);
    rig_run_all(&r);
    rig_introduce(&r.node[0], &r.node[1]);
    rig_introduce(&r.node[1], &r.node[0]);
    for (size_t i = 0; i < 20; i++) {
        rig_call(&r.node[0], &r.node[1], &call[0][i], 1000);
        rig_call(&r.node[1], &r.node[0], &call[1][i], 300000);
    }
    rig_run(&r, 20000);
    for (size_t i = 0; i < 20; i++) {
        rig_assert_echoed(&call[0][i]);
        rig_assert_echoed(&call[1][i]);
    }
    assert_int_equal(rig_stats(&r.node[0]).dials, 1);
    assert_int_equal(rig_stats(&r.node[1]).dials, 1);
    assert_int_equal(rig_stats(&r.node[0]).conns, 1);
    assert_int_equal(rig_stats(&r.node[1]).conns, 1);
    assert_int_equal(r.node[0].connected, 1);
    assert_int_equal(r.node[0].disconnected, 0);
    rig_close(&r);
}

static void test_peer_host_closes_idle_connections(void **state)
{
    struct rig r;
    struct rig_call call;

    (void)state;
    rig_open(&r, 2, NULL);
    r.node[0].config.idle_ms = 5000;
    rig_run_all(&r);
    rig_introduce(&r.node[0], &r.node[1]);
    rig_call(&r.node[0], &r.node[1], &call, 10);
    rig_run(&r, 4000);
    assert_int_equal(rig_stats(&r.node[0]).conns, 1);
    rig_run(&r, 4000);
    assert_int_equal(rig_stats(&r.node[0]).conns, 0);
    assert_int_equal(rig_stats(&r.node[1]).conns, 0);
    assert_int_equal(r.node[0].disconnected, 1);
    assert_int_equal(r.node[1].disconnected, 1);
    rig_call(&r.node[0], &r.node[1], &call, 10);
    rig_run(&r, 1000);
    rig_assert_echoed(&call);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_peer_host_echoes_over_a_dial),
        cmocka_unit_test(test_peer_host_calls_back_over_the_same_connection),
        cmocka_unit_test(test_peer_host_without_an_address_says_so),
        cmocka_unit_test(test_peer_host_settles_simultaneous_dials),
        cmocka_unit_test(test_peer_host_closes_idle_connections),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
