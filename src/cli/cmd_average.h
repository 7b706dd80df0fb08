/*
 * What the files of `muster average` share.
 *
 *     cmd_average.c      one step with the tensors of a file
 *     average_watch.c    --watch: who looks for a group
 */
#ifndef MU_CMD_AVERAGE_H
#define MU_CMD_AVERAGE_H

#include <stdbool.h>
#include <stdint.h>

#define AVERAGE_BITS_MAX 6 /* --bits: that many buckets are read at a time, as a power of two */

struct average_watch {
    const char *prefix;
    const char *bootstrap;
    const char *identity;
    bool native;
    bool json;
    uint64_t bits;
    double timeout; /* 0: until it is interrupted */
};

/** Prints who looks for a group under the prefix, whenever that has changed. Returns an exit code.
 */
int average_watch(const struct average_watch *o);

#endif
