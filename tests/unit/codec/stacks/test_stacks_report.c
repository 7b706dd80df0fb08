/* Reports of what a worker does: what is written is read again, what does not fit is counted, and
 * what is malformed is refused. */
#include "codec/stacks/report.h"

#include <muster/error.h>

#include "unit.h"

#define TEXT(text)                                                                                 \
    {                                                                                              \
        (const uint8_t *)(text), sizeof(text) - 1                                                  \
    }

static const struct mu_stacks_frame some_frames[] = {
    {TEXT("DataLoader.__next__"), TEXT("/job/data.py"), 40},
    {TEXT("train"), TEXT("/job/train.py"), 81},
    {TEXT("<module>"), TEXT("/job/train.py"), 90},
};

static const struct mu_stacks_thread a_thread = {
    .tid = 4711,
    .name = TEXT("python3"),
    .state = 'S',
    .main = true,
    .gil = MU_STACKS_GIL_NOT_HELD,
    .kernel = TEXT("futex_wait_queue"),
    .omitted = 5,
    .endless = true,
    .torn = true,
    .frame_count = 3,
};

static const struct mu_stacks_report a_head = {
    .kind = MU_STACKS_PYTHON,
    .node = TEXT("node3"),
    .rank = 7,
    .local_rank = MU_STACKS_NO_RANK,
    .pid = 4711,
    .round = 2,
    .version = TEXT("3.11.2"),
    .note = TEXT("One of its threads changed while it was read."),
};

static struct mu_buf finish(struct mu_stacks_writer *w, const struct mu_stacks_report *head)
{
    struct mu_buf b;

    mu_buf_init(&b, MU_STACKS_REPORT_BYTES_MAX);
    assert_int_equal(mu_stacks_writer_finish(w, head, &b), 0);
    mu_stacks_writer_fini(w);
    return b;
}

static struct mu_buf a_report(void)
{
    struct mu_stacks_writer w;
    struct mu_stacks_thread second = {.tid = 4712, .state = 'R', .gil = MU_STACKS_GIL_HELD};

    mu_stacks_writer_init(&w);
    assert_int_equal(mu_stacks_writer_thread(&w, &a_thread, some_frames), 0);
    assert_int_equal(mu_stacks_writer_thread(&w, &second, NULL), 0);
    return finish(&w, &a_head);
}

static void assert_span(struct mu_span got, struct mu_span expected)
{
    assert_int_equal(got.len, expected.len);
    if (got.len != 0) {
        assert_memory_equal(got.data, expected.data, got.len);
    }
}

static void assert_first_thread(struct mu_stacks_thread *t)
{
    struct mu_stacks_frame frame;

    assert_int_equal(t->tid, 4711);
    assert_span(t->name, a_thread.name);
    assert_span(t->kernel, a_thread.kernel);
    assert_int_equal(t->state, 'S');
    assert_true(t->main && t->endless && t->torn);
    assert_int_equal(t->gil, MU_STACKS_GIL_NOT_HELD);
    assert_int_equal(t->omitted, 5);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(mu_stacks_frame_next(&t->frames, &frame), 0);
        assert_span(frame.function, some_frames[i].function);
        assert_span(frame.file, some_frames[i].file);
        assert_int_equal(frame.line, some_frames[i].line);
    }
    assert_int_equal(mu_stacks_frame_next(&t->frames, &frame), MUSTER_ENOENT);
}

static void test_stacks_report_round_trips(void **state)
{
    struct mu_buf b = a_report();
    struct mu_stacks_report out;
    struct mu_stacks_thread thread;

    (void)state;
    assert_int_equal(mu_stacks_report_decode(mu_buf_span(&b), &out), 0);
    assert_int_equal(out.kind, MU_STACKS_PYTHON);
    assert_span(out.node, a_head.node);
    assert_span(out.note, a_head.note);
    assert_span(out.version, a_head.version);
    assert_int_equal(out.rank, 7);
    assert_int_equal(out.local_rank, MU_STACKS_NO_RANK);
    assert_int_equal(out.pid, 4711);
    assert_int_equal(out.round, 2);
    assert_int_equal(out.thread_count, 2);
    assert_int_equal(mu_stacks_thread_next(&out.threads, &thread), 0);
    assert_first_thread(&thread);
    assert_int_equal(mu_stacks_thread_next(&out.threads, &thread), 0);
    assert_int_equal(thread.tid, 4712);
    assert_int_equal(thread.gil, MU_STACKS_GIL_HELD);
    assert_false(thread.main || thread.endless || thread.torn);
    assert_int_equal(mu_stacks_thread_next(&out.threads, &thread), MUSTER_ENOENT);
    mu_buf_fini(&b);
}

