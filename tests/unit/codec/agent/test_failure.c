/* A worker's failure in JSON, and what its error file says. */
#include "unit.h"

#include <stdio.h>
#include <string.h>

#include <muster/error.h>

#include "codec/agent/failure.h"
#include "failheap.h"

static char texts[6][80];

static struct mu_failure sample(void)
{
    (void)snprintf(texts[0], sizeof(texts[0]), "node-3");
    (void)snprintf(texts[1], sizeof(texts[1]), "%s", "ValueError: \"boom\"\n");
    (void)snprintf(texts[2], sizeof(texts[2]), "%s", "Traceback\n  \xc3\xa9 \xff end\t\x01");
    (void)snprintf(texts[3], sizeof(texts[3]), "%s", "last line\n");
    (void)snprintf(texts[4], sizeof(texts[4]), "%s", "the kernel killed it");
    (void)snprintf(texts[5], sizeof(texts[5]), "%s", "/tmp/a/stdout.log, /tmp/a/stderr.log");
    return (struct mu_failure){
        .host = texts[0],
        .group_rank = 1,
        .rank = 5,
        .local_rank = 1,
        .pid = 4711,
        .exit_code = -9,
        .round = 3,
        .restart_count = 2,
        .ticket = 12,
        .effect = true,
        .time_s = 1794736770,
        .has_error_file = true,
        .message = texts[1],
        .traceback = texts[2],
        .tail = texts[3],
        .cause = texts[4],
        .logs = texts[5],
    };
}

static void test_failure_survives_the_wire(void **state)
{
    struct mu_failure f = sample();
    struct mu_failure g;
    struct mu_buf out;
    (void)state;

    mu_buf_init(&out, MU_FAILURE_BYTES_MAX);
    assert_int_equal(mu_failure_encode(&out, &f), 0);
    assert_int_equal(mu_failure_decode(mu_buf_span(&out), &g), 0);
    assert_string_equal(g.host, "node-3");
    assert_int_equal(g.group_rank, 1);
    assert_int_equal(g.rank, 5);
    assert_int_equal(g.local_rank, 1);
    assert_int_equal(g.pid, 4711);
    assert_int_equal(g.exit_code, -9);
    assert_int_equal(g.round, 3);
    assert_int_equal(g.restart_count, 2);
    assert_int_equal(g.ticket, 12);
    assert_true(g.effect);
    assert_int_equal(g.time_s, 1794736770);
    assert_true(g.has_error_file);
    assert_string_equal(g.message, f.message);
    assert_string_equal(g.traceback, "Traceback\n  \xc3\xa9 \xef\xbf\xbd end\t\x01");
    assert_string_equal(g.tail, "last line\n");
    assert_string_equal(g.cause, "the kernel killed it");
    assert_string_equal(g.logs, "/tmp/a/stdout.log, /tmp/a/stderr.log");
    mu_failure_fini(&g);
    mu_buf_fini(&out);
}

static void test_failure_in_brief_has_the_last_lines(void **state)
{
    char tail[64 * MU_FAILURE_LINES];
    size_t len = 0;
    struct mu_failure f = {.exit_code = 3, .rank = 5, .tail = tail};
    struct mu_buf out;
    (void)state;

    for (int i = 0; i < 3 * MU_FAILURE_LINES; i++) {
        len += (size_t)snprintf(tail + len, sizeof(tail) - len, "line %d\n", i);
    }
    mu_buf_init(&out, MU_FAILURE_BYTES_MAX);
    assert_int_equal(mu_failure_brief(&out, &f), 0);
    assert_int_equal(mu_buf_append(&out, mu_span("", 1)), 0);
    assert_non_null(
        strstr((const char *)mu_buf_span(&out).data, "\"last_lines\": \"line 24\\nline 25\\n"));
    assert_non_null(strstr((const char *)mu_buf_span(&out).data, "line 35\"}"));
    assert_null(strstr((const char *)mu_buf_span(&out).data, "signal"));

    mu_buf_reset(&out);
    f = sample();
    assert_int_equal(mu_failure_brief(&out, &f), 0);
    assert_int_equal(mu_buf_append(&out, mu_span("", 1)), 0);
    assert_non_null(
        strstr((const char *)mu_buf_span(&out).data,
               "\"exit_code\": -9, \"round\": 3, \"restart_count\": 2, \"signal\": "
               "\"SIGKILL\", \"host\": \"node-3\", \"cause\": \"the kernel killed it\""));
    mu_buf_fini(&out);
}

