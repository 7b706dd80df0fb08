/*
 * How much memory this process may have: what its control groups and those above them allow, or
 * what the machine has, whichever is less. Both versions of control groups are supported, and the
 * views that containers have of them.
 */
#ifndef MU_MEMORY_LIMIT_H
#define MU_MEMORY_LIMIT_H

#include <stdint.h>

/** In bytes; UINT64_MAX if it is unknown. */
uint64_t mu_memory_limit(void);

/** The limit of the control groups, with `root` as the system's root; UINT64_MAX: no limit. */
uint64_t mu_memory_limit_of(const char *root);

#endif
