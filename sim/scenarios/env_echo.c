/*
 * Scenario: the environment itself. Clients send a stream of known bytes to a server, which checks
 * and echoes them; the clients check what comes back. Within a connection every byte must come
 * exactly once and in order; every connection, accepted or dialled, must get exactly one `closed`
 * and no callback after it; every piece of work must be done once. When all faults have ended, each
 * client must complete another exchange, and all processes must be able to end without leaving
 * anything behind.
 *
 * A stream is its 8-byte key and then bytes that follow from the key.
 */
#include "scenarios/scenarios.h"

#include <inttypes.h>
#include <string.h>

#include "checkers/once.h"
#include "core/alloc.h"
#include "core/assert.h"
#include "core/buf.h"

#define CLIENTS       3
#define PORT          7000
#define ROOM          700 /* bytes the server buffers for one connection */
#define STREAM_MAX    6000
#define FAULTY_NS     (10 * MU_NS_PER_S)
#define CONVERGE_NS   (120 * MU_NS_PER_S)
#define SERVER_NUMBER 99

struct client_state {
    struct world *world;
    uint32_t number;
    uint32_t exchanges; /* completed */
    struct mu_sim_proc *proc;
};

/* What outlives the processes. */
struct world {
    struct mu_sim *sim;
    struct once *conns;
    struct once *works;
    struct client_state clients[CLIENTS];
    struct mu_sim_proc *server;
    uint32_t exchanges_wanted[CLIENTS];
    bool leaving;
};

static uint8_t stream_byte(uint64_t key, uint64_t offset)
{
    if (offset < 8) {
        return (uint8_t)(key >> (8 * offset));
    }
    return (uint8_t)((key + offset * UINT64_C(0x9e3779b97f4a7c15)) >> 40);
}

/* One direction of one connection, as it is read. */
struct stream_check {
    uint64_t key;
    uint64_t offset;
};

static void check_bytes(struct world *w, struct stream_check *c, struct mu_span in, const char *who)
{
    for (size_t i = 0; i < in.len; i++, c->offset++) {
        if (c->offset < 8 && strcmp(who, "server") == 0) {
            c->key |= (uint64_t)in.data[i] << (8 * c->offset);
        } else if (in.data[i] != stream_byte(c->key, c->offset)) {
            mu_sim_fail(w->sim, "%s: byte %" PRIu64 " of stream %016" PRIx64 " is wrong", who,
                        c->offset, c->key);
            return;
        }
    }
}

/* --- the server ------------------------------------------------------------------------------- */

struct server {
    struct world *world;
    struct mu_env *env;
    struct mu_listener listener;
    struct mu_timer poll; /* checks whether it is time to leave */
    struct mu_list served;
    size_t conns;
    size_t works;
    bool leaving;
    bool listening;
};

struct served {
    struct mu_conn conn;
    struct mu_list link; /* of server->served */
    struct mu_work work; /* stands for work that must be done before the first answer */
    struct server *server;
    struct stream_check check;
    struct mu_buf out;
    uint64_t ticket;
    uint64_t work_ticket;
    bool worked;
    bool working;
    bool eof;
    bool closed;
    bool blocked; /* `data` used less than it was given */
};

static void leave_if_idle(struct server *s)
{
    if (s->leaving && !s->listening && s->conns == 0 && s->works == 0) {
        struct mu_env *env = s->env;

        mu_env_timer_arm(env, &s->poll, MU_MONO_NEVER);
        mu_free(s);
        mu_sim_exit(env);
    }
}

static void free_served(struct served *c)
{
    struct server *s = c->server;

    if (c->closed && !c->working) {
        mu_buf_fini(&c->out);
        mu_list_remove(&c->link);
        mu_free(c);
        s->conns--;
        leave_if_idle(s);
    }
}

static void flush_served(struct served *c)
{
    size_t taken;

    if (c->closed || !c->worked) {
        return;
    }
    if (c->out.len != 0) {
        mu_env_send(c->conn.env, &c->conn, mu_buf_span(&c->out), &taken);
        mu_buf_consume(&c->out, taken);
    }
    if (c->blocked && c->out.len < ROOM) {
        c->blocked = false;
        mu_env_resume(c->conn.env, &c->conn);
    }
    if (c->eof && c->out.len == 0) {
        mu_env_close(c->conn.env, &c->conn, false);
    }
}

