/*
 * Taking the stacks of a process that the test makes up: its memory is an image of a real
 * interpreter, its files and texts are written here.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <muster/error.h>

#include "service/stacks/look.h"
#include "service/stacks/take.h"
#include "stacks_image.h"
#include "unit.h"

#define CORPUS MU_VECTOR_DIR "/../fuzz/corpus/"

/* Where tests/fuzz/corpus/stacks_elf/shared has its _PyRuntime. */
#define RUNTIME 0x5000
#define SHELL   7

struct mu_peek_process {
    int unused;
};

static struct {
    uint8_t image_bytes[64 << 10];
    struct stacks_image image;
    uint8_t elf[4096];
    size_t elf_len;
    struct mu_peek_process process;
    struct mu_peek_process shell; /* process SHELL, which has started the other one */
    const char *exe;
    int refuse;    /* the error of every read of its memory */
    unsigned tear; /* every so many reads of memory fail; 0: none */
    unsigned reads;
    unsigned starts; /* of reading its maps */
    size_t maps_len; /* how long they claim to be; 0: as long as they are */
    size_t threads;  /* how many more it has than the image; they run no Python */
    bool low;        /* its second thread is the main one: the first has a lower number */
    bool gone;       /* it ends while it is looked at */
    int opened;
} box;

/* --- the process ------------------------------------------------------------------------------ */

static int peek_open(int64_t pid, struct mu_peek_process **ret)
{
    if (pid != (int64_t)box.image.tids[box.low ? 1 : 0] && pid != SHELL) {
        return -ESRCH;
    }
    box.opened++;
    *ret = pid == SHELL ? &box.shell : &box.process;
    return 0;
}

static void peek_close(struct mu_peek_process *p)
{
    box.opened -= p != NULL ? 1 : 0;
}

static int peek_same(struct mu_peek_process *p)
{
    (void)p;
    return box.gone ? -ESRCH : 0;
}

static int peek_read(struct mu_peek_process *p, uint64_t addr, void *to, size_t len)
{
    (void)p;
    box.reads++;
    if (box.refuse != 0) {
        return box.refuse;
    }
    if (box.tear != 0 && box.reads % box.tear == 0) {
        return -EFAULT;
    }
    return image_read(&box.image, addr, to, len) ? 0 : -EFAULT;
}

static int peek_exe(struct mu_peek_process *p, char *buf, size_t cap, size_t *ret_len)
{
    (void)p;
    assert_true(strlen(box.exe) < cap);
    memcpy(buf, box.exe, strlen(box.exe));
    *ret_len = strlen(box.exe);
    return 0;
}

static int peek_threads(struct mu_peek_process *p, uint64_t *tids, size_t cap, size_t *ret_count)
{
    size_t count = box.image.tid_count + box.threads;

    if (p == &box.shell) {
        tids[0] = SHELL;
        *ret_count = 1;
        return 0;
    }
    count = count < cap ? count : cap;
    for (size_t i = 0; i < count; i++) {
        tids[i] = i < box.image.tid_count ? box.image.tids[i] : 1000000 + i;
    }
    *ret_count = count;
    return 0;
}

static int peek_text(struct mu_peek_process *p, uint64_t tid, const char *name, uint64_t offset,
                     char *buf, size_t cap, size_t *ret_len)
{
    char text[1024];
    size_t len;

    if (p == &box.shell && strcmp(name, "children") == 0) {
        (void)snprintf(text, sizeof(text), "8 %llu ", (unsigned long long)box.image.tids[0]);
    } else if (p == &box.shell && strcmp(name, "maps") == 0) {
        (void)snprintf(text, sizeof(text), "1000-9000 r--p 00000000 fe:01 7   /bin/sh\n");
    } else if (strcmp(name, "maps") == 0) {
        uint64_t start = box.image.runtime - RUNTIME;

        box.starts += offset == 0 ? 1 : 0;
        (void)snprintf(text, sizeof(text), "%llx-%llx r--p 00000000 fe:01 7   %s\n",
                       (unsigned long long)start, (unsigned long long)start + 0x9000, box.exe);
        if (offset != 0 && offset < box.maps_len) {
            memset(buf, '\n', cap);
            *ret_len = cap;
            return 0;
        }
    } else if (strcmp(name, "comm") == 0) {
        (void)snprintf(text, sizeof(text), "name%llu\n", (unsigned long long)(tid % 10));
    } else if (strcmp(name, "stat") == 0) {
        (void)snprintf(text, sizeof(text),
                       "1 (x) S 1 2 3 0 -1 6 7 8 9 10 11 12 13 14 20 0 1 0 123456 22");
    } else if (strcmp(name, "wchan") == 0) {
        (void)snprintf(text, sizeof(text), "futex_do_wait");
    } else {
        return -EACCES;
    }
    len = offset < strlen(text) ? strlen(text) - (size_t)offset : 0;
    *ret_len = len < cap ? len : cap;
    memcpy(buf, text + strlen(text) - len, *ret_len);
    return 0;
}

