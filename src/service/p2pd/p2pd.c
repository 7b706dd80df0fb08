#include "service/p2pd/p2pd_internal.h"

#include <muster/error.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "service/base/log.h"

#define REQUEST_MS 60000 /* for a peer to bring all of its request */

struct mu_p2pd_config mu_p2pd_config_defaults(void)
{
    struct mu_p2pd_config config = {
        .agent = "muster-p2pd",
        .msg_len_max = 4u << 20,
        .request_ms = 60000,
        .bootstrap_ms = 60000,
        .rebootstrap_ms = 900000,
        .linger_ms = 5000,
        .clients_max = 65536,
        .calls_max = 65536,
        .held_bytes_max = UINT64_C(512) << 20,
        .client_bytes_max = UINT64_C(256) << 20,
        .host = mu_peer_host_config_defaults(),
    };

    /* Others decide when they are done with a connection, and how many streams they want on it:
     * all that a client may have under way must fit on one. */
    config.host.idle_ms = 0;
    config.host.conns_max = 4096;
    config.host.memory_bytes_max = UINT64_C(32) << 30;
    config.host.conn.streams_max = 16384;
    return config;
}

/* --- life ------------------------------------------------------------------------------------- */

static void on_host_stopped(void *context)
{
    struct mu_p2pd *d = context;

    d->host_stopped = true;
    mu_p2pd_check_stopped(d);
}

static void tell_ended(struct mu_p2pd *d, enum mu_p2pd_end why)
{
    d->why = why;
    mu_env_timer_arm(d->env, &d->soon, mu_env_now(d->env).mono);
}

static void on_soon(struct mu_timer *timer)
{
    struct mu_p2pd *d = MU_CONTAINER_OF(timer, struct mu_p2pd, soon);

    if (!d->stopping && d->config.ended != NULL && d->calls.stats.persistent == 0) {
        d->config.ended(d->config.context, d->why);
    }
}

static void on_idle(struct mu_timer *timer)
{
    tell_ended(MU_CONTAINER_OF(timer, struct mu_p2pd, idle_timer), MU_P2PD_END_IDLE);
}

static int start_host(struct mu_p2pd *d, struct mu_errmsg *reterr_msg)
{
    struct mu_peer_host_config host = d->config.host;
    struct mu_kad_config kad = mu_kad_config_defaults();
    int err;

    host.identity = d->config.identity;
    host.agent = d->config.agent;
    host.stopped = on_host_stopped;
    host.context = d;
    err = mu_peer_host_start(d->env, &host, &d->host, reterr_msg);
    if (err == 0 && d->config.relay != NULL) {
        err = mu_peer_relay_start(d->host, d->config.relay, &d->relay, reterr_msg);
    }
    if (err == 0 && d->config.autonat) {
        err = mu_peer_autonat_start(d->host, &(struct mu_peer_autonat_config){0}, &d->autonat);
        err = err == 0 ? 0 : mu_err(reterr_msg, err, "%s", muster_strerror(err));
    }
    if (err != 0 || d->config.routing == MU_P2PD_ROUTING_OFF) {
        return err;
    }
    kad.client = d->config.routing == MU_P2PD_ROUTING_CLIENT;
    err = mu_kad_start(d->host, &kad, &d->kad);
    return err == 0 ? 0 : mu_err(reterr_msg, err, "%s", muster_strerror(err));
}

static void init_calls(struct mu_p2pd *d)
{
    struct mu_p2pd_calls_config calls = {
        .msg_len_max = d->config.msg_len_max,
        .name_len_max = MU_MSS_NAME_MAX,
        .free_bytes = MU_YAMUX_WINDOW_FIRST,
        .high_bytes = MU_P2PD_HIGH_BYTES,
        .calls_max = d->config.calls_max,
        .request_ms = REQUEST_MS,
        .linger_ms = d->config.linger_ms,
        .held_bytes_max = d->config.held_bytes_max,
        .seed = mu_prng_u64(&d->prng),
    };

    mu_p2pd_calls_init(&d->calls, &calls);
    mu_timer_init(&d->calls_timer, mu_p2pd_calls_timer);
    d->calls_until = MU_MONO_NEVER;
}

int mu_p2pd_start(struct mu_env *env, const struct mu_p2pd_config *config, struct mu_p2pd **ret,
                  struct mu_errmsg *reterr_msg)
{
    struct mu_p2pd *d;
    uint64_t seed;
    int err;

