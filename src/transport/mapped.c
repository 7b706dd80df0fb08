#include "transport/mapped.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "core/alloc.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#define TMPFS 0x01021994 /* of linux/magic.h */

/* All mappings of the process, since any loop may get a span of any of them. The lock is held while
 * the kernel takes pages, so that no mapping is unmapped meanwhile. */
static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static struct mu_list mappings = {&mappings, &mappings};
static atomic_size_t mapping_count;

bool mu_mapped_even_near;

static void enter(struct mu_mapped *m)
{
    if (m->data != NULL) {
        (void)pthread_rwlock_wrlock(&lock);
        mu_list_push(&mappings, &m->link);
        (void)pthread_rwlock_unlock(&lock);
        (void)atomic_fetch_add(&mapping_count, 1);
    }
}

void mu_mapped_close(struct mu_mapped *m)
{
    if (m == NULL) {
        return;
    }
    if (m->data != NULL) {
        (void)pthread_rwlock_wrlock(&lock);
        mu_list_remove(&m->link);
        (void)pthread_rwlock_unlock(&lock);
        (void)atomic_fetch_sub(&mapping_count, 1);
        (void)munmap(m->data, m->len);
    }
    (void)close(m->fd);
    mu_free(m);
}

/* Takes ownership of the descriptor. */
static int map(int fd, size_t len, int protection, const char *what, struct mu_mapped **ret,
               struct mu_errmsg *reterr_msg)
{
    struct mu_mapped *m = mu_calloc(1, sizeof(*m));
    void *data = NULL;

    if (m != NULL && len != 0) {
        data = mmap(NULL, len, protection, MAP_SHARED, fd, 0);
    }
    if (m == NULL || data == MAP_FAILED) {
        int err = m == NULL ? MUSTER_ENOMEM : -errno;

        mu_free(m);
        (void)close(fd);
        return mu_err(reterr_msg, err, "cannot map %.150s: %s", what, muster_strerror(err));
    }
    *m = (struct mu_mapped){.data = data, .len = len, .fd = fd};
    mu_list_init(&m->link);
    enter(m);
    *ret = m;
    return 0;
}

/* The descriptor is closed unless this is 0. */
static int check_regular(int fd, const char *path, struct stat *ret_st,
                         struct mu_errmsg *reterr_msg)
{
    int err = fstat(fd, ret_st) != 0 ? -errno : 0;

    if (err == 0 && !S_ISREG(ret_st->st_mode)) {
        err = MUSTER_EINVAL;
    }
    if (err != 0) {
        (void)close(fd);
        return mu_err(reterr_msg, err, "cannot use %.150s: %s", path,
                      err == MUSTER_EINVAL ? "it is not an ordinary file" : muster_strerror(err));
    }
    return 0;
}

int mu_mapped_open(const char *path, struct mu_mapped **ret, struct mu_errmsg *reterr_msg)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;
    int err;

    if (fd < 0) {
        err = -errno;
        return mu_err(reterr_msg, err, "cannot open %.150s: %s", path, muster_strerror(err));
    }
    err = check_regular(fd, path, &st, reterr_msg);
    return err != 0 ? err : map(fd, (size_t)st.st_size, PROT_READ, path, ret, reterr_msg);
}

/* Gives the file its length, and reserves blocks on the disk if possible: a full disk is an error
 * here, and would kill us later. */
static int make_room(int fd, size_t len)
{
    int err;

    if (ftruncate(fd, (off_t)len) != 0) {
        return -errno;
    }
    do {
        err = len == 0 ? 0 : fallocate(fd, 0, 0, (off_t)len) != 0 ? errno : 0;
    } while (err == EINTR);
    return err == EOPNOTSUPP ? 0 : -err;
}

/* Opens a file to be filled, and locks it. */
static int open_own(const char *path, int *ret_fd, struct stat *ret_st,
                    struct mu_errmsg *reterr_msg)
{
    const int flags = O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW;
    int fd = open(path, flags | O_EXCL, 0666);
    bool made = fd >= 0;
    int err;

