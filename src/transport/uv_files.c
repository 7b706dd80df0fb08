/*
 * Files are written with plain write(2). A console must not stop the loop, and may not be made
 * non-blocking as it is: the flag belongs to the open file, which the shell and other programs
 * share with us. So it is opened again through /proc, a socket is written to with MSG_DONTWAIT, and
 * where neither is possible little is written at a time, when poll says that there is room.
 */
#include "transport/uv_files.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "core/err.h"
#include "transport/uv_internal.h"

#define OPEN_DIRS_MAX 16

enum sink_kind {
    SINK_FILE = 1, /* takes everything: a regular file, the null device */
    SINK_OWN,      /* our own open file, which does not block */
    SINK_SOCKET,
    SINK_SHARED, /* can block */
};

struct uv_files {
    struct mu_files files; /* first */
    struct mu_uv_env *uv;
    struct uv_sink *consoles[2];
};

struct uv_sink {
    struct mu_sink sink; /* first */
    struct uv_files *owner;
    enum sink_kind kind;
    int fd;
    int watch; /* of SINK_SOCKET and SINK_SHARED: an epoll of its own, or -1. The loop would make
                  the descriptor itself non-blocking, for all programs that share it */
    unsigned users;
    bool polled; /* `poll` is a handle */
    uv_poll_t poll;
    struct stat stat;
};

static int fail(struct mu_errmsg *msg, const char *what, const char *path)
{
    int code = -errno;

    return mu_err(msg, code, "%s '%.160s': %s", what, path, muster_strerror(code));
}

/* --- writing ---------------------------------------------------------------------------------- */

