#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "core/err.h"
#include "transport/child_internal.h"

/* How much of a pipe is read at once after its process; a descendant may write for ever. */
#define DRAIN_MAX (1u << 20)

static void consider_end(struct mu_uv_child *c);

/* --- handles ---------------------------------------------------------------------------------- */

static void free_child(struct mu_uv_child *c)
{
    for (int i = 0; i < 2; i++) {
        mu_list_remove(&c->pipes[i].later.link);
        mu_buf_fini(&c->pipes[i].stash);
    }
    mu_list_remove(&c->later.link);
    mu_free(c);
}

/* All handles are closed: the last callback. A child that never began has no owner to tell. */
static void finish(struct mu_uv_child *c)
{
    struct mu_child *child = c->child;
    struct mu_uv_families *f = c->families;

    if (child != NULL) {
        mu_list_remove(&c->link);
        mu_watch_tell(&f->watch, c->pid, false);
        if (c->cgroup) {
            (void)mu_cgroup_remove(&f->cgroup, c->number);
        }
        mu_env_timer_arm(&f->uv->env, &c->kill_timer, MU_MONO_NEVER);
        child->impl = NULL;
        f->uv->live -= !c->left;
        child = c->left ? NULL : child;
        /* Strays wait for the last child, which may be another one now. */
        mu_uv_families_survey_soon(f);
    }
    free_child(c);
    if (child != NULL) {
        child->on->gone(child);
    }
}

static void on_closed(uv_handle_t *handle)
{
    struct mu_uv_child *c = handle->data;

    if (--c->handles == 0 && c->finishing) {
        finish(c);
    }
}

static int watch_fd(struct mu_uv_child *c, uv_poll_t *poll, int fd)
{
    int rc = uv_poll_init(&c->families->uv->loop, poll, fd);

    if (rc == 0) {
        poll->data = c;
        c->handles++;
    }
    return rc;
}

static void unwatch_fd(uv_poll_t *poll, int *fd)
{
    uv_close((uv_handle_t *)poll, on_closed);
    (void)close(*fd);
    *fd = -1;
}

/* --- pipes ------------------------------------------------------------------------------------ */

static void end_pipe(struct mu_uv_pipe *p)
{
    struct mu_uv_child *c = p->owner;

    unwatch_fd(&p->poll, &p->fd);
    p->ended = true;
    (void)c->child->on->output(c->child, p->stream, (struct mu_span){0});
}

/* Hands bytes to the owner and keeps what it does not use; false if it wants no more for now. */
static bool deliver(struct mu_uv_pipe *p, struct mu_span in)
{
    struct mu_uv_child *c = p->owner;
    size_t used;

    p->in_output = true;
    p->resume = false;
    used = c->child->on->output(c->child, p->stream, in);
    p->in_output = false;
    MU_ASSERT(used <= in.len);
    if (used == in.len) {
        return true;
    }
    p->paused = true;
    (void)uv_poll_stop(&p->poll);
    in = mu_span_skip(in, used);
    if (in.data == mu_buf_span(&p->stash).data + used) {
        mu_buf_consume(&p->stash, used);
    } else {
        mu_buf_put(&p->stash, in); /* its room was reserved before anything was read */
    }
    if (p->resume) {
        mu_uv_later_add(c->families->uv, &p->later);
    }
    return false;
}

/* Reads once; true if there may be more at once. */
static bool read_pipe(struct mu_uv_pipe *p)
{
    struct mu_uv_env *uv = p->owner->families->uv;
    ssize_t n;

    if (p->fd < 0 || p->paused) {
        return false;
    }
    do {
        n = read(p->fd, uv->in, MU_UV_READ_MAX);
    } while (n < 0 && errno == EINTR);
    if (n > 0) {
        return deliver(p, mu_span(uv->in, (size_t)n));
    }
    if (n == 0 || errno != EAGAIN) {
        end_pipe(p);
    }
    return false;
}

static void on_pipe(uv_poll_t *poll, int status, int events)
{
    struct mu_uv_pipe *p = MU_CONTAINER_OF(poll, struct mu_uv_pipe, poll);
    struct mu_uv_child *c = p->owner;

    (void)status; /* read() returns the error itself */
    (void)events;
    (void)read_pipe(p);
    consider_end(c);
}

