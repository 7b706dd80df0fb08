/* What the owner of an RPC client may do in its callbacks: everything. A server that also breaks
 * the protocol, loses its connections and dies; an owner that meddles in each of its callbacks. */
#include "unit.h"

#include <stdio.h>

#include <muster/error.h>

#include "core/alloc.h"
#include "service/wire/rpc_client.h"
#include "service/wire/rpc_server.h"
#include "sim.h"

#define PORT      7000
#define CALLS_MAX 64
#define NAME_MS   4000

/* --- the server ------------------------------------------------------------------------------- */

struct server {
    struct mu_rpc_server wire;
    struct mu_rpc_listener listener;
    size_t sessions_max; /* 0: enough */
    bool alien;          /* it speaks something else */
};

static void flush_all(struct mu_rpc_server *wire)
{
    mu_rpc_server_flush(wire);
}

static void ignore_complaint(struct mu_rpc_server *wire, const char *peer, const char *why)
{
    (void)wire;
    (void)peer;
    (void)why;
}

static struct mu_rpc_session *new_session(struct mu_rpc_server *wire,
                                          const struct mu_rpc_hello *hello)
{
    (void)wire;
    (void)hello;
    return mu_calloc(1, sizeof(struct mu_rpc_session));
}

static void free_session(struct mu_rpc_session *session)
{
    mu_free(session);
}

static void free_stream(struct mu_rpc_served *call)
{
    mu_rpc_served_remove(call);
    mu_free(call);
}

static void cancel_stream(struct mu_rpc_served *call, int why)
{
    mu_rpc_session_reply(call->session, call->id, why, MU_SPAN_LIT("canceled"));
    free_stream(call);
}

static void ignore_credit(struct mu_rpc_served *call)
{
    (void)call;
}

static const struct mu_rpc_served_ops stream_ops = {
    .cancel = cancel_stream, .credit = ignore_credit, .free = free_stream};

static void serve(struct mu_rpc_session *session, const struct mu_rpc_event *event)
{
    static const uint8_t garbage[64] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
    struct mu_buf out;
    size_t taken;

    if (mu_span_eq(event->method, MU_SPAN_LIT("t::T.refuse"))) {
        mu_buf_init(&out, 4096);
        assert_int_equal(mu_rpc_refuse(&out, MUSTER_EPROTO, "no more of this"), 0);
        mu_env_send(session->server->env, &session->conn->base, mu_buf_span(&out), &taken);
        mu_buf_fini(&out);
    } else if (mu_span_eq(event->method, MU_SPAN_LIT("t::T.break"))) {
        mu_env_send(session->server->env, &session->conn->base, mu_span(garbage, sizeof(garbage)),
                    &taken);
    } else if (mu_span_eq(event->method, MU_SPAN_LIT("t::T.stream"))) {
        struct mu_rpc_served *call = mu_calloc(1, sizeof(*call));

        assert_int_equal(mu_rpc_served_add(call, &stream_ops, session, event->id), 0);
        for (int i = 0; i < 3; i++) {
            (void)mu_rpc_session_item(session, event->id, MU_SPAN_LIT("item"));
        }
    } else {
        mu_rpc_session_reply(session, event->id, 0, event->payload);
    }
}

static size_t speak_alien(struct mu_rpc_conn *c, struct mu_span in)
{
    size_t taken;

    mu_env_send(c->server->env, &c->base, MU_SPAN_LIT("HTTP/1.1 400 Bad Request\r\n\r\n"), &taken);
    return in.len;
}

static size_t no_output(const struct mu_rpc_conn *c, struct mu_span *spans, size_t cap)
{
    (void)c;
    (void)spans;
    (void)cap;
    return 0;
}

static bool end_input(struct mu_rpc_conn *c)
{
    (void)c;
    return false;
}

static int start_server(struct mu_env *env, void *arg)
{
    static const struct mu_rpc_protocol alien = {
        .input = speak_alien, .output = no_output, .eof = end_input};
    static const struct mu_rpc_server_ops kinds[2] = {
        {.turn_ended = flush_all,
         .complain = ignore_complaint,
         .protocol = &mu_rpc_native,
         .session_new = new_session,
         .session_free = free_session,
         .call = serve},
        {.turn_ended = flush_all, .complain = ignore_complaint, .protocol = &alien},
    };
    struct mu_addr addr = {.kind = MU_ADDR_TCP, .port = PORT, .host = "0.0.0.0"};
    struct server *s = arg;
    struct mu_rpc_server_config config = {.rpc = mu_rpc_config_defaults(),
                                          .sessions_max =
                                              s->sessions_max != 0 ? s->sessions_max : 8};

    config.rpc.name = "server";
    mu_rpc_server_init(&s->wire, env, &config, &kinds[s->alien ? 1 : 0]);
    return mu_rpc_server_listen(&s->wire, &s->listener, &addr);
}

