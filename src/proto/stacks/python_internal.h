/* What the files of the reader share. */
#ifndef MU_STACKS_PYTHON_INTERNAL_H
#define MU_STACKS_PYTHON_INTERNAL_H

#include "proto/stacks/python.h"

/* Each is false if there is no such memory, or no read left. */
bool mu_python_read(struct mu_python *p, uint64_t addr, void *to, size_t len);
bool mu_python_u64(struct mu_python *p, uint64_t addr, uint64_t *ret);
bool mu_python_u32(struct mu_python *p, uint64_t addr, uint32_t *ret);

/* A pointer to an object: not NULL, aligned, and in the half of addresses that processes have. */
static inline bool mu_python_plausible(uint64_t addr)
{
    return addr >= 4096 && addr % 8 == 0 && addr < (uint64_t)1 << 57;
}

/* --- python_text.c ---------------------------------------------------------------------------- */

/**
 * Copies a str as UTF-8 to `to`, at most `cap` bytes; of a longer one the beginning, or the end if
 * `tail`. False: it is not a str.
 */
bool mu_python_str(struct mu_python *p, uint64_t addr, bool tail, uint8_t *to, size_t cap,
                   size_t *ret_len);
/** The line of the instruction at byte `at` of a code object; 0: it has none. False: torn. */
bool mu_python_line(struct mu_python *p, uint64_t code, int64_t at, uint32_t *ret_line);

#endif
