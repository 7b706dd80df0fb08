/*
 * A libnvidia-ml.so.1 that says what a test wants: the file $FAKE_NVML has words NAME=VALUE, or
 * NAME.GPU=VALUE for one GPU, and is read again for every question. $FAKE_NVML.xid may be a FIFO:
 * each line "GPU NUMBER" in it is an error that the driver reports.
 *
 *     gpus=8           how many there are (8)          init=9          what nvmlInit() returns
 *     init_ms=700      how long it takes               hang=1          it never returns
 *     hang.2=1         questions about GPU 2 never return
 *     status.2=15      every question about GPU 2 is answered so (15: it is lost; 16: reset it)
 *     ecc.2=1  retired.2=1  pending.2=1  failed.2=1  recovery.2=1  slow.2=64
 *     used.2=BYTES     pid.2=PID: a process has that memory; processes.2=20: as many have it
 *
 * With OLD, it is a library of years ago.
 */
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

static char gpus[64]; /* a handle is the address of its GPU's byte */

static long long word(const char *name, int gpu, long long otherwise)
{
    const char *path = getenv("FAKE_NVML");
    char text[4096] = " ";
    char key[64];
    const char *at;
    int file = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    ssize_t len = file < 0 ? 0 : read(file, text + 1, sizeof(text) - 2);

    if (file >= 0) {
        (void)close(file);
    }
    text[len > 0 ? len + 1 : 1] = '\0';
    for (char *c = text; *c != '\0'; c++) {
        *c = *c == '\n' ? ' ' : *c;
    }
    (void)snprintf(key, sizeof(key), gpu < 0 ? " %s=" : " %s.%d=", name, gpu);
    at = strstr(text, key);
    return at == NULL ? otherwise : strtoll(at + strlen(key), NULL, 0);
}

static int index_of(const void *device)
{
    return (int)((const char *)device - gpus);
}

static void hang(void)
{
    for (;;) {
        (void)pause();
    }
}

static int status_of(const void *device)
{
    if (word("hang", index_of(device), 0) != 0) {
        hang();
    }
    return (int)word("status", index_of(device), 0);
}

EXPORT int nvmlInit_v2(void)
{
    if (word("hang", -1, 0) != 0) {
        hang();
    }
    (void)usleep((useconds_t)word("init_ms", -1, 0) * 1000);
    return (int)word("init", -1, 0);
}

EXPORT int nvmlShutdown(void)
{
    return 0;
}

EXPORT const char *nvmlErrorString(int status)
{
    return status == 15  ? "GPU is lost"
           : status == 9 ? "Driver Not Loaded"
                         : "Unknown Error, of which the driver has so much to say that whoever has "
                           "set aside a short line for it cannot hold all of that, and must cut it "
                           "off somewhere";
}

EXPORT int nvmlSystemGetDriverVersion(char *text, unsigned cap)
{
    (void)snprintf(text, cap, "570.00");
    return 0;
}

EXPORT int nvmlDeviceGetCount_v2(unsigned *ret)
{
    *ret = (unsigned)word("gpus", -1, 8);
    return 0;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **ret)
{
    *ret = &gpus[i];
    return 0;
}

EXPORT int nvmlDeviceGetName(void *device, char *text, unsigned cap)
{
    (void)snprintf(text, cap, "NVIDIA Fake 80GB");
    return status_of(device);
}

EXPORT int nvmlDeviceGetUUID(void *device, char *text, unsigned cap)
{
    (void)snprintf(text, cap, "GPU-%08x-0000-0000-0000-000000000000", index_of(device) + 0xa0);
    return status_of(device);
}

EXPORT int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *ret)
{
    (void)sensor;
    *ret = 41;
    return status_of(device);
}

EXPORT int nvmlDeviceGetMemoryInfo(void *device, unsigned long long ret[3])
{
    unsigned long long used = (unsigned long long)word("used", index_of(device), 0);

    ret[0] = 80ULL << 30;
    ret[1] = ret[0] - used;
    ret[2] = used + (1ULL << 29); /* with what the driver keeps */
    return status_of(device);
}

