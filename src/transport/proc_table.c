#include "transport/proc_table.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* As many processes as Linux can have; fewer if there is no memory for them. */
#define PROCS_MAX (1u << 22)
#define PROCS_MIN (1u << 14)

int mu_pidfd_open(pid_t pid)
{
    long fd = syscall(SYS_pidfd_open, pid, 0);

    return fd < 0 ? -errno : (int)fd; /* it closes on exec by itself */
}

int mu_pidfd_signal(int fd, int signal)
{
    return syscall(SYS_pidfd_send_signal, fd, signal, NULL, 0) < 0 ? -errno : 0;
}

int mu_proc_table_init(struct mu_proc_table *t)
{
    *t = (struct mu_proc_table){0};
    for (size_t cap = PROCS_MAX; cap >= PROCS_MIN; cap /= 4) {
        void *room = mmap(NULL, cap * sizeof(struct mu_proc), PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

        if (room != MAP_FAILED) {
            t->procs = room;
            t->cap = cap;
            return 0;
        }
    }
    return -ENOMEM;
}

void mu_proc_table_fini(struct mu_proc_table *t)
{
    if (t->procs != NULL) {
        (void)munmap(t->procs, t->cap * sizeof(struct mu_proc));
    }
    *t = (struct mu_proc_table){0};
}

void mu_proc_table_clear(struct mu_proc_table *t)
{
    if (t->count > 0) {
        (void)madvise(t->procs, t->count * sizeof(struct mu_proc), MADV_DONTNEED);
    }
    t->count = 0;
}

bool mu_proc_path(char *buf, size_t cap, const char *dir, uint64_t number, const char *file)
{
    size_t dir_len = strlen(dir);
    size_t file_len = file == NULL ? 0 : strlen(file) + 1;
    char digits[20];
    size_t n = 0;

    do {
        digits[n++] = (char)('0' + number % 10);
        number /= 10;
    } while (number != 0);
    if (dir_len + n + file_len + 1 > cap) {
        return false;
    }
    memcpy(buf, dir, dir_len);
    buf += dir_len;
    while (n > 0) {
        *buf++ = digits[--n];
    }
    if (file != NULL) {
        *buf++ = '/';
        memcpy(buf, file, file_len - 1);
        buf += file_len - 1;
    }
    *buf = '\0';
    return true;
}

static int open_of(pid_t pid, const char *file)
{
    char path[64];

    if (!mu_proc_path(path, sizeof(path), "/proc/", (uint64_t)pid, file)) {
        return -EINVAL;
    }
    for (;;) {
        int fd = open(path, O_RDONLY | O_CLOEXEC);

        if (fd >= 0) {
            return fd;
        }
        if (errno != EINTR) {
            return errno == ENOENT ? -ESRCH : -errno;
        }
    }
}

static ssize_t read_some(int fd, void *buf, size_t len)
{
    for (;;) {
        ssize_t n = read(fd, buf, len);

        if (n >= 0 || errno != EINTR) {
            return n < 0 ? -errno : n;
        }
    }
}

/* Reads the next number of a line; false at the end. Negative ones (no terminal) become 0. */
static bool next_number(const char **at, const char *end, uint64_t *ret)
{
    const char *p = *at;
    uint64_t v = 0;
    bool minus = false;

    while (p < end && *p == ' ') {
        p++;
    }
    if (p < end && *p == '-') {
        minus = true;
        p++;
    }
    if (p == end || *p < '0' || *p > '9') {
        return false;
    }
    while (p < end && *p >= '0' && *p <= '9') {
        v = v * 10 + (uint64_t)(*p++ - '0');
    }
    *at = p;
    *ret = minus ? 0 : v;
    return true;
}

#define FLAG_KERNEL 0x00200000u /* PF_KTHREAD */

/* proc(5): pid (name) state ppid pgrp session ... flags (9th) ... num_threads (20th) ... starttime
 * (22nd) ... env_start (50th) env_end, of which the last two may not be there. */
static bool parse_stat(const char *text, size_t len, struct mu_proc *ret)
{
    const char *end = text + len;
    const char *at = memrchr(text, ')', len); /* a name may hold anything, but comes first */
    uint64_t fields[52] = {0};
    char state;
    int last = 0;

    if (at == NULL || end - at < 4) {
        return false;
    }
    state = at[2];
    at += 3;
    for (int i = 4; i <= 51 && next_number(&at, end, &fields[i]); i++) {
        last = i;
    }
    if (last < 22) {
        return false;
    }
    ret->ppid = (pid_t)fields[4];
    ret->pgid = (pid_t)fields[5];
    ret->sid = (pid_t)fields[6];
    ret->start = fields[22];
    ret->env_known = fields[51] != 0;
    ret->env_len = fields[51] - fields[50];
    ret->kernel = (fields[9] & FLAG_KERNEL) != 0;
    /* A process whose first thread ended before the others looks like a zombie, but is not one. */
    ret->dead = state == 'X' || (state == 'Z' && fields[20] <= 1);
    return true;
}

int mu_proc_read(pid_t pid, struct mu_proc *ret)
{
    char text[1024];
    ssize_t n;
    int fd = open_of(pid, "stat");

    if (fd < 0) {
        return fd;
    }
    n = read_some(fd, text, sizeof(text));
    (void)close(fd);
    if (n <= 0) {
        return n == 0 ? -ESRCH : (int)n;
    }
    *ret = (struct mu_proc){.pid = pid};
    return parse_stat(text, (size_t)n, ret) ? 0 : -EPROTO;
}

static void add_entry(struct mu_proc_table *t, const char *name)
{
    const char *at = name;
    uint64_t pid;

    if (name[0] < '0' || name[0] > '9' || t->count == t->cap ||
        !next_number(&at, name + strlen(name), &pid) || pid > INT32_MAX) {
        return;
    }
    if (mu_proc_read((pid_t)pid, &t->procs[t->count]) == 0) {
        if (t->count > 0 && t->procs[t->count - 1].pid >= (pid_t)pid) {
            t->sorted = false;
        }
        t->count++;
    }
}

int mu_proc_table_read(struct mu_proc_table *t)
{
    _Alignas(uint64_t) char buf[8192];
    long n;
    int fd = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    t->count = 0;
    t->sorted = true;
    if (fd < 0) {
        return -errno;
    }
    while ((n = syscall(SYS_getdents64, fd, buf, sizeof(buf))) > 0) {
        for (long at = 0; at < n;) {
            const struct mu_dirent *e = (const void *)(buf + at);

            add_entry(t, e->name);
            at += e->len;
        }
    }
    n = n < 0 ? -errno : 0;
    (void)close(fd);
    if (n < 0) {
        t->count = 0;
    }
    return (int)n;
}

struct mu_proc *mu_proc_table_find(const struct mu_proc_table *t, pid_t pid)
{
    size_t low = 0;
    size_t high = t->count;

    if (!t->sorted) {
        for (size_t i = 0; i < t->count; i++) {
            if (t->procs[i].pid == pid) {
                return &t->procs[i];
            }
        }
        return NULL;
    }
    while (low < high) {
        size_t mid = low + (high - low) / 2;

        if (t->procs[mid].pid < pid) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low < t->count && t->procs[low].pid == pid ? &t->procs[low] : NULL;
}

int mu_proc_variable(const struct mu_proc *proc, const char *name, char ret[MU_PROC_MARK_MAX])
{
    size_t name_len = strlen(name);
    char line[64 + MU_PROC_MARK_MAX]; /* the variable that is being read, as far as it matters */
    size_t len = 0;
    char buf[4096];
    ssize_t n = 0;
    uint64_t total = 0;
    bool found = false;
    int fd = open_of(proc->pid, "environ");

    if (fd < 0) {
        return -ENOENT;
    }
    while (!found && (n = read_some(fd, buf, sizeof(buf))) > 0) {
        total += (uint64_t)n;
        for (ssize_t i = 0; i < n && !found; i++) {
            if (buf[i] != '\0') {
                if (len < name_len + MU_PROC_MARK_MAX) {
                    line[len++] = buf[i];
                }
                continue;
            }
            found = len > name_len && line[name_len] == '=' && memcmp(line, name, name_len) == 0;
            if (!found) {
                len = 0;
            }
        }
    }
    (void)close(fd);
    if (found) {
        memcpy(ret, line + name_len + 1, len - name_len - 1);
        ret[len - name_len - 1] = '\0';
        return 0;
    }
    if (n < 0 || proc->kernel || proc->dead) {
        return -ENOENT;
    }
    /* An environment that ends early was cut off by an exec, or had not begun. */
    return proc->env_known && total >= proc->env_len ? -ENOENT : -EAGAIN;
}

bool mu_proc_cgroup_number(pid_t pid, const char *text, uint64_t *ret)
{
    char buf[4096];
    const char *at;
    ssize_t n;
    int fd = open_of(pid, "cgroup");

    if (fd < 0) {
        return false;
    }
    n = read_some(fd, buf, sizeof(buf) - 1);
    (void)close(fd);
    if (n <= 0) {
        return false;
    }
    buf[n] = '\0';
    at = strstr(buf, text);
    if (at == NULL) {
        return false;
    }
    at += strlen(text);
    return next_number(&at, buf + n, ret);
}

int mu_proc_signal(const struct mu_proc *proc, int signal)
{
    struct mu_proc now;
    int rc;
    int fd = mu_pidfd_open(proc->pid);

    if (fd < 0 && fd != -ENOSYS) {
        return fd;
    }
    /* While we hold the descriptor, the pid cannot go to another process. */
    rc = mu_proc_read(proc->pid, &now);
    if (rc == 0 && now.start != proc->start) {
        rc = -ESRCH;
    }
    if (rc == 0) {
        rc = fd >= 0 ? mu_pidfd_signal(fd, signal) : kill(proc->pid, signal) < 0 ? -errno : 0;
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    return rc;
}
