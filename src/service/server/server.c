#include "service/server/server_internal.h"

#include <inttypes.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "service/base/listen.h"
#include "service/base/log.h"
#include "service/server/gateway_hold.h"

#define PEER_LINES_PER_S 20
/* The longest time that counts for buffers that do not move. */
#define STILL_MS_MAX (UINT64_C(3600) * 1000)

struct mu_store_server_config mu_store_server_config_defaults(void)
{
    return (struct mu_store_server_config){
        .keyspace = mu_ks_config_defaults(),
        .torch = mu_torch_limits_defaults(),
        .rpc = mu_rpc_config_defaults(),
        .rdzv = mu_rdzv_hub_config_defaults(),
        .fit = true,
        .connections_max = 100000,
        .sessions_max = 100000,
        .buffer_bytes_max = (size_t)2 << 30,
        .sync = MU_SYNC_ALWAYS,
        .sync_interval_ms = 100,
        .journal_bytes_high = (size_t)64 << 20,
        .backlog_bytes_max = (size_t)4 << 20,
        .eof_grace_ms = 25,
        .drain_ms = 5000,
        .holds = true,
        .hold = mu_holds_config_defaults(),
    };
}

static void lower(size_t *limit, uint64_t most)
{
    *limit = most < *limit ? (size_t)most : *limit;
}

void mu_store_server_config_settle(struct mu_store_server_config *config)
{
    size_t buffers = config->buffer_bytes_max;
    /* One value at its limit must fit in any case. */
    size_t one = config->keyspace.value_bytes_max + config->keyspace.key_bytes_max + 64;

    lower(&config->journal_bytes_high, config->keyspace.memory_bytes_max / 8);
    lower(&config->torch.request_bytes_max, buffers / 2 > one ? buffers / 2 : one);
    lower(&config->torch.output_bytes_max, buffers > one ? buffers : one);
}

void mu_store_server_config_fit(struct mu_store_server_config *config, uint64_t memory)
{
    if (memory != UINT64_MAX) {
        lower(&config->keyspace.memory_bytes_max, memory / 2);
        lower(&config->buffer_bytes_max, memory / 8);
        mu_store_server_config_settle(config);
    }
}

/* --- the pump's tail -------------------------------------------------------------------------- */

static void rearm(struct mu_store_server *s)
{
    mu_mono_t at = mu_mono_min(mu_ks_deadline(&s->ks), mu_store_commit_deadline(s));

    at = mu_mono_min(at, mu_holds_deadline(&s->holds));

    if (at.ns != s->timer.node.at.ns || !mu_heap_contains(&s->timer.node)) {
        mu_env_timer_arm(s->env, &s->timer, at);
    }
}

static void on_backing_closed(void *context)
{
    struct mu_store_server *s = context;

    s->backing = NULL;
    mu_store_server_finish_turn(s);
}

static void on_backing_turn(void *context)
{
    mu_store_server_finish_turn(context);
}

/* Reports the end, at the end of this turn, if every connection is gone and nothing is left to
 * write. */
static void stop_if_empty(struct mu_store_server *s)
{
    if (!s->stopping || s->stopped || !mu_rpc_server_is_empty(&s->wire) || s->committing) {
        return;
    }
    if (!mu_store_carrier_close(s)) {
        return;
    }
    if (s->backing != NULL) {
        /* Only requests of connections that are gone are left. */
        mu_rpc_server_end_all(&s->wire, "server stopped");
        if (!s->backing_closing) {
            s->backing_closing = true;
            mu_gateway_close(s->backing, s->config.backing_ends, on_backing_closed, s);
        }
        return;
    }
    s->stopped = true;
    mu_env_timer_arm(s->env, &s->timer, MU_MONO_NEVER);
    mu_env_timer_arm(s->env, &s->drain_timer, MU_MONO_NEVER);
    mu_env_timer_arm(s->env, &s->turn_timer, MU_MONO_NEVER);
    mu_rpc_server_stop(&s->wire);
    mu_rpc_server_end_all(&s->wire, "server stopped");
    mu_rdzv_hub_fini(&s->hub);
    mu_log(s->status == 0 ? MUSTER_LOG_INFO : MUSTER_LOG_ERROR, "STORE-STOPPED",
           "status=%s why=\"%s\"", s->status == 0 ? "ok" : muster_errname(s->status), s->why.text);
    if (s->config.disk != NULL) {
        s->config.disk->ops->close(s->config.disk);
        s->config.disk = NULL;
    }
    if (s->config.stopped != NULL) {
        s->config.stopped(s->config.context, s->status, s->why.text);
    }
}

