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

/* A path of 40 to 60 ms there and back, on which something comes or goes all the time: it is
 * measured all the same, and the windows grow with it. */
static void test_peer_host_measures_a_path_that_is_busy(void **state)
{
    static struct rig_call small[200];
    struct mu_sim_faults faults = mu_sim_faults_none();
    struct rig r;
    struct rig_call call;

    (void)state;
    faults.latency_min_ns = 20 * MU_NS_PER_MS;
    faults.latency_max_ns = 20 * MU_NS_PER_MS;
    faults.capacity_bytes = 32u << 20;
    rig_open(&r, 2, &faults);
    rig_run_all(&r);
    rig_introduce(&r.node[0], &r.node[1]);
    rig_call(&r.node[0], &r.node[1], &call, 32u << 20);
    for (size_t i = 0; i < sizeof(small) / sizeof(small[0]); i++) {
        rig_call(&r.node[0], &r.node[1], &small[i], 1);
        rig_run(&r, 5);
    }
    rig_assert_echoed(&call);
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
    /* Both stay: other peers may use either, and lose streams with it. */
    assert_int_equal(rig_stats(&r.node[0]).conns, 2);
    assert_int_equal(rig_stats(&r.node[1]).conns, 2);
    assert_int_equal(r.node[0].connected, 1);
    assert_int_equal(r.node[0].disconnected, 0);
    assert_int_equal(mu_peer_host_keep(r.node[0].host, &r.node[1].identity.id, true), 0);
    assert_int_equal(mu_peer_host_keep(r.node[1].host, &r.node[0].identity.id, true), 0);
    rig_run(&r, r.node[0].config.idle_ms + 10000);
    assert_int_equal(rig_stats(&r.node[0]).conns, 1);
    assert_int_equal(rig_stats(&r.node[1]).conns, 1);
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

static void test_peer_host_keeps_who_is_to_be_kept(void **state)
{
    struct rig r;
    struct rig_call call;

    (void)state;
    rig_open(&r, 2, NULL);
    r.node[0].config.idle_ms = 5000;
    rig_run_all(&r);
    rig_introduce(&r.node[0], &r.node[1]);
    rig_call(&r.node[0], &r.node[1], &call, 10);
    rig_run(&r, 1000);
    assert_int_equal(mu_peer_host_keep(r.node[0].host, &r.node[1].identity.id, true), 0);
    rig_run(&r, 120000);
    assert_int_equal(rig_stats(&r.node[0]).conns, 1);
    assert_int_equal(mu_peer_host_keep(r.node[0].host, &r.node[1].identity.id, false), 0);
    rig_run(&r, 20000);
    assert_int_equal(rig_stats(&r.node[0]).conns, 0);
    rig_close(&r);
}

static void test_peer_host_notices_a_peer_that_is_gone(void **state)
{
    struct rig r;
    struct rig_call call;

    (void)state;
    rig_open(&r, 2, NULL);
    r.node[0].config.idle_ms = 0;
    r.node[1].config.idle_ms = 0;
    rig_run_all(&r);
    rig_introduce(&r.node[0], &r.node[1]);
    rig_call(&r.node[0], &r.node[1], &call, 10);
    rig_run(&r, 1000);
    mu_sim_cut(r.node[1].sim_host, r.node[0].sim_host, 600 * MU_NS_PER_S);
    mu_sim_cut(r.node[0].sim_host, r.node[1].sim_host, 600 * MU_NS_PER_S);
    rig_run(&r, 45000); /* a ping every 30 s, 10 s to answer it */
    assert_int_equal(r.node[0].disconnected, 1);
    assert_int_equal(r.node[0].why, MUSTER_ETIMEDOUT);
    rig_run(&r, 600000);
    rig_close(&r);
}

static void test_peer_host_of_a_private_swarm_turns_strangers_away(void **state)
{
    struct rig r;
    struct rig_call friend;
    struct rig_call stranger;

    (void)state;
    rig_open(&r, 3, NULL);
    r.node[0].config.private_swarm = true;
    rig_run_all(&r);
    assert_int_equal(mu_peer_host_allow(r.node[0].host, &r.node[1].identity.id), 0);
    rig_introduce(&r.node[1], &r.node[0]);
    rig_introduce(&r.node[2], &r.node[0]);
    rig_call(&r.node[1], &r.node[0], &friend, 1000);
    rig_call(&r.node[2], &r.node[0], &stranger, 1000);
    rig_run(&r, 20000);
    rig_assert_echoed(&friend);
    assert_int_equal(stranger.ended, 1);
    assert_int_not_equal(stranger.status, 0);
    assert_int_equal(stranger.got, 0);
    assert_true(rig_stats(&r.node[0]).denied >= 1);
    assert_int_equal(rig_stats(&r.node[0]).last_failure, MUSTER_EPEERDENIED);
    /* Nor does it dial them. */
    rig_introduce(&r.node[0], &r.node[2]);
    rig_call(&r.node[0], &r.node[2], &stranger, 10);
    rig_run(&r, 1000);
    assert_int_equal(stranger.status, MUSTER_EPEERDENIED);
    rig_close(&r);
}

static void test_peer_host_ban_ends_what_there_is(void **state)
{
    struct rig r;
    struct rig_call call;

    (void)state;
    rig_open(&r, 2, NULL);
    rig_run_all(&r);
    rig_introduce(&r.node[0], &r.node[1]);
    rig_call(&r.node[0], &r.node[1], &call, 100u << 20);
    rig_run(&r, 20);
    assert_true(call.got != 0);
    assert_int_equal(call.ended, 0);
    assert_int_equal(mu_peer_host_ban(r.node[0].host, &r.node[1].identity.id), 0);
    rig_run(&r, 1000);
    assert_int_equal(call.ended, 1);
    assert_int_equal(call.status, MUSTER_EPEERDENIED);
    rig_call(&r.node[0], &r.node[1], &call, 10);
    rig_run(&r, 1000);
    assert_int_equal(call.status, MUSTER_EPEERDENIED);
    mu_peer_host_unban(r.node[0].host, &r.node[1].identity.id);
    rig_call(&r.node[0], &r.node[1], &call, 10);
    rig_run(&r, 1000);
    rig_assert_echoed(&call);
    rig_close(&r);
}

static void test_peer_host_refuses_a_name_that_nobody_serves(void **state)
{
    static const struct mu_span names[] = {{(const uint8_t *)"/no/such/1", 10},
                                           {(const uint8_t *)RIG_ECHO, sizeof(RIG_ECHO) - 1}};
    struct rig r;
    struct rig_call none;
    struct rig_call second;

    (void)state;
    rig_open(&r, 2, NULL);
    rig_run_all(&r);
    rig_introduce(&r.node[0], &r.node[1]);
    rig_call_names(&r.node[0], &r.node[1], &none, 10, names, 1);
    rig_call_names(&r.node[0], &r.node[1], &second, 10, names, 2);
    rig_run(&r, 2000);
    assert_int_equal(none.ended, 1);
    assert_int_equal(none.status, MUSTER_EREFUSED);
    rig_assert_echoed(&second);
    rig_close(&r);
}

static void test_peer_host_refuses_streams_beyond_its_memory(void **state)
{
    struct rig r;
    struct rig_call call[8];
    size_t refused = 0;

    (void)state;
    rig_open(&r, 2, NULL);
    r.node[1].config.memory_bytes_max = 4u << 20; /* a fourth for one connection: four windows */
    r.node[1].config.no_identify = true;
    r.node[0].config.no_identify = true;
    rig_run_all(&r);
    rig_introduce(&r.node[0], &r.node[1]);
    for (size_t i = 0; i < 8; i++) {
        rig_call(&r.node[0], &r.node[1], &call[i], 1000000);
    }
    rig_run(&r, 20000);
    for (size_t i = 0; i < 8; i++) {
        assert_int_equal(call[i].ended, 1);
        refused += call[i].status == MUSTER_EREFUSED ? 1 : 0;
    }
    assert_int_equal(refused, 4);
    assert_int_equal(rig_stats(&r.node[1]).streams_refused, 4);
    assert_int_equal(rig_stats(&r.node[1]).granted, 0);
    rig_call(&r.node[0], &r.node[1], &call[0], 1000000);
    rig_run(&r, 5000);
    rig_assert_echoed(&call[0]);
    rig_close(&r);
}

struct finder {
    struct mu_peer_router router;
    struct mu_timer timer;
    struct rig_node *of;
    struct rig_node *who;
    size_t asked;
};

static void on_found(struct mu_timer *timer)
{
    struct finder *f = MU_CONTAINER_OF(timer, struct finder, timer);

    if (f->who != NULL) {
        rig_introduce_inside(&(struct rig_pair){f->of, f->who});
    }
    mu_peer_host_found(f->of->host, &f->of->rig->node[1].identity.id);
}

static void on_find(struct mu_peer_router *router, const struct mu_peer_id *peer)
{
    struct finder *f = MU_CONTAINER_OF(router, struct finder, router);

    assert_true(mu_peer_id_eq(peer, &f->of->rig->node[1].identity.id));
    f->asked++;
    mu_env_timer_arm(f->of->env, &f->timer, mu_mono_add_ms(mu_env_now(f->of->env).mono, 300));
}

static void test_peer_host_asks_its_router_once(void **state)
{
    struct rig r;
    struct finder f = {.router = {.find = on_find}};
    struct rig_call call[2];

    (void)state;
    rig_open(&r, 2, NULL);
    rig_run_all(&r);
    mu_timer_init(&f.timer, on_found);
    f.of = &r.node[0];
    mu_peer_host_set_router(r.node[0].host, &f.router);
    rig_call(&r.node[0], &r.node[1], &call[0], 10);
    rig_run(&r, 1000);
    assert_int_equal(f.asked, 1);
    assert_int_equal(call[0].status, MUSTER_ENOENT);
    f.who = &r.node[1];
    rig_call(&r.node[0], &r.node[1], &call[0], 10);
    rig_call(&r.node[0], &r.node[1], &call[1], 10);
    rig_run(&r, 2000);
    assert_int_equal(f.asked, 2);
    rig_assert_echoed(&call[0]);
    rig_assert_echoed(&call[1]);
    rig_close(&r);
}

static void test_peer_host_pushes_what_has_changed(void **state)
{
    struct rig r;
    struct rig_call call;
    struct mu_peer_handler more = {.name = "/rig/more/1", .opened = rig_opened};

    (void)state;
    rig_open(&r, 2, NULL);
    rig_run_all(&r);
    rig_introduce(&r.node[0], &r.node[1]);
    rig_call(&r.node[0], &r.node[1], &call, 10);
    rig_run(&r, 1000);
    assert_false(mu_peer_host_speaks(r.node[0].host, &r.node[1].identity.id, "/rig/more/1"));
    assert_int_equal(mu_peer_host_serve(r.node[1].host, &more), 0);
    assert_int_equal(mu_peer_host_serve(r.node[1].host, &more), MUSTER_EEXIST);
    rig_run(&r, 1000);
    assert_true(mu_peer_host_speaks(r.node[0].host, &r.node[1].identity.id, "/rig/more/1"));
    assert_int_equal(r.node[0].identified, 2);
    mu_peer_host_unserve(&more);
    rig_run(&r, 1000);
    assert_false(mu_peer_host_speaks(r.node[0].host, &r.node[1].identity.id, "/rig/more/1"));
    rig_close(&r);
}

static void test_peer_host_stop_ends_every_stream_once(void **state)
{
    struct rig r;
    struct rig_call call[10];

    (void)state;
    rig_open(&r, 2, NULL);
    rig_run_all(&r);
    rig_introduce(&r.node[0], &r.node[1]);
    for (size_t i = 0; i < 10; i++) {
        rig_call(&r.node[0], &r.node[1], &call[i], 10u << 20);
    }
    rig_run(&r, 50);
    rig_stop_node(&r.node[1]);
    rig_run(&r, 10000);
    for (size_t i = 0; i < 10; i++) {
        assert_int_equal(call[i].ended, 1);
        assert_int_not_equal(call[i].status, 0);
    }
    rig_close(&r);
}

struct pinging {
    struct mu_peer_ping ping;
    struct rig_node *from;
    int done;
    int status;
    uint64_t rtt_ns;
};

static void on_pinged(struct mu_peer_ping *ping, int status, const char *text, uint64_t rtt_ns)
{
    struct pinging *p = MU_CONTAINER_OF(ping, struct pinging, ping);

    (void)text;
    p->done++;
    p->status = status;
    p->rtt_ns = rtt_ns;
}

static void ping_inside(void *arg)
{
    struct pinging *p = arg;

    mu_peer_host_ping(p->from->host, &p->ping);
}

static void test_peer_host_pings_and_gives_up(void **state)
{
    struct rig r;
    struct pinging p = {.ping = {.timeout_ms = 5000, .done = on_pinged}};

    (void)state;
    rig_open(&r, 2, NULL);
    rig_run_all(&r);
    rig_introduce(&r.node[0], &r.node[1]);
    p.from = &r.node[0];
    p.ping.peer = r.node[1].identity.id;
    mu_sim_call(r.node[0].proc, ping_inside, &p);
    rig_run(&r, 1000);
    assert_int_equal(p.done, 1);
    assert_int_equal(p.status, 0);
    assert_in_range(p.rtt_ns, 1, 2 * MU_NS_PER_MS);
    mu_sim_cut(r.node[1].sim_host, r.node[0].sim_host, 20 * MU_NS_PER_S);
    mu_sim_call(r.node[0].proc, ping_inside, &p);
    rig_run(&r, 6000);
    assert_int_equal(p.done, 2);
    assert_int_equal(p.status, MUSTER_ETIMEDOUT);
    rig_run(&r, 60000);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_peer_host_echoes_over_a_dial),
        cmocka_unit_test(test_peer_host_calls_back_over_the_same_connection),
        cmocka_unit_test(test_peer_host_measures_a_path_that_is_busy),
        cmocka_unit_test(test_peer_host_without_an_address_says_so),
        cmocka_unit_test(test_peer_host_settles_simultaneous_dials),
        cmocka_unit_test(test_peer_host_closes_idle_connections),
        cmocka_unit_test(test_peer_host_keeps_who_is_to_be_kept),
        cmocka_unit_test(test_peer_host_notices_a_peer_that_is_gone),
        cmocka_unit_test(test_peer_host_of_a_private_swarm_turns_strangers_away),
        cmocka_unit_test(test_peer_host_ban_ends_what_there_is),
        cmocka_unit_test(test_peer_host_refuses_a_name_that_nobody_serves),
        cmocka_unit_test(test_peer_host_refuses_streams_beyond_its_memory),
        cmocka_unit_test(test_peer_host_asks_its_router_once),
        cmocka_unit_test(test_peer_host_pushes_what_has_changed),
        cmocka_unit_test(test_peer_host_stop_ends_every_stream_once),
        cmocka_unit_test(test_peer_host_pings_and_gives_up),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
