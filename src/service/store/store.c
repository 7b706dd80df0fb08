#include "service/store/store.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/addr.h"
#include "core/alloc.h"
#include "core/url.h"
#include "service/etcd/url.h"
#include "service/store/etcd.h"

#define DEFAULT_PORT 29500 /* PyTorch's */

int mu_store_check(const struct mu_store_request *q)
{
    if (mu_store_verb_facts(q->verb)->does == 0) {
        return MUSTER_ENOMETHOD;
    }
    return mu_store_request_fits(q) ? 0 : MUSTER_EINVAL;
}

void mu_store_finish(struct mu_store_op *op, int status, const char *text)
{
    op->status = status;
    if (status != 0) {
        op->reply = (struct mu_store_reply){0};
        (void)mu_err(&op->errmsg, status, "%s", text != NULL ? text : muster_strerror(status));
    } else {
        op->errmsg.text[0] = '\0';
    }
    op->done(op);
}

static void on_fail_later(struct mu_timer *timer)
{
    struct mu_store_op *op = MU_CONTAINER_OF(timer, struct mu_store_op, timer);

    mu_store_finish(op, op->status, NULL);
}

void mu_store_fail_later(struct mu_store *store, struct mu_store_op *op, int status)
{
    op->status = status;
    op->impl = NULL;
    mu_timer_init(&op->timer, on_fail_later);
    mu_env_timer_arm(store->env, &op->timer, mu_env_now(store->env).mono);
}

mu_mono_t mu_store_deadline(struct mu_store *store, const struct mu_store_op *op)
{
    return op->timeout_ms == 0 ? MU_MONO_NEVER
                               : mu_mono_add_ms(mu_env_now(store->env).mono, op->timeout_ms);
}

void *mu_store_alloc(struct mu_store *store, struct mu_store_op *op, int refusal, size_t size)
{
    void *impl = refusal != 0 ? NULL : mu_calloc(1, size);

    if (impl == NULL) {
        mu_store_fail_later(store, op, refusal != 0 ? refusal : MUSTER_ENOMEM);
    }
    return impl;
}

void mu_store_begin(struct mu_store *store, struct mu_store_op *op, void *impl,
                    void (*on_timeout)(struct mu_timer *timer))
{
    op->impl = impl;
    op->deadline = mu_store_deadline(store, op);
    mu_timer_init(&op->timer, on_timeout);
    mu_env_timer_arm(store->env, &op->timer, op->deadline);
}

/* --- by URL ----------------------------------------------------------------------------------- */

/* Reads a whole number within bounds. MUSTER_EURL with a text. */
static int parse_number(const struct mu_url *url, const char *name, int64_t min, int64_t max,
                        int64_t *number, struct mu_errmsg *reterr_msg)
{
    const char *text = mu_url_param(url, name);
    char *end;
    long long v;

    if (text == NULL) {
        return 0;
    }
    errno = 0;
    v = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || v < min || v > max) {
        return mu_err(reterr_msg, MUSTER_EURL,
                      "the URL's %s=%.64s is not a number from %lld to %lld", name, text,
                      (long long)min, (long long)max);
    }
    *number = v;
    return 0;
}

/* Refuses parameters that the kind does not know, by name. */
static int check_params(const struct mu_url *url, const char *const *known,
                        struct mu_errmsg *reterr_msg)
{
    for (size_t i = 0; i < url->param_count; i++) {
        const char *const *k = known;

        while (*k != NULL && strcmp(*k, url->params[i].name) != 0) {
            k++;
        }
        if (*k == NULL) {
            return mu_err(reterr_msg, MUSTER_EURL, "a %s: URL has no parameter \"%.64s\"",
                          url->scheme, url->params[i].name);
        }
    }
    return 0;
}

