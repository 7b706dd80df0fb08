/* The end of a process that has left its runtime open: exit() takes OpenSSL and other libraries
 * down one after the other, so nothing may go on in the runtime's thread then, unless somebody
 * still calls it. Each case is a process of its own. */
#include <arpa/inet.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <muster/muster.h>

#define SILENCE_MS 300 /* the thread would answer within one, and is never asked to be this quick */

enum verdict { GOOD, NOT_BEGUN, ANSWERED, NOT_RESUMED, NOT_CLOSED };

static muster_runtime *rt;
static muster_server *server;
static muster_store *store;
static int conn;

static int connect_to(uint16_t port)
{
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    return fd >= 0 && connect(fd, (const struct sockaddr *)&to, sizeof(to)) == 0 ? fd : -1;
}

/** SET of "k" and GET of it, in the protocol of PyTorch 1.13; only the latter is answered. */
static bool ask(void)
{
    static const char request[] = "\x00\x01\0\0\0\0\0\0\0k\x01\0\0\0\0\0\0\0v"
                                  "\x02\x01\0\0\0\0\0\0\0k";
    size_t len = sizeof(request) - 1;

    return send(conn, request, len, MSG_NOSIGNAL) == (ssize_t)len;
}

static bool is_answered(int within_ms)
{
    struct pollfd ready = {.fd = conn, .events = POLLIN};
    char answer[9]; /* the length of the value, and the value */

    return poll(&ready, 1, within_ms) == 1 &&
           recv(conn, answer, sizeof(answer), MSG_WAITALL) == (ssize_t)sizeof(answer);
}

static bool is_closed(void)
{
    char byte;

    return recv(conn, &byte, 1, 0) <= 0;
}

static void begin(void)
{
    struct muster_server_config config = muster_server_config_defaults();
    char url[64];

    config.listen = "127.0.0.1:0";
    if (muster_runtime_new(&rt) != 0 || muster_server_start(rt, &config, &server) != 0) {
        _exit(NOT_BEGUN);
    }
    (void)snprintf(url, sizeof(url), "tcp://%s", muster_server_address(server));
    conn = connect_to(muster_server_port(server));
    if (conn < 0 || !ask() || !is_answered(-1) || muster_store_open(rt, url, NULL, &store) != 0) {
        _exit(NOT_BEGUN);
    }
}

static void end(void)
{
    muster_store_close(store);
    muster_server_free(server);
    muster_runtime_free(rt);
}

/** What comes last of all when a process ends. */
static void be_last(void)
{
    if (!ask() || is_answered(SILENCE_MS)) {
        _exit(ANSWERED);
    }
    if (muster_store_set(store, muster_str("k"), muster_str("w"), MUSTER_TIMEOUT_DEFAULT) != 0 ||
        !is_answered(-1)) {
        _exit(NOT_RESUMED);
    }
    end();
    _exit(is_closed() ? GOOD : NOT_CLOSED);
}

static int status_of(void (*run)(void))
{
    int status = -1;
    pid_t pid = fork();

    if (pid == 0) {
        run();
        exit(GOOD);
    }
    assert_true(pid > 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void leave_it_open(void)
{
    (void)atexit(be_last);
    begin();
}

static void test_exit_stops_the_runtimes_thread_until_it_is_called(void **state)
{
    (void)state;
    assert_int_equal(status_of(leave_it_open), GOOD);
}

static void close_it(void)
{
    begin();
    end();
}

static void test_exit_finds_nothing_of_a_runtime_that_was_freed(void **state)
{
    (void)state;
    assert_int_equal(status_of(close_it), GOOD);
}

/* The child of a fork has no thread that could stop; and its own runtime is one like any other. */

static void exit_in_child(void)
{
    begin();
    if (status_of(begin) != GOOD || !ask() || !is_answered(-1)) {
        _exit(NOT_BEGUN);
    }
}

static void test_exit_of_a_child_leaves_the_parents_runtime_alone(void **state)
{
    (void)state;
    assert_int_equal(status_of(exit_in_child), GOOD);
}

/* exit() on the runtime's thread itself, which cannot wait for itself. */

static void exit_when_done(muster_op *op, void *context)
{
    (void)op;
    (void)context;
    exit(GOOD);
}

static void exit_in_callback(void)
{
    struct muster_store_request request = muster_store_request_defaults();
    struct muster_bytes key = muster_str("k");
    muster_op *op;

    begin();
    request.verb = MUSTER_STORE_DELETE;
    request.keys = &key;
    request.key_count = 1;
    request.done = exit_when_done;
    if (muster_store_submit(store, &request, &op) == 0) {
        (void)pause();
    }
    _exit(NOT_BEGUN);
}

static void test_exit_may_be_called_on_the_runtimes_thread(void **state)
{
    (void)state;
    assert_int_equal(status_of(exit_in_callback), GOOD);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exit_stops_the_runtimes_thread_until_it_is_called),
        cmocka_unit_test(test_exit_finds_nothing_of_a_runtime_that_was_freed),
        cmocka_unit_test(test_exit_of_a_child_leaves_the_parents_runtime_alone),
        cmocka_unit_test(test_exit_may_be_called_on_the_runtimes_thread),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
