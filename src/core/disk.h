/*
 * A disk that keeps a keyspace's journal. Its calls block; the store server makes them on a worker
 * thread, one at a time. transport/lmdb_disk.c keeps it in LMDB, sim/ in memory with crashes.
 */
#ifndef MU_DISK_H
#define MU_DISK_H

#include "core/err.h"
#include "core/span.h"

struct mu_disk;

/** Gets one record; an error ends the loading. The spans are valid during the call. */
typedef int mu_disk_each(void *context, uint8_t op, uint64_t number, struct mu_span key,
                         struct mu_span value);

struct mu_disk_ops {
    /**
     * Hands every record to `each`, in ascending order of number, then returns the revision that
     * was last committed. Stops at the first error `each` returns. MUSTER_ECORRUPT, MUSTER_EDISK.
     */
    int (*load)(struct mu_disk *disk, mu_disk_each *each, void *context, uint64_t *ret_revision,
                struct mu_errmsg *reterr_msg);
    /**
     * Makes a piece of journal (proto/store/keyspace.h) durable, all of it or nothing: when it
     * returns 0 it survives a crash and a power cut. MUSTER_EFULL: nothing was written, for lack of
     * room; try again later. MUSTER_EDISK (or MUSTER_ENOMEM): nothing was written, and the disk
     * must not be used any more.
     */
    int (*commit)(struct mu_disk *disk, struct mu_span journal, uint64_t revision,
                  struct mu_errmsg *reterr_msg);
    void (*close)(struct mu_disk *disk);
};

struct mu_disk {
    const struct mu_disk_ops *ops;
};

#endif
