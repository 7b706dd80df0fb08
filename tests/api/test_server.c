/*
 * The embedded server: what it keeps over a restart, what it says when it cannot start, and that a
 * client's session outlives the server's connections.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>
#include <muster/muster.h>

#define DEFAULT MUSTER_TIMEOUT_DEFAULT

static muster_runtime *rt;

static muster_server *start(const char *listen, const char *dir, enum muster_sync sync)
{
    struct muster_server_config config = muster_server_config_defaults();
    muster_server *server = NULL;

    config.listen = listen;
    config.data_dir = dir;
    config.sync = sync;
    if (muster_server_start(rt, &config, &server) != 0) {
        return NULL;
    }
    return server;
}

static muster_store *open_store(const muster_server *server)
{
    muster_store *store = NULL;
    char url[128];

    (void)snprintf(url, sizeof(url), "tcp://%s", muster_server_address(server));
    assert_int_equal(muster_store_open(rt, url, NULL, &store), 0);
    return store;
}

static void make_dir(char *path)
{
    (void)snprintf(path, 64, "/tmp/muster-test-XXXXXX");
    assert_non_null(mkdtemp(path));
}

static void remove_dir(const char *path)
{
    char command[128];

    (void)snprintf(command, sizeof(command), "rm -rf %s", path);
    assert_int_equal(system(command), 0);
}

static void check_restart(enum muster_sync sync)
{
    char dir[64];
    muster_server *server;
    muster_store *store;
    struct muster_value value;
    int64_t n;

    make_dir(dir);
    server = start("127.0.0.1:0", dir, sync);
    assert_non_null(server);
    store = open_store(server);
    assert_int_equal(muster_store_set(store, muster_str("k"), muster_str("kept"), DEFAULT), 0);
    assert_int_equal(muster_store_add(store, muster_str("n"), 7, &n, DEFAULT), 0);
    assert_int_equal(muster_store_queue_push(store, muster_str("q"), muster_str("1"), DEFAULT), 0);
    assert_int_equal(muster_store_queue_push(store, muster_str("q"), muster_str("2"), DEFAULT), 0);
    assert_int_equal(muster_store_set(store, muster_str("gone"), muster_str("x"), DEFAULT), 0);
    assert_int_equal(muster_store_delete(store, muster_str("gone"), NULL, DEFAULT), 0);
    assert_int_equal(muster_store_set_leased(store, muster_str("mine"), muster_str("x"),
                                             MUSTER_LEASE_SESSION, DEFAULT),
                     0);
    muster_store_close(store);
    muster_server_free(server);

    server = start("127.0.0.1:0", dir, sync);
    assert_non_null(server);
    store = open_store(server);
    assert_int_equal(muster_store_num_keys(store, &n, DEFAULT), 0);
    assert_int_equal(n, 2);
    assert_int_equal(muster_store_get(store, muster_str("k"), &value, DEFAULT), 0);
    assert_memory_equal(value.data, "kept", 4);
    muster_value_free(&value);
    assert_int_equal(muster_store_add(store, muster_str("n"), 1, &n, DEFAULT), 0);
    assert_int_equal(n, 8);
    assert_int_equal(muster_store_queue_pop(store, muster_str("q"), false, &value, DEFAULT), 0);
    assert_memory_equal(value.data, "1", 1);
    muster_value_free(&value);
    muster_store_close(store);
    muster_server_free(server);
    remove_dir(dir);
}

static void test_server_keeps_everything_over_a_restart(void **state)
{
    (void)state;
    check_restart(MUSTER_SYNC_ALWAYS);
}

static void test_server_writes_all_on_a_drain_in_interval_mode(void **state)
{
    (void)state;
    check_restart(MUSTER_SYNC_INTERVAL);
}

static void test_server_says_why_it_cannot_start(void **state)
{
    muster_server *first = start("127.0.0.1:0", NULL, MUSTER_SYNC_ALWAYS);
    struct muster_server_config config = muster_server_config_defaults();
    muster_server *second;
    char dir[64];

    (void)state;
    assert_non_null(first);
    config.listen = muster_server_address(first);
    assert_int_equal(muster_server_start(rt, &config, &second), MUSTER_EADDR);
    assert_non_null(strstr(muster_errmsg(), muster_server_address(first)));
    config.listen = "nonsense";
    assert_int_equal(muster_server_start(rt, &config, &second), MUSTER_EURL);
    config.listen = NULL;
    assert_int_equal(muster_server_start(rt, &config, &second), MUSTER_EINVAL);
    config.listen = "0.0.0.0:0"; /* The runtime's lock has no credential. */
    assert_int_equal(muster_server_start(rt, &config, &second), MUSTER_ELOCKED);
    config.listen = "127.0.0.1:0";
    config.backing = "nonsense";
    assert_int_equal(muster_server_start(rt, &config, &second), MUSTER_EURL);
    config.data_dir = "/tmp";
    assert_int_equal(muster_server_start(rt, &config, &second), MUSTER_EINVAL);
    config.backing = config.data_dir = NULL;
    config.keys_max = 0;
    assert_int_equal(muster_server_start(rt, &config, &second), MUSTER_EINVAL);
    config.keys_max = muster_server_config_defaults().keys_max;
    config.listen = "127.0.0.1:0";
    config.data_dir = "/dev/null/x";
    assert_int_equal(muster_server_start(rt, &config, &second), MUSTER_EDISK);
    assert_non_null(strstr(muster_errmsg(), "/dev/null/x"));
    muster_server_free(first);

    make_dir(dir);
    first = start("127.0.0.1:0", dir, MUSTER_SYNC_ALWAYS);
    assert_non_null(first);
    config.data_dir = dir;
    assert_int_equal(muster_server_start(rt, &config, &second), MUSTER_EBUSY);
    assert_non_null(strstr(muster_errmsg(), dir));
    muster_server_free(first);
    remove_dir(dir);
}

