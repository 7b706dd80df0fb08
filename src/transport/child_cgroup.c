/*
 * cgroups (v2): a directory for each child below our own. A process cannot leave its cgroup by
 * forking, starting sessions or clearing its environment, and a cgroup can be killed as a whole,
 * between two forks of a fork bomb. Where we may not make cgroups (most places except containers
 * and user sessions), descent and marks must do.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/alloc.h"
#include "transport/child_internal.h"

#define PREFIX     "muster-"
#define MOUNTS_MAX 65536u

static ssize_t read_file(const char *path, char *buf, size_t cap)
{
    size_t len = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0) {
        return -1;
    }
    while (len < cap - 1) {
        ssize_t n = read(fd, buf + len, cap - 1 - len);

        if (n <= 0) {
            break;
        }
        len += (size_t)n;
    }
    (void)close(fd);
    buf[len] = '\0';
    return (ssize_t)len;
}

/* Finds the start and end of word number `index` of a line. */
static bool find_word(const char *line, size_t len, size_t index, const char **ret, size_t *ret_len)
{
    const char *end = line + len;

    while (line < end) {
        const char *space = memchr(line, ' ', (size_t)(end - line));
        size_t n = (size_t)((space == NULL ? end : space) - line);

        if (index-- == 0) {
            *ret = line;
            *ret_len = n;
            return true;
        }
        line += n + 1;
    }
    return false;
}

/* proc(5), mountinfo: id parent dev root mountpoint options ... - type source options. */
static bool use_mount(struct mu_cgroup *g, const char *line, size_t len, const char *own)
{
    const char *dash = memmem(line, len, " - cgroup2 ", 11);
    const char *root;
    const char *point;
    size_t root_len;
    size_t point_len;
    size_t own_len = strlen(own);

    if (dash == NULL || !find_word(line, len, 3, &root, &root_len) ||
        !find_word(line, len, 4, &point, &point_len)) {
        return false;
    }
    if (root_len > 1) {
        if (own_len < root_len || memcmp(own, root, root_len) != 0) {
            return false;
        }
        own += root_len;
        own_len -= root_len;
    }
    if (own_len == 1) {
        own_len = 0; /* the root itself */
    }
    if (point_len + own_len >= sizeof(g->base) || memchr(point, '\\', point_len) != NULL) {
        return false;
    }
    memcpy(g->base, point, point_len);
    memcpy(g->base + point_len, own, own_len);
    g->base[point_len + own_len] = '\0';
    return true;
}

void mu_cgroup_find(struct mu_cgroup *g, const char *id)
{
    char own[MU_CGROUP_PATH_MAX];
    char *mounts = mu_malloc(MOUNTS_MAX);
    const char *at;
    char *path;

    *g = (struct mu_cgroup){0};
    memcpy(g->id, id, MU_FAMILY_ID_LEN);
    if (mounts == NULL || read_file("/proc/self/cgroup", own, sizeof(own)) <= 0 ||
        read_file("/proc/self/mountinfo", mounts, MOUNTS_MAX) <= 0) {
        goto out;
    }
    path = strncmp(own, "0::", 3) == 0 ? own : strstr(own, "\n0::");
    if (path == NULL) {
        goto out;
    }
    path += path == own ? 3 : 4;
    path[strcspn(path, "\n")] = '\0';
    for (at = mounts; *at != '\0';) {
        size_t len = strcspn(at, "\n");

        if (use_mount(g, at, len, path)) {
            break;
        }
        at += len + (at[len] == '\n');
    }
out:
    mu_free(mounts);
}

static bool name_of(const struct mu_cgroup *g, uint64_t number, const char *file, char *buf,
                    size_t cap)
{
    char dir[MU_CGROUP_PATH_MAX + 64];
    size_t base = strlen(g->base);
    size_t prefix = sizeof(PREFIX) - 1;

    if (base == 0) {
        return false;
    }
    memcpy(dir, g->base, base);
    dir[base] = '/';
    memcpy(dir + base + 1, PREFIX, prefix);
    memcpy(dir + base + 1 + prefix, g->id, MU_FAMILY_ID_LEN);
    dir[base + 1 + prefix + MU_FAMILY_ID_LEN] = '-';
    dir[base + 2 + prefix + MU_FAMILY_ID_LEN] = '\0';
    return mu_proc_path(buf, cap, dir, number, file);
}

