#include "proto/agent/health.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define GIB(bytes) ((double)(bytes) / (1 << 30))

/* --- names ------------------------------------------------------------------------------------ */

const char *mu_health_level_name(enum mu_health_level level)
{
    return level == MU_HEALTH_FAULT ? "fault" : level == MU_HEALTH_WARN ? "warning" : "note";
}

const char *mu_health_kind_name(enum mu_health_kind kind)
{
    static const char *const names[] = {
        [MU_HEALTH_DRIVER_SILENT] = "driver_silent",
        [MU_HEALTH_DRIVER_MISMATCH] = "driver_mismatch",
        [MU_HEALTH_DRIVER_FAILED] = "driver_failed",
        [MU_HEALTH_GPU_LOST] = "gpu_lost",
        [MU_HEALTH_GPU_RECOVERY] = "gpu_recovery",
        [MU_HEALTH_GPU_WORN] = "gpu_worn",
        [MU_HEALTH_GPU_PENDING] = "gpu_pending",
        [MU_HEALTH_GPU_ECC] = "gpu_ecc",
        [MU_HEALTH_GPU_SLOW] = "gpu_slow",
        [MU_HEALTH_GPU_HELD] = "gpu_held",
        [MU_HEALTH_GPU_USED] = "gpu_used",
        [MU_HEALTH_PORT_DOWN] = "port_down",
        [MU_HEALTH_PORT_ERRORS] = "port_errors",
        [MU_HEALTH_MEMORY] = "memory",
        [MU_HEALTH_SHM] = "shm",
        [MU_HEALTH_DISK] = "disk",
        [MU_HEALTH_FILES] = "files",
        [MU_HEALTH_CLOCK] = "clock",
        [MU_HEALTH_HOST_SILENT] = "host_silent",
        [MU_HEALTH_XID] = "xid",
    };

    return kind < sizeof(names) / sizeof(names[0]) && names[kind] != NULL ? names[kind] : "?";
}

/* Those that a job may meet; the names are NVIDIA's. */
const char *mu_health_xid_name(uint32_t number)
{
    static const struct {
        uint32_t number;
        const char *name;
    } xids[] = {
        {13, "graphics engine exception"},
        {31, "GPU memory page fault"},
        {32, "invalid or corrupted push buffer stream"},
        {38, "driver firmware error"},
        {43, "GPU stopped processing"},
        {45, "preemptive cleanup, due to previous errors"},
        {48, "double-bit ECC error"},
        {61, "internal microcontroller breakpoint"},
        {62, "internal microcontroller halt"},
        {63, "row remapping or page retirement event"},
        {64, "row remapping or page retirement failure"},
        {69, "graphics engine class error"},
        {74, "NVLink error"},
        {79, "GPU has fallen off the bus"},
        {92, "high single-bit ECC error rate"},
        {94, "contained ECC error"},
        {95, "uncontained ECC error"},
        {109, "context switch timeout"},
        {119, "GSP RPC timeout"},
        {120, "GSP error"},
        {121, "C2C link error"},
        {140, "unrecovered ECC error"},
    };

    for (size_t i = 0; i < sizeof(xids) / sizeof(xids[0]); i++) {
        if (xids[i].number == number) {
            return xids[i].name;
        }
    }
    return NULL;
}

/* --- findings --------------------------------------------------------------------------------- */

/* What is being judged, and what came of it. */
struct judge {
    const struct mu_health *now;
    const struct mu_health *first; /* or NULL */
    struct mu_health_findings *found;
    int gpu; /* the one that is being judged, or -1 */
    const char *subject;
};

