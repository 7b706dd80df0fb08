#include "codec/text/json_string.h"

#include "core/utf8.h"

static int hex_value(uint8_t c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The four digits of \uXXXX whose backslash is at `at`; -1 if it is not there. */
static int32_t unit_at(struct mu_span text, size_t at)
{
    int32_t v = 0;

    if (text.len < 6 || at > text.len - 6 || text.data[at] != '\\' || text.data[at + 1] != 'u') {
        return -1;
    }
    for (size_t i = 2; i < 6; i++) {
        int digit = hex_value(text.data[at + i]);

        if (digit < 0) {
            return -1;
        }
        v = v << 4 | digit;
    }
    return v;
}

uint32_t mu_json_escape(struct mu_span text, size_t *at)
{
    static const char names[] = "bfnrt";
    static const char means[] = "\b\f\n\r\t";
    int32_t unit = unit_at(text, *at);
    int32_t low;
    const char *name;

    if (unit < 0) {
        uint8_t c = *at + 1 < text.len ? text.data[*at + 1] : '\\';

        *at += 2;
        name = c == 0 ? NULL : strchr(names, c);
        return name == NULL ? c : (uint8_t)means[name - names];
    }
    *at += 6;
    if (unit < 0xd800 || unit > 0xdfff) {
        return (uint32_t)unit;
    }
    low = unit_at(text, *at);
    if (unit > 0xdbff || low < 0xdc00 || low > 0xdfff) {
        return MU_JSON_HALF;
    }
    *at += 6;
    return 0x10000 + ((uint32_t)(unit - 0xd800) << 10 | (uint32_t)(low - 0xdc00));
}

size_t mu_json_decode(struct mu_span string, char *out, size_t cap)
{
    struct mu_span text = mu_span(string.data + 1, string.len - 2);
    size_t len = 0;

    for (size_t at = 0; at < text.len;) {
        uint8_t bytes[4] = {text.data[at]};
        size_t count = 1;

        if (bytes[0] == '\\') {
            uint32_t c = mu_json_escape(text, &at);

            count = mu_utf8_put(bytes, c == MU_JSON_HALF ? 0xfffd : c);
        } else {
            at++;
        }
        for (size_t i = 0; i < count; i++, len++) {
            if (len + 1 < cap) {
                out[len] = (char)bytes[i];
            }
        }
    }
    if (cap != 0) {
        out[len < cap ? len : cap - 1] = '\0';
    }
    return len;
}

static void put_raw(char *out, size_t cap, size_t *len, char c)
{
    if (*len < cap) {
        out[*len] = c;
    }
    (*len)++;
}

size_t mu_json_quote(struct mu_span in, char *out, size_t cap)
{
    static const char hex[] = "0123456789abcdef";
    size_t len = 0;

    put_raw(out, cap, &len, '"');
    for (size_t i = 0; i < in.len; i++) {
        uint8_t c = in.data[i];

        if (c == '"' || c == '\\') {
            put_raw(out, cap, &len, '\\');
            put_raw(out, cap, &len, (char)c);
        } else if (c < 0x20) {
            const char escape[] = {'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]};

            for (size_t k = 0; k < sizeof(escape); k++) {
                put_raw(out, cap, &len, escape[k]);
            }
        } else {
            put_raw(out, cap, &len, (char)c);
        }
    }
    put_raw(out, cap, &len, '"');
    return len;
}
