/*
 * How much memory this process may have: what its control groups allow, those above them included,
 * or what the machine has, whichever is less. Both versions of control groups are known, and the
 * views that containers have of them.
 */
#ifndef MU_MEMORY_LIMIT_H
#define MU_MEMORY_LIMIT_H

#include <stdint.h>

/** In bytes; UINT64_MAX if it cannot be told. */
uint64_t mu_memory_limit(void);

/** What the control groups say, with this in place of the system's root; UINT64_MAX: nothing. */
uint64_t mu_memory_limit_of(const char *root);

#endif
