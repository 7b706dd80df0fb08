#include "transport/uv_internal.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "core/err.h"

/* A name such as "localhost" may have several addresses; we listen on all of them. */
#define SOCKETS_MAX 8u
/* How many connections one socket gives before the others' turn: each costs some 50 us. */
#define ACCEPT_BURST 16
/* How often we look for a port that is free on all addresses. */
#define PORT_TRIES 16

struct uv_listener;

struct uv_socket {
    uv_poll_t poll;
    struct uv_listener *owner;
    int fd;
};

struct uv_listener {
    struct mu_uv_env *uv;
    struct mu_listener *listener;
    struct mu_timer timer; /* resumes accepting */
    struct uv_socket sockets[SOCKETS_MAX];
    size_t count;
    size_t open; /* handles that are not closed yet */
    bool closing;
    bool beyond; /* one of its addresses is not a loopback address */
    char path[sizeof(((struct sockaddr_un *)0)->sun_path)]; /* the socket's file, which the close
                                                               removes, or empty */
};

static void on_event(uv_poll_t *poll, int status, int events);

static void start_accepting(struct uv_listener *l)
{
    for (size_t i = 0; i < l->count; i++) {
        MU_ASSERT(uv_poll_start(&l->sockets[i].poll, UV_READABLE, on_event) == 0);
    }
}

static void on_timer(struct mu_timer *timer)
{
    start_accepting(MU_CONTAINER_OF(timer, struct uv_listener, timer));
}

/* No descriptors or no memory: connections wait in the kernel's queue, and we do not spin. */
static void rest_a_while(struct uv_listener *l, int status)
{
    struct mu_env *env = &l->uv->env;

    mu_uv_conn_drop_lingering(l->uv);
    for (size_t i = 0; i < l->count; i++) {
        MU_ASSERT(uv_poll_stop(&l->sockets[i].poll) == 0);
    }
    mu_env_timer_arm(env, &l->timer, mu_mono_add_ms(mu_env_now(env).mono, MU_UV_ACCEPT_REST_MS));
    if (l->listener->accept_failed != NULL) {
        l->listener->accept_failed(l->listener, status);
    }
}

static bool is_exhaustion(int err)
{
    return err == EMFILE || err == ENFILE || err == ENOBUFS || err == ENOMEM || err == ENOSPC;
}

