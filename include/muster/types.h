/* Small types that every header shares. */
#ifndef MUSTER_TYPES_H
#define MUSTER_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <muster/export.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Bytes that are borrowed: keys and values on their way in, results on their way out. */
struct muster_bytes {
    const void *data;
    size_t len;
};

/** The bytes of a C string, without its terminator. */
static inline struct muster_bytes muster_str(const char *text)
{
    struct muster_bytes b = {text, strlen(text)};

    return b;
}

/** Bytes the caller owns: free them with muster_value_free(). A zero byte follows `data`. */
struct muster_value {
    void *data;
    size_t len;
};

/** A list of values the caller owns: free it with muster_values_free(). */
struct muster_values {
    struct muster_value *items;
    size_t count;
};

/** Frees and zeroes; a second call is harmless. */
MUSTER_EXPORT void muster_value_free(struct muster_value *value);
MUSTER_EXPORT void muster_values_free(struct muster_values *values);

/** Use the timeout of the store or agent. */
#define MUSTER_TIMEOUT_DEFAULT (-1)
/** Never time out. */
#define MUSTER_TIMEOUT_NEVER 0

/**
 * The text of the last error that a call on this thread returned: one sentence that names what
 * failed. Valid until the next call on this thread; never NULL.
 */
MUSTER_EXPORT const char *muster_errmsg(void);

#ifdef __cplusplus
}
#endif

#endif
