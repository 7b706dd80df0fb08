/*
 * A badly behaved program, for tests of those who start programs. It does what its arguments say,
 * one after the other; the simulator's fake programs (sim/sim_child.c) know the first half of them.
 *
 *   out=TEXT err=TEXT    writes a line
 *   part=TEXT            writes to standard output, without an end of line
 *   flood=N              writes N lines of 1023 characters and an end
 *   sleep=MS             does nothing for a while; `sleep=0`: for ever
 *   exit=CODE            ends; so does the end of the arguments, with 0
 *   raise=SIGNAL         sends itself a signal, by number
 *   ignore=SIGNAL        ignores a signal, by number; `ignore=0`: all it can
 *   child=MS             starts a child that lives that long (0: for ever), ignoring SIGTERM
 *   daemon=MS            the same, twice forked and in a session of its own
 *
 *   scrub=MS             as daemon, and exec'd with an empty environment
 *   scrub-late=MS        the same, but only after that time, and then it lives for ever
 *   execs                as daemon, and then becomes itself again, for ever
 *   again                becomes itself again, for ever
 *   bomb=N               N processes, each of which forks until there are N
 *   fds                  writes which descriptors are open
 *   env=NAME             writes the value of a variable
 *   state                writes its session, group, parent and blocked and ignored signals
 *   echo=FD              sends back what comes through a descriptor, until it ends
 *   cat                  copies standard input to standard output
 *   cwd                  writes its directory
 *   fill=FD              writes "filled" into a file at 4096, and whether it can change its length
 *   closed               closes standard output and error
 *   dies=MS              ends by SIGKILL after that time
 *   zygote               forks standbys, as core/child.h has them, for ever
 *   refuse=WHY           as a zygote, refuses
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "zoo_zygote.h"

static const char *self;

static void rest(long ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

    if (ms == 0) {
        for (;;) {
            (void)pause();
        }
    }
    while (nanosleep(&t, &t) != 0 && errno == EINTR) {
    }
}

static void ignore(int number)
{
    for (int s = 1; s < NSIG; s++) {
        if (s == number || (number == 0 && s != SIGCHLD)) {
            (void)signal(s, SIG_IGN);
        }
    }
}

static void write_all(const char *text, size_t len)
{
    while (len > 0) {
        ssize_t n = write(1, text, len);

        if (n < 0) {
            _exit(9);
        }
        text += n;
        len -= (size_t)n;
    }
}

static void flood(long lines)
{
    char line[1024];

    memset(line, 'x', sizeof(line));
    line[sizeof(line) - 1] = '\n';
    for (long i = 0; i < lines; i++) {
        (void)snprintf(line, sizeof(line), "%010ld", i);
        line[10] = 'x';
        write_all(line, sizeof(line));
    }
}

/* A child that ignores SIGTERM from its first moment on. */
static pid_t fork_deaf(void)
{
    sigset_t term;
    pid_t pid;

    (void)sigemptyset(&term);
    (void)sigaddset(&term, SIGTERM);
    (void)sigprocmask(SIG_BLOCK, &term, NULL);
    pid = fork();
    if (pid == 0) {
        ignore(SIGTERM);
    }
    (void)sigprocmask(SIG_UNBLOCK, &term, NULL);
    return pid;
}

static void start_child(long ms)
{
    if (fork_deaf() == 0) {
        rest(ms);
        _exit(0);
    }
}

/* Becomes itself again, without an environment. */
static void scrub(long ms)
{
    char arg[32];

    (void)snprintf(arg, sizeof(arg), "sleep=%ld", ms);
    (void)setsid();
    (void)execle(self, "zoo", arg, (char *)NULL, (char *[]){NULL});
}

/* When this returns, the daemon is what it is going to be: `ready` ends with its exec. */
static void start_daemon(long ms, bool scrubs, bool late)
{
    int ready[2];
    char byte;
    pid_t pid;

    if (pipe2(ready, O_CLOEXEC) != 0) {
        _exit(9);
    }
    pid = fork_deaf();
    if (pid != 0) {
        (void)close(ready[1]);
        (void)waitpid(pid, NULL, 0);
        while (read(ready[0], &byte, 1) > 0) {
        }
        (void)close(ready[0]);
        return;
    }
    (void)setsid();
    if (fork() != 0) {
        _exit(0);
    }
    (void)signal(SIGHUP, SIG_IGN);
    if (scrubs) {
        scrub(ms);
    }
    (void)close(ready[1]);
    (void)close(ready[0]);
    rest(ms);
    if (late) {
        scrub(0);
    }
    _exit(0);
}

static void become_self(void)
{
    (void)execl(self, "zoo", "again", (char *)NULL);
    _exit(9);
}

static void start_execs(void)
{
    pid_t pid = fork_deaf();

    if (pid != 0) {
        (void)waitpid(pid, NULL, 0);
        return;
    }
    (void)setsid();
    if (fork() != 0) {
        _exit(0);
    }
    (void)setsid();
    become_self();
}

