#include "service/store_engine.h"

int mu_store_torch_new(struct mu_env *env, const struct mu_store_tcp_config *config,
                       const struct mu_store_engine_events *events, struct mu_store **ret_store)
{
    (void)env;
    (void)config;
    (void)events;
    (void)ret_store;
    return MUSTER_ENOTSUP;
}
