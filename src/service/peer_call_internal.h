/* Inside of calls between peers: the unary ones in peer_call.c, the others in peer_items.c. */
#ifndef MU_PEER_CALL_INTERNAL_H
#define MU_PEER_CALL_INTERNAL_H

#include "core/alloc.h"
#include "service/peer_call.h"

struct mu_peer_calls {
    struct mu_unary unary; /* first: it is what others see */
    struct mu_peer_host *host;
    struct mu_env *env;
    struct mu_peer_calls_config config;
    struct mu_list outs;
    struct mu_list ins;
    struct mu_list handlers;
    struct mu_list items;
    uint32_t in_count;
    size_t in_bytes;
};

#endif
