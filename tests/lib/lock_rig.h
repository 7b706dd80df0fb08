/* Processes with a lock around their environment, among hosts with addresses, in the simulator. */
#ifndef MU_LOCK_RIG_H
#define MU_LOCK_RIG_H

#include "core/alloc.h"
#include "service/lock/env.h"
#include "sim.h"
#include "service/lock/tls_env.h"
#include "unit.h"

#define PORT     80
#define RANGE    "10.1.0.0/16"
#define SERVER   "10.0.0.1"
#define STRANGER "10.0.0.2"
#define ALLOWED  "10.1.0.2"
#define MY_TOKEN "the token of this test"
#define NOT_IT   "another token altogether"
#define PATIENCE (60 * MU_NS_PER_S)

/* A process with a lock around its environment, which dials, or echoes. */
struct node {
    struct mu_sim *sim;
    struct mu_sim_proc *proc;
    struct mu_env *env;
    struct mu_lock_env *lock;
    struct mu_tls_env *tls;
    struct mu_listener listener;
    struct mu_conn conn;
    struct mu_buf got;
    struct mu_errmsg why;
    enum mu_trust trust;
    size_t accepted;
    bool listening;
    bool open;
    bool live; /* between a dial or an accept and `closed` */
    bool echo;
    int status;
};

static inline struct node *node_of(struct mu_conn *conn)
{
    return MU_CONTAINER_OF(conn, struct node, conn);
}

static inline void on_open(struct mu_conn *conn)
{
    node_of(conn)->open = true;
}

static inline size_t on_data(struct mu_conn *conn, struct mu_span in)
{
    struct node *n = node_of(conn);
    size_t taken = 0;

    n->trust = mu_env_trust(n->env, conn);
    assert_int_equal(mu_buf_append(&n->got, in), 0);
    if (n->echo) {
        mu_env_send(n->env, conn, in, &taken);
        assert_int_equal(taken, in.len);
    }
    return in.len;
}

static inline void on_eof(struct mu_conn *conn)
{
    mu_env_close(node_of(conn)->env, conn, false);
}

static inline void on_writable(struct mu_conn *conn)
{
    (void)conn;
}

static inline void on_closed(struct mu_conn *conn, int status)
{
    struct node *n = node_of(conn);

    n->live = false;
    n->status = status;
    (void)mu_err(&n->why, 0, "%s", mu_env_why(n->env));
}

static const struct mu_conn_events events = {
    .open = on_open,
    .data = on_data,
    .eof = on_eof,
    .writable = on_writable,
    .closed = on_closed,
};

static inline struct mu_conn *on_accept(struct mu_listener *listener)
{
    struct node *n = MU_CONTAINER_OF(listener, struct node, listener);

    n->accepted++;
    if (n->live) {
        return NULL;
    }
    n->live = true;
    n->conn = (struct mu_conn){.on = &events};
    return &n->conn;
}

static inline void on_unlistened(struct mu_listener *listener)
{
    MU_CONTAINER_OF(listener, struct node, listener)->listening = false;
}

static inline int start(struct mu_env *env, void *arg)
{
    (void)env;
    (void)arg;
    return 0;
}

static inline void node_init(struct node *n, struct mu_sim *sim, const char *address,
                             const char *token, bool insecure, const char *range)
{
    struct mu_lock_policy policy = {.insecure = insecure};
    struct mu_cidr cidr;
    struct mu_errmsg why;

    *n = (struct node){.sim = sim};
    n->proc = mu_sim_proc_new(mu_sim_host_new(sim, address),
                              &(struct mu_sim_program){.name = "node", .start = start});
    assert_true(mu_sim_step(sim));
    if (range != NULL) {
        assert_int_equal(mu_cidr_parse(mu_span_str(range), &cidr, &why), 0);
        policy.allow = &cidr;
        policy.allow_count = 1;
    }
    assert_int_equal(mu_lock_env_new(mu_sim_proc_env(n->proc), &policy, &n->lock), 0);
    if (token != NULL) {
        struct mu_tls_config config = {.token = mu_span_str(token)};

        assert_int_equal(mu_tls_env_new(mu_lock_env_wire(n->lock), &config, &n->tls, &why), 0);
        mu_tls_env_on_refused(n->tls, mu_lock_env_refused, n->lock);
        mu_tls_env_on_shown(n->tls, mu_lock_env_shown, n->lock);
        mu_lock_env_seal(n->lock, mu_tls_env_env(n->tls));
    }
    n->env = mu_lock_env_env(n->lock);
    n->echo = false;
    mu_buf_init(&n->got, 1u << 20);
    assert_int_equal(mu_buf_reserve(&n->got, 4096), 0); /* For when there is no memory. */
    n->listener.accept = on_accept;
    n->listener.closed = on_unlistened;
}

static inline bool is_at_rest(void *arg)
{
    struct node *n = arg;

    return !n->live && !n->listening && mu_lock_env_idle(n->lock);
}

static inline void node_fini(struct node *n)
{
    if (n->live) {
        mu_env_close(n->env, &n->conn, true);
    }
    if (n->listening) {
        mu_env_unlisten(n->env, &n->listener);
    }
    assert_true(mu_sim_run_until(n->sim, PATIENCE, is_at_rest, n));
    mu_lock_env_free(n->lock);
    mu_tls_env_free(n->tls);
    mu_buf_fini(&n->got);
}

/* A server at SERVER, and one who dials it from elsewhere. */
struct world {
    struct mu_sim *sim;
    struct node server;
    struct node client;
};

static inline void world_init(struct world *w, const char *from, const char *server_token,
                              const char *client_token)
{
    struct mu_addr addr = {.kind = MU_ADDR_TCP, .port = PORT, .host = "0.0.0.0"};

    w->sim = mu_sim_new(&(struct mu_sim_config){.seed = 7, .faults = mu_sim_faults_none()});
    assert_non_null(w->sim);
    node_init(&w->server, w->sim, SERVER, server_token, false, RANGE);
    node_init(&w->client, w->sim, from, client_token, false, NULL);
    w->server.echo = true;
    assert_int_equal(mu_env_listen(w->server.env, &w->server.listener, &addr), 0);
    w->server.listening = true;
}

static inline void world_fini(struct world *w)
{
    node_fini(&w->client);
    node_fini(&w->server);
    mu_sim_free(w->sim);
}

static inline struct mu_addr server_addr(void)
{
    return (struct mu_addr){.kind = MU_ADDR_TCP, .port = PORT, .host = SERVER};
}

static inline bool is_settled(void *arg)
{
    struct node *n = arg;

    return n->open || !n->live;
}

static inline bool is_over(void *arg)
{
    struct node *n = arg;

    return !n->live || n->got.len != 0;
}

/* Dials and says `text`; what comes back, or the end, is in the node. */
static inline void say_from(struct node *n, const char *text)
{
    struct mu_addr addr = server_addr();
    size_t taken = 0;

    n->conn = (struct mu_conn){.on = &events};
    n->live = true;
    n->open = false;
    assert_int_equal(mu_env_dial(n->env, &n->conn, &addr), 0);
    assert_true(mu_sim_run_until(n->sim, PATIENCE, is_settled, n));
    if (n->open) {
        mu_env_send(n->env, &n->conn, mu_span_str(text), &taken);
        assert_int_equal(taken, strlen(text));
        assert_true(mu_sim_run_until(n->sim, PATIENCE, is_over, n));
    }
}

static inline void say(struct world *w, const char *text)
{
    say_from(&w->client, text);
}

#endif