#ifdef OLD

EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *ret)
{
    *ret = (unsigned long long)word("slow", index_of(device), 0);
    return status_of(device);
}

#else

EXPORT int nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *ret)
{
    *ret = (unsigned long long)word("slow", index_of(device), 0);
    return status_of(device);
}

struct memory {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

EXPORT int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory *ret)
{
    if (ret->version != (sizeof(*ret) | 2u << 24)) {
        return 25;
    }
    ret->total = 80ULL << 30;
    ret->reserved = 1ULL << 29;
    ret->used = (unsigned long long)word("used", index_of(device), 0);
    ret->free = ret->total - ret->reserved - ret->used;
    return status_of(device);
}

struct field {
    unsigned id, scope;
    long long at, latency;
    int type, status;
    unsigned long long value;
};

EXPORT int nvmlDeviceGetFieldValues(void *device, int count, struct field *fields)
{
    int gpu = index_of(device);

    for (int i = 0; i < count; i++) {
        struct field *f = &fields[i];
        const char *name = f->id == 4     ? "ecc"
                           : f->id == 31  ? "retired"
                           : f->id == 144 ? "pending"
                           : f->id == 145 ? "failed"
                           : f->id == 230 ? "recovery"
                                          : NULL;

        f->status = name == NULL ? 3 : status_of(device);
        f->type = f->id == 4 ? 3 : 1;
        f->value = f->type == 1 ? 0xdead000000000000 : 0; /* of a small one, half is undefined */
        f->value |= name == NULL ? 0 : (unsigned long long)word(name, gpu, 0);
    }
    return 0;
}

struct process {
    unsigned pid;
    unsigned long long bytes;
    unsigned instances[2];
};

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count,
                                                   struct process *processes)
{
    long long pid = word("pid", index_of(device), 0);
    unsigned long long used = (unsigned long long)word("used", index_of(device), 0);
    unsigned all = pid == 0 ? 0 : (unsigned)word("processes", index_of(device), 1);

    if (*count < all) {
        return 7;
    }
    for (*count = 0; *count < all; (*count)++) {
        processes[*count] = (struct process){(unsigned)pid, used / all, {~0u, ~0u}};
    }
    return status_of(device);
}

/* --- errors ----------------------------------------------------------------------------------- */

EXPORT int nvmlEventSetCreate(void **set)
{
    const char *file = getenv("FAKE_NVML");
    char path[512];
    int *fifo = malloc(sizeof(*fifo));

    (void)snprintf(path, sizeof(path), "%s.xid", file == NULL ? "" : file);
    *fifo = open(path, O_RDWR | O_CLOEXEC);
    *set = fifo;
    return 0;
}

EXPORT int nvmlDeviceGetSupportedEventTypes(void *device, unsigned long long *ret)
{
    *ret = 0x1f;
    return status_of(device);
}

EXPORT int nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *set)
{
    (void)set;
    return types == 8 ? status_of(device) : 2;
}

EXPORT int nvmlEventSetFree(void *set)
{
    (void)close(*(int *)set);
    free(set);
    return 0;
}

struct event {
    void *device;
    unsigned long long type, data;
    unsigned instances[2];
};

EXPORT int nvmlEventSetWait_v2(void *set, struct event *ret, unsigned timeout_ms)
{
    int fifo = *(const int *)set;
    struct pollfd p = {.fd = fifo, .events = POLLIN};
    char line[32];
    size_t len = 0;
    unsigned long long number;
    unsigned gpu;

    if (poll(&p, 1, (int)timeout_ms) != 1) {
        return 10;
    }
    while (len < sizeof(line) - 1 && read(fifo, &line[len], 1) == 1 && line[len] != '\n') {
        len++;
    }
    line[len] = '\0';
    if (sscanf(line, "%u %llu", &gpu, &number) != 2 || gpu >= sizeof(gpus)) {
        return 999;
    }
    *ret = (struct event){&gpus[gpu], 8, number, {~0u, ~0u}};
    return 0;
}

#endif
