/* How things stand, as text: quoting, what happened lately, an agent's page, a donor's rates. */
#include "unit.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codec/text/json_view.h"
#include "failheap.h"
#include "service/agent/status.h"
#include "service/server/server.h"
#include "service/state/donor_internal.h"

/* --- a world that has nothing but a clock ----------------------------------------------------- */

static struct mu_now the_time;

static struct mu_now tell_time(struct mu_env *env)
{
    (void)env;
    return the_time;
}

static const struct mu_env_ops ops = {.now = tell_time};
static struct mu_env env = {.ops = &ops};

static void pass_ms(uint64_t ms)
{
    the_time.mono.ns += ms * MU_NS_PER_MS;
    the_time.wall.ns += ms * MU_NS_PER_MS;
}

/* --- helpers ---------------------------------------------------------------------------------- */

/* The text, terminated; lent until the next call. */
static const char *text_of(struct mu_buf *b)
{
    assert_int_equal(mu_buf_append(b, mu_span("", 1)), 0);
    return (const char *)mu_buf_span(b).data;
}

static void assert_is_json(const char *text)
{
    if (!mu_jv_valid(mu_span_str(text))) {
        fail_msg("not JSON: %s", text);
    }
    assert_null(strchr(text, '\n'));
}

static void assert_has(const char *text, const char *part)
{
    if (strstr(text, part) == NULL) {
        print_error("\"%s\" is not in: %s\n", part, text);
    }
    assert_non_null(strstr(text, part));
}

/* --- text ------------------------------------------------------------------------------------- */

static void test_status_quotes_what_json_would_misread(void **state)
{
    static const struct {
        const char *in;
        const char *out;
    } cases[] = {
        {"", "\"\""},
        {"plain", "\"plain\""},
        {"a\"b\\c", "\"a\\\"b\\\\c\""},
        {"two\nlines\t", "\"two\\nlines\\u0009\""},
        {"\x7f", "\"\\u007f\""},
        {"caf\xc3\xa9", "\"caf\xc3\xa9\""},
        {"\xff", "\"\\ufffd\""},
        {"\xc3", "\"\\ufffd\""},
        {"\xc3(", "\"\\ufffd(\""},
        {"\xed\xa0\x80", "\"\\ufffd\\ufffd\\ufffd\""}, /* half of a pair */
        {"\xf4\x90\x80\x80", "\"\\ufffd\\ufffd\\ufffd\\ufffd\""},
        {"\xf0\x9f\x98\x80", "\"\xf0\x9f\x98\x80\""},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct mu_buf out;
        struct mu_status_text t = {.out = &out};

        mu_buf_init(&out, 1024);
        mu_status_quote(&t, cases[i].in);
        assert_int_equal(t.err, 0);
        assert_string_equal(text_of(&out), cases[i].out);
        mu_buf_fini(&out);
    }
}

static void test_status_keeps_its_first_error(void **state)
{
    static char longer[2 * MU_STATUS_QUOTE_MAX];
    struct mu_buf out;
    struct mu_status_text t = {.out = &out};

    (void)state;
    memset(longer, 'x', sizeof(longer) - 1);
    mu_buf_init(&out, 1 << 20);
    mu_status_put(&t, "a");
    mu_status_quote(&t, longer);
    assert_int_equal(t.err, MUSTER_ELIMIT);
    mu_status_put(&t, "b");
    mu_status_quote(&t, "c");
    assert_int_equal(t.err, MUSTER_ELIMIT);
    assert_string_equal(text_of(&out), "a");
    mu_buf_fini(&out);
}

static void test_status_has_the_last_events_newest_first(void **state)
{
    static struct mu_status_events events;
    struct mu_buf out;
    struct mu_status_text t = {.out = &out};
    const char *text;
    char line[32];

    (void)state;
    for (int i = 0; i < MU_STATUS_EVENTS + 3; i++) {
        (void)snprintf(line, sizeof(line), "event %d.", i);
        mu_status_events_add(&events, (mu_wall_t){(uint64_t)i * MU_NS_PER_MS}, "run", line);
    }
    mu_buf_init(&out, 1 << 20);
    mu_status_put(&t, "{\"first\":1");
    mu_status_events_put(&t, &events);
    mu_status_put(&t, "}");
    text = text_of(&out);
    assert_is_json(text);
    assert_has(text, "[{\"at_ms\":66,\"run\":\"run\",\"text\":\"event 66.\"}");
    assert_has(text, "event 3.");
    assert_null(strstr(text, "event 2."));
    mu_buf_fini(&out);
}

