/* Bytes written as hex digits in a test. */
#ifndef MU_TEST_HEX_H
#define MU_TEST_HEX_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/** Decodes; blanks and line ends are skipped. Aborts on what is no hex, or does not fit. */
static inline size_t hex_decode(uint8_t *to, size_t cap, const char *text)
{
    size_t len = 0;
    int high = -1;

    for (; *text != '\0'; text++) {
        int digit;

        if (*text == ' ' || *text == '\n') {
            continue;
        }
        digit = *text >= '0' && *text <= '9'   ? *text - '0'
                : *text >= 'a' && *text <= 'f' ? *text - 'a' + 10
                                               : -1;
        if (digit < 0 || len == cap) {
            (void)fprintf(stderr, "no hex, or too much of it: %s\n", text);
            abort();
        }
        if (high < 0) {
            high = digit;
        } else {
            to[len++] = (uint8_t)(high << 4 | digit);
            high = -1;
        }
    }
    if (high >= 0) {
        abort();
    }
    return len;
}

#endif
