/*
 * Goal: the node that can bind the endpoint hosts, nobody else does, and each is told why in a
 * line. On real sockets: the kernel's answers are what decides.
 */
#include <stdio.h>

#include "unit.h"

#include "failheap.h"
#include "own_network.h"
#include "service/rdzv/rdzv.h"
#include "service/server/server.h"
#include "skipped.h"
#include "transport/uv_env.h"

static struct mu_uv_env *uv;
static struct mu_env *env;

static int set_up(void **state)
{
    (void)state;
    if (mu_uv_env_new(&uv) != 0) {
        return -1;
    }
    env = mu_uv_env_env(uv);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    mu_uv_env_free(uv);
    return 0;
}

static struct mu_addr tcp(const char *host, uint16_t port)
{
    struct mu_addr addr = {.kind = MU_ADDR_TCP, .port = port};

    (void)snprintf(addr.host, sizeof(addr.host), "%s", host);
    return addr;
}

static void count_call(void *context)
{
    ++*(int *)context;
}

static void on_turn(struct mu_timer *timer)
{
    (void)timer;
}

/* Lets listeners that were closed go. */
static void run_some_turns(void)
{
    struct mu_timer timer;

    mu_timer_init(&timer, on_turn);
    for (int i = 0; i < 3; i++) {
        mu_env_timer_arm(env, &timer, mu_env_now(env).mono);
        mu_uv_env_turn(uv);
    }
    mu_env_timer_arm(env, &timer, MU_MONO_NEVER);
}

static void unhost(struct mu_store_server *server)
{
    int calls = 0;

    mu_rdzv_unhost(server, 0, count_call, &calls);
    assert_int_equal(calls, 0);
    while (calls == 0) {
        mu_uv_env_turn(uv);
    }
    run_some_turns();
    assert_int_equal(calls, 1);
}

static void assert_says(const struct mu_errmsg *why, const char *word)
{
    if (strstr(why->text, word) == NULL) {
        fail_msg("no '%s' in: %s", word, why->text);
    }
}

static void test_rdzv_host_is_the_one_that_binds_and_the_next_connects(void **state)
{
    struct mu_store_server *server = NULL;
    struct mu_store_server *other = NULL;
    struct mu_addr first = tcp("127.0.0.1", 0);
    struct mu_addr second;
    struct mu_errmsg why = {{0}};

    (void)state;
    assert_int_equal(mu_rdzv_host(env, MU_RDZV_HOST_TRY, false, &first, &server, &why), 1);
    assert_int_not_equal(first.port, 0);
    assert_says(&why, "hosting at 127.0.0.1:");
    assert_string_equal(mu_store_server_addr(server)->host, "127.0.0.1");

    second = tcp("127.0.0.1", first.port);
    assert_int_equal(mu_rdzv_host(env, MU_RDZV_HOST_TRY, false, &second, &other, &why), 0);
    assert_null(other);
    assert_says(&why, "in use");
    second = tcp("localhost", first.port);
    assert_int_equal(mu_rdzv_host(env, MU_RDZV_HOST_TRY, false, &second, &other, &why), 0);
    assert_int_equal(mu_rdzv_host(env, MU_RDZV_HOST_YES, false, &second, &other, &why),
                     MUSTER_EADDR);
    assert_says(&why, "is_host is true");
    assert_null(other);
    unhost(server);

    second = tcp("127.0.0.1", first.port);
    assert_int_equal(mu_rdzv_host(env, MU_RDZV_HOST_YES, false, &second, &other, &why), 1);
    assert_int_equal(second.port, first.port);
    unhost(other);
}

static void test_rdzv_host_does_nothing_where_it_is_told_not_to(void **state)
{
    struct mu_store_server *server = NULL;
    struct mu_addr addr = tcp("127.0.0.1", 0);
    struct mu_errmsg why = {{0}};

    (void)state;
    assert_int_equal(mu_rdzv_host(env, MU_RDZV_HOST_NO, false, &addr, &server, &why), 0);
    assert_null(server);
    assert_says(&why, "is_host is false");
}

static void test_rdzv_host_elsewhere_is_connected_to(void **state)
{
    struct mu_store_server *server = NULL;
    struct mu_addr addr = tcp("192.0.2.1", 29400);
    struct mu_errmsg why = {{0}};

    (void)state;
    assert_int_equal(mu_rdzv_host(env, MU_RDZV_HOST_TRY, false, &addr, &server, &why),
                     MU_RDZV_ELSEWHERE);
    assert_says(&why, "not an address of this host");
    assert_int_equal(mu_rdzv_host(env, MU_RDZV_HOST_YES, false, &addr, &server, &why),
                     MUSTER_EADDR);
    assert_null(server);
}

static void test_rdzv_host_at_every_address_is_refused_unless_asked_for(void **state)
{
    struct mu_store_server *server = NULL;
    struct mu_addr addr = tcp("0.0.0.0", 0);
    struct mu_errmsg why = {{0}};

    (void)state;
    assert_int_equal(mu_rdzv_host(env, MU_RDZV_HOST_TRY, false, &addr, &server, &why),
                     MUSTER_EADDR);
    assert_says(&why, "every host");
    assert_null(server);
}

static const char *address; /* not loopback's; NULL: there is none */

static const char *own_address(void)
{
    if (address == NULL) {
        skip_saying("there is no address but loopback's");
    }
    return address;
}

