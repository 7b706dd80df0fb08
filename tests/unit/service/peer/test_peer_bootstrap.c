/* Peers to bootstrap from that are late, go, and come back. */
#include "peer_rig.h"

#include "service/peer/bootstrap.h"

struct seeking {
    struct rig_node *from;
    struct mu_peer_bootstrap base;
    const char *addr;
    int met, missed;
    int status;
};

static void on_told(struct mu_peer_bootstrap *base, int status, const char *text)
{
    struct seeking *s = MU_CONTAINER_OF(base, struct seeking, base);

    assert_true((status == 0) == (text[0] == '\0'));
    assert_true(base->met == (status == 0));
    s->met += status == 0 ? 1 : 0;
    s->missed += status != 0 ? 1 : 0;
    s->status = status;
}

static void start_inside(void *arg)
{
    struct seeking *s = arg;
    struct mu_buf addr;
    struct mu_errmsg msg;

    mu_buf_init(&addr, MU_MULTIADDR_MAX);
    assert_int_equal(mu_multiaddr_parse(&addr, s->addr, &msg), 0);
    s->base.told = on_told;
    assert_int_equal(mu_peer_bootstrap_start(s->from->host, &s->base, mu_buf_span(&addr)), 0);
    mu_buf_fini(&addr);
}

static void stop_inside(void *arg)
{
    mu_peer_bootstrap_stop(&((struct seeking *)arg)->base);
    mu_peer_bootstrap_stop(&((struct seeking *)arg)->base);
}

static void listen_inside(void *arg)
{
    struct rig_node *n = arg;
    struct mu_errmsg msg;
    char addr[64];

    (void)snprintf(addr, sizeof(addr), "/dns/%s/tcp/%d", n->name, RIG_PORT);
    assert_int_equal(mu_peer_host_listen(n->host, addr, &msg), 0);
}

static void disconnect_inside(void *arg)
{
    struct rig_pair *p = arg;

    mu_peer_host_disconnect(p->of->host, &p->who->identity.id);
}

static void test_peer_bootstrap_waits_for_one_that_is_late(void **unused)
{
    struct rig r;
    struct seeking s;

    (void)unused;
    rig_open(&r, 2, NULL);
    s = (struct seeking){.from = &r.node[0], .addr = "/dns/b/tcp/4001"};
    r.node[1].listens = false;
    rig_run_all(&r);
    mu_sim_call(r.node[0].proc, start_inside, &s);
    rig_run(&r, 100000);
    assert_int_equal(s.met, 0);
    assert_int_equal(s.missed, 1); /* however often it was tried: that is told once */
    assert_in_range(rig_stats(&r.node[0]).dials, 5, 8);
    mu_sim_call(r.node[1].proc, listen_inside, &r.node[1]);
    rig_run(&r, 31000);
    assert_int_equal(s.met, 1);
    assert_true(s.base.met && mu_peer_id_eq(&s.base.peer, &r.node[1].identity.id));
    mu_sim_call(r.node[0].proc, stop_inside, &s);
    rig_close(&r);
}

static void test_peer_bootstrap_comes_back_to_one_that_was_lost(void **unused)
{
    struct rig r;
    struct seeking s;

    (void)unused;
    rig_open(&r, 2, NULL);
    s = (struct seeking){.from = &r.node[0], .addr = "/dns/b/tcp/4001"};
    r.node[0].config.idle_ms = 5000;
    rig_run_all(&r);
    mu_sim_call(r.node[0].proc, start_inside, &s);
    rig_run(&r, 60000);
    assert_int_equal(r.node[0].disconnected, 0); /* It is kept, idle as it is. */
    assert_int_equal(s.met, 1);
    for (int i = 2; i < 5; i++) {
        mu_sim_call(r.node[1].proc, disconnect_inside, &(struct rig_pair){&r.node[1], &r.node[0]});
        rig_run(&r, 500);
        assert_int_equal(s.missed, i - 1);
        assert_false(s.base.met);
        rig_run(&r, 1000);
        assert_int_equal(s.met, i);
    }
    mu_sim_call(r.node[0].proc, stop_inside, &s);
    rig_run(&r, 20000);
    assert_int_equal(r.node[0].disconnected, 4); /* Nobody keeps it any more. */
    assert_int_equal(s.missed, 3);
    rig_close(&r);
}

static void test_peer_bootstrap_stops_while_it_tries(void **unused)
{
    struct rig r;
    struct seeking s;

    (void)unused;
    for (uint64_t ms = 0; ms < 1500; ms += 500) {
        rig_open(&r, 2, NULL);
        s = (struct seeking){.from = &r.node[0], .addr = "/dns/b/tcp/4002"};
        rig_run_all(&r);
        mu_sim_call(r.node[0].proc, start_inside, &s);
        rig_run(&r, ms);
        mu_sim_call(r.node[0].proc, stop_inside, &s);
        rig_run(&r, 10000);
        assert_int_equal(s.missed, ms == 0 ? 0 : 1);
        assert_in_range(rig_stats(&r.node[0]).dials, 1, 2);
        rig_close(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_peer_bootstrap_waits_for_one_that_is_late),
        cmocka_unit_test(test_peer_bootstrap_comes_back_to_one_that_was_lost),
        cmocka_unit_test(test_peer_bootstrap_stops_while_it_tries),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
