/*
 * GPUs, through NVIDIA's management library, which comes with the driver. It is opened when it is
 * there; its interface is declared here, by the numbers of its documentation, which do not change.
 * Every function but the oldest ones may be missing.
 */
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "core/alloc.h"
#include "transport/health_internal.h"
#include "transport/proc_table.h"

#define LIBRARY      "libnvidia-ml.so.1"
#define PROCESSES    64
#define UNKNOWN_SIZE UINT64_MAX /* of a process's memory */

/* The pid namespace of the machine itself has this number, in every kernel. */
#define FIRST_PID_NAMESPACE UINT64_C(0xEFFFFFFC)

enum nvml_status {
    NVML_OK = 0,
    NVML_NOT_SUPPORTED = 3,
    NVML_INSUFFICIENT_SIZE = 7,
    NVML_DRIVER_NOT_LOADED = 9,
    NVML_TIMEOUT = 10,
    NVML_GPU_IS_LOST = 15,
    NVML_RESET_REQUIRED = 16,
    NVML_VERSION_MISMATCH = 18,
    NVML_GPU_NOT_FOUND = 28,
};

enum nvml_field_id {
    NVML_ECC_UNCORRECTED = 4, /* volatile, the sum of all places */
    NVML_RETIRED_PENDING = 31,
    NVML_REMAPPED_PENDING = 144,
    NVML_REMAPPED_FAILURE = 145,
    NVML_RECOVERY_ACTION = 230,
};

enum nvml_slow {
    NVML_SLOW_HARDWARE = 0x08,
    NVML_SLOW_SOFT_HOT = 0x20,
    NVML_SLOW_HARD_HOT = 0x40,
    NVML_SLOW_POWER_BRAKE = 0x80,
};

#define NVML_EVENT_XID 8ULL

typedef struct nvml_device *nvml_device_t;
typedef struct nvml_event_set *nvml_event_set_t;

struct nvml_field {
    unsigned id;
    unsigned scope;
    long long at;
    long long latency;
    int type; /* 0 double, 1 unsigned, 2 unsigned long, 3 and 4 long long, 5 int, 6 short */
    int status;
    union {
        double real;
        unsigned small;
        unsigned long word;
        unsigned long long large;
    } value;
};

struct nvml_memory_1 {
    unsigned long long total, free, used; /* `used` with what the driver keeps for itself */
};

struct nvml_memory_2 {
    unsigned version; /* the size of the struct, and 2 in the highest byte */
    unsigned long long total, reserved, free, used;
};

struct nvml_process {
    unsigned pid;
    unsigned long long bytes;
    unsigned instances[2];
};

struct nvml_event {
    nvml_device_t device;
    unsigned long long type;
    unsigned long long data;
    unsigned instances[2];
};

struct mu_nvml {
    int (*init)(void);
    const char *(*strerror)(int status);
    int (*version)(char *text, unsigned cap);
    int (*count)(unsigned *ret);
    int (*device)(unsigned index, nvml_device_t *ret);
    int (*name)(nvml_device_t device, char *text, unsigned cap);
    int (*uuid)(nvml_device_t device, char *text, unsigned cap);
    int (*fields)(nvml_device_t device, int count, struct nvml_field *fields);
    int (*slow)(nvml_device_t device, unsigned long long *ret);
    int (*celsius)(nvml_device_t device, int sensor, unsigned *ret);
    int (*memory_1)(nvml_device_t device, struct nvml_memory_1 *ret);
    int (*memory_2)(nvml_device_t device, struct nvml_memory_2 *ret);
    int (*processes)(nvml_device_t device, unsigned *count, struct nvml_process *processes);
    int (*set_create)(nvml_event_set_t *ret);
    int (*event_types)(nvml_device_t device, unsigned long long *ret);
    int (*listen)(nvml_device_t device, unsigned long long types, nvml_event_set_t set);
    int (*wait)(nvml_event_set_t set, struct nvml_event *ret, unsigned timeout_ms);
    int (*set_free)(nvml_event_set_t set);
    int (*shutdown)(void);

    mu_health_says *says;
    void *context;
    unsigned gpu_count;
    nvml_device_t devices[MU_HEALTH_GPUS_MAX];
    nvml_event_set_t set;
    bool sees_processes; /* their numbers are those that we know */
};

/* --- the library ------------------------------------------------------------------------------ */

/* ISO C has no conversion from what dlsym() returns to a function. */
static void find(void *library, const char *name, void *to)
{
    void *found = dlsym(library, name);

    memcpy(to, &found, sizeof(found));
}

