/*
 * Between fork and exec. The process we were forked from has threads, so nothing here may take a
 * lock: system calls and memory functions only. What needs memory is made before the fork, in the
 * plan.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/err.h"
#include "transport/child_internal.h"

#ifndef CLOSE_RANGE_CLOEXEC
#define CLOSE_RANGE_CLOEXEC (1u << 2)
#endif

/* Our descriptors that become the child's are moved up here first, out of each other's way. */
#define SENTINEL_FD 1023 /* the highest, where the limit is the usual one */
#define FD_ASIDE    16

enum mu_exec_step {
    STEP_SESSION = 1,
    STEP_CWD,
    STEP_OPEN,
    STEP_DESCRIPTORS,
    STEP_CPUS,
    STEP_EXEC,
    STEP_INTERPRETER,
    STEP_BECOME, /* of a standby */
};

/* --- before the fork -------------------------------------------------------------------------- */

static const char *variable_of(const char *const *envp, const char *name)
{
    size_t len = strlen(name);

    for (; *envp != NULL; envp++) {
        if (strncmp(*envp, name, len) == 0 && (*envp)[len] == '=') {
            return *envp + len + 1;
        }
    }
    return NULL;
}

static bool streams_fit(const struct mu_spawn *what)
{
    for (int i = 0; i < 3; i++) {
        const struct mu_spawn_stream *s = &what->streams[i];

        switch (s->to) {
        case MU_SPAWN_NULL:
        case MU_SPAWN_INHERIT:
            break;
        case MU_SPAWN_FILE:
            if (s->path == NULL) {
                return false;
            }
            break;
        case MU_SPAWN_FILE_APPEND:
            if (s->path == NULL || i == MU_STDIN) {
                return false;
            }
            break;
        case MU_SPAWN_PIPE:
            if (i == MU_STDIN) {
                return false;
            }
            break;
        }
    }
    return true;
}

/* Writes "dir/name", where an empty directory is the present one; returns the room it took. */
static size_t put_path(char *at, const char *dir, size_t dir_len, const char *name)
{
    size_t name_len = strlen(name) + 1;

    if (dir_len == 0) {
        memcpy(at, name, name_len);
        return name_len;
    }
    memcpy(at, dir, dir_len);
    at[dir_len] = '/';
    memcpy(at + dir_len + 1, name, name_len);
    return dir_len + 1 + name_len;
}

static void fill_candidates(char **list, char *text, const char *name, const char *path)
{
    size_t count = 0;

    if (strchr(name, '/') != NULL) {
        memcpy(text, name, strlen(name) + 1);
        list[0] = text;
        list[1] = NULL;
        return;
    }
    for (;;) {
        size_t len = strcspn(path, ":");

        list[count++] = text;
        text += put_path(text, path, len, name);
        if (path[len] == '\0') {
            break;
        }
        path += len + 1;
    }
    list[count] = NULL;
}

int mu_exec_plan_make(struct mu_exec_plan *plan, const struct mu_spawn *what, const char *mark)
{
    const char *outer;
    const char *path;
    size_t mark_len = strlen(mark);
    size_t outer_len;
    size_t count = 0;
    size_t dirs = 1;
    size_t room;
    char *text;
    size_t at = 0;

    if (what->argv == NULL || what->argv[0] == NULL || what->argv[0][0] == '\0' ||
        what->envp == NULL || !streams_fit(what)) {
        return MUSTER_EINVAL;
    }
    outer = variable_of(what->envp, MU_CHILD_MARK);
    outer_len = outer == NULL ? 0 : strlen(outer);
    if (outer_len + 1 + mark_len >= MU_PROC_MARK_MAX) {
        outer_len = 0; /* if nested too deep, the outermost marks are dropped */
    }
    path = variable_of(what->envp, "PATH");
    path = path == NULL ? "/usr/local/bin:/usr/bin:/bin" : path;
    while (what->envp[count] != NULL) {
        count++;
    }
    for (const char *p = path; *p != '\0'; p++) {
        dirs += *p == ':';
    }
    room = (count + 2 + dirs + 1) * sizeof(char *) + sizeof(MU_CHILD_MARK "=/") + outer_len +
           mark_len + strlen(path) + 1 + dirs * (strlen(what->argv[0]) + 2);
    plan->memory = mu_malloc(room);
    if (plan->memory == NULL) {
        return MUSTER_ENOMEM;
    }
    plan->what = what;
    plan->envp = plan->memory;
    plan->candidates = plan->envp + count + 2;
    text = (char *)(plan->candidates + dirs + 1);
    /* The mark comes first: it is read more often than the rest. */
    plan->envp[at++] = text;
    text += snprintf(text, sizeof(MU_CHILD_MARK "=/") + outer_len + mark_len, "%s=%.*s%s%s",
                     MU_CHILD_MARK, (int)outer_len, outer_len == 0 ? "" : outer,
                     outer_len == 0 ? "" : "/", mark) +
            1;
    for (size_t i = 0; i < count; i++) {
        if (strncmp(what->envp[i], MU_CHILD_MARK "=", sizeof(MU_CHILD_MARK)) != 0) {
            plan->envp[at++] = (char *)(uintptr_t)what->envp[i];
        }
    }
    plan->envp[at] = NULL;
    fill_candidates(plan->candidates, text, what->argv[0], path);
    return 0;
}

