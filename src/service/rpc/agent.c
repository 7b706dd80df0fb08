#include "service/rpc/agent_internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/addr.h"
#include "core/alloc.h"
#include "core/assert.h"
#include "service/base/listen.h"
#include "service/base/log.h"

struct mu_rpc_agent_config mu_rpc_agent_config_defaults(void)
{
    struct mu_rpc_agent_config c = {
        .id = -1,
        .connect_ms = 10000,
        .reconnect_ms = 5000,
        .eof_grace_ms = 25,
        .message_bytes_max = (size_t)1 << 30,
        .coming_bytes_max = (size_t)4 << 30,
        .sessions_max = 65536,
        .budget_burst = 10,
        .rpc = mu_rpc_config_defaults(),
        .once = mu_rpc_once_config_defaults(),
    };

    /* Long messages travel in pieces; this bounds the bytes under way. */
    c.rpc.call_window_bytes = 1u << 20;
    c.rpc.call_window_bytes_max = 16u << 20;
    c.rpc.item_window_bytes = 1u << 20;
    c.rpc.item_window_bytes_max = 8u << 20;
    c.rpc.output_bytes_high = 2u << 20;
    return c;
}

/* --- workers ---------------------------------------------------------------------------------- */

static void on_dial_timer(struct mu_timer *timer)
{
    struct mu_rpc_peer *peer = MU_CONTAINER_OF(timer, struct mu_rpc_peer, dial_timer);
    struct mu_rpc_agent *a = peer->agent;

    peer->dial_held = false;
    mu_rpc_peer_touch(peer);
    mu_rpc_agent_turn(a);
}

struct mu_rpc_peer *mu_rpc_peer_new(struct mu_rpc_agent *a, struct mu_span name, int32_t id,
                                    bool guest)
{
    struct mu_rpc_peer *peer = mu_calloc(1, sizeof(*peer));

    if (peer == NULL) {
        return NULL;
    }
    peer->agent = a;
    peer->id = id;
    peer->guest = guest;
    memcpy(peer->name, name.data, name.len);
    mu_list_init(&peer->unsent);
    mu_list_init(&peer->outs);
    mu_list_init(&peer->dirty);
    mu_timer_init(&peer->dial_timer, on_dial_timer);
    mu_rpc_budget_init(&peer->budget, a->config.budget_percent, a->config.budget_burst);
    if (mu_map_insert(&a->by_name, &peer->by_name, mu_span_str(peer->name)) != 0) {
        mu_free(peer);
        return NULL;
    }
    if (!guest && mu_map_insert(&a->by_id, &peer->by_id, mu_span(&peer->id, sizeof(peer->id)))) {
        mu_map_remove(&a->by_name, &peer->by_name);
        mu_free(peer);
        return NULL;
    }
    mu_list_push(guest ? &a->guests : &a->workers, &peer->link);
    return peer;
}

static void free_peer(struct mu_rpc_peer *peer)
{
    struct mu_rpc_agent *a = peer->agent;

    mu_env_timer_arm(a->env, &peer->dial_timer, MU_MONO_NEVER);
    mu_map_remove(&a->by_name, &peer->by_name);
    if (!peer->guest) {
        mu_map_remove(&a->by_id, &peer->by_id);
    }
    mu_list_remove(&peer->link);
    mu_list_remove(&peer->dirty);
    mu_free(peer);
}

void mu_rpc_peer_drop_guest(struct mu_rpc_peer *peer)
{
    if (peer->guest && peer->lines == 0 && mu_list_empty(&peer->outs)) {
        free_peer(peer);
    }
}

void mu_rpc_peer_touch(struct mu_rpc_peer *peer)
{
    if (mu_list_empty(&peer->dirty)) {
        mu_list_push(&peer->agent->dirty_peers, &peer->dirty);
    }
}

struct mu_rpc_peer *mu_rpc_agent_find(struct mu_rpc_agent *a, const char *name)
{
    struct mu_map_node *node = mu_map_find(&a->by_name, mu_span_str(name));

    return node == NULL ? NULL : MU_CONTAINER_OF(node, struct mu_rpc_peer, by_name);
}