    if (!made && errno == EEXIST) {
        fd = open(path, flags, 0666);
    }
    if (fd < 0) {
        err = -errno;
        return mu_err(reterr_msg, err, "cannot write %.150s: %s", path,
                      err == -ELOOP ? "it is a link; remove it" : muster_strerror(err));
    }
    err = check_regular(fd, path, ret_st, reterr_msg);
    if (err != 0) {
        return err;
    }
    /* Another user who put it there could still write to it, or make us write elsewhere. A file
     * that we made is ours, even if the file system says that another user owns it, as NFS with
     * root_squash does for root. */
    if (!made && (ret_st->st_uid != geteuid() || ret_st->st_nlink > 1)) {
        (void)close(fd);
        return mu_err(reterr_msg, -EPERM, "cannot write %.150s: it is %s; remove it", path,
                      ret_st->st_nlink > 1 ? "another file too" : "another user's");
    }
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        err = -errno;
        (void)close(fd);
        return mu_err(reterr_msg, err, "cannot write %.150s: %s", path,
                      err == -EWOULDBLOCK ? "another process is filling it" : muster_strerror(err));
    }
    *ret_fd = fd;
    return 0;
}

/* Whether the file system takes pages of memory for the file, and this kernel can take those of a
 * range at a time. */
static bool is_made_of_memory(int fd)
{
    struct statfs fs;
    char byte;

    return fstatfs(fd, &fs) == 0 && fs.f_type == TMPFS &&
           mu_mapped_populate(&byte, sizeof(byte)) == 0;
}

static int create(const char *path, size_t len, bool ahead, struct mu_mapped **ret,
                  struct mu_errmsg *reterr_msg)
{
    struct stat st;
    int fd;
    int err = open_own(path, &fd, &st, reterr_msg);

    if (err != 0) {
        return err;
    }
    if (ahead && is_made_of_memory(fd)) {
        err = ftruncate(fd, (off_t)len) != 0 ? -errno : 0;
    } else {
        err = make_room(fd, len);
    }
    if (err != 0) {
        (void)close(fd);
        return mu_err(reterr_msg, err, "cannot write %.150s: %s", path, muster_strerror(err));
    }
    return map(fd, len, PROT_READ | PROT_WRITE, path, ret, reterr_msg);
}

int mu_mapped_create(const char *path, size_t len, struct mu_mapped **ret,
                     struct mu_errmsg *reterr_msg)
{
    return create(path, len, false, ret, reterr_msg);
}

int mu_mapped_create_ahead(const char *path, size_t len, struct mu_mapped **ret,
                           struct mu_errmsg *reterr_msg)
{
    return create(path, len, true, ret, reterr_msg);
}

/* --- pages ------------------------------------------------------------------------------------ */

int mu_mapped_populate(void *data, size_t len)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = (uintptr_t)data & ~(page - 1);
    uintptr_t to = ((uintptr_t)data + len + page - 1) & ~(page - 1);
    int rc;

    if (len == 0) {
        return 0;
    }
    do {
        rc = madvise((uint8_t *)data - ((uintptr_t)data - from), to - from, MADV_POPULATE_WRITE);
    } while (rc != 0 && (errno == EINTR || errno == EAGAIN));
    if (rc == 0) {
        return 0;
    }
    /* What would have been a SIGBUS on writing. */
    return errno == EFAULT ? -ENOSPC : errno == EINVAL ? MUSTER_ENOTSUP : MUSTER_ENOMEM;
}

/* --- files that grow -------------------------------------------------------------------------- */

#define SEND_BYTES ((uint64_t)8 << 20) /* that go to the disk at a time */

int mu_mapped_begin(const char *path, struct mu_mapped **ret, struct mu_errmsg *reterr_msg)
{
    struct mu_mapped *m = mu_calloc(1, sizeof(*m));
    struct stat st;
    int err;

    if (m == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    mu_list_init(&m->link);
    err = open_own(path, &m->fd, &st, reterr_msg);
    if (err != 0) {
        mu_free(m);
        return err;
    }
    m->len = (size_t)st.st_size;
    *ret = m;
    return 0;
}

int mu_mapped_write(struct mu_mapped *m, uint64_t offset, const void *bytes, size_t len)
{
    size_t done = 0;

    while (done < len) {
        ssize_t n =
            pwrite(m->fd, (const uint8_t *)bytes + done, len - done, (off_t)(offset + done));

        if (n < 0 && errno != EINTR) {
            return -errno;
        }
        done += n > 0 ? (size_t)n : 0;
    }
    m->len = offset + len > m->len ? (size_t)(offset + len) : m->len;
    /* Without this all of it waits for mu_mapped_sync(). */
    if (offset + len < m->sent) {
        m->sent = offset;
    } else if (offset + len - m->sent >= SEND_BYTES) {
        (void)sync_file_range(m->fd, (off_t)m->sent, (off_t)(offset + len - m->sent),
                              SYNC_FILE_RANGE_WRITE);
        m->sent = offset + len;
    }
    return 0;
}

int mu_mapped_end(struct mu_mapped *m, size_t len)
{
    void *data;

    if (ftruncate(m->fd, (off_t)len) != 0) {
        return -errno;
    }
    m->len = len;
    data = len == 0 ? NULL : mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, m->fd, 0);
    if (data == MAP_FAILED) {
        return -errno;
    }
    m->data = data;
    enter(m);
    return 0;
}

