/* The client of etcd against a cluster in the simulator: how long answers may be. */
#include "unit.h"

#include <muster/error.h>

#include "codec/etcd/json.h"
#include "fake_etcd.h"
#include "service/etcd/doctor.h"
#include "service/etcd/etcd.h"
#include "sim_http.h"

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
    char text[MU_ERRMSG_CAP];
    struct mu_etcd_watch watch;
    int ready, changes, ended, ended_status;
    char ended_text[MU_ERRMSG_CAP];
    const char *endpoints;
    size_t answer_len; /* of the server at e1: a token, or what it says about its version */
    struct mu_etcd_doctor *doctor;
    int examined;
    bool closed;
} w;

static int start(struct mu_env *env, void *arg)
{
    struct mu_etcd_config config = mu_etcd_config_defaults();
    struct mu_errmsg msg;

    (void)arg;
    config.endpoints = w.endpoints;
    config.user = config.password = strcmp(w.endpoints, "e1") == 0 ? "me" : NULL;
    config.reply_bytes_max = LIMIT;
    assert_int_equal(mu_etcd_new(env, &config, &w.etcd, &msg), 0);
    return 0;
}

/* A server that says whatever it is asked for at the length that the test wants. */
static void on_request(void *arg, struct mu_sim_exchange *x, const char *method, const char *path,
                       struct mu_span body)
{
    bool version = strcmp(path, "/version") == 0;
    struct mu_buf out;

    (void)arg;
    (void)method;
    (void)body;
    mu_buf_init(&out, 8 << 20);
    if (version || strcmp(path, "/v3/auth/authenticate") == 0) {
        const char *head = version ? "{\"etcdserver\":\"3.5.0\",\"x\":\"" : "{\"token\":\"";
        size_t around = version ? strlen(head) + 2 : 0;

        assert_int_equal(mu_buf_append(&out, mu_span_str(head)), 0);
        assert_int_equal(mu_buf_reserve(&out, w.answer_len), 0);
        memset(mu_buf_grow(&out, w.answer_len - around), 't', w.answer_len - around);
        assert_int_equal(mu_buf_append(&out, MU_SPAN_LIT("\"}")), 0);
        mu_sim_http_answer(x, 200, mu_buf_span(&out), true);
    } else if (strcmp(path, "/v3/maintenance/status") == 0) {
        mu_sim_http_answer(x, 200, MU_SPAN_LIT("{\"version\":\"3.5.0\"}"), true);
    } else if (strcmp(path, "/v3/kv/range") == 0) {
        mu_sim_http_answer(x, 200, MU_SPAN_LIT("{\"header\":{\"revision\":\"1\"}}"), true);
    } else {
        mu_sim_http_answer(x, 404, MU_SPAN_LIT("no"), true);
    }
    mu_buf_fini(&out);
}

static void on_gone(void *arg, struct mu_sim_exchange *x)
{
    (void)arg;
    (void)x;
}

static int open_world(const char *endpoints)
{
    static const struct mu_sim_http_ops ops = {.request = on_request, .gone = on_gone};
    static const char *const hosts[] = {"e0"};
    static const struct mu_sim_program program = {.name = "client", .start = start};

    memset(&w, 0, sizeof(w));
    w.endpoints = endpoints;
    w.sim = mu_sim_new(&(struct mu_sim_config){.seed = 1, .faults = mu_sim_faults_none()});
    w.cluster = fake_etcd_new(w.sim, hosts, 1);
    (void)mu_sim_http_serve(mu_sim_host_new(w.sim, "e1"), FAKE_ETCD_PORT, &ops, NULL);
    w.proc = mu_sim_proc_new(mu_sim_host_new(w.sim, "c"), &program);
    mu_sim_run_for(w.sim, MU_NS_PER_S);
    return 0;
}

static int set_up(void **unused)
{
    (void)unused;
    return open_world("e0");
}