static void test_stacks_report_is_refused_when_cut(void **state)
{
    struct mu_buf b = a_report();
    struct mu_stacks_report out;

    (void)state;
    for (size_t len = 0; len < b.len; len++) {
        assert_int_equal(mu_stacks_report_decode(mu_span(mu_buf_span(&b).data, len), &out),
                         MUSTER_EPROTO);
    }
    mu_buf_fini(&b);
}

static void test_stacks_report_of_another_version_is_refused(void **state)
{
    struct mu_buf b = a_report();
    struct mu_stacks_report out;

    (void)state;
    b.data[b.head]++;
    assert_int_equal(mu_stacks_report_decode(mu_buf_span(&b), &out), MUSTER_EPROTO);
    mu_buf_fini(&b);
}

/* What a later version appends to the head and at the end is skipped. */
static void test_stacks_report_with_unknown_fields_is_read(void **state)
{
    struct mu_buf b = a_report();
    struct mu_span in = mu_buf_span(&b);
    uint32_t head_len = mu_get_u32(in.data + 2);
    struct mu_stacks_report report;
    struct mu_stacks_thread thread;
    struct mu_buf later;

    (void)state;
    mu_buf_init(&later, MU_STACKS_REPORT_BYTES_MAX);
    assert_int_equal(mu_buf_reserve(&later, in.len + 6), 0);
    mu_buf_put(&later, mu_span(in.data, 2));
    mu_buf_put_u32(&later, head_len + 2);
    mu_buf_put(&later, mu_span(in.data + 6, head_len));
    mu_buf_put(&later, mu_span("xy", 2));
    mu_buf_put(&later, mu_span_skip(in, 6 + head_len));
    mu_buf_put(&later, mu_span("more", 4));
    assert_int_equal(mu_stacks_report_decode(mu_buf_span(&later), &report), 0);
    assert_int_equal(mu_stacks_thread_next(&report.threads, &thread), 0);
    assert_first_thread(&thread);
    mu_buf_fini(&later);
    mu_buf_fini(&b);
}

/* Meets MU_STACKS_NAME_MAX, MU_STACKS_FILE_MAX and MU_STACKS_NOTE_MAX. */
static void test_stacks_report_texts_are_cut_between_characters(void **state)
{
    static char text[2 * MU_STACKS_FILE_MAX + 1];
    struct mu_stacks_frame frame = {mu_span(text, 400), mu_span(text, 2 * MU_STACKS_FILE_MAX), 1};
    struct mu_stacks_thread thread = {.tid = 1, .frame_count = 1};
    struct mu_stacks_report head = a_head;
    struct mu_stacks_report out;
    struct mu_stacks_writer w;
    struct mu_buf b;

    (void)state;
    for (size_t i = 0; i < MU_STACKS_FILE_MAX; i++) {
        memcpy(text + 2 * i, "\xc3\xa9", 2);
    }
    head.note = mu_span(text, 600);
    mu_stacks_writer_init(&w);
    assert_int_equal(mu_stacks_writer_thread(&w, &thread, &frame), 0);
    b = finish(&w, &head);
    assert_int_equal(mu_stacks_report_decode(mu_buf_span(&b), &out), 0);
    assert_span(out.note, mu_span(text, MU_STACKS_NOTE_MAX - 1));
    assert_int_equal(mu_stacks_thread_next(&out.threads, &thread), 0);
    assert_int_equal(mu_stacks_frame_next(&thread.frames, &frame), 0);
    assert_span(frame.function, mu_span(text, MU_STACKS_NAME_MAX - 1));
    assert_span(frame.file, mu_span(text, MU_STACKS_FILE_MAX - 1));
    mu_buf_fini(&b);
}

