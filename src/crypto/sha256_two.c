#include "crypto/sha256_two.h"

#include "core/assert.h"

#ifdef __x86_64__

#include <cpuid.h>
#include <immintrin.h>
#include <stdatomic.h>

/* FIPS 180-4, 4.2.2. */
static const uint32_t constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

/* The code around these instructions is compiled to AVX, which the kernel must support as well.
 * Some processors have one and not the other. */
__attribute__((target("xsave"))) static bool ask_processor(void)
{
    unsigned int a = 0;
    unsigned int b = 0;
    unsigned int c = 0;
    unsigned int d = 0;

    if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & bit_AVX) == 0 || (c & bit_OSXSAVE) == 0) {
        return false;
    }
    return (_xgetbv(0) & 6) == 6 && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 &&
           (b & bit_SHA) != 0;
}

bool mu_sha256_two_can(void)
{
    /* Asking the processor is slow in a virtual machine. Threads that ask at the same time get the
     * same answer. */
    static atomic_int known; /* 0: not asked yet */
    int can = atomic_load_explicit(&known, memory_order_relaxed);

    if (can == 0) {
        can = ask_processor() ? 1 : -1;
        atomic_store_explicit(&known, can, memory_order_relaxed);
    }
    return can > 0;
}

#define CAN_TWO static inline __attribute__((target("sha,avx"), always_inline))

/* One message: the state in the order that the instructions want, and 16 words of the schedule. */
struct lane {
    __m128i abef;
    __m128i cdgh;
    __m128i words[4];
};

CAN_TWO void load_state(struct lane *l, const uint32_t state[8])
{
    __m128i abcd = _mm_loadu_si128((const __m128i *)(const void *)state);
    __m128i efgh = _mm_loadu_si128((const __m128i *)(const void *)(state + 4));

    abcd = _mm_shuffle_epi32(abcd, 0xb1);
    efgh = _mm_shuffle_epi32(efgh, 0x1b);
    l->abef = _mm_alignr_epi8(abcd, efgh, 8);
    l->cdgh = _mm_blend_epi16(efgh, abcd, 0xf0);
}

CAN_TWO void store_state(const struct lane *l, uint32_t state[8])
{
    __m128i feba = _mm_shuffle_epi32(l->abef, 0x1b);
    __m128i dchg = _mm_shuffle_epi32(l->cdgh, 0xb1);

    _mm_storeu_si128((__m128i *)(void *)state, _mm_blend_epi16(feba, dchg, 0xf0));
    _mm_storeu_si128((__m128i *)(void *)(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}

/* Does four rounds, the `quarter`th of sixteen such groups. */
CAN_TWO void do_rounds(struct lane *l, const uint8_t *block, int quarter)
{
    const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    __m128i *w = l->words;
    __m128i next;

    if (quarter < 4) {
        next = _mm_loadu_si128((const __m128i *)(const void *)(block + quarter * 16));
        next = _mm_shuffle_epi8(next, swap);
    } else {
        next = _mm_sha256msg1_epu32(w[quarter & 3], w[(quarter + 1) & 3]);
        next = _mm_add_epi32(next, _mm_alignr_epi8(w[(quarter + 3) & 3], w[(quarter + 2) & 3], 4));
        next = _mm_sha256msg2_epu32(next, w[(quarter + 3) & 3]);
    }
    w[quarter & 3] = next;
    next = _mm_add_epi32(
        next, _mm_loadu_si128((const __m128i *)(const void *)(constants + (size_t)quarter * 4)));
    l->cdgh = _mm_sha256rnds2_epu32(l->cdgh, l->abef, next);
    l->abef = _mm_sha256rnds2_epu32(l->abef, l->cdgh, _mm_shuffle_epi32(next, 0x0e));
}

__attribute__((target("sha,avx"))) void mu_sha256_two_blocks(uint32_t a[8], const uint8_t *a_blocks,
                                                             uint32_t b[8], const uint8_t *b_blocks,
                                                             size_t count)
{
    struct lane x;
    struct lane y;

    /* These instructions exist only in the old encoding, which keeps the upper parts of registers:
     * if other code has left something there, each instruction waits for the one that wrote its
     * target before, and the two messages wait for each other. */
    _mm256_zeroupper();
    load_state(&x, a);
    load_state(&y, b);
    for (; count != 0; count--) {
        struct lane x_before = x;
        struct lane y_before = y;

/* Unrolled, so that both stay in registers and the compiler knows the numbers. */
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) {
            do_rounds(&x, a_blocks, i);
            do_rounds(&y, b_blocks, i);
        }
        x.abef = _mm_add_epi32(x.abef, x_before.abef);
        x.cdgh = _mm_add_epi32(x.cdgh, x_before.cdgh);
        y.abef = _mm_add_epi32(y.abef, y_before.abef);
        y.cdgh = _mm_add_epi32(y.cdgh, y_before.cdgh);
        a_blocks += 64;
        b_blocks += 64;
    }
    store_state(&x, a);
    store_state(&y, b);
}

#else

bool mu_sha256_two_can(void)
{
    return false;
}

void mu_sha256_two_blocks(uint32_t a[8], const uint8_t *a_blocks, uint32_t b[8],
                          const uint8_t *b_blocks, size_t count)
{
    (void)a;
    (void)a_blocks;
    (void)b;
    (void)b_blocks;
    (void)count;
    MU_ASSERT(false);
}

#endif
