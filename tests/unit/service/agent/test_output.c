/*
 * Workers' output, with files and consoles in memory, a clock that is set, and children that only
 * note when they are told to go on.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/alloc.h"
#include "failheap.h"
#include "memory_files.h"
#include "service/agent/output.h"

#define WORKERS 3

static struct memory_files files;
static struct mu_output *out;
static struct mu_errmsg msg;
static struct mu_std_masks redirects;
static struct mu_std_masks tees;
static struct mu_rank_filter shown;
static struct mu_text_filter filters[2];
static struct mu_output_config config;
static struct mu_child children[WORKERS];
static size_t resumed[WORKERS];
static const uint32_t ranks[WORKERS] = {8, 9, 10};

/* --- a world that stands still ---------------------------------------------------------------- */

static uint64_t now_ns;
static struct mu_timer *armed;
static mu_mono_t armed_at;

static struct mu_now fake_now(struct mu_env *env)
{
    (void)env;
    return (struct mu_now){.mono = {now_ns}};
}

static void fake_arm(struct mu_env *env, struct mu_timer *timer, mu_mono_t at)
{
    (void)env;
    armed = at.ns == UINT64_MAX ? NULL : timer;
    armed_at = at;
}

static void fake_resume(struct mu_env *env, struct mu_child *child, enum mu_stream stream)
{
    (void)env;
    (void)stream;
    resumed[child - children]++;
}

static const struct mu_env_ops fake_ops = {
    .now = fake_now, .timer_arm = fake_arm, .child_resume = fake_resume};
static struct mu_env env = {&fake_ops};

static void pass_ms(uint64_t ms)
{
    struct mu_timer *timer = armed;

    now_ns += ms * MU_NS_PER_MS;
    if (timer != NULL && mu_mono_reached(armed_at, (mu_mono_t){now_ns})) {
        armed = NULL;
        timer->fire(timer);
    }
}

static int set_up(void **state)
{
    (void)state;
    memory_files_init(&files);
    memset(resumed, 0, sizeof(resumed));
    redirects = (struct mu_std_masks){0};
    tees = (struct mu_std_masks){0};
    shown = (struct mu_rank_filter){0};
    filters[0] = filters[1] = (struct mu_text_filter){0};
    config = (struct mu_output_config){.files = &files.files,
                                       .base = "/logs",
                                       .run_id = "job/1",
                                       .role = "default",
                                       .redirects = &redirects,
                                       .tees = &tees,
                                       .shown = &shown,
                                       .filters = {&filters[0], &filters[1]},
                                       .line_max = 100,
                                       .queue_max = 4000};
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    mu_output_free(out);
    out = NULL;
    assert_null(armed);
    assert_true(memory_files_fini(&files));
    mu_std_masks_fini(&redirects);
    mu_std_masks_fini(&tees);
    mu_rank_filter_fini(&shown);
    mu_text_filter_fini(&filters[0]);
    mu_text_filter_fini(&filters[1]);
    return 0;
}

static void begin(const char *r, const char *t)
{
    assert_int_equal(mu_std_masks_parse(mu_span_str(r), &redirects, &msg), 0);
    assert_int_equal(mu_std_masks_parse(mu_span_str(t), &tees, &msg), 0);
    assert_int_equal(mu_output_new(&env, &config, &out, &msg), 0);
    assert_int_equal(mu_output_begin(out, 2, ranks, WORKERS, &msg), 0);
}

static size_t say(uint32_t worker, enum mu_stream stream, const char *text)
{
    return mu_output_take(out, worker, &children[worker], stream, mu_span_str(text));
}

static void stop(uint32_t worker)
{
    (void)mu_output_take(out, worker, &children[worker], MU_STDOUT, (struct mu_span){0});
    (void)mu_output_take(out, worker, &children[worker], MU_STDERR, (struct mu_span){0});
}

#define CONSOLE(i) (files.consoles[i].text)

/* --- where it goes ---------------------------------------------------------------------------- */