struct mu_rpc_peer *mu_rpc_agent_find_id(struct mu_rpc_agent *a, int32_t id)
{
    struct mu_map_node *node = mu_map_find(&a->by_id, mu_span(&id, sizeof(id)));

    return node == NULL ? NULL : MU_CONTAINER_OF(node, struct mu_rpc_peer, by_id);
}

const char *mu_rpc_peer_name(const struct mu_rpc_peer *peer)
{
    return peer->name;
}

int32_t mu_rpc_peer_id(const struct mu_rpc_peer *peer)
{
    return peer->id;
}

struct mu_rpc_peer *mu_rpc_agent_next(struct mu_rpc_agent *a, const struct mu_rpc_peer *after)
{
    const struct mu_list *at = after == NULL ? a->workers.next : after->link.next;

    return at == &a->workers ? NULL : MU_CONTAINER_OF(at, struct mu_rpc_peer, link);
}

static int check_identity(const char *name, int32_t id, bool guest_ok, struct mu_errmsg *reterr_msg)
{
    char quoted[80];

    if (!mu_rpc_worker_name_ok(mu_span_str(name))) {
        return mu_err(reterr_msg, MUSTER_EINVAL,
                      "a worker's name must have 1 to 127 of A-Z a-z 0-9 - _ : and not be %s",
                      mu_span_quote(quoted, sizeof(quoted), mu_span_str(name)));
    }
    if (id > INT16_MAX || id < (guest_ok ? -1 : 0)) {
        return mu_err(reterr_msg, MUSTER_EINVAL, "a worker's id is 0 to 32767, not %d", (int)id);
    }
    return 0;
}

/* Makes a known worker of a guest. */
static int promote(struct mu_rpc_peer *peer, int32_t id)
{
    struct mu_rpc_agent *a = peer->agent;

    peer->id = id;
    if (mu_map_insert(&a->by_id, &peer->by_id, mu_span(&peer->id, sizeof(peer->id))) != 0) {
        return MUSTER_ENOMEM;
    }
    peer->guest = false;
    mu_list_remove(&peer->link);
    mu_list_push(&a->workers, &peer->link);
    return 0;
}

