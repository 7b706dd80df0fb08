/*
 * Which node hosts: the one that can bind the endpoint. Names and interfaces say little about that
 * (aliases, several networks, containers); the kernel knows.
 */
#include <errno.h>
#include <string.h>

#include "core/addr.h"
#include "core/alloc.h"
#include "service/rdzv/rdzv.h"
#include "service/server/server.h"

#define LINGER_STEP_MS 5

/* A listener that only shows whether the address is available. */
struct probe {
    struct mu_listener listener;
};

/* A server that is ending, which outlives the call. */
struct hosted {
    struct mu_env *env;
    struct mu_store_server *server;
    struct mu_timer timer;
    void (*done)(void *context);
    void *context;
    bool stopped;
    struct mu_timer linger;
    mu_mono_t deadline;
};

bool mu_rdzv_is_loopback(const char *host)
{
    return strcmp(host, "localhost") == 0 || strncmp(host, "127.", 4) == 0 ||
           strcmp(host, "::1") == 0;
}

/* Every host has such an address: all nodes would host, and no two would meet. */
static bool is_wildcard(const char *host)
{
    return strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0;
}

/* --- the probe -------------------------------------------------------------------------------- */

static struct mu_conn *turn_away(struct mu_listener *listener)
{
    (void)listener;
    return NULL;
}

static void on_probe_closed(struct mu_listener *listener)
{
    mu_free(MU_CONTAINER_OF(listener, struct probe, listener));
}

int mu_rdzv_place(struct mu_env *env, struct mu_addr *addr)
{
    struct mu_addr at = *addr;
    struct probe *p = mu_calloc(1, sizeof(*p));
    int err;

    if (p == NULL) {
        return MUSTER_ENOMEM;
    }
    p->listener.accept = turn_away;
    p->listener.closed = on_probe_closed;
    err = mu_env_listen(env, &p->listener, &at);
    if (err != 0) {
        mu_free(p);
        return err;
    }
    if (p->listener.here_only && !mu_rdzv_is_loopback(addr->host)) {
        memcpy(addr->host, "::", sizeof("::"));
    }
    mu_env_unlisten(env, &p->listener);
    return 0;
}

/* --- the server ------------------------------------------------------------------------------- */

/* The server is still on the stack when it reports that it has stopped. */
static void on_gone(struct mu_timer *timer)
{
    struct hosted *h = MU_CONTAINER_OF(timer, struct hosted, timer);

    mu_env_timer_arm(h->env, &h->linger, MU_MONO_NEVER);
    mu_store_server_free(h->server);
    if (h->done != NULL) {
        h->done(h->context);
    }
    mu_free(h);
}

static void on_stopped(void *context, int status, const char *why)
{
    struct hosted *h = context;

    (void)status;
    (void)why;
    h->stopped = true;
    if (h->done != NULL) {
        mu_env_timer_arm(h->env, &h->timer, mu_env_now(h->env).mono);
    }
}

/* The last answers may still be on their way: clients that got what they waited for hang up. */
static void on_linger(struct mu_timer *timer)
{
    struct hosted *h = MU_CONTAINER_OF(timer, struct hosted, linger);
    mu_mono_t now = mu_env_now(h->env).mono;
    struct mu_store_server_stats stats;

    mu_store_server_stats(h->server, &stats);
    if (stats.connections == 0 || h->stopped || mu_mono_reached(h->deadline, now)) {
        mu_store_server_drain(h->server);
    } else {
        mu_env_timer_arm(h->env, &h->linger, mu_mono_add_ms(now, LINGER_STEP_MS));
    }
}

void mu_rdzv_unhost(struct mu_store_server *server, uint32_t linger_ms, void (*done)(void *context),
                    void *context)
{
    struct hosted *h = mu_store_server_context(server);
    mu_mono_t now = mu_env_now(h->env).mono;

    h->done = done;
    h->context = context;
    if (h->stopped) {
        mu_env_timer_arm(h->env, &h->timer, now);
    } else {
        h->deadline = mu_mono_add_ms(now, linger_ms);
        mu_env_timer_arm(h->env, &h->linger, now);
    }
}

