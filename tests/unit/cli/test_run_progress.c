/* Goal: lines of workers that match --progress-regex are marks, however they arrive; what is wrong
 * with a pattern is named with its place; neither the pattern nor the output can stall the agent.
 */
#include "unit.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/run_progress.h"

static char said[512];

/* Instead of those of cli.c. */
int cli_fail(int code, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)vsnprintf(said, sizeof(said), format, args);
    va_end(args);
    return code;
}

int cli_usage(const char *verb, const char *format, ...)
{
    va_list args;

    (void)verb;
    va_start(args, format);
    (void)vsnprintf(said, sizeof(said), format, args);
    va_end(args);
    return 2;
}

static uint32_t marks;
static uint32_t last_rank;
static int64_t last_step; /* -1: without a number */

static void on_mark(void *context, uint32_t local_rank, const uint64_t *step)
{
    (void)context;
    marks++;
    last_rank = local_rank;
    last_step = step == NULL ? -1 : (int64_t)*step;
}

static void begin(struct run_progress *p, const char *pattern)
{
    marks = 0;
    last_step = -2;
    assert_int_equal(run_progress_open(p, pattern, 2), 0);
}

static void feed(struct run_progress *p, uint32_t rank, enum mu_stream stream, const char *text)
{
    (void)run_progress_take(p, rank, stream, mu_span_str(text), on_mark, NULL);
}

static void test_lines(void **state)
{
    struct run_progress p;

    (void)state;
    begin(&p, "step ([0-9]+)");
    feed(&p, 0, MU_STDOUT, "epoch 1 st");
    feed(&p, 1, MU_STDOUT, "step 9\n");
    assert_int_equal(marks, 1);
    assert_int_equal(last_rank, 1);
    assert_int_equal(last_step, 9);
    feed(&p, 0, MU_STDERR, "ep 3\n"); /* another stream */
    assert_int_equal(marks, 1);
    feed(&p, 0, MU_STDOUT, "ep 12 loss 0.1\nno\nstep 13\r");
    assert_int_equal(marks, 3);
    assert_int_equal(last_step, 13);
    run_progress_close(&p);
}

static void test_steps(void **state)
{
    struct run_progress p;

    (void)state;
    begin(&p, "loss|step ([0-9a-z]+)");
    feed(&p, 0, MU_STDOUT, "loss 0.1\n");
    assert_int_equal(marks, 1);
    assert_int_equal(last_step, -1);
    feed(&p, 0, MU_STDOUT, "step 1a\n");
    assert_int_equal(marks, 2);
    assert_int_equal(last_step, -1);
    feed(&p, 0, MU_STDOUT, "step 1234567890123456789\n"); /* 19 digits */
    assert_int_equal(last_step, -1);
    feed(&p, 0, MU_STDOUT, "step 123456789012345678\n");
    assert_true(last_step == INT64_C(123456789012345678));
    run_progress_close(&p);
}

static void expect_refused(const char *pattern, const char *words)
{
    struct run_progress p;

    said[0] = '\0';
    assert_int_equal(run_progress_open(&p, pattern, 2), 2);
    assert_true(strncmp(said, "--progress-regex", 16) == 0);
    if (strstr(said, words) == NULL) {
        fail_msg("%s: %s", pattern, said);
    }
    run_progress_close(&p);
}

static void test_patterns_that_are_refused(void **state)
{
    char longest[RUN_PROGRESS_PATTERN + 2];

    (void)state;
    expect_refused("step ([0-9]+", ", at character 6: \"([0-9]+\"");
    expect_refused("[a-", ", at character 1: ");
    expect_refused("ax{3,1}", ", at character 3: \"{3,1}\"");
    expect_refused("(a)\\1", "references to groups");
    expect_refused("step (\\d+)", "[0-9] is a digit, at character 7");
    expect_refused("a{1,65}", "to 64 at most, at character 2");
    expect_refused("(a{2}){2}", "only one count");
    expect_refused("", "is empty");
    memset(longest, 'a', sizeof(longest) - 1);
    longest[sizeof(longest) - 1] = '\0';
    expect_refused(longest, "longer than 256");
}

static void test_pattern_that_misses(void **state)
{
    struct run_progress p;

    (void)state;
    begin(&p, "step ([0-9]+)");
    for (uint32_t i = 1; i < RUN_PROGRESS_ENOUGH; i++) {
        feed(&p, i % 2, MU_STDOUT, "Step 3\n");
    }
    assert_false(run_progress_missed(&p)); /* there may be more to come */
    feed(&p, 0, MU_STDERR, "Step 3\n");
    assert_true(run_progress_missed(&p));
    feed(&p, 0, MU_STDOUT, "step 3\n");
    assert_false(run_progress_missed(&p));
    run_progress_close(&p);
}

/* A line is cut, also one without an end; a pattern that takes long does not get more time. */
static void test_bounds(void **state)
{
    static char line[64 << 10];
    struct run_progress p;
    bool told = false;

    (void)state;
    memset(line, 'a', sizeof(line));
    begin(&p, "b");
    line[RUN_PROGRESS_LINE] = 'b';
    line[sizeof(line) - 2] = '\n';
    line[sizeof(line) - 1] = '\0';
    feed(&p, 0, MU_STDOUT, line);
    assert_int_equal(marks, 0);
    line[RUN_PROGRESS_LINE - 1] = 'b';
    feed(&p, 0, MU_STDOUT, line);
    assert_int_equal(marks, 1);
    run_progress_close(&p);

    begin(&p, "(.*)(.*)(.*)(.*)(.*)(.*)[0-9]");
    memset(line, 'a', sizeof(line) - 1);
    for (int i = 0; i < 2000 && !told; i++) {
        line[RUN_PROGRESS_LINE] = '\n';
        told = run_progress_take(&p, 0, MU_STDOUT, mu_span(line, RUN_PROGRESS_LINE + 1), on_mark,
                                 NULL);
    }
    assert_true(told);
    assert_false(
        run_progress_take(&p, 0, MU_STDOUT, mu_span(line, RUN_PROGRESS_LINE + 1), on_mark, NULL));
    run_progress_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_patterns_that_are_refused),
        cmocka_unit_test(test_pattern_that_misses),
        cmocka_unit_test(test_bounds),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
