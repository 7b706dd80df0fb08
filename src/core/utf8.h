/*
 * UTF-8 as RFC 3629 defines it: no surrogates, and no character in more bytes than it needs.
 */
#ifndef MU_UTF8_H
#define MU_UTF8_H

#include "core/span.h"

/** The length of the first character of `s`, which is not empty; 0: it is not a character. */
static inline size_t mu_utf8_len(struct mu_span s)
{
    uint8_t c = s.data[0];
    size_t len = c < 0x80 ? 1 : c < 0xc2 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 0;

    if (len > s.len) {
        return 0;
    }
    for (size_t i = 1; i < len; i++) {
        if ((s.data[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    /* More bytes than needed, a surrogate, or beyond the last character. */
    if ((c == 0xe0 && s.data[1] < 0xa0) || (c == 0xed && s.data[1] > 0x9f) ||
        (c == 0xf0 && s.data[1] < 0x90) || (c == 0xf4 && s.data[1] > 0x8f)) {
        return 0;
    }
    return len;
}

/** Writes a character, which is at most U+10FFFF; returns its length. */
static inline size_t mu_utf8_put(uint8_t out[4], uint32_t c)
{
    static const uint8_t marks[] = {0, 0, 0xc0, 0xe0, 0xf0};
    size_t len = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;

    for (size_t i = len; i-- > 1; c >>= 6) {
        out[i] = (uint8_t)(0x80 | (c & 0x3f));
    }
    out[0] = (uint8_t)(marks[len] | c);
    return len;
}

#endif
