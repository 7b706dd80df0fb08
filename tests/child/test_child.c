/* What only real children can be asked: sessions, signals, descriptors, files, exec. */
#include "zoo_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/err.h"
#include "failheap.h"

static struct beast b;
static struct beast c;

static void test_child_tells_its_story_in_order(void **state)
{
    (void)state;
    beast_init(&b);
    beast_start(&b, "out=hello", "err=oh", "exit=3", NULL);

    zoo_run_until(&b.gone);

    assert_string_equal(b.text[0], "hello\n");
    assert_string_equal(b.text[1], "oh\n");
    assert_int_equal(b.status, 3);
    assert_int_equal(b.story[0], 's');
    assert_int_equal(b.story[b.story_len - 1], 'g');
    /* What it wrote came before its end. */
    assert_true(strchr(b.story, 'o') < strchr(b.story, 'x'));
    assert_true(strchr(b.story, 'e') < strchr(b.story, 'x'));
    assert_non_null(strchr(b.story, 'O'));
    assert_non_null(strchr(b.story, 'E'));
    zoo_assert_empty();
}

static void test_child_killed_by_a_signal_says_which(void **state)
{
    (void)state;
    beast_init(&b);
    beast_start(&b, "raise=6", NULL);

    zoo_run_until(&b.gone);

    assert_int_equal(b.status, -6);
    zoo_assert_empty();
}

static void expect_no_start(const char *const *argv, struct mu_spawn *what, int code,
                            const char *text)
{
    beast_init(&b);
    assert_int_equal(beast_spawn(&b, what, argv), 0);
    zoo_run_until(&b.gone);
    assert_string_equal(b.story, "Sg");
    assert_int_equal(b.start_status, code);
    assert_string_equal(b.child.error.text, text);
    zoo_assert_empty();
}

static void test_child_that_cannot_start_says_why(void **state)
{
    struct mu_spawn what = {.streams = {[1] = {MU_SPAWN_PIPE, NULL}}};
    char script[128];
    char text[256];
    FILE *file;

    (void)state;
    expect_no_start((const char *[]){"no-such-beast", NULL}, &what, -ENOENT,
                    "exec 'no-such-beast': No such file or directory");
    expect_no_start((const char *[]){"/", NULL}, &what, -EACCES, "exec '/': Permission denied");

    (void)snprintf(script, sizeof(script), "%s/script", zoo_dir);
    file = fopen(script, "w");
    assert_non_null(file);
    (void)fputs("#!/no/such/interpreter\n", file);
    (void)fclose(file);
    (void)chmod(script, 0755);
    (void)snprintf(text, sizeof(text), "exec '%s': the interpreter it names does not exist",
                   script);
    expect_no_start((const char *[]){script, NULL}, &what, -ENOENT, text);

    what.cwd = "/no/such/place";
    expect_no_start((const char *[]){"true", NULL}, &what, -ENOENT,
                    "chdir '/no/such/place': No such file or directory");
    what.cwd = NULL;
    what.streams[2] = (struct mu_spawn_stream){MU_SPAWN_FILE, "/no/such/log"};
    expect_no_start((const char *[]){"true", NULL}, &what, -ENOENT,
                    "open '/no/such/log': No such file or directory");
}

static void test_child_that_cannot_be_is_refused(void **state)
{
    struct mu_spawn what = {0};

    (void)state;
    beast_init(&b);
    assert_int_equal(beast_spawn(&b, &what, (const char *[]){NULL}), MUSTER_EINVAL);
    what.streams[0].to = MU_SPAWN_PIPE;
    assert_int_equal(beast_spawn(&b, &what, (const char *[]){"true", NULL}), MUSTER_EINVAL);
    what.streams[0].to = MU_SPAWN_FILE;
    assert_int_equal(beast_spawn(&b, &what, (const char *[]){"true", NULL}), MUSTER_EINVAL);
    zoo_run_ms(1);
    assert_int_equal(b.story_len, 0);
}