/* --- the time line ---------------------------------------------------------------------------- */

static void add_point(struct mu_status_history *h, uint64_t at_ms, enum mu_status_mark mark,
                      uint32_t nodes, const char *who)
{
    struct mu_status_point point = {
        .at = {at_ms * MU_NS_PER_MS}, .round = 3, .mark = mark, .nodes = nodes};

    (void)snprintf(point.who, sizeof(point.who), "%s", who);
    mu_status_history_add(h, &point);
}

static void test_history_joins_what_happens_at_once(void **state)
{
    static struct mu_status_history history;
    struct mu_buf out;
    struct mu_status_text t = {.out = &out};
    const char *text;

    (void)state;
    for (int i = 0; i < 1000; i++) { /* a large run begins */
        add_point(&history, 5000 + (uint64_t)i / 2, MU_STATUS_JOINED, 1, "first");
    }
    add_point(&history, 5600, MU_STATUS_ROUND, 1000, "");
    add_point(&history, 9000, MU_STATUS_LOST, 1, "a\"b");
    add_point(&history, 9001, MU_STATUS_ENDED, 0, "");
    add_point(&history, 9002, MU_STATUS_ROUND, 999, "");
    add_point(&history, 9003, MU_STATUS_ROUND, 998, "");
    add_point(&history, 20000, MU_STATUS_LOST, 1, "b");
    add_point(&history, 21000, MU_STATUS_LOST, 1, "c"); /* a second later: another one */
    mu_buf_init(&out, 1 << 20);
    mu_status_put(&t, "{\"first\":1");
    mu_status_history_put(&t, &history);
    mu_status_put(&t, "}");
    text = text_of(&out);
    assert_is_json(text);
    assert_has(text,
               "[{\"at_ms\":5000,\"what\":\"joined\",\"round\":3,\"nodes\":1000,"
               "\"who\":\"first\"},"
               "{\"at_ms\":5600,\"what\":\"round\",\"round\":3,\"nodes\":1000},"
               "{\"at_ms\":9000,\"what\":\"lost\",\"round\":3,\"nodes\":1,\"who\":\"a\\\"b\"},"
               "{\"at_ms\":9001,\"what\":\"ended\"");
    assert_int_equal(history.count, 8);
    mu_buf_fini(&out);
}

static void test_history_forgets_what_is_oldest(void **state)
{
    static struct mu_status_history history;
    struct mu_buf out;
    struct mu_status_text t = {.out = &out};
    const char *text;

    (void)state;
    for (uint32_t i = 0; i < MU_STATUS_HISTORY + 2; i++) {
        add_point(&history, i, MU_STATUS_ROUND, i, "");
    }
    mu_buf_init(&out, 1 << 20);
    mu_status_history_put(&t, &history);
    text = text_of(&out);
    assert_has(text, "[{\"at_ms\":2,");
    assert_has(text, "\"nodes\":65}]");
    mu_buf_fini(&out);
}

/* --- an agent --------------------------------------------------------------------------------- */

struct agent_rig {
    struct mu_agent_service_config config;
    struct mu_agent_status status;
    struct mu_status_source source;
    struct mu_buf out;
};

static void rig_init(struct agent_rig *r)
{
    *r = (struct agent_rig){0};
    r->config.policy.workers = 2;
    r->config.policy.restarts_max = 3;
    r->config.role = "trainer";
    r->config.rdzv.run_id = "na\"me";
    r->config.rdzv.backend = "muster";
    r->config.rdzv.endpoint = "10.0.0.1:29400";
    r->config.rdzv.nodes_min = 1;
    r->config.rdzv.nodes_max = 4;
    assert_int_equal(mu_agent_status_init(&r->status, &env, &r->config, "host-1"), 0);
    r->source = mu_agent_status_source(&r->status);
    mu_buf_init(&r->out, 1 << 20);
}

static void rig_fini(struct agent_rig *r)
{
    mu_buf_fini(&r->out);
    mu_agent_status_fini(&r->status);
}

static const char *json_of(struct agent_rig *r)
{
    mu_buf_reset(&r->out);
    assert_int_equal(r->source.json(r->source.context, &r->out), 0);
    assert_is_json(text_of(&r->out));
    return (const char *)mu_buf_span(&r->out).data;
}