static void test_rdzv_host_at_an_own_address_serves_there_only(void **state)
{
    struct mu_store_server *server = NULL;
    struct mu_store_server *other = NULL;
    struct mu_errmsg why = {{0}};
    struct mu_addr addr;
    const char *text = own_address();

    (void)state;
    addr = tcp(text, 0);
    assert_int_equal(mu_rdzv_host(env, MU_RDZV_HOST_TRY, false, &addr, &server, &why), 1);
    assert_says(&why, "on that address only");
    assert_string_equal(addr.host, text);
    assert_string_equal(mu_store_server_addr(server)->host, text);
    addr = tcp("127.0.0.1", addr.port);
    assert_int_equal(mu_rdzv_host(env, MU_RDZV_HOST_TRY, false, &addr, &other, &why), 1);
    unhost(other);
    unhost(server);
}

static void test_rdzv_host_everywhere_has_to_be_asked_for(void **state)
{
    struct mu_store_server *server = NULL;
    struct mu_addr addr = tcp("0.0.0.0", 0);
    struct mu_errmsg why = {{0}};

    (void)state;
    assert_int_equal(mu_rdzv_host(env, MU_RDZV_HOST_YES, false, &addr, &server, &why), 1);
    assert_says(&why, "on all addresses");
    assert_string_equal(mu_store_server_addr(server)->host, "0.0.0.0");
    unhost(server);
}

static void test_rdzv_host_without_memory_fails_and_holds_nothing(void **state)
{
    struct mu_addr addr = tcp("127.0.0.1", 0);
    bool fired = true;

    (void)state;
    for (long nth = 0; fired; nth++) {
        struct mu_store_server *server = NULL;
        struct mu_errmsg why = {{0}};
        struct mu_addr at = addr;
        int rc;

        failheap_arm(nth);
        rc = mu_rdzv_host(env, MU_RDZV_HOST_TRY, false, &at, &server, &why);
        fired = failheap_fired();
        failheap_disarm();
        if (rc == 1) {
            unhost(server);
        } else {
            assert_true(fired);
            assert_null(server);
            run_some_turns();
        }
    }
}

/* --- a peer that still has something to say --------------------------------------------------- */

static int peer_opened, peer_closed;

static void on_peer_open(struct mu_conn *conn)
{
    (void)conn;
    peer_opened++;
}

static size_t on_peer_data(struct mu_conn *conn, struct mu_span in)
{
    (void)conn;
    return in.len;
}

static void ignore_conn(struct mu_conn *conn)
{
    (void)conn;
}

static void on_peer_closed(struct mu_conn *conn, int status)
{
    (void)conn;
    (void)status;
    peer_closed++;
}

static const struct mu_conn_events peer_events = {.open = on_peer_open,
                                                  .data = on_peer_data,
                                                  .eof = ignore_conn,
                                                  .writable = ignore_conn,
                                                  .closed = on_peer_closed};

/* Hosts, and has a peer connect that the server knows of. */
static struct mu_store_server *host_with_peer(struct mu_conn *peer)
{
    struct mu_store_server *server = NULL;
    struct mu_addr addr = tcp("127.0.0.1", 0);
    struct mu_store_server_stats stats = {0};
    struct mu_errmsg why;

    peer_opened = peer_closed = 0;
    assert_int_equal(mu_rdzv_host(env, MU_RDZV_HOST_TRY, false, &addr, &server, &why), 1);
    *peer = (struct mu_conn){.on = &peer_events};
    assert_int_equal(mu_env_dial(env, peer, &addr), 0);
    while (peer_opened == 0 || stats.connections == 0) {
        mu_uv_env_turn(uv);
        mu_store_server_stats(server, &stats);
    }
    return server;
}

static void test_rdzv_host_lingers_until_its_peers_have_gone(void **state)
{
    struct mu_conn peer;
    struct mu_store_server *server = host_with_peer(&peer);
    mu_mono_t began = mu_env_now(env).mono;
    int calls = 0;

    (void)state;
    mu_rdzv_unhost(server, 60000, count_call, &calls);
    while (mu_mono_since(began, mu_env_now(env).mono) < 50 * MU_NS_PER_MS) {
        mu_uv_env_turn(uv);
    }
    assert_int_equal(calls, 0);
    assert_int_equal(peer_closed, 0);
    mu_env_close(env, &peer, false);
    while (calls == 0) {
        mu_uv_env_turn(uv);
    }
    run_some_turns();
    assert_true(mu_mono_since(began, mu_env_now(env).mono) < 30 * MU_NS_PER_S);
}

static void test_rdzv_host_does_not_linger_for_ever(void **state)
{
    struct mu_conn peer;
    struct mu_store_server *server = host_with_peer(&peer);
    int calls = 0;

    (void)state;
    mu_rdzv_unhost(server, 30, count_call, &calls);
    while (calls == 0) {
        mu_uv_env_turn(uv);
    }
    while (peer_closed == 0) {
        mu_env_close(env, &peer, true);
        mu_uv_env_turn(uv);
    }
    run_some_turns();
    assert_int_equal(calls, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_rdzv_host_is_the_one_that_binds_and_the_next_connects,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_rdzv_host_does_nothing_where_it_is_told_not_to, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_rdzv_host_elsewhere_is_connected_to, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_rdzv_host_at_every_address_is_refused_unless_asked_for,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_rdzv_host_at_an_own_address_serves_there_only, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_rdzv_host_everywhere_has_to_be_asked_for, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_rdzv_host_lingers_until_its_peers_have_gone, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_rdzv_host_does_not_linger_for_ever, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_rdzv_host_without_memory_fails_and_holds_nothing,
                                        set_up, tear_down),
    };

    address = own_network();
    return skipped_or(cmocka_run_group_tests(tests, NULL, NULL));
}
