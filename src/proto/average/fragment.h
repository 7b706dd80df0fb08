/*
 * Which part of a model is averaged when. Instead of everything every `every` steps, one of `count`
 * fragments is averaged at a time, `count` times as often: each still comes once in `every` steps,
 * the link is used evenly, and a round can go on while the next steps are computed (that is for the
 * driver to do).
 *
 * Steps are counted from 1, the first that is made. The rounds of a fragment are at most one step
 * nearer or farther apart than `every`, where `count` does not divide it. All members count the
 * same steps, so nothing has to be agreed upon.
 */
#ifndef MU_FRAGMENT_H
#define MU_FRAGMENT_H

#include <stdbool.h>
#include <stdint.h>

#define MU_FRAGMENT_EVERY_MAX (1u << 30)
#define MU_FRAGMENT_COUNT_MAX 4096

/** Whether the schedule can be: at least one step for each fragment, within the limits. */
bool mu_fragment_check(uint32_t every, uint32_t count);
/** Whether a fragment is due after that step, and which. */
bool mu_fragment_due(uint32_t every, uint32_t count, uint64_t step, uint32_t *ret_fragment);
/** The next step after `step` after which a fragment is due, and which. */
uint64_t mu_fragment_next(uint32_t every, uint32_t count, uint64_t step, uint32_t *ret_fragment);

#endif
