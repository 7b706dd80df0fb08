/* Checks what muster and PyTorch need of this machine. */
#include "cli/doctor_host.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <unistd.h>

#define HERE        "here"
#define FILES_FEW   4096u
#define FILES_LEAST 1024u
#define QUEUE_FEW   1024
#define PORTS_FEW   10000
#define SHM_LITTLE  (UINT64_C(1) << 30)

/* Reads up to `count` whole numbers from a file of the kernel; returns how many there were. */
static int read_numbers(const char *path, long *ret, int count)
{
    FILE *f = fopen(path, "re");
    int n = 0;

    while (f != NULL && n < count && fscanf(f, "%ld", &ret[n]) == 1) {
        n++;
    }
    if (f != NULL) {
        (void)fclose(f);
    }
    return n;
}

/* --- the name --------------------------------------------------------------------------------- */

static void judge_name(struct doctor_report *r, json_t *facts)
{
    struct mu_probe_number numbers[MU_PROBE_NUMBERS];
    struct mu_errmsg msg = {{0}};
    size_t count = 0;
    size_t usable = 0;
    char name[256] = "";
    struct doctor_finding *f;
    json_t *list = json_array();

    (void)gethostname(name, sizeof(name) - 1);
    (void)json_object_set_new(facts, "name", json_string(name));
    (void)json_object_set_new(facts, "addresses", list);
    if (mu_probe_resolve(name, numbers, &count, &msg) != 0) {
        f = doctor_find(r, DOCTOR_WARN, HERE, "our name %s cannot be resolved: %s", name, msg.text);
        doctor_remedy(f, "other nodes use the name of the node that hosts the rendezvous or rank "
                         "0: add it to DNS, or give --local-addr with an address");
        return;
    }
    for (size_t i = 0; i < count; i++) {
        (void)json_array_append_new(list, json_string(numbers[i].ip));
        usable += numbers[i].scope == MU_PROBE_NET ? 1 : 0;
    }
    if (usable != 0 && numbers[0].scope == MU_PROBE_NET) {
        (void)doctor_find(r, DOCTOR_OK, HERE, "our name %s is %s", name, numbers[0].ip);
        return;
    }
    f = doctor_find(r, DOCTOR_WARN, HERE, "our name %s is %s, which others cannot reach", name,
                    numbers[0].ip);
    doctor_remedy(f, "Debian writes 127.0.1.1 into /etc/hosts: replace it with the address that "
                     "other hosts know, or give --local-addr with that address");
}

/* --- limits ----------------------------------------------------------------------------------- */

static void judge_files(struct doctor_report *r, json_t *facts)
{
    struct rlimit limit = {0};
    struct doctor_finding *f;

    (void)getrlimit(RLIMIT_NOFILE, &limit);
    (void)json_object_set_new(facts, "descriptors", json_integer((json_int_t)limit.rlim_max));
    f = doctor_find(r,
                    limit.rlim_max < FILES_LEAST ? DOCTOR_BAD
                    : limit.rlim_max < FILES_FEW ? DOCTOR_WARN
                                                 : DOCTOR_OK,
                    HERE, "%" PRIu64 " descriptors for a process", (uint64_t)limit.rlim_max);
    if (limit.rlim_max < FILES_FEW) {
        doctor_remedy(f, "every client of a server needs one: raise ulimit -Hn, LimitNOFILE= of "
                         "the unit, or nofile in /etc/security/limits.conf");
    }
}

static void judge_queue(struct doctor_report *r, json_t *facts)
{
    long queue = 0;
    struct doctor_finding *f;

    if (read_numbers("/proc/sys/net/core/somaxconn", &queue, 1) != 1) {
        return;
    }
    (void)json_object_set_new(facts, "somaxconn", json_integer(queue));
    f = doctor_find(r, queue < QUEUE_FEW ? DOCTOR_WARN : DOCTOR_OK, HERE,
                    "%ld connections may wait to be accepted (net.core.somaxconn)", queue);
    if (queue < QUEUE_FEW) {
        doctor_remedy(f, "when hundreds of nodes start at once, some wait a second or more: run "
                         "sysctl -w net.core.somaxconn=4096");
    }
}

