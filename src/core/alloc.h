/*
 * All memory goes through here, so that a test can make any one allocation fail.
 *
 * Running out of memory is returned (MUSTER_ENOMEM), never fatal: this is a library inside a
 * training job. mu_alloc_hook is set once, before threads exist; tests set it to a predicate that
 * says which allocation fails.
 */
#ifndef MU_ALLOC_H
#define MU_ALLOC_H

#include <stdbool.h>
#include <stddef.h>

/** Returns NULL when there is no memory. A size of zero gives a pointer that can be freed. */
void *mu_malloc(size_t size);
/** Zeroed; checks the product for overflow. */
void *mu_calloc(size_t count, size_t size);
/** As realloc; on failure the old block is untouched. */
void *mu_realloc(void *ptr, size_t size);
/** NULL is fine. */
void mu_free(void *ptr);
/** A copy of `len` bytes with a terminating zero after them, or NULL. */
char *mu_strndup(const char *text, size_t len);

/** For tests: called before each allocation; false makes that allocation fail. NULL: all
 * succeed. */
extern bool (*mu_alloc_hook)(size_t size);

#endif
