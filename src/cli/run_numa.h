/*
 * --numa-binding: on which CPUs each worker of a node runs, as PyTorch 2.11 decides it
 * (torch/numa/binding.py). The worker with local rank N is placed by GPU N:
 *
 *     node           all CPUs of the GPU's NUMA node
 *     socket         all CPUs of the NUMA nodes that are in the same socket
 *     exclusive      the physical cores of the NUMA node, divided among its GPUs; the first GPUs
 *                    get one core more where the division leaves a rest
 *     core-complex   the cores of the NUMA node that share one last-level cache; the caches with
 *                    most CPUs come first, and each GPU takes the next one
 *
 * In all of them only CPUs count on which this process may run. All facts are read from files of
 * the kernel and of NVIDIA's driver below `root`, which is "" except in tests.
 *
 *     err = run_numa_open(&n, "", visible, &allowed, &msg);       which GPUs there are, and where
 *     err = run_numa_choose(&n, RUN_NUMA_NODE, local_rank, &cpus, &msg);
 */
#ifndef MU_RUN_NUMA_H
#define MU_RUN_NUMA_H

#include "core/child.h"
#include "core/err.h"

#define RUN_GPUS_MAX      64
#define RUN_NUMA_PATH_CAP 512

/* The order of the words behind --numa-binding. */
enum run_numa_mode {
    RUN_NUMA_NODE = 0,
    RUN_NUMA_SOCKET,
    RUN_NUMA_EXCLUSIVE,
    RUN_NUMA_CORE_COMPLEX,
};

/* These words, up to a NULL. */
extern const char *const run_numa_modes[];

struct run_numa {
    const char *root; /* borrowed */
    struct mu_cpus allowed;
    uint32_t gpus;               /* visible ones */
    uint32_t node[RUN_GPUS_MAX]; /* NUMA node of each */
};

/**
 * Finds the GPUs as CUDA numbers them: those of NVIDIA's driver in the order of their PCI
 * addresses, of which `visible` (the value of CUDA_VISIBLE_DEVICES, or NULL: all) names some by
 * number or by the beginning of their UUID. MUSTER_ENOENT, with a text: there are no GPUs, or their
 * places are not known; MUSTER_EINVAL: `visible` names one that is not there.
 */
int run_numa_open(struct run_numa *n, const char *root, const char *visible,
                  const struct mu_cpus *allowed, struct mu_errmsg *reterr_msg);
/** Chooses the CPUs of a worker; never none. MUSTER_EINVAL: there is no GPU of that number, or no
 * CPU for it; MUSTER_ENOENT: the kernel does not say how its CPUs lie. All with a text. */
int run_numa_choose(const struct run_numa *n, enum run_numa_mode mode, uint32_t gpu,
                    struct mu_cpus *ret_cpus, struct mu_errmsg *reterr_msg);

/** The CPUs on which this process may run. */
struct mu_cpus run_numa_allowed(void);
/** Reads a list as the kernel writes it ("0-2,4,6-7"). False: it is not such a list, or names a CPU
 * beyond MU_CPUS_MAX. */
bool run_cpus_parse(const char *text, struct mu_cpus *ret);

#endif
