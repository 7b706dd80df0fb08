/*
 * The status of a run over etcd, for a client that is not a node: one read of its state, which is
 * not changed. The counterpart of service/rdzv/ask.h where there is no muster server to ask.
 */
#ifndef MU_RDZV_LOOK_H
#define MU_RDZV_LOOK_H

#include "codec/rdzv/params.h"
#include "service/rdzv/ask.h"

/** Whether a backend can be looked at: "etcd", "etcd-v2", "etcd-v3". */
bool mu_rdzv_can_look(const char *backend);
/**
 * Looks. `run` comes if there is such a run, then `done`, within `timeout_ms` or a little more.
 * MUSTER_EINVAL with a text, MUSTER_ENOMEM.
 */
int mu_rdzv_look(struct mu_env *env, const struct mu_rdzv_params *params, uint32_t timeout_ms,
                 const struct mu_rdzv_ask_events *events, struct mu_errmsg *reterr_msg);
/** The same for the backend "etcd", which has a protocol of its own (etcd_look.c). */
int mu_rdzv_etcd_look(struct mu_env *env, const struct mu_rdzv_params *params, uint32_t timeout_ms,
                      const struct mu_rdzv_ask_events *events, struct mu_errmsg *reterr_msg);

#endif