static void test_server_drains_twice_and_reports_success(void **state)
{
    muster_server *server = start("127.0.0.1:0", NULL, MUSTER_SYNC_ALWAYS);

    (void)state;
    assert_non_null(server);
    muster_server_drain(server);
    muster_server_drain(server);
    assert_int_equal(muster_server_wait(server), 0);
    muster_server_free(server);
}

/* The server goes away and comes back on the same port: reads go through, a write under way ends
 * with "may or may not have happened", later ones work. */
static void test_server_restart_under_a_client(void **state)
{
    muster_server *server = start("127.0.0.1:0", NULL, MUSTER_SYNC_ALWAYS);
    struct muster_bytes key = muster_str("late");
    struct muster_store_request get = {.size = sizeof(struct muster_store_request),
                                       .verb = MUSTER_STORE_GET,
                                       .keys = &key,
                                       .key_count = 1,
                                       .timeout_ms = DEFAULT};
    struct muster_store_request pop = {.size = sizeof(struct muster_store_request),
                                       .verb = MUSTER_STORE_QUEUE_POP,
                                       .keys = &key,
                                       .key_count = 1,
                                       .timeout_ms = DEFAULT};
    muster_store *store = open_store(server);
    muster_op *reading;
    muster_op *popping;
    char address[64];
    int64_t n;

    (void)state;
    (void)snprintf(address, sizeof(address), "%s", muster_server_address(server));
    assert_int_equal(muster_store_submit(store, &get, &reading), 0);
    assert_int_equal(muster_store_submit(store, &pop, &popping), 0);
    assert_int_equal(muster_store_num_keys(store, &n, DEFAULT), 0);
    muster_server_free(server);
    server = start(address, NULL, MUSTER_SYNC_ALWAYS);
    assert_non_null(server);

    assert_int_equal(muster_op_wait(popping), MUSTER_ESESSION);
    assert_int_equal(muster_store_set(store, key, muster_str("here"), DEFAULT), 0);
    assert_int_equal(muster_op_wait(reading), 0);
    assert_memory_equal(muster_op_value(reading, 0).data, "here", 4);
    muster_op_free(reading);
    muster_op_free(popping);
    muster_store_close(store);
    muster_server_free(server);
}

static void test_server_ends_the_keys_of_a_session_that_leaves(void **state)
{
    muster_server *server = start("127.0.0.1:0", NULL, MUSTER_SYNC_ALWAYS);
    muster_store *member = open_store(server);
    muster_store *other = open_store(server);
    struct muster_bytes key = muster_str("member");
    bool there;

    (void)state;
    assert_int_equal(
        muster_store_set_leased(member, key, muster_str("x"), MUSTER_LEASE_SESSION, DEFAULT), 0);
    assert_int_equal(muster_store_check(other, &key, 1, &there, DEFAULT), 0);
    assert_true(there);
    muster_store_close(member);
    do {
        assert_int_equal(muster_store_check(other, &key, 1, &there, DEFAULT), 0);
    } while (there);
    muster_store_close(other);
    muster_server_free(server);
}