void mu_exec_plan_free(struct mu_exec_plan *plan)
{
    mu_free(plan->memory);
    plan->memory = NULL;
}

/* --- in the child ----------------------------------------------------------------------------- */

static _Noreturn void fail(const struct mu_exec_plan *plan, enum mu_exec_step step, int error,
                           const char *subject)
{
    char text[sizeof(struct mu_exec_failure) + MU_EXEC_SUBJECT_MAX];
    struct mu_exec_failure f = {.step = (int32_t)step, .error = error};
    size_t len = strnlen(subject, MU_EXEC_SUBJECT_MAX);

    memcpy(text, &f, sizeof(f));
    memcpy(text + sizeof(f), subject, len);
    if (write(plan->report, text, sizeof(f) + len) < 0) {
        /* There is nobody left to report to. */
    }
    _exit(127);
}

void mu_exec_reset_signals(void)
{
    struct sigaction act;
    sigset_t none;

    for (int s = 1; s < NSIG; s++) {
        if (sigaction(s, NULL, &act) != 0) {
            continue;
        }
        /* Signals that a parent ignores (nohup) stay ignored, except for these three, which we
         * ignore ourselves. */
        if (act.sa_handler != SIG_IGN || s == SIGPIPE || s == SIGCHLD || s == SIGXFSZ) {
            act = (struct sigaction){.sa_handler = SIG_DFL};
            (void)sigaction(s, &act, NULL);
        }
    }
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
}

void mu_exec_close_from(unsigned first, bool now)
{
    struct rlimit limit = {.rlim_cur = 1024};

    if (close_range(first, ~0u, now ? 0 : CLOSE_RANGE_CLOEXEC) == 0) {
        return;
    }
    /* An older kernel. Our own descriptors all close on exec; this closes what we inherited. */
    (void)getrlimit(RLIMIT_NOFILE, &limit);
    for (unsigned fd = first; fd < limit.rlim_cur && fd < 65536; fd++) {
        if (now) {
            (void)close((int)fd);
        } else {
            (void)fcntl((int)fd, F_SETFD, FD_CLOEXEC);
        }
    }
}

static int open_stream(const struct mu_exec_plan *plan, int i)
{
    const struct mu_spawn_stream *s = &plan->what->streams[i];
    const char *path = s->path;
    int flags = i == MU_STDIN ? O_RDONLY : O_WRONLY | O_CREAT;
    int fd;

    switch (s->to) {
    case MU_SPAWN_INHERIT:
        return -1;
    case MU_SPAWN_PIPE:
        return plan->pipes[i];
    case MU_SPAWN_NULL:
        path = "/dev/null";
        flags &= ~O_CREAT;
        break;
    case MU_SPAWN_FILE:
        flags |= i == MU_STDIN ? 0 : O_TRUNC;
        break;
    case MU_SPAWN_FILE_APPEND:
        flags |= O_APPEND;
        break;
    }
    do {
        fd = open(path, flags | O_CLOEXEC | O_NOCTTY, 0666);
    } while (fd < 0 && errno == EINTR);
    if (fd < 0) {
        fail(plan, STEP_OPEN, errno, path);
    }
    return fd;
}

/* What was inherited there is none of the child's, so close_from() comes before. */
static void place_vaults(const struct mu_exec_plan *plan)
{
    int aside[MU_CHILD_VAULTS_MAX];

    for (int i = 0; i < MU_CHILD_VAULTS_MAX; i++) {
        const struct mu_vault *v = plan->what->vaults[i];

        aside[i] = v == NULL ? -1
                             : fcntl((int)v->handle, F_DUPFD_CLOEXEC,
                                     MU_CHILD_VAULT_FD + MU_CHILD_VAULTS_MAX);
    }
    for (int i = 0; i < MU_CHILD_VAULTS_MAX; i++) {
        if (aside[i] >= 0) {
            (void)dup2(aside[i], MU_CHILD_VAULT_FD + i);
        }
    }
}

/* Places it as high as most programs may go; if that fails, there is no sentinel. */
static void place_sentinel(const struct mu_exec_plan *plan)
{
    struct rlimit limit = {.rlim_cur = 1024};
    int fd;

    if (plan->sentinel < 0) {
        return;
    }
    (void)getrlimit(RLIMIT_NOFILE, &limit);
    fd = limit.rlim_cur > SENTINEL_FD ? SENTINEL_FD : (int)limit.rlim_cur - 1;
    if (fd > FD_ASIDE) {
        (void)dup3(plan->sentinel, fd, 0);
    }
}