static void drain(struct mu_uv_pipe *p)
{
    for (size_t n = 0; n < DRAIN_MAX && read_pipe(p); n += MU_UV_READ_MAX) {
    }
}

static void on_resumed(struct mu_uv_later *later)
{
    struct mu_uv_pipe *p = MU_CONTAINER_OF(later, struct mu_uv_pipe, later);
    struct mu_span rest = mu_buf_span(&p->stash);

    p->paused = false;
    if (rest.len > 0) {
        if (!deliver(p, rest)) {
            return;
        }
        mu_buf_reset(&p->stash);
    }
    if (p->owner->empty_surveys >= 2) {
        mu_uv_child_end_soon(p->owner);
    } else {
        (void)uv_poll_start(&p->poll, UV_READABLE, on_pipe);
    }
}

void mu_uv_child_resume(struct mu_env *env, struct mu_child *child, enum mu_stream stream)
{
    struct mu_uv_child *c = child->impl;
    struct mu_uv_pipe *p = &c->pipes[stream == MU_STDERR];

    (void)env;
    if (p->in_output) {
        p->resume = true;
    } else if (p->paused) {
        mu_uv_later_add(c->families->uv, &p->later);
    }
}

/* --- the sentinel ----------------------------------------------------------------------------- */

static void end_sentinel(struct mu_uv_child *c, bool tell)
{
    if (c->sentinel >= 0) {
        unwatch_fd(&c->sentinel_poll, &c->sentinel);
        if (tell && c->child->on->dying != NULL) {
            c->child->on->dying(c->child);
        }
    }
}

/* Nothing writes to it, so this is its end; if something does, it is of no more use. */
static void on_sentinel(uv_poll_t *poll, int status, int events)
{
    struct mu_uv_child *c = poll->data;
    char byte;

    (void)status;
    (void)events;
    end_sentinel(c, read(c->sentinel, &byte, 1) == 0);
}

/* --- the start -------------------------------------------------------------------------------- */

/* Reads how the exec went: an end without a report means success. */
static void hear_report(struct mu_uv_child *c)
{
    char text[sizeof(struct mu_exec_failure) + MU_EXEC_SUBJECT_MAX];
    ssize_t n;

    if (c->report < 0) {
        return;
    }
    do {
        n = read(c->report, text, sizeof(text));
    } while (n < 0 && errno == EINTR);
    if (n < 0 && errno == EAGAIN) {
        return;
    }
    unwatch_fd(&c->report_poll, &c->report);
    if (n > 0) {
        c->failed = true;
        c->exited = true;
        end_sentinel(c, false);
        for (int i = 0; i < 2; i++) {
            if (!c->pipes[i].ended) {
                c->pipes[i].ended = true;
                unwatch_fd(&c->pipes[i].poll, &c->pipes[i].fd);
            }
        }
        c->child->on->started(c->child, mu_exec_explain(&c->child->error, text, (size_t)n));
        return;
    }
    c->started = true;
    c->child->pid = c->pid;
    if (c->sentinel >= 0) {
        (void)uv_poll_start(&c->sentinel_poll, UV_READABLE, on_sentinel);
    }
    for (int i = 0; i < 2; i++) {
        if (!c->pipes[i].ended) {
            (void)uv_poll_start(&c->pipes[i].poll, UV_READABLE, on_pipe);
        }
    }
    c->child->on->started(c->child, 0);
}

static void on_report(uv_poll_t *poll, int status, int events)
{
    struct mu_uv_child *c = poll->data;

    (void)status;
    (void)events;
    hear_report(c);
}

/* --- the end ---------------------------------------------------------------------------------- */

void mu_uv_child_look(struct mu_uv_child *c)
{
    siginfo_t info = {0};

    if (c->reaped || waitid(P_PID, (id_t)c->pid, &info, WEXITED | WNOHANG) != 0 ||
        info.si_pid == 0) {
        return;
    }
    c->reaped = true;
    c->status = info.si_code == CLD_EXITED ? info.si_status : -info.si_status;
    if (c->pidfd >= 0) {
        unwatch_fd(&c->pidfd_poll, &c->pidfd);
    }
    hear_report(c); /* the report came first, but may not have been read */
    end_sentinel(c, false);
    if (!c->failed) {
        drain(&c->pipes[0]);
        drain(&c->pipes[1]);
        c->exited = true;
        c->child->on->exited(c->child, c->status);
    }
    mu_uv_families_survey_soon(c->families);
}

