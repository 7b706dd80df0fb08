/*
 * The memory of a process as a file: what the reader of stacks looked at, in blocks, recorded by
 * tests/interop/stacks_record.c. Integers are little-endian.
 *
 *     the address of _PyRuntime  8 bytes
 *     the version                4 bytes, as in Py_Version
 *     how many threads           4 bytes, then the number of each, 8 bytes
 *     blocks until the end       an address of 8 bytes, then IMAGE_BLOCK bytes
 */
#ifndef MU_TEST_STACKS_IMAGE_H
#define MU_TEST_STACKS_IMAGE_H

#include <string.h>

#include "core/reader.h"
#include "proto/stacks/memory.h"

#define IMAGE_BLOCK   64u
#define IMAGE_THREADS 8u

struct stacks_image {
    uint64_t runtime;
    uint32_t version;
    uint64_t tids[IMAGE_THREADS];
    size_t tid_count;
    struct mu_span blocks;
};

static inline bool image_open(struct stacks_image *image, struct mu_span file)
{
    struct mu_reader r = mu_reader(file);

    image->runtime = mu_read_u64(&r);
    image->version = mu_read_u32(&r);
    image->tid_count = mu_read_u32(&r);
    if (r.failed || image->tid_count > IMAGE_THREADS) {
        return false;
    }
    for (size_t i = 0; i < image->tid_count; i++) {
        image->tids[i] = mu_read_u64(&r);
    }
    image->blocks = r.rest;
    return !r.failed;
}

static inline const uint8_t *image_block(const struct stacks_image *image, uint64_t addr)
{
    struct mu_span rest = image->blocks;

    for (; rest.len >= 8 + IMAGE_BLOCK; rest = mu_span_skip(rest, 8 + IMAGE_BLOCK)) {
        if (mu_get_u64(rest.data) == addr) {
            return rest.data + 8;
        }
    }
    return NULL;
}

/* A struct mu_memory's read. */
static inline bool image_read(void *context, uint64_t addr, void *to, size_t len)
{
    uint8_t *out = to;

    while (len != 0) {
        const uint8_t *block = image_block(context, addr & ~(uint64_t)(IMAGE_BLOCK - 1));
        size_t skip = (size_t)(addr % IMAGE_BLOCK);
        size_t n = IMAGE_BLOCK - skip < len ? IMAGE_BLOCK - skip : len;

        if (block == NULL) {
            return false;
        }
        memcpy(out, block + skip, n);
        out += n;
        addr += n;
        len -= n;
    }
    return true;
}

#endif
