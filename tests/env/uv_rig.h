/* The environment of libuv, a listener whose ends are told what to do, and plain sockets to it. */
#ifndef MU_TEST_UV_RIG_H
#define MU_TEST_UV_RIG_H

#include "unit.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/uv_env.h"
#include "transport/uv_internal.h"

static struct mu_uv_env *uv;
static struct mu_env *env;

static inline size_t count_fds(void)
{
    DIR *d = opendir("/proc/self/fd");
    size_t n = 0;

    assert_non_null(d);
    while (readdir(d) != NULL) {
        n++;
    }
    (void)closedir(d);
    return n;
}

static size_t fds_before;
static bool fd_was_there[256];

/* The first loop of a process opens what libuv keeps for all of them. */
static inline int open_first(void **state)
{
    (void)state;
    if (mu_uv_env_new(&uv) != 0) {
        return -1;
    }
    mu_uv_env_free(uv);
    return 0;
}

static inline int set_up(void **state)
{
    (void)state;
    fds_before = count_fds();
    for (int i = 0; i < 256; i++) {
        fd_was_there[i] = fcntl(i, F_GETFD) >= 0;
    }
    if (mu_uv_env_new(&uv) != 0) {
        return -1;
    }
    env = mu_uv_env_env(uv);
    return 0;
}

static inline int tear_down(void **state)
{
    (void)state;
    mu_uv_env_free(uv);
    return count_fds() == fds_before ? 0 : -1;
}

/* A server end that says "hi" at the end of its peer. */
struct end {
    struct mu_conn conn;
    size_t received;
    size_t opened;
    size_t eofs;
    size_t hang_ups;
    size_t closed;
    int status;
    bool greet_at_eof;
    bool hold; /* uses nothing of what comes */
};

static inline void end_open(struct mu_conn *conn)
{
    MU_CONTAINER_OF(conn, struct end, conn)->opened++;
}

static inline size_t end_data(struct mu_conn *conn, struct mu_span in)
{
    struct end *e = MU_CONTAINER_OF(conn, struct end, conn);

    e->received += in.len;
    return e->hold ? 0 : in.len;
}

static inline void end_eof(struct mu_conn *conn)
{
    struct end *e = MU_CONTAINER_OF(conn, struct end, conn);
    size_t taken;

    e->eofs++;
    if (e->greet_at_eof) {
        mu_env_send(env, conn, MU_SPAN_LIT("hi"), &taken);
        mu_env_close(env, conn, false);
    }
}

static inline void end_hung_up(struct mu_conn *conn)
{
    struct end *e = MU_CONTAINER_OF(conn, struct end, conn);

    assert_int_equal(e->eofs, 1);
    e->hang_ups++;
}

static inline void end_writable(struct mu_conn *conn)
{
    (void)conn;
}

static inline void end_closed(struct mu_conn *conn, int status)
{
    struct end *e = MU_CONTAINER_OF(conn, struct end, conn);

    e->closed++;
    e->status = status;
}

static const struct mu_conn_events end_events = {
    .open = end_open,
    .data = end_data,
    .eof = end_eof,
    .hung_up = end_hung_up,
    .writable = end_writable,
    .closed = end_closed,
};

#define ENDS_MAX 64u

struct door {
    struct mu_listener listener;
    struct mu_addr addr;
    struct end ends[ENDS_MAX];
    size_t accepted;
    size_t failures;
    int failure;
    bool closed;
};

static inline struct mu_conn *door_accept(struct mu_listener *listener)
{
    struct door *d = MU_CONTAINER_OF(listener, struct door, listener);

    if (d->accepted == ENDS_MAX) {
        return NULL;
    }
    d->ends[d->accepted].conn.on = &end_events;
    return &d->ends[d->accepted++].conn;
}

static inline void door_failed(struct mu_listener *listener, int status)
{
    struct door *d = MU_CONTAINER_OF(listener, struct door, listener);

    d->failures++;
    d->failure = status;
}

static inline void door_closed(struct mu_listener *listener)
{
    MU_CONTAINER_OF(listener, struct door, listener)->closed = true;
}

static inline int door_try(struct door *d, enum mu_addr_kind kind, const char *host)
{
    memset(d, 0, sizeof(*d));
    d->listener = (struct mu_listener){
        .accept = door_accept, .accept_failed = door_failed, .closed = door_closed};
    d->addr.kind = kind;
    (void)snprintf(d->addr.host, sizeof(d->addr.host), "%s", host);
    return mu_env_listen(env, &d->listener, &d->addr);
}

static inline void door_open(struct door *d, const char *host)
{
    assert_int_equal(door_try(d, MU_ADDR_TCP, host), 0);
    assert_int_not_equal(d->addr.port, 0);
}

static inline void run_until_count(const size_t *count, size_t at_least)
{
    for (int i = 0; *count < at_least; i++) {
        assert_true(i < 1000000);
        mu_uv_env_turn(uv);
    }
}

static inline void door_close(struct door *d)
{
    mu_env_unlisten(env, &d->listener);
    for (size_t i = 0; i < d->accepted; i++) {
        mu_env_close(env, &d->ends[i].conn, true);
        run_until_count(&d->ends[i].closed, 1);
        assert_int_equal(d->ends[i].closed, 1);
    }
    while (!d->closed) {
        mu_uv_env_turn(uv);
    }
}

/* A plain socket, outside of the environment. */
static inline int plain_connect(const char *address, uint16_t port)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    bool is_v4 = inet_pton(AF_INET, address, &v4.sin_addr) == 1;
    int fd = socket(is_v4 ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (!is_v4) {
        assert_int_equal(inet_pton(AF_INET6, address, &v6.sin6_addr), 1);
    }
    assert_true(fd >= 0);
    if (connect(fd, is_v4 ? (struct sockaddr *)&v4 : (struct sockaddr *)&v6,
                is_v4 ? sizeof(v4) : sizeof(v6)) != 0) {
        (void)close(fd);
        return -errno;
    }
    return fd;
}

#endif
