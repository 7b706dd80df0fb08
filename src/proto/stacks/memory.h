/*
 * Bytes that belong to another process: its memory by address, or a file by offset. Whoever reads
 * through this believes nothing: what it gets may be garbage, and may change from one read to the
 * next.
 */
#ifndef MU_STACKS_MEMORY_H
#define MU_STACKS_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct mu_memory {
    /** Copies `len` bytes; false: not all of them are there. */
    bool (*read)(void *context, uint64_t addr, void *to, size_t len);
    void *context;
};

static inline bool mu_memory_read(const struct mu_memory *m, uint64_t addr, void *to, size_t len)
{
    return addr <= UINT64_MAX - len && m->read(m->context, addr, to, len);
}

#endif