static void place_descriptors(const struct mu_exec_plan *plan)
{
    int fds[4] = {-1, -1, -1, plan->channel};

    for (int i = 0; i < 3; i++) {
        fds[i] = open_stream(plan, i);
    }
    for (int i = 0; i < 4; i++) {
        if (fds[i] >= 0) {
            fds[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, FD_ASIDE);
            if (fds[i] < 0) {
                fail(plan, STEP_DESCRIPTORS, errno, "");
            }
        }
    }
    for (int i = 0; i < 4; i++) {
        if (fds[i] >= 0) {
            if (dup2(fds[i], i) < 0) {
                fail(plan, STEP_DESCRIPTORS, errno, "");
            }
        } else if (i < 3) {
            (void)fcntl(i, F_SETFD, 0);
        }
    }
    mu_exec_close_from(plan->channel >= 0 ? 4 : 3, false);
    place_vaults(plan);
    place_sentinel(plan);
}

static _Noreturn void exec_first_of(const struct mu_exec_plan *plan)
{
    char **argv = (char **)(uintptr_t)plan->what->argv;
    int error = ENOENT;
    bool there = false;

    for (char **path = plan->candidates; *path != NULL; path++) {
        (void)execve(*path, argv, plan->envp);
        if (errno == ENOENT && access(*path, F_OK) == 0) {
            there = true;
        } else if (errno == EACCES) {
            error = EACCES; /* unless a later one is better */
        } else if (errno != ENOENT && errno != ENOTDIR) {
            error = errno;
            break;
        }
    }
    fail(plan, error == ENOENT && there ? STEP_INTERPRETER : STEP_EXEC, error, argv[0]);
}

_Noreturn void mu_exec_run(const struct mu_exec_plan *plan)
{
    int death = plan->what->death_signal == 0 ? SIGKILL : plan->what->death_signal;
    struct mu_exec_plan own = *plan;

    /* Away from the numbers that are about to be the child's. */
    own.report = fcntl(plan->report, F_DUPFD_CLOEXEC, FD_ASIDE);
    if (own.report < 0) {
        own.report = plan->report;
        fail(&own, STEP_DESCRIPTORS, errno, "");
    }
    mu_exec_reset_signals();
    if (setsid() < 0) {
        fail(&own, STEP_SESSION, errno, "");
    }
    if (prctl(PR_SET_PDEATHSIG, death) < 0) {
        fail(&own, STEP_SESSION, errno, "");
    }
    if (getppid() != plan->parent) {
        _exit(127); /* the parent died before the kernel could signal us */
    }
    if (plan->cgroup >= 0 && write(plan->cgroup, "0", 1) != 1) {
        /* We may not enter it; descent and marks must do. */
    }
    if (own.what->cpus != NULL &&
        syscall(SYS_sched_setaffinity, 0, sizeof(own.what->cpus->bits), own.what->cpus->bits) < 0) {
        fail(&own, STEP_CPUS, errno, "");
    }
    place_descriptors(&own);
    /* After the files, whose paths are relative to the current directory. */
    if (own.what->cwd != NULL && chdir(own.what->cwd) < 0) {
        fail(&own, STEP_CWD, errno, own.what->cwd);
    }
    exec_first_of(&own);
}

/* --- what came of it -------------------------------------------------------------------------- */

int mu_exec_explain(struct mu_errmsg *msg, const void *report, size_t len)
{
    struct mu_exec_failure f = {.step = STEP_EXEC, .error = EPROTO};
    char subject[MU_EXEC_SUBJECT_MAX + 1] = "";
    int code;

    if (len >= sizeof(f)) {
        size_t rest = len - sizeof(f);

        memcpy(&f, report, sizeof(f));
        rest = rest > MU_EXEC_SUBJECT_MAX ? MU_EXEC_SUBJECT_MAX : rest;
        memcpy(subject, (const char *)report + sizeof(f), rest);
    }
    code = f.error > 0 ? -f.error : -EPROTO;
    switch ((enum mu_exec_step)f.step) {
    case STEP_SESSION:
        return mu_err(msg, code, "start a session: %s", muster_strerror(code));
    case STEP_CWD:
        return mu_err(msg, code, "chdir '%s': %s", subject, muster_strerror(code));
    case STEP_OPEN:
        return mu_err(msg, code, "open '%s': %s", subject, muster_strerror(code));
    case STEP_DESCRIPTORS:
        return mu_err(msg, code, "set up descriptors: %s", muster_strerror(code));
    case STEP_CPUS:
        return mu_err(msg, code, "bind to CPUs: %s", muster_strerror(code));
    case STEP_INTERPRETER:
        return mu_err(msg, code, "exec '%s': the interpreter it names does not exist", subject);
    case STEP_BECOME:
        return mu_err(msg, code, "become a worker: %s", subject);
    case STEP_EXEC:
        break;
    }
    return mu_err(msg, code, "exec '%s': %s", subject, muster_strerror(code));
}
