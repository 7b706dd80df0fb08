/* The client of etcd against a cluster in the simulator: how long answers may be. */
#include "unit.h"

#include <muster/error.h>

#include "codec/etcd/json.h"
#include "fake_etcd.h"
#include "service/etcd/etcd.h"
#include "sim.h"

#define SHORT 1000
#define LONG  20000
#define LIMIT 10000 /* of an answer, with what is around the value, which is in base64 */

static struct world {
    struct mu_sim *sim;
    struct fake_etcd *cluster;
    struct mu_sim_proc *proc;
    struct mu_etcd *etcd;
    struct mu_etcd_call call;
    struct mu_buf body;
    int done;
    int status;
    size_t got;
    char text[256];
    struct mu_etcd_watch watch;
    int ready, changes, ended, ended_status;
    char ended_text[256];
    bool closed;
} w;

static int start(struct mu_env *env, void *arg)
{
    struct mu_etcd_config config = mu_etcd_config_defaults();
    struct mu_errmsg msg;

    (void)arg;
    config.endpoints = "e0";
    config.reply_bytes_max = LIMIT;
    assert_int_equal(mu_etcd_new(env, &config, &w.etcd, &msg), 0);
    return 0;
}

static int set_up(void **unused)
{
    static const char *const hosts[] = {"e0"};
    static const struct mu_sim_program program = {.name = "client", .start = start};

    (void)unused;
    memset(&w, 0, sizeof(w));
    w.sim = mu_sim_new(&(struct mu_sim_config){.seed = 1, .faults = mu_sim_faults_none()});
    w.cluster = fake_etcd_new(w.sim, hosts, 1);
    w.proc = mu_sim_proc_new(mu_sim_host_new(w.sim, "c"), &program);
    mu_sim_run_for(w.sim, MU_NS_PER_S);
    return 0;
}

static void on_closed(void *context)
{
    (void)context;
    w.closed = true;
}

static void close_client(void *arg)
{
    (void)arg;
    mu_etcd_close(w.etcd, on_closed, NULL);
}

static int tear_down(void **unused)
{
    (void)unused;
    mu_sim_call(w.proc, close_client, NULL);
    mu_sim_run_for(w.sim, 5 * MU_NS_PER_S);
    assert_true(w.closed);
    assert_null(mu_sim_failure(w.sim));
    fake_etcd_free(w.cluster);
    mu_sim_free(w.sim);
    return 0;
}

/* --- one operation ---------------------------------------------------------------------------- */

static void on_done(struct mu_etcd_call *call)
{
    w.done++;
    w.status = call->status;
    w.got =
        call->status == 0 && call->reply->result_count == 1 && call->reply->results[0].kv_count == 1
            ? call->reply->results[0].kvs[0].value.len
            : 0;
    (void)snprintf(w.text, sizeof(w.text), "%s", call->errmsg.text);
    mu_buf_fini(&w.body);
}

static void begin(void *arg)
{
    const struct mu_etcd_op *op = arg;

    mu_buf_init(&w.body, 1 << 20);
    assert_int_equal(mu_etcd_encode_op(&w.body, op), 0);
    w.call = (struct mu_etcd_call){.path = mu_etcd_op_path(op->kind),
                                   .body = mu_buf_span(&w.body),
                                   .repeat = true,
                                   .done = on_done};
    mu_etcd_submit(w.etcd, &w.call);
}

static int run(struct mu_etcd_op op)
{
    w.done = 0;
    mu_sim_call(w.proc, begin, &op);
    mu_sim_run_for(w.sim, 5 * MU_NS_PER_S);
    assert_int_equal(w.done, 1);
    return w.status;
}

static void put(const char *key, size_t len)
{
    static const uint8_t value[LONG];

    assert_int_equal(run((struct mu_etcd_op){.kind = MU_ETCD_PUT,
                                             .key = mu_span_str(key),
                                             .value = mu_span(value, len)}),
                     0);
}

static void test_etcd_an_answer_is_so_long_and_no_longer(void **unused)
{
    (void)unused;
    put("a", SHORT);
    put("b", LONG);
    assert_int_equal(run((struct mu_etcd_op){.kind = MU_ETCD_RANGE, .key = MU_SPAN_LIT("a")}), 0);
    assert_int_equal(w.got, SHORT);
    assert_int_equal(run((struct mu_etcd_op){.kind = MU_ETCD_RANGE, .key = MU_SPAN_LIT("b")}),
                     MUSTER_ELIMIT);
    assert_string_equal(w.text, "the answer is longer than 10000 bytes");
    assert_int_equal(run((struct mu_etcd_op){.kind = MU_ETCD_RANGE, .key = MU_SPAN_LIT("a")}), 0);
}

/* --- a watch ---------------------------------------------------------------------------------- */

static void on_change(struct mu_etcd_watch *watch, const struct mu_etcd_change *change)
{
    (void)watch;
    (void)change;
    w.changes++;
}

static void on_ready(struct mu_etcd_watch *watch)
{
    (void)watch;
    w.ready++;
}

static void on_ended(struct mu_etcd_watch *watch, int status)
{
    w.ended++;
    w.ended_status = status;
    (void)snprintf(w.ended_text, sizeof(w.ended_text), "%s", watch->errmsg.text);
}

static void watch(void *arg)
{
    (void)arg;
    w.watch = (struct mu_etcd_watch){.key = MU_SPAN_LIT("a"),
                                     .end = MU_SPAN_LIT("z"),
                                     .change = on_change,
                                     .ready = on_ready,
                                     .ended = on_ended};
    mu_etcd_watch_start(w.etcd, &w.watch);
}

/* What is too long now is too long the next time: it ends, and does not ask for ever. */
static void test_etcd_a_piece_of_a_watch_is_so_long_and_no_longer(void **unused)
{
    (void)unused;
    mu_sim_call(w.proc, watch, NULL);
    mu_sim_run_for(w.sim, 5 * MU_NS_PER_S);
    assert_int_equal(w.ready, 1);
    for (int i = 0; i < 20; i++) { /* Together they are longer than one may be. */
        put("a", SHORT);
    }
    assert_true(w.changes == 20 && w.ended == 0);
    put("b", LONG);
    mu_sim_run_for(w.sim, 60 * MU_NS_PER_S);
    assert_int_equal(w.changes, 20);
    assert_int_equal(w.ended, 1);
    assert_int_equal(w.ended_status, MUSTER_ELIMIT);
    assert_string_equal(w.ended_text, "a piece of a watch is longer than 10000 bytes");
}

#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_etcd_an_answer_is_so_long_and_no_longer),
        T(test_etcd_a_piece_of_a_watch_is_so_long_and_no_longer),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
