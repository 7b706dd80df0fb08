/* The limits of a host of peers: connections, peers that it knows, and their addresses. */
#include "peer_rig.h"

static void assert_refused(const struct rig_call *c)
{
    assert_int_equal(c->ended, 1);
    assert_int_not_equal(c->status, 0);
    assert_int_equal(c->got, 0);
}

static void test_peer_host_has_so_many_connections(void **state)
{
    static struct rig r;
    struct rig_call call;

    (void)state;
    rig_open(&r, 4, NULL);
    r.node[1].config.conns_max = 2;
    rig_run_all(&r);
    for (size_t i = 0; i < 4; i++) {
        rig_introduce(&r.node[i], &r.node[1]);
    }
    rig_introduce(&r.node[1], &r.node[3]);
    rig_call(&r.node[0], &r.node[1], &call, 10);
    rig_run(&r, 1000);
    rig_assert_echoed(&call);
    rig_call(&r.node[2], &r.node[1], &call, 10);
    rig_run(&r, 1000);
    rig_assert_echoed(&call);
    /* Another is turned away, and cannot be called either; those that are there stay. */
    rig_call(&r.node[3], &r.node[1], &call, 10);
    rig_run(&r, 20000);
    assert_refused(&call);
    assert_true(rig_stats(&r.node[1]).turned_away > 0);
    assert_int_equal(rig_stats(&r.node[1]).last_failure, MUSTER_ELIMIT);
    rig_call(&r.node[1], &r.node[3], &call, 10);
    rig_run(&r, 20000);
    assert_refused(&call);
    assert_int_equal(call.status, MUSTER_ELIMIT);
    assert_non_null(strstr(call.text, "there are 2 connections already"));
    rig_call(&r.node[0], &r.node[1], &call, 10);
    rig_run(&r, 1000);
    rig_assert_echoed(&call);
    rig_stop_node(&r.node[2]);
    rig_run(&r, 10000);
    rig_call(&r.node[3], &r.node[1], &call, 10);
    rig_run(&r, 1000);
    rig_assert_echoed(&call);
    rig_close(&r);
}

/* Two processes that have the same key are one peer. */
static void test_peer_host_has_so_many_connections_with_one_peer(void **state)
{
    static struct rig r;
    struct rig_call call;
    uint8_t seed[MU_IDENTITY_SEED_LEN];

    (void)state;
    rig_open(&r, 4, NULL);
    memset(seed, 1, sizeof(seed));
    mu_identity_fini(&r.node[2].identity);
    assert_int_equal(mu_identity_from_seed(&r.node[2].identity, seed), 0);
    r.node[1].config.conns_peer_max = 1;
    rig_run_all(&r);
    for (size_t i = 0; i < 4; i++) {
        rig_introduce(&r.node[i], &r.node[1]);
    }
    rig_call(&r.node[0], &r.node[1], &call, 10);
    rig_run(&r, 1000);
    rig_assert_echoed(&call);
    rig_call(&r.node[2], &r.node[1], &call, 10);
    rig_run(&r, 20000);
    assert_refused(&call);
    assert_int_equal(rig_stats(&r.node[1]).last_failure, MUSTER_ELIMIT);
    /* Neither its first connection nor other peers suffer from it. */
    rig_call(&r.node[0], &r.node[1], &call, 10);
    rig_run(&r, 1000);
    rig_assert_echoed(&call);
    rig_call(&r.node[3], &r.node[1], &call, 10);
    rig_run(&r, 1000);
    rig_assert_echoed(&call);
    rig_close(&r);
}

static struct mu_peer_id some_peer(uint8_t n)
{
    return (struct mu_peer_id){.len = 34, .bytes = {0x12, 0x20, n}};
}

static int learn(struct rig_node *n, uint8_t peer, const char *addr)
{
    struct mu_peer_id id = some_peer(peer);
    struct mu_errmsg msg;
    struct mu_buf bytes;
    int err;

    mu_buf_init(&bytes, 256);
    assert_int_equal(mu_multiaddr_parse(&bytes, addr, &msg), 0);
    err = mu_peer_host_add_addr(n->host, &id, mu_buf_span(&bytes));
    mu_buf_fini(&bytes);
    return err;
}

static bool knows(struct rig_node *n, uint8_t peer)
{
    struct mu_peer_id id = some_peer(peer);

    return mu_peer_host_addr(n->host, &id, 0).len != 0;
}

static void fill_the_book(void *arg)
{
    struct rig_node *n = arg;

    assert_int_equal(learn(n, 1, "/ip4/10.0.0.1/tcp/1"), 0);
    assert_int_equal(learn(n, 2, "/ip4/10.0.0.2/tcp/1"), 0);
    assert_int_equal(learn(n, 1, "/ip4/10.0.0.1/tcp/2"), 0);
    assert_true(knows(n, 1) && knows(n, 2));
    assert_int_equal(learn(n, 3, "/ip4/10.0.0.3/tcp/1"), 0);
    assert_true(knows(n, 1) && knows(n, 3));
    assert_false(knows(n, 2));
}

static void test_peer_host_forgets_the_peer_that_was_longest_unheard_of(void **state)
{
    static struct rig r;
    struct rig_call call;

    (void)state;
    rig_open(&r, 2, NULL);
    r.node[1].config.book_max = 3;
    rig_run_all(&r);
    rig_introduce(&r.node[0], &r.node[1]);
    rig_call(&r.node[0], &r.node[1], &call, 10);
    rig_run(&r, 1000);
    rig_assert_echoed(&call);
    /* The first in the book is connected, and stays. */
    mu_sim_call(r.node[1].proc, fill_the_book, &r.node[1]);
    rig_call(&r.node[0], &r.node[1], &call, 10);
    rig_run(&r, 1000);
    rig_assert_echoed(&call);
    assert_int_equal(rig_stats(&r.node[1]).accepts, 1);
    rig_close(&r);
}

static void fill_the_page(void *arg)
{
    static const char *const addrs[] = {"/ip4/10.0.0.1/tcp/1", "/ip4/10.0.0.1/tcp/2",
                                        "/ip4/10.0.0.1/tcp/1", "/ip4/10.0.0.1/tcp/3"};
    struct rig_node *n = arg;
    struct mu_peer_id id = some_peer(1);

    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(learn(n, 1, addrs[i]), 0);
    }
    for (size_t i = 0; i < 2; i++) { /* What was heard of last is first. */
        struct mu_errmsg msg;
        struct mu_buf bytes;

        mu_buf_init(&bytes, 256);
        assert_int_equal(mu_multiaddr_parse(&bytes, addrs[3 - i], &msg), 0);
        assert_true(mu_span_eq(mu_peer_host_addr(n->host, &id, i), mu_buf_span(&bytes)));
        mu_buf_fini(&bytes);
    }
    assert_int_equal(mu_peer_host_addr(n->host, &id, 2).len, 0);
}

static void test_peer_host_knows_so_many_addresses_of_a_peer(void **state)
{
    static struct rig r;

    (void)state;
    rig_open(&r, 1, NULL);
    r.node[0].config.addrs_max = 2;
    rig_run_all(&r);
    mu_sim_call(r.node[0].proc, fill_the_page, &r.node[0]);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_peer_host_has_so_many_connections),
        cmocka_unit_test(test_peer_host_has_so_many_connections_with_one_peer),
        cmocka_unit_test(test_peer_host_forgets_the_peer_that_was_longest_unheard_of),
        cmocka_unit_test(test_peer_host_knows_so_many_addresses_of_a_peer),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