/* Takes one connection. 0, or a negated errno: -EAGAIN when there are no more. */
static int accept_one(struct uv_socket *s)
{
    struct mu_uv_env *uv = s->owner->uv;
    struct mu_uv_conn *c;
    struct mu_conn *conn;
    int fd = accept4(s->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    int rc;

    if (fd < 0) {
        return -errno;
    }
    c = mu_uv_conn_new(uv);
    rc = c == NULL ? -ENOMEM : mu_uv_conn_attach(c, fd);
    if (rc != 0) {
        (void)close(fd);
        if (c != NULL) {
            mu_uv_conn_free(c);
        }
        return rc;
    }
    mu_uv_sock_tune(fd);
    conn = s->owner->listener->accept(s->owner->listener);
    if (conn == NULL) {
        mu_uv_conn_teardown(c, 0);
        return 0;
    }
    mu_uv_conn_start(c, conn);
    mu_uv_conn_watch(c, MU_UV_OPEN);
    return 0;
}

static void on_event(uv_poll_t *poll, int status, int events)
{
    struct uv_socket *s = poll->data;
    struct uv_listener *l = s->owner;

    (void)events;
    if (status < 0) {
        rest_a_while(l, status);
        return;
    }
    for (int i = 0; i < ACCEPT_BURST && !l->closing; i++) {
        int rc = accept_one(s);

        if (rc == -EAGAIN || rc == -EWOULDBLOCK) {
            return;
        }
        if (is_exhaustion(-rc)) {
            rest_a_while(l, rc);
            return;
        }
        /* Anything else concerns one connection, which ended before we took it. */
    }
}

/* Closing. */

static void on_handle_closed(uv_handle_t *handle)
{
    struct uv_socket *s = handle->data;
    struct uv_listener *l = s->owner;
    struct mu_listener *listener = l->listener;

    if (--l->open != 0) {
        return;
    }
    if (listener != NULL) {
        l->uv->live--;
        listener->impl = NULL;
        listener->closed(listener);
    }
    mu_free(l);
}

/* Closes all sockets; the memory goes once libuv has let go of them. */
static void close_sockets(struct uv_listener *l)
{
    l->closing = true;
    mu_env_timer_arm(&l->uv->env, &l->timer, MU_MONO_NEVER);
    if (l->path[0] != '\0') {
        (void)unlink(l->path);
    }
    for (size_t i = 0; i < l->count; i++) {
        uv_close((uv_handle_t *)&l->sockets[i].poll, on_handle_closed);
        (void)close(l->sockets[i].fd);
    }
}

void mu_uv_unlisten(struct mu_env *env, struct mu_listener *listener)
{
    struct uv_listener *l = listener->impl;

    (void)env;
    if (l != NULL && !l->closing) {
        close_sockets(l);
    }
}

/* Opening. */

static int set_flag(int fd, int level, int option, int value)
{
    return setsockopt(fd, level, option, &value, sizeof(value)) == 0 ? 0 : -errno;
}

static uint16_t *port_of(struct sockaddr_storage *ss)
{
    return ss->ss_family == AF_INET6 ? &((struct sockaddr_in6 *)ss)->sin6_port
                                     : &((struct sockaddr_in *)ss)->sin_port;
}

/* A socket bound to one address and listening. */
static int open_socket(const struct sockaddr *addr, socklen_t len, bool dual, int *ret_fd)
{
    int fd;
    int rc = mu_uv_sock_new(addr->sa_family, &fd);

    if (rc != 0) {
        return rc;
    }
    if (addr->sa_family == AF_INET6) {
        rc = set_flag(fd, IPPROTO_IPV6, IPV6_V6ONLY, dual ? 0 : 1);
    }
    if (rc == 0 && addr->sa_family != AF_UNIX) {
        rc = set_flag(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    }
    if (rc == 0 && (bind(fd, addr, len) != 0 || listen(fd, MU_UV_BACKLOG) != 0)) {
        rc = -errno;
    }
    if (rc != 0) {
        (void)close(fd);
        return rc;
    }
    *ret_fd = fd;
    return 0;
}

static int add_socket(struct uv_listener *l, int fd)
{
    struct uv_socket *s = &l->sockets[l->count];
    int rc = uv_poll_init(&l->uv->loop, &s->poll, fd);

    if (rc != 0) {
        (void)close(fd);
        return rc;
    }
    s->poll.data = s;
    s->owner = l;
    s->fd = fd;
    l->count++;
    l->open++;
    return 0;
}

/* Removes a socket that a killed process left behind: no process uses it. */
static void remove_stale(const char *path, const struct sockaddr *addr, socklen_t len)
{
    struct stat st;
    int fd;

    if (lstat(path, &st) != 0 || !S_ISSOCK(st.st_mode) || mu_uv_sock_new(AF_UNIX, &fd) != 0) {
        return;
    }
    if (connect(fd, addr, len) != 0 && errno == ECONNREFUSED) {
        (void)unlink(path);
    }
    (void)close(fd);
}

static int listen_unix(struct uv_listener *l, const char *path)
{
    struct sockaddr_storage ss;
    socklen_t len;
    int fd;
    int rc = mu_uv_sock_unix(path, &ss, &len);

    if (rc != 0) {
        return rc;
    }
    rc = open_socket((struct sockaddr *)&ss, len, false, &fd);
    if (rc == -EADDRINUSE) {
        remove_stale(path, (struct sockaddr *)&ss, len);
        rc = open_socket((struct sockaddr *)&ss, len, false, &fd);
    }
    if (rc != 0) {
        return rc;
    }
    rc = add_socket(l, fd);
    if (rc != 0) {
        if (path[0] != '@') {
            (void)unlink(path);
        }
        return rc;
    }
    /* A name in the abstract namespace begins with a zero: there is no file to remove. */
    memcpy(l->path, ((struct sockaddr_un *)&ss)->sun_path, sizeof(l->path));
    return 0;
}

static bool is_loopback(const struct sockaddr_storage *ss)
{
    return ss->ss_family == AF_INET
               ? ntohl(((const struct sockaddr_in *)ss)->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET
               : IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)ss)->sin6_addr);
}