/* write(2) without raising SIGPIPE. */
static ssize_t write_quietly(int fd, const void *data, size_t len)
{
    struct timespec zero = {0};
    sigset_t pipe;
    sigset_t before;
    sigset_t pending;
    bool was_pending;
    ssize_t n;
    int error;

    (void)sigemptyset(&pipe);
    (void)sigaddset(&pipe, SIGPIPE);
    (void)sigpending(&pending);
    was_pending = sigismember(&pending, SIGPIPE) == 1;
    (void)pthread_sigmask(SIG_BLOCK, &pipe, &before);
    n = write(fd, data, len);
    error = errno;
    if (n < 0 && error == EPIPE && !was_pending) {
        while (sigtimedwait(&pipe, NULL, &zero) < 0 && errno == EINTR) {
        }
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = error;
    return n;
}

static ssize_t write_once(struct uv_sink *s, struct mu_span data)
{
    struct pollfd ready = {.fd = s->fd, .events = POLLOUT};

    switch (s->kind) {
    case SINK_FILE:
        return write(s->fd, data.data, data.len);
    case SINK_OWN:
        return write_quietly(s->fd, data.data, data.len);
    case SINK_SOCKET:
        return send(s->fd, data.data, data.len, MSG_DONTWAIT | MSG_NOSIGNAL);
    case SINK_SHARED:
        if (poll(&ready, 1, 0) != 1) {
            errno = EAGAIN;
            return -1;
        }
        /* A pipe that is ready takes this much without waiting. */
        return write_quietly(s->fd, data.data, data.len < 512 ? data.len : 512);
    }
    errno = EBADF;
    return -1;
}

static void watch_for(struct uv_sink *s, uint32_t events)
{
    struct epoll_event e = {.events = events};

    (void)epoll_ctl(s->watch, EPOLL_CTL_MOD, s->fd, &e);
}

static void on_ready(uv_poll_t *poll, int status, int events)
{
    struct uv_sink *s = poll->data;

    (void)status; /* write() returns the error itself */
    (void)events;
    (void)uv_poll_stop(poll);
    if (s->watch >= 0) {
        watch_for(s, 0);
    }
    if (s->sink.writable != NULL) {
        s->sink.writable(&s->sink);
    }
}

static void sink_write(struct mu_sink *sink, struct mu_span data, size_t *ret_taken)
{
    struct uv_sink *s = (struct uv_sink *)sink;
    size_t taken = 0;

    while (taken < data.len && sink->error == 0) {
        ssize_t n = write_once(s, mu_span_skip(data, taken));

        if (n >= 0) {
            taken += (size_t)n;
        } else if (errno == EAGAIN && s->polled) {
            if (s->watch >= 0) {
                watch_for(s, EPOLLOUT);
            }
            (void)uv_poll_start(&s->poll, s->watch >= 0 ? UV_READABLE : UV_WRITABLE, on_ready);
            break;
        } else if (errno != EINTR) {
            sink->error = -errno;
        }
    }
    *ret_taken = sink->error != 0 ? data.len : taken;
}

static void on_closed(uv_handle_t *handle)
{
    mu_free(handle->data);
}

static void sink_close(struct mu_sink *sink)
{
    struct uv_sink *s = (struct uv_sink *)sink;

    if (--s->users > 0) {
        return;
    }
    for (int i = 0; i < 2; i++) {
        if (s->owner->consoles[i] == s) {
            s->owner->consoles[i] = NULL;
        }
    }
    if (s->polled) {
        uv_close((uv_handle_t *)&s->poll, on_closed);
        (void)close(s->fd);
        if (s->watch >= 0) {
            (void)close(s->watch);
        }
    } else {
        (void)close(s->fd);
        mu_free(s);
    }
}

static const struct mu_sink_ops sink_ops = {
    .write = sink_write,
    .close = sink_close,
};

static int watch_sink(struct uv_sink *s)
{
    struct epoll_event none = {0};
    int rc = 0;

    if (s->kind != SINK_OWN) {
        s->watch = epoll_create1(EPOLL_CLOEXEC);
        if (s->watch < 0 || epoll_ctl(s->watch, EPOLL_CTL_ADD, s->fd, &none) != 0) {
            rc = -errno;
        }
    }
    if (rc == 0) {
        rc = uv_poll_init(&s->owner->uv->loop, &s->poll, s->watch >= 0 ? s->watch : s->fd);
    }
    if (rc != 0 && s->watch >= 0) {
        (void)close(s->watch);
    }
    s->poll.data = s;
    s->polled = rc == 0;
    return rc;
}

/* Takes ownership of the descriptor, also on failure. */
static int new_sink(struct uv_files *f, int fd, enum sink_kind kind, struct uv_sink **ret)
{
    struct uv_sink *s = mu_calloc(1, sizeof(*s));
    int rc = 0;

    if (s == NULL) {
        (void)close(fd);
        return MUSTER_ENOMEM;
    }
    s->sink.ops = &sink_ops;
    s->owner = f;
    s->kind = kind;
    s->fd = fd;
    s->users = 1;
    s->watch = -1;
    if (kind != SINK_FILE) {
        rc = watch_sink(s);
    }
    if (rc != 0) {
        (void)close(fd);
        mu_free(s);
        return rc;
    }
    *ret = s;
    return 0;
}

/* --- consoles --------------------------------------------------------------------------------- */

/* Opens what the descriptor leads to once more, as an open file of our own. */
static int open_anew(int fd)
{
    char path[64];

    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    return open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
}

int mu_uv_files_console(struct mu_files *files, int fd, struct mu_sink **ret_sink,
                        struct mu_errmsg *reterr_msg)
{
    struct uv_files *f = (struct uv_files *)files;
    enum sink_kind kind = SINK_SHARED;
    struct stat st;
    struct uv_sink *s = NULL;
    int own = -1;
    int rc;

    if (fstat(fd, &st) != 0) {
        /* It is closed: the null device does as well for us, and workers see it as it is. */
        own = open("/dev/null", O_WRONLY | O_CLOEXEC);
        kind = SINK_FILE;
    } else if (S_ISSOCK(st.st_mode)) {
        kind = SINK_SOCKET;
    } else if (S_ISFIFO(st.st_mode) || (S_ISCHR(st.st_mode) && isatty(fd) == 1)) {
        own = open_anew(fd);
        kind = own < 0 ? SINK_SHARED : SINK_OWN;
    } else {
        kind = SINK_FILE;
    }
    if (own < 0) {
        own = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    }
    if (own < 0) {
        return fail(reterr_msg, "console", "output");
    }
    rc = new_sink(f, own, kind, &s);
    if (rc == UV_EPERM && kind == SINK_SHARED) {
        /* The loop cannot watch it, so it cannot be slow. */
        own = fcntl(fd, F_DUPFD_CLOEXEC, 3);
        rc = own < 0 ? -errno : new_sink(f, own, SINK_FILE, &s);
    }
    if (rc != 0) {
        return mu_err(reterr_msg, rc, "console: %s", muster_strerror(rc));
    }
    *ret_sink = &s->sink;
    return 0;
}

static bool is_same(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_rdev == b->st_rdev;
}

static int files_console(struct mu_files *files, enum mu_stream stream, struct mu_sink **ret_sink,
                         struct mu_errmsg *reterr_msg)
{
    struct uv_files *f = (struct uv_files *)files;
    struct uv_sink *other = f->consoles[stream == MU_STDOUT];
    struct stat st = {0};
    struct uv_sink *s;
    int rc;

    MU_ASSERT(stream == MU_STDOUT || stream == MU_STDERR);
    if (other != NULL && fstat((int)stream, &st) == 0 && is_same(&st, &other->stat)) {
        other->users++;
        *ret_sink = &other->sink;
        return 0;
    }
    rc = mu_uv_files_console(files, (int)stream, ret_sink, reterr_msg);
    if (rc == 0) {
        s = (struct uv_sink *)*ret_sink;
        (void)fstat((int)stream, &s->stat);
        f->consoles[stream == MU_STDERR] = s;
    }
    return rc;
}

/* --- files and directories -------------------------------------------------------------------- */

static int files_create(struct mu_files *files, const char *path, struct mu_sink **ret_sink,
                        struct mu_errmsg *reterr_msg)
{
    struct uv_sink *s;
    int rc;
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);

    if (fd < 0) {
        return fail(reterr_msg, "create", path);
    }
    rc = new_sink((struct uv_files *)files, fd, SINK_FILE, &s);
    if (rc != 0) {
        return mu_err(reterr_msg, rc, "create '%.160s': %s", path, muster_strerror(rc));
    }
    *ret_sink = &s->sink;
    return 0;
}