static void test_child_begins_as_a_program_should(void **state)
{
    sigset_t block;
    int leak = open("/dev/null", O_RDONLY); /* not closed on exec */

    (void)state;
    (void)sigemptyset(&block);
    (void)sigaddset(&block, SIGUSR1);
    (void)sigprocmask(SIG_BLOCK, &block, NULL);
    (void)signal(SIGPIPE, SIG_IGN);
    beast_init(&b);
    beast_start(&b, "state", "fds", "env=ZOO", "env=PATH", NULL);

    zoo_run_until(&b.gone);

    assert_string_equal(b.text[0], "session=1 group=1 blocked=0 ignored=0 death=9\n"
                                   "0 1 2 \nbeast\n/usr/bin:/bin\n");
    (void)sigprocmask(SIG_UNBLOCK, &block, NULL);
    (void)signal(SIGPIPE, SIG_DFL);
    (void)close(leak);
}

static void read_text(const char *path, char *buf, size_t cap)
{
    FILE *file = fopen(path, "r");
    size_t n;

    assert_non_null(file);
    n = fread(buf, 1, cap - 1, file);
    buf[n] = '\0';
    (void)fclose(file);
}

static void test_child_streams_lead_to_files(void **state)
{
    char in[128];
    char out[128];
    char text[64];
    struct mu_spawn what = {0};
    const char *argv[] = {zoo_path, "cat", "err=gone", NULL};
    FILE *file;

    (void)state;
    (void)snprintf(in, sizeof(in), "%s/in", zoo_dir);
    (void)snprintf(out, sizeof(out), "%s/out", zoo_dir);
    file = fopen(in, "w");
    assert_non_null(file);
    (void)fputs("abc\n", file);
    (void)fclose(file);
    what.streams[0] = (struct mu_spawn_stream){MU_SPAWN_FILE, in};
    what.streams[1] = (struct mu_spawn_stream){MU_SPAWN_FILE, out};

    for (int i = 0; i < 3; i++) {
        beast_init(&b);
        assert_int_equal(beast_spawn(&b, &what, argv), 0);
        zoo_run_until(&b.gone);
        assert_string_equal(b.story, "sxg");
        what.streams[1].to = i == 0 ? MU_SPAWN_FILE_APPEND : MU_SPAWN_FILE;
        read_text(out, text, sizeof(text));
        assert_string_equal(text, i == 1 ? "abc\nabc\n" : "abc\n");
    }
}

static void test_child_starts_in_its_directory(void **state)
{
    struct mu_spawn what = {.streams = {[1] = {MU_SPAWN_PIPE, NULL}}, .cwd = "/usr"};

    (void)state;
    beast_init(&b);
    assert_int_equal(beast_spawn(&b, &what, (const char *[]){zoo_path, "cwd", NULL}), 0);
    zoo_run_until(&b.gone);
    assert_string_equal(b.text[0], "/usr\n");
}

static void test_output_that_is_not_used_stops_the_writer_and_loses_nothing(void **state)
{
    (void)state;
    beast_init(&b);
    b.rests = true;
    beast_start(&b, "flood=4096", NULL);
    zoo_run_until(&b.started);
    zoo_run_ms(50);
    assert_false(b.exited); /* four megabytes fit nowhere */
    assert_int_equal(b.bytes[0], 0);

    b.rests = false;
    b.use_max = 1000;
    mu_env_child_resume(zoo_env, &b.child, MU_STDOUT);
    zoo_run_until(&b.gone);

    assert_int_equal(b.bytes[0], 4096 * 1024);
    assert_int_equal(b.status, 0);
}

static void test_output_that_rests_at_the_end_is_waited_for(void **state)
{
    (void)state;
    beast_init(&b);
    b.rests = true;
    beast_start(&b, "out=last words", "exit=1", NULL);
    zoo_run_until(&b.exited);
    zoo_run_ms(30);
    assert_false(b.gone);

    b.rests = false;
    mu_env_child_resume(zoo_env, &b.child, MU_STDOUT);
    zoo_run_until(&b.gone);

    assert_string_equal(b.text[0], "last words\n");
}

static void test_hundred_megabytes_come_through(void **state)
{
    (void)state;
    beast_init(&b);
    beast_start(&b, "flood=102400", "exit=7", NULL);

    zoo_run_until(&b.gone);

    assert_true(b.bytes[0] == 102400u * 1024u);
    assert_int_equal(b.status, 7);
}

