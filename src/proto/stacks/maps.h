/*
 * Reads /proc/PID/maps in pieces, and finds where an interpreter may be: the first libpython, and
 * the executable. A stream machine: feed it all of the file, then look at the results.
 *
 * A path with a newline is escaped by the kernel, so a line is a mapping. A line that is too long
 * is skipped.
 */
#ifndef MU_STACKS_MAPS_H
#define MU_STACKS_MAPS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/span.h"

#define MU_MAPS_PATH_MAX 4095
#define MU_MAPS_LINE_MAX (MU_MAPS_PATH_MAX + 128)

/* A file of which the beginning is mapped. */
struct mu_maps_file {
    bool found;
    uint64_t start; /* where its byte at offset 0 is */
    char path[MU_MAPS_PATH_MAX + 1];
};

struct mu_maps {
    char exe[MU_MAPS_PATH_MAX + 1];
    struct mu_maps_file program;
    struct mu_maps_file library; /* libpython3.11.so.1.0, or python3.11 if a loader was started */
    char line[MU_MAPS_LINE_MAX];
    size_t len;
    bool skip; /* the rest of a line that was too long */
};

/** `exe` is what /proc/PID/exe says; a longer one is as if there were none. */
void mu_maps_init(struct mu_maps *m, struct mu_span exe);
void mu_maps_feed(struct mu_maps *m, struct mu_span in);

/** The version in a name like /usr/lib/libpython3.9.so.1.0 or python3.9, as 0x03090000; or 0. */
uint32_t mu_maps_version(const char *path);

#endif
