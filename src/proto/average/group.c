#include "proto/average/group.h"

#include <stdio.h>

#include "core/assert.h"
#include "crypto/hash.h"

#define SCHEMA_BYTES_MAX ((size_t)1 << 30)

int mu_avg_schema_hash(const struct mu_layout *layout, uint8_t ret[MU_AVG_SCHEMA_LEN])
{
    struct mu_buf text;
    int err;

    mu_buf_init(&text, SCHEMA_BYTES_MAX);
    err = mu_avg_schema_encode(layout, &text);
    if (err == 0) {
        mu_sha1(ret, mu_buf_span(&text));
    }
    mu_buf_fini(&text);
    return err;
}

int mu_avg_key_format(char ret[MU_AVG_KEY_MAX + 1], const char *prefix, const char *bits)
{
    char key[MU_AVG_KEY_MAX + 1];
    int len = snprintf(key, sizeof(key), "%s.0b%s", prefix, bits);

    if (len < 0 || (size_t)len >= sizeof(key)) {
        return MUSTER_ELIMIT;
    }
    if (!mu_avg_key_is_valid(mu_span(key, (size_t)len))) {
        return MUSTER_EINVAL;
    }
    memcpy(ret, key, (size_t)len + 1);
    return 0;
}

int mu_avg_handler_format(char *buf, size_t cap, const char *prefix, const char *averager,
                          const char *method)
{
    int len;

    if (prefix[0] == '\0' || averager[0] == '\0' || method[0] == '\0') {
        return MUSTER_EINVAL;
    }
    len = snprintf(buf, cap, "%s::%s.%s", prefix, averager, method);
    return len < 0 || (size_t)len >= cap ? MUSTER_ELIMIT : 0;
}

/* The least power of two that is not below `n`. */
static uint32_t power_of_two(uint32_t n)
{
    uint32_t power = 1;

    while (power < n) {
        power *= 2;
    }
    return power;
}

int mu_avg_next_bits(struct mu_span group_id, uint32_t target, uint32_t members, uint32_t position,
                     char bits[MU_AVG_BITS_MAX + 1])
{
    uint32_t buckets = target != 0 ? target : power_of_two(members);
    uint8_t seed[MU_AVG_GROUP_ID_MAX + MU_SHA512_LEN];
    uint32_t chosen[MU_AVG_MEMBERS_MAX];
    size_t len = strlen(bits);
    struct mu_avg_mt mt;
    size_t width = 0;

    if (members == 0 || members > MU_AVG_MEMBERS_MAX || members > buckets || position >= members ||
        group_id.len > MU_AVG_GROUP_ID_MAX) {
        return MUSTER_EINVAL;
    }
    if (len == 0) {
        return 0;
    }
    MU_ASSERT(len <= MU_AVG_BITS_MAX);
    memcpy(seed, group_id.data, group_id.len);
    mu_sha512(seed + group_id.len, group_id);
    mu_avg_mt_seed(&mt, mu_span(seed, group_id.len + MU_SHA512_LEN));
    mu_avg_mt_sample(&mt, buckets, members, chosen);
    while (power_of_two(buckets) > (uint64_t)1 << width) {
        width++;
    }
    for (size_t i = 0; i < width; i++) {
        memmove(bits, bits + 1, len - 1);
        bits[len - 1] = (chosen[position] >> (width - 1 - i) & 1) != 0 ? '1' : '0';
    }
    return 0;
}