/* --- the owner -------------------------------------------------------------------------------- */

enum where { READY, MISMATCH, FAILED, GAVE_UP, REPLY, ITEM, TURN_ENDED, PLACES };

enum { DOES_CALL = 1, DOES_CANCEL = 2, DOES_CLOSE = 4, DOES_FLUSH = 8, ALL_DEEDS = 16 };

struct owner {
    struct mu_env *env;
    struct mu_rpc_client *client; /* NULL once `closed` was told */
    bool by_event;                /* it hears all in `event` */
    enum where where;             /* where it meddles, */
    unsigned deeds;               /* and what it does there */
    uint64_t calls[CALLS_MAX];
    int replies[CALLS_MAX]; /* to each */
    int statuses[CALLS_MAX];
    size_t count;
    size_t closed;
    size_t visits[PLACES];
    bool insists;     /* it calls again in the reply that tells of a failure, */
    size_t refused;   /* and so often it was told that this cannot be, */
    size_t later;     /* or must wait for the end of the turn */
    const char *host; /* that it dials; NULL: the server's */
    size_t troubles;
    int trouble;
    char why[MU_ERRMSG_CAP];
};

static int make_call(struct owner *o, const char *method)
{
    int err = o->count == CALLS_MAX
                  ? MUSTER_ELIMIT
                  : mu_rpc_client_call(o->client, mu_span_str(method), MU_SPAN_LIT("hello"), 0,
                                       &o->calls[o->count]);

    o->count += err == 0 ? 1 : 0;
    return err;
}

static void meddle(struct owner *o, enum where where)
{
    o->visits[where]++;
    if (where != o->where) {
        return;
    }
    for (size_t i = 0; i < o->count && (o->deeds & DOES_CANCEL) != 0; i++) {
        (void)mu_rpc_client_cancel(o->client, o->calls[i]);
    }
    if ((o->deeds & DOES_CALL) != 0) {
        (void)make_call(o, "t::T.echo");
        (void)make_call(o, "t::T.stream");
    }
    if ((o->deeds & DOES_CLOSE) != 0) {
        mu_rpc_client_close(o->client);
    }
    if ((o->deeds & DOES_FLUSH) != 0) {
        mu_rpc_client_need(o->client);
        mu_rpc_client_flush(o->client);
        mu_rpc_client_run_soon(o->client);
    }
}

static void on_ready(void *context)
{
    struct owner *o = context;

    assert_int_equal(make_call(o, "t::T.echo"), 0);
    assert_int_equal(make_call(o, "t::T.stream"), 0);
    assert_int_equal(make_call(o, "t::T.echo"), 0);
    meddle(o, READY);
}

/* By the time that the owner is told, the client has done what follows for itself. */
static void on_mismatch(void *context, bool silent)
{
    struct owner *o = context;

    assert_false(silent);
    assert_int_not_equal(o->client->link, MU_RPC_CLIENT_UP);
    meddle(o, MISMATCH);
}

static void on_failed(void *context, int status, const char *text)
{
    struct owner *o = context;

    assert_int_not_equal(status, 0);
    (void)snprintf(o->why, sizeof(o->why), "%s", text);
    meddle(o, FAILED);
}

static void on_trouble(void *context, int status, bool was_open)
{
    struct owner *o = context;

    (void)was_open;
    o->troubles++;
    o->trouble = status;
}

static void on_gave_up(void *context, int status, const char *text)
{
    assert_int_not_equal(status, 0);
    assert_true(text[0] != '\0');
    meddle(context, GAVE_UP);
}

static void on_reply(void *context, uint64_t id, int status, struct mu_span payload)
{
    struct owner *o = context;
    size_t i = 0;

    (void)payload;
    /* A session that was begun anew has the ids of the one before it, whose calls have ended. */
    while (i + 1 < o->count && (o->calls[i] != id || o->replies[i] != 0)) {
        i++;
    }
    assert_int_equal(o->calls[i], id);
    o->replies[i]++;
    o->statuses[i] = status;
    if (o->insists && status != 0) {
        int err = make_call(o, "t::T.echo");

        o->later += err == MUSTER_EAGAIN ? 1 : 0;
        o->refused += err != 0 && err != MUSTER_EAGAIN ? 1 : 0;
    }
    meddle(o, REPLY);
}

static void on_item(void *context, uint64_t id, struct mu_span payload)
{
    (void)id;
    assert_span_text(payload, "item");
    meddle(context, ITEM);
}

static void on_event(void *context, const struct mu_rpc_event *event)
{
    struct owner *o = context;

    if (event->type == MU_RPC_EV_REPLY) {
        on_reply(o, event->id, event->status, event->payload);
    } else if (event->type == MU_RPC_EV_ITEM) {
        on_item(o, event->id, event->payload);
        (void)mu_rpc_consumed(&o->client->rpc, mu_env_now(o->env), event->id, event->payload.len);
    }
}

