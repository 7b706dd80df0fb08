#include "transport/uv_internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/err.h"

int mu_uv_sock_new(int family, int *ret_fd)
{
    int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0) {
        return -errno;
    }
    *ret_fd = fd;
    return 0;
}

static void set_int(int fd, int level, int option, int value)
{
    (void)setsockopt(fd, level, option, &value, sizeof(value));
}

void mu_uv_sock_set_reset(int fd)
{
    struct linger none = {.l_onoff = 1, .l_linger = 0};

    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
}

int mu_uv_sock_error(int fd)
{
    int err = 0;
    socklen_t len = sizeof(err);

    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &len) != 0) {
        return -errno;
    }
    return -err;
}

bool mu_uv_sock_hung_up(int fd)
{
    struct pollfd p = {.fd = fd};

    return poll(&p, 1, 0) == 1 && (p.revents & POLLHUP) != 0;
}

bool mu_uv_sock_is_self(int fd)
{
    struct sockaddr_storage here = {0};
    struct sockaddr_storage there = {0};
    socklen_t here_len = sizeof(here);
    socklen_t there_len = sizeof(there);

    if (getsockname(fd, (struct sockaddr *)&here, &here_len) != 0 ||
        getpeername(fd, (struct sockaddr *)&there, &there_len) != 0) {
        return false;
    }
    return here.ss_family != AF_UNIX && here_len == there_len &&
           memcmp(&here, &there, here_len) == 0;
}

bool mu_uv_sock_is_near(int fd)
{
    struct sockaddr_storage here = {0};
    struct sockaddr_storage there = {0};
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)&there;
    const struct sockaddr_in *own4 = (const struct sockaddr_in *)&here;
    const struct in6_addr *v6 = &((const struct sockaddr_in6 *)&there)->sin6_addr;
    const struct in6_addr *own6 = &((const struct sockaddr_in6 *)&here)->sin6_addr;
    socklen_t here_len = sizeof(here);
    socklen_t there_len = sizeof(there);

    if (getsockname(fd, (struct sockaddr *)&here, &here_len) != 0 ||
        getpeername(fd, (struct sockaddr *)&there, &there_len) != 0) {
        return false;
    }
    if (there.ss_family == AF_INET) {
        return v4->sin_addr.s_addr == own4->sin_addr.s_addr ||
               ntohl(v4->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
    }
    return there.ss_family == AF_UNIX || memcmp(v6, own6, sizeof(*v6)) == 0;
}

void mu_uv_sock_tune(int fd)
{
    /* Every kernel has this one, and lets every user choose it. */
    static const char plain[] = "reno";

    /* On a unix socket these fail, which is fine. A host that vanished is noticed in two minutes
     * even by protocols that have no keep-alive of their own. */
    set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_int(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_int(fd, IPPROTO_TCP, TCP_KEEPIDLE, 60);
    set_int(fd, IPPROTO_TCP, TCP_KEEPINTVL, 10);
    set_int(fd, IPPROTO_TCP, TCP_KEEPCNT, 6);
    /* Nothing is lost or congested within a host. If the kernel's default is an algorithm that
     * paces, such as bbr, each segment would wait for a timer, at a guessed speed. */
    if (mu_uv_sock_is_near(fd)) {
        (void)setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, plain, sizeof(plain) - 1);
    }
}

int mu_uv_sock_unix(const char *path, struct sockaddr_storage *ret, socklen_t *ret_len)
{
    struct sockaddr_un *un = (struct sockaddr_un *)ret;
    size_t len = strlen(path);

    if (len == 0 || len >= sizeof(un->sun_path)) {
        return MUSTER_EINVAL;
    }
    *ret = (struct sockaddr_storage){.ss_family = AF_UNIX};
    memcpy(un->sun_path, path, len + 1);
    *ret_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len + 1);
    if (path[0] == '@') {
        un->sun_path[0] =
            '\0'; /* The abstract namespace: the name is as long as it is said to be. */
        *ret_len -= 1;
    }
    return 0;
}

void mu_uv_sock_peer(int fd, char *buf, size_t cap)
{
    struct sockaddr_storage ss = {0};
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)&ss;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)&ss;
    struct ucred cred = {0};
    socklen_t len = sizeof(ss);
    socklen_t cred_len = sizeof(cred);
    char text[INET6_ADDRSTRLEN] = "?";

    if (getpeername(fd, (struct sockaddr *)&ss, &len) != 0) {
        (void)snprintf(buf, cap, "?");
    } else if (ss.ss_family == AF_INET) {
        (void)inet_ntop(AF_INET, &v4->sin_addr, text, sizeof(text));
        (void)snprintf(buf, cap, "%s:%u", text, ntohs(v4->sin_port));
    } else if (ss.ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr)) {
        (void)inet_ntop(AF_INET, &v6->sin6_addr.s6_addr[12], text, sizeof(text));
        (void)snprintf(buf, cap, "%s:%u", text, ntohs(v6->sin6_port));
    } else if (ss.ss_family == AF_INET6) {
        (void)inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof(text));
        (void)snprintf(buf, cap, "[%s]:%u", text, ntohs(v6->sin6_port));
    } else if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &cred_len) == 0 && cred.pid > 0) {
        (void)snprintf(buf, cap, "unix:pid=%ld", (long)cred.pid);
    } else {
        (void)snprintf(buf, cap, "unix:");
    }
}
