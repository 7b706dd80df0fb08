/*
 * The least a server could do: it knows beforehand what each connection will ask and what the
 * answers are, so it neither parses nor looks anything up; it only moves the bytes. What a real
 * server reaches of this is its own doing, the rest is the sockets'.
 */
#include "lg.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define RECV_BYTES ((size_t)256 * 1024)
#define EVENTS_MAX 256

struct peer {
    int fd;
    size_t asked;   /* bytes of requests that came in and are not answered */
    size_t owed;    /* bytes of answers that are due */
    size_t send_at; /* offset in the replies */
};

struct bare {
    struct lg_script script;
    struct peer *peers;
    int epoll_fd;
    uint8_t *buffer;
};

static void answer(struct bare *bare, struct peer *peer)
{
    const struct lg_bytes *replies = &bare->script.replies;
    while (peer->owed > 0) {
        size_t slice = replies->len - peer->send_at;
        slice = slice < peer->owed ? slice : peer->owed;
        ssize_t sent =
            send(peer->fd, replies->data + peer->send_at, slice, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0) {
            break;
        }
        peer->owed -= (size_t)sent;
        peer->send_at += (size_t)sent;
        if (peer->send_at == replies->len) {
            peer->send_at = 0;
        }
    }
    struct epoll_event event = {.events = peer->owed > 0 ? EPOLLIN | EPOLLOUT : EPOLLIN,
                                .data.ptr = peer};
    if (peer->owed > 0) {
        (void)epoll_ctl(bare->epoll_fd, EPOLL_CTL_MOD, peer->fd, &event);
    }
}

static void on_ready(struct bare *bare, struct peer *peer, uint32_t events)
{
    if (events & EPOLLOUT) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = peer};
        (void)epoll_ctl(bare->epoll_fd, EPOLL_CTL_MOD, peer->fd, &event);
        answer(bare, peer);
    }
    if (events & ~(uint32_t)EPOLLOUT) {
        ssize_t got = recv(peer->fd, bare->buffer, RECV_BYTES, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN)) {
            /* The client is done with all of them at once. */
            _exit(0);
        }
        if (got > 0) {
            peer->asked += (size_t)got;
            peer->owed += peer->asked / bare->script.request_len * bare->script.reply_len;
            peer->asked %= bare->script.request_len;
            answer(bare, peer);
        }
    }
}

static noreturn void serve(const struct lg_options *options, int listener)
{
    struct bare bare = {.epoll_fd = epoll_create1(EPOLL_CLOEXEC)};
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    lg_pin(options->server_cpu);
    lg_script_init(&bare.script, options, options->op, 0, 0);
    bare.buffer = lg_alloc(RECV_BYTES, 1);
    bare.peers = lg_alloc(options->conns, sizeof *bare.peers);
    for (size_t i = 0; i < options->conns; i++) {
        struct peer *peer = &bare.peers[i];
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = peer};
        int on = 1;
        peer->fd = accept(listener, NULL, NULL);
        peer->send_at = lg_script_first(&bare.script, i) * bare.script.reply_len;
        (void)setsockopt(peer->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        (void)epoll_ctl(bare.epoll_fd, EPOLL_CTL_ADD, peer->fd, &event);
    }
    while (true) {
        struct epoll_event events[EVENTS_MAX];
        int count = epoll_wait(bare.epoll_fd, events, EVENTS_MAX, -1);
        for (int i = 0; i < count; i++) {
            on_ready(&bare, events[i].data.ptr, events[i].events);
        }
    }
}

int lg_run_bare(const struct lg_options *given)
{
    struct lg_options options = *given;
    if (options.op != LG_GET && options.op != LG_SET) {
        lg_die("bare: only get and set, whose answers are known beforehand");
    }
    int listener = lg_listen(&options.port);
    pid_t child = fork();
    if (child < 0) {
        lg_die("fork: %s", strerror(errno));
    }
    if (child == 0) {
        serve(&options, listener);
    }
    options.host = "127.0.0.1";
    options.bare = true;
    options.idle = 0;
    int code = lg_run_load(&options);
    (void)waitpid(child, NULL, 0);
    return code;
}
