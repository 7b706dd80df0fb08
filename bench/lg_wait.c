#include "lg.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define EVENTS_MAX 256

struct woken {
    uint64_t first_ns;
    uint64_t last_ns;
};

/* Reads one byte from each of `count` sockets; says when the first and the last one came. */
static struct woken read_wakes(int epoll_fd, size_t count, uint64_t start)
{
    struct woken woken = {0};
    struct epoll_event events[EVENTS_MAX];
    for (size_t seen = 0; seen < count;) {
        int ready = epoll_wait(epoll_fd, events, EVENTS_MAX, 10000);
        if (ready == 0 || (ready < 0 && errno != EINTR)) {
            lg_die("%zu of %zu waiters were not woken within 10 seconds", count - seen, count);
        }
        for (int i = 0; i < ready; i++) {
            uint8_t got[2];
            ssize_t len = recv(events[i].data.fd, got, sizeof got, MSG_DONTWAIT);
            if (len != 1 || got[0] != 0) {
                lg_die("a waiter got %zd bytes instead of one 0", len);
            }
            seen++;
            if (seen == 1) {
                woken.first_ns = lg_now_ns() - start;
            }
        }
    }
    woken.last_ns = lg_now_ns() - start;
    return woken;
}

static int watch_all(const int *fds, size_t count)
{
    int epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    for (size_t i = 0; i < count; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.fd = fds[i]};
        if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fds[i], &event) != 0) {
            lg_die("epoll_ctl: %s", strerror(errno));
        }
    }
    return epoll_fd;
}

static int compare_ns(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a;
    uint64_t right = *(const uint64_t *)b;
    return left < right ? -1 : left > right;
}

static void print_rounds(const struct lg_options *options, uint64_t *first, uint64_t *last)
{
    qsort(first, options->rounds, sizeof *first, compare_ns);
    qsort(last, options->rounds, sizeof *last, compare_ns);
    lg_print(options, "first_wake", (double)first[options->rounds / 2] / 1e3, "us");
    lg_print(options, "last_wake", (double)last[options->rounds / 2] / 1e3, "us");
    lg_print(options, "last_wake_min", (double)last[0] / 1e3, "us");
}

/*
 * The answer to an empty CHECK says that the segment with the WAIT behind it has arrived. That the
 * WAIT was taken is then sure after a few questions on another connection, which a server that goes
 * round its connections cannot answer without having come past all of them.
 */
static void register_waits(const struct lg_options *options, const int *fds, const char *key,
                           size_t key_len)
{
    struct lg_bytes request = {0};
    uint8_t op = lg_torch_op(options->proto, LG_OP1_CHECK);
    lg_append(&request, &op, 1);
    lg_append_u64(&request, 0);
    op = lg_torch_op(options->proto, LG_OP1_WAIT);
    lg_append(&request, &op, 1);
    lg_append_u64(&request, 1);
    lg_append_str(&request, key, key_len);
    for (size_t i = 0; i < options->conns; i++) {
        lg_send_all(fds[i], request.data, request.len);
    }
    for (size_t i = 0; i < options->conns; i++) {
        uint8_t answer;
        lg_recv_all(fds[i], &answer, 1);
        if (answer != 0) {
            lg_die("a CHECK was answered by %u", answer);
        }
    }
    lg_bytes_free(&request);
}

static void let_it_go_round(const struct lg_options *options, int fd)
{
    uint8_t request[16];
    uint8_t reply[16];
    size_t reply_len;
    size_t request_len = lg_probe(options->proto, request, reply, &reply_len);
    for (int i = 0; i < 3; i++) {
        lg_exchange(fd, request, request_len, reply, reply_len);
    }
}

