/*
 * The key exchange of simulated processes. It is linked in place of crypto/x25519.c: same functions
 * and same lengths, but between numbers modulo a prime, at almost no cost, where X25519 took half
 * the time of a run among peers. A simulation does not test the curve: other tests check it against
 * its vectors.
 */
#include "sim_impl.h"

#include <muster/error.h>

#include "crypto/x25519.h"

#define PRIME     UINT64_C(4294967291) /* the greatest below 2^32, so that products fit */
#define GENERATOR 2

static uint64_t power(uint64_t base, uint64_t exponent)
{
    uint64_t result = 1;

    for (; exponent != 0; exponent >>= 1) {
        result = (exponent & 1) != 0 ? result * base % PRIME : result;
        base = base * base % PRIME;
    }
    return result;
}

static uint64_t read_number(const uint8_t bytes[MU_X25519_LEN])
{
    uint64_t number = 0;

    for (size_t i = 0; i < sizeof(number); i++) {
        number = number << 8 | bytes[i];
    }
    return number;
}

/* Computes the number, and the generator's power of it. */
static void write_number(uint8_t ret[MU_X25519_LEN], uint64_t number)
{
    struct mu_prng prng;
    uint64_t next = number;

    mu_prng_seed(&prng, number);
    for (size_t i = 0; i < MU_X25519_LEN; i++) {
        next = i != 0 && i % 8 == 0 ? mu_prng_u64(&prng) : next;
        ret[i] = (uint8_t)(next >> (56 - 8 * (i % 8)));
    }
}

int mu_x25519_public(uint8_t ret[MU_X25519_LEN], const uint8_t secret[MU_X25519_LEN])
{
    write_number(ret, power(GENERATOR, read_number(secret)));
    return 0;
}

int mu_x25519(uint8_t ret[MU_X25519_LEN], const uint8_t secret[MU_X25519_LEN],
              const uint8_t peer[MU_X25519_LEN])
{
    uint64_t public_key = read_number(peer) % PRIME;

    if (public_key <= 1) {
        return MUSTER_ECORRUPT; /* no secret can be shared with it */
    }
    write_number(ret, power(public_key, read_number(secret)));
    return 0;
}

bool sim_x25519_in_place(void)
{
    const uint8_t secret[MU_X25519_LEN] = {[7] = 1};
    uint8_t bytes[MU_X25519_LEN];

    return mu_x25519_public(bytes, secret) == 0 && read_number(bytes) == GENERATOR;
}
