/*
 * Standbys. The zygote is a child of ours like any other; of the processes that it forks, each
 * starts a session, loses its parent and so comes to us, the subreaper. Until one is used, it
 * belongs to the zygote's family by its mark.
 *
 * All sockets keep messages apart (SOCK_SEQPACKET). On the zygote's:
 *
 *     imported        it can fork now          5            fork so many
 *     refused WHY     it never will
 *     failed WHY      it ends, and another one may do better
 *     ready PID       from a standby, with a socket of its own
 *
 * On a standby's comes one message, which is all that it ever gets: it has descriptors with it, a
 * file with the fields below, the pipe on which a failure is reported as before an exec, and those
 * that the text of the message names: 0, 1 and 2 for streams, c for the channel, s for the
 * sentinel, A to D for vaults. The fields end in a zero each: for each stream nothing, or how to
 * open which file; the directory; CPUs; the death signal; the number of arguments; these; the
 * environment.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/err.h"
#include "transport/child_internal.h"

#define MESSAGE_MAX 1024
#define FDS_MAX     (8 + MU_CHILD_VAULTS_MAX)
/* A standby that has not come after this time is not expected any more. */
#define EXPECTED_MS 10000
/* A zygote that hangs in the kernel is left to the watcher after this time. */
#define END_MS 2000

struct standby {
    struct mu_list link; /* of zygote->waiting */
    struct zygote *zygote;
    uv_poll_t poll;
    int fd;
    pid_t pid;
};

struct zygote {
    struct mu_standbys *owner;
    struct mu_uv_env *uv;
    struct mu_child child;
    uv_poll_t poll;
    int fd;
    bool watched;  /* the socket is in the loop */
    bool imported; /* it can fork */
    bool refused;
    bool closing; /* the owner wants no more of it */
    bool gone;    /* its family */
    uint32_t wanted;
    uint32_t expected; /* asked for, and not here yet */
    mu_mono_t expected_until;
    struct mu_list waiting;
    struct mu_timer timer; /* from the close on */
    unsigned handles;      /* libuv handles that are not closed yet */
    struct mu_errmsg why;
};

/* --- the end ---------------------------------------------------------------------------------- */

/* The last callback. A zygote that never began has no owner to tell. */
static void consider_end(struct zygote *z)
{
    struct mu_standbys *owner = z->owner;

    if (z->gone && z->handles == 0) {
        mu_env_timer_arm(&z->uv->env, &z->timer, MU_MONO_NEVER);
        if (owner != NULL) {
            z->uv->live--;
            owner->impl = NULL;
            owner->on->ended(owner, z->refused, z->closing ? NULL : z->why.text);
        }
        mu_free(z);
    }
}

static void on_socket_closed(uv_handle_t *handle)
{
    struct zygote *z = handle->data;

    z->handles--;
    consider_end(z);
}

static void on_standby_closed(uv_handle_t *handle)
{
    struct standby *s = handle->data;
    struct zygote *z = s->zygote;

    mu_free(s);
    z->handles--;
    consider_end(z);
}

static void drop(struct standby *s)
{
    mu_list_remove(&s->link);
    s->zygote->owner->waiting--;
    uv_close((uv_handle_t *)&s->poll, on_standby_closed);
    (void)close(s->fd);
}

/* Ends everything: those that wait hear it from their sockets, the zygote may be importing. */
static void end_all(struct zygote *z)
{
    while (!mu_list_empty(&z->waiting)) {
        drop(MU_CONTAINER_OF(z->waiting.next, struct standby, link));
    }
    if (z->watched) {
        z->watched = false;
        uv_close((uv_handle_t *)&z->poll, on_socket_closed);
        (void)close(z->fd);
    }
    if (!z->gone) {
        (void)mu_uv_child_signal(&z->uv->env, &z->child, SIGKILL, MU_CHILD_FAMILY);
    }
}

static void on_timer(struct mu_timer *timer)
{
    struct zygote *z = MU_CONTAINER_OF(timer, struct zygote, timer);

    if (!z->gone) {
        mu_uv_child_leave(&z->uv->env, &z->child, SIGKILL, 0);
        z->gone = true;
        consider_end(z);
    }
}

void mu_uv_standbys_close(struct mu_env *env, struct mu_standbys *standbys)
{
    struct zygote *z = standbys->impl;

    if (!z->closing) {
        z->closing = true;
        end_all(z);
        mu_env_timer_arm(env, &z->timer, mu_mono_add_ms(mu_env_now(env).mono, END_MS));
    }
}

/* --- those that wait -------------------------------------------------------------------------- */

