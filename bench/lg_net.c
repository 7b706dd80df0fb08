#include "lg.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

static void shake_hands(int fd)
{
    uint8_t hello[10] = {0x00, 0xce, 0xf7, 0x85, 0x3c, 0x0d};
    uint32_t nonce = (uint32_t)getpid();
    memcpy(hello + 6, &nonce, 4);
    lg_exchange(fd, hello, sizeof hello, &nonce, sizeof nonce);
}

int lg_connect(const struct lg_options *options, enum lg_proto proto)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(options->port)};
    if (inet_pton(AF_INET, options->host, &address.sin_addr) != 1) {
        lg_die("\"%s\" is no IPv4 address", options->host);
    }
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        lg_die("socket: %s", strerror(errno));
    }
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        lg_die("connect to %s:%u: %s", options->host, options->port, strerror(errno));
    }
    int on = 1;
    struct timeval patience = {.tv_sec = 10};
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    if (proto == LG_TORCH2) {
        shake_hands(fd);
    }
    return fd;
}

int lg_listen(uint16_t *ret_port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) != 0 ||
        listen(fd, 4096) != 0 || getsockname(fd, (struct sockaddr *)&address, &len) != 0) {
        lg_die("listen: %s", strerror(errno));
    }
    *ret_port = ntohs(address.sin_port);
    return fd;
}

void lg_set_nonblocking(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) {
        lg_die("fcntl: %s", strerror(errno));
    }
}

void lg_send_all(int fd, const void *data, size_t len)
{
    const uint8_t *at = data;
    while (len > 0) {
        ssize_t sent = send(fd, at, len, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) {
            continue;
        }
        if (sent < 0) {
            lg_die("send: %s", strerror(errno));
        }
        at += sent;
        len -= (size_t)sent;
    }
}

void lg_recv_all(int fd, void *data, size_t len)
{
    uint8_t *at = data;
    while (len > 0) {
        ssize_t got = recv(fd, at, len, 0);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got == 0) {
            lg_die("the server closed the connection instead of answering");
        }
        if (got < 0) {
            lg_die("recv: %s", errno == EAGAIN ? "no answer for 10 seconds" : strerror(errno));
        }
        at += got;
        len -= (size_t)got;
    }
}

void lg_exchange(int fd, const void *request, size_t request_len, const void *reply,
                 size_t reply_len)
{
    uint8_t *got = lg_alloc(reply_len + 1, 1);
    lg_send_all(fd, request, request_len);
    lg_recv_all(fd, got, reply_len);
    if (memcmp(got, reply, reply_len) != 0) {
        lg_die("a reply of %zu bytes was wrong", reply_len);
    }
    free(got);
}

int *lg_connect_many(const struct lg_options *options, size_t count)
{
    uint8_t request[16];
    uint8_t reply[16];
    size_t reply_len;
    size_t request_len = lg_probe(options->proto, request, reply, &reply_len);
    int *fds = lg_alloc(count, sizeof *fds);

    /* In small groups: a full backlog would drop a SYN and cost a second. */
    for (size_t done = 0; done < count;) {
        size_t group = count - done < 64 ? count - done : 64;
        for (size_t i = 0; i < group; i++) {
            fds[done + i] = lg_connect(options, options->proto);
            lg_send_all(fds[done + i], request, request_len);
        }
        for (size_t i = 0; i < group; i++) {
            uint8_t got[16];
            lg_recv_all(fds[done + i], got, reply_len);
            if (memcmp(got, reply, reply_len) != 0) {
                lg_die("the answer to a probe was wrong");
            }
        }
        done += group;
    }
    return fds;
}
