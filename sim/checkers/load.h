/*
 * Checker: a download of a state counts nothing as loaded that is other than it should be, and ends
 * in time. `who` names the newcomer in messages.
 */
#ifndef MU_SIM_LOAD_H
#define MU_SIM_LOAD_H

#include "service/state/loader_internal.h"
#include "sim.h"

#define LOAD_CHUNK 4096u /* chunk size of the states; shorter chunks are not landed */

/**
 * Checks that the chunks loaded since the last call are those of `content`. `seen` has a bit for
 * each chunk that was checked, and gets the new ones; so does `kept`, unless it is NULL.
 */
void load_check_chunks(struct mu_sim *sim, const char *who, const struct mu_state_loader *l,
                       const uint8_t *content, uint8_t *seen, uint8_t *kept);
/** Checks that a load that began then, and may last so long, has ended now. */
void load_check_time(struct mu_sim *sim, const char *who, const struct mu_sim_proc *proc,
                     uint64_t begun_ns, uint64_t limit_ms);
/** A planted bug: now and then a chunk counts as loaded that was never verified. True: one
 * does. */
bool load_plant_unverified(struct mu_sim *sim, struct mu_state_loader *l);

#endif
