/*
 * The extra data of PyTorch's etcd rendezvous: texts by name that belong to a version, for whoever
 * wants to tell the other nodes something. PyTorch's store_extra_data() and load_extra_data(), in
 * the same key; nobody at PyTorch calls them.
 */
#ifndef MU_RDZV_ETCD_EXTRA_H
#define MU_RDZV_ETCD_EXTRA_H

#include "service/rdzv/rdzv.h"

struct mu_rdzv_etcd_extra_config {
    const struct mu_rdzv_params *params; /* of the backend `etcd`, as for mu_rdzv_open() */
    uint64_t version;                    /* 0: the one that is now */
    struct mu_span name;
    struct mu_span value; /* to be stored */
    bool load;            /* instead: waits until it is there */
    uint32_t timeout_ms;  /* 0: never */
    /**
     * Once, on a later turn. Status 0: `value` is what was stored or loaded, lent for the call.
     * Else with a sentence: MUSTER_ETIMEDOUT, MUSTER_ENOENT (no version is active), MUSTER_EPROTO
     * (what is there is none), and those of service/etcd/etcd.h.
     */
    void (*done)(void *context, int status, struct mu_span value, const char *text);
    void *context;
};

/** Texts are copied, but for `name` and `value`, which stay until `done`. MUSTER_EINVAL in words,
 * MUSTER_ENOMEM. */
int mu_rdzv_etcd_extra(struct mu_env *env, const struct mu_rdzv_etcd_extra_config *config,
                       struct mu_errmsg *reterr_msg);

#endif
