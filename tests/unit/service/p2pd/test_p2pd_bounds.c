/* The limits of a p2p daemon: clients that it serves, and calls that are under way. */
#include "unit.h"

#include <muster/error.h>

#include "codec/bin/pb.h"
#include "codec/peer/p2pd_msg.h"
#include "codec/bin/uvarint.h"
#include "core/alloc.h"
#include "service/p2pd/p2pd.h"
#include "sim.h"

#define CONTROL "/tmp/p2pd"
#define PORT    4001

struct client {
    struct mu_conn conn;
    bool dialled;
    bool closed;
    struct mu_buf in;
};

static struct world {
    struct mu_sim *sim;
    struct mu_sim_proc *proc;
    struct mu_env *env;
    struct mu_identity identity;
    struct mu_identity other;
    struct mu_p2pd_config config;
    struct mu_p2pd *d;
    bool stopped;
    struct client clients[3];
    bool asks; /* clients send no request by themselves */
    struct mu_listener silent;
    struct mu_conn heard;
} w;

/* --- a peer that takes connections and says nothing ------------------------------------------- */

static size_t ignore_data(struct mu_conn *conn, struct mu_span in)
{
    (void)conn;
    return in.len;
}

static void ignore(struct mu_conn *conn)
{
    (void)conn;
}

static void ignore_closed(struct mu_conn *conn, int status)
{
    (void)conn;
    (void)status;
}

static struct mu_conn *accept_silent(struct mu_listener *listener)
{
    static const struct mu_conn_events on = {
        .data = ignore_data, .eof = ignore, .writable = ignore, .closed = ignore_closed};

    (void)listener;
    w.heard.on = &on;
    return &w.heard;
}

static int start_silent(struct mu_env *env, void *arg)
{
    struct mu_addr addr = {.kind = MU_ADDR_TCP, .host = "b", .port = PORT};

    (void)arg;
    w.silent.accept = accept_silent;
    return mu_env_listen(env, &w.silent, &addr);
}

/* --- the daemon ------------------------------------------------------------------------------- */

static void on_stopped(void *context)
{
    (void)context;
    mu_p2pd_free(w.d);
    w.stopped = true;
}

static int start_daemon(struct mu_env *env, void *arg)
{
    struct mu_errmsg msg;
    struct mu_buf addr;

    (void)arg;
    w.env = env;
    w.config.identity = &w.identity;
    w.config.stopped = on_stopped;
    assert_int_equal(mu_p2pd_start(env, &w.config, &w.d, &msg), 0);
    assert_int_equal(mu_p2pd_listen(w.d, "/unix" CONTROL, &msg), 0);
    mu_buf_init(&addr, 256);
    assert_int_equal(mu_multiaddr_parse(&addr, "/dns4/b/tcp/4001", &msg), 0);
    assert_int_equal(mu_peer_host_add_addr(mu_p2pd_host(w.d), &w.other.id, mu_buf_span(&addr)), 0);
    mu_buf_fini(&addr);
    return 0;
}

static int set_up(void **unused)
{
    uint8_t seed[MU_IDENTITY_SEED_LEN] = {1};

    (void)unused;
    memset(&w, 0, sizeof(w));
    w.sim = mu_sim_new(&(struct mu_sim_config){.seed = 1, .faults = mu_sim_faults_none()});
    assert_int_equal(mu_identity_from_seed(&w.identity, seed), 0);
    seed[0] = 2;
    assert_int_equal(mu_identity_from_seed(&w.other, seed), 0);
    w.config = mu_p2pd_config_defaults();
    return 0;
}

static void start_all(void)
{
    (void)mu_sim_proc_new(mu_sim_host_new(w.sim, "b"),
                          &(struct mu_sim_program){.name = "silent", .start = start_silent});
    w.proc = mu_sim_proc_new(mu_sim_host_new(w.sim, "a"),
                             &(struct mu_sim_program){.name = "p2pd", .start = start_daemon});
    mu_sim_run_for(w.sim, MU_NS_PER_S);
}

static void stop(void *arg)
{
    (void)arg;
    for (size_t i = 0; i < 3; i++) {
        if (w.clients[i].dialled && !w.clients[i].closed) {
            mu_env_close(w.env, &w.clients[i].conn, false);
        }
        mu_buf_fini(&w.clients[i].in);
    }
    mu_p2pd_stop(w.d);
}

static int tear_down(void **unused)
{
    (void)unused;
    mu_sim_call(w.proc, stop, NULL);
    mu_sim_run_for(w.sim, 60 * MU_NS_PER_S);
    assert_true(w.stopped);
    assert_null(mu_sim_failure(w.sim));
    mu_sim_free(w.sim);
    mu_identity_fini(&w.identity);
    mu_identity_fini(&w.other);
    return 0;
}

/* --- clients, in the daemon's own process ----------------------------------------------------- */