static void test_stopped_child_obeys(void **state)
{
    (void)state;
    beast_init(&b);
    beast_start(&b, "out=here", "raise=19", NULL);
    beast_run_until_said(&b, "here");

    assert_int_equal(mu_env_child_signal(zoo_env, &b.child, SIGTERM, MU_CHILD_GROUP), 0);
    zoo_run_until(&b.gone);

    assert_int_equal(b.status, -SIGTERM);
}

/* Until no more of our children are there, zombies included. */
static void run_until_children(size_t count)
{
    while (zoo_children_of(getpid()) > count) {
        zoo_run_ms(1);
    }
}

static void test_signals_reach_whom_they_are_for(void **state)
{
    (void)state;
    beast_init(&b);
    beast_start(&b, "child=0", "daemon=0", "out=ready", "sleep=0", NULL);
    beast_run_until_said(&b, "ready");
    assert_int_equal(mu_env_child_signal(zoo_env, &b.child, SIGKILL, MU_CHILD_SELF), 0);
    zoo_run_until(&b.exited);
    assert_int_equal(b.status, -SIGKILL);
    assert_int_equal(mu_env_child_signal(zoo_env, &b.child, SIGKILL, MU_CHILD_SELF), -ESRCH);
    assert_int_equal(mu_env_child_signal(zoo_env, &b.child, 1000, MU_CHILD_SELF), MUSTER_EINVAL);
    zoo_run_until_count(2);

    /* The child it left is of its group, the daemon is not. */
    assert_int_equal(mu_env_child_signal(zoo_env, &b.child, SIGKILL, MU_CHILD_GROUP), 0);
    zoo_run_until_count(1);
    run_until_children(1); /* until then it can be signalled */
    assert_false(b.gone);
    assert_int_equal(mu_env_child_signal(zoo_env, &b.child, SIGKILL, MU_CHILD_GROUP), -ESRCH);

    assert_int_equal(mu_env_child_signal(zoo_env, &b.child, SIGKILL, MU_CHILD_FAMILY), 0);
    zoo_run_until(&b.gone);
    zoo_assert_empty();
}

static void test_gone_waits_for_descendants_that_end_by_themselves(void **state)
{
    (void)state;
    beast_init(&b);
    beast_start(&b, "child=60", "daemon=30", "exit=0", NULL);
    zoo_run_until(&b.exited);
    assert_false(b.gone);

    zoo_run_until(&b.gone);

    zoo_assert_empty();
}

/* The signal finds it dead and reaps it, before the loop is told of its death. */
static void test_gone_comes_when_a_signal_reaps_the_last_of_a_family(void **state)
{
    (void)state;
    beast_init(&b);
    beast_start(&b, "daemon=0", "exit=0", NULL);
    zoo_run_until(&b.exited);
    zoo_run_ms(20); /* it has been seen alive */
    assert_false(b.gone);
    (void)zoo_kill_left(NULL);
    assert_true(zoo_empties());

    (void)mu_env_child_signal(zoo_env, &b.child, SIGTERM, MU_CHILD_FAMILY);
    zoo_run_until(&b.gone);

    zoo_assert_empty();
}

static void test_families_are_told_apart(void **state)
{
    (void)state;
    beast_init(&b);
    beast_init(&c);
    beast_start(&b, "daemon=0", "child=0", "out=ready", "sleep=0", NULL);
    beast_start(&c, "daemon=0", "child=0", "out=ready", "sleep=0", NULL);
    beast_run_until_said(&b, "ready");
    beast_run_until_said(&c, "ready");

    (void)mu_env_child_signal(zoo_env, &b.child, SIGKILL, MU_CHILD_FAMILY);
    zoo_run_until(&b.gone);
    zoo_run_ms(5);

    assert_false(c.exited);
    assert_int_equal(zoo_count(), 3);
    (void)mu_env_child_signal(zoo_env, &c.child, SIGKILL, MU_CHILD_FAMILY);
    zoo_run_until(&c.gone);
    zoo_assert_empty();
}

static void test_families_are_told_apart_by_their_marks(void **state)
{
    mu_uv_env_use_cgroups(zoo_uv, false);
    test_families_are_told_apart(state);
}