static void
test_server_says_where_its_page_is_and_its_defaults_are_those_of_the_header(void **state)
{
    struct muster_server_config config = muster_server_config_defaults();
    muster_server *server = start("127.0.0.1:0", NULL, MUSTER_SYNC_ALWAYS);
    char port[16];

    (void)state;
    assert_string_equal(muster_server_http_address(server), "");
    (void)snprintf(port, sizeof(port), ":%u", (unsigned)muster_server_port(server));
    assert_non_null(strstr(muster_server_address(server), port));
    muster_server_free(server);
    muster_server_free(NULL);
    assert_int_equal(config.sync, MUSTER_SYNC_ALWAYS);
    assert_int_equal(config.sync_interval_ms, 100);
    assert_int_equal(config.key_bytes_max, 8 << 10);
    assert_int_equal(config.value_bytes_max, 8 << 20);
    assert_int_equal(config.keys_max, 131072);
    assert_int_equal(config.session_grace_ms, 10000);
    assert_int_equal(config.drain_ms, 5000);
    config.listen = config.http = "127.0.0.1:0";
    assert_int_equal(muster_server_start(rt, &config, &server), 0);
    assert_int_equal(strncmp(muster_server_http_address(server), "127.0.0.1:", 10), 0);
    assert_string_not_equal(muster_server_http_address(server), "127.0.0.1:0");
    muster_server_free(server);
}

static int make_runtime(void **state)
{
    (void)state;
    return muster_runtime_new(&rt);
}

static int free_runtime(void **state)
{
    (void)state;
    muster_runtime_free(rt);
    return 0;
}

/* --- limits ----------------------------------------------------------------------------------- */

static int try_open(const muster_server *server, uint32_t connect_ms, muster_store **ret_store)
{
    struct muster_store_config config = muster_store_config_defaults();
    char url[128];

    config.connect_timeout_ms = connect_ms;
    (void)snprintf(url, sizeof(url), "tcp://%s?protocol=muster", muster_server_address(server));
    return muster_store_open(rt, url, &config, ret_store);
}

static void test_server_turns_away_connections_over_the_limit(void **state)
{
    struct muster_server_config config = muster_server_config_defaults();
    muster_server *server = NULL;
    muster_store *stores[3] = {NULL};
    int64_t n;

    (void)state;
    config.listen = "127.0.0.1:0";
    config.connections_max = 2;
    assert_int_equal(muster_server_start(rt, &config, &server), 0);
    assert_int_equal(try_open(server, 10000, &stores[0]), 0);
    assert_int_equal(try_open(server, 10000, &stores[1]), 0);
    assert_true(try_open(server, 300, &stores[2]) != 0);
    /* Those that are there do not notice, and who leaves makes room. */
    assert_int_equal(muster_store_add(stores[0], muster_str("n"), 1, &n, DEFAULT), 0);
    muster_store_close(stores[1]);
    assert_int_equal(try_open(server, 10000, &stores[2]), 0);
    muster_store_close(stores[0]);
    muster_store_close(stores[2]);
    muster_server_free(server);
}

static void test_server_refuses_sessions_over_the_limit(void **state)
{
    struct muster_server_config config = muster_server_config_defaults();
    muster_server *server = NULL;
    muster_store *first = NULL;
    muster_store *second = NULL;

    (void)state;
    config.listen = "127.0.0.1:0";
    config.sessions_max = 1;
    assert_int_equal(muster_server_start(rt, &config, &server), 0);
    assert_int_equal(try_open(server, 10000, &first), 0);
    assert_int_equal(try_open(server, 10000, &second), MUSTER_EREFUSED);
    assert_non_null(strstr(muster_errmsg(), "as many sessions as it may"));
    muster_store_close(first); /* It says goodbye, and its session ends with that. */
    assert_int_equal(try_open(server, 10000, &second), 0);
    muster_store_close(second);
    muster_server_free(server);
}

static void test_server_refuses_what_is_over_its_limits_and_goes_on(void **state)
{
    struct muster_server_config config = muster_server_config_defaults();
    muster_server *server = NULL;
    muster_store *store = NULL;
    static char big[20000];

    (void)state;
    memset(big, 'x', sizeof(big));
    config.listen = "127.0.0.1:0";
    config.memory_bytes_max = 16384;
    config.key_bytes_max = 100;
    config.value_bytes_max = 10000;
    assert_int_equal(muster_server_start(rt, &config, &server), 0);
    assert_int_equal(try_open(server, 10000, &store), 0);
    assert_int_equal(
        muster_store_set(store, muster_str("k"), (struct muster_bytes){big, 10001}, DEFAULT),
        MUSTER_ELIMIT);
    assert_non_null(
        strstr(muster_errmsg(), "the value has 10001 bytes, and the server takes 10000"));
    assert_int_equal(
        muster_store_set(store, (struct muster_bytes){big, 100}, muster_str("v"), DEFAULT),
        MUSTER_ELIMIT);
    assert_int_equal(
        muster_store_set(store, muster_str("k"), (struct muster_bytes){big, 10000}, DEFAULT), 0);
    assert_int_equal(
        muster_store_set(store, muster_str("l"), (struct muster_bytes){big, 10000}, DEFAULT),
        MUSTER_EFULL);
    /* What makes room is taken. */
    assert_int_equal(muster_store_delete(store, muster_str("k"), NULL, DEFAULT), 0);
    assert_int_equal(
        muster_store_set(store, muster_str("l"), (struct muster_bytes){big, 10000}, DEFAULT), 0);
    muster_store_close(store);
    muster_server_free(server);
}