static void on_pidfd(uv_poll_t *poll, int status, int events)
{
    (void)status;
    (void)events;
    mu_uv_child_look(poll->data);
}

static void consider_end(struct mu_uv_child *c)
{
    if (c->finishing || c->empty_surveys < 2 || !c->exited || !c->pipes[0].ended ||
        !c->pipes[1].ended) {
        return;
    }
    c->finishing = true;
    if (c->handles == 0) {
        finish(c);
    }
}

/* The family is gone; any other process that holds the other end of a pipe does not matter. */
static void on_end(struct mu_uv_later *later)
{
    struct mu_uv_child *c = MU_CONTAINER_OF(later, struct mu_uv_child, later);

    for (int i = 0; i < 2; i++) {
        drain(&c->pipes[i]);
        if (!c->pipes[i].ended && !c->pipes[i].paused) {
            end_pipe(&c->pipes[i]);
        }
    }
    consider_end(c);
}

void mu_uv_child_end_soon(struct mu_uv_child *c)
{
    mu_uv_later_add(c->families->uv, &c->later);
}

static int signal_child(struct mu_uv_child *c, int signal, enum mu_child_scope scope)
{
    bool obey = signal == SIGTERM || signal == SIGINT || signal == SIGHUP || signal == SIGQUIT;
    int rc;

    if (signal < 0 || signal >= NSIG) {
        return MUSTER_EINVAL;
    }
    if (scope == MU_CHILD_FAMILY) {
        c->killing = c->killing || signal == SIGKILL;
        rc = mu_uv_family_signal(c, signal, false);
    } else if (c->reaped) {
        /* Another process may have the pid by now; of the group, only ours are signalled. */
        rc = scope == MU_CHILD_SELF ? -ESRCH : mu_uv_family_signal(c, signal, true);
    } else {
        /* It is alone until it has its own group. */
        rc = scope == MU_CHILD_GROUP && kill(-c->pid, signal) == 0 ? 0
             : kill(c->pid, signal) == 0                           ? 0
                                                                   : -errno;
    }
    if (rc == 0 && obey) {
        (void)signal_child(c, SIGCONT, scope);
    }
    return rc;
}

int mu_uv_child_signal(struct mu_env *env, struct mu_child *child, int signal,
                       enum mu_child_scope scope)
{
    (void)env;
    return signal_child(child->impl, signal, scope);
}

/* --- leaving ---------------------------------------------------------------------------------- */

static void hear_no_status(struct mu_child *child, int status)
{
    (void)child;
    (void)status;
}

static size_t hear_no_output(struct mu_child *child, enum mu_stream stream, struct mu_span in)
{
    (void)child;
    (void)stream;
    return in.len;
}

/* The callbacks of a child whose owner let go. */
static const struct mu_child_events nobody_hears = {
    .started = hear_no_status, .output = hear_no_output, .exited = hear_no_status};

static void on_kill_timer(struct mu_timer *timer)
{
    (void)signal_child(MU_CONTAINER_OF(timer, struct mu_uv_child, kill_timer), SIGKILL,
                       MU_CHILD_FAMILY);
}

void mu_uv_child_leave(struct mu_env *env, struct mu_child *child, int signal, uint64_t grace_ms)
{
    struct mu_uv_child *c = child->impl;
    struct mu_uv_env *uv = c->families->uv;

    mu_uv_child_resume(env, child, MU_STDOUT); /* streams that were paused for the owner */
    mu_uv_child_resume(env, child, MU_STDERR);
    c->nobody.on = &nobody_hears;
    c->child = &c->nobody;
    c->left = true;
    child->impl = NULL;
    uv->live--;
    (void)signal_child(c, signal, MU_CHILD_FAMILY);
    c->kill_at = mu_mono_add_ms(mu_env_now(&uv->env).mono, grace_ms);
    mu_env_timer_arm(&uv->env, &c->kill_timer, c->kill_at);
}

/* --- spawn ------------------------------------------------------------------------------------ */

/* Makes a pipe whose reading end does not block; both ends close on exec. */
static int make_pipe(int *ret_read, int *ret_write)
{
    int fds[2];

    if (pipe2(fds, O_CLOEXEC) != 0) {
        return -errno;
    }
    (void)fcntl(fds[0], F_SETFL, O_NONBLOCK);
    *ret_read = fds[0];
    *ret_write = fds[1];
    return 0;
}

