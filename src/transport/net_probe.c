#include "transport/net_probe.h"

#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "core/time.h"

#include <muster/error.h>

/* traceroute's first port, which is the most likely to be unused. */
#define UNUSED_PORT 33434
#define HEADERS_V4  28 /* of IP and UDP */
#define HEADERS_V6  48
#define STEPS_MAX   4 /* how many routers may each report a smaller MTU */

static uint64_t now_us(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000 + (uint64_t)ts.tv_nsec / 1000;
}

static int left_ms(uint64_t until_us)
{
    uint64_t now = now_us();

    return now >= until_us ? 0 : (int)((until_us - now + 999) / 1000);
}

/* --- names ------------------------------------------------------------------------------------ */

static enum mu_probe_scope scope_of(const struct sockaddr *sa)
{
    if (sa->sa_family == AF_INET) {
        uint32_t ip = ntohl(((const struct sockaddr_in *)(const void *)sa)->sin_addr.s_addr);

        return ip >> 24 == 127 ? MU_PROBE_HOST : ip >> 16 == 0xa9fe ? MU_PROBE_LINK : MU_PROBE_NET;
    } else {
        const struct in6_addr *ip = &((const struct sockaddr_in6 *)(const void *)sa)->sin6_addr;

        return IN6_IS_ADDR_LOOPBACK(ip)                             ? MU_PROBE_HOST
               : IN6_IS_ADDR_V4MAPPED(ip) && ip->s6_addr[12] == 127 ? MU_PROBE_HOST
               : IN6_IS_ADDR_LINKLOCAL(ip)                          ? MU_PROBE_LINK
                                                                    : MU_PROBE_NET;
    }
}

int mu_probe_resolve(const char *host, struct mu_probe_number ret[MU_PROBE_NUMBERS],
                     size_t *ret_count, struct mu_errmsg *reterr_msg)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    int rc = getaddrinfo(host, NULL, &hints, &list);
    size_t count = 0;

    for (struct addrinfo *ai = list; rc == 0 && ai != NULL && count < MU_PROBE_NUMBERS;
         ai = ai->ai_next) {
        struct mu_probe_number *n = &ret[count];

        if ((ai->ai_family == AF_INET || ai->ai_family == AF_INET6) &&
            getnameinfo(ai->ai_addr, ai->ai_addrlen, n->ip, sizeof(n->ip), NULL, 0,
                        NI_NUMERICHOST) == 0) {
            n->v6 = ai->ai_family == AF_INET6;
            n->scope = scope_of(ai->ai_addr);
            count++;
        }
    }
    if (list != NULL) {
        freeaddrinfo(list);
    }
    if (rc != 0 || count == 0) {
        return mu_err(reterr_msg, MUSTER_ENAME, "%s",
                      rc == EAI_SYSTEM ? strerror(errno) : gai_strerror(rc == 0 ? EAI_NONAME : rc));
    }
    *ret_count = count;
    return 0;
}

/* Makes a socket address of the number and a port. */
static bool make_address(const struct mu_probe_number *n, uint16_t port,
                         struct sockaddr_storage *ret, socklen_t *ret_len)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                                   .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    struct addrinfo *ai = NULL;
    char service[8];
    bool well;

    (void)snprintf(service, sizeof(service), "%u", port);
    well = getaddrinfo(n->ip, service, &hints, &ai) == 0 && ai->ai_addrlen <= sizeof(*ret);
    if (well) {
        memcpy(ret, ai->ai_addr, ai->ai_addrlen);
        *ret_len = ai->ai_addrlen;
    }
    if (ai != NULL) {
        freeaddrinfo(ai);
    }
    return well;
}

/* --- connecting ------------------------------------------------------------------------------- */

/* Returns a socket that is connecting, or a negated errno. */
static int start_dial(const struct mu_probe_number *n, uint16_t port)
{
    struct sockaddr_storage to;
    socklen_t len = 0;
    int fd;

    if (!make_address(n, port, &to, &len)) {
        return -EINVAL;
    }
    fd = socket(to.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&to, len) != 0 && errno != EINPROGRESS) {
        int err = -errno;

        (void)close(fd);
        return err;
    }
    return fd >= 0 ? fd : -errno;
}

