/* The store in a file, over any struct mu_file_log: tests use one in memory. */
#ifndef MU_STORE_FILE_H
#define MU_STORE_FILE_H

#include "core/file_log.h"
#include "service/store/store.h"

/** As mu_store_file_new(). Takes `log`, unless it fails; `path` is only named in errors. */
int mu_store_file_new_on(struct mu_env *env, struct mu_file_log *log, const char *path,
                         int64_t world_size, struct mu_store **ret_store);

#endif
