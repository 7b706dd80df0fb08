/*
 * The watcher alone, without a loop: a process of ours plays the agent, says what it likes, and
 * dies. What a loaded machine makes of the moments between two steps is played out here slowly.
 *
 *     test_watch ZOO
 */
#include "zoo_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "transport/child_internal.h"

#define EXECUTES 40 /* rounds of those that never stop to exec */

/* Of this process alone: the next one may run beside it. */
static char id[MU_FAMILY_ID_LEN + 1];
static char mark[64];

/* --- an agent --------------------------------------------------------------------------------- */

static void rest_ms(long ms)
{
    (void)usleep((useconds_t)ms * 1000);
}

/* Runs `body` in a process of its own until it ends, or for ever, if it is to be killed: then
 * `body` writes a byte to `says` when that may happen. */
static void run_agent(void (*body)(struct mu_watch *w, struct mu_cgroup *g, int says))
{
    int fds[2];
    int status;
    char byte;
    pid_t pid;

    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        static struct mu_cgroup g;
        struct mu_watch w;

        (void)close(fds[0]);
        (void)prctl(PR_SET_CHILD_SUBREAPER, 1);
        mu_cgroup_find(&g, id);
        if (mu_watch_start(&w, &g) != 0) {
            _exit(1);
        }
        body(&w, &g, fds[1]);
        _exit(0);
    }
    (void)close(fds[1]);
    while (read(fds[0], &byte, 1) < 0 && errno == EINTR) {
    }
    (void)close(fds[0]);
    (void)kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
}

/* All that were its children or its children's are ours by now: nobody lives, the watcher neither.
 */
static void assert_all_end(void)
{
    assert_true(zoo_empties());
    for (int i = 0; i < ZOO_PATIENCE_MS; i++) {
        if (waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD) {
            return;
        }
        rest_ms(1);
    }
    fail_msg("%s", "somebody lives");
}

/* What the child does when it is its own master: it becomes a beast, or starts some. */
static void become(const char *arg, const char *variable)
{
    char *const env[] = {(char *)(uintptr_t)variable, NULL};

    (void)execle(zoo_path, "zoo", arg, "sleep=0", (char *)NULL, env);
    _exit(127);
}

static void say(int says)
{
    if (write(says, "!", 1) != 1) {
        _exit(1);
    }
}

static void wait_for_count(size_t count)
{
    for (int i = 0; i < 20000 && zoo_count() != count; i++) {
        rest_ms(1);
    }
}

/* --- tests ------------------------------------------------------------------------------------ */

/* Forked and told of; on a machine with more to do it gets no further before the agent is dead. */
static void agent_with_a_slow_child(struct mu_watch *w, struct mu_cgroup *g, int says)
{
    pid_t pid;

    (void)g;
    pid = fork();
    if (pid == 0) {
        (void)close(w->fd);
        (void)close(says);
        rest_ms(100);
        (void)setsid();
        become("out=late", "ZOO=unmarked");
    }
    mu_watch_tell(w, pid, true);
}

static void test_watch_kills_a_child_that_has_no_session_yet(void **state)
{
    (void)state;
    run_agent(agent_with_a_slow_child);
    assert_all_end();
}

/* The descriptors of a dying process are closed first; its children hear of it last. Between the
 * two they run. */
static void agent_that_dies_slowly(struct mu_watch *w, struct mu_cgroup *g, int says)
{
    pid_t pid = fork();

    (void)g;
    if (pid == 0) {
        (void)setsid();
        become("out=first", mark);
    }
    (void)says;
    mu_watch_tell(w, pid, true);
    (void)close(w->fd);
    (void)waitpid(pid, NULL, 0); /* the watcher is at work */
    rest_ms(50);
    pid = fork();
    if (pid == 0) {
        (void)setsid();
        become("daemon=0", mark);
    }
    /* It lives, or was killed already. */
    while (zoo_count() == 0 && waitpid(pid, NULL, WNOHANG) != pid) {
        rest_ms(1);
    }
}

static void test_watch_goes_on_until_the_agent_is_gone(void **state)
{
    (void)state;
    run_agent(agent_that_dies_slowly);
    assert_all_end();
}

/* Killed before it could say anything. */
static void agent_that_says_nothing(struct mu_watch *w, struct mu_cgroup *g, int says)
{
    (void)w;
    (void)g;
    if (fork() == 0) {
        (void)setsid();
        become("daemon=0", mark);
    }
    wait_for_count(2);
    say(says);
    for (;;) {
        (void)pause();
    }
}

static void test_watch_needs_no_word_to_know_a_mark(void **state)
{
    (void)state;
    run_agent(agent_that_says_nothing);
    assert_all_end();
}

/* A process has no environment while it becomes another one. */
static void agent_of_those_who_exec(struct mu_watch *w, struct mu_cgroup *g, int says)
{
    pid_t pid = fork();

    g->base[0] = '\0';
    if (pid == 0) {
        (void)setsid();
        become("execs", mark);
    }
    mu_watch_tell(w, pid, true);
    wait_for_count(2);
    say(says);
    for (;;) {
        (void)pause();
    }
}