/* A standby never writes: this is its end. */
static void on_standby(uv_poll_t *poll, int status, int events)
{
    struct standby *s = poll->data;
    struct zygote *z = s->zygote;

    (void)status;
    (void)events;
    drop(s);
    z->owner->on->changed(z->owner);
}

static void ask(struct zygote *z)
{
    uint32_t have = z->owner->waiting + z->expected;
    char text[16];
    int len;

    if (!z->imported || !z->watched || have >= z->wanted) {
        return;
    }
    len = snprintf(text, sizeof(text), "%u", z->wanted - have);
    if (send(z->fd, text, (size_t)len, MSG_NOSIGNAL | MSG_DONTWAIT) == len) {
        z->expected = z->wanted - z->owner->waiting;
        z->expected_until = mu_mono_add_ms(mu_env_now(&z->uv->env).mono, EXPECTED_MS);
    }
}

void mu_uv_standbys_want(struct mu_env *env, struct mu_standbys *standbys, uint32_t count)
{
    struct zygote *z = standbys->impl;

    if (z->expected > 0 && mu_mono_reached(z->expected_until, mu_env_now(env).mono)) {
        z->expected = 0; /* they died on the way */
    }
    z->wanted = count < MU_STANDBYS_MAX ? count : MU_STANDBYS_MAX;
    ask(z);
}

static bool is_living_child(pid_t pid)
{
    siginfo_t info = {0};

    return pid > 0 && waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid == 0;
}

/* Takes a socket over; false if the process is no child of ours, or there is no memory. */
static bool add_standby(struct zygote *z, pid_t pid, int fd)
{
    struct standby *s = is_living_child(pid) ? mu_calloc(1, sizeof(*s)) : NULL;

    if (s == NULL) {
        return false;
    }
    *s = (struct standby){.zygote = z, .pid = pid, .fd = fd};
    mu_list_init(&s->link);
    if (uv_poll_init(&z->uv->loop, &s->poll, fd) != 0) {
        mu_free(s);
        return false;
    }
    s->poll.data = s;
    z->handles++;
    (void)uv_poll_start(&s->poll, UV_READABLE, on_standby);
    mu_list_push(&z->waiting, &s->link);
    z->owner->waiting++;
    return true;
}

/* --- the zygote's socket ---------------------------------------------------------------------- */

