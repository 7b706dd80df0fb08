/*
 * The watcher: a process that waits for our end and then kills what is left of our families. The
 * kernel's death signal reaches the children only, and no session or group of theirs binds their
 * descendants; so a process must outlive us, and it is better one that does nothing else.
 *
 * It is also a dead man's switch: a time can be set at which it kills the families although we
 * live, unless a later time is set before. We may be stopped then, and nobody else can end them.
 *
 * It holds one end of a socket whose other end only we have. It is forked from a process with
 * threads and never execs: system calls and memory functions only.
 */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "transport/child_internal.h"

/* More children than this are found by their marks alone. */
#define SESSIONS_MAX 8192
/* How many times it tries, in passes of up to REST_MAX_MS. */
#define PASSES_MAX  400
#define REST_MAX_MS 50
/* How often it looks whether the processes that may end by themselves have done so. */
#define LINGER_MS 100

struct word {
    int32_t pid;  /* a child's pid, or BYE, LEAVE or UNTIL */
    int32_t here; /* 1: it exists, 0: it is gone */
    uint64_t at;  /* UNTIL: nanoseconds of the monotonic clock */
};

#define BYE   0    /* we end in order: there is nothing to kill */
#define LEAVE (-1) /* what is left has `here` milliseconds to end */
#define UNTIL (-2) /* everything is killed at `at`, unless another such word comes before */

struct watcher {
    struct mu_cgroup cgroup;
    char cgroup_name[sizeof("muster--") + MU_FAMILY_ID_LEN]; /* how the names of ours begin */
    pid_t agent;                                             /* the process it watches */
    bool bye;
    bool left; /* we end in order, and nothing is started any more */
    int32_t grace_ms;
    uint64_t until; /* UINT64_MAX: for ever */
    int heeds;      /* the words there keep it from killing; -1: nothing does */
    struct mu_proc_table table;
    struct mu_proc self;
    size_t count;
    pid_t sessions[SESSIONS_MAX];
};

/* --- the watcher's side ----------------------------------------------------------------------- */

static void hear(struct watcher *w, struct word word)
{
    if (word.pid == BYE) {
        w->bye = true;
        return;
    }
    if (word.pid == LEAVE) {
        w->left = true;
        w->grace_ms = word.here;
        return;
    }
    if (word.pid == UNTIL) {
        w->until = word.at;
        return;
    }
    if (word.here != 0) {
        if (w->count < SESSIONS_MAX) {
            w->sessions[w->count++] = word.pid;
        }
        return;
    }
    for (size_t i = 0; i < w->count; i++) {
        if (w->sessions[i] == word.pid) {
            w->sessions[i] = w->sessions[--w->count];
            return;
        }
    }
}

enum kin {
    NO_KIN,
    KIN,
    KIN_PERHAPS,
};

/* A child that was just forked has no session of its own yet. */
static bool is_of_session(const struct mu_proc *p, pid_t session)
{
    return p->sid == session || p->pgid == session || p->pid == session;
}

static enum kin kin_of(const struct watcher *w, const struct mu_proc *p)
{
    char mark[MU_PROC_MARK_MAX];
    uint64_t number;
    int rc;

    for (size_t i = 0; i < w->count; i++) {
        if (is_of_session(p, w->sessions[i])) {
            return KIN;
        }
    }
    if (w->cgroup.base[0] != '\0' && mu_proc_cgroup_number(p->pid, w->cgroup_name, &number)) {
        return KIN;
    }
    rc = mu_proc_variable(p, MU_CHILD_MARK, mark);
    if (rc == 0) {
        return strstr(mark, w->cgroup.id) != NULL ? KIN : NO_KIN;
    }
    /* When the agent dies, its orphans get the same new parent as we do. A process with another
     * parent that is not of our families needs no second look. */
    return rc == -EAGAIN && (p->ppid == w->agent || p->ppid == getppid()) ? KIN_PERHAPS : NO_KIN;
}

/* Adds to the families the processes that descend from them. */
static void adopt(struct watcher *w)
{
    bool more = true;

    while (more) {
        more = false;
        for (size_t i = 0; i < w->table.count; i++) {
            struct mu_proc *p = &w->table.procs[i];
            struct mu_proc *parent;

            if (p->owner != NULL || p->dead || p->pid == w->self.pid) {
                continue;
            }
            parent = mu_proc_table_find(&w->table, p->ppid);
            if (parent != NULL && parent->owner != NULL) {
                p->owner = w;
                more = true;
            }
        }
    }
}

/* An empty session gets no more members: another program may soon have its number. */
static void forget_empty_sessions(struct watcher *w)
{
    size_t kept = 0;

    for (size_t i = 0; i < w->count; i++) {
        bool any = false;

        for (size_t j = 0; j < w->table.count && !any; j++) {
            any = is_of_session(&w->table.procs[j], w->sessions[i]);
        }
        if (any) {
            w->sessions[kept++] = w->sessions[i];
        }
    }
    w->count = kept;
}