static int peek_open_file(struct mu_peek_process *p, const char *path)
{
    (void)path;
    return box.elf_len == 0 || p == &box.shell ? -ENOENT : 0;
}

static int peek_read_file(struct mu_peek_process *p, uint64_t offset, void *to, size_t len)
{
    (void)p;
    if (offset > box.elf_len || len > box.elf_len - offset) {
        return -EIO;
    }
    memcpy(to, box.elf + offset, len);
    return 0;
}

static const struct mu_peek fake_peek = {
    .open = peek_open,
    .close = peek_close,
    .same = peek_same,
    .read = peek_read,
    .exe = peek_exe,
    .threads = peek_threads,
    .text = peek_text,
    .open_file = peek_open_file,
    .read_file = peek_read_file,
};

static size_t load(const char *path, uint8_t *to, size_t cap)
{
    FILE *file = fopen(path, "rb");
    size_t len;

    assert_non_null(file);
    len = fread(to, 1, cap, file);
    (void)fclose(file);
    return len;
}

static void make_box(const char *image)
{
    char path[512];
    size_t len;

    memset(&box, 0, sizeof(box));
    (void)snprintf(path, sizeof(path), CORPUS "stacks_python/image-%s", image);
    len = load(path, box.image_bytes, sizeof(box.image_bytes));
    assert_true(image_open(&box.image, mu_span(box.image_bytes, len)));
    box.elf_len = load(CORPUS "stacks_elf/shared", box.elf, sizeof(box.elf));
    box.exe = "/usr/bin/python3.11";
}

/* --- the environment -------------------------------------------------------------------------- */

static const struct mu_peek *get_peek(struct mu_env *env)
{
    (void)env;
    return &fake_peek;
}

/* The pool has one thread, this one. */
static int do_work(struct mu_env *env, struct mu_work *work)
{
    work->env = env;
    work->run(work);
    work->done(work);
    return 0;
}

static unsigned done_count;

static void on_done(struct mu_stacks_take *take)
{
    (void)take;
    done_count++;
}

static const struct mu_env_ops ops = {.peek = get_peek, .work = do_work};

static void take_pid(struct mu_stacks_take *take, int64_t pid)
{
    struct mu_env env = {.ops = &ops};

    *take = (struct mu_stacks_take){
        .pid = pid, .head = {.node = MU_SPAN_LIT("node1"), .rank = 3, .round = 2}, .done = on_done};
    done_count = 0;
    assert_int_equal(mu_stacks_take(&env, take), 0);
    assert_int_equal(done_count, 1);
    assert_int_equal(box.opened, 0);
}

static void take_box(struct mu_stacks_take *take, struct mu_stacks_report *report)
{
    take_pid(take, (int64_t)box.image.tids[0]);
    assert_int_equal(take->err, 0);
    assert_int_equal(mu_stacks_report_decode(mu_buf_span(&take->report), report), 0);
    assert_int_equal(report->pid, (int64_t)box.image.tids[0]);
    assert_int_equal(report->rank, 3);
    assert_int_equal(report->round, 2);
    assert_span_text(report->node, "node1");
}

static bool has(struct mu_span text, const char *part)
{
    return memmem(text.data, text.len, part, strlen(part)) != NULL;
}

/* --- tests ------------------------------------------------------------------------------------ */

