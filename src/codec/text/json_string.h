/*
 * Strings of JSON: written, and what they mean. Texts as a whole are read by json_view.h.
 */
#ifndef MU_JSON_STRING_H
#define MU_JSON_STRING_H

#include <stddef.h>
#include <stdint.h>

#include "core/span.h"

/**
 * Writes `in`, as UTF-8, as a JSON string with its quotes. Returns the length, which is more than
 * `cap` if it did not fit: nothing behind `cap` is written then. Bytes that are not ASCII stay.
 */
size_t mu_json_quote(struct mu_span in, char *out, size_t cap);

/**
 * Decodes a JSON string, given with its quotes, into `out`, with a zero behind it. Returns the
 * length it has without that, which is more than fits if it is at least `cap`: it was cut then. A
 * half of a surrogate pair becomes U+FFFD.
 */
size_t mu_json_decode(struct mu_span string, char *out, size_t cap);

#define MU_JSON_HALF UINT32_MAX

/**
 * The character that an escape stands for, whose backslash is at `*at`; moves behind it.
 * MU_JSON_HALF: a half of a surrogate pair, which is none.
 */
uint32_t mu_json_escape(struct mu_span text, size_t *at);

#endif
