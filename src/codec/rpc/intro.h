/*
 * What a worker tells its group about itself, through a store: one message (codec/rpc/msg.h), whose
 * parts are
 *
 *     its name, where it is dialled, the devices that it has (i32 each; empty: unknown),
 *     and for each worker to which it has a device map
 *     the name of that, and pairs of devices (i32 its own, i32 that one's)
 *
 * A message of one part is a notice in place of a worker: why there will be no group.
 */
#ifndef MU_RPC_INTRO_H
#define MU_RPC_INTRO_H

#include "codec/rpc/msg.h"

struct mu_rpc_intro {
    struct mu_span notice;  /* not empty: this is a notice, and everything else is empty */
    struct mu_span name;    /* a valid worker's name */
    struct mu_span address; /* printable */
    struct mu_span devices;
    const struct mu_rpc_part *maps; /* two parts for each: the worker, the pairs */
    size_t map_count;
    struct mu_rpc_part *parts; /* private */
};

/** Appends a message of these parts, which are as above. MUSTER_ELIMIT, MUSTER_ENOMEM. */
int mu_rpc_intro_encode(struct mu_buf *out, const struct mu_rpc_part *parts, size_t count);
/** Spans point into `in`. Free it with mu_rpc_intro_fini(). MUSTER_EPROTO, MUSTER_ENOMEM. */
int mu_rpc_intro_decode(struct mu_span in, struct mu_rpc_intro *ret);
/** A second call is harmless. */
void mu_rpc_intro_fini(struct mu_rpc_intro *intro);

/** One number of devices or of pairs; decoded ones are 0 or more. */
int32_t mu_rpc_intro_device(struct mu_span devices, size_t index);

#endif
