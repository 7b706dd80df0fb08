/*
 * The parameters of a rendezvous, and the two small languages in which users write them: the
 * endpoint ("node0:29400") and the configuration ("join_timeout=60,is_host=true"). The parsers read
 * text from outside; nothing is copied or allocated.
 */
#ifndef MU_RDZV_PARAMS_H
#define MU_RDZV_PARAMS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/addr.h"
#include "core/err.h"
#include "core/span.h"

#define MU_RDZV_PORT           29400 /* if an endpoint has no port */
#define MU_RDZV_RUN_ID_MAX     255
#define MU_RDZV_CONFIG_LEN_MAX 65536
/* The option whose value may have commas: parts that are no key=value belong to it. */
#define MU_RDZV_LIST_KEY "via"

/* All text is borrowed. NULL is the same as "" everywhere. */
struct mu_rdzv_params {
    const char *backend;
    const char *endpoint;
    const char *run_id;
    uint32_t nodes_min;
    uint32_t nodes_max;
    const char *local_addr; /* how others reach this node; "": its host name */
    const char *config;     /* "key=value,key=value" */
    const char *page;       /* HOST:PORT of this node's status page; "": it has no page */
};

/** MUSTER_EINVAL, with a text: backend or run id empty, minimum below one, maximum below the
 * minimum, a malformed config. */
int mu_rdzv_params_check(const struct mu_rdzv_params *params, struct mu_errmsg *reterr_msg);

/** Checks that all of the text is well-formed: MUSTER_EINVAL names the item that is not. */
int mu_rdzv_config_check(const char *config, struct mu_errmsg *reterr_msg);
/** Takes the first item off `rest`, which begins as the whole text: its key, trimmed; never empty
 * in a text that was checked. False once no item is left. */
bool mu_rdzv_config_next(struct mu_span *rest, struct mu_span *ret_key);
/** The value of a key, trimmed; points into `config`. If the key occurs twice, the last one counts.
 * False: absent. */
bool mu_rdzv_config_get(const char *config, const char *key, struct mu_span *ret_value);
/** Accepts 1 true t yes y, 0 false f no n, in any case. MUSTER_EINVAL names key and value. */
int mu_rdzv_config_bool(const char *config, const char *key, bool fallback, bool *ret,
                        struct mu_errmsg *reterr_msg);
int mu_rdzv_config_int(const char *config, const char *key, int64_t fallback, int64_t *ret,
                       struct mu_errmsg *reterr_msg);
/** A time as milliseconds: seconds, whole or decimal ("0.25"), or with a unit ("500ms", "5s", "2m",
 * "1h"); must be above zero and at most a year. */
int mu_rdzv_config_seconds(const char *config, const char *key, uint64_t fallback_ms,
                           uint64_t *ret_ms, struct mu_errmsg *reterr_msg);

/** Reads "N/TIME", such as "100/1h": a number of losses, and a time as above. MUSTER_EINVAL,
 * with a text that says how to write it. */
int mu_rdzv_losses_parse(struct mu_span text, uint32_t *ret_max, uint64_t *ret_ms,
                         struct mu_errmsg *reterr_msg);

/** Likewise "3/10m": 1 to MU_RDZV_FAILURES_MAX failures of a node, and a time. */
int mu_rdzv_failures_parse(struct mu_span text, uint32_t *ret_max, uint64_t *ret_ms,
                           struct mu_errmsg *reterr_msg);

/**
 * Reads an endpoint as PyTorch does: blank is localhost and the default port; it is split at the
 * last colon; brackets around a host are removed. One thing differs: "::1", which PyTorch takes for
 * host ":" and port 1, is refused with the advice to write brackets. MUSTER_EINVAL, with a text.
 */
int mu_rdzv_endpoint_parse(const char *text, uint16_t default_port, struct mu_addr *ret,
                           struct mu_errmsg *reterr_msg);
/** Reads HOST:PORT,HOST:PORT. The number, at most `cap`; MUSTER_EINVAL with a text. */
int mu_rdzv_endpoints_parse(const char *text, uint16_t default_port, struct mu_addr *ret, int cap,
                            struct mu_errmsg *reterr_msg);
/** Reads the value of `via`, which is not empty: HOST:PORT,HOST:PORT. The number, at most `cap`;
 * MUSTER_EINVAL with a text. */
int mu_rdzv_relays_parse(struct mu_span text, struct mu_addr *ret, int cap,
                         struct mu_errmsg *reterr_msg);

#endif
