/*
 * What a service may ask of the file system by path while it is being configured. Each call may
 * wait for the disk. transport/paths.c has the real one; a simulated machine has no file system.
 */
#ifndef MU_PATHS_H
#define MU_PATHS_H

#include <stddef.h>

struct mu_file_log;

struct mu_paths {
    /** Reads a small file: at most `cap` bytes of its beginning. A negated errno. */
    int (*read)(const char *path, char *buf, size_t cap, size_t *ret_len);
    /** Writes the names in a directory, each with a zero behind it, in no order; those that do not
     * fit are left out. A negated errno. NULL: it cannot list. */
    int (*list)(const char *path, char *buf, size_t cap, size_t *ret_len);
    /** Makes an empty file under a new, random name, and writes its absolute path into `buf`. A
     * negated errno; MUSTER_ELIMIT: it does not fit. */
    int (*create)(char *buf, size_t cap);
    /** Writes the path as an absolute one. Errors as `create`. */
    int (*absolute)(const char *path, char *buf, size_t cap);
    /** Opens a file for several processes (core/file_log.h). MUSTER_ENOMEM. */
    int (*open_log)(const char *path, struct mu_file_log **ret_log);
};

#endif
