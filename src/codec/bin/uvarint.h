/*
 * Unsigned LEB128, as in multiformats: seven bits to a byte, the least significant first, at most
 * nine bytes, and only in the shortest form.
 */
#ifndef MU_UVARINT_H
#define MU_UVARINT_H

#include <muster/error.h>

#include "core/buf.h"
#include "core/span.h"

#define MU_UVARINT_LEN_MAX 9
#define MU_UVARINT_MAX     (UINT64_MAX >> 1)

/** 0; MUSTER_EAGAIN: more bytes are needed; MUSTER_EPROTO: too long, or not the shortest form. */
static inline int mu_uvarint_get(struct mu_span in, size_t *ret_len, uint64_t *ret_value)
{
    uint64_t value = 0;

    for (size_t i = 0; i < MU_UVARINT_LEN_MAX; i++) {
        if (i == in.len) {
            return MUSTER_EAGAIN;
        }
        value |= (uint64_t)(in.data[i] & 0x7f) << (7 * i);
        if ((in.data[i] & 0x80) == 0) {
            if (i > 0 && in.data[i] == 0) {
                return MUSTER_EPROTO;
            }
            *ret_len = i + 1;
            *ret_value = value;
            return 0;
        }
    }
    return MUSTER_EPROTO;
}

/** Writes at most ten bytes (protobuf's; nine for values up to MU_UVARINT_MAX); returns how many.
 */
static inline size_t mu_uvarint_put(uint8_t *to, uint64_t value)
{
    size_t n = 0;

    for (; value >= 0x80; value >>= 7) {
        to[n++] = (uint8_t)(value | 0x80);
    }
    to[n++] = (uint8_t)value;
    return n;
}

static inline size_t mu_uvarint_len(uint64_t value)
{
    size_t n = 1;

    for (; value >= 0x80; value >>= 7) {
        n++;
    }
    return n;
}

/** Appends it. MUSTER_ELIMIT, MUSTER_ENOMEM. */
static inline int mu_uvarint_append(struct mu_buf *out, uint64_t value)
{
    uint8_t bytes[10];

    return mu_buf_append(out, mu_span(bytes, mu_uvarint_put(bytes, value)));
}

#endif
