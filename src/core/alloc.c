#include "core/alloc.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

bool (*mu_alloc_hook)(size_t size);

void *mu_malloc(size_t size)
{
    if (mu_alloc_hook != NULL && !mu_alloc_hook(size)) {
        return NULL;
    }
    return malloc(size == 0 ? 1 : size);
}

void *mu_calloc(size_t count, size_t size)
{
    if (size != 0 && count > SIZE_MAX / size) {
        return NULL;
    }
    if (mu_alloc_hook != NULL && !mu_alloc_hook(count * size)) {
        return NULL;
    }
    return calloc(count == 0 ? 1 : count, size == 0 ? 1 : size);
}

void *mu_realloc(void *ptr, size_t size)
{
    if (mu_alloc_hook != NULL && !mu_alloc_hook(size)) {
        return NULL;
    }
    return realloc(ptr, size == 0 ? 1 : size);
}

void mu_free(void *ptr)
{
    free(ptr);
}

char *mu_strndup(const char *text, size_t len)
{
    char *copy = len == SIZE_MAX ? NULL : mu_malloc(len + 1);

    if (copy != NULL) {
        if (len != 0) {
            memcpy(copy, text, len);
        }
        copy[len] = '\0';
    }
    return copy;
}
