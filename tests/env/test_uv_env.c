/* What only the libuv environment has or can be asked: real sockets, real limits. */
#include "uv_rig.h"

#include <netinet/tcp.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/un.h>

#include "core/err.h"
#include "failheap.h"

static bool has_v6(void)
{
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool good = fd >= 0 && bind(fd, (struct sockaddr *)&v6, sizeof(v6)) == 0;

    if (fd >= 0) {
        (void)close(fd);
    }
    return good;
}

static void test_peer_that_shuts_its_end_still_gets_the_answer(void **state)
{
    struct door d;
    char answer[8];
    int fd;

    (void)state;
    door_open(&d, "127.0.0.1");
    fd = plain_connect("127.0.0.1", d.addr.port);
    assert_int_equal(send(fd, "question", 8, 0), 8);
    assert_int_equal(shutdown(fd, SHUT_WR), 0);
    run_until_count(&d.accepted, 1);
    d.ends[0].greet_at_eof = true;
    run_until_count(&d.ends[0].closed, 1);

    assert_int_equal(d.ends[0].received, 8);
    assert_int_equal(d.ends[0].eofs, 1);
    assert_int_equal(d.ends[0].status, 0);
    assert_int_equal(recv(fd, answer, sizeof(answer), 0), 2);
    assert_int_equal(recv(fd, answer, sizeof(answer), 0), 0);
    (void)close(fd);
    door_close(&d);
}

static int plain_connect_unix(const char *path)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    (void)snprintf(un.sun_path, sizeof(un.sun_path), "%s", path);
    assert_int_equal(connect(fd, (struct sockaddr *)&un, sizeof(un)), 0);
    return fd;
}

/* Who has closed a unix socket is told from who has ended its side, at once and later. */
static void test_peer_that_hangs_up_is_told_from_one_that_listens(void **state)
{
    char path[64];
    struct door d;
    int fd;

    (void)state;
    (void)snprintf(path, sizeof(path), "/tmp/muster-test-%ld.sock", (long)getpid());
    assert_int_equal(door_try(&d, MU_ADDR_UNIX, path), 0);
    fd = plain_connect_unix(path);
    assert_int_equal(send(fd, "question", 8, 0), 8);
    (void)close(fd);
    run_until_count(&d.accepted, 1);
    run_until_count(&d.ends[0].hang_ups, 1);
    assert_int_equal(d.ends[0].received, 8);

    fd = plain_connect_unix(path);
    assert_int_equal(shutdown(fd, SHUT_WR), 0);
    run_until_count(&d.accepted, 2);
    run_until_count(&d.ends[1].eofs, 1);
    assert_int_equal(d.ends[1].hang_ups, 0);
    (void)close(fd);
    run_until_count(&d.ends[1].hang_ups, 1);

    /* Who has ended its own side as well knows no more than that the other has. */
    fd = plain_connect_unix(path);
    run_until_count(&d.accepted, 3);
    assert_true(mu_env_finish(env, &d.ends[2].conn));
    assert_int_equal(shutdown(fd, SHUT_WR), 0);
    run_until_count(&d.ends[2].eofs, 1);
    assert_int_equal(d.ends[2].hang_ups, 0);
    (void)close(fd);
    door_close(&d);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(d.ends[i].hang_ups, i < 2 ? 1 : 0);
    }
}

static void test_every_way_to_say_everywhere_serves_both_families(void **state)
{
    static const char *const hosts[] = {"", "*", "::"};

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct door d;
        int fd;

        door_open(&d, hosts[i]);
        fd = plain_connect("127.0.0.1", d.addr.port);
        assert_true(fd >= 0);
        (void)close(fd);
        run_until_count(&d.accepted, 1);
        if (has_v6()) {
            fd = plain_connect("::1", d.addr.port);
            assert_true(fd >= 0);
            (void)close(fd);
            run_until_count(&d.accepted, 2);
        }
        door_close(&d);
    }
}