/* Receives one message, and a descriptor if one came with it. */
static ssize_t receive(int fd, char text[MESSAGE_MAX], int *ret_fd)
{
    char control[CMSG_SPACE(sizeof(int))];
    struct iovec io = {.iov_base = text, .iov_len = MESSAGE_MAX - 1};
    struct msghdr msg = {
        .msg_iov = &io, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
    struct cmsghdr *c;
    ssize_t n;

    *ret_fd = -1;
    do {
        n = recvmsg(fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    } while (n < 0 && errno == EINTR);
    if (n < 0) {
        return n;
    }
    text[n] = '\0';
    c = CMSG_FIRSTHDR(&msg);
    if (c != NULL && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
        c->cmsg_len == CMSG_LEN(sizeof(int))) {
        memcpy(ret_fd, CMSG_DATA(c), sizeof(int));
    }
    return n;
}

static void hear(struct zygote *z, const char *text, int fd)
{
    if (strncmp(text, "ready ", 6) == 0 && fd >= 0) {
        z->expected -= z->expected > 0;
        if (!add_standby(z, (pid_t)strtol(text + 6, NULL, 10), fd)) {
            (void)close(fd);
        }
        z->owner->on->changed(z->owner);
        return;
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    if (strcmp(text, "imported") == 0) {
        z->imported = true;
        ask(z);
    } else if (strncmp(text, "refused ", 8) == 0 || strncmp(text, "failed ", 7) == 0) {
        z->refused = text[0] == 'r';
        (void)mu_err(&z->why, 0, "%s", strchr(text, ' ') + 1);
    }
}

static void on_socket(uv_poll_t *poll, int status, int events)
{
    struct zygote *z = poll->data;
    char text[MESSAGE_MAX];
    int fd;

    (void)status;
    (void)events;
    while (z->watched) {
        ssize_t n = receive(z->fd, text, &fd);

        if (n > 0) {
            hear(z, text, fd);
        } else if (n < 0 && errno == EAGAIN) {
            return;
        } else {
            (void)uv_poll_stop(&z->poll); /* the end of the process is reported as well */
            return;
        }
    }
}

/* --- the zygote's process --------------------------------------------------------------------- */

static struct zygote *zygote_of(struct mu_child *child)
{
    return MU_CONTAINER_OF(child, struct zygote, child);
}

static void on_started(struct mu_child *child, int status)
{
    if (status != 0) {
        zygote_of(child)->refused = true;
        (void)mu_err(&zygote_of(child)->why, 0, "%s", child->error.text);
    }
}

static size_t on_output(struct mu_child *child, enum mu_stream stream, struct mu_span in)
{
    (void)child;
    (void)stream;
    return in.len;
}

static void on_exited(struct mu_child *child, int status)
{
    struct zygote *z = zygote_of(child);

    on_socket(&z->poll, 0, 0);                                /* its last words */
    z->refused = z->refused || (status >= 0 && !z->imported); /* it is not what we took it for */
    if (z->why.text[0] == '\0') {
        (void)mu_err(&z->why, 0,
                     status < 0 ? "it was ended by signal %d" : "it exited with code %d",
                     status < 0 ? -status : status);
    }
    end_all(z); /* those that wait cannot be replaced */
}

static void on_gone(struct mu_child *child)
{
    struct zygote *z = zygote_of(child);

    z->gone = true;
    end_all(z);
    consider_end(z);
}

static const struct mu_child_events zygote_events = {
    .started = on_started, .output = on_output, .exited = on_exited, .gone = on_gone};

int mu_uv_standbys_open(struct mu_env *env, struct mu_standbys *standbys,
                        const struct mu_spawn *what)
{
    struct mu_uv_env *uv = mu_uv_of(env);
    struct zygote *z = mu_calloc(1, sizeof(*z));
    int fds[2] = {-1, -1};
    int rc = z == NULL ? MUSTER_ENOMEM : 0;

    if (rc == 0 && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0) {
        rc = -errno;
    }
    if (rc == 0) {
        *z = (struct zygote){.owner = standbys, .uv = uv, .fd = fds[0], .child.on = &zygote_events};
        mu_list_init(&z->waiting);
        mu_timer_init(&z->timer, on_timer);
        rc = uv_poll_init(&uv->loop, &z->poll, fds[0]);
    }
    if (rc == 0) {
        z->poll.data = z;
        z->handles = 1;
        z->watched = true;
        rc = mu_uv_spawn_zygote(env, &z->child, what, fds[1]);
        (void)close(fds[1]);
        if (rc == 0) {
            *standbys = (struct mu_standbys){.on = standbys->on, .env = env, .impl = z};
            uv->live++;
            (void)uv_poll_start(&z->poll, UV_READABLE, on_socket);
            return 0;
        }
        z->owner = NULL;
        z->gone = true;
        end_all(z); /* the memory goes with the handle */
        return rc;
    }
    if (fds[0] >= 0) {
        (void)close(fds[0]);
        (void)close(fds[1]);
    }
    mu_free(z);
    return rc == UV_ENOMEM ? MUSTER_ENOMEM : rc;
}

/* --- one becomes a child ---------------------------------------------------------------------- */

static void put(struct mu_buf *out, int *rc, const char *text)
{
    if (*rc == 0) {
        *rc = mu_buf_append(out, mu_span(text, strlen(text) + 1));
    }
}

/* How a stream is opened, unless its descriptor is handed over. */
static void put_stream(struct mu_buf *out, int *rc, const struct mu_spawn_stream *s, int i)
{
    char text[4096 + 2];

    switch (s->to) {
    case MU_SPAWN_NULL:
        put(out, rc, i == MU_STDIN ? "r/dev/null" : "w/dev/null");
        return;
    case MU_SPAWN_FILE:
    case MU_SPAWN_FILE_APPEND:
        if (snprintf(text, sizeof(text), "%c%s",
                     i == MU_STDIN            ? 'r'
                     : s->to == MU_SPAWN_FILE ? 'c'
                                              : 'a',
                     s->path) >= (int)sizeof(text)) {
            *rc = -ENAMETOOLONG;
        }
        put(out, rc, text);
        return;
    case MU_SPAWN_INHERIT:
    case MU_SPAWN_PIPE:
        break;
    }
    put(out, rc, "");
}

static void put_cpus(struct mu_buf *out, int *rc, const struct mu_cpus *cpus)
{
    char text[24];
    const char *comma = "";

    for (int i = 0; cpus != NULL && *rc == 0 && i < MU_CPUS_MAX; i++) {
        if ((cpus->bits[i / 64] >> (i % 64) & 1) != 0) {
            (void)snprintf(text, sizeof(text), "%s%d", comma, i);
            *rc = mu_buf_append(out, mu_span_str(text));
            comma = ",";
        }
    }
    put(out, rc, "");
}

static int write_fields(struct mu_buf *out, const struct mu_exec_plan *plan)
{
    const struct mu_spawn *what = plan->what;
    char number[24];
    size_t count = 0;
    int rc = 0;

    while (what->argv[count] != NULL) {
        count++;
    }
    for (int i = 0; i < 3; i++) {
        put_stream(out, &rc, &what->streams[i], i);
    }
    put(out, &rc, what->cwd == NULL ? "" : what->cwd);
    put_cpus(out, &rc, what->cpus);
    (void)snprintf(number, sizeof(number), "%d",
                   what->death_signal == 0 ? SIGKILL : what->death_signal);
    put(out, &rc, number);
    (void)snprintf(number, sizeof(number), "%zu", count);
    put(out, &rc, number);
    for (size_t i = 0; i < count; i++) {
        put(out, &rc, what->argv[i]);
    }
    for (char **e = plan->envp; *e != NULL; e++) {
        put(out, &rc, *e);
    }
    return rc;
}

/* A file of no file system that has the fields: its descriptor, or a negated errno. */
static int make_fields(const struct mu_exec_plan *plan)
{
    struct mu_buf out;
    int fd = -1;
    int rc;

    mu_buf_init(&out, (size_t)16 << 20);
    rc = write_fields(&out, plan);
    if (rc == 0) {
        fd = memfd_create("muster-standby", MFD_CLOEXEC);
        rc = fd < 0 ? -errno : 0;
    }
    for (struct mu_span rest = mu_buf_span(&out); rc == 0 && rest.len > 0;) {
        ssize_t n = write(fd, rest.data, rest.len);

        if (n > 0) {
            rest = mu_span_skip(rest, (size_t)n);
        } else if (errno != EINTR) {
            rc = -errno;
        }
    }
    mu_buf_fini(&out);
    if (rc != 0 && fd >= 0) {
        (void)close(fd);
    }
    return rc == 0 ? fd : rc;
}

static int send_plan(int socket, const struct mu_exec_plan *plan, int fields)
{
    char control[CMSG_SPACE(sizeof(int) * FDS_MAX)] = {0};
    int fds[FDS_MAX] = {fields, plan->report};
    char kinds[FDS_MAX + 1] = "";
    size_t count = 2;
    size_t len = 0;
    struct iovec io = {.iov_base = kinds};
    struct msghdr msg = {.msg_iov = &io, .msg_iovlen = 1, .msg_control = control};
    struct cmsghdr *c;

    for (int i = 0; i < 3; i++) {
        enum mu_spawn_to to = plan->what->streams[i].to;

        if (to == MU_SPAWN_INHERIT || to == MU_SPAWN_PIPE) {
            fds[count++] = to == MU_SPAWN_PIPE ? plan->pipes[i] : i;
            kinds[len++] = (char)('0' + i);
        }
    }
    if (plan->channel >= 0) {
        fds[count++] = plan->channel;
        kinds[len++] = 'c';
    }
    if (plan->sentinel >= 0) {
        fds[count++] = plan->sentinel;
        kinds[len++] = 's';
    }
    for (int i = 0; i < MU_CHILD_VAULTS_MAX; i++) {
        if (plan->what->vaults[i] != NULL) {
            fds[count++] = (int)plan->what->vaults[i]->handle;
            kinds[len++] = (char)('A' + i);
        }
    }
    kinds[len++] = '.'; /* a message must not be empty */
    io.iov_len = len;
    msg.msg_controllen = CMSG_SPACE(sizeof(int) * count);
    c = CMSG_FIRSTHDR(&msg);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int) * count);
    memcpy(CMSG_DATA(c), fds, sizeof(int) * count);
    return sendmsg(socket, &msg, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? -errno : 0;
}

int mu_uv_standby_take(struct mu_standbys *standbys, const struct mu_exec_plan *plan,
                       pid_t *ret_pid)
{
    struct zygote *z = standbys->impl;
    int fields = make_fields(plan);
    int rc = MUSTER_EAGAIN;

    if (fields < 0) {
        return fields;
    }
    while (rc != 0 && !mu_list_empty(&z->waiting)) {
        struct standby *s = MU_CONTAINER_OF(z->waiting.next, struct standby, link);
        pid_t pid = s->pid;
        char text[24];
        int len = snprintf(text, sizeof(text), "%d", (int)pid);

        if (is_living_child(pid)) {
            if (plan->cgroup >= 0 && write(plan->cgroup, text, (size_t)len) != len) {
                /* It may not enter it; descent and marks must do. */
            }
            rc = send_plan(s->fd, plan, fields);
            *ret_pid = pid;
        }
        drop(s);
    }
    (void)close(fields);
    return rc;
}
