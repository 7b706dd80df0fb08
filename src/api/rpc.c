/* The public RPC agent: life, workers, the agent of the process and metrics. */
#include "api/rpc_api.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/addr.h"
#include "core/alloc.h"

#define TIMEOUT_MS 60000 /* of calls, unless the config says otherwise */

void muster_rpc_config_init(struct muster_rpc_config *ret, size_t size)
{
    struct mu_rpc_agent_config d = mu_rpc_agent_config_defaults();
    struct muster_rpc_config ours = {
        .id = -1,
        .listen = mu_listen_default,
        .timeout_ms = TIMEOUT_MS,
        .threads = 16,
        .connect_timeout_ms = d.connect_ms,
        .reconnect_timeout_ms = d.reconnect_ms,
        .message_bytes_max = d.message_bytes_max,
    };

    mu_api_give(ret, size, &ours, sizeof(ours));
}

void mu_rpc_pass(muster_rpc_agent *a, struct mu_rpc_door *d, void (*run)(struct mu_door *door))
{
    d->agent = a;
    mu_door_pass_anywhere(a->rt, &d->door, run);
}

/* --- memory of long messages ------------------------------------------------------------------ */

#define POOL_LOOK_MS 1000

static void look_later(muster_rpc_agent *a)
{
    if (!mu_heap_contains(&a->pool_timer.node)) {
        mu_env_timer_arm(a->rt->env, &a->pool_timer,
                         mu_mono_add_ms(mu_env_now(a->rt->env).mono, POOL_LOOK_MS));
    }
}

static void on_pool_timer(struct mu_timer *timer)
{
    muster_rpc_agent *a = MU_CONTAINER_OF(timer, muster_rpc_agent, pool_timer);

    if (mu_rpc_pool_look(a->pool)) {
        look_later(a);
    }
}

static struct mu_buf take_buf(void *context, size_t len, size_t least)
{
    muster_rpc_agent *a = context;

    look_later(a);
    return mu_rpc_pool_take(a->pool, len, least);
}

static void give_buf(void *context, struct mu_buf *buf)
{
    muster_rpc_agent *a = context;

    look_later(a);
    mu_rpc_pool_give(a->pool, buf);
}

/* --- life ------------------------------------------------------------------------------------- */

static _Atomic(muster_rpc_agent *) current_agent; /* of the process */

struct start_door {
    struct mu_rpc_door base;
    struct mu_rpc_agent_config config;
    int err;
    struct mu_errmsg msg;
};

static void on_stopped(void *context)
{
    muster_rpc_agent *a = context;

    (void)pthread_mutex_lock(&a->lock);
    a->stopped = true;
    (void)pthread_cond_broadcast(&a->cond);
    (void)pthread_mutex_unlock(&a->lock);
}

static void start_on_loop(struct mu_door *door)
{
    struct start_door *d = MU_CONTAINER_OF(door, struct start_door, base.door);
    struct mu_rref_agent_config refs = mu_rref_agent_config_defaults();
    muster_rpc_agent *a = d->base.agent;
    struct mu_env *env = a->rt->env;

    d->err = mu_rpc_agent_start(env, &d->config, &a->agent, &d->msg);
    if (d->err == 0) {
        d->err = mu_rref_agent_start(env, a->agent, d->config.name, d->config.id, &refs, &a->rrefs);
        d->err = d->err != 0 ? d->err : mu_rpc_gather_start(env, a->agent, &a->gather);
        (void)mu_err(&d->msg, d->err, "%s", muster_strerror(d->err));
    }
    mu_door_open(door);
}

/* The timeouts of the config, of which `a` keeps that of calls. */
static int fill_timeouts(muster_rpc_agent *a, const struct muster_rpc_config *c,
                         struct mu_rpc_agent_config *ret)
{
    uint32_t timeout_ms = 0;
    int err = mu_api_timeout(c->timeout_ms, TIMEOUT_MS, &timeout_ms);

    atomic_init(&a->timeout_ms, timeout_ms);
    if (err == 0) {
        err = mu_api_timeout(c->connect_timeout_ms, ret->connect_ms, &ret->connect_ms);
    }
    return err != 0
               ? err
               : mu_api_timeout(c->reconnect_timeout_ms, ret->reconnect_ms, &ret->reconnect_ms);
}