static void test_localhost_listens_on_each_of_its_addresses(void **state)
{
    struct door d;
    struct end e = {.conn.on = &end_events};
    struct mu_addr addr;
    int fd;

    (void)state;
    door_open(&d, "localhost");
    fd = plain_connect("127.0.0.1", d.addr.port);
    assert_true(fd >= 0);
    (void)close(fd);
    run_until_count(&d.accepted, 1);

    addr = d.addr;
    assert_int_equal(mu_env_dial(env, &e.conn, &addr), 0);
    run_until_count(&e.opened, 1);
    mu_env_close(env, &e.conn, false);
    run_until_count(&e.closed, 1);
    door_close(&d);
}

static void test_dial_tries_the_next_address(void **state)
{
    struct door d;
    struct end e = {.conn.on = &end_events};
    struct mu_addr addr;

    (void)state;
    /* "localhost" is ::1 first, where there is IPv6, and nobody is there. */
    door_open(&d, "127.0.0.1");
    addr = d.addr;
    (void)snprintf(addr.host, sizeof(addr.host), "localhost");
    assert_int_equal(mu_env_dial(env, &e.conn, &addr), 0);
    run_until_count(&e.opened, 1);
    assert_int_equal(e.closed, 0);
    mu_env_close(env, &e.conn, false);
    run_until_count(&e.closed, 1);
    door_close(&d);
}

static void test_names_that_are_not_known_have_a_code_of_their_own(void **state)
{
    struct end e = {.conn.on = &end_events};
    struct mu_addr addr = {.kind = MU_ADDR_TCP, .port = 1, .host = "no-such-host.invalid"};
    struct door d;

    (void)state;
    assert_int_equal(mu_env_dial(env, &e.conn, &addr), 0);
    assert_int_equal(e.closed, 0);
    run_until_count(&e.closed, 1);
    assert_int_equal(e.status, MUSTER_ENAME);
    assert_int_equal(door_try(&d, MU_ADDR_TCP, "no-such-host.invalid"), MUSTER_ENAME);
}

static void test_dial_given_up_while_resolving_ends_at_once(void **state)
{
    struct mu_addr addr = {.kind = MU_ADDR_TCP, .port = 1, .host = "no-such-host.invalid"};

    (void)state;
    for (int i = 0; i < 20; i++) {
        struct end e = {.conn.on = &end_events};

        assert_int_equal(mu_env_dial(env, &e.conn, &addr), 0);
        mu_env_close(env, &e.conn, i % 2 == 0);
        run_until_count(&e.closed, 1);
        assert_int_equal(e.status, 0);
        /* The memory is ours again, whatever the resolver is doing. */
        memset(&e, 0xa5, sizeof(e));
    }
}

static void test_addresses_that_cannot_be_are_refused(void **state)
{
    struct end e = {.conn.on = &end_events};
    struct mu_addr empty = {.kind = MU_ADDR_TCP, .port = 1};
    struct mu_addr no_port = {.kind = MU_ADDR_TCP, .host = "127.0.0.1"};
    struct mu_addr long_path = {.kind = MU_ADDR_UNIX};
    struct door d;

    (void)state;
    memset(long_path.host, 'p', 200);
    assert_int_equal(mu_env_dial(env, &e.conn, &empty), MUSTER_EINVAL);
    assert_int_equal(mu_env_dial(env, &e.conn, &no_port), MUSTER_EINVAL);
    assert_int_equal(mu_env_dial(env, &e.conn, &long_path), MUSTER_EINVAL);
    assert_int_equal(door_try(&d, MU_ADDR_UNIX, long_path.host), MUSTER_EINVAL);
    assert_int_equal(door_try(&d, MU_ADDR_TCP, "203.0.113.1"), -EADDRNOTAVAIL);
    assert_int_equal(e.closed, 0);
}

