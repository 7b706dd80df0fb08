/*
 * A keyspace's journal in LMDB: one file that is never seen half-written. Each record carries a
 * checksum, so that a damaged file is found at start instead of being served.
 */
#ifndef MU_LMDB_DISK_H
#define MU_LMDB_DISK_H

#include <stddef.h>

#include "core/disk.h"

/**
 * Opens (and makes, if necessary) the data directory and takes its lock. `map_bytes` bounds the
 * file. MUSTER_EBUSY: another process has it; MUSTER_ECORRUPT; MUSTER_EDISK; MUSTER_ENOMEM. The
 * text names the directory and the remedy.
 */
int mu_lmdb_disk_open(const char *dir, size_t map_bytes, struct mu_disk **ret_disk,
                      struct mu_errmsg *reterr_msg);

#endif