int mu_cgroup_make(struct mu_cgroup *g, uint64_t number)
{
    char path[MU_CGROUP_PATH_MAX + 128];
    int fd;

    if (!name_of(g, number, NULL, path, sizeof(path))) {
        return -ENOENT;
    }
    if (mkdir(path, 0755) != 0) {
        g->base[0] = '\0'; /* the next one cannot be made either */
        return -EACCES;
    }
    (void)name_of(g, number, "cgroup.procs", path, sizeof(path));
    fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) {
        fd = -errno;
        (void)mu_cgroup_remove(g, number);
        g->base[0] = '\0';
    }
    return fd;
}

int mu_cgroup_kill(const struct mu_cgroup *g, uint64_t number)
{
    char path[MU_CGROUP_PATH_MAX + 128];
    int rc = 0;
    int fd;

    if (!name_of(g, number, "cgroup.kill", path, sizeof(path))) {
        return -ENOENT;
    }
    fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) {
        return -errno;
    }
    if (write(fd, "1", 1) != 1) {
        rc = -errno;
    }
    (void)close(fd);
    return rc;
}

int mu_cgroup_look(const struct mu_cgroup *g, uint64_t number)
{
    char path[MU_CGROUP_PATH_MAX + 128];
    char text[256];

    if (!name_of(g, number, "cgroup.events", path, sizeof(path))) {
        return -ENOENT;
    }
    if (read_file(path, text, sizeof(text)) < 0) {
        return -errno;
    }
    return strstr(text, "populated 1") != NULL ? -EBUSY : 0;
}

/* Another launcher may have made cgroups of its own in there, and been killed before it could
 * remove them. */
static void remove_inner(const char *path)
{
    _Alignas(uint64_t) char buf[4096];
    long n;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0) {
        return;
    }
    while ((n = syscall(SYS_getdents64, fd, buf, sizeof(buf))) > 0) {
        for (long at = 0; at < n;) {
            const struct mu_dirent *e = (const void *)(buf + at);

            if (strncmp(e->name, PREFIX, sizeof(PREFIX) - 1) == 0) {
                (void)unlinkat(fd, e->name, AT_REMOVEDIR);
            }
            at += e->len;
        }
    }
    (void)close(fd);
}

int mu_cgroup_remove(const struct mu_cgroup *g, uint64_t number)
{
    char path[MU_CGROUP_PATH_MAX + 128];

    if (!name_of(g, number, NULL, path, sizeof(path))) {
        return -ENOENT;
    }
    if (rmdir(path) == 0) {
        return 0;
    }
    remove_inner(path);
    return rmdir(path) == 0 ? 0 : -errno;
}

static bool visit(const struct mu_cgroup *g, const char *name,
                  int (*each)(const struct mu_cgroup *g, uint64_t number))
{
    uint64_t number = 0;

    if (strncmp(name, PREFIX, sizeof(PREFIX) - 1) != 0) {
        return true;
    }
    name += sizeof(PREFIX) - 1;
    if (strncmp(name, g->id, MU_FAMILY_ID_LEN) != 0 || name[MU_FAMILY_ID_LEN] != '-') {
        return true;
    }
    for (name += MU_FAMILY_ID_LEN + 1; *name >= '0' && *name <= '9'; name++) {
        number = number * 10 + (uint64_t)(*name - '0');
    }
    return each(g, number) == 0;
}

size_t mu_cgroup_each(const struct mu_cgroup *g,
                      int (*each)(const struct mu_cgroup *g, uint64_t number))
{
    _Alignas(uint64_t) char buf[4096];
    size_t failed = 0;
    long n;
    int fd;

    if (g->base[0] == '\0') {
        return 0;
    }
    fd = open(g->base, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return 0;
    }
    while ((n = syscall(SYS_getdents64, fd, buf, sizeof(buf))) > 0) {
        for (long at = 0; at < n;) {
            const struct mu_dirent *e = (const void *)(buf + at);

            failed += !visit(g, e->name, each);
            at += e->len;
        }
    }
    (void)close(fd);
    return failed;
}
