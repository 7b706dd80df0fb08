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

/*
 * Timeouts are milliseconds in an int64_t, and two numbers mean the same in every header: -1 is no
 * bound, and 0 is not to wait at all. A function that only asks accepts 0; an operation or a call,
 * which needs time for its answer, refuses it (MUSTER_EINVAL). More than 2,147,483,647 (24 days)
 * counts as that much.
 */

/** No bound. */
#define MUSTER_TIMEOUT_NEVER (-1)
/** The timeout that the store or agent was given; in a config, that of the defaults; no bound where
 * there is no such thing. */
#define MUSTER_TIMEOUT_DEFAULT (-2)

/*
 * Structs that a program fills in for the library (configs, requests, tables of functions) begin
 * with their size. Make them with the function that is named after them, and then change fields:
 *
 *     struct muster_store_config config = muster_store_config_defaults();
 *     config.timeout_ms = 5000;
 *
 * So a later version of the library can add fields at the end: in a struct of an older program it
 * takes them as their defaults. A struct without its size, or one with fields that this library
 * does not know and that are not zero, is refused (MUSTER_EINVAL).
 *
 * For each of them there are two functions. muster_NAME_defaults() is compiled into the program and
 * knows the program's size of the struct. It calls muster_NAME_init(), which bindings of other
 * languages call with the size that they have.
 */

/**
 * The text of the last error that a call on this thread returned: one sentence that names what
 * failed. Valid until the next call on this thread; never NULL.
 */
MUSTER_EXPORT const char *muster_errmsg(void);

#ifdef __cplusplus
}
#endif

#endif
