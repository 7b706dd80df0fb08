/*
 * Held keys as payloads of the native wire: how a gateway reads keys that it may answer for, and
 * how the server takes them back. docs/native-wire.md, "Held keys", has the calls.
 *
 *     keys      u32 key count, keys as (u32 length, bytes)
 *     fetch     u32 flags, keys
 *     found     u32 lease in ms, u32 count, and for each key
 *               u8 state, and with MU_FOUND_VALUE (u32 length, bytes)
 *     lease     u32 lease in ms
 */
#ifndef MU_STORE_HOLD_H
#define MU_STORE_HOLD_H

#include <stdbool.h>

#include "core/buf.h"
#include "core/span.h"

#define MU_STORE_METHOD_HOLD  "muster::Store.hold"  /* a stream: its items are keys to give back */
#define MU_STORE_METHOD_FETCH "muster::Store.fetch" /* reads keys, and holds them */
#define MU_STORE_METHOD_RENEW "muster::Store.renew" /* keeps the lease */
#define MU_STORE_METHOD_DROP  "muster::Store.drop"  /* keys that are held no more */

#define MU_STORE_METHOD_LEND "muster::Store.lend" /* from now on others may hold them, too */

/* Flags of a fetch. */
#define MU_FETCH_WAIT    1u /* answered once every key has existed */
#define MU_FETCH_IN_TURN 2u /* of those that wait, a push ends one, first come, first served */
#define MU_FETCH_FLAGS   3u

/* The state of a key. */
#define MU_FOUND_VALUE  1u /* its value follows */
#define MU_FOUND_QUEUE  2u /* its queue has elements */
#define MU_FOUND_HELD   4u /* the caller may answer for it until it is asked to give it back */
#define MU_FOUND_LARGE  8u /* it has a value, which is too large to be sent along */
#define MU_FOUND_STATES 15u

/* Keys that one call may name. */
#define MU_HOLD_KEYS_MAX ((size_t)16384)
/* A larger value is not sent along with a fetch. */
#define MU_HOLD_VALUE_MAX ((size_t)1 << 20)
/* Values that are sent along with one fetch; the others have to be got by themselves. */
#define MU_FOUND_BYTES_MAX ((size_t)8 << 20)

struct mu_found {
    uint32_t state;
    struct mu_span value;
};

/** Each appends. MUSTER_ELIMIT (the buffer's maximum), MUSTER_ENOMEM. */
int mu_hold_keys_encode(struct mu_buf *out, const struct mu_span *keys, size_t count);
int mu_fetch_encode(struct mu_buf *out, uint32_t flags, const struct mu_span *keys, size_t count);
int mu_found_encode(struct mu_buf *out, uint32_t lease_ms, const struct mu_found *found,
                    size_t count);
int mu_hold_lease_encode(struct mu_buf *out, uint32_t lease_ms);

/*
 * Decoders: counts are checked against the input's length and MU_HOLD_KEYS_MAX before anything is
 * allocated. The caller frees `*ret_keys` and `*ret_found` with mu_free(); they point into `in`.
 * MUSTER_EPROTO, MUSTER_ELIMIT, MUSTER_ENOMEM.
 */
int mu_hold_keys_decode(struct mu_span in, struct mu_span **ret_keys, size_t *ret_count);
int mu_fetch_decode(struct mu_span in, uint32_t *ret_flags, struct mu_span **ret_keys,
                    size_t *ret_count);
int mu_found_decode(struct mu_span in, uint32_t *ret_lease_ms, struct mu_found **ret_found,
                    size_t *ret_count);
int mu_hold_lease_decode(struct mu_span in, uint32_t *ret_lease_ms);

#endif
