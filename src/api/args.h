/*
 * What callers hand in, and how it is checked before anything below sees it: structs that begin
 * with their size, and timeouts. muster/types.h says what callers are promised.
 */
#ifndef MU_API_ARGS_H
#define MU_API_ARGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* --- structs that begin with their size ------------------------------------------------------- */

/* No struct has fewer bytes than its size and one field, nor more than this. A size beyond these
 * bounds is not one that the defaults wrote, and bytes as far as it says must not be read. */
#define MU_API_SIZE_MIN (2 * sizeof(size_t))
#define MU_API_SIZE_MAX 4096

/** For muster_NAME_init(): writes our defaults into a caller's struct of `size` bytes, and its
 * size. What the caller has beyond ours becomes zero. */
void mu_api_give(void *to, size_t size, const void *ours, size_t ours_size);

/**
 * Copies a caller's struct over our defaults, which `to` holds already: those of fields that an
 * older caller lacks stay. MUSTER_EINVAL, and its text is kept: `from` is NULL, was not made with
 * its defaults, or has fields that this library does not know and that are not zero. `to` then
 * holds the defaults.
 */
int mu_api_take(void *to, size_t to_size, const void *from, const char *name);

/** The same for a struct muster_NAME, whose defaults it fills in first. */
#define MU_API_TAKE(name, to, from)                                                                \
    (muster_##name##_init((to), sizeof(*(to))),                                                    \
     mu_api_take((to), sizeof(*(to)), (from), "muster_" #name))

/* --- timeouts --------------------------------------------------------------------------------- */

/* The longest timeout in milliseconds; a longer one counts as this. The wire of calls has 32 bits
 * for it, and some services a sign. */
#define MU_API_TIMEOUT_MAX INT32_MAX

/* No bound, as the services have it. */
#define MU_API_NO_BOUND 0

/**
 * The timeout of something that needs time for its answer, as the services have it.
 * MUSTER_TIMEOUT_DEFAULT becomes `fallback_ms`, which is one of the services'. MUSTER_EINVAL, and
 * its text is kept: 0, or a number below zero that has no meaning.
 */
int mu_api_timeout(int64_t timeout_ms, uint32_t fallback_ms, uint32_t *ret_ms);
/** The other way, for functions that tell a timeout. */
int64_t mu_api_timeout_public(uint32_t ms);
/** How long a function that only asks may wait: below zero without bound, or from 0 to the longest.
 * MUSTER_EINVAL, and its text is kept. */
int mu_api_patience(int64_t timeout_ms, int64_t *ret_ms);

#endif
