/*
 * A server and nodes of native rendezvous in the simulator. A node is one process with one session,
 * made of the bare machine of the wire, so that a test can have it do what no client of ours does.
 * What a node is told becomes text, one line for each message, and the time of each.
 *
 *     struct hub_world *w = hub_world_new(NULL);
 *     struct hub_node *a = hub_node_new(w, "a");
 *     hub_join(a, &(struct mu_rdzv_join){...});         run() lets things happen
 *     hub_run_ms(w, 100);
 *     assert_string_equal(a->told, "entered gathering\nassigned 0 0/2\n");
 *     hub_world_free(w);
 */
#ifndef MU_HUB_RIG_H
#define MU_HUB_RIG_H

#include "unit.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <muster/error.h>
#include <muster/log.h>

#include "codec/rdzv/msg.h"
#include "core/alloc.h"
#include "proto/rdzv/room.h"
#include "proto/rpc/rpc.h"
#include "service/server/server.h"
#include "sim.h"

#define HUB_PORT       29400
#define HUB_NODES_MAX  130
#define HUB_TOLD_MAX   4096
#define HUB_DEFAULT_MS 1000

struct hub_world {
    struct mu_sim *sim;
    struct mu_sim_proc *proc;
    struct mu_sim_host *host;
    struct mu_store_server_config config;
    struct mu_store_server *server; /* while it lives */
    struct mu_sim_heap *heap;       /* who pays for what the server has */
    bool disk;
    struct hub_node *nodes[HUB_NODES_MAX];
    size_t node_count;
};

struct hub_node {
    struct hub_world *world;
    char name[32];
    struct mu_sim_host *host;
    struct mu_sim_proc *proc;
    struct mu_rpc_config config;
    /* The process's, as long as it lives. */
    struct mu_env *env;
    struct mu_rpc rpc;
    struct mu_conn conn;
    struct mu_timer timer;
    bool dialled; /* the connection is there, or on its way */
    bool open;
    bool blocked;
    bool deaf;    /* it reads nothing */
    bool miserly; /* it grants no credit */
    bool gone;    /* it makes no connection any more */
    bool several; /* it has more than one membership */
    bool rejoins; /* it joins again after an error that says nothing about the run */
    uint64_t unconsumed;
    uint64_t call; /* its join; 0: none */
    uint64_t ask;  /* its status or close */
    struct mu_rdzv_join join;
    enum mu_rdzv_say word; /* to be said */
    /* What it knows. */
    char told[HUB_TOLD_MAX];
    size_t told_len;
    uint64_t told_ns; /* when it was last told anything */
    uint64_t incarnation;
    uint64_t round;
    uint32_t rank;
    uint32_t world_size; /* 0: it has no rank */
    bool replied;
    int status;
    char why[MU_RPC_MESSAGE_MAX + 1];
    int ask_status;
    bool ask_replied;
    uint8_t answer[8192];
    size_t answer_len;
    char members[4096]; /* of the last assignment */
};

/* --- what it is told -------------------------------------------------------------------------- */

