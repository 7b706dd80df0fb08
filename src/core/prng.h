/* A small deterministic generator (splitmix64): jitter, tie-breaks, simulation. Never for secrets.
 */
#ifndef MU_PRNG_H
#define MU_PRNG_H

#include <stdbool.h>
#include <stdint.h>

struct mu_prng {
    uint64_t state;
};

static inline void mu_prng_seed(struct mu_prng *p, uint64_t seed)
{
    p->state = seed;
}

static inline uint64_t mu_prng_u64(struct mu_prng *p)
{
    uint64_t z = (p->state += UINT64_C(0x9e3779b97f4a7c15));

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/** Uniform in [0, bound); `bound` is not zero. The bias of the product method is below 2^-32 here.
 */
static inline uint64_t mu_prng_below(struct mu_prng *p, uint64_t bound)
{
    return bound <= UINT32_MAX ? ((mu_prng_u64(p) >> 32) * bound) >> 32 : mu_prng_u64(p) % bound;
}

/** True with probability `ppm` in a million. */
static inline bool mu_prng_chance(struct mu_prng *p, uint32_t ppm)
{
    return mu_prng_below(p, 1000000) < ppm;
}

#endif