static void close_all(struct mu_store_server *s, bool abort)
{
    s->stopping = true;
    mu_rpc_server_close_conns(&s->wire, abort);
}

/* A drain is over when the disk has everything and the clients have their answers. */
static void continue_drain(struct mu_store_server *s)
{
    if (!s->draining || s->stopping || !mu_store_commit_idle(s) ||
        (s->backing != NULL && !mu_gateway_idle(s->backing))) {
        return;
    }
    MU_LIST_FOREACH (it, &s->wire.conns) {
        struct mu_store_conn *c = MU_CONTAINER_OF(it, struct mu_store_conn, base.link);

        if (!c->base.closing && mu_store_conn_output_len(c) != 0) {
            return;
        }
    }
    close_all(s, false);
}

static bool is_over_limit(const struct mu_store_server *s)
{
    return s->buffer_bytes + s->ks.held_bytes > s->config.buffer_bytes_max;
}

/* The bytes of a connection weigh more with every moment in which none of them move: a large
 * request that is coming in must not count like a client that stopped reading. */
static uint64_t weight(const struct mu_store_server *s, size_t bytes, mu_mono_t moved)
{
    uint64_t still_ms = mu_mono_since(moved, mu_env_now(s->env).mono) / MU_NS_PER_MS;

    return (uint64_t)bytes * (1 + (still_ms < STILL_MS_MAX ? still_ms : STILL_MS_MAX));
}

static uint64_t weight_of_conn(const struct mu_store_server *s, const struct mu_store_conn *c)
{
    bool holds = c->kind == MU_STORE_CONN_TORCH && s->ks.held_bytes != 0;

    return weight(s, c->memory + (holds ? c->torch.lent_bytes : 0), c->moved);
}

static uint64_t weight_of_session(const struct mu_store_server *s,
                                  const struct mu_store_session *session)
{
    const struct mu_rpc_conn *conn = session->base.conn;
    size_t held = s->ks.held_bytes != 0 ? session->base.rpc.kept_bytes : 0;

    return weight(s, session->memory + held,
                  conn == NULL ? mu_rpc_last_heard(&session->base.rpc)
                               : MU_CONTAINER_OF(conn, const struct mu_store_conn, base)->moved);
}

/* If all buffers together are over their limit, drops the heaviest connection. Returns whether it
 * dropped one. */
static bool drop_heaviest(struct mu_store_server *s)
{
    static const char why[] = "the buffers of all connections together are over their limit, and "
                              "this connection's are the largest or have not moved for longest";
    struct mu_store_conn *conn = NULL;
    struct mu_store_session *session = NULL;
    uint64_t most = 0;

    if (!is_over_limit(s)) {
        return false;
    }
    MU_LIST_FOREACH (it, &s->wire.conns) {
        struct mu_store_conn *c = MU_CONTAINER_OF(it, struct mu_store_conn, base.link);

        if (weight_of_conn(s, c) > most) {
            most = weight_of_conn(s, c);
            conn = c;
        }
    }
    for (struct mu_map_node *n = mu_map_next(&s->wire.sessions, NULL); n != NULL;
         n = mu_map_next(&s->wire.sessions, n)) {
        struct mu_rpc_session *base = MU_CONTAINER_OF(n, struct mu_rpc_session, by_id);
        struct mu_store_session *other = MU_CONTAINER_OF(base, struct mu_store_session, base);

        if (weight_of_session(s, other) > most) {
            most = weight_of_session(s, other);
            session = other;
        }
    }
    if (session != NULL) {
        mu_store_server_log_peer(s, session->base.peer, why);
        mu_rpc_session_end(&session->base, "the buffers of all connections are over their limit");
    } else if (conn != NULL) {
        mu_rpc_conn_drop(&conn->base, why);
    }
    return session != NULL || conn != NULL;
}