static void test_output_directories_are_torchruns(void **state)
{
    struct mu_spawn what = {0};
    char logs[128];

    (void)state;
    begin("1:1", "0:3");
    assert_string_equal(files.dirs, "/logs\n/logs/job_1_123456\n/logs/job_1_123456/attempt_2\n"
                                    "/logs/job_1_123456/attempt_2/0\n"
                                    "/logs/job_1_123456/attempt_2/1\n"
                                    "/logs/job_1_123456/attempt_2/2\n");
    assert_string_equal(files.removed, "/logs/job_1_123456/attempt_2\n");
    assert_string_equal(mu_output_run_dir(out), "/logs/job_1_123456");
    assert_string_equal(mu_output_error_file(out, 2), "/logs/job_1_123456/attempt_2/2/error.json");
    assert_int_equal(files.count, 2);
    assert_non_null(memory_find(&files, "/logs/job_1_123456/attempt_2/0/stdout.log"));
    assert_non_null(memory_find(&files, "/logs/job_1_123456/attempt_2/0/stderr.log"));

    /* What is only redirected is the worker's own affair. */
    mu_output_fill(out, 1, &what);
    assert_int_equal(what.streams[MU_STDOUT].to, MU_SPAWN_FILE);
    assert_string_equal(what.streams[MU_STDOUT].path, "/logs/job_1_123456/attempt_2/1/stdout.log");
    assert_int_equal(what.streams[MU_STDERR].to, MU_SPAWN_PIPE);
    mu_output_fill(out, 0, &what);
    assert_int_equal(what.streams[MU_STDOUT].to, MU_SPAWN_PIPE);

    mu_output_log_files(out, 0, logs, sizeof(logs));
    assert_string_equal(logs, "/logs/job_1_123456/attempt_2/0/stdout.log, "
                              "/logs/job_1_123456/attempt_2/0/stderr.log");
    mu_output_log_files(out, 0, logs, 64);
    assert_string_equal(logs, "");
    mu_output_log_files(out, 1, logs, sizeof(logs));
    assert_string_equal(logs, "/logs/job_1_123456/attempt_2/1/stdout.log");
    mu_output_log_files(out, 2, logs, sizeof(logs));
    assert_string_equal(logs, "");
}

static void test_output_reads_what_a_worker_left_as_its_error(void **state)
{
    struct mu_buf text;
    struct mu_sink *sink;
    size_t taken;

    (void)state;
    begin("0", "0");
    mu_buf_init(&text, 8);
    mu_output_read_error(out, 1, &text);
    assert_int_equal(text.len, 0);
    assert_int_equal(
        files.files.ops->create(&files.files, mu_output_error_file(out, 1), &sink, &msg), 0);
    sink->ops->write(sink, MU_SPAN_LIT("{}"), &taken);
    sink->ops->close(sink);
    mu_output_read_error(out, 1, &text);
    assert_int_equal(text.len, 2);
    assert_memory_equal(mu_buf_span(&text).data, "{}", 2);
    mu_output_read_error(out, WORKERS, &text);
    assert_int_equal(text.len, 2);
    mu_buf_fini(&text);
}

static void test_output_without_files_has_no_directories(void **state)
{
    struct mu_spawn what = {0};

    (void)state;
    config.base = "/dev/null";
    begin("1:3", "0:3");
    assert_string_equal(files.dirs, "");
    assert_null(mu_output_run_dir(out));
    assert_string_equal(mu_output_error_file(out, 0), "");
    mu_output_fill(out, 1, &what);
    assert_int_equal(what.streams[MU_STDOUT].to, MU_SPAWN_PIPE);
    (void)say(0, MU_STDOUT, "shown\n");
    (void)say(1, MU_STDOUT, "not shown\n");
    assert_string_equal(CONSOLE(0), "[default0]:shown\n");
}

static void test_output_base_is_made_when_none_is_given(void **state)
{
    (void)state;
    config.base = "";
    config.temp = "/var/tmp";
    begin("0", "0");
    assert_string_equal(mu_output_run_dir(out), "/var/tmp/torchelastic_123456/job_1_123456");
    mu_output_free(out);
    out = NULL;
    assert_string_equal(files.pruned, "/var/tmp/torchelastic_123456");
}

static void test_output_base_that_was_given_stays(void **state)
{
    (void)state;
    begin("0", "0");
    mu_output_free(out);
    out = NULL;
    assert_string_equal(files.pruned, "");
}