static size_t on_data(struct mu_conn *conn, struct mu_span in)
{
    struct client *c = MU_CONTAINER_OF(conn, struct client, conn);

    assert_int_equal(mu_buf_append(&c->in, in), 0);
    return in.len;
}

static void on_eof(struct mu_conn *conn)
{
    mu_env_close(w.env, conn, false);
}

static void on_closed(struct mu_conn *conn, int status)
{
    (void)status;
    MU_CONTAINER_OF(conn, struct client, conn)->closed = true;
}

static void say(struct client *c, const struct mu_buf *bytes)
{
    size_t taken;

    mu_env_send(w.env, &c->conn, mu_buf_span(bytes), &taken);
    assert_int_equal(taken, bytes->len);
}

/* Asks for a connection that stays, for calls, unless the test has a request of its own. */
static void on_open(struct mu_conn *conn)
{
    struct mu_buf out;

    if (w.asks) {
        return;
    }
    mu_buf_init(&out, 4096);
    assert_int_equal(mu_p2pd_request_encode(&out,
                                            &(struct mu_p2pd_request){.type = MU_P2PD_UPGRADE},
                                            (struct mu_span){0}),
                     0);
    say(MU_CONTAINER_OF(conn, struct client, conn), &out);
    mu_buf_fini(&out);
}

static void dial(void *arg)
{
    static const struct mu_conn_events on = {
        .open = on_open, .data = on_data, .eof = on_eof, .writable = ignore, .closed = on_closed};
    struct mu_addr addr = {.kind = MU_ADDR_UNIX, .host = CONTROL};
    struct client *c = arg;

    *c = (struct client){.dialled = true};
    c->conn.on = &on;
    mu_buf_init(&c->in, 1 << 20);
    assert_int_equal(mu_env_dial(w.env, &c->conn, &addr), 0);
}

static void hang_up(void *arg)
{
    mu_env_close(w.env, &((struct client *)arg)->conn, false);
}

/* The daemon's next message to a client, if there is one. */
static bool take_message(struct client *c, struct mu_span *ret)
{
    struct mu_span all = mu_buf_span(&c->in);
    uint64_t len;
    size_t head;

    if (mu_uvarint_get(all, &head, &len) != 0 || all.len - head < len) {
        return false;
    }
    *ret = mu_span(all.data + head, (size_t)len);
    mu_buf_consume(&c->in, head + (size_t)len);
    return true;
}

static void connect_client(struct client *c, bool served)
{
    struct mu_p2pd_response response;
    struct mu_span message;

    mu_sim_call(w.proc, dial, c);
    mu_sim_run_for(w.sim, MU_NS_PER_S);
    assert_int_equal(c->closed, !served);
    assert_int_equal(take_message(c, &message), served);
    if (served) {
        assert_int_equal(mu_p2pd_response_decode(message, &response), 0);
        assert_true(response.ok);
    }
}

static void test_p2pd_serves_so_many_clients(void **unused)
{
    struct mu_p2pd_stats stats;

    (void)unused;
    w.config.clients_max = 2;
    start_all();
    connect_client(&w.clients[0], true);
    connect_client(&w.clients[1], true);
    connect_client(&w.clients[2], false);
    mu_p2pd_stats(w.d, &stats);
    assert_int_equal(stats.clients, 2);
    assert_false(w.clients[0].closed || w.clients[1].closed);
    mu_sim_call(w.proc, hang_up, &w.clients[0]);
    mu_sim_run_for(w.sim, MU_NS_PER_S);
    mu_buf_fini(&w.clients[2].in);
    connect_client(&w.clients[2], true);
}

static void call(void *arg)
{
    uint8_t id[MU_P2PD_CALL_ID_LEN] = {*(uint8_t *)arg};
    struct mu_p2pd_call m = {.kind = MU_P2PD_CALL_UNARY,
                             .id = mu_span(id, sizeof(id)),
                             .peer = mu_peer_id_span(&w.other.id),
                             .name = MU_SPAN_LIT("test::Service.method"),
                             .data = MU_SPAN_LIT("hello")};
    struct mu_buf out;

    mu_buf_init(&out, 4096);
    assert_int_equal(mu_p2pd_call_encode(&out, &m), 0);
    say(&w.clients[0], &out);
    mu_buf_fini(&out);
}

static void assert_refused(uint8_t number)
{
    struct mu_p2pd_call answer;
    struct mu_span message;

    assert_true(take_message(&w.clients[0], &message));
    assert_int_equal(mu_p2pd_answer_decode(message, &answer), 0);
    assert_int_equal(answer.kind, MU_P2PD_DAEMON_ERROR);
    assert_int_equal(answer.id.data[0], number);
    assert_span_text(answer.data, "there are as many calls under way as may be");
}

