/* Answers of nodes: what is written is read again, what does not fit is cut and counted, and what
 * is malformed is refused. */
#include "codec/stacks/answer.h"

#include <muster/error.h>

#include "unit.h"

#define TEXT(text)                                                                                 \
    {                                                                                              \
        (const uint8_t *)(text), sizeof(text) - 1                                                  \
    }

static const struct mu_stacks_answer a_head = {.node = TEXT("node3"), .workers = 4, .world = 16};

/* A report with a main thread in train(), and as many others, each in a function of its own. */
static struct mu_buf a_report(uint32_t rank, uint32_t others)
{
    static const struct mu_stacks_frame train = {TEXT("train"), TEXT("/job/train.py"), 81};
    const struct mu_stacks_report head = {
        .kind = MU_STACKS_PYTHON, .rank = rank, .local_rank = 0, .version = TEXT("3.11.2")};
    struct mu_stacks_thread thread = {.tid = 1, .state = 'S', .main = true, .frame_count = 1};
    struct mu_stacks_writer w;
    struct mu_buf b;

    mu_stacks_writer_init(&w);
    assert_int_equal(mu_stacks_writer_thread(&w, &thread, &train), 0);
    thread.main = false;
    for (uint32_t i = 0; i < others; i++) {
        char name[200];
        struct mu_stacks_frame frame = train;

        memset(name, 'x', sizeof(name));
        mu_put_u32((uint8_t *)name, i);
        frame.function = mu_span(name, sizeof(name));
        assert_int_equal(mu_stacks_writer_thread(&w, &thread, &frame), 0);
    }
    mu_buf_init(&b, MU_STACKS_REPORT_BYTES_MAX);
    assert_int_equal(mu_stacks_writer_finish(&w, &head, &b), 0);
    mu_stacks_writer_fini(&w);
    return b;
}

static void add(struct mu_stacks_answer_writer *w, uint32_t rank, uint32_t others, bool main_only)
{
    struct mu_buf report = a_report(rank, others);

    assert_int_equal(mu_stacks_answer_add(w, mu_buf_span(&report), main_only), 0);
    mu_buf_fini(&report);
}

/* The next report has this rank and so many threads; `left_out` others are counted. */
static void assert_next(struct mu_span *reports, uint32_t rank, uint32_t threads, uint32_t left_out)
{
    struct mu_stacks_report report;
    struct mu_stacks_thread thread;
    struct mu_stacks_frame frame;

    assert_int_equal(mu_stacks_answer_next(reports, &report), 0);
    assert_int_equal(report.rank, rank);
    assert_int_equal(report.thread_count, threads);
    assert_int_equal(report.left_out, left_out);
    assert_int_equal(mu_stacks_thread_next(&report.threads, &thread), 0);
    assert_true(thread.main);
    assert_int_equal(mu_stacks_frame_next(&thread.frames, &frame), 0);
    assert_true(mu_span_eq(frame.function, MU_SPAN_LIT("train")));
    assert_int_equal(frame.line, 81);
}

static void test_stacks_answer_is_read_as_it_was_written(void **state)
{
    struct mu_stacks_answer_writer w;
    struct mu_stacks_answer answer;
    struct mu_stacks_report report;
    (void)state;

    assert_int_equal(mu_stacks_answer_begin(&w, &a_head, MU_STACKS_ANSWER_BYTES_MAX), 0);
    add(&w, 12, 3, false);
    add(&w, 13, 3, true);
    assert_int_equal(mu_stacks_answer_decode(mu_stacks_answer_end(&w), &answer), 0);
    assert_true(mu_span_eq(answer.node, a_head.node));
    assert_int_equal(answer.workers, 4);
    assert_int_equal(answer.world, 16);
    assert_int_equal(answer.left_out, 0);
    assert_int_equal(answer.cut, 0); /* the main thread alone was asked for */
    assert_next(&answer.reports, 12, 4, 0);
    assert_next(&answer.reports, 13, 1, 3);
    assert_int_equal(mu_stacks_answer_next(&answer.reports, &report), MUSTER_ENOENT);
    mu_stacks_answer_fini(&w);
}