static void on_turn_ended(void *context)
{
    struct owner *o = context;

    while (o->later != 0 && make_call(o, "t::T.echo") == 0) {
        o->later--;
    }
    meddle(o, TURN_ENDED);
}

static void on_closed(void *context)
{
    struct owner *o = context;

    o->closed++;
    mu_free(o->client);
    o->client = NULL;
    mu_sim_exit(o->env);
}

static int start_owner(struct mu_env *env, void *arg)
{
    struct mu_rpc_client_config config = {
        .addr = {.kind = MU_ADDR_TCP, .port = PORT, .host = "server"},
        .name = "client",
        .connect_ms = 300,
        .reconnect_ms = 500,
        .probe_ms = 200,
        .greetings = 1,
    };
    struct owner *o = arg;
    struct mu_rpc_client_events events = {
        .ready = on_ready,
        .mismatch = on_mismatch,
        .failed = on_failed,
        .trouble = on_trouble,
        .gave_up = on_gave_up,
        .reply = on_reply,
        .item = on_item,
        .event = o->by_event ? on_event : NULL,
        .turn_ended = on_turn_ended,
        .closed = on_closed,
        .context = o,
    };

    o->env = env;
    if (o->host != NULL) {
        (void)snprintf(config.addr.host, sizeof(config.addr.host), "%s", o->host);
        config.connect_ms = 0;
        config.name_ms = NAME_MS;
    }
    o->client = mu_calloc(1, sizeof(*o->client));
    return mu_rpc_client_init(o->client, env, &config, &events);
}

/* --- the two of them -------------------------------------------------------------------------- */

enum server_kind { GOOD, ABSENT, ALIEN };

struct world {
    struct mu_sim *sim;
    struct mu_sim_host *hosts[2];
    struct mu_sim_proc *procs[2]; /* the server's and the owner's */
    struct server server;
    struct owner owner;
};

static void open_world(struct world *w, enum server_kind kind)
{
    w->sim = mu_sim_new(&(struct mu_sim_config){.seed = 1, .faults = mu_sim_faults_none()});
    assert_non_null(w->sim);
    w->server.alien = kind == ALIEN;
    w->hosts[0] = mu_sim_host_new(w->sim, "server");
    w->hosts[1] = mu_sim_host_new(w->sim, "client");
    w->procs[0] = kind == ABSENT
                      ? NULL
                      : mu_sim_proc_new(w->hosts[0], &(struct mu_sim_program){.name = "server",
                                                                              .start = start_server,
                                                                              .arg = &w->server});
    w->procs[1] = mu_sim_proc_new(
        w->hosts[1],
        &(struct mu_sim_program){.name = "client", .start = start_owner, .arg = &w->owner});
}

static void break_session(void *arg)
{
    struct owner *o = arg;

    (void)make_call(o, "t::T.break");
}

static void ask_for_echo(void *arg)
{
    assert_int_equal(make_call(arg, "t::T.echo"), 0);
}

static void close_client(void *arg)
{
    mu_rpc_client_close(((struct owner *)arg)->client);
}

/* Does `run` to the owner, if it is still there, and lets `ms` pass. */
static void do_and_wait(struct world *w, void (*run)(void *arg), uint64_t ms)
{
    if (run != NULL && mu_sim_proc_alive(w->procs[1]) && w->owner.client != NULL) {
        mu_sim_call(w->procs[1], run, &w->owner);
    }
    mu_sim_run_for(w->sim, ms * MU_NS_PER_MS);
}

/* `closed` comes once, whatever the owner did, and each call has ended once by then. */
static void close_world(struct world *w)
{
    do_and_wait(w, close_client, 3000);
    assert_int_equal(w->owner.closed, 1);
    assert_null(w->owner.client);
    for (size_t i = 0; i < w->owner.count; i++) {
        assert_int_equal(w->owner.replies[i], 1);
    }
    assert_null(mu_sim_failure(w->sim));
    mu_sim_free(w->sim);
}

/* A violation, a lost connection, the death of the server, and another server after it. */
static void live_through_it(struct world *w)
{
    do_and_wait(w, NULL, 100);
    do_and_wait(w, break_session, 1000);
    mu_sim_reset(w->hosts[0], w->hosts[1]);
    do_and_wait(w, NULL, 1000);
    if (w->procs[0] != NULL) {
        mu_sim_kill(w->procs[0], MU_SIM_KILL_PROCESS);
        do_and_wait(w, NULL, 1500);
        mu_sim_restart(w->procs[0]);
    }
    do_and_wait(w, NULL, 3000);
}

