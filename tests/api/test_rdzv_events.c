/*
 * Where the record of a rendezvous goes by itself. The environment is read once in a process, so
 * each test has its node in a process of its own.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <jansson.h>

#include <muster/rendezvous.h>
#include <muster/runtime.h>

static char dir[64];
static char events_path[128];
static char errors_path[128];
static char text[65536];

/* One node alone, from its first step to its last. */
static void meet_alone(const char *run_id)
{
    struct muster_rdzv_params p = {
        .size = sizeof(struct muster_rdzv_params),
        .backend = "muster",
        .endpoint = "127.0.0.1:0",
        .run_id = run_id,
        .nodes_min = 1,
        .nodes_max = 1,
        .config = "is_host=true",
        .flags = MUSTER_RDZV_NO_STORE | MUSTER_RDZV_NO_BOOTSTRAP,
    };
    muster_runtime *rt;
    muster_rdzv *rdzv;
    struct muster_rdzv_info info;

    if (muster_runtime_new(&rt) != 0) {
        _exit(10);
    }
    if (muster_rdzv_open(rt, &p, &rdzv) != 0 || muster_rdzv_next(rdzv, &info) != 0) {
        (void)fprintf(stderr, "%s\n", muster_errmsg());
        _exit(11);
    }
    muster_rdzv_close(rdzv);
    muster_runtime_free(rt);
}

/* The same in another process, whose standard error goes to a file; `events` NULL: not set. */
static void run_node(const char *events, const char *run_id, muster_rdzv_sink *sink)
{
    pid_t pid = fork();
    int status;

    assert_true(pid >= 0);
    if (pid == 0) {
        int fd = open(errors_path, O_WRONLY | O_CREAT | O_APPEND, 0600);

        (void)dup2(fd, 2);
        (void)dup2(fd, 1);
        if (events == NULL) {
            (void)unsetenv("MUSTER_RDZV_EVENTS");
        } else {
            (void)setenv("MUSTER_RDZV_EVENTS", events, 1);
        }
        if (sink != muster_rdzv_sink_default) {
            muster_rdzv_set_sink(sink, NULL);
        }
        meet_alone(run_id);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static const char *content_of(const char *path)
{
    FILE *file = fopen(path, "r");
    size_t n = 0;

    if (file != NULL) {
        n = fread(text, 1, sizeof(text) - 1, file);
        (void)fclose(file);
    }
    text[n] = '\0';
    return text;
}

static size_t lines_of(const char *path, const char *run_id)
{
    const char *at = content_of(path);
    size_t count = 0;

    while (*at != '\0') {
        size_t len = strcspn(at, "\n");
        json_t *line = json_loadb(at, len, 0, NULL);
        const char *run = json_string_value(json_object_get(line, "run_id"));

        assert_non_null(line);
        assert_int_equal(at[len], '\n');
        count += run != NULL && strcmp(run, run_id) == 0;
        json_decref(line);
        at += len + 1;
    }
    return count;
}

static int set_up(void **state)
{
    (void)state;
    (void)snprintf(dir, sizeof(dir), "/tmp/muster-events-XXXXXX");
    if (mkdtemp(dir) == NULL) {
        return -1;
    }
    (void)snprintf(events_path, sizeof(events_path), "%s/events", dir);
    (void)snprintf(errors_path, sizeof(errors_path), "%s/errors", dir);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    (void)unlink(events_path);
    (void)unlink(errors_path);
    return rmdir(dir);
}

static void test_rdzv_events_are_appended_to_the_file_that_is_named(void **state)
{
    (void)state;
    run_node(events_path, "one", muster_rdzv_sink_default);
    assert_true(lines_of(events_path, "one") >= 2);
    run_node(events_path, "two", muster_rdzv_sink_default);
    assert_true(lines_of(events_path, "one") >= 2);
    assert_true(lines_of(events_path, "two") >= 2);
    assert_string_equal(content_of(errors_path), "");
}

static void test_rdzv_events_go_to_standard_error_by_a_dash(void **state)
{
    (void)state;
    run_node("-", "dash", muster_rdzv_sink_default);
    assert_true(lines_of(errors_path, "dash") >= 2);
}

static void test_rdzv_events_go_nowhere_without_a_name(void **state)
{
    (void)state;
    run_node(NULL, "none", muster_rdzv_sink_default);
    run_node("", "none", muster_rdzv_sink_default);
    assert_string_equal(content_of(errors_path), "");
    assert_int_equal(access(events_path, F_OK), -1);
}

static void test_rdzv_events_go_nowhere_if_the_program_says_so(void **state)
{
    (void)state;
    run_node(events_path, "quiet", NULL);
    assert_string_equal(content_of(errors_path), "");
    assert_int_equal(access(events_path, F_OK), -1);
}

static void test_rdzv_events_that_cannot_be_written_are_said_once(void **state)
{
    char path[160];
    const char *at;

    (void)state;
    (void)snprintf(path, sizeof(path), "%s/no/such", dir);
    run_node(path, "lost", muster_rdzv_sink_default);
    at = strstr(content_of(errors_path), "RDZV-EVENTS-LOST");
    assert_non_null(at);
    assert_non_null(strstr(at, path));
    assert_null(strstr(at + 1, "RDZV-EVENTS-LOST"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_rdzv_events_are_appended_to_the_file_that_is_named,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_rdzv_events_go_to_standard_error_by_a_dash, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_rdzv_events_go_nowhere_without_a_name, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_rdzv_events_go_nowhere_if_the_program_says_so, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_rdzv_events_that_cannot_be_written_are_said_once,
                                        set_up, tear_down),
    };

    return cmocka_run_group_tests_name("rdzv_events", tests, NULL, NULL);
}
