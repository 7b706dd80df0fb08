/* A tcp store whose server accepts connections and says nothing, in the simulator. */
#include "unit.h"

#include <muster/log.h>
#include <stdlib.h>

#include "service/store/store.h"
#include "service/server/server.h"
#include "sim.h"

#define PORT 29500

struct world {
    struct mu_sim *sim;
    struct mu_sim_proc *server;
    struct mu_sim_proc *client;
    struct mu_store_tcp_config config;
    struct mu_store *store;
    struct mu_store_op op;
    struct mu_span key;
    uint32_t timeout_ms;
    bool ended;
};

static void server_stopped(void *context, int status, const char *why)
{
    (void)context;
    (void)status;
    (void)why;
}

static int start_server(struct mu_env *env, void *arg)
{
    struct mu_store_server_config config = mu_store_server_config_defaults();
    struct mu_store_server *server;
    struct mu_errmsg msg;

    (void)arg;
    config.listen = (struct mu_addr){.kind = MU_ADDR_TCP, .port = PORT, .host = "0.0.0.0"};
    config.stopped = server_stopped;
    return mu_store_server_start(env, &config, &server, &msg);
}

static void on_done(struct mu_store_op *op)
{
    MU_CONTAINER_OF(op, struct world, op)->ended = true;
}

static int start_client(struct mu_env *env, void *arg)
{
    struct world *w = arg;
    int err = mu_store_tcp_new(env, &w->config, &w->store);

    if (err == 0) {
        w->key = mu_span_str("k");
        w->op = (struct mu_store_op){
            .request = {.verb = MU_STORE_CHECK, .keys = &w->key, .key_count = 1},
            .timeout_ms = w->timeout_ms,
            .done = on_done,
        };
        mu_store_submit(w->store, &w->op);
    }
    return err;
}

/* A server that is stopped for so long when a client comes. */
static struct world *open_world(enum mu_store_tcp_protocol protocol, uint32_t pause_s)
{
    struct mu_sim_config config = {.seed = 7, .faults = mu_sim_faults_none()};
    struct world *w = calloc(1, sizeof(*w));

    assert_non_null(w);
    muster_log_set(NULL, NULL, MUSTER_LOG_ERROR);
    w->sim = mu_sim_new(&config);
    w->server = mu_sim_proc_new(mu_sim_host_new(w->sim, "server"),
                                &(struct mu_sim_program){.name = "store", .start = start_server});
    w->config = mu_store_tcp_config_defaults();
    w->config.protocol = protocol;
    w->config.addr = (struct mu_addr){.kind = MU_ADDR_TCP, .port = PORT, .host = "server"};
    mu_sim_run_for(w->sim, MU_NS_PER_S);
    mu_sim_pause(w->server, pause_s * MU_NS_PER_S);
    return w;
}

static bool has_ended(void *arg)
{
    return ((struct world *)arg)->ended;
}

static void run(struct world *w, uint32_t timeout_ms)
{
    w->timeout_ms = timeout_ms;
    w->client = mu_sim_proc_new(
        mu_sim_host_new(w->sim, "client"),
        &(struct mu_sim_program){.name = "client", .start = start_client, .arg = w});
    (void)mu_sim_run_until(w->sim, 200 * MU_NS_PER_S, has_ended, w);
    assert_true(w->ended);
}

static void close_world(struct world *w)
{
    assert_null(mu_sim_failure(w->sim));
    mu_sim_free(w->sim);
    free(w);
}

static const enum mu_store_tcp_protocol protocols[] = {MU_STORE_TCP_ANY, MU_STORE_TCP_MUSTER,
                                                       MU_STORE_TCP_TORCH1, MU_STORE_TCP_TORCH2};

static void test_store_tcp_waits_for_a_server_that_is_silent(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(protocols) / sizeof(protocols[0]); i++) {
        struct world *w = open_world(protocols[i], 60);

        run(w, 120000);
        assert_int_equal(w->op.status, 0);
        close_world(w);
    }
}

static void test_store_tcp_says_that_a_server_is_silent(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(protocols) / sizeof(protocols[0]); i++) {
        struct world *w = open_world(protocols[i], 1000);

        run(w, 30000);
        assert_int_equal(w->op.status, MUSTER_ETIMEDOUT);
        assert_string_equal(w->op.errmsg.text,
                            "timed out after 30000 ms: server:29500 accepts connections but does "
                            "not answer");
        close_world(w);

        w = open_world(protocols[i], 1000);
        w->config.connect_ms = 30000;
        run(w, 100000);
        assert_int_equal(w->op.status, MUSTER_ECONN);
        assert_string_equal(
            w->op.errmsg.text,
            "server:29500 accepts connections but does not answer (tried for 30000 ms)");
        close_world(w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_store_tcp_waits_for_a_server_that_is_silent),
        cmocka_unit_test(test_store_tcp_says_that_a_server_is_silent),
    };

    return cmocka_run_group_tests_name("store_tcp", tests, NULL, NULL);
}