static void strays_go_last(void)
{
    beast_init(&b);
    beast_init(&c);
    beast_start(&b, "scrub=0", "out=ready", "sleep=0", NULL);
    beast_start(&c, "out=ready", "sleep=0", NULL);
    beast_run_until_said(&b, "ready");
    beast_run_until_said(&c, "ready");
    zoo_run_until_count(3); /* the parents of the daemon are gone */
    (void)mu_env_child_signal(zoo_env, &b.child, SIGKILL, MU_CHILD_FAMILY);
    zoo_run_until(&b.gone);
    (void)mu_env_child_signal(zoo_env, &c.child, SIGKILL, MU_CHILD_FAMILY);
    zoo_run_until(&c.gone);
    zoo_assert_empty();
}

static void test_stray_without_any_mark_goes_with_the_last_child(void **state)
{
    (void)state;
    mu_uv_env_use_cgroups(zoo_uv, false);
    strays_go_last();
}

static void test_daemon_without_any_mark_goes_too_where_there_are_cgroups(void **state)
{
    (void)state;
    strays_go_last();
}

static void reap_all(void)
{
    while (waitpid(-1, NULL, WNOHANG) >= 0) {
        (void)usleep(1000);
    }
}

static void test_orphans_of_others_are_left_alone(void **state)
{
    int ready[2];
    char byte;

    (void)state;
    /* A child from before the first spawn, as a shell that became us would leave it: its orphans
     * come to us, and can be told from a stray by nothing. */
    assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
    assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    if (fork() == 0) {
        (void)setsid();
        (void)dup2(ready[1], 1);
        (void)execle(zoo_path, "zoo", "scrub=0", "out=ready", "sleep=0", (char *)NULL,
                     (char *[]){NULL});
        _exit(9);
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    mu_uv_env_use_cgroups(zoo_uv, false);
    beast_init(&b);
    beast_start(&b, "daemon=0", "child=0", "sleep=0", NULL);
    zoo_run_until(&b.started);

    (void)mu_env_child_signal(zoo_env, &b.child, SIGKILL, MU_CHILD_FAMILY);
    zoo_run_until(&b.gone);

    assert_int_equal(zoo_count(), 2);
    (void)zoo_down(NULL);
    (void)zoo_kill_left(NULL);
    reap_all();
    (void)prctl(PR_SET_CHILD_SUBREAPER, 0);
    (void)close(ready[0]);
    (void)close(ready[1]);
    assert_int_equal(zoo_up(NULL), 0); /* for the end of the test */
}

/* Its owner hears no more of it, and its memory may be used for something else. */
static void leave(struct beast *beast, uint64_t grace_ms)
{
    size_t told = beast->story_len;

    mu_env_child_leave(zoo_env, &beast->child, SIGTERM, grace_ms);
    beast->child.on = NULL;
    zoo_run_ms(5);
    assert_int_equal(beast->story_len, told);
}

static void run_until_reaped(void)
{
    zoo_run_until_count(0);
    run_until_children(0);
}

static void test_who_is_left_is_killed_after_a_grace(void **state)
{
    (void)state;
    beast_init(&b);
    beast_start(&b, "daemon=0", "child=0", "out=ready", "exit=0", NULL);
    zoo_run_until(&b.exited);
    leave(&b, 50);
    run_until_reaped();

    /* Also one that has not ended, whose owner had stopped reading. */
    beast_init(&c);
    c.rests = true;
    beast_start(&c, "ignore=15", "flood=300", "sleep=0", NULL);
    zoo_run_until(&c.started);
    leave(&c, 50);
    run_until_reaped();
}

/* Stops the watcher, so that the time does not matter, and ends the loop. */
static int64_t leave_to_stopped_watcher(void)
{
    int64_t watcher;

    zoo_run_until(&b.exited);
    while ((watcher = zoo_watcher_of(getpid())) == 0) { /* too young for its name */
        zoo_run_ms(1);
    }
    assert_int_equal(kill((pid_t)watcher, SIGSTOP), 0);
    leave(&b, 100);
    assert_int_equal(zoo_down(NULL), 0);
    return watcher;
}

static void let_watcher_end_them(int64_t watcher)
{
    (void)kill((pid_t)watcher, SIGCONT);
    assert_true(zoo_empties());
    reap_all();                        /* the watcher as well, once it is done */
    assert_int_equal(zoo_up(NULL), 0); /* for the end of the test */
}

static void test_who_is_left_may_outlive_the_loop(void **state)
{
    int64_t watcher;

    (void)state;
    beast_init(&b);
    beast_start(&b, "daemon=0", "child=0", "scrub=0", "exit=0", NULL);
    watcher = leave_to_stopped_watcher();
    assert_int_equal(zoo_count(), 3);

    let_watcher_end_them(watcher);
}

/* The loop finds it by its mark, and when the watcher looks, it has none. */
static void test_who_is_left_may_change_behind_the_loop(void **state)
{
    int64_t watcher;

    (void)state;
    mu_uv_env_use_cgroups(zoo_uv, false);
    beast_init(&b);
    beast_start(&b, "scrub-late=200", "exit=0", NULL);
    watcher = leave_to_stopped_watcher();
    while (zoo_count_scrubbed() == 0) {
        (void)usleep(1000);
    }

    let_watcher_end_them(watcher);
}

static void test_who_is_left_may_outlive_the_loop_without_cgroups(void **state)
{
    mu_uv_env_use_cgroups(zoo_uv, false);
    test_who_is_left_may_outlive_the_loop(state);
}

static void test_dead_daemons_are_reaped_while_their_family_lives(void **state)
{
    (void)state;
    beast_init(&b);
    beast_start(&b, "daemon=5", "daemon=5", "daemon=5", "sleep=60", "out=ready", "sleep=0", NULL);
    beast_run_until_said(&b, "ready");
    run_until_children(1);

    assert_false(b.exited);
    (void)mu_env_child_signal(zoo_env, &b.child, SIGKILL, MU_CHILD_FAMILY);
    zoo_run_until(&b.gone);
}

static void test_children_of_others_are_left_alone(void **state)
{
    pid_t other = fork();
    int status = 0;

    (void)state;
    if (other == 0) {
        _exit(42);
    }
    beast_init(&b);
    b.kill_on_exit = SIGKILL;
    beast_start(&b, "daemon=0", "child=0", "exit=0", NULL);
    zoo_run_until(&b.gone);

    assert_int_equal(zoo_count(), 0);
    assert_int_equal(waitpid(other, &status, 0), other);
    assert_int_equal(WEXITSTATUS(status), 42);
}

static void test_watcher_that_was_killed_is_replaced(void **state)
{
    int64_t watcher;

    (void)state;
    beast_init(&b);
    beast_start(&b, "exit=0", NULL);
    zoo_run_until(&b.gone);
    zoo_assert_empty();
    watcher = zoo_watcher_of(getpid());
    assert_true(watcher > 0);
    assert_int_equal(kill((pid_t)watcher, SIGTERM), 0); /* it does not listen to that */
    (void)kill((pid_t)watcher, SIGKILL);
    while (zoo_watcher_of(getpid()) != 0 || zoo_children_of(getpid()) != 0) {
        zoo_run_ms(1);
    }

    beast_init(&b);
    beast_start(&b, "exit=0", NULL);
    zoo_run_until(&b.gone);

    zoo_assert_empty();
    assert_true(zoo_watcher_of(getpid()) > 0);
}

/* A connection to the child. */
static char heard[64];
static bool channel_closed;

static size_t on_data(struct mu_conn *conn, struct mu_span in)
{
    assert_true(strlen(heard) + in.len < sizeof(heard));
    memcpy(heard + strlen(heard), in.data, in.len);
    if (strcmp(heard, "ping") == 0) {
        mu_env_close(zoo_env, conn, false);
    }
    return in.len;
}

static void on_eof(struct mu_conn *conn)
{
    mu_env_close(zoo_env, conn, false);
}

static void on_writable(struct mu_conn *conn)
{
    (void)conn;
}

static void on_closed(struct mu_conn *conn, int status)
{
    (void)conn;
    assert_int_equal(status, 0);
    channel_closed = true;
}

static void test_channel_leads_to_the_child(void **state)
{
    static const struct mu_conn_events events = {
        .data = on_data, .eof = on_eof, .writable = on_writable, .closed = on_closed};
    struct mu_conn conn = {.on = &events};
    struct mu_spawn what = {.streams = {[1] = {MU_SPAWN_PIPE, NULL}}, .channel = &conn};
    size_t taken;

    (void)state;
    beast_init(&b);
    memset(heard, 0, sizeof(heard));
    channel_closed = false;
    assert_int_equal(
        beast_spawn(&b, &what, (const char *[]){zoo_path, "fds", "echo=3", "exit=5", NULL}), 0);
    mu_env_send(zoo_env, &conn, MU_SPAN_LIT("ping"), &taken);
    assert_int_equal(taken, 4);

    zoo_run_until(&channel_closed);
    zoo_run_until(&b.gone);

    assert_string_equal(b.text[0], "0 1 2 3 \n");
    assert_int_equal(b.status, 5);
}

/* What a child writes into its vaults is there when it has ended; it cannot make them shorter, on
 * which a reader might end, nor longer. */
static void test_vaults_outlive_the_child(void **state)
{
    struct mu_vault vaults[3];
    struct mu_spawn what = {.streams = {[1] = {MU_SPAWN_PIPE, NULL}}};
    char text[6];

    (void)state;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(mu_env_vaults(zoo_env)->make(1 << 20, &vaults[i]), 0);
    }
    what.vaults[0] = &vaults[0];
    what.vaults[1] = &vaults[2];
    what.vaults[MU_CHILD_VAULTS_MAX - 1] = &vaults[2]; /* one may be there twice */
    beast_init(&b);
    assert_int_equal(
        beast_spawn(&b, &what,
                    (const char *[]){zoo_path, "fds", "fill=1000", "fill=1003", "raise=9", NULL}),
        0);
    zoo_run_until(&b.gone);

    assert_string_equal(b.text[0], "0 1 2 1000 1001 1003 \nfilled sealed\nfilled sealed\n");
    for (int i = 0; i < 3; i++) {
        assert_int_equal(mu_env_vaults(zoo_env)->read(&vaults[i], 4096, text, sizeof(text)), 0);
        assert_memory_equal(text, i == 1 ? "\0\0\0\0\0" : "filled", sizeof(text));
        assert_int_equal(mu_env_vaults(zoo_env)->read(&vaults[i], (1 << 20) - 5, text, 6),
                         MUSTER_EINVAL);
        assert_int_equal(mu_env_vaults(zoo_env)->read(&vaults[i], UINT64_MAX, text, 6),
                         MUSTER_EINVAL);
        mu_env_vaults(zoo_env)->drop(&vaults[i]);
    }
    assert_int_equal(mu_env_vaults(zoo_env)->make(0, &vaults[0]), MUSTER_EINVAL);
}

