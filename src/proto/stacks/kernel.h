/*
 * Where a thread is in the kernel, in words, from what /proc/PID/task/TID says of it.
 */
#ifndef MU_STACKS_KERNEL_H
#define MU_STACKS_KERNEL_H

#include <stddef.h>

#include "core/span.h"

/**
 * Writes for example "futex (futex_wait_queue)" for the text of `syscall` and that of `wchan`;
 * either may be empty or say nothing ("running", "0"). `out` is terminated. Returns its length; 0:
 * nothing is known, or it runs.
 */
size_t mu_kernel_text(char *out, size_t cap, struct mu_span syscall, struct mu_span wchan);

/* What the stat of a thread says. */
struct mu_kernel_stat {
    char state;
    uint64_t start; /* in ticks since boot */
};

/** Reads the text of `stat`; a name with brackets and spaces does not mislead it. False: it is
 * malformed. */
bool mu_kernel_stat_read(struct mu_span text, struct mu_kernel_stat *ret);

/** The number of a thread in its own namespace, by its `status`: the last one after "NSpid:". 0:
 * there is none. */
uint64_t mu_kernel_inner_tid(struct mu_span status);

#endif