static int fill_config(muster_rpc_agent *a, const struct muster_rpc_config *c, struct start_door *d)
{
    int err;

    d->config = mu_rpc_agent_config_defaults();
    if (c->name == NULL || strlen(c->name) > MU_RPC_WORKER_MAX) {
        return mu_err(&d->msg, MUSTER_EINVAL, "a worker's name must have 1 to 127 characters");
    }
    memcpy(d->config.name, c->name, strlen(c->name));
    d->config.id = c->id;
    d->config.message_bytes_max = c->message_bytes_max;
    d->config.budget_percent = c->retry_budget_percent;
    d->config.take_buf = take_buf;
    d->config.give_buf = give_buf;
    d->config.stopped = on_stopped;
    d->config.context = a;
    err = fill_timeouts(a, c, &d->config);
    if (err != 0) {
        return mu_err(&d->msg, err, "%s", muster_errmsg());
    }
    d->config.listens = c->listen != NULL;
    d->config.near = c->listen != NULL && !c->tcp_only;
    if (c->listen == NULL) {
        return 0;
    }
    err = mu_addr_parse(mu_locked_listen(&a->rt->locked, c->listen), 0, &d->config.listen, &d->msg);
    d->config.near = d->config.near && d->config.listen.kind == MU_ADDR_TCP;
    return err;
}

static bool is_any(const char *host)
{
    return strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0;
}

static void fill_address(muster_rpc_agent *a, const struct muster_rpc_config *c)
{
    struct mu_addr addr = *mu_rpc_agent_addr(a->agent);
    const struct mu_addr *near = mu_rpc_agent_near_addr(a->agent);
    size_t len;

    if (c->listen == NULL) {
        return;
    }
    if (addr.kind == MU_ADDR_UNIX) {
        /* No other worker can dial it. */
    } else if (c->advertise != NULL) {
        (void)snprintf(addr.host, sizeof(addr.host), "%s", c->advertise);
    } else if (is_any(addr.host) && gethostname(addr.host, sizeof(addr.host) - 1) != 0) {
        (void)snprintf(addr.host, sizeof(addr.host), "127.0.0.1");
    }
    (void)mu_addr_format(&addr, a->address, sizeof(a->address));
    len = strlen(a->address);
    memcpy(a->published, a->address, len + 1);
    if (near->kind != 0) {
        a->published[len] = ',';
        (void)mu_addr_format(near, a->published + len + 1, sizeof(a->published) - len - 1);
    }
}

static void init_agent(muster_rpc_agent *a, muster_runtime *rt, const struct muster_rpc_config *c)
{
    pthread_condattr_t attr;

    a->rt = rt;
    a->id = c->id;
    a->tcp_only = c->tcp_only;
    a->threads_max = c->threads == 0 ? 1 : c->threads;
    mu_list_init(&a->handlers);
    mu_list_init(&a->rref_handles);
    mu_list_init(&a->maps);
    mu_list_init(&a->tags);
    mu_buf_init(&a->named, 0);
    mu_list_init(&a->queue);
    mu_timer_init(&a->pool_timer, on_pool_timer);
    (void)pthread_mutex_init(&a->lock, NULL);
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&a->cond, &attr);
    (void)pthread_cond_init(&a->work, &attr);
    (void)pthread_condattr_destroy(&attr);
}

static void free_agent(muster_rpc_agent *a)
{
    mu_rpc_devices_free(a);
    mu_rpc_handlers_free(a);
    (void)pthread_cond_destroy(&a->work);
    (void)pthread_cond_destroy(&a->cond);
    (void)pthread_mutex_destroy(&a->lock);
    mu_rpc_pool_drop(a->pool);
    mu_free(a->threads);
    mu_free(a->group.name);
    mu_free(a->group.place);
    mu_free(a);
}