/* The process that it watches is in charge again. It says a word before it starts others. */
static bool is_told(int fd, int wait_ms)
{
    struct pollfd word = {.fd = fd, .events = POLLIN};

    return fd >= 0 && poll(&word, 1, wait_ms) > 0;
}

/* Signals every process of the families; true if there was no process, and none in doubt. */
static bool signal_all(struct watcher *w, int signal)
{
    bool clean;

    if (signal == SIGKILL && w->heeds < 0) {
        (void)mu_cgroup_each(&w->cgroup, mu_cgroup_kill);
    }
    clean = mu_cgroup_each(&w->cgroup, mu_cgroup_look) == 0;
    if (mu_proc_table_read(&w->table) != 0) {
        return false;
    }
    if (is_told(w->heeds, 0)) { /* not before: the table may have those others */
        mu_proc_table_clear(&w->table);
        return true;
    }
    for (size_t i = 0; i < w->table.count; i++) {
        struct mu_proc *p = &w->table.procs[i];
        enum kin kin = NO_KIN;

        /* A process that is older than the watcher is not one of ours. */
        if (!p->dead && p->pid != w->self.pid && p->start >= w->self.start) {
            kin = kin_of(w, p);
        }
        p->owner = kin == KIN ? w : NULL;
        clean = clean && kin != KIN_PERHAPS;
    }
    adopt(w);
    for (size_t i = 0; i < w->table.count; i++) {
        if (w->table.procs[i].owner != NULL) {
            (void)mu_proc_signal(&w->table.procs[i], signal);
            clean = false;
        }
    }
    if (w->left) {
        forget_empty_sessions(w);
    }
    mu_proc_table_clear(&w->table);
    return clean;
}

static void sweep(struct watcher *w)
{
    unsigned clean = 0;
    long rest_ms = 1;

    for (int pass = 0; pass < PASSES_MAX && clean < 3; pass++) {
        struct timespec rest = {.tv_nsec = rest_ms * 1000000};
        /* The kernel closes the descriptors of a process before it tells its children. Until it has
         * done so, they may have just begun, and start others. */
        bool alone = w->left || getppid() != w->agent;

        clean = signal_all(w, SIGKILL) && alone ? clean + 1 : 0;
        (void)nanosleep(&rest, NULL);
        rest_ms = rest_ms * 2 > REST_MAX_MS ? REST_MAX_MS : rest_ms * 2;
    }
}

/* Until everything must be killed, rounded up; -1: there is no such time. */
static int time_left_ms(const struct watcher *w)
{
    struct timespec now;
    uint64_t ns;
    uint64_t ms;

    if (w->until == UINT64_MAX) {
        return -1;
    }
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    ns = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
    ms = ns >= w->until ? 0 : (w->until - ns + 999999) / 1000000;
    return ms > INT_MAX ? INT_MAX : (int)ms;
}

/* The time has come, and we have heard nothing of a later one. The process that it watches may wake
 * at any moment and start others: then it is in charge again. */
static void end_all(struct watcher *w, int fd)
{
    int rest_ms = 1;

    w->until = UINT64_MAX;
    for (int pass = 0; pass < PASSES_MAX && !signal_all(w, SIGKILL); pass++) {
        if (is_told(fd, rest_ms)) {
            break;
        }
        w->heeds = fd;
        rest_ms = rest_ms * 2 > REST_MAX_MS ? REST_MAX_MS : rest_ms * 2;
    }
    w->heeds = -1;
}

/* Returns when the process that it watches is gone, or has said goodbye: a process that is forked
 * at that moment may still hold a copy of the other end. */
static void listen_to(struct watcher *w, int fd, int pidfd)
{
    struct word words[64];
    size_t len = 0;
    struct pollfd polls[2] = {{.fd = fd, .events = POLLIN}, {.fd = pidfd, .events = POLLIN}};

    for (;;) {
        ssize_t n;

        if (poll(polls, pidfd < 0 ? 1 : 2, time_left_ms(w)) < 0) {
            continue;
        }
        n = recv(fd, (char *)words + len, sizeof(words) - len, MSG_DONTWAIT);
        if (n > 0) {
            size_t whole = (len + (size_t)n) / sizeof(words[0]);

            for (size_t i = 0; i < whole; i++) {
                hear(w, words[i]);
            }
            len = len + (size_t)n - whole * sizeof(words[0]);
            memmove(words, &words[whole], len);
            if (w->bye) {
                return;
            }
            continue;
        }
        /* The socket ends when every process that has its other end is gone; the pidfd is there
         * because a fork may hold a copy. */
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR) ||
            (polls[1].revents & POLLIN) != 0) {
            return;
        }
        if (time_left_ms(w) == 0) {
            end_all(w, fd);
        }
    }
}

