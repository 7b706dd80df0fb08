#include "service/peer/host_internal.h"

#include <stdio.h>
#include <string.h>

#include <muster/error.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "service/base/log.h"

enum {
    AGAIN_MS = 10, /* until there may be memory again */
};

/* --- life ------------------------------------------------------------------------------------- */

struct mu_peer_host_config mu_peer_host_config_defaults(void)
{
    return (struct mu_peer_host_config){
        .agent = "muster",
        .connect_ms = 15000,
        .dial_ms = 5000,
        .stagger_ms = 250,
        .idle_ms = 600000,
        .drain_ms = 5000,
        .settle_ms = 10000,
        .conns_max = 1024,
        .conns_peer_max = 8,
        .pending_max = 128,
        .book_max = 4096,
        .addrs_max = 16,
        .memory_bytes_max = (uint64_t)1 << 30,
        .conn = mu_peer_conn_config_defaults(),
    };
}

static void on_again(struct mu_timer *timer)
{
    struct mu_peer_host *h = MU_CONTAINER_OF(timer, struct mu_peer_host, again);

    mu_host_readdress(h);
    mu_peer_host_turn(h);
}

static void on_soon(struct mu_timer *timer)
{
    struct mu_peer_host *h = MU_CONTAINER_OF(timer, struct mu_peer_host, soon);

    h->armed = false;
    mu_peer_host_turn(h);
}

int mu_peer_host_start(struct mu_env *env, const struct mu_peer_host_config *config,
                       struct mu_peer_host **ret_host, struct mu_errmsg *reterr_msg)
{
    struct mu_peer_host *h;
    uint64_t seed;