static void close_fd(int *fd)
{
    if (*fd >= 0) {
        (void)close(*fd);
        *fd = -1;
    }
}

/* Makes the pipes and adds them to the loop, so that nothing can fail after the fork. */
static int make_pipes(struct mu_uv_child *c, struct mu_exec_plan *plan)
{
    int fd = -1;
    int rc = make_pipe(&fd, &plan->report);

    if (rc == 0) {
        rc = watch_fd(c, &c->report_poll, fd);
        if (rc != 0) {
            (void)close(fd);
        } else {
            c->report = fd;
        }
    }
    if (rc == 0 && plan->what->sentinel) {
        rc = make_pipe(&fd, &plan->sentinel);
        if (rc == 0) {
            rc = watch_fd(c, &c->sentinel_poll, fd);
            if (rc != 0) {
                (void)close(fd);
            } else {
                c->sentinel = fd;
            }
        }
    }
    for (int i = 0; rc == 0 && i < 2; i++) {
        struct mu_uv_pipe *p = &c->pipes[i];

        if (plan->what->streams[p->stream].to != MU_SPAWN_PIPE) {
            continue;
        }
        rc = mu_buf_reserve(&p->stash, MU_UV_READ_MAX);
        if (rc == 0) {
            rc = make_pipe(&fd, &plan->pipes[p->stream]);
        }
        if (rc == 0) {
            rc = watch_fd(c, &p->poll, fd);
            if (rc != 0) {
                (void)close(fd);
            }
        }
        if (rc == 0) {
            p->poll.data = c;
            p->fd = fd;
            p->ended = false;
        }
    }
    return rc;
}

/* Makes a connection whose other end is the child's; it begins with mu_uv_conn_start(). */
static int make_channel(struct mu_uv_env *uv, struct mu_uv_conn **ret, int *ret_fd)
{
    struct mu_uv_conn *conn = mu_uv_conn_new(uv);
    int fds[2];
    int rc = conn == NULL ? MUSTER_ENOMEM : 0;

    if (rc == 0 && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) {
        rc = -errno;
    }
    if (rc == 0) {
        (void)fcntl(fds[0], F_SETFL, O_NONBLOCK);
        rc = mu_uv_conn_attach(conn, fds[0]);
        if (rc == 0) {
            *ret = conn;
            *ret_fd = fds[1];
            return 0;
        }
        (void)close(fds[0]);
        (void)close(fds[1]);
    }
    if (conn != NULL) {
        mu_uv_conn_free(conn);
    }
    return rc;
}

static int fork_child(struct mu_uv_child *c, struct mu_exec_plan *plan)
{
    sigset_t all;
    sigset_t before;
    pid_t pid;
    int error;

    plan->parent = getpid();
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    /* Not fork(): the fork handlers of other libraries do not matter to a child that only execs. */
    pid = _Fork();
    if (pid == 0) {
        mu_exec_run(plan);
    }
    error = errno;
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (pid < 0) {
        return -error;
    }
    c->pid = pid;
    return 0;
}

static struct mu_uv_child *new_child(struct mu_uv_families *f)
{
    struct mu_uv_child *c = mu_calloc(1, sizeof(*c));

    if (c == NULL) {
        return NULL;
    }
    c->families = f;
    c->number = f->number++;
    c->report = -1;
    c->pidfd = -1;
    c->sentinel = -1;
    mu_list_init(&c->link);
    mu_list_init(&c->later.link);
    c->later.run = on_end;
    mu_timer_init(&c->kill_timer, on_kill_timer);
    for (int i = 0; i < 2; i++) {
        struct mu_uv_pipe *p = &c->pipes[i];

        p->owner = c;
        p->fd = -1;
        p->stream = i == 0 ? MU_STDOUT : MU_STDERR;
        p->ended = true;
        mu_list_init(&p->later.link);
        p->later.run = on_resumed;
        mu_buf_init(&p->stash, MU_UV_READ_MAX);
    }
    return c;
}

