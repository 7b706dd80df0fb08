/*
 * The extra data of PyTorch's etcd rendezvous: texts by name that belong to a version, with which a
 * node can tell the other nodes something. These are PyTorch's store_extra_data() and
 * load_extra_data(), in the same key; PyTorch itself never calls them.
 */
#ifndef MU_RDZV_ETCD_EXTRA_H
#define MU_RDZV_ETCD_EXTRA_H

#include "service/rdzv/rdzv.h"

struct mu_rdzv_etcd_extra_config {
    const struct mu_rdzv_params *params; /* of the backend `etcd`, as for mu_rdzv_open() */
    uint64_t version;                    /* 0: the present one */
    struct mu_span name;
    struct mu_span value; /* the value to store */
    bool load;            /* loads instead: waits until it is there */
    uint32_t timeout_ms;  /* 0: never */
    /**
     * Comes once, on a later turn. Status 0: `value` is what was stored or loaded, lent for the
     * call. Else with a text: MUSTER_ETIMEDOUT, MUSTER_ENOENT (no version is active), MUSTER_EPROTO
     * (the key does not hold extra data), and the errors of service/etcd/etcd.h.
     */
    void (*done)(void *context, int status, struct mu_span value, const char *text);
    void *context;
};

/** Texts are copied, but for `name` and `value`, which must stay until `done`. MUSTER_EINVAL with a
 * text, MUSTER_ENOMEM. */
int mu_rdzv_etcd_extra(struct mu_env *env, const struct mu_rdzv_etcd_extra_config *config,
                       struct mu_errmsg *reterr_msg);

#endif