static inline void hub_note(struct hub_node *n, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static inline void hub_note(struct hub_node *n, const char *format, ...)
{
    va_list args;
    int len;

    va_start(args, format);
    len = vsnprintf(n->told + n->told_len, HUB_TOLD_MAX - n->told_len, format, args);
    va_end(args);
    assert_true(len >= 0 && (size_t)len < HUB_TOLD_MAX - n->told_len);
    n->told_len += (size_t)len;
    n->told_ns = mu_sim_now_ns(n->world->sim);
}

static inline void hub_forget(struct hub_node *n)
{
    n->told[0] = '\0';
    n->told_len = 0;
    n->replied = false;
}

static inline void hub_note_members(struct hub_node *n, struct mu_span members)
{
    struct mu_rdzv_member_msg m;
    size_t len = 0;

    n->members[0] = '\0';
    while (mu_rdzv_member_next(&members, &m) == 0) {
        len += (size_t)snprintf(n->members + len, sizeof(n->members) - len, "%s%.*s@%.*s",
                                len == 0 ? "" : " ", (int)m.node.len, (const char *)m.node.data,
                                (int)m.addr.len, (const char *)m.addr.data);
    }
}

static inline void hub_on_notice(struct hub_node *n, struct mu_span payload)
{
    static const char *const places[] = {"", "gathering", "running", "waiting", "spare"};
    static const char *const reasons[] = {"", "lost", "left", "upscale", "failed"};
    struct mu_rdzv_notice msg;

    assert_int_equal(mu_rdzv_notice_decode(payload, &msg), 0);
    n->incarnation = msg.incarnation;
    switch (msg.kind) {
    case MU_RDZV_NOTICE_ENTERED:
        hub_note(n, "entered %s\n", places[msg.place]);
        break;
    case MU_RDZV_NOTICE_ASSIGNED:
        assert_true(n->world_size == 0 || n->several);
        n->round = msg.round;
        n->rank = msg.rank;
        n->world_size = msg.world;
        hub_note_members(n, msg.members);
        hub_note(n, "assigned %" PRIu64 " %" PRIu32 "/%" PRIu32 "\n", msg.round, msg.rank,
                 msg.world);
        break;
    case MU_RDZV_NOTICE_ENDED:
        assert_int_equal(msg.round, n->round);
        assert_int_not_equal(n->world_size, 0);
        n->world_size = 0;
        hub_note(n, "ended %" PRIu64 " %s %.*s\n", msg.round, reasons[msg.reason], (int)msg.who.len,
                 (const char *)msg.who.data);
        break;
    case MU_RDZV_NOTICE_WAITERS:
        hub_note(n, "waiters %" PRIu32 "\n", msg.waiters);
        break;
    case MU_RDZV_NOTICE_PREPARE:
        hub_note(n, "prepare %" PRIu64 " %" PRIu32 "/%" PRIu32 "\n", msg.round, msg.rank,
                 msg.world);
        break;
    case MU_RDZV_NOTICE_MOVED:
        hub_note(n, "moved %" PRIu64 "\n", msg.term);
        break;
    }
}

static inline void hub_send_join(struct hub_node *n);

static inline void hub_on_reply(struct hub_node *n, const struct mu_rpc_event *ev)
{
    if (ev->id == n->ask) {
        n->ask = 0;
        n->ask_replied = true;
        n->ask_status = ev->status;
        assert_true(ev->payload.len <= sizeof(n->answer));
        memcpy(n->answer, ev->payload.data, ev->payload.len);
        n->answer_len = ev->payload.len;
        return;
    }
    n->world_size = 0;
    if (ev->id != n->call) { /* it joined twice */
        hub_note(n, "reply %s to the old one\n", muster_errname(ev->status));
        return;
    }
    n->call = 0;
    if (n->rejoins && (ev->status == MUSTER_ENOMEM || ev->status == MUSTER_ESESSION)) {
        hub_send_join(n);
        return;
    }
    n->replied = true;
    n->status = ev->status;
    (void)snprintf(n->why, sizeof(n->why), "%.*s", (int)ev->payload.len,
                   (const char *)ev->payload.data);
    hub_note(n, "reply %s\n", ev->status == 0 ? "0" : muster_errname(ev->status));
}

/* --- the wire --------------------------------------------------------------------------------- */

static inline void hub_dial(struct hub_node *n);

static inline void hub_drop(struct hub_node *n, bool abort)
{
    if (n->open) {
        n->open = false;
        mu_rpc_unlinked(&n->rpc, mu_env_now(n->env));
        mu_env_close(n->env, &n->conn, abort);
    }
}

static inline void hub_events(struct hub_node *n)
{
    struct mu_rpc_event ev;

    while (mu_rpc_next_event(&n->rpc, &ev)) {
        switch (ev.type) {
        case MU_RPC_EV_ITEM:
            hub_on_notice(n, ev.payload);
            if (n->miserly) {
                n->unconsumed += ev.payload.len;
            } else {
                (void)mu_rpc_consumed(&n->rpc, mu_env_now(n->env), ev.id, ev.payload.len);
            }
            break;
        case MU_RPC_EV_REPLY:
            hub_on_reply(n, &ev);
            break;
        case MU_RPC_EV_LINK_DEAD:
            hub_drop(n, true);
            break;
        case MU_RPC_EV_REFUSED:
            fail_msg("%s was refused: %.*s", n->name, (int)ev.payload.len,
                     (const char *)ev.payload.data);
            break;
        case MU_RPC_EV_WELCOMED:
        case MU_RPC_EV_CALL:
        case MU_RPC_EV_END:
        case MU_RPC_EV_CANCEL:
        case MU_RPC_EV_CREDIT:
        case MU_RPC_EV_DRAIN:
        case MU_RPC_EV_BYE:
            break;
        }
    }
}

static inline void hub_pump(struct hub_node *n)
{
    hub_events(n);
    while (n->open && !n->blocked) {
        struct mu_span out = mu_rpc_output(&n->rpc);
        size_t taken = 0;

        if (out.len == 0) {
            break;
        }
        mu_env_send(n->env, &n->conn, out, &taken);
        n->blocked = taken < out.len;
        mu_rpc_sent(&n->rpc, taken);
    }
    mu_env_timer_arm(n->env, &n->timer,
                     n->dialled || n->gone
                         ? mu_rpc_deadline(&n->rpc)
                         : mu_mono_add_ms(mu_env_now(n->env).mono, 10)); /* to dial again */
}

static inline void hub_on_open(struct mu_conn *conn)
{
    struct hub_node *n = MU_CONTAINER_OF(conn, struct hub_node, conn);

    n->open = true;
    n->blocked = false;
    assert_int_equal(mu_rpc_dialled(&n->rpc, mu_env_now(n->env)), 0);
    hub_pump(n);
}

static inline size_t hub_on_data(struct mu_conn *conn, struct mu_span in)
{
    struct hub_node *n = MU_CONTAINER_OF(conn, struct hub_node, conn);
    size_t done = 0;

    if (n->deaf) {
        return 0;
    }
    while (done < in.len && n->open) {
        size_t used = 0;
        int err = mu_rpc_recv(&n->rpc, mu_env_now(n->env), mu_span_skip(in, done), &used);

        assert_int_equal(err, 0);
        done += used;
        hub_events(n);
    }
    hub_pump(n);
    return in.len;
}

static inline void hub_on_eof(struct mu_conn *conn)
{
    struct hub_node *n = MU_CONTAINER_OF(conn, struct hub_node, conn);

    hub_drop(n, true);
    hub_pump(n);
}

static inline void hub_on_writable(struct mu_conn *conn)
{
    struct hub_node *n = MU_CONTAINER_OF(conn, struct hub_node, conn);

    n->blocked = false;
    hub_pump(n);
}

static inline void hub_on_closed(struct mu_conn *conn, int status)
{
    struct hub_node *n = MU_CONTAINER_OF(conn, struct hub_node, conn);

    (void)status;
    if (n->open) {
        n->open = false;
        mu_rpc_unlinked(&n->rpc, mu_env_now(n->env));
    }
    n->dialled = false;
    hub_pump(n);
}

static const struct mu_conn_events hub_conn_events = {
    .open = hub_on_open,
    .data = hub_on_data,
    .eof = hub_on_eof,
    .writable = hub_on_writable,
    .closed = hub_on_closed,
};

static inline void hub_dial(struct hub_node *n)
{
    struct mu_addr addr = {.kind = MU_ADDR_TCP, .port = HUB_PORT, .host = "server"};

    n->conn.on = &hub_conn_events;
    n->dialled = mu_env_dial(n->env, &n->conn, &addr) == 0;
}

static inline void hub_on_timer(struct mu_timer *timer)
{
    struct hub_node *n = MU_CONTAINER_OF(timer, struct hub_node, timer);

    (void)mu_rpc_tick(&n->rpc, mu_env_now(n->env));
    if (!n->dialled && !n->gone) {
        hub_dial(n);
    }
    hub_pump(n);
}

/* --- nodes ------------------------------------------------------------------------------------ */

static inline int hub_start_node(struct mu_env *env, void *arg)
{
    struct hub_node *n = arg;

    n->env = env;
    n->dialled = n->open = n->blocked = false;
    n->call = n->ask = 0;
    n->world_size = 0;
    mu_env_entropy(env, n->config.session, sizeof(n->config.session));
    mu_env_entropy(env, &n->config.seed, sizeof(n->config.seed));
    assert_int_equal(mu_rpc_init(&n->rpc, &n->config), 0);
    mu_timer_init(&n->timer, hub_on_timer);
    hub_dial(n);
    hub_pump(n);
    return 0;
}

/* A node with its connection on its way. */
static inline struct hub_node *hub_node_new(struct hub_world *w, const char *name)
{
    struct hub_node *n = calloc(1, sizeof(*n));

    assert_non_null(n);
    assert_true(w->node_count < HUB_NODES_MAX);
    w->nodes[w->node_count++] = n;
    n->world = w;
    (void)snprintf(n->name, sizeof(n->name), "%s", name);
    n->config = mu_rpc_config_defaults();
    n->config.role = MU_RPC_CLIENT;
    n->config.beat_ms = 1000;
    n->config.dead_ms = 3000;
    n->config.grace_ms = 2000;
    /* Two processes may be nodes of the same name, on hosts of their own. */
    n->host = mu_sim_host_find(w->sim, name);
    if (n->host == NULL) {
        n->host = mu_sim_host_new(w->sim, name);
    }
    n->proc = mu_sim_proc_new(
        n->host, &(struct mu_sim_program){.name = n->name, .start = hub_start_node, .arg = n});
    mu_sim_run_for(w->sim, 5 * MU_NS_PER_MS);
    return n;
}

/* The join of a node that has no wishes of its own. */
static inline struct mu_rdzv_join hub_join_of(uint32_t min, uint32_t max)
{
    return (struct mu_rdzv_join){
        .run_id = MU_SPAN_LIT("run"),
        .nodes_min = min,
        .nodes_max = max,
        .restarts_max = UINT32_MAX,
        .last_call_ms = HUB_DEFAULT_MS,
        .upscale_delay_ms = HUB_DEFAULT_MS,
    };
}

static inline void hub_send_join(struct hub_node *n)
{
    struct mu_buf out;

    if (n->join.node.len == 0) {
        n->join.node = mu_span_str(n->name);
    }
    mu_buf_init(&out, 4096);
    assert_int_equal(mu_rdzv_join_encode(&out, &n->join), 0);
    assert_int_equal(mu_rpc_call(&n->rpc, mu_env_now(n->env), MU_SPAN_LIT(MU_RDZV_METHOD_JOIN),
                                 mu_buf_span(&out), 0, 0, &n->call),
                     0);
    mu_buf_fini(&out);
}

static inline void hub_join_inside(void *arg)
{
    hub_send_join(arg);
    hub_pump(arg);
}

static inline void hub_join(struct hub_node *n, struct mu_rdzv_join join)
{
    n->join = join;
    mu_sim_call(n->proc, hub_join_inside, n);
}

static inline void hub_leave_inside(void *arg)
{
    struct hub_node *n = arg;

    assert_int_equal(mu_rpc_end(&n->rpc, mu_env_now(n->env), n->call), 0);
    hub_pump(n);
}

static inline void hub_leave(struct hub_node *n)
{
    mu_sim_call(n->proc, hub_leave_inside, n);
}

static inline void hub_say_inside(void *arg)
{
    struct hub_node *n = arg;
    struct mu_buf out;

    mu_buf_init(&out, 64);
    assert_int_equal(mu_rdzv_say_encode(&out, n->word, n->round), 0);
    assert_int_equal(mu_rpc_item(&n->rpc, mu_env_now(n->env), n->call, mu_buf_span(&out)), 0);
    mu_buf_fini(&out);
    hub_pump(n);
}

/* Its workers failed. */
static inline void hub_fail(struct hub_node *n)
{
    n->word = MU_RDZV_SAY_FAILED;
    mu_sim_call(n->proc, hub_say_inside, n);
}

/* It has stopped them. */
static inline void hub_stop(struct hub_node *n)
{
    n->word = MU_RDZV_SAY_STOPPED;
    mu_sim_call(n->proc, hub_say_inside, n);
}

static inline void hub_bye_inside(void *arg)
{
    struct hub_node *n = arg;

    n->gone = true;
    assert_int_equal(mu_rpc_close(&n->rpc, mu_env_now(n->env)), 0);
    hub_pump(n);
}

static inline void hub_bye(struct hub_node *n)
{
    mu_sim_call(n->proc, hub_bye_inside, n);
}

/* Grants what was held back. */
static inline void hub_relent_inside(void *arg)
{
    struct hub_node *n = arg;

    n->miserly = false;
    (void)mu_rpc_consumed(&n->rpc, mu_env_now(n->env), n->call, n->unconsumed);
    n->unconsumed = 0;
    hub_pump(n);
}

static inline void hub_relent(struct hub_node *n)
{
    mu_sim_call(n->proc, hub_relent_inside, n);
}

struct hub_question {
    struct hub_node *node;
    const char *method;
    const char *run_id;
    const struct mu_rdzv_exclude_msg *exclude; /* instead of the run's id; or NULL */
};

static inline void hub_ask_inside(void *arg)
{
    struct hub_question *q = arg;
    struct hub_node *n = q->node;
    struct mu_buf out;

    n->ask_replied = false;
    mu_buf_init(&out, 512);
    if (q->exclude != NULL) {
        assert_int_equal(mu_rdzv_exclude_encode(&out, q->exclude), 0);
    } else {
        assert_int_equal(mu_rdzv_run_id_encode(&out, mu_span_str(q->run_id)), 0);
    }
    assert_int_equal(mu_rpc_call(&n->rpc, mu_env_now(n->env), mu_span_str(q->method),
                                 mu_buf_span(&out), 0, 0, &n->ask),
                     0);
    mu_buf_fini(&out);
    hub_pump(n);
}

static inline int hub_ask_this(struct hub_question q)
{
    mu_sim_call(q.node->proc, hub_ask_inside, &q);
    mu_sim_run_for(q.node->world->sim, 10 * MU_NS_PER_MS);
    assert_true(q.node->ask_replied);
    return q.node->ask_status;
}

/* Asks, and waits for the answer, which is in n->answer; its status. */
static inline int hub_ask(struct hub_node *n, const char *method, const char *run_id)
{
    return hub_ask_this((struct hub_question){n, method, run_id, NULL});
}

/* Excludes a node from the run; for_ms 0: includes it. */
static inline int hub_exclude(struct hub_node *n, const char *who, uint64_t for_ms)
{
    const struct mu_rdzv_exclude_msg exclude = {.run_id = MU_SPAN_LIT("run"),
                                                .who = mu_span_str(who),
                                                .reason = MU_SPAN_LIT("loud"),
                                                .for_ms = for_ms};

    return hub_ask_this((struct hub_question){n, MU_RDZV_METHOD_EXCLUDE, "run", &exclude});
}

/* --- the world -------------------------------------------------------------------------------- */

static inline void hub_server_stopped(void *context, int status, const char *why)
{
    (void)context;
    (void)status;
    (void)why;
}

static inline int hub_start_server(struct mu_env *env, void *arg)
{
    struct hub_world *w = arg;
    struct mu_store_server_config config = w->config;
    struct mu_errmsg msg;
    int err;

    w->heap = mu_sim_outside();
    mu_sim_inside(w->heap);
    config.listen = (struct mu_addr){.kind = MU_ADDR_TCP, .port = HUB_PORT, .host = "0.0.0.0"};
    config.stopped = hub_server_stopped;
    if (w->disk) {
        err = mu_sim_disk_open(env, "d", &config.disk, &msg);
        if (err != 0) {
            return err;
        }
    }
    return mu_store_server_start(env, &config, &w->server, &msg);
}

static inline void hub_server_killed(void *arg)
{
    ((struct hub_world *)arg)->server = NULL;
}

/* `faults` NULL: none. */
static inline struct hub_world *hub_world_with(const struct mu_store_server_config *config,
                                               const struct mu_sim_faults *faults, bool disk)
{
    struct hub_world *w = calloc(1, sizeof(*w));
    struct mu_sim_config sim = {.seed = 11,
                                .faults = faults != NULL ? *faults : mu_sim_faults_none()};

    assert_non_null(w);
    muster_log_set(NULL, NULL, MUSTER_LOG_ERROR);
    w->config = config != NULL ? *config : mu_store_server_config_defaults();
    w->disk = disk;
    w->sim = mu_sim_new(&sim);
    assert_non_null(w->sim);
    w->host = mu_sim_host_new(w->sim, "server");
    w->proc = mu_sim_proc_new(w->host, &(struct mu_sim_program){.name = "server",
                                                                .start = hub_start_server,
                                                                .killed = hub_server_killed,
                                                                .arg = w});
    mu_sim_run_for(w->sim, 5 * MU_NS_PER_MS);
    return w;
}

static inline struct hub_world *hub_world_new(const struct mu_store_server_config *config)
{
    return hub_world_with(config, NULL, false);
}

static inline void hub_world_free(struct hub_world *w)
{
    if (mu_sim_failure(w->sim) != NULL) {
        fail_msg("%s", mu_sim_failure(w->sim));
    }
    mu_sim_free(w->sim);
    for (size_t i = 0; i < w->node_count; i++) {
        free(w->nodes[i]);
    }
    free(w);
}

static inline void hub_run_ms(struct hub_world *w, uint64_t ms)
{
    mu_sim_run_for(w->sim, ms * MU_NS_PER_MS);
}

static inline uint64_t hub_now_ms(const struct hub_world *w)
{
    return mu_sim_now_ns(w->sim) / MU_NS_PER_MS;
}

/* Milliseconds from then to when the node was last told anything. */
static inline uint64_t hub_told_after_ms(const struct hub_node *n, uint64_t since_ns)
{
    assert_true(n->told_ns >= since_ns);
    return (n->told_ns - since_ns) / MU_NS_PER_MS;
}

#endif