int mu_rpc_agent_add(struct mu_rpc_agent *a, const char *name, int32_t id,
                     const struct mu_addr *addr, struct mu_errmsg *reterr_msg)
{
    struct mu_rpc_peer *peer = mu_rpc_agent_find(a, name);
    struct mu_rpc_peer *same_id = mu_rpc_agent_find_id(a, id);
    int err = check_identity(name, id, false, reterr_msg);

    if (err != 0) {
        return err;
    }
    if (same_id != NULL && same_id != peer) {
        return mu_err(reterr_msg, MUSTER_EEXIST, "%s and %s both have the id %d", same_id->name,
                      name, (int)id);
    }
    if (peer != NULL && !peer->guest && peer->id != id) {
        return mu_err(reterr_msg, MUSTER_EEXIST, "%s already has the id %d, so it cannot get %d",
                      name, (int)peer->id, (int)id);
    }
    if (peer == NULL) {
        peer = mu_rpc_peer_new(a, mu_span_str(name), id, false);
    } else if (peer->guest && promote(peer, id) != 0) {
        peer = NULL;
    }
    if (peer == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    peer->left = false;
    peer->has_addr = addr != NULL;
    if (addr != NULL) {
        peer->addr = *addr;
    }
    return 0;
}

int mu_rpc_agent_set_near(struct mu_rpc_agent *a, const char *name, const struct mu_addr *addr)
{
    struct mu_rpc_peer *peer = mu_rpc_agent_find(a, name);

    if (peer == NULL || peer->guest) {
        return MUSTER_EWORKER;
    }
    peer->near = addr == NULL ? (struct mu_addr){0} : *addr;
    return 0;
}

int mu_rpc_agent_remove(struct mu_rpc_agent *a, const char *name)
{
    struct mu_rpc_peer *peer = mu_rpc_agent_find(a, name);

    if (peer == NULL || peer->guest) {
        return MUSTER_EWORKER;
    }
    /* What it still sends to us it may send as a guest. */
    mu_map_remove(&a->by_id, &peer->by_id);
    peer->guest = true;
    peer->has_addr = false;
    mu_list_remove(&peer->link);
    mu_list_push(&a->guests, &peer->link);
    mu_rpc_calls_end(peer, MUSTER_EWORKER, "the worker has left the group");
    mu_rpc_peer_touch(peer);
    return 0;
}

static void take_id(struct mu_rpc_peer *peer, int32_t id)
{
    peer->id = id;
    /* There is a table already, so this cannot fail. */
    (void)mu_map_insert(&peer->agent->by_id, &peer->by_id, mu_span(&peer->id, sizeof(peer->id)));
}

int mu_rpc_agent_renumber(struct mu_rpc_agent *a, struct mu_rpc_peer *const *peers,
                          const int32_t *ids, size_t count, int32_t own)
{
    int32_t old;
    size_t i = 0;

    for (size_t k = 0; k < count; k++) {
        mu_map_remove(&a->by_id, &peers[k]->by_id);
    }
    while (i < count && mu_rpc_agent_find_id(a, ids[i]) == NULL) {
        i++;
    }
    for (size_t k = 0; k < count; k++) {
        old = peers[k]->id;
        take_id(peers[k], i == count ? ids[k] : old);
    }
    if (i < count) {
        return MUSTER_EEXIST;
    }
    a->config.id = own;
    return 0;
}

/* --- the turn --------------------------------------------------------------------------------- */

void mu_rpc_count(uint64_t *buckets, uint64_t ns)
{
    uint64_t us = ns / 1000;
    unsigned n = 0;

    while (n < MU_RPC_BUCKETS - 1 && us >= UINT64_C(1) << n) {
        n++;
    }
    buckets[n]++;
}

static void stop_if_idle(struct mu_rpc_agent *a)
{
    if (!a->stopping || a->stopped || !mu_rpc_server_is_empty(&a->server) ||
        !mu_list_empty(&a->dials) || a->running_count != 0 || a->in_flight != 0) {
        return;
    }
    a->stopped = true;
    mu_log_rest(&a->dropped, MUSTER_LOG_WARN, MU_RPC_DROPPED);
    mu_env_timer_arm(a->env, &a->timer, MU_MONO_NEVER);
    mu_rpc_server_stop(&a->server);
    a->config.stopped(a->config.context);
}

void mu_rpc_agent_turn(struct mu_rpc_agent *a)
{
    struct mu_list *it;
    mu_mono_t at;

    if (a->in_turn || a->in_event || a->stopped) {
        return;
    }
    a->in_turn = true;
    do {
        while ((it = mu_list_pop(&a->dirty_peers)) != NULL) {
            struct mu_rpc_peer *peer = MU_CONTAINER_OF(it, struct mu_rpc_peer, dirty);

            mu_rpc_calls_begin(peer);
            mu_rpc_peer_drop_guest(peer);
        }
        mu_rpc_calls_tell(a);
    } while (!mu_list_empty(&a->dirty_peers) || !mu_list_empty(&a->ending));
    while ((it = mu_list_pop(&a->dirty_lines)) != NULL) {
        mu_rpc_line_flush(MU_CONTAINER_OF(it, struct mu_rpc_line, dirty));
    }
    mu_rpc_server_flush(&a->server);
    mu_rpc_answers_sweep(a, false);
    at = mu_mono_min(mu_rpc_calls_deadline(a), mu_log_rest_at(&a->dropped));
    if (!mu_heap_contains(&a->timer.node) || mu_mono_before(at, a->timer.node.at)) {
        mu_env_timer_arm(a->env, &a->timer, at);
    }
    a->in_turn = false;
    while (a->in_flight == 0 && a->running_count == 0 && (it = mu_list_pop(&a->idlers)) != NULL) {
        struct mu_rpc_idle *idle = MU_CONTAINER_OF(it, struct mu_rpc_idle, link);

        idle->idle(idle);
    }
    stop_if_idle(a);
}

void mu_rpc_agent_soon(struct mu_rpc_agent *a)
{
    if (!a->in_turn && !a->in_event && !a->stopped) {
        mu_env_timer_arm(a->env, &a->timer, mu_env_now(a->env).mono);
    }
}

static void on_timer(struct mu_timer *timer)
{
    struct mu_rpc_agent *a = MU_CONTAINER_OF(timer, struct mu_rpc_agent, timer);

    mu_rpc_server_feel_pulse(&a->server);
    mu_rpc_calls_tick(a);
    if (mu_mono_reached(mu_log_rest_at(&a->dropped), mu_env_now(a->env).mono)) {
        mu_log_rest(&a->dropped, MUSTER_LOG_WARN, MU_RPC_DROPPED);
    }
    mu_rpc_agent_turn(a);
}

/* --- start ------------------------------------------------------------------------------------ */

/*
 * Listens at a unix socket, under a name that no other process can have by chance: a worker that
 * dials it is on this host and means us. Without it everything works as well, by the other address.
 */
static void listen_near(struct mu_rpc_agent *a)
{
    static const char digits[] = "0123456789abcdef";
    struct mu_addr addr = {.kind = MU_ADDR_UNIX, .host = "@muster-rpc-"};
    size_t len = strlen(addr.host);
    uint8_t name[16];

    mu_env_entropy(a->env, name, sizeof(name));
    for (size_t i = 0; i < sizeof(name); i++) {
        addr.host[len++] = digits[name[i] >> 4];
        addr.host[len++] = digits[name[i] & 15];
    }
    if (mu_rpc_server_listen(&a->server, &a->near, &addr) == 0) {
        a->near_addr = addr;
    }
}

static void init_agent(struct mu_rpc_agent *a, struct mu_env *env)
{
    uint64_t seed;

    mu_env_entropy(env, &seed, sizeof(seed));
    a->config.rpc.seed = seed;
    a->config.rpc.name = a->config.name;
    a->config.once.seed = seed;
    mu_list_init(&a->dirty_lines);
    mu_list_init(&a->dials);
    mu_list_init(&a->workers);
    mu_list_init(&a->guests);
    mu_list_init(&a->dirty_peers);
    mu_list_init(&a->ending);
    mu_list_init(&a->idlers);
    mu_list_init(&a->once_outs);
    mu_list_init(&a->running);
    mu_list_init(&a->answers);
    mu_map_init(&a->by_name, seed);
    mu_map_init(&a->by_id, seed);
    mu_map_init(&a->handlers, seed);
    mu_heap_init(&a->deadlines);
    mu_rpc_retry_set_init(&a->retries, seed);
    mu_rpc_once_init(&a->once, &a->config.once);
    mu_buf_init(&a->scratch, SIZE_MAX / 4);
    mu_timer_init(&a->timer, on_timer);
    mu_rpc_server_init(&a->server, env,
                       &(struct mu_rpc_server_config){.rpc = a->config.rpc,
                                                      .sessions_max = a->config.sessions_max,
                                                      .eof_grace_ms = a->config.eof_grace_ms},
                       &mu_rpc_agent_server_ops);
}

static void free_memory(struct mu_rpc_agent *a)
{
    struct mu_list *lists[] = {&a->workers, &a->guests};

    for (size_t i = 0; i < 2; i++) {
        MU_LIST_FOREACH_SAFE (it, tmp, lists[i]) {
            free_peer(MU_CONTAINER_OF(it, struct mu_rpc_peer, link));
        }
    }
    mu_rpc_answers_sweep(a, true);
    mu_rpc_once_fini(&a->once);
    mu_rpc_server_fini(&a->server);
    mu_map_fini(&a->handlers);
    mu_map_fini(&a->by_name);
    mu_map_fini(&a->by_id);
    mu_buf_fini(&a->scratch);
    mu_free(a);
}

int mu_rpc_agent_start(struct mu_env *env, const struct mu_rpc_agent_config *config,
                       struct mu_rpc_agent **ret_agent, struct mu_errmsg *reterr_msg)
{
    struct mu_rpc_agent *a;
    int err = check_identity(config->name, config->id, true, reterr_msg);

    if (err != 0) {
        return err;
    }
    a = mu_calloc(1, sizeof(*a));
    if (a == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    a->env = env;
    a->config = *config;
    init_agent(a, env);
    if (config->listens) {
        err = mu_rpc_server_listen(&a->server, &a->listener, &a->config.listen);
    }
    if (err != 0) {
        err = mu_listen_failed(env, &config->listen, err, reterr_msg);
        free_memory(a);
        return err;
    }
    if (config->near) {
        listen_near(a);
    }
    *ret_agent = a;
    return 0;
}

const struct mu_addr *mu_rpc_agent_addr(const struct mu_rpc_agent *a)
{
    return &a->config.listen;
}

const struct mu_addr *mu_rpc_agent_near_addr(const struct mu_rpc_agent *a)
{
    return &a->near_addr;
}

int mu_rpc_agent_serve(struct mu_rpc_agent *a, struct mu_rpc_handler *handler)
{
    struct mu_span method = mu_span_str(handler->method);

    if (!mu_rpc_is_method(method)) {
        return MUSTER_EINVAL;
    }
    if (mu_map_find(&a->handlers, method) != NULL) {
        return MUSTER_EEXIST;
    }
    return mu_map_insert(&a->handlers, &handler->by_method, method);
}

/* --- the end ---------------------------------------------------------------------------------- */

void mu_rpc_agent_stop(struct mu_rpc_agent *a)
{
    if (a->stopping) {
        return;
    }
    a->stopping = true;
    mu_rpc_calls_stop(a);
    mu_rpc_lines_close(a);
    /* `stopped` is called from the timer at the earliest. */
    mu_env_timer_arm(a->env, &a->timer, mu_env_now(a->env).mono);
}

void mu_rpc_agent_free(struct mu_rpc_agent *a)
{
    if (a != NULL) {
        MU_ASSERT(a->stopped);
        free_memory(a);
    }
}

/* --- quiet ------------------------------------------------------------------------------------ */

void mu_rpc_agent_when_idle(struct mu_rpc_agent *a, struct mu_rpc_idle *idle)
{
    mu_list_push(&a->idlers, &idle->link);
}

static const struct mu_rpc_out *first_out(const struct mu_list *peers)
{
    MU_LIST_FOREACH (it, peers) {
        const struct mu_rpc_peer *peer = MU_CONTAINER_OF(it, struct mu_rpc_peer, link);

        if (!mu_list_empty(&peer->outs)) {
            return MU_CONTAINER_OF(peer->outs.next, struct mu_rpc_out, all);
        }
    }
    return NULL;
}

void mu_rpc_agent_busy(const struct mu_rpc_agent *a, char *text, size_t cap)
{
    const struct mu_rpc_out *out = first_out(&a->workers);
    size_t more = a->in_flight + a->running_count;
    size_t at;

    out = out != NULL ? out : first_out(&a->guests);
    text[0] = '\0';
    if (out != NULL) {
        (void)snprintf(text, cap, "%.100s to %s", out->method, out->to->name);
    } else if (!mu_list_empty(&a->running)) {
        const struct mu_rpc_in *in = MU_CONTAINER_OF(a->running.next, struct mu_rpc_in, running);

        (void)snprintf(text, cap, "%.100s from %s", in->handler->method, in->caller);
    }
    at = strlen(text);
    if (more > 1) {
        (void)snprintf(text + at, cap - at, " and %zu more", more - 1);
    }
}

void mu_rpc_agent_stats(const struct mu_rpc_agent *a, struct mu_rpc_agent_stats *ret)
{
    *ret = a->stats;
    ret->in_flight = a->in_flight;
    ret->waiting = a->retries.waiting;
    ret->serving = a->running_count;
    ret->sessions = a->server.sessions.count;
    MU_LIST_FOREACH (it, &a->dials) {
        ret->sessions++;
        ret->near_connections +=
            mu_rpc_client_is_near(&MU_CONTAINER_OF(it, struct mu_rpc_dial, link)->client) ? 1 : 0;
    }
    MU_LIST_FOREACH (it, &a->server.conns) {
        const struct mu_rpc_conn *c = MU_CONTAINER_OF(it, struct mu_rpc_conn, link);

        ret->near_connections += c->listener == &a->near.base ? 1 : 0;
    }
    ret->workers = a->by_id.count;
}