static int serve(struct mu_env *env, const struct mu_addr *place, bool confirms,
                 struct mu_store_server **ret_server, struct mu_errmsg *reterr_msg)
{
    struct mu_store_server_config config = mu_store_server_config_defaults();
    struct hosted *h = mu_calloc(1, sizeof(*h));
    int err;

    if (h == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    config.listen = *place;
    config.rpc.grace_ms = MU_RPC_DEAD_MS_MAX; /* as long as its members wish */
    config.rpc.confirms = confirms;
    config.stopped = on_stopped;
    config.context = h;
    err = mu_store_server_start(env, &config, &h->server, reterr_msg);
    if (err != 0) {
        mu_free(h);
        return err;
    }
    h->env = env;
    mu_timer_init(&h->timer, on_gone);
    mu_timer_init(&h->linger, on_linger);
    *ret_server = h->server;
    return 0;
}

/* --- the choice ------------------------------------------------------------------------------- */

static const char *reason(int err)
{
    switch (err) {
    case -EADDRINUSE:
        return "the port is in use on this host, so another process here hosts";
    case -EADDRNOTAVAIL:
        return "it is not an address of this host";
    case MUSTER_ENAME:
        return "the name is not known here";
    }
    return muster_strerror(err);
}

int mu_rdzv_host(struct mu_env *env, enum mu_rdzv_host_wish wish, bool confirms,
                 struct mu_addr *endpoint, struct mu_store_server **ret_server,
                 struct mu_errmsg *why)
{
    char at[MU_ADDR_HOST_MAX + 16];
    struct mu_addr place = *endpoint;
    struct mu_errmsg msg = {{0}};
    int err;

    (void)mu_addr_format(endpoint, at, sizeof(at));
    if (wish == MU_RDZV_HOST_NO) {
        return mu_err(why, 0, "connecting to %.120s: is_host is false", at);
    }
    if (wish == MU_RDZV_HOST_TRY && is_wildcard(endpoint->host)) {
        return mu_err(
            why, MUSTER_EADDR,
            "%.120s is an address of every host; name the host of the rendezvous, or set is_host",
            at);
    }
    err = mu_rdzv_place(env, &place);
    if (err == 0) {
        err = serve(env, &place, confirms, ret_server, &msg);
    }
    if (err == MUSTER_ENOMEM) {
        return mu_err(why, err, "out of memory");
    }
    if (err == MUSTER_ELOCKED) {
        /* It is an address of this host: no other node could host there. */
        return mu_err(why, err, "cannot host at %.60s: %s", at, mu_env_strerror(env, err));
    }
    if (err != 0 && wish == MU_RDZV_HOST_YES) {
        return mu_err(why, MUSTER_EADDR, "is_host is true, but %.120s cannot be bound: %.100s", at,
                      err == MUSTER_EADDR ? msg.text : muster_strerror(err));
    }
    if (err != 0) {
        return mu_err(why, err == -EADDRNOTAVAIL ? MU_RDZV_ELSEWHERE : 0,
                      "connecting to %.120s: %.110s", at,
                      err == MUSTER_EADDR ? msg.text : reason(err));
    }
    endpoint->port = mu_store_server_addr(*ret_server)->port;
    (void)mu_addr_format(endpoint, at, sizeof(at));
    return mu_err(why, 1, "hosting at %.120s, %s: the address could be bound%s", at,
                  strcmp(place.host, endpoint->host) != 0
                      ? "on all addresses, since that name is a loopback address here"
                  : is_wildcard(place.host) ? "on all addresses"
                                            : "on that address only",
                  wish == MU_RDZV_HOST_YES ? ", as is_host asks for" : "");
}
