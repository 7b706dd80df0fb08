/* The parts of a machine's health that the kernel knows: network ports, memory, file systems, the
 * clock. What cannot be read is left as unknown. */
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <unistd.h>

#include "transport/health_internal.h"

#define PATH_CAP 512
#define TEXT_CAP 4096

/* Reads the beginning of a file as a text; "": there is none. */
static char *read_text(const char *path, char *buf, size_t cap)
{
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t len = file < 0 ? 0 : read(file, buf, cap - 1);

    buf[len < 0 ? 0 : len] = '\0';
    if (file >= 0) {
        (void)close(file);
    }
    return buf;
}

/* 0: there is no such number. */
static uint64_t read_number(const char *dir, const char *name)
{
    char path[PATH_CAP];
    char text[32];
    long long number;

    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    number = strtoll(read_text(path, text, sizeof(text)), NULL, 10);
    return number < 0 ? 0 : (uint64_t)number; /* a link that is down has the speed -1 */
}

/* Calls `each` with every entry of a directory. */
static void list(const char *dir, void (*each)(const char *dir, const char *name, void *context),
                 void *context)
{
    DIR *entries = opendir(dir);
    const struct dirent *entry;

    while (entries != NULL && (entry = readdir(entries)) != NULL) {
        if (entry->d_name[0] != '.') {
            each(dir, entry->d_name, context);
        }
    }
    if (entries != NULL) {
        (void)closedir(entries);
    }
}

/* --- network ports ---------------------------------------------------------------------------- */

static struct mu_health_port *add_port(struct mu_health *h)
{
    return h->port_count < MU_HEALTH_PORTS_MAX ? &h->ports[h->port_count++] : NULL;
}

struct adapter {
    struct mu_health *health;
    const char *name;
};

/* A port of an RDMA adapter: /sys/class/infiniband/mlx5_0/ports/1 */
static void look_at_port(const char *dir, const char *number, void *context)
{
    static const char *const errors[] = {
        "symbol_error",
        "port_rcv_errors",
        "port_xmit_discards",
        "local_link_integrity_errors",
        "excessive_buffer_overrun_errors",
        "link_error_recovery",
    };
    const struct adapter *a = context;
    struct mu_health_port *p = add_port(a->health);
    char counters[PATH_CAP];
    char path[PATH_CAP + 16];
    char text[64];

    if (p == NULL) {
        return;
    }
    (void)snprintf(p->name, sizeof(p->name), "%.40s port %.8s", a->name, number);
    p->infiniband = true;
    (void)snprintf(path, sizeof(path), "%.480s/%.16s/state", dir, number);
    p->up = strstr(read_text(path, text, sizeof(text)), "ACTIVE") != NULL;
    (void)snprintf(path, sizeof(path), "%.480s/%.16s/rate", dir, number);
    p->mbits = (uint32_t)(strtod(read_text(path, text, sizeof(text)), NULL) * 1000); /* Gb/sec */
    (void)snprintf(counters, sizeof(counters), "%.480s/%.16s/counters", dir, number);
    for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
        p->errors += read_number(counters, errors[i]);
    }
    p->downs = read_number(counters, "link_downed");
}

static void look_at_adapter(const char *dir, const char *name, void *context)
{
    struct adapter a = {.health = context, .name = name};
    char ports[PATH_CAP];

    (void)snprintf(ports, sizeof(ports), "%.200s/%.200s/ports", dir, name);
    list(ports, look_at_port, &a);
}