void mu_store_server_finish_turn(struct mu_store_server *s)
{
    do {
        mu_rdzv_hub_pump(&s->hub);
        mu_store_holds_pump(s);
        mu_ks_tell_owners(&s->ks);
        mu_store_commit_pump(s);
        mu_rpc_server_flush(&s->wire);
    } while (drop_heaviest(s));
    rearm(s);
    if (s->draining || s->stopping) {
        continue_drain(s);
        stop_if_empty(s);
    }
}

/* --- the timer -------------------------------------------------------------------------------- */

static void on_timer(struct mu_timer *timer)
{
    struct mu_store_server *s = MU_CONTAINER_OF(timer, struct mu_store_server, timer);

    mu_rpc_server_feel_pulse(&s->wire);
    mu_ks_tick(&s->ks, mu_env_now(s->env).mono);
    mu_holds_tick(&s->holds, mu_env_now(s->env).mono);
    mu_store_server_finish_turn(s);
}

void mu_store_server_log_peer(struct mu_store_server *s, const char *peer, const char *why)
{
    mu_mono_t now = mu_env_now(s->env).mono;

    s->stats.peers_dropped++;
    if (!mu_mono_before(now, s->log_period)) {
        if (s->log_suppressed != 0) {
            mu_log(MUSTER_LOG_WARN, "STORE-PEERS-DROPPED", "more=%" PRIu64, s->log_suppressed);
        }
        s->log_period = mu_mono_add_ms(now, 1000);
        s->log_lines = 0;
        s->log_suppressed = 0;
    }
    if (s->log_lines++ < PEER_LINES_PER_S) {
        mu_log(MUSTER_LOG_WARN, "STORE-PEER-DROPPED", "peer=%s why=\"%s\"", peer, why);
    } else {
        s->log_suppressed++;
    }
}

/* --- start ------------------------------------------------------------------------------------ */

static int load_record(void *context, uint8_t op, uint64_t number, struct mu_span key,
                       struct mu_span value)
{
    return mu_ks_load(context, op, number, key, value);
}

static int load_disk(struct mu_store_server *s, struct mu_errmsg *reterr_msg)
{
    struct mu_disk *disk = s->config.disk;
    uint64_t revision = 0;
    int err;

    if (disk == NULL) {
        return 0;
    }
    reterr_msg->text[0] = '\0';
    err = disk->ops->load(disk, load_record, &s->ks, &revision, reterr_msg);
    if (err == MUSTER_EFULL || err == MUSTER_ELIMIT || err == MUSTER_ENOMEM) {
        return mu_err(reterr_msg, err,
                      "the data directory holds more than the memory limit allows; "
                      "raise the limit and start again");
    }
    if (err == MUSTER_ECORRUPT && reterr_msg->text[0] == '\0') {
        return mu_err(reterr_msg, err,
                      "the data directory holds records that do not fit together; "
                      "restore it from a copy, or start with an empty one");
    }
    if (err == 0 && revision > s->ks.revision) {
        s->ks.revision = revision;
    }
    return err;
}

static int open_backing(struct mu_store_server *s, struct mu_errmsg *reterr_msg)
{
    struct mu_gateway_events events = {.turn_ended = on_backing_turn,
                                       .recalled = mu_store_lend_recalled,
                                       .lends = mu_store_holds_lends,
                                       .context = s};
    int err;

    if (s->config.backing == NULL) {
        return 0;
    }
    if (s->config.disk != NULL) {
        return mu_err(reterr_msg, MUSTER_EINVAL,
                      "a server has either a backing or a disk, not both");
    }
    err = mu_gateway_new(s->env, s->config.backing, &events, &s->backing, reterr_msg);
    s->config.backing = NULL; /* the pointer was the caller's */
    if (err == 0) {
        s->executor = mu_executor_backed();
        s->grants = s->config.holds && mu_gateway_hold(s->backing) != NULL &&
                    mu_gateway_hold(s->backing)->wanted;
    }
    return err;
}

static int listen_or_explain(struct mu_store_server *s, struct mu_errmsg *reterr_msg)
{
    int err = mu_rpc_server_listen(&s->wire, &s->listener, &s->config.listen);

    return err == 0 ? 0 : mu_listen_failed(s->env, &s->config.listen, err, reterr_msg);
}