static const char *metrics_of(struct agent_rig *r)
{
    mu_buf_reset(&r->out);
    assert_int_equal(r->source.metrics(r->source.context, &r->out), 0);
    return text_of(&r->out);
}

static const struct mu_agent_attempt attempt = {
    .round = 7,
    .restart_count = 1,
    .group_rank = 2,
    .group_world = 4,
    .ranks = {.base = 4, .world = 8},
    .workers = 2,
};

/* The agent itself is not there; this is all that is asked of it. */
void mu_agent_service_stores(const struct mu_agent_service *s,
                             const struct mu_store_server **ret_gateway,
                             const struct mu_store_server **ret_server)
{
    (void)s;
    *ret_gateway = *ret_server = NULL;
}

void mu_store_server_stats(const struct mu_store_server *server, struct mu_store_server_stats *ret)
{
    (void)server;
    *ret = (struct mu_store_server_stats){0};
}

int64_t mu_agent_service_pid(const struct mu_agent_service *s, uint32_t local_rank)
{
    (void)s;
    return 76 + (int64_t)local_rank;
}

static void run_workers(struct agent_rig *r)
{
    mu_agent_status_prepare(&r->status, &attempt);
    mu_agent_status_started(&r->status, NULL);
}

static void test_agent_status_tells_round_rank_and_workers(void **state)
{
    struct agent_rig r;
    const char *text;

    (void)state;
    rig_init(&r);
    text = json_of(&r);
    assert_has(text, "\"state\":\"joining\"");
    assert_has(text, "\"workers\":[]");
    assert_null(strstr(text, "\"round\""));
    assert_false(r.source.ready(r.source.context));

    run_workers(&r);
    pass_ms(1500);
    text = json_of(&r);
    assert_has(text, "\"round\":7,\"rank\":2,\"nodes\":4,\"first_worker\":4,\"world\":8");
    assert_has(text, "\"restarts\":1,\"restarts_max\":3");
    assert_has(text,
               "{\"rank\":5,\"local_rank\":1,\"pid\":77,\"state\":\"running\",\"since_ms\":1500}");
    assert_true(r.source.ready(r.source.context));
    assert_has(metrics_of(&r), "muster_agent_workers{run=\"na\\\"me\",state=\"running\"} 2\n");
    rig_fini(&r);
}

static void test_agent_status_tells_steps_and_how_long_they_took(void **state)
{
    struct agent_rig r;
    const char *text;

    (void)state;
    rig_init(&r);
    run_workers(&r);
    text = json_of(&r);
    assert_null(strstr(text, "step"));
    assert_null(strstr(metrics_of(&r), "muster_agent_step"));

    mu_agent_status_step(&r.status, 1, 100, 0); /* the first one shows no time */
    assert_has(json_of(&r), "\"step\":100,\"step_us\":0}");
    mu_agent_status_step(&r.status, 1, 101, 250 * MU_NS_PER_MS);
    mu_agent_status_step(&r.status, 1, 104, 300 * MU_NS_PER_MS);
    mu_agent_status_step(&r.status, 1, 104, 0); /* again, or back: no time is known */
    mu_agent_status_step(&r.status, 0, 7, 0);
    mu_agent_status_step(&r.status, 0, 8, 3 * MU_NS_PER_S); /* not of whom times are kept */
    mu_agent_status_step(&r.status, 99, 99, 1);             /* no worker of ours */
    text = json_of(&r);
    assert_has(text, "\"step\":104,\"step_us\":300000}");
    assert_has(text, "\"step\":8,\"step_us\":3000000}");
    assert_has(text, ",\"step_times_us\":[250000,300000]");
    text = metrics_of(&r);
    assert_has(text, "muster_agent_step{run=\"na\\\"me\"} 8\n");
    assert_has(text, "muster_agent_step_seconds{run=\"na\\\"me\"} 3.000000\n");
    for (uint32_t i = 0; i < 2 * MU_AGENT_STATUS_STEPS; i++) {
        mu_agent_status_step(&r.status, 1, 200 + i, MU_NS_PER_MS);
    }
    text = strstr(json_of(&r), "step_times_us");
    assert_non_null(text);
    assert_has(text, "[1000,1000,");
    rig_fini(&r);
}