int muster_rpc_start(muster_runtime *rt, const struct muster_rpc_config *given,
                     muster_rpc_agent **ret_agent)
{
    struct muster_rpc_config config;
    struct start_door d = {.err = MU_API_TAKE(rpc_config, &config, given)};
    muster_rpc_agent *a;

    if (d.err != 0) {
        return d.err;
    }
    a = mu_calloc(1, sizeof(*a));
    if (a == NULL) {
        return mu_api_error(MUSTER_ENOMEM, NULL);
    }
    init_agent(a, rt, &config);
    a->threads = mu_calloc(a->threads_max, sizeof(*a->threads));
    a->pool = mu_rpc_pool_new();
    d.err = a->threads == NULL || a->pool == NULL ? mu_err(&d.msg, MUSTER_ENOMEM, "out of memory")
                                                  : fill_config(a, &config, &d);
    if (d.err == 0) {
        mu_rpc_pass(a, &d.base, start_on_loop);
    }
    if (d.err != 0) {
        if (a->agent != NULL) {
            muster_rpc_shutdown(a); /* it already listens */
        } else {
            free_agent(a);
        }
        return mu_api_error(d.err, d.msg.text);
    }
    memcpy(a->name, d.config.name, sizeof(a->name));
    fill_address(a, &config);
    *ret_agent = a;
    return 0;
}

static void stop_on_loop(struct mu_door *door)
{
    struct mu_rpc_door *d = MU_CONTAINER_OF(door, struct mu_rpc_door, door);

    if (d->agent->rrefs != NULL) {
        mu_rref_agent_stop(d->agent->rrefs);
    }
    if (d->agent->gather != NULL) {
        mu_rpc_gather_stop(d->agent->gather);
    }
    mu_rpc_agent_stop(d->agent->agent);
    mu_rpc_agent_turn(d->agent->agent);
    mu_door_open(door);
}

static void free_on_loop(struct mu_door *door)
{
    muster_rpc_agent *a = MU_CONTAINER_OF(door, struct mu_rpc_door, door)->agent;

    mu_rrefs_orphan(a);
    mu_rpc_gather_free(a->gather);
    mu_rref_agent_free(a->rrefs);
    mu_rpc_agent_free(a->agent);
    mu_env_timer_arm(a->rt->env, &a->pool_timer, MU_MONO_NEVER);
    mu_door_open(door);
}

void muster_rpc_shutdown(muster_rpc_agent *a)
{
    muster_rpc_agent *current = a;
    struct mu_rpc_door d = {0};

    if (a == NULL || mu_runtime_would_wait(a->rt, "muster_rpc_shutdown")) {
        return;
    }
    (void)atomic_compare_exchange_strong(&current_agent, &current, NULL);
    mu_rpc_pass(a, &d, stop_on_loop);
    (void)pthread_mutex_lock(&a->lock);
    while (!a->stopped) {
        (void)pthread_cond_wait(&a->cond, &a->lock);
    }
    (void)pthread_mutex_unlock(&a->lock);
    mu_rpc_threads_end(a);
    mu_rpc_pass(a, &d, free_on_loop);
    free_agent(a);
}

const char *muster_rpc_name(const muster_rpc_agent *a)
{
    return a->name;
}

int32_t muster_rpc_id(const muster_rpc_agent *a)
{
    return a->id;
}

const char *muster_rpc_address(const muster_rpc_agent *a)
{
    return a->address;
}

int muster_rpc_set_timeout(muster_rpc_agent *a, int64_t timeout_ms)
{
    uint32_t ms;
    int err = mu_api_timeout(timeout_ms, TIMEOUT_MS, &ms);

    if (err == 0) {
        atomic_store(&a->timeout_ms, ms);
    }
    return err;
}

int64_t muster_rpc_timeout(const muster_rpc_agent *a)
{
    return mu_api_timeout_public(atomic_load(&a->timeout_ms));
}

/* --- the agent of the process ----------------------------------------------------------------- */

int muster_rpc_set_current(muster_rpc_agent *agent)
{
    muster_rpc_agent *none = NULL;

    if (agent == NULL) {
        return atomic_exchange(&current_agent, NULL) != NULL
                   ? 0
                   : mu_api_error(MUSTER_ENOENT, "the process has no current RPC agent");
    }
    return atomic_compare_exchange_strong(&current_agent, &none, agent)
               ? 0
               : mu_api_error(MUSTER_EEXIST, "the process already has a current RPC agent");
}

