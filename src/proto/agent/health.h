/*
 * Judges the health of a machine (core/health.h): what is wrong with it, what to do about that, and
 * whether workers can run there all the same. A pure function of what was seen.
 *
 * A FAULT keeps a node out of a run. It is one that a driver or a port states plainly, and with
 * which workers cannot run for long:
 *  - a GPU is lost, or needs a reset or a reboot, by its driver's own word;
 *  - its bad memory cannot be replaced any more: NVIDIA exchanges such a GPU;
 *  - a process that is gone still holds its memory: workers would not find the room that they need;
 *  - the driver does not answer, or does not fit the kernel: CUDA would do the same;
 *  - an InfiniBand or RoCE port is down that was up when the agent began. One that was never up may
 *    have no cable.
 * All else is a WARNing: it may slow workers down or make them fail, but often does neither.
 */
#ifndef MU_AGENT_HEALTH_H
#define MU_AGENT_HEALTH_H

#include "core/health.h"

#define MU_HEALTH_FINDINGS_MAX 48
#define MU_HEALTH_ECC_NEW      1    /* uncorrected errors since the agent began */
#define MU_HEALTH_ERRORS_NEW   1000 /* of a port, likewise: single ones are normal */
#define MU_HEALTH_USED_BYTES   (UINT64_C(256) << 20) /* on a GPU, of others: less is a display */
#define MU_HEALTH_SHM_LEAST    (UINT64_C(16) << 20)  /* a data loader's batch does not fit in */
#define MU_HEALTH_DISK_LEAST   (UINT64_C(1) << 20)   /* logs cannot be written any more */
#define MU_HEALTH_DISK_LITTLE  (UINT64_C(1) << 30)   /* and this is soon so, if it is under 5 % */
#define MU_HEALTH_FILES_LEAST  1024
#define MU_HEALTH_SILENT_MS    10000 /* a driver that hangs: it starts within 2 s */

enum mu_health_level {
    MU_HEALTH_NOTE = 1, /* worth knowing */
    MU_HEALTH_WARN,
    MU_HEALTH_FAULT,
};

enum mu_health_kind {
    MU_HEALTH_DRIVER_SILENT = 1,
    MU_HEALTH_DRIVER_MISMATCH,
    MU_HEALTH_DRIVER_FAILED,
    MU_HEALTH_GPU_LOST,
    MU_HEALTH_GPU_RECOVERY,
    MU_HEALTH_GPU_WORN,    /* its bad memory cannot be replaced */
    MU_HEALTH_GPU_PENDING, /* it is replaced at the next reset */
    MU_HEALTH_GPU_ECC,
    MU_HEALTH_GPU_SLOW,
    MU_HEALTH_GPU_HELD, /* by the dead */
    MU_HEALTH_GPU_USED, /* by others */
    MU_HEALTH_PORT_DOWN,
    MU_HEALTH_PORT_ERRORS,
    MU_HEALTH_MEMORY,
    MU_HEALTH_SHM,
    MU_HEALTH_DISK,
    MU_HEALTH_FILES,
    MU_HEALTH_CLOCK,
    MU_HEALTH_HOST_SILENT,
    MU_HEALTH_XID, /* not of the judge's: one that has happened */
};

struct mu_health_finding {
    enum mu_health_level level;
    enum mu_health_kind kind;
    int gpu; /* -1: it is about something else */
    char subject[MU_HEALTH_NAME_MAX + 1];
    char text[200];   /* one sentence, without a full stop */
    char remedy[200]; /* what to do; perhaps "" */
};

struct mu_health_findings {
    size_t count;
    struct mu_health_finding items[MU_HEALTH_FINDINGS_MAX]; /* the rest is left out */
};

/**
 * Judges what was seen. `first` is what was seen when the agent began, or NULL: only what has
 * changed since then is news. `gpus` has a bit for each GPU that matters.
 */
void mu_health_judge(const struct mu_health *now, const struct mu_health *first, uint32_t gpus,
                     struct mu_health_findings *ret);
/** The worst of them; NULL: there are none. */
const struct mu_health_finding *mu_health_worst(const struct mu_health_findings *f);
/** "fault", "warning", "note" */
const char *mu_health_level_name(enum mu_health_level level);
/** A name of the kind for programs, as "gpu_lost". */
const char *mu_health_kind_name(enum mu_health_kind kind);
/** What NVIDIA calls an error; NULL: it is none of the known ones. */
const char *mu_health_xid_name(uint32_t number);

/**
 * The GPU that a worker has, if CUDA_VISIBLE_DEVICES (NULL: it is not set) is plain: a list of
 * numbers or of GPU-... names, and all GPUs are alike, so that CUDA counts them as the driver does.
 * -1: it cannot be told.
 */
int mu_health_gpu_of(const struct mu_health *h, const char *visible, uint32_t local_rank);
/** A bit for each GPU that workers may use; all bits if it cannot be told. */
uint32_t mu_health_gpus_of(const struct mu_health *h, const char *visible);

#endif
