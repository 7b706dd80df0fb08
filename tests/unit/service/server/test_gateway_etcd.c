/* A backing in an etcd that refuses everything, in the simulator: what its log says, how often. */
#include "unit.h"

#include <stdio.h>
#include <string.h>

#include <muster/log.h>

#include "service/server/gateway_etcd.h"
#include "sim.h"
#include "sim_http.h"

static struct world {
    struct mu_sim *sim;
    struct mu_sim_proc *proc;
    struct mu_gateway_etcd *gateway;
    struct mu_gateway_op op;
    struct mu_span key;
    const char *grant;          /* what a request for a lease gets; NULL: a refusal */
    unsigned sessions, watches; /* lines that say that they are lost */
    unsigned asked;             /* requests for a lease */
    bool closed;
} w;

static void on_line(void *context, enum muster_log_level level, const char *id, const char *line)
{
    (void)context;
    (void)level;
    (void)line;
    w.sessions += strcmp(id, "BACKING-SESSION-LOST") == 0;
    w.watches += strcmp(id, "BACKING-WATCH-ENDED") == 0;
}

static void on_request(void *arg, struct mu_sim_exchange *x, const char *method, const char *path,
                       struct mu_span body)
{
    bool grant = strstr(path, "/lease/grant") != NULL;

    (void)arg;
    (void)method;
    (void)body;
    w.asked += grant;
    if (grant && w.grant != NULL) {
        mu_sim_http_answer(x, 200, mu_span_str(w.grant), true);
    } else if (strstr(path, "/lease/keepalive") != NULL) {
        /* The lease has expired. */
        mu_sim_http_answer(x, 200, MU_SPAN_LIT("{\"result\":{\"ID\":\"7\"}}"), true);
    } else {
        mu_sim_http_answer(x, 404, MU_SPAN_LIT("404 page not found\n"), true);
    }
}

static void on_gone(void *arg, struct mu_sim_exchange *x)
{
    (void)arg;
    (void)x;
}

static void on_turn(void *context)
{
    (void)context;
}

static void on_change(struct mu_gateway_op *op, const struct mu_change *change, bool gap)
{
    (void)op;
    (void)change;
    (void)gap;
}

static void on_done(struct mu_gateway_op *op)
{
    (void)op;
}

static int start(struct mu_env *env, void *arg)
{
    const struct mu_gateway_events events = {.turn_ended = on_turn};
    struct mu_errmsg msg;

    (void)arg;
    return mu_gateway_etcd_new(env, "etcd://etcd/place", &events, &w.gateway, &msg);
}

static void watch(void *arg)
{
    (void)arg;
    w.key = MU_SPAN_LIT("key");
    w.op.base.request =
        (struct mu_store_request){.verb = MU_STORE_WATCH, .keys = &w.key, .key_count = 1};
    w.op.done = on_done;
    w.op.change = on_change;
    mu_gateway_etcd_submit(w.gateway, NULL, &w.op);
}

static void on_closed(void *context)
{
    (void)context;
    w.closed = true;
}

static void stop(void *arg)
{
    (void)arg;
    mu_gateway_etcd_close(w.gateway, false, on_closed, NULL);
}

static int begin(void **state)
{
    static const struct mu_sim_http_ops ops = {.request = on_request, .gone = on_gone};

    (void)state;
    memset(&w, 0, sizeof(w));
    muster_log_set(on_line, NULL, MUSTER_LOG_WARN);
    w.sim = mu_sim_new(&(struct mu_sim_config){.seed = 1, .faults = mu_sim_faults_none()});
    (void)mu_sim_http_serve(mu_sim_host_new(w.sim, "etcd"), 2379, &ops, NULL);
    w.proc = mu_sim_proc_new(mu_sim_host_new(w.sim, "a"),
                             &(struct mu_sim_program){.name = "gateway", .start = start});
    return 0;
}

static int finish(void **state)
{
    (void)state;
    mu_sim_call(w.proc, stop, NULL);
    mu_sim_run_for(w.sim, 60 * MU_NS_PER_S);
    assert_true(w.closed);
    assert_null(mu_sim_failure(w.sim));
    mu_sim_free(w.sim);
    muster_log_set(NULL, NULL, MUSTER_LOG_WARN);
    return 0;
}

static void test_gateway_etcd_says_once_that_there_is_no_session(void **state)
{
    (void)state;
    mu_sim_run_for(w.sim, 60 * MU_NS_PER_S);
    assert_true(w.asked > 10); /* it tries on */
    assert_int_equal(w.sessions, 1);
    /* One that is granted, and lost again, is news. */
    w.grant = "{\"ID\":\"7\",\"TTL\":\"600\"}";
    mu_sim_run_for(w.sim, 10 * MU_NS_PER_S);
    w.grant = NULL;
    assert_int_equal(w.sessions, 1);
    mu_sim_run_for(w.sim, 600 * MU_NS_PER_S);
    assert_int_equal(w.sessions, 2);
}

static void test_gateway_etcd_says_once_that_there_is_no_watch(void **state)
{
    (void)state;
    mu_sim_run_for(w.sim, MU_NS_PER_S);
    mu_sim_call(w.proc, watch, NULL);
    mu_sim_run_for(w.sim, 60 * MU_NS_PER_S);
    assert_int_equal(w.watches, 1);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, finish)
    const struct CMUnitTest tests[] = {
        TEST(test_gateway_etcd_says_once_that_there_is_no_session),
        TEST(test_gateway_etcd_says_once_that_there_is_no_watch),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