int muster_rpc_current(muster_rpc_agent **ret_agent)
{
    muster_rpc_agent *agent = atomic_load(&current_agent);

    if (agent == NULL) {
        return mu_api_error(MUSTER_ENOENT, "the process has no current RPC agent: start one with "
                                           "muster_rpc_start() and muster_rpc_set_current()");
    }
    *ret_agent = agent;
    return 0;
}

/* --- workers ---------------------------------------------------------------------------------- */

struct worker_door {
    struct mu_rpc_door base;
    const char *name;
    int32_t id;
    const struct mu_addr *addr;
    struct mu_addr near; /* kind 0: no such address */
    struct muster_rpc_worker *workers;
    size_t cap;
    size_t count;
    int err;
    struct mu_errmsg msg;
};

static void add_on_loop(struct mu_door *door)
{
    struct worker_door *d = MU_CONTAINER_OF(door, struct worker_door, base.door);

    d->err = mu_rpc_agent_add(d->base.agent->agent, d->name, d->id, d->addr, &d->msg);
    if (d->err == 0) {
        (void)mu_rpc_agent_set_near(d->base.agent->agent, d->name,
                                    d->near.kind == 0 ? NULL : &d->near);
        d->err = mu_rref_agent_back(d->base.agent->rrefs, d->name);
        (void)mu_err(&d->msg, d->err, "%s", muster_strerror(d->err));
    }
    mu_door_open(door);
}

int mu_rpc_parse_address(const muster_rpc_agent *a, const char *text, struct mu_addr *ret,
                         struct mu_addr *ret_near, struct mu_errmsg *reterr_msg)
{
    const char *comma = strncmp(text, "unix:", 5) == 0 ? NULL : strchr(text, ',');
    char first[MU_ADDR_HOST_MAX + 16];
    int err;

    *ret_near = (struct mu_addr){0};
    if (comma == NULL) {
        return mu_addr_parse(text, 0, ret, reterr_msg);
    }
    if ((size_t)(comma - text) >= sizeof(first)) {
        return mu_err(reterr_msg, MUSTER_EURL, "the address is too long");
    }
    (void)snprintf(first, sizeof(first), "%.*s", (int)(comma - text), text);
    err = mu_addr_parse(first, 0, ret, reterr_msg);
    if (err == 0) {
        err = mu_addr_parse(comma + 1, 0, ret_near, reterr_msg);
    }
    if (err == 0 && ret_near->kind != MU_ADDR_UNIX) {
        return mu_err(reterr_msg, MUSTER_EURL, "the address after the comma must be unix:@NAME");
    }
    if (a->tcp_only) {
        *ret_near = (struct mu_addr){0};
    }
    return err;
}

int muster_rpc_add_worker(muster_rpc_agent *a, const char *name, int32_t id, const char *address)
{
    struct worker_door d = {.name = name, .id = id};
    struct mu_addr addr;

    if (address != NULL && address[0] != '\0') {
        d.err = mu_rpc_parse_address(a, address, &addr, &d.near, &d.msg);
        d.addr = &addr;
    }
    if (d.err == 0) {
        mu_rpc_pass(a, &d.base, add_on_loop);
    }
    return mu_api_error(d.err, d.msg.text);
}

static void remove_on_loop(struct mu_door *door)
{
    struct worker_door *d = MU_CONTAINER_OF(door, struct worker_door, base.door);

    d->err = mu_rpc_agent_remove(d->base.agent->agent, d->name);
    mu_rref_agent_gone(d->base.agent->rrefs, d->name);
    mu_rpc_agent_turn(d->base.agent->agent);
    mu_door_open(door);
}

int muster_rpc_remove_worker(muster_rpc_agent *a, const char *name)
{
    struct worker_door d = {.name = name};

    mu_rpc_pass(a, &d.base, remove_on_loop);
    return mu_api_error(d.err, NULL);
}

static void fill_worker(const struct mu_rpc_peer *peer, struct muster_rpc_worker *ret)
{
    (void)snprintf(ret->name, sizeof(ret->name), "%s", mu_rpc_peer_name(peer));
    ret->id = mu_rpc_peer_id(peer);
}