int mu_mapped_memory(size_t len, struct mu_mapped **ret, struct mu_errmsg *reterr_msg)
{
    int fd = memfd_create("muster", MFD_CLOEXEC);
    int err;

    if (fd < 0) {
        err = -errno;
        return mu_err(reterr_msg, err, "there is no shared memory: %s", muster_strerror(err));
    }
    err = ftruncate(fd, (off_t)len) != 0 ? -errno : 0;
    if (err != 0) {
        (void)close(fd);
        return mu_err(reterr_msg, err, "there is no shared memory: %s", muster_strerror(err));
    }
    return map(fd, len, PROT_READ | PROT_WRITE, "memory", ret, reterr_msg);
}

int mu_mapped_read(const struct mu_mapped *m, uint64_t offset, void *buf, size_t len)
{
    size_t done = 0;

    while (done < len) {
        ssize_t n = pread(m->fd, (uint8_t *)buf + done, len - done, (off_t)(offset + done));

        if (n == 0) {
            return MUSTER_EDISK;
        }
        if (n < 0 && errno != EINTR) {
            return -errno;
        }
        done += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

uint64_t mu_mapped_next_data(const struct mu_mapped *m, uint64_t offset)
{
    off_t at = lseek(m->fd, (off_t)offset, SEEK_DATA);

    if (at < 0) {
        return errno == ENXIO ? m->len : offset;
    }
    return (uint64_t)at < m->len ? (uint64_t)at : m->len;
}

int mu_mapped_sync(const struct mu_mapped *m)
{
    return fdatasync(m->fd) != 0 && errno != EINVAL ? -errno : 0;
}

/* --- for the environment ---------------------------------------------------------------------- */

static const struct mu_mapped *find(struct mu_span span)
{
    MU_LIST_FOREACH (it, &mappings) {
        const struct mu_mapped *m = MU_CONTAINER_OF(it, struct mu_mapped, link);

        if (span.data >= m->data && (size_t)(span.data - m->data) <= m->len &&
            span.len <= m->len - (size_t)(span.data - m->data)) {
            return m;
        }
    }
    return NULL;
}

bool mu_mapped_has(struct mu_span span)
{
    bool found;

    if (span.len == 0 || atomic_load_explicit(&mapping_count, memory_order_relaxed) == 0) {
        return false;
    }
    (void)pthread_rwlock_rdlock(&lock);
    found = find(span) != NULL;
    (void)pthread_rwlock_unlock(&lock);
    return found;
}

/* sendfile() has no MSG_NOSIGNAL: the signal is blocked, and taken if it was ours. */
static ssize_t send_quietly(int to, int from, off_t offset, size_t len)
{
    const struct timespec none = {0};
    sigset_t pipe_set;
    sigset_t old;
    sigset_t pending;
    bool was_pending;
    ssize_t n;
    int err;

    (void)sigemptyset(&pipe_set);
    (void)sigaddset(&pipe_set, SIGPIPE);
    (void)sigemptyset(&pending);
    (void)pthread_sigmask(SIG_BLOCK, &pipe_set, &old);
    (void)sigpending(&pending);
    was_pending = sigismember(&pending, SIGPIPE) == 1;
    do {
        n = sendfile(to, from, &offset, len);
    } while (n < 0 && errno == EINTR);
    err = errno;
    /* Some bytes may have been sent before the other end was found to be gone. */
    if (n < (ssize_t)len && !was_pending) {
        while (sigtimedwait(&pipe_set, NULL, &none) < 0 && errno == EINTR) {
        }
    }
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    return n < 0 ? -err : n;
}

ssize_t mu_mapped_send(int fd, struct mu_span span)
{
    const struct mu_mapped *m;
    ssize_t n = -ENOENT;

    (void)pthread_rwlock_rdlock(&lock);
    m = find(span);
    if (m != NULL) {
        n = send_quietly(fd, m->fd, (off_t)(span.data - m->data), span.len);
    }
    (void)pthread_rwlock_unlock(&lock);
    if (n == 0) {
        return -EIO;
    }
    return n == -EAGAIN || n == -EWOULDBLOCK ? 0 : n;
}
