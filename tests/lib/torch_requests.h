/* Requests and answers of PyTorch's protocol as one-liners, for tests that use torch_rig.h. */
#ifndef MU_TORCH_REQUESTS_H
#define MU_TORCH_REQUESTS_H

#include "torch_rig.h"

/* Requests of generation 2. */
#define N(x)          ((uint64_t)(x))
#define SET(k, v)     rig_bytes("bss", MU_TORCH_SET, k, v)
#define GET(k)        rig_bytes("bs", MU_TORCH_GET, k)
#define WAIT1(k)      rig_bytes("bns", MU_TORCH_WAIT, N(1), k)
#define CHECK1(k)     rig_bytes("bns", MU_TORCH_CHECK, N(1), k)
#define PUSH(k, v)    rig_bytes("bss", MU_TORCH_QUEUE_PUSH, k, v)
#define CAS(k, a, b)  rig_bytes("bsss", MU_TORCH_COMPARE_SET, k, a, b)
#define BYTE(b)       rig_bytes("b", b)
#define I64(n)        rig_bytes("n", N(n))
#define BARRIER(k, n) rig_bytes("bsn", MU_TORCH_BARRIER, k, N(n))
/* Requests of generation 1. */
#define SET_1(k, v) rig_bytes("bss", 0, k, v)
#define WAIT_1(k)   rig_bytes("bns", 5, N(1), k)
#define GET_1(k)    rig_bytes("bs", 2, k)
#define WATCH_1(k)  rig_bytes("bs", 7, k)

/* Six connections that speak generation 2. */
static inline void open_2(struct rig *r)
{
    rig_init(r, RIG_WHOLE, 0);
    for (size_t i = 0; i < RIG_CONNS; i++) {
        rig_greet(r, i);
    }
}

#endif
