/*
 * The members of a group of RPC workers: their descriptions (codec/rpc/intro.h), and whether these
 * fit into one group. api/rpc_group.c reads them from a store.
 */
#ifndef MU_RPC_MEMBERS_H
#define MU_RPC_MEMBERS_H

#include "codec/rpc/intro.h"
#include "core/addr.h"
#include "core/err.h"

struct mu_rpc_member {
    char name[MU_RPC_WORKER_MAX + 1];
    char address[MU_ADDR_HOST_MAX + 16 + 64];
    struct mu_rpc_intro intro; /* lent by the value from which it was read */
};

/** MUSTER_EEXIST: the value is a notice, and the error has its text. MUSTER_EPROTO,
 * MUSTER_ENOMEM. */
int mu_rpc_member_decode(struct mu_span value, struct mu_rpc_member *ret,
                         struct mu_errmsg *reterr_msg);
/**
 * Checks whether they fit into one group: MUSTER_EEXIST (two have the same name), MUSTER_EINVAL (a
 * map names a device that does not exist or, with `all_there`, a worker that does not),
 * MUSTER_ENOMEM.
 */
int mu_rpc_members_check(const struct mu_rpc_member *members, size_t count, bool all_there,
                         struct mu_errmsg *reterr_msg);
/** Appends the devices of that worker which the maps of the others name, as u32. MUSTER_ENOMEM. */
int mu_rpc_members_devices(const struct mu_rpc_member *members, size_t count, const char *name,
                           struct mu_buf *out);

#endif