/* An interface with hardware behind it: others (bridges, tunnels, containers' ends) come and go. */
static void look_at_interface(const char *dir, const char *name, void *context)
{
    struct mu_health_port *p;
    char own[PATH_CAP];
    char path[PATH_CAP + 16];
    char text[64];

    (void)snprintf(own, sizeof(own), "%.200s/%.200s", dir, name);
    (void)snprintf(path, sizeof(path), "%s/device", own);
    if (access(path, F_OK) != 0 || (p = add_port(context)) == NULL) {
        return;
    }
    (void)snprintf(p->name, sizeof(p->name), "%.60s", name);
    (void)snprintf(path, sizeof(path), "%s/operstate", own);
    p->up = strncmp(read_text(path, text, sizeof(text)), "up", 2) == 0 ||
            (strncmp(text, "unknown", 7) == 0 && read_number(own, "carrier") == 1);
    p->mbits = (uint32_t)read_number(own, "speed");
    p->errors = read_number(own, "statistics/rx_errors") + read_number(own, "statistics/tx_errors");
    p->downs = read_number(own, "carrier_down_count");
}

static int compare_ports(const void *a, const void *b)
{
    return strcmp(((const struct mu_health_port *)a)->name,
                  ((const struct mu_health_port *)b)->name);
}

static void look_at_ports(const char *root, mu_health_says *says, void *context,
                          struct mu_health *h)
{
    char dir[PATH_CAP];

    says(context, "/sys/class/infiniband");
    (void)snprintf(dir, sizeof(dir), "%.256s/sys/class/infiniband", root);
    list(dir, look_at_adapter, h);
    says(context, "/sys/class/net");
    (void)snprintf(dir, sizeof(dir), "%.256s/sys/class/net", root);
    list(dir, look_at_interface, h);
    qsort(h->ports, h->port_count, sizeof(h->ports[0]), compare_ports);
}

/* --- memory, files, time ---------------------------------------------------------------------- */

/* "MemAvailable:   12345 kB" in bytes; 0: there is no such line. */
static uint64_t memory_line(const char *text, const char *name)
{
    const char *at = strstr(text, name);

    return at == NULL ? 0 : strtoull(at + strlen(name), NULL, 10) << 10;
}

static void look_at_memory(const char *root, struct mu_health *h)
{
    char path[PATH_CAP];
    char text[TEXT_CAP];

    (void)snprintf(path, sizeof(path), "%.256s/proc/meminfo", root);
    (void)read_text(path, text, sizeof(text));
    h->memory_bytes = memory_line(text, "MemTotal:");
    h->available_bytes = memory_line(text, "MemAvailable:");
    h->swap_bytes = memory_line(text, "SwapTotal:");
    h->swap_free_bytes = memory_line(text, "SwapFree:");
}

static void look_at_files(const char *root, const char *log_dir, mu_health_says *says,
                          void *context, struct mu_health *h)
{
    struct statvfs fs;
    char path[PATH_CAP];

    (void)snprintf(path, sizeof(path), "%.256s/dev/shm", root);
    if (statvfs(path, &fs) == 0) {
        h->has_shm = true;
        h->shm_bytes = (uint64_t)fs.f_blocks * fs.f_frsize;
        h->shm_free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
    }
    says(context, "the disk of the log files");
    if (log_dir[0] != '\0' && statvfs(log_dir, &fs) == 0) {
        h->has_disk = true;
        h->disk_read_only = (fs.f_flag & ST_RDONLY) != 0;
        h->disk_bytes = (uint64_t)fs.f_blocks * fs.f_frsize;
        h->disk_free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
        h->disk_files = fs.f_files;
        h->disk_free_files = fs.f_favail;
    }
}

static void look_at_limits(struct mu_health *h)
{
    struct rlimit limit = {0};
    struct timex now = {0};
    int state = adjtimex(&now);

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        h->files_max = limit.rlim_max;
    }
    h->has_clock = state >= 0;
    h->clock_synchronized = state >= 0 && state != TIME_ERROR && (now.status & STA_UNSYNC) == 0;
}

void mu_health_host_look(const char *root, const char *log_dir, mu_health_says *says, void *context,
                         struct mu_health *ret)
{
    says(context, "/proc");
    look_at_memory(root, ret);
    look_at_limits(ret);
    look_at_ports(root, says, context, ret);
    look_at_files(root, log_dir, says, context, ret);
}
