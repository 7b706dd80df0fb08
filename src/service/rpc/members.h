/*
 * The members of a group of RPC workers: what each says of itself (codec/rpc/intro.h), and whether
 * that can be one group. api/rpc_group.c gets it from a store.
 */
#ifndef MU_RPC_MEMBERS_H
#define MU_RPC_MEMBERS_H

#include "codec/rpc/intro.h"
#include "core/addr.h"
#include "core/err.h"

struct mu_rpc_member {
    char name[MU_RPC_WORKER_MAX + 1];
    char address[MU_ADDR_HOST_MAX + 16 + 64];
    struct mu_rpc_intro intro; /* lent by the value that it was read from */
};

/** MUSTER_EEXIST: it is a notice, and that is its text. MUSTER_EPROTO, MUSTER_ENOMEM. */
int mu_rpc_member_decode(struct mu_span value, struct mu_rpc_member *ret,
                         struct mu_errmsg *reterr_msg);
/**
 * Whether they can be one group: MUSTER_EEXIST (a name is there twice), MUSTER_EINVAL (a map names
 * a device that is not there or, with `all_there`, a worker that is not), MUSTER_ENOMEM.
 */
int mu_rpc_members_check(const struct mu_rpc_member *members, size_t count, bool all_there,
                         struct mu_errmsg *reterr_msg);
/** Appends the devices of the worker of that name that their maps name, as u32. MUSTER_ENOMEM. */
int mu_rpc_members_devices(const struct mu_rpc_member *members, size_t count, const char *name,
                           struct mu_buf *out);

#endif
