/*
 * Base64 as Python's b64encode() writes it: the standard alphabet, padded, on one line. The decoder
 * is strict: no byte outside the alphabet, no missing padding, no bits set after the last byte. So
 * each value has exactly one text, and two texts are equal if and only if the values are.
 */
#ifndef MU_BASE64_H
#define MU_BASE64_H

#include "core/buf.h"
#include "core/span.h"

/** Appends the text of `in`. MUSTER_ELIMIT, MUSTER_ENOMEM; nothing appended. */
int mu_base64_encode(struct mu_buf *out, struct mu_span in);
/** Appends the value of `in`. MUSTER_ECORRUPT, MUSTER_ELIMIT, MUSTER_ENOMEM; nothing appended. */
int mu_base64_decode(struct mu_buf *out, struct mu_span in);

/** The most bytes that a text of this length decodes to: to refuse it before it is decoded. */
static inline size_t mu_base64_decoded_max(size_t text_len)
{
    return text_len / 4 * 3;
}

#endif