static void run_work(struct mu_work *work)
{
    (void)work;
}

static void work_done(struct mu_work *work)
{
    struct served *c = MU_CONTAINER_OF(work, struct served, work);

    once_end(c->server->world->works, c->work_ticket);
    c->server->works--;
    c->working = false;
    c->worked = true;
    flush_served(c);
    free_served(c);
}

static size_t served_data(struct mu_conn *conn, struct mu_span in)
{
    struct served *c = MU_CONTAINER_OF(conn, struct served, conn);
    size_t room = ROOM - c->out.len;
    size_t used = in.len < room ? in.len : room;

    if (c->eof || c->closed) {
        mu_sim_fail(c->server->world->sim, "server: bytes after the end");
    }
    check_bytes(c->server->world, &c->check, mu_span(in.data, used), "server");
    MU_ASSERT(mu_buf_append(&c->out, mu_span(in.data, used)) == 0);
    c->blocked = used < in.len;
    if (!c->worked && !c->working) {
        c->working = true;
        c->server->works++;
        c->work = (struct mu_work){.run = run_work, .done = work_done};
        c->work_ticket = once_begin(c->server->world->works, SERVER_NUMBER);
        MU_ASSERT(mu_env_work(conn->env, &c->work) == 0);
    }
    flush_served(c);
    return used;
}

static void served_eof(struct mu_conn *conn)
{
    struct served *c = MU_CONTAINER_OF(conn, struct served, conn);

    if (c->eof || c->closed) {
        mu_sim_fail(c->server->world->sim, "server: a second end of stream");
    }
    c->eof = true;
    if (!c->working) {
        c->worked = true;
    }
    flush_served(c);
}

static void served_writable(struct mu_conn *conn)
{
    flush_served(MU_CONTAINER_OF(conn, struct served, conn));
}

static void served_closed(struct mu_conn *conn, int status)
{
    struct served *c = MU_CONTAINER_OF(conn, struct served, conn);

    (void)status;
    once_end(c->server->world->conns, c->ticket);
    c->closed = true;
    free_served(c);
}

static const struct mu_conn_events served_events = {
    .data = served_data,
    .eof = served_eof,
    .writable = served_writable,
    .closed = served_closed,
};

static struct mu_conn *server_accept(struct mu_listener *listener)
{
    struct server *s = MU_CONTAINER_OF(listener, struct server, listener);
    struct served *c = mu_calloc(1, sizeof(*c));

    MU_ASSERT(c != NULL);
    c->conn.on = &served_events;
    c->server = s;
    mu_buf_init(&c->out, ROOM);
    c->ticket = once_begin(s->world->conns, SERVER_NUMBER);
    mu_list_push(&s->served, &c->link);
    s->conns++;
    return &c->conn;
}

static void server_unlistened(struct mu_listener *listener)
{
    struct server *s = MU_CONTAINER_OF(listener, struct server, listener);

    s->listening = false;
    leave_if_idle(s);
}

static void server_poll(struct mu_timer *timer)
{
    struct server *s = MU_CONTAINER_OF(timer, struct server, poll);

    if (s->world->leaving && !s->leaving) {
        s->leaving = true;
        mu_env_unlisten(s->env, &s->listener);
        /* The other end may have lost power in silence: these would stay for ever. */
        MU_LIST_FOREACH (node, &s->served) {
            struct served *c = MU_CONTAINER_OF(node, struct served, link);

            if (!c->closed) {
                mu_env_close(s->env, &c->conn, true);
            }
        }
        return;
    }
    mu_env_timer_arm(s->env, timer, mu_mono_add_ms(mu_env_now(s->env).mono, 200));
}