static void test_failure_keeps_the_end_of_a_long_tail(void **state)
{
    static char tail[MU_FAILURE_TAIL_MAX + 100];
    struct mu_failure f = {.tail = tail};
    struct mu_failure g;
    struct mu_buf out;
    (void)state;

    /* A character lies across the cut. */
    memset(tail, 'a', sizeof(tail) - 1);
    memcpy(tail + 98, "\xc3\xa9", 2);
    memcpy(tail + sizeof(tail) - 4, "end", 4);
    mu_buf_init(&out, MU_FAILURE_BYTES_MAX);
    assert_int_equal(mu_failure_encode(&out, &f), 0);
    assert_int_equal(mu_failure_decode(mu_buf_span(&out), &g), 0);
    assert_int_equal(strlen(g.tail), MU_FAILURE_TAIL_MAX - 1);
    assert_string_equal(g.tail + MU_FAILURE_TAIL_MAX - 4, "end");
    assert_string_equal(g.host, "");
    mu_failure_fini(&g);
    mu_buf_fini(&out);
}

static void test_failure_cuts_a_long_cause_and_long_paths(void **state)
{
    static char cause[MU_FAILURE_CAUSE_MAX + 2];
    static char logs[MU_FAILURE_LOGS_MAX + 2];
    struct mu_failure f = {.cause = cause, .logs = logs};
    struct mu_failure g;
    struct mu_buf out;
    (void)state;

    memset(cause, 'c', sizeof(cause) - 1);
    memset(logs, 'l', sizeof(logs) - 1);
    mu_buf_init(&out, MU_FAILURE_BYTES_MAX);
    assert_int_equal(mu_failure_encode(&out, &f), 0);
    assert_int_equal(mu_failure_decode(mu_buf_span(&out), &g), 0);
    assert_int_equal(strlen(g.cause), MU_FAILURE_CAUSE_MAX);
    assert_int_equal(strlen(g.logs), MU_FAILURE_LOGS_MAX);
    mu_failure_fini(&g);
    mu_buf_fini(&out);
}

static void test_failure_refuses_what_is_none(void **state)
{
    static const char *const bad[] = {
        "",
        "[]",
        "3",
        "{",
        "{\"rank\": -1}",
        "{\"rank\": \"0\"}",
        "{\"host\": 3}",
        "{\"exit_code\": -65}",
        "{\"pid\": 1e3}",
        "{\"rank\": 1} x",
    };
    struct mu_failure f;
    (void)state;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(mu_failure_decode(mu_span_str(bad[i]), &f), MUSTER_EPROTO);
    }
    assert_int_equal(mu_failure_decode(mu_span_str("{\"new\": {\"rank\": [1]}, \"rank\": 2}"), &f),
                     0);
    assert_int_equal(f.rank, 2);
    mu_failure_fini(&f);
}

static void test_failure_reads_both_shapes_of_error_files(void **state)
{
    struct mu_failure f = {.time_s = 7};
    (void)state;

    assert_int_equal(
        mu_failure_read_error_file(
            &f, mu_span_str("{\"message\": {\"message\": \"ValueError: boom\", \"extraInfo\": "
                            "{\"py_callstack\": \"Traceback\\n x\", \"timestamp\": "
                            "\"1794736770\"}}}")),
        0);
    assert_string_equal(f.message, "ValueError: boom");
    assert_string_equal(f.traceback, "Traceback\n x");
    assert_int_equal(f.time_s, 1794736770);
    assert_true(f.has_error_file);

    assert_int_equal(mu_failure_read_error_file(
                         &f, mu_span_str("{\"message\": \"text\", \"timestamp\": 123.9}")),
                     0);
    assert_string_equal(f.message, "text");
    assert_string_equal(f.traceback, "");
    assert_int_equal(f.time_s, 123);

    assert_int_equal(mu_failure_read_error_file(&f, mu_span_str("not json")), MUSTER_EPROTO);
    assert_int_equal(mu_failure_read_error_file(&f, mu_span_str("[]")), MUSTER_EPROTO);
    assert_int_equal(mu_failure_read_error_file(&f, mu_span_str("")), MUSTER_EPROTO);
    assert_string_equal(f.message, "text");

    assert_int_equal(mu_failure_read_error_file(&f, mu_span_str("{\"message\": 3}")), 0);
    assert_string_equal(f.message, "");
    mu_failure_fini(&f);
}

static void test_failure_without_memory_changes_nothing(void **state)
{
    struct mu_failure f = sample();
    struct mu_failure g;
    struct mu_buf out;
    bool fired;
    (void)state;

    mu_buf_init(&out, MU_FAILURE_BYTES_MAX);
    assert_int_equal(mu_failure_encode(&out, &f), 0);
    for (long nth = 0;; nth++) {
        int err;

        failheap_arm(nth);
        err = mu_failure_decode(mu_buf_span(&out), &g);
        fired = failheap_fired();
        failheap_disarm();
        if (!fired) {
            assert_int_equal(err, 0);
            break;
        }
        assert_int_equal(err, MUSTER_ENOMEM);
    }
    mu_failure_fini(&g);
    mu_buf_fini(&out);
}