    if (config->identity == NULL || config->conns_max == 0 || config->addrs_max == 0) {
        return mu_err(reterr_msg, MUSTER_EINVAL, "a host needs an identity and room for peers");
    }
    h = mu_calloc(1, sizeof(*h));
    if (h == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    h->env = env;
    h->config = *config;
    mu_list_init(&h->listeners);
    mu_list_init(&h->announced);
    mu_list_init(&h->circuits);
    mu_list_init(&h->told);
    mu_list_init(&h->conns);
    mu_list_init(&h->dirty_conns);
    mu_list_init(&h->dirty_peers);
    mu_list_init(&h->ending);
    mu_list_init(&h->connects);
    mu_list_init(&h->watches);
    mu_list_init(&h->book);
    mu_list_init(&h->handler_list);
    mu_list_init(&h->prefixes);
    mu_env_entropy(env, &seed, sizeof(seed));
    mu_prng_seed(&h->prng, seed);
    mu_map_init(&h->peers, mu_prng_u64(&h->prng));
    mu_map_init(&h->handlers, mu_prng_u64(&h->prng));
    mu_timer_init(&h->soon, on_soon);
    mu_timer_init(&h->again, on_again);
    for (size_t i = 0; i < MU_HOST_SEEN_MAX; i++) {
        mu_buf_init(&h->seen[i], MU_MULTIADDR_MAX);
    }
    if (mu_host_id_init(h) != 0 || mu_host_ping_init(h) != 0) {
        h->stopped = true;
        mu_peer_host_free(h);
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    h->push = false;
    *ret_host = h;
    return 0;
}

void mu_host_addrs_free(struct mu_list *list)
{
    struct mu_list *link;

    while ((link = mu_list_pop(list)) != NULL) {
        mu_free(MU_CONTAINER_OF(link, struct mu_host_addr, link));
    }
}

void mu_peer_host_free(struct mu_peer_host *h)
{
    struct mu_map_node *node;

    if (h == NULL) {
        return;
    }
    MU_ASSERT(h->stopped);
    mu_env_timer_arm(h->env, &h->soon, MU_MONO_NEVER);
    mu_env_timer_arm(h->env, &h->again, MU_MONO_NEVER);
    while ((node = mu_map_next(&h->peers, NULL)) != NULL) {
        mu_host_peer_free(MU_CONTAINER_OF(node, struct mu_host_peer, by_id));
    }
    mu_map_fini(&h->peers);
    mu_map_fini(&h->handlers);
    mu_host_addrs_free(&h->announced);
    mu_host_addrs_free(&h->circuits);
    mu_host_addrs_free(&h->told);
    for (size_t i = 0; i < MU_HOST_SEEN_MAX; i++) {
        mu_buf_fini(&h->seen[i]);
    }
    mu_host_id_fini(h);
    mu_free(h);
}

const struct mu_peer_id *mu_peer_host_id(const struct mu_peer_host *h)
{
    return &h->config.identity->id;
}

const struct mu_identity *mu_peer_host_identity(const struct mu_peer_host *h)
{
    return h->config.identity;
}

struct mu_env *mu_peer_host_env(const struct mu_peer_host *h)
{
    return h->env;
}

void mu_peer_host_stop(struct mu_peer_host *h)
{
    struct mu_map_node *node = NULL;

    if (h->stopping) {
        return;
    }
    h->stopping = true;
    mu_env_timer_arm(h->env, &h->again, MU_MONO_NEVER);
    MU_LIST_FOREACH (it, &h->listeners) {
        mu_env_unlisten(h->env, &MU_CONTAINER_OF(it, struct mu_host_listener, link)->base);
    }
    MU_LIST_FOREACH (it, &h->conns) {
        mu_host_conn_close(MU_CONTAINER_OF(it, struct mu_host_conn, link), MUSTER_ECLOSED,
                           "the host is closed");
    }
    while ((node = mu_map_next(&h->peers, node)) != NULL) {
        mu_host_peer_fail(MU_CONTAINER_OF(node, struct mu_host_peer, by_id), MUSTER_ECLOSED,
                          "the host is closed");
    }
    mu_host_touch(h);
}

/* --- the turn --------------------------------------------------------------------------------- */

void mu_host_touch(struct mu_peer_host *h)
{
    if (!h->in_turn && !h->armed && !h->stopped) {
        h->armed = true;
        mu_env_timer_arm(h->env, &h->soon, mu_env_now(h->env).mono);
    }
}

static void tell_connects(struct mu_peer_host *h)
{
    struct mu_list *link;

    while ((link = mu_list_pop(&h->connects)) != NULL) {
        struct mu_peer_connect *connect = MU_CONTAINER_OF(link, struct mu_peer_connect, link);

        connect->active = false;
        connect->done(connect, connect->status, connect->text.text);
    }
}

static bool is_busy(const struct mu_peer_host *h)
{
    return !mu_list_empty(&h->dirty_conns) || !mu_list_empty(&h->dirty_peers) ||
           !mu_list_empty(&h->ending) || !mu_list_empty(&h->connects);
}

void mu_host_enter(struct mu_peer_host *h)
{
    MU_ASSERT(!h->in_turn);
    h->in_turn = true;
}

void mu_host_leave(struct mu_peer_host *h)
{
    struct mu_list *link;

    while (is_busy(h)) {
        mu_host_streams_tell(h);
        tell_connects(h);
        while ((link = mu_list_pop(&h->dirty_peers)) != NULL) {
            mu_host_peer_step(MU_CONTAINER_OF(link, struct mu_host_peer, dirty));
        }
        while ((link = mu_list_pop(&h->dirty_conns)) != NULL) {
            mu_host_conn_pump(MU_CONTAINER_OF(link, struct mu_host_conn, dirty));
        }
        if (h->push && !is_busy(h)) {
            mu_host_push(h);
        }
    }
    h->in_turn = false;
    if (h->stopping && !h->stopped && mu_list_empty(&h->conns) && mu_list_empty(&h->listeners)) {
        h->stopped = true;
        mu_env_timer_arm(h->env, &h->soon, MU_MONO_NEVER);
        if (h->config.stopped != NULL) {
            h->config.stopped(h->config.context);
        }
    }
}

void mu_peer_host_turn(struct mu_peer_host *h)
{
    if (!h->stopped) {
        mu_host_enter(h);
        if (h->push) {
            mu_host_push(h);
        }
        mu_host_leave(h);
    }
}

/* --- our addresses ---------------------------------------------------------------------------- */

struct mu_host_addr *mu_host_addr_new(struct mu_span bytes)
{
    struct mu_host_addr *a = mu_calloc(1, sizeof(*a) + bytes.len);

    if (a != NULL) {
        mu_list_init(&a->link);
        a->len = (uint16_t)bytes.len;
        memcpy(a->bytes, bytes.data, bytes.len);
    }
    return a;
}

static void on_unlistened(struct mu_listener *listener)
{
    struct mu_host_listener *l = MU_CONTAINER_OF(listener, struct mu_host_listener, base);
    struct mu_peer_host *h = l->host;

    mu_host_enter(h);
    mu_list_remove(&l->link);
    mu_buf_fini(&l->addr);
    mu_free(l);
    mu_host_leave(h);
}

static void on_accept_failed(struct mu_listener *listener, int status)
{
    struct mu_host_listener *l = MU_CONTAINER_OF(listener, struct mu_host_listener, base);

    l->host->stats.turned_away++;
    l->host->stats.last_failure = status;
    mu_log(MUSTER_LOG_WARN, "PEER-ACCEPT-FAILED", "error=\"%s\"", muster_strerror(status));
}

/* Reads a multiaddr of ours. */
static int read_own(const struct mu_peer_host *h, const char *text, struct mu_buf *out,
                    struct mu_addr *ret_addr, struct mu_errmsg *reterr_msg)
{
    struct mu_peer_id peer = {0};
    int err = mu_multiaddr_parse(out, text, reterr_msg);

    if (err != 0) {
        return err;
    }
    err = mu_multiaddr_dial(mu_buf_span(out), ret_addr, &peer);
    if (err != 0) {
        return mu_err(reterr_msg, MUSTER_EADDR, "%.160s: %s", text,
                      mu_multiaddr_refusal(mu_buf_span(out)));
    }
    if (peer.len != 0 && !mu_peer_id_eq(&peer, mu_peer_host_id(h))) {
        return mu_err(reterr_msg, MUSTER_EINVAL, "%.160s names another peer, not this one", text);
    }
    return 0;
}

int mu_peer_host_listen(struct mu_peer_host *h, const char *multiaddr, struct mu_errmsg *reterr_msg)
{
    struct mu_host_listener *l = mu_calloc(1, sizeof(*l));
    struct mu_addr addr;
    int err = l == NULL ? mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory") : 0;

    if (err != 0) {
        return err;
    }
    l->host = h;
    l->base.accept = mu_host_accept;
    l->base.accept_failed = on_accept_failed;
    l->base.closed = on_unlistened;
    mu_list_init(&l->link);
    mu_buf_init(&l->addr, MU_MULTIADDR_MAX);
    err = h->stopping ? mu_err(reterr_msg, MUSTER_ECLOSED, "the host is closed")
                      : read_own(h, multiaddr, &l->addr, &addr, reterr_msg);
    if (err == 0) {
        err = mu_env_listen(h->env, &l->base, &addr);
        if (err != 0) {
            (void)mu_err(reterr_msg, err, "%.160s: %s", multiaddr, muster_strerror(err));
        }
    }
    if (err != 0) {
        mu_buf_fini(&l->addr);
        mu_free(l);
        return err;
    }
    mu_list_push(&h->listeners, &l->link);
    l->wild = strcmp(addr.host, "0.0.0.0") == 0 || strcmp(addr.host, "::") == 0;
    l->v6 = addr.host[0] == ':';
    l->port = addr.port;
    mu_buf_reset(&l->addr);
    /* This fits as before: only the port has changed. */
    err = mu_multiaddr_from(&l->addr, &addr, reterr_msg);
    if (err != 0) {
        mu_env_unlisten(h->env, &l->base);
        return err;
    }
    mu_host_readdress(h);
    return 0;
}

int mu_peer_host_announce(struct mu_peer_host *h, const char *multiaddr,
                          struct mu_errmsg *reterr_msg)
{
    struct mu_buf bytes;
    struct mu_addr addr;
    struct mu_host_addr *a = NULL;
    int err;

    mu_buf_init(&bytes, MU_MULTIADDR_MAX);
    err = read_own(h, multiaddr, &bytes, &addr, reterr_msg);
    if (err == 0) {
        a = mu_host_addr_new(mu_buf_span(&bytes));
        err = a == NULL ? mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory") : 0;
    }
    mu_buf_fini(&bytes);
    if (err == 0) {
        mu_list_push(&h->announced, &a->link);
        mu_host_readdress(h);
    }
    return err;
}

static int add_addr(struct mu_list *list, struct mu_span bytes)
{
    struct mu_host_addr *a;

    MU_LIST_FOREACH (it, list) {
        const struct mu_host_addr *have = MU_CONTAINER_OF(it, struct mu_host_addr, link);

        if (mu_span_eq(mu_span(have->bytes, have->len), bytes)) {
            return 0;
        }
    }
    a = mu_host_addr_new(bytes);
    if (a == NULL) {
        return MUSTER_ENOMEM;
    }
    mu_list_push(list, &a->link);
    return 0;
}

static int add_addrs(struct mu_list *list, const struct mu_list *from)
{
    int err = 0;

    MU_LIST_FOREACH (it, from) {
        const struct mu_host_addr *a = MU_CONTAINER_OF(it, struct mu_host_addr, link);

        err = err != 0 ? err : add_addr(list, mu_span(a->bytes, a->len));
    }
    return err;
}

/* "Everywhere" is not an address: adds the IP addresses under which others have seen us, with our
 * port. */
static int add_wild(struct mu_list *list, const struct mu_peer_host *h,
                    const struct mu_host_listener *l)
{
    int err = 0;

    for (size_t i = 0; i < MU_HOST_SEEN_MAX && err == 0; i++) {
        uint8_t bytes[32];
        struct mu_span ip = mu_buf_span(&h->seen[i]);

        if (ip.len == 0 || ip.len > 17 || (ip.data[0] == MU_MA_IP6) != l->v6) {
            continue;
        }
        memcpy(bytes, ip.data, ip.len);
        bytes[ip.len] = MU_MA_TCP;
        bytes[ip.len + 1] = (uint8_t)(l->port >> 8);
        bytes[ip.len + 2] = (uint8_t)l->port;
        err = add_addr(list, mu_span(bytes, ip.len + 3));
    }
    return err;
}

static int list_told(const struct mu_peer_host *h, struct mu_list *list)
{
    int err = add_addrs(list, &h->announced);

    if (mu_list_empty(&h->announced)) {
        MU_LIST_FOREACH (it, &h->listeners) {
            struct mu_host_listener *l = MU_CONTAINER_OF(it, struct mu_host_listener, link);

            if (err == 0) {
                err = l->wild ? add_wild(list, h, l) : add_addr(list, mu_buf_span(&l->addr));
            }
        }
    }
    return err != 0 ? err : add_addrs(list, &h->circuits);
}

void mu_host_readdress(struct mu_peer_host *h)
{
    struct mu_list *link;
    struct mu_list list;

    mu_list_init(&list);
    if (list_told(h, &list) != 0) {
        /* The old list stays until there is memory for the new one. */
        mu_host_addrs_free(&list);
        if (!h->stopping) {
            mu_env_timer_arm(h->env, &h->again, mu_mono_add_ms(mu_env_now(h->env).mono, AGAIN_MS));
        }
        return;
    }
    mu_env_timer_arm(h->env, &h->again, MU_MONO_NEVER);
    mu_host_addrs_free(&h->told);
    while ((link = mu_list_pop(&list)) != NULL) {
        mu_list_push(&h->told, link);
    }
    mu_buf_reset(&h->record);
    h->push = true;
    mu_host_touch(h);
}

int mu_peer_host_tell_circuits(struct mu_peer_host *h, const struct mu_span *addrs, size_t count)
{
    struct mu_list *link;
    struct mu_list list;
    int err = 0;

    mu_list_init(&list);
    for (size_t i = 0; i < count && err == 0; i++) {
        err = add_addr(&list, addrs[i]);
    }
    if (err != 0) {
        mu_host_addrs_free(&list);
        return err;
    }
    mu_host_addrs_free(&h->circuits);
    while ((link = mu_list_pop(&list)) != NULL) {
        mu_list_push(&h->circuits, link);
    }
    mu_host_readdress(h);
    return 0;
}

struct mu_span mu_peer_host_listening(const struct mu_peer_host *h, size_t i)
{
    MU_LIST_FOREACH (it, &h->listeners) {
        if (i-- == 0) {
            return mu_buf_span(&MU_CONTAINER_OF(it, struct mu_host_listener, link)->addr);
        }
    }
    return (struct mu_span){0};
}

struct mu_span mu_peer_host_announced(const struct mu_peer_host *h, size_t i)
{
    MU_LIST_FOREACH (it, &h->told) {
        if (i-- == 0) {
            const struct mu_host_addr *a = MU_CONTAINER_OF(it, struct mu_host_addr, link);

            return mu_span(a->bytes, a->len);
        }
    }
    return (struct mu_span){0};
}

/* --- handlers and watches --------------------------------------------------------------------- */

int mu_peer_host_serve(struct mu_peer_host *h, struct mu_peer_handler *handler)
{
    struct mu_span name = mu_span_str(handler->name);
    int err = 0;

    if (name.len == 0 || name.len > MU_MSS_NAME_MAX || handler->opened == NULL) {
        return MUSTER_EINVAL;
    }
    if (handler->prefix) {
        mu_list_push(&h->prefixes, &handler->link);
    } else if (mu_map_find(&h->handlers, name) != NULL) {
        err = MUSTER_EEXIST;
    } else {
        err = mu_map_insert(&h->handlers, &handler->by_name, name);
        if (err == 0) {
            mu_list_push(&h->handler_list, &handler->link);
            h->push = true;
            mu_host_touch(h);
        }
    }
    if (err == 0) {
        handler->host = h;
    }
    return err;
}

void mu_peer_host_unserve(struct mu_peer_handler *handler)
{
    struct mu_peer_host *h = handler->host;

    if (h == NULL) {
        return;
    }
    handler->host = NULL;
    mu_list_remove(&handler->link);
    if (!handler->prefix) {
        mu_map_remove(&h->handlers, &handler->by_name);
        h->push = true;
        mu_host_touch(h);
    }
}

struct mu_peer_handler *mu_host_find_handler(struct mu_peer_host *h, struct mu_span name)
{
    struct mu_map_node *node = mu_map_find(&h->handlers, name);

    if (node != NULL) {
        return MU_CONTAINER_OF(node, struct mu_peer_handler, by_name);
    }
    MU_LIST_FOREACH (it, &h->prefixes) {
        struct mu_peer_handler *handler = MU_CONTAINER_OF(it, struct mu_peer_handler, link);

        if (mu_span_starts_with(name, mu_span_str(handler->name))) {
            return handler;
        }
    }
    return NULL;
}

void mu_peer_host_watch(struct mu_peer_host *h, struct mu_peer_watch *watch)
{
    mu_list_push(&h->watches, &watch->link);
}

void mu_peer_host_unwatch(struct mu_peer_watch *watch)
{
    mu_list_remove(&watch->link);
}

void mu_peer_host_set_router(struct mu_peer_host *h, struct mu_peer_router *router)
{
    h->router = router;
}

void mu_peer_host_set_circuits(struct mu_peer_host *h, struct mu_peer_circuits *circuits)
{
    h->through = circuits;
}

void mu_peer_host_stats(const struct mu_peer_host *h, struct mu_peer_host_stats *ret)
{
    *ret = h->stats;
    ret->conns = h->conn_count;
    ret->pending = h->pending;
    ret->book = h->peers.count;
    ret->granted = h->granted;
    ret->peers = 0;
    MU_LIST_FOREACH (it, &h->book) {
        ret->peers += MU_CONTAINER_OF(it, struct mu_host_peer, link)->conn_count != 0 ? 1 : 0;
    }
}