/* A child can only read one of our own, and its memory is free at once when we let go of it. */
static void test_vault_of_our_own_is_only_read(void **state)
{
    const struct mu_vaults *source = mu_env_vaults(zoo_env);
    struct mu_vault_own own;
    struct stat before;
    struct stat after;
    char text[6];
    int fd;

    (void)state;
    assert_int_equal(source->own(0, &own), MUSTER_EINVAL);
    assert_int_equal(source->own(1 << 20, &own), 0);
    assert_int_equal(source->ready(&own, 100, 300000), 0);
    assert_int_equal(source->ready(&own, 1 << 20, 1), MUSTER_EINVAL);
    memcpy(own.at + 4096, "filled", 6);
    assert_int_equal(source->read(&own.reader, 4096, text, sizeof(text)), 0);
    assert_memory_equal(text, "filled", sizeof(text));
    assert_int_equal(write((int)own.reader.handle, "x", 1), -1);
    assert_int_equal(errno, EBADF);
    fd = dup((int)own.reader.handle); /* as a child has it */
    assert_int_equal(fstat(fd, &before), 0);
    assert_true(before.st_blocks * 512 >= 300000);
    source->disown(&own);
    assert_int_equal(fstat(fd, &after), 0);
    assert_int_equal(after.st_blocks, 0);
    assert_int_equal(close(fd), 0);
}