static void test_socket_left_by_a_killed_process_is_replaced(void **state)
{
    char path[64];
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    struct door d;
    struct door second;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    (void)state;
    (void)snprintf(path, sizeof(path), "/tmp/muster-test-%ld.sock", (long)getpid());
    memcpy(un.sun_path, path, strlen(path) + 1);
    assert_int_equal(bind(fd, (struct sockaddr *)&un, sizeof(un)), 0);
    (void)close(fd);

    assert_int_equal(door_try(&d, MU_ADDR_UNIX, path), 0);
    assert_int_equal(door_try(&second, MU_ADDR_UNIX, path), -EADDRINUSE);
    door_close(&d);
    assert_int_equal(access(path, F_OK), -1);

    /* A file that is not a socket is nobody's to remove. */
    fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    (void)close(fd);
    assert_int_equal(door_try(&d, MU_ADDR_UNIX, path), -EADDRINUSE);
    assert_int_equal(unlink(path), 0);
}

static void test_accepting_rests_without_descriptors_and_goes_on(void **state)
{
    struct rlimit old;
    struct rlimit none;
    mu_mono_t before;
    struct door d;
    int peers[4];

    (void)state;
    door_open(&d, "127.0.0.1");
    for (int i = 0; i < 4; i++) {
        peers[i] = plain_connect("127.0.0.1", d.addr.port);
        assert_true(peers[i] >= 0);
    }
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    none = old;
    none.rlim_cur = 3;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    before = mu_env_now(env).mono;
    run_until_count(&d.failures, 3);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);

    assert_int_equal(d.failure, -EMFILE);
    assert_int_equal(d.accepted, 0);
    /* It rested twice and did not spin. */
    assert_true(mu_mono_since(before, mu_env_now(env).mono) >= 200 * MU_NS_PER_MS);
    run_until_count(&d.accepted, 4);
    for (int i = 0; i < 4; i++) {
        (void)close(peers[i]);
    }
    door_close(&d);
}

static volatile sig_atomic_t pipe_signals;

static void on_sigpipe(int number)
{
    (void)number;
    pipe_signals++;
}

static void test_writing_to_a_peer_that_left_raises_no_signal(void **state)
{
    static uint8_t block[65536];
    struct sigaction catch = {.sa_handler = on_sigpipe};
    struct sigaction old;
    struct door d;
    int fd;

    (void)state;
    assert_int_equal(sigaction(SIGPIPE, &catch, &old), 0);
    door_open(&d, "127.0.0.1");
    fd = plain_connect("127.0.0.1", d.addr.port);
    run_until_count(&d.accepted, 1);
    (void)close(fd);
    run_until_count(&d.ends[0].eofs, 1);
    for (int i = 0; d.ends[0].closed == 0; i++) {
        assert_true(i < 1000);
        /* Several in one turn: the first is answered with a reset, the second runs into it. */
        for (int k = 0; k < 10; k++) {
            size_t taken;

            mu_env_send(env, &d.ends[0].conn, mu_span(block, sizeof(block)), &taken);
        }
        mu_uv_env_turn(uv);
    }
    assert_true(d.ends[0].status < 0);
    assert_int_equal(pipe_signals, 0);
    door_close(&d);
    assert_int_equal(sigaction(SIGPIPE, &old, NULL), 0);
}

static void test_descriptors_are_not_inherited(void **state)
{
    struct door d;
    int fd;

    (void)state;
    door_open(&d, "127.0.0.1");
    fd = plain_connect("127.0.0.1", d.addr.port);
    run_until_count(&d.accepted, 1);
    for (int i = 0; i < 256; i++) {
        int flags = fcntl(i, F_GETFD);

        assert_true(flags < 0 || fd_was_there[i] || (flags & FD_CLOEXEC) != 0);
    }
    (void)close(fd);
    door_close(&d);
}