static void test_output_goes_where_the_masks_say(void **state)
{
    (void)state;
    config.prefix = "${rank}> ";
    begin("0", "0:1,1:3");
    (void)say(0, MU_STDOUT, "tee out\n");
    (void)say(0, MU_STDERR, "raw err\n");
    (void)say(1, MU_STDERR, "tee err\n");
    (void)say(2, MU_STDOUT, "raw out\n");
    assert_string_equal(CONSOLE(0), "8> tee out\nraw out\n");
    assert_string_equal(CONSOLE(1), "raw err\n9> tee err\n");
    assert_string_equal(memory_find(&files, "/logs/job_1_123456/attempt_2/0/stdout.log")->text,
                        "tee out\n");
    assert_string_equal(memory_find(&files, "/logs/job_1_123456/attempt_2/1/stderr.log")->text,
                        "tee err\n");
    assert_null(memory_find(&files, "/logs/job_1_123456/attempt_2/2/stdout.log"));
}

static void test_output_of_ranks_that_are_not_shown(void **state)
{
    uint8_t tail[64];

    (void)state;
    assert_int_equal(mu_rank_filter_parse(MU_SPAN_LIT("1"), &shown, &msg), 0);
    begin("0", "0:3,1:3");
    (void)say(0, MU_STDOUT, "zero\n");
    (void)say(1, MU_STDOUT, "one\n");
    (void)say(2, MU_STDOUT, "two\n");
    assert_string_equal(CONSOLE(0), "[default1]:one\n");
    assert_string_equal(memory_find(&files, "/logs/job_1_123456/attempt_2/0/stdout.log")->text,
                        "zero\n");
    assert_int_equal(mu_output_tail(out, 2, tail, sizeof(tail)), 4);
    assert_memory_equal(tail, "two\n", 4);
}

static void test_output_filters_copy_lines_that_are_tee(void **state)
{
    (void)state;
    assert_int_equal(mu_text_filter_parse(MU_SPAN_LIT("loss,acc"), &filters[0], &msg), 0);
    begin("0", "0:1,1:1");
    (void)say(0, MU_STDOUT, "the lo");
    pass_ms(300); /* what was shown before its end is matched as a whole */
    (void)say(0, MU_STDOUT, "ss is 3\nnothing\n");
    (void)say(1, MU_STDOUT, "acc 4\n");
    (void)say(2, MU_STDOUT, "loss 5, not tee\n");
    (void)say(1, MU_STDERR, "loss 6, stderr\n");
    assert_string_equal(
        memory_find(&files, "/logs/job_1_123456/attempt_2/filtered_stdout.log")->text,
        "[default0]:the loss is 3\n[default1]:acc 4\n");
    assert_null(memory_find(&files, "/logs/job_1_123456/attempt_2/filtered_stderr.log"));
}

/* --- lines ------------------------------------------------------------------------------------ */

static void test_output_lines_are_never_torn(void **state)
{
    (void)state;
    begin("0", "3");
    (void)say(0, MU_STDOUT, "one ");
    (void)say(1, MU_STDOUT, "two\n");
    (void)say(0, MU_STDOUT, "three\nfour");
    stop(0);
    (void)say(1, MU_STDOUT, "\n");
    assert_string_equal(CONSOLE(0),
                        "[default1]:two\n[default0]:one three\n[default0]:four\n[default1]:\n");
}

static void test_output_of_one_console_for_both_streams(void **state)
{
    (void)state;
    files.one_console = true;
    begin("0", "0");
    (void)say(0, MU_STDOUT, "a");
    (void)say(0, MU_STDERR, "b\n");
    pass_ms(300);
    (void)say(0, MU_STDERR, "c\n");
    (void)say(0, MU_STDOUT, "d\n");
    assert_string_equal(CONSOLE(0), "b\na\nc\nd\n");
}

static void test_output_shows_a_prompt_after_a_while(void **state)
{
    (void)state;
    begin("0", "3");
    (void)say(0, MU_STDOUT, "name? ");
    assert_string_equal(CONSOLE(0), "");
    pass_ms(199);
    assert_string_equal(CONSOLE(0), "");
    pass_ms(1);
    assert_string_equal(CONSOLE(0), "[default0]:name? ");
    (void)say(0, MU_STDOUT, "x\n");
    assert_string_equal(CONSOLE(0), "[default0]:name? x\n");
}