static void test_spawn_without_memory_is_refused_whole(void **state)
{
    (void)state;
    for (long nth = 0;; nth++) {
        struct mu_spawn what = {
            .streams = {[1] = {MU_SPAWN_PIPE, NULL}, [2] = {MU_SPAWN_PIPE, NULL}}};
        bool fired;
        int rc;

        beast_init(&b);
        failheap_arm(nth);
        rc = beast_spawn(&b, &what, (const char *[]){zoo_path, "out=x", NULL});
        fired = failheap_fired();
        failheap_disarm();
        if (rc == 0) {
            zoo_run_until(&b.gone);
            assert_string_equal(b.text[0], "x\n");
        } else {
            assert_int_equal(rc, MUSTER_ENOMEM);
            zoo_run_ms(1);
            assert_int_equal(b.story_len, 0);
        }
        if (!fired) {
            assert_true(nth > 3);
            break;
        }
    }
    zoo_assert_empty();
}

/* From here on the kernel has no pidfds and no close_range(), as before 5.3 and 5.9. */
static int forget_calls(void)
{
    static const int calls[] = {SYS_pidfd_open, SYS_pidfd_send_signal, SYS_close_range};
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)calls[0], 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)calls[1], 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)calls[2], 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof(code) / sizeof(code[0]), .filter = code};

    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
                   prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0
               ? -1
               : 0;
}