static void test_stacks_answer_cuts_and_leaves_out_what_does_not_fit(void **state)
{
    struct mu_stacks_answer_writer w;
    struct mu_stacks_answer answer;
    (void)state;

    assert_int_equal(mu_stacks_answer_begin(&w, &a_head, 1024), 0);
    add(&w, 0, 20, false); /* some 5,000 bytes as a whole, some 150 with one thread */
    for (uint32_t rank = 1; rank < 20; rank++) {
        add(&w, rank, 0, false);
    }
    assert_int_equal(mu_stacks_answer_decode(mu_stacks_answer_end(&w), &answer), 0);
    assert_int_equal(answer.cut, 1);
    assert_in_range(answer.left_out, 10, 18);
    assert_next(&answer.reports, 0, 1, 20);
    assert_next(&answer.reports, 1, 1, 0);
    assert_true(mu_stacks_answer_end(&w).len <= 1024);
    mu_stacks_answer_fini(&w);
}

static void test_stacks_answer_is_at_most_mu_stacks_answer_bytes_max(void **state)
{
    static uint8_t bytes[MU_STACKS_ANSWER_BYTES_MAX + 1];
    struct mu_stacks_answer_writer w;
    struct mu_stacks_answer answer;
    struct mu_span made;
    (void)state;

    assert_int_equal(mu_stacks_answer_begin(&w, &a_head, MU_STACKS_ANSWER_BYTES_MAX), 0);
    made = mu_stacks_answer_end(&w);
    memcpy(bytes, made.data, made.len);
    assert_int_equal(mu_stacks_answer_decode(mu_span(bytes, sizeof(bytes) - 1), &answer), 0);
    assert_int_equal(mu_stacks_answer_decode(mu_span(bytes, sizeof(bytes)), &answer),
                     MUSTER_ELIMIT);
    mu_stacks_answer_fini(&w);
}

static void test_stacks_answer_refuses_what_is_malformed(void **state)
{
    struct mu_stacks_answer_writer w;
    struct mu_stacks_answer answer;
    struct mu_span whole;
    uint8_t copy[64];
    (void)state;

    assert_int_equal(mu_stacks_answer_begin(&w, &a_head, 1024), 0);
    assert_int_equal(mu_stacks_answer_add(&w, MU_SPAN_LIT("nonsense"), false), MUSTER_EPROTO);
    whole = mu_stacks_answer_end(&w);
    assert_true(whole.len <= sizeof(copy));
    memcpy(copy, whole.data, whole.len);
    for (size_t len = 0; len < whole.len; len++) {
        assert_int_equal(mu_stacks_answer_decode(mu_span(copy, len), &answer), MUSTER_EPROTO);
    }
    copy[0]++;
    assert_int_equal(mu_stacks_answer_decode(mu_span(copy, whole.len), &answer), MUSTER_EPROTO);
    mu_stacks_answer_fini(&w);
}

static void test_stacks_answer_passes_over_a_report_that_cannot_be_read(void **state)
{
    static const uint8_t bad[] = {3, 0, 0, 0, 'b', 'a', 'd', 9, 0, 0, 0, 'x'};
    struct mu_span reports = mu_span(bad, sizeof(bad));
    struct mu_stacks_report report;
    (void)state;

    assert_int_equal(mu_stacks_answer_next(&reports, &report), MUSTER_EPROTO);
    assert_int_equal(reports.len, 5);
    assert_int_equal(mu_stacks_answer_next(&reports, &report), MUSTER_EPROTO);
    assert_int_equal(mu_stacks_answer_next(&reports, &report), MUSTER_ENOENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stacks_answer_is_read_as_it_was_written),
        cmocka_unit_test(test_stacks_answer_cuts_and_leaves_out_what_does_not_fit),
        cmocka_unit_test(test_stacks_answer_is_at_most_mu_stacks_answer_bytes_max),
        cmocka_unit_test(test_stacks_answer_refuses_what_is_malformed),
        cmocka_unit_test(test_stacks_answer_passes_over_a_report_that_cannot_be_read),
    };

    return cmocka_run_group_tests_name("stacks_answer", tests, NULL, NULL);
}