static int files_make_dir(struct mu_files *files, const char *path, struct mu_errmsg *reterr_msg)
{
    char part[4096];
    size_t len = strlen(path);
    struct stat st;

    (void)files;
    if (len == 0 || len >= sizeof(part)) {
        errno = len == 0 ? ENOENT : ENAMETOOLONG;
        return fail(reterr_msg, "mkdir", path);
    }
    memcpy(part, path, len + 1);
    for (size_t i = 1; i <= len; i++) {
        if (part[i] != '/' && part[i] != '\0') {
            continue;
        }
        part[i] = '\0';
        if (mkdir(part, 0777) != 0 && errno != EEXIST) {
            /* Higher up there may be directories that we may not, and need not, write to. */
            int error = errno;

            if (stat(part, &st) != 0 || !S_ISDIR(st.st_mode)) {
                errno = error;
                return fail(reterr_msg, "mkdir", part);
            }
        }
        part[i] = i == len ? '\0' : '/';
    }
    if (stat(path, &st) == 0 && !S_ISDIR(st.st_mode)) {
        errno = ENOTDIR;
        return fail(reterr_msg, "mkdir", path);
    }
    return 0;
}

static int files_make_unique_dir(struct mu_files *files, const char *path, char *ret, size_t cap,
                                 struct mu_errmsg *reterr_msg)
{
    int n = snprintf(ret, cap, "%sXXXXXX", path);

    (void)files;
    if (n < 0 || (size_t)n >= cap) {
        return mu_err(reterr_msg, MUSTER_ELIMIT, "the path is too long: '%.160s'", path);
    }
    /* Readable by us alone, as torchrun's: what workers write may be private. */
    if (mkdtemp(ret) == NULL) {
        return fail(reterr_msg, "mkdir", path);
    }
    return 0;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

static int files_remove_dir(struct mu_files *files, const char *path, struct mu_errmsg *reterr_msg)
{
    (void)files;
    if (nftw(path, remove_one, OPEN_DIRS_MAX, FTW_DEPTH | FTW_PHYS) != 0 && errno != ENOENT) {
        return fail(reterr_msg, "remove", path);
    }
    return 0;
}

static int remove_if_empty(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)ftw;
    if (type == FTW_DP) {
        (void)rmdir(path);
    }
    return 0;
}

static void files_prune_dir(struct mu_files *files, const char *path)
{
    (void)files;
    (void)nftw(path, remove_if_empty, OPEN_DIRS_MAX, FTW_DEPTH | FTW_PHYS);
}

static int files_read_end(struct mu_files *files, const char *path, uint8_t *buf, size_t cap,
                          size_t *ret_len, struct mu_errmsg *reterr_msg)
{
    struct stat st;
    size_t len = 0;
    off_t from;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    (void)files;
    if (fd < 0) {
        return fail(reterr_msg, "open", path);
    }
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        (void)close(fd);
        return mu_err(reterr_msg, -EINVAL, "'%.160s' is not a file", path);
    }
    from = (uint64_t)st.st_size > cap ? st.st_size - (off_t)cap : 0;
    while (len < cap) {
        ssize_t n = pread(fd, buf + len, cap - len, from + (off_t)len);

        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            int rc = fail(reterr_msg, "read", path);

            (void)close(fd);
            return rc;
        }
        if (n == 0) {
            break;
        }
        len += (size_t)n;
    }
    (void)close(fd);
    *ret_len = len;
    return 0;
}

static void files_close(struct mu_files *files)
{
    mu_free(files);
}

static const struct mu_files_ops files_ops = {
    .make_dir = files_make_dir,
    .make_unique_dir = files_make_unique_dir,
    .remove_dir = files_remove_dir,
    .prune_dir = files_prune_dir,
    .create = files_create,
    .read_end = files_read_end,
    .console = files_console,
    .close = files_close,
};

int mu_uv_files_new(struct mu_uv_env *uv, struct mu_files **ret)
{
    struct uv_files *f = mu_calloc(1, sizeof(*f));

    if (f == NULL) {
        return MUSTER_ENOMEM;
    }
    f->files.ops = &files_ops;
    f->uv = uv;
    *ret = &f->files;
    return 0;
}
