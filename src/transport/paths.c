#include "transport/paths.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/err.h"
#include "transport/file_log.h"

static int read_file(const char *path, char *buf, size_t cap, size_t *ret_len)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t len = 0;
    int err = fd < 0 ? -errno : 0;

    while (err == 0 && len < cap) {
        ssize_t n = read(fd, buf + len, cap - len);

        if (n == 0) {
            break;
        }
        if (n > 0) {
            len += (size_t)n;
        } else if (errno != EINTR) {
            err = -errno;
        }
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    *ret_len = len;
    return err;
}

static int list(const char *path, char *buf, size_t cap, size_t *ret_len)
{
    DIR *dir = opendir(path);
    struct dirent *entry;
    size_t used = 0;

    if (dir == NULL) {
        return -errno;
    }
    while ((entry = readdir(dir)) != NULL) {
        size_t len = strlen(entry->d_name) + 1;

        if (entry->d_name[0] != '.' && len <= cap - used) {
            memcpy(buf + used, entry->d_name, len);
            used += len;
        }
    }
    (void)closedir(dir);
    *ret_len = used;
    return 0;
}

static int create(char *buf, size_t cap)
{
    static const char name[] = "/tmp/muster-rdzv-XXXXXX";
    int fd;

    if (sizeof(name) > cap) {
        return MUSTER_ELIMIT;
    }
    memcpy(buf, name, sizeof(name));
    fd = mkostemp(buf, O_CLOEXEC);
    if (fd < 0) {
        return -errno;
    }
    (void)close(fd);
    return 0;
}

static int absolute(const char *path, char *buf, size_t cap)
{
    size_t used = 0;
    int n;

    buf[0] = '\0';
    if (path[0] != '/') {
        if (getcwd(buf, cap) == NULL) {
            return errno == ERANGE ? MUSTER_ELIMIT : -errno;
        }
        used = strlen(buf);
    }
    n = snprintf(buf + used, cap - used, "%s%s", used == 0 ? "" : "/", path);
    return n < 0 || (size_t)n >= cap - used ? MUSTER_ELIMIT : 0;
}

const struct mu_paths mu_paths_real = {
    .read = read_file,
    .list = list,
    .create = create,
    .absolute = absolute,
    .open_log = mu_file_log_new,
};