static void find_all(struct mu_nvml *n, void *library)
{
    find(library, "nvmlInit_v2", &n->init);
    find(library, "nvmlErrorString", &n->strerror);
    find(library, "nvmlSystemGetDriverVersion", &n->version);
    find(library, "nvmlDeviceGetCount_v2", &n->count);
    find(library, "nvmlDeviceGetHandleByIndex_v2", &n->device);
    find(library, "nvmlDeviceGetName", &n->name);
    find(library, "nvmlDeviceGetUUID", &n->uuid);
    find(library, "nvmlDeviceGetFieldValues", &n->fields);
    find(library, "nvmlDeviceGetCurrentClocksEventReasons", &n->slow);
    if (n->slow == NULL) {
        find(library, "nvmlDeviceGetCurrentClocksThrottleReasons", &n->slow);
    }
    find(library, "nvmlDeviceGetTemperature", &n->celsius);
    find(library, "nvmlDeviceGetMemoryInfo", &n->memory_1);
    find(library, "nvmlDeviceGetMemoryInfo_v2", &n->memory_2);
    find(library, "nvmlDeviceGetComputeRunningProcesses_v3", &n->processes);
    find(library, "nvmlEventSetCreate", &n->set_create);
    find(library, "nvmlDeviceGetSupportedEventTypes", &n->event_types);
    find(library, "nvmlDeviceRegisterEvents", &n->listen);
    find(library, "nvmlEventSetWait_v2", &n->wait);
    find(library, "nvmlEventSetFree", &n->set_free);
    find(library, "nvmlShutdown", &n->shutdown);
}

static const char *describe(const struct mu_nvml *n, int status)
{
    const char *text = n->strerror == NULL ? NULL : n->strerror(status);

    return text == NULL ? "an unknown error" : text;
}

/* A machine whose driver is not loaded, or has no GPU, is one without GPUs. */
static int start(struct mu_nvml *n, struct mu_health *h)
{
    int status = n->init();

    if (status == NVML_OK && n->version != NULL) {
        (void)n->version(h->driver, sizeof(h->driver));
        h->driver[sizeof(h->driver) - 1] = '\0';
    }
    if (status == NVML_OK) {
        status = n->count(&n->gpu_count);
    }
    if (status == NVML_OK && n->gpu_count == 0) {
        status = NVML_GPU_NOT_FOUND;
    }
    n->gpu_count = n->gpu_count < MU_HEALTH_GPUS_MAX ? n->gpu_count : MU_HEALTH_GPUS_MAX;
    if (status != NVML_OK) {
        h->gpu_state = status == NVML_DRIVER_NOT_LOADED || status == NVML_GPU_NOT_FOUND
                           ? MU_HEALTH_GPUS_NONE
                       : status == NVML_VERSION_MISMATCH ? MU_HEALTH_GPUS_MISMATCH
                                                         : MU_HEALTH_GPUS_FAILED;
        (void)snprintf(h->gpu_text, sizeof(h->gpu_text), "%s", describe(n, status));
    }
    return status;
}

/* In a container, the driver may name processes by numbers that mean others to us. */
static bool sees_processes(void)
{
    struct stat ours;

    return stat("/proc/self/ns/pid", &ours) == 0 && ours.st_ino == FIRST_PID_NAMESPACE;
}

struct mu_nvml *mu_nvml_open(struct mu_health *ret, mu_health_says *says, void *context)
{
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    struct mu_nvml *n = library == NULL ? NULL : mu_calloc(1, sizeof(*n));

    ret->gpu_state = MU_HEALTH_GPUS_NONE;
    if (n == NULL) {
        return NULL;
    }
    n->says = says;
    n->context = context;
    n->sees_processes = sees_processes();
    find_all(n, library);
    if (n->init == NULL || n->count == NULL || n->device == NULL) {
        ret->gpu_state = MU_HEALTH_GPUS_FAILED;
        (void)snprintf(ret->gpu_text, sizeof(ret->gpu_text), "%s is too old", LIBRARY);
        mu_free(n);
        return NULL;
    }
    says(context, "the GPU driver (nvmlInit)");
    if (start(n, ret) != NVML_OK) {
        mu_free(n);
        return NULL;
    }
    ret->gpu_state = MU_HEALTH_GPUS_UNKNOWN;
    return n;
}

