/*
 * Checker: what was begun ends exactly once. The code that begins a wait, a call, a connection or
 * work gets a ticket and returns it at the end. A process that is killed ends nothing any more; its
 * tickets are forgiven.
 */
#ifndef MU_SIM_ONCE_H
#define MU_SIM_ONCE_H

#include "sim.h"

struct once;

/** `what` names the things in messages; borrowed. NULL when there is no memory. */
struct once *once_new(struct mu_sim *sim, const char *what);
void once_free(struct once *o);
/** Something begins, by `owner` (any number, such as that of a client). Returns its ticket. */
uint64_t once_begin(struct once *o, uint32_t owner);
/** Returns a ticket. A second return, or a ticket that was never given, fails the run. */
void once_end(struct once *o, uint64_t ticket);
/** The owner died: what it has begun will not end any more. */
void once_forgive(struct once *o, uint32_t owner);
/** Returns how many have begun and neither ended nor been forgiven. */
size_t once_open(const struct once *o);
/** Fails the run if any has not ended. */
void once_finish(struct once *o);

#endif