static void test_failure_effects_come_behind_causes(void **state)
{
    (void)state;

    assert_true(mu_failure_order(1, false) < mu_failure_order(2, false));
    assert_true(mu_failure_order(2, false) < mu_failure_order(1, true));
    assert_true(mu_failure_order(INT64_MAX, false) < mu_failure_order(1, true));

    assert_true(mu_failure_is_effect(
        MU_SPAN_LIT("Traceback (most recent call last):\n x\nRuntimeError: [../gloo/transport/tcp/"
                    "pair.cc:598] Connection closed by peer [127.0.0.1]:4711\n")));
    assert_true(mu_failure_is_effect(MU_SPAN_LIT("terminate called after\n Broken pipe")));
    assert_false(mu_failure_is_effect(MU_SPAN_LIT("Connection closed by peer\n")));
    assert_false(mu_failure_is_effect(
        MU_SPAN_LIT("Traceback (most recent call last):\nConnectionError: retrying\n"
                    "Traceback (most recent call last):\nValueError: boom\n")));
    assert_false(mu_failure_is_effect(
        MU_SPAN_LIT("Traceback (most recent call last):\n  File \"gloo/socket.py\", line 1, in f\n"
                    "    connection.send(x)\n    ^^^^^^^\nValueError: boom\n")));
    assert_false(mu_failure_is_effect(
        MU_SPAN_LIT("terminate called after throwing an instance of 'c10::Error'\n"
                    "  what():  out of memory\nframe #1: c10d::ProcessGroupNCCL::run\n")));
    assert_false(mu_failure_is_effect((struct mu_span){0}));
}

static void test_failure_signals_have_names(void **state)
{
    (void)state;

    assert_string_equal(mu_signal_name(9), "SIGKILL");
    assert_string_equal(mu_signal_name(15), "SIGTERM");
    assert_string_equal(mu_signal_name(11), "SIGSEGV");
    assert_string_equal(mu_signal_name(31), "SIGSYS");
    assert_null(mu_signal_name(32));
    assert_null(mu_signal_name(0));
    assert_null(mu_signal_name(-9));
}

static void test_failure_cuts_what_is_long(void **state)
{
    static char text[MU_FAILURE_TRACEBACK_MAX + 2];
    struct mu_failure f = {.host = text, .message = text, .traceback = text};
    struct mu_failure g;
    struct mu_buf out;

    (void)state;
    /* Of a traceback the end is kept, of the others the beginning. */
    memset(text, 'a', sizeof(text) - 1);
    text[0] = 'b';
    text[sizeof(text) - 2] = 'z';
    mu_buf_init(&out, MU_FAILURE_BYTES_MAX);
    assert_int_equal(mu_failure_encode(&out, &f), 0);
    assert_int_equal(mu_failure_decode(mu_buf_span(&out), &g), 0);
    assert_int_equal(strlen(g.host), MU_FAILURE_HOST_MAX);
    assert_int_equal(g.host[0], 'b');
    assert_int_equal(strlen(g.message), MU_FAILURE_MESSAGE_MAX);
    assert_int_equal(g.message[0], 'b');
    assert_int_equal(strlen(g.traceback), MU_FAILURE_TRACEBACK_MAX);
    assert_int_equal(g.traceback[MU_FAILURE_TRACEBACK_MAX - 1], 'z');
    mu_failure_fini(&g);
    mu_buf_reset(&out);
    /* What is as long as may be comes whole. */
    f.host = text + sizeof(text) - 1 - MU_FAILURE_HOST_MAX;
    assert_int_equal(mu_failure_encode(&out, &f), 0);
    assert_int_equal(mu_failure_decode(mu_buf_span(&out), &g), 0);
    assert_string_equal(g.host, f.host);
    mu_failure_fini(&g);
    mu_buf_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_failure_survives_the_wire),
        cmocka_unit_test(test_failure_in_brief_has_the_last_lines),
        cmocka_unit_test(test_failure_keeps_the_end_of_a_long_tail),
        cmocka_unit_test(test_failure_cuts_a_long_cause_and_long_paths),
        cmocka_unit_test(test_failure_refuses_what_is_none),
        cmocka_unit_test(test_failure_reads_both_shapes_of_error_files),
        cmocka_unit_test(test_failure_without_memory_changes_nothing),
        cmocka_unit_test(test_failure_effects_come_behind_causes),
        cmocka_unit_test(test_failure_signals_have_names),
        cmocka_unit_test(test_failure_cuts_what_is_long),
    };

    return cmocka_run_group_tests_name("failure", tests, NULL, NULL);
}