void mu_nvml_close(struct mu_nvml *n)
{
    if (n != NULL) {
        if (n->set != NULL && n->set_free != NULL) {
            (void)n->set_free(n->set);
        }
        if (n->shutdown != NULL) {
            (void)n->shutdown();
        }
        mu_free(n);
    }
}

/* --- one GPU ---------------------------------------------------------------------------------- */

/* Whether a question was answered; takes what the refusal says of the whole GPU. */
static bool answered(struct mu_health_gpu *g, int status)
{
    g->lost |= status == NVML_GPU_IS_LOST;
    g->needs_reset |= status == NVML_RESET_REQUIRED;
    return status == NVML_OK;
}

static uint64_t field_value(const struct nvml_field *f)
{
    switch (f->type) {
    case 0:
        return f->value.real > 0 ? (uint64_t)f->value.real : 0;
    case 1:
    case 5: /* a signed int, of what is never negative */
        return f->value.small;
    case 2:
        return f->value.word;
    case 6:
        return f->value.small & UINT16_MAX;
    default:
        return f->value.large;
    }
}

static enum mu_health_recovery recovery_of(uint64_t action)
{
    static const enum mu_health_recovery actions[] = {
        MU_HEALTH_RECOVERY_NONE,  MU_HEALTH_RECOVERY_RESET,       MU_HEALTH_RECOVERY_REBOOT,
        MU_HEALTH_RECOVERY_DRAIN, MU_HEALTH_RECOVERY_DRAIN_RESET, MU_HEALTH_RECOVERY_DOMAIN,
    };

    return action < sizeof(actions) / sizeof(actions[0]) ? actions[action]
                                                         : MU_HEALTH_RECOVERY_NONE;
}

static void look_at_fields(const struct mu_nvml *n, nvml_device_t device, struct mu_health_gpu *g)
{
    struct nvml_field f[] = {
        {.id = NVML_ECC_UNCORRECTED},  {.id = NVML_RETIRED_PENDING}, {.id = NVML_REMAPPED_PENDING},
        {.id = NVML_REMAPPED_FAILURE}, {.id = NVML_RECOVERY_ACTION},
    };
    const int count = (int)(sizeof(f) / sizeof(f[0]));

    for (int i = 0; i < count; i++) {
        f[i].status = NVML_NOT_SUPPORTED; /* a driver that does not know one may leave it alone */
    }
    if (n->fields == NULL || !answered(g, n->fields(device, count, f))) {
        return;
    }
    for (int i = 0; i < count; i++) {
        uint64_t value = field_value(&f[i]);

        if (!answered(g, f[i].status)) {
            continue;
        }
        switch ((enum nvml_field_id)f[i].id) {
        case NVML_ECC_UNCORRECTED:
            g->has_ecc = true;
            g->ecc_errors = value;
            break;
        case NVML_RETIRED_PENDING:
            g->retire_pending = value != 0;
            break;
        case NVML_REMAPPED_PENDING:
            g->remap_pending = value != 0;
            break;
        case NVML_REMAPPED_FAILURE:
            g->remap_failed = value != 0;
            break;
        case NVML_RECOVERY_ACTION:
            g->recovery = recovery_of(value);
            break;
        }
    }
}

static void look_at_speed(const struct mu_nvml *n, nvml_device_t device, struct mu_health_gpu *g)
{
    unsigned long long why = 0;
    unsigned celsius = 0;

    if (n->slow != NULL && answered(g, n->slow(device, &why))) {
        g->slow =
            ((why & NVML_SLOW_HARDWARE) != 0 ? MU_HEALTH_SLOW_HARDWARE : 0u) |
            ((why & (NVML_SLOW_SOFT_HOT | NVML_SLOW_HARD_HOT)) != 0 ? MU_HEALTH_SLOW_HOT : 0u) |
            ((why & NVML_SLOW_POWER_BRAKE) != 0 ? MU_HEALTH_SLOW_POWER : 0u);
    }
    if (n->celsius != NULL && answered(g, n->celsius(device, 0, &celsius))) {
        g->celsius = celsius;
    }
}

static void look_at_memory(const struct mu_nvml *n, nvml_device_t device, struct mu_health_gpu *g)
{
    struct nvml_memory_2 m2 = {.version = (unsigned)sizeof(m2) | 2u << 24};
    struct nvml_memory_1 m1 = {0};

    if (n->memory_2 != NULL && answered(g, n->memory_2(device, &m2))) {
        g->memory_bytes = m2.total;
        g->used_bytes = m2.used;
    } else if (n->memory_1 != NULL && answered(g, n->memory_1(device, &m1))) {
        g->memory_bytes = m1.total;
        g->used_bytes = m1.used;
    }
}