static void test_rpc_client_owner_may_do_anything_in_any_callback(void **state)
{
    static const enum server_kind kinds[PLACES] = {[MISMATCH] = ALIEN, [FAILED] = ABSENT};

    (void)state;
    for (int where = 0; where < PLACES; where++) {
        for (unsigned deeds = 0; deeds < ALL_DEEDS; deeds++) {
            for (int by_event = 0; by_event < 2; by_event++) {
                struct world w = {.owner = {.by_event = by_event != 0,
                                            .where = (enum where)where,
                                            .deeds = deeds}};

                open_world(&w, kinds[where]);
                live_through_it(&w);
                assert_true(w.owner.visits[where] > 0);
                close_world(&w);
            }
        }
    }
}

/* The calls of a session that the server broke end with an error. By then the client has begun, or
 * is about to begin, another one: calls for that are taken. */
static void test_rpc_client_takes_calls_in_the_replies_of_a_broken_session(void **state)
{
    struct world w = {.owner = {.where = PLACES, .insists = true}};

    (void)state;
    open_world(&w, GOOD);
    do_and_wait(&w, NULL, 100);
    do_and_wait(&w, break_session, 1000);
    assert_int_equal(w.owner.refused, 0);
    assert_int_equal(w.owner.later, 0);
    /* Three calls, the one that broke the session, and one more each for that and the stream. */
    assert_int_equal(w.owner.count, 6);
    for (size_t i = 0; i < w.owner.count; i++) {
        assert_int_equal(w.owner.replies[i], 1);
        assert_int_equal(w.owner.statuses[i], i == 1 || i == 3 ? MUSTER_EPROTO : 0);
    }
    w.owner.insists = false;
    close_world(&w);
}

static void ask_for_refusal(void *arg)
{
    assert_int_equal(make_call(arg, "t::T.refuse"), 0);
}

/* A server that ends the session with a refusal does not want this one, but may want another. */
static void test_rpc_client_begins_another_session_after_a_refusal(void **state)
{
    struct world w = {.owner = {.where = PLACES}};
    uint64_t calls;

    (void)state;
    open_world(&w, GOOD);
    do_and_wait(&w, NULL, 100);
    do_and_wait(&w, ask_for_refusal, 1000);
    assert_int_equal(w.owner.statuses[w.owner.count - 1], MUSTER_EPROTO);
    calls = w.owner.count;
    do_and_wait(&w, ask_for_echo, 1000);
    assert_int_equal(w.owner.count, calls + 1);
    assert_int_equal(w.owner.replies[calls], 1);
    assert_int_equal(w.owner.statuses[calls], 0);
    close_world(&w);
}

/* An unknown name is tried again for a while, which the owner hears of, and then no more. */
static void test_rpc_client_gives_up_on_a_name_that_stays_unknown(void **state)
{
    struct world w = {.owner = {.where = FAILED, .deeds = DOES_CLOSE, .host = "nosuch"}};

    (void)state;
    open_world(&w, GOOD);
    do_and_wait(&w, NULL, NAME_MS - 100);
    assert_true(w.owner.troubles > 1);
    assert_int_equal(w.owner.trouble, MUSTER_ENAME);
    assert_int_equal(w.owner.visits[FAILED], 0);
    do_and_wait(&w, NULL, 2500);
    assert_int_equal(w.owner.visits[FAILED], 1);
    assert_non_null(strstr(w.owner.why, "nosuch:7000: the host name is unknown (asked for 4 s)"));
    assert_int_equal(w.owner.closed, 1);
    mu_sim_free(w.sim);
}

static void test_rpc_server_refuses_one_session_more_than_it_may_have(void **state)
{
    struct world w = {.server = {.sessions_max = 1}, .owner = {.where = PLACES}};
    struct owner second = {.where = FAILED, .deeds = DOES_CLOSE};

    (void)state;
    open_world(&w, GOOD);
    do_and_wait(&w, NULL, 100);
    (void)mu_sim_proc_new(w.hosts[1], &(struct mu_sim_program){
                                          .name = "second", .start = start_owner, .arg = &second});
    do_and_wait(&w, NULL, 2000);
    assert_int_equal(w.owner.visits[READY], 1);
    assert_int_equal(second.visits[READY], 0);
    assert_int_equal(second.visits[FAILED], 1);
    assert_int_equal(second.closed, 1);
    assert_non_null(strstr(second.why, "the server has as many sessions as it may"));
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rpc_client_takes_calls_in_the_replies_of_a_broken_session),
        cmocka_unit_test(test_rpc_client_owner_may_do_anything_in_any_callback),
        cmocka_unit_test(test_rpc_client_begins_another_session_after_a_refusal),
        cmocka_unit_test(test_rpc_client_gives_up_on_a_name_that_stays_unknown),
        cmocka_unit_test(test_rpc_server_refuses_one_session_more_than_it_may_have),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
