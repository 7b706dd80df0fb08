/*
 * How much memory this process may have: what its control groups and those above them allow, or
 * what the machine has, whichever is less; and whether the kernel has killed processes for lack of
 * it. Both versions of control groups are supported, and the views that containers have of them.
 */
#ifndef MU_MEMORY_LIMIT_H
#define MU_MEMORY_LIMIT_H

#include <stdbool.h>
#include <stdint.h>

/** In bytes; UINT64_MAX if it is unknown. */
uint64_t mu_memory_limit(void);

/** The limit of the control groups, with `root` as the system's root; UINT64_MAX: no limit. */
uint64_t mu_memory_limit_of(const char *root);

/** What the machine has, in bytes; UINT64_MAX if it is unknown. */
uint64_t mu_memory_machine(void);

struct mu_memory_groups {
    uint64_t limit; /* the lowest; UINT64_MAX: no limit */
    uint64_t kills; /* how many processes of this group, and of groups in it, the kernel has killed
                       for lack of memory; 0 also where it does not say */
    char dir[4096]; /* of the group with that limit; cut if it is longer */
};

/** Reads the control groups of this process, with `root` as the system's root. */
void mu_memory_groups(const char *root, struct mu_memory_groups *ret);

/**
 * Whether the kernel's log (/dev/kmsg) says that it killed that process for lack of memory. Not
 * every user may read the log, and in a container the process has another number there.
 */
bool mu_memory_killed(const char *log, int64_t pid);

#endif
