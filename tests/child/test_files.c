/* Real files and consoles: pipes that are full or closed, sockets, directories. */
#include "zoo_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/files.h"
#include "transport/uv_files.h"

static struct mu_files *files;
static struct mu_errmsg msg;
static bool writable;

static int up(void **state)
{
    writable = false;
    return zoo_up(state) != 0 || mu_uv_files_new(zoo_uv, &files) != 0 ? -1 : 0;
}

static int down(void **state)
{
    files->ops->close(files);
    return zoo_down(state);
}

static void on_writable(struct mu_sink *sink)
{
    (void)sink;
    writable = true;
}

static struct mu_sink *open_console(int fd)
{
    struct mu_sink *sink = NULL;

    assert_int_equal(mu_uv_files_console(files, fd, &sink, &msg), 0);
    sink->writable = on_writable;
    return sink;
}

/* Writes until it takes no more; returns how much it took. */
static size_t fill(struct mu_sink *sink)
{
    static char block[10000];
    size_t total = 0;
    size_t taken = sizeof(block);

    memset(block, 'b', sizeof(block));
    for (int i = 0; i < 10000 && taken == sizeof(block); i++) {
        sink->ops->write(sink, mu_span(block, sizeof(block)), &taken);
        total += taken;
    }
    assert_true(taken < sizeof(block));
    return total;
}

static void empty(int fd, size_t len)
{
    static char block[65536];

    while (len > 0) {
        ssize_t n = read(fd, block, len < sizeof(block) ? len : sizeof(block));

        assert_true(n > 0);
        len -= (size_t)n;
    }
}

static void take_turns(int fds[2])
{
    struct mu_sink *sink = open_console(fds[1]);
    size_t len = fill(sink);
    size_t taken;

    /* What others share with us is as it was. */
    assert_int_equal(fcntl(fds[1], F_GETFL) & O_NONBLOCK, 0);
    assert_false(writable);
    empty(fds[0], len);
    zoo_run_until(&writable);
    sink->ops->write(sink, MU_SPAN_LIT("more"), &taken);
    assert_int_equal(taken, 4);
    empty(fds[0], 4);
    assert_int_equal(sink->error, 0);
    /* The reader goes: no signal, an error that is kept. */
    (void)close(fds[0]);
    sink->ops->write(sink, MU_SPAN_LIT("more"), &taken);
    assert_int_equal(taken, 4);
    assert_int_equal(sink->error, -EPIPE);
    sink->ops->close(sink);
    (void)close(fds[1]);
}

static void test_console_pipe_never_blocks(void **state)
{
    int fds[2];

    (void)state;
    assert_int_equal(pipe(fds), 0);
    take_turns(fds);
}

static void test_console_socket_never_blocks(void **state)
{
    int fds[2];

    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    take_turns(fds);
}

static void test_console_file_is_written_where_it_stands(void **state)
{
    char path[128];
    char text[32] = "";
    struct mu_sink *sink;
    size_t taken;
    int fd;

    (void)state;
    (void)snprintf(path, sizeof(path), "%s/console", zoo_dir);
    fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "before ", 7), 7);
    sink = open_console(fd);
    sink->ops->write(sink, MU_SPAN_LIT("us "), &taken);
    assert_int_equal(write(fd, "after", 5), 5);
    assert_int_equal(pread(fd, text, sizeof(text) - 1, 0), 15);
    assert_string_equal(text, "before us after");
    sink->ops->close(sink);
    (void)close(fd);
}

static void test_consoles_of_one_terminal_are_one(void **state)
{
    struct mu_sink *out;
    struct mu_sink *err;
    int saved[2] = {dup(1), dup(2)};
    int fds[2];
    bool same;

    (void)state;
    assert_int_equal(pipe(fds), 0);
    (void)fflush(stdout);
    (void)dup2(fds[1], 1);
    (void)dup2(fds[1], 2);
    assert_int_equal(files->ops->console(files, MU_STDOUT, &out, &msg), 0);
    assert_int_equal(files->ops->console(files, MU_STDERR, &err, &msg), 0);
    same = out == err;
    out->ops->close(out);
    err->ops->close(err);
    (void)dup2(saved[0], 1);
    (void)dup2(saved[1], 2);
    (void)close(saved[0]);
    (void)close(saved[1]);
    (void)close(fds[0]);
    (void)close(fds[1]);
    assert_true(same);
}

