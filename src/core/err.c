#include "core/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/printable.h"

int mu_err(struct mu_errmsg *e, int code, const char *format, ...)
{
    char text[MU_ERRMSG_CAP];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    (void)mu_printable(e->text, sizeof(e->text), mu_span_str(text), false);
    return code;
}

void mu_err_prefix(struct mu_errmsg *e, const char *format, ...)
{
    struct mu_errmsg old = *e;
    va_list args;
    size_t n;

    va_start(args, format);
    (void)vsnprintf(e->text, sizeof(e->text), format, args);
    va_end(args);
    n = strlen(e->text);
    (void)snprintf(e->text + n, sizeof(e->text) - n, ": %s", old.text);
}

const char *muster_strerror(int code)
{
    switch (code) {
    case 0:
        return "success";
#define MU_ERR_TEXT(name, number, text)                                                            \
    case number:                                                                                   \
        return text;
        MUSTER_ERRNO_MAP(MU_ERR_TEXT)
#undef MU_ERR_TEXT
    default:
        return code < 0 ? strerror(-code) : "unknown error";
    }
}

const char *muster_errname(int code)
{
    switch (code) {
#define MU_ERR_NAME(name, number, text)                                                            \
    case number:                                                                                   \
        return "MUSTER_" #name;
        MUSTER_ERRNO_MAP(MU_ERR_NAME)
#undef MU_ERR_NAME
    default:
        return "unknown";
    }
}
