/* How a run ended, in files: --verdict, and the launcher's own TORCHELASTIC_ERROR_FILE. */
#ifndef MU_RUN_VERDICT_H
#define MU_RUN_VERDICT_H

#include "service/agent/agent.h"

/** The verdict as JSON. What cannot be written is said. */
void run_verdict_write(const char *path, const struct mu_agent_verdict *verdict);
/**
 * The first failure in the shape of PyTorch's error files, its code as `errorCode`, for whoever
 * started the launcher as a worker of its own; if it was none of a worker, what else went wrong, at
 * `now_s` since the epoch.
 */
void run_verdict_write_error_file(const char *path, const struct mu_agent_verdict *verdict,
                                  int64_t now_s);

#endif
