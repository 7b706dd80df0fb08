/*
 * The reports of many workers on one page: proto/stacks/group.h for those who have the reports as
 * they were sent.
 */
#ifndef MU_STACKS_SUMMARY_H
#define MU_STACKS_SUMMARY_H

#include <stdbool.h>

#include "core/buf.h"

/**
 * Appends the page, as text or as a JSON object. `reports`: each is encoded (codec/stacks/report.h)
 * and after its length, a u32; one that cannot be read is passed over. `world`: how many ranks
 * there should be; 0: not known. MUSTER_ELIMIT: there are too many, or `out` is too small;
 * MUSTER_ENOMEM.
 */
int mu_stacks_summary(struct mu_span reports, uint32_t world, bool json, struct mu_buf *out);

/**
 * Appends what the flight recorders of a run say, as text or as a JSON object: `dumps`, how many
 * there are, and `findings`. `flights`: those of all answers (codec/stacks/answer.h), one after
 * another. Errors as above.
 */
int mu_stacks_flights(struct mu_span flights, bool json, struct mu_buf *out);

#endif
