/*
 * What the files of the health probe share:
 *
 *     health.c        the threads, and what they have seen
 *     health_gpu.c    GPUs, through NVIDIA's library
 *     health_host.c   the rest: /sys, /proc, file systems
 */
#ifndef MU_HEALTH_INTERNAL_H
#define MU_HEALTH_INTERNAL_H

#include "core/health.h"

struct mu_nvml;

/** What a thread waits for, for those who wait for the thread; static. */
typedef void mu_health_says(void *context, const char *what);

/* health_gpu.c. All calls may hang. */
/** Loads the library, for good, and starts it; NULL: `gpu_state` and `gpu_text` say why. */
struct mu_nvml *mu_nvml_open(struct mu_health *ret_health, mu_health_says *says, void *context);
/** NULL is fine. No thread may be in it. */
void mu_nvml_close(struct mu_nvml *nvml);
/** Looks at all GPUs; `holders`: also at the processes on them. */
void mu_nvml_look(struct mu_nvml *nvml, bool holders, struct mu_health *ret_health);
/** Whether the library can tell of errors. */
bool mu_nvml_listen(struct mu_nvml *nvml);
/** Waits for an error of a GPU. 0; -EAGAIN: there was none in that time; -EIO: it cannot wait. */
int mu_nvml_await(struct mu_nvml *nvml, uint32_t timeout_ms, uint32_t *ret_gpu, uint32_t *ret_xid);

/* health_host.c */
void mu_health_host_look(const char *root, const char *log_dir, mu_health_says *says, void *context,
                         struct mu_health *ret_health);

#endif