/* Closes what is open; the memory goes with the last handle, and the owner is not told. */
static void abandon(struct mu_uv_child *c)
{
    c->finishing = true;
    if (c->pidfd >= 0) {
        unwatch_fd(&c->pidfd_poll, &c->pidfd);
    }
    if (c->report >= 0) {
        unwatch_fd(&c->report_poll, &c->report);
    }
    if (c->sentinel >= 0) {
        unwatch_fd(&c->sentinel_poll, &c->sentinel);
    }
    for (int i = 0; i < 2; i++) {
        if (c->pipes[i].fd >= 0) {
            unwatch_fd(&c->pipes[i].poll, &c->pipes[i].fd);
        }
    }
    if (c->cgroup) {
        (void)mu_cgroup_remove(&c->families->cgroup, c->number);
    }
    if (c->handles == 0) {
        free_child(c);
    }
}

void mu_uv_child_drop(struct mu_uv_child *c)
{
    mu_env_timer_arm(&c->families->uv->env, &c->kill_timer, MU_MONO_NEVER);
    mu_list_remove(&c->link);
    c->child = NULL;
    abandon(c);
}

static void begin(struct mu_uv_child *c, struct mu_child *child)
{
    struct mu_uv_families *f = c->families;

    c->child = child;
    child->impl = c;
    child->env = &f->uv->env;
    child->pid = 0;
    child->error.text[0] = '\0';
    f->uv->live++;
    mu_list_push(&f->children, &c->link);
    mu_watch_tell(&f->watch, c->pid, true);
    c->pidfd = mu_pidfd_open(c->pid);
    if (c->pidfd >= 0 && watch_fd(c, &c->pidfd_poll, c->pidfd) != 0) {
        close_fd(&c->pidfd);
    }
    if (c->pidfd >= 0) {
        (void)uv_poll_start(&c->pidfd_poll, UV_READABLE, on_pidfd);
    } else {
        c->pidfd = -1; /* SIGCHLD will do */
    }
    (void)uv_poll_start(&c->report_poll, UV_READABLE, on_report);
}

/* `zygote`: its socket, or -1. */
static int start(struct mu_env *env, struct mu_child *child, const struct mu_spawn *what,
                 int zygote)
{
    struct mu_uv_env *uv = mu_uv_of(env);
    struct mu_exec_plan plan = {
        .pipes = {-1, -1, -1}, .channel = zygote, .sentinel = -1, .cgroup = -1, .report = -1};
    struct mu_uv_conn *channel = NULL;
    struct mu_uv_families *f;
    struct mu_uv_child *c;
    char mark[MU_FAMILY_ID_LEN + 24];
    int rc = mu_uv_families_get(uv, &f);

    if (rc != 0) {
        return rc;
    }
    c = new_child(f);
    if (c == NULL) {
        return MUSTER_ENOMEM;
    }
    c->aside = zygote >= 0;
    (void)snprintf(mark, sizeof(mark), "%s.%llu", f->cgroup.id, (unsigned long long)c->number);
    rc = mu_exec_plan_make(&plan, what, mark);
    if (rc == 0) {
        rc = make_pipes(c, &plan);
    }
    if (rc == 0 && what->channel != NULL) {
        rc = make_channel(uv, &channel, &plan.channel);
    }
    if (rc == 0) {
        plan.cgroup = mu_cgroup_make(&f->cgroup, c->number);
        c->cgroup = plan.cgroup >= 0;
        rc = what->from != NULL ? mu_uv_standby_take(what->from, &plan, &c->pid)
                                : fork_child(c, &plan);
    }
    close_fd(&plan.report);
    close_fd(&plan.pipes[MU_STDOUT]);
    close_fd(&plan.pipes[MU_STDERR]);
    if (zygote < 0) {
        close_fd(&plan.channel);
    }
    close_fd(&plan.sentinel);
    close_fd(&plan.cgroup);
    mu_exec_plan_free(&plan);
    if (rc != 0) {
        abandon(c);
        if (channel != NULL) {
            mu_uv_conn_teardown(channel, 0);
        }
        return rc == UV_ENOMEM ? MUSTER_ENOMEM : rc;
    }
    if (channel != NULL) {
        mu_uv_conn_start(channel, what->channel);
        mu_uv_conn_watch(channel, MU_UV_OPEN);
    }
    begin(c, child);
    return 0;
}

int mu_uv_spawn(struct mu_env *env, struct mu_child *child, const struct mu_spawn *what)
{
    return start(env, child, what, -1);
}

int mu_uv_spawn_zygote(struct mu_env *env, struct mu_child *child, const struct mu_spawn *what,
                       int socket)
{
    return start(env, child, what, socket);
}
