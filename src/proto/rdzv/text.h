/* A text that grows as far as there is room: the sentences that say what is waited for. */
#ifndef MU_RDZV_TEXT_H
#define MU_RDZV_TEXT_H

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

struct mu_text {
    char *data; /* always terminated */
    size_t len;
    size_t cap; /* at least 1 */
};

__attribute__((format(printf, 2, 3))) static inline void mu_text_add(struct mu_text *t,
                                                                     const char *format, ...)
{
    va_list args;
    int n;

    va_start(args, format);
    n = vsnprintf(t->data + t->len, t->cap - t->len, format, args);
    va_end(args);
    if (n > 0) {
        t->len = (size_t)n < t->cap - t->len ? t->len + (size_t)n : t->cap - 1;
    }
}

#endif