static int start_server(struct mu_env *env, void *arg)
{
    struct server *s = mu_calloc(1, sizeof(*s));
    struct mu_addr addr = {.kind = MU_ADDR_TCP, .port = PORT, .host = "0.0.0.0"};

    MU_ASSERT(s != NULL);
    s->world = arg;
    s->env = env;
    s->listening = true;
    mu_list_init(&s->served);
    s->listener.accept = server_accept;
    s->listener.closed = server_unlistened;
    mu_timer_init(&s->poll, server_poll);
    server_poll(&s->poll);
    return mu_env_listen(env, &s->listener, &addr);
}

static void server_killed(void *arg)
{
    struct world *w = arg;

    once_forgive(w->conns, SERVER_NUMBER);
    once_forgive(w->works, SERVER_NUMBER);
}

/* --- a client --------------------------------------------------------------------------------- */

struct client {
    struct client_state *state;
    struct mu_env *env;
    struct mu_timer again;
    struct mu_timer patience; /* a half-open connection is silent: one side must give up */
    struct mu_conn conn;
    uint64_t ticket;
    uint64_t length; /* of this exchange's stream */
    uint64_t sent;
    struct stream_check check;
    bool up;
    bool connected;
    bool closing;
};

static void client_push(struct client *c)
{
    while (!c->closing && c->sent < c->length) {
        uint8_t piece[512];
        size_t n = 0;
        size_t taken;

        while (n < sizeof(piece) && c->sent + n < c->length) {
            piece[n] = stream_byte(c->check.key, c->sent + n);
            n++;
        }
        mu_env_send(c->env, &c->conn, mu_span(piece, n), &taken);
        c->sent += taken;
        if (taken < n) {
            return;
        }
    }
}

static void client_open(struct mu_conn *conn)
{
    struct client *c = MU_CONTAINER_OF(conn, struct client, conn);

    if (c->connected) {
        mu_sim_fail(c->state->world->sim, "client %" PRIu32 ": opened twice", c->state->number);
    }
    c->connected = true;
    client_push(c);
}

static size_t client_data(struct mu_conn *conn, struct mu_span in)
{
    struct client *c = MU_CONTAINER_OF(conn, struct client, conn);

    if (!c->connected || c->closing || !c->up) {
        mu_sim_fail(c->state->world->sim, "client %" PRIu32 ": bytes before open or after close",
                    c->state->number);
    }
    check_bytes(c->state->world, &c->check, in, "client");
    mu_env_timer_arm(c->env, &c->patience, mu_mono_add_ms(mu_env_now(c->env).mono, 8000));
    if (c->check.offset == c->length) {
        c->state->exchanges++;
        c->closing = true;
        mu_env_close(c->env, &c->conn, (c->check.key & 1) != 0);
    }
    return in.len;
}

static void client_eof(struct mu_conn *conn)
{
    struct client *c = MU_CONTAINER_OF(conn, struct client, conn);

    c->closing = true;
    mu_env_close(c->env, &c->conn, false);
}

static void client_writable(struct mu_conn *conn)
{
    client_push(MU_CONTAINER_OF(conn, struct client, conn));
}

static void client_closed(struct mu_conn *conn, int status)
{
    struct client *c = MU_CONTAINER_OF(conn, struct client, conn);
    struct world *w = c->state->world;

    once_end(w->conns, c->ticket);
    if (status == 0 && !c->closing) {
        mu_sim_fail(w->sim, "client %" PRIu32 ": closed without a reason", c->state->number);
    }
    c->up = false;
    mu_env_timer_arm(c->env, &c->patience, MU_MONO_NEVER);
    mu_env_timer_arm(c->env, &c->again, mu_mono_add_ms(mu_env_now(c->env).mono, 50));
}

static const struct mu_conn_events client_events = {
    .open = client_open,
    .data = client_data,
    .eof = client_eof,
    .writable = client_writable,
    .closed = client_closed,
};

static void client_impatient(struct mu_timer *timer)
{
    struct client *c = MU_CONTAINER_OF(timer, struct client, patience);

    c->closing = true;
    mu_env_close(c->env, &c->conn, true);
    mu_env_close(c->env, &c->conn, true); /* A second close must be harmless. */
}