static void test_agent_status_tells_a_hang_while_it_lasts(void **state)
{
    static char missing[] = "3";
    static char words[] = "rank 3 is \"missing\"";
    static char stacks[] = "3 ranks in all_reduce";
    struct mu_hang hang = {.since_s = 1000, .missing = missing, .text = words, .stacks = stacks};
    struct agent_rig r;

    (void)state;
    rig_init(&r);
    run_workers(&r);
    assert_null(strstr(json_of(&r), "\"hang\""));
    mu_agent_status_hang(&r.status, &hang);
    assert_has(json_of(&r), ",\"hang\":{\"since\":1000,\"missing\":\"3\",\"text\":"
                            "\"rank 3 is \\\"missing\\\"\"}");
    assert_has(metrics_of(&r), "muster_agent_hung{run=\"na\\\"me\"} 1\n");
    hang.over = true;
    mu_agent_status_hang(&r.status, &hang);
    assert_null(strstr(json_of(&r), "\"hang\""));
    assert_has(metrics_of(&r), "muster_agent_hung{run=\"na\\\"me\"} 0\n");
    assert_has(metrics_of(&r), "muster_agent_hangs_total{run=\"na\\\"me\"} 1\n");
    rig_fini(&r);
}

static void test_agent_status_tells_of_a_sick_machine(void **state)
{
    struct mu_health_findings ill = {.count = MU_AGENT_STATUS_ILL + 1};
    const struct mu_health_finding xid = {.level = MU_HEALTH_WARN, .kind = MU_HEALTH_XID};
    struct agent_rig r;

    (void)state;
    rig_init(&r);
    assert_null(strstr(json_of(&r), "\"health\""));
    for (size_t i = 0; i < ill.count; i++) {
        ill.items[i] = (struct mu_health_finding){
            .level = MU_HEALTH_WARN, .kind = MU_HEALTH_GPU_SLOW, .text = "it is \"hot\""};
    }
    ill.items[0].level = MU_HEALTH_FAULT;
    ill.items[0].kind = MU_HEALTH_GPU_LOST;
    mu_agent_status_health(&r.status, &ill, &xid);
    assert_has(json_of(&r), ",\"health\":[{\"level\":\"fault\",\"kind\":\"gpu_lost\",\"text\":"
                            "\"it is \\\"hot\\\"\",\"remedy\":\"\"},{\"level\":\"warning\"");
    assert_int_equal(r.status.ill_count, MU_AGENT_STATUS_ILL);
    assert_has(metrics_of(&r), "muster_agent_health_faults{run=\"na\\\"me\"} 1\n");
    assert_has(metrics_of(&r), "muster_agent_health_warnings{run=\"na\\\"me\"} 8\n");
    assert_has(metrics_of(&r), "muster_agent_xids_total{run=\"na\\\"me\"} 1\n");
    ill.count = 0;
    mu_agent_status_health(&r.status, &ill, NULL);
    assert_null(strstr(json_of(&r), "\"health\""));
    assert_has(metrics_of(&r), "muster_agent_xids_total{run=\"na\\\"me\"} 1\n");
    rig_fini(&r);
}

static void test_agent_status_tells_failed_workers_from_stopped_ones(void **state)
{
    struct agent_rig r;
    const char *text;

    (void)state;
    rig_init(&r);
    run_workers(&r);
    mu_agent_status_exited(&r.status, &(struct mu_agent_worker_end){
                                          .rank = 5, .local_rank = 1, .pid = 77, .exit_code = -9});
    mu_agent_status_exited(
        &r.status, &(struct mu_agent_worker_end){
                       .rank = 4, .local_rank = 0, .pid = 76, .exit_code = -15, .stopped = true});
    mu_agent_status_exited(&r.status, &(struct mu_agent_worker_end){.local_rank = 99});
    text = json_of(&r);
    assert_has(text, "\"state\":\"stopping\"");
    assert_has(text, "\"failures\":1");
    assert_has(text, "\"pid\":77,\"state\":\"failed\",\"since_ms\":0,\"exit_code\":-9");
    assert_has(text, "\"pid\":76,\"state\":\"stopped\",\"since_ms\":0,\"exit_code\":-15");
    assert_has(text, "rank 5 was ended by SIGKILL");
    assert_has(text, "\"what\":\"round\",\"round\":7,\"nodes\":4},{\"at_ms\":");
    assert_has(text, "\"what\":\"failed\",\"round\":7,\"nodes\":1,\"who\":\"rank 5\"}]");
    assert_false(r.source.ready(r.source.context));
    rig_fini(&r);
}

