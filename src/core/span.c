#include "core/span.h"

#include "core/assert.h"

char *mu_span_put_text(char **at, struct mu_span text)
{
    char *start = *at;

    if (text.len != 0) {
        memcpy(start, text.data, text.len);
    }
    start[text.len] = '\0';
    *at += text.len + 1;
    return start;
}

char *mu_span_quote(char *out, size_t cap, struct mu_span s)
{
    static const char hex[] = "0123456789abcdef";
    size_t n = 0;

    MU_ASSERT(cap >= 8);
    out[n++] = '"';
    for (size_t i = 0; i < s.len; i++) {
        uint8_t c = s.data[i];
        bool plain = c >= 0x20 && c < 0x7f && c != '"' && c != '\\';

        /* Room must remain for this character, and for `..."` and the terminator after it. */
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

static bool is_digit(struct mu_span s, size_t i)
{
    return i < s.len && s.data[i] >= '0' && s.data[i] <= '9';
}

/* Compares by length, then by digits: no number is too long. Moves both past their digits. */
static int compare_numbers(struct mu_span a, size_t *at_a, struct mu_span b, size_t *at_b)
{
    size_t i = *at_a;
    size_t j = *at_b;

    while (i < a.len && a.data[i] == '0') {
        i++;
    }
    while (j < b.len && b.data[j] == '0') {
        j++;
    }
    *at_a = i;
    *at_b = j;
    while (is_digit(a, *at_a)) {
        (*at_a)++;
    }
    while (is_digit(b, *at_b)) {
        (*at_b)++;
    }
    if (*at_a - i != *at_b - j) {
        return *at_a - i < *at_b - j ? -1 : 1;
    }
    return *at_a == i ? 0 : memcmp(a.data + i, b.data + j, *at_a - i);
}

int mu_span_natural_cmp(struct mu_span a, struct mu_span b)
{
    size_t i = 0;
    size_t j = 0;
    int order;

    while (i < a.len && j < b.len) {
        if (is_digit(a, i) && is_digit(b, j)) {
            order = compare_numbers(a, &i, b, &j);
        } else {
            order = (int)a.data[i++] - (int)b.data[j++];
        }
        if (order != 0) {
            return order;
        }
    }
    if (i < a.len || j < b.len) {
        return i < a.len ? 1 : -1;
    }
    if (a.len != b.len) {
        return a.len < b.len ? -1 : 1;
    }
    return a.len == 0 ? 0 : memcmp(a.data, b.data, a.len);
}
