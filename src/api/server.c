#include "api/api.h"

#include <stdio.h>
#include <string.h>

#include "core/addr.h"
#include "core/alloc.h"
#include "service/page/status_page.h"
#include "service/server/server.h"
#include "transport/lmdb_disk.h"
#include "transport/memory_limit.h"
#include "transport/uv_env.h"

struct muster_server {
    muster_runtime *rt;
    struct mu_store_server *server;
    struct mu_status_page *page; /* NULL: no page */
    struct mu_addr addr;
    char address[MU_ADDR_HOST_MAX + 16];
    char http_address[MU_ADDR_HOST_MAX + 16];
    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool stopped;
    int status;
    struct mu_errmsg why;
};

static struct muster_server_config defaults(void)
{
    struct mu_store_server_config d = mu_store_server_config_defaults();

    mu_store_server_config_fit(&d, mu_memory_limit());
    return (struct muster_server_config){
        .sync = MUSTER_SYNC_ALWAYS,
        .sync_interval_ms = d.sync_interval_ms,
        .key_bytes_max = d.keyspace.key_bytes_max,
        .value_bytes_max = d.keyspace.value_bytes_max,
        .keys_max = d.keyspace.keys_max,
        .memory_bytes_max = d.keyspace.memory_bytes_max,
        .buffer_bytes_max = d.buffer_bytes_max,
        .connections_max = d.connections_max,
        .sessions_max = d.sessions_max,
        .session_grace_ms = d.rpc.grace_ms,
        .drain_ms = d.drain_ms,
    };
}

void muster_server_config_init(struct muster_server_config *ret, size_t size)
{
    struct muster_server_config ours = defaults();

    mu_api_give(ret, size, &ours, sizeof(ours));
}

static void tell_stopped(void *context)
{
    muster_server *s = context;

    (void)pthread_mutex_lock(&s->lock);
    s->stopped = true;
    (void)pthread_cond_broadcast(&s->cond);
    (void)pthread_mutex_unlock(&s->lock);
}

/* The page ends last, since it shows that the server is about to end. */
static void on_stopped(void *context, int status, const char *why)
{
    muster_server *s = context;

    s->status = mu_err(&s->why, status, "%s", why);
    if (s->page != NULL) {
        mu_status_page_stop(s->page);
    } else {
        tell_stopped(s);
    }
}

static void fill_config(muster_server *s, const struct muster_server_config *c,
                        struct mu_store_server_config *ret)
{
    *ret = mu_store_server_config_defaults();
    ret->listen = s->addr;
    ret->keyspace.key_bytes_max = ret->torch.key_bytes_max = c->key_bytes_max;
    ret->keyspace.value_bytes_max = ret->torch.value_bytes_max = c->value_bytes_max;
    ret->keyspace.keys_max = ret->torch.keys_max = c->keys_max;
    ret->fit = false; /* the defaults fit the machine; what the user says is taken as it is */
    ret->keyspace.memory_bytes_max = c->memory_bytes_max;
    ret->buffer_bytes_max = c->buffer_bytes_max;
    ret->connections_max = c->connections_max;
    ret->sessions_max = c->sessions_max;
    ret->rpc.grace_ms = c->session_grace_ms;
    ret->rpc.name = "muster " MUSTER_VERSION;
    /* A value at its limit must fit one request of either wire. */
    if (ret->torch.request_bytes_max < c->value_bytes_max + c->key_bytes_max + 64) {
        ret->torch.request_bytes_max = c->value_bytes_max + c->key_bytes_max + 64;
    }
    if (ret->torch.output_bytes_max < c->value_bytes_max + 64) {
        ret->torch.output_bytes_max = c->value_bytes_max + 64;
    }
    mu_store_server_config_settle(ret);
    if (ret->rpc.frame_bytes_max < c->value_bytes_max + c->key_bytes_max + 4096) {
        ret->rpc.frame_bytes_max = (uint32_t)(c->value_bytes_max + c->key_bytes_max + 4096);
    }
    ret->sync = c->sync == MUSTER_SYNC_INTERVAL ? MU_SYNC_INTERVAL : MU_SYNC_ALWAYS;
    ret->sync_interval_ms = c->sync_interval_ms;
    ret->drain_ms = c->drain_ms;
    ret->backing = c->backing;
    ret->stopped = on_stopped;
    ret->context = s;
}

struct server_door {
    struct mu_door door;
    muster_server *s;
    struct mu_store_server_config config;
    struct mu_status_page_config page; /* .listen.kind 0: no page */
    int err;
    struct mu_errmsg msg;
    int page_err;
    struct mu_errmsg page_msg;
};

static void start_on_loop(struct mu_door *door)
{
    struct server_door *d = MU_CONTAINER_OF(door, struct server_door, door);
    muster_server *s = d->s;

    d->err = mu_store_server_start(s->rt->env, &d->config, &s->server, &d->msg);
    if (d->err == 0 && d->page.listen.kind != 0) {
        struct mu_status_source source = mu_store_server_source(s->server);

        d->page_err = mu_status_page_start(s->rt->raw, &source, &d->page, &s->page, &d->page_msg);
    }
    mu_door_open(door);
}

static void drain_on_loop(struct mu_door *door)
{
    struct server_door *d = MU_CONTAINER_OF(door, struct server_door, door);

    if (!d->s->stopped) {
        mu_store_server_drain(d->s->server);
    }
    mu_door_open(door);
}

static void free_on_loop(struct mu_door *door)
{
    struct server_door *d = MU_CONTAINER_OF(door, struct server_door, door);

    mu_status_page_free(d->s->page);
    mu_store_server_free(d->s->server);
    mu_door_open(door);
}