/* Meets MU_STACKS_THREADS_MAX. */
static void test_stacks_report_counts_threads_that_do_not_fit(void **state)
{
    struct mu_stacks_thread thread = {.tid = 1, .frame_count = 1};
    struct mu_stacks_report out;
    struct mu_stacks_writer w;
    struct mu_buf b;

    (void)state;
    mu_stacks_writer_init(&w);
    for (int i = 0; i < MU_STACKS_THREADS_MAX + 3; i++) {
        assert_int_equal(mu_stacks_writer_thread(&w, &thread, some_frames), 0);
    }
    b = finish(&w, &a_head);
    assert_int_equal(mu_stacks_report_decode(mu_buf_span(&b), &out), 0);
    assert_int_equal(out.thread_count, MU_STACKS_THREADS_MAX);
    assert_int_equal(out.left_out, 3);
    mu_buf_fini(&b);
}

/* Meets MU_STACKS_REPORT_BYTES_MAX and HALF_MAX of codec/stacks/report.c. */
static void test_stacks_report_fits_whatever_the_texts(void **state)
{
    static struct mu_stacks_frame frames[MU_STACKS_FRAMES_MAX];
    static char texts[MU_STACKS_FRAMES_MAX][MU_STACKS_FILE_MAX];
    struct mu_stacks_thread thread = {.tid = 1, .frame_count = MU_STACKS_FRAMES_MAX};
    struct mu_stacks_report out;
    struct mu_stacks_writer w;
    struct mu_buf b;

    (void)state;
    mu_stacks_writer_init(&w);
    for (int n = 0; n < 4; n++) {
        for (int i = 0; i < MU_STACKS_FRAMES_MAX; i++) {
            memset(texts[i], 'a' + n, sizeof(texts[i]));
            texts[i][0] = (char)i;
            frames[i] = (struct mu_stacks_frame){mu_span("f", 1), mu_span(texts[i], 900), 1};
        }
        assert_int_equal(mu_stacks_writer_thread(&w, &thread, frames), 0);
    }
    b = finish(&w, &a_head);
    assert_int_equal(mu_stacks_report_decode(mu_buf_span(&b), &out), 0);
    assert_int_equal(out.thread_count, 1);
    assert_int_equal(out.left_out, 3);
    mu_buf_fini(&b);
}

/* Meets MU_STACKS_FRAMES_MAX: it says one frame more. */
static void test_stacks_report_with_too_many_frames_is_refused(void **state)
{
    static struct mu_stacks_frame frames[MU_STACKS_FRAMES_MAX];
    struct mu_stacks_thread thread = {.tid = 1, .frame_count = MU_STACKS_FRAMES_MAX};
    struct mu_stacks_report out;
    struct mu_stacks_writer w;
    struct mu_buf longer;
    struct mu_buf b;
    size_t at;

    (void)state;
    mu_stacks_writer_init(&w);
    assert_int_equal(mu_stacks_writer_thread(&w, &thread, frames), 0);
    b = finish(&w, &a_head);
    at = b.len - MU_STACKS_FRAMES_MAX * 12 - 4;
    mu_buf_init(&longer, MU_STACKS_REPORT_BYTES_MAX);
    assert_int_equal(mu_buf_append(&longer, mu_buf_span(&b)), 0);
    assert_int_equal(mu_buf_append(&longer, mu_span_skip(mu_buf_span(&b), b.len - 12)), 0);
    assert_int_equal(mu_get_u32(longer.data + at), MU_STACKS_FRAMES_MAX);
    mu_put_u32(longer.data + at, MU_STACKS_FRAMES_MAX + 1);
    mu_put_u32(longer.data + at - 26, mu_get_u32(longer.data + at - 26) + 12);
    mu_put_u32(longer.data + at - 30, mu_get_u32(longer.data + at - 30) + 12);
    assert_int_equal(mu_stacks_report_decode(mu_buf_span(&longer), &out), MUSTER_ELIMIT);
    mu_buf_fini(&longer);
    mu_buf_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stacks_report_round_trips),
        cmocka_unit_test(test_stacks_report_is_refused_when_cut),
        cmocka_unit_test(test_stacks_report_of_another_version_is_refused),
        cmocka_unit_test(test_stacks_report_with_unknown_fields_is_read),
        cmocka_unit_test(test_stacks_report_texts_are_cut_between_characters),
        cmocka_unit_test(test_stacks_report_counts_threads_that_do_not_fit),
        cmocka_unit_test(test_stacks_report_fits_whatever_the_texts),
        cmocka_unit_test(test_stacks_report_with_too_many_frames_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
