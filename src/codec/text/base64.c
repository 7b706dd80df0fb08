#include "codec/text/base64.h"

#include <muster/error.h>

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

int mu_base64_encode(struct mu_buf *out, struct mu_span in)
{
    size_t groups = in.len / 3 + (in.len % 3 != 0 ? 1 : 0);
    uint8_t *to;
    size_t i = 0;
    int err;

    if (groups > SIZE_MAX / 4) {
        return MUSTER_ELIMIT;
    }
    err = mu_buf_reserve(out, groups * 4);
    if (err != 0 || groups == 0) {
        return err;
    }
    to = mu_buf_grow(out, groups * 4);
    for (; i + 3 <= in.len; i += 3, to += 4) {
        uint32_t bits = (uint32_t)in.data[i] << 16 | (uint32_t)in.data[i + 1] << 8 | in.data[i + 2];

        to[0] = (uint8_t)alphabet[bits >> 18];
        to[1] = (uint8_t)alphabet[bits >> 12 & 63];
        to[2] = (uint8_t)alphabet[bits >> 6 & 63];
        to[3] = (uint8_t)alphabet[bits & 63];
    }
    if (i < in.len) {
        uint32_t bits = (uint32_t)in.data[i] << 16;

        if (i + 1 < in.len) {
            bits |= (uint32_t)in.data[i + 1] << 8;
        }
        to[0] = (uint8_t)alphabet[bits >> 18];
        to[1] = (uint8_t)alphabet[bits >> 12 & 63];
        to[2] = i + 1 < in.len ? (uint8_t)alphabet[bits >> 6 & 63] : (uint8_t)'=';
        to[3] = (uint8_t)'=';
    }
    return 0;
}

/* The six bits of a letter; NONE for any other byte. */
#define NONE 0x80u
static const uint8_t bits_of[256] = {
    NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE,
    NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE,
    NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, 62,   NONE, NONE, NONE, 63,
    52,   53,   54,   55,   56,   57,   58,   59,   60,   61,   NONE, NONE, NONE, NONE, NONE, NONE,
    NONE, 0,    1,    2,    3,    4,    5,    6,    7,    8,    9,    10,   11,   12,   13,   14,
    15,   16,   17,   18,   19,   20,   21,   22,   23,   24,   25,   NONE, NONE, NONE, NONE, NONE,
    NONE, 26,   27,   28,   29,   30,   31,   32,   33,   34,   35,   36,   37,   38,   39,   40,
    41,   42,   43,   44,   45,   46,   47,   48,   49,   50,   51,   NONE, NONE, NONE, NONE, NONE,
    NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE,
    NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE,
    NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE,
    NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE,
    NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE,
    NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE,
    NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE,
    NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE,
};

/* Decodes a group of four letters, of which `letters` count. False: one is not a letter. */
static bool decode_group(const uint8_t *from, size_t letters, uint32_t *ret_bits)
{
    uint32_t bits = 0;

    for (size_t i = 0; i < 4; i++) {
        uint32_t six = i < letters ? bits_of[from[i]] : 0;

        if (six == NONE) {
            return false;
        }
        bits = bits << 6 | six;
    }
    *ret_bits = bits;
    return true;
}

/* Decodes all groups except the last: three bytes each. False: something is not a letter. */
static bool decode_full(uint8_t *to, const uint8_t *from, size_t groups)
{
    uint8_t seen = 0;

    for (size_t i = 0; i < groups; i++, from += 4, to += 3) {
        uint8_t a = bits_of[from[0]];
        uint8_t b = bits_of[from[1]];
        uint8_t c = bits_of[from[2]];
        uint8_t d = bits_of[from[3]];

        seen = (uint8_t)(seen | a | b | c | d);
        to[0] = (uint8_t)(a << 2 | b >> 4);
        to[1] = (uint8_t)(b << 4 | c >> 2);
        to[2] = (uint8_t)(c << 6 | d);
    }
    return (seen & NONE) == 0;
}

int mu_base64_decode(struct mu_buf *out, struct mu_span in)
{
    size_t groups = in.len / 4;
    size_t before = out->len;
    const uint8_t *last;
    uint32_t bits;
    size_t bytes;
    int err;

    if (in.len % 4 != 0) {
        return MUSTER_ECORRUPT;
    }
    if (groups == 0) {
        return 0;
    }
    last = in.data + in.len - 4;
    bytes = last[3] != '=' ? 3 : last[2] != '=' ? 2 : 1;
    err = mu_buf_reserve(out, mu_base64_decoded_max(in.len) - (3 - bytes));
    if (err != 0) {
        return err;
    }
    /* Of three bytes all 24 bits count, of fewer the lowest must be zero. */
    if (!decode_full(mu_buf_grow(out, 3 * (groups - 1)), in.data, groups - 1) ||
        !decode_group(last, bytes + 1, &bits) ||
        (bytes < 3 && (bits & ((1u << (8 * (3 - bytes))) - 1)) != 0)) {
        out->len = before;
        return MUSTER_ECORRUPT;
    }
    for (size_t k = 0; k < bytes; k++) {
        mu_buf_put_u8(out, (uint8_t)(bits >> (16 - 8 * k)));
    }
    return 0;
}
