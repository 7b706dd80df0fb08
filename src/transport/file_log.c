#include "transport/file_log.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/list.h"

#define LOCK_TRIES 40      /* about 20 ms in all, so that an op can be cancelled meanwhile */
#define LOCK_REST  500000L /* ns */
#define OPEN_TRIES 8
#define FILE_MODE  0644 /* as PyTorch makes it */

struct file_log {
    struct mu_file_log base;
    int fd; /* -1: not open. Kept open, so that no other file gets its inode */
    bool writable;
    dev_t dev;
    ino_t ino;
    char path[];
};

static struct file_log *of(struct mu_file_log *log)
{
    return MU_CONTAINER_OF(log, struct file_log, base);
}

/* Makes one sentence: what failed with which file, and what to do about it. */
static int explain(const struct file_log *f, const char *what, int number,
                   struct mu_errmsg *reterr_msg)
{
    const char *remedy = "";

    switch (number) {
    case ENOSPC:
    case EDQUOT:
        remedy = "; free some space there or use another path";
        break;
    case EACCES:
    case EPERM:
    case EROFS:
        remedy = "; make it readable and writable for this user or use another path";
        break;
    case ENOENT:
    case ENOTDIR:
        remedy = "; make its directory first";
        break;
    case EISDIR:
        remedy = "; name a file in it";
        break;
    case ENOLCK:
    case EOPNOTSUPP:
        remedy = "; use a path on a file system that has flock";
        break;
    default:
        break;
    }
    return mu_err(reterr_msg, MUSTER_EDISK, "cannot %s %.140s: %s%s", what, f->path,
                  muster_strerror(-number), remedy);
}

static void close_file(struct file_log *f)
{
    if (f->fd >= 0) {
        (void)close(f->fd);
        f->fd = -1;
    }
}

static int open_file(struct file_log *f, bool create, struct mu_errmsg *reterr_msg)
{
    struct stat st;

    f->writable = true;
    f->fd = open(f->path, O_RDWR | O_CLOEXEC | O_NONBLOCK | (create ? O_CREAT : 0), FILE_MODE);
    if (f->fd < 0 && !create && (errno == EACCES || errno == EROFS)) {
        f->writable = false; /* enough to read it */
        f->fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    }
    if (f->fd < 0) {
        return errno == ENOENT && !create ? 0 : explain(f, "open", errno, reterr_msg);
    }
    if (fstat(f->fd, &st) != 0) {
        int number = errno;

        close_file(f);
        return explain(f, "look at", number, reterr_msg);
    }
    if (!S_ISREG(st.st_mode)) {
        close_file(f);
        return mu_err(reterr_msg, MUSTER_EDISK,
                      "%.160s is not a file that can hold a store; name another path", f->path);
    }
    f->dev = st.st_dev;
    f->ino = st.st_ino;
    return 0;
}

/* Whether the path still names the open file; `*st` is set if so. */
static bool is_current(const struct file_log *f, struct stat *st)
{
    return f->fd >= 0 && stat(f->path, st) == 0 && st->st_dev == f->dev && st->st_ino == f->ino;
}

static int file_look(struct mu_file_log *log, bool create, struct mu_file_log_state *ret_state,
                     struct mu_errmsg *reterr_msg)
{
    struct file_log *f = of(log);
    struct stat st;

    *ret_state = (struct mu_file_log_state){0};
    for (int i = 0; i < OPEN_TRIES; i++) {
        int err;

        if (is_current(f, &st) && (f->writable || !create)) {
            ret_state->exists = true;
            ret_state->size = (uint64_t)st.st_size;
            return 0;
        }
        ret_state->replaced = true;
        close_file(f);
        err = open_file(f, create, reterr_msg);
        if (err != 0) {
            return err;
        }
        if (f->fd < 0) {
            return 0;
        }
    }
    return mu_err(reterr_msg, MUSTER_EDISK,
                  "%.160s is removed and made again all the time; find out which program does that",
                  f->path);
}

static int file_lock(struct mu_file_log *log, bool exclusive, uint64_t *ret_size,
                     struct mu_errmsg *reterr_msg)
{
    struct file_log *f = of(log);
    const struct timespec rest = {.tv_nsec = LOCK_REST};
    struct stat st;

    for (int i = 0; flock(f->fd, (exclusive ? LOCK_EX : LOCK_SH) | LOCK_NB) != 0; i++) {
        if (errno != EWOULDBLOCK && errno != EINTR) {
            return explain(f, "lock", errno, reterr_msg);
        }
        if (i == LOCK_TRIES) {
            return MUSTER_EAGAIN;
        }
        (void)nanosleep(&rest, NULL);
    }
    if (!is_current(f, &st)) {
        (void)flock(f->fd, LOCK_UN);
        return MUSTER_EAGAIN;
    }
    *ret_size = (uint64_t)st.st_size;
    return 0;
}

static void file_unlock(struct mu_file_log *log)
{
    (void)flock(of(log)->fd, LOCK_UN);
}

static int file_read(struct mu_file_log *log, uint64_t offset, uint8_t *buf, size_t cap,
                     size_t *ret_len, struct mu_errmsg *reterr_msg)
{
    struct file_log *f = of(log);
    ssize_t n;

    do {
        n = pread(f->fd, buf, cap, (off_t)offset);
    } while (n < 0 && errno == EINTR);
    if (n < 0) {
        return explain(f, "read", errno, reterr_msg);
    }
    *ret_len = (size_t)n;
    return 0;
}

static int file_append(struct mu_file_log *log, uint64_t size, struct mu_span data,
                       struct mu_errmsg *reterr_msg)
{
    struct file_log *f = of(log);
    uint64_t at = size;
    struct stat st;
    int number = 0;

    if (fstat(f->fd, &st) != 0 ||
        ((uint64_t)st.st_size > size && ftruncate(f->fd, (off_t)size) != 0)) {
        return explain(f, "write to", errno, reterr_msg);
    }
    while (data.len != 0 && number == 0) {
        ssize_t n = pwrite(f->fd, data.data, data.len, (off_t)at);

        if (n > 0) {
            at += (uint64_t)n;
            data = mu_span_skip(data, (size_t)n);
        } else if (n == 0) {
            number = ENOSPC;
        } else if (errno != EINTR) {
            number = errno;
        }
    }
    if (number != 0) {
        /* Half a record would make the rest of the file unreadable. */
        (void)!ftruncate(f->fd, (off_t)size);
        return explain(f, "write to", number, reterr_msg);
    }
    return 0;
}

static int file_remove(struct mu_file_log *log, struct mu_errmsg *reterr_msg)
{
    struct file_log *f = of(log);

    if (unlink(f->path) != 0 && errno != ENOENT) {
        return explain(f, "remove", errno, reterr_msg);
    }
    return 0;
}

static void file_close(struct mu_file_log *log)
{
    struct file_log *f = of(log);

    close_file(f);
    mu_free(f);
}

static const struct mu_file_log_ops file_ops = {
    .look = file_look,
    .lock = file_lock,
    .unlock = file_unlock,
    .read = file_read,
    .append = file_append,
    .remove = file_remove,
    .close = file_close,
};

int mu_file_log_new(const char *path, struct mu_file_log **ret_log)
{
    size_t len = strlen(path);
    struct file_log *f = mu_calloc(1, sizeof(*f) + len + 1);

    if (f == NULL) {
        return MUSTER_ENOMEM;
    }
    memcpy(f->path, path, len + 1);
    f->fd = -1;
    f->base.ops = &file_ops;
    *ret_log = &f->base;
    return 0;
}