/* What a test that failed leaves must not come into the way of the next. */
static int end_test(void **state)
{
    int rc = zoo_down(state);

    (void)zoo_kill_left(NULL);
    for (int i = 0; i < 1000 && waitpid(-1, NULL, WNOHANG) >= 0; i++) {
        (void)usleep(1000);
    }
    return rc;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, zoo_up, end_test)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(test_child_tells_its_story_in_order),
        TEST(test_child_killed_by_a_signal_says_which),
        TEST(test_child_that_cannot_start_says_why),
        TEST(test_child_that_cannot_be_is_refused),
        TEST(test_child_begins_as_a_program_should),
        TEST(test_child_streams_lead_to_files),
        TEST(test_child_starts_in_its_directory),
        TEST(test_output_that_is_not_used_stops_the_writer_and_loses_nothing),
        TEST(test_output_that_rests_at_the_end_is_waited_for),
        TEST(test_hundred_megabytes_come_through),
        TEST(test_stopped_child_obeys),
        TEST(test_signals_reach_whom_they_are_for),
        TEST(test_gone_waits_for_descendants_that_end_by_themselves),
        TEST(test_gone_comes_when_a_signal_reaps_the_last_of_a_family),
        TEST(test_families_are_told_apart),
        TEST(test_families_are_told_apart_by_their_marks),
        TEST(test_stray_without_any_mark_goes_with_the_last_child),
        TEST(test_orphans_of_others_are_left_alone),
        TEST(test_who_is_left_is_killed_after_a_grace),
        TEST(test_who_is_left_may_outlive_the_loop),
        TEST(test_who_is_left_may_outlive_the_loop_without_cgroups),
        TEST(test_who_is_left_may_change_behind_the_loop),
        TEST(test_daemon_without_any_mark_goes_too_where_there_are_cgroups),
        TEST(test_dead_daemons_are_reaped_while_their_family_lives),
        TEST(test_children_of_others_are_left_alone),
        TEST(test_watcher_that_was_killed_is_replaced),
        TEST(test_channel_leads_to_the_child),
        TEST(test_vaults_outlive_the_child),
        TEST(test_vault_of_our_own_is_only_read),
        TEST(test_spawn_without_memory_is_refused_whole),
    };
    int failed;

    if (argc < 2) {
        (void)fprintf(stderr, "usage: test_child ZOO [--old-kernel]\n");
        return 2;
    }
    if (argc > 2 && strcmp(argv[2], "--old-kernel") == 0 && forget_calls() != 0) {
        return 77; /* meson: skipped */
    }
    /* Whoever runs the tests may ignore signals (nohup, a job in a script's background), and what
     * is ignored is passed on to children. */
    for (int s = 1; s < NSIG; s++) {
        (void)signal(s, SIG_DFL);
    }
    zoo_open(argv[1]);
    failed = cmocka_run_group_tests_name("child", tests, NULL, NULL);
    zoo_close();
    return skipped_or(failed);
}