static int parse_protocol(const char *text, enum mu_store_tcp_protocol *ret,
                          struct mu_errmsg *reterr_msg)
{
    static const char *const names[] = {"any", "muster", "torch1", "torch2"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (text != NULL && strcmp(text, names[i]) == 0) {
            *ret = (enum mu_store_tcp_protocol)i;
            return 0;
        }
    }
    return mu_err(reterr_msg, MUSTER_EURL,
                  "the URL's protocol=%.32s is unknown; use any, muster, torch1 or torch2", text);
}

/* An address to listen on may leave the host out; one to connect to cannot. */
static bool names_nobody(const char *host)
{
    return host[0] == '\0' || strcmp(host, "*") == 0;
}

static int open_tcp(struct mu_env *env, const struct mu_url *url, int64_t connect_ms,
                    struct mu_store **ret_store, struct mu_errmsg *reterr_msg)
{
    static const char *const known[] = {"protocol", "connect", "prefix", NULL};
    struct mu_store_tcp_config config = mu_store_tcp_config_defaults();
    const char *protocol = mu_url_param(url, "protocol");
    int err = check_params(url, known, reterr_msg);

    if (err == 0 && url->path[0] != '\0' && strcmp(url->path, "/") != 0) {
        err = mu_err(reterr_msg, MUSTER_EURL,
                     "a tcp: URL has no path; for a key prefix write ?prefix=%.64s",
                     url->path[0] == '/' ? url->path + 1 : url->path);
    }
    if (err == 0) {
        err = mu_addr_parse(url->authority, DEFAULT_PORT, &config.addr, reterr_msg);
    }
    if (err == 0 && config.addr.kind == MU_ADDR_TCP && config.addr.port == 0) {
        err = mu_err(reterr_msg, MUSTER_EURL, "the URL names port 0; name the port of the server");
    }
    if (err == 0 && config.addr.kind == MU_ADDR_TCP && names_nobody(config.addr.host)) {
        err = mu_err(reterr_msg, MUSTER_EURL,
                     "the URL names every host; name the one of the server, as in tcp://HOST:%u",
                     (unsigned)config.addr.port);
    }
    if (err == 0 && protocol != NULL) {
        err = parse_protocol(protocol, &config.protocol, reterr_msg);
    }
    if (err == 0) {
        err = parse_number(url, "connect", 0, INT32_MAX, &connect_ms, reterr_msg);
        config.connect_ms = (uint32_t)connect_ms;
    }
    if (err == 0) {
        err = mu_store_tcp_new(env, &config, ret_store);
    }
    if (err == 0) {
        (*ret_store)->connect_ms = config.connect_ms;
    }
    return err;
}

static int open_file(struct mu_env *env, const struct mu_url *url, struct mu_store **ret_store,
                     struct mu_errmsg *reterr_msg)
{
    static const char *const known[] = {"world_size", "prefix", NULL};
    int64_t world_size = -1;
    int err = check_params(url, known, reterr_msg);

    if (err == 0 && url->authority[0] != '\0') {
        err = mu_err(reterr_msg, MUSTER_EURL,
                     "a file: URL names no host; write three slashes, as in file:///PATH");
    }
    if (err == 0 && (url->path[0] == '\0' || strcmp(url->path, "/") == 0)) {
        err = mu_err(reterr_msg, MUSTER_EURL, "a file: URL needs a path, as in file:///PATH");
    }
    if (err == 0) {
        err = parse_number(url, "world_size", -1, INT32_MAX, &world_size, reterr_msg);
    }
    return err != 0 ? err : mu_store_file_new(env, url->path, world_size, ret_store);
}

static int open_hash(struct mu_env *env, const struct mu_url *url, struct mu_store **ret_store,
                     struct mu_errmsg *reterr_msg)
{
    static const char *const known[] = {"prefix", NULL};
    int err = check_params(url, known, reterr_msg);

    if (err == 0 && (url->authority[0] != '\0' || url->path[0] != '\0')) {
        err = mu_err(reterr_msg, MUSTER_EURL,
                     "a hash: URL takes nothing but parameters, as in hash:?prefix=P");
    }
    return err != 0 ? err : mu_store_hash_new(env, ret_store);
}

