/*
 * The keys of a rendezvous configuration ("join_timeout=60,is_host=true"): which backend uses
 * which, in one table. PyTorch's launcher gives all keys to all of its backends, each of which
 * picks those that it knows. So a key that any of PyTorch's backends knows is accepted by every
 * backend of ours, and ignored where it has no meaning; a key of our own is for the backends that
 * have it; any other key is a mistake.
 */
#ifndef MU_RDZV_KEYS_H
#define MU_RDZV_KEYS_H

#include <stdbool.h>

#include "core/err.h"
#include "core/span.h"

enum mu_rdzv_key_verdict {
    MU_RDZV_KEY_USED = 1,
    MU_RDZV_KEY_IGNORED, /* PyTorch has it, and this backend has no use for it */
    MU_RDZV_KEY_REFUSED, /* it is unknown, or belongs to other backends */
};

/** Judges one key for a backend. REFUSED: `reterr_msg` says so, and which key may have been
 * meant. */
enum mu_rdzv_key_verdict mu_rdzv_key_judge(const char *backend, struct mu_span key,
                                           struct mu_errmsg *reterr_msg);

#endif
