/* A file that processes share, as core/file_log.h describes it. */
#ifndef MU_TRANSPORT_FILE_LOG_H
#define MU_TRANSPORT_FILE_LOG_H

#include "core/file_log.h"

/**
 * A file locked as PyTorch locks its FileStore, by flock(2) on the whole file, shared to read and
 * exclusive to write. It is opened at the first call that needs it. MUSTER_ENOMEM.
 */
int mu_file_log_new(const char *path, struct mu_file_log **ret_log);

#endif
