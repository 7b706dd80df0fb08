#include "service/store.h"

int mu_store_file_new(struct mu_env *env, const char *path, int64_t world_size,
                      struct mu_store **ret_store)
{
    (void)env;
    (void)path;
    (void)world_size;
    (void)ret_store;
    return MUSTER_ENOTSUP;
}
