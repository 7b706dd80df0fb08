/*
 * Strings of JSON: writing and decoding them. json_view.h reads whole texts.
 */
#ifndef MU_JSON_STRING_H
#define MU_JSON_STRING_H

#include <stddef.h>
#include <stdint.h>

#include "core/span.h"

/**
 * Writes `in`, as UTF-8, as a JSON string with its quotes. Returns the length, which is more than
 * `cap` if it did not fit: nothing beyond `cap` is written. Bytes that are not ASCII stay.
 */
size_t mu_json_quote(struct mu_span in, char *out, size_t cap);

/**
 * Decodes a JSON string, given with its quotes, into `out`, with a zero after it. Returns the
 * length without the zero; if that is at least `cap`, the text was cut. A half of a surrogate pair
 * becomes U+FFFD.
 */
size_t mu_json_decode(struct mu_span string, char *out, size_t cap);

#define MU_JSON_HALF UINT32_MAX

/**
 * The character of the escape whose backslash is at `*at`; moves past it. MU_JSON_HALF: a half of a
 * surrogate pair, which is not a character.
 */
uint32_t mu_json_escape(struct mu_span text, size_t *at);

#endif
