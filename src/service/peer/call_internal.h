/* Internals of calls between peers: the unary ones in call.c, the others in items.c. */
#ifndef MU_PEER_CALL_INTERNAL_H
#define MU_PEER_CALL_INTERNAL_H

#include "codec/peer/frame.h"
#include "core/alloc.h"
#include "service/peer/call.h"

#define MU_PEER_CALL_IDS 32

struct mu_peer_calls {
    struct mu_unary unary; /* first: users get a pointer to it */
    struct mu_peer_host *host;
    struct mu_env *env;
    struct mu_peer_calls_config config;
    struct mu_list outs;
    struct mu_list ins;
    struct mu_list handlers;
    struct mu_list items;
    uint32_t in_count;
    size_t in_bytes;
    /* Ids of future calls: many are drawn from the kernel at a time. */
    uint8_t ids[MU_PEER_CALL_IDS][MU_CALL_ID_LEN];
    size_t ids_left;
};

#endif
