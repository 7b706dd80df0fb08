/*
 * The store's operations as payloads of the native wire. Methods are "muster::Store.<verb>"; one
 * layout serves all verbs.
 *
 *     request   u32 flags, i64 number, u64 lease,
 *               u32 key count, keys as (u32 length, bytes), u32 value count, values likewise
 *     reply     i64 number, u32 value count, values as (u32 length, bytes)
 *     change    u8 kind, u64 revision, u32 length and key, u32 length and value,
 *               and after it, if the watch asked for it, u32 length and old value
 *
 * A change is an item of the call "muster::Store.watch".
 */
#ifndef MU_STORE_MSG_H
#define MU_STORE_MSG_H

#include <stdbool.h>

#include "core/buf.h"
#include "codec/store/op.h"

/** Appends. MUSTER_ELIMIT (a part over 4 GiB, the buffer's maximum), MUSTER_ENOMEM. */
int mu_store_request_encode(struct mu_buf *out, const struct mu_store_request *request);
int mu_store_reply_encode(struct mu_buf *out, const struct mu_store_reply *reply);
int mu_store_change_encode(struct mu_buf *out, const struct mu_change *change, bool with_old);

/*
 * Decoders. Each count is checked against `parts_max` and against the input's length before
 * anything is allocated; `ret_parts` is the array that keys and values point into, which the caller
 * frees with mu_free() (it may be NULL). The bytes point into `in`. MUSTER_EPROTO, MUSTER_ELIMIT,
 * MUSTER_ENOMEM. They also check that the verb got as many keys and values as it takes.
 */
int mu_store_request_decode(struct mu_span in, enum mu_store_verb verb, size_t parts_max,
                            struct mu_store_request *ret, struct mu_span **ret_parts);
int mu_store_reply_decode(struct mu_span in, size_t parts_max, struct mu_store_reply *ret,
                          struct mu_span **ret_parts);
/** old_value.data is NULL if the wire had no old value. */
int mu_store_change_decode(struct mu_span in, struct mu_change *ret);

#endif
