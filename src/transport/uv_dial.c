#include "transport/uv_internal.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/err.h"

/* A unix socket whose queue is full is tried again for ten seconds. */
#define FULL_MS    5
#define FULL_TRIES 2000

/* A dial under way: the addresses that were not tried yet. It outlives its connection only while
 * the resolver, which cannot always be stopped, uses it. */
struct mu_uv_dial {
    uv_getaddrinfo_t req;
    struct mu_uv_conn *c; /* NULL once it was given up */
    bool resolving;
    int status;            /* of the last try */
    unsigned full;         /* how often the listener's queue was full */
    struct addrinfo *list; /* the resolver's, or NULL */
    struct addrinfo *next;
    struct addrinfo unix_info;
    struct sockaddr_storage unix_addr;
};

void mu_uv_dial_free(struct mu_uv_conn *c)
{
    struct mu_uv_dial *d = c->dial;

    if (d == NULL) {
        return;
    }
    c->dial = NULL;
    d->c = NULL;
    if (d->resolving) {
        (void)uv_cancel((uv_req_t *)&d->req);
        return; /* on_resolved() frees it */
    }
    if (d->list != NULL) {
        freeaddrinfo(d->list);
    }
    mu_free(d);
}

void mu_uv_dial_note(struct mu_uv_conn *c, int status)
{
    c->dial->status = status;
}

/* Starts to connect to one address. A negated errno. */
static int try_address(struct mu_uv_conn *c, const struct addrinfo *ai)
{
    int fd;
    int rc = mu_uv_sock_new(ai->ai_family, &fd);

    if (rc != 0) {
        return rc;
    }
    if (connect(fd, ai->ai_addr, ai->ai_addrlen) != 0 && errno != EINPROGRESS) {
        rc = -errno;
    } else {
        rc = mu_uv_conn_attach(c, fd);
    }
    if (rc != 0) {
        (void)close(fd);
        return rc;
    }
    mu_uv_conn_watch(c, MU_UV_DIALING);
    return 0;
}

void mu_uv_dial_next(struct mu_uv_conn *c)
{
    struct mu_uv_dial *d = c->dial;
    struct mu_env *env = &c->uv->env;

    while (d->next != NULL) {
        const struct addrinfo *ai = d->next;

        d->next = ai->ai_next;
        d->status = try_address(c, ai);
        if (d->status == -EAGAIN && ai == &d->unix_info && d->full++ < FULL_TRIES) {
            /* The listener's queue is full. With TCP the kernel would wait; here we must. */
            d->next = &d->unix_info;
            mu_env_timer_arm(env, &c->timer, mu_mono_add_ms(mu_env_now(env).mono, FULL_MS));
            return;
        }
        if (d->status == 0) {
            if (d->next != NULL) {
                /* The last address gets as long as the owner wants to wait. */
                mu_env_timer_arm(env, &c->timer,
                                 mu_mono_add_ms(mu_env_now(env).mono, MU_UV_DIAL_TRY_MS));
            }
            return;
        }
    }
    mu_uv_conn_teardown(c, d->status);
}

void mu_uv_dial_event(struct mu_uv_conn *c)
{
    int status = mu_uv_sock_error(c->fd);

    if (status == 0 && mu_uv_sock_is_self(c->fd)) {
        /* Nothing listens there: the kernel gave us the same port that we dialled. */
        mu_uv_sock_set_reset(c->fd);
        status = -ECONNREFUSED;
    }
    if (status != 0) {
        mu_uv_conn_try_failed(c, status);
        return;
    }
    mu_env_timer_arm(&c->uv->env, &c->timer, MU_MONO_NEVER);
    mu_uv_dial_free(c);
    mu_uv_sock_tune(c->fd);
    mu_uv_conn_watch(c, MU_UV_OPEN);
    c->conn->on->open(c->conn);
}

static void on_resolved(uv_getaddrinfo_t *req, int status, struct addrinfo *list)
{
    struct mu_uv_dial *d = req->data;
    struct mu_uv_conn *c = d->c;

    d->resolving = false;
    if (c == NULL) {
        uv_freeaddrinfo(list);
        mu_free(d);
        return;
    }
    d->list = list;
    d->next = list;
    d->status = status == UV_EAI_MEMORY || status == UV_ENOMEM ? MUSTER_ENOMEM : MUSTER_ENAME;
    mu_uv_dial_next(c);
}

/* Fills in the addresses of `addr`, or starts to look them up. */
static int resolve(struct mu_uv_dial *d, const struct mu_addr *addr)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo numeric = hints;
    char port[8];
    int rc;

    if (addr->kind == MU_ADDR_PEER) {
        return MUSTER_EINVAL;
    }
    if (addr->kind == MU_ADDR_UNIX) {
        d->unix_info.ai_family = AF_UNIX;
        d->unix_info.ai_addr = (struct sockaddr *)&d->unix_addr;
        d->next = &d->unix_info;
        return mu_uv_sock_unix(addr->host, &d->unix_addr, &d->unix_info.ai_addrlen);
    }
    if (addr->host[0] == '\0' || addr->port == 0) {
        return MUSTER_EINVAL;
    }
    (void)snprintf(port, sizeof(port), "%u", addr->port);
    numeric.ai_flags |= AI_NUMERICHOST;
    if (getaddrinfo(addr->host, port, &numeric, &d->list) == 0) {
        d->next = d->list;
        return 0;
    }
    rc = uv_getaddrinfo(&d->c->uv->loop, &d->req, on_resolved, addr->host, port, &hints);
    if (rc != 0) {
        return rc == UV_ENOMEM ? MUSTER_ENOMEM : MUSTER_EINVAL;
    }
    d->resolving = true;
    return 0;
}

int mu_uv_dial(struct mu_env *env, struct mu_conn *conn, const struct mu_addr *addr)
{
    struct mu_uv_conn *c = mu_uv_conn_new(mu_uv_of(env));
    struct mu_uv_dial *d = mu_calloc(1, sizeof(*d));
    int rc = MUSTER_ENOMEM;

    if (c == NULL || d == NULL) {
        mu_free(d);
        goto fail;
    }
    c->dial = d;
    d->c = c;
    d->req.data = d;
    rc = resolve(d, addr);
    if (rc != 0) {
        goto fail;
    }
    mu_uv_conn_start(c, conn);
    if (!d->resolving) {
        mu_uv_dial_next(c);
    }
    return 0;

fail:
    if (c != NULL) {
        mu_uv_conn_free(c);
    }
    return rc;
}