static void test_directories_are_made_and_removed(void **state)
{
    char run[128];
    char path[192];
    char made[160];
    char link[192];
    struct mu_sink *sink;
    struct stat st;
    size_t taken;
    size_t len;
    uint8_t buf[8];

    (void)state;
    (void)snprintf(run, sizeof(run), "%s/a/b", zoo_dir);
    assert_int_equal(files->ops->make_dir(files, run, &msg), 0);
    assert_int_equal(files->ops->make_dir(files, run, &msg), 0);
    (void)snprintf(path, sizeof(path), "%s/run_", run);
    assert_int_equal(files->ops->make_unique_dir(files, path, made, sizeof(made), &msg), 0);
    assert_int_equal(strncmp(made, path, strlen(path)), 0);
    assert_int_equal(strlen(made), strlen(path) + 6);

    (void)snprintf(path, sizeof(path), "%s/file", made);
    assert_int_equal(files->ops->create(files, path, &sink, &msg), 0);
    sink->ops->write(sink, MU_SPAN_LIT("0123456789"), &taken);
    assert_int_equal(taken, 10);
    sink->ops->close(sink);
    assert_int_equal(files->ops->read_end(files, path, buf, sizeof(buf), &len, &msg), 0);
    assert_int_equal(len, 8);
    assert_memory_equal(buf, "23456789", 8);
    assert_int_equal(files->ops->make_dir(files, path, &msg), -ENOTDIR);
    assert_int_equal(files->ops->read_end(files, run, buf, sizeof(buf), &len, &msg), -EINVAL);

    /* What a link leads to stays. */
    (void)snprintf(link, sizeof(link), "%s/link", made);
    assert_int_equal(symlink(zoo_path, link), 0);
    (void)snprintf(run, sizeof(run), "%s/a", zoo_dir);
    assert_int_equal(files->ops->remove_dir(files, run, &msg), 0);
    assert_int_equal(files->ops->remove_dir(files, run, &msg), 0);
    assert_int_equal(stat(zoo_path, &st), 0);
    assert_int_equal(files->ops->read_end(files, path, buf, sizeof(buf), &len, &msg), -ENOENT);
    assert_int_equal(files->ops->create(files, path, &sink, &msg), -ENOENT);
    assert_true(strstr(msg.text, "No such file or directory") != NULL);
}

static void test_directories_without_files_are_pruned(void **state)
{
    char path[160];
    struct mu_sink *sink;
    struct stat st;

    (void)state;
    (void)snprintf(path, sizeof(path), "%s/p/attempt_0/0", zoo_dir);
    assert_int_equal(files->ops->make_dir(files, path, &msg), 0);
    (void)snprintf(path, sizeof(path), "%s/p/attempt_1/0", zoo_dir);
    assert_int_equal(files->ops->make_dir(files, path, &msg), 0);
    (void)snprintf(path, sizeof(path), "%s/p/attempt_1/0/error.json", zoo_dir);
    assert_int_equal(files->ops->create(files, path, &sink, &msg), 0);
    sink->ops->close(sink);
    (void)snprintf(path, sizeof(path), "%s/p", zoo_dir);
    files->ops->prune_dir(files, path);
    (void)snprintf(path, sizeof(path), "%s/p/attempt_0", zoo_dir);
    assert_int_equal(stat(path, &st), -1);
    (void)snprintf(path, sizeof(path), "%s/p/attempt_1/0/error.json", zoo_dir);
    assert_int_equal(unlink(path), 0);
    (void)snprintf(path, sizeof(path), "%s/p", zoo_dir);
    files->ops->prune_dir(files, path);
    assert_int_equal(stat(path, &st), -1);
    files->ops->prune_dir(files, path);
}

static void test_full_disk_is_noticed_and_borne(void **state)
{
    struct mu_sink *sink;
    size_t taken;

    (void)state;
    if (access("/dev/full", W_OK) != 0) {
        skip_saying("there is no /dev/full here");
    }
    assert_int_equal(files->ops->create(files, "/dev/full", &sink, &msg), 0);
    sink->ops->write(sink, MU_SPAN_LIT("much"), &taken);
    assert_int_equal(taken, 4);
    assert_int_equal(sink->error, -ENOSPC);
    sink->ops->close(sink);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, up, down)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(test_console_pipe_never_blocks),
        TEST(test_console_socket_never_blocks),
        TEST(test_console_file_is_written_where_it_stands),
        TEST(test_consoles_of_one_terminal_are_one),
        TEST(test_directories_are_made_and_removed),
        TEST(test_directories_without_files_are_pruned),
        TEST(test_full_disk_is_noticed_and_borne),
    };
    int failed;

    if (argc < 2) {
        (void)fprintf(stderr, "usage: test_files ZOO\n");
        return 2;
    }
    zoo_open(argv[1]);
    failed = cmocka_run_group_tests_name("files", tests, NULL, NULL);
    zoo_close();
    return skipped_or(failed);
}