static void test_output_ends_a_prompt_that_another_interrupts(void **state)
{
    (void)state;
    begin("0", "3");
    (void)say(0, MU_STDOUT, "name? ");
    pass_ms(200);
    (void)say(1, MU_STDOUT, "hello\n");
    (void)say(0, MU_STDOUT, "x\n");
    (void)say(0, MU_STDOUT, "y");
    pass_ms(200);
    (void)say(1, MU_STDOUT, "z\n");
    (void)say(0, MU_STDOUT, "\n"); /* its line was ended already */
    assert_string_equal(CONSOLE(0), "[default0]:name? \n[default1]:hello\n[default0]:x\n"
                                    "[default0]:y\n[default1]:z\n");
}

static void test_output_progress_bars_redraw(void **state)
{
    uint8_t tail[64];

    (void)state;
    begin("0", "3");
    (void)say(0, MU_STDOUT, "\r10%");
    pass_ms(200);
    (void)say(0, MU_STDOUT, "\r20%\r30%");
    pass_ms(200);
    (void)say(0, MU_STDOUT, "\r\n");
    (void)say(0, MU_STDOUT, "done\n");
    assert_string_equal(CONSOLE(0), "[default0]:\r[default0]:10%\r[default0]:20%\r[default0]:30%"
                                    "\r\n[default0]:done\n");
    assert_int_equal(mu_output_tail(out, 0, tail, sizeof(tail)), 9);
    assert_memory_equal(tail, "30%\ndone\n", 9);
}

static void test_output_long_lines_are_cut_with_a_mark(void **state)
{
    (void)state;
    config.line_max = 8;
    begin("0", "3");
    (void)say(0, MU_STDOUT, "0123456789\n");
    assert_string_equal(CONSOLE(0), "[default0]:01234567 [...]\n[default0]:[...] 89\n");
}

static void test_output_that_is_not_tee_is_what_it_was(void **state)
{
    char text[1000];

    (void)state;
    config.line_max = 8;
    begin("0", "0");
    for (size_t i = 0; i < sizeof(text) - 1; i++) {
        text[i] = "abc\r\n\r\001\377"[i * i % 8];
    }
    text[sizeof(text) - 1] = '\0';
    for (size_t at = 0; at < sizeof(text) - 1; at += 27) {
        char piece[28] = "";

        memcpy(piece, text + at, 27 < sizeof(text) - 1 - at ? 27 : sizeof(text) - 1 - at);
        (void)say(0, MU_STDOUT, piece);
        if (at % 2 == 0) {
            pass_ms(200);
        }
    }
    stop(0);
    assert_string_equal(CONSOLE(0), text);
}

/* --- a console that does not keep up ---------------------------------------------------------- */

static bool drained;

static void on_drained(void *arg)
{
    (void)arg;
    drained = true;
}

static void test_output_without_a_file_waits_for_the_console(void **state)
{
    char line[101];
    size_t said[2] = {0};

    (void)state;
    memset(line, 'x', sizeof(line) - 1);
    line[99] = '\n';
    line[100] = '\0';
    begin("0", "0");
    files.consoles[0].room = 150;
    while (say(0, MU_STDOUT, line) == 100) {
        said[0]++;
        assert_true(said[0] < 100);
    }
    assert_int_equal(resumed[0], 0);
    /* The other one waits as well, and both are woken in their order. */
    assert_int_equal(say(1, MU_STDOUT, "one\n"), 0);
    drained = false;
    assert_false(mu_output_flush(out, on_drained, NULL));

    memory_give_room(&files.consoles[0], 500);
    assert_int_equal(resumed[0], 0); /* not half of the queue is free */
    memory_give_room(&files.consoles[0], 3000);
    assert_int_equal(resumed[0], 1);
    assert_int_equal(resumed[1], 1);
    assert_int_equal(say(1, MU_STDOUT, "one\n"), 4);
    assert_int_equal(say(0, MU_STDOUT, line), 100);
    said[0]++;
    assert_false(drained);
    memory_give_room(&files.consoles[0], SIZE_MAX);
    assert_true(drained);
    assert_int_equal(files.consoles[0].len, said[0] * 100 + 4);
    assert_true(mu_output_flush(out, on_drained, NULL));
}

