/*
 * The health of this machine, as far as it can be seen without privileges: its GPUs, its network
 * ports, its memory, and the disk that logs go to. transport/health.c reads it; in a simulated
 * machine nothing can be seen. proto/agent/health.h judges it.
 *
 *     probe = source->open(env, &config)      threads of its own begin to look
 *     ... source->read(probe, &health): what was last seen; never waits ...
 *     source->ask(probe): look again, now
 *     source->close(probe)
 *
 * A driver may hang, and so may a disk. Only the threads of the probe wait for them: `read` says
 * for how long they have been waiting.
 */
#ifndef MU_HEALTH_H
#define MU_HEALTH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MU_HEALTH_GPUS_MAX    16 /* of a node; more are not looked at */
#define MU_HEALTH_HOLDERS_MAX 8  /* processes on one GPU that are named */
#define MU_HEALTH_PORTS_MAX   48 /* ports of network adapters */
#define MU_HEALTH_XIDS_MAX    32 /* the last errors that the driver reported */
#define MU_HEALTH_NAME_MAX    63
#define MU_HEALTH_TEXT_MAX    127

struct mu_env;
struct mu_health_probe;

/* What the driver says is needed before a GPU can be used again. */
enum mu_health_recovery {
    MU_HEALTH_RECOVERY_NONE = 0, /* or unknown, with an older driver */
    MU_HEALTH_RECOVERY_RESET,
    MU_HEALTH_RECOVERY_REBOOT,
    MU_HEALTH_RECOVERY_DRAIN,       /* the GPU works, but should not get new work between GPUs */
    MU_HEALTH_RECOVERY_DRAIN_RESET, /* reset it once nothing runs on it */
    MU_HEALTH_RECOVERY_DOMAIN,      /* the domain of its NVLink fabric needs recovery */
};

/* Why a GPU runs slower than it could: those reasons that are no normal operation. */
enum mu_health_slow {
    MU_HEALTH_SLOW_HARDWARE = 1 << 0, /* too hot, or too little power; not known which */
    MU_HEALTH_SLOW_HOT = 1 << 1,
    MU_HEALTH_SLOW_POWER = 1 << 2, /* a signal of the power supply */
};

struct mu_health_holder {
    int64_t pid;
    uint64_t bytes; /* 0: unknown */
    bool dead;      /* there is no such process any more */
};

struct mu_health_gpu {
    char name[MU_HEALTH_NAME_MAX + 1];
    char uuid[MU_HEALTH_NAME_MAX + 1];
    bool lost;        /* it has fallen off the bus; nothing else is known */
    bool needs_reset; /* every question about it is answered with that */
    enum mu_health_recovery recovery;
    bool has_ecc;                       /* the next is known */
    uint64_t ecc_errors;                /* uncorrected, since the driver was loaded */
    bool retire_pending, remap_pending; /* bad memory is replaced at the next reset */
    bool remap_failed;                  /* bad memory cannot be replaced any more */
    unsigned slow;                      /* enum mu_health_slow */
    uint32_t celsius;                   /* 0: unknown */
    uint64_t memory_bytes, used_bytes;  /* 0: unknown */
    bool has_holders;      /* the next are known: not after looks that nobody asked for */
    uint32_t holder_count; /* may be more than are named */
    struct mu_health_holder holders[MU_HEALTH_HOLDERS_MAX];
};

enum mu_health_gpus {
    MU_HEALTH_GPUS_UNKNOWN = 0, /* the first look is still under way */
    MU_HEALTH_GPUS_NONE,        /* no driver */
    MU_HEALTH_GPUS_SEEN,
    MU_HEALTH_GPUS_FAILED,   /* the driver refuses: `gpu_text` */
    MU_HEALTH_GPUS_MISMATCH, /* its library and its module in the kernel do not fit */
};

/* An error that the driver reported, by NVIDIA's number. */
struct mu_health_xid {
    uint64_t order; /* 1 for the first since the probe was opened */
    uint32_t gpu;
    uint32_t number;
    uint64_t age_ms;
};

struct mu_health_port {
    char name[MU_HEALTH_NAME_MAX + 1]; /* "eth0", or "mlx5_0 port 1" */
    bool infiniband;                   /* also RoCE */
    bool up;
    uint32_t mbits;  /* 0: unknown */
    uint64_t errors; /* of the link and of packets, since it exists */
    uint64_t downs;  /* how often it lost its link */
};

struct mu_health {
    /* Looks that have ended, and the number of the last one that was asked for: when as many have
     * ended, what follows is not older than the question. */
    uint64_t gpu_looks, host_looks;
    uint64_t gpu_asked, host_asked;
    /* How long the look that is under way has taken; 0: none is. */
    uint64_t gpu_busy_ms, host_busy_ms;
    const char *gpu_what, *host_what; /* static: what that look waits for */

    enum mu_health_gpus gpu_state;
    char gpu_text[MU_HEALTH_TEXT_MAX + 1];
    char driver[MU_HEALTH_NAME_MAX + 1]; /* its version */
    uint32_t gpu_count;
    struct mu_health_gpu gpus[MU_HEALTH_GPUS_MAX];
    bool has_xids; /* the driver tells us of errors when they happen */
    uint64_t xid_count;
    struct mu_health_xid xids[MU_HEALTH_XIDS_MAX]; /* in order; those before were dropped */

    uint32_t port_count;
    struct mu_health_port ports[MU_HEALTH_PORTS_MAX];
    uint64_t memory_bytes, available_bytes; /* 0: unknown */
    uint64_t swap_bytes, swap_free_bytes;
    bool has_shm;
    uint64_t shm_bytes, shm_free_bytes;
    uint64_t files_max; /* descriptors that a process may have */
    bool has_clock;
    bool clock_synchronized;
    bool has_disk;
    bool disk_read_only;
    uint64_t disk_bytes, disk_free_bytes; /* for us; 0 of a file system without a size */
    uint64_t disk_files, disk_free_files; /* inodes, likewise */
};

struct mu_health_config {
    const char *root;     /* "", or where tests have a tree of /sys and /proc. Copied */
    const char *log_dir;  /* or NULL. Copied */
    uint32_t interval_ms; /* between two looks; 0: only when asked */
};

struct mu_health_source {
    /** MUSTER_ENOMEM, or a negated errno if there can be no more threads. */
    int (*open)(struct mu_env *env, const struct mu_health_config *config,
                struct mu_health_probe **ret_probe);
    void (*read)(struct mu_health_probe *probe, struct mu_health *ret_health);
    /** A number that changes when what `read` would say has changed, but for times. */
    uint64_t (*version)(struct mu_health_probe *probe);
    /** Looks again: see `gpu_asked`. */
    void (*ask)(struct mu_health_probe *probe);
    /** NULL is fine. Does not wait: a thread that hangs in a driver is left behind. */
    void (*close)(struct mu_health_probe *probe);
};

#endif
