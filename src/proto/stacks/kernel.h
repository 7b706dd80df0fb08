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
    uint64_t cpu_ns;       /* that it used, with the children that it has waited for */
    uint64_t start;        /* in ticks since boot */
    uint64_t memory_bytes; /* resident, or less where pages are larger than 4 KiB */
};

/** Reads the text of `stat`; a name with brackets and spaces does not mislead it. False: it is
 * malformed. */
bool mu_kernel_stat_read(struct mu_span text, struct mu_kernel_stat *ret);

/** The number of a thread in its own namespace, by its `status`: the last one after "NSpid:". 0:
 * there is none. */
uint64_t mu_kernel_inner_tid(struct mu_span status);

/* What the counters of a process and of the machine say; each reads one text of /proc. What is not
 * there counts as 0. */

/** `io`: the bytes that it has read and written, by calls or from the disk. */
uint64_t mu_kernel_io_bytes(struct mu_span io);
/** `status`: whether a debugger has it. */
bool mu_kernel_is_traced(struct mu_span status);
/** `wchan`: whether its control group is frozen. */
bool mu_kernel_is_frozen(struct mu_span wchan);
/** `task/TID/children`: takes the next process off. False: there are no more. */
bool mu_kernel_child_next(struct mu_span *children, int64_t *ret_pid);
/** `schedstat`: for how long the main thread could have run, and had no CPU. */
uint64_t mu_kernel_delay_ns(struct mu_span schedstat);
/** `diskstats`: the bytes that all disks have read and written. Disks that stand on others count
 * more than once: only whether the sum grows is of use. */
uint64_t mu_kernel_disk_bytes(struct mu_span diskstats);
/** `net/dev`: the bytes that all links but loopback have received and sent. */
uint64_t mu_kernel_net_bytes(struct mu_span dev);

#endif