static void test_output_with_a_file_goes_on_without_the_console(void **state)
{
    char line[101];
    char note[200];

    (void)state;
    memset(line, 'x', sizeof(line) - 1);
    line[99] = '\n';
    line[100] = '\0';
    begin("0", "0:3");
    files.consoles[0].room = 0;
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(say(0, MU_STDOUT, line), 100);
    }
    assert_int_equal(memory_find(&files, "/logs/job_1_123456/attempt_2/0/stdout.log")->len, 100000);

    memory_give_room(&files.consoles[0], SIZE_MAX);
    (void)say(0, MU_STDOUT, "here again\n");

    (void)snprintf(note, sizeof(note),
                   "[default0]:(%u lines are not shown here; all are in "
                   "/logs/job_1_123456/attempt_2/0/stdout.log)\n[default0]:here again\n",
                   1000 - 4000 / 111);
    assert_string_equal(CONSOLE(0) + strlen(CONSOLE(0)) - strlen(note), note);
}

static void test_output_last_line_waits_for_the_console(void **state)
{
    char line[101];
    int lines = 0;

    (void)state;
    memset(line, 'x', sizeof(line) - 1);
    line[99] = '\n';
    line[100] = '\0';
    begin("0", "0");
    (void)say(1, MU_STDOUT, "last");
    files.consoles[0].room = 0;
    while (say(0, MU_STDOUT, line) == 100) {
        lines++;
    }
    stop(1);
    memory_give_room(&files.consoles[0], SIZE_MAX);
    assert_string_equal(CONSOLE(0) + strlen(CONSOLE(0)) - 5, "\nlast");
    assert_int_equal(strlen(CONSOLE(0)), (size_t)lines * 100 + 4);
    stop(0);
}

static void test_output_of_a_worker_that_ended_waits_for_nobody(void **state)
{
    char line[101];
    size_t said = 0;

    (void)state;
    memset(line, 'x', sizeof(line) - 1);
    line[99] = '\n';
    line[100] = '\0';
    begin("0", "0");
    files.consoles[0].room = 0;
    (void)say(1, MU_STDOUT, "last");
    while (say(0, MU_STDOUT, line) == 100) {
        said++;
    }
    stop(1);
    mu_output_exited(out, 1);
    mu_output_exited(out, 0);
    assert_int_equal(resumed[0], 1);
    assert_int_equal(say(2, MU_STDOUT, "two\n"), 0); /* it has not ended */
    /* What the dead one leaves, or its descendants write, is taken; to a limit it is shown. */
    for (size_t i = 0; i < MU_OUTPUT_EXTRA_MAX / 100 + 100; i++) {
        assert_int_equal(say(0, MU_STDOUT, line), 100);
    }
    stop(0);
    memory_give_room(&files.consoles[0], SIZE_MAX);
    assert_int_equal(resumed[2], 1);
    mu_output_end(out);
    assert_true(files.consoles[0].len <= config.queue_max + MU_OUTPUT_EXTRA_MAX + 100);
    assert_true(files.consoles[0].len > MU_OUTPUT_EXTRA_MAX);
    assert_non_null(strstr(CONSOLE(0), "x\nlast\n"));
    assert_non_null(strstr(CONSOLE(0), " lines are not shown here)\n"));
    assert_null(strstr(CONSOLE(0), "all are in"));
}

static void test_output_says_what_was_left_out_when_nothing_follows(void **state)
{
    (void)state;
    begin("0", "0:1");
    files.consoles[0].room = 0;
    for (int i = 0; i < 1000; i++) {
        (void)say(0, MU_STDOUT, "0123456789\n");
    }
    stop(0);
    mu_output_end(out);
    memory_give_room(&files.consoles[0], SIZE_MAX);
    assert_non_null(strstr(CONSOLE(0), " lines are not shown here; all are in /logs/"));
}

static void note_lost(void *context, const char *path, int status)
{
    char *lost = context;

    (void)snprintf(lost + strlen(lost), 200 - strlen(lost), "%s %d\n", path, status);
}

static void test_output_says_once_that_a_file_is_lost(void **state)
{
    char lost[200] = "";

    (void)state;
    config.lost = note_lost;
    config.context = lost;
    begin("0", "3");
    (void)say(0, MU_STDOUT, "one\n");
    files.sinks[0].breaks = -ENOSPC;
    (void)say(0, MU_STDOUT, "two\n");
    (void)say(0, MU_STDOUT, "three\n");
    assert_string_equal(lost, "/logs/job_1_123456/attempt_2/0/stdout.log -28\n");
    assert_non_null(strstr(CONSOLE(0), "three"));
    stop(0);
}

