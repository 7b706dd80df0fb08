/* Where the output of workers goes: files, console, prefixes, filters, and what waits its turn. */
#include "unit.h"

#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/run_output.h"
#include "core/buf.h"

static struct run_options o;
static struct run_output *out;
static char directory[64];
static int resumed[2];
static int drained;

void mu_agent_service_resume(struct mu_agent_service *s, uint32_t local_rank, enum mu_stream stream)
{
    (void)s;
    (void)local_rank;
    resumed[stream == MU_STDERR]++;
}

static void on_drained(void *context)
{
    (void)context;
    __atomic_add_fetch(&drained, 1, __ATOMIC_SEQ_CST);
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

/* --- a console -------------------------------------------------------------------------------- */

static int kept[2];
static FILE *consoles[2];

static void open_console(void)
{
    for (int i = 0; i < 2; i++) {
        kept[i] = dup(i + 1);
        consoles[i] = tmpfile();
        assert_non_null(consoles[i]);
        assert_true(dup2(fileno(consoles[i]), i + 1) >= 0);
    }
}

static void close_console(char text[2][65536])
{
    (void)fflush(stdout);
    (void)fflush(stderr);
    for (int i = 0; i < 2; i++) {
        size_t n;

        (void)dup2(kept[i], i + 1);
        (void)close(kept[i]);
        rewind(consoles[i]);
        n = fread(text[i], 1, 65535, consoles[i]);
        text[i][n] = '\0';
        (void)fclose(consoles[i]);
    }
}

static char shown[2][65536];

/* --- the world -------------------------------------------------------------------------------- */

static void open_output(const char *words)
{
    static char text[512];
    static char name[] = "run";
    static char *argv[32];
    struct run_machine machine = {.cpus = 1};
    int argc = 1;

    (void)snprintf(text, sizeof(text), "%s", words);
    argv[0] = name;
    for (char *at = text; *at != '\0';) {
        size_t len = strcspn(at, " ");

        argv[argc++] = at;
        at += len;
        if (*at == ' ') {
            *at++ = '\0';
        }
    }
    assert_int_equal(run_options_parse(&o, argc, argv), 0);
    assert_int_equal(run_options_resolve(&o, &machine), 0);
    (void)snprintf(directory, sizeof(directory), "/tmp/muster_output_XXXXXX");
    assert_non_null(mkdtemp(directory));
    if (o.log_dir == NULL) {
        (void)setenv("TMPDIR", directory, 1);
    } else if (strcmp(o.log_dir, "DIR") == 0) {
        o.log_dir = directory;
    }
    open_console();
    assert_int_equal(run_output_new(&o, on_drained, NULL, &out), 0);
}

static void close_output(void)
{
    run_output_free(out);
    close_console(shown);
    run_options_fini(&o);
}

static void remove_directory(void)
{
    (void)nftw(directory, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

static void prepare(uint32_t attempt)
{
    struct mu_agent_attempt a = {.restart_count = attempt, .ranks = {4, 8, 4, 8}};
    struct mu_errmsg msg;

    assert_int_equal(run_output_prepare(out, &a, &msg), 0);
}

static void take(uint32_t local_rank, enum mu_stream stream, const char *text)
{
    assert_int_equal(run_output_take(out, local_rank, stream, mu_span_str(text)), strlen(text));
}

/* The file of that name in the attempt's directory; "(none)" if there is none. */
static const char *file_text(const char *name)
{
    static char text[4096];
    const char *error_file = run_output_error_file(out, 0);
    char path[PATH_MAX];
    FILE *f;
    size_t n;

    (void)snprintf(path, sizeof(path), "%.*s%s",
                   (int)(strstr(error_file, "0/error.json") - error_file), error_file, name);
    f = fopen(path, "r");
    if (f == NULL) {
        return "(none)";
    }
    n = fread(text, 1, sizeof(text) - 1, f);
    text[n] = '\0';
    (void)fclose(f);
    return text;
}

/* --- the console ------------------------------------------------------------------------------ */

static void test_run_output_shows_whole_lines_as_they_are(void **state)
{
    (void)state;
    open_output("--nproc-per-node 2 x");
    prepare(0);
    take(0, MU_STDOUT, "half a ");
    take(1, MU_STDOUT, "another\nand ");
    take(0, MU_STDOUT, "line\n");
    take(1, MU_STDOUT, "a rest");
    take(0, MU_STDERR, "oh\n");
    (void)run_output_take(out, 1, MU_STDOUT, (struct mu_span){0});
    run_output_gone(out);
    close_output();
    assert_string_equal(shown[0], "another\nhalf a line\nand a rest\n");
    assert_string_equal(shown[1], "oh\n");
    remove_directory();
}

static void test_run_output_a_carriage_return_ends_a_line(void **state)
{
    (void)state;
    open_output("x");
    prepare(0);
    take(0, MU_STDOUT, "10%\r20%");
    take(0, MU_STDOUT, "\r\ndone\n");
    close_output();
    assert_string_equal(shown[0], "10%\r20%\r\ndone\n");
    remove_directory();
}

static void test_run_output_a_line_without_end_is_shown_in_pieces(void **state)
{
    static char text[40000];
    size_t total = 0;

    (void)state;
    open_output("-t 1 x");
    prepare(0);
    memset(text, 'x', sizeof(text) - 1);
    take(0, MU_STDOUT, text);
    take(0, MU_STDOUT, text);
    run_output_free(out);
    (void)fseek(consoles[0], 0, SEEK_END);
    total = (size_t)ftell(consoles[0]);
    close_console(shown);
    run_options_fini(&o);
    assert_int_equal(total, 2 * (sizeof(text) - 1) + strlen("[default0]:"));
    remove_directory();
}

static void test_run_output_redirect_hides_and_tee_shows_with_a_prefix(void **state)
{
    (void)state;
    open_output("--nproc-per-node 3 --log-dir DIR --role trainer -r 0:1 -t 1:3 x");
    prepare(1);
    take(0, MU_STDOUT, "hidden\n");
    take(0, MU_STDERR, "seen\n");
    take(1, MU_STDOUT, "both\npart");
    take(1, MU_STDERR, "wrong\n");
    take(2, MU_STDOUT, "plain\n");
    run_output_gone(out);
    prepare(2); /* the files of the one before are complete when the writer has had its turn */
    prepare(1);
    close_output();
    assert_string_equal(shown[0], "[trainer1]:both\nplain\n[trainer1]:part");
    assert_string_equal(shown[1], "seen\n[trainer1]:wrong\n");
    remove_directory();
}

static void test_run_output_files_have_torchruns_names(void **state)
{
    struct mu_buf text;
    FILE *f;

    (void)state;
    open_output("--nproc-per-node 2 --log-dir DIR -r 0:3 -t 1:1 x");
    prepare(0);
    take(0, MU_STDOUT, "a");
    take(0, MU_STDERR, "b\n");
    take(1, MU_STDOUT, "c\n");
    f = fopen(run_output_error_file(out, 1), "w");
    assert_non_null(f);
    (void)fputs("{}", f);
    (void)fclose(f);
    mu_buf_init(&text, 100);
    run_output_read_error_file(out, 0, &text);
    assert_int_equal(text.len, 0);
    run_output_read_error_file(out, 1, &text);
    assert_span_text(mu_buf_span(&text), "{}");
    mu_buf_fini(&text);
    run_output_gone(out);
    while (strcmp(file_text("1/stdout.log"), "c\n") != 0) { /* the writer's thread */
        (void)usleep(1000);
    }
    assert_string_equal(file_text("0/stdout.log"), "a");
    assert_string_equal(file_text("0/stderr.log"), "b\n");
    assert_string_equal(file_text("1/stderr.log"), "(none)");
    assert_non_null(strstr(run_output_error_file(out, 1), "/attempt_0/1/error.json"));
    close_output();
    assert_int_equal(access(directory, F_OK), 0);
    remove_directory();
}

static void test_run_output_an_attempt_of_the_same_number_starts_empty(void **state)
{
    FILE *f;

    (void)state;
    open_output("--log-dir DIR -r 1 x");
    prepare(0);
    f = fopen(run_output_error_file(out, 0), "w");
    assert_non_null(f);
    (void)fclose(f);
    prepare(0);
    assert_string_equal(file_text("0/error.json"), "(none)");
    assert_string_equal(file_text("0/stdout.log"), "");
    close_output();
    remove_directory();
}

static void test_run_output_filters_choose_ranks_and_lines(void **state)
{
    (void)state;
    open_output("--nproc-per-node 2 --log-dir DIR -t 3 --local-ranks-filter 1 "
                "--duplicate-stdout-filters loss,x,,y x");
    prepare(0);
    take(0, MU_STDOUT, "loss=1\nstep\nax,yb\n");
    take(1, MU_STDOUT, "loss=2\n");
    take(0, MU_STDERR, "loss=3\n");
    run_output_gone(out);
    while (strstr(file_text("filtered_stdout.log"), "loss=2") == NULL) {
        (void)usleep(1000);
    }
    assert_string_equal(file_text("filtered_stdout.log"),
                        "[default0]:loss=1\n[default0]:ax,yb\n[default1]:loss=2\n");
    assert_string_equal(file_text("filtered_stderr.log"), "(none)");
    close_output();
    assert_string_equal(shown[0], "[default1]:loss=2\n");
    assert_string_equal(shown[1], "");
    remove_directory();
}

static void test_run_output_prefix_follows_its_template(void **state)
{
    (void)state;
    (void)setenv("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",
                 "<${role_name}/${rank}/${local_rank}/$x> ", 1);
    open_output("--nproc-per-node 2 -t 1 x");
    prepare(0);
    take(1, MU_STDOUT, "a\n");
    close_output();
    (void)unsetenv("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE");
    assert_string_equal(shown[0], "<default/5/1/$x> a\n");
    remove_directory();
}

static void test_run_output_the_null_device_means_no_files(void **state)
{
    (void)state;
    open_output("--log-dir /dev/null -r 1 x");
    prepare(0);
    take(0, MU_STDOUT, "nowhere\n");
    take(0, MU_STDERR, "here\n");
    assert_string_equal(run_output_error_file(out, 0), "");
    close_output();
    assert_string_equal(shown[0], "");
    assert_string_equal(shown[1], "here\n");
    remove_directory();
}

static void test_run_output_leaves_no_empty_directory_of_its_own(void **state)
{
    (void)state;
    open_output("x");
    prepare(0);
    prepare(1);
    close_output();
    assert_int_equal(rmdir(directory), 0); /* it is empty */
}

static void test_run_output_stops_taking_when_the_console_does(void **state)
{
    static char text[65536];
    int ends[2];
    char sink[65536];
    size_t taken = 0, read_bytes = 0;

    (void)state;
    memset(text, 'x', sizeof(text));
    text[sizeof(text) - 1] = '\n';
    open_output("--nproc-per-node 2 x");
    prepare(0);
    assert_int_equal(pipe(ends), 0);
    assert_true(dup2(ends[1], STDOUT_FILENO) >= 0); /* nobody reads it yet */
    (void)close(ends[1]);
    while (run_output_take(out, 0, MU_STDOUT, mu_span(text, sizeof(text))) != 0) {
        taken += sizeof(text);
        assert_true(taken < (size_t)64 << 20); /* or memory has no bound */
    }
    assert_int_equal(run_output_take(out, 1, MU_STDERR, MU_SPAN_LIT("x")), 0);
    assert_int_equal(__atomic_load_n(&drained, __ATOMIC_SEQ_CST), 0);
    while (__atomic_load_n(&drained, __ATOMIC_SEQ_CST) == 0) {
        ssize_t n = read(ends[0], sink, sizeof(sink));

        assert_true(n > 0);
        read_bytes += (size_t)n;
    }
    run_output_resume(out, NULL);
    assert_int_equal(resumed[0], 1);
    assert_int_equal(resumed[1], 1);
    run_output_resume(out, NULL); /* each rests once */
    assert_int_equal(resumed[0], 1);
    while (read_bytes < taken) {
        ssize_t n = read(ends[0], sink, sizeof(sink));

        assert_true(n > 0);
        read_bytes += (size_t)n;
    }
    assert_int_equal(read_bytes, taken);
    (void)close(ends[0]);
    close_output();
    remove_directory();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_run_output_shows_whole_lines_as_they_are),
        cmocka_unit_test(test_run_output_a_carriage_return_ends_a_line),
        cmocka_unit_test(test_run_output_a_line_without_end_is_shown_in_pieces),
        cmocka_unit_test(test_run_output_redirect_hides_and_tee_shows_with_a_prefix),
        cmocka_unit_test(test_run_output_files_have_torchruns_names),
        cmocka_unit_test(test_run_output_an_attempt_of_the_same_number_starts_empty),
        cmocka_unit_test(test_run_output_filters_choose_ranks_and_lines),
        cmocka_unit_test(test_run_output_prefix_follows_its_template),
        cmocka_unit_test(test_run_output_the_null_device_means_no_files),
        cmocka_unit_test(test_run_output_leaves_no_empty_directory_of_its_own),
        cmocka_unit_test(test_run_output_stops_taking_when_the_console_does),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
