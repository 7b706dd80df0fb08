#include "codec/text/ip.h"

#include <stdio.h>

bool mu_ip4_parse(struct mu_span text, uint8_t ret_bytes[4])
{
    size_t i = 0;

    for (int part = 0; part < 4; part++) {
        unsigned value = 0;
        size_t first = i;

        while (i < text.len && text.data[i] >= '0' && text.data[i] <= '9' && i - first < 4) {
            value = value * 10 + (text.data[i++] - (unsigned)'0');
        }
        if (i == first || value > 255 || (i - first > 1 && text.data[first] == '0')) {
            return false;
        }
        ret_bytes[part] = (uint8_t)value;
        if (part < 3 && (i == text.len || text.data[i++] != '.')) {
            return false;
        }
    }
    return i == text.len;
}

static int hex_of(uint8_t c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Parses one group of up to four hex digits; returns how many there were. */
static size_t parse_group(struct mu_span text, unsigned *ret_value)
{
    size_t n = 0;

    *ret_value = 0;
    while (n < text.len && n < 5 && hex_of(text.data[n]) >= 0) {
        *ret_value = *ret_value << 4 | (unsigned)hex_of(text.data[n++]);
    }
    return n;
}

bool mu_ip6_parse(struct mu_span text, uint8_t ret_bytes[16])
{
    uint8_t bytes[16] = {0};
    size_t len = 0;
    size_t gap = SIZE_MAX; /* where "::" is */

    if (mu_span_starts_with(text, MU_SPAN_LIT("::"))) {
        gap = 0;
        text = mu_span_skip(text, 2);
    }
    while (text.len != 0) {
        unsigned value;
        size_t n = parse_group(text, &value);

        if (len <= 12 && n < text.len && text.data[n] == '.') {
            if (!mu_ip4_parse(text, bytes + len)) {
                return false;
            }
            len += 4;
            break;
        }
        if (n == 0 || n > 4 || len == 16) {
            return false;
        }
        bytes[len++] = (uint8_t)(value >> 8);
        bytes[len++] = (uint8_t)value;
        text = mu_span_skip(text, n);
        if (text.len == 0) {
            break;
        }
        if (mu_span_starts_with(text, MU_SPAN_LIT("::"))) {
            if (gap != SIZE_MAX) {
                return false;
            }
            gap = len;
            text = mu_span_skip(text, 2);
        } else if (text.data[0] == ':' && text.len > 1) {
            text = mu_span_skip(text, 1);
        } else {
            return false;
        }
    }
    if (gap == SIZE_MAX ? len != 16 : len > 14) {
        return false;
    }
    memset(ret_bytes, 0, 16);
    if (gap == SIZE_MAX) {
        gap = len;
    }
    memcpy(ret_bytes, bytes, gap);
    memcpy(ret_bytes + 16 - (len - gap), bytes + gap, len - gap);
    return true;
}

char *mu_ip4_format(const uint8_t bytes[4], char text[MU_IP_TEXT_MAX])
{
    (void)snprintf(text, MU_IP_TEXT_MAX, "%u.%u.%u.%u", bytes[0], bytes[1], bytes[2], bytes[3]);
    return text;
}

char *mu_ip6_format(const uint8_t bytes[16], char text[MU_IP_TEXT_MAX])
{
    int best = -1; /* the first of the longest run of zeroes */
    int best_len = 1;
    size_t len = 0;

    for (int i = 0; i < 8; i++) {
        int run = 0;

        while (i + run < 8 && bytes[2 * (i + run)] == 0 && bytes[2 * (i + run) + 1] == 0) {
            run++;
        }
        if (run > best_len) {
            best = i;
            best_len = run;
        }
    }
    for (int i = 0; i < 8; i++) {
        if (i == best) {
            (void)snprintf(text + len, MU_IP_TEXT_MAX - len, "::");
            i += best_len - 1;
        } else {
            const char *colon = i == 0 || (best >= 0 && i == best + best_len) ? "" : ":";

            (void)snprintf(text + len, MU_IP_TEXT_MAX - len, "%s%x", colon,
                           (unsigned)(bytes[2 * i] << 8 | bytes[2 * i + 1]));
        }
        len += strlen(text + len);
    }
    return text;
}
