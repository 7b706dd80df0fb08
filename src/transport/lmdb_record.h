/*
 * What lmdb_disk.c keeps, as bytes. A record is kept under its number, as u8 op, u32 key length,
 * key, value, u64 XXH64 of all that with the number as the seed. Under number 0 is the head:
 * "MUSTERKS", u32 format, u32 zero, u64 revision, u64 number of the transaction that wrote it, u64
 * XXH64. Integers are little-endian. Each transaction writes the head, so a head that is not of the
 * newest transaction shows that LMDB has fallen back to an older state.
 */
#ifndef MU_LMDB_RECORD_H
#define MU_LMDB_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/span.h"

#define MU_LMDB_FORMAT      1u
#define MU_LMDB_HEAD_NUMBER UINT64_C(0)
#define MU_LMDB_HEAD_BYTES  40u

/* One operation of a piece of journal, or one record. The spans point into what was read. */
struct mu_lmdb_change {
    uint64_t number;
    size_t at; /* its place in the piece */
    uint8_t op;
    struct mu_span key;
    struct mu_span value;
};

/* The operations of a journal, as in proto/store/keyspace.h. */
enum {
    MU_LMDB_PUT = 1,
    MU_LMDB_QUEUE = 2,
    MU_LMDB_DELETE = 3,
};

/** Writes MU_LMDB_HEAD_BYTES bytes. */
void mu_lmdb_head_put(uint8_t *p, uint64_t revision, uint64_t txn);
/** False if these bytes are not a head. */
bool mu_lmdb_head_get(struct mu_span s, uint32_t *ret_format, uint64_t *ret_revision,
                      uint64_t *ret_txn);

size_t mu_lmdb_record_len(const struct mu_lmdb_change *c);
/** Writes mu_lmdb_record_len() bytes. */
void mu_lmdb_record_put(uint8_t *p, const struct mu_lmdb_change *c);
/** NULL, or what is wrong with it. */
const char *mu_lmdb_record_get(uint64_t number, struct mu_span s, struct mu_lmdb_change *ret);

/**
 * Takes a piece of journal apart, in ascending order of numbers, with only the last change of each.
 * The caller frees the array with mu_free(). MUSTER_EINVAL: it is malformed; MUSTER_ENOMEM.
 */
int mu_lmdb_journal_sort(struct mu_span journal, struct mu_lmdb_change **ret_changes,
                         size_t *ret_count);

#endif