static void client_again(struct mu_timer *timer)
{
    struct client *c = MU_CONTAINER_OF(timer, struct client, again);
    struct mu_env *env = c->env;
    struct mu_addr addr = {.kind = MU_ADDR_TCP, .port = PORT, .host = "server"};
    uint64_t draw[2];

    if (c->state->world->leaving) {
        mu_free(c);
        mu_sim_exit(env);
        return;
    }
    mu_env_entropy(env, draw, sizeof(draw));
    c->check = (struct stream_check){.key = draw[0]};
    c->length = 9 + draw[1] % (draw[1] % 3 == 0 ? STREAM_MAX : 60);
    c->sent = 0;
    c->up = true;
    c->connected = false;
    c->closing = false;
    c->conn = (struct mu_conn){.on = &client_events};
    c->ticket = once_begin(c->state->world->conns, c->state->number);
    mu_env_timer_arm(env, &c->patience, mu_mono_add_ms(mu_env_now(env).mono, 8000));
    MU_ASSERT(mu_env_dial(env, &c->conn, &addr) == 0);
}

static int start_client(struct mu_env *env, void *arg)
{
    struct client *c = mu_calloc(1, sizeof(*c));

    MU_ASSERT(c != NULL);
    c->state = arg;
    c->env = env;
    mu_timer_init(&c->again, client_again);
    mu_timer_init(&c->patience, client_impatient);
    mu_env_timer_arm(env, &c->again, mu_env_now(env).mono);
    return 0;
}

static void client_killed(void *arg)
{
    struct client_state *state = arg;

    once_forgive(state->world->conns, state->number);
}

/* --- the story -------------------------------------------------------------------------------- */

static bool all_progressed(void *arg)
{
    struct world *w = arg;

    for (int i = 0; i < CLIENTS; i++) {
        if (w->clients[i].exchanges < w->exchanges_wanted[i]) {
            return false;
        }
    }
    return true;
}

static bool all_left(void *arg)
{
    struct world *w = arg;

    for (int i = 0; i < CLIENTS; i++) {
        if (mu_sim_proc_alive(w->clients[i].proc)) {
            return false;
        }
    }
    return !mu_sim_proc_alive(w->server);
}

static void set_up(struct mu_sim *sim, struct world *w)
{
    static const char *const names[CLIENTS] = {"c0", "c1", "c2"};
    struct mu_sim_host *host = mu_sim_host_new(sim, "server");

    w->server = mu_sim_proc_new(
        host, &(struct mu_sim_program){
                  .name = "echo", .start = start_server, .killed = server_killed, .arg = w});
    for (uint32_t i = 0; i < CLIENTS; i++) {
        struct client_state *c = &w->clients[i];

        *c = (struct client_state){.world = w, .number = i};
        c->proc = mu_sim_proc_new(
            mu_sim_host_new(sim, names[i]),
            &(struct mu_sim_program){
                .name = "client", .start = start_client, .killed = client_killed, .arg = c});
    }
}

static void run_env_echo(struct mu_sim *sim)
{
    struct world w = {.sim = sim};

    w.conns = once_new(sim, "connection");
    w.works = once_new(sim, "work");
    set_up(sim, &w);
    mu_sim_run_for(sim, FAULTY_NS);
    mu_sim_heal(sim);
    for (int i = 0; i < CLIENTS; i++) {
        w.exchanges_wanted[i] = w.clients[i].exchanges + 2;
    }
    if (!mu_sim_run_until(sim, CONVERGE_NS, all_progressed, &w)) {
        mu_sim_fail(sim, "a client made no progress though all faults had ended");
    }
    w.leaving = true;
    if (!mu_sim_run_until(sim, CONVERGE_NS, all_left, &w)) {
        mu_sim_fail(sim, "somebody did not leave");
    }
    once_finish(w.conns);
    once_finish(w.works);
    once_free(w.conns);
    once_free(w.works);
}

const struct mu_sim_scenario mu_sim_scenario_env_echo = {
    .name = "env-echo",
    .summary = "clients and a server on the bare environment: bytes, ends and callbacks",
    .run = run_env_echo,
};