static struct mu_health_finding *add(const struct judge *j, enum mu_health_level level,
                                     enum mu_health_kind kind, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

static struct mu_health_finding *add(const struct judge *j, enum mu_health_level level,
                                     enum mu_health_kind kind, const char *format, ...)
{
    struct mu_health_findings *all = j->found;
    struct mu_health_finding *f = &all->items[all->count];
    va_list args;

    /* When the list is full, its last finding is overwritten. */
    all->count += all->count < MU_HEALTH_FINDINGS_MAX - 1 ? 1 : 0;
    *f = (struct mu_health_finding){.level = level, .kind = kind, .gpu = j->gpu};
    if (j->gpu >= 0) {
        (void)snprintf(f->subject, sizeof(f->subject), "GPU %d", j->gpu);
    } else {
        (void)snprintf(f->subject, sizeof(f->subject), "%s", j->subject);
    }
    va_start(args, format);
    (void)vsnprintf(f->text, sizeof(f->text), format, args);
    va_end(args);
    return f;
}

static void remedy(struct mu_health_finding *f, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void remedy(struct mu_health_finding *f, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)vsnprintf(f->remedy, sizeof(f->remedy), format, args);
    va_end(args);
}

const struct mu_health_finding *mu_health_worst(const struct mu_health_findings *f)
{
    const struct mu_health_finding *worst = NULL;

    for (size_t i = 0; i < f->count; i++) {
        worst = worst == NULL || f->items[i].level > worst->level ? &f->items[i] : worst;
    }
    return worst;
}

/* --- a GPU ------------------------------------------------------------------------------------ */

static void judge_recovery(const struct judge *j, const struct mu_health_gpu *g)
{
    enum mu_health_recovery r = g->recovery;

    if (g->needs_reset || r == MU_HEALTH_RECOVERY_RESET || r == MU_HEALTH_RECOVERY_DRAIN_RESET) {
        remedy(
            add(j, MU_HEALTH_FAULT, MU_HEALTH_GPU_RECOVERY, "GPU %d needs a reset", j->gpu),
            "when nothing runs on it, reset it as root (nvidia-smi --gpu-reset -i %d), or reboot "
            "this machine",
            j->gpu);
    } else if (r == MU_HEALTH_RECOVERY_REBOOT) {
        remedy(add(j, MU_HEALTH_FAULT, MU_HEALTH_GPU_RECOVERY,
                   "GPU %d needs a reboot of this machine", j->gpu),
               "reboot it; if that does not help, have the GPU examined");
    } else if (r == MU_HEALTH_RECOVERY_DRAIN) {
        remedy(add(j, MU_HEALTH_WARN, MU_HEALTH_GPU_RECOVERY,
                   "GPU %d should get no new work that uses several GPUs, says its driver", j->gpu),
               "let the jobs on its NVLink end, then reset it (nvidia-smi --gpu-reset -i %d)",
               j->gpu);
    } else if (r == MU_HEALTH_RECOVERY_DOMAIN) {
        remedy(add(j, MU_HEALTH_WARN, MU_HEALTH_GPU_RECOVERY,
                   "the NVLink domain of GPU %d needs recovery, says its driver", j->gpu),
               "restart nvidia-imex on all machines of the domain");
    }
}

static void judge_errors(const struct judge *j, const struct mu_health_gpu *g)
{
    const struct mu_health *first = j->first;
    uint64_t before =
        first != NULL && (uint32_t)j->gpu < first->gpu_count ? first->gpus[j->gpu].ecc_errors : 0;

    if (g->remap_failed) {
        remedy(add(j, MU_HEALTH_FAULT, MU_HEALTH_GPU_WORN,
                   "GPU %d cannot replace its bad memory any more", j->gpu),
               "have it exchanged; until then, leave it out (CUDA_VISIBLE_DEVICES)");
    } else if (g->remap_pending || g->retire_pending) {
        remedy(add(j, MU_HEALTH_WARN, MU_HEALTH_GPU_PENDING,
                   "GPU %d has bad memory that is replaced at its next reset", j->gpu),
               "reset it between two jobs (nvidia-smi --gpu-reset -i %d)", j->gpu);
    }
    if (g->has_ecc && g->ecc_errors >= before + MU_HEALTH_ECC_NEW) {
        remedy(add(j, MU_HEALTH_WARN, MU_HEALTH_GPU_ECC,
                   "GPU %d has had %" PRIu64 " uncorrected memory error%s%s", j->gpu,
                   g->ecc_errors - before, g->ecc_errors - before == 1 ? "" : "s",
                   first != NULL ? " since the agent began" : " since its driver was loaded"),
               "if there are more, reset it between two jobs, and have it examined");
    }
}

static void judge_speed(const struct judge *j, const struct mu_health_gpu *g)
{
    char heat[24] = "";

    if (g->slow == 0) {
        return;
    }
    if (g->celsius != 0) {
        (void)snprintf(heat, sizeof(heat), " (%u degrees)", g->celsius);
    }
    remedy(add(j, MU_HEALTH_WARN, MU_HEALTH_GPU_SLOW, "GPU %d is slowed down: %s%s", j->gpu,
               (g->slow & MU_HEALTH_SLOW_HOT) != 0     ? "it is too hot"
               : (g->slow & MU_HEALTH_SLOW_POWER) != 0 ? "the power supply demands it"
                                                       : "it is too hot, or short of power",
               heat),
           (g->slow & MU_HEALTH_SLOW_POWER) != 0 ? "check the power supplies of this machine"
                                                 : "check its fans and the air around it");
}

/* Other jobs' processes are named only while none of ours can be among them: before workers run. */
static void judge_holders(const struct judge *j, const struct mu_health_gpu *g)
{
    uint32_t named =
        g->holder_count < MU_HEALTH_HOLDERS_MAX ? g->holder_count : MU_HEALTH_HOLDERS_MAX;
    const struct mu_health_holder *dead = NULL;
    const struct mu_health_holder *most = NULL;

    for (uint32_t i = 0; g->has_holders && i < named; i++) {
        const struct mu_health_holder *h = &g->holders[i];

        dead = h->dead && dead == NULL ? h : dead;
        most = !h->dead && (most == NULL || h->bytes > most->bytes) ? h : most;
    }
    if (dead != NULL) {
        remedy(add(j, MU_HEALTH_FAULT, MU_HEALTH_GPU_HELD,
                   "%.1f GiB of GPU %d are still held by process %" PRId64 ", which is gone",
                   GIB(dead->bytes), j->gpu, dead->pid),
               "wait for the driver; if it does not let go, find what still has /dev/nvidia%d open "
               "(fuser -v), or reset the GPU",
               j->gpu);
    }
    if (most != NULL && most->bytes >= MU_HEALTH_USED_BYTES) {
        remedy(add(j, MU_HEALTH_WARN, MU_HEALTH_GPU_USED,
                   "%.1f GiB of GPU %d are in use by process %" PRId64, GIB(most->bytes), j->gpu,
                   most->pid),
               "end it, or choose other GPUs with CUDA_VISIBLE_DEVICES");
    }
}

static void judge_gpu(struct judge *j, int i)
{
    const struct mu_health_gpu *g = &j->now->gpus[i];

    j->gpu = i;
    if (g->lost) {
        remedy(add(j, MU_HEALTH_FAULT, MU_HEALTH_GPU_LOST,
                   "GPU %d is lost: it has fallen off the bus", i),
               "reboot this machine; if it happens again, have the GPU and its power examined");
    } else {
        judge_recovery(j, g);
        judge_errors(j, g);
        judge_speed(j, g);
        judge_holders(j, g);
    }
    j->gpu = -1;
}

static void judge_driver(struct judge *j)
{
    const struct mu_health *h = j->now;

    j->subject = "GPU driver";
    if (h->gpu_busy_ms >= MU_HEALTH_SILENT_MS) {
        remedy(add(j, MU_HEALTH_FAULT, MU_HEALTH_DRIVER_SILENT,
                   "%s has not answered for %" PRIu64 " s",
                   h->gpu_what == NULL ? "the GPU driver" : h->gpu_what, h->gpu_busy_ms / 1000),
               "try nvidia-smi; if it hangs as well, reboot this machine");
    } else if (h->gpu_state == MU_HEALTH_GPUS_MISMATCH) {
        remedy(add(j, MU_HEALTH_FAULT, MU_HEALTH_DRIVER_MISMATCH,
                   "the GPU driver in the kernel and its libraries are of different versions"),
               "reboot after a driver's update; in a container, mount the libraries of its host");
    } else if (h->gpu_state == MU_HEALTH_GPUS_FAILED) {
        remedy(add(j, MU_HEALTH_WARN, MU_HEALTH_DRIVER_FAILED, "the GPU driver refuses: %s",
                   h->gpu_text),
               "try nvidia-smi; if there are GPUs here, workers cannot use them either");
    }
}

/* --- ports ------------------------------------------------------------------------------------ */

static const struct mu_health_port *find_port(const struct mu_health *h, const char *name)
{
    for (uint32_t i = 0; i < h->port_count; i++) {
        if (strcmp(h->ports[i].name, name) == 0) {
            return &h->ports[i];
        }
    }
    return NULL;
}

static void judge_port(struct judge *j, const struct mu_health_port *before)
{
    const struct mu_health_port *p = find_port(j->now, before->name);
    enum mu_health_level level = before->infiniband ? MU_HEALTH_FAULT : MU_HEALTH_WARN;

    j->subject = before->name;
    if (before->up && (p == NULL || !p->up)) {
        remedy(add(j, level, MU_HEALTH_PORT_DOWN,
                   "the network port %s is down, and was up when the agent began", before->name),
               "check its cable and the switch");
    } else if (p != NULL && p->downs > before->downs) {
        remedy(add(j, MU_HEALTH_WARN, MU_HEALTH_PORT_ERRORS,
                   "the network port %s has lost its link %" PRIu64 " times since the agent began",
                   before->name, p->downs - before->downs),
               "check its cable and the switch");
    } else if (p != NULL && p->errors >= before->errors + MU_HEALTH_ERRORS_NEW) {
        remedy(add(j, MU_HEALTH_WARN, MU_HEALTH_PORT_ERRORS,
                   "the network port %s has had %" PRIu64 " errors since the agent began",
                   before->name, p->errors - before->errors),
               "check its cable and the switch");
    }
}

/* --- the rest --------------------------------------------------------------------------------- */

static void judge_disk(struct judge *j)
{
    const struct mu_health *h = j->now;

    j->subject = "log disk";
    if (!h->has_disk) {
        return;
    }
    if (h->disk_read_only) {
        remedy(add(j, MU_HEALTH_WARN, MU_HEALTH_DISK, "the disk of the log files is read-only"),
               "name another directory with --log-dir");
    } else if (h->disk_bytes != 0 && h->disk_free_bytes < MU_HEALTH_DISK_LEAST) {
        remedy(add(j, MU_HEALTH_WARN, MU_HEALTH_DISK, "the disk of the log files is full"),
               "free some space, or name another directory with --log-dir");
    } else if (h->disk_files != 0 && h->disk_free_files == 0) {
        remedy(add(j, MU_HEALTH_WARN, MU_HEALTH_DISK,
                   "the disk of the log files cannot hold another file (it has no free inodes)"),
               "delete some files, or name another directory with --log-dir");
    } else if (h->disk_free_bytes < MU_HEALTH_DISK_LITTLE &&
               h->disk_free_bytes < h->disk_bytes / 20) {
        (void)add(j, MU_HEALTH_NOTE, MU_HEALTH_DISK,
                  "the disk of the log files has %" PRIu64 " MiB left", h->disk_free_bytes >> 20);
    }
}

static void judge_memory(struct judge *j)
{
    const struct mu_health *h = j->now;

    j->subject = "memory";
    if (h->memory_bytes != 0 && h->available_bytes < h->memory_bytes / 50) {
        remedy(
            add(j, MU_HEALTH_WARN, MU_HEALTH_MEMORY, "%.1f GiB of %.1f GiB of memory are available",
                GIB(h->available_bytes), GIB(h->memory_bytes)),
            "end other processes, or use fewer workers: the kernel kills one when there is none");
    }
    j->subject = "/dev/shm";
    if (h->has_shm && h->shm_bytes != 0 && h->shm_free_bytes < MU_HEALTH_SHM_LEAST) {
        remedy(
            add(j, MU_HEALTH_WARN, MU_HEALTH_SHM, "/dev/shm has %" PRIu64 " MiB left of %" PRIu64,
                h->shm_free_bytes >> 20, h->shm_bytes >> 20),
            "remove what dead processes left there; in a container, give it more (--shm-size=8g)");
    }
}

static void judge_limits(struct judge *j)
{
    const struct mu_health *h = j->now;

    j->subject = "descriptors";
    if (h->files_max != 0 && h->files_max < MU_HEALTH_FILES_LEAST) {
        remedy(add(j, MU_HEALTH_WARN, MU_HEALTH_FILES,
                   "a process may have only %" PRIu64 " descriptors", h->files_max),
               "raise ulimit -Hn, LimitNOFILE= of the unit, or nofile in "
               "/etc/security/limits.conf");
    }
    j->subject = "clock";
    if (h->has_clock && !h->clock_synchronized) {
        remedy(add(j, MU_HEALTH_NOTE, MU_HEALTH_CLOCK, "the clock is not synchronized"),
               "run chrony or systemd-timesyncd");
    }
    j->subject = "machine";
    if (h->host_busy_ms >= MU_HEALTH_SILENT_MS) {
        (void)add(j, MU_HEALTH_WARN, MU_HEALTH_HOST_SILENT, "%s has not answered for %" PRIu64 " s",
                  h->host_what == NULL ? "?" : h->host_what, h->host_busy_ms / 1000);
    }
}

void mu_health_judge(const struct mu_health *now, const struct mu_health *first, uint32_t gpus,
                     struct mu_health_findings *ret)
{
    struct judge j = {.now = now, .first = first, .found = ret, .gpu = -1, .subject = ""};

    ret->count = 0;
    if (gpus != 0) {
        judge_driver(&j);
    }
    for (uint32_t i = 0; i < now->gpu_count && i < MU_HEALTH_GPUS_MAX; i++) {
        if ((gpus >> i & 1) != 0) {
            judge_gpu(&j, (int)i);
        }
    }
    for (uint32_t i = 0; first != NULL && now->host_looks != 0 && i < first->port_count; i++) {
        judge_port(&j, &first->ports[i]);
    }
    judge_memory(&j);
    judge_disk(&j);
    judge_limits(&j);
}

/* --- which GPU a worker has ------------------------------------------------------------------- */

static bool are_alike(const struct mu_health *h)
{
    for (uint32_t i = 1; i < h->gpu_count; i++) {
        if (strcmp(h->gpus[i].name, h->gpus[0].name) != 0) {
            return false;
        }
    }
    return h->gpu_count != 0;
}

/* The GPU that an entry of the list names, or -1. */
static int gpu_named(const struct mu_health *h, const char *word, size_t len)
{
    unsigned number = 0;
    int found = -1;

    if (len > 4 && strncmp(word, "GPU-", 4) == 0) { /* perhaps only its beginning */
        for (uint32_t i = 0; i < h->gpu_count; i++) {
            if (strncmp(h->gpus[i].uuid, word, len) == 0) {
                found = found < 0 ? (int)i : -2;
            }
        }
        return found < 0 ? -1 : found;
    }
    for (size_t i = 0; i < len; i++) {
        if (word[i] < '0' || word[i] > '9' || number > MU_HEALTH_GPUS_MAX) {
            return -1;
        }
        number = number * 10 + (unsigned)(word[i] - '0');
    }
    return len != 0 && number < h->gpu_count && are_alike(h) ? (int)number : -1;
}

int mu_health_gpu_of(const struct mu_health *h, const char *visible, uint32_t local_rank)
{
    if (visible == NULL) {
        return local_rank < h->gpu_count && are_alike(h) ? (int)local_rank : -1;
    }
    for (uint32_t i = 0;; i++) {
        size_t len = strcspn(visible, ",");

        if (i == local_rank) {
            return gpu_named(h, visible, len);
        }
        if (visible[len] == '\0') {
            return -1;
        }
        visible += len + 1;
    }
}

uint32_t mu_health_gpus_of(const struct mu_health *h, const char *visible)
{
    uint32_t gpus = 0;

    if (visible == NULL) {
        return UINT32_MAX;
    }
    for (const char *at = visible; *at != '\0';) {
        size_t len = strcspn(at, ",");
        int gpu = gpu_named(h, at, len);

        if (gpu < 0) {
            return strcmp(visible, "-1") == 0 ? 0 : UINT32_MAX;
        }
        gpus |= UINT32_C(1) << gpu;
        at += len + (at[len] == ',');
    }
    return gpus;
}
