/*
 * Log lines in the trace. They are separate from the trace, because the log belongs to the
 * services, and tests of the simulator alone link without them.
 */
#include "sim.h"

#include <muster/log.h>

static void note_line(void *context, enum muster_log_level level, const char *id, const char *line)
{
    (void)level;
    (void)id;
    mu_sim_note(context, NULL, "log: %s", line);
}

void mu_sim_trace_log(struct mu_sim *sim)
{
    muster_log_set(note_line, sim, mu_sim_tracing(sim) ? MUSTER_LOG_DEBUG : MUSTER_LOG_ERROR);
}