static int error_of(int fd)
{
    int err = 0;
    socklen_t len = sizeof(err);

    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &len) == 0 ? -err : -errno;
}

static uint32_t known_mtu(int fd, bool v6)
{
    int mtu = 0;
    socklen_t len = sizeof(mtu);
    int rc = v6 ? getsockopt(fd, IPPROTO_IPV6, IPV6_MTU, &mtu, &len)
                : getsockopt(fd, IPPROTO_IP, IP_MTU, &mtu, &len);

    return rc == 0 && mtu > 0 ? (uint32_t)mtu : 0;
}

/* Reads what the kernel knows of a connection that is up. */
static void look_at(int fd, struct mu_probe_try *t, uint32_t took_us)
{
    struct tcp_info info;
    socklen_t len = sizeof(info);

    t->rtt_us = took_us;
    t->mtu = known_mtu(fd, t->number->v6);
    memset(&info, 0, sizeof(info));
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0) {
        if (info.tcpi_rtt != 0 && info.tcpi_rtt < t->rtt_us) {
            t->rtt_us = info.tcpi_rtt;
        }
        t->mss = info.tcpi_snd_mss + ((info.tcpi_options & TCPI_OPT_TIMESTAMPS) != 0 ? 12 : 0);
    }
}

void mu_probe_dial(struct mu_probe_try *tries, size_t count, uint32_t timeout_ms)
{
    struct pollfd fds[MU_PROBE_TRIES];
    uint64_t since = now_us();
    uint64_t until = since + (uint64_t)timeout_ms * 1000;
    size_t waiting = 0;

    count = count < MU_PROBE_TRIES ? count : MU_PROBE_TRIES;
    for (size_t i = 0; i < count; i++) {
        int fd = start_dial(tries[i].number, tries[i].port);

        tries[i].status = fd < 0 ? fd : -ETIMEDOUT;
        fds[i] = (struct pollfd){.fd = fd < 0 ? -1 : fd, .events = POLLOUT};
        waiting += fd < 0 ? 0 : 1;
    }
    while (waiting > 0 && left_ms(until) > 0) {
        int n = poll(fds, count, left_ms(until));

        for (size_t i = 0; n > 0 && i < count; i++) {
            if (fds[i].fd >= 0 && fds[i].revents != 0) {
                tries[i].status = error_of(fds[i].fd);
                if (tries[i].status == 0) {
                    look_at(fds[i].fd, &tries[i], (uint32_t)(now_us() - since));
                }
                (void)close(fds[i].fd);
                fds[i].fd = -1;
                waiting--;
            }
        }
    }
    for (size_t i = 0; i < count; i++) {
        if (fds[i].fd >= 0) {
            (void)close(fds[i].fd);
        }
    }
}

/* --- asking ----------------------------------------------------------------------------------- */

static bool await(int fd, short events, uint64_t until)
{
    struct pollfd p = {.fd = fd, .events = events};
    int n;

    do {
        n = poll(&p, 1, left_ms(until));
    } while (n < 0 && errno == EINTR);
    return n > 0;
}

/* Asks on a connection that is up. */
static enum mu_probe_end converse(int fd, struct mu_span question, uint64_t until, uint8_t *answer,
                                  size_t cap, size_t enough, size_t *ret_len)
{
    size_t len = 0;
    bool over = false;

    /* A question is far shorter than what a fresh socket accepts. */
    if (send(fd, question.data, question.len, MSG_NOSIGNAL) != (ssize_t)question.len) {
        return MU_PROBE_CLOSED;
    }
    while (!over && len < cap && len < enough && await(fd, POLLIN, until)) {
        ssize_t n = recv(fd, answer + len, cap - len, 0);

        over = n <= 0 && !(n < 0 && errno == EAGAIN);
        len += n > 0 ? (size_t)n : 0;
    }
    *ret_len = len;
    return len > 0 ? MU_PROBE_ANSWERED : over ? MU_PROBE_CLOSED : MU_PROBE_SILENT;
}