/* A client of PyTorch's that has sent `sent` bytes of a value that it says is `len` long. */
static int send_half(const muster_server *server, const char *key, uint64_t len, uint64_t sent)
{
    static const uint8_t hello[] = {0, 0xce, 0xf7, 0x85, 0x3c, 13, 1, 2, 3, 4}; /* and a ping */
    struct sockaddr_in to = {.sin_family = AF_INET};
    const char *port = strrchr(muster_server_address(server), ':');
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    uint8_t head[1 + 8 + 2 + 8];
    uint8_t *value = calloc(1, sent);

    assert_non_null(port);
    assert_non_null(value);
    to.sin_port = htons((uint16_t)strtoul(port + 1, NULL, 10));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    assert_int_equal(send(fd, hello, sizeof(hello), 0), sizeof(hello));
    assert_int_equal(recv(fd, head + 1, 4, MSG_WAITALL), 4);
    assert_memory_equal(head + 1, hello + 6, 4);
    memset(head, 0, sizeof(head));
    head[0] = 1; /* SET */
    head[1] = 2; /* the key's length */
    head[9] = '/';
    head[10] = (uint8_t)key[0];
    memcpy(head + 11, &len, sizeof(len));
    assert_int_equal(send(fd, head, sizeof(head), 0), sizeof(head));
    for (uint64_t at = 0; at < sent;) {
        ssize_t n = send(fd, value + at, sent - at, MSG_NOSIGNAL);

        assert_true(n > 0);
        at += (uint64_t)n;
    }
    free(value);
    return fd;
}

static bool is_closed(int fd, int wait_ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};

    return poll(&p, 1, wait_ms) == 1;
}

/* Of those whose requests fill the buffers, the one that has not moved for longest has to go. A
 * buffer may be twice as large as what is in it: one of three always fits, and all never do. */
static void test_server_drops_a_client_that_fills_the_buffers_of_all(void **state)
{
    struct muster_server_config config = muster_server_config_defaults();
    static const uint64_t len = 4000000;
    static char rest[100000];
    muster_server *server = NULL;
    muster_store *store = NULL;
    struct muster_value value;
    int64_t n;
    int first;
    int second;
    int third;

    (void)state;
    config.listen = "127.0.0.1:0";
    config.buffer_bytes_max = 3 * (len - sizeof(rest)) - 1;
    assert_int_equal(muster_server_start(rt, &config, &server), 0);
    store = open_store(server);
    first = send_half(server, "a", len, len - sizeof(rest));
    assert_false(is_closed(first, 500));
    second = send_half(server, "b", len, len - sizeof(rest));
    third = send_half(server, "c", len, len - sizeof(rest));
    assert_true(is_closed(first, 20000));
    assert_false(is_closed(third, 0));
    assert_int_equal(muster_store_add(store, muster_str("n"), 1, &n, DEFAULT), 0);
    assert_int_equal(send(third, rest, sizeof(rest), MSG_NOSIGNAL), sizeof(rest));
    assert_int_equal(muster_store_get(store, muster_str("c"), &value, DEFAULT), 0);
    assert_int_equal(value.len, len);
    muster_value_free(&value);
    (void)close(first);
    (void)close(second);
    (void)close(third);
    muster_store_close(store);
    muster_server_free(server);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_server_keeps_everything_over_a_restart),
        cmocka_unit_test(test_server_writes_all_on_a_drain_in_interval_mode),
        cmocka_unit_test(test_server_says_why_it_cannot_start),
        cmocka_unit_test(test_server_drains_twice_and_reports_success),
        cmocka_unit_test(test_server_restart_under_a_client),
        cmocka_unit_test(test_server_ends_the_keys_of_a_session_that_leaves),
        cmocka_unit_test(
            test_server_says_where_its_page_is_and_its_defaults_are_those_of_the_header),
        cmocka_unit_test(test_server_turns_away_connections_over_the_limit),
        cmocka_unit_test(test_server_refuses_sessions_over_the_limit),
        cmocka_unit_test(test_server_refuses_what_is_over_its_limits_and_goes_on),
        cmocka_unit_test(test_server_drops_a_client_that_fills_the_buffers_of_all),
    };

    return cmocka_run_group_tests(tests, make_runtime, free_runtime);
}