static void test_watch_finds_those_who_exec_all_the_time(void **state)
{
    (void)state;
    for (int i = 0; i < EXECUTES; i++) {
        run_agent(agent_of_those_who_exec);
        assert_all_end();
    }
}

/* Who is in a cgroup of ours is ours, whatever he does about his session and environment. */
static void agent_with_a_late_comer(struct mu_watch *w, struct mu_cgroup *g, int says)
{
    int procs = mu_cgroup_make(g, 7);
    pid_t pid;

    (void)w;
    if (procs < 0) {
        _exit(2);
    }
    pid = fork();
    if (pid == 0) {
        (void)setsid();
        if (write(procs, "0", 1) != 1) {
            _exit(2);
        }
        become("scrub=0", "ZOO=unmarked");
    }
    wait_for_count(2);
    say(says);
    for (;;) {
        (void)pause();
    }
}

static void test_watch_empties_the_cgroups(void **state)
{
    struct mu_cgroup g;

    (void)state;
    zoo_skip_without_cgroups();
    run_agent(agent_with_a_late_comer);
    assert_all_end();
    mu_cgroup_find(&g, id);
    assert_int_equal(mu_cgroup_each(&g, mu_cgroup_remove), 0);
}

/* An end that was meant: what is left is somebody else's. */
static void agent_that_stops_the_watcher(struct mu_watch *w, struct mu_cgroup *g, int says)
{
    pid_t pid = fork();

    (void)g;
    (void)says;
    if (pid == 0) {
        (void)setsid();
        become("out=still", mark);
    }
    wait_for_count(1);
    mu_watch_tell(w, pid, true);
    mu_watch_stop(w);
    if (zoo_count() != 1) {
        _exit(3);
    }
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
}

static void test_watch_that_is_stopped_kills_nobody(void **state)
{
    (void)state;
    run_agent(agent_that_stops_the_watcher);
    assert_all_end();
}

static mu_mono_t in_ms(uint64_t ms)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (mu_mono_t){(uint64_t)now.tv_sec * MU_NS_PER_S + (uint64_t)now.tv_nsec +
                       ms * MU_NS_PER_MS};
}

static pid_t start_one(struct mu_watch *w, const char *arg)
{
    pid_t pid = fork();

    if (pid == 0) {
        (void)setsid();
        become(arg, mark);
    }
    mu_watch_tell(w, pid, true);
    wait_for_count(1);
    return pid;
}

/* It does nothing about its child, as one that is stopped; then it wakes and starts another. */
static void agent_that_is_away(struct mu_watch *w, struct mu_cgroup *g, int says)
{
    pid_t pid = start_one(w, "out=first");

    (void)g;
    (void)says;
    for (int i = 0; i < 10; i++) {
        mu_watch_until(w, in_ms(10000)); /* Not yet. */
        rest_ms(10);
    }
    if (zoo_count() != 1) {
        _exit(3);
    }
    mu_watch_until(w, in_ms(100));
    if (waitpid(pid, NULL, 0) != pid) { /* ended by the watcher, or never */
        _exit(3);
    }
    mu_watch_tell(w, pid, false);
    pid = start_one(w, "out=second");
    rest_ms(200);
    if (zoo_count() != 1) {
        _exit(4);
    }
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
    mu_watch_stop(w);
}

static void test_watch_kills_when_the_time_is_up_and_goes_on(void **state)
{
    (void)state;
    run_agent(agent_that_is_away);
    assert_all_end();
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_watch_kills_a_child_that_has_no_session_yet, zoo_kill_left),
        cmocka_unit_test_teardown(test_watch_goes_on_until_the_agent_is_gone, zoo_kill_left),
        cmocka_unit_test_teardown(test_watch_needs_no_word_to_know_a_mark, zoo_kill_left),
        cmocka_unit_test_teardown(test_watch_finds_those_who_exec_all_the_time, zoo_kill_left),
        cmocka_unit_test_teardown(test_watch_empties_the_cgroups, zoo_kill_left),
        cmocka_unit_test_teardown(test_watch_that_is_stopped_kills_nobody, zoo_kill_left),
        cmocka_unit_test_teardown(test_watch_kills_when_the_time_is_up_and_goes_on, zoo_kill_left),
    };
    int failed;

    if (argc < 2) {
        (void)fprintf(stderr, "usage: test_watch ZOO\n");
        return 2;
    }
    /* Orphans of the agents come to us, where zombies can be seen and reaped. */
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1);
    zoo_open(argv[1]);
    (void)snprintf(id, sizeof(id), "%08lx%08lx", (unsigned long)getpid() & 0xffffffff,
                   (unsigned long)time(NULL) & 0xffffffff);
    (void)snprintf(mark, sizeof(mark), "%s=%s.1", MU_CHILD_MARK, id);
    failed = cmocka_run_group_tests_name("watch", tests, NULL, NULL);
    zoo_close();
    return skipped_or(failed);
}