static void on_drain_timeout(struct mu_timer *timer)
{
    struct mu_store_server *s = MU_CONTAINER_OF(timer, struct mu_store_server, drain_timer);

    mu_log(MUSTER_LOG_WARN, "STORE-DRAIN-TIMEOUT", "connections=%zu", s->wire.conn_count);
    close_all(s, true);
    mu_store_server_finish_turn(s);
}

static void free_memory(struct mu_store_server *s)
{
    if (!s->stopped) {
        mu_rdzv_hub_fini(&s->hub); /* it never began */
    }
    mu_store_commit_forget(s, NULL);
    mu_rpc_server_fini(&s->wire);
    mu_buf_fini(&s->scratch);
    mu_buf_fini(&s->commit_journal);
    mu_store_holds_fini(s);
    mu_ks_fini(&s->ks);
    mu_carry_env_free(s->carry);
    mu_free(s);
}

static void init_hub(struct mu_store_server *s, const struct mu_store_server_config *config)
{
    mu_rdzv_hub_init(&s->hub, &s->config.rdzv,
                     &(struct mu_rdzv_hub_base){.wire = &s->wire,
                                                .ks = &s->ks,
                                                .delete_prefix = mu_store_holds_delete,
                                                .context = s,
                                                .keys_outlive = config->disk != NULL,
                                                .keys_elsewhere = config->backing != NULL,
                                                .events = &s->events,
                                                .scratch = &s->scratch});
}

int mu_store_server_start(struct mu_env *env, const struct mu_store_server_config *config,
                          struct mu_store_server **ret_server, struct mu_errmsg *reterr_msg)
{
    struct mu_store_server *s = mu_calloc(1, sizeof(*s));
    int err;

