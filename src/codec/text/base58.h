/*
 * Base58 as Bitcoin and libp2p write it. The work grows with the square of the length, so lengths
 * are bounded: here it is used for peer ids of some forty bytes.
 */
#ifndef MU_BASE58_H
#define MU_BASE58_H

#include "core/span.h"

#define MU_BASE58_BYTES_MAX 64
#define MU_BASE58_TEXT_MAX  90 /* of that many bytes, without a terminator */

/** Writes the terminated text of at most MU_BASE58_BYTES_MAX bytes. Returns its length. */
size_t mu_base58_encode(char ret_text[MU_BASE58_TEXT_MAX + 1], struct mu_span in);
/** MUSTER_EINVAL: an invalid letter, or more than MU_BASE58_BYTES_MAX bytes. */
int mu_base58_decode(uint8_t ret_bytes[MU_BASE58_BYTES_MAX], size_t *ret_len, struct mu_span text);

#endif