static void test_output_rewrites_its_last_line_and_no_other(void **state)
{
    (void)state;
    files.one_console = true;
    begin("0", "0");
    (void)say(0, MU_STDOUT, "name? ");
    pass_ms(300);
    mu_output_rewrite(out, MU_STDERR, MU_SPAN_LIT("1 of 2"));
    mu_output_rewrite(out, MU_STDERR, MU_SPAN_LIT("still 1 of 2"));
    (void)say(0, MU_STDOUT, "me\n");
    mu_output_rewrite(out, MU_STDERR, MU_SPAN_LIT("2 of 2"));
    mu_output_say(out, MU_STDERR, MU_SPAN_LIT("the end\n"));
    assert_string_equal(CONSOLE(0), "name? \n1 of 2\r\x1b[Kstill 1 of 2\nme\n2 of 2\nthe end\n");
    stop(0);
}

static void test_output_words_of_our_own_stand_between_lines(void **state)
{
    static char much[4000];

    (void)state;
    files.one_console = true;
    begin("0", "0");
    (void)say(0, MU_STDOUT, "name? ");
    pass_ms(300);
    mu_output_say(out, MU_STDERR, MU_SPAN_LIT("muster: ours\n"));
    (void)say(0, MU_STDOUT, "me\n");
    assert_string_equal(CONSOLE(0), "name? \nmuster: ours\nme\n");

    /* They find room where workers' lines do not, and have an end too. */
    files.consoles[0].room = 0;
    memset(much, 'm', sizeof(much));
    while (say(0, MU_STDOUT, "0123456789\n") == 11) {
    }
    mu_output_say(out, MU_STDERR, MU_SPAN_LIT("the verdict\n"));
    for (size_t i = 0; i < MU_OUTPUT_EXTRA_MAX / sizeof(much) + 10; i++) {
        mu_output_say(out, MU_STDERR, mu_span(much, sizeof(much)));
    }
    memory_give_room(&files.consoles[0], SIZE_MAX);
    assert_non_null(strstr(CONSOLE(0), "\nthe verdict\nmmm"));
    assert_true(files.consoles[0].len < config.queue_max + MU_OUTPUT_EXTRA_MAX + 100);
}

/* --- the tail --------------------------------------------------------------------------------- */

static void test_output_tail_is_the_last_of_it(void **state)
{
    static uint8_t tail[2 * MU_OUTPUT_TAIL_MAX];
    char line[32];
    size_t len;

    (void)state;
    begin("0", "0");
    assert_int_equal(mu_output_tail(out, 0, tail, sizeof(tail)), 0);
    for (int i = 0; i < 20000; i++) {
        (void)snprintf(line, sizeof(line), "line %d\n", i);
        (void)say(0, i % 2 == 0 ? MU_STDOUT : MU_STDERR, line);
    }
    len = mu_output_tail(out, 0, tail, sizeof(tail));
    assert_int_equal(len, MU_OUTPUT_TAIL_MAX);
    assert_memory_equal(tail + len - 22, "line 19998\nline 19999\n", 22);
    assert_int_equal(mu_output_tail(out, 0, tail, 11), 11);
    assert_memory_equal(tail, "line 19999\n", 11);

    mu_output_end(out);
    assert_int_equal(mu_output_tail(out, 0, tail, 11), 11);
    assert_int_equal(mu_output_begin(out, 3, ranks, 1, &msg), 0);
    assert_int_equal(mu_output_tail(out, 0, tail, 11), 0);
}

static void test_output_tail_of_a_redirected_stream_is_read_from_its_file(void **state)
{
    uint8_t tail[64];
    struct mu_sink *sink;
    size_t taken;

    (void)state;
    begin("0:1", "0");
    assert_int_equal(files.files.ops->create(
                         &files.files, "/logs/job_1_123456/attempt_2/0/stdout.log", &sink, &msg),
                     0);
    sink->ops->write(sink, MU_SPAN_LIT("from the file\n"), &taken);
    sink->ops->close(sink);
    (void)say(0, MU_STDERR, "and from here\n");
    assert_int_equal(mu_output_tail(out, 0, tail, sizeof(tail)), 28);
    assert_memory_equal(tail, "from the file\nand from here\n", 28);
}