/* The client goes to the server at e1, with a password. */
static int set_up_e1(void **unused)
{
    (void)unused;
    return open_world("e1");
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

/* --- a server that says too much -------------------------------------------------------------- */

/* Meets TOKEN_MAX of service/etcd/etcd.c: with the zero behind it, a token has so many bytes. */
static void test_etcd_a_token_is_so_long(void **unused)
{
    (void)unused;
    w.answer_len = 8191;
    assert_int_equal(run((struct mu_etcd_op){.kind = MU_ETCD_RANGE, .key = MU_SPAN_LIT("a")}), 0);
}

static void test_etcd_a_token_is_no_longer(void **unused)
{
    (void)unused;
    w.answer_len = 8192;
    assert_int_equal(run((struct mu_etcd_op){.kind = MU_ETCD_RANGE, .key = MU_SPAN_LIT("a")}),
                     MUSTER_ELIMIT);
    assert_string_equal(w.text, "etcd's token for user \"me\" has 8192 bytes, and at most 8191 are "
                                "taken: use etcd --auth-token=simple, or shorter JWT claims");
}

static void on_examined(struct mu_etcd_doctor *doctor, void *context)
{
    (void)doctor;
    (void)context;
    w.examined++;
}

static void examine(void *arg)
{
    struct mu_etcd_doctor_config config = {.endpoints = "e1", .prefix = "/p", .done = on_examined};
    struct mu_errmsg msg;

    assert_int_equal(mu_etcd_doctor_start(arg, &config, &w.doctor, &msg), 0);
}

static void examine_as_user(void *arg)
{
    struct mu_etcd_doctor_config config = {
        .endpoints = "e1", .prefix = "/p", .user = "me", .password = "pw", .done = on_examined};
    struct mu_errmsg msg;

    assert_int_equal(mu_etcd_doctor_start(arg, &config, &w.doctor, &msg), 0);
}

static void free_doctor(void *arg)
{
    (void)arg;
    mu_etcd_doctor_free(w.doctor);
}

/* Meets ANSWER_MAX of service/etcd/doctor.c. */
static void test_etcd_doctor_hears_so_much_and_no_more(void **unused)
{
    (void)unused;
    for (size_t more = 0; more < 2; more++) {
        w.answer_len = (4 << 20) + more;
        w.examined = 0;
        mu_sim_call(w.proc, examine, mu_sim_proc_env(w.proc));
        mu_sim_run_for(w.sim, 60 * MU_NS_PER_S);
        assert_int_equal(w.examined, 1);
        assert_int_equal(w.doctor->exams[0].status == 0, more == 0);
        assert_string_equal(w.doctor->exams[0].version, more == 0 ? "3.5.0" : "");
        assert_string_equal(w.doctor->exams[0].text.text,
                            more == 0 ? ""
                                      : "its answer is longer than 4 MiB: check that the URL names "
                                        "etcd's client port, and nothing between it and us");
        mu_sim_call(w.proc, free_doctor, NULL);
    }
}

/* Meets TEXT_MAX of service/etcd/doctor.c: it takes a token as the client does. */
static void test_etcd_doctor_takes_so_long_a_token_and_no_longer(void **unused)
{
    (void)unused;
    for (size_t more = 0; more < 2; more++) {
        w.answer_len = 8191 + more;
        mu_sim_call(w.proc, examine_as_user, mu_sim_proc_env(w.proc));
        mu_sim_run_for(w.sim, 60 * MU_NS_PER_S);
        assert_int_equal(w.doctor->exams[0].password, more == 0 ? MU_ETCD_YES : MU_ETCD_BROKEN);
        assert_string_equal(w.doctor->exams[0].auth_text.text,
                            more == 0 ? ""
                                      : "its token has 8192 bytes, and at most 8191 are taken");
        mu_sim_call(w.proc, free_doctor, NULL);
    }
}

#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_etcd_an_answer_is_so_long_and_no_longer),
        T(test_etcd_a_piece_of_a_watch_is_so_long_and_no_longer),
        cmocka_unit_test_setup_teardown(test_etcd_a_token_is_so_long, set_up_e1, tear_down),
        cmocka_unit_test_setup_teardown(test_etcd_a_token_is_no_longer, set_up_e1, tear_down),
        T(test_etcd_doctor_takes_so_long_a_token_and_no_longer),
        T(test_etcd_doctor_hears_so_much_and_no_more),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