/* Binds one address; for port 0, with the port that an earlier address has found. */
static int listen_at(struct uv_listener *l, const struct sockaddr *at, socklen_t len, bool dual,
                     uint16_t *port)
{
    struct sockaddr_storage ss = {0};
    socklen_t got = sizeof(ss);
    int fd;
    int rc;

    memcpy(&ss, at, len);
    *port_of(&ss) = htons(*port);
    rc = open_socket((struct sockaddr *)&ss, len, dual, &fd);
    if (rc != 0) {
        return rc;
    }
    l->beyond = l->beyond || !is_loopback(&ss);
    if (getsockname(fd, (struct sockaddr *)&ss, &got) == 0) {
        *port = ntohs(*port_of(&ss));
    }
    return add_socket(l, fd);
}

static int listen_anywhere(struct uv_listener *l, uint16_t *port)
{
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT};
    struct sockaddr_in v4 = {.sin_family = AF_INET};
    int rc = listen_at(l, (struct sockaddr *)&v6, sizeof(v6), true, port);

    if (rc == -EAFNOSUPPORT || rc == -EADDRNOTAVAIL) {
        rc = listen_at(l, (struct sockaddr *)&v4, sizeof(v4), false, port);
    }
    return rc;
}

static int listen_on_list(struct uv_listener *l, const struct addrinfo *list, uint16_t *port)
{
    int missing = -EADDRNOTAVAIL;

    for (const struct addrinfo *ai = list; ai != NULL && l->count < SOCKETS_MAX; ai = ai->ai_next) {
        int rc;

        if (ai->ai_family != AF_INET && ai->ai_family != AF_INET6) {
            continue;
        }
        rc = listen_at(l, ai->ai_addr, ai->ai_addrlen, false, port);
        if (rc == -EAFNOSUPPORT || rc == -EADDRNOTAVAIL) {
            /* "localhost" is also ::1 on machines without IPv6. One that works is enough. */
            missing = rc;
        } else if (rc != 0) {
            return rc;
        }
    }
    return l->count == 0 ? missing : 0;
}

static int listen_named(struct uv_listener *l, const char *host, uint16_t *port)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    struct addrinfo *list;
    int rc = getaddrinfo(host, NULL, &hints, &list);

    if (rc != 0) {
        return rc == EAI_MEMORY ? MUSTER_ENOMEM : MUSTER_ENAME;
    }
    rc = listen_on_list(l, list, port);
    freeaddrinfo(list);
    return rc;
}

static struct uv_listener *new_listener(struct mu_uv_env *uv)
{
    struct uv_listener *l = mu_calloc(1, sizeof(*l));

    if (l != NULL) {
        l->uv = uv;
        mu_timer_init(&l->timer, on_timer);
    }
    return l;
}

/* Makes one attempt at `addr`; with port 0 the second address of a name may find the port taken. */
static int open_listener(struct mu_uv_env *uv, const struct mu_addr *addr, uint16_t *port,
                         struct uv_listener **ret)
{
    struct uv_listener *l;
    int rc;

    if (addr->kind == MU_ADDR_PEER) {
        return MUSTER_EINVAL;
    }
    l = new_listener(uv);
    if (l == NULL) {
        return MUSTER_ENOMEM;
    }
    *port = addr->port;
    if (addr->kind == MU_ADDR_UNIX) {
        rc = listen_unix(l, addr->host);
    } else if (addr->host[0] == '\0' || strcmp(addr->host, "*") == 0 ||
               strcmp(addr->host, "::") == 0) {
        rc = listen_anywhere(l, port);
    } else {
        rc = listen_named(l, addr->host, port);
    }
    if (rc == 0) {
        *ret = l;
    } else if (l->count != 0) {
        close_sockets(l);
    } else {
        mu_free(l);
    }
    return rc;
}

int mu_uv_listen(struct mu_env *env, struct mu_listener *listener, struct mu_addr *addr)
{
    struct mu_uv_env *uv = mu_uv_of(env);
    struct uv_listener *l = NULL;
    uint16_t port;
    int rc = -EADDRINUSE;

    for (int i = 0; i < PORT_TRIES && rc == -EADDRINUSE; i++) {
        rc = open_listener(uv, addr, &port, &l);
        if (addr->kind == MU_ADDR_UNIX || addr->port != 0) {
            break;
        }
    }
    if (rc != 0) {
        return rc;
    }
    addr->port = port;
    l->listener = listener;
    listener->env = env;
    listener->impl = l;
    listener->here_only = !l->beyond;
    uv->live++;
    start_accepting(l);
    return 0;
}