enum mu_probe_end mu_probe_ask(const struct mu_probe_number *number, uint16_t port,
                               struct mu_span question, uint32_t timeout_ms, uint8_t *answer,
                               size_t cap, size_t enough, size_t *ret_len)
{
    uint64_t until = now_us() + (uint64_t)timeout_ms * 1000;
    int fd = start_dial(number, port);
    enum mu_probe_end end = MU_PROBE_FAILED;

    *ret_len = 0;
    if (fd < 0) {
        return end;
    }
    if (await(fd, POLLOUT, until) && error_of(fd) == 0) {
        end = converse(fd, question, until, answer, cap, enough, ret_len);
    }
    (void)close(fd);
    return end;
}

/* --- how long a packet may be ----------------------------------------------------------------- */

/* Opens a datagram socket to an unused port; packets are never fragmented. A negated errno. */
static int open_datagrams(const struct mu_probe_number *n, uint16_t port)
{
    const int v4_do = IP_PMTUDISC_DO;
    const int v6_do = IPV6_PMTUDISC_DO;
    const int on = 1;
    struct sockaddr_storage to;
    socklen_t len = 0;
    int fd;

    if (!make_address(n, port, &to, &len)) {
        return -EINVAL;
    }
    fd = socket(to.ss_family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return -errno;
    }
    if (n->v6) {
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, &v6_do, sizeof(v6_do));
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_RECVERR, &on, sizeof(on));
    } else {
        (void)setsockopt(fd, IPPROTO_IP, IP_MTU_DISCOVER, &v4_do, sizeof(v4_do));
        (void)setsockopt(fd, IPPROTO_IP, IP_RECVERR, &on, sizeof(on));
    }
    if (connect(fd, (struct sockaddr *)&to, len) != 0) {
        int err = -errno;

        (void)close(fd);
        return err;
    }
    return fd;
}

/* The kernel keeps each error in a queue, from which it must be removed. */
static void drop_errors(int fd)
{
    uint8_t data[64];
    uint8_t control[512];
    struct iovec io = {.iov_base = data, .iov_len = sizeof(data)};
    struct msghdr msg;

    do {
        msg = (struct msghdr){.msg_iov = &io,
                              .msg_iovlen = 1,
                              .msg_control = control,
                              .msg_controllen = sizeof(control)};
    } while (recvmsg(fd, &msg, MSG_ERRQUEUE | MSG_DONTWAIT) >= 0);
}

static bool same_host(const struct sockaddr *a, const struct sockaddr *b)
{
    if (a->sa_family != b->sa_family) {
        return false;
    }
    return a->sa_family == AF_INET
               ? memcmp(&((const struct sockaddr_in *)(const void *)a)->sin_addr,
                        &((const struct sockaddr_in *)(const void *)b)->sin_addr, 4) == 0
               : memcmp(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr,
                        &((const struct sockaddr_in6 *)(const void *)b)->sin6_addr, 16) == 0;
}

/* The MTU of the interface whose address we use on this path, not what the kernel has learnt about
 * the path and keeps for minutes. 0: unknown. */
static uint32_t interface_mtu(int fd)
{
    struct sockaddr_storage own;
    socklen_t len = sizeof(own);
    struct ifaddrs *list = NULL;
    struct ifreq request = {0};
    uint32_t mtu = 0;

    if (getsockname(fd, (struct sockaddr *)&own, &len) != 0 || getifaddrs(&list) != 0) {
        return 0;
    }
    for (struct ifaddrs *at = list; at != NULL; at = at->ifa_next) {
        if (at->ifa_addr != NULL && same_host(at->ifa_addr, (struct sockaddr *)&own)) {
            (void)snprintf(request.ifr_name, sizeof(request.ifr_name), "%s", at->ifa_name);
            if (ioctl(fd, SIOCGIFMTU, &request) == 0 && request.ifr_mtu > 0) {
                mtu = (uint32_t)request.ifr_mtu;
            }
            break;
        }
    }
    freeifaddrs(list);
    return mtu;
}

/* Sends a packet of `bytes` bytes in total. 0: it arrived; -EMSGSIZE: it is too long for the path;
 * -ETIMEDOUT: unknown; otherwise a negated errno. */