static void bomb(long size)
{
    long *count =
        mmap(NULL, sizeof(*count), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (count == MAP_FAILED) {
        _exit(9);
    }
    ignore(SIGTERM);
    while (__atomic_add_fetch(count, 1, __ATOMIC_SEQ_CST) < size) {
        if (fork() == 0) {
            (void)setpgid(0, 0);
        }
    }
    rest(0);
}

static void fill(int fd)
{
    bool sealed = ftruncate(fd, 1) != 0 && ftruncate(fd, (off_t)1 << 40) != 0 &&
                  pwrite(fd, "x", 1, (off_t)1 << 40) < 0;

    printf("%s %s\n", pwrite(fd, "filled", 6, 4096) == 6 ? "filled" : strerror(errno),
           sealed ? "sealed" : "open");
    fflush(stdout);
}

static void print_fds(void)
{
    DIR *d = opendir("/proc/self/fd");
    struct dirent *e;

    while (d != NULL && (e = readdir(d)) != NULL) {
        if (e->d_name[0] != '.' && strtol(e->d_name, NULL, 10) != dirfd(d)) {
            printf("%s ", e->d_name);
        }
    }
    printf("\n");
    fflush(stdout);
}

static void print_state(void)
{
    sigset_t mask;
    int blocked = 0;
    int ignored = 0;
    int death = 0;
    struct sigaction act;

    (void)sigprocmask(SIG_SETMASK, NULL, &mask);
    for (int s = 1; s < NSIG; s++) {
        blocked += sigismember(&mask, s) == 1;
        ignored += sigaction(s, NULL, &act) == 0 && act.sa_handler == SIG_IGN;
    }
    (void)prctl(PR_GET_PDEATHSIG, &death);
    printf("session=%d group=%d blocked=%d ignored=%d death=%d\n", getsid(0) == getpid(),
           getpgrp() == getpid(), blocked, ignored, death);
    fflush(stdout);
}

static void copy(int from, int to)
{
    char buf[4096];
    ssize_t n;

    while ((n = read(from, buf, sizeof(buf))) > 0) {
        if (write(to, buf, (size_t)n) != n) {
            _exit(9);
        }
    }
}

static int is(const char *arg, const char *name, const char **ret_value)
{
    size_t len = strlen(name);

    if (strncmp(arg, name, len) != 0 || (arg[len] != '=' && arg[len] != '\0')) {
        return 0;
    }
    *ret_value = arg[len] == '=' ? arg + len + 1 : "";
    return 1;
}

static void act_on(const char *arg)
{
    const char *v;

    if (is(arg, "out", &v)) {
        printf("%s\n", v);
        fflush(stdout);
    } else if (is(arg, "err", &v)) {
        fprintf(stderr, "%s\n", v);
    } else if (is(arg, "part", &v)) {
        write_all(v, strlen(v));
    } else if (is(arg, "flood", &v)) {
        flood(strtol(v, NULL, 10));
    } else if (is(arg, "sleep", &v)) {
        rest(strtol(v, NULL, 10));
    } else if (is(arg, "exit", &v)) {
        _exit((int)strtol(v, NULL, 10));
    } else if (is(arg, "raise", &v)) {
        (void)kill(getpid(), (int)strtol(v, NULL, 10));
    } else if (is(arg, "ignore", &v)) {
        ignore((int)strtol(v, NULL, 10));
    } else if (is(arg, "child", &v)) {
        start_child(strtol(v, NULL, 10));
    } else if (is(arg, "daemon", &v)) {
        start_daemon(strtol(v, NULL, 10), false, false);
    } else if (is(arg, "scrub", &v)) {
        start_daemon(strtol(v, NULL, 10), true, false);
    } else if (is(arg, "scrub-late", &v)) {
        start_daemon(strtol(v, NULL, 10), false, true);
    } else if (is(arg, "execs", &v)) {
        start_execs();
    } else if (is(arg, "again", &v)) {
        become_self();
    } else if (is(arg, "bomb", &v)) {
        bomb(strtol(v, NULL, 10));
    } else if (is(arg, "fds", &v)) {
        print_fds();
    } else if (is(arg, "state", &v)) {
        print_state();
    } else if (is(arg, "env", &v)) {
        printf("%s\n", getenv(v) == NULL ? "(none)" : getenv(v));
        fflush(stdout);
    } else if (is(arg, "echo", &v)) {
        copy((int)strtol(v, NULL, 10), (int)strtol(v, NULL, 10));
    } else if (is(arg, "fill", &v)) {
        fill((int)strtol(v, NULL, 10));
    } else if (is(arg, "cat", &v)) {
        copy(0, 1);
    } else if (is(arg, "cwd", &v)) {
        char path[4096];

        printf("%s\n", getcwd(path, sizeof(path)) == NULL ? "?" : path);
        fflush(stdout);
    } else if (is(arg, "zygote", &v)) {
        zoo_zygote();
    } else if (is(arg, "refuse", &v)) {
        zoo_refuse(v);
    } else if (is(arg, "dies", &v)) {
        pid_t pid = getpid();

        if (fork() == 0) {
            rest(strtol(v, NULL, 10));
            (void)kill(pid, SIGKILL);
            _exit(0);
        }
    } else if (is(arg, "closed", &v)) {
        (void)close(1);
        (void)close(2);
    } else {
        fprintf(stderr, "zoo: what is %s?\n", arg);
        _exit(99);
    }
}

int main(int argc, char **argv)
{
    static char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 1);

    if (n < 0) {
        return 98;
    }
    path[n] = '\0';
    self = path;
    for (int i = 1; i < argc; i++) {
        act_on(argv[i]);
    }
    return 0;
}
