/*
 * The register of PyTorch's etcd-v2 backend: the file /torch/elastic/rendezvous/RUN of etcd's v2
 * API, with base64 of the state's bytes in it. The token of a state is its modifiedIndex. The key
 * lives for two hours from the last write.
 *
 * A request that waits for the next change reports it. A write whose answer got lost is repeated;
 * it has happened if the key holds what it wrote.
 */
#ifndef MU_RDZV_REGISTER_V2_H
#define MU_RDZV_REGISTER_V2_H

#include "service/etcd/etcd.h"
#include "service/rdzv/register.h"

/** Takes the client, and closes it with the register. MUSTER_ENOMEM: the client is still the
 * caller's. */
int mu_rdzv_v2_register_new(struct mu_env *env, struct mu_etcd *etcd, const char *run_id,
                            uint32_t answer_ms, const struct mu_rdzv_register_events *events,
                            struct mu_rdzv_register **ret_register);

#endif
