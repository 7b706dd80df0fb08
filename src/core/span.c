#include "core/span.h"

#include "core/assert.h"

char *mu_span_quote(char *out, size_t cap, struct mu_span s)
{
    static const char hex[] = "0123456789abcdef";
    size_t n = 0;

    MU_ASSERT(cap >= 8);
    out[n++] = '"';
    for (size_t i = 0; i < s.len; i++) {
        uint8_t c = s.data[i];
        bool plain = c >= 0x20 && c < 0x7f && c != '"' && c != '\\';

        /* Room must remain for this character, and for `..."` and the terminator behind it. */
        if (n + (plain ? 1 : 4) + 5 > cap) {
            memcpy(out + n, "...", 3);
            n += 3;
            break;
        }
        if (plain) {
            out[n++] = (char)c;
        } else {
            out[n++] = '\\';
            out[n++] = 'x';
            out[n++] = hex[c >> 4];
            out[n++] = hex[c & 15];
        }
    }
    out[n++] = '"';
    out[n] = '\0';
    return out;
}