static void test_output_tail_has_what_has_no_end_yet(void **state)
{
    uint8_t tail[64];

    (void)state;
    begin("0", "0");
    (void)say(0, MU_STDOUT, "whole\npart");
    (void)say(0, MU_STDERR, "Segmentation");
    assert_int_equal(mu_output_tail(out, 0, tail, sizeof(tail)), 24);
    assert_memory_equal(tail, "whole\npart\nSegmentation\n", 24);
    assert_int_equal(mu_output_tail(out, 0, tail, 14), 14);
    assert_memory_equal(tail, "\nSegmentation\n", 14);
    assert_int_equal(mu_output_tail(out, 0, tail, 5), 5);
    assert_memory_equal(tail, "tion\n", 5);
}

/* --- failures --------------------------------------------------------------------------------- */

static void test_output_that_cannot_begin_leaves_nothing_open(void **state)
{
    (void)state;
    begin("0", "3");
    files.fail = -ENOSPC;
    assert_int_equal(mu_output_begin(out, 3, ranks, WORKERS, &msg), -ENOSPC);
    assert_string_equal(msg.text, "as told");
    assert_int_equal(mu_output_tail(out, 0, (uint8_t *)&msg, sizeof(msg)), 0);
    assert_string_equal(mu_output_error_file(out, 0), "");
    mu_output_exited(out, 0);
    assert_int_equal(mu_output_begin(out, 3, ranks, WORKERS, &msg), 0);
    (void)say(0, MU_STDOUT, "ok\n");
    assert_string_equal(CONSOLE(0), "[default0]:ok\n");
}

static void test_output_without_memory(void **state)
{
    (void)state;
    assert_int_equal(mu_std_masks_parse(MU_SPAN_LIT("0:3"), &tees, &msg), 0);
    for (long nth = 0;; nth++) {
        bool fired;
        int rc;

        failheap_arm(nth);
        rc = mu_output_new(&env, &config, &out, &msg);
        if (rc == 0) {
            assert_true(memory_files_fini_sinks(&files));
            rc = mu_output_begin(out, 0, ranks, 1, &msg);
        }
        if (rc == 0) {
            assert_int_equal(say(0, MU_STDOUT, "a\nb"), 3);
            assert_int_equal(say(0, MU_STDERR, "c\r\nd\n"), 5);
            stop(0);
        }
        fired = failheap_fired();
        failheap_disarm();
        mu_output_free(out);
        out = NULL;
        if (rc != 0) {
            assert_int_equal(rc, MUSTER_ENOMEM);
        }
        if (!fired) {
            break;
        }
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_output_directories_are_torchruns),
        TEST(test_output_reads_what_a_worker_left_as_its_error),
        TEST(test_output_without_files_has_no_directories),
        TEST(test_output_base_is_made_when_none_is_given),
        TEST(test_output_base_that_was_given_stays),
        TEST(test_output_goes_where_the_masks_say),
        TEST(test_output_of_ranks_that_are_not_shown),
        TEST(test_output_filters_copy_lines_that_are_tee),
        TEST(test_output_lines_are_never_torn),
        TEST(test_output_of_one_console_for_both_streams),
        TEST(test_output_shows_a_prompt_after_a_while),
        TEST(test_output_ends_a_prompt_that_another_interrupts),
        TEST(test_output_progress_bars_redraw),
        TEST(test_output_long_lines_are_cut_with_a_mark),
        TEST(test_output_that_is_not_tee_is_what_it_was),
        TEST(test_output_without_a_file_waits_for_the_console),
        TEST(test_output_with_a_file_goes_on_without_the_console),
        TEST(test_output_last_line_waits_for_the_console),
        TEST(test_output_of_a_worker_that_ended_waits_for_nobody),
        TEST(test_output_says_what_was_left_out_when_nothing_follows),
        TEST(test_output_says_once_that_a_file_is_lost),
        TEST(test_output_rewrites_its_last_line_and_no_other),
        TEST(test_output_words_of_our_own_stand_between_lines),
        TEST(test_output_tail_is_the_last_of_it),
        TEST(test_output_tail_has_what_has_no_end_yet),
        TEST(test_output_tail_of_a_redirected_stream_is_read_from_its_file),
        TEST(test_output_that_cannot_begin_leaves_nothing_open),
        TEST(test_output_without_memory),
    };

    return cmocka_run_group_tests_name("output", tests, NULL, NULL);
}