static void info_on_loop(struct mu_door *door)
{
    struct worker_door *d = MU_CONTAINER_OF(door, struct worker_door, base.door);
    struct mu_rpc_agent *agent = d->base.agent->agent;
    struct mu_rpc_peer *peer =
        d->name != NULL ? mu_rpc_agent_find(agent, d->name) : mu_rpc_agent_find_id(agent, d->id);

    d->err = peer == NULL ? MUSTER_EWORKER : 0;
    if (peer != NULL) {
        fill_worker(peer, d->workers);
    }
    mu_door_open(door);
}

int muster_rpc_worker_info(muster_rpc_agent *a, const char *name, int32_t id,
                           struct muster_rpc_worker *ret_worker)
{
    struct worker_door d = {.name = name, .id = id, .workers = ret_worker};

    mu_rpc_pass(a, &d.base, info_on_loop);
    return mu_api_error(d.err, NULL);
}

static void list_on_loop(struct mu_door *door)
{
    struct worker_door *d = MU_CONTAINER_OF(door, struct worker_door, base.door);
    struct mu_rpc_peer *peer = NULL;

    while ((peer = mu_rpc_agent_next(d->base.agent->agent, peer)) != NULL) {
        if (d->count < d->cap) {
            fill_worker(peer, &d->workers[d->count]);
        }
        d->count++;
    }
    mu_door_open(door);
}

size_t muster_rpc_workers(muster_rpc_agent *a, struct muster_rpc_worker *ret_workers, size_t cap)
{
    struct worker_door d = {.workers = ret_workers, .cap = cap};

    mu_rpc_pass(a, &d.base, list_on_loop);
    return d.count;
}

/* --- metrics ---------------------------------------------------------------------------------- */

struct stats_door {
    struct mu_rpc_door base;
    struct mu_rpc_agent_stats stats;
    struct mu_rref_stats refs;
    struct muster_rpc_profile *profiles;
    size_t cap;
    size_t count;
};

static void stats_on_loop(struct mu_door *door)
{
    struct stats_door *d = MU_CONTAINER_OF(door, struct stats_door, base.door);

    mu_rpc_agent_stats(d->base.agent->agent, &d->stats);
    mu_rref_agent_stats(d->base.agent->rrefs, &d->refs);
    mu_door_open(door);
}

static void profiles_on_loop(struct mu_door *door)
{
    struct stats_door *d = MU_CONTAINER_OF(door, struct stats_door, base.door);

    if (d->profiles == NULL) {
        mu_rpc_profiles_reset(d->base.agent);
    } else {
        d->count = mu_rpc_profiles(d->base.agent, d->profiles, d->cap);
    }
    mu_door_open(door);
}

void muster_rpc_set_profiling(muster_rpc_agent *a, bool on)
{
    struct stats_door d = {0};

    if (on && !atomic_load(&a->profiling)) {
        mu_rpc_pass(a, &d.base, profiles_on_loop);
    }
    atomic_store(&a->profiling, on);
}

bool muster_rpc_profiling(const muster_rpc_agent *a)
{
    return atomic_load(&a->profiling);
}

size_t muster_rpc_profiles(muster_rpc_agent *a, struct muster_rpc_profile *ret_profiles, size_t cap)
{
    struct muster_rpc_profile none;
    struct stats_door d = {.profiles = cap == 0 ? &none : ret_profiles, .cap = cap};

    mu_rpc_pass(a, &d.base, profiles_on_loop);
    return d.count;
}

struct metrics {
    struct muster_rpc_metric *at;
    size_t cap;
    size_t count;
};

static void put(struct metrics *m, const char *name, uint64_t value)
{
    if (m->count < m->cap) {
        (void)snprintf(m->at[m->count].name, sizeof(m->at->name), "%s", name);
        (void)snprintf(m->at[m->count].value, sizeof(m->at->value), "%" PRIu64, value);
    }
    m->count++;
}

