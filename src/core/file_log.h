/*
 * A file that several processes append to and read under its lock. Its calls block; a store makes
 * them on a worker thread, one at a time. transport/file_log.c has the real one, tests have a file
 * in memory. Every error has a text: the path, what is wrong, what to do.
 */
#ifndef MU_FILE_LOG_H
#define MU_FILE_LOG_H

#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"
#include "core/span.h"

struct mu_file_log;

struct mu_file_log_state {
    bool exists;   /* the path names a file */
    bool replaced; /* it is not the file of the last call: what was read is no longer valid */
    uint64_t size;
};

struct mu_file_log_ops {
    /**
     * Looks at what the path names now, cheaply and without the lock; opens it if it is not the
     * file that is open, and with `create` makes it. MUSTER_EDISK.
     */
    int (*look)(struct mu_file_log *log, bool create, struct mu_file_log_state *ret_state,
                struct mu_errmsg *reterr_msg);
    /**
     * Takes the lock of the open file. MUSTER_EAGAIN, without a text: another process has held it
     * for a while, or the path names another file by now; look again. MUSTER_EDISK.
     */
    int (*lock)(struct mu_file_log *log, bool exclusive, uint64_t *ret_size,
                struct mu_errmsg *reterr_msg);
    void (*unlock)(struct mu_file_log *log);
    /** Under the lock: reads up to `cap` bytes from `offset`; 0 bytes at the end. MUSTER_EDISK. */
    int (*read)(struct mu_file_log *log, uint64_t offset, uint8_t *buf, size_t cap, size_t *ret_len,
                struct mu_errmsg *reterr_msg);
    /**
     * Under the exclusive lock: cuts the file off at `size` and appends `data`. MUSTER_EDISK: the
     * file now ends at `size`, if that could still be done.
     */
    int (*append)(struct mu_file_log *log, uint64_t size, struct mu_span data,
                  struct mu_errmsg *reterr_msg);
    /** Under the lock: removes the file. MUSTER_EDISK. */
    int (*remove)(struct mu_file_log *log, struct mu_errmsg *reterr_msg);
    void (*close)(struct mu_file_log *log);
};

struct mu_file_log {
    const struct mu_file_log_ops *ops;
};

#endif
