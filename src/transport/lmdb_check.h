/*
 * Checks an LMDB file before LMDB opens it. LMDB trusts its file: a damaged one makes it read
 * outside of the file, or call abort(). This walks both trees (records and free pages) of the
 * newest snapshot with plain reads and says what is wrong with them: every page is where it should
 * be, of the right kind, in use once, and the keys are in order. The values are not checked, except
 * for the head: it must be of the transaction that the file says is its last, so that LMDB does not
 * fall back unnoticed to the one before.
 *
 * It knows format version 1 of LMDB 0.9 with 8-byte integer keys, as lmdb_disk.c writes it.
 */
#ifndef MU_LMDB_CHECK_H
#define MU_LMDB_CHECK_H

#include "core/err.h"

/** MUSTER_ECORRUPT, MUSTER_EDISK (it cannot be read) or MUSTER_ENOMEM, with the reason. */
int mu_lmdb_check(int fd, struct mu_errmsg *reterr_msg);

#endif