static void test_stacks_take_reports_a_process(void **state)
{
    struct mu_stacks_take take;
    struct mu_stacks_report report;
    struct mu_stacks_thread thread;
    struct mu_stacks_frame frame;

    (void)state;
    make_box("3.11.2");
    box.threads = 1;
    take_box(&take, &report);
    assert_int_equal(report.kind, MU_STACKS_PYTHON);
    assert_span_text(report.version, "3.11");
    assert_span_text(report.note, "");
    assert_int_equal(report.thread_count, 3);
    assert_int_equal(mu_stacks_thread_next(&report.threads, &thread), 0);
    assert_true(thread.main);
    assert_int_equal(thread.tid, box.image.tids[0]);
    assert_int_equal(thread.state, 'S');
    assert_span_text(thread.kernel, "futex_do_wait");
    assert_int_equal(mu_stacks_frame_next(&thread.frames, &frame), 0);
    assert_span_text(frame.function, "größe");
    assert_int_equal(frame.line, 7);
    assert_int_equal(mu_stacks_thread_next(&report.threads, &thread), 0);
    assert_int_equal(thread.frame_count, 1);
    assert_false(thread.main);
    assert_int_equal(mu_stacks_thread_next(&report.threads, &thread), 0);
    assert_int_equal(thread.tid, 1000002); /* a library's own thread */
    assert_span_text(thread.name, "name2");
    assert_int_equal(thread.frame_count, 0);
    mu_stacks_take_fini(&take);
}

/* The kernel gives out low numbers again after the highest. */
static void test_stacks_take_puts_the_main_thread_first(void **state)
{
    struct mu_stacks_take take;
    struct mu_stacks_report report;
    struct mu_stacks_thread thread;

    (void)state;
    make_box("3.11.2");
    box.low = true;
    take_pid(&take, (int64_t)box.image.tids[1]);
    assert_int_equal(mu_stacks_report_decode(mu_buf_span(&take.report), &report), 0);
    assert_int_equal(mu_stacks_thread_next(&report.threads, &thread), 0);
    assert_true(thread.main);
    assert_int_equal(thread.tid, box.image.tids[1]);
    assert_int_equal(thread.frame_count, 1);
    assert_int_equal(mu_stacks_thread_next(&report.threads, &thread), 0);
    assert_int_equal(thread.tid, box.image.tids[0]);
    mu_stacks_take_fini(&take);
}

static void test_stacks_take_says_that_it_is_gone(void **state)
{
    struct mu_stacks_take take;

    (void)state;
    make_box("3.11.2");
    take_pid(&take, 5);
    assert_int_equal(take.err, MUSTER_ENOENT);
    assert_string_equal(take.why.text, "there is no process 5 on this machine");
    mu_stacks_take_fini(&take);
    box.gone = true;
    take_pid(&take, (int64_t)box.image.tids[0]);
    assert_int_equal(take.err, MUSTER_ENOENT);
    mu_stacks_take_fini(&take);
}

static void test_stacks_take_says_that_it_may_not_look(void **state)
{
    struct mu_stacks_take take;
    struct mu_stacks_report report;

    (void)state;
    make_box("3.11.2");
    box.refuse = -EPERM;
    take_box(&take, &report);
    assert_int_equal(report.kind, MU_STACKS_OTHER);
    assert_true(has(report.note, "SYS_PTRACE"));
    assert_int_equal(report.thread_count, 2);
    mu_stacks_take_fini(&take);
}

static void test_stacks_take_says_that_it_is_not_python(void **state)
{
    struct mu_stacks_take take;
    struct mu_stacks_report report;

    (void)state;
    make_box("3.11.2");
    box.elf_len = load(CORPUS "stacks_elf/none", box.elf, sizeof(box.elf));
    box.exe = "/usr/bin/sleep";
    take_box(&take, &report);
    assert_int_equal(report.kind, MU_STACKS_OTHER);
    assert_span_text(report.note, "It does not run Python: /usr/bin/sleep has no interpreter.");
    mu_stacks_take_fini(&take);
}

static void test_stacks_take_finds_the_interpreter_that_a_script_has_started(void **state)
{
    struct mu_env env = {.ops = &ops};
    struct mu_stacks_take take;
    struct mu_stacks_report report;

    (void)state;
    make_box("3.11.2");
    for (int family = 0; family < 2; family++) {
        take = (struct mu_stacks_take){
            .pid = SHELL, .head = {.rank = 3}, .family = family != 0, .done = on_done};
        assert_int_equal(mu_stacks_take(&env, &take), 0);
        assert_int_equal(take.err, 0);
        assert_int_equal(mu_stacks_report_decode(mu_buf_span(&take.report), &report), 0);
        assert_int_equal(report.kind, family != 0 ? MU_STACKS_PYTHON : MU_STACKS_OTHER);
        assert_int_equal(report.pid, family != 0 ? (int64_t)box.image.tids[0] : SHELL);
        assert_int_equal(report.rank, 3);
        mu_stacks_take_fini(&take);
    }
    /* If there is no interpreter, the report is of the process itself. */
    box.elf_len = load(CORPUS "stacks_elf/none", box.elf, sizeof(box.elf));
    take = (struct mu_stacks_take){.pid = SHELL, .family = true, .done = on_done};
    assert_int_equal(mu_stacks_take(&env, &take), 0);
    assert_int_equal(mu_stacks_report_decode(mu_buf_span(&take.report), &report), 0);
    assert_int_equal(report.pid, SHELL);
    mu_stacks_take_fini(&take);
    assert_int_equal(box.opened, 0);
}