static int check_config(const struct muster_server_config *c)
{
    if (c->listen == NULL) {
        return mu_api_error(MUSTER_EINVAL, "a server needs an address to listen on");
    }
    if (c->backing != NULL && c->data_dir != NULL) {
        return mu_api_error(MUSTER_EINVAL, "a server has a backing or a data directory, not both");
    }
    if (c->key_bytes_max == 0 || c->key_bytes_max > UINT32_MAX / 4 || c->value_bytes_max == 0 ||
        c->value_bytes_max > UINT32_MAX / 4 || c->keys_max == 0 || c->keys_max > UINT32_MAX / 4 ||
        c->memory_bytes_max == 0 || c->buffer_bytes_max == 0 || c->connections_max == 0) {
        return mu_api_error(MUSTER_EINVAL, "a limit of the server is zero or above 1 GiB");
    }
    return 0;
}

static int page_config(muster_server *s, const struct muster_server_config *c,
                       struct server_door *d)
{
    const struct mu_locked *locked = &s->rt->locked;
    const char *token = c->http_token == NULL ? locked->page : c->http_token;
    int err = mu_addr_parse(c->http, 0, &d->page.listen, &d->msg);

    if (err == 0 && token[0] == '\0' && !mu_addr_is_loopback(&d->page.listen) &&
        !mu_lock_env_policy(locked->lock)->insecure) {
        err = mu_err(&d->msg, MUSTER_ELOCKED,
                     "a status page beyond loopback needs a token (--token-file) or --insecure: "
                     "otherwise everyone who can reach %.80s could read it",
                     c->http);
    }
    d->page.token = mu_span_str(token);
    d->page.stopped = tell_stopped;
    d->page.context = s;
    return err;
}

static int start(muster_runtime *rt, const struct muster_server_config *config,
                 muster_server **ret_server)
{
    struct server_door d = {.err = 0};
    struct mu_disk *disk = NULL;
    muster_server *s;
    int err;

    s = mu_calloc(1, sizeof(*s));
    if (s == NULL) {
        return mu_api_error(MUSTER_ENOMEM, NULL);
    }
    s->rt = rt;
    (void)pthread_mutex_init(&s->lock, NULL);
    (void)pthread_cond_init(&s->cond, NULL);
    err = mu_addr_parse(config->listen, 0, &s->addr, &d.msg);
    if (err == 0 && config->http != NULL) {
        err = page_config(s, config, &d);
    }
    if (err == 0 && config->backing != NULL && strncmp(config->backing, "etcd:", 5) == 0) {
        /* An etcd that is away comes back; what is missing here does not. */
        err = mu_uv_env_check_http(&d.msg);
    }
    if (err == 0 && config->data_dir != NULL) {
        /* Twice what may be in memory, since a commit holds new pages beside the old ones. */
        err = mu_lmdb_disk_open(config->data_dir, config->memory_bytes_max * 2, &disk, &d.msg);
    }
    if (err == 0) {
        d.s = s;
        fill_config(s, config, &d.config);
        d.config.disk = disk;
        mu_door_pass(rt, &d.door, start_on_loop);
        err = d.err;
        if (err != 0 && disk != NULL) {
            disk->ops->close(disk);
        }
    }
    if (err != 0) {
        mu_free(s);
        return mu_api_error(err, d.msg.text);
    }
    if (d.page_err != 0) {
        muster_server_free(s);
        return mu_api_error(d.page_err, d.page_msg.text);
    }
    s->addr = *mu_store_server_addr(s->server);
    (void)mu_addr_format(&s->addr, s->address, sizeof(s->address));
    if (s->page != NULL) {
        (void)mu_addr_format(mu_status_page_addr(s->page), s->http_address,
                             sizeof(s->http_address));
    }
    *ret_server = s;
    return 0;
}

int muster_server_start(muster_runtime *rt, const struct muster_server_config *given,
                        muster_server **ret_server)
{
    struct muster_server_config config;
    int err = mu_runtime_is_mine(rt)
                  ? mu_api_error(MUSTER_EINVAL,
                                 "muster_server_start() waits: call it on a thread of your own")
                  : MU_API_TAKE(server_config, &config, given);

    if (err == 0) {
        err = check_config(&config);
    }
    return err != 0 ? err : start(rt, &config, ret_server);
}

const char *muster_server_address(const muster_server *s)
{
    return s->address;
}

const char *muster_server_http_address(const muster_server *s)
{
    return s->http_address;
}

uint16_t muster_server_port(const muster_server *s)
{
    return s->addr.port;
}

void muster_server_drain(muster_server *s)
{
    struct server_door d = {.s = s};

    mu_door_pass_anywhere(s->rt, &d.door, drain_on_loop);
}

int muster_server_wait(muster_server *s)
{
    int status;

    if (mu_runtime_is_mine(s->rt)) {
        return mu_api_error(MUSTER_EINVAL,
                            "this call waits: make it on a thread of your own, not the runtime's");
    }
    (void)pthread_mutex_lock(&s->lock);
    while (!s->stopped) {
        (void)pthread_cond_wait(&s->cond, &s->lock);
    }
    status = s->status;
    (void)pthread_mutex_unlock(&s->lock);
    return mu_api_error(status, s->why.text);
}

void muster_server_free(muster_server *s)
{
    struct server_door d = {.s = s};

    if (s == NULL || mu_runtime_would_wait(s->rt, "muster_server_free")) {
        return;
    }
    muster_server_drain(s);
    (void)muster_server_wait(s);
    mu_door_pass(s->rt, &d.door, free_on_loop);
    (void)pthread_cond_destroy(&s->cond);
    (void)pthread_mutex_destroy(&s->lock);
    mu_free(s);
}
