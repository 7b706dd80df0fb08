/*
 * Checker: what was begun ends exactly once. Waits, calls, connections, work: whoever begins one
 * gets a ticket and hands it in at the end. A process that is killed ends nothing any more; its
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
/** It ended. A second time, or a ticket that was never given, fails the run. */
void once_end(struct once *o, uint64_t ticket);
/** The owner died: what it has begun and not ended never will. */
void once_forgive(struct once *o, uint32_t owner);
/** How many have begun and neither ended nor been forgiven. */
size_t once_open(const struct once *o);
/** All should have ended by now. */
void once_finish(struct once *o);

#endif