static void test_stacks_take_says_that_the_version_is_unknown(void **state)
{
    struct mu_stacks_take take;
    struct mu_stacks_report report;

    (void)state;
    make_box("3.11.2");
    box.exe = "/usr/bin/python3.7";
    take_box(&take, &report);
    assert_true(has(report.note, "It runs Python 3.7"));
    mu_stacks_take_fini(&take);
}

/* Meets MU_STACKS_TRIES_MAX: an interpreter that is starting is looked at so many times. */
static void test_stacks_take_tries_again(void **state)
{
    struct mu_stacks_take take;
    struct mu_stacks_report report;

    (void)state;
    make_box("3.11.2");
    box.image.blocks.len = 0;
    take_box(&take, &report);
    assert_span_text(report.note, "Its Python interpreter is starting or ending.");
    assert_int_equal(box.starts, MU_STACKS_TRIES_MAX);
    mu_stacks_take_fini(&take);
}

/* Meets MU_STACKS_TORN_MAX: frames of which a read always fails. */
static void test_stacks_take_says_what_is_torn(void **state)
{
    struct mu_stacks_take take;
    struct mu_stacks_report report;
    struct mu_stacks_thread thread;
    unsigned whole;

    (void)state;
    make_box("3.11.2");
    take_box(&take, &report);
    whole = box.reads;
    mu_stacks_take_fini(&take);
    make_box("3.11.2");
    box.tear = 20; /* the list of threads takes fewer reads, a stack takes more */
    take_box(&take, &report);
    assert_int_equal(report.kind, MU_STACKS_PYTHON);
    assert_true(has(report.note, "changed each time"));
    assert_int_equal(mu_stacks_thread_next(&report.threads, &thread), 0);
    assert_true(thread.torn);
    assert_true(box.reads > whole && box.reads < MU_STACKS_TORN_MAX * whole);
    mu_stacks_take_fini(&take);
}

/* Meets MU_STACKS_TASKS_MAX and MU_STACKS_MAPS_MAX. */
static void test_stacks_take_bounds_what_it_reads(void **state)
{
    struct mu_stacks_take take;
    struct mu_stacks_report report;

    (void)state;
    make_box("3.11.2");
    box.threads = 2 * MU_STACKS_TASKS_MAX;
    box.maps_len = SIZE_MAX;
    take_box(&take, &report);
    assert_int_equal(report.kind, MU_STACKS_PYTHON);
    assert_int_equal(report.thread_count, MU_STACKS_THREADS_MAX);
    assert_int_equal(report.left_out, MU_STACKS_TASKS_MAX - MU_STACKS_THREADS_MAX);
    assert_true(box.starts * (uint64_t)sizeof(((struct mu_stacks_look *)0)->text) <=
                MU_STACKS_MAPS_MAX);
    mu_stacks_take_fini(&take);
}

/* A simulated machine has no processes to look at. */
static void test_stacks_take_needs_processes(void **state)
{
    const struct mu_env_ops none = {.work = do_work};
    struct mu_env env = {.ops = &none};
    struct mu_stacks_take take = {.pid = 5, .done = on_done};

    (void)state;
    assert_int_equal(mu_stacks_take(&env, &take), MUSTER_ENOTSUP);
    mu_stacks_take_fini(&take);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stacks_take_reports_a_process),
        cmocka_unit_test(test_stacks_take_puts_the_main_thread_first),
        cmocka_unit_test(test_stacks_take_says_that_it_is_gone),
        cmocka_unit_test(test_stacks_take_says_that_it_may_not_look),
        cmocka_unit_test(test_stacks_take_says_that_it_is_not_python),
        cmocka_unit_test(test_stacks_take_finds_the_interpreter_that_a_script_has_started),
        cmocka_unit_test(test_stacks_take_says_that_the_version_is_unknown),
        cmocka_unit_test(test_stacks_take_tries_again),
        cmocka_unit_test(test_stacks_take_says_what_is_torn),
        cmocka_unit_test(test_stacks_take_bounds_what_it_reads),
        cmocka_unit_test(test_stacks_take_needs_processes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
