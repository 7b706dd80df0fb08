/*
 * The records of PyTorch's FileStore: a log that only grows, in which the last record of a key
 * wins.
 *
 *     u32 key length, key, u32 value length, value          little-endian
 *
 * A user's key has a '/' before it; a record whose key is '-' and another key deletes that key. The
 * format has no magic, no checksum and no end of a record, so the reader relies on bounds: what no
 * FileStore would write is MUSTER_ECORRUPT, and what merely ends too early may be continued.
 */
#ifndef MU_FILE_RECORD_H
#define MU_FILE_RECORD_H

#include <stdbool.h>
#include <stddef.h>

#include "core/buf.h"
#include "core/span.h"

/* PyTorch has no limits; longer ones count as damage. */
#define MU_FILE_KEY_MAX   (1u << 20)
#define MU_FILE_VALUE_MAX (1u << 30)

#define MU_FILE_USER_PREFIX '/'
/* PyTorch's own counters, in decimal: users that closed the store, and (2.x) that have it open. */
#define MU_FILE_CLEANUP_KEY  "cleanup/"
#define MU_FILE_REFCOUNT_KEY "refcount/"

struct mu_file_record {
    struct mu_span key; /* without the '-' of a deletion */
    struct mu_span value;
    bool deletion;
};

/** How many bytes a record takes. */
size_t mu_file_record_size(const struct mu_file_record *record);
/** Appends it. MUSTER_ELIMIT for a key or value past the limits above, or a full buffer;
 * MUSTER_ENOMEM. */
int mu_file_record_encode(struct mu_buf *out, const struct mu_file_record *record);
/**
 * Reads the record at the start of `in`; its spans point into `in`. `*ret_used` is its size.
 * MUSTER_EAGAIN: it is cut off, valid so far, and needs at least `*ret_needed` bytes.
 * MUSTER_ECORRUPT: no FileStore writes this.
 */
int mu_file_record_decode(struct mu_span in, struct mu_file_record *ret_record, size_t *ret_used,
                          size_t *ret_needed);

#endif