    if (config->identity == NULL || config->msg_len_max == 0 || config->msg_len_max > 1u << 30) {
        return mu_err(reterr_msg, MUSTER_EINVAL,
                      "a daemon needs an identity, and messages of up to 1 GiB");
    }
    d = mu_calloc(1, sizeof(*d));
    if (d == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    d->env = env;
    d->config = *config;
    mu_list_init(&d->listeners);
    mu_list_init(&d->clients);
    mu_list_init(&d->boots);
    mu_env_entropy(env, &seed, sizeof(seed));
    mu_prng_seed(&d->prng, seed);
    init_calls(d);
    mu_timer_init(&d->idle_timer, on_idle);
    mu_timer_init(&d->boot_timer, mu_p2pd_boot_timer);
    mu_timer_init(&d->soon, on_soon);
    err = start_host(d, reterr_msg);
    if (err != 0 && d->host == NULL) {
        mu_free(d);
        return err;
    }
    if (err != 0) {
        /* The owner knows of nothing: it goes by itself. */
        d->config.stopped = NULL;
        mu_p2pd_stop(d);
        return err;
    }
    if (config->idle_ms != 0) {
        mu_env_timer_arm(env, &d->idle_timer,
                         mu_mono_add_ms(mu_env_now(env).mono, config->idle_ms));
    }
    *ret = d;
    return 0;
}

void mu_p2pd_stop(struct mu_p2pd *d)
{
    if (d->stopping) {
        return;
    }
    d->stopping = true;
    mu_env_timer_arm(d->env, &d->idle_timer, MU_MONO_NEVER);
    mu_env_timer_arm(d->env, &d->boot_timer, MU_MONO_NEVER);
    mu_env_timer_arm(d->env, &d->soon, MU_MONO_NEVER);
    MU_LIST_FOREACH (it, &d->listeners) {
        mu_env_unlisten(d->env, &MU_CONTAINER_OF(it, struct mu_p2pd_listener, link)->base);
    }
    MU_LIST_FOREACH (it, &d->clients) {
        mu_p2pd_client_close(MU_CONTAINER_OF(it, struct mu_p2pd_client, link), true);
    }
    mu_p2pd_pump(d);
    mu_p2pd_boot_free(d);
    mu_kad_stop(d->kad);
    d->kad = NULL;
    mu_peer_autonat_free(d->autonat);
    mu_peer_relay_free(d->relay);
    d->autonat = NULL;
    d->relay = NULL;
    mu_peer_host_stop(d->host);
}

void mu_p2pd_check_stopped(struct mu_p2pd *d)
{
    if (!d->stopping || d->stopped || !d->host_stopped || !mu_list_empty(&d->clients) ||
        !mu_list_empty(&d->listeners)) {
        return;
    }
    d->stopped = true;
    if (d->config.stopped != NULL) {
        d->config.stopped(d->config.context);
    } else {
        mu_p2pd_free(d);
    }
}

void mu_p2pd_free(struct mu_p2pd *d)
{
    if (d == NULL) {
        return;
    }
    MU_ASSERT(d->stopped);
    mu_p2pd_calls_clear(&d->calls);
    mu_p2pd_pump(d);
    mu_p2pd_calls_fini(&d->calls);
    mu_peer_host_free(d->host);
    mu_free(d);
}

struct mu_peer_host *mu_p2pd_host(struct mu_p2pd *d)
{
    return d->host;
}

struct mu_peer_relay *mu_p2pd_relay(struct mu_p2pd *d)
{
    return d->relay;
}

void mu_p2pd_turn(struct mu_p2pd *d)
{
    mu_p2pd_pump(d);
    if (!d->stopping) {
        mu_peer_host_turn(d->host);
    }
}

void mu_p2pd_persistent(struct mu_p2pd *d, bool more)
{
    if (more) {
        d->calls.stats.persistent++;
        mu_env_timer_arm(d->env, &d->idle_timer, MU_MONO_NEVER);
    } else if (--d->calls.stats.persistent == 0 && !d->stopping) {
        tell_ended(d, MU_P2PD_END_LAST);
    }
}

/* --- listening -------------------------------------------------------------------------------- */

static void free_listener(struct mu_p2pd_listener *l)
{
    mu_list_remove(&l->link);
    mu_buf_fini(&l->addr);
    mu_free(l);
}

static void on_unlistened(struct mu_listener *listener)
{
    struct mu_p2pd_listener *l = MU_CONTAINER_OF(listener, struct mu_p2pd_listener, base);
    struct mu_p2pd *d = l->d;

    free_listener(l);
    mu_p2pd_check_stopped(d);
}

static void on_accept_failed(struct mu_listener *listener, int status)
{
    (void)listener;
    mu_log(MUSTER_LOG_WARN, "P2PD-ACCEPT-FAILED", "error=\"%s\"", muster_strerror(status));
}

int mu_p2pd_listen(struct mu_p2pd *d, const char *multiaddr, struct mu_errmsg *reterr_msg)
{
    struct mu_p2pd_listener *l = mu_calloc(1, sizeof(*l));
    struct mu_peer_id peer = {0};
    struct mu_addr addr;
    int err;

    if (l == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    l->d = d;
    l->base.accept = mu_p2pd_accept;
    l->base.accept_failed = on_accept_failed;
    l->base.closed = on_unlistened;
    mu_list_init(&l->link);
    mu_buf_init(&l->addr, MU_MULTIADDR_MAX);
    err = mu_multiaddr_parse(&l->addr, multiaddr, reterr_msg);
    if (err == 0 &&
        (mu_multiaddr_dial(mu_buf_span(&l->addr), &addr, &peer) != 0 || peer.len != 0)) {
        err = mu_err(reterr_msg, MUSTER_EADDR,
                     "%.160s: clients come by a unix socket or TCP, and nothing else", multiaddr);
    }
    if (err == 0) {
        err = mu_env_listen(d->env, &l->base, &addr);
        if (err != 0) {
            (void)mu_err(reterr_msg, err, "%.160s: %s", multiaddr, muster_strerror(err));
        }
    }
    if (err != 0) {
        free_listener(l);
        return err;
    }
    mu_list_push(&d->listeners, &l->link);
    mu_buf_reset(&l->addr);
    err = mu_multiaddr_from(&l->addr, &addr, reterr_msg);
    if (err != 0) {
        mu_env_unlisten(d->env, &l->base);
    }
    return err;
}

struct mu_span mu_p2pd_listening(const struct mu_p2pd *d, size_t i)
{
    MU_LIST_FOREACH (it, &d->listeners) {
        if (i-- == 0) {
            return mu_buf_span(&MU_CONTAINER_OF(it, struct mu_p2pd_listener, link)->addr);
        }
    }
    return (struct mu_span){0};
}

void mu_p2pd_stats(const struct mu_p2pd *d, struct mu_p2pd_stats *ret)
{
    *ret = d->calls.stats;
    ret->handlers = d->calls.names.unary_count;
    ret->stream_handlers = d->calls.names.addr_count;
}
