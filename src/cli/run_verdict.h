/* Writes how a run ended to files: --verdict, and the launcher's own TORCHELASTIC_ERROR_FILE. */
#ifndef MU_RUN_VERDICT_H
#define MU_RUN_VERDICT_H

#include "service/agent/agent.h"

/** Before the run: whether the verdict can be written there. Prints an error if not, and returns
 * CLI_FAILED. */
int run_verdict_try(const char *path);
/** Writes the verdict as JSON. Prints an error if the file cannot be written. */
void run_verdict_write(const char *path, const struct mu_agent_verdict *verdict);
/**
 * Writes the first failure in the format of PyTorch's error files, with its code as `errorCode`,
 * for a program that started the launcher as its worker. If no worker failed, writes what else went
 * wrong, at `now_s` since the epoch.
 */
void run_verdict_write_error_file(const char *path, const struct mu_agent_verdict *verdict,
                                  int64_t now_s);

#endif