static void test_peer_text_names_address_and_port(void **state)
{
    struct door d;
    struct sockaddr_in here;
    socklen_t len = sizeof(here);
    char expected[64];
    char text[64];
    int fd;

    (void)state;
    door_open(&d, "*"); /* where IPv4 comes in as IPv6, and must not look like it */
    fd = plain_connect("127.0.0.1", d.addr.port);
    run_until_count(&d.accepted, 1);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&here, &len), 0);
    (void)snprintf(expected, sizeof(expected), "127.0.0.1:%u", ntohs(here.sin_port));
    mu_env_peer(env, &d.ends[0].conn, text, sizeof(text));
    assert_string_equal(text, expected);
    (void)close(fd);
    door_close(&d);
}

static void test_every_failing_allocation_is_survived(void **state)
{
    bool fired = true;

    (void)state;
    for (long nth = 0; fired; nth++) {
        static uint8_t block[1 << 20];
        struct end e = {.conn.on = &end_events};
        struct mu_addr addr;
        struct door d;
        int rc;

        assert_true(nth < 100);
        failheap_arm(nth);
        rc = door_try(&d, MU_ADDR_TCP, "127.0.0.1");
        if (rc == 0) {
            addr = d.addr;
            rc = mu_env_dial(env, &e.conn, &addr);
            if (rc == 0) {
                /* Until it is up, or was turned away for want of memory. */
                while (e.closed == 0 && d.accepted == 0 && d.failures == 0) {
                    mu_uv_env_turn(uv);
                }
                run_until_count(&e.opened, 1);
                if (d.accepted != 0) {
                    size_t taken;

                    d.ends[0].hold = true;
                    mu_env_send(env, &e.conn, mu_span(block, sizeof(block)), &taken);
                    while (d.ends[0].received == 0 && d.ends[0].closed == 0) {
                        mu_uv_env_turn(uv);
                    }
                }
                mu_env_close(env, &e.conn, true);
                run_until_count(&e.closed, 1);
            }
            fired = failheap_fired();
            failheap_disarm();
            door_close(&d);
        }
        fired = failheap_fired();
        failheap_disarm();
        assert_true(rc == 0 || rc == MUSTER_ENOMEM);
    }
}

/* Both ends of a connection within this host. */
static void open_near(int fds[2])
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof(at);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_int_equal(bind(fd, (struct sockaddr *)&at, len), 0);
    assert_int_equal(listen(fd, 1), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &len), 0);
    fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fds[0], (struct sockaddr *)&at, len), 0);
    fds[1] = accept(fd, NULL, NULL);
    assert_true(fds[1] >= 0);
    (void)close(fd);
}

static void test_uv_nothing_is_paced_within_a_host(void **unused)
{
    int fds[2];

    (void)unused;
    open_near(fds);
    for (size_t i = 0; i < 2; i++) {
        char name[32] = "";
        socklen_t len = sizeof(name) - 1;

        mu_uv_sock_tune(fds[i]);
        assert_int_equal(getsockopt(fds[i], IPPROTO_TCP, TCP_CONGESTION, name, &len), 0);
        assert_string_equal(name, "reno");
        (void)close(fds[i]);
    }
}
int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    static const struct CMUnitTest tests[] = {
        TEST(test_peer_that_shuts_its_end_still_gets_the_answer),
        TEST(test_peer_that_hangs_up_is_told_from_one_that_listens),
        TEST(test_every_way_to_say_everywhere_serves_both_families),
        TEST(test_localhost_listens_on_each_of_its_addresses),
        TEST(test_dial_tries_the_next_address),
        TEST(test_names_that_are_not_known_have_a_code_of_their_own),
        TEST(test_dial_given_up_while_resolving_ends_at_once),
        TEST(test_addresses_that_cannot_be_are_refused),
        TEST(test_socket_left_by_a_killed_process_is_replaced),
        TEST(test_accepting_rests_without_descriptors_and_goes_on),
        TEST(test_writing_to_a_peer_that_left_raises_no_signal),
        TEST(test_descriptors_are_not_inherited),
        TEST(test_peer_text_names_address_and_port),
        TEST(test_every_failing_allocation_is_survived),
        cmocka_unit_test(test_uv_nothing_is_paced_within_a_host),
    };

    return cmocka_run_group_tests_name("uv_env", tests, open_first, NULL);
}
