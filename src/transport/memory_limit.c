#include "transport/memory_limit.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/alloc.h"

#define LINE_MAX_BYTES   8192
#define LOG_RECORD_BYTES 8193 /* the kernel's records are shorter */
#define LOG_RECORDS_MAX  65536

/* A hierarchy of control groups that can limit memory. */
struct hierarchy {
    bool v2;
    char path[PATH_MAX];  /* of this process within the hierarchy */
    char root[PATH_MAX];  /* the part of the hierarchy that is mounted */
    char mount[PATH_MAX]; /* where it is mounted */
};

static FILE *open_below(const char *root, const char *path)
{
    char full[4 * PATH_MAX];

    (void)snprintf(full, sizeof(full), "%s%s", root, path);
    return fopen(full, "re");
}

/* Whether `word` is in a list with commas. */
static bool has_word(const char *list, const char *word)
{
    size_t len = strlen(word);

    for (const char *at = list; at != NULL; at = strchr(at, ',')) {
        at += *at == ',' ? 1 : 0;
        if (strncmp(at, word, len) == 0 && (at[len] == ',' || at[len] == '\0')) {
            return true;
        }
    }
    return false;
}

/* Reads a line of /proc/self/cgroup: "4:memory:/path", or "0::/path" for version 2. */
static bool read_path(const char *root, struct hierarchy *h)
{
    FILE *file = open_below(root, "/proc/self/cgroup");
    char line[LINE_MAX_BYTES];
    bool found = false;

    while (file != NULL && !found && fgets(line, sizeof(line), file) != NULL) {
        char *controllers = strchr(line, ':');
        char *path = controllers == NULL ? NULL : strchr(controllers + 1, ':');

        if (path == NULL) {
            continue;
        }
        *path++ = '\0';
        controllers++;
        path[strcspn(path, "\n")] = '\0';
        found = h->v2 ? controllers[0] == '\0' : has_word(controllers, "memory");
        if (found) {
            (void)snprintf(h->path, sizeof(h->path), "%s", path);
        }
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return found;
}

/*
 * Reads a line of /proc/self/mountinfo: "36 35 98:0 ROOT MOUNT OPTIONS ... - TYPE SOURCE OPTIONS".
 * The last options of version 1 name its controllers.
 */
static bool read_mount(const char *root, struct hierarchy *h)
{
    FILE *file = open_below(root, "/proc/self/mountinfo");
    char line[LINE_MAX_BYTES];
    bool found = false;

    while (file != NULL && !found && fgets(line, sizeof(line), file) != NULL) {
        char *tail = strstr(line, " - ");
        char type[32] = "";
        char options[1024] = "";

        if (tail == NULL || sscanf(tail, " - %31s %*s %1023s", type, options) < 1 ||
            sscanf(line, "%*s %*s %*s %4095s %4095s", h->root, h->mount) != 2) {
            continue;
        }
        found = h->v2 ? strcmp(type, "cgroup2") == 0
                      : strcmp(type, "cgroup") == 0 && has_word(options, "memory");
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return found;
}

static uint64_t read_limit(const char *root, const char *dir, bool v2)
{
    char path[3 * PATH_MAX];
    FILE *file;
    uint64_t limit = UINT64_MAX;

    (void)snprintf(path, sizeof(path), "%s/%s", dir, v2 ? "memory.max" : "memory.limit_in_bytes");
    file = open_below(root, path);
    if (file != NULL) {
        /* "max", and anything else that is not a number, means no limit. */
        limit = fscanf(file, "%" SCNu64, &limit) == 1 ? limit : UINT64_MAX;
        (void)fclose(file);
    }
    return limit;
}

/* Reads how many processes of a group the kernel has killed for lack of memory; false: it does not
 * say. */
static bool read_kills(const char *root, const char *dir, bool v2, uint64_t *ret_count)
{
    char path[3 * PATH_MAX];
    char line[128];
    FILE *file;
    bool found = false;

    (void)snprintf(path, sizeof(path), "%s/%s", dir, v2 ? "memory.events" : "memory.oom_control");
    file = open_below(root, path);
    while (file != NULL && !found && fgets(line, sizeof(line), file) != NULL) {
        found = sscanf(line, "oom_kill %" SCNu64, ret_count) == 1;
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return found;
}

/* What is found on the way from the process's group to the top of what is mounted. */
struct way {
    uint64_t least; /* the lowest limit */
    char least_dir[2 * PATH_MAX];
    bool counted; /* `kills` is of the first group that counts them */
    uint64_t kills;
};

static void go_up(const char *root, struct hierarchy *h, struct way *way)
{
    const char *rest = h->path;
    char dir[2 * PATH_MAX];
    size_t shown;
    size_t top;

    if (!read_path(root, h) || !read_mount(root, h)) {
        return;
    }
    /* A container may see its own group as the top, and still see the whole path. */
    shown = strlen(h->root);
    top = strlen(h->mount);
    if (strcmp(h->root, "/") != 0 && strncmp(h->path, h->root, shown) == 0) {
        rest = h->path + shown;
    }
    (void)snprintf(dir, sizeof(dir), "%s%s", h->mount, strcmp(rest, "/") == 0 ? "" : rest);
    for (;;) {
        uint64_t limit = read_limit(root, dir, h->v2);
        char *slash = strrchr(dir, '/');

        if (limit < way->least) {
            way->least = limit;
            memcpy(way->least_dir, dir, sizeof(dir));
        }
        way->counted = way->counted || read_kills(root, dir, h->v2, &way->kills);
        if (strlen(dir) <= top || slash == NULL) {
            return;
        }
        *slash = '\0';
    }
}

void mu_memory_groups(const char *root, struct mu_memory_groups *ret)
{
    *ret = (struct mu_memory_groups){.limit = UINT64_MAX};
    for (int v2 = 0; v2 < 2; v2++) {
        struct hierarchy *h = mu_calloc(1, sizeof(*h));
        struct way *way = mu_calloc(1, sizeof(*way));

        if (h != NULL && way != NULL) {
            h->v2 = v2 != 0;
            way->least = UINT64_MAX;
            go_up(root, h, way);
            ret->kills += way->kills;
            if (way->least < ret->limit) {
                ret->limit = way->least;
                (void)snprintf(ret->dir, sizeof(ret->dir), "%.4095s", way->least_dir);
            }
        }
        mu_free(way);
        mu_free(h);
    }
}

uint64_t mu_memory_limit_of(const char *root)
{
    struct mu_memory_groups groups;

    mu_memory_groups(root, &groups);
    return groups.limit;
}

uint64_t mu_memory_machine(void)
{
    long pages = sysconf(_SC_PHYS_PAGES);
    long page = sysconf(_SC_PAGESIZE);

    return pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : UINT64_MAX;
}

uint64_t mu_memory_limit(void)
{
    uint64_t machine = mu_memory_machine();
    uint64_t groups = mu_memory_limit_of("");

    return groups < machine ? groups : machine;
}

bool mu_memory_killed(const char *log, int64_t pid)
{
    char text[LOG_RECORD_BYTES];
    char phrase[64];
    bool found = false;
    int fd = open(log, O_RDONLY | O_NONBLOCK | O_CLOEXEC);

    (void)snprintf(phrase, sizeof(phrase), "Killed process %" PRId64 " (", pid);
    /* A read gives one record. EPIPE: older ones were overwritten, and the next is there. */
    for (int i = 0; fd >= 0 && !found && i < LOG_RECORDS_MAX; i++) {
        ssize_t n = read(fd, text, sizeof(text) - 1);

        if (n == 0 || (n < 0 && errno != EPIPE && errno != EINTR)) {
            break;
        }
        text[n < 0 ? 0 : n] = '\0';
        found = strstr(text, phrase) != NULL;
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    return found;
}
