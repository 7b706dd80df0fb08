#include "proto/average/native_schema.h"

#include "crypto/hash.h"

#define TITLE "muster native averaging"

void mu_native_schema_hash(const struct mu_native_schema *s, uint8_t ret[MU_NATIVE_SCHEMA_LEN])
{
    uint8_t fixed[2 + 8 + 1 + 1 + 4];
    struct mu_sha256 h;

    mu_put_u16(fixed, MU_NATIVE_VERSION);
    mu_put_u64(fixed + 2, s->part_bytes);
    fixed[10] = s->parts_codec;
    fixed[11] = s->averages_codec;
    mu_put_u32(fixed + 12, s->block);
    mu_sha256_begin(&h);
    mu_sha256_add(&h, MU_SPAN_LIT(TITLE));
    mu_sha256_add(&h, mu_span(fixed, sizeof(fixed)));
    mu_sha256_add(&h, mu_span(s->layout, sizeof(s->layout)));
    mu_sha256_end(&h, ret);
}

const char *mu_native_hello_check(const struct mu_native_hello *ours,
                                  const struct mu_native_hello *theirs)
{
    if (theirs->version != ours->version) {
        return "another version of the protocol";
    }
    if (memcmp(theirs->group_id, ours->group_id, sizeof(ours->group_id)) != 0) {
        return "another group";
    }
    if (theirs->round != ours->round) {
        return "another round";
    }
    if (memcmp(theirs->schema, ours->schema, sizeof(ours->schema)) != 0) {
        return "another layout, codec or part size";
    }
    if (theirs->members != ours->members || theirs->position == ours->position) {
        return "another list of members";
    }
    return NULL;
}