static void test_p2pd_makes_so_many_calls_at_a_time(void **unused)
{
    struct mu_p2pd_stats stats;
    struct mu_span message;

    (void)unused;
    w.config.calls_max = 2;
    start_all();
    connect_client(&w.clients[0], true);
    for (uint8_t i = 1; i <= 2; i++) {
        mu_sim_call(w.proc, call, &i);
        mu_sim_run_for(w.sim, 100 * MU_NS_PER_MS);
        assert_false(take_message(&w.clients[0], &message));
    }
    mu_sim_call(w.proc, call, &(uint8_t){3});
    mu_sim_run_for(w.sim, 100 * MU_NS_PER_MS);
    assert_refused(3);
    mu_p2pd_stats(w.d, &stats);
    assert_int_equal(stats.calls, 2);
    /* The two that were under way fail in time, and there is room again. */
    mu_sim_run_for(w.sim, 30 * MU_NS_PER_S);
    assert_true(take_message(&w.clients[0], &message));
    assert_true(take_message(&w.clients[0], &message));
    mu_sim_call(w.proc, call, &(uint8_t){4});
    mu_sim_run_for(w.sim, 100 * MU_NS_PER_MS);
    assert_false(take_message(&w.clients[0], &message));
}

static void announce_length(void *arg)
{
    struct mu_buf out;

    mu_buf_init(&out, 64);
    assert_int_equal(mu_uvarint_append(&out, *(uint64_t *)arg), 0);
    say(&w.clients[0], &out);
    mu_buf_fini(&out);
}

static void test_p2pd_reads_messages_that_are_so_long(void **unused)
{
    (void)unused;
    w.config.msg_len_max = 1000;
    start_all();
    for (uint64_t len = 1000; len <= 1001; len++) {
        mu_buf_fini(&w.clients[0].in);
        connect_client(&w.clients[0], true);
        mu_sim_call(w.proc, announce_length, &len);
        mu_sim_run_for(w.sim, MU_NS_PER_S);
        assert_int_equal(w.clients[0].closed, len > 1000);
        if (len == 1000) {
            mu_sim_call(w.proc, hang_up, &w.clients[0]);
            mu_sim_run_for(w.sim, MU_NS_PER_S);
        }
    }
}

/* Asks for a stream to the silent peer, by so many names of which the last is too long. */
static void open_stream(void *arg)
{
    static const uint8_t name[MU_MSS_NAME_MAX + 1];
    size_t count = *(size_t *)arg;
    struct mu_buf out;
    struct mu_buf body;
    struct mu_buf params;
    struct mu_pb_out inner = mu_pb_out(&params);
    struct mu_pb_out outer = mu_pb_out(&body);

    mu_buf_init(&params, 1 << 16);
    mu_buf_init(&body, 1 << 16);
    mu_buf_init(&out, 1 << 16);
    mu_pb_put_bytes(&inner, 1, mu_peer_id_span(&w.other.id));
    for (size_t i = 1; i <= count; i++) {
        mu_pb_put_bytes(&inner, 2, mu_span(name, i < count ? 1 : sizeof(name)));
    }
    mu_pb_put_varint(&outer, 1, MU_P2PD_STREAM_OPEN);
    mu_pb_put_bytes(&outer, 3, mu_buf_span(&params));
    assert_true(inner.err == 0 && outer.err == 0);
    assert_int_equal(mu_uvarint_append(&out, body.len), 0);
    assert_int_equal(mu_buf_append(&out, mu_buf_span(&body)), 0);
    say(&w.clients[0], &out);
    mu_buf_fini(&params);
    mu_buf_fini(&body);
    mu_buf_fini(&out);
}

/* A request may name so many protocols; one more is refused. The last name here is too long, which
 * is the reason as long as there are not too many. Meets NAMES_MAX of service/p2pd/request.c. */
static void test_p2pd_opens_a_stream_by_one_of_so_many_names(void **unused)
{
    struct mu_p2pd_response response;
    struct mu_span message;

    (void)unused;
    start_all();
    w.asks = true;
    mu_sim_call(w.proc, dial, &w.clients[0]);
    mu_sim_run_for(w.sim, MU_NS_PER_S);
    mu_sim_call(w.proc, open_stream, &(size_t){64});
    mu_sim_run_for(w.sim, MU_NS_PER_S);
    assert_true(take_message(&w.clients[0], &message));
    assert_int_equal(mu_p2pd_response_decode(message, &response), 0);
    assert_false(response.ok);
    assert_span_text(response.error,
                     "failed to negotiate protocol: there is none, or its name is too long");
    mu_sim_call(w.proc, open_stream, &(size_t){65});
    mu_sim_run_for(w.sim, MU_NS_PER_S);
    assert_true(take_message(&w.clients[0], &message));
    assert_int_equal(mu_p2pd_response_decode(message, &response), 0);
    assert_false(response.ok);
    assert_span_text(response.error, "failed to negotiate protocol: a request may name at most 64");
}

#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_p2pd_serves_so_many_clients),
        T(test_p2pd_makes_so_many_calls_at_a_time),
        T(test_p2pd_reads_messages_that_are_so_long),
        T(test_p2pd_opens_a_stream_by_one_of_so_many_names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
