#include "core/printable.h"

#include <string.h>

#include "core/utf8.h"

static bool is_obeyed(struct mu_span in, size_t len, bool lines)
{
    const uint8_t *c = in.data;

    switch (len) {
    case 1:
        return (c[0] < ' ' && !(lines && (c[0] == '\n' || c[0] == '\t'))) || c[0] == 127;
    case 2:
        return c[0] == 0xc2 && c[1] < 0xa0;
    case 3: /* U+200E and U+200F, U+202A to U+202E, U+2066 to U+2069 */
        return c[0] == 0xe2 && ((c[1] == 0x80 && (c[2] == 0x8e || c[2] == 0x8f ||
                                                  (c[2] >= 0xaa && c[2] <= 0xae))) ||
                                (c[1] == 0x81 && c[2] >= 0xa6 && c[2] <= 0xa9));
    default:
        return false;
    }
}

size_t mu_printable_next(char out[MU_PRINTABLE_MAX], struct mu_span in, bool lines,
                         size_t *ret_taken)
{
    static const char digits[] = "0123456789abcdef";
    size_t len = mu_utf8_len(in);

    *ret_taken = len == 0 ? 1 : len;
    if (len != 0 && !is_obeyed(in, len, lines)) {
        memcpy(out, in.data, len);
        return len;
    }
    for (size_t i = 0; i < *ret_taken; i++) {
        out[4 * i] = '\\';
        out[4 * i + 1] = 'x';
        out[4 * i + 2] = digits[in.data[i] >> 4];
        out[4 * i + 3] = digits[in.data[i] & 15];
    }
    return 4 * *ret_taken;
}

size_t mu_printable(char *out, size_t cap, struct mu_span in, bool lines)
{
    size_t len = 0;

    while (in.len != 0) {
        char next[MU_PRINTABLE_MAX];
        size_t taken;
        size_t n = mu_printable_next(next, in, lines, &taken);

        if (len + n >= cap) {
            break;
        }
        memcpy(out + len, next, n);
        len += n;
        in = mu_span_skip(in, taken);
    }
    out[len] = '\0';
    return len;
}
