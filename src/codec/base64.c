#include "codec/base64.h"

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

/* The six bits that a letter stands for, or -1. */
static int bits_of(uint8_t letter)
{
    if (letter >= 'A' && letter <= 'Z') {
        return letter - 'A';
    }
    if (letter >= 'a' && letter <= 'z') {
        return letter - 'a' + 26;
    }
    if (letter >= '0' && letter <= '9') {
        return letter - '0' + 52;
    }
    if (letter == '+') {
        return 62;
    }
    return letter == '/' ? 63 : -1;
}

/* One group of four letters, of which `letters` count. False: one of them is none. */
static bool decode_group(const uint8_t *from, size_t letters, uint32_t *ret_bits)
{
    uint32_t bits = 0;

    for (size_t i = 0; i < 4; i++) {
        int six = i < letters ? bits_of(from[i]) : 0;

        if (six < 0) {
            return false;
        }
        bits = bits << 6 | (uint32_t)six;
    }
    *ret_bits = bits;
    return true;
}

int mu_base64_decode(struct mu_buf *out, struct mu_span in)
{
    size_t pad = 0;
    size_t size;
    size_t before = out->len;
    int err;

    if (in.len % 4 != 0) {
        return MUSTER_ECORRUPT;
    }
    if (in.len != 0 && in.data[in.len - 1] == '=') {
        pad = in.data[in.len - 2] == '=' ? 2 : 1;
    }
    size = mu_base64_decoded_max(in.len) - pad;
    err = mu_buf_reserve(out, size);
    if (err != 0) {
        return err;
    }
    for (size_t i = 0; i < in.len; i += 4) {
        size_t bytes = i + 4 == in.len ? 3 - pad : 3;
        uint32_t bits;

        /* Of three bytes all 24 bits count, of fewer the lowest must be zero. */
        if (!decode_group(in.data + i, bytes + 1, &bits) ||
            (bytes < 3 && (bits & ((1u << (8 * (3 - bytes))) - 1)) != 0)) {
            out->len = before;
            return MUSTER_ECORRUPT;
        }
        for (size_t k = 0; k < bytes; k++) {
            mu_buf_put_u8(out, (uint8_t)(bits >> (16 - 8 * k)));
        }
    }
    return 0;
}