static int open_etcd(struct mu_env *env, const struct mu_url *url, int64_t connect_ms,
                     struct mu_store **ret_store, struct mu_errmsg *reterr_msg)
{
    static const char *const known[] = {"api",  "tls",           "cacert",  "cert",   "key",
                                        "user", "password_file", "connect", "prefix", NULL};
    struct mu_etcd_config config = mu_etcd_config_defaults();
    const char *api = mu_url_param(url, "api");
    char prefix[1024];
    struct mu_etcd *etcd = NULL;
    bool v2 = api != NULL && strcmp(api, "v2") == 0;
    int err = check_params(url, known, reterr_msg);

    if (err == 0 && api != NULL && !v2 && strcmp(api, "v3") != 0) {
        err = mu_err(reterr_msg, MUSTER_EURL, "the URL's api=%.32s is unknown; use v3 or v2", api);
    }
    if (err == 0) {
        err = parse_number(url, "connect", 0, INT32_MAX, &connect_ms, reterr_msg);
    }
    if (err == 0) {
        err = mu_etcd_url_prefix(url, "/muster", prefix, sizeof(prefix), reterr_msg);
    }
    if (err == 0) {
        config.first_ms = (uint32_t)connect_ms;
        err = mu_etcd_new_url(env, url, &config, &etcd, reterr_msg);
    }
    if (err != 0) {
        return err;
    }
    err = v2 ? mu_store_etcd_v2_new(etcd, env, prefix, ret_store)
             : mu_store_etcd_new(etcd, env, prefix, ret_store);
    if (err != 0) {
        mu_etcd_close(etcd, NULL, NULL);
        return mu_err(reterr_msg, err, "%s", muster_strerror(err));
    }
    return 0;
}

static int open_kind(struct mu_env *env, const struct mu_url *url, uint32_t connect_ms,
                     struct mu_store **ret_store, struct mu_errmsg *reterr_msg)
{
    if (strcmp(url->scheme, "tcp") == 0) {
        return open_tcp(env, url, connect_ms, ret_store, reterr_msg);
    }
    if (strcmp(url->scheme, "file") == 0) {
        return open_file(env, url, ret_store, reterr_msg);
    }
    if (strcmp(url->scheme, "hash") == 0) {
        return open_hash(env, url, ret_store, reterr_msg);
    }
    if (strcmp(url->scheme, "etcd") == 0) {
        return open_etcd(env, url, connect_ms, ret_store, reterr_msg);
    }
    return mu_err(reterr_msg, MUSTER_EURL,
                  "there is no store of kind \"%.32s\"; use tcp://HOST:PORT, "
                  "etcd://HOST:PORT/PREFIX, file:///PATH or hash:",
                  url->scheme);
}

int mu_store_open(struct mu_env *env, const char *text, uint32_t connect_ms,
                  struct mu_store **ret_store, struct mu_errmsg *reterr_msg)
{
    struct mu_url url;
    struct mu_store *store = NULL;
    struct mu_store *barrier = NULL;
    struct mu_store *layer = NULL;
    const char *prefix;
    int err = mu_url_parse(&url, text, reterr_msg);

    if (err != 0) {
        return err;
    }
    /* The layers are made first: a store that is open takes time to close. */
    prefix = mu_url_param(&url, "prefix");
    err = mu_store_barrier_new(env, &barrier);
    if (err == 0 && prefix != NULL) {
        err = mu_store_prefix_new(env, prefix, &layer);
    }
    if (err != 0) {
        (void)mu_err(reterr_msg, err, "out of memory");
    } else {
        err = open_kind(env, &url, connect_ms, &store, reterr_msg);
    }
    if (err != 0) {
        mu_store_prefix_drop(layer);
        mu_store_barrier_drop(barrier);
        return err;
    }
    mu_store_barrier_onto(barrier, store);
    *ret_store = barrier;
    if (layer != NULL) {
        mu_store_prefix_onto(layer, barrier);
        *ret_store = layer;
    }
    (*ret_store)->connect_ms = store->connect_ms;
    return 0;
}