static int send_packet(int fd, bool v6, uint32_t bytes, uint64_t until)
{
    static const uint8_t zeros[65536];
    uint32_t headers = v6 ? HEADERS_V6 : HEADERS_V4;
    uint32_t payload = bytes > headers ? bytes - headers : 1;
    int err;

    payload = payload < 65000 ? payload : 65000;
    (void)error_of(fd);
    drop_errors(fd);
    if (send(fd, zeros, payload, MSG_NOSIGNAL) < 0) {
        err = -errno;
        return err == -ECONNREFUSED ? 0 : err; /* the late answer to the packet before */
    }
    if (!await(fd, POLLERR | POLLIN, until)) {
        return -ETIMEDOUT;
    }
    err = error_of(fd);
    drop_errors(fd);
    /* If a program listens there after all and answers, the packet arrived too. */
    return err == -ECONNREFUSED ? 0 : err;
}

/* Of lengths below one that vanishes, the longest that arrives; 0: no length arrives. All are under
 * way at once, each from a socket of its own, so that the errors tell which arrived. */
static uint32_t find_passing(const struct mu_probe_number *n, uint32_t below, uint64_t until)
{
    static const uint32_t lengths[] = {8900, 1400, 1280, 576};
    const size_t count = sizeof(lengths) / sizeof(lengths[0]);
    struct pollfd fds[sizeof(lengths) / sizeof(lengths[0])];
    uint32_t found = 0;
    static const uint8_t zeros[9000];

    for (size_t i = 0; i < count; i++) {
        uint32_t headers = n->v6 ? HEADERS_V6 : HEADERS_V4;
        int fd = lengths[i] < below ? open_datagrams(n, UNUSED_PORT) : -1;

        fds[i] = (struct pollfd){.fd = fd < 0 ? -1 : fd, .events = POLLERR};
        if (fd >= 0) {
            (void)send(fd, zeros, lengths[i] - headers, MSG_NOSIGNAL);
        }
    }
    while (left_ms(until) > 0 && poll(fds, count, left_ms(until)) > 0) {
        for (size_t i = 0; i < count; i++) {
            if (fds[i].fd >= 0 && fds[i].revents != 0) {
                found =
                    error_of(fds[i].fd) == -ECONNREFUSED && lengths[i] > found ? lengths[i] : found;
                (void)close(fds[i].fd);
                fds[i].fd = -1;
            }
        }
    }
    for (size_t i = 0; i < count; i++) {
        if (fds[i].fd >= 0) {
            (void)close(fds[i].fd);
        }
    }
    return found;
}

/* Measures with a socket whose short packets are known to arrive and to be answered. */
static void measure_mtu(const struct mu_probe_number *n, int fd, uint32_t wait_ms,
                        struct mu_probe_mtu *m)
{
    for (int step = 0; step < STEPS_MAX; step++) {
        int err = send_packet(fd, n->v6, m->path, now_us() + (uint64_t)wait_ms * 1000);
        uint32_t known = known_mtu(fd, n->v6);

        if (err == 0) {
            m->finding = m->path < m->local ? MU_PROBE_MTU_TOLD : MU_PROBE_MTU_PASSES;
            return;
        }
        if (err != -EMSGSIZE || known == 0 || known >= m->path) {
            break;
        }
        m->path = known;
        m->finding = MU_PROBE_MTU_TOLD;
    }
    if (m->finding != MU_PROBE_MTU_TOLD) {
        m->path = find_passing(n, m->path, now_us() + (uint64_t)wait_ms * 1000);
        m->finding = m->path != 0 ? MU_PROBE_MTU_HOLE : MU_PROBE_MTU_UNKNOWN;
    }
}

int mu_probe_mtu(const struct mu_probe_number *number, uint32_t timeout_ms,
                 struct mu_probe_mtu *ret)
{
    uint32_t wait_ms = timeout_ms / 4 + 1;
    int fd = open_datagrams(number, UNUSED_PORT);

    if (fd < 0) {
        return fd;
    }
    *ret = (struct mu_probe_mtu){.finding = MU_PROBE_MTU_UNKNOWN,
                                 .local = interface_mtu(fd),
                                 .path = known_mtu(fd, number->v6)};
    ret->local = ret->local > ret->path ? ret->local : ret->path;
    /* A short packet first: a host that does not answer that tells nothing about a long one. */
    if (send_packet(fd, number->v6, 100, now_us() + (uint64_t)wait_ms * 1000) == 0 &&
        ret->path != 0) {
        measure_mtu(number, fd, wait_ms, ret);
    }
    (void)close(fd);
    return 0;
}
