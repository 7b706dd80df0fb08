#include "transport/proc_peek.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <muster/error.h>

#include "core/alloc.h"
#include "transport/proc_table.h"

struct mu_peek_process {
    pid_t pid;
    uint64_t start; /* with the pid, it identifies the process */
    int dir;        /* /proc/PID of that process: it does not become another one's */
    int file;       /* or -1 */
    int text;       /* what is read in pieces, or -1; the kernel writes it anew when it is opened */
    uint64_t text_at;
};

static int gone_or(int err)
{
    return err == -ENOENT ? -ESRCH : err;
}

static int peek_open(int64_t pid, struct mu_peek_process **ret)
{
    struct mu_peek_process *p;
    struct mu_proc proc;
    char path[64];
    int err;

    if (pid <= 0 || pid > INT_MAX) {
        return -ESRCH;
    }
    p = mu_malloc(sizeof(*p));
    if (p == NULL) {
        return -ENOMEM;
    }
    (void)snprintf(path, sizeof(path), "/proc/%d", (int)pid);
    *p = (struct mu_peek_process){.pid = (pid_t)pid, .file = -1, .text = -1};
    p->dir = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    err = p->dir < 0 ? gone_or(-errno) : mu_proc_read(p->pid, &proc);
    if (err == 0 && proc.dead) {
        err = -ESRCH;
    }
    if (err != 0) {
        if (p->dir >= 0) {
            (void)close(p->dir);
        }
        mu_free(p);
        return err;
    }
    p->start = proc.start;
    *ret = p;
    return 0;
}

static void close_file(struct mu_peek_process *p)
{
    if (p->file >= 0) {
        (void)close(p->file);
        p->file = -1;
    }
}

static void close_text(struct mu_peek_process *p)
{
    if (p->text >= 0) {
        (void)close(p->text);
        p->text = -1;
    }
}

static void peek_close(struct mu_peek_process *p)
{
    if (p != NULL) {
        close_file(p);
        close_text(p);
        (void)close(p->dir);
        mu_free(p);
    }
}

static int peek_same(struct mu_peek_process *p)
{
    struct mu_proc proc;
    int err = mu_proc_read(p->pid, &proc);

    return err != 0 ? err : proc.start != p->start || proc.dead ? -ESRCH : 0;
}

static int peek_read(struct mu_peek_process *p, uint64_t addr, void *to, size_t len)
{
    struct iovec local = {to, len};
    struct iovec remote = {(void *)(uintptr_t)addr, len};
    ssize_t n = process_vm_readv(p->pid, &local, 1, &remote, 1, 0);

    return n < 0 ? -errno : (size_t)n != len ? -EFAULT : 0;
}

static int peek_exe(struct mu_peek_process *p, char *buf, size_t cap, size_t *ret_len)
{
    ssize_t n = readlinkat(p->dir, "exe", buf, cap);

    if (n < 0) {
        return -errno;
    }
    *ret_len = (size_t)n;
    return 0;
}