static void test_agent_status_knows_who_failed_before_the_last_has_started(void **state)
{
    struct agent_rig r;

    (void)state;
    rig_init(&r);
    mu_agent_status_prepare(&r.status, &attempt);
    mu_agent_status_exited(&r.status, &(struct mu_agent_worker_end){
                                          .rank = 4, .local_rank = 0, .pid = 76, .exit_code = 1});
    mu_agent_status_started(&r.status, NULL);
    assert_has(json_of(&r), "\"state\":\"stopping\"");
    assert_int_equal(r.status.workers[0].state, MU_WORKER_FAILED);
    assert_int_equal(r.status.workers[1].state, MU_WORKER_RUNNING);
    rig_fini(&r);
}

static void test_agent_status_ends_with_the_verdict(void **state)
{
    struct agent_rig r;
    struct mu_agent_verdict verdict = {.outcome = MU_AGENT_FAILED,
                                       .text = "x failed; no restart is left",
                                       .unsaid = "no restart is left",
                                       .has_failure = true};
    const char *text;

    (void)state;
    rig_init(&r);
    run_workers(&r);
    verdict.first_failure.rank = 5;
    verdict.first_failure.exit_code = 3;
    mu_agent_status_log(&r.status, "x failed");
    mu_agent_status_ended(&r.status, &verdict);
    text = json_of(&r);
    assert_has(text,
               "\"verdict\":{\"outcome\":\"failed\",\"text\":\"x failed; no restart is left\","
               "\"first_failure\":{\"rank\": 5, \"local_rank\": 0, \"exit_code\": 3, ");
    assert_int_equal(r.status.events.count, 2); /* what was said is not said again */
    assert_has(text, "\"text\":\"no restart is left\"}");
    rig_fini(&r);
}

static void test_agent_status_fails_without_memory(void **state)
{
    struct agent_rig r;
    int err;

    (void)state;
    rig_init(&r);
    run_workers(&r);
    for (long nth = 0;; nth++) {
        mu_buf_fini(&r.out);
        mu_buf_init(&r.out, 1 << 20);
        failheap_arm(nth);
        err = r.source.json(r.source.context, &r.out);
        if (!failheap_fired()) {
            failheap_disarm();
            break;
        }
        failheap_disarm();
        assert_int_equal(err, MUSTER_ENOMEM);
    }
    assert_int_equal(err, 0);
    rig_fini(&r);
}

/* --- a meter ---------------------------------------------------------------------------------- */

static void test_meter_tells_what_came_lately(void **state)
{
    struct mu_state_meter m = {0};
    mu_mono_t now = {MU_NS_PER_S};

    (void)state;
    m.since = m.mark = now;
    for (int i = 0; i < 10; i++) { /* a second of 1000 bytes, */
        now = mu_mono_add_ms(now, 100);
        mu_state_meter_add(&m, now, 100);
    }
    assert_int_equal(m.bytes, 1000);
    assert_int_equal(m.bytes_per_s, 1000);
    for (int i = 0; i < 10; i++) { /* then one of ten times that */
        now = mu_mono_add_ms(now, 100);
        mu_state_meter_add(&m, now, 1000);
    }
    assert_int_equal(m.bytes, 11000);
    assert_int_equal(m.bytes_per_s, 10000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_status_quotes_what_json_would_misread),
        cmocka_unit_test(test_status_keeps_its_first_error),
        cmocka_unit_test(test_status_has_the_last_events_newest_first),
        cmocka_unit_test(test_agent_status_tells_round_rank_and_workers),
        cmocka_unit_test(test_history_joins_what_happens_at_once),
        cmocka_unit_test(test_history_forgets_what_is_oldest),
        cmocka_unit_test(test_agent_status_tells_steps_and_how_long_they_took),
        cmocka_unit_test(test_agent_status_tells_a_hang_while_it_lasts),
        cmocka_unit_test(test_agent_status_tells_of_a_sick_machine),
        cmocka_unit_test(test_agent_status_tells_failed_workers_from_stopped_ones),
        cmocka_unit_test(test_agent_status_knows_who_failed_before_the_last_has_started),
        cmocka_unit_test(test_agent_status_ends_with_the_verdict),
        cmocka_unit_test(test_agent_status_fails_without_memory),
        cmocka_unit_test(test_meter_tells_what_came_lately),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