static bool is_dead(unsigned pid)
{
    struct mu_proc proc;
    int err = pid == 0 || pid > INT_MAX ? 0 : mu_proc_read((pid_t)pid, &proc);

    return err == -ENOENT || err == -ESRCH || (err == 0 && pid != 0 && proc.dead);
}

static void look_at_holders(const struct mu_nvml *n, nvml_device_t device, struct mu_health_gpu *g)
{
    struct nvml_process all[PROCESSES];
    unsigned count = PROCESSES;

    if (!n->sees_processes || n->processes == NULL) {
        return;
    }
    memset(all, 0, sizeof(all));
    if (!answered(g, n->processes(device, &count, all))) {
        return;
    }
    g->has_holders = true;
    g->holder_count = count < PROCESSES ? count : PROCESSES;
    for (unsigned i = 0; i < g->holder_count && i < MU_HEALTH_HOLDERS_MAX; i++) {
        g->holders[i] = (struct mu_health_holder){
            .pid = all[i].pid,
            .bytes = all[i].bytes == UNKNOWN_SIZE ? 0 : all[i].bytes,
            .dead = is_dead(all[i].pid),
        };
    }
}

static void look_at_gpu(struct mu_nvml *n, unsigned i, bool holders, struct mu_health_gpu *g)
{
    struct mu_health_gpu old = *g;

    *g = (struct mu_health_gpu){0};
    memcpy(g->name, old.name, sizeof(g->name));
    memcpy(g->uuid, old.uuid, sizeof(g->uuid));
    if (n->devices[i] == NULL && !answered(g, n->device(i, &n->devices[i]))) {
        n->devices[i] = NULL;
        return;
    }
    if (g->name[0] == '\0' && n->name != NULL) {
        (void)answered(g, n->name(n->devices[i], g->name, sizeof(g->name)));
    }
    if (g->uuid[0] == '\0' && n->uuid != NULL) {
        (void)answered(g, n->uuid(n->devices[i], g->uuid, sizeof(g->uuid)));
    }
    look_at_fields(n, n->devices[i], g);
    look_at_speed(n, n->devices[i], g);
    look_at_memory(n, n->devices[i], g);
    if (holders) {
        look_at_holders(n, n->devices[i], g);
    }
}

void mu_nvml_look(struct mu_nvml *n, bool holders, struct mu_health *ret)
{
    n->says(n->context, "the GPU driver");
    ret->gpu_state = MU_HEALTH_GPUS_SEEN;
    ret->gpu_count = n->gpu_count;
    for (unsigned i = 0; i < n->gpu_count; i++) {
        look_at_gpu(n, i, holders, &ret->gpus[i]);
    }
}

/* --- errors ----------------------------------------------------------------------------------- */

bool mu_nvml_listen(struct mu_nvml *n)
{
    bool any = false;

    n->says(n->context, "the GPU driver (events)");
    if (n->set_create == NULL || n->listen == NULL || n->wait == NULL ||
        n->set_create(&n->set) != NVML_OK) {
        return false;
    }
    for (unsigned i = 0; i < n->gpu_count; i++) {
        unsigned long long types = NVML_EVENT_XID;

        if (n->devices[i] != NULL && n->event_types != NULL &&
            n->event_types(n->devices[i], &types) != NVML_OK) {
            continue;
        }
        any |= n->devices[i] != NULL && (types & NVML_EVENT_XID) != 0 &&
               n->listen(n->devices[i], NVML_EVENT_XID, n->set) == NVML_OK;
    }
    return any;
}

int mu_nvml_await(struct mu_nvml *n, uint32_t timeout_ms, uint32_t *ret_gpu, uint32_t *ret_xid)
{
    struct nvml_event event = {0};
    int status = n->wait(n->set, &event, timeout_ms);

    if (status != NVML_OK) {
        return status == NVML_TIMEOUT ? -EAGAIN : -EIO;
    }
    for (unsigned i = 0; i < n->gpu_count; i++) {
        if (n->devices[i] == event.device && (event.type & NVML_EVENT_XID) != 0) {
            *ret_gpu = i;
            *ret_xid = event.data < UINT32_MAX ? (uint32_t)event.data : UINT32_MAX;
            return 0;
        }
    }
    return -EAGAIN;
}