static int compare_tids(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a;
    uint64_t y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

static int peek_threads(struct mu_peek_process *p, uint64_t *tids, size_t cap, size_t *ret_count)
{
    int fd = openat(p->dir, "task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *entry;
    size_t count = 0;

    if (dir == NULL) {
        int err = gone_or(-errno);

        if (fd >= 0) {
            (void)close(fd);
        }
        return err;
    }
    while (count < cap && (entry = readdir(dir)) != NULL) {
        if (entry->d_name[0] != '.') {
            tids[count++] = strtoull(entry->d_name, NULL, 10);
        }
    }
    (void)closedir(dir);
    qsort(tids, count, sizeof(tids[0]), compare_tids);
    *ret_count = count;
    return 0;
}

/* Reads as much as there is from `offset` on. */
static int read_from(int fd, uint64_t offset, char *buf, size_t cap, size_t *ret_len)
{
    size_t len = 0;

    while (len < cap) {
        ssize_t n = pread(fd, buf + len, cap - len, (off_t)(offset + len));

        if (n == 0) {
            break;
        }
        if (n < 0 && errno != EINTR) {
            return -errno;
        }
        len += n > 0 ? (size_t)n : 0;
    }
    *ret_len = len;
    return 0;
}

static int peek_text(struct mu_peek_process *p, uint64_t tid, const char *name, uint64_t offset,
                     char *buf, size_t cap, size_t *ret_len)
{
    char path[64];
    int fd;
    int err;

    if (offset != 0 && p->text >= 0 && offset == p->text_at) {
        err = read_from(p->text, offset, buf, cap, ret_len);
        p->text_at += err == 0 ? *ret_len : 0;
        return err;
    }
    close_text(p);
    if (tid == 0) {
        (void)snprintf(path, sizeof(path), "%s", name);
    } else {
        (void)snprintf(path, sizeof(path), "task/%llu/%s", (unsigned long long)tid, name);
    }
    fd = openat(p->dir, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return gone_or(-errno);
    }
    err = read_from(fd, offset, buf, cap, ret_len);
    if (err == 0 && *ret_len == cap) {
        p->text = fd;
        p->text_at = offset + cap;
    } else {
        (void)close(fd);
    }
    return err;
}

static int peek_machine(const char *name, char *buf, size_t cap, size_t *ret_len)
{
    char path[64];
    int fd;
    int err;

    (void)snprintf(path, sizeof(path), "/proc/%s", name);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return -errno;
    }
    err = read_from(fd, 0, buf, cap, ret_len);
    (void)close(fd);
    return err;
}

/* Opens what the process has under a path. That may be a pipe, which must not hold us up. */
static int open_as_seen(struct mu_peek_process *p, const char *path, int flags)
{
    char name[PATH_MAX + 8];
    int fd;

    if (path == NULL) {
        (void)snprintf(name, sizeof(name), "exe");
    } else if (snprintf(name, sizeof(name), "%s/%s", path[0] == '/' ? "root" : "cwd", path) >=
               (int)sizeof(name)) {
        return -ENAMETOOLONG;
    }
    fd = openat(p->dir, name, flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    return fd < 0 ? -errno : fd;
}

static int peek_open_file(struct mu_peek_process *p, const char *path)
{
    struct stat st;
    int fd;

    close_file(p);
    fd = open_as_seen(p, path, O_RDONLY);
    if (fd < 0) {
        return fd;
    }
    p->file = fd;
    if (fstat(p->file, &st) != 0 || !S_ISREG(st.st_mode)) {
        close_file(p);
        return -EIO;
    }
    return 0;
}

static int peek_file_state(struct mu_peek_process *p, uint64_t *ret_len, uint64_t *ret_mark)
{
    struct stat st;

    if (p->file < 0 || fstat(p->file, &st) != 0) {
        return -EIO;
    }
    *ret_len = (uint64_t)st.st_size;
    *ret_mark = (uint64_t)st.st_mtim.tv_sec * UINT64_C(1000000000) + (uint64_t)st.st_mtim.tv_nsec +
                st.st_ino;
    return 0;
}

/* Writes a byte. A reader that has just gone would have the kernel send us SIGPIPE. */
static int write_byte(int fd)
{
    const struct timespec now = {0};
    sigset_t broken;
    sigset_t before;
    int err = 0;

    (void)sigemptyset(&broken);
    (void)sigaddset(&broken, SIGPIPE);
    (void)pthread_sigmask(SIG_BLOCK, &broken, &before);
    if (write(fd, "\n", 1) != 1) {
        err = -errno;
    }
    if (err == -EPIPE) {
        (void)sigtimedwait(&broken, NULL, &now);
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return err == -EAGAIN ? 0 : err == -EPIPE ? -ENXIO : err; /* a full pipe says enough */
}

/* A link is not followed: in a directory that everybody may write to, it may be anybody's. */
static int peek_poke(struct mu_peek_process *p, const char *path)
{
    int fd = open_as_seen(p, path, O_WRONLY | O_NOFOLLOW);
    struct stat st;
    int err;

    if (fd < 0) {
        return fd == -ELOOP ? -EIO : fd;
    }
    err = fstat(fd, &st) != 0 || !S_ISFIFO(st.st_mode) || st.st_uid != geteuid() ? -EIO
                                                                                 : write_byte(fd);
    (void)close(fd);
    return err;
}

static int peek_read_file(struct mu_peek_process *p, uint64_t offset, void *to, size_t len)
{
    size_t got;
    int err =
        p->file < 0 || offset > INT64_MAX - len ? -EIO : read_from(p->file, offset, to, len, &got);

    return err != 0 ? err : got != len ? -EIO : 0;
}

const struct mu_peek mu_peek_real = {
    .open = peek_open,
    .close = peek_close,
    .same = peek_same,
    .read = peek_read,
    .exe = peek_exe,
    .threads = peek_threads,
    .text = peek_text,
    .machine = peek_machine,
    .open_file = peek_open_file,
    .file_state = peek_file_state,
    .read_file = peek_read_file,
    .poke = peek_poke,
};