static void judge_ports(struct doctor_report *r, json_t *facts)
{
    static const long own[] = {29400, 29500};
    long range[2];
    struct doctor_finding *f;

    if (read_numbers("/proc/sys/net/ipv4/ip_local_port_range", range, 2) != 2) {
        return;
    }
    (void)json_object_set_new(facts, "port_range",
                              json_pack("[I, I]", (json_int_t)range[0], (json_int_t)range[1]));
    f = doctor_find(r, range[1] - range[0] < PORTS_FEW ? DOCTOR_WARN : DOCTOR_OK, HERE,
                    "outgoing connections use ports %ld to %ld", range[0], range[1]);
    if (range[1] - range[0] < PORTS_FEW) {
        doctor_remedy(f, "that is few for many workers: run sysctl -w "
                         "net.ipv4.ip_local_port_range=\"32768 60999\"");
    }
    for (size_t i = 0; i < 2; i++) {
        if (own[i] >= range[0] && own[i] <= range[1]) {
            doctor_remedy(
                doctor_find(r, DOCTOR_WARN, HERE,
                            "outgoing connections can take port %ld, on which servers listen",
                            own[i]),
                "run sysctl -w net.ipv4.ip_local_reserved_ports=29400,29500");
        }
    }
}

/* --- loopback, shared memory, clock ----------------------------------------------------------- */

/* No process listens on port 1, so an immediate refusal shows that loopback works. */
static void judge_loopback(struct doctor_report *r, json_t *facts)
{
    const struct mu_probe_number loopback = {.ip = "127.0.0.1", .scope = MU_PROBE_HOST};
    struct mu_probe_try t = {.number = &loopback, .port = 1};
    bool up;

    mu_probe_dial(&t, 1, 1000);
    up = t.status == 0 || t.status == -ECONNREFUSED;
    (void)json_object_set_new(facts, "loopback", json_boolean(up));
    if (up) {
        (void)doctor_find(r, DOCTOR_OK, HERE, "loopback works");
    } else {
        doctor_remedy(
            doctor_find(r, DOCTOR_BAD, HERE, "loopback does not work: %s", strerror(-t.status)),
            "the workers of one machine use it: run ip link set lo up, and check the firewall");
    }
}

static void judge_memory(struct doctor_report *r, json_t *facts)
{
    struct statvfs fs;
    struct doctor_finding *f;
    uint64_t bytes;

    if (statvfs("/dev/shm", &fs) != 0) {
        doctor_remedy(doctor_find(r, DOCTOR_WARN, HERE, "there is no /dev/shm"),
                      "NCCL and PyTorch's data loaders share memory there: mount a tmpfs");
        return;
    }
    bytes = (uint64_t)fs.f_blocks * fs.f_frsize;
    (void)json_object_set_new(facts, "shm_bytes", json_integer((json_int_t)bytes));
    f = doctor_find(r, bytes < SHM_LITTLE ? DOCTOR_WARN : DOCTOR_OK, HERE,
                    "/dev/shm has %" PRIu64 " MiB", bytes >> 20);
    if (bytes < SHM_LITTLE) {
        doctor_remedy(
            f, "NCCL and PyTorch's data loaders share memory there: in a container, give "
               "--shm-size=8g or --ipc=host; in Kubernetes, mount an emptyDir of medium Memory");
    }
}

static void judge_time(struct doctor_report *r, json_t *facts)
{
    struct timex now = {0};
    int state = adjtimex(&now);
    bool well = state >= 0 && state != TIME_ERROR && (now.status & STA_UNSYNC) == 0;

    if (state < 0) {
        (void)doctor_find(r, DOCTOR_NOTE, HERE, "it is unknown whether the clock is synchronized");
        return;
    }
    (void)json_object_set_new(facts, "clock_synchronized", json_boolean(well));
    if (well) {
        (void)doctor_find(r, DOCTOR_OK, HERE, "the clock is synchronized (to within %.1f ms)",
                          (double)now.maxerror / 1000);
    } else {
        doctor_remedy(doctor_find(r, DOCTOR_WARN, HERE, "the clock is not synchronized"),
                      "run chrony or systemd-timesyncd (in a container: on its host): PyTorch's "
                      "c10d rendezvous and certificates depend on the clock");
    }
}

json_t *doctor_self(struct doctor_report *r)
{
    json_t *facts = json_object();

    judge_name(r, facts);
    judge_loopback(r, facts);
    judge_files(r, facts);
    judge_queue(r, facts);
    judge_ports(r, facts);
    judge_memory(r, facts);
    judge_time(r, facts);
    doctor_health(r, facts);
    return facts;
}