/* Gives the processes that were told to end the time for it. */
static void linger(struct watcher *w)
{
    struct timespec rest = {.tv_nsec = LINGER_MS * 1000000L};

    for (int32_t ms = 0; ms < w->grace_ms && !signal_all(w, 0); ms += LINGER_MS) {
        (void)nanosleep(&rest, NULL);
    }
}

/* The kernel keeps a cgroup busy until its last dead process is cleaned up. */
static void remove_cgroups(struct watcher *w)
{
    struct timespec rest = {.tv_nsec = 5 * 1000000};

    for (int pass = 0; pass < PASSES_MAX; pass++) {
        if (mu_cgroup_each(&w->cgroup, mu_cgroup_remove) == 0) {
            return;
        }
        (void)nanosleep(&rest, NULL);
    }
}

static void ignore_signals(void)
{
    mu_exec_reset_signals();
    for (int s = 1; s < NSIG; s++) {
        if (s != SIGSEGV && s != SIGBUS && s != SIGABRT && s != SIGFPE && s != SIGILL) {
            (void)signal(s, SIG_IGN);
        }
    }
}

static _Noreturn void watch(int fd, pid_t parent, const struct mu_cgroup *g)
{
    static struct watcher w; /* a copy of its own, in this process */
    int pidfd;

    ignore_signals();
    (void)setsid();
    (void)prctl(PR_SET_NAME, "muster-watch");
    /* It must not hold our descriptors open, such as pipes to processes that wait for our end. */
    if (dup2(fd, 0) < 0 || chdir("/") != 0) {
        _exit(1);
    }
    mu_exec_close_from(1, true);
    w.cgroup = *g;
    w.agent = parent;
    w.until = UINT64_MAX;
    w.heeds = -1;
    memcpy(w.cgroup_name, "muster-", 7);
    memcpy(w.cgroup_name + 7, g->id, MU_FAMILY_ID_LEN);
    w.cgroup_name[7 + MU_FAMILY_ID_LEN] = '-';
    if (mu_proc_table_init(&w.table) != 0 || mu_proc_read(getpid(), &w.self) != 0) {
        _exit(1);
    }
    pidfd = mu_pidfd_open(parent);
    if (getppid() != parent) {
        pidfd = -1; /* gone already; its last messages are in the socket */
    }
    listen_to(&w, 0, pidfd);
    if (w.left) {
        linger(&w);
    }
    if (!w.bye) {
        sweep(&w);
    }
    remove_cgroups(&w);
    _exit(0);
}

/* --- our side --------------------------------------------------------------------------------- */

int mu_watch_start(struct mu_watch *w, const struct mu_cgroup *g)
{
    pid_t parent = getpid();
    sigset_t all;
    sigset_t before;
    int fds[2];
    pid_t pid;
    int error;

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) {
        return -errno;
    }
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    pid = _Fork();
    if (pid == 0) {
        watch(fds[1], parent, g);
    }
    error = errno;
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    (void)close(fds[1]);
    if (pid < 0) {
        (void)close(fds[0]);
        return -error;
    }
    w->pid = pid;
    w->fd = fds[0];
    return 0;
}

void mu_watch_tell(struct mu_watch *w, pid_t pid, bool here)
{
    struct word word = {.pid = pid, .here = here};

    if (w->pid != 0) {
        (void)send(w->fd, &word, sizeof(word), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
}

void mu_watch_until(struct mu_watch *w, mu_mono_t until)
{
    struct word word = {.pid = UNTIL, .at = until.ns};

    if (w->pid != 0) {
        (void)send(w->fd, &word, sizeof(word), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
}

void mu_watch_stop(struct mu_watch *w)
{
    struct word bye = {.pid = BYE};

    if (w->pid == 0) {
        return;
    }
    /* This message must not be lost; it waits for room. */
    while (send(w->fd, &bye, sizeof(bye), MSG_NOSIGNAL) < 0 && errno == EINTR) {
    }
    (void)close(w->fd);
    while (waitpid(w->pid, NULL, 0) < 0 && errno == EINTR) {
    }
    w->pid = 0;
}

void mu_watch_leave(struct mu_watch *w, uint64_t grace_ms)
{
    /* Half of the type's range, so that counting up to it cannot wrap. */
    struct word leave = {.pid = LEAVE,
                         .here = grace_ms > INT32_MAX / 2 ? INT32_MAX / 2 : (int32_t)grace_ms};

    if (w->pid != 0) {
        while (send(w->fd, &leave, sizeof(leave), MSG_NOSIGNAL) < 0 && errno == EINTR) {
        }
        (void)close(w->fd);
        w->pid = 0;
    }
}
