/* The real files and consoles behind core/files.h. */
#ifndef MU_UV_FILES_H
#define MU_UV_FILES_H

#include "core/files.h"
#include "transport/uv_env.h"

/** Its sinks belong to this loop, and must be closed before it is freed. MUSTER_ENOMEM. */
int mu_uv_files_new(struct mu_uv_env *uv, struct mu_files **ret);
/** As the verb `console`, for any descriptor of ours, which stays the caller's. */
int mu_uv_files_console(struct mu_files *files, int fd, struct mu_sink **ret_sink,
                        struct mu_errmsg *reterr_msg);

#endif