/* The upper bound, in microseconds, of the bucket that holds this quantile. */
static uint64_t quantile(const uint64_t *buckets, unsigned percent)
{
    uint64_t all = 0;
    uint64_t seen = 0;

    for (unsigned i = 0; i < MU_RPC_BUCKETS; i++) {
        all += buckets[i];
    }
    for (unsigned i = 0; i < MU_RPC_BUCKETS; i++) {
        seen += buckets[i];
        if (all != 0 && seen * 100 >= all * percent) {
            return UINT64_C(1) << i;
        }
    }
    return 0;
}

/* How many took less than a power of two, and no less than the one before; no empty ones. */
static void put_histogram(struct metrics *m, const char *name, const uint64_t *buckets)
{
    for (unsigned i = 0; i < MU_RPC_BUCKETS; i++) {
        char full[48];

        if (buckets[i] != 0) {
            (void)snprintf(full, sizeof(full), "agent.%s_us_below_%" PRIu64, name,
                           UINT64_C(1) << i);
            put(m, full, buckets[i]);
        }
    }
}

static void put_refs(struct metrics *m, const struct mu_rref_stats *s)
{
    put(m, "agent.owner_rrefs", s->values);
    put(m, "agent.forks", s->forks);
    put(m, "agent.users", s->users);
    put(m, "agent.pending_users", s->pending_users);
    put(m, "agent.pending_children", s->children);
}

size_t muster_rpc_metrics(muster_rpc_agent *a, struct muster_rpc_metric *ret_metrics, size_t cap)
{
    uint64_t queue_us[MU_RPC_BUCKETS];
    struct metrics m = {.at = ret_metrics, .cap = cap};
    struct stats_door d = {0};
    uint32_t threads;
    uint32_t idle;
    size_t queued;

    mu_rpc_pass(a, &d.base, stats_on_loop);
    (void)pthread_mutex_lock(&a->lock);
    threads = a->thread_count;
    idle = a->idle_count;
    queued = a->queued;
    memcpy(queue_us, a->queue_us, sizeof(queue_us));
    (void)pthread_mutex_unlock(&a->lock);
    put(&m, "agent.thread_pool_size", a->threads_max);
    put(&m, "agent.num_idle_threads", a->threads_max - (threads - idle));
    put(&m, "agent.client_active_calls", d.stats.in_flight);
    put(&m, "agent.server_active_calls", d.stats.serving);
    put(&m, "agent.server_active_async_calls",
        d.stats.serving > threads - idle ? d.stats.serving - (threads - idle) : 0);
    put(&m, "agent.queued_calls", queued);
    put(&m, "agent.calls", d.stats.calls);
    put(&m, "agent.calls_ok", d.stats.calls_ok);
    put(&m, "agent.calls_failed", d.stats.calls_failed);
    put(&m, "agent.timeouts", d.stats.timeouts);
    put(&m, "agent.retries", d.stats.retries);
    put(&m, "agent.waiting_retries", d.stats.waiting);
    put(&m, "agent.served", d.stats.served);
    put(&m, "agent.serve_errors", d.stats.serve_errors);
    put(&m, "agent.replays", d.stats.replays);
    put(&m, "agent.workers", d.stats.workers);
    put(&m, "agent.sessions", d.stats.sessions);
    put(&m, "agent.dials", d.stats.dials);
    put(&m, "agent.accepts", d.stats.accepts);
    put(&m, "agent.connections_unix", d.stats.near_connections);
    put(&m, "agent.bytes_in", d.stats.bytes_in);
    put(&m, "agent.bytes_out", d.stats.bytes_out);
    put(&m, "agent.call_us_p50", quantile(d.stats.latency, 50));
    put(&m, "agent.call_us_p99", quantile(d.stats.latency, 99));
    put(&m, "agent.handler_us_p50", quantile(d.stats.handling, 50));
    put(&m, "agent.handler_us_p99", quantile(d.stats.handling, 99));
    put(&m, "agent.queue_us_p50", quantile(queue_us, 50));
    put(&m, "agent.queue_us_p99", quantile(queue_us, 99));
    put_refs(&m, &d.refs);
    put_histogram(&m, "call", d.stats.latency);
    put_histogram(&m, "handler", d.stats.handling);
    put_histogram(&m, "queue", queue_us);
    return m.count;
}
