#include "codec/average/schema.h"

#include <stdio.h>

#include "codec/bin/msgpack.h"
#include "core/assert.h"

#define DIMENSION_DIGITS 22 /* of a 64-bit number, with a comma and a blank */
#define SEED_BYTES_MAX   256

static void put_pair(struct mu_mp_out *out, const char *name, const char *value)
{
    mu_mp_put_str(out, mu_span_str(name));
    mu_mp_put_str(out, mu_span_str(value));
}

/* Writes "torch.Size([2, 3])". */
static void print_size(char *text, size_t cap, const uint64_t *shape, uint32_t rank)
{
    size_t len = (size_t)snprintf(text, cap, "torch.Size([");

    for (uint32_t i = 0; i < rank; i++) {
        len += (size_t)snprintf(text + len, cap - len, "%s%llu", i == 0 ? "" : ", ",
                                (unsigned long long)shape[i]);
    }
    (void)snprintf(text + len, cap - len, "])");
}

int mu_avg_schema_encode(const struct mu_layout *layout, struct mu_buf *out)
{
    char size[32 + MU_TENSOR_RANK_MAX * DIMENSION_DIGITS];
    char dtype[32];
    struct mu_mp_out mp = mu_mp_out(out);

    mu_mp_put_array(&mp, layout->count);
    for (size_t i = 0; i < layout->count; i++) {
        const struct mu_tensor *t = &layout->tensors[i];
        const char *name = mu_dtype_torch_name(t->dtype);

        if (name == NULL) {
            return MUSTER_ENOTSUP;
        }
        print_size(size, sizeof(size), mu_layout_shape(layout, i), t->rank);
        (void)snprintf(dtype, sizeof(dtype), "torch.%s", name);
        mu_mp_put_map(&mp, 7);
        put_pair(&mp, "size", size);
        put_pair(&mp, "dtype", dtype);
        put_pair(&mp, "layout", "torch.strided");
        put_pair(&mp, "device", "cpu");
        put_pair(&mp, "requires_grad", "False");
        put_pair(&mp, "pin_memory", "False");
        put_pair(&mp, "compression", "0");
    }
    return mp.err;
}

bool mu_avg_key_is_valid(struct mu_span key)
{
    size_t dot = 0;

    while (dot < key.len && key.data[dot] != '.') {
        dot++;
    }
    if (dot == 0 || key.len > MU_AVG_KEY_MAX ||
        !mu_span_starts_with(mu_span_skip(key, dot), MU_SPAN_LIT(".0b"))) {
        return false;
    }
    for (size_t i = dot + 3; i < key.len; i++) {
        if (key.data[i] != '0' && key.data[i] != '1') {
            return false;
        }
    }
    return key.len - dot - 3 <= MU_AVG_BITS_MAX;
}

/* --- MT19937 ---------------------------------------------------------------------------------- */

#define MT_WORDS 624
#define MT_SHIFT 397

static void seed_word(struct mu_avg_mt *mt, uint32_t seed)
{
    mt->words[0] = seed;
    for (uint32_t i = 1; i < MT_WORDS; i++) {
        uint32_t last = mt->words[i - 1];

        mt->words[i] = 1812433253u * (last ^ last >> 30) + i;
    }
    mt->at = MT_WORDS;
}

static uint32_t mix(const struct mu_avg_mt *mt, size_t i, uint32_t factor)
{
    uint32_t last = mt->words[i - 1];

    return mt->words[i] ^ (last ^ last >> 30) * factor;
}

static size_t step(struct mu_avg_mt *mt, size_t i)
{
    if (++i == MT_WORDS) {
        mt->words[0] = mt->words[MT_WORDS - 1];
        i = 1;
    }
    return i;
}

void mu_avg_mt_seed(struct mu_avg_mt *mt, struct mu_span number)
{
    uint32_t key[SEED_BYTES_MAX / 4] = {0};
    size_t count = 1;
    size_t i = 1;

    MU_ASSERT(number.len <= SEED_BYTES_MAX);
    /* The least significant word comes first; words of zero at the end do not count. */
    for (size_t k = 0; k < number.len; k++) {
        key[k / 4] |= (uint32_t)number.data[number.len - 1 - k] << (8 * (k % 4));
        count = key[k / 4] != 0 ? k / 4 + 1 : count;
    }
    seed_word(mt, 19650218u);
    for (size_t k = 0; k < MT_WORDS; k++) {
        size_t j = k % count;

        mt->words[i] = mix(mt, i, 1664525u) + key[j] + (uint32_t)j;
        i = step(mt, i);
    }
    for (size_t k = 1; k < MT_WORDS; k++) {
        mt->words[i] = mix(mt, i, 1566083941u) - (uint32_t)i;
        i = step(mt, i);
    }
    mt->words[0] = 0x80000000u;
}

static void refill(struct mu_avg_mt *mt)
{
    for (size_t i = 0; i < MT_WORDS; i++) {
        uint32_t y = (mt->words[i] & 0x80000000u) | (mt->words[(i + 1) % MT_WORDS] & 0x7fffffffu);

        mt->words[i] =
            mt->words[(i + MT_SHIFT) % MT_WORDS] ^ y >> 1 ^ ((y & 1) != 0 ? 0x9908b0dfu : 0);
    }
    mt->at = 0;
}

uint32_t mu_avg_mt_next(struct mu_avg_mt *mt)
{
    uint32_t y;

    if (mt->at == MT_WORDS) {
        refill(mt);
    }
    y = mt->words[mt->at++];
    y ^= y >> 11;
    y ^= y << 7 & 0x9d2c5680u;
    y ^= y << 15 & 0xefc60000u;
    return y ^ y >> 18;
}

/* Below `n`, which is not zero. */
static uint32_t below(struct mu_avg_mt *mt, uint32_t n)
{
    int shift = __builtin_clz(n);
    uint32_t r;

    do {
        r = mu_avg_mt_next(mt) >> shift;
    } while (r >= n);
    return r;
}

/* How large a range may be so that Python keeps a list of it; the formula is Python's. */
static uint64_t pool_limit(uint32_t count)
{
    uint64_t power = 1;

    if (count <= 5) {
        return 21;
    }
    while (power < 3 * (uint64_t)count) {
        power *= 4;
    }
    return 21 + power;
}

static bool was_taken(const uint32_t *taken, uint32_t count, uint32_t value)
{
    for (uint32_t i = 0; i < count; i++) {
        if (taken[i] == value) {
            return true;
        }
    }
    return false;
}

#define POOL_MAX (21 + 1024) /* the limit above for MU_AVG_MEMBERS_MAX */

void mu_avg_mt_sample(struct mu_avg_mt *mt, uint32_t n, uint32_t count, uint32_t *ret)
{
    uint32_t pool[POOL_MAX];

    MU_ASSERT(count <= n && count <= MU_AVG_MEMBERS_MAX);
    if (n > pool_limit(count)) {
        for (uint32_t i = 0; i < count; i++) {
            do {
                ret[i] = below(mt, n);
            } while (was_taken(ret, i, ret[i]));
        }
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        pool[i] = i;
    }
    for (uint32_t i = 0; i < count; i++) {
        uint32_t j = below(mt, n - i);

        ret[i] = pool[j];
        pool[j] = pool[n - i - 1];
    }
}
