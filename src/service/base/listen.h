/* The error for an address on which we cannot listen: every listener gives the same one. */
#ifndef MU_LISTEN_H
#define MU_LISTEN_H

#include "core/env.h"
#include "core/err.h"

/** To be called when mu_env_listen() has just returned `err` for that address. MUSTER_ELOCKED
 * stays, all else becomes MUSTER_EADDR. */
int mu_listen_failed(struct mu_env *env, const struct mu_addr *addr, int err,
                     struct mu_errmsg *reterr_msg);

#endif