int lg_run_waiters(const struct lg_options *options)
{
    uint64_t *first = lg_alloc(options->rounds, sizeof *first);
    uint64_t *last = lg_alloc(options->rounds, sizeof *last);
    if (options->proto == LG_RESP) {
        lg_die("waiters: Redis has no wait for a key");
    }
    lg_want_descriptors(options->conns + 16);
    int setter = lg_connect(options, options->proto);
    int *fds = lg_connect_many(options, options->conns);
    int epoll_fd = watch_all(fds, options->conns);

    for (size_t round = 0; round < options->rounds; round++) {
        char key[64];
        size_t key_len = (size_t)snprintf(key, sizeof key, "/wait/%llx/%zu",
                                          (unsigned long long)lg_now_ns(), round);
        struct lg_bytes set = {0};
        uint8_t op = lg_torch_op(options->proto, LG_OP1_SET);
        lg_append(&set, &op, 1);
        lg_append_str(&set, key, key_len);
        lg_append_str(&set, "1", 1);
        register_waits(options, fds, key, key_len);
        let_it_go_round(options, setter);

        uint64_t start = lg_now_ns();
        lg_send_all(setter, set.data, set.len);
        struct woken woken = read_wakes(epoll_fd, options->conns, start);
        first[round] = woken.first_ns;
        last[round] = woken.last_ns;
        lg_bytes_free(&set);
    }
    for (size_t i = 0; i < options->conns; i++) {
        (void)close(fds[i]);
    }
    (void)close(setter);
    (void)close(epoll_fd);
    free(fds);
    print_rounds(options, first, last);
    free(first);
    free(last);
    return 0;
}

/* --- the floor -------------------------------------------------------------------------------- */

/*
 * Answers one registration on each connection, then sends one byte to each when one comes in on the
 * first connection. The registrations are there so that the sockets are in the same state as a
 * store's: on a connection that only ever receives, the kernel acknowledges every single byte.
 */
static noreturn void serve_floor(const struct lg_options *options, int listener)
{
    int *fds = lg_alloc(options->conns, sizeof *fds);
    int on = 1;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    lg_pin(options->server_cpu);
    int control = accept(listener, NULL, NULL);
    for (size_t i = 0; i < options->conns; i++) {
        fds[i] = accept(listener, NULL, NULL);
        (void)setsockopt(fds[i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    }
    for (size_t round = 0; round < options->rounds; round++) {
        uint8_t request[64];
        for (size_t i = 0; i < options->conns; i++) {
            if (recv(fds[i], request, sizeof request, 0) <= 0) {
                _exit(1);
            }
            (void)send(fds[i], "", 1, MSG_NOSIGNAL);
        }
        if (recv(control, request, sizeof request, 0) <= 0) {
            _exit(1);
        }
        for (size_t i = 0; i < options->conns; i++) {
            (void)send(fds[i], "", 1, MSG_NOSIGNAL);
        }
    }
    /* Stays until the reader is done, who would take the ends of the streams for wakes. */
    uint8_t byte;
    (void)recv(control, &byte, 1, 0);
    _exit(0);
}

int lg_run_floor(const struct lg_options *given)
{
    struct lg_options options = *given;
    uint64_t *first = lg_alloc(options.rounds, sizeof *first);
    uint64_t *last = lg_alloc(options.rounds, sizeof *last);
    int *fds = lg_alloc(options.conns, sizeof *fds);
    lg_want_descriptors(2 * options.conns + 16);
    int listener = lg_listen(&options.port);
    pid_t child = fork();
    if (child < 0) {
        lg_die("fork: %s", strerror(errno));
    }
    if (child == 0) {
        serve_floor(&options, listener);
    }
    options.host = "127.0.0.1";
    int control = lg_connect(&options, LG_TORCH1);
    for (size_t i = 0; i < options.conns; i++) {
        fds[i] = lg_connect(&options, LG_TORCH1);
    }
    int epoll_fd = watch_all(fds, options.conns);
    for (size_t round = 0; round < options.rounds; round++) {
        register_waits(&options, fds, "/floor", 6);
        uint64_t start = lg_now_ns();
        lg_send_all(control, "", 1);
        struct woken woken = read_wakes(epoll_fd, options.conns, start);
        first[round] = woken.first_ns;
        last[round] = woken.last_ns;
    }
    (void)close(control);
    (void)waitpid(child, NULL, 0);
    print_rounds(&options, first, last);
    free(fds);
    free(first);
    free(last);
    return 0;
}
