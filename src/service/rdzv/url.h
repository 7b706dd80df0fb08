/*
 * A rendezvous in one line, as PyTorch's documentation of its etcd rendezvous has it:
 *
 *     BACKEND://ENDPOINT/RUN_ID[?min_workers=N][&max_workers=N][&KEY=VALUE...]
 *     etcd://localhost:2379/1234?min_workers=1&max_workers=3
 *
 * It may stand where an endpoint does, for every backend; the other parameters are options of the
 * backend, as in a configuration.
 */
#ifndef MU_RDZV_URL_H
#define MU_RDZV_URL_H

#include "core/url.h"
#include "codec/rdzv/params.h"

struct mu_rdzv_url {
    struct mu_url url; /* must not move */
    char *config;
    struct mu_rdzv_params params; /* lent; what was given holds where the URL says nothing */
};

/** Whether the endpoint is such a URL, and of that backend where one is named. (The endpoint of a
 * backend may be a URL of another kind, as etcd-v3's.) */
bool mu_rdzv_url_is(const char *backend, const char *endpoint);
/**
 * Parses params->endpoint; what the URL says wins over the rest. MUSTER_EINVAL with a text,
 * MUSTER_ENOMEM.
 */
int mu_rdzv_url_init(struct mu_rdzv_url *u, const struct mu_rdzv_params *params,
                     struct mu_errmsg *reterr_msg);
void mu_rdzv_url_fini(struct mu_rdzv_url *u);

#endif