    if (s == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    if (mu_carry_env_new(env, &s->carry) != 0) {
        mu_free(s);
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    env = s->env = mu_carry_env_env(s->carry);
    s->config = *config;
    if (config->fit) {
        mu_store_server_config_fit(&s->config, mu_env_memory(env));
    }
    s->config.keyspace.journal = config->disk != NULL;
    mu_env_entropy(env, &s->config.keyspace.seed, sizeof(s->config.keyspace.seed));
    s->config.rpc.seed = s->config.keyspace.seed;
    mu_rpc_server_init(&s->wire, env,
                       &(struct mu_rpc_server_config){.rpc = s->config.rpc,
                                                      .sessions_max = config->sessions_max,
                                                      .eof_grace_ms = config->eof_grace_ms},
                       &mu_store_wire_ops);
    mu_list_init(&s->stalled);
    mu_list_init(&s->in_turn);
    mu_list_init(&s->held_conns);
    mu_list_init(&s->held_replies);
    init_hub(s, config);
    mu_buf_init(&s->scratch, s->config.torch.output_bytes_max);
    mu_buf_init(&s->commit_journal, SIZE_MAX);
    mu_timer_init(&s->timer, on_timer);
    mu_timer_init(&s->drain_timer, on_drain_timeout);
    mu_timer_init(&s->turn_timer, mu_store_conn_turn);
    s->next_commit = MU_MONO_NEVER;
    s->commit_again = MU_MONO_NEVER;
    err = mu_ks_init(&s->ks, &s->config.keyspace);
    if (err != 0) {
        mu_carry_env_free(s->carry);
        mu_free(s);
        return mu_err(reterr_msg, err, "out of memory");
    }
    /* Leases of an earlier process must not be confused with ours; and the numbers stay positive in
     * a reply. */
    mu_env_entropy(env, &s->ks.lease_id, sizeof(s->ks.lease_id));
    s->ks.lease_id >>= 2;
    s->executor = mu_executor_local(&s->ks);
    mu_store_holds_init(s);
    err = load_disk(s, reterr_msg);
    if (err == 0) {
        err = open_backing(s, reterr_msg);
    }
    if (err == 0) {
        err = listen_or_explain(s, reterr_msg);
        if (err != 0 && s->backing != NULL) {
            mu_gateway_drop(s->backing);
        }
    }
    if (err != 0) {
        free_memory(s);
        return err;
    }
    *ret_server = s;
    return 0;
}

void *mu_store_server_context(const struct mu_store_server *s)
{
    return s->config.context;
}

int mu_store_server_listen(struct mu_store_server *s, struct mu_addr *addr,
                           struct mu_errmsg *reterr_msg)
{
    int err = s->more_count == MU_STORE_SERVER_MORE || s->draining || s->stopping
                  ? MUSTER_EEXIST
                  : mu_rpc_server_listen(&s->wire, &s->more[s->more_count], addr);

    s->more_count += err == 0 ? 1 : 0;
    return err == 0 ? 0 : mu_listen_failed(s->env, addr, err, reterr_msg);
}

struct mu_rdzv_hub *mu_store_server_hub(struct mu_store_server *s)
{
    return &s->hub;
}

const struct mu_addr *mu_store_server_addr(const struct mu_store_server *s)
{
    return &s->config.listen;
}

/* --- the end ---------------------------------------------------------------------------------- */

void mu_store_server_drain(struct mu_store_server *s)
{
    if (s->draining || s->stopping) {
        return;
    }
    s->draining = true;
    mu_log(MUSTER_LOG_INFO, "STORE-DRAINING", "connections=%zu", s->wire.conn_count);
    mu_rpc_server_unlisten(&s->wire);
    mu_rpc_server_drain(&s->wire, "the server is shutting down");
    if (s->commit_again.ns != MU_MONO_NEVER.ns) {
        s->commit_again = mu_env_now(s->env).mono; /* for the last time */
    }
    mu_env_timer_arm(s->env, &s->drain_timer,
                     mu_mono_add_ms(mu_env_now(s->env).mono, s->config.drain_ms));
    mu_store_server_finish_turn(s);
}

void mu_store_server_fail(struct mu_store_server *s, int status, const char *why)
{
    if (s->status != 0) {
        return;
    }
    s->status = mu_err(&s->why, status, "%s", why);
    s->draining = true;
    mu_rpc_server_unlisten(&s->wire);
    /* The held answers were not sent yet: the connections end without them. */
    mu_store_commit_forget(s, NULL);
    close_all(s, true);
}

void mu_store_server_free(struct mu_store_server *s)
{
    if (s != NULL) {
        MU_ASSERT(s->stopped);
        free_memory(s);
    }
}

void mu_store_server_stats(const struct mu_store_server *s, struct mu_store_server_stats *ret_stats)
{
    const struct mu_gateway_hold *hold = s->backing == NULL ? NULL : mu_gateway_hold(s->backing);
    uint64_t frames_in;
    uint64_t frames_out;

    *ret_stats = s->stats;
    mu_rpc_server_frames(&s->wire, &frames_in, &frames_out);
    ret_stats->messages_in += frames_in;
    ret_stats->messages_out += frames_out;
    ret_stats->connections = s->wire.conn_count;
    ret_stats->sessions = s->wire.sessions.count;
    ret_stats->keys = s->ks.key_count;
    ret_stats->memory_bytes = s->ks.memory_bytes;
    ret_stats->buffer_bytes = s->buffer_bytes;
    ret_stats->revision = s->ks.revision;
    ret_stats->waits = s->ks.wait_count;
    ret_stats->watches = s->ks.watch_count;
    ret_stats->holds = s->holds.holds;
    ret_stats->granted = s->holds.granted;
    ret_stats->recalls = s->holds.recalls;
    if (hold != NULL) {
        ret_stats->cached = hold->cache.count;
        ret_stats->cache_hits = hold->cache.hits;
        ret_stats->cache_misses = hold->cache.misses;
    }
    ret_stats->carried = mu_store_carrier_count(s);
    ret_stats->disk_full = s->disk_full ? 1 : 0;
    ret_stats->runs = s->hub.busy_count;
    ret_stats->members = s->hub.members;
    ret_stats->joins = s->hub.joins;
    ret_stats->rounds = s->hub.rounds;
    ret_stats->losses = s->hub.losses;
    ret_stats->restarts = s->hub.restarts;
    ret_stats->exclusions = s->hub.exclusions;
    ret_stats->excluded_joins = s->hub.refused;
    ret_stats->notices = s->hub.notices;
}
