/*
 * What a worker says of itself to its group, through a store. One message (codec/rpc/msg.h), whose
 * parts are
 *
 *     its name, where it is dialled, the devices that it has (i32 each; none: it does not say),
 *     and for each worker to which it has a device map
 *     the name of that, and pairs of devices (i32 its own, i32 that one's)
 *
 * A message of one part is a notice in the place of a worker: why there will be no group.
 */
#ifndef MU_RPC_INTRO_H
#define MU_RPC_INTRO_H

#include "codec/rpc/msg.h"

struct mu_rpc_intro {
    struct mu_span notice;  /* not empty: it is one, and all else is empty */
    struct mu_span name;    /* can be a worker's */
    struct mu_span address; /* printable */
    struct mu_span devices;
    const struct mu_rpc_part *maps; /* two parts for each: the worker, the pairs */
    size_t map_count;
    struct mu_rpc_part *parts; /* private */
};

/** Appends a message of these parts, which are as above. MUSTER_ELIMIT, MUSTER_ENOMEM. */
int mu_rpc_intro_encode(struct mu_buf *out, const struct mu_rpc_part *parts, size_t count);
/** What it reads is lent by `in`; freed with mu_rpc_intro_fini(). MUSTER_EPROTO, MUSTER_ENOMEM. */
int mu_rpc_intro_decode(struct mu_span in, struct mu_rpc_intro *ret);
/** Twice is harmless. */
void mu_rpc_intro_fini(struct mu_rpc_intro *intro);

/** Of devices or of pairs, one number; 0 or more, as all that were read. */
int32_t mu_rpc_intro_device(struct mu_span devices, size_t index);

#endif
