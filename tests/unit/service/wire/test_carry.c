/* A carried connection, seen from its owner at the server: what it may leave unread, and how the
 * ends of the other side come. */
#include "unit.h"

#include <muster/error.h>
#include <muster/log.h>

#include "core/alloc.h"
#include "service/wire/carry.h"
#include "service/wire/rpc_client.h"
#include "sim.h"

#define PORT 7000
/* REST_MAX of service/wire/carry.c. */
#define UNREAD_MAX ((size_t)8 << 20)

/* --- the server ------------------------------------------------------------------------------- */

static struct server {
    struct mu_rpc_server wire;
    struct mu_rpc_listener listener;
    struct mu_listener carried;
    struct mu_carry_env *carry;
    struct mu_conn conn;
    bool reads;
    size_t bytes;
    int eofs;
    int closed;
    int status;
} server;

static size_t on_data(struct mu_conn *conn, struct mu_span in)
{
    size_t taken;

    if (!server.reads) {
        return 0;
    }
    server.bytes += in.len;
    mu_env_send(conn->env, conn, MU_SPAN_LIT("answer"), &taken);
    return in.len;
}

static void on_eof(struct mu_conn *conn)
{
    server.eofs++;
    mu_env_close(conn->env, conn, false);
}

static void on_writable(struct mu_conn *conn)
{
    (void)conn;
}

static void on_closed(struct mu_conn *conn, int status)
{
    (void)conn;
    server.closed++;
    server.status = status;
}

static struct mu_conn *on_accept(struct mu_listener *listener)
{
    static const struct mu_conn_events events = {
        .data = on_data, .eof = on_eof, .writable = on_writable, .closed = on_closed};

    (void)listener;
    server.conn = (struct mu_conn){.on = &events};
    return &server.conn;
}

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

static void serve(struct mu_rpc_session *session, const struct mu_rpc_event *event)
{
    mu_carry_serve(server.carry, session, event->id, &server.carried);
}

static int start_server(struct mu_env *env, void *arg)
{
    static const struct mu_rpc_server_ops ops = {.turn_ended = flush_all,
                                                 .complain = ignore_complaint,
                                                 .protocol = &mu_rpc_native,
                                                 .session_new = new_session,
                                                 .session_free = free_session,
                                                 .call = serve};
    struct mu_addr addr = {.kind = MU_ADDR_TCP, .port = PORT, .host = "0.0.0.0"};
    struct mu_rpc_server_config config = {.rpc = mu_rpc_config_defaults(), .sessions_max = 10};

    (void)arg;
    server.carried.accept = on_accept;
    assert_int_equal(mu_carry_env_new(env, &server.carry), 0);
    mu_rpc_server_init(&server.wire, mu_carry_env_env(server.carry), &config, &ops);
    return mu_rpc_server_listen(&server.wire, &server.listener, &addr);
}

/* --- the relay -------------------------------------------------------------------------------- */

static struct relay {
    struct mu_rpc_client client;
    uint64_t id;
    size_t to_send;
    bool ends;
    bool cancels;
    size_t bytes;
    int replies;
    int status;
} relay;

static void send_more(void *context)
{
    static uint8_t bytes[MU_CARRY_ITEM_MAX];

    (void)context;
    if (relay.id == 0) {
        (void)mu_rpc_client_call(&relay.client, MU_SPAN_LIT(MU_CARRY_METHOD), (struct mu_span){0},
                                 0, &relay.id);
    }
    while (relay.id != 0 && relay.to_send != 0 && relay.replies == 0 &&
           mu_rpc_client_item(&relay.client, relay.id, mu_span(bytes, sizeof(bytes))) == 0) {
        relay.to_send--;
    }
    if (relay.to_send == 0 && relay.ends) {
        relay.ends = false;
        assert_int_equal(mu_rpc_client_end(&relay.client, relay.id), 0);
    }
    if (relay.to_send == 0 && relay.cancels) {
        relay.cancels = false;
        assert_int_equal(mu_rpc_client_cancel(&relay.client, relay.id), 0);
    }
}

static void on_ready(void *context)
{
    (void)context;
    mu_rpc_client_run_soon(&relay.client);
}

static void on_reply(void *context, uint64_t id, int status, struct mu_span payload)
{
    (void)context;
    (void)id;
    (void)payload;
    relay.replies++;
    relay.status = status;
}

static void on_item(void *context, uint64_t id, struct mu_span payload)
{
    (void)context;
    (void)id;
    relay.bytes += payload.len;
}

static int start_relay(struct mu_env *env, void *arg)
{
    const struct mu_rpc_client_config config = {
        .addr = {.kind = MU_ADDR_TCP, .port = PORT, .host = "server"},
        .name = "relay",
        .connect_ms = 5000,
        .probe_ms = 5000,
        .greetings = 9};
    const struct mu_rpc_client_events events = {
        .ready = on_ready, .reply = on_reply, .item = on_item, .turn_ended = send_more};

    (void)arg;
    return mu_rpc_client_init(&relay.client, env, &config, &events);
}

static void run(bool reads, size_t items, bool ends, bool cancels)
{
    struct mu_sim_config config = {.seed = 5, .faults = mu_sim_faults_none()};
    struct mu_sim *sim;

    muster_log_set(NULL, NULL, MUSTER_LOG_ERROR);
    server = (struct server){.reads = reads};
    relay = (struct relay){.to_send = items, .ends = ends, .cancels = cancels};
    sim = mu_sim_new(&config);
    (void)mu_sim_proc_new(mu_sim_host_new(sim, "server"),
                          &(struct mu_sim_program){.name = "server", .start = start_server});
    (void)mu_sim_proc_new(mu_sim_host_new(sim, "relay"),
                          &(struct mu_sim_program){.name = "relay", .start = start_relay});
    mu_sim_run_for(sim, 20 * MU_NS_PER_S);
    assert_null(mu_sim_failure(sim));
    mu_sim_free(sim);
}

/* --- tests ------------------------------------------------------------------------------------ */

static void test_carry_ends_in_order(void **state)
{
    (void)state;
    run(true, 40, true, false);
    assert_int_equal(server.bytes, 40 * MU_CARRY_ITEM_MAX);
    assert_true(server.eofs == 1 && server.closed == 1 && server.status == 0);
    assert_true(relay.replies == 1 && relay.status == 0);
    assert_int_equal(relay.bytes % strlen("answer"), 0);
    assert_true(relay.bytes != 0);
}

/* A connection that was lost is none that has ended. */
static void test_carry_tells_a_loss_from_an_end(void **state)
{
    (void)state;
    run(true, 3, false, true);
    assert_true(server.eofs == 0 && server.closed == 1 && server.status == MUSTER_ECONN);
    assert_int_equal(relay.status, MUSTER_ECANCELED);
}

static void test_carry_bounds_what_its_owner_leaves_unread(void **state)
{
    (void)state;
    run(false, UNREAD_MAX / MU_CARRY_ITEM_MAX, false, false);
    assert_true(server.closed == 0 && relay.replies == 0);
    run(false, UNREAD_MAX / MU_CARRY_ITEM_MAX + 1, false, false);
    assert_true(server.closed == 1 && server.status == MUSTER_ECONN);
    assert_true(relay.replies == 1 && relay.status == MUSTER_ELIMIT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_carry_ends_in_order),
        cmocka_unit_test(test_carry_tells_a_loss_from_an_end),
        cmocka_unit_test(test_carry_bounds_what_its_owner_leaves_unread),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
