/*
 * The failing heap: makes one allocation and all later ones fail. A sweep runs the same steps with
 * 0, 1, 2, ... until nothing fired any more:
 *
 *     for (long nth = 0;; nth++) {
 *         set up; failheap_arm(nth); steps; bool fired = failheap_fired(); failheap_disarm();
 *         check; tear down;
 *         if (!fired) break;
 *     }
 */
#ifndef MU_FAILHEAP_H
#define MU_FAILHEAP_H

#include <stdbool.h>
#include <stddef.h>

#include "core/alloc.h"

static long failheap_left;
static bool failheap_has_fired;

static inline bool failheap_hook(size_t size)
{
    (void)size;
    if (failheap_left > 0) {
        failheap_left--;
        return true;
    }
    failheap_has_fired = true;
    return false;
}

/** From now on the allocation number `nth`, counted from 0, fails, and all behind it. */
static inline void failheap_arm(long nth)
{
    failheap_left = nth;
    failheap_has_fired = false;
    mu_alloc_hook = failheap_hook;
}

/** Whether an allocation has failed since failheap_arm(). */
static inline bool failheap_fired(void)
{
    return failheap_has_fired;
}

/** Allocations succeed again. */
static inline void failheap_disarm(void)
{
    mu_alloc_hook = NULL;
}

#endif
